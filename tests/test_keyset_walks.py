"""Keyset pages of the merchants' orders on one PostgreSQL: every row once, whatever the size of the pages."""

import json

import pytest

from support import orders
from support.keysets import Walked, seen_in_order
from support.orders import BUSY, NEWEST_FIRST, TIE

CREATED = "SELECT order_id, created_at FROM orders WHERE merchant_id = 7 {} ORDER BY created_at DESC LIMIT 37"


@pytest.fixture(scope="module")
def all_orders():
    return orders.make_orders()


@pytest.fixture(scope="module")
def connection(instance, all_orders):
    with instance.connect() as connection:
        connection.execute(orders.TABLE)
        orders.load(connection, all_orders)
        connection.execute(orders.INDEX)
        connection.execute("VACUUM ANALYZE orders")
        yield connection


@pytest.fixture(scope="module")
def walked(connection):
    walked = Walked(connection, "orders", "order_id", "bigint")
    walked.declare("newest", NEWEST_FIRST, ["merchant_id"])
    walked.declare("oldest", "created_at, order_id", ["merchant_id"])
    walked.declare("mixed", "created_at DESC, order_id", ["merchant_id"])
    walked.declare("everything", "amount DESC, user_id, order_id DESC", max_page=20_000)
    return walked


def page_of(connection, size, after=None, merchant=BUSY, keyset="newest"):
    return connection.execute(
        "SELECT (p.item).*, p.cursor, p.complete, p.missing_shards"
        " FROM interlock.keyset_page(%s, NULL::orders, %s, %s, NULL, %s) p",
        (keyset, json.dumps({"merchant_id": merchant}), after, size)).fetchall()


def test_the_data_has_the_ties_that_the_tests_are_about(connection, all_orders):
    assert connection.execute("SELECT count(*), count(DISTINCT merchant_id) FROM orders").fetchone() == (12_400, 10)
    assert connection.execute("SELECT count(*) FROM orders WHERE merchant_id = 7 AND created_at = %s",
                              (TIE,)).fetchone()[0] >= 400
    ties = connection.execute("SELECT count(*) - count(DISTINCT created_at) FROM orders WHERE merchant_id = 3").fetchone()
    assert ties[0] > 50
    assert orders.make_orders() == all_orders and orders.make_orders(seed=5) != all_orders


@pytest.mark.parametrize("merchant", [3, BUSY])
@pytest.mark.parametrize("keyset, order", [("newest", NEWEST_FIRST), ("oldest", "created_at, order_id"),
                                           ("mixed", "created_at DESC, order_id")])
def test_walks_of_one_merchant_return_the_full_sort_both_ways(walked, keyset, order, merchant):
    expected = walked.sorted(order, f"merchant_id = {merchant}")
    scope = {"merchant_id": merchant}
    last = walked.connection.execute(
        "SELECT interlock.keyset_cursor(%s, o) FROM orders o WHERE order_id = %s", (keyset, expected[-1])).fetchone()[0]
    for size in (1, 2, 3, 17, 37, 50, 1000):
        assert walked.forward(keyset, size, len(expected), scope) == expected, size
        assert walked.backward(keyset, size, last, len(expected), scope) == expected[:-1], size
    for size in (5, 37, 50):
        walked.zigzag(keyset, size, expected, scope)


def test_every_page_size_from_1_to_60_walks_the_ties_once(walked, all_orders):
    expected = orders.of_merchant(all_orders, BUSY)
    assert expected == walked.sorted(NEWEST_FIRST, "merchant_id = 7")
    for size in range(1, 61):
        assert walked.forward("newest", size, len(expected), {"merchant_id": BUSY}) == expected, size
        assert walked.forward("mixed", size, len(expected), {"merchant_id": BUSY}) == walked.sorted(
            "created_at DESC, order_id", "merchant_id = 7"), size


def test_pages_of_37_have_their_boundaries_inside_the_ties(connection, all_orders):
    tied = {order.order_id for order in all_orders if order.merchant_id == BUSY and order.created_at == TIE}
    pages = seen_in_order(connection, "orders", "newest", {"merchant_id": BUSY}, 37, "order_id")
    inside = sum(before[-1] in tied and after[0] in tied for before, after in zip(pages, pages[1:]))
    assert inside >= 9
    assert sum(pages, []) == orders.of_merchant(all_orders, BUSY)
    assert {len(page) for page in pages[:-1]} == {37}


