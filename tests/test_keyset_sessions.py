"""Keyset pages with more than one session at a time: what others change of the keyset, the table, the shard."""

import random
import threading
import time

import psycopg
import pytest

from support.shard import Background, Shard, refusal

ISOLATION = ["READ COMMITTED", "REPEATABLE READ"]
PAGE = "SELECT (item).id FROM interlock.keyset_page('k', NULL::t, '{\"scope\": 1}', after => %s, page_size => %s)"
CURSORS = "SELECT cursor FROM interlock.keyset_page('k', NULL::t, '{\"scope\": 1}', page_size => %s)"


@pytest.fixture
def database(instance, request):
    """A table of 300 rows in scope 1 with a keyset."""
    database = Shard(instance, f"keysets_{abs(hash(request.node.name)) % 10**9}").create()
    database.sql("""
        CREATE TABLE t (id bigint PRIMARY KEY, scope int NOT NULL, a int, b text COLLATE "C", wide text);
        INSERT INTO t SELECT i, i % 3, nullif(i % 7, 0), 'b' || i % 5, repeat('w', i % 50) FROM generate_series(1, 900) i;
        CREATE INDEX t_order ON t (scope, a, b DESC, id);
        SELECT interlock.keyset_create('k', 't', '{scope}', 'a, b DESC, id');
    """)
    yield database
    database.drop()
    instance.check_log()


def page(session, place=None, size=3, **options):
    return [row[0] for row in session.execute(PAGE, (place, size), **options)]


def sorted_rows(session, order="a, b DESC, id"):
    return [row[0] for row in session.execute(f"SELECT id FROM t WHERE scope = 1 ORDER BY {order}")]


# --- what others change ------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("isolation", ISOLATION)
def test_the_next_page_is_of_the_declaration_as_it_is_now(database, isolation, prepare):
    """Within a transaction too: a declaration is no row of a snapshot, and old cursors must not be read by it."""
    with database.connect() as session:
        truth = sorted_rows(session)
        session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        assert page(session, prepare=prepare) == truth[:3]
        place = session.execute(CURSORS, (3,)).fetchall()[2][0]
        database.sql("SELECT interlock.keyset_drop('k')")
        with pytest.raises(psycopg.Error), session.transaction():
            page(session, prepare=prepare)
        database.sql("SELECT interlock.keyset_create('k', 't', '{scope}', 'id DESC')")
        assert page(session, prepare=prepare) == sorted_rows(session, "id DESC")[:3]
        with refusal("IL201"), session.transaction():
            page(session, place, prepare=prepare)
        session.execute("COMMIT")


def test_a_page_waits_for_a_change_of_the_table_and_is_of_the_new_one(database):
    with database.connect() as session, database.connect() as changer:
        place = session.execute(CURSORS, (3,)).fetchall()[2][0]
        changer.execute("BEGIN; ALTER TABLE t ALTER COLUMN a TYPE numeric USING -a")
        # (Its statement names no column of the row: its analysis would wait, and not the page.)
        waiting = Background(session, "SELECT cursor FROM interlock.keyset_page('k', NULL::t, '{\"scope\": 1}', %s)", place)
        database.wait_for_lock(waiting.pid)
        changer.execute("COMMIT")
        error = waiting.result()
        assert error is not None and error.diag.sqlstate == "IL201", error
        assert page(session) == sorted_rows(session)[:3]


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_page_waits_for_the_drop_of_an_index_that_makes_the_order_total(database, ending):
    with database.connect() as session, database.connect() as changer:
        session.execute(CURSORS, (3,))
        changer.execute("BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey")
        waiting = Background(session, CURSORS, 3)
        database.wait_for_lock(waiting.pid)
        changer.execute(ending)
        error = waiting.result()
        assert (error.diag.sqlstate if error else None) == ("IL205" if ending == "COMMIT" else None)


def test_a_page_does_not_wait_for_an_index_that_is_being_made(database):
    with database.connect() as session, database.connect() as changer:
        changer.execute("BEGIN; CREATE INDEX ON t (a)")
        assert len(page(session)) == 3
        changer.execute("ROLLBACK")


