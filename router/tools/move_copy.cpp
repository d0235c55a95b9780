#include "tools/move_copy.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/control_copy.h"
#include "tools/index_backfill.h"
#include "tools/move_slot.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds tell_every{200};
constexpr milliseconds between_looks{20};
/// A fence at the target, of another move, waits for whoever writes there: not for long.
constexpr std::int64_t commit_every = 1000;

std::string array_literal(const std::vector<std::int32_t> &numbers) {
    std::string out;
    for (const std::int32_t number : numbers)
        out += (out.empty() ? "" : ",") + std::to_string(number);
    return "'{" + out + "}'::pg_catalog.int4[]";
}

[[noreturn]] void rethrow_naming(const MovedTable &table, const ControlError &error) {
    throw ControlError(error.sqlstate, "copying table " + table.name + ": " + error.what(),
                       error.detail, error.hint, error.context);
}

}  // namespace

// In a database without an encoding the bytes are taken as they are.
const char *const same_text_settings =
    "pg_catalog.set_config('datestyle', 'ISO, YMD', false), "
    "pg_catalog.set_config('intervalstyle', 'postgres', false), "
    "pg_catalog.set_config('timezone', 'UTC', false), "
    "pg_catalog.set_config('extra_float_digits', '1', false), "
    "pg_catalog.set_config('lc_monetary', 'C', false), "
    "pg_catalog.set_config('xmlbinary', 'base64', false), "
    "CASE WHEN pg_catalog.current_setting('server_encoding') = 'SQL_ASCII' "
    "  THEN pg_catalog.set_config('client_encoding', 'SQL_ASCII', false) END";

MoveCopy::MoveCopy(const MoveRequest &request, MoveSession &session, MoveRecord &record,
                   MoveObserver &observer)
    : request_(request), session_(session), record_(record), observer_(observer) {}

std::unique_ptr<ControlConnection> MoveCopy::writer() {
    auto connection = session_.open_target(request_.query_timeout);
    // The guard lets it write into importing buckets; triggers and foreign keys are the source's
    // affair, and so is its outbox.
    connection->query(std::string("SELECT pg_catalog.set_config('interlock.moving_rows', 'on', "
                                  "false), pg_catalog.set_config('session_replication_role', "
                                  "'replica', false), ") +
                      same_text_settings);
    return connection;
}

std::unique_ptr<ControlConnection> MoveCopy::reader(const std::string &snapshot) {
    auto connection = session_.open_source(request_.query_timeout);
    connection->query(std::string("SELECT ") + same_text_settings);
    connection->execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    connection->execute("SET TRANSACTION SNAPSHOT " + sql_literal(snapshot));
    return connection;
}

std::string MoveCopy::condition(const MovedTable &table) const {
    return " WHERE interlock.bucket_of(" + sql_literal(session_.keyspace().name) + ", t." +
           table.key + ") OPERATOR(pg_catalog.=) ANY (" + array_literal(session_.buckets()) + ")";
}

/// Holds what says that this move's rows are being written here. Whoever holds it already is a
/// mover that has lost its session on the catalog, as we have the lock there: it ends here, so that
/// what it has under way comes to nothing. One that finds itself in that place ends by itself.
void MoveCopy::be_the_only_one(ControlConnection &target) {
    // Another lock than the record's, which our own session on the catalog holds: the catalog may
    // be in this database.
    const std::string key =
        "pg_catalog.hashtextextended('rows of interlock move ' || $1::pg_catalog.text, 0)";
    const auto deadline = steady_clock::now() + milliseconds(request_.lock_timeout);
    while (
        !target.query("SELECT pg_catalog.pg_try_advisory_lock(" + key + ")", {record_.id_param()})
             .boolean(0, 0)) {
        target.query("SELECT pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l "
                     "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
                     "  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d "
                     "    WHERE d.datname = pg_catalog.current_database()) "
                     "  AND ((l.classid::bigint << 32) | l.objid::bigint) = " +
                         key,
                     {record_.id_param()});
        if (steady_clock::now() >= deadline)
            throw ControlError("55006", "another mover's copy on shard \"" + session_.to().name +
                                            "\" does not end");
        std::this_thread::sleep_for(between_looks);
    }
    record_.require_lock();
}

void MoveCopy::clear_target() {
    const auto target = writer();
    be_the_only_one(*target);
    for (const MovedTable &table : session_.tables())
        target->query_within(request_.scan_timeout, "DELETE FROM " +
                                                        std::string(table.only ? "ONLY " : "") +
                                                        table.name + " AS t" + condition(table));
}

std::int64_t MoveCopy::run(const std::string &snapshot) {
    record_.making(session_.to(), "rows", session_.keyspace().name);
    const auto source = reader(snapshot);
    const auto target = writer();
    Throttle throttle(request_.rate);

    // Of the rows of all buckets here, those that move: as many in each bucket as in any other.
    const Keyspace &keyspace = session_.keyspace();
    const auto here = std::max<std::int64_t>(
        1, std::count(keyspace.owner.begin(), keyspace.owner.end(), session_.from_index()));
    const auto moving = static_cast<std::int64_t>(session_.buckets().size());

    std::int64_t all = 0;
    const std::vector<MovedTable> tables = session_.tables();
    const auto estimated = [&](const MovedTable &table) {
        return table.estimated_rows < 0
                   ? std::int64_t{-1}
                   : std::min(table.estimated_rows, table.estimated_rows * moving / here);
    };
    for (const MovedTable &table : tables)
        observer_.copying(table.name, 0, 0, estimated(table));
    be_the_only_one(*target);
    for (const MovedTable &table : tables) {
        const std::int64_t estimate = estimated(table);
        std::int64_t done = 0;
        auto tell = steady_clock::now();
        const auto progress = [&](std::int64_t rows, std::int64_t bytes) {
            const auto go_on = throttle.reserve(static_cast<std::size_t>(rows - done));
            done = rows;
            if (steady_clock::now() >= tell) {
                observer_.copying(table.name, rows, bytes, estimate);
                tell = steady_clock::now() + tell_every;
            }
            while (steady_clock::now() < go_on) {
                std::this_thread::sleep_until(std::min(go_on, steady_clock::now() + tell_every));
                observer_.copying(table.name, rows, bytes, estimate);
            }
        };
        try {
            std::int64_t bytes = 0;
            const std::int64_t rows =
                copy_rows(*source,
                          "COPY (SELECT " + table.columns + " FROM " +
                              std::string(table.only ? "ONLY " : "") + table.name + " AS t" +
                              condition(table) + ") TO STDOUT",
                          *target, "COPY " + table.name + " (" + table.columns + ") FROM STDIN",
                          request_.scan_timeout, commit_every,
                          [&](std::int64_t sent, std::int64_t sent_bytes) {
                              bytes = sent_bytes;
                              progress(sent, sent_bytes);
                          });
            observer_.copying(table.name, rows, bytes, rows);
            all += rows;
        } catch (const ControlError &error) {
            rethrow_naming(table, error);
        }
    }
    return all;
}

}  // namespace interlock
