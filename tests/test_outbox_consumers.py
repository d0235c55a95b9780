"""Consumers of the outbox: batches that nobody else gets, per key in order."""

import threading
from collections import Counter

import pytest

from support.outbox import done, drain_batch, identity, rotate, seqs, take, transaction
from support.shard import Background, refusal

@pytest.fixture
def table(outbox):
    """t(id, v), attached; `fill(rows)` writes records of rows 1 to n."""
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    outbox.attach("t")
    outbox.fill = lambda rows, start=1: outbox.sql("INSERT INTO t SELECT i, i FROM generate_series(%s::int, %s::int) i", start, start + rows - 1)
    return outbox


def ids(records):
    return [record.key["id"] for record in records]


# --- batches -----------------------------------------------------------------------------------


def test_a_batch_is_the_oldest_records_in_order_and_whole(table):
    table.fill(50)
    with transaction(table) as session:
        batch = take(session, 20)
        assert ids(batch) == list(range(1, 21)) and seqs(batch) == sorted(seqs(batch))
        assert [record[:-1] for record in batch] == table.records()[:20]
        assert {record.parked for record in batch} == {False}
        assert done(session, batch[:15]) == 15
        session.execute("COMMIT")
    assert ids(table.records()) == list(range(16, 51))
    with table.connect() as session:
        assert ids(drain_batch(session, 1)) == [16]


@pytest.mark.parametrize("limit", [0, -1, None])
def test_a_batch_of_no_records_is_refused_or_empty(table, limit):
    table.fill(3)
    with table.connect() as session:
        try:
            assert take(session, limit) == []
        except Exception as error:  # noqa: BLE001
            assert error.diag.sqlstate in ("22023", "22004", "2201W"), error
    assert table.count() == 3


def test_what_a_taker_did_not_finish_is_there_for_the_next(table):
    table.fill(10)
    for end in ("ROLLBACK", "COMMIT"):
        with transaction(table) as session:
            assert len(take(session)) == 10
            session.execute(end)
    with transaction(table) as session:
        assert done(session, take(session)) == 10
        session.execute("ROLLBACK")
    with table.connect() as session:
        assert ids(drain_batch(session)) == list(range(1, 11))
    assert table.count() == 0


def test_a_taker_that_is_terminated_gives_its_records_back(table):
    table.fill(5)
    session = table.connect()
    session.execute("BEGIN")
    batch = take(session)
    done(session, batch[:3])
    assert table.value("SELECT pg_terminate_backend(%s, 5000)", session.info.backend_pid)
    session.close()
    with table.connect() as session:
        assert len(drain_batch(session)) == 5


def test_nobody_waits_for_a_taker_and_nobody_gets_its_records(table):
    table.fill(30)
    with transaction(table) as first, transaction(table) as second, transaction(table) as third:
        for session in (first, second, third):
            session.execute("SET LOCAL lock_timeout = '2s'")
        batches = [take(first, 10), take(second, 10), take(third, 100)]
        assert [ids(batch) for batch in batches] == [list(range(1, 11)), list(range(11, 21)), list(range(21, 31))]
        done(second, batches[1])
        second.execute("COMMIT")
        second.execute("BEGIN")
        first.execute("ROLLBACK")
        assert ids(take(second, 100)) == list(range(1, 11))


def test_takers_in_parallel_get_each_record_exactly_once(table):
    """Some of them roll back, some stop with an open transaction; writers go on writing meanwhile."""
    rows, faults = 6000, []
    got = [[] for _ in range(6)]
    written = threading.Event()

    def consume(number):
        try:
            with table.connect() as session:
                turn = 0
                while True:
                    turn += 1
                    finished = written.is_set()
                    session.execute("BEGIN")
                    batch = take(session, 50 + 30 * number)
                    if batch:
                        assert seqs(batch) == sorted(set(seqs(batch)))
                        assert done(session, batch) == len(batch)
                    if batch and (turn + number) % 5 == 0:
                        session.execute("ROLLBACK")
                        continue
                    session.execute("COMMIT")
                    got[number] += batch
                    if not batch and finished:
                        return
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(len(got))]
    for thread in threads:
        thread.start()
    for start in range(1, rows, 200):
        table.fill(200, start)
    written.set()
    for thread in threads:
        thread.join(60)
    assert not faults, faults
    # One that rolled back last may have left some to nobody.
    rest = table.clear()
    counts = Counter(ids([record for batch in got for record in batch] + rest))
    assert sorted(counts) == list(range(1, rows + 1)) and set(counts.values()) == {1}
    assert sum(bool(batch) for batch in got) >= 2 and len(rest) < rows / 2


