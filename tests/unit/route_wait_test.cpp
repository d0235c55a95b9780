// Waiting for routes: what ends it, and what a shard's refusal of routes is told as.
#include "session/route_patience.h"
#include "session/route_wait.h"

#include "fixtures.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

std::shared_ptr<const RouteTable> table(std::int32_t version,
                                        std::optional<std::int32_t> announced = std::nullopt) {
    auto rows = test::reference_rows();
    rows.version = version;
    if (announced) rows.announced = {*announced, 1, 1, 2, {0}};
    return test::build(rows);
}

class RouteWaitTest : public testing::Test {
  protected:
    RouteWaitTest() {
        settings_.routes_wait = 10'000;
        worker_ = std::make_unique<Worker>(loop_, settings_);
        worker_->use_table(table(3));
        worker_->catalog.reachable = true;
    }

    /// Runs `body` and then ends the loop.
    void run(const std::function<Task<void>()> &body) {
        spawn(run_body(body));
        loop_.run();
    }
    Task<void> run_body(const std::function<Task<void>()> &body) {
        co_await body();
        worker_.reset();
        co_await turns();  // what the pools still had to hear
        loop_.stop();
    }

    /// Waits in the background; `ended_` says with what.
    Task<void> wait(Millis deadline, Event *gave_up, bool look_once, bool stop = true) {
        const Routes *seen = worker_->routes().get();
        const bool other = look_once
                               ? co_await look_for_routes(*worker_, seen, deadline, gave_up)
                               : co_await wait_for_routes(*worker_, seen, deadline, gave_up, stop);
        ended_.emplace_back(other);
    }
    Task<void> turns(int count = 3) {
        for (int i = 0; i < count; ++i)
            co_await Wait(loop_, loop_.now() + 1);
    }

    Loop loop_;
    Settings settings_;
    std::unique_ptr<Worker> worker_;
    std::vector<bool> ended_;
};

TEST_F(RouteWaitTest, EndsWithOtherRoutesOfWhateverVersionForAllWhoWait) {
    run([&]() -> Task<void> {
        int looks = 0;
        worker_->look_at_catalog = [&] { return static_cast<std::uint64_t>(++looks); };
        for (int i = 0; i < 3; ++i)
            spawn(wait(route_deadline(*worker_), nullptr, false));
        co_await turns();
        EXPECT_EQ(looks, 3);
        EXPECT_EQ(worker_->moves.waiting, 3U);
        EXPECT_TRUE(ended_.empty());
        worker_->use_table(table(3, 4));  // announced, nothing else
        co_await turns();
        EXPECT_EQ(ended_, (std::vector<bool>{true, true, true}));
        EXPECT_EQ(worker_->moves.waiting, 0U);
    });
}

TEST_F(RouteWaitTest, RoutesThatAreOthersAlreadyAreNotWaitedFor) {
    run([&]() -> Task<void> {
        const std::shared_ptr<const Routes> old = worker_->routes();
        worker_->use_table(table(4));
        EXPECT_TRUE(co_await wait_for_routes(*worker_, old.get(), loop_.now()));
        EXPECT_TRUE(co_await look_for_routes(*worker_, old.get(), loop_.now()));
    });
}

TEST_F(RouteWaitTest, EndsAtItsDeadlineWithACancelAndWithTheRouter) {
    run([&]() -> Task<void> {
        const Millis began = loop_.now();
        EXPECT_FALSE(co_await wait_for_routes(*worker_, worker_->routes().get(), loop_.now() + 20));
        EXPECT_GE(loop_.now() - began, 20);
        Event gave_up;
        spawn(wait(never, &gave_up, false));
        co_await turns();
        gave_up.set();
        co_await turns();
        EXPECT_EQ(ended_, (std::vector<bool>{false}));
        spawn(wait(never, nullptr, false));
        spawn(wait(never, nullptr, false, false));  // of a transaction in progress
        spawn(wait(never, nullptr, true));
        worker_->look_at_catalog = [] { return std::uint64_t{1}; };
        co_await turns();
        worker_->stop_soon([] {});
        co_await turns();
        EXPECT_EQ(ended_.size(), 3U);
        EXPECT_EQ(worker_->moves.waiting, 1U);
        worker_->use_table(table(4));
        co_await turns();
        EXPECT_EQ(ended_.size(), 4U);
        EXPECT_TRUE(ended_.back());
    });
}

