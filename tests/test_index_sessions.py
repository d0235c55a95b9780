"""Pages from a global index and the session around them: every spelling and protocol, transactions, portals, rights,
settings, clients that cancel or leave, members that stand still."""

import struct

import psycopg
import pytest

from support import pgwire as w
from support.indexed import ENTRIES
from support.order_cluster import newest_first, numbers
from support.router import SLACK
from support.wait import Stopwatch, wait_until

SCATTER = "/* interlock: scatter */ "
CALL = "interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": 3}'"
PAGE = f"SELECT (item).order_id, cursor, complete FROM {CALL}, page_size => 20)"
GIVEN = ("SELECT (p.item).order_id, p.cursor, p.complete FROM interlock.keyset_page($1, NULL::orders, scope => $2,"
         " after => $3, page_size => $4) p")
SCOPE = '{"merchant_id": 3}'
INT4, INT8, TEXT, JSONB = 23, 20, 25, 3802


def truth(indexed, merchant=3):
    return [order.order_id for order in newest_first(indexed.orders, merchant)]


def shown(answer):
    return [int(row[0]) for row in answer.ok().rows]


class Counted:
    """How many pages the router has read from an index in a block."""

    def __init__(self, indexed):
        self.indexed = indexed

    def __enter__(self):
        self.before = self.indexed.counters()["index_pages"]
        return self

    def __exit__(self, *_):
        self.pages = self.indexed.counters()["index_pages"] - self.before


def waiters(indexed):
    return sum(instance.value("SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
                              dbname="postgres") for instance in indexed.instances.values())


def settled(indexed):
    """Every connection is back in its pool, and nothing of the application's runs on any member."""
    def quiet():
        members = indexed.router.status().shards
        return set(members) == {*indexed.shards, "idx"} and \
            all(member["borrowed"] == member["waiting"] == 0 for member in members.values())

    wait_until(quiet, 10 * SLACK, "nothing is borrowed")
    wait_until(lambda: not any(instance.value(
        "SELECT count(*)::int FROM pg_stat_activity WHERE usename = 'app' AND state <> 'idle'", dbname="postgres")
        for instance in indexed.instances.values()), 10 * SLACK, "nothing runs")


class Locked:
    """A table of one member is locked: every page that needs it waits."""

    def __init__(self, indexed, member):
        self.connection = indexed.connect(member, autocommit=False)
        self.table = ENTRIES if member == "idx" else "orders"

    def __enter__(self):
        self.connection.execute(f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE")
        return self

    def __exit__(self, *_):
        self.connection.rollback()


# -- spellings and parameters ---------------------------------------------------------------------

SPELLINGS = [
    f"SELECT * FROM {CALL})",
    f"SELECT (p.item).*, p.cursor FROM {CALL}, page_size => 7) AS p",
    f"SELECT keyset_page.cursor, (keyset_page.item).amount FROM {CALL}, NULL, NULL, 5)",
    "SELECT a.e, (a.b).note, a.c FROM interlock.keyset_page(keyset => 'merchant_orders', row_type => NULL::public.orders,"
    " page_size := 9, scope => jsonb_build_object('merchant_id', 3)) AS a(b, c, d, e)",
    'SELECT "cursor", complete, missing_shards FROM interlock /* ( */ . "keyset_page" ( \'merchant_orders\' , CAST(NULL'
    " AS orders) , $tag${\"merchant_id\": 3}$tag$::jsonb, after => NULL /* ) */ -- )\n ) ;",
    f"select 'größe ' || (item).order_id, upper((item).status), cursor from {CALL.replace('keyset_page', 'KEYSET_PAGE')})",
    "SELECT item, sort_key FROM interlock.keyset_page(E'merchant\\u005forders', NULL::orders, '{\"merchant_id\": 7}')",
    f"SELECT left(cursor, 8), complete::text FROM {CALL})",
    "SELECT * FROM interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": -1}')",
]


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_whatever_the_spelling_the_answer_is_that_of_all_shards(indexed, encoding):
    client = indexed.pg_client(client_encoding=encoding)
    assert client.value("SHOW client_encoding") == encoding
    for sql in SPELLINGS:
        for _ in range(2):  # anew, and from the cache
            with Counted(indexed) as counted:
                answer = client.query(sql)
            assert counted.pages == 1, sql
            assert answer.ok().plain() == client.query(SCATTER + sql).ok().plain(), sql
            assert client.run(sql).ok().plain() == client.run(SCATTER + sql).ok().plain(), sql


