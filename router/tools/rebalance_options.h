// What the parts of `interlock rebalance` share: what is asked for, the cluster as it is planned
// for, and how the plan is told.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/rebalance_measure.h"
#include "tools/rebalance_plan.h"

namespace interlock {

struct RebalanceOptions {
    BalanceRequest request;
    std::string catalog;
    /// How the printed commands name the catalog: "-c FILE", quoted for the shell.
    std::string catalog_flags;
    double tolerance = 0.05;
    std::map<std::string, double> weights;  ///< by shard; 1 if it is not there
    bool json = false;
};

[[nodiscard]] std::string_view name_of(BalanceBy by);

/// A shard that may own buckets.
struct RebalancedShard {
    std::string name;
    double weight = 1;
    std::size_t buckets_before = 0, buckets_after = 0;
};

/// Buckets of one keyspace that go the same way: one move.
struct RebalanceMove {
    std::string keyspace, from, to;
    std::vector<std::int32_t> buckets;
    std::int64_t size = 0;
    std::string command;
};

struct Rebalance {
    std::vector<RebalancedShard> shards;  ///< as in the plan
    BalancePlan plan;
    std::vector<RebalanceMove> moves;
    std::vector<std::string> notes;  ///< what the plan leaves out, and why
};

[[nodiscard]] std::string rebalance_text(const RebalanceOptions &options,
                                         const Rebalance &rebalance);
[[nodiscard]] std::string rebalance_json(const RebalanceOptions &options,
                                         const Rebalance &rebalance);

}  // namespace interlock
