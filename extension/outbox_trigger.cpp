// The triggers of attached tables, and recording all rows of a table at once.
#include "pg.h"

extern "C" {
#include "access/heapam.h"
}

#include "outbox_capture.h"

namespace interlock::outbox {

namespace {

// Whether a version of a row that this transaction wrote was changed again by this transaction:
// AFTER triggers run at the end of a statement, and what they or functions in it did is recorded
// by then.
bool is_superseded(const HeapTupleData *tuple) {
    const HeapTupleHeader header = tuple->t_data;
    if ((header->t_infomask & HEAP_XMAX_INVALID) != 0 ||
        HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask))
        return false;
    return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header));
}

// The newest version of a row, in `slot`; false when the row has been deleted, or moved to another
// partition.
bool fetch_newest(Relation relation, HeapTuple tuple, TupleTableSlot *slot) {
    while (is_superseded(tuple)) {
        ItemPointerData next = tuple->t_data->t_ctid;
        if (HeapTupleHeaderIndicatesMovedPartitions(tuple->t_data) ||
            ItemPointerEquals(&next, &tuple->t_self))
            return false;
        if (!table_tuple_fetch_row_version(relation, &next, SnapshotAny, slot))
            elog(ERROR, "failed to fetch a later version of a row");
        bool copied;
        tuple = ExecFetchSlotHeapTuple(slot, false, &copied);
    }
    return true;
}

// Whether a row with this key is there now, as this command and those inside it have left things.
bool key_is_there(Capture *capture, Relation relation, const Row &row) {
    Relation index = index_open(capture->unique, AccessShareLock);
    const FormData_pg_index *form = index->rd_index;
    ScanKeyData keys[INDEX_MAX_KEYS];
    for (int i = 0; i < form->indnkeyatts; ++i) {
        const int column = form->indkey.values[i] - 1;
        // Somebody may have taken NOT NULL away since the table was attached.
        if (row.nulls[column]) {
            ScanKeyEntryInitialize(&keys[i], SK_ISNULL | SK_SEARCHNULL,
                                   static_cast<AttrNumber>(i + 1), InvalidStrategy, InvalidOid,
                                   InvalidOid, InvalidOid, static_cast<Datum>(0));
            continue;
        }
        const Oid equal = get_opfamily_member(index->rd_opfamily[i], index->rd_opcintype[i],
                                              index->rd_opcintype[i], BTEqualStrategyNumber);
        if (!OidIsValid(equal))
            elog(ERROR, "no equality operator for index \"%s\"", RelationGetRelationName(index));
        ScanKeyEntryInitialize(&keys[i], 0, static_cast<AttrNumber>(i + 1), BTEqualStrategyNumber,
                               InvalidOid, index->rd_indcollation[i], get_opcode(equal),
                               row.values[column]);
    }
    TupleTableSlot *slot = table_slot_create(relation, nullptr);
    IndexScanDesc scan = begin_index_scan(relation, index, SnapshotSelf, form->indnkeyatts);
    index_rescan(scan, keys, form->indnkeyatts, nullptr, 0);
    Jsonb *key = row_json(capture->key, row.values, row.nulls);
    bool found = false;
    while (!found && index_getnext_slot(scan, ForwardScanDirection, slot)) {
        const Row other = row_of(*capture, slot);
        Jsonb *other_key = row_json(capture->key, other.values, other.nulls);
        found = compareJsonbContainers(&key->root, &other_key->root) == 0;
    }
    index_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
    index_close(index, AccessShareLock);
    return found;
}

// A row has gone, or its key. Unless commands ran in between (of functions in the statement, or of
// other triggers) that have made the key again: that is recorded, with a smaller seq than this
// record would get.
void record_gone(Capture *capture, const TriggerData *data, const Row &row) {
    const bool ran_in_between =
        HeapTupleHeaderGetCmax(data->tg_trigtuple->t_data) < GetCurrentCommandId(false);
    if (unlikely(ran_in_between) && OidIsValid(capture->unique) &&
        key_is_there(capture, data->tg_relation, row))
        return;
    record(capture, Op::remove, &row, nullptr);
}

void record_update(Capture *capture, const TriggerData *data, const Row &before, const Row &after) {
    if (same_values(capture->values, before.values, before.nulls, after.values, after.nulls))
        return;
    if (likely(same_values(capture->key, before.values, before.nulls, after.values, after.nulls))) {
        record(capture, Op::update, &before, &after);
    } else {
        record_gone(capture, data, before);
        record(capture, Op::insert, nullptr, &after);
    }
}

// The row's `written` version is not its newest. What made it another is recorded already, with
// smaller seqs than this record gets, so this record must not say anything that is over.
void record_superseded(Capture *capture, const TriggerData *data, HeapTuple written_tuple,
                       const Row *before, const Row &written) {
    const auto same_key = [&](const Row &one, const Row &two) {
        return same_values(capture->key, one.values, one.nulls, two.values, two.nulls);
    };
    TupleTableSlot *slot = table_slot_create(data->tg_relation, nullptr);
    const bool there = fetch_newest(data->tg_relation, written_tuple, slot);
    Row newest = {};
    if (there) newest = row_of(*capture, slot);
    const bool still = there && same_key(newest, written);
    if (before == nullptr) {
        if (still) record(capture, Op::insert, nullptr, &newest);
    } else if (same_key(*before, written)) {
        if (still) record_update(capture, data, *before, newest);
    } else {
        // The key was changed. Unless it is back, the old one is gone.
        if (!there || !same_key(newest, *before)) record_gone(capture, data, *before);
        if (still) record(capture, Op::insert, nullptr, &newest);
    }
    ExecDropSingleTupleTableSlot(slot);
}

