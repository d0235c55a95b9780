#include "server/prepared.h"

#include <gtest/gtest.h>

#include <limits>

namespace interlock {
namespace {

using Ids = std::vector<std::uint64_t>;

TEST(PreparedRegistry, TheLeastRecentlyUsedGoesFirst) {
    PreparedRegistry prepared;
    EXPECT_FALSE(prepared.find(1));
    for (const std::uint64_t id : {1, 2, 3})
        EXPECT_EQ(prepared.add(id, 3), Ids{});
    EXPECT_TRUE(prepared.find(1));
    EXPECT_EQ(prepared.add(4, 3), Ids{2});
    EXPECT_FALSE(prepared.find(2));
    EXPECT_TRUE(prepared.find(1) && prepared.find(3) && prepared.find(4));
    EXPECT_EQ(prepared.size(), 3U);
}

TEST(PreparedRegistry, AResultIsOfOnePreparation) {
    PreparedRegistry prepared;
    (void)prepared.add(1, 2);
    EXPECT_EQ(prepared.result(1), 0U);
    prepared.set_result(1, 7);
    prepared.set_result(2, 8);  // not prepared here
    (void)prepared.add(2, 2);
    EXPECT_EQ(prepared.result(1), 7U);
    EXPECT_EQ(prepared.result(2), 0U);
    prepared.remove(1);
    EXPECT_EQ(prepared.result(1), 0U);
    (void)prepared.add(1, 2);
    EXPECT_EQ(prepared.result(1), 0U);
}

TEST(PreparedRegistry, ALowerLimitClosesSeveral) {
    PreparedRegistry prepared;
    for (const std::uint64_t id : {1, 2, 3, 4})
        (void)prepared.add(id, 10);
    EXPECT_EQ(prepared.add(5, 2), (Ids{1, 2, 3}));
    EXPECT_EQ(prepared.add(6, 0), (Ids{4, 5}));  // the added one stays: it is about to be used
    EXPECT_TRUE(prepared.find(6));
}

TEST(PreparedRegistry, AddingAgainOnlyTouches) {
    PreparedRegistry prepared;
    (void)prepared.add(1, 2);
    (void)prepared.add(2, 2);
    EXPECT_EQ(prepared.add(1, 2), Ids{});
    EXPECT_EQ(prepared.add(3, 2), Ids{2});
}

TEST(PreparedRegistry, ForgetsOneOrAll) {
    PreparedRegistry prepared;
    for (const std::uint64_t id : {1, 2, 3})
        (void)prepared.add(id, 3);
    prepared.remove(2);
    prepared.remove(2);
    EXPECT_FALSE(prepared.find(2));
    EXPECT_EQ(prepared.add(4, 3), Ids{});
    prepared.clear();
    EXPECT_EQ(prepared.size(), 0U);
    EXPECT_FALSE(prepared.find(1));
}

TEST(StatementName, IsMadeFromTheNumber) {
    EXPECT_EQ(StatementName(7).view(), "il_7");
    EXPECT_EQ(StatementName(std::numeric_limits<std::uint64_t>::max()).view(),
              "il_18446744073709551615");
}

}  // namespace
}  // namespace interlock
