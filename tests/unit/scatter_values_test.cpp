// Values of a scatter that the router reads itself, and what EXPLAIN ROUTE says of one.
#include "analysis_cases.h"
#include "plan/describe.h"
#include "plan/scatter_values.h"

#include <algorithm>

namespace interlock::test {
namespace {

using sql::ValueSource;

std::string big_endian(std::uint64_t value, int bytes) {
    std::string out;
    for (int i = bytes - 1; i >= 0; --i)
        out += static_cast<char>(value >> (8 * i) & 0xFF);
    return out;
}

/// "10", "null", or the code of the refusal.
std::string integer(const BoundParameter &parameter, bool typed = false) {
    ValueSource source;
    source.from = ValueSource::From::parameter;
    source.typed = typed;
    const auto value = scatter_integer(source, Values{"", {}, {&parameter, 1}, true}, "LIMIT");
    if (!value) return std::string(code_entry(value.error().code).name);
    return *value ? std::to_string(**value) : "null";
}

TEST(ScatterValues, IntegersInEitherFormat) {
    const std::string eight = big_endian(10, 8);
    const std::string four = big_endian(0xFFFFFFFF, 4);
    const std::string two = big_endian(7, 2);
    EXPECT_EQ(integer({"10", false, 0}), "10");
    EXPECT_EQ(integer({"+10", false, oid::int8}), "10");
    EXPECT_EQ(integer({"-3", false, oid::unknown}), "-3");
    EXPECT_EQ(integer({eight, true, 0}), "10");
    EXPECT_EQ(integer({four, true, 0}), "-1");
    EXPECT_EQ(integer({two, true, oid::int2}), "7");
    EXPECT_EQ(integer({eight, true, oid::int8}, true), "10");
    EXPECT_EQ(integer({"10", false, 0}, true), "10");
    EXPECT_EQ(integer({std::nullopt, false, 0}), "null");
    EXPECT_EQ(integer({eight, true, 0}, true), "R27");
    EXPECT_EQ(integer({eight, true, oid::int4}), "R27");
    EXPECT_EQ(integer({"abc", true, 0}), "R27");
    EXPECT_EQ(integer({"", true, 0}), "R27");
    EXPECT_EQ(integer({" 10", false, 0}), "R27");
    EXPECT_EQ(integer({"1e1", false, 0}), "R27");
    EXPECT_EQ(integer({"10", false, oid::text}), "R27");
    EXPECT_EQ(integer({"10", false, oid::numeric}), "R27");
    EXPECT_EQ(integer({"9223372036854775808", false, 0}), "R27");
}

/// The window of a statement: "limit offset", or code or SQLSTATE of the refusal.
std::string window(std::string_view text, const std::vector<BoundParameter> &parameters = {}) {
    sql::Shape shape;
    sql::make_shape(text, shape);
    const std::vector<std::string> path = {"public"};
    const auto facts = sql::analyse(text, shape, {analysis_table(), path});
    if (!facts || facts->front().facts.scatter == nullptr) return "no scatter";
    const auto found = scatter_window(*facts->front().facts.scatter,
                                      Values{text, shape.literals, parameters, true});
    if (!found) return std::string(found.error().state());
    return (found->limit ? std::to_string(*found->limit) : "all") + " " +
           std::to_string(found->offset);
}

TEST(ScatterValues, WindowsOfStatements) {
    const std::string ordered = "select 'x', 1 from account order by owner ";
    EXPECT_EQ(window(ordered + "limit 10"), "10 0");
    EXPECT_EQ(window(ordered + "limit '10' offset 3"), "10 3");
    EXPECT_EQ(window(ordered + "limit 0"), "0 0");
    EXPECT_EQ(window(ordered + "fetch first row only"), "1 0");
    EXPECT_EQ(window(ordered + "limit -1"), "2201W");
    EXPECT_EQ(window(ordered + "limit 1 offset -1"), "2201X");
    EXPECT_EQ(window(ordered + "limit $2 offset $1", {{"3", false, 0}, {"4", false, 0}}), "4 3");
    EXPECT_EQ(window(ordered + "limit $1 offset $2", {{"3", false, 0}, {std::nullopt, false, 0}}),
              "3 0");
    EXPECT_EQ(window(ordered + "limit $1", {{std::nullopt, false, 0}}), "IL207");
    EXPECT_EQ(window(ordered + "limit $1", {}), "IL027");
    EXPECT_EQ(window("select count(*) from account limit null"), "all 0");
    EXPECT_EQ(window("select owner from account group by owner offset 2"), "all 2");
    EXPECT_EQ(window("select owner from account where owner = $1 group by owner limit $1",
                     {{big_endian(1, 8), true, 0}}),
              "IL027");
}

TEST(ScatterValues, NamesOfKeysets) {
    const auto name = [](std::string_view text,
                         const std::vector<BoundParameter> &parameters = {}) {
        sql::Shape shape;
        sql::make_shape(text, shape);
        const std::vector<std::string> path = {"public"};
        const auto facts = sql::analyse(text, shape, {analysis_table(), path});
        EXPECT_TRUE(facts) << text;
        const auto found = scatter_text(facts->front().facts.scatter->keyset,
                                        Values{text, shape.literals, parameters, true}, "keyset");
        if (!found) return std::string(code_entry(found.error().code).name);
        return found->value_or("null");
    };
    const std::string from = "select * from interlock.keyset_page(";
    EXPECT_EQ(name(from + "'a''b', null::account)"), "a'b");
    EXPECT_EQ(name(from + "E'a\\'b'::text, null::account)"), "a'b");
    EXPECT_EQ(name(from + "$k$k$k$, null::account)"), "k");
    EXPECT_EQ(name(from + "$1, null::account)", {{"k", true, oid::varchar}}), "k");
    EXPECT_EQ(name(from + "$1, null::account)", {{std::nullopt, false, 0}}), "null");
    EXPECT_EQ(name(from + "null, null::account)"), "null");
    EXPECT_EQ(name(from + "$1, null::account)", {{"k", false, oid::int8}}), "R27");
    EXPECT_EQ(name(from + "$2, null::account)", {{"k", false, 0}}), "R27");
    EXPECT_EQ(name(from + "U&'k', null::account)"), "R27");
}

TEST(ScatterShards, AreThoseThatOwnABucket) {
    CatalogRows rows = reference_rows();
    rows.shards.push_back({3, "s2", "host=s2"});
    for (auto &route : rows.routes)
        if (route.keyspace_id == 2) route.shard_id = 3;
    const auto table = build(rows);
    EXPECT_EQ(shards_of_keyspace(*table, 0), (std::vector<ShardIndex>{0, 1}));
    EXPECT_EQ(shards_of_keyspace(*table, 1), std::vector<ShardIndex>{2});
}

bool has(const RouteDescription &described, const char *line) {
    return std::find(described.lines.begin(), described.lines.end(), line) != described.lines.end();
}

TEST(ScatterDescription, SaysWhoAnswersAndWhoAllowedIt) {
    const std::vector<std::string> path = {"public"};
    const sql::NameContext names{analysis_table(), path};
    const auto hinted =
        explain_route("/* interlock: scatter */ select 1 from account order by owner limit 5 "
                      "offset 10",
                      names, {}, true);
    EXPECT_FALSE(hinted.refusal);
    EXPECT_TRUE(hinted.all_shards);
    EXPECT_TRUE(has(hinted, "plan: all shards, each its first rows in the order; merged and cut"));
    EXPECT_TRUE(has(hinted, "shards: 2 of keyspace main: s0, s1"));
    EXPECT_TRUE(has(hinted, "rows from a shard: 15"));
    EXPECT_TRUE(has(hinted, "allowed by: the statement's hint"));
    const auto open =
        explain_route("select 1 from account order by owner limit $1", names, {}, true, true);
    EXPECT_TRUE(has(open, "rows from a shard: as LIMIT says"));
    EXPECT_TRUE(has(open, "allowed by: the session's interlock.scatter"));
    const auto refused = explain_route("select count(*) from account", names, {}, true);
    ASSERT_TRUE(refused.refusal);
    EXPECT_EQ(refused.refusal->code, Code::R10);
    EXPECT_FALSE(refused.all_shards);
    const auto never = explain_route("select 1 from account", names, {}, true, true);
    ASSERT_TRUE(never.refusal);
    EXPECT_EQ(never.refusal->code, Code::scatter_unsupported);
    const auto page = explain_route("select * from interlock.keyset_page('k', null::account, "
                                    "page_size => 3)",
                                    names, {}, true);
    EXPECT_TRUE(has(page, "rows from a shard: 3"));
    EXPECT_TRUE(has(page, "allowed by: a keyset page is for all shards"));
    // In front of EXPLAIN ROUTE the hint counts for the statement behind it.
    const auto routed = analyse_text(
        "/* interlock: scatter, partial */ explain route select count(*) from account");
    ASSERT_TRUE(routed);
    EXPECT_EQ(routed->front().facts.text, "/* interlock: scatter */ /* interlock: partial */ "
                                          "select count(*) from account");
}

}  // namespace
}  // namespace interlock::test
