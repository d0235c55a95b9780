#include "sql/shape_cache.h"

namespace interlock::sql {

void ShapeCache::use(const std::shared_ptr<const RouteTable> &routes) {
    if (routes == routes_) return;
    index_.clear();
    entries_.clear();
    routes_ = routes;
}

std::shared_ptr<const Statement> ShapeCache::find(std::string_view text,
                                                  const std::shared_ptr<const RouteTable> &routes) {
    if (routes != routes_) return nullptr;
    const auto it = index_.find(text);
    if (it == index_.end()) return nullptr;
    if (it->second != entries_.begin()) entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->statement;
}

void ShapeCache::insert(std::string_view text, const std::shared_ptr<const RouteTable> &routes,
                        std::shared_ptr<const Statement> statement) {
    if (text.size() > max_text_) return;
    use(routes);
    if (index_.contains(text)) return;
    if (entries_.size() >= capacity_) {
        index_.erase(entries_.back().text);
        entries_.pop_back();
    }
    entries_.push_front({std::string(text), std::move(statement)});
    index_.emplace(entries_.front().text, entries_.begin());
}

}  // namespace interlock::sql
