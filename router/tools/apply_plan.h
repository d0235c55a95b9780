// The judgement of `interlock apply`: from what the catalog wants and what the shards are, the
// reasons to refuse, the warnings, and the steps. Pure: no connection, no clock.
//
// Two passes, because rows are counted only where it matters: check_ownership() tells which buckets
// every shard will own and which it must give up; the rows are then looked at by the caller; then
// make_plan() lists the steps.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/apply_model.h"

namespace interlock {

/// What has to happen to the buckets of one keyspace, by position of the shards.
struct OwnershipChange {
    /// Buckets nobody owns, to be taken by the shard.
    std::map<std::int32_t, std::vector<std::int32_t>> take;
    /// Buckets that go from the first shard to the second. An interrupted earlier run may have done
    /// part of it: both halves are idempotent.
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> move;
};

/// Reasons to refuse that can be told from the states alone (not from rows or bucket ownership):
/// whom the connections lead to, keyspaces, tables, columns, encodings.
std::vector<Finding> check_shards(const DesiredState &desired,
                                  const std::vector<ShardState> &shards);

/// Warnings: guarded tables and keyspaces that the catalog does not declare.
std::vector<Finding> check_leftovers(const DesiredState &desired,
                                     const std::vector<ShardState> &shards);

/// Warnings: keysets that are not the same on every shard.
std::vector<Finding> check_keysets(const DesiredState &desired,
                                   const std::vector<ShardState> &shards);

/// What a shard has to do to sign cursors with the catalog's keys, in words; empty: nothing, it has
/// them. The catalog's own database has them by itself.
std::string cursor_key_step(const DesiredState &desired, const ShardState &shard);

/// Whether the catalog has a key that is valid.
bool has_cursor_key(const DesiredState &desired);

/// Judges who owns which bucket of the keyspace. Needs every shard's state known and its identity
/// right or absent. Reasons to refuse are added to `problems`.
OwnershipChange check_ownership(const DesiredState &desired, std::size_t keyspace,
                                const std::vector<ShardState> &shards,
                                std::vector<Finding> &problems);

/// By bucket, whether the shard owns it when the plan has been carried out.
std::vector<bool> owned_afterwards(const DesiredKeyspace &keyspace, std::int32_t shard);

/// The columns of each table as the first shard (not an index database) has them; of a table
/// already recorded with the same columns, the recorded ones (so that a mere difference in order
/// changes nothing).
std::vector<std::vector<ColumnInfo>> columns_to_record(const DesiredState &desired,
                                                       const std::vector<ShardState> &shards);

/// Whether the shards have raised a floor above the current version, so that a new version must be
/// published even if its map is the same.
bool floor_ahead(const DesiredState &desired, const std::vector<ShardState> &shards);

/// The steps, in an order in which each shard is ready before anybody is told.
/// `declarations_changed`: the catalog would publish a new version although the map is the same.
/// Empty: nothing to do.
std::vector<Action> make_plan(const DesiredState &desired, const std::vector<ShardState> &shards,
                              const std::vector<OwnershipChange> &changes,
                              bool declarations_changed);

}  // namespace interlock
