// What is looked at before a move begins: everything that would stop it half way, or make it lose
// something, is told at once, each with the statement or the line that mends it.
#pragma once

#include <vector>

#include "tools/move_model.h"

namespace interlock {

/// Looks at both shards and at the catalog; changes nothing. Refusals come first. What cannot be
/// looked at is a refusal too. Throws ControlError only if a connection is lost.
[[nodiscard]] std::vector<MoveFinding> preflight(MoveSession &session, const MoveRequest &request);

/// The refusals alone, and only of what DDL can have changed since preflight(): for the moment from
/// which on DDL is refused. Throws as preflight().
[[nodiscard]] std::vector<MoveFinding> check_tables_again(MoveSession &session,
                                                          const MoveRequest &request);

/// Whether one of them stands in the way.
[[nodiscard]] bool has_refusal(const std::vector<MoveFinding> &findings);

}  // namespace interlock
