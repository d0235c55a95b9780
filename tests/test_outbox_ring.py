"""The ring of segments that a stream's records lie in: emptied without waiting, used again, never confused, and as
fast at the end of a long drain as at its beginning."""

import statistics
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from support.outbox import LAP, SEGMENT, done, drain_batch, rotate, seqs, take, transaction
from support.shard import Background, refusal


@pytest.fixture
def table(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    outbox.attach("t")
    outbox.fill = lambda rows, start=1: outbox.sql("INSERT INTO t SELECT i, i FROM generate_series(%s::int, %s::int) i", start, start + rows - 1)
    return outbox


def ids(records):
    return [record.key["id"] for record in records]


def used(outbox, stream="default"):
    """The segments that take up space."""
    return [name for name, in outbox.sql(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'interlock.outbox'::regclass"
        " AND c.relname LIKE %s AND pg_relation_size(c.oid) > 0 ORDER BY c.relname", f"outbox_{stream}_%")]


def segment(number):
    return f"outbox_default_{number % 32}"


def fill_segments(table, numbers, rows=5):
    """A few records at the beginning of each of these segments; ids count on."""
    start = 1
    for number in numbers:
        table.next_seq(number * SEGMENT + 1)
        table.fill(rows, start)
        start += rows


def test_a_record_lies_in_the_segment_of_its_number(table):
    table.next_seq(SEGMENT - 2)
    table.fill(5)
    assert table.sql("SELECT tableoid::regclass::text, seq FROM interlock.outbox ORDER BY seq") == [
        ("interlock." + segment(n // SEGMENT), n) for n in range(SEGMENT - 2, SEGMENT + 3)]


def test_consumed_segments_are_emptied_and_not_the_one_that_is_written(table):
    fill_segments(table, (1, 2, 3, 4))
    with table.connect() as session:
        assert rotate(session) == 0
        drain_batch(session, 12)
        assert rotate(session) == 2 and used(table) == [segment(3), segment(4)]
        drain_batch(session)
        assert rotate(session) == 1 and used(table) == [segment(4)]
        assert rotate(session) == 0
    table.fill(5, 100)
    assert ids(table.clear()) == list(range(100, 105))


def test_space_does_not_grow_over_laps(table):
    sizes = []
    with table.connect() as session:
        for lap in range(3):
            for number in range(32):
                table.next_seq(lap * LAP + number * SEGMENT + 1)
                session.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 20) i; DELETE FROM t")
                assert len(drain_batch(session)) == 40
                if number % 8 == 0:
                    rotate(session)
            sizes.append(table.value("SELECT bytes FROM interlock.outbox_backlog"))
    # One page of each segment's TOAST index is always there.
    assert sizes[0] == sizes[1] == sizes[2] <= (32 + 12) * 8192, sizes


# --- order over laps ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_batches_ascend_over_the_end_of_the_ring(table, limit):
    fill_segments(table, (30, 31, 32, 33))
    with table.connect() as session:
        seen = []
        while batch := drain_batch(session, limit):
            seen += batch
            rotate(session)
    assert ids(seen) == list(range(1, 21)) and seqs(seen) == sorted(seqs(seen))


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_a_backlog_of_more_than_a_lap_is_consumed_in_order(table, limit):
    """Segments then hold records of two laps, and later ones lie before earlier ones."""
    fill_segments(table, (0, 1, 5, 31, 32, 33, 40, 64, 65))
    with table.connect() as session:
        assert rotate(session) == 0
        seen = []
        while batch := drain_batch(session, limit):
            seen += batch
    assert ids(seen) == list(range(1, 46)) and seqs(seen) == sorted(seqs(seen))


def test_a_transaction_that_stayed_open_for_laps_is_not_lost(table):
    with transaction(table) as early, table.connect() as session:
        early.execute("INSERT INTO t VALUES (-1, 0)")
        seen = []
        for number in range(1, 70, 3):
            table.next_seq(number * SEGMENT + 1)
            table.fill(4, number * 10)
            seen += drain_batch(session)
            rotate(session)
        assert len(seen) == 23 * 4 and -1 not in ids(seen)
        early.execute("UPDATE t SET v = 1 WHERE id = -1")
        early.execute("COMMIT")
        late = drain_batch(session)
        assert [(record.key["id"], record.op) for record in late] == [(-1, "I"), (-1, "U")]
        table.fill(1, 10_000)
        assert ids(drain_batch(session)) == [10_000]


def test_a_parked_record_comes_back_after_laps_before_all_others(table):
    table.fill(1)
    with table.connect() as session:
        with session.transaction():
            record, = take(session)
            session.execute("SELECT interlock.outbox_park(%s, 'x')", ([record.seq],))
        for number in (1, 32, 33, 64):
            table.next_seq(number * SEGMENT + 1)
            table.fill(2, number * 10)
            rotate(session)
        table.sql("SELECT interlock.outbox_retry('default')")
        assert ids(drain_batch(session)) == [1, 10, 11, 320, 321, 330, 331, 640, 641]


def test_what_is_drained_is_told_over_laps(table):
    fill_segments(table, (31, 32))
    drained = "SELECT interlock.outbox_drained('default', %s)"
    first = 31 * SEGMENT + 1
    with table.connect() as session:
        def is_drained(upto):
            return session.execute(drained, (upto,)).fetchone()[0]

        assert is_drained(first - 1) and not is_drained(first) and not is_drained(LAP + 100)
        drain_batch(session, 5)
        assert is_drained(first + 5) and is_drained(LAP) and not is_drained(LAP + 1)
        drain_batch(session, 5)
        assert is_drained(LAP + 100)


# --- rotation beside others --------------------------------------------------------------------


def test_a_rotation_waits_for_nobody(table):
    """Somebody reads all segments (as pg_dump does, for hours), somebody holds a batch, somebody has written."""
    fill_segments(table, (1, 2, 3, 4, 5))
    with transaction(table) as reader, transaction(table) as taker, transaction(table) as writer, table.connect() as session:
        table.next_seq(6 * SEGMENT + 1)
        writer.execute("INSERT INTO t VALUES (1000, 0)")
        table.next_seq(7 * SEGMENT + 1)
        table.fill(1, 2000)
        drain_batch(session, 5)                 # segment 1
        assert ids(take(taker, 5)) == [6, 7, 8, 9, 10]    # segment 2
        assert len(drain_batch(session)) == 16
        session.execute("SET lock_timeout = '1s'")
        reader.execute("SELECT count(*) FROM interlock.outbox_default_3")
        assert rotate(session) == 3 and used(table) == [segment(n) for n in (2, 3, 6, 7)]
        reader.execute("COMMIT")
        assert rotate(session) == 1
        taker.execute("ROLLBACK")
        writer.execute("COMMIT")
        assert ids(drain_batch(session)) == [6, 7, 8, 9, 10, 1000]
        assert rotate(session) == 2 and used(table) == [segment(7)]


def test_a_rotation_that_is_rolled_back_loses_nothing(table):
    fill_segments(table, (1, 2, 3))
    with transaction(table) as session:
        done(session, take(session, 10))
        rotate(session)
        session.execute("ROLLBACK")
    assert ids(table.clear()) == list(range(1, 16))
    with transaction(table) as session:
        session.execute("SAVEPOINT s")
        rotate(session)
        session.execute("ROLLBACK TO s")
        session.execute("COMMIT")
    table.fill(3, 100)
    assert ids(table.clear()) == [100, 101, 102]


def test_a_segment_with_records_that_nobody_can_see_yet_is_not_emptied(table):
    """The number was drawn long ago and the record is written now: in a segment that seems to be consumed."""
    table.next_seq(SEGMENT + 1)
    with transaction(table) as writer, table.connect() as session:
        writer.execute("INSERT INTO t VALUES (-1, 1)")
        table.fill(3, 100)
        fill_segments(table, (2, 3))
        assert len(drain_batch(session)) == 13
        assert rotate(session) == 1 and used(table) == [segment(1), segment(3)]
        writer.execute("COMMIT")
        assert ids(drain_batch(session)) == [-1]
        assert rotate(session) == 1 and used(table) == [segment(3)]


def test_takers_and_rotations_beside_writers_over_laps_lose_nothing(table):
    """The numbers are driven on all the time, so that every few transactions a segment is finished."""
    writers, rows, faults, got = 3, 700, [], []
    finished = threading.Event()
    lock = threading.Lock()

    def guarded(body):
        def run(*arguments):
            try:
                body(*arguments)
            except Exception as error:  # noqa: BLE001
                faults.append(error)
                finished.set()
        return run

    @guarded
    def write(number):
        with table.connect() as session:
            for row in range(rows):
                session.execute("BEGIN")
                session.execute("INSERT INTO t VALUES (%s, 0)", (number * 10_000 + row,))
                if row % 50 == 7:
                    session.execute("SELECT pg_sleep(0.002)")
                session.execute("ROLLBACK" if row % 10 == 3 else "COMMIT")

    @guarded
    def consume(number):
        with table.connect() as session:
            while True:
                last = finished.is_set()
                batch = drain_batch(session, 40 + number)
                with lock:
                    got.extend(batch)
                if not batch and last:
                    return

    @guarded
    def turn(_):
        with table.connect() as session:
            while not finished.is_set():
                session.execute("SELECT setval('interlock.outbox_seq', nextval('interlock.outbox_seq') + 3000)")
                rotate(session)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    others = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
    others += [threading.Thread(target=turn, args=(number,)) for number in range(1)]
    for thread in threads + others:
        thread.start()
    for thread in threads:
        thread.join(60)
    finished.set()
    for thread in others:
        thread.join(60)
    assert not faults, faults
    got += table.clear()
    committed = [number * 10_000 + row for number in range(writers) for row in range(rows) if row % 10 != 3]
    counts = Counter(ids(got))
    assert sorted(counts) == sorted(committed) and set(counts.values()) == {1}
    assert table.value("SELECT last_seq FROM interlock.outbox_last()") > LAP, "the ring was not gone round"


def test_a_taker_waits_for_no_writer_who_waits_for_a_rotation(table):
    """Whoever rotates in a transaction of its own and stays open holds up at most those who write into the
    segments it emptied."""
    fill_segments(table, (1, 2))
    with transaction(table) as session, table.connect() as other:
        done(session, take(session, 5))
        session.execute("COMMIT")
        session.execute("BEGIN")
        assert rotate(session) == 1
        other.execute("SET lock_timeout = '3s'")
        other.execute("INSERT INTO t VALUES (500, 1)")
        table.next_seq(LAP + SEGMENT + 1)
        with table.connect() as late:
            writing = Background(late, "INSERT INTO t VALUES (501, 1)")
            session.execute("COMMIT")
            assert writing.result() is None
        assert ids(drain_batch(other)) == [6, 7, 8, 9, 10, 500, 501]


def test_maintenance_of_the_segments_by_hand_does_no_harm(table):
    fill_segments(table, (1, 2, 3))
    with table.connect() as session:
        drain_batch(session, 7)
        session.execute("VACUUM interlock.outbox_default_1")
        session.execute("VACUUM FULL interlock.outbox_default_2")
        session.execute("VACUUM (FREEZE) interlock.outbox_default_3")
        session.execute("ANALYZE interlock.outbox")
        table.fill(3, 100)
        assert ids(drain_batch(session, 4)) == [8, 9, 10, 11]
        session.execute("VACUUM interlock.outbox_default_2, interlock.outbox_default_3")
        table.fill(3, 200)
        assert ids(drain_batch(session)) == [12, 13, 14, 15, 100, 101, 102, 200, 201, 202]


# --- long drains -------------------------------------------------------------------------------

# In the server: the client's own work would hide what is measured.
CONSUME = """
    CREATE FUNCTION consume(n int) RETURNS int LANGUAGE sql AS
        'SELECT interlock.outbox_done(array(SELECT seq FROM interlock.outbox_take(n)))'
"""
QUEUE = """
    CREATE TABLE queue (seq bigserial PRIMARY KEY, v int);
    CREATE FUNCTION consume_queue(n int) RETURNS int LANGUAGE sql AS $$
        WITH gone AS (DELETE FROM queue WHERE seq IN (SELECT seq FROM queue ORDER BY seq LIMIT n FOR UPDATE SKIP LOCKED) RETURNING 1)
        SELECT count(*)::int FROM gone
    $$
"""


def pages_of_batches(session, text, batches, each):
    """How many pages each batch looks at."""
    pages = []
    for number in range(batches):
        plan = session.execute("EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) " + text).fetchone()[0][0]["Plan"]
        pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        if number % 20 == 19:
            each()
    return pages


@pytest.mark.parametrize("snapshot", ["none", "a snapshot", "a snapshot and the tables' locks"])
def test_a_long_drain_looks_no_further_at_its_end_than_at_its_beginning(table, snapshot):
    """Also beside a transaction that began before it and is still open, pg_dump's for instance. (The million, and
    how long it takes: tests/bench/outbox_bench.py.)"""
    rows = 120_000
    table.sql(CONSUME)
    table.fill(rows)
    with transaction(table) as old, table.connect() as session:
        if snapshot != "none":
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert old.execute("SELECT count(*) FROM t").fetchone()[0] == rows
        if "locks" in snapshot:
            old.execute("SELECT 1 FROM interlock.outbox LIMIT 1")
        pages = pages_of_batches(session, "SELECT consume(600)", rows // 600, lambda: rotate(session))
        assert session.execute("SELECT consume(600)").fetchone()[0] == 0
        # The first one looks at everything that waits, the others at one segment.
        assert max(pages[1:]) < pages[0] * 0.7, pages[::20]
        assert statistics.median(pages[-20:]) < statistics.median(pages[1:21]) * 1.2, pages[::20]


def test_control_a_plain_queue_slows_down_beside_an_old_snapshot(outbox):
    """What the segments are for: with an index, each batch steps over all that was removed before it. (On pages that
    it has in hand: here the backend's CPU time tells.)"""
    outbox.sql(QUEUE)
    outbox.sql("INSERT INTO queue (v) SELECT i FROM generate_series(1, 80000) i")
    with transaction(outbox) as old, outbox.connect() as session:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM queue")
        clock, times = Path(f"/proc/{session.info.backend_pid}/schedstat"), []
        for _ in range(200):
            began = int(clock.read_text().split()[0])
            assert session.execute("SELECT consume_queue(400)").fetchone()[0] == 400
            times.append(int(clock.read_text().split()[0]) - began)
        ratio = statistics.median(times[-20:]) / statistics.median(times[:20])
    assert ratio > 2, ratio


def test_an_old_transaction_may_read_on_after_the_segments_were_emptied(table):
    table.fill(100)
    with transaction(table) as old, table.connect() as session:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        drain_batch(session)
        table.next_seq(SEGMENT + 1)
        table.fill(1, 1000)
        rotate(session)
        assert old.execute("SELECT count(*) FROM interlock.outbox").fetchone()[0] in (0, 100)


def test_an_idle_taker_costs_little_although_segments_cannot_be_emptied(table):
    """It asks all the time. Beside pg_dump's lock all that was removed is still there, and must not be looked at
    each time: compared with a count, which does."""
    table.sql(CONSUME)
    table.fill(70_000)
    with transaction(table) as old, table.connect() as session:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM interlock.outbox")
        while session.execute("SELECT consume(10000)").fetchone()[0]:
            assert rotate(session) == 0

        def shortest(text):
            times = []
            for _ in range(15):
                began = time.perf_counter()
                assert session.execute(text).fetchone()[0] == 0
                times.append(time.perf_counter() - began)
            return min(times)

        taking, counting = shortest("SELECT count(*) FROM interlock.outbox_take(10)"), shortest("SELECT count(*) FROM interlock.outbox")
        assert taking < counting / 2, (taking, counting)


def test_sessions_that_write_and_take_for_long_keep_no_memory(table):
    """Errors, rotations and other columns included: each makes a session read again what it knows."""
    with table.connect() as session:
        def work(start):
            for number in range(start, start + 60):
                session.execute("INSERT INTO t VALUES (%s, 0)", (number,))
                assert len(drain_batch(session)) == 1
                for text in ("SELECT interlock.outbox_take(1, 'nowhere')", "SELECT interlock.outbox_done('{1}')"):
                    with refusal("42704" if "nowhere" in text else "55000"):
                        session.execute(text)
                if number % 10 == 0:
                    table.next_seq(number * SEGMENT)
                    rotate(session)
                    table.sql(f"ALTER TABLE t ALTER v SET STATISTICS {number}")
            return session.execute("SELECT sum(total_bytes) FROM pg_backend_memory_contexts").fetchone()[0]

        work(100)
        before = work(200)
        after = max(work(start) for start in (300, 400, 500))
        assert after - before < 100_000, (before, after)
