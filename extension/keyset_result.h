// What keyset_page() and keyset_rows() return: rows with their cursors and sort keys.
#pragma once

#include "keyset.h"

namespace interlock {

struct PageRow {
    Datum item, cursor;
    Datum sort_key;  ///< 0 where rows are not merged
};

struct PageResult {
    Tuplestorestate *store;
    TupleDesc description;
    Datum no_shards;
};

/// The call's result; raises 0A000 where a set of rows cannot be returned.
ReturnSetInfo *require_set(FunctionCallInfo fcinfo);

/// The keyset that the first argument names, for rows of the second one's type. Raises what
/// use_keyset() raises, 22004 and 42804.
Keyset *keyset_of_call(FunctionCallInfo fcinfo);

/// Reads the scope that is argument `argument`: see read_scope().
void read_scope_argument(FunctionCallInfo fcinfo, int argument, const Keyset &keyset, Scope *scope);

/// Begins the result, of the keyset's row type.
void open_result(ReturnSetInfo *set, const Keyset &keyset, PageResult *result);
/// Adds a row, which is copied.
void put_row(PageResult *result, const PageRow &row);

/// Makes `key` ready for the sort keys of rows, which begin alike.
void open_sort_key(const Keyset &keyset, StringInfo key);
/// The sort key of a row with these values, in `key` until the next call; 0 where there is none.
Datum sort_key_of(const Keyset &keyset, const Datum *values, const bool *nulls, StringInfo key);

}  // namespace interlock
