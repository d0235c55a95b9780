// INSERT, UPDATE, DELETE, MERGE.
#include "analysis_cases.h"

namespace interlock::test {
namespace {

class ModifyAnalysis : public Analysis {};

TEST_P(ModifyAnalysis, IsJudged) {
    EXPECT_EQ(judge(GetParam().text), GetParam().expected) << GetParam().text;
}

const Judged inserts[] = {
    {"insert into account values (5, 'x', 0, 0)", "L0"},
    {"insert into account (owner, account_id) values ('x', $1)", "P0"},
    {"insert into account (account_id) values (1), ($1), ('3')", "L0 P0 L1"},
    {"insert into account (account_id, owner) values ($1::bigint, default)", "P0:20"},
    {"insert into account (account_id, owner) values (null, 'x')", "N"},
    {"insert into account (account_id) values (5) returning *", "L0"},
    {"insert into account as a (account_id) values (5) returning a.owner", "L0"},
    {"insert into account (account_id, owner) values (5, (select max(owner) from account where "
     "account_id = 5))",
     "L1 L0"},
    {"insert into account (account_id, balance) select 5, 6", "L0"},
    {"insert into account (account_id, balance) select $1, $2", "P0"},
    {"insert into event select account_id from account where account_id = $1", "P0"},
    {"insert into event select a.account_id from account a join event e using (account_id) "
     "where a.account_id in (1, 2)",
     "L0 L1"},
    {"insert into event select account_id from account where account_id = 5 union all select 5",
     "L0 L1@public.event"},
    {"insert into account (account_id) values (5) on conflict do nothing", "L0"},
    {"insert into account (account_id, owner) values (5, 'x') on conflict (account_id) do update "
     "set owner = excluded.owner, balance = account.balance + 1 where account.version < 3",
     "L0"},
    {"insert into account (account_id) values (5) on conflict (account_id, lower(owner)) where "
     "balance > 0 do update set balance = (select count(*) from event e where e.account_id = "
     "excluded.account_id)",
     "L0"},
    {"insert into account values (5, 'x', 0, 0), (5, 'y', 0, 0) on conflict on constraint c do "
     "nothing",
     "L0 L4"},
    {"insert into narrow (small) values (5)", "L0@public.narrow"},
    {"insert into person values ('x', true)", "L0@public.person"},

    {"insert into account (owner) values ('x')", "R10 at 13"},
    {"insert into account default values", "R10 at 13"},
    {"insert into account (account_id) values (default)", "R10 at 42"},
    {"insert into account (account_id) values (1), (default)", "R10 at 47"},
    {"insert into account (account_id) values (1 + 1)", "R10 at 13"},
    {"insert into account (account_id) values (1), (abs(2))", "R10 at 13"},
    {"insert into account (account_id) values (nextval('s'))", "R25 at 42"},
    {"insert into account (account_id) values (5.0)", "R10 at 13"},
    {"insert into account (account_id[1]) values (5)", "R10 at 13"},
    {"insert into event select balance from account where account_id = 5", "R10 at 13"},
    {"insert into event select account_id from account", "R10 at 42"},
    {"insert into event select account_id from account where account_id = 5 union all select 5.5",
     "R10 at 13"},
    {"insert into event select * from generate_series(1, 3)", "R10 at 13"},
    {"insert into event select g.*, account_id from account, generate_series(1, 3) g "
     "where account_id = 5",
     "R10 at 13"},
    {"insert into account (account_id) values (5) on conflict (account_id) do update set "
     "account_id = 6",
     "R29 at 84"},
    {"insert into account (account_id) values (5) on conflict (account_id) do update set balance = "
     "(select count(*) from event)",
     "R21 at 116"},
    {"insert into account (account_id) values (5) returning (select count(*) from event)",
     "R21 at 77"},
    {"insert into account (account_id, owner) values (5, (select owner from account))",
     "R21 at 71"},
};
INSTANTIATE_TEST_SUITE_P(Inserts, ModifyAnalysis, ::testing::ValuesIn(inserts));

const Judged updates[] = {
    {"update account set balance = balance - $1 where account_id = $2", "P1"},
    {"update account set (owner, balance) = ('x', 5) where account_id = 5", "L2"},
    {"update account set (owner, balance) = (select owner, 5 from account where account_id = 5) "
     "where account_id = 5",
     "L1 L2"},
    {"update account a set balance = 0 from event e where e.account_id = a.account_id and "
     "a.account_id = 5",
     "L1"},
    {"update account set balance = 0 from event e where account.account_id = 5 and e.account_id = "
     "5 returning e.*",
     "L1 L2@public.event"},
    {"update account set balance = (select count(*) from event e where e.account_id = "
     "account.account_id) where account_id = 5",
     "L0@public.event"},
    {"update account set balance = default where account_id = 5", "L0"},
    {"update only account set balance = 1 where account_id in (1, 2)", "L1 L2"},

    {"update account set balance = 0", "R10 at 8"},
    {"update account set balance = 0 where balance = 5", "R10 at 8"},
    {"update account set account_id = 5 where account_id = 5", "L1 L0="},
    {"update account set (owner, account_id) = ('x', 5) where account_id = 5", "R29 at 28"},
    {"update account a set account_id = a.account_id where a.account_id = 5", "R29 at 22"},
    {"update account set balance = 0 from event e where account.account_id = 5", "R20 at 37"},
    {"update account set balance = 0 from event e where e.account_id = 5", "R20 at 8"},
    {"update account set balance = 0 where account_id = 5 or true", "R10 at 8"},
    {"update account set balance = 0 where current of c", "R01 at 1"},
    {"update account set balance = nextval('s') where account_id = 5", "R25 at 30"},
    {"update account set balance = 0 where account_id = 5 returning (select count(*) from event)",
     "R21 at 85"},
};
INSTANTIATE_TEST_SUITE_P(Updates, ModifyAnalysis, ::testing::ValuesIn(updates));

const Judged deletes[] = {
    {"delete from account where account_id = 5", "L0"},
    {"delete from account a using event e where a.account_id = e.account_id and e.account_id = 5 "
     "returning *",
     "L0"},
    {"delete from account where account_id = $1 and balance in (select e.account_id from event e "
     "where e.account_id = account.account_id)",
     "P0@public.event"},
    {"delete from account", "R10 at 13"},
    {"delete from account using event e where account_id = 5", "R10 at 13"},
    {"delete from account where account_id = 5 or owner = 'x'", "R10 at 13"},
    {"delete from account where current of c", "R01 at 1"},
};
INSTANTIATE_TEST_SUITE_P(Deletes, ModifyAnalysis, ::testing::ValuesIn(deletes));

const Judged merges[] = {
    {"merge into account t using (values ($1::bigint, 'x')) s(k, o) on t.account_id = s.k "
     "when matched then update set owner = s.o when not matched then insert (account_id, owner) "
     "values (s.k, s.o)",
     "P0:20"},
    {"merge into account t using (select * from event where account_id = 5) s on t.account_id = "
     "s.account_id when matched and t.balance > 0 then delete when matched then do nothing "
     "when not matched then insert (account_id) values (s.account_id)",
     "L0@public.event"},
    {"merge into account t using (values (1)) s(k) on t.account_id = 5 when matched then delete",
     "L1"},
    {"merge into account t using (values (5)) s(k) on t.account_id = s.k when not matched then "
     "insert (account_id) values (5)",
     "L1 L0"},

    // ON does not restrict the source: its rows without a match are inserted.
    {"merge into account t using event s on t.account_id = s.account_id and s.account_id = 5 "
     "when matched then delete",
     "R10 at 12"},
    {"merge into account t using event s on t.account_id = 5 and s.account_id = 5 "
     "when matched then delete",
     "R20 at 28"},
    {"merge into account t using (values (5)) s(k) on t.balance = s.k when matched then delete",
     "R10 at 12"},
    {"merge into account t using (values (5)) s(k) on t.account_id = s.k when matched then update "
     "set account_id = 6",
     "R29 at 97"},
    {"merge into account t using (values (5)) s(k) on t.account_id = s.k when not matched then "
     "insert (owner) values ('x')",
     "R10 at 12"},
    {"merge into account t using (values (5)) s(k) on t.account_id = s.k when not matched then "
     "insert (account_id) values (s.k + 1)",
     "R10 at 12"},
};
INSTANTIATE_TEST_SUITE_P(Merges, ModifyAnalysis, ::testing::ValuesIn(merges));

// A parameter that pins must be of the key's family wherever it stands, or declared.
const Judged parameters[] = {
    {"select * from account where account_id = $1 and balance = $1", "P0"},
    {"select * from account where account_id = $1 and ($1 is null or version < $1)", "P0"},
    {"insert into account values ($1, 'x', $1, $2)", "P0"},
    {"update account set balance = $1 where account_id = $1", "P0"},
    {"insert into account select $1, owner, balance, 1 from account where account_id = $1", "P0"},
    {"select * from account where account_id = $1::int and balance = $1::bigint", "P0:23"},
    {"select * from account where account_id = any($1) and balance = any($1)", "A0"},
    {"select $2 + 1.5, * from account where account_id = $1", "P0"},
    {"select * from account where $1 > 1.5 and account_id = $1", "P0!"},
    {"select abs($1) from account where account_id = $1", "P0!"},
    {"select * from account where account_id = $1 limit $1", "P0!"},
    {"insert into account (account_id, owner) values ($1, $1)", "P0!"},
    {"select * from account where account_id = $1 and owner = $1::text", "P0!"},
    {"select * from account where account_id = any($1) and balance = $1", "A0!"},
    {"select array_length($1, 1) from account where account_id = any($1)", "A0!"},
    {"select * from account where balance = $1::numeric and account_id = $1", "P0!"},
};
INSTANTIATE_TEST_SUITE_P(Parameters, ModifyAnalysis, ::testing::ValuesIn(parameters));

TEST(AnalysisFacts, TellWritesLocksAndRows) {
    const auto facts = [](std::string_view text) {
        const auto result = analyse_text(text);
        EXPECT_TRUE(result) << text << (result ? "" : result.error().message);
        if (!result) return std::string("refused");
        const sql::Facts &found = (*result)[0].facts;
        std::string flags;
        if (found.writes) flags += 'w';
        if (found.locks) flags += 'l';
        if (found.returns_rows) flags += 'r';
        if (found.user_code) flags += 'u';
        if (!found.cacheable) flags += 'v';
        return flags;
    };
    EXPECT_EQ(facts("select 1"), "r");
    EXPECT_EQ(facts("select * from account where account_id = 1 for share"), "lr");
    EXPECT_EQ(facts("delete from account where account_id = 1"), "w");
    EXPECT_EQ(facts("delete from account where account_id = 1 returning *"), "wr");
    EXPECT_EQ(facts("with d as (delete from account where account_id = 1 returning *) "
                    "select * from d"),
              "wr");
    EXPECT_EQ(facts("explain delete from account where account_id = 1"), "r");
    EXPECT_EQ(facts("explain analyze delete from account where account_id = 1"), "wr");
    EXPECT_EQ(facts("explain (analyze off, costs) delete from account where account_id = 1"), "rv");
    EXPECT_EQ(facts("explain (analyze 1) delete from account where account_id = 1"), "wrv");
    EXPECT_EQ(facts("select total(1)"), "ru");
    EXPECT_EQ(facts("select app.fee(1)"), "ru");
    EXPECT_EQ(facts("copy (select * from account where account_id = 1) to stdout"), "");
    EXPECT_EQ(facts("set timezone = 'UTC'"), "v");
}

}  // namespace
}  // namespace interlock::test
