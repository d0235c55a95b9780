// What the analysis found out about a statement: the facts a plan is made from.
#pragma once

#include "route/route_table.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace interlock::sql {

struct Facts;

enum class Kind : std::uint8_t {
    begin,
    commit,
    rollback,
    select,
    page,  ///< of a keyset, from all shards
    insert,
    update,
    remove
};

struct Placeholder {
    std::uint16_t column = 0;  ///< of the table: the value is stored there, or compared with it
    bool operand = false;      ///< of + or -, which may want another type than the column's
};

/// One shape, analysed. Points into the route table it was analysed under, which must outlive it.
struct Statement {
    Kind kind = Kind::select;
    const Table *table = nullptr;         ///< null for transaction control
    std::string text;                     ///< what is sent to the shard, parameters as $n
    std::vector<Placeholder> parameters;  ///< in the order of the text
    std::vector<std::uint16_t> keys;      ///< placeholders (from 0) that hold shard keys
    std::shared_ptr<const Facts> facts;   ///< of a page's `text`, its Scatter among them

    [[nodiscard]] bool transaction_control() const { return kind <= Kind::rollback; }
    /// Whether the parameter's type is the column's: always, but for + and - on dates and the like.
    [[nodiscard]] bool typed_as_column(std::size_t parameter) const;
    /// OID of the parameter's type, 0 to leave it to the server (types made by users).
    [[nodiscard]] std::uint32_t parameter_type(std::size_t parameter) const;
    [[nodiscard]] bool writes() const { return kind >= Kind::insert; }
};

}  // namespace interlock::sql
