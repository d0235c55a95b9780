#include "plan/describe.h"

#include "base/log.h"
#include "plan/index_choice.h"
#include "plan/scatter_values.h"

#include <algorithm>

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

/// A move that is announced, which a statement for all shards of the keyspace may meet.
void describe_announced(std::uint16_t keyspace, const RouteTable &routes, RouteDescription &out) {
    if (!routes.announced || routes.announced->keyspace != keyspace) return;
    const Announcement &move = *routes.announced;
    const auto buckets = std::count(move.buckets.begin(), move.buckets.end(), true);
    out.lines.push_back(format("move: %lld bucket%s of the keyspace from shard %s to %s as route "
                               "version %d; asked anew if "
                               "%s gone meanwhile",
                               static_cast<long long>(buckets), buckets == 1 ? "" : "s",
                               routes.shards[move.from].name.c_str(),
                               routes.shards[move.to].name.c_str(), move.version,
                               buckets == 1 ? "it has" : "they have"));
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
        if ((*target)->held)
            lines.push_back(format("move: to shard %s as route version %d; held back until then",
                                   routes.shards[routes.announced->to].name.c_str(),
                                   routes.announced->version));
    }
}

const char *describe_kind(const sql::Scatter &scatter) {
    switch (scatter.kind) {
    case sql::ScatterKind::keyset_page:
        return "all shards, each a page; merged and cut by the keyset's order";
    case sql::ScatterKind::ordered:
        return "all shards, each its first rows in the order; merged and cut";
    case sql::ScatterKind::aggregate:
        return scatter.grouped ? "all shards, each its part of every group; put together"
                               : "all shards, each its part of the one row; put together";
    }
    return "all shards";
}

/// What a shard may have to give, where the values are known.
std::string describe_rows(const sql::Scatter &scatter, const Values &values) {
    if (scatter.kind == sql::ScatterKind::keyset_page) {
        const auto size = scatter_integer(scatter.page_size, values, "page_size");
        if (size && *size) return format("%lld", static_cast<long long>(**size));
        return scatter.page_size.from == sql::ValueSource::From::parameter
                   ? "as the parameter for page_size says"
                   : "the keyset's default page size";
    }
    if (scatter.kind == sql::ScatterKind::aggregate && !scatter.grouped) return "1";
    if (scatter.limit.from == sql::ValueSource::From::absent ||
        scatter.limit.from == sql::ValueSource::From::null)
        return "all groups, within the router's bound";
    const auto window = scatter_window(scatter, values);
    if (window && window->rows())
        return format("%llu", static_cast<unsigned long long>(*window->rows()));
    return scatter.offset.from == sql::ValueSource::From::absent ? "as LIMIT says"
                                                                 : "LIMIT + OFFSET";
}

/// Why a page comes from all shards though an index has its name, or might have; empty: it has not.
std::string describe_choice(const IndexChoice &choice) {
    using Why = IndexChoice::Why;
    switch (choice.why) {
    case Why::index:
    case Why::none: return {};
    case Why::not_known: return "not used, unless the keyset that the parameter names has one";
    case Why::not_ready: return "not used, it is not filled yet";
    case Why::other_table: return "not used, it is of another table";
    case Why::hint: return "not used, the statement's hint says scatter";
    case Why::spelling: return "not used, the call is spelled in a way that the router cannot edit";
    }
    return {};
}

/// Of a page that comes from an index.
void describe_index(const GlobalIndex &index, const sql::Scatter &scatter, const Values &values,
                    const RouteTable &routes, RouteDescription &out) {
    out.all_shards = true;
    const Table &table = routes.tables[scatter.table];
    std::vector<std::string> &lines = out.lines;
    lines.push_back("plan: a page of a global index; rows from the shards of its entries, each "
                    "looked at again");
    lines.push_back("table: " + table.sql_name);
    lines.push_back("index: " + index.name + " in database " + routes.shards[index.database].name);
    const std::size_t shards = shards_of_keyspace(routes, table.keyspace).size();
    lines.push_back(format("shards: those of the entries, of %zu of keyspace %s", shards,
                           routes.keyspaces[table.keyspace].name.c_str()));
    const auto size = scatter_integer(scatter.page_size, values, "page_size");
    lines.push_back("rows of the page: " + (size && !*size ? std::to_string(index.default_page)
                                                           : describe_rows(scatter, values)));
    lines.push_back("allowed by: a keyset page needs no permission");
    describe_announced(table.keyspace, routes, out);
}

