// Output plugin "interlock": pgoutput, for the rows of the buckets that a move takes away.
//
// A built-in subscription sends only options of its own, so the plugin learns what to let through
// from its slot's name: the slot's row in interlock.move_slot. It must be there before the slot is
// made, and never changes while the slot exists; so a walsender that starts anew filters as the one
// before it did. The row, the keyspace and the list of guarded tables are read once, at startup,
// under the newest committed state: while decoding, only catalogs may be read, and those as they
// were when the change was made.
//
// What does not belong to the move is dropped before pgoutput sees it; a transaction of which
// nothing is left is then not sent at all. What cannot be decided is an error, never a guess: it
// ends this stream, not the writer.
#include "pg.h"

#include "keys.h"
#include "ownership.h"
#include "table_scan.h"

using namespace interlock;

extern "C" {
PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);
}

namespace {

// Columns of the tables read here; the order is that of sql/*.sql.
constexpr int slot_slot_name = 1, slot_move = 2, slot_keyspace = 3, slot_buckets = 4;
constexpr int keyspace_name = 1, keyspace_key_type = 2, keyspace_buckets = 4;
constexpr int guarded_relid = 1, guarded_keyspace = 2, guarded_key_column = 3;

/// What one slot lets through.
struct Filter {
    MemoryContext context;  ///< as long as the decoding lasts
    bool found;             ///< the slot has a row
    pg_uuid_t move;
    char *keyspace;
    KeyFamily family;
    std::int32_t buckets;  ///< of the keyspace; 0: it is not defined here
    std::uint8_t *moving;  ///< one bit a bucket
    Ownership tables;      ///< only its guarded tables are filled in: those of the keyspace
    Oid marker;            ///< interlock.move_marker
    HTAB *relations;
};

enum class Passes : std::uint8_t { never, marker, by_bucket };

/// What is known of a relation, as of the last invalidation.
struct Followed {
    Oid relid;  ///< key of the hash table: must be first
    Passes passes;
    bool key_in_identity;
    bool key_is_varlena;
    AttrNumber key;
    KeyType type;
    const char *key_column;
    std::uint64_t known_at;
};

OutputPluginCallbacks pgoutput;
// Of the decoding under way: a process has one slot at a time. Dead after an error, and then not
// used until the next startup.
Filter *filter = nullptr;
bool callback_registered = false;
std::uint64_t invalidations = 1;
std::uint64_t dropped = 0;  // changes, so far

void relation_changed(Datum, Oid) {
    ++invalidations;
}

// --- startup -----------------------------------------------------------------------------------

void take_buckets(Filter *fresh, const std::int32_t *buckets, int count, const char *slot) {
    fresh->moving = static_cast<std::uint8_t *>(MemoryContextAllocZero(
        fresh->context, static_cast<std::size_t>(fresh->buckets) / CHAR_BIT + 1));
    for (int i = 0; i < count; ++i) {
        const std::int32_t bucket = buckets[i];
        if (bucket < 0 || bucket >= fresh->buckets)
            ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
                            errmsg("replication slot \"%s\" is for bucket %d, but keyspace \"%s\" "
                                   "has %d buckets",
                                   slot, bucket, fresh->keyspace, fresh->buckets)));
        fresh->moving[bucket / CHAR_BIT] |= static_cast<std::uint8_t>(1 << bucket % CHAR_BIT);
    }
}

