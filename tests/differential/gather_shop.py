"""Where scatters are compared: three shards behind a router, and unsharded databases with the same rows.

The rows repeat values a lot (ties in every order), hold NULLs, and the extremes of their types. Strays,
rows of buckets that the shard does not own, lie on every shard: an answer that counts one is wrong.
"""

import random

from localcluster.ports import free_port
from support.cluster import Cluster
from support.postgres import Postgres

from .client import Client

SHARDS = ("s0", "s1", "s2")
PLAIN, CONTROL = "plain", "control"

# Columns of `things` besides its key. mixed and span_odd hold values that are equal but spelled otherwise:
# min, max and groups of them may show any spelling, so they are only summed.
COLUMNS = {
    "b": "boolean", "i2": "smallint", "i4": "integer", "i8": "bigint", "n": "numeric(12,2)", "mixed": "numeric",
    "f4": "real", "f8": "double precision", "tc": 'text COLLATE "C"', "ti": 'text COLLATE "und-x-icu"', "td": "text",
    "vc": 'varchar(20) COLLATE "C"', "ch": 'char(6) COLLATE "C"', "bin": "bytea", "u": "uuid", "d": "date", "tm": "time",
    "ts": "timestamp", "tz": "timestamptz", "span": "interval", "span_odd": "interval", "mood": "mood", "cash": "money",
    "doc": "jsonb",
}
DDL = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE mood ADD VALUE 'awful' BEFORE 'sad';
CREATE TABLE things (owner bigint NOT NULL, no integer NOT NULL, ref integer NOT NULL UNIQUE, {columns}, PRIMARY KEY (owner, no));
CREATE INDEX ON things (d DESC, owner, no);
CREATE TABLE nothing (LIKE things INCLUDING ALL);
CREATE TABLE notes (note_id uuid PRIMARY KEY, body text COLLATE "C", score integer, at timestamptz, "Odd Name" numeric(8,3));
CREATE TABLE paths (path text COLLATE "C" PRIMARY KEY, size bigint, kind "char", parts integer[]);
CREATE TABLE readings (sensor bigint NOT NULL, day date NOT NULL, value numeric(10,4), label text COLLATE "C", PRIMARY KEY (sensor, day))
    PARTITION BY RANGE (day);
