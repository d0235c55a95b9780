"""The outbox through crashes, and in copies of a database."""

import random
import subprocess
import threading
import time

import psycopg
import pytest

from support.outbox import Outbox, done, drain_batch, rotate, seqs, take, transaction
from support.shard import KEY, Shard, refusal
from support.wait import wait_until

RAISED = 1 << 40


def run(instance, program, *arguments, **options):
    finished = subprocess.run([instance.bin / program, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


# --- crashes -----------------------------------------------------------------------------------


class Load:
    """Writers and consumers until the server goes away. Each notes what was confirmed to it."""

    def __init__(self, database, start):
        self.database, self.stop = database, threading.Event()
        self.written, self.consumed, self.doubtful, self.unknown = [], [], [], []
        self.faults = []
        self.threads = [threading.Thread(target=self.guard, args=(self.write, start + number * 100_000)) for number in range(3)]
        self.threads += [threading.Thread(target=self.guard, args=(self.consume, number)) for number in range(2)]
        for thread in self.threads:
            thread.start()

    def guard(self, body, argument):
        try:
            body(argument)
        except psycopg.OperationalError:
            pass
        except Exception as error:  # noqa: BLE001
            self.faults.append(error)

    def write(self, number):
        chance = random.Random(number)
        with self.database.connect() as session:
            while not self.stop.is_set():
                batch = list(range(number, number + chance.randint(1, 5)))
                number += len(batch)
                self.unknown += batch
                session.execute("BEGIN; SELECT 1")
                session.execute("INSERT INTO t SELECT unnest(%s), 0", (batch,))
                if chance.random() < 0.1:
                    session.execute("ROLLBACK")
                    continue
                session.execute("COMMIT")
                self.written += batch

    def consume(self, number):
        with self.database.connect() as session:
            while not self.stop.is_set():
                session.execute("BEGIN")
                batch = take(session, 7 + number)
                done(session, batch)
                found = [record.key["id"] for record in batch]
                self.doubtful += found
                session.execute("COMMIT")
                self.consumed += found
                session.execute("SELECT setval('interlock.outbox_seq', nextval('interlock.outbox_seq') + 2000)")
                rotate(session)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.faults, self.faults


@pytest.mark.parametrize("way", ["kill -9", "immediate"])
def test_a_crash_loses_no_record_and_brings_none_back(make_instance, way):
    instance = make_instance()
    database = Outbox(instance, "app")
    database.sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    database.attach("t")
    chance, consumed, doubtful, written = random.Random(way), set(), set(), set()
    for turn in range(2):
        load = Load(database, (turn + 1) * 1_000_000)
        wait_until(lambda: len(load.consumed) > 100 or load.faults, 20)
        time.sleep(chance.random() * 0.3)
        database.rest()
        if way == "immediate":
            instance.stop("immediate")
        else:
            instance.kill()
        load.end()
        instance.start()
        consumed |= set(load.consumed)
        doubtful |= set(load.doubtful)
        written |= set(load.written)
        rows = {number for number, in database.sql("SELECT id FROM t")}
        records = database.records()
        waiting = [record.key["id"] for record in records]
        assert len(waiting) == len(set(waiting)) and len(set(seqs(records))) == len(records)
        assert written <= rows
        assert set(waiting) <= rows, "a record of a row that was never committed"
        assert not consumed & set(waiting), "a record came back"
        assert rows <= set(waiting) | doubtful | consumed, "a record is lost"
        # Numbers go on behind those that are there.
        last = max([0, *seqs(records)])
        database.sql("INSERT INTO t VALUES (%s, 0)", turn + 1)
        assert database.value("SELECT max(seq) FROM interlock.outbox") > last
        consumed |= {record.key["id"] for record in database.clear()}
    with database.connect() as session:
        rotate(session)
        assert drain_batch(session) == []


def test_a_crash_while_a_batch_is_held_gives_it_to_the_next_one(make_instance):
    instance = make_instance()
    database = Outbox(instance, "app")
    database.sql("CREATE TABLE t (id int PRIMARY KEY)")
    database.attach("t")
    database.sql("INSERT INTO t SELECT generate_series(1, 10)")
    session = database.connect()
    session.execute("BEGIN")
    done(session, take(session, 5))
    database.rest()
    instance.kill()
    session.close()
    instance.start()
    with database.connect() as session:
        assert len(drain_batch(session)) == 10


def test_what_a_taker_has_been_given_survives_a_crash_although_its_writer_did_not_wait(make_instance):
    """Or the consumer would have a change that never was, and its number would be given to another one."""
    instance = make_instance(settings={"synchronous_commit": "off", "wal_writer_delay": "10s"})
    database = Outbox(instance, "app")
    database.sql("CREATE TABLE t (id int PRIMARY KEY)")
    database.attach("t")
    writer, session = database.connect(), database.connect()
    take(session)
    # A page of the log that is full is written at once: stay on the first one of a file.
    writer.execute("SELECT pg_switch_wal()")
    writer.execute("INSERT INTO t VALUES (1), (2), (3)")
    session.execute("BEGIN")
    batch = take(session)
    assert len(batch) == 3
    writer.execute("INSERT INTO t VALUES (4)")
    database.rest()
    instance.kill()
    for connection in (writer, session):
        connection.close()
    instance.start()
    numbers = {number for number, in database.sql("SELECT id FROM t")}
    assert {1, 2, 3} <= numbers
    assert seqs(database.records())[:3] == seqs(batch)
    database.sql("INSERT INTO t VALUES (100)")
    assert database.records()[-1].seq > batch[-1].seq
    # (4 is lost, unless the log happened to be written just then: the mutant not-flushed shows it.)


# --- copies ------------------------------------------------------------------------------------

SCHEMA = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE TABLE entry (account_id bigint NOT NULL, region int NOT NULL, m mood, PRIMARY KEY (account_id, region)) PARTITION BY LIST (region);
    CREATE TABLE entry_1 PARTITION OF entry FOR VALUES IN (1);
    CREATE TABLE entry_2 PARTITION OF entry FOR VALUES IN (2);
    CREATE TABLE free (id int PRIMARY KEY, v int);
    SELECT interlock.shard_table('entry', 'account', 'account_id');
    SELECT interlock.outbox_attach('account'), interlock.outbox_attach('entry', '{m}', 'second'), interlock.outbox_attach('free', stream => 'second');
    INSERT INTO account SELECT g, g FROM generate_series(1, 400) g WHERE interlock.owns('account', g);
    INSERT INTO entry SELECT g, 1 + g % 2, 'ok' FROM generate_series(1, 400) g WHERE interlock.owns('account', g);
    INSERT INTO free SELECT g, g FROM generate_series(1, 20) g;
    UPDATE entry SET m = 'sad' WHERE account_id < 50;
"""
CONTENTS = """
    SELECT (SELECT string_agg(o::text, ',' ORDER BY seq) FROM interlock.outbox o), (SELECT string_agg(s::text, ',' ORDER BY s::text) FROM interlock.outbox_stream s),
           (SELECT string_agg(t::text, ',' ORDER BY t::text) FROM interlock.outbox_table t), (SELECT string_agg(p::text, ',' ORDER BY p::text) FROM interlock.outbox_parked p),
           (SELECT last_seq FROM interlock.outbox_last()),
           (SELECT string_agg(i.inhrelid::regclass::text, ',' ORDER BY i.inhrelid::regclass::text) FROM pg_inherits i WHERE i.inhparent = 'interlock.outbox'::regclass),
           (SELECT string_agg(concat_ws(' ', tgrelid::regclass, tgname, tgenabled, pg_get_triggerdef(oid)), ',' ORDER BY tgrelid::regclass::text, tgname)
              FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'interlock.outbox%')
"""


@pytest.fixture
def source(outbox):
    """A shard with records in two streams, some parked, some consumed, in several segments."""
    outbox.sharded()
    outbox.sql(SCHEMA)
    with outbox.connect() as session:
        drain_batch(session, 20)
        with session.transaction():
            batch = take(session, 5, "second")
            session.execute("SELECT interlock.outbox_park(%s, 'x')", (seqs(batch[:2]),))
            session.execute("SELECT interlock.outbox_failed(%s, 'once')", (batch[2].seq,))
    outbox.next_seq(5 * 32768)
    outbox.sql("UPDATE free SET v = 0")
    return outbox


@pytest.fixture
def empty(outbox):
    """A second database, with nothing in it."""
    database = Outbox(outbox.instance, outbox.dbname + "_copy")
    outbox.instance.sql(f"CREATE DATABASE {database.dbname} TEMPLATE template0", dbname="postgres")
    yield database
    database.drop()


def works_on_as_a_copy(copy, source):
    highest = max(seqs(copy.records() + copy.records("second")))
    # It is a shard's copy: closed, until somebody says that the original is gone.
    with refusal("IL104"):
        copy.sql("DELETE FROM account")
    with copy.connect() as session, refusal("IL104"):
        take(session)
    copy.sql("SELECT interlock.adopt_shard()")
    copy.sql("DELETE FROM account; UPDATE free SET v = v + 1; TRUNCATE free")
    new = [record for record in copy.records() + copy.records("second") if record.seq > highest]
    assert len(new) > 40 and min(seqs(new)) > RAISED
    copy.sql("CREATE TABLE entry_3 PARTITION OF entry FOR VALUES IN (3)")
    copy.sql("INSERT INTO entry VALUES (%s, 3, 'ok')", KEY[0])
    assert copy.records("second")[-1].new["m"] == "ok"
    # Another attach changes nothing, and all of it can be consumed.
    triggers = "SELECT oid FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'interlock.outbox%' ORDER BY 1"
    before = copy.sql(triggers)
    copy.attach("entry", ["m"], "second")
    assert copy.sql(triggers) == before
    count = copy.count() + copy.count("second")
    copy.sql("SELECT interlock.outbox_retry('second')")
    assert len(copy.clear()) + len(copy.clear("second")) == count + 2
    with copy.connect() as session:
        rotate(session)
        rotate(session, "second")
    # The original knows nothing of it.
    assert max(seqs(source.records() + source.records("second"))) == highest


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_dump_brings_the_records_along_and_adopting_it_gives_new_numbers(source, empty, tmp_path, jobs):
    tmp_path.chmod(0o755)
    dump = tmp_path / "dump"
    run(source.instance, "pg_dump", "-Fc", "-f", dump, "-d", source.instance.conninfo(source.dbname, "postgres"))
    sections = [["--section=pre-data", "--section=data"], ["--section=post-data"]] if jobs > 1 else [[]]
    for section in sections:
        run(source.instance, "pg_restore", "--exit-on-error", *section, "-j", str(jobs),
            "-d", source.instance.conninfo(empty.dbname, "postgres"), dump)
    assert empty.sql(CONTENTS) == source.sql(CONTENTS)
    works_on_as_a_copy(empty, source)


def test_a_plain_text_dump_brings_them_along_too(source, empty):
    text = run(source.instance, "pg_dump", "-d", source.instance.conninfo(source.dbname, "postgres"))
    run(source.instance, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", source.instance.conninfo(empty.dbname, "postgres"), input=text)
    assert empty.sql(CONTENTS) == source.sql(CONTENTS)
    works_on_as_a_copy(empty, source)


def test_a_clone_made_with_create_database_works_on(source, empty):
    empty.drop()
    source.rest()
    source.instance.sql(f"CREATE DATABASE {empty.dbname} TEMPLATE {source.dbname}", dbname="postgres")
    assert empty.sql(CONTENTS) == source.sql(CONTENTS)
    works_on_as_a_copy(empty, source)


def test_a_database_that_is_no_shard_is_dumped_and_restored_with_its_outbox(outbox, empty):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY); SELECT interlock.outbox_attach('t'); INSERT INTO t VALUES (1), (2)")
    text = run(outbox.instance, "pg_dump", "-d", outbox.instance.conninfo(outbox.dbname, "postgres"))
    run(outbox.instance, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", outbox.instance.conninfo(empty.dbname, "postgres"), input=text)
    empty.sql("INSERT INTO t VALUES (3)")
    numbers = seqs(empty.records())
    assert [record.key["id"] for record in empty.clear()] == [1, 2, 3] and numbers == sorted(set(numbers))


def test_a_dump_of_the_schema_alone_records_from_the_start(source, empty):
    text = run(source.instance, "pg_dump", "--schema-only", "-d", source.instance.conninfo(source.dbname, "postgres"))
    run(source.instance, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", source.instance.conninfo(empty.dbname, "postgres"), input=text)
    assert empty.sql("SELECT * FROM interlock.outbox") == []
    empty.attach("free", stream="second")
    empty.sql("INSERT INTO free VALUES (1, 1)")
    assert [record.key for record in empty.clear("second")] == [{"id": 1}]


def test_dropping_the_extension_with_cascade_leaves_tables_that_can_be_written(source):
    source.sql("DROP EXTENSION interlock CASCADE")
    source.sql("INSERT INTO account VALUES (100000, 1); TRUNCATE free; UPDATE entry SET m = 'ok'")
    assert source.sql("SELECT relname FROM pg_class WHERE relname LIKE 'outbox%'") == []
    source.sql("CREATE EXTENSION interlock")
    source.attach("free")
    source.sql("INSERT INTO free VALUES (1, 1)")
    assert len(source.clear()) == 1


# --- replication -------------------------------------------------------------------------------


def test_rows_that_a_subscription_applies_are_not_recorded_and_rows_of_others_are(outbox, make_instance):
    """The shard that a bucket moves to must not tell the index of each row: it is the same row."""
    publisher = make_instance("source", extension=False)
    publisher.sql("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (1, 1)")
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    outbox.attach("t")
    outbox.sql(f"CREATE SUBSCRIPTION {outbox.dbname} CONNECTION '{publisher.conninfo('app', 'postgres')}' PUBLICATION p")
    try:
        publisher.sql("INSERT INTO t VALUES (2, 2); UPDATE t SET v = 7 WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (3, 3)")
        wait_until(lambda: outbox.sql("SELECT * FROM t ORDER BY id") == [(1, 7), (3, 3)], 30, "the rows are there")
        assert outbox.count() == 0
        outbox.sql("UPDATE t SET v = 8 WHERE id = 1")
        assert [record.op for record in outbox.records()] == ["U"]
    finally:
        outbox.sql(f"ALTER SUBSCRIPTION {outbox.dbname} DISABLE")
        outbox.sql(f"DROP SUBSCRIPTION {outbox.dbname}")


def test_the_outbox_can_be_replicated_itself_and_decoded(outbox):
    """Records are ordinary rows: change data capture that reads the log sees them, whoever takes them."""
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    outbox.attach("t")
    slot = outbox.dbname
    outbox.sql(f"SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')")
    try:
        outbox.sql("INSERT INTO t VALUES (41)")
        outbox.clear()
        with outbox.connect() as session:
            rotate(session)
        changes = [data for data, in outbox.sql(f"SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)")]
        assert any("outbox_default" in text and "INSERT" in text and '"id": 41' in text for text in changes), changes
    finally:
        outbox.sql(f"SELECT pg_drop_replication_slot('{slot}')")


def test_a_database_that_is_described_as_a_shard_later_records_buckets_from_then_on(outbox):
    outbox.sql("CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint)")
    outbox.attach("account")
    with outbox.connect() as session:
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[0],))
        outbox.sql("""
            SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
            SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
            SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 3);
            SELECT interlock.shard_table('account', 'account', 'account_id');
        """)
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[3],))
        outbox.attach("account")
        session.execute("INSERT INTO account VALUES (%s, 1)", (KEY[5],))
    assert [(record.bucket, record.route_version) for record in outbox.records()][::2] == [(None, 0), (5, 3)]
    assert isinstance(outbox, Shard)


def test_a_rolled_back_attach_leaves_nothing(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY)")
    with transaction(outbox) as session:
        session.execute("SELECT interlock.outbox_attach('t')")
        session.execute("INSERT INTO t VALUES (1)")
        session.execute("ROLLBACK")
        session.execute("INSERT INTO t VALUES (1)")
    assert outbox.sql("SELECT * FROM interlock.outbox_stream") == [] and outbox.sql("SELECT * FROM interlock.outbox") == []
    outbox.attach("t")
    outbox.sql("INSERT INTO t VALUES (2)")
    assert outbox.count() == 1
