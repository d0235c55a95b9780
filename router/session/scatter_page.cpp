#include "session/scatter_page.h"

#include "session/scatter_row.h"
#include "wire/frame.h"

#include <strings.h>

namespace interlock {

namespace {

constexpr std::uint32_t bool_type = 16, text_type = 25, text_array_type = 1009;
constexpr std::uint32_t null_length = 0xFFFFFFFFU;

void append16(std::string &out, std::uint16_t value) {
    char bytes[2];
    wire::store16(bytes, value);
    out.append(bytes, sizeof bytes);
}
void append32(std::string &out, std::uint32_t value) {
    char bytes[4];
    wire::store32(bytes, value);
    out.append(bytes, sizeof bytes);
}
void append_value(std::string &out, std::string_view value) {
    append32(out, static_cast<std::uint32_t>(value.size()));
    out.append(value);
}

}  // namespace

void LastRows::add(std::string_view row) {
    if (most_ == 0) return;
    bytes_ += row.size();
    if (rows_.size() < most_) {
        rows_.emplace_back(row);
        return;
    }
    bytes_ -= rows_[first_].size();
    rows_[first_].assign(row);
    first_ = (first_ + 1) % rows_.size();
}

std::optional<PageRewrite> PageRewrite::find(const sql::PageColumns &columns,
                                             std::string_view description) {
    std::vector<DescribedColumn> described;
    if (columns.in_expressions || !read_description(description, described)) return std::nullopt;
    PageRewrite found;
    found.columns_.resize(described.size());
    for (std::size_t i = 0; i < described.size(); ++i)
        found.columns_[i].binary = described[i].format == 1;

    struct Kind {
        Role role;
        std::uint32_t type;
        const std::vector<std::uint16_t> &positions;
    };
    const Kind kinds[] = {{Role::cursor, text_type, columns.cursor},
                          {Role::complete, bool_type, columns.complete},
                          {Role::missing_shards, text_array_type, columns.missing_shards}};
    for (const Kind &kind : kinds) {
        for (const std::uint16_t position : kind.positions) {
            const auto total = static_cast<std::uint16_t>(described.size());
            const std::uint16_t place = columns.place(position, total);
            if (place >= total || described[place].type != kind.type ||
                found.columns_[place].role != Role::other)
                return std::nullopt;
            found.columns_[place].role = kind.role;
        }
    }
    return found;
}

void PageRewrite::rewrite(std::string_view row, std::span<const std::string> missing,
                          std::string &out) const {
    out.clear();
    wire::FieldReader fields(row);
    append16(out, fields.int16());
    for (const Column &column : columns_) {
        const std::uint32_t length = fields.int32();
        const std::string_view value =
            length == null_length ? std::string_view() : fields.bytes(length);
        switch (column.role) {
        case Role::other:
            append32(out, length);
            out.append(value);
            break;
        case Role::cursor: append32(out, null_length); break;
        case Role::complete:
            append_value(out, column.binary ? std::string_view("\0", 1) : std::string_view("f"));
            break;
        case Role::missing_shards:
            append_value(out, column.binary ? array_binary(missing) : array_text(missing));
            break;
        }
    }
}

void PageRewrite::move_cursor(std::string_view row, std::string_view cursor,
                              std::string &out) const {
    out.clear();
    wire::FieldReader fields(row);
    append16(out, fields.int16());
    for (const Column &column : columns_) {
        const std::uint32_t length = fields.int32();
        const std::string_view value =
            length == null_length ? std::string_view() : fields.bytes(length);
        if (column.role == Role::cursor) {
            append_value(out, cursor);
            continue;
        }
        append32(out, length);
        out.append(value);
    }
}

std::string array_text(std::span<const std::string> elements) {
    std::string out = "{";
    for (const std::string &element : elements) {
        if (out.size() > 1) out += ',';
        const bool plain = !element.empty() &&
                           element.find_first_of("{}\",\\ \t\n\r\v\f") == std::string::npos &&
                           ::strcasecmp(element.c_str(), "null") != 0;
        if (plain) {
            out += element;
            continue;
        }
        out += '"';
        for (const char c : element) {
            if (c == '"' || c == '\\') out += '\\';
            out += c;
        }
        out += '"';
    }
    return out + "}";
}

std::string array_binary(std::span<const std::string> elements) {
    std::string out;
    append32(out, elements.empty() ? 0 : 1);  // dimensions
    append32(out, 0);                         // no NULLs
    append32(out, text_type);
    if (elements.empty()) return out;
    append32(out, static_cast<std::uint32_t>(elements.size()));
    append32(out, 1);  // lower bound
    for (const std::string &element : elements)
        append_value(out, element);
    return out;
}

}  // namespace interlock
