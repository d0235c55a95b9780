"""`interlock index`: consumers, backfill, status, records set aside. What must hold whenever something breaks."""

import json
import random
import re
import signal
import subprocess
import threading
import time

import pytest

from support.indexed import ENTRIES, INDEX, IndexedCluster
from support.order_cluster import make_orders
from support.placement import bucket_of
from support.proxy import CuttingProxy
from support.router import BINARY, SLACK, environment, run_interlock
from support.wait import Stopwatch, wait_until

# A merchant that no order has at first, and that a test makes the index refuse.
POISON = 666


@pytest.fixture(scope="module")
def module_indexed(owner, new_folder, router_binary):
    cluster = IndexedCluster(new_folder("indexer"), owner, rows=make_orders(1200, 40))
    cluster.proxy = None

    def behind_proxy():
        cluster.proxy = CuttingProxy(("127.0.0.1", cluster.idx.port))
        return re.sub(r"port=\d+", f"port={cluster.proxy.port}", cluster.idx.conninfo("app"))

    cluster.index_conninfo = behind_proxy
    try:
        cluster.make().fill_index()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def indexed(module_indexed):
    yield module_indexed
    module_indexed.end_test()
    module_indexed.restore()


def some(cluster, shard="s0", count=1, start=0):
    """Orders that are on this shard."""
    return [order for order in cluster.orders if cluster.shard_name(order.user_id) == shard][start:start + count]


def tombstones(cluster):
    return cluster.idx.value(f"SELECT count(*) FROM {ENTRIES} WHERE interlock_deleted")


