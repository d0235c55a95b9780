"""Buckets move while they are written: whatever a client, a session or a router may be doing meanwhile.

INTERLOCK_SOAK=1 has 100 moves under load instead of 20, INTERLOCK_SEED another course.
"""

import os
import time

import pytest

from support import pgwire as w
from support.gate import Gate
from support.load import BALANCE
from support.placement import keys_in_bucket
from support.router import SLACK
from support.shard import refusal
from support.wait import wait_until

MOVES = 100 if os.environ.get("INTERLOCK_SOAK") else 20
SEED = int(os.environ.get("INTERLOCK_SEED", "6"))
# Bucket 0 begins on s0, as bucket 2; 1 on s1.
MOVED, NEAR, FAR = 0, 2, 1
KEY, SECOND = keys_in_bucket(MOVED, 2)
NEAR_KEY, FAR_KEY = keys_in_bucket(NEAR, 1)[0], keys_in_bucket(FAR, 1)[0]


def credit(key, amount=1):
    return f"UPDATE account SET balance = balance + {amount} WHERE account_id = {key}"


def look(key):
    return f"SELECT balance FROM account WHERE account_id = {key}"


def balances(cluster, key):
    """Shard -> the account's balance there, None where it is not."""
    return {shard: cluster.instances[shard].value(look(key)) for shard in cluster.shards}


def fenced(cluster, shard="s0", bucket=MOVED):
    wait_until(lambda: cluster.states(bucket)[shard] == "fenced", 60 * SLACK, f"bucket {bucket} is fenced on {shard}")


def routed(cluster, shard="s1", bucket=MOVED):
    wait_until(lambda: cluster.where(bucket) == shard, 60 * SLACK, f"bucket {bucket} is published at {shard}")


def about_to_fence(cluster, *options):
    """A mover that has copied the bucket and stands still: what begins now, the fence will meet. (Who has written before
    the copy, that waits for already.)"""
    return cluster.moving(MOVED, "s1", *options, stop="after-subscribed").stopped()


@pytest.fixture
def filled(moving):
    moving.fill(moved=MOVED, near=NEAR, far=FAR)
    return moving


# --- move under load ------------------------------------------------------------------------------


def test_sixteen_clients_see_no_error_and_lose_nothing_while_their_bucket_moves_back_and_forth(moving):
    moving.fill(moved=MOVED)
    with moving.load(16, seed=SEED) as load:
        for _ in range(MOVES):
            moving.move(MOVED, moving.other(MOVED))
            load.progress(2)
    history = load.history
    history.no_failures()
    history.check(moving.rows())
    moving.assert_settled()
    longest, gap = history.longest("moved"), history.longest_gap("moved")
    print(f"\n{MOVES} moves, {len(history.writes())} writes; the longest write took {longest * 1000:.0f} ms,"
          f" the longest time without any {gap * 1000:.0f} ms")
    assert longest < 3 * SLACK


def test_the_shards_other_buckets_are_right_as_well_while_one_moves(filled):
    with filled.load(12, seed=SEED) as load:
        for _ in range(4):
            filled.move(MOVED, filled.other(MOVED))
            load.progress(2)
    load.history.no_failures()
    load.history.check(filled.rows())
    filled.assert_settled()


def test_several_buckets_of_a_load_move_together(moving):
    moving.fill(moved=MOVED, near=NEAR)
    with moving.load(8, seed=SEED) as load:
        for shard in ("s1", "s0"):
            moving.move("0,2", shard)
            load.progress(2)
    load.history.no_failures()
    load.history.check(moving.rows())
    moving.assert_settled()


# --- late write -----------------------------------------------------------------------------------


def test_a_transaction_that_has_written_is_waited_for_and_may_write_on(filled):
    client = filled.pg_client()
    mover = about_to_fence(filled, "--max-pause", "30s")
    client.ok("BEGIN")
    client.ok(credit(KEY))
    mover.go_on()
    fenced(filled)
    client.ok(credit(KEY))
    client.ok(credit(SECOND))
    assert mover.running() and filled.states(MOVED)["s0"] == "fenced"
    assert client.ok("COMMIT").tag == "COMMIT"
    mover.end()
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 2}
    assert balances(filled, SECOND) == {"s0": None, "s1": BALANCE + 1}
    filled.assert_settled()


