"""Pages that a global index answers: right where it is right, and never wrong where it lags."""

import json
import threading
import time
from random import Random

import pytest

from support.forgeries import forgeries
from support.indexed import ENTRIES
from support.order_cluster import Order, Pages, mixed_order, newest_first, numbers, single_column_insert
from support.orders import START
from support.placement import bucket_of, keys_on
from support.router import SLACK
from support.wait import Stopwatch, wait_until

SCATTER = "/* interlock: scatter */ "


def ids(orders):
    return [order.order_id for order in orders]


def whole_walk(pages, size, after=None, limit=5000):
    """Page after page until one is empty, however short the others are; on from where a page found only entries
    of rows that are gone (IL210), too."""
    walked = []
    for _ in range(limit):
        answer = pages.ask(after=after, size=size)
        if answer.codes == ["IL210"]:
            after = cursor_in(answer.error.fields["D"])
            continue
        page = pages.read(answer.ok())
        if not page.rows:
            return walked
        assert len(page) <= size
        walked.append(page)
        after = page.cursors[-1]
    raise AssertionError("the walk has no end")


def cursor_in(detail):
    """The cursor that the DETAIL of an IL210 holds: its last word without punctuation."""
    return detail.rstrip(".").split()[-1].strip('":')


def backwards(pages, size, before):
    """The same towards the beginning; pages in the order in which they were read."""
    walked = []
    while True:
        page = pages.page(before=before, size=size)
        if not page.rows:
            return walked
        walked.append(page)
        before = page.cursors[0]


# -- an index that does not lag -------------------------------------------------------------------


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_walk_equals_the_truth_and_nothing_is_filtered(indexed, extended):
    pages = indexed.pages(extended=extended)
    before, mark = indexed.counters(), indexed.mark()
    walked = whole_walk(pages, 50)
    assert numbers(walked) == indexed.truth(3) == ids(newest_first(indexed.orders, 3))
    assert all(page.complete and not page.missing for page in walked)
    after = indexed.counters()
    assert after["index_filtered"] == before["index_filtered"]
    # And the empty page at the end.
    assert after["index_pages"] - before["index_pages"] == len(walked) + 1
    sent = indexed.sent(mark)
    assert sent["idx"] == len(walked) + 1, "one look into the index is enough for a page"
    # A page without entries asks one shard, which tells the columns.
    assert min(sent.values()) > 0 and sum(sent[shard] for shard in indexed.shards) <= 3 * len(walked) + 1, sent


def test_explain_tells_which_way_a_page_is_answered(indexed):
    client = indexed.pg_client()

    def explained(prefix, keyset):
        answer = client.ok(f"EXPLAIN ROUTE {prefix}SELECT * FROM interlock.keyset_page('{keyset}', NULL::orders,"
                           " '{\"merchant_id\": 3}')")
        return "\n".join((value or b"").decode() for row in answer.rows for value in row)

    index, scatter = explained("", "merchant_orders"), explained("", "merchant_mixed")
    assert "index" in index and "idx" in index, index
    assert "idx" not in scatter, scatter


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_pages_of_every_size_are_slices_of_the_full_sort_in_both_directions(indexed, size):
    """A page of one row only over the part of merchant 7 that has the ties."""
    truth = ids(newest_first(indexed.orders, 7))
    pages = indexed.pages(scope={"merchant_id": 7}, extended=size % 2 == 1)
    if size == 1:
        first = next(place for place in range(len(truth)) if indexed.orders and place > 600)
        cursor = pages.page(size=first).cursors[-1]
        for place in range(first, first + 150):
            page = pages.page(after=cursor, size=1)
            assert numbers([page]) == truth[place:place + 1]
            cursor = page.cursors[-1]
        for place in range(first + 148, first - 2, -1):
            page = pages.page(before=cursor, size=1)
            assert numbers([page]) == truth[place:place + 1]
            cursor = page.cursors[-1]
        return
    walked = whole_walk(pages, size)
    assert [len(page) for page in walked[:-1]] == [size] * (len(walked) - 1)
    assert numbers(walked) == truth
    back = backwards(pages, size, walked[-1].cursors[-1])
    assert numbers(reversed(back)) == truth[:-1]
    assert [cursor for page in reversed(back) for cursor in page.cursors] == \
        [cursor for page in walked for cursor in page.cursors][:-1], "a row has one cursor, whichever way it was read"


