// Shared by sort keys and cursor values: numbers high byte first, and what both think of floats.
#pragma once

#include "pg.h"

namespace interlock {

inline bool is_text_type(Oid base) {
    return base == TEXTOID || base == VARCHAROID || base == BPCHAROID;
}

/// Appends a number, high byte first.
template <typename Unsigned>
void put_number(StringInfo out, Unsigned number) {
    char bytes[sizeof(Unsigned)];
    for (std::size_t i = sizeof(Unsigned); i-- > 0;
         number = static_cast<Unsigned>(number >> 7 >> 1))
        bytes[i] = static_cast<char>(number);
    appendBinaryStringInfo(out, bytes, sizeof(Unsigned));
}

/// -0 is 0, and there is one NaN.
template <typename Float>
Float canonical_float(Float value) {
    if (value != value) {
        return static_cast<Float>(__builtin_nan(""));
    }
    return value == 0 ? 0 : value;
}

template <typename To, typename From>
To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

}  // namespace interlock
