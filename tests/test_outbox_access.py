"""Who may do what with the outbox, and what nobody can make it do."""

import pytest

from support.outbox import done, take, transaction
from support.shard import KEY, refusal

CONSUMER = {
    "take": "SELECT * FROM interlock.outbox_take(10)", "done": "SELECT interlock.outbox_done('{}')",
    "failed": "SELECT interlock.outbox_failed(%s, 'x')", "park": "SELECT interlock.outbox_park('{}', 'x')",
    "rotate": "SELECT interlock.outbox_rotate('default')", "last": "SELECT * FROM interlock.outbox_last()",
    "drained": "SELECT interlock.outbox_drained('default', 1)", "oldest": "SELECT interlock.outbox_oldest('default')",
    "backlog": "SELECT * FROM interlock.outbox_backlog",
}
OPERATOR = {
    "attach": "SELECT interlock.outbox_attach('t')", "detach": "SELECT interlock.outbox_detach('t')",
    "insert": "INSERT INTO interlock.outbox (seq) VALUES (1)", "segment": "INSERT INTO interlock.outbox_default_0 (seq) VALUES (1)",
    "delete": "DELETE FROM interlock.outbox", "truncate": "TRUNCATE interlock.outbox_default_0",
    "number": "SELECT nextval('interlock.outbox_seq')", "setval": "SELECT setval('interlock.outbox_seq', 1)",
    "grant": "SELECT interlock.grant_consumer('app')", "streams": "INSERT INTO interlock.outbox_stream DEFAULT VALUES",
    "tables": "DELETE FROM interlock.outbox_table", "unpark": "DELETE FROM interlock.outbox_parked",
}


@pytest.fixture
def guarded(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v int); GRANT INSERT, SELECT, UPDATE, DELETE ON t TO app")
    outbox.attach("t")
    return outbox


def test_a_writer_needs_no_privileges_on_the_outbox_and_has_none(guarded):
    guarded.sql("INSERT INTO t VALUES (1, 1); UPDATE t SET v = 2; DELETE FROM t", user="app")
    assert [record.op for record in guarded.records()] == ["I", "U", "D"]
    reading = {"read": "SELECT * FROM interlock.outbox", "read a segment": "SELECT * FROM interlock.outbox_default_0",
               "read parked": "SELECT * FROM interlock.outbox_parked", "retry": "SELECT interlock.outbox_retry('default')",
               "discard": "SELECT interlock.outbox_discard('default', '{1}')"}
    for text in (*CONSUMER.values(), *OPERATOR.values(), *reading.values()):
        with refusal("42501"):
            guarded.sql(text.replace("%s", "1"), user="app")


def test_a_consumer_has_what_it_needs_and_no_more(guarded):
    guarded.instance.sql("DO $$ BEGIN CREATE ROLE consumer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$", dbname="postgres")
    guarded.sql("SELECT interlock.grant_consumer('consumer')")
    guarded.sql("INSERT INTO t SELECT i, i FROM generate_series(1, 10) i")
    with transaction(guarded, user="consumer") as session:
        batch = take(session)
        assert len(batch) == 10 and done(session, batch[:8]) == 8
        session.execute("SELECT interlock.outbox_failed(%s, 'x', 1)", (batch[8].seq,))
        session.execute("SELECT interlock.outbox_park(%s, 'x')", ([batch[9].seq],))
        session.execute("COMMIT")
    for name, text in CONSUMER.items():
        if name != "failed":
            guarded.sql(text, user="consumer")
    for text in OPERATOR.values():
        with refusal("42501"):
            guarded.sql(text, user="consumer")
    assert guarded.value("SELECT parked FROM interlock.outbox_backlog") == 2


def test_a_strangers_trigger_cannot_write_records_of_another_table(guarded):
    """The trigger's function runs as the writer, so it is everybody's; its arguments must not be taken on trust."""
    guarded.instance.sql("GRANT CREATE ON SCHEMA public TO app", dbname=guarded.dbname)
    definition = guarded.value("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 't'::regclass AND tgtype & 1 = 1"
                               " AND tgfoid::regproc::text LIKE 'interlock.outbox%'")
    guarded.sql("CREATE TABLE forged (id int PRIMARY KEY, v int)", user="app")
    for level, of in (("", "AFTER INSERT"), ("", "BEFORE INSERT")):
        text = definition.replace(" ON public.t ", " ON public.forged ")
        text = text[:text.index("AFTER")] + of + text[text.index(" ON public.forged"):]
        with guarded.connect(user="app") as session:
            session.execute("BEGIN")
            try:
                session.execute(text)
                session.execute("INSERT INTO forged VALUES (1, 1)")
            except Exception as error:  # noqa: BLE001
                assert error.diag.sqlstate in ("42501", "55000", "39P01", "42704", "22023"), error
            else:
                session.execute("COMMIT")
            session.execute("ROLLBACK")
        assert [record for record in guarded.records() if record.table_name != "public.forged"] == []
        assert guarded.count() == 0, "a table that nobody attached has records"
        guarded.sql("DROP TABLE IF EXISTS forged; CREATE TABLE forged (id int PRIMARY KEY, v int); ALTER TABLE forged OWNER TO app")


def test_the_trigger_functions_cannot_be_called_by_themselves(guarded):
    for name, in guarded.sql("SELECT DISTINCT tgfoid::regproc::text FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'interlock.outbox%'"):
        with pytest.raises(Exception) as fault:
            guarded.sql(f"SELECT {name}()", user="app")
        assert fault.value.diag.sqlstate in ("0A000", "39P01", "42501"), fault.value


