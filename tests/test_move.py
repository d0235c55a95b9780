"""`interlock move`: a move from beginning to end, and what it leaves."""

import signal
import time

import psycopg
import pytest

from support.moving import MovingCluster
from support.placement import keys_in_bucket
from support.wait import wait_until


@pytest.fixture(scope="module")
def moving_cluster(owner, new_folder, router_binary):
    made = MovingCluster(new_folder("test_move"), owner)
    try:
        yield made.up()
    finally:
        made.down()


@pytest.fixture
def moving(moving_cluster):
    yield moving_cluster
    moving_cluster.end_test()
    moving_cluster.restore()


def content(moving):
    return {name: sorted(rows) for name, rows in vars(moving.rows()).items()}


def test_a_move_of_an_idle_bucket(moving):
    moving.fill(one=3, other=5)
    before = content(moving)
    moving.move(3, "s0")
    moving.assert_settled()
    assert content(moving) == before


# -- what holds a move up ------------------------------------------------------------------------


def open_write(moving, bucket=3, shard="s1"):
    """A transaction that has written a row of the bucket, and stays open."""
    session = moving.connect(shard, autocommit=False)
    session.execute("UPDATE account SET balance = balance WHERE account_id = %s", (moving.groups["one"][0],))
    return session


def test_a_publication_that_takes_its_time_is_waited_for(moving):
    """As "interlock apply" holds the cluster's lock while it guards large tables."""
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--timeout", "3s", stop="after-caught_up").stopped()
    with moving.catalog.connect(autocommit=False) as session:
        session.execute("SELECT interlock.lock_cluster()")
        mover.go_on()
        wait_until(lambda: "trying again" in mover.text() or not mover.running(), 30, "the mover meets the lock")
        session.rollback()
    mover.end()
    moving.assert_settled()
    assert content(moving) == before


@pytest.mark.parametrize("killed", [False, True], ids=["at-once", "by-another-mover"])
def test_tables_that_change_before_ddl_is_refused_are_seen(moving, killed):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", stop="after-planned").stopped()
    moving.instances["s1"].sql("ALTER TABLE posting ADD COLUMN note text")
    if killed:
        mover.kill()
        mover = moving.moving(3, "s0")
    else:
        mover.go_on()
    said = mover.end(1)
    assert "column note" in said and "the tables have changed since they were checked" in said, said
    moving.abort()
    moving.instances["s1"].sql("ALTER TABLE posting DROP COLUMN note")
    moving.assert_settled()
    assert content(moving) == before


def test_a_decided_move_is_carried_on_when_somebody_holds_the_targets_state(moving):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--lock-timeout", "300ms", stop="after-decided").stopped()
    with moving.connect("s0", autocommit=False) as session:
        session.execute("SELECT interlock.require_shard()")
        mover.go_on()
        wait_until(lambda: "trying again" in mover.text() or not mover.running(), 30, "the mover meets the lock")
        session.rollback()
    mover.end()
    assert moving.states(3)["s0"] == "owned"
    moving.assert_settled()
    assert content(moving) == before


def test_an_open_transaction_holds_the_fence_up_and_nothing_is_changed(moving):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--tries", 2, "--max-pause", "300ms", stop="after-caught_up").stopped()
    session = open_write(moving)
    assert f"process {session.info.backend_pid}" in mover.go_on().end(expect=3)
    assert moving.states(3) == {"s0": "importing", "s1": "owned"}
    assert moving.catalog.value("SELECT reserved_version IS NULL FROM interlock.cluster")
    # The bucket is open, the transaction goes on, and what it writes is followed.
    session.execute("UPDATE account SET owner = 'late' WHERE account_id = %s", (moving.groups["one"][1],))
    session.commit()
    moving.move(3, "s0")
    moving.assert_settled()
    assert content(moving) == before
    assert moving.s0.value("SELECT owner FROM account WHERE account_id = %s", moving.groups["one"][1]) == "late"


def test_sessions_that_hold_the_fence_up_are_ended_if_told_to(moving):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--max-pause", "1s", "--end-sessions", stop="after-caught_up").stopped()
    session = open_write(moving)
    mover.go_on().end()
    moving.assert_settled()
    assert content(moving) == before
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")


def test_a_prepared_transaction_is_named(moving):
    moving.fill(one=3, other=5)
    mover = moving.moving(3, "s0", "--tries", 1, "--max-pause", "300ms", "--end-sessions", stop="after-caught_up").stopped()
    session = open_write(moving)
    session.execute("PREPARE TRANSACTION 'forgotten'")
    said = mover.go_on().end(expect=3)
    assert "forgotten" in said
    moving.s1.sql("ROLLBACK PREPARED 'forgotten'")
    moving.move(3, "s0")
    moving.assert_settled()


