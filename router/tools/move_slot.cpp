#include "tools/move_slot.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <poll.h>

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds between_looks{50};
constexpr milliseconds tell_every{2000};

ControlError connection_error(PGconn *connection) {
    std::string message = PQerrorMessage(connection);
    while (!message.empty() && message.back() == '\n')
        message.pop_back();
    return ControlError("08006", message.empty() ? "connection lost" : message);
}

ControlError result_error(PGconn *connection, const PGresult *result) {
    const auto field = [result](int code) {
        const char *const text = PQresultErrorField(result, code);
        return std::string(text ? text : "");
    };
    const std::string message = field(PG_DIAG_MESSAGE_PRIMARY);
    if (message.empty()) return connection_error(connection);
    return ControlError(field(PG_DIAG_SQLSTATE), message, field(PG_DIAG_MESSAGE_DETAIL),
                        field(PG_DIAG_MESSAGE_HINT));
}

}  // namespace

std::string sql_literal(const std::string &text) {
    std::string out = text.find('\\') == std::string::npos ? "'" : " E'";
    for (const char c : text) {
        if (c == '\'' || c == '\\') out += c;
        out += c;
    }
    return out + "'";
}

MoveStream::MoveStream(const MoveRequest &request, MoveSession &session, MoveRecord &record,
                       MoveObserver &observer)
    : request_(request), session_(session), record_(record), observer_(observer) {}

void MoveStream::record_slot() {
    record_.making(session_.from(), "slot", record_.name());
    session_.source().query("SELECT interlock.record_move_slot($1, $2, $3, $4)",
                            {Param::of_name(record_.name()), record_.id_param(),
                             Param::of_text(session_.keyspace().name),
                             Param::of_int4_array(session_.buckets())});
}

void MoveStream::publish_tables() {
    record_.making(session_.from(), "publication", record_.name());
    if (session_.source()
            .query("SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1)",
                   {Param::of_name(record_.name())})
            .boolean(0, 0))
        return;
    // TRUNCATE is not among what it publishes: it would empty the target's other buckets. Children
    // by inheritance come with their parents.
    std::string tables;
    const Rows guarded = session_.source().query(
        "SELECT g.relid::pg_catalog.regclass FROM interlock.guarded_table g "
        "WHERE g.keyspace = $1 ORDER BY 1::text",
        {Param::of_text(session_.keyspace().name)});
    for (int row = 0; row < guarded.size(); ++row)
        tables += guarded.text(row, 0) + ", ";
    session_.source().execute("CREATE PUBLICATION " + record_.name() + " FOR TABLE " + tables +
                              "interlock.move_marker WITH (publish = 'insert, update, delete', "
                              "publish_via_partition_root = true)");
}

// libpq's control connections speak the extended protocol, which a walsender does not.
void MoveStream::connect_creator() {
    const std::string seconds =
        std::to_string(std::max<std::int64_t>(2, (request_.query_timeout + 999) / 1000));
    const char *const keywords[] = {"fallback_application_name", "connect_timeout", "dbname",
                                    "replication", nullptr};
    const char *const values[] = {"interlock move", seconds.c_str(),
                                  session_.from().conninfo.c_str(), "database", nullptr};
    creator_.reset(PQconnectdbParams(keywords, values, 1));
    if (!creator_) throw ControlError("53200", "out of memory");
    if (PQstatus(creator_.get()) != CONNECTION_OK) {
        const ControlError error = connection_error(creator_.get());
        throw ControlError("08001", "replication connection to shard \"" + session_.from().name +
                                        "\": " + error.what());
    }
    PQsetNoticeProcessor(
        creator_.get(), [](void *, const char *) {}, nullptr);
}

std::string MoveStream::make_slot() {
    drop_slot();
    connect_creator();
    return create_slot();
}

