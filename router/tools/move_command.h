// `interlock move`: buckets change their shard while they are read and written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace interlock {

/// Runs the command with the arguments behind its name. Returns the exit status: 0 done (or
/// planned), 1 refused or failed, 3 given up without harm. Throws StartupError if the arguments are
/// wrong.
int run_move_command(const std::vector<std::string> &args);

/// The text of `interlock move --help`.
std::string move_help();

/// "3", "0-5,9", "1,2,7-8": sorted, each once. Throws StartupError.
[[nodiscard]] std::vector<std::int32_t> parse_buckets(const std::string &text);

}  // namespace interlock
