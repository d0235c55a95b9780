#include "pg.h"

extern "C" {
#include "access/heapam.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/tuplestore.h"
}

#include "outbox_held.h"

namespace interlock::outbox {

namespace {

HTAB *held = nullptr;
MemoryContext held_context = nullptr;
bool callbacks_registered = false;

void on_transaction(XactEvent event, void *) {
    switch (event) {
    case XACT_EVENT_COMMIT:
    case XACT_EVENT_ABORT:
    case XACT_EVENT_PREPARE:
        if (held_context != nullptr) MemoryContextDelete(held_context);
        held_context = nullptr;
        held = nullptr;
        break;
    default: break;
    }
}

void on_subtransaction(SubXactEvent event, SubTransactionId self, SubTransactionId parent, void *) {
    if (held == nullptr || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
        return;
    const bool committed = event == SUBXACT_EVENT_COMMIT_SUB;
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, held);
    while (Held *entry = static_cast<Held *>(hash_seq_search(&status))) {
        const SubTransactionId after = committed ? parent : InvalidSubTransactionId;
        if (entry->removed == self) entry->removed = after;
        if (entry->failed == self) entry->failed = after;
        if (entry->taken != self) continue;
        if (committed)
            entry->taken = parent;
        else
            hash_search(held, &entry->seq, HASH_REMOVE, nullptr);
    }
}

}  // namespace

Held *find_held(std::int64_t seq) {
    if (held == nullptr) return nullptr;
    return static_cast<Held *>(hash_search(held, &seq, HASH_FIND, nullptr));
}

void hold(std::int64_t seq, Oid relid, const ItemPointerData &place) {
    if (held == nullptr) {
        if (!callbacks_registered) {
            RegisterXactCallback(on_transaction, nullptr);
            RegisterSubXactCallback(on_subtransaction, nullptr);
            callbacks_registered = true;
        }
        if (held_context == nullptr)
            held_context = AllocSetContextCreate(TopMemoryContext, "interlock outbox held",
                                                 ALLOCSET_DEFAULT_SIZES);
        HASHCTL control = {};
        control.keysize = sizeof(std::int64_t);
        control.entrysize = sizeof(Held);
        control.hcxt = held_context;
        held = hash_create("interlock outbox held", 1024, &control,
                           HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    }
    Held *entry = static_cast<Held *>(hash_search(held, &seq, HASH_ENTER, nullptr));
    *entry = {seq,
              relid,
              place,
              GetCurrentSubTransactionId(),
              InvalidSubTransactionId,
              InvalidSubTransactionId};
}

Held *require_held(std::int64_t seq) {
    Held *entry = find_held(seq);
    if (entry == nullptr)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("this transaction has not taken outbox record " INT64_FORMAT, seq),
                        errdetail("Or it took it after a savepoint that has been rolled back."),
                        errhint("Only records that interlock.outbox_take() returned in the same "
                                "transaction can be removed, failed or parked.")));
    return entry;
}

namespace {

// The seqs of an argument, none of them null.
const Datum *seqs_argument(FunctionCallInfo fcinfo, int argument, int *count) {
    Datum *elements;
    bool *nulls;
    deconstruct_array(PG_GETARG_ARRAYTYPE_P(argument), INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
                      &elements, &nulls, count);
    for (int i = 0; i < *count; ++i)
        if (nulls[i])
            ereport(ERROR,
                    (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("seq must not be null")));
    return elements;
}

// Failures of records that are gone. There are none, mostly.
void forget_tries(Datum seqs) {
    Relation tries = relation_open(tables().tries, AccessShareLock);
    const bool any = RelationGetNumberOfBlocks(tries) > 0;
    relation_close(tries, AccessShareLock);
    Oid types[1] = {INT8ARRAYOID};
    if (any)
        execute_as_owner("DELETE FROM interlock.outbox_try t WHERE t.seq = ANY ($1)", 1, types,
                         &seqs);
}

}  // namespace

}  // namespace interlock::outbox

using namespace interlock;
using namespace interlock::outbox;

/// outbox_done(seqs bigint[]) returns integer: how many of them this call removed.
INTERLOCK_FUNCTION(interlock_outbox_done) {
    int count;
    const Datum *seqs = seqs_argument(fcinfo, 0, &count);
    std::int32_t removed = 0;
    for (int i = 0; i < count; ++i)
        require_held(DatumGetInt64(seqs[i]));
    Relation segment = nullptr;
    for (int i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        Held *entry = require_held(DatumGetInt64(seqs[i]));
        if (entry->removed != InvalidSubTransactionId) continue;
        if (segment == nullptr || RelationGetRelid(segment) != entry->relid) {
            if (segment != nullptr) relation_close(segment, NoLock);
            segment = relation_open(entry->relid, RowExclusiveLock);
        }
        simple_heap_delete(segment, &entry->place);
        entry->removed = GetCurrentSubTransactionId();
        ++removed;
    }
    if (segment != nullptr) relation_close(segment, NoLock);
    forget_tries(PG_GETARG_DATUM(0));
    PG_RETURN_INT32(removed);
}

/// outbox_held(seqs bigint[], failed boolean) returns setof outbox: the records, which this
/// transaction holds and has not removed; `failed`: holds back what comes after them of their keys.
INTERLOCK_FUNCTION(interlock_outbox_held) {
    int count;
    const Datum *seqs = seqs_argument(fcinfo, 0, &count);
    const bool failed = PG_GETARG_BOOL(1);
    ReturnSetInfo *result = return_rows(fcinfo);
    for (int i = 0; i < count; ++i) {
        Held *entry = require_held(DatumGetInt64(seqs[i]));
        if (entry->removed != InvalidSubTransactionId)
            ereport(ERROR,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("this transaction has removed outbox record " INT64_FORMAT " already",
                            entry->seq)));
        if (failed && entry->failed == InvalidSubTransactionId)
            entry->failed = GetCurrentSubTransactionId();
        Relation segment = relation_open(entry->relid, RowShareLock);
        TupleTableSlot *slot = table_slot_create(segment, nullptr);
        if (!table_tuple_fetch_row_version(segment, &entry->place, SnapshotAny, slot))
            elog(ERROR, "failed to fetch a locked outbox record");
        slot_getallattrs(slot);
        tuplestore_putvalues(result->setResult, result->setDesc, slot->tts_values,
                             slot->tts_isnull);
        ExecDropSingleTupleTableSlot(slot);
        relation_close(segment, NoLock);
    }
    return static_cast<Datum>(0);
}
