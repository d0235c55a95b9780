#include "tools/move_record.h"

#include <chrono>
#include <thread>

#include "route/catalog_watcher.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds between_looks{100};

constexpr const char *lock_key =
    "pg_catalog.hashtextextended('interlock move ' || $1::pg_catalog.text, 0)";

}  // namespace

MoveRecord::MoveRecord(const MoveRequest &request, MoveSession &session, std::string id,
                       MoveObserver &observer)
    : session_(session), request_(request), id_(std::move(id)), observer_(observer) {}

void MoveRecord::lock(std::int64_t patience) {
    const auto deadline = steady_clock::now() + milliseconds(patience);
    ControlConnection &catalog = session_.catalog();
    if (locked_) return require_lock();
    while (!catalog
                .query(std::string("SELECT pg_catalog.pg_try_advisory_lock(") + lock_key + ")",
                       {id_param()})
                .boolean(0, 0)) {
        if (steady_clock::now() < deadline) {
            std::this_thread::sleep_for(between_looks);
            continue;
        }
        const Rows holder = catalog.query(
            std::string("SELECT a.pid, COALESCE(pg_catalog.host(a.client_addr), 'local'), "
                        "  pg_catalog.date_trunc('second', a.backend_start) AT TIME ZONE 'UTC' "
                        "FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a "
                        "  ON a.pid = l.pid "
                        "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
                        "  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d "
                        "    WHERE d.datname = pg_catalog.current_database()) AND "
                        "  ((l.classid::bigint << 32) | l.objid::bigint) = ") +
                lock_key,
            {id_param()});
        if (holder.empty()) continue;  // it has just gone
        throw ControlError("55006", "another mover is at work on move " + id_,
                           "Its session on the catalog is process " + holder.text(0, 0) + " (" +
                               holder.text(0, 1) + ", since " + holder.text(0, 2) + ").",
                           "If that mover hangs, end the session in the catalog with SELECT "
                           "pg_terminate_backend(" +
                               holder.text(0, 0) + ").");
    }
    locked_ = true;
}

void MoveRecord::require_lock() {
    session_.catalog().execute("SELECT 1");
}

Move MoveRecord::read() {
    MoveRequest wanted;
    wanted.id = id_;
    return *find_move(session_.catalog(), wanted);
}

void MoveRecord::begin(MoveStep step) {
    stop_before(step);
}

void MoveRecord::reached(MoveStep step, const std::string &progress, const std::string &error) {
    Param error_param = Param::null_text();
    if (!error.empty()) error_param.text = error;
    Param progress_param = Param::null_text();
    if (!progress.empty()) progress_param.text = progress;
    ControlConnection &catalog = quickly_ && quick_ ? *quick_ : session_.catalog();
    catalog.query("SELECT interlock.record_step($1, $2, (SELECT COALESCE(m.progress, '{}') || "
                  "$3::pg_catalog.jsonb FROM interlock.move m WHERE m.id = $1), $4)",
                  {id_param(), Param::of_text(name_of(step)), progress_param, error_param});
    observer_.step(std::string(name_of(step)));
    stop_after(step);
}

void MoveRecord::reached_or_not(MoveStep step) noexcept {
    try {
        reached(step);
    } catch (const std::exception &) {
        // Whoever resumes the move asks the shards.
    }
}

void MoveRecord::note(const std::string &progress, const std::string &error) {
    Param error_param = Param::null_text();
    if (!error.empty()) error_param.text = error;
    session_.catalog().query(
        "SELECT interlock.record_step(m.id, m.step, COALESCE(m.progress, '{}') || "
        "$2::pg_catalog.jsonb, $3) FROM interlock.move m WHERE m.id = $1",
        {id_param(), Param::of_text(progress), error_param});
}

std::string MoveRecord::noted(const char *member) {
    return session_.catalog()
        .query("SELECT COALESCE(m.progress ->> $2, '') FROM interlock.move m WHERE m.id = $1",
               {id_param(), Param::of_text(member)})
        .text(0, 0);
}

void MoveRecord::making(const Shard &shard, const char *kind, const std::string &name) {
    session_.catalog().query(
        "SELECT interlock.record_artefact($1, $2, $3, $4)",
        {id_param(), Param::of_text(shard.name), Param::of_text(kind), Param::of_text(name)});
}

void MoveRecord::removed(const Shard &shard, const char *kind, const std::string &name) {
    session_.catalog().query(
        "SELECT interlock.forget_artefact($1, $2, $3, $4)",
        {id_param(), Param::of_text(shard.name), Param::of_text(kind), Param::of_text(name)});
}

bool MoveRecord::has(const char *kind) {
    return session_.catalog()
        .query("SELECT EXISTS (SELECT FROM interlock.move_artefact a "
               "WHERE a.move = $1 AND a.kind = $2)",
               {id_param(), Param::of_text(kind)})
        .boolean(0, 0);
}

std::int32_t MoveRecord::reserve() {
    return session_.catalog()
        .query("SELECT interlock.reserve_version($1)", {id_param()})
        .int32(0, 0);
}

std::int32_t MoveRecord::reserve_again(std::int32_t decided) {
    return session_.catalog()
        .query("SELECT interlock.reserve_again($1, $2)", {id_param(), Param::of_int4(decided)})
        .int32(0, 0);
}

void MoveRecord::announce() {
    session_.catalog().query("SELECT interlock.announce_move($1)", {id_param()});
}

bool MoveRecord::routers_know() {
    ControlConnection &catalog = quickly_ && quick_ ? *quick_ : session_.catalog();
    return catalog
        .query("SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_locks l "
               "  JOIN pg_catalog.pg_database d ON d.oid = l.database "
               "WHERE d.datname = pg_catalog.current_database() AND l.locktype = 'advisory' "
               "  AND l.objsubid = 2 AND l.classid::bigint = $1 AND l.objid::bigint <> "
               "  ((SELECT c.announcement FROM interlock.cluster c) & 2147483647))",
               {Param::of_int8(announcement_lock)})
        .boolean(0, 0);
}

void MoveRecord::withdraw() {
    session_.catalog().query("SELECT interlock.withdraw_version($1)", {id_param()});
}

std::int32_t MoveRecord::publish() {
    return session_.catalog().query("SELECT interlock.publish_move($1)", {id_param()}).int32(0, 0);
}

void MoveRecord::finish(const char *outcome) {
    session_.catalog().query("SELECT interlock.finish_move($1, $2)",
                             {id_param(), Param::of_text(outcome)});
}

void MoveRecord::prepare_switch() {
    if (quick_ && !quick_->broken()) return;
    quick_ = std::make_unique<ControlConnection>(request_.catalog, "interlock move",
                                                 request_.query_timeout);
    quick_->query("SELECT pg_catalog.set_config('synchronous_commit', 'off', false)");
}

}  // namespace interlock
