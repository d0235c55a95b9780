"""A standby takes the place of the source or of the target in the middle of a move: nothing is lost without a word.

INTERLOCK_SOAK=1 has more moments.
"""

import pytest

from support.move_case import SOAK
from support.standby import Standby, either
from support.wait import wait_until

BUCKET, SOURCE, TARGET = 0, "s0", "s1"


class Failover:
    """A cluster of which one shard has a standby, and a move of bucket 0 from s0 to s1."""

    def __init__(self, cluster, side):
        self.cluster, self.side = cluster, side
        cluster.start_instances().create_tables().describe()
        cluster.apply()
        self.primary = cluster.instances[side]
        self.standby = cluster.instances["standby"] = Standby(self.primary, f"{side}b")
        cluster.catalog.sql("SELECT interlock.set_shard_conninfo(%s, %s)", side, either(self.primary, self.standby))
        cluster.publish()
        cluster.new_router().start()
        cluster.fill(moved=BUCKET, near=2)
        self.keys = cluster.groups["moved"]
        self.standby.catch_up()

    def mover(self, stop, *arguments):
        return self.cluster.moving(BUCKET, TARGET, *arguments, stop=stop).stopped()

    def write(self, number=0, owner="late"):
        self.cluster.instances[SOURCE].sql("UPDATE account SET owner = %s WHERE account_id = %s", owner, self.keys[number])

    def owner_of_row(self, number=0, shard=TARGET):
        return self.cluster.instances[shard].value("SELECT owner FROM account WHERE account_id = %s", self.keys[number])

    def applied(self):
        """The target has all that the source has written so far, and has said so: it is not asked for again."""
        position = self.cluster.instances[SOURCE].value("SELECT pg_current_wal_lsn()::text")
        wait_until(lambda: self.cluster.instances[SOURCE].value(
            "SELECT bool_and(confirmed_flush_lsn >= %s::pg_lsn) FROM pg_replication_slots WHERE slot_type = 'logical'", position),
            60, "the target has confirmed it")

    def fail_over(self):
        self.primary.kill()
        self.standby.promote()
        self.cluster.instances["lost"], self.cluster.instances[self.side] = self.primary, self.standby
        del self.cluster.instances["standby"]

    def content(self):
        return {name: sorted(rows) for name, rows in vars(self.cluster.rows()).items()}

    def owners(self):
        """The accounts' column `owner`, where the bucket is published."""
        return sorted(self.cluster.instances[self.cluster.where(BUCKET)].sql(
            "SELECT account_id, owner FROM account WHERE account_id = ANY (%s)", self.keys))

    def settled_at(self, shard):
        assert self.cluster.where(BUCKET) == shard
        self.cluster.assert_settled()
        wait_until(lambda: self.cluster.pg_client().query(f"SELECT balance FROM account WHERE account_id = {self.keys[0]}").rows,
                   30, "the router serves it")


def moments(chosen, others):
    return chosen + others if SOAK else chosen


@pytest.fixture
def failover(make_moving):
    return lambda side: Failover(make_moving(), side)


# -- the source --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stop", "alive"), moments([("after-subscribed", True), ("after-drained", False)], [("after-copied", False), ("after-fenced", True)]))
def test_the_sources_standby_has_no_slot_and_the_rows_are_copied_again(failover, stop, alive):
    case = failover(SOURCE)
    before = case.content()
    mover = case.mover(stop, "--max-pause", "2s")
    late = stop in ("after-copied", "after-subscribed")
    if late:
        case.write()
    case.standby.catch_up()
    if not alive:
        mover.kill()
    case.fail_over()
    said = mover.go_on().end() if alive else case.cluster.move(BUCKET, TARGET).stdout
    assert said.count("copied ") == 1 + alive, said
    case.settled_at(TARGET)
    assert case.content() == before and case.owner_of_row() == ("late" if late else "owner")


def test_a_move_whose_source_has_failed_over_can_be_taken_back(failover):
    case = failover(SOURCE)
    case.mover("after-subscribed").kill()
    case.standby.catch_up()
    before = case.content(), case.owners()
    case.fail_over()
    case.cluster.abort()
    case.settled_at(SOURCE)
    assert (case.content(), case.owners()) == before


def test_what_the_sources_standby_has_lost_does_not_live_on_at_the_target(failover):
    """Then the target is ahead of the source; a write that is lost with the primary is lost on both sides."""
    case = failover(SOURCE)
    case.mover("after-subscribed").kill()
    case.standby.catch_up()
    case.standby.cut_off()
    before = case.content(), case.owners()
    case.write()
    wait_until(lambda: case.owner_of_row() == "late", 30, "the target has it")
    case.fail_over()
    case.cluster.move(BUCKET, TARGET)
    case.settled_at(TARGET)
    assert (case.content(), case.owners()) == before


@pytest.mark.parametrize("stop", ["after-decided", "after-activated"])
def test_a_decision_that_the_sources_standby_has_is_carried_on(failover, stop):
    case = failover(SOURCE)
    before = case.content()
    case.mover(stop, "--max-pause", "20s").kill()
    case.standby.catch_up()
    case.fail_over()
    case.cluster.move(BUCKET, TARGET)
    case.settled_at(TARGET)
    assert case.content() == before


def test_a_decision_that_the_sources_standby_has_lost_is_made_anew(failover):
    """It counts its fences as the lost one did: the marker of that one must not be taken for its own."""
    case = lost_decision(failover, "after-decided")
    assert case.cluster.states(BUCKET) == {SOURCE: "owned", TARGET: "importing"}
    case.write(owner="written meanwhile")
    case.cluster.move(BUCKET, TARGET)
    case.settled_at(TARGET)
    assert case.content() == case.before and case.owner_of_row() == "written meanwhile"


