"""The cluster that most tests use: two shards, 16 buckets, table account, a router."""

from pathlib import Path

from . import placement
from .pgclient import PgClient
from .postgres import Postgres
from .router import Router, run_interlock

ACCOUNT = """
CREATE TABLE account (account_id bigint PRIMARY KEY, owner text,
                      balance bigint CHECK (balance >= 0), version int);
GRANT SELECT, INSERT, UPDATE, DELETE ON account TO app;
"""
EVEN = list(range(0, 16, 2))
ODD = list(range(1, 16, 2))


class Cluster:
    """Shards s0 and s1 (or more), the catalog (on s0, or on an instance `cat` of its own), router r0.

    `conninfo_of(name, instance)` may lead the router to a shard by another way (a proxy, TLS).
    The application's login on the shards is `app`, the router's on the catalog `interlock_router`:
    both plain roles. Superuser connections of the tests go to the instances directly.
    """

    def __init__(self, base: Path, owner, *, separate_catalog=False, shard_settings=None,
                 router_settings=None, conninfo_of=None, table=ACCOUNT, shards=2):
        self.base, self.owner, self.table = base, owner, table
        self.router_settings = router_settings or {}
        self.conninfo_of = conninfo_of or (lambda name, instance: instance.conninfo("app"))
        self.shards = [f"s{number}" for number in range(shards)]
        names = self.shards + (["cat"] if separate_catalog else [])
        self.instances = {name: Postgres(base, name, owner, shard_settings) for name in names}
        self.s0, self.s1 = self.instances["s0"], self.instances["s1"]
        self.catalog = self.instances["cat" if separate_catalog else "s0"]
        self.routers = []
        self.clients = []
        self.connections = []

    # -- making it -------------------------------------------------------------------------------

    def start_instances(self):
        for instance in self.instances.values():
            instance.start()
            instance.sql("CREATE ROLE app LOGIN; CREATE ROLE interlock_router LOGIN;", dbname="postgres")
            instance.sql("CREATE DATABASE app", dbname="postgres")
            instance.sql("CREATE EXTENSION interlock")
        return self

    def create_tables(self):
        for name in self.shards:
            self.instances[name].sql(self.table)
        return self

    def describe(self):
        """The cluster's definition in the catalog, up to staged assignments (nothing published)."""
        with self.catalog.connect() as catalog:
            catalog.execute("SELECT interlock.create_cluster('test')")
            for name in self.shards:
                catalog.execute("SELECT interlock.add_shard(%s, %s)",
                                (name, self.conninfo_of(name, self.instances[name])))
            catalog.execute("SELECT interlock.create_keyspace('accounts', 'bigint', 16)")
            self.declare(catalog)
            for number, name in enumerate(self.shards):
                catalog.execute("SELECT interlock.assign('accounts', %s, %s)",
                                (list(range(number, 16, len(self.shards))), name))
            catalog.execute("SELECT interlock.grant_router('interlock_router')")
        return self

    def declare(self, catalog):
        """The tables of the keyspace; a cluster with others says so."""
        catalog.execute("SELECT interlock.declare_table('account', 'accounts', 'account_id', 'version')")

    def apply(self, *arguments, check=True):
        """`interlock apply` as the superuser."""
        done = run_interlock("apply", "--catalog", self.catalog.conninfo("app", "postgres"), *arguments,
                             env={"PGUSER": "postgres"})
        if check:
            assert done.returncode == 0, f"apply exited {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def new_router(self, name=None, settings=None, **options):
        """A router that is not started yet."""
        merged = {"backend": {"options": "user=app"}}
        for source in (self.router_settings, settings or {}):
            for section, values in source.items():
                merged.setdefault(section, {}).update(values)
        router = Router(self.base, name or f"r{len(self.routers)}",
                        self.catalog.conninfo("app", "interlock_router"), merged, **options)
        self.routers.append(router)
        return router

    def up(self):
        self.start_instances().create_tables().describe()
        self.apply()
        self.new_router().start()
        return self

    # -- using it --------------------------------------------------------------------------------

    @property
    def router(self):
        return self.routers[0]

    def client(self, router=None, timeout=15.0):
        """A line client that is closed when the test ends."""
        client = (router or self.router).client(timeout)
        self.clients.append(client)
        return client

    def pg_client(self, router=None, **options):
        """A client of the PostgreSQL listener that is closed when the test ends."""
        client = (router or self.router).pg_client(**options)
        self.clients.append(client)
        return client

    def direct(self, shard="s0", user="app", **options):
        """A client of the same kind on the shard itself: the control. Closed when the test ends."""
        client = PgClient(self.instances[shard].port, user, "app", **options)
        self.clients.append(client)
        return client

    def connect(self, shard, user="postgres", **options):
        """A direct connection to a shard that is closed when the test ends."""
        connection = self.instances[shard].connect("app", user, **options)
        self.connections.append(connection)
        return connection

    def shard_of(self, key):
        return self.instances[placement.reference_shard(key)]

    def balance(self, key):
        """Read directly from the shard the key belongs to."""
        return self.shard_of(key).value("SELECT balance FROM account WHERE account_id = %s", key)

    def total(self):
        return sum(self.instances[s].value("SELECT coalesce(sum(balance), 0)::bigint FROM account")
                   for s in ("s0", "s1"))

    def counts(self):
        return tuple(self.instances[s].value("SELECT count(*) FROM account") for s in ("s0", "s1"))

    def publish(self, note=None, allow_owner_change=False):
        return self.catalog.value("SELECT interlock.publish(%s, NULL, %s)", note, allow_owner_change)

    def assign(self, buckets, shard):
        return self.catalog.value("SELECT interlock.assign('accounts', %s, %s)", buckets, shard)

    def activity(self, shard, pid):
        """pg_stat_activity.state of one backend, None when it is gone."""
        return self.instances[shard].value(
            "SELECT state FROM pg_stat_activity WHERE pid = %s", pid, dbname="postgres")

    def idle_in_transaction(self, shard):
        return self.instances[shard].value(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state LIKE 'idle in transaction%%'"
            " AND pid <> %s", 0, dbname="postgres")

    def load_accounts(self, per_shard=20, balance=1000):
        """`per_shard` accounts on each shard, written directly; replaces what was there."""
        for shard in ("s0", "s1"):
            keys = placement.keys_on(shard, per_shard)
            with self.instances[shard].connect() as connection, connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '20s'")
                connection.execute("DELETE FROM account")
                connection.cursor().executemany(
                    "INSERT INTO account VALUES (%s, %s, %s, 0)",
                    [(key, f"owner{key}", balance) for key in keys])

    # -- ending it -------------------------------------------------------------------------------

    def end_test(self):
        """After each test: clients go, logs are looked through."""
        for item in [*self.clients, *self.connections]:
            item.close()
        self.clients.clear()
        self.connections.clear()
        self.check_logs()

    def check_logs(self):
        for process in [*self.routers, *self.instances.values()]:
            process.check_log()

    def down(self):
        faults = []
        for router in self.routers:
            try:
                router.stop()
            except AssertionError as fault:
                faults.append(str(fault))
        for instance in self.instances.values():
            instance.stop("immediate")
        self.check_logs()
        for router in self.routers:
            status = router.process.returncode if router.process else 0
            if status not in (0, -9, -2, 130, 1):
                faults.append(f"{router.name} exited {status}:\n{router.log_text()[-6000:]}")
        assert not faults, "\n".join(faults)
