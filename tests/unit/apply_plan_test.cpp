// The judgement of `interlock apply`: who owns what, what is refused, which steps in which order.
#include "tools/apply_plan.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

constexpr std::int32_t buckets = 8;

/// Three shards a, b, c; one keyspace of 8 buckets, all of them on a; one table.
struct World {
    DesiredState desired;
    std::vector<ShardState> shards;

    explicit World(std::int32_t version = 1) {
        desired.cluster_id = "id";
        desired.cluster_name = "test";
        desired.version = version;
        desired.shards = {{1, "a", ""}, {2, "b", ""}, {3, "c", ""}};
        DesiredKeyspace keyspace{1, "k", "bigint", "splitmix64", buckets, {}, {}, {}};
        keyspace.staged.assign(buckets, 0);
        keyspace.published.assign(buckets, version == 0 ? no_shard : 0);
        desired.keyspaces.push_back(keyspace);
        const std::vector<ColumnInfo> columns{{"id", "bigint", 20, true}};
        desired.tables.push_back(
            {1, "public.t", 0, "id", "id", "", version == 0 ? std::vector<ColumnInfo>{} : columns});
        desired.instance = "catalog";
        if (version > 0) desired.cursor_keys = {{1, false, "2024-05-01", "digest 1", "secret"}};
        for (const DesiredShard &shard : desired.shards) {
            ShardState state;
            if (version > 0) state.cursor_keys = {{1, false, "2024-05-01", "digest 1", ""}};
            state.known = state.has_extension = true;
            state.instance = shard.name;
            state.encoding = "UTF8";
            state.has_identity = version > 0;
            state.cluster_id = "id";
            state.shard_name = shard.name;
            LocalKeyspace local{version > 0, "bigint", "splitmix64", buckets, {}};
            if (version > 0 && shard.name == "a")
                for (std::int32_t bucket = 0; bucket < buckets; ++bucket)
                    local.rows.push_back({bucket, BucketOwnership::owned, 1, ""});
            state.keyspaces.push_back(local);
            TableState table;
            table.exists = table.ordinary = table.may_alter = table.key_found = true;
            table.columns = columns;
            table.guarded = version > 0;
            table.guarded_keyspace = "k";
            table.guarded_key = "id";
            state.tables.push_back(table);
            shards.push_back(state);
        }
    }

    std::vector<std::int32_t> &staged() { return desired.keyspaces[0].staged; }
    std::vector<std::int32_t> &published() { return desired.keyspaces[0].published; }
    std::vector<BucketRow> &rows(std::size_t shard) { return shards[shard].keyspaces[0].rows; }

    void set(std::size_t shard, std::int32_t bucket, BucketOwnership state,
             std::int32_t version = 1, const std::string &peer = "") {
        for (BucketRow &row : rows(shard))
            if (row.bucket == bucket) {
                row = {bucket, state, version, peer};
                return;
            }
        rows(shard).push_back({bucket, state, version, peer});
    }

    std::vector<Finding> problems;
    OwnershipChange judge() { return check_ownership(desired, 0, shards, problems); }
    std::vector<std::string> plan(bool declarations_changed = false) {
        problems = check_shards(desired, shards);
        const OwnershipChange change = judge();
        EXPECT_TRUE(problems.empty()) << problems.front().message;
        std::vector<std::string> texts;
        for (const Action &action : make_plan(desired, shards, {change}, declarations_changed))
            texts.push_back(action.text);
        return texts;
    }
};

using Texts = std::vector<std::string>;
using Change = std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>>;

TEST(ApplyPlan, NothingToDo) {
    EXPECT_EQ(World().plan(), Texts{});
}