def test_a_move_that_cannot_wait_any_longer_gives_up_without_harm_and_names_who_holds_it_up(filled):
    client = filled.pg_client()
    mover = about_to_fence(filled, "--max-pause", "300ms", "--tries", "2")
    client.ok("BEGIN")
    client.ok(credit(KEY))
    pid = filled.s0.value("SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND state = 'idle in transaction'")
    assert str(pid) in mover.go_on().end(expect=3)
    assert filled.states(MOVED)["s0"] == "owned" and filled.where(MOVED) == "s0"
    # Everybody may write again, and nobody was cut off.
    filled.pg_client().ok(credit(SECOND))
    client.ok(credit(KEY))
    assert client.ok("COMMIT").tag == "COMMIT"
    # The same command goes on.
    filled.move(MOVED, "s1")
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 2}
    filled.assert_settled()


def test_a_transaction_that_is_ended_leaves_nothing_behind(filled):
    client = filled.pg_client()
    mover = about_to_fence(filled, "--max-pause", "1s", "--end-sessions")
    client.ok("BEGIN")
    client.ok(credit(KEY))
    mover.go_on().end()
    answer = client.query(credit(KEY))
    assert answer.errors, answer
    assert client.query("ROLLBACK").status == "I"
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE}
    client.ok(credit(KEY))
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 1}
    filled.assert_settled()


def test_a_write_on_its_way_when_the_bucket_moved_lands_once_at_the_new_owner(make_moving):
    """It was planned and sent under the old routes, and comes to the old owner after the decision."""
    gates = {}

    def through_a_gate(name, instance):
        gates[name] = Gate(instance.port)
        return instance.conninfo("app").replace(f"port={instance.port}", f"port={gates[name].port}")

    cluster = make_moving(conninfo_of=through_a_gate).up()
    cluster.fill(moved=MOVED)
    client, other = cluster.pg_client(timeout=60), cluster.pg_client()
    try:
        client.ok(look(KEY))
        gates["s0"].hold("77777")
        client.send(w.query(credit(KEY, 77777)))
        assert gates["s0"].held.wait(20 * SLACK)
        cluster.move(MOVED, "s1")
        other.ok(credit(KEY))
        gates["s0"].release()
        assert client.until_ready().ok().tag == "UPDATE 1"
    finally:
        for gate in gates.values():
            gate.close()
    assert balances(cluster, KEY) == {"s0": None, "s1": BALANCE + 77778}
    cluster.assert_settled()


# --- frozen and stale routers ---------------------------------------------------------------------


def test_a_router_frozen_between_planning_and_sending_writes_once_and_at_the_new_owner(make_moving):
    """The write has its plan and waits for the pool's one connection, which the same thaw sets free."""
    cluster = make_moving(router_settings={"pg": {}, "pool": {"size": 1}}).up()
    cluster.fill(moved=MOVED, near=NEAR)
    holder, writer = cluster.pg_client(), cluster.pg_client(timeout=60)
    holder.ok("BEGIN")
    holder.ok(look(NEAR_KEY))
    writer.send(w.query(credit(KEY)))
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 1, 10 * SLACK, "the write waits for a connection")
    cluster.router.freeze()
    try:
        cluster.move(MOVED, "s1")
        holder.send(w.query("COMMIT"))
    finally:
        cluster.router.thaw()
    assert holder.until_ready().tag == "COMMIT"
    assert writer.until_ready().ok().tag == "UPDATE 1"
    assert balances(cluster, KEY) == {"s0": None, "s1": BALANCE + 1}
    cluster.assert_settled()


def cut_off_router(moving, wait):
    """A second router whose way to the catalog can be shut; its statements wait that long for routes."""
    gate = Gate(moving.catalog.port)
    conninfo = moving.catalog.conninfo("app", "interlock_router").replace(f"port={moving.catalog.port}", f"port={gate.port}")
    router = moving.new_router("stale", {"catalog": {"conninfo": conninfo, "timeout": "300ms"}, "routes": {"wait": wait}}).start()
    router.gate = gate
    yield router
    gate.close()
    router.stop()
    moving.routers.remove(router)


@pytest.fixture
def stale(moving):
    yield from cut_off_router(moving, "200ms")


@pytest.fixture
def patient(moving):
    yield from cut_off_router(moving, "60s")


