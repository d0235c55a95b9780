// `interlock repair`: compares a global index with the rows on the shards, and mends it if told to.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Returns the exit status: 0 nothing is wrong (any more), 1 failed, 3 differences are left.
int run_repair(const std::vector<std::string> &args);

std::string repair_help();

}  // namespace interlock
