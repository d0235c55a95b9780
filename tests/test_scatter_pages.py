"""Pages of a keyset over three shards: every row once, in order, whatever the page size and whoever writes."""

import threading
import time
from random import Random

import pytest

from support import pgwire as w
from support.order_cluster import Order, mixed_order, newest_first, numbers, single_column_insert
from support.orders import START
from support.router import SLACK

# Sorts a python list as each keyset sorts a merchant's orders.
TRUTH = {"merchant_orders": newest_first, "merchant_mixed": mixed_order}


def ids(orders):
    return [order.order_id for order in orders]


# -- walks over all shards ------------------------------------------------------------------------


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_walk_returns_every_row_once_in_order_with_one_statement_a_page_and_shard(orders, extended):
    pages = orders.pages(extended=extended)
    truth = ids(newest_first(orders.orders, 3))
    orders.forget_counts()
    mark = orders.mark()
    walked, fetched = [], 0
    for page in pages.walk(50):
        walked.append(page)
        if len(walked) <= 3:
            assert orders.fetched() - fetched <= 150
            fetched = orders.fetched()
    assert numbers(walked) == truth
    assert all(page.complete and not page.missing for page in walked)
    assert orders.issued(mark) == dict.fromkeys(orders.shards, len(walked))
    assert orders.fetched() <= 150 * len(walked)


@pytest.mark.parametrize("keyset", TRUTH)
def test_pages_end_inside_ties_without_repeating_or_losing_a_row(orders, keyset):
    walked = list(orders.pages(keyset=keyset, scope={"merchant_id": 7}).walk(37))
    truth = TRUTH[keyset](orders.orders, 7)
    assert numbers(walked) == ids(truth)
    ends = [truth[min(end, len(truth)) - 1:end + 1] for end in range(37, len(truth), 37)]
    inside = [pair for pair in ends if len(pair) == 2 and pair[0].created_at == pair[1].created_at]
    assert len(inside) >= 400 // 37, "page boundaries fall inside the ties"


def created_only(orders, comparison, merchant=7, size=37, limit=80):
    """What people write by hand: a cursor of created_at alone, the shards' answers merged by the client."""
    after, walked = None, []
    connections = [orders.connect(shard) for shard in orders.shards]
    for _ in range(limit):
        found = []
        for connection in connections:
            found += connection.execute(
                f"SELECT created_at, order_id FROM orders WHERE merchant_id = %s AND created_at {comparison} %s"
                " ORDER BY created_at DESC, order_id DESC LIMIT %s",
                (merchant, after or "infinity", size)).fetchall()
        page = sorted(found, reverse=True)[:size]
        walked.append([row[1] for row in page])
        if len(page) < size:
            break
        after = page[-1][0]
    return walked


def test_control_a_cursor_of_a_column_with_ties_loses_rows_or_never_moves_on(orders):
    truth = set(ids(newest_first(orders.orders, 7)))
    lost = truth - {row for page in created_only(orders, "<") for row in page}
    assert len(lost) > 300, "each tie on a boundary loses rows"
    stuck = created_only(orders, "<=")
    assert len(stuck) == 80 and stuck[-1] == stuck[-2], "it never ends"


