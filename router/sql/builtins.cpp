#include "sql/builtins.h"

#include "route/route_table.h"

#include <algorithm>
#include <iterator>

namespace interlock::sql {

namespace {

#include "sql/builtin_functions.inc"
#include "sql/builtin_names.inc"
#include "sql/scatter_functions.inc"

template <std::size_t N>
bool in(const std::string_view (&names)[N], std::string_view name) {
    return std::binary_search(std::begin(names), std::end(names), name);
}

bool touches_session(std::string_view name) {
    constexpr std::string_view sessions[] = {
        "currval",   "lastval",    "nextval", "pg_export_snapshot",
        "pg_notify", "set_config", "setseed", "setval"};
    return std::find(std::begin(sessions), std::end(sessions), name) != std::end(sessions) ||
           name.find("advisory") != std::string_view::npos;
}

}  // namespace

Builtin builtin_function(std::string_view name) {
    if (in(safe_functions, name)) return Builtin::safe;
    if (!in(other_functions, name)) return Builtin::unknown;
    return touches_session(name) ? Builtin::session : Builtin::effect;
}

ShardFunction shard_function(std::string_view name) {
    if (in(row_functions, name)) return ShardFunction::row;
    if (in(clock_functions, name)) return ShardFunction::clock;
    return in(aggregate_functions, name) ? ShardFunction::aggregate : ShardFunction::other;
}

bool builtin_operator(std::string_view name) {
    return in(operators, name);
}

bool catalog_relation(std::string_view name) {
    return in(catalog_relations, name);
}

bool information_schema_relation(std::string_view name) {
    return in(information_schema_relations, name);
}

std::uint32_t key_type_oid(std::string_view name) {
    struct Entry {
        std::string_view name;
        std::uint32_t type;
    };
    constexpr Entry entries[] = {
        {"int2", oid::int2}, {"int4", oid::int4},       {"int8", oid::int8},  {"uuid", oid::uuid},
        {"text", oid::text}, {"varchar", oid::varchar}, {"bytea", oid::bytea}};
    for (const Entry &entry : entries)
        if (entry.name == name) return entry.type;
    return 0;
}

}  // namespace interlock::sql
