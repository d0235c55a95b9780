"""Tables with triggers of users while a bucket is on the move: what these read, no key says, so their statements run
under the route version in force and not under the one that is announced, through either listener.

The trigger stamps each row that is updated with the route version it has seen.
"""

import re

import pytest

from support import pgwire as w
from support.hand_move import Asked, HandMove
from support.placement import keys_in_bucket
from support.statements import CREDIT, ok, refused
from support.wait import wait_until

BUCKET = 0
(KEY,) = keys_in_bucket(BUCKET, 1)
# A key that stays on the same shard, by the name of that.
NEAR = {"s0": keys_in_bucket(2, 1)[0], "s1": keys_in_bucket(1, 1)[0]}
ADD = "UPDATE account SET balance = balance + 1 WHERE account_id = $1"
POST = "INSERT INTO posting (account_id, token, amount) VALUES ($1, 1, 1)"
SEEN = "SELECT current_setting('interlock.route_version') FROM posting WHERE account_id = "
TRIGGER = """
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN NEW.owner := current_setting('interlock.route_version'); RETURN NEW; END $$;
CREATE TRIGGER stamp BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION stamp();
"""


@pytest.fixture(scope="module")
def stamping(module_moving):
    for name in ("s0", "s1"):
        module_moving.instances[name].sql(TRIGGER)
    module_moving.router.stop()  # what its backends know of the tables is as old as they are
    module_moving.router.start()
    return module_moving


@pytest.fixture
def cluster(stamping):
    owner = stamping.where(BUCKET)
    for name in ("s0", "s1"):
        with stamping.instances[name].connect() as shard:
            shard.execute("DELETE FROM account; DELETE FROM posting")
            for key in [NEAR[name]] + ([KEY] if owner == name else []):
                shard.execute("INSERT INTO account VALUES (%s, 'o', 100, 1)", (key,))
    yield stamping
    stamping.end_test()


@pytest.fixture
def move(cluster):
    """Announced; the router knows of it. `before` is the version in force."""
    move = HandMove(cluster, BUCKET)
    move.before = cluster.router.status().rv
    move.near = NEAR[move.source_name]
    move.announce()
    wait_until(lambda: counters(cluster)["announced"] == move.version, 10, "the router knows of the announcement")
    yield move
    move.end()
    wait_until(lambda: counters(cluster)["announced"] == 0, 10)


@pytest.fixture
def client(cluster):
    return cluster.pg_client()


def counters(cluster):
    (text,) = re.findall(r" moves=(\S+)", cluster.router.status().raw)
    return {name: int(value) for name, value in (pair.split(":") for pair in text.split(","))}


def row(move):
    """Of the key that stays: its balance, and the route version that the trigger saw last."""
    ((balance, seen),) = move.source.sql("SELECT balance, owner FROM account WHERE account_id = %s", move.near)
    return balance, seen


def text(statement, key):
    return statement.replace("$1", str(key))


# Ways to update once, alone or as the first statement of a transaction.

def simple(client, key):
    client.ok(text(ADD, key))


def extended(client, key):
    client.run(ADD, key).ok()


def block(client, key):
    client.ok("BEGIN")
    client.ok(text(ADD, key))
    client.ok("COMMIT")


def later_in_a_query(client, key):
    client.query(f"{text(POST, key)}; {text(ADD, key)}").ok()


# And behind another one, of a table without triggers.

def later_in_a_block(client, key):
    client.ok("BEGIN")
    client.ok(text(POST, key))
    client.ok(text(ADD, key))
    client.ok("COMMIT")


def later_and_prepared(client, key):
    client.ok("BEGIN")
    client.ok(text(POST, key))
    client.run(ADD, key).ok()
    client.ok("COMMIT")


def later_in_a_round_with_its_block(client, key):
    client.ask(w.extended("BEGIN"), w.extended(POST, [key]), w.extended(ADD, [key]), w.extended("COMMIT")).ok()


