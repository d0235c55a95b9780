"""Shards and routers that die: who notices, how fast, and what is left behind."""

import signal

import pytest

from support.placement import keys_on
from support.proxy import CuttingProxy
from support.router import SLACK
from support.statements import BALANCE, CREDIT, DEBIT, INSERT, ok, refused
from support.wait import Stopwatch, wait_until

S0, S1 = keys_on("s0", 6), keys_on("s1", 6)


def test_a_stopped_shard_fails_only_its_own_requests_and_comes_back_without_help(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    pinned, client = cluster.client(), cluster.client()
    ok(client.q(BALANCE, S1[1]))
    ok(pinned.q("BEGIN"))
    ok(pinned.q(DEBIT, 100, S1[0]))
    cluster.s1.stop("fast")

    broken = refused(pinned.q(CREDIT, 100, S1[1]), "R31", "E")
    assert broken.sqlstate == "57P01" and broken.shard == "s1"
    refused(pinned.q("COMMIT"), "R13", "E")
    ok(pinned.q("ROLLBACK"))

    for key in S1[:5]:
        with Stopwatch() as watch:
            answer = refused(client.q(BALANCE, key), "R30", "I")
        assert answer.sqlstate == "IL030"
        assert watch.seconds < 0.25 * SLACK, "R30 comes in milliseconds"
    assert [ok(client.q(BALANCE, key)).rows for key in S0[:5]] == [[[1000]]] * 5

    cluster.s1.start()
    assert ok(client.q(BALANCE, S1[0])).rows == [[1000]], "the pinned transaction's write is not there"
    assert cluster.total() == 40_000


def test_a_shard_that_crashed_and_came_back_between_two_requests_is_not_noticed_by_the_second(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    for _ in range(2):
        ok(client.q(CREDIT, 1, S1[0]))
    cluster.s1.restart("immediate")
    assert ok(client.q(BALANCE, S1[0])).rows == [[1002]]
    cluster.s1.kill()
    cluster.s1.start()
    assert ok(client.q(CREDIT, 1, S1[0])).count == 1


def test_a_pooled_connection_that_the_shard_has_closed_is_replaced_before_anything_is_sent(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    with cluster.s0.connect() as killer:
        for round in range(5):
            pid = ok(client.q(CREDIT, 1, S0[0])).pid
            assert killer.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,)).fetchone() == (True,)
            # At once, long before an idle connection would be looked at.
            assert ok(client.q(BALANCE, S0[0])).rows == [[1001 + round]]
    assert cluster.router.status().shards["s0"]["destroyed"] == 5


def test_a_shard_that_is_unavailable_fails_a_transaction_before_anything_was_sent(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    cluster.s1.stop()
    client = cluster.client()
    ok(client.q("BEGIN"))
    refused(client.q(CREDIT, 1, S1[0]), "R30", "E")
    refused(client.q(BALANCE, S0[0]), "R13", "E")
    assert ok(client.q("ROLLBACK")).tx == "I"
    ok(client.q(BALANCE, S0[0]))


def test_a_frozen_shard_does_not_hold_up_the_other(make_cluster):
    cluster = make_cluster(router_settings={"pool": {"connect_timeout": "1s", "acquire_timeout": "1s",
                                                     "statement_timeout": "2s"}}).up()
    cluster.load_accounts()
    client, victim = cluster.client(), cluster.client(timeout=40)
    ok(victim.q(BALANCE, S1[0]))
    cluster.s1.freeze()
    try:
        victim.send_raw(victim.request(BALANCE, S1[0]).encode() + b"\n")
        for key in S0[:5]:
            with Stopwatch() as watch:
                assert ok(client.q(BALANCE, key)).rows == [[1000]]
            assert watch.seconds < 0.5 * SLACK
        raw = victim.read_line()
        assert raw.startswith("ERR code=R3"), raw
    finally:
        cluster.s1.thaw()
    wait_until(lambda: victim.q(BALANCE, S1[0]).ok, 20, "the thawed shard is served again")


def test_a_router_killed_with_9_in_a_transaction_leaves_nothing_behind(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q(CREDIT, 50, S0[0]))
    ok(client.q("BEGIN"))
    pid = ok(client.q(CREDIT, 100, S0[0])).pid
    assert cluster.activity("s0", pid) == "idle in transaction"

    watcher = cluster.s0.connect("postgres")
    with watcher, Stopwatch() as watch:
        # Popen's -9 is what a shell shows as 137.
        assert 128 - cluster.router.end(signal.SIGKILL) == 137
        wait_until(lambda: watcher.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
                   is None, 5, "the backend is gone")
    assert watch.seconds < 0.25 * SLACK, "tens of milliseconds, with room for a busy machine"
    with cluster.s0.connect() as direct:
        assert direct.execute("SELECT balance FROM account WHERE account_id = %s FOR UPDATE NOWAIT",
                              (S0[0],)).fetchone() == (1050,)
    # A restart only has to read the routes.
    cluster.router.start()
    assert ok(cluster.client().q(BALANCE, S0[0])).rows == [[1050]]


def test_another_router_is_not_touched_by_one_that_dies(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    second = cluster.new_router().start()
    client = cluster.client(second)
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 10, S0[0]))
    cluster.router.end(signal.SIGKILL)
    ok(client.q(CREDIT, 10, S0[1]))
    ok(client.q("COMMIT"))
    assert cluster.balance(S0[0]) == 990 and cluster.balance(S0[1]) == 1010


@pytest.fixture
def proxied(make_cluster):
    """A cluster whose router reaches s0 through a proxy that can cut: (cluster, proxy)."""
    made = []

    def conninfo_of(name, instance):
        if name != "s0":
            return instance.conninfo("app")
        made.append(CuttingProxy(("127.0.0.1", instance.port)))
        return f"host=127.0.0.1 port={made[0].port} dbname=app"

    cluster = make_cluster(conninfo_of=conninfo_of).up()
    cluster.load_accounts()
    yield cluster, made[0]
    made[0].close()


TOKEN = "token-4711"


def token_rows(cluster):
    return cluster.s0.value("SELECT count(*) FROM account WHERE owner = %s", TOKEN)


@pytest.mark.parametrize("before", [True, False], ids=["cut-before-the-server-saw-it", "cut-before-its-answer"])
def test_a_connection_cut_after_commit_was_sent_is_outcome_unknown(proxied, before):
    cluster, proxy = proxied
    key = keys_on("s0", 1, start=10_000)[0]
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(INSERT, key, TOKEN, 1, 0))
    proxy.arm("commit", before)
    answer = refused(client.q("COMMIT"), "R32")
    assert answer.sqlstate == "08007" and answer.tx in ("I", "E"), answer.raw
    assert proxy.cut.is_set()
    if answer.tx == "E":
        ok(client.q("ROLLBACK"))
    # The token tells which way it went: R32 could not.
    if before:
        wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the server has dropped it")
    assert token_rows(cluster) == (0 if before else 1)
    # The session and the shard go on.
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


