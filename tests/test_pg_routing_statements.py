"""The observations of spec "routing" over the PostgreSQL listener: single statements and transactions."""

import threading

import pytest

from support import pgwire as w
from support.placement import keys_on
from support.router import SLACK
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {}}, "shard_settings": {"log_statement": "all"}}
S0, S1 = keys_on("s0", 20), keys_on("s1", 20)


def balance(key):
    return f"SELECT balance FROM account WHERE account_id = {key}"


def add(amount, key):
    return f"UPDATE account SET balance = balance + {amount} WHERE account_id = {key}"


def pid(key):
    return f"SELECT pg_backend_pid() FROM account WHERE account_id = {key}"


@pytest.mark.parametrize("ask", ["simple", "extended", "binary"])
def test_forty_rows_inserted_through_the_router_land_twenty_and_twenty_and_none_misplaced(cluster, ask):
    for shard in (cluster.s0, cluster.s1):
        shard.sql("DELETE FROM account")
    client = cluster.pg_client()
    client.ask(w.parse("INSERT INTO account VALUES ($1, $2, 100, 0)", "insert", [20, 25])).ok()
    for key in sorted(S0 + S1):
        if ask == "simple":
            answer = client.query(f"insert INTO account VALUES ({key}, 'owner{key}', 100, 0)")
        else:
            raw = key.to_bytes(8, "big") if ask == "binary" else key
            answer = client.ask(w.bind([raw, f"owner{key}"], "insert",
                                       parameter_formats=[int(ask == "binary"), 0]), w.execute())
        assert answer.ok().tag == "INSERT 0 1"
    assert cluster.counts() == (20, 20)
    for shard, keys in (("s0", S0), ("s1", S1)):
        rows = cluster.instances[shard].sql("SELECT account_id FROM account ORDER BY 1")
        assert [row[0] for row in rows] == sorted(keys)
        assert cluster.instances[shard].sql("SELECT * FROM interlock.misplaced('account')") == []
    for key in S0 + S1:
        assert client.ok(f"SeLeCt owner fRoM account whErE account_id = {key}").value == f"owner{key}"


def test_an_empty_transaction_uses_no_backend(cluster):
    client = cluster.pg_client()
    created = {name: shard["created"] for name, shard in cluster.router.status().shards.items()}
    marks = {name: cluster.instances[name].log_mark() for name in ("s0", "s1")}
    for end in ("COMMIT", "ROLLBACK"):
        assert client.ok("BEGIN ISOLATION LEVEL SERIALIZABLE").status == "T"
        client.ok("SAVEPOINT a")
        assert client.ok(end).status == "I"
        client.run("BEGIN").ok()
        client.run(end).ok()
    assert {name: shard["created"] for name, shard in cluster.router.status().shards.items()} == created
    for name, mark in marks.items():
        assert " app@app " not in cluster.instances[name].log_since(mark)


