// `interlock index status`, `retry` and `discard`: looking at the shards' outboxes of an index, and
// at the records that were set aside there.
#include <algorithm>
#include <charconv>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/log.h"
#include "base/startup_error.h"
#include "tools/index_model.h"
#include "tools/index_options.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

/// One shard's part in an index. Not known where a database does not answer.
struct PartStatus {
    std::string index, shard;
    std::string error;
    std::optional<std::int64_t> records, parked, bytes;
    std::optional<double> lag;      ///< age of the oldest record, in seconds
    std::optional<double> rate;     ///< records applied per second, lately
    std::optional<double> drained;  ///< how long ago everything written was known to be applied
    std::optional<std::string> consumer;  ///< that reported last
    std::optional<double> reported;       ///< seconds ago
    std::optional<std::int64_t> filled, estimate;
    bool fill_finished = false;
    std::string parked_error;  ///< of the newest record set aside
};

std::optional<double> number(const Rows &rows, int column) {
    if (rows.is_null(0, column)) return std::nullopt;
    const std::string_view text = rows.view(0, column);
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

/// Sessions on the members, opened once. A member that does not answer is told once.
class Members {
  public:
    Members(const RouteTable &routes, std::int64_t timeout) : routes_(routes), timeout_(timeout) {}

    /// Null and `error` when it cannot be talked to.
    ControlConnection *session(ShardIndex member, std::string &error) {
        auto found = sessions_.find(member);
        if (found == sessions_.end()) {
            Session session;
            try {
                session.connection =
                    open_member(routes_, member, "interlock index status", timeout_);
            } catch (const ControlError &failure) {
                session.error = failure.what();
                answering_ = false;
            }
            found = sessions_.emplace(member, std::move(session)).first;
        }
        if (!found->second.connection) error = found->second.error;
        return found->second.connection.get();
    }

    bool all_answered() const { return answering_; }
    void failed() { answering_ = false; }

  private:
    struct Session {
        std::unique_ptr<ControlConnection> connection;
        std::string error;
    };
    const RouteTable &routes_;
    const std::int64_t timeout_;
    std::map<ShardIndex, Session> sessions_;
    bool answering_ = true;
};

void read_outbox(ControlConnection &shard, PartStatus &status) {
    const Rows backlog =
        shard.query("SELECT b.records, b.parked, b.bytes, EXTRACT(epoch FROM b.age)::float8 "
                    "FROM interlock.outbox_backlog b WHERE b.stream OPERATOR(pg_catalog.=) $1",
                    {Param::of_text(status.index)});
    if (backlog.empty()) {
        status.error = "there is no outbox stream \"" + status.index + "\"";
        return;
    }
    status.records = backlog.int64(0, 0);
    status.parked = backlog.int64(0, 1);
    status.bytes = backlog.int64(0, 2);
    status.lag = std::max(0.0, number(backlog, 3).value_or(0));
    if (*status.parked == 0) return;
    const Rows parked = shard.query("SELECT p.seq, p.key, p.error FROM interlock.outbox_parked p "
                                    "WHERE p.stream OPERATOR(pg_catalog.=) $1 AND p.tries > 0 "
                                    "ORDER BY p.parked_at DESC, p.seq DESC LIMIT 1",
                                    {Param::of_text(status.index)});
    if (!parked.empty())
        status.parked_error = "record " + parked.text(0, 0) + " of key " + parked.text(0, 1) +
                              ": " + parked.text(0, 2);
}

void read_progress(ControlConnection &database, PartStatus &status) {
    const std::vector<Param> part{Param::of_text(status.index), Param::of_text(status.shard)};
    const Rows progress = database.query(
        "SELECT CASE WHEN n.now - p.updated < interval '30 s' THEN GREATEST(p.rate, "
        "    p.rate_records / GREATEST(EXTRACT(epoch FROM n.now - p.rate_since), 1)) ELSE 0 "
        "    END::float8, "
        "  EXTRACT(epoch FROM n.now - p.drained_through)::float8, p.consumer, "
        "  EXTRACT(epoch FROM n.now - p.updated)::float8 "
        "FROM interlock.index_progress p, LATERAL (SELECT pg_catalog.clock_timestamp()) AS n(now) "
        "WHERE p.index OPERATOR(pg_catalog.=) $1 AND p.shard OPERATOR(pg_catalog.=) $2",
        part);
    if (!progress.empty()) {
        status.rate = number(progress, 0);
        status.drained = number(progress, 1);
        if (!progress.is_null(0, 2)) {
            status.consumer = progress.text(0, 2);
            status.reported = number(progress, 3);
        }
    }
    const Rows backfill =
        database.query("SELECT rows, estimate, finished IS NOT NULL FROM interlock.index_backfill "
                       "WHERE index OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2",
                       part);
    if (backfill.empty()) return;
    status.filled = backfill.int64(0, 0);
    if (!backfill.is_null(0, 1)) status.estimate = backfill.int64(0, 1);
    status.fill_finished = backfill.boolean(0, 2);
}

std::vector<PartStatus> read_status(const RouteTable &routes, const GlobalIndex &index,
                                    Members &members) {
    std::vector<PartStatus> parts;
    for (std::size_t i = 0; i < routes.shards.size(); ++i) {
        if (routes.shards[i].index_only) continue;
        PartStatus part;
        part.index = index.name;
        part.shard = routes.shards[i].name;
        const auto read = [&](ShardIndex member, auto &&what) {
            std::string error;
            try {
                if (ControlConnection *const session = members.session(member, error))
                    what(*session, part);
            } catch (const ControlError &failure) {
                error = failure.what();
            }
            if (error.empty() && part.error.empty()) return;
            members.failed();
            if (!error.empty()) part.error += (part.error.empty() ? "" : "; ") + error;
        };
        read(static_cast<ShardIndex>(i), read_outbox);
        read(index.database, read_progress);
        parts.push_back(std::move(part));
    }
    return parts;
}

template <typename Value>
std::string json_value(const std::optional<Value> &value) {
    if (!value) return "null";
    if constexpr (std::is_same_v<Value, std::string>)
        return json_string(*value);
    else if constexpr (std::is_same_v<Value, double>)
        return format("%.3f", *value);
    else
        return std::to_string(*value);
}

void print_json(const GlobalIndex &index, const PartStatus &part) {
    std::cout << "{\"index\":" << json_string(part.index)
              << ",\"shard\":" << json_string(part.shard)
              << ",\"ready\":" << (index.ready ? "true" : "false")
              << ",\"backlog\":" << json_value(part.records)
              << ",\"backlog_bytes\":" << json_value(part.bytes)
              << ",\"lag_seconds\":" << json_value(part.lag)
              << ",\"records_per_second\":" << json_value(part.rate)
              << ",\"parked\":" << json_value(part.parked)
              << ",\"drained_seconds_ago\":" << json_value(part.drained)
              << ",\"consumer\":" << json_value(part.consumer)
              << ",\"reported_seconds_ago\":" << json_value(part.reported)
              << ",\"backfill_rows\":" << json_value(part.filled)
              << ",\"backfill_estimate\":" << json_value(part.estimate)
              << ",\"backfill_finished\":" << (part.fill_finished ? "true" : "false")
              << ",\"error\":" << (part.error.empty() ? "null" : json_string(part.error)) << "}\n";
}

std::string backfill_text(const PartStatus &part) {
    if (part.fill_finished) return "done";
    if (!part.filled) return "none";
    const std::int64_t all = part.estimate.value_or(0);
    if (all <= 0) return std::to_string(*part.filled) + " rows";
    return std::to_string(std::min<std::int64_t>(99, *part.filled * 100 / all)) + " %";
}

void print_table(const GlobalIndex &index, const RouteTable &routes,
                 const std::vector<PartStatus> &parts) {
    std::cout << "index " << index.name << " of table " << routes.tables[index.table].sql_name
              << " in " << routes.shards[index.database].name
              << (index.ready ? ", ready\n" : ", not ready: pages are answered by all shards\n");
    const auto cell = [](const std::string &text, int width) {
        std::cout << std::setw(width) << text;
    };
    std::cout << std::left;
    cell("  shard", 18);
    std::cout << std::right;
    for (const char *title : {"backlog", "lag", "records/s", "set aside", "backfill"})
        cell(title, 12);
    std::cout << '\n';
    for (const PartStatus &part : parts) {
        std::cout << std::left;
        cell("  " + part.shard, 18);
        std::cout << std::right;
        cell(part.records ? std::to_string(*part.records) : "?", 12);
        cell(part.lag ? format("%.1f s", *part.lag) : "?", 12);
        cell(part.rate ? format("%.0f", *part.rate) : "?", 12);
        cell(part.parked ? std::to_string(*part.parked) : "?", 12);
        cell(backfill_text(part), 12);
        std::cout << '\n';
    }
    for (const PartStatus &part : parts) {
        if (!part.parked_error.empty())
            std::cout << "  set aside on " << part.shard << ": " << part.parked_error << '\n';
        if (!part.error.empty()) std::cout << "  " << part.error << '\n';
        if (part.error.empty() && !part.consumer && part.records.value_or(0) > 0)
            std::cout << "  no consumer has reported on " << part.shard
                      << ": is \"interlock index\" running?\n";
    }
}

std::int64_t sequence_number(const std::string &text) {
    std::int64_t seq = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seq);
    if (error != std::errc{} || end != text.data() + text.size() || seq < 1)
        throw StartupError("\"" + text + "\" is no number of a record",
                           "\"interlock index status\" shows records that were set aside; all of "
                           "them are in interlock.outbox_parked on the shards.");
    return seq;
}

