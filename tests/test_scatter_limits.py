"""What a scatter may cost and how long it may take; cursors nobody made; rows of buckets a shard does not own."""

import pytest

from support.forgeries import forgeries
from support.order_cluster import newest_first, numbers
from support.router import SLACK
from support.wait import Stopwatch, wait_until


def nothing_was_sent(orders, mark, word="keyset_page("):
    assert sum(orders.issued(mark, word).values()) == 0


# -- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_fan_out_over_budget_is_refused_before_anything_is_sent(orders, extended):
    client = orders.pg_client()
    client.ok("SET interlock.max_fan_out = 2")
    pages = orders.pages(client, extended=extended)
    mark = orders.mark()
    refusal = pages.ask(size=50).refused("IL203", "I").error
    assert "3" in refusal.text + refusal.fields.get("D", "") and "2" in refusal.text + refusal.fields.get("D", "")
    nothing_was_sent(orders, mark)
    client.ok("SET interlock.max_fan_out = 3")
    assert len(pages.page(size=50)) == 50
    client.ok("SET interlock.max_fan_out = 0")
    assert len(pages.page(size=50)) == 50, "0: the router's own bound"


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_page_over_the_keysets_maximum_is_refused_before_anything_is_sent(orders, extended):
    pages = orders.pages(extended=extended)
    mark = orders.mark()
    for size in (1001, 100_000, 2_147_483_647):
        pages.ask(size=size).refused("IL202", "I")
    nothing_was_sent(orders, mark)
    assert len(pages.page(size=1000)) == 1000


@pytest.mark.parametrize("size", [0, -1, -2_147_483_648])
def test_a_page_of_less_than_one_row_is_an_invalid_parameter(orders, size):
    assert orders.pages().ask(size=size).codes == orders.pages(orders.direct()).ask(size=size).codes == ["22023"]


def test_the_routers_bounds_hold_whatever_a_session_asks_for(orders):
    """Settings of a session narrow those of [scatter], and never widen them."""
    small = orders.new_router("small", {"scatter": {"max_fan_out": 2}}).start()
    few = orders.new_router("few", {"scatter": {"max_rows": 20, "timeout": "300ms"}}).start()
    client = small.pg_client()
    orders.clients.append(client)
    mark = orders.mark()
    for fan_out in (0, 3, 1000):
        client.ok(f"SET interlock.max_fan_out = {fan_out}")
        orders.pages(client).ask(size=5).refused("IL203")
    client = few.pg_client()
    orders.clients.append(client)
    orders.pages(client).ask(size=21).refused("IL209")
    nothing_was_sent(orders, mark)
    assert len(orders.pages(client).page(size=20)) == 20
    client.ok("SET interlock.page_timeout = '1h'")
    holder = lock(orders, "s2")
    with Stopwatch() as watch:
        orders.pages(client).ask(size=5).refused("IL204")
    assert watch.seconds < 1 * SLACK
    holder.rollback()
    for router in (small, few):
        router.stop()
        orders.routers.remove(router)


def test_an_unknown_keyset_and_what_belongs_to_none_are_refused_as_one_server_does(orders):
    router, direct = orders.pg_client(), orders.direct()
    for ask in (lambda client: orders.pages(client, keyset="nobody").ask(size=5),
                lambda client: orders.pages(client, scope={"user_id": 3}).ask(size=5),
                lambda client: orders.pages(client, scope={"merchant_id": "x"}).ask(size=5),
                lambda client: orders.pages(client, scope={"merchant_id": None}).ask(size=5),
                lambda client: orders.pages(client, scope=False).ask(size=5)):
        there, here = ask(direct), ask(router)
        assert there.codes == here.codes and len(here.codes) == 1, (there, here)


# -- a slow shard ---------------------------------------------------------------------------------


def lock(orders, shard):
    """Locks the table there until the connection's rollback."""
    holder = orders.connect(shard, autocommit=False)
    holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    return holder