PARAMETERS = [
    (GIVEN, ["merchant_orders", SCOPE, None, "11"], {}),
    (GIVEN, ["merchant_orders", SCOPE, None, "11"], {"types": [TEXT, JSONB, TEXT, INT4]}),
    (GIVEN, [b"merchant_orders", b"\1" + SCOPE.encode(), None, struct.pack("!i", 11)],
     {"types": [TEXT, JSONB, TEXT, INT4], "parameter_formats": [1]}),
    (GIVEN, ["merchant_orders", SCOPE, None, None], {"result_formats": [1]}),
    ("SELECT $1::text || (item).order_id, $2::int, cursor, sort_key, complete, missing_shards FROM"
     " interlock.keyset_page('merchant_orders', NULL::orders, jsonb_build_object('merchant_id', $3::bigint),"
     " page_size => $4)", ["x", "5", "3", "6"], {"result_formats": [0, 1, 0, 1, 1, 1]}),
    # One parameter in several places.
    ("SELECT (item).order_id, $2 FROM interlock.keyset_page('merchant_orders', NULL::orders,"
     " jsonb_build_object('merchant_id', $1), page_size => $1)", ["3", "y"], {"types": [INT4]}),
    ("SELECT (item).order_id, $1::int FROM interlock.keyset_page('merchant_orders', NULL::orders, $2, page_size => $1)",
     ["4", SCOPE], {}),
    ("SELECT (item).order_id FROM interlock.keyset_page('merchant_orders', NULL::orders, $1::text::jsonb,"
     " before => $2, page_size => $3::int)", [SCOPE, None, "4"], {}),
]


def test_parameters_reach_the_index_and_the_shards(indexed):
    client = indexed.pg_client()
    for sql, values, options in PARAMETERS:
        with Counted(indexed) as counted:
            answer = client.run(sql, *values, **options).ok()
        assert counted.pages == 1, sql
        assert answer.rows
        assert answer.plain() == client.run(SCATTER + sql, *values, **options).ok().plain(), sql
        named = [w.parse(sql, "s", options.get("types", ())), w.describe_statement("s"),
                 w.bind(values, "s", parameter_formats=options.get("parameter_formats", ()),
                        result_formats=options.get("result_formats", ())), w.execute()]
        assert client.ask(*named).ok().rows == answer.rows, sql
        client.ok("DEALLOCATE s")


def test_wrong_values_are_refused_as_by_all_shards(indexed):
    client = indexed.pg_client()
    call = "SELECT * FROM interlock.keyset_page('merchant_orders', NULL::orders, {})"
    for arguments, code in [("'{\"merchant_id\": 3}', page_size => 0", "22023"),
                            ("'{\"merchant_id\": 3}', page_size => 1001", "IL202"),
                            ("'{\"merchant_id\": 3}', after => 'x'", "IL201"),
                            ("'{\"user_id\": 3}'", None), ("'{}'", None), ("NULL", None), ("'['", "22P02"),
                            ("'{\"merchant_id\": \"x\"}'", None)]:
        index = client.query(call.format(arguments))
        scattered = client.query(SCATTER + call.format(arguments))
        assert index.codes == scattered.codes and len(index.codes) == 1, (index, scattered)
        assert code is None or index.codes == [code], index
    answer = client.run(GIVEN, "merchant_orders", SCOPE, None)
    assert answer.codes == client.run(SCATTER + GIVEN, "merchant_orders", SCOPE, None).codes
    settled(indexed)


