#include "server/pools.h"

#include <algorithm>

namespace interlock {

namespace {

constexpr Millis sweep_at_least = 20;
constexpr Millis sweep_at_most = 1000;

const Shard *find_shard(const RouteTable &table, const std::string &name) {
    const auto it = std::find_if(table.shards.begin(), table.shards.end(),
                                 [&](const Shard &shard) { return shard.name == name; });
    return it == table.shards.end() ? nullptr : &*it;
}

}  // namespace

// LoginPools --------------------------------------------------------------------------------------

bool LoginPools::is_shard(ShardIndex shard) const {
    return std::find(equals_.begin(), equals_.end(), shard) != equals_.end();
}

std::size_t LoginPools::next_place() {
    if (++next_ >= equals_.size()) next_ = 0;
    return next_;
}

std::optional<LoginPools::AnyLease> LoginPools::try_any(std::int32_t route_version) {
    std::size_t place = next_place();
    for (std::size_t tried = 0; tried < equals_.size(); ++tried) {
        const ShardIndex shard = equals_[place];
        if (auto lease = pools_[shard]->try_acquire(route_version))
            return AnyLease{shard, std::move(*lease)};
        if (++place == equals_.size()) place = 0;
    }
    return std::nullopt;
}

Task<Result<LoginPools::AnyLease, Refusal>> LoginPools::any(std::int32_t route_version,
                                                            Event *gave_up) {
    if (auto lease = try_any(route_version)) co_return std::move(*lease);
    // Those that are known to be down come last: asking them may take a connection attempt's time.
    std::vector<ShardIndex> order;
    const std::size_t first = next_place();
    for (const bool down : {false, true})
        for (std::size_t i = 0; i < equals_.size(); ++i) {
            const ShardIndex shard = equals_[(first + i) % equals_.size()];
            if (pools_[shard]->known_down() == down) order.push_back(shard);
        }
    std::optional<Refusal> refusal;
    for (const ShardIndex shard : order) {
        auto lease = co_await pools_[shard]->acquire(route_version, gave_up);
        if (lease) co_return AnyLease{shard, std::move(*lease)};
        const bool down = lease.error().code == Code::R30;
        if (!refusal || !down) refusal = std::move(lease.error());
        if (!down) break;
    }
    if (!refusal) refusal = make_refusal(Code::R30, "the route table has no shards");
    co_return std::move(*refusal);
}

// Pools -------------------------------------------------------------------------------------------

bool Pools::in_force(const RouteTable &table, const Shard &shard) const {
    if (!table_ || table_->cluster_id != table.cluster_id) return false;
    const Shard *now = find_shard(*table_, shard.name);
    return now != nullptr && now->conninfo == shard.conninfo;
}

std::shared_ptr<Pool> Pools::make_pool(const RouteTable &table, const Shard &shard,
                                       const std::shared_ptr<LoginProfile> &profile) {
    std::shared_ptr<ShardServer> &server = servers_[shard.name];
    if (!server) server = std::make_shared<ShardServer>();
    // `table` may be an older one, which does not know yet what floor the shard must have.
    const Shard *now = table_ ? find_shard(*table_, shard.name) : nullptr;
    const std::int32_t min_floor = now != nullptr ? now->min_floor : shard.min_floor;
    return std::make_shared<Pool>(loop_, settings_,
                                  ExpectedIdentity{table.cluster_id, shard.name, min_floor},
                                  shard.conninfo, profile, server, declared_);
}

Millis Pools::sweep_interval() const {
    Millis shortest = sweep_at_most;
    for (const Millis limit : {settings_.max_lifetime, settings_.idle_timeout})
        if (limit > 0) shortest = std::min(shortest, limit / 10);
    return std::max(shortest, sweep_at_least);
}

// The pools may end while this waits; then they say so.
Task<void> Pools::keep_sweeping(Loop &loop, std::shared_ptr<Ended> ended, Pools *pools) {
    while (!ended->event.is_set()) {
        const Millis next = loop.now() + pools->sweep_interval();
        const Fired fired = co_await Wait(loop, next).event(ended->event);
        if (fired.none()) pools->sweep();
    }
}

void Pools::sweep() {
    for (auto &[login, of_login] : logins_)
        for (auto &[shard, pool] : of_login.pools)
            pool->sweep();
}

void Pools::use(std::shared_ptr<const RouteTable> table) {
    if (!ended_ && !retired_) {
        ended_ = std::make_shared<Ended>();
        spawn(keep_sweeping(loop_, ended_, this));
    }
    table_ = std::move(table);
    declared_ = Declared::of(*table_, declared_);
    for (auto &[login, of_login] : logins_) {
        std::erase_if(of_login.pools, [&](const auto &entry) {
            Pool &pool = *entry.second;
            const Shard *shard = find_shard(*table_, pool.shard());
            if (shard != nullptr && shard->conninfo == pool.conninfo() &&
                pool.identity().cluster_id == table_->cluster_id) {
                pool.use(declared_, shard->min_floor);
                return false;
            }
            pool.retire();
            return true;
        });
    }
}

std::unique_ptr<LoginPools> Pools::make(const std::string &login, const RouteTable &table) {
    OfLogin &of_login = logins_[login];
    if (!of_login.profile) of_login.profile = std::make_shared<LoginProfile>(login);
    std::vector<std::shared_ptr<Pool>> pools;
    std::vector<ShardIndex> equals;
    for (const Shard &shard : table.shards) {
        if (!shard.index_only) equals.push_back(static_cast<ShardIndex>(pools.size()));
        if (retired_ || !in_force(table, shard)) {
            pools.push_back(make_pool(table, shard, of_login.profile));
            pools.back()->retire();
            continue;
        }
        std::shared_ptr<Pool> &pool = of_login.pools[shard.name];
        if (!pool) pool = make_pool(table, shard, of_login.profile);
        pools.push_back(pool);
    }
    return std::make_unique<LoginPools>(of_login.profile, std::move(pools), std::move(equals));
}

PoolCounters Pools::counters(const std::string &shard) const {
    PoolCounters sum;
    for (const auto &[login, of_login] : logins_) {
        const auto pool = of_login.pools.find(shard);
        if (pool != of_login.pools.end()) sum += pool->second->counters();
    }
    return sum;
}

void Pools::for_each(const std::function<void(const std::string &, Pool &)> &visit) const {
    for (const auto &[login, of_login] : logins_)
        for (const auto &[shard, pool] : of_login.pools)
            visit(login, *pool);
}

void Pools::retire() {
    retired_ = true;
    if (ended_) ended_->event.set();
    for (auto &[login, of_login] : logins_) {
        for (auto &[shard, pool] : of_login.pools)
            pool->retire();
        of_login.pools.clear();
    }
}

}  // namespace interlock
