// Values as bytes of a cursor, and back. Whatever is read here may come from anybody: lengths and
// ranges are checked before anything is made of them, and no input function that raises errors is
// called with unchecked bytes.
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

constexpr char not_null = 0, null = 1;

bool get_bytes(StringInfo in, int length, const char **bytes) {
    if (length < 0 || length > in->len - in->cursor) return false;
    *bytes = in->data + in->cursor;
    in->cursor += length;
    return true;
}

template <typename Unsigned>
bool get_number(StringInfo in, Unsigned *number) {
    const char *bytes;
    if (!get_bytes(in, sizeof(Unsigned), &bytes)) return false;
    std::uint64_t result = 0;
    for (std::size_t i = 0; i < sizeof(Unsigned); ++i)
        result = result << 8 | static_cast<unsigned char>(bytes[i]);
    *number = static_cast<Unsigned>(result);
    return true;
}

void put_varlena(StringInfo out, const char *bytes, int length) {
    put_number(out, static_cast<std::uint32_t>(length));
    appendBinaryStringInfo(out, bytes, length);
}

bool get_varlena(StringInfo in, const char **bytes, int *length) {
    std::uint32_t stated;
    if (!get_number(in, &stated) || stated > INT_MAX) return false;
    *length = static_cast<int>(stated);
    return get_bytes(in, *length, bytes);
}

void put_numeric(StringInfo out, Datum value) {
    const NumericParts parts = take_numeric_apart(value);
    appendStringInfoChar(out, static_cast<char>(parts.kind));
    if (parts.kind != NumericKind::positive && parts.kind != NumericKind::negative) return;
    put_number(out, static_cast<std::uint16_t>(parts.weight));
    put_number(out, parts.count);
    appendBinaryStringInfo(out, reinterpret_cast<const char *>(parts.digits), 2 * parts.count);
}

bool get_numeric(StringInfo in, Datum *value) {
    std::uint8_t kind;
    if (!get_number(in, &kind) || kind < static_cast<std::uint8_t>(NumericKind::minus_infinity) ||
        kind > static_cast<std::uint8_t>(NumericKind::nan))
        return false;
    NumericParts parts = {static_cast<NumericKind>(kind), 0, 0, nullptr};
    if (parts.kind == NumericKind::positive || parts.kind == NumericKind::negative) {
        std::uint16_t weight;
        const char *digits;
        if (!get_number(in, &weight) || !get_number(in, &parts.count) ||
            !get_bytes(in, 2 * parts.count, &digits))
            return false;
        parts.weight = static_cast<std::int16_t>(weight);
        parts.digits = reinterpret_cast<const unsigned char *>(digits);
    }
    return make_numeric(parts, value);
}

template <typename Unsigned, typename Float>
bool get_float(StringInfo in, Float *value) {
    Unsigned bits;
    if (!get_number(in, &bits)) return false;
    *value = same_bits<Float>(bits);
    return same_bits<Unsigned>(canonical_float(*value)) == bits;
}

void put_interval(StringInfo out, const Interval &value) {
    const Interval canonical = interval_of_span(interval_span(value));
    put_number(out, static_cast<std::uint64_t>(canonical.time));
    put_number(out, static_cast<std::uint32_t>(canonical.day));
    put_number(out, static_cast<std::uint32_t>(canonical.month));
}

bool get_interval(StringInfo in, Datum *value) {
    std::uint64_t time;
    std::uint32_t day, month;
    if (!get_number(in, &time) || !get_number(in, &day) || !get_number(in, &month)) return false;
    Interval *interval = static_cast<Interval *>(palloc0(sizeof(Interval)));
    interval->time = static_cast<std::int64_t>(time);
    interval->day = static_cast<std::int32_t>(day);
    interval->month = static_cast<std::int32_t>(month);
    const Interval canonical = interval_of_span(interval_span(*interval));
    *value = IntervalPGetDatum(interval);
    return canonical.time == interval->time && canonical.day == interval->day &&
           canonical.month == interval->month;
}

void put_text(StringInfo out, Oid base, const text *value) {
    char *bytes = VARDATA_ANY(value);
    int length = static_cast<int>(VARSIZE_ANY_EXHDR(value));
    if (base == BPCHAROID) length = bpchartruelen(bytes, length);
    put_varlena(out, bytes, length);
}

bool get_text(StringInfo in, Oid base, Datum *value) {
    const char *bytes;
    int length;
    if (!get_varlena(in, &bytes, &length)) return false;
    if (!pg_verify_mbstr(GetDatabaseEncoding(), bytes, length, true)) return false;
    if (base == BPCHAROID && length > 0 && bytes[length - 1] == ' ') return false;
    *value = PointerGetDatum(cstring_to_text_with_len(bytes, length));
    return true;
}

bool get_bytea(StringInfo in, Datum *value) {
    const char *bytes;
    int length;
    if (!get_varlena(in, &bytes, &length)) return false;
    *value = PointerGetDatum(cstring_to_text_with_len(bytes, length));
    return true;
}

bool get_uuid(StringInfo in, Datum *value) {
    const char *bytes;
    if (!get_bytes(in, UUID_LEN, &bytes)) return false;
    pg_uuid_t *uuid = static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t)));
    std::memcpy(uuid->data, bytes, UUID_LEN);
    *value = UUIDPGetDatum(uuid);
    return true;
}

bool get_bool(StringInfo in, Datum *value) {
    std::uint8_t byte;
    if (!get_number(in, &byte) || byte > 1) return false;
    *value = BoolGetDatum(byte == 1);
    return true;
}

