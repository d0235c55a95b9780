"""`interlock apply` and moves of buckets: numbers given out once, moves left alone, lost decisions found."""

import threading
import uuid

import psycopg
import pytest

from support.settled import routes
from support.wait import wait_until
from test_apply_states import kill_at, nothing_to_do, owned, refused, version


@pytest.fixture
def described(make_cluster):
    return make_cluster().start_instances().create_tables().describe()


@pytest.fixture
def applied(described):
    described.apply()
    return described


def numbers(cluster):
    """Current, last given out, reserved."""
    return cluster.catalog.sql("SELECT route_version, last_version, reserved_version FROM interlock.cluster")[0]


def floors(cluster):
    return [i.value("SELECT floor FROM interlock.shard_identity") for i in (cluster.s0, cluster.s1)]


def begin_move(cluster, buckets, source="s0", target="s1", on_shards=True):
    """A move as a mover leaves it that was killed after `prepared`."""
    move = str(uuid.uuid4())
    cluster.catalog.sql("SELECT interlock.begin_move(%s, 'accounts', %s, %s, %s)", move, buckets, source, target)
    if on_shards:
        cluster.instances[source].sql("SELECT interlock.begin_export('accounts', %s, %s, %s)", buckets, target, move)
        cluster.instances[target].sql("SELECT interlock.begin_import('accounts', %s, %s, %s)", buckets, source, move)
        cluster.catalog.sql("SELECT interlock.record_step(%s, 'prepared')", move)
    return move


# -- numbers -----------------------------------------------------------------------------------------

def test_a_number_that_a_shard_knows_belongs_to_the_apply_that_was_killed_until_another_publishes_it(applied):
    applied.assign([4], "s1")
    kill_at(applied, "s1", "LOCK TABLE interlock.bucket_state IN SHARE MODE").rollback()
    assert floors(applied)[0] == 2 and numbers(applied) == (1, 2, 2)
    with pytest.raises(psycopg.errors.ObjectInUse) as error:
        applied.publish(allow_owner_change=True)
    assert "reserved by an \"interlock apply\"" in str(error.value) and "interlock apply" in error.value.diag.message_hint
    move = begin_move(applied, [6], on_shards=False)
    with pytest.raises(psycopg.errors.ObjectInUse):
        applied.catalog.sql("SELECT interlock.reserve_version(%s)", move)
    assert "publish route version 2" in applied.apply("--plan").stdout
    applied.apply()
    assert numbers(applied) == (2, 2, None) and 4 in owned(applied, "s1")
    assert applied.catalog.value("SELECT interlock.reserve_version(%s)", move) == 3


def test_a_number_that_no_shard_knows_is_given_back_and_never_used_again(applied):
    applied.assign([4], "s1")
    # It reserves, then waits before s0 gives anything up.
    kill_at(applied, "s0", "LOCK TABLE account IN ROW EXCLUSIVE MODE").rollback()
    assert floors(applied) == [0, 0] and numbers(applied) == (1, 2, 2)
    applied.assign([4], "s0")
    nothing_to_do(applied)
    assert numbers(applied) == (1, 2, None)
    applied.catalog.sql("SELECT interlock.declare_function('later')")
    assert applied.publish() == 3


def test_a_number_is_given_back_by_an_apply_that_fails_before_a_shard_knows_it(described):
    holder = described.connect("s1", autocommit=False)
    holder.execute("LOCK TABLE account IN ROW EXCLUSIVE MODE")
    done = described.apply("--lock-timeout", "300ms", check=False)
    assert done.returncode == 1 and "guard table public.account" in done.stderr
    assert numbers(described) == (0, 1, None)
    holder.rollback()
    described.apply()
    assert numbers(described) == (2, 2, None)


def test_a_number_is_kept_by_an_apply_that_fails_after_a_shard_has_given_buckets_away_under_it(applied):
    applied.assign([4], "s1")
    holder = applied.connect("s1", autocommit=False)
    holder.execute("LOCK TABLE interlock.bucket_state IN SHARE MODE")
    done = applied.apply("--lock-timeout", "300ms", check=False)
    assert done.returncode == 1 and "s1: take bucket 4" in done.stderr, done.stderr
    assert floors(applied)[0] == 2 and numbers(applied) == (1, 2, 2)
    # Not even by another that cannot do anything: a shard is away, and its floor is not known.
    holder.rollback()
    applied.s1.freeze()
    try:
        refused(applied, "could not connect", arguments=["--timeout", "1s"])
    finally:
        applied.s1.thaw()
    assert numbers(applied) == (1, 2, 2)
    applied.apply()
    assert numbers(applied) == (2, 2, None)