def test_pages_end_inside_ties_without_repeating_or_losing_a_row(indexed):
    walked = whole_walk(indexed.pages(scope={"merchant_id": 7}), 37)
    truth = newest_first(indexed.orders, 7)
    assert numbers(walked) == ids(truth)
    ends = [truth[end - 1:end + 1] for end in range(37, len(truth) - 1, 37)]
    assert sum(one.created_at == other.created_at for one, other in ends) >= 400 // 37


def test_cursors_of_index_pages_and_of_scattered_pages_are_the_same(indexed):
    """So a walk may change from the one to the other between any two pages."""
    client = indexed.pg_client()
    call = ("SELECT (p.item).order_id, p.cursor, encode(p.sort_key, 'hex') FROM interlock.keyset_page("
            "'merchant_orders', NULL::orders, '{\"merchant_id\": 3}', after => $1, page_size => 30) AS p")
    mark = indexed.mark()
    after, index = None, None
    for step in range(12):
        index = client.run(call, after).ok().rows
        assert len(index) == 30
        assert client.run(SCATTER + call, after).ok().rows == index, f"page {step}"
        after = index[-1][1].decode()
    sent = indexed.sent(mark)
    assert sent["idx"] == 12 and all(sent[shard] >= 12 for shard in indexed.shards)


def test_the_answer_looks_as_that_of_a_scattered_page(indexed):
    client = indexed.pg_client()
    for columns in ("*", "(p.item).order_id AS number, cursor, complete, missing_shards", "(p.item).amount * 2"):
        text = (f"SELECT {columns} FROM interlock.keyset_page('merchant_orders', NULL::orders,"
                " '{\"merchant_id\": 3}', page_size => 20) AS p")
        for ask in (client.query, client.run, lambda text: client.run(text, result_formats=(1,))):
            index, scatter = ask(text).ok(), ask(SCATTER + text).ok()
            assert index.kinds == scatter.kinds and index.tag == scatter.tag == "SELECT 20"
            assert [message.columns for message in index.of("T")] == [message.columns for message in scatter.of("T")]
            assert index.rows == scatter.rows
    assert client.ok("SELECT (item).order_id FROM interlock.keyset_page('merchant_orders', NULL::orders,"
                     " '{\"merchant_id\": 3}')").tag == "SELECT 50", "the index's default page"


def test_a_scope_without_rows_and_the_ends_of_a_walk_give_an_empty_page(indexed):
    client = indexed.pg_client()
    assert not indexed.pages(client, scope={"merchant_id": 4711}).page(size=10).rows
    pages = indexed.pages(client)
    walked = whole_walk(pages, 400)
    assert not pages.page(after=walked[-1].cursors[-1], size=10).rows
    assert not pages.page(before=walked[0].cursors[0], size=10).rows


def test_inserts_and_deletes_that_the_index_has_heard_of_show_as_the_contract_says(changed_indexed):
    indexed = changed_indexed
    pages = indexed.pages()
    first = newest_first(indexed.orders, 3)
    walked = [pages.page(size=50)]
    edge = first[49]
    behind = [indexed.insert(Order(50_000 + n, user, 3, first[200].created_at, 1.0, 1, None, "new", None))
              for n, user in enumerate(keys_on("s0", 2) + [7, 8, 9])]
    at_edge = indexed.insert(Order(-1, 5, 3, edge.created_at, 1.0, 1, None, "new", None))
    into_read = indexed.insert(Order(60_000, 6, 3, first[3].created_at, 1.0, 1, None, "new", None))
    gone = first[60:90:3]
    for order in gone:
        indexed.delete(order)
    indexed.drain()
    walked += whole_walk(pages, 50, walked[-1].cursors[-1])
    seen = numbers(walked)
    assert len(seen) == len(set(seen))
    assert set(seen) == set(ids(first)) - set(ids(gone)) | set(ids(behind)) | {at_edge.order_id}
    assert into_read.order_id not in seen
    assert numbers(whole_walk(pages, 50)) == indexed.truth(3)


