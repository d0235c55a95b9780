// owned(): for which rows this shard answers a statement that goes to all shards.
#include "pg.h"

#include "guard.h"
#include "guc.h"
#include "ownership.h"
#include "route_version.h"

namespace interlock {

namespace {

// What owned() says of each bucket, for all rows of one execution of a statement. The state may
// change while it runs, but the rows that it reads are those of its beginning: a bucket that is
// given away meanwhile is still wholly among them, one that is taken over is not.
struct OwnedCache {
    KeyType type;
    const char *keyspace;  ///< the answers are of; nullptr: none yet
    std::size_t name_length;
    KeyFamily family;
    std::int32_t buckets;
    bool *answers;
    // What they were decided for. PL/pgSQL keeps an expression's state for a whole transaction, so
    // the call site alone does not tell one execution from the next.
    std::int32_t route_version;
    TransactionId snapshot_xmin, snapshot_xmax;
    std::uint32_t snapshot_count;
    CommandId snapshot_command;
    std::uint64_t snapshot_completed;
};

bool same_execution(const OwnedCache &cache) {
    const Snapshot snapshot = GetActiveSnapshot();
    return cache.route_version == guc::route_version && cache.snapshot_xmin == snapshot->xmin &&
           cache.snapshot_xmax == snapshot->xmax && cache.snapshot_count == snapshot->xcnt &&
           cache.snapshot_command == snapshot->curcid &&
           cache.snapshot_completed == snapshot->snapXactCompletionCount;
}

void note_execution(OwnedCache *cache) {
    const Snapshot snapshot = GetActiveSnapshot();
    cache->route_version = guc::route_version;
    cache->snapshot_xmin = snapshot->xmin;
    cache->snapshot_xmax = snapshot->xmax;
    cache->snapshot_count = snapshot->xcnt;
    cache->snapshot_command = snapshot->curcid;
    cache->snapshot_completed = snapshot->snapXactCompletionCount;
}

OwnedCache *owned_cache(FmgrInfo *function) {
    if (likely(function->fn_extra != nullptr)) return static_cast<OwnedCache *>(function->fn_extra);
    OwnedCache *cache =
        static_cast<OwnedCache *>(MemoryContextAllocZero(function->fn_mcxt, sizeof(OwnedCache)));
    cache->type = require_key_type(get_fn_expr_argtype(function, 1));
    function->fn_extra = cache;
    return cache;
}

// The session's route version says which buckets it finds here: of one that is on its way from
// another shard exactly one of the two answers, whatever the version.
void fill_answers(const Keyspace &keyspace, const Ownership &ownership, bool *answers) {
    for (std::int32_t i = 0; i < keyspace.buckets; ++i) {
        const BucketState state = ownership.is_shard && keyspace.states != nullptr
                                      ? keyspace.states[i]
                                      : BucketState::none;
        answers[i] = state == BucketState::fenced ||
                     (state == BucketState::owned &&
                      (guc::route_version == 0 || keyspace.since[i] <= guc::route_version));
    }
}

// Raises IL102 for a session whose routes are too old by now, IL104 in a restored copy.
void decide_answers(OwnedCache *cache, FunctionCallInfo fcinfo, std::string_view name) {
    const Ownership &ownership = current_ownership();
    if (unlikely(ownership.restored)) refuse_restored_copy(ownership);
    require_current_routes(ownership, InvalidOid);
    const Keyspace *keyspace = require_keyspace(ownership, name);
    MemoryContext context = fcinfo->flinfo->fn_mcxt;
    if (cache->keyspace != nullptr) {
        pfree(const_cast<char *>(cache->keyspace));
        pfree(cache->answers);
        cache->keyspace = nullptr;
    }
    cache->answers = static_cast<bool *>(
        MemoryContextAlloc(context, static_cast<std::size_t>(keyspace->buckets)));
    fill_answers(*keyspace, ownership, cache->answers);
    cache->family = keyspace->family;
    cache->buckets = keyspace->buckets;
    char *copy = static_cast<char *>(MemoryContextAlloc(context, name.size() + 1));
    std::memcpy(copy, name.data(), name.size());
    copy[name.size()] = '\0';
    cache->keyspace = copy;
    cache->name_length = name.size();
    note_execution(cache);
}

}  // namespace

}  // namespace interlock

using namespace interlock;

/// owned(keyspace text, key anyelement) returns boolean
INTERLOCK_FUNCTION(interlock_owned) {
    OwnedCache *cache = owned_cache(fcinfo->flinfo);
    const text *argument = PG_GETARG_TEXT_PP(0);
    const std::string_view name(VARDATA_ANY(argument), VARSIZE_ANY_EXHDR(argument));
    if (unlikely(cache->keyspace == nullptr || !same_execution(*cache) ||
                 name != std::string_view(cache->keyspace, cache->name_length)))
        decide_answers(cache, fcinfo, name);
    if (unlikely(cache->family != cache->type.family))
        require_key_type_of(cache->type.base, cache->family, cache->keyspace);
    PG_RETURN_BOOL(cache->answers[placement::bucket_of_hash(
        hash_of_key(PG_GETARG_DATUM(1), cache->type), cache->buckets)]);
}
