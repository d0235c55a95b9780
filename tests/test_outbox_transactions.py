"""The outbox in the writer's transaction: savepoints, rollbacks, prepared transactions; and the order of records,
which is not the order of commits."""

import random
import threading

import pytest

from support.outbox import Mirror, done, drain_batch, mirrored, rotate, seqs, take, transaction
from support.shard import Background, refusal
from support.wait import wait_until

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int)"


@pytest.fixture
def table(outbox):
    outbox.sql(TABLE)
    outbox.attach("t")
    return outbox


def row(number, v):
    return {"id": number, "v": v}


def truth(outbox):
    return [row(*values) for values in outbox.sql("SELECT id, v FROM t ORDER BY id")]


def by_id(rows):
    return sorted(rows, key=lambda values: values["id"])


# --- what is rolled back -----------------------------------------------------------------------


def test_what_is_rolled_back_leaves_no_record(table):
    with transaction(table) as session:
        session.execute("INSERT INTO t VALUES (1, 1)")
        assert len(table.records(session=session)) == 1
        session.execute("ROLLBACK")
    with refusal("23505"):
        table.sql("INSERT INTO t VALUES (2, 2), (3, 3), (2, 4)")
    assert table.count() == 0
    table.sql("INSERT INTO t VALUES (1, 1)")
    assert table.brief() == [("I", None, row(1, 1))]


def test_a_rollback_to_a_savepoint_takes_its_records_and_only_these(table):
    with transaction(table) as session:
        session.execute("INSERT INTO t VALUES (1, 1)")
        session.execute("SAVEPOINT a; UPDATE t SET v = 2")
        session.execute("SAVEPOINT b; UPDATE t SET v = 3; ROLLBACK TO b")
        session.execute("UPDATE t SET v = 4; RELEASE a")
        session.execute("SAVEPOINT c; DELETE FROM t; ROLLBACK TO c")
        xid = session.execute("SELECT pg_current_xact_id()").fetchone()[0]
        session.execute("COMMIT")
    assert table.brief() == [("I", None, row(1, 1)), ("U", row(1, 1), row(1, 2)), ("U", row(1, 2), row(1, 4))]
    # The transaction that a record names is the whole one, whatever part of it made it.
    assert {record.xid for record in table.records()} == {xid}


def test_a_function_that_catches_errors_leaves_records_of_what_it_kept(table):
    table.sql("""
        DO $$
        BEGIN
            FOR n IN 1..100 LOOP
                BEGIN
                    INSERT INTO t VALUES (n, n), (n % 10, 0);
                EXCEPTION WHEN unique_violation THEN NULL;
                END;
            END LOOP;
        END $$
    """)
    assert by_id(mirrored(table.records())) == truth(table)
    assert table.count() == table.value("SELECT count(*) FROM t") > 10


def test_a_transaction_of_many_savepoints_has_its_records_in_order(table):
    with transaction(table) as session:
        session.execute("INSERT INTO t VALUES (1, 0)")
        for number in range(1, 200):
            session.execute(f"SAVEPOINT s{number}; UPDATE t SET v = {number}")
            if number % 3 == 0:
                session.execute(f"ROLLBACK TO s{number}")
        session.execute("COMMIT")
    assert by_id(mirrored(table.records())) == truth(table) == [row(1, 199)]
    assert table.count() == 1 + 199 - 66


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_records_of_a_prepared_transaction_come_with_its_end(table, end):
    table.sql("BEGIN; INSERT INTO t VALUES (1, 1); SAVEPOINT s; INSERT INTO t VALUES (2, 2); ROLLBACK TO s;"
              f"UPDATE t SET v = 2; PREPARE TRANSACTION '{table.dbname}'")
    try:
        with table.connect() as session:
            assert drain_batch(session) == []
            last, *_ = session.execute("SELECT * FROM interlock.outbox_last()").fetchone()
            assert last >= 2 and rotate(session) == 0
    finally:
        table.sql(f"{end} PREPARED '{table.dbname}'")
    expected = [("I", None, row(1, 1)), ("U", row(1, 1), row(1, 2))] if end == "COMMIT" else []
    assert table.brief() == expected and len(table.clear()) == len(expected)


def test_a_prepared_transaction_holds_up_those_who_wait_for_earlier_ones(table):
    """oldest_xid tells whether a lower number can still appear: a prepared transaction is as open as any."""
    table.sql(f"BEGIN; INSERT INTO t VALUES (1, 1); PREPARE TRANSACTION '{table.dbname}'")
    try:
        table.sql("INSERT INTO t VALUES (2, 2)")
        _, next_xid, _ = table.sql("SELECT * FROM interlock.outbox_last()")[0]
        assert table.value("SELECT oldest_xid < %s::text::xid8 FROM interlock.outbox_last()", str(next_xid))
    finally:
        table.sql(f"COMMIT PREPARED '{table.dbname}'")
    wait_until(lambda: table.value("SELECT oldest_xid >= %s::text::xid8 FROM interlock.outbox_last()", str(next_xid)), 10)


