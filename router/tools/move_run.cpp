#include "tools/move_run.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "tools/bucket_set.h"
#include "tools/index_options.h"
#include "tools/move_clean.h"
#include "tools/move_copy.h"
#include "tools/move_follow.h"
#include "tools/move_preflight.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;

/// A move whose slot is lost copies again, so many times.
constexpr int most_copies = 3;
/// Others that publish are let go first, so many times.
constexpr int most_turns = 100;
/// For servers that do not answer, in ms, as long as nothing goes on.
constexpr std::int64_t trouble_patience = 60'000;
constexpr milliseconds between_tries{500};
/// Between two tries to fence, at first and at most.
constexpr std::int64_t back_off_first = 500, back_off_cap = 30'000;

std::int64_t now_ms() {
    return std::chrono::duration_cast<milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Published, but it is not known that the target has what the source had.
class RowsInDoubt : public ControlError {
  public:
    using ControlError::ControlError;
};

/// Servers that stop, start or cannot be reached.
bool is_outage(const ControlError &error) {
    return error.sqlstate.starts_with("08") || error.sqlstate.starts_with("57P");
}

/// Others were in the way.
bool is_busy(const ControlError &error) {
    for (const char *const state : {"55P03", "57014", "40P01", "40001"})
        if (error.sqlstate == state) return true;
    return false;
}

}  // namespace

MoveRun::MoveRun(const MoveRequest &request, MoveObserver &observer)
    : request_(request), observer_(observer) {}

MoveRun::~MoveRun() = default;

MoveResult MoveRun::run() {
    if (!begin()) return MoveResult::failed;
    for (;;) {
        try {
            attach();
            return carry_on();
        } catch (const SlotLost &error) {
            observer_.note(std::string(error.what()) + ": the rows have to be copied again");
            if (++copies_ > most_copies) {
                record_error(error);
                throw;
            }
        } catch (const MoveDiffers &error) {
            record_error(error);
            take_back(error);
            throw;
        } catch (const MoveEnded &ended) {
            // It was under way when we began: another mover was quicker.
            if (ended.outcome != "done") throw;
            observer_.note("another mover has carried it out meanwhile");
            return MoveResult::done;
        } catch (const RowsInDoubt &error) {
            record_error(error);
            throw;
        } catch (const ControlError &error) {
            if (!may_try_again(error)) {
                record_error(error);
                throw;
            }
            observer_.note(std::string(error.what()) + "; trying again");
            std::this_thread::sleep_for(between_tries);
        }
    }
}

/// Finds the move, or records it, once it has passed the checks.
bool MoveRun::begin() {
    ControlConnection catalog(request_.catalog, "interlock move", request_.query_timeout);
    if (const auto known = find_move(catalog, request_)) {
        id_ = known->id;
        observer_.began(*known, true);
        require_same_keeping(catalog);
        return true;
    }
    session_ = std::make_unique<MoveSession>(request_);
    const std::vector<MoveFinding> findings = preflight(*session_, request_);
    if (!findings.empty()) observer_.found(findings);
    if (has_refusal(findings)) return false;
    id_ = catalog.query("SELECT pg_catalog.gen_random_uuid()").text(0, 0);
    catalog.query("SELECT interlock.begin_move($1, $2, $3, $4, $5, "
                  "pg_catalog.jsonb_build_object('keep_source', $6))",
                  {Param::of_uuid(id_), Param::of_text(session_->keyspace().name),
                   Param::of_int4_array(session_->buckets()), Param::of_text(session_->from().name),
                   Param::of_text(session_->to().name), Param::of_int8(request_.keep_source)});
    MoveRequest recorded;
    recorded.id = id_;
    observer_.began(*find_move(catalog, recorded), false);
    return true;
}

