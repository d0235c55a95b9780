#!/usr/bin/python3
"""Shows that the tests of what `interlock move` checks and tells can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

STATE_TESTS, TABLE_TESTS, COMMAND, PROGRESS = (f"tests/test_move_{name}.py::test_" for name in ("preflight_state", "preflight", "command", "progress"))
SERVERS, WAY, STATE, ITEMS, TABLES, LINKS, ROOM = (
    f"router/tools/move_preflight_{part}.cpp" for part in ("servers", "way", "state", "items", "tables", "links", "room"))
ALL_AT_ONCE = f"{STATE_TESTS}everything_wrong_with_the_servers_is_told_at_once_and_mended_as_told"
DIFFERS = f"{TABLE_TESTS}what_differs_between_the_shards_is_told_and_the_mend_mends_it"
TYPES = f"{TABLE_TESTS}types_of_one_name_that_are_not_the_same_are_told"

mutants.MUTANTS = [
    Mutant("any-wal-level", "settings", SERVERS, 'if (values.at("wal_level") != "logical")\n        check.refuse',
           "if (false)\n        check.refuse", (ALL_AT_ONCE,)),
    Mutant("list-replaced", "the mend keeps what is allowed", SERVERS, 'names.emplace_back("interlock");',
           'names = {"interlock"};\n    names.emplace_back("");', (ALL_AT_ONCE,)),
    Mutant("slots-not-counted", "slots of others", SERVERS, "if (used.int64(0, 0) >= slots)", "if (slots == 0)",
           (f"{STATE_TESTS}slots_that_others_have_taken_are_counted",)),
    Mutant("anybody-moves", "rights", SERVERS, "if (!role.empty() && role.boolean(0, 0)) return true;", "return true;",
           (f"{STATE_TESTS}a_login_that_is_no_superuser_is_told_so_on_both_shards",)),
    Mutant("way-taken-for-granted", "the way is proven", WAY, "(void)target.query_within(check.request.query_timeout, statement);",
           "(void)statement;", (f"{STATE_TESTS}a_way_that_leads_nowhere_is_told", f"{STATE_TESTS}what_pg_hba_conf_lacks_is_told_as_a_line")),
    Mutant("password-in-the-log", "the log keeps no password", WAY, "('log_min_error_statement', 'panic')", "('log_min_error_statement', 'error')",
           (f"{STATE_TESTS}a_way_that_leads_nowhere_is_told",)),
    Mutant("own-database-only", "transactions of other databases", STATE, "a.backend_xid IS NOT NULL \"",
           "a.backend_xid IS NOT NULL AND a.datname = current_database() \"",
           (f"{STATE_TESTS}transactions_that_would_hold_the_copy_up_are_told",)),
    Mutant("fences-never-expire", "an expired fence is told apart", STATE, "coalesce(s.state = 'fenced' AND s.until <= clock_timestamp(), false)", "false",
           (f"{STATE_TESTS}an_expired_fence_and_the_record_of_a_forgotten_move_are_told",)),
    Mutant("all-leftovers-are-known", "leftovers", STATE, "if (unfinished_in_catalog(moves, rows.text(row, 1))) continue;", "continue;",
           (f"{STATE_TESTS}leftovers_are_told_each_with_the_statement_that_removes_it",)),
    Mutant("kept-rows-unexplained", "rows that are kept", STATE, "part_of_another = true;", "continue;",
           (f"{COMMAND}rows_can_be_kept_at_the_source_until_they_are_cleaned_away",)),
    Mutant("any-identity", "the key in the replica identity", TABLES, "member.identity == 'f' || contains(member.columns, member.key))\n        return;",
           "member.identity == 'f' || !member.columns.empty())\n        return;", (f"{DIFFERS}[identity-without-the-key]",)),
    Mutant("no-differences", "definitions", TABLES, "other->second.definition != item.definition", "false",
           (f"{DIFFERS}[other-type]", f"{DIFFERS}[not-null]")),
    Mutant("types-of-elements", "types within types", ITEMS, "t.typelem <> 0 AND t.typcategory = 'A' \"\n    \"      UNION", "false \"\n    \"      UNION",
           (f"{TYPES}[mood[]-enum]",)),
    Mutant("types-of-attributes", "types within types", ITEMS, "UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c' \"",
           "UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'x' \"", (f"{TYPES}[wrapped-enum]",)),
    Mutant("crossing-keys", "foreign keys without the shard key", LINKS, "if (!link.by_key) check_crossing(check, link);", "",
           (f"{STATE_TESTS}a_foreign_key_without_the_shard_key_is_refused_and_can_have_it",)),
    Mutant("any-pair-of-columns", "the shard keys refer to each other", LINKS,
           "bool_or(coalesce(a.attname = c.key_column AND b.attname = p.key_column, false)) ", "bool_or(coalesce(b.attname = p.key_column, false)) ",
           (f"{STATE_TESTS}a_table_that_refers_to_itself_by_another_column_than_the_shard_key_is_refused",)),
    Mutant("only-counted", "rows that every shard has", LINKS, "if (source == target) return;", "if (source.substr(0, 6) == target.substr(0, 6)) return;",
           (f"{STATE_TESTS}a_foreign_key_to_a_table_that_every_shard_has_needs_the_same_rows",)),
    Mutant("replica-triggers-unseen", "triggers that fire", LINKS, "t.tgenabled IN ('A', 'R') AND", "t.tgenabled = 'A' AND",
           (f"{STATE_TESTS}triggers_that_fire_for_rows_that_only_change_places_are_told",)),
    Mutant("every-disk-is-large", "disk room", ROOM, "if (needed <= free) return;", "return;",
           (f"{STATE_TESTS}a_bucket_that_does_not_fit_on_the_targets_disk_is_told",)),
    Mutant("line-left-standing", "a terminal's line", "router/tools/move_progress.cpp", "if (line_open_) lines_ << \"\\r\\033[K\" << std::flush;", "",
           (f"{PROGRESS}a_terminal_has_one_line_that_is_gone_in_the_end",)),
    Mutant("unfinished-forgotten", "emptying a shard goes on", "router/tools/move_command.cpp",
           "if (move.from != options_.request.from || move.to != options_.request.to ||", "if (true || move.to != options_.request.to ||",
           (f"{COMMAND}a_shard_is_emptied_in_batches_and_the_same_command_goes_on",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
