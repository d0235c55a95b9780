// A key as SQL hands it over -> its hash (see placement.h for what the hash is of).
#pragma once

#include "pg.h"

namespace interlock {

using placement::KeyFamily;

/// How to read the key type `type`: the built-in type below any domains, and its family.
struct KeyType {
    Oid base;
    KeyFamily family;
};

/// Looks through domains; false when `type` is not a key type. May read the catalogs (domains
/// only).
bool resolve_key_type(Oid type, KeyType *result);

/// As resolve_key_type, but raises 42804.
KeyType require_key_type(Oid type);

/// Raises 42804 unless `type` belongs to `family`; `keyspace` is for the message.
KeyType require_key_type_of(Oid type, KeyFamily family, const char *keyspace);

/// "bigint", "uuid", "text", "bytea": the name of a family in catalogs and messages.
const char *family_name(KeyFamily family);

/// The family of that name; false when there is none.
bool family_of_name(const char *name, KeyFamily *result);

/// The general case of hash_of_key().
std::int64_t hash_of_any_key(Datum key, KeyType type);

/// Hash of a key of a key type, never NULL. Frees what it detoasts or converts.
/// Raises 22021 when a text has no UTF-8 form (databases in SQL_ASCII).
inline std::int64_t hash_of_key(Datum key, KeyType type) {
    return type.base == INT8OID ? placement::splitmix64(DatumGetInt64(key))
                                : hash_of_any_key(key, type);
}

}  // namespace interlock
