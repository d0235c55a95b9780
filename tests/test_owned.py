"""owned(): of a bucket on its way from one shard to another exactly one of them answers, at every route version."""

import pytest

from support.shard import Background, Shard

PAUSE = """
    CREATE FUNCTION pause(key bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF key = 10 THEN PERFORM pg_advisory_xact_lock(1); END IF;
        RETURN true;
    END $$
"""
ALL_ROWS = "SELECT count(*) FROM account WHERE interlock.owned('account', account_id)"


@pytest.fixture
def shard(instance, request):
    shard = Shard(instance, f"owned_{abs(hash(request.node.name)) % 10**9}").create().describe()
    shard.sql("SELECT interlock.accept_buckets('account', array(SELECT generate_series(0, 15)), 1)")
    shard.sql("INSERT INTO account SELECT g, g FROM generate_series(1, 200) g")
    shard.sql(PAUSE)
    yield shard
    shard.drop()
    instance.check_log()


def connect(shard, route_version=0):
    session = shard.connect()
    session.execute(f"SET interlock.route_version = {route_version}")
    return session


def in_bucket(shard, bucket):
    return shard.value(f"SELECT count(*) FROM account WHERE interlock.bucket_of('account', account_id) = {bucket}")


@pytest.mark.parametrize("route_version, counted", [(0, True), (1, False), (2, True), (3, True)])
def test_a_bucket_that_came_at_a_version_is_not_here_for_sessions_of_an_older_one(shard, route_version, counted):
    """The shard it came from answers those, or refuses them."""
    there = in_bucket(shard, 3)
    assert there > 0
    shard.sql("UPDATE interlock.bucket_state SET route_version = 2 WHERE bucket = 3")
    with connect(shard, route_version) as session:
        assert session.execute(ALL_ROWS).fetchone()[0] == (200 if counted else 200 - there)


def run_across_a_move(shard, statement):
    """Runs it in a session of version 1; while it waits at key 10, all buckets move away at version 2."""
    shard.sql("CREATE TABLE counted (rows bigint)")
    with shard.connect(autocommit=False) as holder, connect(shard, 1) as reader:
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        running = Background(reader, f"INSERT INTO counted {statement}")
        shard.wait_for_lock(running.pid)
        shard.sql("UPDATE interlock.bucket_state SET state = 'moved', peer = 's1', route_version = 2")
        shard.sql("UPDATE interlock.shard_identity SET floor = 2")
        holder.rollback()
        return running.result(), shard.sql("SELECT rows FROM counted")


def test_a_bucket_given_away_while_a_statement_runs_is_still_wholly_read_by_it(shard):
    error, counted = run_across_a_move(shard, ALL_ROWS + " AND pause(account_id)")
    assert error is None
    assert counted == [(200,)]


def test_a_statement_whose_routes_have_become_old_before_its_first_row_is_refused(shard):
    """Its snapshot is older than the move, the states are newer: no row would be this shard's."""
    error, counted = run_across_a_move(
        shard, "SELECT count(*) FROM (SELECT account_id FROM account WHERE account_id >= 10 AND pause(account_id) OFFSET 0) a"
               " WHERE interlock.owned('account', account_id)")
    assert error.sqlstate == "IL102"
    assert counted == []


def test_an_expression_that_is_kept_for_a_transaction_looks_again_for_each_statement(shard):
    """PL/pgSQL keeps the state of simple expressions until the transaction ends."""
    shard.sql("""
        CREATE FUNCTION before_and_after() RETURNS boolean[] LANGUAGE plpgsql AS $$
        DECLARE
            answer boolean;
            answers boolean[] = '{}';
        BEGIN
            FOR i IN 1..2 LOOP
                answer := interlock.owned('account', 1::bigint);
                answers := answers || answer;
                UPDATE interlock.bucket_state SET state = 'moved', peer = 's1', route_version = 2;
            END LOOP;
            RETURN answers;
        END $$
    """)
    assert shard.value("SELECT before_and_after()") == [True, False]
