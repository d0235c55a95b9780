#include "pg.h"

extern "C" {
#include "catalog/indexing.h"
#include "catalog/pg_enum.h"
#include "utils/syscache.h"
}

#include "enum_order.h"

namespace interlock {

namespace {

struct Label {
    Oid value;
    NameData name;
};

struct EnumOrder {
    Oid type;
    int count;
    Label *labels;         ///< in order
    std::uint32_t *ranks;  ///< of labels sorted by value
    Oid *values;           ///< sorted
    EnumOrder *next;
};

MemoryContext orders_context = nullptr;
EnumOrder *orders = nullptr;
bool callback_registered = false;
bool stale = false;

// May run anywhere, so what is in use must not go away here.
void enum_changed(Datum, int, uint32) {
    stale = true;
}

int compare_values(const void *left, const void *right, void *order) {
    const EnumOrder *self = static_cast<const EnumOrder *>(order);
    const Oid a = self->labels[*static_cast<const std::uint32_t *>(left)].value;
    const Oid b = self->labels[*static_cast<const std::uint32_t *>(right)].value;
    return a < b ? -1 : a > b ? 1 : 0;
}

EnumOrder *read_order(Oid type) {
    MemoryContext context = orders_context;
    EnumOrder *order = static_cast<EnumOrder *>(MemoryContextAllocZero(context, sizeof(EnumOrder)));
    order->type = type;
    Relation relation = table_open(EnumRelationId, AccessShareLock);
    Relation index = index_open(EnumTypIdSortOrderIndexId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_enum_enumtypid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(type));
    SysScanDesc scan = systable_beginscan_ordered(relation, index, nullptr, 1, &key);
    int room = 16;
    order->labels = static_cast<Label *>(
        MemoryContextAlloc(context, sizeof(Label) * static_cast<std::size_t>(room)));
    HeapTuple tuple;
    while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection))) {
        const FormData_pg_enum *form = reinterpret_cast<Form_pg_enum>(GETSTRUCT(tuple));
        if (order->count == room) {
            room *= 2;
            order->labels = static_cast<Label *>(
                repalloc(order->labels, sizeof(Label) * static_cast<std::size_t>(room)));
        }
        order->labels[order->count++] = {form->oid, form->enumlabel};
    }
    systable_endscan_ordered(scan);
    index_close(index, AccessShareLock);
    table_close(relation, AccessShareLock);

    const std::size_t count = static_cast<std::size_t>(order->count);
    order->ranks = static_cast<std::uint32_t *>(
        MemoryContextAlloc(context, sizeof(std::uint32_t) * (count + 1)));
    order->values = static_cast<Oid *>(MemoryContextAlloc(context, sizeof(Oid) * (count + 1)));
    for (std::uint32_t i = 0; i < count; ++i)
        order->ranks[i] = i;
    qsort_arg(order->ranks, count, sizeof(std::uint32_t), compare_values, order);
    for (std::size_t i = 0; i < count; ++i)
        order->values[i] = order->labels[order->ranks[i]].value;
    return order;
}

const EnumOrder *order_of(Oid type) {
    if (!callback_registered) {
        CacheRegisterSyscacheCallback(ENUMOID, enum_changed, static_cast<Datum>(0));
        callback_registered = true;
    }
    if (orders_context == nullptr)
        orders_context =
            AllocSetContextCreate(TopMemoryContext, "interlock enum orders", ALLOCSET_SMALL_SIZES);
    if (stale) {
        MemoryContextReset(orders_context);
        orders = nullptr;
        stale = false;
    }
    for (const EnumOrder *order = orders; order != nullptr; order = order->next)
        if (order->type == type) return order;
    // A message taken while this reads makes the copy stale at its next use.
    EnumOrder *order = read_order(type);
    order->next = orders;
    orders = order;
    return order;
}

}  // namespace

namespace {

/// Position in `values`, or -1.
int find_value(const EnumOrder *order, Oid value) {
    int low = 0;
    int high = order->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (order->values[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low < order->count && order->values[low] == value ? low : -1;
}

// A row can hold a label that was added after messages were last taken: one more look.
const EnumOrder *order_with(Oid type, Oid value, int *place) {
    const EnumOrder *order = order_of(type);
    *place = find_value(order, value);
    if (likely(*place >= 0)) return order;
    AcceptInvalidationMessages();
    stale = true;
    order = order_of(type);
    *place = find_value(order, value);
    if (*place < 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
                        errmsg("invalid internal value for enum: %u", value)));
    return order;
}

}  // namespace

std::uint32_t enum_rank(Oid type, Oid value) {
    int place;
    const EnumOrder *order = order_with(type, value, &place);
    return order->ranks[place];
}

const char *enum_label(Oid type, Oid value) {
    int place;
    const EnumOrder *order = order_with(type, value, &place);
    return NameStr(order->labels[order->ranks[place]].name);
}

Oid enum_value(Oid type, const char *label, int length) {
    const EnumOrder *order = order_of(type);
    for (int i = 0; i < order->count; ++i) {
        const char *name = NameStr(order->labels[i].name);
        if (std::strlen(name) == static_cast<std::size_t>(length) &&
            std::memcmp(name, label, static_cast<std::size_t>(length)) == 0)
            return order->labels[i].value;
    }
    return InvalidOid;
}

void describe_enum(Oid type, StringInfo out) {
    const EnumOrder *order = order_of(type);
    for (int i = 0; i < order->count; ++i)
        appendStringInfo(out, "%s%s", i == 0 ? "" : ",",
                         quote_literal_cstr(NameStr(order->labels[i].name)));
}

}  // namespace interlock
