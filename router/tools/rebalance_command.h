// `interlock rebalance --plan`: which buckets to move so that the shards are even.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Runs the command with the arguments behind its name. Returns the exit status: 0 the plan is
/// printed, 1 it could not be made. Throws StartupError if the arguments are wrong.
int run_rebalance(const std::vector<std::string> &args);

/// The text of `interlock rebalance --help`.
std::string rebalance_help();

}  // namespace interlock
