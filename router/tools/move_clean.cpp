#include "tools/move_clean.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "tools/index_backfill.h"
#include "tools/move_handoff.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int32_t rows_at_once = 5000;
constexpr milliseconds between_looks{100};
constexpr milliseconds tell_every{1000};
/// For transactions from before the decision, unless told to wait for them.
constexpr milliseconds patience{60'000};

}  // namespace

MoveClean::MoveClean(const MoveRequest &request, MoveSession &session, MoveRecord &record,
                     MoveObserver &observer)
    : request_(request), session_(session), record_(record), observer_(observer),
      stream_(request, session, record, observer) {}

void MoveClean::remove_stream() {
    // First of all: what is deleted at the source would be deleted at the target.
    stream_.remove();
}

bool MoveClean::after_switch(bool now) {
    const auto step = move_step_named(record_.read().step).value_or(MoveStep::routed);
    if (step < MoveStep::cleaned) require_active_target();
    if (step < MoveStep::unsubscribed) {
        record_.begin(MoveStep::unsubscribed);
        record_.making(session_.from(), "rows", session_.keyspace().name);
        remove_stream();
        // The target's rows are its own now.
        record_.removed(session_.to(), "rows", session_.keyspace().name);
        record_.reached(MoveStep::unsubscribed);
    }
    if (step < MoveStep::cleaned) {
        if (!now && rows_are_to_be_kept()) return false;
        record_.begin(MoveStep::cleaned);
        if (!older_transactions_have_ended(now)) return false;
        require_active_target();
        delete_rows(session_.source(), session_.from());
        record_.reached(MoveStep::cleaned);
    }
    record_.begin(MoveStep::done);
    forget();
    record_.finish("done");
    observer_.step(std::string(name_of(MoveStep::done)));
    stop_after(MoveStep::done);
    return true;
}

/// As long as the source's rows are there, a target that has lost what it was given can get it
/// again.
void MoveClean::require_active_target() {
    const HandoffState target = read_handoff(session_.target(), record_.id());
    if (target.state == "active") return;
    throw ControlError(
        "55000", "shard \"" + session_.to().name + "\" has lost the buckets that it was given",
        "It took over in move " + record_.id() + ", but " +
            (target.known ? "its state of that move is " + target.state : "knows nothing of that") +
            ": it may be a standby that was promoted, or an older copy.",
        "The rows on shard \"" + session_.from().name +
            "\" are still there. Run interlock move --resume " + record_.id() +
            " to have them copied again as they were at the decision.");
}

void MoveClean::after_abort() {
    remove_stream();
    ControlConnection &target = session_.target();
    if (read_handoff(target, record_.id()).known) {
        target.query("SELECT interlock.abort_import($1)", {record_.id_param()});
        delete_rows(target, session_.to());
    }
    record_.removed(session_.to(), "rows", session_.keyspace().name);
    forget();
    record_.finish("aborted");
}

/// The time is the catalog's, counted from the publication.
bool MoveClean::rows_are_to_be_kept() {
    const Rows rows = session_.catalog().query(
        "SELECT (m.options ->> 'keep_source')::bigint, "
        "  v.published_at + pg_catalog.make_interval(secs => (m.options ->> "
        "'keep_source')::float8) "
        "    > pg_catalog.clock_timestamp(), "
        "  pg_catalog.date_trunc('second', v.published_at + pg_catalog.make_interval(secs => "
        "    (m.options ->> 'keep_source')::float8)) AT TIME ZONE 'UTC' "
        "FROM interlock.move m LEFT JOIN interlock.route_version v ON v.version = m.route_version "
        "WHERE m.id = $1",
        {record_.id_param()});
    if (rows.empty() || rows.is_null(0, 0) || rows.int64(0, 0) == 0) return false;
    if (rows.int64(0, 0) > 0 && !rows.boolean(0, 1)) return false;
    observer_.note("the rows on shard \"" + session_.from().name + "\" are kept " +
                   (rows.int64(0, 0) < 0 ? "until interlock move --clean " + record_.id()
                                         : "until " + rows.text(0, 2) +
                                               " UTC; interlock move --clean removes them then"));
    return true;
}

bool MoveClean::older_transactions_have_ended(bool now) {
    const auto deadline =
        steady_clock::now() + (now ? milliseconds(request_.scan_timeout) : patience);
    auto tell = steady_clock::now() + tell_every;
    for (;;) {
        const Rows rows = session_.source().query(
            "SELECT COALESCE(o.pid, 0), o.username, COALESCE(o.application_name, ''), "
            "  COALESCE(o.state, ''), pg_catalog.date_trunc('second', o.since) AT TIME ZONE 'UTC' "
            "FROM interlock.older_transactions($1) o "
            // Another move's copy looks at the rows of its own buckets.
            "WHERE o.application_name IS DISTINCT FROM 'interlock move'",
            {record_.id_param()});
        if (rows.empty()) return true;
        const auto at = steady_clock::now();
        if (at >= tell || at >= deadline) {
            std::vector<MoveHolder> holders;
            for (int row = 0; row < rows.size(); ++row)
                holders.push_back({rows.int32(row, 0),
                                   rows.text(row, 1),
                                   rows.text(row, 2),
                                   rows.text(row, 3),
                                   rows.text(row, 4),
                                   {}});
            observer_.holding_up(holders);
            tell = at + 10 * tell_every;
        }
        if (at >= deadline) {
            observer_.note("transactions from before the move can still see the rows on shard \"" +
                           session_.from().name +
                           "\", so they stay; interlock move --clean removes them when those "
                           "have ended");
            return false;
        }
        std::this_thread::sleep_for(between_looks);
    }
}

void MoveClean::delete_rows(ControlConnection &shard, const Shard &named) {
    if (!read_handoff(shard, record_.id()).known) {  // nothing can be left
        record_.removed(named, "rows", session_.keyspace().name);
        return;
    }
    const Rows tables =
        shard.query("SELECT g.relid::pg_catalog.regclass FROM interlock.guarded_table g "
                    "WHERE g.keyspace = $1 ORDER BY 1::text",
                    {Param::of_text(session_.keyspace().name)});
    Throttle throttle(request_.rate);
    std::int64_t all = 0;
    auto tell = steady_clock::now() + tell_every;
    for (int row = 0; row < tables.size(); ++row) {
        for (;;) {
            const std::int64_t deleted =
                shard
                    .query_within(request_.scan_timeout,
                                  "SELECT interlock.delete_moved_rows($1, "
                                  "$2::pg_catalog.regclass, $3)",
                                  {record_.id_param(), Param::of_text(tables.text(row, 0)),
                                   Param::of_int4(rows_at_once)})
                    .int64(0, 0);
            if (deleted == 0) break;
            all += deleted;
            const auto go_on = throttle.reserve(static_cast<std::size_t>(deleted));
            if (steady_clock::now() >= tell) {
                observer_.cleaning(all);
                tell = steady_clock::now() + tell_every;
            }
            std::this_thread::sleep_until(go_on);
        }
    }
    observer_.cleaning(all);
    record_.removed(named, "rows", session_.keyspace().name);
}

/// The source last: as long as it knows the move, it can be told whether it was decided.
void MoveClean::forget() {
    session_.target().query("SELECT interlock.forget_handoff($1)", {record_.id_param()});
    session_.source().query("SELECT interlock.forget_handoff($1)", {record_.id_param()});
}

}  // namespace interlock
