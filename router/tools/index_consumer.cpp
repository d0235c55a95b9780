#include "tools/index_consumer.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>

#include <unistd.h>

#include "base/log.h"
#include "tools/index_model.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;

constexpr std::int64_t backoff_first = 100;
constexpr std::int64_t backoff_cap = 5000;
constexpr int once_attempts = 5;
// After a batch that was not full, the outbox is looked at again so soon; see IndexConsumer::run().
constexpr std::int64_t shortest_wait = 5;
constexpr std::int64_t house_interval = 1000;
constexpr std::int64_t idle_interval = 5000;
constexpr std::int64_t tell_interval = 60000;
constexpr std::uint64_t rotate_after = 16384;
constexpr std::int32_t purge_size = 10000;

std::int64_t elapsed(std::chrono::steady_clock::time_point since) {
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - since)
        .count();
}

ShardIndex member_named(const RouteTable &routes, const std::string &name) {
    for (std::size_t i = 0; i < routes.shards.size(); ++i)
        if (routes.shards[i].name == name) return static_cast<ShardIndex>(i);
    throw ControlError("55000", "\"" + name + "\" is no member of the cluster any more");
}

std::string one_line(const ControlError &error) {
    std::string text = error.what();
    if (!error.detail.empty()) text += "; DETAIL: " + error.detail;
    if (!error.hint.empty()) text += "; HINT: " + error.hint;
    return text;
}

std::string own_identity() {
    char host[256] = {};
    if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    return format("%s:%d", host, static_cast<int>(::getpid()));
}

}  // namespace

IndexConsumer::IndexConsumer(ConsumerTask task, std::shared_ptr<const RouteTable> routes,
                             const ConsumerSettings &settings, std::function<void()> ended)
    : task_(std::move(task)),
      settings_(settings), request_{task_.index, task_.shard, settings.batch, settings.max_tries},
      on_end_(std::move(ended)), routes_(std::move(routes)), identity_(own_identity()) {
    thread_ = std::thread([this] { run(); });
}

IndexConsumer::~IndexConsumer() {
    stop();
    thread_.join();
}

void IndexConsumer::stop() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
}

void IndexConsumer::set_routes(std::shared_ptr<const RouteTable> routes) {
    const std::lock_guard lock(mutex_);
    routes_ = std::move(routes);
}

std::shared_ptr<const RouteTable> IndexConsumer::routes() {
    const std::lock_guard lock(mutex_);
    return routes_;
}

void IndexConsumer::pause(std::int64_t time) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, milliseconds(time), [this] { return stopping_; });
}

std::string IndexConsumer::label() const {
    return "index " + task_.index + ", shard " + task_.shard;
}

void IndexConsumer::run() {
    std::int64_t backoff = backoff_first;
    int attempts = 0;
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) break;
        }
        try {
            if (!shard_ || !database_) connect();
            if (settings_.once) {
                drain_once();
                succeeded_ = true;
                break;
            }
            const bool full = work();
            keep_house();
            backoff = backoff_first;
            // After some records, more are likely to come soon: the pause is as short as keeps the
            // consumer from being busy with few records at a time. An empty outbox is polled.
            if (!full)
                pause(idle_ ? settings_.poll
                            : std::clamp(2 * batch_took_, std::min(shortest_wait, settings_.poll),
                                         settings_.poll));
        } catch (const ControlError &error) {
            tell_error(error);
            disconnect();
            if (settings_.once && ++attempts == once_attempts) break;
            pause(backoff);
            backoff = std::min(backoff * 2, backoff_cap);
        }
    }
    try {
        if (database_ && unreported_ > 0) report(false);
    } catch (const ControlError &) {
        // It is counted only for people's information.
    }
    ended_ = true;
    on_end_();
}

void IndexConsumer::connect() {
    const std::shared_ptr<const RouteTable> now = routes();
    const auto open = [&](const std::string &member) {
        auto connection =
            open_member(*now, member_named(*now, member), "interlock index", settings_.timeout);
        // A consumer whose machine is gone, or that is stopped, must not hold records for ever.
        connection->query(
            "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, false)",
            {Param::of_text(std::to_string(2 * settings_.timeout))});
        return connection;
    };
    if (!database_) {
        database_ = open(task_.database);
        database_->query("SELECT interlock.index_join($1, $2)",
                         {Param::of_text(task_.index), Param::of_text(task_.shard)});
    }
    if (!shard_) {
        shard_ = open(task_.shard);
        // A removal that a crash takes back is made again, without effect. Before a shard is told
        // to be drained, its removals are made durable: see passed_horizon().
        shard_->execute("SET synchronous_commit = off");
    }
    if (!last_error_.empty()) log_info("%s: connected", label().c_str());
    last_error_.clear();
}

