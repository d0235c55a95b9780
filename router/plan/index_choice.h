// Whether a page is answered from a global index or by all shards. Pure.
#pragma once

#include "plan/single_shard.h"
#include "sql/scatter.h"

#include <cstdint>
#include <string>

namespace interlock {

struct IndexChoice {
    enum class Why : std::uint8_t {
        index,        ///< from `index`
        none,         ///< no index has the keyset's name, or it is no page
        not_known,    ///< the keyset's name is a parameter that was not sent
        not_ready,    ///< the index is not filled yet
        other_table,  ///< it is of another table
        hint,         ///< the statement says /* interlock: scatter */
        spelling,     ///< the call is not spelled so that it could be made into the index's
    };
    Why why = Why::none;
    const GlobalIndex *index = nullptr;  ///< not null only where the page comes from it
    std::string name;                    ///< of the keyset, as far as it is known
};

[[nodiscard]] IndexChoice choose_index(const sql::Scatter &scatter, const Values &values,
                                       const RouteTable &routes);

}  // namespace interlock
