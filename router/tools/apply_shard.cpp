// Reading a shard's state.
#include "tools/apply_shard.h"

#include "tools/apply_cursor_keys.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace interlock {

namespace {

std::string quoted(const std::string &name) {
    return "\"" + name + "\"";
}

BucketOwnership ownership(std::string_view state) {
    if (state == "owned") return BucketOwnership::owned;
    if (state == "moved") return BucketOwnership::moved;
    if (state == "fenced") return BucketOwnership::fenced;
    if (state == "importing") return BucketOwnership::importing;
    throw ControlError("XX000", "unknown state of a bucket: \"" + std::string(state) + "\"");
}

std::string server_words(const ControlError &error) {
    return error.detail.empty() ? std::string(error.what())
                                : std::string(error.what()) + " (" + error.detail + ")";
}

}  // namespace

ShardSession::ShardSession(const DesiredState &desired, std::size_t shard,
                           const ApplyTimeouts &timeouts)
    : desired_(desired), shard_(shard), self_(desired.shards[shard]), timeouts_(timeouts) {}

ShardState ShardSession::read() {
    ShardState state;
    state.keyspaces.resize(desired_.keyspaces.size());
    state.tables.resize(desired_.tables.size());
    state.indexes.resize(desired_.indexes.size());
    state.index_tables.resize(desired_.indexes.size());
    state.dropped_indexes.resize(desired_.dropped_indexes.size());
    try {
        connection_ =
            std::make_unique<ControlConnection>(self_.conninfo, "interlock apply", timeouts_.query);
    } catch (const ControlError &error) {
        state.findings.push_back({"could not connect to " + self_.called() + ": " + error.what(),
                                  error.detail,
                                  "Nothing is applied unless every shard can be reached."});
        return state;
    }
    try {
        read_instance(state);
        if (!state.findings.empty()) return state;
        begin_checks(state);
        if (!state.findings.empty()) return state;
        read_identity(state);
        if (!self_.index_only) {
            read_keyspaces(state);
            read_tables(state);
            state.keysets = keysets_of(*connection_);
        }
        state.cursor_keys = cursor_keys_of(*connection_, false);
        read_dropped_indexes(state);
        check_rights(state);
        state.known = true;
    } catch (const ControlError &error) {
        state.findings.push_back(
            {"could not read the state of " + self_.called() + ": " + error.what(), error.detail,
             error.hint});
        checks_.reset();
    }
    return state;
}

void ShardSession::read_instance(ShardState &state) {
    connection_->query("SELECT pg_catalog.set_config('lock_timeout', $1, false)",
                       {Param::of_text(std::to_string(timeouts_.lock))});
    state.instance = read_instance_name(*connection_);
    const Rows rows = connection_->query(
        "SELECT pg_catalog.pg_encoding_to_char(d.encoding), pg_catalog.pg_is_in_recovery(), "
        "  pg_catalog.current_setting('is_superuser') = 'on', d.datname, "
        "  (SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'interlock'), "
        "  EXISTS (SELECT FROM pg_catalog.pg_available_extension_versions v "
        "          WHERE v.name = 'interlock' AND v.version = $1) "
        "FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()",
        {Param::of_text(INTERLOCK_VERSION)});
    state.encoding = rows.text(0, 0);
    const std::string shard = self_.called();
    const std::string database = "database " + quoted(rows.text(0, 3));
    if (rows.boolean(0, 1))
        state.findings.push_back({"the connection string of " + shard + " leads to a standby",
                                  {},
                                  "Name the primary, or several hosts and "
                                  "target_session_attrs=primary."});
    state.has_extension = !rows.is_null(0, 4);
    if (state.has_extension) {
        if (rows.view(0, 4) != INTERLOCK_VERSION)
            state.findings.push_back({shard + " has version " + rows.text(0, 4) +
                                          " of the extension interlock, not " INTERLOCK_VERSION,
                                      {},
                                      "As a superuser, run in " + database +
                                          ": ALTER EXTENSION interlock UPDATE TO '" +
                                          INTERLOCK_VERSION + "';"});
    } else if (!rows.boolean(0, 5)) {
        state.findings.push_back({shard + " does not have the extension interlock, and version " +
                                      INTERLOCK_VERSION + " is not installed on its server",
                                  {},
                                  "Install it on that server (make install) first."});
    } else if (!rows.boolean(0, 2)) {
        state.findings.push_back(
            {shard + " does not have the extension interlock, and only a "
                     "superuser may create it",
             {},
             "As a superuser, run in " + database + ": CREATE EXTENSION interlock;"});
    }
}