def test_what_is_known_of_a_keyset_can_be_asked_while_its_table_is_locked(database):
    """A router asks with each new connection, whatever is done to a table just then."""
    asking = "SELECT scatter, digest, \"table\"::text, \"order\" FROM interlock.keysets"
    known = database.sql(asking)
    assert known[0][1] is not None
    with database.connect() as session, database.connect() as changer:
        session.execute("SET lock_timeout = '50ms'")
        changer.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert session.execute(asking).fetchall() == known
        changer.execute("ALTER TABLE t ALTER a TYPE bigint")
        assert session.execute(asking).fetchall() == known
        changer.execute("COMMIT")
        changed = session.execute(asking).fetchall()
        assert changed[0][1] != known[0][1] and changed[0][2:] == known[0][2:]


def test_rows_of_a_bucket_that_leaves_are_not_in_the_next_page(instance, request):
    shard = Shard(instance, f"keysets_{abs(hash(request.node.name)) % 10**9}").create().describe()
    try:
        shard.sql("INSERT INTO account SELECT i, 1 FROM unnest('{6, 29, 1, 18, 40}'::int[]) i")
        shard.sql("SELECT interlock.keyset_create('account', 'account', '{}', 'account_id')")
        statement = "SELECT (item).account_id FROM interlock.keyset_page('account', NULL::account)"
        for isolation in ISOLATION:
            with shard.connect() as session:
                session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
                for state, expected in [("owned", [1, 6, 18, 29, 40]), ("moved", [1, 18, 40]), ("importing", [1, 18, 40]),
                                        ("fenced", [1, 6, 18, 29, 40]), ("owned", [1, 6, 18, 29, 40])]:
                    shard.set_state(0, state)
                    assert [row[0] for row in session.execute(statement, prepare=True)] == expected, state
                session.execute("COMMIT")
        # A table that is sharded no more is read whole.
        with shard.connect() as session:
            shard.set_state(0, "moved")
            assert len(session.execute(statement, prepare=True).fetchall()) == 3
            shard.sql("SELECT interlock.unshard_table('account')")
            assert len(session.execute(statement, prepare=True).fetchall()) == 5
    finally:
        shard.drop()


# --- pages within pages, and what is left behind -----------------------------------------------


def test_a_page_that_is_read_within_a_page_of_the_same_keyset(database):
    """A policy's function reads a page and makes the declaration stale, while the outer page's plan is running."""
    database.sql("""
        CREATE ROLE within_pages;
        CREATE TABLE u (x int, y text COLLATE "C", z int PRIMARY KEY, v date, w uuid);
        SELECT interlock.keyset_create('other', 'u', '{}', 'y DESC, v, w DESC, x, z');
        GRANT SELECT ON t, u TO within_pages;
        CREATE FUNCTION peek(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
        DECLARE
            n integer := current_setting('test.depth')::integer;
        BEGIN
            IF n < 3 AND id % 50 = 1 THEN
                PERFORM set_config('test.depth', (n + 1)::text, false);
                PERFORM disturb();
                PERFORM count(*) FROM interlock.keyset_page('other', NULL::u);
                PERFORM count(*) FROM interlock.keyset_page('k', NULL::t, '{"scope": 1}', page_size => 100 * n);
                PERFORM set_config('test.depth', n::text, false);
            END IF;
            RETURN id % 2 = 0 OR n > 1;
        END $$;
        CREATE FUNCTION disturb() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN
            UPDATE interlock.keyset SET default_page = default_page + 1;
        END $$;
        ALTER TABLE t ENABLE ROW LEVEL SECURITY;
        CREATE POLICY peeking ON t TO within_pages USING (peek(id));
    """)
    try:
        with database.connect() as session:
            session.execute("SET test.depth = 1; SET ROLE within_pages")
            even = [i for i in range(2, 901, 2) if i % 3 == 1]
            for _ in range(3):
                assert sorted(page(session, size=1000)) == even
    finally:
        database.sql("DROP POLICY peeking ON t; DROP OWNED BY within_pages; DROP ROLE within_pages")


