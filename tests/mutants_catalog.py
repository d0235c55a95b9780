#!/usr/bin/python3
"""Shows that the tests of moves in the catalog, of `interlock apply` beside moves and of `interlock rebalance` can fail: as
mutants.py (same options, and --private, see mutants_extension.py)."""

import sys

import mutants
from mutants import Mutant

build_everything = mutants.build
import mutants_extension  # noqa: E402
from mutants_extension import REGRESS  # noqa: E402

mutants.build = build_everything

APPLY, EVEN = "tests/test_apply_moves.py::test_", "tests/test_rebalance.py::test_"
MOVES, PUBLISH, CATALOG = (f"extension/sql/{part}.sql" for part in ("56-moves", "55-publish", "50-catalog-functions"))
RUN, SESSION, JUDGE, CHECK = (f"router/tools/apply{part}.cpp" for part in ("", "_catalog", "_ownership", "_check"))
MEASURE, COMMAND = "router/tools/rebalance_measure.cpp", "router/tools/rebalance_command.cpp"

mutants.MUTANTS = [
    # The catalog
    Mutant("number-again", "a number that was given up is never used again", MOVES,
           "coalesce(c.reserved_version, greatest(c.route_version, c.last_version) + 1)", "coalesce(c.reserved_version, c.route_version + 1)", REGRESS),
    Mutant("published-beside", "nobody publishes while a number is reserved", PUBLISH,
           "        PERFORM interlock.refuse_reserved();\n", "        NULL;\n", REGRESS),
    Mutant("two-reservations", "one reservation at a time", MOVES,
           "        IF cluster.reserved_move IS DISTINCT FROM id THEN\n            PERFORM", "        IF false THEN\n            PERFORM", REGRESS),
    Mutant("staged-carried-along", "a move publishes what is published", MOVES,
           "format('move %s', id), v.declarations\n", "format('move %s', id), interlock.staged_declarations()\n", REGRESS),
    Mutant("two-moves-of-one", "a bucket is in one move", MOVES, "     WHERE m.finished IS NULL AND m.keyspace = keyspace_row.id AND b.bucket = ANY (wanted)",
           "     WHERE false", REGRESS),
    Mutant("unknown-target", "the target is published", MOVES, "    IF NOT EXISTS (SELECT FROM interlock.cluster c JOIN interlock.route_version v",
           "    IF false AND NOT EXISTS (SELECT FROM interlock.cluster c JOIN interlock.route_version v", REGRESS),
    Mutant("left-behind", "a move that has left something is not over", MOVES, "    IF left_over IS NOT NULL THEN", "    IF false THEN", REGRESS),
    Mutant("announced-for-ever", "what is given up is withdrawn", MOVES, "SET route_version = NULL, announced = false,", "SET route_version = NULL,", REGRESS),
    Mutant("assigned-away", "buckets on the move are the move's", CATALOG, "       AND r.shard <> member.id\n", "       AND false\n", REGRESS),
    Mutant("published-away", "not even on purpose", PUBLISH, "     WHERE m.finished IS NULL\n", "     WHERE false\n", REGRESS),
    # apply
    Mutant("told-before-reserved", "the number is reserved before a shard is told", RUN, "        if (publishes_) reserve_number();\n", "",
           (f"{APPLY}a_number_that_a_shard_knows_belongs_to_the_apply_that_was_killed_until_another_publishes_it",)),
    Mutant("kept-for-nothing", "a number that no shard knows is given back", RUN,
           "            catalog_->withdraw();\n", "            (void)catalog_;\n",
           (f"{APPLY}a_number_that_no_shard_knows_is_given_back_and_never_used_again",)),
    Mutant("given-back-too-late", "a number that a shard knows is kept", RUN, "            give_back_number();\n        std::string detail",
           "            (void)step;\n        catalog_->give_back();\n        std::string detail",
           (f"{APPLY}a_number_is_kept_by_an_apply_that_fails_after_a_shard_has_given_buckets_away_under_it",)),
    Mutant("edits-unnoticed", "an edit while the lock was let go", SESSION, "return fingerprint() == before;", "return true;",
           (f"{APPLY}an_edit_that_waits_for_the_apply_is_applied_as_well",)),
    Mutant("moves-in-the-way", "a move is left alone", JUDGE, "if (view.move && row.state == BucketOwnership::importing", "if (false && row.state == BucketOwnership::importing",
           (f"{APPLY}a_move_under_way_is_left_alone_and_others_are_applied_beside_it",)),
    Mutant("tables-join", "no table joins a moving keyspace", CHECK, "if (!state.keyspaces[table.keyspace].on_the_move ||", "if (true ||",
           (f"{APPLY}no_table_joins_a_keyspace_while_a_move_is_under_way",)),
    Mutant("old-copies-pass", "lost decisions", CHECK, "else if (state.floor < shard.min_floor)", "else if (false)",
           (f"{APPLY}a_shard_that_has_lost_a_decision_is_refused_until_somebody_vouches_for_it",)),
    Mutant("floor-of-nothing", "a shard made anew", "router/tools/apply_plan.cpp", "if (!state(s).has_identity && floor > 0)", "if (false)",
           (f"{APPLY}a_shard_whose_buckets_were_published_elsewhere_before_it_was_applied_begins_with_that_floor",)),
    # rebalance
    Mutant("left-rows-counted", "rows that a move has left", MEASURE, "&& keyspace.owner[bucket] == shard_)", "&& shard_ < 1000)",
           (f"{EVEN}rows_that_a_move_has_left_at_its_source_are_counted_where_the_bucket_is",)),
    Mutant("all-rows-are-load", "load: what was written meanwhile", MEASURE, "\"THEN 1 ELSE 0 END\"", "\"THEN 1 ELSE 1 END\"",
           (f"{EVEN}load_is_what_was_written_while_the_shards_were_observed",)),
    Mutant("once-is-enough", "load: rows written again", MEASURE, "factor *= static_cast<double>(written) / found;", "factor *= 1;",
           (f"{EVEN}rows_written_again_and_again_count_for_the_buckets_of_their_shard",)),
    Mutant("part-for-the-whole", "a sample", MEASURE, "double factor = 100 / request_.sample;", "double factor = 1;",
           (f"{EVEN}a_sample_is_near_the_whole",)),
    Mutant("moves-moved", "buckets of moves stay", COMMAND, "                pin(move.keyspace, bucket, move.to);\n", "                (void)bucket;\n",
           (f"{EVEN}buckets_that_are_somebody_elses_business_stay",)),
    Mutant("bare-words", "quoted for a shell", COMMAND, "    return quoted + \"'\";", "    return text;",
           (f"{EVEN}the_commands_are_quoted_for_a_shell",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
