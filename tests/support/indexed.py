"""Orders on several shards with a global index: its database on an instance of its own, consumers as processes.

The cluster of support/order_cluster.py, where keyset merchant_orders is answered from the index of that name, and
merchant_mixed from the shards. Shards `s0`, `s1`, ...; the index database is on `idx`.
"""

import json
import re
import signal
import subprocess
from collections import Counter

import psycopg

from .order_cluster import Order, OrdersCluster, newest_first
from .placement import bucket_of
from .postgres import Postgres
from .router import BINARY, FAULT, SLACK, environment, run_interlock
from .wait import wait_until

INDEX = "merchant_orders"
ENTRIES = f'interlock_index."{INDEX}"'
SCOPE, ORDER = "{merchant_id}", "created_at DESC, order_id DESC"
# The login of consumers, backfill and repair: a plain role.
INDEXER = "interlock_indexer"


class Consumer:
    """A process `interlock index run`."""

    def __init__(self, cluster, number, *arguments, env=None):
        self.log = cluster.base / f"consumer{number}.log"
        self.log_file = self.log.open("ab")
        self.expected_end = False
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", BINARY, "index", "run", "--catalog", cluster.catalog_conninfo(),
             *map(str, arguments)],
            env=environment({"PGUSER": cluster.indexer, **(env or {})}), cwd="/", stdin=subprocess.DEVNULL,
            stdout=self.log_file, stderr=self.log_file, start_new_session=True)

    def log_text(self):
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def kill(self):
        """kill -9, and its connections see it end."""
        self.expected_end = True
        self.process.kill()
        self.process.wait(10)

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        """SIGTERM: it ends by itself, cleanly."""
        if self.running():
            self.thaw()
            self.expected_end = True
            self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(20 * SLACK)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"the consumer did not end on SIGTERM:\n{self.log_text()[-3000:]}") from None
            assert status == 0, f"the consumer ended with {status}:\n{self.log_text()[-3000:]}"

    def check(self):
        """Fails when it ended by itself, or a sanitizer spoke."""
        text = self.log_text()
        assert not FAULT.search(text), text[-6000:]
        status = self.process.poll()
        assert status is None or self.expected_end, f"the consumer ended by itself with {status}:\n{text[-3000:]}"


