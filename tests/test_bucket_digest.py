"""Digests of a bucket: what differs is seen, and what is only stored in another way is not."""

import re
from pathlib import Path

import pytest

from support.shard import KEY, SECOND_KEY, Shard

ONE, OTHER = KEY[0], SECOND_KEY[0]


@pytest.fixture(scope="module")
def shard(instance):
    shard = Shard(instance, "digests").create().describe()
    yield shard
    shard.drop()
    instance.check_log()


class Tables:
    """Two tables, one for each side of a comparison."""

    def __init__(self, shard, left, right=None):
        self.shard = shard
        for name, columns in (("l", left), ("r", right or left)):
            shard.sql(f"CREATE TABLE {name} (k bigint NOT NULL, {columns}); SELECT interlock.shard_table('{name}', 'account', 'k')")

    def fill(self, name, rows, columns=""):
        for row in rows:
            self.shard.sql(f"INSERT INTO {name} {columns} VALUES {row}")
        return self

    def same(self):
        left, right = (self.shard.sql(f"SELECT rows, digest FROM interlock.bucket_digest('account', 0, '{name}')")[0] for name in "lr")
        assert left[0] == right[0] == self.shard.value("SELECT count(*) FROM l")
        return left[1] == right[1]


@pytest.fixture
def tables(shard):
    made = []

    def make(*columns):
        made.append(Tables(shard, *columns))
        return made[-1]

    yield make
    if made:
        shard.sql("DROP TABLE l, r")


@pytest.mark.parametrize("columns, left, right", [
    ("a text, b text", ["'ab', 'c'"], ["'a', 'bc'"]),
    # What stands between two values may be in one of them.
    ("a text, b text", ["'x', E'y\\x01z'"], ["E'x\\x01y', 'z'"]),
    ("a text, b text", ["NULL, 'a'"], ["'a', NULL"]),
    ("a text, b text", ["NULL, ''"], ["'', NULL"]),
    ("a text, b text", ["'a', 'b'"], ["'b', 'a'"]),
    ("a int, b int", ["1, 2"], ["2, 1"]),
    ("a int", ["1", "1"], ["2", "2"]),
    ("a int", ["1", "2"], ["1", "1"]),
    ("a uuid, b uuid", ["'00000000-0000-0000-0000-000000000001', NULL"], ["NULL, '00000000-0000-0000-0000-000000000001'"]),
    ("a uuid", ["'00000000-0000-0000-0000-000000000001'"], ["'00000000-0000-0000-0000-000000000002'"]),
    ("a float8", ["0.1"], ["0.1 + 1e-17::float8 * 2"]),
    ("a float8", ["'0'"], ["'-0'"]),
    ("a float4[]", ["'{0.1}'"], ["'{0.10000001}'"]),
    ("a interval", ["'1 day'"], ["'24 hours'"]),
    ("a timestamptz", ["'2026-11-30 12:00:00.000001+00'"], ["'2026-11-30 12:00:00+00'"]),
    ("a timetz", ["'12:00+00'"], ["'13:00+01'"]),
    ("a money", ["'1.23'"], ["'1.24'"]),
    ("a bytea", ["'\\x00'"], ["'\\x0000'"]),
    ("a json", ["'{\"a\": 1}'"], ["'{\"a\":1}'"]),
    ("a text", ["repeat('x', 1000000) || 'a'"], ["repeat('x', 1000000) || 'b'"]),
    ("a numeric", ["1.5"], ["1.50"]),
    ("a boolean", ["true"], ["false"]),
])
def test_what_differs_is_seen(tables, columns, left, right):
    pair = tables(columns)
    pair.fill("l", [f"({ONE}, {row})" for row in left])
    pair.fill("r", [f"({ONE}, {row})" for row in left])
    assert pair.same()
    pair.shard.sql("SET interlock.allow_truncate = on; TRUNCATE r")
    pair.fill("r", [f"({ONE}, {row})" for row in right])
    assert not pair.same()


def test_values_that_rows_have_exchanged_are_seen(tables):
    pair = tables("a int")
    pair.fill("l", [f"({ONE}, 1)", f"({OTHER}, 2)"]).fill("r", [f"({ONE}, 2)", f"({OTHER}, 1)"])
    assert not pair.same()


def test_columns_of_other_names_are_seen(tables):
    pair = tables("a int, b int", "a int, c int")
    pair.fill("l", [f"({ONE}, 1, 2)"]).fill("r", [f"({ONE}, 1, 2)"])
    assert not pair.same()


def test_how_rows_are_stored_is_not_seen(tables):
    pair = tables("gone int, a text, b text, c char(5), d numeric, e text", "e text, d numeric, c char(5), b text, a text")
    pair.shard.sql("ALTER TABLE l DROP COLUMN gone; ALTER TABLE l ALTER a SET STORAGE EXTERNAL; ALTER TABLE r ALTER a SET STORAGE MAIN;"
                   "ALTER TABLE l ALTER b SET STORAGE PLAIN")
    row = "repeat('long ', 20000), repeat('short ', 700), 'ab', 1e100 + 0.5, NULL"
    pair.fill("l", [f"({ONE}, {row})", f"({OTHER}, {row})"], "(k, a, b, c, d, e)")
    pair.fill("r", [f"({OTHER}, {row})", f"({ONE}, {row})"], "(k, a, b, c, d, e)")
    assert pair.same()
    # A column that rows do not have yet, and one that they have.
    pair.shard.sql("ALTER TABLE l ADD COLUMN f int NOT NULL DEFAULT 7; ALTER TABLE r ADD COLUMN f int; UPDATE r SET f = 7")
    assert pair.same()


def test_other_buckets_make_no_difference(tables):
    pair = tables("a int")
    pair.fill("l", [f"({ONE}, 1)", f"({KEY[2]}, 5)"]).fill("r", [f"({ONE}, 1)", f"({KEY[2]}, 6)"])
    left, right = (pair.shard.sql(f"SELECT bucket, rows, digest FROM interlock.bucket_digests('account', '{{2,0}}', '{name}') ORDER BY 1")
                   for name in "lr")
    assert left[0] == right[0] and left[1] != right[1]
    assert [row[:2] for row in left] == [(0, 1), (2, 1)]


def test_large_values_are_let_go_row_by_row(tables):
    pair = tables("a text")
    pair.shard.sql("ALTER TABLE l ALTER a SET STORAGE EXTERNAL")
    pair.shard.sql(f"INSERT INTO l SELECT {ONE}, repeat('x', 2000000) FROM generate_series(1, 150)")

    def peak(session):
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{session.info.backend_pid}/status").read_text())[1])

    with pair.shard.connect() as session:
        session.execute("SELECT interlock.bucket_digest('account', 2, 'l')")
        before = peak(session)
        assert session.execute("SELECT rows FROM interlock.bucket_digest('account', 0, 'l')").fetchone() == (150,)
        assert peak(session) - before < 60_000
