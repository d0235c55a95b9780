#include "tools/repair_position.h"

namespace interlock {

RepairPosition::RepairPosition(ControlConnection &database, const RepairRun &run)
    : database_(database), index_(run.index), part_(run.apply ? "apply" : "dry run") {
    if (!run.shard.empty()) part_ += ", shard " + run.shard;
    if (!run.scope.empty()) part_ += ", scope " + run.scope;
}

bool RepairPosition::load(std::string &key, RepairCounts &counts, std::string &begun) {
    // In the order of RepairCounts::take().
    const Rows found = database_.query(
        "SELECT position, pg_catalog.date_trunc('second', started)::pg_catalog.text, c.* "
        "FROM interlock.index_repair, pg_catalog.jsonb_to_record(report) AS c("
        "scanned bigint, entries bigint, missing bigint, stale bigint, mended bigint, "
        "pending bigint, parked bigint, elsewhere bigint) "
        "WHERE index = $1 AND part = $2 AND position IS NOT NULL",
        {Param::of_text(index_), Param::of_text(part_)});
    if (found.empty()) return false;
    key = found.text(0, 0);
    begun = found.text(0, 1);
    counts.take(found, 2);
    return true;
}

void RepairPosition::save(const std::string &key, const RepairCounts &counts) {
    database_.query("INSERT INTO interlock.index_repair AS r (index, part, position, report) "
                    "VALUES ($1, $2, $3::pg_catalog.jsonb, $4::pg_catalog.jsonb) "
                    "ON CONFLICT (index, part) DO UPDATE SET position = excluded.position, "
                    "report = excluded.report, updated = pg_catalog.clock_timestamp()",
                    {Param::of_text(index_), Param::of_text(part_),
                     key.empty() ? Param::null_text() : Param::of_text(key),
                     Param::of_text(counts.json())});
}

void RepairPosition::forget() {
    database_.query("DELETE FROM interlock.index_repair WHERE index = $1 AND part = $2",
                    {Param::of_text(index_), Param::of_text(part_)});
}

}  // namespace interlock
