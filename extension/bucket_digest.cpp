// bucket_digests(): the same numbers for the same rows, whatever their order, and whatever the
// order of the table's columns.
#include "pg.h"

extern "C" {
#include "access/tableam.h"
}

#include "guard.h"
#include "outbox.h"
#include "ownership.h"

namespace interlock {

namespace {

struct DigestColumn {
    AttrNumber number;
    const char *name;
    Oid base;    ///< type below domains
    bool bytes;  ///< the value's own bytes are compared, else its text
    std::int16_t length;
    bool by_value;
    FmgrInfo output;
};

// Sum of the rows' hashes: of equal rows each counts, which an exclusive or would not see.
struct Sum {
    std::int64_t rows;
    std::uint64_t low, high;
};

// Types whose stored bytes are the same for the same value on every server. Others may hold object
// ids of this database (enums, composites, arrays of them), and are compared by their text.
bool same_bytes_everywhere(Oid type) {
    switch (type) {
    case BOOLOID:
    case INT2OID:
    case INT4OID:
    case INT8OID:
    case TEXTOID:
    case VARCHAROID:
    case BPCHAROID:
    case BYTEAOID:
    case UUIDOID:
    case DATEOID:
    case TIMEOID:
    case TIMESTAMPOID:
    case TIMESTAMPTZOID:
    case NUMERICOID: return true;
    default: return false;
    }
}

int by_name(const void *a, const void *b) {
    return std::strcmp(static_cast<const DigestColumn *>(a)->name,
                       static_cast<const DigestColumn *>(b)->name);
}

DigestColumn *columns_by_name(TupleDesc description, int *count) {
    DigestColumn *columns = static_cast<DigestColumn *>(
        palloc0(sizeof(DigestColumn) * static_cast<std::size_t>(description->natts + 1)));
    *count = 0;
    for (int i = 0; i < description->natts; ++i) {
        const FormData_pg_attribute *attribute = TupleDescAttr(description, i);
        if (attribute->attisdropped) continue;
        DigestColumn *column = &columns[(*count)++];
        column->number = attribute->attnum;
        column->name = NameStr(attribute->attname);
        column->base = getBaseType(attribute->atttypid);
        column->bytes = same_bytes_everywhere(column->base);
        column->length = attribute->attlen;
        column->by_value = attribute->attbyval;
        if (!column->bytes) {
            Oid output;
            bool varlena;
            getTypeOutputInfo(attribute->atttypid, &output, &varlena);
            fmgr_info(output, &column->output);
        }
    }
    qsort(columns, static_cast<std::size_t>(*count), sizeof(DigestColumn), by_name);
    return columns;
}

void append_sized(StringInfo out, const void *bytes, std::size_t length) {
    const std::uint32_t size = static_cast<std::uint32_t>(length);
    appendBinaryStringInfo(out, reinterpret_cast<const char *>(&size), sizeof(size));
    appendBinaryStringInfo(out, static_cast<const char *>(bytes), static_cast<int>(length));
}

void append_value(StringInfo out, DigestColumn *column, Datum value) {
    if (!column->bytes) {
        const char *text = OutputFunctionCall(&column->output, value);
        append_sized(out, text, std::strlen(text));
    } else if (column->by_value) {
        append_sized(out, &value, sizeof(value));
    } else if (column->length > 0) {
        append_sized(out, DatumGetPointer(value), static_cast<std::size_t>(column->length));
    } else {
        const varlena *plain = PG_DETOAST_DATUM_PACKED(value);
        append_sized(out, VARDATA_ANY(plain), VARSIZE_ANY_EXHDR(plain));
    }
}

// Adds the rows of one table, partitions not included.
void add_rows(Relation relation, const GuardedTable &guarded, const Keyspace &keyspace,
              const std::int32_t *place, Sum *sums) {
    int count;
    DigestColumn *columns = columns_by_name(RelationGetDescr(relation), &count);
    StringInfoData row;
    initStringInfo(&row);
    for (int i = 0; i < count; ++i)
        append_sized(&row, columns[i].name, std::strlen(columns[i].name));
    const std::uint64_t seed = XXH3_64bits(row.data, static_cast<std::size_t>(row.len));

    const AttrNumber key_number = get_attnum(RelationGetRelid(relation), guarded.key_column);
    if (key_number == InvalidAttrNumber)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("shard key column \"%s\" does not exist", guarded.key_column)));
    const KeyType type =
        require_key_type_of(TupleDescAttr(RelationGetDescr(relation), key_number - 1)->atttypid,
                            keyspace.family, keyspace.name);
    MemoryContext scratch =
        AllocSetContextCreate(CurrentMemoryContext, "interlock digest", ALLOCSET_DEFAULT_SIZES);
    TupleTableSlot *slot = table_slot_create(relation, nullptr);
    TableScanDesc scan = table_beginscan(relation, GetActiveSnapshot(), 0, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        bool null;
        const Datum key = slot_getattr(slot, key_number, &null);
        if (null) continue;
        MemoryContext old = MemoryContextSwitchTo(scratch);
        const std::int32_t at =
            place[placement::bucket_of_hash(hash_of_key(key, type), keyspace.buckets)];
        if (at >= 0) {
            resetStringInfo(&row);
            slot_getallattrs(slot);
            for (int i = 0; i < count; ++i) {
                const int index = columns[i].number - 1;
                appendStringInfoChar(&row, slot->tts_isnull[index] ? 0 : 1);
                if (!slot->tts_isnull[index])
                    append_value(&row, &columns[i], slot->tts_values[index]);
            }
            const XXH128_hash_t hash =
                XXH3_128bits_withSeed(row.data, static_cast<std::size_t>(row.len), seed);
            sums[at].rows += 1;
            sums[at].low += hash.low64;
            sums[at].high += hash.high64;
        }
        MemoryContextSwitchTo(old);
        MemoryContextReset(scratch);
    }
    table_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
    MemoryContextDelete(scratch);
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// bucket_digests(keyspace text, buckets integer[], relation regclass)
/// returns table (bucket integer, rows bigint, digest text); the buckets have been checked, and are
/// in no more than one of its places.
INTERLOCK_FUNCTION(interlock_bucket_digests) {
    const Ownership &ownership = current_ownership();
    const Keyspace found = *require_keyspace(ownership, text_to_cstring(PG_GETARG_TEXT_PP(0)));
    Keyspace keyspace = found;
    keyspace.name = pstrdup(found.name);
    const Oid relid = PG_GETARG_OID(2);
    const GuardedTable *guarding_table = guarding(ownership, relid);
    if (guarding_table == nullptr || std::strcmp(guarding_table->keyspace, keyspace.name) != 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("table \"%s\" does not belong to keyspace \"%s\"",
                               get_rel_name(relid), keyspace.name),
                        errhint("Give it to interlock.shard_table() first.")));
    GuardedTable guarded = *guarding_table;
    guarded.key_column = pstrdup(guarded.key_column);

