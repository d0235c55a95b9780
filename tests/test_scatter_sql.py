"""Plain SELECTs over all shards: what is allowed answers as one database would, everything else is refused."""

import pytest

from support import pgwire as w
from support.order_cluster import newest_first
from support.router import SLACK
from support.wait import wait_until

HINT = "/* interlock: scatter */ "
NEWEST = "SELECT order_id, created_at, note FROM orders ORDER BY created_at DESC, order_id DESC LIMIT 20"


@pytest.fixture
def client(orders):
    """One that scatters whatever can be scattered."""
    client = orders.pg_client()
    client.ok("SET interlock.scatter = on")
    return client


def same(orders, client, text, *parameters, in_order=True, **options):
    """The router and the database that holds everything give the same columns, rows and tag."""
    control = orders.whole_client()
    if parameters or options:
        here, there = client.run(text, *parameters, **options).ok(), control.run(text, *parameters, **options).ok()
    else:
        here, there = client.query(text).ok(), control.query(text).ok()

    def columns(answer):
        return [(c.name, c.type, c.size, c.modifier, c.format) for m in answer.of("T") for c in m.columns]

    assert columns(here) == columns(there)
    if in_order:
        assert here.rows == there.rows
    else:
        assert sorted(map(repr, here.rows)) == sorted(map(repr, there.rows))
    assert here.tag == there.tag and here.status == there.status == "I"
    return here


# -- allowed or not -------------------------------------------------------------------------------


def test_without_leave_a_statement_without_a_key_is_refused_and_told_how(orders):
    client = orders.pg_client()
    mark = orders.mark()
    for text in (NEWEST, "SELECT count(*) FROM orders", "SELECT status, count(*) FROM orders GROUP BY status"):
        for ask in (client.query, client.run):
            refusal = ask(text).refused("IL010", "I").error
            assert "interlock.scatter" in refusal.fields["H"] or "interlock: scatter" in refusal.fields["H"]
    assert sum(orders.issued(mark, "FROM orders").values()) == 0
    # By the session, by the statement.
    client.ok("SET interlock.scatter = on")
    assert client.ok(NEWEST).tag == "SELECT 20"
    client.ok("RESET interlock.scatter")
    client.query(NEWEST).refused("IL010")
    assert client.ok(HINT + NEWEST).tag == "SELECT 20"
    client.query(NEWEST).refused("IL010")
    client.ok("BEGIN")
    client.ok("SET LOCAL interlock.scatter = on")
    assert client.ok(NEWEST).tag == "SELECT 20"
    client.ok("COMMIT")
    client.query(NEWEST).refused("IL010")


def test_one_statement_goes_to_each_shard_and_fetches_no_more_than_the_limit(orders, client):
    orders.forget_counts()
    mark = orders.mark()
    same(orders, client, NEWEST)
    assert orders.issued(mark, "FROM orders") == dict.fromkeys(orders.shards, 1)
    assert orders.fetched("FROM orders") <= 60
    # With a key it is still one shard's.
    mark = orders.mark()
    assert client.ok("SELECT order_id FROM orders WHERE user_id = 5 ORDER BY order_id LIMIT 3").rows
    assert sum(orders.issued(mark, "FROM orders").values()) == 1


def test_writes_never_scatter(orders, client):
    mark = orders.mark()
    for text in ("UPDATE orders SET note = 'x'", "DELETE FROM orders WHERE order_id = 1",
                 "UPDATE orders SET note = 'x' WHERE order_id = 5 RETURNING *",
                 "SELECT * FROM orders ORDER BY order_id LIMIT 1 FOR UPDATE",
                 "SELECT * FROM orders ORDER BY order_id LIMIT 1 FOR KEY SHARE",
                 "WITH gone AS (DELETE FROM orders RETURNING *) SELECT count(*) FROM gone",
                 "INSERT INTO orders SELECT * FROM orders ORDER BY order_id LIMIT 1"):
        for ask in (client.query, client.run):
            for hint in ("", HINT):
                answer = ask(hint + text)
                assert len(answer.errors) == 1 and answer.error.code.startswith("IL"), (text, answer)
    assert sum(orders.issued(mark, "orders").values()) == 0


