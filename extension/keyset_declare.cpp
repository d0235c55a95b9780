// keyset_create() and keyset_drop().
#include "pg.h"

extern "C" {
#include "catalog/objectaddress.h"
#include "parser/parser.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/varlena.h"
}

#include "errors.h"
#include "keyset.h"
#include "ownership.h"

namespace interlock {

namespace {

constexpr const char *order_prefix = "SELECT 1 ORDER BY ";

// Positions of syntax errors are to count in the order, not in the statement made of it.
void point_into_order(void *argument) {
    const char *order = static_cast<const char *>(argument);
    const int position = geterrposition();
    if (position <= 0) return;
    errposition(0);
    internalerrposition(Max(position - static_cast<int>(std::strlen(order_prefix)), 1));
    internalerrquery(order);
}

[[noreturn]] void refuse_order(const char *order, const char *detail) {
    ereport(ERROR, (errcode(ERRCODE_SYNTAX_ERROR), errmsg("invalid order: \"%s\"", order),
                    errdetail_internal("%s", detail),
                    errhint("An order reads as in ORDER BY: plain columns, each with COLLATE, ASC "
                            "or DESC, and NULLS FIRST or LAST as needed.")));
    pg_unreachable();
}

OrderItem order_item(const SortBy *by, const char *order) {
    OrderItem item = {};
    const Node *node = by->node;
    if (IsA(node, CollateClause)) {
        const CollateClause *collate = reinterpret_cast<const CollateClause *>(node);
        item.collation = get_collation_oid(collate->collname, false);
        node = collate->arg;
    }
    const ColumnRef *column = reinterpret_cast<const ColumnRef *>(node);
    if (!IsA(node, ColumnRef) || list_length(column->fields) != 1 ||
        !IsA(linitial(column->fields), String))
        refuse_order(order, "It holds something else than plain columns.");
    if (by->sortby_dir == SORTBY_USING) refuse_order(order, "USING is not supported.");
    item.column = strVal(linitial(column->fields));
    item.descending = by->sortby_dir == SORTBY_DESC;
    item.nulls_first = by->sortby_nulls == SORTBY_NULLS_DEFAULT
                           ? item.descending
                           : by->sortby_nulls == SORTBY_NULLS_FIRST;
    return item;
}

// The statement must be nothing but the prefix and an order.
const List *parse_order(const char *order) {
    ErrorContextCallback callback;
    callback.callback = point_into_order;
    callback.arg = const_cast<char *>(order);
    callback.previous = error_context_stack;
    error_context_stack = &callback;
    const List *statements = raw_parser(psprintf("%s%s", order_prefix, order), RAW_PARSE_DEFAULT);
    error_context_stack = callback.previous;
    const SelectStmt *select =
        list_length(statements) != 1
            ? nullptr
            : reinterpret_cast<const SelectStmt *>(linitial_node(RawStmt, statements)->stmt);
    if (select == nullptr || !IsA(select, SelectStmt) || select->op != SETOP_NONE ||
        select->limitCount != nullptr || select->limitOffset != nullptr ||
        select->lockingClause != NIL || select->sortClause == NIL)
        refuse_order(order, "It holds more than an order.");
    return select->sortClause;
}

void read_order(const char *order, KeysetDeclaration *declaration) {
    const List *items = parse_order(order);
    if (list_length(items) > max_keyset_columns)
        refuse_order(order, psprintf("It has more than %d columns.", max_keyset_columns));
    declaration->order = static_cast<OrderItem *>(
        palloc(sizeof(OrderItem) * static_cast<std::size_t>(list_length(items))));
    ListCell *cell;
    foreach (cell, items)
        declaration->order[declaration->order_count++] =
            order_item(lfirst_node(SortBy, cell), order);
}

void read_scope_columns(ArrayType *array, KeysetDeclaration *declaration) {
    Datum *elements;
    bool *nulls;
    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                        errmsg("scope must be a one-dimensional array of column names")));
    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls,
                      &declaration->scope_count);
    if (declaration->scope_count > max_keyset_columns)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("scope has more than %d columns", max_keyset_columns)));
    declaration->scope = static_cast<const char **>(
        palloc(sizeof(char *) * static_cast<std::size_t>(declaration->scope_count + 1)));
    for (int i = 0; i < declaration->scope_count; ++i) {
        if (nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("scope columns must not be null")));
        declaration->scope[i] = TextDatumGetCString(elements[i]);
    }
}

