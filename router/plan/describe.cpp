#include "plan/describe.h"

#include "base/log.h"

namespace interlock {

namespace {

using sql::Action;
using From = sql::KeySource::From;

const char *describe_action(const sql::Facts &facts) {
    switch (facts.action) {
    case Action::empty: return "nothing: there is no statement";
    case Action::query: return facts.writes ? "forward, a write" : "forward, a read";
    case Action::copy_out: return "forward, a COPY to the client";
    case Action::declare_cursor: return "forward, a cursor in the transaction";
    case Action::cursor: return "forward to the shard of the transaction";
    case Action::show: return "forward to any shard, under the session's settings";
    case Action::begin:
    case Action::commit:
    case Action::rollback:
    case Action::savepoint:
    case Action::release:
    case Action::rollback_to:
    case Action::set_transaction:
        return "transaction control: kept by the router until a shard is known, then forwarded";
    default: return "answered by the router, for the session";
    }
}

std::string describe_key(const sql::KeySource &key, const RouteTable &routes) {
    const Table &table = routes.tables[key.table];
    std::string text = "key: " + table.sql_name + "." + table.columns[table.key_column].sql_name;
    switch (key.from) {
    case From::literal: return text + format(" from literal %u", key.index + 1);
    case From::parameter: return text + format(" from parameter $%u", key.index + 1);
    case From::array: return text + format(" from the array in parameter $%u", key.index + 1);
    case From::array_text: return text + format(" from the array in literal %u", key.index + 1);
    case From::null: return text + " is NULL";
    }
    return text;
}

bool needs_parameters(const sql::Facts &facts, std::size_t given) {
    for (const sql::KeySource &key : facts.keys)
        if ((key.from == From::parameter || key.from == From::array) && key.index >= given)
            return true;
    return false;
}

void describe_refusal(const Refusal &refusal, RouteDescription &out) {
    if (!out.refusal) out.refusal = refusal;
    std::vector<std::string> &lines = out.lines;
    lines.push_back(format("refused: %s (SQLSTATE %s): %s",
                           std::string(code_entry(refusal.code).name).c_str(),
                           std::string(refusal.state()).c_str(), refusal.message.c_str()));
    if (refusal.position > 0) lines.push_back(format("position: character %d", refusal.position));
    if (!refusal.detail.empty()) lines.push_back("detail: " + refusal.detail);
    if (!refusal.hint.empty()) lines.push_back("hint: " + refusal.hint);
}

void describe_target(const sql::Facts &facts, const Values &values, const RouteTable &routes,
                     RouteDescription &out) {
    std::vector<std::string> &lines = out.lines;
    for (const sql::KeySource &key : facts.keys)
        lines.push_back(describe_key(key, routes));
    if (facts.keys.empty()) {
        lines.push_back(facts.tables.empty() ? "shard: any, it names no sharded table"
                                             : "shard: any");
        return;
    }
    if (needs_parameters(facts, values.parameters.size())) {
        lines.push_back("shard: one, as the parameters say");
        return;
    }
    const auto target = plan(facts, values, routes);
    if (!target) {
        describe_refusal(target.error(), out);
    } else if (!*target) {
        lines.push_back("shard: any, no key can match");
    } else {
        const Table &table = routes.tables[(*target)->table];
        lines.push_back(format("bucket: %d of keyspace %s", (*target)->bucket,
                               routes.keyspaces[table.keyspace].name.c_str()));
        lines.push_back("shard: " + routes.shards[(*target)->shard].name);
    }
}

}  // namespace

RouteDescription explain_route(std::string_view text, const sql::NameContext &names,
                               std::span<const BoundParameter> parameters, bool utf8) {
    RouteDescription out;
    std::vector<std::string> &lines = out.lines;
    lines.push_back("profile: single-shard");
    lines.push_back(format("route version: %d", names.routes.version));
    sql::Shape shape;
    sql::make_shape(text, shape);
    const auto analysed = sql::analyse(text, shape, names);
    if (!analysed) {
        describe_refusal(analysed.error(), out);
        return out;
    }
    if (analysed->empty()) lines.push_back("plan: nothing, there is no statement");
    for (std::size_t i = 0; i < analysed->size(); ++i) {
        const sql::Facts &facts = (*analysed)[i].facts;
        if (analysed->size() > 1) lines.push_back(format("statement: %zu", i + 1));
        lines.push_back(std::string("plan: ") + describe_action(facts));
        if (facts.action == Action::query || facts.action == Action::copy_out ||
            facts.action == Action::declare_cursor)
            describe_target(facts, Values{text, shape.literals, parameters, utf8}, names.routes,
                            out);
    }
    return out;
}

std::vector<std::string> describe_route(std::string_view text, const sql::NameContext &names,
                                        std::span<const BoundParameter> parameters, bool utf8) {
    return std::move(explain_route(text, names, parameters, utf8).lines);
}

}  // namespace interlock
