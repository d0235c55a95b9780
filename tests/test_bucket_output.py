"""The output plugin: a subscription gets the rows of the buckets on the move, and nothing else."""

import random
import uuid

import psycopg
import pytest

from support.postgres import Postgres
from support.shard import CLUSTER, Shard, refusal
from support.wait import Stopwatch, wait_until

SETTINGS = {"log_min_messages": "warning", "wal_retrieve_retry_interval": "100ms"}
MOVED, STAYS = 3, 2
SLOT = "pg_create_logical_replication_slot"


def setting(server, name, value):
    server.sql(f"ALTER SYSTEM SET {name} = {value}" if value else f"ALTER SYSTEM RESET {name}", dbname="postgres")
    server.sql("SELECT pg_reload_conf()", dbname="postgres")


def allow(server, plugins):
    """Servers since PostgreSQL 15.18 or so let nobody make a slot of a plugin that is not in this list."""
    if server.value("SELECT true FROM pg_settings WHERE name = 'output_plugin_libraries'", dbname="postgres"):
        setting(server, "output_plugin_libraries", plugins)
        wait_until(lambda: server.value("SHOW output_plugin_libraries", dbname="postgres") == plugins)
        return True
    return False


@pytest.fixture(scope="module")
def servers(owner, new_folder, request):
    pair = [Postgres(new_folder(f"{request.module.__name__}-{name}"), name, owner, SETTINGS) for name in ("source", "target")]
    for server in pair:
        server.launch()
    for server in pair:
        server.wait_for_it()
        allow(server, "pgoutput, interlock")
    yield pair
    for server in pair:
        server.stop("immediate")
        server.check_log()


