#include "session/scatter_stream.h"

#include "base/log.h"
#include "server/greeting.h"
#include "session/outcome.h"
#include "session/scatter_drain.h"

#include <algorithm>

namespace interlock {

namespace {

// Room for every message that is not a row.
constexpr std::size_t message_limit = 1 << 20;
// What asking for the surroundings may take, before the backend is given up.
constexpr Millis learn_timeout = 5000;

}  // namespace

ShardStream::ShardStream(Worker &worker, std::shared_ptr<const Routes> routes, std::string login,
                         ShardIndex shard)
    : worker_(&worker), loop_(worker.loop()), routes_(std::move(routes)), login_(std::move(login)),
      shard_(shard), name_(routes_->table->shards[shard].name),
      frame_limit_(std::max(message_limit, worker.settings().pg_max_packet)),
      counters_(worker.scatters) {}

// Its course
// ---------------------------------------------------------------------------------------

void ShardStream::begin(Event *changed) {
    changed_ = changed;
    working_ = true;
    spawn(work(shared_from_this()));
}

void ShardStream::learn() {
    learning_ = true;
    wish_.set();
}

void ShardStream::forget_keysets() {
    if (!lease_) return;
    auto known = std::make_shared<Surroundings>(lease_->surroundings());
    known->forget_keysets();
    lease_->set_surroundings(std::move(known));
}

void ShardStream::ask(std::shared_ptr<const ShardRequest> request) {
    request_ = std::move(request);
    state_ = State::waiting;
    wish_.set();
}

void ShardStream::tell() {
    if (changed_ != nullptr) changed_->set();
}

Task<void> ShardStream::work(std::shared_ptr<ShardStream> self) {
    Pool &pool = routes_->pools_for(login_)[shard_];
    auto lent = co_await pool.acquire(routes_->table->version, &abandoned_);
    if (lent) {
        lease_ = std::move(*lent);
        if (!abandoned_.is_set()) state_ = State::ready;
    } else if (!abandoned_.is_set()) {
        const Code code = lent.error().code;
        fail(code == Code::R30 || code == Code::R33 ? Fault::away : Fault::refused,
             std::move(lent.error()));
    }
    tell();
    while (lease_ && !abandoned_.is_set()) {
        co_await Wait(loop_, never).event(wish_).event(abandoned_);
        if (abandoned_.is_set()) break;
        wish_.reset();
        if (learning_) {
            co_await learn_again();
            learning_ = false;
            tell();
            if (!request_) continue;
        }
        if (!lease_ || abandoned_.is_set()) break;
        send();
        (void)co_await proceed(never, &abandoned_);
        tell();
        break;
    }
    working_ = false;
    if (abandoned_.is_set()) co_await ShardDrain::run(std::move(self));
}

// The question is asked in the words of the login's own settings: a client's encoding would change
// them.
Task<void> ShardStream::learn_again() {
    const Millis deadline = loop_.now() + learn_timeout;
    std::string problem;
    if (lease_->applied_parameters()) {
        const auto from =
            std::static_pointer_cast<const ParameterSet>(lease_->applied_parameters());
        if (co_await lease_->command(change_parameters_sql(from, nullptr), 'I', deadline))
            lease_->set_applied_parameters(nullptr);
        else
            problem = "the session's settings could not be taken back";
    }
    if (problem.empty()) problem = co_await learn_keysets(*lease_, deadline);
    if (problem.empty()) co_return;
    // It may still be at it, and wait for a lock.
    co_await lease_->cancel(loop_.now() + learn_timeout);
    lease_.discard();
    Refusal refusal =
        make_refusal(Code::R30, format("shard %s is unavailable; nothing was sent", name_.c_str()),
                     "It is safe to try again.");
    refusal.detail = std::move(problem);
    fail(Fault::away, std::move(refusal));
}

void ShardStream::append_settings() {
    const auto from = std::static_pointer_cast<const ParameterSet>(lease_->applied_parameters());
    const std::string sql = change_parameters_sql(from, request_->parameters);
    if (sql.empty()) {
        lease_->set_applied_parameters(request_->parameters);
        return;
    }
    wire::FrameWriter(lease_->out(), 'Q').string(sql);
    rounds_.push_back(Round::settings);
}

void ShardStream::send() {
    if (lease_->applied_parameters() != request_->parameters) append_settings();
    lease_->out().append(request_->frames);
    if (request_->prologue) rounds_.push_back(Round::prologue);
    rounds_.push_back(Round::statement);
    if (!request_->tail.empty()) {
        lease_->out().append(request_->tail);
        rounds_.push_back(Round::tail);
    }
    lease_->set_unnamed_owner(0);
    ++counters_->statements;
}

void ShardStream::ask_more() {
    rounds_.push_back(Round::statement);
    lease_->set_unnamed_owner(0);
    described_ = more_ = true;
    completed_ = false;
    state_ = State::waiting;
}

void ShardStream::abandon(bool soon) {
    if (given_away_) return;
    given_away_ = true;
    ++counters_->draining;
    changed_ = nullptr;
    soon_ = soon;
    if (worker_ != nullptr) worker_->buffered_bytes -= charged_;
    worker_ = nullptr;
    if (working_)
        abandoned_.set();
    else
        spawn(ShardDrain::run(shared_from_this()));
}

// Its answer --------------------------------------------------------------------------------------

void ShardStream::fail(Fault fault, Refusal refusal) {
    if (discarding_ || state_ == State::failed) return;
    state_ = State::failed;
    fault_ = fault;
    refusal_ = std::move(refusal);
}

void ShardStream::fail_as(AnswerEnd end) {
    Answer answer;
    answer.end = end;
    answer.error = error_;
    answer.sent = lease_->out().empty();
    auto refusal = judge(answer, Effect::read, !request_->prologue, name_);
    if (!refusal) refusal = make_refusal(Code::R30, "shard " + name_ + " gave no answer");
    // What the shards cannot put into an order that can be merged is our limit: alone, each of them
    // would carry the statement out.
    const bool page = request_->facts->scatter->kind == sql::ScatterKind::keyset_page;
    if (end == AnswerEnd::error && error_.sqlstate == "0A000" && !page) {
        refusal->code = Code::scatter_unsupported;
        refusal->sqlstate.clear();
    }
    const bool away = end == AnswerEnd::lost || (end == AnswerEnd::error && error_.fatal);
    fail(away ? Fault::away : Fault::refused, std::move(*refusal));
}

void ShardStream::lost() {
    broken_ = ended_ = true;
    fail_as(AnswerEnd::lost);
}

void ShardStream::charge() {
    if (worker_ == nullptr) return;
    const std::size_t held = lease_->arrived().size();
    worker_->buffered_bytes += held;
    worker_->buffered_bytes -= charged_;
    charged_ = held;
    if (worker_->buffered_bytes > worker_->settings().max_buffered_bytes)
        fail_as(AnswerEnd::too_large);
}

void ShardStream::pop() {
    lease_->pop(row_size_);
    row_ = {};
    state_ = State::waiting;
    advance();
}

void ShardStream::advance() {
    while (!broken_ && !settled() && (discarding_ || state_ == State::waiting)) {
        wire::Frame frame;
        switch (lease_->peek(frame_limit_, frame)) {
        case wire::FrameState::need_more: return;
        case wire::FrameState::ready: take_frame(frame); break;
        case wire::FrameState::malformed:
        case wire::FrameState::too_long:
            broken_ = true;
            fail_as(lease_->peek(frame_limit_, frame) == wire::FrameState::too_long
                        ? AnswerEnd::too_large
                        : AnswerEnd::malformed);
            return;
        }
    }
}

void ShardStream::take_frame(const wire::Frame &frame) {
    const bool statement = rounds_[round_] == Round::statement;
    switch (frame.type) {
    case 'D':
        if (statement) return take_row(frame);
        break;
    case 'T':
        if (statement && !described_) {
            std::vector<DescribedColumn> columns;
            if (!read_description(frame.body, columns) || columns.size() < request_->hidden)
                return malformed();
            description_.assign(frame.body);
            columns_ = static_cast<std::uint16_t>(columns.size());
            described_ = true;
        }
        break;
    case 'C': completed_ = completed_ || statement; break;
    case 'E': take_error(frame); break;
    case 'Z': round_ended(frame); break;
    case '1':  // ParseComplete
    case '2':  // BindComplete
    case '3':  // CloseComplete
    case 'n':  // NoData
    case 'I':  // EmptyQueryResponse
    case 'N':  // NoticeResponse
    case 'S':  // ParameterStatus
    case 'A':  // NotificationResponse
        break;
    default: return malformed();
    }
    lease_->pop(frame.size);
}

void ShardStream::malformed() {
    log_warning("shard %s: an answer to a scatter was malformed", name_.c_str());
    broken_ = true;
    fail_as(AnswerEnd::malformed);
}

void ShardStream::take_row(const wire::Frame &frame) {
    if (!described_) return malformed();
    if (!discarding_ && !more_ && rows_ == request_->most) {
        fail(Fault::refused,
             make_refusal(Code::shards_disagree,
                          format("shard %s sent more than the %llu rows it was asked for",
                                 name_.c_str(), static_cast<unsigned long long>(rows_))));
        return;
    }
    if (discarding_) {
        lease_->pop(frame.size);
        return;
    }
    if (more_)
        parts_ = RowParts{.visible = frame.body.size(), .key = {}, .has_key = false};
    else if (!split_row(frame.body, columns_, request_->hidden, parts_))
        return malformed();
    if (!more_) {
        ++rows_;
        ++counters_->fetched;
    }
    row_ = frame.body;
    row_size_ = frame.size;
    state_ = State::row;
}

void ShardStream::take_error(const wire::Frame &frame) {
    wire::ErrorFields fields;
    if (!wire::parse_error(frame.body, fields)) return;
    error_ = BackendError{std::string(fields.sqlstate), std::string(fields.message),
                          std::string(fields.detail), std::string(fields.hint), fields.fatal()};
}

void ShardStream::round_ended(const wire::Frame &frame) {
    transaction_ = frame.body.size() == 1 ? frame.body[0] : '\0';
    const bool failed = !error_.sqlstate.empty();
    switch (rounds_[round_]) {
    case Round::settings:
        if (failed) {
            fail_as(AnswerEnd::error);
            if (!discarding_)
                refusal_.hint = "A setting of this session is not accepted by the shard.";
        } else {
            lease_->set_applied_parameters(request_->parameters);
            if (request_->parameters)
                request_->parameters->note_accepted(&routes_->pools_for(login_)[shard_]);
        }
        break;
    case Round::prologue:
        if (failed) fail_as(AnswerEnd::error);
        break;
    case Round::statement:
        if (failed)
            fail_as(AnswerEnd::error);
        else if (!completed_ || !described_)
            fail_as(AnswerEnd::malformed);
        else if (!discarding_ && state_ == State::waiting)
            state_ = State::end;
        break;
    case Round::tail: break;
    }
    error_ = BackendError{};
    ++round_;
}

Task<bool> ShardStream::proceed(Millis deadline, Event *stop) {
    for (;;) {
        advance();
        if (broken_ || settled() || (!discarding_ && state_ != State::waiting)) co_return true;
        Backend &backend = *lease_;
        if (!unsendable_ && backend.try_flush() == Io::closed) unsendable_ = true;
        if (backend.read_ahead()) {
            const Io io = backend.fill_now();
            if (io == Io::closed) lost();
            if (io == Io::ok) charge();
            if (io != Io::timeout) continue;
        }
        const bool sends = !unsendable_ && !backend.out().empty();
        const Fired fired = co_await Wait(loop_, deadline)
                                .read(backend.watch())
                                .write(sends ? &backend.watch() : nullptr)
                                .event(stop);
        if (fired.has(2) || fired.none()) co_return false;
        if (!fired.has(0)) continue;
        const Io io = backend.fill_now();
        if (io == Io::closed) lost();
        if (io == Io::ok) charge();
    }
}

}  // namespace interlock
