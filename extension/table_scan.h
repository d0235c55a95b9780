// Reading one of the extension's own tables, whatever the caller's privileges are.
#pragma once

#include "pg.h"

namespace interlock {

/// Calls visit(values, nulls) for each row of a table, under `snapshot`. False when the table has
/// gone.
template <typename Visit>
bool scan_table(Oid relid, Snapshot snapshot, int nkeys, ScanKey keys, Visit visit) {
    Relation relation = try_relation_open(relid, AccessShareLock);
    if (relation == nullptr) return false;
    TupleDesc description = RelationGetDescr(relation);
    const std::size_t columns = static_cast<std::size_t>(description->natts);
    Datum *values = static_cast<Datum *>(palloc(columns * sizeof(Datum)));
    bool *nulls = static_cast<bool *>(palloc(columns * sizeof(bool)));
    SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, snapshot, nkeys, keys);
    HeapTuple tuple;
    while (HeapTupleIsValid(tuple = systable_getnext(scan))) {
        heap_deform_tuple(tuple, description, values, nulls);
        visit(values, nulls);
    }
    systable_endscan(scan);
    pfree(values);
    pfree(nulls);
    relation_close(relation, AccessShareLock);
    return true;
}

}  // namespace interlock
