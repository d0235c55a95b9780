#include "wire/frame.h"

namespace interlock::wire {

bool parse_error(std::string_view body, ErrorFields &out) {
    FieldReader fields(body);
    out = ErrorFields{};
    for (;;) {
        const auto code = static_cast<char>(fields.int8());
        if (!fields.ok()) return false;
        if (code == '\0') break;
        const std::string_view value = fields.string();
        if (!fields.ok()) return false;
        switch (code) {
        case 'V': out.severity = value; break;
        case 'C': out.sqlstate = value; break;
        case 'M': out.message = value; break;
        case 'D': out.detail = value; break;
        case 'H': out.hint = value; break;
        default: break;
        }
    }
    if (out.sqlstate.size() != 5) out.sqlstate = "XX000";
    return true;
}

std::uint64_t tag_count(std::string_view tag) {
    const std::size_t space = tag.rfind(' ');
    if (space == std::string_view::npos) return 0;
    std::uint64_t count = 0;
    for (const char c : tag.substr(space + 1)) {
        if (c < '0' || c > '9') return 0;
        count = count * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return count;
}

std::string_view tag_name(std::string_view tag) {
    std::size_t end = 0;
    while (end < tag.size() && !(tag[end] >= '0' && tag[end] <= '9'))
        ++end;
    while (end > 0 && tag[end - 1] == ' ')
        --end;
    return tag.substr(0, end);
}

}  // namespace interlock::wire
