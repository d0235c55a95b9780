"""Shards that die, hang or lie in the middle of a scatter; clients that cancel or vanish: a page fails, it is never
wrong, and nothing is left behind."""

import signal
import threading
import time
from dataclasses import replace
from random import Random

import pytest

from conftest import remove
from support import pgwire as w
from support.frame_proxy import Cut
from support.lying_proxy import LyingProxy
from support.order_cluster import OrdersCluster, make_orders, newest_first, numbers
from support.router import SLACK
from support.wait import Stopwatch, wait_until

POOL = 3
SETTINGS = {"pool": {"size": POOL, "idle_check": "1d", "connect_timeout": "2s"}, "scatter": {"timeout": "10s"}}
MERCHANT = 7
SIZE = 12
DEAD = {"IL030", "08006", "57P01", "57P03"}


@pytest.fixture(scope="module")
def module_cluster(owner, new_folder, request, router_binary):
    """A few orders on three shards, each behind a proxy."""
    proxies = {}

    def conninfo_of(name, instance):
        proxies[name] = LyingProxy(("127.0.0.1", instance.port))
        return f"host=127.0.0.1 port={proxies[name].port} dbname=app sslmode=disable gssencmode=disable"

    cluster = OrdersCluster(new_folder(request.module.__name__), owner, rows=make_orders(600, 40),
                            router_settings=SETTINGS, conninfo_of=conninfo_of)
    cluster.proxies = proxies
    try:
        yield cluster.up()
    finally:
        cluster.down()
        for proxy in proxies.values():
            proxy.close()
        remove(cluster.base)


@pytest.fixture
def failing(module_cluster):
    cluster = module_cluster
    if cluster.router.process.poll() is not None:
        cluster.router.start()
    cluster.truth = [order.order_id for order in newest_first(cluster.orders, MERCHANT)]
    yield cluster
    for proxy in cluster.proxies.values():
        proxy.disarm()
        proxy.tell_the_truth()
    cluster.end_test()


def pages_of(cluster, client=None, **options):
    return cluster.pages(client, scope={"merchant_id": MERCHANT}, **options)


def right(cluster, size=SIZE):
    """The page is served, and by all shards."""
    page = pages_of(cluster).page(size=size)
    assert numbers([page]) == cluster.truth[:size] and page.complete


def settled(cluster, deadline=10.0):
    """Nothing is borrowed and nothing runs on any shard."""
    wait_until(lambda: all(shard["borrowed"] == shard["waiting"] == 0
                           for shard in cluster.router.status().shards.values()), deadline, "nothing is borrowed")
    wait_until(lambda: cluster.active() == 0, deadline, "nothing runs")
    assert cluster.router.process.poll() is None, cluster.router.log_text()[-3000:]


def lock(cluster, shard):
    holder = cluster.connect(shard, autocommit=False)
    holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    return holder


# -- shards that die ------------------------------------------------------------------------------


def cut_everywhere(cluster, shard, side, inside, ask, judge):
    """Cuts the shard's connection at each message of a page in turn, until a page goes by uncut."""
    proxy = cluster.proxies[shard]
    for count in range(200):
        right(cluster)  # on a connection that works
        proxy.arm(side, count, inside=inside)
        answer = ask()
        proxy.disarm()
        if not proxy.cut.is_set():
            assert count > 3 and not answer.errors
            return count
        judge(answer, count)
    raise AssertionError("the page never went by uncut")


@pytest.mark.parametrize("shard", ["s0", "s2"])
@pytest.mark.parametrize("inside", [False, True], ids=["between messages", "inside messages"])
@pytest.mark.parametrize("side", ["frontend", "backend"])
def test_a_shard_that_is_gone_at_any_message_fails_the_page(failing, side, inside, shard):
    client = failing.pg_client()
    pages = pages_of(failing, client)

    def judge(answer, count):
        if not answer.errors:
            # The connection was gone before anything went over it, and another one served.
            assert numbers([pages.read(answer)]) == failing.truth[:SIZE]
            return
        assert len(answer.errors) == 1 and answer.error.code in DEAD, (count, answer)
        assert answer.status == "I"
        seen = [int(row[0]) for row in answer.rows]
        assert seen == failing.truth[:len(seen)], "what was sent before was right"

    assert cut_everywhere(failing, shard, side, inside, lambda: pages.ask(size=SIZE), judge) > 3
    settled(failing)
    right(failing)