    Datum *buckets;
    bool *nulls;
    int count;
    deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT4OID, 4, true, TYPALIGN_INT, &buckets, &nulls,
                      &count);
    std::int32_t *place = static_cast<std::int32_t *>(
        palloc(sizeof(std::int32_t) * static_cast<std::size_t>(keyspace.buckets)));
    for (std::int32_t i = 0; i < keyspace.buckets; ++i)
        place[i] = -1;
    for (int i = 0; i < count; ++i) {
        const std::int32_t bucket = nulls[i] ? -1 : DatumGetInt32(buckets[i]);
        if (bucket < 0 || bucket >= keyspace.buckets)
            ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("no such bucket")));
        place[bucket] = i;
    }
    Sum *sums = static_cast<Sum *>(palloc0(sizeof(Sum) * static_cast<std::size_t>(count + 1)));

    // Its children are locked below; without a lock VACUUM may cut off its end meanwhile.
    table_close(table_open(relid, AccessShareLock), NoLock);
    ListCell *cell;
    foreach (cell, find_all_inheritors(relid, AccessShareLock, nullptr)) {
        Relation relation = table_open(lfirst_oid(cell), NoLock);
        if (relation->rd_rel->relkind == RELKIND_RELATION)
            add_rows(relation, guarded, keyspace, place, sums);
        table_close(relation, NoLock);
    }
    ReturnSetInfo *result = outbox::return_rows(fcinfo);
    for (int i = 0; i < count; ++i) {
        if (place[DatumGetInt32(buckets[i])] != i) continue;
        const Sum &sum = sums[i];
        Datum values[3] = {buckets[i], Int64GetDatum(sum.rows),
                           CStringGetTextDatum(psprintf("%016llx%016llx",
                                                        static_cast<unsigned long long>(sum.high),
                                                        static_cast<unsigned long long>(sum.low)))};
        bool row_nulls[3] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, row_nulls);
    }
    return static_cast<Datum>(0);
}