class Changes:
    """What happens to merchant 3's orders while somebody walks over them, after `page` was read."""

    def __init__(self, orders, read):
        self.first = newest_first(orders.orders, 3)
        self.router = orders.pg_client()
        self.read, self.unread = self.first[:read], self.first[read:]
        spare = iter(range(50_000, 60_000))

        def inserted(when, user, sign=1):
            order = Order(sign * next(spare), user, 3, when, None, 1, None, "new", None)
            assert self.router.ok(single_column_insert(order)).tag == "INSERT 0 1"
            return order

        newest, edge, last = self.first[0], self.first[read - 1], self.first[-1]
        # Users of every shard: what is done to one shard alone could hide behind another.
        users = [next(user for user in range(1, 300) if orders.shard_name(user) == shard) for shard in orders.shards]
        self.newer = [inserted(newest.created_at.replace(hour=20), user) for user in users]
        self.into_read = [inserted(self.first[read // 2].created_at, user) for user in users]
        # Tied with the last row read: the number decides on which side they lie.
        self.at_edge = [inserted(edge.created_at, user, sign) for user in users for sign in (1, -1)]
        self.behind = [inserted(self.first[read + 100].created_at, user) for user in users]
        self.behind += [inserted(last.created_at.replace(hour=3), user) for user in users]
        self.deleted_unread = self.unread[40:340:7]
        self.deleted_read = self.read[::5]
        for order in self.deleted_unread + self.deleted_read:
            tag = self.router.ok(f"DELETE FROM orders WHERE user_id = {order.user_id}"
                                 f" AND order_id = {order.order_id}").tag
            assert tag == "DELETE 1"


def test_a_walk_meets_inserts_and_deletes_as_the_contract_says(changed_orders):
    pages = changed_orders.pages()
    walk = pages.walk(50)
    walked = [next(walk) for _ in range(3)]
    changes = Changes(changed_orders, read=150)
    walked += list(walk)
    seen = numbers(walked)
    assert len(seen) == len(set(seen)), "no row twice"
    gone = set(ids(changes.deleted_unread))
    expected = set(ids(changes.first)) - gone | set(ids(changes.behind))
    edge = (changes.read[-1].created_at, changes.read[-1].order_id)
    expected |= {order.order_id for order in changes.at_edge if (order.created_at, order.order_id) < edge}
    assert set(seen) == expected
    assert not set(seen) & set(ids(changes.newer + changes.into_read)) and not set(seen) & gone


def test_control_a_global_offset_repeats_and_misses_rows_under_the_same_changes(changed_orders):
    client = changed_orders.pg_client()
    client.ok("SET interlock.scatter = on")

    def page(number):
        return [int(row[0]) for row in client.ok(
            "SELECT order_id FROM orders WHERE merchant_id = 3 ORDER BY created_at DESC, order_id DESC"
            f" LIMIT 50 OFFSET {50 * number}").rows]

    seen = page(0) + page(1) + page(2)
    changes = Changes(changed_orders, read=150)
    number = 3
    while found := page(number):
        seen += found
        number += 1
    stayed = set(ids(changes.first)) - set(ids(changes.deleted_unread)) - set(ids(changes.deleted_read))
    assert stayed - set(seen), "it misses rows"
    again = page(0) + page(1) + page(2)
    first_again = len(changes.newer)
    assert set(again[first_again:]) & set(seen)
    # And, with rows only added, it repeats some.
    for place, order in enumerate(changes.newer):
        changes.router.ok(single_column_insert(order._replace(order_id=70_000 + place)))
    assert set(again) & set(page(3)), "it repeats rows"


# -- every size, in both directions ---------------------------------------------------------------


@pytest.mark.parametrize("keyset", TRUTH)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 333, 1000])
def test_pages_of_every_size_are_slices_of_the_full_sort(orders, keyset, size):
    """Forwards over all of it; a page of one row only over the part with the ties."""
    truth = ids(TRUTH[keyset](orders.orders, 7))
    pages = orders.pages(keyset=keyset, scope={"merchant_id": 7}, extended=size % 2 == 1)
    steps = 120 if size < 7 else len(truth)
    place, after = 0, None
    for _ in range(steps):
        page = pages.page(after=after, size=size)
        assert numbers([page]) == truth[place:place + size]
        place += len(page)
        if len(page) < size:
            break
        after = page.cursors[-1]
    else:
        assert size < 7


@pytest.mark.parametrize("keyset", TRUTH)
def test_a_cursor_leads_both_ways_from_its_row(orders, keyset):
    """Zigzag: at random places of the walk, the page after the row and the page before it."""
    random = Random(keyset)
    truth = ids(TRUTH[keyset](orders.orders, 7))
    pages = orders.pages(keyset=keyset, scope={"merchant_id": 7})
    cursors = [cursor for page in pages.walk(700) for cursor in page.cursors]
    assert len(cursors) == len(truth) == len(set(cursors))
    for _ in range(60):
        place, size = random.randrange(len(truth)), random.choice([1, 2, 5, 37, 50, 400])
        assert numbers([pages.page(after=cursors[place], size=size)]) == truth[place + 1:place + 1 + size]
        back = pages.page(before=cursors[place], size=size)
        assert numbers([back]) == truth[max(0, place - size):place], "in the keyset's order, backwards too"
        assert back.cursors == cursors[max(0, place - size):place], "a row has one cursor, whichever way it was read"


@pytest.mark.parametrize("keyset", TRUTH)
@pytest.mark.parametrize("size", [37, 50, 999])
def test_a_walk_backwards_is_the_walk_forwards_turned_round(orders, keyset, size):
    truth = ids(TRUTH[keyset](orders.orders, 7))
    pages = orders.pages(keyset=keyset, scope={"merchant_id": 7})
    *_, last = pages.walk(700)
    before, walked = last.cursors[-1], []
    while True:
        page = pages.page(before=before, size=size)
        walked = numbers([page]) + walked
        if len(page) < size:
            break
        before = page.cursors[0]
    assert walked == truth[:-1]


def test_the_answer_looks_like_a_single_servers(orders):
    """Columns, formats and tags, in both protocols; the hidden column is nowhere."""
    router, direct = orders.pg_client(), orders.direct("s0")
    text = ("SELECT (p.item).order_id AS number, (item).created_at, p.cursor, complete AS whole, missing_shards"
            " FROM interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": 3}', page_size => 5) AS p")
    for ask in (lambda client: client.query(text), lambda client: client.run(text),
                lambda client: client.run(text, result_formats=(1,))):
        here, there = ask(router).ok(), ask(direct).ok()
        assert here.kinds == there.kinds and here.tag == there.tag == "SELECT 5"
        assert [[(c.name, c.type, c.size, c.modifier, c.format) for c in message.columns]
                for message in here.of("T")] == [[(c.name, c.type, c.size, c.modifier, c.format)
                                                   for c in message.columns] for message in there.of("T")]
    star = "SELECT * FROM interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": 3}')"
    answer = router.ok(star)
    assert [column.name for column in answer.of("T")[0].columns] == ["item", "cursor", "sort_key", "complete",
                                                                     "missing_shards"]
    assert answer.tag == "SELECT 50", "the keyset's default page"
    # A described statement tells the same columns without a row having been read.
    mark = orders.mark()
    described = router.ask(w.parse(star, "s"), w.describe_statement("s"))
    assert [column.name for column in described.ok().of("T")[0].columns] == [
        column.name for column in answer.of("T")[0].columns]
    assert sum(orders.issued(mark).values()) == 0
    assert router.ask(w.bind((), "s"), w.execute()).ok().tag == "SELECT 50"