def status(cluster, expect=0):
    done = cluster.index("status", INDEX, "--json", check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return {part["shard"]: part for part in map(json.loads, done.stdout.splitlines())}


def parked(cluster):
    return [row for shard in cluster.shards for row in cluster.instances[shard].sql(
        "SELECT seq, key ->> 'order_id', error FROM interlock.outbox_parked WHERE stream = %s ORDER BY seq", INDEX)]


class Refusing:
    """The index refuses one merchant."""

    def __init__(self, cluster):
        self.idx = cluster.idx

    def __enter__(self):
        self.idx.sql(f"ALTER TABLE {ENTRIES} ADD CONSTRAINT refused CHECK (merchant_id <> {POISON})")

    def __exit__(self, *_):
        self.idx.sql(f"ALTER TABLE {ENTRIES} DROP CONSTRAINT refused")


# -- the usual ---------------------------------------------------------------------------------------

def test_a_running_consumer_brings_every_kind_of_change_at_once(indexed):
    indexed.consumer()
    moved, gone, renamed, again = some(indexed, count=4)
    indexed.update(moved, merchant_id=moved.merchant_id + 100)
    indexed.delete(gone)
    indexed.update(renamed, order_id=renamed.order_id + 1_000_000)
    indexed.delete(again)
    indexed.insert(again._replace(merchant_id=5))
    indexed.insert(some(indexed, "s1")[0]._replace(order_id=2_000_000))
    wait_until(lambda: indexed.differences() == ([], []), 40 * SLACK, "the index is like the rows")
    indexed.drained()


def test_a_transaction_of_a_change_that_does_not_matter_leaves_no_record(indexed):
    order = some(indexed)[0]
    indexed.update(order, note="of no column of the index")
    assert sum(indexed.backlog().values()) == 0


def test_once_ends_when_there_is_nothing_left(indexed):
    indexed.update(some(indexed)[0], merchant_id=77)
    done = indexed.drain()
    assert "applied 1 records, set aside 0" in done.stderr
    indexed.equal()


def test_once_does_not_wait_for_records_that_another_holds(indexed):
    order = some(indexed)[0]
    indexed.update(order, merchant_id=78)
    with indexed.instances["s0"].connect(autocommit=False) as holder:
        assert len(holder.execute("SELECT * FROM interlock.outbox_take(100, %s)", (INDEX,)).fetchall()) == 1
        with Stopwatch() as watch:
            done = indexed.drain()
        assert watch.seconds < 20 * SLACK
        assert "shard s0: records are left that another session has in hand" in done.stderr
        assert done.stderr.count("records are left") == 1
        assert indexed.differences() != ([], [])
        holder.rollback()
    indexed.drain()
    indexed.equal()


def test_an_early_transaction_that_commits_late_is_not_passed_over(indexed):
    early, late = some(indexed, count=2)
    with indexed.instances["s0"].connect(autocommit=False) as held:
        held.execute("UPDATE orders SET merchant_id = 81 WHERE order_id = %s", (early.order_id,))
        indexed.update(late, merchant_id=82)
        indexed.consumer()
        wait_until(lambda: sum(indexed.backlog().values()) == 0, 30 * SLACK, "what is committed is applied")
        held.commit()
    wait_until(lambda: indexed.differences() == ([], []), 30 * SLACK, "the index is like the rows")


def test_sigterm_ends_a_consumer_quickly_and_cleanly(indexed):
    consumer = indexed.consumer()
    wait_until(lambda: "consuming" in consumer.log_text(), 30 * SLACK)
    with Stopwatch() as watch:
        consumer.stop()
    assert watch.seconds < 9 * SLACK


def test_the_outbox_does_not_keep_what_was_consumed(indexed):
    indexed.instances["s0"].sql("""DO $$ BEGIN
        FOR round IN 1..240 LOOP
            UPDATE orders SET merchant_id = merchant_id + 1;
            COMMIT;
        END LOOP; END $$""")
    before = status(indexed)["s0"]
    assert before["backlog"] > 90_000
    indexed.drain()
    after = status(indexed)["s0"]
    assert after["backlog"] == 0 and after["backlog_bytes"] < before["backlog_bytes"] / 2
    indexed.equal()


# -- deaths ------------------------------------------------------------------------------------------

def test_killed_between_the_two_commits_and_replayed_nothing_changes(indexed):
    orders = some(indexed, count=6)
    for order in orders[:4]:
        indexed.update(order, merchant_id=91)
    indexed.delete(orders[4])
    consumer = indexed.consumer(env={"INTERLOCK_TEST_STOP": "after-index-commit"})
    wait_until(lambda: indexed.differences() == ([], []), 30 * SLACK, "the index is committed")
    before = indexed.contents()
    assert sum(indexed.backlog().values()) == 5
    consumer.kill()
    done = indexed.drain()
    assert "applied 5 records" in done.stderr
    assert indexed.contents() == before
    assert sum(indexed.backlog().values()) == 0


def test_killed_between_the_two_commits_what_another_has_done_since_is_not_undone(indexed):
    order = some(indexed)[0]
    indexed.update(order, merchant_id=92)
    consumer = indexed.consumer(env={"INTERLOCK_TEST_STOP": "after-index-commit"})
    wait_until(lambda: indexed.differences() == ([], []), 30 * SLACK, "the index is committed")
    consumer.kill()
    indexed.delete(order)
    indexed.insert(order._replace(merchant_id=93))
    indexed.drain()
    indexed.equal()


@pytest.mark.parametrize("point", ["after-take", "before-index-commit"])
def test_killed_before_the_index_commit_nothing_is_lost(indexed, point):
    before = indexed.contents()
    indexed.update(some(indexed)[0], merchant_id=94)
    consumer = indexed.consumer(env={"INTERLOCK_TEST_STOP": point})
    wait_until(lambda: f"stopped at {point}" in consumer.log_text(), 30 * SLACK)
    assert indexed.contents() == before
    consumer.kill()
    assert indexed.contents() == before
    indexed.drain()
    indexed.equal()


@pytest.mark.parametrize("word", ["index_apply", "commit", "begin"])
@pytest.mark.parametrize("before", [True, False])
def test_a_connection_to_the_index_database_that_breaks_anywhere(indexed, word, before):
    for order in some(indexed, count=3) + some(indexed, "s1", 3):
        indexed.update(order, merchant_id=95)
    indexed.proxy.arm(word, before)
    indexed.consumer()
    assert indexed.proxy.cut.wait(20 * SLACK)
    indexed.drained()
    indexed.equal()


def test_shards_and_index_database_restart_under_a_consumer(indexed):
    consumer = indexed.consumer("--poll", "10ms")
    for number, victim in enumerate(("idx", "s0", "idx")):
        for order in some(indexed, count=20, start=20 * number) + some(indexed, "s1", 20, 20 * number):
            indexed.update(order, merchant_id=100 + number)
        indexed.instances[victim].restart("immediate")
    for order in some(indexed, count=5, start=100):
        indexed.update(order, merchant_id=104)
    indexed.drained()
    wait_until(lambda: indexed.differences() == ([], []), 40 * SLACK, "the index is like the rows")
    assert consumer.running() and "trying again" in consumer.log_text()


def test_without_an_index_database_the_shards_work_and_the_lag_is_told(indexed):
    consumer = indexed.consumer("--lag-warning", "1s")
    wait_until(lambda: "consuming" in consumer.log_text(), 30 * SLACK)
    indexed.idx.stop("immediate")
    try:
        indexed.update(some(indexed)[0], merchant_id=105)
        wait_until(lambda: status(indexed, expect=1)["s0"]["lag_seconds"] > 0, 30 * SLACK)
        assert status(indexed, expect=1)["s0"]["backlog"] == 1
        done = indexed.index("run", "--once", check=False)
        assert done.returncode == 1
    finally:
        indexed.idx.start()
    indexed.drained()
    indexed.equal()
    assert status(indexed)["s0"]["lag_seconds"] == 0


def test_several_consumers_killed_at_random_beside_writers(indexed):
    """Each change once or more, none out of order: the index is the truth afterwards."""
    done = threading.Event()
    faults = []
    chance = random.Random(5)

    def write(shard, seed):
        try:
            mine = [order.order_id for order in some(indexed, shard, 40)]
            with indexed.instances[shard].connect() as connection:
                round = 0
                while not done.is_set():
                    round += 1
                    key = mine[(round * 7 + seed) % len(mine)]
                    with connection.transaction():
                        row = connection.execute("DELETE FROM orders WHERE order_id = %s RETURNING *", (key,)).fetchone()
                        if row and round % 3:
                            marks = ", ".join(["%s"] * len(row))
                            connection.execute(f"INSERT INTO orders VALUES ({marks})",
                                               (row[0], row[1], 200 + round % 50, *row[3:]))
                        elif row:
                            connection.execute("INSERT INTO orders VALUES (%s, %s, %s, now(), NULL, 1, NULL, 'new', NULL)",
                                               (row[0], row[1], 200 + round % 50))
        except Exception as fault:  # noqa: BLE001
            faults.append(fault)

    writers = [threading.Thread(target=write, args=(shard, seed)) for seed, shard in enumerate(("s0", "s1", "s2", "s0"))]
    for writer in writers:
        writer.start()
    try:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            consumers = [indexed.consumer("--batch", size) for size in (3, 50)]
            wait_until(lambda: all("consuming" in consumer.log_text() for consumer in consumers), 40 * SLACK)
            time.sleep(chance.uniform(0, 0.5))  # a moment to be killed at
            for consumer in consumers:
                consumer.kill()
    finally:
        done.set()
        for writer in writers:
            writer.join(30)
    assert not faults, faults
    mark = indexed.idx.log_mark()
    for _ in range(3):
        indexed.consumer()
    indexed.drained()
    indexed.equal()
    assert "deadlock" not in indexed.idx.log_since(mark)


# -- records that cannot be applied -----------------------------------------------------------------

def test_a_poison_record_is_set_aside_and_only_its_key_waits(indexed):
    poisoned, *others = some(indexed, count=9)
    with Refusing(indexed):
        for order in others[:4]:
            indexed.update(order, merchant_id=110)
        indexed.update(poisoned, merchant_id=POISON)
        for order in others[4:]:
            indexed.update(order, merchant_id=111)
        done = indexed.index("run", "--once", "--max-tries", "3", check=False)
        assert done.returncode == 3, done.stderr
        assert "applied 8 records, set aside 1" in done.stderr
        assert [(order_id, error[:5]) for _, order_id, error in parked(indexed)] == [(str(poisoned.order_id), "23514")]
        # later changes of the key wait behind it, though they could be applied
        indexed.update(poisoned, merchant_id=112)
        indexed.update(others[0], merchant_id=113)
        assert indexed.index("run", "--once", check=False).returncode == 3
        assert len(parked(indexed)) == 2
        # as long as they are there, even if nothing is added to them
        done = indexed.index("run", "--once", check=False)
        assert done.returncode == 3 and "applied 0 records, set aside 0" in done.stderr
        assert "2 records are set aside" in done.stderr
        missing, stale = indexed.differences()
        assert len(missing) == len(stale) == 1 and str(poisoned.order_id) in str(missing[0])
        shown = status(indexed)["s0"]
        assert shown["parked"] == 2 and shown["backlog"] == 0
        assert f'"order_id": {poisoned.order_id}' in indexed.index("status").stdout
    assert indexed.index("retry", INDEX).stdout == "2 records put back into the outbox\n"
    indexed.drain()
    indexed.equal()
    assert parked(indexed) == []


def test_discarding_a_record_is_exact_and_repair_mends(indexed):
    poisoned = some(indexed)[0]
    with Refusing(indexed):
        indexed.update(poisoned, merchant_id=POISON)
        assert indexed.index("run", "--once", "--max-tries", "1", check=False).returncode == 3
    (seq, _, _), = parked(indexed)
    wrong = indexed.index("discard", INDEX, seq + 1, check=False)
    assert wrong.returncode == 1 and f"record {seq + 1} of index \"{INDEX}\" is not set aside" in wrong.stderr
    assert indexed.index("discard", INDEX, seq).stdout.startswith("1 record discarded")
    assert indexed.repair("--apply", expect=None)
    indexed.equal()


def test_the_same_number_on_two_shards_is_not_guessed(indexed):
    for shard in ("s0", "s1"):
        indexed.instances[shard].sql("SELECT setval('interlock.outbox_seq', 5000000)")
    with Refusing(indexed):
        for shard in ("s0", "s1"):
            indexed.update(some(indexed, shard)[0], merchant_id=POISON)
        assert indexed.index("run", "--once", "--max-tries", "1", check=False).returncode == 3
    assert [seq for seq, _, _ in parked(indexed)] == [5000001, 5000001]
    refused = indexed.index("discard", INDEX, 5000001, check=False)
    assert refused.returncode == 1 and "--shard" in refused.stderr
    assert indexed.index("retry", INDEX, 5000001, "--shard", "s1").stdout == "1 record put back into the outbox\n"
    assert len(parked(indexed)) == 1
    indexed.index("retry", INDEX)
    indexed.drain()
    indexed.equal()


def test_a_fault_of_the_index_itself_parks_nothing(indexed):
    indexed.update(some(indexed)[0], merchant_id=114)
    indexed.idx.sql(f"ALTER TABLE {ENTRIES} RENAME COLUMN merchant_id TO hidden")
    try:
        consumer = indexed.consumer("--max-tries", "1")
        wait_until(lambda: "trying again" in consumer.log_text(), 30 * SLACK)
        assert parked(indexed) == [] and indexed.backlog()["s0"] == 1
    finally:
        indexed.idx.sql(f"ALTER TABLE {ENTRIES} RENAME COLUMN hidden TO merchant_id")
    indexed.drained()
    indexed.equal()


# -- tombstones --------------------------------------------------------------------------------------

def test_tombstones_go_when_every_shard_is_drained(indexed):
    for order in some(indexed, count=3):
        indexed.delete(order)
    consumer = indexed.consumer("--purge-interval", "200ms", "--poll", "10ms")
    wait_until(lambda: tombstones(indexed) > 0, 30 * SLACK)
    wait_until(lambda: tombstones(indexed) == 0, 30 * SLACK, "tombstones are removed")
    assert consumer.running()
    indexed.equal()


def test_tombstones_stay_while_a_shard_has_an_older_transaction_open(indexed):
    other = some(indexed, "s1")[0]
    with indexed.instances["s1"].connect(autocommit=False) as held:
        held.execute("UPDATE orders SET merchant_id = 120 WHERE order_id = %s", (other.order_id,))
        indexed.delete(some(indexed)[0])
        indexed.consumer("--purge-interval", "100ms", "--poll", "10ms")
        wait_until(lambda: tombstones(indexed) > 0, 30 * SLACK)
        before = indexed.idx.value("SELECT max(updated) FROM interlock.index_progress WHERE shard = 's0'")
        # The consumer has looked again and again, and has not removed it.
        wait_until(lambda: indexed.idx.value("SELECT updated > %s + interval '4 s' FROM interlock.index_progress"
                                             " WHERE shard = 's0'", before), 30 * SLACK)
        assert tombstones(indexed) > 0
        held.commit()
    wait_until(lambda: tombstones(indexed) == 0, 30 * SLACK, "tombstones are removed")


def test_tombstones_stay_while_somebody_holds_them(indexed):
    indexed.delete(some(indexed)[0])
    with indexed.idx.connect() as holder:
        holder.execute("SELECT interlock.index_hold_tombstones(%s)", (INDEX,))
        indexed.drain()
        indexed.drain()
        assert tombstones(indexed) > 0
        assert indexed.idx.value("SELECT interlock.index_purge(%s)", INDEX) == 0
        assert tombstones(indexed) > 0
    indexed.drain()
    wait_until(lambda: indexed.idx.value("SELECT interlock.index_purge(%s)", INDEX) > 0, 30 * SLACK)


def test_a_consumer_that_lost_its_shard_cannot_bring_a_deleted_row_back(indexed):
    """It took a record; its shard connection broke; another applied that record and the deletion; the tombstone
    would be all that stops it."""
    order = some(indexed)[0]
    indexed.update(order, merchant_id=121)
    slow = indexed.consumer(env={"INTERLOCK_TEST_STOP": "before-index-commit"})
    wait_until(lambda: "stopped at" in slow.log_text(), 30 * SLACK)
    indexed.instances["s0"].sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                " WHERE application_name = 'interlock index'")
    indexed.delete(order)
    fast = indexed.consumer("--purge-interval", "100ms", "--poll", "10ms", "--timeout", "2s")
    # The slow one's entry is locked, so neither the record nor the deletion can be applied by another.
    wait_until(lambda: "trying again" in fast.log_text(), 30 * SLACK)
    assert indexed.backlog()["s0"] == 2
    slow.kill()
    indexed.drained()
    indexed.equal()


