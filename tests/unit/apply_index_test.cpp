// The judgement of `interlock apply` on global indexes: what shards must agree on, what is refused,
// which steps in which order.
#include "tools/apply_index.h"
#include "tools/apply_plan.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

using Texts = std::vector<std::string>;

constexpr std::size_t a = 0, b = 1, idx = 2;

/// Shards a and b, index database idx, all applied; index "i" of table t is declared, nothing of it
/// is made.
struct World {
    DesiredState desired;
    std::vector<ShardState> shards;

    World() {
        desired.cluster_id = "id";
        desired.cluster_name = "test";
        desired.version = 1;
        desired.instance = "catalog";
        desired.shards = {{1, "a", ""}, {2, "b", ""}, {3, "idx", "", true}};
        desired.cursor_keys = {{1, false, "2024-05-01", "digest 1", "secret"}};
        DesiredKeyspace keyspace{1, "k", "bigint", "splitmix64", 2, {0, 1}, {0, 1}, {}};
        desired.keyspaces.push_back(keyspace);
        const std::vector<ColumnInfo> columns{{"id", "bigint", 20, true},
                                              {"owner", "bigint", 20, true}};
        desired.tables.push_back({1, "public.t", 0, "owner", "owner", "", columns});
        DesiredIndex index;
        index.id = 1;
        index.name = "i";
        index.scope = {"m"};
        index.order = "at DESC, id";
        index.database = idx;
        index.max_page = 1000;
        index.default_page = 50;
        desired.indexes.push_back(index);
        for (const DesiredShard &shard : desired.shards) {
            ShardState state;
            state.known = state.has_extension = state.has_identity = true;
            state.cursor_keys = {{1, false, "2024-05-01", "digest 1", ""}};
            state.instance = state.shard_name = shard.name;
            state.encoding = "UTF8";
            state.cluster_id = "id";
            state.keyspaces.resize(1);
            state.tables.resize(1);
            state.indexes.resize(1);
            state.index_tables.resize(1);
            if (!shard.index_only) {
                LocalKeyspace &local = state.keyspaces[0];
                local = {true, "bigint", "splitmix64", 2, {}};
                local.rows.push_back({shard.name == "a" ? 0 : 1, BucketOwnership::owned, 1, ""});
                TableState &table = state.tables[0];
                table.exists = table.ordinary = table.may_alter = table.key_found = true;
                table.columns = columns;
                table.guarded = true;
                table.guarded_keyspace = "k";
                table.guarded_key = "owner";
                IndexOnShard &here = state.indexes[0];
                here.judged = true;
                here.shape = {{"m", "at", "id"},
                              {"id", "owner"},
                              {{"m", "integer", "", false},
                               {"at", "timestamp", "", true},
                               {"id", "bigint", "", true},
                               {"owner", "bigint", "", true}},
                              "digest"};
                here.wanted_limits = "at most 1000";
                here.readers = {{"PUBLIC", "app", "half"}, {"app"}};
            } else {
                state.index_tables[0] = {false, true, "digest", {"PUBLIC", "app", "half"},
                                         {},    {},   {}};
            }
            shards.push_back(state);
        }
    }

    IndexOnShard &on(std::size_t shard) { return shards[shard].indexes[0]; }
    IndexInDatabase &table() { return shards[idx].index_tables[0]; }

    /// As after an apply.
    World &made() {
        for (const std::size_t shard : {a, b}) {
            on(shard).has_keyset = on(shard).attached = true;
            on(shard).keyset_digest = "digest";
            on(shard).keyset_limits = on(shard).wanted_limits;
            on(shard).attached_columns = on(shard).shape.recorded;
            on(shard).attached_key = on(shard).shape.key;
        }
        table().defined = true;
        table().changes = false;
        table().readers = {"app"};
        return *this;
    }

    std::vector<Finding> problems() {
        std::vector<Finding> found = check_shards(desired, shards);
        agree_on_indexes(desired, shards, found);
        check_indexes(desired, shards, found);
        return found;
    }

    Texts plan(bool declarations_changed = false) {
        std::vector<Finding> found = problems();
        const OwnershipChange change = check_ownership(desired, 0, shards, found);
        EXPECT_TRUE(found.empty()) << found.front().message;
        Texts texts;
        for (const Action &action : make_plan(desired, shards, {change}, declarations_changed))
            texts.push_back(action.text);
        return texts;
    }

    /// The one problem there is, with detail and hint.
    std::string problem() {
        const std::vector<Finding> found = problems();
        if (found.size() != 1) return std::to_string(found.size()) + " problems";
        return found[0].message + " | " + found[0].detail + " | " + found[0].hint;
    }
};