void refuse_use(const char *message) {
    ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), errmsg("%s", message)));
}

const TriggerData *trigger_data(FunctionCallInfo fcinfo) {
    if (!CALLED_AS_TRIGGER(fcinfo)) refuse_use("not called by trigger manager");
    const TriggerData *data = reinterpret_cast<const TriggerData *>(fcinfo->context);
    if (data->tg_trigger->tgnargs != 1) refuse_use("trigger needs one argument: the stream");
    return data;
}

// One record for each row of a table: all of them have gone, or come, at once. The caller's lock
// keeps writers away, so the newest snapshot shows every row, whatever that of the transaction
// shows.
template <typename Find>
std::int64_t record_rows(Relation relation, Op op, Find find) {
    std::int64_t count = 0;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TupleTableSlot *slot = table_slot_create(relation, nullptr);
    TableScanDesc scan = table_beginscan(relation, snapshot, 0, nullptr);
    MemoryContext each =
        AllocSetContextCreate(CurrentMemoryContext, "interlock outbox row", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(each);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        Capture *capture = find();
        const Row row = row_of(*capture, slot);
        record(capture, op, op == Op::remove ? &row : nullptr, op == Op::insert ? &row : nullptr);
        MemoryContextReset(each);
        ++count;
    }
    MemoryContextSwitchTo(old);
    MemoryContextDelete(each);
    table_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
    UnregisterSnapshot(snapshot);
    return count;
}

}  // namespace

}  // namespace interlock::outbox

using namespace interlock;
using namespace interlock::outbox;

/// outbox_capture() returns trigger: after each row of INSERT, UPDATE and DELETE.
INTERLOCK_FUNCTION(interlock_outbox_capture) {
    const TriggerData *data = trigger_data(fcinfo);
    if (!TRIGGER_FIRED_AFTER(data->tg_event)) refuse_use("must be fired after the event");
    if (!TRIGGER_FIRED_FOR_ROW(data->tg_event)) refuse_use("must be fired for each row");
    Capture *capture = find_capture(data->tg_trigger, data->tg_relation);
    const Row row = row_of(*capture, data->tg_trigslot);
    if (TRIGGER_FIRED_BY_INSERT(data->tg_event)) {
        if (unlikely(is_superseded(data->tg_trigtuple)))
            record_superseded(capture, data, data->tg_trigtuple, nullptr, row);
        else
            record(capture, Op::insert, nullptr, &row);
    } else if (TRIGGER_FIRED_BY_UPDATE(data->tg_event)) {
        const Row after = row_of(*capture, data->tg_newslot);
        if (unlikely(is_superseded(data->tg_newtuple)))
            record_superseded(capture, data, data->tg_newtuple, &row, after);
        else
            record_update(capture, data, row, after);
    } else {
        record_gone(capture, data, row);
    }
    PG_RETURN_POINTER(nullptr);
}

/// outbox_truncate() returns trigger: before TRUNCATE, a record for each row.
INTERLOCK_FUNCTION(interlock_outbox_truncate) {
    const TriggerData *data = trigger_data(fcinfo);
    if (!TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) || !TRIGGER_FIRED_BEFORE(data->tg_event))
        refuse_use("must be fired before truncate");
    // Each partition has a trigger of its own.
    if (data->tg_relation->rd_rel->relkind == RELKIND_RELATION)
        record_rows(data->tg_relation, Op::remove,
                    [data] { return find_capture(data->tg_trigger, data->tg_relation); });
    PG_RETURN_POINTER(nullptr);
}

/// outbox_record_rows(relation regclass, lineage regclass, stream text, come boolean) returns
/// bigint: an I for each row of a table, or a D, as of a descendant of `lineage`.
INTERLOCK_FUNCTION(interlock_outbox_record_rows) {
    const Oid lineage = PG_GETARG_OID(1);
    const char *stream = text_to_cstring(PG_GETARG_TEXT_PP(2));
    const Op op = PG_GETARG_BOOL(3) ? Op::insert : Op::remove;
    Relation relation = table_open(PG_GETARG_OID(0), ShareRowExclusiveLock);
    if (relation->rd_rel->relkind != RELKIND_RELATION)
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a table with rows of its own",
                               RelationGetRelationName(relation))));
    Capture *capture = nullptr;
    std::uint64_t made = 0;
    MemoryContext context = CurrentMemoryContext;
    const std::int64_t count = record_rows(relation, op, [&] {
        if (capture == nullptr || made != generation()) {
            MemoryContext each = MemoryContextSwitchTo(context);
            capture = make_capture(stream, relation, lineage);
            made = generation();
            MemoryContextSwitchTo(each);
        }
        return capture;
    });
    table_close(relation, NoLock);
    PG_RETURN_INT64(count);
}
