// Aggregates for all shards: what is put into their texts to merge groups and to combine columns.
#include "analysis_cases.h"

namespace interlock::test {
namespace {

std::string sent(std::string_view text) {
    const auto result = analyse_text(text);
    if (!result) return std::string(code_entry(result.error().code).name);
    const auto &scatter = result->front().facts.scatter;
    return scatter == nullptr ? "one shard" : sql::edited(text, scatter->edits);
}

TEST(ScatterGroups, NeedEqualValuesTogetherAndNoMore) {
    EXPECT_EQ(sent("select owner, count(*) from account group by owner"),
              "select owner, count(*), pg_catalog.encode(interlock.group_key("
              "\"account\".\"owner\"), 'hex') AS \"interlock:0\", pg_catalog.count(*) AS "
              "\"interlock:1\" from account WHERE interlock.owned('main', "
              "\"account\".\"account_id\") group by owner ORDER BY "
              "interlock.group_key(\"account\".\"owner\")");
}

TEST(ScatterGroups, ComeInTheOrderAskedForAndThenInAny) {
    EXPECT_EQ(sent("select owner, balance + 1 as b from account group by owner, 2, version order "
                   "by b desc limit 5"),
              "select owner, balance + 1 as b, pg_catalog.encode(interlock.sort_key((balance + 1), "
              "true, true) OPERATOR(pg_catalog.||) interlock.group_key(\"account\".\"owner\") "
              "OPERATOR(pg_catalog.||) interlock.group_key(\"account\".\"version\"), 'hex') AS "
              "\"interlock:0\" from account WHERE interlock.owned('main', "
              "\"account\".\"account_id\") group by owner, 2, version order by b desc, "
              "interlock.group_key(\"account\".\"owner\"), "
              "interlock.group_key(\"account\".\"version\") limit 5");
}

TEST(ScatterGroups, EachColumnSaysWhatItIsPutTogetherFrom) {
    const auto result = analyse_text("select max(owner), balance, avg(balance) filter (where "
                                     "balance > 1) as x, count(*), sum(balance) from account "
                                     "group by balance");
    ASSERT_TRUE(result);
    const auto &scatter = result->front().facts.scatter;
    ASSERT_NE(scatter, nullptr);
    EXPECT_TRUE(scatter->grouped);
    EXPECT_EQ(scatter->hidden, 6);  // merge key; sort key; sum, count; count; sum
    using Kind = sql::PartialColumn::Kind;
    const std::vector<std::pair<Kind, int>> expected{
        {Kind::max, 6}, {Kind::group, 0}, {Kind::average, 7}, {Kind::count, 9}, {Kind::sum, 10}};
    ASSERT_EQ(scatter->columns.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(scatter->columns[i].kind, expected[i].first) << i;
        if (expected[i].second != 0) EXPECT_EQ(scatter->columns[i].hidden, expected[i].second) << i;
    }
}

}  // namespace
}  // namespace interlock::test