def test_a_drained_outbox_counts_when_the_transactions_of_its_time_have_ended(indexed):
    """The fence of index_report()."""
    def report(clock=None):
        indexed.idx.sql("SELECT interlock.index_report(%s, 's0', 'test', 0, %s, 1)", INDEX, clock)

    def drained():
        return indexed.idx.value("SELECT drained_through FROM interlock.index_progress WHERE index = %s AND shard = 's0'",
                                 INDEX)

    indexed.drain()
    report()
    with indexed.idx.connect(autocommit=False) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        now = indexed.idx.value("SELECT clock_timestamp()")
        report(now)
        for _ in range(3):
            report()
        assert drained() < now
        slow.commit()
    report()
    assert drained() == now


# -- backfill ----------------------------------------------------------------------------------------

def start_backfill(cluster, *arguments):
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", BINARY, "index", "backfill", INDEX, "--catalog",
                             cluster.catalog_conninfo(), *map(str, arguments)],
                            env=environment({"PGUSER": cluster.indexer}), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def empty_index(cluster):
    cluster.idx.sql(f"TRUNCATE {ENTRIES}; DELETE FROM interlock.index_backfill")


def test_a_backfill_makes_the_index_and_says_so(indexed):
    empty_index(indexed)
    done = indexed.index("backfill", INDEX, "--chunk", "100", "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "done" and last["rows"] == last["entered"] == len(indexed.orders)
    indexed.equal()
    assert status(indexed)["s0"]["backfill_finished"]
    again = indexed.index("backfill", INDEX)
    assert "0 rows read, 0 entries made" in again.stdout
    anew = indexed.index("backfill", INDEX, "--restart")
    assert f"{len(indexed.orders)} rows read, 0 entries made" in anew.stdout


def test_a_backfill_reads_all_again_after_the_index_was_taken_back(indexed):
    """What happened in between is not known. Here: changes of a shard were not recorded for a while."""
    empty_index(indexed)
    indexed.index("backfill", INDEX)
    indexed.catalog.sql("SELECT interlock.index_ready(%s, false)", INDEX)
    try:
        indexed.instances["s1"].sql("SELECT interlock.outbox_detach('orders', %s)", INDEX)
        indexed.insert(some(indexed, "s1")[0]._replace(order_id=2_000_000))
    finally:
        indexed.apply()
    assert indexed.differences() != ([], [])
    done = indexed.index("backfill", INDEX)
    assert f"{len(indexed.orders) + 1} rows read, 1 entries made" in done.stdout
    indexed.equal()
    assert "ready, skipping" not in done.stderr
    indexed.apply()
    # It is ready now, and kept up to date.
    assert "0 rows read, 0 entries made" in indexed.index("backfill", INDEX).stdout


def test_a_backfill_that_others_went_on_with_loses_no_place(indexed):
    """As if its lock had been lost, and another had begun anew."""
    empty_index(indexed)
    process = start_backfill(indexed, "--rate", "100", "--chunk", "10")
    try:
        wait_until(lambda: indexed.idx.value("SELECT count(*) FROM interlock.index_backfill WHERE rows >= 20") == 3,
                   40 * SLACK)
        indexed.idx.sql(f"DELETE FROM {ENTRIES}")
        indexed.idx.sql("UPDATE interlock.index_backfill SET position = NULL, rows = 0")
        assert process.wait(120 * SLACK) == 0
    finally:
        process.kill()
        process.wait(10)
    indexed.equal()


@pytest.mark.parametrize("end, expected", [(signal.SIGTERM, 1), (signal.SIGKILL, -9)])
def test_a_backfill_goes_on_where_it_was_interrupted(indexed, end, expected):
    empty_index(indexed)
    process = start_backfill(indexed, "--rate", "200", "--chunk", "20")
    try:
        wait_until(lambda: indexed.idx.value("SELECT coalesce(sum(rows), 0) FROM interlock.index_backfill") >= 60,
                   20 * SLACK)
    finally:
        process.send_signal(end)
    assert process.wait(20) == expected
    wait_until(lambda: indexed.idx.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'interlock index'")
               == 0, 30 * SLACK)
    there = indexed.idx.value("SELECT sum(rows) FROM interlock.index_backfill")
    assert 60 <= there < len(indexed.orders)
    done = json.loads(indexed.index("backfill", INDEX, "--json").stdout.splitlines()[-1])
    assert done["rows"] == len(indexed.orders)
    assert done["entered"] == len(indexed.orders) - there
    indexed.equal()


def test_two_backfills_of_one_index_are_one_too_many(indexed):
    empty_index(indexed)
    process = start_backfill(indexed, "--rate", "100")
    try:
        wait_until(lambda: indexed.idx.value("SELECT count(*) FROM interlock.index_backfill") > 0, 40 * SLACK)
        refused = indexed.index("backfill", INDEX, check=False)
        assert refused.returncode == 1 and "another backfill" in refused.stderr
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: indexed.index("backfill", INDEX, check=False).returncode == 0, 30 * SLACK)
    indexed.equal()


