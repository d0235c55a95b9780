#include "tools/rebalance_plan.h"

#include "tools/rebalance_state.h"

namespace interlock {

BalancePlan plan_balance(const std::vector<double> &weights,
                         const std::vector<BalanceBucket> &buckets, double tolerance,
                         std::size_t effort) {
    const BalanceState given(weights, buckets, tolerance);
    BalanceState start = given;
    BalanceState best = start;
    improve_balance(best);
    // What helps most at each step may lead nowhere; among few buckets there is time to look.
    std::size_t first_effort = effort / 2;
    effort -= first_effort;
    for (std::size_t moves = fewest_imaginable(start);
         !best.even() && moves <= buckets.size() && first_effort > 0; ++moves) {
        BalanceState other = start;
        if (find_balance(other, moves, first_effort)) best = other;
    }
    if (!best.even()) {
        // As even as that, but with fewer moves.
        best.settle_for_present();
        improve_balance(best);
        start = best;
        for (std::size_t b = 0; b < buckets.size(); ++b)
            start.move(b, start.origin(b));
    }

    BalancePlan plan;
    plan.at_least = fewest_imaginable(start);
    while (plan.at_least < best.moved()) {
        BalanceState other = start;
        if (find_balance(other, plan.at_least, effort)) best = other;
        if (effort == 0 || best.moved() <= plan.at_least) break;
        ++plan.at_least;
    }
    plan.fewest = best.moved() <= plan.at_least;

    BalanceState done = given;
    for (std::size_t b = 0; b < buckets.size(); ++b)
        if (best.owner(b) != best.origin(b)) {
            plan.moves.push_back({b, best.origin(b), best.owner(b)});
            done.move(b, best.owner(b));
        }
    plan.even = done.even();
    for (const BalanceBucket &bucket : buckets)
        if (bucket.pinned && done.drained(bucket.shard)) plan.even = false;
    for (std::size_t s = 0; s < weights.size(); ++s) {
        plan.share.push_back(best.share(s));
        plan.before.push_back(start.load(s));
        plan.after.push_back(best.load(s));
    }
    return plan;
}

}  // namespace interlock
