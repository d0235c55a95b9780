#include "server/prepared.h"

#include <charconv>

namespace interlock {

StatementName::StatementName(std::uint64_t id) {
    text_[0] = 'i';
    text_[1] = 'l';
    text_[2] = '_';
    const auto end = std::to_chars(text_ + 3, text_ + sizeof text_, id).ptr;
    length_ = static_cast<std::size_t>(end - text_);
}

bool PreparedRegistry::find(std::uint64_t id) {
    if (!order_.empty() && order_.front().id == id) return true;
    const auto place = places_.find(id);
    if (place == places_.end()) return false;
    order_.splice(order_.begin(), order_, place->second);
    return true;
}

std::vector<std::uint64_t> PreparedRegistry::add(std::uint64_t id, std::size_t limit) {
    std::vector<std::uint64_t> closed;
    if (find(id)) return closed;
    while (!order_.empty() && places_.size() + 1 > limit) {
        closed.push_back(order_.back().id);
        places_.erase(order_.back().id);
        order_.pop_back();
    }
    order_.push_front({id, 0});
    places_.emplace(id, order_.begin());
    return closed;
}

std::uint64_t PreparedRegistry::result(std::uint64_t id) const {
    if (!order_.empty() && order_.front().id == id) return order_.front().result;
    const auto place = places_.find(id);
    return place == places_.end() ? 0 : place->second->result;
}

void PreparedRegistry::set_result(std::uint64_t id, std::uint64_t fingerprint) {
    const auto place = places_.find(id);
    if (place != places_.end()) place->second->result = fingerprint;
}

void PreparedRegistry::remove(std::uint64_t id) {
    const auto place = places_.find(id);
    if (place == places_.end()) return;
    order_.erase(place->second);
    places_.erase(place);
}

void PreparedRegistry::clear() {
    places_.clear();
    order_.clear();
}

}  // namespace interlock
