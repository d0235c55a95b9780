// Which server of a shard may be used: after promotions, and after a decision was lost with one.
#include "session_fixture.h"

#include "server/shard_server.h"

namespace interlock {
namespace {

ServerHistory server(std::uint32_t timeline, const char *system_identifier = "1") {
    return {system_identifier, timeline, 0};
}

TEST(ShardServer, OneOfALowerTimelineIsRefusedFromThenOn) {
    ShardServer shard;
    EXPECT_EQ(shard.accept("s0", server(2)), "");
    EXPECT_EQ(shard.accept("s0", server(2)), "");
    const std::uint32_t before = shard.generation();
    EXPECT_EQ(shard.accept("s0", server(3)), "");
    EXPECT_NE(shard.generation(), before);
    EXPECT_NE(shard.accept("s0", server(2)).find("former primary"), std::string::npos);
    EXPECT_EQ(shard.accept("s0", server(3)), "");
}

TEST(ShardServer, TimelinesOfDifferentSystemsAreNotCompared) {
    ShardServer shard;
    EXPECT_EQ(shard.accept("s0", server(7)), "");
    const std::uint32_t before = shard.generation();
    EXPECT_EQ(shard.accept("s0", server(1, "2")), "");  // a dump that was restored and adopted
    EXPECT_NE(shard.generation(), before);
    EXPECT_EQ(shard.accept("s0", server(2, "2")), "");
    EXPECT_NE(shard.accept("s0", server(1, "2")), "");
}

TEST(ShardServer, AFloorBelowTheCatalogsHistoryIsAProblem) {
    EXPECT_EQ(floor_problem(5, 5), "");
    EXPECT_EQ(floor_problem(6, 5), "");
    EXPECT_NE(floor_problem(4, 5).find("route version 5"), std::string::npos);
}

class ServersOfAShard : public test::SessionTest {
  protected:
    std::shared_ptr<const RouteTable> table_with_floor(std::int32_t version,
                                                       std::int32_t min_floor) {
        auto made = std::make_shared<RouteTable>(*table(version));
        made->shards[0].min_floor = min_floor;
        return made;
    }
    const std::string here_ = key_on("s0");
};

TEST_F(ServersOfAShard, AHigherFloorThanTheRoutersVersionIsTheShardsToJudge) {
    with_shards([&]() -> Task<void> {
        s0_->identity["floor"] = "9";
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
    });
}

TEST_F(ServersOfAShard, OneThatHasLostADecisionIsNotUsed) {
    with_shards([&]() -> Task<void> {
        worker_->use_table(table_with_floor(5, 5));
        s0_->identity["floor"] = "4";
        Session session(*worker_);
        const test::Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R30 I");
        EXPECT_NE(said.reply.refusal->detail.find("without that decision"), std::string::npos)
            << said.reply.refusal->detail;
        EXPECT_TRUE(s0_->statements.empty());
        s0_->identity["floor"] = "5";
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
    });
}

// The server was promoted, and connected to, before the catalog said what it has lost.
TEST_F(ServersOfAShard, AConnectionMadeBeforeTheDecisionWasKnownIsAskedAgain) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(s0_->greetings, 1);

        s0_->identity["floor"] = "5";  // the right server: its floor has risen meanwhile
        worker_->use_table(table_with_floor(5, 5));
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(s0_->greetings, 1);
        EXPECT_EQ(s0_->floor_questions, 1);  // once is enough

        s0_->identity["floor"] = "5";  // the wrong one: it has not
        worker_->use_table(table_with_floor(6, 6));
        const std::size_t sent = s0_->statements.size();
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R30 I");
        EXPECT_EQ(s0_->statements.size(), sent);
    });
}

TEST_F(ServersOfAShard, ConnectionsToAFormerPrimaryAreNotLentAfterAPromotion) {
    settings_.acquire_timeout = 200;
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        // The next connection leads to the promoted standby, the first one still to its primary.
        s0_->identity["timeline"] = "2";
        Session other(*worker_);
        EXPECT_EQ((co_await say(other, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(s0_->connections(), 2U);
        co_await say(session, "commit");  // given back, and closed
        co_await until([&] { return s0_->connections() == 1; });
        // And back: a former primary is not connected to again.
        s0_->identity["timeline"] = "1";
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        const test::Said said = co_await say(other, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R33 I");
        co_await say(session, "rollback");
    });
}

}  // namespace
}  // namespace interlock
