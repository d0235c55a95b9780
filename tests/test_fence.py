"""The shard's side of a handoff with more than one session: who is waited for, who is refused, and who decides."""

import threading
import time
import uuid

import psycopg
import pytest

from support.shard import CLUSTER, KEY, SECOND_KEY, Background, Shard, refusal
from support.wait import Stopwatch, wait_until

WAIT = "SELECT * FROM interlock.wait_for_writers('account', %s, %s)"


class Moving(Shard):
    """A shard and a move of its bucket 0."""

    def begin(self, version=2, duration="60 s", buckets="{0}"):
        self.move = uuid.uuid4()
        self.buckets = buckets
        self.sql("SELECT interlock.begin_export('account', %s, 's1', %s)", buckets, self.move)
        self.fence(version, duration)
        return self

    def fence(self, version=2, duration="60 s"):
        return self.value("SELECT interlock.fence_buckets('account', %s, 's1', %s, %s, %s)",
                          self.buckets, self.move, version, duration)

    def wait(self, timeout="20 s", readers=False):
        return self.sql("SELECT * FROM interlock.wait_for_writers('account', %s, %s, %s)", self.move, timeout, readers)

    def decide(self):
        self.sql("SELECT interlock.write_marker(%s)", self.move)
        return self.value("SELECT interlock.decide_handoff(%s)", self.move)

    def state(self, bucket=0):
        return self.value("SELECT state FROM interlock.bucket_state WHERE keyspace = 'account' AND bucket = %s", bucket)

    def handoff(self):
        return self.value("SELECT state FROM interlock.handoff WHERE move_id = %s", self.move)


@pytest.fixture
def shard(instance, request):
    shard = Moving(instance, f"fence_{abs(hash(request.node.name)) % 10**9}").create().describe()
    shard.sql("INSERT INTO account VALUES (%s, 100), (%s, 100)", KEY[0], KEY[2])
    yield shard
    shard.drop()
    instance.check_log()


def update(key):
    return f"UPDATE account SET balance = balance + 1 WHERE account_id = {key}"


# --- who is waited for --------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", [0, 2])
def test_an_open_writer_is_waited_for_and_named_whatever_its_bucket(shard, bucket):
    with shard.connect(autocommit=False, application_name="till 7") as writer:
        writer.execute(update(KEY[bucket]))
        shard.begin()
        with Stopwatch() as watch:
            rows = shard.wait("300 ms")
        assert watch.seconds >= 0.3
        assert [(row[0], row[1], row[2], row[3], row[6]) for row in rows] == [
            (writer.info.backend_pid, "postgres", "till 7", "idle in transaction", None)]
        assert rows[0][4] is not None and rows[0][5] >= rows[0][4]
        with refusal("55000"):
            shard.decide()
        waiting = Background(shard.connect(), WAIT, shard.move, "30 s")
        time.sleep(0.1)
        assert waiting.thread.is_alive()
        writer.commit()
        assert waiting.result() is None
    assert shard.decide() is not None
    assert shard.state() == "moved"


def test_writers_that_come_after_the_fence_are_not_waited_for(shard):
    with shard.connect(autocommit=False) as old, shard.connect(autocommit=False) as new:
        old.execute(update(KEY[0]))
        shard.begin()
        waiting = Background(shard.connect(), WAIT, shard.move, "30 s")
        wait_until(lambda: shard.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%wait_for_writers%' "
                                       "AND wait_event = 'Extension'"), 10)
        new.execute(update(KEY[2]))
        with refusal("IL103"), new.transaction():
            new.execute(f"INSERT INTO account VALUES ({SECOND_KEY[0]}, 1)")
        old.commit()
        assert waiting.result() is None
        assert shard.decide() is not None
        new.commit()


