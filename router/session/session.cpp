#include "session/session.h"

#include "base/log.h"
#include "session/outcome.h"
#include "sql/strict.h"

#include <algorithm>

namespace interlock {

namespace {

// What it may take to roll back before the connection is closed instead.
constexpr Millis rollback_timeout = 5000;

void append_step(Buffer &out, std::string_view text) {
    wire::FrameWriter(out, 'P').string("").string(text).int16(0);
    wire::FrameWriter(out, 'B').string("").string("").int16(0).int16(0).int16(0);
    wire::FrameWriter(out, 'E').string("").int32(0);
}

// Parse, Bind, Describe, Execute of an analysed statement: its text is ours, its values travel as
// parameters of the columns' types, in text format.
void append_statement(Buffer &out, const sql::Statement &statement,
                      std::span<const Parameter> parameters) {
    const auto count = static_cast<std::uint16_t>(parameters.size());
    {
        wire::FrameWriter parse(out, 'P');
        parse.string("").string(statement.text).int16(count);
        for (std::size_t i = 0; i < parameters.size(); ++i)
            parse.int32(statement.parameter_type(i));
    }
    {
        wire::FrameWriter bind(out, 'B');
        bind.string("").string("").int16(0).int16(count);
        for (const Parameter &value : parameters) {
            if (!value)
                bind.int32(0xFFFFFFFFU);
            else
                bind.int32(static_cast<std::uint32_t>(value->size())).bytes(*value);
        }
        bind.int16(0);
    }
    if (!statement.writes()) wire::FrameWriter(out, 'D').bytes("P").string("");
    wire::FrameWriter(out, 'E').string("").int32(0);
}

}  // namespace

const std::shared_ptr<const Routes> &Session::routes_in_use() const {
    return transaction_ == Transaction::none ? worker_.routes() : snapshot_;
}

Reply Session::reply() const {
    Reply reply;
    const auto &routes = routes_in_use();
    reply.route_version = routes ? routes->table->version : 0;
    reply.transaction = transaction_;
    return reply;
}

Task<Reply> Session::run(std::string_view text, std::span<const Parameter> parameters,
                         RowSink &sink) {
    RoutePatience patience;
    for (;;) {
        // A transaction that has sent nothing yet has no reason to stay with older routes.
        if (transaction_ == Transaction::open && !pinned_) snapshot_ = worker_.routes();
        const std::shared_ptr<const Routes> routes = routes_in_use();
        if (!routes)
            co_return co_await refuse(make_refusal(
                Code::R30, "the router has no route table yet",
                "The catalog has not been reached, or nothing was published: see STATUS."));
        auto statement = worker_.shapes().find(text, routes->table);
        if (!statement) {
            auto analysed = sql::analyse_strict(text, *routes->table);
            if (!analysed) co_return co_await refuse(std::move(analysed.error()));
            statement = std::make_shared<const sql::Statement>(std::move(*analysed));
            // A transaction may still work under an older table; the cache holds shapes of the
            // newest.
            if (routes == worker_.routes()) worker_.shapes().insert(text, routes->table, statement);
        }
        if (statement->transaction_control() && !parameters.empty())
            co_return co_await refuse(
                make_refusal(Code::R27, "this statement takes no parameters"));
        switch (statement->kind) {
        case sql::Kind::begin: co_return begin();
        case sql::Kind::commit: co_return co_await commit();
        case sql::Kind::rollback: co_return co_await rollback();
        case sql::Kind::page: co_return co_await run_page(std::move(statement), parameters, sink);
        default: break;
        }
        auto answer = co_await run_data(std::move(statement), parameters, sink, patience);
        if (answer) co_return std::move(*answer);
    }
}

Task<Reply> Session::refuse(Refusal refusal) {
    Reply refused = reply();
    co_await fail_transaction();
    refused.transaction = transaction_;
    const bool retry =
        refusal.code == Code::R30 || refusal.code == Code::R33 || refusal.code == Code::R34;
    if (retry && transaction_ == Transaction::failed)
        refusal.hint = "Send ROLLBACK, then run the transaction again.";
    refused.refusal = std::move(refusal);
    co_return refused;
}

Reply Session::begin() {
    Reply answer = reply();
    if (transaction_ != Transaction::none) {
        answer.refusal = make_refusal(Code::R40, "there is already a transaction in progress");
        return answer;
    }
    if (worker_.stopping()) {
        answer.refusal = make_refusal(Code::R30, "the router is shutting down",
                                      "Nothing was done; connect to another router, or try again.");
        return answer;
    }
    snapshot_ = worker_.routes();
    transaction_ = Transaction::open;
    answer.tag = "BEGIN";
    answer.transaction = transaction_;
    return answer;
}

void Session::leave_transaction() {
    transaction_ = Transaction::none;
    snapshot_.reset();
    lost_.reset();
}

Task<Reply> Session::commit() {
    Reply answer = reply();
    answer.tag = "COMMIT";
    if (transaction_ == Transaction::none) {
        answer.no_transaction = true;
        co_return answer;
    }
    if (transaction_ == Transaction::failed) {
        co_return refuse_failed(std::move(answer),
                                "the transaction has failed and cannot be committed");
    }
    if (pinned_) {
        const std::string &shard = snapshot_->table->shards[pinned_shard_].name;
        answer.shard = shard;
        answer.pid = pinned_->pid();
        wire::FrameWriter(pinned_->out(), 'Q').string("COMMIT");
        const Answer end =
            co_await relay(*pinned_, 1, nullptr, worker_.settings().statement_timeout);
        answer.refusal = judge(end, Effect::commit, false, shard);
        // What a deferred trigger has met.
        if (end.end == AnswerEnd::error)
            if (const RouteRefusal kind = route_refusal_of(end.error.sqlstate);
                kind != RouteRefusal::none)
                answer.refusal = told(kind, end.error);
        if (!end.sent) {
            // Not even the COMMIT was sent: the transaction is lost, and the client must see that.
            co_await fail_transaction();
            answer.transaction = transaction_;
            co_return answer;
        }
        const bool over = end.transaction == 'I' && !end.cancelled;
        if (over)
            give_back(pinned_, user_code_);
        else
            pinned_.discard();
        // COMMIT ends a transaction whatever it answers; if a deferred check fails, by rolling
        // back.
        if (!answer.refusal) answer.tag = wire::tag_name(end.tag);
    }
    leave_transaction();
    answer.transaction = transaction_;
    co_return answer;
}

// In a failed transaction: the loss of its backend is told once, with the shard's own words.
Reply Session::refuse_failed(Reply answer, const char *message) {
    if (lost_) {
        answer.refusal = std::move(lost_->refusal);
        answer.shard = std::move(lost_->shard);
        answer.pid = lost_->pid;
        lost_.reset();
    } else {
        answer.refusal = make_refusal(Code::R13, message, "Send ROLLBACK.");
    }
    return answer;
}

Task<Reply> Session::rollback() {
    Reply answer = reply();
    answer.tag = "ROLLBACK";
    answer.no_transaction = transaction_ == Transaction::none;
    if (pinned_) {
        answer.shard = snapshot_->table->shards[pinned_shard_].name;
        answer.pid = pinned_->pid();
        co_await give_back_rolled_back();
    }
    leave_transaction();
    answer.transaction = transaction_;
    co_return answer;
}

// Rolls the pinned backend back and returns it, now: no lock may outlive the transaction. One that
// does not obey is closed, which rolls back too.
Task<void> Session::give_back_rolled_back() {
    if (!pinned_) co_return;
    Lease lease = std::move(pinned_);
    if (lease->out().empty() &&  // else a frame was sent in part, and nothing can follow it
        co_await lease->command("ROLLBACK", 'I', worker_.loop().now() + rollback_timeout))
        give_back(lease, user_code_);
}

// Triggers and the like may have left something in the session that the next client must not meet.
void Session::give_back(Lease &lease, bool user_code) {
    if (user_code)
        lease.release_after_reset();
    else
        lease.release();
}

Task<void> Session::fail_transaction() {
    if (transaction_ != Transaction::open) co_return;
    transaction_ = Transaction::failed;
    co_await give_back_rolled_back();
}

Task<void> Session::end() {
    co_await give_back_rolled_back();
    leave_transaction();
}

Watch *Session::pinned_watch() {
    return pinned_ ? &pinned_->watch() : nullptr;
}

// Between two statements of a transaction a backend says nothing, unless a notice, or its end.
void Session::backend_stirred() {
    if (!pinned_) return;
    const std::string &shard = snapshot_->table->shards[pinned_shard_].name;
    auto why = look_at_pinned(*pinned_, shard, nullptr);
    if (!why) return;
    lost_ = Lost{std::move(*why), shard, pinned_->pid()};
    pinned_.discard();
    transaction_ = Transaction::failed;
}

// Moves ------------------------------------------------------------------------------------------

// What a shard refuses because of its routes, to be told: nothing of it can be sent again.
Refusal Session::told(RouteRefusal kind, const BackendError &error) {
    if (kind != RouteRefusal::not_owned) ++worker_.moves.failed;
    return told_route_refusal(kind, error);
}

// A statement of a transaction whose session has the version that is announced: the shard that
// gives the bucket away would take it for one that knows of that.
Refusal Session::on_the_move() const {
    const RouteTable &table = *snapshot_->table;
    BackendError error;
    error.message = format("the statement's bucket is being handed over to shard %s",
                           table.shards[table.announced->to].name.c_str());
    error.detail = format("The transaction runs under route version %d, which is not in force yet; "
                          "the statement was not sent. The transaction was rolled back.",
                          table.announced->version);
    return told_route_refusal(RouteRefusal::fenced, error);
}

// The statement's bucket is announced to move, and nothing was sent in its place. Waits for what
// becomes of that. Then it is judged anew (`again`); or it is sent as ever, its time, or that of
// the announcement, being up; or refused.
Task<std::optional<Refusal>> Session::hold_back(RoutePatience &patience, bool &again) {
    const std::shared_ptr<const Routes> seen = routes_in_use();
    const Millis hold = hold_deadline(worker_, *seen);
    if (worker_.loop().now() >= hold) co_return std::nullopt;
    if (patience.begin(worker_)) ++worker_.moves.held;
    if (patience.over(worker_)) co_return std::nullopt;
    const bool autocommit = transaction_ == Transaction::none;
    const ClientEnd::Listening client(client_);
    const Millis until = std::min(hold, patience.until);
    again = co_await wait_for_routes(worker_, seen.get(), until, client.gone(), autocommit);
    co_return again && !client_gone() ? std::nullopt : waited_in_vain();
}

// Why a wait for routes has ended otherwise than by its time; nothing: by that.
std::optional<Refusal> Session::waited_in_vain() const {
    if (client_gone()) return client_left();
    if (transaction_ == Transaction::none && worker_.stopping())
        return make_refusal(Code::R30, "the router is shutting down",
                            "Nothing was done; connect to another router, or try again.");
    return std::nullopt;
}

// The first statement of a transaction was refused: undoes it on the shard, and gives the backend
// back. A fence whose time has passed is opened first, its mover is gone: true if there was one.
Task<bool> Session::give_up_refused(Lease &own, const Answer &end, bool user_code) {
    Lease lease = std::move(transaction_ == Transaction::none ? own : pinned_);
    const Millis deadline = worker_.loop().now() + rollback_timeout;
    if (end.transaction != 'I' && !co_await lease->command("ROLLBACK", 'I', deadline))
        co_return false;
    bool opened = false;
    if (says_expired(end.error)) {
        opened = co_await lease->command("SELECT interlock.expire_fences()", 'I', deadline);
        if (!opened) co_return false;
    }
    give_back(lease, user_code);
    co_return opened;
}

// Data statements ---------------------------------------------------------------------------------

namespace {

// Knows whether rows were given out.
class WatchedRows final : public RowSink {
  public:
    explicit WatchedRows(RowSink &sink) : sink_(sink) {}
    void describe(std::string_view body) override { sink_.describe(body); }
    [[nodiscard]] bool row(std::string_view body) override {
        any_ = true;
        return sink_.row(body);
    }
    [[nodiscard]] std::size_t longest_row() const override { return sink_.longest_row(); }
    [[nodiscard]] bool any() const { return any_; }

