#include "server/pool.h"

#include "base/log.h"

#include <algorithm>
#include <random>

namespace interlock {

namespace {

constexpr Millis slow_failure = 500;  // an attempt that failed after longer starts the back-off
constexpr Millis backoff_first = 250;
constexpr Millis backoff_cap = 5000;
constexpr double lifetime_spread = 0.1;  // so that connections made together do not end together
constexpr std::size_t connecting_at_once = 2;
constexpr Millis ping_timeout = 1000;  // an idle connection that is silent longer is given up
constexpr Millis cleaning_timeout = 5000;
constexpr std::size_t idle_frame_limit = 64 * 1024;
constexpr const char *retired_reason = "the shard's connection settings have just changed";

// From 0 to 1.
double random_part() {
    static thread_local std::minstd_rand random{std::random_device{}()};
    return std::uniform_real_distribution<double>(0, 1)(random);
}

Millis with_jitter(Millis value) {
    return value / 2 + static_cast<Millis>(static_cast<double>(value) / 2 * random_part());
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

Refusal given_up() {
    Refusal refusal = make_refusal(Code::R36, "canceling statement due to user request");
    refusal.detail = "The statement was waiting for a connection; nothing was sent.";
    refusal.sqlstate = "57014";
    return refusal;
}

}  // namespace

// Lease -------------------------------------------------------------------------------------------

Lease &Lease::operator=(Lease &&other) noexcept {
    if (this != &other) {
        discard();
        pool_ = other.pool_;
        backend_ = std::move(other.backend_);
    }
    return *this;
}

void Lease::release() {
    if (!backend_) return;
    --pool_->lent_;
    pool_->take_back(std::move(backend_));
}

void Lease::release_after_reset() {
    if (!backend_) return;
    --pool_->lent_;
    ++pool_->cleaning_;
    spawn(pool_->clean(std::move(backend_)));
}

void Lease::discard() {
    if (!backend_) return;
    --pool_->lent_;
    pool_->destroyed(std::move(backend_));
}

// Pool --------------------------------------------------------------------------------------------

PoolCounters &PoolCounters::operator+=(const PoolCounters &other) {
    idle += other.idle;
    borrowed += other.borrowed;
    waiting += other.waiting;
    created += other.created;
    destroyed += other.destroyed;
    return *this;
}

Pool::Pool(Loop &loop, const Settings &settings, ExpectedIdentity identity, std::string conninfo,
           std::shared_ptr<LoginProfile> login, std::shared_ptr<ShardServer> server,
           std::shared_ptr<const Declared> declared)
    : loop_(loop), settings_(settings), identity_(std::move(identity)),
      conninfo_(std::move(conninfo)), login_(std::move(login)), server_(std::move(server)),
      declared_(std::move(declared)) {}

PoolCounters Pool::counters() const {
    return {idle_.size(), lent_ + cleaning_, waiting_.size(), created_, destroyed_};
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

Refusal Pool::too_many_wait() const {
    Refusal refusal = make_refusal(
        Code::R34,
        format("too many requests wait for a connection to shard %s", identity_.shard.c_str()),
        "Nothing was sent; it is safe to try again.");
    refusal.detail = format("%zu are waiting, %zu connections are in use.", waiting_.size(), lent_);
    return refusal;
}

Refusal Pool::none_came_free() const {
    Refusal refusal = make_refusal(Code::R33,
                                   format("no connection to shard %s came free within %lld ms",
                                          identity_.shard.c_str(),
                                          static_cast<long long>(settings_.acquire_timeout)),
                                   "Nothing was sent; it is safe to try again.");
    refusal.detail = format("The pool has %zu connections in use of at most %zu; %zu "
                            "more requests wait.",
                            lent_, settings_.pool_size, waiting_.size());
    return refusal;
}

Task<Result<Lease, Refusal>> Pool::acquire(std::int32_t route_version, Event *gave_up) {
    const auto self = shared_from_this();  // the caller's routes may go while it waits
    newest_route_version_ = std::max(newest_route_version_, route_version);
    const Millis deadline = deadline_after(loop_.now(), settings_.acquire_timeout);
    for (;;) {
        if (gave_up != nullptr && gave_up->is_set()) co_return given_up();
        if (retired_) co_return unavailable(retired_reason);
        if (loop_.now() >= deadline) co_return unavailable("the shard does not answer");
        Lease lease;
        if (!idle_.empty() && waiting_.empty()) {
            lease = lend_idle();
        } else {
            if (waiting_.size() >= settings_.max_waiting) co_return too_many_wait();
            // While nothing is connected and the last attempt failed slowly, the answer is known.
            if (lent_ == 0 && connecting_ == 0 && cleaning_ == 0 && loop_.now() < quiet_until_)
                co_return unavailable(last_failure_);
            Waiting place;
            const auto position = waiting_.insert(waiting_.end(), &place);
            connect_if_needed();
            const Fired fired = co_await Wait(loop_, deadline).event(place.ready).event(gave_up);
            if (!place.ready.is_set()) {
                waiting_.erase(position);
                if (fired.has(1)) co_return given_up();
                if (lent_ == 0 && cleaning_ == 0)
                    co_return unavailable("the connection attempt has not ended in time");
                co_return none_came_free();
            }
            if (!place.backend) co_return unavailable(place.failure);
            lease = Lease(*this, std::move(place.backend));
            if (fired.has(1)) {
                lease.release();
                co_return given_up();
            }
        }
        if (!current(*lease)) continue;
        const Millis limit = loop_.now() + ping_timeout;
        if (needs_proof(*lease) && !co_await lease->ping(limit))
            continue;  // dead while idle: its lease ends it, and the next one is tried
        const bool proven = floor_in_doubt(*lease)
                                ? co_await prove_floor(*lease, identity_, route_version, limit)
                                : co_await lease->set_route_version(route_version, limit);
        if (proven) co_return lease;
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
    auto parameters = connect_parameters({conninfo_, settings_.backend_options}, login_->login(),
                                         settings_.connect_timeout);
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
            failure = co_await greet(*backend, identity_, declared_, *login_, *server_,
                                     newest_route_version_, deadline);
        }
    }
    --connecting_;
    if (failure.empty() && !retired_) {
        ++created_;
        backoff_ = 0;
        quiet_until_ = 0;
        if (failure_logged_) log_info("shard %s is reachable again", identity_.shard.c_str());
        failure_logged_ = false;
        backend->idle_since = backend->born = loop_.now();
        backend->jitter = random_part();
        hand_out(std::move(backend));
        connect_if_needed();
        co_return;
    }
    if (failure.empty()) failure = retired_reason;
    if (!failure_logged_ || failure != last_failure_)
        log_warning("could not connect to shard %s%s%s: %s", identity_.shard.c_str(),
                    login_->login().empty() ? "" : " as ", login_->login().c_str(),
                    failure.c_str());
    failure_logged_ = true;
    last_failure_ = failure;
    if (loop_.now() - began > slow_failure) {
        backoff_ = std::clamp(backoff_ * 2, backoff_first, backoff_cap);
        quiet_until_ = loop_.now() + with_jitter(backoff_);
    }
    // While other connections are in use (the server may have no more to give), waiting for one of
    // them is the better hope; should they turn out dead, the next attempt decides.
    if (lent_ == 0 && connecting_ == 0 && cleaning_ == 0) fail_waiting(failure);
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
    if (current(*backend) && !too_old(*backend) && only_notices(*backend))
        hand_out(std::move(backend));
    else
        destroyed(std::move(backend));
}

Task<void> Pool::clean(std::unique_ptr<Backend> backend) {
    const auto self = shared_from_this();  // the pool may be dropped meanwhile
    const bool cleaned = co_await backend->reset_session(loop_.now() + cleaning_timeout);
    --cleaning_;
    if (cleaned) {
        take_back(std::move(backend));
    } else {
        log_debug("connection %d to shard %s could not be cleaned and is closed", backend->pid(),
                  identity_.shard.c_str());
        destroyed(std::move(backend));
    }
}

void Pool::destroyed(std::unique_ptr<Backend> backend) {
    backend.reset();
    ++destroyed_;
    connect_if_needed();
    if (retired_) end_if_unused();
}

bool Pool::too_old(const Backend &backend) const {
    if (settings_.max_lifetime <= 0) return false;
    const auto lifetime = static_cast<double>(settings_.max_lifetime);
    return static_cast<double>(loop_.now() - backend.born) >=
           lifetime * (1 - lifetime_spread * backend.jitter);
}

void Pool::sweep() {
    const Millis now = loop_.now();
    const bool doubted = login_->doubted(identity_.shard);
    destroyed_ += std::erase_if(idle_, [&](const auto &idle) {
        const bool unused =
            settings_.idle_timeout > 0 && now - idle->idle_since >= settings_.idle_timeout;
        return doubted || unused || too_old(*idle) || !current(*idle);
    });
    if (doubted && total() == 0) login_->forget();
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
    if (retired_) return;
    retired_ = true;
    destroyed_ += idle_.size();
    idle_.clear();
    fail_waiting(retired_reason);
    if (lent_ > 0) self_ = shared_from_this();
}

void Pool::end_if_unused() {
    const std::shared_ptr<Pool> last = lent_ == 0 ? std::move(self_) : nullptr;
}

}  // namespace interlock
