// Global indexes as one database has them: trying what they need, and the steps that make them.
#include "tools/apply_index.h"
#include "tools/apply_shard.h"

#include <algorithm>

namespace interlock {

namespace {

using Names = std::vector<std::string>;

Names names_of(const Rows &rows) {
    Names names;
    for (int row = 0; row < rows.size(); ++row)
        names.push_back(rows.text(row, 0));
    return names;
}

constexpr const char *keyset_query =
    "SELECT digest, pg_catalog.format('at most %s rows, %s unless told', max_page, default_page) "
    "FROM interlock.keysets WHERE name = $1";

/// Takes back what was tried since, whatever came of it.
class Attempt {
  public:
    explicit Attempt(ControlConnection &connection) : connection_(connection) {
        connection_.execute("SAVEPOINT attempt");
    }
    ~Attempt() { connection_.rollback_to("attempt"); }
    Attempt(const Attempt &) = delete;
    Attempt &operator=(const Attempt &) = delete;

  private:
    ControlConnection &connection_;
};

Param columns_part(const std::vector<IndexColumnInfo> &columns,
                   std::string (*part)(const IndexColumnInfo &)) {
    Names values;
    for (const IndexColumnInfo &column : columns)
        values.push_back(part(column));
    return Param::of_text_array(values);
}

}  // namespace

void ShardSession::read_dropped_indexes(ShardState &state) {
    for (std::size_t i = 0; i < desired_.dropped_indexes.size(); ++i) {
        DroppedState &dropped = state.dropped_indexes[i];
        const Param name = Param::of_text(desired_.dropped_indexes[i].name);
        dropped.defined =
            !connection_->query("SELECT 1 FROM interlock.local_index WHERE name = $1", {name})
                 .empty();
        dropped.has_stream =
            !connection_->query("SELECT 1 FROM interlock.outbox_stream WHERE name = $1", {name})
                 .empty();
        dropped.tables = names_of(connection_->query(
            "SELECT relid::pg_catalog.text FROM interlock.outbox_table WHERE stream = $1 "
            "ORDER BY 1",
            {name}));
    }
}

void ShardSession::begin_trial(const ShardState &state) {
    checks_ = std::make_unique<ControlTransaction>(*connection_);
    if (!state.has_extension)
        connection_->execute("CREATE EXTENSION interlock VERSION '" INTERLOCK_VERSION "'");
}

void ShardSession::try_indexes(ShardState &state, std::vector<Finding> &problems) {
    if (self_.index_only || desired_.indexes.empty()) return;
    try {
        end_checks();
        begin_trial(state);
        for (std::size_t i = 0; i < desired_.indexes.size(); ++i) {
            const DesiredIndex &index = desired_.indexes[i];
            const TableState &table = state.tables[index.table];
            // What is wrong with the table itself is reported elsewhere.
            if (!table.exists || !table.ordinary || !table.may_alter) continue;
            const Attempt attempt(*connection_);
            try {
                try_index(index, state.indexes[i], problems);
            } catch (const ControlError &error) {
                if (connection_->broken()) throw;
                problems.push_back({"index \"" + index.name + "\" cannot be made of table " +
                                        desired_.tables[index.table].name + " on " +
                                        self_.called() + ": " + error.what(),
                                    error.detail, error.hint});
            }
        }
    } catch (const ControlError &error) {
        problems.push_back({"could not try the indexes on " + self_.called() + ": " + error.what(),
                            error.detail, error.hint});
    }
    end_checks();
}

void ShardSession::try_index(const DesiredIndex &index, IndexOnShard &here,
                             std::vector<Finding> &problems) {
    const DesiredTable &table = desired_.tables[index.table];
    const Param name = Param::of_text(index.name), relation = Param::of_text(table.name);
    Rows keyset = connection_->query(keyset_query, {name});
    here.has_keyset = !keyset.empty();
    if (here.has_keyset) {
        here.keyset_digest = keyset.text(0, 0);
        here.keyset_limits = keyset.text(0, 1);
    }
    declare_keyset(index, here.has_keyset);
    keyset = connection_->query(keyset_query, {name});
    here.shape.digest = keyset.text(0, 0);
    here.wanted_limits = keyset.text(0, 1);
    here.shape.recorded = names_of(connection_->query(
        "SELECT c.name FROM interlock.keyset k "
        "CROSS JOIN LATERAL pg_catalog.unnest(k.scope || k.columns) WITH ORDINALITY c(name, n) "
        "WHERE k.name = $1 ORDER BY c.n",
        {name}));

    here.shape.key = names_of(connection_->query(
        "SELECT a.attname FROM pg_catalog.pg_index x "
        "CROSS JOIN LATERAL pg_catalog.unnest(x.indkey::pg_catalog.int2[]) WITH ORDINALITY "
        "  k(number, n) "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number "
        "WHERE x.indrelid = pg_catalog.to_regclass($1) AND x.indisprimary "
        "  AND k.n <= x.indnkeyatts ORDER BY k.n",
        {relation}));
    if (here.shape.key.empty()) {
        problems.push_back({"index \"" + index.name + "\" cannot be made of table " + table.name +
                                " on " + self_.called() + ": it has no primary key",
                            "Entries are found again by the key of their row.",
                            "Give the table a primary key on every shard."});
        return;
    }
    if (std::find(here.shape.key.begin(), here.shape.key.end(), table.key_column) ==
        here.shape.key.end())
        here.shape.key.push_back(table.key_column);
    connection_->query("SELECT interlock.outbox_check_columns(pg_catalog.to_regclass($1), $2, $3)",
                       {relation, Param::of_text_array(here.shape.recorded),
                        Param::of_text_array(here.shape.key)});

    Names all = here.shape.recorded;
    for (const std::string &column : here.shape.key)
        if (std::find(all.begin(), all.end(), column) == all.end()) all.push_back(column);
    const Rows columns = connection_->query(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), "
        "  pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.collname), "
        "  a.attnotnull "
        "FROM pg_catalog.unnest($2) WITH ORDINALITY want(name, n) "
        "JOIN pg_catalog.pg_attribute a ON a.attname = want.name AND a.attnum > 0 "
        "LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation "
        "LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace "
        "WHERE a.attrelid = pg_catalog.to_regclass($1) ORDER BY want.n",
        {relation, Param::of_text_array(all)});
    for (int row = 0; row < columns.size(); ++row)
        here.shape.columns.push_back({columns.text(row, 0), columns.text(row, 1),
                                      columns.text(row, 2), columns.boolean(row, 3)});
    read_stream(name, relation, here);
    read_readers(relation, here);
    here.judged = true;
}