def test_a_portal_hands_out_its_rows_in_parts(orders):
    """Execute with a row limit, as drivers with a fetch size do."""
    client = orders.pg_client()
    text = "SELECT (item).order_id FROM interlock.keyset_page('merchant_orders', NULL::orders, $1, page_size => 40)"
    answer = client.ask(w.parse(text), w.bind(['{"merchant_id": 3}']), w.execute("", 15), w.execute("", 15),
                        w.execute("", 15)).ok()
    assert [len(answer.of(kind)) for kind in "DsC"] == [40, 2, 1]
    assert [int(row[0]) for row in answer.rows] == ids(newest_first(orders.orders, 3))[:40]
    assert answer.tag in ("SELECT 10", "SELECT 40")


def test_a_scope_without_rows_and_a_cursor_at_the_end_give_an_empty_page(orders):
    nobody = orders.pages(scope={"merchant_id": 4711}).page(size=10)
    assert (len(nobody), nobody.answer.tag) == (0, "SELECT 0")
    pages = orders.pages()
    *_, last = pages.walk(50)
    end = pages.page(after=last.cursors[-1], size=10)
    assert (len(end), end.answer.tag) == (0, "SELECT 0")
    first = pages.page(size=10)
    assert len(pages.page(before=first.cursors[0], size=10)) == 0


