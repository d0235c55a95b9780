"""Tables with an outbox: partitions and children, columns that go, streams apart."""

import threading

import pytest

from support.outbox import SEGMENTS, drain_batch, identity, mirrored, rotate, seqs, take, transaction
from support.wait import wait_until

PARTITIONED = """
    CREATE TABLE t (id int, region int, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
    CREATE TABLE t2 (v int, gone int, region int NOT NULL, id int NOT NULL);
    ALTER TABLE t2 DROP COLUMN gone;
    ALTER TABLE t ATTACH PARTITION t2 FOR VALUES IN (2);
    CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3, 4) PARTITION BY RANGE (id);
    CREATE TABLE t3_low PARTITION OF t3 FOR VALUES FROM (0) TO (100);
    CREATE TABLE t3_high PARTITION OF t3 FOR VALUES FROM (100) TO (1000);
"""


@pytest.fixture
def parts(outbox):
    """t in partitions of partitions, with the columns in another order in one of them."""
    outbox.sql(PARTITIONED)
    outbox.attach("t", ["v"])
    return outbox


def row(number, region, v=None):
    return {"id": number, "region": region, "v": v}


def truth(outbox, table="t"):
    return [value for value, in outbox.sql(f"SELECT to_jsonb(x) FROM (SELECT id, region, v FROM {table}) x ORDER BY to_jsonb(x)::text")]


def agrees(outbox, stream="default"):
    """The records of the stream, one after the other, give the table."""
    made = mirrored(outbox.records(stream))
    assert sorted(made, key=str) == sorted(truth(outbox), key=str)
    return True


# --- families ----------------------------------------------------------------------------------


def test_rows_of_partitions_are_recorded_under_the_name_of_the_table_that_was_attached(parts):
    parts.sql("INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3), (103, 4, 4)")
    parts.sql("INSERT INTO t1 VALUES (5, 1, 5); INSERT INTO t2 (id, region, v) VALUES (6, 2, 6); INSERT INTO t3_high VALUES (107, 3, 7)")
    parts.sql("UPDATE t SET v = v * 10 WHERE id < 7; DELETE FROM t3 WHERE id = 3; UPDATE t2 SET v = 0 WHERE id = 6")
    assert {record.table_name for record in parts.records()} == {"public.t"}
    assert parts.records()[1].new == row(2, 2, 2)
    assert agrees(parts)


def test_a_row_that_moves_to_another_partition_is_there_in_the_end(parts):
    parts.sql("INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (50, 3, 3)")
    parts.sql("UPDATE t SET region = region + 1 WHERE region < 3")
    parts.sql("UPDATE t SET id = 150 WHERE id = 50")
    # The same key in another partition: of the partitions' own bounds, not of the key.
    parts.sql("UPDATE t SET region = 4, v = 9 WHERE id = 150")
    assert agrees(parts)
    with parts.connect() as session, session.transaction():
        session.execute("UPDATE t SET region = 1")
        session.execute("SAVEPOINT s; UPDATE t SET region = 2; ROLLBACK TO s")
        session.execute("UPDATE t SET region = 4 WHERE id = 1")
    assert agrees(parts)


def test_a_row_that_moves_while_its_key_stays_the_same_is_there_in_the_end(outbox):
    """By seq the deletion there comes before the insertion here, or a consumer would lose the row."""
    outbox.sql("CREATE TABLE t (id int, region int, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
               "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)")
    outbox.attach("t", ["v"])
    outbox.sql("CREATE TABLE u (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
               "CREATE TABLE u1 PARTITION OF u FOR VALUES FROM (0) TO (10); CREATE TABLE u2 PARTITION OF u FOR VALUES FROM (10) TO (20)")
    outbox.attach("u", stream="u")
    outbox.sql("INSERT INTO t VALUES (1, 1, 1); INSERT INTO u VALUES (1, 1), (11, 2)")
    outbox.sql("UPDATE t SET region = 3 - region")
    outbox.sql("UPDATE u SET id = 15 WHERE id = 1; UPDATE u SET id = 1 WHERE id = 11; UPDATE u SET id = 11 WHERE id = 15")
    assert agrees(outbox)
    assert mirrored(outbox.records("u")) == [{"id": 1, "v": 2}, {"id": 11, "v": 1}]


