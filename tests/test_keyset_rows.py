"""Rows by their cursors: what a page would give of them, and nothing that has left its place; and index tables, whose
cursors are their source's, byte for byte, in whichever database they are."""

import json
import random
import subprocess

import psycopg
import pytest

from support.shard import Shard, refusal
from test_keyset_access import nodes, plans  # noqa: F401  (a fixture)
from test_keyset_types import ORDERS, TYPES

COLUMNS = "p.item::text, p.cursor, p.sort_key, p.complete, p.missing_shards"


def page(connection, keyset, table, scope=None, size=1000):
    return connection.execute(
        f"SELECT {COLUMNS} FROM interlock.keyset_page(%s, NULL::{table}, %s, page_size => %s) p",
        (keyset, scope and json.dumps(scope), size)).fetchall()


def rows(connection, keyset, table, cursors, scope=None):
    return connection.execute(
        f"SELECT {COLUMNS} FROM interlock.keyset_rows(%s, NULL::{table}, %s, cursors => %s) p",
        (keyset, scope and json.dumps(scope), cursors)).fetchall()


def cursors_of(page):
    return [row[1] for row in page]


def shuffled(page):
    """Its rows in another order, some of them twice, some not at all."""
    chooser = random.Random(len(page))
    return chooser.choices(page, k=max(1, len(page) * 3 // 2))


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
    instance.check_log()


@pytest.mark.parametrize("type", TYPES)
def test_the_rows_of_a_pages_cursors_are_the_pages_rows(connection, type):
    table = "rows_of_" + "".join(c if c.isalnum() else "_" for c in type.lower())
    connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {type})")
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)",
                           list(enumerate([*TYPES[type], None, *reversed(TYPES[type]), None])))
    for number, order in enumerate(ORDERS):
        connection.execute("SELECT interlock.keyset_create(%s, %s, '{}', %s)", (f"{table}_{number}", table, f"v {order}, id"))
        whole = page(connection, f"{table}_{number}", table)
        assert len(whole) == 2 * len(TYPES[type]) + 2
        asked = shuffled(whole)
        assert rows(connection, f"{table}_{number}", table, cursors_of(asked)) == asked
    # And as a scope: equal values are one.
    connection.execute("SELECT interlock.keyset_create(%s, %s, '{v}', 'id')", (f"{table}_scope", table))
    for value in TYPES[type]:
        text = connection.execute(f"SELECT v::text FROM {table} WHERE v = %s::{type} LIMIT 1", (value,)).fetchone()[0]
        whole = page(connection, f"{table}_scope", table, {"v": text})
        assert len(whole) >= 2
        asked = shuffled(whole)
        assert rows(connection, f"{table}_scope", table, cursors_of(asked), {"v": text}) == asked


def test_a_unique_index_of_several_columns_of_scope_and_order_finds_the_rows(connection):
    connection.execute("""
        CREATE TABLE tickets (shop int NOT NULL, word text COLLATE "C" NOT NULL, number int NOT NULL, due date,
                              UNIQUE (word, shop, number));
        INSERT INTO tickets SELECT i % 3, chr(65 + i % 50), i / 150, nullif('2026-01-01'::date + i % 5, '2026-01-02')
          FROM generate_series(0, 599) i;
        SELECT interlock.keyset_create('tickets', 'tickets', '{shop}', 'due DESC NULLS LAST, word COLLATE "und-x-icu", number DESC');
    """)
    for shop in range(3):
        whole = page(connection, "tickets", "tickets", {"shop": shop})
        assert len(whole) == 200
        asked = shuffled(whole)
        assert rows(connection, "tickets", "tickets", cursors_of(asked), {"shop": shop}) == asked


