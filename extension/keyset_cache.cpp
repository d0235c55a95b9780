// The table interlock.keyset, and the session's cache of declarations resolved against their
// tables.
#include "pg.h"

#include "errors.h"
#include "keyset.h"
#include "keyset_plans.h"
#include "ownership.h"
#include "table_scan.h"

namespace interlock {

namespace {

// Columns of interlock.keyset; the order is that of sql/45-keysets.sql.
enum Column {
    name_column,
    relid_column,
    scope_column,
    columns_column,
    descending_column,
    nulls_first_column,
    collations_column,
    max_page_column,
    default_page_column,
    signed_column,
    scatter_column,
    source_keyset_column,
    source_schema_column,
    source_table_column,
};

// The live ones, last used first; and those that DDL has made stale while they were in use.
Keyset *cached = nullptr;
Keyset *retired = nullptr;
Oid watched_table = InvalidOid;
// Of the keyset that is being resolved just now.
Oid watched_relid = InvalidOid;
std::uint64_t invalidations = 0;
bool callbacks_registered = false;

// The callbacks run wherever messages are taken, aborted transactions included: they must not touch
// a catalog.
void relation_changed(Datum, Oid relid) {
    const bool all = !OidIsValid(relid) || relid == watched_table;
    if (all || relid == watched_relid) ++invalidations;
    for (Keyset *keyset = cached; keyset != nullptr; keyset = keyset->next)
        if (all || keyset->declaration.relid == relid) keyset->stale = true;
}

void object_changed(Datum, int cache, std::uint32_t hash) {
    bool any = OidIsValid(watched_relid);
    for (Keyset *keyset = cached; keyset != nullptr; keyset = keyset->next) {
        bool concerned = hash == 0 || cache == COLLOID;
        if (cache == NAMESPACEOID) concerned = concerned || keyset->namespace_hash == hash;
        if (cache == ENUMOID) concerned = concerned || keyset->has_enum;
        if (cache == TYPEOID)
            for (int i = 0; i < keyset->type_hash_count; ++i)
                concerned = concerned || keyset->type_hashes[i] == hash;
        keyset->stale = keyset->stale || concerned;
        any = any || concerned;
    }
    if (any) ++invalidations;
}

void register_callbacks() {
    if (callbacks_registered) return;
    CacheRegisterRelcacheCallback(relation_changed, static_cast<Datum>(0));
    for (int cache : {TYPEOID, ENUMOID, COLLOID, NAMESPACEOID})
        CacheRegisterSyscacheCallback(cache, object_changed, static_cast<Datum>(0));
    callbacks_registered = true;
}

int read_array(Datum array, Oid type, Datum **elements) {
    std::int16_t length;
    bool by_value;
    char align;
    int count;
    bool *nulls;
    get_typlenbyvalalign(type, &length, &by_value, &align);
    deconstruct_array(DatumGetArrayTypeP(array), type, length, by_value, align, elements, &nulls,
                      &count);
    for (int i = 0; i < count; ++i)
        if (nulls[i])
            ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("null in a keyset's columns")));
    return count;
}

void read_row(const Datum *values, const bool *nulls, KeysetDeclaration *result) {
    Datum *names, *descending, *nulls_first, *collations;
    result->name = TextDatumGetCString(values[name_column]);
    result->relid = DatumGetObjectId(values[relid_column]);
    result->scope_count = read_array(values[scope_column], TEXTOID, &names);
    result->scope = static_cast<const char **>(
        palloc(sizeof(char *) * static_cast<std::size_t>(result->scope_count + 1)));
    for (int i = 0; i < result->scope_count; ++i)
        result->scope[i] = TextDatumGetCString(names[i]);
    result->order_count = read_array(values[columns_column], TEXTOID, &names);
    if (read_array(values[descending_column], BOOLOID, &descending) != result->order_count ||
        read_array(values[nulls_first_column], BOOLOID, &nulls_first) != result->order_count ||
        read_array(values[collations_column], REGCOLLATIONOID, &collations) !=
            result->order_count ||
        result->order_count < 1 || result->order_count > max_keyset_columns ||
        result->scope_count > max_keyset_columns)
        ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
                        errmsg("keyset \"%s\" has a malformed order", result->name)));
    result->order = static_cast<OrderItem *>(
        palloc(sizeof(OrderItem) * static_cast<std::size_t>(result->order_count)));
    for (int i = 0; i < result->order_count; ++i)
        result->order[i] = {TextDatumGetCString(names[i]), DatumGetObjectId(collations[i]),
                            DatumGetBool(descending[i]), DatumGetBool(nulls_first[i])};
    result->max_page = DatumGetInt32(values[max_page_column]);
    result->default_page = DatumGetInt32(values[default_page_column]);
    result->is_signed = DatumGetBool(values[signed_column]);
    result->scatter = nulls[scatter_column]                  ? ScatterRule::as_table
                      : DatumGetBool(values[scatter_column]) ? ScatterRule::yes
                                                             : ScatterRule::no;
    result->source = {};
    if (!nulls[source_keyset_column])
        result->source = {TextDatumGetCString(values[source_keyset_column]),
                          TextDatumGetCString(values[source_schema_column]),
                          TextDatumGetCString(values[source_table_column])};
}

[[noreturn]] void refuse_unknown(const char *name, int length) {
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                    errmsg("keyset \"%.*s\" does not exist",
                           pg_mbcliplen(name, length, 2 * NAMEDATALEN), name)));
    pg_unreachable();
}

[[noreturn]] void refuse_uninstalled() {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("extension \"interlock\" is not installed in this database")));
    pg_unreachable();
}

