#include "tools/move_command.h"

#include <algorithm>
#include <iostream>
#include <sstream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/bucket_set.h"
#include "tools/index_model.h"
#include "tools/index_options.h"
#include "tools/move_interrupt.h"
#include "tools/move_options.h"
#include "tools/move_progress.h"
#include "tools/move_steps.h"

namespace interlock {

namespace {

std::size_t terminal_columns() {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::unique_ptr<ControlConnection> connect_catalog(const MoveRequest &request) {
    try {
        return std::make_unique<ControlConnection>(request.catalog, "interlock move",
                                                   request.query_timeout);
    } catch (const ControlError &error) {
        throw ControlError(error.sqlstate, std::string("catalog: ") + error.what(), error.detail,
                           error.hint);
    }
}

/// Moves whose rows are kept at the source on purpose wait for nobody but --clean.
bool waits_for_clean(const Move &move) {
    return move.step == name_of(MoveStep::unsubscribed) &&
           move.options.find("\"keep_source\"") != std::string::npos &&
           move.options.find("\"keep_source\": 0") == std::string::npos;
}

/// Also sees to it that whoever interrupts a move is told how it is gone on with.
class CommandProgress : public MoveProgress {
  public:
    CommandProgress(MoveVerb verb, ProgressStyle style)
        : MoveProgress(std::cout, std::cerr, style, terminal_columns()), verb_(verb) {}

    void began(const Move &move, bool resumed) override {
        id_ = move.id;
        advise(move.step);
        MoveProgress::began(move, resumed);
    }
    void step(const std::string &name) override {
        advise(name);
        MoveProgress::step(name);
    }

  private:
    void advise(const std::string &step) {
        std::string text = "go on with it: interlock move --";
        if (verb_ == MoveVerb::abort || verb_ == MoveVerb::clean)
            text += (verb_ == MoveVerb::abort ? "abort " : "clean ") + id_;
        else if (move_step_named(step).value_or(MoveStep::planned) >= MoveStep::decided)
            text += "resume " + id_ + " (it is decided, and cannot be taken back)";
        else
            text += "resume " + id_ + "; or take it back: interlock move --abort " + id_;
        advise_interrupted(text);
    }

    MoveVerb verb_;
    std::string id_;
};

class Command {
  public:
    explicit Command(const MoveOptions &options)
        : options_(options),
          progress_(options.verb, options.json                   ? ProgressStyle::json
                                  : ::isatty(STDERR_FILENO) != 0 ? ProgressStyle::terminal
                                                                 : ProgressStyle::log) {}

    int run() {
        try {
            switch (options_.verb) {
            case MoveVerb::move:
                return options_.evacuate ? evacuate() : end(run_move(options_.request, progress_));
            case MoveVerb::resume: return resume();
            case MoveVerb::abort: return take_back();
            case MoveVerb::clean: return clean();
            default: return 0;
            }
        } catch (const ControlError &error) {
            return fail(error);
        }
    }

    int fail(const ControlError &bare) {
        const ControlError error =
            advised(bare, "Log in as a superuser of the catalog and of both shards.");
        progress_.failed(error);
        tell_failure(error);
        return 1;
    }

  private:
    int end(MoveResult result) {
        progress_.ended(result);
        return static_cast<int>(result);
    }

    void say(const std::string &text) {
        if (options_.json) return;
        progress_.clear_line();
        std::cout << text << std::endl;
    }

    /// One after the other; the first that does not end well is the last.
    int run_all(const std::vector<MoveRequest> &requests) {
        for (std::size_t i = 0; i < requests.size(); ++i) {
            if (requests.size() > 1)
                say("move " + std::to_string(i + 1) + " of " + std::to_string(requests.size()));
            try {
                const MoveResult result = run_move(requests[i], progress_);
                progress_.ended(result);
                if (result != MoveResult::done) return static_cast<int>(result);
            } catch (const MoveEnded &ended) {
                // It was unfinished when we looked which there are.
                say("move " + ended.id + " has ended meanwhile: " + ended.outcome);
            }
        }
        return 0;
    }

    int take_back() {
        const MoveResult result = abort_move(options_.request, progress_);
        say("taken back: the buckets stay where they are, and nothing of the move is left");
        return end(result);
    }

    int resume() {
        if (!options_.request.id.empty()) return end(run_move(options_.request, progress_));
        const auto catalog = connect_catalog(options_.request);
        std::vector<MoveRequest> requests;
        bool kept = false;
        for (const Move &move : read_moves(*catalog, true)) {
            if (waits_for_clean(move)) {
                kept = true;
                continue;
            }
            requests.push_back(options_.request);
            requests.back().id = move.id;
        }
        std::reverse(requests.begin(), requests.end());  // the oldest first
        if (requests.empty())
            say(kept ? "nothing to do: only rows that are kept are left, which --clean removes"
                     : "nothing to do: no move is unfinished");
        return run_all(requests);
    }

    /// First what an earlier run has left unfinished, then batches of what is left. The moves are
    /// made up anew from the routes each time: whatever stopped it, the same command goes on.
    int evacuate() {
        std::vector<MoveRequest> requests;
        {
            const auto catalog = connect_catalog(options_.request);
            const auto unfinished = read_moves(*catalog, true);
            for (const Move &move : unfinished) {
                if (move.from != options_.request.from || move.to != options_.request.to ||
                    waits_for_clean(move) ||
                    (!options_.request.keyspace.empty() &&
                     move.keyspace != options_.request.keyspace))
                    continue;
                requests.push_back(options_.request);
                requests.back().id = move.id;
            }
            std::reverse(requests.begin(), requests.end());
            for (MoveBatch &batch :
                 evacuation(*read_published_routes(*catalog), unfinished, options_)) {
                requests.push_back(options_.request);
                requests.back().keyspace = batch.keyspace;
                requests.back().buckets = std::move(batch.buckets);
            }
        }
        if (const int status = run_all(requests); status != 0) return status;
        require_empty();
        say("shard " + options_.request.from + " has no buckets" +
            (options_.request.keyspace.empty() ? std::string()
                                               : " of keyspace " + options_.request.keyspace) +
            " any more");
        return 0;
    }

    /// Those of moves to another shard were left alone, and others may come to this one.
    void require_empty() {
        const auto catalog = connect_catalog(options_.request);
        const auto unfinished = read_moves(*catalog, true);
        const auto routes = read_published_routes(*catalog);
        const std::vector<std::string> others = moves_of_others(unfinished, options_);
        if (others.empty() && evacuation(*routes, {}, options_).empty()) return;
        std::string detail;
        for (const std::string &other : others)
            detail += (detail.empty() ? "" : " ") + other;
        throw ControlError("55000", "shard \"" + options_.request.from + "\" is not empty",
                           others.empty()
                               ? "It has been given buckets meanwhile, or was not left in peace."
                               : detail,
                           others.empty() ? "Run the command again."
                                          : "When those are finished, run the command again.");
    }

    int clean() {
        const std::size_t cleaned = clean_moves(options_.request, progress_);
        say(cleaned == 0 ? std::string("nothing to do: no move has rows to remove yet")
                         : "cleaned up after " + std::to_string(cleaned) +
                               (cleaned == 1 ? " move" : " moves"));
        return 0;
    }

    const MoveOptions &options_;
    CommandProgress progress_;
};

int print_steps() {
    for (const std::string_view name : move_step_names)
        std::cout << name << '\n';
    return 0;
}

}  // namespace

std::vector<std::string> moves_of_others(const std::vector<Move> &unfinished,
                                         const MoveOptions &options) {
    const MoveRequest &request = options.request;
    std::vector<std::string> texts;
    for (const Move &move : unfinished) {
        if (!request.keyspace.empty() && move.keyspace != request.keyspace) continue;
        // Where the buckets have been handed over already, only rows are left.
        const bool over =
            move_step_named(move.step).value_or(MoveStep::planned) >= MoveStep::routed;
        const bool leaves = move.from == request.from && move.to != request.to && !over;
        const bool comes = move.to == request.from && !over;
        if (leaves || comes)
            texts.push_back("Move " + move.id + " takes " + buckets_phrase(move.buckets) +
                            " of keyspace \"" + move.keyspace + "\" from shard \"" + move.from +
                            "\" to shard \"" + move.to + "\".");
    }
    return texts;
}

std::vector<MoveBatch> evacuation(const RouteTable &routes, const std::vector<Move> &unfinished,
                                  const MoveOptions &options) {
    std::vector<MoveBatch> batches;
    const auto shard =
        std::find_if(routes.shards.begin(), routes.shards.end(), [&](const Shard &candidate) {
            return candidate.name == options.request.from && !candidate.index_only;
        });
    if (shard == routes.shards.end()) throw unknown_shard(routes, options.request.from);
    const auto index = static_cast<ShardIndex>(shard - routes.shards.begin());
    bool known = options.request.keyspace.empty();
    for (const Keyspace &keyspace : routes.keyspaces) {
        if (!options.request.keyspace.empty() && keyspace.name != options.request.keyspace)
            continue;
        known = true;
        std::vector<std::int32_t> buckets;
        for (std::int32_t bucket = 0; bucket < keyspace.buckets; ++bucket) {
            if (keyspace.owner[static_cast<std::size_t>(bucket)] != index) continue;
            const bool moving =
                std::any_of(unfinished.begin(), unfinished.end(), [&](const Move &move) {
                    return move.keyspace == keyspace.name &&
                           std::binary_search(move.buckets.begin(), move.buckets.end(), bucket);
                });
            if (!moving) buckets.push_back(bucket);
        }
        const auto size = static_cast<std::size_t>(options.batch);
        for (std::size_t first = 0; first < buckets.size(); first += size) {
            const auto begin = buckets.begin() + static_cast<std::ptrdiff_t>(first);
            batches.push_back({keyspace.name,
                               {begin, begin + static_cast<std::ptrdiff_t>(
                                                   std::min(size, buckets.size() - first))}});
        }
    }
    if (!known) throw unknown_keyspace(routes, options.request.keyspace);
    return batches;
}

int run_move_command(const std::vector<std::string> &args) {
    const MoveOptions options = parse_move_options(args);
    if (options.verb == MoveVerb::steps) return print_steps();
    try {
        if (options.verb == MoveVerb::status) return show_moves(options);
        if (options.verb == MoveVerb::plan) return show_plan(options);
    } catch (const ControlError &error) {
        return Command(options).fail(error);
    }
    answer_interrupts();
    return Command(options).run();
}

std::string move_help() {
    std::ostringstream out;
    out << "Usage: interlock move [OPTION]... --keyspace K --bucket LIST --to SHARD\n"
           "       interlock move [OPTION]... [--keyspace K] --from SHARD --to SHARD\n"
           "       interlock move [OPTION]... --plan (as above)\n"
           "       interlock move [OPTION]... --resume [ID] | --abort ID | --clean [ID]\n"
           "       interlock move [OPTION]... --status [ID] | --steps\n"
           "\n"
           "Moves buckets to another shard while they are read and written: the rows are copied,\n"
           "changes follow by logical replication, then the source hands the buckets over. "
           "Nothing\n"
           "is lost whatever happens: until the source has decided, it owns them; from then on "
           "the\n"
           "target does. Writers of the buckets wait for some tenths of a second; clients see no\n"
           "error but a serialization failure (40001) in a transaction that is in the middle of "
           "it.\n"
           "\n"
           "Everything is checked first; what stands in the way is told at once, with the "
           "statement\n"
           "that mends it. A move that was interrupted is gone on with by the same command, or by\n"
           "--resume; it can be taken back (--abort) until it is decided. With --from and without\n"
           "--bucket a shard is emptied, some buckets at a time.\n"
           "\n"
        << move_flags()
        << "\n"
           "  DURATION  a whole number and us, ms, s, min, h or d; without a unit, milliseconds\n"
           "  ID        of a move, or its first characters, at least four\n"
           "\n"
           "The shards are connected to by their connection strings in the catalog and what libpq\n"
           "adds to them (PGUSER, the password file, ...), as a superuser. The target's server\n"
           "connects to the source's by itself, with the same connection string or that of\n"
           "--source-conninfo.\n"
           "\n"
           "Exit status: 0 done (or planned: nothing stands in the way); 1 refused or failed; 2 "
           "the\n"
           "command line or the configuration file is wrong; 3 given up without harm: the buckets\n"
           "could not be fenced in time, or their writers had not ended.\n";
    return out.str();
}

}  // namespace interlock
