// The route-version check: a session that works under routes older than the shard's floor may not
// use sharded tables (IL102), neither to read nor to write.
#pragma once

#include "ownership.h"

namespace interlock {

/// Raises IL102 if the session's routes are older than the floor; `relid` is for the message, and
/// may be InvalidOid.
void require_current_routes(const Ownership &ownership, Oid relid);

/// Installs the executor and utility hooks. Once per process.
void install_route_version_check();

}  // namespace interlock
