// Statements of the line listener that meet a move of buckets: held back, sent again, or told.
#include "session_fixture.h"

namespace interlock {
namespace {

using namespace std::string_literals;
using test::Behaviour;
using test::Said;

class SessionMoveTest : public test::SessionTest {
  protected:
    /// Version 1 with every bucket of the key announced to move to s1 as version 2.
    std::shared_ptr<const RouteTable> announced(const std::string &key) {
        auto made = std::make_shared<RouteTable>(*table(1));
        const Keyspace &keyspace = made->keyspaces[0];
        Announcement move{2, 0, 0, 1, std::vector<bool>(keyspace.owner.size())};
        move.buckets[static_cast<std::size_t>(bucket(key))] = true;
        made->announced = std::move(move);
        return made;
    }
    std::int32_t bucket(const std::string &key) {
        return table(1)->keyspaces[0].bucket_of(*parse_key(KeyType::int8, key));
    }
    /// A key of s0 that is in another bucket.
    std::string neighbour() {
        for (int skip = 1;; ++skip)
            if (const std::string key = key_on("s0", skip); bucket(key) != bucket(here_))
                return key;
    }
    static Behaviour refusal(const std::string &sqlstate, const std::string &hint = "") {
        std::string body;
        for (const std::string &field : {std::string("SERROR"), std::string("VERROR"),
                                         "C" + sqlstate, std::string("Mrefused"), "H" + hint})
            body += field + '\0';
        return {.frames = test::framed('E', body + '\0')};
    }
    /// s0 answers data statements with this `times` times, then as ever.
    void refuse_on_s0(Behaviour behaviour, int times) {
        s0_->script = [behaviour, times](std::string_view sql) mutable -> std::optional<Behaviour> {
            if (!sql.starts_with("update") && !sql.starts_with("select *")) return std::nullopt;
            if (times-- <= 0) return std::nullopt;
            return behaviour;
        };
    }
    Task<void> start(Session &session, std::string sql,
                     std::vector<std::optional<std::string>> values) {
        said_ = co_await say(session, std::move(sql), std::move(values));
        done_ = true;
    }
    std::size_t sent(const test::FakeShard &shard, std::string_view what) const {
        return static_cast<std::size_t>(
            std::count_if(shard.statements.begin(), shard.statements.end(),
                          [&](const std::string &sql) { return sql.starts_with(what); }));
    }

    const std::string here_ = key_on("s0");
    Said said_;
    bool done_ = false;
};

// With the SQLSTATE of the refusal.
class SessionMoveRefusalTest : public SessionMoveTest,
                               public testing::WithParamInterface<const char *> {};
class SessionMoveLaterTest : public SessionMoveRefusalTest {};

INSTANTIATE_TEST_SUITE_P(, SessionMoveRefusalTest, testing::Values("IL102", "IL101"));
INSTANTIATE_TEST_SUITE_P(, SessionMoveLaterTest, testing::Values("IL102", "IL103"));

TEST_P(SessionMoveRefusalTest, AStatementRefusedForItsRoutesIsSentAgainUnderNewerOnes) {
    const char *state = GetParam();
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        auto behaviour = refusal(state);
        if (std::string(state) == "IL101")
            behaviour.frames = test::framed(
                'E', std::string("SERROR\0VERROR\0CIL101\0Mrefused\0DState moved here.\0\0"s));
        refuse_on_s0(behaviour, 1);
        spawn(start(session, update_one, {"1", here_}));
        co_await until([&] { return worker_->moves.waiting == 1; });
        EXPECT_FALSE(done_);
        EXPECT_EQ(pool(0).borrowed, 0U);  // nothing is held meanwhile
        worker_->use_table(table(2, true));
        co_await until([&] { return done_; });
        EXPECT_EQ(said_.brief(), "OK I");
        EXPECT_EQ(said_.reply.shard, "s1");
        EXPECT_EQ(said_.reply.route_version, 2);
        EXPECT_EQ(sent(*s0_, "update"), 1U);
        EXPECT_EQ(sent(*s1_, "update"), 1U);
        EXPECT_EQ(worker_->moves.resent, 1U);
    });
}

TEST_F(SessionMoveTest, TheFirstStatementOfATransactionTakesItsBeginWithIt) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        refuse_on_s0(refusal("IL102"), 1);
        co_await say(session, "begin");
        spawn(start(session, update_one, {"1", here_}));
        co_await until([&] { return worker_->moves.waiting == 1; });
        EXPECT_EQ(sent(*s0_, "ROLLBACK"), 1U);
        worker_->use_table(table(2, true));
        co_await until([&] { return done_; });
        EXPECT_EQ(said_.brief(), "OK T");
        EXPECT_EQ(said_.reply.shard, "s1");
        EXPECT_EQ(sent(*s1_, "BEGIN"), 1U);
        EXPECT_EQ((co_await say(session, "commit")).brief(), "OK I");
        EXPECT_EQ(sent(*s1_, "COMMIT"), 1U);
    });
}

TEST_P(SessionMoveLaterTest, ALaterStatementOfATransactionIsToldAndNeverSentAgain) {
    const char *state = GetParam();
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        refuse_on_s0(refusal(state), 1);
        const Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 E");
        EXPECT_EQ(said.state(), "40001");
        EXPECT_NE(said.reply.refusal->message.find(state), std::string::npos);
        EXPECT_EQ(sent(*s0_, "update"), 2U);
        EXPECT_EQ(sent(*s0_, "ROLLBACK"), 1U);
        EXPECT_EQ(worker_->moves.failed, 1U);
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
    });
}

