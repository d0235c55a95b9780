"""Several buckets in a move, several moves at once, keyspaces side by side, back again at once; DDL meanwhile."""

import pytest

from support.router import SLACK
from support.shard import refusal
from support.wait import Stopwatch

BOTH = {"t": "k", "u": "k"}
TABLES = """CREATE TABLE t (k bigint PRIMARY KEY, v text);
            CREATE TABLE u (k bigint, n int, v text, PRIMARY KEY (k, n)) PARTITION BY LIST (n);
            CREATE TABLE u1 PARTITION OF u FOR VALUES IN (1); CREATE TABLE u2 PARTITION OF u DEFAULT"""
LOAD = """INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 800) g WHERE owned(g);
          INSERT INTO u SELECT g, n, 'v' FROM generate_series(1, 800) g, generate_series(1, 3) n WHERE owned(g)"""
# Of the shard's own rows: what is copied already must not be touched.
CHANGE = """UPDATE t SET v = v || '.' WHERE k % 2 = 0 AND owned(k); DELETE FROM t WHERE k % 7 = 0 AND owned(k);
            UPDATE u SET n = n + 10 WHERE k % 3 = 0 AND owned(k);
            INSERT INTO t SELECT g, 'new' FROM generate_series(2001, 2400) g WHERE owned(g)"""


@pytest.fixture
def family(movable):
    made = movable.family(TABLES, BOTH)
    made.load(LOAD)
    return made


def change(family):
    family.load(CHANGE)


def test_several_buckets_in_one_move(movable, family):
    buckets = [0, 6, 10, 14]
    mover = family.mover(buckets, "s1", stop="after-copied").stopped()
    change(family)
    expected = family.all_rows()
    mover.go_on().end()
    family.moved(buckets, "s0", "s1", expected)
    assert {bucket: family.owner(bucket) for bucket in (2, 4, 8, 12)} == dict.fromkeys((2, 4, 8, 12), "s0")
    # One version for all of them.
    assert len(movable.catalog.sql("""SELECT DISTINCT r.valid_from FROM interlock.route r JOIN interlock.keyspace k ON k.id = r.keyspace
                                       WHERE k.name = %s AND r.bucket = ANY (%s) AND r.valid_to IS NULL""", family.name, buckets)) == 1


def test_back_again_at_once_and_forth_again(movable, family):
    source, target = "s0", "s1"
    for turn in range(4):
        expected = family.all_rows()
        family.move(2, target)
        family.moved([2], source, target, expected)
        # Each owner's writers go on.
        family.on(target, "UPDATE t SET v = v || %s WHERE interlock.bucket_of(%s, k) = 2", str(turn), family.name)
        family.refused(source, "INSERT INTO t VALUES (%s, 'late')", family.keys(2)[0])
        source, target = target, source
    assert family.value("s0", "SELECT v FROM t WHERE interlock.bucket_of(%s, k) = 2 LIMIT 1", family.name).endswith("0123")


def test_rows_that_are_kept_are_in_the_way_of_a_move_back_until_they_are_cleaned(movable, family):
    expected = family.all_rows()
    family.move(2, "s1", "--keep-source", "1h")
    kept = family.rows("s0", "t", [2])
    assert kept == family.rows("s1", "t", [2]) != []
    # What the new owner's writers do does not come back to them.
    family.on("s1", "UPDATE t SET v = 'changed' WHERE interlock.bucket_of(%s, k) = 2", family.name)
    assert family.rows("s0", "t", [2]) == kept
    assert not [text for text in movable.leftovers() if text.startswith(("slot", "publication", "subscription", "replication"))]
    done = family.move(2, "s0", expect=1)
    assert "--clean" in done.stdout + done.stderr
    assert family.owner(2) == "s1" and family.rows("s0", "t", [2]) == kept
    movable.move("--clean", movable.unfinished(family.name)[0])
    assert family.rows("s0", "t", [2]) == []
    family.move(2, "s0")
    expected = [(table, row) for table, row in expected if table == "u"]
    assert [(table, row) for table, row in family.all_rows() if table == "u"] == expected
    assert family.owner(2) == "s0" and movable.leftovers() == []


