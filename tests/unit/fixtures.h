// What several unit tests share: a small route table and short ways to ask about statements.
#pragma once

#include "plan/plan.h"
#include "route/route_table.h"
#include "sql/strict.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::test {

/// The reference cluster's catalog: 16 buckets, even ones on s0, odd ones on s1, table account; and
/// tables with every other key type, names that need quotes, and one name in two schemas.
inline CatalogRows reference_rows() {
    CatalogRows rows;
    rows.cluster_id = "6ae3c2f0-0000-4000-8000-000000000001";
    rows.version = 3;
    rows.shards = {{1, "s0", "host=s0"}, {2, "s1", "host=s1"}};
    rows.keyspaces = {{1, "main", "bigint", "splitmix64", 16},
                      {2, "device", "uuid", "xxh3_64", 4},
                      {3, "person", "text", "xxh3_64", 4},
                      {4, "blob", "bytea", "xxh3_64", 4}};
    for (const auto &keyspace : rows.keyspaces)
        for (std::int32_t bucket = 0; bucket < keyspace.buckets; ++bucket)
            rows.routes.push_back({keyspace.id, bucket, 1 + bucket % 2});
    rows.tables = {
        {1, "public", "account", "public.account", 1, "account_id", "version"},
        {2, "public", "device", "public.device", 2, "device_id", ""},
        {3, "public", "person", "public.person", 3, "name", ""},
        {4, "public", "blob", "public.blob", 4, "digest", ""},
        {5, "app", "order", "app.\"order\"", 1, "account_id", "user"},
        {6, "public", "event", "public.event", 1, "account_id", ""},
        {7, "app", "event", "app.event", 1, "account_id", ""},
        {8, "public", "narrow", "public.narrow", 1, "small", ""},
        {9, "public", "konto", "public.konto", 1, "schlüssel", ""},
    };
    rows.columns = {
        {1, "account_id", "account_id", oid::int8},
        {1, "owner", "owner", oid::text},
        {1, "balance", "balance", oid::int8},
        {1, "version", "version", oid::int4},
        {2, "device_id", "device_id", oid::uuid},
        {2, "label", "label", oid::varchar},
        {3, "name", "name", oid::varchar},
        {3, "adult", "adult", oid::boolean},
        {4, "digest", "digest", oid::bytea},
        {5, "account_id", "account_id", oid::int8},
        {5, "user", "\"user\"", oid::int4},
        {5, "placed", "placed", 1082},  // date
        {6, "account_id", "account_id", oid::int8},
        {7, "account_id", "account_id", oid::int8},
        {8, "small", "small", oid::int2},
        {8, "middle", "middle", oid::int4},
        {8, "mood", "mood", 16500},  // a type of a user
        {9, "schlüssel", "\"schlüssel\"", oid::int4},
    };
    return rows;
}

inline std::shared_ptr<const RouteTable> build(const CatalogRows &rows) {
    auto table = RouteTable::build(rows);
    if (!table) throw std::runtime_error(table.error());
    return *table;
}

/// Built once; statements analysed against it stay valid.
inline const std::shared_ptr<const RouteTable> &reference_table() {
    static const std::shared_ptr<const RouteTable> table = build(reference_rows());
    return table;
}

inline Result<sql::Statement, Refusal> analyse(std::string_view text) {
    return sql::analyse_strict(text, *reference_table());
}

/// "R10", or "accepted".
inline std::string code_of(std::string_view text) {
    const auto statement = analyse(text);
    return statement ? "accepted" : std::string(code_entry(statement.error().code).name);
}

/// The SQL that a shard would receive, or the code of the refusal.
inline std::string sql_of(std::string_view text) {
    const auto statement = analyse(text);
    return statement ? statement->text : std::string(code_entry(statement.error().code).name);
}

/// The shard's name ("s0"), or the code of the refusal.
inline std::string shard_of(std::string_view text, const std::vector<Parameter> &parameters) {
    const auto statement = analyse(text);
    if (!statement) return std::string(code_entry(statement.error().code).name);
    const auto shard = plan(*statement, parameters, *reference_table());
    if (!shard) return std::string(code_entry(shard.error().code).name);
    return reference_table()->shards[shard->shard].name;
}

}  // namespace interlock::test
