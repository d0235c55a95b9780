// keyset_cursor(), keyset_decode(), keyset_predicate(): cursors and pages for those who write their
// own SQL, or look into somebody's cursor.
#include "pg.h"

extern "C" {
#include "utils/tuplestore.h"
#include "utils/typcache.h"
}

#include "errors.h"
#include "keyset.h"

namespace interlock {

namespace {

// Text of values that reads back as the same value, whatever the session's settings are.
int begin_exact_output() {
    const int level = NewGUCNestLevel();
    for (const auto &[name, value] :
         {std::pair("datestyle", "ISO"), std::pair("intervalstyle", "postgres"),
          std::pair("extra_float_digits", "3"), std::pair("bytea_output", "hex")})
        set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
    return level;
}

void end_exact_output(int level) {
    AtEOXact_GUC(true, level);
}

Datum output_text(const SortColumn &column, Datum value) {
    Oid output;
    bool is_varlena;
    getTypeOutputInfo(column.base, &output, &is_varlena);
    return CStringGetTextDatum(OidOutputFunctionCall(output, value));
}

// A column of a row that has to have a value.
Datum value_of(HeapTuple row, TupleDesc description, const KeysetColumn &column, bool nullable,
               bool *isnull) {
    const Datum value = heap_getattr(row, column.attribute, description, isnull);
    if (*isnull && !nullable)
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("column \"%s\" of the row must not be null", column.name)));
    return value;
}

text *cursor_of_row(const Keyset &keyset, HeapTupleHeader header) {
    HeapTupleData row;
    row.t_len = HeapTupleHeaderGetDatumLength(header);
    ItemPointerSetInvalid(&row.t_self);
    row.t_tableOid = InvalidOid;
    row.t_data = header;
    TupleDesc description =
        lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
    Scope scope;
    Place place;
    bool isnull;
    for (int i = 0; i < keyset.declaration.scope_count; ++i)
        scope.values[i] = value_of(&row, description, keyset.scope[i], false, &isnull);
    for (int i = 0; i < keyset.declaration.order_count; ++i)
        place.values[i] = value_of(&row, description, keyset.order[i],
                                   keyset.order_sort[i].nullable, &place.nulls[i]);
    ReleaseTupleDesc(description);
    digest_scope(keyset, &scope);
    CursorWriter writer;
    open_cursor_writer(&writer, binding_of(keyset, scope));
    return write_cursor(&writer, keyset.order_sort, keyset.declaration.order_count, place.values,
                        place.nulls);
}

// The keyset whose digest it is, or nullptr.
const Keyset *keyset_of_digest(const unsigned char *digest) {
    KeysetDeclaration *declarations;
    const int count = read_declarations(nullptr, &declarations);
    for (int i = 0; i < count; ++i) {
        Problem problem;
        const Keyset *keyset = resolve_keyset(declarations[i], &problem);
        if (keyset != nullptr && std::memcmp(keyset->digest, digest, digest_size) == 0)
            return keyset;
    }
    return nullptr;
}

enum DecodeColumn {
    keyset_name,
    version,
    key_id,
    authentic,
    column_name,
    column_value,
    decode_count
};