TEST_F(SessionMoveTest, NothingIsSentAgainOnceRowsWereGivenOut) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        refuse_on_s0({.frames = test::row_frames({"value"}) + refusal("IL103").frames}, 1);
        const Said said = co_await say(session, select_one, {here_});
        EXPECT_EQ(said.state(), "40001");
        EXPECT_EQ(sent(*s0_, "select *"), 1U);
    });
}

TEST_F(SessionMoveTest, WaitingForRoutesHasABound) {
    settings_.routes_wait = 40;
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        refuse_on_s0(refusal("IL102"), 100);
        const Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 I");
        EXPECT_EQ(said.state(), "40001");
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R31 E");
        EXPECT_EQ(pool(0).borrowed, 0U);
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
    });
}

TEST_F(SessionMoveTest, AFenceThatIsTakenAwayLetsTheStatementThrough) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        refuse_on_s0(refusal("IL103"), 2);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(sent(*s0_, "update"), 3U);
    });
}

TEST_F(SessionMoveTest, AFenceWhoseTimeHasPassedIsOpened) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        refuse_on_s0(refusal("IL103", "Call interlock.expire_fences()."), 1);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(sent(*s0_, "SELECT interlock.expire_fences()"), 1U);
        EXPECT_EQ(sent(*s0_, "update"), 2U);
        co_await say(session, "begin");
        refuse_on_s0(refusal("IL103", "Call interlock.expire_fences()."), 1);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        EXPECT_EQ(sent(*s0_, "BEGIN"), 2U);
    });
}

TEST_F(SessionMoveTest, StatementsOfAnAnnouncedBucketAreHeldBackUnsent) {
    with_shards([&]() -> Task<void> {
        worker_->use_table(announced(here_));
        Session session(*worker_);
        spawn(start(session, update_one, {"1", here_}));
        co_await until([&] { return worker_->moves.held == 1; });
        co_await pause(20);
        EXPECT_FALSE(done_);
        EXPECT_EQ(sent(*s0_, "update"), 0U);
        worker_->use_table(table(2, true));
        co_await until([&] { return done_; });
        EXPECT_EQ(said_.brief(), "OK I");
        EXPECT_EQ(said_.reply.shard, "s1");
    });
}

TEST_F(SessionMoveTest, WhatIsHeldTooLongIsSentAsEver) {
    settings_.routes_wait = 40;
    with_shards([&]() -> Task<void> {
        worker_->use_table(announced(here_));
        Session session(*worker_);
        // The session has been one of the version to come.
        EXPECT_EQ((co_await say(session, update_one, {"1", neighbour()})).brief(), "OK I");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(s0_->statements.at(s0_->statements.size() - 2),
                  "SET interlock.route_version = 1");
        EXPECT_EQ(worker_->moves.held, 1U);
        // Nor is another held then for the same announcement, but for the next.
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(worker_->moves.held, 1U);
        worker_->use_table(announced(here_));
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(worker_->moves.held, 2U);
    });
}

TEST_F(SessionMoveTest, WhoOpensAFenceIsSentAgainHoweverLongItHasWaited) {
    settings_.routes_wait = 0;
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        refuse_on_s0(refusal("IL103", "Call interlock.expire_fences()."), 1);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        // But not for ever.
        refuse_on_s0(refusal("IL103", "Call interlock.expire_fences()."), 100);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).state(), "40001");
        EXPECT_EQ(sent(*s0_, "update"), 4U);
    });
}

TEST_F(SessionMoveTest, OtherStatementsRunUnderTheVersionToCome) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, update_one, {"1", neighbour()})).brief(), "OK I");
        worker_->use_table(announced(here_));
        EXPECT_EQ((co_await say(session, update_one, {"1", neighbour()})).brief(), "OK I");
        EXPECT_EQ(sent(*s0_, "SET interlock.route_version = 2"), 1U);
    });
}

TEST_F(SessionMoveTest, ATransactionUnderTheVersionToComeMustNotTouchTheBucket) {
    with_shards([&]() -> Task<void> {
        worker_->use_table(announced(here_));
        Session session(*worker_);
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", neighbour()})).brief(), "OK T");
        const Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 E");
        EXPECT_EQ(said.state(), "40001");
        EXPECT_EQ(sent(*s0_, "update"), 1U);
        EXPECT_EQ(sent(*s0_, "ROLLBACK"), 1U);
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
    });
}

TEST_F(SessionMoveTest, ATransactionThatWasThereBeforeGoesOn) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", neighbour()})).brief(), "OK T");
        worker_->use_table(announced(here_));
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "OK I");
    });
}

TEST_F(SessionMoveTest, ATransactionThatHasSentNothingTakesTheNewestRoutes) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        worker_->use_table(table(2, true));
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).reply.shard, "s1");
        co_await say(session, "commit");
    });
}

// Triggers of users may read rows of any bucket.
TEST_F(SessionMoveTest, ATableWithTriggersRunsUnderTheVersionInForce) {
    with_shards([&]() -> Task<void> {
        s0_->surroundings = {{"user code", "public", "account", ""}};
        worker_->use_table(announced(here_));
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, update_one, {"1", neighbour()})).brief(), "OK I");
        EXPECT_EQ(s0_->statements.at(0), "SET interlock.route_version = 1");
    });
}

TEST_F(SessionMoveTest, ARouterThatStopsHoldsNobodyBack) {
    with_shards([&]() -> Task<void> {
        worker_->use_table(announced(here_));
        Session session(*worker_);
        spawn(start(session, update_one, {"1", here_}));
        co_await until([&] { return worker_->moves.held == 1; });
        worker_->stop_soon([] {});
        co_await until([&] { return done_; });
        EXPECT_EQ(said_.brief(), "R30 I");
    });
}

}  // namespace
}  // namespace interlock
