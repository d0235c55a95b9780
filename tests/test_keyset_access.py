"""Pages run with the rights of whoever asks, and by the index; predicates carry no values."""

import json
import re

import psycopg
import pytest

from support.shard import refusal

ORDERS = {
    "uniform": "at DESC, id DESC", "mixed": "at DESC, id", "nullable": "due DESC NULLS LAST, id DESC",
    "nulls_first": "due NULLS FIRST, at DESC, id"}


@pytest.fixture(scope="module")
def connection(instance):
    with instance.connect() as connection:
        connection.execute("""
            CREATE TABLE orders (id int PRIMARY KEY, merchant int NOT NULL, at timestamptz NOT NULL, due date,
                                 note text DEFAULT 'some words that make the row wider');
            INSERT INTO orders SELECT i, i / 2 % 10, '2024-05-01'::timestamptz + i / 7 * '1 s'::interval,
                CASE WHEN i % 4 > 0 THEN '2024-06-01'::date + i / 200 END FROM generate_series(1, 20000) i;
            CREATE INDEX ON orders (merchant, at, id);
            CREATE INDEX ON orders (merchant, at DESC, id);
            CREATE INDEX ON orders (merchant, due DESC NULLS LAST, id DESC);
            CREATE INDEX ON orders (merchant, due NULLS FIRST, at DESC, id);
            GRANT SELECT ON orders TO app;
        """)
        connection.execute("VACUUM ANALYZE orders")
        for name, order in ORDERS.items():
            connection.execute("SELECT interlock.keyset_create(%s, 'orders', '{merchant}', %s)", (name, order))
        yield connection


def page(connection, keyset="uniform", after=None, before=None, size=10, merchant=3, columns="(p.item).id, p.cursor"):
    return connection.execute(
        f"SELECT {columns} FROM interlock.keyset_page(%s, NULL::orders, %s, %s, %s, %s) p",
        (keyset, json.dumps({"merchant": merchant}), after, before, size)).fetchall()


def full_sort(connection, keyset, merchant=3):
    return [row[0] for row in connection.execute(
        f"SELECT id FROM orders WHERE merchant = %s ORDER BY {ORDERS[keyset]}", (merchant,)).fetchall()]


def cursor_of(connection, keyset, number):
    return connection.execute("SELECT interlock.keyset_cursor(%s, o) FROM orders o WHERE id = %s",
                              (keyset, number)).fetchone()[0]


# --- the index is used -------------------------------------------------------------------------------------


@pytest.fixture
def plans(connection):
    """A list of the plans of the statements inside functions, as they run."""
    seen = []

    def note(notice):
        if notice.message_primary.startswith("duration"):
            seen.append(json.loads(notice.message_primary.partition("plan:")[2])["Plan"])

    connection.execute("LOAD 'auto_explain'")
    for name, value in {"log_min_duration": 0, "log_nested_statements": "on", "log_format": "json", "log_analyze": "on",
                        "log_level": "notice", "log_timing": "off"}.items():
        connection.execute(f"SET auto_explain.{name} = {value}")
    connection.add_notice_handler(note)
    yield seen
    connection.remove_notice_handler(note)
    connection.execute("SET auto_explain.log_min_duration = -1")


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("keyset", ORDERS)
def test_pages_are_read_by_the_index_without_a_sort(connection, plans, keyset):
    expected = full_sort(connection, keyset)
    boundary = next((place for place in range(1, len(expected)) if connection.execute(
        "SELECT count(DISTINCT due IS NULL) FROM orders WHERE id = ANY(%s)",
        (expected[place - 1:place + 1],)).fetchone() == (2,)), 1000)
    # The first page; inside; across the boundary of the NULLs; near the end. Often enough for a generic plan too.
    for position in (None, 500, boundary - 3, len(expected) - 12):
        place = position and cursor_of(connection, keyset, expected[position])
        for way in ("after", "before"):
            if way == "before" and position is None:
                continue
            for _ in range(7):
                del plans[:]
                got = [row[0] for row in page(connection, keyset, **{way: place})]
                inside = [node for plan in plans for node in nodes(plan) if node.get("Relation Name") == "orders"]
                kinds = [node["Node Type"] for plan in plans for node in nodes(plan)]
                assert inside, "no plan was seen"
                assert {node["Node Type"] for node in inside} <= {"Index Scan"}, (position, way, json.dumps(plans, indent=1))
                assert not any(kind in ("Sort", "Incremental Sort", "Bitmap Heap Scan") for kind in kinds), kinds
                # What was read is the page, and of each range at most that.
                assert sum(node["Actual Rows"] for node in inside) <= 12, inside
                assert all(node.get("Rows Removed by Filter", 0) <= 1 for node in inside), inside
            start = 0 if position is None else position + 1
            wanted = expected[start:start + 10] if way == "after" else expected[max(position - 10, 0):position]
            assert got == wanted


