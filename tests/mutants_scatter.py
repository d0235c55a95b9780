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
]

if __name__ == "__main__":
    sys.exit(mutants.main())
