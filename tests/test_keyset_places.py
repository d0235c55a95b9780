"""Pages in every place where SQL may ask for them, and from tables that are not as usual."""

import psycopg
import pytest

from support.shard import refusal


@pytest.fixture(scope="module")
def connection(instance):
    with instance.connect() as connection:
        connection.execute("SET client_min_messages = error")
        connection.execute("""
            CREATE TABLE orders (id int PRIMARY KEY, merchant int NOT NULL, at int NOT NULL);
            CREATE INDEX ON orders (merchant, at, id);
            INSERT INTO orders SELECT i, i % 5, i / 3 FROM generate_series(1, 300) i;
            SELECT interlock.keyset_create('orders', 'orders', '{merchant}', 'at DESC, id DESC');
        """)
        yield connection


PAGE = "interlock.keyset_page('orders', NULL::orders, '{\"merchant\": 1}', page_size => 6)"
NEWEST = [296, 291, 286, 281, 276, 271]


def ids(connection, name, table, after=None, size=5):
    rows = connection.execute(f"SELECT (item).id, cursor FROM interlock.keyset_page(%s, NULL::{table}, after => %s,"
                              " page_size => %s)", (name, after, size)).fetchall()
    return [row[0] for row in rows], rows[-1][1] if rows else None


def walk(connection, name, table, size):
    seen, place = [], None
    while True:
        page, place = ids(connection, name, table, place, size)
        if not page:
            return seen
        seen += page


def test_the_first_orders_of_each_merchant_by_a_lateral_join(connection):
    rows = connection.execute("""
        SELECT m, (p.item).id FROM generate_series(0, 4) m,
            LATERAL interlock.keyset_page('orders', NULL::orders, jsonb_build_object('merchant', m), page_size => 3) p
    """).fetchall()
    assert rows == [(merchant, number) for merchant in range(5)
                    for number in [n for n in range(300, 0, -1) if n % 5 == merchant][:3]]


def test_in_a_target_list_a_limit_and_a_prepared_statement(connection):
    assert connection.execute(f"SELECT ({PAGE}).cursor").fetchall() == connection.execute(
        f"SELECT cursor FROM {PAGE}").fetchall()
    assert connection.execute(f"SELECT (item).id FROM {PAGE} LIMIT 2").fetchall() == [(296,), (291,)]
    connection.execute("PREPARE page(text) AS SELECT (item).id FROM interlock.keyset_page('orders', NULL::orders, $1::jsonb,"
                       " page_size => 2)")
    for _ in range(7):
        assert connection.execute("EXECUTE page('{\"merchant\": 1}')").fetchall() == [(296,), (291,)]
        assert connection.execute("EXECUTE page('{\"merchant\": 2}')").fetchall() == [(297,), (292,)]


def test_through_a_cursor_of_sql_both_ways_and_held(connection):
    with connection.transaction():
        connection.execute(f"DECLARE here SCROLL CURSOR FOR SELECT (item).id FROM {PAGE};"
                           f"DECLARE held CURSOR WITH HOLD FOR SELECT (item).id FROM {PAGE}")
        for fetch, expected in (("FETCH 3", NEWEST[:3]), ("FETCH BACKWARD 2", [291, 296]), ("FETCH ALL", NEWEST[1:])):
            assert [row[0] for row in connection.execute(f"{fetch} FROM here").fetchall()] == expected
    assert [row[0] for row in connection.execute("FETCH ALL FROM held").fetchall()] == NEWEST
    connection.execute("CLOSE held")


def test_a_page_sees_what_its_transaction_has_done_and_not_what_its_statement_does(connection):
    with connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO orders VALUES (1000, 1, 1000)")
        assert connection.execute(f"SELECT (item).id FROM {PAGE} LIMIT 1").fetchone() == (1000,)
        rows = connection.execute("WITH written AS (INSERT INTO orders VALUES (2000, 1, 2000) RETURNING id)"
                                  f" SELECT (p.item).id FROM written, {PAGE} p LIMIT 1").fetchall()
        assert rows == [(1000,)]


