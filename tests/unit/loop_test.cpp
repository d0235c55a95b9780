// The event loop: timers, descriptors, events, strays, other threads.
#include "base/loop.h"

#include "base/task.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <random>
#include <string>
#include <sys/socket.h>
#include <thread>

namespace interlock {
namespace {

struct Pair {
    Pair() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
        here = UniqueFd(ends[0]);
        there = UniqueFd(ends[1]);
    }
    void send(std::string_view bytes) const {
        EXPECT_EQ(::send(there.get(), bytes.data(), bytes.size(), 0),
                  static_cast<ssize_t>(bytes.size()));
    }
    std::string receive() const {
        char bytes[4096];
        const ssize_t got = ::recv(here.get(), bytes, sizeof bytes, 0);
        return got > 0 ? std::string(bytes, static_cast<std::size_t>(got)) : std::string();
    }
    void fill() const {
        const std::string block(65536, 'x');
        while (::send(here.get(), block.data(), block.size(), 0) > 0) {
        }
    }
    UniqueFd here;
    UniqueFd there;
};

class LoopTest : public testing::Test {
  protected:
    /// Runs until `work` has ended.
    void run(Task<void> work) {
        spawn(until_done(std::move(work)));
        loop_.run();
    }
    Task<void> until_done(Task<void> work) {
        co_await std::move(work);
        loop_.stop();
    }
    Task<void> pause(Millis milliseconds) { co_await Wait(loop_, loop_.now() + milliseconds); }

    Loop loop_;
};

TEST(Deadline, IsNowPlusTimeoutOrNever) {
    EXPECT_EQ(deadline_after(100, 50), 150);
    EXPECT_EQ(deadline_after(100, 0), never);
    EXPECT_EQ(deadline_after(100, -1), never);
    EXPECT_EQ(deadline_after(100, never), never);
    EXPECT_EQ(deadline_after(100, never - 100), never);
    EXPECT_EQ(deadline_after(100, never - 101), never - 1);
}

TEST_F(LoopTest, TimersFireInOrderOfTheirDeadlines) {
    std::vector<Millis> fired;
    int waiting = 0;
    const Millis start = loop_.now();
    const auto one = [&](Millis deadline) -> Task<void> {
        ++waiting;
        const Fired result = co_await Wait(loop_, deadline);
        EXPECT_TRUE(result.none());
        EXPECT_GE(loop_.now(), deadline);
        fired.push_back(deadline);
        if (--waiting == 0) loop_.stop();
    };
    std::minstd_rand random(3);
    for (int i = 0; i < 500; ++i)
        spawn(one(start + static_cast<Millis>(random() % 60)));
    spawn(one(start - 1000));  // long past
    loop_.run();
    EXPECT_EQ(fired.size(), 501U);
    EXPECT_TRUE(std::is_sorted(fired.begin(), fired.end()));
}

TEST_F(LoopTest, WaitsThatEndEarlyLeaveTheTimersInOrder) {
    std::minstd_rand random(11);
    struct Sleeper {
        Event wake;
        Millis deadline = 0;
        bool woken = false;
    };
    std::vector<Sleeper> sleepers(400);
    std::vector<Millis> fired;
    std::size_t done = 0;
    const Millis start = loop_.now();
    const auto one = [&](Sleeper &self) -> Task<void> {
        const Fired result = co_await Wait(loop_, self.deadline).event(self.wake);
        if (result.none()) {
            EXPECT_FALSE(self.woken);
            fired.push_back(self.deadline);
        } else {
            EXPECT_TRUE(self.woken);
        }
        if (++done == sleepers.size()) loop_.stop();
    };
    for (Sleeper &sleeper : sleepers) {
        sleeper.deadline = start + 20 + static_cast<Millis>(random() % 50);
        spawn(one(sleeper));
    }
    for (Sleeper &sleeper : sleepers)
        if (random() % 3 != 0) {
            sleeper.woken = true;
            sleeper.wake.set();
        }
    loop_.run();
    EXPECT_TRUE(std::is_sorted(fired.begin(), fired.end()));
    EXPECT_FALSE(fired.empty());
}

TEST_F(LoopTest, AReadableDescriptorEndsTheWait) {
    const Pair pair;
    Watch watch(loop_, pair.here.get());
    const auto work = [&]() -> Task<void> {
        const Fired fired = co_await Wait(loop_, loop_.now() + 5000).read(watch);
        EXPECT_TRUE(fired.has(0));
        EXPECT_EQ(pair.receive(), "hello");
        // Nothing more is there: now the deadline ends it.
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5).read(watch)).none());
    };
    loop_.post([&] { pair.send("hello"); });
    run(work());
}

