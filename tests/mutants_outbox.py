#!/usr/bin/python3
"""Shows that the outbox's tests can fail: as mutants_extension.py (same options, --private included)."""

import sys

import mutants
import mutants_extension
from mutants import Mutant

RECORDS, VALUES, TABLES, ACCESS, TRANSACTIONS, CONSUMERS, PARKED, RING, COPIES = (
    f"tests/test_outbox_{topic}.py::test_" for topic in (
        "records", "values", "tables", "access", "transactions", "consumers", "parked", "ring", "copies"))
CAPTURE, TRIGGER, TAKE, HELD, STORAGE = (f"extension/outbox_{part}.cpp" for part in ("capture", "trigger", "take", "held", "storage"))
SCAN, SURVEY, CACHE, ROW = "extension/outbox_scan.cpp", "extension/outbox_survey.cpp", "extension/outbox.cpp", "extension/row_json.cpp"
SQL, EVENTS, SHARD = "extension/sql/46-outbox.sql", "extension/sql/80-event-triggers.sql", "extension/sql/60-shard-functions.sql"

mutants.MUTANTS = [
    # What is recorded
    Mutant("every-update", "nothing when no listed column changed", TRIGGER,
           "if (same_values(capture->values, before.values, before.nulls, after.values, after.nulls))\n        return;", "",
           (f"{RECORDS}an_update_that_changes_no_listed_column_is_not_recorded",
            f"{RECORDS}a_large_value_that_is_written_again_unchanged_is_no_change_and_is_whole_in_the_record")),
    Mutant("insert-before-delete", "a changed key: D, then I", TRIGGER,
           "record_gone(capture, data, before);\n        record(capture, Op::insert, nullptr, &after);",
           "record(capture, Op::insert, nullptr, &after);\n        record_gone(capture, data, before);",
           (f"{RECORDS}a_changed_key_is_a_delete_of_the_old_one_and_then_an_insert_of_the_new_one",)),
    Mutant("own-xid-of-savepoints", "xid of the whole transaction", CAPTURE, "GetTopFullTransactionId()",
           "FullTransactionIdFromEpochAndXid(0, GetCurrentTransactionId())",
           (f"{TRANSACTIONS}a_rollback_to_a_savepoint_takes_its_records_and_only_these",)),
    Mutant("time-of-the-transaction", "at is the clock", CAPTURE, "GetCurrentTimestamp()", "GetCurrentTransactionStartTimestamp()",
           (f"{RECORDS}at_is_the_time_of_the_change_and_not_of_its_transaction",)),
    Mutant("rows-of-the-snapshot", "TRUNCATE: every row", TRIGGER, "RegisterSnapshot(GetLatestSnapshot())",
           "RegisterSnapshot(GetActiveSnapshot())", (f"{RECORDS}a_truncate_that_waited_for_a_writer_deletes_its_rows_too",)),
    Mutant("written-values", "rows that are changed again within the statement", TRIGGER, "while (is_superseded(tuple)) {", "while (false) {",
           (f"{TRANSACTIONS}a_row_that_a_users_trigger_changes_from_another_rows_event_ends_as_it_is",)),
    Mutant("gone-although-there", "rows that are made again within the statement", TRIGGER, "if (unlikely(ran_in_between) &&", "if (unlikely(ran_in_between) && false &&",
           (f"{TRANSACTIONS}a_row_that_is_made_again_while_it_is_deleted_is_there_in_the_end",)),
    Mutant("deferrable-keys", "keys: checked at once", SQL, "AND x.indimmediate ", "",
           (f"{RECORDS}keys_that_are_exchanged_in_one_statement_end_where_they_belong",)),
    Mutant("nullable-keys", "keys: NOT NULL", SQL, "WHERE NOT a.attnotnull LIMIT 1", "WHERE NOT a.attnotnull LIMIT 0",
           (f"{RECORDS}a_key_that_does_not_name_one_row_is_refused",)),
    # Values
    Mutant("session-time-zone", "timestamptz in UTC", ROW, "type == TIMESTAMPTZOID ? &utc : nullptr", "utc == 1 ? &utc : nullptr",
           (f"{VALUES}row_values_gives_what_a_record_holds",)),
    Mutant("session-settings", "other types: fixed settings", ROW, "if (type->settings) fix(settings);", "if (type->settings && settings == nullptr) fix(settings);",
           (f"{VALUES}the_format_does_not_depend_on_what_the_writer_has_set",)),
    Mutant("short-floats", "floats are exact", ROW, "double_to_shortest_decimal_buf(DatumGetFloat8(value), spelling);",
           "snprintf(spelling, sizeof spelling, \"%.15g\", DatumGetFloat8(value));",
           (f"{VALUES}a_value_of_any_type_can_be_made_again_of_its_record",)),
    # Taking
    Mutant("no-order", "batches ascend", TAKE, "lap_of(seq) == lap && seq <= survey->upto", "seq <= survey->upto",
           (f"{RING}a_backlog_of_more_than_a_lap_is_consumed_in_order",),
           "if (seq > take->candidates[0].seq) return;", "return;"),
    Mutant("first-survey-for-ever", "what comes later", TAKE, "by_laps = false;", "return;",
           (f"{CONSUMERS}what_is_left_of_a_batch_does_not_hide_what_comes_later",)),
    Mutant("parts-alike", "parts", TAKE, "static_cast<std::uint32_t>(take->part))\n            return false;",
           "static_cast<std::uint32_t>(take->part) && false)\n            return false;",
           (f"{CONSUMERS}parts_share_the_keys_among_them_and_each_key_is_always_in_the_same_part",)),
    Mutant("any-isolation", "READ COMMITTED only", TAKE, "XactIsoLevel != XACT_READ_COMMITTED && XactIsoLevel != XACT_READ_UNCOMMITTED", "false",
           (f"{TRANSACTIONS}writers_may_use_any_isolation_level_and_takers_only_one",)),
    Mutant("parked-unsaid", "parked keys", TAKE, "out[count] = BoolGetDatum(has_parked(parked, values));", "out[count] = BoolGetDatum(has_parked(parked, values) && false);",
           (f"{PARKED}later_records_of_a_key_are_told_that_it_is_parked",)),
    Mutant("taken-for-ever", "savepoints of takers", HELD, "hash_search(held, &entry->seq, HASH_REMOVE, nullptr);", "entry->taken = parent;",
           (f"{CONSUMERS}what_was_taken_in_a_savepoint_that_was_rolled_back_is_the_next_takers",)),
    Mutant("removed-for-ever", "savepoints of takers: done", HELD, "if (entry->removed == self) entry->removed = after;", "",
           (f"{CONSUMERS}a_done_that_is_rolled_back_can_be_done_again",)),
    Mutant("kept-after-the-end", "records of an earlier transaction", HELD, "        held = nullptr;\n        break;", "        break;",
           (f"{CONSUMERS}a_batch_of_an_earlier_transaction_is_no_longer_ours",), "if (held_context != nullptr) MemoryContextDelete(held_context);", ""),
    Mutant("not-flushed", "crashes: what was given out", TAKE, "if (take.taken_count > 0) XLogFlush(XactLastRecEnd);", "",
           (f"{COPIES}what_a_taker_has_been_given_survives_a_crash_although_its_writer_did_not_wait",)),
    Mutant("callers-operators", "search_path", CACHE, '"search_path", "pg_catalog, pg_temp"', '"search_path", "evil, pg_catalog"',
           (f"{ACCESS}a_search_path_full_of_traps_springs_none",)),
    # The ring
    Mutant("rotation-waits", "rotation waits for nobody", STORAGE, "!ConditionalLockRelationOid(relid, AccessExclusiveLock)",
           "(LockRelationOid(relid, AccessExclusiveLock), false)", (f"{RING}a_rotation_waits_for_nobody",)),
    Mutant("truncates-what-is-there", "rotation loses nothing", STORAGE, "const bool empty = segment != nullptr && !shows_a_record(segment, nullptr);",
           "const bool empty = segment != nullptr && (!shows_a_record(segment, nullptr) || true);", (f"{RING}takers_and_rotations_beside_writers_over_laps_lose_nothing",),
           "RelationGetNumberOfBlocks(segment) > 0 &&\n                          !shows_a_record(segment, dead);", "RelationGetNumberOfBlocks(segment) > 0 && (!shows_a_record(segment, dead) || true);"),
    Mutant("dead-pages-read-again", "old snapshots: linear", SCAN, "dead->lsns[block] == BufferGetLSNAtomic(page->buffer)", "false && dead->stored == 0",
           (f"{RING}an_idle_taker_costs_little_although_segments_cannot_be_emptied",)),
    Mutant("no-laps-known", "drains: only what comes next is looked at", TAKE, "bool by_laps = survey->count > 0;", "bool by_laps = false;",
           (f"{RING}a_long_drain_looks_no_further_at_its_end_than_at_its_beginning",)),
    Mutant("dead-for-ever", "pages that are written again", SCAN, "dead->lsns[block] == BufferGetLSNAtomic(page->buffer)", "true",
           (f"{CONSUMERS}a_session_sees_what_is_written_where_it_has_emptied_all",)),
    Mutant("drained-too-early", "drained: parked ones", STORAGE, "found = found || has_parked(own, name, upto);", "found = found || (has_parked(own, name, upto) && false);",
           (f"{PARKED}parked_records_count_as_not_drained",)),
    Mutant("late-last", "last: the number before the transactions", STORAGE,
           "const std::int64_t seq = last_seq(tables());\n    const FullTransactionId next = ReadNextFullTransactionId();",
           "const FullTransactionId next = ReadNextFullTransactionId();\n    pg_usleep(3000);\n    const std::int64_t seq = last_seq(tables());",
           (f"{TRANSACTIONS}when_the_oldest_transaction_has_passed_nothing_below_the_last_number_appears_any_more",)),
    # Tables and copies
    Mutant("rows-left-behind", "partitions that go", EVENTS, "PERFORM interlock.outbox_record_rows(member, parent, left_stream, false);", "NULL;",
           (f"{TABLES}a_detached_partition_is_recorded_no_longer_and_its_rows_are_gone",)),
    Mutant("later-partitions", "partitions that come", EVENTS, "PERFORM interlock.outbox_make_triggers(child, joined.stream);", "NULL;",
           (f"{TABLES}new_partitions_have_the_outbox_from_the_start",)),
    Mutant("numbers-again", "adopt_shard raises the numbers", SHARD, " + (1::bigint << 40)", " + 1",
           (f"{COPIES}a_clone_made_with_create_database_works_on",)),
]

mutants.build = mutants_extension.build_extension

if __name__ == "__main__":
    if "--private" in sys.argv:
        sys.argv.remove("--private")
        mutants_extension.private_view()
    sys.exit(mutants.main())
