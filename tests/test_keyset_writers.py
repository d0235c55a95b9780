"""What a page promises while others write: what exists throughout comes exactly once, nothing twice, and
what is inserted comes if it lies after the cursor."""

import datetime
import itertools
import json
import random
import threading

import pytest

from support import orders
from support.keysets import seen_in_order
from support.orders import NEWEST_FIRST, Order
from support.wait import wait_until

MERCHANT = 3
SCOPE = {"merchant_id": MERCHANT}
OFFSET_PAGE = ("SELECT order_id FROM orders WHERE merchant_id = 3 ORDER BY created_at DESC, order_id DESC"
               " OFFSET %s LIMIT %s")


@pytest.fixture(scope="module")
def all_orders():
    return orders.make_orders()


@pytest.fixture
def connection(instance, all_orders):
    with instance.connect() as connection:
        connection.execute(orders.TABLE)
        orders.load(connection, all_orders)
        connection.execute(orders.INDEX)
        connection.execute("SELECT interlock.keyset_create('newest', 'orders', '{merchant_id}', %s)", (NEWEST_FIRST,))
        yield connection
        connection.execute("DROP TABLE orders")


def write(connection, order):
    connection.execute("INSERT INTO orders VALUES (%s, %s, %s, %s, %s)",
                       (order.order_id, order.user_id, order.merchant_id, order.created_at, order.amount))


def new_order(number, when):
    return Order(number, 1, MERCHANT, when, "1.00")


def test_inserts_and_deletes_between_the_pages(connection, all_orders):
    mine = {order.order_id: order for order in all_orders if order.merchant_id == MERCHANT}
    expected = orders.of_merchant(all_orders, MERCHANT)
    second = datetime.timedelta(seconds=1)
    events = {}

    def between(pages):
        if len(pages) == 2:
            last, middle = mine[pages[-1][-1]], mine[pages[0][10]]
            newer = new_order(50_001, max(order.created_at for order in mine.values()) + second)
            read_part = new_order(50_002, middle.created_at)
            # Same second as the last row read, an order number that sorts after it: not read yet.
            behind = new_order(-1, last.created_at)
            far_behind = new_order(50_003, min(order.created_at for order in mine.values()))
            unread, already_read = expected[300], pages[0][3]
            for order in (newer, read_part, behind, far_behind):
                write(connection, order)
            connection.execute("DELETE FROM orders WHERE order_id = ANY(%s)", ([unread, already_read],))
            # Not part of the order, so the row is the same to the walk.
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE merchant_id = 3")
            events.update(seen={-1, 50_003}, unseen={50_001, 50_002, unread}, gone={unread}, read=already_read)

    seen = sum(seen_in_order(connection, "orders", "newest", SCOPE, 50, "order_id", between), [])
    assert len(seen) == len(set(seen))
    assert events["seen"] <= set(seen) and not events["unseen"] & set(seen) and events["read"] in seen
    assert [number for number in seen if number in mine] == [n for n in expected if n not in events["gone"]]


def test_a_walk_backwards_keeps_the_contract_too(connection, all_orders):
    expected = orders.of_merchant(all_orders, MERCHANT)
    place = connection.execute("SELECT interlock.keyset_cursor('newest', o) FROM orders o WHERE order_id = %s",
                               (expected[-1],)).fetchone()[0]
    seen, page = [], 0
    while True:
        rows = connection.execute("SELECT (p.item).order_id, p.cursor, (p.item).created_at FROM interlock.keyset_page("
                                  "'newest', NULL::orders, %s, before => %s, page_size => 50) p",
                                  (json.dumps(SCOPE), place)).fetchall()
        if not rows:
            break
        seen = [row[0] for row in rows] + seen
        place = rows[0][1]
        page += 1
        if page == 3:
            write(connection, new_order(60_000, rows[0][2]))   # newer than the page's first row: still to come
            write(connection, new_order(-2, rows[0][2]))       # older: in the part already read
            connection.execute("DELETE FROM orders WHERE order_id = %s", (expected[10],))
    assert 60_000 in seen and -2 not in seen and expected[10] not in seen
    assert [n for n in seen if n != 60_000] == [n for n in expected[:-1] if n != expected[10]]


