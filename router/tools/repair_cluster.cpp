#include "tools/repair_cluster.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "placement.h"

namespace interlock {

namespace {

constexpr const char *application = "interlock repair";
constexpr std::chrono::milliseconds between_looks{100};
// For a catalog that does not answer.
constexpr std::chrono::seconds back_off{5};

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

// After the recovery of a backup a server has another timeline; after that of a dump, the database
// has another number.
RepairServers RepairCluster::servers() {
    RepairServers servers;
    const auto add = [&servers](const std::string &member, ControlConnection &connection) {
        servers.members.push_back(member);
        servers.identities.push_back(
            connection
                .query("SELECT pg_catalog.format('%s/%s/%s', s.system_identifier, "
                       "  pg_catalog.left(pg_catalog.pg_walfile_name("
                       "    pg_catalog.pg_current_wal_insert_lsn()), 8), d.oid) "
                       "FROM pg_catalog.pg_control_system() AS s, pg_catalog.pg_database AS d "
                       "WHERE d.datname = pg_catalog.current_database()")
                .text(0, 0));
    };
    add(model_.member(model_.database).name, *database_);
    for (std::size_t s = 0; s < shards_.size(); ++s)
        add(shard_name(s), shard(s));
    return servers;
}

bool RepairCluster::renew_routes() {
    return take_routes(read_routes());
}

bool RepairCluster::take_routes(std::shared_ptr<const RouteTable> routes) {
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

bool RepairCluster::try_renew_routes(std::string &why) {
    if (Clock::now() >= ask_again_) {
        std::shared_ptr<const RouteTable> routes;
        try {
            routes = read_routes();
            why_not_.clear();
        } catch (const ControlError &error) {
            why_not_ = error.what();
            ask_again_ = Clock::now() + back_off;
        }
        if (routes) take_routes(std::move(routes));
    }
    why = why_not_;
    return why_not_.empty();
}

void RepairCluster::await_routes() {
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeouts_.new_routes);
    for (std::chrono::milliseconds pause = between_looks;;) {
        std::shared_ptr<const RouteTable> routes;
        std::optional<ControlError> unanswered;
        try {
            routes = read_routes();
            pause = between_looks;
        } catch (const ControlError &error) {
            unanswered = error;
            pause = std::min<std::chrono::milliseconds>(2 * pause, back_off);
        }
        if (routes && take_routes(std::move(routes))) return;
        if (Clock::now() >= deadline) {
            if (unanswered) throw *unanswered;
            throw ControlError("IL102",
                               "a shard has given buckets away, but the catalog publishes no "
                               "newer route version than " +
                                   std::to_string(model_.routes->version),
                               {}, "Finish the move, then run the command again.");
        }
        std::this_thread::sleep_for(pause);
    }
}

}  // namespace interlock
