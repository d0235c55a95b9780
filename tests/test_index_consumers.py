"""From the outbox into the index: nothing is skipped, nothing older wins, whatever dies on the way."""

import json
import threading
import time
from random import Random

import pytest

from support.indexed import ENTRIES, INDEX
from support.order_cluster import Order, newest_first, numbers, single_column_insert
from support.orders import START
from support.placement import bucket_of
from support.router import SLACK
from support.wait import Stopwatch, wait_until
from test_index_pages import SCATTER, whole_walk


def user_of(indexed, shard, nth=0):
    return [user for user in range(1, 301) if indexed.shard_name(user) == shard][nth]


def fresh(number, user, merchant=3, when=START):
    return Order(number, user, merchant, when, 1.0, 1, None, "new", None)


def entry(indexed, number):
    """(merchant_id, route version, seq, deleted) of the order's entry."""
    rows = indexed.idx.sql("SELECT merchant_id, interlock_route_version, interlock_seq, interlock_deleted"
                           f" FROM {ENTRIES} WHERE order_id = %s", number)
    return rows[0] if rows else None


def status(indexed):
    """What `interlock index status --json` says of each shard."""
    return [json.loads(line) for line in indexed.index("status", INDEX, "--json", check=False).stdout.splitlines()]


class Held:
    """Somebody has taken all records of a shard and neither removes them nor gives them back: consumers skip them."""

    def __init__(self, indexed, shard, expect=None):
        self.connection = indexed.connect(shard, autocommit=False)
        self.records = self.connection.execute(
            "SELECT seq, route_version, op FROM interlock.outbox_take(100000, %s) ORDER BY seq", (INDEX,)).fetchall()
        assert expect is None or len(self.records) == expect, self.records

    def release(self):
        self.connection.rollback()


# -- what a consumer must not skip ----------------------------------------------------------------


def test_a_transaction_held_open_from_early_on_is_not_skipped(changed_indexed):
    indexed = changed_indexed
    user = user_of(indexed, "s0")
    early = indexed.connect("s0", autocommit=False)
    early.execute("INSERT INTO orders VALUES (50001, %s, 3, %s, 1, 1, NULL, 'new', NULL)", (user, START))
    for number in range(50002, 50022):
        indexed.insert(fresh(number, user))
    # Control: a consumer that goes on from the highest number it has seen.
    def past(last):
        return [row[0] for row in indexed.s0.sql("SELECT (new ->> 'order_id')::int FROM interlock.outbox"
                                                 " WHERE stream = %s AND seq > %s ORDER BY seq", INDEX, last)]

    last = indexed.s0.value("SELECT max(seq) FROM interlock.outbox WHERE stream = %s", INDEX)
    naive = past(0)
    assert naive == list(range(50002, 50022))
    consumer = indexed.consumer()
    indexed.drained()
    assert entry(indexed, 50021) and not entry(indexed, 50001)
    consumer.freeze()
    early.commit()
    naive += past(last)
    assert 50001 not in naive, "it loses the row"
    assert indexed.backlog()["s0"] == 1
    consumer.thaw()
    indexed.drained()
    assert entry(indexed, 50001)
    indexed.equal()


def test_deletes_and_new_rows_of_the_same_key_end_as_the_shard_has_it(changed_indexed):
    """In one transaction, in several, rolled back in part; taken one by one or all at once."""
    indexed = changed_indexed
    first = newest_first(indexed.orders, 3)[:24]
    insert = "INSERT INTO orders VALUES (%s, %s, %s, %s, 1, 1, NULL, 'new', NULL)"
    delete = "DELETE FROM orders WHERE order_id = %s AND user_id = %s"

    def again(connection, order, merchant):
        connection.execute(delete, (order.order_id, order.user_id))
        connection.execute(insert, (order.order_id, order.user_id, merchant, order.created_at))

    for batch in (1, 1000):
        for number, order in enumerate(first):
            with indexed.shard_of(order.user_id).connect(autocommit=number % 2 == 0) as connection:
                for merchant in (4, 5, 3 + number % 3):
                    again(connection, order, merchant)
                if number % 5 == 0:
                    connection.execute("UPDATE orders SET merchant_id = 9, created_at = created_at + interval '1 s'"
                                       " WHERE order_id = %s AND user_id = %s", (order.order_id, order.user_id))
                if number % 7 == 0:
                    connection.execute(delete, (order.order_id, order.user_id))
                    connection.execute(insert, (order.order_id, order.user_id, 3, order.created_at))
                if number % 2:
                    connection.execute("SAVEPOINT s")
                    again(connection, order, 8)
                    connection.execute("ROLLBACK TO s")
                    if number % 11 == 0:
                        connection.execute(delete, (order.order_id, order.user_id))
                        connection.execute(insert, (order.order_id, order.user_id, 3, order.created_at))
                    connection.commit()
        indexed.drain("--batch", batch)
        indexed.equal()
    for order in first:
        indexed.delete(order)
    indexed.drain()
    indexed.equal()
    assert all(entry(indexed, order.order_id)[3] for order in first), "a tombstone each"
    for order in first:
        indexed.insert(order._replace(merchant_id=6))
    indexed.drain()
    indexed.equal()


