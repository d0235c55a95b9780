// Refusals: the codes of spec "routing", as data, and the value that carries one.
//
// A client branches on the code (Rnn on the line protocol) or on its SQLSTATE. Where a standard
// SQLSTATE says it, that one is used, else IL0nn (class IL is left to implementations by the SQL
// standard).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace interlock {

enum class Code : std::uint8_t {
    R01,                  ///< syntax outside the profile
    R02,                  ///< malformed protocol frame
    R10,                  ///< no routable shard-key condition
    R11,                  ///< one statement touches several shards
    R12,                  ///< inside a transaction, routes to another shard
    R13,                  ///< data statement, or COMMIT, in a failed transaction block
    R20,                  ///< JOIN or several tables in FROM
    R21,                  ///< subquery, CTE, set operation
    R22,                  ///< semicolon or several statements
    R23,                  ///< comment
    R24,                  ///< DDL
    R25,                  ///< session- or transaction-level state
    R26,                  ///< unknown table or column
    R27,                  ///< wrong number or type of parameters
    R28,                  ///< a literal in the SQL
    R29,                  ///< update of the shard key
    R30,                  ///< shard unavailable, nothing was done: safe to retry
    R31,                  ///< the backend answered with an error
    R32,                  ///< a write or COMMIT was sent and the connection broke: outcome unknown
    R33,                  ///< no connection of the pool came free in time; nothing was sent
    R34,                  ///< too many wait for the pool, or too many clients; nothing was sent
    R36,                  ///< the statement ran longer than the router allows and was cancelled
    R37,                  ///< the answer is larger than the router allows
    R40,                  ///< BEGIN inside a transaction
    bad_cursor,           ///< not a cursor of this keyset and scope
    page_too_large,       ///< more rows than the keyset allows
    fanout_exceeded,      ///< more shards than the caller allows; nothing was sent
    shard_timeout,        ///< a shard had not answered by the deadline
    not_total_order,      ///< the order may leave rows with equal places, or did
    scatter_not_allowed,  ///< would go to every shard, which nobody has allowed
    scatter_unsupported,  ///< cannot be answered exactly from the shards' answers
    shards_disagree,      ///< on a keyset, a collation, a column, or an answer was not sorted
    row_budget,           ///< more rows or groups than the budget
    index_stale,          ///< none of the entries that a page looked at stands for a row any more
};

struct CodeEntry {
    std::string_view name;
    std::string_view sqlstate;
};

[[nodiscard]] constexpr CodeEntry code_entry(Code code) {
    switch (code) {
    case Code::R01: return {"R01", "IL001"};
    case Code::R02: return {"R02", "08P01"};
    case Code::R10: return {"R10", "IL010"};
    case Code::R11: return {"R11", "IL011"};
    case Code::R12: return {"R12", "IL012"};
    case Code::R13: return {"R13", "25P02"};
    case Code::R20: return {"R20", "IL020"};
    case Code::R21: return {"R21", "IL021"};
    case Code::R22: return {"R22", "IL022"};
    case Code::R23: return {"R23", "IL023"};
    case Code::R24: return {"R24", "IL024"};
    case Code::R25: return {"R25", "IL025"};
    case Code::R26: return {"R26", "IL026"};
    case Code::R27: return {"R27", "IL027"};
    case Code::R28: return {"R28", "IL028"};
    case Code::R29: return {"R29", "IL029"};
    case Code::R30: return {"R30", "IL030"};
    case Code::R31: return {"R31", "XX000"};
    case Code::R32: return {"R32", "08007"};
    case Code::R33: return {"R33", "IL033"};
    case Code::R34: return {"R34", "53300"};
    case Code::R36: return {"R36", "IL036"};
    case Code::R37: return {"R37", "IL037"};
    case Code::R40: return {"R40", "25001"};
    case Code::bad_cursor: return {"BAD_CURSOR", "IL201"};
    case Code::page_too_large: return {"PAGE_TOO_LARGE", "IL202"};
    case Code::fanout_exceeded: return {"FANOUT_EXCEEDED", "IL203"};
    case Code::shard_timeout: return {"SHARD_TIMEOUT", "IL204"};
    case Code::not_total_order: return {"NOT_TOTAL_ORDER", "IL205"};
    case Code::scatter_not_allowed: return {"SCATTER_NOT_ALLOWED", "IL206"};
    case Code::scatter_unsupported: return {"SCATTER_UNSUPPORTED", "IL207"};
    case Code::shards_disagree: return {"SHARDS_DISAGREE", "IL208"};
    case Code::row_budget: return {"ROW_BUDGET", "IL209"};
    case Code::index_stale: return {"INDEX_STALE", "IL210"};
    }
    return {"R31", "XX000"};
}

/// Why a statement is not, or was not, carried out.
struct Refusal {
    Code code = Code::R01;
    std::string message;
    std::string detail;
    std::string hint;
    std::string sqlstate;  ///< of the backend (R31); empty: the code's own
    int position = 0;      ///< of the construct in the text, in characters from 1; 0: none
    /// Of a R10: what is told in its place where the session allows scatters (interlock.scatter):
    /// why the statement cannot be one. Null: nothing else.
    std::shared_ptr<const Refusal> as_scatter = nullptr;

    [[nodiscard]] std::string_view state() const {
        return sqlstate.empty() ? code_entry(code).sqlstate : std::string_view(sqlstate);
    }
};

[[nodiscard]] inline Refusal make_refusal(Code code, std::string message, std::string hint = {}) {
    Refusal refusal;
    refusal.code = code;
    refusal.message = std::move(message);
    refusal.hint = std::move(hint);
    return refusal;
}

/// An error that PostgreSQL itself would answer with: told in its words, without a code of ours.
[[nodiscard]] inline Refusal postgres_error(std::string_view sqlstate, std::string message,
                                            std::string hint = {}) {
    Refusal refusal = make_refusal(Code::R31, std::move(message), std::move(hint));
    refusal.sqlstate = sqlstate;
    return refusal;
}

/// R30 before the first route table.
[[nodiscard]] inline Refusal no_route_table() {
    return make_refusal(Code::R30, "the router has no route table yet",
                        "The catalog has not been reached, or nothing was published.");
}

}  // namespace interlock
