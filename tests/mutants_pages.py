#!/usr/bin/python3
"""Shows that the tests of pages over several shards can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

PAGES, LIMITS, FAILURES, SQL = (f"tests/test_scatter_{topic}.py::test_" for topic in ("pages", "limits", "failures", "sql"))
SCATTER, MERGE, CHECKS = (f"router/session/scatter{part}.cpp" for part in ("", "_merge", "_checks"))
DRAIN, FAN, STREAM, PAGE = (f"router/session/scatter_{part}.cpp" for part in ("drain", "fan", "stream", "page"))
LIES = f"{FAILURES}a_shard_whose_rows_cannot_be_right_fails_the_page"
SLOW = f"{LIMITS}a_shard_past_the_deadline_fails_the_page_and_its_connection_serves_on"
PARTIAL = f"{LIMITS}a_partial_page_names_the_shard_that_is_missing_and_has_no_cursor"

mutants.MUTANTS = [
    Mutant("merge-by-shard", "all rows, in the order of a full sort", MERGE, "order < 0 || (order == 0 && one < other)", "(order < 0 && false) || one < other",
           (f"{PAGES}a_walk_returns_every_row_once_in_order_with_one_statement_a_page_and_shard",)),
    Mutant("falling-keys", "a shard whose rows are not sorted", MERGE, "if (order > 0) return KeyFault::falls;", "", (LIES,)),
    Mutant("any-digest", "keys of another keyset", MERGE, "if (!key.starts_with(digest)) return KeyFault::digest;", "", (LIES,)),
    Mutant("equal-keys", "equal keys of two shards", SCATTER, "last != MergeOrder::none && order.key(stream) == last_key", "false",
           (f"{FAILURES}the_same_row_from_two_shards_fails_the_page",)),
    Mutant("other-columns", "shards that answer with other columns", SCATTER, "if (difference.empty()) continue;", "continue;",
           (f"{FAILURES}a_shard_that_answers_with_other_columns_fails_the_page",)),
    Mutant("other-declarations", "a keyset declared otherwise on a shard", CHECKS, "keyset->digest != first->digest", "false",
           (f"{FAILURES}a_keyset_that_is_declared_otherwise_on_a_shard_is_refused_before_anything_is_sent",)),
    Mutant("other-collations", "shards that sort texts otherwise", CHECKS,
           "shard.surroundings->collations() != shards[0].surroundings->collations()", "false",
           (f"{FAILURES}texts_are_sorted_together_only_by_shards_with_the_same_collations",)),
    Mutant("any-order", "ORDER BY without a unique key", CHECKS, "ordered && !shard.surroundings->unique_within(table, scatter.order_columns)",
           "false", (f"{SQL}what_cannot_be_answered_exactly_is_refused",)),
    Mutant("any-fan-out", "budgets: fan-out", SCATTER, "budget.max_fan_out != 0 && shards.size() > budget.max_fan_out", "false",
           (f"{LIMITS}a_fan_out_over_budget_is_refused_before_anything_is_sent",)),
    Mutant("any-page", "budgets: a page over the maximum, nothing sent", CHECKS, "if (size > max_page) {", "if (false) {",
           (f"{LIMITS}a_page_over_the_keysets_maximum_is_refused_before_anything_is_sent",)),
    Mutant("cursor-kept", "a partial page has no cursor", PAGE, "case Role::cursor: append32(out, null_length); break;",
           "case Role::cursor: append32(out, length); out.append(value); break;", (PARTIAL,)),
    Mutant("not-cancelled", "no lock waiter left", DRAIN, "co_await stream.lease_->cancel(until);", "",
           (SLOW,)),
    Mutant("connection-thrown-away", "the same connections serve on", DRAIN, "if (proven)\n        give_back(stream);\n    else",
           "if (proven && !cancelled)\n        give_back(stream);\n    else", (SLOW,)),
    Mutant("no-cancel", "a cancel in mid-page", FAN, "if (fired.has(1)) {\n        refusal_ = given_up();\n        co_return Wait::over;\n    }", "",
           (f"{FAILURES}a_cancel_in_mid_page_ends_it_on_all_shards_and_nobody_else_is_cancelled",)),
    Mutant("half-an-answer", "a shard that is gone in mid-answer", STREAM, "if (io == Io::closed) lost();\n            if (io == Io::ok) charge();\n            if",
           "if (io == Io::closed) { broken_ = ended_ = true; state_ = State::end; }\n            if (io == Io::ok) charge();\n            if",
           (f"{FAILURES}a_shard_that_is_gone_at_any_message_fails_the_page",),
           "if (!fired.has(0)) continue;\n        const Io io = backend.fill_now();\n        if (io == Io::closed) lost();",
           "if (!fired.has(0)) continue;\n        const Io io = backend.fill_now();\n        if (io == Io::closed) { broken_ = ended_ = true; state_ = State::end; }"),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
