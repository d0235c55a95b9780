#include "tools/apply.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/control.h"
#include "base/setting_table.h"
#include "base/settings_file.h"
#include "base/startup_error.h"
#include "tools/apply_catalog.h"
#include "tools/apply_index.h"
#include "tools/apply_model.h"
#include "tools/apply_plan.h"
#include "tools/apply_shard.h"
#include "tools/move_model.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

// Moves may be begun while others are driven to their end, and the catalog be edited in between.
constexpr int move_attempts = 5;
constexpr int edit_attempts = 5;

po::options_description apply_flags() {
    po::options_description flags("Options", 100, 50);
    add_catalog_flags(flags);
    flags.add_options()("plan", "print what would be done, and do nothing")(
        "timeout", po::value<std::string>()->value_name("DURATION"),
        "connecting, or one short query (default: catalog.timeout, 5s)")(
        "lock-timeout", po::value<std::string>()->value_name("DURATION"),
        "waiting for a lock on a table (default 5s)")(
        "scan-timeout", po::value<std::string>()->value_name("DURATION"),
        "one step that reads whole tables (default 1h)")("help,h", "this text");
    return flags;
}

struct Request {
    std::string catalog;
    bool plan_only = false;
    ApplyTimeouts timeouts;
};

Request parse_request(const std::vector<std::string> &args) {
    const po::variables_map given = parse_flags(args, apply_flags());
    const Settings settings = catalog_settings(given);
    Request request;
    request.catalog = settings.catalog_conninfo;
    request.plan_only = given.count("plan") != 0;
    request.timeouts.query = settings.catalog_timeout;
    take_duration(given, "timeout", request.timeouts.query);
    take_duration(given, "lock-timeout", request.timeouts.lock);
    take_duration(given, "scan-timeout", request.timeouts.scan);
    return request;
}

void tell(const char *label, const Finding &finding) {
    std::cerr << label << ":  " << finding.message << '\n';
    if (!finding.detail.empty()) std::cerr << "DETAIL:  " << finding.detail << '\n';
    if (!finding.hint.empty()) std::cerr << "HINT:  " << finding.hint << '\n';
}