# -- ordered --------------------------------------------------------------------------------------

ORDERED = [
    NEWEST,
    "SELECT order_id FROM orders ORDER BY order_id LIMIT 1000",
    "SELECT order_id FROM orders ORDER BY 1 DESC LIMIT 7",
    "SELECT order_id AS n, amount FROM orders ORDER BY n FETCH FIRST 5 ROWS ONLY",
    "SELECT order_id FROM orders ORDER BY order_id FETCH FIRST 1 ROW ONLY",
    "SELECT order_id, amount FROM orders ORDER BY amount, order_id LIMIT 50",
    "SELECT order_id, amount FROM orders ORDER BY amount DESC, order_id LIMIT 50 OFFSET 5990",
    "SELECT order_id, amount FROM orders ORDER BY amount DESC NULLS LAST, order_id DESC LIMIT 50 OFFSET 333",
    "SELECT order_id, amount FROM orders ORDER BY amount NULLS FIRST, order_id LIMIT 50 OFFSET 6000",
    "SELECT order_id FROM orders ORDER BY order_id LIMIT 0",
    "SELECT order_id FROM orders WHERE order_id > 12000 ORDER BY order_id LIMIT 5 OFFSET 398",
    "SELECT order_id FROM orders WHERE order_id > 12000 ORDER BY order_id LIMIT 5 OFFSET 400",
    "SELECT o.order_id, upper(o.status) AS s, o.amount * 2 FROM orders o WHERE o.merchant_id = 3 AND o.amount > 500"
    " ORDER BY o.created_at, o.order_id LIMIT 30",
    "SELECT order_id FROM orders WHERE status = 'new' OR merchant_id = 7 ORDER BY status, order_id LIMIT 100",
    "SELECT order_id FROM orders WHERE note IS NULL ORDER BY length(status), lower(note), order_id LIMIT 40",
    "SELECT order_id, quantity * 10 AS q FROM orders ORDER BY q DESC, order_id LIMIT 25",
    "SELECT order_id FROM orders ORDER BY quantity % 3, amount + quantity DESC NULLS LAST, order_id LIMIT 25",
    "SELECT *  FROM orders ORDER BY order_id LIMIT 3",
    "SELECT orders.* FROM public.orders WHERE created_at >= '2024-05-01 13:00+00' ORDER BY created_at, order_id LIMIT 9",
    "SELECT 1 FROM orders ORDER BY order_id LIMIT 3",
    "SELECT order_id /* a comment */ FROM orders -- another\n ORDER BY order_id LIMIT 3 -- last",
    "SELECT order_id FROM orders WHERE note LIKE '%''%' OR note = $$a$$ ORDER BY order_id LIMIT 3",
    "SELECT weight FROM orders ORDER BY weight, order_id LIMIT 40",
]


@pytest.mark.parametrize("text", ORDERED)
def test_ordered_statements_answer_as_one_database(orders, client, text):
    same(orders, client, text)
    control = orders.whole_client()
    for formats in ((0,), (1,)):
        here, there = (each.run(text, result_formats=formats).ok() for each in (client, control))
        assert here.rows == there.rows and here.kinds == there.kinds


def test_limits_and_conditions_may_be_parameters(orders, client):
    text = ("SELECT order_id, created_at FROM orders WHERE merchant_id = $1 AND created_at < $2"
            " ORDER BY created_at DESC, order_id DESC LIMIT $3 OFFSET $4")
    control = orders.whole_client()
    for limit, offset in ((10, 0), (10, 30), (0, 0), (500, 100), (7, None), (10, 5000)):
        given = (7, "2024-05-01 13:30+00", limit, offset)
        here, there = client.run(text, *given).ok(), control.run(text, *given).ok()
        assert here.rows == there.rows and here.kinds == there.kinds and here.tag == there.tag
    answer = client.ask(w.parse(text, "s"), w.describe_statement("s")).ok()
    there = control.ask(w.parse(text, "s"), w.describe_statement("s")).ok()
    assert answer.of("t")[0].parts == there.of("t")[0].parts
    assert [c.name for c in answer.of("T")[0].columns] == ["order_id", "created_at"]
    for limit in (3, 5):
        here, there = (each.ask(w.bind((7, "2024-05-01 13:30+00", limit, 1), "s"), w.execute()).ok()
                       for each in (client, control))
        assert here.rows == there.rows
    # In binary, too.
    given = (b"\0\0\0\0\0\0\0\7", "2024-05-01 13:30+00", b"\0\0\0\0\0\0\0\4", b"\0\0\0\0\0\0\0\2")
    here, there = (each.run(text, *given, parameter_formats=(1, 0, 1, 1)).ok() for each in (client, control))
    assert here.rows == there.rows and len(here.rows) == 4
    for limit in (-1, "x", 99999999999999999999):
        here, there = (each.run(text, 7, "2024-05-01 13:30+00", limit, 0) for each in (client, control))
        # What the router reads itself and cannot, it says in its own words.
        assert here.codes in (there.codes, ["IL027"]) and len(here.codes) == 1, limit


