"""Whatever is killed, and whenever: one shard owns the bucket, no row is lost or doubled, and nothing is left behind.

The matrix is made from `interlock move --steps`. In the suite each step has the mover killed and resumed, killed and
aborted, and one of the servers killed; INTERLOCK_SOAK=1 runs every server at every step, and both sides of a step.
"""

import pytest

from support.move_case import DECIDED, MOVED, POINTS, SOAK, STEPS, decided
from support.router import SLACK
from support.wait import wait_until

SERVERS = ["source and target", "source", "target", "catalog"]


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

RINGS = [(point, servers) for number, point in enumerate(POINTS) for place, servers in enumerate(SERVERS)
         if SOAK or number % len(SERVERS) == place]


@pytest.mark.parametrize(("point", "servers"), RINGS)
def test_servers_that_crash_under_a_mover_that_waits_are_no_harm(move_case, point, servers):
    """The mover goes on by itself, or ends with an error and is resumed."""
    mover = move_case.stopped_mover(point)
    move_case.crash(servers)
    mover.go_on().end(expect=None)
    if mover.process.returncode != 0:
        move_case.resume()
    move_case.settled(move_case.target)


@pytest.mark.parametrize(("point", "servers"), [(point, SERVERS[(number + 1) % 4]) for number, point in enumerate(POINTS) if SOAK or number % 4 == 0])
def test_everything_that_crashes_at_once_is_resumed(move_case, point, servers):
    mover = move_case.stopped_mover(point)
    mover.kill()
    move_case.crash(servers)
    move_case.resume()
    move_case.settled(move_case.target)


@pytest.mark.parametrize("point", [f"after-{step}" for step in STEPS[1:DECIDED:1 if SOAK else 4]])
def test_after_a_crash_of_both_shards_a_move_can_be_aborted(move_case, point):
    move_case.stopped_mover(point).kill()
    move_case.crash("source and target")
    move_case.cluster.abort()
    move_case.settled(move_case.source)


def test_a_dead_movers_fence_does_not_shut_the_bucket_for_ever(move_case):
    """Nobody resumes it: clients open the fence when its time is over, and write."""
    move_case.stopped_mover("after-fenced").kill()
    wait_until(lambda: move_case.cluster.states(MOVED)[move_case.source] == "owned", 60 * SLACK, "the fence has been opened by those who met it")
    move_case.load.progress(3)
    move_case.cluster.abort()
    move_case.settled(move_case.source)
