// Placement: key -> canonical value -> hash -> bucket.
//
// The only source file that the extension and the router share, so that a shard and a router cannot
// disagree about where a key lives. Pure: no I/O, no allocation, no PostgreSQL, no C++ runtime.
//
// Canonical values
//   integer  smallint, integer and bigint alike, as a signed 64-bit number
//   uuid     its 16 bytes in network order
//   text     the UTF-8 bytes of text or varchar (whatever the encoding of the database)
//   bytea    its bytes
// Hashes
//   splitmix64  for integers: the output function of Steele, Lea and Flood, "Fast splittable
//               pseudorandom number generators" (OOPSLA 2014), with Stafford's variant 13 constants
//   xxh3_64     for the rest: XXH3 64-bit, seed 0, of xxHash 0.8 (a fixed, published format)
//
// The hash of a keyspace and its number of buckets never change; see docs/decisions.md.
#pragma once

#ifdef POSTGRES_H
#error "placement.h is pure: include it before postgres.h"
#endif

#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

namespace interlock::placement {

/// What a key is once its SQL type's spelling is taken away.
enum class KeyFamily : std::uint8_t { integer, uuid, text, bytea };

/// Buckets per keyspace: at least 1, at most 65,536 (a bucket number fits 16 bits).
inline constexpr std::int32_t min_buckets = 1;
inline constexpr std::int32_t max_buckets = 65536;

/// Hash of an integer key.
constexpr std::int64_t splitmix64(std::int64_t key) {
    std::uint64_t z = static_cast<std::uint64_t>(key) + 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<std::int64_t>(z ^ (z >> 31));
}

/// Hash of a uuid, text or bytea key given by its canonical bytes.
inline std::int64_t xxh3_64(const void *bytes, std::size_t length) {
    return static_cast<std::int64_t>(XXH3_64bits(bytes, length));
}

/// floormod(hash, buckets): 0 <= result < buckets, for every hash. `buckets` must be positive.
constexpr std::int32_t bucket_of_hash(std::int64_t hash, std::int32_t buckets) {
    // A power of two, the usual case, needs no division: it is 64-bit and slow.
    if ((buckets & (buckets - 1)) == 0)
        return static_cast<std::int32_t>(static_cast<std::uint64_t>(hash) &
                                         static_cast<std::uint64_t>(buckets - 1));
    const std::int64_t remainder = hash % buckets;
    return static_cast<std::int32_t>(remainder < 0 ? remainder + buckets : remainder);
}

static_assert(bucket_of_hash(-1, 16) == 15);
static_assert(bucket_of_hash(INT64_MIN, 1) == 0);
static_assert(bucket_of_hash(INT64_MIN, 65536) == 0);
static_assert(bucket_of_hash(-65537, 65536) == 65535);
static_assert(bucket_of_hash(-1, 15) == 14 && bucket_of_hash(INT64_MIN, 65535) == 32767);

}  // namespace interlock::placement
