"""The observations of spec "routing" over the PostgreSQL listener: routes that change, shards and routers that die."""

import signal

import pytest

from support import pgwire as w
from support.placement import keys_in_bucket, keys_on
from support.proxy import CuttingProxy
from support.router import SLACK
from support.wait import Stopwatch, wait_until

S0, S1 = keys_on("s0", 6), keys_on("s1", 6)
PG = {"router_settings": {"pg": {}}}
MOVED = 4  # a bucket of s0
KEY, SECOND = keys_in_bucket(MOVED, 2)
TOKEN = "token-4711"


def balance(key):
    return f"SELECT balance FROM account WHERE account_id = {key}"


def add(amount, key):
    return f"UPDATE account SET balance = balance + {amount} WHERE account_id = {key}"


def pid(key):
    return f"SELECT pg_backend_pid() FROM account WHERE account_id = {key}"


def test_a_route_change_does_not_move_a_transaction_in_progress(make_cluster):
    cluster = make_cluster(**PG).up()
    cluster.s0.sql("INSERT INTO account VALUES (%s, 'a', 1000, 0), (%s, 'b', 1000, 0)", KEY, SECOND)
    client, prepared = cluster.pg_client(), cluster.pg_client()
    prepared.ask(w.parse("INSERT INTO account VALUES ($1, 'prepared', 1, 0)", "s")).ok()
    client.ok("BEGIN")
    client.ok(add(-100, KEY))
    cluster.assign([MOVED], "s1")
    version = cluster.publish(allow_owner_change=True)
    cluster.s1.sql("SELECT interlock.accept_buckets('accounts', %s, %s)", [MOVED], version)
    wait_until(lambda: cluster.router.status().rv == version, 10, "the router has seen the new routes")

    first = client.value(pid(KEY))
    client.run(add(100, SECOND)).ok()
    assert client.value(balance(KEY)) == "900" and client.value(pid(SECOND)) == first
    assert client.ok("COMMIT").status == "I"
    assert cluster.s0.value("SELECT balance FROM account WHERE account_id = %s", KEY) == 900
    client.ok(f"INSERT INTO account VALUES ({KEY}, 'new owner', 1, 0)")
    assert cluster.s1.value("SELECT owner FROM account WHERE account_id = %s", KEY) == "new owner"
    # A statement prepared under the old routes follows the new ones.
    prepared.ask(w.bind([SECOND], "s"), w.execute()).ok()
    assert cluster.s1.value("SELECT owner FROM account WHERE account_id = %s", SECOND) == "prepared"


def test_a_stopped_shard_fails_only_its_own_requests_and_comes_back_without_help(make_cluster):
    cluster = make_cluster(**PG).up()
    cluster.load_accounts()
    pinned, client = cluster.pg_client(), cluster.pg_client()
    client.ok(balance(S1[1]))
    pinned.ok("BEGIN")
    pinned.ok(add(-100, S1[0]))
    cluster.s1.stop("fast")

    answer = pinned.query(add(100, S1[1])).refused("57P01", "E")
    assert answer.error.fields["S"] == "ERROR", "it is the backend that was shut down, not the client's connection"
    pinned.query(balance(S1[0])).refused("25P02", "E")
    assert pinned.ok("COMMIT").tag == "ROLLBACK"
    for key in S1[:5]:
        for ask in (client.query, client.run):
            with Stopwatch() as watch:
                answer = ask(balance(key)).refused("IL030", "I")
            assert watch.seconds < 0.25 * SLACK, "R30 comes in milliseconds"
            assert answer.error.text.startswith("R30")
    assert [client.value(balance(key)) for key in S0[:5]] == ["1000"] * 5
    # What needs no shard's rows is answered by the one that is there.
    assert [client.value("SELECT 1") for _ in range(4)] == ["1"] * 4
    client.ok("BEGIN")
    client.query(add(1, S1[0])).refused("IL030", "E")
    client.ok("ROLLBACK")

    cluster.s1.start()
    assert client.value(balance(S1[0])) == "1000", "the pinned transaction's write is not there"
    assert cluster.total() == 40_000


