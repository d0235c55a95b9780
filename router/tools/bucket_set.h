// Sets of buckets as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace interlock {

/// "0-6,8" for a sorted list without doubles. After `max_ranges` ranges the rest is only counted:
/// "0,2,4,... (8 buckets)".
std::string format_buckets(const std::vector<std::int32_t> &buckets, std::size_t max_ranges = 24);

/// "bucket 3", "buckets 0-6,8".
std::string buckets_phrase(const std::vector<std::int32_t> &buckets);

}  // namespace interlock
