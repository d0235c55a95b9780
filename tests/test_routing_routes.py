"""The route table: changes during a transaction, tables that must not be taken."""

import re

from support.placement import bucket_of, keys_in_bucket, keys_on
from support.statements import BALANCE, CREDIT, DEBIT, INSERT, ok
from support.wait import wait_until

MOVED = 4  # a bucket of s0
KEY, SECOND = keys_in_bucket(MOVED, 2)
S0, S1 = keys_on("s0", 4), keys_on("s1", 4)


def reassign(cluster, bucket, shard, given_up=True):
    """The bucket on another shard, its rows left alone: only the route changes hands here. `given_up`: the one that had
    it knows; else it goes on with transactions that were there before, and takes no new ones."""
    cluster.assign([bucket], shard)
    version = cluster.publish(allow_owner_change=True)
    if given_up:
        giver = "s0" if shard == "s1" else "s1"
        cluster.instances[giver].sql("UPDATE interlock.shard_identity SET floor = %s", version)
    cluster.instances[shard].sql("SELECT interlock.accept_buckets('accounts', %s, %s)", [bucket], version)
    return version


def wait_for_route(cluster, version):
    wait_until(lambda: cluster.router.status().rv == version, 10, f"the router has rv {version}")


def test_a_route_change_does_not_move_a_transaction_in_progress(make_cluster):
    cluster = make_cluster().up()
    cluster.s0.sql("INSERT INTO account VALUES (%s, 'a', 1000, 0), (%s, 'b', 1000, 0)", KEY, SECOND)
    client, watcher = cluster.client(), cluster.client()
    ok(client.q("BEGIN"))
    assert watcher.status().rv == 1
    answers = [ok(client.q(DEBIT, 100, KEY))]
    assert reassign(cluster, MOVED, "s1", given_up=False) == 2
    wait_until(lambda: watcher.status().rv == 2, 10, "the router has seen rv 2")

    answers += [ok(client.q(CREDIT, 100, SECOND)), ok(client.q(BALANCE, KEY))]
    assert [(answer.shard, answer.rv, answer.tx) for answer in answers] == [("s0", 1, "T")] * 3
    assert len({answer.pid for answer in answers}) == 1
    commit = ok(client.q("COMMIT"))
    assert (commit.shard, commit.rv, commit.tx) == ("s0", 1, "I")
    assert cluster.s0.value("SELECT balance FROM account WHERE account_id = %s", KEY) == 900

    after = ok(client.q(INSERT, KEY, "new owner", 1, 0))
    assert (after.shard, after.rv) == ("s1", 2)
    assert cluster.s1.value("SELECT owner FROM account WHERE account_id = %s", KEY) == "new owner"


def test_a_transaction_that_has_begun_to_write_commits_where_it_began(make_cluster):
    cluster = make_cluster().up()
    cluster.s0.sql("INSERT INTO account VALUES (%s, 'a', 1000, 0)", KEY)
    client = cluster.client()
    ok(client.q("BEGIN"))
    pid = ok(client.q(DEBIT, 1, KEY)).pid
    version = reassign(cluster, MOVED, "s1", given_up=False)
    wait_for_route(cluster, version)
    answer = ok(client.q(DEBIT, 1, KEY))
    assert (answer.pid, answer.shard, answer.rv) == (pid, "s0", 1)
    ok(client.q("COMMIT"))
    assert cluster.s0.value("SELECT balance FROM account WHERE account_id = %s", KEY) == 998
    assert ok(client.q(BALANCE, KEY)).shard == "s1"