@pytest.fixture
def hurried(orders):
    """Pages over a client that waits 300 ms at most; every backend of the pools has been used."""
    client = orders.pg_client()
    client.ok("SET interlock.page_timeout = '300ms'")
    pages = orders.pages(client)
    pages.page(size=50)
    return pages


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_shard_past_the_deadline_fails_the_page_and_its_connection_serves_on(orders, hurried, extended):
    hurried.extended = extended
    before = orders.backends()
    assert all(before.values()), "connections are kept"
    holder = lock(orders, "s2")
    for _ in range(3):
        with Stopwatch() as watch:
            refusal = hurried.ask(size=50).refused("IL204", "I").error
        assert 0.29 < watch.seconds < 0.3 + 0.2 * SLACK
        assert "s2" in refusal.text + refusal.fields.get("D", "")
        # Not after the answer perhaps, but at once: nobody waits for the lock any more.
        wait_until(lambda: orders.lock_waiters() == 0, 1 * SLACK, "no lock waiter is left")
    wait_until(lambda: orders.active() == 0, 1 * SLACK, "nothing runs")
    holder.rollback()
    with Stopwatch() as watch:
        walked = list(hurried.walk(50))
    assert numbers(walked) == [order.order_id for order in newest_first(orders.orders, 3)]
    assert orders.backends() == before, "the same connections serve on"


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_a_partial_page_names_the_shard_that_is_missing_and_has_no_cursor(orders, hurried, extended):
    hurried.extended = extended
    before = orders.backends()
    assert all(before.values()), "connections are kept"
    hurried.client.ok("SET interlock.partial_pages = on")
    holder = lock(orders, "s2")
    mine = [order.order_id for order in newest_first(orders.orders, 3) if orders.shard_name(order.user_id) != "s2"]
    for _ in range(2):
        with Stopwatch() as watch:
            page = hurried.page(size=50)
        assert 0.29 < watch.seconds < 0.3 + 0.2 * SLACK
        assert numbers([page]) == mine[:50]
        assert not page.complete and page.missing == ["s2"] and set(page.cursors) == {None}
        (notice,) = page.answer.notices
        assert notice.fields["S"] == "NOTICE" and notice.code == "IL204" and "s2" in notice.text
        assert notice.fields["D"] == "missing_shards: s2"
        wait_until(lambda: orders.lock_waiters() == 0, 1 * SLACK, "no lock waiter is left")
    holder.rollback()
    assert numbers(hurried.walk(50)) == [order.order_id for order in newest_first(orders.orders, 3)]
    assert orders.backends() == before


def test_a_partial_page_is_only_for_those_who_ask(orders, hurried):
    """By the setting or by the hint; and only where the columns that tell of it can be filled in."""
    holder = lock(orders, "s1")
    text = "SELECT (item).order_id{} FROM interlock.keyset_page('merchant_orders', NULL::orders, '{{\"merchant_id\": 3}}')"
    client = hurried.client
    client.query(text.format(", cursor")).refused("IL204")
    answer = client.ok("/* interlock: partial */ " + text.format(", cursor, complete"))
    assert {row[1:] for row in answer.rows} == {(None, b"f")} and answer.notices
    client.query(text.format(", cursor")).refused("IL204")
    client.ok("SET interlock.partial_pages = on")
    answer = client.ok(text.format(""))
    assert len(answer.rows) == 50 and answer.notices
    # A cursor inside an expression cannot be taken back.
    client.query(text.format(", upper(cursor)")).refused("IL204")
    holder.rollback()
    assert len(client.ok(text.format(", upper(cursor)")).rows) == 50


