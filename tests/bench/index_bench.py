#!/usr/bin/python3
"""A global index: how late it is, how fast it catches up, and its pages beside scattered ones, as JSON.

  lag    three shards, one consumer, a steady 1,000 changes a second (inserts and moves to another merchant, each a
         transaction of its own): from the commit on the shard to the commit in the index, of every single change,
         by the servers' own commit timestamps.
  drain  a million records wait in the outboxes, three shards' or one's; then a consumer starts. Records a second
         over the whole and in each tenth, by the commit timestamps of the entries.
  pages  sixteen shards; merchants with as many orders each, present on 1, 2, 4, 8 and 16 of them. Pages of 50 from
         random places, from the index and, with the hint, from the shards, in turns: statements and time.

Nothing waits for the disk. The extension has to be installed in the server that PG_CONFIG names.

    index_bench.py [--quick] [--only lag drain pages]
"""

import argparse
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench_cluster import SHARD_SETTINGS, cpu_seconds, instances_folder
from scatter_bench import Client, in_turn, ratio, rows_of, summary
from support import pgwire as w  # noqa: E402
from support.indexed import ENTRIES, INDEX, IndexedCluster
from support.wait import wait_until  # noqa: E402

SETTINGS = {**SHARD_SETTINGS, "track_commit_timestamp": "on", "shared_preload_libraries": ""}
SMALL = {**SETTINGS, "shared_buffers": "16MB", "max_connections": "20", "max_wal_senders": "0", "wal_level": "minimal",
         "max_wal_size": "1GB"}
RATE = 1000
SIZE = 50
PRESENT_ON = (1, 2, 4, 8, 16)
USERS = 4000


class Shop(IndexedCluster):
    """No statement logging, no pg_stat_statements: they would be measured too."""

    def __init__(self, base, owner, shards=3, settings=SETTINGS):
        super().__init__(base, owner, rows=[], shards=shards, shard_settings=settings,
                         router_settings={"log": {"level": "info"}, "pool": {"size": 4}})
        self.samples = []

    @staticmethod
    def prepare(instance):
        instance.wait_for_it()
        instance.sql("CREATE ROLE app LOGIN; CREATE ROLE interlock_router LOGIN;", dbname="postgres")
        instance.sql("CREATE DATABASE app", dbname="postgres")
        instance.sql("CREATE EXTENSION interlock")

    def up(self):
        self.make().fill_index()
        return self

    def everywhere_at_once(self, body):
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(body, self.shards))

    def insert(self, shard, first, count, merchants=10):
        """`count` new orders of the shard, numbered from `first` on; returns how many."""
        users = [user for user in range(1, USERS) if self.shard_name(user) == shard]
        self.instances[shard].sql(
            "INSERT INTO orders SELECT %s + n, (%s::bigint[])[1 + n %% %s], 1 + abs(hashint8(n)::bigint) %% %s,"
            " timestamptz '2024-05-01 12:00+00' + make_interval(secs => abs(hashint8(n + 1000000000)::bigint) %% 1000000),"
            " 1, 1, NULL, 'new', NULL FROM generate_series(1, %s) n", first, users, len(users), merchants, count)
        return count


def quantiles(instance, expression, source, parts=(0.5, 0.9, 0.99, 1)):
    row = instance.sql(f"SELECT percentile_disc(ARRAY[{', '.join(map(str, parts))}]::float[])"
                       f" WITHIN GROUP (ORDER BY {expression}) FROM {source}")[0][0]
    return [float(value) for value in row]


# -- lag ------------------------------------------------------------------------------------------


