"""psycopg 3: what its users do. Run by tests/test_drivers_python.py."""

import datetime
from decimal import Decimal

import psycopg
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types import TypeInfo
from psycopg.types.json import Jsonb

import checks
from checks import check, s0, s1
from psycopg3_short import BALANCE, CREDIT, NEW_ORDER, balance, connect, error_of


@check("connects with SCRAM over TLS and learns the server's parameters")
def _():
    with connect(application_name="shop", channel_binding="prefer") as connection:
        info = connection.info
        assert info.backend_pid > 0 and info.port == checks.PORT
        assert connection.pgconn.ssl_in_use and connection.pgconn.used_password
        names = ("server_version", "server_encoding", "client_encoding", "application_name", "is_superuser",
                 "session_authorization", "DateStyle", "IntervalStyle", "TimeZone", "integer_datetimes",
                 "standard_conforming_strings", "in_hot_standby", "default_transaction_read_only")
        return [info.encoding, info.server_version, info.transaction_status.name,
                {name: info.parameter_status(name) for name in names}]


@check("a wrong password and an unknown user are refused alike")
def _():
    return [error_of(connect, password="wrong")[2].rpartition("FATAL:")[2],
            error_of(connect, user="nobody", password="x")[2].rpartition("FATAL:")[2].replace("nobody", "app")]


@check("connects without TLS too, and sslmode=verify-full proves who the server is")
def _():
    with connect(sslmode="disable") as plain, connect(sslmode="verify-full") as proven:
        return [plain.pgconn.ssl_in_use, proven.pgconn.ssl_in_use, plain.execute("SELECT 1").fetchone()]


@check("target_session_attrs=read-write and =primary are satisfied, =standby is not")
def _():
    for wanted in ("read-write", "primary", "prefer-standby", "any"):
        connect(target_session_attrs=wanted).close()
    return [error_of(connect, target_session_attrs=wanted)[0] for wanted in ("standby", "read-only")]


@check("options of the connection string are in force")
def _():
    with connect(options="-c statement_timeout=5s -c timezone=Asia/Tokyo", client_encoding="LATIN1") as connection:
        show = [connection.execute(f"SHOW {name}").fetchone()[0]
                for name in ("statement_timeout", "timezone", "client_encoding")]
        return [show, connection.info.parameter_status("TimeZone"), connection.info.encoding]


@check("creates, reads, updates and deletes")
def _():
    key = s0()
    with connect() as connection:
        seen = []
        cursor = connection.execute(NEW_ORDER + " RETURNING order_id, status, placed_at", (key, 7, "hé"))
        seen.append((cursor.fetchall(), cursor.statusmessage, cursor.rowcount))
        cursor = connection.execute("SELECT order_id, note FROM orders WHERE account_id = %s ORDER BY 1", (key,))
        seen.append((len(cursor.fetchall()), [column.type_code for column in cursor.description]))
        cursor = connection.execute(
            "UPDATE orders SET note = note || %s WHERE account_id = %s AND order_id = 7 RETURNING note", ("!", key))
        seen.append((cursor.fetchone(), cursor.rowcount))
        cursor = connection.execute("DELETE FROM orders WHERE order_id = 7 AND account_id = %s", (key,))
        seen.append((cursor.statusmessage, cursor.rowcount))
        cursor = connection.execute("DELETE FROM orders WHERE order_id = 7 AND account_id = %s", (key,))
        seen.append((cursor.statusmessage, cursor.rowcount))
        return [seen[0][1:], *seen[1:]]


@check("joins, aggregates, CTEs and upserts of one account")
def _():
    key = s1()
    with connect() as connection:
        return [
            connection.execute(
                "SELECT o.order_id - %(k)s * 100, i.line, i.price FROM orders o JOIN order_items i"
                " ON i.account_id = o.account_id AND i.order_id = o.order_id"
                " WHERE o.account_id = %(k)s ORDER BY 1, 2", {"k": key}).fetchall(),
            connection.execute(
                "WITH mine AS (SELECT * FROM order_items WHERE account_id = %s)"
                " SELECT sku, sum(quantity * price), count(*) FROM mine GROUP BY sku ORDER BY sku", (key,)).fetchall(),
            connection.execute(
                "INSERT INTO account (account_id, name) VALUES (%s, 'x')"
                " ON CONFLICT (account_id) DO UPDATE SET name = account.name || '+' RETURNING name = 'name'"
                " || account_id || '+'", (key,)).fetchone(),
            connection.execute("SELECT name IS NULL FROM account WHERE account_id = %s FOR UPDATE", (key,)).fetchone(),
        ]


