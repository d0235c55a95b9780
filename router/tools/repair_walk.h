// Walking over an index and its rows side by side, in ranges of the key.
//
// One range at a time is read from the index database and from all shards, under one route version,
// and what does not agree is a candidate: perhaps a fault, perhaps a change that is on its way, or
// one made between two of these reads. Which, RepairCheck tells. What this walk must not do is to
// overlook anything that is wrong throughout:
// * The ends of the ranges are keys, compared by each server itself. Whatever order a server keeps
//   (two might sort text differently), the ends p1, p2, ... begin with "before all keys" and end
//   with "behind all", so for each key k there is a range with NOT k <= pi and k <= pi+1.
// * Under one route version each bucket is answered for by exactly one shard, or a shard refuses
//   the version (IL102) and the range is read again under a newer one; so a bucket that moves
//   meanwhile is neither read twice nor passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/repair_cluster.h"
#include "tools/repair_sql.h"

namespace interlock {

/// What one range held.
struct WalkedRange {
    std::vector<std::string> candidates;  ///< keys
    std::int64_t rows = 0;
    std::int64_t entries = 0;
    std::int64_t elsewhere = 0;  ///< entries that name another shard than the owner
};

class RepairWalk {
  public:
    /// Begins behind `position`, or at the beginning if that is empty. `only`: the name of one
    /// shard; empty: all.
    RepairWalk(RepairCluster &cluster, const RepairSql &sql, const RepairScope &scope,
               std::string only, std::string position);

    /// Compares the next range, of about `size` entries. Throws ControlError; with IL102 the
    /// routes must be renewed, and the call repeated.
    WalkedRange next(std::int32_t size);

    [[nodiscard]] bool ended() const { return ended_; }
    /// The key up to which all has been compared; empty: nothing yet.
    [[nodiscard]] const std::string &position() const { return position_; }

  private:
    struct Range {
        std::string upper;  ///< empty: behind all keys
        std::optional<Rows> entries;
        std::vector<Rows> rows;  ///< by shard
    };

    bool compared(std::size_t shard) const {
        return only_.empty() || cluster_.shard_name(shard) == only_;
    }
    Range read(std::int32_t size);
    std::vector<Param> params(const std::string &upper, std::int32_t limit) const;
    std::vector<Rows> read_rows(const std::string &upper, std::int32_t limit);
    WalkedRange compare(const Range &range) const;

    RepairCluster &cluster_;
    const RepairSql &sql_;
    const RepairScope &scope_;
    std::string only_;
    std::string position_;
    bool ended_ = false;
};

}  // namespace interlock
