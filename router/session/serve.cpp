#include "session/serve.h"

#include "base/command_line.h"
#include "base/log.h"
#include "route/catalog_watcher.h"
#include "session/client_auth.h"
#include "session/line_client.h"
#include "session/listener.h"
#include "session/pg_client.h"
#include "session/worker.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/lsan_interface.h>
#define INTERLOCK_LEAK_CHECK
#endif
#endif

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <future>
#include <optional>
#include <sys/resource.h>
#include <sys/signalfd.h>

namespace interlock {

namespace {

// Files, signals and the catalog's own connection need a few descriptors beside clients and pools.
constexpr std::size_t spare_descriptors = 64;

// Clients must not use up the descriptors that connections to shards need.
void fit_clients_to_descriptors(Settings &settings) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max == RLIM_INFINITY) return;
    const std::size_t descriptors = limit.rlim_max;
    const std::size_t reserved =
        std::min(descriptors / 2, spare_descriptors + 16 * settings.pool_size);
    const std::size_t room = descriptors - reserved;
    const std::size_t line = settings.line_listen.empty() ? 0 : settings.max_clients;
    const std::size_t pg = settings.pg_listen.empty() ? 0 : settings.pg_max_clients;
    if (line + pg <= room) return;
    // Each keeps its share.
    const auto lower = [&](const char *name, std::size_t &limit_of, std::size_t wanted) {
        if (wanted == 0) return;
        const std::size_t share = std::max<std::size_t>(1, room * wanted / (line + pg));
        log_warning("%s is lowered from %zu to %zu: the limit of open files is %zu", name, wanted,
                    share, descriptors);
        limit_of = share;
    };
    lower("line.max_clients", settings.max_clients, line);
    lower("pg.max_clients", settings.pg_max_clients, pg);
}

class Server {
  public:
    Server(Settings settings, ReloadSettings reload)
        : worker_(loop_, fitted(std::move(settings))), reload_(std::move(reload)) {}

    int run() {
        if (!start()) return 1;
        loop_.run();
        // Not by returning: the watcher's thread, or one that connects, may be waiting for a server
        // that does not answer. Nothing needs to be saved.
        check_for_leaks();
        stop_now();
    }

  private:
    static Settings fitted(Settings settings) {
        fit_clients_to_descriptors(settings);
        return settings;
    }

