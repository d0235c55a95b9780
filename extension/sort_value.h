// Values of sort and scope columns: which types may stand there, their canonical form, and a key
// whose bytes sort as PostgreSQL sorts the values.
//
// Two values are equal to PostgreSQL exactly if their sort keys are the same bytes, and exactly if
// their canonical forms are: numeric scale, char padding, -0, and intervals like '24:00' and
// '1 day' are one value each. The exception is text under a nondeterministic collation, of which no
// representative can be made: its canonical form is the text itself.
#pragma once

#include "pg.h"

namespace interlock {

/// One column of a keyset, or one sort expression.
struct SortColumn {
    Oid type = InvalidOid;       ///< as declared
    Oid base = InvalidOid;       ///< the built-in type, or the enum, below any domains
    Oid collation = InvalidOid;  ///< InvalidOid where the type has none
    bool descending = false;
    bool nulls_first = false;
    bool nullable = true;
};

/// Fills `base`, for types that can be sorted and merged: int2/4/8, numeric, float4/8, bool, text,
/// varchar, bpchar, bytea, uuid, date, time, timestamp, timestamptz, interval, enums, domains over
/// them. False for another type.
bool resolve_sort_type(SortColumn *column);

/// Why sort keys of this collation cannot be merged across shards: a libc collation other than C
/// and POSIX. nullptr if they can (C, POSIX, ICU, or no collation). For DETAIL.
const char *collation_problem(const SortColumn &column);

/// Whatever decides how values of the column compare on this server: type, collation (provider,
/// locale, actual version), labels of an enum in order, encoding. Equal texts: equal order.
void describe_order(const SortColumn &column, StringInfo out);

/// Appends the key of a value. Keys are self-delimiting, so those of several columns follow one
/// another. Direction and place of NULLs are in it. Raises 0A000 where collation_problem() is one.
void append_sort_key(const SortColumn &column, Datum value, bool isnull, StringInfo out);

/// The one representative of all values equal to this one; may return `value` itself.
Datum canonical_value(const SortColumn &column, Datum value);

/// A canonical value as bytes of a cursor (length-prefixed where its size varies; an enum by its
/// label), NULL included.
void append_cursor_value(const SortColumn &column, Datum value, bool isnull, StringInfo out);

/// Appends bytes that are the same exactly if the values are equal: what a scope is told by.
/// Self-delimiting; nothing reads them back.
void append_identity(const SortColumn &column, Datum value, bool isnull, StringInfo out);

/// Reads what append_cursor_value() wrote. False, never an error, for anything else: too short, out
/// of range, not canonical, text not valid in the encoding, no such label.
bool read_cursor_value(const SortColumn &column, StringInfo in, Datum *value, bool *isnull);

}  // namespace interlock
