// `interlock index backfill`: entries of the rows that were there before the index.
#include <csignal>
#include <cstdio>
#include <ctime>
#include <future>
#include <iostream>

#include <boost/program_options.hpp>
#include <unistd.h>

#include "base/command_line.h"
#include "base/log.h"
#include "base/startup_error.h"
#include "tools/index_backfill.h"
#include "tools/index_options.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

using std::chrono::steady_clock;

struct Request {
    std::string name;
    std::int64_t rate = 0;
    std::int64_t chunk = 2000;
    bool restart = false;
    bool json = false;
};

/// One run of the command.
class Backfill {
  public:
    Backfill(const IndexAccess &access, const Request &request)
        : access_(access), request_(request), throttle_(request.rate), began_(steady_clock::now()) {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGINT);
        ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before there is any thread
        signals_ = signals;
    }

    int run() {
        require_rights();
        const std::unique_ptr<ControlConnection> lock = take_lock();
        bool restart = request_.restart;
        for (;;) {
            const std::vector<Part> parts = parts_to_do(*lock, restart);
            if (parts.empty()) break;
            if (!fill(parts)) {
                std::cerr << "interlock index backfill: stopped after " << counters_.read.load()
                          << " rows; running it again goes on from there\n";
                return 1;
            }
            restart = false;
        }
        // First, so that nobody takes what is read now for enough later on.
        lock->query("SELECT interlock.index_backfill_end($1)", {Param::of_text(request_.name)});
        const std::unique_ptr<ControlConnection> catalog = access_.connect();
        catalog->query("SELECT interlock.index_ready($1)", {Param::of_text(request_.name)});
        finish();
        return 0;
    }

  private:
    struct Part {
        std::string shard;
        bool restart;
    };

    /// Hours of reading must not end in a refusal.
    void require_rights() {
        const std::unique_ptr<ControlConnection> catalog = access_.connect();
        const Rows rights = catalog->query(
            "SELECT pg_catalog.has_function_privilege(p.oid, 'EXECUTE'), CURRENT_USER "
            "FROM (SELECT 'interlock.index_ready(text, boolean)'::pg_catalog.regprocedure) AS "
            "p(oid)");
        if (rights.boolean(0, 0)) return;
        throw ControlError(
            "42501", "catalog: \"" + rights.text(0, 1) + "\" may not mark indexes as ready", {},
            "In the catalog, run: SELECT interlock.grant_indexer('" + rights.text(0, 1) + "');");
    }

    std::unique_ptr<ControlConnection> take_lock() {
        const auto routes = access_.routes();
        const GlobalIndex &index = require_published(*routes, request_.name);
        auto database = open_member(*routes, index.database, "interlock index", access_.timeout);
        (void)read_index_model(routes, request_.name, *database);
        if (!database
                 ->query("SELECT interlock.index_try_backfill($1)", {Param::of_text(request_.name)})
                 .boolean(0, 0))
            throw ControlError("55006",
                               "another backfill of index \"" + request_.name + "\" is at work", {},
                               "Wait until it has ended.");
        return database;
    }

    /// Shards that are not read to their end, and those that have got buckets since they began to
    /// be: what came with such a bucket may have been missed on both shards. Those of a run that is
    /// complete, too, if the index is not ready: changes may have gone unrecorded since.
    std::vector<Part> parts_to_do(ControlConnection &database, bool restart) {
        const std::unique_ptr<ControlConnection> catalog = access_.connect();
        const auto routes = read_published_routes(*catalog);
        const IndexModel model = read_index_model(routes, request_.name, database);
        const bool ready = is_ready(*catalog);
        std::vector<Part> parts;
        for (const ShardIndex shard : model.shards) {
            const std::string &name = model.member(shard).name;
            const Rows state = database.query(
                "SELECT route_version, finished IS NOT NULL, complete FROM "
                "interlock.index_backfill "
                "WHERE index OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2",
                {Param::of_text(request_.name), Param::of_text(name)});
            if (restart || state.empty()) {
                parts.push_back({name, restart});
                continue;
            }
            if (!ready && state.boolean(0, 2)) {
                parts.push_back({name, true});
                continue;
            }
            const bool gained =
                catalog
                    ->query("SELECT EXISTS (SELECT FROM interlock.route r "
                            "JOIN interlock.keyspace k ON k.id OPERATOR(pg_catalog.=) r.keyspace "
                            "JOIN interlock.shard s ON s.id OPERATOR(pg_catalog.=) r.shard "
                            "WHERE k.name OPERATOR(pg_catalog.=) $1 AND s.name "
                            "OPERATOR(pg_catalog.=) $2 AND r.valid_to IS NULL AND r.valid_from "
                            "OPERATOR(pg_catalog.>) $3)",
                            {Param::of_text(model.keyspace().name), Param::of_text(name),
                             Param::of_int4(state.int32(0, 0))})
                    .boolean(0, 0);
            if (gained || !state.boolean(0, 1)) parts.push_back({name, gained});
        }
        return parts;
    }

    bool is_ready(ControlConnection &catalog) const {
        const Rows index = catalog.query("SELECT ready FROM interlock.indexes "
                                         "WHERE name OPERATOR(pg_catalog.=) $1",
                                         {Param::of_text(request_.name)});
        return !index.empty() && index.boolean(0, 0);
    }

    /// A thread for each. False: told to stop. Throws what one of them failed with.
    bool fill(const std::vector<Part> &parts) {
        const std::int64_t chunk =
            request_.rate == 0 ? request_.chunk
                               : std::clamp<std::int64_t>(request_.rate / 4, 1, request_.chunk);
        std::vector<std::future<bool>> threads;
        for (const Part &part : parts)
            threads.push_back(std::async(std::launch::async, [&, part] {
                return ShardBackfill(access_, request_.name, part.shard,
                                     static_cast<std::int32_t>(chunk), part.restart, throttle_,
                                     counters_)
                    .run();
            }));
        const auto at_work = [&] {
            for (const std::future<bool> &thread : threads)
                if (thread.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
                    return true;
            return false;
        };
        while (at_work()) {
            const timespec patience{0, 100'000'000};
            if (::sigtimedwait(&signals_, nullptr, &patience) > 0) counters_.stop = true;
            show_progress();
        }
        bool whole = true;
        std::optional<ControlError> failure;
        for (std::future<bool> &thread : threads) {
            try {
                whole = thread.get() && whole;
            } catch (const ControlError &error) {
                failure = error;
            }
        }
        end_line();
        if (failure) throw *failure;
        return whole;
    }

    double seconds() const {
        return std::chrono::duration<double>(steady_clock::now() - began_).count();
    }

    std::string numbers() const {
        return format("\"rows\":%lld,\"entered\":%lld,\"estimate\":%lld,\"seconds\":%.1f,"
                      "\"rows_per_second\":%.0f",
                      static_cast<long long>(counters_.before + counters_.read),
                      static_cast<long long>(counters_.entered),
                      static_cast<long long>(counters_.estimate), seconds(), rate());
    }

    double rate() const {
        const double time = seconds();
        return time > 0 ? static_cast<double>(counters_.read) / time : 0;
    }

    void show_progress() {
        const steady_clock::time_point now = steady_clock::now();
        const bool terminal = ::isatty(STDERR_FILENO) != 0;
        if (now < next_progress_) return;
        next_progress_ = now + std::chrono::seconds(request_.json || terminal ? 1 : 30);
        if (request_.json) {
            std::cout << "{\"event\":\"progress\",\"index\":" << json_string(request_.name) << ','
                      << numbers() << "}" << std::endl;
        }
        const std::int64_t done = counters_.before + counters_.read;
        const std::int64_t all = counters_.estimate;
        const std::string line = format(
            "index %s: %lld of about %lld rows (%lld %%), %.0f rows/s", request_.name.c_str(),
            static_cast<long long>(done), static_cast<long long>(std::max(all, done)),
            static_cast<long long>(all > 0 ? std::min<std::int64_t>(100, done * 100 / all) : 0),
            rate());
        if (terminal) {
            std::fprintf(stderr, "\r%s\033[K", line.c_str());
            line_open_ = true;
        } else if (!request_.json && counters_.read > 0) {
            log_info("%s", line.c_str());
        }
    }

    void end_line() {
        if (line_open_) std::fputc('\n', stderr);
        line_open_ = false;
    }

    void finish() {
        if (request_.json) {
            std::cout << "{\"event\":\"done\",\"index\":" << json_string(request_.name) << ','
                      << numbers() << "}" << std::endl;
            return;
        }
        std::cout << "index " << request_.name << " is filled: " << counters_.read.load()
                  << " rows read, " << counters_.entered.load()
                  << " entries made\n"
                     "Run \"interlock apply\" so that pages are answered from it, and \"interlock "
                     "index\" to keep it up to date.\n";
    }

    const IndexAccess &access_;
    const Request &request_;
    Throttle throttle_;
    BackfillCounters counters_;
    const steady_clock::time_point began_;
    steady_clock::time_point next_progress_{};
    sigset_t signals_;
    bool line_open_ = false;
};

}  // namespace

po::options_description index_backfill_flags() {
    po::options_description flags("Options of backfill", 100, 50);
    flags.add_options()("rate", po::value<std::string>()->value_name("N"),
                        "rows read per second at most, of all shards together (no limit)")(
        "chunk", po::value<std::string>()->value_name("N"),
        "rows at a time, 1 to 100000 (2000)")("restart", "read every shard from its beginning")(
        "json", "progress and the result as JSON, one object a line");
    return flags;
}

int run_index_backfill(const std::vector<std::string> &args) {
    po::options_description flags = index_flags();
    flags.add(index_backfill_flags());
    std::vector<std::string> names;
    const po::variables_map given = parse_flags(args, flags, &names);
    if (names.size() != 1)
        throw StartupError(names.empty() ? "no index is named" : "more than one index is named",
                           "Use interlock index backfill NAME.");
    Request request;
    request.name = names.front();
    take_number(given, "rate", 1, 1'000'000'000, request.rate);
    take_number(given, "chunk", 1, 100000, request.chunk);
    request.restart = given.count("restart") != 0;
    request.json = given.count("json") != 0;
    const IndexAccess access(given);
    return Backfill(access, request).run();
}

}  // namespace interlock