TEST_F(RouteWaitTest, ALookEndsWhenItIsDoneAndNotWithAnEarlierOne) {
    run([&]() -> Task<void> {
        worker_->look_at_catalog = [] { return std::uint64_t{7}; };
        spawn(wait(never, nullptr, true));
        co_await turns();
        worker_->catalog_looked(6);
        co_await turns();
        EXPECT_TRUE(ended_.empty());
        worker_->catalog_looked(7);
        co_await turns();
        EXPECT_EQ(ended_, (std::vector<bool>{false}));
    });
}

TEST_F(RouteWaitTest, ALookEndsWhenTheCatalogIsOutOfReach) {
    run([&]() -> Task<void> {
        worker_->look_at_catalog = [] { return std::uint64_t{1}; };
        spawn(wait(never, nullptr, true));
        co_await turns();
        worker_->catalog.reachable = false;
        worker_->wake_route_waiters();
        co_await turns();
        EXPECT_EQ(ended_, (std::vector<bool>{false}));
        EXPECT_FALSE(co_await look_for_routes(*worker_, worker_->routes().get(), never));
    });
}

TEST_F(RouteWaitTest, NothingIsHeldForAnAnnouncementThatIsOlderThanAWait) {
    run([&]() -> Task<void> {
        const std::shared_ptr<const Routes> before = worker_->routes();
        EXPECT_EQ(hold_deadline(*worker_, *before), before->taken + settings_.routes_wait);
        co_await turns();
        worker_->use_table(table(3, 4));
        EXPECT_GT(worker_->routes()->taken, before->taken);
        EXPECT_EQ(hold_deadline(*worker_, *worker_->routes()),
                  worker_->routes()->taken + settings_.routes_wait);
        settings_.routes_wait = never;
        worker_->replace_settings(settings_);
        EXPECT_EQ(hold_deadline(*worker_, *worker_->routes()), never);
    });
}

TEST_F(RouteWaitTest, AFenceThatWasOpenedIsAReasonEvenIfThereIsNoTimeLeft) {
    settings_.routes_wait = 0;
    worker_->replace_settings(settings_);
    run([&]() -> Task<void> {
        const BackendError error{"IL103", "", "", "", false};
        const Routes *seen = worker_->routes().get();
        RoutePatience opened;
        RoutePatience shut;
        EXPECT_FALSE(co_await shut.await(*worker_, seen, RouteRefusal::fenced, error, false, true));
        EXPECT_TRUE(co_await opened.await(*worker_, seen, RouteRefusal::fenced, error, true, true));
        EXPECT_FALSE(
            co_await opened.await(*worker_, seen, RouteRefusal::fenced, error, true, true));
    });
}

TEST(RouteRefusal, IsKnownByItsState) {
    EXPECT_EQ(route_refusal_of("IL101"), RouteRefusal::not_owned);
    EXPECT_EQ(route_refusal_of("IL102"), RouteRefusal::stale);
    EXPECT_EQ(route_refusal_of("IL103"), RouteRefusal::fenced);
    for (const char *other : {"IL104", "IL105", "40001", "IL010", ""})
        EXPECT_EQ(route_refusal_of(other), RouteRefusal::none);
}

TEST(RouteRefusal, IsToldAsASerializationFailureExceptWhereTryingAgainIsNoUse) {
    const BackendError error{"IL103", "bucket 3 is being handed over", "State fenced.",
                             "Retry soon.", false};
    const Refusal fenced = told_route_refusal(RouteRefusal::fenced, error);
    EXPECT_EQ(fenced.state(), "40001");
    EXPECT_EQ(fenced.message, "bucket 3 is being handed over (IL103)");
    EXPECT_EQ(fenced.detail, "State fenced.");
    EXPECT_EQ(told_route_refusal(RouteRefusal::stale, error).message,
              "bucket 3 is being handed over (IL102)");
    const BackendError elsewhere{"IL101", "not here", "State moved, to shard \"s1\".", "Hint.",
                                 false};
    const Refusal as_it_was = told_route_refusal(RouteRefusal::not_owned, elsewhere);
    EXPECT_EQ(as_it_was.state(), "IL101");
    EXPECT_EQ(as_it_was.message, "not here");
    EXPECT_EQ(as_it_was.hint, "Hint.");
    EXPECT_TRUE(says_moved(elsewhere));
    EXPECT_FALSE(says_moved(error));
    EXPECT_FALSE(says_expired(error));
    EXPECT_TRUE(says_expired({"IL103", "", "", "Open it with interlock.expire_fences().", false}));
}

}  // namespace
}  // namespace interlock
