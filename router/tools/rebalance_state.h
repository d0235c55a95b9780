// The state that the planner of `interlock rebalance` works on: who would own what, and how far the
// shards are from their shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tools/rebalance_plan.h"

namespace interlock {

/// A partial plan. Buckets can be moved any number of times; what counts is where they end.
class BalanceState {
  public:
    BalanceState(const std::vector<double> &weights, const std::vector<BalanceBucket> &buckets,
                 double tolerance);

    /// How far a shard with that load is out of bounds, squared and in proportion to its share.
    [[nodiscard]] double fault(std::size_t shard, std::int64_t load) const;
    /// Of all the shards. 0: every one is even.
    [[nodiscard]] double fault() const;
    /// Whether a shard has to give something away, or to be given something.
    [[nodiscard]] bool over(std::size_t shard) const;
    [[nodiscard]] bool under(std::size_t shard) const;

    void move(std::size_t bucket, std::size_t to);

    [[nodiscard]] bool even() const;

    /// For shards that cannot be made even: what they have now is within their bounds.
    void settle_for_present();

    [[nodiscard]] std::size_t shards() const { return load_.size(); }
    [[nodiscard]] std::int64_t load(std::size_t shard) const { return load_[shard]; }
    [[nodiscard]] double share(std::size_t shard) const { return share_[shard]; }
    [[nodiscard]] double lower(std::size_t shard) const { return lower_[shard]; }
    [[nodiscard]] double upper(std::size_t shard) const { return upper_[shard]; }
    /// To have no bucket at all.
    [[nodiscard]] bool drained(std::size_t shard) const { return drained_[shard]; }
    [[nodiscard]] std::size_t owner(std::size_t bucket) const { return owner_[bucket]; }
    [[nodiscard]] std::int64_t size(std::size_t bucket) const { return (*buckets_)[bucket].size; }
    [[nodiscard]] std::size_t origin(std::size_t bucket) const { return (*buckets_)[bucket].shard; }
    [[nodiscard]] std::size_t buckets() const { return buckets_->size(); }
    /// Buckets that are not where they were.
    [[nodiscard]] std::size_t moved() const { return moved_; }

    /// The shard's buckets that are not pinned, by size.
    using Movable = std::set<std::pair<std::int64_t, std::size_t>>;
    [[nodiscard]] const Movable &movable(std::size_t shard) const { return movable_[shard]; }

  private:
    const std::vector<BalanceBucket> *buckets_;
    std::vector<double> share_, lower_, upper_;
    std::vector<bool> drained_;
    std::vector<std::int64_t> load_;
    std::vector<std::size_t> owner_;
    std::vector<Movable> movable_;
    std::size_t moved_ = 0;
};

/// Moves buckets, each time the one that helps most, until every shard is even or nothing helps;
/// then takes back what is not needed.
void improve_balance(BalanceState &state);

/// Moves that any plan which makes the shards even needs, from the state where nothing was moved.
[[nodiscard]] std::size_t fewest_imaginable(const BalanceState &state);

/// Looks for a plan with at most `moves` moves that makes every shard even, from a state where
/// nothing was moved, which it leaves as it was if it finds none. Takes what it looks at from
/// `effort`; when that has come to 0, it gave up.
[[nodiscard]] bool find_balance(BalanceState &state, std::size_t moves, std::size_t &effort);

}  // namespace interlock