def test_two_moves_of_one_shard_at_once(movable, family):
    first = family.mover(2, "s1", stop="after-copied").stopped()
    change(family)
    second = family.mover([4, 6], "s1", stop="after-subscribed").stopped()
    family.on("s0", "UPDATE t SET v = v || '+'")
    first.go_on().end()
    assert family.owner(2) == "s1" and family.owner(4) == "s0"
    family.on("s0", "UPDATE t SET v = v || '+' WHERE interlock.bucket_of(%s, k) = 4", family.name)
    family.on("s1", "UPDATE t SET v = v || '+' WHERE interlock.bucket_of(%s, k) = 2", family.name)
    expected = family.all_rows()
    second.go_on().end()
    family.moved([2, 4, 6], "s0", "s1", expected)


def test_two_shards_exchange_buckets_at_once(movable, family):
    there = family.mover([2, 4], "s1", stop="after-copied").stopped()
    back = family.mover([3, 5], "s0", stop="after-copied").stopped()
    change(family)
    expected = family.all_rows()
    there.go_on()
    back.go_on()
    there.end()
    back.end()
    family.moved([2, 4], "s0", "s1", expected)
    family.moved([3, 5], "s1", "s0", expected)


def test_a_bucket_is_in_one_move_at_a_time(movable, family):
    first = family.mover([2, 4], "s1", stop="after-copied").stopped()
    done = family.move([4, 6], "s1", expect=1)
    [running] = movable.unfinished(family.name)
    assert running in done.stdout + done.stderr
    # Not even the same move a second time, while the first mover lives.
    family.move([2, 4], "s1", expect=1)
    expected = family.all_rows()
    first.go_on().end()
    family.moved([2, 4], "s0", "s1", expected)
    assert family.owner(6) == "s0"


def test_moves_of_several_keyspaces_at_once(movable):
    families = [movable.family(TABLES.replace("bigint", kind), BOTH, key_type=kind) for kind in ("bigint", "text", "bigint")]
    families[1].load("INSERT INTO t SELECT 'k' || g, 'v' FROM generate_series(1, 500) g WHERE owned('k' || g);"
                     "INSERT INTO u SELECT 'k' || g, 1, 'v' FROM generate_series(1, 500) g WHERE owned('k' || g)")
    families[0].load(LOAD)
    families[2].load(LOAD)
    movers = [family.mover(2, "s1", stop="after-copied").stopped() for family in families]
    for family in families:
        family.on("s0", "UPDATE t SET v = v || '!'; DELETE FROM u WHERE n = 1 AND length(k::text) < 3")
    expected = [family.all_rows() for family in families]
    for mover in movers:
        mover.go_on()
    for mover in movers:
        mover.end()
    for family, rows in zip(families, expected):
        family.moved([2], "s0", "s1", rows)
        assert family.rows("s1", "t", [2])


# -- DDL ----------------------------------------------------------------------------------------------


CHANGES = ["ALTER TABLE t ADD COLUMN more int", "ALTER TABLE t ALTER v SET NOT NULL", "ALTER TABLE t REPLICA IDENTITY FULL",
           "DROP TABLE t", "ALTER TABLE t RENAME v TO w", "CREATE TABLE u3 PARTITION OF u FOR VALUES IN (33)",
           "ALTER TABLE u DETACH PARTITION u1", "CREATE INDEX ON t (v)", "ALTER TABLE u1 ADD CHECK (n = 1)",
           "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"]


