#include "tools/apply_index.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

namespace interlock {

namespace {

using Names = std::vector<std::string>;

std::string quoted(const std::string &name) {
    return "\"" + name + "\"";
}

std::string list_of(const Names &names) {
    std::string text;
    for (const std::string &name : names)
        text += (text.empty() ? "" : ", ") + name;
    return text;
}

bool contains(const Names &names, const std::string &name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::string called(const DesiredIndex &index) {
    return "index " + quoted(index.name);
}

std::string describe(const IndexColumnInfo &column) {
    return column.type_name + (column.collation.empty() ? "" : " COLLATE " + column.collation);
}

/// How the second shard's shape differs from the first's, in words; empty: it does not, or only in
/// what columns may be NULL, which the digest tells where it matters.
std::string difference(const std::string &first_shard, const IndexShape &first,
                       const std::string &shard, const IndexShape &shape) {
    if (first.recorded != shape.recorded)
        return "Scope and order are (" + list_of(first.recorded) + ") on " + first_shard +
               " and (" + list_of(shape.recorded) + ") on " + shard + ".";
    if (first.key != shape.key)
        return "The key of a row is (" + list_of(first.key) + ") on " + first_shard + " and (" +
               list_of(shape.key) + ") on " + shard + ".";
    for (const IndexColumnInfo &column : first.columns)
        for (const IndexColumnInfo &other : shape.columns)
            if (other.name == column.name && describe(other) != describe(column))
                return "Column " + quoted(column.name) + " is " + describe(column) + " on " +
                       first_shard + " and " + describe(other) + " on " + shard + ".";
    if (first.digest != shape.digest)
        return "Cursors of the keyset would be bound to " + first.digest + " on " + first_shard +
               " and to " + shape.digest + " on " + shard +
               ": types, collations or labels of enums differ.";
    return {};
}

/// Which roles to let read an index's table, and which no longer.
struct Grants {
    Names grant, revoke;
};

Grants grants_of(const DesiredState &desired, std::size_t i,
                 const std::vector<ShardState> &shards) {
    std::optional<Readers> everywhere;
    for (std::size_t s = 0; s < shards.size(); ++s) {
        if (desired.shards[s].index_only) continue;
        const Readers &here = shards[s].indexes[i].readers;
        if (!everywhere) {
            everywhere = here;
            continue;
        }
        std::erase_if(everywhere->roles,
                      [&](const std::string &role) { return !contains(here.roles, role); });
        std::erase_if(everywhere->may_read,
                      [&](const std::string &role) { return !contains(here.may_read, role); });
    }
    Grants grants;
    if (!everywhere) return grants;
    const IndexInDatabase &table =
        shards[static_cast<std::size_t>(desired.indexes[i].database)].index_tables[i];
    const bool everybody = contains(everywhere->may_read, "PUBLIC");
    for (const std::string &role : everywhere->may_read)
        if (contains(table.roles, role) && !contains(table.readers, role) &&
            (!everybody || role == "PUBLIC"))
            grants.grant.push_back(role);
    // A role that only the index database has was let in by somebody who had a reason.
    for (const std::string &role : table.readers)
        if (contains(everywhere->roles, role) && !contains(everywhere->may_read, role) &&
            !contains(table.indexers, role))
            grants.revoke.push_back(role);
    return grants;
}

bool owns_buckets(const ShardState &shard, std::size_t keyspace) {
    const std::vector<BucketRow> &rows = shard.keyspaces[keyspace].rows;
    return std::any_of(rows.begin(), rows.end(), [](const BucketRow &row) {
        return row.state == BucketOwnership::owned || row.state == BucketOwnership::fenced;
    });
}

const std::string &table_of(const DesiredState &desired, const DesiredIndex &index) {
    return desired.tables[index.table].name;
}

void check_stream(const DesiredState &desired, const DesiredIndex &index, const DesiredShard &shard,
                  const IndexOnShard &here, std::vector<Finding> &problems) {
    const std::string stream =
        "outbox stream " + quoted(index.name) + " of " + shard.called() + " ";
    const std::string advice = "An index needs a stream of its own. Choose another name for the "
                               "index, or detach what is there.";
    if (!here.others.empty()) {
        problems.push_back({stream + "records other tables than that of the index",
                            "It records " + list_of(here.others) + ".", advice});
        return;
    }
    if (here.attached &&
        (here.attached_columns != here.shape.recorded || here.attached_key != here.shape.key))
        problems.push_back({stream + "records other columns of table " + table_of(desired, index) +
                                " than the index needs",
                            "It records (" + list_of(here.attached_columns) + ") by key (" +
                                list_of(here.attached_key) + "); needed are (" +
                                list_of(here.shape.recorded) + ") by key (" +
                                list_of(here.shape.key) + ").",
                            advice + " To detach it: SELECT interlock.outbox_detach('" +
                                table_of(desired, index) + "', '" + index.name + "');"});
}

/// Whether rows of a shard may change without the index being told.
bool is_unrecorded(const ShardState &shard, std::size_t i, std::size_t keyspace) {
    const IndexOnShard &here = shard.indexes[i];
    return here.judged && (!here.attached || here.recording_broken) &&
           owns_buckets(shard, keyspace);
}

/// An index that pages come from must have been told of every change.
void check_ready(const DesiredState &desired, std::size_t i, const std::vector<ShardState> &shards,
                 std::vector<Finding> &problems) {
    const DesiredIndex &index = desired.indexes[i];
    if (!index.ready) return;
    const std::string not_ready = "SELECT interlock.index_ready('" + index.name + "', false);";
    const std::size_t keyspace = desired.tables[index.table].keyspace;
    for (std::size_t s = 0; s < shards.size(); ++s) {
        if (desired.shards[s].index_only || !is_unrecorded(shards[s], i, keyspace)) continue;
        problems.push_back({called(index) + " is declared ready, but changes of table " +
                                table_of(desired, index) + " on " + desired.shards[s].called() +
                                " are not recorded for it",
                            "Rows that were written meanwhile may be missing from its pages.",
                            "In the catalog, run: " + not_ready +
                                " Then \"interlock apply\", \"interlock repair " + index.name +
                                " --apply\", and say that it is ready again."});
    }
    const DesiredShard &database = desired.shards[static_cast<std::size_t>(index.database)];
    const ShardState &holder = shards[static_cast<std::size_t>(index.database)];
    if (holder.known && !holder.index_tables[i].defined)
        problems.push_back(
            {called(index) + " is declared ready, but " + database.called() + " does not have it",
             {},
             "In the catalog, run: " + not_ready +
                 " Then \"interlock apply\" and \"interlock index backfill " + index.name +
                 " --restart\"."});
}

/// Entries of rows were made, perhaps, and changes of a shard were not recorded all the time since.
void warn_of_gaps(const DesiredState &desired, std::size_t i, const std::vector<ShardState> &shards,
                  std::vector<Finding> &warnings) {
    const DesiredIndex &index = desired.indexes[i];
    if (index.ready || !shards[static_cast<std::size_t>(index.database)].index_tables[i].defined)
        return;
    const std::size_t keyspace = desired.tables[index.table].keyspace;
    for (std::size_t s = 0; s < shards.size(); ++s)
        if (!desired.shards[s].index_only && is_unrecorded(shards[s], i, keyspace))
            warnings.push_back(
                {called(index) + " is there already, but changes of table " +
                     table_of(desired, index) + " on " + desired.shards[s].called() +
                     " are not recorded for it yet",
                 "Changes made meanwhile are not in it.",
                 "When they are recorded, and the index is filled, run \"interlock repair " +
                     index.name + " --apply\"."});
}

void check_database(const DesiredState &desired, std::size_t i,
                    const std::vector<ShardState> &shards, std::vector<Finding> &problems) {
    const DesiredIndex &index = desired.indexes[i];
    const auto at = static_cast<std::size_t>(index.database);
    const DesiredShard &database = desired.shards[at];
    const IndexInDatabase &table = shards[at].index_tables[i];
    for (std::size_t s = 0; s < shards.size(); ++s)
        if (shards[s].encoding != shards[at].encoding) {
            problems.push_back(
                {database.called() + " has another encoding than " + desired.shards[s].called() +
                     ", whose rows it shall index",
                 "They are " + shards[at].encoding + " and " + shards[s].encoding + ".",
                 "Use UTF8 everywhere."});
            break;
        }
    if (!table.digest.empty() && has_shape(index) && table.digest != index.shape.digest)
        problems.push_back(
            {called(index) + " would have another order in " + database.called() +
                 " than on the shards",
             "Its cursors would be bound to " + table.digest + ", those of the shards to " +
                 index.shape.digest + ".",
             "Types, collations and their versions, and labels of enums must agree."});
}

class Steps {
  public:
    Steps(const DesiredState &desired, const std::vector<ShardState> &shards)
        : desired_(desired), shards_(shards) {}

    std::vector<Action> making() {
        for (std::size_t i = 0; i < desired_.indexes.size(); ++i)
            make(i);
        return std::move(actions_);
    }

    std::vector<Action> removing() {
        for (std::size_t i = 0; i < desired_.indexes.size(); ++i)
            leave(i);
        for (std::size_t i = 0; i < desired_.dropped_indexes.size(); ++i)
            remove(i);
        return std::move(actions_);
    }

  private:
    Action &add(ActionKind kind, std::int32_t shard, std::size_t index, const std::string &text) {
        Action action;
        action.kind = kind;
        action.shard = shard;
        action.index = index;
        const std::string where =
            shard == no_shard ? "catalog" : desired_.shards[static_cast<std::size_t>(shard)].name;
        action.text = where + ": " + text;
        actions_.push_back(std::move(action));
        return actions_.back();
    }

    void leave(std::size_t i) {
        const DesiredIndex &index = desired_.indexes[i];
        const Names &former =
            shards_[static_cast<std::size_t>(index.database)].index_tables[i].former;
        if (former.empty()) return;
        add(ActionKind::leave_index, index.database, i,
            "keep no tombstones of index " + index.name + " for deleted shards: " + list_of(former))
            .former = former;
    }

    // The entries go first: whoever still works under an earlier version is refused, instead of
    // being answered from an index that is told of no change any more.
    void remove(std::size_t i) {
        const DroppedIndex &dropped = desired_.dropped_indexes[i];
        if (shards_[static_cast<std::size_t>(dropped.database)].dropped_indexes[i].defined)
            add(ActionKind::remove_index, dropped.database, i,
                "remove the entries of dropped index " + dropped.name);
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            if (desired_.shards[s].index_only) continue;
            const DroppedState &state = shards_[s].dropped_indexes[i];
            if (!state.has_stream) continue;
            add(ActionKind::detach_index, static_cast<std::int32_t>(s), i,
                state.tables.empty() ? "drop the outbox stream of dropped index " + dropped.name
                                     : "record no changes of table " + list_of(state.tables) +
                                           " for dropped index " + dropped.name)
                .tables = state.tables;
        }
        add(ActionKind::forget_index, no_shard, i, "forget dropped index " + dropped.name);
    }

    void make(std::size_t i) {
        const DesiredIndex &index = desired_.indexes[i];
        const std::string &table = table_of(desired_, index);
        const auto at = static_cast<std::size_t>(index.database);
        const IndexInDatabase &entries = shards_[at].index_tables[i];
        const std::string order = "scope (" + list_of(index.scope) + "), order " + index.order;
        if (!entries.defined)
            add(ActionKind::define_index, index.database, i,
                "make index " + index.name + " of table " + table + ": " + order);
        else if (entries.changes)
            add(ActionKind::define_index, index.database, i,
                "change the page size of index " + index.name);
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            if (desired_.shards[s].index_only) continue;
            const IndexOnShard &here = shards_[s].indexes[i];
            if (!here.has_keyset)
                add(ActionKind::declare_keyset, static_cast<std::int32_t>(s), i,
                    "declare keyset " + index.name + " of table " + table + ": " + order);
            else if (here.keyset_limits != here.wanted_limits)
                add(ActionKind::declare_keyset, static_cast<std::int32_t>(s), i,
                    "change the page sizes of keyset " + index.name + ": " + here.wanted_limits);
        }
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            if (desired_.shards[s].index_only) continue;
            const IndexOnShard &here = shards_[s].indexes[i];
            if (!here.attached || here.recording_broken)
                add(ActionKind::attach_index, static_cast<std::int32_t>(s), i,
                    "record changes of table " + table + " for index " + index.name + ": " +
                        list_of(index.shape.recorded) + ", by key " + list_of(index.shape.key));
        }
        grant(i);
    }