REFUSED = {
    # Not a total order: rows with equal places would come in any order.
    "SELECT * FROM orders ORDER BY created_at LIMIT 5": {"IL205"},
    "SELECT * FROM orders ORDER BY amount + order_id LIMIT 5": {"IL205"},
    "SELECT * FROM orders ORDER BY created_at, user_id LIMIT 5": {"IL205"},
    "SELECT order_id % 7 AS order_id FROM orders ORDER BY order_id LIMIT 5": {"IL205", "IL207"},
    # Without an end.
    "SELECT * FROM orders ORDER BY order_id": {"IL207", "IL010", "IL209"},
    "SELECT * FROM orders ORDER BY order_id LIMIT ALL": {"IL207", "IL010", "IL209"},
    "SELECT * FROM orders LIMIT 5": {"IL207", "IL010", "IL205"},
    "SELECT * FROM orders": {"IL207", "IL010"},
    "SELECT * FROM orders ORDER BY order_id FETCH FIRST 5 ROWS WITH TIES": {"IL207", "IL010"},
    # Over budget.
    "SELECT * FROM orders ORDER BY order_id LIMIT 10001": {"IL209"},
    "SELECT * FROM orders ORDER BY order_id LIMIT 1 OFFSET 10000": {"IL209"},
    "SELECT * FROM orders ORDER BY order_id LIMIT 9223372036854775807 OFFSET 9223372036854775807": {"IL209"},
    # What the shards' answers do not add up to.
    "SELECT DISTINCT status FROM orders ORDER BY status LIMIT 5": {"IL207", "IL010"},
    "SELECT order_id, rank() OVER (ORDER BY order_id) FROM orders ORDER BY order_id LIMIT 5": {"IL207", "IL010"},
    "SELECT count(*) FROM orders HAVING count(*) > 1": {"IL207", "IL010"},
    "SELECT status, count(*) FROM orders GROUP BY status HAVING count(*) > 1": {"IL207", "IL010"},
    "SELECT status, count(*) FROM orders GROUP BY status ORDER BY count(*) LIMIT 5": {"IL207", "IL010"},
    "SELECT count(DISTINCT status) FROM orders": {"IL207", "IL010"},
    "SELECT count(*) + 1 FROM orders": {"IL207", "IL010"},
    "SELECT string_agg(status, ',') FROM orders": {"IL207", "IL010"},
    "SELECT stddev(amount) FROM orders": {"IL207", "IL010"},
    "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY amount) FROM orders": {"IL207", "IL010"},
    "SELECT status, merchant_id, count(*) FROM orders GROUP BY ROLLUP (status, merchant_id)": {"IL207", "IL010"},
    "SELECT sum(weight) FROM orders": {"IL207"},
    "SELECT avg(weight) FROM orders": {"IL207"},
    "SELECT order_id FROM orders UNION SELECT 1 ORDER BY order_id LIMIT 5": {"IL207", "IL010", "IL021"},
    "SELECT (SELECT 1) FROM orders ORDER BY order_id LIMIT 5": {"IL207", "IL010", "IL021"},
    "SELECT o.order_id FROM orders o JOIN orders p USING (order_id) ORDER BY 1 LIMIT 5": {"IL207", "IL010", "IL020"},
    "WITH o AS (SELECT * FROM orders) SELECT * FROM o ORDER BY order_id LIMIT 5": {"IL207", "IL010", "IL021"},
    "SELECT random() FROM orders ORDER BY order_id LIMIT 5": {"IL207", "IL010"},
    "SELECT order_id FROM orders ORDER BY random(), order_id LIMIT 5": {"IL207", "IL010"},
    "SELECT order_id FROM orders TABLESAMPLE SYSTEM (10) ORDER BY order_id LIMIT 5": {"IL207", "IL010"},
    "SELECT ctid FROM orders ORDER BY order_id LIMIT 5": {"IL207", "IL010"},
    "SELECT generate_series(1, 2) FROM orders ORDER BY order_id LIMIT 5": {"IL207", "IL010"},
    "SELECT order_id FROM ONLY orders ORDER BY order_id LIMIT 5": None,  # may be right, must not be wrong
    "SELECT order_id FROM orders ORDER BY order_id USING > LIMIT 5": None,
    "SELECT order_id FROM orders ORDER BY order_id LIMIT 2 + 3": None,
    "SELECT order_id FROM orders ORDER BY order_id FETCH FIRST ROW ONLY": None,
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_answered_exactly_is_refused(orders, client, text):
    control = orders.whole_client()
    for ask, of in ((client.query, control.query), (client.run, control.run)):
        for hint in ("", HINT):
            mark = orders.mark()
            answer = ask(hint + text)
            if REFUSED[text] is None and not answer.errors:
                assert answer.rows == of(text).ok().rows
                continue
            assert len(answer.errors) == 1 and answer.status == "I", answer
            assert answer.error.code in (REFUSED[text] or {"IL207", "IL010"}), answer.error
            assert not answer.rows
            if answer.error.code != "IL207":
                assert sum(orders.issued(mark, text[:16]).values()) == 0, "nothing was sent"


def test_errors_of_the_statement_itself_are_postgresqls(orders, client):
    control = orders.whole_client()
    for text in ("SELECT nothing FROM orders ORDER BY order_id LIMIT 5",
                 "SELECT order_id / (quantity - quantity) FROM orders ORDER BY order_id LIMIT 5",
                 "SELECT order_id FROM orders WHERE amount > 'x' ORDER BY order_id LIMIT 5",
                 "SELECT sum(status) FROM orders",
                 "SELECT order_id FROM orders ORDER BY order_id LIMIT -1",
                 "SELECT order_id FROM orders ORDER BY order_id LIMIT 5 OFFSET -1"):
        here, there = client.query(text), control.query(text)
        assert here.codes == there.codes or here.codes in (["IL026"], ["IL207"]), (text, here)
        assert len(here.codes) == 1 and here.status == "I"


# -- aggregates -----------------------------------------------------------------------------------

AGGREGATES = [
    "SELECT count(*) FROM orders",
    "SELECT count(*) AS n, count(amount), sum(amount), min(amount), max(amount), avg(amount) FROM orders",
    "SELECT sum(quantity), avg(quantity), min(quantity), max(quantity), sum(order_id), avg(order_id) FROM orders",
    "SELECT min(created_at), max(created_at), min(status), max(note), min(weight), max(weight) FROM orders",
    "SELECT count(*) FILTER (WHERE status = 'new'), sum(amount) FILTER (WHERE merchant_id = 7) FROM orders",
    "SELECT count(*), sum(amount), avg(amount), max(amount), min(note) FROM orders WHERE merchant_id = 4711",
    "SELECT sum(amount) FROM orders WHERE merchant_id = 3 AND quantity > 5",
    "SELECT max(order_id) FROM orders WHERE status <> 'new'",
]
GROUPED = [
    "SELECT status, count(*) FROM orders GROUP BY status",
    "SELECT merchant_id, count(*), sum(amount), avg(amount), min(created_at), max(note) FROM orders GROUP BY merchant_id",
    "SELECT status, merchant_id, count(*) FROM orders GROUP BY status, merchant_id",
    "SELECT count(*), avg(quantity) FROM orders GROUP BY merchant_id",
    "SELECT note, count(*) FROM orders WHERE merchant_id = 3 GROUP BY note",
    "SELECT amount, count(*) FROM orders WHERE quantity = 3 GROUP BY amount",
    "SELECT quantity % 3 AS rest, sum(amount) FROM orders GROUP BY quantity % 3",
    "SELECT status, count(*) FROM orders WHERE merchant_id = 4711 GROUP BY status",
    "SELECT user_id, count(*) FROM orders GROUP BY user_id",
]
GROUPED_IN_ORDER = [
    "SELECT status, count(*) FROM orders GROUP BY status ORDER BY status",
    "SELECT status, count(*) FROM orders GROUP BY status ORDER BY status DESC LIMIT 2",
    "SELECT merchant_id, status, sum(quantity) FROM orders GROUP BY merchant_id, status"
    " ORDER BY status DESC, merchant_id LIMIT 10",
    "SELECT note, count(*) FROM orders GROUP BY note ORDER BY note NULLS FIRST LIMIT 30",
]


@pytest.mark.parametrize("text", AGGREGATES + GROUPED_IN_ORDER)
def test_aggregates_answer_as_one_database(orders, client, text):
    same(orders, client, text)


@pytest.mark.parametrize("text", GROUPED)
def test_groups_answer_as_one_database(orders, client, text):
    same(orders, client, text, in_order=False)


def test_more_groups_than_the_budget_are_refused(orders):
    few = orders.new_router("groups", {"scatter": {"max_groups": 100}}).start()
    client = few.pg_client()
    orders.clients.append(client)
    assert len(client.ok(HINT + "SELECT merchant_id, count(*) FROM orders GROUP BY merchant_id").rows) == 10
    answer = client.query(HINT + "SELECT user_id, count(*) FROM orders GROUP BY user_id")
    assert answer.codes == ["IL209"] and answer.status == "I"
    assert len(client.ok(HINT + "SELECT merchant_id, count(*) FROM orders GROUP BY merchant_id").rows) == 10
    few.stop()
    orders.routers.remove(few)


# -- transactions and rounds ----------------------------------------------------------------------


def test_a_transaction_that_is_not_bound_to_a_shard_may_scatter(orders, client):
    text = "SELECT count(*) FROM orders"
    for begin in ("BEGIN", "BEGIN READ ONLY", "START TRANSACTION ISOLATION LEVEL READ COMMITTED"):
        assert client.ok(begin).status == "T"
        answer = client.ok(text)
        assert answer.value == "12400" and answer.status == "T"
        assert orders.pages(client).page(size=20).answer.status == "T"
        # And may then be bound.
        assert client.ok("SELECT count(*) FROM orders WHERE user_id = 5").status == "T"
        refusal = client.query(text).refused("IL207", "E").error
        assert refusal.fields["H"]
        client.ok("ROLLBACK")
    # A connection is cleaned after the client has its answer.
    wait_until(lambda: all(shard["borrowed"] == 0 for shard in orders.router.status().shards.values()), 10 * SLACK, "all given back")


def test_a_transaction_with_one_snapshot_may_not_scatter(orders, client):
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        client.ok(f"BEGIN ISOLATION LEVEL {level}")
        refusal = client.query("SELECT count(*) FROM orders").refused("IL207", "E").error
        assert refusal.fields["H"]
        client.ok("ROLLBACK")


def test_a_statement_that_fails_fails_the_transaction(orders, client):
    client.ok("BEGIN")
    client.query("SELECT order_id / 0 FROM orders ORDER BY order_id LIMIT 5").refused("22012", "E")
    client.query("SELECT count(*) FROM orders").refused("25P02", "E")
    assert client.ok("ROLLBACK").status == "I"
    client.ok("BEGIN")
    client.query("SELECT order_id FROM orders ORDER BY created_at LIMIT 5").refused("IL205", "E")
    client.ok("ROLLBACK")
    assert client.value("SELECT count(*) FROM orders") == "12400"


def test_settings_of_the_session_and_the_transaction_are_in_force_on_every_shard(orders, client):
    text = "SELECT order_id, created_at FROM orders ORDER BY order_id LIMIT 30"
    control = orders.whole_client()
    for each in (client, control):
        each.ok("SET timezone = 'America/New_York'")
    assert client.ok(text).rows == control.ok(text).rows
    for each in (client, control):
        each.ok("BEGIN")
        each.ok("SET LOCAL timezone = 'Asia/Tokyo'")
    assert client.ok(text).rows == control.ok(text).rows
    for each in (client, control):
        each.ok("COMMIT")
    assert client.ok(text).rows == control.ok(text).rows
    # What went over the same backends for others is not changed by it.
    other, plain = orders.pg_client(), orders.whole_client()
    for _ in range(4):
        assert other.ok(HINT + text).rows == plain.ok(text).rows


def test_scatters_in_a_pipeline_are_answered_in_turn(orders, client):
    count = w.parse("SELECT count(*) FROM orders") + w.bind() + w.execute()
    first = w.parse("SELECT min(order_id) FROM orders") + w.bind() + w.execute()
    client.send(count, w.sync(), first, w.sync(), count, w.sync())
    assert [client.until_ready().ok().value for _ in range(3)] == ["12400", "1", "12400"]
    # Within one round: a round is a transaction, and this one is bound to no shard.
    answer = client.ask(count, first)
    assert [row[0] for row in answer.rows] == [b"12400", b"1"] or answer.codes == ["IL207"], answer
    assert client.value("SELECT count(*) FROM orders") == "12400"
    bound = w.parse("SELECT count(*) FROM orders WHERE user_id = 5") + w.bind() + w.execute()
    answer = client.ask(bound, count)
    assert answer.codes in ([], ["IL207"]) and answer.status == "I"
    assert client.value("SELECT count(*) FROM orders") == "12400"


def test_a_scatter_stands_alone_in_its_query_string(orders, client):
    for text in ("SELECT count(*) FROM orders; SELECT max(order_id) FROM orders", f"SELECT 1; {NEWEST}"):
        client.query(text).refused("IL022", "I")
    assert client.value("SELECT count(*) FROM orders") == "12400"


def test_copy_and_cursors_do_not_scatter(orders, client):
    for text in (f"COPY ({NEWEST}) TO STDOUT", f"PREPARE p AS {NEWEST}", f"CREATE TABLE t AS {NEWEST}",
                 f"EXPLAIN ANALYZE {NEWEST}"):
        answer = client.query(text)
        assert len(answer.errors) == 1 and answer.error.code.startswith(("IL", "0A")), (text, answer)
    client.ok("BEGIN")
    answer = client.query(f"DECLARE c CURSOR FOR {NEWEST}")
    assert len(answer.errors) == 1, answer
    client.ok("ROLLBACK")
    assert client.value("SELECT count(*) FROM orders") == "12400"


# -- the line listener ----------------------------------------------------------------------------


def test_the_line_listener_serves_pages_too(orders):
    line = orders.client()
    text = "SELECT * FROM interlock.keyset_page(?, NULL::orders, ?, ?, ?, ?)"
    scope = '{"merchant_id": 3}'
    after, walked = None, []
    mark = orders.mark()
    pages = 0
    while True:
        answer = line.q(text, "merchant_orders", scope, after, None, 100)
        assert answer.ok, answer.raw
        pages += 1
        walked += [int(row[0].strip("()").split(",")[0]) for row in answer.rows]
        if len(answer.rows) < 100:
            break
        after = answer.rows[-1][1]
    assert walked == [order.order_id for order in newest_first(orders.orders, 3)]
    assert orders.issued(mark) == dict.fromkeys(orders.shards, pages)
    # A cursor is the same over both listeners.
    assert orders.pages().page(after=after, size=100).rows == [str(number) for number in walked[-len(answer.rows):]]
    mark = orders.mark()
    assert line.q(text, "merchant_orders", scope, None, None, 1001).code == "PAGE_TOO_LARGE"
    assert sum(orders.issued(mark).values()) == 0
    assert line.q(text, "merchant_orders", '{"merchant_id": 4}', after, None, 100).code == "BAD_CURSOR"
    assert line.q(text, "merchant_orders", scope, "forged", None, 100).code == "BAD_CURSOR"
