// Lending, pinning, moving answers, and what happens when the backend is lost.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

namespace {

using Kind = Owed::Kind;
using To = Owed::To;

// Answers are collected up to here; then the backend is not read until the client has taken some.
constexpr std::size_t out_limit = 64 * 1024;
// What a client may send ahead while its statement runs.
constexpr std::size_t ahead_limit = 64 * 1024;
constexpr Millis cancel_grace = 5000;
constexpr Millis rollback_timeout = 5000;
// How long a connection that takes nothing more is listened to for its last words.
constexpr Millis broken_grace = 100;

// A cancelled wait for a connection reads as PostgreSQL's own answer to a cancelled statement.
Refusal as_postgres(Refusal refusal) {
    if (refusal.state() == "57014") refusal.code = Code::R31;
    return refusal;
}

Refusal own_refusal(const BackendError &error) {
    Refusal refusal = make_refusal(Code::R31, error.message, error.hint);
    refusal.sqlstate = error.sqlstate;
    refusal.detail = error.detail;
    return refusal;
}

}  // namespace

const std::shared_ptr<const Routes> &PgClient::routes_in_use() const {
    return block_ ? block_->routes : worker_.routes();
}

void PgClient::append_query(std::string_view sql, Owed::To to, std::uint16_t note) {
    wire::FrameWriter(lease_->out(), 'Q').string(sql);
    exchange_->expect(Kind::query, to, note);
}

// One of the router's own statements in the extended protocol, without a Sync: an error in it makes
// the server skip what follows.
void PgClient::append_step(std::string_view sql) {
    Buffer &out = lease_->out();
    wire::FrameWriter(out, 'P').string("").string(sql).int16(0);
    wire::FrameWriter(out, 'B').string("").string("").int16(0).int16(0).int16(0);
    wire::FrameWriter(out, 'E').string("").int32(0);
    exchange_->expect(Kind::parse, To::nobody);
    exchange_->expect(Kind::bind, To::nobody);
    exchange_->expect(Kind::execute, To::nobody);
    lease_->set_unnamed_owner(0);
}

void PgClient::open_block() {
    append_step(block_->begin);
    for (const std::string &statement : block_->characteristics)
        append_step(statement);
    for (const std::string &statement : block_->prologue)
        if (!statement.empty()) append_step(statement);
}

void PgClient::raise_effect(const sql::Facts &facts) {
    if (facts.action == sql::Action::commit)
        effect_ = Effect::commit;
    else if (facts.writes && effect_ == Effect::read)
        effect_ = Effect::write;
    if (facts.user_code) user_code_ = true;
    if (lease_ && !lease_->surroundings().quiet())
        for (const std::uint32_t table : facts.tables)
            if (lease_->surroundings().runs_user_code(routes_in_use()->table->tables[table]))
                user_code_ = true;
}

std::optional<Refusal> PgClient::check_names(const sql::Facts &facts) {
    if (lease_->surroundings().quiet()) return std::nullopt;
    auto conflict = lease_->surroundings().conflict(facts, path_->schemas);
    if (!conflict) return std::nullopt;
    Refusal refusal =
        make_refusal(Code::R26,
                     format("a name in the statement could mean something else on shard %s",
                            routes_in_use()->table->shards[shard_].name.c_str()),
                     "Qualify the name with its schema.");
    refusal.detail = *conflict;
    return refusal;
}

