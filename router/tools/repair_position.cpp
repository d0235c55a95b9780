#include "tools/repair_position.h"

#include <utility>

namespace interlock {

RepairPosition::RepairPosition(ControlConnection &database, const RepairRun &run,
                               RepairServers servers)
    : database_(database), servers_(std::move(servers)), index_(run.index),
      part_(run.apply ? "apply" : "dry run") {
    if (!run.shard.empty()) part_ += ", shard " + run.shard;
    if (!run.scope.empty()) part_ += ", scope " + run.scope;
}

std::optional<InterruptedRun> RepairPosition::load() {
    // Counts in the order of RepairCounts::take(). Shards that came, or went, since do no harm.
    const Rows found = database_.query(
        "SELECT r.position, pg_catalog.date_trunc('second', r.started)::pg_catalog.text, "
        "CASE WHEN COALESCE(age NOT BETWEEN '0' AND '1 day'::pg_catalog.interval, true) "
        "     THEN 'it was interrupted more than a day ago' "
        "     ELSE (SELECT pg_catalog.format('the database of %s is another, or was restored', "
        "                    pg_catalog.string_agg(s.member, ', ' ORDER BY s.member)) "
        "             FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4)) "
        "                  AS s(member, identity) "
        "            WHERE r.servers ->> s.member <> s.identity HAVING pg_catalog.count(*) > 0) "
        "END, c.* "
        "FROM interlock.index_repair AS r "
        "CROSS JOIN LATERAL (SELECT pg_catalog.clock_timestamp() - r.updated) AS a(age) "
        "CROSS JOIN LATERAL pg_catalog.jsonb_to_record(r.report) AS c("
        "scanned bigint, entries bigint, missing bigint, stale bigint, mended bigint, "
        "pending bigint, parked bigint, elsewhere bigint, \"left\" bigint) "
        "WHERE r.index = $1 AND r.part = $2 AND r.position IS NOT NULL",
        {Param::of_text(index_), Param::of_text(part_), Param::of_text_array(servers_.members),
         Param::of_text_array(servers_.identities)});
    if (found.empty()) return std::nullopt;
    InterruptedRun run;
    run.key = found.text(0, 0);
    run.begun = found.text(0, 1);
    run.outdated = found.text(0, 2);
    run.counts.take(found, 3);
    run.left = found.int64(0, 11);
    return run;
}

void RepairPosition::save(const std::string &key, const RepairCounts &counts, std::int64_t left) {
    database_.query(
        "INSERT INTO interlock.index_repair AS r (index, part, position, report, servers) "
        "VALUES ($1, $2, $3::pg_catalog.jsonb, "
        "  $4::pg_catalog.jsonb || pg_catalog.jsonb_build_object('left', $5), "
        "  pg_catalog.jsonb_object($6, $7)) "
        "ON CONFLICT (index, part) DO UPDATE SET position = excluded.position, "
        "report = excluded.report, servers = r.servers || excluded.servers, "
        "updated = pg_catalog.clock_timestamp()",
        {Param::of_text(index_), Param::of_text(part_),
         key.empty() ? Param::null_text() : Param::of_text(key), Param::of_text(counts.json()),
         Param::of_int8(left), Param::of_text_array(servers_.members),
         Param::of_text_array(servers_.identities)});
}

void RepairPosition::forget() {
    database_.query("DELETE FROM interlock.index_repair WHERE index = $1 AND part = $2",
                    {Param::of_text(index_), Param::of_text(part_)});
}

}  // namespace interlock
