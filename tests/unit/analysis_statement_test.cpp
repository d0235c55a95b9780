// Functions, operators, statements that are no queries, hints, messages.
#include "analysis_cases.h"

namespace interlock::test {
namespace {

class StatementAnalysis : public Analysis {};

TEST_P(StatementAnalysis, IsJudged) {
    EXPECT_EQ(judge(GetParam().text), GetParam().expected) << GetParam().text;
}

const Judged functions[] = {
    {"select now(), current_timestamp, current_user, random(), gen_random_uuid(), pg_sleep(0)",
     "any"},
    {"select lower('x'), pg_catalog.upper('x'), coalesce(1, 2), greatest(1, 2), nullif(1, 2)",
     "any"},
    {"select count(*) filter (where true), string_agg('a', ',' order by 1), row_number() over () ",
     "any"},
    {"select extract(year from now()), position('a' in 'b'), substring('abc' from 2), trim(' a '), "
     "overlay('abc' placing 'x' from 1), now() at time zone 'UTC', interval '1 day'",
     "any"},
    {"select xmlelement(name a, 'b'), xmlforest(1 as a), xmlserialize(document '<a/>' as text)",
     "any"},
    {"select '{\"a\":1}'::jsonb -> 'a', array[1,2] && array[3], 'a' ~ 'b', 1 <-> 2", "any"},
    {"select * from xmltable('/a' passing '<a/>' columns b int path 'b')", "any"},
    {"select * from unnest(array[1,2]) with ordinality as u(a, b)", "any"},
    {"select * from rows from (generate_series(1,2), generate_series(1,3)) as r(a, b)", "any"},
    {"select * from json_to_recordset('[]') as r(a int, b text)", "any"},
    {"select (pg_identify_object(1, 2, 3)).type", "any"},
    {"select (information_schema._pg_expandarray(array[1])).n", "any"},
    {"select 'x'::regclass, 'a'::mytype, regclass('pg_class')", "any"},
    {"select 1 operator(pg_catalog.+) 2", "any"},
    {"select total(1), app.fee(2)", "any"},
    {"select case 1 when 2 then 3 end, case when true then 1 else 2 end, (1, 2) = (3, 4)", "any"},
    {"select * from account where account_id = 5 and total(balance) > 0", "L0"},

    {"select nextval('s')", "R25 at 8"},
    {"select pg_catalog.nextval('s')", "R25 at 8"},
    {"select currval('s'), lastval(), setval('s', 1)", "R25 at 8"},
    {"select 1 + nextval('s')", "R25 at 12"},
    {"select * from nextval('s')", "R25 at 15"},
    {"select set_config('work_mem', '1MB', false)", "R25 at 8"},
    {"select pg_advisory_lock(1)", "R25 at 8"},
    {"select pg_try_advisory_xact_lock(1)", "R25 at 8"},
    {"select pg_notify('a', 'b')", "R25 at 8"},
    {"select pg_terminate_backend(1)", "R01 at 8"},
    {"select pg_cancel_backend(1)", "R01 at 8"},
    {"select pg_read_file('x')", "R01 at 8"},
    {"select lo_import('x')", "R01 at 8"},
    {"select query_to_xml('select 1', true, true, '')", "R01 at 8"},
    {"select txid_current()", "R01 at 8"},
    {"select ts_stat('select 1')", "R01 at 8"},
    {"select pg_logical_emit_message(true, 'a', 'b')", "R01 at 8"},
    {"select dblink('a', 'b')", "R26 at 8"},
    {"select unknown(1)", "R26 at 8"},
    {"select fee(1)", "R26 at 8"},
    {"select app.total(1)", "R26 at 8"},
    {"select db.app.fee(1)", "R26 at 8"},
    {"select interlock.bucket_of('main', 1)", "R26 at 8"},
    {"select pg_catalog.total(1)", "R26 at 8"},
    {"select 1 <<<>>> 2", "R26 at 10"},
    {"select 1 operator(public.+) 2", "R26 at 10"},
    {"select * from account where account_id operator(public.=) 5", "R10 at 15"},
    {"select array(select 1 order by 1 using operator(public.<))", "R26 at 40"},
    // PostgreSQL calls nextval here.
    {"select ('s').nextval", "R01 at 9"},
    {"select x.nextval from unnest(array['s']) x", "R01 at 8"},
    {"select a.pg_notify from account a where a.account_id = 5", "R01 at 8"},
    {"select a.balance, a.nothing from account a where a.account_id = 5", "L0"},
};
INSTANTIATE_TEST_SUITE_P(Functions, StatementAnalysis, ::testing::ValuesIn(functions));

const Judged statements[] = {
    {"explain select * from account where account_id = 5", "L0"},
    {"explain (analyze, buffers) select * from account", "R10 at 42"},
    {"declare c cursor for select * from account where account_id = 5", "L0"},
    {"declare c cursor with hold for select 1", "R25 at 1"},
    {"fetch 10 from c", "any"},
    {"move 1 in c", "any"},
    {"close c", "any"},
    {"copy (select * from account where account_id = 5) to stdout with (format csv)", "L0"},
    {"copy (select * from account) to stdout", "R10 at 21"},
    {"copy account to stdout", "R10 at 6"},
    {"copy account from stdin", "R01 at 6"},
    {"copy account to '/tmp/x'", "R01 at 6"},
    {"copy (select 1) to program 'x'", "R01 at 1"},
    {"select * into x from account where account_id = 5", "R24 at 15"},
    {"create table x as select 1", "R24 at 1"},
    {"create table x (a int)", "R24 at 1"},
    {"  drop table account", "R24 at 3"},
    {"alter table account add x int", "R24 at 1"},
    {"truncate account", "R24 at 1"},
    {"create index on account (owner)", "R24 at 1"},
    {"grant select on account to x", "R24 at 1"},
    {"comment on table account is 'x'", "R24 at 1"},
    {"vacuum", "R24 at 1"},
    {"analyze account", "R24 at 1"},
    {"reindex table account", "R24 at 1"},
    {"cluster account", "R24 at 1"},
    {"checkpoint", "R24 at 1"},
    {"refresh materialized view x", "R24 at 1"},
    {"alter system set work_mem = 1", "R24 at 1"},
    {"prepare p as select 1", "R25 at 1"},
    {"execute p", "R25 at 1"},
    {"explain execute p", "R25 at 1"},
    {"explain create table x as select 1", "R24 at 1"},
    {"listen a", "R25 at 1"},
    {"notify a", "R25 at 1"},
    {"unlisten *", "R25 at 1"},
    {"lock table account", "R25 at 1"},
    {"load 'x'", "R25 at 1"},
    {"do $$begin end$$", "R25 at 1"},
    {"call p()", "R25 at 1"},
    {"set constraints all deferred", "R25 at 1"},
    {"set role x", "R25 at 1"},
    {"reset role", "R25 at 1"},
    {"set session authorization x", "R25 at 1"},
    {"reset session authorization", "R25 at 1"},
    {"set work_mem from current", "R25 at 1"},
    {"set transaction snapshot 'x'", "R25 at 1"},
    {"prepare transaction 'x'", "R25 at 1"},
    {"commit prepared 'x'", "R25 at 1"},
    {"select 1; select * from account where account_id = 5;", "any; L1"},
    {"select 1; select * from account", "R10 at 25"},
    {"select 1;; drop table x", "R24 at 12"},
    {"", "any"},
    {" ; ;", "any"},
    {"-- nothing", "any"},
    {"select", "any"},
    {"selec 1", "R01 at 1"},
    {"select 'a", "R01 at 8"},
    {"select * from account where account_id = ?", "R01 at 43"},
    {"/* interlock: primary */ select 1", "any"},
    {"/*INTERLOCK:PRIMARY*/ select 1", "any"},
    {"/* interlock: scatter */ select 1", "any"},
    {"/* interlock: partial , SCATTER,primary */ select 1", "any"},
    {"/* interlock: scatter, partly */ select 1", "R01 at 1"},
    {"/* interlock: scatter, */ select 1", "R01 at 1"},
    {"select /* interlock: scatter */ 1", "R01 at 8"},
    {"select 1 /* interlock: partial */", "R01 at 10"},
    {"select 1; /* interlock: scatter */ select 2", "any; any"},
    {"select /* interlock: shard=s1 */ 1", "R01 at 8"},
    {"/* interlock: replica */ select 1", "R01 at 1"},
    {"/* interlock: nonsense */ select 1", "R01 at 1"},
    {"/* interlocked */ select 1", "any"},
    {"select '/* interlock: scatter */'", "any"},
};
INSTANTIATE_TEST_SUITE_P(Statements, StatementAnalysis, ::testing::ValuesIn(statements));

/// The one statement's facts.
sql::Facts facts_of(std::string_view text) {
    const auto result = analyse_text(text);
    EXPECT_TRUE(result) << text << ": " << (result ? "" : result.error().message);
    if (!result || result->size() != 1) return {};
    return (*result)[0].facts;
}

using sql::Action;

TEST(AnalysisTransactions, AreTakenApart) {
    EXPECT_EQ(facts_of("begin").action, Action::begin);
    EXPECT_EQ(facts_of("/* x */ START transaction isolation level serializable, read only ; ").text,
              "START transaction isolation level serializable, read only");
    EXPECT_EQ(facts_of("end").action, Action::commit);
    EXPECT_TRUE(facts_of("commit and chain").chain);
    EXPECT_FALSE(facts_of("rollback and no chain").chain);
    EXPECT_EQ(facts_of("abort").action, Action::rollback);
    EXPECT_EQ(facts_of("savepoint \"A b\"").name, "A b");
    EXPECT_EQ(facts_of("release savepoint a").action, Action::release);
    EXPECT_EQ(facts_of("rollback to a").action, Action::rollback_to);
    EXPECT_EQ(facts_of("set transaction read only").action, Action::set_transaction);
    EXPECT_EQ(facts_of("set transaction read only").text, "set transaction read only");
    EXPECT_EQ(facts_of("set transaction_isolation = 'serializable'").action,
              Action::set_transaction);
    EXPECT_EQ(facts_of("set local transaction_read_only to on").action, Action::set_transaction);
}

TEST(AnalysisSettings, AreTakenApart) {
    const auto check = [](std::string_view text, Action action, std::string_view name,
                          std::string_view value) {
        const sql::Facts facts = facts_of(text);
        EXPECT_EQ(facts.action, action) << text;
        EXPECT_EQ(facts.name, name) << text;
        EXPECT_EQ(facts.value, value) << text;
    };
    check("set work_mem = 100", Action::set, "work_mem", "100");
    check("set Work_Mem to '1MB'", Action::set, "work_mem", "'1MB'");
    check("set session x.y = -1.5", Action::set, "x.y", "-1.5");
    check("set enable_seqscan = off", Action::set, "enable_seqscan", "'off'");
    check("set enable_seqscan = true", Action::set, "enable_seqscan", "'true'");
    check("set search_path = \"$user\", a, 'b''c', \"D\"", Action::set, "search_path",
          "'$user', 'a', 'b''c', 'D'");
    check("set application_name = 'a\\b''c'", Action::set, "application_name", "E'a\\\\b''c'");
    check("set application_name = E'a\\nb'", Action::set, "application_name", "'a\nb'");
    check("set local statement_timeout = '1s'", Action::set_local, "statement_timeout", "'1s'");
    check("set local statement_timeout to default", Action::set_local, "statement_timeout",
          "DEFAULT");
    check("set statement_timeout to default", Action::reset, "statement_timeout", "");
    check("reset statement_timeout", Action::reset, "statement_timeout", "");
    check("reset all", Action::reset_all, "", "");
    check("set time zone 'UTC'", Action::set, "timezone", "'UTC'");
    check("set time zone -5", Action::set, "timezone", "-5");
    check("set time zone local", Action::reset, "timezone", "");
    check("set names 'utf8'", Action::set, "client_encoding", "'utf8'");
    check("set names", Action::reset, "client_encoding", "");
    check("set schema 'a'", Action::set, "search_path", "'a'");
    check("show timezone", Action::show, "timezone", "");
    check("show time zone", Action::show, "timezone", "");
    check("show Search_Path", Action::show, "search_path", "");
    check("show transaction isolation level", Action::show, "transaction_isolation", "");
    check("show all", Action::show, "all", "");
    check("discard all", Action::discard_all, "", "");
    check("discard plans", Action::discard_some, "plans", "");
    check("discard temp", Action::discard_some, "temp", "");
    check("discard sequences", Action::discard_some, "sequences", "");
    check("deallocate a", Action::deallocate, "a", "");
    check("deallocate prepare all", Action::deallocate, "", "");
    check("fetch all from \"C\"", Action::cursor, "C", "");
    check("close all", Action::cursor, "", "");
    check("declare c scroll cursor for select 1", Action::declare_cursor, "c", "");
    EXPECT_EQ(judge("set time zone interval '-05:00' hour to minute"), "R25 at 1");

    const sql::Facts facts = facts_of("set session characteristics as transaction isolation level "
                                      "repeatable read, read only, deferrable");
    EXPECT_EQ(facts.action, Action::set_session_characteristics);
    ASSERT_EQ(facts.settings.size(), 3U);
    EXPECT_EQ(facts.settings[0].name, "default_transaction_isolation");
    EXPECT_EQ(facts.settings[0].value, "'repeatable read'");
    EXPECT_EQ(facts.settings[1].name, "default_transaction_read_only");
    EXPECT_EQ(facts.settings[1].value, "on");
    EXPECT_EQ(facts.settings[2].name, "default_transaction_deferrable");
}

TEST(AnalysisExplainRoute, IsFoundBeforeTheGrammar) {
    EXPECT_EQ(facts_of("explain route select 1").action, Action::explain_route);
    EXPECT_EQ(facts_of(" /*a*/ EXPLAIN/**/Route\n-- x\n  select $1").text, "select $1");
    EXPECT_EQ(facts_of("explain route").text, "");
    EXPECT_EQ(facts_of("explain route drop table x; select 1").text, "drop table x; select 1");
    EXPECT_EQ(judge("explain routes"), "R01 at 9");
    EXPECT_EQ(judge("explainroute select 1"), "R01 at 1");
}

TEST(AnalysisTexts, TellWhereEachStatementStands) {
    const auto result = analyse_text(" select 1 ; /*x*/ select 'ü;' -- y\n; begin");
    ASSERT_TRUE(result);
    ASSERT_EQ(result->size(), 3U);
    EXPECT_EQ((*result)[0].offset, 1U);
    EXPECT_EQ((*result)[0].length, 8U);
    EXPECT_EQ((*result)[1].offset, 18U);
    EXPECT_EQ((*result)[2].facts.text, "begin");
}

Refusal refusal_of(std::string_view text) {
    const auto result = analyse_text(text);
    EXPECT_FALSE(result) << text;
    return result ? Refusal{} : result.error();
}

TEST(AnalysisRefusals, NameTheConstructAndTheRewrite) {
    Refusal refusal = refusal_of("select * from account a where account_id = 1 or account_id = 2");
    EXPECT_EQ(refusal.message,
              "no condition names the shard key account_id of table public.account");
    EXPECT_EQ(refusal.detail, "The condition on account_id stands under OR.");
    EXPECT_EQ(refusal.hint, "Write a.account_id IN (<value>, ...), joined to the rest by AND.");

    refusal =
        refusal_of("select * from account a left join event e on a.account_id = 5 where true");
    EXPECT_EQ(refusal.detail, "The ON condition of an outer join does not restrict the side whose "
                              "rows are all kept.");

    refusal = refusal_of("select * from account a join event e on true where a.account_id = 5");
    EXPECT_EQ(refusal.message, "table public.event is not joined by its shard key account_id");
    EXPECT_NE(refusal.hint.find("e.account_id = a.account_id"), std::string::npos);

    refusal = refusal_of("select * from account where account_id > 5");
    EXPECT_EQ(refusal.detail, "The condition on account_id is not an equality with constants.");

    refusal = refusal_of("select * from account where account_id = balance");
    EXPECT_EQ(refusal.detail, "account_id is compared with what is neither a constant, nor a "
                              "parameter, nor a column that is pinned.");

    refusal = refusal_of("select 1 +");
    EXPECT_EQ(refusal.state(), "42601");
    EXPECT_EQ(refusal.message, "syntax error at end of input");

    refusal = refusal_of("select * from app.nothing");
    EXPECT_EQ(refusal.message, "table app.nothing is not known");
    EXPECT_FALSE(refusal.hint.empty());
    EXPECT_EQ(refusal_of("select * from \"order\"").hint,
              "It is declared in a schema that is not in search_path.");
}

}  // namespace
}  // namespace interlock::test
