#include "tools/move_switch.h"

#include <algorithm>
#include <thread>

#include "tools/move_interrupt.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;

/// From when a router acts on an announcement until what it sent before has taken its locks at the
/// shard. Transactions that have are waited for afterwards.
constexpr milliseconds news_spreads{10};
constexpr milliseconds between_looks{2};
/// By how much a fence outlasts the pause that is allowed. It ends by itself if the mover has died,
/// and that should be before clients have waited as long as routers let them.
constexpr std::int64_t fence_margin = 1000;
constexpr std::int64_t longest_fence = 3'600'000;
/// For those that were told to end.
constexpr std::int64_t ending = 1000;
/// Of a decided move, whose target follows or will.
constexpr milliseconds marker_patience{120'000};

std::int64_t ms_between(std::chrono::steady_clock::time_point from,
                        std::chrono::steady_clock::time_point to) {
    return std::chrono::duration_cast<milliseconds>(to - from).count();
}

}  // namespace

MoveSwitch::MoveSwitch(const MoveRequest &request, MoveSession &session, MoveRecord &record,
                       MoveObserver &observer)
    : request_(request), session_(session), record_(record), observer_(observer),
      verifier_(request, session) {}

std::int64_t MoveSwitch::left() const {
    return std::max<std::int64_t>(0, request_.max_pause - ms_between(began_, Clock::now()));
}

void MoveSwitch::prepare() {
    record_.prepare_switch();
    verifier_.open();
    if (!waiter_ || waiter_->broken()) {
        waiter_ = session_.open_source(request_.max_pause + request_.query_timeout);
        waiter_->query("SELECT pg_catalog.set_config('synchronous_commit', 'off', false)");
    }
    // The longest that the comparison may take; also has both sides read what they will read again.
    verify_before_ = request_.verify == MoveVerify::before;
    if (request_.verify == MoveVerify::automatic)
        verify_before_ = verifier_.rehearse() < request_.max_pause / 3;
    raise_sequences(request_.scan_timeout);
    // Before anything can be decided: whoever finds a decided move has to know whether its rows
    // were compared by then.
    record_.note(verify_before_ ? R"({"verify": "before"})" : R"({"verify": "after"})");
}

std::optional<MoveHeldUp> MoveSwitch::attempt() {
    prepare();
    const InterruptsHeld held;
    snapshots_ = false;
    std::optional<MoveHeldUp> result;
    try {
        version_ = record_.reserve();
    } catch (const ControlError &error) {
        // Another publication has its number, or is about to: a long "interlock apply".
        if (error.sqlstate != "55006" && error.sqlstate != "55P03" && error.sqlstate != "57014")
            throw;
        return MoveHeldUp{error.what(), {}, true};
    }
    try {
        result = try_it();
    } catch (const ControlError &error) {
        record_.quickly(false);
        // 55000: the fence has expired. 57014: something took too long. 55P03: somebody held the
        // shard's state. Whatever it is: unless it is decided, the bucket is opened first.
        if (session_.source().broken() ||
            read_handoff(session_.source(), record_.id()).state == "decided")
            throw;
        verifier_.release();
        give_up();
        if (error.sqlstate != "55000" && error.sqlstate != "57014" && error.sqlstate != "55P03")
            throw;
        return MoveHeldUp{error.what() + (error.detail.empty() ? "" : ": " + error.detail), {}};
    }
    record_.quickly(false);
    if (result) {
        verifier_.release();
        give_up();
    }
    return result;
}

std::optional<MoveHeldUp> MoveSwitch::try_it() {
    record_.begin(MoveStep::announced);
    began_ = Clock::now();
    record_.announce();
    record_.quickly(true);
    record_.reached(MoveStep::announced);

    // Transactions that have read and mean to write: they began before their router knew.
    if (request_.grace > 0) wait_for_routers(milliseconds(request_.max_pause / 3));
    const auto known = Clock::now();
    const std::int64_t grace = std::min(request_.grace, left());
    if (grace > 0) {
        waiter_->query("SELECT interlock.wait_for_transactions(interlock.lock_holders($1, ARRAY["
                       "'AccessShareLock', 'RowShareLock', 'RowExclusiveLock', "
                       "'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock']), $2)",
                       {Param::of_text(session_.keyspace().name),
                        Param::of_int4(static_cast<std::int32_t>(
                            std::max<std::int64_t>(0, grace - ms_between(known, Clock::now()))))});
    }

    record_.begin(MoveStep::fenced);
    session_.source().query(
        "SELECT interlock.fence_buckets($1, $2, $3, $4, $5, pg_catalog.make_interval(secs => "
        "$6::pg_catalog.float8 / 1000))",
        {Param::of_text(session_.keyspace().name), Param::of_int4_array(session_.buckets()),
         Param::of_text(session_.to().name), record_.id_param(), Param::of_int4(version_),
         Param::of_text(std::to_string(std::min(left() + fence_margin, longest_fence)))});
    record_.reached(MoveStep::fenced);

    record_.begin(MoveStep::waited);
    if (auto held_up = wait_for_writers()) return held_up;
    record_.reached(MoveStep::waited);
    if (const std::int64_t rest = grace - ms_between(known, Clock::now()); rest > 0)
        (void)wait_for(true, std::min(rest, left()));

    record_.begin(MoveStep::marked);
    const std::int32_t fence = session_.source()
                                   .query("SELECT interlock.write_marker($1)", {record_.id_param()})
                                   .int32(0, 0);
    record_.reached(MoveStep::marked);

    record_.begin(MoveStep::drained);
    if (!drain(fence, began_ + milliseconds(request_.max_pause)))
        return MoveHeldUp{"shard \"" + session_.to().name + "\" was not up to date in time", {}};
    record_.reached(MoveStep::drained);

    record_.begin(MoveStep::verified);
    if (auto held_up = verify()) return held_up;
    // The fence has ended when this has.
    raise_sequences(left() + fence_margin / 2);
    record_.reached(MoveStep::verified);
    decide_and_publish();
    return std::nullopt;
}

