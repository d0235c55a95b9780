// The steps of `interlock apply`, in their order.
#include "tools/apply_plan.h"

#include <algorithm>

#include "route/route_table.h"
#include "tools/apply_index.h"
#include "tools/bucket_set.h"

namespace interlock {

namespace {

bool same_column(const ColumnInfo &a, const ColumnInfo &b) {
    // Types made by users have other numbers on other shards; the name tells them apart.
    const bool same_type = a.type_oid == b.type_oid ||
                           (a.type_oid >= oid::first_user && b.type_oid >= oid::first_user);
    return a.name == b.name && a.type_name == b.type_name && same_type && a.not_null == b.not_null;
}

bool same_columns(const std::vector<ColumnInfo> &a, const std::vector<ColumnInfo> &b) {
    return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&b](const ColumnInfo &column) {
               return std::any_of(b.begin(), b.end(), [&column](const ColumnInfo &other) {
                   return same_column(column, other);
               });
           });
}

bool map_changed(const DesiredState &desired) {
    return std::any_of(desired.keyspaces.begin(), desired.keyspaces.end(),
                       [](const auto &keyspace) { return keyspace.staged != keyspace.published; });
}

class Planner {
  public:
    Planner(const DesiredState &desired, const std::vector<ShardState> &shards)
        : desired_(desired), shards_(shards) {}

    std::vector<Action> plan(const std::vector<OwnershipChange> &changes,
                             bool declarations_changed) {
        const auto columns = columns_to_record(desired_, shards_);
        std::vector<std::size_t> tables_to_record;
        for (std::size_t t = 0; t < desired_.tables.size(); ++t)
            if (!same_columns(desired_.tables[t].recorded, columns[t]))
                tables_to_record.push_back(t);
        const bool publishes = desired_.version == 0 || map_changed(desired_) ||
                               declarations_changed || !tables_to_record.empty() ||
                               floor_ahead(desired_, shards_);
        version_ = publishes ? desired_.next_version() : desired_.version;

        prepare_shards();
        for (std::size_t k = 0; k < changes.size(); ++k)
            for (const auto &[shard, buckets] : changes[k].take)
                take(shard, k, buckets, no_shard);
        guard_tables();
        take_cursor_keys();
        append(index_steps(desired_, shards_));
        for (const std::size_t t : tables_to_record) {
            Action &action = add(ActionKind::record_columns, no_shard,
                                 "record the " + count_of(columns[t].size(), "column") +
                                     " of table " + desired_.tables[t].name);
            action.table = t;
        }
        for (std::size_t k = 0; k < changes.size(); ++k)
            for (const auto &[shards, buckets] : changes[k].move) {
                release(shards.first, shards.second, k, buckets);
                take(shards.second, k, buckets, shards.first);
            }
        if (publishes)
            add(ActionKind::publish, no_shard, "publish route version " + std::to_string(version_));
        append(dropped_index_steps(desired_, shards_));
        return std::move(actions_);
    }

  private:
    static std::string count_of(std::size_t number, const std::string &what) {
        return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
    }

    Action &add(ActionKind kind, std::int32_t shard, const std::string &text) {
        Action action;
        action.kind = kind;
        action.shard = shard;
        action.version = version_;
        action.text = (shard == no_shard ? std::string("catalog") : name(shard)) + ": " + text;
        actions_.push_back(std::move(action));
        return actions_.back();
    }

    void append(std::vector<Action> steps) {
        for (Action &step : steps)
            actions_.push_back(std::move(step));
    }

    void prepare_shards() {
        const std::int32_t count = static_cast<std::int32_t>(shards_.size());
        for (std::int32_t s = 0; s < count; ++s)
            if (!state(s).has_extension)
                add(ActionKind::create_extension, s, "create extension interlock");
        for (std::int32_t s = 0; s < count; ++s)
            if (!state(s).has_identity)
                add(ActionKind::set_identity, s,
                    std::string("make this database ") +
                        (is_shard(s) ? "shard " : "index database ") + name(s) + " of cluster " +
                        desired_.cluster_name);
        // In place of a shard that is gone, or that others were published for before it was there.
        for (std::int32_t s = 0; s < count; ++s) {
            const std::int32_t floor = desired_.shards[static_cast<std::size_t>(s)].min_floor;
            if (!state(s).has_identity && floor > 0)
                add(ActionKind::raise_floor, s,
                    "refuse route versions before " + std::to_string(floor))
                    .version = floor;
        }
        for (std::size_t k = 0; k < desired_.keyspaces.size(); ++k)
            for (std::int32_t s = 0; s < count; ++s) {
                if (state(s).keyspaces[k].known || !is_shard(s)) continue;
                const DesiredKeyspace &keyspace = desired_.keyspaces[k];
                add(ActionKind::define_keyspace, s,
                    "define keyspace " + keyspace.name + " (" + keyspace.key_type + ", " +
                        keyspace.hash + ", " +
                        count_of(static_cast<std::size_t>(keyspace.buckets), "bucket") + ")")
                    .keyspace = k;
            }
    }