def test_new_partitions_have_the_outbox_from_the_start(parts):
    parts.sql("CREATE TABLE t5 PARTITION OF t FOR VALUES IN (5); INSERT INTO t VALUES (1, 5, 1)")
    parts.sql("CREATE TABLE t3_more PARTITION OF t3 FOR VALUES FROM (1000) TO (2000); INSERT INTO t VALUES (1500, 3, 1)")
    parts.sql("CREATE TABLE t6 (v int, id int NOT NULL, region int NOT NULL) PARTITION BY RANGE (id);"
              "CREATE TABLE t6_all PARTITION OF t6 DEFAULT;"
              "ALTER TABLE t ATTACH PARTITION t6 FOR VALUES IN (6); INSERT INTO t VALUES (1, 6, 1)")
    assert agrees(parts) and parts.count() == 3
    for table in ("t5", "t6", "t3_more"):
        parts.sql(f"TRUNCATE {table}")
    assert truth(parts) == [] and agrees(parts) and parts.count() == 6


@pytest.mark.parametrize("way", ["", " CONCURRENTLY"])
def test_a_detached_partition_is_recorded_no_longer_and_its_rows_are_gone(parts, way):
    """To who reads the table, which is what consumers mirror."""
    parts.sql("INSERT INTO t VALUES (1, 1, 1), (50, 3, 3), (2, 2, 2)")
    parts.sql("ALTER TABLE t DETACH PARTITION t1" + way)
    parts.sql("INSERT INTO t1 VALUES (2, 1, 2); DELETE FROM t1 WHERE id = 2; UPDATE t1 SET v = 4")
    parts.sql("ALTER TABLE t DETACH PARTITION t3" + way)
    parts.sql("INSERT INTO t3_low VALUES (60, 3, 3); TRUNCATE t3; TRUNCATE t1")
    assert truth(parts) == [row(2, 2, 2)] and agrees(parts)
    assert parts.sql("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'interlock.outbox%' AND"
                     " tgrelid::regclass::text NOT IN ('t', 't2')") == []


def test_an_attached_partition_brings_its_rows(parts):
    parts.sql("ALTER TABLE t DETACH PARTITION t3; INSERT INTO t3_low VALUES (60, 3, 3); INSERT INTO t3_high VALUES (160, 4, 4)")
    parts.sql("ALTER TABLE t ATTACH PARTITION t3 FOR VALUES IN (3, 4)")
    assert len(truth(parts)) == 2 and agrees(parts)
    parts.sql("INSERT INTO t3_low VALUES (61, 3, 3); TRUNCATE t3")
    assert truth(parts) == [] and agrees(parts)


def test_a_partition_that_is_dropped_with_its_rows(parts):
    """The rows of a table that is dropped cannot be read any more: detach it first, says docs/outbox.md."""
    parts.sql("INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)")
    parts.sql("ALTER TABLE t DETACH PARTITION t1; DROP TABLE t1")
    assert truth(parts) == [row(2, 2, 2)] and agrees(parts)
    parts.sql("DROP TABLE t2")
    assert [record.op for record in parts.records()] == ["I", "I", "D"]
    parts.sql("INSERT INTO t VALUES (3, 3, 3)")
    assert parts.records()[-1].new == row(3, 3, 3)


def test_a_truncate_of_a_partition_or_of_all_of_them_deletes_their_rows(parts):
    parts.sql("INSERT INTO t SELECT i, 1 + i % 4, i FROM generate_series(1, 200) i")
    parts.sql("TRUNCATE t1, t3_low")
    assert agrees(parts)
    parts.sql("TRUNCATE t2; TRUNCATE t")
    assert truth(parts) == [] and agrees(parts) and parts.count() == 400


def test_children_by_inheritance_belong_to_the_table_too(outbox):
    outbox.sql("""
        CREATE TABLE t (id int PRIMARY KEY, region int, v int);
        CREATE TABLE child (extra text, PRIMARY KEY (id)) INHERITS (t);
    """)
    outbox.attach("t", ["v", "region"])
    outbox.sql("""
        CREATE TABLE later (PRIMARY KEY (id)) INHERITS (t);
        CREATE TABLE adopted (v int, region int, id int PRIMARY KEY);
        ALTER TABLE adopted INHERIT t;
        INSERT INTO t VALUES (1, 1, 1);
        INSERT INTO child VALUES (2, 2, 2, 'x');
        INSERT INTO later VALUES (3, 3, 3);
        INSERT INTO adopted (id, region, v) VALUES (4, 4, 4);
        UPDATE t SET v = v + 1;
    """)
    assert agrees(outbox) and outbox.count() == 8
    outbox.sql("TRUNCATE ONLY t")
    assert agrees(outbox) and len(truth(outbox)) == 3
    outbox.sql("TRUNCATE t")
    assert agrees(outbox) and truth(outbox) == []
    outbox.clear()
    outbox.sql("INSERT INTO adopted (id) VALUES (4); ALTER TABLE adopted NO INHERIT t; INSERT INTO adopted (id) VALUES (5)")
    assert truth(outbox) == [] and agrees(outbox)
    outbox.sql("ALTER TABLE adopted INHERIT t")
    assert len(truth(outbox)) == 2 and agrees(outbox)