std::string MoveStream::create_slot() {
    PGconn *const connection = creator_.get();
    if (PQsendQuery(connection, ("CREATE_REPLICATION_SLOT " + record_.name() +
                                 " LOGICAL interlock (SNAPSHOT 'export')")
                                    .c_str()) == 0)
        throw connection_error(connection);
    const auto deadline = steady_clock::now() + milliseconds(request_.scan_timeout);
    auto tell = steady_clock::now() + tell_every / 2;
    while (PQisBusy(connection)) {
        pollfd fd{PQsocket(connection), POLLIN, 0};
        if (poll(&fd, 1, static_cast<int>(between_looks.count())) > 0 &&
            PQconsumeInput(connection) == 0)
            throw connection_error(connection);
        const auto now = steady_clock::now();
        if (now >= deadline)
            throw ControlError("57014", "the source could not make a replication slot in time",
                               "It waits for the transactions that were under way.");
        if (now >= tell) {
            tell_who_is_waited_for();
            tell = now + tell_every;
        }
    }
    const std::unique_ptr<PGresult, decltype(&PQclear)> result(PQgetResult(connection), &PQclear);
    if (PQresultStatus(result.get()) != PGRES_TUPLES_OK || PQntuples(result.get()) != 1)
        throw result_error(connection, result.get());
    const std::string snapshot = PQgetvalue(result.get(), 0, 2);
    while (PGresult *const rest = PQgetResult(connection))
        PQclear(rest);
    return snapshot;
}

void MoveStream::tell_who_is_waited_for() {
    const Rows rows = session_.source().query(
        "SELECT a.pid, a.usename, a.application_name, a.state, "
        "  pg_catalog.date_trunc('second', a.xact_start) AT TIME ZONE 'UTC', '' "
        "FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL "
        "  AND a.xact_start < pg_catalog.clock_timestamp() - interval '1 second' "
        "UNION ALL SELECT 0, p.owner, '', 'prepared', "
        "  pg_catalog.date_trunc('second', p.prepared) AT TIME ZONE 'UTC', p.gid "
        "FROM pg_catalog.pg_prepared_xacts p ORDER BY 5 LIMIT 5");
    std::vector<MoveHolder> holders;
    for (int row = 0; row < rows.size(); ++row)
        holders.push_back({rows.int32(row, 0), rows.text(row, 1), rows.text(row, 2),
                           rows.text(row, 3), rows.text(row, 4), rows.text(row, 5)});
    if (!holders.empty()) observer_.holding_up(holders);
}

bool MoveStream::subscribed() {
    return session_.target()
        .query("SELECT EXISTS (SELECT FROM pg_catalog.pg_subscription s "
               "  JOIN pg_catalog.pg_database d ON d.oid = s.subdbid "
               "WHERE s.subname = $1 AND d.datname = pg_catalog.current_database())",
               {Param::of_name(record_.name())})
        .boolean(0, 0);
}

void MoveStream::subscribe() {
    record_.making(session_.to(), "subscription", record_.name());
    if (subscribed()) return;
    ControlConnection &target = session_.target();
    ControlTransaction transaction(target);
    // The connection string may hold a password, which is nothing for the server's log.
    target.query("SELECT pg_catalog.set_config('log_statement', 'none', true), "
                 "pg_catalog.set_config('log_min_error_statement', 'panic', true), "
                 "pg_catalog.set_config('log_min_duration_statement', '-1', true), "
                 "pg_catalog.set_config('log_min_duration_sample', '-1', true), "
                 "pg_catalog.set_config('log_transaction_sample_rate', '0', true)");
    target.execute("CREATE SUBSCRIPTION " + record_.name() + " CONNECTION " +
                   sql_literal(session_.subscriber_conninfo()) + " PUBLICATION " + record_.name() +
                   // The plugin gives transactions out whole, once they are committed; PostgreSQL
                   // 18 would ask for them in pieces.
                   " WITH (create_slot = false, copy_data = false, streaming = off, " +
                   "slot_name = " + record_.name() + ", synchronous_commit = off)");
    // The publisher was asked for its tables: without any it is not the source.
    if (!target
             .query("SELECT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel r "
                    "  JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid "
                    "WHERE s.subname = $1 AND r.srrelid IN "
                    "  (SELECT g.relid::pg_catalog.oid FROM interlock.guarded_table g "
                    "   WHERE g.keyspace = $2))",
                    {Param::of_name(record_.name()), Param::of_text(session_.keyspace().name)})
             .boolean(0, 0))
        throw ControlError("55000",
                           "the address by which shard \"" + session_.to().name +
                               "\" is to reach shard \"" + session_.from().name +
                               "\" leads to another server",
                           "That server does not publish the keyspace's tables for this move.",
                           "Give the right one with --source-conninfo.");
    transaction.commit();
}

