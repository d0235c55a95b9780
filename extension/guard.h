// What a call of the write guard keeps between rows.
#pragma once

#include "ownership.h"
#include "pg.h"

namespace interlock {

/// In fn_extra of a call site: the keyspace, found again only when the state has been rebuilt, and
/// how to read the key.
struct GuardCache {
    std::uint64_t generation;
    const Keyspace *keyspace;
    KeyType type;
    Oid declared;          ///< type of the key as the call site has it; InvalidOid = not asked yet
    AttrNumber attribute;  ///< of the key, where the call site reads it from a row
    bool name_varies;      ///< the keyspace is not the same in each call
    std::uint32_t calls;   ///< so far
};

/// The cache of a call site, zeroed at first use.
inline GuardCache *guard_cache(FmgrInfo *function) {
    if (unlikely(function->fn_extra == nullptr))
        function->fn_extra = MemoryContextAllocZero(function->fn_mcxt, sizeof(GuardCache));
    return static_cast<GuardCache *>(function->fn_extra);
}

}  // namespace interlock
