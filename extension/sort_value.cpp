#include "pg.h"

#include "collation.h"
#include "enum_order.h"
#include "interval_span.h"
#include "numeric_parts.h"
#include "sort_bytes.h"
#include "sort_value.h"

namespace interlock {

namespace {

// nullptr for an enum: its name says nothing about its order.
const char *built_in_name(Oid base) {
    switch (base) {
    case INT2OID: return "int2";
    case INT4OID: return "int4";
    case INT8OID: return "int8";
    case NUMERICOID: return "numeric";
    case FLOAT4OID: return "float4";
    case FLOAT8OID: return "float8";
    case BOOLOID: return "bool";
    case TEXTOID: return "text";
    case VARCHAROID: return "varchar";
    case BPCHAROID: return "bpchar";
    case BYTEAOID: return "bytea";
    case UUIDOID: return "uuid";
    case DATEOID: return "date";
    case TIMEOID: return "time";
    case TIMESTAMPOID: return "timestamp";
    case TIMESTAMPTZOID: return "timestamptz";
    case INTERVALOID: return "interval";
    default: return nullptr;
    }
}

Datum canonical_bpchar(Datum value) {
    const BpChar *stored = DatumGetBpCharPP(value);
    char *bytes = VARDATA_ANY(stored);
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(stored));
    const int canonical = bpchartruelen(bytes, length);
    if (canonical == length) return value;
    return PointerGetDatum(cstring_to_text_with_len(bytes, canonical));
}

Datum canonical_numeric(Datum value) {
    return DirectFunctionCall1(numeric_trim_scale, value);
}

Datum canonical_interval(Datum value) {
    const Interval *interval = DatumGetIntervalP(value);
    const Interval canonical = interval_of_span(interval_span(*interval));
    if (canonical.month == interval->month && canonical.day == interval->day) return value;
    Interval *copy = static_cast<Interval *>(palloc(sizeof(Interval)));
    *copy = canonical;
    return IntervalPGetDatum(copy);
}

}  // namespace

bool resolve_sort_type(SortColumn *column) {
    if (!OidIsValid(column->type)) return false;
    column->base = getBaseType(column->type);
    return built_in_name(column->base) != nullptr || type_is_enum(column->base);
}

const char *collation_problem(const SortColumn &column) {
    return is_text_type(column.base) ? why_no_text_key(column.collation) : nullptr;
}

void describe_order(const SortColumn &column, StringInfo out) {
    const char *name = built_in_name(column.base);
    if (name == nullptr) {
        appendStringInfoString(out, "enum(");
        describe_enum(column.base, out);
        appendStringInfoChar(out, ')');
        return;
    }
    appendStringInfoString(out, name);
    if (!is_text_type(column.base)) return;
    appendStringInfo(out, " %s ", GetDatabaseEncodingName());
    describe_collation(column.collation, out);
}

Datum canonical_value(const SortColumn &column, Datum value) {
    switch (column.base) {
    case NUMERICOID: return canonical_numeric(value);
    case FLOAT4OID: return Float4GetDatum(canonical_float(DatumGetFloat4(value)));
    case FLOAT8OID: return Float8GetDatum(canonical_float(DatumGetFloat8(value)));
    case BPCHAROID: return canonical_bpchar(value);
    case INTERVALOID: return canonical_interval(value);
    default: return value;
    }
}

}  // namespace interlock