# -- an index that lags ---------------------------------------------------------------------------


def let_it_lag(indexed, merchant=3):
    """5 orders go to another merchant, 5 are deleted, 4 come; nobody tells the index."""
    first = newest_first(indexed.orders, merchant)
    moved = [indexed.update(order, merchant_id=merchant + 1) for order in first[10:60:10]]
    deleted = first[75:125:10]
    for order in deleted:
        indexed.delete(order)
    fresh = [indexed.insert(Order(70_000 + n, 11 * n + 1, merchant, first[20 * n].created_at, 5.0, 1, None, "new", None))
             for n in range(1, 5)]
    return ids(moved), ids(deleted), ids(fresh)


@pytest.mark.parametrize("size", [7, 50, 1000])
def test_a_lagging_index_misses_rows_and_returns_no_wrong_one(changed_indexed, size):
    indexed = changed_indexed
    moved, deleted, fresh = let_it_lag(indexed)
    truth = indexed.truth(3)
    pages = indexed.pages(extended=True)
    before = indexed.filtered()
    seen = numbers(whole_walk(pages, size))
    assert indexed.filtered() - before == 10
    assert seen == [number for number in truth if number not in fresh], "none is wrong, and 4 are missing"
    assert len(truth) - len(seen) == 4
    back = numbers(reversed(backwards(pages, size, pages.page(size=1000).cursors[-1])))
    assert back == seen[:len(back)] and len(back) >= min(len(seen), 1000) - 1
    # Control: without the re-check, the same walk.
    naive = indexed.naive_walk(3)
    wrong = [number for number, _ in naive if number not in truth]
    assert sorted(wrong) == sorted(moved + deleted) and len(wrong) == 10
    # A scattered page does not lag.
    assert ids_of(indexed.pg_client().ok(SCATTER + "SELECT (item).order_id FROM interlock.keyset_page("
                                         "'merchant_orders', NULL::orders, '{\"merchant_id\": 3}', page_size => 1000)")) \
        == truth[:1000]
    indexed.drain()
    before = indexed.filtered()
    for merchant in (3, 4):
        assert numbers(whole_walk(indexed.pages(scope={"merchant_id": merchant}), size)) == indexed.truth(merchant)
    assert indexed.filtered() == before


def ids_of(answer):
    return [int(row[0]) for row in answer.rows]


def test_a_row_whose_place_has_changed_is_not_shown_at_the_old_one(changed_indexed):
    """The sort columns are re-checked as well as the scope: it would come twice, or out of order."""
    indexed = changed_indexed
    order = newest_first(indexed.orders, 3)[5]
    later = indexed.update(order, created_at=START.replace(hour=23))
    before = indexed.filtered()
    seen = numbers(whole_walk(indexed.pages(), 50))
    assert order.order_id not in seen and indexed.filtered() - before == 1
    indexed.drain()
    assert numbers(whole_walk(indexed.pages(), 50)) == indexed.truth(3)
    assert numbers([indexed.pages().page(size=1)]) == [later.order_id]


