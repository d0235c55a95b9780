#include "sql/shape_cache.h"

namespace interlock::sql {

template <typename Analysis>
void BasicShapeCache<Analysis>::use(const std::shared_ptr<const RouteTable> &routes) {
    if (routes == routes_) return;
    index_.clear();
    entries_.clear();
    routes_ = routes;
}

template <typename Analysis>
std::shared_ptr<const Analysis> BasicShapeCache<Analysis>::find(
    std::string_view text, const std::shared_ptr<const RouteTable> &routes, std::uint32_t context) {
    if (routes != routes_) return nullptr;
    const auto it = index_.find({context, text});
    if (it == index_.end()) return nullptr;
    if (it->second != entries_.begin()) entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->analysis;
}

template <typename Analysis>
void BasicShapeCache<Analysis>::insert(std::string_view text,
                                       const std::shared_ptr<const RouteTable> &routes,
                                       std::shared_ptr<const Analysis> analysis,
                                       std::uint32_t context) {
    if (text.size() > max_text_) return;
    use(routes);
    if (index_.contains({context, text})) return;
    if (entries_.size() >= capacity_) {
        index_.erase(entries_.back().key());
        entries_.pop_back();
    }
    entries_.push_front({context, std::string(text), std::move(analysis)});
    index_.emplace(entries_.front().key(), entries_.begin());
}

template class BasicShapeCache<Statement>;
template class BasicShapeCache<Facts>;

}  // namespace interlock::sql
