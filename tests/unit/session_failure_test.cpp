// Backends that break, hang, lie or are somebody else: which code, which state, which connection
// lives on.
#include "session_fixture.h"

namespace interlock {
namespace {

using test::Behaviour;
using test::Said;

class BrokenBackends : public test::SessionTest {
  protected:
    /// Statements that begin with `start` are met with `behaviour`.
    static void meet(test::FakeShard &shard, const std::string &start, Behaviour behaviour) {
        shard.script = [=](std::string_view sql) -> std::optional<Behaviour> {
            if (sql.starts_with(start)) return behaviour;
            return std::nullopt;
        };
    }
    static Behaviour hang_up(std::string frames = {}) {
        return {.frames = std::move(frames), .close = true};
    }

    const std::string here_ = key_on("s0");
    const std::string there_ = key_on("s1");
    const std::string goodbye_ =
        test::error_frame("FATAL", "57P01", "terminating connection due to administrator command");
};

TEST_F(BrokenBackends, ACutAfterCommitWasSentIsUnknown) {
    with_shards([&]() -> Task<void> {
        meet(*s0_, "COMMIT", hang_up());
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        const Said said = co_await say(session, "commit");
        EXPECT_EQ(said.brief(), "R32 I");
        EXPECT_EQ(said.state(), "08007");
        EXPECT_EQ(pool(0).destroyed, 1U);
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "OK I");
    });
}

TEST_F(BrokenBackends, AFarewellAfterCommitWasSentIsUnknownToo) {
    with_shards([&]() -> Task<void> {
        meet(*s0_, "COMMIT", hang_up(goodbye_));
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        EXPECT_EQ((co_await say(session, "commit")).brief(), "R32 I");
    });
}

TEST_F(BrokenBackends, ACommitThatCouldNotBeSentFailsTheTransaction) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        s0_->reset();
        co_await pause(5);
        const Said said = co_await say(session, "commit");
        EXPECT_EQ(said.brief(), "R30 E");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "R13 E");
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
        EXPECT_EQ(pool(0).destroyed, 1U);
    });
}

TEST_F(BrokenBackends, ACutAfterAWriteWasSentIsUnknownAndAfterAReadIsSafe) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        meet(*s0_, "update", hang_up());
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R32 I");
        meet(*s0_, "update", hang_up(test::complete_frame("UPDATE 1")));
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R32 I");
        meet(*s0_, "update", hang_up(test::complete_frame("UPDATE 1") + goodbye_));
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R32 I");
        meet(*s0_, "select", hang_up());
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "R30 I");
        meet(*s0_, "select", hang_up(test::row_frames({"1"}).substr(0, 30)));
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "R30 I");
        EXPECT_EQ(pool(0).destroyed, 5U);
        EXPECT_EQ(pool(0).borrowed, 0U);
    });
}

TEST_F(BrokenBackends, AFarewellBeforeTheWriteWasDoneIsAnAnswer) {
    with_shards([&]() -> Task<void> {
        meet(*s0_, "update", hang_up(goodbye_));
        Session session(*worker_);
        Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 I");
        EXPECT_EQ(said.state(), "57P01");
        co_await say(session, "begin");
        said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 E");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "R13 E");
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
        EXPECT_EQ(pool(0).destroyed, 2U);
    });
}

TEST_F(BrokenBackends, AWriteInATransactionWhoseConnectionBreaksFailsIt) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, select_one, {here_});
        meet(*s0_, "update", hang_up());
        const Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.tx(), 'E');
        EXPECT_EQ(said.code(), "R32");
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
    });
}

TEST_F(BrokenBackends, AWriteThatDidNotLeaveWhollyWasNotDone) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, select_one, {here_});
        s0_->deaf = true;
        const auto cut_soon = [&]() -> Task<void> {
            co_await pause(50);
            s0_->hang_up(false);
        };
        spawn(cut_soon());
        const Said said = co_await say(session, "update account set owner = ? where account_id = ?",
                                       {std::string(32 << 20, 'x'), here_});
        EXPECT_EQ(said.brief(), "R30 I");
        s0_->deaf = false;
    });
}

TEST_F(BrokenBackends, WhatRunsTooLongIsCancelled) {
    settings_.statement_timeout = 50;
    with_shards([&]() -> Task<void> {
        const auto cancelled = test::error_frame("ERROR", "57014", "canceling statement");
        meet(*s0_, "update", {.frames = cancelled, .silent = true});
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R36 I");
        EXPECT_EQ(s0_->cancels, 1);
        EXPECT_EQ(pool(0).destroyed, 1U);  // a late cancel could hit the next statement
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R36 E");
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
    });
}

