"""Keysets on a cluster: `interlock apply` gives every shard the catalog's cursor keys, keeps them secret, and
tells of keysets that the shards do not agree on."""

import signal
import subprocess

import pytest

from support.cluster import Cluster
from support.router import BINARY, environment
from support.shard import refusal
from support.wait import wait_until

KEYS = "SELECT id, secret, created, retired FROM interlock.cursor_key ORDER BY id"
DECLARE = "SELECT interlock.keyset_create('rich', 'account', '{}', 'balance DESC NULLS LAST, account_id')"


def start(cluster):
    cluster.start_instances().create_tables().describe()
    cluster.apply()
    return cluster


@pytest.fixture(params=[False, True], ids=["catalog on s0", "catalog apart"])
def applied(make_cluster, request):
    return start(make_cluster(separate_catalog=request.param))


@pytest.fixture(scope="module")
def agreeing(owner, new_folder, router_binary):
    """A cluster whose shards agree, for all tests of keysets."""
    cluster = Cluster(new_folder("apply-keysets"), owner)
    try:
        yield start(cluster)
    finally:
        cluster.down()


@pytest.fixture
def cluster(agreeing):
    yield agreeing
    for shard in (agreeing.s0, agreeing.s1):
        shard.sql("SELECT interlock.keyset_drop(name) FROM interlock.keysets")
        if not shard.value("SELECT 1 FROM pg_constraint WHERE conname = 'account_pkey'"):
            shard.sql("ALTER TABLE account ADD PRIMARY KEY (account_id)")
    assert agreeing.apply().stderr == ""


def keys(cluster):
    """Those of the catalog, which every shard has as well."""
    wanted = cluster.catalog.sql(KEYS)
    for shard in (cluster.s0, cluster.s1):
        assert shard.sql(KEYS) == wanted
    return wanted


def cursor_of(shard, number):
    return shard.value("SELECT interlock.keyset_cursor('rich', ROW(%s, 'a', 1, 0)::account)", number)


def page(shard, cursor):
    return shard.sql("SELECT (item).account_id FROM interlock.keyset_page('rich', NULL::account, after => %s)", cursor)


def test_a_new_cluster_has_one_key_on_every_shard(applied):
    (number, secret, _, retired), = keys(applied)
    assert number == 1 and len(secret) == 32 and not retired
    for shard in (applied.s0, applied.s1):
        shard.sql("SET client_min_messages = error; " + DECLARE)
    assert "nothing to do" in applied.apply().stdout
    # A cursor of either serves the other.
    for one, other in ((applied.s0, applied.s1), (applied.s1, applied.s0)):
        assert page(other, cursor_of(one, 5)) == []
        with refusal("IL201"):
            page(other, cursor_of(one, 5)[:-1])