class IndexedCluster(OrdersCluster):
    """`up()` makes all of it: the index is declared, applied, backfilled and ready, and no consumer runs."""

    def __init__(self, base, owner, *, index_settings=None, index_conninfo=None, **options):
        super().__init__(base, owner, **options)
        self.indexer = INDEXER
        self.instances["idx"] = self.idx = Postgres(base, "idx", owner, {
            **self.s0.settings, **(index_settings or {})})
        self.index_conninfo = index_conninfo or (lambda: self.idx.conninfo("app"))
        self.consumers = []
        self.started = 0
        # Its rows are in the way when a bucket moves.
        self.samples = []
        self.writers = {}  # shard -> a connection for change()

    # -- making it -------------------------------------------------------------------------------

    def declare(self, catalog):
        super().declare(catalog)
        catalog.execute("SELECT interlock.add_index_database('idx', %s)", (self.index_conninfo(),))
        self.declare_index(catalog)

    def declare_index(self, catalog):
        catalog.execute("SELECT interlock.create_index(%s, 'orders', %s, %s)", (INDEX, SCOPE, ORDER))

    def start_instances(self):
        super().start_instances()
        for instance in self.instances.values():
            instance.sql(f"CREATE ROLE {INDEXER} LOGIN", dbname="postgres")
        return self

    def make(self):
        """Up to the index's declaration: rows on the shards, their changes recorded from now on; nothing is ready."""
        self.start_instances().create_tables().describe()
        self.load()
        self.loaded = {shard: self.texts(shard) for shard in self.shards}
        self.apply()
        self.grant_indexer()
        return self

    def grant_indexer(self):
        """What a DBA grants to the login of the consumers (docs/indexes.md)."""
        for shard in self.shards:
            self.instances[shard].sql(f"SELECT interlock.grant_consumer('{INDEXER}');"
                                      f"GRANT SELECT ON orders TO {INDEXER}")
        self.idx.sql(f"SELECT interlock.grant_indexer('{INDEXER}')")
        # The backfill says in the catalog that it is done.
        self.catalog.sql(f"SELECT interlock.grant_router('{INDEXER}'), interlock.grant_indexer('{INDEXER}')")

    def fill_index(self):
        """Backfilled and published: pages are answered from it."""
        self.index("backfill", INDEX)
        self.apply()
        return self

    def up(self):
        self.make().fill_index()
        self.declare_keysets()
        self.new_router().start()
        return self

    def declare_keysets(self):
        # The index's keyset is made by `interlock apply`.
        self.declare_keyset("merchant_mixed", "orders", "merchant_id", "created_at DESC, order_id")

    # -- the index's tools ------------------------------------------------------------------------

    def catalog_conninfo(self):
        return self.catalog.conninfo("app", self.indexer)

    def index(self, *arguments, check=True, command="index", env=None, timeout=120):
        """`interlock index ...` to its end."""
        done = run_interlock(command, *arguments, "--catalog", self.catalog_conninfo(),
                             env={"PGUSER": self.indexer, **(env or {})}, timeout=timeout)
        if check:
            assert done.returncode == 0, \
                f"{command} {arguments} exited {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def repair(self, *arguments, expect=0):
        """`interlock repair` of the index; the report that it prints with --json."""
        done = self.index(INDEX, "--json", *arguments, command="repair", check=False)
        assert expect is None or done.returncode == expect, f"repair exited {done.returncode}:\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def consumer(self, *arguments, **options):
        """A consumer that runs until the test ends."""
        self.started += 1
        consumer = Consumer(self, self.started, *arguments, **options)
        self.consumers.append(consumer)
        return consumer

    def drain(self, *arguments):
        """One consumer takes all there is, and ends."""
        return self.index("run", "--once", *arguments)

    def backlog(self):
        """Records not yet removed: shard -> how many."""
        return {shard: self.instances[shard].value("SELECT count(*)::int FROM interlock.outbox WHERE stream = %s", INDEX)
                for shard in self.shards}

    def drained(self, deadline=60):
        """Waits until the consumers have left nothing behind."""
        wait_until(lambda: not any(self.backlog().values()), deadline * SLACK, "nothing is left in the outboxes", 0.05)

    # -- what is true, and what the index says ----------------------------------------------------

    def rows(self, merchant=None):
        """All orders (or a merchant's), read from the shards that own them."""
        return [Order(*row) for shard in self.shards for row in self.instances[shard].sql(
            "SELECT * FROM orders WHERE %s::bigint IS NULL OR merchant_id = %s", merchant, merchant)]

    def truth(self, merchant=3):
        """Its order numbers, newest first, by a full sort."""
        return [order.order_id for order in newest_first(self.rows(merchant), merchant)]

    def entries(self):
        """The index's live entries as (merchant_id, created_at, order_id, user_id)."""
        return self.idx.sql(f"SELECT merchant_id, created_at, order_id, user_id FROM {ENTRIES}"
                            " WHERE NOT interlock_deleted")

    def contents(self):
        """Everything that decides what the index answers and what may change it, tombstones included."""
        return sorted(self.idx.sql(
            "SELECT order_id, user_id, merchant_id, created_at, interlock_route_version, interlock_seq,"
            f" interlock_deleted FROM {ENTRIES}"))

    def differences(self):
        """(missing, stale): entries that ought to be there, and such as ought not."""
        # As text, which a client need not take apart: these are many, and all alike as a rule.
        text = "SELECT concat_ws('|', merchant_id, order_id, user_id, created_at) FROM "
        true = Counter(row[0] for shard in self.shards for row in self.instances[shard].sql(text + "orders"))
        said = Counter(row[0] for row in self.idx.sql(text + ENTRIES + " WHERE NOT interlock_deleted"))
        return sorted((true - said).elements()), sorted((said - true).elements())

    def equal(self):
        missing, stale = self.differences()
        assert not missing and not stale, (f"missing {len(missing)}: {missing[:5]}, stale {len(stale)}: {stale[:5]}")

    def naive_walk(self, merchant=3):
        """Somebody who trusts the index: what each entry says, with the row's amount from the shard if it has one."""
        said = self.idx.sql(f"SELECT order_id, user_id FROM {ENTRIES} WHERE merchant_id = %s AND NOT interlock_deleted"
                            " ORDER BY created_at DESC, order_id DESC", merchant)
        amounts = dict(row for shard in self.shards for row in self.instances[shard].sql(
            "SELECT order_id, amount FROM orders WHERE order_id = ANY (%s)", [number for number, _ in said]))
        return [(order_id, amounts.get(order_id)) for order_id, _ in said]

    # -- changes ----------------------------------------------------------------------------------

    def change(self, user, text, *parameters, silently=False):
        """A statement on the user's shard, directly; silently: as a row that a move brings, past the outbox."""
        connection = self.writer(self.shard_name(user))
        with connection.transaction():
            if silently:
                connection.execute("SET LOCAL session_replication_role = replica")
            return connection.execute(text, parameters or None).rowcount

    def writer(self, shard):
        """A connection to the shard that works."""
        try:
            self.writers[shard].execute("SELECT 1")
        except (KeyError, psycopg.OperationalError):
            self.writers[shard] = self.instances[shard].connect()
        return self.writers[shard]

    def insert(self, order, **options):
        marks = ", ".join(["%s"] * len(order))
        assert self.change(order.user_id, f"INSERT INTO orders VALUES ({marks})", *order, **options) == 1
        return order

    def delete(self, order, **options):
        assert self.change(order.user_id, "DELETE FROM orders WHERE order_id = %s AND user_id = %s", order.order_id,
                           order.user_id, **options) == 1

    def update(self, order, **values):
        """Sets columns of the order; returns it as it is then."""
        sets = ", ".join(f"{name} = %s" for name in values)
        assert self.change(order.user_id, f"UPDATE orders SET {sets} WHERE order_id = %s AND user_id = %s",
                           *values.values(), order.order_id, order.user_id) == 1
        return order._replace(**values)

    def move_bucket(self, bucket, to):
        """As a mover does: the rows go past the triggers, then the bucket changes its owner by a new route version."""
        source = self.owners()[bucket]
        rows = [row for row in self.instances[source].sql("SELECT * FROM orders") if bucket_of(row[1]) == bucket]
        with self.instances[to].connect() as target, target.transaction():
            target.execute("SET LOCAL session_replication_role = replica")
            # The guard lets nothing in that is another shard's; this is over before anybody sees it.
            before = target.execute("DELETE FROM interlock.bucket_state WHERE bucket = %s RETURNING *",
                                    (bucket,)).fetchone()
            target.execute("INSERT INTO interlock.bucket_state (keyspace, bucket, state, route_version)"
                           " VALUES ('accounts', %s, 'owned', 0)", (bucket,))
            with target.cursor().copy("COPY orders FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            target.execute("DELETE FROM interlock.bucket_state WHERE bucket = %s", (bucket,))
            if before:
                target.execute(f"INSERT INTO interlock.bucket_state VALUES ({', '.join(['%s'] * len(before))})", before)
        with self.instances[source].connect() as old:
            old.execute("SET session_replication_role = replica")
            old.execute("DELETE FROM orders WHERE order_id = ANY (%s)", ([row[0] for row in rows],))
        self.catalog.sql("SELECT interlock.assign('accounts', %s, %s)", [bucket], to)
        self.apply()

    # -- counting ---------------------------------------------------------------------------------

    def mark(self):
        return {**super().mark(), "idx": self.idx.log_mark()}

    def sent(self, mark):
        """Statements of pages that the router's logins began since the mark: instance -> how many."""
        pattern = re.compile(r" app@app LOG:  (?:execute [^:]*|statement): [^\n]*keyset_(?:page|rows)\(")
        return {name: len(pattern.findall(self.instances[name].log_since(mark[name]))) for name in mark}

    def counters(self, router=None):
        """What STATUS says of index pages: index_pages, entries, filtered."""
        with (router or self.router).client() as client:
            raw = client.status().raw
        return {name: int(value) for name, value in
                re.findall(r"\b(index_pages|index_entries|index_filtered)=(\d+)", raw)}

    def filtered(self, router=None):
        return self.counters(router)["index_filtered"]

    # -- after a test -----------------------------------------------------------------------------

    def end_consumers(self):
        faults = []
        for consumer in self.consumers:
            try:
                consumer.check()
                consumer.stop()
            except AssertionError as fault:
                faults.append(str(fault))
        self.consumers.clear()
        assert not faults, "\n".join(faults)

    def end_test(self):
        try:
            self.end_consumers()
        finally:
            super().end_test()

    def restore(self):
        """Puts the rows back, and the index with them; and each bucket to the shard it was on."""
        for shard in self.shards:
            self.instances[shard].sql("SELECT interlock.outbox_discard(%s, array_agg(seq)) FROM interlock.outbox_parked"
                                      " WHERE stream = %s HAVING count(*) > 0", INDEX, INDEX)
        owners = self.owners()
        for bucket, shard in sorted(owners.items()):
            home = self.shards[bucket % len(self.shards)]
            if shard != home:
                self.move_bucket(bucket, home)
        for shard in self.shards:
            self.put_back(shard)
        self.drain()
        missing, stale = self.differences()
        if missing or stale:
            # The test has broken it on purpose, or shown that it breaks.
            self.repair("--apply", expect=None)
            self.equal()

    def put_back(self, shard):
        there = self.texts(shard)
        wanted = self.loaded[shard]
        wrong = [number for number, text in there.items() if wanted.get(number) != text]
        missing = {number for number, text in wanted.items() if there.get(number) != text}
        with self.instances[shard].connect() as connection, connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '20s'")
            connection.execute("DELETE FROM orders WHERE order_id = ANY (%s)", (wrong,))
            with connection.cursor().copy("COPY orders FROM STDIN") as copy:
                for row in self.orders:
                    if row.order_id in missing:
                        copy.write_row(row)

    def texts(self, shard):
        return dict(self.instances[shard].sql("SELECT order_id, orders::text FROM orders"))

    def owners(self):
        """bucket -> shard, as published."""
        return dict(self.catalog.sql("SELECT r.bucket, s.name FROM interlock.route r JOIN interlock.shard s"
                                     " ON s.id = r.shard WHERE r.valid_to IS NULL"))

    def down(self):
        for consumer in self.consumers:
            consumer.kill()
        for connection in self.writers.values():
            connection.close()
        super().down()
