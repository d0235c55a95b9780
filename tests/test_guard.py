"""The write guard and the route version, with more than one session at a time."""

import psycopg
import pytest

from support.shard import KEY, SECOND_KEY, Background, Shard, refusal
from support.wait import wait_until

ISOLATION = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def shard(instance, request):
    shard = Shard(instance, f"guard_{abs(hash(request.node.name)) % 10**9}").create().describe()
    yield shard
    shard.drop()
    instance.check_log()


def write_statements(bucket):
    """An insert, an update and a delete in the bucket; its KEY must be there."""
    return [f"INSERT INTO account VALUES ({SECOND_KEY[bucket]}, 1)",
            f"UPDATE account SET balance = balance + 1 WHERE account_id = {KEY[bucket]}",
            f"DELETE FROM account WHERE account_id = {KEY[bucket]}"]


# --- the newest state, whatever the snapshot ---------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("state, code", [("moved", "IL101"), ("fenced", "IL103"), ("importing", "IL101")])
def test_a_transaction_that_began_before_a_bucket_left_cannot_write_to_it_any_more(shard, isolation, state, code):
    shard.sql("INSERT INTO account VALUES (%s, 100), (%s, 100)", KEY[0], KEY[2])
    with shard.connect() as session:
        session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        # It has its snapshot and its lock on the table, and has written to another bucket.
        session.execute("SELECT count(*) FROM account")
        session.execute("UPDATE account SET balance = 1 WHERE account_id = %s", (KEY[2],))
        shard.set_state(0, state)
        for statement in write_statements(0):
            session.execute("SAVEPOINT s")
            with refusal(code):
                session.execute(statement)
            session.execute("ROLLBACK TO s")
        # What the bucket held can be read on, and other buckets written.
        assert session.execute("SELECT count(*) FROM account").fetchone() == (2,)
        session.execute("UPDATE account SET balance = 2 WHERE account_id = %s", (KEY[2],))
        session.execute("COMMIT")
    assert shard.sql("SELECT * FROM account ORDER BY 1") == [(KEY[0], 100), (KEY[2], 2)]


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_transaction_that_began_before_a_bucket_came_can_write_to_it(shard, isolation):
    with shard.connect() as session:
        session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        session.execute("SELECT count(*) FROM account")
        session.execute("SAVEPOINT s")
        with refusal("IL101"):
            session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[12],))
        session.execute("ROLLBACK TO s")
        shard.sql("SELECT interlock.accept_buckets('account', '{12}', 2)")
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[12],))
        session.execute("COMMIT")
    assert shard.keys() == [KEY[12]]


def test_a_prepared_statement_of_an_idle_session_sees_the_change(shard):
    with shard.connect() as session:
        session.execute("SET plan_cache_mode = force_generic_plan")
        session.execute("PREPARE put(bigint) AS INSERT INTO account VALUES ($1, 1)")
        session.execute(f"EXECUTE put({KEY[0]})")
        shard.set_state(0, "moved")
        with refusal("IL101"):
            session.execute(f"EXECUTE put({SECOND_KEY[0]})")
        shard.set_state(0, "owned")
        session.execute(f"EXECUTE put({SECOND_KEY[0]})")


@pytest.mark.parametrize("command", ["INSERT INTO account VALUES ($1, 1)",
                                     "UPDATE account SET balance = 1 WHERE account_id = $1",
                                     "DELETE FROM account WHERE account_id = $1"])
def test_a_transaction_that_has_all_its_locks_and_plans_sees_the_change_all_the_same(shard, command):
    """Nothing but the guard itself looks for messages here: no new lock, no catalog, no new plan."""
    in_bucket_7 = [7, 16, 21]
    if not command.startswith("INSERT"):
        shard.sql("INSERT INTO account SELECT k, 0 FROM unnest(%s::bigint[]) k", [KEY[0], *in_bucket_7])
    with shard.connect() as session:
        session.execute("SET plan_cache_mode = force_generic_plan")
        session.execute(f"PREPARE write(bigint) AS {command}")
        session.execute("BEGIN")
        for key in in_bucket_7:
            session.execute(f"EXECUTE write({key})")
        shard.set_state(0, "moved")
        with refusal("IL101"):
            session.execute(f"EXECUTE write({KEY[0]})")