def test_a_shard_that_crashed_and_came_back_between_two_requests_is_not_noticed_by_the_second(make_cluster):
    cluster = make_cluster(**PG).up()
    cluster.load_accounts()
    client = cluster.pg_client()
    client.ask(w.parse("UPDATE account SET balance = balance + $2 WHERE account_id = $1", "s")).ok()
    client.ok("SET DateStyle = 'German'")
    for kill in (lambda: cluster.s1.restart("immediate"), lambda: (cluster.s1.kill(), cluster.s1.start())):
        client.ask(w.bind([S1[0], 1], "s"), w.execute()).ok()
        kill()
        # Prepared statement and settings with it.
        assert client.ask(w.bind([S1[0], 1], "s"), w.execute()).ok().tag == "UPDATE 1"
        assert client.value(f"SELECT '2026-02-01'::date FROM account WHERE account_id = {S1[0]}") == "01.02.2026"
    assert cluster.balance(S1[0]) == 1004


def test_a_backend_that_is_terminated_in_a_statement_is_that_clients_error_only(make_cluster):
    cluster = make_cluster(**PG).up()
    cluster.load_accounts()
    client, other = cluster.pg_client(), cluster.pg_client()
    running = "SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'"
    for message in (w.query(f"SELECT pg_sleep(20) FROM account WHERE account_id = {S0[0]}"),
                    w.extended(f"SELECT pg_sleep(20) FROM account WHERE account_id = {S0[0]}") + w.sync()):
        client.send(message)
        backend = wait_until(lambda: cluster.s0.value(running), 10, "it runs")
        cluster.s0.sql("SELECT pg_terminate_backend(%s)", backend)
        answer = client.until_ready().refused("57P01", "I")
        assert answer.error.fields["S"] == answer.error.fields["V"] == "ERROR"
        assert other.value(balance(S0[0])) == "1000" and client.value(balance(S0[0])) == "1000"


@pytest.mark.parametrize("way", ["simple", "extended"])
def test_a_commit_whose_backend_has_gone_before_is_an_error_not_a_rollback_that_nobody_looks_at(make_cluster, way):
    cluster = make_cluster(**PG).up()
    cluster.load_accounts()
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(add(100, S0[0]))
    cluster.s0.sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app'")
    # The router has seen the end when it has let go of the connection.
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "the router has noticed")
    answer = client.query("COMMIT") if way == "simple" else client.run("COMMIT")
    answer.refused("57P01", "I")
    assert client.value(balance(S0[0])) == "1000"
    # Once it is told, COMMIT answers as PostgreSQL does.
    client.ok("BEGIN")
    client.ok(add(100, S0[0]))
    cluster.s0.sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app'")
    client.query(balance(S0[0])).refused("57P01", "E")
    assert client.ok("COMMIT").tag == "ROLLBACK"


def test_a_router_killed_with_9_in_a_transaction_leaves_nothing_behind(make_cluster):
    cluster = make_cluster(**PG).up()
    cluster.load_accounts()
    client = cluster.pg_client()
    client.ok(add(50, S0[0]))
    client.ok("BEGIN")
    client.ok(add(100, S0[0]))
    backend = int(client.value(pid(S0[0])))
    with cluster.s0.connect("postgres") as watcher, Stopwatch() as watch:
        assert 128 - cluster.router.end(signal.SIGKILL) == 137
        wait_until(lambda: watcher.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (backend,)).fetchone()
                   is None, 5, "the backend is gone")
    assert watch.seconds < 0.25 * SLACK
    with cluster.s0.connect() as direct:
        assert direct.execute("SELECT balance FROM account WHERE account_id = %s FOR UPDATE NOWAIT",
                              (S0[0],)).fetchone() == (1050,)
    cluster.router.start()
    assert cluster.pg_client().value(balance(S0[0])) == "1050"


def test_sigterm_lets_a_transaction_in_progress_commit_and_tells_the_others(make_cluster):
    cluster = make_cluster(**PG).up()
    cluster.load_accounts()
    client, idle = cluster.pg_client(), cluster.pg_client()
    idle.ok(balance(S1[0]))
    client.ok("BEGIN")
    client.ok(add(-100, S0[0]))
    cluster.router.expected_end = True
    cluster.router.send(signal.SIGTERM)
    messages = idle.until_closed(10)
    assert [(m.code, m.fields["S"]) for m in messages if m.kind == "E"] in ([("57P01", "FATAL")], []), messages
    assert cluster.router.process.poll() is None, "it waits for the transaction"
    client.ok(add(100, S0[1]))
    assert client.ok("COMMIT").tag == "COMMIT"
    assert cluster.router.process.wait(10 * SLACK) == 0
    assert cluster.balance(S0[0]) == 900 and cluster.balance(S0[1]) == 1100


