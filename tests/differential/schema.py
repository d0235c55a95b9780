"""The shop: its tables, its keys, its rows, and the cluster it lives on.

The rows are placed to betray a wrong acceptance. Columns that refer to accounts mostly name accounts of
the other shard; numbers, texts and order ids repeat across shards; names recur in several tables with
another meaning (archive.orders is keyed by order_id, its account_id is just a column). So a table that
is not really pinned shows other rows, or another count, than the unsharded database does.
"""

import random
from dataclasses import dataclass, field

# keyspace -> (key type, buckets, buckets of s0)
KEYSPACES = {
    "accounts": ("bigint", 16, [b for b in range(16) if b % 2 == 0]),
    "users": ("uuid", 8, [0, 1, 2, 3]),
    "docs": ("text", 32, [b for b in range(32) if b % 3 == 0]),
    "regions": ("integer", 4, [1, 2]),
    "blobs": ("bytea", 5, [0, 4]),
}


@dataclass
class Column:
    name: str       # as written in SQL
    type: str
    nullable: bool = True


@dataclass
class Table:
    name: str       # as written in SQL, with its schema unless public
    keyspace: str
    key: str
    columns: list
    primary: list
    rows: int = 200
    partitioned: str = ""
    extra: str = ""
    names: list = field(default_factory=list)

    def __post_init__(self):
        self.names = [column.name for column in self.columns]
        self.types = {column.name: column.type for column in self.columns}
        self.nullable = {column.name for column in self.columns if column.nullable}

    @property
    def plain_name(self):
        return self.name.rpartition(".")[2]

    def create(self):
        lines = [f"{c.name} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in self.columns]
        lines.append(f"PRIMARY KEY ({', '.join(self.primary)})")
        if self.extra:
            lines.append(self.extra)
        return f"CREATE TABLE {self.name} ({', '.join(lines)}){self.partitioned};"


def table(name, keyspace, key, columns, primary, **options):
    made = []
    for text in columns.split(", "):
        column, _, kind = text.strip().rpartition(" ")
        made.append(Column(column, kind.rstrip("!").replace("_", " ") if kind.startswith("numeric") else
                           kind.rstrip("!"), not kind.endswith("!")))
    return Table(name, keyspace, key, made, primary.split(", "), **options)


TABLES = [
    table("accounts", "accounts", "account_id",
          "account_id bigint!, name text, balance numeric(12,2), status account_status!, tags text[], "
          "profile jsonb, created timestamptz, parent_id bigint, orders integer, active boolean",
          "account_id", extra="CHECK (balance >= 0)", rows=36),
    table("orders", "accounts", "account_id",
          "account_id bigint!, order_id integer!, status text, total numeric(12,2), note text, "
          "placed timestamptz, items integer[], ship_account bigint, account_status account_status",
          "account_id, order_id", extra="CHECK (total < 100000)"),
    table("order_items", "accounts", "account_id",
          "account_id bigint!, order_id integer!, line integer!, sku text, qty integer, price numeric(12,2), "
          "attrs jsonb, gift_for bigint",
          "account_id, order_id, line",
          extra="FOREIGN KEY (account_id, order_id) REFERENCES orders ON DELETE CASCADE", rows=260),
    table("events", "accounts", "account_id",
          "event_id integer!, account_id bigint!, day date!, kind text, data jsonb, accounts integer",
          "account_id, event_id, day", partitioned=" PARTITION BY RANGE (day)", rows=120),
    table("archive.orders", "accounts", "order_id",
          "order_id bigint!, account_id bigint, year integer!, total numeric(12,2), note text",
          "order_id, year", rows=80),
    table('"Order Log"', "accounts", '"Account Id"',
          '"Account Id" integer!, "Entry" integer!, "select" text, account_id bigint',
          '"Account Id", "Entry"', rows=80),
    table("users", "users", "user_id",
          "user_id uuid!, email text, account_id bigint, friend uuid, level integer", "user_id", rows=36),
    table("sessions", "users", "user_id",
          "user_id uuid!, session_no integer!, agent text, friend uuid, minutes integer", "user_id, session_no", rows=100),
    table("docs", "docs", "doc_id",
          "doc_id text!, title text, rev integer, body jsonb, parent text", "doc_id", rows=36),
    table("doc_tags", "docs", "doc",
          "doc varchar(40)!, tag text!, weight integer, doc_id text", "doc, tag", rows=100),
    table("regions", "regions", "region_id",
          "region_id integer!, name text, account_id bigint, parent integer", "region_id", rows=24),
    table("stock", "regions", "region",
          "region integer!, sku text!, qty integer, supplier integer", "region, sku", rows=80),
    table("shelves", "regions", "region_id",
          "region_id smallint!, shelf integer!, label text", "region_id, shelf", rows=50),
    table("blobs", "blobs", "blob_id", "blob_id bytea!, size integer, label text", "blob_id", rows=16),
]
BY_NAME = {t.name: t for t in TABLES}

BEFORE = """
CREATE SCHEMA archive;
CREATE TYPE account_status AS ENUM ('new', 'open', 'frozen', 'closed');
"""
# What no statement may reach unnoticed: views, functions, operators, a schema full of namesakes.
AFTER = """
CREATE TABLE events_old PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE events_new PARTITION OF events FOR VALUES FROM ('2024-01-01') TO (MAXVALUE);
CREATE VIEW account_names AS SELECT account_id, name FROM accounts;
CREATE SEQUENCE tickets;
CREATE FUNCTION total_of(bigint) RETURNS numeric LANGUAGE sql STABLE
    AS 'SELECT sum(total) FROM public.orders WHERE account_id = $1';
CREATE FUNCTION everything() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM public.orders';
CREATE FUNCTION label_of(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT '<' || $1 || '>'$$;
CREATE SCHEMA trap;
CREATE TABLE trap.accounts (LIKE public.accounts INCLUDING ALL);
CREATE TABLE trap.local_only (account_id bigint, note text);
CREATE FUNCTION trap.differs(bigint, bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 OPERATOR(pg_catalog.<>) $2';
CREATE OPERATOR trap.= (FUNCTION = trap.differs, LEFTARG = bigint, RIGHTARG = bigint);
CREATE FUNCTION trap.lower(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION trap.count(integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $1';
INSERT INTO trap.accounts (account_id, name, balance, status) SELECT g, 'trap', 1, 'new' FROM generate_series(1, 30) AS g;
GRANT USAGE ON SCHEMA archive, trap TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public, archive, trap TO PUBLIC;
GRANT ALL ON SEQUENCE tickets TO PUBLIC;
"""


def ddl():
    return BEFORE + "\n".join(t.create() for t in TABLES) + AFTER


KEYS = {
    "accounts": [*range(1, 25), 0, -1, -7, -8, 65538, 65539, 100, 1 << 31, -(1 << 31), (1 << 31) - 1,
                 # Each lives elsewhere than what a careless conversion would make of it: 4, 6, 15, 2^53 + 4.
                 (1 << 32) + 4, (1 << 32) + 6, (1 << 32) + 15, (1 << 53) + 3, (1 << 53) + 4, (1 << 53) + 5,
                 (1 << 63) - 1, -(1 << 63)],
    "users": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
              *[f"{i:08x}-1234-4abc-8def-{i * 7919:012x}" for i in range(1, 39)]],
    "docs": ["", "a", "A", "a ", " a", "ab", "abc", "5", "05", "NULL", "null", "é", "e\u0301", "o'brien", "back\\slash",
             "{1,2}", "x,y", '"q"', "$1", "--c", "/*c*/", "tab\there", "line\nend", "smile\U0001f600", "straße",
             "doc-1", "doc-2", "doc-3", "doc-4", "doc-5", "doc-6", "DOC-1", "doc-1 ", "doc-10", "%", "_", "true", "t",
             "2024-01-01", "?"],
    "regions": [*range(1, 21), 0, -1, -2, 32767, -32768],
    "blobs": [b"", b"\0", b"a", b"A", b"\\x61", b"ab", b"\xff\xfe", b"\x01\x02\x03", b"'", b"\\", b"doc-1", b"5"],
}
ARRAYS = ["{}", "{1,2,3}", "{5}", "{NULL,1}", "{2,2}"]
POOLS = {
    "integer": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12],
    "bigint": KEYS["accounts"],
    "smallint": [0, 1, 2, 3, 5],
    "numeric(12,2)": ["0.00", "1.00", "5.00", "9.99", "10.00", "250.50", "1000.00"],
    "text": ["new", "open", "paid", "sent", "a", "A", "", "x y", "o'brien", "100%", "é", "sku-1", "sku-2", "sku-3", "5"],
    "varchar(40)": KEYS["docs"],
    "boolean": ["true", "false"],
    "date": ["2023-05-01", "2023-12-31", "2024-01-01", "2024-02-29", "2025-07-07"],
    "timestamptz": ["2024-01-01 00:00:00+00", "2024-03-31 01:30:00+00", "2024-03-31 12:00:00+02", "2025-01-01 23:59:59.5+00"],
    "jsonb": ['{}', '{"a": 1, "b": [1, 2]}', '{"a": 2, "t": "x"}', '[1, 2, 3]', 'null', '{"a": null}', '"s"'],
    "text[]": ["{}", "{a,b}", "{a}", "{NULL,c}", '{"x y",a}'],
    "integer[]": ARRAYS,
    "account_status": ["new", "open", "frozen", "closed"],
    "uuid": KEYS["users"],
    "bytea": ["\\x", "\\x00", "\\x61"],
}