Oid own_table(const char *name) {
    const Oid schema = get_namespace_oid("interlock", true);
    return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

// Reads what belongs to the slot into `fresh`. Inside a transaction.
void read_filter(Filter *fresh, const char *slot) {
    // A catalog snapshot is new for every call on tables without a syscache, is the newest whatever
    // the isolation level, and is not the transaction's snapshot, which may still have to be
    // another one. (It does not hold vacuum up: decoding processes are not waited for. The rows
    // read here are never updated while they matter, so there is no old version to lose.)
    const Oid slots = own_table("move_slot");
    Snapshot snapshot = RegisterSnapshot(GetCatalogSnapshot(slots));
    std::int32_t *buckets = nullptr;
    int count = 0;
    scan_table(slots, snapshot, 0, nullptr, [&](const Datum *values, const bool *) {
        if (std::strcmp(NameStr(*DatumGetName(values[slot_slot_name - 1])), slot) != 0) return;
        fresh->found = true;
        fresh->move = *DatumGetUUIDP(values[slot_move - 1]);
        MemoryContext old = MemoryContextSwitchTo(fresh->context);
        fresh->keyspace = TextDatumGetCString(values[slot_keyspace - 1]);
        MemoryContextSwitchTo(old);
        ArrayType *array = DatumGetArrayTypePCopy(values[slot_buckets - 1]);
        if (ARR_ELEMTYPE(array) != INT4OID || ARR_HASNULL(array))
            ereport(ERROR,
                    (errcode(ERRCODE_DATA_CORRUPTED),
                     errmsg("the buckets of replication slot \"%s\" are not numbers", slot)));
        buckets = reinterpret_cast<std::int32_t *>(ARR_DATA_PTR(array));
        count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
    });
    if (!fresh->found)
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_OBJECT),
                 errmsg("replication slot \"%s\" does not belong to a move of buckets", slot),
                 errhint("Output plugin \"interlock\" serves slots that "
                         "interlock.record_move_slot() has recorded in this database.")));
    scan_table(
        own_table("local_keyspace"), snapshot, 0, nullptr, [&](const Datum *values, const bool *) {
            if (std::strcmp(TextDatumGetCString(values[keyspace_name - 1]), fresh->keyspace) != 0)
                return;
            if (family_of_name(TextDatumGetCString(values[keyspace_key_type - 1]), &fresh->family))
                fresh->buckets = DatumGetInt32(values[keyspace_buckets - 1]);
        });
    if (fresh->buckets <= 0)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("keyspace \"%s\" is not defined in this database", fresh->keyspace),
                        errdetail("Replication slot \"%s\" is for buckets of it.", slot)));
    take_buckets(fresh, buckets, count, slot);
    const Oid guarded = own_table("guarded_table");
    for (bool counted : {false, true}) {
        Ownership &tables = fresh->tables;
        if (counted)
            tables.guarded = static_cast<GuardedTable *>(MemoryContextAllocZero(
                fresh->context,
                sizeof(GuardedTable) * (static_cast<std::size_t>(tables.guarded_count) + 1)));
        tables.guarded_count = 0;
        scan_table(guarded, snapshot, 0, nullptr, [&](const Datum *values, const bool *) {
            if (std::strcmp(TextDatumGetCString(values[guarded_keyspace - 1]), fresh->keyspace) !=
                0)
                return;
            if (counted)
                tables.guarded[tables.guarded_count] = {
                    DatumGetObjectId(values[guarded_relid - 1]), fresh->keyspace,
                    MemoryContextStrdup(fresh->context,
                                        TextDatumGetCString(values[guarded_key_column - 1]))};
            ++tables.guarded_count;
        });
    }
    fresh->marker = own_table("move_marker");
    UnregisterSnapshot(snapshot);
    // Nor may a session hold any snapshot when it takes up the one that its new slot begins with.
    InvalidateCatalogSnapshot();
}

void startup(LogicalDecodingContext *decoding, OutputPluginOptions *options, bool is_init) {
    filter = nullptr;
    if (!callback_registered) {
        CacheRegisterRelcacheCallback(relation_changed, static_cast<Datum>(0));
        callback_registered = true;
    }
    Filter *fresh =
        static_cast<Filter *>(MemoryContextAllocZero(decoding->context, sizeof(Filter)));
    fresh->context = decoding->context;
    // A walsender comes here without a transaction, the SQL functions with one.
    MemoryContext caller = CurrentMemoryContext;
    const bool own_transaction = !IsTransactionState();
    if (own_transaction) StartTransactionCommand();
    read_filter(fresh, NameStr(decoding->slot->data.name));
    if (own_transaction) CommitTransactionCommand();
    MemoryContextSwitchTo(caller);

    HASHCTL shape = {};
    shape.keysize = sizeof(Oid);
    shape.entrysize = sizeof(Followed);
    shape.hcxt = decoding->context;
    fresh->relations = hash_create("interlock relations of a move", 64, &shape,
                                   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    pgoutput.startup_cb(decoding, options, is_init);
    filter = fresh;
}

void shutdown(LogicalDecodingContext *decoding) {
    filter = nullptr;
    pgoutput.shutdown_cb(decoding);
}

// --- changes -----------------------------------------------------------------------------------

char *name_for_messages(Relation relation) {
    return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
                                      RelationGetRelationName(relation));
}

