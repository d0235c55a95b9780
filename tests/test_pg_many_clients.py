"""Many clients: idle ones cost little, busy ones share few connections, one too many is told why."""

import resource
import socket
import threading

import pytest

from support import pgwire as w
from support.control import KEY, KEYS
from support.pgclient import LoginRefused, PgClient
from support.router import SLACK, memory_bound
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {"max_clients": 10_100}, "line": {"max_clients": 100},
                                       "pool": {"size": 2}}}
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"


def possible_clients(wanted):
    """As many as files may be open, here and in the router, which inherits the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(wanted, soft - 500)


def test_ten_thousand_idle_clients_cost_little_and_the_next_is_served_as_ever(cluster, record_property):
    count = possible_clients(10_000)
    record_property("clients", count)
    if count < 10_000:
        print(f"only {count} clients: the limit of open files is {count + 500}")
    packet = w.startup({"user": "app", "database": "app"})
    before = cluster.router.resident_kib()
    sockets = []
    try:
        # A bare socket each; as many at once as a listen queue holds.
        while len(sockets) < count:
            batch = []
            for _ in range(min(100, count - len(sockets))):
                batch.append(socket.create_connection((cluster.router.host, cluster.router.pg_port), timeout=20))
                batch[-1].sendall(packet)
            for each in batch:
                heard = b""
                while not heard.endswith(b"Z\0\0\0\x05I"):
                    chunk = each.recv(4096)
                    assert chunk, f"client {len(sockets)} was sent away with {heard!r}"
                    heard += chunk
            sockets += batch
        assert cluster.router.status().clients >= count
        per_client = (cluster.router.resident_kib() - before) / count
        record_property("kib_per_client", round(per_client, 2))
        assert per_client * count < memory_bound(count * 6 / 1024), f"{per_client:.2f} KiB a client"
        with Stopwatch() as watch:
            for _ in range(100):
                assert cluster.pg_client().value(BALANCE) == "1000"
        assert watch.seconds < 5 * SLACK
        # Any of them is still there.
        for each in sockets[::997]:
            each.sendall(w.query(BALANCE))
            assert b"1000" in each.recv(4096)
    finally:
        for each in sockets:
            each.close()
    wait_until(lambda: cluster.router.status().clients < 200, 30 * SLACK, "they are gone")
    assert cluster.pg_client().value(BALANCE) == "1000"


def test_twelve_clients_on_a_pool_of_two_are_all_served_and_never_more_than_two_at_once(cluster):
    clients = [cluster.pg_client(timeout=30) for _ in range(12)]
    slow = f"SELECT pg_sleep(0.25) FROM account WHERE account_id = {KEY}"
    most = []
    over = threading.Event()

    def watch_shard():
        with cluster.s0.connect() as watcher:
            while not over.is_set():
                most.append(watcher.execute("SELECT count(*) FILTER (WHERE state = 'active'), count(*)"
                                            " FROM pg_stat_activity WHERE usename = 'app'").fetchone())

    watcher = threading.Thread(target=watch_shard)
    watcher.start()
    try:
        with Stopwatch() as watch:
            for i, client in enumerate(clients):
                client.send(w.query(slow) if i % 2 else w.extended(slow) + w.sync())
            wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 10, 5, "ten wait")
            for client in clients:
                assert client.until_ready().ok().tag == "SELECT 1"
    finally:
        over.set()
        watcher.join()
    assert max(active for active, _ in most) == 2 and max(total for _, total in most) <= 2
    assert 1.5 <= watch.seconds < 3.5 * SLACK, "six rounds of two"


def test_waiters_are_served_in_the_order_they_came(cluster):
    holders = [cluster.pg_client() for _ in range(2)]
    for holder in holders:
        holder.ok("BEGIN")
        holder.ok(BALANCE)
    waiters = [cluster.pg_client() for _ in range(8)]
    for place, client in enumerate(waiters):
        client.send(w.query(f"UPDATE account SET owner = owner || '{place}' WHERE account_id = {KEYS[1]}"))
        wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == place + 1, 5, "it waits")
    holders[0].ok("COMMIT")
    for client in waiters:
        client.until_ready().ok()
    assert cluster.s0.value("SELECT owner FROM account WHERE account_id = %s", KEYS[1]) == f"owner{KEYS[1]}01234567"
    holders[1].ok("COMMIT")


def test_one_client_too_many_is_told_why_and_the_others_stay(make_cluster):
    cluster = make_cluster(router_settings={"pg": {"max_clients": 5}}).up()
    cluster.load_accounts()
    clients = [cluster.pg_client() for _ in range(5)]
    for _ in range(3):
        with pytest.raises(LoginRefused) as refusal:
            cluster.pg_client()
        assert refusal.value.code == "53300" and refusal.value.message.fields["S"] == "FATAL"
    for client in clients:
        assert client.value(BALANCE) == "1000"
    # A cancel request is no client.
    clients[0].send(w.query(f"SELECT pg_sleep(30) FROM account WHERE account_id = {KEY}"))
    wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                                        " AND usename = 'app'") == 1, 10, "it runs")
    clients[0].cancel()
    clients[0].until_ready().refused("57014")
    clients.pop().terminate()
    wait_until(lambda: cluster.router.status().clients <= 5, 5, "one has left")

    def comes_in():
        try:
            return PgClient(cluster.router.pg_port)
        except LoginRefused:
            return None

    with wait_until(comes_in, 5, "there is room again") as client:
        assert client.value(BALANCE) == "1000"


def test_each_listener_counts_its_own_clients(make_cluster):
    cluster = make_cluster(router_settings={"pg": {"max_clients": 5}, "line": {"max_clients": 3}}).up()
    cluster.load_accounts()
    clients = [cluster.pg_client() for _ in range(5)]
    lines = [cluster.client() for _ in range(3)]
    for client in lines:
        assert client.ask("STATUS").startswith("OK")
    assert all(client.value(BALANCE) == "1000" for client in clients)


def test_a_full_queue_and_a_long_wait_are_refused_and_named(make_cluster):
    cluster = make_cluster(router_settings={"pg": {}, "pool": {"size": 1, "max_waiting": 2,
                                                              "acquire_timeout": "400ms"}}).up()
    cluster.load_accounts()
    holder = cluster.pg_client()
    holder.ok("BEGIN")
    holder.ok(BALANCE)
    waiters = [cluster.pg_client() for _ in range(2)]
    for client in waiters:
        client.send(w.query(BALANCE))
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 2, 5, "two wait")
    extra = cluster.pg_client()
    with Stopwatch() as watch:
        extra.query(BALANCE).refused("53300", "I")
    assert watch.seconds < 0.3 * SLACK
    for client in waiters:
        client.until_ready().refused("IL033", "I")
    extra.ok("BEGIN")
    extra.query(BALANCE).refused("IL033", "E")
    extra.ok("ROLLBACK")
    holder.ok("COMMIT")
    assert extra.value(BALANCE) == "1000"


def test_clients_that_do_not_log_in_are_sent_away_in_time(make_cluster):
    cluster = make_cluster(router_settings={"pg": {"login_timeout": "500ms"}}).up()
    cluster.load_accounts()
    files = cluster.router.open_files()
    packet = w.startup({"user": "app", "database": "app"})
    slow = [cluster.pg_client(login=False) for _ in range(30)]
    for i, client in enumerate(slow):
        client.send(packet[:i])
    with Stopwatch() as watch:
        for client in slow:
            client.until_closed(5)
    assert watch.seconds < 3 * SLACK
    wait_until(lambda: cluster.router.open_files() <= files + 3, 5, "their sockets are closed")
    # One that has logged in may be silent as long as it likes.
    client = cluster.pg_client()
    assert client.silent(0.8)
    assert client.value(BALANCE) == "1000"
