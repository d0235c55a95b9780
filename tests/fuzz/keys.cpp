// Fuzz target: the first byte picks a key type, the rest is a spelling. What parse_key() makes of
// it must be what a second reading, written after PostgreSQL's input functions, makes of it. The
// same bytes are taken for a value in binary format, and for arrays in both formats.
#include "check.h"
#include "route/key.h"
#include "route/key_array.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace interlock;

std::optional<std::int64_t> reference_integer(std::string_view text, std::int64_t low,
                                              std::int64_t high) {
    if (text.starts_with('+')) {
        text.remove_prefix(1);
        if (text.starts_with('-')) return std::nullopt;
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    if (value < low || value > high) return std::nullopt;
    return value;
}

int hex(char c) {
    const char *digits = "0123456789abcdef";
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    const char *found = c == '\0' ? nullptr : std::strchr(digits, c);
    return found == nullptr ? -1 : static_cast<int>(found - digits);
}

// After string_to_uuid(): a C string read with a moving pointer.
std::optional<std::string> reference_uuid(std::string_view text) {
    if (text.find('\0') != std::string_view::npos) return std::nullopt;
    const std::string copy(text);
    const char *source = copy.c_str();
    std::string bytes;
    const bool braces = *source == '{';
    if (braces) ++source;
    for (int i = 0; i < 16; ++i) {
        if (source[0] == '\0' || source[1] == '\0') return std::nullopt;
        if (hex(source[0]) < 0 || hex(source[1]) < 0) return std::nullopt;
        bytes += static_cast<char>(hex(source[0]) * 16 + hex(source[1]));
        source += 2;
        if (*source == '-' && i % 2 == 1 && i < 15) ++source;
    }
    if (braces) {
        if (*source != '}') return std::nullopt;
        ++source;
    }
    if (*source != '\0') return std::nullopt;
    return bytes;
}

// By code points: what they decode to must be allowed and spelled in its shortest form.
bool reference_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const auto lead = static_cast<unsigned char>(text[at]);
        const int more = lead < 0x80       ? 0
                         : lead >> 5 == 6  ? 1
                         : lead >> 4 == 14 ? 2
                         : lead >> 3 == 30 ? 3
                                           : -1;
        if (more < 0 || lead == 0) return false;
        std::uint32_t point = more == 0 ? lead : lead & (0x3FU >> more);
        for (int i = 1; i <= more; ++i) {
            const std::size_t next = at + static_cast<std::size_t>(i);
            if (next >= text.size()) return false;
            const auto byte = static_cast<unsigned char>(text[next]);
            if (byte >> 6 != 2) return false;
            point = point << 6 | (byte & 0x3FU);
        }
        constexpr std::array<std::uint32_t, 4> least = {0, 0x80, 0x800, 0x10000};
        if (point < least[static_cast<std::size_t>(more)] || point > 0x10FFFF) return false;
        if (point >= 0xD800 && point <= 0xDFFF) return false;
        at += static_cast<std::size_t>(more) + 1;
    }
    return true;
}

// After byteain(), except that bytes outside ASCII are refused in the escape format.
std::optional<std::string> reference_bytea(std::string_view text) {
    std::string bytes;
    if (text.starts_with("\\x")) {
        for (std::size_t at = 2; at < text.size();) {
            if (std::string_view(" \n\t\r").find(text[at]) != std::string_view::npos) {
                ++at;
                continue;
            }
            if (at + 2 > text.size() || hex(text[at]) < 0 || hex(text[at + 1]) < 0)
                return std::nullopt;
            bytes += static_cast<char>(hex(text[at]) * 16 + hex(text[at + 1]));
            at += 2;
        }
        return bytes;
    }
    const auto digit = [&](std::size_t at, char highest) {
        return at < text.size() && text[at] >= '0' && text[at] <= highest;
    };
    for (std::size_t at = 0; at < text.size();) {
        if (text[at] == '\0' || static_cast<unsigned char>(text[at]) > 127) return std::nullopt;
        if (text[at] != '\\') {
            bytes += text[at++];
        } else if (digit(at + 1, '3') && digit(at + 2, '7') && digit(at + 3, '7')) {
            bytes += static_cast<char>(std::stoi(std::string(text.substr(at + 1, 3)), nullptr, 8));
            at += 4;
        } else if (at + 1 < text.size() && text[at + 1] == '\\') {
            bytes += '\\';
            at += 2;
        } else {
            return std::nullopt;
        }
    }
    return bytes;
}