def test_a_batch_after_a_batch_in_one_transaction_goes_on(table):
    table.fill(30)
    with transaction(table) as session:
        seen = []
        while batch := take(session, 7):
            assert done(session, batch) == len(batch)
            seen += ids(batch)
        assert seen == list(range(1, 31))
        session.execute("COMMIT")
    assert table.count() == 0


def test_a_taker_sees_what_its_own_transaction_wrote(table):
    with transaction(table) as session:
        session.execute("INSERT INTO t VALUES (1, 1)")
        batch = take(session)
        assert ids(batch) == [1] and done(session, batch) == 1
        session.execute("COMMIT")
    assert table.count() == 0


def test_a_taker_in_a_cursor_and_in_a_function_gets_what_it_asked_for(table):
    table.fill(20)
    table.sql("""
        CREATE FUNCTION consume(n int) RETURNS int LANGUAGE sql AS
            'SELECT interlock.outbox_done(array(SELECT seq FROM interlock.outbox_take(n)))';
    """)
    assert table.value("SELECT consume(5)") == 5
    with transaction(table) as session:
        session.execute("DECLARE c CURSOR FOR SELECT seq FROM interlock.outbox_take(10)")
        rows = session.execute("FETCH 3 FROM c").fetchall()
        assert session.execute("SELECT interlock.outbox_done(%s)", ([seq for seq, in rows],)).fetchone() == (3,)
        session.execute("COMMIT")
    assert ids(table.clear()) == list(range(9, 21))


def test_what_is_left_of_a_batch_does_not_hide_what_comes_later(table):
    """A session that always leaves the same record behind gets all others all the same."""
    table.fill(3)
    with table.connect() as session:
        for turn in range(4):
            with session.transaction():
                batch = take(session)
                expected = [2, 3] if turn == 0 else [turn * 10, turn * 10 + 1]
                assert ids(batch) == [1, *expected]
                done(session, batch[1:])
            table.fill(2, (turn + 1) * 10)


def test_a_session_sees_what_is_written_where_it_has_emptied_all(table):
    """It remembers which pages hold nothing any more; the last one is written again."""
    with table.connect() as session:
        for number in range(1, 6):
            table.fill(2, number * 10)
            assert ids(drain_batch(session)) == [number * 10, number * 10 + 1]
            assert drain_batch(session) == [] == take(session)
            with transaction(table) as other:
                other.execute("INSERT INTO t VALUES (%s, 0)", (number * 10 + 2,))
                assert take(session) == []
                other.execute("ROLLBACK" if number % 2 == 0 else "COMMIT")
            assert ids(drain_batch(session)) == ([] if number % 2 == 0 else [number * 10 + 2])


# --- savepoints of takers ----------------------------------------------------------------------


def test_what_was_taken_in_a_savepoint_that_was_rolled_back_is_the_next_takers(table):
    """Rolling back to a savepoint gives the locks up: what was taken in it must not be removed after it."""
    table.fill(10)
    with transaction(table) as session, table.connect() as other:
        kept = take(session, 3)
        session.execute("SAVEPOINT s")
        lost = [record for record in take(session, 6) if record.seq not in seqs(kept)]
        assert lost
        session.execute("ROLLBACK TO s")
        session.execute("SAVEPOINT t")
        with refusal("55000"):
            done(session, lost[:1])
        session.execute("ROLLBACK TO t")
        assert set(ids(lost)) <= set(ids(drain_batch(other)))
        assert done(session, kept) == 3
        session.execute("COMMIT")
    assert table.count() == 0


def test_a_done_that_is_rolled_back_can_be_done_again(table):
    table.fill(6)
    with transaction(table) as session:
        batch = take(session, 4)
        session.execute("SAVEPOINT s")
        assert done(session, batch) == 4
        session.execute("ROLLBACK TO s")
        assert done(session, batch[:2]) == 2
        session.execute("SAVEPOINT s2; RELEASE s2")
        session.execute("SAVEPOINT s3")
        more = [record for record in take(session, 100) if record not in batch]
        session.execute("RELEASE s3")
        assert done(session, more) == 2
        session.execute("COMMIT")
    assert ids(table.records()) == [3, 4]


