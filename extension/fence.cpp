// What a handoff needs of the server itself: waiting for transactions, and which keyspaces are on
// the move. The steps are in sql/62-fence.sql.
#include "pg.h"

extern "C" {
#include "pgstat.h"
#include "utils/array.h"
}

#include "ownership.h"

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