@pytest.fixture
def proxied(make_cluster):
    """A cluster whose router reaches s0 through a proxy that can cut: (cluster, proxy)."""
    made = []

    def conninfo_of(name, instance):
        if name != "s0":
            return instance.conninfo("app")
        made.append(CuttingProxy(("127.0.0.1", instance.port)))
        return f"host=127.0.0.1 port={made[0].port} dbname=app"

    cluster = make_cluster(conninfo_of=conninfo_of, **PG).up()
    cluster.load_accounts()
    yield cluster, made[0]
    made[0].close()


def token_rows(cluster):
    return cluster.s0.value("SELECT count(*) FROM account WHERE owner = %s", TOKEN)


@pytest.mark.parametrize("before", [True, False], ids=["cut-before-the-server-saw-it", "cut-before-its-answer"])
@pytest.mark.parametrize("ask", ["simple", "extended"])
def test_a_connection_cut_after_a_write_or_a_commit_was_sent_is_outcome_unknown(proxied, before, ask):
    cluster, proxy = proxied
    client = cluster.pg_client()
    send = client.query if ask == "simple" else client.run
    keys = keys_on("s0", 2, start=10_000)
    insert = [f"INSERT INTO account VALUES ({key}, '{TOKEN}', 1, 0)" for key in keys]
    # A COMMIT.
    client.ok("BEGIN")
    send(insert[0]).ok()
    proxy.arm("commit", before)
    answer = send("COMMIT")
    assert answer.codes == ["08007"] and proxy.cut.is_set(), answer
    assert answer.error.text.startswith("R32") and answer.error.fields["H"]
    if answer.status == "E":
        client.ok("ROLLBACK")
    if before:
        wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the server has dropped it")
    assert token_rows(cluster) == (0 if before else 1)
    # A write that commits itself.
    cluster.s0.sql("DELETE FROM account WHERE owner = %s", TOKEN)
    client.ok(balance(S0[0]))
    proxy.arm(TOKEN, before)
    assert send(insert[1]).codes == ["08007"] and proxy.cut.is_set()
    assert token_rows(cluster) == (0 if before else 1)
    # The session and the shard go on.
    assert client.value(balance(S0[0])) == "1000"


def test_a_connection_cut_during_a_read_is_not_reported_as_an_unknown_outcome(proxied):
    cluster, proxy = proxied
    client = cluster.pg_client()
    client.ok(balance(S0[0]))
    proxy.arm("select balance", True)
    assert client.query(balance(S0[0])).codes in ([], ["IL030"])
    client.ok("BEGIN")
    client.ok(add(1, S0[0]))
    proxy.arm("select balance", True)
    answer = client.query(balance(S0[0]))
    assert len(answer.errors) == 1 and answer.status == "E" and answer.codes != ["08007"], answer
    assert client.ok("COMMIT").tag == "ROLLBACK"
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the server has dropped it")
    assert client.value(balance(S0[0])) == "1000"


def test_a_frozen_shard_does_not_hold_up_the_other(make_cluster):
    cluster = make_cluster(router_settings={"pg": {}, "pool": {"connect_timeout": "1s", "acquire_timeout": "1s",
                                                               "statement_timeout": "2s"}}).up()
    cluster.load_accounts()
    client, victim = cluster.pg_client(), cluster.pg_client(timeout=40)
    victim.ok(balance(S1[0]))
    cluster.s1.freeze()
    try:
        victim.send(w.query(balance(S1[0])))
        for key in S0[:5]:
            with Stopwatch() as watch:
                assert client.value(balance(key)) == "1000"
            assert watch.seconds < 0.5 * SLACK
        assert victim.until_ready().codes[0].startswith("IL03")
    finally:
        cluster.s1.thaw()
    wait_until(lambda: not victim.query(balance(S1[0])).errors, 20, "the thawed shard is served again")


def test_a_router_whose_route_is_older_than_the_shards_floor_is_refused_by_the_shard(make_cluster):
    cluster = make_cluster(separate_catalog=True, router_settings={"pg": {}, "routes": {"wait": "200ms"}}).up()
    cluster.load_accounts()
    client = cluster.pg_client()
    client.ok(balance(KEY))
    cluster.catalog.stop()
    cluster.s0.sql("SET interlock.allow_truncate = on; TRUNCATE account")
    cluster.s0.sql("SELECT interlock.release_buckets('accounts', %s, 's1', 2)", [MOVED])
    for sql in (f"INSERT INTO account VALUES ({KEY}, 'late', 1, 0)", balance(KEY), add(1, KEY)):
        for answer in (client.query(sql), client.run(sql)):
            assert "(IL102)" in answer.refused("40001", "I").error.text
    assert cluster.s0.value("SELECT count(*) FROM account") == 0
    assert client.value(balance(S1[0])) == "1000"