@pytest.mark.parametrize("size, most", [(1, None), (10, None), (50, None), (1, 20), (10, 20)])
def test_a_short_page_is_not_the_end(changed_indexed, size, most):
    """120 orders in a row are gone. With a row budget of 20, four rounds do not come past them: not even one row is
    found, which is said as an error, since an empty page would look like the end."""
    indexed = changed_indexed
    first = newest_first(indexed.orders, 3)
    for order in first[25:145]:
        indexed.delete(order)
    router = indexed.new_router(settings={"scatter": {"max_rows": most}}).start() if most else indexed.router
    pages, seen, after, short, stale = indexed.pages(router=router), [], None, 0, 0
    mark = indexed.mark()
    while len(seen) < 150:
        answer = pages.ask(after=after, size=size)
        if answer.errors:
            after = cursor_in(answer.refused("IL210", "I").error.fields["D"])
            stale += 1
            continue
        page = pages.read(answer)
        assert page.rows, "the walk has ended early"
        seen += numbers([page])
        short += len(page) < size
        after = page.cursors[-1]
    assert seen == ids(first[:25] + first[145:])[:len(seen)]
    assert indexed.sent(mark)["idx"] <= 4 * (short + stale + 1) + len(seen) // size + 1, "at most four rounds a page"
    assert (short, stale) == {(1, 20): (0, 1), (10, 20): (1, 0)}.get((size, most), (0, 0))
    # The other way.
    back, before = [], page.cursors[0]
    while len(back) < 130:
        answer = pages.ask(before=before, size=size)
        if answer.errors:
            before = cursor_in(answer.refused("IL210", "I").error.fields["D"])
            continue
        page = pages.read(answer)
        if not page.rows:
            break
        back = numbers([page]) + back
        before = page.cursors[0]
    at = seen.index(back[-1])
    assert back == seen[at + 1 - len(back):at + 1]
    if most:
        router.stop()
        indexed.routers.remove(router)


def test_a_row_on_its_way_to_the_index_comes_with_the_consumer(changed_indexed):
    """A page while a consumer runs: what was written is seen within a moment, without anybody's doing."""
    indexed = changed_indexed
    indexed.consumer()
    pages = indexed.pages()
    for number in range(5):
        order = indexed.insert(Order(80_000 + number, 17 * number + 1, 3, START.replace(hour=22, minute=number), 1.0, 1,
                                     None, "new", None))
        wait_until(lambda: numbers([pages.page(size=1)]) == [order.order_id], 10 * SLACK, "the index has it")


class Writers:
    """Threads that insert, move and delete orders through the router, and remember where each has been."""

    def __init__(self, indexed, threads=2):
        self.indexed, self.stop, self.faults, self.changes = indexed, threading.Event(), [], 0
        self.ever = {order.order_id: {order.merchant_id} for order in indexed.orders}
        self.touched = set()
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
            with self.indexed.router.pg_client() as client:
                self.write(number, client, Random(number))
        except Exception as fault:  # noqa: BLE001  (shown by the test)
            self.faults.append(fault)

    def write(self, number, client, random):
        mine = [order for order in newest_first(self.indexed.orders, 3) + newest_first(self.indexed.orders, 4)
                if order.order_id % 4 == number]
        fresh = 100_000 * (number + 1)
        while not self.stop.is_set():
            dice = random.random()
            if dice < 0.4:
                fresh += 1
                order = Order(fresh, random.randint(1, 300), 3, START.replace(hour=13, minute=random.randrange(60)),
                              None, 1, None, "new", None)
                self.ever[fresh] = {3}
                self.touched.add(fresh)
                client.ok(single_column_insert(order))
                mine.append(order)
            elif dice < 0.7:
                place = random.randrange(len(mine))
                order = mine[place]
                self.touched.add(order.order_id)
                to = 7 - order.merchant_id
                self.ever[order.order_id].add(to)
                assert client.ok(f"UPDATE orders SET merchant_id = {to} WHERE user_id = {order.user_id}"
                                 f" AND order_id = {order.order_id}").tag == "UPDATE 1"
                mine[place] = order._replace(merchant_id=to)
            else:
                order = mine.pop(random.randrange(len(mine)))
                self.touched.add(order.order_id)
                client.ok(f"DELETE FROM orders WHERE user_id = {order.user_id} AND order_id = {order.order_id}")
            self.changes += 1


