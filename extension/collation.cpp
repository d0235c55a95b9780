#include "pg.h"

extern "C" {
#include "catalog/pg_database.h"
#include "utils/pg_locale.h"
#include "utils/syscache.h"
}

#include "collation.h"

namespace interlock {

namespace {

void require_collation(Oid collation) {
    if (OidIsValid(collation)) return;
    ereport(ERROR, (errcode(ERRCODE_INDETERMINATE_COLLATION),
                    errmsg("could not determine which collation to use for a sort key"),
                    errhint("Use the COLLATE clause to set the collation explicitly.")));
}

void append_terminated(const char *bytes, int length, StringInfo out) {
    appendBinaryStringInfo(out, bytes, length);
    appendStringInfoChar(out, '\0');
}

#ifdef USE_ICU
// A sort key of ICU has no zero byte but its last.
void append_icu_key(UCollator *collator, const char *bytes, int length, StringInfo out) {
    UChar *wide = nullptr;
    const int32_t wide_length = icu_to_uchar(&wide, bytes, static_cast<std::size_t>(length));
    enlargeStringInfo(out, length + length / 2 + 64);  // most often enough
    for (;;) {
        const int room = out->maxlen - out->len - 1;
        const int32_t needed =
            ucol_getSortKey(collator, wide, wide_length,
                            reinterpret_cast<std::uint8_t *>(out->data + out->len), room);
        if (needed <= 0)
            ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("ICU gave no sort key")));
        if (needed <= room) {
            out->len += needed;
            break;
        }
        enlargeStringInfo(out, needed);
    }
    out->data[out->len] = '\0';
    pfree(wide);
}
#endif

// pg_collation_actual_version() and the like, which give NULL for a collation without version.
void append_version(PGFunction function, Oid object, StringInfo out) {
    LOCAL_FCINFO(call, 1);
    InitFunctionCallInfoData(*call, nullptr, 1, InvalidOid, nullptr, nullptr);
    call->args[0].value = ObjectIdGetDatum(object);
    call->args[0].isnull = false;
    const Datum version = function(call);
    if (call->isnull)
        appendStringInfoString(out, " no version");
    else
        appendStringInfo(out, " version %s", quote_literal_cstr(TextDatumGetCString(version)));
}

void append_attribute(int cache, HeapTuple tuple, AttrNumber attribute, StringInfo out) {
    bool isnull;
    const Datum value = SysCacheGetAttr(cache, tuple, attribute, &isnull);
    if (!isnull) appendStringInfo(out, " %s", quote_literal_cstr(TextDatumGetCString(value)));
}

void describe_default(StringInfo out) {
    HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
    const bool icu =
        reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple))->datlocprovider == COLLPROVIDER_ICU;
    appendStringInfoString(out, icu ? "icu" : "libc");
    append_attribute(DATABASEOID, tuple,
                     icu ? Anum_pg_database_daticulocale : Anum_pg_database_datcollate, out);
    ReleaseSysCache(tuple);
    append_version(pg_database_collation_actual_version, MyDatabaseId, out);
}

void describe_named(Oid collation, StringInfo out) {
    HeapTuple tuple = SearchSysCache1(COLLOID, ObjectIdGetDatum(collation));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for collation %u", collation);
    Form_pg_collation form = reinterpret_cast<Form_pg_collation>(GETSTRUCT(tuple));
    const bool icu = form->collprovider == COLLPROVIDER_ICU;
    const bool deterministic = form->collisdeterministic;
    appendStringInfoString(out, icu ? "icu" : "libc");
    append_attribute(COLLOID, tuple,
                     icu ? Anum_pg_collation_colliculocale : Anum_pg_collation_collcollate, out);
    ReleaseSysCache(tuple);
    append_version(pg_collation_actual_version, collation, out);
    if (!deterministic) appendStringInfoString(out, " nondeterministic");
}

}  // namespace

const char *why_no_text_key(Oid collation) {
    require_collation(collation);
    if (lc_collate_is_c(collation)) return nullptr;
    const pg_locale_t locale = pg_newlocale_from_collation(collation);
#ifdef USE_ICU
    if (locale != nullptr && locale->provider == COLLPROVIDER_ICU) return nullptr;
#endif
    if (collation == DEFAULT_COLLATION_OID)
        return "The default collation of the database is one of the C library, whose order no "
               "bytes show and which may differ between machines.";
    return psprintf("Collation \"%s\" is one of the C library, whose order no bytes show and which "
                    "may differ between machines.",
                    get_collation_name(collation));
}

void append_text_key(Oid collation, const char *bytes, int length, StringInfo out) {
    require_collation(collation);
    if (lc_collate_is_c(collation)) {
        append_terminated(bytes, length, out);
        return;
    }
#ifdef USE_ICU
    const pg_locale_t locale = pg_newlocale_from_collation(collation);
    if (locale != nullptr && locale->provider == COLLPROVIDER_ICU) {
        append_icu_key(locale->info.icu.ucol, bytes, length, out);
        // What ICU takes for equal, varstr_cmp() tells apart by the bytes.
        if (locale->deterministic) append_terminated(bytes, length, out);
        return;
    }
#endif
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("text cannot be merged under this collation"),
                    errdetail("%s", why_no_text_key(collation)),
                    errhint("Sort by the column COLLATE \"C\", or by an ICU collation.")));
}

bool is_nondeterministic(Oid collation) {
    require_collation(collation);
    return !get_collation_isdeterministic(collation);
}

void describe_collation(Oid collation, StringInfo out) {
    require_collation(collation);
    if (lc_collate_is_c(collation))
        appendStringInfoString(out, "bytes");
    else if (collation == DEFAULT_COLLATION_OID)
        describe_default(out);
    else
        describe_named(collation, out);
}

}  // namespace interlock
