"""Copies of a shard (dump and restore, clone, replication), other encodings: the guard goes along."""

import subprocess

import pytest

from support.shard import KEY, SECOND_KEY, Shard, refusal
from support.wait import wait_until

SCHEMA = """
    SELECT interlock.create_cluster('bank');
    SELECT interlock.add_shard('s0', 'host=a'), interlock.create_keyspace('account', 'bigint', 16);
    SELECT interlock.declare_table('account', 'account', 'account_id');
    SELECT interlock.assign('account', array(SELECT generate_series(0, 15)), 's0'), interlock.publish();
    CREATE TABLE owner (name text PRIMARY KEY);
    CREATE TABLE entry (account_id bigint NOT NULL, region int NOT NULL, name text REFERENCES owner) PARTITION BY LIST (region);
    CREATE TABLE entry_1 PARTITION OF entry FOR VALUES IN (1);
    CREATE TABLE entry_2 (name text, account_id bigint NOT NULL, region int NOT NULL) ;
    ALTER TABLE entry ATTACH PARTITION entry_2 FOR VALUES IN (2);
    CREATE INDEX ON entry (account_id);
    CREATE TABLE base (account_id bigint NOT NULL, CHECK (account_id >= 0));
    CREATE TABLE child (PRIMARY KEY (account_id)) INHERITS (base);
    SELECT interlock.shard_table('entry', 'account', 'account_id'), interlock.shard_table('base', 'account', 'account_id');
    INSERT INTO owner VALUES ('bob');
    INSERT INTO account SELECT g, g FROM generate_series(1, 2000) g WHERE interlock.owns('account', g);
    INSERT INTO entry SELECT g, 1 + g % 2, 'bob' FROM generate_series(1, 2000) g WHERE interlock.owns('account', g);
    INSERT INTO base VALUES (6);
    INSERT INTO child VALUES (6);
"""
CONTENTS = """
    SELECT (SELECT string_agg(a::text, ',' ORDER BY account_id) FROM account a), (SELECT string_agg(e::text, ',' ORDER BY account_id) FROM entry e),
           (SELECT string_agg(b::text, ',' ORDER BY account_id) FROM base b), (SELECT count(*) FROM interlock.routes),
           (SELECT string_agg(g::text, ',' ORDER BY g::text) FROM interlock.guarded_table g),
           (SELECT string_agg(s::text, ',' ORDER BY bucket) FROM interlock.bucket_state s),
           (SELECT string_agg(concat_ws(' ', tgrelid::regclass, tgname, tgenabled, pg_get_triggerdef(oid)), ',' ORDER BY tgrelid::regclass::text, tgname)
              FROM pg_trigger WHERE tgname LIKE '~interlock%')
"""


@pytest.fixture
def shard(instance, request):
    shard = Shard(instance, f"copies_{abs(hash(request.node.name)) % 10**9}").create().describe()
    yield shard
    shard.drop()
    instance.check_log()


@pytest.fixture
def another_shard(instance, request):
    """A second, empty database."""
    name = f"other_{abs(hash(request.node.name)) % 10**9}"
    instance.sql(f"CREATE DATABASE {name} TEMPLATE template0", dbname="postgres")
    shard = Shard(instance, name)
    yield shard
    shard.drop()