def test_a_transaction_that_has_written_the_bucket_before_may_go_on(shard):
    """The fence waits for it, so refusing its next statement would be an error for nothing."""
    with shard.connect(autocommit=False) as writer, shard.connect(autocommit=False) as other:
        writer.execute(update(KEY[0]))
        other.execute(update(KEY[2]))
        shard.begin()
        writer.execute(f"INSERT INTO account VALUES ({SECOND_KEY[0]}, 1)")
        writer.execute(update(KEY[0]))
        with refusal("IL103"):
            other.execute("INSERT INTO account VALUES (38, 1)")
        other.rollback()
        writer.commit()
        # The next transaction of the same session is a new one.
        with refusal("IL103"):
            writer.execute(update(KEY[0]))
        writer.rollback()
    assert shard.wait() == []
    assert shard.sql("SELECT balance FROM account WHERE account_id = %s", KEY[0]) == [(102,)]


def test_what_a_savepoint_took_back_gives_no_right_to_write(shard):
    """Its lock went with it, so nobody waits for this transaction."""
    with shard.connect(autocommit=False) as writer:
        writer.execute("SELECT 1")
        writer.execute("SAVEPOINT s")
        writer.execute(update(KEY[0]))
        writer.execute("ROLLBACK TO s")
        shard.begin()
        assert shard.wait("1 s") == []
        with refusal("IL103"):
            writer.execute(update(KEY[0]))


def test_asking_the_guard_gives_no_right_to_write(shard):
    """Everybody may call its function; without a lock on the table nobody waits for the transaction."""
    with shard.connect(autocommit=False) as session:
        session.execute("SELECT interlock.refuse_write('account', k) FROM unnest(ARRAY[%s::bigint]) k", (KEY[0],))
        session.execute("SELECT * FROM account")
        shard.begin()
        assert shard.wait("5 s") == []
        with refusal("IL103"):
            session.execute(f"INSERT INTO account VALUES ({SECOND_KEY[0]}, 1)")


def test_a_writer_is_waited_for_over_a_second_fence_too(shard):
    with shard.connect(autocommit=False) as writer:
        writer.execute(update(KEY[0]))
        shard.begin()
        shard.sql("SELECT interlock.unfence_buckets(%s)", shard.move)
        shard.fence()
        writer.execute(update(KEY[0]))
        assert len(shard.wait("50 ms")) == 1
        writer.rollback()
    assert shard.wait() == []


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_cannot_write_after_the_fence(shard, isolation):
    with shard.connect() as session:
        session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        assert session.execute("SELECT count(*) FROM account").fetchone() == (2,)
        shard.begin()
        assert shard.wait("5 s") == []
        shard.decide()
        session.execute("SAVEPOINT s")
        for statement in [update(KEY[0]), f"INSERT INTO account VALUES ({SECOND_KEY[0]}, 1)",
                          f"DELETE FROM account WHERE account_id = {KEY[0]}"]:
            with refusal("IL101"):
                session.execute(statement)
            session.execute("ROLLBACK TO s")
        session.execute("COMMIT")


def test_prepared_transactions_are_waited_for_and_named(shard):
    with shard.connect() as session:
        session.execute("BEGIN")
        session.execute(update(KEY[0]))
        session.execute("PREPARE TRANSACTION 'transfer 12'")
    shard.begin()
    rows = shard.wait("100 ms")
    assert [(row[0], row[1], row[3], row[6]) for row in rows] == [(None, "postgres", "prepared", "transfer 12")]
    waiting = Background(shard.connect(), WAIT, shard.move, "30 s")
    shard.sql("COMMIT PREPARED 'transfer 12'")
    assert waiting.result() is None
    assert shard.decide() is not None


def test_a_transaction_prepared_while_it_is_waited_for_is_not_lost(shard):
    with shard.connect() as session:
        session.execute("BEGIN")
        session.execute(update(KEY[0]))
        shard.begin()
        waiting = Background(shard.connect(), WAIT, shard.move, "30 s")
        wait_until(lambda: shard.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'Extension' "
                                       "AND query LIKE '%wait_for_writers%'"), 10)
        session.execute("PREPARE TRANSACTION 'midway'")
        session.execute("SELECT 1")
        time.sleep(0.1)
        assert waiting.thread.is_alive()
        assert [row[6] for row in shard.wait("10 ms")] == ["midway"]
        session.execute("ROLLBACK PREPARED 'midway'")
        assert waiting.result() is None


