// What `interlock repair` says: differences as they are found, progress, and the report at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tools/repair_check.h"

namespace interlock {

/// What has been counted, since the beginning of a run that may have been interrupted.
struct RepairCounts {
    std::int64_t rows = 0;     ///< on the shards
    std::int64_t entries = 0;  ///< live ones
    std::int64_t missing = 0;  ///< rows without a live entry
    std::int64_t stale = 0;    ///< live entries without a row, or with other values
    std::int64_t mended = 0;
    std::int64_t pending = 0;    ///< keys not judged: a change of them is on its way
    std::int64_t parked = 0;     ///< of those, whose change is parked
    std::int64_t elsewhere = 0;  ///< entries that name another shard than the owner

    /// An object with a member for each.
    [[nodiscard]] std::string json() const;
    /// Reads what json() wrote, from the row of `found` with one column for each, in this order.
    void take(const Rows &found, int first_column);
};

/// The run, as the report names it.
struct RepairRun {
    std::string index;
    bool apply = false;
    std::string scope;  ///< JSON, or empty
    std::string shard;  ///< or empty
    bool resumed = false;
};

class RepairReport {
  public:
    RepairReport(const RepairRun &run, bool json, bool verbose);

    /// What a run that goes on, or that will be, should be known for.
    void tell(const std::string &text);
    void difference(const Judged &judged, const std::string &shard);
    /// An entry that could not be mended.
    void refused(const Mended::Refusal &refusal);
    /// Every second or so. `estimate` of the rows there are; 0: not known.
    void progress(const RepairCounts &counts, std::int64_t estimate);
    /// The end; `left` differences remain.
    void finish(const RepairCounts &counts, std::int64_t left);

  private:
    using Clock = std::chrono::steady_clock;

    double seconds() const;
    void clear_line();

    const RepairRun &run_;
    bool json_;
    bool verbose_;
    bool terminal_;
    bool line_shown_ = false;
    std::int64_t shown_ = 0;
    std::int64_t compared_before_ = -1;  ///< by an earlier run that this one goes on with
    Clock::time_point begun_ = Clock::now();
    Clock::time_point last_progress_ = begun_;
};

}  // namespace interlock
