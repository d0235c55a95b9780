"""Records that cannot be consumed: tried again, set aside with what comes after them of their key, put back."""

import pytest

from support.outbox import done, drain_batch, seqs, take

PARKED = "SELECT * FROM interlock.outbox_parked"


@pytest.fixture
def table(outbox):
    """t(id, v), attached; `fill(rows)` writes records of rows 1 to n."""
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    outbox.attach("t")
    outbox.fill = lambda rows: outbox.sql("INSERT INTO t SELECT i, i FROM generate_series(1, %s::int) i", rows)
    return outbox


def ids(records):
    return [record.key["id"] for record in records]


def failed(session, record, text="it does not fit", tries=5):
    return session.execute("SELECT interlock.outbox_failed(%s, %s, %s)", (record.seq, text, tries)).fetchone()[0]


def park(session, records, text="not to be had"):
    session.execute("SELECT interlock.outbox_park(%s::bigint[], %s)", (seqs(records), text))


def backlog(outbox, stream="default"):
    return outbox.sql("SELECT records, parked FROM interlock.outbox_backlog WHERE stream = %s", stream)[0]


def test_a_record_that_fails_too_often_is_parked_and_the_others_go_on(table):
    table.fill(5)
    with table.connect() as session:
        for turn in range(1, 4):
            with session.transaction():
                batch = take(session)
                assert failed(session, batch[1], f"turn {turn}", 3) == (turn == 3)
        assert ids(drain_batch(session)) == [1, 3, 4, 5]
    assert table.count() == 0
    assert table.sql("SELECT key->>'id', tries, error, parked_at > now() - interval '1 min' FROM interlock.outbox_parked") \
        == [("2", 3, "turn 3", True)]
    assert backlog(table) == (0, 1)


def test_a_failure_that_is_rolled_back_does_not_count(table):
    table.fill(1)
    with table.connect() as session:
        for turn in range(3):
            session.execute("BEGIN")
            batch = take(session)
            assert not failed(session, batch[0], "x", 2)
            session.execute("ROLLBACK")
        for expected in (False, True):
            with session.transaction():
                assert failed(session, take(session)[0], "x", 2) is expected


def test_later_records_of_a_key_are_told_that_it_is_parked(table):
    table.fill(3)
    with table.connect() as session:
        with session.transaction():
            park(session, take(session)[:1])
        table.sql("UPDATE t SET v = 0")
        with session.transaction():
            batch = take(session)
            assert [(record.key["id"], record.op, record.parked) for record in batch] == [
                (2, "I", False), (3, "I", False), (1, "U", True), (2, "U", False), (3, "U", False)]
            park(session, [record for record in batch if record.parked], "behind another")
            done(session, [record for record in batch if not record.parked])
    assert backlog(table) == (0, 2)
    assert table.sql("SELECT op, key->>'id', error FROM interlock.outbox_parked ORDER BY seq") == [
        ("I", "1", "not to be had"), ("U", "1", "behind another")]


def test_the_same_key_of_another_table_or_stream_is_not_parked_with_it(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    for table, stream in (("t", "default"), ("u", "default"), ("t", "other")):
        outbox.attach(table, stream=stream)
    outbox.sql("INSERT INTO t VALUES (1)")
    with outbox.connect() as session:
        with session.transaction():
            park(session, take(session))
        outbox.sql("INSERT INTO u VALUES (1); DELETE FROM t")
        assert [(record.table_name, record.parked) for record in drain_batch(session)] == [("public.u", False), ("public.t", True)]
        assert [record.parked for record in drain_batch(session, stream="other")] == [False, False]


def test_parked_records_come_again_with_their_numbers(table):
    table.fill(4)
    with table.connect() as session:
        with session.transaction():
            batch = take(session)
            park(session, batch[:3])
            done(session, batch[3:])
        table.sql("UPDATE t SET v = 9 WHERE id = 1")
        table.sql("SELECT interlock.outbox_retry('default', %s)", [batch[1].seq])
        assert backlog(table)[1] == 2
        again = drain_batch(session)
        assert (batch[1].seq, batch[1].new, False) in [(record.seq, record.new, record.parked) for record in again]
        assert [record.parked for record in again if record.key["id"] == 1] == [True]
        table.sql("SELECT interlock.outbox_retry('default')")
        again = drain_batch(session)
        assert [(record.seq, record.xid, record.op, record.key, record.old, record.new, record.at) for record in again] == [
            (record.seq, record.xid, record.op, record.key, record.old, record.new, record.at) for record in (batch[0], batch[2])]
    assert backlog(table) == (0, 0) and table.sql(PARKED) == []


def test_a_retried_record_has_all_its_tries_again(table):
    table.fill(1)
    with table.connect() as session:
        for _ in range(2):
            with session.transaction():
                assert not failed(session, take(session)[0], "x", 2)
            with session.transaction():
                assert failed(session, take(session)[0], "x", 2)
            table.sql("SELECT interlock.outbox_retry('default')")
        assert len(drain_batch(session)) == 1


def test_discarded_records_are_gone(table):
    table.fill(3)
    with table.connect() as session:
        with session.transaction():
            batch = take(session)
            park(session, batch)
        table.sql("SELECT interlock.outbox_discard('default', %s)", [batch[0].seq])
        assert backlog(table)[1] == 2
        table.sql("SELECT interlock.outbox_retry('default')")
        assert ids(drain_batch(session)) == [2, 3]
        table.sql("UPDATE t SET v = 5")
        assert [record.parked for record in drain_batch(session)] == [False] * 3


def test_parked_records_count_as_not_drained(table):
    table.fill(2)
    last = table.value("SELECT last_seq FROM interlock.outbox_last()")
    drained = "SELECT interlock.outbox_drained('default', %s)"
    assert table.value(drained, last) is False and table.value(drained, 0) is True
    with table.connect() as session:
        with session.transaction():
            park(session, take(session)[:1])
        drain_batch(session)
    assert table.value(drained, last) is False
    seq = table.value("SELECT seq FROM interlock.outbox_parked")
    assert table.value(drained, seq - 1) is True
    table.sql("SELECT interlock.outbox_discard('default', %s)", [seq])
    assert table.value(drained, last) is True


def test_one_stuck_key_does_not_keep_the_others_from_being_taken(table):
    """Not even when its records fill more than a batch."""
    table.sql("INSERT INTO t VALUES (1, 0); DO 'BEGIN FOR i IN 1..50 LOOP UPDATE t SET v = i; END LOOP; END'; INSERT INTO t VALUES (2, 2)")
    with table.connect() as session:
        for _ in range(8):
            with session.transaction():
                batch = take(session, 10)
                stuck = [record for record in batch if record.key["id"] == 1]
                if stuck:
                    park(session, stuck)
                done(session, [record for record in batch if record.key["id"] != 1])
    assert backlog(table) == (0, 51)