def test_walks_beside_writers_and_a_lagging_consumer_show_no_wrong_row(changed_indexed):
    indexed = changed_indexed
    consumer = indexed.consumer()
    untouchable = None
    walks = []
    with Writers(indexed) as writers:
        client = indexed.pg_client()
        pages = indexed.pages(client, columns="(p.item).order_id, (p.item).merchant_id, (p.item).created_at")
        end = time.monotonic() + 3
        while time.monotonic() < end or len(walks) < 2:
            # Half of the time the consumer stands still.
            (consumer.freeze if len(walks) % 2 else consumer.thaw)()
            walks.append([row for page in whole_walk(pages, 50) for row in page.rows])
        consumer.thaw()
    assert not writers.faults, writers.faults
    assert writers.changes > 50 and len(walks) >= 2
    untouchable = {order.order_id for order in newest_first(indexed.orders, 3)} - writers.touched
    for walk in walks:
        assert {merchant for _, merchant, _ in walk} == {"3"}
        seen = [int(number) for number, *_ in walk]
        assert len(seen) == len(set(seen)), "a row twice in one walk"
        assert all(3 in writers.ever[number] for number in seen)
        places = [(when, int(number)) for number, _, when in walk]
        assert places == sorted(places, reverse=True)
        assert untouchable <= set(seen), "a row that nobody touched is missing"
    indexed.drained()
    for merchant in (3, 4):
        assert numbers(whole_walk(indexed.pages(scope={"merchant_id": merchant}), 333)) == indexed.truth(merchant)


# -- budgets and limits ---------------------------------------------------------------------------


def test_a_page_over_budget_is_refused_before_any_statement_to_a_shard(indexed):
    client = indexed.pg_client()
    pages = indexed.pages(client)
    client.ok("SET interlock.max_fan_out = 2")
    mark = indexed.mark()
    pages.ask(size=50).refused("IL203", "I")
    sent = indexed.sent(mark)
    assert [sent[shard] for shard in indexed.shards] == [0, 0, 0]
    client.ok("SET interlock.max_fan_out = 3")
    mark = indexed.mark()
    assert len(pages.page(size=50)) == 50
    assert min(indexed.sent(mark).values()) > 0, "what would have been counted"


def test_the_fan_out_of_a_page_is_that_of_its_entries(changed_indexed):
    """A merchant whose orders are on one shard costs one shard, where a scattered page costs three."""
    indexed = changed_indexed
    users = keys_on_three(indexed, "s1", 5)
    for number, user in enumerate(users):
        indexed.insert(Order(90_000 + number, user, 99, START, 1.0, 1, None, "new", None))
    indexed.drain()
    client = indexed.pg_client()
    client.ok("SET interlock.max_fan_out = 1")
    mark = indexed.mark()
    assert numbers([indexed.pages(client, scope={"merchant_id": 99}).page(size=50)]) == [90_004, 90_003, 90_002, 90_001,
                                                                                        90_000]
    sent = indexed.sent(mark)
    assert sent["s1"] == 1 and sent["s0"] == sent["s2"] == 0
    client.query(SCATTER + "SELECT * FROM interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": 99}')"
                 ).refused("IL203", "I")


def keys_on_three(indexed, shard, count):
    return [user for user in range(1, 300) if indexed.shard_name(user) == shard][:count]


def test_pages_too_large_are_refused_before_any_statement(indexed):
    pages = indexed.pages()
    mark = indexed.mark()
    pages.ask(size=1001).refused("IL202", "I")
    assert sum(indexed.sent(mark)[shard] for shard in indexed.shards) == 0
    # The row budget.
    router = indexed.new_router(settings={"scatter": {"max_rows": 40}}).start()
    pages = indexed.pages(router=router)
    mark = indexed.mark()
    answer = pages.ask(size=50)
    assert answer.errors and answer.status == "I"
    assert sum(indexed.sent(mark).values()) == 0, "not even the index is asked"
    assert len(pages.page(size=40)) == 40
    router.stop()
    indexed.routers.remove(router)


# -- forged cursors -------------------------------------------------------------------------------


