"""Large parameters and large answers pass through bounded buffers; a client that does not read holds up nobody."""

import socket
import struct
import threading
import time

import pytest

from support import pgwire as w
from support.control import KEY, KEYS
from support.pgclient import Closed
from support.placement import keys_on
from support.router import SLACK, memory_bound
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {"max_packet": "64MB", "write_timeout": "1h"}, "pool": {"size": 2}}}
MB = 1 << 20
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"


class Peak:
    """The highest resident memory of the router while the body runs, and what it was before."""

    def __init__(self, router):
        self.router = router

    def __enter__(self):
        self.before = self.highest = self.router.resident_kib()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.over.wait(0.01):
            self.highest = max(self.highest, self.router.resident_kib())

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    @property
    def growth(self):
        return self.highest - self.before


def skim(client):
    """Reads to ReadyForQuery without keeping anything; returns the number of bytes."""
    size, tail = 0, b""
    client.socket.settimeout(60)
    while not tail.startswith(b"Z\0\0\0\x05"):
        chunk = client.socket.recv(1 << 20)
        if not chunk:
            raise Closed([])
        size += len(chunk)
        tail = (tail + chunk)[-6:]
    return size


def test_a_parameter_of_fifty_megabytes_arrives_and_the_memory_comes_back(cluster):
    client = cluster.pg_client(timeout=60)
    value = b"x" * (50 * MB)
    with Peak(cluster.router) as peak:
        assert client.run("SELECT length($2) FROM account WHERE account_id = $1", KEY, value, types=[20, 25]
                          ).ok().value == str(len(value))
        # Not the key's, so it need not be kept.
        assert client.run("UPDATE account SET owner = $2 WHERE account_id = $1", KEY, value).tag == "UPDATE 1"
    assert peak.growth < memory_bound(160), f"{peak.growth} KiB for a parameter of 50 MiB"
    assert cluster.s0.value("SELECT length(owner) FROM account WHERE account_id = %s", KEY) == len(value)
    client.ok(f"UPDATE account SET owner = '' WHERE account_id = {KEY}")
    wait_until(lambda: cluster.router.resident_kib() - peak.before < memory_bound(30), 10, "the memory is given back")


SETS = "UPDATE account SET owner = $2 WHERE account_id = $1"


@pytest.fixture(name="narrow", scope="module")
def narrow_router(module_cluster):
    """A router that keeps messages up to 2 MiB: longer ones pass through it in pieces."""
    router = module_cluster.new_router("narrow", {"pg": {"max_packet": "2MB"}, "pool": {"size": "2"},
                                                  "limits": {"max_buffered_bytes": "8MB"}})
    return router.start()


@pytest.mark.parametrize("name", ["", "s"])
@pytest.mark.parametrize("begin", ["SELECT 1", "BEGIN"])
def test_a_parameter_longer_than_what_is_kept_passes_through_in_pieces(cluster, narrow, name, begin):
    client = narrow.pg_client(timeout=60)
    value = b"0123456789" * (5 * MB)
    client.ok(begin)
    client.ask(w.parse(SETS, name, [20, 25])).ok()
    with Peak(narrow) as peak:
        answer = client.ask(w.bind([KEY, value], name), w.execute(), w.parse("SELECT 2"), w.bind(), w.execute()).ok()
    assert answer.tags == ["UPDATE 1", "SELECT 1"]
    assert peak.growth < memory_bound(8), f"{peak.growth} KiB for a parameter of 50 MiB"
    client.query("COMMIT")
    assert cluster.s0.value("SELECT owner = repeat('0123456789', 5242880) FROM account WHERE account_id = %s", KEY)
    assert client.value(BALANCE) == "1000"
    client.ok(f"UPDATE account SET owner = '' WHERE account_id = {KEY}")


