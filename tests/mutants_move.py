#!/usr/bin/python3
"""Shows that the tests of how `interlock move` carries a move out can fail: as mutants.py (same options)."""

import sys

import mutants
from mutants import Mutant

MOVE, CRASH, RACES = (f"tests/test_{name}.py::test_" for name in ("move", "move_crash", "move_races"))
SWITCH, CLEAN, ABORT, FOLLOW, RUN = (f"router/tools/move_{part}.cpp" for part in ("switch", "clean", "abort", "follow", "run"))
UNCOMPARED = f"{MOVE}a_mover_that_is_killed_before_it_compared_leaves_that_to_be_looked_at"

mutants.MUTANTS = [
    Mutant("lost-slot-unseen", "a slot that has gone", FOLLOW, "if (!slot.exists || slot.lost)", "if (slot.lost)",
           (f"{MOVE}a_lost_slot_makes_the_move_copy_again",)),
    Mutant("any-marker", "the marker of this fence", SWITCH, '"WHERE m.move_id = $1 AND m.fence = $2)"', '"WHERE m.move_id = $1 AND $2 = $2)"',
           (f"{MOVE}the_marker_of_an_earlier_fence_says_nothing",)),
    Mutant("no-difference", "both sides are compared", SWITCH, "if (!comparison.equal) throw MoveDiffers", "if (false) throw MoveDiffers",
           (f"{MOVE}sides_that_differ_before_the_decision_end_the_move",)),
    Mutant("sessions-live-on", "--end-sessions", SWITCH, "if (!holders.empty() && request_.end_sessions && end_sessions(holders))", "if (false)",
           (f"{MOVE}sessions_that_hold_the_fence_up_are_ended_if_told_to",)),
    Mutant("fence-left", "a try that came to nothing leaves nothing", SWITCH, "    if (result) {\n        verifier_.release();\n        give_up();",
           "    if (result) {\n        verifier_.release();", (f"{MOVE}an_open_transaction_holds_the_fence_up_and_nothing_is_changed",)),
    Mutant("always-compared", "what is to be compared is known", SWITCH, '"({"verify": "after"})"', '"({"verify": "before"})"', (f"{UNCOMPARED}[after-routed]",)),
    Mutant("never-mind-the-comparison", "rows that nobody compared stay", RUN, "if (record_->read().step == name_of(MoveStep::routed)) require", "if (false) require",
           (f"{UNCOMPARED}[after-routed]", f"{MOVE}sides_that_differ_after_the_decision_are_left_to_be_looked_at")),
    Mutant("kept-in-spite", "--clean ID", CLEAN, "if (!now && rows_are_to_be_kept()) return false;", "if (rows_are_to_be_kept()) return false;",
           (f"{MOVE}the_sources_rows_are_kept_for_ever",)),
    Mutant("nobody-looks-back", "older transactions", CLEAN, "if (rows.empty()) return true;", "return true;",
           (f"{MOVE}nothing_is_deleted_while_somebody_can_see_it",)),
    Mutant("target-rows-left", "an aborted move leaves no rows", CLEAN, "        delete_rows(target, session_.to());\n", "",
           (f"{CRASH}a_mover_that_was_killed_is_aborted_before_the_decision_and_only_then[after-copied]",)),
    Mutant("resume-for-kept-rows", "--abort of a move that keeps rows", ABORT, "step >= MoveStep::unsubscribed ||", "",
           ("tests/test_move_command.py::test_rows_can_be_kept_at_the_source_until_they_are_cleaned_away",)),
    Mutant("sleeper-may-decide", "a mover that sleeps", ABORT, "if (source.known)", "if (false)",
           (f"{RACES}a_mover_that_sleeps_while_another_ends_its_move_does_no_harm[after-fenced-aborted]",)),
    Mutant("cleaned-by-the-way", "--clean without an ID", ABORT, "(MoveStep::planned) >= MoveStep::unsubscribed)", "(MoveStep::planned) >= MoveStep::routed)",
           (f"{UNCOMPARED}[after-routed]",)),
    Mutant("all-driven-forward", "apply meets a move", ABORT, '        if (source.state == "decided") {', "        if (true) {",
           (f"{MOVE}apply_ends_what_is_half_published[announced-False]",)),
]

if __name__ == "__main__":
    sys.exit(mutants.main())