void IndexConsumer::disconnect() {
    // What was seen of the shard counts as long as the sessions last.
    horizon_.reset();
    for (std::unique_ptr<ControlConnection> *connection : {&shard_, &database_})
        connection->reset();
}

/// One batch; whether there may be more records at once.
bool IndexConsumer::work() {
    if (idle_) {
        // One statement instead of a transaction, as long as nothing comes.
        if (shard_->query("SELECT interlock.outbox_oldest($1)", {Param::of_text(task_.index)})
                .is_null(0, 0))
            return false;
    }
    const Clock::time_point began = Clock::now();
    const BatchOutcome outcome = drain_batch(*shard_, *database_, request_);
    batch_took_ = elapsed(began);
    idle_ = outcome.taken == 0 || outcome.taken == outcome.failed.size();
    note(outcome);
    return outcome.taken == static_cast<std::size_t>(settings_.batch) && outcome.failed.empty();
}

void IndexConsumer::note(const BatchOutcome &outcome) {
    applied_ += outcome.applied;
    unreported_ += outcome.applied;
    unrotated_ += outcome.taken;
    if (outcome.parked_behind > 0) {
        parked_ += outcome.parked_behind;
        log_warning("%s: set aside %zu records whose key has a record set aside", label().c_str(),
                    outcome.parked_behind);
    }
    for (const FailedRecord &failed : outcome.failed) {
        if (failed.parked) {
            ++parked_;
            log_warning("%s: record %s of key %s cannot be applied and is set aside: %s; HINT: "
                        "mend the cause and run \"interlock index retry\"",
                        label().c_str(), failed.seq.c_str(), failed.key.c_str(),
                        failed.error.c_str());
        } else {
            log_info("%s: record %s of key %s could not be applied: %s", label().c_str(),
                     failed.seq.c_str(), failed.key.c_str(), failed.error.c_str());
        }
    }
    if (unrotated_ >= rotate_after) rotate();
}

void IndexConsumer::drain_once() {
    for (;;) {
        const BatchOutcome outcome = drain_batch(*shard_, *database_, request_);
        note(outcome);
        if (outcome.taken == 0) break;
        const std::lock_guard lock(mutex_);
        if (stopping_) break;
    }
    look_what_is_left();
    rotate();
    // What is written by now is drained if nobody else holds a part of it.
    if (!horizon_) (void)passed_horizon();
    const bool drained = passed_horizon();
    report(drained);
    if (drained) report(false);
}

/// Records that others hold are not waited for, nor are those that nobody can apply.
void IndexConsumer::look_what_is_left() {
    const Rows left =
        shard_->query("SELECT interlock.outbox_oldest($1) IS NOT NULL, pg_catalog.count(*) "
                      "FROM interlock.outbox_parked p WHERE p.stream OPERATOR(pg_catalog.=) $1",
                      {Param::of_text(task_.index)});
    aside_ = static_cast<std::uint64_t>(left.int64(0, 1));
    if (left.boolean(0, 0))
        log_warning("%s: records are left that another session has in hand, or that have come "
                    "just now",
                    label().c_str());
}

void IndexConsumer::keep_house() {
    const Clock::time_point now = Clock::now();
    if (now < next_house_) return;
    next_house_ = now + milliseconds(house_interval);
    if (unrotated_ > 0) rotate();
    // Without changes, it is not told every second that there are none.
    bool drained = false;
    if (horizon_ || unreported_ > 0 || now >= next_horizon_) {
        if (!horizon_) next_horizon_ = now + milliseconds(idle_interval);
        drained = passed_horizon();
    }
    if (drained || fence_pending_ || unreported_ > 0) {
        report(drained);
        fence_pending_ = drained;
    }
    if (now >= next_purge_) {
        if (next_purge_ != Clock::time_point{}) purge();
        next_purge_ = now + milliseconds(settings_.purge);
    }
    tell_lag();
}

