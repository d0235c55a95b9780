// What the sessions of one loop share: routes in force, pools, the shape cache, budgets, counters.
//
// A worker belongs to one thread and shares nothing with another.
#pragma once

#include "base/loop.h"
#include "base/settings.h"
#include "route/route_table.h"
#include "server/pools.h"
#include "sql/shape_cache.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace interlock {

/// A route table and the pools of its shards. Held by each transaction that began under it.
class Routes {
  public:
    Routes(std::shared_ptr<const RouteTable> table, std::shared_ptr<Pools> pools, Millis taken)
        : table(std::move(table)), taken(taken), pools_(std::move(pools)) {}

    /// The pools of a backend login; "" is the login of the connection strings. Made when first
    /// asked for; the address holds as long as these routes.
    [[nodiscard]] LoginPools &pools_for(std::string_view login) const;

    const std::shared_ptr<const RouteTable> table;
    /// When the worker took them, with what they announce: by its loop's clock.
    const Millis taken;

  private:
    std::shared_ptr<Pools> pools_;
    mutable std::map<std::string, std::unique_ptr<LoginPools>, std::less<>> logins_;
};

/// A client of a listener, as the worker sees it.
class Client {
  public:
    virtual ~Client() = default;
    /// The router is stopping: end as soon as no transaction is in progress.
    virtual void stop_soon() = 0;
};

struct CatalogState {
    std::int32_t rejected_version = -1;  ///< -1: none since the table in force was taken
    std::string rejected_why;
    bool reachable = false;
    std::string error;
};

/// Statements that all shards answer together, for STATUS.
struct ScatterCounters {
    std::uint64_t started = 0;
    std::uint64_t failed = 0;      ///< refused before anything was sent included
    std::uint64_t partial = 0;     ///< answered without some shards
    std::uint64_t statements = 0;  ///< sent to shards
    std::uint64_t fetched = 0;     ///< rows read from shards for a merge
    std::uint64_t returned = 0;    ///< rows given to clients
    std::uint64_t cancelled = 0;   ///< backends whose statement had to be cancelled
    std::size_t draining = 0;      ///< backends whose statement nobody waits for any more
    Event drained;                 ///< set when that comes to 0
};

/// Pages answered from global indexes, for STATUS. What they send to shards and read from them is
/// counted with the scatters.
struct IndexPageCounters {
    std::uint64_t pages = 0;
    std::uint64_t failed = 0;  ///< refused before anything was sent included
    std::uint64_t rounds = 0;
    std::uint64_t entries = 0;   ///< walked past
    std::uint64_t filtered = 0;  ///< of those, the ones whose row was gone, or elsewhere
};

/// Statements that met a move of buckets, for STATUS.
struct RouteCounters {
    std::uint64_t held = 0;    ///< held back: their bucket was announced to move
    std::uint64_t resent = 0;  ///< sent again: a shard refused them, having done nothing
    std::uint64_t failed = 0;  ///< told to their client (40001), which has to begin again
    std::size_t waiting = 0;   ///< for routes, now
};

class ClientAuth;
class RouteWaiter;

class Worker {
  public:
    Worker(Loop &loop, Settings settings);
    ~Worker();
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

    [[nodiscard]] Loop &loop() const { return loop_; }
    [[nodiscard]] const Settings &settings() const { return settings_; }
    /// Pools and sessions read the settings at each use, so this takes effect at once.
    void replace_settings(Settings settings) { settings_ = std::move(settings); }

    /// The routes in force; null before the first table.
    [[nodiscard]] const std::shared_ptr<const Routes> &routes() const { return routes_; }
    /// Takes a table the watcher has accepted. Pools of shards that are unchanged live on.
    void use_table(std::shared_ptr<const RouteTable> table);
    /// Pools of all logins, for counters and the like; statements use their routes'.
    [[nodiscard]] const Pools &pools() const { return *pools_; }

    [[nodiscard]] sql::ShapeCache &shapes() { return shapes_; }
    CatalogState catalog;

    /// Has the catalog looked at now, not at the next poll, and returns the number of that look;
    /// set by whoever watches the catalog, who says when it was done. Tables it has brought come
    /// before.
    std::function<std::uint64_t()> look_at_catalog;
    void catalog_looked(std::uint64_t number);
    [[nodiscard]] std::uint64_t looked() const { return looked_; }
    /// Whoever waits for routes is to look again what it waits for.
    void wake_route_waiters();
    RouteCounters moves;

    void add_client(Client *client) { clients_.insert(client); }
    void remove_client(Client *client);
    [[nodiscard]] std::size_t client_count() const { return clients_.size(); }

    /// Refuses new transactions and asks every client to end; `finished` is called when none is
    /// left.
    void stop_soon(std::function<void()> finished);
    [[nodiscard]] bool stopping() const { return stopping_; }

    /// Rules for logging in to the PostgreSQL listener; null when there is none.
    std::shared_ptr<ClientAuth> client_auth;
    /// Connections of the PostgreSQL listener: logged in or about to prove who they are; and all
    /// that have not logged in yet. open_connection() keeps these counts.
    std::size_t line_clients = 0;
    std::size_t pg_clients = 0;
    std::size_t pg_starting = 0;

    /// Shared with what tidies up behind a scatter, in the background.
    const std::shared_ptr<ScatterCounters> scatters = std::make_shared<ScatterCounters>();
    IndexPageCounters index_pages;

    /// Bytes of requests not yet complete and of answers not yet taken, over all sessions.
    std::size_t buffered_bytes = 0;

  private:
    friend class RouteWaiter;

    Loop &loop_;
    Settings settings_;
    std::vector<RouteWaiter *> route_waiters_;
    std::uint64_t looked_ = 0;
    std::shared_ptr<Pools> pools_;
    std::shared_ptr<const Routes> routes_;
    sql::ShapeCache shapes_;
    std::unordered_set<Client *> clients_;
    bool stopping_ = false;
    std::function<void()> finished_;
};

}  // namespace interlock
