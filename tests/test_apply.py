"""`interlock apply`: shows what it would do, does it once, and refuses what would lose data."""

import signal
import subprocess
import threading

import psycopg
import pytest

from support.cluster import ACCOUNT
from support.placement import keys_in_bucket, keys_on
from support.proxy import CuttingProxy
from support.router import BINARY, environment, run_interlock
from support.statements import INSERT, ok
from support.wait import wait_until

S0, S1 = keys_on("s0", 4), keys_on("s1", 4)


@pytest.fixture
def described(make_cluster):
    """Two shards with their tables, and the catalog's definition: nothing applied yet."""
    return make_cluster().start_instances().create_tables().describe()


def snapshot(cluster):
    """Everything apply may change, on both shards and in the catalog."""
    state = {}
    for name, instance in cluster.instances.items():
        for table in ("shard_identity", "local_keyspace", "guarded_table", "bucket_state"):
            state[name, table] = sorted(map(str, instance.sql(f"SELECT * FROM interlock.{table}")))
        state[name, "triggers"] = instance.sql(
            "SELECT tgrelid::regclass::text, tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal"
            " AND tgrelid = 'account'::regclass ORDER BY 1, 2")
        state[name, "constraints"] = instance.sql(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'account'::regclass ORDER BY 1")
    for table in ("cluster", "route", "route_version", "table_column"):
        state["catalog", table] = sorted(map(str, cluster.catalog.sql(f"SELECT * FROM interlock.{table}")))
    return state


def owned(cluster, shard):
    rows = cluster.instances[shard].sql(
        "SELECT bucket FROM interlock.bucket_states WHERE keyspace = 'accounts' AND state = 'owned' ORDER BY 1")
    return [row[0] for row in rows]


def apply_refused(cluster, *words, arguments=()):
    """apply exits 1, says why, and has changed nothing."""
    before = snapshot(cluster)
    done = cluster.apply(*arguments, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    for word in words:
        assert word in text, f"apply does not say {word!r}:\n{text}"
    assert snapshot(cluster) == before, f"apply changed something:\n{text}"
    return text


def test_plan_shows_every_step_and_changes_nothing(described):
    before = snapshot(described)
    done = described.apply("--plan")
    assert snapshot(described) == before
    for word in ("s0", "s1", "accounts", "account", "publish route version 1"):
        assert word in done.stdout, done.stdout


def test_apply_makes_the_shards_match_the_catalog(described):
    described.apply()
    cluster_id = described.catalog.value("SELECT id FROM interlock.cluster")
    for shard, buckets in (("s0", list(range(0, 16, 2))), ("s1", list(range(1, 16, 2)))):
        instance = described.instances[shard]
        assert instance.sql("SELECT cluster_id, shard_name FROM interlock.shard_identity") == [(cluster_id, shard)]
        assert instance.sql("SELECT name, key_type, hash, buckets FROM interlock.local_keyspace") == [
            ("accounts", "bigint", "splitmix64", 16)]
        assert owned(described, shard) == buckets
        assert instance.sql("SELECT * FROM interlock.check_guards()") == []
        assert instance.value("SELECT count(*) FROM interlock.guarded_table") == 1
    assert described.catalog.value("SELECT route_version FROM interlock.cluster") == 1
    assert described.catalog.sql("SELECT name, not_null FROM interlock.table_column ORDER BY ordinal") == [
        ("account_id", True), ("owner", False), ("balance", False), ("version", False)]
    described.new_router().start()
    assert ok(described.client().q(INSERT, S1[0], "a", 1, 0)).shard == "s1"


def test_apply_again_changes_nothing_and_says_so(described):
    described.apply()
    before = snapshot(described)
    for arguments in ([], ["--plan"]):
        done = described.apply(*arguments)
        assert "nothing to do" in done.stdout.lower(), done.stdout
        assert snapshot(described) == before


def test_apply_creates_the_extension_where_it_is_missing(make_cluster):
    cluster = make_cluster().start_instances().create_tables()
    cluster.s1.sql("DROP EXTENSION interlock")
    cluster.describe().apply()
    assert owned(cluster, "s1") == list(range(1, 16, 2))


def test_rows_that_are_where_they_belong_are_kept_and_misplaced_ones_refuse_the_guard(described):
    described.s0.sql("INSERT INTO account VALUES (%s, 'here', 1, 0)", S0[0])
    described.s1.sql("INSERT INTO account VALUES (%s, 'astray', 1, 0)", S0[1])
    done = described.apply(check=False)
    assert done.returncode == 1 and "s1" in done.stdout + done.stderr, done.stdout + done.stderr
    assert described.catalog.value("SELECT route_version FROM interlock.cluster") == 0
    described.s1.sql("DELETE FROM account")
    described.apply()
    assert described.counts() == (1, 0)


def test_an_empty_bucket_changes_its_shard_and_a_stale_router_is_refused(described):
    described.apply()
    described.new_router().start()
    key = keys_in_bucket(4, 1)[0]
    assert described.assign([4], "s1") == 1
    described.apply()
    assert 4 in owned(described, "s1") and 4 not in owned(described, "s0")
    assert described.s0.value("SELECT floor FROM interlock.shard_identity") == 2
    assert described.catalog.value("SELECT route_version FROM interlock.cluster") == 2
    client = described.client()
    wait_until(lambda: client.status().rv == 2, 10, "the router has rv 2")
    answer = ok(client.q(INSERT, key, "moved", 1, 0))
    assert (answer.shard, answer.rv) == ("s1", 2)


def test_taking_a_bucket_with_rows_away_is_refused_with_the_table_and_the_count(described):
    described.apply()
    keys = keys_in_bucket(4, 3)
    for key in keys:
        described.s0.sql("INSERT INTO account VALUES (%s, 'a', 1, 0)", key)
    described.assign([4], "s1")
    apply_refused(described, "account", "3", "bucket 4")
    assert described.counts() == (3, 0)
    # The rows gone, it goes through.
    described.s0.sql("DELETE FROM account")
    described.apply()
    assert owned(described, "s1").count(4) == 1


def test_shrinking_or_growing_the_buckets_is_refused_by_catalog_and_by_apply(described):
    described.apply()
    for buckets in (8, 32):
        with pytest.raises(psycopg.Error) as refusal:
            described.catalog.sql("UPDATE interlock.keyspace SET buckets = %s", buckets)
        assert "keyspace" in str(refusal.value)
    # Even if the catalog was forced, apply does not follow.
    with described.catalog.connect() as catalog:
        catalog.execute("SET session_replication_role = replica")
        catalog.execute("ALTER TABLE interlock.keyspace DISABLE TRIGGER ALL")
        catalog.execute("UPDATE interlock.keyspace SET buckets = 8")
        catalog.execute("DELETE FROM interlock.assignment WHERE bucket >= 8")
    apply_refused(described, "keyspace", "differently", "s0")
    assert described.s0.value("SELECT buckets FROM interlock.local_keyspace") == 16


def test_changing_the_hash_or_the_key_type_is_refused(described):
    described.apply()
    with described.catalog.connect() as catalog:
        for change in ("hash = 'xxh3_64'", "key_type = 'text'"):
            with pytest.raises(psycopg.Error):
                catalog.execute(f"UPDATE interlock.keyspace SET {change}")
        catalog.execute("ALTER TABLE interlock.keyspace DISABLE TRIGGER ALL")
        catalog.execute("UPDATE interlock.keyspace SET key_type = 'text', hash = 'xxh3_64'")
    apply_refused(described, "differently", "never change")


def test_a_connection_string_that_leads_to_the_wrong_database_is_refused(described):
    described.apply()
    described.assign([4], "s1")
    catalog, s0, s1 = described.catalog, described.s0, described.s1
    described.s1.sql("CREATE DATABASE other", dbname="postgres")
    for conninfo, words in (
        (s0.conninfo("app"), ("s1", "s0")),                 # the other shard
        (s1.conninfo("nowhere"), ("s1", "nowhere")),        # no database
        (s1.conninfo("other"), ("s1", "account")),          # a database without the table
    ):
        catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", conninfo)
        apply_refused(described, *words)
    # A shard of another cluster.
    with s1.connect("other") as other:
        other.execute("CREATE EXTENSION interlock")
        other.execute(ACCOUNT)
        other.execute("SELECT interlock.set_identity('00000000-0000-0000-0000-00000000beef', 's1')")
    apply_refused(described, "another cluster")
    catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", s1.conninfo("app"))
    described.apply()


def test_a_restored_copy_is_refused_until_adopted(described):
    described.apply()
    described.s1.sql("CREATE DATABASE copy TEMPLATE app", dbname="postgres")
    described.catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", described.s1.conninfo("copy"))
    apply_refused(described, "restored copy", "adopt_shard")
    described.s1.sql("SELECT interlock.adopt_shard()", dbname="copy")
    described.apply()


def test_a_shard_that_is_down_refuses_the_whole_plan_and_nothing_is_half_done(described):
    described.s1.stop()
    before = [str(described.s0.sql(f"SELECT * FROM interlock.{table}"))
              for table in ("shard_identity", "local_keyspace", "bucket_state", "route_version")]
    done = described.apply(check=False)
    assert done.returncode == 1 and "s1" in done.stdout + done.stderr
    assert [str(described.s0.sql(f"SELECT * FROM interlock.{table}"))
            for table in ("shard_identity", "local_keyspace", "bucket_state", "route_version")] == before
    described.s1.start()
    described.apply()


def test_a_missing_or_differing_table_is_refused_with_all_reasons_at_once(make_cluster):
    cluster = make_cluster().start_instances()
    cluster.s0.sql(ACCOUNT)
    cluster.s1.sql("CREATE TABLE account (account_id text, balance bigint)")
    cluster.describe()
    done = cluster.apply(check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 1
    for word in ("account_id", "may be null", "text", "version"):
        assert word in text, f"{word!r} is not in:\n{text}"
    assert cluster.s0.sql("SELECT * FROM interlock.shard_identity") == []


def test_an_unassigned_bucket_is_refused_by_number(described):
    described.catalog.sql("DELETE FROM interlock.assignment WHERE bucket IN (3, 7)")
    done = described.apply(check=False)
    assert done.returncode == 1 and "3,7" in (done.stdout + done.stderr).replace(" ", "")
    assert described.catalog.value("SELECT route_version FROM interlock.cluster") == 0


def test_a_new_column_is_recorded_and_the_router_learns_it(described):
    described.apply()
    described.new_router().start()
    client = described.client()
    key = S0[0]
    ok(client.q(INSERT, key, "a", 1, 0))
    sql = "UPDATE account SET colour = ? WHERE account_id = ?"
    assert client.q(sql, "red", key).code == "R26"
    for shard in ("s0", "s1"):
        described.instances[shard].sql("ALTER TABLE account ADD COLUMN colour text")
    described.apply()
    wait_until(lambda: client.status().rv == 2, 10, "the router has rv 2")
    assert ok(client.q(sql, "red", key)).count == 1


# Places where an apply may die: what it says to a shard just before. Each must be resumable.
STEPS = ["define_keyspace", "shard_table", "accept_buckets", "set_identity"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_an_apply_that_was_interrupted_is_finished_by_the_next_one(make_cluster, step, before):
    proxies = {}

    def conninfo_of(name, instance):
        proxies[name] = CuttingProxy(("127.0.0.1", instance.port))
        return f"host=127.0.0.1 port={proxies[name].port} dbname=app"

    cluster = make_cluster(conninfo_of=conninfo_of).start_instances().create_tables().describe()
    proxies["s1"].arm(f"interlock.{step}", before)
    done = cluster.apply(check=False)
    assert proxies["s1"].cut.is_set(), f"apply never called {step}:\n{done.stdout}{done.stderr}"
    assert done.returncode == 1, done.stdout + done.stderr
    assert cluster.catalog.value("SELECT route_version FROM interlock.cluster") == 0
    cluster.apply()
    assert owned(cluster, "s0") == list(range(0, 16, 2)) and owned(cluster, "s1") == list(range(1, 16, 2))
    assert "nothing to do" in cluster.apply().stdout.lower()
    for proxy in proxies.values():
        proxy.close()


@pytest.mark.parametrize("shard, step", [("s0", "release_buckets"), ("s1", "accept_buckets")])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_interrupted_change_of_owner_never_leaves_two_owners_and_is_finished_later(
        make_cluster, shard, step, before):
    proxies = {}

    def conninfo_of(name, instance):
        proxies[name] = CuttingProxy(("127.0.0.1", instance.port))
        return f"host=127.0.0.1 port={proxies[name].port} dbname=app"

    cluster = make_cluster(conninfo_of=conninfo_of).start_instances().create_tables().describe()
    cluster.apply()
    cluster.assign([4], "s1")
    proxies[shard].arm(f"interlock.{step}", before)
    done = cluster.apply(check=False)
    assert proxies[shard].cut.is_set(), f"apply never called {step}:\n{done.stdout}{done.stderr}"
    assert done.returncode == 1
    assert not (4 in owned(cluster, "s0") and 4 in owned(cluster, "s1"))
    assert cluster.catalog.value("SELECT route_version FROM interlock.cluster") == 1
    cluster.apply()
    assert 4 not in owned(cluster, "s0") and 4 in owned(cluster, "s1")
    assert cluster.catalog.value("SELECT route_version FROM interlock.cluster") == 2
    for proxy in proxies.values():
        proxy.close()


def test_an_apply_killed_with_9_while_it_waits_for_a_lock_is_finished_by_the_next_one(described):
    holder = described.connect("s1", autocommit=False)
    holder.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
    process = subprocess.Popen(
        [BINARY, "apply", "--catalog", described.catalog.conninfo("app", "postgres")],
        env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waiting = "SELECT 1 FROM pg_locks l WHERE NOT granted"
    wait_until(lambda: described.s1.value(waiting) or process.poll() is not None, 20, "apply waits for the lock")
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(10)
    holder.rollback()
    wait_until(lambda: not described.s1.value(waiting), 20, "its backend has gone")
    described.apply()
    assert owned(described, "s1") == list(range(1, 16, 2))


def test_two_applies_at_once_do_not_harm_each_other(described):
    results = []

    def run():
        results.append(described.apply(check=False))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(done.returncode == 0 for done in results), [done.stderr for done in results]
    assert all(done.returncode in (0, 1) for done in results)
    assert "nothing to do" in described.apply().stdout.lower()
    assert described.catalog.value("SELECT route_version FROM interlock.cluster") == 1
    assert owned(described, "s0") == list(range(0, 16, 2)) and owned(described, "s1") == list(range(1, 16, 2))


def test_usage_errors_exit_with_2_and_name_what_is_wrong():
    for arguments in (["apply"], ["apply", "--nonsense"], ["nonsense"], ["apply", "--catalog"]):
        done = run_interlock(*arguments)
        assert done.returncode == 2 and done.stderr.strip(), (arguments, done)
    done = run_interlock("apply", "--help")
    assert done.returncode == 0 and "--plan" in done.stdout
    assert run_interlock("--version").stdout.startswith("interlock")


def test_a_catalog_that_is_none_is_refused(make_instance):
    plain = make_instance("plain", extension=False)
    done = run_interlock("apply", "--catalog", plain.conninfo("app", "postgres"))
    assert done.returncode == 1 and "interlock" in done.stderr
    plain.sql("CREATE EXTENSION interlock")
    done = run_interlock("apply", "--catalog", plain.conninfo("app", "postgres"))
    assert done.returncode == 1 and "create_cluster" in done.stdout + done.stderr
