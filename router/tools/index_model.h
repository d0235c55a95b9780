// A global index as the tools see it: what the route version in force declares, where its entries
// are, and what columns they have. Shared by `interlock index` and `interlock repair`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/control.h"
#include "route/route_table.h"

namespace interlock {

struct IndexColumn {
    std::string name;
    std::string sql_name;   ///< quoted where PostgreSQL needs it
    std::string type;       ///< as declared, with its modifier
    std::string collation;  ///< quoted; empty: the type has none
    bool not_null = false;
};

struct IndexModel {
    std::shared_ptr<const RouteTable> routes;
    std::string name;
    std::string sql_name;              ///< interlock_index."name", in the index database
    const Table *table = nullptr;      ///< in `routes`; its sql_name is the table on the shards
    ShardIndex database = 0;           ///< in routes->shards: where the entries are
    bool ready = false;                ///< backfilled
    std::vector<ShardIndex> shards;    ///< that can have rows: all but those for indexes only
    std::vector<std::string> scope;    ///< column names
    std::string order;                 ///< as declared
    std::vector<IndexColumn> columns;  ///< scope, order, key; as row_values() is asked for them
    std::vector<std::size_t> key;      ///< positions in `columns`: primary key, then the shard key

    [[nodiscard]] const Keyspace &keyspace() const { return routes->keyspaces[table->keyspace]; }
    [[nodiscard]] const Shard &member(ShardIndex shard) const { return routes->shards[shard]; }
    /// The shard key, quoted where PostgreSQL needs it.
    [[nodiscard]] const std::string &shard_key_sql() const {
        return table->columns[table->key_column].sql_name;
    }
    [[nodiscard]] std::vector<std::string> column_names() const;
    /// "p.a, p.b" of the key's columns for prefix "p.".
    [[nodiscard]] std::string key_list(std::string_view prefix = {}) const;
};

/// The route version that is published: one snapshot of the catalog. Throws ControlError.
[[nodiscard]] std::shared_ptr<const RouteTable> read_published_routes(ControlConnection &catalog);

/// What to throw for a name that is not published, with those there are.
[[nodiscard]] ControlError unknown_keyspace(const RouteTable &routes, const std::string &name);
[[nodiscard]] ControlError unknown_shard(const RouteTable &routes, const std::string &name);

/// A bare error of PostgreSQL's, with what to do about a wrong login or a wrong database.
[[nodiscard]] ControlError advised(const ControlError &error, const std::string &login);

/// An index of the routes and its definition in the index database. Throws ControlError if the
/// catalog does not declare it, or `interlock apply` has not made it, or made it otherwise.
[[nodiscard]] IndexModel read_index_model(std::shared_ptr<const RouteTable> routes,
                                          const std::string &name, ControlConnection &database);

/// A session on a shard or index database: connected, proven to be that member of that cluster (and
/// no restored copy), greeted with the routes' version. Throws ControlError; its message names the
/// member. `timeout` in ms, as for ControlConnection.
[[nodiscard]] std::unique_ptr<ControlConnection> open_member(const RouteTable &routes,
                                                             ShardIndex member,
                                                             const std::string &application_name,
                                                             std::int64_t timeout);

/// Proves and greets again, after the routes have changed. Throws ControlError.
void greet_member(ControlConnection &connection, const RouteTable &routes, ShardIndex member);

}  // namespace interlock