@pytest.mark.parametrize("text", [
    "INSERT INTO account SELECT k, 1 FROM unnest(ARRAY[{second}, 18, {first}]) AS k",
    "UPDATE account SET balance = 1 WHERE account_id IN ({first}, {second}, 18)",
    "WITH gone AS (UPDATE account SET balance = 2 WHERE account_id = {first} RETURNING *) SELECT count(*) FROM gone",
])
def test_a_statement_under_way_is_refused_when_its_bucket_leaves(shard, text):
    """A BEFORE trigger of the user's holds the statement up; the bucket leaves meanwhile."""
    if not text.startswith("INSERT"):
        shard.sql("INSERT INTO account VALUES (%s, 0), (%s, 0), (18, 0)", KEY[0], SECOND_KEY[0])
    before = shard.sql("SELECT * FROM account ORDER BY 1")
    shard.sql("""
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_lock(1);
            PERFORM pg_advisory_unlock(1);
            RETURN NEW;
        END $$;
        CREATE TRIGGER wait BEFORE INSERT OR UPDATE ON account FOR EACH ROW
            WHEN (NEW.account_id = 6) EXECUTE FUNCTION wait();
    """)
    with shard.connect() as gate, shard.connect() as session:
        gate.execute("SELECT pg_advisory_lock(1)")
        running = Background(session, text.format(first=KEY[0], second=SECOND_KEY[0]))
        shard.wait_for_lock(running.pid)
        shard.set_state(0, "moved")
        gate.execute("SELECT pg_advisory_unlock(1)")
        assert running.code() == "IL101"
    assert shard.sql("SELECT * FROM account ORDER BY 1") == before


def test_of_a_function_s_statements_those_after_the_change_are_refused(shard):
    """Rows written one by one: the first are kept, the rest are refused from the change on."""
    shard.sql("""
        CREATE FUNCTION fill() RETURNS int[] LANGUAGE plpgsql AS $$
        DECLARE
            refused int[] := '{}';
        BEGIN
            FOR k IN 1..4 LOOP
                IF k = 3 THEN
                    PERFORM pg_advisory_lock(1);
                END IF;
                BEGIN
                    INSERT INTO account VALUES ((ARRAY[6, 29, 38, 18])[k], k);
                EXCEPTION WHEN SQLSTATE 'IL101' THEN
                    refused := refused || k;
                END;
            END LOOP;
            RETURN refused;
        END $$
    """)
    with shard.connect() as gate, shard.connect() as session:
        gate.execute("SELECT pg_advisory_lock(1)")
        running = Background(session, "CREATE TABLE outcome AS SELECT fill() AS refused")
        shard.wait_for_lock(running.pid)
        shard.set_state(0, "moved")
        gate.execute("SELECT pg_advisory_unlock(1)")
        assert running.result() is None
    assert shard.value("SELECT refused FROM outcome") == [3]
    assert shard.keys() == [6, 18, 29]


def test_a_copy_under_way_is_refused_when_its_bucket_leaves(shard):
    keys = [row[0] for row in shard.sql("SELECT k FROM generate_series(1, 200000) k WHERE interlock.owns('account', k)")]
    with shard.connect(autocommit=False) as session:
        with refusal("IL101"):
            with session.cursor().copy("COPY account FROM STDIN") as copy:
                for key in keys[:5000]:
                    copy.write(f"{key}\t1\n")
                shard.set_state(0, "moved")
                for key in keys[5000:]:
                    copy.write(f"{key}\t1\n")
    assert shard.keys() == []


# --- changes that are undone -------------------------------------------------------------------


def test_a_state_change_that_is_rolled_back_is_forgotten_by_the_session_that_made_it(shard):
    with shard.connect() as session:
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        session.execute("BEGIN")
        session.execute("UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 0")
        session.execute("SAVEPOINT s")
        with refusal("IL101"):
            session.execute("INSERT INTO account VALUES (%s, 1)", (SECOND_KEY[0],))
        session.execute("ROLLBACK TO s")
        # The others do not see it, and go on.
        shard.sql("UPDATE account SET balance = 2 WHERE account_id = %s", KEY[0])
        session.execute("ROLLBACK")
        session.execute("INSERT INTO account VALUES (%s, 1)", (SECOND_KEY[0],))
    assert shard.keys() == [KEY[0], SECOND_KEY[0]]


