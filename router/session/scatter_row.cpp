#include "session/scatter_row.h"

#include "base/log.h"
#include "wire/frame.h"

namespace interlock {

namespace {

constexpr std::uint32_t null_length = 0xFFFFFFFFU;
constexpr std::uint32_t first_user_type = 16384;
// What follows a column's name in RowDescription.
constexpr std::size_t column_tail = 18;

}  // namespace

bool read_description(std::string_view body, std::vector<DescribedColumn> &out) {
    out.clear();
    wire::FieldReader fields(body);
    const std::uint16_t count = fields.int16();
    for (unsigned i = 0; i < count && fields.ok(); ++i) {
        DescribedColumn column;
        column.name = fields.string();
        fields.int32();  // table and column number: other ones on every shard
        fields.int16();
        column.type = fields.int32();
        column.size = fields.int16();
        fields.int32();
        column.format = fields.int16();
        out.push_back(column);
    }
    return fields.ok() && fields.at_end();
}

std::string describe_difference(std::string_view one, std::string_view other) {
    std::vector<DescribedColumn> ours;
    std::vector<DescribedColumn> theirs;
    if (!read_description(one, ours) || !read_description(other, theirs))
        return "a row description is malformed";
    if (ours.size() != theirs.size())
        return format("%zu columns and %zu columns", ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
        const std::string name(ours[i].name);
        if (ours[i].name != theirs[i].name)
            return format("column %zu is \"%s\" and \"%s\"", i + 1, name.c_str(),
                          std::string(theirs[i].name).c_str());
        const bool users = ours[i].type >= first_user_type && theirs[i].type >= first_user_type;
        if (ours[i].type != theirs[i].type && !users)
            return format("column \"%s\" is of type %u and of type %u", name.c_str(), ours[i].type,
                          theirs[i].type);
        if (ours[i].format != theirs[i].format)
            return format("column \"%s\" is in format %u and in format %u", name.c_str(),
                          ours[i].format, theirs[i].format);
    }
    return {};
}

std::string visible_description(std::string_view body, std::uint16_t hidden) {
    const std::uint16_t count = wire::load16(body.data());
    const unsigned visible = count > hidden ? count - hidden : 0U;
    std::size_t end = 2;
    for (unsigned i = 0; i < visible; ++i)
        end = body.find('\0', end) + 1 + column_tail;
    std::string out(body.substr(0, end));
    wire::store16(out.data(), static_cast<std::uint16_t>(visible));
    return out;
}

bool split_row(std::string_view body, std::uint16_t columns, std::uint16_t hidden, RowParts &out) {
    if (body.size() < 2 || wire::load16(body.data()) != columns || hidden > columns) return false;
    const unsigned first_hidden = columns - hidden;
    out = RowParts{.visible = body.size(), .key = {}, .has_key = false};
    std::size_t at = 2;
    for (unsigned i = 0; i < columns; ++i) {
        if (body.size() - at < 4) return false;
        if (i == first_hidden) out.visible = at;
        const std::uint32_t length = wire::load32(body.data() + at);
        at += 4;
        if (length == null_length) continue;
        if (body.size() - at < length) return false;
        if (i == first_hidden) {
            out.key = body.substr(at, length);
            out.has_key = true;
        }
        at += length;
    }
    return at == body.size();
}

void visible_row(std::string_view body, const RowParts &parts, std::uint16_t visible_columns,
                 std::string &out) {
    out.assign(body.substr(0, parts.visible));
    wire::store16(out.data(), visible_columns);
}

}  // namespace interlock