# -- killed ---------------------------------------------------------------------------------------


def test_a_consumer_killed_between_the_two_commits_is_replayed_with_the_same_result(changed_indexed):
    indexed = changed_indexed
    first = newest_first(indexed.orders, 3)
    for order in first[:20]:
        indexed.update(order, merchant_id=4)
    for order in first[20:40]:
        indexed.delete(order)
    for number in range(20):
        indexed.insert(fresh(50_000 + number, 1 + 7 * number))
    backlog = indexed.backlog()
    assert sum(backlog.values()) == 60 and all(backlog.values())
    before = indexed.contents()
    killed = indexed.consumer(env={"INTERLOCK_TEST_STOP": "after-index-commit"})
    # All 60 have reached the index, and not one has left its outbox.
    wait_until(lambda: not any(indexed.differences()), 30 * SLACK, "everything is in the index")
    assert indexed.backlog() == backlog
    killed.kill()
    wait_until(lambda: takers(indexed) == 0, 10 * SLACK, "its sessions are gone")
    assert indexed.backlog() == backlog
    applied = indexed.contents()
    assert applied != before
    indexed.drain()
    assert not any(indexed.backlog().values())
    assert indexed.contents() == applied, "the replay changes nothing"
    indexed.equal()


def takers(indexed):
    return sum(instance.value("SELECT count(*)::int FROM pg_stat_activity WHERE usename = %s", indexed.indexer,
                              dbname="postgres") for instance in indexed.instances.values())


def test_several_consumers_take_turns_and_any_of_them_may_die(changed_indexed):
    """Records of one key in many batches of different consumers, some killed: the newest wins."""
    indexed = changed_indexed
    random = Random(5)
    hot = newest_first(indexed.orders, 3)[:30]
    consumers = [indexed.consumer("--batch", 7) for _ in range(3)]
    for round_ in range(12):
        for order in hot:
            indexed.update(order, merchant_id=random.randint(1, 10),
                           created_at=order.created_at.replace(second=random.randrange(60)))
        if round_ % 3 == 2:
            consumers.pop(0).kill()
            consumers.append(indexed.consumer("--batch", 7))
    indexed.drained()
    indexed.equal()


# -- an index database that is away ---------------------------------------------------------------


def test_the_index_database_is_away_for_a_while(changed_indexed):
    """Shards and writers do not notice; pages say who is missing; the lag shows, and is made up for."""
    indexed = changed_indexed
    consumer = indexed.consumer()
    client = indexed.pg_client()
    pages = indexed.pages(client)
    first = newest_first(indexed.orders, 3)
    assert numbers([pages.page(size=50)]) == [order.order_id for order in first[:50]]
    indexed.idx.stop("immediate")
    try:
        with Stopwatch() as watch:
            for number in range(100):
                assert client.ok(single_column_insert(fresh(50_000 + number, 1 + 3 * number % 300))).tag == "INSERT 0 1"
            for order in first[:50]:
                indexed.update(order, merchant_id=4)
        assert watch.seconds < 10 * SLACK, "writers wait for nobody"
        answer = pages.ask(size=50)
        assert answer.errors and answer.status == "I" and not answer.rows, answer
        assert "idx" in " ".join(answer.error.fields.values()), answer
        # The shards can answer by themselves.
        scattered = client.ok(SCATTER + "SELECT (item).order_id FROM interlock.keyset_page('merchant_orders',"
                              " NULL::orders, '{\"merchant_id\": 3}', page_size => 50)")
        assert [int(row[0]) for row in scattered.rows] == indexed.truth(3)[:50]
        assert sum(indexed.backlog().values()) >= 150
        records = indexed.s0.sql("SELECT records, age FROM interlock.outbox_backlog WHERE stream = %s", INDEX)
        assert records[0][0] > 0 and records[0][1].total_seconds() > 0
        said = status(indexed)
        assert sum(part["backlog"] for part in said) >= 150 and max(part["lag_seconds"] for part in said) > 0
        assert consumer.running()
    finally:
        indexed.idx.start()
    indexed.drained()
    indexed.equal()
    wait_until(lambda: not pages.ask(size=50).errors, 20 * SLACK, "the router is back at the index")
    assert numbers(whole_walk(pages, 100)) == indexed.truth(3)