void ShardSession::declare_keyset(const DesiredIndex &index, bool replace) {
    // It would warn where no index serves the order; pages come from the global index.
    connection_->execute("SET LOCAL client_min_messages = error");
    const Param name = Param::of_text(index.name);
    if (replace) connection_->query("SELECT interlock.keyset_drop($1)", {name});
    connection_->query(
        "SELECT interlock.keyset_create($1, pg_catalog.to_regclass($2), $3, $4, $5, $6, "
        "scatter => true)",
        {name, Param::of_text(desired_.tables[index.table].name), Param::of_text_array(index.scope),
         Param::of_text(index.order), Param::of_int4(index.max_page),
         Param::of_int4(index.default_page)});
}

void ShardSession::read_stream(const Param &stream, const Param &relation, IndexOnShard &here) {
    here.others = names_of(connection_->query(
        "SELECT relid::pg_catalog.text FROM interlock.outbox_table "
        "WHERE stream = $1 AND relid <> pg_catalog.to_regclass($2)::pg_catalog.oid ORDER BY 1",
        {stream, relation}));
    const auto list = [&](const char *column) {
        return names_of(connection_->query(
            std::string("SELECT c.name FROM interlock.outbox_table t "
                        "CROSS JOIN LATERAL pg_catalog.unnest(t.") +
                column +
                ") WITH ORDINALITY c(name, n) WHERE t.stream = $1 "
                "AND t.relid = pg_catalog.to_regclass($2)::pg_catalog.oid ORDER BY c.n",
            {stream, relation}));
    };
    here.attached_key = list("key");
    here.attached = !here.attached_key.empty();
    if (!here.attached) return;
    here.attached_columns = list("columns");
    here.recording_broken =
        !connection_
             ->query("SELECT 1 FROM interlock.outbox_triggers(pg_catalog.to_regclass($2), $1) "
                     "WHERE state IS DISTINCT FROM 'O' LIMIT 1",
                     {stream, relation})
             .empty();
}

