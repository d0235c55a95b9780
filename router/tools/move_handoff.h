// What the two shards know of a move, and what must not be gone on with.
#pragma once

#include <cstdint>
#include <string>

#include "tools/move_model.h"

namespace interlock {

/// What a shard knows of a move.
struct HandoffState {
    bool known = false;
    std::string state;  ///< begun, fenced, decided; importing, active; aborted
    std::int32_t version = 0;
    std::int32_t fence = 0;
};

[[nodiscard]] HandoffState read_handoff(ControlConnection &shard, const std::string &id);

/// Of a move that is not published. Throws ControlError if the target has taken the buckets over
/// but the source does not know (any more) that it gave them away: both take writes, and nothing
/// that this move could do next is right.
void require_decision(const MoveSession &session, const std::string &id, const HandoffState &source,
                      const HandoffState &target);

/// Of a decided move whose reservation the catalog has lost. Throws ControlError if it has lost
/// more than that: a route version under which any shard gave buckets away. The next one would have
/// them at their old owners.
void require_whole_history(MoveSession &session, const MoveRequest &request, std::int32_t decided);

}  // namespace interlock
