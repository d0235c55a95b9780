#include "pg.h"

extern "C" {
#include "access/heapam.h"
#include "commands/sequence.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/ruleutils.h"
#include "utils/xid8.h"
}

#include "outbox_capture.h"
#include "table_scan.h"

namespace interlock::outbox {

namespace {

// Columns of interlock.outbox_table; the order is that of sql/46-outbox.sql.
enum AttachedColumn { relid_column, attached_stream_column, columns_column, attached_key_column };

// By trigger, in the cache of the generation.
HTAB *captures = nullptr;
std::uint64_t captures_generation = 0;

struct Names {
    int count;
    const char **names;  ///< nullptr: all
};

// An entry of interlock.outbox_table.
struct Attached {
    Oid relid;  ///< InvalidOid: none
    Names columns, key;
};

Names names_of(Datum array) {
    Datum *elements;
    bool *nulls;
    Names result = {};
    deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &elements,
                      &nulls, &result.count);
    result.names = static_cast<const char **>(
        palloc(sizeof(char *) * static_cast<std::size_t>(Max(result.count, 1))));
    for (int i = 0; i < result.count; ++i)
        result.names[i] = TextDatumGetCString(elements[i]);
    return result;
}

// The entry of the table itself or of the nearest table that it descends from.
Attached find_attached(Oid relid, const char *stream) {
    ScanKeyData keys[2];
    Attached found = {};
    ScanKeyInit(&keys[0], relid_column + 1, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relid));
    ScanKeyEntryInitialize(&keys[1], 0, attached_stream_column + 1, BTEqualStrategyNumber,
                           InvalidOid, C_COLLATION_OID, F_TEXTEQ, CStringGetTextDatum(stream));
    const Oid table = tables().attached;
    Snapshot snapshot = RegisterSnapshot(GetCatalogSnapshot(table));
    scan_table(table, snapshot, 2, keys, [&](const Datum *values, const bool *nulls) {
        found.relid = relid;
        if (!nulls[columns_column]) found.columns = names_of(values[columns_column]);
        found.key = names_of(values[attached_key_column]);
    });
    UnregisterSnapshot(snapshot);
    watch(relid);
    if (OidIsValid(found.relid)) return found;

    List *parents = NIL;
    Relation inherits = table_open(InheritsRelationId, AccessShareLock);
    ScanKeyInit(&keys[0], Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relid));
    SysScanDesc scan =
        systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, nullptr, 1, keys);
    HeapTuple tuple;
    while (HeapTupleIsValid(tuple = systable_getnext(scan)))
        parents =
            lappend_oid(parents, reinterpret_cast<Form_pg_inherits>(GETSTRUCT(tuple))->inhparent);
    systable_endscan(scan);
    table_close(inherits, AccessShareLock);
    ListCell *cell;
    foreach (cell, parents) {
        found = find_attached(lfirst_oid(cell), stream);
        if (OidIsValid(found.relid)) break;
    }
    return found;
}

RowJson *prepare(Relation relation, const Names &names) {
    const char *missing = nullptr;
    RowJson *row = prepare_row_json(RelationGetDescr(relation), names.names, names.count, &missing);
    if (row == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("column \"%s\" of table \"%s\", which the outbox records, does not "
                               "exist",
                               missing, RelationGetRelationName(relation)),
                        errhint("Call interlock.outbox_attach() again with the columns' present "
                                "names.")));
    return row;
}

// The listed columns and those of the key.
Names both(const Names &columns, const Names &key) {
    if (columns.names == nullptr) return columns;
    Names result = {columns.count + key.count,
                    static_cast<const char **>(palloc(
                        sizeof(char *) * static_cast<std::size_t>(columns.count + key.count)))};
    for (int i = 0; i < columns.count; ++i)
        result.names[i] = columns.names[i];
    for (int i = 0; i < key.count; ++i)
        result.names[columns.count + i] = key.names[i];
    return result;
}