void ShardSession::begin_checks(ShardState &state) {
    if (state.has_extension) {
        checks_ = std::make_unique<ControlTransaction>(*connection_,
                                                       "ISOLATION LEVEL REPEATABLE READ READ ONLY");
        return;
    }
    checks_ = std::make_unique<ControlTransaction>(*connection_);
    try {
        connection_->execute("CREATE EXTENSION interlock VERSION '" INTERLOCK_VERSION "'");
    } catch (const ControlError &error) {
        checks_.reset();
        state.findings.push_back(
            {"could not create the extension interlock on " + self_.called() + ": " + error.what(),
             error.detail, error.hint});
    }
}

void ShardSession::read_identity(ShardState &state) {
    const Rows rows = connection_->query(
        "SELECT i.cluster_id, i.shard_name, i.floor, g.restored FROM interlock.shard_identity i, "
        "interlock.greet(0) g");
    state.has_identity = !rows.empty();
    if (!state.has_identity) return;
    state.cluster_id = rows.text(0, 0);
    state.shard_name = rows.text(0, 1);
    state.floor = rows.int32(0, 2);
    state.restored = rows.boolean(0, 3);
}

void ShardSession::read_keyspaces(ShardState &state) {
    std::unordered_map<std::string, std::size_t> position;
    for (std::size_t k = 0; k < desired_.keyspaces.size(); ++k)
        position.emplace(desired_.keyspaces[k].name, k);

    const Rows keyspaces = connection_->query(
        "SELECT name, key_type, hash, buckets FROM interlock.local_keyspace ORDER BY name");
    for (int row = 0; row < keyspaces.size(); ++row) {
        const auto found = position.find(keyspaces.text(row, 0));
        if (found == position.end()) {
            state.other_keyspaces.push_back(keyspaces.text(row, 0));
            continue;
        }
        LocalKeyspace &keyspace = state.keyspaces[found->second];
        keyspace.known = true;
        keyspace.key_type = keyspaces.text(row, 1);
        keyspace.hash = keyspaces.text(row, 2);
        keyspace.buckets = keyspaces.int32(row, 3);
    }
    for (std::size_t k = 0; k < desired_.keyspaces.size(); ++k) {
        const Rows buckets = connection_->query(
            "SELECT bucket, state, route_version, peer FROM interlock.bucket_state "
            "WHERE keyspace = $1",
            {Param::of_text(desired_.keyspaces[k].name)});
        std::vector<BucketRow> &rows = state.keyspaces[k].rows;
        rows.reserve(static_cast<std::size_t>(buckets.size()));
        for (int row = 0; row < buckets.size(); ++row)
            rows.push_back({buckets.int32(row, 0), ownership(buckets.view(row, 1)),
                            buckets.is_null(row, 2) ? 0 : buckets.int32(row, 2),
                            buckets.text(row, 3)});
    }
    const Rows moving = connection_->query("SELECT pg_catalog.unnest(interlock.on_the_move())");
    for (int row = 0; row < moving.size(); ++row)
        if (const auto found = position.find(moving.text(row, 0)); found != position.end())
            state.keyspaces[found->second].on_the_move = true;
}