def test_tombstones_stay_while_a_backfill_may_have_read_their_rows(indexed):
    empty_index(indexed)
    process = start_backfill(indexed, "--rate", "50", "--chunk", "10")
    try:
        wait_until(lambda: indexed.idx.value("SELECT coalesce(sum(rows), 0) FROM interlock.index_backfill") > 0, 40 * SLACK)
        indexed.delete(some(indexed)[0])
        for _ in range(3):
            indexed.drain()
        assert indexed.idx.value("SELECT interlock.index_purge(%s)", INDEX) == 0 and tombstones(indexed) == 1
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: indexed.idx.value("SELECT interlock.index_purge(%s)", INDEX) == 1, 40 * SLACK)
    indexed.index("backfill", INDEX)
    indexed.equal()


def test_a_backfill_wants_changes_to_be_recorded(indexed):
    empty_index(indexed)
    rows = indexed.instances["s1"].sql("SELECT stream, columns::text, key::text FROM interlock.outbox_table")
    indexed.instances["s1"].sql("UPDATE interlock.outbox_table SET columns = '{merchant_id}'")
    try:
        refused = indexed.index("backfill", INDEX, check=False)
        assert refused.returncode == 1
        assert f'not all columns of table public.orders are recorded for index "{INDEX}"' in refused.stderr
        indexed.instances["s1"].sql("SELECT interlock.outbox_detach('orders', %s)", INDEX)
        refused = indexed.index("backfill", INDEX, check=False)
        assert refused.returncode == 1
        assert f'changes of table public.orders are not recorded for index "{INDEX}"' in refused.stderr
    finally:
        for stream, columns, key in rows:
            indexed.instances["s1"].sql("SELECT interlock.outbox_attach('orders', %s::text[], %s, %s::text[])", columns,
                                        stream, key)
    indexed.index("backfill", INDEX)
    indexed.equal()


