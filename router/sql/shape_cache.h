// Analysed statements by their text, the least recently used given up first.
//
// In `strict` every value is a parameter, so the text is the shape. Entries point into a route
// table; the cache keeps that table alive and forgets everything when another one is used.
#pragma once

#include "sql/statement.h"

#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace interlock::sql {

class ShapeCache {
  public:
    /// At most `capacity` shapes; texts longer than `max_text` bytes are not kept. So the cache
    /// holds less than about capacity * 3 * max_text bytes.
    explicit ShapeCache(std::size_t capacity = 2048, std::size_t max_text = 4096)
        : capacity_(capacity), max_text_(max_text) {}

    /// The analysis of `text` under `routes`, or null. It stays valid while it is held together
    /// with its route table, whatever the cache forgets meanwhile.
    [[nodiscard]] std::shared_ptr<const Statement>
    find(std::string_view text, const std::shared_ptr<const RouteTable> &routes);
    void insert(std::string_view text, const std::shared_ptr<const RouteTable> &routes,
                std::shared_ptr<const Statement> statement);

    [[nodiscard]] std::size_t size() const { return entries_.size(); }

  private:
    struct Entry {
        std::string text;
        std::shared_ptr<const Statement> statement;
    };
    struct Hash {
        std::size_t operator()(std::string_view text) const {
            return static_cast<std::size_t>(placement::xxh3_64(text.data(), text.size()));
        }
    };
    void use(const std::shared_ptr<const RouteTable> &routes);

    std::size_t capacity_;
    std::size_t max_text_;
    std::shared_ptr<const RouteTable> routes_;
    std::list<Entry> entries_;  ///< most recently used first
    std::unordered_map<std::string_view, std::list<Entry>::iterator, Hash> index_;
};

}  // namespace interlock::sql