void ShardSession::read_tables(ShardState &state) {
    std::vector<std::string> names, keys;
    for (const DesiredTable &table : desired_.tables) {
        names.push_back(table.name);
        keys.push_back(table.key_column);
    }
    const Rows rows = connection_->query(
        "SELECT c.oid, c.relkind IN ('r', 'p'), pg_catalog.pg_has_role(c.relowner, 'USAGE'), "
        "  k.attnum IS NOT NULL, COALESCE(k.attgenerated <> '', false), "
        "  COALESCE(NOT l.collisdeterministic, false), "
        "  EXISTS (SELECT FROM interlock.family_tree(c.oid) f "
        "          JOIN pg_catalog.pg_class m ON m.oid = f.relid WHERE m.relkind = 'f') "
        "FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY "
        "    AS want(name, key, n) "
        "  LEFT JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(want.name) "
        "  LEFT JOIN pg_catalog.pg_attribute k ON k.attrelid = c.oid AND k.attname = want.key "
        "    AND k.attnum > 0 AND NOT k.attisdropped "
        "  LEFT JOIN pg_catalog.pg_collation l ON l.oid = k.attcollation "
        "ORDER BY want.n",
        {Param::of_text_array(names), Param::of_text_array(keys)});
    std::vector<std::uint32_t> relations(state.tables.size(), 0);
    for (int row = 0; row < rows.size(); ++row) {
        TableState &table = state.tables[static_cast<std::size_t>(row)];
        table.exists = !rows.is_null(row, 0);
        if (!table.exists) continue;
        relations[static_cast<std::size_t>(row)] = rows.oid(row, 0);
        table.ordinary = rows.boolean(row, 1);
        table.may_alter = rows.boolean(row, 2);
        table.key_found = rows.boolean(row, 3);
        table.key_generated = rows.boolean(row, 4);
        table.key_nondeterministic = rows.boolean(row, 5);
        table.has_foreign_child = rows.boolean(row, 6);
    }
    read_columns(state, relations);
    read_guards(state, relations);
}

void ShardSession::read_columns(ShardState &state, const std::vector<std::uint32_t> &relations) {
    // A domain counts as what it is made of, however many domains lie between.
    const Rows rows =
        connection_->query("WITH RECURSIVE wanted AS ("
                           "  SELECT want.n, a.attnum, a.attname, a.attnotnull, a.atttypid, "
                           "    pg_catalog.format_type(a.atttypid, a.atttypmod) AS type_name "
                           "  FROM pg_catalog.unnest($1) WITH ORDINALITY AS want(relid, n) "
                           "    JOIN pg_catalog.pg_attribute a ON a.attrelid = want.relid "
                           "  WHERE a.attnum > 0 AND NOT a.attisdropped), "
                           "base(type, step) AS ("
                           "  SELECT DISTINCT atttypid, atttypid FROM wanted "
                           "  UNION SELECT b.type, t.typbasetype FROM base b "
                           "    JOIN pg_catalog.pg_type t ON t.oid = b.step WHERE t.typtype = 'd') "
                           "SELECT w.n, w.attname, w.type_name, b.step, w.attnotnull FROM wanted w "
                           "  JOIN base b ON b.type = w.atttypid "
                           "  JOIN pg_catalog.pg_type t ON t.oid = b.step AND t.typtype <> 'd' "
                           "ORDER BY w.n, w.attnum",
                           {Param::of_oid_array(relations)});
    for (int row = 0; row < rows.size(); ++row)
        state.tables[static_cast<std::size_t>(rows.int32(row, 0) - 1)].columns.push_back(
            {rows.text(row, 1), rows.text(row, 2), rows.oid(row, 3), rows.boolean(row, 4)});
}

void ShardSession::read_guards(ShardState &state, const std::vector<std::uint32_t> &relations) {
    std::map<std::uint32_t, std::size_t> position;
    for (std::size_t t = 0; t < relations.size(); ++t)
        if (relations[t] != 0) position.emplace(relations[t], t);
    const Rows guarded = connection_->query(
        "SELECT g.relid::pg_catalog.oid, g.keyspace, g.key_column, g.relid::pg_catalog.text "
        "FROM interlock.guarded_table g ORDER BY 4");
    for (int row = 0; row < guarded.size(); ++row) {
        const auto found = position.find(guarded.oid(row, 0));
        if (found == position.end()) {
            state.other_tables.push_back(guarded.text(row, 3));
            continue;
        }
        TableState &table = state.tables[found->second];
        table.guarded = true;
        table.guarded_keyspace = guarded.text(row, 1);
        table.guarded_key = guarded.text(row, 2);
    }

    const Rows problems = connection_->query(
        "SELECT g.relid::pg_catalog.oid, p.relation::pg_catalog.text || ': ' || p.problem, "
        "  p.problem LIKE 'trigger % is missing' OR p.problem LIKE 'trigger % is not ENABLE "
        "ALWAYS' "
        "FROM interlock.check_guards() p JOIN interlock.guarded_table g "
        "  ON p.relation IN (SELECT f.relid FROM interlock.family_tree(g.relid) f)");
    for (int row = 0; row < problems.size(); ++row) {
        const auto found = position.find(problems.oid(row, 0));
        if (found == position.end()) continue;  // not declared: warned of as such
        TableState &table = state.tables[found->second];
        if (problems.boolean(row, 2))
            table.guard_incomplete = true;
        else
            table.guard_problems.push_back(problems.text(row, 1));
    }
    read_ancestors(state, relations, position);
}

