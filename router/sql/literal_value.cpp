// What a literal spells: quotes and escapes taken away as PostgreSQL's scanner does.
#include "base/hex.h"
#include "sql/shape.h"

#include <algorithm>

namespace interlock::sql {

namespace {

bool append_utf8(std::uint32_t point, std::string &out) {
    const auto add = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
    if (point == 0 || point > 0x10FFFF) return false;
    if (point < 0x80) {
        add(point);
    } else if (point < 0x800) {
        add(0xC0 | point >> 6);
        add(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        add(0xE0 | point >> 12);
        add(0x80 | (point >> 6 & 0x3F));
        add(0x80 | (point & 0x3F));
    } else {
        add(0xF0 | point >> 18);
        add(0x80 | (point >> 12 & 0x3F));
        add(0x80 | (point >> 6 & 0x3F));
        add(0x80 | (point & 0x3F));
    }
    return true;
}

/// The code unit of \uXXXX or \UXXXXXXXX at `at`, which is moved past it.
std::optional<std::uint32_t> unicode_escape(std::string_view body, std::size_t &at) {
    if (at + 1 >= body.size() || body[at] != '\\') return std::nullopt;
    const std::size_t digits = body[at + 1] == 'u' ? 4 : body[at + 1] == 'U' ? 8 : 0;
    if (digits == 0 || at + 2 + digits > body.size()) return std::nullopt;
    std::uint32_t unit = 0;
    for (std::size_t i = 0; i < digits; ++i) {
        const int digit = hex_digit(body[at + 2 + i]);
        if (digit < 0) return std::nullopt;
        unit = unit << 4 | static_cast<std::uint32_t>(digit);
    }
    at += 2 + digits;
    return unit;
}

bool decode_unicode(std::string_view body, std::size_t &at, std::string &out) {
    const auto high = unicode_escape(body, at);
    if (!high || (*high >= 0xDC00 && *high <= 0xDFFF)) return false;
    if (*high < 0xD800 || *high > 0xDBFF) return append_utf8(*high, out);
    const auto low = unicode_escape(body, at);
    if (!low || *low < 0xDC00 || *low > 0xDFFF) return false;
    return append_utf8(0x10000 + ((*high & 0x3FF) << 10 | (*low & 0x3FF)), out);
}

/// One escape, whose backslash is at `at`; moves past it.
bool decode_escape(std::string_view body, std::size_t &at, std::string &out) {
    if (at + 1 >= body.size()) return false;
    const char c = body[at + 1];
    if (c == 'u' || c == 'U') return decode_unicode(body, at, out);
    std::size_t next = at + 2;
    unsigned value = static_cast<unsigned char>(c);
    bool byte = false;  // a byte of the server's encoding
    switch (c) {
    case 'b': value = '\b'; break;
    case 'f': value = '\f'; break;
    case 'n': value = '\n'; break;
    case 'r': value = '\r'; break;
    case 't': value = '\t'; break;
    case 'v': return false;  // PostgreSQL's versions differ
    case 'x':
        if (next < body.size() && hex_digit(body[next]) >= 0) {
            byte = true;
            value = 0;
            for (int i = 0; i < 2 && next < body.size() && hex_digit(body[next]) >= 0; ++i)
                value = value << 4 | static_cast<unsigned>(hex_digit(body[next++]));
        }
        break;
    default:
        if (c < '0' || c > '7') break;
        byte = true;
        value = 0;
        next = at + 1;
        for (int i = 0; i < 3 && next < body.size() && body[next] >= '0' && body[next] <= '7'; ++i)
            value = value << 3 | static_cast<unsigned>(body[next++] - '0');
        value &= 0xFF;
        break;
    }
    if (byte && (value == 0 || value >= 0x80)) return false;
    out += static_cast<char>(value);
    at = next;
    return true;
}

/// What stands between the quotes of a string, with its escapes.
std::optional<std::string_view> unquote(std::string_view body, bool escapes, std::string &scratch) {
    const char *special = escapes ? "'\\" : "'";
    std::size_t at = body.find_first_of(special);
    if (at == std::string_view::npos) return body;
    scratch.assign(body.substr(0, at));
    while (at < body.size()) {
        if (body[at] == '\'') {
            if (at + 1 >= body.size() || body[at + 1] != '\'') return std::nullopt;
            scratch += '\'';
            at += 2;
        } else if (!decode_escape(body, at, scratch)) {
            return std::nullopt;
        }
        const std::size_t stop = std::min(body.find_first_of(special, at), body.size());
        scratch.append(body.substr(at, stop - at));
        at = stop;
    }
    return scratch;
}

}  // namespace

std::optional<std::string_view> literal_value(std::string_view text, const Literal &literal,
                                              std::string &scratch) {
    if (literal.offset > text.size() || literal.length > text.size() - literal.offset)
        return std::nullopt;
    const std::string_view spelled = text.substr(literal.offset, literal.length);
    switch (literal.kind) {
    case LiteralKind::integer:
    case LiteralKind::number: return spelled;
    case LiteralKind::string:
        if (spelled.size() < 2) return std::nullopt;
        return unquote(spelled.substr(1, spelled.size() - 2), false, scratch);
    case LiteralKind::escape:
        if (spelled.size() < 3) return std::nullopt;
        return unquote(spelled.substr(2, spelled.size() - 3), true, scratch);
    case LiteralKind::dollar: {
        const std::size_t delimiter = spelled.find('$', 1) + 1;
        if (delimiter == 0 || spelled.size() < 2 * delimiter) return std::nullopt;
        return spelled.substr(delimiter, spelled.size() - 2 * delimiter);
    }
    case LiteralKind::other: return std::nullopt;
    }
    return std::nullopt;
}

}  // namespace interlock::sql
