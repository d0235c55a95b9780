// Which statements are held back while a bucket is announced to move: those with a key in it.
#include "fixtures.h"

#include "plan/single_shard.h"
#include "sql/analysis.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

constexpr std::int32_t moving = 2;  // of keyspace main: from s0 to s1

std::shared_ptr<const RouteTable> table() {
    auto rows = test::reference_rows();
    rows.announced = {rows.version + 1, 1, 1, 2, {moving}};
    return test::build(rows);
}

// A key of the bucket; further ones with `skip`.
std::string key_of(std::int32_t bucket, int skip = 0) {
    for (std::int64_t key = 1;; ++key)
        if (table()->keyspaces[0].bucket_of(Key{placement::splitmix64(key)}) == bucket &&
            skip-- == 0)
            return std::to_string(key);
}

/// "held", "free", "anywhere", or the code of a refusal.
std::string judged(const std::string &text) {
    const auto routes = table();
    sql::Shape shape;
    sql::make_shape(text, shape);
    const std::vector<std::string> path = {"public"};
    const auto analysed = sql::analyse(text, shape, {*routes, path});
    if (!analysed) return std::string(code_entry(analysed.error().code).name);
    const auto target = plan((*analysed)[0].facts, {text, shape.literals, {}, true}, *routes);
    if (!target) return std::string(code_entry(target.error().code).name);
    if (!*target) return "anywhere";
    EXPECT_EQ(routes->shards[(*target)->shard].name, "s0");  // the map in force is what counts
    return (*target)->held ? "held" : "free";
}

TEST(AnnouncedPlan, AKeyInAnAnnouncedBucketIsHeldWhereverItStands) {
    const std::string in = key_of(moving), out = key_of(4), other = key_of(6);
    EXPECT_EQ(judged("SELECT * FROM account WHERE account_id = " + in), "held");
    EXPECT_EQ(judged("SELECT * FROM account WHERE account_id = " + out), "free");
    EXPECT_EQ(judged("SELECT * FROM account WHERE account_id IN (" + out + ", " + other + ")"),
              "free");
    EXPECT_EQ(judged("SELECT * FROM account WHERE account_id IN (" + out + ", " + in + ")"),
              "held");
    EXPECT_EQ(judged("DELETE FROM account WHERE account_id = ANY ('{" + out + "," + in + "}')"),
              "held");
    EXPECT_EQ(judged("INSERT INTO account (account_id) VALUES (" + out + "), (" + in + ")"),
              "held");
    EXPECT_EQ(judged("UPDATE account SET balance = 1 WHERE account_id = " + key_of(moving, 3)),
              "held");
    EXPECT_EQ(judged("SELECT 1"), "anywhere");
}

TEST(AnnouncedPlan, AnotherKeyspacesBucketsOfTheSameNumberAreFree) {
    const auto routes = table();
    for (std::int32_t bucket = 0; bucket < 4; ++bucket)
        EXPECT_FALSE(routes->is_announced(1, bucket));
}

}  // namespace
}  // namespace interlock
