// What a session allows its scatters: the router's bounds, narrowed by what the session has set.
#pragma once

#include "base/settings.h"
#include "session/merged_rows.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace interlock {

/// Milliseconds of a time as SHOW spells it ("300ms", "5s", "2min", "0"). Nothing for what is none.
[[nodiscard]] std::optional<Millis> shown_time(std::string_view text);

/// The value the session has set for a parameter, as SHOW spells it; null: none.
using SessionValue = std::function<const std::string *(std::string_view name)>;

struct SessionBudget {
    enum class Bound : std::uint8_t {
        page,       ///< interlock.page_timeout, or the router's bound for scatters
        session,    ///< the session's statement_timeout
        statement,  ///< the router's pool.statement_timeout
    };
    ScatterBudget budget;
    Bound timeout_of = Bound::page;  ///< whose the timeout is
};

/// Sessions narrow what the router allows, and never widen it.
[[nodiscard]] SessionBudget session_budget(const sql::Scatter &scatter, const Settings &settings,
                                           const SessionValue &value);

/// Whether the statement may go to all shards: what it says itself, what the catalog says of its
/// table, or the session's setting allows it.
[[nodiscard]] bool scatter_allowed(const sql::Scatter &scatter, const SessionValue &value);

/// A refusal as the session is told it: where statements may go to all shards, it says what keeps
/// this one from it.
[[nodiscard]] Refusal told_session(Refusal refusal, const SessionValue &value);

/// Whether the options of a BEGIN, or of a SET TRANSACTION, name an isolation level, and whether it
/// is READ COMMITTED (as READ UNCOMMITTED is). Nothing: they name none.
[[nodiscard]] std::optional<bool> names_read_committed(std::string_view options);

}  // namespace interlock
