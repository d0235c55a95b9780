#!/usr/bin/python3
"""Shows that the tests of `interlock index` can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

TEST = "tests/test_indexer.py::test_"
BATCH, CONSUMER, RUN = (f"router/tools/index_{part}.cpp" for part in ("batch", "consumer", "run"))
BACKFILL, FILL, STATUS = (f"router/tools/index_{part}.cpp" for part in ("backfill", "fill", "status"))
SQL = "extension/sql/48-index.sql"

mutants.MUTANTS = [
    Mutant("outbox-first", "the index is committed first", BATCH, 'stop_for_test("before-index-commit");',
           'shard_.execute("COMMIT");\n        shard_.execute("BEGIN");\n        stop_for_test("before-index-commit");',
           (f"{TEST}killed_before_the_index_commit_nothing_is_lost",)),
    Mutant("never-removed", "records are removed", BATCH, "shard_.query(\"SELECT interlock.outbox_done($1::pg_catalog.int8[])\"",
           "shard_.query(\"SELECT ($1::pg_catalog.int8[])[1]\"", (f"{TEST}killed_between_the_two_commits_and_replayed_nothing_changes",)),
    Mutant("all-or-nothing", "a poison record is found by halving", BATCH, "if (wanted.size() == 1) {", "{",
           (f"{TEST}a_poison_record_is_set_aside_and_only_its_key_waits",)),
    Mutant("nobody-waits-behind", "later changes of a parked key", BATCH, "if (!records_[i].parked) all.push_back(i);",
           "all.push_back(i);", (f"{TEST}a_poison_record_is_set_aside_and_only_its_key_waits",),
           "if (record.parked) append_seq(seqs, record, ++count);", "if (record.parked && false) append_seq(seqs, record, ++count);"),
    Mutant("index-faults-are-data", "a fault of the index parks nothing", BATCH, "apply_json(\"[]\");", "",
           (f"{TEST}a_fault_of_the_index_itself_parks_nothing",)),
    Mutant("older-over-newer", "the newest change wins", SQL,
           "'WHERE (t.interlock_route_version, t.interlock_seq) < (excluded.interlock_route_version, excluded.interlock_seq)',",
           "'WHERE true',", ("tests/test_regress.py",)),
    Mutant("no-fence", "transactions of before have ended", SQL, "ELSIF progress.next_fence <= pg_snapshot_xmin(snapshot) THEN",
           "ELSIF progress.next_fence IS NOT NULL THEN",
           (f"{TEST}a_drained_outbox_counts_when_the_transactions_of_its_time_have_ended",)),
    Mutant("fence-of-the-snapshot", "a transaction at work beyond the snapshot's end", SQL, "progress.next_fence := pg_current_xact_id();",
           "progress.next_fence := pg_snapshot_xmax(snapshot);",
           (f"{TEST}a_drained_outbox_counts_when_the_transactions_of_its_time_have_ended",)),
    Mutant("late-commits-forgotten", "tombstones and early transactions", CONSUMER,
           "if (static_cast<std::uint64_t>(look().int64(0, 2)) < horizon_->next_xid) return false;", "(void)look();",
           (f"{TEST}tombstones_stay_while_a_shard_has_an_older_transaction_open",)),
    Mutant("tombstones-for-ever", "tombstones go", CONSUMER, "if (next_purge_ != Clock::time_point{}) purge();", "",
           (f"{TEST}tombstones_go_when_every_shard_is_drained",)),
    Mutant("backfill-holds-nothing", "backfill holds tombstones", BACKFILL,
           '"SELECT interlock.index_hold_tombstones($1)"', '"SELECT pg_catalog.length($1)"',
           (f"{TEST}tombstones_stay_while_a_backfill_may_have_read_their_rows",)),
    Mutant("backfill-from-the-start", "a backfill goes on", BACKFILL, "if (!state.is_null(0, 0)) position_ = state.text(0, 0);", "",
           (f"{TEST}a_backfill_goes_on_where_it_was_interrupted",)),
    Mutant("backfill-repeats", "a backfill reads each row once", BACKFILL, '") > (SELECT "', '") >= (SELECT "',
           (f"{TEST}a_backfill_makes_the_index_and_says_so",)),
    Mutant("gained-unnoticed", "buckets that move during a backfill", FILL, "if (gained || !state.boolean(0, 1)) parts.push_back({name, gained});",
           "if (!state.boolean(0, 1)) parts.push_back({name, false && gained});",
           (f"{TEST}a_bucket_that_moves_during_a_backfill_is_not_missed",)),
    Mutant("two-backfills", "one backfill at a time", FILL, "\"SELECT interlock.index_try_backfill($1)\"", "\"SELECT pg_catalog.length($1) > 0\"",
           (f"{TEST}two_backfills_of_one_index_are_one_too_many",)),
    Mutant("any-shard", "a number of a record is a shard's", STATUS, "if (place->second.size() > 1)", "if (false)",
           (f"{TEST}the_same_number_on_two_shards_is_not_guessed",)),
    Mutant("dropped-and-consumed", "indexes go", RUN, "if (task != tasks.end() && task->second == consumer->task()) {",
           "if (task == tasks.end() || task->second == consumer->task()) {", (f"{TEST}indexes_come_and_go_under_a_consumer",)),
    Mutant("held-for-ever", "a stopped consumer", CONSUMER, "\"SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, false)\"",
           "\"SELECT pg_catalog.length($1)\"", (f"{TEST}a_stopped_consumer_does_not_hold_records_for_ever",)),
    Mutant("waits-for-the-silent", "SIGTERM and a silent database", RUN, "std::chrono::seconds(10);", "std::chrono::seconds(60);",
           (f"{TEST}sigterm_does_not_wait_for_an_index_database_that_is_silent",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
