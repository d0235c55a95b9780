#include "tools/bucket_set.h"

namespace interlock {

std::string format_buckets(const std::vector<std::int32_t> &buckets, std::size_t max_ranges) {
    std::string text;
    std::size_t ranges = 0;
    for (std::size_t first = 0; first < buckets.size();) {
        if (ranges++ == max_ranges)
            return text + ",... (" + std::to_string(buckets.size()) + " buckets)";
        std::size_t last = first;
        while (last + 1 < buckets.size() && buckets[last + 1] == buckets[last] + 1)
            ++last;
        text += (text.empty() ? "" : ",") + std::to_string(buckets[first]);
        if (last > first) text += "-" + std::to_string(buckets[last]);
        first = last + 1;
    }
    return text;
}

std::string buckets_phrase(const std::vector<std::int32_t> &buckets) {
    return (buckets.size() == 1 ? "bucket " : "buckets ") + format_buckets(buckets);
}

}  // namespace interlock
