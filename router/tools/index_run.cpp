// `interlock index run`: a consumer for each index and shard of the route version in force.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <map>
#include <mutex>
#include <set>

#include <boost/program_options.hpp>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <system_error>
#include <unistd.h>

#include "base/command_line.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/startup_error.h"
#include "route/catalog_watcher.h"
#include "tools/index_consumer.h"
#include "tools/index_options.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

/// Consumers by index and shard, as the newest routes want them.
class Consumers {
  public:
    Consumers(std::vector<std::string> names, const ConsumerSettings &settings)
        : names_(std::move(names)), settings_(settings), event_(::eventfd(0, EFD_CLOEXEC)) {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGINT);
        // Before there is any thread: all of them inherit it.
        ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
        signals_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC));
        if (!event_.valid() || !signals_.valid())
            throw std::system_error(errno, std::generic_category(), "could not create an event");
    }

    int run_until_told(const IndexAccess &access) {
        CatalogEvents events;
        events.replaced = [this](std::shared_ptr<const RouteTable> routes) {
            const std::lock_guard lock(mutex_);
            newest_ = std::move(routes);
            wake();
        };
        events.rejected = [](std::int32_t, const std::string &) {};
        events.reachable = [](bool, const std::string &) {};
        const CatalogWatcher watcher(access.catalog, access.poll_interval, access.catalog_timeout,
                                     std::move(events));
        while (!wait()) {
            std::erase_if(obsolete_, [](const auto &consumer) { return consumer->ended(); });
            if (auto routes = take_newest()) follow(std::move(routes));
        }
        log_info("told to end: finishing the batches in progress");
        return stop_or_leave(0);
    }

    int run_once(std::shared_ptr<const RouteTable> routes) {
        for (const std::string &name : names_)
            (void)require_published(*routes, name);
        follow(std::move(routes));
        bool told = false;
        while (!told && at_work())
            told = wait();
        if (told) return stop_or_leave(1);
        bool drained = true;
        std::uint64_t applied = 0, parked = 0, aside = 0;
        for (const auto &[key, consumer] : consumers_) {
            drained = drained && consumer->succeeded();
            applied += consumer->applied();
            parked += consumer->parked();
            aside += consumer->aside();
        }
        stop_all();
        log_info("applied %llu records, set aside %llu", static_cast<unsigned long long>(applied),
                 static_cast<unsigned long long>(parked));
        if (aside > 0)
            log_warning("%llu records are set aside: see \"interlock index status\"",
                        static_cast<unsigned long long>(aside));
        return !drained ? 1 : aside > 0 ? 3 : 0;
    }

  private:
    using Key = std::pair<std::string, std::string>;

    void wake() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
    }

    std::shared_ptr<const RouteTable> take_newest() {
        const std::lock_guard lock(mutex_);
        return std::move(newest_);
    }

    /// Waits for something to happen; whether it was a signal to end.
    bool wait() {
        pollfd fds[2] = {{event_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
        (void)::poll(fds, 2, -1);
        if (fds[0].revents != 0) {
            std::uint64_t count = 0;
            [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
        }
        return fds[1].revents != 0;
    }

    bool wanted(const std::string &name) const {
        return names_.empty() || std::find(names_.begin(), names_.end(), name) != names_.end();
    }

    void follow(std::shared_ptr<const RouteTable> routes) {
        std::map<Key, ConsumerTask> tasks;
        for (const GlobalIndex &index : routes->indexes) {
            if (!wanted(index.name)) continue;
            const Shard &database = routes->shards[index.database];
            for (const Shard &shard : routes->shards)
                if (!shard.index_only)
                    tasks[{index.name, shard.name}] = {index.name,        shard.name,
                                                       shard.conninfo,    database.name,
                                                       database.conninfo, routes->cluster_id};
        }
        // They end when they can; nothing waits for them, since a database may be silent.
        for (auto entry = consumers_.begin(); entry != consumers_.end();) {
            auto &[key, consumer] = *entry;
            const auto task = tasks.find(key);
            if (task != tasks.end() && task->second == consumer->task()) {
                ++entry;
                continue;
            }
            log_info("index %s, shard %s: no longer consumed", key.first.c_str(),
                     key.second.c_str());
            consumer->stop();
            obsolete_.push_back(std::move(consumer));
            entry = consumers_.erase(entry);
        }
        for (auto &[key, task] : tasks) {
            const auto found = consumers_.find(key);
            if (found != consumers_.end()) {
                found->second->set_routes(routes);
                continue;
            }
            log_info("index %s, shard %s: consuming", key.first.c_str(), key.second.c_str());
            consumers_[key] =
                std::make_unique<IndexConsumer>(task, routes, settings_, [this] { wake(); });
        }
        for (const std::string &name : names_)
            if (routes->find_index(name) == nullptr)
                log_warning("index %s is not published in route version %d", name.c_str(),
                            routes->version);
        if (names_.empty() && routes->indexes.empty())
            log_info("route version %d has no indexes", routes->version);
    }

    bool at_work() const {
        return std::any_of(consumers_.begin(), consumers_.end(),
                           [](const auto &entry) { return !entry.second->ended(); }) ||
               std::any_of(obsolete_.begin(), obsolete_.end(),
                           [](const auto &consumer) { return !consumer->ended(); });
    }

    /// Ends with the batches in progress, if that does not take too long: a database that does not
    /// answer, or another signal, ends it without. Crashing is safe at any point, so is this.
    int stop_or_leave(int status) {
        for (const auto &[key, consumer] : consumers_)
            consumer->stop();
        signalfd_siginfo info{};
        [[maybe_unused]] const auto got = ::read(signals_.get(), &info, sizeof info);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        for (;;) {
            if (!at_work()) {
                stop_all();
                return status;
            }
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                deadline - std::chrono::steady_clock::now());
            pollfd fds[2] = {{event_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
            if (left.count() > 0) (void)::poll(fds, 2, static_cast<int>(left.count()));
            if (fds[1].revents != 0 || left.count() <= 0) break;
            std::uint64_t count = 0;
            if (fds[0].revents != 0) [[maybe_unused]]
                const auto read = ::read(event_.get(), &count, sizeof count);
        }
        log_warning("batches in progress are left; they will be done again");
        ::_exit(status);
    }

    void stop_all() {
        for (const auto &[key, consumer] : consumers_)
            consumer->stop();
        consumers_.clear();
        obsolete_.clear();
    }

    const std::vector<std::string> names_;
    const ConsumerSettings settings_;
    UniqueFd event_;
    UniqueFd signals_;
    std::mutex mutex_;
    std::shared_ptr<const RouteTable> newest_;
    std::map<Key, std::unique_ptr<IndexConsumer>> consumers_;
    std::vector<std::unique_ptr<IndexConsumer>> obsolete_;  ///< told to stop
};

}  // namespace

po::options_description index_run_flags() {
    po::options_description flags("Options of run", 100, 50);
    flags.add_options()("batch", po::value<std::string>()->value_name("N"),
                        "records of a shard applied at a time, 1 to 100000 (2000)")(
        "poll", po::value<std::string>()->value_name("DURATION"),
        "how often an empty outbox is looked at (50ms)")(
        "max-tries", po::value<std::string>()->value_name("N"),
        "tries of a record before it is set aside, 1 to 1000 (5)")(
        "purge-interval", po::value<std::string>()->value_name("DURATION"),
        "how often entries of deleted rows are removed that nothing needs any more (1min)")(
        "lag-warning", po::value<std::string>()->value_name("DURATION"),
        "age of the oldest record from which on it is logged as a warning (1min)")(
        "once", "apply what is there, and end");
    return flags;
}

int run_index_consumers(const std::vector<std::string> &args) {
    po::options_description flags = index_flags();
    flags.add(index_run_flags());
    std::vector<std::string> names;
    const po::variables_map given = parse_flags(args, flags, &names);
    ConsumerSettings settings;
    std::int64_t batch = settings.batch;
    std::int64_t max_tries = settings.max_tries;
    take_number(given, "batch", 1, 100000, batch);
    take_number(given, "max-tries", 1, 1000, max_tries);
    settings.batch = static_cast<std::int32_t>(batch);
    settings.max_tries = static_cast<std::int32_t>(max_tries);
    take_duration(given, "poll", settings.poll);
    take_duration(given, "purge-interval", settings.purge);
    take_duration(given, "lag-warning", settings.lag_warning);
    settings.once = given.count("once") != 0;
    const IndexAccess access(given);
    settings.timeout = access.timeout;

    Consumers consumers(std::move(names), settings);
    return settings.once ? consumers.run_once(access.routes()) : consumers.run_until_told(access);
}

}  // namespace interlock