def test_a_fence_that_expires_before_the_decision_is_set_again(moving):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--max-pause", "200ms", stop="before-decided").stopped()
    wait_until(lambda: moving.s1.value("SELECT expired FROM interlock.handoffs"), 15, "the fence expires")
    moving.s1.sql("SELECT interlock.expire_fences()")
    moving.s1.sql("UPDATE account SET owner = 'between' WHERE account_id = %s", moving.groups["one"][0])
    let_it_end(mover)
    moving.assert_settled()
    assert content(moving) == before
    assert moving.s0.value("SELECT owner FROM account WHERE account_id = %s", moving.groups["one"][0]) == "between"


def test_the_marker_of_an_earlier_fence_says_nothing(moving):
    moving.fill(one=3, other=5)
    key = moving.groups["one"][0]
    moving.moving(3, "s0", stop="after-drained").stopped().kill()
    mover = moving.moving(3, "s0", "--verify", "after", "--tries", 1, "--max-pause", "1s", stop="before-announced").stopped()
    assert moving.s0.value("SELECT count(*) FROM interlock.move_marker") == 1
    # What is written now cannot come.
    with moving.connect("s0", autocommit=False) as holder:
        holder.execute("LOCK TABLE account IN SHARE ROW EXCLUSIVE MODE")
        moving.s1.sql("UPDATE account SET owner = 'late' WHERE account_id = %s", key)
        assert "was not up to date in time" in mover.go_on().end(expect=3)
        holder.rollback()
    assert moving.where(3) == "s1"
    moving.move(3, "s0")
    moving.assert_settled()
    assert moving.s0.value("SELECT owner FROM account WHERE account_id = %s", key) == "late"


# -- who asks the mover to end -------------------------------------------------------------------

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("step", ["announced", "fenced", "drained", "decided"])
def test_a_mover_that_is_told_to_end_hands_over_first_when_it_has_begun_to(moving, step, number):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", stop=f"after-{step}").stopped()
    told_to_end(mover, number)
    assert moving.states(3) == {"s0": "owned", "s1": "moved"} and moving.where(3) == "s0" and moving.step() == "routed"
    assert moving.catalog.value("SELECT reserved_version IS NULL FROM interlock.cluster")
    moving.move(3, "s0")
    moving.assert_settled()
    assert content(moving) == before


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_mover_that_is_told_to_end_and_is_held_up_opens_the_fence_first(moving, number):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--max-pause", "1s", stop="before-fenced").stopped()
    session = open_write(moving)
    told_to_end(mover, number)
    # Not left to its deadline, nor to somebody who wants to write.
    assert moving.states(3) == {"s0": "importing", "s1": "owned"}
    assert moving.s1.value("SELECT state FROM interlock.handoffs") == "begun"
    assert moving.catalog.value("SELECT reserved_version IS NULL AND reserved_move IS NULL FROM interlock.cluster")
    session.execute("UPDATE account SET balance = balance WHERE account_id = %s", (moving.groups["one"][1],))
    session.commit()
    moving.abort()
    moving.assert_settled()
    assert content(moving) == before


def told_to_end(mover, number):
    mover.process.send_signal(number)
    mover.go_on()
    assert mover.process.wait(60) == -number, mover.text()


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_second_mover_of_the_same_move_is_refused(moving):
    moving.fill(one=3, other=5)
    first = moving.moving(3, "s0", stop="after-copied").stopped()
    said = moving.move(3, "s0", "--timeout", "1s", expect=1)
    assert "another mover is at work" in said.stderr
    first.go_on().end()
    moving.assert_settled()


def test_a_lost_slot_makes_the_move_copy_again(moving):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", stop="before-caught_up").stopped()
    ((name,),) = moving.s0.sql("SELECT subname FROM pg_subscription")
    moving.s0.sql(f"ALTER SUBSCRIPTION {name} DISABLE")
    wait_until(lambda: not moving.s1.value("SELECT active FROM pg_replication_slots"), 15, "the slot is free")
    moving.s1.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    moving.s1.sql("UPDATE account SET owner = 'unseen' WHERE account_id = %s", moving.groups["one"][0])
    assert "copied again" in let_it_end(mover)
    moving.assert_settled()
    assert content(moving) == before
    assert moving.s0.value("SELECT owner FROM account WHERE account_id = %s", moving.groups["one"][0]) == "unseen"


@pytest.mark.parametrize("step, shard", [("copied", "s0"), ("drained", "s1"), ("decided", "s0")])
def test_a_shard_that_crashes_is_waited_for(moving, step, shard):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", stop=f"after-{step}").stopped()
    moving.instances[shard].restart("immediate")
    let_it_end(mover)
    moving.assert_settled()
    assert content(moving) == before


