"""Transaction blocks on the PostgreSQL listener: pinned late, and still as PostgreSQL has them."""

import pytest

from support import pgwire as w
from support.control import KEY, KEYS, both
from support.placement import keys_on
from support.wait import wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 2}}}
OTHER = KEYS[1]
FAR = keys_on("s1", 2)[0]


def balance(key=KEY):
    return f"SELECT balance FROM account WHERE account_id = {key}"


def debit(amount, key=KEY):
    return f"UPDATE account SET balance = balance - {amount} WHERE account_id = {key}"


TOO_MUCH = debit(5000)


def test_begin_commit_and_rollback_have_postgresqls_tags_states_and_warnings(cluster):
    def talk(client):
        assert client.ok("BEGIN").plain() == [("CommandComplete", ("BEGIN",)), ("ReadyForQuery", ("T",))]
        assert client.query("BEGIN").notices[0].code == "25001"
        client.ok(debit(1))
        assert client.query("START TRANSACTION").notices[0].code == "25001"
        assert client.ok("COMMIT").plain() == [("CommandComplete", ("COMMIT",)), ("ReadyForQuery", ("I",))]
        assert client.query("COMMIT").notices[0].code == "25P01"
        assert client.query("ROLLBACK").notices[0].code == "25P01"
        assert client.ok("START TRANSACTION").tag == "START TRANSACTION"
        assert client.ok("ABORT").tag == "ROLLBACK"
        assert client.ok("BEGIN WORK").status == "T"
        assert client.ok("END").tag == "COMMIT"
        client.query("SAVEPOINT a").refused("25P01", "I")
        client.query("ROLLBACK TO a").refused("25P01", "I")
        client.query("RELEASE a").refused("25P01", "I")
        assert client.query("SET LOCAL work_mem = '1MB'").notices[0].code == "25P01"
        assert client.query("SET TRANSACTION READ ONLY").notices[0].code == "25P01"
        assert client.value(balance()) == "999"
    both(cluster, talk)


def test_commit_in_a_failed_transaction_answers_rollback(cluster):
    def talk(client):
        for failing in (TOO_MUCH, "SELECT 1/0", "SELEC"):
            client.ok("BEGIN")
            client.ok(debit(1))
            assert client.query(failing).status == "E"
            client.query(balance()).refused("25P02", "E")
            client.query("BEGIN").refused("25P02", "E")
            client.query("SET work_mem = '1MB'").refused("25P02", "E")
            client.query("SHOW work_mem").refused("25P02", "E")
            client.query("SAVEPOINT a").refused("25P02", "E")
            client.ask(w.extended("SELECT 1")).refused("25P02", "E")
            assert client.query("").kinds == "IZ"
            assert client.ok("COMMIT").plain() == [("CommandComplete", ("ROLLBACK",)), ("ReadyForQuery", ("I",))]
        assert client.value(balance()) == "1000"
        # Before anything had a shard.
        client.ok("BEGIN")
        client.query("SELECT 1/0").refused("22012", "E")
        assert client.ok("END").tag == "ROLLBACK"
    both(cluster, talk)


def test_a_failed_transaction_can_be_ended_with_the_extended_protocol(cluster):
    def talk(client):
        for end, tag in (("COMMIT", "ROLLBACK"), ("ROLLBACK", "ROLLBACK")):
            assert client.run("BEGIN").status == "T"
            client.ask(w.extended("SELECT $1::int", ["x"])).refused("22P02", "E")
            client.ask(w.parse(balance(), "s")).refused("25P02", "E")
            answer = client.run(end).ok()
            assert (answer.tag, answer.status) == (tag, "I")
    both(cluster, talk)


