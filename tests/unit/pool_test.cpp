// Pools on their own: lending at once, waiting and giving up, cleaning, lifetimes, logins.
#include "session_fixture.h"

namespace interlock {
namespace {

using test::Behaviour;

class PoolTest : public test::SessionTest {
  protected:
    LoginPools &pools(const std::string &login = "") { return worker_->routes()->pools_for(login); }
    Pool &s0() { return pools()[0]; }
    /// A lease of s0 and of s1, so that both have one idle connection afterwards.
    Task<void> warm_up() {
        for (ShardIndex shard : {0, 1}) {
            auto lease = co_await pools()[shard].acquire(1);
            EXPECT_TRUE(lease.ok());
            if (lease) lease->release();
        }
    }
};

TEST_F(PoolTest, LendsAtOnceOnlyWhatNeedsNoWaiting) {
    settings_.idle_check = 20;
    with_shards([&]() -> Task<void> {
        EXPECT_FALSE(s0().try_acquire(1));  // nothing is connected
        co_await warm_up();
        EXPECT_FALSE(s0().try_acquire(2));  // works under another route version
        auto lease = s0().try_acquire(1);
        EXPECT_TRUE(lease.has_value());
        EXPECT_FALSE(s0().try_acquire(1));  // it is lent
        EXPECT_EQ(pool(0).borrowed, 1U);
        lease->release();
        EXPECT_EQ(pool(0).idle, 1U);
        co_await pause(40);
        EXPECT_FALSE(s0().try_acquire(1));  // it has to prove that it lives
        EXPECT_TRUE((co_await s0().acquire(1)).ok());
    });
}

TEST_F(PoolTest, NobodyIsPassedOver) {
    settings_.pool_size = 1;
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        auto lease = s0().try_acquire(1);
        bool served = false;
        const auto wait = [&]() -> Task<void> {
            auto own = co_await s0().acquire(1);
            served = own.ok();
            EXPECT_FALSE(s0().try_acquire(1));
        };
        spawn(wait());
        co_await pause(1);
        lease->release();
        EXPECT_FALSE(s0().try_acquire(1));  // it is the waiting one's, though not yet taken up
        co_await until([&] { return served; });
    });
}

TEST_F(PoolTest, WhoGivesUpLeavesTheQueueAtOnce) {
    settings_.pool_size = 1;
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        auto lease = s0().try_acquire(1);
        Event gave_up;
        std::string state;
        const auto wait = [&]() -> Task<void> {
            auto own = co_await s0().acquire(1, &gave_up);
            state = own ? "lent" : std::string(own.error().state());
        };
        spawn(wait());
        co_await pause(1);
        EXPECT_EQ(pool(0).waiting, 1U);
        gave_up.set();
        co_await until([&] { return !state.empty(); });
        EXPECT_EQ(state, "57014");
        EXPECT_EQ(pool(0).waiting, 0U);
        lease->release();
        EXPECT_EQ(pool(0).idle, 1U);
        // Who has given up already gets nothing, even if there is something to lend.
        auto late = co_await s0().acquire(1, &gave_up);
        EXPECT_FALSE(late.ok());
    });
}

TEST_F(PoolTest, WhatWasHandedToOneThatGivesUpInTheSameMomentGoesToTheNext) {
    settings_.pool_size = 1;
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        auto lease = s0().try_acquire(1);
        Event gave_up;
        std::string first, second;
        const auto wait = [&](std::string *result, Event *event) -> Task<void> {
            auto own = co_await s0().acquire(1, event);
            *result = own ? "lent" : std::string(own.error().state());
            if (own) own->release();
        };
        spawn(wait(&first, &gave_up));
        spawn(wait(&second, nullptr));
        co_await pause(1);
        lease->release();
        gave_up.set();
        co_await until([&] { return !second.empty(); });
        EXPECT_EQ(first, "57014");
        EXPECT_EQ(second, "lent");
        EXPECT_EQ(pool(0).created, 1U);
        EXPECT_EQ(pool(0).idle, 1U);
    });
}

