#include "route/catalog_watcher.h"

#include "base/control.h"
#include "base/log.h"
#include "base/loop.h"

#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

namespace interlock {

namespace {

// A rejected version is read again now and then: its rows may have been mended in place.
constexpr std::int64_t rejected_retry = 2000;
constexpr std::int64_t reconnect_first = 100;
constexpr std::int64_t reconnect_cap = 2000;

constexpr const char *current_version_query =
    "SELECT c.id::text, c.route_version, "
    "COALESCE(EXTRACT(epoch FROM v.published_at)::text, ''), c.announcement "
    "FROM interlock.cluster c "
    "LEFT JOIN interlock.route_version v ON v.version OPERATOR(pg_catalog.=) c.route_version";

// What is announced, and to which version and after how many announcements: one snapshot.
struct Announced {
    std::int32_t version = 0;
    std::int64_t announcements = 0;
    std::optional<CatalogRows::AnnouncementRow> row;
};

Announced read_announcement(ControlConnection &catalog) {
    const Rows rows = catalog.query(
        "SELECT c.route_version, c.announcement, a.route_version, a.keyspace, a.from_shard, "
        "  a.to_shard, b.bucket "
        "FROM interlock.cluster c LEFT JOIN (interlock.announced_move a "
        "  CROSS JOIN LATERAL pg_catalog.unnest(a.buckets) b(bucket)) ON true");
    Announced found;
    if (rows.empty()) return found;
    found.version = rows.int32(0, 0);
    found.announcements = rows.int64(0, 1);
    if (rows.is_null(0, 2)) return found;
    found.row = CatalogRows::AnnouncementRow{
        rows.int32(0, 2), rows.int32(0, 3), rows.int32(0, 4), rows.int32(0, 5), {}};
    for (int i = 0; i < rows.size(); ++i)
        found.row->buckets.push_back(rows.int32(i, 6));
    return found;
}

}  // namespace

CatalogRows read_catalog(ControlConnection &catalog) {
    CatalogRows rows;
    const Rows cluster = catalog.query(current_version_query);
    if (cluster.empty()) return rows;
    rows.cluster_id = cluster.text(0, 0);
    rows.version = cluster.int32(0, 1);
    rows.published = cluster.text(0, 2);
    rows.announcements = cluster.int64(0, 3);

    // As published with this version, not as staged since: two routers that work under one version
    // must mean the same by it.
    const Param version = Param::of_int4(rows.version);
    const auto published = [&](const char *what, const char *columns, const char *order) {
        return catalog.query(format("SELECT %s FROM interlock.route_version v, "
                                    "pg_catalog.jsonb_array_elements(v.declarations -> '%s') d "
                                    "WHERE v.version OPERATOR(pg_catalog.=) $1 ORDER BY %s",
                                    columns, what, order),
                             {version});
    };
    // What later versions of the extension added may be missing from what an earlier one published.
    const Rows shards = published("shards",
                                  "(d ->> 'id')::int, d ->> 'name', d ->> 'conninfo', "
                                  "COALESCE(d ->> 'role', 'shard')",
                                  "1");
    for (int i = 0; i < shards.size(); ++i)
        rows.shards.push_back({shards.int32(i, 0), shards.text(i, 1), shards.text(i, 2),
                               shards.view(i, 3) == "index"});
    // How low a shard's own floor may be is not declared: what has happened says it.
    const Rows floors = catalog.query("SELECT shard, min_floor FROM interlock.shard_floors");
    for (int i = 0; i < floors.size(); ++i)
        for (auto &shard : rows.shards)
            if (shard.id == floors.int32(i, 0)) shard.min_floor = floors.int32(i, 1);

    const Rows keyspaces = published("keyspaces",
                                     "(d ->> 'id')::int, d ->> 'name', d ->> 'key_type', "
                                     "d ->> 'hash', (d ->> 'buckets')::int",
                                     "1");
    for (int i = 0; i < keyspaces.size(); ++i)
        rows.keyspaces.push_back({keyspaces.int32(i, 0), keyspaces.text(i, 1), keyspaces.text(i, 2),
                                  keyspaces.text(i, 3), keyspaces.int32(i, 4)});

    const Rows tables = published("tables",
                                  "(d ->> 'id')::int, d ->> 'schema_name', d ->> 'table_name', "
                                  "pg_catalog.quote_ident(d ->> 'schema_name') || '.' || "
                                  "pg_catalog.quote_ident(d ->> 'table_name'), "
                                  "(d ->> 'keyspace')::int, d ->> 'key_column', "
                                  "COALESCE(d ->> 'version_column', ''), "
                                  "COALESCE(d ->> 'scatter', 'false')",
                                  "1");
    for (int i = 0; i < tables.size(); ++i)
        rows.tables.push_back({tables.int32(i, 0), tables.text(i, 1), tables.text(i, 2),
                               tables.text(i, 3), tables.int32(i, 4), tables.text(i, 5),
                               tables.text(i, 6), tables.view(i, 7) == "true"});

    const Rows columns = published("columns",
                                   "(d ->> 'table_id')::int, d ->> 'name', "
                                   "pg_catalog.quote_ident(d ->> 'name'), (d ->> 'type_oid')::oid",
                                   "1, (d ->> 'ordinal')::int");
    for (int i = 0; i < columns.size(); ++i)
        rows.columns.push_back(
            {columns.int32(i, 0), columns.text(i, 1), columns.text(i, 2), columns.oid(i, 3)});

    const Rows functions =
        published("functions", "d ->> 'schema_name', d ->> 'function_name'", "1, 2");
    for (int i = 0; i < functions.size(); ++i)
        rows.functions.push_back({functions.text(i, 0), functions.text(i, 1)});

    // An index without scope columns has one row, with a NULL for the column.
    const Rows indexes = catalog.query(
        "SELECT (d ->> 'id')::int, d ->> 'name', (d ->> 'table_id')::int, d ->> 'order', "
        "  (d ->> 'shard')::int, d ->> 'ready', (d ->> 'max_page')::int, "
        "  (d ->> 'default_page')::int, s.name "
        "FROM interlock.route_version v "
        "CROSS JOIN LATERAL pg_catalog.jsonb_array_elements("
        "  COALESCE(v.declarations -> 'indexes', '[]')) d "
        "LEFT JOIN LATERAL pg_catalog.jsonb_array_elements_text(d -> 'scope') "
        "  WITH ORDINALITY s(name, n) ON true "
        "WHERE v.version OPERATOR(pg_catalog.=) $1 ORDER BY 1, s.n",
        {version});
    for (int i = 0; i < indexes.size(); ++i) {
        if (rows.indexes.empty() || rows.indexes.back().id != indexes.int32(i, 0))
            rows.indexes.push_back({indexes.int32(i, 0),
                                    indexes.text(i, 1),
                                    indexes.int32(i, 2),
                                    {},
                                    indexes.text(i, 3),
                                    indexes.int32(i, 4),
                                    indexes.view(i, 5) == "true",
                                    indexes.int32(i, 6),
                                    indexes.int32(i, 7)});
        if (!indexes.is_null(i, 8)) rows.indexes.back().scope.push_back(indexes.text(i, 8));
    }

    const Rows routes =
        catalog.query("SELECT keyspace, bucket, shard FROM interlock.route "
                      "WHERE valid_from <= $1 AND (valid_to IS NULL OR valid_to > $1)",
                      {version});
    rows.announced = read_announcement(catalog).row;
    rows.routes.reserve(static_cast<std::size_t>(routes.size()));
    for (int i = 0; i < routes.size(); ++i)
        rows.routes.push_back({routes.int32(i, 0), routes.int32(i, 1), routes.int32(i, 2)});
    return rows;
}

CatalogWatcher::CatalogWatcher(std::string conninfo, std::int64_t poll_interval,
                               std::int64_t timeout, CatalogEvents events)
    : conninfo_(std::move(conninfo)), poll_interval_(poll_interval), timeout_(timeout),
      events_(std::move(events)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.valid())
        throw std::system_error(errno, std::generic_category(), "could not create an event");
    thread_ = std::thread([this] { run(); });
}

