"""The router proves whom it talks to: a connection string that leads astray is refused, loudly."""

from support.placement import keys_on
from support.statements import BALANCE, CREDIT, INSERT, ok, refused
from support.wait import wait_until

S0, S1 = keys_on("s0", 4), keys_on("s1", 4)


def start_router(cluster):
    """A router, ready or not to serve every shard; it must at least answer STATUS."""
    return cluster.new_router().start()


def redirect(cluster, shard, conninfo):
    cluster.catalog.sql("SELECT interlock.set_shard_conninfo(%s, %s)", shard, conninfo)
    cluster.catalog.sql("SELECT interlock.publish()")


def refused_loudly(cluster, router, key, *words):
    """The shard's requests are refused as unavailable, and the log says why."""
    answer = refused(cluster.client(router).q(BALANCE, key), "R30", "I")
    text = router.log_text()
    for word in words:
        assert word in text, f"the log does not say {word!r}:\n{text[-3000:]}"
    return answer


def test_two_shards_swapped_in_their_connection_strings_are_both_refused(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    redirect(cluster, "s0", cluster.s1.conninfo("app"))
    redirect(cluster, "s1", cluster.s0.conninfo("app"))
    router = start_router(cluster)
    refused_loudly(cluster, router, S0[0], "s0", "s1")
    refused_loudly(cluster, router, S1[0], "s0", "s1")
    assert not cluster.client(router).q(INSERT, S0[0], "astray", 1, 0).ok
    assert cluster.counts() == (0, 0)


def test_one_shard_s_string_leading_to_the_other_shard_is_refused_and_the_other_serves(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    cluster.load_accounts()
    redirect(cluster, "s1", cluster.s0.conninfo("app"))
    router = start_router(cluster)
    refused_loudly(cluster, router, S1[0], "s1")
    assert ok(cluster.client(router).q(BALANCE, S0[0])).rows == [[1000]]


def test_a_database_that_is_no_shard_is_refused(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    cluster.s1.sql("CREATE DATABASE other", dbname="postgres")
    redirect(cluster, "s1", cluster.s1.conninfo("other"))
    router = start_router(cluster)
    refused_loudly(cluster, router, S1[0], "s1")
    # With the extension, but not a shard of anything: refused as well.
    cluster.s1.sql("CREATE EXTENSION interlock", dbname="other")
    refused_loudly(cluster, router, S1[0], "s1")


def test_a_shard_of_another_cluster_with_the_same_name_is_refused(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    cluster.s1.sql("CREATE DATABASE other", dbname="postgres")
    with cluster.s1.connect("other") as other:
        other.execute("CREATE EXTENSION interlock")
        other.execute(cluster.table)
        other.execute("SELECT interlock.set_identity('00000000-0000-0000-0000-00000000beef', 's1')")
    redirect(cluster, "s1", cluster.s1.conninfo("other"))
    router = start_router(cluster)
    refused_loudly(cluster, router, S1[0], "s1")


def test_a_restored_copy_of_a_shard_is_refused_until_it_is_adopted(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    cluster.load_accounts()
    # A copy within the instance is what a restore into the wrong place looks like: same rows, other database.
    cluster.s1.sql("CREATE DATABASE copy TEMPLATE app", dbname="postgres")
    redirect(cluster, "s1", cluster.s1.conninfo("copy"))
    router = start_router(cluster)
    refused_loudly(cluster, router, S1[0], "s1")
    cluster.s1.sql("SELECT interlock.adopt_shard()", dbname="copy")
    client = cluster.client(router)
    wait_until(lambda: client.q(BALANCE, S1[0]).ok, 15, "the adopted copy is served")
    assert ok(client.q(CREDIT, 1, S1[0])).count == 1
    assert cluster.s1.value("SELECT balance FROM account WHERE account_id = %s", S1[0], dbname="copy") == 1001
    assert cluster.s1.value("SELECT balance FROM account WHERE account_id = %s", S1[0]) == 1000


def test_a_shard_replaced_while_the_router_runs_is_refused_too(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    cluster.load_accounts()
    router = start_router(cluster)
    client = cluster.client(router)
    assert ok(client.q(BALANCE, S1[0])).rows == [[1000]]
    # Another database takes the name that the connection string leads to.
    cluster.s1.stop()
    cluster.s1.start()
    cluster.s1.sql("ALTER DATABASE app RENAME TO real_app", dbname="postgres")
    cluster.s1.sql("CREATE DATABASE app", dbname="postgres")
    cluster.s1.sql("CREATE EXTENSION interlock")
    cluster.s1.sql(cluster.table)
    refused_loudly(cluster, router, S1[0], "s1")
    cluster.s1.sql("DROP DATABASE app WITH (FORCE)", dbname="postgres")
    cluster.s1.sql("ALTER DATABASE real_app RENAME TO app", dbname="postgres")
    wait_until(lambda: client.q(BALANCE, S1[0]).ok, 15, "the true shard is served again")


def test_a_login_whose_search_path_hides_pg_catalog_is_refused(make_cluster):
    # Names would mean something else to the server than to the router.
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    cluster.load_accounts()
    cluster.s1.sql("ALTER ROLE app SET search_path = public, pg_catalog")
    router = start_router(cluster)
    refused(cluster.client(router).q(BALANCE, S1[0]), "R30", "I")
    assert ok(cluster.client(router).q(BALANCE, S0[0])).rows == [[1000]]