/// A router that does not answer costs the time, and its clients an error that they can retry.
/// Those that have heard hold back what is for the buckets meanwhile: the pause has begun.
void MoveSwitch::wait_for_routers(milliseconds patience) {
    while (!record_.routers_know() && Clock::now() < began_ + patience)
        std::this_thread::sleep_for(between_looks);
    std::this_thread::sleep_for(news_spreads);
}

std::vector<MoveHolder> MoveSwitch::wait_for(bool readers, std::int64_t timeout) {
    const Rows rows = waiter_->query_within(
        request_.max_pause + request_.query_timeout,
        "SELECT COALESCE(w.pid, 0), w.username, COALESCE(w.application_name, ''), w.state, "
        "  pg_catalog.date_trunc('second', w.since) AT TIME ZONE 'UTC', COALESCE(w.gid, ''), "
        "  COALESCE((EXTRACT(epoch FROM w.since) * 1000000)::bigint, 0) "
        "FROM interlock.wait_for_writers($1, $2, pg_catalog.make_interval(secs => "
        "  $3::pg_catalog.float8 / 1000), $4) w",
        {Param::of_text(session_.keyspace().name), record_.id_param(),
         Param::of_text(std::to_string(timeout)), Param::of_bool(readers)});
    std::vector<MoveHolder> holders;
    for (int row = 0; row < rows.size(); ++row)
        holders.push_back({rows.int32(row, 0), rows.text(row, 1), rows.text(row, 2),
                           rows.text(row, 3), rows.text(row, 4), rows.text(row, 5),
                           rows.int64(row, 6)});
    return holders;
}

std::optional<MoveHeldUp> MoveSwitch::wait_for_writers() {
    // What comes after them takes its time as well. Those that are to be ended get half of it to
    // end by themselves.
    const std::int64_t patience = request_.end_sessions ? left() / 2 : left() * 3 / 4;
    std::vector<MoveHolder> holders = wait_for(false, patience);
    if (!holders.empty() && request_.end_sessions && end_sessions(holders))
        holders = wait_for(false, std::max(left(), ending));
    if (holders.empty()) return std::nullopt;
    observer_.holding_up(holders);
    return MoveHeldUp{"transactions that were under way did not end in time", holders};
}

bool MoveSwitch::end_sessions(const std::vector<MoveHolder> &holders) {
    bool any = false;
    for (const MoveHolder &holder : holders) {
        if (holder.pid == 0) continue;
        // Another transaction that the session has begun meanwhile may be another client's: routers
        // keep their connections.
        const Rows ended = session_.source().query(
            "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a "
            "WHERE a.pid = $1 AND (EXTRACT(epoch FROM a.xact_start) * 1000000)::bigint = $2",
            {Param::of_int4(holder.pid), Param::of_int8(holder.began)});
        if (!ended.empty()) observer_.note("ended " + holder.described());
        any = true;
    }
    return any;
}

bool MoveSwitch::drain(std::int32_t fence, Clock::time_point deadline) {
    while (!session_.target()
                .query("SELECT EXISTS (SELECT FROM interlock.move_marker m "
                       "WHERE m.move_id = $1 AND m.fence = $2)",
                       {record_.id_param(), Param::of_int4(fence)})
                .boolean(0, 0)) {
        if (Clock::now() >= deadline) return false;
        std::this_thread::sleep_for(between_looks);
    }
    return true;
}

std::optional<MoveHeldUp> MoveSwitch::verify() {
    if (!verify_before_) {
        verifier_.take_snapshots();
        snapshots_ = true;
        return std::nullopt;
    }
    const MoveComparison comparison = verifier_.compare(std::max<std::int64_t>(1, left()));
    if (!comparison.equal) throw MoveDiffers("XX001", they_differ(), comparison.difference);
    observer_.verified(comparison.rows);
    return std::nullopt;
}

