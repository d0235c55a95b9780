// What a handoff needs of the server itself: waiting for transactions, which keyspaces are on the
// move, and what SQL is not told of the dropping of an index. The steps are in sql/62-fence.sql,
// DDL meanwhile in sql/81-move-ddl.sql.
#include "pg.h"

extern "C" {
#include "pgstat.h"
#include "utils/array.h"
}

#include "ownership.h"
#include "table_scan.h"

using namespace interlock;

namespace {

// "backend/number", as pg_locks.virtualtransaction has it.
VirtualTransactionId parse_virtual_transaction(Datum value) {
    const char *name = TextDatumGetCString(value);
    int backend;
    unsigned number;
    if (std::sscanf(name, "%d/%u", &backend, &number) != 2)
        ereport(ERROR, (errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
                        errmsg("invalid virtual transaction id: \"%s\"", name)));
    VirtualTransactionId vxid;
    backend_of(vxid) = backend;
    vxid.localTransactionId = number;
    return vxid;
}

bool may_drop(Oid index) {
    return pg_class_ownercheck(index, GetUserId()) ||
           pg_namespace_ownercheck(get_rel_namespace(index), GetUserId());
}

}  // namespace

/// wait_for_transactions(transactions text[], timeout_ms integer) returns text[]: those that have
/// not ended when the time is up. Prepared ones count as running. Looks every few milliseconds: it
/// must neither take a lock nor be caught in a deadlock.
INTERLOCK_FUNCTION(interlock_wait_for_transactions) {
    ArrayType *array = PG_GETARG_ARRAYTYPE_P(0);
    const std::int32_t timeout = PG_GETARG_INT32(1);
    const TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout);
    Datum *names;
    bool *nulls;
    int count;
    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls, &count);
    VirtualTransactionId *vxids = static_cast<VirtualTransactionId *>(
        palloc(sizeof(VirtualTransactionId) * static_cast<std::size_t>(count + 1)));
    int left = 0;
    for (int i = 0; i < count; ++i) {
        if (nulls[i]) continue;
        names[left] = names[i];
        vxids[left++] = parse_virtual_transaction(names[i]);
    }
    for (long nap = 1;; nap = Min(nap * 2, 5)) {
        int kept = 0;
        for (int i = 0; i < left; ++i) {
            if (VirtualXactLock(vxids[i], false)) continue;
            names[kept] = names[i];
            vxids[kept++] = vxids[i];
        }
        left = kept;
        if (left == 0 || GetCurrentTimestamp() >= end) break;
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, nap, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
    PG_RETURN_ARRAYTYPE_P(construct_array(names, left, TEXTOID, -1, false, TYPALIGN_INT));
}

/// on_the_move() returns text[]: keyspaces of which buckets are on their way from or to this shard,
/// whatever the snapshot.
INTERLOCK_FUNCTION(interlock_on_the_move) {
    const Ownership &ownership = current_ownership();
    Datum *names = static_cast<Datum *>(
        palloc(sizeof(Datum) * static_cast<std::size_t>(ownership.keyspace_count + 1)));
    int count = 0;
    for (int i = 0; i < ownership.keyspace_count; ++i)
        if (ownership.keyspaces[i].moving > 0)
            names[count++] = CStringGetTextDatum(ownership.keyspaces[i].name);
    PG_RETURN_ARRAYTYPE_P(construct_array(names, count, TEXTOID, -1, false, TYPALIGN_INT));
}

/// table_of_dropped_index(index oid) returns oid: null if there was no such index.
INTERLOCK_FUNCTION(interlock_table_of_dropped_index) {
    const Oid index = PG_GETARG_OID(0);
    Oid table = InvalidOid;
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_index_indexrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(index));
    // The command's own snapshot does not show the row any more; it is there all the same.
    scan_table(IndexRelationId, SnapshotAny, 1, &key, [&](const Datum *values, const bool *) {
        table = DatumGetObjectId(values[Anum_pg_index_indrelid - 1]);
    });
    if (!OidIsValid(table)) PG_RETURN_NULL();
    PG_RETURN_OID(table);
}

/// on_move_drop_index() returns event_trigger: before DROP INDEX.
INTERLOCK_FUNCTION(interlock_on_move_drop_index) {
    if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("not called by event trigger manager")));
    const Node *statement = reinterpret_cast<EventTriggerData *>(fcinfo->context)->parsetree;
    if (!IsA(statement, DropStmt)) PG_RETURN_NULL();
    const DropStmt *drop = reinterpret_cast<const DropStmt *>(statement);
    ListCell *cell;
    foreach (cell, drop->objects) {
        const RangeVar *name = makeRangeVarFromNameList(static_cast<List *>(lfirst(cell)));
        const Oid index = RangeVarGetRelid(name, NoLock, true);
        const Oid table = OidIsValid(index) ? IndexGetRelation(index, true) : InvalidOid;
        if (!OidIsValid(table) || !is_guarded(current_ownership(), table)) continue;
        // A move that is just beginning holds this lock, or waits for it: then the drop has ended.
        // (Who may not drop the index is not let have it, and is refused later.)
        if (drop->concurrent && may_drop(index)) LockRelationOid(table, ShareUpdateExclusiveLock);
        const Ownership &ownership = current_ownership();
        const GuardedTable *guarded = guarding(ownership, table);
        const Keyspace *keyspace =
            guarded == nullptr ? nullptr : find_keyspace(ownership, guarded->keyspace);
        if (keyspace == nullptr || keyspace->moving == 0) continue;
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_IN_USE),
                 errmsg("cannot drop index \"%s\" while buckets of keyspace \"%s\" are on the move",
                        get_rel_name(index), keyspace->name),
                 errdetail("It is an index of table \"%s\".", get_rel_name(table)),
                 errhint("Retry when the moves have ended; interlock.handoffs shows them.")));
    }
    PG_RETURN_NULL();
}
