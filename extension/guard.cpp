#include "pg.h"

#include "errors.h"
#include "guard.h"
#include "guc.h"

namespace interlock {

namespace {

[[noreturn]] void refuse_restored_copy(const Ownership &ownership) {
    ereport(
        ERROR,
        (errcode(ERRCODE_INTERLOCK_RESTORED_COPY),
         errmsg("this database is a copy of shard \"%s\", not the shard itself", ownership.shard),
         errdetail("The recorded system identifier or database OID is another one."),
         errhint("If the original is gone for good, declare this copy to be the shard with "
                 "interlock.adopt_shard().")));
    pg_unreachable();
}

[[noreturn]] void refuse_bucket(const Ownership &ownership, const Keyspace *keyspace,
                                std::int32_t bucket) {
    if (!ownership.is_shard)
        ereport(ERROR, (errcode(ERRCODE_INTERLOCK_NOT_OWNED),
                        errmsg("bucket %d of keyspace \"%s\" does not belong here", bucket,
                               keyspace->name),
                        errdetail("This database is not a shard of any cluster."),
                        errhint("\"interlock apply\" makes a database a shard.")));
    const BucketState state =
        keyspace->states == nullptr ? BucketState::none : keyspace->states[bucket];
    const BucketDetails details = read_bucket_details(keyspace->name, bucket);
    const char *peer = details.peer != nullptr ? details.peer : "unknown";
    switch (state) {
    case BucketState::fenced:
        ereport(
            ERROR,
            (errcode(ERRCODE_INTERLOCK_FENCED),
             errmsg("bucket %d of keyspace \"%s\" is being handed over", bucket, keyspace->name),
             details.until != nullptr
                 ? errdetail("State fenced, to shard \"%s\", until %s.", peer, details.until)
                 : errdetail("State fenced, to shard \"%s\".", peer),
             errhint("Retry soon.")));
        break;
    case BucketState::moved:
        ereport(ERROR, (errcode(ERRCODE_INTERLOCK_NOT_OWNED),
                        errmsg("bucket %d of keyspace \"%s\" does not belong to shard \"%s\"",
                               bucket, keyspace->name, ownership.shard),
                        errdetail("State moved, to shard \"%s\", at route version %d.", peer,
                                  details.route_version),
                        errhint("Write to the owner, or through the router.")));
        break;
    case BucketState::importing:
        ereport(ERROR, (errcode(ERRCODE_INTERLOCK_NOT_OWNED),
                        errmsg("bucket %d of keyspace \"%s\" does not belong to shard \"%s\"",
                               bucket, keyspace->name, ownership.shard),
                        errdetail("State importing, from shard \"%s\".", peer),
                        errhint("Write to the owner, or through the router.")));
        break;
    default:
        ereport(ERROR,
                (errcode(ERRCODE_INTERLOCK_NOT_OWNED),
                 errmsg("bucket %d of keyspace \"%s\" does not belong to shard \"%s\"", bucket,
                        keyspace->name, ownership.shard),
                 errdetail("State none: this shard never owned it and does not know who does."),
                 errhint("Write to the owner, or through the router.")));
    }
    pg_unreachable();
}

const Keyspace *require_keyspace(const Ownership &ownership, const char *name, std::size_t length) {
    const Keyspace *keyspace = find_keyspace(ownership, name, length);
    if (keyspace == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("keyspace \"%.*s\" is not defined in this database",
                               static_cast<int>(length), name),
                        errhint("\"interlock apply\" defines it on every shard.")));
    return keyspace;
}

std::int32_t bucket_of_key(GuardCache *cache, Datum key) {
    return placement::bucket_of_hash(hash_of_key(key, cache->type), cache->keyspace->buckets);
}

// Brings the cache of a call site up to date with the state.
void refresh(GuardCache *cache, const Ownership &ownership, const char *keyspace,
             std::size_t length) {
    if (likely(cache->generation == ownership.generation && cache->keyspace != nullptr)) return;
    cache->keyspace = require_keyspace(ownership, keyspace, length);
    cache->type =
        require_key_type_of(cache->declared, cache->keyspace->family, cache->keyspace->name);
    cache->generation = ownership.generation;
}

[[noreturn]] void refuse_null_key(const char *keyspace, std::size_t length) {
    ereport(ERROR, (errcode(ERRCODE_NOT_NULL_VIOLATION), errmsg("null shard key"),
                    errdetail("A row without a key belongs to no bucket of keyspace \"%.*s\".",
                              static_cast<int>(length), keyspace)));
    pg_unreachable();
}

[[noreturn]] void refuse_bucket_change(const char *keyspace, std::size_t length, std::int32_t from,
                                       std::int32_t to) {
    ereport(ERROR,
            (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
             errmsg("update would move a row from bucket %d to bucket %d of keyspace \"%.*s\"",
                    from, to, static_cast<int>(length), keyspace),
             errhint("Delete the row and insert it under its new key.")));
    pg_unreachable();
}

}  // namespace