// Finds the backend for a statement: the pinned one, the one of the implicit transaction, or one
// that is lent now.
Task<std::optional<Refusal>> PgClient::ensure(const sql::Facts &facts,
                                              std::optional<Target> target) {
    const auto shard_name = [&](ShardIndex shard) {
        return routes_in_use()->table->shards[shard].name.c_str();
    };
    const bool pins = target || facts.action == sql::Action::declare_cursor;
    if (hold_ == Hold::pinned && target && target->shard != shard_) {
        Refusal other = make_refusal(
            Code::R12,
            format("the transaction is on shard %s, this statement's key is on shard %s",
                   shard_name(shard_), shard_name(target->shard)),
            "A transaction stays on one shard: use one transaction for each shard.");
        other.detail = "The transaction was rolled back.";
        co_return other;
    }
    if (hold_ == Hold::single && target && target->shard != shard_) {
        Refusal other = make_refusal(
            Code::R11, "the statements sent together have keys on several shards",
            "Statements without a Sync between them, or in one Query, are one transaction: send "
            "those of each shard apart.");
        other.detail =
            format("Statements before it ran on shard %s, this one's key is on shard %s.",
                   shard_name(shard_), shard_name(target->shard));
        co_return other;
    }
    if (hold_ == Hold::any && pins) {
        if (target && target->shard != shard_)
            co_await give_up_any();
        else
            hold_ = in_block() ? Hold::pinned : Hold::single;
        if (skipping_) co_return std::nullopt;
    }
    if (hold_ != Hold::none) co_return check_names(facts);

    auto refused = co_await lend(target ? std::optional(target->shard) : std::nullopt);
    if (!refused) refused = check_names(facts);
    if (refused) {
        release();
        co_return refused;
    }
    if (in_block()) {
        open_block();
        hold_ = pins ? Hold::pinned : Hold::any;
    } else {
        hold_ = target ? Hold::single : Hold::any;
    }
    co_return std::nullopt;
}

Task<std::optional<Refusal>> PgClient::lend(std::optional<ShardIndex> shard) {
    const std::shared_ptr<const Routes> routes = routes_in_use();
    if (!routes)
        co_return make_refusal(Code::R30, "the router has no route table yet",
                               "The catalog has not been reached, or nothing was published.");
    if (worker_.stopping() && !in_block())
        co_return make_refusal(Code::R30, "the router is shutting down",
                               "Nothing was done; connect to another router, or try again.");
    LoginPools &pools = routes->pools_for(backend_login_);
    if (shard) {
        Pool &pool = pools[*shard];
        if (auto ready = pool.try_acquire(routes->table->version)) {
            lease_ = std::move(*ready);
        } else {
            waiting_ = true;
            gave_up_.reset();
            auto lent = co_await pool.acquire(routes->table->version, &gave_up_);
            waiting_ = false;
            if (!lent) co_return as_postgres(std::move(lent.error()));
            lease_ = std::move(*lent);
        }
        shard_ = *shard;
        any_shard_ = shard_;
    } else if (auto refused = co_await lend_any(pools, routes->table->version)) {
        co_return refused;
    }
    exchange_->reset();
    effect_ = Effect::read;
    user_code_ = false;
    cancelled_ = false;
    timed_out_ = false;
    stale_plans_ = false;
    if (lease_->defaults() != defaults_) {
        // The login was changed on the shards: its names may mean something else from now on.
        const std::uint32_t path = path_->id;
        defaults_ = lease_->defaults();
        use_parameters(parameters_);
        if (path_->id != path) {
            release();
            co_return make_refusal(Code::R30, "the login's search_path has just changed",
                                   "Nothing was done; it is safe to send the statement again.");
        }
    }
    // A transaction opens with what was in force when it began; its prologue does the rest.
    const Parameters &wanted = in_block() ? block_->parameters : parameters_;
    if (lease_->applied_parameters() != wanted) co_return co_await apply_parameters(wanted);
    co_return std::nullopt;
}

// For what any shard can answer, a session keeps to the one of its last data: objects' numbers in
// the system catalogs, which drivers carry from an answer to the next look-up, differ between
// shards.
Task<std::optional<Refusal>> PgClient::lend_any(LoginPools &pools, std::int32_t version) {
    gave_up_.reset();
    if (any_shard_ && *any_shard_ < pools.size() && !pools[*any_shard_].known_down()) {
        shard_ = *any_shard_;
        if (auto ready = pools[shard_].try_acquire(version)) {
            lease_ = std::move(*ready);
            co_return std::nullopt;
        }
        waiting_ = true;
        auto lent = co_await pools[shard_].acquire(version, &gave_up_);
        waiting_ = false;
        if (lent) {
            lease_ = std::move(*lent);
            co_return std::nullopt;
        }
        if (lent.error().code != Code::R30) co_return as_postgres(std::move(lent.error()));
    }
    waiting_ = true;
    auto lent = co_await pools.any(version, &gave_up_);
    waiting_ = false;
    if (!lent) co_return as_postgres(std::move(lent.error()));
    lease_ = std::move(lent->lease);
    shard_ = lent->shard;
    any_shard_ = shard_;
    co_return std::nullopt;
}

