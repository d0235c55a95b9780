#include "session/scatter_merge.h"

#include <utility>

namespace interlock {

MergeOrder::MergeOrder(std::size_t streams) : heads_(streams), losers_(streams, none) {}

bool MergeOrder::before(std::size_t one, std::size_t other) const {
    const Head &a = heads_[one];
    const Head &b = heads_[other];
    if (a.ended || b.ended) return b.ended && (!a.ended || one < other);
    const int order = a.key.compare(b.key);
    return order < 0 || (order == 0 && one < other);
}

// Node i plays its children 2i and 2i + 1; streams are the nodes from `streams` on. Any number of
// streams makes such a tree.
void MergeOrder::build() {
    const std::size_t streams = heads_.size();
    std::vector<std::size_t> winners(2 * streams);
    for (std::size_t i = 0; i < streams; ++i)
        winners[streams + i] = i;
    for (std::size_t node = streams - 1; node > 0; --node) {
        std::size_t winner = winners[2 * node];
        std::size_t loser = winners[2 * node + 1];
        if (before(loser, winner)) std::swap(winner, loser);
        winners[node] = winner;
        losers_[node] = loser;
    }
    losers_[0] = streams == 1 ? 0 : winners[1];
    built_ = true;
}

// Only for the winner: on its way up are exactly those that lost against it.
void MergeOrder::replay(std::size_t stream) {
    std::size_t winner = stream;
    for (std::size_t node = (heads_.size() + stream) / 2; node > 0; node /= 2)
        if (before(losers_[node], winner)) std::swap(losers_[node], winner);
    losers_[0] = winner;
}

void MergeOrder::head(std::size_t stream, std::string_view key) {
    heads_[stream].key = key;
    if (built_) replay(stream);
}

void MergeOrder::end(std::size_t stream) {
    heads_[stream] = Head{.key = {}, .ended = true};
    if (built_) replay(stream);
}

std::size_t MergeOrder::least() {
    if (heads_.empty()) return none;
    if (!built_) build();
    return heads_[losers_[0]].ended ? none : losers_[0];
}

std::size_t MergeOrder::rival() {
    const std::size_t winner = least();
    for (std::size_t node = (heads_.size() + winner) / 2; node > 0; node /= 2) {
        const Head &other = heads_[losers_[node]];
        if (!other.ended && other.key == heads_[winner].key) return losers_[node];
    }
    return none;
}

KeyFault KeyCheck::take(std::string_view key, std::string_view digest) {
    if (key.empty() || key.size() < digest.size()) return KeyFault::malformed;
    if (!key.starts_with(digest)) return KeyFault::digest;
    if (any_) {
        const int order = std::string_view(last_).compare(key);
        if (order > 0) return KeyFault::falls;
        if (order == 0) return KeyFault::repeats;
    }
    any_ = true;
    last_.assign(key);
    return KeyFault::none;
}

}  // namespace interlock