TEST_F(BrokenBackends, ACancelThatCameTooLateLeavesTheSuccessASuccess) {
    settings_.statement_timeout = 50;
    with_shards([&]() -> Task<void> {
        meet(*s0_, "update", {.silent = true});
        Session session(*worker_);
        const Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "OK I");
        EXPECT_EQ(said.reply.count, 1U);
        EXPECT_EQ(pool(0).destroyed, 1U);
        // Inside a transaction the connection had to go, and the transaction with it.
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R36 E");
    });
}

TEST_F(BrokenBackends, ACancelThatCutsTheWaitForStandbysShortIsUnknown) {
    settings_.statement_timeout = 50;
    with_shards([&]() -> Task<void> {
        const auto warning =
            test::framed('N', test::error_frame("WARNING", "01000", "canceling wait").substr(5));
        meet(*s0_, "COMMIT", {.frames = warning + test::complete_frame("COMMIT"), .silent = true});
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, select_one, {here_});
        EXPECT_EQ((co_await say(session, "commit")).brief(), "R32 I");
    });
}

TEST_F(BrokenBackends, ARowLongerThanAnyAnswerIsRefusedBeforeItHasArrived) {
    with_shards([&]() -> Task<void> {
        // Only the header of a row of 1 GB comes.
        meet(*s0_, "select", {.frames = std::string("D\x40\0\0\0", 5), .no_ready = true});
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "R37 I");
        EXPECT_EQ(pool(0).destroyed, 1U);
    });
}

TEST_F(BrokenBackends, AnAnswerThatIsTooLargeIsCancelled) {
    with_shards([&]() -> Task<void> {
        const std::string large = test::row_frames({std::string(2 << 20, 'x')});
        meet(*s0_, "select", {.frames = large + test::complete_frame("SELECT 1")});
        Session session(*worker_);
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "R37 I");
        EXPECT_EQ(pool(0).destroyed, 1U);
        EXPECT_EQ(s0_->cancels, 1);
    });
}

TEST_F(BrokenBackends, NonsenseFromABackendIsNotBelieved) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        for (const std::string &nonsense :
             {std::string("\x00\x00\x00\x00\x00\x00", 6), std::string("D\xFF\xFF\xFF\xFF", 5),
              std::string("C\0\0\0\3", 5), test::framed('G', "copy in"),
              test::framed('?', "what")}) {
            meet(*s0_, "", hang_up(nonsense));
            EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "R30 I");
            EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R32 I");
        }
        // Ready, but nothing completed.
        meet(*s0_, "update", {.frames = test::framed('I', "")});
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R32 I");
        // The backend's BEGIN did, but not the statement behind it.
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R32 E");
        EXPECT_EQ(pool(0).borrowed, 0U);
        EXPECT_EQ(pool(0).idle, 0U);
    });
}

TEST_F(BrokenBackends, AnAnswerMayComeByteByByte) {
    with_shards([&]() -> Task<void> {
        meet(*s0_, "",
             {.frames = test::framed('N', std::string("SNOTICE\0Mhello\0\0", 16)) +
                        test::row_frames({"slow"}) + test::complete_frame("SELECT 1"),
              .bytewise = true});
        Session session(*worker_);
        const Said said = co_await say(session, select_one, {here_});
        EXPECT_EQ(said.brief(), "OK I");
        EXPECT_EQ(said.rows, "[\"slow\"]");
    });
}

TEST_F(BrokenBackends, AnIdleConnectionThatEndsIsNotOfferedAgain) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, select_one, {here_});
        s0_->hang_up(false);
        co_await until([&] { return pool(0).destroyed == 1; });
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(pool(0).created, 2U);
    });
}

TEST_F(BrokenBackends, AConnectionThatWasIdleLongIsProvenBeforeItIsLent) {
    settings_.idle_check = 1;
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, select_one, {here_});
        co_await pause(10);
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
        EXPECT_EQ(pool(0).created, 1U);
    });
}

