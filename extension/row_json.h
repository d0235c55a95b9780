// Rows as jsonb, in one exact form that depends on no setting of the session: what the outbox
// records, and what row_values() gives of any row. jsonb_populate_record() reads it back.
//
// Integers, numeric and floats are numbers (NaN and the infinities strings), booleans booleans,
// text strings, bytea '\x..', dates and times ISO 8601 (timestamptz in UTC), intervals ISO 8601,
// enums their labels, json and jsonb nested, arrays arrays, composites objects; anything else is
// what its output function gives under fixed settings.
#pragma once

#include "pg.h"

extern "C" {
#include "utils/jsonb.h"
}

namespace interlock {

enum class JsonForm : std::uint8_t {
    boolean,
    int2,
    int4,
    int8,
    numeric,
    float4,
    float8,
    text,  ///< and what is stored as text is
    bytea,
    date_or_time,
    interval,
    json,
    jsonb,
    array,
    composite,
    output,  ///< by its output function
};

/// How values of a type become json.
struct JsonType {
    JsonForm form;
    bool settings;  ///< the output function may look at settings
    Oid base;       ///< the type below any domains
    FmgrInfo output;
    JsonType *element;  ///< of an array
    std::int16_t length;
    bool by_value;
    char align;
    TupleDesc description;  ///< of a composite, while it is as it was
    struct RowJson *fields;
};

/// How some columns of a row become an object. Its names are in the order that jsonb keeps them in.
struct RowJson {
    int count;
    AttrNumber *numbers;
    JsonType **types;
    std::int16_t *lengths;  ///< typlen and typbyval of the columns, for comparing
    bool *by_value;
    JsonbPair *pairs;  ///< names; the values are those of the last call
    MemoryContext context;
};

/// For the columns `names` of a row type; duplicates count once. nullptr and `*missing` set when
/// there is no such column. `names` nullptr: all columns. Made in CurrentMemoryContext.
RowJson *prepare_row_json(TupleDesc description, const char *const *names, int count,
                          const char **missing);

/// The object of these columns' values: values[n - 1] is that of column n.
Jsonb *row_json(RowJson *row, const Datum *values, const bool *nulls);

/// Whether the columns have the same values in both rows: bytewise, so equal values may count as
/// different, never the reverse.
bool same_values(const RowJson *row, const Datum *values, const bool *nulls,
                 const Datum *other_values, const bool *other_nulls);

}  // namespace interlock
