#!/usr/bin/python3
"""Shows that the tests of clients that meet a move can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

HERE = "tests/test_move_clients.py::test_"
TRIGGERS = "tests/test_move_triggers.py::test_"
WRITES = f"{HERE}a_write_that_meets_a_move_waits_and_lands_once_at_the_new_owner"
RESEND, EXTENDED = "router/session/pg_resend.cpp", "router/session/pg_extended.cpp"
QUERY, BACKEND, SETTLE = "router/session/pg_query.cpp", "router/session/pg_backend.cpp", "router/session/pg_settle.cpp"

mutants.MUTANTS = [
    Mutant("announced-key-is-sent", "an announced key waits", "router/plan/single_shard.cpp",
           "held_ = held_ || routes_.is_announced(found.keyspace, found.bucket);", "(void)held_;", (f"{WRITES}[simple-held]",)),
    Mutant("held-under-the-next-version", "an announced key never meets a session of the announced version", QUERY,
           "!held && std::all_of(", "std::all_of(", (f"{HERE}what_is_held_back_too_long_is_sent_as_ever",)),
    Mutant("pinned-under-the-next-version", "a transaction under the announced version does not touch the bucket", RESEND,
           "return must_go_back(facts, settled) && (", "return false && (",
           (f"{HERE}a_transaction_under_the_announced_version_may_not_touch_the_bucket",)),
    Mutant("triggers-under-the-next-version", "what triggers read, keys do not say", RESEND, "(!settled || meets_user_code(facts));", "!settled;",
           (f"{TRIGGERS}statements_whose_triggers_may_read_anything_run_under_the_version_in_force",)),
    Mutant("triggers-first-under-the-next-version", "nor as the first statement", RESEND, "if (lease_->route_version() == version) co_return std::nullopt;",
           "if (version != 0) co_return std::nullopt;",
           (f"{TRIGGERS}statements_whose_triggers_may_read_anything_run_under_the_version_in_force",)),
    Mutant("the-way-back-takes-a-portal", "a portal of the client outlives the way back", BACKEND, "bytes(\"P\").string(portal);", "bytes(\"P\").string(\"\");",
           (f"{TRIGGERS}a_portal_of_the_client_outlives_the_way_back",)),
    Mutant("keyless-under-the-next-version", "what has no keys keeps to the version in force", BACKEND,
           "lend_any(pools, routes->table->version)", "lend_any(pools, routes->table->settled_version())",
           (f"{HERE}other_buckets_run_under_the_announced_version_and_are_not_cut_by_the_decision",)),
    Mutant("others-under-the-old-version", "the decision does not cut other buckets", BACKEND,
           "return settled && !in_force_ ? table.settled_version() : table.version;", "return settled && !in_force_ ? table.version : table.version;",
           (f"{HERE}other_buckets_run_under_the_announced_version_and_are_not_cut_by_the_decision",)),
    Mutant("committed-is-sent-again", "nothing that was committed is sent again", SETTLE,
           "        // It may have committed what came before it.\n        cannot_resend();", "        // It may have committed what came before it.",
           (f"{HERE}what_was_committed_in_a_round_is_never_sent_again", f"{HERE}a_commit_without_a_block_ends_what_can_be_sent_again")),
    Mutant("answered-is-sent-again", "nothing that was answered is sent again", RESEND,
           "if (bytes > resend.before) resend.possible = false;", "", (f"{HERE}what_the_client_has_seen_rows_of_is_never_sent_again",)),
    Mutant("servers-buffer-is-given", "answers are kept back while a statement behind them may be refused", RESEND,
           "if (!resend_->possible || flush_wanted_ || out_.size() >= keep_answers) return false;", "if (!flush_wanted_) return false;",
           (f"{HERE}answers_longer_than_a_servers_buffer_are_kept_back_until_the_last_statement",)),
    Mutant("flushed-is-sent-again", "a Flush gives answers away", EXTENDED,
           "flush_wanted_ = true;\n    if (resend_->bound) cannot_resend();", "flush_wanted_ = true;",
           (f"{HERE}what_the_client_has_been_answered_is_never_sent_again",)),
    Mutant("pinned-is-sent-again", "only what began its transaction is sent again", RESEND,
           "resend.possible = hold_ == Hold::none || hold_ == Hold::any;", "resend.possible = true;",
           (f"{HERE}a_transaction_that_first_writes_the_bucket_behind_its_fence_is_to_begin_again",)),
    Mutant("answers-stay", "answers of what is sent again are taken back", RESEND, "out_.truncate(resend.before);", "",
           (f"{WRITES}[unnamed-fenced]",)),
    Mutant("older-answers-go", "and those of what came before are not", RESEND, "resend.before = out_.size();", "resend.before = 0;",
           (f"{HERE}rounds_of_a_pipeline_are_judged_one_by_one", f"{WRITES}[flushed-fenced]")),
    Mutant("older-answers-wait", "answers to earlier rounds do not wait", RESEND, "    give_older_answers();\n    const Routes", "    const Routes",
           (f"{HERE}rounds_of_a_pipeline_are_judged_one_by_one",)),
    Mutant("parsed-twice", "what was prepared in the round is undone", RESEND, "        else\n            extended_->named.erase(change->name);", "",
           (f"{HERE}a_pipeline_is_sent_again_as_a_whole",)),
    Mutant("old-routes", "the new routes are used", RESEND, "        take_back();\n        use_newest_routes();", "        take_back();",
           (f"{WRITES}[block-decided]",)),
    Mutant("old-facts", "names and keys are judged again", QUERY, "if (found_under != routes_in_use()) {", "if (false) {",
           (f"{HERE}statements_of_one_query_are_sent_again_together",)),
    Mutant("fence-is-not-tried-again", "a fence is tried again", RESEND, "again = held_too_long || (fenced && worker_.loop().now() < patience_);", "again = held_too_long;",
           (f"{HERE}a_fence_that_is_opened_without_a_word_lets_the_write_through",)),
    Mutant("for-ever", "waiting is bounded", RESEND, "if (worker_.loop().now() >= patience_)\n        again = again", "if (worker_.loop().now() >= never)\n        again = again",
           (f"{HERE}waiting_is_bounded_and_the_fence_is_told", f"{HERE}a_router_that_does_not_wait_tells_at_once")),
    Mutant("opened-too-late", "who opens a fence goes on", RESEND, "again = again && !std::exchange(patience_spent_, true);", "again = false;",
           (f"{HERE}who_opens_a_fence_is_sent_again_however_long_he_has_waited",)),
    Mutant("held-by-the-dead", "an announcement that nobody takes back is waited out once", RESEND,
           "if (worker_.loop().now() >= hold) co_return std::nullopt;", "", (f"{HERE}an_announcement_that_nobody_takes_back_is_waited_out_once[simple]",)),
    Mutant("together-under-the-next-version", "what is held too long is sent under the version in force, with what is sent before it", RESEND,
           "in_force_ = in_force_ || held_too_long;", "",
           (f"{HERE}what_is_sent_together_is_not_held_for_an_announcement_that_is_too_old",)),
    Mutant("deaf-to-cancel", "a cancel request ends the waiting", RESEND,
           "if (gone_ || gave_up_.is_set())\n", "if (gone_)\n", (f"{HERE}a_cancel_request_ends_the_waiting",)),
    Mutant("deaf-to-the-end", "a client that leaves", RESEND, "waiting_ = true;\n    gave_up_.reset();\n    transport_->watch.arm_hangup();", "waiting_ = false;\n    gave_up_.reset();",
           (f"{HERE}a_client_that_leaves_while_it_waits_is_not_served",)),
    Mutant("endless-for-what-is-not-there", "IL101 without newer routes is told at once", RESEND,
           "refused.kind == RouteRefusal::not_owned && !says_moved(refused.error);", "false;",
           (f"{HERE}a_bucket_that_is_simply_not_there_is_told_at_once",)),
    Mutant("expired-stays-shut", "an expired fence is opened", RESEND, "if (idle && refused.kind == RouteRefusal::fenced && says_expired(refused.error))",
           "if (false)", (f"{HERE}a_fence_whose_mover_is_gone_is_opened_by_whoever_meets_it",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
