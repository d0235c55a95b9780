// Statements that all shards answer together: what is put into their texts, and what is refused.
#include "analysis_cases.h"

namespace interlock::test {
namespace {

/// The text the shards get, or code, position and message of the refusal.
std::string sent(std::string_view text) {
    const auto result = analyse_text(text);
    const Refusal *refusal = result ? nullptr : &result.error();
    if (refusal != nullptr && refusal->as_scatter != nullptr) refusal = refusal->as_scatter.get();
    if (refusal != nullptr)
        return std::string(code_entry(refusal->code).name) + " at " +
               std::to_string(refusal->position) + ": " + refusal->message;
    const auto &scatter = result->front().facts.scatter;
    return scatter == nullptr ? "one shard" : sql::edited(text, scatter->edits);
}

/// Of a text that all shards answer.
std::shared_ptr<const sql::Scatter> scatter_of(std::string_view text) {
    const auto result = analyse_text(text);
    EXPECT_TRUE(result) << text;
    if (!result) return std::make_shared<sql::Scatter>();
    const auto &found = result->front().facts.scatter;
    EXPECT_NE(found, nullptr) << text;
    return found == nullptr ? std::make_shared<sql::Scatter>() : found;
}

struct Sent {
    const char *text;
    const char *edited;
};
void PrintTo(const Sent &sent, std::ostream *out) {
    *out << sent.text;
}

class Edits : public ::testing::TestWithParam<Sent> {};

TEST_P(Edits, AreExact) {
    EXPECT_EQ(sent(GetParam().text), GetParam().edited);
}

#define KEY(parts) "pg_catalog.encode(" parts ", 'hex') AS \"interlock:0\""
#define ID "interlock.sort_key(\"account\".\"account_id\", false, false)"
#define OWNED "interlock.owned('main', \"account\".\"account_id\")"

const Sent ordered_texts[] = {
    {"select * from account order by account_id limit 10",
     "select *, " KEY(ID) " from account WHERE " OWNED " order by account_id limit 10"},
    {"select a.owner as o, balance b from account as a where owner = $1 or false -- x\n order by o "
     "desc, b limit $2 offset $3;",
     "select a.owner as o, balance b, " KEY(
         "interlock.sort_key(\"a\".\"owner\", true, true) OPERATOR(pg_catalog.||) "
         "interlock.sort_key(\"a\".\"balance\", false, false)") " from account as a where (owner = "
                                                                "$1 or false) AND "
                                                                "interlock.owned('main', "
                                                                "\"a\".\"account_id\") -- x\n "
                                                                "order by o desc, b "
                                                                "limit (($2)::pg_catalog.int8 "
                                                                "OPERATOR(pg_catalog.+) "
                                                                "COALESCE(($3)::pg_catalog.int8, "
                                                                "0)) "
                                                                "offset (0);"},
    {"select owner from account order by lower(owner) desc nulls last, account_id fetch first 5 "
     "rows only",
     "select owner, " KEY("interlock.sort_key((lower(owner)), true, false) "
                          "OPERATOR(pg_catalog.||) " ID) " from account WHERE " OWNED
                                                         " order by lower(owner) desc nulls last, "
                                                         "account_id fetch first 5 rows only"},
};
INSTANTIATE_TEST_SUITE_P(Ordered, Edits, ::testing::ValuesIn(ordered_texts));

/// An ordered statement with other parts in it: what is put in stays the same.
struct Around {
    const char *text;
    const char *key;  ///< what stands in the hidden column
};
void PrintTo(const Around &around, std::ostream *out) {
    *out << around.text;
}
class Keys : public ::testing::TestWithParam<Around> {};

TEST_P(Keys, AreWhatOrderByMeans) {
    const std::string text = sent(GetParam().text);
    EXPECT_NE(text.find(std::string(", pg_catalog.encode(") + GetParam().key +
                        ", 'hex') AS \"interlock:0\""),
              std::string::npos)
        << text;
}

#define OWNER "interlock.sort_key(\"account\".\"owner\", false, false)"
#define BALANCE "interlock.sort_key(\"account\".\"balance\", false, false)"

const Around meanings[] = {
    // A name is a column of the answer first.
    {"select balance as owner from account order by owner limit 1", BALANCE},
    {"select owner as x from account order by owner limit 1", OWNER},
    {"select balance owner, owner b from account order by b limit 1", OWNER},
    {"select balance owner from account order by account.owner limit 1", OWNER},
    {"select balance + 1 as owner from account order by owner limit 1",
     "interlock.sort_key((balance + 1), false, false)"},
    {"select lower(owner) from account order by lower limit 1",
     "interlock.sort_key((lower(owner)), false, false)"},
    {"select *, 1 from account order by owner limit 1", OWNER},
    {"select owner, owner from account order by owner limit 1", OWNER},
    {"select account_id o, owner from account order by 2 limit 1", OWNER},
    {"select account_id o, upper(owner) as \"x y\" from account order by 2 limit 1",
     "interlock.sort_key((upper(owner)), false, false)"},
    {"select balance + 1 as owner from account order by owner || '' limit 1",
     "interlock.sort_key((owner || ''), false, false)"},
    // Directions and NULLs.
    {"select 1 from account order by owner asc limit 1", OWNER},
    {"select 1 from account order by owner desc limit 1",
     "interlock.sort_key(\"account\".\"owner\", true, true)"},
    {"select 1 from account order by owner nulls first limit 1",
     "interlock.sort_key(\"account\".\"owner\", false, true)"},
    {"select 1 from account order by owner desc nulls last limit 1",
     "interlock.sort_key(\"account\".\"owner\", true, false)"},
    // Words, strings and comments that look like clauses.
    {"select a.owner is distinct from 'x', extract(year from now()) as from from account a order "
     "by a.owner limit 1",
     "interlock.sort_key(\"a\".\"owner\", false, false)"},
    {"select ' from where ', \"balance\" \"order\" from account where owner <> ' limit ' /* order "
     "by */ -- limit\n order by owner -- limit 5\n limit 1",
     OWNER},
    {"select $$ from $$ || $x$ limit $x$ from account where (owner) = E'\\' order by' order by "
     "owner limit 1",
     OWNER},
    {"select 'ä', owner \"größe\" from account where owner = 'ü' order by \"größe\" limit 1",
     OWNER},
    {"select schlüssel from konto order by schlüssel limit 1",
     "interlock.sort_key(\"konto\".\"schlüssel\", false, false)"},
    {"select 1 from account a(x, y) order by y limit 1",
     "interlock.sort_key(\"a\".\"y\", false, false)"},
    {"select 1 from only (account) order by owner limit 1", OWNER},
    {"select 1 from public.account order by owner limit 1", OWNER},
    {"select 1 from app.\"order\" order by \"user\" limit 1",
     "interlock.sort_key(\"order\".\"user\", false, false)"},
    {"select 1 from account \"we\"\"ird\" order by owner limit 1",
     "interlock.sort_key(\"we\"\"ird\".\"owner\", false, false)"},
    {"select 1 from account order by owner collate \"C\", (balance) limit 1",
     "interlock.sort_key((owner collate \"C\"), false, false) OPERATOR(pg_catalog.||) " BALANCE},
    {"select 1 from account order by case when owner = 'a' then 1 else 2 end desc, owner limit 1",
     "interlock.sort_key((case when owner = 'a' then 1 else 2 end), true, true) "
     "OPERATOR(pg_catalog.||) " OWNER},
    {"select all owner from account order by owner offset 3 limit 1", OWNER},
};

INSTANTIATE_TEST_SUITE_P(OrderBy, Keys, ::testing::ValuesIn(meanings));

const Sent window_texts[] = {
    {"select 1 from account order by account_id offset 3 limit 10",
     "select 1, " KEY(
         ID) " from account WHERE " OWNED " order by account_id offset (0) limit "
             "((10)::pg_catalog.int8 OPERATOR(pg_catalog.+) COALESCE((3)::pg_catalog.int8, 0))"},
    {"select 1 from account order by account_id offset $1 rows fetch next $2 rows only ;",
     "select 1, " KEY(ID) " from account WHERE " OWNED " order by account_id offset (0) rows fetch "
                          "next (($2)::pg_catalog.int8 OPERATOR(pg_catalog.+) "
                          "COALESCE(($1)::pg_catalog.int8, 0)) rows "
                          "only ;"},
    {"select 1 from account order by account_id fetch first row only",
     "select 1, " KEY(ID) " from account WHERE " OWNED " order by account_id fetch first row only"},
    {"select 1 from account order by account_id limit $1::bigint -- all\n",
     "select 1, " KEY(ID) " from account WHERE " OWNED " order by account_id limit $1::bigint -- "
                          "all\n"},
};

TEST(ScatterWindows, AreMoved) {
    for (const Sent &each : window_texts)
        EXPECT_EQ(sent(each.text), each.edited);
}

const Sent aggregate_texts[] = {
    {"select count(*) from account",
     "select count(*), pg_catalog.count(*) AS \"interlock:0\" from account WHERE " OWNED},
    {"select count(*) n, avg (balance) filter (where version > 1) a, pg_catalog.max(owner) from "
     "account where true or false",
     "select count(*) n, avg (balance) filter (where version > 1) a, pg_catalog.max(owner), "
     "pg_catalog.count(*) AS \"interlock:0\", pg_catalog.sum(balance) filter (where version > 1) "
     "AS \"interlock:1\", pg_catalog.count(balance) filter (where version > 1) AS "
     "\"interlock:2\", pg_catalog.encode(interlock.sort_key(pg_catalog.max(owner), false, false), "
     "'hex') AS \"interlock:3\" from account where (true or false) AND " OWNED},
    {"select count(owner) from account limit 1",
     "select count(owner), pg_catalog.count(owner) AS \"interlock:0\" from account WHERE " OWNED
     " limit 1"},
    {"select sum(balance), owner from account group by owner order by owner desc limit 3",
     "select sum(balance), owner, " KEY(
         "interlock.sort_key(\"account\".\"owner\", true, true)") ", pg_catalog.sum(balance) AS "
                                                                  "\"interlock:1\" from account "
                                                                  "WHERE " OWNED
                                                                  " group by owner order by owner "
                                                                  "desc limit 3"},
};
INSTANTIATE_TEST_SUITE_P(Aggregates, Edits, ::testing::ValuesIn(aggregate_texts));

const Sent page_texts[] = {
    {"select * from interlock.keyset_page('k', null::account, page_size => 50)",
     "select *, pg_catalog.encode(\"keyset_page\".\"sort_key\", 'hex') AS \"interlock:0\" from "
     "interlock.keyset_page('k', null::account, page_size => 50)"},
    {"select (item).owner, p.d from interlock.keyset_page($1, cast(null as public.account), "
     "jsonb_build_object('owner', $2::text), after := $3, page_size := $4) as p(item, b, c, d) ;",
     "select (item).owner, p.d, pg_catalog.encode(\"p\".\"c\", 'hex') AS \"interlock:0\" from "
     "interlock.keyset_page($1, cast(null as public.account), jsonb_build_object('owner', "
     "$2::text), after := $3, page_size := $4) as p(item, b, c, d) ;"},
};
INSTANTIATE_TEST_SUITE_P(Pages, Edits, ::testing::ValuesIn(page_texts));

TEST(ScatterFacts, OfAnOrderedStatement) {
    const auto scatter = scatter_of("select owner from account order by owner collate \"C\", "
                                    "account_id limit $1");
    EXPECT_EQ(scatter->kind, sql::ScatterKind::ordered);
    EXPECT_EQ(scatter->hidden, 1);
    EXPECT_EQ(scatter->order_columns, (std::vector<std::string>{"owner", "account_id"}));
    EXPECT_FALSE(scatter->text_order);
    EXPECT_EQ(scatter->limit.from, sql::ValueSource::From::parameter);
    ASSERT_NE(scatter->unless_allowed, nullptr);
    EXPECT_EQ(scatter->unless_allowed->code, Code::R10);
    EXPECT_NE(scatter->unless_allowed->hint.find("interlock: scatter"), std::string::npos);
}

/// The text a shard gets where the keyset's default is 7.
std::string paged(std::string_view text) {
    const auto scatter = scatter_of(text);
    const sql::DefaultPage &page = scatter->default_page;
    if (!page.needed) return "as it is";
    return sql::edited(text, {{page.offset, page.length, page.before + "7" + page.after}});
}

TEST(ScatterPages, WriteTheDefaultSizeIntoTheText) {
    EXPECT_EQ(paged("select * from interlock.keyset_page('k', null::account -- )\n )"),
              "select * from interlock.keyset_page('k', null::account -- )\n , page_size => 7)");
    EXPECT_EQ(paged("select * from interlock.keyset_page('k', null::account, page_size => null)"),
              "select * from interlock.keyset_page('k', null::account, page_size => 7)");
    EXPECT_EQ(
        paged("select * from interlock.keyset_page('k', null::account, null, null, null, $1::int)"),
        "select * from interlock.keyset_page('k', null::account, null, null, null, "
        "COALESCE($1::int, 7))");
    EXPECT_EQ(paged("select * from interlock.keyset_page(page_size := $2, keyset := 'k', row_type "
                    ":= null::account) p"),
              "select * from interlock.keyset_page(page_size := COALESCE($2, 7), keyset := 'k', "
              "row_type := null::account) p");
    EXPECT_EQ(paged("select * from interlock.keyset_page('k', null::account, page_size => 5)"),
              "as it is");
}

using Positions = std::vector<std::uint16_t>;

TEST(ScatterPages, KnowWhereTheirColumnsAre) {
    const auto all = scatter_of("select 1, * from interlock.keyset_page('k', null::account)");
    EXPECT_EQ(all->kind, sql::ScatterKind::keyset_page);
    EXPECT_EQ(all->unless_allowed, nullptr);
    EXPECT_EQ(all->page.cursor, Positions{2});
    EXPECT_EQ(all->page.complete, Positions{4});
    EXPECT_EQ(all->page.missing_shards, Positions{5});
    EXPECT_EQ(all->page.known, 6);
    EXPECT_FALSE(all->page.in_expressions);

    const auto open = scatter_of("select cursor, (p.item).*, complete done, p.cursor from "
                                 "interlock.keyset_page('k', null::account) p");
    EXPECT_EQ(open->page.open, 1);
    EXPECT_EQ(open->page.known, 3);
    EXPECT_EQ(open->page.cursor, (Positions{0, 2}));
    EXPECT_EQ(open->page.place(0, 7), 0);
    EXPECT_EQ(open->page.place(1, 7), 5);  // (item).* is four columns wide
    EXPECT_EQ(open->page.place(2, 7), 6);
    EXPECT_FALSE(open->page.in_expressions);

    const auto renamed = scatter_of("select complete, x, z from interlock.keyset_page('k', "
                                    "null::account) as p(complete, x, y, z)");
    EXPECT_EQ(renamed->page.cursor, Positions{1});
    EXPECT_EQ(renamed->page.complete, Positions{2});

    for (const char *text :
         {"select cursor || '' from interlock.keyset_page('k', null::account)",
          "select p from interlock.keyset_page('k', null::account) p",
          "select to_jsonb(p.*) from interlock.keyset_page('k', null::account) p",
          "select not complete from interlock.keyset_page('k', null::account)",
          "select (item).*, (item).* from interlock.keyset_page('k', null::account)"})
        EXPECT_TRUE(scatter_of(text)->page.in_expressions) << text;
    EXPECT_FALSE(scatter_of("select lower((item).owner), encode(sort_key, 'hex') from "
                            "interlock.keyset_page('k', null::account)")
                     ->page.in_expressions);
}

TEST(ScatterPages, NameTheirValues) {
    const auto scatter = scatter_of("/* interlock: partial */ select * from interlock.keyset_page("
                                    "$2, null::app.event, before => 'x', page_size => $1)");
    using From = sql::ValueSource::From;
    EXPECT_TRUE(scatter->partial_by_hint);
    EXPECT_EQ(scatter->keyset.from, From::parameter);
    EXPECT_EQ(scatter->keyset.index, 1U);
    EXPECT_EQ(scatter->before.from, From::literal);
    EXPECT_EQ(scatter->page_size.index, 0U);
    EXPECT_EQ(analysis_table().tables[scatter->table].sql_name, "app.event");
    const auto absent = scatter_of("select * from interlock.keyset_page('k', null::account)");
    EXPECT_EQ(absent->page_size.from, From::absent);
    EXPECT_EQ(scatter_of("select $1::int, * from interlock.keyset_page('k', null::account, "
                         "page_size => $1)")
                  ->page_size.typed,
              true);
}

struct RefusedScatter {
    const char *text;
    int position;
    const char *says;  ///< part of the message
};
void PrintTo(const RefusedScatter &refused, std::ostream *out) {
    *out << refused.text;
}
class Refused : public ::testing::TestWithParam<RefusedScatter> {};

TEST_P(Refused, WithPositionAndReason) {
    const std::string text = std::string("/* interlock: scatter */ ") + GetParam().text;
    const auto result = analyse_text(text);
    ASSERT_FALSE(result) << sent(text);
    EXPECT_EQ(result.error().code, Code::scatter_unsupported);
    EXPECT_EQ(result.error().position - 25, GetParam().position) << result.error().message;
    EXPECT_NE(result.error().message.find(GetParam().says), std::string::npos)
        << result.error().message;
    // Without the hint it is what it always was, and says this where the session allows scatters.
    const auto plain = analyse_text(GetParam().text);
    ASSERT_FALSE(plain);
    if (plain.error().code == Code::scatter_unsupported) return;  // a page
    EXPECT_EQ(plain.error().code, Code::R10);
    ASSERT_NE(plain.error().as_scatter, nullptr);
    EXPECT_EQ(plain.error().as_scatter->message, result.error().message);
}

const RefusedScatter not_exact[] = {
    // Forms.
    {"select 1 from account", 1, "need an order"},
    {"select 1 from account order by owner", 1, "need a LIMIT"},
    {"select 1 from account order by owner limit null", 44, "need a LIMIT"},
    {"select 1 from account order by owner limit all", 44, "need a LIMIT"},
    {"select 1 from account order by owner limit 1 + 1", 44, "no plain number"},
    {"select 1 from account order by owner limit 1.5", 44, "no plain number"},
    {"select 1 from account order by owner limit $1::text", 44, "no plain number"},
    {"select 1 from account order by owner offset 2 fetch first row only", 45, "OFFSET"},
    {"select 1 from account order by owner fetch first 3 rows with ties", 50, "WITH TIES"},
    {"select distinct owner from account order by owner limit 1", 1, "DISTINCT"},
    {"select owner from account group by owner having count(*) > 1", 49, "HAVING"},
    {"select 1 from account order by owner limit 1 for update", 1, "locked"},
    {"select 1 from account, event order by 1 limit 1", 24, "only one table"},
    {"select 1 from account a join event e using (account_id) order by 1 limit 1", 15,
     "only one table"},
    {"with x as (select 1) select 1 from account order by owner limit 1", 1, "WITH"},
    {"(select 1 from account order by owner limit 1)", 1, "cannot edit"},
    {"table account order by owner limit 1", 1, "cannot edit"},
    // Expressions.
    {"select 1 from account where random() < 0.5 order by owner limit 1", 29, "random"},
    {"select pg_sleep(1) from account order by owner limit 1", 8, "pg_sleep"},
    {"select clock_timestamp() from account order by owner limit 1", 8, "clock_timestamp"},
    {"select gen_random_uuid() from account order by owner limit 1", 8, "gen_random_uuid"},
    {"select generate_series(1, 2) from account order by owner limit 1", 8, "generate_series"},
    {"select public.total(1) from account order by owner limit 1", 8, "total"},
    {"select row_number() over () from account order by owner limit 1", 8, "window function"},
    {"select pg_backend_pid() from account order by owner limit 1", 8, "pg_backend_pid"},
    {"select 1 from account where ctid = '(0,1)' order by owner limit 1", 29, "ctid"},
    {"select tableoid from account order by owner limit 1", 8, "tableoid"},
    {"select xmin from account order by owner limit 1", 8, "xmin"},
    {"select account from account order by owner limit 1", 8, "whole row"},
    {"select to_json(a.*) from account a order by owner limit 1", 16, "whole row"},
    {"select nobody from account order by owner limit 1", 8, "is not one of"},
    {"select owner::regclass from account order by owner limit 1", 15, "regclass"},
    {"select current_schema from account order by owner limit 1", 8, "schema"},
    {"select (owner).x from account order by owner limit 1", 9, "field"},
    {"select exists (select 1) from account order by owner limit 1", 8, "sub-select"},
    {"select 1 from account where owner in (select 'x') order by owner limit 1", 35, "sub-select"},
    // Orders.
    {"select 1 from account order by now() limit 1", 32, "clock"},
    {"select age(placed) a from app.\"order\" order by a limit 1", 8, "clock"},
    {"select 1 from app.\"order\" order by placed - current_date limit 1", 45, "clock"},
    {"select 1 from app.\"order\" order by placed - 'today' limit 1", 45, "clock"},
    {"select 1 from account order by balance + $1 limit 1", 42, "parameter"},
    {"select balance + $1 as b from account order by b limit 1", 18, "parameter"},
    {"select 1 from account order by owner using < limit 1", 32, "USING"},
    {"select 1 from account order by (owner, balance) limit 1", 32, "row"},
    {"select 1 from account order by 2 limit 1", 32, "not in the target list"},
    {"select *, owner from account order by 1 limit 1", 39, "number"},
    {"select 1 from account order by 'x' limit 1", 32, "constant"},
    {"select balance as owner, owner from account order by owner limit 1", 54, "ambiguous"},
    {"select xmlelement(name x), owner from account order by owner limit 1", 56, "not known"},
    // Aggregates.
    {"select count(distinct owner) from account", 8, "DISTINCT"},
    {"select array_agg(owner) from account", 8, "array_agg"},
    {"select string_agg(owner, ',' order by owner) from account", 8, "string_agg"},
    {"select sum(balance) + 1 from account", 8, "aggregate by itself"},
    {"select count(*)::int from account", 8, "aggregate by itself"},
    {"select (count(*)) from account", 1, "cannot edit"},
    {"select owner, count(*) from account", 8, "aggregate by itself"},
    {"select balance, count(*) from account group by owner", 8, "aggregate by itself"},
    {"select owner, count(*) c from account group by owner order by c", 15, "cannot stand here"},
    {"select owner, count(*) from account group by owner order by balance", 61, "not grouped by"},
    {"select count(*) from account order by 1", 39, "one row"},
    {"select count(*) from account group by ()", 39, "GROUPING SETS"},
    {"select owner, count(*) from account group by rollup (owner)", 46, "GROUPING SETS"},
    {"select owner, count(*) from account group by (owner, balance)", 46, "row"},
    {"select count(*) from account group by now()", 39, "clock"},
    {"select 5, count(*) from account group by 1", 42, "constant"},
    {"select sum(random()) from account", 12, "random"},
    {"select count(*) filter (where random() > 0) from account", 31, "random"},
    {"select sum(count(*)) from account", 12, "cannot stand here"},
    {"select count(*) over () from account", 8, "window function"},
    {"select count(*) from account where owner in (select 'x')", 42, "sub-select"},
    // Pages.
    {"select * from interlock.keyset_page('k', null::account) where complete", 63, "WHERE"},
    {"select * from interlock.keyset_page('k', null::account) order by cursor", 66, "order"},
    {"select * from interlock.keyset_page('k', null::account) limit 1", 15, "LIMIT"},
    {"select count(*) from interlock.keyset_page('k', null::account)", 8, "aggregate"},
    {"select * from interlock.keyset_page('k', null::account), account", 15, "larger statement"},
    {"select * from interlock.keyset_page('k' || 'l', null::account)", 37, "keyset is no literal"},
    {"select * from interlock.keyset_page('k', $1)", 42, "not NULL::table"},
    {"select * from interlock.keyset_page('k', null::int)", 42, "not NULL::table"},
    {"select * from interlock.keyset_page('k', null::account[])", 42, "not NULL::table"},
    {"select * from interlock.keyset_page('k')", 15, "needs a keyset and a row type"},
    {"select * from interlock.keyset_page('k', null::account, scope => jsonb_build_object('d', "
     "current_date))",
     90, "the page would go by the clock"},
    {"select * from interlock.keyset_page('k', null::account, scope => to_jsonb(now()))", 75,
     "the page would go by the clock"},
    {"select * from interlock.keyset_page('k', null::account, size => 3)", 65, "no such parameter"},
    {"select * from interlock.keyset_page('k', null::account, page_size => 1 + 1)", 70,
     "page_size is no literal"},
    {"select * from interlock.keyset_page('k', null::account, scope => (select '{}'::jsonb))", 66,
     "sub-select"},
    {"select * from interlock.keyset_page('k', null::account) with ordinality", 15, "alone"},
    {"select random() from interlock.keyset_page('k', null::account)", 8, "random"},
    {"select * from (select * from interlock.keyset_page('k', null::account)) x", 30,
     "statement of its own"},
    {"explain select * from interlock.keyset_page('k', null::account)", 1, "EXPLAIN"},
    {"copy (select * from interlock.keyset_page('k', null::account)) to stdout", 1, "COPY"},
    // What wraps a statement.
    {"explain select 1 from account order by owner limit 1", 1, "EXPLAIN"},
    {"copy (select count(*) from account) to stdout", 1, "COPY"},
    {"declare c cursor for select count(*) from account", 1, "cursor"},
};
INSTANTIATE_TEST_SUITE_P(NotExact, Refused, ::testing::ValuesIn(not_exact));

TEST(ScatterFacts, ALimitWithoutANumberIsOne) {
    const auto scatter = scatter_of("select 1 from account order by owner fetch first row only");
    EXPECT_EQ(scatter->limit.from, sql::ValueSource::From::number);
    EXPECT_EQ(scatter->limit.index, 1U);
}

TEST(ScatterFacts, OrdersByCollationsAreTold) {
    const auto by_text = [](const char *order) {
        return scatter_of(std::string("select 1 from account order by ") + order + " limit 1")
            ->text_order;
    };
    EXPECT_TRUE(by_text("owner"));
    EXPECT_TRUE(by_text("owner collate \"de-x-icu\""));
    EXPECT_TRUE(by_text("lower(owner)"));
    EXPECT_TRUE(by_text("balance::text"));
    EXPECT_FALSE(by_text("owner collate \"C\""));
    EXPECT_FALSE(by_text("balance, account_id"));
    EXPECT_FALSE(by_text("owner::int"));
    EXPECT_TRUE(scatter_of("select max(owner) from account")->text_order);
    EXPECT_FALSE(scatter_of("select max(balance) from account")->text_order);
}

TEST(ScatterFacts, ColumnsOfATotalOrder) {
    const auto columns = [](const char *order) {
        return scatter_of(std::string("select owner as o from account a(k) order by ") + order +
                          " limit 1")
            ->order_columns;
    };
    using Names = std::vector<std::string>;
    EXPECT_EQ(columns("o, k desc, balance + 1, version"),
              (Names{"owner", "account_id", "version"}));
    EXPECT_EQ(columns("owner collate \"C\""), Names{"owner"});
    EXPECT_EQ(columns("owner collate \"de-x-icu\", k::text"), Names{});
}

TEST(ScatterFacts, NamesAreChecked) {
    const auto result = analyse_text("select lower(owner) from account where owner > 'a' order by "
                                     "balance + 1 limit 1");
    ASSERT_TRUE(result);
    const sql::Facts &facts = result->front().facts;
    EXPECT_FALSE(facts.cacheable);
    EXPECT_TRUE(facts.keys.empty());
    EXPECT_EQ(facts.tables.size(), 1U);
    EXPECT_EQ(facts.relation_names, std::vector<std::string>{"account"});
    EXPECT_EQ(facts.function_names, std::vector<std::string>{"lower"});
    EXPECT_EQ(facts.operator_names, (std::vector<std::string>{">", "+"}));
}

TEST(ScatterPermission, ComesFromTheHintOrTheCatalog) {
    CatalogRows rows = reference_rows();
    rows.tables[0].scatter = true;
    const auto table = build(rows);
    const std::vector<std::string> path = {"public"};
    const auto judged = [&](std::string_view text) {
        sql::Shape shape;
        sql::make_shape(text, shape);
        return sql::analyse(text, shape, {*table, path});
    };
    const auto allowed = judged("select count(*) from account");
    ASSERT_TRUE(allowed);
    EXPECT_TRUE(allowed->front().facts.scatter->allowed_by_table);
    EXPECT_EQ(allowed->front().facts.scatter->unless_allowed, nullptr);
    EXPECT_NE(judged("select count(*) from event")->front().facts.scatter->unless_allowed, nullptr);
    const auto hinted = judged("/* interlock: scatter */ select count(*) from event");
    EXPECT_TRUE(hinted->front().facts.scatter->allowed_by_hint);
    EXPECT_EQ(hinted->front().facts.scatter->unless_allowed, nullptr);
    EXPECT_EQ(judged("select 1 from account").error().code, Code::scatter_unsupported);
    EXPECT_EQ(judged("select 1 from account, event").error().code, Code::R10);
    // What is on one shard stays there.
    EXPECT_EQ(judged("/* interlock: scatter */ select count(*) from event where account_id = 1")
                  ->front()
                  .facts.scatter,
              nullptr);
}

TEST(ScatterPermission, ShapesKeepHintsApart) {
    const auto shape_of = [](std::string_view text) {
        sql::Shape shape;
        sql::make_shape(text, shape);
        return shape.text;
    };
    EXPECT_NE(shape_of("/* interlock: scatter */ select 1"), shape_of("select 1"));
    EXPECT_NE(shape_of("/* InterLock: scatter */ select 1"), shape_of("select 1"));
    EXPECT_EQ(shape_of("/* interlock scatter */ select 1"), shape_of("select 1"));
}

TEST(ScatterTexts, OfSeveralStatementsAreEditedInPlace) {
    const char *text = "select 1; /* interlock: scatter */ select count(*) from account; select 2";
    const auto result = analyse_text(text);
    ASSERT_TRUE(result);
    ASSERT_EQ(result->size(), 3U);
    ASSERT_NE((*result)[1].facts.scatter, nullptr);
    EXPECT_EQ(sql::edited(text, (*result)[1].facts.scatter->edits),
              "select 1; /* interlock: scatter */ select count(*), pg_catalog.count(*) AS "
              "\"interlock:0\" from account WHERE " OWNED "; select 2");
}

}  // namespace
}  // namespace interlock::test
