"""psycopg 3: what it does beyond one statement and its answer. Run by tests/test_drivers_python.py."""

import asyncio
import contextlib
import threading

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

import checks
from checks import check, s0, s1
from psycopg3_short import BALANCE, CREDIT, NEW_ORDER, balance, connect, error_of


@check("statements are prepared after the threshold, evicted, dropped and prepared again")
def _():
    key, other = s0(), s1()
    with connect(prepare_threshold=1) as connection:
        connection.prepared_max = 2
        total = 0
        for column in ("balance", "length(name)", "cardinality(tags)", "balance"):  # one more than are kept
            for _ in range(5):
                for one in (key, other):
                    query = f"SELECT {column} FROM account WHERE account_id = %s"
                    total += connection.execute(query, (one,)).fetchone()[0] - len(str(one)) * (column[0] == "l")
        seen = [total, len(connection._prepared._names)]
        # ROLLBACK makes psycopg send DEALLOCATE ALL.
        with connection.transaction(force_rollback=True):
            seen.append(connection.execute(BALANCE, (key,), prepare=True).fetchone())
        seen.append([connection.execute(BALANCE, (one,), prepare=True).fetchone() for one in (key, other, key)])
        connection.execute("DEALLOCATE ALL")
        seen.append(error_of(connection.execute, BALANCE, (key,), prepare=True)[:2])
    return seen


def on_changing_backends(key, ask):
    """Calls `ask` while more and more other transactions hold backends of the same shard; how many it met."""
    holders, pids = [], []
    try:
        pids.append(ask())
        for _ in range(3):
            holder = connect(autocommit=False)
            holders.append(holder)
            holder.execute("SELECT 1 FROM account WHERE account_id = %s", (key,))
            pids += [ask(), ask()]
    finally:
        for holder in holders:
            holder.rollback()
            holder.close()
    return len(set(pids))


@check("a prepared statement is reused over changing backends")
def _():
    key = s0()
    seen = []
    with connect(prepare_threshold=0) as connection:
        def ask():
            row = connection.execute("SELECT pg_backend_pid(), balance, tags FROM account WHERE account_id = %s",
                                     (key,)).fetchone()
            seen.append(row[1:])
            return row[0]
        met = on_changing_backends(key, ask)
        assert met > 1 or not checks.ROUTER, "it never met another backend"
        return seen


@check("binary results and parameters")
def _():
    key = s1()
    with connect() as connection:
        cursor = connection.cursor(binary=True)
        cursor.execute("UPDATE account SET picture = %b, tags = %b, settings = %b WHERE account_id = %b",
                       (bytes(range(256)), ["x", "y z", ""], Jsonb({"a": [1, None]}), key))
        cursor.execute("SELECT account_id = %b, name, balance, opened, settings, tags, picture"
                       " FROM account WHERE account_id = %b", (key, key))
        row = list(cursor.fetchone())
        row[-1] = row[-1] == bytes(range(256))
        row[1] = row[1] == f"name{key}"
        cursor.execute("SELECT placed_at, (order_id - account_id * 100)::int2, 1.5::float8 FROM orders"
                       " WHERE account_id = %b ORDER BY order_id LIMIT 1", (key,))
        return [row, cursor.fetchone(), [column.type_code for column in cursor.description]]


@check("the pipeline sends many statements in one round trip")
def _():
    key = s1()
    with connect() as connection:
        with connection.pipeline() as pipeline:
            cursors = [connection.execute(CREDIT + " RETURNING balance", (n, key)) for n in range(1, 11)]
            reader = connection.execute("SELECT count(*) FROM orders WHERE account_id = %s", (key,))
            pipeline.sync()
            one = [cursor.fetchone()[0] for cursor in cursors]
            with connection.transaction():
                connection.execute(CREDIT, (1000, key))
                with connection.transaction():
                    connection.execute(CREDIT, (10000, key))
            late = connection.execute(BALANCE, (key,)).fetchone()
        return [one, reader.fetchone(), late, connection.info.transaction_status.name]