TEST(ApplyPlan, AFreshClusterInOrder) {
    World world(0);
    world.shards[1].has_extension = false;
    world.staged()[7] = 1;
    EXPECT_EQ(
        world.plan(true),
        (Texts{"b: create extension interlock", "a: make this database shard a of cluster test",
               "b: make this database shard b of cluster test",
               "c: make this database shard c of cluster test",
               "a: define keyspace k (bigint, splitmix64, 8 buckets)",
               "b: define keyspace k (bigint, splitmix64, 8 buckets)",
               "c: define keyspace k (bigint, splitmix64, 8 buckets)",
               "a: take buckets 0-6 of keyspace k", "b: take bucket 7 of keyspace k",
               "a: guard table public.t by key column id, keyspace k",
               "b: guard table public.t by key column id, keyspace k",
               "c: guard table public.t by key column id, keyspace k",
               "catalog: make a key that signs cursors", "a: take the catalog's cursor key",
               "b: take the catalog's cursor key", "c: take the catalog's cursor key",
               "catalog: record the 1 column of table public.t",
               "catalog: publish route version 1"}));
}

TEST(ApplyPlan, ABucketMovesFromSourceToTargetBeforeItIsPublished) {
    World world;
    world.staged()[3] = 1;
    EXPECT_EQ(world.plan(), (Texts{"a: give up empty bucket 3 of keyspace k to b",
                                   "b: take bucket 3 of keyspace k, given up by a",
                                   "catalog: publish route version 2"}));
}

TEST(ApplyPlan, AnInterruptedMoveIsFinished) {
    World world;
    world.staged()[3] = 1;
    world.set(0, 3, BucketOwnership::moved, 2, "b");
    world.shards[0].floor = 2;
    EXPECT_EQ(world.judge().move, (Change{{{0, 1}, {3}}}));
    world.set(1, 3, BucketOwnership::owned, 2);
    EXPECT_EQ(world.plan(), Texts{"catalog: publish route version 2"});
}

TEST(ApplyPlan, AnInterruptedMoveMayBeRedirectedOrTakenBackWhileNobodyOwnsTheBucket) {
    World world;
    world.set(0, 3, BucketOwnership::moved, 2, "b");
    world.shards[0].floor = 2;
    EXPECT_EQ(world.plan(),
              (Texts{"a: take bucket 3 of keyspace k", "catalog: publish route version 2"}));
    world.staged()[3] = 2;
    EXPECT_EQ(world.plan(), (Texts{"a: give up empty bucket 3 of keyspace k to c",
                                   "c: take bucket 3 of keyspace k, given up by a",
                                   "catalog: publish route version 2"}));
}

TEST(ApplyPlan, AVersionPublishedMeanwhileMakesTheSourceRaiseItsFloorAgain) {
    World world(2);
    world.staged()[3] = 1;
    world.set(0, 3, BucketOwnership::moved, 2, "b");
    world.set(1, 3, BucketOwnership::owned, 2);
    world.shards[0].floor = 2;
    EXPECT_EQ(world.judge().move, (Change{{{0, 1}, {3}}}));
}

TEST(ApplyPlan, AFloorAheadOfTheMapNeedsANewVersion) {
    World world;
    world.shards[0].floor = 2;
    EXPECT_EQ(world.plan(), Texts{"catalog: publish route version 2"});
    world.shards[0].floor = 3;
    world.problems.clear();
    EXPECT_EQ(check_shards(world.desired, world.shards).size(), 1U);
}

TEST(ApplyPlan, ANumberIsNeverTakenTwice) {
    World world;
    world.staged()[3] = 1;
    world.desired.last_version = 4;  // reserved and given up three times
    EXPECT_EQ(world.plan().back(), "catalog: publish route version 5");
    // One that an earlier run has reserved is gone on with: nobody else can have used it.
    world.desired.reserved_version = 4;
    EXPECT_EQ(world.plan().back(), "catalog: publish route version 4");
    // A move's is not.
    world.desired.reserved_move = "m";
    EXPECT_EQ(world.plan().back(), "catalog: publish route version 5");
    // A floor that is raised to a number the catalog has given out is not ahead of it.
    world.shards[0].floor = 4;
    EXPECT_TRUE(check_shards(world.desired, world.shards).empty());
    world.shards[0].floor = 5;
    EXPECT_EQ(check_shards(world.desired, world.shards).size(), 1U);
}

