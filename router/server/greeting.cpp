#include "server/greeting.h"

#include "base/log.h"

#include <cstdlib>
#include <utility>
#include <vector>

namespace interlock {

namespace {

constexpr std::size_t frame_limit = 1 << 20;

using Row = std::vector<std::string>;

std::string describe_error(std::string_view body) {
    wire::ErrorFields fields;
    if (!wire::parse_error(body, fields)) return "malformed error";
    std::string text =
        format("%.*s: %.*s", static_cast<int>(fields.sqlstate.size()), fields.sqlstate.data(),
               static_cast<int>(fields.message.size()), fields.message.data());
    if (fields.sqlstate == "3F000" || fields.sqlstate == "42883")
        text += "; HINT: the extension is missing in this database: run \"interlock apply\"";
    return text;
}

bool read_row(std::string_view body, Row &row) {
    wire::FieldReader fields(body);
    const std::uint16_t count = fields.int16();
    row.clear();
    for (unsigned i = 0; i < count && fields.ok(); ++i) {
        const std::uint32_t length = fields.int32();
        row.emplace_back(length == 0xFFFFFFFFU ? std::string_view() : fields.bytes(length));
    }
    return fields.ok();
}

// The rows of each statement of a Query, or what went wrong.
struct Results {
    std::vector<std::vector<Row>> statements;
    std::string problem;
};

Task<Results> query(Backend &backend, const std::string &sql, Millis deadline) {
    Results results;
    wire::FrameWriter(backend.out(), 'Q').string(sql);
    if (co_await backend.flush(deadline) != Io::ok) {
        results.problem = "the connection was lost while greeting";
        co_return results;
    }
    for (;;) {
        wire::Frame frame;
        const wire::FrameState state = backend.peek(frame_limit, frame);
        if (state == wire::FrameState::need_more) {
            const Io io = co_await backend.fill(deadline);
            if (io == Io::ok) continue;
            if (io == Io::timeout)
                results.problem = "the server did not answer the greeting in time";
            else if (results.problem.empty())
                results.problem = "the connection was lost while greeting";
            co_return results;
        }
        if (state != wire::FrameState::ready) {
            results.problem = "the greeting was answered by malformed frames";
            co_return results;
        }
        bool ended = false;
        switch (frame.type) {
        case 'T': results.statements.emplace_back(); break;
        case 'D': {
            Row row;
            if (results.statements.empty() || !read_row(frame.body, row)) {
                results.problem = "the greeting was answered by malformed frames";
                co_return results;
            }
            results.statements.back().push_back(std::move(row));
            break;
        }
        case 'E': results.problem = describe_error(frame.body); break;
        case 'C':
        case 'N':
        case 'S':
        case 'A': break;
        case 'Z': ended = true; break;
        default:
            results.problem = "the greeting was answered by unexpected frames";
            co_return results;
        }
        backend.pop(frame.size);
        if (ended) co_return results;
    }
}

std::string identity_query(std::int32_t route_version) {
    return format("SELECT cluster_id::text, shard, floor::text, restored::text, "
                  "catalog_first::text, pg_catalog.pg_is_in_recovery()::text, "
                  "system_identifier::text, timeline::text "
                  "FROM interlock.greet(%d)",
                  route_version);
}

// One row a setting: its place in compared_settings(), its value.
std::string settings_query() {
    std::string sql = "SELECT s.value FROM (VALUES ";
    int place = 0;
    for (const std::string &name : compared_settings())
        sql += format("%s(%d, pg_catalog.current_setting('%s'))", place == 0 ? "" : ", ", place,
                      name.c_str()),
            ++place;
    return sql + ") s(place, value) ORDER BY s.place";
}

constexpr std::size_t identity_columns = 8;

ServerHistory history_of(const Row &row) {
    return {row[6], static_cast<std::uint32_t>(std::strtoul(row[7].c_str(), nullptr, 10)),
            std::atoi(row[2].c_str())};
}

std::string check_identity(const Row &row, const ExpectedIdentity &expected) {
    if (row[5] != "false") return "the server is a standby: it is in recovery";
    if (row[0].empty()) return "the database is not a shard yet; HINT: run \"interlock apply\"";
    if (row[0] != expected.cluster_id)
        return format("the connection leads to another cluster (%s), not to cluster %s",
                      row[0].c_str(), expected.cluster_id.c_str());
    if (row[1] != expected.shard)
        return format("the connection leads to shard %s, not to shard %s", row[1].c_str(),
                      expected.shard.c_str());
    if (row[3] != "false")
        return "the database is a restored copy of the shard; HINT: if it is to replace the "
               "shard, run SELECT interlock.adopt_shard() in it";
    if (row[4] != "true")
        return "the login's search_path puts another schema before pg_catalog, so operators "
               "could mean something else";
    return {};
}

// What the router takes for granted when it reads a statement.
std::string check_text_rules(const Backend &backend) {
    if (const std::string encoding = backend.reported("client_encoding"); encoding != "UTF8")
        return format("the session's client_encoding is %s, not UTF8", encoding.c_str());
    if (backend.reported("standard_conforming_strings") != "on")
        return "standard_conforming_strings is off; HINT: set it to on for the login on this shard";
    return {};
}

}  // namespace

Task<std::string> greet(Backend &backend, const ExpectedIdentity &expected,
                        std::shared_ptr<const Declared> declared, LoginProfile &login,
                        ShardServer &server, std::int32_t route_version, Millis deadline) {
    std::string problem = backend.takeover_problem();
    if (problem.empty()) problem = check_text_rules(backend);
    if (!problem.empty()) co_return problem;
    // The settings are read before jit is turned off: for the next query only, whose cost is
    // overestimated with many tables.
    Results results = co_await query(backend,
                                     identity_query(route_version) + "; " + settings_query() +
                                         "; SET LOCAL jit = off; " + declared->query,
                                     deadline);
    if (!results.problem.empty()) co_return std::move(results.problem);
    if (results.statements.size() != 3 || results.statements[0].size() != 1 ||
        results.statements[0][0].size() != identity_columns)
        co_return "the greeting was not answered by one row";
    problem = check_identity(results.statements[0][0], expected);
    // The floor comes first: a standby promoted without it must not make its former primary, which
    // has it, look replaced.
    const ServerHistory history = history_of(results.statements[0][0]);
    if (problem.empty()) problem = floor_problem(history.floor, expected.min_floor);
    if (problem.empty()) problem = server.accept(expected.shard, history);
    if (!problem.empty()) co_return problem;

    auto begun = std::make_shared<LoginDefaults>();
    for (const std::string &name : reported_parameters())
        begun->reported.emplace_back(name, backend.reported(name.c_str()));
    const auto &values = results.statements[1];
    if (values.size() != compared_settings().size())
        co_return "the greeting was not answered by all settings";
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i].size() != 1) co_return "the greeting was not answered by all settings";
        begun->settings.emplace_back(compared_settings()[i], values[i][0]);
    }
    auto surroundings = std::make_shared<Surroundings>(std::move(declared));
    for (const Row &row : results.statements[2])
        if (!surroundings->take(row)) co_return "the greeting was not answered by surroundings";
    std::shared_ptr<const LoginDefaults> defaults = std::move(begun);
    problem = login.accept(expected.shard, defaults);
    if (problem.empty()) {
        backend.greeted(route_version, std::move(defaults), std::move(surroundings));
        backend.set_server(server.generation(), history.floor);
    }
    co_return problem;
}