// The client's settings, in front of its statement. A shard that has never taken them is asked
// first; from then on they travel with the statement, without a round trip of their own.
Task<std::optional<Refusal>> PgClient::apply_parameters(Parameters wanted) {
    const auto from = std::static_pointer_cast<const ParameterSet>(lease_->applied_parameters());
    const std::string sql = change_parameters_sql(from, wanted);
    if (sql.empty()) {
        lease_->set_applied_parameters(wanted);
        co_return std::nullopt;
    }
    const void *shard = &routes_in_use()->pools_for(backend_login_)[shard_];
    if (wanted ? wanted->accepted_by(shard) : true) {
        append_query(sql, To::nobody);
        lease_->set_applied_parameters(wanted);
        co_return std::nullopt;
    }
    hold_status_ = true;
    auto refused = co_await ask_backend(sql);
    hold_status_ = false;
    if (refused) {
        refused->hint = "A setting of this session is not accepted by the shard.";
        co_return refused;
    }
    lease_->set_applied_parameters(wanted);
    if (wanted) wanted->note_accepted(shard);
    co_return std::nullopt;
}

Task<std::optional<Refusal>> PgClient::ask_backend(std::string_view sql) {
    exchange_->clear_kept_row();
    exchange_->own_error() = BackendError{};
    append_query(sql, To::router);
    auto lost = co_await settle();
    if (lost) co_return lost;
    if (!exchange_->own_error().sqlstate.empty()) co_return own_refusal(exchange_->own_error());
    co_return std::nullopt;
}

Task<std::optional<Refusal>> PgClient::settle() {
    return settle_until(false);
}

Task<std::optional<Refusal>> PgClient::settle_until(bool drained) {
    if (!lease_) {
        exchange_->feed_local(out_, *this);
        co_return std::nullopt;
    }
    Loop &loop = worker_.loop();
    Backend &backend = *lease_;
    Millis deadline = deadline_after(loop.now(), worker_.settings().statement_timeout);
    bool broken = false;
    bool moved = false;
    for (;;) {
        const std::size_t before = backend.arrived().size();
        const Exchange::Feed fed = exchange_->feed(backend, out_, out_limit, *this);
        moved = moved || before != backend.arrived().size();
        if (fed == Exchange::Feed::malformed) co_return backend_lost(AnswerEnd::malformed);
        if (!backend.out().empty() && !broken && backend.try_flush() == Io::closed) {
            // It may have said why, before it went.
            broken = true;
            deadline = std::min(deadline, loop.now() + broken_grace);
        }
        if (fed == Exchange::Feed::done) co_return std::nullopt;
        if (drained && backend.out().empty()) co_return std::nullopt;
        // What came from the backend is worth a write of its own; our own answers wait for it.
        if (!out_.empty() && moved && !gone_ && !try_write()) gone_ = true;
        if (gone_) {
            // Nobody reads. A write goes on to its end, as it would on a server of its own; what
            // changes nothing is cancelled, and a long answer is not waited for.
            const bool idle_work =
                effect_ == Effect::read || (in_block() && effect_ == Effect::write);
            if (idle_work) co_await backend.cancel(loop.now() + cancel_grace);
            if (idle_work || fed == Exchange::Feed::blocked)
                co_return backend_lost(AnswerEnd::lost);
        } else if (fed == Exchange::Feed::blocked && out_.size() < out_limit) {
            continue;
        }

        const bool read_backend = fed == Exchange::Feed::need_more;
        if (read_backend && backend.read_ahead()) {
            const Io io = backend.fill_now();
            if (io == Io::ok) continue;
            if (io == Io::closed) co_return backend_lost(AnswerEnd::lost);
        }
        const bool read_client_too = !gone_ && may_read_ahead_ && in_.size() < ahead_limit;
        // While it is the client that is waited for, its time is counted, not the statement's.
        const bool blocked = fed == Exchange::Feed::blocked;
        const Millis until =
            blocked ? deadline_after(loop.now(), worker_.settings().pg_write_timeout) : deadline;
        const Fired fired =
            co_await Wait(loop, until)
                .read(read_backend ? &backend.watch() : nullptr)
                .write(!backend.out().empty() && !broken ? &backend.watch() : nullptr)
                .write(!out_.empty() && moved && !gone_ ? &transport_->watch : nullptr)
                .read(read_client_too ? &transport_->watch : nullptr);
        if (blocked) {
            if (fired.none())
                log_warning("a client did not take its answer in time; its connection is closed");
            gone_ = gone_ || fired.none();
            deadline = deadline_after(loop.now(), worker_.settings().statement_timeout);
            continue;
        }
        if (fired.none()) {
            if (broken) co_return backend_lost(AnswerEnd::lost);
            if (timed_out_) co_return backend_lost(AnswerEnd::timed_out);
            // Cancelled, not abandoned: the end of the statement is waited for, so that what it did
            // is known and it holds no lock afterwards.
            timed_out_ = true;
            cancelled_ = true;
            deadline = loop.now() + cancel_grace;
            co_await backend.cancel(deadline);
            continue;
        }
        if (fired.has(3) && !read_client()) gone_ = true;
        if (fired.has(0) && backend.fill_now() == Io::closed)
            co_return backend_lost(AnswerEnd::lost);
    }
}

