"""Statements over all shards and the session around them: permission, transactions, settings, time, clients that
cancel, vanish or dawdle."""

import signal
import subprocess
import threading

import psycopg
import pytest

from support import pgwire as w
from support.control import KEY
from support.pgclient import Closed
from support.router import SLACK, memory_bound
from support.scattered import (BALANCE, FAR, FIRST_PAGE, GROUPS, LARGE, OPTIONS, ORDERED, PAGE, SCATTER, SOME, TOTALS,
                               Locked, settled, waiters)
from support.scattered import module_whole, whole  # noqa: F401  (fixtures)
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = OPTIONS
PLAIN = ORDERED.removeprefix(SCATTER)


# -- permission ----------------------------------------------------------------------------------


def test_a_scatter_that_nobody_has_allowed_is_refused(cluster, whole):
    client = cluster.pg_client()
    answer = client.query(PLAIN).refused("IL010", "I")
    assert "interlock.scatter" in answer.error.fields["H"]
    client.run(PLAIN).refused("IL010", "I")
    client.ok(ORDERED)
    client.query(PLAIN).refused("IL010", "I")
    settled(cluster)


def test_a_session_or_a_transaction_allows_it(cluster, whole):
    def talk(client):
        client.ok("SET interlock.scatter = on")
        assert client.ok("SHOW interlock.scatter").value == "on"
        client.ok(PLAIN)
        client.run(PLAIN).ok()
        client.ok("RESET interlock.scatter")
        client.ok("BEGIN")
        client.ok("SET LOCAL interlock.scatter = on")
        client.ok(PLAIN)
        client.ok("COMMIT")
    whole.both(talk)
    client = cluster.pg_client()
    talk(client)
    client.query(PLAIN).refused("IL010", "I")
    # Between Parse and Bind it counts what is set then.
    client.ok("SET interlock.scatter = on")
    client.ask(w.parse(PLAIN, "s")).ok()
    client.ok("SET interlock.scatter = off")
    client.ask(w.bind([], "s"), w.execute()).refused("IL010", "I")
    client.ok("SET interlock.scatter = on")
    client.ask(w.bind([], "s"), w.execute()).ok()
    cluster.pg_client(options="-c interlock.scatter=on").ok(PLAIN)


def test_where_scatters_are_allowed_the_refusal_says_what_is_in_the_way(cluster, whole):
    client = cluster.pg_client()
    joined = "SELECT a.account_id FROM account a, account b ORDER BY a.account_id LIMIT 3"
    client.query(joined).refused("IL010")
    client.ok("SET interlock.scatter = on")
    assert client.query(joined).codes[0] in ("IL207", "IL010")


@pytest.mark.parametrize("sql", ["EXPLAIN {}", "COPY ({}) TO STDOUT", "DECLARE c CURSOR FOR {}",
                                 "EXPLAIN (ANALYZE) {}"])
def test_what_wraps_a_statement_cannot_be_scattered(cluster, whole, sql):
    client = cluster.pg_client()
    for inner in (PLAIN, FIRST_PAGE):
        client.ok("SET interlock.scatter = on")
        client.ok("BEGIN")
        client.query(sql.format(inner)).refused("IL207", "E")
        client.ok("ROLLBACK")
        client.run(sql.format(inner)).refused("IL207", "I")
    client.ok(PLAIN)
    settled(cluster)


def test_a_scatter_stands_alone_in_its_query(cluster, whole):
    client = cluster.pg_client()
    for sql in (f"{ORDERED}; SELECT 1", f"SELECT 1; {ORDERED}", f"{FIRST_PAGE}; {FIRST_PAGE}",
                f"BEGIN; {ORDERED}"):
        client.query(sql).refused("IL022")
        client.ok("ROLLBACK")
    assert client.ok(ORDERED + ";").status == "I"
    settled(cluster)


# -- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN ISOLATION LEVEL READ COMMITTED", "START TRANSACTION READ ONLY",
                                   "BEGIN READ WRITE"])