def test_a_thousand_declarations_and_errors_leave_no_memory_behind(database):
    with database.connect() as session:
        sizes = []
        for number in range(600):
            session.execute("UPDATE interlock.keyset SET default_page = %s", (1 + number % 100,))
            place = session.execute(CURSORS, (3,)).fetchall()[2][0]
            page(session, place)
            for wrong in [("nonsense", 3), (place, -1)]:
                with pytest.raises(psycopg.Error):
                    page(session, *wrong)
            with pytest.raises(psycopg.Error):  # in the middle of the page
                session.execute("SELECT 1 / (CASE WHEN (item).id > 800 THEN 0 ELSE 1 END) FROM "
                                "interlock.keyset_page('k', NULL::t, '{\"scope\": 1}', page_size => 1000)").fetchall()
            if number in (100, 599):
                sizes.append(session.execute("SELECT sum(total_bytes) FROM pg_backend_memory_contexts "
                                             "WHERE name LIKE 'interlock%' OR ident LIKE '%page_row%'").fetchone()[0])
        assert sizes[0] == sizes[1]


CHANGES = [
    ["ALTER TABLE t ALTER a TYPE bigint"], ["ALTER TABLE t ALTER a TYPE int"], ["ALTER TABLE t ALTER a TYPE numeric"],
    ["ALTER TABLE t ADD COLUMN IF NOT EXISTS x int DEFAULT 3"], ["ALTER TABLE t DROP COLUMN IF EXISTS x"],
    ["DROP INDEX IF EXISTS t_order"], ["CREATE INDEX IF NOT EXISTS t_order ON t (scope, a, b DESC, id)"],
    ["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME TO t"],
    ["ALTER TABLE t RENAME a TO c", "ALTER TABLE t RENAME c TO a"],
    ["SELECT interlock.keyset_drop('k')", "SELECT interlock.keyset_create('k', 't', '{scope}', 'a, b DESC, id')"],
    ["SELECT interlock.keyset_drop('k')", "SELECT interlock.keyset_create('k', 't', '{scope}', 'b, a DESC NULLS LAST, id')"],
    ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id)"],
    ["ALTER TABLE t ALTER b TYPE varchar(9) COLLATE \"C\""], ["ALTER TABLE t ALTER b TYPE text COLLATE \"C\""],
    ["ANALYZE t"], ["ALTER TABLE t ENABLE ROW LEVEL SECURITY"], ["ALTER TABLE t DISABLE ROW LEVEL SECURITY"],
    ["VACUUM FULL t"],
]
# A page's statement is planned before the page takes its lock, so a column may change its type in between.
EXPECTED_OF_PAGES = {"IL201", "42804"}


def test_pages_while_everything_changes(database):
    """Every page is a piece of the order, or an error that says what has changed; nobody crashes."""
    stop = time.monotonic() + 8
    count, errors = [0, 0], []

    def read(number):
        choose = random.Random(number)
        with database.connect() as session:
            session.prepare_threshold = None
            places = [None]
            while time.monotonic() < stop:
                way = choose.choice(["after", "before"])
                try:
                    rows = session.execute(
                        "SELECT (item).id, cursor, count(*) OVER (), (item).* FROM interlock.keyset_page('k', NULL::t, "
                        f"'{{\"scope\": 1}}', {way} => %s, page_size => %s)", (choose.choice(places), choose.randint(1, 30))).fetchall()
                except psycopg.errors.Error as error:
                    if error.sqlstate not in EXPECTED_OF_PAGES:
                        errors.append(error)
                        return
                    places = [None]
                    continue
                ids = [row[0] for row in rows]
                if len(set(ids)) != len(ids) or any(i % 3 != 1 for i in ids):
                    errors.append(AssertionError(f"a page of {ids}"))
                    return
                places = [None] + [row[1] for row in rows[:5]]
                count[number] += 1

    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for reader in readers:
        reader.start()
    choose = random.Random(7)
    with database.connect() as changer:
        while time.monotonic() < stop and any(reader.is_alive() for reader in readers):
            statements = choose.choice(CHANGES)
            if len(statements) > 1:
                with changer.transaction():
                    for statement in statements:
                        changer.execute(statement)
            else:
                changer.execute(statements[0])
    for reader in readers:
        reader.join()
    assert not errors, errors
    assert min(count) > 100, count
    with database.connect() as session:
        order = session.execute("SELECT \"order\" FROM interlock.keysets").fetchone()[0]
        assert page(session, size=1000) == sorted_rows(session, order)
