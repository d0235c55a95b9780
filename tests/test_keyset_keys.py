"""The keys that sign cursors: rotated without a cursor going bad, hidden, and kept by dump and restore."""

import subprocess

import psycopg
import pytest

from support.shard import refusal


@pytest.fixture
def database(instance, request):
    """A database of the test's own; yields a function that connects to it."""
    name = f"keys_{abs(hash(request.node.name)) % 10**9}"
    instance.sql(f"CREATE DATABASE {name}", dbname="postgres")
    instance.sql("""
        CREATE EXTENSION interlock;
        CREATE TABLE orders (id int PRIMARY KEY, at timestamptz NOT NULL, note text);
        CREATE INDEX ON orders (at, id);
        INSERT INTO orders SELECT i, '2024-05-01'::timestamptz + i / 3 * '1 s'::interval FROM generate_series(1, 50) i;
        GRANT SELECT ON orders TO app;
        SELECT interlock.keyset_create('newest', 'orders', '{}', 'at DESC, id DESC');
        SELECT interlock.keyset_create('unsigned', 'orders', '{}', 'at DESC, id DESC', signed => false);
    """, dbname=name)
    yield lambda **options: instance.connect(name, **options)
    instance.sql(f"DROP DATABASE {name} WITH (FORCE)", dbname="postgres")


def cursor_of(connection, number=25, keyset="newest"):
    return connection.execute("SELECT interlock.keyset_cursor(%s, o) FROM orders o WHERE id = %s",
                              (keyset, number)).fetchone()[0]


def page(connection, cursor, keyset="newest"):
    return [row[0] for row in connection.execute(
        "SELECT (item).id FROM interlock.keyset_page(%s, NULL::orders, after => %s, page_size => 5)",
        (keyset, cursor)).fetchall()]


def key_of(connection, cursor):
    return connection.execute("SELECT DISTINCT key_id, authentic FROM interlock.keyset_decode(%s)", (cursor,)).fetchone()


def test_the_first_keyset_makes_a_key_that_nobody_else_has(database, instance):
    with database() as connection:
        secrets = connection.execute("SELECT id, secret FROM interlock.cursor_key").fetchall()
        assert [row[0] for row in secrets] == [1] and len(secrets[0][1]) == 32
    instance.sql("CREATE DATABASE keys_other", dbname="postgres")
    try:
        instance.sql("CREATE EXTENSION interlock; CREATE TABLE o (id int PRIMARY KEY);"
                     "SELECT interlock.keyset_create('k', 'o', '{}', 'id')", dbname="keys_other")
        assert instance.sql("SELECT secret FROM interlock.cursor_key", dbname="keys_other")[0][0] != secrets[0][1]
    finally:
        instance.sql("DROP DATABASE keys_other", dbname="postgres")


def test_two_keys_are_valid_during_a_change_and_the_retired_one_is_refused(database):
    with database() as connection, database(user="app") as reader:
        old = cursor_of(connection)
        assert key_of(connection, old) == (1, True)
        expected = page(reader, old)
        assert expected == [24, 23, 22, 21, 20]
        assert connection.execute("SELECT interlock.cursor_key_add()").fetchone() == (2,)
        # At once, in sessions that have used the old key.
        new = cursor_of(reader)
        assert new != old and key_of(connection, new) == (2, True)
        assert page(reader, old) == page(reader, new) == expected
        connection.execute("SELECT interlock.cursor_key_retire(1::smallint)")
        with refusal("IL201"):
            page(reader, old)
        assert page(reader, new) == expected
        assert key_of(connection, old) == (1, False)


def test_a_rotation_that_is_rolled_back_has_not_happened(database):
    with database() as connection:
        old = cursor_of(connection)
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT interlock.cursor_key_add()")
            connection.execute("SELECT interlock.cursor_key_retire(1::smallint)")
            assert key_of(connection, cursor_of(connection)) == (2, True)
            with refusal("IL201"), connection.transaction():
                page(connection, old)
        assert cursor_of(connection) == old and page(connection, old)


def test_at_most_two_keys_are_valid_and_the_last_one_stays(database):
    with database() as connection:
        connection.execute("SELECT interlock.cursor_key_add()")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT interlock.cursor_key_add()")
        connection.execute("SELECT interlock.cursor_key_retire(1::smallint)")
        assert connection.execute("SELECT interlock.cursor_key_add()").fetchone() == (3,)
        connection.execute("SELECT interlock.cursor_key_retire(2::smallint)")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT interlock.cursor_key_retire(3::smallint)")
        assert page(connection, cursor_of(connection))