@pytest.mark.parametrize("side", ["frontend", "backend"])
def test_a_shard_that_is_gone_at_any_message_is_named_by_a_partial_page(failing, side):
    client = failing.pg_client()
    client.ok("SET interlock.partial_pages = on")
    pages = pages_of(failing, client)
    others = [order.order_id for order in newest_first(failing.orders, MERCHANT)
              if failing.shard_name(order.user_id) != "s1"]

    def judge(answer, count):
        page = pages.read(answer.ok())
        if page.complete:
            assert numbers([page]) == failing.truth[:SIZE]
            return
        assert page.missing == ["s1"] and set(page.cursors) == {None} and len(answer.notices) == 1
        # What it had sent before may be in it; of the others, everything up to there is.
        seen = numbers([page])
        assert len(seen) == SIZE and seen == [number for number in failing.truth if number in seen]
        theirs = [number for number in seen if number in others]
        assert theirs == others[:len(theirs)]

    cut_everywhere(failing, "s1", side, False, lambda: pages.ask(size=SIZE), judge)
    settled(failing)


PLAIN = {
    "ordered": f"SELECT order_id FROM orders WHERE merchant_id = {MERCHANT} ORDER BY created_at DESC, order_id DESC LIMIT {SIZE}",
    "total": "SELECT count(*), sum(quantity) FROM orders",
    "groups": "SELECT merchant_id, count(*), avg(amount) FROM orders GROUP BY merchant_id ORDER BY merchant_id",
    "in a transaction": "SELECT count(*) FROM orders",
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_shard_that_is_gone_at_any_message_fails_a_plain_scatter(failing, kind):
    """Above all a count that lacks a shard's rows must not pass for one."""
    client = failing.pg_client()
    client.ok("SET interlock.scatter = on")
    whole = failing.whole_client().ok(PLAIN[kind]).rows
    block = kind == "in a transaction"

    def ask():
        if block:
            client.ok("BEGIN")
        answer = client.query(PLAIN[kind])
        if block:
            assert answer.status == ("E" if answer.errors else "T")
            client.ok("ROLLBACK")
        return answer

    def judge(answer, count):
        if answer.errors:
            assert len(answer.errors) == 1 and answer.error.code in DEAD, (count, answer)
            assert answer.rows == whole[:len(answer.rows)]
        else:
            assert answer.rows == whole

    for side in ("frontend", "backend"):
        cut_everywhere(failing, "s1", side, False, ask, judge)
    settled(failing)
    assert sum(failing.everywhere("SELECT count(*)::int FROM pg_stat_activity WHERE usename = 'app'"
                                  " AND state LIKE 'idle in transaction%'")) == 0


def test_a_connection_that_ends_after_any_byte_of_the_answer_fails_the_page(failing):
    proxy, client = failing.proxies["s1"], failing.pg_client()
    pages = pages_of(failing, client, extended=True)
    right(failing)
    length = []
    proxy.raw = lambda place, message: length.append(len(message)) or message
    pages.page(size=SIZE)
    place_of = [failing.truth.index(int(values[0])) for values in proxy.told]
    assert min(place_of) < SIZE < max(place_of)
    random = Random(1)
    for row in range(len(length)):
        for place in sorted(random.sample(range(length[row]), 2)):
            def cut(at, message, row=row, place=place):
                if at == row:
                    raise Cut(message[:place])
                return message

            proxy.told, proxy.raw = [], cut
            answer = pages.ask(size=SIZE)
            seen = [int(row[0]) for row in answer.rows]
            assert seen == failing.truth[:len(seen)]
            # A row behind the page's last is not waited for.
            assert len(answer.errors) == (place_of[row] < SIZE), (row, answer)
            assert answer.codes in ([], *([code] for code in DEAD))
            proxy.raw = None
            right(failing)
    settled(failing)


def test_a_backend_that_is_terminated_in_mid_page_fails_the_page(failing):
    client = failing.pg_client()
    for ask in ("query", "run"):
        holder = lock(failing, "s1")
        client.send(w.query(TEXT) if ask == "query" else w.extended(TEXT) + w.sync())
        wait_until(lambda: failing.lock_waiters() == 1, 10, "it waits")
        failing.instances["s1"].sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                    " WHERE wait_event_type = 'Lock'", dbname="postgres")
        answer = client.until_ready()
        assert answer.codes in (["57P01"], ["IL030"], ["08006"]) and answer.status == "I"
        holder.rollback()
        right(failing)
    settled(failing)


