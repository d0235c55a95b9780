// Which indexes make an order total, and which serve its pages.
#include "pg.h"

#include "errors.h"
#include "keyset.h"

namespace interlock {

namespace {

// An index as the catalogs show it.
struct Index {
    const FormData_pg_index *form;
    const oidvector *classes;
    const oidvector *collations;
    const int2vector *options;
    bool plain;                 ///< no expressions
    bool whole;                 ///< no expressions, no predicate
    AttrNumber live_attribute;  ///< the predicate is NOT of this column; 0: it is not of this form
};

// Of "NOT column": the column.
AttrNumber negated_column(const char *predicate) {
    const BoolExpr *negation = static_cast<const BoolExpr *>(stringToNode(predicate));
    if (!IsA(negation, BoolExpr) || negation->boolop != NOT_EXPR) return InvalidAttrNumber;
    const Var *column = static_cast<const Var *>(linitial(negation->args));
    return IsA(column, Var) ? column->varattno : InvalidAttrNumber;
}

Index read_index(HeapTuple tuple) {
    const auto get = [tuple](AttrNumber attribute) {
        bool isnull;
        return DatumGetPointer(SysCacheGetAttr(INDEXRELID, tuple, attribute, &isnull));
    };
    const bool plain = heap_attisnull(tuple, Anum_pg_index_indexprs, nullptr);
    const bool partial = !heap_attisnull(tuple, Anum_pg_index_indpred, nullptr);
    return {reinterpret_cast<const FormData_pg_index *>(GETSTRUCT(tuple)),
            reinterpret_cast<const oidvector *>(get(Anum_pg_index_indclass)),
            reinterpret_cast<const oidvector *>(get(Anum_pg_index_indcollation)),
            reinterpret_cast<const int2vector *>(get(Anum_pg_index_indoption)),
            plain,
            plain && !partial,
            partial
                ? negated_column(TextDatumGetCString(PointerGetDatum(get(Anum_pg_index_indpred))))
                : static_cast<AttrNumber>(InvalidAttrNumber)};
}

// Calls visit(index) for each index of a table.
template <typename Visit>
void each_index(Oid relid, Visit visit) {
    Relation catalog = table_open(IndexRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relid));
    SysScanDesc scan = systable_beginscan(catalog, IndexIndrelidIndexId, true, nullptr, 1, &key);
    List *indexes = NIL;
    HeapTuple found;
    while (HeapTupleIsValid(found = systable_getnext(scan)))
        indexes = lappend_oid(
            indexes, reinterpret_cast<const FormData_pg_index *>(GETSTRUCT(found))->indexrelid);
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    // By OID, as the planner has them: of several that serve, the same one each time.
    list_sort(indexes, list_oid_cmp);
    ListCell *cell;
    foreach (cell, indexes) {
        HeapTuple tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(cell)));
        if (!HeapTupleIsValid(tuple)) continue;
        visit(read_index(tuple));
        ReleaseSysCache(tuple);
    }
    list_free(indexes);
}

// Whether key column `position` of the index compares as ORDER BY does. (That family is of btrees.)
bool compares_as_order(const Index &index, int position, const SortColumn &sort) {
    const Oid standard = GetDefaultOpClass(sort.base, BTREE_AM_OID);
    return OidIsValid(standard) &&
           get_opclass_family(index.classes->values[position]) == get_opclass_family(standard);
}

int find_attribute(const KeysetColumn *columns, int count, AttrNumber attribute) {
    for (int i = 0; i < count; ++i)
        if (columns[i].attribute == attribute) return i;
    return -1;
}

// Whether at most one row of a scope has the same values in the order's columns, by this index. If
// so, its columns as bits.
bool makes_total(const Index &index, const Keyset &keyset, std::uint32_t *scope,
                 std::uint32_t *order) {
    const FormData_pg_index *form = index.form;
    if (!form->indisunique || !form->indisvalid || !form->indimmediate || !index.whole)
        return false;
    const KeysetDeclaration &declaration = keyset.declaration;
    *scope = *order = 0;
    for (int i = 0; i < form->indnkeyatts; ++i) {
        const AttrNumber attribute = form->indkey.values[i];
        // A scope's columns have one value each, never NULL.
        int found = find_attribute(keyset.scope, declaration.scope_count, attribute);
        if (found >= 0 && compares_as_order(index, i, keyset.scope_sort[found])) {
            *scope |= 1U << found;
            continue;
        }
        found = find_attribute(keyset.order, declaration.order_count, attribute);
        if (found < 0 || keyset.order_sort[found].nullable ||
            !compares_as_order(index, i, keyset.order_sort[found]))
            return false;
        *order |= 1U << found;
    }
    return true;
}

