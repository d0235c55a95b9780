#include "server/surroundings.h"

#include "fixtures.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

using Path = std::vector<std::string>;

class SurroundingsTest : public testing::Test {
  protected:
    void tell(const std::string &kind, const std::string &schema, const std::string &name) {
        EXPECT_TRUE(surroundings_.take({kind, schema, name, schema + "." + name + "(text)"}));
    }
    bool conflict(const sql::Facts &facts, const Path &path) const {
        return surroundings_.conflict(facts, path).has_value();
    }

    std::shared_ptr<const RouteTable> table_ = test::build(test::reference_rows());
    std::shared_ptr<const Declared> declared_ = Declared::of(*table_, nullptr);
    Surroundings surroundings_{declared_};
};

TEST_F(SurroundingsTest, NothingIsQuiet) {
    sql::Facts facts;
    facts.relation_names = {"account"};
    facts.function_names = {"abs"};
    facts.operator_names = {"="};
    EXPECT_TRUE(surroundings_.quiet());
    EXPECT_FALSE(conflict(facts, {"public"}));
    EXPECT_FALSE(surroundings_.runs_user_code(table_->tables[0]));
}

TEST_F(SurroundingsTest, AnotherRelationMattersOnlyBeforeTheDeclaredOne) {
    tell("relation", "other", "account");
    sql::Facts facts;
    facts.relation_names = {"account"};
    EXPECT_FALSE(surroundings_.quiet());
    EXPECT_TRUE(conflict(facts, {"other", "public"}));
    EXPECT_TRUE(conflict(facts, {"other"}));
    EXPECT_FALSE(conflict(facts, {"public", "other"}));
    EXPECT_FALSE(conflict(facts, {"public"}));
    EXPECT_NE(surroundings_.conflict(facts, {"other"})->find("other.account"), std::string::npos);
    facts.relation_names = {"payment"};
    EXPECT_FALSE(conflict(facts, {"other"}));
}

TEST_F(SurroundingsTest, AFunctionOrOperatorMattersAnywhereInThePath) {
    tell("function", "other", "abs");
    tell("operator", "more", "=");
    sql::Facts facts;
    facts.function_names = {"lower", "abs"};
    EXPECT_TRUE(conflict(facts, {"public", "other"}));
    EXPECT_FALSE(conflict(facts, {"public", "more"}));
    facts.function_names = {"lower"};
    EXPECT_FALSE(conflict(facts, {"public", "other"}));
    facts.operator_names = {"="};
    EXPECT_TRUE(conflict(facts, {"public", "more"}));
    EXPECT_FALSE(conflict(facts, {"public", "other"}));
}

TEST_F(SurroundingsTest, CodeOfUsersBelongsToItsTable) {
    tell("user code", "public", "account");
    EXPECT_FALSE(surroundings_.quiet());
    Table table;
    table.schema = "public";
    table.name = "account";
    EXPECT_TRUE(surroundings_.runs_user_code(table));
    table.schema = "other";
    EXPECT_FALSE(surroundings_.runs_user_code(table));
}

TEST_F(SurroundingsTest, KeysetsAreKnownByName) {
    EXPECT_TRUE(
        surroundings_.take({"keyset", "", "by time", "00ff 1000 50 true app.\"my orders\""}));
    EXPECT_TRUE(surroundings_.quiet());
    EXPECT_EQ(surroundings_.find_keyset("other"), nullptr);
    const KnownKeyset *keyset = surroundings_.find_keyset("by time");
    ASSERT_NE(keyset, nullptr);
    EXPECT_EQ(keyset->digest, "00ff");
    EXPECT_EQ(keyset->max_page, 1000U);
    EXPECT_EQ(keyset->default_page, 50U);
    EXPECT_TRUE(keyset->scatter);
    EXPECT_EQ(keyset->table, "app.\"my orders\"");
    surroundings_.forget_keysets();
    EXPECT_EQ(surroundings_.find_keyset("by time"), nullptr);
    for (const char *detail :
         {"", "00ff", "00ff 1000 50 yes t", "00ff -1 50 true t", "00ff 1000 50 true"})
        EXPECT_FALSE(surroundings_.take({"keyset", "", "k", detail})) << detail;
}

TEST_F(SurroundingsTest, AnOrderIsTotalIfItHoldsAllOfAUniqueKey) {
    const Table &account = table_->tables[0];
    EXPECT_FALSE(surroundings_.unique_within(account, {"account_id"}));
    EXPECT_TRUE(surroundings_.take({"unique key", "public", "account", "owner\naccount_id"}));
    EXPECT_FALSE(surroundings_.unique_within(account, {"account_id"}));
    EXPECT_FALSE(surroundings_.unique_within(account, {}));
    EXPECT_TRUE(surroundings_.unique_within(account, {"account_id", "balance", "owner"}));
    Table other = account;
    other.schema = "other";
    EXPECT_FALSE(surroundings_.unique_within(other, {"account_id", "owner"}));
    EXPECT_TRUE(surroundings_.take({"collations", "", "", "icu 72"}));
    EXPECT_EQ(surroundings_.collations(), "icu 72");
}

TEST_F(SurroundingsTest, AnAnswerOfAnotherKindIsNotBelieved) {
    EXPECT_FALSE(surroundings_.take({"what", "a", "b", "c"}));
    EXPECT_FALSE(surroundings_.take({"relation", "a", "b"}));
}

TEST(Declared, IsTheSameValueForTheSameDeclarations) {
    const auto rows = test::reference_rows();
    const auto first = Declared::of(*test::build(rows), nullptr);
    auto next = rows;
    ++next.version;
    EXPECT_EQ(Declared::of(*test::build(next), first), first);
    next.functions.push_back({"app", "it's"});
    const auto other = Declared::of(*test::build(next), first);
    EXPECT_NE(other, first);
    EXPECT_NE(other->query.find("('app', 'it''s')"), std::string::npos);
    EXPECT_TRUE(first->has_table("public", "account"));
    EXPECT_FALSE(first->has_table("other", "account"));
}

}  // namespace
}  // namespace interlock
