#!/usr/bin/python3
"""A page of 50 rows over three shards beside one shard and beside postgres_fdw, in one run, as JSON.

600,000 orders of ten merchants, sharded by buyer; pages of one merchant's, newest first, from random places of its
60,000. The ways take turns, twenty places each:
  router    interlock.keyset_page through the router
  s0 s1 s2  the same call, with the same cursor, on one shard directly: a page of the rows it has
  by hand   the same call sent to the three shards at once by the client itself, nothing merged: the least that
            three shards on this machine take
  fdw       a partitioned table over foreign tables on the same shards, ORDER BY and LIMIT as people write it, on an
            instance of its own and with fresh statistics; with and without async_capable, the faster counts. The
            condition is spelled so that postgres_fdw sends it to the shards. At fewer places, because it takes a
            hundred times as long: with use_remote_estimate (the shards, asked about a statement without its LIMIT,
            mean to sort), and with a row comparison (which is not sent to the shards).
Times are from the request to ReadyForQuery, at the client; nothing is parsed. Then a page at the beginning of a walk
beside one a thousand pages on, and where the time goes. The extension has to be installed in the server that
PG_CONFIG names.

    scatter_bench.py [--quick] [--places N]
"""

import argparse
import json
import random
import socket
import time

from bench_cluster import SHARD_SETTINGS, cpu_seconds, instances_folder
from support import pgwire as w  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.postgres import Postgres  # noqa: E402

TABLE = """
CREATE TABLE orders (order_id bigint PRIMARY KEY, user_id bigint NOT NULL, merchant_id bigint NOT NULL,
                     created_at timestamptz NOT NULL, amount numeric(12,2) NOT NULL, status text NOT NULL);
CREATE INDEX ON orders (merchant_id, created_at DESC, order_id DESC);
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO app;
"""
# Ten rows a second, in a fixed and unsystematic order. Every shard makes all of them and keeps its own.
ROWS = """
INSERT INTO orders
SELECT n, u, m, timestamptz '2024-05-01 12:00+00' + make_interval(secs => s), (n % 10000) / 100.0, 'new'
FROM (SELECT n, 1 + abs(hashint8(n)::bigint) % 3000 AS u, 1 + abs(hashint8(n + 1000000000)::bigint) % 10 AS m,
             abs(hashint8(n + 2000000000)::bigint) % {seconds} AS s FROM generate_series(1, {rows}) n) made
WHERE interlock.owns('accounts', u);
"""
SECRET = bytes(range(32))
COLUMNS = ("order_id", "user_id", "created_at", "amount")
MERCHANT = 3
SIZE = 50
FDW = {"plain": {}, "async": {"async_capable": "true"},
       "async, estimates": {"async_capable": "true", "use_remote_estimate": "true"}}