int last_of(const RowJson &row) {
    int last = 0;
    for (int i = 0; i < row.count; ++i)
        last = Max(last, row.numbers[i]);
    return last;
}

// An index that finds the rows of a key.
Oid find_unique(Relation relation, const RowJson &key) {
    Oid found = InvalidOid;
    List *indexes = RelationGetIndexList(relation);
    ListCell *cell;
    foreach (cell, indexes) {
        Relation index = index_open(lfirst_oid(cell), AccessShareLock);
        const FormData_pg_index *form = index->rd_index;
        bool fits = form->indisunique && form->indimmediate && form->indisvalid &&
                    index->rd_rel->relam == BTREE_AM_OID && RelationGetIndexPredicate(index) == NIL;
        for (int i = 0; fits && i < form->indnkeyatts; ++i) {
            const AttrNumber number = form->indkey.values[i];
            fits = false;
            for (int k = 0; number > 0 && !fits && k < key.count; ++k)
                fits = key.numbers[k] == number;
        }
        if (fits) found = RelationGetRelid(index);
        index_close(index, AccessShareLock);
        if (OidIsValid(found)) break;
    }
    list_free(indexes);
    return found;
}

// In CurrentMemoryContext.
void load(Capture *capture, const char *stream, Relation relation, Oid lineage) {
    const Attached attached = find_attached(lineage, stream);
    if (!OidIsValid(attached.relid))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("table \"%s\" is not attached to outbox stream \"%s\"",
                               get_rel_name(lineage), stream),
                        errhint("Triggers of the outbox are made by interlock.outbox_attach() "
                                "only.")));
    watch(RelationGetRelid(relation));
    capture->relid = RelationGetRelid(relation);
    capture->lineage = lineage;
    capture->stream = &require_stream(stream);
    capture->sequence = tables().sequence;
    capture->stream_name = CStringGetTextDatum(stream);
    capture->table_name = CStringGetTextDatum(quote_qualified_identifier(
        get_namespace_name(get_rel_namespace(attached.relid)), get_rel_name(attached.relid)));
    capture->ops[0] = CStringGetTextDatum("I");
    capture->ops[1] = CStringGetTextDatum("U");
    capture->ops[2] = CStringGetTextDatum("D");
    capture->key = prepare(relation, attached.key);
    capture->values = prepare(relation, both(attached.columns, attached.key));
    capture->columns_needed = last_of(*capture->values);
    capture->unique = find_unique(relation, *capture->key);
}

// Asks again what the bucket depends on, after the shard's state has changed.
void find_keyspace_of(Capture *capture, const Ownership &ownership) {
    const GuardedTable *guarded = guarding(ownership, capture->lineage);
    capture->keyspace = nullptr;
    if (guarded != nullptr) {
        capture->shard_key = get_attnum(capture->relid, guarded->key_column);
        if (capture->shard_key > 0) {
            capture->keyspace = require_keyspace(ownership, guarded->keyspace);
            capture->shard_key_type =
                require_key_type_of(get_atttype(capture->relid, capture->shard_key),
                                    capture->keyspace->family, capture->keyspace->name);
            capture->columns_needed = Max(capture->columns_needed, capture->shard_key);
        }
    }
    capture->ownership_generation = ownership.generation;
}

// The statement has the table's lock, so what this session has been told is new enough: a bucket
// changes hands only when no writer holds that lock.
inline void fit_ownership(Capture *capture) {
    const Ownership &ownership = known_ownership();
    if (unlikely(capture->ownership_generation != ownership.generation))
        find_keyspace_of(capture, ownership);
}

