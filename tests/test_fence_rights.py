"""Who may go on writing behind a fence: transactions that it waits for anyway, and nobody else."""

import uuid

import psycopg
import pytest

from support.shard import KEY, SECOND_KEY, Shard, refusal


class Fenced(Shard):
    def fence(self, version=2, move=None):
        self.move = move or uuid.uuid4()
        self.sql("SELECT interlock.begin_export('account', '{0}', 's1', %s)", self.move)
        self.sql("SELECT interlock.fence_buckets('account', '{0}', 's1', %s, %s, '60 s')", self.move, version)

    def waited_for(self, timeout="50 ms"):
        return [row[0] for row in self.sql("SELECT * FROM interlock.wait_for_writers('account', %s, %s)", self.move, timeout)]


@pytest.fixture
def shard(instance, request):
    shard = Fenced(instance, f"rights_{abs(hash(request.node.name)) % 10**9}").create().describe()
    shard.sql("INSERT INTO account VALUES (%s, 100), (%s, 100)", KEY[0], KEY[2])
    shard.sql("""
        SELECT interlock.define_keyspace('other', 'bigint', 'splitmix64', 16), interlock.accept_buckets('other', '{0,2}', 1);
        CREATE TABLE plain (account_id bigint);
        CREATE TABLE elsewhere (id bigint PRIMARY KEY);
        CREATE TABLE entry (account_id bigint NOT NULL, n int) PARTITION BY RANGE (n);
        CREATE TABLE entry_0 PARTITION OF entry FOR VALUES FROM (0) TO (9) PARTITION BY LIST (n);
        CREATE TABLE entry_00 PARTITION OF entry_0 DEFAULT;
        CREATE VIEW rich AS SELECT * FROM account WHERE balance > 0;
        SELECT interlock.shard_table('entry', 'account', 'account_id'), interlock.shard_table('elsewhere', 'other', 'id');
    """)
    shard.sql("INSERT INTO elsewhere VALUES (%s); INSERT INTO plain VALUES (1)".replace("%s", str(KEY[0])))
    shard.sql("INSERT INTO entry VALUES (%s, 1), (%s, 1)", KEY[0], KEY[2])
    yield shard
    shard.drop()
    instance.check_log()


@pytest.fixture
def session(shard):
    """A transaction in a session like the router's: it has the library from the beginning."""
    with shard.connect() as session:
        session.execute("SELECT interlock.greet(1)")
        session.execute("BEGIN")
        yield session


def update(key):
    return f"UPDATE account SET balance = balance + 1 WHERE account_id = {key}"


def insert(key=SECOND_KEY[0]):
    return f"INSERT INTO account VALUES ({key}, 1)"


# --- rows that are locked -----------------------------------------------------------------------


@pytest.mark.parametrize("lock", [
    f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE",
    f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR NO KEY UPDATE",
    f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR SHARE",
    f"SELECT * FROM rich WHERE account_id = {KEY[0]} FOR UPDATE",
    f"SELECT * FROM plain, account a WHERE a.account_id = {KEY[0]} FOR KEY SHARE OF a",
    f"SELECT * FROM entry_00 WHERE account_id = {KEY[0]} FOR UPDATE",
    f"SELECT * FROM entry WHERE account_id = {KEY[0]} FOR UPDATE",
    f"DECLARE c CURSOR FOR SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE",
    f"DO $$ BEGIN PERFORM * FROM account WHERE account_id = {KEY[0]} FOR UPDATE; END $$",
    # No row is found: the lock on the table is held all the same.
    "SELECT * FROM account WHERE account_id = -1 FOR UPDATE",
])
def test_who_has_locked_rows_may_write_behind_the_fence(shard, session, lock):
    session.execute(lock)
    shard.fence()
    session.execute(update(KEY[0]))
    session.execute(insert())
    session.execute("INSERT INTO entry VALUES (%s, 2)", (KEY[0],))
    assert shard.waited_for() == [session.info.backend_pid]
    session.execute("COMMIT")
    assert shard.waited_for("5 s") == []
    assert shard.sql("SELECT balance FROM account WHERE account_id IN (%s, %s) ORDER BY 1", KEY[0], SECOND_KEY[0]) == [(1,), (101,)]
    # The next transaction of the session is a new one.
    with refusal("IL103"):
        session.execute(update(KEY[0]))