def test_prepared_transactions_and_fences_outlive_a_crash(make_instance):
    server = make_instance("crash")
    shard = Moving(server, "app").describe()
    shard.sql("INSERT INTO account VALUES (%s, 100)", KEY[0])
    with shard.connect() as session:
        session.execute("BEGIN")
        session.execute(update(KEY[0]))
        session.execute("PREPARE TRANSACTION 'before the crash'")
    shard.begin()
    server.stop("immediate")
    server.start()
    assert shard.state() == "fenced"
    with refusal("IL103"):
        shard.sql(f"INSERT INTO account VALUES ({SECOND_KEY[0]}, 1)")
    assert [row[6] for row in shard.wait("50 ms")] == ["before the crash"]
    shard.sql("COMMIT PREPARED 'before the crash'")
    assert shard.wait() == []
    token = shard.decide()
    server.stop("immediate")
    server.start()
    # Decided: the same answer, and no way back.
    assert shard.value("SELECT interlock.decide_handoff(%s)", shard.move) == token
    assert shard.value("SELECT floor FROM interlock.shard_identity") == 2
    with refusal("55000"):
        shard.sql("SELECT interlock.abort_export(%s)", shard.move)


def test_select_for_update_is_waited_for(shard):
    with shard.connect(autocommit=False) as locker:
        locker.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE", (KEY[0],))
        shard.begin()
        assert [row[0] for row in shard.wait("50 ms")] == [locker.info.backend_pid]
        locker.rollback()
        assert shard.wait() == []


def test_readers_are_waited_for_only_when_asked(shard):
    with shard.connect(autocommit=False) as reader:
        reader.execute("SELECT * FROM account")
        shard.begin()
        assert shard.wait() == []
        assert [row[0] for row in shard.wait("50 ms", True)] == [reader.info.backend_pid]
        assert shard.decide() is not None
        assert reader.execute("SELECT count(*) FROM account").fetchone() == (2,)


def test_a_writer_of_a_partition_alone_is_waited_for(shard):
    shard.sql("""
        CREATE TABLE entry (account_id bigint NOT NULL, n int) PARTITION BY RANGE (n);
        CREATE TABLE entry_0 PARTITION OF entry FOR VALUES FROM (0) TO (9) PARTITION BY LIST (n);
        CREATE TABLE entry_00 PARTITION OF entry_0 DEFAULT;
        SELECT interlock.shard_table('entry', 'account', 'account_id');
    """)
    with shard.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO entry_00 VALUES (%s, 1)", (KEY[2],))
        shard.begin()
        assert [row[0] for row in shard.wait("50 ms")] == [writer.info.backend_pid]
        writer.rollback()


def test_writers_of_other_tables_and_vacuum_are_not_waited_for(shard):
    shard.sql("CREATE TABLE plain (a int); INSERT INTO plain VALUES (1)")
    with shard.connect(autocommit=False) as writer, shard.connect(autocommit=False) as vacuum:
        writer.execute("UPDATE plain SET a = 2")
        # The lock that VACUUM, ANALYZE and CREATE INDEX CONCURRENTLY hold.
        vacuum.execute("LOCK TABLE account IN SHARE UPDATE EXCLUSIVE MODE")
        shard.move, shard.buckets = uuid.uuid4(), "{0}"
        moving = Background(shard.connect(), "SELECT interlock.begin_export('account', '{0}', 's1', %s)", shard.move)
        shard.wait_for_lock(moving.pid)
        vacuum.commit()
        assert moving.result() is None
        vacuum.execute("SELECT 1")
        shard.fence()
        vacuum.execute("LOCK TABLE account IN SHARE UPDATE EXCLUSIVE MODE")
        assert shard.wait("5 s") == []