void start_cache() {
    HASHCTL control = {};
    control.keysize = sizeof(Oid);
    control.entrysize = sizeof(Capture);
    control.hcxt = cache_context();
    captures = hash_create("interlock outbox captures", 32, &control,
                           HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

}  // namespace

Capture *find_capture(const Trigger *trigger, Relation relation) {
    for (;;) {
        const std::uint64_t current = generation();
        if (unlikely(captures_generation != current)) {
            start_cache();
            captures_generation = current;
        }
        Capture *capture =
            static_cast<Capture *>(hash_search(captures, &trigger->tgoid, HASH_FIND, nullptr));
        if (likely(capture != nullptr)) {
            fit_ownership(capture);
            return capture;
        }
        // What fails, or is over already, leaves nothing in the cache.
        MemoryContext own = AllocSetContextCreate(CurrentMemoryContext, "interlock outbox capture",
                                                  ALLOCSET_SMALL_SIZES);
        MemoryContext old = MemoryContextSwitchTo(own);
        Capture fresh = {};
        fresh.trigger = trigger->tgoid;
        load(&fresh, trigger->tgargs[0], relation, RelationGetRelid(relation));
        fit_ownership(&fresh);
        MemoryContextSwitchTo(old);
        if (generation() != current) {
            MemoryContextDelete(own);
            continue;
        }
        MemoryContextSetParent(own, cache_context());
        *static_cast<Capture *>(hash_search(captures, &trigger->tgoid, HASH_ENTER, nullptr)) =
            fresh;
    }
}

Capture *make_capture(const char *stream, Relation relation, Oid lineage) {
    for (;;) {
        const std::uint64_t current = generation();
        Capture *capture = static_cast<Capture *>(palloc0(sizeof(Capture)));
        load(capture, stream, relation, lineage);
        fit_ownership(capture);
        if (generation() == current) return capture;
    }
}

Row row_of(const Capture &capture, TupleTableSlot *slot) {
    slot_getsomeattrs(slot, capture.columns_needed);
    return {slot->tts_values, slot->tts_isnull};
}

void record(Capture *capture, Op op, const Row *before, const Row *after) {
    const Row &row = after != nullptr ? *after : *before;
    Datum values[column_count];
    bool nulls[column_count] = {};
    values[stream_column] = capture->stream_name;
    // Before the seq: outbox_last() counts on it that whoever has drawn one has a transaction id.
    values[xid_column] = FullTransactionIdGetDatum(GetTopFullTransactionId());
    values[table_column] = capture->table_name;
    values[op_column] = capture->ops[static_cast<int>(op)];
    values[key_column] = JsonbPGetDatum(row_json(capture->key, row.values, row.nulls));
    nulls[old_column] = before == nullptr;
    if (before != nullptr)
        values[old_column] =
            JsonbPGetDatum(row_json(capture->values, before->values, before->nulls));
    nulls[new_column] = after == nullptr;
    if (after != nullptr)
        values[new_column] = JsonbPGetDatum(row_json(capture->values, after->values, after->nulls));
    // A null shard key is the guard's to refuse.
    nulls[bucket_column] = capture->keyspace == nullptr || row.nulls[capture->shard_key - 1];
    std::int32_t route_version = 0;
    if (!nulls[bucket_column]) {
        const Keyspace &keyspace = *capture->keyspace;
        const std::int32_t bucket = placement::bucket_of_hash(
            hash_of_key(row.values[capture->shard_key - 1], capture->shard_key_type),
            keyspace.buckets);
        values[bucket_column] = Int32GetDatum(bucket);
        if (keyspace.since != nullptr) route_version = keyspace.since[bucket];
    }
    values[route_version_column] = Int32GetDatum(route_version);
    values[at_column] = TimestampTzGetDatum(GetCurrentTimestamp());

    const std::int64_t seq = nextval_internal(capture->sequence, false);
    values[seq_column] = Int64GetDatum(seq);
    // The lock stays until the transaction ends: a segment is truncated only while nobody has it.
    Relation segment = open_segment(*capture->stream, segment_of(seq), RowExclusiveLock);
    HeapTuple tuple = heap_form_tuple(RelationGetDescr(segment), values, nulls);
    heap_insert(segment, tuple, GetCurrentCommandId(true), 0, nullptr);
    relation_close(segment, NoLock);
}

}  // namespace interlock::outbox