def test_cursors_and_deferred_constraints_make_no_difference(outbox):
    outbox.sql(TABLE + "; CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
    outbox.attach("t")
    outbox.attach("u")
    with refusal("23503"):
        outbox.sql("BEGIN; INSERT INTO u VALUES (1, 1); COMMIT")
    assert outbox.count() == 0
    outbox.sql("BEGIN; INSERT INTO u VALUES (1, 1); INSERT INTO t VALUES (1, 1);"
               "DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE; FETCH c; UPDATE t SET v = 2 WHERE CURRENT OF c; COMMIT")
    assert [record.op for record in outbox.records()] == ["I", "I", "U"]


# --- order within a transaction ----------------------------------------------------------------


def test_a_row_that_a_users_trigger_changes_again_ends_as_it_is(table):
    """The user's trigger fires before or after the outbox's, by name: the last record is the last value."""
    for name in ("a_touch", "zz_touch", "~~touch"):
        table.sql(f"""
            CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                UPDATE t SET v = v + 1 WHERE id = NEW.id AND v % 10 <> 0;
                RETURN NULL;
            END $$;
            CREATE TRIGGER "{name}" AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch();
            INSERT INTO t VALUES (1, 8), (2, 5), (3, 10);
        """)
        assert truth(table) == [row(1, 10), row(2, 10), row(3, 10)]
        assert by_id(Mirror().apply(table.records()).values()) == truth(table), name
        table.sql("UPDATE t SET v = 7 WHERE id > 1")
        assert by_id(Mirror().apply(table.records()).values()) == truth(table), name
        table.sql(f'DROP TRIGGER "{name}" ON t; DELETE FROM t')
        table.clear()


def test_a_row_that_a_users_trigger_changes_from_another_rows_event_ends_as_it_is(table):
    """The first row's trigger changes the second row, whose own record is not written yet."""
    table.sql("""
        CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF pg_trigger_depth() = 1 THEN
                UPDATE t SET v = 100 + NEW.id WHERE id = NEW.id + 1;
                DELETE FROM t WHERE id = NEW.id + 20;
                UPDATE t SET id = id + 1000 WHERE id = NEW.id + 40;
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER touch AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION touch();
        INSERT INTO t SELECT i, i FROM generate_series(1, 60) i;
    """)
    assert by_id(Mirror().apply(table.records()).values()) == truth(table)


def test_a_row_that_a_function_changes_while_a_statement_returns_it_ends_as_it_is(table):
    table.sql("""
        INSERT INTO t VALUES (1, 0), (2, 0);
        CREATE FUNCTION bump(n int) RETURNS int LANGUAGE sql AS 'UPDATE t SET v = v + 100 WHERE id = n RETURNING v';
        UPDATE t SET v = 1 WHERE id = 1 RETURNING bump(id);
        INSERT INTO t VALUES (3, 3) RETURNING bump(id);
    """)
    assert by_id(Mirror().apply(table.records()).values()) == truth(table)


def test_a_row_that_is_made_again_while_it_is_deleted_is_there_in_the_end(table):
    table.sql("""
        INSERT INTO t VALUES (1, 1), (2, 2), (3, 3);
        CREATE FUNCTION again(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES (n, 10) RETURNING v';
        DELETE FROM t WHERE id = 1 RETURNING again(id);
        UPDATE t SET id = 20 WHERE id = 2 RETURNING again(2);
        CREATE FUNCTION restore() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO t VALUES (OLD.id, OLD.v + 1);
            RETURN NULL;
        END $$;
        CREATE TRIGGER "  first" AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION restore();
        DELETE FROM t WHERE id IN (1, 3);
    """)
    assert truth(table) == [row(1, 11), row(2, 10), row(3, 4), row(20, 2)]
    assert by_id(Mirror().apply(table.records()).values()) == truth(table)


def test_a_row_that_references_itself_ends_as_it_is_after_a_cascade(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, boss int REFERENCES t ON UPDATE CASCADE ON DELETE CASCADE)")
    outbox.attach("t")
    outbox.sql("INSERT INTO t VALUES (1, 1), (2, 1), (3, 2); UPDATE t SET id = 5 WHERE id = 1")
    expected = outbox.sql("SELECT to_jsonb(t) FROM t ORDER BY id")
    assert by_id(Mirror().apply(outbox.records()).values()) == [values for values, in expected]
    outbox.sql("DELETE FROM t WHERE id = 5")
    assert outbox.value("SELECT count(*) FROM t") == 0
    assert Mirror().apply(outbox.records()).values() == []


# --- order between transactions ----------------------------------------------------------------


class NaiveConsumer:
    """What people write first: everything after the last number that was seen."""

    def __init__(self, table="interlock.outbox"):
        self.table, self.last, self.seen = table, 0, []

    def read(self, outbox):
        for seq, key, new in outbox.sql(f"SELECT seq, key, new FROM {self.table} WHERE seq > %s ORDER BY seq", self.last):
            self.seen.append((seq, key, new))
            self.last = seq


def test_a_change_of_a_transaction_that_began_early_and_commits_late_is_not_skipped(table):
    naive, taken = NaiveConsumer(), []
    with transaction(table) as early, table.connect() as consumer:
        early.execute("INSERT INTO t VALUES (1, 1)")
        table.sql("INSERT INTO t SELECT i, i FROM generate_series(2, 500) i")
        naive.read(table)
        while batch := drain_batch(consumer, 100):
            taken += batch
        assert len(taken) == 499
        last, next_xid, oldest = consumer.execute("SELECT * FROM interlock.outbox_last()").fetchone()
        assert last >= taken[-1].seq
        # Nothing is left, and yet it is not the end of it: the early one is still open.
        assert consumer.execute("SELECT interlock.outbox_drained('default', %s)", (last,)).fetchone()[0]
        assert int(oldest) <= int(early.execute("SELECT pg_current_xact_id()").fetchone()[0]) < int(next_xid)
        rotate(consumer)
        early.execute("COMMIT")
        late = drain_batch(consumer, 100)
    assert [record.new for record in late] == [row(1, 1)] and late[0].seq < taken[0].seq
    # The negative control: who goes by the highest number never sees it.
    naive.read(table)
    assert len(naive.seen) == 499 and 1 not in {key["id"] for _, key, _ in naive.seen}


def test_when_the_oldest_transaction_has_passed_nothing_below_the_last_number_appears_any_more(table):
    """What outbox_last() and outbox_drained() promise, beside writers with open transactions of any length."""
    stop, faults = threading.Event(), []

    def write(seed):
        chance = random.Random(seed)
        try:
            with table.connect() as session:
                for number in range(seed * 100_000, seed * 100_000 + 100_000):
                    if stop.is_set():
                        return
                    with session.transaction():
                        session.execute("INSERT INTO t VALUES (%s, 0)", (number,))
                        if chance.random() < 0.3:
                            session.execute("SELECT pg_sleep(%s)", (chance.random() * 0.03,))
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        with table.connect() as session:
            settled = 0

            def batch():
                got = drain_batch(session, 500)
                late = [record.seq for record in got if record.seq <= settled]
                assert not late, f"{late} appeared when all up to {settled} was done"
                return got

            for _ in range(12):
                last, next_xid, _ = session.execute("SELECT * FROM interlock.outbox_last()").fetchone()
                wait_until(lambda: session.execute("SELECT oldest_xid >= %s::text::xid8 FROM interlock.outbox_last()",
                                                   (str(next_xid),)).fetchone()[0] or faults, 20)
                while any(record.seq <= last for record in batch()):
                    pass
                assert session.execute("SELECT interlock.outbox_drained('default', %s)", (last,)).fetchone()[0]
                settled = last
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not faults, faults
    assert settled > 100


BEFORE_OUTBOX = """
    CREATE TABLE early_outbox (seq bigint, key jsonb, new jsonb);
    CREATE SEQUENCE early_seq;
    CREATE FUNCTION record_early() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO early_outbox VALUES (nextval('early_seq'), to_jsonb(coalesce(NEW, OLD)) - 'v', CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
        RETURN coalesce(NEW, OLD);
    END $$;
    CREATE TRIGGER a_record BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION record_early();
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_lock_shared(1);
        PERFORM pg_advisory_unlock_shared(1);
        RETURN NEW;
    END $$;
    CREATE TRIGGER b_wait BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION wait();
"""


def test_of_two_changes_of_a_row_the_later_one_has_the_higher_number(table):
    """An insert is held up before it is done; the row that stands in its way is deleted meanwhile."""
    table.sql("INSERT INTO t VALUES (1, 1)")
    table.sql(BEFORE_OUTBOX)
    with table.connect() as gate, table.connect() as session:
        gate.execute("SELECT pg_advisory_lock(1)")
        inserting = Background(session, "INSERT INTO t VALUES (1, 2)")
        table.wait_for_lock(inserting.pid)
        table.sql("DELETE FROM t")
        gate.execute("SELECT pg_advisory_unlock(1)")
        assert inserting.result() is None
    assert truth(table) == [row(1, 2)]
    assert [record.op for record in table.records()] == ["I", "D", "I"]
    assert mirrored(table.records()) == truth(table)
    # The negative control: with the number drawn in a BEFORE trigger the deletion comes last.
    naive = NaiveConsumer("early_outbox")
    naive.read(table)
    assert [new for _, _, new in naive.seen] == [row(1, 2), None]


def test_records_of_each_row_follow_from_each_other_under_concurrent_writers(table):
    """Inserts, updates, upserts, deletes and changes of keys of few rows by many sessions, with savepoints and
    rollbacks: in order of seq, what each record calls old is what the one before it called new."""
    faults, codes = [], set()

    def write(seed):
        chance = random.Random(seed)
        statements = ("INSERT INTO t VALUES (%(id)s, %(v)s) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                      "UPDATE t SET v = v + 1 WHERE id = %(id)s", "DELETE FROM t WHERE id = %(id)s",
                      "UPDATE t SET id = %(other)s WHERE id = %(id)s", "INSERT INTO t VALUES (%(id)s, %(v)s) ON CONFLICT DO NOTHING",
                      "UPDATE t SET v = %(v)s WHERE id IN (%(id)s, %(other)s)")
        try:
            with table.connect(options="-c deadlock_timeout=10ms") as session:
                for number in range(120):
                    session.execute("BEGIN")
                    try:
                        for _ in range(chance.randint(1, 3)):
                            session.execute("SAVEPOINT s")
                            session.execute(chance.choice(statements), {
                                "id": chance.randint(1, 8), "other": chance.randint(1, 8), "v": seed * 1000 + number})
                            if chance.random() < 0.2:
                                session.execute("ROLLBACK TO s")
                        session.execute("ROLLBACK" if chance.random() < 0.15 else "COMMIT")
                    except Exception as error:  # noqa: BLE001  (deadlocks and equal keys are part of it)
                        codes.add(error.diag.sqlstate)
                        session.execute("ROLLBACK")
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults and codes <= {"40P01", "23505"}, (faults, codes)
    records = table.records()
    assert len(records) > 300 and {record.op for record in records} == {"I", "U", "D"}
    assert by_id(mirrored(records)) == truth(table)
    # And what consumers take is the same.
    assert seqs(table.clear()) == seqs(records)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_writers_may_use_any_isolation_level_and_takers_only_one(table, isolation):
    with transaction(table) as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        session.execute("INSERT INTO t VALUES (1, 1)")
        session.execute("UPDATE t SET v = 2")
        session.execute("COMMIT")
    assert mirrored(table.records()) == truth(table)
    with transaction(table) as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        with refusal("25001"):
            take(session)
    with table.connect() as session, session.transaction():
        assert done(session, take(session)) == 2


def test_writers_in_a_long_transaction_do_not_hold_up_takers_and_are_not_held_up(table):
    with transaction(table) as writer, transaction(table) as taker, table.connect() as other:
        writer.execute("INSERT INTO t VALUES (1, 1)")
        table.sql("INSERT INTO t VALUES (2, 2)")
        assert [record.key for record in take(taker)] == [{"id": 2}]
        other.execute("SET lock_timeout = '2s'")
        other.execute("INSERT INTO t VALUES (3, 3)")
        assert [record.key for record in drain_batch(other)] == [{"id": 3}]
        rotate(other)
        writer.execute("COMMIT")
        assert [record.key for record in drain_batch(other)] == [{"id": 1}]


def test_a_null_that_came_into_the_key_later_does_no_harm(outbox):
    outbox.sql("""
        CREATE TABLE loose (id int PRIMARY KEY, k text NOT NULL UNIQUE);
        CREATE TABLE aside (n int);
        CREATE FUNCTION note() RETURNS int LANGUAGE sql AS 'INSERT INTO aside VALUES (1) RETURNING n';
    """)
    outbox.attach("loose", key=["k"])
    outbox.sql("ALTER TABLE loose ALTER k DROP NOT NULL; INSERT INTO loose VALUES (1, NULL), (2, 'a'), (3, 'b')")
    outbox.clear()
    # The function makes the trigger ask whether the key is there again.
    outbox.sql("DELETE FROM loose WHERE id = 1 RETURNING note()")
    outbox.sql("DELETE FROM loose WHERE id = 2 RETURNING note()")
    assert [(record.op, record.key) for record in outbox.records()] == [("D", {"k": None}), ("D", {"k": "a"})]
