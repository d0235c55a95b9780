// What PostgreSQL has built in, by name: functions, operators, catalog relations, key types.
#pragma once

#include <cstdint>
#include <string_view>

namespace interlock::sql {

enum class Builtin : std::uint8_t {
    safe,     ///< no effect outside the row, runs no SQL text
    session,  ///< leaves or reads state of the session: settings, sequences, advisory locks ...
    effect,   ///< other effects (files, large objects, other sessions, replication, SQL text)
    unknown,  ///< no built-in function
};

/// What the function of pg_catalog with this name does; by name only, so the most harmful of its
/// overloads counts.
[[nodiscard]] Builtin builtin_function(std::string_view name);

/// What a function of pg_catalog means where all shards answer together.
enum class ShardFunction : std::uint8_t {
    row,        ///< each shard makes the same of the same row
    clock,      ///< the same, but for the shards' clocks
    aggregate,  ///< works on many rows
    other,      ///< sets, volatile ones, what is about the server, and what is not known
};
[[nodiscard]] ShardFunction shard_function(std::string_view name);

[[nodiscard]] bool builtin_operator(std::string_view name);
[[nodiscard]] bool catalog_relation(std::string_view name);
[[nodiscard]] bool information_schema_relation(std::string_view name);

/// OID of a type a shard key can have, by its name in pg_catalog ("int8"); 0 for every other name.
[[nodiscard]] std::uint32_t key_type_oid(std::string_view name);

}  // namespace interlock::sql