class Move:
    """Two databases, s0 with the buckets 0 to 7 and s1, and a subscription of s1 to buckets of s0."""

    def __init__(self, source, target, name):
        self.id = uuid.uuid4()
        self.slot = name
        self.source, self.target = Shard(source, name), Shard(target, name)
        self.attempts = 0
        self.subscribed = False

    def create(self):
        for number, shard in enumerate((self.source, self.target)):
            shard.create().sql(f"SELECT interlock.set_identity('{CLUSTER}', 's{number}')")
        self.keyspace("account", "bigint", "splitmix64")
        return self

    def keyspace(self, name, key_type, hash_name):
        for shard in (self.source, self.target):
            shard.sql("SELECT interlock.define_keyspace(%s, %s, %s, 16)", name, key_type, hash_name)
        self.source.sql("SELECT interlock.accept_buckets(%s, '{0,1,2,3,4,5,6,7}', 1)", name)

    def tables(self, text, **sharded):
        """The same schema on both; sharded: table=keyspace, all by column k."""
        for shard in (self.source, self.target):
            shard.sql(text)
            for table, keyspace in sharded.items():
                shard.sql("SELECT interlock.shard_table(%s::regclass, %s, 'k')", table, keyspace)

    def record(self, buckets=(MOVED,), keyspace="account", slot=None):
        self.source.sql("SELECT interlock.record_move_slot(%s, %s, %s, %s)", slot or self.slot, self.id, keyspace, list(buckets))

    def publish(self, tables, root=True):
        self.source.sql(f"CREATE PUBLICATION {self.slot} FOR TABLE {', '.join(tables)}, interlock.move_marker "
                        f"WITH (publish = 'insert, update, delete', publish_via_partition_root = {root})")

    def follow(self, *tables, buckets=(MOVED,), keyspace="account", root=True, options=""):
        self.record(buckets, keyspace)
        self.publish(tables, root)
        self.source.sql(f"SELECT {SLOT}(%s, 'interlock')", self.slot)
        for bucket in buckets:
            self.target.sql("INSERT INTO interlock.bucket_state VALUES (%s, %s, 'importing', 's0', 2)", keyspace, bucket)
        self.subscribe(options)
        return self

    def subscribe(self, options=""):
        self.target.sql(f"CREATE SUBSCRIPTION {self.slot} CONNECTION '{self.source.instance.conninfo(self.slot, 'postgres')}' PUBLICATION {self.slot} "
                        f"WITH (create_slot = false, copy_data = false, slot_name = {self.slot}{options})")
        self.subscribed = True

    def marker(self):
        self.attempts += 1
        self.source.sql("INSERT INTO interlock.move_marker VALUES (%s, %s, '')", self.id, self.attempts)
        return self.attempts

    def drain(self, deadline=20):
        """Until everything written on the source so far is on the target."""
        attempt = self.marker()
        wait_until(lambda: self.target.value("SELECT true FROM interlock.move_marker WHERE move_id = %s AND fence = %s", self.id, attempt), deadline,
                   "the marker is on the target")

    def keys(self, bucket, count=1, keyspace="account"):
        return [row[0] for row in self.source.sql("SELECT g FROM generate_series(1, 100000) g WHERE interlock.bucket_of(%s, g) = %s LIMIT %s", keyspace, bucket, count)]

    def walsender(self):
        return self.source.value("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", self.slot)

    def same(self, table, bucket=MOVED, keyspace="account"):
        """The bucket's rows are the same on both sides; gives them."""
        query = f"SELECT * FROM {table} t WHERE interlock.bucket_of('{keyspace}', k) = {bucket} ORDER BY t::text"
        rows = self.target.sql(query)
        assert rows == self.source.sql(query)
        assert self.target.value(f"SELECT count(*) FROM {table} WHERE interlock.bucket_of('{keyspace}', k) <> {bucket}") == 0
        return rows

    def drop(self):
        if self.subscribed:
            self.target.sql(f"ALTER SUBSCRIPTION {self.slot} DISABLE")
            self.target.sql(f"ALTER SUBSCRIPTION {self.slot} SET (slot_name = NONE)")
            self.target.sql(f"DROP SUBSCRIPTION {self.slot}")
        self.source.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database() AND active_pid IS NOT NULL")
        wait_until(lambda: not self.source.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active"))
        self.source.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
        for shard in (self.source, self.target):
            shard.drop()


@pytest.fixture
def move(servers, request):
    number = request.session.items.index(request.node)
    made = Move(*servers, f"move_{number}").create()
    yield made
    made.drop()
    for server in servers:
        server.check_log()


PLAIN = "CREATE TABLE t (k bigint PRIMARY KEY, v text)"


def changes(session, slot, publication, options=""):
    """Kinds of the messages that wait in a slot."""
    return [bytes(row[0])[0:1].decode() for row in session.sql(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s{options})", slot, publication)]


# --- what passes -------------------------------------------------------------------------------


def test_only_rows_of_the_moving_bucket_arrive(move):
    move.tables(PLAIN, t="account")
    move.follow("t")
    chance = random.Random(6)
    with move.source.connect() as session:
        for turn in range(40):
            with session.transaction():
                for _ in range(chance.randint(1, 6)):
                    bucket, key = chance.randint(0, 7), None
                    key = chance.choice(move_keys(move)[bucket])
                    session.execute(chance.choice([
                        "INSERT INTO t VALUES (%s, 'new') ON CONFLICT (k) DO UPDATE SET v = t.v || 'x'",
                        "INSERT INTO t VALUES (%s, 'new') ON CONFLICT DO NOTHING",
                        "UPDATE t SET v = v || 'y' WHERE k = %s",
                        "DELETE FROM t WHERE k = %s"]), (key,))
    move.source.sql("INSERT INTO t SELECT g, 'copy' FROM generate_series(1000, 3000) g WHERE interlock.owns('account', g)")
    move.drain()
    assert len(move.same("t")) > 50


def move_keys(move):
    if not hasattr(move, "by_bucket"):
        move.by_bucket = {bucket: move.keys(bucket, 8) for bucket in range(8)}
    return move.by_bucket


def test_several_buckets_travel_in_one_slot(move):
    move.tables(PLAIN, t="account")
    move.follow("t", buckets=(0, 3, 7))
    move.source.sql("INSERT INTO t SELECT g, 'copy' FROM generate_series(1, 500) g WHERE interlock.owns('account', g)")
    move.drain()
    query = "SELECT k, v, interlock.bucket_of('account', k) FROM t WHERE interlock.bucket_of('account', k) IN (0, 3, 7) ORDER BY 1"
    assert move.target.sql(query) == move.source.sql(query)
    assert {row[0] for row in move.target.sql("SELECT DISTINCT interlock.bucket_of('account', k) FROM t")} == {0, 3, 7}


def test_truncate_on_the_source_harms_nothing(move):
    move.tables(PLAIN, t="account")
    move.follow("t")
    # A publication that would let it through.
    move.source.sql(f"ALTER PUBLICATION {move.slot} SET (publish = 'insert, update, delete, truncate')")
    [key] = move.keys(MOVED)
    move.source.sql("INSERT INTO t VALUES (%s, 'a')", key)
    move.drain()
    move.source.sql("SET interlock.allow_truncate = on; TRUNCATE t")
    move.drain()
    assert move.target.sql("SELECT k FROM t") == [(key,)]


def test_a_transaction_without_a_row_of_the_bucket_is_not_sent(move):
    move.tables(PLAIN, t="account")
    move.record()
    move.publish(["t"])
    move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot)
    move.source.sql("INSERT INTO t VALUES (%s, 'a')", move.keys(STAYS)[0])
    assert changes(move.source, move.slot, move.slot) == []
    move.source.sql("INSERT INTO t VALUES (%s, 'a')", move.keys(MOVED)[0])
    assert changes(move.source, move.slot, move.slot) == ["B", "R", "I", "C"]


def test_messages_markers_of_other_moves_and_other_tables_do_not_travel(move):
    move.keyspace("other", "bigint", "splitmix64")
    move.tables(PLAIN + "; CREATE TABLE reference (k bigint PRIMARY KEY); CREATE TABLE other (k bigint PRIMARY KEY)", t="account", other="other")
    move.record()
    move.publish(["t", "reference", "other"])
    move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot)
    move.source.sql("SELECT pg_logical_emit_message(true, 'x', 'y')")
    move.source.sql("INSERT INTO interlock.move_marker VALUES (gen_random_uuid(), 1, '')")
    for table in ("other", "reference"):
        move.source.sql(f"INSERT INTO {table} VALUES (%s)", move.keys(MOVED)[0])
    assert changes(move.source, move.slot, move.slot, ", 'messages', 'true'") == []
    move.marker()
    assert changes(move.source, move.slot, move.slot) == ["B", "R", "I", "C"]


