// What the analysis found out about a statement: the facts a plan is made from.
#pragma once

#include "route/route_table.h"

#include <cstdint>
#include <string>
#include <vector>

namespace interlock::sql {

enum class Kind : std::uint8_t { begin, commit, rollback, select, insert, update, remove };

/// One shape, analysed. Points into the route table it was analysed under, which must outlive it.
struct Statement {
    Kind kind = Kind::select;
    const Table *table = nullptr;             ///< null for transaction control
    std::string text;                         ///< what is sent to the shard, parameters as $n
    std::vector<std::uint16_t> parameters;    ///< for each placeholder, the column whose type it has
    std::vector<std::uint16_t> keys;          ///< placeholders (from 0) that hold shard keys

    [[nodiscard]] bool transaction_control() const { return kind <= Kind::rollback; }
    [[nodiscard]] bool writes() const { return kind >= Kind::insert; }
};

}  // namespace interlock::sql