CREATE TABLE readings_old PARTITION OF readings FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE readings_new PARTITION OF readings FOR VALUES FROM ('2024-01-01') TO (MAXVALUE);
CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE words (id bigint PRIMARY KEY, word text COLLATE folded, other char(4) COLLATE folded);
CREATE TABLE many (id bigint PRIMARY KEY, g integer NOT NULL, v numeric, w bigint, at interval);
CREATE TABLE brims (id bigint PRIMARY KEY, n numeric, span interval, cash money);
CREATE FUNCTION twice(integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO PUBLIC;
""".format(columns=", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))

# keyspace -> (key type, buckets)
KEYSPACES = {"owners": ("bigint", 16), "notes": ("uuid", 8), "paths": ("text", 9)}
# table -> (keyspace, key column)
TABLES = {"things": ("owners", "owner"), "nothing": ("owners", "owner"), "notes": ("notes", "note_id"),
          "paths": ("paths", "path"), "readings": ("owners", "sensor"), "many": ("owners", "id"), "brims": ("owners", "id"), "words": ("owners", "id")}
GROUPS = 9000   # of `many`: the router's budget is 10,000

TEXTS = ["", "a", "A", "b", "B", "aa", "a b", "é", "e\u0301", "É", "z", "ä", "Z", "_", "10", "9", "straße", "o'brien", "\U0001f600", "~"]
POOLS = {
    "b": [True, False], "i2": [-32768, -1, 0, 1, 7, 32767], "i4": [-2147483648, -5, 0, 1, 2, 3, 100, 2147483647],
    "i8": [-9223372036854775808, -1, 0, 1, 5, 1 << 40, 9223372036854775807],
    "n": ["-9999999999.99", "-0.50", "0.00", "1.00", "1.50", "2.00", "NaN"],
    "mixed": ["0", "0.000", "1", "1.0", "1.00", "-2.5", "-2.50000", "1e-30", "12345678901234567890.123456789", "3e40", "NaN"],
    "f4": [0.0, 1.5, -2.25, "NaN", "Infinity", "-Infinity", 1e-30], "f8": [0.0, 0.1, 1e300, -1e300, "NaN", "Infinity", "-Infinity"],
    "tc": TEXTS, "ti": TEXTS, "td": TEXTS, "vc": TEXTS, "ch": ["", "a", "A", "b", "é", "ab"],
    "bin": [b"", b"\0", b"\0\0", b"a", b"\xff", b"\xfe\xff"],
    "u": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "12345678-1234-4abc-8def-123456789abc"],
    "d": ["-infinity", "0044-03-15 BC", "2023-12-31", "2024-02-29", "2024-03-01", "infinity"],
    "tm": ["00:00", "12:34:56.789012", "24:00"],
    "ts": ["-infinity", "1970-01-01 00:00:00.000001", "2024-02-29 12:00:00", "2024-02-29 12:00:00.5", "infinity"],
    "tz": ["-infinity", "2024-03-31 01:30:00+00", "2024-03-31 00:30:00+00", "2024-10-27 01:00:00.123456+00", "infinity"],
    "span": ["-1 mon", "0", "1 day", "1 day 00:00:01", "1 mon", "1 year 2 mons", "00:00:00.000001"],
    "span_odd": ["24:00", "1 day", "30 days", "1 mon", "-1 mon 30 days", "1 mon -29 days -12:00"],
    "mood": ["awful", "sad", "ok", "happy"], "cash": ["-1.50", "0", "0.10", "12345.67"],
    "doc": ['{}', '{"a": 1}', '[1, 2]'],
}

def make_rows(seed=4):
    """table -> rows, tuples in the order of the columns; the same for the same seed."""
    rng = random.Random(seed)

    def value(column):
        return None if rng.random() < 0.12 else rng.choice(POOLS[column])

    owners = [*range(1, 31), 0, -1, (1 << 63) - 1, -(1 << 63), *range(1000, 1016)]
    numbers = list(range(-300, 300))
    rng.shuffle(numbers)
    things = [(rng.choice(owners), index, numbers[index], *map(value, COLUMNS)) for index in range(420)]
    notes = [(f"{rng.getrandbits(128):032x}", rng.choice(TEXTS), rng.choice((None, 1, 2, 3)), value("tz"),
              rng.choice((None, "1.500", "0.000", "-7.125"))) for _ in range(90)]
    paths = [(f"/{text}{end}", rng.choice((None, 0, 1, 1 << 62, 1 << 62)), rng.choice("abc"), rng.choice((None, "{1,2}", "{}")))
             for text in TEXTS for end in ("", "/x", "/\U0001f600", "/y")]
    readings = [(sensor, f"{year}-0{month}-01", rng.choice((None, "0.0000", "1.2500", "-3.0001")), rng.choice(TEXTS))
                for sensor in range(1, 13) for year in (2023, 2024) for month in (1, 5, 9)]
    many = [(index, index % GROUPS, f"{rng.randrange(10**6)}.{'0' * (index % 4)}5", rng.randrange(1 << 62), f"{index} days")
            for index in range(3 * GROUPS)]
    # What one shard can hold, and all together cannot.
    brims = [(index, "9e131071", "178000000 years", "92233720368547758.07") for index in range(1, 9)]
    words = [(index, rng.choice(("a", "A", "b", "B", "é", "É", "e\u0301", "straße", "STRASSE", "", None)), rng.choice(("a", "A", "b"))) for index in range(90)]
    return {"things": things, "nothing": [], "notes": notes, "paths": paths, "readings": readings, "many": many, "brims": brims, "words": words}

class GatherShop(Cluster):
    """Shards s0, s1, s2, their router; `plain` (on s0's instance) and `control` (on s1's) hold all rows."""

    def __init__(self, base, owner, **options):
        settings = {"jit": "off"}  # what is switched off counts as dear: every statement would be compiled
        super().__init__(base, owner, table=DDL, shard_settings=settings, **options)
        self.instances["s2"] = Postgres(base, "s2", owner, settings)
        self.s2 = self.instances["s2"]
        self.rows = make_rows()

    def create_tables(self):
        for name in SHARDS:
            # User-made types have other OIDs on each.
            for number in range(SHARDS.index(name) * 3):
                self.instances[name].sql(f"CREATE TYPE filler{number} AS (x int)")
            self.instances[name].sql(self.table)
        for instance, dbname in ((self.s0, PLAIN), (self.s1, CONTROL)):
            instance.sql(f"CREATE DATABASE {dbname} TEMPLATE template0", dbname="postgres")
            instance.sql("CREATE EXTENSION interlock;" + self.table, dbname=dbname)
        self.s1.sql(f"ALTER DATABASE {CONTROL} SET enable_indexscan = off; ALTER DATABASE {CONTROL} SET enable_hashagg = off;"
                    f"ALTER DATABASE {CONTROL} SET enable_bitmapscan = off", dbname="postgres")
        return self

    def describe(self):
        with self.catalog.connect() as catalog:
            catalog.execute("SELECT interlock.create_cluster('gather')")
            for name in SHARDS:
                catalog.execute("SELECT interlock.add_shard(%s, %s)", (name, self.conninfo_of(name, self.instances[name])))
            for name, (kind, buckets) in KEYSPACES.items():
                catalog.execute("SELECT interlock.create_keyspace(%s, %s, %s)", (name, kind, buckets))
                for index, shard in enumerate(SHARDS):
                    catalog.execute("SELECT interlock.assign(%s, %s, %s)",
                                    (name, [b for b in range(buckets) if b % 3 == index], shard))
            for table, (keyspace, key) in TABLES.items():
                catalog.execute("SELECT interlock.declare_table(%s, %s, %s)", (table, keyspace, key))
            catalog.execute("SELECT interlock.grant_router('interlock_router')")
        return self

    def make(self):
        """Everything but the router."""
        self.start_instances().create_tables().describe().apply()
        self.places = {name: self.instances[name].connect("app") for name in SHARDS}
        self.places[PLAIN] = self.s0.connect(PLAIN)
        self.places[CONTROL] = self.s1.connect(CONTROL)
        for table, rows in self.rows.items():
            homes = self.homes(table, rows)
            for place in self.places:
                mine = [row for row, home in zip(rows, homes) if home == place or place not in SHARDS]
                self.copy(place, table, mine[::-1] if place == CONTROL else mine)
            for place in SHARDS:
                self.put_strays(place, table, [row for row, home in zip(rows, homes) if home != place][::3])
        for connection in self.places.values():
            connection.execute("ANALYZE")
        return self

    def homes(self, table, rows):
        """The shard of each row."""
        keyspace, key = TABLES[table]
        kind, _ = KEYSPACES[keyspace]
        with self.s0.connect() as connection:
            buckets = connection.execute("SELECT array_agg(interlock.bucket_of(%s, k) ORDER BY o)"
                                         f" FROM unnest(%s::{kind}[]) WITH ORDINALITY AS t(k, o)",
                                         (keyspace, [row[0] for row in rows])).fetchone()[0] if rows else []
        return [SHARDS[bucket % 3] for bucket in buckets]

    def copy(self, place, table, rows):
        with self.places[place].cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def put_strays(self, place, table, rows):
        """Rows of other shards' buckets, as a move leaves them behind: the guard is away meanwhile."""
        connection = self.places[place]
        guards = connection.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND tgenabled = 'A'",
                                    (table,)).fetchall()
        for (name,) in guards:
            connection.execute(f'ALTER TABLE {table} DISABLE TRIGGER "{name}"')
        self.copy(place, table, rows)
        for (name,) in guards:
            connection.execute(f'ALTER TABLE {table} ENABLE ALWAYS TRIGGER "{name}"')

    def start_router(self, **settings):
        self.pg_port = free_port()
        router = self.new_router(settings={"pg": {"listen": f"127.0.0.1:{self.pg_port}", "auth": "trust", "database": "app"},
                                           **settings})
        router.start()
        return router

    def router_client(self, **parameters):
        return Client("127.0.0.1", self.pg_port, "app", "app", **parameters)

    def plain_client(self, dbname=PLAIN, **parameters):
        instance = {PLAIN: self.s0, CONTROL: self.s1}.get(dbname) or self.instances[dbname]
        return Client("127.0.0.1", instance.port, dbname if dbname in (PLAIN, CONTROL) else "app", "app", **parameters)

    def down(self):
        for connection in getattr(self, "places", {}).values():
            connection.close()
        super().down()