def test_only_a_shard_that_is_late_or_away_can_be_missing(orders, hurried):
    """What a shard says against the statement is told, also where pages may be partial."""
    hurried.client.ok("SET interlock.partial_pages = on")
    cursor = hurried.page(size=50).cursors[-1]
    hurried.ask(after=cursor[:-1], size=50).refused("IL201", "I")
    alone = next(order for order in newest_first(orders.orders, 3) if orders.shard_name(order.user_id) == "s1")
    hurried.columns = f"1 / ((p.item).order_id - {alone.order_id})"
    hurried.ask(size=1000).refused("22012", "I")
    hurried.columns = "(p.item).order_id"
    assert hurried.page(size=50).complete


@pytest.mark.parametrize("partial", [False, True], ids=["strict", "partial"])
def test_a_late_shard_leaves_no_transaction_open(orders, hurried, partial):
    """Within a transaction block each shard's part is one of its own."""
    client = hurried.client
    client.ok(f"SET interlock.partial_pages = {partial}")
    holder = lock(orders, "s0")
    client.ok("BEGIN")
    answer = hurried.ask(size=50)
    if partial:
        assert hurried.read(answer).missing == ["s0"] and answer.status == "T"
    else:
        answer.refused("IL204", "E")
    client.ok("ROLLBACK")
    wait_until(lambda: orders.lock_waiters() == 0 and orders.active() == 0, 2 * SLACK, "all have ended")
    holder.rollback()
    assert hurried.page(size=50).complete


def test_two_missing_shards_are_both_named_and_with_none_left_the_page_fails(orders, hurried):
    hurried.client.ok("SET interlock.partial_pages = on")
    holders = [lock(orders, "s1"), lock(orders, "s2")]
    page = hurried.page(size=50)
    assert page.missing == ["s1", "s2"] and not page.complete
    (notice,) = page.answer.notices
    assert notice.fields["D"] == "missing_shards: s1, s2"
    holders.append(lock(orders, "s0"))
    answer = hurried.ask(size=50)
    assert answer.codes == ["IL204"] or (answer.tag == "SELECT 0" and answer.notices), answer
    for holder in holders:
        holder.rollback()
    wait_until(lambda: orders.active() == 0, 2 * SLACK, "nothing runs")
    assert hurried.page(size=50).complete


def test_a_deadline_that_passes_while_rows_are_read_fails_the_page_too(orders):
    """The shard has answered in part: function calls of the target list are slow there."""
    client = orders.pg_client()
    client.ok("SET interlock.page_timeout = '400ms'")
    text = ("SELECT (item).order_id, md5(repeat('x', 20000000 + (item).quantity)) FROM interlock.keyset_page("
            "'merchant_orders', NULL::orders, '{\"merchant_id\": 3}', page_size => 200)")
    with Stopwatch() as watch:
        answer = client.query(text)
    assert watch.seconds < 1.2 * SLACK
    assert answer.codes == ["IL204"] and answer.status == "I"
    wait_until(lambda: orders.active() == 0, 2 * SLACK, "nothing runs")


# -- forged cursors -------------------------------------------------------------------------------


def test_a_cursor_that_was_not_made_for_the_keyset_and_scope_is_refused(orders):
    client = orders.pg_client()
    pages = orders.pages(client)
    first = pages.page(size=50)
    cursor = first.cursors[-1]
    others = [orders.pages(client, scope={"merchant_id": 4}).page(size=5).cursors[-1],
              orders.pages(client, keyset="merchant_mixed").page(size=5).cursors[-1]]
    asked = 0
    for name, forged in forgeries(cursor, others):
        for way in ({"after": forged}, {"before": forged}):
            answer = pages.ask(size=50, **way)
            assert answer.codes == ["IL201"] and answer.status == "I", (name, answer)
            said = " ".join(answer.error.fields.values())
            assert len(forged) < 8 or forged not in said, "the message does not repeat it"
            asked += 1
    assert asked > 200
    assert pages.page(after=cursor, size=50).rows
    # Each other one is good where it belongs.
    assert orders.pages(client, scope={"merchant_id": 4}).page(after=others[0], size=5).rows


