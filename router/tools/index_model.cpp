#include "tools/index_model.h"

#include <algorithm>

#include "route/catalog_watcher.h"
#include "server/shard_server.h"

namespace interlock {

namespace {

constexpr std::string_view hint_mark = "; HINT: ";

/// The same error, with the member it concerns in front.
[[noreturn]] void rethrow_naming(const RouteTable &routes, ShardIndex member,
                                 const ControlError &error) {
    const Shard &shard = routes.shards[member];
    throw ControlError(error.sqlstate,
                       std::string(shard.index_only ? "index database" : "shard") + " \"" +
                           shard.name + "\": " + error.what(),
                       error.detail, error.hint, error.context);
}

std::string known_names(const RouteTable &routes) {
    std::string names;
    for (const GlobalIndex &index : routes.indexes)
        names += (names.empty() ? "" : ", ") + index.name;
    return names.empty() ? "No index is published." : "Published are: " + names + ".";
}

}  // namespace

ControlError unknown_keyspace(const RouteTable &routes, const std::string &name) {
    std::string names;
    for (const Keyspace &keyspace : routes.keyspaces)
        names += (names.empty() ? "" : ", ") + keyspace.name;
    return {"42704", "keyspace \"" + name + "\" is not published",
            names.empty() ? "No keyspace is published." : "Published are: " + names + ".",
            "\"interlock apply\" publishes keyspaces that were created."};
}

ControlError unknown_shard(const RouteTable &routes, const std::string &name) {
    std::string names;
    for (const Shard &shard : routes.shards)
        if (!shard.index_only) names += (names.empty() ? "" : ", ") + shard.name;
    return {"42704",
            "shard \"" + name + "\" is not part of route version " + std::to_string(routes.version),
            "Its shards are: " + names + ".",
            "\"interlock apply\" prepares a shard that was added and tells the routers of it."};
}

ControlError advised(const ControlError &error, const std::string &login) {
    std::string hint = error.hint;
    if (hint.empty() && error.sqlstate == "42501") hint = login;
    if (hint.empty() && (error.sqlstate == "42P01" || error.sqlstate == "3F000"))
        hint = "Name the catalog's database with --catalog. Its extension interlock has to be as "
               "new as this command.";
    return {error.sqlstate, error.what(), error.detail, hint};
}

std::vector<std::string> IndexModel::column_names() const {
    std::vector<std::string> names;
    for (const IndexColumn &column : columns)
        names.push_back(column.name);
    return names;
}

std::string IndexModel::key_list(std::string_view prefix) const {
    std::string list;
    for (const std::size_t position : key) {
        if (!list.empty()) list += ", ";
        list += prefix;
        list += columns[position].sql_name;
    }
    return list;
}

std::shared_ptr<const RouteTable> read_published_routes(ControlConnection &catalog) {
    ControlTransaction transaction(catalog, "ISOLATION LEVEL REPEATABLE READ READ ONLY");
    const CatalogRows rows = read_catalog(catalog);
    transaction.commit();
    if (rows.version == 0)
        throw ControlError("55000", "the catalog has not published a route version yet", {},
                           "\"interlock apply\" publishes one.");
    auto table = RouteTable::build(rows);
    if (!table)
        throw ControlError("55000", "route version " + std::to_string(rows.version) +
                                        " of the catalog is not sound: " + table.error());
    return std::move(*table);
}

IndexModel read_index_model(std::shared_ptr<const RouteTable> routes, const std::string &name,
                            ControlConnection &database) {
    const GlobalIndex *const declared = routes->find_index(name);
    if (!declared)
        throw ControlError("42704", "index \"" + name + "\" is not published", known_names(*routes),
                           "Create it in the catalog with interlock.create_index(), then run "
                           "\"interlock apply\".");
    IndexModel model;
    model.name = name;
    model.sql_name = declared->sql_name;
    model.table = &routes->tables[declared->table];
    model.database = declared->database;
    model.ready = declared->ready;
    model.scope = declared->scope;
    model.order = declared->order;
    for (std::size_t i = 0; i < routes->shards.size(); ++i)
        if (!routes->shards[i].index_only) model.shards.push_back(static_cast<ShardIndex>(i));

    const Rows columns = database.query(
        "SELECT c.value ->> 'name', pg_catalog.quote_ident(c.value ->> 'name'), "
        "  c.value ->> 'type', COALESCE(c.value ->> 'collation', ''), "
        "  (c.value ->> 'not_null')::boolean, "
        "  pg_catalog.array_position(i.key_columns, c.value ->> 'name'), i.table_name "
        "FROM interlock.local_index i, "
        "  pg_catalog.jsonb_array_elements(i.columns) WITH ORDINALITY AS c(value, n) "
        "WHERE i.name OPERATOR(pg_catalog.=) $1 ORDER BY c.n",
        {Param::of_text(name)});
    if (columns.empty())
        throw ControlError("42704",
                           "index \"" + name + "\" does not exist in the index database \"" +
                               routes->shards[declared->database].name + "\"",
                           {}, "\"interlock apply\" makes it.");
    if (columns.view(0, 6) != model.table->sql_name)
        throw ControlError("55000", "index \"" + name + "\" in the index database is of table " +
                                        columns.text(0, 6) + ", not " + model.table->sql_name);
    std::vector<std::pair<std::int32_t, std::size_t>> key;
    for (int row = 0; row < columns.size(); ++row) {
        if (!columns.is_null(row, 5)) key.emplace_back(columns.int32(row, 5), model.columns.size());
        model.columns.push_back({columns.text(row, 0), columns.text(row, 1), columns.text(row, 2),
                                 columns.text(row, 3), columns.boolean(row, 4)});
    }
    std::sort(key.begin(), key.end());
    for (const auto &[ordinal, position] : key)
        model.key.push_back(position);
    model.routes = std::move(routes);
    return model;
}

void greet_member(ControlConnection &connection, const RouteTable &routes, ShardIndex member) {
    const Shard &shard = routes.shards[member];
    try {
        const Rows greeting = connection.query("SELECT cluster_id::text, shard, restored, floor "
                                               "FROM interlock.greet($1)",
                                               {Param::of_int4(routes.version)});
        if (greeting.is_null(0, 1))
            throw ControlError("55000", "the database is not a member of any cluster", {},
                               "\"interlock apply\" makes it one.");
        if (greeting.view(0, 0) != routes.cluster_id || greeting.view(0, 1) != shard.name)
            throw ControlError("55000", "the connection string leads to another member: \"" +
                                            greeting.text(0, 1) + "\" of cluster " +
                                            greeting.text(0, 0));
        if (greeting.boolean(0, 2))
            throw ControlError("IL104", "the database is a restored copy, not the member itself",
                               {},
                               "If the original is gone for good, declare this copy to be the "
                               "member with interlock.adopt_shard().");
        // It would answer for buckets that it has given away.
        if (const std::string problem = floor_problem(greeting.int32(0, 3), shard.min_floor);
            !problem.empty())
            throw ControlError("55000", problem.substr(0, problem.find(hint_mark)), {},
                               problem.substr(problem.find(hint_mark) + hint_mark.size()));
    } catch (const ControlError &error) {
        rethrow_naming(routes, member, error);
    }
}

std::unique_ptr<ControlConnection> open_member(const RouteTable &routes, ShardIndex member,
                                               const std::string &application_name,
                                               std::int64_t timeout) {
    std::unique_ptr<ControlConnection> connection;
    try {
        connection = std::make_unique<ControlConnection>(routes.shards[member].conninfo,
                                                         application_name, timeout);
        if (connection->query("SELECT pg_catalog.pg_is_in_recovery()").boolean(0, 0))
            throw ControlError("25006", "the connection string leads to a standby", {},
                               "Name the primary, or several hosts and "
                               "target_session_attrs=primary.");
    } catch (const ControlError &error) {
        rethrow_naming(routes, member, error);
    }
    greet_member(*connection, routes, member);
    return connection;
}

}  // namespace interlock