std::optional<std::int64_t> hashed(const std::optional<std::string> &bytes) {
    if (!bytes) return std::nullopt;
    return placement::xxh3_64(bytes->data(), bytes->size());
}
std::optional<std::int64_t> hashed(const std::optional<std::int64_t> &number) {
    if (!number) return std::nullopt;
    return placement::splitmix64(*number);
}

std::optional<std::int64_t> reference(KeyType type, std::string_view text) {
    switch (type) {
    case KeyType::int2: return hashed(reference_integer(text, -32768, 32767));
    case KeyType::int4: return hashed(reference_integer(text, -2147483648LL, 2147483647));
    case KeyType::int8:
        return hashed(reference_integer(text, std::numeric_limits<std::int64_t>::min(),
                                        std::numeric_limits<std::int64_t>::max()));
    case KeyType::uuid: return hashed(reference_uuid(text));
    case KeyType::text:
        return hashed(reference_utf8(text) ? std::optional(std::string(text)) : std::nullopt);
    case KeyType::bytea: return hashed(reference_bytea(text));
    }
    return std::nullopt;
}

std::optional<std::int64_t> reference_binary(KeyType type, std::string_view bytes) {
    if (family_of(type) == placement::KeyFamily::integer) {
        const std::size_t length = type == KeyType::int2 ? 2 : type == KeyType::int4 ? 4 : 8;
        if (bytes.size() != length) return std::nullopt;
        std::int64_t value = static_cast<signed char>(bytes[0]);
        for (const char c : bytes.substr(1))
            value = value * 256 + static_cast<unsigned char>(c);
        return hashed(std::optional(value));
    }
    if (type == KeyType::uuid && bytes.size() != 16) return std::nullopt;
    if (type == KeyType::text && !reference_utf8(bytes)) return std::nullopt;
    return hashed(std::optional(std::string(bytes)));
}

using Elements = std::vector<std::optional<std::string>>;

template <typename Array>
std::optional<Elements> elements_of(Array array) {
    Elements elements;
    for (std::string_view element;;) {
        switch (array.next(element)) {
        case ArrayStep::element: elements.emplace_back(element); break;
        case ArrayStep::null: elements.emplace_back(); break;
        case ArrayStep::end: return elements;
        case ArrayStep::malformed: return std::nullopt;
        }
    }
}

/// As array_out() may write it: every element quoted.
std::string spelled_array(const Elements &elements) {
    std::string text = "{";
    for (const auto &element : elements) {
        if (text.size() > 1) text += ',';
        if (!element) {
            text += "NULL";
            continue;
        }
        text += '"';
        for (const char c : *element) {
            if (c == '"' || c == '\\') text += '\\';
            text += c;
        }
        text += '"';
    }
    return text + "}";
}

void check_arrays(std::string_view bytes) {
    for (const auto &elements : {elements_of(TextArray(bytes)), elements_of(BinaryArray(bytes))})
        if (elements) HOLDS(elements_of(TextArray(spelled_array(*elements))) == elements);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size == 0) return 0;
    const auto type = static_cast<KeyType>(data[0] % 6);
    const std::string_view text(reinterpret_cast<const char *>(data) + 1, size - 1);
    check_arrays(text);
    const auto binary = parse_binary_key(type, text);
    const auto expected_binary = reference_binary(type, text);
    HOLDS(binary.has_value() == expected_binary.has_value());
    if (binary) HOLDS(binary->hash == *expected_binary);

    const auto key = parse_key(type, text);
    const auto expected = reference(type, text);
    HOLDS(key.has_value() == expected.has_value());
    if (!key) return 0;
    HOLDS(key->hash == *expected);
    for (const std::int32_t buckets : {1, 16, 65536}) {
        const std::int32_t bucket = placement::bucket_of_hash(key->hash, buckets);
        HOLDS(bucket >= 0 && bucket < buckets);
    }
    // A narrower integer is the same key in every wider type.
    if (type == KeyType::int2 || type == KeyType::int4)
        HOLDS(parse_key(KeyType::int8, text)->hash == key->hash);
    return 0;
}
