// The byte queue: order, room, growth, and giving memory back.
#include "base/buffer.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>

namespace interlock {
namespace {

TEST(Buffer, StartsEmptyAndOwnsNothing) {
    Buffer buffer;
    EXPECT_TRUE(buffer.empty());
    EXPECT_EQ(buffer.size(), 0U);
    EXPECT_EQ(buffer.view(), "");
    EXPECT_EQ(buffer.room(), 0U);
    buffer.append("");
    buffer.clear();
    EXPECT_TRUE(buffer.empty());
}

TEST(Buffer, FirstInFirstOut) {
    Buffer buffer;
    buffer.append("abc");
    buffer.append('d');
    buffer.append("ef");
    EXPECT_EQ(buffer.view(), "abcdef");
    buffer.consume(2);
    EXPECT_EQ(buffer.view(), "cdef");
    buffer.append("g");
    EXPECT_EQ(buffer.view(), "cdefg");
    buffer.consume(5);
    EXPECT_TRUE(buffer.empty());
}

TEST(Buffer, PrepareGivesRoomAndCommitTakesIt) {
    Buffer buffer;
    char *room = buffer.prepare(1000);
    EXPECT_GE(buffer.room(), 1000U);
    std::memset(room, 'x', 1000);
    EXPECT_TRUE(buffer.empty());  // until committed
    buffer.commit(10);
    EXPECT_EQ(buffer.view(), std::string(10, 'x'));
    buffer.commit(0);
    EXPECT_EQ(buffer.size(), 10U);
}

TEST(Buffer, TruncateUndoesAppends) {
    Buffer buffer;
    buffer.append("abcdef");
    buffer.consume(1);
    buffer.truncate(2);
    EXPECT_EQ(buffer.view(), "bc");
    buffer.append("X");
    EXPECT_EQ(buffer.view(), "bcX");
    buffer.truncate(0);
    EXPECT_TRUE(buffer.empty());
}

TEST(Buffer, AnEmptyOneGivesAllItsMemoryBack) {
    Buffer buffer;
    for (const std::size_t size : {std::size_t{1}, Buffer::block_size, Buffer::block_size + 1}) {
        buffer.append(std::string(size, 'x'));
        EXPECT_GE(buffer.room() + buffer.size(), Buffer::block_size);
        buffer.consume(size);
        EXPECT_EQ(buffer.room(), 0U);
        buffer.append(std::string(size, 'x'));
        buffer.truncate(0);
        EXPECT_EQ(buffer.room(), 0U);
        buffer.append(std::string(size, 'x'));
        buffer.clear();
        EXPECT_EQ(buffer.room(), 0U);
    }
    (void)buffer.prepare(100);
    EXPECT_GE(buffer.room(), 100U);
    buffer.settle();
    EXPECT_EQ(buffer.room(), 0U);
    buffer.append("again");
    buffer.settle();
    EXPECT_EQ(buffer.view(), "again");
}

TEST(Buffer, RoomAtTheFrontIsUsedAgainInsteadOfGrowing) {
    Buffer buffer;
    buffer.append(std::string(600, 'x'));
    for (int i = 0; i < 100000; ++i) {
        buffer.append(std::string(300, 'y'));
        buffer.consume(300);
    }
    EXPECT_LE(buffer.room() + buffer.size(), Buffer::block_size);
    EXPECT_EQ(buffer.view(), std::string(600, 'y'));
}

TEST(Buffer, GrowsWhenRoomAtTheFrontIsNotEnough) {
    Buffer buffer;
    buffer.append(std::string(Buffer::block_size, 'x'));
    buffer.consume(Buffer::block_size - 100);
    std::memset(buffer.prepare(Buffer::block_size), 'y', Buffer::block_size);
    ASSERT_GE(buffer.room(), Buffer::block_size);
    buffer.commit(Buffer::block_size);
    EXPECT_EQ(buffer.view(), std::string(100, 'x') + std::string(Buffer::block_size, 'y'));
}

TEST(Buffer, MovingLeavesAnEmptyOneBehind) {
    Buffer first;
    first.append("abc");
    Buffer second(std::move(first));
    EXPECT_EQ(second.view(), "abc");
    EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): that is what is tested
    first.append("again");
    EXPECT_EQ(first.view(), "again");
    first = std::move(second);
    EXPECT_EQ(first.view(), "abc");
    EXPECT_TRUE(second.empty());
}

TEST(Buffer, BehavesLikeAQueueUnderAnyMixOfOperations) {
    std::minstd_rand random(7);
    Buffer buffer;
    std::string model;
    for (int i = 0; i < 20000; ++i) {
        const std::size_t amount = random() % (random() % 50 == 0 ? 40000 : 200);
        switch (random() % 5) {
        case 0:
        case 1: {
            const std::string bytes(amount, static_cast<char>('a' + random() % 26));
            buffer.append(bytes);
            model += bytes;
            break;
        }
        case 2: {
            const std::size_t taken = std::min(amount, model.size());
            buffer.consume(taken);
            model.erase(0, taken);
            break;
        }
        case 3: {
            char *room = buffer.prepare(amount);
            ASSERT_GE(buffer.room(), amount);
            std::memset(room, '#', amount);
            buffer.commit(amount / 2);
            model.append(amount / 2, '#');
            break;
        }
        default: {
            const std::size_t kept = std::min(amount, model.size());
            if (random() % 20 != 0) break;
            buffer.truncate(kept);
            model.resize(kept);
        }
        }
        ASSERT_EQ(buffer.size(), model.size());
        if (i % 100 == 0) {
            ASSERT_EQ(buffer.view(), model);
        }
        if (model.size() > (1U << 20)) {
            buffer.clear();
            model.clear();
        }
    }
    EXPECT_EQ(buffer.view(), model);
}

}  // namespace
}  // namespace interlock