def test_values_that_an_update_leaves_in_toast_stay_as_they_are(move):
    move.tables("CREATE TABLE t (k bigint PRIMARY KEY, small int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL", t="account")
    move.follow("t")
    moved, stays = move.keys(MOVED)[0], move.keys(STAYS)[0]
    for key in (moved, stays):
        move.source.sql("INSERT INTO t SELECT %s, 0, string_agg(md5(g::text), '') FROM generate_series(1, 1000) g", key)
    move.source.sql("UPDATE t SET small = small + 1")
    move.drain()
    [(_, small, big)] = move.same("t")
    assert small == 1 and len(big) == 32000
    move.source.sql("UPDATE t SET big = repeat(md5(k::text), 200); UPDATE t SET small = 2")
    move.drain()
    assert move.same("t")[0][1] == 2


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_key_so_long_that_it_is_in_toast_is_read(move, identity):
    move.keyspace("name", "text", "xxh3_64")
    move.tables(f"CREATE TABLE t (k text PRIMARY KEY, v int); ALTER TABLE t ALTER k SET STORAGE EXTERNAL; ALTER TABLE t REPLICA IDENTITY {identity}", t="name")
    move.follow("t", keyspace="name")
    rows = "FROM (SELECT string_agg(md5(g || '-' || h), '') AS k FROM generate_series(1, 40) g, generate_series(1, 81) h GROUP BY g) n WHERE interlock.owns('name', k)"
    move.source.sql(f"INSERT INTO t SELECT k, 0 {rows}")
    assert move.source.value("SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 't'::regclass") > 0
    move.source.sql("UPDATE t SET v = 1")
    move.drain()
    assert {row[1] for row in move.same("t", keyspace="name")} == {1}
    # When this is read, the keys are not in the table's TOAST table any more.
    move.target.sql(f"ALTER SUBSCRIPTION {move.slot} DISABLE")
    wait_until(lambda: move.walsender() is None)
    move.source.sql("UPDATE t SET v = 2")
    move.source.sql("DELETE FROM t")
    move.source.sql("VACUUM t")
    move.source.sql("CHECKPOINT")
    move.target.sql(f"ALTER SUBSCRIPTION {move.slot} ENABLE")
    move.drain()
    assert move.same("t", keyspace="name") == []