GuardCache *guard_cache(FmgrInfo *function) {
    if (unlikely(function->fn_extra == nullptr))
        function->fn_extra = MemoryContextAllocZero(function->fn_mcxt, sizeof(GuardCache));
    return static_cast<GuardCache *>(function->fn_extra);
}

std::int32_t require_writable(GuardCache *cache, const char *keyspace, std::size_t length,
                              Datum key) {
    const Ownership &ownership = current_ownership();
    refresh(cache, ownership, keyspace, length);
    const std::int32_t bucket = bucket_of_key(cache, key);
    if (unlikely(ownership.restored)) refuse_restored_copy(ownership);
    const BucketState state =
        cache->keyspace->states == nullptr ? BucketState::none : cache->keyspace->states[bucket];
    if (likely(state == BucketState::owned && ownership.is_shard)) return bucket;
    // The one exemption: rows that a move brings here.
    if (state == BucketState::importing && ownership.is_shard && IsLogicalWorker()) return bucket;
    refuse_bucket(ownership, cache->keyspace, bucket);
}

}  // namespace interlock

using namespace interlock;

/// refuse_write(keyspace text, key anyelement) returns boolean: false, or an error.
INTERLOCK_FUNCTION(interlock_refuse_write) {
    if (PG_ARGISNULL(0))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("keyspace must not be null")));
    const text *keyspace = PG_GETARG_TEXT_PP(0);
    if (PG_ARGISNULL(1)) refuse_null_key(VARDATA_ANY(keyspace), VARSIZE_ANY_EXHDR(keyspace));
    GuardCache *cache = guard_cache(fcinfo->flinfo);
    if (unlikely(!OidIsValid(cache->declared)))
        cache->declared = get_fn_expr_argtype(fcinfo->flinfo, 1);
    require_writable(cache, VARDATA_ANY(keyspace), VARSIZE_ANY_EXHDR(keyspace), PG_GETARG_DATUM(1));
    PG_RETURN_BOOL(false);
}

/// refuse_write(keyspace text, old anyelement, new anyelement) returns boolean: false, or an error.
INTERLOCK_FUNCTION(interlock_refuse_update) {
    if (PG_ARGISNULL(0))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("keyspace must not be null")));
    const text *keyspace = PG_GETARG_TEXT_PP(0);
    const char *name = VARDATA_ANY(keyspace);
    const std::size_t length = VARSIZE_ANY_EXHDR(keyspace);
    if (PG_ARGISNULL(1) || PG_ARGISNULL(2)) refuse_null_key(name, length);
    GuardCache *cache = guard_cache(fcinfo->flinfo);
    if (unlikely(!OidIsValid(cache->declared)))
        cache->declared = get_fn_expr_argtype(fcinfo->flinfo, 1);
    const std::int32_t before = require_writable(cache, name, length, PG_GETARG_DATUM(1));
    const std::int32_t after = require_writable(cache, name, length, PG_GETARG_DATUM(2));
    if (before != after) refuse_bucket_change(name, length, before, after);
    PG_RETURN_BOOL(false);
}