TEXT = ("SELECT (item).order_id, cursor FROM interlock.keyset_page('merchant_orders', NULL::orders,"
        f" '{{\"merchant_id\": {MERCHANT}}}', page_size => {SIZE})")


def test_a_dead_shard_fails_pages_at_once_and_is_back_without_help(failing):
    client = failing.pg_client()
    pages = pages_of(failing, client)
    right(failing)
    failing.instances["s2"].kill()
    with Stopwatch() as watch:
        refusal = pages.ask(size=SIZE)
    assert refusal.codes[0] in DEAD and watch.seconds < 1 * SLACK
    for _ in range(3):
        with Stopwatch() as watch:
            pages.ask(size=SIZE).refused("IL030", "I")
        assert watch.seconds < 1 * SLACK
    client.ok("SET interlock.partial_pages = on")
    page = pages.page(size=SIZE)
    assert page.missing == ["s2"] and not page.complete and set(page.cursors) == {None}
    # Statements for one shard are none of its business.
    user = next(order.user_id for order in failing.orders if failing.shard_name(order.user_id) == "s0")
    assert client.ok(f"SELECT count(*) FROM orders WHERE user_id = {user}").tag == "SELECT 1"
    failing.instances["s2"].start()
    wait_until(lambda: pages.page(size=SIZE).complete, 10, "complete pages again")
    right(failing)


def test_a_frozen_shard_is_late_and_holds_nobody_else_up(failing):
    client, other = failing.pg_client(timeout=40), failing.pg_client()
    client.ok("SET interlock.page_timeout = '300ms'")
    pages = pages_of(failing, client)
    right(failing)
    user = next(order.user_id for order in failing.orders if failing.shard_name(order.user_id) == "s0")
    failing.instances["s2"].freeze()
    try:
        for count in range(POOL + 2):
            with Stopwatch() as watch:
                answer = pages.ask(size=SIZE)
            # Once all its connections are waiting for their end, there is none to ask with.
            assert answer.codes == ["IL204"] or (count >= POOL and answer.codes == ["IL033"]), answer
            assert watch.seconds < 0.3 + 0.3 * SLACK
            with Stopwatch() as watch:
                other.ok(f"SELECT count(*) FROM orders WHERE user_id = {user}")
            assert watch.seconds < 0.3 * SLACK
        client.ok("SET interlock.partial_pages = on")
        page = pages.page(size=SIZE)
        assert page.missing == ["s2"] and len(page) == SIZE
    finally:
        failing.instances["s2"].thaw()
    client.ok("SET interlock.page_timeout = '5s'")
    wait_until(lambda: pages.page(size=SIZE).complete, 20, "complete pages again")
    settled(failing, 20)
    right(failing)


def test_a_locked_table_holds_up_only_what_reads_it(failing):
    """Not the making of connections, which any statement may need."""
    holder = lock(failing, "s1")
    failing.instances["s1"].sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    wait_until(lambda: not failing.backends()["s1"], 10, "the backends are gone")
    owner = next(row[1] for row in failing.samples if failing.shard_name(row[1]) == "s1")
    client = failing.pg_client()
    with Stopwatch() as watch:
        assert client.ok(f"SELECT id FROM sample WHERE owner = {owner}").rows
        assert client.ok("/* interlock: scatter */ SELECT count(*) FROM sample").value == str(len(failing.samples))
    assert watch.seconds < 1 * SLACK
    client.ok("SET interlock.page_timeout = '300ms'")
    with Stopwatch() as watch:
        pages_of(failing, client).ask(size=SIZE).refused("IL204", "I")
    assert watch.seconds < 0.3 + 0.3 * SLACK
    wait_until(lambda: failing.lock_waiters() == 0, 2 * SLACK, "no lock waiter is left")
    holder.rollback()
    right(failing)
    settled(failing)


