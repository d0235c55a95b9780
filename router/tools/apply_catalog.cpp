#include "tools/apply_catalog.h"

#include "tools/apply_cursor_keys.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

namespace interlock {

namespace {

// The advisory lock of `interlock apply` in the catalog database: the letters "interloc".
constexpr std::int64_t apply_lock = 0x696E7465726C6F63;

// A run that was killed leaves its lock until its server process has noticed.
constexpr int lock_attempts = 20;
constexpr std::chrono::milliseconds lock_pause{100};

// Whatever default_transaction_isolation says: numbers are reserved in READ COMMITTED only.
constexpr const char *read_write = "ISOLATION LEVEL READ COMMITTED READ WRITE";

std::map<std::int32_t, std::size_t> positions(const auto &things) {
    std::map<std::int32_t, std::size_t> result;
    for (std::size_t i = 0; i < things.size(); ++i)
        result.emplace(things[i].id, i);
    return result;
}

}  // namespace

CatalogSession::CatalogSession(const std::string &conninfo, bool exclusive,
                               const ApplyTimeouts &timeouts)
    : conninfo_(conninfo), connection_(conninfo, "interlock apply", timeouts.query),
      transaction_(std::make_unique<ControlTransaction>(
          connection_, exclusive ? read_write : "ISOLATION LEVEL REPEATABLE READ READ ONLY")),
      timeouts_(timeouts) {
    require_catalog();
    if (exclusive) keep_others_out();
}

void CatalogSession::require_catalog() {
    const Rows extension =
        connection_.query("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = $1",
                          {Param::of_name("interlock")});
    if (extension.empty())
        throw ApplyRefusal({"the catalog database does not have the extension interlock",
                            {},
                            "As a superuser, run in it: CREATE EXTENSION interlock;"});
    if (extension.view(0, 0) != INTERLOCK_VERSION)
        throw ApplyRefusal(
            {"the catalog has version " + extension.text(0, 0) +
                 " of the extension, and this program is version " INTERLOCK_VERSION,
             {},
             "Update the older of the two; for the extension: ALTER EXTENSION interlock "
             "UPDATE;"});
}

void CatalogSession::keep_others_out() {
    for (int attempt = 1;
         !connection_
              .query("SELECT pg_catalog.pg_try_advisory_lock($1)", {Param::of_int8(apply_lock)})
              .boolean(0, 0);
         ++attempt) {
        if (attempt == lock_attempts)
            throw ApplyRefusal({"another \"interlock apply\" is running on this catalog", holder(),
                                "Wait until it has ended."});
        std::this_thread::sleep_for(lock_pause);
    }
    const Rows reserved = connection_.query(
        "SELECT reserved_move::text FROM interlock.cluster WHERE reserved_move IS NOT NULL");
    if (reserved.empty())
        lock_catalog();
    else
        reserving_move_ = reserved.text(0, 0);
}

void CatalogSession::lock_catalog() {
    // Nobody may edit or publish while the shards are made to match what was read. The cluster's
    // row comes first, as for publish().
    connection_.query("SELECT pg_catalog.set_config('lock_timeout', $1, true)",
                      {Param::of_text(std::to_string(timeouts_.lock))});
    try {
        const std::int64_t enough = timeouts_.lock + timeouts_.query;
        connection_.query_within(enough, "LOCK TABLE interlock.cluster IN EXCLUSIVE MODE");
        connection_.query_within(
            enough, "LOCK TABLE interlock.shard, interlock.keyspace, interlock.sharded_table, "
                    "interlock.assignment, interlock.table_column, interlock.global_index, "
                    "interlock.dropped_index IN SHARE ROW EXCLUSIVE MODE");
    } catch (const ControlError &error) {
        if (error.sqlstate != "55P03") throw;
        throw ApplyRefusal({"the catalog is being edited by another transaction", error.what(),
                            "Wait until it has ended, or give --lock-timeout."});
    }
}

// Everything that an apply takes from the catalog, but for moves: none that begins or ends touches
// a bucket that is staged for another shard.
std::string CatalogSession::fingerprint() {
    return connection_
        .query_within(
            timeouts_.scan,
            "SELECT pg_catalog.md5(pg_catalog.concat_ws('/', c.route_version, "
            "  interlock.staged_declarations(), "
            "  (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.keyspace, a.bucket, "
            "     a.shard), ',' ORDER BY a.keyspace, a.bucket) FROM interlock.assignment a), "
            "  (SELECT pg_catalog.string_agg(d.name, ',' ORDER BY d.name) "
            "   FROM interlock.dropped_index d))) FROM interlock.cluster c")
        .text(0, 0);
}

bool CatalogSession::reserve(std::int32_t version) {
    const std::string before = fingerprint();
    const Rows reserved = connection_.query("SELECT interlock.reserve_version(NULL)");
    if (reserved.int32(0, 0) != version)
        throw ControlError("55000", "route version " + reserved.text(0, 0) +
                                        " was reserved where " + std::to_string(version) +
                                        " was expected");
    transaction_->commit();
    transaction_ = std::make_unique<ControlTransaction>(connection_, read_write);
    lock_catalog();
    return fingerprint() == before;
}

void CatalogSession::withdraw() {
    connection_.query("SELECT interlock.withdraw_version(NULL)");
}

void CatalogSession::give_back() noexcept {
    try {
        transaction_.reset();
        ControlTransaction another(connection_, read_write);
        withdraw();
        another.commit();
    } catch (...) {  // NOLINT: the next run finds it reserved, and goes on with it
    }
}

std::string CatalogSession::holder() {
    const Rows rows = connection_.query(
        "SELECT pg_catalog.concat('It is served by backend ', a.pid, ' for user ', a.usename, ', "
        "', "
        "  COALESCE('client ' || pg_catalog.host(a.client_addr), 'on a local socket'), "
        "  ', since ', pg_catalog.date_trunc('second', a.xact_start), '.') "
        "FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid "
        "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
        "  AND l.database = (SELECT oid FROM pg_catalog.pg_database "
        "                    WHERE datname = pg_catalog.current_database()) "
        "  AND l.classid = $1 AND l.objid = $2",
        {Param::of_oid(static_cast<std::uint32_t>(apply_lock >> 32)),
         Param::of_oid(static_cast<std::uint32_t>(apply_lock & 0xFFFFFFFF))});
    return rows.empty() ? "It has just ended." : rows.text(0, 0);
}

DesiredState CatalogSession::read() {
    DesiredState desired;
    const Rows cluster = connection_.query(
        "SELECT id, name, route_version, last_version, COALESCE(reserved_version, 0), "
        "  COALESCE(reserved_move::text, '') FROM interlock.cluster");
    if (cluster.empty())
        throw ApplyRefusal({"the catalog does not define a cluster",
                            {},
                            "Define one with interlock.create_cluster(), add_shard(), "
                            "create_keyspace(), declare_table() and assign()."});
    desired.cluster_id = cluster.text(0, 0);
    desired.cluster_name = cluster.text(0, 1);
    desired.version = cluster.int32(0, 2);
    desired.last_version = cluster.int32(0, 3);
    desired.reserved_version = cluster.int32(0, 4);
    desired.reserved_move = cluster.text(0, 5);

    const Rows shards = connection_.query(
        "SELECT s.id, s.name, s.conninfo, s.role = 'index', COALESCE(f.min_floor, 0) "
        "FROM interlock.shard s LEFT JOIN interlock.shard_floors f ON f.shard = s.id "
        "ORDER BY s.name");
    for (int row = 0; row < shards.size(); ++row)
        desired.shards.push_back({shards.int32(row, 0), shards.text(row, 1), shards.text(row, 2),
                                  shards.boolean(row, 3), shards.int32(row, 4)});
    if (std::all_of(desired.shards.begin(), desired.shards.end(),
                    [](const DesiredShard &shard) { return shard.index_only; }))
        throw ApplyRefusal(
            {"the catalog does not define any shard", {}, "Add them with interlock.add_shard()."});

    const Rows keyspaces = connection_.query(
        "SELECT id, name, key_type, hash, buckets FROM interlock.keyspace ORDER BY name");
    for (int row = 0; row < keyspaces.size(); ++row) {
        DesiredKeyspace keyspace{keyspaces.int32(row, 0),
                                 keyspaces.text(row, 1),
                                 keyspaces.text(row, 2),
                                 keyspaces.text(row, 3),
                                 keyspaces.int32(row, 4),
                                 {},
                                 {},
                                 {}};
        const auto buckets = static_cast<std::size_t>(keyspace.buckets);
        keyspace.staged.assign(buckets, no_shard);
        keyspace.published.assign(buckets, no_shard);
        desired.keyspaces.push_back(std::move(keyspace));
    }
    if (desired.keyspaces.empty())
        throw ApplyRefusal({"the catalog does not define any keyspace",
                            {},
                            "Create one with interlock.create_keyspace()."});

    const auto shard_at = positions(desired.shards);
    const auto keyspace_at = positions(desired.keyspaces);
    const auto read_map = [&](const char *sql, auto &&take) {
        const Rows rows = connection_.query(sql);
        for (int row = 0; row < rows.size(); ++row)
            take(desired.keyspaces[keyspace_at.at(rows.int32(row, 0))], rows.int32(row, 1),
                 static_cast<std::int32_t>(shard_at.at(rows.int32(row, 2))));
    };
    read_map("SELECT keyspace, bucket, shard FROM interlock.assignment ORDER BY keyspace, bucket",
             [](DesiredKeyspace &keyspace, std::int32_t bucket, std::int32_t shard) {
                 if (bucket < keyspace.buckets)
                     keyspace.staged[static_cast<std::size_t>(bucket)] = shard;
                 else
                     keyspace.beyond.push_back(bucket);
             });
    read_map("SELECT keyspace, bucket, shard FROM interlock.route WHERE valid_to IS NULL",
             [](DesiredKeyspace &keyspace, std::int32_t bucket, std::int32_t shard) {
                 if (bucket < keyspace.buckets)
                     keyspace.published[static_cast<std::size_t>(bucket)] = shard;
             });

    const Rows tables = connection_.query(
        "SELECT id, pg_catalog.quote_ident(schema_name) || '.' || "
        "pg_catalog.quote_ident(table_name), "
        "  keyspace, key_column, pg_catalog.quote_ident(key_column), version_column "
        "FROM interlock.sharded_table ORDER BY schema_name, table_name");
    for (int row = 0; row < tables.size(); ++row)
        desired.tables.push_back({tables.int32(row, 0),
                                  tables.text(row, 1),
                                  keyspace_at.at(tables.int32(row, 2)),
                                  tables.text(row, 3),
                                  tables.text(row, 4),
                                  tables.text(row, 5),
                                  {}});
    const auto table_at = positions(desired.tables);
    const Rows columns = connection_.query(
        "SELECT table_id, name, type_name, type_oid, not_null FROM interlock.table_column "
        "ORDER BY table_id, ordinal");
    for (int row = 0; row < columns.size(); ++row)
        desired.tables[table_at.at(columns.int32(row, 0))].recorded.push_back(
            {columns.text(row, 1), columns.text(row, 2), columns.oid(row, 3),
             columns.boolean(row, 4)});
    read_indexes(desired);
    read_moves(desired);
    desired.instance = read_instance_name(connection_);
    desired.cursor_keys = read_cursor_keys();
    return desired;
}

void CatalogSession::read_indexes(DesiredState &desired) {
    const auto shard_at = positions(desired.shards);
    const auto table_at = positions(desired.tables);
    // An index without scope columns has one row, with a NULL for the column.
    const Rows indexes = connection_.query(
        "SELECT i.id, i.name, i.table_id, i.\"order\", i.shard, i.max_page, i.default_page, "
        "  i.ready, s.name "
        "FROM interlock.global_index i "
        "LEFT JOIN LATERAL pg_catalog.unnest(i.scope) WITH ORDINALITY s(name, n) ON true "
        "ORDER BY i.name, s.n");
    for (int row = 0; row < indexes.size(); ++row) {
        if (desired.indexes.empty() || desired.indexes.back().id != indexes.int32(row, 0)) {
            const auto table = table_at.find(indexes.int32(row, 2));
            const auto database = shard_at.find(indexes.int32(row, 4));
            if (table == table_at.end() || database == shard_at.end())
                throw ApplyRefusal({"index \"" + indexes.text(row, 1) +
                                        "\" refers to a table or database that does not exist",
                                    {},
                                    "Look at interlock.global_index."});
            DesiredIndex index;
            index.id = indexes.int32(row, 0);
            index.name = indexes.text(row, 1);
            index.table = table->second;
            index.order = indexes.text(row, 3);
            index.database = static_cast<std::int32_t>(database->second);
            index.max_page = indexes.int32(row, 5);
            index.default_page = indexes.int32(row, 6);
            index.ready = indexes.boolean(row, 7);
            desired.indexes.push_back(std::move(index));
        }
        if (!indexes.is_null(row, 8)) desired.indexes.back().scope.push_back(indexes.text(row, 8));
    }
    const Rows dropped =
        connection_.query("SELECT name, shard FROM interlock.dropped_index ORDER BY name");
    for (int row = 0; row < dropped.size(); ++row) {
        const auto database = shard_at.find(dropped.int32(row, 1));
        if (database == shard_at.end())
            throw ApplyRefusal({"dropped index \"" + dropped.text(row, 0) +
                                    "\" refers to a database that does not exist",
                                {},
                                "Delete the row from interlock.dropped_index."});
        desired.dropped_indexes.push_back(
            {dropped.text(row, 0), static_cast<std::int32_t>(database->second)});
    }
}

void CatalogSession::read_moves(DesiredState &desired) {
    const auto shard_at = positions(desired.shards);
    const auto keyspace_at = positions(desired.keyspaces);
    const Rows moves = connection_.query(
        "SELECT m.id, m.keyspace, m.from_shard, m.to_shard, b.bucket "
        "FROM interlock.move m CROSS JOIN LATERAL pg_catalog.unnest(m.buckets) b(bucket) "
        "WHERE m.finished IS NULL ORDER BY m.began, m.id, b.bucket");
    for (int row = 0; row < moves.size(); ++row) {
        if (desired.moves.empty() || desired.moves.back().id != moves.text(row, 0))
            desired.moves.push_back({moves.text(row, 0),
                                     keyspace_at.at(moves.int32(row, 1)),
                                     {},
                                     static_cast<std::int32_t>(shard_at.at(moves.int32(row, 2))),
                                     static_cast<std::int32_t>(shard_at.at(moves.int32(row, 3)))});
        desired.moves.back().buckets.push_back(moves.int32(row, 4));
    }
}

void CatalogSession::commit() {
    if (!committed_) transaction_->commit();
    committed_ = true;
}

void CatalogSession::forget_index(const std::string &name) {
    connection_.query("DELETE FROM interlock.dropped_index WHERE name = $1",
                      {Param::of_text(name)});
}

std::vector<CursorKey> CatalogSession::read_cursor_keys() {
    return cursor_keys_of(connection_, true);
}

std::vector<CursorKey> CatalogSession::make_cursor_key() {
    // In a transaction of its own: where the catalog is in a shard's database, keysets are declared
    // there while ours is still open. A key that no shard has yet does no harm.
    ControlConnection another(conninfo_, "interlock apply", timeouts_.query);
    another.query("SELECT interlock.ensure_cursor_key()");
    return cursor_keys_of(another, true);
}

bool CatalogSession::declarations_changed() {
    return connection_.query("SELECT interlock.declarations_changed()").boolean(0, 0);
}

void CatalogSession::record_columns(std::int32_t table_id, const std::vector<ColumnInfo> &columns) {
    std::vector<std::string> names, types;
    std::vector<std::uint32_t> oids;
    std::vector<bool> not_null;
    for (const ColumnInfo &column : columns) {
        names.push_back(column.name);
        types.push_back(column.type_name);
        oids.push_back(column.type_oid);
        not_null.push_back(column.not_null);
    }
    connection_.query("DELETE FROM interlock.table_column WHERE table_id = $1",
                      {Param::of_int4(table_id)});
    connection_.query(
        "INSERT INTO interlock.table_column (table_id, ordinal, name, type_oid, type_name, "
        "not_null) "
        "SELECT $1, c.ordinal, c.name, c.type_oid, c.type_name, c.not_null "
        "FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), "
        "  pg_catalog.unnest($5)) WITH ORDINALITY "
        "  AS c(name, type_oid, type_name, not_null, ordinal)",
        {Param::of_int4(table_id), Param::of_text_array(names), Param::of_oid_array(oids),
         Param::of_text_array(types), Param::of_bool_array(not_null)});
}

void CatalogSession::publish(std::int32_t version) {
    // 65,536 buckets of each keyspace may change hands in it.
    const Rows published = connection_.query_within(
        timeouts_.scan,
        "SELECT interlock.publish(note => $1, expected_version => $2, allow_owner_change => true)",
        {Param::of_text("interlock apply"), Param::of_int4(version)});
    if (published.int32(0, 0) != version)
        throw ControlError("55000", "route version " + published.text(0, 0) +
                                        " was published where " + std::to_string(version) +
                                        " was expected");
}

}  // namespace interlock
