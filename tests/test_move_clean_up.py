"""After a move: who may still look at the time before it, rows that go, sequences that go on, fences that are left."""

import subprocess
import threading
import time
import uuid

import psycopg
import pytest

from support.shard import KEY, SECOND_KEY, Background, Shard, refusal
from support.wait import Stopwatch, wait_until


class Moved(Shard):
    """A shard, and a move that takes its bucket 0 away."""

    def fence(self, duration="60 s"):
        self.move = uuid.uuid4()
        self.sql("SELECT interlock.begin_export('account', '{0}', 's1', %s)", self.move)
        self.sql("SELECT interlock.fence_buckets('account', '{0}', 's1', %s, 2, %s)", self.move, duration)
        return self

    def decide(self):
        assert self.sql("SELECT * FROM interlock.wait_for_writers('account', %s, '20 s')", self.move) == []
        self.sql("SELECT interlock.write_marker(%s)", self.move)
        self.sql("SELECT interlock.decide_handoff(%s)", self.move)

    def older(self):
        return [row[0] for row in self.sql("SELECT * FROM interlock.older_transactions(%s)", self.move)]

    def delete(self, count=1000):
        return self.value("SELECT interlock.delete_moved_rows(%s, 'account', %s)", self.move, count)


@pytest.fixture
def shard(instance, request):
    shard = Moved(instance, f"moved_{abs(hash(request.node.name)) % 10**9}").create().describe()
    shard.sql("INSERT INTO account VALUES (%s, 100), (%s, 100), (%s, 100)", KEY[0], SECOND_KEY[0], KEY[2])
    yield shard
    shard.drop()
    instance.check_log()


def update(key):
    return f"UPDATE account SET balance = balance + 1 WHERE account_id = {key}"


# --- who looks at the time before -----------------------------------------------------------------


def test_only_snapshots_from_before_the_decision_are_waited_for(shard):
    with shard.connect() as old, shard.connect() as idle, shard.connect() as running, shard.connect() as new:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        # Between its statements a READ COMMITTED transaction has no snapshot; the next one is new.
        idle.execute("BEGIN")
        idle.execute("SELECT count(*) FROM account")
        sleeping = Background(running, "SELECT pg_sleep(30)")
        wait_until(lambda: shard.value("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", sleeping.pid), 10)
        shard.fence().decide()
        assert sorted(shard.older()) == sorted([old.info.backend_pid, sleeping.pid])
        new.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        new.execute("SELECT count(*) FROM account")
        idle.execute("SELECT count(*) FROM account")
        assert sorted(shard.older()) == sorted([old.info.backend_pid, sleeping.pid])
        assert old.execute("SELECT count(*) FROM account").fetchone() == (3,)
        shard.sql("SELECT pg_cancel_backend(%s)", sleeping.pid)
        assert sleeping.code() == "57014"
        assert shard.older() == [old.info.backend_pid]
        row = shard.sql("SELECT * FROM interlock.older_transactions(%s)", shard.move)[0]
        assert (row[1], row[3]) == ("postgres", "idle in transaction") and row[4] < row[5]
        old.execute("COMMIT")
        assert shard.older() == []


def test_a_long_transaction_of_another_database_does_not_make_everybody_look_old(shard, instance):
    """Its number is in every snapshot that is taken while it runs."""
    with instance.connect("app", autocommit=False) as elsewhere, shard.connect() as reader:
        elsewhere.execute("CREATE TEMP TABLE t (a int); INSERT INTO t VALUES (1)")
        shard.fence().decide()
        assert shard.older() == []
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM account")
        assert shard.older() == []
        elsewhere.rollback()