def test_control_pages_by_offset_repeat_and_lose_rows_under_the_same_writes(connection, all_orders):
    expected, newest = orders.of_merchant(all_orders, MERCHANT), orders.START + datetime.timedelta(days=1)
    seen, deleted = [], set()
    for page in itertools.count():
        rows = connection.execute(OFFSET_PAGE, (page * 50, 50)).fetchall()
        if not rows:
            break
        seen += [row[0] for row in rows]
        if page in (1, 2):
            for number in range(10):
                write(connection, new_order(70_000 + 100 * page + number, newest))
        if page in (5, 6):
            connection.execute("DELETE FROM orders WHERE order_id = ANY(%s)", (expected[page * 10:page * 10 + 30],))
            deleted |= set(expected[page * 10:page * 10 + 30])
    throughout = set(expected) - deleted
    assert len(seen) - len(set(seen)) >= 10, "no row came twice"
    assert len(throughout - set(seen)) >= 10, "no row was lost"


class Writers:
    """Threads that insert, delete and update orders of the merchant until told to stop. Each write is noted with
    what the walk had done when it began and when it was committed."""

    def __init__(self, instance, walk, initial):
        self.walk, self.stop = walk, threading.Event()
        self.inserts, self.deletes, self.faults = [], [], []
        self.numbers = itertools.count(100_000)
        self.steady, *self.victims = initial
        random.Random(1).shuffle(self.victims)
        self.threads = [threading.Thread(target=self.run, args=(instance, seed)) for seed in range(3)]

    def done(self):
        return len(self.inserts) + len(self.deletes)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.faults, self.faults

    def run(self, instance, seed):
        chance = random.Random(seed)
        try:
            with instance.connect() as connection:
                while not self.stop.is_set():
                    began = self.walk.finished
                    if chance.random() < 0.6:
                        number = next(self.numbers) * chance.choice((1, -1))
                        order = new_order(number, orders.START + datetime.timedelta(seconds=chance.randrange(7200)))
                        write(connection, order)
                        self.inserts.append((order, began, self.walk.started))
                    elif self.victims:
                        number = self.victims.pop()
                        connection.execute("DELETE FROM orders WHERE order_id = %s", (number,))
                        self.deletes.append((number, began, self.walk.started))
                    connection.execute("UPDATE orders SET amount = amount + 1 WHERE order_id = %s", (self.steady,))
        except Exception as error:  # noqa: BLE001  (told by the test's own thread)
            self.faults.append(error)


class Walk:
    """Page by page; `started` and `finished` count the pages that were asked for and answered."""

    def __init__(self, connection, size):
        self.connection, self.size = connection, size
        self.started = self.finished = 0
        self.pages, self.places = [], []   # places[n]: where page n ended

    def run(self, writers):
        cursor = None
        while True:
            self.started += 1
            rows = self.connection.execute(
                "SELECT (p.item).order_id, p.cursor, (p.item).created_at FROM interlock.keyset_page("
                "'newest', NULL::orders, %s, %s, NULL, %s) p", (json.dumps(SCOPE), cursor, self.size)).fetchall()
            if not rows:
                self.finished += 1
                return self
            self.pages.append([(row[0], (-row[2].timestamp(), -row[0])) for row in rows])
            self.places.append(self.pages[-1][-1][1])
            cursor = rows[-1][1]
            self.finished += 1
            wanted = writers.done() + 3
            wait_until(lambda: writers.done() >= wanted or writers.faults, 30, "the writers go on")


