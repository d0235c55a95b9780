// Facts + values + route table -> the shard. Pure.
#pragma once

#include "base/result.h"
#include "route/route_table.h"
#include "sql/facts.h"
#include "sql/refusal.h"
#include "sql/shape.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace interlock {

/// A parameter as Bind gives it.
struct BoundParameter {
    std::optional<std::string_view> bytes;  ///< nothing for NULL
    bool binary = false;
    std::uint32_t type = 0;  ///< OID declared in Parse; 0: left to the server, which infers it
};

/// Where the values of a statement are found.
struct Values {
    std::string_view text;                       ///< of the statement
    std::span<const sql::Literal> literals;      ///< of its shape
    std::span<const BoundParameter> parameters;  ///< may be shorter than the statement needs: R27
    bool utf8 = true;  ///< the client's encoding; in another, a text key beyond ASCII is refused
};

struct Target {
    ShardIndex shard = 0;
    std::uint32_t table = 0;  ///< whose key decided, position in RouteTable::tables
    std::int32_t bucket = 0;  ///< of the first key
};

/// The one shard the statement runs on; nothing when any shard will do. Refuses: a key that is
/// NULL, of another type, or not spelled as a value of its type (R27); keys on several shards
/// (R11). Types: a key of the integer family takes int2, int4, int8 (and any of the three casts);
/// uuid, text (text or varchar) and bytea take their own. An untyped literal or parameter takes the
/// column's type.
[[nodiscard]] Result<std::optional<Target>, Refusal>
plan(const sql::Facts &facts, const Values &values, const RouteTable &routes);

}  // namespace interlock
