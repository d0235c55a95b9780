"""Cursors are opaque and bound to their keyset, its declaration and its scope: anything else is BAD_CURSOR,
never a wrong page and never a crash."""

import base64
import json
import random
import string

import psycopg
import pytest

from support.shard import refusal

ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
# One of each type, so that whatever is done to a cursor's bytes strikes every reader of values.
COLUMNS = {
    "a": "smallint", "b": "integer", "c": "bigint", "d": "numeric", "e": "real", "f": "double precision",
    "g": "boolean", "h": "text", "i": "varchar(10)", "j": "char(8)", "k": "bytea", "l": "uuid", "m": "date",
    "n": "time", "o": "timestamp", "p": "timestamptz", "q": "interval", "r": "mood", "s": "small"}
VALUES = [
    ("1", "-2", "3", "4.500", "-0", "NaN", "t", "ünï\x02", "v", "c", "\\x00ff", "00000000-0000-0000-0000-000000000007",
     "infinity", "24:00", "-infinity", "2024-05-01 12:00:00.000001+00", "1 month 1 day", "ok", "9"),
    tuple([None] * 19),
    ("-32768", "2147483647", "-9223372036854775808", "-1e-300", "Infinity", "-5e-324", "f", "", "", "", "\\x",
     "ffffffff-ffff-ffff-ffff-ffffffffffff", "0001-01-01", "00:00", "294276-12-31", "infinity", "-178000000 years", "sad",
     "0"),
]


@pytest.fixture(scope="module")
def connection(instance):
    with instance.connect() as connection:
        connection.execute("""
            CREATE TYPE mood AS ENUM ('sad', 'ok');
            CREATE DOMAIN small AS int CHECK (VALUE < 10);
            CREATE TABLE orders (id int PRIMARY KEY, merchant int NOT NULL, at timestamptz NOT NULL, note text);
            CREATE INDEX ON orders (merchant, at, id);
            INSERT INTO orders SELECT i, i % 3, '2024-05-01'::timestamptz + (i / 4) * '1 us'::interval
                FROM generate_series(1, 200) i;
            SELECT interlock.keyset_create('newest', 'orders', '{merchant}', 'at DESC, id DESC');
            SELECT interlock.keyset_create('newest_unsigned', 'orders', '{merchant}', 'at DESC, id DESC',
                signed => false);
        """)
        connection.execute("SET client_min_messages = error")
        connection.execute(f"CREATE TABLE every (id int PRIMARY KEY,"
                           f" {', '.join(f'{name} {type}' for name, type in COLUMNS.items())})")
        for number, row in enumerate(VALUES):
            connection.execute(f"INSERT INTO every VALUES (%s, {', '.join(['%s'] * 19)})", (number, *row))
        for name, signed in (("every", True), ("every_unsigned", False)):
            connection.execute("SELECT interlock.keyset_create(%s, 'every', '{}', %s, signed => %s)",
                               (name, ", ".join([*COLUMNS, "id"]), signed))
        yield connection


def page(connection, cursor, keyset="newest", merchant=1, way="after", table="orders"):
    scope = None if merchant is None else json.dumps({"merchant": merchant})
    return [row[0] for row in connection.execute(
        f"SELECT (p.item).id FROM interlock.keyset_page(%s, NULL::{table}, %s, {way} => %s, page_size => 10) p",
        (keyset, scope, cursor)).fetchall()]


def cursor_of(connection, number, keyset="newest", table="orders"):
    return connection.execute(f"SELECT interlock.keyset_cursor(%s, t) FROM {table} t WHERE id = %s",
                              (keyset, number)).fetchone()[0]


def decode(cursor):
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


def encode(raw):
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def all_refused(connection, cursors, **where):
    """Each is BAD_CURSOR, both ways, and the error does not repeat it."""
    for cursor in cursors:
        for way in ("after", "before"):
            try:
                rows = page(connection, cursor, way=way, **where)
            except psycopg.Error as error:
                assert error.diag.sqlstate == "IL201", f"{cursor!r}: {error.diag.sqlstate} {error}"
                words = " ".join(filter(None, (error.diag.message_primary, error.diag.message_detail,
                                               error.diag.message_hint)))
                assert len(cursor) < 8 or cursor not in words
            else:
                raise AssertionError(f"{cursor!r} was taken: {rows}")


def test_a_cursor_is_base64url_without_padding_and_serves_both_ways(connection):
    cursor = cursor_of(connection, 100)
    assert set(cursor) <= set(ALPHABET) and encode(decode(cursor)) == cursor
    assert page(connection, cursor) == [97, 94, 91, 88, 85, 82, 79, 76, 73, 70]
    assert page(connection, cursor, way="before") == [130, 127, 124, 121, 118, 115, 112, 109, 106, 103]