@pytest.mark.parametrize("key_type, hash_name, value", [("uuid", "xxh3_64", "md5(g::text)::uuid"), ("bytea", "xxh3_64", "decode(md5(g::text), 'hex')"),
                                                        ("text", "xxh3_64", "'kéy ' || g")])
def test_keys_of_every_family(move, key_type, hash_name, value):
    move.keyspace("other", key_type, hash_name)
    move.tables(f"CREATE DOMAIN key_of AS {key_type}; CREATE TABLE t (gone int, v int, k key_of PRIMARY KEY); ALTER TABLE t DROP gone", t="other")
    move.follow("t", keyspace="other")
    move.source.sql(f"INSERT INTO t SELECT g, {value} FROM generate_series(1, 200) g WHERE interlock.owns('other', ({value})::key_of)")
    move.source.sql("UPDATE t SET v = -v WHERE v % 2 = 0; DELETE FROM t WHERE v % 3 = 0")
    move.drain()
    assert len(move.same("t", keyspace="other")) > 3


def test_small_integer_keys(move):
    move.tables("CREATE TABLE t (k smallint PRIMARY KEY); CREATE TABLE u (k int PRIMARY KEY)", t="account", u="account")
    move.follow("t", "u")
    move.source.sql("INSERT INTO t SELECT g FROM generate_series(-200, 200) g WHERE interlock.owns('account', g); INSERT INTO u SELECT k FROM t; DELETE FROM t WHERE k < 0")
    move.drain()
    assert 0 < len(move.same("t")) < len(move.same("u"))


def test_generated_and_identity_columns(move):
    move.tables("""CREATE TABLE t (n int GENERATED ALWAYS AS IDENTITY, k bigint, v int, twice int GENERATED ALWAYS AS (v * 2) STORED,
                                   PRIMARY KEY (k, n))""", t="account")
    move.follow("t")
    for key in (move.keys(MOVED)[0], move.keys(STAYS)[0]):
        move.source.sql("INSERT INTO t (k, v) SELECT %s, g FROM generate_series(1, 5) g", key)
    move.source.sql("UPDATE t SET v = v + 100 WHERE v % 2 = 1")
    move.drain()
    rows = move.same("t")
    assert len(rows) == 5 and all(row[3] == 2 * row[2] for row in rows)


@pytest.mark.parametrize("root", [True, False])
def test_partitioned_tables(move, root):
    """Partitions of partitions, with columns in another order; rows that change partition within their bucket."""
    move.tables("""
        CREATE TABLE t (k bigint, region int, v text, PRIMARY KEY (k, region)) PARTITION BY LIST (region);
        CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
        CREATE TABLE t2 (v text, gone int, region int NOT NULL, k bigint NOT NULL, PRIMARY KEY (k, region)) PARTITION BY RANGE (k);
        ALTER TABLE t2 DROP gone;
        ALTER TABLE t ATTACH PARTITION t2 FOR VALUES IN (2);
        CREATE TABLE t2a (region int NOT NULL, v text, k bigint NOT NULL, PRIMARY KEY (k, region));
        ALTER TABLE t2 ATTACH PARTITION t2a FOR VALUES FROM (0) TO (100000);
    """, t="account")
    move.follow("t", root=root)
    move.source.sql("INSERT INTO t SELECT g, 1 + g % 2, 'v' FROM generate_series(1, 300) g WHERE interlock.owns('account', g)")
    move.source.sql("UPDATE t SET region = 3 - region WHERE k % 3 = 0; UPDATE t SET v = 'w' WHERE k % 5 = 0; DELETE FROM t WHERE k % 7 = 0")
    move.drain()
    assert len(move.same("t")) > 10
    assert move.target.value("SELECT count(DISTINCT tableoid) FROM t") == 2


