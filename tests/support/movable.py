"""Two shards whose buckets are moved, with tables of every kind: each test has a keyspace and a schema of its own."""

import re
from collections import Counter
from pathlib import Path

from . import settled
from .cluster import Cluster
from .moves import Mover, move_to_its_end
from .shard import refusal

SETTINGS = {"max_connections": "100", "wal_retrieve_retry_interval": "100ms", "log_min_messages": "warning",
            "lc_messages": "C"}
BUCKETS = 16
# What values' texts depend on, and whether one may write: the same in all sessions of the tests, whatever the server says.
FORMS = "-c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed -c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=1 -c bytea_output=hex -c lc_monetary=C"


def brief(rows):
    return [(table, row if len(row) < 200 else f"{row[:120]} ... {row[-60:]} ({len(row)})") for table, row in sorted(rows)[:3]]


class MovableCluster(Cluster):
    """As Cluster; a router with both listeners, and a superuser's movers."""

    def __init__(self, base: Path, owner, *, shard_settings=None, router_settings=None, **options):
        super().__init__(base, owner, shard_settings={**SETTINGS, **(shard_settings or {})},
                         router_settings={"pg": {}, **(router_settings or {})}, **options)
        self.movers = []
        self.families = 0

    def conninfo(self):
        return self.catalog.conninfo("app", "postgres")

    def family(self, schema, tables, **options):
        """See Family; made and applied."""
        self.families += 1
        return Family(self, f"family{self.families}", schema, tables, **options).create()

    def mover(self, *arguments, **options):
        """A process `interlock move`, killed when the test ends."""
        mover = Mover(self.conninfo(), *arguments, log=self.base / f"mover{len(self.movers)}.log", **options)
        self.movers.append(mover)
        return mover

    def move(self, *arguments, **options):
        """`interlock move` to its end."""
        return move_to_its_end(self.conninfo(), *arguments, **options)

    def unfinished(self, keyspace=None):
        """Ids of the moves under way (of a keyspace)."""
        return [row[0] for row in self.catalog.sql(
            "SELECT id::text FROM interlock.moves WHERE finished IS NULL AND (%s::text IS NULL OR keyspace = %s)", keyspace, keyspace)]

    def abort(self, keyspace):
        """Takes the keyspace's one move back."""
        [move] = self.unfinished(keyspace)
        return self.move("--abort", move)

    def leftovers(self):
        return settled.leftovers(self)

    def end_test(self):
        for mover in self.movers:
            if mover.running():
                mover.kill()
        super().end_test()

    def restore(self):
        """After a test that failed in the middle of a move: there is none under way. Whether that could be had."""
        try:
            for move in self.unfinished():
                if self.move("--abort", move, expect=None).returncode != 0:
                    self.move("--resume", move, expect=None)
            return not self.leftovers()
        except Exception:  # noqa: BLE001 (whatever it is, the next test gets a new cluster)
            return False