def test_a_backfill_beside_writers_and_consumers_leaves_the_truth(indexed):
    empty_index(indexed)
    done = threading.Event()
    faults = []

    def write(shard):
        orders = some(indexed, shard, 400)
        try:
            with indexed.instances[shard].connect() as connection:
                for round in range(100000):
                    if done.is_set():
                        return
                    order = orders[round * 13 % len(orders)]
                    if round % 3 == 0:
                        connection.execute("DELETE FROM orders WHERE order_id = %s", (order.order_id,))
                    elif round % 3 == 1:
                        connection.execute("UPDATE orders SET merchant_id = %s WHERE order_id = %s",
                                           (300 + round % 9, order.order_id))
                    else:
                        connection.execute("INSERT INTO orders (order_id, user_id, merchant_id, created_at, quantity,"
                                           " status) VALUES (%s, %s, 310, now(), 1, 'new') ON CONFLICT DO NOTHING",
                                           (orders[(round * 13 - 26) % len(orders)].order_id, order.user_id))
        except Exception as fault:  # noqa: BLE001
            faults.append(fault)

    writers = [threading.Thread(target=write, args=(shard,)) for shard in indexed.shards]
    indexed.consumer("--purge-interval", "50ms", "--poll", "5ms")
    for writer in writers:
        writer.start()
    try:
        indexed.index("backfill", INDEX, "--rate", "600", "--chunk", "7")
    finally:
        done.set()
        for writer in writers:
            writer.join(30)
    assert not faults, faults
    indexed.drained()
    indexed.equal()


