// Ranges, conditions and orders of pages as SQL text. Values are never in it, only parameters; all
// names are qualified, so no search_path changes what it means.
#include "pg.h"

#include "keyset.h"

namespace interlock {

namespace {

// The column as the order compares it.
void append_ordered_column(StringInfo out, const ParameterStyle &style,
                           const KeysetColumn &column) {
    append_column(out, style, column);
    if (OidIsValid(column.explicit_collation))
        appendStringInfo(out, " COLLATE %s", collation_text(column.explicit_collation));
}

void append_equal(StringInfo out, const Keyset &keyset, const ParameterStyle &style, int column,
                  std::uint32_t null_mask) {
    append_ordered_column(out, style, keyset.order[column]);
    if ((null_mask >> column & 1U) != 0) {
        appendStringInfoString(out, " IS NULL");
        return;
    }
    appendStringInfoString(out, " OPERATOR(pg_catalog.=) ");
    append_parameter(out, style, style.order[column], keyset.order_sort[column].base);
}

void append_after(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                  const Segment &segment, bool backward) {
    const bool row = segment.count > 1;
    if (row) appendStringInfoString(out, "ROW(");
    for (int i = segment.first; i < segment.first + segment.count; ++i) {
        if (i > segment.first) appendStringInfoString(out, ", ");
        append_ordered_column(out, style, keyset.order[i]);
    }
    const bool descending = keyset.order_sort[segment.first].descending != backward;
    appendStringInfo(out, "%s OPERATOR(pg_catalog.%c) %s", row ? ")" : "", descending ? '<' : '>',
                     row ? "ROW(" : "");
    for (int i = segment.first; i < segment.first + segment.count; ++i) {
        if (i > segment.first) appendStringInfoString(out, ", ");
        append_parameter(out, style, style.order[i], keyset.order_sort[i].base);
    }
    if (row) appendStringInfoChar(out, ')');
}

void append_and(StringInfo out, int start) {
    if (out->len > start) appendStringInfoString(out, " AND ");
}

void append_scope_equal(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                        int column) {
    append_column(out, style, keyset.scope[column]);
    appendStringInfoString(out, " OPERATOR(pg_catalog.=) ");
    append_parameter(out, style, style.scope[column], keyset.scope_sort[column].base);
}

// Leaves out rows of buckets that are another shard's to answer for, and entries that are gone.
void append_visible(StringInfo out, const Keyset &keyset, const ParameterStyle &style, int start) {
    if (keyset.keyspace != nullptr) {
        append_and(out, start);
        appendStringInfo(out, "interlock.owned(%s::pg_catalog.text, ",
                         quote_literal_cstr(keyset.keyspace));
        if (style.alias != nullptr) appendStringInfo(out, "%s.", style.alias);
        appendStringInfo(out, "%s)", quote_identifier(keyset.key_column));
    }
    if (keyset.deleted_attribute != InvalidAttrNumber) {
        append_and(out, start);
        appendStringInfoString(out, "NOT ");
        if (style.alias != nullptr) appendStringInfo(out, "%s.", style.alias);
        appendStringInfoString(out, deleted_column);
    }
}

// Whether an order's column equals the value at its place, NULL and NULL included.
void append_order_equal(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                        const char *values, int column, bool as_ordered) {
    const KeysetColumn &of = keyset.order[column];
    const auto append = [&] {
        as_ordered ? append_ordered_column(out, style, of) : append_column(out, style, of);
    };
    const bool nullable = keyset.order_sort[column].nullable;
    if (nullable) appendStringInfoChar(out, '(');
    append();
    appendStringInfo(out, " OPERATOR(pg_catalog.=) %s.c%d", values, column + 1);
    if (!nullable) return;
    appendStringInfoString(out, " OR ");
    append();
    appendStringInfo(out, " IS NULL AND %s.c%d IS NULL)", values, column + 1);
}

}  // namespace

void append_parameter(StringInfo out, const ParameterStyle &style, int number, Oid type) {
    appendStringInfo(out, "$%d", number);
    // (format_type says "character" for bpchar, which reads back as character(1).)
    if (style.casts)
        appendStringInfo(out, "::%s",
                         type == BPCHAROID ? "pg_catalog.bpchar" : format_type_be_qualified(type));
}

const char *collation_text(Oid collation) {
    HeapTuple tuple = SearchSysCache1(COLLOID, ObjectIdGetDatum(collation));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for collation %u", collation);
    const Form_pg_collation form = reinterpret_cast<Form_pg_collation>(GETSTRUCT(tuple));
    const char *text = quote_qualified_identifier(get_namespace_name(form->collnamespace),
                                                  NameStr(form->collname));
    ReleaseSysCache(tuple);
    return text;
}

int list_ranges(const Keyset &keyset, bool backward, bool has_cursor, std::uint32_t null_mask,
                Range *ranges) {
    if (!has_cursor) {
        ranges[0] = {Range::Kind::all, 0};
        return 1;
    }
    int count = 0;
    for (int i = keyset.segment_count - 1; i >= 0; --i) {
        const int column = keyset.segments[i].first;
        const SortColumn &sort = keyset.order_sort[column];
        const bool nulls_first = sort.nulls_first != backward;
        if (sort.nullable && (null_mask >> column & 1U) != 0) {
            if (nulls_first) ranges[count++] = {Range::Kind::not_null, i};
            continue;
        }
        ranges[count++] = {Range::Kind::after, i};
        if (sort.nullable && !nulls_first) ranges[count++] = {Range::Kind::nulls, i};
    }
    return count;
}

void append_column(StringInfo out, const ParameterStyle &style, const KeysetColumn &column) {
    if (style.alias != nullptr) appendStringInfo(out, "%s.", style.alias);
    appendStringInfoString(out, column.quoted);
}

bool append_scope_condition(StringInfo out, const Keyset &keyset, const ParameterStyle &style) {
    const int start = out->len;
    for (int i = 0; i < keyset.declaration.scope_count; ++i) {
        append_and(out, start);
        append_scope_equal(out, keyset, style, i);
    }
    append_visible(out, keyset, style, start);
    return out->len > start;
}

void append_range_condition(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                            const Range &range, bool backward, std::uint32_t null_mask) {
    const Segment &segment = keyset.segments[range.segment];
    for (int i = 0; i < segment.first; ++i) {
        append_equal(out, keyset, style, i, null_mask);
        appendStringInfoString(out, " AND ");
    }
    switch (range.kind) {
    case Range::Kind::all: appendStringInfoString(out, "true"); break;
    case Range::Kind::after: append_after(out, keyset, style, segment, backward); break;
    case Range::Kind::nulls:
    case Range::Kind::not_null:
        append_ordered_column(out, style, keyset.order[segment.first]);
        appendStringInfoString(out, range.kind == Range::Kind::nulls ? " IS NULL" : " IS NOT NULL");
        break;
    }
}

void append_order_by(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                     bool backward) {
    for (int i = 0; i < keyset.declaration.order_count; ++i) {
        if (i > 0) appendStringInfoString(out, ", ");
        append_ordered_column(out, style, keyset.order[i]);
        appendStringInfo(out, " %s NULLS %s",
                         keyset.order_sort[i].descending != backward ? "DESC" : "ASC",
                         keyset.order[i].sql_nulls_first != backward ? "FIRST" : "LAST");
    }
}

// Only the unique index is to serve this. An index of other columns might look as good to the
// planner, which knows averages only, and then be read through for a value that many rows have: so
// what is not of that index is written in a form that no index takes.
void append_lookup_condition(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                             const char *values) {
    const int start = out->len;
    for (int i = 0; i < keyset.declaration.scope_count; ++i) {
        const bool of_key = (keyset.key_scope >> i & 1U) != 0;
        append_and(out, start);
        if (!of_key) appendStringInfoChar(out, '(');
        append_scope_equal(out, keyset, style, i);
        if (!of_key) appendStringInfoString(out, ") IS TRUE");
    }
    for (int i = 0; i < keyset.declaration.order_count; ++i) {
        const bool of_key = (keyset.key_order >> i & 1U) != 0;
        append_and(out, start);
        if (!of_key) appendStringInfoChar(out, '(');
        append_order_equal(out, keyset, style, values, i, true);
        if (!of_key) appendStringInfoString(out, ") IS TRUE");
        if (!of_key || !OidIsValid(keyset.order[i].explicit_collation)) continue;
        // The index may be of the column's own collation.
        append_and(out, start);
        append_order_equal(out, keyset, style, values, i, false);
    }
    append_visible(out, keyset, style, start);
}

}  // namespace interlock