/// How long rows are kept belongs to the move. Whoever asks for it now would rely on it.
void MoveRun::require_same_keeping(ControlConnection &catalog) const {
    if (request_.keep_source == 0) return;
    const Rows rows = catalog.query("SELECT COALESCE((m.options ->> 'keep_source')::bigint, 0) "
                                    "FROM interlock.move m WHERE m.id = $1",
                                    {Param::of_uuid(id_)});
    if (rows.int64(0, 0) == request_.keep_source) return;
    throw ControlError("55000", "move " + id_ + " was begun without this --keep-source",
                       "It keeps the rows on the source " +
                           std::string(rows.int64(0, 0) == 0 ? "no longer than it has to."
                                                             : "for another time: see --status."),
                       "Leave --keep-source out, or take the move back with --abort " + id_ +
                           " and begin anew.");
}

/// Sessions that work, and nobody else at work on this move.
void MoveRun::attach() {
    if (!record_ || session_->catalog().broken() || session_->source().broken() ||
        session_->target().broken()) {
        switch_.reset();
        stream_.reset();
        record_.reset();
        // What is broken is gone: whether to try again is a matter of the error from here on. The
        // move may have been ended by another mover meanwhile.
        session_.reset();
        ControlConnection catalog(request_.catalog, "interlock move", request_.query_timeout);
        MoveRequest recorded;
        recorded.id = id_;
        const Move move = *find_move(catalog, recorded);
        session_ = std::make_unique<MoveSession>(request_, move);
        record_ = std::make_unique<MoveRecord>(request_, *session_, id_, observer_);
        stream_ = std::make_unique<MoveStream>(request_, *session_, *record_, observer_);
        switch_ = std::make_unique<MoveSwitch>(request_, *session_, *record_, observer_);
    }
    // Of one that has just lost its connection, the session may live on for a moment.
    record_->lock(request_.query_timeout);
}

MoveResult MoveRun::carry_on() {
    const Move move = record_->read();
    const MoveStep step = move_step_named(move.step).value_or(MoveStep::planned);
    const HandoffState source = read_handoff(session_->source(), id_);
    const HandoffState target = read_handoff(session_->target(), id_);
    if (step < MoveStep::routed) require_decision(*session_, id_, source, target);
    if (source.state == "aborted" || target.state == "aborted")
        throw ControlError("55000", "move " + id_ + " is being taken back", {},
                           "Finish that with --abort " + id_ + ".");
    const bool active = target.state == "active";
    // Once its clean-up has begun, the shards may have forgotten it.
    if (step >= MoveStep::cleaned || (active && step >= MoveStep::routed)) return finish();
    const SlotState slot = stream_->slot_state();
    // A subscription that has gone took along how far the target has come; from the same slot a new
    // one would be given changes again that are there already.
    const bool copied = step >= MoveStep::copied && source.known && target.known && slot.exists &&
                        !slot.lost && (step < MoveStep::subscribed || stream_->subscribed()) &&
                        !target_was_replaced();
    if (source.state == "decided") {
        switch_->drive_forward(!active && follow_again(step, copied));
        return finish();
    }
    switch_->give_up();
    if (!copied) {
        if (step == MoveStep::planned) {
            record_->begin(MoveStep::planned);
            record_->reached(MoveStep::planned);
        }
        prepare();
        require_same_tables();
        start_anew(record_->has("slot"));
        copy();
    }
    subscribe(copied);
    return follow_and_switch();
}

void MoveRun::subscribe(bool copied) {
    if (copied && stream_->subscribed()) return;
    record_->begin(MoveStep::subscribed);
    stream_->subscribe();
    record_->reached(MoveStep::subscribed);
}

/// Of a decided move whose target is not active; whether its rows are others than were compared. If
/// the marker is there, so is what came before it. If not, it may be on its way, or a standby was
/// promoted that does not have it and never will: the source has the rows as they were at the
/// decision.
bool MoveRun::follow_again(MoveStep step, bool copied) {
    // Steps go back only when the rows are copied again.
    const bool begun = step < MoveStep::caught_up;
    if (stream_->marker_has_come()) return begun;
    if (!copied) {
        observer_.note(
            "shard \"" + session_->to().name +
            "\" does not have all that was decided on: the rows have to be copied again");
        prepare();
        start_anew(true);
        copy();
    }
    // The marker was written before this slot was made.
    if (begun || !copied) stream_->write_marker_again();
    subscribe(copied);
    return begun || !copied;
}

