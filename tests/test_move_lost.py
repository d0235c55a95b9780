"""Servers that come back as they were before: a standby without the last commits was promoted, or a copy restored. What a
server has lost is taken from its tables here; everything else is as after a failover of one that was asynchronous."""

import pytest
from psycopg import errors

from support.move_case import MOVED
from support.moves import move_to_its_end
from support.placement import keys_in_bucket
from support.router import run_interlock
from support.wait import wait_until

# The source has lost its decision, in full.
LOSES_THE_DECISION = (
    "UPDATE interlock.bucket_state SET state = 'owned', peer = NULL, until = NULL, move_id = NULL, route_version = 1"
    " WHERE keyspace = 'accounts' AND bucket = 0",
    "UPDATE interlock.handoff SET state = 'begun', until = NULL, token = NULL, waited = false, decided_by = NULL WHERE role = 'source'",
    "UPDATE interlock.shard_identity SET floor = 0")
LOSES_THE_RESERVATION = (
    "UPDATE interlock.cluster SET reserved_version = NULL, reserved_move = NULL, last_version = route_version",
    "UPDATE interlock.move SET route_version = NULL, announced = false, step = 'caught_up' WHERE finished IS NULL")


class Failover:
    """A cluster whose mover has been killed in the midst of moving bucket MOVED."""

    def __init__(self, cluster):
        self.cluster = cluster
        cluster.fill(moved=MOVED)
        self.from_name, self.to_name = cluster.where(MOVED), cluster.other(MOVED)
        self.source, self.target = cluster.instances[self.from_name], cluster.instances[self.to_name]
        self.key = keys_in_bucket(MOVED, 1)[0]

    def killed(self, point, *options):
        self.cluster.moving(MOVED, self.to_name, *options, stop=point).stopped().kill()
        self.move = self.cluster.move_id()
        return self

    def loses(self, instance, statements):
        for statement in statements:
            instance.sql(statement)

    def run(self, way, expect=0):
        """`interlock move --WAY ID`; what it said."""
        done = move_to_its_end(self.cluster.catalog_conninfo(), way, self.move, expect=expect)
        return done.stdout + done.stderr

    def apply(self):
        return run_interlock("apply", "--catalog", self.cluster.catalog_conninfo(), env={"PGUSER": "postgres"}, timeout=60)

    def takers(self):
        """The shards that have rows of the bucket and take a write of them."""
        taken = []
        for name in (self.from_name, self.to_name):
            try:
                if self.cluster.instances[name].sql("UPDATE account SET balance = balance WHERE account_id = %s RETURNING 1", self.key):
                    taken.append(name)
            except errors.Error as error:
                assert error.sqlstate in ("IL101", "IL103"), error
        return taken

    def states(self):
        found = self.cluster.states(MOVED)
        return found[self.from_name], found[self.to_name]

    def moved(self):
        assert self.cluster.where(MOVED) == self.to_name and self.takers() == [self.to_name]
        self.cluster.assert_settled()


@pytest.fixture
def failover(make_moving):
    return Failover(make_moving().up())


# --- the source -----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["--abort", "--resume"])
def test_a_source_that_has_lost_its_decision_keeps_the_move_as_it_is(failover, after):
    failover.killed("after-activated").loses(failover.source, LOSES_THE_DECISION)
    number = failover.cluster.catalog.value("SELECT reserved_version FROM interlock.cluster")
    for way in ("--resume", "--abort", "--resume"):
        said = failover.run(way, expect=1)
        assert f'shard "{failover.from_name}" has lost the decision of move {failover.move}' in said and "revoke_import" in said
    assert "has lost the decision" in (done := failover.apply()).stdout + done.stderr and done.returncode == 1
    assert failover.states() == ("owned", "owned")
    assert failover.source.value("SELECT state FROM interlock.handoff") == "begun"
    assert failover.cluster.catalog.value("SELECT reserved_version FROM interlock.cluster") == number
    # The way out that it names.
    assert failover.target.value("SELECT interlock.revoke_import(%s)", failover.move)
    assert failover.takers() == [failover.from_name]
    failover.run(after)
    if after == "--resume":
        failover.moved()
    else:
        assert failover.cluster.where(MOVED) == failover.from_name and failover.takers() == [failover.from_name]
        failover.cluster.assert_settled()


def test_a_source_that_comes_back_with_its_decision_is_driven_forward_though_the_import_was_revoked(failover):
    failover.killed("after-activated")
    assert failover.target.value("SELECT interlock.revoke_import(%s)", failover.move)
    assert not failover.target.value("SELECT interlock.revoke_import(%s)", failover.move)
    assert failover.takers() == [] and failover.states() == ("moved", "importing")
    failover.run("--resume")
    failover.moved()


def test_a_source_that_has_lost_slot_and_fences_is_not_taken_for_one_whose_marker_has_come(failover):
    failover.killed("after-drained")
    failover.source.sql("SELECT interlock.unfence_buckets(%s)", failover.move)
    failover.source.sql("DELETE FROM interlock.move_marker")
    failover.source.sql("UPDATE interlock.handoff SET fence = 0")
    failover.target.sql("ALTER SUBSCRIPTION " + failover.target.value("SELECT subname::text FROM pg_subscription") + " DISABLE")
    wait_until(lambda: not failover.source.value("SELECT active FROM pg_replication_slots"), 30, "nobody reads the slot")
    failover.source.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    failover.source.sql("UPDATE account SET balance = balance + 1 WHERE account_id = %s", failover.key)
    failover.run("--resume")
    failover.moved()