def test_a_state_change_is_undone_with_its_savepoint(shard):
    with shard.connect() as session:
        session.execute("BEGIN")
        session.execute("SAVEPOINT outer_one")
        session.execute("UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 0")
        session.execute("SAVEPOINT inner_one")
        session.execute("UPDATE interlock.bucket_state SET state = 'owned' WHERE bucket = 0")
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        session.execute("ROLLBACK TO inner_one")
        with refusal("IL101"):
            session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        session.execute("ROLLBACK TO outer_one")
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        session.execute("COMMIT")
    assert shard.keys() == [KEY[0]]


def test_an_error_while_the_state_is_being_read_leaves_nothing_stale(shard):
    """The session is cancelled while it waits to read the tables; the next write reads them again."""
    with shard.connect() as session, shard.connect() as blocker:
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        shard.set_state(0, "moved")
        blocker.execute("BEGIN")
        blocker.execute("LOCK TABLE interlock.bucket_state IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            running = Background(session, "INSERT INTO account VALUES (%s, 1)", SECOND_KEY[0])
            with shard.connect() as other:
                wait_until(lambda: other.execute("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s",
                                                 (running.pid,)).fetchone()[0], 20, "the session waits")
                other.execute("SELECT pg_cancel_backend(%s)", (running.pid,))
            assert running.code() == "57014"
        blocker.execute("ROLLBACK")
        with refusal("IL101"):
            session.execute("INSERT INTO account VALUES (%s, 1)", (SECOND_KEY[0],))
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[2],))
        assert session.execute("SELECT count(*) FROM pg_backend_memory_contexts "
                               "WHERE name LIKE 'interlock ownership%'").fetchone() == (1,)


def test_a_prepared_transaction_changes_the_state_when_it_commits(shard):
    with shard.connect() as session:
        session.execute("BEGIN")
        session.execute("UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 0")
        session.execute(f"PREPARE TRANSACTION '{shard.dbname}'")
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        with shard.connect() as writer:
            writer.execute("UPDATE account SET balance = 2")
            session.execute(f"COMMIT PREPARED '{shard.dbname}'")
            for each in (session, writer):
                with refusal("IL101"):
                    each.execute("UPDATE account SET balance = 3")


def test_a_thousand_state_changes_leave_no_memory_behind(shard):
    with shard.connect() as session:
        size = []
        for number in range(1000):
            session.execute("UPDATE interlock.bucket_state SET route_version = %s WHERE bucket = 1", (number,))
            session.execute("SELECT interlock.owns('account', 1)")
            if number in (200, 999):
                size.append(session.execute("SELECT sum(total_bytes) FROM pg_backend_memory_contexts "
                                            "WHERE name LIKE 'interlock%' OR parent LIKE 'interlock%'").fetchone()[0])
        assert size[0] == size[1]


# --- sharding a table --------------------------------------------------------------------------


def test_sharding_a_table_again_does_not_wait_for_its_writers(shard):
    with shard.connect() as writer, shard.connect() as operator:
        operator.execute("SET lock_timeout = '50ms'")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        operator.execute("SELECT interlock.shard_table('account', 'account', 'account_id')")
        writer.execute("COMMIT")


def test_a_row_written_while_the_table_is_being_sharded_is_found_or_refused(shard):
    """A writer that came first is waited for, and its row counts; one that comes later meets the guard."""
    shard.sql("CREATE TABLE entry (account_id bigint NOT NULL)")
    shard_it = "SELECT interlock.shard_table('entry', 'account', 'account_id')"
    with shard.connect() as writer, shard.connect() as operator:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO entry VALUES (%s)", (KEY[10],))
        running = Background(operator, shard_it)
        shard.wait_for_lock(running.pid)
        writer.execute("COMMIT")
        assert running.code() == "55000"
        writer.execute("DELETE FROM entry")
        operator.execute("BEGIN")
        operator.execute(shard_it)
        running = Background(writer, "INSERT INTO entry VALUES (%s)", KEY[10])
        shard.wait_for_lock(running.pid)
        operator.execute("COMMIT")
        assert running.code() == "IL101"


# --- giving buckets away -----------------------------------------------------------------------