class Family:
    """A keyspace with its tables, in a schema of their own on both shards: even buckets on s0, odd ones on s1.

    `schema`: SQL that makes the tables (a pair: each shard's own). `tables`: name -> key column.
    """

    def __init__(self, cluster, name, schema, tables, key_type="bigint", more=""):
        self.cluster, self.name, self.tables, self.key_type = cluster, name, tables, key_type
        self.schemas = schema if isinstance(schema, tuple) else (schema, schema)

    def create(self):
        for shard, schema in zip(self.cluster.shards, self.schemas):
            self.on(shard, f"CREATE SCHEMA {self.name}; GRANT USAGE ON SCHEMA {self.name} TO app;"
                           f"ALTER DEFAULT PRIVILEGES IN SCHEMA {self.name} GRANT ALL ON TABLES TO app;"
                           f"ALTER DEFAULT PRIVILEGES IN SCHEMA {self.name} GRANT ALL ON SEQUENCES TO app")
            self.on(shard, schema)
        with self.cluster.catalog.connect() as catalog:
            catalog.execute("SELECT interlock.create_keyspace(%s, %s, %s)", (self.name, self.key_type, BUCKETS))
            for table, key in self.tables.items():
                catalog.execute("SELECT interlock.declare_table(%s, %s, %s)", (f"{self.name}.{table}", self.name, key))
            for number, shard in enumerate(self.cluster.shards):
                catalog.execute("SELECT interlock.assign(%s, %s, %s)",
                                (self.name, list(range(number, BUCKETS, len(self.cluster.shards))), shard))
        self.cluster.apply()
        return self

    # -- the shards -------------------------------------------------------------------------------

    def connect(self, shard, **options):
        """A superuser's session there, in the family's schema; closed when the test ends."""
        return self.cluster.connect(shard, **self.surroundings(), **options)

    def surroundings(self):
        return {"options": f"-c search_path={self.name},public {FORMS}", "client_encoding": "UTF8"}

    def on(self, shard, text, *parameters):
        """Statements on one shard, one after the other; the last one's rows."""
        with self.cluster.instances[shard].connect(**self.surroundings()) as session:
            cursor = session.execute(text, parameters or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def value(self, shard, text, *parameters):
        rows = self.on(shard, text, *parameters)
        return rows[0][0] if rows else None

    def load(self, text):
        """The statement on both shards, each time with the condition that this shard owns the key: `owned(expression)`
        in the text."""
        for shard in self.cluster.shards:
            self.on(shard, self.owned(text))

    def owned(self, text):
        return re.sub(r"\bowned\(", f"interlock.owns('{self.name}', ", text)

    def keys(self, bucket, count=1):
        """The first integers from 1 on in the bucket."""
        return [row[0] for row in self.on("s0", "SELECT g FROM generate_series(1, 100000) g WHERE interlock.bucket_of(%s, g) = %s"
                                                " LIMIT %s", self.name, bucket, count)]

    # -- rows -------------------------------------------------------------------------------------

    def rows(self, shard, table, buckets=None):
        """Rows as text with their table (or partition), sorted; of some buckets, or all."""
        key = '"' + self.tables[table].replace('"', '""').replace("%", "%%") + '"'
        return [row[0] for row in self.on(shard, f"""
            SELECT t.tableoid::regclass || ': ' || t::text FROM {table} t
             WHERE %s::int[] IS NULL OR interlock.bucket_of(%s, t.{key}) = ANY (%s) ORDER BY 1""", buckets, self.name, buckets)]

    def all_rows(self):
        """(table, row) of each shard's own buckets, sorted: what is copied already is not counted twice."""
        owned = {shard: [row[0] for row in self.on(shard, "SELECT bucket FROM interlock.bucket_state WHERE keyspace = %s"
                                                          " AND state IN ('owned', 'fenced')", self.name)]
                 for shard in self.cluster.shards}
        return sorted((table, row) for shard in self.cluster.shards for table in self.tables
                      for row in self.rows(shard, table, owned[shard]))

    def same(self, expected):
        """All rows are those of `expected`, an earlier all_rows()."""
        there, wanted = Counter(self.all_rows()), Counter(expected)
        lost, strange = wanted - there, there - wanted
        assert not lost and not strange, (f"{lost.total()} rows are not as they were, like {brief(lost)}\n"
                                          f"{strange.total()} ought not to be, like {brief(strange)}")

    def owner(self, bucket):
        """The shard that owns it, by the shards' own word: exactly one."""
        [owner] = settled.owners(self.cluster, bucket, self.name)
        return owner

    # -- moving -----------------------------------------------------------------------------------

    def arguments(self, bucket, to, *more):
        buckets = bucket if isinstance(bucket, str) else ",".join(map(str, bucket if isinstance(bucket, (list, tuple)) else [bucket]))
        return ["--keyspace", self.name, "--bucket", buckets, "--to", to, *more]

    def move(self, bucket, to, *more, **options):
        return self.cluster.move(*self.arguments(bucket, to, *more), **options)

    def mover(self, bucket, to, *more, **options):
        return self.cluster.mover(*self.arguments(bucket, to, *more), **options)

    def moved(self, buckets, source, target, expected):
        """The move is over and nothing else has changed: the rows are those of `expected` (see all_rows()), those of
        the buckets are at the target and nowhere else, each bucket has one owner, and nothing of the move is left."""
        self.same(expected)
        for table in self.tables:
            assert self.rows(source, table, buckets) == []
        routes = settled.routes(self.cluster, self.name)
        assert {bucket: routes[bucket] for bucket in buckets} == dict.fromkeys(buckets, target)
        assert settled.ownership_faults(self.cluster, self.name) == [] and settled.leftovers(self.cluster) == []

    def refused(self, shard, statement, *parameters, code="IL101"):
        with refusal(code):
            self.on(shard, statement, *parameters)
