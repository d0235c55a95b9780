// The records that this transaction has taken and therefore holds locked.
//
// A lock that was taken in a subtransaction is gone when that is rolled back, and so is a removal:
// the list follows both. It ends with the transaction.
#pragma once

#include "outbox.h"

namespace interlock::outbox {

struct Held {
    std::int64_t seq;
    Oid relid;
    ItemPointerData place;
    SubTransactionId taken;    ///< in which subtransaction
    SubTransactionId removed;  ///< the same; InvalidSubTransactionId: not removed
    SubTransactionId failed;   ///< the same
};

/// The entry, or nullptr.
Held *find_held(std::int64_t seq);

/// Adds a record that has just been locked.
void hold(std::int64_t seq, Oid relid, const ItemPointerData &place);

/// The entry; raises 55000 when this transaction has not taken it, or holds it no more.
Held *require_held(std::int64_t seq);

}  // namespace interlock::outbox
