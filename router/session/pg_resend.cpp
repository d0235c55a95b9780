// Statements that meet a move of buckets: holding them back while their bucket is announced to
// move, and sending them again when a shard has refused them because of their routes.
//
// What is sent again is a Query's statements for the shards, or a round from the first message on
// that something on a backend depends on: never one that anything was committed of, that was part
// of a transaction begun before, or of whose answers the client has seen a byte. Everything it did
// was rolled back with its transaction before; what it did here is undone; then it is carried out
// as if it had just come.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"
#include "session/route_wait.h"

#include <algorithm>

namespace interlock {

namespace {

using Kind = Owed::Kind;
using To = Owed::To;

// Of a round, what is kept to be sent again; and what of that is not charged to the budget for all
// clients.
constexpr std::size_t most_kept = 256 * 1024;
constexpr std::size_t always_room_for = 64 * 1024;
// Answers that the client has not asked for yet, kept back while it sends the rest of a round.
constexpr std::size_t keep_answers = 64 * 1024;
constexpr Millis own_timeout = 5000;
// Whether a fence is still there is asked by sending the statement again, at first after this time.
constexpr Millis retry_first = 20;
constexpr Millis retry_cap = 500;

// As a shard says it, of a statement that is not sent to one.
BackendError on_the_move(const RouteTable &table, const Lease &lease) {
    BackendError error;
    error.sqlstate = "IL103";
    error.message = format("a bucket that the statement uses, or may use, is being handed over to "
                           "shard %s",
                           table.shards[table.announced->to].name.c_str());
    error.detail = format("The transaction runs under route version %d, which is not in force yet; "
                          "the statement was not sent.",
                          lease ? lease->route_version() : table.announced->version);
    return error;
}

}  // namespace

// Whether the keys of the statement say which buckets it uses. What functions of users read, they
// do not.
bool PgClient::buckets_known(const sql::Facts &facts) {
    return !facts.user_code && (!facts.keys.empty() || facts.tables.empty());
}

// The routes of what is carried out next: the newest, unless something runs under others already.
void PgClient::use_newest_routes() {
    if (!block_)
        request_routes_ = worker_.routes();
    else if (hold_ == Hold::none && transaction_ == Transaction::open)
        block_->routes = worker_.routes();
}

void PgClient::begin_request() {
    use_newest_routes();
    patience_ = 0;
    patience_spent_ = false;
    in_force_ = false;
    retry_delay_ = retry_first;
    resend_->possible = false;
}

void PgClient::end_request() {
    request_routes_.reset();
    resend_->possible = false;
    forget_frames();
}

void PgClient::forget_frames() {
    Resend &resend = *resend_;
    worker_.buffered_bytes -= std::exchange(resend.charged, 0);
    if (resend.frames.capacity() > always_room_for)
        std::string().swap(resend.frames);  // an assignment would keep the room
    else
        resend.frames.clear();
    resend.last = 0;
}

// What is carried out from here on can be carried out again, until something says otherwise.
void PgClient::begin_resend() {
    Resend &resend = *resend_;
    resend.possible = hold_ == Hold::none || hold_ == Hold::any;
    resend.bound = false;
    resend.before = out_.size();
    forget_frames();
    resend.statements.clear();
    resend.portals.clear();
}

// A message of a round. As long as nothing on a backend depends on what came before it, and that is
// answered, sending again would begin with this one.
void PgClient::keep_message(const wire::Frame &frame) {
    Resend &resend = *resend_;
    if (!resend.bound && !refused_) {
        exchange_->feed_local(out_, *this);
        if (exchange_->idle()) {
            if (!lease_) use_newest_routes();
            begin_resend();
            if (resend.possible && extended_) resend.portals = extended_->portals;
        }
    }
    if (!resend.possible) return;
    const std::size_t kept = resend.frames.size() + frame.size;
    const std::size_t charge = kept > always_room_for ? kept : 0;
    std::size_t &budget = worker_.buffered_bytes;
    if (kept > most_kept ||
        budget - resend.charged + charge > worker_.settings().max_buffered_bytes)
        return cannot_resend();
    budget = budget - std::exchange(resend.charged, charge) + charge;
    resend.last = resend.frames.size();
    resend.frames.append(frame.body.data() - wire::frame_header, frame.size);
}

// From now on the round cannot be sent again; what a shard has refused of it is told, behind the
// answers that come before it.
void PgClient::cannot_resend() {
    Resend &resend = *resend_;
    resend.possible = false;
    forget_frames();
    resend.statements.clear();
    resend.portals.clear();
    if (!refused_) return;
    ++worker_.moves.failed;
    pg_reply::error(exchange_->local(), told_route_refusal(refused_->kind, refused_->error));
    exchange_->local_done();
    refused_.reset();
}

// What was answered so far, by a backend that is given up, is final: sending again would begin with
// the message in hand.
void PgClient::resend_from_here() {
    Resend &resend = *resend_;
    if (!resend.possible || refused_) return;
    std::string frames = resend.frames.substr(resend.last);
    begin_resend();
    if (extended_) resend.portals = extended_->portals;
    resend.frames = std::move(frames);  // one message: what it is charged comes with the next
}

// A statement is about to be prepared, replaced or closed under this name.
void PgClient::keep_statement(std::string_view name) {
    if (!resend_->possible || resend_->frames.empty()) return;
    resend_->statements.push_back({std::string(name), find_prepared(name)});
}

// The client has taken so many bytes of out_.
void PgClient::answers_given(std::size_t bytes) {
    Resend &resend = *resend_;
    if (bytes > resend.before) resend.possible = false;
    resend.before -= std::min(bytes, resend.before);
}

// The client pauses in a round without having asked for answers (Flush). A server would keep them
// for now; so do we, as long as they can still be taken back.
bool PgClient::answers_may_wait() const {
    return refused_ || (round_open_ && !skipping_ && !flush_wanted_ && resend_->possible &&
                        resend_->before == 0 && out_.size() < keep_answers);
}

// The backend is at work, and a statement behind the one that it answers now may yet be refused. A
// server sends its answers whenever it has collected 8 kB.
bool PgClient::answers_may_come_again() const {
    if (!resend_->possible || flush_wanted_ || out_.size() >= keep_answers) return false;
    return round_open_ ? exchange_->more_statements() : command_ + 1 < commands_.size();
}

// There are more answers than are kept back while it is waited for other routes.
bool PgClient::too_much_to_keep() const {
    return out_.size() >= keep_answers;
}

// Called when a shard's error arrives. True: nothing is told for now.
bool PgClient::refused_for_routes(const wire::ErrorFields &error, Buffer &out) {
    const RouteRefusal kind = route_refusal_of(error.sqlstate);
    if (kind == RouteRefusal::none) return false;
    BackendError kept{std::string(error.sqlstate), std::string(error.message),
                      std::string(error.detail), std::string(error.hint), false};
    if (resend_->possible) {
        refused_ = std::make_unique<Refused>(Refused{kind, std::move(kept)});
        return true;
    }
    if (kind == RouteRefusal::not_owned) return false;
    ++worker_.moves.failed;
    pg_reply::error(out, told_route_refusal(kind, kept));
    return true;
}

// Whether a statement must not run under the version that its transaction's session has: that is
// one to come, and the shard would take the statement for one that knows of the move. What triggers
// of users read, its keys do not say.
bool PgClient::must_go_back(const sql::Facts &facts, bool settled) const {
    if (hold_ != Hold::pinned && hold_ != Hold::single) return false;
    return lease_->route_version() != routes_in_use()->table->version &&
           (!settled || meets_user_code(facts));
}

// The same, where the transaction cannot go back to the version in force for its rest. A block can
// (SET LOCAL, which its end undoes), unless the key itself says that the bucket is on the move.
bool PgClient::must_not_run_here(const sql::Facts &facts, std::optional<Target> target,
                                 bool settled) const {
    return must_go_back(facts, settled) && (hold_ == Hold::single || (target && target->held));
}

// A backend was lent for the statement, of whose transaction nothing was sent. If that is under a
// version to come, and the statement's triggers may read what is on the move, the session goes back
// to the version in force. So do the other statements of its Query.
Task<std::optional<Refusal>> PgClient::go_back_before(const sql::Facts &facts) {
    const std::int32_t version = routes_in_use()->table->version;
    if (lease_->route_version() == version) co_return std::nullopt;
    const bool meets =
        meets_user_code(facts) ||
        (!round_open_ && std::any_of(commands_.begin(), commands_.end(),
                                     [&](const auto &other) { return meets_user_code(*other); }));
    if (!meets || co_await lease_->set_route_version(version, worker_.loop().now() + own_timeout))
        co_return std::nullopt;
    lease_.discard();
    co_return make_refusal(Code::R30, "the connection to the shard broke",
                           "Nothing was done; it is safe to send it again.");
}

Refusal PgClient::bucket_on_the_move() const {
    return told_route_refusal(RouteRefusal::fenced, on_the_move(*routes_in_use()->table, lease_));
}

// The same in a round whose implicit transaction, or its first statements, can be sent again.
void PgClient::fail_round_for_move() {
    if (!resend_->possible) {
        ++worker_.moves.failed;
        return fail_round(bucket_on_the_move());
    }
    refused_ = std::make_unique<Refused>(
        Refused{RouteRefusal::fenced, on_the_move(*routes_in_use()->table, lease_)});
    refused_->before_sending = true;
    skipping_ = true;
    round_refusal_ = Code::R31;
}

// How long the statement in hand waits at most: the router's bound, or what the session allows its
// statements.
void PgClient::begin_patience() {
    if (patience_ != 0) return;
    patience_ = route_deadline(worker_);
    patience_is_the_sessions_ = false;
    const std::string *own = session_value("statement_timeout");
    const auto limit = own != nullptr ? shown_time(*own) : std::nullopt;
    if (!limit || *limit <= 0 || *limit >= patience_ - worker_.loop().now()) return;
    patience_ = worker_.loop().now() + *limit;
    patience_is_the_sessions_ = true;
}

// Why a wait has ended that brought nothing; nothing: it was long enough, that is all.
std::optional<Refusal> PgClient::waited_in_vain() {
    if (gone_ || gave_up_.is_set())
        return postgres_error("57014", "canceling statement due to user request");
    if (worker_.stopping() && !in_block())
        return make_refusal(Code::R30, "the router is shutting down",
                            "Nothing was done; connect to another router, or try again.");
    if (patience_is_the_sessions_ && worker_.loop().now() >= patience_)
        return postgres_error("57014", "canceling statement due to statement timeout");
    return std::nullopt;
}

// Answers to what came before must not wait with the statement in hand.
void PgClient::give_older_answers() {
    const std::size_t older = resend_->possible ? resend_->before : out_.size();
    const std::string own(out_.view().substr(older));
    out_.truncate(older);
    if (!try_write()) gone_ = true;
    out_.append(own);
}

Task<bool> PgClient::await_routes(Millis until, bool look_once) {
    give_older_answers();
    const Routes *seen = routes_in_use().get();
    waiting_ = true;
    gave_up_.reset();
    transport_->watch.arm_hangup();
    const bool other = look_once
                           ? co_await look_for_routes(worker_, seen, until, &gave_up_)
                           : co_await wait_for_routes(worker_, seen, until, &gave_up_, !in_block());
    waiting_ = false;
    co_return other && !gave_up_.is_set();
}

// A bucket of the statement is announced to move, and nothing of its transaction has been sent.
// Waits for what becomes of that. Then: it is planned again (`again`), or sent as ever, because
// that, or the announcement, has taken too long; or it is refused.
Task<std::optional<Refusal>> PgClient::hold_back(bool &again) {
    again = false;
    const Millis hold = hold_deadline(worker_, *routes_in_use());
    if (worker_.loop().now() >= hold) co_return std::nullopt;
    if (patience_ == 0) ++worker_.moves.held;
    begin_patience();
    if (worker_.loop().now() >= patience_) co_return std::nullopt;
    again = co_await await_routes(std::min(hold, patience_), false);
    if (!again) co_return waited_in_vain();
    use_newest_routes();
    co_return std::nullopt;
}

// The shard has refused what is being carried out. Ends its transaction there and waits until there
// is hope. Nothing: everything is as it was before, and it is to be carried out again. Else what is
// to be told.
// `synced`: the backend has answered the end of the round, or of the Query.
Task<std::optional<Refusal>> PgClient::make_way(bool synced) {
    if (!synced && lease_) {
        // What came before it in the implicit transaction must not be committed. Nothing is given
        // to the client meanwhile: settle() sees that something is refused.
        if (!exchange_->server_skips() && hold_ == Hold::single) append_step("ROLLBACK");
        wire::FrameWriter(lease_->out(), 'S');
        exchange_->expect(Kind::sync, To::nobody);
        const auto lost = co_await settle();
        if (lost || !lease_) {  // rolled back; but so are a block's savepoints
            refused_.reset();
            co_return make_refusal(Code::R30, "the connection to the shard broke",
                                   "Nothing was done; it is safe to send it again.");
        }
    }
    const std::unique_ptr<Refused> refused = std::move(refused_);
    const bool opened = co_await end_refused(*refused);
    (void)exchange_->take_failed();
    // A cancel request that came when the statement had already been refused has hit nothing.
    if (cancelled_ && !timed_out_)
        co_return postgres_error("57014", "canceling statement due to user request");

    begin_patience();
    bool again = opened;
    if (worker_.loop().now() >= patience_)
        again = again && !std::exchange(patience_spent_, true);
    else if (!again)
        if (auto refusal = co_await await_reason(*refused, again)) co_return refusal;
    if (again) {
        ++worker_.moves.resent;
        take_back();
        use_newest_routes();
        co_return std::nullopt;
    }
    if (refused->kind != RouteRefusal::not_owned) ++worker_.moves.failed;
    co_return told_route_refusal(refused->kind, refused->error);
}

// What was refused waits until there is reason to carry it out again. A refusal: why it must not
// wait any longer, where that is not what it was refused for.
Task<std::optional<Refusal>> PgClient::await_reason(const Refused &refused, bool &again) {
    const Millis now = worker_.loop().now();
    const bool fenced = refused.kind == RouteRefusal::fenced && !refused.before_sending;
    const bool unknown = refused.kind == RouteRefusal::not_owned && !says_moved(refused.error);
    const Millis hold = refused.before_sending ? hold_deadline(worker_, *routes_in_use()) : never;
    const Millis until = std::min({patience_, hold, fenced ? now + retry_delay_ : never});
    if (now < hold) {
        again = co_await await_routes(until, unknown);
        retry_delay_ = std::min(retry_delay_ * 2, retry_cap);
        if (again) co_return std::nullopt;
        if (auto refusal = waited_in_vain()) co_return refusal;
    }
    // What is held too long is sent under the version in force; so is what came before it.
    const bool held_too_long = worker_.loop().now() >= hold;
    in_force_ = in_force_ || held_too_long;
    again = held_too_long || (fenced && worker_.loop().now() < patience_);
    co_return std::nullopt;
}

// Rolls back on the backend what is not rolled back already, and gives it back. A fence whose time
// has passed is opened first: its mover is gone. True: there was one.
Task<bool> PgClient::end_refused(const Refused &refused) {
    if (!lease_) co_return false;
    const Millis deadline = worker_.loop().now() + own_timeout;
    bool idle = !exchange_->waits_for_backend() && lease_->out().empty();
    if (idle && hold_ == Hold::pinned)
        idle = co_await lease_->command("ROLLBACK", 'I', deadline);
    else
        idle = idle && exchange_->status() == 'I';
    bool opened = false;
    if (idle && refused.kind == RouteRefusal::fenced && says_expired(refused.error))
        idle = opened = co_await lease_->command("SELECT interlock.expire_fences()", 'I', deadline);
    if (idle)
        release();
    else
        discard_backend();
    co_return opened;
}

// Undoes what was done here since resend_ began, and forgets the answers.
void PgClient::take_back() {
    Resend &resend = *resend_;
    exchange_->feed_local(out_, *this);
    out_.truncate(resend.before);
    notes_.clear();
    if (in_block()) transaction_ = Transaction::open;
    if (!round_open_) return;
    skipping_ = false;
    round_refusal_.reset();
    if (!extended_) return;
    for (auto change = resend.statements.rbegin(); change != resend.statements.rend(); ++change) {
        if (change->name.empty())
            extended_->unnamed = change->before;
        else if (change->before)
            extended_->named[change->name] = change->before;
        else
            extended_->named.erase(change->name);
    }
    resend.statements.clear();
    extended_->portals = std::move(resend.portals);
    resend.portals.clear();
}

// A message behind a refused one that may yet be sent again, and then this one after it.
Task<void> PgClient::take_behind_refused(const wire::Frame &frame) {
    switch (frame.type) {
    case 'H': co_await flush_request(); break;
    case 'P':
    case 'B':
    case 'D':
    case 'E':
    case 'C': keep_message(frame); break;
    default: cannot_resend(); break;
    }
}

// Carries the kept messages of the round out again.
Task<void> PgClient::replay_round() {
    const std::string frames = std::move(resend_->frames);
    resend_->frames = {};
    begin_resend();
    std::string_view left = frames;
    while (!left.empty() && !closing_ && !gone_) {
        wire::Frame frame;
        frame.type = left[0];
        frame.size = static_cast<std::size_t>(wire::load32(left.data() + 1)) + 1;
        frame.body = left.substr(wire::frame_header, frame.size - wire::frame_header);
        co_await take_message(frame);
        left.remove_prefix(frame.size);
    }
    if (left.empty()) co_return;
    // The client has gone. The end of the round must not commit a part of it.
    skipping_ = true;
    discard_backend();
}

}  // namespace interlock
