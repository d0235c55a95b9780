"""`interlock apply` meets shards in every state: half done, tampered with, lost, ahead, frozen."""

import shutil
import subprocess
import time

import psycopg
import pytest

from support.placement import keys_in_bucket
from support.postgres import Postgres
from support.router import BINARY, environment
from support.wait import wait_until

EVEN, ODD = list(range(0, 16, 2)), list(range(1, 16, 2))


@pytest.fixture
def described(make_cluster):
    return make_cluster().start_instances().create_tables().describe()


@pytest.fixture
def applied(described):
    described.apply()
    return described


def owned(cluster, shard, keyspace="accounts"):
    return [row[0] for row in cluster.instances[shard].sql(
        "SELECT bucket FROM interlock.bucket_state WHERE keyspace = %s AND state = 'owned' ORDER BY 1", keyspace)]


def version(cluster):
    return cluster.catalog.value("SELECT route_version FROM interlock.cluster")


def refused(cluster, *words, arguments=()):
    done = cluster.apply(*arguments, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    for word in words:
        assert word in text, f"apply does not say {word!r}:\n{text}"
    assert "nothing was changed" in text
    return text


def nothing_to_do(cluster):
    done = cluster.apply()
    assert done.stdout == f"nothing to do: 2 shards match route version {version(cluster)}\n", done.stdout
    return done


# -- killed while it waits for a lock, at each kind of step ------------------------------------------

KILLED_AT = {
    "set_identity": ("s1", "LOCK TABLE interlock.shard_identity IN ACCESS EXCLUSIVE MODE", False),
    "define_keyspace": ("s1", "LOCK TABLE interlock.local_keyspace IN SHARE MODE", False),
    "accept_buckets": ("s1", "LOCK TABLE interlock.bucket_state IN SHARE MODE", False),
    "shard_table": ("s1", "LOCK TABLE account IN ROW EXCLUSIVE MODE", False),
    "publish": ("s0", "LOCK TABLE interlock.route IN ROW EXCLUSIVE MODE", False),
    "release_buckets": ("s0", "LOCK TABLE account IN ROW EXCLUSIVE MODE", True),
    "accept_released_buckets": ("s1", "LOCK TABLE interlock.bucket_state IN SHARE MODE", True),
    "publish_moved_buckets": ("s0", "LOCK TABLE interlock.route IN ROW EXCLUSIVE MODE", True),
}


def kill_at(cluster, shard, lock):
    """Starts an apply that runs into the lock, and kills it there with -9."""
    holder = cluster.connect(shard, autocommit=False)
    holder.execute(lock)
    process = subprocess.Popen(
        [BINARY, "apply", "--lock-timeout", "60s", "--timeout", "60s", "--catalog",
         cluster.catalog.conninfo("app", "postgres")],
        env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    try:
        wait_until(lambda: cluster.instances[shard].value(waiting) > 0 or process.poll() is not None,
                   30, "apply waits for the lock")
        assert process.poll() is None, process.stderr.read()
    finally:
        process.kill()
        process.wait(10)
    return holder


@pytest.mark.parametrize("step", KILLED_AT)
def test_an_apply_killed_with_9_at_any_step_is_finished_by_the_next(described, step):
    shard, lock, moving = KILLED_AT[step]
    if moving:
        described.apply()
        described.assign([4, 5], "s1")
        described.assign([7], "s0")
    holder = kill_at(described, shard, lock)
    assert version(described) == (1 if moving else 0)
    assert not set(owned(described, "s0")) & set(owned(described, "s1"))
    holder.rollback()
    described.apply()
    if moving:
        assert owned(described, "s0") == [0, 2, 6, 7, 8, 10, 12, 14]
        assert owned(described, "s1") == [1, 3, 4, 5, 9, 11, 13, 15]
        assert [i.value("SELECT floor FROM interlock.shard_identity") for i in (described.s0, described.s1)] == [2, 2]
    else:
        assert (owned(described, "s0"), owned(described, "s1")) == (EVEN, ODD)
    assert version(described) == (2 if moving else 1)
    nothing_to_do(described)


def test_a_change_of_owner_that_was_begun_and_then_unstaged_is_taken_back_under_a_new_version(applied):
    applied.assign([4], "s1")
    holder = kill_at(applied, "s1", "LOCK TABLE interlock.bucket_state IN SHARE MODE")
    holder.rollback()
    assert 4 not in owned(applied, "s0") and 4 not in owned(applied, "s1")
    applied.assign([4], "s0")
    applied.apply()
    assert (owned(applied, "s0"), owned(applied, "s1")) == (EVEN, ODD)
    # Every router at version 1 is below s0's floor by now, so the same map needs a new number.
    assert applied.s0.value("SELECT floor FROM interlock.shard_identity") == 2
    assert version(applied) == 2
    nothing_to_do(applied)


# -- refusals ----------------------------------------------------------------------------------------

def test_a_bucket_with_two_owners_is_refused(applied):
    applied.s1.sql("SELECT interlock.accept_buckets('accounts', '{2,4,5}', 1)")
    refused(applied, "buckets 2,4 of keyspace", "owned by both", '"s0"', '"s1"')


def test_a_bucket_owned_by_a_shard_that_neither_map_names_is_refused(applied):
    applied.s0.sql("SELECT interlock.release_buckets('accounts', '{4}', 's1', 1)")
    applied.s1.sql("SELECT interlock.accept_buckets('accounts', '{4}', 1)")
    refused(applied, "bucket 4 of keyspace", 'owned by shard "s1"', 'assigned to "s0"')
    # Following the hint: the map follows the shards.
    applied.assign([4], "s1")
    applied.apply()
    assert 4 in owned(applied, "s1") and version(applied) == 2


def test_a_bucket_in_transit_is_left_alone(applied):
    applied.s0.sql("UPDATE interlock.bucket_state SET state = 'fenced', peer = 's1' WHERE bucket IN (2, 4)")
    applied.s1.sql("INSERT INTO interlock.bucket_state VALUES ('accounts', 6, 'importing', 's0', 1)")
    text = refused(applied, "buckets 2,4 of keyspace", "fenced on shard", "bucket 6 of keyspace", "importing on shard")
    assert "2 problems" in text


def test_a_shard_replaced_by_an_empty_database_is_refused(applied):
    applied.s1.sql("CREATE DATABASE empty", dbname="postgres")
    with applied.s1.connect("empty") as empty:
        empty.execute(applied.table)
        empty.execute("CREATE EXTENSION interlock")
    applied.catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", applied.s1.conninfo("empty"))
    refused(applied, "buckets 1,3,5,7,9,11,13,15 of keyspace", 'published as owned by shard "s1"', "knows nothing")


def test_the_same_database_under_two_names_is_refused(described):
    described.catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", described.s0.conninfo("app"))
    refused(described, 'shard "s0" and shard "s1" are the same database')


def test_an_old_copy_of_the_catalog_is_refused(applied):
    applied.s1.sql("UPDATE interlock.shard_identity SET floor = 7")
    refused(applied, 'shard "s1" is ahead of the catalog', "route version 7", "current one is 1")


def test_text_keys_need_one_encoding(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.s1.sql("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
                   dbname="postgres")
    cluster.s1.sql("CREATE EXTENSION interlock; " + cluster.table, dbname="latin")
    cluster.catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", cluster.s1.conninfo("latin"))
    cluster.apply("--plan")  # bigint keys do not mind
    cluster.catalog.sql("SELECT interlock.create_keyspace('names', 'text', 4)")
    cluster.catalog.sql("SELECT interlock.assign('names', '{0,1,2,3}', 's0')")
    refused(cluster, "differ in encoding", "LATIN1: s1.", "UTF8: s0.", '"names"')


def test_all_that_is_wrong_is_told_at_once(described):
    described.s0.sql("ALTER TABLE account DROP CONSTRAINT account_pkey, ALTER account_id DROP NOT NULL")
    described.s1.sql("ALTER TABLE account RENAME COLUMN balance TO credit")
    described.catalog.sql("SELECT interlock.declare_table('orders', 'accounts', 'account_id')")
    described.catalog.sql("DELETE FROM interlock.assignment WHERE bucket IN (3, 7)")
    text = refused(described, "may be null", 'Column "balance" is missing on s1.', 'Column "credit" is missing on s0.',
                   "public.orders does not exist on shard", "buckets 3,7 of keyspace")
    assert "5 problems" in text


def test_a_frozen_shard_is_given_up_in_time(described):
    described.s1.freeze()
    try:
        begun = time.monotonic()
        refused(described, "could not connect to shard", '"s1"', arguments=["--timeout", "2s"])
        assert time.monotonic() - begun < 10
    finally:
        described.s1.thaw()
    described.apply()


def test_a_role_that_may_not_is_told_so_before_anything_happens(described):
    plain = described.s1.conninfo("app", "app")
    described.catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", plain)
    refused(described, "s1", "permission denied")


def test_a_standby_is_no_shard_but_several_hosts_find_the_primary(applied, owner, new_folder):
    standby = Postgres(new_folder("standby"), "standby", owner)
    shutil.rmtree(standby.data)
    subprocess.run(
        owner.argv([standby.bin / "pg_basebackup", "-h", "127.0.0.1", "-p", str(applied.s1.port), "-U", "postgres",
                    "-D", standby.data, "-R", "-X", "stream", "-c", "fast"]),
        env=owner.environment(), check=True)
    with (standby.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"\nport = {standby.port}\n")
    standby.start()
    try:
        applied.catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", standby.conninfo("app"))
        refused(applied, '"s1" leads to a standby')
        applied.catalog.sql(
            "SELECT interlock.set_shard_conninfo('s1', %s)",
            f"host=127.0.0.1,127.0.0.1 port={standby.port},{applied.s1.port} dbname=app target_session_attrs=primary")
        applied.apply()  # the new connection string is published
        assert version(applied) == 2
    finally:
        standby.stop("immediate")


def test_a_role_that_owns_the_tables_and_may_call_the_functions_is_enough(applied):
    for name, instance in (("s0", applied.s0), ("s1", applied.s1)):
        instance.sql("""CREATE ROLE dba LOGIN; ALTER TABLE account OWNER TO dba;
                        GRANT USAGE ON SCHEMA interlock TO dba;
                        GRANT ALL ON ALL TABLES IN SCHEMA interlock TO dba;
                        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA interlock TO dba""")
        applied.catalog.sql("SELECT interlock.set_shard_conninfo(%s, %s)", name, instance.conninfo("app", "dba"))
    applied.assign([4], "s1")
    applied.apply()
    assert 4 in owned(applied, "s1")
    applied.s0.sql("REVOKE EXECUTE ON FUNCTION interlock.accept_buckets FROM dba")
    refused(applied, 'user "dba" may not execute accept_buckets')


def test_a_third_shard_joins_and_gets_empty_buckets(applied):
    applied.s0.sql("CREATE DATABASE third", dbname="postgres")
    applied.s0.sql(applied.table, dbname="third")
    applied.s0.sql("CREATE ROLE plain LOGIN", dbname="postgres")
    applied.catalog.sql("SELECT interlock.add_shard('s2', %s)", applied.s0.conninfo("third", "plain"))
    refused(applied, 'shard "s2" does not have the extension', 'run in database "third": CREATE EXTENSION interlock;')
    applied.catalog.sql("SELECT interlock.set_shard_conninfo('s2', %s)", applied.s0.conninfo("third"))
    applied.assign([1, 2], "s2")
    applied.apply()
    assert applied.s0.sql("SELECT bucket FROM interlock.bucket_state WHERE state = 'owned' ORDER BY 1",
                          dbname="third") == [(1,), (2,)]
    assert 2 not in owned(applied, "s0") and 1 not in owned(applied, "s1")
    assert "nothing to do: 3 shards match route version 2" in applied.apply().stdout


def test_two_applies_at_once_the_second_names_the_first(described):
    holder = described.connect("s1", autocommit=False)
    holder.execute("LOCK TABLE account IN ROW EXCLUSIVE MODE")
    first = subprocess.Popen(
        [BINARY, "apply", "--lock-timeout", "60s", "--catalog", described.catalog.conninfo("app", "postgres")],
        env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    wait_until(lambda: described.s1.value(waiting) > 0 or first.poll() is not None, 30, "it waits for the lock")
    assert first.poll() is None, first.communicate()
    done = described.apply(check=False)
    assert done.returncode == 1
    assert 'another "interlock apply" is running' in done.stderr and "for user postgres" in done.stderr
    # Neither may the catalog change under it.
    with described.catalog.connect() as editor, pytest.raises(psycopg.errors.LockNotAvailable):
        editor.execute("SET lock_timeout = '200ms'")
        editor.execute("SELECT interlock.assign('accounts', '{1}', 's0')")
    with described.catalog.connect() as editor, pytest.raises(psycopg.errors.LockNotAvailable):
        editor.execute("SET lock_timeout = '200ms'")
        editor.execute("SELECT interlock.publish()")
    # Looking is allowed.
    assert "publish route version 1" in described.apply("--plan").stdout
    holder.rollback()
    out, error = first.communicate(timeout=30)
    assert first.returncode == 0, out + error
    nothing_to_do(described)


def test_a_lock_timeout_names_who_holds_the_lock_and_the_next_run_goes_on(described):
    holder = described.connect("s1", autocommit=False)
    holder.execute("SET application_name = 'a slow job'")
    holder.execute("LOCK TABLE account IN ROW EXCLUSIVE MODE")
    done = described.apply("--lock-timeout", "300ms", check=False)
    assert done.returncode == 1
    for word in ("s1: guard table public.account", "lock timeout", "a slow job", str(holder.info.backend_pid),
                 "running it again goes on from there"):
        assert word in done.stderr, done.stderr
    holder.rollback()
    done = described.apply()
    assert "set_identity" not in done.stdout and "guard table public.account" in done.stdout
    nothing_to_do(described)


# -- states that are fine ----------------------------------------------------------------------------

def test_a_map_published_by_hand_before_the_first_apply_is_carried_out(described):
    assert described.publish() == 1
    described.assign([4], "s1")
    described.apply()
    assert owned(described, "s1") == [1, 3, 4, 5, 7, 9, 11, 13, 15]
    assert version(described) == 2
    nothing_to_do(described)


def test_a_guard_that_was_tampered_with_is_mended(applied):
    applied.s0.sql('DROP TRIGGER "~interlock_guard" ON account')
    applied.s1.sql('ALTER TABLE account DISABLE TRIGGER "~interlock_truncate"')
    done = applied.apply()
    assert done.stdout.count("mend the guard of table public.account") == 2, done.stdout
    assert [i.sql("SELECT * FROM interlock.check_guards()") for i in (applied.s0, applied.s1)] == [[], []]
    nothing_to_do(applied)


def test_a_table_no_longer_declared_keeps_its_guard_with_a_warning(applied):
    applied.catalog.sql("SELECT interlock.undeclare_table('account')")
    done = applied.apply()
    assert "WARNING:  table public.account is guarded on shard \"s0\" but not declared" in done.stderr, done.stderr
    assert "unshard_table('public.account')" in done.stderr
    assert applied.s0.value("SELECT count(*) FROM interlock.guarded_table") == 1
    assert version(applied) == 2


def test_a_renamed_key_column_is_followed(applied):
    for instance in (applied.s0, applied.s1):
        instance.sql("ALTER TABLE account RENAME COLUMN account_id TO id")
    applied.catalog.sql("UPDATE interlock.sharded_table SET key_column = 'id'")
    applied.apply()
    assert applied.s0.value("SELECT key_column FROM interlock.guarded_table") == "id"
    key = keys_in_bucket(1, 1)[0]
    with pytest.raises(psycopg.Error) as error:
        applied.s0.sql("INSERT INTO account VALUES (%s)", key)
    assert error.value.sqlstate == "IL101"
    nothing_to_do(applied)


def test_partitions_may_be_declared_beside_their_parent(make_cluster):
    cluster = make_cluster(table="""
        CREATE TABLE account (account_id bigint NOT NULL, owner text, balance bigint, version int)
            PARTITION BY RANGE (account_id);
        CREATE TABLE "Part 1" PARTITION OF account FOR VALUES FROM (0) TO (1000);
        """).start_instances().create_tables().describe()
    cluster.catalog.sql("""SELECT interlock.declare_table('"Part 1"', 'accounts', 'account_id', 'version')""")
    cluster.apply()
    assert cluster.s0.sql("SELECT * FROM interlock.check_guards()") == []
    assert cluster.catalog.value("SELECT count(*) FROM interlock.table_column") == 8
    nothing_to_do(cluster)


def test_columns_may_stand_in_another_order_and_domains_count_as_their_base(make_cluster):
    cluster = make_cluster().start_instances()
    for name, columns in (("s0", "account_id account_key, colour colour, version int, owner varchar(20)[]"),
                          ("s1", "version int, owner varchar(20)[], colour colour, account_id account_key")):
        cluster.instances[name].sql(f"""
            {"CREATE TABLE noise_for_oids (a int);" if name == "s1" else ""}
            CREATE TYPE colour AS ENUM ('red');
            CREATE DOMAIN inner_key AS bigint CHECK (VALUE > 0);
            CREATE DOMAIN account_key AS inner_key;
            CREATE TABLE account ({columns}, PRIMARY KEY (account_id))""")
    cluster.describe().apply()
    assert cluster.catalog.sql("SELECT name, type_oid::int, type_name, not_null FROM interlock.table_column "
                               "WHERE name <> 'colour' ORDER BY ordinal") == [
        ("account_id", 20, "public.account_key", True), ("version", 23, "integer", False),
        ("owner", 1015, "character varying(20)[]", False)]
    nothing_to_do(cluster)


def test_a_key_that_may_be_null_on_one_shard_only_is_refused(described):
    described.s1.sql("ALTER TABLE account DROP CONSTRAINT account_pkey, ALTER account_id DROP NOT NULL")
    refused(described, "may be null", 'shard "s1"', "SET NOT NULL")


def test_the_largest_keyspace_is_applied_and_moved_without_delay(described):
    everything = list(range(65536))
    described.catalog.sql("SELECT interlock.create_keyspace('big', 'uuid', 65536)")
    described.catalog.sql("SELECT interlock.assign('big', %s, 's0')", everything[::2])
    described.catalog.sql("SELECT interlock.assign('big', %s, 's1')", everything[1::2])
    begun = time.monotonic()
    done = described.apply()
    assert max(map(len, done.stdout.splitlines())) < 300
    nothing_to_do(described)
    described.catalog.sql("SELECT interlock.assign('big', %s, 's1')", everything)
    described.apply()
    assert len(owned(described, "s1", "big")) == 65536
    nothing_to_do(described)
    assert time.monotonic() - begun < 60, "four applies took longer than a minute"