def test_autovacuum_is_not_waited_for(make_instance):
    server = make_instance("autovacuum", {"autovacuum_naptime": "1s", "autovacuum_vacuum_cost_delay": "100ms",
                                          "autovacuum_vacuum_cost_limit": "1"})
    shard = Moving(server, "app").describe()
    shard.sql("ALTER TABLE account SET (autovacuum_vacuum_threshold = 10, autovacuum_vacuum_scale_factor = 0)")
    shard.sql("INSERT INTO account SELECT k, 1 FROM generate_series(1, 60000) k WHERE interlock.owns('account', k)")
    shard.begin()
    shard.sql("SELECT interlock.unfence_buckets(%s)", shard.move)
    shard.sql("UPDATE account SET balance = 2")
    wait_until(lambda: shard.value("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
                                   "WHERE a.backend_type = 'autovacuum worker' AND l.relation = 'account'::regclass"), 60)
    shard.fence()
    with Stopwatch() as watch:
        assert shard.wait("30 s") == []
    assert watch.seconds < 5
    assert shard.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'") > 0


def test_a_copy_under_way_is_waited_for_and_kept_whole(shard):
    keys = [row[0] for row in shard.sql("SELECT k FROM generate_series(100, 200000) k WHERE interlock.bucket_of('account', k) = 0")]
    with shard.connect(autocommit=False) as session:
        with session.cursor().copy("COPY account FROM STDIN") as copy:
            for key in keys[:8000]:
                copy.write(f"{key}\t1\n")
            # Rows of the bucket are in the table by now: COPY puts them there by the thousand.
            wait_until(lambda: (shard.value("SELECT tuples_processed FROM pg_stat_progress_copy") or 0) > 2000, 10)
            shard.begin()
            assert [row[0] for row in shard.wait("100 ms")] == [session.info.backend_pid]
            for key in keys[8000:]:
                copy.write(f"{key}\t1\n")
        session.commit()
    assert shard.wait() == []
    assert len(shard.keys()) == len(keys) + 2


def test_other_buckets_go_on_while_a_fence_is_held_up(shard):
    with shard.connect(autocommit=False) as holder, shard.connect() as worker:
        holder.execute(update(KEY[0]))
        shard.begin()
        waiting = Background(shard.connect(), WAIT, shard.move, "1 s")
        slowest, count, end = 0, 0, time.monotonic() + 0.9
        while time.monotonic() < end:
            with Stopwatch() as watch:
                worker.execute(update(KEY[2]))
            slowest, count = max(slowest, watch.seconds), count + 1
        assert waiting.result() is None
        assert count > 100 and slowest < 0.3, (count, slowest)


# --- the clock, and who decides -----------------------------------------------------------------


def test_a_fence_whose_deadline_has_passed_cannot_decide_and_anybody_can_open_it(shard):
    shard.begin(duration="200 ms")
    assert shard.wait() == []
    shard.sql("SELECT interlock.write_marker(%s)", shard.move)
    assert shard.value("SELECT interlock.expire_fences()") == []
    time.sleep(0.25)
    with refusal("55000") as caught:
        shard.sql("SELECT interlock.decide_handoff(%s)", shard.move)
    assert "expired" in caught[0].diag.message_detail
    assert shard.value("SELECT interlock.expire_fences()") == [shard.move]
    shard.sql(update(KEY[0]))
    # The version under which it came here stays, for sessions of that version.
    assert shard.sql("SELECT state, route_version FROM interlock.bucket_state WHERE bucket = 0") == [("owned", 1)]
    # The same move fences again, and has to wait and to mark again.
    shard.fence(3)
    with refusal("55000"):
        shard.sql("SELECT interlock.decide_handoff(%s)", shard.move)
    assert shard.wait() == []
    with refusal("55000"):
        shard.sql("SELECT interlock.decide_handoff(%s)", shard.move)
    assert shard.decide() is not None
    assert shard.value("SELECT floor FROM interlock.shard_identity") == 3


@pytest.mark.parametrize("opening", ["SELECT interlock.open_expired_fences()", "SELECT interlock.expire_fences()",
                                     "SELECT interlock.abort_export(%s)",
                                     "SELECT interlock.unfence_buckets(%s)"])