def test_an_edit_that_waits_for_the_apply_is_applied_as_well(applied):
    """It gets in when the number has been reserved: what was read and judged before counts no more."""
    applied.assign([4], "s1")
    applied.s1.freeze()
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'interlock.cluster'::regclass"
    try:
        results = []
        apply = threading.Thread(target=lambda: results.append(applied.apply("--timeout", "60s", check=False)))
        apply.start()
        reading = ("SELECT count(*) FROM pg_locks WHERE granted AND mode = 'ExclusiveLock'"
                   " AND relation = 'interlock.cluster'::regclass")
        wait_until(lambda: applied.catalog.value(reading) == 1, 30, "the apply holds the catalog")
        edit = threading.Thread(target=lambda: applied.assign([6], "s1"))
        edit.start()
        wait_until(lambda: applied.catalog.value(blocked) == 1, 30, "the edit waits for it")
    finally:
        applied.s1.thaw()
    edit.join()
    apply.join()
    (done,) = results
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the catalog was edited meanwhile: beginning anew" in done.stdout, done.stdout
    assert {4, 6} <= set(owned(applied, "s1"))
    # The first try's number is nobody's.
    assert numbers(applied) == (3, 3, None) and floors(applied)[0] == 3
    nothing_to_do(applied)


# -- moves -------------------------------------------------------------------------------------------

def test_a_move_under_way_is_left_alone_and_others_are_applied_beside_it(applied):
    begin_move(applied, [4, 8])
    nothing_to_do(applied)
    applied.assign([6], "s1")
    applied.catalog.sql("SELECT interlock.declare_function('later')")
    applied.apply()
    assert version(applied) == 2 and 6 in owned(applied, "s1")
    assert {4, 8} <= set(owned(applied, "s0"))
    assert applied.s1.sql("SELECT bucket FROM interlock.bucket_state WHERE state = 'importing' ORDER BY 1") == [(4,), (8,)]
    nothing_to_do(applied)


def test_no_table_joins_a_keyspace_while_a_move_is_under_way(applied):
    begin_move(applied, [4])
    for instance in (applied.s0, applied.s1):
        instance.sql("CREATE TABLE late (account_id bigint PRIMARY KEY)")
    applied.catalog.sql("SELECT interlock.declare_table('late', 'accounts', 'account_id')")
    text = refused(applied, "table public.late cannot be guarded on shard \"s0\"", "on the move")
    assert "2 problems" in text and numbers(applied) == (1, 1, None)


def test_a_guard_is_mended_when_the_move_has_been_given_up(applied):
    move = begin_move(applied, [4])
    with applied.s0.connect() as tamper:
        tamper.execute("DELETE FROM pg_trigger WHERE tgname = '~interlock_guard' AND tgrelid = 'account'::regclass")
    refused(applied, "table public.account cannot be guarded on shard \"s0\"", "given up")
    applied.s0.sql("SELECT interlock.abort_export(%s)", move)
    applied.s1.sql("SELECT interlock.abort_import(%s)", move)
    assert "mend the guard of table public.account" in applied.apply().stdout
    assert applied.s0.sql("SELECT * FROM interlock.check_guards()") == []


# -- moves that have the next number ------------------------------------------------------------------

@pytest.fixture
def moved(make_moving):
    cluster = make_moving().up()
    cluster.fill(moved=0, near=2)
    return cluster


def test_a_decided_move_is_driven_forward_before_anything_else_is_published(moved):
    mover = moved.moving(0, "s1", stop="after-decided").stopped()
    mover.kill()
    with pytest.raises(psycopg.errors.ObjectInUse) as error:
        moved.publish()
    move = moved.move_id()
    assert f"reserved by move {move}" in str(error.value) and f"--resume {move}" in error.value.diag.message_hint
    moved.catalog.sql("SELECT interlock.declare_function('later')")
    assert f"would first drive move {move} to its end" in moved.apply("--plan").stdout
    said = moved.apply().stdout
    assert "published as route version 2" in said and "publish route version 3" in said, said
    assert moved.catalog.sql("SELECT version, note LIKE 'move %%' FROM interlock.route_versions ORDER BY version") == [
        (1, False), (2, True), (3, False)]
    assert routes(moved)[0] == "s1" and numbers(moved) == (3, 3, None)
    moved.move(0, "s1")
    moved.assert_settled()