TEST(ApplyPlan, AShardThatHasForgottenWhatItGaveAwayIsRefused) {
    World world(7);
    world.desired.shards[1].min_floor = 6;
    world.shards[1].floor = 5;
    const auto problems = check_shards(world.desired, world.shards);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_NE(problems[0].message.find("shard \"b\" does not know any more"), std::string::npos);
    EXPECT_NE(problems[0].hint.find("interlock.raise_floor(6)"), std::string::npos);
    world.shards[1].floor = 6;
    EXPECT_EQ(world.plan(), Texts{});
    // A database that is made the shard now begins where the other one was.
    world.shards[1].has_identity = false;
    EXPECT_EQ(world.plan(), (Texts{"b: make this database shard b of cluster test",
                                   "b: refuse route versions before 6"}));
}

TEST(ApplyPlan, BucketsOnTheMoveAreTheMovesBusiness) {
    World world;
    world.desired.moves = {{"m", 0, {3, 4}, 0, 1}};
    world.set(1, 3, BucketOwnership::importing);
    world.set(1, 4, BucketOwnership::importing);
    EXPECT_EQ(world.plan(), Texts{});
    world.set(0, 3, BucketOwnership::fenced);
    EXPECT_EQ(world.plan(), Texts{});
    // Others are applied beside it.
    world.staged()[5] = 2;
    EXPECT_EQ(world.plan(), (Texts{"a: give up empty bucket 5 of keyspace k to c",
                                   "c: take bucket 5 of keyspace k, given up by a",
                                   "catalog: publish route version 2"}));
    // But a bucket in transit elsewhere, or one of no move, is nobody's business to guess at.
    world.set(2, 4, BucketOwnership::importing);
    world.set(1, 6, BucketOwnership::importing);
    (void)world.judge();
    ASSERT_EQ(world.problems.size(), 2U);
    EXPECT_NE(world.problems[0].message.find("bucket 6"), std::string::npos);
    EXPECT_NE(world.problems[1].message.find("bucket 4"), std::string::npos);
}

TEST(ApplyPlan, ADecidedMoveOfWhichTheCatalogKnowsNoNumberIsNotUndone) {
    World world;
    world.desired.moves = {{"m", 0, {3}, 0, 1}};
    world.set(0, 3, BucketOwnership::moved, world.desired.version + 1, "b");
    for (const BucketOwnership there : {BucketOwnership::importing, BucketOwnership::owned}) {
        world.set(1, 3, there);
        world.problems.clear();
        (void)world.judge();
        ASSERT_EQ(world.problems.size(), 1U);
        EXPECT_NE(world.problems[0].hint.find("move --resume m."), std::string::npos);
    }
}

TEST(ApplyPlan, NoTableJoinsAKeyspaceWhileItsBucketsAreOnTheMove) {
    World world;
    world.shards[0].keyspaces[0].on_the_move = world.shards[1].keyspaces[0].on_the_move = true;
    EXPECT_EQ(world.plan(), Texts{});
    for (ShardState &shard : world.shards)
        shard.tables[0].guarded = false;
    auto problems = check_shards(world.desired, world.shards);
    ASSERT_EQ(problems.size(), 2U);
    EXPECT_NE(problems[0].message.find("cannot be guarded on shard \"a\""), std::string::npos);
    EXPECT_NE(problems[1].message.find("cannot be guarded on shard \"b\""), std::string::npos);
    // Nor is a guard mended, or its key renamed: the shards refuse DDL.
    world.shards[0].tables[0].guarded = world.shards[1].tables[0].guarded = true;
    world.shards[0].tables[0].guard_incomplete = true;
    world.shards[1].tables[0].guarded_key = "old";
    EXPECT_EQ(check_shards(world.desired, world.shards).size(), 2U);
    world.shards[2].tables[0].guarded = true;
    world.shards[1].tables[0].guarded_key = "id";
    problems = check_shards(world.desired, world.shards);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_NE(problems[0].message.find("shard \"a\""), std::string::npos);
}