void refuse_repeated_columns(const KeysetDeclaration &declaration) {
    const char *names[2 * max_keyset_columns];
    int count = 0;
    for (int i = 0; i < declaration.scope_count; ++i)
        names[count++] = declaration.scope[i];
    for (int i = 0; i < declaration.order_count; ++i)
        names[count++] = declaration.order[i].column;
    for (int i = 0; i < count; ++i)
        for (int k = 0; k < i; ++k)
            if (std::strcmp(names[i], names[k]) == 0)
                ereport(ERROR, (errcode(ERRCODE_DUPLICATE_COLUMN),
                                errmsg("column \"%s\" appears more than once in scope and order",
                                       names[i])));
}

void check_page_sizes(const KeysetDeclaration &declaration) {
    if (declaration.max_page < 1)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("max_page must be at least 1")));
    if (declaration.default_page < 1 || declaration.default_page > declaration.max_page)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("default_page must be between 1 and max_page"),
                        errdetail("default_page is %d, max_page is %d.", declaration.default_page,
                                  declaration.max_page)));
}

void check_name(const char *name) {
    if (name[0] == '\0' || std::strlen(name) >= NAMEDATALEN)
        ereport(
            ERROR,
            (errcode(ERRCODE_INVALID_NAME),
             errmsg("invalid keyset name: \"%.*s\"",
                    pg_mbcliplen(name, static_cast<int>(std::strlen(name)), 2 * NAMEDATALEN), name),
             errdetail("A name has 1 to %d bytes.", NAMEDATALEN - 1)));
}

void require_owner(Oid relid) {
    if (pg_class_ownercheck(relid, GetUserId())) return;
    aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)),
                   get_rel_name(relid));
}

// As the extension's owner: whoever owns the table may declare its keysets, if they may call this
// at all, and may not write to the extension's tables.
void run_as_owner(const char *command, int count, Oid *types, Datum *values, const char *nulls,
                  int expected) {
    Oid caller;
    int context;
    GetUserIdAndSecContext(&caller, &context);
    // Should this raise an error, the end of the (sub)transaction puts the caller back, and the
    // caller's search_path, under which nothing may be looked up with the owner's rights.
    const int level = NewGUCNestLevel();
    set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
                      GUC_ACTION_SAVE, true, 0, false);
    SetUserIdAndSecContext(extension_owner(), context | SECURITY_LOCAL_USERID_CHANGE);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    if (SPI_execute_with_args(command, count, types, values, nulls, false, 0) != expected)
        elog(ERROR, "SPI_execute failed: %s", command);
    SPI_finish();
    SetUserIdAndSecContext(caller, context);
    AtEOXact_GUC(true, level);
}

Datum array_of(Datum *elements, int count, Oid type) {
    std::int16_t length;
    bool by_value;
    char align;
    get_typlenbyvalalign(type, &length, &by_value, &align);
    return PointerGetDatum(construct_array(elements, count, type, length, by_value, align));
}