def test_a_cursor_that_was_not_made_for_the_keyset_and_scope_is_refused_and_no_shard_is_asked(indexed):
    client = indexed.pg_client()
    pages = indexed.pages(client)
    cursor = pages.page(size=50).cursors[-1]
    others = [indexed.pages(client, scope={"merchant_id": 4}).page(size=5).cursors[-1],
              indexed.pages(client, keyset="merchant_mixed").page(size=5).cursors[-1]]
    mark, asked = indexed.mark(), 0
    for name, forged in forgeries(cursor, others):
        for way in ({"after": forged}, {"before": forged}):
            answer = pages.ask(size=50, **way)
            assert answer.codes == ["IL201"] and answer.status == "I", (name, answer)
            asked += 1
    assert asked > 200
    sent = indexed.sent(mark)
    assert [sent[shard] for shard in indexed.shards] == [0, 0, 0]
    assert pages.page(after=cursor, size=50).rows


# -- shards and index that are late ----------------------------------------------------------------


def locked(indexed, instance, table):
    holder = indexed.connect(instance, autocommit=False)
    holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    return holder


def test_a_shard_or_an_index_past_the_deadline_fails_the_page_and_leaves_no_waiter(indexed):
    client = indexed.pg_client()
    client.ok("SET interlock.page_timeout = '300ms'")
    pages = indexed.pages(client)
    truth = ids(newest_first(indexed.orders, 3))
    for partial in ("off", "on"):
        client.ok(f"SET interlock.partial_pages = {partial}")
        for instance, table in (("s1", "orders"), ("idx", ENTRIES)):
            holder = locked(indexed, instance, table)
            with Stopwatch() as watch:
                answer = pages.ask(size=50)
            assert watch.seconds < 1.5 * SLACK
            if instance == "s1" and partial == "on":
                page = pages.read(answer.ok())
                assert not page.complete and page.missing == ["s1"] and page.cursors == [None] * len(page)
                shown = numbers([page])
                assert shown == [number for number in truth[:50] if number in shown]
                assert {order.order_id for order in indexed.orders if indexed.shard_name(order.user_id) == "s1"} \
                    .isdisjoint(shown)
            else:
                # What is not known of the index is not known of any row.
                answer.refused("IL204", "I")
                assert instance in " ".join(answer.error.fields.values())
            wait_until(lambda: waiters(indexed) == 0, 5 * SLACK, "no lock waiter is left")
            holder.rollback()
            page = pages.page(size=50)
            assert page.complete and numbers([page]) == truth[:50]


def waiters(indexed):
    return sum(instance.value("SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
                              dbname="postgres") for instance in indexed.instances.values())


# -- declarations and routes that change -----------------------------------------------------------


def newest_routes(indexed):
    return indexed.router.status().rv == indexed.catalog.value("SELECT route_version FROM interlock.cluster")


def test_an_index_that_is_taken_back_is_not_asked_until_it_is_ready_again(changed_indexed):
    indexed = changed_indexed
    pages = indexed.pages()
    cursor = pages.page(size=50).cursors[-1]
    try:
        indexed.catalog.sql("SELECT interlock.index_ready('merchant_orders', false)")
        indexed.apply()
        wait_until(lambda: newest_routes(indexed), 10 * SLACK, "the router knows")
        mark = indexed.mark()
        # A walk goes on the other way.
        assert numbers([pages.page(after=cursor, size=50)]) == ids(newest_first(indexed.orders, 3))[50:100]
        assert indexed.sent(mark) == {"s0": 1, "s1": 1, "s2": 1, "idx": 0}
    finally:
        indexed.catalog.sql("SELECT interlock.index_ready('merchant_orders')")
        indexed.apply()
    wait_until(lambda: newest_routes(indexed), 10 * SLACK, "the router knows")
    mark = indexed.mark()
    assert numbers([pages.page(after=cursor, size=50)]) == ids(newest_first(indexed.orders, 3))[50:100]
    assert indexed.sent(mark)["idx"] == 1


