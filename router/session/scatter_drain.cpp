#include "session/scatter_drain.h"

#include "base/log.h"

#include <algorithm>

namespace interlock {

namespace {

// For rows that are on their way when the answer is complete without them.
constexpr Millis ends_soon = 100;
// A request can miss its statement (it came between two messages): it is repeated. A statement that
// does not stop at all costs its connection.
constexpr Millis cancel_again = 500;
constexpr Millis cancel_grace = 5000;
constexpr Millis round_trip = 5000;
constexpr std::size_t message_limit = 1 << 20;

}  // namespace

Task<void> ShardDrain::run(std::shared_ptr<ShardStream> stream) {
    const std::shared_ptr<ScatterCounters> counters = stream->counters_;
    if (stream->lease_) co_await end_and_give_back(*stream);
    if (--counters->draining == 0) counters->drained.set();
}

Task<void> ShardDrain::end_and_give_back(ShardStream &stream) {
    bool cancelled = false;
    co_await end(stream, cancelled);
    if (cancelled) ++stream.counters_->cancelled;
    Backend &backend = *stream.lease_;
    const Millis deadline = stream.loop_.now() + round_trip;
    bool proven = !stream.broken_ && stream.settled() && backend.out().empty();
    if (proven && (stream.transaction_ == 'T' || stream.transaction_ == 'E'))
        proven = co_await backend.command("ROLLBACK", 'I', deadline);
    else if (proven)
        proven = stream.transaction_ == 'I';
    if (proven && cancelled) proven = co_await quiet(backend, deadline);
    if (proven)
        give_back(stream);
    else
        stream.lease_.discard();
}

// Reads up to the last ReadyForQuery; cancels what does not come to it.
Task<void> ShardDrain::end(ShardStream &stream, bool &cancelled) {
    if (stream.settled()) co_return;
    stream.discarding_ = true;
    // What is left may have arrived already.
    const Millis now = stream.loop_.now();
    if (co_await stream.proceed(stream.soon_ ? now + ends_soon : now, nullptr) && !stream.broken_)
        co_return;
    if (stream.ended_) co_return;
    const Millis until = stream.loop_.now() + cancel_grace;
    do {
        cancelled = true;
        co_await stream.lease_->cancel(until);
        if (stream.broken_) co_return;
        if (co_await stream.proceed(std::min(until, stream.loop_.now() + cancel_again), nullptr))
            co_return;
    } while (stream.loop_.now() < until);
    log_warning(
        "shard %s: a statement did not stop when it was cancelled; its connection is closed",
        stream.name_.c_str());
}

Task<bool> ShardDrain::quiet(Backend &backend, Millis deadline) {
    wire::FrameWriter(backend.out(), 'S');
    if (co_await backend.flush(deadline) != Io::ok) co_return false;
    for (;;) {
        wire::Frame frame;
        const wire::FrameState state = backend.peek(message_limit, frame);
        if (state == wire::FrameState::need_more) {
            if (co_await backend.fill(deadline) != Io::ok) co_return false;
            continue;
        }
        if (state != wire::FrameState::ready) co_return false;
        wire::ErrorFields error;
        const char type = frame.type;
        const bool late_cancel =
            type == 'E' && wire::parse_error(frame.body, error) && error.sqlstate == "57014";
        const bool idle = frame.body == "I";
        backend.pop(frame.size);
        if (type == 'Z') co_return idle;
        if (type == 'E' && !late_cancel) co_return false;
    }
}

void ShardDrain::give_back(ShardStream &stream) {
    bool user_code = false;
    if (stream.request_) {
        const sql::Facts &facts = *stream.request_->facts;
        const Surroundings &surroundings = stream.lease_->surroundings();
        const auto runs = [&](std::uint32_t table) {
            return surroundings.runs_user_code(stream.routes_->table->tables[table]);
        };
        user_code = facts.user_code || runs(facts.scatter->table) ||
                    std::any_of(facts.tables.begin(), facts.tables.end(), runs);
    }
    if (user_code)
        stream.lease_.release_after_reset();
    else
        stream.lease_.release();
}

}  // namespace interlock
