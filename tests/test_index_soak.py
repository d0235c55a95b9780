"""Writers, moved scopes, deletes and re-inserts, consumers killed at random, repair and backfill beside them; then
everything is drained and compared with the truth.

INTERLOCK_SOAK_SECONDS sets how long (about 20 s in the suite), INTERLOCK_SOAK_SEED another course.
"""

import json
import os
import threading
import time
from datetime import timedelta
from random import Random

import pytest

from conftest import remove
from support.indexed import INDEX, IndexedCluster
from support.order_cluster import make_orders, numbers
from support.orders import SECONDS, START
from support.router import SLACK
from support.wait import wait_until
from test_index_pages import whole_walk

DURATION = float(os.environ.get("INTERLOCK_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("INTERLOCK_SOAK_SEED", "5"))
WRITERS, CONSUMERS = 3, 3


@pytest.fixture
def cluster(owner, new_folder, request, router_binary):
    cluster = IndexedCluster(new_folder("soak"), owner, rows=make_orders(3000, 100))
    try:
        yield cluster.make()
        cluster.end_test()
    finally:
        cluster.down()
        remove(cluster.base)


class Chaos:
    """Threads that each do one thing until told to stop; the first fault ends the soak."""

    def __init__(self):
        self.stop, self.faults, self.threads = threading.Event(), [], []
        self.done = {}

    def run(self, name, body):
        def guarded():
            try:
                while not self.stop.is_set():
                    body()
                    self.done[name] = self.done.get(name, 0) + 1
            except Exception as fault:  # noqa: BLE001  (shown by the test)
                self.faults.append((name, fault))
                self.stop.set()

        thread = threading.Thread(target=guarded)
        self.threads.append(thread)
        thread.start()

    def end(self, deadline=90):
        self.stop.set()
        for thread in self.threads:
            thread.join(deadline * SLACK)
        assert not any(thread.is_alive() for thread in self.threads), "a thread hangs"
        assert not self.faults, self.faults


class Writer:
    """Changes orders of its own (no other writer's), straight on the shards: one transaction a step."""

    def __init__(self, cluster, number):
        self.cluster, self.random = cluster, Random(SEED * 100 + number)
        self.connections = {shard: cluster.instances[shard].connect(autocommit=False) for shard in cluster.shards}
        # Shard -> [(order_id, user_id)] of orders that are there, and of such as were.
        self.live, self.dead = ({shard: [] for shard in cluster.shards} for _ in range(2))
        for order in cluster.orders:
            if order.order_id % WRITERS == number:
                self.live[cluster.shard_name(order.user_id)].append((order.order_id, order.user_id))
        self.users = {shard: [user for user in range(1, 301) if cluster.shard_name(user) == shard]
                      for shard in cluster.shards}
        self.next = 1_000_000 * (number + 1)
        self.held = None  # (connection, shard, keys): a transaction that stays open over many others

    def close(self):
        self.finish_held()
        for connection in self.connections.values():
            connection.close()

    def values(self):
        return self.random.randint(1, 10), START + timedelta(seconds=self.random.randrange(SECONDS))

    def new_key(self, shard):
        self.next += 1
        return self.next, self.random.choice(self.users[shard])

    def insert(self, connection, key):
        connection.execute("INSERT INTO orders VALUES (%s, %s, %s, %s, 1, 1, NULL, 'new', NULL)", (*key, *self.values()))

    def step(self):
        """A few changes of one shard's orders, which are rolled back at times."""
        random = self.random
        shard = random.choice(self.cluster.shards)
        connection, live, dead = self.connections[shard], list(self.live[shard]), list(self.dead[shard])
        for _ in range(random.choice([1, 1, 1, 3, 20])):
            self.change(connection, self.live[shard], self.dead[shard], shard)
        if random.random() < 0.1:
            connection.rollback()
            self.live[shard], self.dead[shard] = live, dead
        else:
            connection.commit()
        if random.random() < 0.01:
            self.finish_held()
            self.hold(shard)

    def hold(self, shard):
        """Early numbers of the outbox that are committed late."""
        connection = self.cluster.instances[shard].connect(autocommit=False)
        keys = [self.new_key(shard) for _ in range(3)]
        for key in keys:
            self.insert(connection, key)
        self.held = connection, shard, keys

    def finish_held(self):
        if self.held:
            (connection, shard, keys), self.held = self.held, None
            connection.commit()
            connection.close()
            self.live[shard] += keys

    def change(self, connection, live, dead, shard):
        random, dice = self.random, self.random.random()
        where = "WHERE order_id = %s AND user_id = %s"
        if dice < 0.25 or not live:
            key = dead.pop(random.randrange(len(dead))) if dead and dice < 0.12 else self.new_key(shard)
            self.insert(connection, key)
            live.append(key)
            return
        place = random.randrange(len(live))
        key = live[place]
        if dice < 0.55:
            connection.execute(f"UPDATE orders SET merchant_id = %s, created_at = %s {where}", (*self.values(), *key))
        elif dice < 0.65:
            connection.execute(f"UPDATE orders SET quantity = quantity + 1 {where}", key)
        elif dice < 0.85:
            connection.execute(f"DELETE FROM orders {where}", key)
            self.insert(connection, key)
        else:
            connection.execute(f"DELETE FROM orders {where}", key)
            dead.append(live.pop(place))


def test_the_index_equals_the_truth_after_everything(cluster):
    chaos = Chaos()
    writers = [Writer(cluster, number) for number in range(WRITERS)]
    random = Random(SEED)
    for number, writer in enumerate(writers):
        chaos.run(f"writer {number}", writer.step)
    try:
        consumers = [cluster.consumer("--batch", random.choice([3, 50, 500])) for _ in range(CONSUMERS)]
        # The backfill of a table that is being written.
        cluster.fill_index()
        cluster.declare_keysets()
        cluster.new_router().start()

        away = threading.Event()
        place = Random(SEED)

        def walk():
            """Rows are in scope and in order, each once, at any moment."""
            merchant, was_away = place.randint(1, 10), away.is_set()
            with cluster.router.pg_client() as client:
                pages = cluster.pages(client, scope={"merchant_id": merchant},
                                      columns="(p.item).order_id, (p.item).merchant_id, (p.item).created_at")
                try:
                    rows = [row for page in whole_walk(pages, 50) for row in page.rows]
                except AssertionError:
                    if was_away or away.is_set():
                        return
                    raise
            assert {row[1] for row in rows} <= {str(merchant)}
            places = [(row[2], int(row[0])) for row in rows]
            assert places == sorted(set(places), reverse=True)

        def repair():
            done = cluster.index(INDEX, "--json", *(["--apply"] if chaos.done.get("repair", 0) % 2 else []),
                                 command="repair", check=False)
            if done.returncode == 1 and away.is_set():
                return
            assert done.returncode == 0, done.stdout + done.stderr
            report = json.loads(done.stdout.splitlines()[-1])
            # Nothing is lost, so there is nothing to mend, whatever is on its way.
            assert (report["missing"], report["stale"], report["mended"]) == (0, 0, 0), report
            chaos.stop.wait(1)

        chaos.run("walk", walk)
        chaos.run("repair", repair)
        end = time.monotonic() + DURATION
        killed = 0
        while time.monotonic() < end and not chaos.stop.is_set():
            chaos.stop.wait(random.uniform(0.2, 1.0))
            victim = random.randrange(CONSUMERS)
            consumers[victim].kill()
            consumers[victim] = cluster.consumer("--batch", random.choice([3, 50, 500]))
            killed += 1
            if killed % 10 == 5:
                # The index database crashes, too; it is away for what has begun before it is back.
                away.set()
                cluster.idx.restart("immediate")
                wait_until(lambda: not cluster.pages().ask(size=1).errors, 20 * SLACK, "the router is back at the index")
                chaos.stop.wait(2)
                away.clear()
    finally:
        chaos.stop.set()
        for thread in chaos.threads:
            thread.join(60 * SLACK)
        for writer in writers:
            writer.close()
    chaos.end()
    assert all(chaos.done[name] > 0 for name in ("walk", "repair", "writer 0", "writer 1", "writer 2")), chaos.done
    cluster.drained()
    cluster.equal()
    assert cluster.index("status", INDEX).returncode == 0
    before = cluster.filtered()
    for merchant in range(1, 11):
        assert numbers(whole_walk(cluster.pages(scope={"merchant_id": merchant}), 500)) == cluster.truth(merchant)
    assert cluster.filtered() == before
    report = cluster.repair()
    assert (report["missing"], report["stale"], report["pending"]) == (0, 0, 0), report