def test_an_undecided_move_loses_its_number_and_its_fence_and_goes_on_later(moved):
    mover = moved.moving(0, "s1", stop="after-fenced").stopped()
    mover.kill()
    assert numbers(moved) == (1, 2, 2)
    moved.catalog.sql("SELECT interlock.declare_function('later')")
    said = moved.apply().stdout
    assert "publish route version 3" in said, said
    assert routes(moved)[0] == "s0" and numbers(moved) == (3, 3, None)
    assert moved.s0.value("SELECT count(*) FROM interlock.bucket_state WHERE state = 'fenced'") == 0
    assert moved.catalog.value("SELECT count(*) FROM interlock.announced_move") == 0
    moved.move(0, "s1")
    assert numbers(moved) == (4, 4, None)
    moved.assert_settled()


def test_a_mover_at_work_publishes_before_the_apply_that_waits_for_it(moved):
    mover = moved.moving(0, "s1", stop="after-decided").stopped()
    moved.catalog.sql("SELECT interlock.declare_function('later')")
    results = []
    here = ("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'interlock apply%'"
            " OR application_name LIKE 'interlock move%'")
    alone = moved.catalog.value(here)
    apply = threading.Thread(target=lambda: results.append(moved.apply(check=False)))
    apply.start()
    wait_until(lambda: moved.catalog.value(here) > alone or results, 60, "the apply waits for the mover")
    assert not results, results
    mover.go_on()
    mover.end()
    apply.join()
    (done,) = results
    assert done.returncode == 0 and "publish route version 3" in done.stdout, done.stdout + done.stderr
    assert routes(moved)[0] == "s1" and numbers(moved) == (3, 3, None)
    moved.assert_settled()


# -- decisions that were lost ------------------------------------------------------------------------

def test_a_shard_that_has_lost_a_decision_is_refused_until_somebody_vouches_for_it(applied):
    applied.assign([4], "s1")
    applied.apply()
    assert floors(applied) == [2, 0]
    # As an older copy of s0 would come back.
    applied.s0.sql("UPDATE interlock.shard_identity SET floor = 1")
    refused(applied, 'shard "s0" does not know any more', "under route version 2", "interlock.raise_floor(2)")
    assert applied.s0.value("SELECT interlock.raise_floor(2)") == 2
    assert applied.s0.value("SELECT interlock.raise_floor(1)") == 2
    nothing_to_do(applied)


def test_a_bucket_is_not_taken_back_from_a_move_that_only_the_source_knows_to_be_decided(applied):
    """The catalog is one from before the reservation: its next number is that of the move."""
    move = begin_move(applied, [4])
    before = applied.catalog.sql("SELECT last_version, reserved_version, reserved_move FROM interlock.cluster")[0]
    version = applied.catalog.value("SELECT interlock.reserve_version(%s)", move)
    applied.s0.sql("SELECT interlock.fence_buckets('accounts', '{4}', 's1', %s, %s, '60 s')", move, version)
    assert applied.s0.sql("SELECT * FROM interlock.wait_for_writers('accounts', %s, '20 s')", move) == []
    applied.s0.sql("SELECT interlock.write_marker(%s)", move)
    applied.s0.sql("SELECT interlock.decide_handoff(%s)", move)
    applied.catalog.sql("UPDATE interlock.cluster SET last_version = %s, reserved_version = %s, reserved_move = %s", *before)
    applied.catalog.sql("UPDATE interlock.move SET route_version = NULL")
    done = applied.apply(check=False)
    assert done.returncode == 1, done.stdout
    assert 'bucket 4 of keyspace "accounts" is given by shard "s0" to shard "s1"' in done.stderr and "--resume" in done.stderr
    # Nor by hand.
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match='bucket 4 of keyspace "accounts" has been given to shard "s1"'):
        applied.s0.sql("SELECT interlock.accept_buckets('accounts', '{4}', %s)", version)
    assert 4 not in owned(applied, "s0") + owned(applied, "s1")


def test_a_shard_whose_buckets_were_published_elsewhere_before_it_was_applied_begins_with_that_floor(described):
    assert described.publish() == 1
    described.assign([4], "s1")
    assert described.publish(allow_owner_change=True) == 2
    described.apply()
    assert floors(described) == [2, 0] and 4 in owned(described, "s1")
    nothing_to_do(described)
