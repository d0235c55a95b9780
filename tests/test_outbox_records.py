"""What the outbox records: which changes, with which keys and values, in which order."""

import datetime

import pytest

from support.outbox import Mirror, mirrored, take, transaction
from support.shard import KEY, SECOND_KEY, Background, refusal
from support.wait import wait_until

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, a int, b text, unlisted text);"


@pytest.fixture
def table(outbox):
    """t(id, a, b, unlisted), of which a and b are recorded."""
    outbox.sql(TABLE)
    outbox.attach("t", ["a", "b"])
    return outbox


def row(number, a=None, b=None):
    return {"id": number, "a": a, "b": b}


# --- which changes -----------------------------------------------------------------------------


def test_an_insert_an_update_and_a_delete_are_recorded_with_all_a_consumer_needs(table):
    before = table.value("SELECT clock_timestamp()")
    xids = [table.sql(text + " RETURNING pg_current_xact_id()")[0][0] for text in (
        "INSERT INTO t VALUES (1, 10, 'x', 'u')", "UPDATE t SET a = 11", "DELETE FROM t")]
    after = table.value("SELECT clock_timestamp()")
    records = table.records()
    assert [record.op for record in records] == ["I", "U", "D"]
    assert [(record.old, record.new) for record in records] == [
        (None, row(1, 10, "x")), (row(1, 10, "x"), row(1, 11, "x")), (row(1, 11, "x"), None)]
    assert [record.xid for record in records] == xids
    assert {(record.table_name, str(record.key), record.bucket, record.route_version) for record in records} == {
        ("public.t", "{'id': 1}", None, 0)}
    assert [record.seq for record in records] == sorted({record.seq for record in records})
    times = [record.at for record in records]
    assert before <= times[0] <= times[1] <= times[2] <= after


def test_at_is_the_time_of_the_change_and_not_of_its_transaction(table):
    with transaction(table) as session:
        session.execute("SELECT pg_sleep(0.05)")
        session.execute("INSERT INTO t VALUES (1)")
        began = session.execute("SELECT now()").fetchone()[0]
        session.execute("COMMIT")
    assert table.records()[0].at - began >= datetime.timedelta(milliseconds=50)


def test_an_update_that_changes_no_listed_column_is_not_recorded(table):
    table.sql("INSERT INTO t VALUES (1, 10, 'x', 'u')")
    table.clear()
    table.sql("UPDATE t SET unlisted = 'v'; UPDATE t SET a = a, b = b, id = id; UPDATE t SET unlisted = NULL, a = 10;"
              "UPDATE t SET b = 'x' WHERE b = 'x'; UPDATE t SET a = 1 WHERE false")
    assert table.brief() == []
    table.sql("UPDATE t SET a = NULL")
    table.sql("UPDATE t SET a = NULL, b = NULL")
    table.sql("UPDATE t SET b = ''")
    assert [record.new for record in table.records()] == [row(1, None, "x"), row(1), row(1, None, "")]


def test_a_large_value_that_is_written_again_unchanged_is_no_change_and_is_whole_in_the_record(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, big text, a int, unlisted int)")
    outbox.attach("t", ["big", "a"])
    big = "".join(chr(33 + number * number % 90) for number in range(300_000))
    outbox.sql("INSERT INTO t VALUES (1, %s, 0, 0)", big)
    outbox.clear()
    outbox.sql("UPDATE t SET big = big || '', unlisted = 1")
    outbox.sql("UPDATE t SET unlisted = 2")
    assert outbox.count() == 0
    # The row's own value is not touched and lies apart from it; the record has it all the same.
    outbox.sql("UPDATE t SET a = 1")
    record, = outbox.records()
    assert record.old == {"id": 1, "big": big, "a": 0} and record.new == {"id": 1, "big": big, "a": 1}
    outbox.sql("DELETE FROM t; DROP TABLE t")
    assert outbox.records()[1].old["big"] == big


def test_without_a_list_all_columns_are_recorded(outbox):
    outbox.sql('CREATE TABLE t (id int PRIMARY KEY, gone int, "odd ""name" text, made int GENERATED ALWAYS AS (id * 2) STORED)')
    outbox.sql("ALTER TABLE t DROP COLUMN gone")
    outbox.attach("t")
    outbox.sql("INSERT INTO t VALUES (4, 'x')")
    outbox.sql("""UPDATE t SET "odd ""name" = 'y'""")
    assert outbox.records()[-1].new == {"id": 4, 'odd "name': "y", "made": 8}


