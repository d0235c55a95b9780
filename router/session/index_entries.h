// The entries that a global index gives for a page: which of them are judged in a round, and how
// many to ask for next. Pure.
//
// A batch is asked for with one entry more than are judged: it tells whether more is left, and that
// what is judged does not end amid entries with equal places.
#pragma once

#include "route/route_table.h"
#include "session/scatter_merge.h"
#include "sql/refusal.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

struct IndexEntry {
    std::string key;     ///< its place, as the rows' keys are written
    std::string cursor;  ///< stands for the row, on the shard
    ShardIndex shard = 0;
};

/// Entries of one shard.
struct ShardEntries {
    ShardIndex shard = 0;
    std::vector<std::size_t> entries;  ///< positions in the batch, ascending
    std::vector<std::string> cursors;  ///< theirs
};

/// Rounds of one page.
inline constexpr unsigned index_rounds = 4;

/// How many entries to ask for: `need` rows are still missing; the rounds before have asked for
/// `before` entries in the last of them, and found `live` rows for `judged` entries. At most `most`
/// entries are judged.
[[nodiscard]] std::uint64_t entries_to_ask(unsigned round, std::uint64_t need, std::uint64_t before,
                                           std::uint64_t judged, std::uint64_t live,
                                           std::uint64_t most);

class EntryBatch {
  public:
    /// `backward`: the entries before a cursor, of which the last is the nearest to it.
    EntryBatch(const Keyspace &keyspace, bool backward)
        : keyspace_(&keyspace), backward_(backward) {}

    /// Takes the body of a row of the index's statement (sql/index_page.h) and its sort key.
    /// SHARDS_DISAGREE when it is none, or not in order.
    [[nodiscard]] std::optional<Refusal> add(std::string_view row, std::string_view key);
    /// All that were asked for have come, or all there are.
    void close(std::uint64_t asked);
    /// Judges no entries from the first one on, in the direction of the walk, for which more than
    /// `most` shards would be needed in all; `shards` are those in use, and are added to. True if
    /// any is left out.
    bool cut(std::size_t most, std::vector<ShardIndex> &shards);
    /// Of the entries that are judged, added to `shards`.
    void add_shards(std::vector<ShardIndex> &shards) const;

    /// The entries that are judged, by shard. Of two at one place on a shard, which have one
    /// cursor, the second is left out: one of them is stale.
    [[nodiscard]] std::vector<ShardEntries> by_shard() const;

    /// No entry is left behind these.
    [[nodiscard]] bool exhausted() const { return exhausted_; }
    /// Those that are judged: positions [first, end).
    [[nodiscard]] std::size_t first() const { return first_; }
    [[nodiscard]] std::size_t end() const { return end_; }
    [[nodiscard]] bool empty() const { return first_ == end_; }
    [[nodiscard]] const IndexEntry &operator[](std::size_t i) const { return entries_[i]; }
    /// The farthest of those that are judged, in the direction of the walk. Not when it is empty.
    [[nodiscard]] const IndexEntry &edge() const { return entries_[backward_ ? first_ : end_ - 1]; }
    /// How many entries are walked past when the one at `i` is the last to be: those up to it, and
    /// those at its place.
    [[nodiscard]] std::size_t walked(std::size_t i) const;

    /// Digest of the keyset, of the first entry; empty: there is none.
    [[nodiscard]] std::string_view digest() const;
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    const Keyspace *keyspace_;
    bool backward_;
    std::vector<IndexEntry> entries_;
    std::size_t first_ = 0;
    std::size_t end_ = 0;
    bool exhausted_ = false;
    std::size_t bytes_ = 0;
};

}  // namespace interlock