def test_a_partition_with_another_schema_on_the_target_goes_through_the_root(move):
    move.source.sql("CREATE TABLE t (k bigint PRIMARY KEY, v text) PARTITION BY HASH (k); CREATE TABLE p0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    move.target.sql(PLAIN)
    for shard in (move.source, move.target):
        shard.sql("SELECT interlock.shard_table('t', 'account', 'k')")
    move.follow("t")
    move.source.sql("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 300) g WHERE interlock.owns('account', g); DELETE FROM t WHERE k % 7 = 0")
    move.drain()
    assert len(move.same("t")) > 10


def test_children_by_inheritance(move):
    move.tables("CREATE TABLE t (k bigint PRIMARY KEY, v int); CREATE TABLE child (more int, PRIMARY KEY (k)) INHERITS (t)", t="account")
    move.follow("t", "child")
    move.source.sql("INSERT INTO child SELECT g, 1, 2 FROM generate_series(1, 300) g WHERE interlock.owns('account', g); UPDATE t SET v = 5 WHERE k % 2 = 0")
    move.drain()
    assert len(move.same("child")) > 10


def test_replica_identity_full_without_a_primary_key(move):
    move.tables("CREATE TABLE t (k bigint NOT NULL, v int); ALTER TABLE t REPLICA IDENTITY FULL", t="account")
    move.follow("t")
    moved, also = move.keys(MOVED, 2)
    move.source.sql("INSERT INTO t SELECT k, g FROM generate_series(1, 4) g, unnest(%s::bigint[]) k", [moved, also, *move.keys(STAYS, 2)])
    # A key may change within its bucket.
    move.source.sql("UPDATE t SET k = %s WHERE k = %s AND v = 1", also, moved)
    move.source.sql("UPDATE t SET v = v * 10 WHERE v = 2; DELETE FROM t WHERE v = 3")
    move.drain()
    assert len(move.same("t")) == 6


def test_a_key_that_changes_within_its_bucket(move):
    move.tables(PLAIN, t="account")
    move.follow("t")
    before, after = move.keys(MOVED, 2)
    move.source.sql("INSERT INTO t VALUES (%s, 'a')", before)
    move.source.sql("UPDATE t SET k = %s", after)
    move.drain()
    assert move.same("t") == [(after, "a")]


def test_a_prepared_transaction_travels_when_it_is_committed(move):
    move.tables(PLAIN, t="account")
    move.follow("t")
    with move.source.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO t VALUES (%s, 'prepared')", (move.keys(MOVED)[0],))
        session.execute("INSERT INTO t VALUES (%s, 'prepared')", (move.keys(STAYS)[0],))
        session.execute(f"PREPARE TRANSACTION '{move.slot}'")
        move.drain()
        assert move.target.sql("SELECT * FROM t") == []
        session.execute(f"COMMIT PREPARED '{move.slot}'")
    move.drain()
    assert len(move.same("t")) == 1


def test_a_transaction_larger_than_decoding_memory_and_its_savepoints(move):
    move.tables(PLAIN, t="account")
    setting(move.source.instance, "logical_decoding_work_mem", "'64kB'")
    try:
        move.follow("t")
        with move.source.connect() as session, session.transaction():
            session.execute("INSERT INTO t SELECT g, 'big' FROM generate_series(1, 20000) g WHERE interlock.owns('account', g)")
            session.execute("SAVEPOINT s")
            session.execute("DELETE FROM t")
            session.execute("ROLLBACK TO s")
            session.execute("UPDATE t SET v = 'bigger' WHERE k % 10 = 0")
        move.drain()
        assert len(move.same("t")) > 1000
    finally:
        setting(move.source.instance, "logical_decoding_work_mem", None)


def test_a_large_transaction_of_other_buckets_is_no_silence(move):
    """Nothing of it is sent; the subscriber must hear all the same that the source goes on, or it begins anew for ever."""
    move.tables("CREATE TABLE t (k bigint NOT NULL, v int); ALTER TABLE t REPLICA IDENTITY FULL", t="account")
    move.follow("t")
    move.drain()
    try:
        setting(move.source.instance, "wal_sender_timeout", "'1s'")
        setting(move.target.instance, "wal_receiver_timeout", "'1s'")
        setting(move.source.instance, "logical_decoding_work_mem", "'64kB'")
        sender = move.walsender()
        # What is read now takes longer than that.
        move.source.sql("INSERT INTO t SELECT %s, g FROM generate_series(1, 1000000) g", move.keys(STAYS)[0])
        with Stopwatch() as watch:
            move.drain(120)
        assert watch.seconds > 1.2, "too fast to show anything"
        assert move.walsender() == sender
        assert "due to timeout" not in move.target.instance.log.read_text()
    finally:
        for name in ("wal_sender_timeout", "logical_decoding_work_mem"):
            setting(move.source.instance, name, None)
        setting(move.target.instance, "wal_receiver_timeout", None)


def test_changes_are_read_as_the_table_was_when_they_were_made(move):
    move.tables("CREATE TABLE t (id int PRIMARY KEY, k bigint NOT NULL); ALTER TABLE t REPLICA IDENTITY FULL", t="account")
    move.follow("t")
    moved, also = move.keys(MOVED, 2)
    stays = move.keys(STAYS)[0]
    move.target.sql(f"ALTER SUBSCRIPTION {move.slot} DISABLE")
    rows = "INSERT INTO t (id, k) VALUES (%s, %s), (%s, %s)"
    move.source.sql(rows, 1, moved, 2, stays)
    move.source.sql(rows, 3, also, 4, also)
    move.source.sql("DELETE FROM t WHERE id IN (2, 3)")
    move.source.sql("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k, id), REPLICA IDENTITY DEFAULT")
    move.source.sql("DELETE FROM t WHERE id = 4")
    move.source.sql("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id), ADD COLUMN more int")
    move.source.sql(rows, 5, moved, 6, stays)
    move.source.sql("ALTER TABLE t DROP COLUMN more, REPLICA IDENTITY FULL")
    move.source.sql("UPDATE t SET id = id + 10 WHERE id = 5")
    # More columns than the target has.
    move.target.sql("ALTER TABLE t ADD COLUMN more int")
    move.target.sql(f"ALTER SUBSCRIPTION {move.slot} ENABLE")
    move.drain()
    assert sorted(move.target.sql("SELECT id, k FROM t")) == [(1, moved), (15, moved)]


def test_a_partition_made_in_the_middle_is_followed(move):
    move.tables("CREATE TABLE t (k bigint, d int, PRIMARY KEY (k, d)) PARTITION BY LIST (d); CREATE TABLE p1 PARTITION OF t FOR VALUES IN (1)", t="account")
    move.follow("t")
    moved, stays = move.keys(MOVED)[0], move.keys(STAYS)[0]
    move.source.sql("INSERT INTO t VALUES (%s, 1), (%s, 1)", moved, stays)
    move.drain()
    for shard in (move.source, move.target):
        shard.sql("CREATE TABLE p2 PARTITION OF t FOR VALUES IN (2)")
        # This one is a table of its own at first.
        shard.sql("CREATE TABLE p3 (k bigint NOT NULL, d int NOT NULL, PRIMARY KEY (k, d)); INSERT INTO p3 VALUES (4, 3); DELETE FROM p3")
        shard.sql("ALTER TABLE t ATTACH PARTITION p3 FOR VALUES IN (3)")
    move.source.sql("INSERT INTO t VALUES (%s, 2), (%s, 2)", moved, stays)
    move.source.sql("INSERT INTO t VALUES (%s, 3), (%s, 3)", moved, stays)
    move.source.sql("DELETE FROM t WHERE d = 1")
    move.drain()
    assert move.same("t") == [(moved, 2), (moved, 3)]


# --- restarts ----------------------------------------------------------------------------------


def test_a_walsender_that_is_ended_goes_on_where_it_was(move):
    move.tables(PLAIN, t="account")
    move.follow("t")
    keys = iter(move.keys(MOVED, 30))
    for turn in range(5):
        move.source.sql("INSERT INTO t VALUES (%s, 'moved'), (%s, 'stays')", next(keys), move.keys(STAYS, 30)[turn])
        pid = wait_until(move.walsender)
        move.source.sql("SELECT pg_terminate_backend(%s)", pid)
        move.source.sql("INSERT INTO t VALUES (%s, 'moved')", next(keys))
    move.drain()
    assert len(move.same("t")) == 10


def test_a_source_that_crashes_and_comes_back(move):
    move.tables(PLAIN, t="account")
    move.follow("t")
    moved, stays = move.keys(MOVED, 3), move.keys(STAYS, 3)
    for turn in range(3):
        move.source.sql("INSERT INTO t VALUES (%s, 'a'), (%s, 'b')", moved[turn], stays[turn])
        if turn < 2:
            move.source.instance.restart("immediate")
    move.drain()
    assert len(move.same("t")) == 3


# --- refusals ----------------------------------------------------------------------------------


def test_a_table_without_its_key_in_the_replica_identity_is_refused(move):
    move.tables("CREATE TABLE t (id int PRIMARY KEY, k bigint NOT NULL)", t="account")
    move.record()
    move.publish(["t"])
    move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot)
    move.source.sql("INSERT INTO t VALUES (1, %s)", move.keys(MOVED)[0])
    assert changes(move.source, move.slot, move.slot) == ["B", "R", "I", "C"]
    move.source.sql("DELETE FROM t")
    with refusal("55000") as caught:
        changes(move.source, move.slot, move.slot)
    assert "public.t" in str(caught[0]) and '"k"' in caught[0].diag.message_detail
    # What follows a session's failed attempt is filtered as before.
    with move.source.connect() as session:
        for _ in range(3):
            with refusal("55000"):
                session.execute("SELECT * FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)", (move.slot, move.slot))