def test_a_router_cut_off_from_the_catalog_is_refused_every_time_before_and_after_the_clean_up(moving, stale):
    moving.fill(moved=MOVED, near=NEAR, far=FAR)
    client, line = moving.pg_client(stale), moving.client(stale)
    client.ok(credit(KEY))
    client.ok(credit(NEAR_KEY))
    stale.gate.shut()
    wait_until(lambda: stale.status().catalog == "down", 20 * SLACK, "the router knows that the catalog is away")
    moving.move(MOVED, "s1", "--keep-source", "1h")
    before = moving.s0.sql("SELECT account_id, balance FROM account ORDER BY 1")

    def refused():
        for statement in (credit(KEY), f"DELETE FROM account WHERE account_id = {KEY}", look(KEY), credit(NEAR_KEY),
                          f"INSERT INTO posting (account_id, token, amount) VALUES ({KEY}, 1, 1)"):
            answer = client.query(statement)
            assert answer.codes == ["40001"] and "IL102" in answer.error.text and answer.status == "I", (statement, answer)
        for keys in (KEY, SECOND):
            answer = line.q("UPDATE account SET balance = balance + ? WHERE account_id = ?", 1, keys)
            assert not answer.ok and answer.tx == "I" and "IL102" in answer.raw, answer.raw
        client.ok("BEGIN")
        assert client.query(credit(KEY)).codes == ["40001"]
        client.ok("ROLLBACK")

    refused()
    assert moving.s0.sql("SELECT account_id, balance FROM account ORDER BY 1") == before
    moving.clean()
    # The rows are gone: UPDATE 0 would be a lie.
    assert balances(moving, KEY)["s0"] is None
    refused()
    # The other shard has given nothing away.
    client.ok(credit(FAR_KEY))
    assert stale.status().rv < moving.router.status().rv
    stale.gate.open()
    wait_until(lambda: stale.status().rv == moving.router.status().rv, 20 * SLACK, "it has the routes")
    assert client.ok(credit(KEY)).tag == "UPDATE 1"
    assert balances(moving, KEY) == {"s0": None, "s1": BALANCE + 2}
    moving.assert_settled()


def heard(cluster):
    """Of each router that watches the catalog, whether it has heard of the latest announcement."""
    return [known for (known,) in cluster.catalog.sql(
        "SELECT l.objid::bigint = c.announcement FROM pg_locks l, interlock.cluster c"
        " WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid::bigint = x'494c5254'::int")]


def test_the_mover_fences_when_every_router_has_heard_or_had_its_time(moving, stale):
    """What a router begins before it knows can meet the fence in the middle."""
    moving.fill(moved=MOVED)
    mover = moving.moving(MOVED, "s1", "--grace", "3s", "--max-pause", "20s", stop="after-announced").stopped()
    wait_until(lambda: heard(moving) == [True, True], 20 * SLACK, "both routers have heard")
    mover.kill()
    moving.abort()
    mover = moving.moving(MOVED, "s1", "--grace", "3s", "--max-pause", "20s", stop="before-announced").stopped()
    wait_until(lambda: heard(moving) == [True, True], 20 * SLACK, "both routers know that it was taken back")
    stale.freeze()
    try:
        mover.go_on()
        wait_until(lambda: sorted(heard(moving)) == [False, True], 20 * SLACK, "one has heard")
        began = time.monotonic()
        fenced(moving)
        assert time.monotonic() - began > 1
    finally:
        stale.thaw()
    mover.end()
    moving.assert_settled()


def test_a_router_that_learns_of_the_move_from_the_refusal_sends_again(moving, patient):
    """Its way to the catalog is opened only while the statement waits for routes."""
    moving.fill(moved=MOVED)
    client = moving.pg_client(patient, timeout=60)
    client.ok(credit(KEY))
    patient.gate.shut()
    moving.move(MOVED, "s1")
    assert patient.status().rv < moving.router.status().rv
    client.send(w.query(credit(KEY)))
    wait_until(lambda: "waiting:1" in patient.status().raw, 20 * SLACK, "it waits for routes")
    patient.gate.open()
    assert client.until_ready().ok().tag == "UPDATE 1"
    assert patient.status().rv == moving.router.status().rv
    assert balances(moving, KEY) == {"s0": None, "s1": BALANCE + 2}
    moving.assert_settled()


# --- readers --------------------------------------------------------------------------------------


def test_a_short_transaction_that_only_reads_is_given_its_time_before_the_fence(filled):
    client = filled.pg_client()
    mover = about_to_fence(filled, "--grace", "3s", "--max-pause", "20s")
    client.ok("BEGIN")
    client.ok(look(KEY))
    mover.go_on()
    wait_until(lambda: filled.step() == "announced", 20 * SLACK, "the move is announced")
    read_for(client, 0.3)
    assert client.ok("COMMIT").tag == "COMMIT"
    mover.end()
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE}
    filled.assert_settled()


