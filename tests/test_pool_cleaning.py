"""What code of users leaves in a backend's session never meets the next borrower of the connection."""

import pytest

from support.cluster import Cluster
from support.placement import keys_on
from support.statements import ok
from support.wait import wait_until

KEYS = keys_on("s0", 20)
RENAME = "UPDATE account SET owner = ? WHERE account_id = ?"

# A row's new owner says what the trigger is to do: leave something in the session, or write down what
# it finds there.
TRIGGER = """
CREATE ROLE other_role; GRANT other_role TO app;
GRANT USAGE ON SCHEMA public TO other_role; GRANT ALL ON account TO other_role;
CREATE SEQUENCE counter; GRANT ALL ON counter TO app;
CREATE TABLE found (pid integer, what text); GRANT ALL ON found TO PUBLIC;
CREATE FUNCTION traces() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE used text := 'no';
BEGIN
  CASE NEW.owner
  WHEN 'setting' THEN PERFORM set_config('work_mem', '7MB', false), set_config('my.trace', 'here', false);
  WHEN 'version' THEN PERFORM set_config('interlock.route_version', '0', false);
  WHEN 'lock' THEN PERFORM pg_advisory_lock(42);
  WHEN 'temp' THEN EXECUTE 'CREATE TEMP TABLE trace (a integer)';
  WHEN 'listen' THEN EXECUTE 'LISTEN trace';
  WHEN 'prepare' THEN EXECUTE 'PREPARE trace AS SELECT 1';
  WHEN 'cursor' THEN EXECUTE 'DECLARE trace CURSOR WITH HOLD FOR SELECT 1';
  WHEN 'sequence' THEN PERFORM nextval('counter');
  WHEN 'role' THEN PERFORM set_config('role', 'other_role', false);
  WHEN 'look' THEN
    BEGIN used := currval('counter'); EXCEPTION WHEN object_not_in_prerequisite_state THEN NULL; END;
    INSERT INTO found SELECT pg_backend_pid(), concat_ws(' ',
      current_user, current_setting('work_mem'), nullif(current_setting('my.trace', true), ''),
      (SELECT 'locks:' || count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
      'temp:' || coalesce(to_regclass('pg_temp.trace')::text, 'none'),
      'channels:' || (SELECT count(*) FROM pg_listening_channels()),
      'prepared:' || (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
      'cursors:' || (SELECT count(*) FROM pg_cursors WHERE is_holdable),
      'currval:' || used);
  ELSE NULL;
  END CASE;
  RETURN NEW;
END $$;
CREATE TRIGGER traces BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION traces();
"""
CLEAN = "app 4MB locks:0 temp:none channels:0 prepared:0 cursors:0 currval:no"
TRACES = ["setting", "version", "lock", "temp", "listen", "prepare", "cursor", "sequence", "role"]


@pytest.fixture(scope="module")
def module_cluster(owner, new_folder, request, router_binary):
    cluster = Cluster(new_folder(request.module.__name__), owner, router_settings={"pool": {"size": 1}})
    try:
        cluster.start_instances().create_tables().describe()
        cluster.s0.sql(TRIGGER)
        cluster.apply()
        cluster.new_router().start()
        yield cluster
    finally:
        cluster.down()


def found(cluster):
    rows = cluster.s0.sql("SELECT pid, what FROM found")
    cluster.s0.sql("TRUNCATE found")
    return rows


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("transaction", [False, True], ids=["autocommit", "transaction"])
def test_nothing_is_left_for_the_next_borrower(cluster, trace, transaction):
    messy, clean = cluster.client(), cluster.client()
    if transaction:
        ok(messy.q("begin"))
    left = ok(messy.q(RENAME, trace, KEYS[0]))
    if transaction:
        ok(messy.q("commit"))
    looked = ok(clean.q(RENAME, "look", KEYS[1]))
    assert looked.pid == left.pid, "the connection was meant to be used again"
    assert found(cluster) == [(left.pid, CLEAN)]


def test_what_a_rolled_back_transaction_left_goes_too(cluster):
    # A session's advisory lock survives ROLLBACK.
    client = cluster.client()
    ok(client.q("begin"))
    left = ok(client.q(RENAME, "lock", KEYS[0]))
    ok(client.q("rollback"))
    ok(client.q(RENAME, "look", KEYS[1]))
    assert found(cluster) == [(left.pid, CLEAN)]


def test_what_a_client_that_vanished_left_goes_too(cluster):
    client = cluster.client()
    ok(client.q("begin"))
    ok(client.q(RENAME, "lock", KEYS[0]))
    client.close()
    wait_until(lambda: cluster.s0.value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42") == 0, 10, "the lock is gone")


def test_within_a_transaction_the_session_stays_as_it_is(cluster):
    # The control: the trigger does leave something, and only the cleaning takes it away.
    client = cluster.client()
    ok(client.q("begin"))
    for trace in TRACES:
        if trace not in ("version", "role"):
            ok(client.q(RENAME, trace, KEYS[0]))
    ok(client.q(RENAME, "look", KEYS[1]))
    ok(client.q("commit"))
    assert [what for _, what in found(cluster)] == [
        "app 7MB here locks:1 temp:trace channels:0 prepared:1 cursors:1 currval:"
        + str(cluster.s0.value("SELECT last_value FROM counter"))]


def test_a_table_without_code_of_users_costs_no_cleaning(make_cluster):
    cluster = make_cluster(shard_settings={"log_statement": "all"}, router_settings={"pool": {"size": 1}}).up()
    cluster.load_accounts()
    mark = cluster.s0.log_mark()
    for key in KEYS[:5]:
        ok(cluster.client().q(RENAME, "someone", key))
    assert "DISCARD" not in cluster.s0.log_since(mark)
