// Enums: where a value stands among the labels of its type. Kept per session, dropped when an enum
// changes.
#pragma once

#include "pg.h"

namespace interlock {

/// Place of a value of the type, from 0 on, in the order of the labels.
std::uint32_t enum_rank(Oid type, Oid value);

/// The label of a value; good until the next call here.
const char *enum_label(Oid type, Oid value);

/// The value with that label, or InvalidOid.
Oid enum_value(Oid type, const char *label, int length);

/// Appends the labels in order, quoted.
void describe_enum(Oid type, StringInfo out);

}  // namespace interlock