def test_a_pool_that_is_used_up_makes_its_shard_late(failing):
    holders = [failing.pg_client() for _ in range(POOL)]
    user = next(order.user_id for order in failing.orders if failing.shard_name(order.user_id) == "s2")
    for holder in holders:
        holder.ok("BEGIN")
        holder.ok(f"SELECT count(*) FROM orders WHERE user_id = {user}")
    client = failing.pg_client()
    client.ok("SET interlock.page_timeout = '300ms'")
    pages = pages_of(failing, client)
    mark = failing.mark()
    with Stopwatch() as watch:
        refusal = pages.ask(size=SIZE)
    assert refusal.codes[0] in ("IL204", "IL033") and watch.seconds < 0.3 + 0.3 * SLACK
    assert sum(failing.issued(mark).values()) == 0, "nothing is sent before all have a connection"
    client.ok("SET interlock.partial_pages = on")
    page = pages.page(size=SIZE)
    assert page.missing == ["s2"] and len(page) == SIZE
    holders.pop().ok("ROLLBACK")
    assert pages.page(size=SIZE).complete
    for holder in holders:
        holder.ok("ROLLBACK")
    settled(failing)


# -- shards that lie ------------------------------------------------------------------------------


def changed_key(place, change):
    return lambda at, values: [[*values[:-1], change(values[-1])] if at == place else values]


def swapped():
    held = []

    def tell(at, values):
        if at == 1:
            held.append(values)
            return []
        return [values, held[0]] if at == 2 else [values]
    return tell


def keys_exchanged():
    """The rows stay where they are; what they are merged by changes places."""
    held = []

    def tell(at, values):
        if at == 1:
            held.append(values)
            return []
        return [[*held[0][:-1], values[-1]], [*values[:-1], held[0][-1]]] if at == 2 else [values]
    return tell