void decode_into(ReturnSetInfo *result, CursorParts *parts) {
    const Keyset *keyset = keyset_of_digest(parts->keyset);
    Datum values[decode_count] = {};
    bool nulls[decode_count] = {};
    nulls[keyset_name] = keyset == nullptr;
    // (Of an index's entry: the keyset that the application knows.)
    if (keyset != nullptr)
        values[keyset_name] = CStringGetTextDatum(keyset->declaration.source.keyset != nullptr
                                                      ? keyset->declaration.source.keyset
                                                      : keyset->declaration.name);
    values[version] = Int32GetDatum(parts->version);
    values[key_id] = Int32GetDatum(parts->key_id);
    values[authentic] = BoolGetDatum(parts->authentic);
    int rows = 0;
    const int level = begin_exact_output();
    for (int i = 0; keyset != nullptr && i < keyset->declaration.order_count; ++i, ++rows) {
        const SortColumn &sort = keyset->order_sort[i];
        Datum value;
        bool isnull;
        if (!read_cursor_value(sort, &parts->values, &value, &isnull)) break;
        values[column_name] = CStringGetTextDatum(keyset->order[i].name);
        nulls[column_value] = isnull;
        values[column_value] = isnull ? static_cast<Datum>(0) : output_text(sort, value);
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    end_exact_output(level);
    if (rows > 0) return;
    nulls[column_name] = nulls[column_value] = true;
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

// Which rows can follow at all, said of the order's first column alone: an index can begin there,
// which it cannot by an OR.
void append_leading_bound(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                          const Place &place, bool backward) {
    const SortColumn &sort = keyset.order_sort[0];
    const bool nulls_first = sort.nulls_first != backward;
    const bool isnull = place.nulls[0];
    if (sort.nullable && isnull == nulls_first) return;
    if (!isnull && sort.nullable && !nulls_first) return;
    append_column(out, style, keyset.order[0]);
    if (OidIsValid(keyset.order[0].explicit_collation))
        appendStringInfo(out, " COLLATE %s", collation_text(keyset.order[0].explicit_collation));
    if (isnull) {
        appendStringInfoString(out, " IS NULL AND ");
        return;
    }
    appendStringInfo(out, " OPERATOR(pg_catalog.%c=) ", sort.descending != backward ? '<' : '>');
    append_parameter(out, style, style.order[0], sort.base);
    appendStringInfoString(out, " AND ");
}

Datum predicate_text(const Keyset &keyset, const ParameterStyle &style, const Place &place,
                     bool backward) {
    StringInfoData out;
    initStringInfo(&out);
    const bool has_scope = append_scope_condition(&out, keyset, style);
    if (!place.given) return CStringGetTextDatum(has_scope ? out.data : "true");
    if (has_scope) appendStringInfoString(&out, " AND ");
    Range ranges[max_ranges];
    const int count = list_ranges(keyset, backward, true, place.null_mask, ranges);
    if (count == 0) appendStringInfoString(&out, "false");
    if (count > 1) {
        append_leading_bound(&out, keyset, style, place, backward);
        appendStringInfoChar(&out, '(');
    }
    for (int i = 0; i < count; ++i) {
        if (i > 0) appendStringInfoString(&out, " OR ");
        append_range_condition(&out, keyset, style, ranges[i], backward, place.null_mask);
    }
    if (count > 1) appendStringInfoChar(&out, ')');
    return CStringGetTextDatum(out.data);
}

// Numbers the values that the predicate needs, and gives them as text.
Datum number_parameters(const Keyset &keyset, const Scope &scope, const Place &place, int first,
                        int *scope_numbers, int *order_numbers) {
    Datum texts[2 * max_keyset_columns];
    int count = 0;
    const int level = begin_exact_output();
    for (int i = 0; i < keyset.declaration.scope_count; ++i) {
        scope_numbers[i] = first + count;
        texts[count++] = output_text(keyset.scope_sort[i], scope.values[i]);
    }
    for (int i = 0; i < keyset.declaration.order_count; ++i) {
        order_numbers[i] = first + count;
        if (place.given && !place.nulls[i])
            texts[count++] = output_text(keyset.order_sort[i], place.values[i]);
    }
    end_exact_output(level);
    return PointerGetDatum(construct_array(texts, count, TEXTOID, -1, false, TYPALIGN_INT));
}

// Materialize mode, for functions whose rows are few.
ReturnSetInfo *open_rows(FunctionCallInfo fcinfo) {
    ReturnSetInfo *result = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (result == nullptr || !IsA(result, ReturnSetInfo) ||
        (result->allowedModes & SFRM_Materialize) == 0)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("a set of rows cannot be returned here")));
    MemoryContext old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
    TupleDesc description;
    if (get_call_result_type(fcinfo, nullptr, &description) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    result->returnMode = SFRM_Materialize;
    result->setDesc = description;
    result->setResult = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0,
                                              false, work_mem);
    MemoryContextSwitchTo(old);
    return result;
}