@pytest.mark.parametrize("key", [KEY, NEAR_KEY], ids=["moved", "near"])
def test_a_short_transaction_that_only_reads_is_given_its_time_behind_the_fence(moving, stale, key):
    """Its router has not heard of the move, so it can begin when the mover has looked for the last time before the fence."""
    moving.fill(moved=MOVED, near=NEAR)
    client = moving.pg_client(stale)
    client.ok(look(key))
    stale.gate.shut()
    mover = moving.moving(MOVED, "s1", "--grace", "20s", "--max-pause", "60s", stop="before-fenced").stopped()
    client.ok("BEGIN")
    client.ok(look(key))
    mover.go_on()
    fenced(moving)
    read_for(client, 0.3, key)
    assert moving.states(MOVED)["s0"] == "fenced" and mover.running()
    assert client.ok("COMMIT").tag == "COMMIT"
    mover.end()
    assert balances(moving, KEY) == {"s0": None, "s1": BALANCE}
    moving.assert_settled()


def read_for(client, seconds, key=None):
    """Goes on reading: whatever is done to it meanwhile, the next statement would be told."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert client.value(look(key or KEY)) == str(BALANCE)


def test_a_transaction_that_only_reads_for_longer_than_the_grace_is_failed_with_an_error_to_retry(filled):
    client = filled.pg_client()
    mover = about_to_fence(filled, "--grace", "200ms")
    client.ok("BEGIN")
    client.ok(look(KEY))
    mover.go_on()
    routed(filled)
    answer = client.query(look(KEY))
    assert answer.codes == ["40001"] and "IL102" in answer.error.text and answer.status == "E", answer
    client.ok("ROLLBACK")
    assert client.value(look(KEY)) == str(BALANCE)
    mover.end()
    filled.assert_settled()


# --- writers that know of no router ---------------------------------------------------------------


def test_a_direct_writer_at_the_old_owner_is_refused_whatever_it_tries(filled):
    with filled.s0.connect() as early:
        early.execute(credit(KEY))
        filled.move(MOVED, "s1", "--keep-source", "1h")
        for session in (early, filled.connect("s0")):
            for statement in (credit(KEY), f"DELETE FROM account WHERE account_id = {KEY}",
                              f"INSERT INTO account VALUES ({keys_in_bucket(MOVED, 9)[8]}, 'x', 1, 0)",
                              f"INSERT INTO account VALUES ({KEY}, 'x', 1, 0) ON CONFLICT (account_id) DO UPDATE SET balance = 0",
                              f"MERGE INTO account a USING (VALUES ({KEY}::bigint)) v(k) ON a.account_id = v.k WHEN MATCHED THEN DELETE",
                              f"WITH w AS (UPDATE account SET balance = 0 WHERE account_id = {KEY} RETURNING 1) SELECT * FROM w"):
                with refusal("IL101"):
                    session.execute(statement)
            with refusal("IL101"), session.cursor().copy("COPY account FROM STDIN") as copy:
                copy.write(f"{keys_in_bucket(MOVED, 9)[8]}\tx\t1\t0\n")
            assert session.execute(credit(NEAR_KEY)).rowcount == 1
    assert balances(filled, KEY) == {"s0": BALANCE + 1, "s1": BALANCE + 1}
    filled.clean()
    with refusal("IL101"):
        filled.s0.sql(f"INSERT INTO account VALUES ({KEY}, 'x', 1, 0)")
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 1}
    filled.assert_settled()


def test_a_session_with_an_old_route_version_gets_an_error_not_update_0(filled):
    """Neither row guard nor rows are there to refuse it: the shard's floor does."""
    with filled.s0.connect() as old:
        old.execute("LOAD 'interlock'")
        old.execute("SELECT set_config('interlock.route_version', %s, false)", (str(filled.router.status().rv),))
        assert old.execute(credit(KEY)).rowcount == 1
        filled.move(MOVED, "s1")
        assert balances(filled, KEY)["s0"] is None
        for statement in (credit(KEY), look(KEY), f"DELETE FROM account WHERE account_id = {KEY}", credit(NEAR_KEY)):
            with refusal("IL102"):
                old.execute(statement)
    filled.assert_settled()