CatalogWatcher::~CatalogWatcher() {
    stopping_ = true;
    (void)look_now();
    thread_.join();
}

std::uint64_t CatalogWatcher::look_now() {
    const std::uint64_t number = ++looks_asked_;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
    return number;
}

void CatalogWatcher::forget_wake() {
    std::uint64_t times = 0;
    [[maybe_unused]] const auto taken = ::read(wake_.get(), &times, sizeof times);
}

void CatalogWatcher::set_intervals(std::int64_t poll_interval, std::int64_t timeout) {
    poll_interval_ = poll_interval;
    timeout_ = timeout;
}

void CatalogWatcher::pause(std::int64_t milliseconds) {
    // Only the end cuts it short: a catalog that is away is not asked more often because many wait.
    const std::int64_t until = Loop::clock() + milliseconds;
    for (std::int64_t left = milliseconds; left > 0 && !stopping_; left = until - Loop::clock()) {
        pollfd fd{wake_.get(), POLLIN, 0};
        (void)::poll(&fd, 1, static_cast<int>(left));
        forget_wake();
    }
}

void CatalogWatcher::report(bool reachable, const std::string &error) {
    const bool changed = reachable_ != static_cast<int>(reachable);
    if (!changed && error == error_) return;
    reachable_ = static_cast<int>(reachable);
    error_ = error;
    if (changed && reachable)
        log_info("catalog: connected");
    else if (changed)
        log_warning("catalog: not reachable, route version %d stays in force: %s", current_version_,
                    error.c_str());
    events_.reachable(reachable, error);
}

void CatalogWatcher::reject(std::int32_t version, const std::string &why) {
    next_full_look_ = Loop::clock() + rejected_retry;
    if (version == rejected_version_ && why == rejected_why_) return;
    rejected_version_ = version;
    rejected_why_ = why;
    log_warning("route version %d rejected, version %d stays in force: %s", version,
                current_version_, why.c_str());
    events_.rejected(version, why);
}