void store(const KeysetDeclaration &declaration) {
    Datum scope[max_keyset_columns], columns[max_keyset_columns], descending[max_keyset_columns],
        nulls_first[max_keyset_columns], collations[max_keyset_columns];
    for (int i = 0; i < declaration.scope_count; ++i)
        scope[i] = CStringGetTextDatum(declaration.scope[i]);
    for (int i = 0; i < declaration.order_count; ++i) {
        const OrderItem &item = declaration.order[i];
        columns[i] = CStringGetTextDatum(item.column);
        descending[i] = BoolGetDatum(item.descending);
        nulls_first[i] = BoolGetDatum(item.nulls_first);
        collations[i] = ObjectIdGetDatum(item.collation);
    }
    const int count = declaration.order_count;
    Oid types[] = {TEXTOID,
                   REGCLASSOID,
                   TEXTARRAYOID,
                   TEXTARRAYOID,
                   BOOLARRAYOID,
                   BOOLARRAYOID,
                   REGCOLLATIONARRAYOID,
                   INT4OID,
                   INT4OID,
                   BOOLOID,
                   BOOLOID,
                   TEXTOID,
                   TEXTOID,
                   TEXTOID};
    const IndexSource &source = declaration.source;
    const auto source_name = [&source](const char *name) {
        return source.keyset != nullptr ? CStringGetTextDatum(name) : static_cast<Datum>(0);
    };
    Datum values[] = {CStringGetTextDatum(declaration.name),
                      ObjectIdGetDatum(declaration.relid),
                      array_of(scope, declaration.scope_count, TEXTOID),
                      array_of(columns, count, TEXTOID),
                      array_of(descending, count, BOOLOID),
                      array_of(nulls_first, count, BOOLOID),
                      array_of(collations, count, REGCOLLATIONOID),
                      Int32GetDatum(declaration.max_page),
                      Int32GetDatum(declaration.default_page),
                      BoolGetDatum(declaration.is_signed),
                      BoolGetDatum(declaration.scatter == ScatterRule::yes),
                      source_name(source.keyset),
                      source_name(source.schema),
                      source_name(source.table)};
    static_assert(lengthof(values) == lengthof(types));
    char nulls[lengthof(values)];
    std::memset(nulls, ' ', sizeof(nulls));
    if (declaration.scatter == ScatterRule::as_table) nulls[10] = 'n';
    if (source.keyset == nullptr) nulls[11] = nulls[12] = nulls[13] = 'n';
    run_as_owner("INSERT INTO interlock.keyset VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, "
                 "$11, $12, $13, $14)",
                 lengthof(values), types, values, nulls, SPI_OK_INSERT);
}

void warn_of_missing_index(const Keyset &keyset) {
    if (keyset.missing_index == nullptr) return;
    ereport(WARNING, (errmsg("no index serves keyset \"%s\"", keyset.declaration.name),
                      errdetail("Each page would read and sort all rows of its scope."),
                      errhint("%s", keyset.missing_index)));
}

char *text_argument(FunctionCallInfo fcinfo, int argument, const char *name) {
    if (PG_ARGISNULL(argument))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
    return text_to_cstring(PG_GETARG_TEXT_PP(argument));
}

// Where a function has the arguments of a declaration.
struct ArgumentNumbers {
    int scope, order, max_page, default_page;
};

void require_argument(FunctionCallInfo fcinfo, int argument, const char *name) {
    if (PG_ARGISNULL(argument))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
}

// Name, table, scope, order and page sizes.
KeysetDeclaration declaration_of(FunctionCallInfo fcinfo, const ArgumentNumbers &numbers) {
    KeysetDeclaration declaration = {};
    declaration.name = text_argument(fcinfo, 0, "name");
    check_name(declaration.name);
    require_argument(fcinfo, 1, "table");
    require_argument(fcinfo, numbers.order, "order");
    require_argument(fcinfo, numbers.max_page, "max_page");
    require_argument(fcinfo, numbers.default_page, "default_page");
    declaration.relid = PG_GETARG_OID(1);
    if (!PG_ARGISNULL(numbers.scope))
        read_scope_columns(PG_GETARG_ARRAYTYPE_P(numbers.scope), &declaration);
    read_order(text_argument(fcinfo, numbers.order, "order"), &declaration);
    refuse_repeated_columns(declaration);
    declaration.max_page = PG_GETARG_INT32(numbers.max_page);
    declaration.default_page = PG_GETARG_INT32(numbers.default_page);
    check_page_sizes(declaration);
    return declaration;
}

