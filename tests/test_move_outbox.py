"""Outbox and global index through a move: rows that come and go are no changes, and what is older does not win."""

import threading
from random import Random

import pytest

from support.indexed import ENTRIES, INDEX
from support.moves import Mover, move_to_its_end
from support.order_cluster import newest_first, numbers
from support.placement import bucket_of
from support.router import SLACK
from support.wait import wait_until
from test_index_consumers import Held, entry, fresh, on_s1
from test_index_pages import whole_walk


@pytest.fixture
def moving(changed_indexed, request):
    """(cluster, order, mover): an order of a bucket on s0, and a function that starts moving that bucket to s1 up to
    a step."""
    indexed = changed_indexed
    order = next(order for order in newest_first(indexed.orders, 3) if indexed.shard_name(order.user_id) == "s0")
    # The shard that gives the bucket away has counted much further than the one that gets it.
    indexed.s0.sql("SELECT setval('interlock.outbox_seq', greatest(last_value, 50000000)) FROM interlock.outbox_seq")
    movers = []
    # Their primary keys do not have the shard key.
    for shard in indexed.shards:
        indexed.instances[shard].sql("ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE sample REPLICA IDENTITY FULL")

    def mover(stop, to="s1", user=order.user_id, *more):
        made = Mover(indexed.catalog.conninfo("app", "postgres"), "--keyspace", "accounts", "--bucket", bucket_of(user), "--to", to, *more,
                     stop=stop, log=indexed.base / f"{request.node.name[:40]}-{len(movers)}.log")
        movers.append(made)
        return made.stopped() if stop else made

    yield indexed, order, mover
    for made in movers:
        if made.running():
            made.kill()
    for (move,) in indexed.catalog.sql("SELECT id::text FROM interlock.moves WHERE finished IS NULL"):
        for what in ("--abort", "--resume"):
            move_to_its_end(indexed.catalog.conninfo("app", "postgres"), what, move, expect=None)


def of_bucket(indexed, order):
    return [row for row in indexed.orders if bucket_of(row.user_id) == bucket_of(order.user_id)]


def test_neither_the_copy_nor_the_stream_nor_the_clean_up_writes_a_record(moving):
    indexed, order, mover = moving
    rows = of_bucket(indexed, order)
    assert len(rows) > 10
    made = mover("after-copied")
    for row in rows[:6]:
        indexed.update(row, merchant_id=41)
    indexed.delete(rows[6])
    new = indexed.insert(fresh(60001, order.user_id, 41))
    made.go_on().end()
    # What users changed, where they changed it, once each.
    assert indexed.backlog() == {"s0": 8, "s1": 0, "s2": 0}
    assert indexed.s0.value("SELECT count(*) FROM orders WHERE user_id = %s", order.user_id) == 0
    assert indexed.instances["s1"].value("SELECT merchant_id FROM orders WHERE order_id = %s", new.order_id) == 41
    indexed.drain()
    indexed.equal()
    on_s1(indexed, "UPDATE orders SET merchant_id = 42 WHERE order_id = %s", rows[0].order_id)
    assert indexed.backlog() == {"s0": 0, "s1": 1, "s2": 0}
    indexed.drain()
    indexed.equal()


@pytest.mark.parametrize("change", ["update", "delete"])
def test_an_older_record_of_the_source_does_not_overwrite_what_the_target_wrote(moving, change):
    indexed, order, mover = moving
    made = mover("after-copied")
    indexed.update(order, merchant_id=4)
    made.go_on()
    held = None
    try:
        # Held as soon as it is written: the consumer passes it by. The clean-up waits for whoever holds it.
        held = Held(indexed, "s0", 1)
        owner = lambda: indexed.instances["s1"].value(  # noqa: E731
            "SELECT state FROM interlock.bucket_state WHERE keyspace = 'accounts' AND bucket = %s", bucket_of(order.user_id)) == "owned"
        wait_until(owner, 60 * SLACK, "the target owns the bucket")
        if change == "update":
            on_s1(indexed, "UPDATE orders SET merchant_id = 5 WHERE order_id = %s", order.order_id)
        else:
            on_s1(indexed, "DELETE FROM orders WHERE order_id = %s", order.order_id)
        newer = Held(indexed, "s1", 1)
        (old_seq, old_version, _), (new_seq, new_version, _) = held.records[0], newer.records[0]
        newer.release()
        assert old_version < new_version and old_seq > new_seq, "by its number alone, the older one would win"
        indexed.consumer()
        wait_until(lambda: indexed.backlog()["s1"] == 0, 20 * SLACK, "the newer one is applied")
        expected = entry(indexed, order.order_id)
        assert expected[1:] == (new_version, new_seq, change == "delete")
    finally:
        if held:
            held.release()
    made.end()
    indexed.drained()
    assert entry(indexed, order.order_id) == expected
    indexed.equal()