TEST_F(LoopTest, BytesAlreadyThereAreSeenAgainUntilRead) {
    const Pair pair;
    pair.send("x");
    Watch watch(loop_, pair.here.get());
    const auto work = [&]() -> Task<void> {
        for (int i = 0; i < 3; ++i)
            EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(watch)).has(0));
    };
    run(work());
}

TEST_F(LoopTest, AFullDescriptorIsWritableOnceTheOtherSideReads) {
    const Pair pair;
    pair.fill();
    Watch watch(loop_, pair.here.get());
    const auto work = [&]() -> Task<void> {
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5).write(watch)).none());
        char bytes[65536];
        while (::recv(pair.there.get(), bytes, sizeof bytes, 0) > 0) {
        }
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).write(watch)).has(0));
    };
    run(work());
}

TEST_F(LoopTest, ReadAndWriteOfOneDescriptorMayBeAwaitedByTwo) {
    const Pair pair;
    Watch watch(loop_, pair.here.get());
    int done = 0;
    const auto reader = [&]() -> Task<void> {
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(watch)).has(0));
        if (++done == 2) loop_.stop();
    };
    const auto writer = [&]() -> Task<void> {
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).write(watch)).has(0));
        pair.send("x");
        if (++done == 2) loop_.stop();
    };
    spawn(reader());
    spawn(writer());
    loop_.run();
    EXPECT_EQ(done, 2);
}

TEST_F(LoopTest, SeveralThingsReadyInOneRoundAreAllTold) {
    const Pair pair;
    Watch watch(loop_, pair.here.get());
    Event event;
    const auto work = [&]() -> Task<void> {
        const Fired fired = co_await Wait(loop_, loop_.now() + 5000)
                                .read(watch)
                                .event(event)
                                .read(static_cast<Watch *>(nullptr))
                                .write(watch);
        EXPECT_TRUE(fired.has(0));
        EXPECT_TRUE(fired.has(1));
        EXPECT_FALSE(fired.has(2));
        EXPECT_TRUE(fired.has(3));
    };
    loop_.post([&] {
        // The next round finds all of them.
        pair.send("x");
        event.set();
    });
    pair.send("y");
    run(work());
}

TEST_F(LoopTest, NothingToWaitForButNullsEndsAtTheDeadline) {
    const auto work = [&]() -> Task<void> {
        const Fired fired = co_await Wait(loop_, loop_.now() + 5)
                                .read(static_cast<Watch *>(nullptr))
                                .event(static_cast<Event *>(nullptr));
        EXPECT_TRUE(fired.none());
    };
    run(work());
}

TEST_F(LoopTest, AnEventAlreadySetDoesNotWait) {
    Event event;
    event.set();
    bool passed = false;
    const auto work = [&]() -> Task<void> {
        const Fired fired = co_await Wait(loop_, never).event(event);
        EXPECT_TRUE(fired.has(0));
        passed = true;
    };
    spawn(work());
    EXPECT_TRUE(passed);  // without the loop having run at all
    event.reset();
    EXPECT_FALSE(event.is_set());
}

