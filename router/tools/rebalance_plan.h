// Which buckets to move so that every shard has its share: the judgement of `interlock rebalance`.
// Pure: no connection, no clock.
//
// A shard's share is its part of the whole by the weights. It is even if what it has differs from
// its share by no more than the tolerance. Of the plans that make every shard even, one with the
// fewest buckets on the move is wanted; that is a hard problem, so it is searched for within a
// bound, and the plan says whether it is known to be the fewest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace interlock {

struct BalanceBucket {
    std::size_t shard = 0;  ///< position of the one that owns it
    std::int64_t size = 0;  ///< rows, bytes or whatever is to be evened out; not negative
    bool pinned = false;    ///< stays where it is
};

struct BalanceMove {
    std::size_t bucket = 0;  ///< position in what was given
    std::size_t from = 0;
    std::size_t to = 0;
};

struct BalancePlan {
    std::vector<BalanceMove> moves;  ///< in the order of the buckets
    std::vector<double> share;       ///< by shard
    std::vector<std::int64_t> before, after;

    /// With these moves every shard is within the tolerance. If not, they bring the shards as near
    /// to it as was found; a bucket is never divided.
    bool even = false;
    /// No plan with fewer moves makes the shards as even.
    bool fewest = false;
    std::size_t at_least = 0;  ///< moves that any plan as even needs
};

/// `weights` by shard, none negative, not all of them 0. A shard of weight 0 is to have no bucket
/// at all. `tolerance` is a fraction of the share: 0.05. `effort` bounds the search for fewer
/// moves: about so many partial plans are looked at.
[[nodiscard]] BalancePlan plan_balance(const std::vector<double> &weights,
                                       const std::vector<BalanceBucket> &buckets, double tolerance,
                                       std::size_t effort = 200'000);

}  // namespace interlock
