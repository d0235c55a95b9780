// Where a run of `interlock repair` goes on after it was interrupted: kept in the index database.
#pragma once

#include <string>

#include "base/control.h"
#include "tools/repair_report.h"

namespace interlock {

class RepairPosition {
  public:
    /// Of a run: what it compares, and whether it mends.
    RepairPosition(ControlConnection &database, const RepairRun &run);

    /// False: no such run was interrupted. Otherwise the key up to which it had compared, what it
    /// had counted, and when it began.
    bool load(std::string &key, RepairCounts &counts, std::string &begun);
    void save(const std::string &key, const RepairCounts &counts);
    /// The run has ended, or is to begin anew.
    void forget();

  private:
    ControlConnection &database_;
    std::string index_;
    std::string part_;
};

}  // namespace interlock
