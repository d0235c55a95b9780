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

/// A page of a segment, pinned, with the places of the records that a snapshot shows.
struct ScannedPage {
    Buffer buffer;
    int count;
    OffsetNumber places[MaxHeapTuplesPerPage];
};

/// Reads one page. Pages on which every record has been removed, or rolled back, for good are
/// remembered in `dead` by their LSN, and not looked at again until it changes: what cannot be
/// truncated yet (somebody has a lock on the segment, as pg_dump does) costs little. Returns false,
/// with nothing pinned, when there is nothing.
bool read_page(Relation segment, Snapshot snapshot, BlockNumber block, DeadPages *dead,
               ScannedPage *page);

/// Makes `dead` fit the segment as it is stored now.
void prepare_dead_pages(Relation segment, BlockNumber blocks, DeadPages *dead);

/// Calls visit(tuple) for each record of an open segment that `snapshot` shows, in no useful order,
/// while it returns true. The tuple is good during the call. `dead` may be nullptr: look at
/// everything.
template <typename Visit>
void scan_segment(Relation segment, Snapshot snapshot, DeadPages *dead, Visit visit) {
    const BlockNumber blocks = RelationGetNumberOfBlocks(segment);
    if (dead != nullptr) prepare_dead_pages(segment, blocks, dead);
    ScannedPage page;
    for (BlockNumber block = 0; block < blocks; ++block) {
        CHECK_FOR_INTERRUPTS();
        if (!read_page(segment, snapshot, block, dead, &page)) continue;
        Page contents = BufferGetPage(page.buffer);
        HeapTupleData tuple;
        tuple.t_tableOid = RelationGetRelid(segment);
        bool go_on = true;
        for (int i = 0; go_on && i < page.count; ++i) {
            ItemId item = PageGetItemId(contents, page.places[i]);
            tuple.t_data = reinterpret_cast<HeapTupleHeader>(PageGetItem(contents, item));
            tuple.t_len = ItemIdGetLength(item);
            ItemPointerSet(&tuple.t_self, block, page.places[i]);
            go_on = visit(&tuple);
        }
        ReleaseBuffer(page.buffer);
        if (!go_on) return;
    }
}

}  // namespace interlock::outbox