def test_of_a_decision_and_an_opening_at_the_same_time_exactly_one_wins(shard, opening):
    """Many rounds, both orders of arrival, the deadline as near as it can be."""
    wins = {"moved": 0, "owned": 0}
    timed = "expire" in opening
    # Timed: both begin so long before the fence's end, and later after a decision, earlier after none.
    ahead, prepared_in = 0.0, 0.05
    with shard.connect() as decider, shard.connect() as opener:
        for turn in range(30):
            started = time.monotonic()
            shard.begin(2 + turn, f"{3 * prepared_in + 0.02} s" if timed else "60 s")
            left = shard.value("SELECT extract(epoch FROM until - clock_timestamp())::float8 FROM interlock.handoff WHERE move_id = %s", shard.move)
            end = time.monotonic() + left
            assert shard.wait() == []
            try:
                shard.sql("SELECT interlock.write_marker(%s)", shard.move)
            except psycopg.Error:
                pass  # too late already: the decision must fail
            prepared_in = (prepared_in + time.monotonic() - started) / 2
            outcome = {}

            def run(name, connection, text, params, outcome=outcome, begin=end - ahead):
                if timed:
                    time.sleep(max(0, begin - time.monotonic()))
                try:
                    outcome[name] = connection.execute(text, params).fetchone()[0]
                except psycopg.Error as error:
                    outcome[name] = error.diag.sqlstate

            threads = [threading.Thread(target=run, args=a) for a in [
                ("decide", decider, "SELECT interlock.decide_handoff(%s)", (shard.move,)),
                ("open", opener, opening, (shard.move,) if "%s" in opening else None)]]
            for thread in threads if turn % 2 else reversed(threads):
                thread.start()
            for thread in threads:
                thread.join(30)
            decided = isinstance(outcome["decide"], uuid.UUID)
            if timed and not decided:
                wait_until(lambda: shard.sql("SELECT interlock.expire_fences()") and shard.state() == "owned", 5)
            state = shard.state()
            assert state == ("moved" if decided else "owned"), outcome
            assert decided == (shard.handoff() == "decided")
            if not timed:
                assert outcome["open"] in ((False, "55000") if decided else (True,)), outcome
            wins[state] += 1
            ahead = max(0.0, ahead + (-0.001 if decided else 0.003))
            if decided:  # back by hand, for the next round
                shard.sql("UPDATE interlock.bucket_state SET state = 'owned', peer = NULL, route_version = 1 WHERE bucket = 0")
            elif shard.handoff() != "aborted":
                shard.sql("SELECT interlock.abort_export(%s)", shard.move)
    assert min(wins.values()) > 0, wins


def test_two_movers_with_the_same_move_get_the_same_token(shard):
    shard.begin()
    assert shard.wait() == []
    shard.sql("SELECT interlock.write_marker(%s)", shard.move)
    with shard.connect(autocommit=False) as first, shard.connect() as second:
        token = first.execute("SELECT interlock.decide_handoff(%s)", (shard.move,)).fetchone()[0]
        running = Background(second, "CREATE TABLE answer AS SELECT interlock.decide_handoff(%s) AS token", shard.move)
        shard.wait_for_lock(running.pid)
        first.commit()
        assert running.result() is None
    assert shard.value("SELECT token FROM answer") == token


def test_a_bucket_that_was_given_away_is_not_accepted_while_its_move_is_not_finished(shard):
    """A catalog that was restored may give the move's number out again, to an "interlock apply" that makes this shard the owner."""
    shard.begin(version=5)
    assert shard.wait() == []
    token = shard.decide()
    for version in (4, 5, 6):
        with refusal("55000"):
            shard.sql("SELECT interlock.accept_buckets('account', '{0}', %s)", version)
    assert shard.state() == "moved" and shard.value("SELECT interlock.decide_handoff(%s)", shard.move) == token
    shard.sql("SELECT interlock.forget_handoff(%s)", shard.move)
    with refusal("55000"):
        shard.sql("SELECT interlock.accept_buckets('account', '{0}', 4)")
    assert shard.value("SELECT interlock.accept_buckets('account', '{0}', 5)") == 1


@pytest.mark.parametrize("change", ["SET state = 'owned', peer = NULL, move_id = NULL", "SET move_id = gen_random_uuid()", None])
def test_a_decision_that_somebody_has_undone_activates_no_target(shard, change):
    """Two shards would own the bucket."""
    shard.begin(buckets="{0,3}")
    assert shard.wait() == []
    shard.decide()
    shard.sql(f"UPDATE interlock.bucket_state {change} WHERE bucket = 3" if change else "DELETE FROM interlock.bucket_state WHERE bucket = 3")
    with refusal("55000") as caught:
        shard.sql("SELECT interlock.decide_handoff(%s)", shard.move)
    assert str(caught[0]).startswith("bucket 3 of keyspace \"account\" is not as move")