def test_a_route_table_with_a_bucket_missing_and_one_that_goes_backward_are_refused(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    # Versions 2 and 3, as anyone would make them.
    for shard in ("s1", "s0"):
        version = reassign(cluster, MOVED, shard)
    assert version == 3
    wait_for_route(cluster, 3)
    client = cluster.client()
    lost = keys_in_bucket(15, 1)[0]

    def serves_on(rv):
        for key in (S0[0], S1[0], lost):
            answer = client.q(BALANCE, key)
            assert answer.ok and answer.rv == rv, answer.raw

    serves_on(3)
    # Version 4, by surgery: bucket 15 has no row any more.
    with cluster.catalog.connect() as catalog, catalog.transaction():
        add_version(catalog, 4)
        catalog.execute("UPDATE interlock.route SET valid_to = 4 WHERE bucket = 15 AND valid_to IS NULL")
        catalog.execute("UPDATE interlock.cluster SET route_version = 4")
    status = wait_until(lambda: (s := client.status()).rejected_rv == 4 and s, 10, "version 4 is refused")
    assert status.rv == 3 and "15" in status.rejected_why
    serves_on(3)

    # Version 5 is whole again; that the bucket has been nobody's for a version, its shard knows.
    cluster.s1.sql("UPDATE interlock.shard_identity SET floor = 4")
    with cluster.catalog.connect() as catalog, catalog.transaction():
        add_version(catalog, 5)
        catalog.execute("INSERT INTO interlock.route (keyspace, bucket, shard, valid_from)"
                        " SELECT keyspace, bucket, shard, 5 FROM interlock.route"
                        " WHERE bucket = 15 AND valid_to = 4")
        catalog.execute("UPDATE interlock.cluster SET route_version = 5")
    wait_for_route(cluster, 5)
    serves_on(5)
    assert refusal_lines(cluster, 4) == 1, cluster.router.log_text()

    # And now a table numbered 3.
    cluster.catalog.sql("UPDATE interlock.cluster SET route_version = 3")
    status = wait_until(lambda: (s := client.status()).rejected_rv == 3 and s, 10, "version 3 is refused")
    assert status.rv == 5
    serves_on(5)
    # It is asked for again and again (every 200 ms), and logged once.
    wait_for_polls(cluster, 5)
    assert refusal_lines(cluster, 3) == 1, cluster.router.log_text()
    assert client.status().rv == 5

    # A good table puts an end to it.
    cluster.catalog.sql("UPDATE interlock.cluster SET route_version = 5")
    version = reassign(cluster, MOVED, "s1")
    assert version == 6
    wait_for_route(cluster, 6)


def test_a_version_number_given_out_twice_is_refused(make_cluster):
    """As a catalog does that was restored from an old backup and published to again."""
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    rv = client.status().rv
    cluster.catalog.sql("UPDATE interlock.route_version SET published_at = now() WHERE version = %s", rv)
    status = wait_until(lambda: (s := client.status()).rejected_rv == rv and s, 10, "the double is refused")
    assert status.rv == rv and "twice" in status.rejected_why
    assert ok(client.q(BALANCE, KEY)).rv == rv


def add_version(catalog, version):
    """A row of route_version as publish() would write it, declarations and all."""
    catalog.execute("INSERT INTO interlock.route_version (version, published_at, published_by, declarations)"
                    " SELECT %s, now(), published_by, declarations FROM interlock.route_version"
                    " ORDER BY version DESC LIMIT 1", (version,))


def refusal_lines(cluster, version):
    return len(re.findall(rf"version {version} (?:rejected|refused)", cluster.router.log_text()))


def wait_for_polls(cluster, polls):
    """Until the router has asked the catalog that often: counted by the catalog's own statistics."""
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'app'"
    start = cluster.catalog.value(query, dbname="postgres")
    wait_until(lambda: cluster.catalog.value(query, dbname="postgres") >= start + polls, 20, f"{polls} polls")


def test_a_route_that_names_a_shard_the_router_cannot_know_is_refused(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    with cluster.catalog.connect() as catalog, catalog.transaction():
        catalog.execute("SET LOCAL session_replication_role = replica")  # past the foreign key
        add_version(catalog, 2)
        catalog.execute("UPDATE interlock.route SET valid_to = 2 WHERE bucket = 3 AND valid_to IS NULL")
        catalog.execute("INSERT INTO interlock.route (keyspace, bucket, shard, valid_from)"
                        " SELECT keyspace, 3, 99, 2 FROM interlock.route WHERE bucket = 3")
        catalog.execute("UPDATE interlock.cluster SET route_version = 2")
    status = wait_until(lambda: (s := client.status()).rejected_rv == 2 and s, 10, "version 2 is refused")
    assert status.rv == 1
    assert ok(client.q(BALANCE, S0[0])).rv == 1


def test_a_router_whose_route_is_older_than_the_shards_floor_is_refused_by_the_shard(make_cluster):
    # The catalog goes away, so the router keeps rv 1; meanwhile s0 gives the bucket away.
    cluster = make_cluster(separate_catalog=True).up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q(BALANCE, KEY))
    cluster.catalog.stop()
    cluster.s0.sql("SET interlock.allow_truncate = on; TRUNCATE account")
    cluster.s0.sql("SELECT interlock.release_buckets('accounts', %s, 's1', 2)", [MOVED])
    for sql, params in ((INSERT, (KEY, "late", 1, 0)), (BALANCE, (KEY,)), (DEBIT, (1, KEY))):
        answer = client.q(sql, *params)
        assert not answer.ok, f"a stale router was served: {answer.raw}"
        assert answer.sqlstate == "40001" and "(IL102)" in answer.raw, answer.raw
    assert cluster.s0.value("SELECT count(*) FROM account") == 0
    # The other shard's floor has not moved.
    assert ok(client.q(BALANCE, S1[0])).rows == [[1000]]
    assert bucket_of(KEY) == MOVED


def test_what_is_staged_is_not_in_force_for_any_router(make_cluster):
    """A router that starts between an edit of the catalog and its publication means the same by its version."""
    cluster = make_cluster().up()
    cluster.load_accounts()
    rv = cluster.client().status().rv
    cluster.catalog.sql("SELECT interlock.set_shard_conninfo('s0', 'host=127.0.0.1 port=1 dbname=app user=app')")
    cluster.catalog.sql("SELECT interlock.undeclare_table('account')")
    late = cluster.new_router().start()
    with late.client() as client:
        answer = ok(client.q(BALANCE, KEY))
        assert (answer.shard, answer.rv) == ("s0", rv)