def pipeline_error(connection, *statements):
    """The error of statements that are sent together. The driver may raise it with any of the later ones."""
    error = ["no error", None]
    with connection.pipeline() as pipeline:
        try:
            for statement, params in statements:
                connection.execute(statement, params)
            pipeline.sync()
        except psycopg.Error as raised:
            error = [type(raised).__name__, raised.sqlstate]
            # Raised early, what was sent after it is still to come: as aborted.
            with contextlib.suppress(psycopg.errors.PipelineAborted):
                pipeline.sync()
        after = connection.execute(BALANCE, (statements[0][1][1],)).fetchone()
    return [error, after, connection.info.transaction_status.name]


@check("an error in the pipeline skips to the next sync")
def _():
    key = s0()
    with connect() as connection:
        return [pipeline_error(connection, (CREDIT, (5, key)), (CREDIT, (-5000, key)), (CREDIT, (7, key))), balance(key)]


@check("the pipeline with prepared statements of both shards, each synchronized")
def _():
    keys = [s0(), s1()]
    with connect(prepare_threshold=0) as connection:
        with connection.pipeline() as pipeline:
            cursors = []
            for n in range(50):
                cursors.append(connection.execute(BALANCE, (keys[n % 2],)))
                pipeline.sync()
            return [cursor.fetchone()[0] for cursor in cursors]


@check("executemany, with and without returning")
def _():
    key = s1()
    with connect() as connection:
        cursor = connection.cursor()
        cursor.executemany(NEW_ORDER, [(key, n, f"many {n}") for n in range(1, 31)])
        counted = cursor.rowcount
        cursor.executemany("UPDATE orders SET note = %s WHERE account_id = %s AND order_id = %s RETURNING note",
                           [(f"changed {n}", key, n) for n in range(1, 4)], returning=True)
        notes = []
        while True:
            notes.append(cursor.fetchone())
            if not cursor.nextset():
                break
        return [counted, notes]


@check("server-side cursors in a transaction fetch in parts and scroll")
def _():
    key = s0()
    with connect(autocommit=False) as connection:
        seen = []
        with connection.cursor("parts") as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT order_id - %(k)s * 100, line FROM order_items WHERE account_id = %(k)s"
                           " ORDER BY 1, 2", {"k": key})
            seen += [cursor.fetchone(), cursor.fetchmany(3), list(cursor)]
        with connection.cursor("back", scrollable=True) as cursor:
            cursor.execute("SELECT line FROM order_items WHERE account_id = %s ORDER BY order_id, line", (key,))
            cursor.fetchmany(2)
            cursor.scroll(-1)
            seen.append(cursor.fetchone())
            cursor.scroll(0, mode="absolute")
            seen.append(cursor.fetchall())
        connection.execute(CREDIT, (1, key))
        connection.commit()
        return [seen, balance(key)]


@check("rows stream one by one")
def _():
    key = s1()
    with connect() as connection:
        return [row[0] for row in connection.cursor().stream(
            "SELECT line FROM order_items WHERE account_id = %s ORDER BY order_id, line", (key,))]


@check("COPY of a query to the client, as text, csv and binary")
def _():
    key = s0()
    with connect() as connection:
        query = sql.SQL("COPY (SELECT order_id - {k} * 100, note FROM orders WHERE account_id = {k} ORDER BY 1)"
                        " TO STDOUT {how}")
        seen = []
        for how in ("", "WITH (FORMAT csv, HEADER)"):
            with connection.cursor().copy(query.format(k=sql.Literal(key), how=sql.SQL(how))) as copy:
                seen.append(b"".join(copy).decode())
        with connection.cursor().copy(query.format(k=sql.Literal(key), how=sql.SQL("(FORMAT BINARY)"))) as copy:
            copy.set_types(["int8", "text"])
            seen.append(list(copy.rows()))
        return [seen, connection.info.transaction_status.name]