EVIL = """
    CREATE SCHEMA evil;
    CREATE FUNCTION evil.boom(text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''evil was called''; END';
    CREATE FUNCTION evil.boom(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$SELECT evil.boom('')$$;
    CREATE FUNCTION evil.boom(text, text) RETURNS boolean LANGUAGE sql AS $$SELECT evil.boom('')$$;
    CREATE FUNCTION evil.boom(int, int) RETURNS boolean LANGUAGE sql AS $$SELECT evil.boom('')$$;
    CREATE FUNCTION evil.boom(oid, oid) RETURNS boolean LANGUAGE sql AS $$SELECT evil.boom('')$$;
    CREATE FUNCTION evil.boom(jsonb, jsonb) RETURNS boolean LANGUAGE sql AS $$SELECT evil.boom('')$$;
    CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.boom);
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.boom);
    CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.boom);
    CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = evil.boom);
    CREATE OPERATOR evil.= (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = evil.boom);
    CREATE OPERATOR evil.<= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.boom);
    CREATE FUNCTION evil.to_jsonb(anyelement) RETURNS jsonb LANGUAGE sql AS $$SELECT evil.boom(''); SELECT NULL::jsonb$$;
    CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS $$SELECT evil.boom(''); SELECT 1::bigint$$;
    CREATE FUNCTION evil.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_format';
    CREATE FUNCTION evil.count(int) RETURNS bigint LANGUAGE sql AS $$SELECT evil.boom(''); SELECT 1::bigint$$;
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT evil.boom(''); SELECT now()$$;
    CREATE TABLE evil.outbox (seq bigint); CREATE TABLE evil.outbox_stream (x int); CREATE TABLE evil.pg_class (x int);
    CREATE TABLE evil.outbox_default_0 (seq bigint);
    GRANT USAGE ON SCHEMA evil TO PUBLIC;
"""


@pytest.mark.parametrize("who", ["postgres", "consumer"])
def test_a_search_path_full_of_traps_springs_none(outbox, who):
    outbox.instance.sql("DO $$ BEGIN CREATE ROLE consumer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$", dbname="postgres")
    outbox.sql(EVIL)
    outbox.sql("CREATE TABLE t (id int, region int, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
               "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)")
    outbox.sql("SELECT interlock.grant_consumer('consumer'); GRANT ALL ON ALL TABLES IN SCHEMA public TO consumer;"
               "GRANT TEMP ON DATABASE " + outbox.dbname + " TO consumer")
    with outbox.connect(user=who) as session:
        session.execute("CREATE TEMP TABLE pg_class (x int); CREATE TEMP TABLE pg_trigger (x int); CREATE TEMP TABLE outbox (x int);"
                        "CREATE TEMP TABLE outbox_stream (x int); CREATE TEMP TABLE outbox_parked (x int)")
        session.execute("SET search_path = pg_temp, evil, pg_catalog, public")
        if who == "postgres":
            session.execute("SELECT interlock.outbox_attach('public.t'), interlock.outbox_attach('public.t', '{v}', 'second')")
            session.execute("CREATE TABLE public.t9 PARTITION OF public.t FOR VALUES IN (9)")
        else:
            outbox.attach("t")
            outbox.attach("t", ["v"], "second")
        session.execute("INSERT INTO public.t SELECT i, 1, i FROM pg_catalog.generate_series(1, 20) i")
        session.execute("UPDATE public.t SET v = 0; DELETE FROM public.t; TRUNCATE public.t1" if who == "postgres"
                        else "UPDATE public.t SET v = 0; DELETE FROM public.t")
        for stream in ("default", "second"):
            with session.transaction():
                batch = [seq for seq, in session.execute("SELECT seq FROM interlock.outbox_take(100, %s)", (stream,)).fetchall()]
                assert len(batch) == 60
                session.execute("SELECT interlock.outbox_failed(%s, 'x', 1), interlock.outbox_failed(%s, 'y')", (batch[0], batch[1]))
                session.execute("SELECT interlock.outbox_park(%s, 'x')", ([batch[2]],))
                session.execute("SELECT interlock.outbox_done(%s)", (batch[3:],))
            session.execute("SELECT * FROM interlock.outbox_backlog")
            session.execute("SELECT interlock.outbox_rotate(%s), interlock.outbox_oldest(%s), interlock.outbox_drained(%s, 5)",
                            (stream, stream, stream))
            session.execute("SELECT * FROM interlock.outbox_last()")
            if who == "postgres":
                session.execute("SELECT interlock.outbox_retry(%s), interlock.outbox_discard(%s, '{}')", (stream, stream))
                session.execute("SELECT interlock.outbox_detach('public.t', %s)", (stream,))


def test_the_bucket_of_a_row_is_recorded_for_a_writer_without_privileges(outbox):
    outbox.sharded()
    outbox.attach("account")
    outbox.sql("GRANT INSERT ON account TO app")
    outbox.sql("INSERT INTO account VALUES (%s, 1)", KEY[4], user="app")
    assert [(record.bucket, record.route_version) for record in outbox.records()] == [(4, 1)]


def test_rows_of_what_has_none_are_not_recorded(guarded):
    guarded.sql("CREATE VIEW seen AS SELECT * FROM t; CREATE TABLE whole (id int) PARTITION BY LIST (id)")
    for relation in ("seen", "whole"):
        with refusal("42809"):
            guarded.sql("SELECT interlock.outbox_record_rows(%s::text::regclass, 't', 'default', true)", relation)
