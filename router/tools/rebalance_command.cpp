#include "tools/rebalance_command.h"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <set>
#include <sstream>
#include <tuple>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/control.h"
#include "base/startup_error.h"
#include "tools/bucket_set.h"
#include "tools/index_model.h"
#include "tools/index_options.h"
#include "tools/move_model.h"
#include "tools/rebalance_options.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

po::options_description rebalance_flags() {
    po::options_description flags("Options", 100, 50);
    add_catalog_flags(flags);
    flags.add_options()("plan", "print what to do; it is done by the commands that are printed")(
        "by", po::value<std::string>()->value_name("WHAT"),
        "rows (default), bytes or load")("keyspace", po::value<std::string>()->value_name("NAME"),
                                         "only this one; default: all of them together")(
        "tolerance", po::value<std::string>()->value_name("PERCENT"),
        "how far a shard may be from its share (default 5%)")(
        "weights", po::value<std::string>()->value_name("SHARD=N,..."),
        "shares of the shards, 1 if not given; 0 empties a shard")(
        "sample", po::value<std::string>()->value_name("PERCENT"),
        "of the tables' pages, read instead of all of them")(
        "observe", po::value<std::string>()->value_name("DURATION"),
        "how long the load is observed (default 60s)")("json", "one JSON object")(
        "timeout", po::value<std::string>()->value_name("DURATION"),
        "connecting, or one short query (default 5s)")(
        "scan-timeout", po::value<std::string>()->value_name("DURATION"),
        "reading one table of one shard (default 1h)")("help,h", "this text");
    return flags;
}

[[noreturn]] void refuse(const char *flag, const std::string &text, const char *what) {
    throw StartupError(std::string("option \"--") + flag + "\" must be " + what + ", not \"" +
                       text + "\"");
}

double number_of(const char *flag, const std::string &text, double most, const char *what) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || !(number >= 0) ||
        !(number <= most))
        refuse(flag, text, what);
    return number;
}

double percent_of(const po::variables_map &given, const char *flag, double otherwise) {
    if (!given.count(flag)) return otherwise;
    std::string text = given[flag].as<std::string>();
    if (!text.empty() && text.back() == '%') text.pop_back();
    return number_of(flag, text, 100, "a percentage from 0 to 100");
}

std::map<std::string, double> weights_of(const po::variables_map &given) {
    std::map<std::string, double> weights;
    if (!given.count("weights")) return weights;
    const std::string all = given["weights"].as<std::string>();
    const char *const form = "a list like s0=1,s1=2.5 that names no shard twice";
    std::istringstream in(all);
    for (std::string one; std::getline(in, one, ',');) {
        const std::size_t equals = one.find('=');
        if (equals == std::string::npos || equals == 0) refuse("weights", all, form);
        const double weight = number_of("weights", one.substr(equals + 1), 1e6, form);
        if (!weights.emplace(one.substr(0, equals), weight).second) refuse("weights", all, form);
    }
    return weights;
}

/// As one word of a shell's command line.
std::string shell_word(const std::string &text) {
    if (!text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz"
                                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                "_-./:,=@%+") == std::string::npos)
        return text;
    std::string quoted = "'";
    for (const char c : text)
        quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

std::string catalog_flags(const po::variables_map &given) {
    std::string flags;
    if (given.count("config")) flags += " -c " + shell_word(given["config"].as<std::string>());
    if (given.count("catalog"))
        flags += " --catalog " + shell_word(given["catalog"].as<std::string>());
    return flags;
}

RebalanceOptions parse_options(const std::vector<std::string> &args) {
    const po::variables_map given = parse_flags(args, rebalance_flags());
    if (!given.count("plan"))
        throw StartupError("option \"--plan\" is missing",
                           "The plan is carried out by the commands that it prints.");
    const Settings settings = catalog_settings(given);
    RebalanceOptions options;
    options.catalog = settings.catalog_conninfo;
    options.catalog_flags = catalog_flags(given);
    options.request.query_timeout = settings.catalog_timeout;
    take_duration(given, "timeout", options.request.query_timeout);
    take_duration(given, "scan-timeout", options.request.scan_timeout);
    if (given.count("keyspace")) options.request.keyspace = given["keyspace"].as<std::string>();
    if (given.count("by")) {
        const std::string by = given["by"].as<std::string>();
        if (by == "bytes")
            options.request.by = BalanceBy::bytes;
        else if (by == "load")
            options.request.by = BalanceBy::load;
        else if (by != "rows")
            refuse("by", by, "rows, bytes or load");
    }
    if (given.count("observe") && options.request.by != BalanceBy::load)
        throw StartupError("option \"--observe\" is for \"--by load\" only");
    take_duration(given, "observe", options.request.observe);
    options.tolerance = percent_of(given, "tolerance", 5) / 100;
    options.request.sample = percent_of(given, "sample", 100);
    if (options.request.sample == 0)
        refuse("sample", given["sample"].as<std::string>(), "more than nothing");
    options.weights = weights_of(given);
    options.json = given.count("json") != 0;
    return options;
}