    bool start() {
        sigset_t signals;
        sigemptyset(&signals);
        for (const int signal : {SIGTERM, SIGINT, SIGHUP})
            sigaddset(&signals, signal);
        // Before any thread is started, so that all of them inherit it.
        ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
        signals_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));

        if (!worker_.settings().pg_listen.empty()) {
            auto client_auth = ClientAuth::create(loop_, worker_.settings());
            if (!client_auth) {
                log_error("%s", client_auth.error().c_str());
                return false;
            }
            worker_.client_auth = std::move(*client_auth);
        }

        const Settings &settings = worker_.settings();
        if (!listen("line listener", settings.line_listen,
                    [this](UniqueFd socket) { accept_line_client(worker_, std::move(socket)); }) ||
            !listen("PostgreSQL listener", settings.pg_listen,
                    [this](UniqueFd socket) { accept_pg_client(pg_, std::move(socket)); }))
            return false;
        spawn(handle_signals());
        start_watcher();
        return true;
    }

    bool listen(const char *what, const std::string &address, Listener::Accept accept) {
        if (address.empty()) return true;
        auto listener = Listener::open(loop_, address, std::move(accept));
        if (!listener) {
            log_error("%s", listener.error().c_str());
            return false;
        }
        spawn((*listener)->run());
        log_info("interlock %s: %s on %s", INTERLOCK_VERSION, what, address.c_str());
        listeners_.push_back(std::move(*listener));
        return true;
    }

    void start_watcher() {
        CatalogEvents events;
        events.replaced = [this](std::shared_ptr<const RouteTable> table) {
            loop_.post([this, table = std::move(table)] { worker_.use_table(table); });
        };
        events.settled = [this] {
            // A loop that is behind, or ending, is not waited for long: a mover has its own
            // patience.
            auto reached = std::make_shared<std::promise<void>>();
            auto done = reached->get_future();
            loop_.post([reached] { reached->set_value(); });
            (void)done.wait_for(std::chrono::milliseconds(500));
        };
        events.rejected = [this](std::int32_t version, std::string why) {
            loop_.post([this, version, why = std::move(why)] {
                worker_.catalog.rejected_version = version;
                worker_.catalog.rejected_why = why;
            });
        };
        events.reachable = [this](bool reachable, std::string error) {
            loop_.post([this, reachable, error = std::move(error)] {
                worker_.catalog.reachable = reachable;
                worker_.catalog.error = error;
                if (!reachable) worker_.wake_route_waiters();
            });
        };
        events.looked = [this](std::uint64_t number) {
            loop_.post([this, number] { worker_.catalog_looked(number); });
        };
        const Settings &settings = worker_.settings();
        watcher_ = std::make_unique<CatalogWatcher>(settings.catalog_conninfo,
                                                    settings.catalog_poll_interval,
                                                    settings.catalog_timeout, std::move(events));
        worker_.look_at_catalog = [this] { return watcher_->look_now(); };
    }

    Task<void> handle_signals() {
        signals_watch_.emplace(loop_, signals_.get());
        Millis deadline = never;
        for (;;) {
            const Fired fired = co_await Wait(loop_, deadline).read(*signals_watch_);
            if (fired.none()) {
                log_warning("shutdown: %zu clients were still connected after %lld ms",
                            worker_.client_count(),
                            static_cast<long long>(worker_.settings().shutdown_timeout));
                stop_now();
            }
            signalfd_siginfo info{};
            while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
                if (info.ssi_signo == SIGHUP) reload_settings();
                if (info.ssi_signo == SIGINT) {
                    log_info("received SIGINT: stopping now");
                    stop_now();
                }
                if (info.ssi_signo == SIGTERM && worker_.stopping()) {
                    log_info("received SIGTERM again: stopping now");
                    stop_now();
                }
                if (info.ssi_signo == SIGTERM) {
                    log_info("received SIGTERM: finishing transactions in progress");
                    deadline = deadline_after(loop_.now(), worker_.settings().shutdown_timeout);
                    for (const auto &listener : listeners_)
                        listener->close();
                    worker_.stop_soon([this] { spawn(stop_when_drained()); });
                }
            }
        }
    }

    // What nobody waits for any more still runs on the shards, and holds locks there.
    Task<void> stop_when_drained() {
        log_info("shutdown: all clients are done");
        ScatterCounters &scatters = *worker_.scatters;
        while (scatters.draining > 0) {
            scatters.drained.reset();
            co_await Wait(loop_, never).event(scatters.drained);
        }
        loop_.stop();
    }

    // The process ends without leaving main(), which is where LeakSanitizer would look.
    static void check_for_leaks() {
#if defined(INTERLOCK_LEAK_CHECK)
        if (__lsan_do_recoverable_leak_check() != 0) std::_Exit(99);
#endif
    }

    // Nothing needs saving: closing the connections makes the shards roll back.
    [[noreturn]] static void stop_now() {
        std::_Exit(0);
    }

    void reload_settings() {
        Settings fresh;
        std::string error;
        if (!reload_(fresh, error)) {
            log_error("configuration not reloaded, the old settings stay: %s", error.c_str());
            return;
        }
        for (const std::string &name : restart_needed(worker_.settings(), fresh))
            log_warning("setting %s takes effect at the next start", name.c_str());
        keep_restart_settings(worker_.settings(), fresh);
        worker_.replace_settings(fitted(std::move(fresh)));
        apply_log_level(worker_.settings());
        if (worker_.client_auth) worker_.client_auth->reload(worker_.settings());
        watcher_->set_intervals(worker_.settings().catalog_poll_interval,
                                worker_.settings().catalog_timeout);
        log_info("configuration reloaded");
    }

  public:
    static void apply_log_level(const Settings &settings) {
        LogLevel level = LogLevel::info;
        if (parse_log_level(settings.log_level, level)) set_log_level(level);
    }

  private:
    Loop loop_;
    Worker worker_;
    PgShared pg_{worker_};
    ReloadSettings reload_;
    UniqueFd signals_;
    std::optional<Watch> signals_watch_;
    std::vector<std::unique_ptr<Listener>> listeners_;
    std::unique_ptr<CatalogWatcher> watcher_;
};

}  // namespace

int serve(Settings settings, ReloadSettings reload) {
    Server::apply_log_level(settings);
    try {
        // Coroutines that still wait when the loop has stopped (pools' connection attempts, the
        // signal handler) refer to the server: it is not destroyed, the process ends.
        static Server *server = nullptr;
        server = new Server(std::move(settings), std::move(reload));
        return server->run();
    } catch (const std::exception &error) {
        log_error("could not start: %s", error.what());
        return 1;
    }
}

}  // namespace interlock
