"""Cancel requests: they reach the statement they were meant for, while it runs or waits, and no other."""

import os
import random
import struct
import threading
import time

import pytest

from support import pgwire as w
from support.control import KEY
from support.placement import keys_on
from support.router import SLACK
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 1}}}
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
SLOW = f"SELECT pg_sleep(30) FROM account WHERE account_id = {KEY}"
DEBIT = f"UPDATE account SET balance = balance - 10 WHERE account_id = {KEY}"
FAR = keys_on("s1", 1)[0]


def running(cluster, shard="s0"):
    return cluster.instances[shard].value(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'")


@pytest.mark.parametrize("message", [w.query(SLOW), w.extended(SLOW) + w.sync(),
                                     w.query(f"COPY ({SLOW}) TO STDOUT"), w.query(f"{BALANCE}; {SLOW}; {BALANCE}"),
                                     w.query("SELECT pg_sleep(30)")],
                         ids=["simple", "extended", "copy", "several", "any shard"])
def test_a_running_statement_is_cancelled(cluster, message):
    client = cluster.pg_client()
    client.send(message)
    wait_until(lambda: running(cluster) + running(cluster, "s1") == 1, 10, "it runs")
    with Stopwatch() as watch:
        client.cancel()
        answer = client.until_ready().refused("57014", "I")
    assert watch.seconds < 2 * SLACK
    assert answer.error.fields["S"] == "ERROR"
    assert client.value(BALANCE) == "1000"
    assert cluster.pg_client().value(BALANCE) == "1000"


def test_a_statement_that_waits_for_a_lock_is_cancelled(cluster):
    holder = cluster.connect("s0", autocommit=False)
    holder.execute("SELECT 1 FROM account WHERE account_id = %s FOR UPDATE", (KEY,))
    client = cluster.pg_client()
    client.send(w.query(DEBIT))
    wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"),
               10, "it waits")
    client.cancel()
    client.until_ready().refused("57014", "I")
    holder.rollback()
    assert cluster.balance(KEY) == 1000


def test_a_cancel_in_a_transaction_fails_it_and_rollback_ends_it(cluster):
    client = cluster.pg_client()
    for ask in (client.query, client.run):
        client.ok("BEGIN")
        client.ok(DEBIT)
        thread = threading.Timer(0, lambda: (wait_until(lambda: running(cluster) == 1, 10), client.cancel()))
        thread.start()
        ask(SLOW).refused("57014", "E")
        thread.join()
        client.query(BALANCE).refused("25P02", "E")
        assert client.ok("ROLLBACK").status == "I"
    client.ok("BEGIN")
    client.ok(DEBIT)
    client.ok("SAVEPOINT a")
    client.send(w.query(SLOW))
    wait_until(lambda: running(cluster) == 1, 10)
    client.cancel()
    client.until_ready().refused("57014", "E")
    client.ok("ROLLBACK TO a")
    assert client.value(BALANCE) == "990"
    client.ok("ROLLBACK")
    assert cluster.balance(KEY) == 1000


def test_a_statement_that_waits_for_a_connection_is_cancelled_in_the_queue(cluster):
    holder, client, later = (cluster.pg_client() for _ in range(3))
    holder.ok("BEGIN")
    holder.ok(BALANCE)
    for message, status in ((w.query(DEBIT), "I"), (w.extended(DEBIT) + w.sync(), "I")):
        client.send(message)
        wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 1, 10, "it waits")
        client.cancel()
        client.until_ready().refused("57014", status)
        assert cluster.router.status().shards["s0"]["waiting"] == 0
    client.ok("BEGIN")
    client.send(w.query(DEBIT))
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 1, 10, "it waits")
    later.send(w.query(BALANCE))
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 2, 10, "two wait")
    client.cancel()
    client.until_ready().refused("57014", "E")
    client.ok("ROLLBACK")
    # The holder's statement was not touched, and the one behind in the queue is served.
    assert holder.value(BALANCE) == "1000"
    holder.ok("COMMIT")
    assert later.until_ready().ok().value == "1000"
    assert cluster.balance(KEY) == 1000


def test_a_cancel_while_nothing_runs_does_nothing(cluster):
    client, other = cluster.pg_client(), cluster.pg_client()
    for _ in range(20):
        client.ok(BALANCE)
        client.cancel()
        assert other.value(BALANCE) == "1000"
    client.ok("BEGIN")
    client.cancel()
    client.ok(BALANCE)
    client.cancel()
    client.ok(BALANCE)
    client.ok("COMMIT")


def test_a_wrong_key_is_ignored(cluster):
    client, stranger = cluster.pg_client(), cluster.pg_client()
    client.send(w.query(f"SELECT pg_sleep(0.5) FROM account WHERE account_id = {KEY}"))
    wait_until(lambda: running(cluster) == 1, 10, "it runs")
    pid, secret = client.key
    wrong = [(pid, secret ^ 1), (pid, 0), (pid, 0xFFFFFFFF), (pid + 1, secret), (0, 0), (pid, stranger.key[1]),
             (stranger.key[0], secret), stranger.key, (-1, secret)]
    backend = cluster.s0.value("SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'")
    for key in [*wrong, (backend, secret)]:
        stranger.cancel(key)
    assert client.until_ready().ok().tag == "SELECT 1"


