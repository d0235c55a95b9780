// The planner of `interlock rebalance`: every shard within its tolerance, with as few moves as can
// be.
#include "tools/rebalance_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace interlock {
namespace {

using Weights = std::vector<double>;

std::vector<BalanceBucket> on(std::size_t shard, const std::vector<std::int64_t> &sizes) {
    std::vector<BalanceBucket> buckets;
    for (const std::int64_t size : sizes)
        buckets.push_back({shard, size, false});
    return buckets;
}

std::vector<BalanceBucket> operator+(std::vector<BalanceBucket> a,
                                     const std::vector<BalanceBucket> &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

std::vector<std::int64_t> loads(const Weights &weights, const std::vector<BalanceBucket> &buckets,
                                const std::vector<std::size_t> &owner) {
    std::vector<std::int64_t> load(weights.size());
    for (std::size_t b = 0; b < buckets.size(); ++b)
        load[owner[b]] += buckets[b].size;
    return load;
}

std::vector<double> shares(const Weights &weights, const std::vector<BalanceBucket> &buckets) {
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    double total = 0;
    for (const BalanceBucket &bucket : buckets)
        total += static_cast<double>(bucket.size);
    std::vector<double> share;
    for (const double weight : weights)
        share.push_back(total * weight / all);
    return share;
}

/// By the definition, with nothing of the planner's.
bool is_even(const Weights &weights, const std::vector<BalanceBucket> &buckets,
             const std::vector<std::size_t> &owner, double tolerance) {
    const auto load = loads(weights, buckets, owner);
    const auto share = shares(weights, buckets);
    for (std::size_t b = 0; b < buckets.size(); ++b)
        if (weights[owner[b]] == 0) return false;
    for (std::size_t s = 0; s < weights.size(); ++s)
        if (std::abs(static_cast<double>(load[s]) - share[s]) >
            share[s] * tolerance * (1 + 1e-9) + 1e-9)
            return false;
    return true;
}

/// What the plan makes of it. Checks that it is a plan at all.
std::vector<std::size_t> carried_out(const Weights &weights,
                                     const std::vector<BalanceBucket> &buckets,
                                     const BalancePlan &plan) {
    std::vector<std::size_t> owner;
    for (const BalanceBucket &bucket : buckets)
        owner.push_back(bucket.shard);
    std::set<std::size_t> seen;
    for (const BalanceMove &move : plan.moves) {
        EXPECT_TRUE(seen.insert(move.bucket).second) << "bucket moved twice";
        EXPECT_EQ(owner[move.bucket], move.from);
        EXPECT_NE(move.from, move.to);
        EXPECT_FALSE(buckets[move.bucket].pinned);
        EXPECT_GT(weights[move.to], 0);
        owner[move.bucket] = move.to;
    }
    EXPECT_EQ(plan.after, loads(weights, buckets, owner));
    return owner;
}

/// The fewest moves that make it even, by trying every map; -1: none does.
int brute_force(const Weights &weights, const std::vector<BalanceBucket> &buckets,
                double tolerance) {
    std::vector<std::size_t> owner(buckets.size(), 0);
    int best = -1;
    for (;;) {
        int moves = 0;
        bool allowed = true;
        for (std::size_t b = 0; b < buckets.size(); ++b) {
            moves += static_cast<int>(owner[b] != buckets[b].shard);
            allowed = allowed && (!buckets[b].pinned || owner[b] == buckets[b].shard);
        }
        if (allowed && (best < 0 || moves < best) && is_even(weights, buckets, owner, tolerance))
            best = moves;
        std::size_t at = 0;
        while (at < owner.size() && ++owner[at] == weights.size())
            owner[at++] = 0;
        if (at == owner.size()) return best;
    }
}

TEST(RebalancePlan, WhatIsEvenStaysAsItIs) {
    const auto plan = plan_balance({1, 1}, on(0, {10, 20}) + on(1, {15, 15}), 0.05);
    EXPECT_TRUE(plan.moves.empty());
    EXPECT_TRUE(plan.even);
    EXPECT_TRUE(plan.fewest);
    EXPECT_EQ(plan.share, (std::vector<double>{30, 30}));
    // So does what is nearly even, and what is empty.
    EXPECT_TRUE(plan_balance({1, 1}, on(0, {10, 21}) + on(1, {14, 15}), 0.05).moves.empty());
    EXPECT_TRUE(plan_balance({1, 1, 1}, on(0, {0, 0, 0}), 0.05).moves.empty());
    EXPECT_TRUE(plan_balance({1, 1}, {}, 0.05).moves.empty());
}

TEST(RebalancePlan, ANewShardGetsItsShareWithTheLargestBuckets) {
    const auto buckets = on(0, {5, 5, 5, 5, 10, 20}) + on(1, {5, 5, 5, 5, 30});
    const auto plan = plan_balance({1, 1, 1}, buckets, 0.1);
    (void)carried_out({1, 1, 1}, buckets, plan);
    EXPECT_TRUE(plan.even && plan.fewest);
    EXPECT_EQ(plan.moves.size(), static_cast<std::size_t>(brute_force({1, 1, 1}, buckets, 0.1)));
}

TEST(RebalancePlan, WeightsAreShares) {
    const auto plan = plan_balance({1, 3}, on(0, {10, 10, 10, 10}), 0);
    EXPECT_EQ(plan.after, (std::vector<std::int64_t>{10, 30}));
    EXPECT_EQ(plan.moves.size(), 3U);
    EXPECT_TRUE(plan.fewest);
}

TEST(RebalancePlan, AShardOfWeightNothingLosesAllItHasEmptyBucketsToo) {
    const auto buckets = on(0, {0, 0, 7}) + on(1, {7, 7}) + on(2, {7, 0});
    const auto plan = plan_balance({0, 1, 1}, buckets, 0.1);
    const auto owner = carried_out({0, 1, 1}, buckets, plan);
    EXPECT_EQ(std::count(owner.begin(), owner.end(), 0U), 0);
    EXPECT_TRUE(plan.even && plan.fewest);
    EXPECT_EQ(plan.moves.size(), 3U);
    // Without any rows, by number.
    const auto empty = plan_balance({0, 1, 1}, on(0, {0, 0, 0, 0}), 0.1);
    const auto dealt = carried_out({0, 1, 1}, on(0, {0, 0, 0, 0}), empty);
    EXPECT_EQ(std::count(dealt.begin(), dealt.end(), 1U), 2);
}

TEST(RebalancePlan, PinnedBucketsStay) {
    std::vector<BalanceBucket> buckets = on(0, {30, 10, 10, 10});
    buckets[0].pinned = true;
    const auto plan = plan_balance({1, 1}, buckets, 0);
    (void)carried_out({1, 1}, buckets, plan);
    EXPECT_EQ(plan.after, (std::vector<std::int64_t>{30, 30}));
    buckets[0].size = 100;
    const auto uneven = plan_balance({1, 1}, buckets, 0);
    (void)carried_out({1, 1}, buckets, uneven);
    EXPECT_FALSE(uneven.even);
    EXPECT_EQ(uneven.after, (std::vector<std::int64_t>{100, 30}));
    // One that cannot leave a shard that should be empty.
    const auto stuck = plan_balance({0, 1}, buckets, 0);
    (void)carried_out({0, 1}, buckets, stuck);
    EXPECT_FALSE(stuck.even);
    EXPECT_EQ(stuck.after, (std::vector<std::int64_t>{100, 30}));
}

TEST(RebalancePlan, ABucketThatIsTooLargeForItsShareLeavesTheOthersEven) {
    const auto buckets = on(0, {1000, 10, 10, 10}) + on(1, {10, 10, 10, 10, 10, 10}) + on(2, {});
    const auto plan = plan_balance({1, 1, 1}, buckets, 0.05);
    (void)carried_out({1, 1, 1}, buckets, plan);
    EXPECT_FALSE(plan.even);
    auto after = plan.after;
    std::sort(after.begin(), after.end());
    EXPECT_EQ(after[2], 1000);
    EXPECT_LE(after[1] - after[0], 10);
}

TEST(RebalancePlan, TwoBucketsChangePlacesWhereOneIsNotEnough) {
    const auto buckets = on(0, {7, 9}) + on(1, {4, 6});
    const auto plan = plan_balance({1, 1}, buckets, 0);
    (void)carried_out({1, 1}, buckets, plan);
    EXPECT_TRUE(plan.even && plan.fewest);
    EXPECT_EQ(plan.moves.size(), 2U);
}

TEST(RebalancePlan, NoPlanHasMoreMovesThanTheBestOfAllMaps) {
    std::mt19937 random(20261130);
    const auto any = [&random](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    int even = 0, uneven = 0, moves = 0;
    for (int round = 0; round < 300; ++round) {
        const auto shards = static_cast<std::size_t>(any(2, 4));
        const auto count = static_cast<std::size_t>(any(2, shards == 4 ? 7 : 9));
        Weights weights;
        for (std::size_t s = 0; s < shards; ++s)
            weights.push_back(static_cast<double>(any(0, 9) == 0 && s > 0 ? 0 : any(1, 2)));
        std::vector<BalanceBucket> buckets;
        for (std::size_t b = 0; b < count; ++b)
            buckets.push_back(
                {static_cast<std::size_t>(any(0, static_cast<std::int64_t>(shards) - 1)),
                 any(0, 3) == 0 ? any(20, 60) : any(0, 20), any(0, 9) == 0});
        const double tolerance = static_cast<double>(any(0, 4)) * 0.1;
        SCOPED_TRACE(round);
        const BalancePlan plan = plan_balance(weights, buckets, tolerance);
        const auto owner = carried_out(weights, buckets, plan);
        const int fewest = brute_force(weights, buckets, tolerance);
        if (fewest < 0) {
            EXPECT_FALSE(plan.even);
            ++uneven;
            continue;
        }
        EXPECT_TRUE(plan.even);
        EXPECT_TRUE(is_even(weights, buckets, owner, tolerance));
        EXPECT_TRUE(plan.fewest);
        EXPECT_EQ(plan.moves.size(), static_cast<std::size_t>(fewest));
        moves += fewest;
        ++even;
    }
    EXPECT_GT(even, 100);
    EXPECT_GT(moves, even);
    EXPECT_GT(uneven, 50);
}

TEST(RebalancePlan, AClusterOfManyBucketsIsPlannedAtOnce) {
    std::mt19937 random(7);
    std::vector<BalanceBucket> buckets;
    for (std::size_t b = 0; b < 65536; ++b)
        buckets.push_back(
            {b % 15, std::uniform_int_distribution<std::int64_t>(0, 20000)(random), false});
    const Weights weights(16, 1);
    const auto plan = plan_balance(weights, buckets, 0.05);
    (void)carried_out(weights, buckets, plan);
    EXPECT_TRUE(plan.even);
    // The new shard needs a sixteenth of everything less 5 %; the largest buckets are twice the
    // mean.
    EXPECT_LT(plan.moves.size(), 65536 / 16 * 0.6);
    EXPECT_GE(plan.moves.size(), plan.at_least);
    EXPECT_LE(plan.moves.size(), plan.at_least + plan.at_least / 10 + 1);
}

}  // namespace
}  // namespace interlock