@check("cancel reaches the running statement and the connection goes on")
def _():
    key = s1()
    with connect(autocommit=False) as holder, connect() as connection:
        holder.execute(CREDIT, (1, key))
        failed = []
        waiting = threading.Thread(target=lambda: failed.append(error_of(connection.execute, CREDIT, (1, key))))
        waiting.start()
        while waiting.is_alive():  # a cancel before the statement is under way has nothing to cancel
            connection.cancel()
            waiting.join(0.1)
        holder.rollback()
        return [failed, balance(key), connection.execute(CREDIT, (2, key)).rowcount, balance(key)]


@check("large values go both ways")
def _():
    key = s0()
    text, data = "ü☃" * 1_500_000, bytes(range(256)) * 20_000
    with connect() as connection:
        connection.execute("UPDATE account SET name = %s, picture = %b WHERE account_id = %s", (text, data, key))
        name, picture = connection.execute("SELECT name, picture FROM account WHERE account_id = %s", (key,)).fetchone()
        assert name == text and picture == data
        many = connection.execute("SELECT repeat(name, 2) FROM account WHERE account_id = %s", (key,)).fetchone()[0]
        assert many == text * 2
        return connection.execute("SELECT length(name), length(picture) FROM account WHERE account_id = %s",
                                  (key,)).fetchone()


@check("many rows arrive, and a client that stops reading may close")
def _():
    key = s1()
    with connect() as connection:
        rows = connection.execute("SELECT n, repeat('x', 1000) FROM account, generate_series(1, 20000) n"
                                  " WHERE account_id = %s", (key,)).fetchall()
        for row in connection.cursor().stream("SELECT n, repeat('x', 1000) FROM account, generate_series(1, 200000) n"
                                              " WHERE account_id = %s", (key,)):
            break
    return [len(rows), balance(key)]


@check("the asynchronous connection")
def _():
    key = s1()

    async def work():
        async with await psycopg.AsyncConnection.connect(sslmode="require") as connection:
            async with connection.transaction():
                await connection.execute(CREDIT, (3, key))
            rows = []
            async with connection.cursor("reader") as cursor:
                await cursor.execute("SELECT line FROM order_items WHERE account_id = %s", (key,))
                async for row in cursor:
                    rows.append(row[0])
            results = await asyncio.gather(*(one(n) for n in range(8)))
            return [sorted(rows), results]

    async def one(amount):
        async with await psycopg.AsyncConnection.connect(sslmode="require", autocommit=True) as connection:
            await connection.execute(CREDIT, (amount, key))
            return amount

    return [asyncio.run(work()), balance(key)]


@check("a result is described before anything is bound")
def _():
    with connect() as connection:
        connection.pgconn.prepare(b"described", b"SELECT name, balance FROM account WHERE account_id = $1 AND name > $2")
        result = connection.pgconn.describe_prepared(b"described")
        return [result.nparams, [result.param_type(n) for n in range(result.nparams)],
                [[result.fname(n).decode(), result.ftype(n)] for n in range(result.nfields)]]


@check("router: COPY FROM is refused before any data is asked for")
def _():
    with connect() as connection:
        def load():
            with connection.cursor().copy("COPY account (account_id, name) FROM STDIN") as copy:
                copy.write_row((1, "x"))
        seen = error_of(load)[1]
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert seen and seen.startswith("IL0"), seen


@check("router: a pipeline that goes on to the other shard is refused at once, without a sync")
def _():
    here, there = s0(), s1()
    with connect(prepare_threshold=0) as connection:
        with connection.pipeline() as pipeline:
            first = connection.execute(CREDIT + " RETURNING balance", (1, here))
            second = connection.execute(CREDIT + " RETURNING balance", (1, there))
            codes = [error_of(cursor.fetchone)[1] for cursor in (first, second)]  # asks with Flush only
            pipeline.sync()
    # What is sent together is one transaction, and no part of it stays.
    assert "IL011" in codes and (balance(here), balance(there)) == (1000, 1000), codes


@check("router: refusals in a pipeline abort it to the next sync and no further")
def _():
    here = s0()
    with connect() as connection:
        seen = pipeline_error(connection, (CREDIT, (5, here)), ("SELECT balance FROM account", None), (CREDIT, (7, here)))
    assert seen == [["DatabaseError", "IL010"], (1000,), "IDLE"], seen


checks.run()
