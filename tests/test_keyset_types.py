"""Walks over every type that a keyset may be sorted by: ties, NULLs first and last, both directions, every
page size from 1 to 60, against a full sort."""

import itertools

import pytest

from support.keysets import Walked

# Type -> values. Those that are equal to PostgreSQL but differ in bytes stand beside each other.
TYPES = {
    "smallint": ["-32768", "-1", "0", "1", "32767"],
    "integer": ["-2147483648", "-1", "0", "1", "255", "256", "2147483647"],
    "bigint": ["-9223372036854775808", "-4294967296", "-1", "0", "1", "4294967295", "9223372036854775807"],
    "numeric": ["-Infinity", "-1e100", "-12345.678", "-0.0001", "0", "0.000", "1e-50", "0.5", "1", "1.0", "1.000",
                "9999", "10000", "10000.00000001", "99999999999999999999999999999.99", "1e131000", "Infinity", "NaN"],
    "numeric(12,2)": ["-1.5", "0", "0.01", "9.99", "10", "9999999999.99", "NaN"],
    "real": ["-Infinity", "-1e38", "-1.5", "-1e-45", "-0", "0", "1e-45", "1.1", "3e38", "Infinity", "NaN"],
    "double precision": ["-Infinity", "-1e308", "-0.1", "-5e-324", "-0", "0", "5e-324", "0.1", "0.30000000000000004",
                         "0.3", "1e308", "Infinity", "NaN"],
    "boolean": ["false", "true"],
    'text COLLATE "C"': ["", " ", "A", "Z", "a", "aa", "ab", "b", "a\x01", "a ", "ä", "é", "ß", "\uffee", "\U0001f600",
                         "x" * 300, "x" * 299 + "y"],
    'text COLLATE "en-x-icu"': ["", " ", "A", "a", "AA", "aa", "Ab", "ab", "ä", "Ä", "b", "co-op", "coop", "CO-OP",
                                "é", "e", "\U0001f600", "zebra", "Ångström", "x" * 300],
    'text COLLATE "de-x-icu"': ["Ärger", "arger", "Arger", "ärger", "Zebra", "öl", "ol", "straße", "strasse"],
    'varchar(20) COLLATE "C"': ["", "a", "a ", "ab", "B", "b"],
    'char(5) COLLATE "C"': ["", "a", "a  ", "a\t", "ab", "abcde", "b"],
    'char(5) COLLATE "en-x-icu"': ["", "a", "a  ", "A", "ab", "b"],
    "bytea": ["\\x", "\\x00", "\\x0000", "\\x0001", "\\x01", "\\x7f", "\\x80", "\\xff", "\\xff00", "\\xffff"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001",
             "7fffffff-ffff-ffff-ffff-ffffffffffff", "80000000-0000-0000-0000-000000000000",
             "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date": ["-infinity", "4713-01-01 BC", "0001-01-01", "1999-12-31", "2000-01-01", "2024-02-29", "5874897-12-31",
             "infinity"],
    "time": ["00:00", "00:00:00.000001", "11:59:59.999999", "12:00", "23:59:59.999999", "24:00"],
    "timestamp": ["-infinity", "4713-01-01 00:00 BC", "1999-12-31 23:59:59.999999", "2000-01-01", "2024-05-01 12:00",
                  "2024-05-01 12:00:00.000001", "294276-12-31 23:59:59.999999", "infinity"],
    "timestamptz": ["-infinity", "4713-01-01 00:00 BC", "2024-05-01 12:00+00", "2024-05-01 14:00+02",
                    "2024-05-01 12:00:00.000001+00", "2024-05-01 12:00:00.000002+00", "infinity"],
    "interval": ["-178000000 years", "-1 month", "-30 days", "-1 day", "-24:00", "0", "1 microsecond", "23:59:59.999999",
                 "24:00", "1 day", "30 days", "1 month", "29 days 24:00", "1 month 1 microsecond", "12 months", "1 year",
                 "360 days", "178000000 years"],
    "mood": ["sad", "ok", "happy", "angry"],
    "price": ["-1", "0", "1.0", "1.00", "1000000", "NaN"],
    "code": ["", "A", "a", "b"],
}
ORDERS = ["ASC NULLS LAST", "ASC NULLS FIRST", "DESC NULLS FIRST", "DESC NULLS LAST"]


@pytest.fixture(scope="module")
def connection(instance):
    with instance.connect() as connection:
        connection.execute("""
            CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
            ALTER TYPE mood ADD VALUE 'angry' BEFORE 'sad';
            CREATE DOMAIN money_like AS numeric;
            CREATE DOMAIN price AS money_like CHECK (VALUE <> 13);
            CREATE DOMAIN code AS text COLLATE "C";
        """)
        yield connection


def table_for(connection, type):
    """Two rows of each value, three NULLs; the numbers follow no order of the values."""
    name = "t" + "".join(c if c.isalnum() else "_" for c in type.lower())
    connection.execute(f"CREATE TABLE {name} (id int NOT NULL UNIQUE, v {type})")
    values = [*TYPES[type], None, *reversed(TYPES[type]), None, None]
    numbers = [(7 * place) % 997 for place in range(len(values))]
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s)", list(zip(numbers, values)))
    return Walked(connection, name)


