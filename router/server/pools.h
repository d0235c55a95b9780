// All pools of a worker: for each backend login and each shard one, made when first asked for.
//
// A route version uses the pools of its shards. Those that a newer version leaves as they were live
// on under it; the others retire.
#pragma once

#include "route/route_table.h"
#include "server/pool.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// The pools of one login under one route version.
class LoginPools {
  public:
    struct AnyLease {
        ShardIndex shard = 0;
        Lease lease;
    };

    /// `equals`: the shards that any() chooses from, positions in `pools`.
    LoginPools(std::shared_ptr<LoginProfile> profile, std::vector<std::shared_ptr<Pool>> pools,
               std::vector<ShardIndex> equals)
        : profile_(std::move(profile)), pools_(std::move(pools)), equals_(std::move(equals)) {}

    [[nodiscard]] Pool &operator[](ShardIndex shard) const { return *pools_[shard]; }
    /// Whether any() may choose it.
    [[nodiscard]] bool is_shard(ShardIndex shard) const;

    [[nodiscard]] const std::string &login() const { return profile_->login(); }
    /// How the login's sessions begin; null while no backend has been greeted (then: any()).
    [[nodiscard]] const std::shared_ptr<const LoginDefaults> &defaults() const {
        return profile_->defaults();
    }

    /// A backend of any shard, for a statement that each of them can answer; at once, or nothing.
    /// Index databases are no shards: they do not have the tables.
    [[nodiscard]] std::optional<AnyLease> try_any(std::int32_t route_version);
    /// The same, waiting if need be, in turns over the shards. One that is down is passed over: R30
    /// only when all are.
    [[nodiscard]] Task<Result<AnyLease, Refusal>> any(std::int32_t route_version,
                                                      Event *gave_up = nullptr);

  private:
    /// The next place in equals_, in turns.
    [[nodiscard]] std::size_t next_place();

    std::shared_ptr<LoginProfile> profile_;
    std::vector<std::shared_ptr<Pool>> pools_;  ///< by shard
    std::vector<ShardIndex> equals_;
    std::size_t next_ = 0;
};

class Pools {
  public:
    /// `settings` must outlive the pools.
    Pools(Loop &loop, const Settings &settings) : loop_(loop), settings_(settings) {}
    ~Pools() { retire(); }
    Pools(const Pools &) = delete;
    Pools &operator=(const Pools &) = delete;

    /// `table` is in force: pools of shards it does not have, or reaches otherwise, retire.
    void use(std::shared_ptr<const RouteTable> table);

    /// The pools of `login` for a route version. For one that is not in force any more, a shard
    /// that has left since has a pool that refuses.
    [[nodiscard]] std::unique_ptr<LoginPools> make(const std::string &login,
                                                   const RouteTable &table);

    /// Over all logins.
    [[nodiscard]] PoolCounters counters(const std::string &shard) const;
    void for_each(const std::function<void(const std::string &login, Pool &)> &visit) const;

    /// No pool lends any more, for ever.
    void retire();

    /// Has every pool look for connections that have had their time; use() sees to it that this
    /// happens regularly.
    void sweep();

  private:
    struct OfLogin {
        std::shared_ptr<LoginProfile> profile;
        std::map<std::string, std::shared_ptr<Pool>> pools;  ///< by shard name
    };
    [[nodiscard]] std::shared_ptr<Pool> make_pool(const RouteTable &table, const Shard &shard,
                                                  const std::shared_ptr<LoginProfile> &profile);
    struct Ended {
        Event event;
    };
    [[nodiscard]] static Task<void> keep_sweeping(Loop &loop, std::shared_ptr<Ended> ended,
                                                  Pools *pools);
    [[nodiscard]] Millis sweep_interval() const;
    [[nodiscard]] bool in_force(const RouteTable &table, const Shard &shard) const;

    Loop &loop_;
    const Settings &settings_;
    std::shared_ptr<const RouteTable> table_;
    std::shared_ptr<const Declared> declared_;
    std::map<std::string, OfLogin> logins_;
    std::map<std::string, std::shared_ptr<ShardServer>> servers_;  ///< by shard name
    std::shared_ptr<Ended> ended_;  ///< of the sweeping; null: it has not begun
    bool retired_ = false;
};

}  // namespace interlock