def test_a_reader_from_before_sees_the_rows_that_are_deleted(shard):
    with shard.connect() as old:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM account")
        shard.fence().decide()
        assert (shard.delete(), shard.delete()) == (2, 0)
        assert old.execute("SELECT count(*) FROM account").fetchone() == (3,)
        with refusal("40001"):
            old.execute(update(KEY[0]))
        old.execute("ROLLBACK")
    assert shard.keys() == [KEY[2]]


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state, code", [("importing", "55000"), ("owned", "55000"), ("fenced", "IL103")])
def test_a_batch_that_a_return_of_the_bucket_overtakes_deletes_nothing(shard, state, code):
    shard.fence().decide()
    with shard.connect(autocommit=False) as holder, shard.connect() as cleaner:
        holder.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE", (SECOND_KEY[0],))
        running = Background(cleaner, "SELECT interlock.delete_moved_rows(%s, 'account', 10)", shard.move)
        shard.wait_for_lock(running.pid)
        shard.set_state(0, state)
        holder.commit()
        assert running.code() == code
    assert len(shard.keys()) == 3
    shard.set_state(0, "moved")
    assert (shard.delete(), shard.delete()) == (2, 0)


@pytest.mark.parametrize("recorded", [True, False])
def test_nothing_is_deleted_while_a_slot_of_the_move_could_carry_it_away(shard, recorded):
    """Recorded for the move under whatever name, or named after it."""
    shard.fence().decide()
    slot = f"slot_{shard.dbname}" if recorded else shard.value("SELECT interlock.move_name(%s)", shard.move)
    if recorded:
        shard.sql("SELECT interlock.record_move_slot(%s, %s, 'account', '{0}')", slot, shard.move)
    shard.sql("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", slot)
    try:
        with refusal("55006") as caught:
            shard.delete()
        assert slot in str(caught[0])
        assert len(shard.keys()) == 3
    finally:
        shard.sql("SELECT pg_drop_replication_slot(%s)", slot)
    assert (shard.delete(), shard.delete()) == (2, 0)


def test_two_cleaners_at_once_delete_each_row_once(shard):
    keys = shard.sql("SELECT k FROM generate_series(100, 100000) k WHERE interlock.bucket_of('account', k) IN (0, 2)")
    shard.sql("INSERT INTO account SELECT k, 1 FROM generate_series(100, 100000) k WHERE interlock.bucket_of('account', k) IN (0, 2)")
    others = shard.value("SELECT count(*) FROM account WHERE interlock.bucket_of('account', account_id) = 2")
    shard.fence().decide()
    counts, errors = [], []

    def clean():
        with shard.connect() as session:
            while True:
                try:
                    count = session.execute("SELECT interlock.delete_moved_rows(%s, 'account', 300)", (shard.move,)).fetchone()[0]
                except psycopg.Error as error:
                    errors.append(error)
                    return
                if count == 0:
                    return
                counts.append(count)

    threads = [threading.Thread(target=clean) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert sum(counts) == len(keys) + 3 - others
    assert shard.value("SELECT count(*) FROM account") == others
    assert shard.value("SELECT count(*) FROM account WHERE interlock.bucket_of('account', account_id) = 0") == 0


def test_a_batch_waits_for_another_one_before_it_looks_at_the_table(shard):
    """Else it would find the rows that the other one is deleting."""
    shard.fence().decide()
    with shard.connect() as second, shard.connect(autocommit=False) as first:
        first.execute("SELECT interlock.delete_moved_rows(%s, 'account', 1)", (shard.move,))
        waiting = Background(second, "SELECT interlock.delete_moved_rows(%s, 'account', 1)", shard.move)
        shard.wait_for_lock(waiting.pid)
        assert shard.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND relation = 'account'::regclass AND mode = 'RowExclusiveLock'",
                           waiting.pid) == 0
        first.commit()
        assert waiting.result() is None
    assert shard.delete() == 0


def test_a_batch_that_is_rolled_back_is_done_again(shard):
    shard.fence().decide()
    with shard.connect(autocommit=False) as cleaner:
        assert cleaner.execute("SELECT interlock.delete_moved_rows(%s, 'account', 1)", (shard.move,)).fetchone() == (1,)
        cleaner.rollback()
    assert [shard.delete(1) for _ in range(3)] == [1, 1, 0]