def test_a_transaction_that_is_not_on_a_shard_takes_them(cluster, whole, begin):
    def talk(client):
        client.ok(begin)
        for sql in (ORDERED, TOTALS, FIRST_PAGE):
            assert client.ok(sql).status == "T"
            assert client.run(sql).ok().status == "T"
        client.ok("SAVEPOINT a")
        client.ok("SET LOCAL bytea_output = 'escape'")
        client.ok(FIRST_PAGE)
        client.ok("ROLLBACK TO a")
        client.ok(FIRST_PAGE)
        client.ok(BALANCE)
        assert client.ok("COMMIT").tag == "COMMIT"
    whole.both(talk)
    settled(cluster)


def test_a_transaction_that_is_on_a_shard_does_not(cluster, whole):
    client = cluster.pg_client()
    for ask in (client.query, client.run):
        client.ok("BEGIN")
        client.ok(BALANCE)
        ask(ORDERED).refused("IL207", "E")
        client.query(BALANCE).refused("25P02", "E")
        assert client.ok("COMMIT").tag == "ROLLBACK"
    # With a savepoint to go back to, it goes on.
    client.ok("BEGIN")
    client.ok(f"UPDATE account SET balance = 77 WHERE account_id = {KEY}")
    client.ok("SAVEPOINT a")
    client.query(FIRST_PAGE).refused("IL207", "E")
    client.ok("ROLLBACK TO a")
    assert client.value(BALANCE) == "77"
    client.ok("ROLLBACK")
    settled(cluster)