def test_a_shard_that_restarts_under_its_consumer_loses_nothing(changed_indexed):
    indexed = changed_indexed
    consumer = indexed.consumer("--batch", 5)
    for round_ in range(2):
        for order in newest_first(indexed.orders, 3)[:60]:
            indexed.update(order, merchant_id=4 + round_)
        indexed.instances["s1"].restart("immediate")
        if round_:
            indexed.idx.restart("immediate")
    indexed.drained()
    indexed.equal()
    assert consumer.running()


# -- two route versions ---------------------------------------------------------------------------


@pytest.fixture
def moved(changed_indexed):
    """(cluster, order, bucket): an order of a bucket on s0 that tests move to s1."""
    order = next(order for order in newest_first(changed_indexed.orders, 3)
                 if changed_indexed.shard_name(order.user_id) == "s0")
    # The shard that gives the bucket away has counted much further than the one that gets it.
    changed_indexed.s0.sql("SELECT setval('interlock.outbox_seq', greatest(last_value, 50000000)) FROM interlock.outbox_seq")
    return changed_indexed, order, bucket_of(order.user_id)


def on_s1(indexed, text, *parameters):
    with indexed.instances["s1"].connect() as connection:
        assert connection.execute(text, parameters).rowcount == 1


def test_a_record_of_an_older_route_version_does_not_overwrite_a_newer_entry(moved):
    indexed, order, bucket = moved
    indexed.update(order, merchant_id=4)
    held = Held(indexed, "s0", 1)
    indexed.move_bucket(bucket, "s1")
    on_s1(indexed, "UPDATE orders SET merchant_id = 5 WHERE order_id = %s", order.order_id)
    newer = Held(indexed, "s1", 1)
    (old_seq, old_version, _), (new_seq, new_version, _) = held.records[0], newer.records[0]
    newer.release()
    assert old_version < new_version and old_seq > new_seq, "by its number alone, the older one would win"
    consumer = indexed.consumer()
    wait_until(lambda: indexed.backlog()["s1"] == 0, 20 * SLACK, "the newer one is applied")
    assert entry(indexed, order.order_id) == (5, new_version, new_seq, False)
    held.release()
    indexed.drained()
    assert entry(indexed, order.order_id) == (5, new_version, new_seq, False)
    indexed.equal()
    assert consumer.running()
    # The entry says s0 or s1, whoever wrote it last; pages go by the bucket.
    wait_until(lambda: indexed.router.status().rv == indexed.catalog.value("SELECT route_version FROM interlock.cluster"),
               10 * SLACK, "the router knows the new owner")
    for merchant in (3, 4, 5):
        before = indexed.filtered()
        assert numbers(whole_walk(indexed.pages(scope={"merchant_id": merchant}), 100)) == indexed.truth(merchant)
        assert indexed.filtered() == before


def test_a_row_deleted_by_the_new_owner_is_not_brought_back_by_the_old_ones_record(moved):
    """Its tombstone stays for as long as the old shard may hold a record of it, and no longer."""
    indexed, order, bucket = moved
    past(indexed, START, *indexed.shards)  # of each it is known up to when
    indexed.update(order, merchant_id=4)
    held = Held(indexed, "s0", 1)
    indexed.move_bucket(bucket, "s1")
    on_s1(indexed, "DELETE FROM orders WHERE order_id = %s", order.order_id)
    pass_by(indexed)
    assert indexed.backlog() == {"s0": 1, "s1": 0, "s2": 0}
    assert entry(indexed, order.order_id)[3]
    gone_at = indexed.idx.value(f"SELECT interlock_applied FROM {ENTRIES} WHERE order_id = %s", order.order_id)
    past(indexed, gone_at, "s1", "s2")
    purge(indexed)
    assert entry(indexed, order.order_id)[3], "s0 is not"
    held.release()
    pass_by(indexed)
    assert entry(indexed, order.order_id)[3]
    indexed.equal()
    past(indexed, gone_at, "s0")
    purge(indexed)
    assert entry(indexed, order.order_id) is None, "the tombstone goes"
    # Control: without its tombstone the old record makes a row of it again.
    old_seq, old_version, _ = held.records[0]
    indexed.idx.sql("SELECT interlock.index_apply(%s, 's0', jsonb_build_array(jsonb_build_object('s', %s::bigint, 'v',"
                    " %s::int, 'op', 'U', 'r', jsonb_build_object('order_id', %s::bigint, 'user_id', %s::bigint,"
                    " 'merchant_id', 4, 'created_at', %s::text))))", INDEX, old_seq, old_version, order.order_id,
                    order.user_id, order.created_at.isoformat())
    assert entry(indexed, order.order_id)[3] is False