@pytest.mark.parametrize("keyset, table, merchant, number", [
    ("newest", "orders", 1, 100), ("newest_unsigned", "orders", 1, 100), ("every", "every", None, 0)])
def test_a_cursor_cut_at_any_length_is_refused(connection, keyset, table, merchant, number):
    cursor = cursor_of(connection, number, keyset, table)
    where = {"keyset": keyset, "table": table, "merchant": merchant}
    all_refused(connection, [cursor[:length] for length in range(len(cursor))], **where)
    all_refused(connection, [cursor[length:] for length in range(1, len(cursor))], **where)
    all_refused(connection, [encode(decode(cursor) + more) for more in (b"\0", b"\1", b"\0" * 16, decode(cursor))], **where)


@pytest.mark.parametrize("keyset, table, merchant, number", [("newest", "orders", 1, 100), ("every", "every", None, 0)])
def test_a_cursor_altered_at_any_bit_is_refused(connection, keyset, table, merchant, number):
    cursor = cursor_of(connection, number, keyset, table)
    raw = decode(cursor)
    where = {"keyset": keyset, "table": table, "merchant": merchant}
    flipped = [encode(raw[:bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1:])
               for bit in range(8 * len(raw))]
    assert len(set(flipped)) == 8 * len(raw)
    all_refused(connection, flipped, **where)


