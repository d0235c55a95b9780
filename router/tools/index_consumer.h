// A consumer of one shard's outbox for one index: a thread with a session on the shard and one on
// the index database. Any number of them may work on the same, in any number of processes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/control.h"
#include "route/route_table.h"
#include "tools/index_batch.h"

namespace interlock {

/// Durations in milliseconds.
struct ConsumerSettings {
    std::int32_t batch = 2000;
    std::int32_t max_tries = 5;
    std::int64_t poll = 50;            ///< how often an empty outbox is looked at
    std::int64_t timeout = 30000;      ///< connecting, or one statement
    std::int64_t purge = 60000;        ///< how often tombstones are removed
    std::int64_t lag_warning = 60000;  ///< a lag beyond this is logged as a warning
    bool once = false;                 ///< drain, and end
};

/// What a consumer works on. Another one is needed when any of it changes.
struct ConsumerTask {
    std::string index;
    std::string shard;
    std::string shard_conninfo;
    std::string database;
    std::string database_conninfo;
    std::string cluster_id;

    auto operator<=>(const ConsumerTask &) const = default;
};

class IndexConsumer {
  public:
    /// Starts the thread. `ended` is called on it when it ends by itself (once).
    IndexConsumer(ConsumerTask task, std::shared_ptr<const RouteTable> routes,
                  const ConsumerSettings &settings, std::function<void()> ended);
    /// Ends it after the batch in progress.
    ~IndexConsumer();
    IndexConsumer(const IndexConsumer &) = delete;
    IndexConsumer &operator=(const IndexConsumer &) = delete;

    const ConsumerTask &task() const { return task_; }
    /// Makes it end after the batch in progress; does not wait.
    void stop();
    /// New routes; the next session is greeted with their version.
    void set_routes(std::shared_ptr<const RouteTable> routes);

    bool ended() const { return ended_; }
    /// Of one that ended by itself: whether the outbox is drained (else it has been logged why
    /// not).
    bool succeeded() const { return succeeded_; }
    std::uint64_t applied() const { return applied_; }
    std::uint64_t parked() const { return parked_; }
    /// Of one that ended by itself: records that are set aside, those of earlier runs included.
    std::uint64_t aside() const { return aside_; }

  private:
    using Clock = std::chrono::steady_clock;

    /// A point up to which the outbox is being drained: of the index database's clock, and of the
    /// shard's sequence and transactions, asked for after it.
    struct Horizon {
        std::string clock;
        std::string last_seq;
        std::uint64_t next_xid;
    };

    void run();
    void connect();
    void disconnect();
    bool work();
    void drain_once();
    void look_what_is_left();
    void keep_house();
    void note(const BatchOutcome &outcome);
    bool passed_horizon();
    void report(bool drained);
    void rotate();
    void purge();
    void tell_lag();
    void tell_error(const ControlError &error);
    void pause(std::int64_t milliseconds);
    std::shared_ptr<const RouteTable> routes();
    std::string label() const;

    const ConsumerTask task_;
    const ConsumerSettings settings_;
    const BatchRequest request_;
    std::function<void()> on_end_;

    std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false;
    std::shared_ptr<const RouteTable> routes_;
    std::atomic<bool> ended_ = false;
    std::atomic<bool> succeeded_ = false;
    std::atomic<std::uint64_t> applied_ = 0;
    std::atomic<std::uint64_t> parked_ = 0;
    std::atomic<std::uint64_t> aside_ = 0;

    // The thread's own.
    std::unique_ptr<ControlConnection> shard_;
    std::unique_ptr<ControlConnection> database_;
    std::optional<Horizon> horizon_;
    std::string identity_;  ///< for people who look at index_progress
    std::int64_t batch_took_ = 0;
    bool idle_ = false;
    bool fence_pending_ = false;  ///< the next report lets what was drained count
    std::uint64_t unreported_ = 0;
    std::uint64_t unrotated_ = 0;
    std::uint64_t told_applied_ = 0;
    Clock::time_point next_house_{}, next_horizon_{}, next_purge_{}, next_tell_{},
        next_lag_warning_{}, next_error_{};
    std::string last_error_;

    std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace interlock
