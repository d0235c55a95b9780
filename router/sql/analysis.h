// The analysis of the `single-shard` profile: PostgreSQL's own grammar (libpg_query), then a proof.
//
// A statement passes only if every sharded table in it, at any depth, is pinned to a key by what
// stands in the statement (design, decision 6). What is not proven is refused with the most precise
// code, the position of the construct and, where there is one, the rewrite.
#pragma once

#include "base/result.h"
#include "sql/facts.h"
#include "sql/refusal.h"
#include "sql/shape.h"

#include <string>
#include <string_view>
#include <vector>

namespace interlock::sql {

/// What names in a text are resolved under.
struct NameContext {
    const RouteTable &routes;
    /// The schemas of the search_path in order, "$user" already replaced by the login's name;
    /// pg_catalog is in it only where the setting names it.
    const std::vector<std::string> &search_path;
};

/// Bounds on what is given to the parser; both proven by a test to fit the stack (decision 4).
inline constexpr std::size_t default_max_statement = 256 * 1024;

/// Analyses a text of one or more statements, as sent in one Query or Parse message. `shape` is
/// that text's (its literals are what KeySource::index counts). Positions in refusals are in
/// characters of the text, from 1. A syntax error is R01 with SQLSTATE 42601 and the parser's
/// message.
[[nodiscard]] Result<std::vector<StatementFacts>, Refusal>
analyse(std::string_view text, const Shape &shape, const NameContext &names);

/// Splits the value of search_path into schema names as PostgreSQL does (SplitIdentifierString),
/// "$user" replaced by `login`. Nothing when the list is malformed.
[[nodiscard]] std::optional<std::vector<std::string>> split_search_path(std::string_view value,
                                                                        std::string_view login);

}  // namespace interlock::sql
