// The decision of the write guard, apart from the ways in which it is called.
#pragma once

#include "ownership.h"
#include "pg.h"

namespace interlock {

/// What a call site keeps between rows (in fn_extra): the keyspace, found again only when the state
/// has been rebuilt, and how to read the key.
struct GuardCache {
    std::uint64_t generation;
    const Keyspace *keyspace;
    KeyType type;
    Oid declared;  ///< type of the key as the call site has it; InvalidOid = not looked up yet
    AttrNumber attribute;  ///< of the key, where the call site reads it from a row
};

/// The cache of a call, zeroed at first use.
GuardCache *guard_cache(FmgrInfo *function);

/// Returns the bucket of `key` if this shard may take a write to it now, else raises IL101, IL103
/// or IL104; 42704 when the keyspace is unknown here, 42804 when `cache->declared` is not of its
/// family.
std::int32_t require_writable(GuardCache *cache, const char *keyspace, std::size_t length,
                              Datum key);

}  // namespace interlock
