// Known vectors of the hashes: a change here would move every key of every cluster.
#include "placement.h"

#include <gtest/gtest.h>

#include <limits>
#include <string_view>

namespace interlock::placement {
namespace {

std::uint64_t mixed(std::int64_t key) {
    return static_cast<std::uint64_t>(splitmix64(key));
}
std::uint64_t xxh3(std::string_view bytes) {
    return static_cast<std::uint64_t>(xxh3_64(bytes.data(), bytes.size()));
}

TEST(Placement, Splitmix64HasThePublishedValues) {
    EXPECT_EQ(mixed(0), 0xE220A8397B1DCDAFULL);
    // The second and third output of the generator seeded with 0: states gamma and 2 * gamma.
    const auto gamma = static_cast<std::int64_t>(0x9E3779B97F4A7C15ULL);
    EXPECT_EQ(mixed(gamma), 0x6E789E6AA1B965F4ULL);
    EXPECT_EQ(mixed(static_cast<std::int64_t>(2 * 0x9E3779B97F4A7C15ULL)), 0x06C45D188009454FULL);
    // The published first output of the generator seeded with 1234567.
    EXPECT_EQ(mixed(1234567), 6457827717110365317ULL);
}

TEST(Placement, Splitmix64IsABijectionSoNeighboursDiffer) {
    EXPECT_NE(mixed(1), mixed(2));
    EXPECT_NE(mixed(-1), mixed(1));
    EXPECT_NE(mixed(std::numeric_limits<std::int64_t>::min()),
              mixed(std::numeric_limits<std::int64_t>::max()));
}

TEST(Placement, Xxh3HasThePublishedValues) {
    EXPECT_EQ(xxh3(""), 0x2D06800538D394C2ULL);
    EXPECT_EQ(xxh3("a"), 0xE6C632B61E964E1FULL);
    EXPECT_EQ(xxh3("abc"), 0x78AF5F94892F3950ULL);
}

TEST(Placement, BucketsAreTheFloorRemainder) {
    EXPECT_EQ(bucket_of_hash(-1, 16), 15);
    EXPECT_EQ(bucket_of_hash(-16, 16), 0);
    EXPECT_EQ(bucket_of_hash(-17, 16), 15);
    EXPECT_EQ(bucket_of_hash(17, 16), 1);
    EXPECT_EQ(bucket_of_hash(-7, 3), 2);
    for (const std::int64_t hash :
         {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::min() + 1,
          std::int64_t{-1}, std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
        for (const std::int32_t buckets : {1, 2, 3, 16, 4095, 65535, 65536}) {
            const std::int32_t bucket = bucket_of_hash(hash, buckets);
            EXPECT_GE(bucket, 0);
            EXPECT_LT(bucket, buckets);
            // hash - bucket is a multiple of buckets, computed where nothing overflows.
            EXPECT_EQ(static_cast<std::int64_t>((static_cast<__int128>(hash) - bucket) % buckets),
                      0);
        }
    }
}

}  // namespace
}  // namespace interlock::placement
