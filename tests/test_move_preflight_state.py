"""What `interlock move` checks first, on servers and in what is going on there: settings, the way, transactions, leftovers, links."""

import os
import re
import uuid
from pathlib import Path

import pytest

from support.moves import move_to_its_end
from support.moving import MovingCluster
from support.placement import keys_in_bucket
from test_move_preflight import BUCKET, MOVE, ON_BOTH, clean, do_as_told, everywhere, mend, plan, the_one

MORE = """
CREATE TABLE thing (thing_id bigint PRIMARY KEY);
CREATE TABLE visit (account_id bigint NOT NULL, day date NOT NULL, PRIMARY KEY (account_id, day)) PARTITION BY RANGE (day);
CREATE TABLE visit_2026 PARTITION OF visit FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE country (code text PRIMARY KEY, name text);
INSERT INTO country VALUES ('de', 'Germany'), ('fr', 'France');
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
"""


class Linked(MovingCluster):
    """With a second keyspace, a partitioned table, and a table that every shard has."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.table += MORE

    def declare(self, catalog):
        super().declare(catalog)
        catalog.execute("SELECT interlock.declare_table('visit', 'accounts', 'account_id')")
        catalog.execute("SELECT interlock.create_keyspace('things', 'bigint', 4)")
        catalog.execute("SELECT interlock.declare_table('thing', 'things', 'thing_id')")
        catalog.execute("SELECT interlock.assign('things', '{0,1,2,3}', 's0')")


@pytest.fixture(scope="module")
def shared(owner, new_folder, router_binary):
    cluster = Linked(new_folder("preflight-state"), owner)
    try:
        yield cluster.up()
    finally:
        cluster.down()


@pytest.fixture
def cluster(shared):
    clean(shared)
    yield shared
    shared.end_test()
    clean(shared)


def key(bucket=BUCKET):
    return keys_in_bucket(bucket, 1)[0]


# -- servers -----------------------------------------------------------------------------------------


def test_everything_wrong_with_the_servers_is_told_at_once_and_mended_as_told(make_moving):
    cluster = make_moving(shard_settings={
        "wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0", "max_logical_replication_workers": "0",
        "max_worker_processes": "0", "output_plugin_libraries": "pgoutput, test_decoding"}).up()
    findings = plan(cluster)
    for words in (("wal_level of shard \"s0\"",), ("output plugin", "s0"), ("replication slot", "s0"), ("WAL sender", "s0"),
                  ("logical replication worker", "s1"), ("worker process", "s1"), ("replication origin", "s1")):
        assert the_one(findings, *words)[0] == "refuse"
    assert "nor these back" in the_one(findings, "wal_level of shard \"s1\"")[2]
    assert len(findings) == 8, findings
    for finding in findings:
        do_as_told(cluster, finding)
    # Those that were allowed still are.
    assert cluster.instances["s0"].value("SHOW output_plugin_libraries") == "pgoutput, test_decoding, interlock"
    # What can be reloaded was; the rest wants a restart, as it is told.
    assert not any("output plugin" in what for _, what, _, _ in plan(cluster))
    for finding in findings:
        assert "restart" in finding[3] or "pg_reload_conf" in finding[3], finding
    for name in ON_BOTH:
        cluster.instances[name].restart()
    clean(cluster)
    cluster.instances["s0"].sql("ALTER SYSTEM SET max_slot_wal_keep_size = '100MB'", dbname="postgres")
    cluster.instances["s0"].sql("SELECT pg_reload_conf()", dbname="postgres")
    assert the_one(plan(cluster), "may lose its slot")[0] == "warn"
    mend(cluster)
    # The next move takes what is left.
    cluster.fill(moved=0, near=2)
    cluster.move(0, "s1")


def test_slots_that_others_have_taken_are_counted(make_moving):
    cluster = make_moving(shard_settings={"max_replication_slots": "2", "max_wal_senders": "3"}).up()
    clean(cluster)
    for number in range(2):
        cluster.instances["s0"].sql(f"SELECT pg_create_physical_replication_slot('other{number}')")
    assert "max_replication_slots is 2, 2 exist" in the_one(plan(cluster), "no replication slot is free")[2]
    cluster.instances["s0"].sql("SELECT pg_drop_replication_slot('other0')")
    clean(cluster)


def test_a_login_that_is_no_superuser_is_told_so_on_both_shards(cluster):
    for name in ON_BOTH:
        cluster.instances[name].sql("""
            CREATE ROLE "the mover" LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA interlock TO "the mover";
            GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA interlock TO "the mover"; GRANT pg_read_all_stats TO "the mover";
            GRANT SELECT ON ALL TABLES IN SCHEMA public TO "the mover" """)
    try:
        findings = plan(cluster, env={"PGUSER": "the mover"})
        for name in ON_BOTH:
            finding = the_one(findings, "role \"the mover\" may not move buckets", name)
            assert f"On shard \"{name}\", run: ALTER ROLE \"the mover\" SUPERUSER;" in finding[3]
            do_as_told(cluster, finding)
        assert plan(cluster, env={"PGUSER": "the mover"}) == []
    finally:
        for name in ON_BOTH:
            cluster.instances[name].sql('DROP OWNED BY "the mover"; DROP ROLE "the mover"')


def test_databases_with_other_encodings_or_collations_are_told(make_moving):
    cluster = make_moving()
    cluster.start_instances()
    cluster.instances["s1"].sql("DROP DATABASE app", dbname="postgres")
    cluster.instances["s1"].sql("CREATE DATABASE app ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", dbname="postgres")
    cluster.instances["s1"].sql("CREATE EXTENSION interlock")
    cluster.create_tables().describe()
    own = cluster.instances["s0"].value("SELECT datcollate FROM pg_database WHERE datname = 'app'")
    assert own != "C"
    cluster.apply()
    finding = the_one(plan(cluster), "different default collations")
    assert finding[0] == "refuse" and "shard \"s1\": C." in finding[2] and f"LC_COLLATE '{own}'" in finding[3], finding


# -- the way from the target's server to the source ---------------------------------------------------


def way(cluster, conninfo):
    return the_one(plan(cluster, "--source-conninfo", conninfo), "cannot connect to shard \"s0\"")


def test_a_way_that_leads_nowhere_is_told(cluster):
    # However much the server logs, the password is not in it.
    talkative = "ALTER DATABASE app SET log_min_messages = 'debug1'; ALTER DATABASE app SET log_statement = 'all'; ALTER DATABASE app SET log_min_duration_statement = 0"
    everywhere(cluster, talkative)
    try:
        nowhere(cluster)
    finally:
        everywhere(cluster, re.sub(r"SET (\w+) = [^;]*", r"RESET \1", talkative))


def nowhere(cluster):
    finding = way(cluster, "host=127.0.0.1 port=1 dbname=app user=postgres password=geheim")
    assert "refused" in finding[2] and "--source-conninfo 'host=... port=... dbname=... user=...'" in finding[3], finding
    assert "CREATE SUBSCRIPTION" not in cluster.instances["s1"].log_since(0)
    assert "log_min_error_statement" in cluster.instances["s1"].log_since(0)
    for name in ON_BOTH:
        assert "geheim" not in cluster.instances[name].log_since(0)
    assert "geheim" not in str(finding)
    finding = way(cluster, "no connection string")
    assert finding[0] == "refuse"


def test_what_pg_hba_conf_lacks_is_told_as_a_line(cluster):
    source = cluster.instances["s0"]
    file = Path(source.value("SHOW hba_file"))
    before = file.read_text()
    source.sql("CREATE ROLE follower LOGIN SUPERUSER PASSWORD 'geheim'")
    conninfo = source.conninfo("app", "follower")
    line = 'host  "app"  "follower"  127.0.0.1/32  scram-sha-256'
    try:
        for text, words in (("host all postgres,app,interlock_router 127.0.0.1/32 trust\n", "no pg_hba.conf entry"),
                            ("host all follower 127.0.0.1/32 reject\n" + before, "pg_hba.conf rejects")):
            file.write_text(text)
            source.sql("SELECT pg_reload_conf()")
            finding = way(cluster, conninfo)
            assert words in finding[2] and f"add above the others the line: {line} -- then there run: SELECT pg_reload_conf();" in finding[3], finding
        # Doing so lets it in, with its password.
        file.write_text(f"{line}\n{text}")
        source.sql("SELECT pg_reload_conf()")
        finding = way(cluster, conninfo)
        assert "password" in finding[2] and "password file" in finding[3], finding
        assert plan(cluster, "--source-conninfo", f"{conninfo} password=geheim") == []
    finally:
        file.write_text(before)
        source.sql("SELECT pg_reload_conf(); DROP ROLE follower")


# -- ownership, guards ---------------------------------------------------------------------------------


def test_a_guard_that_is_not_whole_is_told_and_apply_mends_it(cluster):
    cluster.instances["s0"].sql('ALTER TABLE account DISABLE TRIGGER "~interlock_guard"')
    finding = the_one(plan(cluster), "guard of table public.account is not whole on shard \"s0\"")
    assert finding[0] == "refuse" and finding[3] == "Run: interlock apply"
    cluster.apply()


def test_a_shard_that_lost_its_decision_is_told(cluster):
    instance = cluster.instances["s1"]
    with cluster.catalog.connect() as catalog, catalog.transaction():
        catalog.execute("INSERT INTO interlock.route SELECT keyspace, bucket, shard, 0, 1 FROM interlock.route r JOIN interlock.shard s ON s.id = r.shard"
                        " WHERE s.name = 's1' LIMIT 1")
    try:
        done = move_to_its_end(cluster.catalog_conninfo(), *MOVE, "--plan", expect=1)
        assert done.stderr.startswith("ERROR:  shard \"s1\": the shard gave buckets away under route version 1, but"), done.stderr
    finally:
        cluster.catalog.sql("DELETE FROM interlock.route WHERE valid_to = 1")
    assert instance.value("SELECT floor FROM interlock.shard_identity") == 0


def test_an_expired_fence_and_the_record_of_a_forgotten_move_are_told(cluster):
    source, move = cluster.instances["s0"], uuid.uuid4()
    source.sql("SELECT interlock.begin_export('accounts', '{0}', 's1', %s)", move)
    source.sql("SELECT interlock.fence_buckets('accounts', '{0}', 's1', %s, 100, '1 ms')", move)
    findings = plan(cluster)
    assert "The fence has expired" in the_one(findings, "bucket 0 of keyspace \"accounts\" is fenced on shard \"s0\"")[2]
    assert str(move) in the_one(findings, "takes part in move")[1]
    mend(cluster)


def test_leftovers_are_told_each_with_the_statement_that_removes_it(cluster):
    source, target = (cluster.instances[name] for name in ON_BOTH)
    source.sql("SELECT pg_create_logical_replication_slot('interlock_move_deadbeef', 'test_decoding')")
    source.sql("CREATE PUBLICATION interlock_move_deadbeef FOR TABLE account")
    target.sql("CREATE SUBSCRIPTION interlock_move_deadbeef CONNECTION 'host=nowhere' PUBLICATION x WITH (connect = false)")
    target.sql("INSERT INTO interlock.bucket_state VALUES ('accounts', 0, 'owned', NULL, 1)")
    target.sql("INSERT INTO account VALUES (%s, 'left', 0, 0)", key())
    target.sql("DELETE FROM interlock.bucket_state WHERE bucket = 0 AND keyspace = 'accounts'")
    findings = plan(cluster)
    for words in (("replication slot \"interlock_move_deadbeef\" is left on shard \"s0\"",), ("publication \"interlock_move_deadbeef\" is left",),
                  ("subscription \"interlock_move_deadbeef\" is left on shard \"s1\"",)):
        finding = the_one(findings, *words)
        assert finding[0] == "refuse"
        do_as_told(cluster, finding)
    finding = the_one(plan(cluster), "table public.account has rows of bucket 0 on shard \"s1\"")
    assert "interlock.misplaced('public.account')" in finding[3]
    target.sql("INSERT INTO interlock.bucket_state VALUES ('accounts', 0, 'owned', NULL, 1)")
    target.sql("DELETE FROM account WHERE account_id = %s", key())
    findings = plan(cluster)
    assert the_one(findings, "bucket 0 of keyspace \"accounts\" is owned on shard \"s1\"")[3] == "Run: interlock apply --plan"
    target.sql("DELETE FROM interlock.bucket_state WHERE bucket = 0 AND keyspace = 'accounts'")


# -- transactions ---------------------------------------------------------------------------------------


def test_transactions_that_would_hold_the_copy_up_are_told(cluster):
    source = cluster.instances["s0"]
    # In another database of the server, too: the slot waits for all of them.
    writer = source.connect("postgres", autocommit=False)
    cluster.connections.append(writer)
    writer.execute("SELECT pg_current_xact_id()")
    prepared = cluster.connect("s0", autocommit=False)
    prepared.execute("SELECT pg_current_xact_id()")
    prepared.execute("PREPARE TRANSACTION 'it''s'")
    pid = writer.info.backend_pid
    with cluster.connect("s0") as session:
        session.execute("SELECT pg_sleep(1.1)")
    short = plan(cluster, *MOVE, "--max-pause", "50ms")
    finding = the_one(short, "prepared transaction is open")
    assert "\"it's\" of \"postgres\" in database \"app\"" in finding[2] and "in database \"app\", run: COMMIT PREPARED 'it''s'; or ROLLBACK PREPARED 'it''s';" in finding[3]
    finding = the_one(short, "has been writing for long")
    assert finding[0] == "refuse" and f"Process {pid} " in finding[2] and f"pg_terminate_backend({pid})" in finding[3]
    finding = the_one(plan(cluster, *MOVE, "--max-pause", "500ms"), "a transaction that has written is open")
    assert finding[0] == "warn"
    source.sql("ROLLBACK PREPARED 'it''s'")
    do_as_told(cluster, finding)
    assert plan(cluster, *MOVE, "--max-pause", "1ms") == []


# -- links ----------------------------------------------------------------------------------------------


def both(cluster, text):
    for name in ON_BOTH:
        cluster.instances[name].sql(text)


def test_a_foreign_key_to_a_table_that_every_shard_has_needs_the_same_rows(cluster):
    both(cluster, "ALTER TABLE account ADD COLUMN code text CONSTRAINT of_country REFERENCES country")
    try:
        clean(cluster)
        cluster.instances["s1"].sql("UPDATE country SET code = 'gb' WHERE code = 'fr'")
        finding = the_one(plan(cluster), "foreign key of_country of table public.account refers to table public.country, which is not sharded")
        assert finding[0] == "refuse" and "What it refers to differs" in finding[2]
        cluster.instances["s1"].sql("UPDATE country SET code = 'fr', name = 'Gallia' WHERE code = 'gb'")
        clean(cluster)  # what is not referred to may differ
        cluster.instances["s1"].sql("UPDATE country SET code = 'gb' WHERE code = 'fr'")
        mend(cluster)
    finally:
        both(cluster, "ALTER TABLE account DROP COLUMN code")


def test_foreign_keys_that_leave_the_keyspace_are_told(cluster):
    both(cluster, """
        ALTER TABLE posting ADD COLUMN thing bigint CONSTRAINT of_thing REFERENCES thing;
        CREATE TABLE log (account_id bigint CONSTRAINT of_account REFERENCES account)""")
    findings = plan(cluster)
    assert "they move apart" in the_one(findings, "foreign key of_thing of table public.posting leaves the keyspace")[2]
    assert the_one(findings, "foreign key of_account of table public.log, which is not sharded, refers to table public.account")[0] == "refuse"
    mend(cluster)
    both(cluster, "ALTER TABLE posting DROP COLUMN thing; DROP TABLE log")


def test_a_foreign_key_without_the_shard_key_is_refused_and_can_have_it(cluster):
    """Whatever the rows are: writers go on, and nothing would check what a move separates."""
    both(cluster, """
        CREATE UNIQUE INDEX of_number ON account (balance);
        ALTER TABLE posting ADD COLUMN number bigint
            CONSTRAINT of_number REFERENCES account (balance) ON UPDATE CASCADE ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED""")
    try:
        finding = the_one(plan(cluster), "foreign key of_number of table public.posting does not have the shard key")
        assert finding[0] == "refuse" and "Rows of different buckets may refer to each other" in finding[2]
        assert finding[3].startswith("Put the shard keys into it") and "On both shards, run: " + (statements := (
            "ALTER TABLE public.posting DROP CONSTRAINT of_number; ALTER TABLE public.account ADD UNIQUE (account_id, balance);"
            " ALTER TABLE public.posting ADD CONSTRAINT of_number FOREIGN KEY (account_id, number) REFERENCES public.account"
            " (account_id, balance) ON UPDATE CASCADE ON DELETE SET NULL (number) DEFERRABLE INITIALLY DEFERRED;")) in finding[3]
        both(cluster, statements)
        both(cluster, "DROP INDEX of_number")
        clean(cluster)
    finally:
        both(cluster, "ALTER TABLE posting DROP COLUMN number; DROP INDEX IF EXISTS of_number;"
                      "ALTER TABLE account DROP CONSTRAINT IF EXISTS account_account_id_balance_key")


def test_a_table_that_refers_to_itself_by_another_column_than_the_shard_key_is_refused(cluster):
    both(cluster, "ALTER TABLE account ADD COLUMN parent bigint CONSTRAINT of_parent REFERENCES account")
    try:
        finding = the_one(plan(cluster), "foreign key of_parent of table public.account does not have the shard key")
        assert finding[0] == "refuse" and "ADD CONSTRAINT" not in finding[3]  # the parent's key is in it once already
        mend(cluster)
        clean(cluster)
    finally:
        both(cluster, "ALTER TABLE account DROP COLUMN parent")


def test_triggers_that_fire_for_rows_that_only_change_places_are_told(cluster):
    for name, enabled in (("before", "ALWAYS"), ("after", "REPLICA"), ("harmless", "")):
        when = "AFTER" if name == "after" else "BEFORE"
        both(cluster, f"CREATE TRIGGER {name} {when} INSERT OR DELETE ON account FOR EACH ROW EXECUTE FUNCTION nothing();"
                      f"ALTER TABLE account ENABLE {enabled} TRIGGER {name}")
    findings = plan(cluster)
    assert the_one(findings, "trigger before of table public.account fires for rows that arrive on shard \"s1\"")[0] == "refuse"
    assert the_one(findings, "trigger before of table public.account fires for rows that are removed from shard \"s0\"")[0] == "refuse"
    assert the_one(findings, "trigger after of table public.account fires for rows that arrive")[0] == "warn"
    assert not any("harmless" in what for _, what, _, _ in findings)
    mend(cluster)
    both(cluster, "DROP TRIGGER before ON account; DROP TRIGGER after ON account; DROP TRIGGER harmless ON account")


def test_values_that_may_be_on_both_shards_are_told(cluster):
    both(cluster, """
        ALTER TABLE account ADD COLUMN number int GENERATED BY DEFAULT AS IDENTITY, ADD CONSTRAINT by_number UNIQUE (number);
        ALTER TABLE register ADD COLUMN label text, ADD CONSTRAINT by_label UNIQUE (label) INCLUDE (account_id)""")
    findings = plan(cluster)
    assert [severity for severity, *_ in findings] == ["warn", "warn"], findings
    assert "a sequence of its own" in the_one(findings, "unique index public.by_number of table public.account does not have the shard key")[2]
    assert "sequence" not in the_one(findings, "unique index public.by_label")[2]
    both(cluster, "ALTER TABLE account DROP COLUMN number; ALTER TABLE register DROP COLUMN label")


def test_those_who_follow_the_tables_are_told_of(cluster):
    cluster.instances["s0"].sql("CREATE PUBLICATION everything FOR ALL TABLES")
    cluster.instances["s1"].sql("CREATE PUBLICATION some_tables FOR TABLE visit; CREATE PUBLICATION no_tables FOR TABLE country")
    findings = plan(cluster)
    assert [severity for severity, *_ in findings] == ["warn", "warn"], findings
    assert "deleted" in the_one(findings, "publication everything of shard \"s0\"")[2]
    assert "inserted" in the_one(findings, "publication some_tables of shard \"s1\"")[2]
    cluster.instances["s0"].sql("DROP PUBLICATION everything")
    cluster.instances["s1"].sql("DROP PUBLICATION some_tables; DROP PUBLICATION no_tables")


def test_a_partition_that_the_target_lacks_is_told(cluster):
    cluster.instances["s0"].sql("CREATE TABLE visit_2027 PARTITION OF visit FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')")
    finding = the_one(plan(cluster), "partition public.visit_2027 of table public.visit is missing on shard \"s1\"")
    assert finding[0] == "refuse"
    mend(cluster)
    # One that only the target has is no matter, and neither is another name.
    cluster.instances["s1"].sql("CREATE TABLE visit_2028 PARTITION OF visit FOR VALUES FROM ('2028-01-01') TO ('2029-01-01')")
    cluster.instances["s1"].sql("ALTER TABLE visit_2027 RENAME TO another_name")


def test_a_parent_that_is_partitioned_otherwise_is_told_once(cluster):
    keys = "CREATE TABLE visit (account_id bigint NOT NULL, day date NOT NULL, PRIMARY KEY (account_id, day)) PARTITION BY"
    for made, told in ((f"{keys} LIST (day); CREATE TABLE visit_other PARTITION OF visit DEFAULT", "by LIST (day)"),
                       (keys.removesuffix(" PARTITION BY"), "not at all")):
        cluster.instances["s1"].sql(f"SELECT interlock.unshard_table('visit'); DROP TABLE visit; {made}")
        cluster.apply()
        finding = the_one(plan(cluster), "visit", "partition")
        assert finding[:3] == ("refuse", "table public.visit is partitioned otherwise on shard \"s1\"",
                               f"shard \"s0\": by RANGE (day); shard \"s1\": {told}.")
        assert "make it anew, partitioned by RANGE (day)" in finding[3]
    cluster.instances["s1"].sql(f"SELECT interlock.unshard_table('visit'); DROP TABLE visit; {keys} RANGE (day)")
    cluster.apply()
    mend(cluster)


def test_a_source_that_does_not_have_the_buckets_is_told_who_has(cluster):
    finding, = plan(cluster, "--keyspace", "accounts", "--bucket", BUCKET + 1, "--from", "s0", "--to", "s1")
    assert finding == ("refuse", f"bucket {BUCKET + 1} of keyspace \"accounts\" is of shard \"s1\", not of shard \"s0\"",
                       finding[2], "There is nothing to do.")


def test_workers_that_are_started_seldom_are_told(cluster):
    target = cluster.instances["s1"]
    target.sql("ALTER SYSTEM SET wal_retrieve_retry_interval = '5s'", dbname="postgres")
    target.sql("SELECT pg_reload_conf()", dbname="postgres")
    finding = the_one(plan(cluster), "workers of logical replication are started seldom on shard \"s1\"")
    assert finding[0] == "warn" and "5000 ms" in finding[2]
    mend(cluster)
    target.sql("ALTER SYSTEM RESET wal_retrieve_retry_interval", dbname="postgres")
    target.sql("SELECT pg_reload_conf()", dbname="postgres")


def test_a_table_that_is_not_sharded_on_the_target_is_told_and_apply_mends_it(cluster):
    cluster.instances["s1"].sql("SELECT interlock.unshard_table('posting')")
    finding = the_one(plan(cluster), "table public.posting is missing on shard \"s1\"")
    assert finding[0] == "refuse" and "interlock apply" in finding[3]
    cluster.apply()


def test_a_bucket_that_does_not_fit_on_the_targets_disk_is_told(cluster):
    source = cluster.instances["s0"]
    # A hole in a file that PostgreSQL counts but never reads.
    file = Path(source.value("SHOW data_directory")) / source.value("SELECT pg_relation_filepath('account')")
    hole = file.with_name(file.name + ".1")
    hole.touch()
    os.truncate(hole, 8 << 40)
    try:
        finding = the_one(plan(cluster), "the buckets do not fit on the disk of shard \"s1\"")
        assert finding[0] == "refuse" and "MB" in finding[2]
    finally:
        hole.unlink()
