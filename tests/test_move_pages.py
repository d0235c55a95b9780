"""Pages over all shards, pages of an index and aggregates while a bucket moves: every row once, whatever the moment."""

import json
import threading

import pytest

from support.moves import Mover, move_to_its_end
from support.order_cluster import Pages, newest_first, mixed_order, numbers
from support.placement import bucket_of
from support.router import SLACK
from support.wait import wait_until

BUCKET, HOME, AWAY = 0, "s0", "s1"
MERCHANT = 3
# Who walks what: the first is answered from the index, the second from all shards.
KEYSETS = {"merchant_orders": newest_first, "merchant_mixed": mixed_order}
LINE = "SELECT * FROM interlock.keyset_page(?, NULL::orders, ?, ?, ?, ?)"
TOTALS = "/* interlock: scatter */ SELECT count(*), sum(quantity) FROM orders"


class Moving:
    """Bucket 0 of the indexed orders, moved by `interlock move`."""

    def __init__(self, cluster):
        self.cluster, self.movers = cluster, []
        for shard in cluster.shards:
            # Their primary keys do not have the shard key: of a DELETE nobody could tell the bucket.
            cluster.instances[shard].sql("ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE sample REPLICA IDENTITY FULL")
        assert any(bucket_of(order.user_id) == BUCKET and order.merchant_id == MERCHANT for order in cluster.orders)
        self.expected = {keyset: [order.order_id for order in sort(cluster.orders, MERCHANT)]
                         for keyset, sort in KEYSETS.items()}
        self.line = cluster.client(timeout=60)
        self.totals = [str(len(cluster.orders)), str(sum(order.quantity for order in cluster.orders))]

    def conninfo(self):
        return self.cluster.catalog.conninfo("app", "postgres")

    def begin(self, to, stop, *arguments):
        mover = Mover(self.conninfo(), "--keyspace", "accounts", "--bucket", BUCKET, "--to", to, *arguments, stop=stop,
                      log=self.cluster.base / f"move{len(self.movers)}.log")
        self.movers.append(mover)
        return mover.stopped()

    def move(self, to):
        move_to_its_end(self.conninfo(), "--keyspace", "accounts", "--bucket", BUCKET, "--to", to)

    def walk_all(self, client):
        """Every page of both keysets over both protocols, and totals: as if nothing moved."""
        for keyset, expected in self.expected.items():
            assert numbers(Pages(client, keyset, {"merchant_id": MERCHANT}).walk(60)) == expected, keyset
            assert self.line_walk(keyset, 60) == expected, f"{keyset}, line protocol"
        self.count(client)

    def line_walk(self, keyset, size):
        seen, cursor = [], None
        while True:
            answer = self.line.q(LINE, keyset, json.dumps({"merchant_id": MERCHANT}), cursor, None, size)
            assert answer.ok and answer.tx == "I", answer
            if not answer.rows:
                return seen
            seen += [int(row[0].strip("()").split(",")[0]) for row in answer.rows]
            cursor = answer.rows[-1][1]

    def nothing_to_repair(self):
        """`interlock repair` reads the shards and the index; what stands on two shards is no fault of the index."""
        report = self.cluster.repair()
        assert (report["missing"], report["stale"], report["mended"]) == (0, 0, 0), report
        return report

    def count(self, client):
        ((rows, quantity),) = client.query(TOTALS).ok().rows
        assert [rows.decode(), quantity.decode()] == self.totals

    def end(self):
        for mover in self.movers:
            if mover.running():
                mover.kill()
        for (move,) in self.cluster.catalog.sql("SELECT id::text FROM interlock.moves WHERE finished IS NULL"):
            if move_to_its_end(self.conninfo(), "--abort", move, expect=None).returncode != 0:
                move_to_its_end(self.conninfo(), "--resume", move)
        if self.cluster.owners()[BUCKET] != HOME:
            self.move(HOME)


@pytest.fixture
def moving(changed_indexed):
    moving = Moving(changed_indexed)
    yield moving
    moving.end()


def counter(cluster, name):
    return int(cluster.router.status().raw.split(f"{name}:")[1].split(",")[0].split()[0])


@pytest.mark.parametrize("stop", ["after-copied", "after-caught_up", "after-fenced", "after-drained", "after-routed"])
def test_every_row_once_while_the_move_stands_at(moving, stop):
    """The target has rows that are not its own yet; or the source has rows that are not its own any more."""
    cluster = moving.cluster
    client = cluster.pg_client()
    moving.walk_all(client)
    whole = moving.nothing_to_repair()["scanned"]
    mover = moving.begin(AWAY, stop, "--max-pause", "60s")
    there = cluster.instances[AWAY].value("SELECT count(*) FROM orders WHERE interlock.bucket_of('accounts', user_id) = %s", BUCKET)
    here = cluster.instances[HOME].value("SELECT count(*) FROM orders WHERE interlock.bucket_of('accounts', user_id) = %s", BUCKET)
    assert here == there > 0, "both shards have the bucket's rows"
    moving.walk_all(client)
    assert moving.nothing_to_repair()["scanned"] == whole
    mover.go_on().end()
    moving.walk_all(client)
    moving.nothing_to_repair()
    assert cluster.owners()[BUCKET] == AWAY