def check_contract(walk, writers, initial):
    """`initial`: number -> place, of the rows that were there when the walk began."""
    read = [row for page in walk.pages for row in page]
    numbers, places = [row[0] for row in read], [row[1] for row in read]
    assert len(numbers) == len(set(numbers)), "a row came twice"
    assert places == sorted(places), "the pages do not follow the order"
    deleted = {number for number, _, _ in writers.deletes}
    missing = set(initial) - deleted - set(numbers)
    assert not missing, f"lost: {sorted(missing)[:5]}"
    must_see = must_not_see = 0
    seen = set(numbers)
    for number, _, committed in writers.deletes:
        if 0 < committed < len(walk.places) and initial[number] > walk.places[committed - 1]:
            assert number not in seen, f"deleted before it was read, seen: {number}"
    for order, began, committed in writers.inserts:
        # Committed when page `committed` at the latest was being read: the next ones see it if it lies after
        # that page's end. Begun when `began` pages had been answered: it cannot be in them.
        if 0 < committed < len(walk.places) and order.place() > walk.places[committed - 1]:
            must_see += 1
            assert order.order_id in seen, f"inserted after the cursor, not seen: {order}"
        if began and order.place() <= walk.places[min(began, len(walk.places)) - 1]:
            must_not_see += 1
            assert order.order_id not in seen, f"inserted into the part already read, seen: {order}"
    return must_see, must_not_see


@pytest.mark.parametrize("size", [13, 50])
def test_walks_beside_writers_keep_the_contract(instance, connection, all_orders, size):
    initial = {order.order_id: order.place() for order in all_orders if order.merchant_id == MERCHANT}
    walk = Walk(connection, size)
    with Writers(instance, walk, list(initial)[:400]) as writers:
        walk.run(writers)
    must_see, must_not_see = check_contract(walk, writers, initial)
    assert must_see > 10 and must_not_see > 10 and writers.deletes, "the writers did too little to prove anything"


def test_a_page_over_a_null_boundary_is_of_one_snapshot(instance):
    """The page is held up while it reads its second range; meanwhile every row changes its range. Read at different
    moments, rows would come twice."""
    with instance.connect() as connection, instance.connect() as gate, instance.connect(user="app") as reader:
        connection.execute("""
            CREATE TABLE flip (id int PRIMARY KEY, v int);
            CREATE INDEX ON flip (v, id);
            INSERT INTO flip SELECT i, CASE WHEN i % 2 = 0 THEN i END FROM generate_series(1, 60) i;
            CREATE FUNCTION hold_up(id int) RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN
                IF id = 30 THEN
                    PERFORM pg_advisory_lock_shared(7);
                    PERFORM pg_advisory_unlock_shared(7);
                END IF;
                RETURN true;
            END $$;
            GRANT SELECT ON flip TO app;
            ALTER TABLE flip ENABLE ROW LEVEL SECURITY;
            CREATE POLICY hold_up ON flip USING (hold_up(id));
            SELECT interlock.keyset_create('flip', 'flip', '{}', 'v NULLS LAST, id');
        """)
        # A place before all rows: from there a page is read in three ranges, v = 0, v > 0 and v IS NULL.
        place = connection.execute("SELECT interlock.keyset_cursor('flip', ROW(0, 0)::flip)").fetchone()[0]
        pages = []

        def read():
            pages.append(reader.execute("SELECT (item).id, (item).v FROM interlock.keyset_page("
                                        "'flip', NULL::flip, after => %s, page_size => 60)", (place,)).fetchall())

        gate.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: instance.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), 20,
                   "the page is held up")
        connection.execute("UPDATE flip SET v = CASE WHEN v IS NULL THEN id END")
        gate.execute("SELECT pg_advisory_unlock(7)")
        thread.join(30)
        read()
        evens, odds = list(range(2, 61, 2)), list(range(1, 60, 2))
        assert [[row[0] for row in page] for page in pages] == [evens + odds, odds + evens]
        assert [row[1] for row in pages[0]] == evens + [None] * 30