def test_the_plan_tells_of_keys_and_changes_nothing(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    done = cluster.apply("--plan")
    assert "catalog: make a key that signs cursors" in done.stdout and "s1: take the catalog's cursor key" in done.stdout
    assert "s0: take the catalog's cursor key" not in done.stdout
    assert [instance.sql(KEYS) for instance in cluster.instances.values()] == [[], []]


def test_keys_rotate_without_a_cursor_going_bad(applied):
    for shard in (applied.s0, applied.s1):
        shard.sql("SET client_min_messages = error; " + DECLARE)
    catalog, shards = applied.catalog, (applied.s0, applied.s1)

    def all_good(*cursors):
        for cursor in cursors:
            for shard in shards:
                assert page(shard, cursor) == []

    old = cursor_of(applied.s1, 1)
    assert catalog.value("SELECT interlock.cursor_key_add(signs => false)") == 2
    # Known to the catalog's own database: it does not sign yet, so its cursors are good everywhere.
    all_good(cursor_of(applied.s0, 2), old)
    text = applied.apply("--plan").stdout
    assert "s1: accept cursors of key 2" in text and "sign" not in text.replace("signs", "")
    applied.apply()
    all_good(cursor_of(applied.s0, 2), cursor_of(applied.s1, 2), old)
    assert cursor_of(applied.s1, 1) == old
    catalog.sql("SELECT interlock.cursor_key_sign(2::smallint)")
    all_good(cursor_of(applied.s0, 2), cursor_of(applied.s1, 2), old)
    assert "s1: sign cursors with key 2" in applied.apply().stdout
    new = cursor_of(applied.s1, 1)
    assert new != old and new == cursor_of(applied.s0, 1)
    all_good(old, new)
    catalog.sql("SELECT interlock.cursor_key_retire(1::smallint)")
    assert "s1: retire key 1" in applied.apply().stdout
    all_good(new)
    for shard in shards:
        with refusal("IL201"):
            page(shard, old)
    (first, second) = keys(applied)
    assert first[1] is None and first[3] and second[0] == 2
    assert "nothing to do" in applied.apply().stdout


def test_keys_that_a_shard_has_made_itself_are_replaced_and_the_plan_says_so(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    for shard in (cluster.s0, cluster.s1):
        shard.sql("SET client_min_messages = error; " + DECLARE)
    mine, theirs = cursor_of(cluster.s0, 1), cursor_of(cluster.s1, 1)
    assert mine != theirs
    text = cluster.apply().stdout
    assert "s1: accept cursors of key 1, sign cursors with key 1 and refuse cursors of its own key 1" in text
    assert len(keys(cluster)) == 1
    assert page(cluster.s1, mine) == [] and cursor_of(cluster.s1, 1) == mine
    with refusal("IL201"):
        page(cluster.s1, theirs)


def test_secrets_are_neither_printed_nor_logged(make_cluster):
    settings = {"log_statement": "all", "log_min_duration_statement": "0", "log_parameter_max_length": "-1",
                "log_parameter_max_length_on_error": "-1", "log_min_messages": "debug1"}
    cluster = make_cluster(shard_settings=settings, separate_catalog=True).start_instances().create_tables().describe()
    shown = []
    for step in (lambda: None, lambda: cluster.catalog.sql("SELECT interlock.cursor_key_add()"),
                 lambda: cluster.catalog.sql("SELECT interlock.cursor_key_retire(1::smallint)")):
        step()
        secrets = [row[1].hex() for row in cluster.catalog.sql(KEYS) if row[1]]
        for arguments in (["--plan"], []):
            done = cluster.apply(*arguments)
            shown.append(done.stdout + done.stderr)
        secrets += [row[1].hex() for row in cluster.catalog.sql(KEYS) if row[1]]
        assert secrets
        for name, instance in cluster.instances.items():
            log = instance.log_since(0)
            assert "interlock.cursor_key" in log, "this log would not show it"
            assert not [secret for secret in secrets if secret in log.lower()], name
        assert not [secret for secret in secrets if secret in "".join(shown).lower()]


def test_a_step_that_fails_does_not_show_the_secret_either(make_cluster):
    applied = start(make_cluster())
    applied.catalog.sql("SELECT interlock.cursor_key_add(signs => false)")
    holder = applied.connect("s1", autocommit=False)
    holder.execute("LOCK TABLE interlock.cursor_key IN SHARE MODE")
    done = applied.apply("--lock-timeout", "200ms", check=False)
    assert done.returncode == 1 and "accept cursors of key 2" in done.stderr
    secrets = [row[1].hex() for row in applied.catalog.sql(KEYS)]
    assert not [secret for secret in secrets if secret in done.stdout + done.stderr + applied.s1.log_since(0)]
    holder.rollback()
    applied.apply()
    assert len(keys(applied)) == 2


def test_an_apply_killed_while_it_gives_out_keys_is_finished_by_the_next_one(make_cluster):
    applied = start(make_cluster())
    applied.catalog.sql("SELECT interlock.cursor_key_add(signs => false)")
    holder = applied.connect("s1", autocommit=False)
    holder.execute("LOCK TABLE interlock.cursor_key IN SHARE MODE")
    process = subprocess.Popen([BINARY, "apply", "--lock-timeout", "20s",
                                "--catalog", applied.catalog.conninfo("app", "postgres")],
                               env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
    wait_until(lambda: applied.s1.value(waits) or process.poll() is not None, 20, "apply waits")
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    holder.rollback()
    wait_until(lambda: not applied.s1.value(waits), 20, "its backend has gone")
    applied.apply()
    assert len(keys(applied)) == 2
    assert "nothing to do" in applied.apply().stdout


# --- keysets that the shards do not agree on -----------------------------------------------------------


def test_a_keyset_that_a_shard_lacks_is_told_with_the_statement_that_declares_it(cluster):
    cluster.s0.sql("SET client_min_messages = error; " + DECLARE)
    done = cluster.apply()
    assert 'keyset "rich" is not declared on shard "s1"' in done.stderr and "nothing to do" in done.stdout
    statement = done.stderr.partition("Run there: ")[2].splitlines()[0]
    cluster.s1.sql("SET client_min_messages = error; " + statement)
    assert cluster.apply().stderr == ""
    assert cluster.s1.value("SELECT digest FROM interlock.keysets") == cluster.s0.value("SELECT digest FROM interlock.keysets")


@pytest.mark.parametrize("difference, words", [
    (DECLARE.replace("DESC NULLS LAST", "DESC"), "declared differently"),
    (DECLARE.replace("'{}'", "'{owner}'"), "declared differently"),
    (DECLARE[:-1] + ", signed => false)", "declared differently"),
    (DECLARE[:-1] + ", max_page => 70)", "page limits"),
    (DECLARE + "; ALTER TABLE account DROP CONSTRAINT account_pkey", "does not fit its table")])
def test_keysets_that_differ_are_told_by_shard(cluster, difference, words):
    cluster.s0.sql("SET client_min_messages = error; " + DECLARE)
    cluster.s1.sql("SET client_min_messages = error; " + difference)
    text = cluster.apply(check=False).stderr
    assert words in text and '"rich"' in text and '"s1"' in text, text


def test_a_keyset_of_one_shard_alone_is_nobodys_business(cluster):
    cluster.s0.sql("SET client_min_messages = error; CREATE TABLE own (id int PRIMARY KEY);"
                   "SELECT interlock.keyset_create('own', 'own', '{}', 'id', scatter => false)")
    assert cluster.apply().stderr == ""
