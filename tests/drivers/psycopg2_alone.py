"""psycopg2 by itself. Run by tests/test_drivers_python.py."""

import io
import threading
from decimal import Decimal

import psycopg2
import psycopg2.extensions
import psycopg2.extras
import psycopg2.pool

import checks
from checks import check, s0, s1

BALANCE = "SELECT balance FROM account WHERE account_id = %s"
CREDIT = "UPDATE account SET balance = balance + %s WHERE account_id = %s"


def connect(**options):
    return psycopg2.connect(**{"sslmode": "require", **options})


def fetch(connection, statement, *params):
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall()


def balance(key):
    """As somebody else sees it."""
    connection = connect()
    try:
        return fetch(connection, BALANCE, key)[0][0]
    finally:
        connection.close()


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except psycopg2.Error as error:
        return [type(error).__name__, error.pgcode, error.diag.message_primary]
    return ["no error", None, None]


@check("connects and knows the server")
def _():
    connection = connect()
    names = ("server_version", "client_encoding", "TimeZone", "DateStyle", "standard_conforming_strings",
             "session_authorization", "is_superuser")
    seen = [connection.server_version, connection.encoding, connection.get_transaction_status(),
            {name: connection.get_parameter_status(name) for name in names}, connection.info.ssl_in_use]
    connection.close()
    return [*seen, connection.closed]


@check("creates, reads, updates and deletes in a transaction")
def _():
    key = s0()
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (account_id, order_id, note) VALUES (%s, 7, %s) RETURNING status",
                       (key, "it's 100% \\ ☃"))
        seen = [cursor.fetchone(), cursor.statusmessage]
        cursor.execute("SELECT note FROM orders WHERE account_id = %s AND order_id = 7", (key,))
        seen.append([cursor.fetchall(), cursor.description[0].name, cursor.description[0].type_code])
        cursor.execute(CREDIT, (Decimal("0.50"), key))
        seen.append([cursor.rowcount, connection.get_transaction_status()])
        cursor.execute("DELETE FROM orders WHERE account_id = %s AND order_id = 7", (key,))
        seen.append(cursor.rowcount)
    return [*seen, connection.get_transaction_status(), balance(key)]


@check("errors are of their class and the block is failed until rolled back")
def _():
    key = s1()
    connection = connect()
    cursor = connection.cursor()
    seen = [error_of(cursor.execute, CREDIT, (-5000, key)), connection.get_transaction_status(),
            error_of(cursor.execute, BALANCE, (key,))[:2]]
    connection.rollback()
    seen.append(fetch(connection, BALANCE, key))
    cursor.execute("INSERT INTO order_items VALUES (%s, 9, 1, 'x', 1, 1)", (key,))
    seen.append(error_of(connection.commit)[:2])
    seen.append(connection.get_transaction_status())
    connection.close()
    return seen


@check("savepoints")
def _():
    key = s0()
    connection = connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SAVEPOINT early")
        cursor.execute(CREDIT, (1, key))
        cursor.execute("SAVEPOINT late")
        error = error_of(cursor.execute, CREDIT, (-5000, key))[:2]
        cursor.execute("ROLLBACK TO SAVEPOINT late")
        cursor.execute(CREDIT, (10, key))
        cursor.execute("RELEASE SAVEPOINT late")
        cursor.execute("RELEASE SAVEPOINT early")
    return [error, balance(key)]


@check("named cursors, iterated and scrolled")
def _():
    key = s1()
    with connect() as connection:
        with connection.cursor("lines", scrollable=True) as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT line FROM order_items WHERE account_id = %s ORDER BY order_id, line", (key,))
            seen = [cursor.fetchone(), cursor.fetchmany(2)]
            cursor.scroll(-2)
            seen.append(cursor.fetchall())
        with connection.cursor("again") as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT line FROM order_items WHERE account_id = %s ORDER BY order_id, line", (key,))
            return [seen, [row[0] for row in cursor]]


@check("execute_values and execute_batch")
def _():
    key = s0()
    with connect() as connection, connection.cursor() as cursor:
        rows = psycopg2.extras.execute_values(
            cursor, "INSERT INTO orders (account_id, order_id, note) VALUES %s RETURNING order_id",
            [(key, n, f"v{n}") for n in range(1, 26)], page_size=10, fetch=True)
        psycopg2.extras.execute_batch(
            cursor, "UPDATE orders SET note = %s WHERE account_id = %s AND order_id = %s",
            [(f"b{n}", key, n) for n in range(1, 26)], page_size=10)
        cursor.execute("SELECT count(*) FROM orders WHERE account_id = %s AND note LIKE 'b%%'", (key,))
        return [len(rows), cursor.fetchone()]


