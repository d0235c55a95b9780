// Watches the catalog and delivers route tables.
//
// A thread of its own with an ordinary libpq connection: it listens for a notification and also
// polls the version, reads a new version in one REPEATABLE READ READ ONLY transaction (so version
// and map come from one snapshot), and delivers it only if it may replace the table in force. The
// data path never waits for the catalog.
#pragma once

#include "base/fd.h"
#include "route/route_table.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace interlock {

/// Called on the watcher's thread.
struct CatalogEvents {
    /// A table that replaces the one in force.
    std::function<void(std::shared_ptr<const RouteTable>)> replaced;
    /// Returns when what `replaced` has handed over is in force, or is not soon. May be empty.
    std::function<void()> settled = {};
    /// A version that was not taken, and why. Once for each version and reason.
    std::function<void(std::int32_t version, std::string why)> rejected;
    /// Whether the catalog answers; called when that changes.
    std::function<void(bool reachable, std::string error)> reachable;
    /// A look that was asked for is done. May be empty.
    std::function<void(std::uint64_t number)> looked;
};

/// A watcher's session on the catalog holds a shared advisory lock (this, n): its router
/// acts on everything up to announcement n (interlock.cluster.announcement, its lower 31 bits).
inline constexpr std::int32_t announcement_lock = 0x494c5254;

class CatalogWatcher {
  public:
    /// Intervals in milliseconds. The first connection is tried at once.
    CatalogWatcher(std::string conninfo, std::int64_t poll_interval, std::int64_t timeout,
                   CatalogEvents events);
    /// Ends the thread; waits for a query in progress (bounded by the timeout).
    ~CatalogWatcher();
    CatalogWatcher(const CatalogWatcher &) = delete;
    CatalogWatcher &operator=(const CatalogWatcher &) = delete;

    /// Looks at the catalog as soon as it can, not at the next poll. Safe from any thread. Returns
    /// the look's number; CatalogEvents::looked says when it, and all before it, are done.
    std::uint64_t look_now();

    /// Takes effect with the next poll.
    void set_intervals(std::int64_t poll_interval, std::int64_t timeout);

  private:
    void run();
    void watch_one_connection();
    void look(class ControlConnection &catalog);
    void read(class ControlConnection &catalog);
    void read_what_is_announced(class ControlConnection &catalog);
    void take(class ControlConnection &catalog, CatalogRows rows);
    void tell_mover(class ControlConnection &catalog);
    void reject(std::int32_t version, const std::string &why);
    [[nodiscard]] bool just_rejected(std::int32_t version) const;
    void report(bool reachable, const std::string &error);
    void pause(std::int64_t milliseconds);
    void forget_wake();

    std::string conninfo_;
    std::atomic<std::int64_t> poll_interval_;
    std::atomic<std::int64_t> timeout_;
    CatalogEvents events_;
    UniqueFd wake_;
    std::atomic<bool> stopping_ = false;
    std::atomic<std::uint64_t> looks_asked_ = 0;

    // The thread's own.
    std::uint64_t looks_done_ = 0;
    std::int32_t current_version_ = 0;
    std::int64_t current_announcements_ = 0;
    CatalogRows rows_;               ///< that the table in force was built from
    std::string current_published_;  ///< when: tells a version from another of the same number
    std::string cluster_id_;
    std::int32_t rejected_version_ = 0;
    std::string rejected_why_;
    std::int64_t next_full_look_ = 0;
    int reachable_ = -1;  ///< unknown, no, yes
    std::string error_;   ///< why not

    std::thread thread_;  ///< last: it uses all of the above
};

/// Reads version `version` of the catalog and everything that belongs to it. Throws ControlError.
/// The caller has a transaction open whose snapshot all queries share.
[[nodiscard]] CatalogRows read_catalog(class ControlConnection &catalog);

}  // namespace interlock