def test_a_decision_that_is_not_committed_decides_nothing(shard):
    shard.begin(duration="2 s")
    assert shard.wait() == []
    shard.sql("SELECT interlock.write_marker(%s)", shard.move)
    mover = shard.connect(autocommit=False)
    with shard.connect() as other:
        mover.execute("SELECT interlock.decide_handoff(%s)", (shard.move,))
        wait_until(lambda: shard.value("SELECT until <= clock_timestamp() FROM interlock.bucket_state WHERE state = 'fenced'"), 10)
        expiring = Background(other, "SELECT interlock.expire_fences()")
        wait_until(lambda: shard.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'interlock fence opener' "
                                       "AND wait_event_type = 'Lock'"), 10)
        # The mover dies.
        shard.sql("SELECT pg_terminate_backend(%s)", mover.info.backend_pid)
        assert expiring.result() is None
    mover.close()
    assert shard.state() == "owned"
    assert shard.value("SELECT floor FROM interlock.shard_identity") == 0


def test_a_decision_that_no_standby_has_is_not_taken_for_done_by_asking_again(make_instance):
    """Whoever gives up waiting for the standby has decided here, but not for a standby that takes over."""
    server = make_instance("synchronous")
    shard = Moving(server, "app").describe()
    shard.begin()
    assert shard.wait() == []
    shard.sql("SELECT interlock.write_marker(%s)", shard.move)
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.sql("SELECT pg_reload_conf()")
    with shard.connect(application_name="mover") as mover:
        mover.execute("SET synchronous_commit = local")  # what decides is stricter
        for _ in range(2):
            running = Background(mover, "SELECT interlock.decide_handoff(%s)", shard.move)
            wait_until(lambda: shard.value("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE application_name = 'mover'"), 20,
                       "the decision waits for a standby")
            shard.sql("SELECT pg_cancel_backend(%s)", running.pid)
            running.result()
            assert shard.state() == "moved"
    server.sql("ALTER SYSTEM RESET synchronous_standby_names")
    server.sql("SELECT pg_reload_conf()")


def test_two_moves_do_not_decide_under_one_version(shard):
    shard.begin(5)
    first = shard.move
    assert shard.wait() == []
    shard.sql("SELECT interlock.write_marker(%s)", first)
    shard.begin(5, buckets="{2}")
    assert shard.wait() == []
    shard.sql("SELECT interlock.write_marker(%s)", shard.move)
    shard.sql("SELECT interlock.decide_handoff(%s)", first)
    with refusal("55000"):
        shard.sql("SELECT interlock.decide_handoff(%s)", shard.move)
    assert (shard.state(0), shard.state(2)) == ("moved", "fenced")
    shard.sql("SELECT interlock.unfence_buckets(%s)", shard.move)
    with refusal("22023"):
        shard.fence(5)
    shard.fence(6)
    assert shard.wait() == []
    assert shard.decide() is not None


# --- DDL -----------------------------------------------------------------------------------------


def test_ddl_under_way_is_waited_for_and_later_ddl_refused_whatever_its_snapshot(shard):
    move = uuid.uuid4()
    with shard.connect(autocommit=False) as early, shard.connect() as late, shard.connect() as mover:
        late.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        late.execute("SELECT count(*) FROM pg_class")
        early.execute("ALTER TABLE account ADD COLUMN x int")
        moving = Background(mover, "SELECT interlock.begin_export('account', '{0}', 's1', %s)", move)
        shard.wait_for_lock(moving.pid)
        early.commit()
        assert moving.result() is None
        with refusal("55006"):
            late.execute("ALTER TABLE account ADD COLUMN y int")