void ShardSession::read_ancestors(ShardState &state, const std::vector<std::uint32_t> &relations,
                                  const std::map<std::uint32_t, std::size_t> &position) {
    // The farthest comes last: the guard is attached at the top.
    const Rows rows = connection_->query(
        "WITH RECURSIVE line(start, relid, depth) AS ("
        "  SELECT r, r, 0 FROM pg_catalog.unnest($1) r WHERE r <> 0 "
        "  UNION SELECT line.start, i.inhparent, line.depth + 1 "
        "    FROM line JOIN pg_catalog.pg_inherits i ON i.inhrelid = line.relid) "
        "SELECT line.start, line.relid, g.keyspace, g.key_column, "
        "  line.relid::pg_catalog.regclass::pg_catalog.text "
        "FROM line LEFT JOIN interlock.guarded_table g ON g.relid = line.relid "
        "WHERE line.depth > 0 ORDER BY line.start, line.depth",
        {Param::of_oid_array(relations)});
    for (int row = 0; row < rows.size(); ++row) {
        TableState &table = state.tables[position.at(rows.oid(row, 0))];
        const auto declared = position.find(rows.oid(row, 1));
        if (declared != position.end()) {
            const DesiredTable &ancestor = desired_.tables[declared->second];
            table.has_ancestor = true;
            table.ancestor = ancestor.name;
            table.ancestor_keyspace = desired_.keyspaces[ancestor.keyspace].name;
            table.ancestor_key = ancestor.key_column;
        } else if (!rows.is_null(row, 2)) {
            table.has_ancestor = true;
            table.ancestor = rows.text(row, 4);
            table.ancestor_keyspace = rows.text(row, 2);
            table.ancestor_key = rows.text(row, 3);
        }
    }
}

void ShardSession::check_rights(ShardState &state) {
    const Rows rows = connection_->query(
        "SELECT pg_catalog.string_agg(p.proname, ', ' ORDER BY p.proname), CURRENT_USER "
        "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = 'interlock' AND p.proname IN ('set_identity', 'raise_floor', "
        "    'define_keyspace', 'shard_table', 'accept_buckets', 'release_buckets', 'bucket_rows', "
        "'keyset_create', "
        "    'keyset_drop', 'outbox_attach', 'outbox_detach', 'outbox_drop_stream', "
        "    'index_define', 'index_remove', 'index_readers') "
        "  AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE') HAVING count(*) > 0");
    if (!rows.empty())
        state.findings.push_back({"user " + quoted(rows.text(0, 1)) + " may not execute " +
                                      rows.text(0, 0) + " of schema interlock on " + self_.called(),
                                  {},
                                  "Put the owner of the extension or a superuser into its "
                                  "connection string."});
}

void ShardSession::check_rows(const ShardState &state, const std::vector<OwnershipChange> &changes,
                              std::vector<Finding> &problems) {
    if (self_.index_only) return;
    try {
        for (std::size_t t = 0; t < desired_.tables.size(); ++t)
            if (!state.tables[t].guarded && !state.tables[t].has_ancestor)
                check_new_table(state.tables[t], desired_.tables[t], problems);
        for (std::size_t k = 0; k < changes.size(); ++k)
            for (const auto &[shards, buckets] : changes[k].move)
                if (shards.first == static_cast<std::int32_t>(shard_) && state.keyspaces[k].known)
                    check_released(k, buckets, problems);
    } catch (const ControlError &error) {
        problems.push_back({"could not look at the rows of shard " + quoted(self_.name) + ": " +
                                server_words(error),
                            {},
                            error.hint});
    }
}

void ShardSession::end_checks() {
    try {
        checks_.reset();
    } catch (...) {  // NOLINT: a rollback never throws; the destructor says so
    }
}

}  // namespace interlock