Keyset *keyset_argument(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(0))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("keyset must not be null")));
    return use_keyset(PG_GETARG_TEXT_PP(0));
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// keyset_cursor(keyset text, "row" anyelement) returns text
INTERLOCK_FUNCTION(interlock_keyset_cursor) {
    const Keyset *keyset = keyset_argument(fcinfo);
    require_row_type(*keyset, get_fn_expr_argtype(fcinfo->flinfo, 1));
    if (PG_ARGISNULL(1))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("row must not be null")));
    PG_RETURN_TEXT_P(cursor_of_row(*keyset, PG_GETARG_HEAPTUPLEHEADER(1)));
}

/// keyset_decode(cursor text) returns table (keyset text, version integer, key_id integer,
///                                           authentic boolean, column_name text, value text)
INTERLOCK_FUNCTION(interlock_keyset_decode) {
    CursorParts parts;
    if (!take_cursor_apart(PG_GETARG_TEXT_PP(0), &parts))
        ereport(ERROR, (errcode(ERRCODE_INTERLOCK_BAD_CURSOR), errmsg("not a cursor")));
    decode_into(open_rows(fcinfo), &parts);
    return static_cast<Datum>(0);
}

/// keyset_predicate(keyset text, scope jsonb, after text, before text, first_parameter integer,
///                  alias text)
/// returns table (predicate text, order_by text, parameters text[])
INTERLOCK_FUNCTION(interlock_keyset_predicate) {
    constexpr int most_parameters = 65535;  // of a statement
    const Keyset *keyset = keyset_argument(fcinfo);
    if (PG_ARGISNULL(4) || PG_GETARG_INT32(4) < 1 ||
        PG_GETARG_INT32(4) > most_parameters - 2 * max_keyset_columns)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("first_parameter must be between 1 and %d",
                               most_parameters - 2 * max_keyset_columns)));
    Scope scope;
    read_scope(*keyset,
               PG_ARGISNULL(1) ? nullptr : reinterpret_cast<struct varlena *>(PG_GETARG_POINTER(1)),
               &scope);
    Place place;
    bool backward;
    read_place(*keyset, scope, PG_ARGISNULL(2) ? nullptr : PG_GETARG_TEXT_PP(2),
               PG_ARGISNULL(3) ? nullptr : PG_GETARG_TEXT_PP(3), &place, &backward);

    int scope_numbers[max_keyset_columns], order_numbers[max_keyset_columns];
    const Datum texts =
        number_parameters(*keyset, scope, place, PG_GETARG_INT32(4), scope_numbers, order_numbers);
    const char *alias =
        PG_ARGISNULL(5) ? nullptr : quote_identifier(text_to_cstring(PG_GETARG_TEXT_PP(5)));
    const ParameterStyle style = {alias, scope_numbers, order_numbers, true};
    StringInfoData order_by;
    initStringInfo(&order_by);
    append_order_by(&order_by, *keyset, style, backward);

    ReturnSetInfo *result = open_rows(fcinfo);
    Datum values[] = {predicate_text(*keyset, style, place, backward),
                      CStringGetTextDatum(order_by.data), texts};
    bool nulls[lengthof(values)] = {};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    return static_cast<Datum>(0);
}

/// keyset_state(name text, OUT scatter boolean, OUT digest text): both null where the declaration
/// does not fit its table.
INTERLOCK_FUNCTION(interlock_keyset_state) {
    TupleDesc description;
    if (get_call_result_type(fcinfo, nullptr, &description) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[2] = {};
    bool nulls[2] = {true, true};
    KeysetDeclaration *declaration;
    Problem problem;
    const Keyset *keyset =
        read_declarations(text_to_cstring(PG_GETARG_TEXT_PP(0)), &declaration) > 0
            ? resolve_keyset(*declaration, &problem)
            : nullptr;
    if (keyset != nullptr) {
        StringInfoData digest;
        initStringInfo(&digest);
        for (unsigned char byte : keyset->digest)
            appendStringInfo(&digest, "%02x", byte);
        values[0] = BoolGetDatum(keyset->scatter);
        values[1] = CStringGetTextDatum(digest.data);
        nulls[0] = nulls[1] = false;
    }
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(description), values, nulls)));
}
