"""Whoever waits for a table keeps the shard's state from nobody: other moves fence, decide and are given up meanwhile."""

import threading
import time
import uuid

import psycopg
import pytest

from support.shard import KEY, Background, Shard, refusal


@pytest.fixture
def shard(instance, request):
    shard = Shard(instance, f"locks_{abs(hash(request.node.name)) % 10**9}").create().describe()
    shard.sql("""
        CREATE TABLE entry (account_id bigint NOT NULL, n int) PARTITION BY RANGE (n);
        CREATE TABLE entry_0 PARTITION OF entry FOR VALUES FROM (0) TO (9);
        CREATE TABLE plain (account_id bigint PRIMARY KEY);
        SELECT interlock.shard_table('entry', 'account', 'account_id');
    """)
    yield shard
    shard.drop()
    instance.check_log()


def begin(session, move, buckets="{0}"):
    session.execute("SELECT interlock.begin_export('account', %s, 's1', %s)", (buckets, move))


WAITS = {
    "begin_export": ("ALTER TABLE account ADD COLUMN x int", "SELECT interlock.begin_export('account', '{0}', 's1', gen_random_uuid())"),
    "begin_import": ("ALTER TABLE account ADD COLUMN x int", "SELECT interlock.begin_import('account', '{10}', 's1', gen_random_uuid())"),
    "release_buckets": (f"INSERT INTO account VALUES ({KEY[2]}, 1)", "SELECT interlock.release_buckets('account', '{0}', 's1', 2)"),
    "shard_table": (f"INSERT INTO plain VALUES ({KEY[2]})", "SELECT interlock.shard_table('plain', 'account', 'account_id')"),
}


# Whoever waits is connected first: when a test fails, whoever is waited for leaves first.
@pytest.mark.parametrize("name", WAITS)
def test_who_waits_for_a_table_does_not_hold_the_state(shard, name):
    holds, waits = WAITS[name]
    move = uuid.uuid4()
    shard.sql("SELECT interlock.begin_export('account', '{3}', 's1', %s)", move)
    with shard.connect() as waiter, shard.connect(autocommit=False) as holder, shard.connect() as other:
        if "ALTER" in holds:  # of a table whose DDL would be refused, as a move has begun: the lock is what matters
            holds = "LOCK TABLE account IN ACCESS EXCLUSIVE MODE"
        holder.execute(holds)
        waiting = Background(waiter, waits)
        shard.wait_for_lock(waiting.pid)
        other.execute("SET lock_timeout = '5 s'")
        other.execute("SELECT interlock.fence_buckets('account', '{3}', 's1', %s, 2, '1 ms')", (move,))
        time.sleep(0.01)
        assert other.execute("SELECT interlock.expire_fences()").fetchone()[0] == [move]
        other.execute("SELECT interlock.abort_export(%s)", (move,))
        assert waiting.thread.is_alive()
        holder.commit()
        assert waiting.result() is None


def locked(shard, session, table):
    return shard.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND relation = %s::regclass AND mode = 'ShareUpdateExclusiveLock' "
                       "AND granted", session.info.backend_pid, table)


def test_a_partition_that_comes_while_a_move_waits_for_its_parent_is_locked_too(shard):
    with shard.connect(autocommit=False) as mover, shard.connect(autocommit=False) as changer:
        changer.execute("CREATE TABLE entry_1 PARTITION OF entry FOR VALUES FROM (10) TO (20)")
        waiting = Background(mover, "SELECT interlock.begin_export('account', '{0}', 's1', gen_random_uuid())")
        shard.wait_for_lock(waiting.pid)
        changer.commit()
        assert waiting.result() is None
        assert [locked(shard, mover, t) for t in ("account", "entry", "entry_0", "entry_1")] == [1, 1, 1, 1]


def test_a_table_that_is_sharded_while_a_move_begins_is_locked_too(shard):
    with shard.connect(autocommit=False) as mover, shard.connect(autocommit=False) as owner:
        owner.execute("SELECT interlock.shard_table('plain', 'account', 'account_id')")
        waiting = Background(mover, "SELECT interlock.begin_export('account', '{0}', 's1', gen_random_uuid())")
        shard.wait_for_lock(waiting.pid)
        owner.commit()
        assert waiting.result() is None
        assert locked(shard, mover, "plain") == 1