@check("keys arrive as any integer type, as text and as unknown")
def _():
    key = s0()
    with connect() as connection:
        typed = [connection.execute(f"SELECT balance FROM account WHERE account_id = {place}", (value,)).fetchone()
                 for place in ("%s", "%b", "%t", "%s::bigint", "CAST(%s AS int4)")
                 for value in ((key, str(key)) if place in ("%s", "%t") else (key,))]
        return typed


@check("commits and rolls back")
def _():
    key = s0()
    with connect(autocommit=False) as connection:
        connection.execute(CREDIT, (10, key))
        before = balance(key)
        connection.commit()
        after = balance(key)
        connection.execute(CREDIT, (100, key))
        status = connection.info.transaction_status.name
        connection.rollback()
        return [before, after, status, connection.info.transaction_status.name, balance(key)]


@check("transaction blocks nest with savepoints")
def _():
    key = s1()
    with connect() as connection:
        with connection.transaction():
            connection.execute(CREDIT, (1, key))
            try:
                with connection.transaction():
                    connection.execute(CREDIT, (10, key))
                    connection.execute("INSERT INTO account (account_id, name) VALUES (%s, 'again')", (key,))
            except psycopg.errors.UniqueViolation:
                pass
            with connection.transaction(savepoint_name="kept"):
                connection.execute(CREDIT, (100, key))
            with connection.transaction(force_rollback=True):
                connection.execute(CREDIT, (1000, key))
            try:
                with connection.transaction():
                    raise psycopg.Rollback
            except psycopg.Error:
                raise
        return [balance(key), connection.info.transaction_status.name]


@check("a savepoint before the first statement works")
def _():
    key = s0()
    with connect() as connection:
        with connection.transaction():
            with connection.transaction():
                connection.execute(CREDIT, (1, key))
            with connection.transaction():
                pass
            with connection.transaction(force_rollback=True):
                connection.execute(CREDIT, (5, key))
        return balance(key)


@check("errors carry SQLSTATE, constraint, table, column and position")
def _():
    key = s1()
    with connect() as connection:
        seen = []
        for statement, *params in (
                (CREDIT, -5000, key),
                ("INSERT INTO account (account_id, name) VALUES (%s, 'again')", key),
                (NEW_ORDER.replace("note", "status"), key, 8, None),
                ("INSERT INTO order_items VALUES (%s, 9, 1, 'x', 1, 1)", key),
                ("SELECT balance / 0 FROM account WHERE account_id = %s", key),
                ("SELECT nothing FROM account WHERE account_id = %s", key),
                ("SELECT balance + 'x'::numeric FROM account WHERE account_id = %s", key),
                ("UPDATE account SET balance = %s WHERE account_id = %s", "abc", key),
                ("SELECT name::int FROM account WHERE account_id = %s", key)):
            try:
                connection.execute(statement, params)
            except psycopg.Error as error:
                diag = error.diag
                seen.append([type(error).__name__, diag.sqlstate, diag.severity, diag.constraint_name,
                             diag.table_name, diag.column_name, diag.schema_name, diag.statement_position,
                             diag.message_primary.replace(str(key), "K")])
            else:
                seen.append("no error")
        return seen


@check("a failed transaction refuses everything until it is rolled back")
def _():
    key = s0()
    with connect(autocommit=False) as connection:
        connection.execute(CREDIT, (10, key))
        seen = [error_of(connection.execute, CREDIT, (-5000, key))[:2]]
        seen.append(connection.info.transaction_status.name)
        seen.append(error_of(connection.execute, BALANCE, (key,))[:2])
        connection.rollback()
        seen.append(connection.execute(BALANCE, (key,)).fetchone())
        connection.rollback()
        connection.execute(CREDIT, (10, key))
        seen.append(error_of(connection.execute, "SELECT 1 FROM")[:2])
        connection.commit()  # what it commits was rolled back
        seen.append(connection.info.transaction_status.name)
    return [*seen, balance(key)]


@check("a deferred constraint fails the commit")
def _():
    key = s1()
    with connect(autocommit=False) as connection:
        connection.execute("INSERT INTO order_items VALUES (%s, 9, 1, 'x', 1, 1)", (key,))
        seen = [error_of(connection.commit)[:2], connection.info.transaction_status.name]
        connection.execute("INSERT INTO order_items VALUES (%s, 9, 1, 'x', 1, 1)", (key,))
        connection.execute(NEW_ORDER, (key, 9, "the order after its item"))
        connection.commit()
        return [*seen, connection.execute("SELECT count(*) FROM order_items WHERE account_id = %s",
                                          (key,)).fetchone()]