testing::AssertionResult says(const std::string &text, const std::string &words) {
    if (text.find(words) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << '"' << text << "\" does not say \"" << words << '"';
}

TEST(ApplyIndex, IsMadeInOrder) {
    EXPECT_EQ(World().plan(true),
              (Texts{"idx: make index i of table public.t: scope (m), order at DESC, id",
                     "a: declare keyset i of table public.t: scope (m), order at DESC, id",
                     "b: declare keyset i of table public.t: scope (m), order at DESC, id",
                     "a: record changes of table public.t for index i: m, at, id, by key id, owner",
                     "b: record changes of table public.t for index i: m, at, id, by key id, owner",
                     "idx: let app read index i", "catalog: publish route version 2"}));
}

TEST(ApplyIndex, IsMadeOnce) {
    EXPECT_EQ(World().made().plan(), Texts{});
}

TEST(ApplyIndex, AnInterruptedRunIsFinished) {
    World world;
    world.made();
    world.on(b).attached = false;
    world.table().readers.clear();
    EXPECT_EQ(world.plan(),
              (Texts{"b: record changes of table public.t for index i: m, at, id, by key id, owner",
                     "idx: let app read index i"}));
}

TEST(ApplyIndex, AnIndexDatabaseIsNoShard) {
    World world;
    world.made();
    world.shards[idx].has_identity = world.shards[idx].has_extension = false;
    world.shards[idx].cursor_keys.clear();
    EXPECT_EQ(world.plan(), (Texts{"idx: create extension interlock",
                                   "idx: make this database index database idx of cluster test",
                                   "idx: accept cursors of key 1 and sign cursors with key 1"}));
    // Nor is it where the columns of tables are read, whatever its name sorts before.
    World first;
    first.made();
    std::swap(first.desired.shards[a], first.desired.shards[idx]);
    std::swap(first.shards[a], first.shards[idx]);
    first.desired.indexes[0].database = 0;
    first.desired.keyspaces[0].staged = first.desired.keyspaces[0].published = {2, 1};
    EXPECT_EQ(first.plan(), Texts{});
}

TEST(ApplyIndex, BucketsOfAnIndexDatabaseAreRefused) {
    World world;
    world.made();
    world.desired.keyspaces[0].staged[1] = idx;
    EXPECT_TRUE(says(world.problem(), "are assigned to index database \"idx\""));
}

TEST(ApplyIndex, ShardsMustAgree) {
    const auto problem = [](auto &&change) {
        World world;
        change(world.on(b));
        return world.problem();
    };
    EXPECT_TRUE(says(problem([](IndexOnShard &b) { b.shape.recorded.pop_back(); }),
                     "Scope and order are (m, at, id) on a and (m, at) on b."));
    EXPECT_TRUE(says(problem([](IndexOnShard &b) {
                         b.shape.key = {"owner", "id"};
                     }),
                     "The key of a row is (id, owner) on a and (owner, id) on b."));
    EXPECT_TRUE(says(problem([](IndexOnShard &b) { b.shape.columns[0].type_name = "bigint"; }),
                     "Column \"m\" is integer on a and bigint on b."));
    EXPECT_TRUE(says(problem([](IndexOnShard &b) { b.shape.columns[0].collation = "x.y"; }),
                     "Column \"m\" is integer on a and integer COLLATE x.y on b."));
    EXPECT_TRUE(says(problem([](IndexOnShard &b) { b.shape.digest = "other"; }),
                     "bound to digest on a and to other on b"));
    World world;
    world.on(b).shape.digest = "other";
    (void)world.problems();
    EXPECT_FALSE(has_shape(world.desired.indexes[0]));
}

TEST(ApplyIndex, AColumnIsNotNullOnlyIfItIsSoEverywhere) {
    World world;
    world.on(b).shape.columns[1].not_null = false;
    EXPECT_TRUE(world.problems().empty());
    const std::vector<IndexColumnInfo> &columns = world.desired.indexes[0].shape.columns;
    ASSERT_EQ(columns.size(), 4U);
    EXPECT_FALSE(columns[0].not_null);
    EXPECT_FALSE(columns[1].not_null);
    EXPECT_TRUE(columns[2].not_null);
}

TEST(ApplyIndex, AnotherKeysetOfTheNameIsInTheWay) {
    World world;
    world.on(b).has_keyset = true;
    world.on(b).keyset_digest = "other";
    EXPECT_TRUE(says(world.problem(), "keyset \"i\" is declared on shard \"b\", but not as index"));
}

TEST(ApplyIndex, TheIndexDatabaseMustOrderAlike) {
    World world;
    world.table().digest = "other";
    EXPECT_TRUE(says(world.problem(), "another order in index database \"idx\""));
    world.table().digest = "digest";
    world.shards[idx].encoding = "LATIN1";
    EXPECT_TRUE(says(world.problem(), "another encoding than shard \"a\""));
}

TEST(ApplyIndex, StreamsOfOthersAreLeftAlone) {
    World world;
    world.made();
    world.on(a).others = {"public.u"};
    EXPECT_TRUE(says(world.problem(), "records other tables than that of the index"));
    world.on(a).others.clear();
    world.on(a).attached_columns = {"m"};
    EXPECT_TRUE(says(world.problem(), "It records (m) by key (id, owner)"));
    world.on(a).attached_columns = world.on(a).shape.recorded;
    world.on(a).attached_key = {"id"};
    EXPECT_TRUE(says(world.problem(), "by key (id); needed"));
}

TEST(ApplyIndex, OneThatMissedChangesIsNotServedOn) {
    World world;
    world.made();
    world.desired.indexes[0].ready = true;
    EXPECT_EQ(world.plan(), Texts{});
    world.on(b).recording_broken = true;
    EXPECT_TRUE(says(world.problem(), "on shard \"b\" are not recorded for it"));
    world.on(b).recording_broken = false;
    world.on(b).attached = false;
    EXPECT_TRUE(says(world.problem(), "on shard \"b\" are not recorded for it"));
    // A shard that owns nothing yet has missed nothing.
    world.desired.keyspaces[0].staged = world.desired.keyspaces[0].published = {0, 0};
    world.shards[a].keyspaces[0].rows.push_back({1, BucketOwnership::owned, 1, ""});
    world.shards[b].keyspaces[0].rows.clear();
    EXPECT_EQ(
        world.plan(),
        (Texts{"b: record changes of table public.t for index i: m, at, id, by key id, owner"}));
    world.table().defined = false;
    EXPECT_TRUE(says(world.problem(), "but index database \"idx\" does not have it"));
}

TEST(ApplyIndex, ChangesThatWereNotRecordedAreWarnedOf) {
    World world;
    EXPECT_TRUE(index_warnings(world.desired, world.shards).empty());
    world.made();
    EXPECT_TRUE(index_warnings(world.desired, world.shards).empty());
    world.on(a).recording_broken = true;
    world.on(b).attached = false;
    EXPECT_EQ(index_warnings(world.desired, world.shards).size(), 2U);
    // A shard that owns nothing yet has missed nothing.
    world.shards[b].keyspaces[0].rows.clear();
    const std::vector<Finding> warnings = index_warnings(world.desired, world.shards);
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_TRUE(says(warnings[0].message, "on shard \"a\" are not recorded for it yet"));
    // Refused, then.
    world.desired.indexes[0].ready = true;
    EXPECT_TRUE(index_warnings(world.desired, world.shards).empty());
}

TEST(ApplyIndex, ReadersAreThoseOfEveryShard) {
    World world;
    world.made();
    world.on(a).readers.may_read = {"app", "half"};
    EXPECT_EQ(world.plan(), Texts{});
    world.on(b).readers.may_read = {"half"};
    EXPECT_EQ(world.plan(),
              (Texts{"idx: let half read index i", "idx: no longer let app read index i"}));
    // Consumers keep what grant_indexer() gave them, and so does whom the shards do not know.
    world.table().readers = {"app", "auditor", "half"};
    world.table().indexers = {"app"};
    EXPECT_EQ(world.plan(), Texts{});
    // With PUBLIC nobody needs to be named; a role that the index database lacks cannot be.
    for (const std::size_t shard : {a, b})
        world.on(shard).readers.may_read = {"PUBLIC", "app", "half", "nowhere"};
    world.table().readers.clear();
    EXPECT_EQ(world.plan(), (Texts{"idx: let PUBLIC read index i"}));
}

TEST(ApplyIndex, PageSizesFollow) {
    World world;
    world.made();
    world.table().changes = true;
    for (const std::size_t shard : {a, b})
        world.on(shard).wanted_limits = "at most 70";
    EXPECT_EQ(world.plan(true), (Texts{"idx: change the page size of index i",
                                       "a: change the page sizes of keyset i: at most 70",
                                       "b: change the page sizes of keyset i: at most 70",
                                       "catalog: publish route version 2"}));
}

TEST(ApplyIndex, WhatWasDroppedIsRemovedOnceRoutersWereTold) {
    World world;
    world.made();
    world.desired.indexes.clear();
    world.desired.dropped_indexes = {{"i", idx}};
    for (ShardState &shard : world.shards)
        shard.dropped_indexes.resize(1);
    world.shards[idx].dropped_indexes[0].defined = true;
    world.shards[a].dropped_indexes[0] = {true, {"public.t"}, false};
    world.shards[b].dropped_indexes[0] = {true, {}, false};
    EXPECT_EQ(
        world.plan(true),
        (Texts{"catalog: publish route version 2", "idx: remove the entries of dropped index i",
               "a: record no changes of table public.t for dropped index i",
               "b: drop the outbox stream of dropped index i", "catalog: forget dropped index i"}));
    // An earlier run got nearly that far.
    for (ShardState &shard : world.shards)
        shard.dropped_indexes[0] = {};
    EXPECT_EQ(world.plan(), (Texts{"catalog: forget dropped index i"}));
}

TEST(ApplyIndex, RowLevelSecurityIsWarnedOf) {
    World world;
    EXPECT_TRUE(index_warnings(world.desired, world.shards).empty());
    world.on(b).row_security = true;
    ASSERT_EQ(index_warnings(world.desired, world.shards).size(), 1U);
}

}  // namespace
}  // namespace interlock