def test_ddl_that_waits_for_the_beginning_of_a_move_is_refused(shard):
    with shard.connect(autocommit=False) as mover, shard.connect() as session:
        mover.execute("SELECT interlock.begin_export('account', '{0}', 's1', %s)", (uuid.uuid4(),))
        changing = Background(session, "ALTER TABLE account ADD COLUMN x int")
        shard.wait_for_lock(changing.pid)
        mover.commit()
        assert changing.code() == "55006"


@pytest.mark.parametrize("drop", ["DROP INDEX CONCURRENTLY by_balance", "DROP INDEX by_balance"])
def test_an_index_whose_drop_waits_for_the_beginning_of_a_move_stays_whole(shard, drop):
    """An error would not take back what CONCURRENTLY has done by then."""
    shard.sql("CREATE INDEX by_balance ON account (balance)")
    with shard.connect() as session, shard.connect(autocommit=False) as mover:
        mover.execute("SELECT interlock.begin_export('account', '{0}', 's1', %s)", (uuid.uuid4(),))
        dropping = Background(session, drop)
        shard.wait_for_lock(dropping.pid)
        mover.commit()
        assert dropping.code() == "55006"
    assert shard.sql("SELECT indisvalid, indisready, indislive FROM pg_index WHERE indexrelid = 'by_balance'::regclass") == [(True, True, True)]


def test_a_role_without_privileges_meets_the_same_refusal(shard):
    shard.sql("GRANT CREATE ON SCHEMA public TO app; ALTER TABLE account OWNER TO app")
    shard.begin()
    for statement in ["ALTER TABLE account ADD COLUMN x int", "DROP TABLE account", "CREATE INDEX ON account (balance)"]:
        with refusal("55006"):
            shard.sql(statement, user="app")
    shard.sql("CREATE TABLE mine (a int); DROP TABLE mine", user="app")


def test_a_session_that_applies_what_was_done_elsewhere_meets_the_same_refusal(shard):
    """Tools that replicate DDL: their sessions run with session_replication_role = replica."""
    shard.sql("CREATE INDEX by_balance ON account (balance)")
    shard.begin()
    with shard.connect() as session:
        session.execute("SET session_replication_role = replica")
        for statement in ["ALTER TABLE account ADD COLUMN x int", "DROP TABLE account", "DROP INDEX by_balance",
                          "DROP INDEX CONCURRENTLY by_balance", "ALTER TABLE account DROP COLUMN balance"]:
            with refusal("55006"):
                session.execute(statement)
        assert session.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'by_balance'::regclass").fetchone() == (True,)


# --- both sides ----------------------------------------------------------------------------------