TEST_F(BrokenBackends, TheLossOfAnIdlePinnedBackendIsToldOnceWithItsReason) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        meet(*s0_, "update",
             {.frames = test::complete_frame("UPDATE 1") + test::framed('Z', "T") + goodbye_,
              .close = true});
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        const Fired fired = co_await Wait(loop_, loop_.now() + 5000).read(session.pinned_watch());
        EXPECT_TRUE(fired.has(0));
        session.backend_stirred();
        EXPECT_EQ(session.pinned_watch(), nullptr);
        const Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 E");
        EXPECT_EQ(said.state(), "57P01");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R13 E");
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
    });
}

TEST_F(BrokenBackends, OneThatSaysGoodbyeBehindItsAnswerIsNotLentToTheNextInLine) {
    settings_.pool_size = 1;
    with_shards([&]() -> Task<void> {
        bool first = true;
        s0_->script = [&](std::string_view sql) -> std::optional<Behaviour> {
            if (!sql.starts_with("update") || !std::exchange(first, false)) return std::nullopt;
            return Behaviour{.frames = test::complete_frame("UPDATE 1") + test::framed('Z', "I") +
                                       goodbye_,
                             .close = true};
        };
        Session session(*worker_);
        Session waiting(*worker_);
        Said second;
        bool done = false;
        const auto wait_in_line = [&]() -> Task<void> {
            second = co_await say(waiting, update_one, {"2", here_});
            done = true;
        };
        const auto begin_first = [&]() -> Task<void> {
            const Said said = co_await say(session, update_one, {"1", here_});
            EXPECT_EQ(said.brief(), "OK I");
        };
        spawn(begin_first());
        spawn(wait_in_line());
        co_await until([&] { return done; });
        EXPECT_EQ(second.brief(), "OK I");
    });
}

TEST_F(BrokenBackends, AShardThatIsDownFailsItsOwnRequestsOnly) {
    with_shards([&]() -> Task<void> {
        s0_->hang_up(true);
        co_await until([&] { return s0_->gone(); });
        s0_ = std::make_unique<test::FakeShard>(loop_, test::cluster_id, "s0");  // another port
        Session session(*worker_);
        const Millis began = loop_.now();
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R30 I");
        EXPECT_LT(loop_.now() - began, 2000);
        EXPECT_EQ((co_await say(session, update_one, {"1", there_})).brief(), "OK I");
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R30 E");
    });
}

TEST_F(BrokenBackends, AServerThatIsSomebodyElseIsRefused) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        const auto right = s0_->identity;
        struct Case {
            const char *column, *value, *says;
        };
        for (const auto &[column, value, says] :
             {Case{"cluster_id", "6ae3c2f0-0000-4000-8000-00000000beef", "another cluster"},
              Case{"cluster_id", "", "not a shard yet"}, Case{"shard", "s1", "leads to shard s1"},
              Case{"restored", "true", "restored copy"},
              Case{"catalog_first", "false", "pg_catalog"},
              Case{"pg_catalog.pg_is_in_recovery()", "true", "standby"}}) {
            s0_->identity = right;
            s0_->identity[column] = value;
            const Said said = co_await say(session, update_one, {"1", here_});
            EXPECT_EQ(said.brief(), "R30 I") << says;
            EXPECT_NE(said.reply.refusal->detail.find(says), std::string::npos)
                << said.reply.refusal->detail;
        }
        EXPECT_TRUE(s0_->statements.empty());
        s0_->identity = right;
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK I");
    });
}

TEST_F(BrokenBackends, ThePoolHasItsLimits) {
    settings_.pool_size = 1;
    settings_.acquire_timeout = 50;
    settings_.max_waiting = 1;
    with_shards([&]() -> Task<void> {
        Session holder(*worker_);
        Session waiter(*worker_);
        Session third(*worker_);
        co_await say(holder, "begin");
        co_await say(holder, update_one, {"1", here_});
        Said waited;
        bool done = false;
        const auto wait = [&]() -> Task<void> {
            waited = co_await say(waiter, update_one, {"1", here_});
            done = true;
        };
        spawn(wait());
        EXPECT_EQ(pool(0).waiting, 1U);
        EXPECT_EQ((co_await say(third, update_one, {"1", here_})).brief(), "R34 I");
        co_await until([&] { return done; });
        EXPECT_EQ(waited.brief(), "R33 I");
        EXPECT_EQ(pool(0).waiting, 0U);
        // Who waits gets the connection the moment it is given back.
        done = false;
        spawn(wait());
        co_await say(holder, "commit");
        co_await until([&] { return done; });
        EXPECT_EQ(waited.brief(), "OK I");
        EXPECT_EQ(pool(0).created, 1U);
    });
}

}  // namespace
}  // namespace interlock
