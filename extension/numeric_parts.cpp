#include "pg.h"

#include "numeric_parts.h"

namespace interlock {

namespace {

// Of numeric_send(): number of digits, weight, sign, scale, then the digits, two bytes each.
constexpr int head_size = 8;
constexpr int base = 10000;
constexpr int digits_per_base = 4;
constexpr int sign_positive = 0x0000, sign_negative = 0x4000, sign_nan = 0xC000,
              sign_infinity = 0xD000, sign_minus_infinity = 0xF000;
constexpr int most_scale = 0x3FFF;

int get16(const unsigned char *bytes) {
    return bytes[0] << 8 | bytes[1];
}

void put16(unsigned char *bytes, int value) {
    bytes[0] = static_cast<unsigned char>(value >> 8);
    bytes[1] = static_cast<unsigned char>(value);
}

int sign_of(NumericKind kind) {
    switch (kind) {
    case NumericKind::minus_infinity: return sign_minus_infinity;
    case NumericKind::negative: return sign_negative;
    case NumericKind::infinity: return sign_infinity;
    case NumericKind::nan: return sign_nan;
    default: return sign_positive;
    }
}

int least_scale(const NumericParts &parts) {
    int last = parts.digit(parts.count - 1);
    int scale = -digits_per_base * (parts.weight - (parts.count - 1));
    for (; last % 10 == 0; last /= 10)
        --scale;
    return scale > 0 ? scale : 0;
}

}  // namespace

NumericParts take_numeric_apart(Datum value) {
    const bytea *sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send, value));
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(VARDATA_ANY(sent));
    int count = get16(bytes);
    int weight = static_cast<std::int16_t>(get16(bytes + 2));
    const int sign = get16(bytes + 4);
    if (VARSIZE_ANY_EXHDR(sent) != static_cast<std::size_t>(head_size + 2 * count))
        elog(ERROR, "numeric_send() gave %d digits in %d bytes", count,
             static_cast<int>(VARSIZE_ANY_EXHDR(sent)));

    NumericParts parts = {NumericKind::zero, 0, 0, bytes + head_size};
    switch (sign) {
    case sign_nan: parts.kind = NumericKind::nan; return parts;
    case sign_infinity: parts.kind = NumericKind::infinity; return parts;
    case sign_minus_infinity: parts.kind = NumericKind::minus_infinity; return parts;
    case sign_positive:
    case sign_negative: break;
    default: elog(ERROR, "numeric_send() gave sign %d", sign);
    }
    for (; count > 0 && get16(parts.digits) == 0; --count, --weight)
        parts.digits += 2;
    while (count > 0 && get16(parts.digits + 2 * (count - 1)) == 0)
        --count;
    if (count == 0) return parts;
    parts.kind = sign == sign_negative ? NumericKind::negative : NumericKind::positive;
    parts.weight = static_cast<std::int16_t>(weight);
    parts.count = static_cast<std::uint16_t>(count);
    return parts;
}

bool make_numeric(const NumericParts &parts, Datum *value) {
    int count = 0;
    int weight = 0;
    int scale = 0;
    if (parts.kind == NumericKind::positive || parts.kind == NumericKind::negative) {
        count = parts.count;
        weight = parts.weight;
        if (count == 0 || parts.digit(0) == 0 || parts.digit(count - 1) == 0) return false;
        for (int i = 0; i < count; ++i)
            if (parts.digit(i) >= base) return false;
        scale = least_scale(parts);
        if (scale > most_scale) return false;
    }
    const int size = head_size + 2 * count;
    unsigned char *bytes = static_cast<unsigned char *>(palloc(static_cast<Size>(size) + 1));
    put16(bytes, count);
    put16(bytes + 2, weight);
    put16(bytes + 4, sign_of(parts.kind));
    put16(bytes + 6, scale);
    if (count > 0)
        std::memcpy(bytes + head_size, parts.digits, 2 * static_cast<std::size_t>(count));
    bytes[size] = '\0';
    StringInfoData message = {reinterpret_cast<char *>(bytes), size, size + 1, 0};
    *value = DirectFunctionCall3(numeric_recv, PointerGetDatum(&message),
                                 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
    pfree(bytes);
    return true;
}

}  // namespace interlock