def test_a_keyset_without_scope_walks_the_whole_table(walked):
    expected = walked.sorted("amount DESC, user_id, order_id DESC")
    assert len(expected) == 12_400
    assert walked.forward("everything", 500, 12_400) == expected
    pages = seen_in_order(walked.connection, "orders", "everything", None, 5000, "order_id")
    assert sum(pages, []) == expected and len(pages) == 3


def test_a_page_has_whole_rows_and_says_that_it_is_complete(connection, all_orders):
    by_number = {order.order_id: order for order in all_orders}
    rows = page_of(connection, 50)
    assert len(rows) == 50
    for *row, cursor, complete, missing in rows:
        order = by_number[row[0]]
        assert row[:4] == [order.order_id, order.user_id, BUSY, order.created_at] and str(row[4]) == order.amount
        assert complete is True and missing == [] and isinstance(cursor, str)
    assert len({row[5] for row in rows}) == 50


def test_the_page_size_is_the_declared_one_unless_given(connection):
    assert len(page_of(connection, None)) == 50
    assert len(page_of(connection, 1000)) == 1000
    assert len(page_of(connection, 1000, after=page_of(connection, 1000)[-1][5])) > 300


def test_scope_values_come_as_any_json_that_reads_as_the_type(connection):
    expected = page_of(connection, 20)
    for spelled in ('{"merchant_id": 7}', '{"merchant_id": "7"}', '{"merchant_id": " 7 "}'):
        rows = connection.execute(
            "SELECT (p.item).*, p.cursor, p.complete, p.missing_shards FROM interlock.keyset_page("
            "'newest', NULL::orders, %s, page_size => 20) p", (spelled,)).fetchall()
        assert rows == expected, spelled


def test_an_empty_scope_value_has_an_empty_page(connection):
    assert page_of(connection, 50, merchant=11) == []


# --- what goes wrong without a total order: these must go wrong, or the tests above prove nothing ----


def by_time_alone(connection, comparison, steps):
    """A cursor of created_at only."""
    seen, rows = [], connection.execute(CREATED.format("")).fetchall()
    for _ in range(steps):
        if not rows:
            break
        seen += [row[0] for row in rows]
        rows = connection.execute(CREATED.format(f"AND created_at {comparison} %s"), (rows[-1][1],)).fetchall()
    return seen


def test_control_a_cursor_of_the_time_alone_loses_rows_at_ties(connection, all_orders):
    expected = orders.of_merchant(all_orders, BUSY)
    seen = by_time_alone(connection, "<", len(expected))
    assert len(set(seen)) == len(seen)
    lost = set(expected) - set(seen)
    assert len(lost) >= 300


def test_control_including_the_time_of_the_cursor_never_moves_on(connection):
    seen = by_time_alone(connection, "<=", 100)
    # Stuck in the 400 ties: the same page again and again.
    assert seen[-37:] == seen[-74:-37] == seen[-111:-74]
    assert len(set(seen)) < len(seen) / 2


# --- what a page costs ----------------------------------------------------------------------------


def buffers(connection, sql, *parameters):
    plan = connection.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, parameters).fetchone()[0][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


PAGE = "SELECT * FROM interlock.keyset_page('{}', NULL::orders, '{{\"merchant_id\": 7}}', %s::text, NULL, {}) p"


@pytest.mark.parametrize("size", [10, 1])
@pytest.mark.parametrize("keyset", ["newest", "oldest", "mixed"])
def test_page_1000_costs_what_page_1_costs(connection, walked, keyset, size):
    order = {"newest": NEWEST_FIRST, "oldest": "created_at, order_id", "mixed": "created_at DESC, order_id"}[keyset]
    expected = walked.sorted(order, "merchant_id = 7")
    if keyset == "mixed":
        connection.execute("CREATE INDEX IF NOT EXISTS orders_mixed ON orders (merchant_id, created_at DESC, order_id)")
    connection.execute("VACUUM orders")
    page = PAGE.format(keyset, size)
    buffers(connection, page, None)
    costs = []
    for position in (None, 99, 499, 999, len(expected) - 20):
        place = None if position is None else connection.execute(
            "SELECT interlock.keyset_cursor(%s, o) FROM orders o WHERE order_id = %s",
            (keyset, expected[position])).fetchone()[0]
        buffers(connection, page, place)
        costs.append(buffers(connection, page, place))
    # The rows of the table and the way down the index; a mixed order reads two or three ranges.
    assert max(costs) <= costs[0] + size + 8, costs
    by_offset = buffers(connection, "SELECT * FROM orders WHERE merchant_id = 7 ORDER BY created_at DESC, order_id DESC"
                                    " OFFSET 1500 LIMIT 10")
    assert by_offset > 5 * max(costs), (by_offset, costs)
