"""The shop's databases: two shards behind a router, the unsharded one, and a second unsharded one."""

from localcluster.ports import free_port
from support.cluster import Cluster

from . import schema
from .client import Client

PLAIN, CONTROL = "plain", "control"


class Shop(Cluster):
    """Beside the shards' databases `app`: `plain` (on s0's instance) and `control` (on s1's), unsharded.

    `control` holds the same rows in another order and is made to plan otherwise, so that a statement whose
    answer depends on plans or physical order shows up in the control run.
    """

    def __init__(self, base, owner, **options):
        self.world = schema.World()
        super().__init__(base, owner, table=schema.ddl(), **options)

    def describe(self):
        with self.catalog.connect() as catalog:
            catalog.execute("SELECT interlock.create_cluster('shop')")
            for name in ("s0", "s1"):
                catalog.execute("SELECT interlock.add_shard(%s, %s)",
                                (name, self.conninfo_of(name, self.instances[name])))
            for name, (kind, buckets, of_s0) in schema.KEYSPACES.items():
                catalog.execute("SELECT interlock.create_keyspace(%s, %s, %s)", (name, kind, buckets))
                catalog.execute("SELECT interlock.assign(%s, %s, 's0')", (name, of_s0))
                catalog.execute("SELECT interlock.assign(%s, %s, 's1')",
                                (name, [b for b in range(buckets) if b not in of_s0]))
            for table in schema.TABLES:
                catalog.execute("SELECT interlock.declare_table(%s, %s, %s)",
                                (table.name, table.keyspace, table.key.strip('"')))
            catalog.execute("SELECT interlock.declare_function('label_of')")
            catalog.execute("SELECT interlock.grant_router('interlock_router')")
        return self

    def make(self):
        """Everything but the router."""
        self.start_instances().create_tables()
        for instance, dbname in ((self.s0, PLAIN), (self.s1, CONTROL)):
            instance.sql(f"CREATE DATABASE {dbname} TEMPLATE template0", dbname="postgres")
            instance.sql(schema.ddl(), dbname=dbname)
        self.s1.sql(f"ALTER DATABASE {CONTROL} SET enable_indexscan = off; ALTER DATABASE {CONTROL} SET enable_hashjoin = off;"
                    f"ALTER DATABASE {CONTROL} SET enable_hashagg = off; ALTER DATABASE {CONTROL} SET join_collapse_limit = 1",
                    dbname="postgres")
        self.describe().apply()
        self.world.learn(self.s0)
        self.rows = self.world.rows()
        self.loaders = {"s0": self.loader(self.s0, "app"), "s1": self.loader(self.s1, "app"),
                        PLAIN: self.loader(self.s0, PLAIN), CONTROL: self.loader(self.s1, CONTROL)}
        return self

    @staticmethod
    def loader(instance, dbname):
        return instance.connect(dbname, "postgres")

    def unguarded(self, shard, table, statement):
        """Runs the statement on the shard while the table has no guard."""
        loader = self.loaders[shard]
        guards = loader.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND tgenabled = 'A'",
                                (table.name,)).fetchall()
        for (name,) in guards:
            loader.execute(f'ALTER TABLE {table.name} DISABLE TRIGGER "{name}"')
        loader.execute(statement)
        for (name,) in guards:
            loader.execute(f'ALTER TABLE {table.name} ENABLE ALWAYS TRIGGER "{name}"')

    def reload(self, *places):
        """Puts the rows back to what they were at the start."""
        for shard, name, _ in self.misplaced():  # the guard would keep them where they are
            self.unguarded(shard, schema.BY_NAME[name], f"DELETE FROM {name}")
        for place in places:
            with self.loaders[place].transaction(), self.loaders[place].cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '10s'")
                for table in reversed(schema.TABLES):
                    cursor.execute(f"DELETE FROM {table.name}")
                for table in schema.TABLES:
                    rows = self.rows[table.name]
                    if place in ("s0", "s1"):
                        rows = [row for row in rows if self.world.side_of(table, row) == place]
                    if place == CONTROL:
                        rows = rows[::-1]
                    with cursor.copy(f"COPY {table.name} FROM STDIN") as copy:
                        for row in rows:
                            copy.write_row(row)

    def contents(self, place):
        """table name -> {key as text: (rows, sum of hashes)}."""
        found = {}
        with self.loaders[place].transaction():
            for table in schema.TABLES:
                rows = self.loaders[place].execute(
                    f"SELECT {table.key}::text, count(*), sum(hashtextextended(t::text, 0)::numeric)"
                    f" FROM {table.name} AS t GROUP BY 1").fetchall()
                found[table.name] = {key: (count, total) for key, count, total in rows}
        return found

    def misplaced(self):
        """Rows that the shards themselves say are not theirs."""
        return [(side, table.name, row) for side in ("s0", "s1") for table in schema.TABLES
                for row in self.loaders[side].execute("SELECT * FROM interlock.misplaced(%s, 10)", (table.name,)).fetchall()]

    def plain_client(self, dbname=PLAIN, **parameters):
        instance = self.s0 if dbname in (PLAIN, "s0") else self.s1
        return Client("127.0.0.1", instance.port, "app" if dbname in ("s0", "s1") else dbname, "app", **parameters)

    def start_router(self):
        """The router with its PostgreSQL listener on a free port, trusting everybody."""
        self.pg_port = free_port()
        router = self.new_router(settings={"pg": {"listen": f"127.0.0.1:{self.pg_port}", "auth": "trust", "database": "app"}})
        router.start()
        return router

    def router_client(self, **parameters):
        return Client("127.0.0.1", self.pg_port, "app", "app", **parameters)

    def down(self):
        for connection in getattr(self, "loaders", {}).values():
            connection.close()
        super().down()
