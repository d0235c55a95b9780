// The target follows the source: how far it is behind, and whether it gets anywhere at all.
#pragma once

#include <chrono>
#include <deque>
#include <utility>

#include "tools/move_model.h"
#include "tools/move_record.h"
#include "tools/move_slot.h"

namespace interlock {

/// The slot has gone, or the WAL that it needs: the move has to copy again.
class SlotLost : public ControlError {
  public:
    using ControlError::ControlError;
};

/// How old what the target has not applied yet may be: places in the source's WAL, with the times
/// at which they were its end. Each look makes a new one, so that it is seen as soon as it is so.
class FollowMarks {
  public:
    using Time = std::chrono::steady_clock::time_point;

    explicit FollowMarks(std::chrono::milliseconds close);

    /// What is written now.
    void note(Time now, std::int64_t written);
    /// Whether all that was written `close` ago, or some time since then, is applied.
    [[nodiscard]] bool reached(Time now, std::int64_t applied);

  private:
    std::chrono::milliseconds close_;
    std::deque<std::pair<Time, std::int64_t>> marks_;
};

class MoveFollow {
  public:
    MoveFollow(MoveSession &session, MoveRecord &record, MoveStream &stream,
               MoveObserver &observer);

    /// Until what is written at the source is at the target `close` ms later. Throws SlotLost, or
    /// ControlError if the target makes no headway for a minute, or fails at the same place.
    void until_caught_up(std::int64_t close);

  private:
    /// How often the target has failed to apply something, in all its tries.
    std::int64_t receiver_failures();
    std::string receiver_troubles();
    ControlError does_not_follow();

    MoveSession &session_;
    MoveRecord &record_;
    MoveStream &stream_;
    MoveObserver &observer_;
};

}  // namespace interlock
