// How plans of both profiles speak of keys they cannot use.
#pragma once

#include "route/route_table.h"
#include "sql/refusal.h"

#include <cstdint>
#include <string>

namespace interlock {

/// A bucket that a key of the statement leads to.
struct KeyTarget {
    std::uint16_t keyspace = 0;  ///< position in RouteTable::keyspaces
    std::int32_t bucket = 0;
    ShardIndex shard = 0;
};

/// R11: keys of one statement live on different shards.
[[nodiscard]] Refusal several_shards(const RouteTable &routes, const KeyTarget &first,
                                     const KeyTarget &second);

/// A built-in type's name as PostgreSQL writes it, e.g. "bigint"; "type with OID 16400" for others.
[[nodiscard]] std::string type_name(std::uint32_t type_oid);

}  // namespace interlock
