// What makes a table what it is, as a list of things that can be compared between two databases.
#pragma once

#include <array>
#include <string_view>

namespace interlock {

/// One kind of thing: a query that gives, for the tables of the keyspace $1,
///   1 the table, 2 the thing's name, 3 by what it is found on the other side, 4 its definition,
///   5 the statement that makes it, 6 the one that removes it, 7 the one that makes it like this.
/// Where a statement is null there is none.
struct ItemKind {
    std::string_view what;  ///< "column": messages say column "a" of table t
    std::string_view query;
    bool missing_refuses;  ///< that the target lacks it is more than a surprise
    bool extra_refuses;    ///< that only the target has it is
};

/// In the order in which they are told: what others depend on first.
extern const std::array<ItemKind, 13> item_kinds;

}  // namespace interlock
