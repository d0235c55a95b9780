"""Negative controls: what goes wrong on the very same shards without the router's refusals."""

import threading

import pytest

from localcluster.line import LineClient
from support.naive_forwarder import NaiveForwarder
from support.placement import keys_on
from support.router import SLACK
from support.statements import CREDIT, DEBIT, ok, refused
from support.wait import Stopwatch, wait_until

S0, S1 = keys_on("s0", 4), keys_on("s1", 4)


@pytest.fixture
def forwarder(cluster):
    forwarder = NaiveForwarder({name: cluster.instances[name].conninfo("app", "app") for name in ("s0", "s1")})
    yield forwarder
    forwarder.close()


def test_a_naive_forwarder_says_ok_four_times_and_loses_half_a_transfer(cluster, forwarder):
    with LineClient(forwarder.host, forwarder.port) as client:
        answers = [client.q("BEGIN"), client.q(DEBIT, 100, S0[0]), client.q(CREDIT, 100, S1[0]),
                   client.q("COMMIT")]
    assert [answer.ok for answer in answers] == [True] * 4
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the forwarder gave its connection back")
    debited = 1000 - cluster.balance(S0[0])
    credited = cluster.balance(S1[0]) - 1000
    assert (debited, credited) == (0, 100)
    assert cluster.total() == 40_000 + 100


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


def test_session_state_of_one_client_cancels_anothers_statement_behind_a_naive_forwarder(cluster, forwarder):
    with LineClient(forwarder.host, forwarder.port) as one, LineClient(forwarder.host, forwarder.port) as two:
        first = ok(one.q("SET statement_timeout = '100ms'"))
        with RowHeld(cluster, S0[0]):
            answer = two.q(DEBIT, 1, S0[0])
    assert first.pid == answer.pid
    assert (answer.code, answer.sqlstate) == ("R31", "57014")
    assert cluster.balance(S0[0]) == 1000


def test_the_router_refuses_the_setting_and_the_same_lock_wait_succeeds(cluster):
    one, two = cluster.client(), cluster.client()
    refused(one.q("SET statement_timeout = '100ms'"), "R25", "I")
    with RowHeld(cluster, S0[0]), Stopwatch() as watch:
        answer = ok(two.q(DEBIT, 1, S0[0]))
    assert answer.count == 1
    assert 0.3 <= watch.seconds < 1.5 * SLACK, "the statement waited for the lock and no longer"
    assert cluster.balance(S0[0]) == 999