def test_the_last_say_of_before_triggers_is_what_is_recorded(table):
    table.sql("""
        CREATE FUNCTION round_up() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.a < 0 THEN RETURN NULL; END IF;
            NEW.a := NEW.a + 1;
            RETURN NEW;
        END $$;
        CREATE TRIGGER zz BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION round_up();
        INSERT INTO t VALUES (1, 1), (2, -1);
        UPDATE t SET a = 5;
        UPDATE t SET a = -5;
    """)
    assert table.brief() == [("I", None, row(1, 2)), ("U", row(1, 2), row(1, 6))]


# --- keys --------------------------------------------------------------------------------------


def test_a_changed_key_is_a_delete_of_the_old_one_and_then_an_insert_of_the_new_one(table):
    table.sql("INSERT INTO t VALUES (1, 10, 'x')")
    table.sql("UPDATE t SET id = 2, a = 11")
    table.sql("UPDATE t SET id = 3")
    assert table.brief()[1:] == [("D", row(1, 10, "x"), None), ("I", None, row(2, 11, "x")),
                                 ("D", row(2, 11, "x"), None), ("I", None, row(3, 11, "x"))]
    assert [record.key["id"] for record in table.records()] == [1, 1, 2, 2, 3]


def test_keys_that_are_exchanged_in_one_statement_end_where_they_belong(outbox):
    """Row by row: 1 becomes 2 before 2 has become 1. By last record per key, both are there in the end."""
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, a int, "
               "other int NOT NULL UNIQUE); INSERT INTO t SELECT i, i * 10, i FROM generate_series(1, 6) i")
    with refusal("55000"):  # A key that is only checked at the end of the transaction is none for this.
        outbox.attach("t")


def test_a_key_of_several_columns_is_recorded_in_whole(outbox):
    outbox.sql('CREATE TABLE t (b text, "A" int, v int, PRIMARY KEY ("A", b))')
    outbox.attach("t", ["v"])
    outbox.sql("INSERT INTO t VALUES ('x', 1, 5)")
    outbox.sql("UPDATE t SET b = 'y'")
    assert [(record.op, record.key) for record in outbox.records()] == [
        ("I", {"A": 1, "b": "x"}), ("D", {"A": 1, "b": "x"}), ("I", {"A": 1, "b": "y"})]


def test_a_key_can_be_named_where_the_table_has_another_one(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE, a int, b int)")
    outbox.attach("t", ["a"], key=["code"])
    outbox.sql("INSERT INTO t VALUES (1, 'x', 5, 6)")
    outbox.sql("UPDATE t SET id = 2")
    outbox.sql("UPDATE t SET code = 'y'")
    assert [(record.op, record.key, record.old, record.new) for record in outbox.records()] == [
        ("I", {"code": "x"}, None, {"code": "x", "a": 5}), ("D", {"code": "x"}, {"code": "x", "a": 5}, None),
        ("I", {"code": "y"}, None, {"code": "y", "a": 5})]


@pytest.mark.parametrize("definition, key", [
    ("id int", None), ("id int UNIQUE", ["id"]), ("id int NOT NULL", ["id"]), ("id int PRIMARY KEY, a int NOT NULL", ["a"]),
    ("id int NOT NULL UNIQUE DEFERRABLE", ["id"]), ("id int PRIMARY KEY", ["no_such_column"]), ("id int PRIMARY KEY", []),
    ("id int PRIMARY KEY, a int", ["id", "a"])])
def test_a_key_that_does_not_name_one_row_is_refused(outbox, definition, key):
    outbox.sql(f"CREATE TABLE t ({definition}); CREATE UNIQUE INDEX ON t (id) WHERE id > 0")
    with pytest.raises(Exception) as fault:
        outbox.attach("t", ["id"], key=key)
    assert fault.value.diag.sqlstate in ("55000", "42703", "22023", "42704", "22004"), fault.value
    outbox.sql("INSERT INTO t VALUES (1)" if "a int NOT NULL" not in definition else "INSERT INTO t VALUES (1, 1)")
    assert outbox.sql("SELECT * FROM interlock.outbox_table") == []


# --- sharded tables ----------------------------------------------------------------------------


def test_a_record_of_a_sharded_table_tells_the_bucket_and_the_version_under_which_the_shard_came_to_it(outbox):
    outbox.sharded()
    outbox.sql("SELECT interlock.accept_buckets('account', '{12}', 7)")
    outbox.attach("account")
    outbox.sql("INSERT INTO account VALUES (%s, 1), (%s, 2)", KEY[3], KEY[12])
    outbox.sql("UPDATE account SET balance = 5")
    outbox.sql("DELETE FROM account WHERE account_id = %s", KEY[3])
    assert [(record.op, record.bucket, record.route_version) for record in outbox.records()] == [
        ("I", 3, 1), ("I", 12, 7), ("U", 3, 1), ("U", 12, 7), ("D", 3, 1)]
    # What is taken says it too.
    with transaction(outbox) as session:
        assert [(record.bucket, record.route_version) for record in take(session)] == [(3, 1), (12, 7), (3, 1), (12, 7), (3, 1)]


