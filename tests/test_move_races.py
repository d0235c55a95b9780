"""Two movers at once, movers that wake up late, fences that expire at the wrong moment, clocks that are wrong, full disks."""

import os
import subprocess
import threading
from pathlib import Path
from random import Random

import pytest

import support
from support.move_case import DECIDED, MOVED, POINTS, SOAK, STEPS, decided
from support.placement import keys_in_bucket
from support.router import SLACK
from support.wait import wait_until


# --- two movers -----------------------------------------------------------------------------------


def test_the_same_command_twice_at_once_moves_once(move_case):
    both = [move_case.cluster.mover(*move_case.command) for _ in range(2)]
    ends = [mover.process.wait(90 * SLACK) for mover in both]
    assert 0 in ends and set(ends) <= {0, 1}, [mover.text() for mover in both]
    move_case.settled(move_case.target)


def test_two_movers_to_different_shards_one_is_refused(make_moving):
    cluster = make_moving(shards=3).up()
    cluster.fill(moved=MOVED)
    with cluster.load(3, pause=0.005) as load:
        movers = {shard: cluster.moving(MOVED, shard) for shard in ("s1", "s2")}
        ends = {shard: mover.process.wait(90 * SLACK) for shard, mover in movers.items()}
        assert sorted(ends.values()) == [0, 1], {shard: mover.text() for shard, mover in movers.items()}
        load.progress(2)
    assert cluster.where(MOVED) == next(shard for shard, status in ends.items() if status == 0)
    load.history.no_failures()
    load.history.check(cluster.rows())
    cluster.assert_settled()


def lose_the_lock(cluster):
    """The mover's session on the catalog ends, as after a crash of the network: others may take the move over."""
    cluster.catalog.sql("SELECT pg_terminate_backend(l.pid, 10000) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted")


SLEEPERS = ([(point, end) for point in POINTS for end in ("resumed", "aborted") if end == "resumed" or not decided(point)] if SOAK else
            [("after-subscribed", "resumed"), ("after-waited", "resumed"), ("after-verified", "resumed"), ("after-decided", "resumed"),
             ("after-activated", "resumed"), ("after-slot", "aborted"), ("after-announced", "aborted"), ("after-fenced", "aborted"),
             ("after-verified", "aborted")])


@pytest.mark.parametrize(("point", "end"), SLEEPERS)
def test_a_mover_that_sleeps_while_another_ends_its_move_does_no_harm(move_case, point, end):
    """Its sessions on the shards are still open when it wakes up."""
    sleeper = move_case.stopped_mover(point)
    refused = move_case.cluster.move(MOVED, move_case.target, expect=None)
    assert refused.returncode == 1 and "move" in refused.stderr, "it is at work, and only asleep"
    lose_the_lock(move_case.cluster)
    if end == "aborted":
        move_case.cluster.abort()
        owner = move_case.source
    else:
        move_case.resume()
        owner = move_case.target
    sleeper.go_on().end(expect=None)
    move_case.settled(owner)


# --- the fence's deadline -------------------------------------------------------------------------


EXPIRE = ("UPDATE interlock.bucket_state SET until = clock_timestamp() WHERE state = 'fenced';"
          "UPDATE interlock.handoff SET until = clock_timestamp() WHERE state = 'fenced'")


def expire(server):
    """The fence's time is over, by the only clock that counts: the row says until when."""
    server.sql(EXPIRE)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("step", STEPS[STEPS.index("fenced"):DECIDED] if STEPS else [])
def test_a_fence_that_has_expired_decides_nothing(move_case, step, opened):
    """The mover comes too late; it fences again, or gives up. Nobody has opened the fence, or somebody has."""
    mover = move_case.stopped_mover(f"after-{step}")
    source = move_case.cluster.instances[move_case.source]
    expire(source)
    if opened:
        source.sql("SELECT interlock.expire_fences()", user="app")
        move_case.load.progress(1)
    mover.go_on().end(expect=None)
    if mover.process.returncode != 0:
        move_case.resume()
    move_case.settled(move_case.target)
    move_case.load.history.no_failures()


def test_expiry_and_decision_at_the_same_moment_have_one_winner(move_case):
    """As soon as the marker is written, every other fence expires and is opened: while the mover is about to decide."""
    cluster, stop, seen = move_case.cluster, threading.Event(), []
    dice = Random(7)

    def open_fences():
        sessions = [cluster.instances[shard].connect() for shard in cluster.shards]
        while not stop.is_set():
            for session in sessions:
                for fence in session.execute("SELECT h.move_id, h.fence FROM interlock.handoff h JOIN interlock.move_marker m"
                                             " USING (move_id, fence) WHERE h.state = 'fenced'").fetchall():
                    if fence not in seen:
                        seen.append(fence)
                        if dice.random() < 0.5:
                            session.execute(EXPIRE)
                            session.execute("SELECT interlock.expire_fences()")
        for session in sessions:
            session.close()

    racer = threading.Thread(target=open_fences)
    racer.start()
    try:
        for _ in range(20 if SOAK else 4):
            cluster.move(MOVED, cluster.other(MOVED))
    finally:
        stop.set()
        racer.join(30)
    assert len(seen) >= 4
    move_case.settled(cluster.where(MOVED))


