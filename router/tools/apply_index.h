// What `interlock apply` thinks of global indexes: whether the shards agree on what an index is
// made of, what stands in the way, and the steps. Pure, as apply_plan.
#pragma once

#include <vector>

#include "tools/apply_model.h"

namespace interlock {

/// Sets the shape of every index that all shards would declare alike; of the others it stays empty.
/// Reasons to refuse are added to `problems`.
void agree_on_indexes(DesiredState &desired, const std::vector<ShardState> &shards,
                      std::vector<Finding> &problems);

/// Whether an index is known well enough for its table to be tried in its database.
bool has_shape(const DesiredIndex &index);

/// Reasons to refuse, once the databases of the indexes have tried them as well: changes that
/// nobody recorded, streams that serve something else, digests that differ.
void check_indexes(const DesiredState &desired, const std::vector<ShardState> &shards,
                   std::vector<Finding> &problems);

/// Warnings: tables whose rows are not for everybody who may read the table.
std::vector<Finding> index_warnings(const DesiredState &desired,
                                    const std::vector<ShardState> &shards);

/// The steps that make indexes, in an order in which changes are recorded before anybody is told.
std::vector<Action> index_steps(const DesiredState &desired, const std::vector<ShardState> &shards);

/// The steps that remove what dropped indexes and deleted shards have left, for when routers were
/// told.
std::vector<Action> dropped_index_steps(const DesiredState &desired,
                                        const std::vector<ShardState> &shards);

}  // namespace interlock
