// From a statement and its parameters to the shard: R27 and R11, and the shard itself.
#include "fixtures.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

using test::analyse;
using test::reference_table;
using test::shard_of;

constexpr const char *select_one = "select * from account where account_id = ?";
constexpr const char *select_three = "select * from account where account_id in (?, ?, ?)";

std::string expected_shard(std::int64_t key) {
    return placement::bucket_of_hash(placement::splitmix64(key), 16) % 2 == 0 ? "s0" : "s1";
}

/// The first `count` keys that live on `shard`.
std::vector<std::string> keys_on(const std::string &shard, std::size_t count) {
    std::vector<std::string> keys;
    for (std::int64_t key = 1; keys.size() < count; ++key)
        if (expected_shard(key) == shard) keys.push_back(std::to_string(key));
    return keys;
}

TEST(Plan, FindsTheShardOfTheKey) {
    for (std::int64_t key = -500; key < 500; ++key) {
        const std::string text = std::to_string(key);
        EXPECT_EQ(shard_of(select_one, {text}), expected_shard(key));
        EXPECT_EQ(shard_of("delete from account where account_id = ?", {text}),
                  expected_shard(key));
        EXPECT_EQ(shard_of("insert into account (owner, account_id) values (?, ?)", {"x", text}),
                  expected_shard(key));
        EXPECT_EQ(
            shard_of("update account set balance = balance - ? where account_id = ?", {"1", text}),
            expected_shard(key));
    }
}

TEST(Plan, OneSpellingIsAsGoodAsAnother) {
    EXPECT_EQ(shard_of(select_one, {"7"}), shard_of(select_one, {"+007"}));
    EXPECT_EQ(shard_of("select * from device where device_id = ?",
                       {"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"}),
              shard_of("select * from device where device_id = ?",
                       {"{a0eebc999c0b4ef8bb6d6bb9bd380a11}"}));
}

TEST(Plan, KeysOfOneShardMayComeTogether) {
    const auto keys = keys_on("s1", 3);
    EXPECT_EQ(shard_of(select_three, {keys[0], keys[1], keys[2]}), "s1");
    EXPECT_EQ(shard_of(select_three, {keys[0], keys[0], keys[0]}), "s1");
}

TEST(Plan, KeysOfSeveralShardsAreR11) {
    const auto here = keys_on("s0", 2);
    const auto there = keys_on("s1", 1);
    EXPECT_EQ(shard_of(select_three, {here[0], here[1], there[0]}), "R11");
    EXPECT_EQ(shard_of(select_three, {there[0], here[1], here[0]}), "R11");
    EXPECT_EQ(
        shard_of("insert into account (account_id, account_id) values (?, ?)", {here[0], there[0]}),
        "R11");
    const auto statement = analyse(select_three);
    const std::vector<Parameter> parameters = {here[0], here[1], there[0]};
    const auto refused = plan(*statement, parameters, *reference_table());
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().detail.find("shard s0"), std::string::npos);
    EXPECT_NE(refused.error().detail.find("shard s1"), std::string::npos);
}

TEST(Plan, TheNumberOfParametersMustFit) {
    EXPECT_EQ(shard_of(select_one, {}), "R27");
    EXPECT_EQ(shard_of(select_one, {"1", "2"}), "R27");
    EXPECT_EQ(shard_of(select_three, {"1", "2"}), "R27");
}

TEST(Plan, AKeyThatIsNoKeyIsR27NotABroadcast) {
    for (const char *text : {"abc", "", " 1", "1.5", "9223372036854775808", "1; drop table account",
                             "1 or 1=1", "0x1", "null"})
        EXPECT_EQ(shard_of(select_one, {text}), "R27") << text;
    EXPECT_EQ(shard_of(select_one, {std::nullopt}), "R27");
    EXPECT_EQ(shard_of("insert into account (account_id) values (?)", {std::nullopt}), "R27");
    const auto keys = keys_on("s0", 2);
    EXPECT_EQ(shard_of(select_three, {keys[0], std::nullopt, keys[1]}), "R27");
    EXPECT_EQ(shard_of(select_three, {keys[0], keys[1], "x"}), "R27");
    EXPECT_EQ(shard_of("select * from narrow where small = ?", {"32768"}), "R27");
    EXPECT_EQ(shard_of("select * from device where device_id = ?", {"42"}), "R27");
    EXPECT_EQ(shard_of("select * from person where name = ?", {"\xFF"}), "R27");
    EXPECT_EQ(shard_of("select * from blob where digest = ?", {"\\x1"}), "R27");
}