def test_cursors_written_into_the_text_cost_no_wrong_edit(indexed):
    """The analysis of one text serves all that differ in their literals, which move everything behind them."""
    client = indexed.pg_client()
    after, walked = "", []
    for step in range(12):
        given = f", after => '{after}'" if after else ", after => NULL"
        rows = client.ok(f"SELECT '{'x' * step}' || (item).order_id, cursor FROM {CALL}{given}, page_size => {20 + step})"
                         ).rows
        walked += [int(row[0].decode().lstrip("x")) for row in rows]
        after = rows[-1][1].decode()
    assert walked == truth(indexed)[:len(walked)] and len(walked) == sum(range(20, 32))


@pytest.mark.parametrize("mode", ["simple", "unnamed", "named", "binary", "pipeline"])
def test_psycopg_walks_in_every_mode(indexed, mode):
    factory = psycopg.ClientCursor if mode == "simple" else psycopg.Cursor
    sql = ("SELECT (item).order_id, (item).created_at, cursor, complete FROM interlock.keyset_page('merchant_orders',"
           " NULL::orders, %s, after => %s, page_size => %s)")
    options = {"unnamed": {"prepare": False}, "named": {"prepare": True},
               "binary": {"binary": True, "prepare": True}}.get(mode, {})
    conninfo = f"host=127.0.0.1 port={indexed.router.pg_port} user=app dbname=app"
    with psycopg.connect(conninfo, autocommit=True, cursor_factory=factory) as connection:
        found, cursor = [], None
        while True:
            if mode == "pipeline":
                with connection.pipeline():
                    results = [connection.execute(sql, (SCOPE, cursor, 300)) for _ in range(3)]
                pages = [result.fetchall() for result in results]
                assert pages[0] == pages[1] == pages[2]
                page = pages[0]
            else:
                page = connection.execute(sql, (SCOPE, cursor, 300), **options).fetchall()
            if not page:
                break
            assert all(row[3] for row in page)
            found += [(row[0], row[1]) for row in page]
            cursor = page[-1][2]
    assert found == [(order.order_id, order.created_at) for order in newest_first(indexed.orders, 3)]


# -- portals --------------------------------------------------------------------------------------


def test_a_portal_gives_its_rows_in_parts(indexed):
    client = indexed.pg_client()
    wanted = truth(indexed)[:20]
    mark = indexed.mark()
    first = client.ask(w.parse(PAGE), w.bind(portal="p"), w.describe_portal("p"), w.execute("p", 6), w.execute("p", 7))
    assert shown(first) == wanted[:13] and first.kinds.count("s") == 2
    client.ok("BEGIN")
    parts = client.ask(w.parse(PAGE), w.bind(portal="p"), w.describe_portal("p")).ok()
    assert parts.kinds == "12TZ"
    assert shown(client.ask(w.execute("p", 6))) == wanted[:6]
    assert shown(client.ask(w.execute("p", 100))) == wanted[6:]
    assert client.ask(w.execute("p")).ok().tag == "SELECT 0"
    client.ok("COMMIT")
    assert indexed.sent(mark)["idx"] <= 3  # a described one may have to be read again
    settled(indexed)


def test_an_empty_page_has_the_same_columns_as_a_full_one(indexed):
    client = indexed.pg_client()
    full = client.query(f"SELECT * FROM {CALL})").ok().of("T")
    empty = client.query("SELECT * FROM interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": -5}')")
    assert not empty.ok().rows
    assert [message.plain() for message in empty.of("T")] == [message.plain() for message in full]


# -- transactions ---------------------------------------------------------------------------------