void ShardSession::read_readers(const Param &relation, IndexOnShard &here) {
    here.row_security = connection_
                            ->query("SELECT relrowsecurity FROM pg_catalog.pg_class "
                                    "WHERE oid = pg_catalog.to_regclass($1)",
                                    {relation})
                            .boolean(0, 0);
    const Rows roles = connection_->query(
        "SELECT r.rolname, pg_catalog.has_table_privilege(r.oid, pg_catalog.to_regclass($1), "
        "  'SELECT') FROM pg_catalog.pg_roles r "
        "WHERE NOT r.rolsuper AND r.rolname NOT LIKE 'pg\\_%' AND r.rolname <> 'PUBLIC' "
        "UNION ALL SELECT 'PUBLIC', pg_catalog.has_table_privilege('public', "
        "  pg_catalog.to_regclass($1), 'SELECT') ORDER BY 1",
        {relation});
    for (int row = 0; row < roles.size(); ++row) {
        here.readers.roles.push_back(roles.text(row, 0));
        if (roles.boolean(row, 1)) here.readers.may_read.push_back(roles.text(row, 0));
    }
}

void ShardSession::try_index_tables(ShardState &state, std::vector<Finding> &problems) {
    const bool any = std::any_of(
        desired_.indexes.begin(), desired_.indexes.end(), [this](const DesiredIndex &index) {
            return index.database == static_cast<std::int32_t>(shard_) && has_shape(index);
        });
    if (!any) return;
    try {
        end_checks();
        begin_trial(state);
        for (std::size_t i = 0; i < desired_.indexes.size(); ++i) {
            const DesiredIndex &index = desired_.indexes[i];
            if (index.database != static_cast<std::int32_t>(shard_) || !has_shape(index)) continue;
            const Attempt attempt(*connection_);
            try {
                try_index_table(index, state.index_tables[i]);
            } catch (const ControlError &error) {
                if (connection_->broken()) throw;
                problems.push_back({"index \"" + index.name + "\" cannot be made in " +
                                        self_.called() + ": " + error.what(),
                                    error.detail, error.hint});
            }
        }
    } catch (const ControlError &error) {
        problems.push_back({"could not try the indexes in " + self_.called() + ": " + error.what(),
                            error.detail, error.hint});
    }
    end_checks();
}

void ShardSession::try_index_table(const DesiredIndex &index, IndexInDatabase &table) {
    const Param name = Param::of_text(index.name);
    table.defined = !connection_
                         ->query("SELECT 1 FROM interlock.local_index i JOIN pg_catalog.pg_class c "
                                 "ON c.oid = i.relid WHERE i.name = $1",
                                 {name})
                         .empty();
    table.changes = define_index(index);
    table.digest =
        connection_->query(keyset_query, {Param::of_text("interlock_index." + index.name)})
            .text(0, 0);
    table.roles =
        names_of(connection_->query("SELECT rolname FROM pg_catalog.pg_roles "
                                    "WHERE NOT rolsuper AND rolname NOT LIKE 'pg\\_%' AND rolname "
                                    "<> 'PUBLIC' UNION ALL SELECT 'PUBLIC' ORDER BY 1"));
    Names members;
    for (const DesiredShard &shard : desired_.shards)
        members.push_back(shard.name);
    table.former = names_of(connection_->query("SELECT shard FROM interlock.index_progress "
                                               "WHERE index = $1 AND shard <> ALL ($2) ORDER BY 1",
                                               {name, Param::of_text_array(members)}));
    const Rows readers = connection_->query(
        "SELECT COALESCE(r.rolname, 'PUBLIC'), r.oid IS NOT NULL "
        "  AND pg_catalog.has_function_privilege(r.oid, "
        "    'interlock.index_apply(text, text, jsonb)', 'EXECUTE') "
        "FROM interlock.local_index i JOIN pg_catalog.pg_class c ON c.oid = i.relid "
        "CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a "
        "LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee "
        "WHERE i.name = $1 AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner "
        "  AND (a.grantee = 0 OR r.oid IS NOT NULL) ORDER BY 1",
        {name});
    for (int row = 0; row < readers.size(); ++row) {
        table.readers.push_back(readers.text(row, 0));
        if (readers.boolean(row, 1)) table.indexers.push_back(readers.text(row, 0));
    }
}

