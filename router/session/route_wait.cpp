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

namespace {

Millis wait_from(const Worker &worker, Millis begin) {
    const Millis wait = worker.settings().routes_wait;
    return wait >= never - begin ? never : begin + wait;
}

}  // namespace

Millis route_deadline(const Worker &worker) {
    return wait_from(worker, worker.loop().now());
}

Millis hold_deadline(const Worker &worker, const Routes &routes) {
    return wait_from(worker, routes.taken);
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

Task<bool> look_for_routes(Worker &worker, const Routes *seen, Millis deadline, Event *gave_up) {
    const auto over = [&] { return worker.routes().get() != seen; };
    if (over()) co_return true;
    if (!worker.look_at_catalog) co_return false;
    RouteWaiter waiter(worker);
    const std::uint64_t look = worker.look_at_catalog();
    while (!over() && worker.looked() < look && worker.catalog.reachable && !worker.stopping()) {
        waiter.woken.reset();
        const Fired fired =
            co_await Wait(worker.loop(), deadline).event(waiter.woken).event(gave_up);
        if (!fired.has(0)) break;
    }
    co_return over();
}

Refusal client_left() {
    return postgres_error("57014",
                          "the client has closed its end while a statement of it waited "
                          "for a bucket that is being handed over",
                          "Neither that statement nor any behind it was carried out.");
}

RouteRefusal route_refusal_of(std::string_view sqlstate) {
    if (sqlstate == "IL102") return RouteRefusal::stale;
    if (sqlstate == "IL103") return RouteRefusal::fenced;
    if (sqlstate == "IL101") return RouteRefusal::not_owned;
    return RouteRefusal::none;
}

bool says_moved(const BackendError &error) {
    return error.detail.starts_with("State moved");
}

bool says_expired(const BackendError &error) {
    return error.hint.find("expire_fences()") != std::string::npos;
}

Refusal told_route_refusal(RouteRefusal kind, const BackendError &error) {
    if (kind == RouteRefusal::not_owned) {
        Refusal refusal = postgres_error(error.sqlstate, error.message, error.hint);
        refusal.detail = error.detail;
        return refusal;
    }
    const char *code = kind == RouteRefusal::stale ? "IL102" : "IL103";
    Refusal refusal = postgres_error("40001", error.message + " (" + code + ")",
                                     "Nothing of it was done; run the transaction again.");
    refusal.detail = error.detail;
    return refusal;
}

}  // namespace interlock