OPTIONS = [
    ("BEGIN ISOLATION LEVEL SERIALIZABLE", "serializable", "off", "off"),
    ("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", "repeatable read", "on", "off"),
    ("START TRANSACTION READ ONLY", "read committed", "on", "off"),
    ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE", "serializable", "on", "on"),
    ("BEGIN READ WRITE", "read committed", "off", "off"),
    ("BEGIN; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION READ ONLY", "repeatable read", "on",
     "off"),
    ("SET default_transaction_isolation = 'repeatable read'; BEGIN", "repeatable read", "off", "off"),
    ("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY; BEGIN", "serializable", "on",
     "off"),
    ("SET default_transaction_read_only = on; START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE",
     "serializable", "off", "off"),
]


@pytest.mark.parametrize("begin, isolation, read_only, deferrable", OPTIONS)
def test_the_options_of_begin_hold_before_and_after_the_transaction_has_a_backend(
        cluster, begin, isolation, read_only, deferrable):
    expected = [isolation, read_only, deferrable]
    names = ["transaction_isolation", "transaction_read_only", "transaction_deferrable"]

    def talk(client):
        def shown():
            return [client.value(f"SHOW {name}") for name in names]

        for statement in begin.split("; "):
            client.ok(statement)
        assert shown() == expected
        client.ok(balance())
        assert shown() == expected
        assert client.value(f"SELECT current_setting('transaction_isolation') FROM account WHERE account_id = {KEY}"
                            ) == isolation
        answer = client.query(debit(1))
        assert answer.codes == (["25006"] if read_only == "on" else []), answer
        client.ok("ROLLBACK")
        client.ok("RESET ALL")
        assert shown() == ["read committed", "off", "off"]
    both(cluster, talk)