def test_a_forged_cursor_reads_nothing_of_the_table(orders):
    """The call reaches the shards (only they have the keys); the statement that reads the table is not begun."""
    pages = orders.pages()
    cursor = pages.page(size=50).cursors[-1]
    orders.forget_counts()
    for forged in (cursor[:-1], "A" * len(cursor), cursor[::-1]):
        pages.ask(after=forged, size=50).refused("IL201")
    assert orders.read_by_pages() == 0
    pages.page(after=cursor, size=50)
    assert orders.read_by_pages() >= len(orders.shards)


def test_both_given_is_an_invalid_parameter(orders):
    pages = orders.pages()
    cursor = pages.page(size=5).cursors[-1]
    pages.ask(after=cursor, before=cursor, size=5).refused("22023")


def test_a_rotated_key_serves_two_at_a_time(changed_orders):
    """A new key is on every shard before it signs; old cursors are read until theirs is retired."""
    pages = changed_orders.pages()
    truth = [order.order_id for order in newest_first(changed_orders.orders, 3)]
    old = pages.page(size=50).cursors[-1]
    new_key = changed_orders.everywhere("SELECT interlock.cursor_key_add(%s)", bytes(range(32, 64)), dbname="app")
    try:
        page = pages.page(after=old, size=50)
        assert numbers([page]) == truth[50:100]
        assert numbers([pages.page(after=page.cursors[-1], size=50)]) == truth[100:150]
    finally:
        for shard in changed_orders.shards:
            changed_orders.instances[shard].sql("SELECT interlock.cursor_key_retire(%s::smallint)", new_key[0])
    assert numbers([pages.page(after=old, size=50)]) == truth[50:100]
    pages.ask(after=page.cursors[-1], size=50).refused("IL201")


# -- ownership ------------------------------------------------------------------------------------


STATES = ["importing", "moved", "nothing"]


