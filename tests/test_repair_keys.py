"""`interlock repair` of tables whose keys are text, uuid or several columns, and whose columns hold NULLs."""

import json
from random import Random
from uuid import UUID

import pytest

from conftest import remove
from support.indexed import INDEXER, IndexedCluster
from support.order_cluster import make_orders

TYPES = """
CREATE TYPE kind AS ENUM ('plain', 'fancy', 'odd');
CREATE DOMAIN points AS numeric(10,3) CHECK (value >= 0);
"""
TABLES = TYPES + """
CREATE TABLE doc (
    "the name" text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C",
    at timestamptz,
    body text);
CREATE TABLE item (
    id uuid PRIMARY KEY,
    kind kind,
    score points,
    made date NOT NULL,
    raw bytea);
CREATE TABLE line (
    order_id bigint, line smallint, part varchar(20) COLLATE "C",
    "User" bigint NOT NULL,
    a integer, b text COLLATE "C",
    due timestamp, weight double precision, span interval,
    PRIMARY KEY (order_id, line, part));
CREATE TABLE event (
    day date, number integer,
    "User" bigint NOT NULL, room text COLLATE "C" NOT NULL,
    PRIMARY KEY (day, number)) PARTITION BY RANGE (day);
CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE event_2 (number integer NOT NULL, room text COLLATE "C" NOT NULL, dropped text, day date NOT NULL, "User" bigint NOT NULL);
ALTER TABLE event_2 DROP COLUMN dropped;
ALTER TABLE event ATTACH PARTITION event_2 FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
GRANT SELECT ON doc, item, line, event TO app;
"""
# index -> table, keyspace and its type, shard key, scope, order
INDEXES = {
    "docs": ("doc", "names", "text", "the name", ["owner"], 'at DESC NULLS LAST, "the name"'),
    "items": ("item", "ids", "uuid", "id", ["kind"], "score DESC NULLS LAST, made, id"),
    "events": ("event", "accounts", "bigint", "User", ["room"], 'day DESC, number'),
    "lines": ("line", "accounts", "bigint", "User", ["a", "b"],
              'due NULLS FIRST, weight, span, order_id, line, part, "User"'),
}
NAMES = ["", " ", "a", "A", "a'b", 'a"b', "a\\b", "{}", "null", "ä", "z€", "𝄞", "tab\t", "line\nbreak", "1", "01", "x" * 300]


def make_rows(table, chance):
    def maybe(value):
        return None if chance.random() < 0.25 else value

    if table == "doc":
        names = NAMES + [f"{chance.choice(NAMES)[:40]}-{number}" for number in range(400)]
        return [(name, maybe(chance.choice(["ann", "bob", "", "o'hara", "back\\slash"])),
                 maybe(chance.choice(["infinity", "-infinity", "2024-05-01 12:00:00.000001+02", "1999-12-31 BC"])), "x")
                for name in names]
    if table == "item":
        return [(str(UUID(int=chance.getrandbits(128))), maybe(chance.choice(["plain", "fancy", "odd"])),
                 maybe(chance.choice(["0", "1.5", "1.500", "999999.999"])),
                 chance.choice(["2024-02-29", "infinity", "4713-01-01 BC"]), None) for _ in range(400)]
    if table == "event":
        return [(f"2024-0{chance.randint(1, 2)}-1{chance.randint(0, 9)}", number, chance.randint(-50, 50), chance.choice("abc"))
                for number in range(300)]
    keys = {(chance.choice([-9223372036854775808, 0, 1, 2, 9223372036854775807]), chance.randint(-30, 30),
             chance.choice(["", "a", "b ", "ä", "'"])) for _ in range(600)}
    return [(*key, chance.randint(-50, 50), maybe(chance.randint(1, 3)), maybe(chance.choice(["x", "", "it's"])),
             maybe("2024-01-01 00:00:00.000001"), maybe(chance.choice(["NaN", "-0", "1e-300", "Infinity"])),
             maybe(chance.choice(["1 mon", "-1 day 00:00:01", "24:00:00"]))) for key in sorted(keys)]