@pytest.mark.parametrize("order", ["at DESC, id", "due DESC NULLS LAST, id", "due NULLS FIRST, id DESC"])
def test_a_page_inside_many_ties_reads_no_more_than_another(connection, order):
    """Most values have few ties, so a planner that goes by the average may want to sort them; one has 20,000."""
    connection.execute(f"""
        CREATE TABLE tied (id int PRIMARY KEY, at timestamptz NOT NULL, due date);
        INSERT INTO tied SELECT i, '2024-05-01'::timestamptz + i / 2 * '1 s'::interval, '2024-05-01'::date + i / 2
            FROM generate_series(1, 10000) i;
        INSERT INTO tied SELECT i, '2024-05-01 01:00', '2030-01-01' FROM generate_series(10001, 30000) i;
        CREATE INDEX ON tied ({order});
        SELECT interlock.keyset_create('tied', 'tied', '{{}}', '{order}');
    """)
    try:
        connection.execute("VACUUM ANALYZE tied")
        costs = {}
        for number in (9000, 15000, 29000):
            place = connection.execute("SELECT interlock.keyset_cursor('tied', t) FROM tied t WHERE id = %s",
                                       (number,)).fetchone()[0]
            for way in ("after", "before"):
                for _ in range(2):   # the first time it is planned
                    plan = connection.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM interlock.keyset_page("
                                              f"'tied', NULL::tied, {way} => %s, page_size => 20) p", (place,)).fetchone()[0]
                costs[number, way] = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        assert max(costs.values()) <= min(costs.values()) + 40, costs
    finally:
        connection.execute("DROP TABLE tied")


def test_the_statistics_tell_the_same(connection):
    counters = "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'orders'"
    expected = full_sort(connection, "nulls_first")
    with connection.transaction():
        before = connection.execute(counters).fetchone() or (0, 0)
        place = None
        for _ in range(50):
            place = page(connection, "nulls_first", after=place)[-1][1]
        after = connection.execute(counters).fetchone()
    assert after[0] == before[0] and after[1] >= before[1] + 50
    assert len(expected) == 2000


# --- rights --------------------------------------------------------------------------------------------------


def test_a_page_needs_the_callers_own_rights(connection, instance):
    place = cursor_of(connection, "uniform", 1007)
    with instance.connect(user="app") as reader:
        expected = page(reader, after=place)
        assert expected == page(connection, after=place)
        connection.execute("REVOKE SELECT ON orders FROM app")
        try:
            for after in (None, place):
                with refusal("42501"):
                    page(reader, after=after)
            connection.execute("GRANT SELECT (id, merchant, at) ON orders TO app")
            with refusal("42501"):   # the item is the whole row
                page(reader, after=place)
        finally:
            connection.execute("REVOKE ALL ON orders FROM app; GRANT SELECT ON orders TO app")
        assert page(reader, after=place) == expected


def test_a_session_that_changes_its_role_has_the_rights_of_the_new_one(connection):
    connection.execute("CREATE ROLE nobody_much")
    try:
        assert page(connection)
        connection.execute("SET ROLE nobody_much")
        with refusal("42501"):
            page(connection)
        connection.execute("SET ROLE app")
        assert page(connection)
    finally:
        connection.execute("RESET ROLE; DROP ROLE nobody_much")


def test_row_security_holds_in_pages_and_walks_stay_right(connection, instance):
    connection.execute("""
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
        CREATE POLICY part ON orders USING (id % current_setting('app.modulus')::int = 0);
    """)
    try:
        with instance.connect(user="app") as reader:
            for modulus in (2, 3, 2):
                reader.execute(f"SET app.modulus = {modulus}")
                expected = [number for number in full_sort(connection, "nulls_first") if number % modulus == 0]
                seen, place = [], None
                while rows := page(reader, "nulls_first", after=place, size=90):
                    seen += [row[0] for row in rows]
                    place = rows[-1][1]
                assert seen == expected
            # A cursor of a row that one may not see is a place like any other: it is no authorisation.
            hidden = next(number for number in full_sort(connection, "uniform") if number % 2)
            assert page(reader, after=cursor_of(connection, "uniform", hidden))
            assert all(row[0] % 2 == 0 for row in page(reader))
        assert any(row[0] % 2 for row in page(connection)), "the owner is not bound by the policy"
    finally:
        connection.execute("DROP POLICY part ON orders; ALTER TABLE orders DISABLE ROW LEVEL SECURITY")


def test_an_own_search_path_and_own_operators_change_nothing(connection, instance):
    expected = page(connection, "mixed", size=30)
    connection.execute("""
        CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO app;
        CREATE FUNCTION trap.lt(int, int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
        CREATE OPERATOR trap.< (LEFTARG = int, RIGHTARG = int, FUNCTION = trap.lt);
        CREATE OPERATOR trap.= (LEFTARG = int, RIGHTARG = int, FUNCTION = trap.lt);
        CREATE OPERATOR trap.> (LEFTARG = int, RIGHTARG = int, FUNCTION = trap.lt);
        CREATE TABLE trap.orders (nothing int);
    """)
    try:
        with instance.connect(user="app") as reader:
            reader.execute("SET search_path = trap, pg_catalog")
            rows = reader.execute("SELECT (p.item).id, p.cursor FROM interlock.keyset_page('mixed', NULL::public.orders,"
                                  " '{\"merchant\": 3}', page_size => 30) p").fetchall()
            assert rows == expected
            rows = reader.execute("SELECT (p.item).id FROM interlock.keyset_page('mixed', NULL::public.orders,"
                                  " '{\"merchant\": 3}', %s) p", (expected[9][1],)).fetchall()
            assert [row[0] for row in rows][:20] == [row[0] for row in expected[10:]]
    finally:
        connection.execute("DROP SCHEMA trap CASCADE")