# --- columns and tables that go ----------------------------------------------------------------


def test_a_column_that_is_not_listed_may_go_and_come(outbox):
    outbox.sql("CREATE TABLE t (x int, id int PRIMARY KEY, y text, v int, region int)")
    outbox.attach("t", ["v", "region"])
    with outbox.connect() as session:
        session.execute("INSERT INTO t (id, v) VALUES (1, 1)")
        outbox.sql("ALTER TABLE t DROP COLUMN x; ALTER TABLE t ADD COLUMN z int DEFAULT 7")
        session.execute("UPDATE t SET v = 2")
        outbox.sql("ALTER TABLE t RENAME y TO yy; ALTER TABLE t ALTER z TYPE bigint")
        session.execute("UPDATE t SET v = 3")
        session.execute("UPDATE t SET z = 8, yy = 'y'")
    assert [record.new["v"] for record in outbox.records()] == [1, 2, 3] and agrees(outbox)


def never_wrong(outbox, write, expected):
    """After a change of the table: the write is refused, or its record is right. A new outbox_attach mends it."""
    try:
        outbox.sql(write)
    except Exception as error:  # noqa: BLE001
        assert error.diag.sqlstate in ("42703", "55000", "42704", "0A000", "2BP01", "F0000"), error
        return False
    assert outbox.records()[-1].new == expected
    return True


@pytest.mark.parametrize("change, columns, expected", [
    ("ALTER TABLE t RENAME v TO w", ["w", "region"], {"id": 1, "w": 5, "region": 2}),
    ("ALTER TABLE t DROP COLUMN v", ["region"], {"id": 1, "region": 5}),
    ("ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text", ["v", "region"], {"id": 1, "v": "5", "region": 2}),
    ("ALTER TABLE t ALTER v TYPE text", ["v", "region"], {"id": 1, "v": "5", "region": 2}),
    ("ALTER TABLE t RENAME id TO number", ["v", "region"], {"number": 1, "v": 5, "region": 2}),
])
def test_a_listed_column_that_changes_never_leads_to_wrong_records(outbox, change, columns, expected):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int, region int)")
    outbox.attach("t", ["v", "region"])
    with outbox.connect() as session:
        session.execute("INSERT INTO t VALUES (1, 1, 2)")
        try:
            outbox.sql(change)
        except Exception as error:  # noqa: BLE001  (a drop may be refused outright)
            assert error.diag.sqlstate in ("2BP01", "55000"), error
            return
        column = next(name for name in expected if name not in ("id", "number") and expected[name] in (5, "5"))
        write = f"UPDATE t SET {column} = 5"
        never_wrong(outbox, write, expected)
        outbox.attach("t", columns)
        outbox.sql(f"UPDATE t SET {column} = NULL")
        session.execute(write)  # with a plan and a cache from before
        assert outbox.records()[-1].new == expected