def test_a_long_message_whose_key_comes_too_late_is_refused_and_passed_over(cluster, narrow):
    client = narrow.pg_client(timeout=60)
    value = b"x" * (5 * MB)
    late = "UPDATE account SET owner = $1 WHERE account_id = $2"
    client.ask(w.parse(late, "", [25, 20]), w.bind([value, KEY]), w.execute()).refused("IL037", "I")
    client.query(f"SELECT '{'x' * (5 * MB)}'").refused("IL037", "I")
    client.ask(w.parse(f"SELECT '{'x' * (5 * MB)}'"), w.bind(), w.execute()).refused("IL037", "I")
    client.ask(w.parse(SETS, "", [20, 25]), w.bind([KEY, value], "none"), w.execute()).refused("26000", "I")
    far = keys_on("s1", 1)[0]
    client.ok("BEGIN")
    client.ok(BALANCE)
    client.ask(w.parse(SETS, "", [20, 25]), w.bind([far, value]), w.execute()).refused("IL012", "E")
    client.ask(w.parse("ROLLBACK"), w.bind(), w.execute()).ok()
    assert client.value(BALANCE) == "1000"
    assert cluster.s0.value("SELECT length(owner) < 100 FROM account WHERE account_id = %s", KEY)


def test_a_client_that_leaves_in_the_middle_of_a_long_message_leaves_nothing(cluster, narrow):
    for begin in ("SELECT 1", "BEGIN"):
        client = narrow.pg_client()
        client.ok(begin)
        message = w.parse(SETS, "", [20, 25]) + w.bind([KEY, b"x" * (5 * MB)])
        client.send(message[:3 * MB])
        client.socket.close()
        wait_until(lambda: all(shard["borrowed"] == 0 for shard in narrow.status().shards.values()), 10,
                   "the connection is not lent any more")
    other = narrow.pg_client()
    assert other.ok(f"UPDATE account SET balance = 1000 WHERE account_id = {KEY}").tag == "UPDATE 1"


def test_messages_that_come_in_part_have_a_budget_for_all_clients(narrow):
    message = w.query("SELECT '" + "x" * (1900 * 1024) + "'")
    clients = [narrow.pg_client() for _ in range(5)]
    *early, last = clients
    for client in early:
        client.send(message[:-10])
    wait_until(lambda: narrow.status().buffered >= 4 * (len(message) - 10), 10, "four parts are held")
    last.send(message[:-10])
    end = last.until_closed()
    assert end.codes == ["53200"] and end.errors[0].fields["S"] == "FATAL", end
    early[0].send(message[-10:])
    assert len(early[0].until_ready().ok().value) == 1900 * 1024
    for client in early:
        client.close()
    wait_until(lambda: narrow.status().buffered < 64 * 1024, 10, "what the clients had sent is given back")


def test_a_row_of_a_hundred_megabytes_passes_through_small_buffers(cluster):
    client = cluster.pg_client(timeout=60)
    sql = f"SELECT repeat('x', {100 * MB}) FROM account WHERE account_id = {KEY}"
    client.ok(BALANCE)
    with Peak(cluster.router) as peak:
        for message in (w.query(sql), w.extended(sql) + w.sync(), w.query(f"COPY ({sql}) TO STDOUT")):
            client.send(message)
            assert skim(client) > 100 * MB
    assert peak.growth < memory_bound(8), f"{peak.growth} KiB for a row of 100 MiB"
    assert client.value(BALANCE) == "1000"


