#include "pg.h"

#include "cursor_keys.h"
#include "table_scan.h"

namespace interlock {

namespace {

// Columns of cursor_key; the order is that of sql/*.sql.
constexpr int key_id = 1, key_secret = 2, key_created = 3, key_retired = 4;

struct Found {
    CursorKeys keys;
    TimestampTz created[2];
};

CursorKeys current;
// The copy is good while no message has come since its making began.
std::uint64_t invalidations = 1;
std::uint64_t built_at = 0;
Oid watched = InvalidOid;  // while the table is not there, every message concerns us
bool callback_registered = false;

void relation_changed(Datum, Oid relid) {
    if (!OidIsValid(relid) || !OidIsValid(watched) || relid == watched) ++invalidations;
}

// Keeps the two newest valid keys. Of two of one instant the higher id is the newer.
void take_key(Found *found, const Datum *values, const bool *nulls) {
    if (DatumGetBool(values[key_retired - 1]) || nulls[key_secret - 1]) return;
    const bytea *secret = DatumGetByteaPP(values[key_secret - 1]);
    const int id = DatumGetInt16(values[key_id - 1]);
    if (VARSIZE_ANY_EXHDR(secret) != cursor_format::secret_size || id < 1 || id > 255)
        ereport(ERROR,
                (errcode(ERRCODE_DATA_CORRUPTED), errmsg("cursor key %d is not a valid key", id)));
    const TimestampTz created = DatumGetTimestampTz(values[key_created - 1]);
    CursorKeys *keys = &found->keys;
    int place = 0;
    while (place < keys->count && (found->created[place] > created ||
                                   (found->created[place] == created && keys->keys[place].id > id)))
        ++place;
    if (place == 2) return;
    if (place == 0) {
        keys->keys[1] = keys->keys[0];
        found->created[1] = found->created[0];
    }
    found->created[place] = created;
    keys->keys[place].id = static_cast<unsigned char>(id);
    cursor_format::prepare(&keys->keys[place].mac,
                           reinterpret_cast<const unsigned char *>(VARDATA_ANY(secret)));
    keys->count = Min(keys->count + 1, 2);
}

bool read_keys(Found *found) {
    *found = {};
    watched = InvalidOid;
    const Oid schema = get_namespace_oid("interlock", true);
    if (!OidIsValid(get_extension_oid("interlock", true)) || !OidIsValid(schema)) return true;
    watched = get_relname_relid("cursor_key", schema);
    if (!OidIsValid(watched)) return true;
    Snapshot snapshot = RegisterSnapshot(GetCatalogSnapshot(watched));
    const bool there =
        scan_table(watched, snapshot, 0, nullptr,
                   [&](const Datum *values, const bool *nulls) { take_key(found, values, nulls); });
    UnregisterSnapshot(snapshot);
    return there;
}

void rebuild() {
    if (!callback_registered) {
        CacheRegisterRelcacheCallback(relation_changed, static_cast<Datum>(0));
        callback_registered = true;
    }
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        const std::uint64_t seen = invalidations;
        Found found;
        const bool complete = read_keys(&found);
        AcceptInvalidationMessages();
        if (complete && invalidations == seen) {
            current = found.keys;
            built_at = seen;
            return;
        }
    }
}

}  // namespace

const CursorKeys &current_cursor_keys() {
    AcceptInvalidationMessages();
    if (unlikely(built_at != invalidations)) rebuild();
    return current;
}

const CursorKey *find_cursor_key(unsigned char id) {
    const CursorKeys &keys = current_cursor_keys();
    for (int i = 0; i < keys.count; ++i)
        if (keys.keys[i].id == id) return &keys.keys[i];
    return nullptr;
}

const CursorKey *unsigned_cursor_key() {
    static CursorKey key;
    static bool prepared = false;
    if (!prepared) {
        constexpr unsigned char secret[cursor_format::secret_size] = {};
        key.id = 0;
        cursor_format::prepare(&key.mac, secret);
        prepared = true;
    }
    return &key;
}

}  // namespace interlock

/// new_cursor_secret() returns bytea: bytes that nobody can guess.
INTERLOCK_FUNCTION(interlock_new_cursor_secret) {
    constexpr Size size = VARHDRSZ + interlock::cursor_format::secret_size;
    bytea *secret = static_cast<bytea *>(palloc(size));
    SET_VARSIZE(secret, size);
    if (!pg_strong_random(VARDATA(secret), interlock::cursor_format::secret_size))
        ereport(ERROR,
                (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate a random secret")));
    PG_RETURN_BYTEA_P(secret);
}
