// A page that is held as a whole: the last rows of a merge, and the columns that say whether shards
// are missing. Pure.
#pragma once

#include "sql/scatter.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// The last `most` rows that were added, in order. A page before a cursor is the end of the merge:
/// where that begins is known when the last row has come.
class LastRows {
  public:
    explicit LastRows(std::size_t most) : most_(most) {}

    void add(std::string_view row);
    [[nodiscard]] std::size_t size() const { return rows_.size(); }
    /// The i-th of those held, from 0.
    [[nodiscard]] std::string_view operator[](std::size_t i) const {
        return rows_[(first_ + i) % rows_.size()];
    }
    /// Bytes of the rows held.
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    std::size_t most_;
    std::vector<std::string> rows_;
    std::size_t first_ = 0;
    std::size_t bytes_ = 0;
};

/// The columns of keyset_page that tell of missing shards, found in a row description.
class PageRewrite {
  public:
    /// `description` without hidden columns. Nothing where they are used in expressions, or are not
    /// what they should be: then a page cannot be partial.
    [[nodiscard]] static std::optional<PageRewrite> find(const sql::PageColumns &columns,
                                                         std::string_view description);

    /// Puts the row into `out` as one of a page without these shards: no cursor, not complete, and
    /// their names. `row` must be well formed.
    void rewrite(std::string_view row, std::span<const std::string> missing,
                 std::string &out) const;
    /// Puts the row into `out` with another cursor.
    void move_cursor(std::string_view row, std::string_view cursor, std::string &out) const;

  private:
    enum class Role : std::uint8_t { other, cursor, complete, missing_shards };
    struct Column {
        Role role = Role::other;
        bool binary = false;
    };
    std::vector<Column> columns_;
};

/// A one-dimensional text[] as PostgreSQL spells it: {s1,"s 2"}.
[[nodiscard]] std::string array_text(std::span<const std::string> elements);
/// The same as array_send() does.
[[nodiscard]] std::string array_binary(std::span<const std::string> elements);

}  // namespace interlock