def test_many_rotations_one_after_the_other(database):
    with database() as connection:
        for number in range(2, 30):
            old = cursor_of(connection)
            connection.execute("SELECT interlock.cursor_key_add()")
            assert page(connection, old) == page(connection, cursor_of(connection))
            connection.execute("SELECT interlock.cursor_key_retire(%s::smallint)", (number - 1,))
            with refusal("IL201"):
                page(connection, old)


def test_a_given_secret_makes_the_same_cursors_on_another_server(database, make_instance):
    other = make_instance("other")
    secret = bytes(range(32))
    for run in (lambda text, *p: other.sql(text, *p, dbname="app"),):
        run("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz NOT NULL, note text)")
        run("INSERT INTO orders SELECT i, '2024-05-01'::timestamptz + i / 3 * '1 s'::interval FROM generate_series(1, 50) i")
        run("SET client_min_messages = error; SELECT interlock.keyset_create('newest', 'orders', '{}', 'at DESC, id DESC')")
        run("SELECT interlock.cursor_key_add(%s)", secret)
    with database() as connection, other.connect() as elsewhere:
        connection.execute("SELECT interlock.cursor_key_add(%s)", (secret,))
        cursor = cursor_of(connection)
        assert cursor == cursor_of(elsewhere)
        assert page(elsewhere, cursor) == page(connection, cursor)
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT interlock.cursor_key_add(%s)", (b"short",))


@pytest.mark.parametrize("statement", [
    "SELECT * FROM interlock.cursor_key", "SELECT interlock.cursor_key_add()", "SELECT interlock.cursor_key_retire(1::smallint)",
    "SELECT interlock.keyset_create('mine', 'orders', '{}', 'id')", "SELECT interlock.keyset_drop('newest')",
    "INSERT INTO interlock.cursor_key VALUES (9, '', now(), false)"])
def test_ordinary_users_neither_see_nor_change_keys(database, statement):
    with database(user="app") as reader, refusal("42501"):
        reader.execute(statement)


def test_the_secret_is_nowhere_in_a_cursor_an_error_or_the_log(database, instance):
    with database() as connection:
        secret = connection.execute("SELECT secret FROM interlock.cursor_key").fetchone()[0]
        cursor = cursor_of(connection)
        with pytest.raises(psycopg.Error) as caught:
            page(connection, cursor[:-2] + "AA")
    for text in (cursor, str(caught.value), instance.log_since(0)):
        assert secret.hex() not in text


def test_dump_and_restore_keep_keysets_keys_and_cursors(database, instance):
    with database() as connection:
        source = connection.info.dbname
        connection.execute("SELECT interlock.cursor_key_add()")
        cursors = [cursor_of(connection), cursor_of(connection, keyset="unsigned")]
        declared = connection.execute("SELECT * FROM interlock.keysets ORDER BY name").fetchall()
        keys = connection.execute("SELECT * FROM interlock.cursor_key ORDER BY id").fetchall()
    assert len(declared) == 2 and len(keys) == 2
    where = ["-h", "127.0.0.1", "-p", str(instance.port), "-U", "postgres"]
    dump = instance.run([instance.bin / "pg_dump", *where, source])
    instance.sql("CREATE DATABASE restored", dbname="postgres")
    try:
        # Something between, so that the table gets another OID.
        instance.sql("CREATE TABLE before_it (); CREATE TYPE before_too AS ENUM ()", dbname="restored")
        done = subprocess.run([instance.bin / "psql", *where, "-Xq", "-v", "ON_ERROR_STOP=1", "restored"], input=dump,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        with instance.connect("restored") as restored:
            assert restored.execute("SELECT * FROM interlock.keysets ORDER BY name").fetchall() == declared
            assert restored.execute("SELECT * FROM interlock.cursor_key ORDER BY id").fetchall() == keys
            assert page(restored, cursors[0]) == page(restored, cursors[1], "unsigned") == [24, 23, 22, 21, 20]
            assert cursor_of(restored) == cursors[0]
    finally:
        instance.sql("DROP DATABASE restored WITH (FORCE)", dbname="postgres")
