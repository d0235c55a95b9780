// How long a statement waits for routes, and what for.
#pragma once

#include "session/route_wait.h"

namespace interlock {

/// How long one statement has waited because of routes, however often it was sent again.
struct RoutePatience {
    Millis until = 0;    ///< 0: it has not waited yet
    Millis delay = 0;    ///< before a fence is asked again
    bool spent = false;  ///< it was sent again after that time, which happens once

    /// It waits from now on. True the first time.
    bool begin(const Worker &worker);
    [[nodiscard]] bool over(const Worker &worker) const;

    /// A shard has refused the statement, which has done nothing, and it is given up there. Waits
    /// until there is reason to send it again: other routes than `seen`; or, behind a fence, some
    /// time, for it may have been taken away, and none if it was opened (`opened`), however long it
    /// has waited. False: there is none, and it is to be told. `gave_up` and `stop` as for
    /// wait_for_routes().
    [[nodiscard]] Task<bool> await(Worker &worker, const Routes *seen, RouteRefusal kind,
                                   const BackendError &error, bool opened, bool stop,
                                   Event *gave_up = nullptr);
};

}  // namespace interlock
