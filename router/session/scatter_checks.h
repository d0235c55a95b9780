// What must hold before a scatter sends anything: bounds, and what the shards have told of
// themselves. Pure.
#pragma once

#include "base/result.h"
#include "plan/scatter_values.h"
#include "server/login.h"
#include "server/surroundings.h"
#include "session/scatter_merge.h"
#include "sql/facts.h"
#include "sql/refusal.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// What the statement asks for, before the shards are known.
struct ScatterWish {
    std::string keyset;  ///< its name, of a page
    std::optional<std::uint64_t> page_size;
    bool backward = false;  ///< the page before a cursor
    ScatterWindow window;   ///< of the others
    std::uint64_t max_rows = 0;
};

/// What is sent and given out.
struct ScatterExtent {
    std::uint64_t fetch = 0;            ///< rows a shard may send
    std::uint64_t skip = 0;             ///< of the merged ones, before the first for the client
    std::optional<std::uint64_t> give;  ///< rows for the client at most
    std::uint64_t default_page = 0;     ///< what to put in where the statement has none
};

/// Reads the statement's values. Refuses what is wrong with them, and more rows than `max_rows`
/// (ROW_BUDGET); a page without a size is bounded when the keyset is known.
[[nodiscard]] Result<ScatterWish, Refusal>
scatter_wish(const sql::Scatter &scatter, const Values &values, std::uint64_t max_rows);

struct ShardFacts {
    std::string_view name;
    const Surroundings *surroundings = nullptr;
};

/// The refusal of a scatter, or its extent. `stale`: the shards' answer may be another one by now,
/// and is worth asking for again.
struct ScatterVerdict {
    std::optional<Refusal> refusal;
    bool stale = false;
    ScatterExtent extent;
};

/// Judges by what the shards (at least one) know of the table and the keyset: PAGE_TOO_LARGE,
/// ROW_BUDGET, NOT_TOTAL_ORDER, SHARDS_DISAGREE, SCATTER_UNSUPPORTED, R26 (names that could mean
/// something else under this search path), 42704 (no such keyset).
[[nodiscard]] ScatterVerdict judge_scatter(const sql::Facts &facts, const Table &table,
                                           const ScatterWish &wish,
                                           std::span<const ShardFacts> shards,
                                           const std::vector<std::string> &search_path);

/// The same of a page from a global index, before anything is asked: its size, and bounds.
[[nodiscard]] ScatterVerdict judge_index_page(const ScatterWish &wish, const GlobalIndex &index);
/// Of one shard that is to give rows for its entries; `digest` is the index's (empty: not known),
/// which is in `database`.
[[nodiscard]] ScatterVerdict judge_index_rows(const ScatterWish &wish, std::string_view digest,
                                              const ShardFacts &shard, std::string_view database);
/// R26: names could mean something else there.
[[nodiscard]] std::optional<Refusal> judge_names(const sql::Facts &facts, const ShardFacts &shard,
                                                 const std::vector<std::string> &search_path);
/// A member may begin the login's sessions with another search_path since names were looked up
/// under `judged` (null: not looked at): R30.
[[nodiscard]] std::optional<Refusal>
judge_defaults(const std::shared_ptr<const LoginDefaults> &judged,
               const std::shared_ptr<const LoginDefaults> &begun);

/// Two rows, of these shards, have equal sort keys.
[[nodiscard]] Refusal equal_places(const std::string &one, const std::string &other);
/// What is wrong with a row's sort key; not for KeyFault::none.
[[nodiscard]] Refusal bad_key(KeyFault fault, const std::string &shard);

}  // namespace interlock
