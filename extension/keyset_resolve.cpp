// A declaration against its table: every check, and all that pages need to know.
#include "pg.h"

#include "errors.h"
#include "keyset.h"
#include "ownership.h"

namespace interlock {

void raise(const Problem &problem) {
    ereport(ERROR, (errcode(problem.sqlstate), errmsg_internal("%s", problem.message),
                    problem.detail != nullptr ? errdetail_internal("%s", problem.detail) : 0,
                    problem.hint != nullptr ? errhint("%s", problem.hint) : 0));
    pg_unreachable();
}

namespace {

bool fail(Problem *problem, int sqlstate, const char *message, const char *detail = nullptr,
          const char *hint = nullptr) {
    *problem = {sqlstate, message, detail, hint};
    return false;
}

// The table as the catalogs show it. No lock is taken, so that a router can ask for the state of a
// keyset whatever is done to its table; whoever reads rows has locked the table before.
struct Table {
    Oid relid;
    const char *name;
    const char *schema;
    FormData_pg_class form;
};

bool find_table(Oid relid, Table *table) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
    if (!HeapTupleIsValid(tuple)) return false;
    table->relid = relid;
    std::memcpy(&table->form, GETSTRUCT(tuple), CLASS_TUPLE_SIZE);
    table->name = pstrdup(NameStr(table->form.relname));
    table->schema = get_namespace_name(table->form.relnamespace);
    ReleaseSysCache(tuple);
    return table->schema != nullptr;
}

bool check_table(const Table &table, const char *keyset, Problem *problem) {
    const FormData_pg_class &form = table.form;
    if (form.relkind != RELKIND_RELATION && form.relkind != RELKIND_PARTITIONED_TABLE)
        return fail(problem, ERRCODE_WRONG_OBJECT_TYPE,
                    psprintf("\"%s\" is not a table", table.name),
                    "Only ordinary and partitioned tables have keysets.");
    if (form.relpersistence == RELPERSISTENCE_TEMP || IsCatalogRelationOid(table.relid) ||
        form.relnamespace == get_namespace_oid("interlock", true))
        return fail(problem, ERRCODE_WRONG_OBJECT_TYPE,
                    psprintf("table \"%s\" cannot have a keyset", table.name),
                    "It is temporary, or belongs to the system.");
    // A unique index of the parent says nothing of the children's rows.
    if (form.relkind == RELKIND_RELATION && form.relhassubclass &&
        find_inheritance_children(table.relid, NoLock) != NIL)
        return fail(problem, ERRCODE_INTERLOCK_NOT_TOTAL_ORDER,
                    psprintf("order of keyset \"%s\" is not total", keyset),
                    psprintf("Table \"%s\" has inheritance children, and no index is unique over "
                             "their rows and its own.",
                             table.name),
                    "Use a partitioned table.");
    return true;
}

bool check_collation(const char *keyset, const char *column, Oid own, Oid given, SortColumn *sort,
                     Problem *problem) {
    sort->collation = OidIsValid(given) ? given : own;
    if (OidIsValid(given) && !OidIsValid(own))
        return fail(problem, ERRCODE_DATATYPE_MISMATCH,
                    psprintf("column \"%s\" of keyset \"%s\" has no collation", column, keyset),
                    psprintf("Its type is %s.", format_type_be(sort->type)));
    if (!OidIsValid(sort->collation)) return true;
    if (!SearchSysCacheExists1(COLLOID, ObjectIdGetDatum(sort->collation)))
        return fail(
            problem, ERRCODE_UNDEFINED_OBJECT,
            psprintf("collation of column \"%s\" of keyset \"%s\" does not exist", column, keyset),
            nullptr, "Declare the keyset again.");
    if (!get_collation_isdeterministic(sort->collation))
        return fail(problem, ERRCODE_FEATURE_NOT_SUPPORTED,
                    psprintf("column \"%s\" of keyset \"%s\" has nondeterministic collation \"%s\"",
                             column, keyset, get_collation_name(sort->collation)),
                    "Values that it calls equal have no single spelling in a cursor.",
                    "Write COLLATE and a deterministic collation after the column.");
    return true;
}

bool resolve_column(const Table &table, const char *keyset, const char *name, Oid given,
                    KeysetColumn *column, SortColumn *sort, Problem *problem) {
    HeapTuple tuple = SearchSysCacheAttName(table.relid, name);
    const FormData_pg_attribute *attribute =
        HeapTupleIsValid(tuple) ? reinterpret_cast<FormData_pg_attribute *>(GETSTRUCT(tuple))
                                : nullptr;
    if (attribute == nullptr || attribute->attnum <= 0) {
        if (attribute != nullptr) ReleaseSysCache(tuple);
        return fail(problem, ERRCODE_UNDEFINED_COLUMN,
                    psprintf("column \"%s\" of keyset \"%s\" does not exist in table \"%s\"", name,
                             keyset, table.name));
    }
    const Oid own_collation = attribute->attcollation;
    column->attribute = attribute->attnum;
    sort->type = attribute->atttypid;
    sort->nullable = !attribute->attnotnull;
    ReleaseSysCache(tuple);
    column->name = pstrdup(name);
    column->quoted = quote_identifier(column->name);
    if (!resolve_sort_type(sort))
        return fail(problem, ERRCODE_DATATYPE_MISMATCH,
                    psprintf("column \"%s\" of keyset \"%s\" is of type %s, which keysets do not "
                             "support",
                             name, keyset, format_type_be(sort->type)),
                    "Scope and order are made of integers, numeric, floats, boolean, text, "
                    "character, bytea, uuid, date, time, timestamps, interval and enums, and of "
                    "domains over these.");
    // The operators of enums take enums only, not domains over them.
    if (type_is_enum(sort->base) && sort->type != sort->base)
        return fail(problem, ERRCODE_DATATYPE_MISMATCH,
                    psprintf("column \"%s\" of keyset \"%s\" is of type %s, a domain over an "
                             "enum, which keysets do not support",
                             name, keyset, format_type_be(sort->type)));
    if (!check_collation(keyset, name, own_collation, given, sort, problem)) return false;
    column->explicit_collation = sort->collation == own_collation ? InvalidOid : sort->collation;
    getTypeInputInfo(sort->base, &column->input, &column->input_parameter);
    return true;
}

bool resolve_columns(const Table &table, Keyset *keyset, Problem *problem) {
    const KeysetDeclaration &declaration = keyset->declaration;
    const std::size_t scope_count = static_cast<std::size_t>(declaration.scope_count);
    const std::size_t order_count = static_cast<std::size_t>(declaration.order_count);
    keyset->scope = static_cast<KeysetColumn *>(palloc0(sizeof(KeysetColumn) * (scope_count + 1)));
    keyset->scope_sort = static_cast<SortColumn *>(palloc0(sizeof(SortColumn) * (scope_count + 1)));
    keyset->order = static_cast<KeysetColumn *>(palloc0(sizeof(KeysetColumn) * order_count));
    keyset->order_sort = static_cast<SortColumn *>(palloc0(sizeof(SortColumn) * order_count));
    for (int i = 0; i < declaration.scope_count; ++i)
        if (!resolve_column(table, declaration.name, declaration.scope[i], InvalidOid,
                            &keyset->scope[i], &keyset->scope_sort[i], problem))
            return false;
    for (int i = 0; i < declaration.order_count; ++i) {
        const OrderItem &item = declaration.order[i];
        SortColumn *sort = &keyset->order_sort[i];
        sort->descending = item.descending;
        sort->nulls_first = item.nulls_first;
        if (!resolve_column(table, declaration.name, item.column, item.collation, &keyset->order[i],
                            sort, problem))
            return false;
        keyset->order[i].sql_nulls_first = item.nulls_first;
    }
    return true;
}

// An index table's entries are of no keyspace, and tell themselves which of them are gone.
bool resolve_index(const Table &table, Keyset *keyset, Problem *problem) {
    if (keyset->declaration.source.keyset == nullptr) return true;
    HeapTuple tuple = SearchSysCacheAttName(table.relid, deleted_column);
    const bool found =
        HeapTupleIsValid(tuple) &&
        reinterpret_cast<FormData_pg_attribute *>(GETSTRUCT(tuple))->atttypid == BOOLOID &&
        reinterpret_cast<FormData_pg_attribute *>(GETSTRUCT(tuple))->attnotnull;
    if (found)
        keyset->deleted_attribute =
            reinterpret_cast<FormData_pg_attribute *>(GETSTRUCT(tuple))->attnum;
    if (HeapTupleIsValid(tuple)) ReleaseSysCache(tuple);
    return found ||
           fail(problem, ERRCODE_UNDEFINED_COLUMN,
                psprintf("table \"%s\" is not an index table", table.name),
                psprintf("It has no column \"%s\" that is boolean and NOT NULL.", deleted_column));
}

// Whether rows are merged across shards, and whether their collations allow it.
bool resolve_scatter(Keyset *keyset, Problem *problem) {
    const KeysetDeclaration &declaration = keyset->declaration;
    const Ownership &ownership = current_ownership();
    const GuardedTable *guarded = guarding(ownership, declaration.relid);
    keyset->ownership_generation = ownership.generation;
    keyset->is_shard = ownership.is_shard;
    if (guarded != nullptr) {
        keyset->keyspace = pstrdup(guarded->keyspace);
        keyset->key_column = pstrdup(guarded->key_column);
    }
    keyset->scatter =
        declaration.scatter == ScatterRule::yes || (declaration.scatter == ScatterRule::as_table &&
                                                    (guarded != nullptr || ownership.is_shard));
    keyset->mergeable = true;
    for (int i = 0; i < declaration.order_count; ++i) {
        const char *obstacle = collation_problem(keyset->order_sort[i]);
        if (obstacle == nullptr) continue;
        keyset->mergeable = false;
        if (keyset->scatter || declaration.source.keyset != nullptr)
            return fail(
                problem, ERRCODE_FEATURE_NOT_SUPPORTED,
                psprintf("column \"%s\" of keyset \"%s\" cannot be merged across shards",
                         keyset->order[i].name, declaration.name),
                obstacle,
                psprintf("Write %s COLLATE \"C\" in the order, or use an ICU collation; or declare "
                         "the keyset with scatter => false.",
                         keyset->order[i].quoted));
    }
    return true;
}

void append_string(StringInfo out, const char *string) {
    const std::uint32_t length = pg_hton32(static_cast<std::uint32_t>(std::strlen(string)));
    appendBinaryStringInfo(out, reinterpret_cast<const char *>(&length), sizeof(length));
    appendStringInfoString(out, string);
}

// Its names as they are stored: how they are quoted depends on the session's settings.
void append_type(StringInfo out, Oid type) {
    HeapTuple tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for type %u", type);
    const Form_pg_type form = reinterpret_cast<Form_pg_type>(GETSTRUCT(tuple));
    append_string(out, get_namespace_name(form->typnamespace));
    append_string(out, NameStr(form->typname));
    ReleaseSysCache(tuple);
}

// Everything that decides which rows a cursor has behind it, and nothing that differs between two
// databases with the same declaration (as OIDs do).
void digest_keyset(const Table &table, Keyset *keyset) {
    constexpr const char *format = "interlock keyset 1";
    const KeysetDeclaration &declaration = keyset->declaration;
    // An index's pages are pages of its source.
    const IndexSource source = declaration.source.keyset != nullptr
                                   ? declaration.source
                                   : IndexSource{declaration.name, table.schema, table.name};
    StringInfoData bytes, order;
    initStringInfo(&bytes);
    append_string(&bytes, format);
    append_string(&bytes, source.keyset);
    append_string(&bytes, source.schema);
    append_string(&bytes, source.table);
    append_string(&bytes, declaration.is_signed ? "signed" : "unsigned");
    append_string(&bytes, psprintf("%d", declaration.scope_count));
    for (int i = 0; i < declaration.scope_count; ++i) {
        append_string(&bytes, keyset->scope[i].name);
        append_type(&bytes, keyset->scope_sort[i].base);
    }
    append_string(&bytes, psprintf("%d", declaration.order_count));
    for (int i = 0; i < declaration.order_count; ++i) {
        const SortColumn &sort = keyset->order_sort[i];
        append_string(&bytes, keyset->order[i].name);
        append_string(&bytes, sort.descending ? "desc" : "asc");
        append_string(&bytes, sort.nulls_first ? "first" : "last");
        initStringInfo(&order);
        describe_order(sort, &order);
        append_string(&bytes, order.data);
    }
    make_digest(bytes.data, static_cast<std::size_t>(bytes.len), keyset->digest);
}

// One row comparison covers adjacent columns of one direction without NULLs.
void divide_into_segments(Keyset *keyset) {
    const int count = keyset->declaration.order_count;
    keyset->segments =
        static_cast<Segment *>(palloc(sizeof(Segment) * static_cast<std::size_t>(count)));
    for (int i = 0; i < count; ++i) {
        const SortColumn &sort = keyset->order_sort[i];
        if (i > 0 && !sort.nullable && !keyset->order_sort[i - 1].nullable &&
            sort.descending == keyset->order_sort[i - 1].descending)
            ++keyset->segments[keyset->segment_count - 1].count;
        else
            keyset->segments[keyset->segment_count++] = {i, 1};
    }
}

const char *free_alias(Oid relid) {
    const char *alias = "page_row";
    while (get_attnum(relid, alias) != InvalidAttrNumber)
        alias = psprintf("%s_", alias);
    return alias;
}

bool has_plain_rows(const Table &table) {
    if (table.form.relkind != RELKIND_RELATION) return false;
    for (int i = 1; i <= table.form.relnatts; ++i) {
        HeapTuple tuple = SearchSysCacheAttNum(table.relid, static_cast<AttrNumber>(i));
        if (!HeapTupleIsValid(tuple)) return false;
        ReleaseSysCache(tuple);
    }
    return true;
}

void describe_page(Keyset *keyset) {
    TupleDesc description = CreateTemplateTupleDesc(5);
    TupleDescInitEntry(description, 1, "item", keyset->row_type, -1, 0);
    TupleDescInitEntry(description, 2, "cursor", TEXTOID, -1, 0);
    TupleDescInitEntry(description, 3, "sort_key", BYTEAOID, -1, 0);
    TupleDescInitEntry(description, 4, "complete", BOOLOID, -1, 0);
    TupleDescInitEntry(description, 5, "missing_shards", TEXTARRAYOID, -1, 0);
    // Stored plainly, a row keeps its long header, and each column that a statement takes of it is
    // read in place instead of from a copy.
    TupleDescAttr(description, 0)->attstorage = TYPSTORAGE_PLAIN;
    populate_compact_attribute(description, 0);
    keyset->page_description = BlessTupleDesc(description);
}

void copy_declaration(const KeysetDeclaration &from, KeysetDeclaration *to) {
    *to = from;
    to->name = pstrdup(from.name);
    if (from.source.keyset != nullptr)
        to->source = {pstrdup(from.source.keyset), pstrdup(from.source.schema),
                      pstrdup(from.source.table)};
    to->scope = static_cast<const char **>(
        palloc0(sizeof(char *) * static_cast<std::size_t>(from.scope_count + 1)));
    for (int i = 0; i < from.scope_count; ++i)
        to->scope[i] = pstrdup(from.scope[i]);
    to->order = static_cast<OrderItem *>(
        palloc0(sizeof(OrderItem) * static_cast<std::size_t>(from.order_count)));
    for (int i = 0; i < from.order_count; ++i) {
        to->order[i] = from.order[i];
        to->order[i].column = pstrdup(from.order[i].column);
    }
}

// What messages of the system caches the keyset depends on.
void note_dependencies(const Table &table, Keyset *keyset) {
    const KeysetDeclaration &declaration = keyset->declaration;
    keyset->namespace_hash =
        GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(table.form.relnamespace));
    keyset->type_hashes = static_cast<std::uint32_t *>(
        palloc(sizeof(std::uint32_t) * 2 *
               static_cast<std::size_t>(declaration.scope_count + declaration.order_count)));
    const auto note = [keyset](const SortColumn &sort) {
        for (Oid type : {sort.type, sort.base})
            if (type >= FirstNormalObjectId)
                keyset->type_hashes[keyset->type_hash_count++] =
                    GetSysCacheHashValue1(TYPEOID, ObjectIdGetDatum(type));
        keyset->has_enum = keyset->has_enum || type_is_enum(sort.base);
    };
    for (int i = 0; i < declaration.scope_count; ++i)
        note(keyset->scope_sort[i]);
    for (int i = 0; i < declaration.order_count; ++i)
        note(keyset->order_sort[i]);
}

