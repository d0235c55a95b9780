#include "tools/rebalance_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace interlock {

BalanceState::BalanceState(const std::vector<double> &weights,
                           const std::vector<BalanceBucket> &buckets, double tolerance)
    : buckets_(&buckets), load_(weights.size()), owner_(buckets.size()), movable_(weights.size()) {
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    double total = 0;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
        owner_[b] = buckets[b].shard;
        load_[owner_[b]] += buckets[b].size;
        total += static_cast<double>(buckets[b].size);
        if (!buckets[b].pinned) movable_[owner_[b]].emplace(buckets[b].size, b);
    }
    for (const double weight : weights) {
        share_.push_back(total * weight / all);
        drained_.push_back(weight == 0);
        // A whole number that is at the bound shall be within it, however the share is rounded.
        const double rounding = 1e-9 * share_.back();
        lower_.push_back(share_.back() * (1 - tolerance) - rounding);
        upper_.push_back(share_.back() * (1 + tolerance) + rounding);
    }
}

double BalanceState::fault(std::size_t shard, std::int64_t load) const {
    const auto has = static_cast<double>(load);
    const double out = std::max({0.0, has - upper_[shard], lower_[shard] - has});
    return out * out / std::max(share_[shard], 1.0);
}

double BalanceState::fault() const {
    double all = 0;
    for (std::size_t s = 0; s < shards(); ++s)
        all += fault(s, load_[s]);
    return all;
}

bool BalanceState::over(std::size_t shard) const {
    if (drained_[shard]) return !movable_[shard].empty();
    return static_cast<double>(load_[shard]) > upper_[shard];
}

bool BalanceState::under(std::size_t shard) const {
    return static_cast<double>(load_[shard]) < lower_[shard];
}

void BalanceState::move(std::size_t bucket, std::size_t to) {
    const std::size_t from = owner_[bucket];
    const std::size_t home = origin(bucket);
    if (from == to) return;
    moved_ += static_cast<std::size_t>(from == home);
    moved_ -= static_cast<std::size_t>(to == home);
    movable_[from].erase({size(bucket), bucket});
    movable_[to].emplace(size(bucket), bucket);
    load_[from] -= size(bucket);
    load_[to] += size(bucket);
    owner_[bucket] = to;
}

void BalanceState::settle_for_present() {
    for (std::size_t s = 0; s < shards(); ++s) {
        lower_[s] = std::min(lower_[s], static_cast<double>(load_[s]));
        upper_[s] = std::max(upper_[s], static_cast<double>(load_[s]));
    }
}

bool BalanceState::even() const {
    for (std::size_t s = 0; s < shards(); ++s)
        if (over(s) || under(s) || static_cast<double>(load_[s]) > upper_[s]) return false;
    return true;
}

namespace {

using Movable = BalanceState::Movable;

/// One bucket to another shard, or two that change places.
struct Step {
    double gain = 0;
    std::size_t bucket = 0, to = 0;
    std::optional<std::size_t> back;
};

class Improver {
  public:
    explicit Improver(BalanceState &state) : state_(state) {}

    void run() {
        empty_the_drained();
        while (state_.fault() > 0) {
            Step best;
            for (std::size_t from = 0; from < state_.shards(); ++from)
                for (std::size_t to = 0; to < state_.shards(); ++to)
                    consider(from, to, best);
            if (best.gain <= least_gain_)
                for (std::size_t from = 0; from < state_.shards(); ++from)
                    for (std::size_t to = 0; to < state_.shards(); ++to)
                        consider_exchange(from, to, best);
            // Ever less is gained, so this ends.
            if (best.gain <= least_gain_) break;
            const std::size_t from = state_.owner(best.bucket);
            state_.move(best.bucket, best.to);
            if (best.back) state_.move(*best.back, from);
        }
        take_back();
        join();
    }

  private:
    bool takes(std::size_t shard) const { return !state_.drained(shard); }

    /// The largest first, each to the shard that is then nearest to its share.
    void empty_the_drained() {
        for (std::size_t s = 0; s < state_.shards(); ++s)
            while (state_.drained(s) && !state_.movable(s).empty()) {
                const std::size_t bucket = state_.movable(s).rbegin()->second;
                std::size_t to = s;
                double least = std::numeric_limits<double>::infinity();
                for (std::size_t r = 0; r < state_.shards(); ++r) {
                    if (!takes(r)) continue;
                    // Where everything is empty, by the number of buckets.
                    const double full =
                        state_.share(r) > 0
                            ? static_cast<double>(state_.load(r) + state_.size(bucket)) /
                                  state_.share(r)
                            : static_cast<double>(state_.movable(r).size());
                    if (full < least) {
                        least = full;
                        to = r;
                    }
                }
                state_.move(bucket, to);
            }
    }

    double gain(std::size_t from, std::size_t to, std::int64_t amount) const {
        const std::int64_t had = state_.load(from), has = state_.load(to);
        return state_.fault(from, had) - state_.fault(from, had - amount) + state_.fault(to, has) -
               state_.fault(to, has + amount);
    }

