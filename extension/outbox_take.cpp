// outbox_take(): the oldest records that nobody holds.
//
// What consumers may rely on: of the records of one key, nobody gets one while an earlier one is
// still there and not theirs. An earlier record of the key is committed and visible to whoever sees
// the later one (see outbox.h), so it is enough that a call looks at everything its snapshot shows
// below what it takes. A record that is visible but cannot be had (another consumer holds it, or
// has removed it since the snapshot) holds back the later ones of its key.
#include "pg.h"

extern "C" {
#include "access/heapam.h"
#include "storage/procarray.h"
#include "utils/hsearch.h"
#include "utils/jsonb.h"
#include "utils/tuplestore.h"
}

#include "outbox_held.h"
#include "outbox_scan.h"
#include "outbox_survey.h"
#include "ownership.h"

namespace interlock::outbox {

namespace {

constexpr std::int32_t most_records = 1000000;
constexpr int most_passes = 8;

// A record that might be taken, or has been.
struct Candidate {
    std::int64_t seq;
    int segment;
    ItemPointerData place;
};

// By hash of the key: the first record that cannot be had in this call. Another key of the same
// hash waits with it, which does no harm.
struct Blocked {
    std::uint32_t hash;
    std::int64_t seq;
};

struct Take {
    const Stream *stream;
    Tables tables;
    std::int64_t upto;  ///< drawn last before the snapshot was taken
    std::int32_t wanted, part, parts;
    Snapshot snapshot;
    HTAB *blocked;
    MemoryContext scratch;  ///< for one record
    Relation open[segments];
    bool used[segments];    ///< a record of the segment has been locked
    Candidate *candidates;  ///< a heap, the greatest seq first
    int candidate_count, room;
    Candidate *taken;
    int taken_count;
    // The holder asked about last: mostly one has many.
    TransactionId asked;
    bool asked_in_progress;
};

Relation segment_of_take(Take *take, int segment) {
    if (take->open[segment] == nullptr)
        take->open[segment] = open_segment(*take->stream, segment, RowShareLock);
    return take->open[segment];
}

std::uint32_t key_hash(Take *take, Relation segment, HeapTuple tuple) {
    MemoryContext old = MemoryContextSwitchTo(take->scratch);
    bool null;
    const Datum key = heap_getattr(tuple, key_column + 1, RelationGetDescr(segment), &null);
    const std::uint32_t hash = null ? 0 : DatumGetUInt32(DirectFunctionCall1(jsonb_hash, key));
    MemoryContextSwitchTo(old);
    MemoryContextReset(take->scratch);
    return hash;
}

void block(Take *take, std::uint32_t hash, std::int64_t seq) {
    bool found;
    Blocked *entry = static_cast<Blocked *>(hash_search(take->blocked, &hash, HASH_ENTER, &found));
    if (!found || seq < entry->seq) entry->seq = seq;
}

bool is_blocked(const Take &take, std::uint32_t hash, std::int64_t seq) {
    const Blocked *entry =
        static_cast<Blocked *>(hash_search(take.blocked, &hash, HASH_FIND, nullptr));
    return entry != nullptr && entry->seq <= seq;
}

// Whether another transaction seems to hold the record. Only saves trying to lock it, so it may be
// wrong either way for a moment.
bool seems_locked(Take *take, HeapTuple tuple) {
    const std::uint16_t mask = tuple->t_data->t_infomask;
    if ((mask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) != 0) return false;
    const TransactionId holder = HeapTupleHeaderGetRawXmax(tuple->t_data);
    if (!TransactionIdIsNormal(holder) || TransactionIdIsCurrentTransactionId(holder)) return false;
    if (holder != take->asked) {
        take->asked = holder;
        take->asked_in_progress = TransactionIdIsInProgress(holder);
    }
    return take->asked_in_progress;
}

// The heap of candidates keeps the lowest seqs.
void sift_down(Take *take) {
    Candidate *heap = take->candidates;
    int at = 0;
    for (;;) {
        int largest = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2; ++child)
            if (child < take->candidate_count && heap[child].seq > heap[largest].seq)
                largest = child;
        if (largest == at) return;
        const Candidate other = heap[at];
        heap[at] = heap[largest];
        heap[largest] = other;
        at = largest;
    }
}

void sift_up(Take *take) {
    Candidate *heap = take->candidates;
    int at = take->candidate_count - 1;
    while (at > 0 && heap[(at - 1) / 2].seq < heap[at].seq) {
        const Candidate other = heap[at];
        heap[at] = heap[(at - 1) / 2];
        heap[(at - 1) / 2] = other;
        at = (at - 1) / 2;
    }
}

std::int32_t lacking(const Take &take) {
    return take.wanted - take.taken_count;
}

// Others want the same records, the oldest: with none to spare, whoever comes second gets nothing.
bool is_full(const Take &take) {
    constexpr std::int32_t most_spare = 2000;
    const std::int32_t lack = lacking(take);
    return take.candidate_count >= lack + Min(lack, most_spare / 8) * 8;
}

void add_candidate(Take *take, std::int64_t seq, int segment, const ItemPointerData &place) {
    if (is_full(*take)) {
        if (seq > take->candidates[0].seq) return;
        take->candidates[0] = {seq, segment, place};
        sift_down(take);
        return;
    }
    if (take->candidate_count == take->room) {
        take->room = take->room == 0 ? 256 : take->room * 2;
        const std::size_t size = sizeof(Candidate) * static_cast<std::size_t>(take->room);
        take->candidates = static_cast<Candidate *>(
            take->candidates == nullptr ? palloc(size) : repalloc(take->candidates, size));
    }
    take->candidates[take->candidate_count++] = {seq, segment, place};
    sift_up(take);
}

// Looks at one record. Returns whether it is of this part and still there.
bool look_at(Take *take, Relation segment, int number, HeapTuple tuple) {
    const std::int64_t seq = seq_of(tuple);
    const bool any_blocked = hash_get_num_entries(take->blocked) > 0;
    std::uint32_t hash = 0;
    if (take->parts > 1 || any_blocked) {
        hash = key_hash(take, segment, tuple);
        if (take->parts > 1 && hash % static_cast<std::uint32_t>(take->parts) !=
                                   static_cast<std::uint32_t>(take->part))
            return false;
    }
    if (const Held *held = find_held(seq)) {
        if (held->failed != InvalidSubTransactionId)
            block(take, key_hash(take, segment, tuple), seq);
        return true;
    }
    if (seems_locked(take, tuple))
        block(take, key_hash(take, segment, tuple), seq);
    else if (!any_blocked || !is_blocked(*take, hash, seq))
        add_candidate(take, seq, number, tuple->t_self);
    return true;
}

// Everything the snapshot shows; also notes which laps there are.
void look_at_all(Take *take, Survey *survey) {
    start_survey(survey, take->upto);
    for (int k = 0; k < segments; ++k) {
        Relation segment = segment_of_take(take, k);
        std::int64_t last_lap = -1;
        scan_segment(segment, take->snapshot, &take->stream->dead[k], [&](HeapTuple tuple) {
            if (look_at(take, segment, k, tuple)) {
                const std::int64_t lap = lap_of(seq_of(tuple));
                if (lap != last_lap) add_lap(survey, lap);
                last_lap = lap;
            }
            return true;
        });
    }
}

// The laps of the last survey, the oldest first, until there are enough candidates.
void look_at_laps(Take *take, Survey *survey) {
    for (int i = 0; i < survey->count && take->candidate_count < lacking(*take);) {
        const std::int64_t lap = survey->laps[i];
        const int k = segment_of_lap(lap);
        Relation segment = segment_of_take(take, k);
        bool any = false;
        scan_segment(segment, take->snapshot, &take->stream->dead[k], [&](HeapTuple tuple) {
            const std::int64_t seq = seq_of(tuple);
            if (lap_of(seq) == lap && seq <= survey->upto)
                any = look_at(take, segment, k, tuple) || any;
            return true;
        });
        if (any)
            ++i;
        else
            remove_lap(survey, i);
    }
}

int by_seq(const void *a, const void *b) {
    const std::int64_t one = static_cast<const Candidate *>(a)->seq;
    const std::int64_t two = static_cast<const Candidate *>(b)->seq;
    return one < two ? -1 : one > two ? 1 : 0;
}

// Locks what can be had. Returns whether some candidates could not.
bool lock_candidates(Take *take) {
    bool lost = false;
    qsort(take->candidates, static_cast<std::size_t>(take->candidate_count), sizeof(Candidate),
          by_seq);
    for (int i = 0; i < take->candidate_count && lacking(*take) > 0; ++i) {
        CHECK_FOR_INTERRUPTS();
        const Candidate &candidate = take->candidates[i];
        Relation segment = take->open[candidate.segment];
        HeapTupleData tuple = {};
        tuple.t_self = candidate.place;
        Buffer buffer;
        if (hash_get_num_entries(take->blocked) > 0) {
            if (!heap_fetch(segment, SnapshotAny, &tuple, &buffer, false))
                elog(ERROR, "failed to fetch an outbox record");
            const std::uint32_t hash = key_hash(take, segment, &tuple);
            ReleaseBuffer(buffer);
            if (is_blocked(*take, hash, candidate.seq)) {
                lost = true;
                continue;
            }
        }
        tuple.t_self = candidate.place;
        TM_FailureData failure;
        const TM_Result result =
            heap_lock_tuple(segment, &tuple, GetCurrentCommandId(true), LockTupleExclusive,
                            LockWaitSkip, false, &buffer, &failure);
        if (result == TM_Ok) {
            hold(candidate.seq, RelationGetRelid(segment), candidate.place);
            take->used[candidate.segment] = true;
            take->taken[take->taken_count++] = candidate;
        } else if (result != TM_SelfModified) {
            block(take, key_hash(take, segment, &tuple), candidate.seq);
            lost = true;
        }
        ReleaseBuffer(buffer);
    }
    take->candidate_count = 0;
    return lost;
}

void start_blocked(Take *take) {
    if (take->blocked != nullptr) hash_destroy(take->blocked);
    HASHCTL control = {};
    control.keysize = sizeof(std::uint32_t);
    control.entrysize = sizeof(Blocked);
    control.hcxt = CurrentMemoryContext;
    take->blocked = hash_create("interlock outbox blocked", 64, &control,
                                HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

// What others have removed meanwhile is not looked at again. A record that the new snapshot shows
// and the old one did not was committed later, so no record of its key that the old one showed is
// newer. What held back a key is forgotten: if it is still there, the new snapshot shows it, and if
// it is gone, it holds back nothing. (Otherwise whoever is slower than the others ends up with
// every key held back by what has long been done.)
void look_again(Take *take) {
    UnregisterSnapshot(take->snapshot);
    take->upto = last_seq(take->tables);
    take->snapshot = RegisterSnapshot(GetLatestSnapshot());
    start_blocked(take);
}

// Looks and locks, again when others were quicker.
void take_records(Take *take, Survey *survey) {
    bool by_laps = survey->count > 0;
    for (int pass = 0; pass < most_passes && take->taken_count < take->wanted; ++pass) {
        if (by_laps)
            look_at_laps(take, survey);
        else
            look_at_all(take, survey);
        const bool lost = lock_candidates(take);
        if (!lost && !by_laps) return;
        if (!lost) by_laps = false;  // of what there was: look at what has come since
        look_again(take);
    }
}

// To find out whether records of the same key and an earlier seq are parked.
struct Parked {
    Relation table, index;
    Snapshot snapshot;
    TupleTableSlot *slot;
};

void open_parked(const Tables &tables, Parked *parked) {
    *parked = {};
    parked->table = relation_open(tables.parked, AccessShareLock);
    if (RelationGetNumberOfBlocks(parked->table) == 0) return;
    parked->index = index_open(tables.parked_by_key, AccessShareLock);
    parked->snapshot = RegisterSnapshot(GetLatestSnapshot());
    parked->slot = table_slot_create(parked->table, nullptr);
}

void close_parked(Parked *parked) {
    if (parked->index != nullptr) {
        ExecDropSingleTupleTableSlot(parked->slot);
        UnregisterSnapshot(parked->snapshot);
        index_close(parked->index, AccessShareLock);
    }
    relation_close(parked->table, AccessShareLock);
}

bool has_parked(const Parked &parked, const Datum *record) {
    if (parked.index == nullptr) return false;
    ScanKeyData key;
    ScanKeyInit(&key, 1, HTEqualStrategyNumber, F_JSONB_EQ, record[key_column]);
    IndexScanDesc scan = begin_index_scan(parked.table, parked.index, parked.snapshot, 1);
    index_rescan(scan, &key, 1, nullptr, 0);
    bool found = false;
    while (!found && index_getnext_slot(scan, ForwardScanDirection, parked.slot)) {
        slot_getallattrs(parked.slot);
        const Datum *values = parked.slot->tts_values;
        const auto equal_text = [&](int column) {
            return DatumGetBool(
                DirectFunctionCall2Coll(texteq, C_COLLATION_OID, values[column], record[column]));
        };
        found = DatumGetInt64(values[seq_column]) < DatumGetInt64(record[seq_column]) &&
                equal_text(stream_column) && equal_text(table_column) &&
                DatumGetBool(DirectFunctionCall2(jsonb_eq, values[key_column], record[key_column]));
    }
    index_endscan(scan);
    return found;
}

void return_records(Take *take, ReturnSetInfo *result) {
    // Columns of the result; stream is not among them.
    constexpr Column columns[] = {seq_column,           xid_column, table_column, op_column,
                                  key_column,           old_column, new_column,   bucket_column,
                                  route_version_column, at_column};
    constexpr int count = sizeof columns / sizeof columns[0];
    qsort(take->taken, static_cast<std::size_t>(take->taken_count), sizeof(Candidate), by_seq);
    Parked parked;
    open_parked(take->tables, &parked);
    for (int i = 0; i < take->taken_count; ++i) {
        const Candidate &candidate = take->taken[i];
        Relation segment = take->open[candidate.segment];
        HeapTupleData tuple = {};
        tuple.t_self = candidate.place;
        Buffer buffer;
        if (!heap_fetch(segment, SnapshotAny, &tuple, &buffer, false))
            elog(ERROR, "failed to fetch a locked outbox record");
        MemoryContext old = MemoryContextSwitchTo(take->scratch);
        Datum values[column_count], out[count + 1];
        bool nulls[column_count], out_nulls[count + 1] = {};
        heap_deform_tuple(&tuple, RelationGetDescr(segment), values, nulls);
        for (int c = 0; c < count; ++c) {
            out[c] = values[columns[c]];
            out_nulls[c] = nulls[columns[c]];
        }
        out[count] = BoolGetDatum(has_parked(parked, values));
        MemoryContextSwitchTo(old);
        tuplestore_putvalues(result->setResult, result->setDesc, out, out_nulls);
        MemoryContextReset(take->scratch);
        ReleaseBuffer(buffer);
    }
    close_parked(&parked);
}

std::int32_t integer_argument(FunctionCallInfo fcinfo, int argument, const char *name,
                              std::int32_t least, std::int32_t most) {
    const std::int32_t value = PG_GETARG_INT32(argument);
    if (value < least || value > most)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("%s must be between %d and %d, not %d", name, least, most, value)));
    return value;
}

}  // namespace

}  // namespace interlock::outbox

