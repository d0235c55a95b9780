#include "pg.h"

#include "ownership.h"
#include "table_scan.h"
#include "write_rights.h"

namespace interlock {

// The copy is good while no message has come since its making began.
Ownership ownership_copy::current;
std::uint64_t ownership_copy::invalidations = 1;
std::uint64_t ownership_copy::built_at = 0;

namespace {

using ownership_copy::current;
using ownership_copy::invalidations;

// Columns of the tables read here; the order is that of sql/*.sql.
constexpr int identity_cluster_id = 1, identity_shard_name = 2, identity_floor = 3,
              identity_system_identifier = 4, identity_database_oid = 5;
constexpr int keyspace_name = 1, keyspace_key_type = 2, keyspace_buckets = 4;
constexpr int catalog_keyspace_name = 2, catalog_keyspace_key_type = 3,
              catalog_keyspace_buckets = 5;
constexpr int state_keyspace = 1, state_bucket = 2, state_state = 3, state_peer = 4,
              state_route_version = 5, state_until = 6;
constexpr int handoff_keyspace = 2, handoff_state = 3;
constexpr int guarded_relid = 1, guarded_keyspace = 2, guarded_key_column = 3;

enum Table {
    identity,
    local_keyspace,
    bucket_state,
    guarded_table,
    catalog_keyspace,
    handoff,
    table_count
};
constexpr const char *table_names[table_count] = {
    "shard_identity", "local_keyspace", "bucket_state", "guarded_table", "keyspace", "handoff"};

MemoryContext current_context = nullptr;
MemoryContext building_context = nullptr;
// The tables whose messages concern us. All zero while the extension is not there: then every
// message does, because the creation of the extension is one of them.
Oid watched[table_count];
bool callback_registered = false;

// Runs in any place where messages are taken, aborted transactions included: must not touch a
// catalog.
void relation_changed(Datum, Oid relid) {
    if (OidIsValid(relid) && OidIsValid(watched[0])) {
        bool ours = false;
        for (Oid table : watched)
            ours = ours || table == relid;
        if (!ours) return;
    }
    ++invalidations;
}

bool resolve_tables() {
    Oid found[table_count] = {};
    bool complete = false;
    if (OidIsValid(get_extension_oid("interlock", true))) {
        const Oid schema = get_namespace_oid("interlock", true);
        complete = OidIsValid(schema);
        for (int i = 0; complete && i < table_count; ++i) {
            found[i] = get_relname_relid(table_names[i], schema);
            complete = OidIsValid(found[i]);
        }
    }
    for (int i = 0; i < table_count; ++i)
        watched[i] = complete ? found[i] : InvalidOid;
    return complete;
}

char *text_copy(Datum value, MemoryContext context) {
    MemoryContext old = MemoryContextSwitchTo(context);
    char *copy = TextDatumGetCString(value);
    MemoryContextSwitchTo(old);
    return copy;
}

BucketState state_of_name(const text *name) {
    switch (*VARDATA_ANY(name)) {
    case 'o': return BucketState::owned;
    case 'f': return BucketState::fenced;
    case 'm': return BucketState::moved;
    case 'i': return BucketState::importing;
    default: return BucketState::none;
    }
}

// Room for one more element at the end of an array that doubles at powers of two.
template <typename T>
T *extend(T *array, int count, MemoryContext context) {
    if (array == nullptr) return static_cast<T *>(MemoryContextAlloc(context, sizeof(T)));
    if ((count & (count - 1)) != 0) return array;
    return static_cast<T *>(repalloc_huge(array, sizeof(T) * 2 * static_cast<std::size_t>(count)));
}

void add_keyspace(Ownership *fresh, Datum name, Datum key_type, Datum buckets, bool local,
                  MemoryContext context) {
    char *type_name = TextDatumGetCString(key_type);
    Keyspace keyspace = {};
    if (!family_of_name(type_name, &keyspace.family))
        ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
                        errmsg("unknown key type \"%s\" in a keyspace", type_name)));
    pfree(type_name);
    keyspace.name = text_copy(name, context);
    keyspace.name_length = std::strlen(keyspace.name);
    if (find_keyspace(*fresh, name_of(keyspace)) != nullptr) return;
    keyspace.buckets = DatumGetInt32(buckets);
    if (local) {
        const std::size_t count = static_cast<std::size_t>(keyspace.buckets);
        keyspace.states = static_cast<BucketState *>(
            MemoryContextAllocZero(context, sizeof(BucketState) * count));
        keyspace.since = static_cast<std::int32_t *>(
            MemoryContextAllocZero(context, sizeof(std::int32_t) * count));
        keyspace.rights = write_rights::make(keyspace.buckets, context);
    }
    fresh->keyspaces = extend(fresh->keyspaces, fresh->keyspace_count, context);
    fresh->keyspaces[fresh->keyspace_count++] = keyspace;
}

