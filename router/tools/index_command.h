// `interlock index`: consumers of the shards' outboxes that keep global indexes, and what belongs
// to them: backfill, status, records set aside.
#pragma once

#include <string>
#include <vector>

namespace interlock {

/// Runs the command with the arguments behind its name. Returns the exit status: 0 done or ended as
/// told, 1 failed. Throws StartupError if the arguments are wrong.
int run_index(const std::vector<std::string> &args);

/// The text of `interlock index --help`.
std::string index_help();

}  // namespace interlock