    void grant(std::size_t i) {
        const DesiredIndex &index = desired_.indexes[i];
        const Grants grants = grants_of(desired_, i, shards_);
        const auto step = [&](const Names &roles, const std::string &text) -> Action & {
            return add(ActionKind::grant_index, index.database, i,
                       text + list_of(roles) + " read index " + index.name);
        };
        if (!grants.grant.empty()) step(grants.grant, "let ").grant = grants.grant;
        if (!grants.revoke.empty()) step(grants.revoke, "no longer let ").revoke = grants.revoke;
    }

    const DesiredState &desired_;
    const std::vector<ShardState> &shards_;
    std::vector<Action> actions_;
};

}  // namespace

bool has_shape(const DesiredIndex &index) {
    return !index.shape.digest.empty();
}

void agree_on_indexes(DesiredState &desired, const std::vector<ShardState> &shards,
                      std::vector<Finding> &problems) {
    for (std::size_t i = 0; i < desired.indexes.size(); ++i) {
        DesiredIndex &index = desired.indexes[i];
        index.shape = {};
        std::optional<std::size_t> first;
        bool agree = true;
        for (std::size_t s = 0; s < shards.size(); ++s) {
            if (desired.shards[s].index_only) continue;
            const IndexOnShard &here = shards[s].indexes[i];
            if (!here.judged) {
                agree = false;  // why was told when it was tried
                continue;
            }
            if (here.has_keyset && here.keyset_digest != here.shape.digest) {
                agree = false;
                problems.push_back(
                    {"keyset " + quoted(index.name) + " is declared on " +
                         desired.shards[s].called() + ", but not as " + called(index) + " says",
                     "The index has scope (" + list_of(index.scope) + ") and order " + index.order +
                         " of table " + table_of(desired, index) + ".",
                     "Choose another name for the index, or drop the keyset there: SELECT "
                     "interlock.keyset_drop('" +
                         index.name + "');"});
            }
            if (!first) {
                first = s;
                continue;
            }
            const std::string differs =
                difference(desired.shards[*first].name, shards[*first].indexes[i].shape,
                           desired.shards[s].name, here.shape);
            if (differs.empty()) continue;
            agree = false;
            problems.push_back({called(index) + " would not be the same on " +
                                    desired.shards[*first].called() + " and " +
                                    desired.shards[s].called(),
                                differs, "Make the table the same on every shard."});
        }
        if (!agree || !first) continue;
        index.shape = shards[*first].indexes[i].shape;
        for (IndexColumnInfo &column : index.shape.columns)
            for (std::size_t s = 0; s < shards.size(); ++s) {
                if (desired.shards[s].index_only) continue;
                for (const IndexColumnInfo &other : shards[s].indexes[i].shape.columns)
                    if (other.name == column.name && !other.not_null) column.not_null = false;
            }
    }
}