def test_ddl_and_truncate_are_refused_on_both_sides_until_the_move_is_over(movable, family):
    mover = family.mover(2, "s1", stop="after-copied").stopped()
    expected = family.all_rows()
    for shard in ("s0", "s1"):
        for text in CHANGES:
            with refusal("55006") as caught:
                family.on(shard, text)
            assert family.name in str(caught[0])
        for table in ("t", "u", "u1"):
            with refusal("IL103"):
                family.on(shard, f"SET interlock.allow_truncate = on; TRUNCATE {table}")
    # What is not of the keyspace may be changed.
    for shard in ("s0", "s1"):
        family.on(shard, "CREATE TABLE beside (k bigint); ALTER TABLE beside ADD v int; TRUNCATE beside; DROP TABLE beside")
    mover.go_on().end()
    family.moved([2], "s0", "s1", expected)
    for shard in ("s0", "s1"):
        family.on(shard, "ALTER TABLE t ADD COLUMN more int DEFAULT 5; CREATE INDEX ON t (v); CREATE TABLE u3 PARTITION OF u FOR VALUES IN (33)")
    # And a move with the new columns and partitions.
    family.on("s1", "INSERT INTO u SELECT k, 33, 'v' FROM t WHERE interlock.bucket_of(%s, k) = 2", family.name)
    expected = family.all_rows()
    family.move(2, "s0")
    family.moved([2], "s1", "s0", expected)


def test_ddl_is_free_again_when_a_move_is_given_up(movable, family):
    mover = family.mover(2, "s1", stop="after-copied").stopped()
    expected = family.all_rows()
    mover.kill()
    with refusal("55006"):
        family.on("s0", "ALTER TABLE t ADD COLUMN more int")
    movable.abort(family.name)
    assert family.owner(2) == "s0" and movable.leftovers() == []
    assert family.rows("s1", "t", [2]) == family.rows("s1", "u", [2]) == []
    family.same(expected)
    for shard in ("s0", "s1"):
        family.on(shard, "ALTER TABLE t ADD COLUMN more int")
    # Aborted is not for ever: another move of the same.
    expected = family.all_rows()
    family.move(2, "s1")
    family.moved([2], "s0", "s1", expected)


@pytest.mark.parametrize("when", ["copy", "stream"])
def test_a_row_that_the_target_does_not_take_ends_the_move_and_not_the_writers(movable, when):
    """The same CHECK on both sides, as far as one can see; but not the same function."""
    schema = """CREATE FUNCTION fits(text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT {} $$;
                CREATE TABLE t (k bigint PRIMARY KEY, v text CONSTRAINT only_here CHECK (fits(v)))"""
    family = movable.family((schema.format("true"), schema.format("$1 <> 'poison'")), {"t": "k"})
    family.load("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 400) g WHERE owned(g)")
    key = family.keys(2)[0]
    poison = "UPDATE t SET v = 'poison' WHERE k = %s"
    if when == "copy":
        family.on("s0", poison, key)
        said = family.move(2, "s1", expect=1).stderr
        # Whoever looks knows which row of which table.
        assert f"{family.name}.t" in said and "only_here" in said and "poison" in said
    else:
        mover = family.mover(2, "s1", stop="after-copied").stopped()
        mark = movable.instances["s1"].log_mark()
        family.on("s0", poison, key)
        with Stopwatch() as watch:
            said = mover.go_on().end(expect=1)
        # Only the target's server knows which row; it is said where to look.
        assert "failed" in said and "log" in said
        assert "only_here" in movable.instances["s1"].log_since(mark)
        assert watch.seconds < 30 * SLACK
    # Nobody else notices: the source's writers go on, in this bucket too.
    family.on("s0", "UPDATE t SET v = v || '.'")
    expected = family.all_rows()
    movable.abort(family.name)
    assert family.owner(2) == "s0" and movable.leftovers() == []
    family.same(expected)
    assert family.rows("s1", "t", [2]) == []
    # It can be had once the reason is gone.
    family.move(2, "s1")
    family.moved([2], "s0", "s1", expected)
