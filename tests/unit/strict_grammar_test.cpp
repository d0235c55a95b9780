// The grammar of the strict profile: what is accepted, and the SQL and facts made from it.
#include "fixtures.h"
#include "sql/facts.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

using sql::Kind;
using test::analyse;
using test::code_of;
using test::sql_of;

sql::Statement accepted(std::string_view text) {
    auto statement = analyse(text);
    EXPECT_TRUE(statement) << text << ": " << statement.error().message;
    return statement ? *statement : sql::Statement{};
}

std::vector<int> columns_of(const sql::Statement &statement) {
    std::vector<int> columns;
    for (const auto &parameter : statement.parameters)
        columns.push_back(parameter.column);
    return columns;
}

TEST(StrictGrammar, TransactionControl) {
    EXPECT_EQ(accepted("BEGIN").kind, Kind::begin);
    EXPECT_EQ(accepted(" commit\n").kind, Kind::commit);
    EXPECT_EQ(accepted("RollBack").kind, Kind::rollback);
    for (const char *text : {"begin", "commit", "rollback"}) {
        const auto statement = accepted(text);
        EXPECT_TRUE(statement.transaction_control());
        EXPECT_FALSE(statement.writes());
        EXPECT_EQ(statement.table, nullptr);
        EXPECT_TRUE(statement.text.empty());
    }
}

TEST(StrictGrammar, SelectIsWrittenAnew) {
    EXPECT_EQ(sql_of("SELECT * FROM account WHERE account_id = ?"),
              "select * from public.account where account_id operator(pg_catalog.=) $1");
    EXPECT_EQ(
        sql_of("select\tBALANCE ,Owner\nFROM\rPUBLIC . ACCOUNT WHERE ACCOUNT_ID=?"),
        "select balance, owner from public.account where account_id operator(pg_catalog.=) $1");
    EXPECT_EQ(sql_of("select * from account where account_id = ? and version = ?"),
              "select * from public.account where account_id operator(pg_catalog.=) $1 and version "
              "operator(pg_catalog.=) $2");
    EXPECT_EQ(sql_of("select owner, owner from account where account_id in (?,?, ?)"),
              "select owner, owner from public.account where account_id operator(pg_catalog.=) any "
              "(array[$1, $2, $3])");
    EXPECT_EQ(
        sql_of("select*from account where account_id in(?)"),
        "select * from public.account where account_id operator(pg_catalog.=) any (array[$1])");
}

TEST(StrictGrammar, APageIsWrittenAnewAndGoesToAllShards) {
    const auto page = accepted("SELECT * FROM interlock.keyset_page(?, NULL::account, ?, ?, ?, ?)");
    EXPECT_EQ(page.kind, Kind::page);
    EXPECT_EQ(page.text,
              "select * from interlock.keyset_page($1, null::public.account, $2, $3, $4, $5)");
    EXPECT_EQ(page.parameters.size(), 5U);
    EXPECT_TRUE(page.keys.empty());
    EXPECT_FALSE(page.writes());
    EXPECT_FALSE(page.transaction_control());
    ASSERT_NE(page.facts, nullptr);
    ASSERT_NE(page.facts->scatter, nullptr);
    EXPECT_EQ(page.facts->scatter->kind, sql::ScatterKind::keyset_page);
    EXPECT_EQ(page.facts->scatter->unless_allowed, nullptr);
    EXPECT_EQ(sql_of("select*from INTERLOCK . Keyset_Page(?,null :: Public.Account)"),
              "select * from interlock.keyset_page($1, null::public.account)");
    EXPECT_EQ(
        accepted("SELECT * FROM interlock.keyset_page(?, NULL::account, ?)").parameters.size(), 2U);
}

TEST(StrictGrammar, UpdateDeleteAndInsertAreWrittenAnew) {
    EXPECT_EQ(sql_of("UPDATE account SET balance = balance - ? WHERE account_id = ?"),
              "update public.account set balance = balance operator(pg_catalog.-) $1 where "
              "account_id operator(pg_catalog.=) $2");
    EXPECT_EQ(sql_of("update account set owner=?,balance = version+? , version=version + ? where "
                     "account_id = ? and version = ?"),
              "update public.account set owner = $1, balance = version operator(pg_catalog.+) $2, "
              "version = version operator(pg_catalog.+) $3 "
              "where account_id operator(pg_catalog.=) $4 and version operator(pg_catalog.=) $5");
    EXPECT_EQ(sql_of("update account set balance = account_id - ? where account_id in (?, ?)"),
              "update public.account set balance = account_id operator(pg_catalog.-) $1 where "
              "account_id operator(pg_catalog.=) any (array[$2, $3])");
    EXPECT_EQ(sql_of("Delete From account Where account_id=?"),
              "delete from public.account where account_id operator(pg_catalog.=) $1");
    EXPECT_EQ(sql_of("insert into account(account_id, balance) values(?, ?)"),
              "insert into public.account (account_id, balance) values ($1, $2)");
    EXPECT_EQ(sql_of("INSERT INTO account ( balance , account_id ) VALUES ( ? , ? )"),
              "insert into public.account (balance, account_id) values ($1, $2)");
}

TEST(StrictGrammar, NamesThatNeedQuotesAreQuotedInWhatTheShardReceives) {
    EXPECT_EQ(sql_of("select user, placed from order where account_id = ? and user = ?"),
              "select \"user\", placed from app.\"order\" where account_id operator(pg_catalog.=) "
              "$1 and \"user\" operator(pg_catalog.=) $2");
    EXPECT_EQ(sql_of("update APP.ORDER set User = user + ? where account_id = ?"),
              "update app.\"order\" set \"user\" = \"user\" operator(pg_catalog.+) $1 where "
              "account_id operator(pg_catalog.=) $2");
    EXPECT_EQ(sql_of("select * from konto where schlüssel = ?"),
              "select * from public.konto where \"schlüssel\" operator(pg_catalog.=) $1");
}

