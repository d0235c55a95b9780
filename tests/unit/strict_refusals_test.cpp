// What the strict profile refuses, with which code, and where it points.
#include "fixtures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace interlock {
namespace {

using test::analyse;
using test::code_of;

struct Case {
    const char *code;
    const char *text;
};

// What the profile refuses, and further statements of the same kind.
const Case cases[] = {
    // R01: syntax outside the profile
    {"R01", ""},
    {"R01", "   "},
    {"R01", "EXPLAIN SELECT * FROM account WHERE account_id = ?"},
    {"R01", "COPY account FROM stdin"},
    {"R01", "CALL f(?)"},
    {"R01", "VALUES (1), (2)"},
    {"R01", "TABLE account"},
    {"R01", "DO 'begin end'"},
    {"R01", "MERGE INTO account USING x ON account_id = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? ORDER BY owner"},
    {"R01", "SELECT * FROM account ORDER BY owner"},
    {"R01", "SELECT * FROM account WHERE account_id = ? FOR UPDATE"},
    {"R01", "SELECT * FROM account WHERE account_id = ? LIMIT ?"},
    {"R01", "SELECT count(*) FROM account WHERE account_id = ?"},
    {"R01", "SELECT DISTINCT owner FROM account WHERE account_id = ?"},
    {"R01", "SELECT owner AS name FROM account WHERE account_id = ?"},
    {"R01", "SELECT account.owner FROM account WHERE account_id = ?"},
    {"R01", "SELECT *, owner FROM account WHERE account_id = ?"},
    {"R01", "SELECT owner, * FROM account WHERE account_id = ?"},
    {"R01", "SELECT owner, FROM account WHERE account_id = ?"},
    {"R01", "SELECT FROM account WHERE account_id = ?"},
    {"R01", "SELECT ? FROM account WHERE account_id = ?"},
    {"R01", "SELECT * FROM account a WHERE account_id = ?"},
    {"R01", "EXPLAIN account"},
    {"R26", "SELECT * FROM ONLY account WHERE account_id = ?"},  // taken for a table's name
    {"R26", "SELECT * FROM only WHERE account_id = ?"},
    {"R01", "SELECT * FROM public.account.x WHERE account_id = ?"},
    {"R26", "SELECT * FROM public. WHERE account_id = ?"},
    {"R01", "SELECT * account WHERE account_id = ?"},
    {"R01", "SELECT * FROM ? WHERE account_id = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? extra"},
    {"R01", "SELECT * FROM account WHERE account_id = ? ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ?::bigint"},
    {"R01", "SELECT * FROM account WHERE account_id IN ()"},
    {"R01", "SELECT * FROM account WHERE account_id IN (?"},
    {"R01", "SELECT * FROM account WHERE account_id IN (?,)"},
    {"R01", "SELECT * FROM account WHERE account_id IN ?"},
    {"R01", "SELECT * FROM account WHERE account_id IN (account_id)"},
    {"R01", "SELECT * FROM account WHERE account_id IN (?) AND version = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND version > ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND version = version"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND version = ? AND version = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND owner = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND account_id = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND version IS NULL"},
    {"R01", "SELECT * FROM account WHERE account_id = ? AND (version = ?)"},
    {"R01", "SELECT * FROM device WHERE device_id = ? AND label = ?"},
    {"R01", "UPDATE account WHERE account_id = ?"},
    {"R26", "UPDATE account SET WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = balance WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = balance * ? WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = ? + balance WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = balance + balance WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = balance + - ? WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = (?) WHERE account_id = ?"},
    {"R01", "UPDATE account SET (balance, owner) = (?, ?) WHERE account_id = ?"},
    {"R26", "UPDATE account SET balance = ?, WHERE account_id = ?"},
    {"R01", "UPDATE account SET balance = ? WHERE account_id = ? RETURNING owner"},
    {"R01", "UPDATE account SET balance = ? FROM device WHERE account_id = ?"},
    {"R26", "UPDATE account SET balance = default WHERE account_id = ?"},
    {"R01", "DELETE account WHERE account_id = ?"},
    {"R01", "DELETE FROM account WHERE account_id = ? RETURNING owner"},
    {"R01", "INSERT account (account_id) VALUES (?)"},
    {"R01", "INSERT INTO account (account_id) VALUES (?), (?)"},
    {"R01", "INSERT INTO account (account_id) VALUES (?, ?)"},
    {"R01", "INSERT INTO account (account_id, owner) VALUES (?)"},
    {"R01", "INSERT INTO account (account_id) VALUES ()"},
    {"R01", "INSERT INTO account () VALUES (?)"},
    {"R01", "INSERT INTO account (account_id) VALUES (?"},
    {"R01", "INSERT INTO account (account_id) VALUES ?"},
    {"R01", "INSERT INTO account (account_id VALUES (?)"},
    {"R01", "INSERT INTO account (account_id) VALUES (DEFAULT)"},
    {"R01", "INSERT INTO account (account_id) VALUES (?) ON CONFLICT DO NOTHING"},
    {"R01", "INSERT INTO account (account_id) VALUES (?) RETURNING owner"},
    {"R01", "INSERT INTO account (account_id) TABLE device"},
    {"R01", "INSERT INTO account AS a (account_id) VALUES (?)"},
    {"R01", "SELECT * FROM \"account\" WHERE account_id = ?"},
    {"R01", "SELECT * FROM account WHERE \"account_id\" = ?"},
    {"R01", "SELECT * FROM account WHERE account_id = '"},
    {"R01", "account"},
    {"R01", "? ? ?"},
    {"R01", "\xFF\xFE"},
    // R10: no routable condition
    {"R10", "SELECT * FROM account"},
    {"R10", "DELETE FROM account"},
    {"R10", "UPDATE account SET balance = ?"},
    {"R10", "SELECT * FROM account WHERE balance = ?"},
    {"R10", "SELECT * FROM account WHERE balance = ? AND account_id = ?"},
    {"R10", "SELECT * FROM account WHERE account_id = ? OR account_id = ?"},
    {"R10", "SELECT * FROM account WHERE account_id IN (?) OR balance = ?"},
    {"R10", "SELECT * FROM account WHERE account_id = ? AND version = ? OR balance = ?"},
    {"R10", "SELECT * FROM account WHERE account_id = ? AND balance = ? OR balance = ?"},
    {"R10", "SELECT * FROM account WHERE account_id > ?"},
    {"R10", "SELECT * FROM account WHERE account_id <> ?"},
    {"R10", "SELECT * FROM account WHERE account_id BETWEEN ? AND ?"},
    {"R10", "SELECT * FROM account WHERE account_id IS NULL"},
    {"R10", "SELECT * FROM account WHERE account_id NOT IN (?)"},
    {"R10", "SELECT * FROM account WHERE account_id = account_id"},
    {"R10", "SELECT * FROM account WHERE account_id = - ?"},
    {"R10", "SELECT * FROM account WHERE account_id = (?)"},
    {"R10", "SELECT * FROM account WHERE account_id = ANY (?)"},
    {"R10", "SELECT * FROM account WHERE account_id + ? = ?"},
    {"R10", "SELECT * FROM account WHERE (account_id = ?)"},
    {"R10", "SELECT * FROM account WHERE (account_id) = ?"},
    {"R10", "SELECT * FROM account WHERE NOT account_id = ?"},
    {"R10", "SELECT * FROM account WHERE EXISTS (?)"},
    {"R10", "SELECT * FROM account WHERE ? = account_id"},
    {"R10", "SELECT * FROM account WHERE"},
    {"R10", "SELECT * FROM account WHERE account_id"},
    {"R10", "INSERT INTO account (owner, balance) VALUES (?, ?)"},
    {"R10", "INSERT INTO account VALUES (?, ?, ?, ?)"},
    {"R10", "INSERT INTO account DEFAULT VALUES"},
    // R20, R21: several tables, subqueries
    {"R20", "SELECT * FROM account JOIN device ON account_id = ? WHERE account_id = ?"},
    {"R20", "SELECT * FROM account NATURAL JOIN device"},
    {"R20", "SELECT * FROM account, device WHERE account_id = ?"},
    {"R20", "DELETE FROM account USING device WHERE account_id = ?"},
    {"R21", "SELECT * FROM (SELECT * FROM account) a WHERE account_id = ?"},
    {"R21", "SELECT * FROM (account) WHERE account_id = ?"},
    {"R21", "SELECT * FROM account WHERE account_id IN (SELECT account_id FROM account)"},
    {"R21", "WITH a AS (SELECT * FROM account) SELECT * FROM a"},
    {"R21", "SELECT * FROM account WHERE account_id = ? UNION SELECT * FROM account"},
    {"R21", "INSERT INTO account (account_id) SELECT account_id FROM account"},
    // R22, R23
    {"R22", "SELECT * FROM account WHERE account_id = ?;"},
    {"R22", "BEGIN; COMMIT"},
    {"R22", "SELECT * FROM account WHERE account_id = ?; DROP TABLE account"},
    {"R23", "SELECT * FROM account WHERE account_id = ? -- comment"},
    {"R23", "SELECT /* hint */ * FROM account WHERE account_id = ?"},
    // R24, R25
    {"R24", "DROP TABLE account"},
    {"R24", "TRUNCATE account"},
    {"R24", "CREATE TABLE x (y int)"},
    {"R24", "ALTER TABLE account ADD z int DEFAULT 5"},
    {"R25", "SET statement_timeout = '1s'"},
    {"R25", "SHOW search_path"},
    {"R25", "SAVEPOINT a"},
    {"R25", "LOCK TABLE account"},
    {"R25", "BEGIN ISOLATION LEVEL SERIALIZABLE"},
    {"R25", "START TRANSACTION"},
    {"R25", "END"},
    {"R25", "ABORT"},
    {"R25", "COMMIT PREPARED 'x'"},
    // R26
    {"R26", "SELECT * FROM nothing WHERE account_id = ?"},
    {"R26", "SELECT * FROM app.account WHERE account_id = ?"},
    {"R26", "SELECT * FROM event WHERE account_id = ?"},
    {"R26", "SELECT nothing FROM account WHERE account_id = ?"},
    {"R26", "SELECT * FROM account WHERE nothing = ?"},
    {"R26", "SELECT * FROM account WHERE account_id = ? AND nothing = ?"},
    {"R26", "UPDATE account SET nothing = ? WHERE account_id = ?"},
    {"R26", "UPDATE account SET balance = nothing + ? WHERE account_id = ?"},
    {"R26", "INSERT INTO account (account_id, nothing) VALUES (?, ?)"},
    {"R26", "SELECT * FROM konto WHERE SCHLÜSSEL = ?"},  // only ASCII folds
    // R28
    {"R28", "SELECT * FROM account WHERE account_id = 1"},
    {"R28", "SELECT * FROM account WHERE account_id = '1'"},
    {"R28", "SELECT * FROM account WHERE account_id = $1"},
    {"R28", "UPDATE account SET owner = NULL WHERE account_id = ?"},
    {"R28", "SELECT true FROM account WHERE account_id = ?"},
    {"R28", "SELECT * FROM account WHERE account_id = ? OR 1 = 1"},
    // Pages: the row type's NULL is no literal, every other one is; the checks keep their order.
    {"R23", "/* interlock: partial */ SELECT * FROM interlock.keyset_page(?, NULL::account)"},
    {"R22", "SELECT * FROM interlock.keyset_page(?, NULL::account);"},
    {"R28", "SELECT * FROM interlock.keyset_page('k', NULL::account)"},
    {"R28", "SELECT * FROM interlock.keyset_page(?, NULL::account, NULL)"},
    {"R28", "SELECT * FROM interlock.keyset_page(?, NULL::account, ?, ?, ?, 50)"},
    {"R28", "SELECT item FROM interlock.keyset_page(?, NULL::account)"},
    {"R28", "SELECT * FROM interlock.keyset_page(NULL, NULL::account)"},
    {"R28", "SELECT * FROM other.keyset_page(?, NULL::account)"},
    {"R28", "SELECT * FROM interlock.keyset_page(?, NULL)"},
    {"R01", "SELECT * FROM interlock.keyset_page(?, NULL::\"account\")"},
    {"R01", "SELECT * FROM interlock.\"keyset_page\"(?, ?)"},
    {"R01", "SELECT * FROM interlock.keyset_page()"},
    {"R01", "SELECT * FROM interlock.keyset_page(?)"},
    {"R01", "SELECT * FROM interlock.keyset_page(?, ?::account)"},
    {"R01", "SELECT * FROM interlock.keyset_page(?, NULL::account, scope => ?)"},
    {"R01", "SELECT * FROM interlock.keyset_page(?, NULL::account, ?::jsonb)"},
    {"R01", "SELECT * FROM interlock.keyset_page(?, NULL::account) p"},
    {"R01", "SELECT * FROM interlock.keyset_page(?, NULL::account) WHERE complete"},
    {"R20", "SELECT * FROM interlock.keyset_page(?, NULL::account) JOIN account ON a = b"},
    {"R21", "SELECT * FROM interlock.keyset_page(?, NULL::account, (SELECT a FROM account))"},
    {"R26", "SELECT * FROM interlock.keyset_page(?, NULL::nothing)"},
    {"R26", "SELECT * FROM interlock.keyset_page(?, NULL::event)"},
    {"R27", "SELECT * FROM interlock.keyset_page(?, NULL::account, ?, ?, ?, ?, ?)"},
    // R29
    {"R29", "UPDATE account SET account_id = ? WHERE account_id = ?"},
    {"R29", "UPDATE account SET balance = ?, account_id = account_id + ? WHERE account_id = ?"},
};

TEST(StrictRefusals, EachHasItsCode) {
    for (const Case &each : cases)
        EXPECT_EQ(code_of(each.text), each.code) << each.text;
}

TEST(StrictRefusals, SayWhatIsWrongOnOneLine) {
    for (const Case &each : cases) {
        const auto statement = analyse(each.text);
        ASSERT_FALSE(statement) << each.text;
        const Refusal &refusal = statement.error();
        EXPECT_FALSE(refusal.message.empty()) << each.text;
        EXPECT_EQ(refusal.message.find('\n'), std::string::npos) << each.text;
        EXPECT_GT(refusal.position, 0) << each.text;
        const auto characters =
            std::count_if(each.text, each.text + std::string_view(each.text).size(),
                          [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
        EXPECT_LE(refusal.position, characters + 1) << each.text;
    }
}

TEST(StrictRefusals, CoverEveryCodeThatTheTextAloneDecides) {
    std::map<std::string, int> seen;
    for (const Case &each : cases)
        ++seen[each.code];
    for (const char *code :
         {"R01", "R10", "R20", "R21", "R22", "R23", "R24", "R25", "R26", "R28", "R29"})
        EXPECT_GT(seen[code], 1) << code;
}

int position_of(std::string_view text) {
    const auto statement = analyse(text);
    return statement ? -1 : statement.error().position;
}

TEST(StrictRefusals, PointAtTheConstruct) {
    EXPECT_EQ(position_of("SELECT * FROM nothing WHERE account_id = ?"), 15);
    EXPECT_EQ(position_of("SELECT * FROM app.nothing WHERE account_id = ?"), 15);
    EXPECT_EQ(position_of("SELECT owner, nothing FROM account WHERE account_id = ?"), 15);
    EXPECT_EQ(position_of("SELECT * FROM account"), 22);  // at the end: what is missing
    EXPECT_EQ(position_of("SELECT * FROM account WHERE balance = ?"), 29);
    EXPECT_EQ(position_of("UPDATE account SET account_id = ? WHERE account_id = ?"), 20);
    EXPECT_EQ(position_of("SELECT * FROM account WHERE account_id = ? AND owner = ?"), 44);
    EXPECT_EQ(position_of("SELECT * FROM account WHERE account_id = ? FOR UPDATE"), 44);
}

TEST(StrictRefusals, PositionsCountCharactersNotBytes) {
    EXPECT_EQ(position_of("SELECT ünbekannt FROM account WHERE account_id = ?"), 8);
    EXPECT_EQ(position_of("SELECT * FROM konto WHERE schlüssel = ? äöü"), 41);
    EXPECT_EQ(position_of("SELECT * FROM konto WHERE schlüssel = 1"), 39);
    EXPECT_EQ(position_of("SELECT * FROM konto WHERE schlüssel = ? AND \xF0\x9F\x9A\x82 = ?"), 45);
}

TEST(StrictRefusals, NameTheTableAndColumnAndTheRewrite) {
    const auto unrouted = analyse("SELECT * FROM account WHERE balance = ?");
    ASSERT_FALSE(unrouted);
    EXPECT_NE(unrouted.error().message.find("account_id"), std::string::npos);
    EXPECT_NE(unrouted.error().hint.find("WHERE account_id = ?"), std::string::npos);
    const auto unknown = analyse("SELECT * FROM account WHERE account_id = ? AND nothing = ?");
    ASSERT_FALSE(unknown);
    EXPECT_NE(unknown.error().message.find("\"nothing\""), std::string::npos);
    const auto ambiguous = analyse("SELECT * FROM event WHERE account_id = ?");
    ASSERT_FALSE(ambiguous);
    EXPECT_NE(ambiguous.error().hint.find("schema.table"), std::string::npos);
}

TEST(Codes, HaveTheNamesAndStatesOfTheSpecification) {
    const std::map<Code, std::pair<const char *, const char *>> table = {
        {Code::R01, {"R01", "IL001"}}, {Code::R02, {"R02", "08P01"}}, {Code::R10, {"R10", "IL010"}},
        {Code::R11, {"R11", "IL011"}}, {Code::R12, {"R12", "IL012"}}, {Code::R13, {"R13", "25P02"}},
        {Code::R20, {"R20", "IL020"}}, {Code::R21, {"R21", "IL021"}}, {Code::R22, {"R22", "IL022"}},
        {Code::R23, {"R23", "IL023"}}, {Code::R24, {"R24", "IL024"}}, {Code::R25, {"R25", "IL025"}},
        {Code::R26, {"R26", "IL026"}}, {Code::R27, {"R27", "IL027"}}, {Code::R28, {"R28", "IL028"}},
        {Code::R29, {"R29", "IL029"}}, {Code::R30, {"R30", "IL030"}}, {Code::R32, {"R32", "08007"}},
        {Code::R40, {"R40", "25001"}},
    };
    for (const auto &[code, names] : table) {
        EXPECT_EQ(code_entry(code).name, names.first);
        EXPECT_EQ(code_entry(code).sqlstate, names.second);
    }
    Refusal passed_through;
    passed_through.code = Code::R31;
    passed_through.sqlstate = "23514";
    EXPECT_EQ(passed_through.state(), "23514");
}

}  // namespace
}  // namespace interlock