def test_nothing_logged_of_a_deleted_row_is_refused_too(move):
    """pgoutput would say nothing of it."""
    move.tables("CREATE TABLE t (k bigint NOT NULL); ALTER TABLE t REPLICA IDENTITY NOTHING", t="account")
    move.record()
    move.source.sql(f"CREATE PUBLICATION {move.slot} FOR TABLE t WITH (publish = 'insert')")
    move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot)
    move.source.sql("INSERT INTO t VALUES (%s)", move.keys(MOVED)[0])
    move.source.sql("DELETE FROM t")
    with refusal("55000"):
        changes(move.source, move.slot, move.slot)


def test_a_row_that_has_changed_its_bucket_unseen_by_the_guard_is_refused(move):
    move.tables(PLAIN, t="account")
    move.record()
    move.publish(["t"])
    move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot)
    [moved], [stays], [elsewhere] = move.keys(MOVED), move.keys(STAYS), move.keys(STAYS + 2)
    move.source.sql("INSERT INTO t VALUES (%s), (%s)", moved, stays)
    move.source.sql("ALTER TABLE t DISABLE TRIGGER ALL")
    move.source.sql("UPDATE t SET k = %s WHERE k = %s", elsewhere, stays)
    assert changes(move.source, move.slot, move.slot) == ["B", "R", "I", "C"]
    move.source.sql("UPDATE t SET k = %s WHERE k = %s", stays, moved)
    with refusal("XX001") as caught:
        changes(move.source, move.slot, move.slot)
    assert f"from bucket {MOVED} to bucket {STAYS}" in str(caught[0])