TEST(StrictGrammar, ParametersAreMappedToColumnsAndKeysMarked) {
    auto statement = accepted("update account set owner = ?, balance = balance + ? "
                              "where account_id = ? and version = ?");
    EXPECT_EQ(columns_of(statement), (std::vector<int>{1, 2, 0, 3}));
    EXPECT_EQ(statement.keys, (std::vector<std::uint16_t>{2}));
    EXPECT_FALSE(statement.parameters[0].operand);
    EXPECT_TRUE(statement.parameters[1].operand);
    EXPECT_FALSE(statement.parameters[2].operand);
    EXPECT_TRUE(statement.writes());
    EXPECT_EQ(statement.kind, Kind::update);

    statement = accepted("select * from account where account_id in (?, ?, ?)");
    EXPECT_EQ(columns_of(statement), (std::vector<int>{0, 0, 0}));
    EXPECT_EQ(statement.keys, (std::vector<std::uint16_t>{0, 1, 2}));
    EXPECT_FALSE(statement.writes());

    statement = accepted("insert into account (version, owner, account_id) values (?, ?, ?)");
    EXPECT_EQ(columns_of(statement), (std::vector<int>{3, 1, 0}));
    EXPECT_EQ(statement.keys, (std::vector<std::uint16_t>{2}));
    EXPECT_EQ(statement.kind, Kind::insert);

    statement = accepted("delete from account where account_id = ?");
    EXPECT_EQ(statement.kind, Kind::remove);
    EXPECT_TRUE(statement.writes());
}

TEST(StrictGrammar, AColumnNamedTwiceInInsertMarksBothKeys) {
    const auto statement = accepted("insert into account (account_id, account_id) values (?, ?)");
    EXPECT_EQ(statement.keys, (std::vector<std::uint16_t>{0, 1}));
}

TEST(StrictGrammar, AnOperandIsTypedAsItsColumnOnlyForNumbers) {
    auto statement = accepted("update account set balance = balance + ? where account_id = ?");
    EXPECT_TRUE(statement.typed_as_column(0));
    EXPECT_TRUE(statement.typed_as_column(1));
    statement = accepted("update order set placed = placed + ? where account_id = ?");
    EXPECT_FALSE(statement.typed_as_column(0));  // a date plus a number of days
    EXPECT_TRUE(statement.typed_as_column(1));
    statement = accepted("update order set placed = ? where account_id = ?");
    EXPECT_TRUE(statement.typed_as_column(0));
}

TEST(StrictGrammar, ParametersHaveTypesUnlessUsersMadeThem) {
    auto statement = accepted("update account set owner = ?, balance = balance + ? "
                              "where account_id = ? and version = ?");
    EXPECT_EQ(statement.parameter_type(0), oid::text);
    EXPECT_EQ(statement.parameter_type(1), oid::int8);
    EXPECT_EQ(statement.parameter_type(2), oid::int8);
    EXPECT_EQ(statement.parameter_type(3), oid::int4);
    statement = accepted("update order set placed = placed - ? where account_id = ?");
    EXPECT_EQ(statement.parameter_type(0), oid::int4);  // days
    statement = accepted("update narrow set mood = ? where small = ?");
    EXPECT_EQ(statement.parameter_type(0), 0U);
    EXPECT_EQ(statement.parameter_type(1), oid::int2);
}

TEST(StrictGrammar, ListsAreAsLongAsPostgresTakesThem) {
    std::string names = "owner";
    for (int i = 1; i < 1664; ++i)
        names += ", owner";
    EXPECT_EQ(code_of("select " + names + " from account where account_id = ?"), "accepted");
    EXPECT_EQ(code_of("select " + names + ", owner from account where account_id = ?"), "R01");
}

TEST(StrictGrammar, TakesAsManyParametersAsTheProtocolCounts) {
    std::string text = "select * from account where account_id in (?";
    for (int i = 1; i < 65535; ++i)
        text += ",?";
    const auto statement = accepted(text + ")");
    ASSERT_EQ(statement.keys.size(), 65535U);
    EXPECT_EQ(statement.keys.back(), 65534);
    EXPECT_TRUE(statement.text.ends_with(", $65535])"));
    EXPECT_EQ(code_of(text + ",?)"), "R27");
}

TEST(StrictGrammar, WordsOfTheGrammarMayBeColumns) {
    auto rows = test::reference_rows();
    rows.columns.push_back({6, "from", "\"from\"", oid::text});
    rows.columns.push_back({6, "in", "\"in\"", oid::text});
    const auto table = test::build(rows);
    const auto statement =
        sql::analyse_strict("select from, in from public.event where account_id = ?", *table);
    ASSERT_TRUE(statement) << statement.error().message;
    EXPECT_EQ(
        statement->text,
        "select \"from\", \"in\" from public.event where account_id operator(pg_catalog.=) $1");
}

TEST(StrictGrammar, NothingOfTheTextReachesTheShard) {
    // Upper case, odd blanks and the like are gone: two spellings give the same SQL.
    EXPECT_EQ(sql_of("SELECT\v*\fFROM\n\nAccount\rWhere\tAccount_ID\n=\n?"),
              sql_of("select * from account where account_id = ?"));
}

}  // namespace
}  // namespace interlock