    /// Amounts at which the gain of moving something has its best or changes its course.
    std::vector<double> turning_points(std::size_t from, std::size_t to) const {
        const auto had = static_cast<double>(state_.load(from));
        const auto has = static_cast<double>(state_.load(to));
        const double excess = had - state_.upper(from), lack = state_.lower(to) - has;
        const double a = std::max(state_.share(from), 1.0), b = std::max(state_.share(to), 1.0);
        return {excess, lack, had - state_.lower(from), state_.upper(to) - has,
                (std::max(excess, 0.0) / a + std::max(lack, 0.0) / b) / (1 / a + 1 / b)};
    }

    void consider(std::size_t from, std::size_t to, Step &best) const {
        if (from == to || !takes(to) || (!state_.over(from) && !state_.under(to))) return;
        const Movable &own = state_.movable(from);
        const auto look = [&](Movable::const_iterator bucket) {
            const double gained = gain(from, to, bucket->first);
            if (gained > best.gain) best = {gained, bucket->second, to, {}};
        };
        for (const double point : turning_points(from, to)) {
            if (point < 0) continue;
            const auto after = own.lower_bound({static_cast<std::int64_t>(std::ceil(point)), 0});
            if (after != own.end()) look(after);
            if (after != own.begin()) look(std::prev(after));
        }
    }

    /// Two moves: one bucket there, a smaller one back.
    void consider_exchange(std::size_t from, std::size_t to, Step &best) const {
        if (from == to || !takes(to) || (!state_.over(from) && !state_.under(to))) return;
        const Movable &own = state_.movable(from), &other = state_.movable(to);
        for (const auto &mine : own)
            for (const double point : turning_points(from, to)) {
                if (point < 0) continue;
                const auto wanted = mine.first - static_cast<std::int64_t>(std::floor(point));
                const auto after = other.lower_bound({wanted, 0});
                const auto look = [&](Movable::const_iterator back) {
                    const double gained = gain(from, to, mine.first - back->first);
                    if (gained > best.gain) best = {gained, mine.second, to, back->second};
                };
                if (after != other.end()) look(after);
                if (after != other.begin()) look(std::prev(after));
            }
    }

    std::vector<std::size_t> moved() const {
        std::vector<std::size_t> all;
        for (std::size_t b = 0; b < state_.buckets(); ++b)
            if (state_.owner(b) != state_.origin(b)) all.push_back(b);
        return all;
    }

    /// Moves that turned out not to be needed, the largest first.
    void take_back() {
        std::vector<std::size_t> all = moved();
        std::sort(all.begin(), all.end(),
                  [this](std::size_t a, std::size_t b) { return state_.size(a) > state_.size(b); });
        for (const std::size_t bucket : all) {
            if (state_.drained(state_.origin(bucket))) continue;
            const double before = state_.fault();
            const std::size_t to = state_.owner(bucket);
            state_.move(bucket, state_.origin(bucket));
            if (state_.fault() > before) state_.move(bucket, to);
        }
    }

    /// Two buckets that go the same way are one, if a third does as well as both.
    void join() {
        constexpr std::size_t too_many = 200;
        const std::vector<std::size_t> all = moved();
        if (all.size() > too_many) return;
        for (std::size_t i = 0; i < all.size(); ++i)
            for (std::size_t j = i + 1; j < all.size() && going(all[i]); ++j)
                if (going(all[j]) && state_.origin(all[i]) == state_.origin(all[j]) &&
                    state_.owner(all[i]) == state_.owner(all[j]))
                    join(all[i], all[j]);
    }

    bool going(std::size_t bucket) const {
        return state_.owner(bucket) != state_.origin(bucket) &&
               !state_.drained(state_.origin(bucket));
    }

    void join(std::size_t one, std::size_t other) {
        const double before = state_.fault();
        const std::size_t from = state_.origin(one), to = state_.owner(one);
        state_.move(one, from);
        state_.move(other, from);
        constexpr std::size_t enough = 50;
        std::vector<std::size_t> thirds;
        const Movable &own = state_.movable(from);
        for (auto third = own.lower_bound({std::max(state_.size(one), state_.size(other)), 0});
             third != own.end() && thirds.size() < enough; ++third)
            if (third->second != one && third->second != other &&
                state_.origin(third->second) == from)
                thirds.push_back(third->second);
        for (const std::size_t third : thirds) {
            state_.move(third, to);
            if (state_.fault() <= before) return;
            state_.move(third, from);
        }
        state_.move(one, to);
        state_.move(other, to);
    }

    // Of what is squared: nothing that a person would call an improvement.
    static constexpr double least_gain_ = 1e-9;

    BalanceState &state_;
};

}  // namespace

void improve_balance(BalanceState &state) {
    Improver(state).run();
}

}  // namespace interlock
