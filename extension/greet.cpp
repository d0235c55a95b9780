// greet(): what a router asks a connection it has just opened, in one call.
#include "pg.h"

#include "ownership.h"

using namespace interlock;

namespace {

// Whether unqualified names are looked up in pg_catalog first (temporary tables aside).
bool catalog_is_first() {
    Oid first = InvalidOid;
    return fetch_search_path_array(&first, 1) > 0 && first == PG_CATALOG_NAMESPACE;
}

}  // namespace

/// greet(route_version integer, OUT cluster_id uuid, OUT shard text, OUT floor integer,
///       OUT restored boolean, OUT catalog_first boolean, OUT extension_version text,
///       OUT system_identifier bigint, OUT timeline integer)
INTERLOCK_FUNCTION(interlock_greet) {
    TupleDesc description;
    if (get_call_result_type(fcinfo, nullptr, &description) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    if (PG_ARGISNULL(0) || PG_GETARG_INT32(0) < 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("route version must not be null or negative")));
    SetConfigOption("interlock.route_version", psprintf("%d", PG_GETARG_INT32(0)), PGC_USERSET,
                    PGC_S_SESSION);

    const Ownership &ownership = current_ownership();
    Datum values[8] = {};
    bool nulls[8] = {};
    pg_uuid_t cluster = ownership.cluster;
    if (ownership.is_shard) {
        values[0] = UUIDPGetDatum(&cluster);
        values[1] = CStringGetTextDatum(ownership.shard);
        values[2] = Int32GetDatum(ownership.floor);
        values[3] = BoolGetDatum(ownership.restored);
    } else {
        for (int i = 0; i < 4; ++i)
            nulls[i] = true;
    }
    values[4] = BoolGetDatum(catalog_is_first());
    values[5] = CStringGetTextDatum(INTERLOCK_VERSION);
    values[6] = Int64GetDatum(static_cast<std::int64_t>(GetSystemIdentifier()));
    // A standby has none of its own.
    nulls[7] = RecoveryInProgress();
    if (!nulls[7]) values[7] = Int32GetDatum(static_cast<std::int32_t>(GetWALInsertionTimeLine()));
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(description), values, nulls)));
}

/// system_identifier() returns bigint: of this server, as pg_control_system() shows it.
INTERLOCK_FUNCTION(interlock_system_identifier) {
    PG_RETURN_INT64(static_cast<std::int64_t>(GetSystemIdentifier()));
}
