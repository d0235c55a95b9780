"""The publisher of docs/outbox.md, run as it stands there, against an endpoint that fails in every way it knows of."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localcluster.ports import free_port
from support import ROOT
from support.wait import wait_until

DOCUMENT = (ROOT / "docs" / "outbox.md").read_text()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
    assert len(blocks) == 1
    path = tmp_path_factory.mktemp("publisher") / "publisher.py"
    path.write_text(blocks[0])
    return path


class Endpoint:
    """Collects what is posted; `answer` decides the status, None: the connection is cut without an answer."""

    def __init__(self):
        self.received, self.seen, self.answer = [], [], lambda record: 200
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                record = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.seen.append((self.headers["Idempotency-Key"], record))
                status = endpoint.answer(record)
                if status == 200:
                    endpoint.received.append(record)
                if status is not None:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of_key(self, order_id):
        return [record for record in self.received if record["key"] == {"order_id": order_id}]


@pytest.fixture
def endpoint():
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


@pytest.fixture
def shop(instance):
    instance.sql("""
        CREATE TABLE orders (order_id bigint PRIMARY KEY, merchant_id integer NOT NULL, amount numeric(12,2), note text);
        SELECT interlock.outbox_attach('orders', '{merchant_id,amount}');
        CREATE ROLE publisher LOGIN;
        SELECT interlock.grant_consumer('publisher');
    """)
    yield instance
    # What a test has left in the stream goes with it.
    instance.sql("""
        SELECT interlock.outbox_detach('orders', drop_stream => true, force => true);
        DROP TABLE orders; DROP OWNED BY publisher; DROP ROLE publisher;
    """)
    instance.check_log()


def sessions(shop):
    return shop.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'publisher'")


@contextmanager
def publishing(program, shop, endpoint, count=1):
    """So many publishers at once; they end when told."""
    before = sessions(shop)
    processes = [subprocess.Popen(
        [sys.executable, program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"DATABASE_URL": shop.conninfo("app", "publisher"), "ENDPOINT": endpoint.url, "PATH": "/usr/bin:/bin"})
        for _ in range(count)]
    try:
        wait_until(lambda: sessions(shop) >= before + count, 90, "they have connected")
        yield processes
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(60) in (0, -signal.SIGKILL)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def left(shop):
    return shop.value("SELECT count(*) FROM interlock.outbox")


def test_every_change_is_published_in_order_and_nothing_that_did_not_happen(program, shop, endpoint):
    with publishing(program, shop, endpoint):
        shop.sql("INSERT INTO orders VALUES (1, 3, 12.50, 'a'), (2, 3, NULL, 'b')")
        shop.sql("UPDATE orders SET amount = 13 WHERE order_id = 1")
        shop.sql("UPDATE orders SET note = 'not recorded'")
        shop.sql("BEGIN; UPDATE orders SET amount = 14; ROLLBACK")
        shop.sql("UPDATE orders SET order_id = 5 WHERE order_id = 2")
        shop.sql("TRUNCATE orders")
        wait_until(lambda: len(endpoint.received) >= 7 and left(shop) == 0, 90, "all is published")
    first = {"order_id": 1, "merchant_id": 3, "amount": 12.5}
    second = {"order_id": 1, "merchant_id": 3, "amount": 13.0}
    assert [(r["op"], r["old"], r["new"]) for r in endpoint.of_key(1)] == [
        ("I", None, first), ("U", first, second), ("D", second, None)]
    assert [(r["op"], r["old"], r["new"]) for r in endpoint.of_key(2)] == [
        ("I", None, {"order_id": 2, "merchant_id": 3, "amount": None}), ("D", {"order_id": 2, "merchant_id": 3, "amount": None}, None)]
    assert [r["op"] for r in endpoint.of_key(5)] == ["I", "D"]
    assert {r["table_name"] for r in endpoint.received} == {"public.orders"}
    assert len(endpoint.received) == 7


def test_several_publishers_keep_the_order_of_each_key_under_a_receiver_that_fails_and_their_own_deaths(program, shop, endpoint):
    attempts = Counter()

    def answer(record):
        attempts[record["seq"]] += 1
        failing = record["seq"] % 97 == 0 and attempts[record["seq"]] == 1
        return (500 if record["seq"] % 2 else None) if failing else 200

    endpoint.answer = answer
    for round in range(3):
        with publishing(program, shop, endpoint, count=3) as processes:
            with shop.connect() as writer:
                for number in range(20):
                    writer.execute("INSERT INTO orders SELECT i, 1, 0 FROM generate_series(1, 40) i ON CONFLICT (order_id) "
                                   "DO UPDATE SET amount = orders.amount + 1")
                    if number == 10:
                        processes[round].kill()
    with publishing(program, shop, endpoint, count=3):
        wait_until(lambda: left(shop) == 0, 300, "all is published")
    for order_id in range(1, 41):
        records = endpoint.of_key(order_id)
        amounts = [record["new"]["amount"] for record in records]
        # At least once, and whatever came again came again from there on: the first times are in order.
        firsts = list(dict.fromkeys(amounts))
        assert firsts == list(range(60)), (order_id, firsts)
        assert 59 in amounts
        for seq, count in Counter(record["seq"] for record in records).items():
            assert count <= 1 + 3 + sum(attempts[s] > 1 for s in attempts if s % 97 == 0), seq


def test_a_record_that_is_refused_for_ever_is_set_aside_with_its_key_and_no_other(program, shop, endpoint):
    bad = {"order_id": 2}
    endpoint.answer = lambda record: 422 if record["key"] == bad and record["op"] == "I" else 200
    with publishing(program, shop, endpoint):
        shop.sql("INSERT INTO orders SELECT i, 1, 0 FROM generate_series(1, 3) i")
        shop.sql("UPDATE orders SET amount = 1")
        wait_until(lambda: left(shop) == 0, 90, "nothing is left but what is parked")
        shop.sql("UPDATE orders SET amount = 2")
        wait_until(lambda: shop.value("SELECT count(*) FROM interlock.outbox_parked") == 3 and left(shop) == 0, 90, "its key is parked")
        assert endpoint.of_key(2) == [] and all(len(endpoint.of_key(i)) == 3 for i in (1, 3))
        assert sum(record["key"] == bad for _, record in endpoint.seen) == 5
        assert "HTTP 422" in shop.value("SELECT error FROM interlock.outbox_parked ORDER BY seq LIMIT 1")
        endpoint.answer = lambda record: 200
        shop.sql("SELECT interlock.outbox_retry('default')")
        wait_until(lambda: len(endpoint.of_key(2)) == 3, 90, "it is published after all")
        assert [record["new"]["amount"] for record in endpoint.of_key(2)] == [0, 1, 2]
        wait_until(lambda: left(shop) == 0 and shop.value("SELECT count(*) FROM interlock.outbox_parked") == 0, 90, "all is done")


def test_a_server_that_restarts_and_a_receiver_that_is_away_are_waited_for(program, shop, endpoint):
    with publishing(program, shop, endpoint) as processes:
        shop.sql("INSERT INTO orders VALUES (1, 1, 0)")
        wait_until(lambda: len(endpoint.of_key(1)) == 1, 90, "it publishes")
        endpoint.answer = lambda record: 503
        shop.sql("INSERT INTO orders VALUES (2, 1, 0)")
        wait_until(lambda: any(record["key"] == {"order_id": 2} for _, record in endpoint.seen), 90, "it tries")
        shop.restart()
        shop.sql("INSERT INTO orders VALUES (3, 1, 0)")
        endpoint.answer = lambda record: 200
        wait_until(lambda: len(endpoint.of_key(2)) and len(endpoint.of_key(3)), 90, "it goes on")
        assert processes[0].poll() is None
        assert len({key for key, record in endpoint.seen if record["key"] == {"order_id": 2}}) == 1


def test_while_a_publisher_is_frozen_nobody_publishes_later_records_of_what_it_has_in_hand(program, shop, endpoint):
    with publishing(program, shop, endpoint) as first:
        shop.sql("INSERT INTO orders VALUES (1, 1, 0)")
        wait_until(lambda: len(endpoint.of_key(1)) == 1 and left(shop) == 0, 90, "it publishes")
        held = threading.Event()
        endpoint.answer = lambda record: 200 if record["key"] != {"order_id": 1} or held.wait(60) else 500
        shop.sql("UPDATE orders SET amount = 1")
        wait_until(lambda: len(endpoint.seen) == 2, 90, "the first has the record in hand")
        first[0].send_signal(signal.SIGSTOP)
        with publishing(program, shop, endpoint):
            shop.sql("UPDATE orders SET amount = 2; INSERT INTO orders VALUES (2, 1, 0)")
            wait_until(lambda: len(endpoint.of_key(2)) == 1, 90, "the second publishes other keys")
            assert len(endpoint.seen) == 3
            first[0].kill()
            held.set()
            wait_until(lambda: left(shop) == 0, 90, "the second has taken over")
        assert [record["new"]["amount"] for record in endpoint.of_key(1)] == [0, 1, 1, 2]