# --- old snapshots --------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_older_than_the_fence_cannot_write_after_it_and_the_rows_stay_for_it(filled, isolation):
    routed_client, direct = filled.pg_client(), filled.connect("s0")
    direct.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    assert direct.execute(look(KEY)).fetchone() == (BALANCE,)
    routed_client.ok(f"BEGIN ISOLATION LEVEL {isolation}")
    assert routed_client.value(look(KEY)) == str(BALANCE)
    mover = filled.moving(MOVED, "s1")
    routed(filled)
    filled.pg_client().ok(credit(KEY, 5))
    answer = routed_client.query(credit(KEY))
    assert answer.codes == ["40001"] and "IL102" in answer.error.text + str(answer.error.fields), answer
    routed_client.ok("ROLLBACK")
    # It knows of no routers and reads what it has always read: its snapshot is of the time before.
    assert direct.execute(look(KEY)).fetchone() == (BALANCE,)
    assert mover.running(), "the rows are not cleaned away under a snapshot that may read them"
    with refusal("IL101"):
        direct.execute(credit(KEY))
    direct.execute("ROLLBACK")
    mover.end()
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 5}
    filled.assert_settled()


def test_a_snapshot_at_the_new_owner_from_before_does_not_say_that_the_rows_are_not_there(filled):
    client = filled.pg_client()
    client.ok("BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.ok(look(FAR_KEY))
    filled.move(MOVED, "s1")
    for statement in (look(KEY), credit(KEY)):
        client.ok("SAVEPOINT s")
        answer = client.query(statement)
        assert answer.errors, f"{statement} answered {answer}"
        if client.query("ROLLBACK TO s").errors:
            break
    client.query("ROLLBACK")
    assert client.value(look(KEY)) == str(BALANCE)
    filled.assert_settled()


# --- other buckets --------------------------------------------------------------------------------


def test_writers_of_other_buckets_go_on_while_an_open_transaction_holds_the_fence_up(filled):
    filled.groups = {name: keys for name, keys in filled.groups.items() if name != "moved"}
    client = filled.pg_client()
    with filled.load(6, kinds={"transfer": 1, "set": 1, "post": 1}, seed=SEED) as load:
        load.progress(20)
        mover = about_to_fence(filled, "--max-pause", "30s")
        client.ok("BEGIN")
        client.ok(credit(KEY))
        mover.go_on()
        fenced(filled)
        began = time.monotonic()
        # Two seconds in which nothing else is to happen to them.
        while time.monotonic() < began + 2:
            assert filled.states(MOVED)["s0"] == "fenced"
            time.sleep(0.1)
        ended = time.monotonic()
        client.ok("COMMIT")
        mover.end()
        load.progress(20)
        after = time.monotonic()
    history = load.history
    history.no_failures()
    for group in ("near", "far"):
        held, later = history.rate(group, began, ended), history.rate(group, ended, after)
        assert history.longest_gap(group, began, ended) < 0.5 * SLACK, group
        assert held > later / 2, (group, held, later)


# --- prepared transactions ------------------------------------------------------------------------


def prepare(cluster, gid):
    with cluster.s0.connect(autocommit=False) as session:
        session.execute(credit(KEY, 3))
        session.execute(f"PREPARE TRANSACTION '{gid}'")


def test_a_prepared_transaction_from_before_the_move_is_named_and_waited_for_while_everybody_writes(filled):
    prepare(filled, "transfer 11")
    try:
        mover = filled.moving(MOVED, "s1")
        wait_until(lambda: "transfer 11" in mover.text(), 60 * SLACK, "the mover says who it waits for")
        assert mover.running() and filled.states(MOVED)["s0"] == "owned"
        filled.pg_client().ok(credit(SECOND))
    finally:
        filled.s0.sql("COMMIT PREPARED 'transfer 11'")
    mover.end()
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 3}
    filled.assert_settled()


def test_a_prepared_transaction_is_waited_for_and_named(filled):
    mover = about_to_fence(filled, "--max-pause", "300ms", "--tries", "1")
    prepare(filled, "transfer 12")
    try:
        assert "transfer 12" in mover.go_on().end(expect=3)
        assert filled.states(MOVED)["s0"] == "owned"
        filled.pg_client().ok(credit(SECOND))
    finally:
        filled.s0.sql("COMMIT PREPARED 'transfer 12'")
    filled.move(MOVED, "s1")
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 3}
    filled.assert_settled()


def test_a_transaction_prepared_behind_the_fence_is_waited_for(filled):
    mover = about_to_fence(filled, "--max-pause", "30s")
    with filled.s0.connect(autocommit=False) as session:
        session.execute(credit(KEY, 3))
        mover.go_on()
        fenced(filled)
        session.execute("PREPARE TRANSACTION 'transfer 13'")
    try:
        # Its backend is gone, its locks are not.
        assert mover.running() and filled.states(MOVED)["s0"] == "fenced"
    finally:
        filled.s0.sql("COMMIT PREPARED 'transfer 13'")
    mover.end()
    assert balances(filled, KEY) == {"s0": None, "s1": BALANCE + 3}
    filled.assert_settled()