/// The slot goes on behind what the target has once confirmed. A standby that was promoted in its
/// place need not have that, and is on another timeline.
bool MoveRun::target_was_replaced() {
    const std::string copied_to =
        session_->catalog()
            .query("SELECT COALESCE(m.progress ->> 'target_timeline', '') FROM interlock.move m "
                   "WHERE m.id = $1",
                   {record_->id_param()})
            .text(0, 0);
    if (copied_to.empty() || copied_to == stream_->target_timeline()) return false;
    observer_.note("shard \"" + session_->to().name +
                   "\" is another server than the one that was copied to (timeline " +
                   stream_->target_timeline() + ", was " + copied_to +
                   "): the rows have to be copied again");
    return true;
}

void MoveRun::prepare() {
    record_->begin(MoveStep::prepared);
    record_->making(session_->to(), "rows", session_->keyspace().name);
    session_->source().query_within(
        request_.scan_timeout, "SELECT interlock.begin_export($1, $2, $3, $4)",
        {Param::of_text(session_->keyspace().name), Param::of_int4_array(session_->buckets()),
         Param::of_text(session_->to().name), record_->id_param()});
    session_->target().query_within(
        request_.scan_timeout, "SELECT interlock.begin_import($1, $2, $3, $4)",
        {Param::of_text(session_->keyspace().name), Param::of_int4_array(session_->buckets()),
         Param::of_text(session_->from().name), record_->id_param()});
    record_->reached(MoveStep::prepared);
}

/// DDL is refused from here on. The tables were checked before that, and by a mover that was killed
/// then perhaps long before.
void MoveRun::require_same_tables() {
    const std::vector<MoveFinding> findings = check_tables_again(*session_, request_);
    if (findings.empty()) return;
    observer_.found(findings);
    throw ControlError("55000", "the tables have changed since they were checked for move " + id_,
                       {},
                       "Take it back with --abort " + id_ + ", do what is told, and move again.");
}

/// What an earlier copy has left is of no use: its snapshot ended with its mover. Of an undecided
/// move that is told by the slot's record, which comes first and goes last.
void MoveRun::start_anew(bool copied_before) {
    if (!copied_before) return;
    stream_->drop_subscription();
    stream_->forget_markers();
    MoveCopy(request_, *session_, *record_, observer_).clear_target();
    stream_->remove();
}

void MoveRun::copy() {
    record_->begin(MoveStep::recorded_slot);
    stream_->record_slot();
    record_->reached(MoveStep::recorded_slot);
    record_->begin(MoveStep::published_tables);
    stream_->publish_tables();
    record_->reached(MoveStep::published_tables);
    record_->begin(MoveStep::slot);
    const std::string snapshot = stream_->make_slot();
    record_->reached(MoveStep::slot);
    record_->begin(MoveStep::copied);
    const std::string timeline = stream_->target_timeline();
    const std::int64_t rows = MoveCopy(request_, *session_, *record_, observer_).run(snapshot);
    stream_->release();
    record_->reached(MoveStep::copied, "{\"rows\": " + std::to_string(rows) +
                                           ", \"target_timeline\": \"" + timeline + "\"}");
}

MoveResult MoveRun::follow_and_switch() {
    MoveFollow follow(*session_, *record_, *stream_, observer_);
    std::int64_t back_off = back_off_first;
    int waited = 0;
    for (int tried = 1;; ++tried) {
        record_->begin(MoveStep::caught_up);
        follow.until_caught_up(std::max<std::int64_t>(50, request_.max_pause / 4));
        record_->reached(MoveStep::caught_up);
        const auto held_up = switch_->attempt();
        if (!held_up) return finish();
        std::string why = held_up->reason;
        for (const MoveHolder &holder : held_up->holders)
            why += (&holder == held_up->holders.data() ? ": " : "; ") + holder.described();
        record_->reached(MoveStep::caught_up, {}, why);
        if (held_up->others_turn && ++waited < most_turns) --tried;
        if (tried >= request_.tries) {
            observer_.note("could not hand over " + buckets_phrase(session_->buckets()) + ": " +
                           why);
            return MoveResult::given_up;
        }
        observer_.note(why + "; trying again in " + std::to_string(back_off) + " ms");
        std::this_thread::sleep_for(milliseconds(back_off));
        back_off = std::min(back_off * 2, back_off_cap);
    }
}