TEST(Plan, OtherParametersMustBeOfTheirColumnsType) {
    const char *update = "update account set balance = ?, version = ? where account_id = ?";
    EXPECT_EQ(shard_of(update, {"1", "2", "3"}), expected_shard(3));
    EXPECT_EQ(shard_of(update, {"x", "2", "3"}), "R27");
    EXPECT_EQ(shard_of(update, {"1", "2147483648", "3"}), "R27");
    EXPECT_EQ(shard_of(update, {"1", std::nullopt, "3"}),
              expected_shard(3));  // NULL is of any type
    EXPECT_EQ(shard_of("select * from account where account_id = ? and version = ?", {"3", "v"}),
              "R27");
    EXPECT_EQ(shard_of("update account set owner = ? where account_id = ?", {"", "3"}),
              expected_shard(3));
    EXPECT_EQ(shard_of("update account set owner = ? where account_id = ?", {"'; drop", "3"}),
              expected_shard(3));
}

TEST(Plan, OperandsOfNumbersAreNumbersAndOthersAreLeftToTheShard) {
    EXPECT_EQ(shard_of("update account set balance = balance + ? where account_id = ?", {"x", "3"}),
              "R27");
    EXPECT_EQ(shard_of("update order set placed = placed + ? where account_id = ?", {"1 day", "3"}),
              expected_shard(3));
    // A type the router does not know is left to the shard as well.
    EXPECT_EQ(shard_of("update narrow set mood = ? where small = ?", {"anything", "3"}),
              expected_shard(3));
}

TEST(Plan, BooleansAreSpelledAsPostgresReadsThem) {
    const char *update = "update person set adult = ? where name = ?";
    for (const char *text :
         {"t", "true", "TRUE", "tr", "f",   "F",  "false", "fals", "y",      "yes",
          "n", "no",   "on",   "of", "off", "ON", "1",     "0",    " true ", "\tno\n"})
        EXPECT_NE(shard_of(update, {text, "eve"}), "R27") << text;
    for (const char *text : {"", "o", "O", "truely", "2", "01", "yess", "x", "-1", "\x11", "\x10"})
        EXPECT_EQ(shard_of(update, {text, "eve"}), "R27") << testing::PrintToString(text);
}

TEST(Plan, AnEmptyTextIsAKeyButAnEmptyNumberIsNone) {
    EXPECT_NE(shard_of("select * from person where name = ?", {""}), "R27");
    EXPECT_NE(shard_of("select * from blob where digest = ?", {""}), "R27");
    EXPECT_EQ(shard_of(select_one, {""}), "R27");
}

TEST(Plan, TheMessageNamesParameterTypeAndColumnButNotTheValue) {
    const auto statement = analyse("update account set version = ? where account_id = ?");
    const std::vector<Parameter> parameters = {"secret", "3"};
    const auto refused = plan(*statement, parameters, *reference_table());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message,
              "parameter 1 is not a value of type integer, which column \"version\" has");
}

TEST(Plan, FollowsTheMapItIsGiven) {
    auto rows = test::reference_rows();
    for (auto &route : rows.routes)
        route.shard_id = 2;
    const auto table = test::build(rows);
    const auto statement = sql::analyse_strict(select_one, *table);
    for (const char *key : {"1", "2", "3", "4"}) {
        const std::vector<Parameter> parameters = {key};
        const auto shard = plan(*statement, parameters, *table);
        ASSERT_TRUE(shard);
        EXPECT_EQ(table->shards[shard->shard].name, "s1");
    }
}

TEST(Plan, AKeyInAnAnnouncedBucketIsHeld) {
    auto rows = test::reference_rows();
    const auto now = test::build(rows);
    const std::string moving = keys_on("s0", 1)[0];
    const std::int32_t bucket =
        now->keyspaces[0].bucket_of(*parse_key(now->tables[0].key_type, moving));
    ASSERT_EQ(now->shards[now->keyspaces[0].owner[static_cast<std::size_t>(bucket)]].name, "s0");
    rows.announced = {rows.version + 3, rows.keyspaces[0].id, 1, 2, {bucket}};
    const auto table = test::build(rows);
    const auto held = [&](const std::vector<std::string> &keys) {
        const auto statement =
            sql::analyse_strict(keys.size() == 1 ? select_one : select_three, *table);
        std::vector<Parameter> parameters(keys.begin(), keys.end());
        const auto place = plan(*statement, parameters, *table);
        return place && place->held;
    };
    std::vector<std::string> others;
    for (const std::string &key : keys_on("s0", 200))
        if (now->keyspaces[0].bucket_of(*parse_key(now->tables[0].key_type, key)) != bucket)
            others.push_back(key);
    EXPECT_TRUE(held({moving}));
    EXPECT_FALSE(held({others[0]}));
    EXPECT_FALSE(held({others[0], others[1], others[2]}));
    EXPECT_TRUE(held({others[0], others[1], moving}));  // not the first key only
    EXPECT_EQ(now->settled_version(), rows.version);
    EXPECT_EQ(table->settled_version(), rows.version + 3);
}

}  // namespace
}  // namespace interlock
