"""Everybody may have a fence opened whose time is over, and nobody can hold a mover up by that."""

import threading
import time
import uuid

import pytest

from support.shard import KEY, Background, Shard, refusal
from support.wait import Stopwatch, wait_until

OPENER = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'interlock fence opener'"


class Expired(Shard):
    def expire(self, bucket=0):
        """A fence whose time is over."""
        self.move = uuid.uuid4()
        self.sql("SELECT interlock.begin_export('account', %s, 's1', %s)", f"{{{bucket}}}", self.move)
        self.sql("SELECT interlock.fence_buckets('account', %s, 's1', %s, 2, '1 ms')", f"{{{bucket}}}", self.move)
        time.sleep(0.005)
        return self

    def state(self, bucket=0):
        return self.value("SELECT state FROM interlock.bucket_state WHERE bucket = %s", bucket)

    def nobody_holds_anything(self):
        """A mover has all that it needs at once."""
        with self.connect() as mover:
            mover.execute("SET lock_timeout = '100 ms'")
            mover.execute("SELECT interlock.own_handoff(%s, 'source')", (self.move,))
            mover.execute("SELECT FROM interlock.bucket_state FOR UPDATE")


@pytest.fixture
def shard(instance, request):
    shard = Expired(instance, f"expiry_{abs(hash(request.node.name)) % 10**9}").create().describe()
    yield shard
    shard.drop()
    instance.check_log()


@pytest.mark.parametrize("block", ["BEGIN", "BEGIN READ ONLY", "BEGIN ISOLATION LEVEL REPEATABLE READ",
                                   "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"])
def test_an_open_transaction_that_has_opened_a_fence_holds_nothing(shard, block):
    shard.expire()
    with shard.connect(user="app") as stranger:
        stranger.execute(block)
        stranger.execute("SAVEPOINT s")
        stranger.execute("SELECT 1")
        assert stranger.execute("SELECT interlock.expire_fences()").fetchone()[0] == [shard.move]
        assert shard.state() == "owned"
        shard.nobody_holds_anything()
        assert shard.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype NOT IN ('virtualxid')",
                           stranger.info.backend_pid) == 0
        # Nor is it undone.
        stranger.execute("ROLLBACK")
    assert shard.state() == "owned"


def test_a_statement_that_goes_on_after_opening_a_fence_holds_nothing(shard):
    shard.expire()
    with shard.connect(user="app") as stranger:
        stranger.execute("SET statement_timeout = '60 s'")
        running = Background(stranger, "SELECT interlock.expire_fences(), pg_sleep(600)")
        wait_until(lambda: running.error or shard.state() == "owned", 10, "the fence is open")
        shard.nobody_holds_anything()
        shard.expire(1)
        assert shard.sql("SELECT interlock.expire_fences()", user="app") == [([shard.move],)]
        assert running.thread.is_alive()
        shard.sql("SELECT pg_cancel_backend(%s)", running.pid)
        assert running.code() == "57014"


def test_many_who_call_it_at_once_and_again_take_one_worker(shard):
    """While somebody holds the state, so that it takes as long as it can."""
    shard.expire()
    stop, most = threading.Event(), 0

    def call():
        with shard.connect(user="app") as session:
            while not stop.is_set():
                try:
                    session.execute("SET statement_timeout = '300 ms'; SELECT interlock.expire_fences()")
                except Exception:
                    pass

    callers = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    with shard.connect(autocommit=False) as mover:
        mover.execute("SELECT interlock.require_shard()")
        for caller in callers:
            caller.start()
        waiting = 0
        end = time.monotonic() + 2
        while time.monotonic() < end:
            most = max(most, shard.value(OPENER))
            waiting = max(waiting, shard.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'interlock fence opener' "
                                               "AND wait_event_type = 'Lock'"))
        mover.rollback()
    wait_until(lambda: shard.state() == "owned", 10, "the fence is open")
    stop.set()
    for caller in callers:
        caller.join(30)
    # A caller that gives up leaves its worker behind; the next one's ends when it sees that.
    assert waiting == 1 and most <= 2, (waiting, most)
    wait_until(lambda: shard.value(OPENER) == 0, 10, "no worker is left")


def test_who_gives_up_waiting_is_in_nobody_s_way(shard):
    shard.expire()
    with shard.connect(autocommit=False) as mover, shard.connect(user="app") as stranger:
        mover.execute("SELECT interlock.require_shard()")
        stranger.execute("BEGIN")
        stranger.execute("SAVEPOINT s")
        stranger.execute("SET LOCAL statement_timeout = '100 ms'")
        with refusal("57014"):
            stranger.execute("SELECT interlock.expire_fences()")
        stranger.execute("ROLLBACK TO s")
        mover.rollback()
        wait_until(lambda: shard.value(OPENER) == 0, 10, "its worker has ended")
        shard.sql("SELECT interlock.expire_fences()", user="app")
        assert shard.state() == "owned"


def test_what_a_database_sets_for_its_sessions_does_not_keep_a_fence_shut(shard):
    shard.sql("CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '-infinity'::timestamptz $$")
    shard.expire()
    for setting in ["default_transaction_isolation = 'serializable'", "default_transaction_read_only = on",
                    "search_path = public, pg_catalog", "session_replication_role = replica", "role = app"]:
        shard.instance.sql(f"ALTER DATABASE {shard.dbname} SET {setting}", dbname="postgres")
    assert shard.sql("SELECT interlock.expire_fences()", user="app") == [([shard.move],)]
    with shard.connect(options="-c role=none") as session:
        assert session.execute("SELECT state FROM interlock.bucket_state WHERE bucket = 0").fetchone() == ("owned",)


def test_without_a_free_worker_the_caller_is_told(make_instance):
    server = make_instance("workers", {"max_worker_processes": "0", "max_logical_replication_workers": "0"})
    shard = Expired(server, "app").describe()
    # None is needed where there is nothing to be done.
    assert shard.sql("SELECT interlock.expire_fences()", user="app") == [([],)]
    shard.expire()
    with Stopwatch() as watch, refusal("53400"):
        shard.sql("SELECT interlock.expire_fences()", user="app")
    assert 2 < watch.seconds < 30
    assert shard.state() == "fenced"
    with refusal("42501"):
        shard.sql("SELECT interlock.open_expired_fences()", user="app")
    assert shard.sql("SELECT interlock.open_expired_fences()") == [([shard.move],)]
    assert shard.state() == "owned"


def test_several_fences_are_opened_at_once_and_those_that_hold_are_not(shard):
    move = uuid.uuid4()
    shard.sql("SELECT interlock.begin_export('account', '{4}', 's1', %s)", move)
    shard.sql("SELECT interlock.fence_buckets('account', '{4}', 's1', %s, 2, '60 s')", move)
    moves = [shard.expire(bucket).move for bucket in (0, 1, 2)]
    assert shard.sql("SELECT interlock.expire_fences()", user="app") == [(sorted(moves),)]
    assert [shard.state(bucket) for bucket in (0, 1, 2, 4)] == ["owned"] * 3 + ["fenced"]
    shard.sql(f"INSERT INTO account VALUES ({KEY[0]}, 1)")
