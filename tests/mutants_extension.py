#!/usr/bin/python3
"""Shows that the extension's tests can fail: as mutants.py (same options), with mutants of the extension.

The mutants are installed where the extension is installed. To keep that from everybody else on the
machine, root can give them a view of the folders of their own:

    unshare -m tests/mutants_extension.py --private
"""

import shutil
import subprocess
import sys
import tempfile

import mutants
from mutants import Mutant

REGRESS = ("tests/test_regress.py",)
SESSIONS = "tests/test_guard.py"
COPIES = "tests/test_guard_copies.py"
FENCE, FENCE_SQL = "tests/test_fence.py", "extension/sql/62-fence.sql"
LOCKS = "tests/test_fence_locks.py"
EXPIRY, EXPIRY_TESTS = "extension/fence_expiry.cpp", "tests/test_fence_expiry.py"
RIGHTS, RIGHTS_TESTS = "extension/write_rights.cpp", "tests/test_fence_rights.py"
CLEAN, CLEAN_SQL = "tests/test_move_clean_up.py", "extension/sql/63-move-clean-up.sql"
SLOTS, OUTPUT = "tests/test_bucket_output.py", "extension/bucket_output.cpp"
DIGEST, DIGESTS = "extension/bucket_digest.cpp", "tests/test_bucket_digest.py"
GUARD, OWNERSHIP, ROUTE = "extension/guard.cpp", "extension/ownership.cpp", "extension/route_version.cpp"
ATTACH, SHARD, STATE = "extension/sql/65-attach.sql", "extension/sql/60-shard-functions.sql", "extension/sql/20-shard-tables.sql"
BYTES = "tests/test_cursor_bytes.py"
KEY, VALUE, COLLATION = "extension/sort_key.cpp", "extension/cursor_value.cpp", "extension/collation.cpp"
CURSOR, CURSOR_KEYS = "extension/cursor.cpp", "extension/cursor_keys.cpp"
PAGERS, ACCESS = "tests/test_keyset_sessions.py", "tests/test_keyset_access.py"
RANGES, CACHE, DECLARE = "extension/keyset_sql.cpp", "extension/keyset_cache.cpp", "extension/keyset_declare.cpp"
ROWS = "tests/test_keyset_rows.py"
PAGE, PLACE, INDEX = "extension/keyset_page.cpp", "extension/keyset_place.cpp", "extension/keyset_index.cpp"
PUBLISH, CATALOG = "extension/sql/55-publish.sql", "extension/sql/10-catalog-tables.sql"

