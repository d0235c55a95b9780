// Keyset pages whose texts differ in their literals only.
#include "sql/scatter_skeleton.h"

#include "analysis_cases.h"

namespace interlock::test {
namespace {

sql::Shape shape_of(std::string_view text) {
    sql::Shape shape;
    sql::make_shape(text, shape);
    return shape;
}

sql::Facts facts_of(std::string_view text) {
    auto result = analyse_text(text);
    EXPECT_TRUE(result) << text;
    return result ? std::move(result->front().facts) : sql::Facts{};
}

std::string with_default(std::string_view text, const sql::Scatter &scatter) {
    if (!scatter.default_page.needed) return sql::edited(text, scatter.edits);
    const sql::DefaultPage &page = scatter.default_page;
    std::vector<sql::TextEdit> edits = scatter.edits;
    edits.push_back({page.offset, page.length, page.before + "7" + page.after});
    std::sort(edits.begin(), edits.end(),
              [](const auto &a, const auto &b) { return a.offset < b.offset; });
    return sql::edited(text, edits);
}

const char *const pages[][2] = {
    {"select 'a', p.cursor from interlock.keyset_page('k', null::account, '{}', 'x', page_size => "
     "5) p",
     "select 'much longer', p.cursor from interlock.keyset_page('k', null::account, '{\"a\": 1}', "
     "'', page_size => 5000) p"},
    {"select *, 1 from interlock.keyset_page('k', null::account, after => E'\\\\') where_ -- e",
     "select *, 123456 from interlock.keyset_page('k2', null::account, after => E'') where_ -- e"},
    {"/* interlock: partial */ select cursor, 'é' from interlock.keyset_page('k', null::account, "
     "null, $$c$$, null, null)",
     "/* interlock: partial */ select cursor, '' from interlock.keyset_page('kk', null::account, "
     "null, $tag$cccc$tag$, null, null)"},
};

TEST(ScatterSkeleton, MovedEditsAreThoseOfAnAnalysisOfItsOwn) {
    for (const auto &pair : pages) {
        const sql::Shape first = shape_of(pair[0]);
        const sql::Shape second = shape_of(pair[1]);
        EXPECT_EQ(sql::skeleton(pair[0], first), sql::skeleton(pair[1], second));
        for (const bool turned : {false, true}) {
            const auto kept =
                sql::keepable_page(facts_of(pair[turned ? 1 : 0]), turned ? second : first);
            ASSERT_NE(kept, nullptr);
            const char *text = pair[turned ? 0 : 1];
            const auto moved = sql::page_facts(*kept, turned ? first : second);
            EXPECT_EQ(with_default(text, *moved->scatter),
                      with_default(text, *facts_of(text).scatter));
        }
    }
}

TEST(ScatterSkeleton, WhatStandsBetweenTheLiteralsIsPartOfIt) {
    const std::string_view text = "select cursor from interlock.keyset_page('k', null::account)";
    const std::string key = sql::skeleton(text, shape_of(text));
    for (const std::string_view other : {
             "select  cursor from interlock.keyset_page('k', null::account)",
             "select cursor from interlock.keyset_page('k', null::account) ",
             "select cursor from interlock.keyset_page('k', null::account) -- c",
             "select cursor from interlock.keyset_page(E'k', null::account)",
             "SELECT cursor from interlock.keyset_page('k', null::account)",
         })
        EXPECT_NE(sql::skeleton(other, shape_of(other)), key) << other;
}

TEST(ScatterSkeleton, OtherStatementsAreNotKept) {
    const std::string_view text =
        "/* interlock: scatter */ select owner from account order by account_id limit 10";
    const auto facts = facts_of(text);
    ASSERT_NE(facts.scatter, nullptr);
    EXPECT_EQ(sql::keepable_page(facts, shape_of(text)), nullptr);
}

}  // namespace
}  // namespace interlock::test