def test_a_savepoint_taken_in_many_levels_keeps_what_was_released(table):
    table.fill(40)
    with transaction(table) as session:
        taken = []
        for number in range(10):
            session.execute(f"SAVEPOINT s{number}")
            batch = take(session, 2)
            done(session, batch)
            if number % 3 == 2:
                session.execute(f"ROLLBACK TO s{number}")
            else:
                taken += ids(batch)
        session.execute("COMMIT")
    assert ids(table.records()) == [number for number in range(1, 41) if number not in taken]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_taker_that_is_prepared_keeps_its_records_until_its_end(table, end):
    """Who applies the records in the same two-phase transaction may do so."""
    table.fill(6)
    with table.connect() as session, table.connect() as other:
        session.execute("BEGIN")
        batch = take(session, 4)
        done(session, batch[:3])
        session.execute(f"PREPARE TRANSACTION '{table.dbname}'")
        try:
            assert ids(take(other)) == ids(take(session)) == [5, 6]
            with session.transaction(), refusal("55000"):
                done(session, batch[3:])
            assert rotate(other) == 0
        finally:
            other.execute(f"{end} PREPARED '{table.dbname}'")
        assert ids(drain_batch(session)) == ([4, 5, 6] if end == "COMMIT" else [1, 2, 3, 4, 5, 6])


# --- records of others -------------------------------------------------------------------------


def test_only_records_that_this_transaction_took_can_be_done(table):
    table.fill(10)
    with transaction(table) as session, transaction(table) as stranger:
        batch = take(session, 5)
        for numbers in (seqs(batch)[:1], [table.records()[-1].seq], [10 ** 9], [0], [-1]):
            stranger.execute("SAVEPOINT s")
            with refusal("55000"):
                stranger.execute("SELECT interlock.outbox_done(%s::bigint[])", (numbers,))
            stranger.execute("ROLLBACK TO s")
        # Not in part either: one that is not ours, and none is removed.
        own = take(stranger, 2)
        stranger.execute("SAVEPOINT s")
        with refusal("55000"):
            stranger.execute("SELECT interlock.outbox_done(%s::bigint[])", ([*seqs(own), batch[0].seq],))
        stranger.execute("ROLLBACK TO s")
        assert done(session, batch) == 5
        session.execute("COMMIT")
        assert done(stranger, own) == 2
        stranger.execute("COMMIT")
    assert len(table.records()) == 3


def test_a_batch_of_an_earlier_transaction_is_no_longer_ours(table):
    table.fill(5)
    with table.connect() as session:
        with session.transaction():
            batch = take(session)
        with refusal("55000"):
            done(session, batch)
        with refusal("55000"):
            session.execute("SELECT interlock.outbox_failed(%s, 'x')", (batch[0].seq,))
        with refusal("55000"):
            session.execute("SELECT interlock.outbox_park(%s, 'x')", (seqs(batch),))
    assert table.count() == 5 and table.sql("SELECT * FROM interlock.outbox_parked") == []


def test_done_twice_and_done_of_nothing(table):
    table.fill(5)
    with transaction(table) as session:
        batch = take(session)
        assert session.execute("SELECT interlock.outbox_done('{}'), interlock.outbox_done(NULL)").fetchone()[0] == 0
        assert done(session, batch) == 5
        # It says how many it removed: each record once.
        assert done(session, batch) == 0
        session.execute("COMMIT")
    table.fill(2, 100)
    with transaction(table) as session:
        batch = take(session)
        assert session.execute("SELECT interlock.outbox_done(%s)", (seqs(batch) * 2,)).fetchone()[0] == 2
        session.execute("COMMIT")
    assert table.count() == 0


def test_a_lock_of_ones_own_on_the_segments_is_not_a_batch(table):
    """Only outbox_take() counts, not that a row can be deleted."""
    table.fill(3)
    with transaction(table) as session:
        session.execute("SELECT * FROM interlock.outbox FOR UPDATE")
        with refusal("55000"):
            done(session, table.records())


# --- parts -------------------------------------------------------------------------------------


def test_parts_share_the_keys_among_them_and_each_key_is_always_in_the_same_part(table):
    table.fill(400)
    table.sql("UPDATE t SET v = v + 1; DELETE FROM t WHERE id % 2 = 0")
    with transaction(table) as session:
        parts = [take(session, 10_000, part=part, parts=3) for part in range(3)]
    assert sorted(seqs(parts[0] + parts[1] + parts[2])) == seqs(table.records())
    keys = [{identity(record) for record in part} for part in parts]
    assert not (keys[0] & keys[1] or keys[1] & keys[2] or keys[0] & keys[2])
    assert all(len(part) > 80 for part in keys)
    for part in parts:
        assert seqs(part) == sorted(seqs(part))


