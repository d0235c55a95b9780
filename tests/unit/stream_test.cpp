// The plain byte stream over a socket pair: what moves, when it would block, how it ends.
#include "wire/stream.h"

#include "base/fd.h"

#include <gtest/gtest.h>

#include <string>
#include <sys/socket.h>

namespace interlock::wire {
namespace {

class StreamTest : public testing::Test {
  protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
        here_ = UniqueFd(ends[0]);
        there_ = UniqueFd(ends[1]);
    }
    UniqueFd here_;
    UniqueFd there_;
};

TEST_F(StreamTest, MovesBytesBothWays) {
    Stream here(here_.get(), nullptr);
    Stream there(there_.get(), nullptr);
    Buffer out;
    Buffer in;
    EXPECT_EQ(there.read(in, 100), StreamState::want_read);
    out.append("hello");
    EXPECT_EQ(here.write(out), StreamState::ok);
    EXPECT_TRUE(out.empty());
    EXPECT_EQ(there.read(in, 100), StreamState::ok);
    EXPECT_EQ(in.view(), "hello");
}

TEST_F(StreamTest, ReadsNoMoreThanItMay) {
    Stream here(here_.get(), nullptr);
    Stream there(there_.get(), nullptr);
    Buffer out;
    out.append("0123456789");
    ASSERT_EQ(here.write(out), StreamState::ok);
    Buffer in;
    EXPECT_EQ(there.read(in, 4), StreamState::ok);
    EXPECT_EQ(in.view(), "0123");
    EXPECT_EQ(there.read(in, 100), StreamState::ok);
    EXPECT_EQ(in.view(), "0123456789");
}

TEST_F(StreamTest, AFullSocketWantsToWaitAndKeepsTheRest) {
    Stream here(here_.get(), nullptr);
    Buffer out;
    const std::size_t size = 16 << 20;
    out.append(std::string(size, 'x'));
    StreamState state = StreamState::ok;
    while (state == StreamState::ok && !out.empty())
        state = here.write(out);
    EXPECT_EQ(state, StreamState::want_write);
    EXPECT_GT(out.size(), 0U);
    EXPECT_LT(out.size(), size);
}

TEST_F(StreamTest, TheOtherSidesEndIsSeenAfterItsLastBytes) {
    Stream here(here_.get(), nullptr);
    Stream there(there_.get(), nullptr);
    Buffer out;
    out.append("last words");
    ASSERT_EQ(here.write(out), StreamState::ok);
    here_.reset();
    Buffer in;
    EXPECT_EQ(there.read(in, 100), StreamState::ok);
    EXPECT_EQ(in.view(), "last words");
    EXPECT_EQ(there.read(in, 100), StreamState::closed);
    out.append("x");
    EXPECT_EQ(there.write(out), StreamState::closed);  // and no SIGPIPE
    EXPECT_EQ(out.size(), 1U);
}

TEST(Stream, ABadDescriptorIsBroken) {
    Stream stream(-1, nullptr);
    Buffer buffer;
    EXPECT_EQ(stream.read(buffer, 10), StreamState::broken);
    buffer.append("x");
    EXPECT_EQ(stream.write(buffer), StreamState::broken);
}

}  // namespace
}  // namespace interlock::wire
