// One shard as `interlock apply` sees it: reading its state, counting rows, carrying out steps.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "tools/apply_model.h"
#include "tools/apply_plan.h"

namespace interlock {

class ShardSession {
  public:
    /// `shard` is the position in `desired.shards`. Does not connect yet.
    ShardSession(const DesiredState &desired, std::size_t shard, const ApplyTimeouts &timeouts);

    /// Connects and reads the shard's state in one transaction, which stays open for check_rows().
    /// A missing extension is created in it, so that everything can be checked as if it were there;
    /// end_checks() takes that back. Never throws: what is wrong stands in the state's findings.
    ShardState read();

    /// Looks for rows that stand in the way: those of buckets to be given up, and those of tables
    /// not guarded yet that would be on the wrong shard. Never throws.
    void check_rows(const ShardState &state, const std::vector<OwnershipChange> &changes,
                    std::vector<Finding> &problems);

    /// Looks at the indexes of a shard's tables, trying their keysets in a transaction that is
    /// rolled back. Never throws.
    void try_indexes(ShardState &state, std::vector<Finding> &problems);

    /// The same for the indexes of known shape that this database holds. Never throws.
    void try_index_tables(ShardState &state, std::vector<Finding> &problems);

    /// Rolls the transaction of the checks back: nothing has changed.
    void end_checks();

    /// Carries one step out, in a transaction of its own. Throws ControlError.
    void carry_out(const Action &action);

    /// After a step met a lock time-out: who holds locks on the tables concerned, in words; empty
    /// if nobody (any more) or if it cannot be told.
    std::string lock_holders(const Action &action);

  private:
    void read_instance(ShardState &state);
    void begin_checks(ShardState &state);
    void read_identity(ShardState &state);
    void read_keyspaces(ShardState &state);
    void read_tables(ShardState &state);
    void read_columns(ShardState &state, const std::vector<std::uint32_t> &relations);
    void read_guards(ShardState &state, const std::vector<std::uint32_t> &relations);
    void read_ancestors(ShardState &state, const std::vector<std::uint32_t> &relations,
                        const std::map<std::uint32_t, std::size_t> &position);
    void check_rights(ShardState &state);
    void check_new_table(const TableState &state, const DesiredTable &table,
                         std::vector<Finding> &problems);
    void check_released(std::size_t keyspace, const std::vector<std::int32_t> &buckets,
                        std::vector<Finding> &problems);

    void read_dropped_indexes(ShardState &state);
    void begin_trial(const ShardState &state);
    void try_index(const DesiredIndex &index, IndexOnShard &here, std::vector<Finding> &problems);
    void try_index_table(const DesiredIndex &index, IndexInDatabase &table);
    void declare_keyset(const DesiredIndex &index, bool replace);
    void read_stream(const Param &stream, const Param &relation, IndexOnShard &here);
    void read_readers(const Param &relation, IndexOnShard &here);
    bool define_index(const DesiredIndex &index);
    void detach_index(const Param &stream);
    bool carry_out_index(const Action &action);  ///< false: not a step of indexes

    const DesiredState &desired_;
    std::size_t shard_;
    const DesiredShard &self_;
    ApplyTimeouts timeouts_;
    std::unique_ptr<ControlConnection> connection_;
    std::unique_ptr<ControlTransaction> checks_;
};

}  // namespace interlock
