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
// on after the client has its answer, and the object may be gone by then.
#pragma once

#include "plan/single_shard.h"
#include "server/pools.h"
#include "session/pg_parameters.h"
#include "session/worker.h"
#include "sql/facts.h"
#include "sql/scatter.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// What the caller of a scatter allows.
struct ScatterBudget {
    Millis timeout = 0;             ///< for all shards together, from open() to the last row
    std::uint32_t max_fan_out = 0;  ///< shards; 0: no bound
    std::uint32_t max_rows = 0;     ///< from each shard (LIMIT, page size, groups)
    bool partial = false;           ///< answer without shards that are late or away
};

struct ScatterRequest {
    std::shared_ptr<const sql::Facts> facts;  ///< facts->scatter is not null
    std::string text;                         ///< as the client wrote it
    std::vector<std::uint32_t> types;         ///< declared parameter types
    std::vector<BoundParameter> parameters;   ///< bytes live as long as the request: see storage
    std::string storage;                      ///< what the parameters' bytes lie in
    std::vector<std::uint16_t> formats;       ///< of the result's columns, as in Bind
    std::vector<sql::Literal> literals;       ///< of the text
    std::shared_ptr<const Routes> routes;
    std::string login;     ///< of the backends
    std::string prologue;  ///< SQL before it, in its transaction: settings; may be empty
    Parameters parameters_in_force;
    ScatterBudget budget;
};

class Scatter {
  public:
    Scatter(Worker &worker, ScatterRequest request, Event *gave_up);
    ~Scatter();  ///< drains in the background what is still running

    /// Up to the shards' RowDescriptions. After a refusal nothing of the statement was sent, unless
    /// a shard failed. Codes: FANOUT_EXCEEDED, PAGE_TOO_LARGE, ROW_BUDGET, SHARDS_DISAGREE,
    /// SHARD_TIMEOUT, R30, R31, R33, R34.
    [[nodiscard]] Task<std::optional<Refusal>> open();

    /// RowDescription's body, hidden columns taken off.
    [[nodiscard]] std::string_view columns() const;

    enum class Row { row, end, failed };
    /// The next row: DataRow's body, hidden columns taken off, in `body` until the next call.
    [[nodiscard]] Task<Row> next(std::string_view &body);
    [[nodiscard]] Refusal take_refusal();

    /// After the end: names of the shards whose rows are missing; empty: the answer is complete.
    [[nodiscard]] const std::vector<std::string> &missing_shards() const;
    /// "SELECT n"
    [[nodiscard]] std::uint64_t rows() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace interlock