class Steady(threading.Thread):
    """Changes at a fixed rate, each at its own time; what could not be kept up is made up for, and reported."""

    def __init__(self, shop, number, rate, seconds):
        super().__init__()
        self.shop, self.number, self.rate, self.count = shop, number, rate, int(rate * seconds)
        self.late = []

    def run(self):
        connections = {shard: self.shop.instances[shard].connect() for shard in self.shop.shards}
        users = {shard: [user for user in range(1, USERS) if self.shop.shard_name(user) == shard]
                 for shard in self.shop.shards}
        chance = random.Random(self.number)
        began = time.perf_counter()
        for step in range(self.count):
            due = began + step / self.rate
            now = time.perf_counter()
            if due > now:
                time.sleep(due - now)
            else:
                self.late.append(now - due)
            shard = chance.choice(self.shop.shards)
            if step % 2:
                connections[shard].execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, now(), 1, 1, NULL, 'new', NULL)",
                    (self.number * 10_000_000 + step, chance.choice(users[shard]), chance.randint(1, 10)), prepare=True)
            else:
                # Each order is moved once, so that its last change is the one that is measured.
                connections[shard].execute(
                    "UPDATE orders SET merchant_id = 11 + merchant_id WHERE order_id = %s",
                    ((self.shop.shards.index(shard) + 1) * 1_000_000 + self.number * 100_000 + step // 2,), prepare=True)
        self.seconds = time.perf_counter() - began
        for connection in connections.values():
            connection.close()


def measure_lag(folder, owner, quick):
    seconds = 5 if quick else 60
    base = folder / "lag"
    base.mkdir()
    owner.own(base)
    shop = Shop(base, owner)
    try:
        shop.up()
        # Two writers' orders, for the UPDATEs.
        for place, shard in enumerate(shop.shards):
            shop.insert(shard, (place + 1) * 1_000_000 + 100_000 - 1, 200_000)
        shop.drain()
        for instance in shop.instances.values():
            instance.sql("VACUUM ANALYZE")
        since = shop.idx.value("SELECT clock_timestamp()")
        consumer = shop.consumer()
        wait_until(lambda: shop.idx.value("SELECT count(*) FROM pg_stat_activity WHERE usename = %s", shop.indexer) > 0,
                   20, "the consumer is there")
        before = cpu_seconds(consumer.process.pid)
        writers = [Steady(shop, number, RATE / 2, seconds) for number in (1, 2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        shop.drained()
        used = cpu_seconds(consumer.process.pid) - before
        lags = []
        there = dict()
        for shard in shop.shards:
            there.update(shop.instances[shard].sql(
                "SELECT order_id, pg_xact_commit_timestamp(xmin) FROM orders"
                " WHERE pg_xact_commit_timestamp(xmin) > %s", since))
        for number, seen in shop.idx.sql(f"SELECT order_id, pg_xact_commit_timestamp(xmin) FROM {ENTRIES}"
                                         " WHERE pg_xact_commit_timestamp(xmin) > %s", since):
            if number in there:
                lags.append((seen - there.pop(number)).total_seconds())
        assert not there, f"{len(there)} changes have not come to the index"
        lags.sort()
        changes = sum(writer.count for writer in writers)
        shop.end_consumers()
        shop.equal()
        return {"changes": changes, "measured": len(lags),
                "changes_per_second": round(changes / max(writer.seconds for writer in writers)),
                "lag_ms": {name: round(1000 * lags[min(len(lags) - 1, int(part * len(lags)))], 1)
                           for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1))},
                "consumer_cpu_us_a_change": round(1e6 * used / changes, 1)}
    finally:
        shop.down()


# -- drain ----------------------------------------------------------------------------------------


def drain(folder, owner, records, shards, name):
    base = folder / name
    base.mkdir()
    owner.own(base)
    shop = Shop(base, owner)
    try:
        shop.up()
        began = time.monotonic()
        chosen = shop.shards[:shards]
        each = records // shards
        for place, shard in enumerate(chosen):
            shop.insert(shard, place * 100_000_000, each)
        wrote = time.monotonic() - began
        for shard in chosen:
            shop.instances[shard].sql("CHECKPOINT")
        began = shop.idx.value("SELECT clock_timestamp()")
        consumer = shop.consumer()
        wait_until(lambda: not any(shop.backlog().values()), 1800, "drained", 1.0)
        used = cpu_seconds(consumer.process.pid)
        shop.end_consumers()
        total = each * shards
        assert shop.idx.value(f"SELECT count(*) FROM {ENTRIES}") == total
        ends = quantiles(shop.idx, f"extract(epoch FROM pg_xact_commit_timestamp(xmin) - '{began.isoformat()}')", ENTRIES,
                         [part / 10 for part in range(1, 11)])
        left = [shop.instances[shard].value("SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits"
                                            " WHERE inhparent = 'interlock.outbox'::regclass") for shard in chosen]
        rates = [round(total / 10 / (end - start)) for start, end in zip([0] + ends, ends)]
        return {"records": total, "shards": shards, "written_per_second": round(total / wrote),
                "records_per_second": round(total / ends[-1]), "per_second_in_tenths": rates,
                "last_three_tenths/first_three": round(sum(rates[-3:]) / sum(rates[:3]), 3),
                "consumer_cpu_us_a_record": round(1e6 * used / total, 1),
                "outbox_bytes_afterwards": max(left)}
    finally:
        shop.down()


def measure_drain(folder, owner, quick):
    records = 60_000 if quick else 1_000_000
    return {"three shards": drain(folder, owner, records, 3, "drain3"),
            "one shard": drain(folder, owner, records, 1, "drain1")}


# -- pages ----------------------------------------------------------------------------------------


def request(merchant, after, scatter, extended):
    call = ("SELECT (p.item).order_id, (p.item).user_id, (p.item).created_at, (p.item).amount, p.cursor FROM"
            f" interlock.keyset_page('{INDEX}', NULL::orders, {{}}, after => {{}}, page_size => {{}}) AS p")
    call = ("/* interlock: scatter */ " if scatter else "") + call
    scope = json.dumps({"merchant_id": merchant})
    if extended:
        return w.extended(call.format("$1", "$2", "$3"), (scope, after, SIZE)) + w.sync()
    return w.query(call.format(f"'{scope}'", f"'{after}'" if after else "NULL", SIZE))


def cursors_of(client, merchant):
    """The last cursor of each page of a walk."""
    found, after = [None], None
    while True:
        rows = [message.values for message in w.split_messages(bytearray(
            client.ask(request(merchant, after, False, False)))) if message.kind == "D"]
        if len(rows) < SIZE:
            return found
        after = rows[-1][-1].decode()
        found.append(after)


def statements(shop, client, merchant, after):
    """Statements that one page of either kind sends, to shards and index, by the servers' own count."""
    def count():
        return sum(instance.value("SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements s JOIN pg_roles r"
                                  " ON r.oid = s.userid WHERE rolname = 'app' AND query ~ 'keyset_(page|rows)'"
                                  , dbname="postgres") for instance in shop.instances.values())

    found = {}
    for name, scatter in (("index", False), ("scatter", True)):
        before = count()
        client.ask(request(merchant, after, scatter, False))
        found[name] = count() - before
    return found


def processor_time(shop, clients, merchant, places):
    """CPU microseconds a page, of the router, the index database's backends and the shards' together."""
    def used():
        pids = {name: [pid for (pid,) in instance.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'app'",
                                                      dbname="postgres")] for name, instance in shop.instances.items()}
        index = sum(map(cpu_seconds, pids.pop("idx")))
        return cpu_seconds(shop.router.process.pid), index, sum(cpu_seconds(pid) for some in pids.values() for pid in some)

    found = {}
    for name, client in clients.items():
        before = used()
        for place in places:
            client.ask(request(merchant, place, name == "scatter", True))
        spent = [round(1e6 * (late - early) / len(places)) for early, late in zip(before, used())]
        found[name] = dict(zip(("router", "index", "shards", "all"), (*spent, sum(spent))))
    return found


class Wide(Shop):
    """Sixteen shards, whose statements can be counted."""

    def __init__(self, base, owner):
        super().__init__(base, owner, 16, {**SMALL, "shared_preload_libraries": "pg_stat_statements"})

    @staticmethod
    def prepare(instance):
        Shop.prepare(instance)
        instance.sql("CREATE EXTENSION pg_stat_statements", dbname="postgres")
        # Counted only where it is asked for.
        instance.sql("ALTER SYSTEM SET pg_stat_statements.track = 'none'; ", dbname="postgres")
        instance.sql("SELECT pg_reload_conf()", dbname="postgres")

    def fill_shards(self, rows):
        """Merchant n is on n shards, with `rows` orders in all; and as many again of others."""
        def fill(shard):
            place = self.shards.index(shard)
            users = [user for user in range(1, USERS) if self.shard_name(user) == shard]
            for merchant in (*(n for n in PRESENT_ON if place < n), 100 + place):
                spread = merchant if merchant <= 16 else 1
                self.instances[shard].sql(
                    "INSERT INTO orders SELECT n, (%s::bigint[])[1 + n %% %s], %s, timestamptz '2024-05-01 12:00+00'"
                    " + make_interval(secs => abs(hashint8(n)::bigint) %% 100000), 1, 1, NULL, 'new', NULL"
                    " FROM generate_series(%s::bigint, %s, 16) n", users, len(users), merchant,
                    merchant * 100_000_000 + place, merchant * 100_000_000 + place + 16 * (rows // spread) - 1)
            self.instances[shard].sql("VACUUM ANALYZE")
        self.everywhere_at_once(fill)


def measure_pages(folder, owner, quick):
    rows, count = (800, 40) if quick else (16_000, 400)
    base = folder / "pages"
    base.mkdir()
    owner.own(base)
    shop = Wide(base, owner)
    try:
        shop.make()
        shop.fill_shards(rows)
        shop.fill_index()
        shop.drain()
        shop.idx.sql("VACUUM ANALYZE")
        shop.new_router().start()
        report = {}
        clients = {name: Client(shop.router.pg_port) for name in ("index", "scatter")}
        for merchant in PRESENT_ON:
            cursors = cursors_of(clients["index"], merchant)
            places = [random.choice(cursors[:-1]) for _ in range(count)]
            for place in places[:5]:
                assert rows_of(clients["index"].ask(request(merchant, place, False, False))) == \
                    rows_of(clients["scatter"].ask(request(merchant, place, True, False))), "the ways do not agree"
            found = {}
            for mode in ("simple", "extended"):
                times = in_turn({name: (client, lambda place, name=name: request(
                    merchant, place, name == "scatter", mode == "extended")) for name, client in clients.items()}, places)
                ours, theirs = summary(times["index"]), summary(times["scatter"])
                found[mode] = {"index": ours, "scatter": theirs, "scatter / index": ratio(theirs, ours)}
            report[f"on {merchant} of 16"] = {**found, "cpu_us": processor_time(shop, clients, merchant, places)}
        # Counting costs time, so it comes last; with new sessions, which take the setting.
        for instance in shop.instances.values():
            instance.sql("ALTER SYSTEM SET pg_stat_statements.track = 'top'", dbname="postgres")
            instance.sql("SELECT pg_reload_conf()", dbname="postgres")
        shop.router.stop()
        shop.router.start()
        client = Client(shop.router.pg_port)
        for merchant in PRESENT_ON:
            report[f"on {merchant} of 16"]["statements"] = statements(shop, client, merchant, None)
        return report
    finally:
        shop.down()


PARTS = {"lag": measure_lag, "drain": measure_drain, "pages": measure_pages}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records, rows and places: to see that it works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    random.seed(5)
    report = {}
    with instances_folder() as (folder, owner):
        for name in options.only:
            print(f"index_bench: {name}", file=sys.stderr, flush=True)
            report[name] = PARTS[name](folder, owner, options.quick)
    print(json.dumps({"settings": {"page": SIZE, "rate": RATE, "quick": options.quick}, **report}, indent=1))


if __name__ == "__main__":
    main()