namespace {

// The key of a row, read by the column's name the first time.
Datum key_of(GuardCache *cache, TupleTableSlot *slot, const Trigger *trigger) {
    TupleDesc description = slot->tts_tupleDescriptor;
    if (cache->attribute == 0) {
        const int attribute = SPI_fnumber(description, trigger->tgargs[1]);
        if (attribute <= 0)
            ereport(
                ERROR,
                (errcode(ERRCODE_UNDEFINED_COLUMN),
                 errmsg("shard key column \"%s\" does not exist", trigger->tgargs[1]),
                 errhint("Call interlock.shard_table() again with the column's present name.")));
        cache->attribute = static_cast<AttrNumber>(attribute);
        cache->declared = TupleDescAttr(description, attribute - 1)->atttypid;
    }
    bool null;
    const Datum key = slot_getattr(slot, cache->attribute, &null);
    if (null) refuse_null_key(trigger->tgargs[0], std::strlen(trigger->tgargs[0]));
    return key;
}

}  // namespace

/// guard() returns trigger: for each row of INSERT, UPDATE and DELETE.
INTERLOCK_FUNCTION(interlock_guard) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("not called by trigger manager")));
    TriggerData *data = reinterpret_cast<TriggerData *>(fcinfo->context);
    if (!TRIGGER_FIRED_FOR_ROW(data->tg_event))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("must be fired for each row")));
    const Trigger *trigger = data->tg_trigger;
    if (trigger->tgnargs != 2)
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("trigger needs two arguments: keyspace and key column")));
    const char *name = trigger->tgargs[0];
    const std::size_t length = std::strlen(name);
    GuardCache *cache = guard_cache(fcinfo->flinfo);
    const Datum key = key_of(cache, data->tg_trigslot, trigger);
    const std::int32_t bucket = require_writable(cache, name, length, key);
    if (TRIGGER_FIRED_BY_UPDATE(data->tg_event)) {
        const Datum new_key = key_of(cache, data->tg_newslot, trigger);
        const std::int32_t after = require_writable(cache, name, length, new_key);
        if (bucket != after) refuse_bucket_change(name, length, bucket, after);
        PG_RETURN_POINTER(data->tg_newtuple);
    }
    PG_RETURN_POINTER(data->tg_trigtuple);
}

/// guard_truncate() returns trigger: before TRUNCATE.
INTERLOCK_FUNCTION(interlock_guard_truncate) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("not called by trigger manager")));
    TriggerData *data = reinterpret_cast<TriggerData *>(fcinfo->context);
    if (!TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) || !TRIGGER_FIRED_BEFORE(data->tg_event))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("must be fired before TRUNCATE")));
    if (data->tg_trigger->tgnargs != 1)
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("trigger needs one argument: keyspace")));
    const char *name = data->tg_trigger->tgargs[0];
    const Ownership &ownership = current_ownership();
    if (ownership.restored) refuse_restored_copy(ownership);
    if (!guc::allow_truncate)
        ereport(ERROR, (errcode(ERRCODE_INTERLOCK_TRUNCATE),
                        errmsg("TRUNCATE of sharded table \"%s\" is not announced",
                               RelationGetRelationName(data->tg_relation)),
                        errdetail("It would remove the rows of every bucket on this shard."),
                        errhint("SET interlock.allow_truncate = on if this is what you mean.")));
    const Keyspace *keyspace = require_keyspace(ownership, name, std::strlen(name));
    if (keyspace->shut > 0)
        ereport(ERROR, (errcode(ERRCODE_INTERLOCK_FENCED),
                        errmsg("cannot truncate sharded table \"%s\" while buckets are on the move",
                               RelationGetRelationName(data->tg_relation)),
                        errdetail("%d of the buckets of keyspace \"%s\" are fenced or importing.",
                                  keyspace->shut, name),
                        errhint("Retry when the move has ended.")));
    PG_RETURN_POINTER(nullptr);
}

/// state_changed() returns trigger: tells every session that its copy of the state is stale.
INTERLOCK_FUNCTION(interlock_state_changed) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("not called by trigger manager")));
    TriggerData *data = reinterpret_cast<TriggerData *>(fcinfo->context);
    CacheInvalidateRelcache(data->tg_relation);
    PG_RETURN_POINTER(nullptr);
}
