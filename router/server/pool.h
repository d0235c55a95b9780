// Connections to one shard: at most pool_size of them, lent one session at a time, first come first
// served.
//
// Every backend is in exactly one place: idle (in idle_), being connected (counted), or lent (a
// Lease). A lease that is not explicitly released ends the connection: what is not proven clean is
// closed, never lent again.
#pragma once

#include "base/settings.h"
#include "server/backend.h"
#include "sql/refusal.h"

#include <list>
#include <memory>
#include <string>
#include <vector>

namespace interlock {

class Pool;

/// A lent backend.
class Lease {
  public:
    Lease() = default;
    Lease(std::shared_ptr<Pool> pool, std::unique_ptr<Backend> backend);
    Lease(Lease &&other) noexcept = default;
    Lease &operator=(Lease &&other) noexcept;
    ~Lease() { discard(); }

    explicit operator bool() const { return backend_ != nullptr; }
    Backend *operator->() const { return backend_.get(); }
    Backend &operator*() const { return *backend_; }

    /// Gives the backend back for the next borrower. Only for one that is idle ('I') and whose
    /// exchange was read to its end.
    void release();
    /// Ends the connection; the server rolls back whatever was open.
    void discard();

  private:
    std::shared_ptr<Pool> pool_;
    std::unique_ptr<Backend> backend_;
};

struct PoolCounters {
    std::size_t idle = 0;
    std::size_t borrowed = 0;
    std::size_t waiting = 0;
    std::uint64_t created = 0;
    std::uint64_t destroyed = 0;
};

class Pool : public std::enable_shared_from_this<Pool> {
  public:
    /// `settings` must outlive the pool; it is read at each use, so a reload takes effect at once.
    Pool(Loop &loop, const Settings &settings, ExpectedIdentity identity, std::string conninfo);
    ~Pool();

    /// A backend ready for statements under `route_version`. Refuses: the shard cannot be reached
    /// or is not the one expected (R30), none came free in time (R33), too many wait (R34). In all
    /// of these nothing was sent.
    [[nodiscard]] Task<Result<Lease, Refusal>> acquire(std::int32_t route_version);

    /// No more lending: idle connections end now, lent ones when they come back.
    void retire();

    [[nodiscard]] PoolCounters counters() const;
    [[nodiscard]] const std::string &shard() const { return identity_.shard; }
    [[nodiscard]] const std::string &conninfo() const { return conninfo_; }

  private:
    friend class Lease;
    struct Waiting {
        Event ready;
        std::unique_ptr<Backend> backend;
        std::string failure;
    };
    void take_back(std::unique_ptr<Backend> backend);
    void destroyed(std::unique_ptr<Backend> backend);
    void connect_if_needed();
    [[nodiscard]] Task<void> connect_one();
    void hand_out(std::unique_ptr<Backend> backend);
    void fail_waiting(const std::string &failure);
    void became_readable(Backend *backend);
    [[nodiscard]] Refusal unavailable(const std::string &why) const;
    [[nodiscard]] std::size_t total() const { return idle_.size() + lent_ + connecting_; }

    Loop &loop_;
    const Settings &settings_;
    ExpectedIdentity identity_;
    std::string conninfo_;
    std::vector<std::unique_ptr<Backend>> idle_;  ///< the most recently used last
    std::list<Waiting *> waiting_;                ///< in order of arrival
    std::size_t lent_ = 0;
    std::size_t connecting_ = 0;
    std::uint64_t created_ = 0;
    std::uint64_t destroyed_ = 0;
    std::int32_t newest_route_version_ = 0;
    bool retired_ = false;

    // Failing attempts that took long are not repeated for everyone: until then, callers are told
    // the last failure at once. Quick failures (connection refused) are simply tried again.
    Millis quiet_until_ = 0;
    Millis backoff_ = 0;
    std::string last_failure_;
    bool failure_logged_ = false;
};

}  // namespace interlock
