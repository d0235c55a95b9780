// What `interlock apply` reads and writes of cursors' keys and keysets in one database.
#pragma once

#include <string>
#include <vector>

#include "base/control.h"
#include "tools/apply_model.h"

namespace interlock {

/// Tells one running database from another.
std::string read_instance_name(ControlConnection &connection);

/// The keys that sign cursors; their secrets only if asked for.
std::vector<CursorKey> cursor_keys_of(ControlConnection &connection, bool with_secrets);

/// Makes the database's keys these, within the transaction in progress, and keeps the secrets out
/// of the server's log as far as the login may.
void put_cursor_keys(ControlConnection &connection, const std::vector<CursorKey> &keys);

/// The keysets that are to be walked over all shards.
std::vector<KeysetInfo> keysets_of(ControlConnection &connection);

}  // namespace interlock
