"""`interlock rebalance --plan`: what the buckets are measured by, and the plan that comes of it."""

import json
import shlex
import threading
import uuid

import pytest

from support.moves import move_to_its_end
from support.placement import keys_in_bucket
from support.router import run_interlock
from support.wait import wait_until

TABLES = """
CREATE TABLE account (account_id bigint PRIMARY KEY, owner text, balance bigint, version int);
CREATE TABLE entry (account_id bigint NOT NULL, n int NOT NULL, note text, PRIMARY KEY (account_id, n))
    PARTITION BY RANGE (n);
CREATE TABLE entry_few PARTITION OF entry FOR VALUES FROM (0) TO (100);
CREATE TABLE entry_many PARTITION OF entry FOR VALUES FROM (100) TO (1000000);
ALTER TABLE entry_few ALTER note SET STORAGE EXTERNAL;
"""
KEYSPACE = list(range(16))


@pytest.fixture
def cluster(make_cluster):
    """Buckets 0 to 7 on s0, 8 to 15 on s1, none on s2."""
    cluster = make_cluster(table=TABLES, shards=3).start_instances().create_tables().describe()
    cluster.catalog.sql("SELECT interlock.declare_table('entry', 'accounts', 'account_id')")
    cluster.assign(KEYSPACE[:8], "s0")
    cluster.assign(KEYSPACE[8:], "s1")
    cluster.apply()
    return cluster


def owner_of(bucket):
    return "s0" if bucket < 8 else "s1"


def fill(cluster, rows, note="''"):
    """By bucket so many entries of one account each."""
    for bucket, count in rows.items():
        (key,) = keys_in_bucket(bucket, 1)
        cluster.instances[owner_of(bucket)].sql(
            f"INSERT INTO entry SELECT %s, n, {note} FROM generate_series(1, %s) AS n", key, count)


def rebalance(cluster, *arguments, status=0):
    done = run_interlock("rebalance", "--plan", "--catalog", cluster.catalog.conninfo("app", "postgres"), *arguments,
                         env={"PGUSER": "postgres"})
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


def plan(cluster, *arguments):
    return json.loads(rebalance(cluster, "--json", *arguments))


def column(found, name):
    return {shard["name"]: shard[name] for shard in found["shards"]}


# -- rows --------------------------------------------------------------------------------------------

def test_a_new_shard_gets_its_share_by_the_commands_that_are_printed(cluster):
    fill(cluster, {0: 300, 1: 250, 2: 50, 3: 30, 9: 200, 10: 200, 11: 170})
    cluster.s0.sql("INSERT INTO account VALUES (%s)", keys_in_bucket(0, 1)[0])
    found = plan(cluster)
    assert column(found, "before") == {"s0": 631, "s1": 570, "s2": 0}
    assert column(found, "buckets_before") == {"s0": 8, "s1": 8, "s2": 0}
    assert found["even"] and found["fewest"] and found["by"] == "rows"
    # 400.3 is each one's share; only 50 + 170 and 200 are as few as two that leave all three within 5 %.
    assert all(380 <= rows <= 421 for rows in column(found, "after").values()), found
    assert sum(len(move["buckets"]) for move in found["moves"]) == found["at_least"] == 2
    text = rebalance(cluster)
    assert "2 buckets to move" in text and "no plan with fewer buckets does as well" in text, text
    commands = [line for line in text.splitlines() if line.startswith("interlock move ")]
    assert commands == [move["command"] for move in found["moves"]]
    for command in commands:
        words = shlex.split(command)
        assert words[:3] == ["interlock", "move", "--catalog"]
        move_to_its_end(words[3], *words[4:])
    assert column(plan(cluster), "before") == column(found, "after")
    assert "nothing to do: every shard is within 5.0 % of its share" in rebalance(cluster)


def test_rows_that_a_move_has_left_at_its_source_are_counted_where_the_bucket_is(cluster):
    fill(cluster, {0: 100, 1: 100, 9: 100})
    move_to_its_end(cluster.catalog.conninfo("app", "postgres"), "--keyspace", "accounts", "--bucket", "0", "--to", "s2",
                    "--keep-source", "1h")
    assert cluster.s0.value("SELECT count(*) FROM entry") == 200
    found = plan(cluster)
    assert column(found, "before") == {"s0": 100, "s1": 100, "s2": 100} and found["moves"] == []


