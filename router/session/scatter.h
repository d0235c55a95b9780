// One statement over all shards: lends a backend of each, sends, merges, cuts, drains.
//
//     budgets -> lend (in shard order) -> check what the shards know -> send -> merge -> drain
//
// It knows nothing of how the client speaks: both listeners pull rows from it. A shard's rows are
// read only as fast as they are merged; memory is bounded by a row a shard and a read buffer each
// (a page that is read backwards, or that may be partial, is held as a whole: at most its size).
//
// Whatever happens, a backend goes back to its pool only when its statement has really ended: one
// that is slow is cancelled, its error read, and proven idle by a round trip of its own. That goes
// on after the client has its answer, and the object may be gone by then. What shards say by the
// way (notices, changed parameters) is not passed on: it would come once for each of them.
#pragma once

#include "session/merged_rows.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

class Scatter final : public MergedRows {
  public:
    Scatter(Worker &worker, ScatterRequest request, Event *gave_up);
    ~Scatter() override;

    /// Up to the shards' RowDescriptions. After a refusal nothing of the statement was sent, unless
    /// a shard failed. Codes: FANOUT_EXCEEDED, PAGE_TOO_LARGE, ROW_BUDGET, NOT_TOTAL_ORDER,
    /// SHARDS_DISAGREE, SHARD_TIMEOUT, SCATTER_UNSUPPORTED, R26, R27, R30, R31, R33, R34, R37.
    [[nodiscard]] Task<std::optional<Refusal>> open() override;
    [[nodiscard]] std::string_view columns() const override;
    [[nodiscard]] Task<Row> next(std::string_view &body) override;
    [[nodiscard]] Refusal take_refusal() override;
    [[nodiscard]] const std::vector<std::string> &missing_shards() const override;
    [[nodiscard]] std::uint64_t rows() const override;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace interlock