TEST(ApplyPlan, ChangedDeclarationsArePublished) {
    EXPECT_EQ(World().plan(true), Texts{"catalog: publish route version 2"});
    World world;
    for (ShardState &shard : world.shards)
        shard.tables[0].columns.push_back({"extra", "text", 25, false});
    EXPECT_EQ(world.plan(), (Texts{"catalog: record the 2 columns of table public.t",
                                   "catalog: publish route version 2"}));
}

TEST(ApplyPlan, OwnershipThatNobodyCanExplainIsRefused) {
    struct Case {
        const char *word;
        void (*tamper)(World &world);
    };
    const Case cases[] = {
        {"owned by both shard \"a\" and shard \"b\"",
         [](World &world) { world.set(1, 3, BucketOwnership::owned); }},
        {"fenced on shard \"a\"", [](World &world) { world.set(0, 3, BucketOwnership::fenced); }},
        {"importing on shard \"b\"",
         [](World &world) { world.set(1, 3, BucketOwnership::importing); }},
        {"owned by shard \"b\", but assigned to \"a\"",
         [](World &world) {
             world.set(0, 3, BucketOwnership::moved, 2, "b");
             world.set(1, 3, BucketOwnership::owned, 2);
         }},
        {"not assigned", [](World &world) { world.staged()[3] = no_shard; }},
        {"gave it up under route version 1",
         [](World &world) { world.set(0, 3, BucketOwnership::moved, 1, "b"); }},
    };
    for (const Case &each : cases) {
        World world;
        each.tamper(world);
        (void)world.judge();
        ASSERT_EQ(world.problems.size(), 1U) << each.word;
        EXPECT_NE(world.problems[0].message.find(each.word), std::string::npos)
            << world.problems[0].message;
        EXPECT_NE(world.problems[0].message.find("bucket 3 of keyspace \"k\""), std::string::npos);
    }
}

TEST(ApplyPlan, AShardThatLostItsDatabaseIsNotGivenItsBucketsAgain) {
    World world;
    world.staged()[7] = world.published()[7] = 1;
    world.rows(0).pop_back();
    world.shards[1].has_identity = false;
    world.shards[1].keyspaces[0].known = false;
    (void)world.judge();
    ASSERT_EQ(world.problems.size(), 1U);
    EXPECT_NE(world.problems[0].message.find("knows nothing"), std::string::npos);
    // But one that was just not given them yet, by a run that was interrupted, is.
    world.shards[1].has_identity = world.shards[1].keyspaces[0].known = true;
    EXPECT_EQ(world.plan(), Texts{"b: take bucket 7 of keyspace k"});
}

TEST(ApplyPlan, SameFaultsAreToldTogether) {
    World world;
    for (const std::int32_t bucket : {1, 2, 3, 6})
        world.set(1, bucket, BucketOwnership::owned);
    (void)world.judge();
    ASSERT_EQ(world.problems.size(), 1U);
    EXPECT_NE(world.problems[0].message.find("buckets 1-3,6 of keyspace"), std::string::npos);
}

TEST(ApplyPlan, ColumnsDiffer) {
    World world;
    world.shards[2].tables[0].columns.push_back({"id2", "text", 25, false});
    world.shards[1].tables[0].columns[0].type_name = "integer";
    world.shards[1].tables[0].columns[0].type_oid = 23;
    const auto problems = check_shards(world.desired, world.shards);
    ASSERT_EQ(problems.size(), 2U);
    EXPECT_EQ(problems[0].detail, "Column \"id\" is bigint on a and integer on b.");
    EXPECT_EQ(problems[1].detail, "Column \"id2\" is missing on a.");
}

TEST(ApplyPlan, TypesMadeByUsersHaveOtherNumbersOnOtherShards) {
    World world;
    for (std::size_t s = 0; s < world.shards.size(); ++s)
        world.shards[s].tables[0].columns.push_back(
            {"colour", "public.colour", static_cast<std::uint32_t>(16400 + s), false});
    world.desired.tables[0].recorded.insert(world.desired.tables[0].recorded.begin(),
                                            {"colour", "public.colour", 17000, false});
    EXPECT_EQ(world.plan(), Texts{});
}