def test_records_that_lie_in_the_outbox_stay_there_and_are_taken_once(moving):
    """No consumer while the bucket goes there and comes back; then one takes all of it."""
    indexed, order, mover = moving
    indexed.update(order, merchant_id=11)
    mover(None).end()
    on_s1(indexed, "UPDATE orders SET merchant_id = 12 WHERE order_id = %s", order.order_id)
    mover(None, "s0").end()
    indexed.update(order, merchant_id=13)
    assert indexed.backlog() == {"s0": 2, "s1": 1, "s2": 0}
    versions = sorted(row[0] for shard in ("s0", "s1") for row in indexed.instances[shard].sql(
        "SELECT route_version FROM interlock.outbox WHERE stream = %s", INDEX))
    assert versions[0] < versions[1] < versions[2]
    done = indexed.drain()
    assert "applied 3 records" in done.stderr
    assert entry(indexed, order.order_id)[0] == 13
    indexed.equal()


def test_an_index_follows_through_moves_under_load(moving):
    """Inserts, updates and deletes of the bucket's rows through the router while it moves back and forth, a consumer at
    work: at last the index has what the shards have, and repair finds nothing."""
    indexed, order, mover = moving
    rows = of_bucket(indexed, order)
    indexed.consumer("--poll", "20ms")
    stop, faults, done = threading.Event(), [], []

    def write():
        client, chance, number = indexed.pg_client(timeout=60), Random(6), 70000
        there = {row.order_id: row.user_id for row in rows}
        while not stop.is_set():
            number += 1
            what = chance.choice(["INSERT", "UPDATE", "UPDATE", "DELETE"])
            if what == "INSERT" or len(there) < 5:
                text = (f"INSERT INTO orders VALUES ({number}, {order.user_id}, {chance.randint(1, 9)}, '2024-05-01 12:00+00', 1, 1,"
                        " NULL, 'new', NULL)")
                there[number] = order.user_id
            else:
                one = chance.choice(list(there))
                where = f"WHERE order_id = {one} AND user_id = {there[one]}"
                text = f"UPDATE orders SET merchant_id = {chance.randint(1, 9)} {where}" if what == "UPDATE" else f"DELETE FROM orders {where}"
                if what == "DELETE":
                    del there[one]
            answer = client.query(text)
            if answer.errors or answer.tag.split()[-1] != "1":
                faults.append((text, answer.plain()))
                return
            done.append(text)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        for to in ("s1", "s2", "s0"):
            before = len(done)
            mover(None, to).end()
            wait_until(lambda: len(done) > before + 50 or faults, 30 * SLACK)
    finally:
        stop.set()
        writer.join(30 * SLACK)
    assert not faults and len(done) > 150
    indexed.drained()
    indexed.equal()
    report = indexed.repair()
    assert (report["missing"], report["stale"]) == (0, 0), report
    for merchant in (3, 4):
        assert numbers(whole_walk(indexed.pages(scope={"merchant_id": merchant}), 100)) == indexed.truth(merchant)


def test_a_backfill_beside_a_move_enters_each_row_once(moving):
    """Both shards have rows of the bucket while it is read."""
    indexed, order, mover = moving
    made = mover("after-copied")
    before = sorted(indexed.entries())
    indexed.idx.sql(f"TRUNCATE {ENTRIES}; DELETE FROM interlock.index_backfill")
    indexed.index("backfill", INDEX)
    assert sorted(indexed.entries()) == before
    made.go_on().end()
    assert indexed.backlog() == {"s0": 0, "s1": 0, "s2": 0}
    indexed.equal()
    assert indexed.instances["s1"].value("SELECT count(*) FROM orders WHERE user_id = %s", order.user_id) > 0


@pytest.mark.parametrize("change", ["update", "delete"])
def test_what_a_transaction_writes_behind_the_fence_is_newer_than_what_it_wrote_before(moving, change):
    indexed, order, mover = moving
    made = mover("after-subscribed")
    with indexed.s0.connect() as session:
        with session.transaction():
            session.execute("UPDATE orders SET merchant_id = 21 WHERE order_id = %s", (order.order_id,))
            made.go_on()
            wait_until(lambda: indexed.s0.sql("SELECT 1 FROM interlock.bucket_state WHERE state = 'fenced'"), 30 * SLACK, "a fence", interval=0.002)
            if change == "update":
                session.execute("UPDATE orders SET merchant_id = 22 WHERE order_id = %s", (order.order_id,))
            else:
                session.execute("DELETE FROM orders WHERE order_id = %s", (order.order_id,))
    made.end()
    indexed.drain()
    merchant, _, _, deleted = entry(indexed, order.order_id)
    assert deleted if change == "delete" else merchant == 22
    indexed.equal()
