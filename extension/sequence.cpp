// Raising a sequence above values that came from elsewhere, while others take values from it.
//
// setval() would do if nobody else used the sequence: between reading where it stands and setting
// it, others may have gone past the new value, which would then be given out twice. No lock that an
// SQL function can take is in the way of nextval() without waiting for every open transaction that
// has called it. So this reads and writes the sequence's row as nextval() does: under the lock of
// its page.
#include "pg.h"

extern "C" {
#include "access/xloginsert.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "storage/bufmgr.h"
}

using namespace interlock;

namespace {

struct Steps {
    std::int64_t increment, min, max;
    bool cycles;
};

Steps steps_of(Oid relid) {
    HeapTuple tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(relid));
    if (!HeapTupleIsValid(tuple))
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a sequence", get_rel_name(relid))));
    const FormData_pg_sequence *form =
        reinterpret_cast<const FormData_pg_sequence *>(GETSTRUCT(tuple));
    const Steps steps = {form->seqincrement, form->seqmin, form->seqmax, form->seqcycle};
    ReleaseSysCache(tuple);
    return steps;
}

// Moves `state` so that the next value is beyond `beyond`; false when it is already, or when the
// sequence begins again at its end and so promises nothing.
bool advance(FormData_pg_sequence_data *state, const Steps &steps, std::int64_t beyond) {
    using Wide = __int128;
    const Wide upcoming = Wide(state->last_value) + (state->is_called ? steps.increment : 0);
    const Wide distance = steps.increment > 0 ? beyond - upcoming : upcoming - beyond;
    if (distance < 0 || steps.cycles) return false;
    const Wide step = steps.increment > 0 ? Wide(steps.increment) : -Wide(steps.increment);
    const Wide next = upcoming + (distance / step + 1) * steps.increment;
    const bool exhausted = next > steps.max || next < steps.min;
    // Exhausted: nextval() says so. Which of the last values is remembered makes no difference.
    state->last_value =
        exhausted ? (steps.increment > 0 ? steps.max : steps.min) : static_cast<std::int64_t>(next);
    state->is_called = exhausted;
    return true;
}

}  // namespace

/// raise_sequence(sequence regclass, beyond bigint) returns bigint: the value that comes next (the
/// last one, if there is none any more); null if nothing was to be done.
INTERLOCK_FUNCTION(interlock_raise_sequence) {
    const Oid relid = PG_GETARG_OID(0);
    const std::int64_t beyond = PG_GETARG_INT64(1);
    PreventCommandIfReadOnly("raise_sequence()");
    Relation sequence = relation_open(relid, RowExclusiveLock);
    if (sequence->rd_rel->relkind != RELKIND_SEQUENCE)
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a sequence", RelationGetRelationName(sequence))));
    const Steps steps = steps_of(relid);
    // As for setval(): the transaction's commit is then flushed, and with it this.
    if (RelationNeedsWAL(sequence)) GetTopTransactionId();

    Buffer buffer = ReadBuffer(sequence, 0);
    LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
    Page page = BufferGetPage(buffer);
    ItemId item = PageGetItemId(page, FirstOffsetNumber);
    HeapTupleHeader row = reinterpret_cast<HeapTupleHeader>(PageGetItem(page, item));
    FormData_pg_sequence_data *state =
        reinterpret_cast<FormData_pg_sequence_data *>(reinterpret_cast<char *>(row) + row->t_hoff);
    FormData_pg_sequence_data raised = *state;
    const bool changed = advance(&raised, steps, beyond);
    if (changed) {
        raised.log_cnt = 0;  // nothing of what follows is logged ahead
        begin_critical_section();
        *state = raised;
        MarkBufferDirty(buffer);
        if (RelationNeedsWAL(sequence)) {
            xl_seq_rec record;
            sequence_file(record) = relation_locator(sequence);
            XLogBeginInsert();
            XLogRegisterBuffer(0, buffer, REGBUF_WILL_INIT);
            XLogRegisterData(reinterpret_cast<char *>(&record), sizeof record);
            XLogRegisterData(reinterpret_cast<char *>(row), ItemIdGetLength(item));
            const XLogRecPtr position = XLogInsert(RM_SEQ_ID, XLOG_SEQ_LOG);
            PageSetLSN(page, position);
        }
        end_critical_section();
    }
    UnlockReleaseBuffer(buffer);
    relation_close(sequence, NoLock);
    if (!changed) PG_RETURN_NULL();
    PG_RETURN_INT64(raised.last_value);
}
