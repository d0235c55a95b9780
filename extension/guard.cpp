#include "pg.h"

#include "errors.h"
#include "guard.h"
#include "guc.h"
#include "write_rights.h"

namespace interlock {

void refuse_restored_copy(const Ownership &ownership) {
    ereport(
        ERROR,
        (errcode(ERRCODE_INTERLOCK_RESTORED_COPY),
         errmsg("this database is a copy of shard \"%s\", not the shard itself", ownership.shard),
         errdetail("The recorded system identifier or database OID is another one."),
         errhint("If the original is gone for good, declare this copy to be the shard with "
                 "interlock.adopt_shard().")));
    pg_unreachable();
}

namespace {

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
             details.expired ? errhint("The deadline has passed: interlock.expire_fences() opens "
                                       "the fence.")
                             : errhint("Retry soon.")));
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

[[noreturn]] void refuse_null_key(std::string_view keyspace) {
    ereport(ERROR, (errcode(ERRCODE_NOT_NULL_VIOLATION), errmsg("null shard key"),
                    errdetail("A row without a key belongs to no bucket of keyspace \"%.*s\".",
                              static_cast<int>(keyspace.size()), keyspace.data())));
    pg_unreachable();
}

[[noreturn]] void refuse_bucket_change(const Keyspace *keyspace, std::int32_t from,
                                       std::int32_t to) {
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("update would move a row from bucket %d to bucket %d of keyspace \"%s\"",
                           from, to, keyspace->name),
                    errhint("Delete the row and insert it under its new key.")));
    pg_unreachable();
}

// The state for the next row of a call site. Looking for messages costs more than all the rest of
// the check, so a statement of many rows looks at each of its first rows and then at every
// sixteenth. That is enough: a fence waits for whoever holds the table's lock, and this statement
// does; looking at all is there to end it early.
inline const Ownership &ownership_for_next_row(GuardCache *cache) {
    constexpr std::uint32_t first_rows = 256, interval = 16;
    const std::uint32_t call = cache->calls++;
    return call < first_rows || call % interval == 0 ? current_ownership() : known_ownership();
}

// Returns the bucket of `key` if this shard may take a write to it now, else raises IL101, IL103 or
// IL104; 42704 when the keyspace is unknown here, 42804 when the key does not fit it. `name` gives
// the keyspace's name; it is asked for only after the state has changed.
template <typename Name>
inline std::int32_t require_writable(GuardCache *cache, Name name, Datum key,
                                     bool removal = false) {
    const Ownership &ownership = ownership_for_next_row(cache);
    if (unlikely(cache->generation != ownership.generation || cache->name_varies)) {
        cache->keyspace = require_keyspace(ownership, name());
        cache->type =
            require_key_type_of(cache->declared, cache->keyspace->family, cache->keyspace->name);
        cache->generation = ownership.generation;
    }
    const Keyspace *keyspace = cache->keyspace;
    const std::int32_t bucket =
        placement::bucket_of_hash(hash_of_key(key, cache->type), keyspace->buckets);
    const BucketState state =
        keyspace->states == nullptr ? BucketState::none : keyspace->states[bucket];
    if (likely(state == BucketState::owned && ownership.writable)) {
        write_rights::note_write(ownership, *keyspace, bucket);
        return bucket;
    }
    if (ownership.restored) refuse_restored_copy(ownership);
    if (ownership.writable) {
        // The fence waits for this transaction to end.
        if (state == BucketState::fenced && write_rights::may_finish(*keyspace, bucket))
            return bucket;
        // The one exemption: rows that a move brings here, or takes away when it has ended.
        if (state == BucketState::importing && (IsLogicalWorker() || guc::moving_rows))
            return bucket;
        if (removal && guc::moving_rows && state != BucketState::fenced) return bucket;
    }
    refuse_bucket(ownership, keyspace, bucket);
}

// Text argument 0 of a function, the keyspace.
std::string_view keyspace_argument(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(0))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("keyspace must not be null")));
    const text *name = PG_GETARG_TEXT_PP(0);
    return {VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)};
}

// The cache of refuse_write(keyspace, key, ...).
inline GuardCache *argument_cache(FunctionCallInfo fcinfo) {
    GuardCache *cache = guard_cache(fcinfo->flinfo);
    if (unlikely(!OidIsValid(cache->declared))) {
        cache->declared = get_fn_expr_argtype(fcinfo->flinfo, 1);
        cache->name_varies = !get_fn_expr_arg_stable(fcinfo->flinfo, 0);
    }
    return cache;
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// refuse_write(keyspace text, key anyelement) returns boolean: false, or an error.
INTERLOCK_FUNCTION(interlock_refuse_write) {
    if (PG_ARGISNULL(1)) refuse_null_key(keyspace_argument(fcinfo));
    require_writable(
        argument_cache(fcinfo), [&] { return keyspace_argument(fcinfo); }, PG_GETARG_DATUM(1));
    PG_RETURN_BOOL(false);
}

/// refuse_write(keyspace text, old anyelement, new anyelement) returns boolean: false, or an error.
INTERLOCK_FUNCTION(interlock_refuse_update) {
    if (PG_ARGISNULL(1) || PG_ARGISNULL(2)) refuse_null_key(keyspace_argument(fcinfo));
    GuardCache *cache = argument_cache(fcinfo);
    const auto name = [&] { return keyspace_argument(fcinfo); };
    const std::int32_t before = require_writable(cache, name, PG_GETARG_DATUM(1));
    const std::int32_t after = require_writable(cache, name, PG_GETARG_DATUM(2));
    if (before != after) refuse_bucket_change(cache->keyspace, before, after);
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
    if (null) refuse_null_key(trigger->tgargs[0]);
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
    const auto name = [trigger] { return std::string_view(trigger->tgargs[0]); };
    GuardCache *cache = guard_cache(fcinfo->flinfo);
    const Datum key = key_of(cache, data->tg_trigslot, trigger);
    const std::int32_t bucket =
        require_writable(cache, name, key, TRIGGER_FIRED_BY_DELETE(data->tg_event));
    if (!TRIGGER_FIRED_BY_UPDATE(data->tg_event)) PG_RETURN_POINTER(data->tg_trigtuple);

    const Datum new_key = key_of(cache, data->tg_newslot, trigger);
    // Most updates leave the key alone. (Of an integer: other keys are pointers, and are hashed.)
    if (new_key != key) {
        const std::int32_t after = require_writable(cache, name, new_key);
        if (bucket != after) refuse_bucket_change(cache->keyspace, bucket, after);
    }
    PG_RETURN_POINTER(data->tg_newtuple);
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
    const Keyspace *keyspace = require_keyspace(ownership, name);
    if (keyspace->shut > 0 || keyspace->moving > 0)
        ereport(ERROR,
                (errcode(ERRCODE_INTERLOCK_FENCED),
                 errmsg("cannot truncate sharded table \"%s\" while buckets are on the move",
                        RelationGetRelationName(data->tg_relation)),
                 keyspace->shut > 0
                     ? errdetail("%d of the buckets of keyspace \"%s\" are fenced or importing.",
                                 keyspace->shut, name)
                     : errdetail("A move of buckets of keyspace \"%s\" has begun.", name),
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
