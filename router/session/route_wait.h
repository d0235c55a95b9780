// Waiting for other routes: those in force are about to change, or a shard has said that they have.
#pragma once

#include "base/task.h"
#include "session/worker.h"

namespace interlock {

/// Waits until the worker's routes are another object than `seen`, which is compared and not looked
/// into; the catalog is asked at once. True when they are; false when the deadline has passed,
/// `gave_up` is set (it has no other waiter), or the router is stopping and `stop` says that this
/// matters. The caller looks which, and asks for the routes anew.
[[nodiscard]] Task<bool> wait_for_routes(Worker &worker, const Routes *seen, Millis deadline,
                                         Event *gave_up = nullptr, bool stop = true);

/// When a statement that begins to wait now gives up: routes.wait from now.
[[nodiscard]] Millis route_deadline(const Worker &worker);

/// A place in the worker's list of those that wait.
class RouteWaiter {
  public:
    explicit RouteWaiter(Worker &worker);
    ~RouteWaiter();
    RouteWaiter(const RouteWaiter &) = delete;
    RouteWaiter &operator=(const RouteWaiter &) = delete;

    Event woken;  ///< other routes are in force, or the router is stopping

  private:
    Worker &worker_;
};

}  // namespace interlock