def test_release_waits_for_a_writer_and_finds_its_row(shard):
    with shard.connect() as writer, shard.connect() as mover:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO account VALUES (%s, 1)", (KEY[2],))
        running = Background(mover, "SELECT interlock.release_buckets('account', '{2}', 's1', 2)")
        shard.wait_for_lock(running.pid)
        writer.execute("COMMIT")
        assert running.code() == "55006"
    assert shard.value("SELECT state FROM interlock.bucket_states WHERE bucket = 2") == "owned"
    assert shard.value("SELECT floor FROM interlock.shard_identity") == 0


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_writer_that_waits_for_a_release_is_refused(shard, isolation):
    with shard.connect() as writer, shard.connect() as mover:
        writer.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        writer.execute("SELECT count(*) FROM account")
        mover.execute("BEGIN")
        mover.execute("SELECT interlock.release_buckets('account', '{2}', 's1', 2)")
        running = Background(writer, "INSERT INTO account VALUES (%s, 1)", KEY[2])
        shard.wait_for_lock(running.pid)
        mover.execute("COMMIT")
        assert running.code() == "IL101"
    assert shard.keys() == []


def test_release_gives_up_after_lock_timeout_and_has_changed_nothing(shard):
    with shard.connect() as writer, shard.connect() as mover:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        mover.execute("SET lock_timeout = '50ms'")
        with refusal("55P03"):
            mover.execute("SELECT interlock.release_buckets('account', '{2}', 's1', 2)")
        writer.execute("COMMIT")
    shard.sql("INSERT INTO account VALUES (%s, 1)", KEY[2])


def test_once_the_writers_are_waited_for_no_row_comes_into_a_fenced_bucket(shard):
    """The soundness of the fence: four writers never stop; after the state change has committed and the
    holders of the table's lock are gone, the bucket stands still until it is opened again."""
    shard.sql("CREATE SEQUENCE next_key START 1000")
    shard.sql("""
        CREATE PROCEDURE write_on() LANGUAGE plpgsql AS $$
        DECLARE
            k bigint;
        BEGIN
            WHILE NOT EXISTS (SELECT FROM pg_tables WHERE tablename = 'stop') LOOP
                k := nextval('next_key');
                BEGIN
                    IF interlock.bucket_of('account', k) < 8 THEN
                        INSERT INTO account VALUES (k, 0);
                    END IF;
                EXCEPTION WHEN SQLSTATE 'IL103' THEN
                    NULL;
                END;
                COMMIT;
            END LOOP;
        END $$
    """)
    writers = [shard.connect() for _ in range(4)]
    running = [Background(writer, "CALL write_on()") for writer in writers]
    count = "SELECT count(*) FILTER (WHERE b = 2), count(*) FROM (SELECT interlock.bucket_of('account', account_id) b FROM account) s"
    try:
        with shard.connect() as mover:
            for _ in range(15):
                shard.set_state(2, "fenced")
                mover.execute("BEGIN")
                mover.execute("LOCK TABLE account IN SHARE MODE")
                mover.execute("COMMIT")
                fenced, everything = mover.execute(count).fetchone()
                # The others go on meanwhile.
                wait_until(lambda: mover.execute(count).fetchone()[1] > everything + 200, 30, "other buckets are written")
                assert mover.execute(count).fetchone()[0] == fenced
                shard.set_state(2, "owned")
                wait_until(lambda: mover.execute(count).fetchone()[0] > fenced, 30, "the bucket is written again")
    finally:
        shard.sql("CREATE TABLE stop ()")
        errors = [each.result() for each in running]
        for writer in writers:
            writer.close()
    assert errors == [None] * 4


# --- route version -----------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_transaction_under_old_routes_is_refused_once_the_floor_has_risen(shard, isolation):
    with shard.connect() as session:
        session.execute("SELECT interlock.greet(1)")
        session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        session.execute("SELECT count(*) FROM account")
        shard.sql("SELECT interlock.release_buckets('account', '{2}', 's1', 2)")
        for statement in ("SELECT count(*) FROM account", "UPDATE account SET balance = 1 WHERE account_id = 4711",
                          "COPY account TO STDOUT", "SELECT 1 FROM account FOR UPDATE"):
            session.execute("SAVEPOINT s")
            with refusal("IL102"):
                session.execute(statement)
            session.execute("ROLLBACK TO s")
        session.execute("SELECT 1")
        session.execute("COMMIT")
        session.execute("SELECT interlock.greet(2)")
        assert session.execute("SELECT count(*) FROM account").fetchone() == (0,)