std::string count_of(std::size_t number, const std::string &what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

/// Tells what becomes of the moves that have to be driven to their end first.
class MoveWitness : public MoveObserver {
  public:
    void switched(std::int32_t route_version, std::int64_t /*pause_ms*/) override {
        note("published as route version " + std::to_string(route_version));
    }
    void note(const std::string &text) override { std::cout << text << std::endl; }
};

/// The catalog, locked for this run, with no move having the next route version reserved. Such a
/// move is decided, and then nothing may be published before it, or is given up. With --plan, the
/// catalog as it is.
std::pair<std::unique_ptr<CatalogSession>, DesiredState> open_catalog(const Request &request) {
    for (int attempt = 1;; ++attempt) {
        auto catalog =
            std::make_unique<CatalogSession>(request.catalog, !request.plan_only, request.timeouts);
        std::string move = catalog->reserving_move();
        if (move.empty()) {
            DesiredState desired = catalog->read();
            move = desired.reserved_move;
            if (request.plan_only || move.empty()) return {std::move(catalog), std::move(desired)};
        }
        if (attempt == move_attempts)
            throw ApplyRefusal({"the next route version is reserved by move " + move,
                                "Others were driven to their end before it.",
                                "Run \"interlock apply\" again when no more moves are begun."});
        catalog.reset();
        MoveRequest access;
        access.catalog = request.catalog;
        access.query_timeout = request.timeouts.query;
        access.lock_timeout = request.timeouts.lock;
        access.scan_timeout = request.timeouts.scan;
        MoveWitness witness;
        finish_reserved_moves(access, witness);
    }
}

/// One run of the command, from connecting to the last word.
class Apply {
  public:
    /// Thrown by run() if the catalog was edited when it could be: another run has to begin anew.
    struct Edited {};

    explicit Apply(const Request &request) : request_(request) {
        std::tie(catalog_, desired_) = open_catalog(request);
    }

    int run() {
        std::vector<Finding> problems = check();
        for (const Finding &warning : check_leftovers(desired_, states_))
            tell("WARNING", warning);
        for (const Finding &warning : check_keysets(desired_, states_))
            tell("WARNING", warning);
        for (const Finding &warning : index_warnings(desired_, states_))
            tell("WARNING", warning);
        if (!problems.empty()) {
            if (desired_.reserved_version != 0) give_back_number();
            for (const Finding &problem : problems)
                tell("ERROR", problem);
            std::cerr << "interlock apply: refused, nothing was changed ("
                      << count_of(problems.size(), "problem") << ")\n";
            return 1;
        }
        const std::vector<Action> plan =
            make_plan(desired_, states_, changes_, catalog_->declarations_changed());
        publishes_ = std::any_of(plan.begin(), plan.end(), [](const Action &action) {
            return action.kind == ActionKind::publish;
        });
        if (plan.empty()) {
            take_back_number();
            catalog_->commit();
            std::cout << "nothing to do: " << matching(desired_.version) << std::endl;
            return 0;
        }
        print(plan);
        if (request_.plan_only) return 0;
        if (publishes_) reserve_number();
        return carry_out(plan);
    }

  private:
    /// Reads every shard and judges. Whatever is checked on the shards is checked in transactions
    /// that are rolled back here.
    std::vector<Finding> check() {
        for (std::size_t s = 0; s < desired_.shards.size(); ++s) {
            shards_.push_back(std::make_unique<ShardSession>(desired_, s, request_.timeouts));
            states_.push_back(shards_.back()->read());
        }
        std::vector<Finding> problems = check_shards(desired_, states_);
        // Who owns what can be told only if all the shards are there and are the right ones.
        const bool sound =
            std::all_of(states_.begin(), states_.end(),
                        [](const auto &state) { return state.known && state.findings.empty(); }) &&
            identities_match();
        if (sound) {
            const std::size_t before = problems.size();
            for (std::size_t k = 0; k < desired_.keyspaces.size(); ++k)
                changes_.push_back(check_ownership(desired_, k, states_, problems));
            if (problems.size() == before)
                for (std::size_t s = 0; s < shards_.size(); ++s)
                    shards_[s]->check_rows(states_[s], changes_, problems);
            check_global_indexes(problems);
        }
        for (const auto &shard : shards_)
            shard->end_checks();
        return problems;
    }

    void check_global_indexes(std::vector<Finding> &problems) {
        for (std::size_t s = 0; s < shards_.size(); ++s)
            shards_[s]->try_indexes(states_[s], problems);
        agree_on_indexes(desired_, states_, problems);
        for (std::size_t s = 0; s < shards_.size(); ++s)
            shards_[s]->try_index_tables(states_[s], problems);
        check_indexes(desired_, states_, problems);
    }

    bool identities_match() const {
        std::set<std::string> instances;
        for (std::size_t s = 0; s < states_.size(); ++s) {
            const ShardState &state = states_[s];
            if (!instances.insert(state.instance).second) return false;
            if (state.has_identity && (state.cluster_id != desired_.cluster_id ||
                                       state.shard_name != desired_.shards[s].name))
                return false;
        }
        return true;
    }

    void reserve_number() {
        try {
            if (catalog_->reserve(desired_.next_version())) return;
        } catch (...) {
            give_back_number();
            throw;
        }
        give_back_number();
        throw Edited{};
    }

    /// After a failure: nobody is held up by a number that no shard has raised its floor to.
    void give_back_number() {
        if (!request_.plan_only && !floor_ahead(desired_, states_) &&
            std::all_of(states_.begin(), states_.end(),
                        [](const ShardState &state) { return state.known; }))
            catalog_->give_back();
    }

    /// The number that an earlier run left reserved, if this one publishes nothing.
    void take_back_number() {
        if (!request_.plan_only && !publishes_ && desired_.reserved_version != 0)
            catalog_->withdraw();
    }

    void print(const std::vector<Action> &plan) const {
        if (!desired_.reserved_move.empty())
            std::cout << "would first drive move " << desired_.reserved_move
                      << " to its end, which has route version " << desired_.reserved_version
                      << " reserved\n";
        std::cout << (request_.plan_only ? "would do" : "plan") << " for cluster "
                  << desired_.cluster_name << ":\n";
        const int width = static_cast<int>(std::to_string(plan.size()).size());
        for (std::size_t i = 0; i < plan.size(); ++i) {
            std::cout.width(width + 2);
            std::cout << i + 1 << ". " << plan[i].text << '\n';
        }
        std::cout << std::flush;
    }

    int carry_out(const std::vector<Action> &plan) {
        std::int32_t version = desired_.version;
        take_back_number();
        for (std::size_t i = 0; i < plan.size(); ++i) {
            const Action &action = plan[i];
            try {
                if (action.shard != no_shard)
                    shards_[static_cast<std::size_t>(action.shard)]->carry_out(action);
                else if (action.kind == ActionKind::record_columns)
                    record_columns(action);
                else if (action.kind == ActionKind::make_cursor_key)
                    desired_.cursor_keys = catalog_->make_cursor_key();
                else if (action.kind == ActionKind::forget_index)
                    catalog_->forget_index(desired_.dropped_indexes[action.index].name);
                else
                    catalog_->publish(version = action.version);
                // What follows a publication is for when routers have been told of it.
                if (action.kind == ActionKind::publish || i + 1 == plan.size()) catalog_->commit();
            } catch (const ControlError &error) {
                return failed(plan, i, error);
            }
            std::cout << "done " << i + 1 << '/' << plan.size() << std::endl;
        }
        std::cout << "applied: " << matching(version) << std::endl;
        return 0;
    }

    void record_columns(const Action &action) {
        catalog_->record_columns(desired_.tables[action.table].id,
                                 columns_to_record(desired_, states_)[action.table]);
    }

    int failed(const std::vector<Action> &plan, std::size_t step, const ControlError &error) {
        const Action &action = plan[step];
        const auto told = [](const Action &done) {
            return done.kind == ActionKind::release_buckets || done.kind == ActionKind::publish;
        };
        if (publishes_ &&
            std::none_of(plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(step) + 1, told))
            give_back_number();
        std::string detail = error.detail;
        if (error.sqlstate == "55P03" && action.shard != no_shard) {
            const std::string holders =
                shards_[static_cast<std::size_t>(action.shard)]->lock_holders(action);
            detail += (detail.empty() || holders.empty() ? "" : " ") + holders;
        }
        tell("ERROR",
             {"step " + std::to_string(step + 1) + " failed: " + action.text + ": " + error.what(),
              detail, error.hint});
        std::cerr << "interlock apply: stopped after "
                  << (step == 0 ? "no step" : count_of(step, "step")) << " of " << plan.size()
                  << "; running it again goes on from there\n";
        return 1;
    }

    std::string matching(std::int32_t version) const {
        const auto databases = static_cast<std::size_t>(
            std::count_if(desired_.shards.begin(), desired_.shards.end(),
                          [](const DesiredShard &shard) { return shard.index_only; }));
        const bool one = desired_.shards.size() == 1;
        return count_of(desired_.shards.size() - databases, "shard") +
               (databases == 0 ? "" : " and " + count_of(databases, "index database")) +
               (one ? " matches" : " match") + " route version " + std::to_string(version);
    }

    const Request &request_;
    std::unique_ptr<CatalogSession> catalog_;
    DesiredState desired_;
    bool publishes_ = false;
    std::vector<std::unique_ptr<ShardSession>> shards_;
    std::vector<ShardState> states_;
    std::vector<OwnershipChange> changes_;
};

}  // namespace

