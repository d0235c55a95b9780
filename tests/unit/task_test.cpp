// Tasks: results, order, frames, and chains that must not grow the stack.
#include "base/task.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace interlock {
namespace {

/// Something to wait for that a test opens by hand: resumes whoever waits.
class Gate {
  public:
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> waiting) { waiting_ = waiting; }
    void await_resume() const {}
    void open() { std::exchange(waiting_, nullptr).resume(); }
    bool waited_for() const { return waiting_ != nullptr; }

  private:
    std::coroutine_handle<> waiting_;
};

Task<int> number(int value) {
    co_return value;
}

Task<int> sum(int count) {
    int total = 0;
    for (int i = 1; i <= count; ++i)
        total += co_await number(i);
    co_return total;
}

TEST(Task, IsLazyAndGivesItsResult) {
    int result = 0;
    bool started = false;
    const auto noting = [&]() -> Task<int> {
        started = true;
        co_return 5;
    };
    const auto outer = [&]() -> Task<void> {
        auto task = noting();
        EXPECT_FALSE(started);
        result = co_await std::move(task);
    };
    spawn(outer());
    EXPECT_TRUE(started);
    EXPECT_EQ(result, 5);
}

TEST(Task, NestsAndComposes) {
    int result = 0;
    const auto run = [&]() -> Task<void> { result = co_await sum(10) + co_await sum(4); };
    spawn(run());
    EXPECT_EQ(result, 65);
}

TEST(Task, ResultsMayBeMoveOnly) {
    const auto make = []() -> Task<std::unique_ptr<std::string>> {
        co_return std::make_unique<std::string>("moved");
    };
    std::string result;
    const auto run = [&]() -> Task<void> { result = *co_await make(); };
    spawn(run());
    EXPECT_EQ(result, "moved");
}

TEST(Task, OneThatIsNeverAwaitedIsDestroyedWithoutRunning) {
    auto watched = std::make_shared<int>(1);
    const auto holding = [](std::shared_ptr<int> held) -> Task<void> {
        (void)held;
        ADD_FAILURE() << "it ran";
        co_return;
    };
    {
        const auto task = holding(watched);
        EXPECT_EQ(watched.use_count(), 2);
    }
    EXPECT_EQ(watched.use_count(), 1);
}

TEST(Task, WaitsWhereItIsAndContinuesThere) {
    Gate gate;
    std::vector<std::string> steps;
    const auto inner = [&]() -> Task<int> {
        steps.emplace_back("inner");
        co_await gate;
        steps.emplace_back("inner goes on");
        co_return 3;
    };
    const auto outer = [&]() -> Task<void> {
        steps.emplace_back("outer");
        const int value = co_await inner();
        steps.push_back("outer has " + std::to_string(value));
    };
    spawn(outer());
    steps.emplace_back("spawned");
    ASSERT_TRUE(gate.waited_for());
    gate.open();
    EXPECT_EQ(steps, (std::vector<std::string>{"outer", "inner", "spawned", "inner goes on",
                                               "outer has 3"}));
}

TEST(Task, LocalsLiveUntilTheEndAndDieInOrder) {
    std::string order;
    struct Noting {
        std::string &order;
        char name;
        ~Noting() { order += name; }
    };
    Gate gate;
    const auto run = [&]() -> Task<void> {
        const Noting first{order, 'a'};
        const Noting second{order, 'b'};
        co_await gate;
        order += '.';
    };
    spawn(run());
    EXPECT_EQ(order, "");
    gate.open();
    EXPECT_EQ(order, ".ba");
}

// GCC 12 miscompiles exactly this: no local variable, and an await inside a condition. The frame's
// promise is then not where coroutine_handle::from_promise looks for it (see base/task.h).
Gate *condition_gate = nullptr;

Task<bool> slow_yes() {
    co_await *condition_gate;
    co_return true;
}
int reached = 0;
Task<void> awaits_in_if() {
    if (co_await slow_yes()) ++reached;
}
Task<void> awaits_in_negated_if() {
    if (!co_await slow_yes()) co_return;
    reached += 10;
}
Task<int> awaits_in_if_and_returns() {
    if (co_await slow_yes()) co_return 100;
    co_return 1;
}
Task<void> awaits_in_while() {
    while (!co_await slow_yes()) {
    }
    reached += 1000;
}
Task<void> awaits_in_sum() {
    reached += co_await awaits_in_if_and_returns();
}

TEST(Task, WithoutLocalsMayAwaitInsideACondition) {
    Gate gate;
    condition_gate = &gate;
    reached = 0;
    for (const auto run : {awaits_in_if, awaits_in_negated_if, awaits_in_sum, awaits_in_while}) {
        spawn(run());
        ASSERT_TRUE(gate.waited_for());
        gate.open();
    }
    EXPECT_EQ(reached, 1111);
}

Task<std::uintptr_t> stack_here() {
    volatile char local = 0;
    co_return reinterpret_cast<std::uintptr_t>(&local);
}

TEST(Task, AMillionAwaitsOneAfterTheOtherTakeNoStack) {
    std::uintptr_t lowest = UINTPTR_MAX;
    std::uintptr_t highest = 0;
    const auto run = [&]() -> Task<void> {
        for (int i = 0; i < 1'000'000; ++i) {
            const std::uintptr_t here = co_await stack_here();
            lowest = std::min(lowest, here);
            highest = std::max(highest, here);
        }
    };
    spawn(run());
    EXPECT_LT(highest - lowest, 64U * 1024);
}

Task<int> deep(int depth) {
    if (depth == 0) co_return 0;
    co_return 1 + co_await deep(depth - 1);
}

Task<int> deep_and_waiting(int depth, Gate &gate) {
    if (depth == 0) {
        co_await gate;
        co_return 0;
    }
    co_return 1 + co_await deep_and_waiting(depth - 1, gate);
}

TEST(Task, AChainOfTasksIsEnteredAndLeftWithoutStack) {
    // Far deeper than a stack of 8 MB would bear if each level took a call.
    constexpr int depth = 200'000;
    int result = 0;
    const auto run = [&]() -> Task<void> { result = co_await deep(depth); };
    spawn(run());
    EXPECT_EQ(result, depth);

    Gate gate;
    const auto wait = [&]() -> Task<void> { result = co_await deep_and_waiting(depth, gate); };
    result = 0;
    spawn(wait());
    ASSERT_TRUE(gate.waited_for());
    gate.open();
    EXPECT_EQ(result, depth);
}

Task<int> large_frame(int value) {
    char room[10000];
    room[0] = static_cast<char>(value);
    Gate gate;
    (void)gate;
    const int inner = co_await number(value);
    co_return inner + room[0] - static_cast<char>(value);
}

TEST(Task, FramesOfEverySizeAreTakenAndGivenBack) {
    int result = 0;
    const auto run = [&]() -> Task<void> {
        for (int i = 0; i < 1000; ++i)
            result += co_await large_frame(i) - co_await number(i);
    };
    spawn(run());
    EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace interlock
