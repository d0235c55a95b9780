// The command line of `interlock move`.
#include "tools/move_options.h"

#include <algorithm>
#include <charconv>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/setting_table.h"
#include "base/startup_error.h"
#include "tools/index_options.h"
#include "tools/move_command.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

constexpr std::int64_t default_batch = 16;

std::string text_of(const po::variables_map &given, const char *flag) {
    const auto found = given.find(flag);
    return found == given.end() ? std::string() : found->second.as<std::string>();
}

/// As take_duration(), but zero is allowed.
void take_time(const po::variables_map &given, const char *flag, std::int64_t &value) {
    if (text_of(given, flag) == "0")
        value = 0;
    else
        take_duration(given, flag, value);
}

MoveVerb verb_of(const po::variables_map &given) {
    MoveVerb verb = MoveVerb::move;
    std::string first;
    const auto take = [&](const char *flag, MoveVerb meant) {
        if (!given.count(flag)) return;
        if (!first.empty())
            throw StartupError("options \"--" + first + "\" and \"--" + flag +
                               "\" cannot be used together");
        first = flag;
        verb = meant;
    };
    take("plan", MoveVerb::plan);
    take("resume", MoveVerb::resume);
    take("abort", MoveVerb::abort);
    take("clean", MoveVerb::clean);
    take("status", MoveVerb::status);
    take("steps", MoveVerb::steps);
    return verb;
}

void take_keep_source(const po::variables_map &given, MoveRequest &request) {
    const std::string text = text_of(given, "keep-source");
    if (text.empty() || text == "0") return;
    if (text == "forever") {
        request.keep_source = -1;
        return;
    }
    const auto time = parse_duration(text);
    constexpr std::int64_t longest = std::int64_t{3650} * 24 * 3'600'000;
    if (!time || *time < 1000 || *time > longest)
        throw StartupError("option \"--keep-source\" must be \"forever\" or a duration from 1s to "
                           "3650d, not \"" +
                           text + "\"");
    request.keep_source = *time / 1000;
}

void take_verify(const po::variables_map &given, MoveRequest &request) {
    const std::string text = text_of(given, "verify");
    if (text == "before")
        request.verify = MoveVerify::before;
    else if (text == "after")
        request.verify = MoveVerify::after;
    else if (!text.empty() && text != "auto")
        throw StartupError("option \"--verify\" must be auto, before or after, not \"" + text +
                           "\"");
}

/// What names the move, or the moves.
void take_subject(const po::variables_map &given, const std::vector<std::string> &others,
                  MoveOptions &options) {
    MoveRequest &request = options.request;
    if (others.size() > 1) throw StartupError("more than one move is named");
    const bool by_id = options.verb == MoveVerb::resume || options.verb == MoveVerb::abort ||
                       options.verb == MoveVerb::clean || options.verb == MoveVerb::status;
    if (!others.empty() && !by_id)
        throw StartupError("unexpected argument \"" + others.front() + "\"",
                           "Options begin with -- ; --help lists them.");
    if (!others.empty()) request.id = others.front();
    if (options.verb == MoveVerb::abort && request.id.empty())
        throw StartupError("no move is named", "Use interlock move --abort ID; --status tells it.");
    if (options.verb == MoveVerb::steps) return;
    if (by_id) {
        for (const char *const flag : {"keyspace", "bucket", "from", "to"})
            if (given.count(flag))
                throw StartupError(std::string("option \"--") + flag + "\" has no meaning here",
                                   "A move that is recorded is named by its id.");
        return;
    }
    request.keyspace = text_of(given, "keyspace");
    request.from = text_of(given, "from");
    request.to = text_of(given, "to");
    if (request.to.empty())
        throw StartupError("no target is given",
                           request.from.empty() || given.count("bucket")
                               ? "Use interlock move --keyspace K --bucket B --to SHARD."
                               : "Use interlock move --from SHARD --to SHARD.");
    if (given.count("bucket")) {
        if (request.keyspace.empty())
            throw StartupError("no keyspace is given", "Use --keyspace K with --bucket.");
        request.buckets = parse_buckets(text_of(given, "bucket"));
        if (request.from == request.to)
            throw StartupError("buckets cannot be moved to the shard where they are");
        if (given.count("batch"))
            throw StartupError("option \"--batch\" has no meaning here",
                               "Buckets that are named are one move.");
    } else if (request.from.empty()) {
        throw StartupError("no buckets are given",
                           "Use --bucket B[,B,LO-HI...], or --from SHARD for all that it has.");
    } else {
        options.evacuate = true;
        if (request.from == request.to) throw StartupError("a shard cannot be emptied into itself");
    }
}

}  // namespace