// What the ownership filter depends on may have changed without any change of the table.
bool ownership_fits(Keyset *keyset) {
    const Ownership &ownership = known_ownership();
    if (likely(keyset->ownership_generation == ownership.generation)) return true;
    const GuardedTable *guarded = guarding(ownership, keyset->declaration.relid);
    if (keyset->is_shard != ownership.is_shard ||
        (guarded != nullptr) != (keyset->keyspace != nullptr) ||
        (guarded != nullptr && (std::strcmp(guarded->keyspace, keyset->keyspace) != 0 ||
                                std::strcmp(guarded->key_column, keyset->key_column) != 0)))
        return false;
    keyset->ownership_generation = ownership.generation;
    return true;
}

// Takes stale keysets out of the list, and frees those that no call uses any more.
void clear_away() {
    for (Keyset **link = &cached; *link != nullptr;) {
        Keyset *keyset = *link;
        if (!keyset->stale) {
            link = &keyset->next;
            continue;
        }
        *link = keyset->next;
        keyset->next = retired;
        retired = keyset;
    }
    for (Keyset **link = &retired; *link != nullptr;) {
        Keyset *keyset = *link;
        if (keyset->pins > 0) {
            link = &keyset->next;
            continue;
        }
        *link = keyset->next;
        free_plans(keyset);
        MemoryContextDelete(keyset->context);
    }
}

Keyset *find_cached(const char *name, std::size_t length) {
    for (Keyset **link = &cached; *link != nullptr; link = &(*link)->next) {
        Keyset *keyset = *link;
        if (keyset->stale ||
            std::string_view(keyset->declaration.name) != std::string_view(name, length))
            continue;
        *link = keyset->next;
        keyset->next = cached;
        cached = keyset;
        return keyset;
    }
    return nullptr;
}

// Reads and resolves it, until nothing has changed meanwhile.
Keyset *load(const char *name, int length) {
    if (length >= NAMEDATALEN || std::memchr(name, 0, static_cast<std::size_t>(length)) != nullptr)
        refuse_unknown(name, length);
    register_callbacks();
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        KeysetDeclaration *declaration;
        watched_table = keyset_table();
        const std::uint64_t seen = invalidations;
        if (read_declarations(pnstrdup(name, static_cast<Size>(length)), &declaration) == 0)
            refuse_unknown(name, length);
        LockRelationOid(declaration->relid, AccessShareLock);
        watched_relid = declaration->relid;
        Problem problem;
        Keyset *keyset = resolve_keyset(*declaration, &problem);
        AcceptInvalidationMessages();
        watched_relid = InvalidOid;
        if (invalidations != seen) {
            UnlockRelationOid(declaration->relid, AccessShareLock);
            continue;
        }
        if (keyset == nullptr) raise(problem);
        MemoryContextSetParent(keyset->context, CacheMemoryContext);
        keyset->next = cached;
        cached = keyset;
        return keyset;
    }
}

struct Pin {
    MemoryContextCallback callback;
    Keyset *keyset;
};

void unpin(void *argument) {
    --static_cast<Pin *>(argument)->keyset->pins;
}

void pin(Keyset *keyset) {
    Pin *pin = static_cast<Pin *>(palloc(sizeof(Pin)));
    pin->callback.func = unpin;
    pin->callback.arg = pin;
    pin->keyset = keyset;
    ++keyset->pins;
    MemoryContextRegisterResetCallback(CurrentMemoryContext, &pin->callback);
}

}  // namespace

Oid keyset_table() {
    if (!OidIsValid(get_extension_oid("interlock", true))) return InvalidOid;
    const Oid schema = get_namespace_oid("interlock", true);
    return OidIsValid(schema) ? get_relname_relid("keyset", schema) : InvalidOid;
}

int read_declarations(const char *name, KeysetDeclaration **declarations) {
    const Oid relid = keyset_table();
    if (!OidIsValid(relid)) refuse_uninstalled();
    ScanKeyData key;
    if (name != nullptr)
        ScanKeyEntryInitialize(&key, 0, name_column + 1, BTEqualStrategyNumber, InvalidOid,
                               C_COLLATION_OID, F_TEXTEQ, CStringGetTextDatum(name));
    int count = 0, room = 4;
    *declarations = static_cast<KeysetDeclaration *>(
        palloc(sizeof(KeysetDeclaration) * static_cast<std::size_t>(room)));
    Snapshot snapshot = RegisterSnapshot(GetCatalogSnapshot(relid));
    const bool there = scan_table(
        relid, snapshot, name != nullptr ? 1 : 0, &key,
        [&](const Datum *values, const bool *nulls) {
            if (count == room) {
                room *= 2;
                *declarations = static_cast<KeysetDeclaration *>(repalloc(
                    *declarations, sizeof(KeysetDeclaration) * static_cast<std::size_t>(room)));
            }
            read_row(values, nulls, *declarations + count++);
        });
    UnregisterSnapshot(snapshot);
    if (!there) refuse_uninstalled();
    return count;
}

Keyset *use_keyset(const text *name) {
    const char *bytes = VARDATA_ANY(name);
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(name));
    AcceptInvalidationMessages();
    for (;;) {
        clear_away();
        Keyset *keyset = find_cached(bytes, static_cast<std::size_t>(length));
        if (keyset == nullptr) {
            keyset = load(bytes, length);
        } else {
            // Taking the lock takes messages, of DDL that has just committed too.
            LockRelationOid(keyset->declaration.relid, AccessShareLock);
            if (!ownership_fits(keyset)) keyset->stale = true;
            if (keyset->stale) {
                UnlockRelationOid(keyset->declaration.relid, AccessShareLock);
                continue;
            }
        }
        pin(keyset);
        return keyset;
    }
}

}  // namespace interlock
