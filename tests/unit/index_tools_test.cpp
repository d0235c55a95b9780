// The parts of `interlock index` that need no database.
#include <chrono>

#include <gtest/gtest.h>

#include "tools/index_backfill.h"
#include "tools/index_batch.h"
#include "tools/index_options.h"

namespace interlock {
namespace {

TEST(IndexTools, OnlyWhatARecordSaysCountsAgainstIt) {
    for (const char *state :
         {"22P02", "22003", "23514", "23502", "42804", "54000", "0A000", "P0001", "21000"})
        EXPECT_TRUE(is_data_error(ControlError(state, "x"))) << state;
    for (const char *state :
         {"08006", "40001", "40P01", "53100", "53300", "55000", "55P03", "57014", "57P01", "57P03",
          "58030", "25006", "25P02", "XX000", "IL104", "", "2"})
        EXPECT_FALSE(is_data_error(ControlError(state, "x"))) << state;
}

TEST(IndexTools, AThrottleSharesOneRate) {
    Throttle throttle(1000);
    const auto now = std::chrono::steady_clock::now();
    const auto first = throttle.reserve(500);
    const auto second = throttle.reserve(500);
    EXPECT_GE(first - now, std::chrono::milliseconds(500));
    EXPECT_EQ(second - first, std::chrono::milliseconds(500));
    Throttle none(0);
    EXPECT_LE(none.reserve(1'000'000), std::chrono::steady_clock::now());
}

TEST(IndexTools, TextsBecomeJsonStrings) {
    EXPECT_EQ(json_string("plain \xc3\xa4"), "\"plain \xc3\xa4\"");
    EXPECT_EQ(json_string("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\u000a\\u0001\"");
}

TEST(IndexTools, WhatIsNotPublishedIsToldWithWhatIs) {
    RouteTable routes;
    try {
        (void)require_published(routes, "x");
        FAIL();
    } catch (const ControlError &error) {
        EXPECT_STREQ(error.what(), "index \"x\" is not published");
        EXPECT_EQ(error.detail, "No index is published.");
    }
    GlobalIndex index;
    index.name = "a";
    routes.indexes.push_back(index);
    EXPECT_EQ(&require_published(routes, "a"), &routes.indexes[0]);
    try {
        (void)require_published(routes, "x");
        FAIL();
    } catch (const ControlError &error) {
        EXPECT_EQ(error.detail, "Published are: a.");
    }
}

}  // namespace
}  // namespace interlock