def test_keys_that_are_equal_lie_in_the_same_part_whatever_table_spelling_or_column_list(outbox):
    outbox.sql("CREATE TABLE t (k numeric PRIMARY KEY, v int)")
    outbox.attach("t")
    outbox.sql("INSERT INTO t SELECT i::numeric(20, 2), 1 FROM generate_series(1, 50) i")
    outbox.sql("DELETE FROM t; INSERT INTO t SELECT i, 2 FROM generate_series(1, 50) i")
    with transaction(outbox) as session:
        parts = [take(session, 1000, part=part, parts=4) for part in range(4)]
    for part in parts:
        counts = Counter(int(record.key["k"]) for record in part)
        assert set(counts.values()) <= {3}


@pytest.mark.parametrize("part, parts", [(1, 1), (-1, 2), (2, 2), (0, 0), (0, -1), (None, 2), (0, None)])
def test_a_part_that_does_not_exist_is_refused(table, part, parts):
    table.fill(1)
    with table.connect() as session:
        try:
            assert take(session, 10, part=part, parts=parts) == [] and None in (part, parts)
        except Exception as error:  # noqa: BLE001
            assert error.diag.sqlstate in ("22023", "22004"), error


def test_publishers_with_a_part_each_see_every_row_in_order(table):
    """One publisher a part: what a plain queue would need a lock per key for."""
    rows, rounds, faults = 60, 20, []
    seen = [[] for _ in range(3)]
    written = threading.Event()

    def publish(part):
        try:
            with table.connect() as session:
                while True:
                    finished = written.is_set()
                    batch = drain_batch(session, 40, part=part, parts=3)
                    seen[part] += batch
                    if not batch and finished:
                        return
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=publish, args=(part,)) for part in range(3)]
    for thread in threads:
        thread.start()
    table.fill(rows)
    for number in range(rounds):
        table.sql("UPDATE t SET v = %s", 1000 + number)
    written.set()
    for thread in threads:
        thread.join(30)
    assert not faults, faults
    assert sum(map(len, seen)) == rows * (rounds + 1)
    for part in seen:
        values = {}
        for record in part:
            values.setdefault(record.key["id"], []).append(record.new["v"])
        for number, found in values.items():
            assert found == [number, *range(1000, 1000 + rounds)], number


# --- what can be seen --------------------------------------------------------------------------


def test_the_backlog_tells_what_waits_and_since_when(table):
    assert table.sql("SELECT stream, records, oldest, age, parked FROM interlock.outbox_backlog") == [("default", 0, None, None, 0)]
    assert table.value("SELECT interlock.outbox_oldest('default')") is None
    table.fill(3)
    table.sql("SELECT pg_sleep(0.02)")
    table.fill(2, 10)
    at = [record.at for record in table.records()]
    stream, records, oldest, age, size, segments, parked = table.sql(
        "SELECT stream, records, oldest, age, bytes, segments, parked FROM interlock.outbox_backlog")[0]
    assert (stream, records, oldest, parked) == ("default", 5, min(at), 0)
    assert age.total_seconds() > 0.02 and size >= 8192 and segments == 1
    assert table.value("SELECT interlock.outbox_oldest('default')") == min(at)
    with table.connect() as session:
        drain_batch(session, 3)
    assert table.value("SELECT interlock.outbox_oldest('default')") == at[3]


def test_streams_that_do_not_exist_are_named(table):
    for text in ("SELECT * FROM interlock.outbox_take(1, 'nowhere')", "SELECT interlock.outbox_rotate('nowhere')",
                 "SELECT interlock.outbox_drained('nowhere', 1)", "SELECT interlock.outbox_retry('nowhere')",
                 "SELECT interlock.outbox_oldest('nowhere')"):
        with refusal("42704") as caught:
            table.sql(text)
        assert "nowhere" in str(caught[0])


def test_a_consumer_that_waits_for_a_lock_of_its_own_table_does_not_stop_others(table):
    """The consumer's own work may take long; the next one takes what lies behind it."""
    table.fill(20)
    with transaction(table) as gate, transaction(table) as session, table.connect() as other:
        gate.execute("LOCK TABLE t")
        take(session, 5)
        waiting = Background(session, "SELECT * FROM t")
        table.wait_for_lock(waiting.pid)
        assert ids(drain_batch(other, 5)) == [6, 7, 8, 9, 10]
        gate.execute("COMMIT")
        assert waiting.result() is None
