// The keys that sign cursors: a per-session copy of table cursor_key, kept right by PostgreSQL's
// own invalidation messages (see ownership.h). Read whatever the caller's privileges are: who may
// page may have cursors, but nobody may see a key.
#pragma once

#include "cursor_format.h"
#include "pg.h"

namespace interlock {

struct CursorKey {
    unsigned char id;
    cursor_format::MacKey mac;
};

/// Valid keys, newest first: none, one, or two during a change.
struct CursorKeys {
    int count;
    CursorKey keys[2];
};

/// The state as of now. Good until the next call.
const CursorKeys &current_cursor_keys();

/// The valid key of that id, or nullptr.
const CursorKey *find_cursor_key(unsigned char id);

/// What stands for a key in unsigned cursors: their MAC is a checksum that anybody can compute.
const CursorKey *unsigned_cursor_key();

}  // namespace interlock
