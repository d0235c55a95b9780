// Where a run of `interlock repair` goes on after it was interrupted: kept in the index database.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/control.h"
#include "tools/repair_cluster.h"
#include "tools/repair_report.h"

namespace interlock {

/// A run that was interrupted.
struct InterruptedRun {
    std::string key;  ///< up to which it had compared
    RepairCounts counts;
    std::int64_t left = 0;  ///< differences not mended
    std::string begun;
    std::string outdated;  ///< why it is not gone on with; empty: it is
};

class RepairPosition {
  public:
    /// Of a run: what it compares, and whether it mends. `servers` are those it reads from.
    RepairPosition(ControlConnection &database, const RepairRun &run, RepairServers servers);

    /// The run that was interrupted, if one was. It is outdated if what it has compared may have
    /// been changed since by something that neither the outbox nor the rest of the run would tell:
    /// a long time has passed, or a server has been restored.
    std::optional<InterruptedRun> load();
    void save(const std::string &key, const RepairCounts &counts, std::int64_t left);
    /// The run has ended, or is to begin anew.
    void forget();

  private:
    ControlConnection &database_;
    RepairServers servers_;
    std::string index_;
    std::string part_;
};

}  // namespace interlock
