// row_values(): the columns of a row as the outbox records them.
#include "pg.h"

extern "C" {
#include "utils/array.h"
#include "utils/typcache.h"
}

#include "row_json.h"

namespace interlock {

namespace {

// Of a call of row_values(): the row type and columns that it was prepared for.
struct RowValuesCache {
    MemoryContext context;
    TupleDesc description;
    struct varlena *columns;  ///< the array, or nullptr
    RowJson *row;
};

RowJson *prepared(FmgrInfo *function, TupleDesc description, struct varlena *columns) {
    RowValuesCache *cache = static_cast<RowValuesCache *>(function->fn_extra);
    if (cache == nullptr) {
        cache = static_cast<RowValuesCache *>(
            MemoryContextAllocZero(function->fn_mcxt, sizeof(RowValuesCache)));
        function->fn_extra = cache;
    }
    const bool same_columns =
        cache->row != nullptr && (cache->columns == nullptr) == (columns == nullptr) &&
        (columns == nullptr || (VARSIZE(columns) == VARSIZE(cache->columns) &&
                                std::memcmp(columns, cache->columns, VARSIZE(columns)) == 0));
    if (same_columns && equalTupleDescs(cache->description, description)) return cache->row;

    cache->row = nullptr;
    if (cache->context == nullptr)
        cache->context =
            AllocSetContextCreate(function->fn_mcxt, "interlock row_values", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(cache->context);
    MemoryContext old = MemoryContextSwitchTo(cache->context);
    cache->description = CreateTupleDescCopy(description);
    cache->columns = nullptr;
    const char *missing = nullptr;
    if (columns == nullptr) {
        cache->row = prepare_row_json(cache->description, nullptr, 0, &missing);
    } else {
        cache->columns = static_cast<struct varlena *>(palloc(VARSIZE(columns)));
        std::memcpy(cache->columns, columns, VARSIZE(columns));
        Datum *elements;
        bool *nulls;
        int count;
        deconstruct_array(reinterpret_cast<ArrayType *>(cache->columns), TEXTOID, -1, false,
                          TYPALIGN_INT, &elements, &nulls, &count);
        const char **names = static_cast<const char **>(
            palloc(sizeof(char *) * static_cast<std::size_t>(Max(count, 1))));
        for (int i = 0; i < count; ++i) {
            if (nulls[i])
                ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                                errmsg("column name must not be null")));
            names[i] = TextDatumGetCString(elements[i]);
        }
        cache->row = prepare_row_json(cache->description, names, count, &missing);
    }
    MemoryContextSwitchTo(old);
    if (cache->row == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("column \"%s\" does not exist in the row", missing)));
    return cache->row;
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// row_values(row anyelement, columns text[]) returns jsonb
INTERLOCK_FUNCTION(interlock_row_values) {
    if (!type_is_rowtype(getBaseType(get_fn_expr_argtype(fcinfo->flinfo, 0))))
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH), errmsg("argument is not a row")));
    if (PG_ARGISNULL(0)) PG_RETURN_NULL();
    HeapTupleHeader header = PG_GETARG_HEAPTUPLEHEADER(0);
    TupleDesc description =
        lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
    RowJson *row = prepared(
        fcinfo->flinfo, description,
        PG_ARGISNULL(1) ? nullptr : reinterpret_cast<struct varlena *>(PG_GETARG_ARRAYTYPE_P(1)));
    HeapTupleData tuple = {};
    tuple.t_len = HeapTupleHeaderGetDatumLength(header);
    ItemPointerSetInvalid(&tuple.t_self);
    tuple.t_data = header;
    const std::size_t columns = static_cast<std::size_t>(Max(description->natts, 1));
    Datum *values = static_cast<Datum *>(palloc(columns * sizeof(Datum)));
    bool *nulls = static_cast<bool *>(palloc(columns * sizeof(bool)));
    heap_deform_tuple(&tuple, description, values, nulls);
    ReleaseTupleDesc(description);
    PG_RETURN_JSONB_P(row_json(row, values, nulls));
}
