"""The catalog goes away: the router serves on with the table it has, and says so."""

import pytest

from support.placement import keys_on
from support.statements import BALANCE, DEBIT, CREDIT, ok
from support.wait import wait_until

S0, S1 = keys_on("s0", 4), keys_on("s1", 4)
# Short, so that a frozen catalog is found out within the test.
CLUSTER_OPTIONS = {"separate_catalog": True, "router_settings": {"catalog": {"timeout": "500ms"}}}


def serves(client):
    """Reads, writes and transactions on both shards, under the version it had."""
    for key in (S0[0], S1[0]):
        assert ok(client.q(BALANCE, key)).rv == 1
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 1, S0[0]))
    ok(client.q(CREDIT, 1, S0[1]))
    ok(client.q("COMMIT"))


def wait_for_catalog(client, state):
    return wait_until(lambda: (s := client.status()).catalog == state and s, 20, f"STATUS says catalog={state}")


def take_new_version(cluster, client):
    """Something changes in the catalog; the router gets to know."""
    before = client.status().rv
    cluster.assign([0], "s1")
    version = cluster.publish(allow_owner_change=True)
    cluster.s1.sql("SELECT interlock.accept_buckets('accounts', ARRAY[0], %s)", version)
    assert version > before
    wait_until(lambda: client.status().rv == version, 20, f"the router has rv {version}")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_with_the_catalog_stopped_the_router_serves_on_and_recovers(make_cluster, mode):
    cluster = make_cluster(**CLUSTER_OPTIONS).up()
    cluster.load_accounts()
    client = cluster.client()
    status = client.status()
    assert (status.catalog, status.catalog_error, status.rv) == ("up", None, 1)
    cluster.catalog.stop(mode)
    status = wait_for_catalog(client, "down")
    assert status.rv == 1 and status.catalog_error
    serves(client)
    serves(cluster.client())
    cluster.catalog.start()
    assert wait_for_catalog(client, "up").catalog_error is None
    serves(client)
    take_new_version(cluster, client)


def test_with_the_catalog_frozen_the_router_serves_on_and_recovers(make_cluster):
    cluster = make_cluster(**CLUSTER_OPTIONS).up()
    cluster.load_accounts()
    client = cluster.client()
    cluster.catalog.freeze()
    try:
        serves(client)
        assert wait_for_catalog(client, "down").rv == 1
        serves(client)
        serves(cluster.client())
    finally:
        cluster.catalog.thaw()
    wait_for_catalog(client, "up")
    take_new_version(cluster, client)


def test_an_outage_of_the_catalog_is_logged_when_it_begins_and_ends_and_not_at_every_poll(make_cluster):
    cluster = make_cluster(router_settings={"catalog": {"poll_interval": "20ms"}, "log": {"level": "info"}},
                           separate_catalog=True).up()
    client = cluster.client()
    mark = cluster.router.log_mark()
    cluster.catalog.stop()
    wait_for_catalog(client, "down")
    # Enough requests for many polls to have come and gone.
    wait_until(lambda: not client.status().raw == "" and cluster.s1.value("SELECT pg_sleep(0.5) IS NOT NULL"), 10)
    cluster.catalog.start()
    wait_for_catalog(client, "up")
    lines = [line for line in cluster.router.log_since(mark).splitlines() if "catalog" in line]
    assert 2 <= len(lines) <= 4, "\n".join(lines)


def test_a_router_that_starts_without_its_catalog_refuses_requests_or_ends_but_never_guesses(make_cluster):
    cluster = make_cluster(**CLUSTER_OPTIONS).up()
    cluster.load_accounts()
    cluster.catalog.stop()
    late = cluster.new_router()
    late.expected_end = True
    late.launch()
    late.expected_end = True
    port_or_end = wait_until(lambda: late.process.poll() is not None or listens(late), 30,
                             "the late router ends or listens")
    assert port_or_end
    if late.process.poll() is not None:
        assert late.process.returncode == 1
        assert "catalog" in late.log_text()
    else:
        answer = cluster.client(late).q(BALANCE, S0[0])
        assert not answer.ok, answer.raw
    # The one that was there before serves on.
    serves(cluster.client())


def listens(router):
    try:
        router.client(timeout=3).close()
    except OSError:
        return False
    return True