def test_a_cancel_packet_of_a_wrong_length_is_ignored_and_closed(cluster):
    client = cluster.pg_client()
    client.send(w.query(f"SELECT pg_sleep(0.3) FROM account WHERE account_id = {KEY}"))
    whole = w.cancel_request(*client.key)
    for packet in (whole[:8], w.untyped(whole[4:12]), w.untyped(whole[4:] + b"more"), whole[:15]):
        other = cluster.pg_client(login=False)
        other.send(packet)
        other.close()
    assert client.until_ready().ok().tag == "SELECT 1"
    # One that comes byte by byte is whole all the same.
    client.send(w.query(SLOW))
    wait_until(lambda: running(cluster) == 1, 10, "it runs")
    other = cluster.pg_client(login=False)
    other.send_split(whole, *range(1, len(whole)))
    client.until_ready().refused("57014")
    assert other.until_closed() == []


def test_another_routers_key_is_ignored(make_cluster):
    cluster = make_cluster(router_settings={"pg": {}}).up()
    cluster.load_accounts()
    second = cluster.new_router().start()
    client = cluster.pg_client()
    abroad = cluster.pg_client(second)
    for each in (client, abroad):
        each.send(w.query(f"SELECT pg_sleep(0.7) FROM account WHERE account_id = {KEY}"))
    wait_until(lambda: running(cluster) == 2, 10, "both run")
    client.cancel(peer=abroad.peer)
    abroad.cancel(peer=client.peer)
    assert client.until_ready().ok() and abroad.until_ready().ok()
    client.send(w.query(SLOW))
    wait_until(lambda: running(cluster) == 1, 10, "it runs")
    client.cancel(peer=abroad.peer)
    client.cancel()
    client.until_ready().refused("57014")


def test_a_cancel_never_reaches_the_next_borrower_of_the_backend(cluster):
    """One client cancels its statements just as they end; the other must never notice."""
    victim, hammer = cluster.pg_client(), cluster.pg_client()
    # Its statements are long enough to be hit, were they ever aimed at.
    innocent = f"SELECT pg_sleep(0.004) FROM account WHERE account_id = {KEY}"
    over = threading.Event()
    hit, served = [], []

    def live():
        while not over.is_set():
            answer = victim.query(innocent)
            (hit if answer.errors else served).append(answer)

    thread = threading.Thread(target=live)
    thread.start()
    cancelled = 0
    try:
        dice = random.Random(4711)
        for _ in range(400):
            hammer.send(w.query(f"SELECT pg_sleep({dice.random() * 0.006}) FROM account WHERE account_id = {KEY}"))
            # It waits for the victim's statement, runs, ends: the cancel comes at any of these moments.
            time.sleep(dice.random() * 0.012)
            hammer.cancel()
            answer = hammer.until_ready()
            assert answer.codes in ([], ["57014"]), answer
            cancelled += bool(answer.errors)
    finally:
        over.set()
        thread.join(30)
    assert not hit, f"{len(hit)} of {len(hit) + len(served)}: {hit[0]}"
    assert served and cancelled > 10, (len(served), cancelled)
    assert cluster.balance(KEY) == 1000


def test_a_cancel_that_comes_late_does_not_hit_the_same_clients_next_statement_in_a_transaction_elsewhere(cluster):
    """The cancel of a statement on one shard while the client has gone on to another."""
    client = cluster.pg_client()
    for turn in range(60):
        client.send(w.query(f"SELECT pg_sleep({(turn % 10) * 0.0005}) FROM account WHERE account_id = {KEY}"))
        client.cancel()
        assert client.until_ready().codes in ([], ["57014"])
        # PostgreSQL too lets a late cancel hit the next statement of the same session; but never a third.
        client.query(f"SELECT 1 FROM account WHERE account_id = {FAR}")
        assert not client.query(f"SELECT pg_sleep(0.002) FROM account WHERE account_id = {FAR}").errors
        assert not client.query(f"SELECT pg_sleep(0.002) FROM account WHERE account_id = {KEY}").errors


def test_many_cancels_at_once_do_not_exhaust_the_router(cluster):
    client = cluster.pg_client()
    files = cluster.router.open_files()
    others = []
    for _ in range(300):
        other = cluster.pg_client(login=False)
        other.send(struct.pack("!iiiI", 16, w.CANCEL_REQUEST, int.from_bytes(os.urandom(3), "big"), 7))
        others.append(other)
    for other in others:
        other.until_closed()
        other.close()
    assert client.value(BALANCE) == "1000"
    wait_until(lambda: cluster.router.open_files() <= files + 5, 10, "their sockets are closed")
