// Intervals compare by one number: microseconds, with days of 24 hours and months of 30 days.
#pragma once

#include "pg.h"

namespace interlock {

inline __int128 interval_span(const Interval &interval) {
    const std::int64_t days = std::int64_t{interval.month} * DAYS_PER_MONTH + interval.day;
    return static_cast<__int128>(days) * USECS_PER_DAY + interval.time;
}

/// The one interval of that span: as many whole months, then days, as there are and fit. `span`
/// must be that of some interval.
inline Interval interval_of_span(__int128 span) {
    const auto fitted = [](std::int64_t number) {
        return static_cast<std::int32_t>(number < INT32_MIN   ? INT32_MIN
                                         : number > INT32_MAX ? INT32_MAX
                                                              : number);
    };
    const std::int64_t days = static_cast<std::int64_t>(span / USECS_PER_DAY);
    Interval interval = {};
    interval.month = fitted(days / DAYS_PER_MONTH);
    interval.day = fitted(days - std::int64_t{interval.month} * DAYS_PER_MONTH);
    interval.time = 0;
    interval.time = static_cast<std::int64_t>(span - interval_span(interval));
    return interval;
}

}  // namespace interlock