MoveResult MoveRun::finish() {
    if (const auto comparison = switch_->compare_afterwards()) {
        if (!comparison->equal) {
            record_->note("{\"difference\": " + json_string(comparison->difference) + "}");
        } else {
            record_->note("{\"compared\": true}");
            observer_.verified(comparison->rows);
        }
    }
    // Later steps are those of a clean-up, which somebody has decided on.
    if (record_->read().step == name_of(MoveStep::routed)) require_compared();
    (void)MoveClean(request_, *session_, *record_, observer_).after_switch(false);
    return MoveResult::done;
}

/// The source's rows are the only ones to compare with: as long as it is not known that the target
/// has the same, they stay.
void MoveRun::require_compared() {
    const std::string to = "shard \"" + session_->to().name + '"';
    const std::string from = "shard \"" + session_->from().name + '"';
    const std::string then = "Nothing is cleaned up: the rows on " + from +
                             " are as they were at the switch. Compare them, and then remove "
                             "them with interlock move --clean " +
                             id_ + ".";
    if (const std::string difference = record_->noted("difference"); !difference.empty())
        throw RowsInDoubt("XX001", "the rows on " + to + " are not those that " + from + " had",
                          difference, then);
    if (record_->noted("verify") == "before" || record_->noted("compared") == "true") return;
    throw RowsInDoubt("55000", "the rows on " + to + " were not compared with those on " + from,
                      "The mover that was to do so, after the switch, had ended by then, and its "
                      "snapshots with it.",
                      then);
}

/// Until the target has them, the buckets of a decided move are shut.
bool MoveRun::decided() noexcept {
    try {
        return session_ && read_handoff(session_->source(), id_).state == "decided";
    } catch (const std::exception &) {
        return false;
    }
}

bool MoveRun::may_try_again(const ControlError &error) {
    const bool broken = session_ && (session_->catalog().broken() || session_->source().broken() ||
                                     session_->target().broken());
    if (!broken && !is_outage(error) && !(is_busy(error) && decided())) return false;
    const std::int64_t now = now_ms();
    std::string step;
    try {
        if (record_ && !session_->catalog().broken()) step = record_->read().step;
    } catch (const ControlError &) {
        step = last_step_;
    }
    // Trouble that comes back after a while is new trouble.
    if (trouble_since_ == 0 || now - last_trouble_ > trouble_patience ||
        (!step.empty() && step != last_step_))
        trouble_since_ = now;
    last_trouble_ = now;
    if (!step.empty()) last_step_ = step;
    return now - trouble_since_ < trouble_patience;
}

/// What has been copied is no good, and would not be the next time.
void MoveRun::take_back(const ControlError &error) {
    observer_.note(std::string(error.what()) + "; taking the move back");
    switch_.reset();
    stream_.reset();
    record_.reset();
    session_.reset();
    MoveRequest mine = request_;
    mine.id = id_;
    (void)abort_move(mine, observer_);
}

void MoveRun::record_error(const ControlError &error) noexcept {
    try {
        if (!record_) return;
        const Move move = record_->read();
        session_->catalog().query(
            "SELECT interlock.record_step($1, $2, NULL, $3)",
            {record_->id_param(), Param::of_text(move.step), Param::of_text(error.what())});
    } catch (const std::exception &) {
        // What stopped it is told anyway.
    }
}

MoveResult run_move(const MoveRequest &request, MoveObserver &observer) {
    return MoveRun(request, observer).run();
}

}  // namespace interlock