def test_a_column_that_is_added_to_a_table_of_which_all_are_recorded(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    outbox.attach("t")
    with outbox.connect() as session:
        session.execute("INSERT INTO t VALUES (1, 1)")
        outbox.sql("ALTER TABLE t ADD COLUMN w int")
        session.execute("UPDATE t SET w = 5")
    outbox.attach("t")
    outbox.sql("UPDATE t SET w = 6")
    assert outbox.records()[-1].new == {"id": 1, "v": 1, "w": 6}


def test_a_table_that_is_renamed_is_recorded_under_its_new_name(outbox):
    outbox.sql("CREATE SCHEMA s; CREATE TABLE t (id int PRIMARY KEY)")
    outbox.attach("t")
    with outbox.connect() as session:
        session.execute("INSERT INTO t VALUES (1)")
        outbox.sql("ALTER TABLE t RENAME TO u; ALTER TABLE u SET SCHEMA s")
        session.execute("INSERT INTO s.u VALUES (2)")
        outbox.sql("ALTER SCHEMA s RENAME TO z")
        session.execute("INSERT INTO z.u VALUES (3)")
    assert [record.table_name for record in outbox.records()] == ["public.t", "s.u", "z.u"]


def test_a_table_that_is_dropped_is_forgotten_and_its_records_are_not(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    outbox.attach("t")
    outbox.attach("u")
    outbox.sql("INSERT INTO t VALUES (1); INSERT INTO u VALUES (2); DROP TABLE t")
    assert outbox.sql("SELECT relid::regclass::text FROM interlock.outbox_table") == [("u",)]
    assert [record.table_name for record in outbox.clear()] == ["public.t", "public.u"]


def test_a_table_that_is_rewritten_or_made_anew_changes_no_row(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int, region int); INSERT INTO t VALUES (1, 1, 1)")
    outbox.attach("t")
    outbox.sql("VACUUM FULL t")
    outbox.sql("CLUSTER t USING t_pkey; ALTER TABLE t ALTER region TYPE bigint")
    assert outbox.count() == 0
    outbox.sql("UPDATE t SET v = 2")
    assert outbox.brief() == [("U", row(1, 1, 1), row(1, 1, 2))]


# --- attaching and detaching -------------------------------------------------------------------


def triggers(outbox):
    return outbox.sql("SELECT oid, tgname FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'interlock.outbox%' ORDER BY 1")


def test_attaching_again_changes_nothing_and_with_other_columns_makes_it_anew(parts):
    before = triggers(parts)
    assert before
    parts.attach("t", ["v"])
    assert triggers(parts) == before
    parts.attach("t", ["region"])
    parts.sql("INSERT INTO t VALUES (1, 1, 1)")
    assert parts.records()[-1].new == {"id": 1, "region": 1}
    parts.attach("t")
    parts.sql("UPDATE t SET v = 2")
    assert parts.records()[-1].new == row(1, 1, 2)
    assert parts.value("SELECT count(*) FROM interlock.outbox_table") == 1
    assert parts.value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'interlock.outbox'::regclass") == SEGMENTS


def test_a_detached_table_is_recorded_no_longer_and_its_records_stay(parts):
    parts.sql("INSERT INTO t VALUES (1, 1, 1)")
    parts.sql("SELECT interlock.outbox_detach('t')")
    parts.sql("INSERT INTO t VALUES (2, 2, 2), (3, 3, 3); TRUNCATE t; CREATE TABLE t5 PARTITION OF t FOR VALUES IN (5); INSERT INTO t5 VALUES (1, 5, 1)")
    assert triggers(parts) == [] and parts.sql("SELECT * FROM interlock.outbox_table") == []
    assert [record.key for record in parts.clear()] == [{"id": 1, "region": 1}]
    parts.attach("t", ["v"])
    parts.sql("INSERT INTO t VALUES (4, 4, 4)")
    assert [record.new for record in parts.records()] == [row(4, 4, 4)]


def test_attaching_and_then_reading_the_table_misses_no_row_beside_writers(outbox):
    """How a consumer starts: what is in the table after outbox_attach(), and the records."""
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    stop, faults = threading.Event(), []

    def write(number):
        try:
            with outbox.connect() as session:
                while not stop.is_set():
                    with session.transaction():
                        session.execute("INSERT INTO t SELECT generate_series(%s::int, %s::int)", (number, number + 4))
                    number += 5
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number * 1_000_000,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            wait_until(lambda before=outbox.value("SELECT count(*) FROM t"): outbox.value("SELECT count(*) FROM t") > before or faults, 20)
            outbox.attach("t")
            read = {number for number, in outbox.sql("SELECT id FROM t")}
            wait_until(lambda: outbox.count() > 30 or faults, 20)
            outbox.sql("SELECT interlock.outbox_detach('t')")
            table = {number for number, in outbox.sql("SELECT id FROM t")}
            recorded = {record.key["id"] for record in outbox.clear()}
            # Each writer counts on: what is in neither was written after the detaching.
            missed = table - read - recorded
            assert all(number > max(other for other in recorded if other // 1_000_000 == number // 1_000_000)
                       for number in missed)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not faults, faults


def test_a_stream_with_records_is_not_dropped_by_mistake(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    outbox.attach("t", stream="s")
    outbox.sql("INSERT INTO t VALUES (1)")
    with pytest.raises(Exception) as fault:
        outbox.sql("SELECT interlock.outbox_detach('t', 's', true)")
    assert fault.value.diag.sqlstate in ("55000", "55006", "2BP01"), fault.value
    outbox.sql("INSERT INTO t VALUES (2)")
    assert outbox.count("s") == 2
    outbox.clear("s")
    outbox.sql("SELECT interlock.outbox_detach('t', 's', true)")
    assert outbox.sql("SELECT * FROM interlock.outbox_stream") == []
    assert outbox.value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'interlock.outbox'::regclass") == 0
    outbox.sql("INSERT INTO t VALUES (3)")
    outbox.attach("t", stream="s")
    outbox.sql("INSERT INTO t VALUES (4)")
    assert [record.key for record in outbox.records("s")] == [{"id": 4}]


@pytest.mark.parametrize("what", ["VIEW", "TEMP", "SEGMENT", "CATALOG", "SEQUENCE", "MATERIALIZED"])
def test_what_is_no_table_of_its_own_is_refused(outbox, what):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    outbox.attach("t")
    with outbox.connect() as session:
        name = {"VIEW": "v", "TEMP": "pg_temp.x", "SEGMENT": "interlock.outbox_default_0", "CATALOG": "pg_class",
                "SEQUENCE": "s", "MATERIALIZED": "m"}[what]
        session.execute("CREATE VIEW v AS SELECT * FROM t; CREATE SEQUENCE s; CREATE MATERIALIZED VIEW m AS SELECT * FROM t;"
                        "CREATE TEMP TABLE x (id int PRIMARY KEY)")
        with pytest.raises(Exception) as fault:
            session.execute("SELECT interlock.outbox_attach(%s::text::regclass, stream => 'other')", (name,))
        assert fault.value.diag.sqlstate in ("42809", "0A000", "55000"), fault.value


@pytest.mark.parametrize("name", ["", "Upper", "1x", "a-b", "a" * 41, "x; DROP TABLE t", 'x"', "ü", "x "])
def test_a_stream_name_of_other_letters_is_refused(outbox, name):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(Exception) as fault:
        outbox.attach("t", stream=name)
    assert fault.value.diag.sqlstate in ("42602", "22023"), fault.value
    with outbox.connect() as session, pytest.raises(Exception) as fault:
        take(session, 1, name)
    assert fault.value.diag.sqlstate in ("42704", "42602", "22023"), fault.value


def test_the_longest_stream_name_works(outbox):
    name = "a" * 40
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    outbox.attach("t", stream=name)
    outbox.sql("INSERT INTO t VALUES (1); TRUNCATE t")
    with outbox.connect() as session:
        assert len(drain_batch(session, 10, name)) == 2


def test_streams_of_one_table_have_their_own_columns_and_their_own_consumers(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int, region int)")
    outbox.attach("t", ["v"], stream="values")
    outbox.attach("t", ["region"], stream="regions")
    outbox.sql("INSERT INTO t VALUES (1, 1, 1); UPDATE t SET v = 2; UPDATE t SET region = 2; TRUNCATE t")
    assert [(op, new) for op, _, new in outbox.brief("values")] == [
        ("I", {"id": 1, "v": 1}), ("U", {"id": 1, "v": 2}), ("D", None)]
    assert [(op, new) for op, _, new in outbox.brief("regions")] == [
        ("I", {"id": 1, "region": 1}), ("U", {"id": 1, "region": 2}), ("D", None)]
    assert outbox.count() == 0
    assert len(outbox.clear("values")) == 3 and len(outbox.records("regions")) == 3
    with outbox.connect() as session:
        rotate(session, "values")
        assert len(outbox.records("regions")) == 3
    outbox.sql("SELECT interlock.outbox_detach('t', 'values', true)")
    outbox.sql("INSERT INTO t VALUES (2, 2, 2)")
    assert len(outbox.clear("regions")) == 4
    numbers = seqs(outbox.records("regions"))
    assert numbers == []


def test_two_tables_in_one_stream_are_told_apart(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    outbox.attach("t")
    outbox.attach("u")
    outbox.sql("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); DELETE FROM t")
    assert [identity(record)[0] + record.op for record in outbox.records()] == ["public.tI", "public.uI", "public.tD"]