/// One run of the command.
class Planner {
  public:
    explicit Planner(const RebalanceOptions &options)
        : options_(options),
          catalog_(options.catalog, "interlock rebalance", options.request.query_timeout),
          routes_(read_published_routes(catalog_)), position_(routes_->shards.size()) {}

    Rebalance run() {
        choose_shards();
        read_pinned();
        const BucketSizes sizes = measure_buckets(*routes_, options_.request);
        std::vector<double> weights;
        for (const RebalancedShard &shard : result_.shards)
            weights.push_back(shard.weight);
        add_buckets(sizes);
        result_.plan = plan_balance(weights, buckets_, options_.tolerance);
        group_moves();
        return std::move(result_);
    }

  private:
    void choose_shards() {
        if (!options_.request.keyspace.empty() &&
            std::none_of(routes_->keyspaces.begin(), routes_->keyspaces.end(),
                         [this](const Keyspace &keyspace) {
                             return keyspace.name == options_.request.keyspace;
                         }))
            throw unknown_keyspace(*routes_, options_.request.keyspace);
        std::set<std::string> known;
        double all = 0;
        for (std::size_t s = 0; s < routes_->shards.size(); ++s) {
            const Shard &shard = routes_->shards[s];
            if (shard.index_only) continue;
            const auto weight = options_.weights.find(shard.name);
            position_[s] = result_.shards.size();
            result_.shards.push_back(
                {shard.name, weight == options_.weights.end() ? 1 : weight->second, 0, 0});
            all += result_.shards.back().weight;
            known.insert(shard.name);
        }
        for (const auto &[name, weight] : options_.weights)
            if (!known.count(name))
                throw ControlError("42704",
                                   "shard \"" + name +
                                       "\", of which a weight is given, is not published as one",
                                   {}, "\"interlock apply\" publishes shards that were added.");
        if (all == 0) throw ControlError("22023", "all shards have the weight 0");
        const Rows staged =
            catalog_.query("SELECT name FROM interlock.shard WHERE role = 'shard' ORDER BY name");
        for (int row = 0; row < staged.size(); ++row)
            if (!known.count(staged.text(row, 0)))
                result_.notes.push_back("shard \"" + staged.text(row, 0) +
                                        "\" is left out: it is not published yet (run "
                                        "\"interlock apply\")");
    }

    /// Buckets whose place is somebody else's to say: of unfinished moves, and staged elsewhere.
    void read_pinned() {
        for (std::size_t k = 0; k < routes_->keyspaces.size(); ++k)
            pinned_.emplace_back(routes_->keyspaces[k].owner.size(), -1);
        const auto pin = [this](const std::string &keyspace, std::int32_t bucket,
                                const std::string &shard) {
            for (std::size_t k = 0; k < pinned_.size(); ++k)
                if (routes_->keyspaces[k].name == keyspace &&
                    static_cast<std::size_t>(bucket) < pinned_[k].size())
                    for (std::size_t s = 0; s < result_.shards.size(); ++s)
                        if (result_.shards[s].name == shard)
                            pinned_[k][static_cast<std::size_t>(bucket)] = static_cast<int>(s);
        };
        for (const Move &move : read_moves(catalog_, true)) {
            for (const std::int32_t bucket : move.buckets)
                pin(move.keyspace, bucket, move.to);
            result_.notes.push_back(buckets_phrase(move.buckets) + " of keyspace \"" +
                                    move.keyspace + "\" counted where move " + move.id +
                                    " brings " + (move.buckets.size() == 1 ? "it" : "them"));
        }
        const Rows staged = catalog_.query(
            "SELECT k.name, s.name, pg_catalog.array_to_string(pg_catalog.array_agg(a.bucket "
            "  ORDER BY a.bucket), ',') "
            "FROM interlock.assignment a JOIN interlock.keyspace k ON k.id = a.keyspace "
            "  JOIN interlock.shard s ON s.id = a.shard "
            "  JOIN interlock.route r ON r.keyspace = a.keyspace AND r.bucket = a.bucket "
            "    AND r.valid_to IS NULL AND r.shard <> a.shard "
            "GROUP BY 1, 2 ORDER BY 1, 2");
        for (int row = 0; row < staged.size(); ++row) {
            std::vector<std::int32_t> buckets;
            std::istringstream in(staged.text(row, 2));
            for (std::string one; std::getline(in, one, ',');)
                buckets.push_back(std::stoi(one));
            for (const std::int32_t bucket : buckets)
                pin(staged.text(row, 0), bucket, staged.text(row, 1));
            result_.notes.push_back(buckets_phrase(buckets) + " of keyspace \"" +
                                    staged.text(row, 0) +
                                    "\" counted where interlock.assign() has staged " +
                                    (buckets.size() == 1 ? "it" : "them") + ", on shard \"" +
                                    staged.text(row, 1) + "\"");
        }
    }

