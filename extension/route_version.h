// The route-version check: a session that works under routes older than the shard's floor may not
// use sharded tables (IL102), neither to read nor to write.
#pragma once

namespace interlock {

/// Installs the executor and utility hooks. Once per process.
void install_route_version_check();

}  // namespace interlock