def let_it_end(mover):
    """On from its stop, which it may come to again."""
    def ended():
        if mover.running() and mover.is_stopped():
            mover.go_on()
        return not mover.running()
    wait_until(ended, 60, "the mover ends")
    return mover.end()


# What a fault of replication would leave at the target: a statement there -> what is told of it. As many rows on both sides
# are not enough.
FORGED = {
    "a row is missing": ("DELETE FROM account WHERE account_id = {}", "6 rows at the source, 5 at the target."),
    "a column differs": ("UPDATE account SET owner = 'forged' WHERE account_id = {}",
                         "6 rows at the source, 6 at the target, which are not the same."),
    "a null differs": ("UPDATE account SET version = NULL WHERE account_id = {}",
                       "6 rows at the source, 6 at the target, which are not the same."),
}


@pytest.fixture(params=FORGED, ids=lambda name: name.replace(" ", "-"))
def forged(request, moving):
    """A function that changes a row at the target by itself and returns what a comparison has to say."""
    statement, told = FORGED[request.param]

    def forge():
        moving.s0.sql("SET interlock.moving_rows = on; SET session_replication_role = replica; "
                      + statement.format(moving.groups["one"][0]))
        return "Bucket 3 of table public.account: " + told

    return forge


def test_sides_that_differ_before_the_decision_end_the_move(moving, forged):
    moving.fill(one=3, other=5)
    before = content(moving)
    mover = moving.moving(3, "s0", "--verify", "before", stop="before-announced").stopped()
    told = forged()
    assert told in mover.go_on().end(expect=1)
    moving.assert_settled()
    assert content(moving) == before
    assert moving.where(3) == "s1"
    assert moving.catalog.value("SELECT outcome FROM interlock.moves ORDER BY began DESC LIMIT 1") == "aborted"


def test_sides_that_differ_after_the_decision_are_left_to_be_looked_at(moving, forged):
    moving.fill(one=3, other=5)
    mover = moving.moving(3, "s0", "--verify", "after", stop="before-announced").stopped()
    told = forged()
    assert told in mover.go_on().end(expect=1)
    assert moving.where(3) == "s0"
    assert moving.s1.value("SELECT count(*) FROM account WHERE interlock.bucket_of('accounts', account_id) = 3") == 6
    # The same command does not clean up either; told to, it does.
    assert "are not those" in moving.mover("--resume", moving.move_id()).end(expect=1)
    moving.mover("--clean", moving.move_id()).end()
    moving.assert_settled()


@pytest.mark.parametrize("point", ["after-decided", "after-routed"])
def test_a_mover_that_is_killed_before_it_compared_leaves_that_to_be_looked_at(moving, point):
    moving.fill(one=3, other=5)
    before = content(moving)
    moving.moving(3, "s0", "--verify", "after", stop=point).stopped().kill()
    identity = moving.move_id()
    for _ in range(2):
        done = moving.move(3, "s0", "--verify", "after", expect=1)
        assert "ERROR:  the rows on shard \"s0\" were not compared with those on shard \"s1\"\n" in done.stderr, done.stderr
        assert f"interlock move --clean {identity}." in done.stderr and "verified" not in done.stdout
        assert moving.where(3) == "s0" and rows_left(moving) == 6
    assert "stopped by: the rows on shard \"s0\" were not compared" in moving.mover("--status").end()
    # Not by the way, either.
    assert "no move has rows to remove" in moving.mover("--clean").end()
    assert rows_left(moving) == 6
    moving.mover("--clean", identity).end()
    moving.assert_settled()
    assert content(moving) == before


def test_a_mover_that_is_killed_when_it_has_compared_is_gone_on_with(moving):
    moving.fill(one=3, other=5)
    moving.moving(3, "s0", "--verify", "after", stop="before-unsubscribed").stopped().kill()
    moving.move(3, "s0")
    moving.assert_settled()
    # The next one compares before.
    moving.moving(3, "s1", "--verify", "before", stop="after-routed").stopped().kill()
    moving.move(3, "s1")
    moving.assert_settled()


# -- cleaning up ---------------------------------------------------------------------------------


def rows_left(moving):
    return moving.s1.value("SELECT count(*) FROM account WHERE interlock.bucket_of('accounts', account_id) = 3")


def test_the_sources_rows_are_kept_for_as_long_as_told(moving):
    moving.fill(one=3, other=5)
    moving.move(3, "s0", "--keep-source", "3s")
    assert rows_left(moving) == 6 and moving.step() == "unsubscribed"
    # Nothing follows any more.
    assert not moving.s1.value("SELECT count(*) FROM pg_replication_slots")
    moving.mover("--clean").end()
    wait_until(lambda: moving.mover("--clean").end() is not None and rows_left(moving) == 0, 15, "they are cleaned up")
    moving.assert_settled()


