// Puts the shards' answers to an aggregate together: one row a group.
//
// The answers come merged by the group's key, so the rows of a group stand together. Group columns
// are taken from the first of them; min and max from the one whose sort key, computed by the shard,
// is the least or the greatest; count, sum and avg of a group that several shards have are
// PostgreSQL's own work (session/scatter_partials.h). The whole answer is held, within bounds,
// because a shard is free to combine only when the last row has been read; so an error comes before
// the first row. Pure: whoever drives it sends and reads.
//
//     describe(RowDescription); add(DataRow)...; while (request()) take(DataRow)...; while (next())
#pragma once

#include "base/buffer.h"
#include "session/scatter_partials.h"
#include "sql/refusal.h"
#include "sql/scatter.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

struct AggregateBounds {
    std::uint64_t max_groups = 0;        ///< held; more: ROW_BUDGET. 0: no bound
    std::size_t max_bytes = 0;           ///< the same of what is held
    std::optional<std::uint64_t> limit;  ///< groups for the client; nothing: all
    std::uint64_t offset = 0;            ///< groups before them
};

class AggregateMerge {
  public:
    /// `scatter` must outlive it; its kind is aggregate.
    AggregateMerge(const sql::Scatter &scatter, AggregateBounds bounds);

    /// Takes the body of a shard's RowDescription, hidden columns included. Refuses what cannot be
    /// combined exactly: SCATTER_UNSUPPORTED; SHARDS_DISAGREE when it is not what was asked for.
    [[nodiscard]] std::optional<Refusal> describe(std::string_view body);

    /// Takes the body of a DataRow, in the order of the merge: rows with equal keys one after the
    /// other.
    [[nodiscard]] std::optional<Refusal> add(std::string_view body);

    /// Appends a request to combine some groups, for a shard that is idle, in the session (and the
    /// transaction) the shard's part ran in. It ends with Sync; it parses the unnamed statement.
    /// False when there is nothing (more) to combine. To be called again when the answer was read.
    [[nodiscard]] bool request(Buffer &out);
    /// Takes the body of a DataRow of that answer.
    [[nodiscard]] std::optional<Refusal> take(std::string_view body);
    /// After the end of an answer without an error: whether all rows asked for have come.
    [[nodiscard]] std::optional<Refusal> answered() const;

    /// The next row for the client, hidden columns taken off: DataRow's body, valid until the next
    /// call. False at the end.
    [[nodiscard]] bool next(std::string_view &body);

  private:
    using Value = std::optional<std::string>;
    struct Group {
        std::vector<Value> values;  ///< of the visible columns
    };

    [[nodiscard]] bool wanted() const { return seen_ > bounds_.offset && !beyond_; }
    void begin_group();
    void add_to_group();
    [[nodiscard]] std::vector<Field> partials() const;
    [[nodiscard]] std::optional<Refusal> over_budget() const;
    [[nodiscard]] bool known_layout() const;

    const sql::Scatter &scatter_;
    AggregateBounds bounds_;
    std::size_t columns_ = 0;  ///< of a shard's row
    std::size_t visible_ = 0;
    std::vector<std::uint16_t> combined_;  ///< visible columns that are count, sum or avg
    std::vector<std::uint16_t> partial_columns_;
    std::optional<PartialSums> sums_;

    std::vector<Field> row_;  ///< the row being added
    std::vector<Group> groups_;
    std::uint64_t seen_ = 0;  ///< groups, those the client does not get included
    bool beyond_ = false;     ///< all that the client gets has been seen
    std::size_t held_ = 0;

    // The group whose rows are coming.
    std::string key_;
    std::uint32_t rows_ = 0;
    std::vector<Value> first_partials_;  ///< of its first row: combined only if there is a second
    std::vector<std::string> extremes_;  ///< sort keys of the values held, one a visible column

    std::vector<std::uint32_t> several_;  ///< groups that several shards have, in order
    std::uint32_t taken_ = 0;             ///< of those, answered
    std::uint32_t asked_ = 0;

    std::size_t given_ = 0;
    Buffer out_;
};

}  // namespace interlock