TEST_F(PoolTest, ASessionThatRanUserCodeIsCleanedBeforeItIsLentAgain) {
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        s0_->statements.clear();
        auto lease = s0().try_acquire(1);
        (void)(*lease)->prepared().add(7, 10);
        (*lease)->set_unnamed_owner(7);
        (*lease)->set_applied_parameters(std::make_shared<int>(1));
        lease->release_after_reset();
        EXPECT_FALSE(*lease);
        EXPECT_FALSE(s0().try_acquire(1));
        EXPECT_EQ(pool(0).idle, 0U);
        EXPECT_EQ(pool(0).borrowed, 1U);
        co_await until([&] { return pool(0).idle == 1; });
        EXPECT_EQ(s0_->statements,
                  (std::vector<std::string>{"DISCARD ALL", "SET interlock.route_version = 1"}));
        auto again = s0().try_acquire(1);
        EXPECT_FALSE((*again)->prepared().find(7));
        EXPECT_EQ((*again)->unnamed_owner(), 0U);
        EXPECT_EQ((*again)->applied_parameters(), nullptr);
        EXPECT_EQ(pool(0).created, 1U);
    });
}

TEST_F(PoolTest, ASessionThatCannotBeCleanedIsClosed) {
    with_shards([&]() -> Task<void> {
        for (const std::string &failing : {"DISCARD", "SET"}) {
            co_await warm_up();
            s0_->script = [&](std::string_view sql) -> std::optional<Behaviour> {
                if (!sql.starts_with(failing)) return std::nullopt;
                return Behaviour{.frames = test::error_frame("ERROR", "57014", "no")};
            };
            const auto before = pool(0).destroyed;
            s0().try_acquire(1)->release_after_reset();
            co_await until([&] { return pool(0).destroyed == before + 1; });
            EXPECT_EQ(pool(0).idle, 0U);
            EXPECT_EQ(pool(0).borrowed, 0U);
            s0_->script = nullptr;
        }
    });
}

TEST_F(PoolTest, ACleanedConnectionGoesToWhoWaits) {
    settings_.pool_size = 1;
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        auto lease = s0().try_acquire(1);
        lease->release_after_reset();
        auto next = co_await s0().acquire(1);
        EXPECT_TRUE(next.ok());
        EXPECT_EQ(pool(0).created, 1U);
    });
}

TEST_F(PoolTest, UnusedConnectionsAreClosed) {
    settings_.idle_timeout = 100;
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        co_await until([&] { return pool(0).destroyed == 1 && pool(0).idle == 0; });
    });
}

TEST_F(PoolTest, OldConnectionsAreReplacedWhenTheyAreBack) {
    settings_.max_lifetime = 60;
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        auto lease = s0().try_acquire(1);
        EXPECT_TRUE(lease.has_value());
        co_await pause(80);
        EXPECT_EQ(pool(0).destroyed, 0U);  // never under its borrower
        if (lease) lease->release();
        EXPECT_EQ(pool(0).destroyed, 1U);
        co_await until([&] { return pool(1).destroyed == 1; });  // that one was idle
    });
}

TEST_F(PoolTest, EachLoginHasItsOwn) {
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        EXPECT_FALSE(pools("other")[0].try_acquire(1));
        auto lease = co_await pools("other")[0].acquire(1);
        EXPECT_TRUE(lease.ok());
        EXPECT_EQ(&pools("other"), &pools("other"));
        EXPECT_EQ(worker_->pools().counters("s0").created, 2U);
        EXPECT_EQ(worker_->pools().counters("s0").borrowed, 1U);
        EXPECT_EQ(pools("other").defaults()->value("client_encoding"), "UTF8");
    });
}

TEST_F(PoolTest, AShardWhereSessionsBeginDifferentlyIsRefused) {
    with_shards([&]() -> Task<void> {
        s1_->settings = {{"search_path", "other"}};
        EXPECT_TRUE((co_await pools()[0].acquire(1)).ok());
        auto refused = co_await pools()[1].acquire(1);
        EXPECT_FALSE(refused.ok());
        if (refused) co_return;
        EXPECT_EQ(refused.error().code, Code::R30);
        EXPECT_NE(refused.error().detail.find("search_path = \"other\""), std::string::npos);
        EXPECT_NE(refused.error().detail.find("on shard s0"), std::string::npos);
    });
}

TEST_F(PoolTest, AChangeMadeOnAllShardsIsLearnt) {
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        const auto before = pools().defaults();
        s0_->settings = s1_->settings = {{"TimeZone", "UTC"}};
        s1_->hang_up(false);
        co_await until([&] { return pool(1).idle == 0; });
        // s1's new session differs from what s0 taught; then s0's connections are replaced, and
        // whoever is asked first teaches.
        EXPECT_FALSE((co_await pools()[1].acquire(1)).ok());
        co_await until([&] { return pool(0).idle == 0; });
        EXPECT_TRUE((co_await pools()[1].acquire(1)).ok());
        EXPECT_TRUE((co_await pools()[0].acquire(1)).ok());
        EXPECT_NE(pools().defaults(), before);
        EXPECT_EQ(pools().defaults()->value("TimeZone"), "UTC");
    });
}