def test_pages_while_a_bucket_changes_its_shard_are_right_or_refused(changed_indexed):
    """A router with older routes asks the shard that gave the bucket away: rows must not just be missing."""
    indexed = changed_indexed
    truth = ids(newest_first(indexed.orders, 3))
    bucket = bucket_of(next(order for order in indexed.orders if indexed.shard_name(order.user_id) == "s0").user_id)
    stop, answers = threading.Event(), []

    def walk():
        with indexed.router.pg_client() as client:
            pages = indexed.pages(client)
            while not stop.is_set():
                answers.append(pages.ask(size=1000))

    walker = threading.Thread(target=walk)
    walker.start()
    try:
        for shard in ("s2", "s0"):
            # Between the two halves of a copy the rows are at neither place or at both, so they are compared after it.
            indexed.move_bucket(bucket, shard)
            began = len(answers)
            wait_until(lambda: newest_routes(indexed), 10 * SLACK, "the router knows")
            wait_until(lambda: len(answers) > began + 3, 10 * SLACK, "pages come")
            for answer in answers[began + 1:]:
                if answer.errors:
                    answer.refused("IL102", "I")
                else:
                    assert numbers([Pages.read(answer)]) == truth[:1000]
            assert not answers[-1].errors
    finally:
        stop.set()
        walker.join(20)


def test_a_truncated_shard_leaves_no_entry(changed_indexed):
    indexed = changed_indexed
    indexed.instances["s2"].sql("SET interlock.allow_truncate = on; TRUNCATE orders")
    seen = numbers(whole_walk(indexed.pages(), 50))
    assert seen == indexed.truth(3), "none of its rows is shown, though the index still has them"
    indexed.drain()
    indexed.equal()
    before = indexed.filtered()
    assert numbers(whole_walk(indexed.pages(), 50)) == seen
    assert indexed.filtered() == before


# -- the line protocol ----------------------------------------------------------------------------

LINE = "SELECT * FROM interlock.keyset_page(?, NULL::orders, ?, ?, ?, ?)"


def line_walk(client, size, merchant=3):
    seen, cursor = [], None
    while True:
        answer = client.q(LINE, "merchant_orders", json.dumps({"merchant_id": merchant}), cursor, None, size)
        assert answer.ok and answer.shard == "*" and answer.tx == "I", answer
        if not answer.rows:
            return seen
        seen += [int(row[0].strip("()").split(",")[0]) for row in answer.rows]
        cursor = answer.rows[-1][1]


def test_the_line_protocol_has_the_same_pages(changed_indexed):
    indexed = changed_indexed
    client = indexed.client()
    before = indexed.counters()["index_pages"]
    assert line_walk(client, 50) == indexed.truth(3)
    assert indexed.counters()["index_pages"] > before
    moved, deleted, fresh = let_it_lag(indexed)
    filtered = indexed.filtered()
    assert line_walk(client, 50) == [number for number in indexed.truth(3) if number not in fresh]
    assert indexed.filtered() - filtered == 10
    indexed.drain()
    assert line_walk(client, 7) == indexed.truth(3)


def test_the_line_protocol_refuses_what_is_no_cursor_and_what_is_too_much(indexed):
    client = indexed.client()
    scope, four = json.dumps({"merchant_id": 3}), json.dumps({"merchant_id": 4})
    cursor = client.q(LINE, "merchant_orders", scope, None, None, 5).rows[-1][1]
    mark = indexed.mark()
    for values, code in [((four, cursor, None, 5), "BAD_CURSOR"), ((scope, cursor[:-1], None, 5), "BAD_CURSOR"),
                         ((scope, None, "nonsense", 5), "BAD_CURSOR"), ((scope, None, None, 1001), "PAGE_TOO_LARGE")]:
        answer = client.q(LINE, "merchant_orders", *values)
        assert answer.code == code and answer.tx == "I", (values, answer)
    sent = indexed.sent(mark)
    assert [sent[shard] for shard in indexed.shards] == [0, 0, 0]
    assert client.q(LINE, "merchant_orders", scope, cursor, None, 5).ok


# -- other sorts ----------------------------------------------------------------------------------


def test_a_keyset_without_an_index_is_scattered_as_before(indexed):
    mark = indexed.mark()
    walked = list(indexed.pages(keyset="merchant_mixed").walk(100))
    assert numbers(walked) == ids(mixed_order(indexed.orders, 3))
    sent = indexed.sent(mark)
    assert sent["idx"] == 0 and [sent[shard] for shard in indexed.shards] == [len(walked)] * 3
