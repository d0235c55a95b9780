// The rows of the buckets, as one snapshot of the source has them, copied to the target.
#pragma once

#include <string>
#include <vector>

#include "tools/move_model.h"
#include "tools/move_record.h"

namespace interlock {

class MoveCopy {
  public:
    MoveCopy(const MoveRequest &request, MoveSession &session, MoveRecord &record,
             MoveObserver &observer);

    /// Removes what an earlier copy of this move has left at the target.
    void clear_target();

    /// Copies all tables and returns the number of rows; each second what has come is committed.
    /// Throws ControlError; what has come by then clear_target() removes.
    std::int64_t run(const std::string &snapshot);

  private:
    std::unique_ptr<ControlConnection> writer();
    std::unique_ptr<ControlConnection> reader(const std::string &snapshot);
    void be_the_only_one(ControlConnection &target);
    std::string condition(const MovedTable &table) const;

    const MoveRequest &request_;
    MoveSession &session_;
    MoveRecord &record_;
    MoveObserver &observer_;
};

/// Settings that the text of values depends on, alike on both sides. Part of a SELECT's list.
extern const char *const same_text_settings;

}  // namespace interlock
