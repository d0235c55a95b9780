// Which statements are prepared on a backend, least recently used first out.
//
// Statements have numbers that all clients share (the same text and parameter types, the same
// number); the name on the server is made from the number, so that any client's use of it finds
// what another one has prepared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock {

/// The server-side name of statement `id`: "il_" and the number. Held in place, nothing allocated.
class StatementName {
  public:
    explicit StatementName(std::uint64_t id);
    [[nodiscard]] std::string_view view() const { return {text_, length_}; }

  private:
    char text_[24];
    std::size_t length_;
};

class PreparedRegistry {
  public:
    /// Whether the statement is prepared here; it then counts as used just now. Allocates nothing.
    [[nodiscard]] bool find(std::uint64_t id);

    /// What its rows look like on this backend, as a fingerprint; 0: not known. Only for one that
    /// is prepared here.
    [[nodiscard]] std::uint64_t result(std::uint64_t id) const;
    void set_result(std::uint64_t id, std::uint64_t fingerprint);

    /// Notes that the statement is prepared (its Parse is on its way) and returns those that must
    /// be closed, so that at most `limit` are left. Never the added one.
    [[nodiscard]] std::vector<std::uint64_t> add(std::uint64_t id, std::size_t limit);

    /// The statement is not prepared after all (its Parse failed), or was closed.
    void remove(std::uint64_t id);
    /// All are gone (DISCARD ALL, DEALLOCATE ALL).
    void clear();

    [[nodiscard]] std::size_t size() const { return places_.size(); }

  private:
    struct Entry {
        std::uint64_t id;
        std::uint64_t result;
    };
    using Order = std::list<Entry>;
    Order order_;  ///< the most recently used first
    std::unordered_map<std::uint64_t, Order::iterator> places_;
};

}  // namespace interlock
