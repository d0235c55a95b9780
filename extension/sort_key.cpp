// Keys whose bytes sort as PostgreSQL sorts the values.
#include "pg.h"

#include "collation.h"
#include "enum_order.h"
#include "interval_span.h"
#include "numeric_parts.h"
#include "sort_bytes.h"
#include "sort_value.h"

extern "C" {
#include "utils/date.h"
}

namespace interlock {

namespace {

constexpr char null_first = 0, not_null = 1, null_last = 2;

// Two's complement sorts as unsigned once the sign bit is turned.
template <typename Signed>
void put_signed(StringInfo out, Signed number) {
    using Unsigned = std::make_unsigned_t<Signed>;
    constexpr Unsigned sign = Unsigned{1} << (8 * sizeof(Unsigned) - 1);
    put_number(out, static_cast<Unsigned>(static_cast<Unsigned>(number) ^ sign));
}

// IEEE numbers sort by their bits as sign and magnitude; NaN, made positive, is above infinity.
template <typename Signed, typename Float>
void put_float(StringInfo out, Float value) {
    using Unsigned = std::make_unsigned_t<Signed>;
    constexpr Unsigned sign = Unsigned{1} << (8 * sizeof(Unsigned) - 1);
    const Unsigned bits = same_bits<Unsigned>(canonical_float(value));
    put_number(out, static_cast<Unsigned>((bits & sign) != 0 ? ~bits : bits | sign));
}

// Kind, then weight and digits (each plus one) up to a zero; all turned round below zero. More
// digits are more, as they do not end in zeros.
void put_numeric(StringInfo out, Datum value) {
    const NumericParts parts = take_numeric_apart(value);
    appendStringInfoChar(out, static_cast<char>(parts.kind));
    if (parts.kind != NumericKind::positive && parts.kind != NumericKind::negative) return;
    const std::uint16_t turn = parts.kind == NumericKind::negative ? 0xFFFF : 0;
    put_number(out, static_cast<std::uint16_t>((parts.weight ^ 0x8000) ^ turn));
    for (int i = 0; i < parts.count; ++i)
        put_number(out, static_cast<std::uint16_t>((parts.digit(i) + 1) ^ turn));
    put_number(out, turn);
}

// 96 bits hold any span: it is below 2^73.
void put_interval(StringInfo out, const Interval &interval) {
    const __int128 span = interval_span(interval);
    put_signed(out, static_cast<std::int32_t>(span >> 64));
    put_number(out, static_cast<std::uint64_t>(span));
}

// A zero byte becomes 0 255, and 0 0 is the end.
void put_bytea(StringInfo out, const bytea *value) {
    const char *bytes = VARDATA_ANY(value);
    const char *end = bytes + VARSIZE_ANY_EXHDR(value);
    while (bytes < end) {
        const char *zero =
            static_cast<const char *>(std::memchr(bytes, 0, static_cast<std::size_t>(end - bytes)));
        const char *stop = zero == nullptr ? end : zero + 1;
        appendBinaryStringInfo(out, bytes, static_cast<int>(stop - bytes));
        if (zero != nullptr) appendStringInfoChar(out, static_cast<char>(0xFF));
        bytes = stop;
    }
    put_number(out, std::uint16_t{0});
}

void put_text(StringInfo out, const SortColumn &column, const text *value) {
    char *bytes = VARDATA_ANY(value);
    int length = static_cast<int>(VARSIZE_ANY_EXHDR(value));
    if (column.base == BPCHAROID) length = bpchartruelen(bytes, length);
    append_text_key(column.collation, bytes, length, out);
}

// The label is behind its place, so that different labels are never one key, even to servers that
// have different ones.
void put_enum(StringInfo out, Oid type, Oid value) {
    put_number(out, enum_rank(type, value));
    const char *label = enum_label(type, value);
    appendBinaryStringInfo(out, label, static_cast<int>(std::strlen(label)) + 1);
}

void put_value(StringInfo out, const SortColumn &column, Datum value) {
    switch (column.base) {
    case INT2OID: put_signed(out, DatumGetInt16(value)); break;
    case INT4OID: put_signed(out, DatumGetInt32(value)); break;
    case INT8OID: put_signed(out, std::int64_t{DatumGetInt64(value)}); break;
    case NUMERICOID: put_numeric(out, value); break;
    case FLOAT4OID: put_float<std::int32_t>(out, DatumGetFloat4(value)); break;
    case FLOAT8OID: put_float<std::int64_t>(out, DatumGetFloat8(value)); break;
    case BOOLOID: appendStringInfoChar(out, DatumGetBool(value) ? 1 : 0); break;
    case TEXTOID:
    case VARCHAROID:
    case BPCHAROID: put_text(out, column, DatumGetTextPP(value)); break;
    case BYTEAOID: put_bytea(out, DatumGetByteaPP(value)); break;
    case UUIDOID:
        appendBinaryStringInfo(out, reinterpret_cast<char *>(DatumGetUUIDP(value)->data), UUID_LEN);
        break;
    case DATEOID: put_signed(out, DatumGetDateADT(value)); break;
    case TIMEOID: put_signed(out, std::int64_t{DatumGetTimeADT(value)}); break;
    case TIMESTAMPOID:
    case TIMESTAMPTZOID: put_signed(out, std::int64_t{DatumGetTimestamp(value)}); break;
    case INTERVALOID: put_interval(out, *DatumGetIntervalP(value)); break;
    default: put_enum(out, column.base, DatumGetObjectId(value));
    }
}

}  // namespace

void append_sort_key(const SortColumn &column, Datum value, bool isnull, StringInfo out) {
    if (isnull) {
        appendStringInfoChar(out, column.nulls_first ? null_first : null_last);
        return;
    }
    appendStringInfoChar(out, not_null);
    const int start = out->len;
    put_value(out, column, value);
    // No key is the beginning of another, so turned bytes sort the other way round.
    if (column.descending)
        for (int i = start; i < out->len; ++i)
            out->data[i] = static_cast<char>(~out->data[i]);
}

}  // namespace interlock

