// Sets of buckets as text.
#include "tools/bucket_set.h"

#include <gtest/gtest.h>

#include <numeric>

namespace interlock {
namespace {

TEST(BucketSet, WritesRanges) {
    EXPECT_EQ(format_buckets({}), "");
    EXPECT_EQ(format_buckets({3}), "3");
    EXPECT_EQ(format_buckets({0, 1}), "0-1");
    EXPECT_EQ(format_buckets({0, 1, 2, 3, 4, 5, 6, 8}), "0-6,8");
    EXPECT_EQ(format_buckets({0, 2, 4, 6}), "0,2,4,6");
    EXPECT_EQ(format_buckets({1, 3, 4, 5, 65534, 65535}), "1,3-5,65534-65535");
}

TEST(BucketSet, CountsWhatIsTooManyRangesToRead) {
    EXPECT_EQ(format_buckets({0, 2, 4, 6, 8, 10, 12, 14}, 3), "0,2,4,... (8 buckets)");
    EXPECT_EQ(format_buckets({0, 2, 4}, 3), "0,2,4");
    std::vector<std::int32_t> all(65536);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(format_buckets(all, 1), "0-65535");
}

TEST(BucketSet, SpeaksInSingularAndPlural) {
    EXPECT_EQ(buckets_phrase({3}), "bucket 3");
    EXPECT_EQ(buckets_phrase({3, 4}), "buckets 3-4");
}

}  // namespace
}  // namespace interlock
