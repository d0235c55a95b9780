// Reasons to refuse that the shards' states show by themselves, and warnings.
#include "tools/apply_plan.h"

#include <algorithm>
#include <optional>

#include "route/route_table.h"
#include "tools/bucket_set.h"

namespace interlock {

namespace {

std::string quoted(const std::string &name) {
    return "\"" + name + "\"";
}

std::string count_of(std::int64_t number, const std::string &what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

const ColumnInfo *find_column(const std::vector<ColumnInfo> &columns, const std::string &name) {
    const auto found = std::find_if(columns.begin(), columns.end(),
                                    [&](const ColumnInfo &column) { return column.name == name; });
    return found == columns.end() ? nullptr : &*found;
}

void check_identity(const DesiredState &desired, const DesiredShard &shard, const ShardState &state,
                    std::vector<Finding> &problems) {
    if (!state.has_identity) return;
    if (state.cluster_id != desired.cluster_id)
        problems.push_back(
            {"the connection string of " + shard.called() + " leads to a shard of another cluster",
             "That database is shard " + quoted(state.shard_name) + " of cluster " +
                 state.cluster_id + "; this catalog defines cluster " + desired.cluster_id + ".",
             "Correct it with interlock.set_shard_conninfo()."});
    else if (state.shard_name != shard.name)
        problems.push_back({"the connection string of " + shard.called() + " leads to shard " +
                                quoted(state.shard_name),
                            {},
                            "Correct it with interlock.set_shard_conninfo()."});
    else if (state.restored)
        problems.push_back(
            {"the database of " + shard.called() + " is a restored copy that nobody has adopted",
             "Its recorded identity is that of another server or database.",
             "If this copy is to be the shard from now on, run in it: SELECT "
             "interlock.adopt_shard();"});
    else if (state.floor > std::max(desired.version + 1, desired.last_version))
        problems.push_back({shard.called() + " is ahead of the catalog",
                            "It gave buckets away under route version " +
                                std::to_string(state.floor) + "; the catalog's current one is " +
                                std::to_string(desired.version) + ".",
                            "This catalog may be an old copy: restore a newer one."});
    else if (state.floor < shard.min_floor)
        problems.push_back(
            {shard.called() + " does not know any more that it has given buckets away",
             "By the catalog it did so under route version " + std::to_string(shard.min_floor) +
                 ", by its own floor under " + std::to_string(state.floor) +
                 " at the latest: it is an old copy, or a standby that was promoted before it had "
                 "heard of that. Routers refuse it.",
             "Restore a newer copy. If there is none: see to it that it owns no buckets but its "
             "own, then run in it: SELECT interlock.raise_floor(" +
                 std::to_string(shard.min_floor) + ");"});
}

/// Two connection strings to one database would make one shard count as two.
void check_instances(const DesiredState &desired, const std::vector<ShardState> &shards,
                     std::vector<Finding> &problems) {
    std::map<std::string, std::size_t> seen;
    for (std::size_t s = 0; s < shards.size(); ++s) {
        if (!shards[s].known || shards[s].instance.empty()) continue;
        const auto [first, fresh] = seen.emplace(shards[s].instance, s);
        if (!fresh)
            problems.push_back(
                {desired.shards[first->second].called() + " and " + desired.shards[s].called() +
                     " are the same database",
                 {},
                 std::string("Correct one of them with interlock.set_shard_conninfo().") +
                     (desired.shards[first->second].index_only || desired.shards[s].index_only
                          ? " A shard can hold indexes as it is: name it in "
                            "interlock.create_index()."
                          : "")});
    }
}

void check_keyspaces(const DesiredState &desired, const std::string &shard, const ShardState &state,
                     std::vector<Finding> &problems) {
    for (std::size_t k = 0; k < desired.keyspaces.size(); ++k) {
        const DesiredKeyspace &want = desired.keyspaces[k];
        const LocalKeyspace &have = state.keyspaces[k];
        if (!have.known || (have.key_type == want.key_type && have.hash == want.hash &&
                            have.buckets == want.buckets))
            continue;
        const auto describe = [](const std::string &type, const std::string &hash,
                                 std::int32_t buckets) {
            return type + ", " + hash + ", " + count_of(buckets, "bucket");
        };
        problems.push_back(
            {"keyspace " + quoted(want.name) + " is defined differently on shard " + quoted(shard),
             "Catalog: " + describe(want.key_type, want.hash, want.buckets) +
                 ". Shard: " + describe(have.key_type, have.hash, have.buckets) + ".",
             "The key type, hash and number of buckets of a keyspace never change, or its rows "
             "could not be found again. Create another keyspace under another name."});
    }
}

/// Logical replication carries rows and nothing else: the shards refuse DDL on the tables of a
/// keyspace while buckets of it are on the move, and a table that joined it would be left behind.
void check_moving(const DesiredState &desired, const std::string &shard, const ShardState &state,
                  std::vector<Finding> &problems) {
    for (std::size_t t = 0; t < desired.tables.size(); ++t) {
        const DesiredTable &table = desired.tables[t];
        const TableState &have = state.tables[t];
        if (!state.keyspaces[table.keyspace].on_the_move || have.has_ancestor ||
            (have.guarded && !have.guard_incomplete && have.guarded_key == table.key_column))
            continue;
        problems.push_back(
            {"table " + table.name + " cannot be guarded on shard " + quoted(shard) +
                 " while buckets of keyspace " + quoted(desired.keyspaces[table.keyspace].name) +
                 " are on the move",
             "interlock.moves in the catalog shows the moves that are under way.",
             "Run \"interlock apply\" again when they have ended, or have been given up."});
    }
}

/// The hash is taken over UTF-8, but equality on the shard is by the database's own encoding.
void check_encodings(const DesiredState &desired, const std::vector<ShardState> &shards,
                     std::vector<Finding> &problems) {
    const auto text =
        std::find_if(desired.keyspaces.begin(), desired.keyspaces.end(),
                     [](const auto &keyspace) { return keyspace.key_type == "text"; });
    if (text == desired.keyspaces.end()) return;
    std::map<std::string, std::string> shards_by_encoding;
    for (std::size_t s = 0; s < shards.size(); ++s)
        if (shards[s].known && !desired.shards[s].index_only) {
            std::string &list = shards_by_encoding[shards[s].encoding];
            list += (list.empty() ? "" : ", ") + desired.shards[s].name;
        }
    if (shards_by_encoding.size() < 2) return;
    std::string detail;
    for (const auto &[encoding, list] : shards_by_encoding)
        detail += (detail.empty() ? "" : " ") + encoding + ": " + list + ".";
    problems.push_back({"the databases of the shards differ in encoding, and keyspace " +
                            quoted(text->name) + " has text keys",
                        detail, "Use UTF8 on every shard."});
}

void check_key_column(const DesiredState &desired, const DesiredTable &table,
                      const std::string &shard, const TableState &state,
                      std::vector<Finding> &problems) {
    const DesiredKeyspace &keyspace = desired.keyspaces[table.keyspace];
    const std::string where = "table " + table.name + " on shard " + quoted(shard);
    const ColumnInfo *key = find_column(state.columns, table.key_column);
    if (!key) {
        problems.push_back(
            {where + " has no column " + quoted(table.key_column) + ", its declared key", {}, {}});
        return;
    }
    const std::string column = "key column " + quoted(key->name) + " of " + where;
    const auto type = key_type_of_oid(key->type_oid);
    static const std::map<placement::KeyFamily, std::string> family_names{
        {placement::KeyFamily::integer, "bigint"},
        {placement::KeyFamily::uuid, "uuid"},
        {placement::KeyFamily::text, "text"},
        {placement::KeyFamily::bytea, "bytea"}};
    if (!type || family_names.at(family_of(*type)) != keyspace.key_type)
        problems.push_back({column + " is of type " + key->type_name + ", which keyspace " +
                                quoted(keyspace.name) + " (" + keyspace.key_type +
                                ") does not take",
                            {},
                            {}});
    if (!key->not_null)
        problems.push_back({column + " may be null",
                            {},
                            "ALTER TABLE " + table.name + " ALTER COLUMN " + quoted(key->name) +
                                " SET NOT NULL;"});
    if (state.key_generated) problems.push_back({column + " is a generated column", {}, {}});
    if (state.key_nondeterministic)
        problems.push_back({column + " has a nondeterministic collation",
                            "Texts that are equal under it may differ in their bytes, and so in "
                            "their buckets.",
                            {}});
}

/// Returns the difference between two shards' columns of one table in words, or an empty string.
std::string column_difference(const std::string &first_shard, const std::vector<ColumnInfo> &first,
                              const std::string &other_shard,
                              const std::vector<ColumnInfo> &other) {
    std::string text;
    const auto add = [&text](const std::string &sentence) {
        text += (text.empty() ? "" : " ") + sentence;
    };
    for (const ColumnInfo &column : first) {
        const ColumnInfo *twin = find_column(other, column.name);
        if (!twin)
            add("Column " + quoted(column.name) + " is missing on " + other_shard + ".");
        else if (twin->type_name != column.type_name)
            add("Column " + quoted(column.name) + " is " + column.type_name + " on " + first_shard +
                " and " + twin->type_name + " on " + other_shard + ".");
        else if (twin->type_oid != column.type_oid &&
                 (twin->type_oid < oid::first_user || column.type_oid < oid::first_user))
            add("Domain " + column.type_name + " of column " + quoted(column.name) +
                " has another base type on " + first_shard + " than on " + other_shard + ".");
    }
    for (const ColumnInfo &column : other)
        if (!find_column(first, column.name))
            add("Column " + quoted(column.name) + " is missing on " + first_shard + ".");
    return text;
}

void check_table(const DesiredState &desired, std::size_t t, const std::vector<ShardState> &shards,
                 std::vector<Finding> &problems) {
    const DesiredTable &table = desired.tables[t];
    std::optional<std::size_t> reference;  // the first shard that has the table
    for (std::size_t s = 0; s < shards.size(); ++s) {
        if (!shards[s].known || desired.shards[s].index_only) continue;
        const TableState &state = shards[s].tables[t];
        const std::string &shard = desired.shards[s].name;
        const std::string where = "table " + table.name + " on shard " + quoted(shard);
        if (!state.exists) {
            problems.push_back({"table " + table.name + " does not exist on shard " + quoted(shard),
                                {},
                                "A sharded table is created on every shard, by the same CREATE "
                                "TABLE."});
            continue;
        }
        if (!state.ordinary) {
            problems.push_back({where + " is not an ordinary or partitioned table", {}, {}});
            continue;
        }
        if (!state.may_alter)
            problems.push_back({"must be owner of " + where,
                                {},
                                "Put a user that may alter the table into the shard's connection "
                                "string."});
        check_key_column(desired, table, shard, state, problems);
        if (!table.version_column.empty() && !find_column(state.columns, table.version_column))
            problems.push_back({where + " has no column " + quoted(table.version_column) +
                                    ", its declared version column",
                                {},
                                {}});
        const std::string &keyspace = desired.keyspaces[table.keyspace].name;
        // A renamed key column is no other key: shard_table() follows it.
        if (state.guarded &&
            (state.guarded_keyspace != keyspace || (state.guarded_key != table.key_column &&
                                                    find_column(state.columns, state.guarded_key))))
            problems.push_back(
                {where + " is already guarded by another key",
                 "It is guarded by column " + quoted(state.guarded_key) + " in keyspace " +
                     quoted(state.guarded_keyspace) + ", and declared with column " +
                     quoted(table.key_column) + " in keyspace " + quoted(keyspace) + ".",
                 "If the rows are where the declaration says, run on the shard: SELECT "
                 "interlock.unshard_table('" +
                     table.name + "');"});
        if (state.has_ancestor &&
            (state.ancestor_keyspace != keyspace || state.ancestor_key != table.key_column))
            problems.push_back({where + " is a partition or child of table " + state.ancestor +
                                    ", which is sharded differently",
                                "Table " + state.ancestor + " is in keyspace " +
                                    quoted(state.ancestor_keyspace) + " by column " +
                                    quoted(state.ancestor_key) + ".",
                                {}});
        if (state.has_foreign_child)
            problems.push_back(
                {where + " has a foreign table as partition or child, which cannot be guarded",
                 {},
                 {}});
        if (!reference) {
            reference = s;
            continue;
        }
        const std::string difference =
            column_difference(desired.shards[*reference].name, shards[*reference].tables[t].columns,
                              shard, state.columns);
        if (!difference.empty())
            problems.push_back({"table " + table.name + " differs between shards " +
                                    quoted(desired.shards[*reference].name) + " and " +
                                    quoted(shard),
                                difference, "Make the columns the same on every shard."});
    }
}

}  // namespace

std::vector<Finding> check_shards(const DesiredState &desired,
                                  const std::vector<ShardState> &shards) {
    std::vector<Finding> problems;
    for (std::size_t s = 0; s < shards.size(); ++s) {
        const std::vector<Finding> &own = shards[s].findings;
        problems.insert(problems.end(), own.begin(), own.end());
    }
    check_instances(desired, shards, problems);
    for (std::size_t s = 0; s < shards.size(); ++s) {
        if (!shards[s].known) continue;
        check_identity(desired, desired.shards[s], shards[s], problems);
        check_keyspaces(desired, desired.shards[s].name, shards[s], problems);
        check_moving(desired, desired.shards[s].name, shards[s], problems);
    }
    check_encodings(desired, shards, problems);
    for (const DesiredKeyspace &keyspace : desired.keyspaces)
        if (!keyspace.beyond.empty())
            problems.push_back({buckets_phrase(keyspace.beyond) + " of keyspace " +
                                    quoted(keyspace.name) + ", assigned to a shard, " +
                                    (keyspace.beyond.size() == 1 ? "does" : "do") + " not exist",
                                "The keyspace has " + count_of(keyspace.buckets, "bucket") + ".",
                                {}});
    // Only a hand-made edit can have done that.
    for (std::size_t s = 0; s < desired.shards.size(); ++s)
        for (const DesiredKeyspace &keyspace : desired.keyspaces)
            if (desired.shards[s].index_only &&
                std::count(keyspace.staged.begin(), keyspace.staged.end(),
                           static_cast<std::int32_t>(s)) > 0)
                problems.push_back({"buckets of keyspace " + quoted(keyspace.name) +
                                        " are assigned to " + desired.shards[s].called(),
                                    {},
                                    "Assign them to shards with interlock.assign()."});
    for (std::size_t t = 0; t < desired.tables.size(); ++t)
        check_table(desired, t, shards, problems);
    return problems;
}

std::vector<Finding> check_leftovers(const DesiredState &desired,
                                     const std::vector<ShardState> &shards) {
    std::vector<Finding> warnings;
    for (std::size_t s = 0; s < shards.size(); ++s) {
        const std::string shard = quoted(desired.shards[s].name);
        for (const std::string &table : shards[s].other_tables)
            warnings.push_back({"table " + table + " is guarded on shard " + shard +
                                    " but not declared in the catalog",
                                "Its guard stays.",
                                "To remove it, run on the shard: SELECT "
                                "interlock.unshard_table('" +
                                    table + "');"});
        for (const std::string &keyspace : shards[s].other_keyspaces)
            warnings.push_back({"keyspace " + quoted(keyspace) + " is known to shard " + shard +
                                    " but not to the catalog",
                                "It stays.",
                                {}});
        for (const TableState &table : shards[s].tables)
            for (const std::string &problem : table.guard_problems)
                warnings.push_back({"the guard is damaged on shard " + shard + ": " + problem,
                                    {},
                                    "Make it anew there: interlock.unshard_table(), then "
                                    "\"interlock apply\"."});
    }
    return warnings;
}

}  // namespace interlock