@check("isolation level, read only and deferrable are those of the transaction")
def _():
    key = s0()
    show = "SELECT balance, current_setting('transaction_isolation'), current_setting('transaction_read_only')," \
           " current_setting('transaction_deferrable') FROM account WHERE account_id = %s"
    with connect(autocommit=False) as connection:
        seen = []
        for level in psycopg.IsolationLevel:
            connection.isolation_level = level
            connection.read_only = level == psycopg.IsolationLevel.SERIALIZABLE
            connection.deferrable = level == psycopg.IsolationLevel.SERIALIZABLE
            seen.append(connection.execute(show, (key,)).fetchone())
            seen.append(error_of(connection.execute, CREDIT, (1, key))[:2])
            connection.rollback()
        connection.isolation_level = connection.read_only = connection.deferrable = None
        seen.append(connection.execute(show, (key,)).fetchone())
        connection.rollback()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            seen.append(connection.execute(show, (key,)).fetchone())
        return seen


@check("a serialization failure reaches the one who lost")
def _():
    key = s1()
    with connect(autocommit=False) as first, connect(autocommit=False) as second:
        first.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        first.execute(BALANCE, (key,))
        second.execute(CREDIT, (1, key))
        second.commit()
        seen = error_of(first.execute, CREDIT, (1, key))
        first.rollback()
        return [seen, balance(key)]


@check("Python's types go there and back")
def _():
    key = s0()
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=datetime.timezone.utc)
    with connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(
            "UPDATE account SET balance = %s, opened = %s, settings = %s, tags = %s, picture = %s, name = %s"
            " WHERE account_id = %s",
            (Decimal("123456789012.34"), datetime.date(1, 1, 1), Jsonb({"ü": True}), ["", "null", 'q"\\'],
             b"\0\xff", "snow ☃ \U0001f600 '\\", key))
        connection.execute("UPDATE orders SET placed_at = %s, note = %s WHERE account_id = %s AND order_id = %s",
                           (moment, None, key, key * 100 + 1))
        return [connection.execute("SELECT balance, opened, settings, tags, picture, name FROM account"
                                   " WHERE account_id = %s", (key,)).fetchone(),
                connection.execute("SELECT placed_at, note FROM orders WHERE account_id = %s AND order_id = %s",
                                   (key, key * 100 + 1)).fetchone()]


@check("a statement timeout is the client's own")
def _():
    key = s0()
    with connect(autocommit=False) as holder, connect() as connection, connect() as other:
        holder.execute(CREDIT, (1, key))
        connection.execute("SET statement_timeout = '300ms'")
        seen = [error_of(connection.execute, CREDIT, (1, key))]
        seen.append(connection.execute("SHOW statement_timeout").fetchone())
        seen.append(other.execute("SHOW statement_timeout").fetchone())
        holder.rollback()
        seen.append(connection.execute(CREDIT, (1, key)).statusmessage)
        connection.execute("RESET statement_timeout")
        return [*seen, connection.execute("SHOW statement_timeout").fetchone()]


@check("settings of the session and of the transaction")
def _():
    key = s1()
    placed = "SELECT placed_at::text FROM orders WHERE account_id = %s LIMIT 1"
    with connect() as connection, connect() as other:
        seen = []
        connection.execute("SET TIME ZONE 'Europe/Berlin'")
        connection.execute("SET datestyle = 'German'")
        for each in (connection, other):
            each.execute("SET application_name = 'x'")
            seen.append(each.execute(placed, (key,)).fetchone())
            seen.append([each.info.parameter_status(name) for name in ("TimeZone", "DateStyle", "application_name")])
        with connection.transaction():
            connection.execute("SET LOCAL timezone = 'UTC'")
            seen.append(connection.execute(placed, (key,)).fetchone())
            seen.append(connection.execute("SHOW timezone").fetchone())
        seen.append(connection.execute(placed, (key,)).fetchone())
        try:
            with connection.transaction():
                connection.execute("SET timezone = 'Asia/Tokyo'")
                raise ZeroDivisionError
        except ZeroDivisionError:
            seen.append(connection.execute("SHOW timezone").fetchone())
        seen.append(error_of(connection.execute, "SET timezone = 'Nowhere/Land'"))
        connection.execute("RESET ALL")
        seen.append(connection.execute("SHOW datestyle").fetchone())
        return seen


@check("warnings are noticed")
def _():
    notices = []
    with connect() as connection:
        connection.add_notice_handler(lambda diag: notices.append([diag.severity, diag.sqlstate, diag.message_primary]))
        for statement in ("COMMIT", "BEGIN", "BEGIN", "ROLLBACK", "ROLLBACK"):
            connection.execute(statement)
        return notices


