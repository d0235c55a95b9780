// Waiting for other routes: those in force are about to change, or a shard has said that they have.
#pragma once

#include "base/task.h"
#include "session/relay.h"
#include "session/worker.h"
#include "sql/refusal.h"

#include <cstdint>
#include <string_view>

namespace interlock {

/// Waits until the worker's routes are another object than `seen`, which is compared and not looked
/// into; the catalog is asked at once. True when they are; false when the deadline has passed,
/// `gave_up` is set (it has no other waiter), or the router is stopping and `stop` says that this
/// matters. The caller looks which, and asks for the routes anew.
[[nodiscard]] Task<bool> wait_for_routes(Worker &worker, const Routes *seen, Millis deadline,
                                         Event *gave_up = nullptr, bool stop = true);

/// The same, but no longer than it takes to look at the catalog once: for a refusal that says
/// nothing of newer routes. False at once where the catalog cannot be reached.
[[nodiscard]] Task<bool> look_for_routes(Worker &worker, const Routes *seen, Millis deadline,
                                         Event *gave_up = nullptr);

/// What a shard says of the routes that a statement came with. In all of these it has done nothing
/// that its transaction's end does not undo.
enum class RouteRefusal : std::uint8_t {
    none,       ///< another error
    not_owned,  ///< IL101: the bucket is not the shard's
    stale,      ///< IL102: the shard has given a bucket away since the session's route version
    fenced,     ///< IL103: the bucket is being handed over
};
[[nodiscard]] RouteRefusal route_refusal_of(std::string_view sqlstate);

/// Of IL101: the shard says that the bucket has moved, so that newer routes are to be expected.
[[nodiscard]] bool says_moved(const BackendError &error);
/// Of IL103: the fence's time has passed, and anybody may open it (interlock.expire_fences()).
[[nodiscard]] bool says_expired(const BackendError &error);

/// Such a refusal as the client is told of it when nothing can be sent again: the transaction is
/// to be run again (40001, as for a failed serialization). IL101, which that need not help, stays
/// what it is.
[[nodiscard]] Refusal told_route_refusal(RouteRefusal kind, const BackendError &error);

/// To a client that has closed its end, as far as it can still be told.
[[nodiscard]] Refusal client_left();

/// When a statement that begins to wait now gives up: routes.wait from now.
[[nodiscard]] Millis route_deadline(const Worker &worker);
/// Until when statements are held back for what `routes` announce: routes.wait from when this
/// router learned of it. Nobody takes the announcement of a mover that has died back; were each
/// statement to wait for that in its turn, the bucket would be slow until somebody looks after it.
[[nodiscard]] Millis hold_deadline(const Worker &worker, const Routes &routes);

/// A place in the worker's list of those that wait.
class RouteWaiter {
  public:
    explicit RouteWaiter(Worker &worker);
    ~RouteWaiter();
    RouteWaiter(const RouteWaiter &) = delete;
    RouteWaiter &operator=(const RouteWaiter &) = delete;

    Event woken;  ///< other routes, or none found at a look; or the router is stopping

  private:
    Worker &worker_;
};

}  // namespace interlock
