// The session's states over fake shards: pinning, failing, snapshots, and what reaches a backend.
#include "session_fixture.h"

namespace interlock {
namespace {

using test::Behaviour;
using test::Said;
using Strings = std::vector<std::string>;

class Sessions : public test::SessionTest {
  protected:
    const std::string here_ = key_on("s0");
    const std::string here_too_ = key_on("s0", 1);
    const std::string there_ = key_on("s1");
};

TEST_F(Sessions, AnAutocommitStatementBorrowsRunsAndReturns) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        const Said said = co_await say(session, select_one, {there_});
        EXPECT_EQ(said.brief(), "OK I");
        EXPECT_EQ(said.reply.tag, "SELECT");
        EXPECT_EQ(said.reply.shard, "s1");
        EXPECT_EQ(said.reply.count, 1U);
        EXPECT_EQ(said.reply.route_version, 1);
        EXPECT_GT(said.reply.pid, 0);
        EXPECT_EQ(said.rows, "[\"value\"]");
        EXPECT_EQ(
            s1_->statements,
            Strings{"select * from public.account where account_id operator(pg_catalog.=) $1"});
        EXPECT_TRUE(s0_->statements.empty());
        EXPECT_EQ(pool(1).idle, 1U);
        EXPECT_EQ(pool(1).borrowed, 0U);
        EXPECT_EQ(pool(0).created, 0U);
        // The same connection serves the next one.
        EXPECT_EQ((co_await say(session, select_one, {there_})).reply.pid, said.reply.pid);
        EXPECT_EQ(pool(1).created, 1U);
    });
}

TEST_F(Sessions, AnEmptyTransactionUsesNoBackend) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        for (const char *end : {"commit", "rollback"}) {
            EXPECT_EQ((co_await say(session, "begin")).brief(), "OK T");
            const Said said = co_await say(session, end);
            EXPECT_EQ(said.brief(), "OK I");
            EXPECT_EQ(said.reply.pid, 0);
            EXPECT_FALSE(said.reply.no_transaction);
            const Said nothing = co_await say(session, end);
            EXPECT_EQ(nothing.brief(), "OK I");
            EXPECT_TRUE(nothing.reply.no_transaction);
        }
        EXPECT_EQ(s0_->connections() + s1_->connections(), 0U);
    });
}

TEST_F(Sessions, ATransactionIsPinnedToOneBackend) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        EXPECT_TRUE(s0_->statements.empty());  // the backend's BEGIN comes with the first statement
        const Said first = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(first.brief(), "OK T");
        const Said second = co_await say(session, select_one, {here_too_});
        EXPECT_EQ(second.brief(), "OK T");
        EXPECT_EQ(second.reply.pid, first.reply.pid);
        EXPECT_EQ(pool(0).borrowed, 1U);
        const Said end = co_await say(session, "commit");
        EXPECT_EQ(end.brief(), "OK I");
        EXPECT_EQ(end.reply.pid, first.reply.pid);
        EXPECT_EQ(end.reply.tag, "COMMIT");
        EXPECT_EQ(pool(0).idle, 1U);
        EXPECT_EQ(
            s0_->statements,
            (Strings{"BEGIN",
                     "update public.account set balance = balance operator(pg_catalog.-) $1 where "
                     "account_id operator(pg_catalog.=) $2",
                     "select * from public.account where account_id operator(pg_catalog.=) $1",
                     "COMMIT"}));
    });
}

TEST_F(Sessions, AnotherShardInATransactionIsR12AndRolledBackNow) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        const Said refused = co_await say(session, update_one, {"1", there_});
        EXPECT_EQ(refused.brief(), "R12 E");
        EXPECT_EQ(s0_->statements.back(), "ROLLBACK");
        EXPECT_EQ(pool(0).idle, 1U);
        EXPECT_TRUE(s1_->statements.empty());
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "R13 E");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "R13 E");
        // Other refusals keep their own code.
        EXPECT_EQ((co_await say(session, "begin")).brief(), "R40 E");
        EXPECT_EQ((co_await say(session, "drop table account")).brief(), "R24 E");
        EXPECT_EQ((co_await say(session, update_one, {"x", here_})).brief(), "R27 E");
        const Said end = co_await say(session, "rollback");
        EXPECT_EQ(end.brief(), "OK I");
        EXPECT_EQ(end.reply.pid, 0);
        EXPECT_EQ(s0_->statements.size(), 3U);
    });
}

TEST_F(Sessions, ARefusedStatementFailsAnOpenTransactionButNothingElse) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        for (const char *bad : {"select 1", "drop table account", "set x", "select * from nothing",
                                "select * from account", ";"}) {
            EXPECT_EQ((co_await say(session, bad)).tx(), 'I') << bad;
            co_await say(session, "begin");
            co_await say(session, update_one, {"1", here_});
            EXPECT_EQ((co_await say(session, bad)).tx(), 'E') << bad;
            EXPECT_EQ(s0_->statements.back(), "ROLLBACK") << bad;
            co_await say(session, "rollback");
        }
        EXPECT_EQ((co_await say(session, "begin", {"parameter"})).brief(), "R27 I");
        co_await say(session, "begin");
        EXPECT_EQ((co_await say(session, "begin")).brief(), "R40 T");  // the state is unchanged
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "OK I");
    });
}