SlotState MoveStream::slot_state() {
    // What the receiver says it has applied; between its connections, what it has made durable.
    const Rows rows = session_.source().query(
        "SELECT s.active, s.wal_status = 'lost', "
        "  pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_flush_lsn(), '0/0')::bigint, "
        "  COALESCE(pg_catalog.pg_wal_lsn_diff(COALESCE(r.write_lsn, s.confirmed_flush_lsn), "
        "    '0/0'), -1)::bigint "
        "FROM pg_catalog.pg_replication_slots s "
        "  LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid "
        "WHERE s.slot_name = $1 AND s.database = pg_catalog.current_database()",
        {Param::of_name(record_.name())});
    SlotState state;
    state.exists = !rows.empty();
    if (!state.exists) return state;
    state.active = rows.boolean(0, 0);
    state.lost = rows.boolean(0, 1);
    state.written = rows.int64(0, 2);
    state.applied = rows.int64(0, 3);
    if (state.applied >= 0) state.lag = std::max<std::int64_t>(0, state.written - state.applied);
    return state;
}

std::string MoveStream::target_timeline() {
    return session_.target()
        .query("SELECT pg_catalog.substr(pg_catalog.pg_walfile_name("
               "pg_catalog.pg_current_wal_insert_lsn()), 1, 8)")
        .text(0, 0);
}

void MoveStream::forget_markers() {
    session_.target().query("DELETE FROM interlock.move_marker WHERE move_id = $1",
                            {record_.id_param()});
}

bool MoveStream::marker_has_come() {
    const Rows written = session_.source().query(
        "SELECT m.token_hash::pg_catalog.text FROM interlock.move_marker m "
        "  JOIN interlock.handoff h ON (h.move_id, h.fence) = (m.move_id, m.fence) "
        "WHERE m.move_id = $1",
        {record_.id_param()});
    return !written.empty() &&
           session_.target()
               .query("SELECT EXISTS (SELECT FROM interlock.move_marker m "
                      "WHERE m.move_id = $1 AND m.token_hash::pg_catalog.text = $2)",
                      {record_.id_param(), Param::of_text(written.text(0, 0))})
               .boolean(0, 0);
}

void MoveStream::write_marker_again() {
    ControlTransaction transaction(session_.source());
    session_.source().query("DELETE FROM interlock.move_marker WHERE move_id = $1",
                            {record_.id_param()});
    session_.source().query("SELECT interlock.write_marker($1)", {record_.id_param()});
    transaction.commit();
}

void MoveStream::drop_subscription() {
    ControlConnection &target = session_.target();
    if (subscribed()) {
        // Without a slot it can be dropped though the source may not answer.
        for (const char *const change :
             {"ALTER SUBSCRIPTION % DISABLE", "ALTER SUBSCRIPTION % SET (slot_name = NONE)",
              "DROP SUBSCRIPTION %"})
            remove_by(target, change);
    }
    record_.removed(session_.to(), "subscription", record_.name());
}

/// A mover that was cut off from the catalog meanwhile is late: another one uses what is there.
void MoveStream::remove_by(ControlConnection &shard, std::string statement) {
    statement.replace(statement.find('%'), 1, record_.name());
    record_.require_lock();
    shard.execute(statement);
}

void MoveStream::drop_slot() {
    creator_.reset();
    ControlConnection &source = session_.source();
    const auto deadline = steady_clock::now() + milliseconds(request_.lock_timeout);
    for (;;) {
        record_.require_lock();
        const Rows rows =
            source.query("SELECT s.active, pg_catalog.pg_terminate_backend(s.active_pid) "
                         "FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1",
                         {Param::of_name(record_.name())});
        if (rows.empty()) return;
        if (!rows.boolean(0, 0)) {
            record_.require_lock();
            try {
                source.query("SELECT pg_catalog.pg_drop_replication_slot($1)",
                             {Param::of_name(record_.name())});
                return;
            } catch (const ControlError &error) {
                // Somebody has just begun to read it, or another has dropped it.
                if (error.sqlstate != "55006" && error.sqlstate != "42704") throw;
            }
        }
        if (steady_clock::now() >= deadline)
            throw ControlError("55006", "replication slot \"" + record_.name() + "\" on shard \"" +
                                            session_.from().name + "\" is in use");
        std::this_thread::sleep_for(between_looks);
    }
}

void MoveStream::remove() {
    drop_subscription();
    drop_slot();
    ControlConnection &source = session_.source();
    remove_by(source, "DROP PUBLICATION IF EXISTS %");
    record_.removed(session_.from(), "publication", record_.name());
    source.query("SELECT interlock.forget_move_slot($1)", {Param::of_name(record_.name())});
    record_.removed(session_.from(), "slot", record_.name());
}

}  // namespace interlock