def test_a_transaction_with_one_snapshot_does_not(cluster, whole):
    client = cluster.pg_client()
    for begin in (["BEGIN ISOLATION LEVEL REPEATABLE READ"], ["BEGIN", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"],
                  ["BEGIN", "SET LOCAL transaction_isolation = 'repeatable read'"],
                  ["SET default_transaction_isolation = 'repeatable read'", "BEGIN"]):
        for sql in begin:
            client.ok(sql)
        client.query(ORDERED).refused("IL207", "E")
        client.ok("ROLLBACK")
    # A statement that is a transaction of its own has a snapshot of its own anyway.
    client.ok(ORDERED)
    settled(cluster)


def test_statements_on_one_shard_that_wait_for_the_same_sync_come_behind(cluster, whole):
    client = cluster.pg_client()
    answer = client.ask(w.extended(BALANCE), w.extended(SOME, [0, 3]), w.extended(BALANCE))
    assert answer.codes == ["IL207"] and answer.tags == ["SELECT 1"]
    client.ask(w.extended(SOME, [0, 3]), w.extended(BALANCE)).ok()
    settled(cluster)


def test_a_scatter_reads_only(cluster, whole):
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(ORDERED)
    client.ok(f"UPDATE account SET balance = 5 WHERE account_id = {KEY}")
    client.ok("COMMIT")
    assert cluster.balance(KEY) == 5


# -- settings ------------------------------------------------------------------------------------


def test_settings_reach_every_shard(cluster, whole):
    def talk(client):
        client.ok("SET TimeZone = 'Asia/Tokyo'")
        client.ok("SET bytea_output = 'escape'")
        client.ok(SCATTER + "SELECT account_id, timestamptz '2020-01-01 00:00:00+00', '\\x00ff'::bytea"
                            " FROM account ORDER BY account_id LIMIT 25")
        client.ok(FIRST_PAGE)
    whole.both(talk)


def test_a_session_narrows_the_fan_out(cluster, whole):
    client = cluster.pg_client()
    client.ok("SET interlock.max_fan_out = 1")
    for sql in (ORDERED, FIRST_PAGE, GROUPS):
        client.query(sql).refused("IL203", "I")
        client.run(sql).refused("IL203", "I")
    client.ok("SET interlock.max_fan_out = 1000")
    client.ok(ORDERED)
    client.query("SET interlock.max_fan_out = -1").refused("22023")


def test_the_time_for_a_page_is_bounded_by_the_session(cluster, whole):
    client = cluster.pg_client()
    client.ok("SET interlock.page_timeout = '300ms'")
    with Locked(cluster):
        for ask in (client.query, client.run):
            for sql in (ORDERED, FIRST_PAGE, TOTALS):
                with Stopwatch() as watch:
                    answer = ask(sql).refused("IL204", "I")
                assert 0.25 < watch.seconds < 1.5 * SLACK
                assert "s1" in str(answer.error.fields) and not answer.rows
        wait_until(lambda: waiters(cluster) == 0, 10, "no lock waiter is left")
    client.ok(ORDERED)
    settled(cluster)


@pytest.mark.parametrize("settings, code, word", [
    (["SET statement_timeout = '300ms'"], "57014", "statement timeout"),
    (["SET statement_timeout = '300ms'", "SET interlock.page_timeout = '10s'"], "57014", "statement timeout"),
    (["BEGIN", "SET LOCAL interlock.page_timeout = '300ms'"], "IL204", "s1")])
def test_whose_time_is_up_first_is_told(cluster, whole, settings, code, word):
    client = cluster.pg_client()
    for sql in settings:
        client.ok(sql)
    with Locked(cluster):
        with Stopwatch() as watch:
            answer = client.query(ORDERED).refused(code)
        assert watch.seconds < 2 * SLACK and word in str(answer.error.fields)
        wait_until(lambda: waiters(cluster) == 0, 10, "no lock waiter is left")
    settled(cluster)


def test_the_routers_statement_timeout_holds_for_them(cluster, whole):
    router = cluster.new_router(settings={"pool": {"statement_timeout": "300ms"}}).start()
    client = cluster.pg_client(router)
    with Locked(cluster):
        client.query(ORDERED).refused("IL036", "I")
    assert len(client.ok(ORDERED).rows) == 30
    router.stop()


def test_a_partial_page_says_so_and_has_no_cursor(cluster, whole):
    client = cluster.pg_client()
    client.ok("SET interlock.page_timeout = '300ms'")
    client.ok("SET interlock.partial_pages = on")
    with Locked(cluster):
        for ask in (client.query, client.run):
            answer = ask("SELECT (item).account_id, cursor, complete, missing_shards"
                         " FROM interlock.keyset_page('by_balance', NULL::account, page_size => 10)").ok()
            assert len(answer.rows) == 10
            assert {row[1:] for row in answer.rows} == {(None, b"f", b"{s1}")}
            (notice,) = answer.notices
            assert notice.code == "IL204" and notice.fields["S"] == "NOTICE"
            assert notice.fields["D"] == "missing_shards: s1" and '"s1"' in notice.text
        # Not what is no page, and not one with nobody's permission.
        client.query(ORDERED).refused("IL204", "I")
        client.ok("SET interlock.partial_pages = off")
        client.query(FIRST_PAGE).refused("IL204", "I")
        client.ok("/* interlock: partial */ " + FIRST_PAGE)
        client.ok("SET client_min_messages = warning")
        assert not client.ok("/* interlock: partial */ " + FIRST_PAGE).notices
        wait_until(lambda: waiters(cluster) == 0, 10, "no lock waiter is left")
    client.ok("SET interlock.partial_pages = on")
    assert {row[-2:] for row in client.ok(FIRST_PAGE).rows} == {(b"t", b"{}")}
    settled(cluster)


# -- cancelling, leaving, dawdling ---------------------------------------------------------------


@pytest.mark.parametrize("message", [w.query(ORDERED), w.query(FIRST_PAGE), w.query(TOTALS),
                                     w.extended(SOME, [0, 9]) + w.sync(),
                                     w.parse(SOME) + w.bind([0, 9]) + w.execute() + w.sync()],
                         ids=["ordered", "page", "totals", "described", "not described"])
def test_a_cancel_ends_it_on_every_shard(cluster, whole, message):
    client = cluster.pg_client()
    with Locked(cluster):
        client.send(message)
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        with Stopwatch() as watch:
            client.cancel()
            client.until_ready().refused("57014", "I")
        assert watch.seconds < 2 * SLACK
        wait_until(lambda: waiters(cluster) == 0, 10, "no lock waiter is left")
        settled(cluster)
    assert len(client.ok(ORDERED).rows) == 30
    assert len(cluster.pg_client().ok(ORDERED).rows) == 30


def test_a_cancel_fails_the_transaction_it_is_in(cluster, whole):
    client = cluster.pg_client()
    client.ok("BEGIN")
    with Locked(cluster):
        client.send(w.query(ORDERED))
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        client.cancel()
        client.until_ready().refused("57014", "E")
    client.ok("ROLLBACK")
    assert len(client.ok(ORDERED).rows) == 30


@pytest.mark.parametrize("manner", ["closes", "terminates", "in a transaction", "sends ahead"])
@pytest.mark.parametrize("message", [w.query(FIRST_PAGE), w.extended(SOME, [0, 9]) + w.sync()],
                         ids=["simple", "extended"])
def test_a_client_that_leaves_leaves_nothing_behind(cluster, whole, manner, message):
    client = cluster.pg_client()
    if manner == "in a transaction":
        client.ok("BEGIN")
    with Locked(cluster):
        client.send(message)
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        if manner == "sends ahead":
            client.send(w.query("SELECT 1"))
        (client.terminate if manner == "terminates" else client.close)()
        wait_until(lambda: waiters(cluster) == 0, 10 * SLACK, "no lock waiter is left")
        settled(cluster)
    assert len(cluster.pg_client().ok(ORDERED).rows) == 30


@pytest.fixture(scope="module")
def tls_router(module_cluster):
    folder = module_cluster.base
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048", "-subj",
                    "/CN=localhost", "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
                   check=True, capture_output=True)
    (folder / "tls.key").chmod(0o600)
    settings = {"tls": "require", "tls_cert_file": folder / "tls.crt", "tls_key_file": folder / "tls.key"}
    router = module_cluster.new_router("tls", {"pg": settings}).start()
    yield router
    router.stop()