// The connection to the backend broke, or had to be given up, with answers still owed.
std::optional<Refusal> PgClient::backend_lost(AnswerEnd end) {
    exchange_->feed_local(out_, *this);
    const bool owed = exchange_->owes_client();
    Answer answer;
    answer.end = end;
    answer.error = exchange_->farewell();
    if (end == AnswerEnd::malformed && answer.error.fatal) answer.end = AnswerEnd::lost;
    answer.sent = lease_->out().empty();
    answer.completed = exchange_->only_ready_missing();
    answer.cancelled = cancelled_;
    const std::string shard = routes_in_use()->table->shards[shard_].name;
    if (!exchange_->own_error().sqlstate.empty())
        log_warning("shard %s: the router's own request failed: %s: %s", shard.c_str(),
                    exchange_->own_error().sqlstate.c_str(),
                    exchange_->own_error().message.c_str());
    auto refusal = judge(answer, effect_, !in_block(), shard);
    const bool commit_sent = in_block() && effect_ == Effect::commit && answer.sent;
    exchange_->drop_all(*this);
    discard_backend();
    if (in_block()) {
        transaction_ = Transaction::failed;
        block_->savepoints.clear();
        // COMMIT ends a transaction, whatever has become of it.
        if (commit_sent) leave_block(false);
    }
    if (!owed) return std::nullopt;
    return refusal;
}

void PgClient::release() {
    if (!lease_) return;
    hold_ = Hold::none;
    if (exchange_->waits_for_backend())
        discard_backend();
    else if (cancelled_ || stale_plans_)
        lease_.discard();
    else if (user_code_)
        lease_.release_after_reset();
    else
        lease_.release();
}

void PgClient::discard_backend() {
    hold_ = Hold::none;
    if (exchange_->waits_for_backend()) exchange_->drop_all(*this);
    lease_.discard();
}

// Ends the use of a backend that has only answered what any shard could, so that another one can be
// lent in the same round.
Task<void> PgClient::give_up_any() {
    if (in_block()) append_step("ROLLBACK");
    wire::FrameWriter(lease_->out(), 'S');
    exchange_->expect(Kind::sync, To::nobody);
    const bool ahead = std::exchange(may_read_ahead_, false);
    auto lost = co_await settle();
    may_read_ahead_ = ahead;
    if (lost) {
        fail_round(*lost);
        co_return;
    }
    if (exchange_->take_failed()) {
        skipping_ = true;
        if (in_block()) transaction_ = Transaction::failed;
    }
    if (exchange_->status() == 'I')
        release();
    else
        discard_backend();
}

// Rolls the transaction's backend back and returns it, now: no lock may outlive the transaction.
Task<void> PgClient::roll_back_now() {
    if (block_) block_->savepoints.clear();
    if (!lease_) co_return;
    co_await roll_back_lease();
}

