#include "tools/repair_cluster.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "placement.h"

namespace interlock {

namespace {

constexpr const char *application = "interlock repair";

bool same_columns(const IndexModel &one, const IndexModel &other) {
    const auto equal = [](const IndexColumn &a, const IndexColumn &b) {
        return a.name == b.name && a.type == b.type;
    };
    return one.sql_name == other.sql_name && one.table->sql_name == other.table->sql_name &&
           one.key == other.key && one.scope == other.scope &&
           std::equal(one.columns.begin(), one.columns.end(), other.columns.begin(),
                      other.columns.end(), equal);
}

}  // namespace

RepairCluster::RepairCluster(std::string catalog, const std::string &index,
                             const RepairTimeouts &timeouts, bool by_key)
    : catalog_(std::move(catalog)), timeouts_(timeouts), by_key_(by_key) {
    auto routes = read_routes();
    const GlobalIndex *const declared = routes->find_index(index);
    if (!declared)
        throw ControlError("42704", "index \"" + index + "\" is not published", {},
                           "Create it in the catalog with interlock.create_index(), then run "
                           "\"interlock apply\".");
    database_ = open(*routes, declared->database);
    model_ = read_index_model(std::move(routes), index, *database_);
    connect_shards();
}

std::shared_ptr<const RouteTable> RepairCluster::read_routes() {
    ControlConnection catalog(catalog_, application, timeouts_.query);
    return read_published_routes(catalog);
}

void RepairCluster::walk_by_key(ControlConnection &connection) {
    connection.query("SELECT pg_catalog.set_config('enable_sort', 'off', false)");
}

std::unique_ptr<ControlConnection> RepairCluster::open(const RouteTable &routes,
                                                       ShardIndex member) {
    auto connection = open_member(routes, member, application, timeouts_.query);
    if (by_key_) walk_by_key(*connection);
    return connection;
}

void RepairCluster::connect_shards() {
    shards_.clear();
    for (const ShardIndex shard : model_.shards)
        shards_.push_back(open(*model_.routes, shard));
}

std::size_t RepairCluster::owner(std::int64_t hash) const {
    const Keyspace &keyspace = model_.keyspace();
    const auto bucket = static_cast<std::size_t>(placement::bucket_of_hash(hash, keyspace.buckets));
    const auto found =
        std::find(model_.shards.begin(), model_.shards.end(), keyspace.owner[bucket]);
    return static_cast<std::size_t>(found - model_.shards.begin());
}

bool RepairCluster::renew_routes() {
    auto routes = read_routes();
    if (routes->version == model_.routes->version) return false;
    IndexModel fresh = read_index_model(std::move(routes), model_.name, *database_);
    if (!same_columns(model_, fresh))
        throw ControlError("55000", "index \"" + model_.name + "\" has been declared anew", {},
                           "Run the command again with --restart.");
    model_ = std::move(fresh);
    // The session on the index database stays as it is: it holds locks that the checks rest on.
    greet_member(*database_, *model_.routes, model_.database);
    connect_shards();
    return true;
}

void RepairCluster::await_routes() {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeouts_.new_routes);
    while (!renew_routes()) {
        if (Clock::now() >= deadline)
            throw ControlError("IL102",
                               "a shard has given buckets away, but the catalog publishes no "
                               "newer route version than " +
                                   std::to_string(model_.routes->version),
                               {}, "Finish the move, then run the command again.");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

}  // namespace interlock