// A keyset and a table of other databases, so they are taken as they are given.
IndexSource index_source(const char *keyset, const char *table) {
    check_name(keyset);
    const List *names = textToQualifiedNameList(cstring_to_text(table));
    if (list_length(names) != 2)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("source_table must be a schema and a table")));
    return {keyset, strVal(linitial(names)), strVal(lsecond(names))};
}

// Keeps other declarations away until this transaction ends.
void lock_keysets() {
    const Oid relid = keyset_table();
    if (!OidIsValid(relid)) elog(ERROR, "table interlock.keyset does not exist");
    LockRelationOid(relid, ShareRowExclusiveLock);
}

void declare(const KeysetDeclaration &declaration) {
    // The table stays, as it is, until the declaration is committed.
    LockRelationOid(declaration.relid, AccessShareLock);
    if (get_rel_name(declaration.relid) == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table does not exist")));
    require_owner(declaration.relid);
    lock_keysets();
    KeysetDeclaration *existing;
    if (read_declarations(declaration.name, &existing) > 0)
        ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                        errmsg("keyset \"%s\" already exists", declaration.name),
                        errhint("Drop it first with interlock.keyset_drop(); cursors of another "
                                "declaration are not taken.")));
    Problem problem;
    const Keyset *keyset = resolve_keyset(declaration, &problem);
    if (keyset == nullptr) raise(problem);
    store(declaration);
    if (declaration.is_signed)
        run_as_owner("SELECT interlock.ensure_cursor_key()", 0, nullptr, nullptr, nullptr,
                     SPI_OK_SELECT);
    warn_of_missing_index(*keyset);
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// keyset_create(name text, "table" regclass, scope text[], "order" text, max_page integer,
///               default_page integer, signed boolean, scatter boolean) returns void
INTERLOCK_FUNCTION(interlock_keyset_create) {
    KeysetDeclaration declaration = declaration_of(fcinfo, {2, 3, 4, 5});
    require_argument(fcinfo, 6, "signed");
    declaration.is_signed = PG_GETARG_BOOL(6);
    declaration.scatter = PG_ARGISNULL(7)     ? ScatterRule::as_table
                          : PG_GETARG_BOOL(7) ? ScatterRule::yes
                                              : ScatterRule::no;
    declare(declaration);
    PG_RETURN_VOID();
}

/// keyset_create_index(name text, "table" regclass, source_keyset text, source_table text,
///                     scope text[], "order" text, max_page integer, default_page integer)
/// returns void
INTERLOCK_FUNCTION(interlock_keyset_create_index) {
    KeysetDeclaration declaration = declaration_of(fcinfo, {4, 5, 6, 7});
    declaration.source = index_source(text_argument(fcinfo, 2, "source_keyset"),
                                      text_argument(fcinfo, 3, "source_table"));
    declaration.is_signed = true;
    declaration.scatter = ScatterRule::no;
    declare(declaration);
    PG_RETURN_VOID();
}

/// keyset_drop(name text) returns void
INTERLOCK_FUNCTION(interlock_keyset_drop) {
    const char *name = text_argument(fcinfo, 0, "name");
    check_name(name);
    lock_keysets();
    KeysetDeclaration *existing;
    if (read_declarations(name, &existing) == 0)
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("keyset \"%s\" does not exist", name)));
    if (get_rel_name(existing->relid) != nullptr) require_owner(existing->relid);
    Oid types[] = {TEXTOID};
    Datum values[] = {CStringGetTextDatum(name)};
    run_as_owner("DELETE FROM interlock.keyset WHERE name OPERATOR(pg_catalog.=) $1", 1, types,
                 values, nullptr, SPI_OK_DELETE);
    PG_RETURN_VOID();
}
