"""Orders of a shop on several shards: sharded by buyer, read page by page by merchant.

The orders of support/orders.py with more columns. A database `whole` on the first shard holds all rows in plain
tables: what a sharded answer is compared with.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import NamedTuple

from . import orders, samples
from .cluster import Cluster
from .pgclient import Answer, PgClient
from .placement import reference_shard

TABLE = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY,
    user_id bigint NOT NULL,
    merchant_id bigint NOT NULL,
    created_at timestamptz NOT NULL,
    amount numeric(12,2),
    quantity integer NOT NULL,
    weight double precision,
    status text COLLATE "C" NOT NULL,
    note text COLLATE "C");
CREATE INDEX ON orders (merchant_id, created_at DESC, order_id DESC);
CREATE INDEX ON orders (merchant_id, created_at DESC, order_id);
"""
GRANT = "GRANT SELECT, INSERT, UPDATE, DELETE ON orders, sample TO app;"
KEYSETS = {
    # One direction: one row comparison. Two directions: successive ranges.
    "merchant_orders": ("merchant_id", "created_at DESC, order_id DESC"),
    "merchant_mixed": ("merchant_id", "created_at DESC, order_id"),
}
# The same on every shard, so that each reads the others' cursors.
SECRET = bytes(range(32))
SETTINGS = {"shared_preload_libraries": "pg_stat_statements", "shared_buffers": "32MB", "lc_messages": "C"}


class Order(NamedTuple):
    order_id: int
    user_id: int
    merchant_id: int
    created_at: datetime
    amount: float | None
    quantity: int
    weight: float | None
    status: str
    note: str | None


def make_orders(count=orders.ORDERS, tied=orders.TIED):
    """`count` orders, and `tied` more of merchant 7 at one instant."""
    random = Random(count)
    return [Order(order.order_id, order.user_id, order.merchant_id, order.created_at,
                  random.choice([None, float(order.amount)]), random.randint(1, 9),
                  random.choice([None, random.uniform(-1, 1)]), random.choice(["new", "paid", "sent"]),
                  random.choice([None, "", f"note {order.order_id}"])) for order in orders.make_orders(4, count, tied)]


def newest_first(all_orders, merchant):
    """Keyset merchant_orders, sorted in memory."""
    return sorted((order for order in all_orders if order.merchant_id == merchant),
                  key=lambda order: (order.created_at, order.order_id), reverse=True)


def mixed_order(all_orders, merchant):
    """Keyset merchant_mixed, sorted in memory."""
    return sorted((order for order in all_orders if order.merchant_id == merchant),
                  key=lambda order: (-order.created_at.timestamp(), order.order_id))


