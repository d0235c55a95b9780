// Shard keys: from a value's spelling, or its binary format, to its canonical hash.
//
// A spelling is accepted only if PostgreSQL's own input function would read the same value from it,
// so what is hashed here and what the shard stores are the same key. Where PostgreSQL is more
// lenient than is good for proving that (blanks around numbers), the spelling is refused.
#pragma once

#include "placement.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace interlock {

enum class KeyType : std::uint8_t { int2, int4, int8, uuid, text, bytea };

[[nodiscard]] constexpr placement::KeyFamily family_of(KeyType type) {
    switch (type) {
    case KeyType::uuid: return placement::KeyFamily::uuid;
    case KeyType::text: return placement::KeyFamily::text;
    case KeyType::bytea: return placement::KeyFamily::bytea;
    default: return placement::KeyFamily::integer;
    }
}

struct Key {
    std::int64_t hash = 0;
};

/// The hash of the key that `text` spells, or nothing when it does not spell a value of `type`:
///   int2, int4, int8  [+-]digits, within the type's range
///   uuid              32 hex digits in any case, hyphens after any group of four, braces allowed
///   text              valid UTF-8 without NUL
///   bytea             \x and hex digits, or the escape format in ASCII
[[nodiscard]] std::optional<Key> parse_key(KeyType type, std::string_view text);

/// The hash of the key that `bytes` holds in PostgreSQL's binary format, or nothing when they are
/// no value of `type`:
///   int2, int4, int8  two, four, eight bytes, big endian
///   uuid              its 16 bytes
///   text              valid UTF-8 without NUL
///   bytea             its bytes
[[nodiscard]] std::optional<Key> parse_binary_key(KeyType type, std::string_view bytes);

/// The smallest and the largest value of an integer type.
struct IntegerRange {
    std::int64_t low = 0;
    std::int64_t high = 0;
    [[nodiscard]] bool holds(std::int64_t value) const { return low <= value && value <= high; }
};
/// That of bigint for a type that is no integer.
[[nodiscard]] IntegerRange range_of(KeyType type);

/// [+-]digits within [low, high].
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t low,
                                                        std::int64_t high);
/// The number that digits, and the sign that stands before them, spell.
[[nodiscard]] std::optional<std::int64_t> parse_digits(std::string_view digits, bool negative,
                                                       std::int64_t low, std::int64_t high);
/// An integer of type int2, int4 or int8 in binary format.
[[nodiscard]] std::optional<std::int64_t> parse_binary_integer(KeyType type,
                                                               std::string_view bytes);
/// PostgreSQL's spellings of a uuid.
[[nodiscard]] bool parse_uuid(std::string_view text, std::uint8_t (&out)[16]);

/// Whether `text` is valid UTF-8 as PostgreSQL checks it (no surrogates, no overlong forms, no
/// NUL).
[[nodiscard]] bool valid_utf8(std::string_view text);

}  // namespace interlock