def test_a_repeatable_read_transaction_walks_one_moment(connection, instance):
    with instance.connect() as writer, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = connection.execute(f"SELECT (item).id, cursor FROM {PAGE}").fetchall()
        writer.execute("INSERT INTO orders VALUES (-1, 1, 90)")
        try:
            after = connection.execute("SELECT (item).id FROM interlock.keyset_page('orders', NULL::orders,"
                                       " '{\"merchant\": 1}', %s, page_size => 6)", (before[-1][1],)).fetchall()
            assert [row[0] for row in after] == [266, 261, 256, 251, 246, 241]
        finally:
            writer.execute("DELETE FROM orders WHERE id = -1")


def test_a_page_that_was_cancelled_does_no_harm_to_the_next(connection, instance):
    with instance.connect() as other:
        assert connection.execute(f"SELECT 1 FROM {PAGE}").fetchall()
        with other.transaction(force_rollback=True):
            other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            connection.execute("SET statement_timeout = 100")
            for _ in range(3):
                with refusal("57014"):
                    connection.execute(f"SELECT 1 FROM {PAGE}")
        connection.execute("RESET statement_timeout")
    for forget in ("SELECT 1", "DISCARD PLANS", "DISCARD ALL"):
        connection.execute(forget)
        assert [row[0] for row in connection.execute(f"SELECT (item).id FROM {PAGE}").fetchall()] == NEWEST
    connection.execute("SET client_min_messages = error")


def test_partitions_with_their_columns_in_another_order(connection):
    connection.execute("""
        CREATE TABLE parted (id int PRIMARY KEY, at int NOT NULL, note text) PARTITION BY RANGE (id);
        CREATE TABLE part_1 (junk int, note text, at int NOT NULL, id int NOT NULL);
        ALTER TABLE part_1 DROP COLUMN junk;
        INSERT INTO part_1 SELECT 'n' || i, i % 3, i FROM generate_series(1, 50) i;
        CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (51) TO (200);
        INSERT INTO parted SELECT i, i % 3, 'm' || i FROM generate_series(51, 100) i;
        ALTER TABLE parted ATTACH PARTITION part_1 FOR VALUES FROM (0) TO (51);
        CREATE INDEX ON parted (at DESC, id);
        SELECT interlock.keyset_create('parted', 'parted', '{}', 'at DESC, id');
    """)
    rows = connection.execute("SELECT (item).* FROM interlock.keyset_page('parted', NULL::parted, page_size => 100)").fetchall()
    assert rows == connection.execute("SELECT * FROM parted ORDER BY at DESC, id").fetchall() and len(rows) == 100
    assert walk(connection, "parted", "parted", 7) == [row[0] for row in rows]
    connection.execute("CREATE TABLE part_3 PARTITION OF parted FOR VALUES FROM (200) TO (300)")
    connection.execute("INSERT INTO parted VALUES (250, 9, 'x')")
    assert ids(connection, "parted", "parted")[0][0] == 250
    connection.execute("ALTER TABLE parted DETACH PARTITION part_1")
    assert len(walk(connection, "parted", "parted", 7)) == 51


def test_values_of_a_megabyte(connection):
    connection.execute("""
        CREATE TABLE large (id int PRIMARY KEY, t text COLLATE "C", b bytea, n numeric);
        INSERT INTO large SELECT i, repeat(md5((i % 4)::text), 30000) || i % 2, decode(repeat(md5((i % 3)::text), 10000), 'hex'),
            (repeat('9', 20000 + i % 3) || '.' || repeat('1', 5000))::numeric FROM generate_series(1, 20) i;
        SELECT interlock.keyset_create('large', 'large', '{}', 't, b DESC, n, id');
    """)
    expected = [row[0] for row in connection.execute("SELECT id FROM large ORDER BY t, b DESC, n, id").fetchall()]
    assert walk(connection, "large", "large", 3) == expected
    _, place = ids(connection, "large", "large")
    assert len(place) > 1_000_000
    with refusal("IL201"):
        ids(connection, "large", "large", place[:500_000] + ("A" if place[500_000] != "A" else "B") + place[500_001:])


