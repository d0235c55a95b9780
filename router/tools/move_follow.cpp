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
/// What the target cannot apply it tries again, for ever: so many failures without headway.
constexpr std::int64_t most_failures = 3;

}  // namespace

MoveFollow::MoveFollow(MoveSession &session, MoveRecord &record, MoveStream &stream,
                       MoveObserver &observer)
    : session_(session), record_(record), stream_(stream), observer_(observer) {}

FollowMarks::FollowMarks(milliseconds close) : close_(close) {}

void FollowMarks::note(Time now, std::int64_t written) {
    marks_.emplace_back(now, written);
}

bool FollowMarks::reached(Time now, std::int64_t applied) {
    while (!marks_.empty() && now - marks_.front().first > close_)
        marks_.pop_front();
    return !marks_.empty() && marks_.front().second <= applied;
}

void MoveFollow::until_caught_up(std::int64_t close) {
    // Bytes of WAL say little: the source's other buckets make some too. So it is time that counts.
    FollowMarks marks{milliseconds(close)};
    auto headway = steady_clock::now();
    auto told = headway - tell_every;
    std::int64_t told_applied = -1;
    std::int64_t best = -1;
    std::int64_t failures = receiver_failures();
    for (;;) {
        const SlotState slot = stream_.slot_state();
        if (!slot.exists || slot.lost)
            throw SlotLost("55000",
                           "replication slot \"" + record_.name() + "\" of shard \"" +
                               session_.from().name + (slot.exists ? "\" is lost" : "\" has gone"),
                           slot.exists ? "The server has removed WAL that it needs." : "",
                           slot.exists ? "Raise max_slot_wal_keep_size." : "");
        const auto now = steady_clock::now();
        marks.note(now, slot.written);
        if (marks.reached(now, slot.applied) && slot.active) return;
        if (slot.applied > best) {
            best = slot.applied;
            headway = now;
            failures = -1;
        }
        if (now - told >= tell_every) {
            const auto past = std::chrono::duration_cast<milliseconds>(now - told).count();
            observer_.following(slot.lag,
                                told_applied < 0
                                    ? 0
                                    : std::max<std::int64_t>(0, slot.applied - told_applied) *
                                          1000 / std::max<std::int64_t>(1, past));
            told = now;
            told_applied = slot.applied;
            const std::int64_t failed = receiver_failures();
            if (failures < 0) failures = failed;
            if (failed >= failures + most_failures) throw does_not_follow();
        }
        if (now - headway > no_headway) throw does_not_follow();
        std::this_thread::sleep_for(between_looks);
    }
}

std::int64_t MoveFollow::receiver_failures() {
    // PostgreSQL 14 does not count them.
    if (!session_.target()
             .query("SELECT pg_catalog.to_regclass('pg_catalog.pg_stat_subscription_stats') "
                    "IS NOT NULL")
             .boolean(0, 0))
        return 0;
    return session_.target()
        .query("SELECT COALESCE(pg_catalog.max(t.apply_error_count), 0)::bigint "
               "FROM pg_catalog.pg_stat_subscription_stats t WHERE t.subname = $1",
               {Param::of_name(record_.name())})
        .int64(0, 0);
}

ControlError MoveFollow::does_not_follow() {
    return ControlError(
        "55000",
        "shard \"" + session_.to().name + "\" does not follow shard \"" + session_.from().name +
            "\"",
        receiver_troubles(),
        "The target's log has the reason; when it is mended, run the command again.");
}

std::string MoveFollow::receiver_troubles() {
    const Rows rows = session_.target().query(
        "SELECT s.subenabled, p.pid "
        "FROM pg_catalog.pg_subscription s "
        "  LEFT JOIN pg_catalog.pg_stat_subscription p ON p.subid = s.oid AND p.relid IS NULL "
        "WHERE s.subname = $1",
        {Param::of_name(record_.name())});
    const std::string named = "Its subscription \"" + record_.name() + "\" ";
    if (rows.empty()) return named + "has gone.";
    if (!rows.boolean(0, 0)) return named + "is disabled.";
    if (const std::int64_t failures = receiver_failures(); failures > 0)
        return named + "has failed " + std::to_string(failures) + " times.";
    return named + (rows.is_null(0, 1) ? "has no process: max_logical_replication_workers may be "
                                         "used up."
                                       : "is connected but applies nothing.");
}

}  // namespace interlock