def test_a_row_of_a_hundred_megabytes_is_not_changed_by_a_byte(cluster):
    client = cluster.pg_client(timeout=60)
    half = 10 * MB
    sql = (f"SELECT repeat('ab', {half // 2}), g, repeat('xyz', {half // 3}) FROM account, generate_series(1, 3) g"
           f" WHERE account_id = {KEY} ORDER BY g")
    rows = client.run(sql, result_formats=[0, 1, 0]).ok().rows
    assert rows == [(b"ab" * (half // 2), struct.pack("!i", g), b"xyz" * (half // 3)) for g in (1, 2, 3)]


def test_a_gigabyte_that_the_client_does_not_read_stays_on_the_shard(cluster):
    sql = f"SELECT repeat('x', {MB}) FROM account, generate_series(1, 1024) WHERE account_id = {KEY}"
    client = cluster.pg_client(receive_buffer=65536)
    client.ok(BALANCE)
    other = cluster.pg_client()
    with Peak(cluster.router) as peak:
        for message in (w.query(sql), w.extended(sql) + w.sync()):
            lazy = cluster.pg_client(receive_buffer=65536)
            lazy.send(message)
            # The shard has begun and waits for somebody to read.
            wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"
                                                " AND wait_event = 'ClientWrite'") == 1, 20, "the shard waits")
            with Stopwatch() as watch:
                for _ in range(20):
                    assert other.value(BALANCE) == "1000"
            assert watch.seconds < 2 * SLACK, "others are served"
            lazy.close()
            wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "its backend is given up")
    assert peak.growth < memory_bound(8), f"{peak.growth} KiB for an answer nobody read"
    wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"
                                        " AND state = 'active'") == 0, 10, "nothing runs for nobody")


def test_a_slow_reader_gets_everything(cluster):
    rows = 4000
    sql = f"SELECT repeat('x', 10000) FROM account, generate_series(1, {rows}) WHERE account_id = {KEY}"
    client = cluster.pg_client(timeout=60, receive_buffer=32768)
    with Peak(cluster.router) as peak:
        client.send(w.query(sql))
        seen = 0
        while (message := client.receive()).kind != "Z":
            seen += message.kind == "D"
            if seen % 100 == 0:
                time.sleep(0.005)  # this is the slowness, nothing is waited for
    assert seen == rows
    assert peak.growth < memory_bound(8)


def test_a_client_that_does_not_read_for_too_long_is_closed_and_its_backend_freed(make_cluster):
    cluster = make_cluster(router_settings={"pg": {"write_timeout": "500ms"}, "pool": {"size": 1}}).up()
    cluster.load_accounts()
    client = cluster.pg_client(receive_buffer=32768)
    client.send(w.query(f"SELECT repeat('x', {MB}) FROM account, generate_series(1, 500) WHERE account_id = {KEY}"))
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 1, 10, "it runs")
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10 * SLACK, "its backend is free")
    assert cluster.pg_client().value(BALANCE) == "1000"


def test_clients_that_send_and_never_read_are_held_back(cluster):
    """A pipeline without end: the router stops reading when nobody takes the answers."""
    client = cluster.pg_client(receive_buffer=32768)
    client.ok(BALANCE)
    request = w.query(f"SELECT repeat('x', 20000) FROM account WHERE account_id = {KEY}") * 20
    with Peak(cluster.router) as peak:
        client.socket.settimeout(1.0)
        sent = 0
        try:
            while sent < 200 * MB:
                sent += client.socket.send(request)
        except (TimeoutError, socket.timeout):
            pass
        assert sent < 100 * MB, "it was never held back"
    assert peak.growth < memory_bound(16), f"{peak.growth} KiB after {sent} bytes of requests"
    client.close()
    assert cluster.pg_client().value(BALANCE) == "1000"


@pytest.mark.parametrize("size", [1000, 8000, 8191, 8192, 8193, 16384, 65535, 65536, 65537, 200_000])
def test_statements_and_rows_around_the_sizes_of_buffers_are_whole(cluster, size):
    client = cluster.pg_client()
    text = ("0123456789abcdef" * (size // 16 + 1))[:size]
    assert client.value(f"SELECT '{text}'") == text
    assert client.run("SELECT $1::text", text).value == text
    for key in KEYS[:3]:
        assert client.run("UPDATE account SET owner = $1 WHERE account_id = $2", text, key).tag == "UPDATE 1"
        assert client.run("SELECT owner FROM account WHERE account_id = $1", key).value == text
        assert client.value(f"SELECT owner FROM account WHERE account_id = {key}") == text