class KeysCluster(IndexedCluster):
    def __init__(self, base, owner):
        super().__init__(base, owner, rows=make_orders(50, 0))
        self.table += TABLES
        self.made = {table: make_rows(table, Random(table)) for table, *_ in INDEXES.values()}

    def declare(self, catalog):
        super().declare(catalog)
        for name, (table, keyspace, kind, key, scope, order) in INDEXES.items():
            if keyspace != "accounts":
                catalog.execute("SELECT interlock.create_keyspace(%s, %s, 8)", (keyspace, kind))
                for number, shard in enumerate(self.shards):
                    catalog.execute("SELECT interlock.assign(%s, %s, %s)", (keyspace, list(range(number, 8, 3)), shard))
            catalog.execute("SELECT interlock.declare_table(%s, %s, %s)", (table, keyspace, key))
            catalog.execute("SELECT interlock.create_index(%s, %s, %s, %s)", (name, table, scope, order))

    def create_tables(self):
        self.idx.sql(TYPES)
        return super().create_tables()

    def up(self):
        self.make()
        for name, (table, keyspace, _, key, *_) in INDEXES.items():
            self.put(table, keyspace, key)
            for shard in self.shards:
                self.instances[shard].sql(f"GRANT SELECT ON {table} TO {INDEXER}")
            self.index("backfill", name)
            self.drain(name)
        return self

    def put(self, table, keyspace, key):
        """Every shard is given all rows, and keeps its own."""
        for shard in self.shards:
            with self.instances[shard].connect() as connection, connection.transaction():
                connection.execute(f"CREATE TEMP TABLE given (LIKE {table}) ON COMMIT DROP")
                with connection.cursor().copy("COPY given FROM STDIN") as copy:
                    for row in self.made[table]:
                        copy.write_row(row)
                connection.execute(f'INSERT INTO {table} SELECT * FROM given g'
                                   f' WHERE interlock.owns(%s, g."{key}")', (keyspace,))

    def contents(self, name):
        """The rows on the shards and the live entries, each as key -> all values."""
        table, (columns, key) = INDEXES[name][0], self.idx.sql(
            "SELECT ARRAY(SELECT c ->> 'name' FROM jsonb_array_elements(columns) c), key_columns"
            " FROM interlock.local_index WHERE name = %s", name)[0]

        def read(instance, source):
            return instance.sql(f"SELECT interlock.row_values(r, %s)::text, interlock.row_values(r, %s)::text FROM {source}",
                                key, columns)

        said = read(self.idx, f'interlock_index."{name}" r WHERE NOT interlock_deleted')
        true = [row for shard in self.shards for row in read(self.instances[shard], f"{table} r")]
        assert len(dict(true)) == len(true) and len(dict(said)) == len(said)
        return dict(true), dict(said)

    def equal(self, name):
        true, said = self.contents(name)
        assert true == said

    def report(self, name, *arguments, expect=0):
        done = self.index(name, "--json", *arguments, command="repair", check=False)
        assert done.returncode == expect, f"repair exited {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def silently(self, text, *parameters):
        """A statement on every shard, past the outbox."""
        count = 0
        for shard in self.shards:
            with self.instances[shard].connect() as connection:
                connection.execute("SET session_replication_role = replica")
                count += connection.execute(text, parameters or None).rowcount
        return count


@pytest.fixture(scope="module")
def module_keys(owner, new_folder, router_binary):
    cluster = KeysCluster(new_folder("repair-keys"), owner)
    try:
        yield cluster.up()
    finally:
        cluster.down()
        remove(cluster.base)


@pytest.fixture
def keys(module_keys):
    """Each index right, whatever the test before did."""
    for name in INDEXES:
        module_keys.equal(name)
    yield module_keys
    for name in INDEXES:
        module_keys.report(name, "--apply", "--restart")
    module_keys.end_test()


CHANGES = {"doc": "owner = CASE WHEN owner IS NULL THEN '' END", "item": "score = coalesce(score, 0) + 0.001",
           "event": "room = room || 'x'", "line": "due = CASE WHEN due IS NULL THEN timestamp '-infinity' END"}


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("chunk", [3, 5000])
def test_every_kind_of_key_and_of_null(keys, name, chunk):
    table, entries = INDEXES[name][0], f'interlock_index."{name}"'
    rows = len(keys.contents(name)[0])
    report = keys.report(name, "--chunk", chunk)
    assert (report["missing"], report["stale"], report["scanned"], report["entries"]) == (0, 0, rows, rows)

    part = f"hashtextextended({table}::text, {chunk}) & 7"
    assert keys.silently(f"DELETE FROM {table} WHERE {part} = 1")
    assert keys.silently(f"UPDATE {table} SET {CHANGES[table]} WHERE {part} = 2")
    keys.idx.sql(f"DELETE FROM {entries} e WHERE NOT interlock_deleted AND hashtextextended(e::text, {chunk}) & 7 = 3")
    true, said = keys.contents(name)
    missing = len(true.keys() - said.keys())
    stale = sum(1 for key, row in said.items() if true.get(key) != row)
    assert missing and stale
    report = keys.report(name, "--chunk", chunk, expect=3)
    assert (report["missing"], report["stale"], report["mended"]) == (missing, stale, 0)
    report = keys.report(name, "--chunk", chunk, "--apply")
    assert (report["missing"], report["stale"], report["mended"]) == (missing, stale, missing + stale)
    keys.equal(name)
    report = keys.report(name, "--chunk", chunk)
    assert (report["missing"], report["stale"], report["pending"]) == (0, 0, 0)


@pytest.mark.parametrize("name, scope, where", [
    ("docs", {"owner": "o'hara"}, "owner = 'o''hara'"),
    ("docs", {"owner": "back\\slash"}, "owner = E'back\\\\slash'"),
    ("docs", {"owner": None}, "owner IS NULL"),
    ("items", {"kind": "odd"}, "kind = 'odd'"),
    ("events", {"room": "b"}, "room = 'b'"),
    ("lines", {"a": 2, "b": ""}, "a = 2 AND b = ''"),
    ("lines", {"b": "it's"}, "b = 'it''s'"),
    ("lines", {"a": None, "b": "x"}, "a IS NULL AND b = 'x'"),
])
def test_scopes_of_every_type_and_parts_of_a_scope(keys, name, scope, where):
    table = INDEXES[name][0]
    expected = sum(keys.everywhere(f"SELECT count(*)::int FROM {table} WHERE {where}", dbname="app"))
    report = keys.report(name, "--scope", json.dumps(scope), "--chunk", 10)
    assert expected > 0 and (report["scanned"], report["entries"]) == (expected, expected)
    keys.idx.sql(f'DELETE FROM interlock_index."{name}"')
    report = keys.report(name, "--scope", json.dumps(scope), "--apply", "--chunk", 10)
    assert report["missing"] == report["mended"] == expected
    keys.report(name, "--apply")
    keys.equal(name)


def test_a_wrong_value_of_an_enum_is_refused(keys):
    done = keys.index("items", "--scope", '{"kind": "none"}', command="repair", check=False)
    assert done.returncode == 2 and 'invalid input value for enum public.kind: "none"' in done.stderr