@pytest.mark.parametrize("order", ["at DESC, id DESC", "at DESC, id", "due NULLS FIRST, word, id"])
def test_each_row_is_one_look_up_by_the_unique_index(connection, plans, order):  # noqa: F811
    """Though each of the other columns has an index that looks as good when most values are rare."""
    connection.execute("""
        DROP TABLE IF EXISTS skewed;
        CREATE TABLE skewed (id int PRIMARY KEY, shop int NOT NULL, at int NOT NULL, due int, word text COLLATE "C" NOT NULL);
        CREATE INDEX ON skewed (shop); CREATE INDEX ON skewed (at); CREATE INDEX ON skewed (due); CREATE INDEX ON skewed (word);
        CREATE INDEX ON skewed (shop, at);
        INSERT INTO skewed SELECT i, i, i, i, i FROM generate_series(1, 20000) i;
    """)
    connection.execute("SELECT interlock.keyset_create('skewed', 'skewed', '{shop}', %s)", (order,))
    connection.execute("VACUUM ANALYZE skewed")
    rows(connection, "skewed", "skewed", cursors_of(page(connection, "skewed", "skewed", {"shop": 1})), {"shop": 1})
    # One shop, one time: nothing has told the planner yet.
    connection.execute("INSERT INTO skewed SELECT i, 1, 1, NULL, 'w' FROM generate_series(20001, 25000) i")
    asked = page(connection, "skewed", "skewed", {"shop": 1}, size=40)
    for analyze in (False, True):
        if analyze:
            connection.execute("ANALYZE skewed")
        del plans[:]
        assert rows(connection, "skewed", "skewed", cursors_of(asked), {"shop": 1}) == asked
        scans = [node for plan in plans for node in nodes(plan) if node.get("Relation Name") == "skewed"]
        assert [(node["Node Type"], node["Index Name"]) for node in scans] == [("Index Scan", "skewed_pkey")]
        assert scans[0]["Actual Loops"] == 40 and scans[0].get("Rows Removed by Filter", 0) == 0
        assert not any(node["Node Type"] == "Sort" for plan in plans for node in nodes(plan))


def test_a_row_that_has_changed_its_place_is_not_the_cursors_any_more(connection):
    """Whatever it has become: later, earlier, NULL, another scope, deleted; and what only looks different is still it."""
    connection.execute("""
        CREATE TABLE changing (id int PRIMARY KEY, shop int NOT NULL, amount numeric, code char(4), note text);
        INSERT INTO changing SELECT i, 1, nullif(i, 3), 'a', 'before' FROM generate_series(1, 12) i;
        SELECT interlock.keyset_create('changing', 'changing', '{shop}', 'amount DESC NULLS LAST, code DESC, id');
    """)
    cursors = cursors_of(page(connection, "changing", "changing", {"shop": 1}))
    connection.execute("""
        UPDATE changing SET amount = amount + 0.0001 WHERE id = 1;
        UPDATE changing SET amount = NULL WHERE id = 2;
        UPDATE changing SET amount = 0 WHERE id = 3;
        UPDATE changing SET code = 'A' WHERE id = 4;
        UPDATE changing SET shop = 2 WHERE id = 5;
        DELETE FROM changing WHERE id = 6;
        UPDATE changing SET id = 70 WHERE id = 7;
        UPDATE changing SET amount = 8.000 WHERE id = 8;
        UPDATE changing SET code = 'a   ' WHERE id = 9;
        UPDATE changing SET note = 'after' WHERE id = 10;
        DELETE FROM changing WHERE id = 11; INSERT INTO changing VALUES (11, 1, 11, 'a', 'again');
        UPDATE changing SET amount = 1, code = NULL WHERE id = 12; UPDATE changing SET amount = 12, code = 'a' WHERE id = 12;
    """)
    left = rows(connection, "changing", "changing", cursors, {"shop": 1})
    assert [row[0] for row in left] == ["(12,1,12,\"a   \",before)", "(11,1,11,\"a   \",again)", "(10,1,10,\"a   \",after)",
                                       "(9,1,9,\"a   \",before)", "(8,1,8.000,\"a   \",before)"]
    assert [row[1] for row in left] == cursors[:5]
    assert rows(connection, "changing", "changing", cursors, {"shop": 1}) == left
    with refusal("IL201"):
        rows(connection, "changing", "changing", cursors, {"shop": 2})


