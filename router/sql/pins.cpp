#include "sql/pins.h"

#include <algorithm>

namespace interlock::sql {

namespace {

std::uint64_t place(std::uint32_t relation, std::uint32_t column) {
    return std::uint64_t{relation} << 32 | column;
}

}  // namespace

void PinSolver::clear() {
    nodes_.clear();
    index_.clear();
    bindings_.clear();
    links_.clear();
}

std::uint32_t PinSolver::node(std::uint32_t relation, std::uint32_t column, std::uint32_t type,
                              Pin pin) {
    const auto next = static_cast<std::uint32_t>(nodes_.size());
    const auto [found, added] = index_.insert({place(relation, column), next});
    if (added) nodes_.push_back({relation, column, type, pin, {}});
    return found->second;
}

void PinSolver::bind(std::uint32_t node, Pin pin, Range allowed) {
    bindings_.push_back({node, pin, allowed});
}

void PinSolver::link(std::uint32_t left, std::uint32_t right, Range allowed) {
    if (left == right) return;
    const auto link = static_cast<std::uint32_t>(links_.size());
    links_.push_back({left, right, allowed});
    nodes_[left].links.push_back(link);
    nodes_[right].links.push_back(link);
}

// What a pinned column's partners may hold: over each link only towards a relation that the link's
// qualifier may pin.
void PinSolver::spread(std::uint32_t from) {
    std::vector<std::uint32_t> queue = {from};
    while (!queue.empty()) {
        const std::uint32_t at = queue.back();
        queue.pop_back();
        const Pin pin = nodes_[at].pin;
        for (const std::uint32_t index : nodes_[at].links) {
            const Link &link = links_[index];
            const std::uint32_t other = link.left == at ? link.right : link.left;
            Node &node = nodes_[other];
            if (!link.allowed.has(node.relation)) continue;
            if (node.pin != nullptr && node.pin->weight <= pin->weight) continue;
            node.pin = pin;
            queue.push_back(other);
        }
    }
}

void PinSolver::solve() {
    std::stable_sort(bindings_.begin(), bindings_.end(), [](const Binding &a, const Binding &b) {
        return a.pin->weight < b.pin->weight;
    });
    for (const Binding &binding : bindings_) {
        Node &node = nodes_[binding.node];
        if (!binding.allowed.has(node.relation)) continue;
        if (node.pin != nullptr && node.pin->weight <= binding.pin->weight) continue;
        node.pin = binding.pin;
        spread(binding.node);
    }
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].pin != nullptr) spread(i);
}

Pin PinSolver::pin_of(std::uint32_t relation, std::uint32_t column) const {
    const auto found = index_.find(place(relation, column));
    return found == index_.end() ? nullptr : nodes_[found->second].pin;
}

}  // namespace interlock::sql