def test_a_bucket_that_moves_during_a_backfill_is_not_missed(indexed):
    """Its rows come to a shard that was read already, and leave one that was not read so far."""
    empty_index(indexed)
    indexed.index("backfill", INDEX)
    with_samples = {bucket_of(owner) for owner, in indexed.instances["s1"].sql("SELECT owner FROM sample")}
    with_orders = {bucket_of(order.user_id) for order in some(indexed, "s1", 1000)}
    bucket = next(iter(with_orders - with_samples))
    # As it is when s0 has been read, and s1 is not: its rows are nowhere yet.
    indexed.idx.sql(f"DELETE FROM {ENTRIES} WHERE interlock_shard = 's1'")
    indexed.idx.sql("UPDATE interlock.index_backfill SET position = NULL, finished = NULL WHERE shard = 's1'")
    indexed.move_bucket(bucket, "s0")
    indexed.index("backfill", INDEX)
    indexed.equal()


# -- the catalog changes -----------------------------------------------------------------------------

def test_indexes_come_and_go_under_a_consumer(indexed):
    consumer = indexed.consumer()
    with indexed.catalog.connect() as catalog:
        catalog.execute("SELECT interlock.create_index('by_status', 'orders', '{status}', 'order_id')")
    try:
        indexed.apply()
        wait_until(lambda: "index by_status, shard s2: consuming" in consumer.log_text(), 40 * SLACK)
        order = some(indexed)[0]
        indexed.update(order, status="unheard of")
        wait_until(lambda: indexed.idx.value("SELECT count(*) FROM interlock_index.by_status"
                                             " WHERE status = 'unheard of'") == 1, 30 * SLACK)
    finally:
        with indexed.catalog.connect() as catalog:
            catalog.execute("SELECT interlock.drop_index('by_status')")
        indexed.apply()
    wait_until(lambda: "index by_status, shard s2: no longer consumed" in consumer.log_text(), 40 * SLACK)
    indexed.update(some(indexed, "s1")[0], merchant_id=130)
    wait_until(lambda: indexed.differences() == ([], []), 40 * SLACK)
    assert consumer.running()