def test_a_transaction_that_is_on_no_shard_takes_pages_and_stays_on_none(indexed):
    client = indexed.pg_client()
    wanted = truth(indexed)[:20]
    client.ok("BEGIN")
    client.ok("SET LOCAL work_mem = '1MB'")
    for _ in range(3):
        assert shown(client.query(PAGE)) == wanted
    one = indexed.orders[0]
    assert client.value(f"SELECT order_id FROM orders WHERE user_id = {one.user_id} AND order_id = {one.order_id}")
    client.query(PAGE).refused("IL207", "E")
    client.ok("ROLLBACK")
    client.ok("BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.query(PAGE).refused("IL207", "E")
    client.ok("ROLLBACK")
    # What is wrong with a page fails the transaction it is in.
    client.ok("BEGIN")
    client.query(PAGE.replace("20", "0")).refused("22023", "E")
    client.query(PAGE).refused("25P02", "E")
    client.ok("ROLLBACK")
    settled(indexed)


def test_settings_reach_the_index_database(indexed):
    client = indexed.pg_client()
    sql = ("SELECT (item).created_at, $1::timestamptz FROM interlock.keyset_page('merchant_orders', NULL::orders,"
           " jsonb_build_object('merchant_id', extract(hour FROM $2::timestamptz)::int), page_size => 3)")
    # Hour 3 in one time zone is hour 5 in the other: another merchant.
    for zone, merchant in (("UTC", 3), ("Etc/GMT-2", 5)):
        client.ok(f"SET TimeZone = '{zone}'")
        rows = client.run(sql, "2026-01-01 00:00+00", "2026-01-01 03:00+00").ok().rows
        assert rows == client.run(SCATTER + sql, "2026-01-01 00:00+00", "2026-01-01 03:00+00").ok().rows
        wanted = newest_first(indexed.orders, merchant)[0].created_at
        assert client.run("SELECT $1::timestamptz::text", wanted.isoformat()).value == rows[0][0].decode()
    client.ok("SET interlock.max_fan_out = 1")
    client.query(PAGE).refused("IL203", "I")
    client.ok("RESET interlock.max_fan_out")
    client.ok(PAGE)


# -- who cancels, who leaves, what stands still ---------------------------------------------------


@pytest.mark.parametrize("member", ["idx", "s1"])
@pytest.mark.parametrize("message", [w.query(PAGE), w.extended(PAGE) + w.sync(),
                                     w.parse(PAGE) + w.bind() + w.execute() + w.sync()],
                         ids=["simple", "described", "not described"])
def test_a_cancel_ends_the_page_wherever_it_is(indexed, member, message):
    client = indexed.pg_client()
    with Locked(indexed, member):
        client.send(message)
        wait_until(lambda: waiters(indexed) == 1, 10 * SLACK, "it waits")
        with Stopwatch() as watch:
            client.cancel()
            client.until_ready().refused("57014", "I")
        assert watch.seconds < 2 * SLACK
        wait_until(lambda: waiters(indexed) == 0, 10 * SLACK, "no lock waiter is left")
        settled(indexed)
    assert shown(client.query(PAGE)) == truth(indexed)[:20]


@pytest.mark.parametrize("member", ["idx", "s1"])
@pytest.mark.parametrize("manner", ["closes", "terminates", "in a transaction", "sends ahead"])
def test_a_client_that_leaves_leaves_nothing_behind(indexed, member, manner):
    client = indexed.pg_client()
    if manner == "in a transaction":
        client.ok("BEGIN")
    with Locked(indexed, member):
        client.send(w.query(PAGE))
        wait_until(lambda: waiters(indexed) == 1, 10 * SLACK, "it waits")
        if manner == "sends ahead":
            client.send(w.query("SELECT 1"))
        (client.terminate if manner == "terminates" else client.close)()
        wait_until(lambda: waiters(indexed) == 0, 10 * SLACK, "no lock waiter is left")
        settled(indexed)
    assert shown(indexed.pg_client().query(PAGE)) == truth(indexed)[:20]


def test_an_index_database_that_stands_still_is_late_and_holds_nothing_else_up(indexed):
    client, other = indexed.pg_client(), indexed.pg_client()
    client.ok(PAGE)
    client.ok("SET interlock.page_timeout = '300ms'")
    indexed.idx.freeze()
    try:
        with Stopwatch() as watch:
            answer = client.query(PAGE).refused("IL204", "I")
        assert watch.seconds < 3 * SLACK
        assert '"idx"' in answer.error.text and "merchant_orders" in answer.error.fields["D"]
        assert "scatter" in answer.error.fields["H"]
        assert shown(other.query(SCATTER + PAGE)) == truth(indexed)[:20]
        user = indexed.orders[0].user_id
        other.ok(f"SELECT count(*) FROM orders WHERE user_id = {user}")
    finally:
        indexed.idx.thaw()
    client.ok("SET interlock.page_timeout = '10s'")
    wait_until(lambda: not client.query(PAGE).errors, 20 * SLACK, "index pages are back")
    settled(indexed)


def test_an_index_database_that_is_gone_is_named_and_back_without_help(indexed):
    client = indexed.pg_client()
    client.ok(PAGE)
    indexed.idx.kill()
    try:
        answer = client.query(PAGE)
        answer.refused("IL030", "I")
        assert "idx" in answer.error.text and "merchant_orders" in answer.error.fields["D"], answer
        assert shown(client.query(SCATTER + PAGE)) == truth(indexed)[:20]
        line = indexed.client().q("SELECT * FROM interlock.keyset_page(?, NULL::orders, ?)", "merchant_orders", SCOPE)
        assert line.code == "R30" and "idx" in line.raw, line
    finally:
        indexed.idx.restart("immediate")
    wait_until(lambda: not client.query(PAGE).errors, 20 * SLACK, "index pages are back")
    settled(indexed)


def test_an_index_that_its_database_does_not_know_is_no_reason_to_fail(indexed):
    """As when it was dropped, and the router has not heard of it yet."""
    client = indexed.pg_client()
    indexed.idx.sql(f"ALTER TABLE {ENTRIES} RENAME TO away")
    try:
        mark = indexed.mark()
        for ask in (client.query, client.run):
            assert shown(ask(PAGE)) == truth(indexed)[:20]
        line = indexed.client().q("SELECT * FROM interlock.keyset_page(?, NULL::orders, ?)", "merchant_orders", SCOPE)
        assert line.ok and len(line.rows) == 50
        assert [indexed.sent(mark)[shard] for shard in indexed.shards] == [3, 3, 3]
    finally:
        indexed.idx.sql(f"ALTER TABLE {ENTRIES.replace('merchant_orders', 'away')} RENAME TO merchant_orders")
    settled(indexed)
    mark = indexed.mark()
    assert shown(client.query(PAGE)) == truth(indexed)[:20]
    assert indexed.sent(mark)["idx"] == 1


def test_many_pages_on_small_pools_neither_deadlock_nor_exceed_them(indexed):
    router = indexed.new_router("small", {"pool": {"size": 1}}).start()
    clients = [indexed.pg_client(router) for _ in range(12)]
    wanted = truth(indexed)[:20]
    for _ in range(5):
        for client in clients:
            client.send(w.query(PAGE))
        for client in clients:
            assert shown(client.until_ready()) == wanted
    assert all(member["created"] == 1 for member in router.status().shards.values())
    router.stop()


# -- rights ---------------------------------------------------------------------------------------


def test_who_may_not_read_the_index_is_told_so(indexed):
    indexed.idx.sql(f"REVOKE SELECT ON {ENTRIES} FROM app")
    try:
        client = indexed.pg_client()
        answer = client.query(PAGE).refused("42501", "I")
        assert "idx" in answer.error.fields["D"], answer
        assert shown(client.query(SCATTER + PAGE)) == truth(indexed)[:20]
    finally:
        indexed.idx.sql(f"GRANT SELECT ON {ENTRIES} TO app")
    assert shown(indexed.pg_client().query(PAGE)) == truth(indexed)[:20]


def test_rows_are_read_with_the_readers_own_rights(indexed):
    """Row security of the shards holds for pages from an index."""
    for shard in indexed.shards:
        indexed.instances[shard].sql("CREATE POLICY seen ON orders FOR SELECT TO app USING (quantity < 5);"
                                     "ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    try:
        client = indexed.pg_client()
        wanted = [order.order_id for order in newest_first(indexed.orders, 3) if order.quantity < 5]
        pages, after = [], None
        while True:
            page = indexed.pages(client).page(after=after, size=50)
            if not page.rows:
                break
            pages.append(page)
            after = page.cursors[-1]
        assert numbers(pages) == wanted
    finally:
        for shard in indexed.shards:
            indexed.instances[shard].sql("ALTER TABLE orders DISABLE ROW LEVEL SECURITY; DROP POLICY seen ON orders")
