#include "session/scatter_fan.h"

#include "base/log.h"

#include <algorithm>

namespace interlock {

namespace {

using State = ShardStream::State;
using Fault = ShardStream::Fault;

// Once the late shards are given up: for reading what the others have already sent.
constexpr Millis reading_on = 100;

Refusal given_up() {
    return postgres_error("57014", "canceling statement due to user request");
}

}  // namespace

ShardFan::ShardFan(Loop &loop, Millis timeout, Event *gave_up)
    : loop_(loop), timeout_(timeout), left_(timeout <= 0 ? never : timeout), gave_up_(gave_up) {}

void ShardFan::begin(std::vector<std::shared_ptr<ShardStream>> streams, bool partial) {
    abandon(true);
    partial_ = partial;
    first_loss_.reset();
    streams_ = std::move(streams);
    missing_.assign(streams_.size(), false);
    for (const auto &stream : streams_)
        stream->begin(&changed_);
}

std::vector<std::string> ShardFan::missing_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < streams_.size(); ++i)
        if (missing_[i]) names.push_back(streams_[i]->name());
    return names;
}

void ShardFan::abandon(bool soon) {
    for (const auto &stream : streams_)
        stream->abandon(soon);
}

void ShardFan::spend(Millis since) {
    if (left_ != never) left_ = std::max<Millis>(0, left_ - (loop_.now() - since));
}

// False when the scatter cannot do without the shard.
bool ShardFan::lose(std::size_t i, Fault fault, Refusal refusal) {
    const bool last = std::count(missing_.begin(), missing_.end(), false) == 1;
    if (!partial_ || fault != Fault::away || last) {
        // When all are away, the first one's reason is as good as the last one's.
        refusal_ = last && first_loss_ && fault == Fault::away ? *first_loss_ : std::move(refusal);
        return false;
    }
    log_debug("a page goes without shard %s: %s", streams_[i]->name().c_str(),
              refusal.message.c_str());
    missing_[i] = true;
    streams_[i]->abandon(false);
    if (!first_loss_) first_loss_ = std::move(refusal);
    return true;
}

Refusal ShardFan::timeout(const std::vector<std::size_t> &late) const {
    std::string names;
    bool unsent = true;
    for (const std::size_t i : late) {
        names += (names.empty() ? "\"" : ", \"") + streams_[i]->name() + "\"";
        unsent = unsent && streams_[i]->state() == State::lending;
    }
    Refusal refusal = make_refusal(
        Code::shard_timeout,
        format("no answer from shard%s %s within %lld ms", late.size() == 1 ? "" : "s",
               names.c_str(), static_cast<long long>(timeout_)),
        "Nothing was changed; it is safe to try again, with more time if the statement needs it.");
    refusal.detail =
        unsent ? "No connection came free in time." : "The statement was cancelled there.";
    return refusal;
}

// False when that ends the scatter.
bool ShardFan::out_of_time(const std::vector<std::size_t> &late) {
    if (!partial_) {
        refusal_ = timeout(late);
        return false;
    }
    for (const std::size_t i : late)
        if (!lose(i, Fault::away, timeout({i}))) {
            refusal_ = timeout(late);
            return false;
        }
    if (!late_) left_ = reading_on;
    late_ = true;
    return true;
}

Task<ShardFan::Wait> ShardFan::wait(Millis part) {
    const Millis began = loop_.now();
    changed_.reset();
    std::vector<std::size_t> busy;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
        if (missing_[i]) continue;
        ShardStream &stream = *streams_[i];
        if (stream.state() == State::failed) {
            if (!lose(i, stream.fault(), stream.refusal())) co_return Wait::over;
        } else if (stream.busy()) {
            busy.push_back(i);
        }
    }
    if (busy.empty()) co_return Wait::settled;
    const bool partly = part > 0 && part < left_;
    const Millis time = partly ? part : left_;
    const Millis deadline = time == never ? never : began + time;
    const Fired fired = co_await interlock::Wait(loop_, deadline).event(changed_).event(gave_up_);
    spend(began);
    if (fired.has(1)) {
        refusal_ = given_up();
        co_return Wait::over;
    }
    if (!fired.none()) co_return Wait::changed;
    if (partly) co_return Wait::settled;
    co_return out_of_time(busy) ? Wait::changed : Wait::over;
}

Task<bool> ShardFan::pull(std::size_t i) {
    ShardStream &stream = *streams_[i];
    const Millis began = loop_.now();
    const Millis deadline = left_ == never ? never : began + left_;
    const bool done = co_await stream.proceed(deadline, gave_up_);
    spend(began);
    if (done) {
        co_return stream.state() != State::failed || lose(i, stream.fault(), stream.refusal());
    }
    if (gave_up_ != nullptr && gave_up_->is_set()) {
        refusal_ = given_up();
        co_return false;
    }
    co_return out_of_time({i});
}

}  // namespace interlock