def test_a_bucket_is_handed_over_with_its_rows_and_back_again(shard, instance):
    """The steps by hand, with PostgreSQL's own replication and a publication of everything."""
    target = Moving(instance, f"{shard.dbname}_to").create()
    target.sql(f"""
        SELECT interlock.set_identity('{CLUSTER}', 's1');
        SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
        CREATE TABLE account (balance bigint, gone int, account_id bigint PRIMARY KEY);
        ALTER TABLE account DROP COLUMN gone;
        SELECT interlock.shard_table('account', 'account', 'account_id');
    """)
    slot = f"s_{abs(hash(shard.dbname)) % 10**8}"
    try:
        shard.move, shard.buckets = uuid.uuid4(), "{0}"
        shard.sql("DELETE FROM account WHERE account_id = %s", KEY[2])
        shard.sql("SELECT interlock.begin_export('account', '{0}', 's1', %s)", shard.move)
        target.sql("SELECT interlock.begin_import('account', '{0}', 's0', %s)", shard.move)
        shard.sql("CREATE PUBLICATION moving FOR TABLE account, interlock.move_marker WITH (publish = 'insert, update, delete')")
        shard.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
        target.sql(f"SET interlock.moving_rows = on; INSERT INTO account (account_id, balance) VALUES ({KEY[0]}, 100)")
        with refusal("IL101"):
            target.sql(f"INSERT INTO account (account_id, balance) VALUES ({SECOND_KEY[0]}, 100)")
        target.sql(f"CREATE SUBSCRIPTION {slot} CONNECTION 'host=127.0.0.1 port={instance.port} user=postgres dbname={shard.dbname}' "
                   f"PUBLICATION moving WITH (create_slot = false, slot_name = '{slot}', copy_data = false)")
        for _ in range(50):
            shard.sql(update(KEY[0]))
        shard.sql(f"INSERT INTO account VALUES ({SECOND_KEY[0]}, 7)")
        shard.fence()
        assert shard.wait() == []
        fence = shard.value("SELECT interlock.write_marker(%s)", shard.move)
        wait_until(lambda: target.value("SELECT count(*) FROM interlock.move_marker WHERE (move_id, fence) = (%s, %s)",
                                        shard.move, fence), 30)
        digest = "SELECT interlock.bucket_digest('account', 0, 'account')::text"
        assert shard.value(digest) == target.value(digest)
        assert shard.value("SELECT rows FROM interlock.bucket_digest('account', 0, 'account')") == 2
        with refusal("55000"):  # not decided
            target.sql("SELECT interlock.activate_import(%s, 2, %s)", shard.move, uuid.uuid4())
        token = shard.value("SELECT interlock.decide_handoff(%s)", shard.move)
        with refusal("IL101"):
            target.sql(update(KEY[0]))
        assert target.value("SELECT interlock.activate_import(%s, 2, %s)", shard.move, token) is True
        target.sql(update(KEY[0]))
        assert (shard.state(), target.state()) == ("moved", "owned")
        assert target.value("SELECT balance FROM account WHERE account_id = %s", KEY[0]) == 151
        with refusal("IL101"):
            shard.sql(update(KEY[0]))
        # A session with the old routes is told so, even where it would find no row.
        with shard.connect() as stale, refusal("IL102"):
            stale.execute("SELECT interlock.greet(1)")
            stale.execute("UPDATE account SET balance = 0 WHERE account_id = -1")
        # Back at once: not over what is left here.
        back = uuid.uuid4()
        with refusal("55006"):
            shard.sql("SELECT interlock.begin_import('account', '{0}', 's1', %s)", back)
        target.sql(f"DROP SUBSCRIPTION {slot}")
        shard.sql("SET interlock.moving_rows = on; DELETE FROM account WHERE interlock.bucket_of('account', account_id) = 0")
        shard.sql("SELECT interlock.begin_import('account', '{0}', 's1', %s)", back)
        shard.sql("SELECT interlock.abort_import(%s)", back)
        assert shard.state() == "moved"
    finally:
        target.sql("DO $$ BEGIN EXECUTE (SELECT format('ALTER SUBSCRIPTION %I DISABLE', subname) FROM pg_subscription "
                   "WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())); "
                   "EXCEPTION WHEN OTHERS THEN NULL; END $$")
        target.sql(f"SELECT 1 FROM pg_subscription WHERE subname = '{slot}'") and target.sql(f"DROP SUBSCRIPTION {slot}")
        target.drop()


def test_looking_for_leftovers_is_in_no_other_moves_way(shard):
    move = uuid.uuid4()
    with shard.connect() as mover, shard.connect() as other, shard.connect(autocommit=False) as busy:
        busy.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
        importing = Background(mover, "SELECT interlock.begin_import('account', '{10}', 's1', %s)", move)
        shard.wait_for_lock(importing.pid)
        # The state of the shard is free all the while: another move could be activated.
        other.execute("SET lock_timeout = '2 s'")
        other.execute("SELECT interlock.require_shard()")
        # The bucket has been here meanwhile, and has left a row.
        shard.sql("SELECT interlock.accept_buckets('account', '{10}', 3)")
        busy.execute("INSERT INTO account VALUES (%s, 1)", [KEY[10]])
        busy.commit()
        assert importing.code() == "55006"
    assert shard.state(10) == "owned"
    assert shard.value("SELECT count(*) FROM interlock.handoff") == 0


def test_a_digest_locks_what_it_reads_so_that_vacuum_cannot_cut_it_off(shard):
    with shard.connect() as session, session.transaction():
        session.execute("SELECT interlock.bucket_digest('account', 0, 'account')")
        assert shard.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND relation = 'account'::regclass AND mode = 'AccessShareLock'",
                           session.info.backend_pid) == 1
