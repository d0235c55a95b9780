// The search for a plan with fewer moves.
#include "tools/rebalance_state.h"

#include <algorithm>
#include <limits>

namespace interlock {

namespace {

constexpr std::size_t impossible = std::numeric_limits<std::size_t>::max();

/// Depth first over plans of so many moves. A bucket that was moved stays there: so whoever has too
/// much must give something of its own, and whoever has too little must be given something. One
/// such shard is chosen, and everything that it may give, or be given, is tried: no plan is missed.
class Search {
  public:
    Search(BalanceState &state, std::size_t &effort)
        : state_(state), effort_(effort), moved_(state.buckets()) {
        for (std::size_t s = 0; s < state.shards(); ++s)
            for (const auto &bucket : state.movable(s))
                largest_.push_back(bucket.second);
        std::sort(largest_.begin(), largest_.end(),
                  [&state](std::size_t a, std::size_t b) { return state.size(a) > state.size(b); });
    }

    /// Moves that are needed at least from here.
    std::size_t bound() const {
        std::size_t given = 0, taken = 0;
        for (std::size_t s = 0; s < state_.shards(); ++s) {
            if (state_.over(s) || over_by_pinned(s)) {
                const std::size_t own = departures(s);
                if (own == impossible) return impossible;
                given += own;
            } else if (state_.under(s)) {
                const std::size_t own = arrivals(s);
                if (own == impossible) return impossible;
                taken += own;
            }
        }
        return std::max(given, taken);
    }

    bool run(std::size_t moves) {
        if (effort_ == 0) return false;
        --effort_;
        if (bound() > moves) return false;
        for (std::size_t s = 0; s < state_.shards(); ++s)
            if (state_.over(s)) return give(s, moves);
        for (std::size_t s = 0; s < state_.shards(); ++s)
            if (state_.under(s)) return take(s, moves);
        return true;
    }

  private:
    /// Nothing can be done about it: what makes it too full stays.
    bool over_by_pinned(std::size_t shard) const {
        return static_cast<double>(state_.load(shard)) > state_.upper(shard);
    }

    std::size_t departures(std::size_t shard) const {
        std::size_t count = 0;
        double excess = static_cast<double>(state_.load(shard)) - state_.upper(shard);
        const auto &own = state_.movable(shard);
        for (auto bucket = own.rbegin(); bucket != own.rend(); ++bucket) {
            if (moved_[bucket->second]) continue;
            if (excess <= 0 && !state_.drained(shard)) return count;
            excess -= static_cast<double>(bucket->first);
            ++count;
        }
        return excess <= 0 ? count : impossible;
    }

    std::size_t arrivals(std::size_t shard) const {
        std::size_t count = 0;
        double lack = state_.lower(shard) - static_cast<double>(state_.load(shard));
        for (const std::size_t bucket : largest_) {
            if (lack <= 0) return count;
            if (moved_[bucket] || state_.owner(bucket) == shard) continue;
            lack -= static_cast<double>(state_.size(bucket));
            ++count;
        }
        return lack <= 0 ? count : impossible;
    }

    /// Of those that are as large as each other one is as good as any: those that do the most good
    /// by themselves first, the smallest of them before larger ones.
    std::vector<std::size_t> candidates(std::size_t shard, double need) const {
        std::vector<std::size_t> enough, less;
        std::int64_t last = -1;
        for (const auto &[size, bucket] : state_.movable(shard)) {
            if (moved_[bucket] || size == last) continue;
            last = size;
            (static_cast<double>(size) >= need ? enough : less).push_back(bucket);
        }
        enough.insert(enough.end(), less.rbegin(), less.rend());
        return enough;
    }

    bool try_move(std::size_t bucket, std::size_t to, std::size_t moves) {
        const std::size_t from = state_.owner(bucket);
        state_.move(bucket, to);
        moved_[bucket] = true;
        if (run(moves - 1)) return true;
        moved_[bucket] = false;
        state_.move(bucket, from);
        return false;
    }

    bool give(std::size_t from, std::size_t moves) {
        if (moves == 0) return false;
        std::vector<std::size_t> choice;
        if (state_.drained(from)) {
            // Each of them must go: the order does not matter.
            choice = candidates(from, std::numeric_limits<double>::infinity());
            choice.resize(1);
        } else {
            choice = candidates(from, static_cast<double>(state_.load(from)) - state_.upper(from));
        }
        for (const std::size_t bucket : choice)
            for (std::size_t to = 0; to < state_.shards(); ++to) {
                if (to == from || state_.drained(to) || same_as_earlier(to, from)) continue;
                if (try_move(bucket, to, moves)) return true;
                if (effort_ == 0) return false;
            }
        return false;
    }

    bool take(std::size_t to, std::size_t moves) {
        if (moves == 0 || state_.drained(to)) return false;
        const double need = state_.lower(to) - static_cast<double>(state_.load(to));
        for (std::size_t from = 0; from < state_.shards(); ++from) {
            if (from == to) continue;
            for (const std::size_t bucket : candidates(from, need)) {
                if (try_move(bucket, to, moves)) return true;
                if (effort_ == 0) return false;
            }
        }
        return false;
    }

    /// New shards are alike: what was tried with one need not be tried with the next.
    bool same_as_earlier(std::size_t shard, std::size_t giver) const {
        if (!state_.movable(shard).empty()) return false;
        for (std::size_t s = 0; s < shard; ++s)
            if (s != giver && !state_.drained(s) && state_.movable(s).empty() &&
                state_.load(s) == state_.load(shard) && state_.lower(s) == state_.lower(shard) &&
                state_.upper(s) == state_.upper(shard))
                return true;
        return false;
    }

    BalanceState &state_;
    std::size_t &effort_;
    std::vector<bool> moved_;
    std::vector<std::size_t> largest_;
};

}  // namespace

std::size_t fewest_imaginable(const BalanceState &state) {
    BalanceState copy = state;
    std::size_t none = 0;
    return Search(copy, none).bound();
}

bool find_balance(BalanceState &state, std::size_t moves, std::size_t &effort) {
    return Search(state, effort).run(moves);
}

}  // namespace interlock