  private:
    RowSink &sink_;
    bool any_ = false;
};

}  // namespace

Task<std::optional<Reply>> Session::run_data(std::shared_ptr<const sql::Statement> statement,
                                             std::span<const Parameter> parameters, RowSink &sink,
                                             RoutePatience &patience) {
    const std::shared_ptr<const Routes> routes = routes_in_use();
    const RouteTable &table = *routes->table;
    auto planned = plan(*statement, parameters, table);
    if (!planned) co_return co_await refuse(std::move(planned.error()));
    const ShardIndex shard = planned->shard;
    const std::string &shard_name = table.shards[shard].name;
    Reply answer = reply();

    if (transaction_ == Transaction::failed) {
        co_return refuse_failed(std::move(answer),
                                "the transaction has failed; its statements are ignored");
    }
    const bool autocommit = transaction_ == Transaction::none;
    if (autocommit && worker_.stopping())
        co_return co_await refuse(
            make_refusal(Code::R30, "the router is shutting down",
                         "Nothing was done; connect to another router, or try again."));
    if (pinned_ && shard != pinned_shard_) {
        Refusal other = make_refusal(
            Code::R12,
            format("the transaction is on shard %s, this statement's key is on shard %s",
                   table.shards[pinned_shard_].name.c_str(), shard_name.c_str()),
            "A transaction stays on one shard: use one transaction for each shard.");
        other.detail = "The transaction was rolled back.";
        co_return co_await refuse(std::move(other));
    }
    if (pinned_ && planned->held && pinned_->route_version() != table.version) {
        ++worker_.moves.failed;
        co_return co_await refuse(on_the_move());
    }

    Lease own;
    const bool first = !pinned_;
    if (first) {
        if (planned->held) {
            bool again = false;
            if (auto refused = co_await hold_back(patience, again))
                co_return co_await refuse(std::move(*refused));
            if (again) co_return std::nullopt;
        }
        // A statement that has nothing to do with the move runs under the version to come: the
        // floor, which rises when that is decided, does not stop its transaction.
        std::int32_t version = planned->held ? table.version : table.settled_version();
        auto lent = co_await routes->pools_for("")[shard].acquire(version);
        if (!lent) co_return co_await refuse(std::move(lent.error()));
        // What triggers of users read, its key does not say.
        if (version != table.version && (*lent)->surroundings().runs_user_code(*statement->table) &&
            !co_await (*lent)->set_route_version(table.version,
                                                 worker_.loop().now() + rollback_timeout))
            co_return co_await refuse(make_refusal(
                Code::R30,
                format("the statement could not be sent to shard %s", shard_name.c_str()),
                "Nothing was done; it is safe to send the statement again."));
        if (autocommit) {
            own = std::move(*lent);
        } else {
            pinned_ = std::move(*lent);
            pinned_shard_ = shard;
            user_code_ = false;
        }
    }
    Lease &lease = autocommit ? own : pinned_;
    answer.shard = shard_name;
    answer.pid = lease->pid();
    const bool user_code = lease->surroundings().runs_user_code(*statement->table);
    user_code_ = user_code_ || (user_code && !autocommit);
    const bool opens = first && !autocommit;
    // The transaction's session is one of a version to come, and what triggers of users read, the
    // key does not say: the rest of the transaction goes back to the version in force.
    const bool back = !first && user_code && pinned_->route_version() != table.version;
    if (opens) append_step(lease->out(), "BEGIN");
    if (back)
        append_step(lease->out(), format("SET LOCAL interlock.route_version = %d", table.version));
    append_statement(lease->out(), *statement, parameters);
    wire::FrameWriter(lease->out(), 'S');

    WatchedRows rows(sink);
    const Answer end =
        co_await relay(*lease, opens || back ? 2 : 1, &rows, worker_.settings().statement_timeout);
    answer.refusal =
        judge(end, statement->writes() ? Effect::write : Effect::read, autocommit, shard_name);
    answer.tag = wire::tag_name(end.tag);
    answer.count = wire::tag_count(end.tag);
    const bool usable = end.end == AnswerEnd::error && !end.cancelled && !end.error.fatal;

    if (const RouteRefusal kind = route_refusal_of(end.error.sqlstate);
        usable && kind != RouteRefusal::none) {
        // It has done nothing that is not undone. Sent again it must be the first of its
        // transaction, or alone.
        if (first && !rows.any()) {
            const bool opened = co_await give_up_refused(own, end, user_code);
            const ClientEnd::Listening client(client_);
            const bool again = co_await patience.await(worker_, routes.get(), kind, end.error,
                                                       opened, autocommit, client.gone());
            if (again && !client_gone()) {
                ++worker_.moves.resent;
                co_return std::nullopt;
            }
            if (auto refused = waited_in_vain()) co_return co_await refuse(std::move(*refused));
        }
        answer.refusal = told(kind, end.error);
    }

    const char expected = autocommit ? 'I' : 'T';
    if (!answer.refusal && (end.transaction != expected || end.cancelled)) {
        // It succeeded, but the connection cannot be used further.
        lease.discard();
        if (!autocommit) {
            answer.refusal = make_refusal(
                Code::R36, "the transaction's connection had to be closed; it was rolled back");
            transaction_ = Transaction::failed;
        }
    } else if (answer.refusal) {
        if (!usable) lease.discard();
        if (autocommit) {
            if (usable && end.transaction == 'I' && own) give_back(own, user_code);
        } else {
            co_await fail_transaction();
        }
    } else if (autocommit) {
        give_back(own, user_code);
    }
    answer.transaction = transaction_;
    co_return answer;
}

}  // namespace interlock
