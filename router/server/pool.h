// Connections of one login to one shard: at most pool_size of them, lent one session at a time,
// first come first served.
//
// Every backend is in exactly one place: idle (in idle_), being connected (counted), being cleaned
// (counted), or lent (a Lease). A lease that is not explicitly released ends the connection: what
// is not proven clean is closed, never lent again.
#pragma once

#include "base/settings.h"
#include "server/backend.h"
#include "server/greeting.h"
#include "sql/refusal.h"

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace interlock {

class Pool;

/// A lent backend. Two pointers: the pool outlives its leases.
class Lease {
  public:
    Lease() = default;
    Lease(Pool &pool, std::unique_ptr<Backend> backend)
        : pool_(&pool), backend_(std::move(backend)) {}
    Lease(Lease &&other) noexcept = default;
    Lease &operator=(Lease &&other) noexcept;
    ~Lease() { discard(); }

    explicit operator bool() const { return backend_ != nullptr; }
    Backend *operator->() const { return backend_.get(); }
    Backend &operator*() const { return *backend_; }

    /// Gives the backend back for the next borrower. Only for one that is idle ('I') and whose
    /// exchange was read to its end.
    void release();
    /// The same for one that may have run code of users, which can leave anything in the session:
    /// it is cleaned before anyone else gets it, without the caller waiting for that.
    void release_after_reset();
    /// Ends the connection; the server rolls back whatever was open.
    void discard();

  private:
    Pool *pool_ = nullptr;
    std::unique_ptr<Backend> backend_;
};

struct PoolCounters {
    std::size_t idle = 0;
    std::size_t borrowed = 0;  ///< those being cleaned included
    std::size_t waiting = 0;
    std::uint64_t created = 0;
    std::uint64_t destroyed = 0;

    PoolCounters &operator+=(const PoolCounters &other);
};

class Pool : public std::enable_shared_from_this<Pool> {
  public:
    /// `settings` must outlive the pool; it is read at each use, so a reload takes effect at once.
    /// `login` is shared by the login's pools on all shards, `server` by the pools of all logins on
    /// the shard.
    Pool(Loop &loop, const Settings &settings, ExpectedIdentity identity, std::string conninfo,
         std::shared_ptr<LoginProfile> login, std::shared_ptr<ShardServer> server,
         std::shared_ptr<const Declared> declared);

    /// Backends that were greeted with other declarations are not lent any more; those that had a
    /// lower floor are asked again before they are.
    void use(std::shared_ptr<const Declared> declared, std::int32_t min_floor) {
        declared_ = std::move(declared);
        identity_.min_floor = min_floor;
    }

    /// A backend at once, if there is nothing to wait for: the most recently used idle one, which
    /// needs no proof of life and works under `route_version` already. Else nothing: acquire().
    [[nodiscard]] std::optional<Lease> try_acquire(std::int32_t route_version) {
        if (idle_.empty() || !waiting_.empty() || !ready_to_lend(*idle_.back(), route_version))
            return std::nullopt;
        return lend_idle();
    }

    /// A backend ready for statements under `route_version`. Refuses: the shard cannot be reached
    /// or is not the one expected (R30), none came free in time (R33), too many wait (R34), the
    /// caller's client gave up (R36, 57014). In all of these nothing was sent. `gave_up` must
    /// outlive the call and have no other waiter.
    [[nodiscard]] Task<Result<Lease, Refusal>> acquire(std::int32_t route_version,
                                                       Event *gave_up = nullptr);

    /// Closes idle connections that are too old, unused too long, or not to be lent any more. To be
    /// called now and then.
    void sweep();

    /// No more lending: idle connections end now, lent ones when they come back. Must be called
    /// before the last owner lets go of the pool.
    void retire();

    [[nodiscard]] PoolCounters counters() const;
    [[nodiscard]] const std::string &shard() const { return identity_.shard; }
    [[nodiscard]] const std::string &conninfo() const { return conninfo_; }
    [[nodiscard]] const ExpectedIdentity &identity() const { return identity_; }
    /// Nothing is connected and the last attempt failed.
    [[nodiscard]] bool known_down() const {
        return failure_logged_ && idle_.empty() && lent_ == 0 && cleaning_ == 0;
    }

  private:
    friend class Lease;
    struct Waiting {
        Event ready;
        std::unique_ptr<Backend> backend;
        std::string failure;
    };
    /// Began its session as the login's sessions begin now, knows the surroundings of what is
    /// declared now, and leads to a server that was not replaced since.
    [[nodiscard]] bool current(const Backend &backend) const {
        return backend.defaults() == login_->defaults() &&
               backend.surroundings().declared() == declared_ &&
               backend.server_generation() == server_->generation();
    }
    /// Its server may be one that has lost a decision which was made known after it was greeted.
    [[nodiscard]] bool floor_in_doubt(const Backend &backend) const {
        return backend.floor() < identity_.min_floor;
    }
    [[nodiscard]] bool needs_proof(const Backend &backend) const {
        return settings_.idle_check > 0 && loop_.now() - backend.idle_since > settings_.idle_check;
    }
    [[nodiscard]] bool too_old(const Backend &backend) const;
    [[nodiscard]] bool ready_to_lend(const Backend &backend, std::int32_t route_version) const {
        return backend.route_version() == route_version && current(backend) &&
               !floor_in_doubt(backend) && !needs_proof(backend);
    }
    [[nodiscard]] Lease lend_idle() {
        std::unique_ptr<Backend> backend = std::move(idle_.back());
        idle_.pop_back();
        ++lent_;
        return Lease(*this, std::move(backend));
    }
    void take_back(std::unique_ptr<Backend> backend);
    [[nodiscard]] Task<void> clean(std::unique_ptr<Backend> backend);
    void destroyed(std::unique_ptr<Backend> backend);
    void connect_if_needed();
    [[nodiscard]] Task<void> connect_one();
    void hand_out(std::unique_ptr<Backend> backend);
    void fail_waiting(const std::string &failure);
    void became_readable(Backend *backend);
    void end_if_unused();
    [[nodiscard]] Refusal unavailable(const std::string &why) const;
    [[nodiscard]] Refusal too_many_wait() const;
    [[nodiscard]] Refusal none_came_free() const;
    [[nodiscard]] std::size_t total() const {
        return idle_.size() + lent_ + connecting_ + cleaning_;
    }

    Loop &loop_;
    const Settings &settings_;
    ExpectedIdentity identity_;
    std::string conninfo_;
    std::shared_ptr<LoginProfile> login_;
    std::shared_ptr<ShardServer> server_;
    std::shared_ptr<const Declared> declared_;
    std::vector<std::unique_ptr<Backend>> idle_;  ///< the most recently used last
    std::list<Waiting *> waiting_;                ///< in order of arrival
    std::size_t lent_ = 0;
    std::size_t connecting_ = 0;
    std::size_t cleaning_ = 0;
    std::uint64_t created_ = 0;
    std::uint64_t destroyed_ = 0;
    std::int32_t newest_route_version_ = 0;
    bool retired_ = false;
    std::shared_ptr<Pool> self_;  ///< a retired pool lives on until its leases are back

    // Failing attempts that took long are not repeated for everyone: until then, callers are told
    // the last failure at once. Quick failures (connection refused) are simply tried again.
    Millis quiet_until_ = 0;
    Millis backoff_ = 0;
    std::string last_failure_;
    bool failure_logged_ = false;
};

}  // namespace interlock