bool resolve_in(const Table &table, Keyset *keyset, Problem *problem) {
    if (!check_table(table, keyset->declaration.name, problem)) return false;
    keyset->row_type = table.form.reltype;
    keyset->table = quote_qualified_identifier(table.schema, table.name);
    keyset->row_alias = free_alias(table.relid);
    keyset->plain_rows = has_plain_rows(table);
    if (!resolve_columns(table, keyset, problem) || !resolve_index(table, keyset, problem) ||
        !resolve_scatter(keyset, problem) || !look_at_indexes(table.relid, keyset, problem))
        return false;
    divide_into_segments(keyset);
    describe_page(keyset);
    note_dependencies(table, keyset);
    digest_keyset(table, keyset);
    return true;
}

}  // namespace

Keyset *resolve_keyset(const KeysetDeclaration &declaration, Problem *problem) {
    MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "interlock keyset", ALLOCSET_SMALL_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    Keyset *keyset = static_cast<Keyset *>(palloc0(sizeof(Keyset)));
    keyset->context = context;
    copy_declaration(declaration, &keyset->declaration);
    Table table;
    const bool resolved =
        find_table(declaration.relid, &table)
            ? resolve_in(table, keyset, problem)
            : fail(problem, ERRCODE_UNDEFINED_TABLE,
                   psprintf("table of keyset \"%s\" does not exist", declaration.name));
    MemoryContextSwitchTo(old);
    // A problem's strings are in the context: it goes with the caller's.
    return resolved ? keyset : nullptr;
}

}  // namespace interlock
