// What a page's text becomes for a global index and for the shards of its entries, and which way a
// page is answered.
#include "analysis_cases.h"
#include "plan/describe.h"
#include "plan/index_choice.h"
#include "sql/index_page.h"
#include "sql/scatter_skeleton.h"

namespace interlock::test {
namespace {

const std::vector<std::string> path{"public"};

/// The reference table, with an index of table account and one of konto, in database ix.
std::shared_ptr<const RouteTable> indexed(bool ready = true) {
    CatalogRows rows = reference_rows();
    rows.shards.push_back({3, "ix", "host=ix", true});
    rows.indexes.push_back({1, "k", 1, {"owner"}, "balance, account_id", 3, ready});
    rows.indexes.push_back({2, "konten", 9, {"schlüssel"}, "schlüssel", 3, ready});
    return build(rows);
}

struct Analysed {
    std::string text;
    sql::Shape shape;
    sql::Facts facts;
    std::shared_ptr<const RouteTable> table = indexed();

    explicit Analysed(std::string_view statement, bool ready = true)
        : text(statement), table(indexed(ready)) {
        sql::make_shape(text, shape);
        auto analysed = sql::analyse(text, shape, {*table, path});
        EXPECT_TRUE(analysed) << text;
        if (analysed) facts = std::move(analysed->front().facts);
    }
    [[nodiscard]] const sql::Scatter &scatter() const {
        static const sql::Scatter none;
        return facts.scatter ? *facts.scatter : none;
    }
    [[nodiscard]] std::string entries(const sql::EntryWish &wish = {.size = 9}) const {
        if (!scatter().call.sound) return "not sound";
        const GlobalIndex &index = table->indexes[scatter().table == 0 ? 0 : 1];
        const std::string made = sql::entries_text(scatter().call, text, index, wish);
        return made.substr(made.find(" FROM ") + 6);
    }
    [[nodiscard]] std::string rows() const {
        const std::vector<std::string> cursors{"a", "b"};
        const std::string made = sql::rows_text(scatter(), text, cursors);
        return made.substr(made.find("interlock:0\"") + 13);
    }
    [[nodiscard]] IndexChoice choice(const std::vector<BoundParameter> &parameters = {}) const {
        return choose_index(scatter(), {text, shape.literals, parameters}, *table);
    }
};

const char *const index_k =
    "interlock.keyset_page('interlock_index.k', NULL::interlock_index.\"k\"";

TEST(IndexTexts, HaveTheClientsArguments) {
    const struct {
        const char *call;
        const char *entries;  ///< behind the row type
        const char *rows;
    } cases[] = {
        {"from interlock.keyset_page('k', null::account)", ", page_size => 9) AS p",
         "from interlock.keyset_rows('k', null::account, cursors => '{a,b}') AS keyset_page"},
        {"from interlock.keyset_page($1, null::account, $2, $3, null, 50) p -- )",
         ", scope => ($2), after => ($3), before => (null), page_size => 9) AS p",
         "from interlock.keyset_rows($1, null::account, $2, $3, null, 50, cursors => '{a,b}') p "
         "-- )"},
        {"from interlock . /* ( */ \"keyset_page\" (page_size := $1, before => 'it''s', keyset => "
         "'k', scope => jsonb_build_object('a', ($2)::int, 'b', lower('),')), row_type => "
         "null::account /* , */ ) as p(item, b, c) ;",
         ", before => ('it''s'), scope => (jsonb_build_object('a', ($2)::int, 'b', lower('),'))), "
         "page_size => 9) AS p",
         "from interlock . /* ( */ keyset_rows (page_size := $1, before => 'it''s', keyset => 'k', "
         "scope => jsonb_build_object('a', ($2)::int, 'b', lower('),')), row_type => "
         "null::account /* , */ , cursors => '{a,b}') as p(item, b, c) ;"},
        {"from interlock.KEYSET_PAGE('k', null::account, cast($1 as jsonb), $$(,$$)",
         ", scope => (cast($1 as jsonb)), after => ($$(,$$), page_size => 9) AS p",
         "from interlock.keyset_rows('k', null::account, cast($1 as jsonb), $$(,$$, cursors => "
         "'{a,b}') AS keyset_page"},
    };
    for (const auto &each : cases) {
        const Analysed page(std::string("select (item).owner ") + each.call);
        EXPECT_EQ(page.entries(), index_k + std::string(each.entries)) << each.call;
        EXPECT_EQ(page.rows(), each.rows) << each.call;
    }
    // Column names by the function's own name go on meaning it.
    const Analysed named(
        "select keyset_page.cursor from interlock.keyset_page('k', null::account)");
    EXPECT_TRUE(named.scatter().call.sound);
    const Analysed konto("select * from interlock.keyset_page('konten', null::konto)");
    const std::string text = sql::entries_text(konto.scatter().call, konto.text,
                                               *konto.table->find_index("konten"), {.size = 1});
    EXPECT_TRUE(text.starts_with("SELECT interlock.hash_key((p.item).\"schlüssel\")::")) << text;
}

TEST(IndexTexts, GoOnFromACursorOfTheRouters) {
    const Analysed page("select * from interlock.keyset_page($1, null::account, $2, after => "
                        "coalesce($3, $4), page_size => $5)");
    EXPECT_EQ(page.entries({.size = 9, .cursor = "c'1", .backward = true}),
              index_k + std::string(", scope => ($2), before => 'c''1', page_size => 9) AS p"));
    EXPECT_EQ(page.entries({.size = 9, .cursor = "c", .backward = false}),
              index_k + std::string(", scope => ($2), after => 'c', page_size => 9) AS p"));
    std::string used;
    for (const sql::EntryWish &wish : {sql::EntryWish{.size = 1}, {.size = 1, .cursor = "c"}})
        for (std::uint32_t i = 0; i < 6; ++i)
            used += sql::entries_use(page.scatter().call, wish, i) ? '1' : '0';
    EXPECT_EQ(used, "011100"
                    "010000");
}

TEST(IndexTexts, AreMadeForTablesWithAnIndexAlone) {
    EXPECT_FALSE(
        Analysed("select * from interlock.keyset_page('k', null::event)").scatter().call.sound);
}

TEST(IndexTexts, OfOneSkeletonAreMovedWithTheirLiterals) {
    const char *const pages[][2] = {
        {"select 'a', cursor from interlock.keyset_page('k', null::account, '{}', 'x', page_size "
         "=> 5)",
         "select 'much longer', cursor from interlock.keyset_page('k', null::account, '{\"a\": "
         "1}', '', page_size => 5000)"},
        {"select 1 from interlock.keyset_page('k', null::account, jsonb_build_object('a', 1), "
         "before => E'\\\\') p",
         "select 22 from interlock.keyset_page('k', null::account, jsonb_build_object('aaa', 1), "
         "before => E'') p"},
    };
    for (const auto &pair : pages) {
        const Analysed first(pair[0]);
        const Analysed second(pair[1]);
        const auto kept = sql::keepable_page(first.facts, first.shape);
        ASSERT_NE(kept, nullptr);
        Analysed moved = second;
        moved.facts = *sql::page_facts(*kept, second.shape);
        EXPECT_EQ(moved.rows(), second.rows());
        EXPECT_EQ(moved.entries(), second.entries());
    }
}

TEST(IndexChoices, AreReasoned) {
    using Why = IndexChoice::Why;
    const char *page = "select * from interlock.keyset_page('k', null::account)";
    EXPECT_EQ(Analysed(page).choice().why, Why::index);
    EXPECT_EQ(Analysed(page).choice().index->name, "k");
    EXPECT_EQ(Analysed(page, false).choice().why, Why::not_ready);
    EXPECT_EQ(Analysed("/* interlock: scatter */ " + std::string(page)).choice().why, Why::hint);
    EXPECT_EQ(Analysed("/* interlock: partial */ " + std::string(page)).choice().why, Why::index);
    EXPECT_EQ(Analysed("select * from interlock.keyset_page('l', null::account)").choice().why,
              Why::none);
    EXPECT_EQ(Analysed("select * from interlock.keyset_page('konten', null::account)").choice().why,
              Why::other_table);
    const Analysed parameter("select * from interlock.keyset_page($1, null::account)");
    EXPECT_EQ(parameter.choice().why, Why::not_known);
    EXPECT_EQ(parameter.choice({{"k", false, 0}}).why, Why::index);
    EXPECT_EQ(parameter.choice({{"l", false, 0}}).why, Why::none);
    EXPECT_EQ(parameter.choice({{std::nullopt, false, 0}}).why, Why::none);
    EXPECT_EQ(Analysed("/* interlock: scatter */ select owner from account order by account_id "
                       "limit 1")
                  .choice()
                  .why,
              Why::none);
}

TEST(IndexChoices, AreTold) {
    const auto told = [](const char *text, bool ready = true) {
        std::string lines;
        const auto table = indexed(ready);
        for (const std::string &line : describe_route(text, {*table, path}, {}, true, false))
            lines += line + "\n";
        return lines;
    };
    EXPECT_EQ(told("select * from interlock.keyset_page('k', null::account, page_size => 20)"),
              "profile: single-shard\n"
              "route version: 3\n"
              "plan: a page of a global index; rows from the shards of its entries, each looked at "
              "again\n"
              "table: public.account\n"
              "index: k in database ix\n"
              "shards: those of the entries, of 2 of keyspace main\n"
              "rows of the page: 20\n"
              "allowed by: a keyset page needs no permission\n");
    EXPECT_NE(told("select * from interlock.keyset_page('k', null::account)").find("page: 50\n"),
              std::string::npos);
    EXPECT_NE(told("select * from interlock.keyset_page('k', null::account)", false)
                  .find("index: k not used, it is not filled yet\n"),
              std::string::npos);
    EXPECT_NE(told("select * from interlock.keyset_page($1, null::account)")
                  .find("index: not used, unless the keyset that the parameter names has one\n"),
              std::string::npos);
    EXPECT_EQ(told("select * from interlock.keyset_page('l', null::account)").find("index:"),
              std::string::npos);
}

}  // namespace
}  // namespace interlock::test