AttrNumber attribute_of(Relation relation, const char *column) {
    TupleDesc description = RelationGetDescr(relation);
    for (int i = 0; i < description->natts; ++i) {
        const FormData_pg_attribute *attribute = TupleDescAttr(description, i);
        if (!attribute->attisdropped &&
            namestrcmp(const_cast<Name>(&attribute->attname), column) == 0)
            return attribute->attnum;
    }
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                    errmsg("table %s has no column \"%s\", its shard key",
                           name_for_messages(relation), column)));
    pg_unreachable();
}

bool in_identity(Relation relation, AttrNumber attribute) {
    if (relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL) return true;
    Bitmapset *identity = RelationGetIdentityKeyBitmap(relation);
    const bool found = bms_is_member(attribute - FirstLowInvalidHeapAttributeNumber, identity);
    bms_free(identity);
    return found;
}

// Under the snapshot of the change.
void look_up(Followed *followed, Relation relation) {
    const std::uint64_t seen = invalidations;
    followed->known_at = 0;
    followed->passes = Passes::never;
    const Oid relid = RelationGetRelid(relation);
    const GuardedTable *guarded =
        relid == filter->marker ? nullptr : guarding(filter->tables, relid);
    if (relid == filter->marker || guarded != nullptr) {
        followed->key_column = guarded == nullptr ? "move_id" : guarded->key_column;
        followed->key = attribute_of(relation, followed->key_column);
        const FormData_pg_attribute *attribute =
            TupleDescAttr(RelationGetDescr(relation), followed->key - 1);
        followed->key_is_varlena = attribute->attlen == -1;
        followed->key_in_identity = in_identity(relation, followed->key);
        if (guarded != nullptr)
            followed->type =
                require_key_type_of(attribute->atttypid, filter->family, filter->keyspace);
        followed->passes = guarded == nullptr ? Passes::marker : Passes::by_bucket;
    }
    followed->known_at = seen;
}

[[noreturn]] void refuse_identity(Relation relation, const Followed *followed) {
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("cannot follow updates and deletes of table %s", name_for_messages(relation)),
             errdetail("Its replica identity does not include the shard key, column \"%s\".",
                       followed->key_column),
             errhint("Make the column part of the primary key, or use ALTER TABLE ... REPLICA "
                     "IDENTITY; then move again.")));
    pg_unreachable();
}

[[noreturn]] void refuse_no_key(Relation relation, const Followed *followed) {
    ereport(
        ERROR,
        (errcode(ERRCODE_DATA_CORRUPTED),
         errmsg("a change of table %s does not show its shard key", name_for_messages(relation)),
         errdetail("Column \"%s\" is null or absent in what was logged.", followed->key_column)));
    pg_unreachable();
}

// The key in a logged row; false when it is not there.
inline bool read_key(const Followed *followed, Relation relation, HeapTuple tuple, Datum *key) {
    if (tuple == nullptr) return false;
    bool null;
    *key = heap_getattr(tuple, followed->key, RelationGetDescr(relation), &null);
    // A long key that the update left alone is only a reference into the table's TOAST table of
    // today.
    return !null && !(followed->key_is_varlena && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(*key)));
}

inline std::int32_t bucket_of(const Followed *followed, Datum key) {
    return placement::bucket_of_hash(hash_of_key(key, followed->type), filter->buckets);
}

inline bool passes(const Followed *followed, Datum key) {
    if (followed->passes == Passes::marker)
        return std::memcmp(DatumGetUUIDP(key)->data, filter->move.data, UUID_LEN) == 0;
    const std::int32_t bucket = bucket_of(followed, key);
    return (filter->moving[bucket / CHAR_BIT] >> bucket % CHAR_BIT & 1) != 0;
}

