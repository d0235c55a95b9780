// keyset_rows(): the rows that cursors stand for, as keyset_page() would give them.
//
// Who has the cursors from an index reads the rows with it. A row whose place in the order, or
// whose scope, is another by now is not the one that the cursor stands for, and is left out.
#include "pg.h"

extern "C" {
#include "nodes/params.h"
#include "tcop/dest.h"
#include "utils/array.h"
}

#include "errors.h"
#include "keyset.h"
#include "keyset_plans.h"
#include "keyset_result.h"

namespace interlock {

namespace {

// Against mistakes: what a router may be told to fetch at most from a shard (scatter max_rows).
constexpr int most_cursors = 1000000;

// What the cursors say. Order column i of cursor k is value k + i * count.
struct Places {
    int count;
    Datum *cursors;
    Datum *values;
    bool *nulls;
};

// Takes the rows from the executor, in the order of their cursors.
struct RowWriter {
    DestReceiver receiver;  // first: the executor knows no more of it
    const Keyset *keyset;
    const Places *places;
    PageResult result;
    MemoryContext row_context;  // reset with every row
    StringInfoData sort_key;    // with a varlena header
};

// What is read as another type crashes the server, so this is looked at again.
void start(DestReceiver *self, int, TupleDesc description) {
    const Keyset &keyset = *reinterpret_cast<RowWriter *>(self)->keyset;
    if (description->natts != 2 || TupleDescAttr(description, 0)->atttypid != INT8OID ||
        TupleDescAttr(description, 1)->atttypid != keyset.row_type)
        elog(ERROR, "table of keyset \"%s\" has changed", keyset.declaration.name);
}

// The row's values equal the cursor's, so its cursor is this one, and its sort key is made of them.
bool take(TupleTableSlot *slot, DestReceiver *self) {
    RowWriter *writer = reinterpret_cast<RowWriter *>(self);
    const Keyset &keyset = *writer->keyset;
    const Places &places = *writer->places;
    slot_getallattrs(slot);
    const int place = static_cast<int>(DatumGetInt64(slot->tts_values[0])) - 1;
    Datum values[max_keyset_columns];
    bool nulls[max_keyset_columns];
    for (int i = 0; i < keyset.declaration.order_count; ++i) {
        const std::size_t at =
            static_cast<std::size_t>(i) * static_cast<std::size_t>(places.count) +
            static_cast<std::size_t>(place);
        values[i] = places.values[at];
        nulls[i] = places.nulls[at];
    }
    MemoryContext old = MemoryContextSwitchTo(writer->row_context);
    put_row(&writer->result, {slot->tts_values[1], places.cursors[place],
                              sort_key_of(keyset, values, nulls, &writer->sort_key)});
    MemoryContextSwitchTo(old);
    MemoryContextReset(writer->row_context);
    return true;
}

void nothing(DestReceiver *) {}

void open_writer(RowWriter *writer, const Keyset &keyset, const Places &places) {
    writer->receiver.receiveSlot = take;
    writer->receiver.rStartup = start;
    writer->receiver.rShutdown = nothing;
    writer->receiver.rDestroy = nothing;
    writer->receiver.mydest = DestTuplestore;
    writer->keyset = &keyset;
    writer->places = &places;
    writer->row_context =
        AllocSetContextCreate(CurrentMemoryContext, "interlock keyset row", ALLOCSET_DEFAULT_SIZES);
    open_sort_key(keyset, &writer->sort_key);
}

// Every one of them is checked before a row is read.
Places read_places(const Keyset &keyset, const Scope &scope, ArrayType *array) {
    Places places = {};
    bool *missing;
    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                        errmsg("cursors must be a one-dimensional array")));
    if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > most_cursors)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many cursors"),
                        errdetail("There may be %d of them at a time.", most_cursors)));
    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &places.cursors, &missing,
                      &places.count);
    const CursorBinding binding = binding_of(keyset, scope);
    const int order_count = keyset.declaration.order_count;
    const std::size_t room =
        static_cast<std::size_t>(places.count) * static_cast<std::size_t>(order_count) + 1;
    places.values =
        static_cast<Datum *>(MemoryContextAllocHuge(CurrentMemoryContext, room * sizeof(Datum)));
    places.nulls = static_cast<bool *>(MemoryContextAllocHuge(CurrentMemoryContext, room));
    for (int k = 0; k < places.count; ++k) {
        CHECK_FOR_INTERRUPTS();
        if (missing[k])
            ereport(ERROR,
                    (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("cursors must not be null")));
        Datum values[max_keyset_columns];
        bool nulls[max_keyset_columns];
        read_cursor(DatumGetTextPP(places.cursors[k]), binding, keyset.order_sort, order_count,
                    values, nulls);
        for (int i = 0; i < order_count; ++i) {
            const std::size_t at =
                static_cast<std::size_t>(i) * static_cast<std::size_t>(places.count) +
                static_cast<std::size_t>(k);
            places.values[at] = nulls[i] ? static_cast<Datum>(0) : values[i];
            places.nulls[at] = nulls[i];
        }
    }
    return places;
}

