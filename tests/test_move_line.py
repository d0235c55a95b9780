"""What clients of the line protocol notice of a move: nothing but time, wherever nothing of theirs was done."""

import re
import socket

import pytest

from support.hand_move import Asked, HandMove
from support.placement import keys_in_bucket
from support.router import SLACK
from support.statements import BALANCE, CREDIT, ok, refused
from support.wait import Stopwatch, wait_until

BUCKET = 0
KEY, SECOND = keys_in_bucket(BUCKET, 2)
# A key that stays on the same shard, by the name of that.
NEAR = {"s0": keys_in_bucket(2, 1)[0], "s1": keys_in_bucket(1, 1)[0]}


@pytest.fixture
def cluster(module_moving):
    if module_moving.router.process.poll() is not None:
        module_moving.router.start()
    owner = module_moving.where(BUCKET)
    for name in ("s0", "s1"):
        keys = [NEAR[name]] + ([KEY, SECOND] if owner == name else [])
        with module_moving.instances[name].connect() as shard:
            shard.execute("DELETE FROM account")
            shard.cursor().executemany("INSERT INTO account VALUES (%s, 'o', 100, 1)", [(key,) for key in keys])
    yield module_moving
    module_moving.end_test()


@pytest.fixture
def move(cluster):
    move = HandMove(cluster, BUCKET)
    yield move
    move.end()


@pytest.fixture
def client(cluster):
    return cluster.client(timeout=60)


def counters(cluster):
    """The router's counts of what met moves."""
    (text,) = re.findall(r" moves=(\S+)", cluster.router.status().raw)
    return {name: int(value) for name, value in (pair.split(":") for pair in text.split(","))}


def announce(move):
    move.announce()
    wait_until(lambda: counters(move.cluster)["announced"] == move.version, 10, "the router knows of the announcement")


def wait_for_waiting(cluster, count=1):
    wait_until(lambda: counters(cluster)["waiting"] == count, 10, f"{count} wait for routes")


def balance(instance, key):
    return instance.value("SELECT balance FROM account WHERE account_id = %s", key)


@pytest.mark.parametrize("state", ["announced", "fenced", "decided"])
@pytest.mark.parametrize("block", [False, True], ids=["autocommit", "transaction"])
def test_a_write_that_meets_the_move_lands_once_on_the_new_owner(cluster, move, client, state, block):
    if block:
        ok(client.q("BEGIN"))
    if state == "announced":
        announce(move)
    move.fence()
    if state == "decided":
        move.decide()
    asked = Asked(client.q, CREDIT, 1, KEY)
    wait_for_waiting(cluster)
    if state != "decided":
        move.decide()
    move.publish()
    answer = ok(asked.answer())
    assert (answer.shard, answer.count, answer.rv) == (move.target_name, 1, move.version)
    if block:
        assert ok(client.q(BALANCE, KEY)).rows == [[101]]
        ok(client.q("COMMIT"))
    assert balance(move.target, KEY) == 101
    assert balance(move.source, KEY) in (100, None)


def test_a_write_behind_a_fence_that_is_taken_away_lands_where_it_was(cluster, move, client):
    move.fence()
    asked = Asked(client.q, CREDIT, 1, KEY)
    wait_for_waiting(cluster)
    move.unfence()
    assert ok(asked.answer()).shard == move.source_name
    assert balance(move.source, KEY) == 101


def test_a_write_behind_a_fence_whose_time_has_passed_opens_it(cluster, move, client):
    """Its mover is gone, and nobody else looks after it."""
    move.fence("50 ms")
    with Stopwatch() as watch:
        assert ok(client.q(CREDIT, 1, KEY)).shard == move.source_name
    assert watch.seconds < 4 * SLACK
    assert cluster.states(BUCKET)[move.source_name] == "owned"


def test_a_transaction_that_has_written_the_bucket_ends_behind_the_fence(cluster, move, client):
    ok(client.q("BEGIN"))
    ok(client.q(CREDIT, 1, KEY))
    announce(move)
    move.fence()
    ok(client.q(CREDIT, 1, SECOND))
    ok(client.q("COMMIT"))
    assert (balance(move.source, KEY), balance(move.source, SECOND)) == (101, 101)


@pytest.mark.parametrize("state, code", [("fenced", "IL103"), ("decided", "IL102")])
def test_a_transaction_that_comes_to_the_bucket_later_is_to_be_run_again(cluster, move, client, state, code):
    ok(client.q("BEGIN"))
    # It has read only: a writer would be waited for.
    pid = ok(client.q(BALANCE, NEAR[move.source_name])).pid
    move.fence()
    if state == "decided":
        move.decide()
    answer = refused(client.q(CREDIT, 1, KEY), "R31", "E")
    assert answer.sqlstate == "40001" and code in answer.msg, answer.raw
    assert cluster.activity(move.source_name, pid) == "idle", "it was rolled back at once"
    ok(client.q("ROLLBACK"))


