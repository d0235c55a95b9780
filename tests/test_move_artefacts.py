"""Whatever a move makes on a shard is recorded before it is made: what fails, or dies, halfway is found and removed."""

import pytest

SOURCE, TARGET = "s0", "s1"
REFUSING = """
    CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not here'; END $$;
    CREATE EVENT TRIGGER refusing ON ddl_command_start WHEN TAG IN ('{}') EXECUTE FUNCTION refuse();
"""


class Filled:
    """No replication slot is left."""

    said = "all replication slots are in use"

    def __init__(self, instance):
        self.instance = instance
        instance.sql("SELECT pg_create_physical_replication_slot('taken' || n)"
                     " FROM generate_series(1, current_setting('max_replication_slots')::int) n")

    def end(self):
        self.instance.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = 'physical'")


class Refused:
    """A trigger of the database refuses the statement."""

    said = "not here"

    def __init__(self, instance, tag):
        self.instance = instance
        instance.sql(REFUSING.format(tag))

    def end(self):
        self.instance.sql("DROP EVENT TRIGGER refusing; DROP FUNCTION refuse()")


class Locked:
    """Somebody holds a table that the import has to announce itself at."""

    said = "lock timeout"

    def __init__(self, instance):
        self.session = instance.connect(autocommit=False)
        self.session.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")

    def end(self):
        self.session.close()


# What is made -> at which shard, before which step, what keeps it from being made, and how to see that it is not there.
MADE = {
    "rows": (TARGET, "prepared", Locked, "SELECT * FROM interlock.handoff"),
    "publication": (SOURCE, "published_tables", lambda instance: Refused(instance, "CREATE PUBLICATION"), "SELECT * FROM pg_publication"),
    "slot": (SOURCE, "slot", Filled, "SELECT * FROM pg_replication_slots WHERE slot_type = 'logical'"),
    "subscription": (TARGET, "subscribed", lambda instance: Refused(instance, "CREATE SUBSCRIPTION"), "SELECT * FROM pg_subscription"),
}


def recorded(cluster):
    return cluster.catalog.sql("SELECT kind, d.name FROM interlock.move_artefact a JOIN interlock.shard d ON d.id = a.shard")


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("way", ["abort", "resume"])
def test_what_cannot_be_made_is_recorded_already_and_what_was_made_is_removed(moving, kind, way):
    shard, step, obstacle, query = MADE[kind]
    moving.fill(moved=0, near=2)
    before = vars(moving.rows())
    mover = moving.moving(0, TARGET, "--lock-timeout", "300ms", stop=f"before-{step}").stopped()
    in_the_way = obstacle(moving.instances[shard])
    try:
        said = mover.go_on().end(expect=1)
    finally:
        in_the_way.end()
    assert in_the_way.said in said, said
    assert moving.instances[shard].sql(query) == []
    assert (kind, shard) in recorded(moving)
    assert kind in moving.mover("--status").end()
    if way == "abort":
        moving.abort()
    else:
        moving.move(0, TARGET)
    assert recorded(moving) == []
    moving.assert_settled()
    assert moving.where(0) == (SOURCE if way == "abort" else TARGET)
    assert {name: sorted(rows) for name, rows in vars(moving.rows()).items()} == {name: sorted(rows) for name, rows in before.items()}


def test_at_no_step_is_there_anything_that_is_not_recorded(moving):
    """Nor is it forgotten before it is gone."""
    moving.fill(moved=0, near=2)
    there = {
        ("slot", SOURCE): "SELECT EXISTS (SELECT FROM pg_replication_slots) OR EXISTS (SELECT FROM interlock.move_slot)",
        ("publication", SOURCE): "SELECT EXISTS (SELECT FROM pg_publication)",
        ("subscription", TARGET): "SELECT EXISTS (SELECT FROM pg_subscription)",
        ("rows", TARGET): "SELECT EXISTS (SELECT FROM interlock.misplaced('account'))",
    }
    seen = set()
    for step in ("recorded_slot", "published_tables", "slot", "copied", "subscribed", "drained", "decided", "routed", "unsubscribed", "cleaned"):
        mover = moving.moving(0, TARGET, "--max-pause", "20s", stop=f"after-{step}").stopped()
        if step == "unsubscribed":
            # From here on the source's rows are what is left over.
            there["rows", SOURCE] = there["rows", TARGET]
        for (kind, shard), query in there.items():
            if moving.instances[shard].value(query):
                seen.add((kind, shard))
                assert (kind, shard) in recorded(moving), f"{kind} on {shard} after {step}"
        mover.kill()
    assert seen == set(there)
    moving.move(0, TARGET)
    moving.assert_settled()