def test_every_other_spelling_of_a_cursor_is_refused(connection):
    # The keyset's name is part of what is hashed, so there are cursors with - and _ and of each length.
    cursors = [cursor_of(connection, number) for number in range(1, 200)]
    cursor = cursor_of(connection, 100)
    spellings = {cursor + "=", cursor + "==", cursor + "===", cursor + " ", " " + cursor, cursor + "\n", cursor + "A",
                 cursor[:10] + "\n" + cursor[10:], cursor[:10] + " " + cursor[10:], cursor.lower(), cursor.swapcase(),
                 cursor + cursor, "", " ", "=", "ä" + cursor, cursor[:-1] + "ä", cursor + "%00",
                 cursor.replace("-", "+").replace("_", "/") + "+", decode(cursor).hex()}
    # The last character holds bits that no byte needs: only one of its values is right.
    place = ALPHABET.index(cursor[-1])
    spare = {0: 1, 2: 16, 3: 4}[len(cursor) % 4]
    others = {cursor[:-1] + ALPHABET[place // spare * spare + other] for other in range(spare)} - {cursor}
    assert all(decode(other) == decode(cursor) for other in others)
    all_refused(connection, sorted(spellings | others))
    plain = [other for other in cursors if set(other) & set("-_")]
    assert plain
    for other in plain:
        number = 1 + cursors.index(other)
        swapped = other.replace("-", "+").replace("_", "/")
        all_refused(connection, [swapped], merchant=number % 3)


def test_random_strings_and_bytes_are_refused(connection):
    chance = random.Random(4)
    length = len(cursor_of(connection, 100))
    texts = ["".join(chance.choices(ALPHABET, k=chance.choice([length, chance.randint(0, 200)]))) for _ in range(300)]
    texts += ["".join(chance.choices(string.printable, k=chance.randint(0, 120))) for _ in range(100)]
    texts += ["A" * 1_000_000, "x' OR 1=1 --", "null", "{}"]
    all_refused(connection, texts)
    all_refused(connection, texts[:200], keyset="newest_unsigned")


def test_a_cursor_serves_no_other_scope_keyset_or_declaration(connection):
    cursor = cursor_of(connection, 100)
    assert page(connection, cursor)
    for merchant in (0, 2, 3, -1):
        all_refused(connection, [cursor], merchant=merchant)
    connection.execute("""
        SELECT interlock.keyset_create('namesake', 'orders', '{merchant}', 'at DESC, id DESC');
        SELECT interlock.keyset_create('oldest', 'orders', '{merchant}', 'at, id');
        SELECT interlock.keyset_create('mixed', 'orders', '{merchant}', 'at DESC, id');
        SELECT interlock.keyset_create('whole', 'orders', '{}', 'at DESC, id DESC');
    """)
    try:
        for keyset in ("namesake", "oldest", "mixed", "newest_unsigned"):
            all_refused(connection, [cursor], keyset=keyset)
            all_refused(connection, [cursor_of(connection, 100, keyset)])
        all_refused(connection, [cursor], keyset="whole", merchant=None)
    finally:
        for keyset in ("namesake", "oldest", "mixed", "whole"):
            connection.execute("SELECT interlock.keyset_drop(%s)", (keyset,))


def test_an_older_declarations_cursor_is_refused_and_the_same_declarations_is_not(connection):
    declare = "SELECT interlock.keyset_create('changing', 'orders', '{merchant}', %s, max_page => %s)"
    connection.execute(declare, ("at DESC, id DESC", 100))
    cursor = cursor_of(connection, 100, "changing")
    for order in ("at DESC, id", "at, id", "id", "at DESC NULLS LAST, id DESC"):
        connection.execute("SELECT interlock.keyset_drop('changing')")
        connection.execute(declare, (order, 100))
        all_refused(connection, [cursor], keyset="changing")
    connection.execute("SELECT interlock.keyset_drop('changing')")
    connection.execute(declare, ("at DESC, id DESC", 500))   # limits are no part of what a cursor means
    assert page(connection, cursor, "changing") == page(connection, cursor_of(connection, 100))
    connection.execute("SELECT interlock.keyset_drop('changing')")


def test_an_unsigned_cursor_with_other_values_is_another_place_or_refused_but_never_more(connection):
    """Without a key anybody can write cursors: each must be a place or BAD_CURSOR, whatever its bytes are."""
    connection.execute("""
        CREATE FUNCTION try_cursor(place text) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN
            RETURN (SELECT count(*) FROM interlock.keyset_page('every_unsigned', NULL::every, after => place));
        EXCEPTION WHEN SQLSTATE 'IL201' THEN
            RETURN NULL;
        END $$;
    """)
    chance = random.Random(5)
    raws = [decode(cursor_of(connection, number, "every_unsigned", "every")) for number in range(3)]
    tried = []
    for raw in raws:
        tried += [raw[:bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1:] for bit in range(8 * len(raw))]
        tried += [raw[:at] + bytes([value]) + raw[at + 1:] for at in range(18, len(raw)) for value in (0, 1, 127, 128, 255)]
        for _ in range(1500):
            at, length = chance.randrange(18, len(raw)), chance.randint(0, 9)
            tried.append(raw[:at] + chance.randbytes(length) + raw[at + chance.choice([0, length, 1]):])
    rows = connection.execute("SELECT place, try_cursor(place) FROM unnest(%s::text[]) place",
                              ([encode(raw) for raw in tried],)).fetchall()
    taken = [row for row in rows if row[1] is not None]
    assert 0 < len(taken) < len(rows)
    # What is in the header is never another place.
    assert not [row for row in taken if decode(row[0])[:18] != raws[0][:18]]


def test_an_unsigned_cursor_says_that_it_is_and_serves_only_a_keyset_that_allows_it(connection):
    assert decode(cursor_of(connection, 100, "newest_unsigned"))[1] == 0
    assert page(connection, cursor_of(connection, 100, "newest_unsigned"), "newest_unsigned") == \
        page(connection, cursor_of(connection, 100))
    raw = decode(cursor_of(connection, 100))
    assert raw[1] != 0
    # A signature that is not asked for does no good, and one that is cannot be left out.
    all_refused(connection, [encode(raw[:1] + b"\0" + raw[2:]), encode(raw[:1] + b"\0" + raw[2:-16])])


def test_cursors_are_told_apart_for_support_staff(connection):
    cursor = cursor_of(connection, 100)
    rows = connection.execute("SELECT * FROM interlock.keyset_decode(%s)", (cursor,)).fetchall()
    names = [column.name for column in connection.execute(
        "SELECT * FROM interlock.keyset_decode(%s)", (cursor,)).description]
    assert names == ["keyset", "version", "key_id", "authentic", "column_name", "value"]
    assert [(row[0], row[3], row[4]) for row in rows] == [("newest", True, "at"), ("newest", True, "id")]
    assert rows[0][5].startswith("2024-05-01 00:00:00.000025") and rows[1][5] == "100"
    raw = decode(cursor)
    forged = encode(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert not any(row[3] for row in connection.execute("SELECT * FROM interlock.keyset_decode(%s)", (forged,)).fetchall())
    with connection.transaction(), refusal("42501"), connection.transaction():
        connection.execute("SET LOCAL ROLE app")
        connection.execute("SELECT * FROM interlock.keyset_decode(%s)", (cursor,))


def test_both_places_at_once_are_refused(connection):
    cursor = cursor_of(connection, 100)
    with refusal("22023"):
        connection.execute("SELECT * FROM interlock.keyset_page('newest', NULL::orders, '{\"merchant\": 1}', %s, %s)",
                           (cursor, cursor))


def test_the_server_survived_all_of_it(instance, connection):
    instance.check_log()
    assert connection.execute("SELECT 1").fetchone() == (1,)