def test_a_table_that_is_sharded_and_changed_while_a_move_begins_is_not_waited_for_with_the_state(shard):
    move = uuid.uuid4()
    with shard.connect() as mover, shard.connect() as changer, shard.connect(autocommit=False) as owner:
        owner.execute("SELECT interlock.shard_table('plain', 'account', 'account_id')")
        waiting = Background(mover, "SELECT interlock.begin_export('account', '{0}', 's1', %s)", move)
        shard.wait_for_lock(waiting.pid)
        # It is the next to have the table, before the mover knows of it.
        changing = Background(changer, "BEGIN; LOCK TABLE plain IN ACCESS EXCLUSIVE MODE")
        shard.wait_for_lock(changing.pid)
        owner.commit()
        assert changing.result() is None
        assert waiting.code() in ("55P03", None)
        if waiting.code():
            assert shard.value("SELECT count(*) FROM interlock.handoff") == 0
        changer.execute("ROLLBACK")
        begin(mover, move)


def test_a_move_that_is_forgotten_while_it_is_asked_for_again_begins_anew_with_its_locks(shard):
    move = uuid.uuid4()
    shard.sql("SELECT interlock.begin_export('account', '{0}', 's1', %s)", move)
    shard.sql("SELECT interlock.abort_export(%s)", move)
    with shard.connect(autocommit=False) as mover, shard.connect(autocommit=False) as cleaner:
        cleaner.execute("SELECT interlock.forget_handoff(%s)", (move,))
        waiting = Background(mover, "SELECT interlock.begin_export('account', '{0}', 's1', %s)", move)
        shard.wait_for_lock(waiting.pid)
        cleaner.commit()
        assert waiting.result() is None
        assert locked(shard, mover, "account") == 1


def test_whatever_locks_tables_and_state_at_the_same_time_never_deadlocks(shard):
    shard.sql("CREATE TABLE more (account_id bigint NOT NULL); SELECT interlock.shard_table('more', 'account', 'account_id')")
    end = time.monotonic() + 3
    codes, count = set(), [0, 0, 0]

    def move(session):
        name = uuid.uuid4()
        session.execute("SELECT interlock.begin_export('account', '{0}', 's1', %s)", (name,))
        session.execute("SELECT interlock.fence_buckets('account', '{0}', 's1', %s, 2000000, '1 s')", (name,))
        session.execute("SELECT interlock.abort_export(%s), interlock.forget_handoff(%s)", (name, name))

    def release(session):
        session.execute("SELECT interlock.release_buckets('account', '{1}', 's1', 2), interlock.accept_buckets('account', '{1}', 2)")

    def shard_again(session):
        session.execute("BEGIN; SELECT interlock.unshard_table('more'); COMMIT")
        session.execute("SELECT interlock.shard_table('more', 'account', 'account_id')")

    def run(which, action):
        with shard.connect() as session:
            session.execute("SET deadlock_timeout = '20 ms'")
            while time.monotonic() < end:
                try:
                    action(session)
                    count[which] += 1
                except psycopg.Error as error:
                    codes.add(error.diag.sqlstate)
                    session.execute("ROLLBACK")
                    if error.diag.sqlstate == "40P01":
                        return

    threads = [threading.Thread(target=run, args=(n, action), daemon=True) for n, action in enumerate((move, release, shard_again))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert min(count) > 3, (count, codes)
    # What was busy says so: the table of a move that has begun (55006), a table that came in between (55P03).
    assert codes <= {"55006", "55P03", "55000"}, codes


def test_nobody_begins_a_move_where_there_is_no_shard(instance):
    stranger = Shard(instance, "locks_stranger").create()
    try:
        for statement in ["SELECT interlock.begin_export('account', '{0}', 's1', gen_random_uuid())",
                          "SELECT interlock.release_buckets('account', '{0}', 's1', 2)",
                          "SELECT interlock.shard_table('pg_class', 'account', 'oid')"]:
            with refusal("55000"):
                stranger.sql(statement)
    finally:
        stranger.drop()