def test_new_routes_and_sigterm_do_not_wait_for_a_consumer_that_is_obsolete(indexed):
    stuck, other = some(indexed, count=2)
    consumer = indexed.consumer("--timeout", "5min")
    before = indexed.catalog.value("SELECT conninfo FROM interlock.shard WHERE name = 's0'")
    with indexed.idx.connect(autocommit=False) as holder:
        holder.execute(f"UPDATE {ENTRIES} SET interlock_seq = interlock_seq WHERE order_id = %s", (stuck.order_id,))
        indexed.update(stuck, merchant_id=150)
        wait_until(lambda: indexed.idx.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                             " AND application_name = 'interlock index'") == 1, 30 * SLACK)
        indexed.catalog.sql("SELECT interlock.set_shard_conninfo('s0', %s)", before + " connect_timeout=7")
        try:
            indexed.apply()
            wait_until(lambda: consumer.log_text().count(f"index {INDEX}, shard s0: consuming") == 2, 30 * SLACK,
                       "its successor is at work")
            indexed.update(other, merchant_id=151)
            wait_until(lambda: indexed.idx.value(f"SELECT merchant_id FROM {ENTRIES} WHERE order_id = %s", other.order_id)
                       == 151, 30 * SLACK, "its successor applies records")
            consumer.stop()
        finally:
            holder.rollback()
            indexed.catalog.sql("SELECT interlock.set_shard_conninfo('s0', %s)", before)
            indexed.apply()
    indexed.drain()
    indexed.equal()