class Shop(Cluster):
    """Three shards with the orders, a router, and an instance `front` with foreign tables."""

    def __init__(self, base, owner, rows):
        super().__init__(base, owner, table=TABLE, shards=3, shard_settings=SHARD_SETTINGS,
                         router_settings={"pg": {}, "log": {"level": "info"}, "pool": {"size": 4}})
        self.rows = rows
        self.front = self.instances["front"] = Postgres(base, "front", owner, SHARD_SETTINGS)

    def declare(self, catalog):
        catalog.execute("SELECT interlock.declare_table('orders', 'accounts', 'user_id')")

    def up(self):
        self.start_instances().create_tables().describe()
        self.apply()
        for shard in self.shards:
            instance = self.instances[shard]
            instance.sql("SELECT interlock.cursor_key_add(%s)", SECRET)
            instance.sql("SELECT interlock.keyset_create('merchant_orders', 'orders', '{merchant_id}',"
                         " 'created_at DESC, order_id DESC')")
            instance.sql(ROWS.format(rows=self.rows, seconds=self.rows // 10))
            instance.sql("VACUUM ANALYZE")
        for number, options in enumerate(FDW.values()):
            self.foreign(f"fdw{number}", options)
        self.new_router().start()
        return self

    def foreign(self, dbname, options):
        """A database on `front` whose table orders is partitioned over the shards' own."""
        given = "".join(f", {name} '{value}'" for name, value in options.items())
        self.front.sql(f"CREATE DATABASE {dbname}", dbname="postgres")
        steps = ["CREATE EXTENSION postgres_fdw",
                 TABLE.split(";")[0].replace(" PRIMARY KEY", "").strip() + " PARTITION BY HASH (user_id)"]
        for number, shard in enumerate(self.shards):
            steps += [f"CREATE SERVER {shard} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1',"
                      f" port '{self.instances[shard].port}', dbname 'app'{given})",
                      f"CREATE USER MAPPING FOR postgres SERVER {shard} OPTIONS (user 'app', password_required 'false')",
                      f"CREATE FOREIGN TABLE orders_{shard} PARTITION OF orders FOR VALUES WITH (MODULUS 3,"
                      f" REMAINDER {number}) SERVER {shard} OPTIONS (table_name 'orders')"]
        self.front.sql(";".join(steps), dbname=dbname)
        for name in ("orders", *(f"orders_{shard}" for shard in self.shards)):
            self.front.sql(f"ANALYZE {name}", dbname=dbname)


class Client:
    """Sends a request and waits for ReadyForQuery."""

    def __init__(self, port, user="app", dbname="app"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask(w.startup({"user": user, "database": dbname}))

    def send(self, message):
        self.socket.sendall(message)

    def receive(self):
        received = b""
        while not received.endswith(b"Z\0\0\0\5I"):
            got = self.socket.recv(1 << 18)
            assert got, f"the connection ended: {received[-500:]!r}"
            received += got
        return received

    def ask(self, message):
        self.send(message)
        return self.receive()


class Together:
    """The same request to all shards at once."""

    def __init__(self, ports):
        self.clients = [Client(port) for port in ports]

    def ask(self, message):
        for client in self.clients:
            client.send(message)
        return b"".join(client.receive() for client in self.clients)


def page(after, extended):
    """The request for a page of the keyset."""
    columns = ", ".join(f"(p.item).{name}" for name in COLUMNS)
    call = (f"SELECT {columns}, p.cursor FROM interlock.keyset_page('merchant_orders', NULL::orders, {{}}, "
            "after => {}, page_size => {}) AS p")
    scope = json.dumps({"merchant_id": MERCHANT})
    if extended:
        return w.extended(call.format("$1", "$2", "$3"), (scope, after, SIZE)) + w.sync()
    return w.query(call.format(f"'{scope}'", f"'{after}'" if after else "NULL", SIZE))


def by_sql(place, extended, row=False):
    """The same page as SQL, for foreign tables."""
    when, number = place
    condition = "(created_at, order_id) < ({0}, {1})" if row else \
        "created_at <= {0} AND (created_at < {0} OR order_id < {1})"
    text = (f"SELECT {', '.join(COLUMNS)} FROM orders WHERE merchant_id = {MERCHANT} AND {condition}"
            f" ORDER BY created_at DESC, order_id DESC LIMIT {SIZE}")
    if extended:
        return w.extended(text.format("$1", "$2"), (when, number), types=(1184, 20)) + w.sync()
    return w.query(text.format(f"'{when}'::timestamptz", f"'{number}'::bigint"))


def rows_of(answer):
    """First columns, in order: what the ways must agree on."""
    messages = w.split_messages(bytearray(answer))
    errors = [message for message in messages if message.kind == "E"]
    assert not errors, errors
    return [message.values[:len(COLUMNS)] for message in messages if message.kind == "D"]


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def summary(times):
    """p10 is what it takes while nothing else happens to run on the machine."""
    return {f"p{part}_us": round(quantile(times, part / 100) * 1e6) for part in (10, 50, 99)}


def ratio(ours, theirs):
    return {name: round(ours[f"{name}_us"] / theirs[f"{name}_us"], 3) for name in ("p10", "p50", "p99")}


def in_turn(ways, places, block=20):
    """name -> seconds for each place. `ways`: name -> (client, place -> request). Blocks of places in turn: changed at
    every place, each way would find its processes asleep, and the one with the most of them would pay the most."""
    times = {name: [] for name in ways}
    names = list(ways)
    for start in range(0, len(places), block):
        first = start // block % len(names)
        for name in names[first:] + names[:first]:
            client, request = ways[name]
            for place in places[start:start + block]:
                message = request(place)
                began = time.perf_counter()
                client.ask(message)
                times[name].append(time.perf_counter() - began)
    return times


def walk(router):
    """(cursor, created_at, order_id) of the last row of each page of the merchant's walk."""
    found, after = [], None
    while True:
        rows = [message.values for message in w.split_messages(bytearray(router.ask(page(after, False))))
                if message.kind == "D"]
        if len(rows) < SIZE:
            return found
        number, _, when, _, after = (value.decode() for value in rows[-1])
        found.append((after, when, number))


def compare(shop, clients, boundaries, places, extended):
    ways = {"router": (clients["router"], lambda place: page(place[0], extended))}
    for shard in shop.shards:
        ways[shard] = (clients[shard], lambda place: page(place[0], extended))
    ways["by hand"] = (clients["by hand"], lambda place: page(place[0], extended))
    for name in ("fdw plain", "fdw async"):
        ways[name] = (clients[name], lambda place: by_sql(place[1:], extended))
    # They must be the same pages.
    for place in boundaries[:3]:
        pages = [rows_of(client.ask(request(place))) for name, (client, request) in ways.items()
                 if name == "router" or name.startswith("fdw")]
        assert all(rows == pages[0] for rows in pages) and len(pages[0]) == SIZE
    in_turn(ways, random.sample(boundaries, 30))  # warm
    times = in_turn(ways, places)
    report = {name: summary(values) for name, values in times.items()}
    slowest = max(shop.shards, key=lambda shard: report[shard]["p50_us"])
    fastest = min((name for name in report if name.startswith("fdw")), key=lambda name: report[name]["p50_us"])
    report["slowest shard"], report["fastest fdw"] = slowest, fastest
    # Of the three shards' own times at each place, the longest.
    report["slowest of three"] = summary([max(three) for three in zip(*(times[shard] for shard in shop.shards))])
    report["router / slowest shard"] = ratio(report["router"], report[slowest])
    report["router / slowest of three"] = ratio(report["router"], report["slowest of three"])
    report["router / by hand"] = ratio(report["router"], report["by hand"])
    report["fdw / router"] = ratio(report[fastest], report["router"])
    return report


def other_ways(clients, places):
    """postgres_fdw used otherwise."""
    ways = {"fdw async": (clients["fdw async"], lambda place: by_sql(place[1:], False)),
            "fdw async, estimates": (clients["fdw async, estimates"], lambda place: by_sql(place[1:], False)),
            "fdw async, row comparison": (clients["fdw async"], lambda place: by_sql(place[1:], False, True))}
    return {name: summary(values) for name, values in in_turn(ways, places).items()}


def depth(clients, boundaries, count):
    """The first page of a walk and its thousandth (or, of a shorter walk, the last whole one)."""
    far = boundaries[min(998, len(boundaries) - 2)]
    ways = {"page 1": (clients["router"], lambda place: page(None, False)),
            "page 1000": (clients["router"], lambda place: page(far[0], False))}
    in_turn(ways, range(30))
    report = {name: summary(values) for name, values in in_turn(ways, range(count)).items()}
    return {**report, "page 1000 / page 1": ratio(report["page 1000"], report["page 1"])}


def processor_time(shop, clients, places):
    """CPU microseconds a page, of the router and of the shards' backends together; of these, asked directly."""
    def backends():
        return [pid for shard in shop.shards for (pid,) in shop.instances[shard].sql(
            "SELECT pid FROM pg_stat_activity WHERE usename = 'app'")]

    report = {}
    for name in ("router", "by hand"):
        pids = backends()
        before = cpu_seconds(shop.router.process.pid), sum(map(cpu_seconds, pids))
        for place in places:
            clients[name].ask(page(place[0], False))
        after = cpu_seconds(shop.router.process.pid), sum(map(cpu_seconds, pids))
        report[name] = {"router_us": round((after[0] - before[0]) / len(places) * 1e6),
                        "shards_us": round((after[1] - before[1]) / len(places) * 1e6)}
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and places: to see that it works")
    parser.add_argument("--places", type=int)
    options = parser.parse_args()
    rows = 60_000 if options.quick else 600_000
    count = options.places or (60 if options.quick else 1000)
    random.seed(4)
    with instances_folder() as (folder, owner):
        shop = Shop(folder, owner, rows)
        try:
            shop.up()
            ports = {shard: shop.instances[shard].port for shard in shop.shards}
            clients = {"router": Client(shop.router.pg_port), "by hand": Together(ports.values()),
                       **{shard: Client(port) for shard, port in ports.items()},
                       **{f"fdw {name}": Client(shop.front.port, "postgres", f"fdw{number}")
                          for number, name in enumerate(FDW)}}
            boundaries = walk(clients["router"])
            places = [random.choice(boundaries[:-1]) for _ in range(count)]
            report = {"page_of_50": {mode: compare(shop, clients, boundaries, places, mode == "extended")
                                     for mode in ("simple", "extended")},
                      "fdw_otherwise": other_ways(clients, places[:max(5, count // 50)]),
                      "depth": depth(clients, boundaries, count),
                      "cpu": processor_time(shop, clients, [random.choice(boundaries[:-1]) for _ in range(2 * count)])}
            server = shop.s0.value("SHOW server_version")
        finally:
            shop.down()
    print(json.dumps({"settings": {"rows": rows, "places": count, "page": SIZE, "shards": 3, "server": server},
                      **report}, indent=1))


if __name__ == "__main__":
    main()
