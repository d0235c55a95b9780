// Rows and row descriptions of shards as bytes: taken apart, compared, hidden columns taken off.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// A column of a RowDescription. The name is a view into it.
struct DescribedColumn {
    std::string_view name;
    std::uint32_t type = 0;
    std::uint16_t size = 0;
    std::uint16_t format = 0;  ///< 0: text, 1: binary
};

/// The columns of a RowDescription's body. False when it is malformed.
[[nodiscard]] bool read_description(std::string_view body, std::vector<DescribedColumn> &out);

/// How two shards' descriptions of the same statement differ, for a message; empty if rows of both
/// can stand in one answer. Types made by users have other numbers on every shard and count as one.
[[nodiscard]] std::string describe_difference(std::string_view one, std::string_view other);

/// The description without its last `hidden` columns. `body` must be well formed.
[[nodiscard]] std::string visible_description(std::string_view body, std::uint16_t hidden);

/// Where a row's hidden columns begin, and the first of them.
struct RowParts {
    std::size_t visible = 0;  ///< bytes of the body in front of the hidden columns
    std::string_view key;     ///< value of the first hidden column
    bool has_key = false;     ///< false: NULL, or nothing is hidden
};

/// False when the row is malformed or has not `columns` columns.
[[nodiscard]] bool split_row(std::string_view body, std::uint16_t columns, std::uint16_t hidden,
                             RowParts &out);

/// Puts the row without its hidden columns into `out`, whose storage is kept.
void visible_row(std::string_view body, const RowParts &parts, std::uint16_t visible_columns,
                 std::string &out);

}  // namespace interlock
