// Moving answers from the backend to the client, what follows from them, and what happens when the
// backend is lost.
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
// How long a connection that takes nothing more is listened to for its last words.
constexpr Millis broken_grace = 100;

Refusal own_refusal(const BackendError &error) {
    Refusal refusal = make_refusal(Code::R31, error.message, error.hint);
    refusal.sqlstate = error.sqlstate;
    refusal.detail = error.detail;
    return refusal;
}

}  // namespace

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
        // More than is kept back: they are given, and then it is told what was refused behind them.
        if (fed == Exchange::Feed::blocked && refused_) cannot_resend();
        if (!backend.out().empty() && !broken && backend.try_flush() == Io::closed) {
            // It may have said why, before it went.
            broken = true;
            deadline = std::min(deadline, loop.now() + broken_grace);
        }
        if (fed == Exchange::Feed::done) co_return std::nullopt;
        if (drained && backend.out().empty()) co_return std::nullopt;
        // What came from the backend is worth a write of its own; our own answers wait for it.
        const bool keep = answers_may_come_again();
        if (moved && !refused_ && !gone_ && !out_.empty()) {
            if (keep)
                give_older_answers();
            else if (!try_write())
                gone_ = true;
        }
        const bool give = moved && !refused_ && (keep ? resend_->before > 0 : !out_.empty());
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
                .write(give && !gone_ ? &transport_->watch : nullptr)
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
    // With nothing owed to the client, only the router's own tidying up was cut short.
    const bool fails = in_block() && (owed || hold_ == Hold::pinned);
    exchange_->drop_all(*this);
    discard_backend();
    if (fails) {
        transaction_ = Transaction::failed;
        block_->savepoints.clear();
        // COMMIT ends a transaction, whatever has become of it.
        if (commit_sent) leave_block(false);
    }
    if (!owed) return std::nullopt;
    return refusal;
}

// Something arrived from the pinned backend between two statements: a notice, or its end.
Task<void> PgClient::pinned_stirred() {
    const std::string &shard = block_->routes->table->shards[shard_].name;
    auto why = look_at_pinned(*lease_, shard, &out_);
    if (!why) co_return;
    why->hint = "Send ROLLBACK, then run the transaction again.";
    lost_ = std::make_unique<Refusal>(std::move(*why));
    discard_backend();
    block_->savepoints.clear();
    transaction_ = Transaction::failed;
}

void PgClient::completed(const Owed &owed, std::string_view tag) {
    const Note &done = notes_[owed.note - 1U];
    switch (done.kind) {
    case Note::Kind::query:
        if (!tag.empty() && command_ < commands_.size())
            statement_done(*commands_[command_++], tag);
        break;
    case Note::Kind::execute:
        if (tag.empty()) break;
        // It may have committed what came before it.
        cannot_resend();
        statement_done(*done.facts, tag);
        break;
    case Note::Kind::parse:
    case Note::Kind::prepare:
    case Note::Kind::columns: break;
    }
}

void PgClient::described(const Owed &owed, std::string_view columns) {
    const PreparedPointer &prepared = notes_[owed.note - 1U].prepared;
    const std::uint64_t result = result_fingerprint(columns);
    if (owed.to == Owed::To::client && prepared->result == 0) prepared->result = result;
    if (lease_) lease_->prepared().set_result(prepared->id, result);
}

void PgClient::dropped(const Owed &owed, bool at_fault) {
    const Note &gone = notes_[owed.note - 1U];
    if (gone.kind == Note::Kind::parse && extended_) {
        // A Parse or Close that the server would have skipped.
        if (gone.prepared)
            extended_->named[gone.name] = gone.prepared;
        else
            extended_->named.erase(gone.name);
    }
    if (gone.kind == Note::Kind::prepare) {
        gone.prepared->checked = false;
        if (!lease_) return;
        if (gone.prepared->named)
            lease_->prepared().remove(gone.prepared->id);
        else
            lease_->set_unnamed_owner(0);
        // A text that no backend takes is not a prepared statement.
        if (extended_ && at_fault && extended_->unnamed == gone.prepared)
            extended_->unnamed.reset();
        if (extended_ && at_fault)
            std::erase_if(extended_->named,
                          [&](const auto &entry) { return entry.second == gone.prepared; });
    }
}

bool PgClient::status_changed(std::string_view name, std::string_view value, Owed::To to) {
    if (to == To::nobody || hold_status_) return false;
    const TrackedParameter *parameter = find_tracked(name);
    if (parameter == nullptr || !parameter->reported) {
        cannot_resend();
        return true;
    }
    if (told(*parameter) == value) return false;
    note_told(*parameter, value);
    cannot_resend();
    return true;
}

bool PgClient::error_arrived(const wire::ErrorFields &error, Owed::To, Buffer &out) {
    if (round_open_) skipping_ = true;
    if (round_open_ && in_block()) transaction_ = Transaction::failed;
    if (lease_) lease_->set_unnamed_owner(0);
    // The table has changed since: this backend's plans, and all others', are made anew.
    if (error.sqlstate == "0A000" &&
        error.message.find("cached plan must not change result type") != std::string_view::npos) {
        stale_plans_ = true;
        shared_.forget_statements();
    }
    if (timed_out_ && error.sqlstate == "57014") {
        pg_reply::error(out, make_refusal(Code::R36,
                                          "the statement ran into the router's statement timeout "
                                          "and was cancelled",
                                          "The limit is the setting pool.statement_timeout."));
        return true;
    }
    return refused_for_routes(error, out);
}

}  // namespace interlock