def test_weights_are_shares_and_a_shard_of_weight_nothing_is_emptied(cluster):
    fill(cluster, {bucket: 100 for bucket in (0, 1, 2, 3, 8, 9)})
    found = plan(cluster, "--weights", "s0=1,s1=1,s2=4")
    assert column(found, "after") == {"s0": 100, "s1": 100, "s2": 400}
    found = plan(cluster, "--weights", "s1=0")
    assert column(found, "buckets_after")["s1"] == 0 and column(found, "after")["s1"] == 0
    assert column(found, "after")["s0"] == column(found, "after")["s2"] == 300
    moved = {bucket for move in found["moves"] for bucket in move["buckets"]}
    assert set(range(8, 16)) <= moved and found["even"] and found["fewest"]
    # All that is wrong is told as such.
    assert 'shard "s7", of which a weight is given' in rebalance(cluster, "--weights", "s7=1", status=1)
    assert "all shards have the weight 0" in rebalance(cluster, "--weights", "s0=0,s1=0,s2=0", status=1)


def test_what_cannot_be_evened_out_is_said_to_be_so(cluster):
    fill(cluster, {0: 500, 9: 10})
    found = plan(cluster)
    assert not found["even"]
    assert "not every shard can be brought within 5.0 % of its share" in rebalance(cluster)
    assert plan(cluster, "--tolerance", "100%", "--weights", "s2=0.0001")["moves"] == []


def test_keyspaces_are_evened_out_together_or_each_by_itself(cluster):
    cluster.catalog.sql("SELECT interlock.create_keyspace('words', 'text', 4), interlock.assign('words', '{0,1,2,3}', 's2')")
    for instance in cluster.instances.values():
        instance.sql("CREATE TABLE word (word text NOT NULL)")
    cluster.catalog.sql("SELECT interlock.declare_table('word', 'words', 'word')")
    cluster.apply()
    cluster.instances["s2"].sql("INSERT INTO word SELECT 'w' || n FROM generate_series(1, 100) AS n")
    fill(cluster, {0: 100, 9: 100})
    assert plan(cluster)["moves"] == []
    alone = plan(cluster, "--keyspace", "words")
    assert {move["keyspace"] for move in alone["moves"]} == {"words"} and column(alone, "before")["s2"] == 100
    assert 'keyspace "nowhere" is not published' in rebalance(cluster, "--keyspace", "nowhere", status=1)


def test_buckets_that_are_somebody_elses_business_stay(cluster):
    fill(cluster, {0: 100, 1: 100, 2: 100, 9: 100})
    move = str(uuid.uuid4())
    cluster.catalog.sql("SELECT interlock.begin_move(%s, 'accounts', '{0}', 's0', 's1')", move)
    cluster.assign([2], "s1")
    cluster.catalog.sql("SELECT interlock.add_shard('later', %s)", cluster.s1.conninfo("nowhere"))
    found = plan(cluster)
    assert column(found, "before") == {"s0": 100, "s1": 300, "s2": 0}
    assert [(m["from"], m["to"], m["buckets"]) for m in found["moves"]] == [("s1", "s2", [9])]
    notes = "\n".join(found["notes"])
    assert f'bucket 0 of keyspace "accounts" counted where move {move} brings it' in notes
    assert 'bucket 2 of keyspace "accounts" counted where interlock.assign() has staged it, on shard "s1"' in notes
    assert 'shard "later" is left out' in notes
    assert all(f"note: {note}" in rebalance(cluster) for note in found["notes"])


def test_a_sample_is_near_the_whole(cluster):
    fill(cluster, {bucket: 2000 for bucket in (0, 3, 5, 8, 9, 13)}, note="repeat('x', 100)")
    whole = column(plan(cluster), "before")
    part = column(plan(cluster, "--sample", "40%"), "before")
    assert whole == {"s0": 6000, "s1": 6000, "s2": 0}
    assert part != whole and all(3000 < part[name] < 9000 for name in ("s0", "s1")), part


# -- bytes -------------------------------------------------------------------------------------------