def run(instance, program, *arguments, **options):
    done = subprocess.run([instance.bin / program, *arguments], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_recognised_as_a_copy_and_can_be_adopted(copy):
    assert copy.sql("SELECT shard, restored FROM interlock.greet(0)") == [("s0", True)]
    for table in ("account", "entry", "entry_2", "base", "child"):
        with refusal("IL104"):
            copy.sql(f"DELETE FROM {table}")
    with refusal("IL104"):
        copy.sql("INSERT INTO entry VALUES (6, 1)")
    copy.sql("SELECT interlock.adopt_shard()")
    assert copy.sql("SELECT shard, restored FROM interlock.greet(0)") == [("s0", False)]
    assert copy.sql("SELECT * FROM interlock.check_guards()") == []
    for region in (1, 2):
        copy.sql("INSERT INTO entry VALUES (%s, %s, 'bob')", KEY[0], region)
        with refusal("IL101"):
            copy.sql("INSERT INTO entry VALUES (%s, %s, 'bob')", KEY[10], region)
    with refusal("IL101"):
        copy.sql("INSERT INTO child VALUES (%s)", KEY[10])
    copy.sql("CREATE TABLE entry_3 PARTITION OF entry FOR VALUES IN (3)")
    with refusal("IL101"):
        copy.sql("INSERT INTO entry_3 VALUES (%s, 3)", KEY[10])
    assert copy.sql("SELECT interlock.add_shard('s1', 'host=b'), interlock.create_keyspace('more', 'text', 4)")
    assert copy.sql("SELECT id FROM interlock.shard ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_dump_of_a_shard_arrives_whole_and_is_recognised_as_a_copy(shard, another_shard, tmp_path, jobs):
    shard.sql(SCHEMA)
    instance = shard.instance
    tmp_path.chmod(0o755)
    dump = tmp_path / "dump"
    run(instance, "pg_dump", "-Fc", "-f", dump, "-d", instance.conninfo(shard.dbname, "postgres"))
    # With several jobs PostgreSQL makes the triggers of a partitioned table before the data of its partitions is in
    # (it only waits for the parent's, which has none): there the data has to come first, as docs/dba.md says.
    sections = [["--section=pre-data", "--section=data"], ["--section=post-data"]] if jobs > 1 else [[]]
    for section in sections:
        run(instance, "pg_restore", "--exit-on-error", *section, "-j", str(jobs),
            "-d", instance.conninfo(another_shard.dbname, "postgres"), dump)
    assert another_shard.sql(CONTENTS) == shard.sql(CONTENTS)
    is_recognised_as_a_copy_and_can_be_adopted(another_shard)
    # The original is what it was.
    shard.sql("INSERT INTO entry VALUES (%s, 1, 'bob')", KEY[0])


def test_a_plain_text_dump_goes_into_another_server(shard, make_instance):
    shard.sql(SCHEMA)
    text = run(shard.instance, "pg_dump", "-d", shard.instance.conninfo(shard.dbname, "postgres"))
    other = make_instance("other", extension=False)
    run(other, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", other.conninfo("app", "postgres"), input=text)
    copy = Shard(other, "app")
    assert copy.sql(CONTENTS) == shard.sql(CONTENTS)
    is_recognised_as_a_copy_and_can_be_adopted(copy)


def test_a_dump_of_the_schema_alone_is_closed_until_it_is_made_a_shard(shard, another_shard):
    shard.sql(SCHEMA)
    text = run(shard.instance, "pg_dump", "--schema-only", "-d", shard.instance.conninfo(shard.dbname, "postgres"))
    run(shard.instance, "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d",
        shard.instance.conninfo(another_shard.dbname, "postgres"), input=text)
    with refusal("42704"):
        another_shard.sql("INSERT INTO account VALUES (%s, 1)", KEY[0])
    another_shard.sql("SELECT interlock.set_identity('00000000-0000-0000-0000-000000000002', 's5');"
                      "SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);"
                      "SELECT interlock.accept_buckets('account', '{10}', 1);"
                      "SELECT interlock.shard_table('account', 'account', 'account_id'), interlock.shard_table('entry', 'account', 'account_id')")
    another_shard.sql("INSERT INTO account VALUES (%s, 1)", KEY[10])
    with refusal("IL101"):
        another_shard.sql("INSERT INTO account VALUES (%s, 1)", KEY[0])
    assert another_shard.sql("SELECT * FROM interlock.check_guards()") == []


def test_a_clone_made_with_create_database_is_recognised_as_a_copy(shard):
    shard.sql("INSERT INTO account VALUES (%s, 1)", KEY[0])
    clone = Shard(shard.instance, shard.dbname + "_clone")
    shard.instance.sql(f"CREATE DATABASE {clone.dbname} TEMPLATE {shard.dbname}", dbname="postgres")
    try:
        with refusal("IL104"):
            clone.sql("DELETE FROM account")
        clone.sql("SELECT interlock.adopt_shard()")
        clone.sql("DELETE FROM account")
        shard.sql("UPDATE account SET balance = 2")
    finally:
        clone.drop()


# --- logical replication -----------------------------------------------------------------------


@pytest.fixture
def replication(shard, make_instance):
    """A source with the table (no shard, no guard), and a function that subscribes the shard to it."""
    source = make_instance("source", extension=False)
    source.sql("CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint)")
    source.sql("CREATE PUBLICATION moving FOR TABLE account WITH (publish = 'insert, update, delete')")

    def subscribe(copy_data):
        shard.sql(f"CREATE SUBSCRIPTION {shard.dbname} CONNECTION '{source.conninfo('app', 'postgres')}' PUBLICATION moving "
                  f"WITH (copy_data = {copy_data}, disable_on_error = true)")

    yield source, subscribe
    shard.sql(f"ALTER SUBSCRIPTION {shard.dbname} DISABLE")
    shard.sql(f"DROP SUBSCRIPTION {shard.dbname}")


def has_stopped(shard):
    return shard.value("SELECT NOT subenabled FROM pg_subscription WHERE subname = %s", shard.dbname)


def test_an_apply_worker_may_write_to_a_bucket_that_is_importing_and_nobody_else(shard, replication):
    source, subscribe = replication
    shard.set_state(15, "importing")
    first, second = KEY[15], SECOND_KEY[15]
    source.sql("INSERT INTO account VALUES (%s, 1)", first)
    subscribe(copy_data="true")  # the first row comes with the initial copy
    wait_until(lambda: shard.keys() == [first], 30, "the copied row is there")
    source.sql("INSERT INTO account VALUES (%s, 1)", second)
    source.sql("UPDATE account SET balance = 7")
    wait_until(lambda: shard.sql("SELECT balance FROM account") == [(7,), (7,)], 30, "the update is there")
    source.sql("DELETE FROM account WHERE account_id = %s", first)
    wait_until(lambda: shard.keys() == [second], 30, "the row is gone")
    for statement in (f"INSERT INTO account VALUES ({first}, 1)", "UPDATE account SET balance = 8", "DELETE FROM account",
                      "SET session_replication_role = replica; DELETE FROM account"):
        with refusal("IL101"):
            shard.sql(statement)
    # Once the bucket is this shard's, it is everybody's.
    shard.sql("UPDATE interlock.bucket_state SET state = 'owned', peer = NULL WHERE bucket = 15")
    shard.sql("UPDATE account SET balance = 8")


@pytest.mark.parametrize("state", [None, "moved", "fenced"])
def test_an_apply_worker_is_refused_in_any_other_bucket_that_is_not_owned(shard, replication, state):
    source, subscribe = replication
    if state:
        shard.set_state(10, state)
    subscribe(copy_data="false")
    source.sql("INSERT INTO account VALUES (%s, 1)", KEY[0])
    wait_until(lambda: shard.keys() == [KEY[0]], 30, "a row of an owned bucket is there")
    source.sql("INSERT INTO account VALUES (%s, 1)", KEY[10])
    wait_until(lambda: has_stopped(shard), 30, "the subscription stops")
    assert shard.keys() == [KEY[0]]
    # It was the guard: with the bucket importing, the same change goes through.
    shard.set_state(10, "importing")
    shard.sql(f"ALTER SUBSCRIPTION {shard.dbname} ENABLE")
    wait_until(lambda: KEY[10] in shard.keys(), 30, "the row is there")


def test_a_state_change_reaches_an_apply_worker_that_is_running(shard, replication):
    source, subscribe = replication
    shard.set_state(15, "importing")
    subscribe(copy_data="false")
    source.sql("INSERT INTO account VALUES (%s, 1)", KEY[15])
    wait_until(lambda: shard.keys() == [KEY[15]], 30, "the row is there")
    shard.set_state(15, "moved")
    source.sql("INSERT INTO account VALUES (%s, 1)", SECOND_KEY[15])
    wait_until(lambda: has_stopped(shard), 30, "the subscription stops")
    assert shard.keys() == [KEY[15]]


# --- encodings ---------------------------------------------------------------------------------

WORDS = ["Grüße", "naïve café", "plain", "ÿ", "", "Å" * 300]


def test_the_same_text_is_the_same_key_in_a_database_of_another_encoding(shard):
    hashes = [shard.value("SELECT interlock.hash_key(%s::text)", word) for word in WORDS]
    latin = Shard(shard.instance, shard.dbname + "_latin")
    shard.instance.sql(f"CREATE DATABASE {latin.dbname} TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'",
                       dbname="postgres")
    try:
        latin.sql("CREATE EXTENSION interlock")
        assert [latin.value("SELECT interlock.hash_key(%s::text)", word) for word in WORDS] == hashes
        assert [latin.value("SELECT interlock.hash_key(%s::varchar(400))", word) for word in WORDS] == hashes
        # The guard agrees, over many rows and without keeping memory.
        latin.sql("""
            SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
            SELECT interlock.define_keyspace('word', 'text', 'xxh3_64', 3);
            SELECT interlock.accept_buckets('word', '{0,1}', 1);
            CREATE TABLE word (k text NOT NULL);
            SELECT interlock.shard_table('word', 'word', 'k');
        """)
        latin.sql("INSERT INTO word SELECT k FROM (SELECT 'ü' || g FROM generate_series(1, 20000) g) s(k) WHERE interlock.owns('word', k)")
        assert 10000 < latin.value("SELECT count(*) FROM word") < 17000
        assert latin.sql("SELECT * FROM interlock.misplaced('word')") == []
        with refusal("IL101"):
            latin.sql("INSERT INTO word SELECT 'ü' || g FROM generate_series(1, 100) g")
    finally:
        latin.drop()


def test_a_database_without_an_encoding_takes_utf8_and_refuses_other_bytes(shard):
    ascii_shard = Shard(shard.instance, shard.dbname + "_ascii")
    shard.instance.sql(f"CREATE DATABASE {ascii_shard.dbname} TEMPLATE template0 ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C'",
                       dbname="postgres")
    try:
        ascii_shard.sql("CREATE EXTENSION interlock")
        with ascii_shard.connect() as session:
            for word in WORDS:
                assert session.execute("SELECT interlock.hash_key(%s::text)", (word.encode().decode(),)).fetchone()[0] \
                    == shard.value("SELECT interlock.hash_key(%s::text)", word)
            with refusal("22021"):
                session.execute("SELECT interlock.hash_key(convert_from('\\xfc'::bytea, 'SQL_ASCII'))")
    finally:
        ascii_shard.drop()
