#include "server/pool.h"

#include "base/log.h"

#include <algorithm>
#include <random>

namespace interlock {

namespace {

constexpr Millis slow_failure = 500;  // an attempt that failed after longer starts the back-off
constexpr Millis backoff_first = 250;
constexpr Millis backoff_cap = 5000;
constexpr std::size_t connecting_at_once = 2;
constexpr Millis ping_timeout = 1000;  // an idle connection that is silent longer is given up
constexpr std::size_t idle_frame_limit = 64 * 1024;
constexpr const char *retired_reason = "the shard's connection settings have just changed";

Millis with_jitter(Millis value) {
    static thread_local std::minstd_rand random{std::random_device{}()};
    return value / 2 + static_cast<Millis>(random() % static_cast<unsigned long>(value / 2 + 1));
}

// Takes the messages a server may send at any time out of the backend's buffer; false if there is
// anything else, which ends its usefulness. The beginning of a further message stays.
bool only_notices(Backend &backend) {
    wire::Frame frame;
    for (;;) {
        const wire::FrameState state = backend.peek(idle_frame_limit, frame);
        if (state == wire::FrameState::need_more) return true;
        if (state != wire::FrameState::ready ||
            (frame.type != 'N' && frame.type != 'S' && frame.type != 'A'))
            return false;
        backend.pop(frame.size);
    }
}

}  // namespace

// Lease -------------------------------------------------------------------------------------------

Lease::Lease(std::shared_ptr<Pool> pool, std::unique_ptr<Backend> backend)
    : pool_(std::move(pool)), backend_(std::move(backend)) {}

Lease &Lease::operator=(Lease &&other) noexcept {
    if (this != &other) {
        discard();
        pool_ = std::move(other.pool_);
        backend_ = std::move(other.backend_);
    }
    return *this;
}

void Lease::release() {
    if (!backend_) return;
    --pool_->lent_;
    pool_->take_back(std::move(backend_));
    pool_.reset();
}

void Lease::discard() {
    if (!backend_) return;
    --pool_->lent_;
    pool_->destroyed(std::move(backend_));
    pool_.reset();
}

// Pool --------------------------------------------------------------------------------------------

Pool::Pool(Loop &loop, const Settings &settings, ExpectedIdentity identity, std::string conninfo)
    : loop_(loop), settings_(settings), identity_(std::move(identity)),
      conninfo_(std::move(conninfo)) {}

Pool::~Pool() = default;

PoolCounters Pool::counters() const {
    return {idle_.size(), lent_, waiting_.size(), created_, destroyed_};
}

Refusal Pool::unavailable(const std::string &why) const {
    Refusal refusal;
    refusal.code = Code::R30;
    refusal.message = format("shard %s is unavailable; nothing was sent", identity_.shard.c_str());
    // What is wrong with a connection may come with a hint of its own.
    constexpr std::string_view mark = "; HINT: ";
    const std::size_t hint = why.find(mark);
    refusal.detail = why.substr(0, hint);
    refusal.hint = hint == std::string::npos ? "It is safe to send the statement again."
                                             : why.substr(hint + mark.size());
    return refusal;
}

Task<Result<Lease, Refusal>> Pool::acquire(std::int32_t route_version) {
    newest_route_version_ = std::max(newest_route_version_, route_version);
    const Millis deadline = deadline_after(loop_.now(), settings_.acquire_timeout);
    for (;;) {
        if (retired_) co_return unavailable(retired_reason);
        if (loop_.now() >= deadline) co_return unavailable("the shard does not answer");
        std::unique_ptr<Backend> backend;
        if (!idle_.empty() && waiting_.empty()) {
            backend = std::move(idle_.back());
            idle_.pop_back();
        } else {
            if (waiting_.size() >= settings_.max_waiting) {
                Refusal refusal;
                refusal.code = Code::R34;
                refusal.message = format("too many requests wait for a connection to shard %s",
                                         identity_.shard.c_str());
                refusal.detail =
                    format("%zu are waiting, %zu connections are in use.", waiting_.size(), lent_);
                refusal.hint = "Nothing was sent; it is safe to try again.";
                co_return refusal;
            }
            // While nothing is connected and the last attempt failed slowly, the answer is known.
            if (lent_ == 0 && connecting_ == 0 && loop_.now() < quiet_until_)
                co_return unavailable(last_failure_);
            Waiting self;
            const auto place = waiting_.insert(waiting_.end(), &self);
            connect_if_needed();
            const Fired fired = co_await Wait(loop_, deadline).event(self.ready);
            if (fired.none()) {
                waiting_.erase(place);
                if (lent_ == 0)
                    co_return unavailable("the connection attempt has not ended in time");
                Refusal refusal;
                refusal.code = Code::R33;
                refusal.message = format("no connection to shard %s came free within %lld ms",
                                         identity_.shard.c_str(),
                                         static_cast<long long>(settings_.acquire_timeout));
                refusal.detail = format("The pool has %zu connections in use of at most %zu; %zu "
                                        "more requests wait.",
                                        lent_, settings_.pool_size, waiting_.size());
                refusal.hint = "Nothing was sent; it is safe to try again.";
                co_return refusal;
            }
            if (!self.backend) co_return unavailable(self.failure);
            backend = std::move(self.backend);
            --lent_;  // counted when it was handed out; the lease counts it again
        }
        ++lent_;
        Lease lease(shared_from_this(), std::move(backend));
        const Millis limit = loop_.now() + ping_timeout;
        if (settings_.idle_check > 0 && loop_.now() - lease->idle_since > settings_.idle_check &&
            !co_await lease->ping(limit))
            continue;  // dead while idle: its lease ends it, and the next one is tried
        if (!co_await lease->set_route_version(route_version, limit)) continue;
        co_return lease;
    }
}

void Pool::connect_if_needed() {
    while (!retired_ && connecting_ < connecting_at_once && connecting_ < waiting_.size() &&
           total() < settings_.pool_size) {
        ++connecting_;
        spawn(connect_one());
    }
}

Task<void> Pool::connect_one() {
    const auto self = shared_from_this();  // the pool may be dropped meanwhile
    const Millis began = loop_.now();
    std::string failure;
    std::unique_ptr<Backend> backend;
    auto parameters =
        connect_parameters({conninfo_, settings_.backend_options}, settings_.connect_timeout);
    if (!parameters) {
        failure = parameters.error();
    } else {
        const Millis deadline = deadline_after(began, parameters->longest);
        auto connection = co_await connect(loop_, *parameters, deadline);
        if (!connection) {
            failure = connection.error();
        } else {
            backend = std::make_unique<Backend>(loop_, std::move(*connection));
            backend->watch_idle(
                [](void *pool, Backend *idle) { static_cast<Pool *>(pool)->became_readable(idle); },
                this);
            failure = co_await backend->greet(identity_, newest_route_version_, deadline);
        }
    }
    --connecting_;
    if (failure.empty() && !retired_) {
        ++created_;
        backoff_ = 0;
        quiet_until_ = 0;
        if (failure_logged_) log_info("shard %s is reachable again", identity_.shard.c_str());
        failure_logged_ = false;
        backend->idle_since = loop_.now();
        hand_out(std::move(backend));
        connect_if_needed();
        co_return;
    }
    if (failure.empty()) failure = retired_reason;
    if (!failure_logged_ || failure != last_failure_)
        log_warning("could not connect to shard %s: %s", identity_.shard.c_str(), failure.c_str());
    failure_logged_ = true;
    last_failure_ = failure;
    if (loop_.now() - began > slow_failure) {
        backoff_ = std::clamp(backoff_ * 2, backoff_first, backoff_cap);
        quiet_until_ = loop_.now() + with_jitter(backoff_);
    }
    // While other connections are in use (the server may have no more to give), waiting for one of
    // them is the better hope; should they turn out dead, the next attempt decides.
    if (lent_ == 0 && connecting_ == 0) fail_waiting(failure);
}

void Pool::hand_out(std::unique_ptr<Backend> backend) {
    if (retired_ || total() >= settings_.pool_size) {  // the limit may have been lowered
        destroyed(std::move(backend));
        return;
    }
    if (!waiting_.empty()) {
        Waiting *first = waiting_.front();
        waiting_.pop_front();
        ++lent_;
        first->backend = std::move(backend);
        first->ready.set();
        return;
    }
    Backend *kept = backend.get();
    idle_.push_back(std::move(backend));
    kept->watch().arm_stray();
}

// Something arrived on a connection that nobody waits for: a notice, a changed parameter, or its
// end. A server that stops says so, and the connection is not offered again.
void Pool::became_readable(Backend *backend) {
    const auto it = std::find_if(idle_.begin(), idle_.end(),
                                 [&](const auto &idle) { return idle.get() == backend; });
    if (it == idle_.end()) return;  // lent: its borrower will read it
    if (backend->fill_now() != Io::closed && only_notices(*backend)) {
        backend->watch().arm_stray();
        return;
    }
    log_debug("idle connection %d to shard %s ended", backend->pid(), identity_.shard.c_str());
    std::unique_ptr<Backend> dead = std::move(*it);
    idle_.erase(it);
    destroyed(std::move(dead));
}

void Pool::take_back(std::unique_ptr<Backend> backend) {
    backend->idle_since = loop_.now();
    // What came behind the end of the answer, in the same read, may be the server's goodbye.
    if (only_notices(*backend))
        hand_out(std::move(backend));
    else
        destroyed(std::move(backend));
}

void Pool::destroyed(std::unique_ptr<Backend> backend) {
    backend.reset();
    ++destroyed_;
    connect_if_needed();
}

void Pool::fail_waiting(const std::string &failure) {
    while (!waiting_.empty()) {
        Waiting *first = waiting_.front();
        waiting_.pop_front();
        first->failure = failure;
        first->ready.set();
    }
}

void Pool::retire() {
    retired_ = true;
    destroyed_ += idle_.size();
    idle_.clear();
    fail_waiting(retired_reason);
}

}  // namespace interlock