// Whether the index holds each scope in the declared order, or wholly in the reverse of it. Where
// a column has no NULLs their place does not matter, but a statement has to say it as the index
// does for the planner to see it.
bool serves(const Index &index, const Keyset &keyset, bool *nulls_first) {
    const FormData_pg_index *form = index.form;
    const KeysetDeclaration &declaration = keyset.declaration;
    const int scope_count = declaration.scope_count, order_count = declaration.order_count;
    const bool live = keyset.deleted_attribute != InvalidAttrNumber && index.plain &&
                      index.live_attribute == keyset.deleted_attribute;
    if (!form->indisvalid || !(index.whole || live) ||
        form->indnkeyatts < scope_count + order_count)
        return false;
    std::uint32_t seen = 0;
    for (int i = 0; i < scope_count; ++i) {
        const int found = find_attribute(keyset.scope, scope_count, form->indkey.values[i]);
        if (found < 0 || (seen & (1U << found)) != 0 ||
            !compares_as_order(index, i, keyset.scope_sort[found]) ||
            index.collations->values[i] != keyset.scope_sort[found].collation)
            return false;
        seen |= 1U << found;
    }
    bool reversed = false;
    for (int i = 0; i < order_count; ++i) {
        const int position = scope_count + i;
        const SortColumn &sort = keyset.order_sort[i];
        if (form->indkey.values[position] != keyset.order[i].attribute ||
            !compares_as_order(index, position, sort) ||
            index.collations->values[position] != sort.collation)
            return false;
        const std::int16_t option = index.options->values[position];
        const bool descending = (option & INDOPTION_DESC) != 0;
        if (i == 0) reversed = descending != sort.descending;
        if ((descending != sort.descending) != reversed) return false;
        nulls_first[i] = ((option & INDOPTION_NULLS_FIRST) != 0) != reversed;
        if (sort.nullable && nulls_first[i] != sort.nulls_first) return false;
    }
    return true;
}

const char *comma_list(const KeysetColumn *columns, int count) {
    StringInfoData list;
    initStringInfo(&list);
    for (int i = 0; i < count; ++i)
        appendStringInfo(&list, "%s%s", i > 0 ? ", " : "", columns[i].quoted);
    return list.data;
}

// "End the order with the columns of the primary key: ...", where there is one.
const char *total_order_hint(Oid relid) {
    StringInfoData hint;
    initStringInfo(&hint);
    each_index(relid, [&](const Index &index) {
        if (!index.form->indisprimary) return;
        appendStringInfoString(&hint, "End the order with the columns of the primary key:");
        for (int i = 0; i < index.form->indnkeyatts; ++i)
            appendStringInfo(
                &hint, "%s %s", i > 0 ? "," : "",
                quote_identifier(get_attname(relid, index.form->indkey.values[i], false)));
        appendStringInfoChar(&hint, '.');
    });
    return hint.len > 0 ? hint.data : "Give the table a primary key, and end the order with it.";
}

}  // namespace

const char *create_index_text(const Keyset &keyset) {
    const KeysetDeclaration &declaration = keyset.declaration;
    StringInfoData text;
    initStringInfo(&text);
    appendStringInfo(&text, "CREATE INDEX ON %s (", keyset.table);
    if (declaration.scope_count > 0)
        appendStringInfo(&text, "%s, ", comma_list(keyset.scope, declaration.scope_count));
    for (int i = 0; i < declaration.order_count; ++i) {
        const SortColumn &sort = keyset.order_sort[i];
        appendStringInfo(&text, "%s%s", i > 0 ? ", " : "", keyset.order[i].quoted);
        if (OidIsValid(keyset.order[i].explicit_collation))
            appendStringInfo(&text, " COLLATE %s",
                             collation_text(keyset.order[i].explicit_collation));
        if (sort.descending) appendStringInfoString(&text, " DESC");
        if (sort.nullable && sort.nulls_first != sort.descending)
            appendStringInfoString(&text, sort.nulls_first ? " NULLS FIRST" : " NULLS LAST");
    }
    appendStringInfoString(&text, ")");
    if (keyset.deleted_attribute != InvalidAttrNumber)
        appendStringInfo(&text, " WHERE NOT %s", deleted_column);
    return text.data;
}

bool look_at_indexes(Oid relid, Keyset *keyset, Problem *problem) {
    const KeysetDeclaration &declaration = keyset->declaration;
    bool total = false, served = false;
    each_index(relid, [&](const Index &index) {
        bool nulls_first[max_keyset_columns];
        std::uint32_t scope, order;
        // (Of several, the primary key.)
        if ((!total || index.form->indisprimary) && makes_total(index, *keyset, &scope, &order)) {
            total = true;
            keyset->key_scope = scope;
            keyset->key_order = order;
        }
        if (served || !serves(index, *keyset, nulls_first)) return;
        served = true;
        for (int i = 0; i < declaration.order_count; ++i)
            keyset->order[i].sql_nulls_first = nulls_first[i];
    });
    if (!served) keyset->missing_index = create_index_text(*keyset);
    if (total) return true;
    if (declaration.source.keyset != nullptr) {
        // As the source's is; and a look-up takes what index there is.
        keyset->key_scope = keyset->key_order = ~std::uint32_t{0};
        return true;
    }
    *problem = {ERRCODE_INTERLOCK_NOT_TOTAL_ORDER,
                psprintf("order of keyset \"%s\" is not total", declaration.name),
                psprintf("No valid, immediate unique index over NOT NULL columns lies within (%s).",
                         comma_list(keyset->order, declaration.order_count)),
                total_order_hint(relid)};
    return false;
}

}  // namespace interlock