mutants.MUTANTS = [
    # Newest state
    Mutant("messages-not-taken", "newest state: invalidations are taken at each row", "extension/ownership.h",
           "    AcceptInvalidationMessages();\n    return known", "    return known",
           (f"{SESSIONS}::test_a_transaction_that_has_all_its_locks_and_plans_sees_the_change_all_the_same",)),
    Mutant("messages-taken-once", "newest state: invalidations are taken in the middle of a statement", GUARD,
           "call < first_rows || call % interval == 0", "call == 0 && first_rows > interval",
           (f"{SESSIONS}::test_a_copy_under_way_is_refused_when_its_bucket_leaves",)),
    Mutant("old-snapshot", "newest state: not under the transaction's snapshot", OWNERSHIP,
           "RegisterSnapshot(GetCatalogSnapshot(watched[bucket_state]))", "RegisterSnapshot(GetTransactionSnapshot())",
           (f"{SESSIONS}::test_a_transaction_that_began_before_a_bucket_left_cannot_write_to_it_any_more",)),
    Mutant("callback-deaf", "newest state: the callback", OWNERSHIP, "    ++invalidations;\n}", "}",
           (f"{SESSIONS}::test_a_prepared_statement_of_an_idle_session_sees_the_change",)),
    Mutant("unwatched-after-drop", "the extension comes back", OWNERSHIP,
           "        watched[i] = complete ? found[i] : InvalidOid;",
           "        if (!OidIsValid(watched[i])) watched[i] = found[i];",
           (f"{SESSIONS}::test_sessions_go_on_when_the_extension_is_dropped_and_made_again",)),
    Mutant("built-too-early", "an error while the state is read", OWNERSHIP,
           "        const std::uint64_t seen = invalidations;\n", "        const std::uint64_t seen = invalidations;\n        built_at = seen;\n",
           (f"{SESSIONS}::test_an_error_while_the_state_is_being_read_leaves_nothing_stale",)),
    Mutant("context-leak", "memory of rebuilds", OWNERSHIP,
           "            if (replaced != nullptr) MemoryContextDelete(replaced);\n", "            (void)replaced;\n",
           (f"{SESSIONS}::test_a_thousand_state_changes_leave_no_memory_behind",)),
    Mutant("no-message-as-replica", "state tables: session_replication_role", STATE,
           "ENABLE ALWAYS TRIGGER state_changed, '\n                                  'ENABLE ALWAYS TRIGGER state_truncated'",
           "ENABLE ALWAYS TRIGGER state_truncated'", REGRESS),
    # The guard
    Mutant("old-row-unseen", "guard: the row as it was", GUARD,
           "    const std::int32_t bucket =\n        require_writable(cache, name, key, TRIGGER_FIRED_BY_DELETE(data->tg_event));\n",
           "    const std::int32_t bucket = placement::bucket_of_hash(DatumGetInt64(key), 16);\n"
           "    if (!TRIGGER_FIRED_BY_UPDATE(data->tg_event)) PG_RETURN_POINTER(data->tg_trigtuple);\n", REGRESS),
    Mutant("bucket-change-passes", "guard: an update that changes the bucket", GUARD,
           "if (bucket != after) refuse_bucket_change", "if (false) refuse_bucket_change", REGRESS),
    Mutant("move-between-partitions-passes", "guard: the same from partition to partition", GUARD,
           "if (before != after) refuse_bucket_change", "if (false) refuse_bucket_change", REGRESS),
    Mutant("fence-without-its-code", "guard: IL103", GUARD, "(errcode(ERRCODE_INTERLOCK_FENCED),\n             errmsg(",
           "(errcode(ERRCODE_INTERLOCK_NOT_OWNED),\n             errmsg(", REGRESS),
    Mutant("workers-refused", "guard: the apply worker's exemption", GUARD, "(IsLogicalWorker() || guc::moving_rows)", "guc::moving_rows",
           (f"{COPIES}::test_an_apply_worker_may_write_to_a_bucket_that_is_importing_and_nobody_else",)),
    Mutant("everybody-imports", "guard: the exemption is for apply workers", GUARD, " && (IsLogicalWorker() || guc::moving_rows)", "",
           (f"{COPIES}::test_an_apply_worker_may_write_to_a_bucket_that_is_importing_and_nobody_else", *REGRESS)),
    Mutant("workers-write-anywhere", "guard: the exemption is for importing buckets", GUARD,
           "if (state == BucketState::importing &&", "if (state != BucketState::owned &&",
           (f"{COPIES}::test_an_apply_worker_is_refused_in_any_other_bucket_that_is_not_owned",)),
    Mutant("guard-not-always", "guard: session_replication_role", ATTACH, "IF present <> 'A' THEN", "IF present = 'D' THEN", REGRESS),
    Mutant("truncate-unannounced", "guard: TRUNCATE", GUARD, "if (!guc::allow_truncate)", "if (false)", REGRESS),
    Mutant("truncate-during-a-move", "guard: TRUNCATE while buckets move", GUARD, "if (keyspace->shut > 0 || keyspace->moving > 0)", "if (false)", REGRESS),
    Mutant("truncate-when-a-move-begins", "guard: TRUNCATE between the beginning of a move and its fence", GUARD,
           "keyspace->shut > 0 || keyspace->moving > 0", "keyspace->shut > 0", REGRESS),
    # The fence
    Mutant("writers-cut-off", "fence: who has written the bucket may go on", GUARD, "write_rights::may_finish(*keyspace, bucket)", "false",
           (f"{FENCE}::test_a_transaction_that_has_written_the_bucket_before_may_go_on",)),
    Mutant("right-without-a-lock", "fence: the right to go on needs a lock", RIGHTS,
           "std::strcmp(table.keyspace, keyspace.name) == 0 && holds(table.relid, RowExclusiveLock)", "std::strcmp(table.keyspace, keyspace.name) == 0",
           (f"{FENCE}::test_asking_the_guard_gives_no_right_to_write", f"{RIGHTS_TESTS}::test_the_guard_on_a_table_of_one_s_own_gives_no_right")),
    Mutant("right-outlives-savepoint", "fence: a rollback to a savepoint takes the right back", RIGHTS,
           "if (event != SUBXACT_EVENT_ABORT_SUB) return;", "return;",
           (f"{FENCE}::test_what_a_savepoint_took_back_gives_no_right_to_write",
            f"{RIGHTS_TESTS}::test_a_savepoint_that_takes_the_lock_back_takes_the_right")),
    Mutant("right-not-handed-on", "fence: a savepoint that is released", RIGHTS, "lock->found_in == ended) lock->found_in = parent;",
           "lock->found_in == ended) lock->epoch = 0;", (f"{RIGHTS_TESTS}::test_a_savepoint_that_is_released_hands_the_right_on",)),
    Mutant("right-of-the-inner-savepoint", "fence: what a released savepoint took goes with the outer one", RIGHTS,
           "lock->found_in >= ended) lock->epoch = 0;", "lock->found_in > ended) lock->epoch = 0;",
           (f"{RIGHTS_TESTS}::test_a_savepoint_that_takes_the_lock_back_takes_the_right",)),
    Mutant("every-rollback-takes-all", "fence: a savepoint that took no lock back", RIGHTS, "lock->found_in >= ended) lock->epoch = 0;",
           "ended != 0) lock->epoch = 0;", (f"{RIGHTS_TESTS}::test_a_savepoint_that_took_no_lock_back_leaves_the_right",)),
    Mutant("right-for-the-session", "fence: the right to go on ends with the transaction", RIGHTS,
           "event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT", "event == XACT_EVENT_ABORT",
           (f"{FENCE}::test_a_transaction_that_has_written_the_bucket_before_may_go_on",)),
    Mutant("row-locks-for-nothing", "fence: SELECT FOR UPDATE gives the right to go on", RIGHTS, "note(&keyspace->rights->rows);", "(void)keyspace;",
           (f"{RIGHTS_TESTS}::test_who_has_locked_rows_may_write_behind_the_fence",)),
    Mutant("row-locks-after-the-fence", "fence: rows locked when it was there already", RIGHTS,
           "if (before.states[bucket] == BucketState::owned &&\n            after.states", "if (after.states",
           (f"{RIGHTS_TESTS}::test_a_bucket_that_was_not_here_when_rows_were_locked_is_not_meant",)),
    Mutant("any-row-lock-will-do", "fence: rows of other tables", RIGHTS, "if (!RowMarkRequiresRowShareLock(mark->markType)) continue;", "",
           (f"{RIGHTS_TESTS}::test_what_locks_no_row_of_the_keyspace_gives_no_right",),
           "if (!OidIsValid(relid) || !holds(relid, RowShareLock)) continue;", "if (!OidIsValid(relid)) continue;"),
    Mutant("fence-is-the-mover-s", "fence: everybody may open one that has expired", "extension/sql/90-privileges.sql", "    interlock.expire_fences(),\n", "", REGRESS),
    Mutant("hint-too-late", "fence: who meets one that has expired is told", OWNERSHIP, "details.expired = until <= GetCurrentTimestamp();", "",
           (f"{CLEAN}::test_who_meets_a_fence_is_told_when_he_may_open_it",)),
    Mutant("moves-of-the-original", "a restored copy takes no part in moves", OWNERSHIP, "keyspace != nullptr && !fresh->restored &&", "keyspace != nullptr &&",
           (f"{CLEAN}::test_a_dump_taken_during_a_move_can_be_restored",)),
    Mutant("handoff-waits-with-the-state", "fence: who waits for DDL is in no other move's way", FENCE_SQL,
           "        PERFORM interlock.lock_tables(keyspace, 'SHARE UPDATE EXCLUSIVE');\n",
           "        PERFORM interlock.require_shard(), interlock.lock_tables(keyspace, 'SHARE UPDATE EXCLUSIVE');\n",
           (f"{LOCKS}::test_who_waits_for_a_table_does_not_hold_the_state",)),
    Mutant("late-tables-unlocked", "fence: tables that come while a move begins", FENCE_SQL,
           "    PERFORM interlock.lock_tables(keyspace, 'SHARE UPDATE EXCLUSIVE', nowait => true);\n", "",
           (f"{LOCKS}::test_a_table_that_is_sharded_while_a_move_begins_is_locked_too",
            f"{LOCKS}::test_a_move_that_is_forgotten_while_it_is_asked_for_again_begins_anew_with_its_locks")),
    Mutant("late-partitions-unlocked", "fence: partitions that come while a move waits", FENCE_SQL, "        EXIT WHEN cardinality(held) = before;\n", "        EXIT;\n",
           (f"{LOCKS}::test_a_partition_that_comes_while_a_move_waits_for_its_parent_is_locked_too",),
           "    PERFORM interlock.lock_tables(keyspace, 'SHARE UPDATE EXCLUSIVE', nowait => true);\n", ""),
    Mutant("openers-without-end", "expiry: one worker at a time", EXPIRY, "LockAcquire(&tag, ExclusiveLock, false, true)", "LockAcquire(&tag, AccessShareLock, false, true)",
           (f"{EXPIRY_TESTS}::test_many_who_call_it_at_once_and_again_take_one_worker",),
           "LockRelease(&turn, ExclusiveLock, false);", "LockRelease(&turn, AccessShareLock, false);"),
    Mutant("turn-kept", "expiry: the caller's transaction holds nothing", EXPIRY, "LockRelease(&turn, ExclusiveLock, false);", "",
           (f"{EXPIRY_TESTS}::test_an_open_transaction_that_has_opened_a_fence_holds_nothing",
            f"{EXPIRY_TESTS}::test_a_statement_that_goes_on_after_opening_a_fence_holds_nothing")),
    Mutant("opener-as-the-database-has-it", "expiry: the settings of the database", EXPIRY,
           'SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);', "",
           (f"{EXPIRY_TESTS}::test_what_a_database_sets_for_its_sessions_does_not_keep_a_fence_shut",)),
    # The clean-up
    Mutant("deletes-are-told", "clean-up: outbox and triggers", CLEAN_SQL, " SET session_replication_role = replica\n", "\n", REGRESS),
    Mutant("deletes-travel", "clean-up: not while a slot is there", CLEAN_SQL, "OR s.slot_name IN (SELECT", "AND s.slot_name IN (SELECT",
           (f"{CLEAN}::test_nothing_is_deleted_while_a_slot_of_the_move_could_carry_it_away",)),
    Mutant("deletes-what-came-back", "clean-up: a bucket that comes back meanwhile", CLEAN_SQL,
           "then nothing is deleted.\n    PERFORM interlock.refuse_clean_up(handoff);\n", "then nothing is deleted.\n",
           (f"{CLEAN}::test_a_batch_that_a_return_of_the_bucket_overtakes_deletes_nothing",)),
    Mutant("from-the-beginning", "clean-up: batches go on where the last one ended", CLEAN_SQL, "coalesce(position, '(0,0)')", "'(0,0)'::tid",
           (f"{CLEAN}::test_a_batch_does_not_read_what_earlier_ones_have_read",)),
    Mutant("end-unproven", "clean-up: rows behind the position", CLEAN_SQL, "EXIT WHEN NOT any_left;", "EXIT;", REGRESS),
    Mutant("batches-cross", "clean-up: batches one after the other", CLEAN_SQL, "WHERE h.move_id = delete_moved_rows.move_id FOR NO KEY UPDATE;",
           "WHERE h.move_id = delete_moved_rows.move_id;", (f"{CLEAN}::test_a_batch_waits_for_another_one_before_it_looks_at_the_table",)),
    Mutant("everybody-is-old", "clean-up: transactions of other databases", CLEAN_SQL, "           AND a.xact_start <= handoff.decision_seen\n", "",
           (f"{CLEAN}::test_a_long_transaction_of_another_database_does_not_make_everybody_look_old",)),
    Mutant("nobody-is-old", "clean-up: snapshots from before the decision", CLEAN_SQL, "age(a.backend_xmin) >= age(handoff.decided_by::xid)", "false",
           (f"{CLEAN}::test_only_snapshots_from_before_the_decision_are_waited_for",)),
    Mutant("sequence-set-back", "sequences: never back", "extension/sequence.cpp", "if (distance < 0 || steps.cycles) return false;", "if (steps.cycles) return false;",
           (f"{CLEAN}::test_a_sequence_that_is_raised_while_others_use_it_gives_out_no_value_twice",)),
    Mutant("sequence-unlogged", "sequences: after a crash", "extension/sequence.cpp", "            PageSetLSN(page, position);", "            (void)position;",
           (f"{CLEAN}::test_a_raised_sequence_outlives_a_crash",), "if (RelationNeedsWAL(sequence)) {", "if (RelationNeedsWAL(sequence) && beyond < 0) {"),
    Mutant("sequence-out-of-step", "sequences: whole increments", "extension/sequence.cpp", "(distance / step + 1) * steps.increment", "distance + (step > 0 ? 1 : 0)", REGRESS),
    # Digests
    Mutant("digest-by-difference", "digests: equal rows", DIGEST, "sums[at].low += hash.low64;", "sums[at].low ^= hash.low64;",
           (f"{DIGESTS}::test_what_differs_is_seen",), "sums[at].high += hash.high64;", "sums[at].high ^= hash.high64;"),
    Mutant("digest-without-lengths", "digests: where a value ends", DIGEST,
           "    appendBinaryStringInfo(out, reinterpret_cast<const char *>(&size), sizeof(size));\n", "    (void)size;\n",
           (f"{DIGESTS}::test_what_differs_is_seen",)),
    Mutant("digest-without-nulls", "digests: nulls", DIGEST, "appendStringInfoChar(&row, slot->tts_isnull[index] ? 0 : 1);", "",
           (f"{DIGESTS}::test_what_differs_is_seen",)),
    Mutant("digest-without-names", "digests: names of columns", DIGEST, "static_cast<std::size_t>(row.len), seed);", "static_cast<std::size_t>(row.len), seed & 0);",
           (f"{DIGESTS}::test_columns_of_other_names_are_seen",)),
    Mutant("digest-as-stored", "digests: values in TOAST", DIGEST, "const varlena *plain = PG_DETOAST_DATUM_PACKED(value);",
           "const varlena *plain = reinterpret_cast<varlena *>(DatumGetPointer(value));", (f"{DIGESTS}::test_how_rows_are_stored_is_not_seen",)),
    Mutant("digest-in-order", "digests: order of columns", DIGEST, "    qsort(columns, static_cast<std::size_t>(*count), sizeof(DigestColumn), by_name);\n", "    (void)by_name;\n",
           (f"{DIGESTS}::test_how_rows_are_stored_is_not_seen",)),
    Mutant("digest-of-all", "digests: rows of other buckets", DIGEST, "place[bucket] = i;", "place[bucket] = 0;",
           (f"{DIGESTS}::test_other_buckets_make_no_difference",)),
    Mutant("digest-keeps-all", "digests: memory", DIGEST, "        MemoryContextReset(scratch);\n", "", (f"{DIGESTS}::test_large_values_are_let_go_row_by_row",)),
    Mutant("digest-of-first-bytes", "digests: values passed by reference", DIGEST, "} else if (column->length > 0) {", "} else if (column->length > 0 && out->len < 0) {",
           (f"{DIGESTS}::test_what_differs_is_seen",)),
    # DDL during a move
    Mutant("types-unseen", "DDL during a move: types", "extension/sql/81-move-ddl.sql", "SELECT t.oid FROM pg_type t WHERE t.typelem = used.type OR t.typbasetype = used.type",
           "SELECT t.oid FROM pg_type t WHERE t.typelem = used.type", REGRESS),
    Mutant("schemas-unseen", "DDL during a move: schemas", "extension/sql/81-move-ddl.sql", "t.relnamespace = c.objid LIMIT 1", "false LIMIT 1", REGRESS),
    Mutant("indexes-unseen", "DDL during a move: DROP INDEX", "extension/fence.cpp", "if (keyspace == nullptr || keyspace->moving == 0) continue;", "continue;", REGRESS),
    Mutant("ddl-applied-from-elsewhere", "DDL during a move: session_replication_role", "extension/sql/81-move-ddl.sql",
           "ALTER EVENT TRIGGER interlock_move_ddl ENABLE ALWAYS;\n", "",
           (f"{FENCE}::test_a_session_that_applies_what_was_done_elsewhere_meets_the_same_refusal",)),
    Mutant("drops-applied-from-elsewhere", "DDL during a move: session_replication_role, drops", "extension/sql/81-move-ddl.sql",
           "ALTER EVENT TRIGGER interlock_move_drop ENABLE ALWAYS;\n", "",
           (f"{FENCE}::test_a_session_that_applies_what_was_done_elsewhere_meets_the_same_refusal",)),
    Mutant("index-drops-applied-from-elsewhere", "DDL during a move: session_replication_role, indexes", "extension/sql/81-move-ddl.sql",
           "ALTER EVENT TRIGGER interlock_move_drop_index ENABLE ALWAYS;\n", "",
           (f"{FENCE}::test_a_session_that_applies_what_was_done_elsewhere_meets_the_same_refusal",)),
    Mutant("opener-of-another-role", "expiry: the role of the database", EXPIRY,
           'SetConfigOption("role", "none", PGC_SUSET, PGC_S_OVERRIDE);', "",
           (f"{EXPIRY_TESTS}::test_what_a_database_sets_for_its_sessions_does_not_keep_a_fence_shut",)),
    Mutant("index-drop-overtakes", "DDL during a move: DROP INDEX CONCURRENTLY while a move begins", "extension/fence.cpp",
           "if (drop->concurrent && may_drop(index)) LockRelationOid", "if (drop->concurrent && !may_drop(index)) LockRelationOid",
           (f"{FENCE}::test_an_index_whose_drop_waits_for_the_beginning_of_a_move_stays_whole",)),
    Mutant("indexes-unseen-at-the-end", "DDL during a move: DROP INDEX that began before", "extension/sql/81-move-ddl.sql", "IF dropped.object_type = 'index' THEN\n            keyspace :=",
           "IF dropped.object_type = 'index' THEN\n            CONTINUE; keyspace :=", REGRESS),
    # The output plugin
    Mutant("truncate-travels", "output plugin: TRUNCATE", OUTPUT, "callbacks->change_cb = change;",
           "callbacks->change_cb = change;\n    callbacks->truncate_cb = pgoutput.truncate_cb;", (f"{SLOTS}::test_truncate_on_the_source_harms_nothing",)),
    Mutant("messages-travel", "output plugin: messages", OUTPUT, "callbacks->shutdown_cb = shutdown;",
           "callbacks->shutdown_cb = shutdown;\n    callbacks->message_cb = pgoutput.message_cb;",
           (f"{SLOTS}::test_messages_markers_of_other_moves_and_other_tables_do_not_travel",)),
    Mutant("markers-of-all", "output plugin: markers of other moves", OUTPUT,
           "return std::memcmp(DatumGetUUIDP(key)->data, filter->move.data, UUID_LEN) == 0;", "return true;",
           (f"{SLOTS}::test_messages_markers_of_other_moves_and_other_tables_do_not_travel",)),
    Mutant("keys-in-toast", "output plugin: long keys", OUTPUT, "VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(*key))", "false",
           (f"{SLOTS}::test_a_key_so_long_that_it_is_in_toast_is_read",)),
    Mutant("silent-for-long", "output plugin: large transactions of other buckets", OUTPUT, "if (++dropped % 100 == 0) say_that_decoding_goes_on(decoding);", "++dropped;",
           (f"{SLOTS}::test_a_large_transaction_of_other_buckets_is_no_silence",)),
    Mutant("snapshot-kept", "output plugin: a slot can give its snapshot away", OUTPUT, "    InvalidateCatalogSnapshot();\n", "",
           (f"{SLOTS}::test_a_slot_can_export_its_snapshot",)),
    Mutant("tables-as-they-were", "output plugin: DDL while it runs", OUTPUT, "    ++invalidations;\n", "",
           (f"{SLOTS}::test_a_partition_made_in_the_middle_is_followed",)),
    Mutant("decision-too-late", "fence: the deadline", FENCE_SQL,
           "handoff.state <> 'fenced' OR handoff.until <= clock_timestamp()", "handoff.state <> 'fenced'", REGRESS),
    Mutant("decision-with-writers", "fence: no decision before the wait", FENCE_SQL, "IF NOT handoff.waited THEN", "IF false THEN", REGRESS),
    Mutant("autovacuum-waited-for", "fence: autovacuum", FENCE_SQL, "a.backend_type LIKE 'autovacuum%'", "false",
           (f"{FENCE}::test_autovacuum_is_not_waited_for",)),
    Mutant("lockers-not-waited-for", "fence: SELECT FOR UPDATE", FENCE_SQL, "ARRAY['RowShareLock', ", "ARRAY[",
           (f"{FENCE}::test_select_for_update_is_waited_for",)),
    Mutant("one-name-for-all-rows", "guard: keyspace that differs from row to row", GUARD,
           "cache->name_varies = !get_fn_expr_arg_stable(fcinfo->flinfo, 0);", "cache->name_varies = false;", REGRESS),
    Mutant("partitions-come-unguarded", "guard: new partitions", "extension/attach.cpp",
           "if (create->inhRelations != NIL) on_join(create->relation, nullptr);", "(void)create;", REGRESS),
    Mutant("children-join-unguarded", "guard: tables that become children", "extension/attach.cpp",
           "        case AT_AddInherit:\n            on_join(alter->relation, reinterpret_cast<const RangeVar *>(definition));\n", "        case AT_AddInherit:\n", REGRESS),
    Mutant("rows-brought-in", "guard: rows of a table that is attached", "extension/sql/80-event-triggers.sql",
           "    PERFORM interlock.refuse_misplaced_rows(relation, ancestor.keyspace, ancestor.key_column);\n", "", REGRESS),
    Mutant("restore-in-the-way", "dump: the event trigger stays out of a restore", "extension/attach.cpp",
           "        default: break;\n        }\n    }\n}\n", "        default: guard_child(alter->relation); break;\n        }\n    }\n}\n",
           (f"{COPIES}::test_a_plain_text_dump_goes_into_another_server",)),
    Mutant("dump-without-states", "dump: rows of the state tables", STATE,
           "SELECT pg_catalog.pg_extension_config_dump('interlock.bucket_state', '');\n", "",
           (f"{COPIES}::test_a_plain_text_dump_goes_into_another_server", *REGRESS)),
    Mutant("same-database-same-shard", "restored copy: within one server", OWNERSHIP,
           "!= MyDatabaseId;", "== InvalidOid;", (f"{COPIES}::test_a_clone_made_with_create_database_is_recognised_as_a_copy",)),
    # Keys
    Mutant("bytes-as-stored", "keys: UTF-8 whatever the encoding", "extension/keys.cpp",
           "GetDatabaseEncoding() == PG_UTF8 ||", "true ||",
           (f"{COPIES}::test_the_same_text_is_the_same_key_in_a_database_of_another_encoding",)),
    Mutant("still-compressed", "keys: stored forms", "extension/keys.cpp",
           "struct varlena *plain = pg_detoast_datum_packed(stored);", "struct varlena *plain = stored;", REGRESS),
    Mutant("width-matters", "keys: integers of any width", "extension/keys.cpp",
           "case INT2OID: return placement::splitmix64(DatumGetInt16(key));",
           "case INT2OID: return placement::splitmix64(static_cast<std::uint16_t>(DatumGetInt16(key)));", REGRESS),
    # Route version
    Mutant("floor-off-by-one", "route version: at the floor", ROUTE, "guc::route_version < (*ownership)->floor",
           "guc::route_version <= (*ownership)->floor", REGRESS),
    Mutant("partitions-read-stale", "route version: partitions and children", OWNERSHIP,
           "        if (const GuardedTable *found = guarding(ownership, parents[i])) return found;", "        (void)parents[i];", REGRESS),
    Mutant("copy-unchecked", "route version: COPY and TRUNCATE", ROUTE, "    check_utility(statement->utilityStmt);", "    if (false) check_utility(statement->utilityStmt);", REGRESS),
    # Operators' functions
    Mutant("release-does-not-wait", "release_buckets: writers", SHARD,
           "        PERFORM interlock.lock_tables(keyspace, 'SHARE');\n", "        NULL;\n",
           (f"{SESSIONS}::test_release_waits_for_a_writer_and_finds_its_row",),
           "        PERFORM interlock.lock_tables(keyspace, 'SHARE', nowait => true);\n", "        NULL;\n"),
    Mutant("release-waits-with-the-state", "release_buckets: who waits for writers is in no move's way", SHARD,
           "        PERFORM interlock.lock_tables(keyspace, 'SHARE');\n", "        PERFORM interlock.require_shard(), interlock.lock_tables(keyspace, 'SHARE');\n",
           (f"{LOCKS}::test_who_waits_for_a_table_does_not_hold_the_state",)),
    Mutant("sharding-waits-with-the-state", "shard_table: who waits for writers is in no move's way", ATTACH,
           "    PERFORM interlock.this_shard();\n", "    PERFORM interlock.require_shard();\n",
           (f"{LOCKS}::test_who_waits_for_a_table_does_not_hold_the_state",)),
    Mutant("rows-given-away", "release_buckets: rows", SHARD, "FROM interlock.bucket_rows(keyspace, owned) AS r\n",
           "FROM interlock.bucket_rows(keyspace, '{}') AS r\n", REGRESS),
    Mutant("floor-stays", "release_buckets: floor", SHARD,
           "SET floor = release_buckets.route_version\n", "SET floor = floor\n", REGRESS),
    Mutant("back-under-an-old-version", "accept_buckets", SHARD,
           " OR s.state = 'moved' AND s.route_version > accept_buckets.route_version)", ")", REGRESS),
    Mutant("old-snapshot-releases", "release_buckets, shard_table: isolation", SHARD,
           "IF current_setting('transaction_isolation') <> 'read committed' THEN", "IF false THEN", REGRESS),
    Mutant("stray-rows-sharded", "shard_table: rows that are not ours", ATTACH, "    IF found_rows > 0 THEN\n", "    IF false THEN\n", REGRESS),
    Mutant("another-identity", "set_identity", SHARD,
           "<> (set_identity.cluster_id, set_identity.shard) THEN", "<> (set_identity.cluster_id, identity.shard_name) THEN", REGRESS),
    # Sort keys
    Mutant("sign-not-turned", "sort keys: negative numbers", KEY, "static_cast<Unsigned>(number) ^ sign", "number ^ (sign & 0)", REGRESS),
    Mutant("negative-floats-rise", "sort keys: negative floats", KEY, "(bits & sign) != 0 ? ~bits : bits | sign", "bits ^ sign", REGRESS),
    Mutant("negative-numerics-rise", "sort keys: negative numerics", KEY, "NumericKind::negative ? 0xFFFF : 0;", "NumericKind::zero ? 0xFFFF : 0;", REGRESS),
    Mutant("digits-from-zero", "sort keys: the end of a numeric", KEY, "(parts.digit(i) + 1) ^ turn", "parts.digit(i) ^ turn", REGRESS),
    Mutant("interval-by-time-alone", "sort keys: intervals beyond 64 bits", KEY, "    put_signed(out, static_cast<std::int32_t>(span >> 64));\n", "", REGRESS),
    Mutant("zeros-bare", "sort keys: zero bytes", KEY, "if (zero != nullptr) appendStringInfoChar(out, static_cast<char>(0xFF));", "(void)zero;", REGRESS),
    Mutant("blanks-count", "sort keys: char padding", KEY, "if (column.base == BPCHAROID) length = bpchartruelen(bytes, length);", "", REGRESS),
    Mutant("descending-ignored", "sort keys: direction", KEY, "if (column.descending)", "if (false)", REGRESS),
    Mutant("nulls-at-one-end", "sort keys: place of NULLs", KEY, "column.nulls_first ? null_first : null_last", "null_last", REGRESS),
    Mutant("ties-untold", "sort keys: what ICU takes for equal", COLLATION, "if (locale->deterministic) append_terminated", "if (false) append_terminated", REGRESS),
    Mutant("blindness-undone", "sort keys: nondeterministic collations", COLLATION, "if (locale->deterministic) append_terminated", "append_terminated", REGRESS),
    Mutant("libc-merged", "sort keys: collations of the C library", COLLATION, "    if (lc_collate_is_c(collation)) {\n        append", "    if (true) {\n        append", REGRESS),
    Mutant("labels-by-age", "sort keys: labels added later", "extension/enum_order.cpp", "EnumTypIdSortOrderIndexId", "EnumTypIdLabelIndexId", REGRESS),
    Mutant("labels-for-ever", "sort keys: enums that change", "extension/enum_order.cpp",
           "void enum_changed(Datum, int, uint32) {\n    stale = true;", "void enum_changed(Datum, int, uint32) {", REGRESS),
    # Cursors
    Mutant("mac-unseen", "cursors: signature", CURSOR, "!is_sealed(bytes) ||", "false ||", (f"{BYTES}::test_every_flipped_bit_is_refused",)),
    Mutant("unsigned-will-do", "cursors: unsigned for signed", CURSOR, "(cursor_format::key_id_of(bytes.data) != 0) != binding.is_signed ||", "",
           (f"{BYTES}::test_a_cursor_belongs_to_its_keyset_scope_and_kind",)),
    Mutant("any-scope", "cursors: scope", CURSOR, "std::memcmp(bytes.data + cursor_format::scope_offset, binding.scope, digest_size) != 0 ||", "",
           (f"{BYTES}::test_a_cursor_belongs_to_its_keyset_scope_and_kind",)),
    Mutant("any-keyset", "cursors: declaration", CURSOR, "std::memcmp(bytes.data + cursor_format::keyset_offset, binding.keyset, digest_size) != 0 ||", "",
           (f"{BYTES}::test_a_cursor_belongs_to_its_keyset_scope_and_kind",)),
    Mutant("bytes-left-over", "cursors: all of the values", CURSOR, "return in.cursor == in.len;", "return true;",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("bits-left-over", "cursors: one spelling", "extension/cursor_format.h", "return (held & ((1U << bits) - 1)) == 0;", "return true;",
           (f"{BYTES}::test_every_flipped_bit_of_the_text_is_refused",)),
    Mutant("negative-zero-read", "cursors: canonical floats", VALUE, "return same_bits<Unsigned>(canonical_float(*value)) == bits;", "return true;",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("text-unverified", "cursors: text of the encoding", VALUE, "if (!pg_verify_mbstr(GetDatabaseEncoding(), bytes, length, true)) return false;", "",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("length-believed", "cursors: lengths", VALUE, "length < 0 || length > in->len - in->cursor", "length < 0 || length > (1 << 29)",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("times-unchecked", "cursors: ranges", VALUE, "if (!TIMESTAMP_NOT_FINITE(big) && !IS_VALID_TIMESTAMP(big)) return false;", "",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("interval-as-it-comes", "cursors: canonical intervals", VALUE, "    return canonical.time == interval->time && canonical.day == interval->day &&", "    return interval != nullptr && canonical.month == interval->month &&",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("digits-unchecked", "cursors: numerics", "extension/numeric_parts.cpp", "            if (parts.digit(i) >= base) return false;\n", "            (void)i;\n",
           (f"{BYTES}::test_only_values_as_they_are_written_are_read",)),
    Mutant("keys-for-ever", "cursor keys: sessions that page", CURSOR_KEYS, "relid == watched) ++invalidations;", "relid == watched) return;",
           (f"{BYTES}::test_keys_change_under_sessions_that_page",)),
    Mutant("oldest-signs", "cursor keys: the newest signs", CURSOR_KEYS, "(found->created[place] > created ||", "(found->created[place] < created ||",
           (f"{BYTES}::test_keys_change_under_sessions_that_page",)),
    Mutant("retired-serves", "cursor keys: retired ones", "extension/sql/43-cursor-keys.sql", "SET retired = true, secret = NULL WHERE", "SET created = k.created WHERE",
           (f"{BYTES}::test_keys_change_under_sessions_that_page", *REGRESS)),
    # Keysets
    Mutant("null-end-fixed", "pages: NULLs when going backwards", RANGES, "sort.nulls_first != backward;\n        if (sort.nullable && (null", "sort.nulls_first;\n        if (sort.nullable && (null", REGRESS),
    Mutant("nulls-unread", "pages: NULLs behind the values", RANGES, "if (sort.nullable && !nulls_first) ranges[count++] = {Range::Kind::nulls, i};", "", REGRESS),
    Mutant("order-of-scan", "pages: rows before a cursor", PAGE, "for (int i = writer.count - 1; i >= 0; --i)", "for (int i = 0; i < writer.count; ++i)", REGRESS),
    Mutant("char-of-one", "predicates: char(n)", RANGES, "type == BPCHAROID ? ", "type == 0 ? ", REGRESS),
    Mutant("session-writes", "predicates: the session's settings", "extension/keyset_cursor.cpp", "std::pair(\"extra_float_digits\", \"3\")", "std::pair(\"extra_float_digits\", \"-10\")", REGRESS),
    Mutant("unfiltered", "pages: rows of buckets that are elsewhere", RANGES, "if (keyset.keyspace != nullptr) {", "if (keyset.keyspace != nullptr && !keyset.scatter) {", REGRESS),
    Mutant("fenced-unread", "owned(): fenced buckets", "extension/owned.cpp", "state == BucketState::fenced ||", "false ||", REGRESS),
    Mutant("copy-answers", "owned(): restored copies", "extension/owned.cpp", "if (unlikely(ownership.restored)) refuse", "if (false) refuse", REGRESS),
    Mutant("scopes-alike", "cursors: the scope they are of", PLACE, "append_identity(keyset.scope_sort[i], scope->values[i], false, &bytes);", "(void)i;", REGRESS),
    Mutant("any-row", "pages: row type", PLACE, "if (type == keyset.row_type) return;", "if (OidIsValid(type)) return;", REGRESS),
    Mutant("nullable-unique", "total order: NULLs", INDEX, "keyset.order_sort[found].nullable ||\n", "\n", REGRESS),
    Mutant("deferrable-unique", "total order: deferrable constraints", INDEX, " || !form->indimmediate", "", REGRESS),
    Mutant("partial-unique", "total order: partial indexes", INDEX, "plain && !partial,", "plain,", REGRESS),
    Mutant("children-unseen", "total order: inheritance", "extension/keyset_resolve.cpp", "find_inheritance_children(table.relid, NoLock) != NIL", "false", REGRESS),
    Mutant("more-than-order", "declaration: an order only", DECLARE, "select->limitCount != nullptr ||", "", REGRESS),
    Mutant("anybodys-table", "declaration: owner", DECLARE, "if (pg_class_ownercheck(relid, GetUserId())) return;", "if (OidIsValid(relid)) return;", REGRESS),
    Mutant("values-after-nulls-forgotten", "walks: NULLs first", RANGES,
           "if (nulls_first) ranges[count++] = {Range::Kind::not_null, i};", "",
           ("tests/test_keyset_types.py::test_walks_over_two_columns_with_nulls_in_every_direction",)),
    Mutant("a-snapshot-each-range", "pages: of one moment", PAGE, "options.read_only = true;", "options.read_only = false;",
           ("tests/test_keyset_writers.py::test_a_page_over_a_null_boundary_is_of_one_snapshot",)),
    Mutant("sorts-ties", "pages: read by the index", "extension/keyset_plans.cpp", "if (keyset->missing_index == nullptr)\n", "if (false)\n",
           (f"{ACCESS}::test_a_page_inside_many_ties_reads_no_more_than_another",)),
    Mutant("deaf-pages", "pages: what others declare", CACHE, "if (all || keyset->declaration.relid == relid) keyset->stale = true;", "if (false) keyset->stale = true;",
           (f"{PAGERS}::test_the_next_page_is_of_the_declaration_as_it_is_now",)),
    Mutant("as-before-the-lock", "pages: what others change while a page waits", CACHE, "            if (keyset->stale) {\n", "            if (false) {\n",
           (f"{PAGERS}::test_a_page_waits_for_the_drop_of_an_index_that_makes_the_order_total",)),
    Mutant("unpinned", "pages: within pages", CACHE, "if (keyset->pins > 0) {", "if (false) {",
           (f"{PAGERS}::test_a_page_that_is_read_within_a_page_of_the_same_keyset",)),
    Mutant("pinned-for-ever", "pages: memory", CACHE, "    --static_cast<Pin *>(argument)->keyset->pins;", "    (void)argument;",
           (f"{PAGERS}::test_a_thousand_declarations_and_errors_leave_no_memory_behind",)),
    # Rows of cursors, and index tables
    Mutant("any-scope-of-rows", "rows by cursors: the scope they are in now", RANGES, "append_scope_equal(out, keyset, style, i);\n        if (!of_key) appendStringInfoString(out, \") IS TRUE\");", "appendStringInfoString(out, of_key ? \"true\" : \"true) IS TRUE\");",
           (f"{ROWS}::test_a_row_that_has_changed_its_place_is_not_the_cursors_any_more",)),
    Mutant("any-index-of-rows", "rows by cursors: one look-up each", INDEX, "            keyset->key_scope = scope;\n            keyset->key_order = order;\n", "            keyset->key_scope = keyset->key_order = ~0U;\n",
           (f"{ROWS}::test_each_row_is_one_look_up_by_the_unique_index",)),
    Mutant("rows-scanned", "rows by cursors: a plan made while the table is small", "extension/keyset_plans.cpp", '"enable_seqscan", "enable_bitmapscan"', '"enable_sort"', REGRESS),
    Mutant("entries-for-ever", "index tables: entries that are gone", RANGES, "if (keyset.deleted_attribute != InvalidAttrNumber) {", "if (false) {",
           (f"{ROWS}::test_entries_that_are_gone_are_passed_by_and_their_cursors_still_lead_on",)),
    Mutant("own-digest", "index tables: their source's cursors", "extension/keyset_resolve.cpp", "declaration.source.keyset != nullptr\n                                   ? declaration.source", "false\n                                   ? declaration.source",
           (f"{ROWS}::test_an_index_in_another_database_has_its_sources_cursors_and_sort_keys",)),
    # Catalog
    Mutant("gaps-published", "publish: every bucket", PUBLISH,
           "     GROUP BY k.id ORDER BY k.name LIMIT 1;", "     GROUP BY k.id ORDER BY k.name LIMIT 0;", REGRESS),
    Mutant("owner-changes", "publish: served buckets", PUBLISH, "IF NOT coalesce(allow_owner_change, false) THEN", "IF false THEN", REGRESS),
    Mutant("buckets-change", "keyspaces never change", CATALOG,
           "        IF to_jsonb(OLD) <> to_jsonb(NEW) THEN", "        IF false THEN", REGRESS),
    Mutant("open-to-everybody", "privileges", "extension/sql/90-privileges.sql",
           "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA interlock FROM PUBLIC;\n", "", REGRESS),
]


def private_view():
    """The server's folders, as this process and its children see them, become copies. Needs `unshare -m`."""
    for option, sub_folder in (("--pkglibdir", ""), ("--sharedir", "/extension")):
        folder = subprocess.run(["pg_config", option], check=True, capture_output=True, text=True).stdout.strip() + sub_folder
        copy = tempfile.mkdtemp(prefix="interlock-mutants-view-")
        shutil.copytree(folder, copy, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["chmod", "755", copy], check=True)
        subprocess.run(["mount", "--bind", copy, folder], check=True)


def build_extension(tree, part, build=mutants.build):
    """None of these tests needs the router."""
    if part == "extension":
        build(tree, part)


mutants.build = build_extension

if __name__ == "__main__":
    if "--private" in sys.argv:
        sys.argv.remove("--private")
        private_view()
    sys.exit(mutants.main())