# -- tombstones -----------------------------------------------------------------------------------


def purge(indexed):
    return indexed.idx.value("SELECT interlock.index_purge(%s)", INDEX)


def drained_through(indexed, shard):
    return indexed.idx.value("SELECT drained_through FROM interlock.index_progress WHERE index = %s AND shard = %s",
                             INDEX, shard) or START


def pass_by(indexed):
    """A consumer takes what it can get and ends; whether it has seen each outbox empty is not asked."""
    assert indexed.index("run", "--once", check=False).returncode in (0, 1)


def past(indexed, when, *shards):
    """Consumers come by until these shards are known to have no change that is older."""
    def known():
        pass_by(indexed)
        return all(drained_through(indexed, shard) > when for shard in shards)

    wait_until(known, 20 * SLACK, f"{shards} are past it")


def tombstones(indexed):
    return indexed.idx.value(f"SELECT count(*)::int FROM {ENTRIES} WHERE interlock_deleted")


def test_tombstones_go_when_no_older_change_can_come(changed_indexed):
    indexed = changed_indexed
    first = newest_first(indexed.orders, 3)
    # An open transaction on s2 may hold a change of anything.
    early = indexed.connect("s2", autocommit=False)
    early.execute("INSERT INTO orders VALUES (50001, %s, 3, %s, 1, 1, NULL, 'new', NULL)",
                  (user_of(indexed, "s2"), START))
    for order in first[:30]:
        indexed.delete(order)
    pass_by(indexed)
    assert not any(indexed.backlog().values())
    gone = [order.order_id for order in first[:30]]
    assert tombstones(indexed) >= 30
    newest = indexed.idx.value(f"SELECT max(interlock_applied) FROM {ENTRIES} WHERE interlock_deleted")
    past(indexed, newest, "s0", "s1")
    purge(indexed)
    assert all(entry(indexed, number) for number in gone)
    assert drained_through(indexed, "s2") < newest
    early.commit()
    holder = indexed.idx.connect()
    holder.execute("SELECT interlock.index_hold_tombstones(%s)", (INDEX,))
    past(indexed, newest, "s2")
    purge(indexed)
    assert all(entry(indexed, number) for number in gone), "a backfill or repair holds them"
    holder.close()
    wait_until(lambda: purge(indexed), 10 * SLACK, "the tombstones go")
    assert not any(entry(indexed, number) for number in gone)
    assert entry(indexed, 50_001)
    indexed.equal()


# -- what can never be applied --------------------------------------------------------------------


def parked(indexed):
    return sum(indexed.instances[shard].value("SELECT count(*)::int FROM interlock.outbox_parked") for shard in indexed.shards)


def test_a_record_that_cannot_be_applied_is_set_aside_and_blocks_its_key_only(changed_indexed):
    indexed = changed_indexed
    first = newest_first(indexed.orders, 3)
    sick, others = first[0], first[1:40]
    indexed.idx.sql(f"ALTER TABLE {ENTRIES} ADD CONSTRAINT poison CHECK (order_id <> {sick.order_id}) NOT VALID")
    try:
        consumer = indexed.consumer("--max-tries", 2)
        indexed.update(sick, merchant_id=4)
        for order in others:
            indexed.update(order, merchant_id=4)
        indexed.drained()
        assert parked(indexed) == 1
        assert entry(indexed, sick.order_id)[0] == 3
        assert all(entry(indexed, order.order_id)[0] == 4 for order in others)
        # Later changes of its key wait behind it, others still flow.
        indexed.update(sick, merchant_id=5)
        for order in others:
            indexed.update(order, merchant_id=6)
        indexed.drained()
        assert parked(indexed) == 2
        assert all(entry(indexed, order.order_id)[0] == 6 for order in others)
        assert sum(part["parked"] for part in status(indexed)) == 2
        shard = indexed.shard_of(sick.user_id)
        tries, error = shard.sql("SELECT tries, error FROM interlock.outbox_parked ORDER BY tries DESC LIMIT 1")[0]
        assert tries == 2 and "poison" in error
        # Pages have no wrong row meanwhile: the entry says merchant 3.
        assert sick.order_id not in numbers([indexed.pages().page(size=100)])
    finally:
        indexed.idx.sql(f"ALTER TABLE {ENTRIES} DROP CONSTRAINT poison")
    assert entry(indexed, sick.order_id)[0] == 3
    indexed.index("retry", INDEX)
    indexed.drained()
    assert parked(indexed) == 0
    assert entry(indexed, sick.order_id)[0] == 5
    indexed.equal()
    assert consumer.running()