    void add_buckets(const BucketSizes &sizes) {
        for (std::size_t k = 0; k < sizes.size(); ++k)
            for (std::size_t b = 0; b < sizes[k].size(); ++b) {
                const int pinned = pinned_[k][b];
                const std::size_t owner = position_[routes_->keyspaces[k].owner[b]];
                buckets_.push_back({pinned < 0 ? owner : static_cast<std::size_t>(pinned),
                                    sizes[k][b], pinned >= 0});
                names_.emplace_back(k, static_cast<std::int32_t>(b));
                ++result_.shards[buckets_.back().shard].buckets_before;
            }
        for (RebalancedShard &shard : result_.shards)
            shard.buckets_after = shard.buckets_before;
    }

    void group_moves() {
        std::map<std::tuple<std::size_t, std::size_t, std::size_t>, RebalanceMove> moves;
        for (const BalanceMove &move : result_.plan.moves) {
            const auto &[keyspace, bucket] = names_[move.bucket];
            RebalanceMove &one = moves[{keyspace, move.from, move.to}];
            one.buckets.push_back(bucket);
            one.size += buckets_[move.bucket].size;
            --result_.shards[move.from].buckets_after;
            ++result_.shards[move.to].buckets_after;
        }
        for (auto &[key, move] : moves) {
            const auto &[keyspace, from, to] = key;
            move.keyspace = routes_->keyspaces[keyspace].name;
            move.from = result_.shards[from].name;
            move.to = result_.shards[to].name;
            move.command = "interlock move" + options_.catalog_flags + " --keyspace " +
                           shell_word(move.keyspace) + " --bucket " +
                           format_buckets(move.buckets, move.buckets.size()) + " --to " + move.to;
            result_.moves.push_back(std::move(move));
        }
    }

    const RebalanceOptions &options_;
    ControlConnection catalog_;
    std::shared_ptr<const RouteTable> routes_;
    std::vector<std::size_t> position_;     ///< of the routes' shards in result_.shards
    std::vector<std::vector<int>> pinned_;  ///< by keyspace and bucket: to which shard; -1: not
    std::vector<BalanceBucket> buckets_;
    std::vector<std::pair<std::size_t, std::int32_t>> names_;  ///< of buckets_: keyspace, bucket
    Rebalance result_;
};

}  // namespace

int run_rebalance(const std::vector<std::string> &args) {
    const RebalanceOptions options = parse_options(args);
    try {
        const Rebalance rebalance = Planner(options).run();
        std::cout << (options.json ? rebalance_json(options, rebalance)
                                   : rebalance_text(options, rebalance))
                  << std::flush;
        return 0;
    } catch (const ControlError &error) {
        if (error.sqlstate == "IL102")
            tell_failure(ControlError(error.sqlstate,
                                      "buckets changed their shard while they were measured",
                                      error.what(), "Run the command again."));
        else
            tell_failure(advised(error, "Log in as a superuser, or as the extension's owner."));
        return 1;
    }
}

std::string rebalance_help() {
    std::ostringstream out;
    out << "Usage: interlock rebalance --plan [-c FILE] --catalog CONNINFO [OPTION]...\n"
           "\n"
           "Measures the buckets on the shards, and prints which of them to move so that every\n"
           "shard has its share, with as few buckets as possible, as commands to run one after\n"
           "the other. It changes nothing.\n"
           "\n"
           "  rows   rows of all tables of the keyspaces\n"
           "  bytes  what the rows take as they are stored, without indexes and free room\n"
           "  load   rows written. The shards are observed for a while; a bucket has the rows of\n"
           "         it that were inserted or updated meanwhile, each once. What the shard's\n"
           "         statistics count beyond that (rows written several times, deletions) is\n"
           "         spread over its buckets in proportion. Reads leave no trace by bucket: they\n"
           "         are not counted.\n"
           "\n"
           "Every table is read once, by all shards at the same time; --sample reads a part of\n"
           "the pages. The database role must own the extension, or be a superuser.\n"
           "\n"
        << rebalance_flags()
        << "\n"
           "  DURATION  a whole number and us, ms, s, min, h or d; without a unit, milliseconds\n"
           "\n"
           "Exit status: 0 the plan is printed (also if there is nothing to do), 1 it could not "
           "be\n"
           "made, 2 the command line or the configuration file is wrong.\n";
    return out.str();
}

}  // namespace interlock
