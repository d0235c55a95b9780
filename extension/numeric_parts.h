// A numeric in its parts, through its documented binary form (numeric_send): the on-disk form is
// PostgreSQL's own affair.
#pragma once

#include "pg.h"

extern "C" {
#include "utils/numeric.h"
}

namespace interlock {

/// In the order in which PostgreSQL sorts them.
enum class NumericKind : std::uint8_t {
    minus_infinity = 1,
    negative,
    zero,
    positive,
    infinity,
    nan
};

/// The value is digits[0] * 10000^weight + digits[1] * 10000^(weight-1) + ..., with its sign; no
/// zeros at either end. `weight`, `count` and `digits` mean something for positive and negative
/// only.
struct NumericParts {
    NumericKind kind;
    std::int16_t weight;
    std::uint16_t count;
    const unsigned char *digits;  ///< two bytes each, high byte first, 0 .. 9999

    int digit(int i) const { return digits[2 * i] << 8 | digits[2 * i + 1]; }
};

/// `digits` points into memory palloc'd here.
NumericParts take_numeric_apart(Datum value);

/// The numeric of these parts with the least scale that shows all of it, in *value. False, never an
/// error, if there is none: a digit out of range, zeros at an end, too many digits.
bool make_numeric(const NumericParts &parts, Datum *value);

}  // namespace interlock