std::string MoveSwitch::they_differ() const {
    return "the rows on shard \"" + session_.to().name + "\" are not those of shard \"" +
           session_.from().name + "\"";
}

void MoveSwitch::raise_sequences(std::int64_t limit) {
    // A sequence of the target must not give out again what the source's has given out.
    ControlConnection &target = session_.target();
    const Rows tables =
        target.query("SELECT g.relid::pg_catalog.regclass FROM interlock.guarded_table g "
                     "WHERE g.keyspace = $1 ORDER BY 1::text",
                     {Param::of_text(session_.keyspace().name)});
    const auto end = Clock::now() + milliseconds(limit);
    for (int row = 0; row < tables.size(); ++row)
        target.query_within(std::max<std::int64_t>(1, ms_between(Clock::now(), end)),
                            "SELECT interlock.raise_sequences($1::pg_catalog.regclass, $2, $3)",
                            {Param::of_text(tables.text(row, 0)),
                             Param::of_text(session_.keyspace().name),
                             Param::of_int4_array(session_.buckets())});
}

void MoveSwitch::decide_and_publish() {
    record_.begin(MoveStep::decided);
    record_.require_lock();
    const std::string token =
        session_.source()
            .query("SELECT interlock.decide_handoff($1)", {record_.id_param()})
            .text(0, 0);
    record_.reached_or_not(MoveStep::decided);

    record_.begin(MoveStep::activated);
    session_.target().query("SELECT interlock.activate_import($1, $2, $3)",
                            {record_.id_param(), Param::of_int4(version_), Param::of_uuid(token)});
    record_.reached_or_not(MoveStep::activated);

    record_.begin(MoveStep::routed);
    (void)record_.publish();
    const std::int64_t pause = ms_between(began_, Clock::now());
    record_.quickly(false);
    record_.reached(MoveStep::routed, "{\"pause_ms\": " + std::to_string(pause) + "}");
    observer_.switched(version_, pause);
}

void MoveSwitch::drive_forward(bool compare) {
    const HandoffState source = read_handoff(session_.source(), record_.id());
    const std::string token =
        session_.source()
            .query("SELECT interlock.decide_handoff($1)", {record_.id_param()})
            .text(0, 0);
    // Before the target takes over: what is not published then has no owner that can be found.
    const std::int32_t number = number_of_publication(source.version);
    // A target that crashed may have lost the marker, and what came before it; it comes again.
    if (!drain(source.fence, Clock::now() + marker_patience))
        throw ControlError("55000",
                           "shard \"" + session_.to().name +
                               "\" has not come to the marker of move " + record_.id(),
                           "Its subscription \"" + record_.name() + "\" brings it.",
                           "The target's log may have the reason; then run the command again.");
    if (compare) {
        verifier_.open();
        const MoveComparison comparison = verifier_.compare(request_.scan_timeout);
        if (!comparison.equal) throw ControlError("XX001", they_differ(), comparison.difference);
        observer_.verified(comparison.rows);
        record_.reached(MoveStep::verified, R"({"verify": "before"})");
    }
    raise_sequences(request_.scan_timeout);
    // Under the numbers between the two the source is still the owner, and its rows grow old now.
    if (number > source.version)
        session_.source().query("SELECT interlock.raise_floor($1)", {Param::of_int4(number)});
    session_.target().query(
        "SELECT interlock.activate_import($1, $2, $3)",
        {record_.id_param(), Param::of_int4(source.version), Param::of_uuid(token)});
    record_.reached(MoveStep::activated);
    const std::int32_t version = record_.publish();
    record_.reached(MoveStep::routed);
    observer_.switched(version, -1);
}

std::int32_t MoveSwitch::number_of_publication(std::int32_t decided) {
    const std::int32_t known = record_.read().route_version;
    if (known >= decided) return known;
    observer_.note("the catalog has lost that route version " + std::to_string(decided) +
                   " is of move " + record_.id() + ": reserving it again");
    require_whole_history(session_, request_, decided);
    return record_.reserve_again(decided);
}

void MoveSwitch::give_up() {
    HandoffState source = read_handoff(session_.source(), record_.id());
    if (source.state == "fenced") {
        session_.source().query("SELECT interlock.unfence_buckets($1)", {record_.id_param()});
        // A mover that was cut off from the catalog may have decided meanwhile; it cannot any more.
        source = read_handoff(session_.source(), record_.id());
    }
    if (source.state == "decided")
        throw ControlError("55000", "move " + record_.id() + " is decided", {},
                           "Drive it forward with --resume.");
    record_.withdraw();
}

std::optional<MoveComparison> MoveSwitch::compare_afterwards() {
    if (!snapshots_) return std::nullopt;
    snapshots_ = false;
    return verifier_.compare(request_.scan_timeout);
}

}  // namespace interlock
