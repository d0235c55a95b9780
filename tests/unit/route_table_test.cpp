// Building a route table: what is complete is taken, every kind of damage is named.
#include "route/route_table.h"

#include "fixtures.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

using test::reference_rows;

std::string rejection(const CatalogRows &rows) {
    const auto table = RouteTable::build(rows);
    return table ? "accepted" : table.error();
}

testing::AssertionResult rejected(const CatalogRows &rows, const std::string &expected) {
    const std::string why = rejection(rows);
    if (why.find(expected) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << '"' << why << "\" does not say \"" << expected << '"';
}

TEST(RouteTable, HoldsWhatTheCatalogSays) {
    const auto table = test::build(reference_rows());
    EXPECT_EQ(table->version, 3);
    EXPECT_EQ(table->cluster_id, "6ae3c2f0-0000-4000-8000-000000000001");
    ASSERT_EQ(table->shards.size(), 2U);
    ASSERT_EQ(table->keyspaces.size(), 4U);
    for (std::int64_t key = -100; key < 100; ++key) {
        const auto &keyspace = table->keyspaces[0];
        const Key hashed{placement::splitmix64(key)};
        EXPECT_EQ(keyspace.shard_of(hashed), keyspace.bucket_of(hashed) % 2);
    }
    EXPECT_GT(table->memory(), sizeof(RouteTable));
}

TEST(RouteTable, DoesNotDependOnTheOrderOfRows) {
    auto rows = reference_rows();
    std::reverse(rows.routes.begin(), rows.routes.end());
    std::reverse(rows.tables.begin(), rows.tables.end());
    const auto table = test::build(rows);
    const auto reference = test::build(reference_rows());
    for (std::size_t i = 0; i < table->keyspaces.size(); ++i)
        EXPECT_EQ(table->keyspaces[i].owner, reference->keyspaces[i].owner);
}

TEST(RouteTable, IdentifiersNeedNotBeDense) {
    auto rows = reference_rows();
    for (auto &shard : rows.shards)
        shard.id = shard.id * 1000 - 7;
    for (auto &route : rows.routes)
        route.shard_id = route.shard_id * 1000 - 7;
    EXPECT_EQ(rejection(rows), "accepted");
}

TEST(RouteTable, KnowsWhatIsAnnounced) {
    auto rows = reference_rows();
    EXPECT_FALSE(test::build(rows)->is_announced(0, 2));
    EXPECT_EQ(test::build(rows)->settled_version(), rows.version);
    rows.announced = {rows.version + 2, 1, 1, 2, {2, 6}};
    const auto table = test::build(rows);
    EXPECT_EQ(table->version, rows.version);
    EXPECT_EQ(table->settled_version(), rows.version + 2);
    EXPECT_EQ(table->shards[table->announced->to].name, "s1");
    for (std::int32_t bucket = 0; bucket < 16; ++bucket) {
        EXPECT_EQ(table->is_announced(0, bucket), bucket == 2 || bucket == 6);
        if (bucket < 4) {
            EXPECT_FALSE(table->is_announced(1, bucket));
        }
    }
}

TEST(RouteTable, AnAnnouncementThatDoesNotFitIsDamage) {
    const auto announced = [](CatalogRows::AnnouncementRow row) {
        auto rows = reference_rows();
        rows.announced = std::move(row);
        return rows;
    };
    EXPECT_EQ(rejection(announced({4, 1, 1, 2, {2}})), "accepted");
    EXPECT_TRUE(rejected(announced({3, 1, 1, 2, {2}}), "does not fit"));  // not a later version
    EXPECT_TRUE(rejected(announced({4, 9, 1, 2, {2}}), "does not fit"));  // keyspace
    EXPECT_TRUE(rejected(announced({4, 1, 9, 2, {2}}), "does not fit"));  // shards
    EXPECT_TRUE(rejected(announced({4, 1, 1, 9, {2}}), "does not fit"));
    EXPECT_TRUE(rejected(announced({4, 1, 1, 2, {16}}), "does not exist"));
    EXPECT_TRUE(rejected(announced({4, 1, 1, 2, {-1}}), "does not exist"));
    EXPECT_TRUE(rejected(announced({4, 1, 1, 2, {2, 3}}), "does not have it"));
}

TEST(RouteTable, KeepsHowLowAShardsFloorMayBe) {
    auto rows = reference_rows();
    rows.shards[1].min_floor = 2;
    const auto table = test::build(rows);
    EXPECT_EQ(table->shards[0].min_floor, 0);
    EXPECT_EQ(table->shards[1].min_floor, 2);
}

TEST(RouteTable, FindsTablesByFoldedName) {
    const auto table = test::build(reference_rows());
    bool ambiguous = false;
    ASSERT_NE(table->find_table("", "account", ambiguous), nullptr);
    EXPECT_EQ(table->find_table("public", "account", ambiguous)->sql_name, "public.account");
    EXPECT_EQ(table->find_table("app", "account", ambiguous), nullptr);
    EXPECT_EQ(table->find_table("", "Account", ambiguous), nullptr);
    EXPECT_EQ(table->find_table("", "nothing", ambiguous), nullptr);
    EXPECT_FALSE(ambiguous);
    EXPECT_EQ(table->find_table("", "event", ambiguous), nullptr);
    EXPECT_TRUE(ambiguous);
    EXPECT_EQ(table->find_table("app", "event", ambiguous)->sql_name, "app.event");
    EXPECT_FALSE(ambiguous);
}

TEST(RouteTable, KnowsTheDeclaredFunctions) {
    auto rows = reference_rows();
    rows.functions = {{"public", "total"}, {"app", "total"}, {"app", "Gross"}};
    const auto table = test::build(rows);
    EXPECT_TRUE(table->declares_function("public", "total"));
    EXPECT_TRUE(table->declares_function("app", "total"));
    EXPECT_TRUE(table->declares_function("app", "Gross"));
    for (const char *name : {"gross", "tota", "totals", "", "app"})
        EXPECT_FALSE(table->declares_function("app", name)) << name;
    EXPECT_FALSE(table->declares_function("", "total"));
    EXPECT_FALSE(table->declares_function("zzz", "total"));
    EXPECT_FALSE(test::build(reference_rows())->declares_function("app", "total"));
}

TEST(RouteTable, RefusesAMissingBucket) {
    auto rows = reference_rows();
    rows.routes.erase(rows.routes.begin() + 15);
    EXPECT_TRUE(rejected(rows, "bucket 15 of keyspace main has no route"));
    rows.routes.clear();
    EXPECT_TRUE(rejected(rows, "bucket 0 of keyspace main has no route"));
}

TEST(RouteTable, RefusesABucketWithTwoRoutes) {
    auto rows = reference_rows();
    rows.routes.push_back({1, 3, 1});
    EXPECT_TRUE(rejected(rows, "bucket 3 of keyspace main has more than one route"));
    rows = reference_rows();
    rows.routes.push_back(rows.routes.front());  // even when both say the same
    EXPECT_TRUE(rejected(rows, "more than one route"));
}

TEST(RouteTable, RefusesRoutesToNowhere) {
    auto rows = reference_rows();
    rows.routes[5].shard_id = 9;
    EXPECT_TRUE(rejected(rows, "bucket 5 of keyspace main is on unknown shard 9"));
    rows = reference_rows();
    rows.routes[5].bucket = 16;
    EXPECT_TRUE(rejected(rows, "bucket 16, which does not exist"));
    rows.routes[5].bucket = -1;
    EXPECT_TRUE(rejected(rows, "bucket -1, which does not exist"));
    rows = reference_rows();
    rows.routes[5].keyspace_id = 99;
    EXPECT_TRUE(rejected(rows, "unknown keyspace 99"));
}

TEST(RouteTable, RefusesShardsAndKeyspacesThatCannotBe) {
    auto rows = reference_rows();
    rows.shards.clear();
    EXPECT_TRUE(rejected(rows, "no shards are defined"));
    for (const std::int32_t buckets : {0, -1, 65537}) {
        rows = reference_rows();
        rows.keyspaces[0].buckets = buckets;
        EXPECT_TRUE(rejected(rows, "keyspace main has " + std::to_string(buckets) + " buckets"));
    }
    rows = reference_rows();
    rows.keyspaces[0].hash = "xxh3_64";
    EXPECT_TRUE(rejected(rows, "unknown key type or hash: bigint, xxh3_64"));
    rows = reference_rows();
    rows.keyspaces[1].hash = "splitmix64";
    EXPECT_TRUE(rejected(rows, "unknown key type or hash: uuid, splitmix64"));
    rows = reference_rows();
    rows.keyspaces[1].key_type = "inet";
    EXPECT_TRUE(rejected(rows, "unknown key type"));
}

TEST(RouteTable, RefusesTablesThatDoNotFit) {
    auto rows = reference_rows();
    rows.tables[0].keyspace_id = 77;
    EXPECT_TRUE(rejected(rows, "table public.account is in an unknown keyspace"));
    rows = reference_rows();
    rows.tables[0].key_column = "id";
    EXPECT_TRUE(rejected(rows, "no recorded column id, its shard key"));
    rows = reference_rows();
    rows.tables[0].version_column = "revision";
    EXPECT_TRUE(rejected(rows, "no recorded column revision, its version column"));
    rows = reference_rows();
    rows.tables[0].key_column = "owner";  // text in a keyspace of bigint
    EXPECT_TRUE(rejected(rows, "is not of the type of keyspace main"));
    rows = reference_rows();
    rows.columns[0].type_oid = oid::numeric;
    EXPECT_TRUE(rejected(rows, "is not of the type of keyspace main"));
    rows = reference_rows();
    for (int i = 0; i < 1601; ++i)
        rows.columns.push_back({1, "c" + std::to_string(i), "c" + std::to_string(i), oid::text});
    EXPECT_TRUE(rejected(rows, "more than 1600 columns"));
}

TEST(RouteTable, LeavesOutATableThatWasNotApplied) {
    auto rows = reference_rows();
    std::erase_if(rows.columns, [](const auto &column) { return column.table_id == 1; });
    const auto table = test::build(rows);
    bool ambiguous = false;
    EXPECT_EQ(table->find_table("", "account", ambiguous), nullptr);
    EXPECT_FALSE(ambiguous);
}

TEST(RouteTable, AKeyspaceMayBeEmptyOfTablesAndATableOfVersions) {
    auto rows = reference_rows();
    rows.tables.clear();
    EXPECT_EQ(rejection(rows), "accepted");
    rows.keyspaces.clear();
    rows.routes.clear();
    EXPECT_EQ(rejection(rows), "accepted");
}

TEST(RouteTable, TakesTheLargestKeyspaceOnManyShards) {
    CatalogRows rows;
    rows.version = 1;
    for (std::int32_t i = 0; i < 256; ++i)
        rows.shards.push_back({i, "s" + std::to_string(i), ""});
    rows.keyspaces = {{1, "wide", "text", "xxh3_64", 65536}};
    for (std::int32_t bucket = 0; bucket < 65536; ++bucket)
        rows.routes.push_back({1, bucket, bucket % 256});
    const auto table = test::build(rows);
    EXPECT_EQ(table->keyspaces[0].owner[65535], 255);
    EXPECT_LT(table->memory(), 1U << 20);
}

TEST(RouteTable, KnowsGlobalIndexesByName) {
    auto rows = reference_rows();
    rows.shards.push_back({7, "idx", "host=idx", true});
    rows.indexes = {{5, "zeta", 5, {"user"}, "placed DESC, account_id", 7, true, 200, 20},
                    {2, "alpha", 1, {}, "balance, account_id", 2, false}};
    const auto table = test::build(rows);
    ASSERT_EQ(table->shards.size(), 3U);
    EXPECT_TRUE(table->shards[2].index_only);
    EXPECT_FALSE(table->shards[0].index_only);
    for (const Keyspace &keyspace : table->keyspaces)
        for (const ShardIndex owner : keyspace.owner)
            EXPECT_NE(owner, 2);
    const GlobalIndex *zeta = table->find_index("zeta");
    ASSERT_NE(zeta, nullptr);
    EXPECT_EQ(zeta->sql_name, "interlock_index.\"zeta\"");
    EXPECT_EQ(table->tables[zeta->table].sql_name, "app.\"order\"");
    EXPECT_EQ(zeta->database, 2);
    EXPECT_TRUE(zeta->ready);
    EXPECT_EQ(zeta->scope, std::vector<std::string>{"user"});
    EXPECT_EQ(zeta->order, "placed DESC, account_id");
    EXPECT_EQ(zeta->shard_key_sql, "account_id");
    EXPECT_EQ(zeta->max_page, 200U);
    EXPECT_EQ(zeta->default_page, 20U);
    const GlobalIndex *alpha = table->find_index("alpha");
    ASSERT_NE(alpha, nullptr);
    EXPECT_EQ(alpha->database, 1);  // a shard may hold indexes
    EXPECT_FALSE(alpha->ready);
    EXPECT_TRUE(alpha->scope.empty());
    for (const char *name : {"", "alph", "alphaa", "beta", "zetaz"})
        EXPECT_EQ(table->find_index(name), nullptr) << name;
    EXPECT_EQ(test::build(reference_rows())->find_index("alpha"), nullptr);
}

TEST(RouteTable, LeavesOutAnIndexOfATableThatWasNotApplied) {
    auto rows = reference_rows();
    rows.indexes = {{1, "one", 1, {}, "account_id", 1}, {2, "two", 6, {}, "account_id", 1}};
    std::erase_if(rows.columns, [](const auto &column) { return column.table_id == 1; });
    const auto table = test::build(rows);
    EXPECT_EQ(table->find_index("one"), nullptr);
    ASSERT_NE(table->find_index("two"), nullptr);
    EXPECT_EQ(table->tables[table->find_index("two")->table].sql_name, "public.event");
}

TEST(RouteTable, RefusesIndexesAndIndexDatabasesThatCannotBe) {
    auto rows = reference_rows();
    rows.indexes = {{1, "one", 99, {}, "account_id", 1}};
    EXPECT_TRUE(rejected(rows, "index one is of unknown table 99"));
    rows.indexes = {{1, "one", 1, {}, "account_id", 99}};
    EXPECT_TRUE(rejected(rows, "index one is in unknown database 99"));
    rows.indexes = {{1, "one", 1, {}, "account_id", 1}, {2, "one", 6, {}, "account_id", 1}};
    EXPECT_TRUE(rejected(rows, "index one is there more than once"));
    for (const auto &[most, some] : {std::pair(0, 0), std::pair(10, 0), std::pair(10, 11)}) {
        rows.indexes = {{1, "one", 1, {}, "account_id", 1, false, most, some}};
        EXPECT_TRUE(rejected(rows, "index one has pages of"));
    }
    rows = reference_rows();
    rows.shards[1].index_only = true;
    EXPECT_TRUE(rejected(rows, "bucket 1 of keyspace main is on index database s1"));
    rows.shards[0].index_only = true;
    EXPECT_TRUE(rejected(rows, "no shards are defined"));
}

TEST(KeyTypeOfOid, KnowsTheTypesAKeyMayHave) {
    EXPECT_EQ(key_type_of_oid(oid::int2), KeyType::int2);
    EXPECT_EQ(key_type_of_oid(oid::int4), KeyType::int4);
    EXPECT_EQ(key_type_of_oid(oid::int8), KeyType::int8);
    EXPECT_EQ(key_type_of_oid(oid::uuid), KeyType::uuid);
    EXPECT_EQ(key_type_of_oid(oid::text), KeyType::text);
    EXPECT_EQ(key_type_of_oid(oid::varchar), KeyType::text);
    EXPECT_EQ(key_type_of_oid(oid::bytea), KeyType::bytea);
    for (const std::uint32_t type : {oid::boolean, oid::float8, oid::numeric, oid::oid,
                                     1042U /* char(n) */, 19U /* name */, oid::first_user})
        EXPECT_FALSE(key_type_of_oid(type));
}

}  // namespace
}  // namespace interlock