// The scope's values, and an array for each column of the order.
ParamListInfo parameters(const Keyset &keyset, const Scope &scope, const Places &places) {
    const int scope_count = keyset.declaration.scope_count;
    const int order_count = keyset.declaration.order_count;
    ParamListInfo list = makeParamList(scope_count + order_count);
    for (int i = 0; i < scope_count; ++i)
        list->params[i] = {scope.values[i], false, PARAM_FLAG_CONST, keyset.scope_sort[i].base};
    for (int i = 0; i < order_count; ++i) {
        const Oid type = keyset.order_sort[i].base;
        const std::size_t at = static_cast<std::size_t>(i) * static_cast<std::size_t>(places.count);
        std::int16_t length;
        bool by_value;
        char align;
        int size = places.count, lower = 1;
        get_typlenbyvalalign(type, &length, &by_value, &align);
        ArrayType *column = construct_md_array(places.values + at, places.nulls + at, 1, &size,
                                               &lower, type, length, by_value, align);
        list->params[scope_count + i] = {PointerGetDatum(column), false, PARAM_FLAG_CONST,
                                         get_array_type(type)};
    }
    return list;
}

void read_rows(Keyset *keyset, const Scope &scope, const Places &places, RowWriter *writer) {
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    SPIExecuteOptions options = {};
    options.params = parameters(*keyset, scope, places);
    options.read_only = true;
    options.dest = &writer->receiver;
    const int result = SPI_execute_plan_extended(plan_of_rows(keyset), &options);
    if (result < 0)
        elog(ERROR, "SPI_execute_plan_extended failed: %s", SPI_result_code_string(result));
    SPI_finish();
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// keyset_rows(keyset text, row_type anyelement, scope jsonb, after text, before text,
///             page_size integer, cursors text[])
/// returns table (item anyelement, cursor text, sort_key bytea, complete boolean,
///                missing_shards text[])
///
/// after, before and page_size say nothing: a router asks for rows with the text that it was asked
/// for a page with.
INTERLOCK_FUNCTION(interlock_keyset_rows) {
    ReturnSetInfo *set = require_set(fcinfo);
    Keyset *keyset = keyset_of_call(fcinfo);
    Scope scope;
    read_scope_argument(fcinfo, 2, *keyset, &scope);
    if (PG_ARGISNULL(6))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("cursors must not be null")));
    const Places places = read_places(*keyset, scope, PG_GETARG_ARRAYTYPE_P(6));
    RowWriter writer = {};
    open_result(set, *keyset, &writer.result);
    open_writer(&writer, *keyset, places);
    read_rows(keyset, scope, places, &writer);
    return static_cast<Datum>(0);
}
