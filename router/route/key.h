// Shard keys as text: from a value's spelling to its canonical hash.
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

/// [+-]digits within [low, high].
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t low,
                                                        std::int64_t high);
/// PostgreSQL's spellings of a uuid.
[[nodiscard]] bool parse_uuid(std::string_view text, std::uint8_t (&out)[16]);

/// Whether `text` is valid UTF-8 as PostgreSQL checks it (no surrogates, no overlong forms, no
/// NUL).
[[nodiscard]] bool valid_utf8(std::string_view text);

}  // namespace interlock