def again_behind_a_savepoint(client, key):
    client.ok("BEGIN")
    client.ok(text(POST, key))
    client.ok("SAVEPOINT s")
    client.ok(text(ADD, key))
    client.ok("ROLLBACK TO s")
    client.ok(text(ADD, key))
    client.ok("COMMIT")


WAYS = [simple, extended, block, later_in_a_query, later_in_a_block, later_and_prepared,
        later_in_a_round_with_its_block, again_behind_a_savepoint]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_statements_whose_triggers_may_read_anything_run_under_the_version_in_force(cluster, move, client, way):
    before = counters(cluster)
    client.ok(text(POST, move.near))
    for number in (1, 2):  # with sessions that were lent before, too
        assert client.value(f"{SEEN}{move.near} LIMIT 1") == str(move.version), "the others run under the next one"
        way(client, move.near)
        assert row(move) == (100 + number, str(move.before))
    assert counters(cluster) == before, "nobody had to wait, or to begin again"


def test_a_portal_of_the_client_outlives_the_way_back(cluster, move, client):
    """The router's own statement goes between its messages, and may not replace what is open."""
    client.ok("BEGIN")
    for _ in range(3):
        client.ok(text(POST, move.near))
    read = f"SELECT token FROM posting WHERE account_id = {move.near}"
    answer = client.ask(w.parse(read, "r"), w.parse(ADD, "a"), w.bind((), "r"), w.execute(limit=2),
                        w.bind([move.near], "a", portal="p"), w.execute("p"), w.execute())
    assert answer.ok().kinds == "112DDs2CDCZ"
    client.ok("COMMIT")
    assert row(move) == (101, str(move.before))


def test_a_round_that_is_no_block_waits_for_what_becomes_of_the_move(cluster, move, client):
    """The first statement of its transaction has run under the version to come."""
    asked = Asked(client.ask, w.extended(POST, [move.near]), w.extended(ADD, [move.near]))
    wait_until(lambda: counters(cluster)["waiting"] == 1, 10, "it waits for routes")
    version = move.version
    move.withdraw()
    assert asked.answer().ok().kinds == "12nC12nCZ"
    assert row(move) == (101, str(move.before)) and int(row(move)[1]) < version
    assert move.source.value("SELECT count(*) FROM posting WHERE account_id = %s", move.near) == 1


def test_the_line_listener_does_the_same(cluster, move):
    client = cluster.client()
    ok(client.q(CREDIT, 1, move.near))
    assert row(move) == (101, str(move.before))
    ok(client.q("BEGIN"))
    ok(client.q(CREDIT, 1, move.near))
    ok(client.q("COMMIT"))
    assert row(move) == (102, str(move.before))
    ok(client.q("BEGIN"))
    ok(client.q("SELECT token FROM posting WHERE account_id = ?", move.near))
    ok(client.q(CREDIT, 1, move.near))
    assert ok(client.q("SELECT token FROM posting WHERE account_id = ?", move.near)).rows == []
    ok(client.q("COMMIT"))
    assert row(move) == (103, str(move.before))


def test_a_block_that_has_gone_back_is_cut_by_the_decision(cluster, move, client):
    """What its trigger would read there may be another shard's by now."""
    line = cluster.client()
    client.ok("BEGIN")
    client.ok(f"SELECT token FROM posting WHERE account_id = {move.near}")
    ok(line.q("BEGIN"))
    ok(line.q("SELECT token FROM posting WHERE account_id = ?", move.near))
    move.fence().decide()
    client.ok(f"SELECT token FROM posting WHERE account_id = {move.near}")
    assert "IL102" in str(client.query(text(ADD, move.near)).refused("40001", "E").error.fields)
    client.ok("ROLLBACK")
    answer = refused(line.q(CREDIT, 1, move.near), "R31", "E")
    assert answer.sqlstate == "40001" and "IL102" in answer.msg
    ok(line.q("ROLLBACK"))
    assert row(move) == (100, "o")
