// Preflight: what the two servers must be set to and have free, and the rights a move needs.
#include <algorithm>
#include <map>
#include <string_view>

#include "base/log.h"
#include "tools/move_preflight_parts.h"

namespace interlock {

namespace {

using SettingValues = std::map<std::string, std::string>;

SettingValues read_settings(ControlConnection &connection) {
    const Rows rows = connection.query(
        "SELECT name, setting FROM pg_settings WHERE name IN "
        "('wal_level', 'output_plugin_libraries', 'max_replication_slots', 'max_wal_senders', "
        " 'max_slot_wal_keep_size', 'idle_replication_slot_timeout', "
        " 'max_logical_replication_workers', 'max_worker_processes', "
        " 'max_active_replication_origins', 'wal_retrieve_retry_interval')");
    SettingValues values;
    for (int row = 0; row < rows.size(); ++row)
        values[rows.text(row, 0)] = rows.text(row, 1);
    return values;
}

std::int64_t number(const SettingValues &values, const std::string &name) {
    const auto found = values.find(name);
    return found == values.end() ? 0 : std::atoll(found->second.c_str());
}

/// The names of a list setting, without their quotes.
std::vector<std::string> listed(std::string_view text) {
    std::vector<std::string> names;
    std::string name;
    bool quoted = false;
    const auto take = [&] {
        if (!name.empty()) names.push_back(name);
        name.clear();
    };
    for (const char c : text) {
        if (c == '"')
            quoted = !quoted;
        else if (c == ',' && !quoted)
            take();
        else if (quoted || (c != ' ' && c != '\t'))
            name += c;
    }
    take();
    return names;
}

std::string enlarge(const PreflightSide &side, const std::string &setting, std::int64_t value,
                    const char *then = "then restart its server.") {
    return Preflight::run_on(side, "ALTER SYSTEM SET " + setting + " = " + std::to_string(value) +
                                       "; " + then);
}

/// Superuser: on the source for a publication of tables of any owner and for the rows' removal
/// unseen by triggers, on the target for the subscription and for rows of buckets it does not own.
bool require_superuser(Preflight &check, const PreflightSide &side) {
    const Rows role = side.connection.query(
        "SELECT r.rolsuper, r.rolname, quote_ident(r.rolname) FROM pg_roles r "
        "WHERE r.rolname = CURRENT_USER");
    if (!role.empty() && role.boolean(0, 0)) return true;
    const std::string name = role.empty() ? std::string() : role.text(0, 1);
    check.refuse("role \"" + name + "\" may not move buckets on " + side.called(),
                 "A move makes a replication slot, a publication or a subscription, and rows for "
                 "which no trigger fires: it needs a superuser on both shards.",
                 Preflight::run_on(side, "ALTER ROLE " + (role.empty() ? name : role.text(0, 2)) +
                                             " SUPERUSER; or name a superuser in PGUSER or in the "
                                             "shard's connection string."));
    return false;
}

void check_plugin(Preflight &check, const SettingValues &values) {
    const auto found = values.find("output_plugin_libraries");
    if (found == values.end()) return;  // a release that allows them all
    std::vector<std::string> names = listed(found->second);
    if (std::find(names.begin(), names.end(), "interlock") != names.end()) return;
    names.emplace_back("interlock");
    std::string list;
    for (const std::string &name : names)
        list += (list.empty() ? "'" : ", '") + name + "'";
    check.refuse("the output plugin is not allowed on " + check.source.called(),
                 "output_plugin_libraries is \"" + found->second + "\".",
                 Preflight::run_on(check.source, "ALTER SYSTEM SET output_plugin_libraries = " +
                                                     list + "; SELECT pg_reload_conf();"));
}

}  // namespace

void check_source_server(Preflight &check) {
    const PreflightSide &side = check.source;
    require_superuser(check, side);
    const SettingValues values = read_settings(side.connection);
    if (values.at("wal_level") != "logical")
        check.refuse("wal_level of " + side.called() + " is not logical",
                     "It is \"" + values.at("wal_level") + "\".",
                     Preflight::run_on(side, "ALTER SYSTEM SET wal_level = 'logical'; then restart "
                                             "its server."));
    check_plugin(check, values);

    const Rows used = side.connection.query(
        "SELECT (SELECT count(*) FROM pg_replication_slots), "
        "  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender')");
    const std::int64_t slots = number(values, "max_replication_slots");
    if (used.int64(0, 0) >= slots)
        check.refuse("no replication slot is free on " + side.called(),
                     "max_replication_slots is " + std::to_string(slots) + ", " +
                         std::to_string(used.int64(0, 0)) + " exist.",
                     enlarge(side, "max_replication_slots", std::max<std::int64_t>(10, slots + 4)));
    const std::int64_t senders = number(values, "max_wal_senders");
    if (used.int64(0, 1) >= senders)
        check.refuse("no WAL sender is free on " + side.called(),
                     "max_wal_senders is " + std::to_string(senders) + ", " +
                         std::to_string(used.int64(0, 1)) + " are at work.",
                     enlarge(side, "max_wal_senders", std::max<std::int64_t>(10, senders + 4)));

    if (const std::int64_t kept = number(values, "max_slot_wal_keep_size");
        values.contains("max_slot_wal_keep_size") && kept >= 0)
        check.warn("a slow move may lose its slot on " + side.called(),
                   "max_slot_wal_keep_size is " + std::to_string(kept) +
                       " MB: when more WAL than that is written while the target is behind, the "
                       "copy begins anew.",
                   Preflight::run_on(side, "ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT "
                                           "pg_reload_conf(); or see to it that it is enough."));
    if (number(values, "idle_replication_slot_timeout") > 0)
        check.warn("an idle slot is given up on " + side.called(),
                   "idle_replication_slot_timeout is set: the slot is idle while rows are copied.",
                   Preflight::run_on(side, "ALTER SYSTEM SET idle_replication_slot_timeout = 0; "
                                           "SELECT pg_reload_conf();"));
}

void check_target_server(Preflight &check) {
    const PreflightSide &side = check.target;
    require_superuser(check, side);
    const SettingValues values = read_settings(side.connection);
    if (values.at("wal_level") != "logical")
        check.warn("wal_level of " + side.called() + " is not logical",
                   "It is \"" + values.at("wal_level") +
                       "\": no bucket could be moved away from there, nor these back.",
                   Preflight::run_on(side, "ALTER SYSTEM SET wal_level = 'logical'; then restart "
                                           "its server."));
    if (const std::int64_t ms = number(values, "wal_retrieve_retry_interval"); ms >= 5000)
        check.warn("workers of logical replication are started seldom on " + side.called(),
                   "wal_retrieve_retry_interval is " + std::to_string(ms) +
                       " ms: the target may begin to follow, and go on after a failure, so late.",
                   Preflight::run_on(side, "ALTER SYSTEM SET wal_retrieve_retry_interval = "
                                           "'500ms'; SELECT pg_reload_conf();"));
    // A subscription that is enabled wants its worker even when it is not at work just now.
    // Workers of parallel queries come and go.
    const Rows used = side.connection.query(
        "SELECT greatest((SELECT count(*) FROM pg_subscription WHERE subenabled), "
        "    (SELECT count(*) FROM pg_stat_activity "
        "      WHERE backend_type LIKE 'logical replication%worker')), "
        "  (SELECT count(*) FROM pg_stat_activity WHERE backend_type NOT IN "
        "    ('client backend', 'walsender', 'walreceiver', 'autovacuum launcher', 'startup', "
        "     'autovacuum worker', 'background writer', 'checkpointer', 'walwriter', 'archiver', "
        "     'logger', 'io worker', 'slotsync worker', 'walsummarizer', 'parallel worker')), "
        "  (SELECT count(*) FROM pg_show_replication_origin_status())");
    const std::int64_t workers = number(values, "max_logical_replication_workers");
    if (used.int64(0, 0) >= workers)
        check.refuse("no logical replication worker is free on " + side.called(),
                     "max_logical_replication_workers is " + std::to_string(workers) + ", " +
                         std::to_string(used.int64(0, 0)) + " are taken.",
                     enlarge(side, "max_logical_replication_workers",
                             std::max<std::int64_t>(4, workers + 4)));
    const std::int64_t processes = number(values, "max_worker_processes");
    if (used.int64(0, 1) >= processes)
        check.refuse(
            "no worker process is free on " + side.called(),
            "max_worker_processes is " + std::to_string(processes) + ", " +
                std::to_string(used.int64(0, 1)) + " are at work.",
            enlarge(side, "max_worker_processes", std::max<std::int64_t>(8, processes + 4)));
    // What a subscription has applied is kept in an origin; they are as many as slots (before 18).
    const std::string origins = values.contains("max_active_replication_origins")
                                    ? "max_active_replication_origins"
                                    : "max_replication_slots";
    if (used.int64(0, 2) >= number(values, origins))
        check.refuse(
            "no replication origin is free on " + side.called(),
            origins + " is " + values.at(origins) + ", " + std::to_string(used.int64(0, 2)) +
                " are tracked.",
            enlarge(side, origins, std::max<std::int64_t>(10, number(values, origins) + 4)));
}

void check_same_surroundings(Preflight &check) {
    const char *const query =
        "SELECT pg_encoding_to_char(d.encoding), d.datcollate, d.datctype, "
        "  coalesce(to_jsonb(d) ->> 'daticulocale', to_jsonb(d) ->> 'datlocale', ''), "
        "  coalesce(to_jsonb(d) ->> 'datlocprovider', 'c'), "
        "  (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'interlock') "
        "FROM pg_database d WHERE d.datname = current_database()";
    const Rows source = check.source.connection.query(query);
    const Rows target = check.target.connection.query(query);
    if (source.view(0, 0) != target.view(0, 0))
        check.refuse("the shards have different encodings",
                     check.source.called() + ": " + source.text(0, 0) + "; " +
                         check.target.called() + ": " + target.text(0, 0) + ".",
                     "Make the database of " + check.target.called() +
                         " anew: CREATE DATABASE ... ENCODING '" + source.text(0, 0) +
                         "' TEMPLATE template0;");
    const auto locale = [](const Rows &row) {
        return row.text(0, 1) + (row.view(0, 1) == row.view(0, 2) ? "" : ", " + row.text(0, 2)) +
               (row.view(0, 3).empty() ? "" : ", " + row.text(0, 3)) +
               (row.view(0, 4) == "c" ? "" : ", provider " + row.text(0, 4));
    };
    if (locale(source) != locale(target))
        check.refuse("the shards have different default collations",
                     check.source.called() + ": " + locale(source) + "; " + check.target.called() +
                         ": " + locale(target) + ".",
                     "Make the database of " + check.target.called() +
                         " anew: CREATE DATABASE ... LC_COLLATE '" + source.text(0, 1) +
                         "' LC_CTYPE '" + source.text(0, 2) + "' TEMPLATE template0;");
    // Since 15; of a collation that comes with the operating system.
    if (check.source.connection.server_version() >= 150000 &&
        check.target.connection.server_version() >= 150000 && locale(source) == locale(target)) {
        const char *const version =
            "SELECT coalesce(pg_database_collation_actual_version(d.oid), '') FROM pg_database d "
            "WHERE d.datname = current_database()";
        const std::string here = check.source.connection.query(version).text(0, 0);
        const std::string there = check.target.connection.query(version).text(0, 0);
        if (here != there)
            check.warn("the shards' default collations are of different versions",
                       check.source.called() + ": " + here + "; " + check.target.called() + ": " +
                           there + ". Text may be in another order there.",
                       "Bring both servers to the same version of the operating system.");
    }
    if (source.view(0, 5) != target.view(0, 5))
        check.refuse("the shards have different versions of the extension",
                     check.source.called() + ": " + source.text(0, 5) + "; " +
                         check.target.called() + ": " + target.text(0, 5) + ".",
                     "On both shards, run: ALTER EXTENSION interlock UPDATE;");
}

}  // namespace interlock