# --- clocks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def misfortune(session_folder):
    """The library of support/misfortune.c, as environment of a process with these variables."""
    library = session_folder / "misfortune.so"
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", library, Path(support.__file__).parent / "misfortune.c",
                    "-ldl"], check=True)
    library.chmod(0o755)
    return lambda **variables: {"LD_PRELOAD": str(library), **{name: str(value) for name, value in variables.items()}}


CLOCKS = ([(who, seconds) for who in ("mover", "s0", "s1", "cat") for seconds in (-7200, 7200)] if SOAK else
          [("mover", 7200), ("s0", 7200), ("s1", -7200)])


@pytest.mark.parametrize(("who", "seconds"), CLOCKS)
def test_wrong_clocks_are_no_harm(make_moving, misfortune, who, seconds):
    """Deadlines are judged where they are written, by one clock."""
    cluster = make_moving()
    env = misfortune(CLOCK_SHIFT=seconds)
    if who != "mover":
        cluster.instances[who].env = env
    cluster.up()
    if who != "mover":
        away = abs((cluster.instances[who].value("SELECT extract(epoch FROM clock_timestamp() - %s::timestamptz)::float8",
                                                 cluster.instances["cat" if who != "cat" else "s0"].value("SELECT clock_timestamp()"))))
        assert 7000 < away < 7400, "its clock is wrong"
    cluster.fill(moved=MOVED)
    with cluster.load(3, pause=0.005) as load:
        for shard in ("s1", "s0"):
            cluster.move(MOVED, shard, env=env if who == "mover" else None)
            load.progress(2)
        # A dead mover's fence is opened by the clock of the server that has it.
        mover = cluster.moving(MOVED, "s1", stop="after-fenced", env=env if who == "mover" else None).stopped()
        mover.kill()
        left = cluster.s0.value("SELECT extract(epoch FROM until - clock_timestamp())::float8 FROM interlock.bucket_state WHERE state = 'fenced'")
        assert 0 < left < 120
        wait_until(lambda: cluster.states(MOVED)["s0"] == "owned", 60 * SLACK, "the fence has been opened")
        cluster.abort()
    load.history.check(cluster.rows())
    cluster.assert_settled()


# --- no room --------------------------------------------------------------------------------------


@pytest.fixture
def crowded(make_moving, misfortune):
    """A cluster whose s1 has a full disk as long as the file `crowded.full` exists."""
    # What the apply worker meets is to be seen in the log.
    cluster = make_moving(shard_settings={"log_min_messages": "warning"})
    full = cluster.base / "full"
    cluster.full = full
    cluster.s1.env = misfortune(FULL_DISK=full)
    cluster.up()
    cluster.fill(moved=MOVED)
    yield cluster
    full.unlink(missing_ok=True)


def insert_many(cluster, count=3000):
    cluster.s0.sql("INSERT INTO posting (account_id, token, amount) SELECT k, 0, 0 FROM generate_series(1, %s),"
                   " unnest(%s::bigint[]) k", count, keys_in_bucket(MOVED, 1))


@pytest.mark.parametrize("end", ["resumed", "aborted"])
def test_a_copy_into_a_full_disk_fails_and_can_be_gone_on_with_or_aborted(crowded, end):
    insert_many(crowded)
    crowded.full.touch()
    crowded.full.chmod(0o644)
    done = crowded.move(MOVED, "s1", expect=1)
    assert "No space left on device" in done.stdout + done.stderr
    crowded.pg_client().ok(f"UPDATE account SET balance = 7 WHERE account_id = {keys_in_bucket(MOVED, 1)[0]}")
    if end == "aborted":
        # Taking things away needs no room.
        crowded.abort()
        assert crowded.where(MOVED) == "s0"
        crowded.assert_settled()
    crowded.full.unlink()
    crowded.move(MOVED, "s1")
    assert crowded.s1.value("SELECT count(*) FROM posting") == 3000
    crowded.assert_settled()


def test_changes_that_find_no_room_at_the_target_hold_the_move_up_and_nobody_else(crowded):
    """The subscription cannot get on: no fence, and the mover says why it does not."""
    mover = crowded.moving(MOVED, "s1", stop="after-subscribed").stopped()
    crowded.full.touch()
    crowded.full.chmod(0o644)
    insert_many(crowded)
    mover.go_on()
    wait_until(lambda: "No space left on device" in crowded.s1.log.read_text(errors="replace"), 30 * SLACK, "apply finds the disk full")
    assert crowded.states(MOVED)["s0"] == "owned", "what cannot follow is not fenced"
    crowded.pg_client().ok(f"UPDATE account SET balance = 7 WHERE account_id = {keys_in_bucket(MOVED, 1)[0]}")
    crowded.full.unlink()
    mover.end(expect=None)
    if mover.process.returncode != 0:
        crowded.move(MOVED, "s1")
    assert crowded.s1.value("SELECT count(*) FROM posting") == 3000
    crowded.assert_settled()
