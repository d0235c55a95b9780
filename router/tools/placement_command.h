// `interlock placement`: prints the bucket of each key read, by the router's own computation.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Runs the command with the arguments behind its name. Exit status: 0 done, 1 a line is no key of
/// that type. Throws StartupError if the arguments are wrong.
int run_placement(const std::vector<std::string> &args);

/// The text of `interlock placement --help`.
std::string placement_help();

}  // namespace interlock
