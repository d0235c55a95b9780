// The two statements of a page that a global index answers: which entries, and their rows.
//
// Both are made of the client's own text: the index is asked with the arguments as they stand, the
// shards get the whole statement, with keyset_rows in the place of keyset_page and the entries'
// cursors behind its arguments. The analysis has parsed both and compared (scatter_index.cpp).
// Pure.
#pragma once

#include "route/route_table.h"
#include "sql/scatter.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace interlock::sql {

/// Which entries are wanted.
struct EntryWish {
    std::uint64_t size = 0;
    std::string cursor;     ///< where to go on from; empty: where the client's text says
    bool backward = false;  ///< `cursor` is the one to end before
};

/// For the index's database: rows of (hash of the shard key, cursor, sort key in hex), in order.
[[nodiscard]] std::string entries_text(const PageCall &call, std::string_view text,
                                       const GlobalIndex &index, const EntryWish &wish);
/// Whether parameter $(number + 1) stands in that text.
[[nodiscard]] bool entries_use(const PageCall &call, const EntryWish &wish, std::uint32_t number);

/// For a shard: the rows these cursors stand for, in the client's columns and the hidden ones.
[[nodiscard]] std::string rows_text(const Scatter &scatter, std::string_view text,
                                    std::span<const std::string> cursors);

}  // namespace interlock::sql