TEST_F(PoolTest, AnyShardIsTheNextThatIsUp) {
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        std::set<ShardIndex> seen;
        for (int i = 0; i < 4; ++i) {
            auto lease = pools().try_any(1);
            EXPECT_TRUE(lease.has_value());
            if (!lease) co_return;
            seen.insert(lease->shard);
            lease->lease.release();
        }
        EXPECT_EQ(seen.size(), 2U);
        s0_->hang_up(true);
        co_await until([&] { return s0_->gone() && pool(0).idle == 0; });
        for (int i = 0; i < 4; ++i) {
            auto lease = co_await pools().any(1);
            EXPECT_TRUE(lease.ok());
            if (!lease) co_return;
            EXPECT_EQ(lease->shard, 1);
            lease->lease.discard();
        }
        s1_->hang_up(true);
        co_await until([&] { return s1_->gone() && pool(1).idle == 0; });
        auto none = co_await pools().any(1);
        EXPECT_FALSE(none.ok());
        if (!none) {
            EXPECT_EQ(none.error().code, Code::R30);
        }
    });
}

TEST_F(PoolTest, AnIndexDatabaseIsNotAnyShard) {
    with_shards([&]() -> Task<void> {
        CatalogRows rows = test::reference_rows();
        rows.version = 2;
        rows.shards = {{1, "s0", s0_->conninfo(), true}, {2, "s1", s1_->conninfo()}};
        for (auto &route : rows.routes)
            route.shard_id = 2;
        worker_->use_table(test::build(rows));
        EXPECT_FALSE(pools().is_shard(0));
        EXPECT_TRUE(pools().is_shard(1));
        EXPECT_FALSE(pools().is_shard(2));
        // Its own pool serves who asks for it by name.
        EXPECT_TRUE((co_await pools()[0].acquire(2)).ok());
        EXPECT_FALSE(pools().try_any(2));
        for (int i = 0; i < 3; ++i) {
            auto lease = co_await pools().any(2);
            EXPECT_TRUE(lease.ok());
            if (!lease) co_return;
            EXPECT_EQ(lease->shard, 1);
            lease->lease.release();
            EXPECT_EQ(pools().try_any(2)->shard, 1);
        }
        // Nor when it is the only one that is up.
        s1_->hang_up(true);
        co_await until([&] { return s1_->gone() && pool(1).idle == 0; });
        EXPECT_FALSE(pools().try_any(2));
        EXPECT_FALSE((co_await pools().any(2)).ok());
    });
}

TEST_F(PoolTest, LeasesOutliveTheirRoutes) {
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        auto lease = s0().try_acquire(1);
        CatalogRows rows = test::reference_rows();
        rows.version = 2;
        rows.shards[0].conninfo = s1_->conninfo();  // s0 is elsewhere now: another pool
        rows.shards[1].conninfo = s1_->conninfo();
        const auto old = worker_->routes();
        worker_->use_table(test::build(rows));
        // Under the old routes there is no new connection, for a login not seen before neither.
        for (const std::string &login : {"", "new"}) {
            auto refused = co_await old->pools_for(login)[0].acquire(1);
            EXPECT_FALSE(refused.ok());
        }
        EXPECT_EQ((*lease)->pid(), 1001);
        lease->release();
    });
}

TEST_F(PoolTest, NewDeclarationsMakeBackendsLookAgain) {
    with_shards([&]() -> Task<void> {
        co_await warm_up();
        CatalogRows rows = test::reference_rows();
        rows.version = 2;
        rows.shards[0].conninfo = s0_->conninfo();
        rows.shards[1].conninfo = s1_->conninfo();
        worker_->use_table(test::build(rows));
        auto same = co_await s0().acquire(2);
        EXPECT_TRUE(same.ok());
        EXPECT_EQ(pool(0).created, 1U);
        same->release();
        rows.version = 3;
        rows.functions.push_back({"public", "touch"});
        worker_->use_table(test::build(rows));
        s0_->surroundings = {{"function", "other", "touch", "other.touch()"}};
        EXPECT_FALSE(s0().try_acquire(2));
        auto fresh = co_await s0().acquire(3);
        EXPECT_TRUE(fresh.ok());
        EXPECT_EQ(pool(0).created, 2U);
        EXPECT_FALSE((*fresh)->surroundings().quiet());
    });
}

}  // namespace
}  // namespace interlock