class OrdersCluster(Cluster):
    """Shards s0, s1, s2 (or more) with the orders, their keysets and a router with both listeners.

    Beside them table `sample` (support/samples.py), sharded by its column owner.

    Logins of the application log each statement (see issued()), and pg_stat_statements counts (see fetched()).
    """

    def __init__(self, base, owner, *, rows=None, shard_settings=None, router_settings=None, shards=3, **options):
        settings = {"pg": {}, "pool": {"size": 4}, **(router_settings or {})}
        super().__init__(base, owner, shards=shards, table=TABLE + samples.TABLE + GRANT, router_settings=settings,
                         shard_settings={**SETTINGS, **(shard_settings or {})}, **options)
        self.orders = make_orders() if rows is None else rows
        self.samples = samples.make_samples()

    # -- making it -------------------------------------------------------------------------------

    def start_instances(self):
        for instance in self.instances.values():
            instance.launch()
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(self.prepare, self.instances.values()))
        return self

    @staticmethod
    def prepare(instance):
        instance.wait_for_it()
        instance.sql("""CREATE ROLE app LOGIN; CREATE ROLE interlock_router LOGIN;
                        ALTER ROLE app SET log_statement = 'all'; CREATE EXTENSION pg_stat_statements;
                        ALTER ROLE app SET pg_stat_statements.track = 'all'""",
                     dbname="postgres")
        instance.sql("CREATE DATABASE app", dbname="postgres")
        instance.sql("CREATE EXTENSION interlock")

    def declare(self, catalog):
        catalog.execute("SELECT interlock.declare_table('orders', 'accounts', 'user_id')")
        catalog.execute("SELECT interlock.declare_table('sample', 'accounts', 'owner')")

    def up(self):
        self.start_instances().create_tables().describe()
        self.apply()
        self.declare_keysets()
        self.load()
        self.new_router().start()
        return self

    def declare_keysets(self):
        for shard in self.shards:
            # `interlock apply` gives all shards the same key.
            if not self.instances[shard].value("SELECT count(*) FROM interlock.cursor_key"):
                self.instances[shard].sql("SELECT interlock.cursor_key_add(%s)", SECRET)
        for name, (scope, order) in KEYSETS.items():
            self.declare_keyset(name, "orders", scope, order)

    def declare_keyset(self, name, table, scope, order, *more):
        for shard in self.shards:
            self.instances[shard].sql(f"SELECT interlock.keyset_create(%s, %s, %s, %s{', %s' * len(more)})",
                                      name, table, scope.split(), order, *more)

    def shard_of(self, key):
        return self.instances[self.shard_name(key)]

    def shard_name(self, key):
        return reference_shard(key, len(self.shards))

    def load(self):
        """The rows, each on its shard; replaces what was there. And all of them in `whole`."""
        for shard in self.shards:
            self.fill(self.instances[shard], "app", [row for row in self.orders if self.shard_name(row.user_id) == shard],
                      [row for row in self.samples if self.shard_name(row[1]) == shard])
        if not self.whole("SELECT 1 FROM pg_database WHERE datname = 'whole'", dbname="postgres"):
            self.whole("CREATE DATABASE whole", dbname="postgres")
            self.whole(TABLE + samples.TABLE)
            self.fill(self.s0, "whole", self.orders, self.samples)

    @staticmethod
    def fill(instance, dbname, *tables):
        with instance.connect(dbname) as connection:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '20s'")
                for name, rows in zip(("orders", "sample"), tables):
                    connection.execute(f"DELETE FROM {name}")
                    with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                        for row in rows:
                            copy.write_row(row)
            connection.execute("VACUUM ANALYZE")

    # -- using it --------------------------------------------------------------------------------

    def whole(self, sql, *parameters, dbname="whole"):
        """Rows of the plain tables that hold everything."""
        return self.s0.sql(sql, *parameters, dbname=dbname)

    def whole_client(self):
        """A client of the protocol on the database that holds everything: the control."""
        client = PgClient(self.s0.port, "postgres", "whole")
        self.clients.append(client)
        return client

    def pages(self, client=None, *, router=None, **options):
        """Pages of a keyset, asked for by a client of the PostgreSQL listener (a new one unless given)."""
        return Pages(client or self.pg_client(router), **options)

    def everywhere(self, sql, *parameters, dbname="postgres"):
        """The first column of the first row, of each shard."""
        return [self.instances[shard].value(sql, *parameters, dbname=dbname) for shard in self.shards]

    def backends(self):
        """Process ids of the application's sessions: shard -> set."""
        return {shard: {row[0] for row in self.instances[shard].sql(
            "SELECT pid FROM pg_stat_activity WHERE usename = 'app'", dbname="postgres")} for shard in self.shards}

    def active(self):
        """Sessions of the application that are not idle, on all shards."""
        return sum(self.everywhere("SELECT count(*)::int FROM pg_stat_activity WHERE usename = 'app'"
                                   " AND state <> 'idle'"))

    def lock_waiters(self):
        return sum(self.everywhere("SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    def mark(self):
        """A place in the shards' logs, for issued()."""
        return {shard: self.instances[shard].log_mark() for shard in self.shards}

    def issued(self, mark, word="keyset_page("):
        """Statements with `word` that the application's sessions began since the mark: shard -> how many."""
        pattern = re.compile(r" app@app LOG:  (?:execute [^:]*|statement): [^\n]*" + re.escape(word))
        return {shard: len(pattern.findall(self.instances[shard].log_since(mark[shard]))) for shard in self.shards}

    def forget_counts(self):
        self.everywhere("SELECT pg_stat_statements_reset()::text")

    def fetched(self, word="keyset_page("):
        """Rows of statements with `word`, since forget_counts(), on all shards together."""
        return sum(self.everywhere("SELECT coalesce(sum(rows), 0)::int FROM pg_stat_statements s JOIN pg_roles r"
                                   " ON r.oid = s.userid WHERE rolname = 'app' AND toplevel AND position(%s in query) > 0",
                                   word))

    def read_by_pages(self):
        """How often keyset_page() has read the table orders, since forget_counts(), on all shards together."""
        return sum(self.everywhere("SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements"
                                   " WHERE NOT toplevel AND query ~ '\\morders\\M'"))


# -- pages ---------------------------------------------------------------------------------------


def quoted(text):
    return "NULL" if text is None else "'" + str(text).replace("'", "''") + "'"


@dataclass
class Page:
    rows: list  # of the columns asked for, as text; a single column without its tuple
    cursors: list
    complete: bool
    missing: list
    answer: Answer

    def __len__(self):
        return len(self.rows)


class Pages:
    """Pages of one keyset and scope, over one connection, in the simple or the extended protocol."""

    def __init__(self, client, keyset="merchant_orders", scope=None, row="orders", columns="(p.item).order_id",
                 extended=False):
        self.client, self.keyset, self.row, self.columns, self.extended = client, keyset, row, columns, extended
        self.scope = {"merchant_id": 3} if scope is None else scope

    def ask(self, after=None, before=None, size=None) -> Answer:
        """The answer, whatever it is."""
        scope = json.dumps(self.scope) if self.scope else None
        call = (f"SELECT {self.columns}, p.cursor, p.complete, p.missing_shards FROM interlock.keyset_page("
                f"{quoted(self.keyset)}, NULL::{self.row}, {{}}, after => {{}}, before => {{}}, page_size => {{}}) AS p")
        if self.extended:
            return self.client.run(call.format("$1", "$2", "$3", "$4"), scope, after, before, size)
        return self.client.query(call.format(quoted(scope), quoted(after), quoted(before),
                                             "NULL" if size is None else size))

    def page(self, after=None, before=None, size=None) -> Page:
        return self.read(self.ask(after, before, size).ok())

    @staticmethod
    def read(answer) -> Page:
        rows = [tuple(None if value is None else value.decode() for value in row) for row in answer.rows]
        values = [row[:-3] for row in rows]
        return Page([row[0] if len(row) == 1 else row for row in values], [row[-3] for row in rows],
                    all(row[-2] == "t" for row in rows),
                    sorted({name for row in rows for name in row[-1].strip("{}").split(",") if name}), answer)

    def walk(self, size, after=None):
        """Page after page, up to and with the short one that ends it."""
        while True:
            page = self.page(after=after, size=size)
            yield page
            if len(page) < size:
                return
            after = page.cursors[-1]


def numbers(pages):
    """order_id of all rows."""
    return [int(row) for page in pages for row in page.rows]


def single_column_insert(order):
    """An INSERT of the order, as a client of the router sends it."""
    values = ", ".join(quoted(value) for value in order)
    return f"INSERT INTO orders VALUES ({values})".replace("'NULL'", "NULL")
