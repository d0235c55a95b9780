// From facts, parameters and a route table to the shard a statement runs on. Pure.
#pragma once

#include "base/result.h"
#include "sql/refusal.h"
#include "sql/statement.h"

#include <optional>
#include <span>
#include <string_view>

namespace interlock {

/// A parameter's text form; nothing for NULL.
using Parameter = std::optional<std::string_view>;

/// Where a data statement runs.
struct Place {
    ShardIndex shard = 0;
    bool held = false;  ///< a key is in a bucket that is announced to move
};

/// The one shard a data statement runs on. Refuses: the wrong number of parameters, one that cannot
/// be of its column's type, a key that is NULL (R27); keys on several shards (R11).
[[nodiscard]] Result<Place, Refusal> plan(const sql::Statement &statement,
                                          std::span<const Parameter> parameters,
                                          const RouteTable &routes);

}  // namespace interlock
