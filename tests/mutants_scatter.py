#!/usr/bin/python3
"""Shows that the comparison of scatters with an unsharded database can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

GATHER = "tests/test_differential_gather.py::test_"
CASES = (f"{GATHER}hand_written_statements",)
GENERATED = (f"{GATHER}generated_statements_over_all_shards_give_what_an_unsharded_database_gives",)
ROUNDS = (f"{GATHER}thousands_of_groups_are_combined_in_several_rounds",)
BUDGET = (f"{GATHER}more_groups_than_the_budget_are_refused_before_the_first_row",)
WALKS = ("tests/test_differential_pages.py::test_walks_in_both_directions_show_the_same_pages",)
MERGE, SUMS = "router/session/scatter_aggregate.cpp", "router/session/scatter_partials.cpp"
ROWS, KEYS = "router/sql/scatter_rows.cpp", "router/sql/scatter_keys.cpp"
COLUMNS, ENGINE = "router/sql/scatter_aggregate.cpp", "router/session/scatter.cpp"
FACE = "router/session/pg_scatter.cpp"
SESSIONS = "tests/test_pg_scatter_sessions.py::test_"

mutants.MUTANTS = [
    Mutant("rows-of-others", "a scatter counts only rows of buckets the shard owns", ROWS,
           'insert(text_->from_end(), " WHERE " + filter);', 'insert(text_->from_end(), " WHERE true");\n        filter_ = false;',
           CASES),
    Mutant("condition-without-parentheses", "a scatter's filter binds the whole of WHERE", ROWS,
           'insert(where->offset, "(");\n    insert(where->end(), ") AND " + filter);', 'insert(where->end(), " AND " + filter);', CASES),
    Mutant("least-for-greatest", "max", MERGE, "key < extremes_[i]", "key > extremes_[i]", CASES),
    Mutant("first-shard-only", "partial sums of all shards", MERGE,
           "sums_->add(static_cast<std::uint32_t>(several_.size() - 1), first);", "(void)first;", CASES),
    Mutant("groups-apart", "rows of one group stand together", MERGE, "if (seen_ == 0 || key != key_)", "if (true)", CASES),
    Mutant("offset-off-by-one", "OFFSET counts groups", MERGE, "seen_ - bounds_.offset > *bounds_.limit", "seen_ - bounds_.offset >= *bounds_.limit",
           CASES),
    Mutant("budget-of-groups", "more groups than the budget", MERGE, "groups_.size() > bounds_.max_groups", "false", BUDGET),
    Mutant("one-batch-only", "groups are combined in rounds", SUMS, "if (asked_ == batches_.size()) return std::nullopt;",
           "if (asked_ == 1) return std::nullopt;", ROUNDS),
    Mutant("average-of-sums", "avg is the sum over the count", SUMS, 'sum += " OPERATOR(pg_catalog./) " + next(int8_oid);',
           'sum += " OPERATOR(pg_catalog./) (0 OPERATOR(pg_catalog.*) " + next(int8_oid) + " OPERATOR(pg_catalog.+) 1)";', CASES),
    Mutant("text-format", "the columns' formats are the client's", SUMS, "bind.int16(combination.format);", "bind.int16(combination.format & 0);",
           (f"{GATHER}hand_written_statements[binary]",)),
    Mutant("nulls-where-they-are-not", "NULLS FIRST and LAST in the merge", KEYS, "SORTBY_NULLS_FIRST : descending;", "SORTBY_NULLS_FIRST : false;",
           CASES),
    Mutant("filter-lost", "FILTER of a partial", COLUMNS, "std::string rest(text_->text(*arguments));",
           'std::string rest(text_->text(*arguments));\n    if (const auto at = rest.find(" FILTER"); at != rest.npos) rest.resize(at);', CASES),
    Mutant("limit-without-offset", "LIMIT + OFFSET rows of each shard", ROWS, "OPERATOR(pg_catalog.+) \" + skipped", "OPERATOR(pg_catalog.+) 0 * \" + skipped",
           GENERATED),
    Mutant("last-row-lost", "the first rows of the merge are the page", ENGINE, "if (extent.give && given >= *extent.give) co_return end();",
           "if (extent.give && given + 1 >= *extent.give) co_return end();", (GENERATED + WALKS)),
    Mutant("page-backwards-as-forwards", "a page before a cursor is the end of the merge", ENGINE, "whole = wish.backward ||", "whole =", WALKS),
    Mutant("no-back-pressure", "a slow client costs no memory", FACE,
           "if (out_.size() < out_limit || co_await make_room()) continue;", "if (true) continue;",
           (f"{SESSIONS}a_slow_client_gets_every_row_and_costs_no_memory",)),
    Mutant("failure-is-the-end", "an error behind rows", FACE,
           "refused = gave_up_.is_set() ? cancelled_by_client() : scatter.take_refusal();", "co_return true;",
           (f"{SESSIONS}a_shard_that_dies_in_mid_answer_is_an_error_and_not_a_short_page",)),
    Mutant("portal-keeps-shards", "a described portal holds nothing", FACE, "if (!scatter_open_) return;", "if (true) return;",
           ("tests/test_pg_scatter.py::test_a_portal_that_is_described_and_never_executed_holds_nothing",)),
    Mutant("any-isolation", "READ COMMITTED only", FACE, "if (in_block() && !block_reads_committed())", "if (false)",
           (f"{SESSIONS}a_transaction_with_one_snapshot_does_not",)),
    Mutant("deaf", "a client that leaves", FACE, "gone_ = true;\n    gave_up_.set();", "gone_ = true;",
           (f"{SESSIONS}a_client_that_leaves_leaves_nothing_behind",)),
    Mutant("no-prologue", "the transaction's settings", FACE, "request.prologue = scatter_prologue();", "",
           (f"{SESSIONS}a_transaction_that_is_not_on_a_shard_takes_them",)),
    Mutant("no-settings", "the session's settings", FACE,
           "request.parameters_in_force = in_block() ? block_->parameters : parameters_;", "",
           (f"{SESSIONS}settings_reach_every_shard",)),
    Mutant("other-columns", "columns as described", FACE, "return told != 0 && told !=", "return false && told !=",
           (f"{SESSIONS}columns_that_change_under_a_described_statement_are_told",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