def test_bytes_are_what_the_rows_take_out_of_line_too(cluster):
    fill(cluster, {0: 90}, note="repeat('x', 5000)")  # out of line, not compressed
    fill(cluster, {1: 90, 9: 90})
    assert column(plan(cluster), "before") == {"s0": 180, "s1": 90, "s2": 0}
    found = plan(cluster, "--by", "bytes")
    expected = cluster.s0.value("SELECT sum(28 + pg_column_size(account_id) + pg_column_size(n) + pg_column_size(note)) FROM entry")
    before = column(found, "before")
    assert before["s0"] == expected and 90 * 5000 < before["s0"] < 90 * 5200
    assert 90 * 28 < before["s1"] < 90 * 60 and before["s2"] == 0
    assert found["by"] == "bytes" and not found["even"]


def test_a_null_takes_no_room(cluster):
    fill(cluster, {0: 10}, note="NULL")
    assert column(plan(cluster, "--by", "bytes"), "before")["s0"] == 10 * (28 + 8 + 4)


# -- load --------------------------------------------------------------------------------------------

def during_observation(cluster, work, *arguments):
    """`work` is done while the shards are observed."""
    results = []
    planner = threading.Thread(target=lambda: results.append(plan(cluster, "--by", "load", "--observe", "6s", *arguments)))
    planner.start()
    here = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'interlock rebalance' AND query LIKE '%pg_stat_all_tables%'"
    wait_until(lambda: all(i.value(here, dbname="app") == 1 for i in cluster.instances.values()), 30, "the shards are observed")
    work()
    planner.join()
    return results[0]


def test_load_is_what_was_written_while_the_shards_were_observed(cluster):
    fill(cluster, {0: 400, 1: 10, 2: 10, 9: 300})

    def work():
        fill(cluster, {3: 50})
        cluster.s0.sql("UPDATE entry SET note = 'changed' WHERE account_id = %s", keys_in_bucket(1, 1)[0])
        cluster.s1.sql("SELECT count(*) FROM entry")  # reading is no load

    found = during_observation(cluster, work)
    assert column(found, "before") == {"s0": 60, "s1": 0, "s2": 0}, found
    moved = {bucket for move in found["moves"] for bucket in move["buckets"]}
    assert moved <= {1, 3}, "a bucket that nobody writes is moved for its load"


def test_rows_written_again_and_again_count_for_the_buckets_of_their_shard(cluster):
    fill(cluster, {0: 10, 9: 10})

    def work():
        with cluster.s0.connect() as writer:
            for n in range(30):
                writer.execute("UPDATE entry SET note = %s WHERE account_id = %s", (str(n), keys_in_bucket(0, 1)[0]))
        cluster.s1.sql("UPDATE entry SET note = '' WHERE account_id = %s", keys_in_bucket(9, 1)[0])

    assert column(during_observation(cluster, work), "before") == {"s0": 300, "s1": 10, "s2": 0}


# -- failures ----------------------------------------------------------------------------------------

def test_a_shard_that_is_away_is_named(cluster):
    cluster.instances["s2"].stop("immediate")
    said = rebalance(cluster, status=1)
    assert 's2' in said and "ERROR:" in said


@pytest.mark.parametrize("arguments, words", [
    ((), 'option "--plan" is missing'),
    (("--plan", "--by", "size"), "rows, bytes or load"),
    (("--plan", "--tolerance", "101"), "percentage from 0 to 100"),
    (("--plan", "--tolerance", "nan"), "percentage from 0 to 100"),
    (("--plan", "--sample", "0%"), "more than nothing"),
    (("--plan", "--weights", "s0"), "a list like"),
    (("--plan", "--weights", "s0=1,s0=2"), "names no shard twice"),
    (("--plan", "--weights", "s0=-1"), "a list like"),
    (("--plan", "--observe", "10s"), 'for "--by load" only'),
])
def test_a_wrong_command_line_is_refused(arguments, words):
    done = run_interlock("rebalance", "--catalog", "host=nowhere", *arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_the_commands_are_quoted_for_a_shell(cluster, tmp_path):
    fill(cluster, {0: 100, 1: 100})
    folder = tmp_path / "my 'own'"
    folder.mkdir()
    file = folder / "interlock.ini"
    file.write_text(f"[catalog]\nconninfo = {cluster.catalog.conninfo('app', 'postgres')}\n")
    done = run_interlock("rebalance", "--plan", "-c", str(file), env={"PGUSER": "postgres"})
    assert done.returncode == 0, done.stderr
    (command,) = [line for line in done.stdout.splitlines() if line.startswith("interlock move ")]
    assert shlex.split(command)[:4] == ["interlock", "move", "-c", str(file)]