def test_the_sources_rows_are_kept_for_ever(moving):
    moving.fill(one=3, other=5)
    moving.move(3, "s0", "--keep-source", "forever")
    again = moving.move(3, "s0", "--keep-source", "1h", expect=1)
    assert "was begun without this --keep-source" in again.stderr, again.stderr
    moving.mover("--clean").end()
    assert rows_left(moving) == 6
    moving.mover("--clean", moving.move_id()).end()
    assert rows_left(moving) == 0
    moving.assert_settled()


def test_nothing_is_deleted_while_somebody_can_see_it(moving):
    moving.fill(one=3, other=5)
    reader = moving.connect("s1", autocommit=False)
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    mover = moving.moving(3, "s0", stop="before-decided").stopped()
    reader.execute("SELECT count(*) FROM account")
    mover.go_on()
    wait_until(lambda: moving.step() == "unsubscribed", 30, "it has been handed over")
    wait_until(lambda: f"process {reader.info.backend_pid}" in mover.text(), 30, "the mover names the reader")
    assert rows_left(moving) == 6
    reader.rollback()
    mover.end()
    assert rows_left(moving) == 0
    moving.assert_settled()


# -- copying -------------------------------------------------------------------------------------


def test_a_copy_is_as_slow_as_told_and_what_a_killed_one_has_left_is_no_hindrance(moving):
    moving.fill(one=keys_in_bucket(3, 600), other=5)
    moving.s1.sql("UPDATE account SET owner = repeat('x', 1000) WHERE interlock.bucket_of('accounts', account_id) = 3")
    before = content(moving)
    began = time.monotonic()
    mover = moving.moving(3, "s0", "--rate", 100)
    # The copy is committed as it goes on.
    wait_until(lambda: there(moving) > 0, 30, "rows are there")
    count, seconds = there(moving), time.monotonic() - began
    mover.kill()
    assert count < 600 and count <= 100 * seconds + 100
    moving.move(3, "s0")
    moving.assert_settled()
    assert content(moving) == before
    assert moving.s0.value("SELECT count(*) FROM account WHERE length(owner) = 1000") == 600


def there(moving):
    return moving.s0.value("SELECT count(*) FROM account WHERE interlock.bucket_of('accounts', account_id) = 3")


def test_several_buckets_are_one_move(moving):
    moving.fill(one=3, two=7, other=5)
    before = content(moving)
    version = moving.catalog.value("SELECT route_version FROM interlock.cluster")
    moving.move("3,7", "s0")
    moving.assert_settled()
    assert content(moving) == before and moving.where(3) == moving.where(7) == "s0"
    assert moving.catalog.value("SELECT route_version FROM interlock.cluster") == version + 1
    # And back at once.
    moving.move("3,7", "s1")
    moving.assert_settled()
    assert content(moving) == before and moving.where(3) == moving.where(7) == "s1"


def test_a_target_that_takes_no_more_ends_the_copy_at_once(moving):
    moving.fill(one=keys_in_bucket(3, 300), other=5)
    moving.s1.sql("UPDATE account SET owner = repeat('x', 1000) WHERE interlock.bucket_of('accounts', account_id) = 3")
    mover = moving.moving(3, "s0", "--rate", 25, stop="before-copied").stopped()
    # A row that an earlier stay has left would look like this.
    moving.s0.sql("SET interlock.moving_rows = on; SET session_replication_role = replica; "
                  f"INSERT INTO account VALUES ({moving.groups['one'][0]}, 'left', 1, 1)")
    began = time.monotonic()
    said = mover.go_on().end(expect=1)
    # All of them would take twelve seconds.
    assert time.monotonic() - began < 9
    assert "copying table public.account: duplicate key" in said
    moving.abort()
    moving.assert_settled()


# -- apply meets a move that has reserved the next number ----------------------------------------


@pytest.mark.parametrize("step, driven", [("announced", False), ("fenced", False), ("drained", False), ("decided", True), ("activated", True)])
def test_apply_ends_what_is_half_published(moving, step, driven):
    moving.fill(one=3, other=5)
    before = content(moving)
    moving.moving(3, "s0", stop=f"after-{step}").stopped().kill()
    moving.apply()
    assert moving.where(3) == ("s0" if driven else "s1")
    assert moving.states(3) == ({"s0": "owned", "s1": "moved"} if driven else {"s0": "importing", "s1": "owned"})
    assert moving.catalog.value("SELECT reserved_version IS NULL FROM interlock.cluster")
    moving.move(3, "s0")
    moving.assert_settled()
    assert content(moving) == before
