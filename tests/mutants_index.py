#!/usr/bin/python3
"""Shows that the tests of global indexes can fail: as mutants.py (same options, and --private, see
mutants_extension.py), with mutants of everything between the outbox and the page."""

import sys

import mutants
from mutants import Mutant

build_everything = mutants.build
import mutants_extension  # noqa: E402

mutants.build = build_everything

PAGES, CONSUMERS = "tests/test_index_pages.py::test_", "tests/test_index_consumers.py::test_"
INDEX, KEYSET = "extension/sql/48-index.sql", "extension/keyset_sql.cpp"
BATCH, CONSUMER = "router/tools/index_batch.cpp", "router/tools/index_consumer.cpp"
PAGE, ENTRIES = "router/session/index_page.cpp", "router/session/index_entries.cpp"

mutants.MUTANTS = [
    # The index database
    Mutant("last-come-wins", "no older change over a newer one", INDEX,
           "'WHERE (t.interlock_route_version, t.interlock_seq) < (excluded.interlock_route_version, excluded.interlock_seq)'", "'WHERE true'",
           (f"{CONSUMERS}a_record_of_an_older_route_version_does_not_overwrite_a_newer_entry",)),
    Mutant("seq-alone", "records of two route versions", INDEX,
           "'WHERE (t.interlock_route_version, t.interlock_seq) < (excluded.interlock_route_version, excluded.interlock_seq)'",
           "'WHERE t.interlock_seq < excluded.interlock_seq'",
           (f"{CONSUMERS}a_record_of_an_older_route_version_does_not_overwrite_a_newer_entry",)),
    Mutant("first-of-a-batch", "deletes and new rows of the same key", INDEX, "x.v DESC, x.s DESC", "x.v, x.s",
           (f"{CONSUMERS}deletes_and_new_rows_of_the_same_key_end_as_the_shard_has_it",)),
    Mutant("no-tombstones", "a delete stays known", INDEX, "SELECT %2$s, $2, v, s, op = ''D'', $3 '", "SELECT %2$s, $2, v, s, false, $3 '",
           (f"{CONSUMERS}deletes_and_new_rows_of_the_same_key_end_as_the_shard_has_it",)),
    Mutant("purged-at-once", "tombstones stay until it is safe", INDEX, "AND t.interlock_applied < $1 ORDER BY", "AND t.interlock_applied < $1 + interval '1 h' ORDER BY",
           (f"{CONSUMERS}tombstones_go_when_no_older_change_can_come",
            f"{CONSUMERS}a_row_deleted_by_the_new_owner_is_not_brought_back_by_the_old_ones_record")),
    Mutant("one-shard-is-enough", "tombstones: every shard must be past", INDEX, "THEN min(p.drained_through) END", "THEN max(p.drained_through) END",
           (f"{CONSUMERS}a_row_deleted_by_the_new_owner_is_not_brought_back_by_the_old_ones_record",)),
    Mutant("tombstones-not-held", "tombstones: held by a backfill or repair", INDEX,
           "PERFORM pg_advisory_lock_shared(interlock.index_lock_key(name, 'tombstones'));", "",
           (f"{CONSUMERS}tombstones_go_when_no_older_change_can_come",)),
    # Consumers
    Mutant("open-transactions-ignored", "tombstones: a transaction that is still open", CONSUMER,
           "if (static_cast<std::uint64_t>(look().int64(0, 2)) < horizon_->next_xid) return false;", "(void)look;",
           (f"{CONSUMERS}tombstones_go_when_no_older_change_can_come",)),
    Mutant("outbox-first", "killed between the two commits", BATCH,
           'stop_for_test("before-index-commit");\n        entries.commit();',
           'shard_.execute("COMMIT");\n        shard_.execute("BEGIN");\n        entries.commit();',
           (f"{CONSUMERS}a_consumer_killed_between_the_two_commits_is_replayed_with_the_same_result",)),
    Mutant("never-parked", "a record that can never be applied", BATCH, "if (wanted.size() == 1) {", "if (wanted.empty()) {",
           (f"{CONSUMERS}a_record_that_cannot_be_applied_is_set_aside_and_blocks_its_key_only",)),
    # What a page re-checks, on the shards
    Mutant("any-scope", "lagging index: still in scope", KEYSET,
           "append_scope_equal(out, keyset, style, i);\n        if (!of_key) appendStringInfoString(out, \") IS TRUE\");",
           "appendStringInfoString(out, of_key ? \"true\" : \"true) IS TRUE\");",
           (f"{PAGES}a_lagging_index_misses_rows_and_returns_no_wrong_one",)),
    Mutant("any-place", "lagging index: its sort columns equal the entry's", KEYSET,
           "append_order_equal(out, keyset, style, values, i, true);\n        if (!of_key)",
           "if (of_key) append_order_equal(out, keyset, style, values, i, true);\n        else appendStringInfoString(out, \"true\");\n        if (!of_key)",
           (f"{PAGES}a_row_whose_place_has_changed_is_not_shown_at_the_old_one",)),
    # Pages
    Mutant("budget-unheeded", "budgets: fan-out of the entries", PAGE, "if (owners.size() > most)", "if (false)",
           (f"{PAGES}a_page_over_budget_is_refused_before_any_statement_to_a_shard",)),
    Mutant("empty-is-the-end", "a page without a row is not the end", PAGE, "if (!ended) co_return stale();", "(void)ended;",
           (f"{PAGES}a_short_page_is_not_the_end",)),
    Mutant("no-extra-entry", "the end of an index", ENTRIES, "exhausted_ = entries_.size() < asked;", "exhausted_ = entries_.size() <= asked;",
           (f"{PAGES}a_short_page_is_not_the_end",)),
    Mutant("rounds-without-end", "at most four rounds", PAGE, "more && round <= index_rounds", "more && round <= 40",
           (f"{PAGES}a_short_page_is_not_the_end",)),
]

if __name__ == "__main__":
    if "--private" in sys.argv:
        sys.argv.remove("--private")
        mutants_extension.private_view()
    sys.exit(mutants.main())