// Fills `fresh` from the tables, all under one snapshot. False when a table has gone meanwhile.
bool read_tables(Ownership *fresh, Snapshot snapshot, MemoryContext context) {
    fresh->installed = true;
    bool there =
        scan_table(watched[identity], snapshot, 0, nullptr, [&](const Datum *values, const bool *) {
            fresh->is_shard = true;
            fresh->cluster = *DatumGetUUIDP(values[identity_cluster_id - 1]);
            fresh->shard = text_copy(values[identity_shard_name - 1], context);
            fresh->floor = DatumGetInt32(values[identity_floor - 1]);
            fresh->restored =
                static_cast<uint64>(DatumGetInt64(values[identity_system_identifier - 1])) !=
                    GetSystemIdentifier() ||
                DatumGetObjectId(values[identity_database_oid - 1]) != MyDatabaseId;
        });
    fresh->writable = fresh->is_shard && !fresh->restored;
    there = there && scan_table(watched[local_keyspace], snapshot, 0, nullptr,
                                [&](const Datum *values, const bool *) {
                                    add_keyspace(fresh, values[keyspace_name - 1],
                                                 values[keyspace_key_type - 1],
                                                 values[keyspace_buckets - 1], true, context);
                                });
    there =
        there && scan_table(watched[catalog_keyspace], snapshot, 0, nullptr,
                            [&](const Datum *values, const bool *) {
                                add_keyspace(fresh, values[catalog_keyspace_name - 1],
                                             values[catalog_keyspace_key_type - 1],
                                             values[catalog_keyspace_buckets - 1], false, context);
                            });
    // Rows come by keyspace more often than not: remember the last one.
    Keyspace *last = nullptr;
    there = there &&
            scan_table(watched[bucket_state], snapshot, 0, nullptr,
                       [&](const Datum *values, const bool *nulls) {
                           const text *text_name = DatumGetTextPP(values[state_keyspace - 1]);
                           const std::string_view name(VARDATA_ANY(text_name),
                                                       VARSIZE_ANY_EXHDR(text_name));
                           if (last == nullptr || name_of(*last) != name)
                               last = const_cast<Keyspace *>(find_keyspace(*fresh, name));
                           const std::int32_t bucket = DatumGetInt32(values[state_bucket - 1]);
                           if (last == nullptr || last->states == nullptr || bucket < 0 ||
                               bucket >= last->buckets)
                               return;
                           const BucketState state =
                               state_of_name(DatumGetTextPP(values[state_state - 1]));
                           last->states[bucket] = state;
                           // Whoever wrote before a fence may go on behind it, and what it records
                           // is no older than what it recorded before.
                           if ((state == BucketState::owned || state == BucketState::fenced) &&
                               !nulls[state_route_version - 1])
                               last->since[bucket] = DatumGetInt32(values[state_route_version - 1]);
                           if (state == BucketState::fenced || state == BucketState::importing)
                               ++last->shut;
                       });
    there =
        there &&
        scan_table(watched[handoff], snapshot, 0, nullptr, [&](const Datum *values, const bool *) {
            const text *text_name = DatumGetTextPP(values[handoff_keyspace - 1]);
            Keyspace *keyspace = const_cast<Keyspace *>(
                find_keyspace(*fresh, {VARDATA_ANY(text_name), VARSIZE_ANY_EXHDR(text_name)}));
            const char state = *VARDATA_ANY(DatumGetTextPP(values[handoff_state - 1]));
            // begun, fenced, importing; not decided, active, aborted. A copy of a shard, restored
            // from a dump, takes no part in the moves of the original; indexes are still to be made
            // there.
            if (keyspace != nullptr && !fresh->restored &&
                (state == 'b' || state == 'f' || state == 'i'))
                ++keyspace->moving;
        });
    there = there && scan_table(watched[guarded_table], snapshot, 0, nullptr,
                                [&](const Datum *values, const bool *) {
                                    fresh->guarded =
                                        extend(fresh->guarded, fresh->guarded_count, context);
                                    fresh->guarded[fresh->guarded_count++] = {
                                        DatumGetObjectId(values[guarded_relid - 1]),
                                        text_copy(values[guarded_keyspace - 1], context),
                                        text_copy(values[guarded_key_column - 1], context)};
                                });
    return there;
}

}  // namespace