/// What retry and discard have in common: an index, records of it that are set aside, a shard.
struct ParkedRequest {
    std::string name;
    std::vector<std::int64_t> seqs;
    std::string shard;
    std::optional<IndexAccess> access;
};

ParkedRequest parse_parked(const std::vector<std::string> &args, const char *command) {
    po::options_description flags = index_flags();
    flags.add(index_parked_flags());
    std::vector<std::string> others;
    const po::variables_map given = parse_flags(args, flags, &others);
    if (others.empty())
        throw StartupError("no index is named",
                           std::string("Use interlock index ") + command + " NAME SEQ...");
    ParkedRequest request;
    request.name = others.front();
    for (std::size_t i = 1; i < others.size(); ++i)
        request.seqs.push_back(sequence_number(others[i]));
    if (given.count("shard")) request.shard = given["shard"].as<std::string>();
    request.access.emplace(given);
    return request;
}

std::string array_of(const std::vector<std::int64_t> &numbers) {
    std::string text = "{";
    for (const std::int64_t value : numbers)
        text += (text.size() > 1 ? "," : "") + std::to_string(value);
    return text + "}";
}

/// Runs `sql` ($1 stream, $2 numbers or null) on each shard the request is about. Numbers are the
/// shards' own: the same number on two shards is two records, so it must be said which is meant.
int change_parked(const ParkedRequest &request, const std::string &sql, const char *done) {
    const auto routes = request.access->routes();
    (void)require_published(*routes, request.name);
    std::vector<std::pair<std::string, std::unique_ptr<ControlConnection>>> shards;
    for (std::size_t i = 0; i < routes->shards.size(); ++i) {
        const Shard &shard = routes->shards[i];
        if (shard.index_only || (!request.shard.empty() && shard.name != request.shard)) continue;
        shards.emplace_back(shard.name, open_member(*routes, static_cast<ShardIndex>(i),
                                                    "interlock index", request.access->timeout));
    }
    if (shards.empty())
        throw ControlError("42704", "shard \"" + request.shard + "\" does not exist");
    Param numbers = Param::null_text();
    if (!request.seqs.empty()) {
        numbers.text = array_of(request.seqs);
        std::map<std::int64_t, std::vector<std::string>> places;
        for (const auto &[name, shard] : shards) {
            const Rows rows =
                shard->query("SELECT p.seq FROM interlock.outbox_parked p WHERE p.stream "
                             "OPERATOR(pg_catalog.=) $1 AND p.seq OPERATOR(pg_catalog.=) ANY "
                             "($2::pg_catalog.int8[])",
                             {Param::of_text(request.name), numbers});
            for (int row = 0; row < rows.size(); ++row)
                places[rows.int64(row, 0)].push_back(name);
        }
        for (const std::int64_t seq : request.seqs) {
            const auto place = places.find(seq);
            if (place == places.end())
                throw ControlError("42704", "record " + std::to_string(seq) + " of index \"" +
                                                request.name + "\" is not set aside");
            if (place->second.size() > 1)
                throw ControlError("42725",
                                   "record " + std::to_string(seq) +
                                       " is set aside on more than one shard",
                                   "On " + place->second[0] + " and " + place->second[1] + ".",
                                   "Say which is meant with --shard.");
        }
    }
    std::int64_t count = 0;
    for (const auto &[name, shard] : shards)
        count += shard->query(sql, {Param::of_text(request.name), numbers}).int64(0, 0);
    std::cout << count << (count == 1 ? " record " : " records ") << done << '\n';
    return 0;
}

}  // namespace

