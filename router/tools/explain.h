// `interlock explain`: what the router would do with a statement, and why.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Exit status: 0 accepted, 1 refused. Throws StartupError for a wrong command line.
int run_explain(const std::vector<std::string> &args);
std::string explain_help();

}  // namespace interlock