    void guard_tables() {
        for (std::size_t t = 0; t < desired_.tables.size(); ++t)
            for (std::size_t s = 0; s < shards_.size(); ++s) {
                if (desired_.shards[s].index_only) continue;
                const DesiredTable &table = desired_.tables[t];
                const TableState &state = shards_[s].tables[t];
                const bool renamed = state.guarded && state.guarded_key != table.key_column;
                if (state.has_ancestor || (state.guarded && !state.guard_incomplete && !renamed))
                    continue;
                const std::string what =
                    state.guarded ? "mend the guard of table " : "guard table ";
                add(ActionKind::guard_table, static_cast<std::int32_t>(s),
                    what + table.name + " by key column " + table.key_column + ", keyspace " +
                        desired_.keyspaces[table.keyspace].name)
                    .table = t;
            }
    }

    void take_cursor_keys() {
        if (!has_cursor_key(desired_))
            add(ActionKind::make_cursor_key, no_shard, "make a key that signs cursors");
        for (std::size_t s = 0; s < shards_.size(); ++s)
            if (const std::string step = cursor_key_step(desired_, shards_[s]); !step.empty())
                add(ActionKind::take_cursor_keys, static_cast<std::int32_t>(s), step);
    }

    void take(std::int32_t shard, std::size_t keyspace, const std::vector<std::int32_t> &buckets,
              std::int32_t from) {
        Action &action =
            add(ActionKind::accept_buckets, shard,
                "take " + buckets_phrase(buckets) + " of keyspace " +
                    desired_.keyspaces[keyspace].name +
                    (from == no_shard ? std::string() : ", given up by " + name(from)));
        action.keyspace = keyspace;
        action.buckets = buckets;
    }

    void release(std::int32_t from, std::int32_t to, std::size_t keyspace,
                 const std::vector<std::int32_t> &buckets) {
        Action &action = add(ActionKind::release_buckets, from,
                             "give up empty " + buckets_phrase(buckets) + " of keyspace " +
                                 desired_.keyspaces[keyspace].name + " to " + name(to));
        action.keyspace = keyspace;
        action.buckets = buckets;
        action.to_shard = to;
    }

    const ShardState &state(std::int32_t shard) const {
        return shards_[static_cast<std::size_t>(shard)];
    }
    bool is_shard(std::int32_t shard) const {
        return !desired_.shards[static_cast<std::size_t>(shard)].index_only;
    }
    const std::string &name(std::int32_t shard) const {
        return desired_.shards[static_cast<std::size_t>(shard)].name;
    }

    const DesiredState &desired_;
    const std::vector<ShardState> &shards_;
    std::int32_t version_ = 0;
    std::vector<Action> actions_;
};

}  // namespace

std::vector<std::vector<ColumnInfo>> columns_to_record(const DesiredState &desired,
                                                       const std::vector<ShardState> &shards) {
    std::vector<std::vector<ColumnInfo>> all;
    const auto first_shard = static_cast<std::size_t>(
        std::find_if(desired.shards.begin(), desired.shards.end(),
                     [](const DesiredShard &shard) { return !shard.index_only; }) -
        desired.shards.begin());
    for (std::size_t t = 0; t < desired.tables.size(); ++t) {
        std::vector<ColumnInfo> columns = first_shard >= shards.size()
                                              ? desired.tables[t].recorded
                                              : shards[first_shard].tables[t].columns;
        // NOT NULL only if it holds everywhere.
        for (ColumnInfo &column : columns)
            for (const ShardState &shard : shards)
                for (const ColumnInfo &other : shard.tables[t].columns)
                    if (other.name == column.name && !other.not_null) column.not_null = false;
        all.push_back(same_columns(desired.tables[t].recorded, columns) ? desired.tables[t].recorded
                                                                        : std::move(columns));
    }
    return all;
}

std::vector<Action> make_plan(const DesiredState &desired, const std::vector<ShardState> &shards,
                              const std::vector<OwnershipChange> &changes,
                              bool declarations_changed) {
    return Planner(desired, shards).plan(changes, declarations_changed);
}

}  // namespace interlock