def test_without_a_catalog_nothing_begins(indexed):
    done = run_interlock("index", "run", "--once", "--catalog", "host=127.0.0.1 port=1 connect_timeout=1")
    assert done.returncode == 1 and "catalog: " in done.stderr


def test_a_connection_string_that_leads_to_another_member_is_refused(indexed):
    right = indexed.catalog.value("SELECT conninfo FROM interlock.shard WHERE name = 's1'")
    wrong = indexed.instances["s2"].conninfo("app")
    version = indexed.catalog.value("SELECT route_version FROM interlock.cluster")
    declarations = indexed.catalog.value("SELECT declarations FROM interlock.route_version WHERE version = %s", version)
    text = json.dumps(declarations).replace(json.dumps(right)[1:-1], json.dumps(wrong)[1:-1])
    indexed.catalog.sql("UPDATE interlock.route_version SET declarations = %s::jsonb WHERE version = %s", text, version)
    try:
        done = indexed.index("run", "--once", check=False)
        assert done.returncode == 1
        assert 'shard "s1": the connection string leads to another member: "s2"' in done.stderr
    finally:
        indexed.catalog.sql("UPDATE interlock.route_version SET declarations = %s::jsonb WHERE version = %s",
                            json.dumps(declarations), version)


# -- words -------------------------------------------------------------------------------------------

def test_what_is_wrong_with_a_command_line_is_told(indexed):
    for arguments, part in ((("status", "nothing"), 'index "nothing" is not published'),
                            (("run", "--once", "nothing"), f"Published are: {INDEX}."),
                            (("backfill", "nothing"), 'index "nothing" is not published'),
                            (("retry", "nothing"), 'index "nothing" is not published')):
        done = indexed.index(*arguments, check=False)
        assert done.returncode == 1 and part in done.stderr, done.stderr
    for arguments, part in ((("backfill",), "no index is named"), (("discard", INDEX), "no record is named"),
                            (("retry", INDEX, "x"), '"x" is no number of a record'),
                            (("run", "--batch", "0"), "must be from 1 to 100000"),
                            (("run", "--bach", "1"), "did you mean --batch?")):
        done = indexed.index(*arguments, check=False)
        assert done.returncode == 2 and part in done.stderr, done.stderr


def test_the_status_is_a_table_for_people(indexed):
    text = indexed.index("status").stdout
    lines = text.splitlines()
    assert lines[0] == f"index {INDEX} of table public.orders in idx, ready"
    assert lines[1].split() == ["shard", "backlog", "lag", "records/s", "set", "aside", "backfill"]
    assert [line.split()[0] for line in lines[2:5]] == ["s0", "s1", "s2"]


def test_sigterm_does_not_wait_for_an_index_database_that_is_silent(indexed):
    consumer = indexed.consumer()
    wait_until(lambda: "consuming" in consumer.log_text(), 30 * SLACK)
    indexed.update(some(indexed)[0], merchant_id=140)
    indexed.drained()
    indexed.idx.freeze()
    try:
        indexed.update(some(indexed)[0], merchant_id=141)
        wait_until(lambda: indexed.instances["s0"].value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'interlock index'"
            " AND state = 'idle in transaction'") > 0, 30 * SLACK, "the record is taken")
        with Stopwatch() as watch:
            consumer.stop()
        assert watch.seconds < 18 * SLACK
    finally:
        indexed.idx.thaw()
    indexed.drain()
    indexed.equal()


def test_a_stopped_consumer_does_not_hold_records_for_ever(indexed):
    order = some(indexed)[0]
    indexed.update(order, merchant_id=142)
    stopped = indexed.consumer("--timeout", "1s", env={"INTERLOCK_TEST_STOP": "after-take"})
    wait_until(lambda: "stopped at" in stopped.log_text(), 30 * SLACK)
    indexed.consumer()
    wait_until(lambda: indexed.differences() == ([], []), 30 * SLACK, "another has got the record")
    stopped.kill()