def test_under_tls_too_a_client_cancels_sends_ahead_and_leaves(cluster, whole, tls_router):
    client = cluster.pg_client(tls_router, tls=True)
    client.ok(ORDERED)
    with Locked(cluster):
        client.send(w.query(ORDERED))
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        client.send(w.query("SELECT 41"))
        client.cancel()
        client.until_ready().refused("57014", "I")
        assert client.until_ready().value == "41"
        wait_until(lambda: waiters(cluster) == 0, 10, "no lock waiter is left")
        client.send(w.extended(SOME, [0, 9]), w.sync())
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        client.send(w.query("SELECT 1"))
        client.close()
        wait_until(lambda: waiters(cluster) == 0, 10 * SLACK, "no lock waiter is left")
    client = cluster.pg_client(tls_router, tls=True)
    assert len(client.ok(LARGE).rows) == 40
    assert len(client.run(SOME, 0, 100).ok().rows) == 40


def test_what_is_sent_ahead_is_answered_afterwards(cluster, whole):
    client = cluster.pg_client()
    with Locked(cluster):
        client.send(w.query(ORDERED))
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        client.send(w.query("SELECT 41"), w.query(ORDERED), w.extended("SELECT 42"), w.sync())
        assert client.silent(0.2)
    assert len(client.until_ready().ok().rows) == 30
    assert client.until_ready().value == "41"
    assert len(client.until_ready().ok().rows) == 30
    assert client.until_ready().value == "42"