/// Whether everything that was written before the horizon is applied. Sets a new one if there is
/// none.
bool IndexConsumer::passed_horizon() {
    const auto look = [this] {
        return shard_->query("SELECT l.last_seq, l.next_xid, l.oldest_xid FROM "
                             "interlock.outbox_last() l");
    };
    if (!horizon_) {
        std::string clock =
            database_->query("SELECT pg_catalog.clock_timestamp()::text").text(0, 0);
        const Rows last = look();
        horizon_ = Horizon{std::move(clock), last.text(0, 0),
                           static_cast<std::uint64_t>(last.int64(0, 1))};
        return false;
    }
    // No transaction that may have drawn a number before the horizon is still at work.
    if (static_cast<std::uint64_t>(look().int64(0, 2)) < horizon_->next_xid) return false;
    Param last_seq = Param::of_int8(0);
    last_seq.text = horizon_->last_seq;
    if (!shard_
             ->query("SELECT interlock.outbox_drained($1, $2)",
                     {Param::of_text(task_.index), last_seq})
             .boolean(0, 0))
        return false;
    // A crash of the shard must not bring a record back once tombstones rely on its being gone.
    ControlTransaction flush(*shard_);
    shard_->execute("SET LOCAL synchronous_commit = on");
    shard_->execute("SELECT pg_catalog.pg_logical_emit_message(true, 'interlock', '')");
    flush.commit();
    return true;
}

void IndexConsumer::report(bool drained) {
    Param clock = Param::null_text();
    Param last_seq = Param::null_text();
    if (drained) {
        clock.text = horizon_->clock;
        last_seq.text = horizon_->last_seq;
        horizon_.reset();
    }
    database_->query("SELECT interlock.index_report($1, $2, $3, $4, $5::pg_catalog.timestamptz, "
                     "$6::pg_catalog.int8)",
                     {Param::of_text(task_.index), Param::of_text(task_.shard),
                      Param::of_text(identity_),
                      Param::of_int8(static_cast<std::int64_t>(unreported_)), clock, last_seq});
    unreported_ = 0;
}

void IndexConsumer::rotate() {
    shard_->query("SELECT interlock.outbox_rotate($1)", {Param::of_text(task_.index)});
    unrotated_ = 0;
}

void IndexConsumer::purge() {
    std::int64_t removed = 0;
    for (;;) {
        const std::int64_t some =
            database_
                ->query("SELECT interlock.index_purge($1, $2)",
                        {Param::of_text(task_.index), Param::of_int4(purge_size)})
                .int64(0, 0);
        removed += some;
        if (some < purge_size) break;
    }
    if (removed > 0) log_debug("%s: removed %" PRId64 " tombstones", label().c_str(), removed);
}

void IndexConsumer::tell_lag() {
    const Clock::time_point now = Clock::now();
    const bool due = now >= next_tell_;
    if (!due && now < next_lag_warning_) return;
    const Rows oldest = shard_->query(
        "SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - interlock.outbox_oldest($1)) "
        "* 1000)::bigint",
        {Param::of_text(task_.index)});
    const std::int64_t lag = oldest.is_null(0, 0) ? 0 : oldest.int64(0, 0);
    if (lag > settings_.lag_warning && now >= next_lag_warning_) {
        log_warning("%s: the oldest record has waited for %" PRId64 " s", label().c_str(),
                    lag / 1000);
        next_lag_warning_ = now + milliseconds(settings_.lag_warning);
    }
    if (!due) return;
    const std::uint64_t applied = applied_;
    if (next_tell_ != Clock::time_point{} && applied != told_applied_)
        log_info("%s: %" PRIu64 " records in the last minute, lag %" PRId64 " ms", label().c_str(),
                 applied - told_applied_, lag);
    told_applied_ = applied;
    next_tell_ = now + milliseconds(tell_interval);
}

void IndexConsumer::tell_error(const ControlError &error) {
    const std::string text = one_line(error);
    const Clock::time_point now = Clock::now();
    if (text == last_error_ && now < next_error_) return;
    log_warning("%s: %s; trying again", label().c_str(), text.c_str());
    last_error_ = text;
    next_error_ = now + milliseconds(30000);
}

}  // namespace interlock
