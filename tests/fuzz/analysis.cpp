// Fuzz target: the input is a text, analysed as a client's. Nothing crashes, refusals are whole,
// and facts name what is there; what is accepted is accepted again, with other literals too.
#include "sql/analysis.h"
#include "check.h"
#include "plan/single_shard.h"
#include "sql/deep_stack.h"
#include "sql/parser.h"
#include "sql/raw_tokens.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace interlock;

std::shared_ptr<const RouteTable> make_routes() {
    CatalogRows rows;
    rows.version = 1;
    rows.shards = {{1, "s0", ""}, {2, "s1", ""}};
    rows.keyspaces = {{1, "main", "bigint", "splitmix64", 4}, {2, "names", "text", "xxh3_64", 4}};
    for (const auto &keyspace : rows.keyspaces)
        for (std::int32_t bucket = 0; bucket < keyspace.buckets; ++bucket)
            rows.routes.push_back({keyspace.id, bucket, 1 + bucket % 2});
    rows.tables = {{1, "public", "a", "public.a", 1, "k", ""},
                   {2, "public", "b", "public.b", 1, "k", ""},
                   {3, "public", "n", "public.n", 2, "k", ""}};
    rows.columns = {{1, "k", "k", oid::int8}, {1, "v", "v", oid::int4}, {1, "t", "t", oid::text},
                    {2, "k", "k", oid::int4}, {2, "v", "v", oid::int8}, {3, "k", "k", oid::text},
                    {3, "v", "v", oid::int8}};
    rows.functions = {{"public", "f"}};
    auto table = RouteTable::build(rows);
    return *table;
}

void check_facts(const sql::Facts &facts, const sql::Shape &shape, const RouteTable &routes) {
    for (const sql::KeySource &key : facts.keys) {
        HOLDS(key.table < routes.tables.size());
        if (key.from == sql::KeySource::From::literal ||
            key.from == sql::KeySource::From::array_text)
            HOLDS(key.index < shape.literals.size());
        if (key.negative) HOLDS(shape.literals[key.index].kind == sql::LiteralKind::integer);
    }
    for (const std::uint32_t table : facts.tables)
        HOLDS(table < routes.tables.size());
    // A statement that names a sharded table has keys, and runs no text we have not seen.
    if (!facts.tables.empty()) HOLDS(!facts.keys.empty() || facts.scatter != nullptr);
    if (facts.writes) HOLDS(!facts.tables.empty());
}

// Edits are within the text, in order and apart; the text they make is a statement to the parser,
// and asks for as many columns more as are hidden.
void check_scatter(const sql::Scatter &scatter, std::string_view text, const RouteTable &routes) {
    HOLDS(scatter.table < routes.tables.size());
    std::size_t at = 0;
    for (const sql::TextEdit &edit : scatter.edits) {
        HOLDS(edit.offset >= at);
        at = std::size_t{edit.offset} + edit.length;
        HOLDS(at <= text.size());
    }
    const std::string edited = sql::edited(text, scatter.edits);
    sql::on_deep_stack([&] { HOLDS(sql::parse(edited)); }, false);
    if (scatter.kind == sql::ScatterKind::ordered) HOLDS(scatter.hidden == 1);
    if (scatter.unless_allowed != nullptr) HOLDS(!scatter.unless_allowed->message.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static const std::shared_ptr<const RouteTable> routes = make_routes();
    static const std::vector<std::string> path = {"public"};
    const std::string_view text(reinterpret_cast<const char *>(data), size);
    sql::Shape shape;
    sql::make_shape(text, shape);
    const auto result = sql::analyse(text, shape, {*routes, path});
    std::size_t parts_end = 0;
    for (const sql::TextPart &part : sql::split_statements(text)) {
        HOLDS(part.length > 0 && part.offset >= parts_end);
        parts_end = part.offset + part.length;
        HOLDS(parts_end <= text.size());
    }
    if (!result) {
        HOLDS(!result.error().message.empty());
        HOLDS(result.error().position >= 0 &&
              static_cast<std::size_t>(result.error().position) <= text.size() + 2);
        return 0;
    }
    HOLDS(!result->empty());
    for (const sql::StatementFacts &statement : *result) {
        HOLDS(statement.offset + statement.length <= text.size());
        check_facts(statement.facts, shape, *routes);
        if (statement.facts.scatter) check_scatter(*statement.facts.scatter, text, *routes);
        const auto target = plan(statement.facts, Values{text, shape.literals, {}, true}, *routes);
        if (!target) HOLDS(!target.error().message.empty());
    }
    return 0;
}
