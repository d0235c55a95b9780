#include "pg.h"

#include "keys.h"

namespace interlock {

namespace {

bool is_ascii(const char *bytes, std::size_t length) {
    for (std::size_t i = 0; i < length; ++i)
        if (static_cast<unsigned char>(bytes[i]) & 0x80) return false;
    return true;
}

std::int64_t hash_of_text(const char *bytes, int length) {
    // Every server encoding has ASCII as a subset, so only other text is converted.
    if (GetDatabaseEncoding() == PG_UTF8 || is_ascii(bytes, static_cast<std::size_t>(length)))
        return placement::xxh3_64(bytes, static_cast<std::size_t>(length));
    char *utf8 = pg_server_to_any(bytes, length, PG_UTF8);
    if (utf8 == bytes) return placement::xxh3_64(bytes, static_cast<std::size_t>(length));
    const std::int64_t hash = placement::xxh3_64(utf8, std::strlen(utf8));
    pfree(utf8);
    return hash;
}

std::int64_t hash_of_varlena(Datum key, bool is_text) {
    struct varlena *stored = reinterpret_cast<struct varlena *>(DatumGetPointer(key));
    struct varlena *plain = pg_detoast_datum_packed(stored);
    const char *bytes = VARDATA_ANY(plain);
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(plain));
    const std::int64_t hash = is_text ? hash_of_text(bytes, length)
                                      : placement::xxh3_64(bytes, static_cast<std::size_t>(length));
    if (plain != stored) pfree(plain);
    return hash;
}

bool family_of_base(Oid base, KeyFamily *family) {
    switch (base) {
    case INT8OID:
    case INT4OID:
    case INT2OID: *family = KeyFamily::integer; return true;
    case UUIDOID: *family = KeyFamily::uuid; return true;
    case TEXTOID:
    case VARCHAROID: *family = KeyFamily::text; return true;
    case BYTEAOID: *family = KeyFamily::bytea; return true;
    default: return false;
    }
}

}  // namespace

bool resolve_key_type(Oid type, KeyType *result) {
    if (!OidIsValid(type)) return false;
    result->base = type;
    if (family_of_base(type, &result->family)) return true;
    result->base = getBaseType(type);
    return family_of_base(result->base, &result->family);
}

KeyType require_key_type(Oid type) {
    KeyType result;
    if (!resolve_key_type(type, &result))
        ereport(ERROR,
                (errcode(ERRCODE_DATATYPE_MISMATCH),
                 errmsg("type %s cannot be a shard key",
                        OidIsValid(type) ? format_type_be(type) : "unknown"),
                 errhint("Shard keys are of type smallint, integer, bigint, uuid, text, character "
                         "varying or bytea, or of a domain over one of these.")));
    return result;
}

KeyType require_key_type_of(Oid type, KeyFamily family, const char *keyspace) {
    KeyType result;
    if (!resolve_key_type(type, &result) || result.family != family)
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("a key of type %s does not fit keyspace \"%s\"",
                               OidIsValid(type) ? format_type_be(type) : "unknown", keyspace),
                        errdetail("The key type of the keyspace is %s.", family_name(family))));
    return result;
}

const char *family_name(KeyFamily family) {
    switch (family) {
    case KeyFamily::integer: return "bigint";
    case KeyFamily::uuid: return "uuid";
    case KeyFamily::text: return "text";
    case KeyFamily::bytea: return "bytea";
    }
    return "unknown";
}

bool family_of_name(const char *name, KeyFamily *result) {
    for (KeyFamily family :
         {KeyFamily::integer, KeyFamily::uuid, KeyFamily::text, KeyFamily::bytea})
        if (std::strcmp(name, family_name(family)) == 0) {
            *result = family;
            return true;
        }
    return false;
}

std::int64_t hash_of_any_key(Datum key, KeyType type) {
    switch (type.base) {
    case INT8OID: return placement::splitmix64(DatumGetInt64(key));
    case INT4OID: return placement::splitmix64(DatumGetInt32(key));
    case INT2OID: return placement::splitmix64(DatumGetInt16(key));
    case UUIDOID: return placement::xxh3_64(DatumGetUUIDP(key)->data, UUID_LEN);
    case BYTEAOID: return hash_of_varlena(key, false);
    default: return hash_of_varlena(key, true);
    }
}

}  // namespace interlock