def test_cursors_of_a_key_that_is_being_replaced_are_taken_until_it_is_gone(connection):
    connection.execute("CREATE TABLE keyed (id int PRIMARY KEY); INSERT INTO keyed SELECT generate_series(1, 9);"
                       "SELECT interlock.keyset_create('keyed', 'keyed', '{}', 'id')")
    old = page(connection, "keyed", "keyed")
    key = connection.execute("SELECT max(id) FROM interlock.cursor_key WHERE NOT retired").fetchone()[0]
    connection.execute("SELECT interlock.cursor_key_add()")
    new = page(connection, "keyed", "keyed")
    assert cursors_of(new) != cursors_of(old)
    assert rows(connection, "keyed", "keyed", cursors_of(old) + cursors_of(new)) == old + new
    connection.execute("SELECT interlock.cursor_key_retire(%s)", (key,))
    with refusal("IL201"):
        rows(connection, "keyed", "keyed", [new[0][1], old[0][1]])
    assert rows(connection, "keyed", "keyed", cursors_of(new)) == new


def test_names_of_others_are_not_called(connection):
    connection.execute("""
        CREATE TABLE named (id int PRIMARY KEY, page_row int NOT NULL, wanted int, place int, c1 int, item int);
        INSERT INTO named SELECT i, i, i, i, i, i FROM generate_series(1, 5) i;
        SELECT interlock.keyset_create('named', 'named', '{}', 'wanted DESC, place, c1, page_row DESC, item, id');
        CREATE SCHEMA tricky;
        CREATE FUNCTION tricky.unnest(int[]) RETURNS SETOF int LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$;
        CREATE FUNCTION tricky.wrong(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$;
        CREATE OPERATOR tricky.= (LEFTARG = int, RIGHTARG = int, PROCEDURE = tricky.wrong);
        SET search_path = tricky, pg_catalog, public;
    """)
    try:
        whole = page(connection, "named", "named")
        assert len(whole) == 5
        assert rows(connection, "named", "named", cursors_of(whole)) == whole
    finally:
        connection.execute("RESET search_path")


def test_rows_are_of_the_table_and_the_declaration_as_they_are_now(instance):
    shard = Shard(instance, "rows_changing").create()
    shard.sql("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL); INSERT INTO t SELECT i, i / 2 FROM generate_series(1, 9) i;"
              "SELECT interlock.keyset_create('k', 't', '{}', 'a, id')")
    try:
        with shard.connect() as session:
            cursors = cursors_of(page(session, "k", "t"))

            def ids(table="t"):
                return [row[0] for row in session.execute(
                    f"SELECT (p.item).id FROM interlock.keyset_rows('k', NULL::{table}, cursors => %s) p", (cursors,))]

            assert ids() == list(range(1, 10))
            shard.sql("ALTER TABLE t ADD COLUMN added int DEFAULT 3")
            assert ids() == list(range(1, 10))
            assert {row[0] for row in session.execute(
                "SELECT (p.item).added FROM interlock.keyset_rows('k', NULL::t, cursors => %s) p", (cursors,))} == {3}
            shard.sql("ALTER TABLE t DROP COLUMN added")
            assert ids() == list(range(1, 10))
            shard.sql("ALTER TABLE t DROP CONSTRAINT t_pkey")
            with refusal("IL205"):
                ids()
            shard.sql("CREATE UNIQUE INDEX ON t (a, id)")
            assert ids() == list(range(1, 10))
            shard.sql("ALTER TABLE t RENAME TO u")
            with refusal("IL201"):
                ids("u")
            shard.sql("ALTER TABLE u RENAME TO t")
            assert ids() == list(range(1, 10))
            shard.sql("ALTER TABLE t ALTER a TYPE bigint")
            with refusal("IL201"):
                ids()
            shard.sql("ALTER TABLE t ALTER a TYPE int; SELECT interlock.keyset_drop('k');"
                      "SELECT interlock.keyset_create('k', 't', '{}', 'a DESC, id')")
            with refusal("IL201"):
                ids()
    finally:
        shard.drop()