def up(key):
    """A key behind all others."""
    return key[:16] + b"ff" * (len(key) // 2 - 8)


LIES = {
    "two rows change places": lambda: swapped(),
    "two keys change places": lambda: keys_exchanged(),
    "a key far behind, with others after it": lambda: changed_key(1, up),
    "the keys of another keyset": lambda: lambda at, values: [[*values[:-1], b"00" * 8 + values[-1][16:]]],
    "one key of another keyset": lambda: changed_key(2, lambda key: b"f" * 16 + key[16:]),
    "the first key of another keyset": lambda: changed_key(0, lambda key: b"0" * 16 + key[16:]),
    "a row twice": lambda: lambda at, values: [values, values] if at == 1 else [values],
    "no key": lambda: changed_key(1, lambda key: None),
    "an empty key": lambda: changed_key(1, lambda key: b""),
    "half a key": lambda: changed_key(1, lambda key: key[:16]),
    "less than a digest": lambda: changed_key(1, lambda key: key[:7]),
    "a value too few": lambda: lambda at, values: [values[1:]] if at == 1 else [values],
    "a value too many": lambda: lambda at, values: [[None, *values]] if at == 1 else [values],
    "no values": lambda: lambda at, values: [[]] if at == 1 else [values],
}
# What is said of the columns, and of each row's values.
COLUMN_LIES = {
    "another name": (lambda columns: (replace(columns[0], name="other"), *columns[1:]), lambda values: values),
    "another type": (lambda columns: (replace(columns[0], type=25, size=-1), *columns[1:]), lambda values: values),
    "another format": (lambda columns: (replace(columns[0], format=1), *columns[1:]), lambda values: values),
    "a column less": (lambda columns: columns[1:], lambda values: values[1:]),
    "a column more": (lambda columns: (columns[0], *columns), lambda values: [values[0], *values]),
}


@pytest.mark.parametrize("shard", ["s0", "s1"])
@pytest.mark.parametrize("lie", LIES)
def test_a_shard_whose_rows_cannot_be_right_fails_the_page(failing, lie, shard):
    client = failing.pg_client()
    pages = pages_of(failing, client)
    proxy = failing.proxies[shard]
    for extended in (False, True):
        pages.extended = extended
        proxy.tell_the_truth()
        proxy.rows = LIES[lie]()
        answer = pages.ask(size=200)
        assert len(answer.errors) == 1, f"nobody noticed: {answer.kinds}"
        assert answer.error.code in ("IL208", "IL205", "IL030"), answer.error
        assert answer.status == "I"
        seen = [int(row[0]) for row in answer.rows]
        assert len(seen) == len(set(seen))
        proxy.tell_the_truth()
        right(failing)
    settled(failing)


def test_rows_that_do_not_fit_their_columns_fail_the_page(failing):
    for columns in (lambda told: told[1:], lambda told: (), lambda told: (*told, told[-1])):
        failing.proxies["s0"].columns = \
            lambda told, columns=columns: columns(told) if told and told[-1].name.startswith("interlock:") else told
        answer = pages_of(failing).ask(size=SIZE)
        assert len(answer.errors) == 1 and answer.error.code in ("IL208", "IL030"), answer
        failing.proxies["s0"].tell_the_truth()
        right(failing)


@pytest.mark.parametrize("lie", COLUMN_LIES)
def test_a_shard_that_answers_with_other_columns_fails_the_page(failing, lie):
    proxy = failing.proxies["s1"]
    columns, values = COLUMN_LIES[lie]
    proxy.columns = lambda told: columns(told) if told[-1].name.startswith("interlock:") else told
    proxy.rows = lambda at, told: [values(told)]
    assert not pages_of(failing).ask(size=SIZE).refused("IL208", "I").rows
    proxy.tell_the_truth()
    right(failing)
    settled(failing)


def test_the_same_row_from_two_shards_fails_the_page(failing):
    """As when a key that must be unique is not, over all shards together."""
    pages = pages_of(failing)
    pages.page(size=200)
    first = min((row for proxy in failing.proxies.values() for row in proxy.told), key=lambda row: row[-1])
    liar = next(proxy for proxy in failing.proxies.values() if first not in proxy.told)
    liar.told = []
    liar.rows = lambda at, values: [first, values] if at == 0 else [values]
    pages.ask(size=SIZE).refused("IL205", "I")
    liar.tell_the_truth()
    right(failing)


def test_more_rows_than_were_asked_for_do_no_harm(failing):
    proxy = failing.proxies["s1"]
    pages = pages_of(failing)
    full = pages.page(size=200)
    assert len(full) > 3 * SIZE
    more = list(proxy.told)
    proxy.tell_the_truth()
    proxy.rows = lambda at, values: [values, *more[at + 1:]] if at == SIZE - 1 else [values]
    answer = pages.ask(size=SIZE)
    if not answer.errors:
        assert numbers([pages.read(answer)]) == failing.truth[:SIZE]
    proxy.tell_the_truth()
    right(failing)


def test_duplicates_in_the_data_of_two_shards_fail_the_page(failing):
    """order_id is unique on each shard, and nobody promises that it is so over all of them."""
    order = newest_first(failing.orders, MERCHANT)[3]
    user = next(other.user_id for other in failing.orders
                if failing.shard_name(other.user_id) != failing.shard_name(order.user_id))
    client = failing.pg_client()
    pages = pages_of(failing, client)
    shard = failing.shard_of(user)
    shard.sql("INSERT INTO orders VALUES (%s, %s, %s, %s, NULL, 1, NULL, 'new', NULL)", order.order_id, user, MERCHANT,
              order.created_at)
    try:
        pages.ask(size=SIZE).refused("IL205", "I")
        client.ok("SET interlock.scatter = on")
        client.query(f"SELECT order_id FROM orders WHERE merchant_id = {MERCHANT}"
                     f" ORDER BY created_at DESC, order_id DESC LIMIT {SIZE}").refused("IL205", "I")
    finally:
        shard.sql("DELETE FROM orders WHERE order_id = %s", order.order_id)
    right(failing)


# -- shards that do not agree ---------------------------------------------------------------------


def test_a_keyset_that_is_declared_otherwise_on_a_shard_is_refused_before_anything_is_sent(failing):
    for shard, order in (("s0", "created_at DESC, order_id DESC"), ("s1", "created_at DESC, order_id"),
                         ("s2", "created_at DESC, order_id DESC")):
        failing.instances[shard].sql("SELECT interlock.keyset_create('odd', 'orders', '{merchant_id}', %s)", order)
    client = failing.pg_client()
    mark = failing.mark()
    try:
        for _ in range(2):
            pages_of(failing, client, keyset="odd").ask(size=SIZE).refused("IL208", "I")
        assert sum(failing.issued(mark).values()) == 0
        # Mended, it works without anybody's help.
        failing.instances["s1"].sql("SELECT interlock.keyset_drop('odd')")
        failing.instances["s1"].sql("SELECT interlock.keyset_create('odd', 'orders', '{merchant_id}',"
                                    " 'created_at DESC, order_id DESC')")
        page = pages_of(failing, client, keyset="odd").page(size=SIZE)
        assert numbers([page]) == failing.truth[:SIZE]
    finally:
        for shard in failing.shards:
            failing.instances[shard].sql("SELECT interlock.keyset_drop('odd')")


def test_a_keyset_that_a_shard_does_not_know_is_refused_before_anything_is_sent(failing):
    failing.instances["s0"].sql("SELECT interlock.keyset_create('half', 'orders', '{merchant_id}',"
                                " 'created_at DESC, order_id DESC')")
    client = failing.pg_client()
    mark = failing.mark()
    answer = pages_of(failing, client, keyset="half").ask(size=SIZE)
    assert len(answer.errors) == 1 and answer.status == "I", answer
    assert sum(failing.issued(mark).values()) == 0
    for shard in ("s1", "s2"):
        failing.instances[shard].sql("SELECT interlock.keyset_create('half', 'orders', '{merchant_id}',"
                                     " 'created_at DESC, order_id DESC')")
    # A new keyset is known to connections that were there before it.
    assert numbers([pages_of(failing, client, keyset="half").page(size=SIZE)]) == failing.truth[:SIZE]
    for shard in failing.shards:
        failing.instances[shard].sql("SELECT interlock.keyset_drop('half')")
    answer = pages_of(failing, client, keyset="half").ask(size=SIZE)
    assert len(answer.errors) == 1 and answer.status == "I", answer


@pytest.mark.parametrize("make, unmake", [
    ("CREATE COLLATION odd (provider = icu, locale = 'de')", "DROP COLLATION odd"),
    ("CREATE TYPE odd AS ENUM ('low', 'high')", "DROP TYPE odd")], ids=["collation", "enum"])
def test_texts_are_sorted_together_only_by_shards_with_the_same_collations(failing, make, unmake):
    """Their versions are compared, and those that users made, and the labels of enums; an order of numbers does not care."""
    text = "/* interlock: scatter */ SELECT order_id FROM orders ORDER BY {} LIMIT 5"
    s1 = failing.instances["s1"]

    def greet_again():
        for shard in failing.shards:
            failing.instances[shard].sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
        wait_until(lambda: not any(failing.backends().values()), 10, "the backends are gone")

    client = failing.pg_client()
    s1.sql(make)
    try:
        greet_again()
        client.query(text.format("status, order_id")).refused("IL208", "I")
        assert len(client.ok(text.format("created_at, order_id")).rows) == 5
    finally:
        s1.sql(unmake)
    greet_again()
    assert len(client.ok(text.format("status, order_id")).rows) == 5


# -- clients that cancel or vanish ----------------------------------------------------------------


@pytest.mark.parametrize("message", [w.query(TEXT), w.extended(TEXT) + w.sync()], ids=["simple", "extended"])
def test_a_cancel_in_mid_page_ends_it_on_all_shards_and_nobody_else_is_cancelled(failing, message):
    client, other = failing.pg_client(), failing.pg_client()
    holders = [lock(failing, shard) for shard in failing.shards]
    client.send(message)
    wait_until(lambda: failing.lock_waiters() == 3, 10, "it waits on three shards")
    other.send(message)
    wait_until(lambda: failing.lock_waiters() == 6, 10, "so does another")
    with Stopwatch() as watch:
        client.cancel()
        client.until_ready().refused("57014", "I")
    assert watch.seconds < 1 * SLACK
    wait_until(lambda: failing.lock_waiters() == 3, 2 * SLACK, "its statements have ended")
    for holder in holders:
        holder.rollback()
    assert [int(row[0]) for row in other.until_ready().ok().rows] == failing.truth[:SIZE]
    assert [int(row[0]) for row in client.ok(TEXT).rows] == failing.truth[:SIZE]
    settled(failing)


def test_cancels_at_random_moments_strike_only_their_own_client(failing):
    """Backends are shared: a cancel that arrives late would strike whoever has the backend then."""
    stop, faults, served = threading.Event(), [], [0, 0]

    def innocent(number):
        try:
            with failing.router.pg_client() as client:
                while not stop.is_set():
                    assert [int(row[0]) for row in client.ok(TEXT).rows] == failing.truth[:SIZE]
                    served[number] += 1
        except Exception as fault:  # noqa: BLE001  (shown by the test)
            faults.append(fault)

    threads = [threading.Thread(target=innocent, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    random, cancelled = Random(3), 0
    client = failing.pg_client()
    end = time.monotonic() + 2.5 * SLACK
    while time.monotonic() < end:
        client.send(w.query(TEXT))
        time.sleep(random.random() * 0.02)
        client.cancel()
        answer = client.until_ready()
        assert not answer.errors or answer.codes == ["57014"], answer
        cancelled += bool(answer.errors)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not faults, faults
    assert min(served) > 5 and cancelled > 5, (served, cancelled)
    settled(failing)


@pytest.mark.parametrize("message", [w.query(TEXT), w.extended(TEXT) + w.sync()], ids=["simple", "extended"])
@pytest.mark.parametrize("manner", ["closes", "resets", "terminates"])
def test_a_client_that_vanishes_in_mid_page_leaves_no_statement_behind(failing, manner, message):
    holder = lock(failing, "s1")
    clients = [failing.pg_client() for _ in range(2)]
    for client in clients:
        client.send(message)
    wait_until(lambda: failing.lock_waiters() == 2, 10, "both wait")
    for client in clients:
        if manner == "resets":
            client.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER of no time
        client.terminate() if manner == "terminates" else client.close()
    wait_until(lambda: failing.lock_waiters() == 0, 5 * SLACK, "their statements have ended")
    settled(failing)
    holder.rollback()
    right(failing)


def test_a_router_that_stops_leaves_no_statement_behind(failing):
    """The last client is gone, and nobody waits for its page any more: it is still ended before the router goes."""
    router = failing.new_router().start()
    holder = lock(failing, "s1")
    client = failing.pg_client(router)
    client.send(w.query(TEXT))
    wait_until(lambda: failing.lock_waiters() == 1, 10, "it waits")
    router.expected_end = True
    router.send(signal.SIGTERM)
    client.close()
    assert router.process.wait(20 * SLACK) == 0
    assert failing.lock_waiters() == 0
    holder.rollback()
    right(failing)


def test_a_client_that_does_not_read_holds_no_memory_and_is_cancelled_in_time(failing):
    """Rows of 200 kB: far more than any buffer on the way, had they all to be held."""
    text = ("/* interlock: scatter */ SELECT order_id, repeat('x', 200000) FROM orders ORDER BY order_id LIMIT 600")
    client = failing.pg_client(receive_buffer=4096)
    before = failing.router.resident_kib()
    client.send(w.query(text))
    client.receive()
    time.sleep(0.3)
    assert failing.router.resident_kib() - before < 40_000 * SLACK
    client.cancel()
    answer = client.until_ready()
    assert answer.codes == ["57014"] or not answer.errors
    client.send(w.query(text))
    client.receive()
    client.close()
    settled(failing)


# -- many at once ---------------------------------------------------------------------------------


def test_many_scatters_on_small_pools_neither_deadlock_nor_exceed_them(failing):
    """Each needs a connection of every shard; others want one each. All are served, in any order."""
    # A row of each shard: several would be locked in any order.
    one = {shard: next(order for order in failing.orders if failing.shard_name(order.user_id) == shard)
           for shard in failing.shards}
    stop, faults, most, served = threading.Event(), [], [0], []

    def watch():
        with failing.s0.connect("postgres") as a, failing.instances["s1"].connect("postgres") as b:
            while not stop.is_set():
                most[0] = max(most[0], *(c.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'")
                                         .fetchone()[0] for c in (a, b)))

    def work(number):
        try:
            with failing.router.pg_client(timeout=30) as client:
                random, count = Random(number), 0
                while not stop.is_set():
                    if random.random() < 0.5:
                        assert [int(row[0]) for row in client.ok(TEXT).rows] == failing.truth[:SIZE]
                    else:
                        row = one[random.choice(failing.shards)]
                        client.ok("BEGIN")
                        client.ok("UPDATE orders SET note = note"
                                  f" WHERE user_id = {row.user_id} AND order_id = {row.order_id}")
                        client.ok("COMMIT")
                    count += 1
                served.append(count)
        except Exception as fault:  # noqa: BLE001  (shown by the test)
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    watcher = threading.Thread(target=watch)
    for thread in [*threads, watcher]:
        thread.start()
    time.sleep(3 * SLACK)
    stop.set()
    for thread in [*threads, watcher]:
        thread.join(30)
        assert not thread.is_alive(), "somebody waits for ever"
    assert not faults, faults
    assert len(served) == 24 and min(served) > 0
    # One more: cancel requests and connections that are just ending are no sessions of a pool.
    assert most[0] <= POOL + 1, most
    settled(failing)