bool get_enum(StringInfo in, Oid type, Datum *value) {
    const char *label;
    int length;
    if (!get_varlena(in, &label, &length)) return false;
    const Oid found = enum_value(type, label, length);
    *value = ObjectIdGetDatum(found);
    return OidIsValid(found);
}

template <typename Signed>
bool get_signed(StringInfo in, Signed *number) {
    std::make_unsigned_t<Signed> bits;
    if (!get_number(in, &bits)) return false;
    *number = static_cast<Signed>(bits);
    return true;
}

void put_value(StringInfo out, const SortColumn &column, Datum value) {
    switch (column.base) {
    case INT2OID: put_number(out, static_cast<std::uint16_t>(DatumGetInt16(value))); break;
    case INT4OID: put_number(out, static_cast<std::uint32_t>(DatumGetInt32(value))); break;
    case INT8OID: put_number(out, static_cast<std::uint64_t>(DatumGetInt64(value))); break;
    case NUMERICOID: put_numeric(out, value); break;
    case FLOAT4OID:
        put_number(out, same_bits<std::uint32_t>(canonical_float(DatumGetFloat4(value))));
        break;
    case FLOAT8OID:
        put_number(out, same_bits<std::uint64_t>(canonical_float(DatumGetFloat8(value))));
        break;
    case BOOLOID: appendStringInfoChar(out, DatumGetBool(value) ? 1 : 0); break;
    case TEXTOID:
    case VARCHAROID:
    case BPCHAROID: put_text(out, column.base, DatumGetTextPP(value)); break;
    case BYTEAOID: {
        const bytea *bytes = DatumGetByteaPP(value);
        put_varlena(out, VARDATA_ANY(bytes), static_cast<int>(VARSIZE_ANY_EXHDR(bytes)));
        break;
    }
    case UUIDOID:
        appendBinaryStringInfo(out, reinterpret_cast<char *>(DatumGetUUIDP(value)->data), UUID_LEN);
        break;
    case DATEOID: put_number(out, static_cast<std::uint32_t>(DatumGetDateADT(value))); break;
    case TIMEOID: put_number(out, static_cast<std::uint64_t>(DatumGetTimeADT(value))); break;
    case TIMESTAMPOID:
    case TIMESTAMPTZOID:
        put_number(out, static_cast<std::uint64_t>(DatumGetTimestamp(value)));
        break;
    case INTERVALOID: put_interval(out, *DatumGetIntervalP(value)); break;
    default: {
        const char *label = enum_label(column.base, DatumGetObjectId(value));
        put_varlena(out, label, static_cast<int>(std::strlen(label)));
    }
    }
}

bool get_value(const SortColumn &column, StringInfo in, Datum *value) {
    std::int16_t small;
    std::int32_t integer;
    std::int64_t big;
    float4 single;
    float8 twofold;
    switch (column.base) {
    case INT2OID:
        if (!get_signed(in, &small)) return false;
        *value = Int16GetDatum(small);
        return true;
    case INT4OID:
        if (!get_signed(in, &integer)) return false;
        *value = Int32GetDatum(integer);
        return true;
    case INT8OID:
        if (!get_signed(in, &big)) return false;
        *value = Int64GetDatum(big);
        return true;
    case NUMERICOID: return get_numeric(in, value);
    case FLOAT4OID:
        if (!get_float<std::uint32_t>(in, &single)) return false;
        *value = Float4GetDatum(single);
        return true;
    case FLOAT8OID:
        if (!get_float<std::uint64_t>(in, &twofold)) return false;
        *value = Float8GetDatum(twofold);
        return true;
    case BOOLOID: return get_bool(in, value);
    case TEXTOID:
    case VARCHAROID:
    case BPCHAROID: return get_text(in, column.base, value);
    case BYTEAOID: return get_bytea(in, value);
    case UUIDOID: return get_uuid(in, value);
    case DATEOID:
        if (!get_signed(in, &integer)) return false;
        if (!DATE_NOT_FINITE(integer) && !IS_VALID_DATE(integer)) return false;
        *value = DateADTGetDatum(integer);
        return true;
    case TIMEOID:
        if (!get_signed(in, &big) || big < 0 || big > USECS_PER_DAY) return false;
        *value = TimeADTGetDatum(big);
        return true;
    case TIMESTAMPOID:
    case TIMESTAMPTZOID:
        if (!get_signed(in, &big)) return false;
        if (!TIMESTAMP_NOT_FINITE(big) && !IS_VALID_TIMESTAMP(big)) return false;
        *value = TimestampGetDatum(big);
        return true;
    case INTERVALOID: return get_interval(in, value);
    default: return get_enum(in, column.base, value);
    }
}

}  // namespace

void append_cursor_value(const SortColumn &column, Datum value, bool isnull, StringInfo out) {
    appendStringInfoChar(out, isnull ? null : not_null);
    if (!isnull) put_value(out, column, value);
}

void append_identity(const SortColumn &column, Datum value, bool isnull, StringInfo out) {
    if (!isnull && is_text_type(column.base) && is_nondeterministic(column.collation)) {
        appendStringInfoChar(out, not_null);
        append_sort_key(column, value, false, out);
    } else {
        append_cursor_value(column, value, isnull, out);
    }
}

bool read_cursor_value(const SortColumn &column, StringInfo in, Datum *value, bool *isnull) {
    std::uint8_t marker;
    if (!get_number(in, &marker) || marker > null) return false;
    *isnull = marker == null;
    *value = 0;
    return *isnull || get_value(column, in, value);
}

}  // namespace interlock