TEST_F(Sessions, ABackendsErrorFailsTheTransactionAndKeepsTheConnection) {
    with_shards([&]() -> Task<void> {
        s0_->script = [](std::string_view sql) -> std::optional<Behaviour> {
            if (!sql.starts_with("update")) return std::nullopt;
            return Behaviour{test::error_frame("ERROR", "23514", "violates check")};
        };
        Session session(*worker_);
        Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 I");
        EXPECT_EQ(said.state(), "23514");
        EXPECT_EQ(said.reply.refusal->message, "violates check");
        EXPECT_EQ(said.reply.shard, "s0");
        EXPECT_GT(said.reply.pid, 0);
        EXPECT_EQ(pool(0).idle, 1U);
        co_await say(session, "begin");
        said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "R31 E");
        EXPECT_EQ(s0_->statements.back(), "ROLLBACK");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "R13 E");
        EXPECT_EQ((co_await say(session, "rollback")).brief(), "OK I");
        EXPECT_EQ(pool(0).created, 1U);
        EXPECT_EQ(pool(0).destroyed, 0U);
    });
}

TEST_F(Sessions, ACommitThatTheBackendRefusesEndsTheTransaction) {
    with_shards([&]() -> Task<void> {
        s0_->script = [](std::string_view sql) -> std::optional<Behaviour> {
            if (sql != "COMMIT") return std::nullopt;
            return Behaviour{test::error_frame("ERROR", "23503", "deferred check")};
        };
        Session session(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        const Said said = co_await say(session, "commit");
        EXPECT_EQ(said.brief(), "R31 I");
        EXPECT_EQ(said.state(), "23503");
        EXPECT_EQ(pool(0).idle, 1U);
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "OK I");
    });
}

TEST_F(Sessions, ATransactionKeepsTheTableItBeganUnder) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        Session other(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});  // before it, the newest is taken
        worker_->use_table(table(2, true));
        Said said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.reply.shard, "s0");
        EXPECT_EQ(said.reply.route_version, 1);
        said = co_await say(other, update_one, {"1", here_});
        EXPECT_EQ(said.reply.shard, "s1");
        EXPECT_EQ(said.reply.route_version, 2);
        said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.brief(), "OK T");
        EXPECT_EQ(said.reply.shard, "s0");
        EXPECT_EQ((co_await say(session, "commit")).reply.route_version, 1);
        said = co_await say(session, update_one, {"1", here_});
        EXPECT_EQ(said.reply.shard, "s1");
        EXPECT_EQ(said.reply.route_version, 2);
    });
}

TEST_F(Sessions, ABackendIsToldTheVersionItsStatementWasRoutedUnder) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        Session old(*worker_);
        co_await say(old, "begin");
        co_await say(session, select_one, {here_});
        EXPECT_EQ(s0_->statements.size(), 1U);  // the greeting has set it
        worker_->use_table(table(2));
        co_await say(session, select_one, {here_});
        EXPECT_EQ(s0_->statements.at(1), "SET interlock.route_version = 2");
        co_await say(session, select_one, {here_});
        EXPECT_EQ(s0_->statements.size(), 4U);
        // A transaction that began under version 1 and has sent nothing runs under the newest.
        co_await say(old, select_one, {here_});
        EXPECT_EQ(s0_->statements.at(4), "BEGIN");
        EXPECT_EQ(pool(0).created, 1U);
        co_await say(old, "rollback");
    });
}

TEST_F(Sessions, AClientThatLeavesIsRolledBack) {
    with_shards([&]() -> Task<void> {
        {
            Session session(*worker_);
            co_await say(session, "begin");
            co_await say(session, update_one, {"1", here_});
            co_await session.end();
        }
        EXPECT_EQ(s0_->statements.back(), "ROLLBACK");
        EXPECT_EQ(pool(0).idle, 1U);
        {
            // Even one that is destroyed without having ended leaves no transaction open.
            Session session(*worker_);
            co_await say(session, "begin");
            co_await say(session, update_one, {"1", here_});
        }
        EXPECT_EQ(pool(0).destroyed, 1U);
        co_await until([&] { return s0_->connections() == 0; });
    });
}

TEST_F(Sessions, WithoutARouteTableNothingIsDone) {
    with_shards([&]() -> Task<void> {
        Worker fresh(loop_, settings_);
        Session session(fresh);
        EXPECT_EQ((co_await say(session, select_one, {here_})).brief(), "R30 I");
        EXPECT_EQ((co_await say(session, "begin")).brief(), "R30 I");
    });
}

TEST_F(Sessions, AStoppingRouterFinishesTransactionsAndBeginsNone) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        Session other(*worker_);
        co_await say(session, "begin");
        co_await say(session, update_one, {"1", here_});
        worker_->stop_soon([] {});
        EXPECT_EQ((co_await say(other, "begin")).brief(), "R30 I");
        EXPECT_EQ((co_await say(other, select_one, {here_})).brief(), "R30 I");
        EXPECT_EQ((co_await say(session, update_one, {"1", here_})).brief(), "OK T");
        EXPECT_EQ((co_await say(session, "commit")).brief(), "OK I");
    });
}

TEST_F(Sessions, ValuesTravelAsTypedParameters) {
    with_shards([&]() -> Task<void> {
        Session session(*worker_);
        const Said said = co_await say(
            session, "insert into account (account_id, owner, version) values (?, ?, ?)",
            {here_, "'; drop table account; --", std::nullopt});
        EXPECT_EQ(said.brief(), "OK I");
        EXPECT_EQ(said.reply.tag, "INSERT");
        EXPECT_EQ(said.reply.count, 1U);
        EXPECT_EQ(s0_->statements,
                  Strings{"insert into public.account (account_id, owner, version) "
                          "values ($1, $2, $3)"});
    });
}

}  // namespace
}  // namespace interlock