def test_a_slow_client_gets_every_row_and_costs_no_memory(cluster, whole):
    big = (SCATTER + "SELECT account_id, repeat('x', 1000000) AS filler FROM account ORDER BY account_id LIMIT 40")
    before = cluster.router.resident_kib()
    client = cluster.pg_client(receive_buffer=4096)
    client.ok("SET interlock.page_timeout = '2s'")
    client.send(w.query(big))
    # Longer than the page may take: the client's own time is not counted.
    peak = []
    stop = threading.Event()

    def look():
        while not stop.wait(0.05):
            peak.append(cluster.router.resident_kib() - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    stop.wait(3)
    answer = client.until_ready(60 * SLACK).ok()
    stop.set()
    watcher.join()
    assert [int(row[0]) for row in answer.rows] == sorted(int(row[0]) for row in answer.rows)
    assert len(answer.rows) == 40 and all(len(row[1]) == 1000000 for row in answer.rows)
    assert max(peak) < memory_bound(16), f"{max(peak)} KiB for 40 MB of rows"
    settled(cluster)


def test_a_client_that_takes_nothing_is_closed_and_the_shards_are_free(cluster, whole):
    router = cluster.new_router(settings={"pg": {"write_timeout": "500ms"}}).start()
    client = cluster.pg_client(router, receive_buffer=4096)
    client.send(w.query(LARGE.replace("200000", "2000000")))
    wait_until(lambda: "did not take its answer in time" in router.log_text(), 20, "the router gives up")
    wait_until(lambda: all(shard["borrowed"] == 0 for shard in router.status().shards.values()), 10)
    try:
        answer = client.until_ready(20)
    except Closed as closed:
        answer = closed.messages
    assert not [message for message in answer if message.kind in "CZ"]
    router.stop()


def test_a_cancel_reaches_a_client_that_dawdles(cluster, whole):
    client = cluster.pg_client(receive_buffer=4096)
    client.send(w.query(LARGE.replace("200000", "2000000")))
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 1, 10, "it runs")
    client.cancel()
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "it ends")
    answer = client.until_ready(30).refused("57014", "I")
    assert not answer.of("C")
    settled(cluster)


def test_a_router_that_is_told_to_stop_finishes_what_is_under_way(cluster, whole):
    router = cluster.new_router().start()
    busy, transaction, idle = (cluster.pg_client(router) for _ in range(3))
    transaction.ok("BEGIN")
    with Locked(cluster):
        busy.send(w.query(ORDERED))
        wait_until(lambda: waiters(cluster) == 1, 10, "it waits")
        router.expected_end = True
        router.send(signal.SIGTERM)
        assert [message.code for message in idle.until_closed(10)] == ["57P01"]
        assert busy.silent(0.2)
    assert len(busy.until_ready().ok().rows) == 30
    assert [message.code for message in busy.until_closed(10)] == ["57P01"]
    # A transaction that had begun goes on to its end.
    assert len(transaction.ok(ORDERED).rows) == 30
    transaction.ok("COMMIT")
    assert router.process.wait(20) == 0


# -- errors behind rows --------------------------------------------------------------------------


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_shard_that_dies_in_mid_answer_is_an_error_and_not_a_short_page(cluster, whole, extended):
    big = LARGE.replace("200000", "2000000")
    client = cluster.pg_client(receive_buffer=4096)
    client.send(w.extended(big) + w.sync() if extended else w.query(big))
    first = client.until("D")
    cluster.s1.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app' AND datname = 'app'"
                   " AND state <> 'idle'", dbname="postgres")
    answer = client.until_ready(30)
    assert len(answer.errors) == 1 and not answer.of("C") and answer.status == "I"
    assert 1 <= len(first.of("D")) + len(answer.rows) < 40
    wait_until(lambda: not client.query(ORDERED).errors, 10, "the shards serve again")
    settled(cluster)


