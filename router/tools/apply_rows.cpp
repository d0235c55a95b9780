// Counting the rows that stand in the way of a plan, and carrying its steps out on a shard.
#include "tools/apply_shard.h"

#include <algorithm>

#include "tools/apply_cursor_keys.h"
#include "tools/bucket_set.h"

namespace interlock {

namespace {

std::string rows_phrase(std::int64_t rows) {
    return std::to_string(rows) + (rows == 1 ? " row" : " rows");
}

}  // namespace

void ShardSession::check_new_table(const TableState &state, const DesiredTable &table,
                                   std::vector<Finding> &problems) {
    const DesiredKeyspace &keyspace = desired_.keyspaces[table.keyspace];
    if (!state.exists || !state.ordinary || !state.key_found) return;  // reported elsewhere
    // The table's name and column were quoted by the server; everything else is a parameter.
    const Rows rows = connection_->query_within(
        timeouts_.scan,
        "SELECT bucket, pg_catalog.count(*) FROM ("
        "  SELECT ((interlock.hash_key(t." +
            table.key_sql +
            ") % $1::pg_catalog.int8 "
            "    + $1::pg_catalog.int8) % $1::pg_catalog.int8)::pg_catalog.int4 AS bucket "
            "  FROM " +
            table.name + " t) AS keys GROUP BY bucket ORDER BY bucket",
        {Param::of_int8(keyspace.buckets)});
    const std::vector<bool> owned = owned_afterwards(keyspace, static_cast<std::int32_t>(shard_));
    std::vector<std::int32_t> buckets;
    std::int64_t misplaced = 0;
    for (int row = 0; row < rows.size(); ++row) {
        if (rows.is_null(row, 0) || owned[static_cast<std::size_t>(rows.int32(row, 0))]) continue;
        buckets.push_back(rows.int32(row, 0));
        misplaced += rows.int64(row, 1);
    }
    if (misplaced > 0)
        problems.push_back(
            {"table " + table.name + " has " + rows_phrase(misplaced) + " on shard \"" +
                 self_.name + "\" that do not belong there",
             "They are in " + buckets_phrase(buckets) + " of keyspace \"" + keyspace.name +
                 "\", assigned to other shards.",
             "Move them to their shards, or assign the buckets to the shard that has the rows."});
}

void ShardSession::check_released(std::size_t keyspace, const std::vector<std::int32_t> &buckets,
                                  std::vector<Finding> &problems) {
    const Rows rows = connection_->query_within(
        timeouts_.scan,
        "SELECT relation::pg_catalog.text, bucket, rows FROM interlock.bucket_rows($1, $2) "
        "WHERE rows > 0 ORDER BY 1, 2",
        {Param::of_text(desired_.keyspaces[keyspace].name), Param::of_int4_array(buckets)});
    if (rows.empty()) return;
    std::vector<std::int32_t> filled;
    std::string detail;
    for (int row = 0; row < rows.size();) {
        const std::string relation = rows.text(row, 0);
        std::int64_t count = 0;
        std::vector<std::int32_t> here;
        for (; row < rows.size() && rows.view(row, 0) == relation; ++row) {
            count += rows.int64(row, 2);
            here.push_back(rows.int32(row, 1));
        }
        detail += (detail.empty() ? "" : " ") + std::string("Table ") + relation + " has " +
                  rows_phrase(count) + " in " + buckets_phrase(here) + ".";
        filled.insert(filled.end(), here.begin(), here.end());
    }
    std::sort(filled.begin(), filled.end());
    filled.erase(std::unique(filled.begin(), filled.end()), filled.end());
    const bool one = filled.size() == 1;
    problems.push_back(
        {buckets_phrase(filled) + " of keyspace \"" + desired_.keyspaces[keyspace].name +
             "\" cannot be taken away from shard \"" + self_.name +
             "\": " + (one ? "it is" : "they are") + " not empty",
         detail,
         "\"interlock apply\" changes the owner of empty buckets only. Assign " +
             std::string(one ? "it" : "them") + " to \"" + self_.name + "\" again."});
}

void ShardSession::carry_out(const Action &action) {
    ControlTransaction transaction(*connection_);
    if (carry_out_index(action)) return transaction.commit();
    const auto keyspace_name = [&] {
        return Param::of_text(desired_.keyspaces[action.keyspace].name);
    };
    switch (action.kind) {
    case ActionKind::create_extension:
        connection_->execute("CREATE EXTENSION interlock VERSION '" INTERLOCK_VERSION "'");
        break;
    case ActionKind::set_identity:
        connection_->query("SELECT interlock.set_identity($1, $2)",
                           {Param::of_uuid(desired_.cluster_id), Param::of_text(self_.name)});
        break;
    case ActionKind::raise_floor:
        connection_->query("SELECT interlock.raise_floor($1)", {Param::of_int4(action.version)});
        break;
    case ActionKind::define_keyspace: {
        const DesiredKeyspace &keyspace = desired_.keyspaces[action.keyspace];
        connection_->query("SELECT interlock.define_keyspace($1, $2, $3, $4)",
                           {keyspace_name(), Param::of_text(keyspace.key_type),
                            Param::of_text(keyspace.hash), Param::of_int4(keyspace.buckets)});
        break;
    }
    case ActionKind::accept_buckets:
        connection_->query_within(timeouts_.scan, "SELECT interlock.accept_buckets($1, $2, $3)",
                                  {keyspace_name(), Param::of_int4_array(action.buckets),
                                   Param::of_int4(action.version)});
        break;
    case ActionKind::release_buckets:
        connection_->query_within(
            timeouts_.scan, "SELECT interlock.release_buckets($1, $2, $3, $4)",
            {keyspace_name(), Param::of_int4_array(action.buckets),
             Param::of_text(desired_.shards[static_cast<std::size_t>(action.to_shard)].name),
             Param::of_int4(action.version)});
        break;
    case ActionKind::guard_table: {
        const DesiredTable &table = desired_.tables[action.table];
        connection_->query_within(
            timeouts_.scan, "SELECT interlock.shard_table(pg_catalog.to_regclass($1), $2, $3)",
            {Param::of_text(table.name), Param::of_text(desired_.keyspaces[table.keyspace].name),
             Param::of_name(table.key_column)});
        break;
    }
    case ActionKind::take_cursor_keys: put_cursor_keys(*connection_, desired_.cursor_keys); break;
    default: throw ControlError("XX000", "not a step of a shard: " + action.text);
    }
    transaction.commit();
}

std::string ShardSession::lock_holders(const Action &action) {
    std::vector<std::string> tables;
    switch (action.kind) {
    case ActionKind::guard_table: tables.push_back(desired_.tables[action.table].name); break;
    case ActionKind::attach_index:
        tables.push_back(desired_.tables[desired_.indexes[action.index].table].name);
        break;
    case ActionKind::detach_index: tables = action.tables; break;
    case ActionKind::release_buckets:
        for (const DesiredTable &table : desired_.tables)
            if (table.keyspace == action.keyspace) tables.push_back(table.name);
        break;
    default: break;
    }
    if (tables.empty()) return {};
    try {
        // Prepared transactions have no backend, but a name.
        const Rows rows = connection_->query(
            "WITH RECURSIVE relation(oid) AS ("
            "  SELECT pg_catalog.to_regclass(name)::pg_catalog.oid FROM pg_catalog.unnest($1) name "
            "  UNION SELECT i.inhrelid FROM relation r "
            "    JOIN pg_catalog.pg_inherits i ON i.inhparent = r.oid), "
            "holder AS (SELECT DISTINCT l.pid, l.virtualtransaction FROM pg_catalog.pg_locks l "
            "  JOIN relation r ON l.relation = r.oid "
            "  WHERE l.locktype = 'relation' AND l.granted "
            "    AND l.database = (SELECT oid FROM pg_catalog.pg_database "
            "                      WHERE datname = pg_catalog.current_database()) "
            "    AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()) "
            "SELECT pg_catalog.string_agg(CASE WHEN h.pid IS NULL "
            "    THEN 'prepared transaction ' || COALESCE(pg_catalog.quote_literal(p.gid), '?') "
            "    ELSE pg_catalog.concat('process ', h.pid, ' (', a.usename, ', ', "
            "      NULLIF(a.application_name, '') || ', ', a.state, ' since ', "
            "      pg_catalog.date_trunc('second', a.state_change), ')') END, '; ') "
            "FROM (SELECT * FROM holder LIMIT 5) h "
            "  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid "
            "  LEFT JOIN pg_catalog.pg_prepared_xacts p "
            "    ON h.virtualtransaction = '-1/' || p.transaction::pg_catalog.text",
            {Param::of_text_array(tables)});
        return rows.is_null(0, 0) ? std::string() : "Locks are held by " + rows.text(0, 0) + ".";
    } catch (const ControlError &) {
        return {};
    }
}

}  // namespace interlock