@pytest.mark.parametrize("type", TYPES)
def test_walks_over_a_type_return_the_full_sort(connection, type):
    walked = table_for(connection, type)
    for number, order in enumerate(ORDERS):
        by_number = "id DESC" if number % 2 else "id"
        name = f"{walked.table}_{number}"
        walked.declare(name, f"v {order}, {by_number}")
        expected = walked.sorted(f"v {order}, {by_number}")
        places = walked.check(name, expected)
        for size in (1, 3):
            walked.everywhere(name, size, expected, places)
        # A row that the application holds has the same cursor.
        assert sorted(places) == sorted(row[0] for row in connection.execute(
            f"SELECT interlock.keyset_cursor(%s, t) FROM {walked.table} t", (name,)).fetchall())


@pytest.mark.parametrize("type", TYPES)
def test_a_unique_column_of_each_type_is_a_total_order_by_itself(connection, type):
    name = "u" + "".join(c if c.isalnum() else "_" for c in type.lower())
    connection.execute(f"CREATE TABLE {name} (id int, v {type} PRIMARY KEY)")
    for number, value in enumerate(TYPES[type]):
        connection.execute(f"INSERT INTO {name} VALUES (%s, %s) ON CONFLICT DO NOTHING", (number, value))
    walked = Walked(connection, name)
    for direction in ("ASC", "DESC"):
        walked.declare(f"{name}_{direction}", f"v {direction}")
        walked.check(f"{name}_{direction}", walked.sorted(f"v {direction}"), sizes=(1, 2, 3, 5, 60))


@pytest.mark.parametrize("type, left, right", [
    ("numeric", "1.0", "1.000"), ("numeric", "0", "-0.00"), ("real", "0", "-0"), ("double precision", "0", "-0"),
    ('char(5) COLLATE "C"', "a", "a    "), ("interval", "24:00", "1 day"), ("interval", "1 month", "30 days"),
    ("timestamptz", "2024-05-01 12:00+00", "2024-05-01 14:00+02"), ("price", "1", "1.0")])
def test_values_that_are_equal_have_the_same_cursor_and_sort_key(connection, type, left, right):
    connection.execute(f"CREATE TABLE pair (id int NOT NULL UNIQUE, v {type})")
    try:
        Walked(connection, "pair").declare("pair", "v, id")
        made = [connection.execute("SELECT interlock.keyset_cursor('pair', ROW(1, %s)::pair)", (value,)).fetchone()[0]
                for value in (left, right)]
        assert made[0] == made[1]
        keys = []
        for value in (left, right):
            connection.execute("DELETE FROM pair")
            connection.execute("INSERT INTO pair VALUES (1, %s)", (value,))
            keys += connection.execute("SELECT cursor, sort_key FROM interlock.keyset_page('pair', NULL::pair)").fetchall()
        assert keys[0] == keys[1] and keys[0][0] == made[0]
    finally:
        connection.execute("DROP TABLE pair; DROP SCHEMA walks_pair CASCADE")


def test_walks_over_two_columns_with_nulls_in_every_direction(connection):
    connection.execute('CREATE TABLE two (id int PRIMARY KEY, a int, b text COLLATE "C")')
    rows = list(itertools.product([None, 1, 2], [None, "x", "y"], range(3)))
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO two VALUES (%s, %s, %s)",
                           [(17 * number % 101, a, b) for number, (a, b, _) in enumerate(rows)])
    walked = Walked(connection, "two")
    for number, (first, second) in enumerate(itertools.product(ORDERS, ORDERS)):
        order = f"a {first}, b {second}, id {'DESC' if number % 3 else 'ASC'}"
        walked.declare(f"two_{number}", order)
        expected = walked.sorted(order)
        places = walked.check(f"two_{number}", expected)
        walked.everywhere(f"two_{number}", 2, expected, places)


def test_walks_over_three_columns_of_different_types_with_nulls(connection):
    connection.execute("CREATE TABLE three (x int NOT NULL, y int NOT NULL, a real, b numeric, c boolean, UNIQUE (x, y))")
    rows = list(itertools.product([None, "-0", "0", "NaN"], [None, "1.0", "1"], [None, "f", "t"], range(2)))
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO three VALUES (%s, %s, %s, %s, %s)",
                           [(number * 5 % 7, number, a, b, c) for number, (a, b, c, _) in enumerate(rows)])
    walked = Walked(connection, "three", key="y")
    directions = list(itertools.product(ORDERS, ORDERS, ORDERS))
    for number, (first, second, third) in enumerate(directions[::5]):
        order = f"a {first}, b {second}, c {third}, y DESC, x"
        walked.declare(f"three_{number}", order)
        walked.check(f"three_{number}", walked.sorted(order), sizes=(1, 2, 3, 5, 7, 11, 13, 60))


def test_walks_within_a_scope_of_several_types(connection):
    connection.execute("""
        CREATE TABLE scoped (id int PRIMARY KEY, s text NOT NULL, n numeric, m mood, at timestamptz);
        INSERT INTO scoped SELECT i, CASE i % 2 WHEN 0 THEN 'it''s "x"' ELSE 'b' END, (i % 3)::numeric(5,1),
            (ARRAY['sad', 'ok', NULL])[i % 3 + 1]::mood, '2024-05-01'::timestamptz + (i / 10) * '1 us'::interval
            FROM generate_series(1, 300) i;
    """)
    walked = Walked(connection, "scoped")
    walked.declare("scoped", "m DESC, at, id DESC", ["s", "n"])
    for text, number in itertools.product(('it\'s "x"', "b"), ("0", "1.00", "2")):
        where = "s = %s AND n = " + number
        expected = [row[0] for row in connection.execute(
            f"SELECT id FROM scoped WHERE {where} ORDER BY m DESC, at, id DESC", (text,)).fetchall()]
        walked.check("scoped", expected, sizes=(1, 2, 7, 50), scope={"s": text, "n": number})