# What is refused, with how many of each code: nothing of it may reach a backend.
REFUSED = {
    "IL010": ["SELECT * FROM account", "DELETE FROM account", "UPDATE account SET balance = 0",
              "SELECT * FROM account WHERE owner = 'owner1'", "DELETE FROM account WHERE balance = 1000",
              f"SELECT * FROM account WHERE account_id = {S0[0]} OR account_id = {S0[1]}",
              "INSERT INTO account (owner, balance) VALUES ('nobody', 1)",
              f"SELECT * FROM account WHERE NOT account_id = {S0[0]}",
              f"SELECT * FROM account WHERE account_id > {S0[0]}", "SELECT count(*) FROM account",
              f"SELECT * FROM account WHERE account_id + 0 = {S0[0]}"],
    "IL011": [f"SELECT * FROM account WHERE account_id IN ({S0[0]}, {S1[0]})",
              f"DELETE FROM account WHERE account_id IN ({S0[0]}, {S1[0]})",
              f"SELECT * FROM account a, account b WHERE a.account_id = {S0[0]} AND b.account_id = {S1[0]}",
              f"INSERT INTO account VALUES ({S0[0] + 1000000}, 'a', 1, 0), ({S0[0] + 1000001}, 'b', 1, 0),"
              f" ({S0[0] + 1000002}, 'c', 1, 0), ({S0[0] + 1000003}, 'd', 1, 0), ({S0[0] + 1000004}, 'e', 1, 0),"
              f" ({S0[0] + 1000005}, 'f', 1, 0), ({S0[0] + 1000006}, 'g', 1, 0), ({S0[0] + 1000007}, 'h', 1, 0)"],
    "IL024": ["DROP TABLE account", "TRUNCATE account", "ALTER TABLE account DROP COLUMN balance",
              "CREATE INDEX ON account (owner)"],
    "IL025": ["LISTEN somewhere", "LOCK TABLE account", "SET ROLE postgres", "PREPARE p AS SELECT 1"],
    "IL027": ["SELECT * FROM account WHERE account_id = 'abc'", "SELECT * FROM account WHERE account_id = NULL"],
    "IL029": [f"UPDATE account SET account_id = {S1[0]} WHERE account_id = {S0[0]}",
              f"UPDATE account SET account_id = account_id + 1 WHERE account_id = {S0[0]}"],
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_not_proven_is_refused_with_its_code_and_never_reaches_a_backend(cluster, code):
    client = cluster.pg_client()
    client.ok(balance(S0[0])), client.ok(balance(S1[0]))
    marks = {name: cluster.instances[name].log_mark() for name in ("s0", "s1")}
    wrong = []
    for sql in REFUSED[code]:
        for ask in (client.query, client.run):
            answer = ask(sql)
            if answer.codes != [code] or answer.status != "I":
                wrong.append(f"{code} expected for {sql}: {answer}")
                continue
            fields = answer.error.fields
            assert fields["S"] == "ERROR" and fields["M"].startswith(f"R{code[3:]}"), fields
    assert not wrong, "\n".join(wrong)
    assert cluster.counts() == (20, 20) and cluster.total() == 40_000
    for name, mark in marks.items():
        said = [line for line in cluster.instances[name].log_since(mark).splitlines() if " app@app " in line]
        assert said == [], f"{name} was told:\n" + "\n".join(said)
    assert client.value(balance(S0[0])) == "1000"


def test_an_in_list_on_one_shard_answers_and_across_shards_is_refused(cluster):
    client = cluster.pg_client()
    same = f"SELECT account_id FROM account WHERE account_id IN ({S0[0]}, {S0[1]}) ORDER BY 1"
    assert client.ok(same).rows == [(str(key).encode(),) for key in sorted(S0[:2])]
    by_parameter = "SELECT account_id FROM account WHERE account_id IN ($1, $2) ORDER BY 1"
    assert len(client.run(by_parameter, S0[0], S0[1]).ok().rows) == 2
    client.run(by_parameter, S0[0], S1[0]).refused("IL011", "I")
    array = "SELECT account_id FROM account WHERE account_id = ANY ($1::bigint[]) ORDER BY 1"
    assert len(client.run(array, f"{{{S1[0]},{S1[1]}}}").ok().rows) == 2
    client.run(array, f"{{{S0[0]},{S1[1]}}}").refused("IL011", "I")
    assert client.ok(f"DELETE FROM account WHERE account_id IN ({S0[0]}, {S0[1]})").tag == "DELETE 2"
    assert cluster.counts() == (18, 20)


@pytest.mark.parametrize("ask", ["simple", "extended"])
def test_a_same_shard_transfer_runs_on_one_backend_and_is_seen_only_after_commit(cluster, ask):
    client = cluster.pg_client()
    ask = client.query if ask == "simple" else client.run
    answers = [ask("BEGIN"), ask(add(-100, S0[0])), ask(add(100, S0[1])), ask(balance(S0[0]))]
    pids = {client.value(pid(S0[0])), client.value(pid(S0[1]))}
    assert answers[3].value == "900"
    assert cluster.balance(S0[0]) == 1000 and cluster.balance(S0[1]) == 1000
    answers.append(ask("COMMIT"))
    assert [answer.ok().status for answer in answers] == ["T", "T", "T", "T", "I"]
    assert len(pids) == 1
    assert cluster.balance(S0[0]) == 900 and cluster.balance(S0[1]) == 1100 and cluster.total() == 40_000


def test_a_backend_error_passes_its_sqlstate_and_fails_the_transaction(cluster):
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(add(5, S0[1]))
    client.query(add(-5000, S0[0])).refused("23514", "E")
    assert cluster.idle_in_transaction("s0") == 0, "without a savepoint its backend is free at once"
    client.query(balance(S0[0])).refused("25P02", "E")
    client.query(balance(S1[0])).refused("25P02", "E")
    assert client.ok("ROLLBACK").status == "I"
    assert cluster.total() == 40_000


def test_begin_inside_a_transaction_warns_and_the_transaction_goes_on(cluster):
    client = cluster.pg_client()
    client.ok("BEGIN")
    assert client.ok("BEGIN").notices[0].code == "25001"
    first = client.value(pid(S0[0]))
    client.ok(add(-10, S0[0]))
    assert client.ok("BEGIN").notices[0].code == "25001"
    assert client.value(pid(S0[0])) == first
    client.ok(add(10, S0[1]))
    assert client.ok("COMMIT").status == "I"
    assert cluster.balance(S0[0]) == 990 and cluster.balance(S0[1]) == 1010


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_cross_shard_transfer_is_refused_and_the_first_shard_is_released_at_once(cluster, savepoint):
    client = cluster.pg_client()
    client.ok("BEGIN")
    if savepoint:
        client.ok("SAVEPOINT a")
    client.ok(add(-100, S0[0]))
    assert cluster.idle_in_transaction("s0") == 1
    answer = client.query(add(100, S1[0])).refused("IL012", "E")
    assert answer.error.text.startswith("R12")
    assert cluster.idle_in_transaction("s0") == 0
    # The row is free for others, before the client has said anything more.
    other = cluster.pg_client()
    other.ok(add(1, S0[0])), other.ok(add(-1, S0[0]))
    client.query(balance(S0[0])).refused("25P02", "E")
    if savepoint:
        # The whole transaction is gone, so there is no going back to a part of it.
        assert client.query("ROLLBACK TO a").errors and client.query(balance(S0[0])).status == "E"
    assert client.ok("COMMIT").tag == "ROLLBACK"
    assert cluster.balance(S0[0]) == 1000 and cluster.balance(S1[0]) == 1000 and cluster.total() == 40_000


class RowHeld:
    """Holds a row of s0 until someone has waited for it for 300 ms, by the server's own clock."""

    def __init__(self, cluster, key):
        self.cluster, self.key = cluster, key
        self.over = threading.Event()

    def __enter__(self):
        self.holder = self.cluster.s0.connect(autocommit=False)
        self.holder.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE", (self.key,))
        self.thread = threading.Thread(target=self.release)
        self.thread.start()
        return self

    def release(self):
        waited = "SELECT 1 FROM pg_locks WHERE NOT granted AND clock_timestamp() - waitstart >= '300 ms'"
        with self.cluster.s0.connect() as watcher, self.holder:
            wait_until(lambda: self.over.is_set() or watcher.execute(waited).fetchone(), 20, "a waiter")

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_a_statement_timeout_of_one_client_does_not_end_the_lock_wait_of_another(cluster):
    one, two = cluster.pg_client(), cluster.pg_client()
    one.ok("SET statement_timeout = '100ms'")
    with RowHeld(cluster, S0[0]):
        one.query(add(-1, S0[0])).refused("57014", "I")
    with RowHeld(cluster, S0[0]), Stopwatch() as watch:
        assert two.ok(add(-1, S0[0])).tag == "UPDATE 1"
    assert 0.3 <= watch.seconds < 1.5 * SLACK
    assert cluster.balance(S0[0]) == 999


def test_a_client_that_vanishes_in_a_transaction_leaves_a_clean_backend_in_the_pool(cluster):
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(add(-100, S0[0]))
    backend = int(client.value(pid(S0[0])))
    assert cluster.activity("s0", backend) == "idle in transaction"
    with cluster.s0.connect("postgres") as watcher, Stopwatch() as watch:
        client.close()
        wait_until(lambda: watcher.execute(
            "SELECT state FROM pg_stat_activity WHERE pid = %s", (backend,)).fetchone() == ("idle",),
            2, "the backend is idle again")
    assert watch.seconds < 0.25 * SLACK, "tens of milliseconds, with room for a busy machine"
    assert int(cluster.pg_client().value(pid(S0[0]))) == backend, "it has stayed in the pool"
    with cluster.s0.connect() as direct:
        direct.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE NOWAIT", (S0[0],))
    assert cluster.balance(S0[0]) == 1000


def test_both_listeners_of_one_router_serve_at_once(cluster):
    line, client = cluster.client(), cluster.pg_client()
    for turn in range(5):
        answer = line.q("UPDATE account SET balance = balance - ? WHERE account_id = ?", 5, S0[0])
        assert answer.ok, answer.raw
        assert client.value(balance(S0[0])) == str(1000 - 8 * turn - 5)
        client.ok(add(-3, S0[0]))
    assert cluster.balance(S0[0]) == 960