def test_a_page_asked_for_between_decision_and_publication_waits_for_the_new_routes(moving):
    """The source must refuse its part, nobody else may answer for it: the whole page is asked for again."""
    cluster = moving.cluster
    clients = {name: cluster.pg_client() for name in [*KEYSETS, "totals"]}
    for name, client in clients.items():
        moving.walk_all(client)
    mover = moving.begin(AWAY, "after-decided")
    before = counter(cluster, "resent")
    found = {}

    def ask(name, client):
        try:
            if name == "totals":
                moving.count(client)
                found[name] = True
            else:
                found[name] = numbers([Pages(client, name, {"merchant_id": MERCHANT}).page(size=200)])
        except AssertionError as fault:
            found[name] = fault

    threads = [threading.Thread(target=ask, args=pair) for pair in clients.items()]
    for thread in threads:
        thread.start()
    wait_until(lambda: counter(cluster, "waiting") == len(threads), 20 * SLACK, "all three wait for routes")
    assert not found
    mover.go_on()
    for thread in threads:
        thread.join(30 * SLACK)
    mover.end()
    assert found == {**{keyset: expected[:200] for keyset, expected in moving.expected.items()}, "totals": True}
    assert counter(cluster, "resent") - before >= len(threads)


def test_a_page_that_waits_for_routes_ends_with_its_own_deadline(moving):
    client = moving.cluster.pg_client()
    moving.walk_all(client)
    client.ok("SET interlock.page_timeout = '300ms'")
    mover = moving.begin(AWAY, "after-decided")
    answer = Pages(client, "merchant_mixed", {"merchant_id": MERCHANT}).ask(size=50)
    answer.refused("IL204", "I")
    assert "newer routes" in answer.errors[0].text
    mover.go_on().end()
    moving.walk_all(client)


def test_walks_and_totals_stay_exact_while_a_bucket_moves_to_and_fro(moving):
    """Clients of all kinds walk on and on, and see neither an error nor a row too many or too few."""
    cluster = moving.cluster
    stop, faults, walks = threading.Event(), [], {}

    def walk(name, do):
        walks[name] = 0
        try:
            while not stop.is_set():
                do()
                walks[name] += 1
        except Exception as fault:  # noqa: BLE001  whatever it is, the test fails with it
            faults.append((name, fault))

    def pages(keyset):
        walker = Pages(cluster.pg_client(), keyset, {"merchant_id": MERCHANT})

        def once():
            assert numbers(walker.walk(97)) == moving.expected[keyset], keyset
        return once

    totals = cluster.pg_client()
    jobs = {"index": pages("merchant_orders"), "scatter": pages("merchant_mixed"), "totals": lambda: moving.count(totals)}
    threads = [threading.Thread(target=walk, args=job) for job in jobs.items()]
    for thread in threads:
        thread.start()
    try:
        for to in (AWAY, HOME) * 2:
            before = dict(walks)
            moving.move(to)
            wait_until(lambda: faults or all(walks[name] > before.get(name, 0) for name in jobs), 60 * SLACK, "all walk on")
    finally:
        stop.set()
        for thread in threads:
            thread.join(60 * SLACK)
    assert not faults, faults


def test_explain_route_tells_of_the_move_that_is_announced(moving):
    cluster = moving.cluster
    client = cluster.pg_client()
    user = next(order.user_id for order in cluster.orders if bucket_of(order.user_id) == BUCKET)
    statement = f"EXPLAIN ROUTE SELECT count(*) FROM orders WHERE user_id = {user}"

    def told(sql):
        return [row[0].decode() for row in client.query(sql).ok().rows if row[0].startswith(b"move:")]

    assert told(statement) == []
    mover = moving.begin(AWAY, "after-announced", "--max-pause", "60s")
    wait_until(lambda: told(statement), 10 * SLACK, "the router has heard of it")
    version = cluster.catalog.value("SELECT reserved_version FROM interlock.cluster")
    assert told(statement) == [f"move: to shard {AWAY} as route version {version}; held back until then"]
    assert told(f"EXPLAIN ROUTE {TOTALS}") == [f"move: 1 bucket of the keyspace from shard {HOME} to {AWAY} as route version"
                                               f" {version}; asked anew if it has gone meanwhile"]
    mover.go_on().end()
    wait_until(lambda: not told(statement), 10 * SLACK, "the router has the new version")