@pytest.mark.parametrize("lock", [
    f"SELECT * FROM account WHERE account_id = {KEY[0]}",
    f"SELECT * FROM elsewhere WHERE id = {KEY[0]} FOR UPDATE",
    "SELECT * FROM plain FOR UPDATE",
    f"SELECT p.* FROM plain p, account WHERE account.account_id = {KEY[0]} FOR UPDATE OF p",
])
def test_what_locks_no_row_of_the_keyspace_gives_no_right(shard, session, lock):
    session.execute(lock)
    shard.fence()
    assert shard.waited_for() == []
    with refusal("IL103"):
        session.execute(update(KEY[0]))


def test_rows_locked_after_the_fence_give_no_right(shard, session):
    shard.fence()
    assert shard.waited_for() == []
    session.execute(f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE")
    with refusal("IL103"):
        session.execute(update(KEY[0]))


def test_rows_locked_after_the_fence_by_a_session_that_writes_elsewhere_give_no_right(shard, session):
    """Its copy of the state is from before the fence until the lock makes it look."""
    session.execute("INSERT INTO elsewhere VALUES (%s)", (KEY[2],))
    shard.fence()
    assert shard.waited_for() == []
    session.execute(f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE")
    with refusal("IL103"):
        session.execute(insert())


def test_the_right_of_locked_rows_ends_when_the_bucket_has_gone(shard, session):
    session.execute(f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE")
    shard.fence()
    session.execute(update(KEY[0]))
    shard.sql("UPDATE interlock.bucket_state SET state = 'moved' WHERE bucket = 0 AND keyspace = 'account'")
    with refusal("IL101"):
        session.execute(update(KEY[0]))


def test_the_right_of_locked_rows_outlives_a_second_fence_and_other_changes(shard, session):
    session.execute(f"SELECT * FROM account WHERE account_id = {KEY[2]} FOR UPDATE")
    shard.fence()
    shard.sql("SELECT interlock.unfence_buckets(%s)", shard.move)
    session.execute("SELECT 1 FROM account")  # takes messages
    shard.fence(move=shard.move)
    shard.sql("SELECT interlock.accept_buckets('account', '{9}', 1)")
    session.execute(update(KEY[0]))
    assert shard.waited_for() == [session.info.backend_pid]


def test_a_bucket_that_was_not_here_when_rows_were_locked_is_not_meant(shard, session):
    session.execute(f"SELECT * FROM account WHERE account_id = {KEY[2]} FOR UPDATE")
    shard.set_state(8, "fenced")
    with refusal("IL103"):
        session.execute(f"INSERT INTO account VALUES ({KEY[8]}, 1)")


@pytest.mark.parametrize("text", [update(KEY[0]), f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE"])
def test_a_prepared_transaction_takes_its_right_along(shard, session, text):
    session.execute(text)
    session.execute("PREPARE TRANSACTION 'rights'")
    shard.fence()
    try:
        with refusal("IL103"):
            session.execute(insert())
    finally:
        session.execute("ROLLBACK PREPARED 'rights'")


# --- rows locked behind the fence -----------------------------------------------------------------

LOCK = f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE"


@pytest.fixture
def routed(shard, session):
    """As a router's session, in a transaction that has read only."""
    session.execute("ROLLBACK")
    session.execute("SET interlock.route_version = 1")
    session.execute("BEGIN")
    session.execute("SELECT * FROM elsewhere")
    return session


def decide(shard):
    shard.sql("SELECT interlock.write_marker(%s)", shard.move)
    shard.sql("SELECT interlock.decide_handoff(%s)", shard.move)


BEHIND = [
    LOCK,
    f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR NO KEY UPDATE",
    f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR SHARE",
    f"SELECT * FROM plain, account a WHERE a.account_id = {KEY[0]} FOR KEY SHARE OF a",
    f"SELECT * FROM entry WHERE account_id = {KEY[0]} FOR UPDATE",
    f"SELECT * FROM entry_00 WHERE account_id = {KEY[0]} FOR UPDATE",
    f"DECLARE c CURSOR FOR SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE",
    f"DO $$ BEGIN PERFORM * FROM account WHERE account_id = {KEY[0]} FOR UPDATE; END $$",
    "SAVEPOINT s; " + LOCK + "; RELEASE s",
    # What a foreign key locks, counts as well.
    f"INSERT INTO member VALUES ({KEY[2]})",
]


@pytest.mark.parametrize("lock", BEHIND)
def test_rows_locked_behind_the_fence_are_no_longer_locked_when_the_bucket_has_gone(shard, routed, lock):
    """Somebody else may have changed them at the new owner, and what was written here rests on that nobody could."""
    shard.sql("CREATE TABLE member (account_id bigint PRIMARY KEY REFERENCES account)")
    shard.fence()
    assert shard.waited_for("5 s") == []
    routed.execute(lock)
    routed.execute("UPDATE plain SET account_id = 2")
    decide(shard)
    with refusal("40001") as caught:
        routed.execute("COMMIT")
    assert str(caught[0]).splitlines()[0].endswith("(IL102)") and caught[0].diag.message_hint == "Run the transaction again."
    assert routed.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert shard.sql("SELECT account_id FROM plain") == [(1,)], "nothing of the transaction is kept"
    # The next transaction of the session is a new one.
    routed.execute("BEGIN; UPDATE plain SET account_id = 3; COMMIT")


@pytest.mark.parametrize("lock", [LOCK, f"SELECT * FROM account WHERE account_id = {KEY[2]} FOR UPDATE"])
def test_a_transaction_with_locked_rows_is_not_prepared_behind_the_fence(shard, routed, lock):
    """Its locks would outlive the decision, and nobody waits for them."""
    shard.fence()
    assert shard.waited_for() == []
    routed.execute(lock)
    with refusal("40001") as caught:
        routed.execute("PREPARE TRANSACTION 'behind'")
    assert str(caught[0]).splitlines()[0].endswith("(IL103)")
    assert shard.sql("SELECT gid FROM pg_prepared_xacts") == []


def test_nor_when_the_bucket_has_gone(shard, routed):
    shard.fence()
    assert shard.waited_for() == []
    routed.execute(LOCK)
    decide(shard)
    with refusal("40001") as caught:
        routed.execute("PREPARE TRANSACTION 'behind'")
    assert "(IL102)" in str(caught[0])


def test_rows_locked_behind_a_fence_that_is_opened_again_stay_locked(shard, routed):
    shard.fence()
    assert shard.waited_for() == []
    routed.execute(LOCK)
    shard.sql("SELECT interlock.unfence_buckets(%s)", shard.move)
    routed.execute("COMMIT")
    routed.execute("BEGIN")
    routed.execute(LOCK)
    shard.fence(move=shard.move)
    assert shard.waited_for() == [routed.info.backend_pid], "the second fence waits for them"
    routed.execute("PREPARE TRANSACTION 'before'")
    shard.sql("ROLLBACK PREPARED 'before'")


@pytest.mark.parametrize("first", [LOCK, update(KEY[0])])
def test_whose_locks_are_good_may_be_prepared(shard, routed, first):
    routed.execute(first)
    shard.fence()
    routed.execute(LOCK)
    routed.execute("PREPARE TRANSACTION 'waited for'")
    assert shard.waited_for() == [None]
    shard.sql("COMMIT PREPARED 'waited for'")


@pytest.mark.parametrize("what", ["under way", "newer routes", "before the fence", "given back", "by itself", "directly", "elsewhere", "written before"])
def test_whose_locks_are_good_may_commit(shard, session, routed, what):
    if what == "newer routes":
        routed.execute("SET interlock.route_version = 2")
    if what == "directly":
        routed.execute("SET interlock.route_version = 0")
    if what == "before the fence":
        routed.execute(LOCK)
    if what == "written before":
        routed.execute(update(KEY[0]))
    shard.fence()
    if what not in ("before the fence", "written before"):
        assert shard.waited_for("5 s") == []
    if what == "given back":
        routed.execute("SAVEPOINT s")
    if what == "by itself":
        routed.execute("ROLLBACK")
    routed.execute("SELECT * FROM elsewhere FOR UPDATE" if what == "elsewhere" else LOCK)
    if what == "given back":
        routed.execute("ROLLBACK TO s")
    if what in ("under way", "before the fence", "written before"):
        routed.execute("COMMIT")
        assert shard.waited_for("5 s") == []
        return
    decide(shard)
    if what != "by itself":
        routed.execute("UPDATE plain SET account_id = 2")
        routed.execute("COMMIT")
        assert shard.sql("SELECT account_id FROM plain") == [(2,)]


# --- partitions and triggers ----------------------------------------------------------------------


def test_who_writes_to_a_partitioned_table_may_go_on_in_all_tables(shard, session):
    session.execute("INSERT INTO entry VALUES (%s, 3)", (KEY[0],))
    shard.fence()
    session.execute("UPDATE entry SET n = n + 1 WHERE account_id = %s", (KEY[0],))
    session.execute("DELETE FROM entry_00 WHERE account_id = %s", (KEY[0],))
    session.execute(update(KEY[0]))
    assert shard.waited_for() == [session.info.backend_pid]


def test_the_guard_on_a_table_of_one_s_own_gives_no_right(shard, session):
    session.execute("CREATE TABLE mine (k bigint)")
    session.execute("CREATE TRIGGER g AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION interlock.guard('account', 'k')")
    session.execute("INSERT INTO mine VALUES (%s)", (KEY[0],))
    shard.fence()
    assert shard.waited_for() == []
    with refusal("IL103"):
        session.execute(update(KEY[0]))


# --- savepoints ----------------------------------------------------------------------------------


LOCKS = [update(KEY[0]), f"SELECT * FROM account WHERE account_id = {KEY[0]} FOR UPDATE"]


@pytest.mark.parametrize("text", LOCKS)
def test_a_savepoint_that_took_no_lock_back_leaves_the_right(shard, session, text):
    session.execute(text)
    session.execute("SAVEPOINT s")
    session.execute(text)
    session.execute("INSERT INTO entry VALUES (%s, 2)", (KEY[0],))
    session.execute("ROLLBACK TO s")
    shard.fence()
    session.execute(update(KEY[0]))
    session.execute("RELEASE s")
    session.execute(insert())
    assert shard.waited_for() == [session.info.backend_pid]


@pytest.mark.parametrize("text", LOCKS)
def test_a_savepoint_that_is_released_hands_the_right_on(shard, session, text):
    session.execute("SAVEPOINT a")
    session.execute("SAVEPOINT b")
    session.execute(text)
    session.execute("RELEASE b")
    session.execute("SAVEPOINT c")
    session.execute("ROLLBACK TO c")
    shard.fence()
    session.execute(update(KEY[0]))
    assert shard.waited_for() == [session.info.backend_pid]


@pytest.mark.parametrize("text", LOCKS)
def test_a_savepoint_that_takes_the_lock_back_takes_the_right(shard, session, text):
    session.execute("SAVEPOINT a")
    session.execute("SAVEPOINT b")
    session.execute(text)
    session.execute("RELEASE b")
    session.execute("ROLLBACK TO a")
    shard.fence()
    assert shard.waited_for() == []
    with refusal("IL103"):
        session.execute(update(KEY[0]))


def test_an_exception_block_before_the_first_write_takes_nothing(shard, session):
    session.execute(f"""
        DO $$ BEGIN
            {update(KEY[0])};
            BEGIN
                INSERT INTO account VALUES ({KEY[0]}, 1);
            EXCEPTION WHEN unique_violation THEN NULL;
            END;
        END $$
    """)
    shard.fence()
    session.execute(update(KEY[0]))
    assert shard.waited_for() == [session.info.backend_pid]
