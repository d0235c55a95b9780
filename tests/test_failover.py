"""A standby is promoted in a shard's place: with the decision to hand buckets over, and without it."""

import re

import pytest

from support.placement import keys_in_bucket
from support.standby import Standby, either
from support.statements import BALANCE, CREDIT, INSERT, ok, refused
from support.wait import wait_until

GIVEN, KEPT = 4, 6  # buckets of s0: the one that is given to s1, and one that stays
KEY, STAYS = keys_in_bucket(GIVEN, 1)[0], keys_in_bucket(KEPT, 1)[0]


class Failover:
    """Two shards, the catalog apart, a standby of s0, and a router that finds either."""

    def __init__(self, make_cluster):
        self.cluster = cluster = make_cluster(separate_catalog=True)
        cluster.start_instances().create_tables().describe()
        cluster.apply()
        self.standby = Standby(cluster.s0, "s0b")
        cluster.instances["s0b"] = self.standby
        cluster.catalog.sql("SELECT interlock.set_shard_conninfo('s0', %s)", either(cluster.s0, self.standby))
        cluster.publish()
        self.router = cluster.new_router().start()
        self.client = cluster.client(self.router)
        wait_until(lambda: self.client.status().rv == 2, 10, "the router knows both servers")
        ok(self.client.q(INSERT, STAYS, "stays", 100, 0))
        self.standby.catch_up()

    def give_away(self):
        """`interlock apply` hands the empty bucket over: decided by the shard, then published."""
        self.cluster.assign([GIVEN], "s1")
        self.cluster.apply()
        version = self.cluster.catalog.value("SELECT route_version FROM interlock.cluster")
        wait_until(lambda: self.client.status().rv == version, 10, f"the router has version {version}")
        return version

    def fail_over(self):
        self.cluster.s0.kill()
        self.standby.promote()

    def serves(self, key):
        return self.client.q(BALANCE, key).ok


@pytest.fixture
def failover(make_cluster):
    return Failover(make_cluster)


def test_a_standby_promoted_with_the_decision_serves(failover):
    failover.give_away()
    failover.standby.catch_up()
    failover.fail_over()
    wait_until(lambda: failover.serves(STAYS), 20, "the promoted standby serves")
    assert ok(failover.client.q(CREDIT, 1, STAYS)).count == 1
    assert failover.standby.value("SELECT balance FROM account WHERE account_id = %s", STAYS) == 101


def test_a_standby_promoted_without_the_decision_is_refused_until_it_has_given_the_bucket_away_again(failover):
    cluster, client = failover.cluster, failover.client
    failover.standby.cut_off()
    version = failover.give_away()
    ok(client.q(INSERT, KEY, "at its new owner", 1, 0))
    failover.fail_over()

    # It thinks that it owns the bucket, and would take its rows.
    assert failover.standby.value("SELECT interlock.owns('accounts', %s::bigint)", KEY)
    wait_until(lambda: re.search("promoted.*without that decision", failover.router.log_text()) or failover.serves(STAYS),
               20, "the router has looked at the promoted standby")
    answer = refused(client.q(CREDIT, 1, STAYS), "R30", "I")
    assert f"route version {version}" in answer.raw and "lost" in answer.raw, answer.raw
    assert failover.standby.value("SELECT balance FROM account WHERE account_id = %s", STAYS) == 100
    assert ok(client.q(BALANCE, KEY)).shard == "s1"

    # As the manual has it: `interlock apply` names what has two owners, and the promoted one gives it away.
    told = cluster.apply(check=False)
    assert told.returncode == 1 and f"bucket {GIVEN} of keyspace \"accounts\" is owned by both" in told.stderr, told.stderr
    failover.standby.sql("SELECT interlock.release_buckets('accounts', %s, 's1', %s)", [GIVEN], version)
    cluster.apply()
    assert not failover.standby.value("SELECT interlock.owns('accounts', %s::bigint)", KEY)
    wait_until(lambda: failover.serves(STAYS), 20, "the promoted standby serves")
    assert ok(client.q(BALANCE, KEY)).shard == "s1"


def test_connections_to_a_promoted_standby_are_asked_again_when_the_decision_that_it_lost_is_published(failover):
    """The source decides and is lost; what it had decided is published only after its standby serves."""
    cluster, client = failover.cluster, failover.client
    failover.standby.cut_off()
    cluster.s0.sql("SELECT interlock.release_buckets('accounts', %s, 's1', 3)", [GIVEN])
    failover.fail_over()
    wait_until(lambda: failover.serves(STAYS), 20, "the promoted standby serves: nobody knows better")

    cluster.s1.sql("SELECT interlock.accept_buckets('accounts', %s, 3)", [GIVEN])
    cluster.assign([GIVEN], "s1")
    assert cluster.publish(allow_owner_change=True) == 3
    wait_until(lambda: client.status().rv == 3, 10, "the router has version 3")
    answer = refused(client.q(CREDIT, 1, STAYS), "R30", "I")
    assert "without that decision" in answer.raw, answer.raw
    assert ok(client.q(INSERT, KEY, "at its new owner", 1, 0)).shard == "s1"


def test_a_former_primary_that_comes_back_is_not_used_again(failover):
    cluster, client = failover.cluster, failover.client
    failover.standby.catch_up()
    failover.fail_over()
    wait_until(lambda: failover.serves(STAYS), 20, "the promoted standby serves")
    assert "a standby was promoted: timeline 2, was 1" in failover.router.log_text()

    # It comes back, and the one in its place is away for a moment: the same connection string leads to it.
    failover.standby.stop()
    cluster.s0.start()
    wait_until(lambda: "former primary" in failover.router.log_text() or failover.serves(STAYS),
               20, "the router has looked at the former primary")
    refused(client.q(CREDIT, 1, STAYS), "R30", "I")
    assert cluster.s0.value("SELECT balance FROM account WHERE account_id = %s", STAYS) == 100
    cluster.s0.stop()
    failover.standby.start()
    wait_until(lambda: failover.serves(STAYS), 20, "the promoted standby serves again")