def test_thousands_of_calls_and_errors_leave_no_memory_behind(connection):
    connection.execute("CREATE TABLE leaking (id int PRIMARY KEY, v text NOT NULL); "
                       "INSERT INTO leaking SELECT i, repeat('x', i * 10) FROM generate_series(1, 50) i;"
                       "SELECT interlock.keyset_create('leaking', 'leaking', '{}', 'id')")
    cursors = cursors_of(page(connection, "leaking", "leaking"))
    sizes = []
    for number in range(1500):
        rows(connection, "leaking", "leaking", cursors)
        with pytest.raises(psycopg.Error):
            rows(connection, "leaking", "leaking", [*cursors, "nonsense"])
        with pytest.raises(psycopg.Error):  # in the middle of them
            connection.execute("SELECT 1 / ((item).id - 30) FROM interlock.keyset_rows('leaking', NULL::leaking, cursors => %s)",
                               (cursors,)).fetchall()
        if number in (200, 1499):
            sizes.append(connection.execute("SELECT sum(total_bytes) FROM pg_backend_memory_contexts "
                                            "WHERE name LIKE 'interlock%' OR ident LIKE '%page_row%'").fetchone()[0])
    assert sizes[0] == sizes[1]


# --- on a shard --------------------------------------------------------------------------------------------


@pytest.fixture
def shard(instance):
    shard = Shard(instance, "rows_shard").create().describe()
    shard.sql("SELECT interlock.accept_buckets('account', array(SELECT generate_series(8, 15)), 1);"
              "INSERT INTO account SELECT g, g FROM generate_series(1, 200) g;"
              "SELECT interlock.keyset_create('accounts', 'account', '{}', 'balance DESC, account_id')")
    yield shard
    shard.drop()


def test_rows_of_buckets_that_another_shard_answers_for_are_not_given_twice(shard):
    with shard.connect() as session:
        whole = page(session, "accounts", "account")
        assert len(whole) == 200
        for bucket, state in ((2, "importing"), (3, "moved"), (4, "fenced")):
            shard.set_state(bucket, state)
        session.execute("SET interlock.route_version = 2")
        there = [row[0] for row in session.execute(
            "SELECT account_id FROM account WHERE interlock.bucket_of('account', account_id) NOT IN (2, 3)")]
        got = rows(session, "accounts", "account", cursors_of(whole))
        assert 0 < len(there) < 200 and {row[0] for row in got} == {f"({key},{key})" for key in there}


def test_a_session_of_old_routes_is_refused_though_no_row_is_left(shard):
    """An empty answer would say that the entries of an index are stale."""
    with shard.connect() as session:
        session.execute("SET interlock.route_version = 1")
        cursors = cursors_of(page(session, "accounts", "account"))
        assert len(rows(session, "accounts", "account", cursors)) == 200
        shard.sql("SET session_replication_role = replica; DELETE FROM account")
        assert rows(session, "accounts", "account", cursors) == []
        shard.sql("UPDATE interlock.bucket_state SET state = 'moved', peer = 's1', route_version = 2;"
                  "UPDATE interlock.shard_identity SET floor = 2")
        with refusal("IL102"):
            rows(session, "accounts", "account", cursors)


# --- index tables ------------------------------------------------------------------------------------------

SOURCE = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN price AS numeric(12, 2);
    CREATE SCHEMA "Shop";
    CREATE TABLE "Shop"."Orders" (id bigint PRIMARY KEY, buyer uuid NOT NULL, shop int NOT NULL, at timestamptz NOT NULL,
        title text COLLATE "und-x-icu" NOT NULL, feeling mood, amount price, code char(5) COLLATE "C", note text);
    INSERT INTO "Shop"."Orders" SELECT i * 7919 % 1009, md5(i::text)::uuid, i % 3, '2026-01-01'::timestamptz + i / 9 * '1 s'::interval,
        (ARRAY['Ärger', 'arger', 'Zebra', 'zebra'])[1 + i % 4], (ARRAY['sad', 'ok', 'happy', NULL])[1 + i % 4]::mood,
        nullif(i % 7, 3), nullif(i % 5, 2)::text, 'note' FROM generate_series(1, 400) i;
