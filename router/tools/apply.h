// `interlock apply`: makes the shards match what the catalog declares.
//
// Everything is checked on every shard before anything is changed; all reasons to refuse are told
// at once. The steps are idempotent and derived from the state the shards are really in, so a run
// that was killed at any point is finished by another. The shards are made ready first and the
// catalog publishes last: no router ever sees a map that the shards do not know.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Runs the command with the arguments behind its name. Returns the exit status: 0 done (or
/// planned, or nothing to do), 1 refused or failed. Throws StartupError if the arguments are wrong.
int run_apply(const std::vector<std::string> &args);

/// The text of `interlock apply --help`.
std::string apply_help();

}  // namespace interlock