bool ShardSession::define_index(const DesiredIndex &index) {
    const DesiredTable &table = desired_.tables[index.table];
    const std::vector<IndexColumnInfo> &columns = index.shape.columns;
    std::vector<bool> not_null;
    for (const IndexColumnInfo &column : columns)
        not_null.push_back(column.not_null);
    return connection_
        ->query_within(
            timeouts_.scan,
            "SELECT interlock.index_define($1, $2, (SELECT pg_catalog.jsonb_agg("
            "    pg_catalog.jsonb_build_object('name', c.name, 'type', c.type, "
            "      'collation', NULLIF(c.collname, ''), 'not_null', c.not_null) ORDER BY c.n) "
            "  FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4), "
            "    pg_catalog.unnest($5), pg_catalog.unnest($6)) WITH ORDINALITY "
            "    c(name, type, collname, not_null, n)), $7, $8, $9, $10, $11)",
            {Param::of_text(index.name), Param::of_text(table.name),
             columns_part(columns, [](const IndexColumnInfo &c) { return c.name; }),
             columns_part(columns, [](const IndexColumnInfo &c) { return c.type_name; }),
             columns_part(columns, [](const IndexColumnInfo &c) { return c.collation; }),
             Param::of_bool_array(not_null), Param::of_text_array(index.scope),
             Param::of_text(index.order), Param::of_text_array(index.shape.key),
             Param::of_text(table.key_column), Param::of_int4(index.default_page)})
        .boolean(0, 0);
}

void ShardSession::detach_index(const Param &stream) {
    connection_->query("SELECT interlock.outbox_detach(t.relid, t.stream) FROM "
                       "(SELECT relid, stream FROM interlock.outbox_table WHERE stream = $1) t",
                       {stream});
    connection_->query_within(timeouts_.scan,
                              "SELECT interlock.outbox_drop_stream(s.name, true) FROM "
                              "(SELECT name FROM interlock.outbox_stream WHERE name = $1) s",
                              {stream});
}

bool ShardSession::carry_out_index(const Action &action) {
    switch (action.kind) {
    case ActionKind::remove_index:
        connection_->query("SELECT interlock.index_remove($1)",
                           {Param::of_text(desired_.dropped_indexes[action.index].name)});
        return true;
    case ActionKind::detach_index:
        detach_index(Param::of_text(desired_.dropped_indexes[action.index].name));
        return true;
    case ActionKind::define_index: (void)define_index(desired_.indexes[action.index]); return true;
    case ActionKind::declare_keyset: {
        const DesiredIndex &index = desired_.indexes[action.index];
        const bool replace =
            !connection_->query(keyset_query, {Param::of_text(index.name)}).empty();
        declare_keyset(index, replace);
        return true;
    }
    case ActionKind::attach_index: {
        const DesiredIndex &index = desired_.indexes[action.index];
        connection_->query_within(
            timeouts_.scan,
            "SELECT interlock.outbox_attach(pg_catalog.to_regclass($1), $2, $3, $4)",
            {Param::of_text(desired_.tables[index.table].name),
             Param::of_text_array(index.shape.recorded), Param::of_text(index.name),
             Param::of_text_array(index.shape.key)});
        return true;
    }
    case ActionKind::grant_index:
        connection_->query("SELECT interlock.index_readers($1, $2, $3)",
                           {Param::of_text(desired_.indexes[action.index].name),
                            Param::of_text_array(action.grant),
                            Param::of_text_array(action.revoke)});
        return true;
    case ActionKind::leave_index:
        connection_->query("SELECT interlock.index_leave($1, $2)",
                           {Param::of_text(desired_.indexes[action.index].name),
                            Param::of_text_array(action.former)});
        return true;
    default: return false;
    }
}

}  // namespace interlock