def test_a_batch_does_not_read_what_earlier_ones_have_read(shard):
    """All batches together read the table once, and once more to see that nothing is left."""
    shard.sql("INSERT INTO account SELECT k, 1 FROM generate_series(100, 60000) k WHERE interlock.owns('account', k)")
    shard.fence().decide()
    rows = shard.value("SELECT count(*) FROM account")
    moved = shard.value("SELECT count(*) FROM account WHERE interlock.bucket_of('account', account_id) = 0")
    with shard.connect() as session:
        session.execute("SELECT pg_stat_force_next_flush(), pg_stat_reset()")
        batches = 0
        while session.execute("SELECT interlock.delete_moved_rows(%s, 'account', %s)", (shard.move, moved // 10)).fetchone()[0]:
            batches += 1
        session.execute("SELECT pg_stat_force_next_flush()")
        read = session.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'account'").fetchone()[0]
    assert batches >= 10
    assert rows <= read < 2.2 * rows, (batches, rows, read)


# --- sequences ------------------------------------------------------------------------------------


def test_a_sequence_that_is_raised_while_others_use_it_gives_out_no_value_twice(shard):
    shard.sql("CREATE SEQUENCE numbers INCREMENT 3")
    taken, stop = [[] for _ in range(3)], threading.Event()

    def take(mine):
        with shard.connect() as session:
            while not stop.is_set():
                mine += [row[0] for row in session.execute("SELECT nextval('numbers') FROM generate_series(1, 50)").fetchall()]

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    raised = []
    with shard.connect() as session:
        wait_until(lambda: all(len(mine) > 100 for mine in taken), 20)
        for _ in range(300):
            beyond = session.execute("SELECT last_value + 20 FROM numbers").fetchone()[0]
            raised.append(session.execute("SELECT interlock.raise_sequence('numbers', %s)", (beyond,)).fetchone()[0])
    stop.set()
    for thread in threads:
        thread.join(20)
    values = [value for mine in taken for value in mine]
    assert len(values) == len(set(values))
    assert all(mine == sorted(mine) for mine in taken)
    assert {value % 3 for value in values} == {1}
    # Some came too late, as others had gone on; some did not.
    assert any(raised), "never raised"


@pytest.mark.parametrize("forgets", [False, True])
def test_a_session_with_numbers_in_hand_uses_them_up_before_it_goes_on_beyond_what_came(shard, forgets):
    """CACHE: no function can take them away from it. What came has the same numbers: a unique index refuses each, no more."""
    shard.sql("""
        CREATE TABLE numbered (account_id bigint NOT NULL, n bigint GENERATED ALWAYS AS IDENTITY (CACHE 5) UNIQUE);
        SELECT interlock.shard_table('numbered', 'account', 'account_id');
    """)
    insert = f"INSERT INTO numbered (account_id) VALUES ({KEY[0]}) RETURNING n"
    with shard.connect() as session, shard.connect() as other:
        assert session.execute(insert).fetchone() == (1,)
        shard.sql("INSERT INTO numbered (account_id, n) OVERRIDING SYSTEM VALUE SELECT %s, n FROM generate_series(2, 12) n", KEY[0])
        assert shard.sql("SELECT next_value FROM interlock.raise_sequences('numbered', 'account', '{0}')") == [(13,)]
        assert other.execute(insert).fetchone() == (13,)
        if forgets:
            session.execute("DISCARD SEQUENCES")
        else:
            for _ in range(4):
                with refusal("23505"):
                    session.execute(insert)
        assert session.execute(insert).fetchone() == (18,)
        assert other.execute(insert).fetchone() == (14,)


def test_numbers_in_hand_that_others_have_passed_are_no_reason_to_raise_a_sequence(shard):
    """Where the sequence stands is beyond what came; a session that has lower ones in hand still uses them first."""
    shard.sql("""
        CREATE TABLE numbered (account_id bigint NOT NULL, n bigint GENERATED ALWAYS AS IDENTITY (CACHE 5) UNIQUE);
        SELECT interlock.shard_table('numbered', 'account', 'account_id');
    """)
    insert = f"INSERT INTO numbered (account_id) VALUES ({KEY[0]}) RETURNING n"
    with shard.connect() as session:
        assert session.execute(insert).fetchone() == (1,)
        shard.sql("INSERT INTO numbered (account_id, n) OVERRIDING SYSTEM VALUE VALUES (%s, 3)", KEY[0])
        assert shard.sql("SELECT next_value FROM interlock.raise_sequences('numbered', 'account', '{0}')") == []
        assert session.execute(insert).fetchone() == (2,)
        with refusal("23505"):
            session.execute(insert)
        assert [session.execute(insert).fetchone()[0] for _ in range(3)] == [4, 5, 6]


def test_a_raised_sequence_outlives_a_crash(make_instance):
    server = make_instance("sequence")
    shard = Shard(server, "app")
    shard.sql("CREATE SEQUENCE numbers; CREATE UNLOGGED TABLE u (id serial, k bigint)")
    assert shard.value("SELECT nextval('numbers')") == 1
    assert shard.value("SELECT interlock.raise_sequence('numbers', 1000)") == 1001
    assert shard.value("SELECT interlock.raise_sequence('u_id_seq', 1000)") == 1001
    server.stop("immediate")
    server.start()
    assert shard.value("SELECT nextval('numbers')") >= 1001
    server.check_log()


# --- fences that are left -------------------------------------------------------------------------


def test_who_meets_a_fence_is_told_when_he_may_open_it(shard):
    shard.sql("GRANT SELECT, INSERT, UPDATE ON account TO app")
    shard.fence("300 ms")
    with refusal("IL103") as caught:
        shard.sql(update(KEY[0]), user="app")
    assert caught[0].diag.message_hint == "Retry soon."
    time.sleep(0.35)
    with refusal("IL103") as caught:
        shard.sql(update(KEY[0]), user="app")
    assert "interlock.expire_fences()" in caught[0].diag.message_hint
    with shard.connect(user="app") as session:
        session.execute("SET search_path = public")
        assert session.execute("SELECT interlock.expire_fences()").fetchone()[0] == [shard.move]
        session.execute(update(KEY[0]))
        # No more than this: neither another's fence nor one that holds.
        with refusal("42501"):
            session.execute("SELECT interlock.unfence_buckets(%s)", (shard.move,))
    shard.sql("SELECT interlock.fence_buckets('account', '{0}', 's1', %s, 2, '60 s')", shard.move)
    assert shard.sql("SELECT interlock.expire_fences()", user="app") == [([],)]
    with refusal("IL103"):
        shard.sql(update(KEY[0]), user="app")


def test_opening_a_fence_does_not_queue_behind_a_mover(shard):
    shard.fence("1 ms")
    time.sleep(0.01)
    with shard.connect(autocommit=False) as mover, Stopwatch() as watch:
        mover.execute("SELECT interlock.require_shard()")
        with refusal("55P03"):
            shard.sql("SELECT interlock.expire_fences()", user="app")
        mover.rollback()
    assert 0.9 < watch.seconds < 10


# --- a dump during a move -------------------------------------------------------------------------


def test_a_dump_taken_during_a_move_can_be_restored(shard, instance):
    """The copy knows of the move; its indexes and constraints are made all the same."""
    shard.sql("CREATE INDEX ON account (balance); ALTER TABLE account ADD CHECK (balance >= 0)")
    shard.fence()
    copy = Shard(instance, f"{shard.dbname}_copy")
    copy.instance.sql(f"CREATE DATABASE {copy.dbname} TEMPLATE template0", dbname="postgres")
    try:
        text = subprocess.run([instance.bin / "pg_dump", "-d", instance.conninfo(shard.dbname, "postgres")],
                              capture_output=True, text=True, check=True).stdout
        done = subprocess.run([instance.bin / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", instance.conninfo(copy.dbname, "postgres")],
                              input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert copy.value("SELECT count(*) FROM pg_index WHERE indrelid = 'account'::regclass") == 2
        assert copy.value("SELECT count(*) FROM interlock.handoffs") == 1
        copy.sql("CREATE INDEX more ON account (balance, account_id); DROP INDEX more")
        with refusal("IL104"):
            copy.sql(update(KEY[2]))
        with refusal("55006"):
            shard.sql("CREATE INDEX more ON account (balance, account_id)")
    finally:
        copy.drop()