void ownership_copy::rebuild() {
    if (!callback_registered) {
        CacheRegisterRelcacheCallback(relation_changed, static_cast<Datum>(0));
        write_rights::watch_transactions();
        callback_registered = true;
    }
    // What is palloc'd while reading goes to a context of its own, so that a rebuild in the middle
    // of a long statement leaves nothing behind. A rebuild that failed has left its context.
    if (building_context != nullptr) MemoryContextDelete(building_context);
    building_context = nullptr;
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        const std::uint64_t seen = invalidations;
        MemoryContext context =
            AllocSetContextCreate(TopMemoryContext, "interlock ownership", ALLOCSET_SMALL_SIZES);
        building_context = context;
        MemoryContext scratch =
            AllocSetContextCreate(context, "interlock ownership scratch", ALLOCSET_DEFAULT_SIZES);
        MemoryContext old = MemoryContextSwitchTo(scratch);
        Ownership fresh = {};
        bool complete = true;
        if (resolve_tables()) {
            // A catalog snapshot is new for every call on relations without a syscache, is allowed
            // in parallel mode and at every isolation level, and sees this transaction's own
            // commands.
            Snapshot snapshot = RegisterSnapshot(GetCatalogSnapshot(watched[bucket_state]));
            complete = read_tables(&fresh, snapshot, context);
            UnregisterSnapshot(snapshot);
        }
        AcceptInvalidationMessages();
        MemoryContextSwitchTo(old);
        MemoryContextDelete(scratch);
        if (complete && invalidations == seen) {
            MemoryContext replaced = current_context;
            fresh.generation = current.generation + 1;
            for (int i = 0; i < fresh.keyspace_count; ++i)
                if (const Keyspace *before = find_keyspace(current, name_of(fresh.keyspaces[i])))
                    write_rights::take_over(*before, fresh.keyspaces[i]);
            current = fresh;
            current_context = context;
            building_context = nullptr;
            built_at = seen;
            if (replaced != nullptr) MemoryContextDelete(replaced);
            return;
        }
        building_context = nullptr;
        MemoryContextDelete(context);
    }
}

const Keyspace *find_keyspace(const Ownership &ownership, std::string_view name) {
    for (int i = 0; i < ownership.keyspace_count; ++i) {
        const Keyspace *keyspace = &ownership.keyspaces[i];
        if (name_of(*keyspace) == name) return keyspace;
    }
    return nullptr;
}

const Keyspace *require_keyspace(const Ownership &ownership, std::string_view name) {
    const Keyspace *keyspace = find_keyspace(ownership, name);
    if (keyspace == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("keyspace \"%.*s\" is not defined in this database",
                               static_cast<int>(name.size()), name.data()),
                        errhint("\"interlock apply\" defines it on every shard.")));
    return keyspace;
}

BucketDetails read_bucket_details(const char *keyspace, std::int32_t bucket) {
    BucketDetails details = {};
    if (!OidIsValid(watched[bucket_state])) return details;
    ScanKeyData keys[2];
    ScanKeyEntryInitialize(&keys[0], 0, state_keyspace, BTEqualStrategyNumber, InvalidOid,
                           C_COLLATION_OID, F_TEXTEQ, CStringGetTextDatum(keyspace));
    ScanKeyInit(&keys[1], state_bucket, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(bucket));
    scan_table(watched[bucket_state], nullptr, 2, keys,
               [&](const Datum *values, const bool *nulls) {
                   if (!nulls[state_peer - 1])
                       details.peer = TextDatumGetCString(values[state_peer - 1]);
                   if (!nulls[state_route_version - 1])
                       details.route_version = DatumGetInt32(values[state_route_version - 1]);
                   if (!nulls[state_until - 1]) {
                       const TimestampTz until = DatumGetTimestampTz(values[state_until - 1]);
                       details.until = pstrdup(timestamptz_to_str(until));
                       details.expired = until <= GetCurrentTimestamp();
                   }
               });
    return details;
}

const GuardedTable *guarding(const Ownership &ownership, Oid relid) {
    for (int i = 0; i < ownership.guarded_count; ++i)
        if (ownership.guarded[i].relid == relid) return &ownership.guarded[i];
    if (ownership.guarded_count == 0) return nullptr;

    // Up the inheritance tree, which is shallow; a partition has one parent, a child may have
    // several.
    constexpr int most_parents = 64;
    Oid parents[most_parents];
    int parent_count = 0;
    Relation inherits = table_open(InheritsRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relid));
    SysScanDesc scan =
        systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, nullptr, 1, &key);
    HeapTuple tuple;
    while (parent_count < most_parents && HeapTupleIsValid(tuple = systable_getnext(scan)))
        parents[parent_count++] = reinterpret_cast<Form_pg_inherits>(GETSTRUCT(tuple))->inhparent;
    systable_endscan(scan);
    table_close(inherits, AccessShareLock);
    for (int i = 0; i < parent_count; ++i)
        if (const GuardedTable *found = guarding(ownership, parents[i])) return found;
    return nullptr;
}

Oid extension_owner() {
    known_ownership();  // finds the tables
    Relation relation = relation_open(watched[guarded_table], AccessShareLock);
    const Oid owner = relation->rd_rel->relowner;
    relation_close(relation, AccessShareLock);
    return owner;
}

}  // namespace interlock
