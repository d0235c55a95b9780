// What this database knows of its own part in the cluster: identity, floor, keyspaces, bucket
// states.
//
// A per-session copy of the tables shard_identity, local_keyspace, bucket_state, handoff and
// guarded_table (and of the catalog's keyspaces). PostgreSQL's own messages keep it right: every
// change of those tables comes with a relation-cache invalidation (a trigger on each sees to it),
// and the copy is rebuilt before the next use, under a snapshot taken then. So it shows the newest
// committed state, plus this transaction's own changes, whatever the isolation level; rolling back
// (to a savepoint too) makes it stale as well.
#pragma once

#include "keys.h"
#include "pg.h"

namespace interlock {

/// State of a bucket; none: it has no row, and is not this shard's.
enum class BucketState : std::uint8_t { none, owned, fenced, moved, importing };

/// What the transaction under way may do behind a fence; see write_rights.h. An epoch is that in
/// which something was written down, and it is good in that epoch only.
struct WriteRights {
    /// A lock that is held, and the subtransaction that it was found in: it is as old, or older.
    struct Lock {
        std::uint32_t epoch;
        SubTransactionId found_in;
    };
    Lock table;                ///< for writing, on a table of the keyspace
    Lock rows;                 ///< for locking rows of one
    Lock behind;               ///< the same, while one of the buckets was fenced already
    std::uint32_t written[1];  ///< one a bucket: written to while it was owned
};

struct Keyspace {
    const char *name;  ///< with a NUL behind it
    std::size_t name_length;
    KeyFamily family;
    std::int32_t buckets;
    BucketState
        *states;  ///< one a bucket; nullptr when the keyspace is known from the catalog only
    std::int32_t *since;  ///< the same: route version under which an owned or fenced one came
                          ///< here, or 0
    WriteRights *rights;  ///< the same
    std::int32_t shut;    ///< how many buckets are fenced or importing
    std::int32_t moving;  ///< moves under way in which this shard takes part
};

inline std::string_view name_of(const Keyspace &keyspace) {
    return {keyspace.name, keyspace.name_length};
}

/// A table given to shard_table().
struct GuardedTable {
    Oid relid;
    const char *keyspace;
    const char *key_column;
};

struct Ownership {
    bool installed;  ///< the extension exists in this database
    bool is_shard;   ///< shard_identity has its row
    bool restored;   ///< it does, but it names another server or database
    bool writable;   ///< is_shard and not restored: owned buckets take writes
    std::int32_t floor;
    pg_uuid_t cluster;
    const char *shard;  ///< nullptr unless is_shard
    Keyspace *keyspaces;
    int keyspace_count;
    GuardedTable *guarded;
    int guarded_count;
    std::uint64_t generation;  ///< differs after each rebuild: pointers into an older one are dead
};

#pragma GCC visibility push(hidden)
namespace ownership_copy {
extern Ownership current;
extern std::uint64_t invalidations;  ///< messages that concern the copy, so far
extern std::uint64_t built_at;       ///< value of `invalidations` that the copy is good for
void rebuild();
}  // namespace ownership_copy
#pragma GCC visibility pop

/// The state as this session has been told. Changes by others since messages were last taken (with
/// every new lock, for one) are not in it. Otherwise as current_ownership().
inline const Ownership &known_ownership() {
    if (unlikely(ownership_copy::built_at != ownership_copy::invalidations))
        ownership_copy::rebuild();
    return ownership_copy::current;
}

/// The state as of now. Takes pending invalidations first; reads the tables only if something
/// changed. Call inside a valid transaction. The result, and everything it points to, is good until
/// the next call.
inline const Ownership &current_ownership() {
    AcceptInvalidationMessages();
    return known_ownership();
}

/// The keyspace of that name, or nullptr.
const Keyspace *find_keyspace(const Ownership &ownership, std::string_view name);

/// The same; raises 42704 instead.
const Keyspace *require_keyspace(const Ownership &ownership, std::string_view name);

/// A bucket_state row as it is now; for messages. Strings are palloc'd.
struct BucketDetails {
    const char *peer;            ///< nullptr when none is recorded
    std::int32_t route_version;  ///< 0 when none is recorded
    const char *until;           ///< text form, nullptr when none is recorded
    bool expired;                ///< `until` has passed by this server's clock
};

/// Reads the row again (newest snapshot); all-empty when there is none.
BucketDetails read_bucket_details(const char *keyspace, std::int32_t bucket);

/// The entry of `relid`, or of the table it descends from (partition, child), among the tables
/// given to shard_table(); nullptr if there is none.
const GuardedTable *guarding(const Ownership &ownership, Oid relid);

inline bool is_guarded(const Ownership &ownership, Oid relid) {
    return guarding(ownership, relid) != nullptr;
}

/// Raises IL104: this database is a copy of a shard.
[[noreturn]] void refuse_restored_copy(const Ownership &ownership);

/// Owner of the extension's tables. Valid while the extension is installed.
Oid extension_owner();

}  // namespace interlock
