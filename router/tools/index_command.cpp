#include "tools/index_command.h"

#include <array>
#include <charconv>
#include <iostream>
#include <sstream>
#include <string_view>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/log.h"
#include "base/startup_error.h"
#include "tools/index_model.h"
#include "tools/index_options.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

struct Part {
    std::string_view name;
    int (*run)(const std::vector<std::string> &args);
};

constexpr std::array<Part, 5> parts{{{"run", run_index_consumers},
                                     {"backfill", run_index_backfill},
                                     {"status", run_index_status},
                                     {"retry", run_index_retry},
                                     {"discard", run_index_discard}}};

}  // namespace

po::options_description index_flags() {
    po::options_description flags("Options", 100, 50);
    add_catalog_flags(flags);
    flags.add_options()("timeout", po::value<std::string>()->value_name("DURATION"),
                        "connecting to a shard or index database, or one statement there (30s)")(
        "help,h", "this text");
    return flags;
}

IndexAccess::IndexAccess(const po::variables_map &given) {
    const Settings settings = catalog_settings(given);
    catalog = settings.catalog_conninfo;
    catalog_timeout = settings.catalog_timeout;
    poll_interval = settings.catalog_poll_interval;
    take_duration(given, "timeout", timeout);
}

std::unique_ptr<ControlConnection> IndexAccess::connect() const {
    try {
        return std::make_unique<ControlConnection>(catalog, "interlock index", catalog_timeout);
    } catch (const ControlError &error) {
        throw ControlError(error.sqlstate, std::string("catalog: ") + error.what(), error.detail,
                           error.hint);
    }
}

std::shared_ptr<const RouteTable> IndexAccess::routes() const {
    return read_published_routes(*connect());
}

void take_number(const po::variables_map &given, const char *flag, std::int64_t least,
                 std::int64_t most, std::int64_t &value) {
    const auto found = given.find(flag);
    if (found == given.end()) return;
    const std::string text = found->second.as<std::string>();
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        throw StartupError(std::string("option \"--") + flag + "\" must be from " +
                           std::to_string(least) + " to " + std::to_string(most) + ", not \"" +
                           text + "\"");
    value = number;
}

const GlobalIndex &require_published(const RouteTable &routes, const std::string &name) {
    if (const GlobalIndex *const found = routes.find_index(name)) return *found;
    std::string names;
    for (const GlobalIndex &index : routes.indexes)
        names += (names.empty() ? "" : ", ") + index.name;
    throw ControlError("42704", "index \"" + name + "\" is not published",
                       names.empty() ? "No index is published." : "Published are: " + names + ".",
                       "Create it in the catalog with interlock.create_index(), then run "
                       "\"interlock apply\".");
}

std::string json_string(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\')
            out += {'\\', c};
        else if (static_cast<unsigned char>(c) < 0x20)
            out += format("\\u%04x", c);
        else
            out += c;
    }
    return out + '"';
}

void tell_failure(const ControlError &error) {
    std::cerr << "ERROR:  " << error.what() << '\n';
    if (!error.detail.empty()) std::cerr << "DETAIL:  " << error.detail << '\n';
    if (!error.hint.empty()) std::cerr << "HINT:  " << error.hint << '\n';
}

int run_index(const std::vector<std::string> &args) {
    auto run = parts[0].run;
    std::vector<std::string> rest = args;
    for (const Part &part : parts) {
        if (args.empty() || args.front() != part.name) continue;
        run = part.run;
        rest.erase(rest.begin());
    }
    try {
        return run(rest);
    } catch (const ControlError &error) {
        tell_failure(error);
        return 1;
    }
}

std::string index_help() {
    std::ostringstream out;
    out << "Usage: interlock index [run] [OPTION]... [NAME...]\n"
           "       interlock index backfill [OPTION]... NAME\n"
           "       interlock index status [OPTION]... [NAME...]\n"
           "       interlock index retry [OPTION]... NAME [SEQ...]\n"
           "       interlock index discard [OPTION]... NAME SEQ...\n"
           "\n"
           "run       brings the changes of all shards into the named indexes (or all), until it "
           "is\n"
           "          told to stop. Any number of these processes may run, on any machines: a\n"
           "          record is applied at least once, an older change never overwrites a newer "
           "one.\n"
           "          The catalog is watched: indexes and shards may come and go.\n"
           "backfill  makes entries of the rows that were there before the index, beside writers\n"
           "          and consumers, and then marks the index ready: the next \"interlock apply\"\n"
           "          publishes that. One that was interrupted goes on where it was.\n"
           "status    backlog, lag, rate, records set aside and backfill, of each shard\n"
           "retry     puts records that were set aside back into the outbox: all, or these\n"
           "discard   forgets records that were set aside; \"interlock repair\" mends the index\n"
           "\n"
        << index_flags() << '\n'
        << index_run_flags() << '\n'
        << index_backfill_flags() << '\n'
        << index_status_flags() << '\n'
        << index_parked_flags()
        << "\n"
           "  DURATION  a whole number and us, ms, s, min, h or d; without a unit, milliseconds\n"
           "\n"
           "Logins are those of the connection strings in the catalog and what libpq adds to them\n"
           "(PGUSER, the password file, ...). They need interlock.grant_consumer() on the shards,\n"
           "interlock.grant_indexer() in the index database and interlock.grant_router() in the\n"
           "catalog; backfill reads the table, too, and marks the index in the catalog.\n"
           "\n"
           "Signals: SIGTERM and SIGINT end it after the batch in progress.\n"
           "\n"
           "Exit status: 0 done, or ended as told; 1 failed (run --once: an outbox could not be\n"
           "drained; status: a database did not answer); 2 the command line or the configuration\n"
           "file is wrong; 3 (run --once) drained, but records were set aside.\n";
    return out.str();
}

}  // namespace interlock
