// What is not taking: emptying segments, and what the outbox tells about itself.
#include "pg.h"

extern "C" {
#include "access/transam.h"
#include "utils/xid8.h"
}

#include "outbox_scan.h"

namespace interlock::outbox {

namespace {

bool shows_a_record(Relation segment, DeadPages *dead) {
    bool any = false;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    scan_segment(segment, snapshot, dead, [&](HeapTuple) {
        any = true;
        return false;
    });
    UnregisterSnapshot(snapshot);
    return any;
}

// Returns whether it emptied the segment.
bool empty_segment(Oid relid, DeadPages *dead) {
    if (!ConditionalLockRelationOid(relid, AccessShareLock)) return false;
    Relation segment = try_relation_open(relid, NoLock);
    const bool worth_it = segment != nullptr && RelationGetNumberOfBlocks(segment) > 0 &&
                          !shows_a_record(segment, dead);
    if (segment != nullptr) relation_close(segment, NoLock);
    UnlockRelationOid(relid, AccessShareLock);
    if (!worth_it || !ConditionalLockRelationOid(relid, AccessExclusiveLock)) return false;
    // Whoever wrote here, took from here or removed something has ended by now: they keep their
    // locks until then. So what the newest snapshot does not show nobody will ever need.
    segment = try_relation_open(relid, NoLock);
    const bool empty = segment != nullptr && !shows_a_record(segment, nullptr);
    if (segment != nullptr) relation_close(segment, NoLock);
    if (!empty) {
        UnlockRelationOid(relid, AccessExclusiveLock);
        return false;
    }
    execute_as_owner(psprintf("TRUNCATE ONLY %s", quote_qualified_identifier(
                                                      get_namespace_name(get_rel_namespace(relid)),
                                                      get_rel_name(relid))),
                     0, nullptr, nullptr);
    return true;
}

}  // namespace

}  // namespace interlock::outbox

using namespace interlock;
using namespace interlock::outbox;

/// outbox_rotate(stream text) returns integer: how many segments it emptied.
INTERLOCK_FUNCTION(interlock_outbox_rotate) {
    PreventCommandIfReadOnly("interlock.outbox_rotate()");
    const char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
    AcceptInvalidationMessages();
    require_stream(name);
    // Not the segment that is being written, nor the next ones: this transaction may last.
    constexpr int in_use = 3;
    const std::int64_t lap = lap_of(last_seq(tables()));
    std::int32_t emptied = 0;
    for (int i = in_use; i < segments; ++i) {
        CHECK_FOR_INTERRUPTS();
        const Stream &stream = require_stream(name);
        const int k = segment_of_lap(lap + i);
        if (OidIsValid(stream.relids[k]) && empty_segment(stream.relids[k], &stream.dead[k]))
            ++emptied;
    }
    PG_RETURN_INT32(emptied);
}

/// outbox_last(OUT last_seq bigint, OUT next_xid xid8, OUT oldest_xid xid8)
INTERLOCK_FUNCTION(interlock_outbox_last) {
    TupleDesc description;
    if (get_call_result_type(fcinfo, nullptr, &description) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    // In this order: whoever drew a seq up to last_seq had a transaction id below next_xid.
    const std::int64_t seq = last_seq(tables());
    const FullTransactionId next = ReadNextFullTransactionId();
    // Every transaction below has ended, in whatever database and prepared ones too.
    const TransactionId oldest = GetLatestSnapshot()->xmin;
    // It is at most the next id at this moment, and less than a wraparound behind.
    const FullTransactionId now = ReadNextFullTransactionId();
    std::uint32_t epoch = EpochFromFullTransactionId(now);
    if (oldest > XidFromFullTransactionId(now)) --epoch;
    Datum values[3] = {Int64GetDatum(seq), FullTransactionIdGetDatum(next),
                       FullTransactionIdGetDatum(FullTransactionIdFromEpochAndXid(epoch, oldest))};
    bool nulls[3] = {};
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(description), values, nulls)));
}

namespace {

// Whether a record of the stream with a seq up to `upto` is parked.
bool has_parked(const Tables &tables, const char *stream, std::int64_t upto) {
    bool found = false;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    Relation parked = relation_open(tables.parked, AccessShareLock);
    TupleDesc description = RelationGetDescr(parked);
    scan_segment(parked, snapshot, nullptr, [&](HeapTuple tuple) {
        if (seq_of(tuple) > upto) return true;
        bool null;
        const text *name =
            DatumGetTextPP(heap_getattr(tuple, stream_column + 1, description, &null));
        found = std::string_view(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)) == stream;
        return !found;
    });
    relation_close(parked, AccessShareLock);
    UnregisterSnapshot(snapshot);
    return found;
}

}  // namespace

/// outbox_drained(stream text, upto bigint) returns boolean: whether no record up to that seq is
/// left, parked ones included.
INTERLOCK_FUNCTION(interlock_outbox_drained) {
    const char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
    const std::int64_t upto = PG_GETARG_INT64(1);
    AcceptInvalidationMessages();
    const Stream &stream = require_stream(name);
    const Tables own = tables();
    // Segments first: what leaves them for the parked ones is found there, under the later
    // snapshot. The other way goes outbox_retry(), which is kept away.
    LockRelationOid(own.parked, RowShareLock);
    bool found = false;
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    for (int k = 0; k < segments && !found; ++k) {
        Relation segment = open_segment(stream, k, AccessShareLock);
        scan_segment(segment, snapshot, &stream.dead[k], [&](HeapTuple tuple) {
            found = seq_of(tuple) <= upto;
            return !found;
        });
        relation_close(segment, AccessShareLock);
    }
    UnregisterSnapshot(snapshot);
    found = found || has_parked(own, name, upto);
    UnlockRelationOid(own.parked, RowShareLock);
    PG_RETURN_BOOL(!found);
}

/// outbox_oldest(stream text) returns timestamptz: time of the oldest record, nearly: of each
/// segment only the first record is looked at, and records are written nearly in order.
INTERLOCK_FUNCTION(interlock_outbox_oldest) {
    AcceptInvalidationMessages();
    const Stream &stream = require_stream(text_to_cstring(PG_GETARG_TEXT_PP(0)));
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TimestampTz oldest = DT_NOEND;
    for (int k = 0; k < segments; ++k) {
        Relation segment = open_segment(stream, k, AccessShareLock);
        scan_segment(segment, snapshot, &stream.dead[k], [&](HeapTuple tuple) {
            bool null;
            const TimestampTz at = DatumGetTimestampTz(
                heap_getattr(tuple, at_column + 1, RelationGetDescr(segment), &null));
            oldest = Min(oldest, at);
            return false;
        });
        relation_close(segment, AccessShareLock);
    }
    UnregisterSnapshot(snapshot);
    if (oldest == DT_NOEND) PG_RETURN_NULL();
    PG_RETURN_TIMESTAMPTZ(oldest);
}