# -- writers --------------------------------------------------------------------------------------


class Writers:
    """Threads that insert and delete orders of merchant 3 through the router, and note when they did."""

    def __init__(self, orders, threads=2):
        self.orders, self.stop = orders, threading.Event()
        self.inserted = []  # (order, before the statement, after it)
        self.deleted = []
        self.faults = []
        self.threads = [threading.Thread(target=self.guarded, args=(number,)) for number in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)

    def guarded(self, number):
        try:
            with self.orders.router.pg_client() as client:
                self.write(number, client, Random(number))
        except Exception as fault:  # noqa: BLE001  (shown by the test)
            self.faults.append(fault)

    def write(self, number, client, random):
        mine = [order for order in newest_first(self.orders.orders, 3) if order.order_id % 4 == number]
        random.shuffle(mine)
        fresh = 100_000 * (number + 1)
        while not self.stop.is_set():
            began = time.monotonic()
            if mine and random.random() < 0.3:
                order = mine.pop()
                client.ok(f"DELETE FROM orders WHERE user_id = {order.user_id} AND order_id = {order.order_id}")
                self.deleted.append((order, began, time.monotonic()))
            else:
                fresh += 1
                order = Order(fresh, random.randint(1, 300), 3,
                              START.replace(hour=12 + random.randrange(2), minute=random.randrange(60)), None, 1, None,
                              "new", None)
                client.ok(single_column_insert(order))
                self.inserted.append((order, began, time.monotonic()))


def test_walks_under_writers_keep_the_contract(changed_orders):
    def place(order):
        return order.created_at, order.order_id

    first = newest_first(changed_orders.orders, 3)
    by_number = {order.order_id: order for order in first}
    walks = []
    with Writers(changed_orders) as writers:
        pages = changed_orders.pages()
        end = time.monotonic() + 2.5 * SLACK
        while time.monotonic() < end or len(walks) < 2:
            began, walk = time.monotonic(), []
            for page in pages.walk(50):
                walk.append((began, time.monotonic(), numbers([page])))
                began = time.monotonic()
            walks.append(walk)
    assert not writers.faults, writers.faults
    assert len(writers.inserted) > 20 and len(writers.deleted) > 5 and len(walks) >= 2
    by_number.update((order.order_id, order) for order, *_ in writers.inserted)
    ever_deleted = {order.order_id for order, *_ in writers.deleted}
    for walk in walks:
        seen = [number for *_, page in walk for number in page]
        assert len(seen) == len(set(seen)), "a row twice in one walk"
        places = [place(by_number[number]) for number in seen]
        assert places == sorted(places, reverse=True)
        assert set(ids(first)) - ever_deleted <= set(seen), "a row that was always there is missing"
        for order, began, done in writers.deleted:
            if done < walk[0][0]:
                assert order.order_id not in seen, "a row deleted before the walk"
        # (when the page was asked for, when it was there, up to which place everything has been read)
        read = [(asked, there, place(by_number[page[-1]]) if page else None) for asked, there, page in walk]
        for order, began, done in writers.inserted:
            later = [index for index, (asked, *_) in enumerate(read) if asked > done]
            if later and (later[0] == 0 or place(order) < read[later[0] - 1][2]):
                assert order.order_id in seen, "inserted behind the cursor, and not seen"
            before = [edge for _, there, edge in read[:-1] if there < began]
            if before and place(order) > before[-1]:
                assert order.order_id not in seen, "inserted into what was read, and seen"
