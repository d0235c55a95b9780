#include "session/route_patience.h"

#include <algorithm>
#include <utility>

namespace interlock {

namespace {

// Whether a fence is still there is asked by sending the statement again, at first after this time.
constexpr Millis fence_first = 20;
constexpr Millis fence_cap = 500;

}  // namespace

bool RoutePatience::begin(const Worker &worker) {
    if (until != 0) return false;
    until = route_deadline(worker);
    delay = fence_first;
    return true;
}

bool RoutePatience::over(const Worker &worker) const {
    return worker.loop().now() >= until;
}

Task<bool> RoutePatience::await(Worker &worker, const Routes *seen, RouteRefusal kind,
                                const BackendError &error, bool opened, bool stop, Event *gave_up) {
    (void)begin(worker);
    // A fence that was opened is no reason to refuse what has waited for that.
    if (over(worker)) co_return opened && !std::exchange(spent, true);
    if (opened) co_return true;
    if (kind == RouteRefusal::not_owned && !says_moved(error))
        co_return co_await look_for_routes(worker, seen, until, gave_up);
    const bool fenced = kind == RouteRefusal::fenced;
    const Millis deadline = fenced ? std::min(until, worker.loop().now() + delay) : until;
    delay = std::min(2 * delay, fence_cap);
    if (co_await wait_for_routes(worker, seen, deadline, gave_up, stop)) co_return true;
    const bool ended = (stop && worker.stopping()) || (gave_up != nullptr && gave_up->is_set());
    co_return fenced && !ended && !over(worker);
}

}  // namespace interlock
