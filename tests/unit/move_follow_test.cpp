// When a target that follows is close enough.
#include <gtest/gtest.h>

#include "tools/move_follow.h"

namespace interlock {
namespace {

using std::chrono::milliseconds;

const FollowMarks::Time start = FollowMarks::Time{} + std::chrono::hours(1);

FollowMarks::Time at(int ms) {
    return start + milliseconds(ms);
}

TEST(FollowMarks, WhatIsAppliedAtOnceIsClose) {
    FollowMarks marks(milliseconds(100));
    marks.note(at(0), 1000);
    EXPECT_FALSE(marks.reached(at(0), 999));
    EXPECT_FALSE(marks.reached(at(0), -1)) << "not known";
    EXPECT_TRUE(marks.reached(at(0), 1000));
}

TEST(FollowMarks, CountsTimeAndNotBytes) {
    // A million bytes each look, of which the target is five looks behind.
    FollowMarks slow(milliseconds(40)), quick(milliseconds(50));
    for (int look = 0; look <= 100; ++look) {
        slow.note(at(look * 10), look * 1'000'000);
        quick.note(at(look * 10), look * 1'000'000);
        if (look < 5) continue;
        EXPECT_FALSE(slow.reached(at(look * 10), (look - 5) * 1'000'000)) << look;
        EXPECT_TRUE(quick.reached(at(look * 10), (look - 5) * 1'000'000)) << look;
    }
}

TEST(FollowMarks, ABacklogThatIsDoneWithIsSeenAtOnce) {
    FollowMarks marks(milliseconds(100));
    int look = 0;
    for (; look < 500; ++look) {
        marks.note(at(look * 10), 50'000 + look);
        ASSERT_FALSE(marks.reached(at(look * 10), look * 100)) << "far behind what is 100 ms old";
    }
    marks.note(at(look * 10), 50'000 + look);
    EXPECT_FALSE(marks.reached(at(look * 10), 50'489));
    EXPECT_TRUE(marks.reached(at(look * 10), 50'490));
}

TEST(FollowMarks, AServerThatWritesNothingIsFollowed) {
    FollowMarks marks(milliseconds(100));
    for (int look = 0; look < 100; ++look) {
        marks.note(at(look * 10), 7);
        ASSERT_EQ(marks.reached(at(look * 10), look < 50 ? 6 : 7), look >= 50);
    }
    // After a long stand-still of the mover itself.
    marks.note(at(900'000), 8);
    EXPECT_FALSE(marks.reached(at(900'000), 7));
    EXPECT_TRUE(marks.reached(at(900'000), 8));
}

}  // namespace
}  // namespace interlock