@pytest.mark.parametrize("before", [True, False], ids=["cut-before-the-server-saw-it", "cut-before-its-answer"])
def test_a_connection_cut_during_an_autocommit_write_is_outcome_unknown(proxied, before):
    cluster, proxy = proxied
    key = keys_on("s0", 1, start=10_000)[0]
    client = cluster.client()
    # The statement's values travel in the request that runs it.
    proxy.arm(TOKEN, before)
    answer = refused(client.q(INSERT, key, TOKEN, 1, 0), "R32", "I")
    assert answer.sqlstate == "08007"
    assert proxy.cut.is_set()
    assert token_rows(cluster) == (0 if before else 1)
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


def test_a_connection_cut_during_a_read_is_not_reported_as_an_unknown_outcome(proxied):
    cluster, proxy = proxied
    client = cluster.client()
    ok(client.q(BALANCE, S0[0]))
    proxy.arm("select balance", True)
    answer = client.q(BALANCE, S0[0])
    assert answer.ok or answer.code == "R30", answer.raw
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


def test_a_connection_cut_inside_a_transaction_before_commit_is_no_unknown_outcome_for_its_rollback(proxied):
    cluster, proxy = proxied
    key = keys_on("s0", 1, start=10_000)[0]
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(INSERT, key, TOKEN, 1, 0))
    proxy.arm("select balance", True)
    answer = client.q(BALANCE, S0[0])
    assert not answer.ok and answer.tx == "E", answer.raw
    refused(client.q("COMMIT"), "R13", "E")
    assert ok(client.q("ROLLBACK")).tx == "I"
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the server has dropped it")
    assert token_rows(cluster) == 0