// An update that shows both keys. The guard has refused it where the buckets differ; where it could
// not, the row must not be in one bucket here and in another one there.
void require_same_bucket(const Followed *followed, Relation relation, Datum before, Datum after) {
    if (followed->passes != Passes::by_bucket) return;
    const std::int32_t from = bucket_of(followed, before), to = bucket_of(followed, after);
    if (from != to && (passes(followed, before) || passes(followed, after)))
        ereport(ERROR,
                (errcode(ERRCODE_DATA_CORRUPTED),
                 errmsg("an update of table %s has taken a row from bucket %d to bucket %d of "
                        "keyspace \"%s\"",
                        name_for_messages(relation), from, to, filter->keyspace)));
}

bool belongs(const Followed *followed, Relation relation, const ReorderBufferChange *change) {
    Datum key;
    HeapTuple before = changed_tuple(change->data.tp.oldtuple);
    HeapTuple after = changed_tuple(change->data.tp.newtuple);
    switch (change->action) {
    case REORDER_BUFFER_CHANGE_INSERT:
        if (!read_key(followed, relation, after, &key)) refuse_no_key(relation, followed);
        return passes(followed, key);
    case REORDER_BUFFER_CHANGE_UPDATE:
        if (!followed->key_in_identity) refuse_identity(relation, followed);
        Datum old_key;
        if (read_key(followed, relation, before, &old_key)) {
            if (read_key(followed, relation, after, &key))
                require_same_bucket(followed, relation, old_key, key);
            return passes(followed, old_key);
        }
        if (!read_key(followed, relation, after, &key)) refuse_no_key(relation, followed);
        return passes(followed, key);
    case REORDER_BUFFER_CHANGE_DELETE:
        if (!followed->key_in_identity) refuse_identity(relation, followed);
        if (!read_key(followed, relation, before, &key)) refuse_no_key(relation, followed);
        return passes(followed, key);
    default:
        ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                        errmsg("unknown kind of change: %d", static_cast<int>(change->action))));
    }
    pg_unreachable();
}

void change(LogicalDecodingContext *decoding, ReorderBufferTXN *transaction, Relation relation,
            ReorderBufferChange *what) {
    const Oid relid = RelationGetRelid(relation);
    bool known;
    Followed *followed =
        static_cast<Followed *>(hash_search(filter->relations, &relid, HASH_ENTER, &known));
    if (!known) followed->known_at = 0;
    if (unlikely(followed->known_at != invalidations)) look_up(followed, relation);
    if (followed->passes == Passes::never || !belongs(followed, relation, what)) {
        // pgoutput would do so; without it a large transaction of other buckets is silence for so
        // long that the subscriber gives up, begins anew, and comes to the same silence.
        if (++dropped % 100 == 0) say_that_decoding_goes_on(decoding);
        return;
    }
    pgoutput.change_cb(decoding, transaction, relation, what);
}

}  // namespace

void _PG_output_plugin_init(OutputPluginCallbacks *callbacks) {
    const auto init = reinterpret_cast<LogicalOutputPluginInit>(
        load_external_function("$libdir/pgoutput", "_PG_output_plugin_init", true, nullptr));
    std::memset(&pgoutput, 0, sizeof pgoutput);
    init(&pgoutput);

    // Named one by one, so that what a later pgoutput adds does not pass unfiltered. Left out:
    // TRUNCATE, which would empty the target's other buckets; messages, which belong to no bucket;
    // two-phase commit and the streaming of transactions in progress, which pgoutput then refuses.
    std::memset(callbacks, 0, sizeof *callbacks);
    callbacks->startup_cb = startup;
    callbacks->begin_cb = pgoutput.begin_cb;
    callbacks->change_cb = change;
    callbacks->commit_cb = pgoutput.commit_cb;
    callbacks->filter_by_origin_cb = pgoutput.filter_by_origin_cb;
    callbacks->shutdown_cb = shutdown;
}
