// What the router must know of a scatter before it sends anything: values that stand in its text or
// parameters, and which shards answer. Pure.
#pragma once

#include "plan/single_shard.h"
#include "sql/scatter.h"

#include <optional>
#include <string>
#include <vector>

namespace interlock {

/// The value of an integer (a page's size, LIMIT), or nothing: absent or NULL. R27 where it is no
/// integer in a plain form, or of a type that is none. `what` names it in messages.
[[nodiscard]] Result<std::optional<std::int64_t>, Refusal>
scatter_integer(const sql::ValueSource &source, const Values &values, std::string_view what);

/// The value of a text (a keyset's name), in the client's encoding, or nothing: absent or NULL.
[[nodiscard]] Result<std::optional<std::string>, Refusal>
scatter_text(const sql::ValueSource &source, const Values &values, std::string_view what);

/// Whether a value is there and not NULL (a cursor that leads backwards). R27: no such parameter.
[[nodiscard]] Result<bool, Refusal> scatter_given(const sql::ValueSource &source,
                                                  const Values &values);

/// Which rows of the merged ones the client gets.
struct ScatterWindow {
    std::optional<std::uint64_t> limit;  ///< nothing: all
    std::uint64_t offset = 0;
    /// Rows a shard may have to give; nothing: all it has.
    [[nodiscard]] std::optional<std::uint64_t> rows() const {
        return limit ? std::optional(*limit + offset) : std::nullopt;
    }
};

/// LIMIT and OFFSET. Negative ones are refused as PostgreSQL refuses them; an ordered scatter
/// without a limit is SCATTER_UNSUPPORTED.
[[nodiscard]] Result<ScatterWindow, Refusal> scatter_window(const sql::Scatter &scatter,
                                                            const Values &values);

/// The shards that own a bucket of the keyspace, in ascending order.
[[nodiscard]] std::vector<ShardIndex> shards_of_keyspace(const RouteTable &routes,
                                                         std::uint16_t keyspace);

}  // namespace interlock