TEST_F(LoopTest, AnEventWakesItsWaiterAndStaysSet) {
    Event event;
    Event back;
    std::string steps;
    const auto waiter = [&]() -> Task<void> {
        co_await Wait(loop_, never).event(event);
        steps += 'w';
        co_await Wait(loop_, never).event(event);  // still set
        steps += 'w';
        back.set();
    };
    const auto setter = [&]() -> Task<void> {
        co_await pause(1);
        steps += 's';
        event.set();
        steps += 's';  // the waiter does not run inside set()
        co_await Wait(loop_, never).event(back);
    };
    spawn(waiter());
    run(setter());
    EXPECT_EQ(steps, "ssww");
}

TEST_F(LoopTest, AnEventInTheSameRoundAsTheDeadlineWins) {
    Event event;
    const auto work = [&]() -> Task<void> {
        const Millis deadline = loop_.now() + 5;
        loop_.post([&, deadline] {
            // Both become true before the loop looks again.
            while (Loop::clock() < deadline + 2) {
            }
            event.set();
        });
        EXPECT_TRUE((co_await Wait(loop_, deadline).event(event)).has(0));
    };
    run(work());
}

TEST_F(LoopTest, AnEventSetByOneThatTheSameRoundWokeIsNotLost) {
    // Both are due in one round; the first to run sets the event of the second, whose deadline has
    // already been taken from the heap.
    Event event;
    const Millis deadline = loop_.now() + 5;
    bool told = false;
    const auto first = [&]() -> Task<void> {
        co_await Wait(loop_, deadline);
        event.set();
    };
    const auto second = [&]() -> Task<void> {
        const Fired fired = co_await Wait(loop_, deadline).event(event);
        told = fired.has(0);
    };
    spawn(first());
    run(second());
    EXPECT_TRUE(told);
}

TEST_F(LoopTest, BytesThatComeWithTheDeadlineAreNotLost) {
    const Pair pair;
    Watch watch(loop_, pair.here.get());
    const auto work = [&]() -> Task<void> {
        const Millis deadline = loop_.now() + 5;
        loop_.post([&, deadline] {
            pair.send("x");
            while (Loop::clock() < deadline + 2) {
            }
        });
        // The round that ran the post may still see the deadline first; the bytes are then seen by
        // the next wait.
        const Fired fired = co_await Wait(loop_, deadline).read(watch);
        if (fired.none()) {
            EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(watch)).has(0));
        }
    };
    run(work());
}

struct Stray {
    static void note(void *self) { ++static_cast<Stray *>(self)->calls; }
    int calls = 0;
};

TEST_F(LoopTest, AStrayIsToldOnceWhenNobodyWaits) {
    const Pair pair;
    Watch watch(loop_, pair.here.get());
    Stray stray;
    watch.on_stray(Stray::note, &stray);
    pair.send("x");
    run(pause(5));
    EXPECT_EQ(stray.calls, 0);  // not armed
    watch.arm_stray();
    // A loop that has stopped is not run again: a second one continues.
    Loop other;
    Watch again(other, pair.here.get());
    again.on_stray(Stray::note, &stray);
    again.arm_stray();
    const auto work = [&]() -> Task<void> {
        co_await Wait(other, other.now() + 20);
        other.stop();
    };
    spawn(work());
    other.run();
    EXPECT_EQ(stray.calls, 1);  // told once, though the bytes are still there
}

TEST_F(LoopTest, AReaderKeepsStraysAway) {
    const Pair pair;
    Watch watch(loop_, pair.here.get());
    Stray stray;
    watch.on_stray(Stray::note, &stray);
    watch.arm_stray();
    const auto work = [&]() -> Task<void> {
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(watch)).has(0));
        EXPECT_EQ(pair.receive(), "x");
        co_await pause(5);
    };
    loop_.post([&] { pair.send("x"); });
    run(work());
    EXPECT_EQ(stray.calls, 0);
}

TEST_F(LoopTest, AStrayMayDestroyItsWatch) {
    Pair pair;
    auto watch = std::make_unique<Watch>(loop_, pair.here.get());
    watch->on_stray([](void *owner) { static_cast<std::unique_ptr<Watch> *>(owner)->reset(); },
                    &watch);
    watch->arm_stray();
    pair.there.reset();  // the other side is gone
    run(pause(10));
    EXPECT_EQ(watch, nullptr);
}

