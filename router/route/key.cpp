#include "route/key.h"

#include "base/hex.h"

#include <limits>
#include <string>

namespace interlock {

namespace {

bool octal_digit(char c) {
    return c >= '0' && c <= '7';
}

// The two input formats of byteain. Bytes outside ASCII are refused in the escape format: the
// server would first convert them from the client's encoding to its own.
bool parse_bytea(std::string_view text, std::string &out) {
    if (text.starts_with("\\x")) {
        text.remove_prefix(2);
        out.reserve(text.size() / 2);
        for (std::size_t i = 0; i < text.size();) {
            if (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r') {
                ++i;
                continue;
            }
            if (i + 1 >= text.size()) return false;
            const int high = hex_digit(text[i]);
            const int low = hex_digit(text[i + 1]);
            if (high < 0 || low < 0) return false;
            out += static_cast<char>(high << 4 | low);
            i += 2;
        }
        return true;
    }
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
        const char c = text[i];
        if (static_cast<unsigned char>(c) >= 0x80 || c == '\0') return false;
        if (c != '\\') {
            out += c;
            ++i;
        } else if (i + 1 < text.size() && text[i + 1] == '\\') {
            out += '\\';
            i += 2;
        } else if (i + 3 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '3' &&
                   octal_digit(text[i + 2]) && octal_digit(text[i + 3])) {
            out += static_cast<char>((text[i + 1] - '0') << 6 | (text[i + 2] - '0') << 3 |
                                     (text[i + 3] - '0'));
            i += 4;
        } else {
            return false;
        }
    }
    return true;
}

std::optional<Key> integer_key(std::optional<std::int64_t> value) {
    if (!value) return std::nullopt;
    return Key{placement::splitmix64(*value)};
}

Key bytes_key(std::string_view bytes) {
    return Key{placement::xxh3_64(bytes.data(), bytes.size())};
}

}  // namespace

IntegerRange range_of(KeyType type) {
    switch (type) {
    case KeyType::int2: return {INT16_MIN, INT16_MAX};
    case KeyType::int4: return {INT32_MIN, INT32_MAX};
    default: return {INT64_MIN, INT64_MAX};
    }
}

std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t low,
                                          std::int64_t high) {
    bool negative = false;
    if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
        negative = text[0] == '-';
        text.remove_prefix(1);
    }
    return parse_digits(text, negative, low, high);
}

std::optional<std::int64_t> parse_digits(std::string_view digits, bool negative, std::int64_t low,
                                         std::int64_t high) {
    if (digits.empty()) return std::nullopt;
    // Accumulated below zero, where the range is larger by one.
    std::int64_t value = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return std::nullopt;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, c - '0', &value))
            return std::nullopt;
    }
    if (!negative) {
        if (value == std::numeric_limits<std::int64_t>::min()) return std::nullopt;
        value = -value;
    }
    if (value < low || value > high) return std::nullopt;
    return value;
}

bool parse_uuid(std::string_view text, std::uint8_t (&out)[16]) {
    if (text.size() >= 2 && text.front() == '{') {
        if (text.back() != '}') return false;
        text = text.substr(1, text.size() - 2);
    }
    std::size_t at = 0;
    for (int i = 0; i < 16; ++i) {
        if (at + 2 > text.size()) return false;
        const int high = hex_digit(text[at]);
        const int low = hex_digit(text[at + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = static_cast<std::uint8_t>(high << 4 | low);
        at += 2;
        if (i % 2 == 1 && i < 15 && at < text.size() && text[at] == '-') ++at;
    }
    return at == text.size();
}

bool valid_utf8(std::string_view text) {
    const auto *p = reinterpret_cast<const unsigned char *>(text.data());
    const auto *end = p + text.size();
    while (p < end) {
        const unsigned char c = *p;
        if (c == 0) return false;
        if (c < 0x80) {
            ++p;
            continue;
        }
        int more = 0;
        unsigned char low = 0x80;
        unsigned char high = 0xBF;
        if (c >= 0xC2 && c <= 0xDF) {
            more = 1;
        } else if (c >= 0xE0 && c <= 0xEF) {
            more = 2;
            if (c == 0xE0) low = 0xA0;
            if (c == 0xED) high = 0x9F;
        } else if (c >= 0xF0 && c <= 0xF4) {
            more = 3;
            if (c == 0xF0) low = 0x90;
            if (c == 0xF4) high = 0x8F;
        } else {
            return false;
        }
        if (end - p <= more) return false;
        if (p[1] < low || p[1] > high) return false;
        for (int i = 2; i <= more; ++i)
            if (p[i] < 0x80 || p[i] > 0xBF) return false;
        p += more + 1;
    }
    return true;
}

std::optional<std::int64_t> parse_binary_integer(KeyType type, std::string_view bytes) {
    const std::size_t length = type == KeyType::int2 ? 2 : type == KeyType::int4 ? 4 : 8;
    if (bytes.size() != length || family_of(type) != placement::KeyFamily::integer)
        return std::nullopt;
    std::uint64_t value = 0;
    for (const char c : bytes)
        value = value << 8 | static_cast<unsigned char>(c);
    switch (type) {
    case KeyType::int2: return static_cast<std::int16_t>(value);
    case KeyType::int4: return static_cast<std::int32_t>(value);
    default: return static_cast<std::int64_t>(value);
    }
}

std::optional<Key> parse_key(KeyType type, std::string_view text) {
    switch (type) {
    case KeyType::int2:
    case KeyType::int4:
    case KeyType::int8: {
        const IntegerRange range = range_of(type);
        return integer_key(parse_integer(text, range.low, range.high));
    }
    case KeyType::uuid: {
        std::uint8_t bytes[16];
        if (!parse_uuid(text, bytes)) return std::nullopt;
        return Key{placement::xxh3_64(bytes, sizeof bytes)};
    }
    case KeyType::text:
        if (!valid_utf8(text)) return std::nullopt;
        return bytes_key(text);
    case KeyType::bytea: {
        std::string bytes;
        if (!parse_bytea(text, bytes)) return std::nullopt;
        return bytes_key(bytes);
    }
    }
    return std::nullopt;
}

std::optional<Key> parse_binary_key(KeyType type, std::string_view bytes) {
    switch (type) {
    case KeyType::int2:
    case KeyType::int4:
    case KeyType::int8: return integer_key(parse_binary_integer(type, bytes));
    case KeyType::uuid:
        if (bytes.size() != 16) return std::nullopt;
        return bytes_key(bytes);
    case KeyType::text:
        if (!valid_utf8(bytes)) return std::nullopt;
        return bytes_key(bytes);
    case KeyType::bytea: return bytes_key(bytes);
    }
    return std::nullopt;
}

}  // namespace interlock
