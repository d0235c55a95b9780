#include "pg.h"

extern "C" {
#include "storage/procarray.h"
}

#include "outbox_scan.h"

namespace interlock::outbox {

namespace {

// Whether the record will never be seen again by a snapshot newer than what is committed now: its
// removal has been committed, or its insertion rolled back. The page must be locked.
bool is_gone(HeapTuple tuple, Buffer buffer) {
    // With this horizon nothing is old enough to tell apart; removed for good is all that counts.
    switch (HeapTupleSatisfiesVacuum(tuple, FirstNormalTransactionId, buffer)) {
    case HEAPTUPLE_DEAD:
    case HEAPTUPLE_RECENTLY_DEAD: return true;
    default: return false;
    }
}

}  // namespace

bool read_page(Relation segment, Snapshot snapshot, BlockNumber block, DeadPages *dead,
               ScannedPage *page) {
    page->buffer = ReadBuffer(segment, block);
    if (dead != nullptr && dead->lsns[block] != InvalidXLogRecPtr &&
        dead->lsns[block] == BufferGetLSNAtomic(page->buffer)) {
        ReleaseBuffer(page->buffer);
        return false;
    }
    heap_page_prune_opt(segment, page->buffer);
    LockBuffer(page->buffer, BUFFER_LOCK_SHARE);
    Page contents = BufferGetPage(page->buffer);
    const OffsetNumber last = PageGetMaxOffsetNumber(contents);
    HeapTupleData tuple;
    tuple.t_tableOid = RelationGetRelid(segment);
    bool all_gone = true;
    page->count = 0;
    for (OffsetNumber at = FirstOffsetNumber; at <= last; ++at) {
        ItemId item = PageGetItemId(contents, at);
        if (!ItemIdIsNormal(item)) continue;
        tuple.t_data = reinterpret_cast<HeapTupleHeader>(PageGetItem(contents, item));
        tuple.t_len = ItemIdGetLength(item);
        ItemPointerSet(&tuple.t_self, block, at);
        if (HeapTupleSatisfiesVisibility(&tuple, snapshot, page->buffer))
            page->places[page->count++] = at;
        else
            all_gone = all_gone && dead != nullptr && is_gone(&tuple, page->buffer);
    }
    if (dead != nullptr && page->count == 0 && all_gone) dead->lsns[block] = PageGetLSN(contents);
    LockBuffer(page->buffer, BUFFER_LOCK_UNLOCK);
    if (page->count > 0) return true;
    ReleaseBuffer(page->buffer);
    return false;
}

void prepare_dead_pages(Relation segment, BlockNumber blocks, DeadPages *dead) {
    const Oid stored = relation_file(segment);
    if (dead->stored != stored || blocks < dead->count) {
        dead->stored = stored;
        dead->count = 0;
    }
    if (blocks > dead->room) {
        const BlockNumber room = Max(blocks, dead->room * 2);
        const std::size_t size = sizeof(XLogRecPtr) * static_cast<std::size_t>(room);
        dead->lsns = static_cast<XLogRecPtr *>(dead->lsns == nullptr
                                                   ? MemoryContextAllocHuge(dead->context, size)
                                                   : repalloc_huge(dead->lsns, size));
        dead->room = room;
    }
    for (; dead->count < blocks; ++dead->count)
        dead->lsns[dead->count] = InvalidXLogRecPtr;
}

}  // namespace interlock::outbox