// One that does not obey is closed, which rolls back too.
Task<void> PgClient::roll_back_lease() {
    if (exchange_->waits_for_backend() || !lease_->out().empty() ||
        !co_await lease_->command("ROLLBACK", 'I', worker_.loop().now() + rollback_timeout))
        discard_backend();
    else
        release();
}

// The transaction has failed: by an error of the backend (no refusal), or by one of ours. With a
// savepoint to go back to the backend is kept, except where the refusal is about the transaction
// as a whole.
Task<void> PgClient::fail_block(const Refusal *refusal) {
    if (!in_block()) co_return;
    transaction_ = Transaction::failed;
    const bool whole = refusal != nullptr && refusal->code == Code::R12;
    if (hold_ == Hold::pinned && !whole && !block_->savepoints.empty()) co_return;
    if (hold_ != Hold::none) co_await roll_back_now();
}

Task<void> PgClient::refuse(Refusal refusal) {
    const bool retry =
        refusal.code == Code::R30 || refusal.code == Code::R33 || refusal.code == Code::R34;
    if (in_block() && transaction_ == Transaction::open) {
        if (retry) refusal.hint = "Send ROLLBACK, then run the transaction again.";
        co_await fail_block(&refusal);
    }
    pg_reply::error(out_, refusal);
}

std::optional<Refusal> PgClient::take_lost() {
    if (!lost_) return std::nullopt;
    std::optional<Refusal> told = std::move(*lost_);
    lost_.reset();
    return told;
}

std::optional<Refusal> PgClient::failed_refusal() {
    if (transaction_ != Transaction::failed) return std::nullopt;
    if (lost_) return take_lost();
    return make_refusal(
        Code::R13,
        "current transaction is aborted, commands ignored until end of transaction block",
        "Send ROLLBACK.");
}

// The round is over and the backend idle, in a transaction, or in a failed one.
Task<bool> PgClient::after_ready() {
    const bool failed = exchange_->take_failed();
    if (!lease_) co_return failed;
    const char status = exchange_->status();
    effect_ = Effect::read;
    switch (hold_) {
    case Hold::none: break;
    case Hold::any:
        if (in_block() && failed) transaction_ = Transaction::failed;
        if (status == 'I')
            release();
        else
            discard_backend();
        break;
    case Hold::single:
        if (status == 'I')
            release();
        else
            discard_backend();
        break;
    case Hold::pinned:
        if (status == 'I') {
            leave_block(block_->ended_by_commit);
            release();
        } else if (status == 'E') {
            co_await fail_block(nullptr);
        } else if (transaction_ == Transaction::failed && failed) {
            co_await fail_block(nullptr);
        }
        break;
    }
    co_return failed;
}

// Something arrived from the pinned backend between two statements: a notice, or its end.
Task<void> PgClient::pinned_stirred() {
    bool alive = lease_->fill_now() != Io::closed;
    BackendError error;
    wire::Frame frame;
    while (lease_->peek(64 * 1024, frame) == wire::FrameState::ready) {
        wire::ErrorFields fields;
        if (frame.type == 'E' && wire::parse_error(frame.body, fields)) {
            error.sqlstate = fields.sqlstate;
            error.message = fields.message;
            alive = false;
        } else if (frame.type == 'N' || frame.type == 'S') {
            out_.append(lease_->arrived().substr(0, frame.size));
        } else if (frame.type != 'A') {
            alive = false;
        }
        lease_->pop(frame.size);
    }
    if (alive) co_return;
    const std::string &shard = block_->routes->table->shards[shard_].name;
    Refusal why;
    if (!error.sqlstate.empty()) {
        why = make_refusal(Code::R31, error.message);
        why.sqlstate = error.sqlstate;
    } else {
        why = make_refusal(Code::R30, format("the connection to shard %s broke", shard.c_str()));
    }
    why.detail = "The transaction was rolled back by the shard; this statement was not sent.";
    why.hint = "Send ROLLBACK, then run the transaction again.";
    lost_ = std::make_unique<Refusal>(std::move(why));
    discard_backend();
    block_->savepoints.clear();
    transaction_ = Transaction::failed;
}

}  // namespace interlock
