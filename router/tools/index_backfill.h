// Reading the rows of one shard into an index, in the order of their keys.
//
// Beside writers and consumers. An entry is made only where there is none, of a version older than
// any change: a change made after the row was read is either still in the outbox, and will
// overwrite the entry, or has been applied, and then there is an entry already. Where that change
// was a deletion, the entry is a tombstone; so tombstones are held from before the first row is
// read.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/control.h"
#include "tools/index_model.h"
#include "tools/index_options.h"

namespace interlock {

/// Rows per second, for several threads together.
class Throttle {
  public:
    /// 0: no limit.
    explicit Throttle(std::int64_t rows_per_second) : rate_(rows_per_second) {}
    /// Counts rows as read; when the next may be read.
    std::chrono::steady_clock::time_point reserve(std::size_t rows);
    std::int64_t rate() const { return rate_; }

  private:
    const std::int64_t rate_;
    std::mutex mutex_;
    std::chrono::steady_clock::time_point next_{};
};

/// What the threads of a backfill have done so far.
struct BackfillCounters {
    std::atomic<std::int64_t> read = 0;      ///< rows, in this run
    std::atomic<std::int64_t> before = 0;    ///< rows read by runs before
    std::atomic<std::int64_t> entered = 0;   ///< entries that were not there
    std::atomic<std::int64_t> estimate = 0;  ///< rows of all shards, about
    std::atomic<bool> stop = false;
};

class ShardBackfill {
  public:
    ShardBackfill(const IndexAccess &access, std::string index, std::string shard,
                  std::int32_t chunk, bool restart, Throttle &throttle, BackfillCounters &counters)
        : access_(access), index_(std::move(index)), shard_name_(std::move(shard)), chunk_(chunk),
          restart_(restart), throttle_(throttle), counters_(counters) {}

    /// Reads on from where the last one ended. True: to the end; false: told to stop. Connections
    /// that break are made anew, for some minutes. Throws ControlError.
    bool run();

  private:
    void connect();
    void disconnect();
    void require_recording();
    void begin();
    bool step();
    void wait_until(std::chrono::steady_clock::time_point time);

    const IndexAccess &access_;
    const std::string index_;
    const std::string shard_name_;
    const std::int32_t chunk_;
    bool restart_;
    Throttle &throttle_;
    BackfillCounters &counters_;

    std::optional<IndexModel> model_;
    std::unique_ptr<ControlConnection> database_;
    std::unique_ptr<ControlConnection> shard_;
    std::string first_query_, next_query_;
    std::optional<std::string> position_;  ///< key of the last row entered, as JSON
    bool counted_ = false;
    bool finished_ = false;
};

}  // namespace interlock
