#include "tools/move_follow.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds between_looks{10};
constexpr milliseconds tell_every{500};
constexpr milliseconds no_headway{60'000};

}  // namespace

MoveFollow::MoveFollow(MoveSession &session, MoveRecord &record, MoveStream &stream,
                       MoveObserver &observer)
    : session_(session), record_(record), stream_(stream), observer_(observer) {}

void MoveFollow::until_caught_up(std::int64_t close) {
    // Bytes of WAL say little: the source's other buckets make some too. So: a position is noted,
    // and the time taken until the target has come to it.
    const auto position = [this] {
        return session_.source().query("SELECT pg_catalog.pg_current_wal_flush_lsn()").text(0, 0);
    };
    std::string mark = position();
    auto marked = steady_clock::now();
    auto headway = steady_clock::now();
    auto told = steady_clock::now() - tell_every;
    std::int64_t told_left = -1;
    std::int64_t best = -1;
    for (;;) {
        const SlotState slot = stream_.slot_state();
        if (!slot.exists || slot.lost)
            throw SlotLost("55000",
                           "replication slot \"" + record_.name() + "\" of shard \"" +
                               session_.from().name + (slot.exists ? "\" is lost" : "\" has gone"),
                           slot.exists ? "The server has removed WAL that it needs." : "",
                           slot.exists ? "Raise max_slot_wal_keep_size." : "");
        const std::int64_t left =
            session_.source()
                .query("SELECT COALESCE(pg_catalog.max(GREATEST(0, pg_catalog.pg_wal_lsn_diff("
                       "  $2::pg_catalog.pg_lsn, COALESCE(r.write_lsn, s.confirmed_flush_lsn)))), "
                       "  -1)::bigint "
                       "FROM pg_catalog.pg_replication_slots s "
                       "  LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid "
                       "WHERE s.slot_name = $1",
                       {Param::of_name(record_.name()), Param::of_text(mark)})
                .int64(0, 0);
        const auto now = steady_clock::now();
        if (best < 0 || left < best) {
            best = left;
            headway = now;
        }
        if (now - told >= tell_every) {
            const auto past = std::chrono::duration_cast<milliseconds>(now - told).count();
            observer_.following(slot.lag, told_left < 0
                                              ? 0
                                              : std::max<std::int64_t>(0, told_left - left) * 1000 /
                                                    std::max<std::int64_t>(1, past));
            told = now;
            told_left = left;
        }
        if (left == 0 && slot.active) {
            if (now - marked <= milliseconds(close)) return;
            mark = position();
            marked = steady_clock::now();
            headway = marked;
            best = told_left = -1;
        }
        if (now - headway > no_headway)
            throw ControlError(
                "55000",
                "shard \"" + session_.to().name + "\" does not follow shard \"" +
                    session_.from().name + "\"",
                receiver_troubles(),
                "The target's log has the reason; when it is mended, run the command again.");
        std::this_thread::sleep_for(between_looks);
    }
}

std::string MoveFollow::receiver_troubles() {
    const Rows rows = session_.target().query(
        "SELECT s.subenabled, p.pid, t.apply_error_count "
        "FROM pg_catalog.pg_subscription s "
        "  LEFT JOIN pg_catalog.pg_stat_subscription p ON p.subid = s.oid AND p.relid IS NULL "
        "  LEFT JOIN pg_catalog.pg_stat_subscription_stats t ON t.subid = s.oid "
        "WHERE s.subname = $1",
        {Param::of_name(record_.name())});
    const std::string named = "Its subscription \"" + record_.name() + "\" ";
    if (rows.empty()) return named + "has gone.";
    if (!rows.boolean(0, 0)) return named + "is disabled.";
    if (!rows.is_null(0, 2) && rows.int64(0, 2) > 0)
        return named + "has failed " + rows.text(0, 2) + " times.";
    return named + (rows.is_null(0, 1) ? "has no process: max_logical_replication_workers may be "
                                         "used up."
                                       : "is connected but applies nothing.");
}

}  // namespace interlock
