// Analysed statements by their text, the least recently used given up first.
//
// In `strict` every value is a parameter, so the text is the shape; in `single-shard` the text is
// that of a Shape (sql/shape.h). Entries point into a route table; the cache keeps that table alive
// and forgets everything when another one is used.
#pragma once

#include "sql/facts.h"
#include "sql/statement.h"

#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace interlock::sql {

template <typename Analysis>
class BasicShapeCache {
  public:
    /// At most `capacity` shapes; texts longer than `max_text` bytes are not kept. So the cache
    /// holds less than about capacity * 3 * max_text bytes of Statements, and ten times that of
    /// Facts (a list of as many keys as the text has room for).
    explicit BasicShapeCache(std::size_t capacity = 2048, std::size_t max_text = 4096)
        : capacity_(capacity), max_text_(max_text) {}

    /// The analysis of `text` under `routes`, or null. It stays valid while it is held together
    /// with its route table, whatever the cache forgets meanwhile. `context` stands for whatever
    /// else the analysis went by: a number for each search_path in use. Allocates nothing.
    [[nodiscard]] std::shared_ptr<const Analysis>
    find(std::string_view text, const std::shared_ptr<const RouteTable> &routes,
         std::uint32_t context = 0);
    void insert(std::string_view text, const std::shared_ptr<const RouteTable> &routes,
                std::shared_ptr<const Analysis> analysis, std::uint32_t context = 0);

    [[nodiscard]] std::size_t size() const { return entries_.size(); }

  private:
    struct Key {
        std::uint32_t context;
        std::string_view text;
        bool operator==(const Key &) const = default;
    };
    struct Entry {
        std::uint32_t context;
        std::string text;
        std::shared_ptr<const Analysis> analysis;
        [[nodiscard]] Key key() const { return {context, text}; }
    };
    struct Hash {
        std::size_t operator()(const Key &key) const {
            return XXH3_64bits_withSeed(key.text.data(), key.text.size(), key.context);
        }
    };
    void use(const std::shared_ptr<const RouteTable> &routes);

    std::size_t capacity_;
    std::size_t max_text_;
    std::shared_ptr<const RouteTable> routes_;
    std::list<Entry> entries_;  ///< most recently used first
    std::unordered_map<Key, typename std::list<Entry>::iterator, Hash> index_;
};

extern template class BasicShapeCache<Statement>;
extern template class BasicShapeCache<Facts>;

using ShapeCache = BasicShapeCache<Statement>;  ///< of the `strict` profile
/// Of the `single-shard` profile. Whoever inserts keeps out facts that are not cacheable, and
/// texts of several statements.
using FactsCache = BasicShapeCache<Facts>;

}  // namespace interlock::sql
