"""Moves beside transactions of every isolation level: what began before, what is under way, what comes after."""

import random
import threading

import psycopg
import pytest

from support import settled
from support.router import SLACK
from support.shard import refusal
from support.wait import wait_until

TABLES = """CREATE TABLE t (k bigint PRIMARY KEY, v int NOT NULL);
            CREATE TABLE token (k bigint, id text, PRIMARY KEY (k, id))"""
KEYS = {"t": "k", "token": "k"}
SNAPSHOT = ["REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def family(movable):
    made = movable.family(TABLES, KEYS)
    made.load("INSERT INTO t SELECT g, 100 FROM generate_series(1, 400) g WHERE owned(g)")
    return made


def routed(family, **options):
    """A psycopg session through the router; its statements name the schema."""
    connection = psycopg.connect(f"host=127.0.0.1 port={family.cluster.router.pg_port} user=app dbname=app", autocommit=True, **options)
    family.cluster.connections.append(connection)
    return connection


def known_to(family, bucket, shard):
    """Until the router routes the bucket there."""
    client = family.cluster.pg_client()
    key = family.keys(bucket)[0]
    port = str(family.cluster.instances[shard].port)
    wait_until(lambda: client.value(f"SELECT current_setting('port') FROM {family.name}.t WHERE k = {key}") == port, 20)


# -- what is older than the move ----------------------------------------------------------------------


@pytest.mark.parametrize("level", SNAPSHOT)
def test_a_snapshot_from_before_the_move_writes_nothing_at_the_old_owner(movable, family, level):
    key, = family.keys(2)
    old = family.connect("s0")
    old.execute(f"BEGIN ISOLATION LEVEL {level}")
    # It reads a table that does not move, so it is not waited for.
    old.execute("SELECT count(*) FROM pg_class")
    mover = family.mover(2, "s1", stop="after-routed").stopped()
    with refusal("IL101"):
        old.execute("UPDATE t SET v = 0 WHERE k = %s", (key,))
    old.execute("ROLLBACK")
    mover.go_on().end()
    assert family.on("s1", "SELECT v FROM t WHERE k = %s", key) == [(100,)]


@pytest.mark.parametrize("level", ["READ COMMITTED", *SNAPSHOT])
def test_a_reader_from_before_the_move_is_cut_with_a_retryable_error_and_sees_no_half(movable, family, level):
    """Its grace period over, a routed transaction that reads gets 40001; what it has read was all of it."""
    key, = family.keys(2)
    reader = routed(family)
    reader.execute(f"BEGIN ISOLATION LEVEL {level}")
    query = f"SELECT v FROM {family.name}.t WHERE k = {key}"
    assert reader.execute(query).fetchall() == [(100,)]
    mover = family.mover(2, "s1", "--grace", "50ms", stop="after-routed").stopped()
    with refusal("40001") as caught:
        reader.execute(query)
    assert "IL102" in str(caught[0])
    reader.execute("ROLLBACK")
    mover.go_on().end()
    assert reader.execute(query).fetchall() == [(100,)]


def test_rows_stay_until_the_last_direct_reader_from_before_the_decision_has_gone(movable, family):
    """A session without a router is refused nothing that it reads: its snapshot has all rows as long as it lasts."""
    count = "SELECT count(*), sum(v) FROM t"
    reader = family.connect("s0")
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = reader.execute(count).fetchone()
    mover = family.mover(2, "s1", "--grace", "50ms", stop="after-unsubscribed").stopped()
    mover.go_on()
    for _ in range(20):
        assert reader.execute(count).fetchone() == before
        assert reader.execute("SELECT v FROM t WHERE k = %s", (family.keys(2)[0],)).fetchone() == (100,)
    assert mover.running()
    assert family.rows("s0", "t", [2])
    reader.execute("COMMIT")
    mover.end()
    assert family.rows("s0", "t", [2]) == []


@pytest.mark.parametrize("level", SNAPSHOT)
@pytest.mark.parametrize("statement", ["SELECT v FROM {}.t WHERE k = {}", "UPDATE {}.t SET v = v + 1 WHERE k = {}"], ids=["read", "write"])
def test_a_snapshot_of_the_target_from_before_the_move_does_not_see_the_bucket_empty(movable, family, level, statement):
    """It is pinned to the shard that the bucket comes to; in its snapshot the rows are not there yet."""
    moved, there = family.keys(2)[0], family.keys(3)[0]
    client = routed(family)
    client.execute(f"BEGIN ISOLATION LEVEL {level}")
    assert client.execute(f"SELECT v FROM {family.name}.t WHERE k = {there}").fetchall() == [(100,)]
    family.move(2, "s1")
    known_to(family, 2, "s1")
    try:
        found = client.execute(statement.format(family.name, moved))
    except psycopg.Error as error:
        # Another shard's as far as this transaction knows, or too new for its snapshot: never "no such row".
        assert error.diag.sqlstate in ("IL012", "40001"), error
    else:
        assert found.rowcount == 1, "the row is not seen, and nobody has said so"
    client.execute("ROLLBACK")
    assert client.execute(f"SELECT v FROM {family.name}.t WHERE k = {moved}").fetchall() == [(100,)]


@pytest.mark.parametrize("level", ["READ COMMITTED", *SNAPSHOT])
def test_a_writer_from_before_the_fence_is_waited_for(movable, family, level):
    first, second = family.keys(2, 2)
    mover = family.mover(2, "s1", "--max-pause", "30s", stop="after-copied").stopped()
    # Begun when the slot is there, which is made when nobody writes.
    writer = routed(family)
    writer.execute(f"BEGIN ISOLATION LEVEL {level}")
    writer.execute(f"UPDATE {family.name}.t SET v = v - 5 WHERE k = {first}")
    mover.go_on()
    wait_until(lambda: settled.states(movable, 2, family.name)["s0"] == "fenced", 60 * SLACK, "the bucket is fenced")
    # It may finish what it has begun, behind the fence; another writer has to wait until it is open.
    writer.execute(f"UPDATE {family.name}.t SET v = v + 5 WHERE k = {second}")
    family.refused("s0", "UPDATE t SET v = 0 WHERE k = %s", family.keys(2, 3)[2], code="IL103")
    assert mover.running()
    writer.execute("COMMIT")
    mover.end()
    assert family.on("s1", "SELECT v FROM t WHERE k = ANY (%s) ORDER BY v", [first, second]) == [(95,), (105,)]
    assert family.rows("s0", "t", [2]) == []


# -- load ---------------------------------------------------------------------------------------------


class Payer(threading.Thread):
    """Transfers within the bucket, and withdrawals that must leave no pair below zero: a write skew, which only
    SERIALIZABLE forbids. Each leaves a token. A failed serialization is tried again, as an application does."""

    def __init__(self, family, number, keys, pairs, level, stop):
        super().__init__(daemon=True)
        self.family, self.number, self.keys, self.pairs, self.level, self.stopped = family, number, keys, pairs, level, stop
        self.tokens, self.unknown, self.retries, self.error = [], [], 0, None

    def run(self):
        try:
            with psycopg.connect(f"host=127.0.0.1 port={self.family.cluster.router.pg_port} user=app dbname=app", autocommit=True) as session:
                chance = random.Random(self.number)
                turn = 0
                while not self.stopped.is_set():
                    turn += 1
                    self.one(session, chance, f"{self.number}-{turn}")
        except Exception as error:  # noqa: BLE001 (told by the test)
            self.error = error

    def one(self, session, chance, token):
        schema = self.family.name
        giver, taker = chance.sample(self.keys, 2)
        pair = chance.choice(self.pairs)
        withdraw = chance.random() < 0.4
        while True:
            try:
                session.execute(f"BEGIN ISOLATION LEVEL {self.level}")
                if withdraw:
                    found = dict(session.execute(f"SELECT k, v FROM {schema}.t WHERE k IN (%s, %s)", pair).fetchall())
                    assert set(found) == set(pair), "a row is not seen"
                    change = -1 if sum(found.values()) >= 1 else 2
                    chosen = chance.choice(pair)
                    session.execute(f"UPDATE {schema}.t SET v = v + %s WHERE k = %s", (change, chosen))
                    key = chosen
                else:
                    for key, amount in ((giver, -1), (taker, 1)):
                        done = session.execute(f"UPDATE {schema}.t SET v = v + %s WHERE k = %s", (amount, key))
                        assert done.rowcount == 1, "UPDATE 0"
                session.execute(f"INSERT INTO {schema}.token VALUES (%s, %s)", (key, token))
                session.execute("COMMIT")
                self.tokens.append(token)
                return
            except psycopg.Error as error:
                if error.diag.sqlstate not in ("40001", "40P01"):
                    raise
                self.retries += 1
                session.execute("ROLLBACK")


@pytest.mark.parametrize("level", SNAPSHOT)
def test_a_bucket_moves_back_and_forth_under_load(movable, family, level):
    keys = family.keys(2, 40)
    family.on("s0", "INSERT INTO t SELECT k, 100 FROM unnest(%s::bigint[]) k ON CONFLICT DO NOTHING", keys)
    pairs = [tuple(keys[i:i + 2]) for i in range(0, 10, 2)]
    family.on("s0", "UPDATE t SET v = 1 WHERE k = ANY (%s)", keys[:10])
    total = family.value("s0", "SELECT sum(v)::int FROM t WHERE k = ANY (%s)", keys[10:])
    stop = threading.Event()
    payers = [Payer(family, number, keys[10:], pairs, level, stop) for number in range(6)]
    for payer in payers:
        payer.start()
    where = "s0"
    try:
        for _ in range(4):
            before = sum(len(payer.tokens) for payer in payers)
            where = "s1" if where == "s0" else "s0"
            family.move(2, where)
            # They are at work on the new owner.
            wait_until(lambda: sum(len(payer.tokens) for payer in payers) > before + 50 or any(payer.error for payer in payers), 60 * SLACK)
    finally:
        stop.set()
        for payer in payers:
            payer.join(30 * SLACK)
    assert not [payer.error for payer in payers if payer.error]
    acknowledged = sorted(token for payer in payers for token in payer.tokens)
    other = "s1" if where == "s0" else "s0"
    assert sorted(row[0] for row in family.on(where, "SELECT id FROM token")) == acknowledged
    assert family.on(other, "SELECT id FROM token") == [] and family.rows(other, "t", [2]) == []
    assert family.value(where, "SELECT sum(v)::int FROM t WHERE k = ANY (%s)", keys[10:]) == total
    if level == "SERIALIZABLE":
        sums = [family.value(where, "SELECT sum(v)::int FROM t WHERE k = ANY (%s)", list(pair)) for pair in pairs]
        assert min(sums) >= 0, sums
    assert movable.leftovers() == []
