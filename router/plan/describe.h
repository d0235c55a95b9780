// What the router would do with a statement, in words: for EXPLAIN ROUTE and `interlock explain`.
#pragma once

#include "plan/single_shard.h"
#include "sql/analysis.h"

#include <optional>
#include <string>
#include <vector>

namespace interlock {

struct RouteDescription {
    std::vector<std::string> lines;
    std::optional<Refusal> refusal;  ///< of the first statement that is refused
    bool all_shards = false;         ///< one of the statements is answered by all of them
};

/// Lines of "name: value", one text of one or more statements. Nothing is carried out. Parameters
/// that are not given leave the shard open: the line then says what it depends on. A refusal is
/// described too: code, position, reason, rewrite. `scatter`: the session allows statements to run
/// on all shards.
[[nodiscard]] RouteDescription explain_route(std::string_view text, const sql::NameContext &names,
                                             std::span<const BoundParameter> parameters, bool utf8,
                                             bool scatter = false);
[[nodiscard]] std::vector<std::string> describe_route(std::string_view text,
                                                      const sql::NameContext &names,
                                                      std::span<const BoundParameter> parameters,
                                                      bool utf8, bool scatter = false);

}  // namespace interlock