def test_a_session_that_is_open_while_a_bucket_comes_records_its_version(outbox):
    outbox.sharded()
    outbox.attach("account")
    with outbox.connect() as session:
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        outbox.sql("SELECT interlock.accept_buckets('account', '{12}', 9)")
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[12],))
    assert [record.route_version for record in outbox.records()] == [1, 9]


def test_the_shard_key_is_part_of_the_key_of_a_sharded_table(outbox):
    outbox.sharded()
    outbox.sql("CREATE TABLE entry (id int PRIMARY KEY, account_id bigint NOT NULL, v int);"
               "SELECT interlock.shard_table('entry', 'account', 'account_id')")
    outbox.attach("entry", ["v"])
    outbox.sql("INSERT INTO entry VALUES (1, %s, 5)", KEY[2])
    outbox.sql("UPDATE entry SET account_id = %s", SECOND_KEY[2])
    first, second = {"id": 1, "account_id": KEY[2]}, {"id": 1, "account_id": SECOND_KEY[2]}
    assert [(record.op, record.key, record.old, record.new, record.bucket) for record in outbox.records()] == [
        ("I", first, None, {**first, "v": 5}, 2), ("D", first, {**first, "v": 5}, None, 2),
        ("I", second, None, {**second, "v": 5}, 2)]


# --- statements --------------------------------------------------------------------------------


def test_copy_records_every_row(table):
    with table.connect() as session, session.cursor().copy("COPY t FROM STDIN") as copy:
        for number in range(5000):
            copy.write(f"{number}\t{number % 7}\tvalue {number}\t\\N\n")
    assert table.count() == 5000
    assert mirrored(table.records()) == Mirror().apply(
        [record for record in table.clear()]).values()
    assert table.count() == 0


def test_insert_on_conflict_records_what_it_did(table):
    table.sql("INSERT INTO t VALUES (1, 1), (2, 2)")
    table.clear()
    table.sql("INSERT INTO t VALUES (1, 5), (3, 3) ON CONFLICT DO NOTHING")
    table.sql("INSERT INTO t VALUES (1, 7), (2, 2), (4, 4) ON CONFLICT (id) DO UPDATE SET a = excluded.a")
    table.sql("INSERT INTO t VALUES (1, 8), (2, 9) ON CONFLICT (id) DO UPDATE SET a = excluded.a WHERE excluded.a > 8")
    assert table.brief() == [("I", None, row(3, 3)), ("U", row(1, 1), row(1, 7)), ("I", None, row(4, 4)),
                             ("U", row(2, 2), row(2, 9))]


def test_a_merge_records_each_of_its_actions(table):
    table.sql("INSERT INTO t SELECT i, i FROM generate_series(1, 4) i")
    table.clear()
    table.sql("""
        MERGE INTO t USING (VALUES (1, 10), (2, 0), (3, 3), (9, 90)) s(id, a) ON t.id = s.id
        WHEN MATCHED AND s.a = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET a = s.a
        WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.a)
    """)
    assert sorted(table.brief(), key=str) == sorted(
        [("U", row(1, 1), row(1, 10)), ("D", row(2, 2), None), ("I", None, row(9, 90))], key=str)


def test_writes_in_with_queries_and_functions_are_recorded(table):
    table.sql("""
        CREATE FUNCTION put(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES (n, n) RETURNING 1';
        CREATE VIEW v AS SELECT id, a FROM t WHERE a > 0;
        SELECT put(1), put(2);
        WITH w AS (DELETE FROM t WHERE id = 1 RETURNING *) INSERT INTO t SELECT 10, a FROM w;
        INSERT INTO v VALUES (20, 20);
        UPDATE v SET a = 21 WHERE id = 20;
    """)
    assert mirrored(table.records()) == [row(10, 1), row(2, 2), row(20, 21)]
    assert table.count() == 6


