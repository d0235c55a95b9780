// Reading segments.
#pragma once

#include "outbox.h"

extern "C" {
#include "access/heapam.h"
#include "storage/bufmgr.h"
}

namespace interlock::outbox {

/// The seq of a record as it lies in a segment: the first column, of fixed width and never null.
inline std::int64_t seq_of(HeapTuple tuple) {
    std::int64_t seq;
    std::memcpy(&seq, reinterpret_cast<const char *>(tuple->t_data) + tuple->t_data->t_hoff,
                sizeof seq);
    return seq;
}

/// Calls visit(tuple) for each record of an open segment that `snapshot` shows, in no useful order,
/// while it returns true. The tuple is good during the call.
template <typename Visit>
void scan_segment(Relation segment, Snapshot snapshot, Visit visit) {
    if (RelationGetNumberOfBlocks(segment) == 0) return;
    TableScanDesc scan = table_beginscan_strat(segment, snapshot, 0, nullptr, true, false);
    HeapTuple tuple;
    while ((tuple = heap_getnext(scan, ForwardScanDirection)) != nullptr) {
        if (!visit(tuple)) break;
        CHECK_FOR_INTERRUPTS();
    }
    table_endscan(scan);
}

}  // namespace interlock::outbox