void check_indexes(const DesiredState &desired, const std::vector<ShardState> &shards,
                   std::vector<Finding> &problems) {
    for (std::size_t i = 0; i < desired.indexes.size(); ++i) {
        for (std::size_t s = 0; s < shards.size(); ++s)
            if (!desired.shards[s].index_only && shards[s].indexes[i].judged)
                check_stream(desired, desired.indexes[i], desired.shards[s], shards[s].indexes[i],
                             problems);
        check_ready(desired, i, shards, problems);
        check_database(desired, i, shards, problems);
    }
}

std::vector<Finding> index_warnings(const DesiredState &desired,
                                    const std::vector<ShardState> &shards) {
    std::vector<Finding> warnings;
    for (std::size_t i = 0; i < desired.indexes.size(); ++i) {
        warn_of_gaps(desired, i, shards, warnings);
        const bool guarded_rows =
            std::any_of(shards.begin(), shards.end(),
                        [i](const ShardState &shard) { return shard.indexes[i].row_security; });
        if (guarded_rows)
            warnings.push_back(
                {"table " + table_of(desired, desired.indexes[i]) +
                     " has row-level security, and " + called(desired.indexes[i]) + " has none",
                 "Pages show a client its own rows only; but whoever may read the table may read "
                 "scope, order and key of all rows in " +
                     desired.shards[static_cast<std::size_t>(desired.indexes[i].database)]
                         .called() +
                     ".",
                 {}});
    }
    return warnings;
}

std::vector<Action> index_steps(const DesiredState &desired,
                                const std::vector<ShardState> &shards) {
    return Steps(desired, shards).making();
}

std::vector<Action> dropped_index_steps(const DesiredState &desired,
                                        const std::vector<ShardState> &shards) {
    return Steps(desired, shards).removing();
}

}  // namespace interlock