Task<bool> prove_floor(Backend &backend, const ExpectedIdentity &expected,
                       std::int32_t route_version, Millis deadline) {
    Results results = co_await query(
        backend, format("SELECT floor::text FROM interlock.greet(%d)", route_version), deadline);
    if (!results.problem.empty() || results.statements.size() != 1 ||
        results.statements[0].size() != 1 || results.statements[0][0].size() != 1)
        co_return false;
    const std::int32_t floor = std::atoi(results.statements[0][0][0].c_str());
    if (const std::string problem = floor_problem(floor, expected.min_floor); !problem.empty()) {
        log_warning("a connection to shard %s is closed: %s", expected.shard.c_str(),
                    problem.c_str());
        co_return false;
    }
    backend.set_route_version(route_version);
    backend.set_server(backend.server_generation(), floor);
    co_return true;
}

Task<std::string> learn_keysets(Backend &backend, Millis deadline) {
    auto surroundings = std::make_shared<Surroundings>(backend.surroundings());
    Results results = co_await query(backend, surroundings->declared()->keysets_query, deadline);
    if (!results.problem.empty()) co_return std::move(results.problem);
    surroundings->forget_keysets();
    if (results.statements.size() != 1) co_return "the question was not answered by rows";
    for (const Row &row : results.statements[0])
        if (!surroundings->take(row)) co_return "the question was not answered by surroundings";
    backend.set_surroundings(std::move(surroundings));
    co_return std::string();
}

}  // namespace interlock