def test_parallel_workers_read_what_their_leader_may_read(shard):
    shard.sql("SELECT interlock.accept_buckets('account', array(SELECT generate_series(0, 15)), 1)")
    shard.sql("INSERT INTO account SELECT g, 0 FROM generate_series(1, 20000) g")
    shard.sql("INSERT INTO interlock.bucket_state VALUES ('account', 3, 'moved', 's1', 2) "
              "ON CONFLICT (keyspace, bucket) DO UPDATE SET state = 'moved', peer = 's1'")
    query = "SELECT count(*) FROM account WHERE interlock.owns('account', account_id)"
    serial = shard.value(query)
    with shard.connect() as session:
        session.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; "
                        "SET max_parallel_workers_per_gather = 2; SET parallel_leader_participation = off")
        session.execute("SELECT interlock.greet(1)")
        assert "Workers Planned" in "\n".join(row[0] for row in session.execute("EXPLAIN " + query))
        assert session.execute(query).fetchone() == (serial,)
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1")
        # Workers start with nothing in their hands and see the newest state too.
        shard.set_state(4, "moved")
        newer = shard.value(query)
        assert newer < serial
        assert session.execute(query).fetchone() == (newer,)
        session.execute("COMMIT")
        shard.sql("UPDATE interlock.shard_identity SET floor = 2")
        with refusal("IL102"):
            session.execute(query)


# --- the extension comes and goes --------------------------------------------------------------


def test_sessions_go_on_when_the_extension_is_dropped_and_made_again(shard):
    with shard.connect() as session:
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        session.execute("SELECT interlock.greet(1)")
        session.execute("PREPARE put(bigint) AS INSERT INTO account VALUES ($1, 1)")
        shard.sql("DROP EXTENSION interlock CASCADE")
        session.execute(f"EXECUTE put({KEY[10]})")
        session.execute("SELECT * FROM account")
        with session.cursor().copy("COPY account TO STDOUT") as copy:
            assert len(list(copy)) == 2
        session.execute("DELETE FROM account WHERE account_id = %s", (KEY[10],))
        with refusal("3F000"):
            session.execute("SELECT interlock.greet(1)")
        shard.sql("CREATE EXTENSION interlock")
        session.execute("INSERT INTO account VALUES (%s, 1)", (SECOND_KEY[0],))
        assert session.execute("SELECT shard FROM interlock.greet(1)").fetchone() == (None,)
        # And it becomes a shard again, under this session's eyes.
        shard.sql("SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's7');"
                  "SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);"
                  "SELECT interlock.accept_buckets('account', '{0}', 5);"
                  "SELECT interlock.shard_table('account', 'account', 'account_id')")
        assert session.execute("SELECT shard FROM interlock.greet(1)").fetchone() == ("s7",)
        with refusal("IL101"):
            session.execute(f"EXECUTE put({KEY[2]})")
        shard.sql("SELECT interlock.release_buckets('account', '{3}', 's1', 6)")
        with refusal("IL102"):
            session.execute("SELECT * FROM account")


def test_a_database_without_anything_takes_the_extension_and_only_from_a_superuser(instance):
    empty = Shard(instance, "guard_empty")
    instance.sql("CREATE DATABASE guard_empty TEMPLATE template0", dbname="postgres")
    try:
        with refusal("42501"):
            empty.sql("CREATE EXTENSION interlock", user="app")
        with empty.connect() as session:
            session.execute("SELECT 1")
            empty.sql("CREATE EXTENSION interlock")
            assert session.execute("SELECT shard, restored FROM interlock.greet(3)").fetchone() == (None, None)
            session.execute("CREATE TABLE plain (a int)")
            session.execute("INSERT INTO plain VALUES (1)")
            assert session.execute("SELECT * FROM plain").fetchall() == [(1,)]
            empty.sql("DROP EXTENSION interlock")
            assert session.execute("SELECT * FROM plain").fetchall() == [(1,)]
    finally:
        empty.drop()


def test_a_session_that_never_loaded_the_library_is_guarded(shard):
    """Nothing is preloaded: the first guarded write loads the library, whoever connects."""
    assert shard.value("SHOW shared_preload_libraries") == ""
    with psycopg.connect(shard.instance.conninfo(shard.dbname, "postgres"), autocommit=True) as session:
        with refusal("IL101"):
            session.execute("DELETE FROM account; INSERT INTO account VALUES (4, 1)")