def test_the_refusal_reaches_the_subscriber_and_harms_no_writer(move):
    move.tables("CREATE TABLE t (id int PRIMARY KEY, k bigint NOT NULL)", t="account")
    move.follow("t")
    mark = move.target.instance.log_mark()
    move.source.sql("INSERT INTO t VALUES (1, %s), (2, %s)", move.keys(MOVED)[0], move.keys(STAYS)[0])
    move.source.sql("UPDATE t SET id = id + 10")
    wait_until(lambda: "cannot follow updates and deletes of table public.t" in move.target.instance.log_since(mark), 20, "the subscriber has been told")
    move.source.sql("INSERT INTO t VALUES (3, %s)", move.keys(MOVED)[0])


@pytest.mark.parametrize("option, words", [(", streaming = true", "streaming requested"), (", two_phase = true", "two-phase commit requested")])
def test_streaming_and_two_phase_are_refused(move, option, words):
    move.tables(PLAIN, t="account")
    mark = move.target.instance.log_mark()
    move.follow("t", options=option)
    wait_until(lambda: words in move.target.instance.log_since(mark), 20, "the subscriber has been told")


def test_a_slot_that_no_move_has_recorded_cannot_be_made(move):
    with refusal("42704"):
        move.source.sql(f"SELECT {SLOT}('nobody', 'interlock')")
    assert move.source.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'nobody'") == 0
    with psycopg.connect(move.source.instance.conninfo(move.slot, "postgres") + " replication=database", autocommit=True) as session, refusal("42704"):
        session.execute("CREATE_REPLICATION_SLOT nobody LOGICAL interlock")


