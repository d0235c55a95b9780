"""Whatever is killed, and whenever: one shard owns the bucket, no row is lost or doubled, and nothing is left behind.

The matrix is made from `interlock move --steps`. In the suite each step has the mover killed and resumed, killed and
aborted, and some of the servers killed, in turn; around the decision those that matter most. INTERLOCK_SOAK=1 runs all
servers at all steps, with the mover alive and dead, and both sides of a step.
"""

import pytest

from support.move_case import DECIDED, MOVED, POINTS, SOAK, STEPS, decided
from support.router import SLACK
from support.wait import wait_until

SHARDS = "source and target"
SERVERS = [SHARDS, "source", "target", "catalog"]


def in_turn(points, always=(), every=1):
    """Points with servers that crash there: of each `every`-th point others than of the one before, and `always`."""
    if SOAK:
        return [(point, servers) for point in points for servers in SERVERS]
    chosen = [(point, SERVERS[number % len(SERVERS)]) for number, point in enumerate(points[::every])]
    return chosen + [pair for pair in always if pair not in chosen]


def test_the_matrix_is_made_of_the_steps_that_the_mover_has():
    assert STEPS.index("prepared") < STEPS.index("copied") < STEPS.index("fenced") < STEPS.index("waited") \
        < STEPS.index("drained") < STEPS.index("decided") < STEPS.index("activated") < STEPS.index("routed") < STEPS.index("cleaned")
    assert STEPS[-1] == "done" and len(STEPS) == len(set(STEPS))


# --- the mover ------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_a_mover_that_was_killed_is_resumed_by_the_same_command(move_case, point):
    move_case.stopped_mover(point).kill()
    move_case.load.progress(1, "near", "far")
    move_case.resume()
    move_case.settled(move_case.target)
    move_case.load.history.no_failures()


@pytest.mark.parametrize("point", POINTS)
def test_a_mover_that_was_killed_is_aborted_before_the_decision_and_only_then(move_case, point):
    move_case.stopped_mover(point).kill()
    if decided(point):
        move = move_case.cluster.move_id()
        done = move_case.cluster.abort(move, expect=1)
        assert "decided" in done.stdout + done.stderr or "published" in done.stdout + done.stderr
        move_case.resume()
        move_case.settled(move_case.target)
    else:
        move_case.cluster.abort()
        move_case.settled(move_case.source)


# --- the servers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("point", "servers"), in_turn(POINTS, [("after-decided", "source"), ("after-activated", "source")]))
def test_servers_that_crash_under_a_mover_that_waits_are_no_harm(move_case, point, servers):
    """The mover goes on by itself, or ends with an error and is resumed."""
    mover = move_case.stopped_mover(point)
    move_case.crash(servers)
    mover.go_on().end(expect=None)
    if mover.process.returncode != 0:
        move_case.resume()
    move_case.settled(move_case.target)


@pytest.mark.parametrize(("point", "servers"), in_turn(POINTS, [(f"after-{step}", SHARDS) for step in ("decided", "activated", "routed")], every=4))
def test_everything_that_crashes_at_once_is_resumed(move_case, point, servers):
    mover = move_case.stopped_mover(point)
    mover.kill()
    move_case.crash(servers)
    move_case.resume()
    move_case.settled(move_case.target)


@pytest.mark.parametrize("point", [f"after-{step}" for step in STEPS[1:DECIDED:1 if SOAK else 4]])
def test_after_a_crash_of_both_shards_a_move_can_be_aborted(move_case, point):
    move_case.stopped_mover(point).kill()
    move_case.crash(SHARDS)
    move_case.cluster.abort()
    move_case.settled(move_case.source)


def test_a_dead_movers_fence_does_not_shut_the_bucket_for_ever(move_case):
    """Nobody resumes it: clients open the fence when its time is over, and write."""
    move_case.stopped_mover("after-fenced").kill()
    wait_until(lambda: move_case.cluster.states(MOVED)[move_case.source] == "owned", 60 * SLACK, "the fence has been opened by those who met it")
    move_case.load.progress(3)
    move_case.cluster.abort()
    move_case.settled(move_case.source)
