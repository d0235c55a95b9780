// `interlock move --plan` and `--status`.
#include <algorithm>
#include <iostream>
#include <map>

#include "tools/bucket_set.h"
#include "tools/index_model.h"
#include "tools/index_options.h"
#include "tools/move_options.h"
#include "tools/move_preflight.h"
#include "tools/move_progress.h"
#include "tools/move_steps.h"

namespace interlock {

namespace {

std::string number_list(const std::vector<std::int32_t> &numbers) {
    std::string text;
    for (const std::int32_t number : numbers)
        text += (text.empty() ? "" : ",") + std::to_string(number);
    return "[" + text + "]";
}

std::string text_or_null(const std::string &text) {
    return text.empty() ? "null" : json_string(text);
}

std::string move_json(const Move &move, const std::vector<std::string> &artefacts) {
    std::string made;
    for (const std::string &artefact : artefacts)
        made += (made.empty() ? "" : ",") + json_string(artefact);
    return "{\"move\":" + json_string(move.id) + ",\"keyspace\":" + json_string(move.keyspace) +
           ",\"buckets\":" + number_list(move.buckets) + ",\"from\":" + json_string(move.from) +
           ",\"to\":" + json_string(move.to) + ",\"step\":" + json_string(move.step) +
           ",\"route_version\":" +
           (move.route_version == 0 ? "null" : std::to_string(move.route_version)) +
           ",\"announced\":" + (move.announced ? "true" : "false") +
           ",\"began\":" + text_or_null(move.began) + ",\"changed\":" + text_or_null(move.changed) +
           ",\"finished\":" + text_or_null(move.ended) +
           ",\"outcome\":" + text_or_null(move.outcome) + ",\"error\":" + text_or_null(move.error) +
           ",\"made\":[" + made +
           "],\"progress\":" + (move.progress.empty() ? "null" : move.progress) + "}";
}

/// Up to the second.
std::string short_time(const std::string &time) {
    return time.substr(0, 19) + " UTC";
}

void print_move(const Move &move, const std::vector<std::string> &artefacts) {
    std::cout << "move " << move.id << ": " << buckets_phrase(move.buckets) << " of keyspace "
              << move.keyspace << " from " << move.from << " to " << move.to << '\n';
    if (move.finished)
        std::cout << "  " << move.outcome << ' ' << short_time(move.ended) << '\n';
    else
        std::cout << "  step " << move.step << ", " << short_time(move.changed) << '\n';
    std::cout << "  began " << short_time(move.began);
    if (move.route_version != 0)
        std::cout << ", route version " << move.route_version
                  << (move.announced ? " (announced)" : "");
    std::cout << '\n';
    if (!move.error.empty()) std::cout << "  stopped by: " << move.error << '\n';
    if (!move.finished && move.step == name_of(MoveStep::unsubscribed)) {
        // What is left of it are the source's rows.
        std::cout << "  rows of the buckets are left on " << move.from << ": interlock move --clean"
                  << ", or at once: interlock move --clean " << move.id << '\n';
        return;
    }
    for (const std::string &artefact : artefacts)
        std::cout << "  has made " << artefact << '\n';
}

void tell(const MoveFinding &finding, bool json) {
    if (json)
        std::cout << "{\"event\":\"finding\"," << finding_json(finding) << "}\n";
    else
        std::cerr << finding_text(finding);
}

/// Of one keyspace: what would be moved. Returns whether something stands in the way.
bool plan_one(const MoveRequest &request, const std::vector<MoveBatch> &batches, bool json) {
    MoveSession session(request);
    if (json) {
        for (const MoveBatch &batch : batches)
            std::cout << "{\"event\":\"plan\",\"keyspace\":" << json_string(batch.keyspace)
                      << ",\"buckets\":" << number_list(batch.buckets)
                      << ",\"from\":" << json_string(session.from().name)
                      << ",\"to\":" << json_string(session.to().name) << "}\n";
    } else {
        std::cout << "would move, of keyspace " << session.keyspace().name << " from "
                  << session.from().name << " to " << session.to().name << ":\n";
        for (std::size_t i = 0; i < batches.size(); ++i)
            std::cout << "  " << i + 1 << ". " << buckets_phrase(batches[i].buckets) << '\n';
    }
    const auto &owner = session.keyspace().owner;
    const auto here =
        std::max<std::int64_t>(1, std::count(owner.begin(), owner.end(), session.from_index()));
    const auto moving = static_cast<std::int64_t>(session.buckets().size());
    for (const MovedTable &table : session.tables()) {
        const auto share = [&](std::int64_t whole) {
            return static_cast<std::int64_t>(static_cast<double>(whole) *
                                             static_cast<double>(moving) /
                                             static_cast<double>(here));
        };
        if (json)
            std::cout << "{\"event\":\"table\",\"table\":" << json_string(table.name)
                      << ",\"estimated_rows\":"
                      << (table.estimated_rows < 0 ? "null"
                                                   : std::to_string(share(table.estimated_rows)))
                      << ",\"estimated_bytes\":" << share(table.bytes) << "}\n";
        else
            std::cout << "     " << table.name << ": "
                      << (table.estimated_rows < 0
                              ? std::string("unknown number of rows (ANALYZE was never run)")
                              : "about " + std::to_string(share(table.estimated_rows)) + " rows")
                      << ", " << ((share(table.bytes) + 1023) / 1024) << " kB\n";
    }
    std::cout << std::flush;
    const std::vector<MoveFinding> findings = preflight(session, request);
    for (const MoveFinding &finding : findings)
        tell(finding, json);
    std::cout << std::flush;
    return has_refusal(findings);
}

}  // namespace

int show_plan(const MoveOptions &options) {
    bool refused = false;
    std::map<std::string, std::vector<MoveBatch>> batches;
    if (options.evacuate) {
        ControlConnection catalog(options.request.catalog, "interlock move",
                                  options.request.query_timeout);
        const std::vector<Move> unfinished = read_moves(catalog, true);
        for (MoveBatch &batch : evacuation(*read_published_routes(catalog), unfinished, options))
            batches[batch.keyspace].push_back(std::move(batch));
        const std::vector<std::string> others = moves_of_others(unfinished, options);
        for (const std::string &other : others)
            tell({MoveFinding::Severity::refuse,
                  "shard \"" + options.request.from + "\" would not be empty", other,
                  "Let that move be finished first."},
                 options.json);
        refused = !others.empty();
        if (batches.empty() && others.empty() && !options.json)
            std::cout << "nothing to do: shard " << options.request.from << " has no buckets\n";
    } else {
        batches[options.request.keyspace] = {{options.request.keyspace, options.request.buckets}};
    }
    for (const auto &[keyspace, list] : batches) {
        MoveRequest request = options.request;
        request.keyspace = keyspace;
        request.buckets.clear();
        for (const MoveBatch &batch : list)
            request.buckets.insert(request.buckets.end(), batch.buckets.begin(),
                                   batch.buckets.end());
        refused = plan_one(request, list, options.json) || refused;
    }
    if (refused && !options.json)
        std::cerr << "interlock move: would be refused, nothing was changed\n";
    return refused ? 1 : 0;
}

int show_moves(const MoveOptions &options) {
    ControlConnection catalog(options.request.catalog, "interlock move",
                              options.request.query_timeout);
    const std::string &id = options.request.id;
    const Rows made = catalog.query(
        "SELECT a.move, a.kind || ' ' || a.name || ' on ' || s.name FROM interlock.move_artefact a "
        "JOIN interlock.shard s ON s.id OPERATOR(pg_catalog.=) a.shard ORDER BY a.recorded_at");
    bool any = false;
    for (const Move &move : read_moves(catalog, id.empty())) {
        if (!move.id.starts_with(id)) continue;
        any = true;
        std::vector<std::string> artefacts;
        for (int row = 0; row < made.size(); ++row)
            if (made.view(row, 0) == move.id) artefacts.push_back(made.text(row, 1));
        if (options.json)
            std::cout << move_json(move, artefacts) << '\n';
        else
            print_move(move, artefacts);
    }
    if (!any && !id.empty())
        throw ControlError("42704", "there is no move \"" + id + "\"", {},
                           "interlock move --status shows those that are not finished.");
    if (!any && !options.json) std::cout << "no move is unfinished\n";
    std::cout << std::flush;
    return 0;
}

}  // namespace interlock