@pytest.mark.parametrize("snapshot", ["export", "use", "nothing"])
def test_a_slot_can_export_its_snapshot(move, snapshot):
    move.tables(PLAIN, t="account")
    move.source.sql("INSERT INTO t VALUES (%s, 'a')", move.keys(MOVED)[0])
    move.record()
    move.publish(["t"])
    with psycopg.connect(move.source.instance.conninfo(move.slot, "postgres") + " replication=database", autocommit=True, cursor_factory=psycopg.ClientCursor) as session:
        if snapshot == "use":
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        name = session.execute(f"CREATE_REPLICATION_SLOT {move.slot} LOGICAL interlock (SNAPSHOT '{snapshot}')").fetchone()[2]
        move.source.sql("INSERT INTO t VALUES (%s, 'b')", move.keys(MOVED, 2)[1])
        if snapshot == "use":
            assert session.execute("SELECT v FROM t").fetchall() == [("a",)]
            session.execute("COMMIT")
        if snapshot == "export":
            with move.source.connect() as reader:
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                reader.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
                assert reader.execute("SELECT v FROM t").fetchall() == [("a",)]
    assert changes(move.source, move.slot, move.slot) == ["B", "R", "I", "C"]


def test_what_a_slot_follows_is_written_once_and_kept_as_long_as_the_slot(move):
    move.record((3, 2, 3))
    move.record((2, 3))  # again, the same
    with refusal("42710"):
        move.record((2,))
    for bad in ([16], [-1]):
        with refusal("22023"):
            move.record(bad, slot="other")
    with refusal("22023"):
        move.source.sql("SELECT interlock.record_move_slot('other', %s, 'account', '{}')", move.id)
    with refusal("42704"):
        move.record(keyspace="nothing", slot="other")
    move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot)
    with refusal("55000"):
        move.source.sql("SET session_replication_role = replica; UPDATE interlock.move_slot SET buckets = '{4}'")
    with refusal("55006"):
        move.source.sql("SELECT interlock.forget_move_slot(%s)", move.slot)
    move.source.sql("SELECT pg_drop_replication_slot(%s)", move.slot)
    assert move.source.value("SELECT interlock.forget_move_slot(%s)", move.slot) is True
    assert move.source.value("SELECT interlock.forget_move_slot(%s)", move.slot) is False


def test_a_keyspace_on_the_move_keeps_its_tables(move):
    move.tables(PLAIN + "; CREATE TABLE u (k bigint PRIMARY KEY)", t="account")
    move.record()
    for attempt in ("SELECT interlock.shard_table('u', 'account', 'k')", "SELECT interlock.unshard_table('t')", "DROP TABLE t",
                    "SET session_replication_role = replica; DELETE FROM interlock.guarded_table"):
        with refusal("55006"):
            move.source.sql(attempt)
    move.source.sql("SELECT interlock.shard_table('t', 'account', 'k')")  # nothing new
    move.source.sql('DROP TRIGGER "~interlock_guard" ON t')
    move.source.sql("SELECT interlock.shard_table('t', 'account', 'k')")  # the guard again
    assert move.source.sql("SELECT * FROM interlock.check_guards()") == []
    move.source.sql("SELECT interlock.define_keyspace('other', 'bigint', 'splitmix64', 16); SELECT interlock.shard_table('u', 'other', 'k')")
    move.source.sql("SELECT interlock.forget_move_slot(%s)", move.slot)
    move.source.sql("SELECT interlock.unshard_table('t')")


def test_a_role_that_may_replicate_makes_a_slot_where_the_server_allows_the_plugin(move):
    server = move.source.instance
    move.record()
    move.publish(["interlock.keyspace"])
    move.source.sql(f"CREATE ROLE {move.slot} LOGIN REPLICATION")
    try:
        if not allow(server, "pgoutput"):
            pytest.skip("this server has no output_plugin_libraries")
        for user in (move.slot, "postgres"):
            with refusal("42501"):
                move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot, user=user)
        allow(server, "pgoutput, interlock")
        move.source.sql(f"SELECT {SLOT}(%s, 'interlock')", move.slot, user=move.slot)
        assert changes(move.source, move.slot, move.slot) == []
        # It is asked for each time a slot is read, too: the setting has to stay as long as the move.
        allow(server, "pgoutput")
        with refusal("42501"):
            changes(move.source, move.slot, move.slot)
    finally:
        allow(server, "pgoutput, interlock")
        move.source.sql(f"DROP ROLE {move.slot}")