class World:
    """Where each key lives (asked of a shard, once), and the rows to start from."""

    def __init__(self, seed=1):
        self.shard = {}     # (keyspace, key) -> 's0' | 's1'
        self.seed = seed

    def learn(self, shard):
        """`shard`: a Postgres whose database app has the keyspaces defined."""
        with shard.connect() as connection:
            for name, (kind, _, of_s0) in KEYSPACES.items():
                base = {"integer": "bigint"}.get(kind, kind)
                for key in KEYS[name]:
                    bucket = connection.execute(
                        f"SELECT interlock.bucket_of(%s, %s::{base})", (name, key)).fetchone()[0]
                    self.shard[name, key] = "s0" if bucket in of_s0 else "s1"
        for name in KEYSPACES:
            for side in ("s0", "s1"):
                assert len(self.keys(name, side)) >= 3, f"too few keys of {name} on {side}"
        return self

    def keys(self, keyspace, side):
        return [key for key in KEYS[keyspace] if self.shard[keyspace, key] == side]

    def fits(self, table_, key):
        """Whether the table's key column can hold the key."""
        limit = {"smallint": 1 << 15, "integer": 1 << 31}.get(table_.types[table_.key])
        return not limit or -limit <= key < limit

    def rows(self):
        """table name -> rows, each a tuple of Python values; the same for the same seed."""
        rng = random.Random(self.seed)
        orders = []
        data = {}
        for t in TABLES:
            rows, seen = [], set()
            keys = [key for key in KEYS[t.keyspace] if self.fits(t, key)]
            attempts = 0
            while len(rows) < t.rows and attempts < t.rows * 6:
                attempts += 1
                row = {}
                key = keys[attempts - 1] if len(t.primary) == 1 and attempts <= len(keys) else rng.choice(keys)
                side = self.shard[t.keyspace, key]
                for column in t.columns:
                    row[column.name] = self.value(rng, column, side)
                row[t.key] = key
                if t.name == "order_items":
                    row["account_id"], row["order_id"] = rng.choice(orders)
                    row["line"] = rng.randint(1, 4)
                elif t.name == "orders":
                    row["order_id"] = rng.randint(1, 9)
                identity = tuple(row[name] for name in t.primary)
                if identity in seen:
                    continue
                seen.add(identity)
                rows.append(tuple(row[name] for name in t.names))
            data[t.name] = rows
            if t.name == "orders":
                orders = [(row[0], row[1]) for row in rows]
        return data

    def value(self, rng, column, side):
        """A value of a column that is not the key; references lead to the other shard mostly."""
        if column.nullable and rng.random() < 0.15:
            return None
        other = "s1" if side == "s0" else "s0"
        if column.type in ("bigint", "uuid") or column.name in ("parent", "supplier", "doc_id"):
            keyspace = {"bigint": "accounts", "uuid": "users", "text": "docs"}.get(column.type, "regions")
            return rng.choice(self.keys(keyspace, other if rng.random() < 0.8 else side))
        return rng.choice(POOLS[column.type])

    def key_of(self, table_, row):
        return row[table_.names.index(table_.key)]

    def side_of(self, table_, row):
        return self.shard[table_.keyspace, self.key_of(table_, row)]
