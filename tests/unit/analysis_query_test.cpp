// Sub-selects, WITH, set operations, VALUES, LATERAL.
#include "analysis_cases.h"

namespace interlock::test {
namespace {

class QueryAnalysis : public Analysis {};

TEST_P(QueryAnalysis, IsJudged) {
    EXPECT_EQ(judge(GetParam().text), GetParam().expected) << GetParam().text;
}

const Judged subselects[] = {
    {"select * from (select * from account where account_id = 5) s", "L0"},
    {"select * from (select account_id k from account where account_id = $1) s "
     "join event e on e.account_id = s.k",
     "P0"},
    {"select * from (select * from account where account_id = $1) s join event using (account_id)",
     "P0"},
    {"select * from (select a.* from account a where a.account_id = $1) s(id) "
     "join event e on e.account_id = s.id",
     "P0"},
    {"select * from account a where a.account_id = 5 and exists "
     "(select 1 from event e where e.account_id = a.account_id)",
     "L0"},
    {"select * from account a where exists (select 1 from event e where e.account_id = "
     "a.account_id "
     "and e.account_id = 5) and account_id = 5",
     "L2"},
    {"select (select count(*) from event e where e.account_id = a.account_id) from account a "
     "where a.account_id = 5",
     "L0"},
    {"select * from account where account_id in (select account_id from event where account_id = "
     "5)",
     "L0"},
    {"select * from account where account_id in (values (1), (2))", "L0 L1"},
    {"select * from account where account_id = (select $1::bigint)", "P0:20"},
    {"select * from account where account_id = (select 5)", "L0"},
    {"select * from account a where account_id = 5 order by "
     "(select max(e.account_id) from event e where e.account_id = a.account_id)",
     "L0"},
    {"select * from account a where a.account_id = 5 and a.balance > "
     "all (select e.account_id from event e where e.account_id = 5)",
     "L0 L1@public.event"},
    {"select * from account a, lateral (select * from event e where e.account_id = a.account_id) s "
     "where a.account_id = 5",
     "L0@public.event"},
    {"select * from account a left join lateral (select * from event e "
     "where e.account_id = a.account_id limit 1) s on true where a.account_id = 5",
     "L1@public.event"},
    {"select * from account a, lateral (select a.account_id k) s join event e on e.account_id = "
     "s.k "
     "where a.account_id = 5",
     "L0"},
    {"select * from (values (1), (2)) v(k) join account a on a.account_id = v.k", "L0 L1"},
    {"select * from (values ($1::bigint, 'x')) v(k, t) join account a on a.account_id = v.k",
     "P0:20"},
    {"select * from (values (1, 'x'), ($1, 'y')) v(k, t) join account a on a.account_id = v.k",
     "L0 P0"},
    {"select * from (values ('x'), ('y')) v(k) join person p on p.name = v.k",
     "L0@public.person L1@public.person"},
    {"select * from (select distinct account_id from account where account_id = 5 "
     "group by account_id order by 1 limit 5) s",
     "L0"},
    {"select account_id, count(*), sum(balance) over (partition by owner order by version) "
     "from account where account_id = 5 group by grouping sets ((account_id), ()) having count(*) "
     "> 1",
     "L0"},
    {"select * from account where account_id = 5 for update", "L0"},
    {"select * from account a tablesample system (10) where a.account_id = 5", "L1"},
    {"select * from generate_series(1, 3) g join account a on a.balance = g where "
     "a.account_id = 5",
     "L2"},
    {"select * from account a cross join lateral unnest(array[a.balance]) u where a.account_id = 5",
     "L0"},

    {"select * from (select * from account) s", "R21 at 30"},
    {"select * from (select * from account) s where s.account_id = 5", "R21 at 30"},
    {"select * from account where account_id = 5 and balance in (select account_id from event)",
     "R21 at 83"},
    {"select * from account a where a.account_id = 5 and exists (select 1 from event e "
     "where e.account_id = a.balance)",
     "R21 at 74"},
    {"select * from account a where a.account_id = 5 or exists (select 1 from event e "
     "where e.account_id = 5)",
     "R10 at 15"},
    {"select (select owner from account where account_id = 5), * from event", "R10 at 65"},
    {"select (select count(*) from event)", "R21 at 30"},
    {"select * from account a, (select * from event e where e.account_id = a.account_id) s "
     "where a.account_id = 5",
     "R21 at 41"},
    {"select * from account where account_id not in (select account_id from event "
     "where account_id = 5)",
     "R10 at 15"},
    {"select * from account where account_id in (select balance from account where account_id = 5)",
     "R10 at 15"},
    {"select * from account where account_id > any (select 5)", "R10 at 15"},
    {"select * from (values (1.5), (2)) v(k) join account a on a.account_id = v.k", "R10 at 45"},
    {"select * from (values (1), (balance)) v(k) join account a on a.account_id = v.k",
     "R10 at 49"},
    {"select * from generate_series(1,3) g join account a on a.account_id = g", "R10 at 43"},
    {"select * from generate_series(5,5) account_id, account where account_id = 5", "L2"},
};
INSTANTIATE_TEST_SUITE_P(SubSelects, QueryAnalysis, ::testing::ValuesIn(subselects));

// Rows sent as arrays.
const Judged unnested[] = {
    {"insert into account (account_id, owner) select * from unnest($1::bigint[], $2::text[])",
     "A0:20"},
    {"insert into event select u from unnest($1::bigint[]) u", "A0:20@public.event"},
    {"select * from unnest($1::int[]) u join account a on a.account_id = u", "A0:23"},
    {"select * from unnest($1::bigint[]) u(id), account where account_id = id", "A0:20"},
    {"select * from unnest('{1,2}'::int[], array['x']::text[]) with ordinality u(id, t, n) "
     "join account a on a.account_id = u.id",
     "T0:23"},
    {"delete from account using unnest(array[1, $1]::bigint[]) u(id) where account_id = id",
     "L0 P0"},
    {"select * from unnest('{x}'::text[]) u(n) join person p on p.name = n", "T0:25@public.person"},
    {"select * from unnest($1) u join account a on a.account_id = u", "R10 at 33"},
    {"select * from unnest($1::mytype[], $2::int[]) u(a, id) join account a on a.account_id = u.id",
     "R10 at 61"},
    {"select * from unnest($1::bigint[], $2::int[]) u(a, id) join account a on a.account_id = "
     "u.id + 0",
     "R10 at 61"},
    {"select * from rows from (unnest($1::int[]), unnest($2::int[])) u(a, b) join account c on "
     "c.account_id = u.b",
     "R10 at 77"},
};
INSTANTIATE_TEST_SUITE_P(Unnest, QueryAnalysis, ::testing::ValuesIn(unnested));

const Judged with[] = {
    {"with a as (select * from account where account_id = $1) select * from a", "P0"},
    {"with a as (select * from account where account_id = $1) select * from a join event e on "
     "e.account_id = a.account_id",
     "P0"},
    {"with a(k) as (select account_id from account where account_id = $1), b as (select k from a) "
     "select * from b join event e on e.account_id = b.k",
     "P0"},
    {"with account as (select 1 as x) select * from account", "any"},
    {"with account as (select 1 as x) select * from public.account", "R10 at 47"},
    {"with k as (select $1::bigint as id) select * from account a, k where a.account_id = k.id",
     "P0:20"},
    {"with x as (select 1), y as (select * from account where account_id = 1) select * from x, y",
     "L1"},
    {"with recursive r as (select account_id, balance from account where account_id = $1 union all "
     "select a.account_id, a.balance from account a join r on a.account_id = r.account_id and "
     "a.balance = r.balance + 1) select * from r",
     "P0"},
    {"with recursive r(k, n) as (select account_id, 1 from account where account_id = $1 union "
     "select k, n + 1 from r where n < 5) select * from r join event e on e.account_id = r.k",
     "P0"},
    {"with recursive t(n) as (values (1) union all select n + 1 from t where n < 100) "
     "select sum(n) from t",
     "any"},
    {"with w as (insert into account (account_id, owner) values ($1, 'x') returning account_id) "
     "select * from w join event e on e.account_id = w.account_id",
     "P0"},
    {"with d as (delete from account where account_id = 5 returning *) "
     "insert into event select account_id from d",
     "L0"},
    {"with u as (update account set balance = 0 where account_id = 5 returning account_id) "
     "update event e set account_id = 5 from u where e.account_id = u.account_id",
     "L1 L2=@public.event"},

    {"with a as (select * from account) select 1", "R21 at 26"},
    {"with a as (select * from account) select * from a where account_id = 5", "R21 at 26"},
    {"with recursive r as (select account_id from account where account_id = 5 union all "
     "select r.account_id + 1 from r) select * from r join event e on e.account_id = r.account_id",
     "R10 at 137"},
    {"with recursive r(k) as (select account_id from account where account_id = 5 union all "
     "select a.balance from r join account a on a.account_id = r.k) select * from r",
     "R21 at 116"},
    {"with recursive a as (select * from b), b as (select * from account where account_id = 5) "
     "select * from a",
     "R21 at 36"},
    {"with d as (delete from account returning *) select 1", "R21 at 24"},
    {"with w as (insert into account (owner) values ('x') returning *) select * from w",
     "R10 at 24"},
};
INSTANTIATE_TEST_SUITE_P(With, QueryAnalysis, ::testing::ValuesIn(with));

const Judged set_operations[] = {
    {"select * from account where account_id = 5 union all select * from account "
     "where account_id = 5",
     "L0 L1"},
    {"select account_id from account where account_id = 5 except select account_id from event "
     "where account_id = 6 order by 1",
     "L0 L1@public.event"},
    {"select * from (select account_id k from account where account_id = 1 union select account_id "
     "from event where account_id = 2) s join app.event e on e.account_id = s.k",
     "L0 L1@public.event"},
    {"values (1), (2)", "any"},
    {"select 1 union select 2 intersect select 3", "any"},
    {"select * from account where account_id = 5 union select * from account", "R21 at 64"},
    {"select * from account where account_id = 5 intersect select * from account", "R21 at 68"},
    {"select * from (select account_id k from account where account_id = 1 union select 2.5) s "
     "join event e on e.account_id = s.k",
     "R10 at 95"},
};
INSTANTIATE_TEST_SUITE_P(SetOperations, QueryAnalysis, ::testing::ValuesIn(set_operations));

// What PostgreSQL makes of names decides which column is meant.
const Judged names[] = {
    // The inner table has no such column: the outer one's is meant.
    {"select * from account a where account_id = 5 and exists (select 1 from person where "
     "balance = 1 and name = 'x')",
     "L0 L3@public.person"},
    {"select * from account a where a.account_id = 5 and exists (select 1 from event a where "
     "a.account_id = 5)",
     "L0 L2@public.event"},
    {"select * from account a where a.account_id = 5 and exists (select 1 from event a)",
     "R21 at 74"},
    {"select * from account a where exists (select 1 from event where account_id = a.account_id) "
     "and a.account_id = 5",
     "L1"},
    {"select * from account a join event a on true where a.account_id = 5", "R10 at 15"},
    {"select account_id from account where account.account_id = 5", "L0"},
    {"select * from account a where account.account_id = 5", "R10 at 15"},
    {"select * from account where app.account.account_id = 5", "R10 at 15"},
    {"select * from account where ctid = '(0,1)'", "R10 at 15"},
    {"select * from account, (select 5 as account_id) s where account_id = 5", "R10 at 15"},
    {"select * from account a, event e join app.event f on account_id = f.account_id", "R10 at 15"},
    {"select * from \"account\" where \"account_id\" = 5", "L0"},
    {"select * from ACCOUNT where ACCOUNT_ID = 5", "L0"},
    {"select * from \"Account\" where account_id = 5", "R26 at 15"},
    {"select * from konto where \"schlüssel\" = 5 and true", "L0@public.konto"},
    {"select 'ü', * from konto", "R10 at 20"},
    {"select * from app.\"order\" where account_id = 5", "L0@app.\"order\""},
    {"select * from \"order\" where account_id = 5", "R26 at 15"},
    {"select * from nothing where account_id = 5", "R26 at 15"},
    {"select * from db.public.account where account_id = 5", "R26 at 15"},
    {"select * from interlock.routes", "R26 at 15"},
    {"select * from pg_class", "any"},
    {"select * from pg_catalog.pg_class c join pg_namespace n on n.oid = c.relnamespace", "any"},
    {"select * from information_schema.tables", "any"},
    {"select * from tables", "R26 at 15"},
    {"select * from pg_nothing", "R26 at 15"},
    {"select * from account where account_id = 5 and owner in (select relname from pg_class)",
     "L0"},
    {"select * from pg_class for update", "R24 at 15"},
    {"select * from account, pg_class for update of account", "R10 at 15"},
    {"update pg_class set relname = 'x'", "R24 at 8"},
    {"delete from pg_settings", "R24 at 13"},
    {"insert into pg_catalog.pg_class values (1)", "R24 at 13"},
};
INSTANTIATE_TEST_SUITE_P(Names, QueryAnalysis, ::testing::ValuesIn(names));

TEST(AnalysisPath, DecidesWhichTableIsMeant) {
    EXPECT_EQ(judge("select * from event where account_id = 1", {"public", "app"}),
              "L0@public.event");
    EXPECT_EQ(judge("select * from event where account_id = 1", {"app", "public"}), "L0@app.event");
    EXPECT_EQ(judge("select * from event where account_id = 1", {"nowhere"}), "R26 at 15");
    EXPECT_EQ(judge("select * from event where account_id = 1", {}), "R26 at 15");
    EXPECT_EQ(judge("select * from pg_class", {}), "any");
    EXPECT_EQ(judge("select * from pg_class", {"pg_catalog", "public"}), "any");
    EXPECT_EQ(judge("select * from pg_class", {"public", "pg_catalog"}), "R26 at 15");
    EXPECT_EQ(judge("select * from tables", {"information_schema"}), "any");
    EXPECT_EQ(judge("select * from account where account_id = $1::int8"), "P0:20");
    // Another schema's int8 may be meant.
    EXPECT_EQ(judge("select * from account where account_id = $1::int8", {"public", "pg_catalog"}),
              "R10 at 15");
    // So may its "=" and its functions.
    EXPECT_EQ(judge("select * from account where account_id = 5", {"public", "pg_catalog"}),
              "R26 at 1");
    EXPECT_EQ(judge("select lower('x')", {"public", "pg_catalog"}), "R26 at 1");
    EXPECT_EQ(judge("select pg_catalog.lower('x')", {"public", "pg_catalog"}), "any");
}

TEST(AnalysisPath, IsSplitAsPostgresqlDoes) {
    using Path = std::vector<std::string>;
    EXPECT_EQ(*sql::split_search_path("\"$user\", public", "bob"), (Path{"bob", "public"}));
    EXPECT_EQ(*sql::split_search_path("", "bob"), Path{});
    EXPECT_EQ(*sql::split_search_path("  ", "bob"), Path{});
    EXPECT_EQ(*sql::split_search_path("\"\"", "bob"), Path{});
    EXPECT_EQ(*sql::split_search_path("Public,\"Mixed\"\"Q\" , x", "b"),
              (Path{"public", "Mixed\"Q", "x"}));
    EXPECT_EQ(*sql::split_search_path("$user", "bob"), Path{"bob"});
    EXPECT_FALSE(sql::split_search_path("a,", "bob").has_value());
    EXPECT_FALSE(sql::split_search_path(",a", "bob").has_value());
    EXPECT_FALSE(sql::split_search_path("a b", "bob").has_value());
    EXPECT_FALSE(sql::split_search_path("\"a", "bob").has_value());
    EXPECT_EQ(sql::split_search_path(std::string(70, 'a'), "bob")->front().size(), 63U);
}

TEST(AnalysisNames, LookedUpAlongThePathAreTold) {
    const auto result = analyse_text("select lower(a.owner), pg_catalog.upper('x') from account a, "
                                     "public.event e where a.account_id = 1 and e.account_id = 1 "
                                     "and a.balance between 1 and 2 and ('x').f is null");
    ASSERT_TRUE(result);
    const sql::Facts &facts = (*result)[0].facts;
    EXPECT_EQ(facts.relation_names, std::vector<std::string>{"account"});
    EXPECT_EQ(facts.function_names, (std::vector<std::string>{"f", "lower"}));
    std::vector<std::string> operators = facts.operator_names;
    std::sort(operators.begin(), operators.end());
    EXPECT_EQ(operators, (std::vector<std::string>{"<", "<=", "=", ">", ">="}));
    EXPECT_EQ(facts.tables, (std::vector<std::uint32_t>{0, 5}));
}

}  // namespace
}  // namespace interlock::test