@pytest.mark.parametrize("state", STATES)
def test_rows_of_buckets_the_answering_shard_does_not_own_are_not_counted(changed_orders, state):
    """Copies of s0's rows lie on s1, as during and after a move."""
    orders = changed_orders
    client = orders.pg_client()
    s0, s1 = orders.instances["s0"], orders.instances["s1"]
    buckets = [row[0] for row in s0.sql("SELECT bucket FROM interlock.bucket_state WHERE keyspace = 'accounts'"
                                        " AND state = 'owned' ORDER BY 1")][:3]
    rows = s0.sql("SELECT * FROM orders WHERE interlock.bucket_of('accounts', user_id) = ANY(%s)", buckets)
    assert len(rows) > 1000
    put = ("INSERT INTO interlock.bucket_state VALUES ('accounts', %s, %s, 's0', 2)"
           " ON CONFLICT (keyspace, bucket) DO UPDATE SET state = excluded.state, peer = 's0'")

    def set_state(state):
        with s1.connect() as mover, mover.transaction():
            for bucket in buckets:
                if state == "nothing":
                    mover.execute("DELETE FROM interlock.bucket_state WHERE keyspace = 'accounts' AND bucket = %s",
                                  (bucket,))
                else:
                    mover.execute(put, (bucket, state))

    set_state("owned")  # for a moment, so that they can be written at all
    with s1.connect() as mover, mover.cursor().copy("COPY orders FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    set_state(state)
    try:
        assert s1.value("SELECT count(*) FROM orders WHERE order_id = %s", rows[0][0]) == 1
        for merchant in (3, 7):
            walked = list(orders.pages(client, scope={"merchant_id": merchant}).walk(50))
            assert numbers(walked) == [order.order_id for order in newest_first(orders.orders, merchant)]
        client.ok("SET interlock.scatter = on")
        assert client.value("SELECT count(*) FROM orders") == str(len(orders.orders))
        assert client.value("SELECT sum(quantity) FROM orders") == str(sum(order.quantity for order in orders.orders))
        found = client.ok("SELECT order_id FROM orders ORDER BY order_id LIMIT 1000").rows
        assert [int(row[0]) for row in found] == list(range(1, 1001))
    finally:
        set_state("owned")
        s1.sql("DELETE FROM orders WHERE interlock.bucket_of('accounts', user_id) = ANY(%s)", buckets)
        set_state("nothing")


def test_a_bucket_that_changes_its_shard_during_a_walk_is_read_once(changed_orders):
    """Its rows are copied; it is given up by one shard, taken by the other, and published, between pages. A page in
    between is refused at worst. Then the same back again, what was copied still lying there."""
    orders = changed_orders
    truth = [order.order_id for order in newest_first(orders.orders, 3)]
    bucket = orders.s0.value("SELECT min(bucket) FROM interlock.bucket_state WHERE keyspace = 'accounts' AND state = 'owned'")
    rows = orders.s0.sql("SELECT * FROM orders WHERE interlock.bucket_of('accounts', user_id) = %s", bucket)
    put = ("INSERT INTO interlock.bucket_state (keyspace, bucket, state, peer, route_version)"
           f" VALUES ('accounts', {bucket}, %s, %s, %s) ON CONFLICT (keyspace, bucket)"
           " DO UPDATE SET state = excluded.state, peer = excluded.peer, route_version = excluded.route_version")
    forget = f"DELETE FROM interlock.bucket_state WHERE keyspace = 'accounts' AND bucket = {bucket}"
    with orders.s1.connect() as mover, mover.transaction():
        mover.execute(put, ("owned", None, 1))
        with mover.cursor().copy("COPY orders FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        mover.execute(forget)

    def give(shard, peer, version):
        with orders.instances[shard].connect() as mover, mover.transaction():
            mover.execute(put, ("moved", peer, version))
            mover.execute("UPDATE interlock.shard_identity SET floor = %s", (version,))

    client = orders.pg_client()
    pages = orders.pages(client)
    try:
        for giver, taker in (("s0", "s1"), ("s1", "s0")):
            version = orders.router.status().rv + 1
            walked, refused = [pages.page(size=50)], 0
            for step in (lambda: give(giver, taker, version),
                         lambda: orders.instances[taker].sql(put, "owned", None, version)):
                step()
                answer = pages.ask(after=walked[-1].cursors[-1], size=50)
                if answer.errors:
                    # It has waited for newer routes as long as it may.
                    assert answer.codes in (["40001"], ["IL204"]) and "older than floor" in str(answer), answer
                    refused += 1
                else:
                    walked.append(pages.read(answer))
            assert refused > 0, "the router's routes are too old by now"
            orders.assign([bucket], taker)
            orders.publish(allow_owner_change=True)
            wait_until(lambda: orders.router.status().rv == version, 10 * SLACK, "the router has the new version")
            walked += pages.walk(50, after=walked[-1].cursors[-1])
            assert numbers(walked) == truth
    finally:
        with orders.s1.connect() as mover, mover.transaction():
            mover.execute(put, ("owned", None, 1))
            mover.execute("DELETE FROM orders WHERE interlock.bucket_of('accounts', user_id) = %s", (bucket,))
            mover.execute(forget)
        orders.s0.sql(put, "owned", None, 1)


def test_rows_of_a_fenced_bucket_are_still_its_shards(orders):
    """Writes wait, reads go on: nobody else has them yet."""
    s0 = orders.instances["s0"]
    s0.sql("UPDATE interlock.bucket_state SET state = 'fenced', peer = 's1' WHERE keyspace = 'accounts' AND bucket = 0")
    try:
        assert numbers(orders.pages().walk(200)) == [order.order_id for order in newest_first(orders.orders, 3)]
    finally:
        s0.sql("UPDATE interlock.bucket_state SET state = 'owned', peer = NULL WHERE keyspace = 'accounts' AND bucket = 0")
