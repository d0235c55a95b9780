// hash_key(), bucket_of(), owns(): placement as SQL sees it.
#include "pg.h"

#include "errors.h"
#include "guard.h"

namespace interlock {

namespace {

// Key argument `position`: its type, found once a call site.
KeyType argument_type(FmgrInfo *function, int position) {
    GuardCache *cache = guard_cache(function);
    if (unlikely(!OidIsValid(cache->declared))) {
        const Oid declared = get_fn_expr_argtype(function, position);
        cache->type = require_key_type(declared);
        cache->declared = declared;
    }
    return cache->type;
}

struct Place {
    const Keyspace *keyspace;
    std::int32_t bucket;
};

Place place(FunctionCallInfo fcinfo, const Ownership &ownership) {
    const text *name = PG_GETARG_TEXT_PP(0);
    const KeyType type = argument_type(fcinfo->flinfo, 1);
    const Keyspace *keyspace =
        require_keyspace(ownership, {VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)});
    if (keyspace->family != type.family)
        require_key_type_of(type.base, keyspace->family, keyspace->name);
    return {keyspace,
            placement::bucket_of_hash(hash_of_key(PG_GETARG_DATUM(1), type), keyspace->buckets)};
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// hash_key(key anyelement) returns bigint
INTERLOCK_FUNCTION(interlock_hash_key) {
    PG_RETURN_INT64(hash_of_key(PG_GETARG_DATUM(0), argument_type(fcinfo->flinfo, 0)));
}

/// bucket_of(keyspace text, key anyelement) returns integer
INTERLOCK_FUNCTION(interlock_bucket_of) {
    PG_RETURN_INT32(place(fcinfo, current_ownership()).bucket);
}

/// owns(keyspace text, key anyelement) returns boolean
INTERLOCK_FUNCTION(interlock_owns) {
    const Ownership &ownership = current_ownership();
    const Place found = place(fcinfo, ownership);
    PG_RETURN_BOOL(ownership.is_shard && !ownership.restored && found.keyspace->states != nullptr &&
                   found.keyspace->states[found.bucket] == BucketState::owned);
}

/// key_family(type oid) returns text: NULL when the type cannot be a shard key
INTERLOCK_FUNCTION(interlock_key_family) {
    KeyType type;
    if (!resolve_key_type(PG_GETARG_OID(0), &type)) PG_RETURN_NULL();
    PG_RETURN_TEXT_P(cstring_to_text(family_name(type.family)));
}