void describe_scatter(const sql::Scatter &scatter, const Values &values, const RouteTable &routes,
                      bool session_allows, RouteDescription &out) {
    if (scatter.unless_allowed != nullptr && !session_allows) {
        describe_refusal(*scatter.unless_allowed, out);
        return;
    }
    const IndexChoice choice = choose_index(scatter, values, routes);
    if (choice.index != nullptr) {
        describe_index(*choice.index, scatter, values, routes, out);
        return;
    }
    out.all_shards = true;
    const Table &table = routes.tables[scatter.table];
    std::vector<std::string> &lines = out.lines;
    lines.push_back(std::string("plan: ") + describe_kind(scatter));
    lines.push_back("table: " + table.sql_name);
    if (const std::string why = describe_choice(choice); !why.empty())
        lines.push_back("index: " + (choice.name.empty() ? "" : choice.name + " ") + why);
    const std::vector<ShardIndex> shards = shards_of_keyspace(routes, table.keyspace);
    std::string names;
    for (const ShardIndex shard : shards)
        names += (names.empty() ? "" : ", ") + routes.shards[shard].name;
    lines.push_back(format("shards: %zu of keyspace %s: %s", shards.size(),
                           routes.keyspaces[table.keyspace].name.c_str(), names.c_str()));
    lines.push_back("rows from a shard: " + describe_rows(scatter, values));
    const char *allowed = scatter.kind == sql::ScatterKind::keyset_page
                              ? "a keyset page is for all shards"
                          : scatter.allowed_by_hint  ? "the statement's hint"
                          : scatter.allowed_by_table ? "the catalog, for this table (allow_scatter)"
                                                     : "the session's interlock.scatter";
    lines.push_back(std::string("allowed by: ") + allowed);
    describe_announced(table.keyspace, routes, out);
}

}  // namespace

RouteDescription explain_route(std::string_view text, const sql::NameContext &names,
                               std::span<const BoundParameter> parameters, bool utf8,
                               bool scatter) {
    RouteDescription out;
    std::vector<std::string> &lines = out.lines;
    lines.push_back("profile: single-shard");
    lines.push_back(format("route version: %d", names.routes.version));
    sql::Shape shape;
    sql::make_shape(text, shape);
    const auto analysed = sql::analyse(text, shape, names);
    if (!analysed) {
        const Refusal &refusal = analysed.error();
        const bool other = scatter && refusal.as_scatter != nullptr;
        describe_refusal(other ? *refusal.as_scatter : refusal, out);
        return out;
    }
    if (analysed->empty()) lines.push_back("plan: nothing, there is no statement");
    for (std::size_t i = 0; i < analysed->size(); ++i) {
        const sql::Facts &facts = (*analysed)[i].facts;
        if (analysed->size() > 1) lines.push_back(format("statement: %zu", i + 1));
        const Values values{text, shape.literals, parameters, utf8};
        if (facts.scatter != nullptr) {
            describe_scatter(*facts.scatter, values, names.routes, scatter, out);
            continue;
        }
        lines.push_back(std::string("plan: ") + describe_action(facts));
        if (facts.action == Action::query || facts.action == Action::copy_out ||
            facts.action == Action::declare_cursor)
            describe_target(facts, values, names.routes, out);
    }
    return out;
}

std::vector<std::string> describe_route(std::string_view text, const sql::NameContext &names,
                                        std::span<const BoundParameter> parameters, bool utf8,
                                        bool scatter) {
    return std::move(explain_route(text, names, parameters, utf8, scatter).lines);
}

}  // namespace interlock