@check("isolation level, read only, deferrable and autocommit")
def _():
    key = s1()
    connection = connect()
    show = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')" \
           " FROM account WHERE account_id = %s"
    seen = []
    for level in (psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE,
                  psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ):
        connection.set_session(isolation_level=level, readonly=True, deferrable=True)
        seen.append(fetch(connection, show, key))
        seen.append(error_of(fetch, connection, CREDIT, 1, key)[:2])
        connection.rollback()
    # With autocommit they become settings of the session.
    connection.set_session(isolation_level="REPEATABLE READ", readonly=True, autocommit=True)
    seen.append(fetch(connection, show, key))
    seen.append([fetch(connection, f"SHOW {name}") for name in
                 ("default_transaction_isolation", "default_transaction_read_only")])
    other = connect()
    seen.append(fetch(other, show, key))
    other.close()
    connection.set_session(isolation_level="DEFAULT", readonly="DEFAULT")
    seen.append(fetch(connection, show, key))
    connection.close()
    return seen


@check("cancel, and the connection goes on")
def _():
    key = s0()
    holder, connection = connect(), connect()
    connection.autocommit = True
    with holder.cursor() as held:
        held.execute(CREDIT, (1, key))
        failed = []
        cursor = connection.cursor()
        waiting = threading.Thread(target=lambda: failed.append(error_of(cursor.execute, CREDIT, (1, key))))
        waiting.start()
        while waiting.is_alive():
            connection.cancel()
            waiting.join(0.1)
        holder.rollback()
        cursor.execute(CREDIT, (2, key))
    holder.close()
    connection.close()
    return [failed, cursor.rowcount, balance(key)]


@check("COPY of a query to the client")
def _():
    key = s1()
    with connect() as connection, connection.cursor() as cursor:
        out = io.StringIO()
        cursor.copy_expert("COPY (SELECT note FROM orders WHERE account_id = %d ORDER BY order_id) TO STDOUT" % key, out)
        return [out.getvalue(), cursor.rowcount, connection.get_transaction_status()]


@check("the connection pool, reset and encodings")
def _():
    key = s0()
    pool = psycopg2.pool.ThreadedConnectionPool(1, 4, sslmode="require")
    first, second = pool.getconn(), pool.getconn()
    seen = [fetch(first, BALANCE, key)]
    with second.cursor() as cursor:
        cursor.execute("SET timezone = 'Asia/Tokyo'")
        cursor.execute(CREDIT, (1, key))
    pool.putconn(second)  # rolls back
    again = pool.getconn()
    seen += [again is second, fetch(again, "SHOW timezone"), fetch(again, BALANCE, key)]
    again.rollback()
    again.set_client_encoding("LATIN1")
    with again.cursor() as cursor:
        cursor.execute("SET timezone = 'Asia/Tokyo'")
        again.commit()
        cursor.execute(CREDIT, (1, key))
    again.reset()
    seen += [fetch(again, "SHOW timezone"), fetch(again, "SHOW client_encoding"), balance(key)]
    for connection in (first, again):
        pool.putconn(connection)
    pool.closeall()
    return seen


@check("notices and several statements")
def _():
    key = s1()
    connection = connect()
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")
        cursor.execute(f"UPDATE account SET name = 'a' WHERE account_id = {key};"
                       f"SELECT name FROM account WHERE account_id = {key}")
        seen = [connection.notices, cursor.fetchall()]
        seen.append(error_of(cursor.execute, f"UPDATE account SET name = 'b' WHERE account_id = {key};"
                                                   f"SELECT 1/0 FROM account WHERE account_id = {key}")[:2])
        seen.append(fetch(connection, "SELECT name FROM account WHERE account_id = %s", key))
        cursor.execute("SELECT tags, picture, settings FROM account WHERE account_id = %s", (key,))
        seen.append(cursor.fetchall())
    connection.close()
    return seen


@check("json, arrays, bytea, ranges of dates and named tuples")
def _():
    key = s0()
    psycopg2.extras.register_uuid()
    with connect(cursor_factory=psycopg2.extras.NamedTupleCursor) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE account SET settings = %s, tags = %s, picture = %s WHERE account_id = %s RETURNING *",
                       (psycopg2.extras.Json({"a": "ü"}), ["x", "y,z"], b"\0\1'\\", key))
        row = cursor.fetchone()
        return [row.settings, row.tags, bytes(row.picture).hex(), row.opened, row._fields]


checks.run()