@pytest.mark.parametrize("settings", [
    "extra_float_digits = 0", "DateStyle = 'German'", "TimeZone = 'Asia/Kathmandu'", "IntervalStyle = 'sql_standard'",
    "standard_conforming_strings = off", "bytea_output = 'escape'", "client_encoding = 'LATIN1'", "enable_indexscan = off",
    "plan_cache_mode = force_generic_plan", "plan_cache_mode = force_custom_plan", "work_mem = '64kB'"])
def test_settings_of_the_session_change_no_page_and_no_cursor(connection, settings):
    expected = page(connection, "nulls_first", size=50, columns="(p.item).id, p.cursor, encode(p.sort_key, 'hex')")
    second = page(connection, "nulls_first", after=expected[-1][1])
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL {settings}")
        assert page(connection, "nulls_first", size=50,
                    columns="(p.item).id, p.cursor, encode(p.sort_key, 'hex')") == expected
        assert page(connection, "nulls_first", after=expected[-1][1]) == second


# --- the parts, for SQL of one's own --------------------------------------------------------------------------


def predicate(connection, keyset, after=None, before=None, first=1, alias=None, merchant=3):
    return connection.execute("SELECT * FROM interlock.keyset_predicate(%s, %s, %s, %s, %s, %s)",
                              (keyset, json.dumps({"merchant": merchant}), after, before, first, alias)).fetchone()


def run(connection, text, parameters):
    """$1 is psycopg's %(p1)s."""
    named = re.sub(r"\$(\d+)", r"%(p\1)s", text.replace("%", "%%"))
    return connection.execute(named, {f"p{number}": value for number, value in enumerate(parameters, 1)}).fetchall()


@pytest.mark.parametrize("keyset", ORDERS)
def test_the_predicate_gives_the_same_pages(connection, keyset):
    expected = full_sort(connection, keyset)
    for position in (None, 0, 3, 499, 1000, 1499, 1500, 1998, 1999):
        place = None if position is None else cursor_of(connection, keyset, expected[position])
        for way in ("after", "before"):
            where, order_by, parameters = predicate(connection, keyset, **{way: place})
            rows = run(connection, f"SELECT id FROM orders WHERE {where} ORDER BY {order_by} LIMIT 7", parameters)
            got = [row[0] for row in rows]
            if way == "before" and position is not None:
                got.reverse()
            assert got == [row[0] for row in page(connection, keyset, size=7, **{way: place})], (position, way)


def test_the_predicate_holds_types_and_no_values(connection):
    place = cursor_of(connection, "uniform", 1007)
    where, order_by, parameters = predicate(connection, "uniform", after=place)
    assert len(parameters) == 3 and parameters[0] == "3" and parameters[2] == "1007"
    assert re.findall(r"\$(\d)::([a-z ]+)", where) and not re.search(r"1007|2024", where + order_by)
    assert [part.split()[0] for part in order_by.split(",")][0].strip('"') == "at"


def test_the_predicate_stands_in_a_larger_statement(connection):
    connection.execute("CREATE TABLE merchant (id int PRIMARY KEY, name text, at timestamptz);"
                       "INSERT INTO merchant SELECT i, 'm' || i, now() FROM generate_series(0, 9) i")
    expected = full_sort(connection, "nulls_first")
    place = cursor_of(connection, "nulls_first", expected[700])
    where, order_by, parameters = predicate(connection, "nulls_first", after=place, first=2, alias="o")
    rows = run(connection, f"SELECT o.id, m.name FROM orders o JOIN merchant m ON m.id = o.merchant"
                           f" WHERE m.name = $1 AND {where} ORDER BY {order_by} LIMIT 9", ["m3", *parameters])
    assert rows == [(number, "m3") for number in expected[701:710]]


def test_the_predicate_refuses_what_a_page_refuses(connection):
    place = cursor_of(connection, "uniform", 1007)
    for code, arguments in (("IL201", {"after": place, "merchant": 4}), ("IL201", {"before": "x"}),
                            ("22023", {"after": place, "before": place}), ("22023", {"first": 0})):
        with refusal(code):
            predicate(connection, "uniform", **arguments)
    with refusal("42704"):
        predicate(connection, "nothing")


def test_an_alias_is_quoted(connection):
    where, order_by, parameters = predicate(connection, "uniform", alias='o"; DROP TABLE orders; --')
    with pytest.raises(psycopg.Error) as caught:
        run(connection, f"SELECT 1 FROM orders o WHERE {where}", parameters)
    assert caught.value.diag.sqlstate == "42P01"
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (20_000,)
