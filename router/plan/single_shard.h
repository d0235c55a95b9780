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
    bool held = false;        ///< a key is in a bucket that is announced to move
};

/// The one shard the statement runs on. `facts` were found under `routes`. Nothing when any shard
/// will do: without keys; or when the only ones are arrays (k = ANY (...)) that hold no element, or
/// none but NULLs. Of the tables those pin no row can match on any shard, so a statement that
/// writes changes nothing wherever it runs.
///
/// Refuses keys on several shards (R11), and with R27 a parameter that is not there, a key that is
/// NULL, that is of another type, or that is not spelled as a value of its type. Types:
///   * a literal or parameter without a type (no cast, and declared 0 or unknown) has the column's;
///   * integer, text (text or varchar), uuid and bytea keys take every type of their family; what
///   is
///     cast to, or declared as, an integer type must be within its range;
///   * a parameter declared as text may be cast to the key's type: it is read as that type reads;
///   * integer keys take number literals, other keys do not.
/// That an untyped parameter has the column's type holds where all that is said about it in the
/// statement allows no other type: that is for the analysis to see to.
[[nodiscard]] Result<std::optional<Target>, Refusal>
plan(const sql::Facts &facts, const Values &values, const RouteTable &routes);

}  // namespace interlock