po::options_description index_status_flags() {
    po::options_description flags("Options of status", 100, 50);
    flags.add_options()("json", "one JSON object a line, for each index and shard");
    return flags;
}

po::options_description index_parked_flags() {
    po::options_description flags("Options of retry and discard", 100, 50);
    flags.add_options()("shard", po::value<std::string>()->value_name("NAME"),
                        "only records of this shard");
    return flags;
}

int run_index_status(const std::vector<std::string> &args) {
    po::options_description flags = index_flags();
    flags.add(index_status_flags());
    std::vector<std::string> names;
    const po::variables_map given = parse_flags(args, flags, &names);
    const IndexAccess access(given);
    const auto routes = access.routes();
    std::vector<const GlobalIndex *> wanted;
    for (const std::string &name : names)
        wanted.push_back(&require_published(*routes, name));
    if (names.empty())
        for (const GlobalIndex &index : routes->indexes)
            wanted.push_back(&index);
    if (wanted.empty()) std::cerr << "route version " << routes->version << " has no indexes\n";
    Members members(*routes, access.timeout);
    for (const GlobalIndex *const index : wanted) {
        const std::vector<PartStatus> parts = read_status(*routes, *index, members);
        if (given.count("json") == 0) {
            print_table(*index, *routes, parts);
            continue;
        }
        for (const PartStatus &part : parts)
            print_json(*index, part);
    }
    std::cout << std::flush;
    return members.all_answered() ? 0 : 1;
}

int run_index_retry(const std::vector<std::string> &args) {
    return change_parked(parse_parked(args, "retry"),
                         "SELECT interlock.outbox_retry($1, $2::pg_catalog.int8[])",
                         "put back into the outbox");
}

int run_index_discard(const std::vector<std::string> &args) {
    const ParkedRequest request = parse_parked(args, "discard");
    if (request.seqs.empty())
        throw StartupError("no record is named", "Use interlock index discard NAME SEQ...");
    return change_parked(request, "SELECT interlock.outbox_discard($1, $2::pg_catalog.int8[])",
                         "discarded: run \"interlock repair\" to mend the index");
}

}  // namespace interlock