def test_a_transaction_that_began_after_the_announcement_elsewhere_outlives_the_decision(cluster, move, client):
    """It runs under the version to come, so the floor does not cut it; the bucket itself is out of its reach."""
    near = NEAR[move.source_name]
    announce(move)
    ok(client.q("BEGIN"))
    ok(client.q(CREDIT, 1, near))
    other = cluster.client()
    ok(other.q("BEGIN"))
    ok(other.q(CREDIT, 1, NEAR["s1" if move.source_name == "s0" else "s0"]))
    move.fence()
    ok(client.q(CREDIT, 1, near))
    ok(client.q("COMMIT"))
    ok(client.q("BEGIN"))
    ok(client.q(BALANCE, near))
    move.decide()
    ok(client.q(CREDIT, 1, near))
    ok(client.q("COMMIT"))
    ok(other.q("COMMIT"))
    assert balance(move.source, near) == 103

    ok(client.q("BEGIN"))
    ok(client.q(CREDIT, 1, near))
    answer = refused(client.q(BALANCE, KEY), "R31", "E")
    assert answer.sqlstate == "40001" and "IL103" in answer.msg, answer.raw
    ok(client.q("ROLLBACK"))


def test_waiting_ends_with_the_setting_routes_wait(make_moving):
    cluster = make_moving(router_settings={"pg": {}, "routes": {"wait": "200ms"}}).up()
    cluster.s0.sql("INSERT INTO account VALUES (%s, 'o', 100, 1)", KEY)
    move = HandMove(cluster, BUCKET)
    client = cluster.client()
    announce(move)
    # Held back, then sent as ever: the shard still owns the bucket.
    with Stopwatch() as watch:
        assert ok(client.q(CREDIT, 1, KEY)).shard == "s0"
    assert 0.15 < watch.seconds < 5 * SLACK
    move.fence()
    answer = refused(client.q(CREDIT, 1, KEY), "R31", "I")
    assert answer.sqlstate == "40001" and "IL103" in answer.msg
    assert ok(client.q(BALANCE, KEY)).rows == [[101]], "readers are not fenced"
    move.end()


STATES = {"announced": announce, "fenced": lambda move: move.fence(), "decided": lambda move: move.fence().decide()}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ahead", [False, True], ids=["alone", "with another one behind it"])
def test_a_client_that_leaves_while_it_waits_is_not_served(cluster, move, client, state, ahead):
    STATES[state](move)
    clients = cluster.router.status().clients
    client.send_raw(client.request(CREDIT, 1, KEY).encode() + b"\n")
    wait_for_waiting(cluster)
    if ahead:
        client.send_raw(client.request(CREDIT, 1, SECOND).encode() + b"\n")
        wait_for_waiting(cluster)
    client.close()
    wait_until(lambda: cluster.router.status().clients == clients - 1, 3, "its session ends, long before it would have waited enough")
    if not move.decided:
        move.fence().decide()
    move.publish()
    assert (balance(move.target, KEY), balance(move.target, SECOND)) == (100, 100)


def test_who_shuts_its_writing_side_while_it_waits_is_told_that_nothing_is_done(cluster, move, client):
    announce(move)
    client.send_raw(b"".join(client.request(statement, 1, key).encode() + b"\n"
                             for statement, key in ((CREDIT, KEY), (CREDIT, NEAR[move.source_name]))))
    wait_for_waiting(cluster)
    client.socket.shutdown(socket.SHUT_WR)
    for _ in range(2):
        assert "sqlstate=57014" in client.read_line()
    assert client.read_line() is None
    move.withdraw()
    assert (balance(move.source, KEY), balance(move.source, NEAR[move.source_name])) == (100, 100)


def test_an_announcement_that_nobody_takes_back_is_waited_out_once(make_moving):
    cluster = make_moving(router_settings={"pg": {}, "routes": {"wait": "1s"}}).up()
    cluster.s0.sql("INSERT INTO account VALUES (%s, 'o', 100, 1)", KEY)
    move = HandMove(cluster, BUCKET)
    client = cluster.client()
    announce(move)
    move.fence("300 ms")
    assert ok(client.q(CREDIT, 1, KEY)).shard == "s0"
    before = counters(cluster)
    with Stopwatch() as watch:
        for _ in range(3):
            ok(client.q(CREDIT, 1, KEY))
        ok(client.q("BEGIN"))
        ok(client.q(CREDIT, 1, KEY))
        ok(client.q("COMMIT"))
    assert watch.seconds < 1 and balance(cluster.s0, KEY) == 105
    assert counters(cluster) == before and before["failed"] == 0
    move.end()


def test_writes_of_line_clients_during_moves_to_and_fro(moving):
    moving.fill(moved=BUCKET, near=2)
    with moving.load(8, ways=("line",), kinds={"transfer": 4, "post": 3, "set": 2, "get": 2}) as load:
        load.progress(3)
        for to in ("s1", "s0") * 2:
            moving.move(BUCKET, to)
            load.progress(3)
    load.history.check(moving.rows())
    assert load.history.failures() == []
    moving.assert_settled()