def test_set_transaction_after_a_query_is_too_late(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ok(balance())
        client.query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").refused("25001", "E")
        client.ok("ROLLBACK")
        client.ok("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        client.ok(balance())
        client.query("SET TRANSACTION READ WRITE").refused("25001", "E")
        client.ok("ROLLBACK")
    both(cluster, talk)


def test_a_repeatable_read_transaction_keeps_its_snapshot(cluster):
    for connect in (cluster.direct, cluster.pg_client):
        client = connect()
        client.ok("BEGIN ISOLATION LEVEL REPEATABLE READ")
        before = client.value(balance())
        cluster.s0.sql("UPDATE account SET balance = balance + 7 WHERE account_id = %s", KEY)
        assert client.value(balance()) == before
        client.query(debit(1)).refused("40001", "E")
        client.ok("ROLLBACK")
        assert client.value(balance()) == str(int(before) + 7)


def test_set_local_before_and_after_pinning_lasts_as_long_as_the_transaction(cluster):
    def talk(client):
        for pinned in (False, True):
            client.ok("BEGIN")
            if pinned:
                client.ok(balance())
            client.ok("SET LOCAL work_mem = '1111kB'")
            client.ok("SET LOCAL DateStyle = 'German'")
            assert client.value("SHOW work_mem") == "1111kB"
            client.ok(balance())
            assert client.value("SHOW work_mem") == "1111kB"
            assert client.value(f"SELECT '2026-02-01'::date FROM account WHERE account_id = {KEY}") == "01.02.2026"
            client.ok("SET LOCAL work_mem TO DEFAULT")
            assert client.value("SHOW work_mem") == "4MB"
            client.ok("COMMIT" if pinned else "ROLLBACK")
            assert client.value("SHOW work_mem") == "4MB"
            assert client.value("SELECT '2026-02-01'::date") == "2026-02-01"
        client.ok("BEGIN")
        client.query("SET LOCAL work_mem = 'much'").refused("22023", "E")
        client.ok("ROLLBACK")
    both(cluster, talk)


def test_set_inside_a_transaction_lasts_if_it_commits_and_is_undone_if_not(cluster):
    def talk(client):
        for pinned in (False, True):
            for end, kept in (("ROLLBACK", False), ("COMMIT", True)):
                client.ok("SET work_mem = '2222kB'")
                client.ok("BEGIN")
                if pinned:
                    client.ok(balance())
                client.ok("SET work_mem = '3333kB'")
                client.ok("SET TimeZone = 'Asia/Tokyo'")
                client.ok(balance())
                assert client.value("SHOW work_mem") == "3333kB"
                # With its ParameterStatus where PostgreSQL sends one: the comparison looks at that.
                client.ok(end)
                assert client.value("SHOW work_mem") == ("3333kB" if kept else "2222kB")
                assert client.value("SHOW TimeZone") == ("Asia/Tokyo" if kept else "UTC")
                client.ok("RESET ALL")
    both(cluster, talk)


def test_set_and_set_local_follow_savepoints(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ok("SET work_mem = '1001kB'")
        client.ok("SAVEPOINT a")
        client.ok("SET work_mem = '1002kB'")
        client.ok("SET LOCAL DateStyle = 'German'")
        client.ok(balance())
        client.ok("SAVEPOINT b")
        client.ok("SET work_mem = '1003kB'")
        client.ok("ROLLBACK TO b")
        assert client.value("SHOW work_mem") == "1002kB"
        client.ok("ROLLBACK TO a")
        assert client.value("SHOW work_mem") == "1001kB"
        assert client.value("SHOW DateStyle") == "ISO, MDY"
        client.ok("COMMIT")
        assert client.value("SHOW work_mem") == "1001kB"
    both(cluster, talk)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_local_setting_outlasts_other_settings_and_goes_with_its_own(cluster, pinned):
    def talk(client):
        client.ok("SET TimeZone = 'Asia/Tokyo'")
        client.ok("BEGIN")
        if pinned:
            client.ok(balance())
        client.ok("SET LOCAL TimeZone = 'Europe/Paris'")
        client.ok("SAVEPOINT a")
        client.ok("SET work_mem = '5MB'")
        client.ok("SAVEPOINT b")
        assert client.value("SHOW TimeZone") == "Europe/Paris"
        client.ok("RESET work_mem")
        assert client.value("SHOW TimeZone") == "Europe/Paris"
        client.ok("SET TimeZone = 'America/Lima'")
        assert client.value("SHOW TimeZone") == "America/Lima"
        client.ok("ROLLBACK TO b")
        assert client.value("SHOW TimeZone") == "Europe/Paris"
        client.ok(balance())
        assert client.value("SHOW TimeZone") == "Europe/Paris"
        client.ok("RESET TimeZone")
        assert client.value("SHOW TimeZone") == "UTC"
        client.ok("ROLLBACK TO a")
        assert client.value("SHOW TimeZone") == "Europe/Paris"
        client.ok("RESET ALL")
        assert client.value("SHOW TimeZone") == "UTC"
        client.ok("ROLLBACK")
        assert client.value("SHOW TimeZone") == "Asia/Tokyo"
    both(cluster, talk)


@pytest.mark.parametrize("pinned", [False, True])
def test_names_are_read_under_a_local_search_path_whatever_else_is_set(cluster, pinned):
    """The shard has a namesake of the table in the path that is in force: the router must not take it for its own."""
    afresh = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app'"
    for shard in (cluster.s0, cluster.s1):
        shard.sql("CREATE SCHEMA archive; CREATE TABLE archive.account (LIKE public.account);"
                  "INSERT INTO archive.account SELECT k, 'archived', 7, 0 FROM generate_series(1, 1000) k;"
                  "GRANT USAGE ON SCHEMA archive TO app; GRANT ALL ON archive.account TO app;" + afresh)
    try:
        for other in ("SET work_mem = '5MB'", "RESET work_mem", "SAVEPOINT b; ROLLBACK TO b"):
            client = cluster.pg_client()
            client.ok("BEGIN")
            if pinned:
                client.ok(balance())
            client.ok("SET LOCAL search_path = archive, public")
            client.ok("SAVEPOINT a")
            client.ok(other)
            client.query(balance()).refused("IL026", "E")
            client.ok("ROLLBACK TO a")
            client.query(debit(1)).refused("IL026", "E")
            client.ok("ROLLBACK")
            assert client.value(balance()) == "1000"
    finally:
        for shard in (cluster.s0, cluster.s1):
            shard.sql(afresh)  # a transaction that a failure has left open holds the table
            shard.sql("DROP SCHEMA archive CASCADE")


def test_names_beyond_ascii_are_refused_while_a_local_encoding_is_not_utf8(cluster):
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok("SET LOCAL client_encoding = 'LATIN1'")
    client.ok("SAVEPOINT a")
    client.ok("SET work_mem = '5MB'")
    client.ok("ROLLBACK TO a")
    for ask in (client.query, client.run):
        ask(b'SELECT 1 AS "\xe4"').refused("IL001", "E")
        client.ok("ROLLBACK TO a")
    client.ok("ROLLBACK")
    assert client.ok('SELECT 1 AS "ä"').status == "I"


def test_a_setting_goes_back_to_what_the_client_connected_with(cluster):
    def talk(client):
        for begin, local in (("BEGIN", "LOCAL "), ("SELECT 1", "")):
            client.ok(begin)
            client.ok(f"SET {local}TimeZone = 'Europe/Paris'")
            client.ok(f"SET {local}TimeZone TO DEFAULT")
            assert client.value("SHOW TimeZone") == "Asia/Tokyo"
            client.query("ROLLBACK")
    both(cluster, talk, TimeZone="Asia/Tokyo")


def test_a_round_sees_what_was_said_in_it_before(cluster):
    """Messages up to one Sync: statements for any shard, and what changes the state they run in, in turn."""
    def talk(client):
        client.ok("SET work_mem = '5MB'")
        answer = client.ask(w.parse("SELECT 1"), w.bind(), w.execute(), w.parse("RESET work_mem"), w.bind(),
                            w.execute(), w.parse("SHOW work_mem"), w.bind(), w.execute())
        assert answer.of("D")[-1].values == (b"4MB",), answer
        client.ok("BEGIN")
        client.ask(w.parse("SELECT 1"), w.bind(), w.execute(), w.parse("SAVEPOINT a"), w.bind(), w.execute(),
                   w.parse(debit(1)), w.bind(), w.execute()).ok()
        assert client.ok("ROLLBACK TO a").status == "T"
        assert client.value(balance()) == "1000"
        client.ok("ROLLBACK")
    both(cluster, talk)


def test_begin_among_the_statements_of_a_round_makes_a_block_of_it(cluster):
    def talk(client):
        client.ask(w.parse(debit(1)), w.bind(), w.execute(), w.parse("BEGIN"), w.bind(), w.execute(),
                   w.parse("SELECT 1/0"), w.bind(), w.execute()).refused("22012", "E")
        client.query(balance()).refused("25P02", "E")
        client.ok("ROLLBACK")
        assert client.value(balance()) == "1000"
    both(cluster, talk)


def test_a_refusal_after_such_a_begin_leaves_a_failed_block(cluster):
    client = cluster.pg_client()
    client.ask(w.parse(debit(1)), w.bind(), w.execute(), w.parse("BEGIN"), w.bind(), w.execute(),
               w.parse(balance(FAR)), w.bind(), w.execute()).refused("IL012", "E")
    client.query(balance()).refused("25P02", "E")
    client.ok("ROLLBACK")
    assert client.value(balance()) == "1000"


def test_savepoints_before_and_after_pinning(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ok("SAVEPOINT early")
        client.ok("SAVEPOINT second")
        client.ok(debit(1))
        client.ok("SAVEPOINT late")
        client.ok(debit(10))
        client.ok("ROLLBACK TO SAVEPOINT late")
        assert client.value(balance()) == "999"
        client.ok("RELEASE SAVEPOINT late")
        client.query("ROLLBACK TO late").refused("3B001", "E")
        client.ok("ROLLBACK TO second")
        assert client.value(balance()) == "1000"
        client.ok(debit(100))
        client.ok("ROLLBACK TO early")
        assert client.value(balance()) == "1000"
        client.query("ROLLBACK TO second").refused("3B001", "E")
        client.ok("ROLLBACK TO early")
        client.ok(debit(3))
        assert client.ok("COMMIT").tag == "COMMIT"
        assert client.value(balance()) == "997"
    both(cluster, talk)
    assert cluster.balance(KEY) == 997


def test_rollback_to_a_savepoint_brings_a_failed_transaction_back(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ok(debit(1))
        client.ok("SAVEPOINT a")
        for failing, code in ((TOO_MUCH, "23514"), ("SELECT 1/0", "22012"), ("SELEC", "42601")):
            client.query(failing).refused(code, "E")
            client.query(balance()).refused("25P02", "E")
            client.query("RELEASE a").refused("25P02", "E")
            assert client.ok("ROLLBACK TO a").status == "T"
            assert client.value(balance()) == "999"
        client.run("SELECT $1::int", "x").refused("22P02", "E")
        assert client.run("ROLLBACK TO a").status == "T"
        client.ok(debit(1))
        assert client.ok("COMMIT").tag == "COMMIT"
        assert client.value(balance()) == "998"
    both(cluster, talk)


def test_an_error_before_pinning_goes_back_to_a_savepoint_too(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ok("SAVEPOINT a")
        client.query("SELECT 1/0").refused("22012", "E")
        assert client.ok("ROLLBACK TO a").status == "T"
        client.query("ROLLBACK TO nowhere").refused("3B001", "E")
        assert client.ok("ROLLBACK TO a").status == "T"
        client.ok(debit(1))
        assert client.ok("COMMIT").tag == "COMMIT"
        assert client.value(balance()) == "999"
    both(cluster, talk)


def test_a_second_savepoint_of_the_same_name_hides_the_first(cluster):
    def talk(client):
        client.ok("BEGIN")
        for amount in (1, 10, 100):
            client.ok("SAVEPOINT same")
            client.ok(debit(amount))
        client.ok("ROLLBACK TO same")
        assert client.value(balance()) == "989"
        client.ok("RELEASE same")
        client.ok("ROLLBACK TO same")
        assert client.value(balance()) == "999"
        client.ok('SAVEPOINT "Same"')
        client.ok("ROLLBACK TO Same")
        client.ok("COMMIT")
        assert client.value(balance()) == "999"
    both(cluster, talk)


@pytest.mark.parametrize("pinned", [False, True])
def test_commit_and_chain_begins_the_next_with_the_same_options(cluster, pinned):
    def talk(client):
        client.ok("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
        if pinned:
            client.ok(debit(1))
        answer = client.ok("COMMIT AND CHAIN")
        assert (answer.tag, answer.status) == ("COMMIT", "T")
        assert client.value("SHOW transaction_isolation") == "serializable"
        client.ok(debit(1))
        assert client.value("SHOW transaction_isolation") == "serializable"
        assert client.ok("ROLLBACK AND CHAIN").status == "T"
        client.query(TOO_MUCH).refused("23514", "E")
        answer = client.ok("COMMIT AND CHAIN")
        assert (answer.tag, answer.status) == ("ROLLBACK", "T")
        assert client.value("SHOW transaction_isolation") == "serializable"
        assert client.ok("COMMIT AND NO CHAIN").status == "I"
        client.query("COMMIT AND CHAIN").refused("25P01", "I")
        client.query("ROLLBACK AND CHAIN").refused("25P01", "I")
        assert client.value(balance()) == ("999" if pinned else "1000")
    both(cluster, talk)


def test_a_chained_transaction_may_go_to_another_shard(cluster):
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(debit(1))
    client.ok("COMMIT AND CHAIN")
    client.ok(debit(1, FAR))
    client.ok("COMMIT")
    assert (cluster.balance(KEY), cluster.balance(FAR)) == (999, 999)


def test_statements_without_a_table_do_not_pin_and_see_the_transactions_settings(cluster):
    client = cluster.pg_client()
    client.ok("BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.ok("SET LOCAL TimeZone = 'Asia/Tokyo'")
    assert client.value("SELECT current_setting('TimeZone')") == "Asia/Tokyo"
    assert client.value("SELECT count(*) > 0 FROM pg_catalog.pg_class") == "t"
    assert cluster.idle_in_transaction("s0") + cluster.idle_in_transaction("s1") == 0
    client.ok(debit(1, FAR))
    assert client.value("SELECT 1") == "1"
    assert cluster.idle_in_transaction("s1") == 1
    client.ok("COMMIT")
    assert cluster.balance(FAR) == 999


def test_a_transaction_is_pinned_to_one_backend_with_both_protocols_mixed(cluster):
    client = cluster.pg_client()
    pid = f"SELECT pg_backend_pid() FROM account WHERE account_id = {KEY}"
    client.ok("BEGIN")
    pids = {client.value(pid), client.run(pid).value, client.value(pid)}
    client.ask(w.parse(pid, "s")).ok()
    pids.add(client.ask(w.bind([], "s"), w.execute()).value)
    client.ok("SAVEPOINT a")
    pids |= {client.value(pid), client.value("SELECT pg_backend_pid()")}
    client.ok("COMMIT")
    assert len(pids) == 1


def test_cursors_live_in_their_transaction(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ok(f"DECLARE c CURSOR FOR SELECT g FROM account, generate_series(1, 10) g WHERE account_id = {KEY}")
        assert client.ok("FETCH 3 FROM c").rows == [(b"1",), (b"2",), (b"3",)]
        assert client.ok("MOVE 2 IN c").tag == "MOVE 2"
        assert client.run("FETCH NEXT FROM c").rows == [(b"6",)]
        assert client.ok("FETCH ALL FROM c").tag == "FETCH 4"
        client.ok("CLOSE c")
        client.query("FETCH c").refused("34000", "E")
        client.ok("ROLLBACK")
        # Begun as portals of the protocol, read with SQL.
        client.ok("BEGIN")
        client.ask(w.parse(balance()), w.bind([], portal="p")).ok()
        assert client.ok("FETCH p").rows == [(b"1000",)]
        client.ok("COMMIT")
        client.query(f"DECLARE c CURSOR FOR {balance()}").refused("25P01", "I")
    both(cluster, talk)


def test_a_transaction_left_idle_too_long_is_rolled_back_and_its_locks_are_free(make_cluster):
    cluster = make_cluster(router_settings={"pg": {"idle_transaction_timeout": "300ms"}}).up()
    cluster.load_accounts()
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(debit(1))
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "it is rolled back")
    messages = client.until_closed()
    assert [m.code for m in messages if m.kind == "E"] == ["25P03"], messages
    # An idle client outside a transaction stays.
    other = cluster.pg_client()
    assert other.value(balance()) == "1000"
    assert other.silent(0.6)
    assert other.value(balance(OTHER)) == "1000"


def test_deferred_constraints_that_fail_at_commit_are_reported_by_commit(make_cluster):
    cluster = make_cluster(table="""
        CREATE TABLE account (account_id bigint PRIMARY KEY, owner text,
                              balance bigint CHECK (balance >= 0), version int);
        CREATE TABLE owner (name text PRIMARY KEY);
        INSERT INTO owner SELECT 'owner' || g FROM generate_series(0, 200) g;
        ALTER TABLE account ADD FOREIGN KEY (owner) REFERENCES owner DEFERRABLE INITIALLY DEFERRED;
        GRANT SELECT, INSERT, UPDATE, DELETE ON account TO app;
    """, router_settings={"pg": {}}).up()
    cluster.load_accounts()

    def talk(client):
        broken = f"UPDATE account SET owner = 'nobody' WHERE account_id = {KEY}"
        client.ok("BEGIN")
        client.ok(broken)
        answer = client.query("COMMIT").refused("23503", "I")
        assert answer.kinds == "EZ"
        client.query(broken).refused("23503", "I")
        client.run(broken).refused("23503", "I")
        client.ok("BEGIN")
        client.ok(broken)
        client.run("COMMIT").refused("23503", "I")
        client.ok("BEGIN")
        client.ok(broken)
        client.query("COMMIT AND CHAIN").refused("23503", "I")
        assert client.value(f"SELECT owner FROM account WHERE account_id = {KEY}") == f"owner{KEY}"
    both(cluster, talk)