TEST(ApplyPlan, CursorKeysFollowTheCatalog) {
    World world;
    // Added, not signing yet: it is older than the one that signs.
    world.desired.cursor_keys.push_back({2, false, "2024-04-30", "digest 2", "secret"});
    EXPECT_EQ(world.plan(), (Texts{"a: accept cursors of key 2", "b: accept cursors of key 2",
                                   "c: accept cursors of key 2"}));
    world.shards[0].cursor_keys.push_back({2, false, "2024-04-30", "digest 2", ""});
    world.desired.instance = "b";  // a database that is the catalog has its keys already
    EXPECT_EQ(world.plan(), Texts{"c: accept cursors of key 2"});
    world.desired.cursor_keys[1].created = "2024-06-01";
    EXPECT_EQ(world.plan(), (Texts{"a: sign cursors with key 2",
                                   "c: accept cursors of key 2 and sign cursors with key 2"}));
    world.desired.cursor_keys[0] = {1, true, "2024-05-01", "", ""};
    for (ShardState &shard : world.shards)
        shard.cursor_keys = {{1, false, "2024-05-01", "digest 1", ""},
                             {2, false, "2024-06-01", "digest 2", ""}};
    EXPECT_EQ(world.plan(), (Texts{"a: retire key 1", "c: retire key 1"}));
}

TEST(ApplyPlan, CursorKeysThatAShardMadeItselfAreReplaced) {
    World world;
    world.shards[1].cursor_keys = {{1, false, "2024-07-01", "own", ""},
                                   {7, false, "2024-07-02", "own 7", ""}};
    EXPECT_EQ(world.plan(), Texts{"b: accept cursors of key 1, sign cursors with key 1 and refuse "
                                  "cursors of its own keys 1 and 7"});
    world.shards[1].cursor_keys = {{1, false, "2024-05-02", "digest 1", ""}};
    EXPECT_EQ(world.plan(), Texts{"b: bring its list of cursor keys up to date"});
    world.shards[1].cursor_keys = {{1, false, "2024-05-01", "digest 1", ""},
                                   {9, true, "2024-04-01", "", ""}};
    EXPECT_EQ(world.plan(), Texts{"b: bring its list of cursor keys up to date"});
}

TEST(ApplyPlan, KeysetsThatDifferAreWarnedOf) {
    World world;
    const KeysetInfo keyset{"newest", "0011", "at most 10 rows", "SELECT declare;"};
    for (ShardState &shard : world.shards)
        shard.keysets = {keyset};
    EXPECT_TRUE(check_keysets(world.desired, world.shards).empty());
    world.shards[1].keysets.clear();
    world.shards[2].keysets[0].digest = "0022";
    const auto warnings = check_keysets(world.desired, world.shards);
    ASSERT_EQ(warnings.size(), 2U);
    EXPECT_EQ(warnings[0].message, "keyset \"newest\" is not declared on shard \"b\"");
    EXPECT_EQ(warnings[0].hint, "Run there: SELECT declare;");
    EXPECT_EQ(warnings[1].message, "keyset \"newest\" is declared differently on different shards");
    EXPECT_EQ(warnings[1].detail, "Digests: 0011 on \"a\" and 0022 on \"c\". Pages of it over all "
                                  "shards are refused.");
    world.shards[1].keysets = {keyset};
    world.shards[1].keysets[0].limits = "at most 20 rows";
    world.shards[2].keysets[0].digest.clear();
    const auto others = check_keysets(world.desired, world.shards);
    ASSERT_EQ(others.size(), 2U);
    EXPECT_EQ(others[0].message,
              "keyset \"newest\" does not fit its table any more on shard \"c\"");
    EXPECT_EQ(others[1].message, "the page limits of keyset \"newest\" differ between shards");
    // What cannot be seen is not judged.
    world.shards[1].known = false;
    EXPECT_TRUE(check_keysets(world.desired, world.shards).empty());
}

}  // namespace
}  // namespace interlock
