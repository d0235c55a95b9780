#!/usr/bin/python3
"""Shows that the tests can fail: breaks the code in one place, and the tests named must go red.

    tests/mutants.py            all of the router's (about ten minutes on two cores);
                                those of the extension: tests/mutants_extension.py
    tests/mutants.py --list     what there is
    tests/mutants.py NAME ...   only those

Works in a copy of the checkout, so that nothing here is touched; the extension of a mutant is
installed for its run and the sound one afterwards, so do not run anything else meanwhile. Exits 1
when a mutant survives, or cannot be made because the code it breaks has changed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUTING = {
    "statements": "tests/test_routing_statements.py",
    "refusals": "tests/test_routing_refusals.py",
    "transactions": "tests/test_routing_transactions.py",
    "controls": "tests/test_routing_controls.py",
    "routes": "tests/test_routing_routes.py",
    "failures": "tests/test_routing_failures.py",
}


@dataclass(frozen=True)
class Mutant:
    name: str
    row: str       # what it breaks: a key of ROUTING, or in words
    path: str
    old: str
    new: str
    tests: tuple
    old_too: str = ""  # a second place in the same file, where one alone would be made good by the other
    new_too: str = ""


def routing(topic, test):
    return f"{ROUTING[topic]}::{test}"


def login(test):
    return f"tests/test_pg_login.py::{test}"


MUTANTS = [
    Mutant("wrong-bucket", "autocommit routing", "router/plan/plan.cpp",
           "keyspace.bucket_of(*key)", "(keyspace.bucket_of(*key) + 1) % keyspace.buckets",
           (routing("statements", "test_forty_rows_inserted_through_the_router_land_twenty_and_twenty_and_none_misplaced"),)),
    Mutant("backend-for-nothing", "autocommit routing: an empty transaction uses no backend",
           "router/session/session.cpp",
           'answer.tag = "BEGIN";', 'answer.tag = "BEGIN";\n    answer.pid = 1;',
           (routing("statements", "test_an_empty_transaction_uses_no_backend"),)),
    Mutant("comments-pass", "refusals", "router/sql/strict_scanner.cpp",
           "(c == '-' && next == '-') || (c == '/' && next == '*')", "c == '\\1'",
           (routing("refusals", "test_thirty_seven_statements_and_two_malformed_frames_each_get_their_exact_code"),)),
    Mutant("order-of-checks", "refusals: the order decides the code", "router/sql/strict_scanner.cpp",
           "if (first_word_refused(text, *tokens, refusal) || construct_refused(text, *tokens, refusal))",
           "if (construct_refused(text, *tokens, refusal) || first_word_refused(text, *tokens, refusal))",
           (routing("refusals", "test_the_order_of_the_checks_decides_the_code"),)),
    Mutant("in-list-unchecked", "IN list", "router/plan/plan.cpp",
           "else if (target->shard != found.shard)", "else if (false)",
           (routing("statements", "test_an_in_list_on_one_shard_answers_and_across_shards_is_refused"),)),
    Mutant("no-begin", "same-shard transfer", "router/session/session.cpp",
           "const bool opens = first && !autocommit;", "const bool opens = false;",
           (routing("transactions", "test_a_same_shard_transfer_runs_on_one_backend_and_is_seen_only_after_commit"),
            routing("failures", "test_a_router_killed_with_9_in_a_transaction_leaves_nothing_behind"))),
    Mutant("sqlstate-lost", "backend error", "router/session/outcome.cpp",
           "refusal.sqlstate = error.sqlstate;", "",
           (routing("transactions", "test_a_backend_error_passes_its_sqlstate_and_fails_the_transaction"),)),
    Mutant("begin-again", "nested BEGIN", "router/session/session.cpp",
           "if (transaction_ != Transaction::none) {\n        answer.refusal = make_refusal(Code::R40",
           "if (false) {\n        answer.refusal = make_refusal(Code::R40",
           (routing("transactions", "test_begin_inside_a_transaction_is_refused_and_the_transaction_goes_on"),)),
    Mutant("other-shard-unnoticed", "cross-shard transfer", "router/session/session.cpp",
           "if (pinned_ && shard != pinned_shard_) {", "if (false) {",
           (routing("transactions", "test_a_cross_shard_transfer_is_refused_and_the_first_shard_is_released_at_once"),)),
    Mutant("kept-until-rollback", "cross-shard transfer: released at once", "router/session/session.cpp",
           "transaction_ = Transaction::failed;\n    co_await give_back_rolled_back();",
           "transaction_ = Transaction::failed;",
           (routing("transactions", "test_a_cross_shard_transfer_is_refused_and_the_first_shard_is_released_at_once"),
            routing("refusals", "test_a_refusal_inside_a_transaction_fails_it_and_frees_its_backend"))),
    Mutant("commit-what-failed", "cross-shard transfer: R13", "router/session/session.cpp",
           "if (transaction_ == Transaction::failed) {\n        co_return refuse_failed(std::move(answer),\n                                \"the transaction has failed and cannot",
           "if (false) {\n        co_return refuse_failed(std::move(answer),\n                                \"the transaction has failed and cannot",
           (routing("transactions", "test_a_cross_shard_transfer_is_refused_and_the_first_shard_is_released_at_once"),)),
    Mutant("set-passes", "session state", "router/sql/strict_scanner.cpp",
           "if (is_one_of(first.text, session_words) || options) {",
           "if (options && is_one_of(first.text, session_words)) {",
           (routing("controls", "test_the_router_refuses_the_setting_and_the_same_lock_wait_succeeds"),)),
    Mutant("vanished-client-keeps", "client vanishes in a transaction", "router/session/session.cpp",
           "Task<void> Session::end() {\n    co_await give_back_rolled_back();",
           "Task<void> Session::end() {\n    pinned_.release();\n    co_await give_back_rolled_back();",
           (routing("transactions", "test_a_client_that_vanishes_in_a_transaction_leaves_a_clean_backend_in_the_pool"),)),
    Mutant("transaction-follows-routes", "route change during a transaction", "router/session/session.cpp",
           "return transaction_ == Transaction::none ? worker_.routes() : snapshot_;",
           "return worker_.routes();",
           (routing("routes", "test_a_route_change_does_not_move_a_transaction_in_progress"),)),
    Mutant("incomplete-table", "bad route tables: missing bucket", "router/route/route_table.cpp",
           "if (keyspace.owner[bucket] == unassigned)", "if (false)",
           (routing("routes", "test_a_route_table_with_a_bucket_missing_and_one_that_goes_backward_are_refused"),)),
    Mutant("backward-table", "bad route tables: backward version", "router/route/catalog_watcher.cpp",
           "if (version < current_version_) {", "if (false) {",
           (routing("routes", "test_a_route_table_with_a_bucket_missing_and_one_that_goes_backward_are_refused"),)),
    Mutant("dead-idle-connections", "one shard stopped", "router/server/pool.cpp",
           "if (it == idle_.end()) return;", "return;",
           # Either would do in this test: a dead connection is seen at once, and again when it is lent.
           (routing("failures", "test_a_shard_that_crashed_and_came_back_between_two_requests_is_not_noticed_by_the_second"),),
           "if (needs_proof(*lease) && !co_await", "if (false && !co_await"),
    Mutant("waiting-for-a-dead-shard", "one shard stopped: R30 in milliseconds", "router/server/pool.cpp",
           "if (lent_ == 0 && connecting_ == 0 && cleaning_ == 0) fail_waiting(failure);", "",
           (routing("failures", "test_a_stopped_shard_fails_only_its_own_requests_and_comes_back_without_help"),)),
    Mutant("unknown-called-safe", "outcome unknown", "router/session/outcome.cpp",
           "Code::R32,\n        format(\"the connection to shard %s broke after %s was sent: the outcome",
           "Code::R30,\n        format(\"the connection to shard %s broke after %s was sent: the outcome",
           (routing("failures", "test_a_connection_cut_after_commit_was_sent_is_outcome_unknown"),
            routing("failures", "test_a_connection_cut_during_an_autocommit_write_is_outcome_unknown"))),
    Mutant("identity-unchecked", "the router proves whom it talks to", "router/server/greeting.cpp",
           "if (row[1] != expected.shard)", "if (false)",
           ("tests/test_identity.py::test_two_shards_swapped_in_their_connection_strings_are_both_refused",)),
    Mutant("long-lines-kept", "line protocol: over-long lines", "router/session/line_client.cpp",
           "const bool too_long = searched_ > settings.max_line;", "const bool too_long = false;",
           ("tests/test_line_protocol.py::test_a_line_longer_than_the_limit_is_r02_and_its_rest_is_thrown_away",)),
    Mutant("cancel-forgotten", "a statement that runs too long", "router/server/backend.cpp",
           "if (cancel_key_) co_await request_cancel(loop_, cancel_key_, deadline);", "(void)deadline; co_return;",
           ("tests/test_line_protocol.py::test_a_statement_that_runs_too_long_is_cancelled_and_its_transaction_failed",)),
    Mutant("any-password", "logins: the password", "router/wire/scram.cpp",
           "if (!fits || doomed_)", "if ((!fits && false) || doomed_)", (login("test_every_failure_sounds_the_same"),)),
    Mutant("any-certificate", "logins: the certificate's name", "router/session/pg_login.cpp",
           "if (!name || *name != user_)", "if (!name)",
           (login("test_a_certificate_is_as_good_as_a_password_where_it_is_asked_for"),)),
    Mutant("tls-optional", "logins: TLS required", "router/session/pg_login.cpp",
           "if (rules_->require_tls && !transport_.tls.active())", "if (false)",
           (login("test_libpq_verifies_the_listener_and_binds_the_password_to_the_channel"),)),
    Mutant("key-for-all", "logins: the key file's mode", "router/wire/tls.cpp",
           "if ((status.st_mode & forbidden) != 0)", "if (forbidden == 0)",
           (login("test_a_new_certificate_is_taken_on_sighup_and_a_bad_one_is_not"),)),
    Mutant("clients-uncounted", "logins: max_clients", "router/session/pg_login.cpp",
           "transport_.admitted = Counted(worker_.pg_clients);", "",
           (login("test_one_client_too_many_is_told_so_and_the_next_comes_in_when_one_leaves"),)),
    Mutant("login-without-end", "logins: login_timeout", "router/session/pg_login.cpp",
           "deadline_after(worker.loop().now(), worker.settings().pg_login_timeout)", "never",
           (login("test_who_does_not_log_in_in_time_is_dropped"),)),
    Mutant("users-known-for-ever", "logins: a changed password", "router/session/client_auth.cpp",
           "if (entry != nullptr && loop_.now() < entry->asked + cache_time)", "if (entry != nullptr)",
           (login("test_a_changed_password_counts_within_seconds"),)),
    Mutant("users-forgotten", "logins: the catalog away", "router/session/client_auth.cpp",
           "if (const UserCache::Entry *entry = known_.find(user)) return {false, false, entry->user};", "",
           (login("test_when_the_catalog_is_away_known_users_go_on_and_others_are_told_why"),),
           "const std::string &user) const {", "const std::string &) const {"),
    Mutant("role-of-the-same-name", "logins: the role on the shards", "router/session/user_lookup.cpp",
           "user.backend_login = rows.text(0, 1);", "user.backend_login = question.user;",
           (login("test_a_client_user_need_not_be_a_role_and_may_be_another_one_on_the_shards"),)),
    Mutant("keys-kept-apart", "apply: cursor keys", "router/tools/apply_cursor_keys.cpp",
           "if (shard.instance == desired.instance) return {};", "if (!shard.instance.empty()) return {};",
           ("tests/test_apply_keysets.py::test_keys_rotate_without_a_cursor_going_bad",)),
    Mutant("signs-when-it-comes", "apply: a key is known everywhere before it signs", "router/tools/apply_cursor_keys.cpp",
           "want.created::pg_catalog.timestamp AT TIME ZONE 'UTC'", "pg_catalog.clock_timestamp()",
           ("tests/test_apply_keysets.py::test_keys_rotate_without_a_cursor_going_bad",)),
    Mutant("secrets-in-the-log", "apply: cursor keys are secret", "router/tools/apply_cursor_keys.cpp",
           "set_config('log_parameter_max_length', '0', true)", "set_config('log_parameter_max_length', '-1', true)",
           ("tests/test_apply_keysets.py::test_secrets_are_neither_printed_nor_logged",)),
    Mutant("sent-to-be-refused", "moves: what is announced is held back", "router/session/session.cpp",
           "if (planned->held) {", "if (false) {",
           ("tests/test_move_line.py::test_a_write_that_meets_the_move_lands_once_on_the_new_owner",)),
    Mutant("bucket-under-the-version-to-come", "moves: a session at N never uses the bucket", "router/session/session.cpp",
           "if (pinned_ && planned->held && pinned_->route_version() != table.version) {", "if (false) {",
           ("tests/test_move_line.py::test_a_transaction_that_began_after_the_announcement_elsewhere_outlives_the_decision",)),
    Mutant("others-cut-by-the-floor", "moves: statements of other buckets", "router/session/session.cpp",
           "planned->held ? table.version : table.settled_version()", "table.version",
           ("tests/test_move_line.py::test_a_transaction_that_began_after_the_announcement_elsewhere_outlives_the_decision",)),
    Mutant("page-of-two-versions", "moves: a page is of one version", "router/session/merged_rows.cpp",
           "if (kind == RouteRefusal::none) co_return refused;", "co_return refused;",
           ("tests/test_move_pages.py::test_a_page_asked_for_between_decision_and_publication_waits_for_the_new_routes",)),
    Mutant("lost-decision", "failover: the floor", "router/server/greeting.cpp",
           "if (problem.empty()) problem = floor_problem(history.floor, expected.min_floor);", "",
           ("tests/test_failover.py::test_a_standby_promoted_without_the_decision_is_refused_until_it_has_given_the_bucket_away_again",)),
    Mutant("decision-lost-later", "failover: connections made before", "router/server/pool.h",
           "return backend.floor() < identity_.min_floor;", "return backend.floor() < 0;",
           ("tests/test_failover.py::test_connections_to_a_promoted_standby_are_asked_again_when_the_decision_that_it_lost_is_published",)),
    Mutant("primary-that-came-back", "failover: the timeline", "router/server/shard_server.cpp",
           "if (!other && server.timeline < timeline_)", "if (false)",
           ("tests/test_failover.py::test_a_former_primary_that_comes_back_is_not_used_again",)),
]


def run(argv, cwd, **env):
    return subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, **env})


def build(tree, part):
    """Builds what the mutant broke; a mutant that does not compile shows nothing."""
    target = "install" if part == "extension" else "all"
    made = run(["make", "-s", "-C", part, target], tree)
    if made.returncode != 0:
        raise RuntimeError(f"does not build:\n{made.stderr[-2000:]}")


def sound_text(mutant, tree):
    """The file that it changes; an error unless what it changes stands there once."""
    sound = (tree / mutant.path).read_text()
    for text in filter(None, (mutant.old, mutant.old_too)):
        if sound.count(text) != 1:
            raise RuntimeError(f"{mutant.path} holds its text {sound.count(text)} times, not once")
    return sound


def survives(mutant, tree):
    """Applies, builds, runs; returns the tests that did not notice."""
    path = tree / mutant.path
    sound = sound_text(mutant, tree)
    part = mutant.path.split("/")[0]
    broken = sound.replace(mutant.old, mutant.new)
    path.write_text(broken.replace(mutant.old_too, mutant.new_too) if mutant.old_too else broken)
    try:
        build(tree, part)
        unnoticed = []
        for test in mutant.tests:
            done = run(["/usr/bin/python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test], tree,
                       INTERLOCK_BIN=str(tree / "build/interlock"))
            if done.returncode not in (0, 1):  # 1: tests failed; else they did not run
                raise RuntimeError(f"{test} did not run:\n{done.stdout[-2000:]}")
            if done.returncode == 0:
                unnoticed.append(test)
        return unnoticed
    finally:
        path.write_text(sound)
        if part == "extension":
            build(tree, part)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="only whether each still fits the code; changes and runs nothing")
    args = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if args.list:
        for mutant in MUTANTS:
            print(f"{mutant.name:28} {mutant.row}")
        return 0
    if args.check:
        misfits = 0
        for mutant in MUTANTS:
            try:
                sound_text(mutant, ROOT)
            except (OSError, RuntimeError) as fault:
                misfits += 1
                print(f"{mutant.name}: {fault}")
        return 1 if misfits else 0
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no such mutant: {', '.join(unknown)}")
    chosen = [known[name] for name in args.names] or MUTANTS
    killed = failed = 0
    with tempfile.TemporaryDirectory(prefix="interlock-mutants-") as folder:
        os.chmod(folder, 0o755)  # the test instances may run as another user
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, copy_function=shutil.copy2,
                        ignore=shutil.ignore_patterns(".git", "var", "asan", "fuzz", "node_modules"))
        build(tree, "router")
        for mutant in chosen:
            try:
                unnoticed = survives(mutant, tree)
            except RuntimeError as fault:
                unnoticed = [str(fault)]
            failed += bool(unnoticed)
            killed += not unnoticed
            print(f"{'SURVIVED' if unnoticed else 'noticed '}  {mutant.name:28} {mutant.row}", flush=True)
            for line in unnoticed:
                print(f"          {line}", flush=True)
    print(f"{killed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