using namespace interlock;
using namespace interlock::outbox;

/// outbox_take(max_records integer, stream text, part integer, parts integer) returns setof record.
/// Strict.
INTERLOCK_FUNCTION(interlock_outbox_take) {
    Take take = {};
    take.wanted = integer_argument(fcinfo, 0, "max_records", 0, most_records);
    const char *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
    take.parts = integer_argument(fcinfo, 3, "parts", 1, 65536);
    take.part = integer_argument(fcinfo, 2, "part", 0, take.parts - 1);
    if (XactIsoLevel != XACT_READ_COMMITTED && XactIsoLevel != XACT_READ_UNCOMMITTED)
        ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
                        errmsg("outbox records can be taken in a READ COMMITTED transaction only"),
                        errdetail("An older snapshot does not show what has been committed "
                                  "since.")));
    PreventCommandIfReadOnly("interlock.outbox_take()");
    PreventCommandIfParallelMode("interlock.outbox_take()");
    const Ownership &ownership = current_ownership();
    if (ownership.restored) refuse_restored_copy(ownership);
    ReturnSetInfo *result = return_rows(fcinfo);

    // outbox_retry(), which puts old records back, is kept away while this looks; having got the
    // lock, this session has been told of those that are over.
    const Oid parked = tables().parked;
    LockRelationOid(parked, RowShareLock);
    Survey *survey = find_survey(name, take.part, take.parts);
    take.stream = survey->stream;
    take.tables = tables();
    take.upto = last_seq(take.tables);
    take.snapshot = RegisterSnapshot(GetLatestSnapshot());
    take.scratch = AllocSetContextCreate(CurrentMemoryContext, "interlock outbox record",
                                         ALLOCSET_DEFAULT_SIZES);
    start_blocked(&take);
    take.taken = static_cast<Candidate *>(MemoryContextAllocHuge(
        CurrentMemoryContext, sizeof(Candidate) * static_cast<std::size_t>(take.wanted + 1)));

    take_records(&take, survey);
    return_records(&take, result);
    // A record must not leave the database before its change is durable here: with asynchronous
    // commit a crash could forget both, and the seq would be drawn a second time.
    if (take.taken_count > 0) XLogFlush(XactLastRecEnd);

    for (int k = 0; k < segments; ++k)
        if (take.open[k] != nullptr)
            relation_close(take.open[k], take.used[k] ? NoLock : RowShareLock);
    UnregisterSnapshot(take.snapshot);
    UnlockRelationOid(parked, RowShareLock);
    return static_cast<Datum>(0);
}
