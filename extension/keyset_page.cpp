// keyset_page(): one page of a keyset, with a cursor and a sort key for each row.
//
// The page's ranges are read one after another, each from its own place in the index, under the one
// snapshot of the calling statement, until the page is full.
#include "pg.h"

extern "C" {
#include "access/detoast.h"
#include "nodes/params.h"
#include "tcop/dest.h"
#include "utils/datum.h"
#include "utils/typcache.h"
}

#include "errors.h"
#include "keyset.h"
#include "keyset_plans.h"
#include "keyset_result.h"

namespace interlock {

namespace {

// Takes the rows from the executor, in the order of the scan.
struct PageWriter {
    DestReceiver receiver;  // first: the executor knows no more of it
    const Keyset *keyset;
    CursorWriter cursors;
    PageResult result;
    TupleDesc row_type;          // of the table; while a range is read
    MemoryContext row_context;   // reset with every row
    MemoryContext page_context;  // lives as long as the page is made
    StringInfoData sort_key;     // with a varlena header
    PageRow *reversed;           // a page before a cursor: rows so far; nullptr otherwise
    int room;
    int count;
};

// The lock on the table keeps it as the keyset knows it. But what is read as another type crashes
// the server, so this is looked at again.
bool fits(const Keyset &keyset, TupleDesc row_type, TupleDesc description) {
    if (!keyset.plain_rows) {
        if (description->natts != keyset.declaration.order_count + 1 ||
            TupleDescAttr(description, 0)->atttypid != keyset.row_type)
            return false;
        for (int i = 0; i < keyset.declaration.order_count; ++i)
            if (TupleDescAttr(description, i + 1)->atttypid != keyset.order_sort[i].type)
                return false;
        return true;
    }
    if (description->natts != row_type->natts) return false;
    for (int i = 0; i < description->natts; ++i)
        if (TupleDescAttr(description, i)->atttypid != TupleDescAttr(row_type, i)->atttypid)
            return false;
    for (int i = 0; i < keyset.declaration.order_count; ++i) {
        const AttrNumber attribute = keyset.order[i].attribute;
        if (attribute > row_type->natts ||
            TupleDescAttr(row_type, attribute - 1)->atttypid != keyset.order_sort[i].type)
            return false;
    }
    return true;
}

void start(DestReceiver *self, int, TupleDesc description) {
    PageWriter *writer = reinterpret_cast<PageWriter *>(self);
    const Keyset &keyset = *writer->keyset;
    writer->row_type = lookup_rowtype_tupdesc(keyset.row_type, -1);
    if (!fits(keyset, writer->row_type, description))
        elog(ERROR, "table of keyset \"%s\" has changed", keyset.declaration.name);
}

void stop(DestReceiver *self) {
    ReleaseTupleDesc(reinterpret_cast<PageWriter *>(self)->row_type);
}

// The row as one value. Plain rows come from the scan as they are stored, and are copied.
Datum row_value(const PageWriter &writer, TupleTableSlot *slot) {
    if (!writer.keyset->plain_rows) return slot->tts_values[0];
    bool made;
    HeapTuple tuple = ExecFetchSlotHeapTuple(slot, false, &made);
    // A row from before a column was added does not have it.
    if (HeapTupleHeaderGetNatts(tuple->t_data) < writer.row_type->natts) {
        slot_getallattrs(slot);
        tuple = heap_form_tuple(writer.row_type, slot->tts_values, slot->tts_isnull);
    }
    return heap_copy_tuple_as_datum(tuple, writer.row_type);
}

// The values that the order compares, in memory of the row.
void read_order_values(const Keyset &keyset, TupleTableSlot *slot, Datum *values, bool *nulls) {
    for (int i = 0; i < keyset.declaration.order_count; ++i) {
        const int attribute = keyset.plain_rows ? keyset.order[i].attribute : i + 2;
        values[i] = slot_getattr(slot, attribute, &nulls[i]);
        // What is stored out of line or compressed is fetched once, for the cursor and the key.
        if (!nulls[i] && TupleDescAttr(slot->tts_tupleDescriptor, attribute - 1)->attlen == -1)
            values[i] = PointerGetDatum(PG_DETOAST_DATUM_PACKED(values[i]));
    }
}

bool take(TupleTableSlot *slot, DestReceiver *self) {
    PageWriter *writer = reinterpret_cast<PageWriter *>(self);
    const Keyset &keyset = *writer->keyset;
    const int count = keyset.declaration.order_count;
    MemoryContext old = MemoryContextSwitchTo(writer->row_context);
    Datum values[max_keyset_columns];
    bool nulls[max_keyset_columns];
    read_order_values(keyset, slot, values, nulls);
    PageRow row = {
        row_value(*writer, slot),
        PointerGetDatum(write_cursor(&writer->cursors, keyset.order_sort, count, values, nulls)),
        sort_key_of(keyset, values, nulls, &writer->sort_key)};
    if (writer->reversed == nullptr) {
        put_row(&writer->result, row);
    } else {
        MemoryContextSwitchTo(writer->page_context);
        if (writer->count == writer->room) {
            writer->room *= 2;
            writer->reversed = static_cast<PageRow *>(repalloc_huge(
                writer->reversed, sizeof(PageRow) * static_cast<std::size_t>(writer->room)));
        }
        row.item = datumCopy(row.item, false, -1);
        row.cursor = datumCopy(row.cursor, false, -1);
        if (keyset.mergeable) row.sort_key = datumCopy(row.sort_key, false, -1);
        writer->reversed[writer->count] = row;
    }
    ++writer->count;
    MemoryContextSwitchTo(old);
    MemoryContextReset(writer->row_context);
    return true;
}

void nothing(DestReceiver *) {}

void open_writer(PageWriter *writer, const Keyset &keyset, const Scope &scope, bool backward,
                 std::int32_t page_size) {
    writer->receiver.receiveSlot = take;
    writer->receiver.rStartup = start;
    writer->receiver.rShutdown = stop;
    writer->receiver.rDestroy = nothing;
    writer->receiver.mydest = DestTuplestore;
    writer->keyset = &keyset;
    writer->page_context = CurrentMemoryContext;
    writer->row_context =
        AllocSetContextCreate(CurrentMemoryContext, "interlock page row", ALLOCSET_DEFAULT_SIZES);
    open_cursor_writer(&writer->cursors, binding_of(keyset, scope));
    open_sort_key(keyset, &writer->sort_key);
    if (!backward) return;
    writer->room = Min(page_size, 64);
    writer->reversed =
        static_cast<PageRow *>(palloc(sizeof(PageRow) * static_cast<std::size_t>(writer->room)));
}

ParamListInfo parameters(const Keyset &keyset, const Scope &scope, const Place &place) {
    const int scope_count = keyset.declaration.scope_count;
    const int order_count = keyset.declaration.order_count;
    ParamListInfo list = makeParamList(scope_count + order_count);
    for (int i = 0; i < scope_count; ++i)
        list->params[i] = {scope.values[i], false, PARAM_FLAG_CONST, keyset.scope_sort[i].base};
    for (int i = 0; i < order_count; ++i)
        list->params[scope_count + i] = {place.values[i], place.nulls[i], PARAM_FLAG_CONST,
                                         keyset.order_sort[i].base};
    return list;
}

void read_page(Keyset *keyset, const Scope &scope, const Place &place, bool backward,
               std::int32_t page_size, PageWriter *writer) {
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    PlanSet *set = plans_for(keyset, backward, place.given, place.null_mask, page_size);
    SPIExecuteOptions options = {};
    options.params = parameters(*keyset, scope, place);
    options.read_only = true;
    options.dest = &writer->receiver;
    for (int i = 0; i < set->count && writer->count < page_size; ++i) {
        options.tcount = static_cast<uint64>(page_size - writer->count);
        const int result = SPI_execute_plan_extended(plan_of_range(keyset, set, i), &options);
        if (result < 0)
            elog(ERROR, "SPI_execute_plan_extended failed: %s", SPI_result_code_string(result));
    }
    SPI_finish();
}

std::int32_t page_size_of(FunctionCallInfo fcinfo, int argument, const KeysetDeclaration &keyset) {
    if (PG_ARGISNULL(argument)) return keyset.default_page;
    const std::int32_t size = PG_GETARG_INT32(argument);
    if (size < 1)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("page_size must be at least 1")));
    if (size > keyset.max_page)
        ereport(ERROR,
                (errcode(ERRCODE_INTERLOCK_PAGE_TOO_LARGE),
                 errmsg("page of %d rows is larger than keyset \"%s\" allows", size, keyset.name),
                 errdetail("Its largest page has %d rows.", keyset.max_page)));
    return size;
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// keyset_page(keyset text, row_type anyelement, scope jsonb, after text, before text,
///             page_size integer)
/// returns table (item anyelement, cursor text, sort_key bytea, complete boolean,
///                missing_shards text[])
INTERLOCK_FUNCTION(interlock_keyset_page) {
    ReturnSetInfo *set = require_set(fcinfo);
    Keyset *keyset = keyset_of_call(fcinfo);
    const std::int32_t page_size = page_size_of(fcinfo, 5, keyset->declaration);
    Scope scope;
    read_scope_argument(fcinfo, 2, *keyset, &scope);
    Place place;
    bool backward;
    read_place(*keyset, scope, PG_ARGISNULL(3) ? nullptr : PG_GETARG_TEXT_PP(3),
               PG_ARGISNULL(4) ? nullptr : PG_GETARG_TEXT_PP(4), &place, &backward);

    PageWriter writer = {};
    open_result(set, *keyset, &writer.result);
    open_writer(&writer, *keyset, scope, backward, page_size);
    read_page(keyset, scope, place, backward, page_size, &writer);
    if (backward)
        for (int i = writer.count - 1; i >= 0; --i)
            put_row(&writer.result, writer.reversed[i]);
    return static_cast<Datum>(0);
}
