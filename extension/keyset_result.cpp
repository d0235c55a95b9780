#include "pg.h"

extern "C" {
#include "utils/array.h"
#include "utils/tuplestore.h"
}

#include "errors.h"
#include "keyset_result.h"

namespace interlock {

namespace {

enum Column { item, cursor, sort_key, complete, missing_shards, column_count };

}  // namespace

ReturnSetInfo *require_set(FunctionCallInfo fcinfo) {
    ReturnSetInfo *set = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (set == nullptr || !IsA(set, ReturnSetInfo) || (set->allowedModes & SFRM_Materialize) == 0)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("a page is a set of rows, which cannot be returned here")));
    return set;
}

Keyset *keyset_of_call(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(0))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("keyset must not be null")));
    Keyset *keyset = use_keyset(PG_GETARG_TEXT_PP(0));
    require_row_type(*keyset, get_fn_expr_argtype(fcinfo->flinfo, 1));
    return keyset;
}

void read_scope_argument(FunctionCallInfo fcinfo, int argument, const Keyset &keyset,
                         Scope *scope) {
    read_scope(keyset,
               PG_ARGISNULL(argument)
                   ? nullptr
                   : reinterpret_cast<struct varlena *>(PG_GETARG_POINTER(argument)),
               scope);
}

// Materialize mode, without the look-ups of get_call_result_type(): the keyset knows the row.
void open_result(ReturnSetInfo *set, const Keyset &keyset, PageResult *result) {
    MemoryContext old = MemoryContextSwitchTo(set->econtext->ecxt_per_query_memory);
    result->description = CreateTupleDescCopy(keyset.page_description);
    result->store =
        tuplestore_begin_heap((set->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
    MemoryContextSwitchTo(old);
    result->no_shards = PointerGetDatum(construct_empty_array(TEXTOID));
    set->returnMode = SFRM_Materialize;
    set->setResult = result->store;
    set->setDesc = result->description;
}

void put_row(PageResult *result, const PageRow &row) {
    Datum values[column_count];
    bool nulls[column_count] = {};
    values[item] = row.item;
    values[cursor] = row.cursor;
    values[sort_key] = row.sort_key;
    nulls[sort_key] = row.sort_key == static_cast<Datum>(0);
    values[complete] = BoolGetDatum(true);
    values[missing_shards] = result->no_shards;
    tuplestore_putvalues(result->store, result->description, values, nulls);
}

void open_sort_key(const Keyset &keyset, StringInfo key) {
    initStringInfo(key);
    enlargeStringInfo(key, VARHDRSZ + digest_size);
    std::memcpy(key->data + VARHDRSZ, keyset.digest, digest_size);
}

Datum sort_key_of(const Keyset &keyset, const Datum *values, const bool *nulls, StringInfo key) {
    if (!keyset.mergeable) return static_cast<Datum>(0);
    key->len = VARHDRSZ + digest_size;
    for (int i = 0; i < keyset.declaration.order_count; ++i)
        append_sort_key(keyset.order_sort[i], values[i], nulls[i], key);
    SET_VARSIZE(key->data, key->len);
    return PointerGetDatum(key->data);
}

}  // namespace interlock
