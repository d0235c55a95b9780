// `interlock lint`: judges every statement of a file.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Exit status: 0 all accepted, 1 some refused. Throws StartupError for a wrong command line.
int run_lint(const std::vector<std::string> &args);
std::string lint_help();

}  // namespace interlock
