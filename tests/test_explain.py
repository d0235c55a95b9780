"""`interlock explain` tells what the router would do, and does nothing."""

import pytest

from support.placement import bucket_of, keys_on
from support.router import run_interlock

KEY = keys_on("s1", 1)[0]


@pytest.fixture(scope="module")
def explain(module_cluster):
    catalog = module_cluster.catalog.conninfo("app", "interlock_router")

    def run(*arguments, **options):
        return run_interlock("explain", "--catalog", catalog, *arguments, **options)
    return run


def lines(done):
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


def test_a_literal_key_leads_to_its_shard_and_bucket(explain):
    done = explain(f"SELECT * FROM account WHERE account_id = {KEY}")
    assert done.returncode == 0, done.stdout + done.stderr
    told = lines(done)
    assert told["shard"] == "s1"
    assert told["bucket"] == f"{bucket_of(KEY)} of keyspace accounts"
    assert told["key"] == "public.account.account_id from literal 1"
    assert told["profile"] == "single-shard" and told["plan"] == "forward, a read"


def test_a_parameter_is_told_or_given(explain):
    statement = "UPDATE account SET balance = $1 WHERE account_id = $2"
    open_ = explain(statement)
    assert open_.returncode == 0
    assert lines(open_)["key"] == "public.account.account_id from parameter $2"
    assert "parameter" in lines(open_)["shard"]
    given = explain(statement, "--param", "5", "--param", str(KEY))
    assert lines(given)["shard"] == "s1" and lines(given)["plan"] == "forward, a write"
    wrong = explain(statement, "--param", "5", "--param", "abc")
    assert wrong.returncode == 1 and "R27" in wrong.stdout


def test_a_refusal_shows_the_place_and_the_rewrite(explain):
    done = explain("SELECT 'ü', * FROM account\n WHERE account_id = 1 OR account_id = 2")
    assert done.returncode == 1
    told = lines(done)
    assert told["refused"].startswith("R10 (SQLSTATE IL010)")
    assert "IN (" in told["hint"] and "OR" in told["detail"]
    caret = done.stdout.splitlines()[-2:]
    assert caret[0] == "    SELECT 'ü', * FROM account"
    assert caret[0][caret[1].index("^"):] == "account"


def test_keys_of_two_shards_are_refused(explain):
    other = keys_on("s0", 1)[0]
    done = explain(f"SELECT * FROM account WHERE account_id IN ({KEY}, {other})")
    assert done.returncode == 1 and "R11" in done.stdout


def test_a_file_is_explained_statement_by_statement(explain, tmp_path):
    file = tmp_path / "statements.sql"
    file.write_text(f"-- first; not a statement\nSELECT ';';\nDELETE FROM account WHERE account_id = {KEY};\nVACUUM")
    done = explain("-f", file)
    assert done.returncode == 1
    assert done.stdout.count("statement: ") == 3
    assert "shard: any" in done.stdout and "shard: s1" in done.stdout and "R24" in done.stdout
    assert explain("-f", "-", input="SELECT 1").returncode == 0


def test_the_search_path_decides_what_a_name_means(explain):
    assert explain("SELECT * FROM account WHERE account_id = 1", "--search-path", "other").returncode == 1
    assert explain("SELECT * FROM account WHERE account_id = 1", "--search-path", "other, public").returncode == 0
    wrong = explain("SELECT 1", "--search-path", "a,,b")
    assert wrong.returncode == 2 and "search-path" in wrong.stderr


def test_a_wrong_command_line_is_told(explain):
    assert explain().returncode == 2
    assert explain("SELECT 1", "SELECT 2").returncode == 2
    assert explain("SELECT 1", "-f", "x").returncode == 2
    assert run_interlock("explain", "SELECT 1").returncode == 2
    missing = explain("-f", "/nonexistent")
    assert missing.returncode == 1 and "/nonexistent" in missing.stderr


def test_nothing_is_run(cluster, explain):
    before = [shard.sql("SELECT count(*) FROM account") for shard in cluster.instances.values()]
    assert explain(f"DELETE FROM account WHERE account_id = {KEY}").returncode == 0
    assert [shard.sql("SELECT count(*) FROM account")
            for shard in cluster.instances.values()] == before


def test_a_catalog_that_is_not_published_or_not_there_is_told(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    catalog = cluster.catalog.conninfo("app", "interlock_router")
    unpublished = run_interlock("explain", "--catalog", catalog, "SELECT 1")
    assert unpublished.returncode == 1 and "published" in unpublished.stderr
    gone = run_interlock("explain", "--catalog", "host=127.0.0.1 port=1", "SELECT 1")
    assert gone.returncode == 1 and gone.stderr