int run_apply(const std::vector<std::string> &args) {
    const Request request = parse_request(args);
    try {
        for (int attempt = 1; attempt < edit_attempts; ++attempt) {
            try {
                return Apply(request).run();
            } catch (const Apply::Edited &) {
                std::cout << "the catalog was edited meanwhile: beginning anew" << std::endl;
            }
        }
        throw ApplyRefusal({"the catalog is being edited all the time",
                            {},
                            "Run \"interlock apply\" again when that has ended."});
    } catch (const ApplyRefusal &refusal) {
        tell("ERROR", refusal.finding);
    } catch (const ControlError &error) {
        tell("ERROR", {std::string("catalog: ") + error.what(), error.detail, error.hint});
    }
    std::cerr << "interlock apply: refused, nothing was changed\n";
    return 1;
}

std::string apply_help() {
    std::ostringstream out;
    out << "Usage: interlock apply [--plan] [-c FILE] --catalog CONNINFO [OPTION]...\n"
           "\n"
           "Makes the shards match the catalog: their identity, keyspaces, guards of the declared\n"
           "tables, the keys that sign cursors, and the buckets each owns; makes global indexes\n"
           "in their databases and has the shards record changes for them; then publishes the\n"
           "staged map as the next route version. Everything is checked first; if anything stands\n"
           "in the way, all of it is told and nothing is changed. A run that was interrupted is\n"
           "finished by another.\n"
           "\n"
           "Moves of buckets go on meanwhile. One that is about to be published is driven to its\n"
           "end first; if it has not been decided yet, its fence is given up, and it is gone on\n"
           "with by \"interlock move\".\n"
           "\n"
           "A bucket changes its shard only while it is empty. No rows are ever deleted; of an "
           "index\n"
           "that was dropped, the entries are, and what was recorded for it.\n"
           "\n"
           "The shards are connected to by their connection strings in the catalog and what libpq\n"
           "adds to them (PGUSER, the password file, ...), as the extension's owner or a "
           "superuser.\n"
           "\n"
        << apply_flags()
        << "\n"
           "  DURATION  a whole number and us, ms, s, min, h or d; without a unit, milliseconds\n"
           "\n"
           "Exit status: 0 done, nothing to do, or planned (--plan; also if there is something to\n"
           "do), 1 refused or failed, 2 the command line or the configuration file is wrong.\n";
    return out.str();
}

}  // namespace interlock