"""
DECLARED = {"by_time": "at DESC, id DESC", "By title": "title DESC, feeling NULLS FIRST, amount DESC, code, id",
            "dear": "amount DESC NULLS LAST, feeling, id"}
COPIED = "id, shop, at, title, feeling, amount, code, buyer"


@pytest.fixture(scope="module")
def source(instance):
    shard = Shard(instance, "index_source").create()
    shard.sql(SOURCE)
    for name, order in DECLARED.items():
        shard.sql("SET client_min_messages = error; SELECT interlock.keyset_create(%s, '\"Shop\".\"Orders\"', '{shop}', %s, "
                  "scatter => true)" % (f"'{name}'", f"'{order}'"))
    yield shard
    shard.drop()


@pytest.fixture(scope="module")
def index(instance, source):
    """Another database: other OIDs, the same cursor keys."""
    index = Shard(instance, "index_home").create()
    index.sql("""
        CREATE TABLE before_it (id int PRIMARY KEY);
        CREATE TYPE mood AS ENUM ('sad', 'happy');
        ALTER TYPE mood ADD VALUE 'ok' BEFORE 'happy';
        CREATE DOMAIN price AS numeric(12, 2);
        CREATE SCHEMA interlock_index;
    """)
    for number, (name, order) in enumerate(DECLARED.items()):
        table = f"interlock_index.t{number}"
        index.sql(f"""
            CREATE TABLE {table} (id bigint PRIMARY KEY, shop int NOT NULL, at timestamptz NOT NULL,
                title text COLLATE "und-x-icu" NOT NULL, feeling mood, amount price, code char(5) COLLATE "C", buyer uuid NOT NULL,
                interlock_deleted boolean NOT NULL DEFAULT false);
            CREATE INDEX ON {table} (shop, {order}) WHERE NOT interlock_deleted;
            SELECT interlock.keyset_create_index('interlock_index.t{number}', '{table}', '{name}', '"Shop"."Orders"',
                '{{shop}}', '{order}', max_page => 1000000, default_page => 50);
            DELETE FROM interlock.cursor_key;
        """)
        with source.connect() as from_source, index.connect() as into:
            with into.cursor().copy(f"COPY {table} ({COPIED}) FROM STDIN") as copy:
                with from_source.cursor().copy(f'COPY (SELECT {COPIED} FROM "Shop"."Orders") TO STDOUT') as data:
                    for block in data:
                        copy.write(block)
    keys = source.sql("SELECT id, secret, created, retired FROM interlock.cursor_key")
    with index.connect() as connection:
        connection.cursor().executemany("INSERT INTO interlock.cursor_key VALUES (%s, %s, %s, %s)", keys)
    yield index
    index.drop()


@pytest.mark.parametrize("number", range(len(DECLARED)))
def test_an_index_in_another_database_has_its_sources_cursors_and_sort_keys(source, index, number):
    name, table = list(DECLARED)[number], f"interlock_index.t{number}"
    with source.connect() as shard, index.connect() as there:
        for shop in range(3):
            whole = page(shard, name, '"Shop"."Orders"', {"shop": shop})
            entries = page(there, table, table, {"shop": shop})
            assert len(whole) > 100
            assert [row[1:3] for row in entries] == [row[1:3] for row in whole]
            # As the router does it: the entries' cursors give the rows.
            assert rows(shard, name, '"Shop"."Orders"', cursors_of(entries), {"shop": shop}) == whole
            for way in ("after", "before"):
                for place in cursors_of(whole)[::37]:
                    here, over_there = (
                        session.execute(f"SELECT cursor FROM interlock.keyset_page(%s, NULL::{of}, %s, {way} => %s)",
                                        (keyset, json.dumps({"shop": shop}), place)).fetchall()
                        for session, keyset, of in ((shard, name, '"Shop"."Orders"'), (there, table, table)))
                    assert here == over_there


def test_entries_that_are_gone_are_passed_by_and_their_cursors_still_lead_on(source, index):
    with source.connect() as shard, index.connect() as there:
        whole = page(shard, "by_time", '"Shop"."Orders"', {"shop": 2})
        there.execute("UPDATE interlock_index.t0 SET interlock_deleted = true WHERE shop = 2 AND id % 3 = 0")
        try:
            left = page(there, "interlock_index.t0", "interlock_index.t0", {"shop": 2})
            assert 0 < len(left) < len(whole)
            assert cursors_of(left) == [c for c in cursors_of(whole) if c in set(cursors_of(left))]
            place, passed = "", []
            while True:
                got = there.execute("SELECT cursor FROM interlock.keyset_page('interlock_index.t0', NULL::interlock_index.t0, "
                                    "'{\"shop\": 2}', after => nullif(%s, ''), page_size => 1)", (place,)).fetchall()
                if not got:
                    break
                place = got[0][0]
                passed.append(place)
            assert passed == cursors_of(left)
            # From a cursor whose own entry is gone.
            gone = next(c for c in cursors_of(whole) if c not in set(passed))
            after = there.execute("SELECT cursor FROM interlock.keyset_page('interlock_index.t0', NULL::interlock_index.t0, "
                                  "'{\"shop\": 2}', after => %s, page_size => 1000)", (gone,)).fetchall()
            later = cursors_of(whole)[cursors_of(whole).index(gone) + 1:]
            assert [row[0] for row in after] == [c for c in later if c in set(passed)]
            assert rows(there, "interlock_index.t0", "interlock_index.t0", cursors_of(whole), {"shop": 2}) == left
        finally:
            there.execute("UPDATE interlock_index.t0 SET interlock_deleted = false")


@pytest.mark.parametrize("change", [
    "ALTER TABLE interlock_index.t1 ALTER amount TYPE float8",
    "ALTER TABLE interlock_index.t1 ALTER title TYPE text COLLATE \"C\"",
    "ALTER TYPE mood ADD VALUE 'angry' BEFORE 'sad'",
])
def test_an_index_that_sorts_otherwise_has_another_digest(source, index, change):
    """So that a router sees it before it merges anything."""
    digest = "SELECT digest FROM interlock.keysets WHERE name = '%s'"
    expected = source.value(digest % "By title")
    assert index.value(digest % "interlock_index.t1") == expected
    with index.connect(autocommit=False) as session:
        session.execute(change)
        assert session.execute(digest % "interlock_index.t1").fetchone()[0] not in (expected, None)
        session.rollback()
    assert index.value(digest % "interlock_index.t1") == expected


def test_dump_and_restore_keep_an_indexs_keyset(instance, index):
    where = ["-h", "127.0.0.1", "-p", str(instance.port), "-U", "postgres"]
    dump = instance.run([instance.bin / "pg_dump", *where, index.dbname])
    instance.sql("CREATE DATABASE index_restored", dbname="postgres")
    try:
        done = subprocess.run([instance.bin / "psql", *where, "-Xq", "-v", "ON_ERROR_STOP=1", "index_restored"], input=dump,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        asking = "SELECT name, digest FROM interlock.keysets ORDER BY name"
        assert instance.sql(asking, dbname="index_restored") == index.sql(asking)
        with instance.connect("index_restored") as restored, index.connect() as original:
            assert page(restored, "interlock_index.t1", "interlock_index.t1", {"shop": 1}) == page(
                original, "interlock_index.t1", "interlock_index.t1", {"shop": 1})
    finally:
        instance.sql("DROP DATABASE index_restored WITH (FORCE)", dbname="postgres")
