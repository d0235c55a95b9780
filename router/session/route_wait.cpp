#include "session/route_wait.h"

#include <algorithm>

namespace interlock {

RouteWaiter::RouteWaiter(Worker &worker) : worker_(worker) {
    worker_.route_waiters_.push_back(this);
    ++worker_.moves.waiting;
}

RouteWaiter::~RouteWaiter() {
    auto &waiters = worker_.route_waiters_;
    const auto place = std::find(waiters.begin(), waiters.end(), this);
    *place = waiters.back();
    waiters.pop_back();
    --worker_.moves.waiting;
}

Millis route_deadline(const Worker &worker) {
    const Millis wait = worker.settings().routes_wait;
    const Millis now = worker.loop().now();
    return wait >= never - now ? never : now + wait;
}

Task<bool> wait_for_routes(Worker &worker, const Routes *seen, Millis deadline, Event *gave_up,
                           bool stop) {
    const auto over = [&] { return worker.routes().get() != seen; };
    if (over()) co_return true;
    RouteWaiter waiter(worker);
    if (worker.look_at_catalog) worker.look_at_catalog();
    while (!over()) {
        if (stop && worker.stopping()) co_return false;
        waiter.woken.reset();
        const Fired fired =
            co_await Wait(worker.loop(), deadline).event(waiter.woken).event(gave_up);
        if (!fired.has(0)) co_return over();
    }
    co_return true;
}

}  // namespace interlock