def test_cascades_are_recorded_for_the_rows_they_change(outbox):
    outbox.sql("""
        CREATE TABLE parent (id int PRIMARY KEY, v int);
        CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE);
        CREATE TABLE cousin (id int PRIMARY KEY, p int REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL);
        CREATE TABLE part (p int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE, n int, PRIMARY KEY (p, n));
        INSERT INTO parent VALUES (1), (2);
        INSERT INTO child VALUES (10, 1), (11, 1), (12, 2);
        INSERT INTO cousin VALUES (20, 1);
        INSERT INTO part VALUES (1, 1), (2, 1);
    """)
    for table in ("child", "cousin", "part"):
        outbox.attach(table)
    outbox.sql("UPDATE parent SET id = 5 WHERE id = 1")
    changes = [(record.table_name, record.op, record.new or record.old) for record in outbox.clear()]
    assert sorted(changes, key=str) == sorted([
        ("public.child", "U", {"id": 10, "p": 5}), ("public.child", "U", {"id": 11, "p": 5}),
        ("public.cousin", "U", {"id": 20, "p": 5}),
        ("public.part", "D", {"p": 1, "n": 1}), ("public.part", "I", {"p": 5, "n": 1})], key=str)
    outbox.sql("DELETE FROM parent WHERE id = 5")
    changes = [(record.table_name, record.op, record.new or record.old) for record in outbox.clear()]
    assert sorted(changes, key=str) == sorted([
        ("public.child", "D", {"id": 10, "p": 5}), ("public.child", "D", {"id": 11, "p": 5}),
        ("public.cousin", "U", {"id": 20, "p": None}), ("public.part", "D", {"p": 5, "n": 1})], key=str)


def test_rows_that_replication_applies_are_not_recorded(table):
    table.sql("SET session_replication_role = replica; INSERT INTO t VALUES (1, 1); UPDATE t SET a = 2")
    assert table.count() == 0
    table.sql("UPDATE t SET a = 3")
    assert table.brief() == [("U", row(1, 2), row(1, 3))]


# --- TRUNCATE ----------------------------------------------------------------------------------


def test_a_truncate_is_a_delete_of_every_row(table):
    table.sql("INSERT INTO t SELECT i, i % 3, 'x' FROM generate_series(1, 3000) i; DELETE FROM t WHERE id % 10 = 0")
    table.sql("TRUNCATE t")
    records = table.records()
    assert mirrored(records) == [] and [record.op for record in records[-2700:]] == ["D"] * 2700
    with transaction(table) as session:
        session.execute("INSERT INTO t VALUES (1, 1)")
        session.execute("TRUNCATE t")
    assert len(table.records()) == len(records)
    table.sql("INSERT INTO t VALUES (5, 5)")
    table.sql("TRUNCATE t RESTART IDENTITY CASCADE")
    assert [record.op for record in table.records()[len(records):]] == ["I", "D"]


def test_a_truncate_that_cascades_deletes_the_rows_of_the_tables_it_reaches(outbox):
    outbox.sql("CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent);"
               "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (7, 1), (8, 1)")
    outbox.attach("child")
    outbox.sql("TRUNCATE parent CASCADE")
    assert outbox.brief() == [("D", {"id": 7, "p": 1}, None), ("D", {"id": 8, "p": 1}, None)]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_truncate_that_waited_for_a_writer_deletes_its_rows_too(table, isolation):
    """They are not in the statement's snapshot, and gone all the same."""
    table.sql("INSERT INTO t VALUES (1, 1)")
    with transaction(table) as writer, transaction(table) as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        session.execute("SELECT 1 FROM t")
        writer.execute("INSERT INTO t VALUES (2, 2)")
        writer.execute("UPDATE t SET a = 7 WHERE id = 1")
        running = Background(session, "TRUNCATE t")
        table.wait_for_lock(running.pid)
        writer.execute("COMMIT")
        assert running.result() is None
        session.execute("COMMIT")
    assert table.value("SELECT count(*) FROM t") == 0
    assert mirrored(table.records()) == []


def test_a_truncate_of_a_sharded_table_records_the_rows_buckets(outbox):
    outbox.sharded()
    outbox.attach("account")
    outbox.sql("INSERT INTO account VALUES (%s, 1), (%s, 1)", KEY[1], KEY[2])
    with outbox.connect() as session:
        session.execute("BEGIN; SET LOCAL interlock.allow_truncate = on; TRUNCATE account; COMMIT")
    assert sorted((record.op, record.bucket) for record in outbox.records()) == [("D", 1), ("D", 2), ("I", 1), ("I", 2)]


def test_a_consumer_of_a_truncated_table_sees_nothing_before_it_is_committed(table):
    table.sql("INSERT INTO t VALUES (1, 1)")
    table.clear()
    with transaction(table) as session:
        session.execute("TRUNCATE t")
        with table.connect() as consumer:
            assert take(consumer) == []
        session.execute("COMMIT")
    wait_until(lambda: table.brief() == [("D", row(1, 1), None)], 5)
