"""Cursors byte by byte, on one PostgreSQL: whatever was altered, cut or made up is BAD_CURSOR and nothing else.

An unsigned keyset's cursors carry a checksum that anybody can compute, so there the values themselves
can be forged: each must be refused unless the very same bytes could have been written.
"""

import base64
import hashlib
import hmac
import random
import struct

import psycopg
import pytest

BAD_CURSOR = "IL201"
HEAD, MAC = 18, 16  # version, key id, two digests; then the values; then the MAC
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

COLUMNS = {
    "small": "smallint", "whole": "integer", "big": "bigint", "number": "numeric", "single": "real",
    "twofold": "double precision", "yes": "boolean", "word": 'text COLLATE "C"',
    "name": 'varchar(20) COLLATE "und-x-icu"', "padded": 'char(5) COLLATE "C"', "bytes": "bytea", "uid": "uuid",
    "day": "date", "clock": "time", "moment": "timestamp", "instant": "timestamptz", "span": "interval",
    "feeling": "mood", "price": "price"}
ROWS = """
    (1, 1, 1, 1, 1.5, 1, 1, true, 'word', 'naïve', 'ab', '\\x00ff', '00000000-0000-0000-0000-000000000001', '2024-02-29',
     '12:00', '2024-02-29 12:00:00.000001', '2024-02-29 12:00:00.000001+00', '1 day 02:03', 'ok', 1.50),
    (2, -32768, -2147483648, -9223372036854775808, -123456789.000100, '-Infinity', '-0', false, '', 'x', '', '\\x',
     'ffffffff-ffff-ffff-ffff-ffffffffffff', '-infinity', '24:00', '-infinity', '-infinity', '24:00', 'sad', 0),
    (3, 32767, 2147483647, 9223372036854775807, 'NaN', 'NaN', 'NaN', true, 'é', 'é', 'é', '\\x01', NULL, 'infinity',
     '00:00', 'infinity', 'infinity', '-1 month', 'happy', -1),
    (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (5, 0, 0, 0, 'Infinity', 1, 1, true, repeat('long', 60), 'b', 'b', '\\x02', NULL, '0044-03-15 BC', '00:00:00.000001',
     '4713-01-01 BC', '294276-12-31 23:59:59.999999+00', '178000000 years', 'ok', 12345678.90),
    (6, 0, 0, 0, 1e-1000, 1, 1, true, 'b', 'b', 'b', '\\x02', NULL, '5874897-12-31', '23:59:59.999999', '2024-01-01',
     '4713-01-01 BC+00', '-178000000 years 2 mons', 'ok', 0.01)"""