def test_an_error_in_the_last_row_is_an_error(cluster, whole):
    last = max(FAR)
    sql = SCATTER + (f"SELECT account_id, 100 / (account_id - {last}) FROM account WHERE account_id <= {last}"
                     " ORDER BY account_id LIMIT 100")
    for client in (cluster.pg_client(), whole.client()):
        for ask in (client.query, client.run):
            answer = ask(sql).refused("22012", "I")
            assert not answer.of("C")
    settled(cluster)


def test_columns_that_change_under_a_described_statement_are_told(cluster, whole):
    sql = SCATTER + "SELECT * FROM account ORDER BY account_id LIMIT 3"

    def talk(client, everywhere):
        client.ask(w.parse(sql, "s"), w.describe_statement("s")).ok()
        client.ask(w.bind([], "s"), w.execute()).ok()
        everywhere("ALTER TABLE account ADD COLUMN extra int")
        try:
            client.ask(w.bind([], "s"), w.execute()).refused("0A000", "I")
        finally:
            everywhere("ALTER TABLE account DROP COLUMN extra")
        client.ask(w.bind([], "s"), w.execute()).ok()

    def on_shards(text):
        for name in ("s0", "s1"):
            cluster.instances[name].sql(text)

    talk(whole.client(), whole.sql)
    client = cluster.pg_client()
    talk(client, on_shards)
    # A portal, too: the shards are free while its client pauses, and the table with them.
    client.send(w.parse(sql), w.bind(), w.describe_portal(), w.flush())
    client.until("T")
    on_shards("ALTER TABLE account ADD COLUMN extra int")
    try:
        client.send(w.execute(), w.sync())
        client.until_ready().refused("0A000", "I")
    finally:
        on_shards("ALTER TABLE account DROP COLUMN extra")
    assert client.run(sql).kinds == "12TDDDCZ"


# -- drivers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["simple", "unnamed", "named", "binary", "pipeline"])
def test_psycopg_walks_the_pages_in_every_mode(cluster, whole, mode):
    def walk(conninfo):
        factory = psycopg.ClientCursor if mode == "simple" else psycopg.Cursor
        with psycopg.connect(conninfo, autocommit=True, cursor_factory=factory) as connection:
            options = {"simple": {}, "unnamed": {"prepare": False}, "named": {"prepare": True},
                       "binary": {"binary": True, "prepare": True}, "pipeline": {}}[mode]
            found, cursor = [], None
            while True:
                sql = ("SELECT (item).account_id, (item).balance, cursor, complete FROM interlock.keyset_page("
                       "'by_balance', NULL::account, after => %s, page_size => %s)")
                if mode == "pipeline":
                    with connection.pipeline():
                        results = [connection.execute(sql, (cursor, 7)) for _ in range(3)]
                    pages = [result.fetchall() for result in results]
                    assert pages[0] == pages[1] == pages[2]
                    page = pages[0]
                else:
                    page = connection.execute(sql, (cursor, 7), **options).fetchall()
                if not page:
                    return found
                assert all(row[3] for row in page)
                found += [row[:2] for row in page]
                cursor = page[-1][2]

    port = cluster.router.pg_port
    pages = walk(f"host=127.0.0.1 port={port} user=app dbname=app")
    assert pages == walk(f"host=127.0.0.1 port={whole.instance.port} user=app dbname=whole")
    assert len(pages) == 40 and pages == sorted(pages, key=lambda row: (-row[1], row[0]))


def test_a_bound_portal_is_not_read_anew_under_another_search_path(cluster, whole):
    """The text would go to the shards under the new path, with what was found out under the old one."""
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ask(w.parse(ORDERED), w.bind([], portal="p")).ok()
    client.ok("SET search_path = pg_temp, public")
    client.ask(w.execute("p")).refused("0A000", "E")
    client.ok("ROLLBACK")
    client.ok("BEGIN")
    client.ask(w.parse(ORDERED), w.bind([], portal="p")).ok()
    client.ok("SET statement_timeout = '1min'")
    client.ask(w.execute("p")).ok()
    client.ok("ROLLBACK")
    settled(cluster)