bool CatalogWatcher::just_rejected(std::int32_t version) const {
    return version == rejected_version_ && Loop::clock() < next_full_look_;
}

void CatalogWatcher::run() {
    std::int64_t delay = reconnect_first;
    while (!stopping_) {
        try {
            const std::int64_t began = Loop::clock();
            try {
                watch_one_connection();
            } catch (...) {
                if (Loop::clock() - began > 10000) delay = reconnect_first;
                throw;
            }
        } catch (const ControlError &error) {
            std::string text = error.what();
            if (!error.detail.empty()) text += "; DETAIL: " + error.detail;
            report(false, text);
            pause(delay);
            delay = std::min(delay * 2, reconnect_cap);
        }
    }
}

void CatalogWatcher::watch_one_connection() {
    ControlConnection catalog(conninfo_, "interlock catalog", timeout_);
    catalog.execute("LISTEN interlock_route");
    if (current_version_ > 0) tell_mover(catalog);
    while (!stopping_) {
        forget_wake();  // before the look: what is asked for from here on is another one
        if (stopping_) break;
        const std::uint64_t asked = looks_asked_;
        look(catalog);
        report(true, {});
        if (asked != std::exchange(looks_done_, asked) && events_.looked) events_.looked(asked);
        (void)catalog.wait_notification(poll_interval_, wake_.get());
    }
}

void CatalogWatcher::look(ControlConnection &catalog) {
    const Rows cluster = catalog.query_within(timeout_, current_version_query);
    if (cluster.empty()) {
        reject(0, "the catalog defines no cluster");
        return;
    }
    const std::int32_t version = cluster.int32(0, 1);
    if (!cluster_id_.empty() && cluster.view(0, 0) != cluster_id_) {
        reject(version, "the catalog is of another cluster, " + cluster.text(0, 0));
        return;
    }
    if (version == current_version_) {
        // A catalog that was restored from a backup may give a number out a second time.
        const std::string_view published = cluster.view(0, 2);
        if (!published.empty() && !current_published_.empty() && published != current_published_)
            reject(version, "it was published twice: the catalog's is not the one in force");
        else if (cluster.int64(0, 3) != current_announcements_ && !just_rejected(version))
            read_what_is_announced(catalog);
        return;
    }
    if (version < current_version_) {
        reject(version, format("it is older than version %d", current_version_));
        return;
    }
    if (!just_rejected(version)) read(catalog);
}

// The version in force with another announcement: the rest is as it was, and time counts.
void CatalogWatcher::read_what_is_announced(ControlConnection &catalog) {
    Announced found = read_announcement(catalog);
    if (found.version != current_version_) return;  // the next look judges it
    CatalogRows rows = rows_;
    rows.announcements = found.announcements;
    rows.announced = std::move(found.row);
    take(catalog, std::move(rows));
}

void CatalogWatcher::read(ControlConnection &catalog) {
    ControlTransaction transaction(catalog, "ISOLATION LEVEL REPEATABLE READ READ ONLY");
    CatalogRows rows = read_catalog(catalog);
    transaction.commit();
    if (rows.version <= current_version_ ||
        (!cluster_id_.empty() && rows.cluster_id != cluster_id_))
        return;  // changed between the two looks; the next one judges it
    take(catalog, std::move(rows));
}

void CatalogWatcher::take(ControlConnection &catalog, CatalogRows rows) {
    auto table = RouteTable::build(rows);
    if (!table) {
        reject(rows.version, table.error());
        return;
    }
    const bool newer = rows.version != current_version_;
    current_version_ = rows.version;
    current_announcements_ = rows.announcements;
    current_published_ = rows.published;
    rejected_version_ = 0;
    rejected_why_.clear();
    cluster_id_ = rows.cluster_id;
    if (newer)
        log_info("route version %d in force: %zu shards, %zu keyspaces, %zu tables", rows.version,
                 (*table)->shards.size(), (*table)->keyspaces.size(), (*table)->tables.size());
    if (rows.announced)
        log_info("route version %d is announced: %zu buckets are about to move from shard %s to %s",
                 rows.announced->version, rows.announced->buckets.size(),
                 (*table)->shards[(*table)->announced->from].name.c_str(),
                 (*table)->shards[(*table)->announced->to].name.c_str());
    else if (!newer)
        log_info("nothing is announced any more; route version %d stays in force", rows.version);
    events_.replaced(std::move(*table));
    rows_ = std::move(rows);
    tell_mover(catalog);
}

// A mover that waits until everybody knows looks for this lock of ours: see announcement_lock.
void CatalogWatcher::tell_mover(ControlConnection &catalog) {
    if (events_.settled) events_.settled();
    catalog.query("SELECT pg_catalog.pg_advisory_unlock_all(), "
                  "pg_catalog.pg_advisory_lock_shared($1, $2)",
                  {Param::of_int4(announcement_lock),
                   Param::of_int4(static_cast<std::int32_t>(current_announcements_ & 0x7fffffff))});
}

}  // namespace interlock