std::vector<std::int32_t> parse_buckets(const std::string &text) {
    const auto wrong = [&] {
        return StartupError("option \"--bucket\" must be a list of buckets such as 3 or 0-5,9, "
                            "not \"" +
                            text + "\"");
    };
    std::vector<std::int32_t> buckets;
    const char *at = text.data();
    const char *const end = at + text.size();
    const auto number = [&] {
        std::int32_t value = -1;
        const auto [next, error] = std::from_chars(at, end, value);
        if (error != std::errc{} || value < 0 || value > 65535) throw wrong();
        at = next;
        return value;
    };
    for (;;) {
        const std::int32_t first = number();
        std::int32_t last = first;
        if (at != end && *at == '-') {
            ++at;
            last = number();
            if (last < first) throw wrong();
        }
        for (std::int32_t bucket = first; bucket <= last; ++bucket)
            buckets.push_back(bucket);
        if (at == end) break;
        if (*at++ != ',') throw wrong();
    }
    std::sort(buckets.begin(), buckets.end());
    buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
    return buckets;
}

po::options_description move_flags() {
    const auto text = [](const char *name) { return po::value<std::string>()->value_name(name); };
    po::options_description what("What is moved", 100, 50);
    what.add_options()("keyspace", text("K"), "keyspace of the buckets")(
        "bucket", text("LIST"), "buckets, such as 3 or 0-5,9: one move")("to", text("SHARD"),
                                                                         "where they go")(
        "from", text("SHARD"),
        "where they are; without --bucket all that it has, of K or of every keyspace")(
        "batch", text("N"), "buckets a move then, 1 to 65536 (16)");
    po::options_description instead("Instead of moving", 100, 50);
    instead.add_options()("plan", "check everything, tell what would be done, and do nothing")(
        "resume", "go on with move [ID], or with each that is not finished")(
        "abort", "take move ID back, if it is not decided")(
        "clean", "remove the rows that --keep-source has kept, of move [ID] or of each whose time "
                 "has come")("status", "tell how far the moves are: those not finished, or [ID]")(
        "steps", "print the steps of a move");
    po::options_description how("How", 100, 50);
    how.add_options()("max-pause", text("DURATION"),
                      "how long writers of the buckets may wait at most (3s)")(
        "grace", text("DURATION"), "how long transactions that only read are given to end (200ms)")(
        "tries", text("N"), "times to try to fence the buckets, before it is given up (10)")(
        "end-sessions", "end the sessions that hold the fence up, instead of trying again")(
        "verify", text("WHEN"),
        "compare both sides before the decision, after it, or before if that is quick (auto)")(
        "keep-source", text("DURATION"),
        "keep the rows on the source for that long, or \"forever\"; --clean removes them (0)")(
        "rate", text("N"), "rows copied, and removed, per second at most (no limit)")(
        "source-conninfo", text("CONNINFO"),
        "the source as the target's server reaches it (the catalog's connection string)")(
        "json", "progress and results as JSON, one object a line")(
        "timeout", text("DURATION"), "connecting, or one short query (5s)")(
        "lock-timeout", text("DURATION"), "waiting for a lock on a table (5s)")(
        "scan-timeout", text("DURATION"),
        "one statement that reads whole tables (1h)")("help,h", "this text");
    po::options_description flags("Options", 100, 50);
    add_catalog_flags(flags);
    return flags.add(what).add(instead).add(how);
}

MoveOptions parse_move_options(const std::vector<std::string> &args) {
    std::vector<std::string> others;
    const po::variables_map given = parse_flags(args, move_flags(), &others);
    MoveOptions options;
    options.verb = verb_of(given);
    options.json = given.count("json") != 0;
    options.batch = default_batch;
    take_number(given, "batch", 1, 65536, options.batch);
    take_subject(given, others, options);

    MoveRequest &request = options.request;
    take_time(given, "max-pause", request.max_pause);
    take_time(given, "grace", request.grace);
    if (request.max_pause < 1) throw StartupError("option \"--max-pause\" must be at least 1ms");
    if (request.max_pause > 3'600'000)
        throw StartupError("option \"--max-pause\" must be at most 1h", "A fence lasts no longer.");
    std::int64_t tries = request.tries;
    take_number(given, "tries", 1, 1'000'000, tries);
    request.tries = static_cast<int>(tries);
    take_number(given, "rate", 1, 1'000'000'000, request.rate);
    take_keep_source(given, request);
    take_verify(given, request);
    request.end_sessions = given.count("end-sessions") != 0;
    request.source_conninfo = text_of(given, "source-conninfo");
    take_duration(given, "lock-timeout", request.lock_timeout);
    take_duration(given, "scan-timeout", request.scan_timeout);
    if (options.verb == MoveVerb::steps) return options;
    const Settings settings = catalog_settings(given);
    request.catalog = settings.catalog_conninfo;
    request.query_timeout = settings.catalog_timeout;
    take_duration(given, "timeout", request.query_timeout);
    return options;
}

}  // namespace interlock