double cpu_seconds() {
    std::timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

TEST_F(LoopTest, BrokenDescriptorsDoNotSpin) {
    Pair armed_for_reading;
    Pair armed_as_stray;
    Pair armed_for_writing;
    Pair unread;
    Watch reading(loop_, armed_for_reading.here.get());
    Watch stray_watch(loop_, armed_as_stray.here.get());
    Watch writing(loop_, armed_for_writing.here.get());
    Watch unread_watch(loop_, unread.here.get());
    Stray stray;
    stray_watch.on_stray(Stray::note, &stray);
    stray_watch.arm_stray();
    armed_for_writing.fill();
    const auto work = [&]() -> Task<void> {
        // Each has been waited for once and stays registered; then the other sides vanish.
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 2).read(reading)).none());
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 2).write(writing)).none());
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 2).read(unread_watch)).none());
        unread.send("never read");
        for (Pair *pair : {&armed_for_reading, &armed_as_stray, &armed_for_writing})
            pair->there.reset();
        const double before = cpu_seconds();
        co_await pause(200);
        EXPECT_LT(cpu_seconds() - before, 0.05);
        EXPECT_EQ(stray.calls, 1);
        // A late waiter is still told.
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(reading)).has(0));
        EXPECT_EQ(armed_for_reading.receive(), "");
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).write(writing)).has(0));
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(unread_watch)).has(0));
        EXPECT_EQ(unread.receive(), "never read");
    };
    run(work());
}

TEST_F(LoopTest, AWatchMayBeMadeAndDestroyedManyTimesOnOneDescriptor) {
    const Pair pair;
    pair.send("x");
    const auto work = [&]() -> Task<void> {
        for (int i = 0; i < 100; ++i) {
            Watch watch(loop_, pair.here.get());
            EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).read(watch)).has(0));
        }
    };
    run(work());
}

TEST_F(LoopTest, OtherThreadsPostToTheLoopsThread) {
    constexpr int threads = 4;
    constexpr int each = 5000;
    const auto home = std::this_thread::get_id();
    int ran = 0;
    std::vector<int> last(threads, -1);
    std::vector<std::thread> posters;
    for (int t = 0; t < threads; ++t)
        posters.emplace_back([&, t] {
            for (int i = 0; i < each; ++i)
                loop_.post([&, t, i] {
                    EXPECT_EQ(std::this_thread::get_id(), home);
                    EXPECT_EQ(last[static_cast<std::size_t>(t)], i - 1);  // in order, a thread
                    last[static_cast<std::size_t>(t)] = i;
                    if (++ran == threads * each) loop_.stop();
                });
        });
    loop_.run();
    for (std::thread &poster : posters)
        poster.join();
    EXPECT_EQ(ran, threads * each);
}

TEST_F(LoopTest, APostedFunctionMayPostAndWakeAWaiter) {
    Event event;
    const auto work = [&]() -> Task<void> {
        std::thread([&] { loop_.post([&] { loop_.post([&] { event.set(); }); }); }).join();
        EXPECT_TRUE((co_await Wait(loop_, loop_.now() + 5000).event(event)).has(0));
    };
    run(work());
}

TEST_F(LoopTest, ManyRoundsOfWaitingDoNotGrowTheStack) {
    Event ping;
    Event pong;
    constexpr int rounds = 50000;
    const auto other = [&]() -> Task<void> {
        for (int i = 0; i < rounds; ++i) {
            co_await Wait(loop_, never).event(ping);
            ping.reset();
            pong.set();
        }
    };
    const auto work = [&]() -> Task<void> {
        for (int i = 0; i < rounds; ++i) {
            ping.set();
            co_await Wait(loop_, never).event(pong);
            pong.reset();
        }
    };
    spawn(other());
    run(work());
}

}  // namespace
}  // namespace interlock