def spell(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unspell(cursor):
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


def checksum(data, key=bytes(32)):
    return hmac.new(key, data, hashlib.sha256).digest()[:MAC]


def forged(cursor, values):
    """The unsigned cursor with other values, and a checksum that fits."""
    head = unspell(cursor)[:HEAD]
    return spell(head + values + checksum(head + values))


@pytest.fixture(scope="module")
def server(instance):
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    instance.sql(f"""
        CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
        CREATE DOMAIN price AS numeric(10, 2);
        CREATE TABLE thing (id integer PRIMARY KEY, {columns});
        INSERT INTO thing VALUES {ROWS};
        GRANT SELECT ON thing TO app;
        CREATE TABLE event (part integer NOT NULL, at timestamptz NOT NULL, id bigint PRIMARY KEY);
        INSERT INTO event SELECT g % 2, timestamptz '2024-01-01' + g / 3 * interval '1 second', g FROM generate_series(1, 40) AS g;
        GRANT SELECT ON event TO app;
        SET client_min_messages = error;
        SELECT interlock.keyset_create('signed', 'thing', '{{}}', '{", ".join(COLUMNS)}, id');
        SELECT interlock.keyset_create('plain', 'thing', '{{}}', '{", ".join(COLUMNS)}, id', signed => false);
        SELECT interlock.keyset_create('event', 'event', '{{part}}', 'at DESC, id');
        SELECT interlock.keyset_create('plain event', 'event', '{{part}}', 'at DESC, id', signed => false);
    """)
    for name in COLUMNS:
        instance.sql(f"""SET client_min_messages = error;
            SELECT interlock.keyset_create('plain {name}', 'thing', '{{}}', '{name}, id', signed => false)""")
    yield instance


@pytest.fixture
def app(server):
    """A connection of an application, which may read the tables and nothing of the extension's."""
    with server.connect(user="app") as connection:
        yield connection


def page(connection, keyset, table, scope=None, **place):
    """Ids and cursors of a page, or the SQLSTATE of its refusal."""
    arguments = "".join(f", {name} => %({name})s" for name in place)
    try:
        return connection.execute(
            f"SELECT (item).id, cursor FROM interlock.keyset_page(%(keyset)s, NULL::{table}, %(scope)s::jsonb{arguments})",
            {"keyset": keyset, "scope": scope, **place}).fetchall()
    except psycopg.Error as error:
        assert error.sqlstate, error
        text = f"{error.diag.message_primary} {error.diag.message_detail} {error.diag.message_hint}"
        for value in place.values():
            assert str(value) not in text or len(str(value)) < 3, "the refusal repeats the cursor"
        return error.sqlstate


def first_cursor(connection, keyset, table, scope=None):
    found = page(connection, keyset, table, scope)
    assert isinstance(found, list), found
    return found[0][1]


def walk(connection, keyset, table, scope=None, size=1):
    """Each row's id and cursor, one page after another."""
    rows, place = [], {}
    for _ in range(1000):
        found = page(connection, keyset, table, scope, page_size=size, **place)
        assert isinstance(found, list), found
        if not found:
            return rows
        rows += found
        place = {"after": found[-1][1]}
    raise AssertionError("the walk does not end")


def test_every_row_comes_once_whatever_its_values(app):
    for keyset in ("signed", "plain"):
        rows = walk(app, keyset, "thing")
        assert sorted(row for row, _ in rows) == [1, 2, 3, 4, 5, 6]
        truth = app.execute(f"SELECT id FROM thing ORDER BY {', '.join(COLUMNS)}, id").fetchall()
        assert [row for row, _ in rows] == [row for row, in truth]


def test_each_single_column_is_walked_in_order(app):
    for name in COLUMNS:
        rows = walk(app, f"plain {name}", "thing")
        truth = app.execute(f"SELECT id FROM thing ORDER BY {name}, id").fetchall()
        assert [row for row, _ in rows] == [row for row, in truth], name


@pytest.mark.parametrize("keyset", ["signed", "plain"])
def test_every_flipped_bit_is_refused(app, keyset):
    for _, cursor in walk(app, keyset, "thing"):
        data = unspell(cursor)
        assert spell(data) == cursor
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            assert page(app, keyset, "thing", after=spell(bytes(changed))) == BAD_CURSOR, f"bit {bit}"


def test_every_flipped_bit_of_the_text_is_refused(app):
    # Every other spelling too: characters outside the alphabet, bits behind the last byte.
    cursor = first_cursor(app, "event", "event", '{"part": 1}')
    for place in range(len(cursor)):
        for other in range(1, 128):
            if chr(other) != cursor[place]:
                changed = cursor[:place] + chr(other) + cursor[place + 1:]
                assert page(app, "event", "event", '{"part": 1}', after=changed) == BAD_CURSOR, changed
    for changed in (cursor + "=", cursor + "==", " " + cursor, cursor + "\n", cursor + "A", "A" + cursor, "é" + cursor,
                    cursor * 2, cursor.upper(), ""):
        assert page(app, "event", "event", '{"part": 1}', before=changed) == BAD_CURSOR, changed


@pytest.mark.parametrize("keyset", ["signed", "plain"])
def test_every_cut_is_refused(app, keyset):
    for _, cursor in walk(app, keyset, "thing"):
        for length in range(len(cursor)):
            assert page(app, keyset, "thing", after=cursor[:length]) == BAD_CURSOR
            assert page(app, keyset, "thing", after=cursor[len(cursor) - length:]) == BAD_CURSOR


def test_random_strings_are_refused(app):
    rng = random.Random(4)
    for _ in range(3000):
        size = rng.choice([0, 1, 33, 34, 35, 50, rng.randrange(300)])
        data = bytes(rng.choice([0, 1, 255, rng.randrange(256)]) for _ in range(size))
        if size > 1 and rng.random() < 0.7:
            data = b"\x01" + bytes([rng.choice([0, 1])]) + data[2:]
        for keyset in ("signed", "plain"):
            assert page(app, keyset, "thing", after=spell(data)) == BAD_CURSOR


def test_a_cursor_belongs_to_its_keyset_scope_and_kind(app, server):
    mine = first_cursor(app, "event", "event", '{"part": 1}')
    assert isinstance(page(app, "event", "event", '{"part": 1}', after=mine), list)
    assert page(app, "event", "event", '{"part": 0}', after=mine) == BAD_CURSOR
    assert page(app, "plain event", "event", '{"part": 1}', after=mine) == BAD_CURSOR
    unsigned = first_cursor(app, "plain event", "event", '{"part": 1}')
    assert page(app, "event", "event", '{"part": 1}', after=unsigned) == BAD_CURSOR
    # Not even with the digests of the other keyset: the key is part of what is signed.
    swapped = unspell(unsigned)[:2] + unspell(mine)[2:-MAC]
    assert page(app, "event", "event", '{"part": 1}', after=spell(swapped + checksum(swapped))) == BAD_CURSOR
    server.sql("""SET client_min_messages = error;
                  SELECT interlock.keyset_drop('event');
                  SELECT interlock.keyset_create('event', 'event', '{part}', 'at, id')""")
    assert page(app, "event", "event", '{"part": 1}', after=mine) == BAD_CURSOR
    server.sql("""SET client_min_messages = error;
                  SELECT interlock.keyset_drop('event');
                  SELECT interlock.keyset_create('event', 'event', '{part}', 'at DESC, id')""")
    assert isinstance(page(app, "event", "event", '{"part": 1}', after=mine), list), "the same declaration again"


# --- Values, forged where no key protects them ---

def varlena(data):
    return struct.pack(">I", len(data)) + data


def numeric(kind, weight, *digits):
    return bytes([kind]) + struct.pack(f">hH{len(digits)}H", weight, len(digits), *digits)


ID = b"\x00" + struct.pack(">i", 1)
# For a column, bytes that no value is written as, and some that a value is.
WRONG = {
    "small": [b"", b"\x00", b"\x00\x00\x00"],
    "whole": [b"\x00\x00\x00"],
    "number": [b"\x00", b"\x07", b"\xff", numeric(4, 0), numeric(4, 0, 0), numeric(4, 0, 0, 1), numeric(4, 0, 1, 0),
               numeric(4, 0, 10000), numeric(4, 0, 65535), numeric(2, 1, 1, 0), b"\x04\x00\x00\xff\xff\x00\x01",
               b"\x04\x00", numeric(4, -32768, 1), numeric(4, 0, 1)[:-1], numeric(3, 0)],
    "single": [struct.pack(">I", 0x80000000), struct.pack(">I", 0x7FC00001), struct.pack(">I", 0xFFC00000)],
    "twofold": [struct.pack(">Q", 1 << 63), struct.pack(">Q", 0x7FF8000000000001), struct.pack(">Q", 0xFFF8000000000000),
                struct.pack(">Q", 0x7FF0000000000001)],
    "yes": [b"\x02", b"\xff"],
    "word": [varlena(b"\x00"), varlena(b"a\x00b"), varlena(b"\xff"), varlena(b"\xc3"), varlena(b"\xed\xa0\x80"),
             b"\xff\xff\xff\xffabc", b"\x7f\xff\xff\xffabc", b"\x80\x00\x00\x00", b"\x00\x00\x00\x04abc"],
    "name": [varlena(b"\x00"), varlena(b"\xc0\x80")],
    "padded": [varlena(b" "), varlena(b"ab "), varlena(b"\xff"), varlena(b"a\x00")],
    "bytes": [b"\x00\x00\x00\x02a", b"\xff\xff\xff\xff", b"\x1f\xff\xff\xffabc"],
    "uid": [bytes(15)],
    "day": [struct.pack(">i", 2147483646), struct.pack(">i", -2147483647), struct.pack(">i", -2451546)],
    "clock": [struct.pack(">q", -1), struct.pack(">q", 86400000001), struct.pack(">q", 1 << 62)],
    "moment": [struct.pack(">q", 9223372036854775806), struct.pack(">q", -9223372036854775807),
               struct.pack(">q", 9223371331200000000)],
    "instant": [struct.pack(">q", 9223372036854775806), struct.pack(">q", -211813488000000001)],
    "span": [struct.pack(">qii", 86400000000, 0, 0), struct.pack(">qii", 0, 30, 0), struct.pack(">qii", -1, 1, 0),
             struct.pack(">qii", 0, -1, 1)],
    "feeling": [varlena(b"cross"), varlena(b"ok\x00"), varlena(b"o"), varlena(b""), varlena(b"x" * 100), b"\x00\x00\x00\x03ok"],
    "price": [numeric(4, 0, 0)],
}
RIGHT = {
    "small": [struct.pack(">h", -5)],
    "number": [numeric(4, 0, 1), numeric(2, 3, 9999), numeric(4, 32767, 1), numeric(4, -4000, 5), b"\x01", b"\x03", b"\x05", b"\x06"],
    "single": [struct.pack(">I", 0x7FC00000), struct.pack(">f", -1.5), struct.pack(">I", 0x7F800000)],
    "twofold": [struct.pack(">Q", 0x7FF8000000000000), struct.pack(">d", 5e-324)],
    "yes": [b"\x00", b"\x01"],
    "word": [varlena(b""), varlena(" é😀".encode())],
    "padded": [varlena(b""), varlena(b" a"), varlena(b"longer than the column")],
    "bytes": [varlena(b""), varlena(bytes(range(256)))],
    "uid": [bytes(16)],
    "day": [struct.pack(">i", 2147483647), struct.pack(">i", -2147483648), struct.pack(">i", -2451545)],
    "clock": [struct.pack(">q", 86400000000), struct.pack(">q", 0)],
    "moment": [struct.pack(">q", 9223372036854775807), struct.pack(">q", -9223372036854775808), struct.pack(">q", 1)],
    "instant": [struct.pack(">q", 0)],
    "span": [struct.pack(">qii", 3600000000, 29, 2147483647), struct.pack(">qii", -1, -29, -5),
             struct.pack(">qii", 9223372036854775807, 2147483647, 2147483647),
             struct.pack(">qii", -9223372036854775808, -2147483648, -2147483648)],
    "feeling": [varlena(b"ok")],
    "price": [numeric(4, 1, 1)],
}


@pytest.mark.parametrize("column", COLUMNS)
def test_only_values_as_they_are_written_are_read(app, column):
    keyset = f"plain {column}"
    cursor = first_cursor(app, keyset, "thing")
    for value in RIGHT.get(column, []):
        good = forged(cursor, b"\x00" + value + ID)
        found = page(app, keyset, "thing", after=good)
        assert isinstance(found, list), f"{value} is refused: {found}"
        assert isinstance(page(app, keyset, "thing", before=good), list)
        for more in (value + b"\x00", value[:-1]) if value else ():
            assert page(app, keyset, "thing", after=forged(cursor, b"\x00" + more + ID)) == BAD_CURSOR, more
    for value in WRONG.get(column, []):
        assert page(app, keyset, "thing", after=forged(cursor, b"\x00" + value + ID)) == BAD_CURSOR, value
    null = page(app, keyset, "thing", after=forged(cursor, b"\x01" + ID))
    assert isinstance(null, list), "a NULL is a value like others where the column may be NULL"
    for values in (b"\x02" + ID, b"\x01\x01", b"\x01" + ID[:1], b"\x01", b"", b"\x01" + ID + b"\x00"):
        assert page(app, keyset, "thing", after=forged(cursor, values)) == BAD_CURSOR, values


def test_forged_values_give_a_page_or_bad_cursor_and_nothing_else(app):
    """Values altered at random under a fitting checksum; those that are taken are as they are written."""
    rng = random.Random(5)
    cursors = [cursor for _, cursor in walk(app, "plain", "thing")]
    outcomes = {"page": 0, BAD_CURSOR: 0}
    for _ in range(6000):
        cursor = rng.choice(cursors)
        values = bytearray(unspell(cursor)[HEAD:-MAC])
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            place = rng.randrange(len(values))
            change = rng.randrange(4)
            if change == 0:
                values[place] ^= 1 << rng.randrange(8)
            elif change == 1:
                values[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            elif change == 2:
                del values[place:place + rng.randrange(1, 5)]
            else:
                values[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
            if not values:
                break
        found = page(app, "plain", "thing", after=forged(cursor, bytes(values)))
        if isinstance(found, list):
            outcomes["page"] += 1
        else:
            assert found == BAD_CURSOR, (found, bytes(values))
            outcomes[BAD_CURSOR] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_support_staff_may_look_into_anything(server, app):
    with server.connect() as staff:
        def decode(cursor):
            try:
                return staff.execute("SELECT * FROM interlock.keyset_decode(%s)", (cursor,)).fetchall()
            except psycopg.Error as error:
                assert error.sqlstate == BAD_CURSOR, error
                return []
        cursor = first_cursor(app, "event", "event", '{"part": 1}')
        assert {row[3] for row in decode(cursor)} == {True}
        unsigned = first_cursor(app, "plain event", "event", '{"part": 1}')
        assert {row[3] for row in decode(unsigned)} == {False}
        rng = random.Random(6)
        for _ in range(2000):
            data = bytearray(unspell(rng.choice([cursor, unsigned])))
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(2, len(data))] = rng.randrange(256)
            assert {row[3] for row in decode(spell(bytes(data[:rng.randrange(len(data) + 1)])))} <= {False}


# --- Keys ---

def key_ids(connection, keyset="event"):
    return {unspell(cursor)[1] for _, cursor in page(connection, keyset, "event", '{"part": 1}')}


def accepted(connection, cursor):
    found = page(connection, "event", "event", '{"part": 1}', after=cursor)
    assert found == BAD_CURSOR or isinstance(found, list), found
    return isinstance(found, list)


def retire_all_but_the_signing_key(server):
    server.sql("""SELECT interlock.cursor_key_retire(id) FROM interlock.cursor_key
                   WHERE NOT retired AND created < (SELECT max(created) FROM interlock.cursor_key WHERE NOT retired)""")


def test_keys_change_under_sessions_that_page(server, app):
    retire_all_but_the_signing_key(server)
    with server.connect(user="app") as other, server.connect() as owner:
        first = first_cursor(app, "event", "event", '{"part": 1}')
        assert accepted(other, first)
        old = unspell(first)[1]
        new = owner.execute("SELECT interlock.cursor_key_add()").fetchone()[0]
        for session in (app, other):
            assert accepted(session, first), "both keys are valid during a change"
            assert key_ids(session) == {new}
        second = first_cursor(other, "event", "event", '{"part": 1}')
        owner.execute("SELECT interlock.cursor_key_retire(%s::smallint)", (old,))
        for session in (app, other):
            assert not accepted(session, first)
            assert accepted(session, second)
        with server.connect(user="app") as fresh:
            assert not accepted(fresh, first)
            assert accepted(fresh, second)


def test_a_key_may_be_taken_before_it_signs(server, app):
    """As a cluster changes keys: every shard takes the new key's cursors before any makes one."""
    retire_all_but_the_signing_key(server)
    old_ids = key_ids(app)
    (old,) = old_ids
    secret = random.Random(8).randbytes(32)
    new = server.value("SELECT interlock.cursor_key_add(%s, signs => false)", secret)
    assert key_ids(app) == old_ids
    early = unspell(first_cursor(app, "event", "event", '{"part": 1}'))
    early = early[:1] + bytes([new]) + early[2:-MAC]
    early = spell(early + checksum(early, secret))
    assert accepted(app, early), "as another shard would have signed it"
    server.sql("SELECT interlock.cursor_key_sign(%s::smallint)", new)
    assert key_ids(app) == {new}
    assert first_cursor(app, "event", "event", '{"part": 1}') == early
    server.sql("SELECT interlock.cursor_key_retire(%s::smallint)", old)
    assert accepted(app, early)


def test_a_key_that_is_rolled_back_never_was(server, app):
    retire_all_but_the_signing_key(server)
    with server.connect(autocommit=False) as owner:
        before = key_ids(owner)
        added = owner.execute("SELECT interlock.cursor_key_add()").fetchone()[0]
        assert key_ids(owner) == {added}
        never = first_cursor(owner, "event", "event", '{"part": 1}')
        assert accepted(owner, never)
        assert not accepted(app, never)
        owner.execute("SAVEPOINT s")
        owner.execute("DELETE FROM interlock.cursor_key")
        assert page(owner, "event", "event", '{"part": 1}') == "55000"
        owner.execute("ROLLBACK TO SAVEPOINT s")
        assert key_ids(owner) == {added}
        owner.rollback()
        assert key_ids(owner) == before
        assert not accepted(owner, never)


def test_a_retired_key_is_refused_within_an_old_snapshot_too(server, app):
    retire_all_but_the_signing_key(server)
    with server.connect(user="app", autocommit=False) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor = first_cursor(old, "event", "event", '{"part": 1}')
        id_then = unspell(cursor)[1]
        server.sql("SELECT interlock.cursor_key_add()")
        server.sql("SELECT interlock.cursor_key_retire(%s::smallint)", id_then)
        assert not accepted(old, cursor)
        old.rollback()


def test_without_a_key_nothing_is_signed_but_unsigned_pages_go_on(server, app):
    cursor = first_cursor(app, "event", "event", '{"part": 1}')
    with server.connect(autocommit=False) as owner:
        owner.execute("TRUNCATE interlock.cursor_key")
        assert page(owner, "event", "event", '{"part": 1}') == "55000"
        owner.rollback()
        owner.execute("TRUNCATE interlock.cursor_key")
        assert page(owner, "event", "event", '{"part": 1}', after=cursor) == BAD_CURSOR
        owner.rollback()
        owner.execute("TRUNCATE interlock.cursor_key")
        assert isinstance(page(owner, "plain event", "event", '{"part": 1}'), list)
        owner.rollback()
    assert accepted(app, cursor)


def test_the_same_key_makes_the_same_cursor_on_another_server(server, make_instance):
    other = make_instance("other")
    secret = server.value("SELECT secret FROM interlock.cursor_key WHERE NOT retired ORDER BY created DESC LIMIT 1")
    other.sql("""
        CREATE TABLE before_it (shift_the_oids int);
        CREATE TABLE event (id bigint PRIMARY KEY, part integer NOT NULL, note text, at timestamptz NOT NULL);
        INSERT INTO event SELECT g, g % 2, 'x', timestamptz '2024-01-01' + g / 3 * interval '1 second' FROM generate_series(1, 40) AS g;
        SET client_min_messages = error;
        SELECT interlock.keyset_create('event', 'event', '{part}', 'at DESC, id')""")
    other.sql("DELETE FROM interlock.cursor_key")
    identity = server.value("SELECT id FROM interlock.cursor_key WHERE NOT retired ORDER BY created DESC LIMIT 1")
    other.sql("INSERT INTO interlock.cursor_key (id, secret) VALUES (%s, %s)", identity, secret)
    with server.connect() as here, other.connect() as there:
        rows = page(here, "event", "event", '{"part": 1}')
        assert isinstance(rows, list) and rows == page(there, "event", "event", '{"part": 1}')
