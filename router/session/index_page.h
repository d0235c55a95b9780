// One page from a global index: entries from the index's database, their rows from the shards that
// own them, each looked at again.
//
//     budgets -> entries -> owners -> budget of shards -> rows -> enough? else the next entries
//
// An index lags behind the shards, so an entry may stand for a row that is gone, or is elsewhere by
// now. Such a row does not come (keyset_rows), and the page goes on with the next entries, for four
// rounds at most. What the page walked past, such entries included, is behind its cursor. It is
// held as a whole before its first row is given out, so an error comes before any row; an empty
// page means that the index has no more entries.
//
// An index that its database does not know (any more) has just been dropped, mostly, and the routes
// are about to say so: all shards answer in its place.
//
// The owner of an entry is the one of its bucket in the router's route table, whatever shard wrote
// it: entries stay right when buckets move. Deadline, cancel and backends are as for scatters.
#pragma once

#include "session/merged_rows.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

class IndexPage final : public MergedRows {
  public:
    /// `index` is of request.routes->table, ready, and of the page's table.
    IndexPage(Worker &worker, ScatterRequest request, const GlobalIndex &index, Event *gave_up);
    ~IndexPage() override;

    /// Up to the page. Codes as of Scatter, and INDEX_STALE.
    [[nodiscard]] Task<std::optional<Refusal>> open() override;
    [[nodiscard]] std::string_view columns() const override;
    [[nodiscard]] Task<Row> next(std::string_view &body) override;
    [[nodiscard]] Refusal take_refusal() override;
    [[nodiscard]] const std::vector<std::string> &missing_shards() const override;
    [[nodiscard]] std::uint64_t rows() const override;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
    std::unique_ptr<MergedRows> instead_;  ///< of all shards
};

}  // namespace interlock