using namespace interlock;

namespace {

// What a call's first argument is, worked out once for all rows.
SortColumn *column_of_call(FunctionCallInfo fcinfo) {
    if (fcinfo->flinfo->fn_extra != nullptr)
        return static_cast<SortColumn *>(fcinfo->flinfo->fn_extra);
    SortColumn resolved = {};
    resolved.type = get_fn_expr_argtype(fcinfo->flinfo, 0);
    resolved.collation = PG_GET_COLLATION();
    if (!resolve_sort_type(&resolved))
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("type %s has no sort key",
                        OidIsValid(resolved.type) ? format_type_be(resolved.type) : "unknown")));
    SortColumn *column =
        static_cast<SortColumn *>(MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(SortColumn)));
    *column = resolved;
    fcinfo->flinfo->fn_extra = column;
    return column;
}

Datum key_of_call(FunctionCallInfo fcinfo, const SortColumn &column) {
    StringInfoData key;
    initStringInfo(&key);
    appendStringInfoSpaces(&key, VARHDRSZ);
    const bool isnull = PG_ARGISNULL(0);
    append_sort_key(column, isnull ? 0 : PG_GETARG_DATUM(0), isnull, &key);
    SET_VARSIZE(key.data, key.len);
    PG_RETURN_BYTEA_P(key.data);
}

}  // namespace

/// sort_key(value anyelement, descending boolean, nulls_first boolean) returns bytea
INTERLOCK_FUNCTION(interlock_sort_key) {
    SortColumn *column = column_of_call(fcinfo);
    if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("direction and place of nulls must not be null")));
    column->descending = PG_GETARG_BOOL(1);
    column->nulls_first = PG_GETARG_BOOL(2);
    return key_of_call(fcinfo, *column);
}

/// group_key(value anyelement) returns bytea: the same bytes for equal values. Their order matters
/// only in that it is one, so text needs no order of its collation: where that is deterministic,
/// equal texts are the same bytes.
INTERLOCK_FUNCTION(interlock_group_key) {
    SortColumn *column = column_of_call(fcinfo);
    if (OidIsValid(column->collation) && !is_nondeterministic(column->collation))
        column->collation = C_COLLATION_OID;
    return key_of_call(fcinfo, *column);
}