# --- the target -----------------------------------------------------------------------------------


def test_the_target_is_looked_at_again_before_the_rows_are_removed(failover):
    """Between the switch and the removal there may be a long wait for older transactions."""
    mover = failover.cluster.moving(MOVED, failover.to_name, stop="before-cleaned").stopped()
    failover.move = failover.cluster.move_id()
    before = failover.source.value("SELECT count(*) FROM account")
    failover.target.sql("UPDATE interlock.handoff SET state = 'importing'")
    assert f'shard "{failover.to_name}" has lost the buckets that it was given' in mover.go_on().end(expect=1)
    assert failover.source.value("SELECT count(*) FROM account") == before > 0
    failover.target.sql("UPDATE interlock.handoff SET state = 'active'")
    failover.run("--resume")
    failover.moved()


def test_a_subscription_that_has_gone_is_not_made_again_on_the_same_slot(failover):
    failover.killed("after-caught_up")
    name = failover.target.value("SELECT subname::text FROM pg_subscription")
    for change in ("DISABLE", "SET (slot_name = NONE)"):
        failover.target.sql(f"ALTER SUBSCRIPTION {name} {change}")
    failover.target.sql(f"DROP SUBSCRIPTION {name}")
    assert "copied" in failover.run("--resume")
    failover.moved()


# --- the catalog ----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["after-decided", "after-activated"])
@pytest.mark.parametrize("lost", ["the reservation", "the move"])
def test_a_catalog_that_has_lost_the_reservation_of_a_decided_move_reserves_it_again(failover, point, lost):
    failover.killed(point)
    catalog = failover.cluster.catalog
    decided = failover.source.value("SELECT route_version FROM interlock.handoff")
    failover.loses(catalog, LOSES_THE_RESERVATION)
    if lost == "the move":
        catalog.sql("DELETE FROM interlock.move_artefact")
        catalog.sql("DELETE FROM interlock.move")
        assert failover.apply().returncode == 1 and failover.states()[0] == "moved"
        catalog.sql("SELECT interlock.begin_move(%s, 'accounts', '{0}', %s, %s)", failover.move, failover.from_name, failover.to_name)
    done = failover.apply()
    assert done.returncode == 1 and f"interlock move --resume {failover.move}" in done.stdout + done.stderr
    assert failover.states()[0] == "moved"
    # With the move's record, the catalog has lost that the rows were compared; of an active target they cannot be any more.
    not_compared = lost == "the move" and point == "after-activated"
    assert "reserving it again" in failover.run("--resume", expect=int(not_compared))
    if not_compared:
        failover.run("--clean")
    assert catalog.value("SELECT route_version FROM interlock.cluster") == decided
    failover.moved()
    assert failover.apply().returncode == 0


def test_a_number_that_was_given_out_again_is_passed_by_and_the_source_refuses_it(failover):
    failover.killed("after-decided")
    catalog = failover.cluster.catalog
    failover.loses(catalog, LOSES_THE_RESERVATION)
    decided = failover.source.value("SELECT route_version FROM interlock.handoff")
    for _ in range(2):
        catalog.sql("SELECT interlock.publish(expected_version => interlock.next_version())")
    assert catalog.value("SELECT route_version FROM interlock.cluster") == decided + 1
    failover.run("--resume")
    assert catalog.value("SELECT route_version FROM interlock.cluster") == decided + 2
    assert failover.source.value("SELECT floor FROM interlock.shard_identity") == decided + 2
    with failover.source.connect() as stale:
        stale.execute("SELECT interlock.greet(%s)", (decided + 1,))
        with pytest.raises(errors.Error) as refused:
            stale.execute("SELECT FROM account")
        assert refused.value.sqlstate == "IL102"
    failover.moved()


def test_an_earlier_reservation_of_the_same_move_is_not_what_it_was_decided_under(failover):
    catalog = failover.cluster.catalog
    failover.killed("after-subscribed")
    assert catalog.value("SELECT interlock.reserve_version(%s)", failover.move) == 2
    catalog.sql("SELECT interlock.withdraw_version(%s)", failover.move)
    failover.killed("after-decided")
    assert failover.source.value("SELECT route_version FROM interlock.handoff") == 3
    # The catalog is one of when the first number had not been withdrawn yet.
    catalog.sql("UPDATE interlock.cluster SET reserved_version = 2, last_version = 2")
    catalog.sql("UPDATE interlock.move SET route_version = 2")
    failover.run("--resume")
    assert catalog.value("SELECT route_version FROM interlock.cluster") == 3
    failover.moved()


def test_a_catalog_that_has_lost_more_than_the_reservation_publishes_nothing(failover):
    failover.killed("after-decided").loses(failover.cluster.catalog, LOSES_THE_RESERVATION)
    # The target gave another bucket away, of which the catalog knows nothing.
    failover.target.sql("SELECT interlock.raise_floor(2)")
    said = failover.run("--resume", expect=1)
    assert "the catalog has lost route versions" in said and f'Shard "{failover.to_name}" gave buckets away under route version 2' in said
    assert failover.states() == ("moved", "importing")
    assert failover.cluster.catalog.value("SELECT reserved_version IS NULL AND route_version = 1 FROM interlock.cluster")