# -- repair ---------------------------------------------------------------------------------------


def test_a_dual_write_that_was_killed_and_a_delete_past_the_outbox_are_found_and_mended(changed_indexed):
    """Control: an application that writes shard and index by itself, killed between the two commits."""
    indexed = changed_indexed
    order = newest_first(indexed.orders, 3)[10]
    for number, shard in ((50_001, "s0"), (50_002, "s1")):
        with indexed.connect(shard, autocommit=False) as one:
            one.execute("SET session_replication_role = replica")
            one.execute("INSERT INTO orders VALUES (%s, %s, 3, %s, 1, 1, NULL, 'new', NULL)",
                        (number, user_of(indexed, shard), START))
            one.commit()
        # Killed here: it has not come to its second transaction.
    indexed.delete(order, silently=True)
    indexed.drain()
    missing, stale = indexed.differences()
    assert (len(missing), len(stale)) == (2, 1), "the outbox knows nothing of it"
    seen = numbers(whole_walk(indexed.pages(), 50))
    assert order.order_id not in seen and 50_001 not in seen, "missing rows, no wrong ones"
    report = indexed.repair(expect=3)
    assert (report["missing"], report["stale"], report["mended"]) == (2, 1, 0)
    assert tuple(map(len, indexed.differences())) == (2, 1), "a dry run changes nothing"
    report = indexed.repair("--apply")
    assert (report["missing"], report["stale"], report["mended"]) == (2, 1, 3)
    indexed.equal()
    report = indexed.repair()
    assert (report["missing"], report["stale"]) == (0, 0)
    before = indexed.filtered()
    assert numbers(whole_walk(indexed.pages(), 50)) == indexed.truth(3)
    assert indexed.filtered() == before


def test_repair_of_one_scope_leaves_the_others_alone(changed_indexed):
    indexed = changed_indexed
    three, four = newest_first(indexed.orders, 3)[7], newest_first(indexed.orders, 4)[7]
    indexed.delete(three, silently=True)
    indexed.delete(four, silently=True)
    report = indexed.repair("--apply", "--scope", '{"merchant_id": 4}')
    assert report["stale"] == 1
    missing, stale = indexed.differences()
    assert not missing and [entry.split("|")[:2] for entry in stale] == [["3", str(three.order_id)]]
    assert indexed.repair("--apply")["stale"] == 1
    indexed.equal()


def test_repair_beside_writers_and_consumers_reports_nothing_wrong(changed_indexed):
    """What is on its way is not missing and not stale."""
    indexed = changed_indexed
    indexed.consumer()
    stop, faults = threading.Event(), []

    def write():
        random = Random(11)
        try:
            connections = {shard: indexed.instances[shard].connect() for shard in indexed.shards}
            mine = newest_first(indexed.orders, 3)[:300]
            while not stop.is_set():
                order = random.choice(mine)
                connections[indexed.shard_name(order.user_id)].execute(
                    "UPDATE orders SET merchant_id = %s WHERE order_id = %s AND user_id = %s",
                    (random.randint(3, 5), order.order_id, order.user_id))
            for connection in connections.values():
                connection.close()
        except Exception as fault:  # noqa: BLE001  (shown by the test)
            faults.append(fault)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        end = time.monotonic() + 3
        runs = 0
        while runs < 2 or time.monotonic() < end:
            report = indexed.repair(*(["--apply"] if runs % 2 else []))
            assert (report["missing"], report["stale"]) == (0, 0), report
            runs += 1
    finally:
        stop.set()
        writer.join(30)
    assert not faults, faults
    indexed.drained()
    indexed.equal()