def test_a_keyset_of_more_columns_than_an_index_may_have_is_refused(connection):
    names = [f"c{number}" for number in range(40)]
    connection.execute(f"CREATE TABLE many (id int PRIMARY KEY, {', '.join(f'{name} int' for name in names)});"
                       "INSERT INTO many (id) SELECT generate_series(1, 9)")
    connection.execute("SELECT interlock.keyset_create('many', 'many', '{}', %s)", (", ".join([*names[:31], "id"]),))
    assert walk(connection, "many", "many", 2) == list(range(1, 10))
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT interlock.keyset_create('more', 'many', '{}', %s)", (", ".join([*names[:32], "id"]),))


@pytest.mark.parametrize("setup, changes, column", [
    ("CREATE TYPE mood AS ENUM ('1', '2')", ["ALTER TYPE mood ADD VALUE '3' BEFORE '1'", "ALTER TYPE mood RENAME VALUE '3' TO 'x'",
                                             "ALTER TYPE mood RENAME TO humour"], "mood"),
    ("CREATE COLLATION mine (provider = icu, locale = 'en')", ["ALTER COLLATION mine RENAME TO yours"], "text COLLATE mine"),
    ("CREATE SCHEMA place", ["ALTER SCHEMA place RENAME TO other_place"], "int"),
    ("CREATE DOMAIN small AS int", ["ALTER DOMAIN small ADD CHECK (VALUE < 9)", "ALTER DOMAIN small RENAME TO tiny"], "small")])
def test_all_sessions_agree_on_cursors_when_a_type_or_a_name_has_changed(instance, request, setup, changes, column):
    """A cursor of one pooled connection is read by another: one that goes by what it knew earlier would refuse it."""
    database = f"agree_{abs(hash(request.node.name)) % 10**9}"
    instance.sql(f"CREATE DATABASE {database}", dbname="postgres")
    schema = "place." if "SCHEMA" in setup else "public."
    try:
        with instance.connect(database) as one, instance.connect(database) as two:
            one.execute(f"""SET client_min_messages = error; CREATE EXTENSION interlock; {setup};
                CREATE TABLE {schema}t (id int PRIMARY KEY, v {column} NOT NULL)""")
            one.execute(f"INSERT INTO {schema}t SELECT i, (i % 2 + 1)::text::{column.split()[0]} FROM generate_series(1, 20) i")
            one.execute(f"SELECT interlock.keyset_create('t', '{schema}t', '{{}}', 'v, id')")
            for session in (one, two):
                ids(session, "t", schema + "t")
            for change in changes:
                one.execute(change)
                table = "other_place.t" if schema == "place." else "t"
                with instance.connect(database) as fresh:
                    pages = [ids(session, "t", table) for session in (one, two, fresh)]
                    assert pages[0] == pages[1] == pages[2], change
                    assert ids(two, "t", table, pages[2][1]) == ids(fresh, "t", table, pages[1][1])
    finally:
        instance.sql(f"DROP DATABASE {database} WITH (FORCE)", dbname="postgres")


def test_an_extension_made_anew_has_new_keysets_and_keys_in_every_session(instance):
    instance.sql("CREATE DATABASE anew", dbname="postgres")
    try:
        with instance.connect("anew") as one, instance.connect("anew") as two:
            one.execute("CREATE EXTENSION interlock; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 9);"
                        "SELECT interlock.keyset_create('t', 't', '{}', 'id')")
            _, old = ids(two, "t", "t")
            one.execute("DROP EXTENSION interlock; CREATE EXTENSION interlock")
            with refusal("42704"):
                ids(two, "t", "t")
            one.execute("SELECT interlock.keyset_create('t', 't', '{}', 'id')")
            for session in (one, two):
                with refusal("IL201"):
                    ids(session, "t", "t", old)
                assert ids(session, "t", "t")[0] == [1, 2, 3, 4, 5]
    finally:
        instance.sql("DROP DATABASE anew WITH (FORCE)", dbname="postgres")
