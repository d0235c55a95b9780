// The program: finds the command, runs it, and turns what stops it into an exit status.
#include <array>
#include <csignal>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/command_line.h"
#include "base/setting_table.h"
#include "base/startup_error.h"
#include "session/serve.h"
#include "tools/apply.h"
#include "tools/explain.h"
#include "tools/index_command.h"
#include "tools/lint.h"
#include "tools/move_command.h"
#include "tools/placement_command.h"
#include "tools/rebalance_command.h"
#include "tools/repair.h"

namespace {

using interlock::StartupError;
using Arguments = std::vector<std::string>;

enum Status : int { ok = 0, failed = 1, usage = 2 };

int run_serve(const Arguments &args) {
    const interlock::Settings settings = interlock::load_settings(args);
    return interlock::serve(settings, [args](interlock::Settings &fresh, std::string &error) {
        return interlock::reload_settings(args, fresh, error);
    });
}

struct Command {
    std::string_view name;
    std::string_view summary;
    int (*run)(const Arguments &args);
    std::string (*help)();
};

constexpr std::array<Command, 9> commands{{
    {"serve", "run the router", run_serve, interlock::serve_help},
    {"apply", "make the shards match the catalog and publish the staged map", interlock::run_apply,
     interlock::apply_help},
    {"move", "move buckets to another shard while they are written", interlock::run_move_command,
     interlock::move_help},
    {"rebalance", "plan moves of buckets that even the shards out", interlock::run_rebalance,
     interlock::rebalance_help},
    {"index", "bring changes into global indexes; backfill, status", interlock::run_index,
     interlock::index_help},
    {"repair", "compare a global index with the rows, and mend it", interlock::run_repair,
     interlock::repair_help},
    {"explain", "tell what the router would do with a statement", interlock::run_explain,
     interlock::explain_help},
    {"lint", "judge the statements of a file", interlock::run_lint, interlock::lint_help},
    {"placement", "print the buckets of keys", interlock::run_placement, interlock::placement_help},
}};

const Command &find_command(const std::string &name) {
    std::vector<std::string> names;
    for (const Command &command : commands) {
        if (command.name == name) return command;
        names.emplace_back(command.name);
    }
    const std::string near = interlock::nearest_name(name, names);
    throw StartupError("unknown command \"" + name + "\"",
                       near.empty() ? "\"interlock --help\" lists the commands."
                                    : "did you mean " + near + "?");
}

void print_help() {
    std::cout << "Interlock: sharding for PostgreSQL that refuses to be silently wrong.\n"
                 "\n"
                 "Usage: interlock COMMAND [OPTION]...\n"
                 "       interlock help COMMAND\n"
                 "       interlock --version\n"
                 "\n"
                 "Commands:\n";
    for (const Command &command : commands) {
        std::cout.setf(std::ios::left);
        std::cout << "  ";
        std::cout.width(12);
        std::cout << command.name << command.summary << '\n';
    }
    std::cout
        << "\n"
           "Exit status: 0 done, 1 refused or failed, 2 the command line or the configuration\n"
           "file is wrong; what else there is, a command's own help tells.\n";
}

bool asks_for_help(const Arguments &args) {
    for (const std::string &arg : args)
        if (arg == "--help" || arg == "-h") return true;
    return false;
}

int run(const Arguments &args) {
    if (args.empty())
        throw StartupError("no command is given", "\"interlock --help\" lists the commands.");
    const std::string &first = args.front();
    const Arguments rest(args.begin() + 1, args.end());
    if (first == "--version" || first == "-V") {
        std::cout << "interlock " INTERLOCK_VERSION "\n";
        return ok;
    }
    if (first == "--help" || first == "-h" || (first == "help" && rest.empty())) {
        print_help();
        return ok;
    }
    const Command &command = find_command(first == "help" ? rest.front() : first);
    if (first == "help" || asks_for_help(rest)) {
        std::cout << command.help();
        return ok;
    }
    return command.run(rest);
}

}  // namespace

int main(int argc, char **argv) {
    // A reader that has gone (interlock apply | head) must not end a command in the middle.
    std::signal(SIGPIPE, SIG_IGN);
    try {
        return run(Arguments(argv + std::min(argc, 1), argv + argc));
    } catch (const StartupError &error) {
        std::cerr << "interlock: " << error.what() << '\n';
        return usage;
    } catch (const std::exception &error) {
        std::cerr << "interlock: " << error.what() << '\n';
        return failed;
    }
}
