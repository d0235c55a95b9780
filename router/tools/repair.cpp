#include "tools/repair.h"

#include <charconv>
#include <iostream>
#include <sstream>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/startup_error.h"
#include "tools/repair_run.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

po::options_description repair_flags() {
    po::options_description flags("Options", 100, 50);
    add_catalog_flags(flags);
    flags.add_options()("apply", "mend what is wrong; without it, nothing is changed")(
        "scope", po::value<std::string>()->value_name("JSON"),
        "only rows with these values of scope columns, e.g. '{\"merchant_id\": 3}'")(
        "shard", po::value<std::string>()->value_name("NAME"), "only rows of this shard's buckets")(
        "rate", po::value<std::string>()->value_name("ROWS"),
        "rows to compare a second, at most (default: as many as it can)")(
        "chunk", po::value<std::string>()->value_name("ROWS"),
        "rows to compare at a time (default 5000)")(
        "restart", "begin anew where an earlier run was interrupted")(
        "wait", po::value<std::string>()->value_name("DURATION"),
        "at the end, for changes that were on their way (default 3s)")(
        "json", "one JSON object a line: differences, progress, and last the report")(
        "verbose,v", "show every difference, not only the first 20")(
        "timeout", po::value<std::string>()->value_name("DURATION"),
        "connecting, or one short query (default: catalog.timeout, 5s)")(
        "scan-timeout", po::value<std::string>()->value_name("DURATION"),
        "one query that reads many rows (default 10min)")("help,h", "this text");
    return flags;
}

template <typename Number>
void take_number(const po::variables_map &given, const char *flag, Number most, Number &value) {
    const auto found = given.find(flag);
    if (found == given.end()) return;
    const std::string text = found->second.as<std::string>();
    Number number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < 1 || number > most)
        throw StartupError(std::string("option \"--") + flag + "\" must be from 1 to " +
                           std::to_string(most) + ", not \"" + text + "\"");
    value = number;
}

RepairRequest parse_request(const std::vector<std::string> &args) {
    std::vector<std::string> names;
    const po::variables_map given = parse_flags(args, repair_flags(), &names);
    if (names.size() != 1)
        throw StartupError(names.empty() ? "no index is given" : "more than one index is given",
                           "Use interlock repair INDEX.");
    RepairRequest request;
    request.index = names.front();
    const Settings settings = catalog_settings(given);
    request.catalog = settings.catalog_conninfo;
    request.apply = given.count("apply") != 0;
    request.restart = given.count("restart") != 0;
    request.json = given.count("json") != 0;
    request.verbose = given.count("verbose") != 0;
    if (given.count("scope")) {
        request.scope = given["scope"].as<std::string>();
        if (request.scope.empty()) throw StartupError("option \"--scope\" must not be empty");
    }
    if (given.count("shard")) request.shard = given["shard"].as<std::string>();
    take_number<std::int64_t>(given, "rate", 1'000'000'000, request.rate);
    take_number<std::int32_t>(given, "chunk", 100'000, request.chunk);
    take_duration(given, "wait", request.wait);
    request.timeouts.query = settings.catalog_timeout;
    take_duration(given, "timeout", request.timeouts.query);
    take_duration(given, "scan-timeout", request.timeouts.scan);
    return request;
}

}  // namespace

int run_repair(const std::vector<std::string> &args) {
    const RepairRequest request = parse_request(args);
    try {
        return RepairCommand(request).run();
    } catch (const ControlError &error) {
        std::cout.flush();
        std::cerr << "ERROR:  " << error.what() << '\n';
        if (!error.detail.empty()) std::cerr << "DETAIL:  " << error.detail << '\n';
        if (!error.hint.empty()) std::cerr << "HINT:  " << error.hint << '\n';
    }
    std::cerr << "interlock repair: stopped; running it again goes on from there\n";
    return 1;
}

std::string repair_help() {
    std::ostringstream out;
    out << "Usage: interlock repair INDEX [--apply] [-c FILE] --catalog CONNINFO [OPTION]...\n"
           "\n"
           "Compares a global index with the rows on the shards, and reports rows without an "
           "entry\n"
           "(missing) and entries without a row, or with other values (stale). With --apply it "
           "also\n"
           "mends them. It may run beside writers, consumers, readers and moves: a difference "
           "that\n"
           "is only a change on its way is not reported (it counts as pending if it still is at "
           "the\n"
           "end). A run that was interrupted is gone on with by another of the same kind.\n"
           "\n"
           "The last line of --json is the report: {\"event\": \"report\", \"scanned\": ..., "
           "\"entries\":\n"
           "..., \"missing\": ..., \"stale\": ..., \"mended\": ..., \"pending\": ..., "
           "\"left\": ..., ...}.\n"
           "\n"
        << repair_flags()
        << "\n"
           "  DURATION  a whole number and us, ms, s, min, h or d; without a unit, milliseconds\n"
           "\n"
           "Exit status: 0 nothing is wrong, or all of it is mended; 1 failed; 2 the command "
           "line or\n"
           "the configuration file is wrong; 3 there are differences (with --apply: some are "
           "left).\n";
    return out.str();
}

}  // namespace interlock