@check("several statements in one text, and an empty one")
def _():
    key = s0()
    with connect() as connection:
        cursor = connection.execute(
            f"UPDATE account SET balance = 1 WHERE account_id = {key};"
            f"SELECT balance FROM account WHERE account_id = {key}; ;"
            f"SELECT count(*) FROM orders WHERE account_id = {key};")
        seen = [cursor.statusmessage, cursor.nextset() and cursor.fetchall(), cursor.nextset() and cursor.fetchall(),
                cursor.nextset()]
        seen.append(error_of(connection.execute, f"UPDATE account SET balance = 2 WHERE account_id = {key};"
                                                 f"UPDATE account SET balance = -2 WHERE account_id = {key}")[:2])
        seen.append(balance(key))
        empty = connection.execute("")
        return [*seen, empty.statusmessage, empty.rowcount]


@check("client-side binding, rows as dictionaries and as named tuples")
def _():
    key = s1()
    with connect(cursor_factory=psycopg.ClientCursor, row_factory=dict_row) as connection:
        rows = connection.execute("SELECT balance, tags, %s AS said FROM account WHERE account_id = %s",
                                  ("it's \\ ☃", key)).fetchall()
        connection.row_factory = namedtuple_row
        return [rows, connection.execute("SELECT balance AS b FROM account WHERE account_id = %s", (key,)).fetchone().b]


@check("the client's encoding is kept")
def _():
    key = s0()
    with connect(client_encoding="LATIN1") as latin, connect() as utf8:
        latin.execute("UPDATE account SET name = %s WHERE account_id = %s", ("élan", key))
        seen = [utf8.execute("SELECT name FROM account WHERE account_id = %s", (key,)).fetchone()]
        utf8.execute("UPDATE account SET name = '☃' WHERE account_id = %s", (key,))
        seen.append(error_of(latin.execute, "SELECT name FROM account WHERE account_id = %s", (key,))[:2])
        utf8.execute("UPDATE account SET name = 'ñ' WHERE account_id = %s", (key,))
        return [*seen, latin.execute("SELECT name FROM account WHERE account_id = %s", (key,)).fetchone()]


@check("types are looked up in the catalog")
def _():
    with connect() as connection:
        info = TypeInfo.fetch(connection, "numeric")
        return [info.name, info.oid, info.array_oid, TypeInfo.fetch(connection, "no_such_type"),
                connection.execute("SELECT current_database(), current_user, session_user, current_schema()").fetchone(),
                connection.execute("SELECT version() LIKE 'PostgreSQL %'").fetchone()]


@check("chains of catalog look-ups by OID, between statements of both shards")
def _():
    keys = [s0(), s1()]
    find, name = "SELECT oid FROM pg_class WHERE relname = 'orders'", "SELECT relname FROM pg_class WHERE oid = %s"
    seen = []
    for options in ({"prepare_threshold": None}, {"prepare_threshold": 0}, {"autocommit": False}):
        with connect(**options) as connection:
            for key in [None, *keys, *keys]:
                if key:
                    connection.execute(BALANCE, (key,))
                    connection.rollback()
                oid = connection.execute(find).fetchone()[0]
                seen.append([connection.execute(name, (oid,)).fetchone() for _ in range(3)])
    return seen


@check("router: a second shard in a transaction is refused and nothing stays")
def _():
    here, there = s0(), s1()
    with connect(autocommit=False) as connection:
        connection.execute(CREDIT, (-100, here))
        seen = [error_of(connection.execute, CREDIT, (100, there))[:2], connection.info.transaction_status.name]
        seen.append(error_of(connection.execute, BALANCE, (here,))[:2])
        connection.rollback()
        seen.append([balance(here), balance(there)])
    assert seen == [["DatabaseError", "IL012"], "INERROR", ["InFailedSqlTransaction", "25P02"],
                    [Decimal(1000), Decimal(1000)]], seen


@check("router: refused statements have their code and the connection goes on")
def _():
    here, there = s0(), s1()
    refused = [
        ("IL010", "SELECT balance FROM account"),
        ("IL010", "DELETE FROM orders"),
        ("IL010", f"SELECT 1 FROM account WHERE account_id = {here} OR balance = 0"),
        ("IL011", f"SELECT 1 FROM account WHERE account_id IN ({here}, {there})"),
        ("IL024", "CREATE TABLE t (a int)"),
        ("IL024", "TRUNCATE account"),
        ("IL025", "LISTEN x"),
        ("IL025", "PREPARE p AS SELECT 1"),
        ("IL025", "SET ROLE app"),
        ("IL029", f"UPDATE account SET account_id = 5 WHERE account_id = {here}"),
    ]
    with connect() as connection:
        seen = [(error_of(connection.execute, statement)[1], statement) for _, statement in refused]
        connection.execute(BALANCE, (here,)).fetchone()
        try:
            connection.execute(f"SELECT balance FROM account WHERE account_id IN ({here}, {there})")
        except psycopg.Error as error:
            assert error.diag.message_primary.startswith("R11: "), error.diag.message_primary
            assert error.diag.severity == "ERROR" and error.diag.message_detail
    assert seen == refused, seen


checks.run()
