// Rows of several shards as one answer, however they are found: what a listener pulls them from.
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

class ClientEnd;

class MergedRows {
  public:
    virtual ~MergedRows() = default;  ///< drains in the background what is still running; not
                                      ///< inside open() or next()

    /// Up to the description of the rows.
    [[nodiscard]] virtual Task<std::optional<Refusal>> open() = 0;

    /// RowDescription's body, hidden columns taken off.
    [[nodiscard]] virtual std::string_view columns() const = 0;

    enum class Row { row, end, failed };
    /// The next row: DataRow's body, hidden columns taken off, in `body` until the next call.
    [[nodiscard]] virtual Task<Row> next(std::string_view &body) = 0;
    [[nodiscard]] virtual Refusal take_refusal() = 0;

    /// After the end: names of the shards whose rows are missing; empty: the answer is complete.
    [[nodiscard]] virtual const std::vector<std::string> &missing_shards() const = 0;
    /// Given out so far: "SELECT n"
    [[nodiscard]] virtual std::uint64_t rows() const = 0;

    /// What to tell the client, as a NOTICE, if shards are missing.
    [[nodiscard]] std::optional<Refusal> notice() const;
};

/// From a global index where the statement is a page that one answers, else from all shards. A
/// shard that has given a bucket away since the request's routes refuses to answer (IL102): then
/// all is asked anew under newer ones, as long as routes.wait and the budget allow. `gave_up`: the
/// client wants no answer any more; may be null, else outlives the rows and has no other waiter
/// during open() and next(), which then end with SQLSTATE 57014. `client`: where `gave_up` is null,
/// the client's end, which counts while it is waited for routes; may be null.
[[nodiscard]] std::unique_ptr<MergedRows> merged_rows(Worker &worker, ScatterRequest request,
                                                      Event *gave_up, ClientEnd *client = nullptr);

}  // namespace interlock
