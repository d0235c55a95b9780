#!/usr/bin/python3
"""Shows that the tests of `interlock repair` can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

REPAIR = "tests/test_repair.py::test_"
CHECK, WALK, RUN, SQL = (f"router/tools/repair_{part}.cpp" for part in ("check", "walk", "run", "sql"))

mutants.MUTANTS = [
    Mutant("no-first-look", "the entry is the same before and after", CHECK,
           "rows[i].answered && before[i].xmin == after[i].xmin", "rows[i].answered",
           (f"{REPAIR}a_change_made_and_applied_after_the_look_at_the_row_is_not_wrong",)),
    Mutant("outbox-before-row", "the outbox is looked at after the row", CHECK,
           "const std::vector<Row> rows = find_rows(keys, before);\n    const std::vector<Verdict> changes = find_changes(keys);",
           "const std::vector<Verdict> changes = find_changes(keys);\n    const std::vector<Row> rows = find_rows(keys, before);",
           (f"{REPAIR}a_change_made_before_the_look_at_the_row_is_seen_in_the_outbox",)),
    Mutant("no-outbox", "a change on its way is not wrong", CHECK, "if (changes[i] != Verdict::equal) {", "if (false) {",
           (f"{REPAIR}changes_that_are_not_applied_yet_are_pending_and_not_wrong",
            f"{REPAIR}under_writers_and_consumers_nothing_right_is_reported_and_all_wrong_is_mended")),
    Mutant("outbox-of-one-shard", "the outboxes of all shards", CHECK,
           "for (std::size_t shard = 0; shard < cluster_.model().shards.size(); ++shard) {\n        const Rows found",
           "for (std::size_t shard = 1; shard < cluster_.model().shards.size(); ++shard) {\n        const Rows found",
           (f"{REPAIR}a_change_left_in_the_outbox_of_the_former_owner_is_pending",)),
    Mutant("parked-is-nothing", "parked records", CHECK, "verdict = found.boolean(i, 1) ? Verdict::parked : Verdict::pending;",
           "if (!found.boolean(i, 1)) verdict = Verdict::pending;", (f"{REPAIR}the_key_of_a_parked_record_is_pending",)),
    Mutant("mended-whatever", "mending is compare-and-set", "extension/sql/48-index.sql",
           "AND t.interlock_route_version = m.v AND t.interlock_seq = m.s", "",
           (f"{REPAIR}an_older_value_is_never_put_over_a_newer_one",)),
    Mutant("tombstones-let-go", "tombstones are held", RUN, '"SELECT interlock.index_hold_tombstones($1)"', '"SELECT $1"',
           (f"{REPAIR}tombstones_are_held_while_it_runs",)),
    Mutant("nothing-kept", "an interrupted run goes on", RUN, "return interrupted->key;", "return {};",
           (f"{REPAIR}a_run_that_was_killed_goes_on_where_it_was",)),
    Mutant("refusals-forgotten", "a resumed run knows what is left", RUN, "left_ = interrupted->left;", "",
           (f"{REPAIR}what_a_killed_run_could_not_mend_or_judge_is_not_forgotten",)),
    Mutant("never-outdated", "a position expires", RUN, "if (!interrupted->outdated.empty()) {", "if (false) {",
           (f"{REPAIR}a_run_of_yesterday_is_not_gone_on_with", f"{REPAIR}a_run_from_before_a_restore_is_not_gone_on_with")),
    Mutant("catalog-needed", "a catalog that is away", RUN, "if (moving) renew_routes();", "if (moving) cluster_.renew_routes();",
           (f"{REPAIR}a_catalog_that_is_away_does_not_end_it",)),
    Mutant("ends-not-drawn-nearer", "an index that lost everything", WALK, "range.upper = rows.text(most - 1, 0);", "(void)0;",
           (f"{REPAIR}an_index_that_lost_everything_is_filled",)),
    Mutant("stale-unseen", "entries without rows", WALK, "if (!settled[static_cast<std::size_t>(e)]) found", "if (false) found",
           (f"{REPAIR}a_dual_write_killed_between_its_commits_and_a_delete_past_the_outbox",)),
    Mutant("everything-in-scope", "a scope bounds what is read", SQL, 'text += " AND " + row + "." + name + " = (SELECT s."',
           'text += " OR " + row + "." + name + " = (SELECT s."', (f"{REPAIR}a_scope_bounds_what_is_read_reported_and_mended",)),
    Mutant("rows-of-others", "buckets that move", SQL, '" WHERE " + owned(row.c_str())', '" WHERE true"',
           (f"{REPAIR}rows_that_a_move_has_left_behind_are_not_looked_at",)),
    Mutant("old-routes", "buckets that move", RUN, 'if (error.sqlstate != "IL102") throw;', "throw;",
           (f"{REPAIR}while_buckets_move_nothing_right_is_reported",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