def test_two_owners_after_a_lost_decision_are_told_and_neither_loses_a_row(failover):
    case = lost_decision(failover, "after-activated")
    assert case.cluster.states(BUCKET) == {SOURCE: "owned", TARGET: "owned"}
    case.write(owner="written meanwhile")
    for done in (case.cluster.move(BUCKET, TARGET, expect=1), case.cluster.abort(expect=1)):
        assert f"shard \"{SOURCE}\" has lost the decision of move" in done.stderr and "both own the buckets" in done.stderr, done.stderr
    # Clients go to where it is published, the rows of both sides are as they were.
    assert case.cluster.where(BUCKET) == SOURCE and case.cluster.states(BUCKET) == {SOURCE: "owned", TARGET: "owned"}
    assert case.owner_of_row(shard=SOURCE) == "written meanwhile" and case.owner_of_row(shard=TARGET) == "owner"


def lost_decision(failover, stop):
    """The source has decided (and the target taken over) when a standby is promoted that knows nothing of it."""
    case = failover(SOURCE)
    case.before = case.content()
    case.mover("after-caught_up").kill()
    case.standby.catch_up()
    case.standby.cut_off()
    case.mover(stop, "--max-pause", "60s").kill()
    case.fail_over()
    return case


# -- the target --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verify", "alive"), moments([("before", False), ("after", True)], [("before", True), ("after", False)]))
def test_what_the_targets_standby_has_lost_is_copied_again(failover, verify, alive):
    """The slot does not go back: it has been told that the lost one had it."""
    case = failover(TARGET)
    mover = case.mover("after-subscribed", "--verify", verify)
    case.standby.catch_up()
    case.standby.cut_off()
    case.write()
    case.applied()
    before = case.content()
    if not alive:
        mover.kill()
    case.fail_over()
    assert case.owner_of_row() == "owner", "the promoted one does not have it"
    said = mover.go_on().end() if alive else case.cluster.move(BUCKET, TARGET, "--verify", verify).stdout
    assert "is another server than the one that was copied to" in said, said
    case.settled_at(TARGET)
    assert case.content() == before and case.owner_of_row() == "late"


def test_a_move_whose_target_has_failed_over_can_be_taken_back(failover):
    case = failover(TARGET)
    case.mover("after-subscribed").kill()
    case.standby.catch_up()
    before = case.content()
    case.fail_over()
    case.cluster.abort()
    case.settled_at(SOURCE)
    assert case.content() == before


@pytest.mark.parametrize("stop", moments(["after-decided", "after-routed", "after-unsubscribed"], ["after-activated"]))
def test_a_decided_move_brings_the_rows_again_to_a_target_that_has_lost_them(failover, stop):
    """With them it has lost the marker, which does not come a second time by itself."""
    case = failover(TARGET)
    before = case.content()
    case.mover("after-caught_up").kill()
    case.standby.catch_up()
    case.standby.cut_off()
    case.write()
    mover = case.mover(stop, "--max-pause", "60s")
    if stop != "after-unsubscribed":
        case.applied()
    mover.kill()
    case.fail_over()
    assert case.cluster.states(BUCKET) == {SOURCE: "moved", TARGET: "importing"}
    assert case.owner_of_row() == "owner", "the promoted one does not have it"
    done = case.cluster.move(BUCKET, TARGET)
    assert "copied 6 rows" in done.stdout and "verified: 6 rows" in done.stdout, done.stdout
    case.settled_at(TARGET)
    assert case.content() == before and case.owner_of_row() == "late"


@pytest.mark.parametrize("stop", moments(["after-copied", "after-subscribed"], ["after-prepared", "after-slot", "after-verified"]))
def test_a_mover_that_dies_while_it_brings_decided_rows_again_is_resumed(failover, stop):
    case = failover(TARGET)
    before = case.content()
    case.mover("after-caught_up").kill()
    case.standby.catch_up()
    case.standby.cut_off()
    case.write()
    mover = case.mover("after-decided", "--max-pause", "60s")
    case.applied()
    mover.kill()
    case.fail_over()
    case.mover(stop).kill()
    assert case.cluster.states(BUCKET) == {SOURCE: "moved", TARGET: "importing"}
    case.cluster.move(BUCKET, TARGET)
    case.settled_at(TARGET)
    assert case.content() == before and case.owner_of_row() == "late"


def test_the_sources_rows_are_not_removed_while_the_target_has_lost_what_it_was_given(failover):
    case = failover(TARGET)
    case.mover("after-caught_up", "--keep-source", "1d").kill()
    case.standby.catch_up()
    case.standby.cut_off()
    case.cluster.move(BUCKET, TARGET)
    case.fail_over()
    move = case.cluster.move_id()
    for arguments in (["--clean", move], ["--clean"]):
        done = case.cluster.mover(*arguments).end(expect=1 if move in arguments else None)
        assert f"shard \"{TARGET}\" has lost the buckets that it was given" in done or move not in arguments, done
    kept = case.cluster.instances[SOURCE].value("SELECT count(*) FROM account WHERE account_id = ANY (%s)", case.keys)
    assert kept == len(case.keys)
    # The way out that it tells.
    case.cluster.mover("--resume", move).end()
    assert case.cluster.states(BUCKET) == {SOURCE: "moved", TARGET: "owned"}
    case.cluster.clean(move)
    case.settled_at(TARGET)
