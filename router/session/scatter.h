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

#include "plan/single_shard.h"
#include "server/login.h"
#include "server/pools.h"
#include "session/pg_parameters.h"
#include "session/worker.h"
#include "sql/facts.h"
#include "sql/scatter.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// What the caller of a scatter allows.
struct ScatterBudget {
    Millis timeout = 0;  ///< for all shards together: the time spent inside open() and next(),
                         ///< so that a slow client is not taken for a slow shard; 0: no bound
    std::uint32_t max_fan_out = 0;  ///< shards; 0: no bound
    std::uint32_t max_rows = 0;     ///< from each shard (LIMIT, page size, groups)
    bool partial = false;           ///< answer without shards that are late or away
};

struct ScatterRequest {
    std::shared_ptr<const sql::Facts> facts;     ///< facts->scatter is not null
    std::string text;                            ///< as the client wrote it
    std::vector<std::uint32_t> types;            ///< declared parameter types
    std::vector<BoundParameter> parameters;      ///< bytes live as long as the request: see storage
    std::shared_ptr<const std::string> storage;  ///< what the parameters' bytes lie in; may be null
    std::vector<std::uint16_t> formats;          ///< of the result's columns, as in Bind
    std::vector<sql::Literal> literals;          ///< of the text
    std::shared_ptr<const Routes> routes;
    std::string login;  ///< of the backends
    /// SQL that opens its transaction on each shard (BEGIN and what follows), which is rolled back
    /// afterwards. Empty: the statement is a transaction of its own.
    std::string prologue;
    Parameters parameters_in_force;        ///< put in force on each backend before all that
    std::vector<std::string> search_path;  ///< that names were looked up along
    /// Where the search path came from; null: not checked. A backend whose sessions begin with
    /// another one is not asked (R30).
    std::shared_ptr<const LoginDefaults> defaults;
    ScatterBudget budget;
};

class Scatter {
  public:
    /// `gave_up`: the client wants no answer any more; may be null, else outlives this and has no
    /// other waiter during open() and next(), which then end with SQLSTATE 57014.
    Scatter(Worker &worker, ScatterRequest request, Event *gave_up);
    ~Scatter();  ///< drains in the background what is still running; not inside open() or next()

    /// Up to the shards' RowDescriptions. After a refusal nothing of the statement was sent, unless
    /// a shard failed. Codes: FANOUT_EXCEEDED, PAGE_TOO_LARGE, ROW_BUDGET, NOT_TOTAL_ORDER,
    /// SHARDS_DISAGREE, SHARD_TIMEOUT, SCATTER_UNSUPPORTED, R26, R27, R30, R31, R33, R34, R37.
    [[nodiscard]] Task<std::optional<Refusal>> open();

    /// RowDescription's body, hidden columns taken off.
    [[nodiscard]] std::string_view columns() const;

    enum class Row { row, end, failed };
    /// The next row: DataRow's body, hidden columns taken off, in `body` until the next call.
    [[nodiscard]] Task<Row> next(std::string_view &body);
    [[nodiscard]] Refusal take_refusal();

    /// After the end: names of the shards whose rows are missing; empty: the answer is complete.
    [[nodiscard]] const std::vector<std::string> &missing_shards() const;
    /// What to tell the client, as a NOTICE, if shards are missing.
    [[nodiscard]] std::optional<Refusal> notice() const;
    /// Given out so far: "SELECT n"
    [[nodiscard]] std::uint64_t rows() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace interlock
