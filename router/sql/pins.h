// Pins: which columns of a query level can hold only values that stand in the statement.
//
// A level is one SELECT, UPDATE, DELETE, INSERT or MERGE without the queries inside it. Its
// relations are numbered in the order of its FROM clause, so an arm of a join is a range of them.
#pragma once

#include "route/route_table.h"
#include "sql/facts.h"

#include <cstdint>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock::sql {

/// One value a column may hold.
struct PinSource {
    KeySource key;
    std::uint32_t type = 0;  ///< of the column it was compared with, where it has no type itself
};

/// A column with this pin holds one of these values, or NULL.
struct PinSet {
    std::vector<PinSource> sources;
    placement::KeyFamily family = placement::KeyFamily::integer;
    std::uint32_t weight = 1;  ///< the lighter of two pins is the more precise one
};
using Pin = const PinSet *;  ///< null: not pinned. Owned by the Analyser.

/// A range of relations of a level: [first, end).
struct Range {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
    [[nodiscard]] bool has(std::uint32_t relation) const {
        return relation >= first && relation < end;
    }
};

/// The equality facts of one level and what follows from them.
class PinSolver {
  public:
    void clear();

    /// The node of a column. `pin` is what is known of it from inside (an output of a sub-select).
    std::uint32_t node(std::uint32_t relation, std::uint32_t column, std::uint32_t type, Pin pin);

    /// `node` = one of the values of `pin`, at a qualifier that may pin the relations of `allowed`.
    void bind(std::uint32_t node, Pin pin, Range allowed);
    /// Two columns are equal, at such a qualifier.
    void link(std::uint32_t left, std::uint32_t right, Range allowed);

    /// Draws the conclusions: lightest pins first, along the links, until nothing is added.
    void solve();

    [[nodiscard]] Pin pin_of(std::uint32_t relation, std::uint32_t column) const;
    [[nodiscard]] std::uint32_t type_of(std::uint32_t node) const { return nodes_[node].type; }

  private:
    struct Node {
        std::uint32_t relation;
        std::uint32_t column;
        std::uint32_t type;
        Pin pin;
        std::vector<std::uint32_t> links;
    };
    struct Binding {
        std::uint32_t node;
        Pin pin;
        Range allowed;
    };
    struct Link {
        std::uint32_t left;
        std::uint32_t right;
        Range allowed;
    };
    void spread(std::uint32_t from);

    std::vector<Node> nodes_;
    std::unordered_map<std::uint64_t, std::uint32_t> index_;  ///< of nodes, by relation and column
    std::vector<Binding> bindings_;
    std::vector<Link> links_;
};

}  // namespace interlock::sql
