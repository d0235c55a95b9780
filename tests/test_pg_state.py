"""Session state over a pool of one: each client has its own, and the next client of the backend sees none of it."""

import pytest

from support import pgwire as w
from support.control import KEY, both
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 1}}}
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
PID = f"SELECT pg_backend_pid() FROM account WHERE account_id = {KEY}"

# Parameters the router keeps for a client, each with a value that is nobody's default, and what SHOW says then.
TRACKED = {
    "client_encoding": ("LATIN1", "LATIN1"), "DateStyle": ("German, DMY", "German, DMY"),
    "IntervalStyle": ("iso_8601", "iso_8601"), "TimeZone": ("Asia/Tokyo", "Asia/Tokyo"),
    "application_name": ("raw test", "raw test"), "search_path": ("public", "public"),
    "statement_timeout": ("12345ms", "12345ms"), "lock_timeout": ("2345ms", "2345ms"),
    "idle_in_transaction_session_timeout": ("77s", "77s"), "extra_float_digits": ("0", "0"),
    "bytea_output": ("escape", "escape"), "default_transaction_isolation": ("serializable", "serializable"),
    "default_transaction_read_only": ("on", "on"), "default_transaction_deferrable": ("on", "on"),
    "row_security": ("off", "off"), "xmloption": ("document", "document"), "lc_monetary": ("C", "C"),
    "client_min_messages": ("error", "error"), "work_mem": ("1234kB", "1234kB"), "enable_seqscan": ("off", "off"),
    "enable_hashjoin": ("off", "off"), "synchronous_commit": ("local", "local"),
    "plan_cache_mode": ("force_custom_plan", "force_custom_plan"), "jit": ("off", "off"),
}


def current(name):
    """What the backend itself says a parameter is."""
    return f"SELECT current_setting('{name}') FROM account WHERE account_id = {KEY}"


@pytest.mark.parametrize("name", TRACKED)
def test_a_tracked_parameter_is_each_clients_own_on_one_backend(cluster, name):
    value, shown = TRACKED[name]
    one, other = cluster.pg_client(), cluster.pg_client()
    before = other.value(f"SHOW {name}")
    assert before != shown
    assert one.ok(f"SET {name} = '{value}'").tag == "SET"
    for _ in range(3):
        assert one.value(f"SHOW {name}") == one.value(current(name)) == shown
        assert other.value(f"SHOW {name}") == other.value(current(name)) == before
    assert one.value(PID) == other.value(PID)
    late = cluster.pg_client()
    assert late.value(current(name)) == before
    # RESET gives back what the session began with; a session that ends leaves nothing.
    assert one.ok(f"RESET {name}").tag == "RESET"
    assert one.value(f"SHOW {name}") == one.value(current(name)) == before
    one.ok(f"SET {name} TO '{value}'")
    assert one.value(current(name)) == shown
    one.close()
    assert cluster.pg_client().value(current(name)) == before


def test_show_set_reset_and_discard_are_answered_as_by_postgresql(cluster):
    def talk(client):
        for name, (value, _) in TRACKED.items():
            if name == "client_encoding":
                continue
            client.ok(f"SHOW {name}")
            client.ok(f"SET SESSION {name} TO '{value}'")
            client.ok(f"SHOW {name}")
            client.ok(current(name))
        client.ok("RESET TimeZone")
        client.ok("SHOW TIME ZONE")
        client.ok("SET TIME ZONE 'Europe/Berlin'")
        client.ok("SHOW TimeZone")
        client.ok("SET TIME ZONE -3.5")
        client.ok("SHOW timezone")
        client.ok("SET TIME ZONE LOCAL")
        client.ok("SHOW timezone")
        client.ok("SET NAMES 'UTF8'")
        client.ok("SET work_mem = 2048")
        client.ok("SHOW work_mem")
        client.ok("SET work_mem TO DEFAULT")
        client.ok("SHOW work_mem")
        client.run("SET extra_float_digits = 2").ok()
        client.run("SHOW extra_float_digits").ok()
        client.ok("RESET ALL")
        for name in TRACKED:
            client.ok(f"SHOW {name}")
        client.ok("SET DateStyle = 'SQL'")
        assert client.ok("DISCARD ALL").tag == "DISCARD ALL"
        client.ok("SHOW DateStyle")
        client.ok("DISCARD TEMP")
        client.ok("DISCARD SEQUENCES")
        client.ok("SHOW server_version")
        client.ok("SHOW is_superuser")
    both(cluster, talk)


def test_values_and_names_that_postgresql_refuses_are_refused_as_it_does(cluster):
    def talk(client):
        client.query("SHOW no_such_thing").refused("42704", "I")
        client.query("SET DateStyle = 'nonsense'").refused("22023", "I")
        client.query("SET TimeZone = 'Nowhere/Land'").refused("22023", "I")
        client.query("SET work_mem = '1 byte'").refused("22023", "I")
        client.query("SET statement_timeout = 'soon'").refused("22023", "I")
        client.query("SET default_transaction_isolation = 'none'").refused("22023", "I")
        client.query("SET extra_float_digits = 99").refused("22023", "I")
        client.query("SET client_encoding = 'KLINGON'").refused("22023", "I")
        assert client.value("SHOW work_mem") == "4MB"
        assert client.value(BALANCE) == "1000"
        client.ok("BEGIN")
        client.query("SET work_mem = 'x'").refused("22023", "E")
        client.ok("ROLLBACK")
        client.query("DISCARD ALL").ok()
        client.ok("BEGIN")
        client.query("DISCARD ALL").refused("25001", "E")
        client.ok("ROLLBACK")
    both(cluster, talk)


def test_parameter_status_is_sent_for_each_change_and_for_each_change_back(cluster):
    def talk(client):
        assert client.ok("SET application_name = 'one'").parameters == {"application_name": "one"}
        assert client.ok("SET work_mem = '1MB'").parameters == {}
        client.ok("BEGIN")
        assert client.ok("SET DateStyle = 'German'").parameters == {"DateStyle": "German, DMY"}
        client.ok(BALANCE)
        assert client.ok("ROLLBACK").parameters == {"DateStyle": "ISO, MDY"}
        client.ok("BEGIN")
        client.ok(BALANCE)
        client.ok("SET LOCAL TimeZone = 'Asia/Tokyo'")
        assert client.ok("COMMIT").parameters == {"TimeZone": "UTC"}
        assert client.ok("RESET application_name").parameters == {"application_name": ""}
        client.ok("SET IntervalStyle = 'iso_8601'")
        assert client.ok("DISCARD ALL").parameters == {"IntervalStyle": "postgres"}
    both(cluster, talk)


def test_a_client_is_not_told_of_another_clients_parameters(cluster):
    one, other = cluster.pg_client(), cluster.pg_client()
    one.ok("SET DateStyle = 'German'")
    one.ok("SET application_name = 'one'")
    for _ in range(3):
        assert one.ok(BALANCE).kinds == "TDCZ"
        assert other.ok(BALANCE).kinds == "TDCZ"
    assert one.value(f"SELECT '2026-02-01'::date FROM account WHERE account_id = {KEY}") == "01.02.2026"
    assert other.value(f"SELECT '2026-02-01'::date FROM account WHERE account_id = {KEY}") == "2026-02-01"


def test_two_clients_with_different_settings_alternate_on_one_backend(cluster):
    styles = {"German": "01.02.2026", "ISO, MDY": "2026-02-01", "SQL, DMY": "01/02/2026"}
    zones = ["Asia/Tokyo", "UTC", "Europe/Berlin"]
    clients = []
    for (style, date), zone in zip(styles.items(), zones):
        client = cluster.pg_client()
        client.ok(f"SET DateStyle = '{style}'")
        client.ok(f"SET TimeZone = '{zone}'")
        clients.append((client, date, zone))
    sql = f"SELECT '2026-02-01'::date, current_setting('TimeZone') FROM account WHERE account_id = {KEY}"
    for turn in range(30):
        for client, date, zone in clients:
            # A write that fails and a transaction in between change nothing of it.
            if turn % 3 == 1:
                client.query(f"UPDATE account SET balance = -1 WHERE account_id = {KEY}").refused("23514")
            if turn % 3 == 2:
                client.ok("BEGIN")
                client.ok("SET LOCAL DateStyle = 'Postgres'")
                client.ok(BALANCE)
                client.ok("ROLLBACK")
            assert client.ok(sql).rows == [(date.encode(), zone.encode())]
            assert client.run(sql).rows == [(date.encode(), zone.encode())]


def test_applying_settings_costs_no_round_trip_to_speak_of(cluster):
    """Two clients with different settings are about as fast as two with the same ones."""
    def seconds(first, second):
        one, other = cluster.pg_client(), cluster.pg_client()
        one.ok(f"SET TimeZone = '{first}'")
        other.ok(f"SET TimeZone = '{second}'")
        with Stopwatch() as watch:
            for _ in range(300):
                one.ok(BALANCE)
                other.ok(BALANCE)
        one.close(), other.close()
        return watch.seconds
    same = min(seconds("UTC", "UTC") for _ in range(3))
    different = min(seconds("UTC", "Asia/Tokyo") for _ in range(3))
    assert different < 3 * same, (same, different)


def test_a_statement_timeout_of_one_client_does_not_cancel_anothers_statement(cluster):
    slow = f"SELECT pg_sleep(0.4) FROM account WHERE account_id = {KEY}"
    one, other = cluster.pg_client(), cluster.pg_client()
    one.ok("SET statement_timeout = '100ms'")
    for _ in range(2):
        one.query(slow).refused("57014", "I")
        other.ok(slow)


ELSEWHERE = [
    "SET ROLE postgres", "SET ROLE app", "SET SESSION AUTHORIZATION app", "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ROLE", "SET LOCAL ROLE app", "SET session_replication_role = replica",
    "LISTEN channel", "UNLISTEN *", "NOTIFY channel", "LOAD 'interlock'",
    "PREPARE p AS SELECT 1", "EXECUTE p", "CREATE TEMP TABLE t (a int)", "SELECT 1 AS a INTO TEMP t",
    f"DECLARE c CURSOR WITH HOLD FOR {BALANCE}", "LOCK TABLE account",
    "SELECT set_config('work_mem', '1MB', false)", "SELECT set_config('work_mem', '1MB', true)",
    "SELECT pg_advisory_lock(1)", "SELECT pg_try_advisory_lock(1)", "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_notify('a', 'b')", "SELECT pg_terminate_backend(pg_backend_pid())",
    "SELECT pg_cancel_backend(pg_backend_pid())", "SELECT lo_create(0)", "SELECT pg_reload_conf()",
    f"SELECT set_config('search_path', 'x', false) FROM account WHERE account_id = {KEY}",
    f"SELECT pg_advisory_lock(balance) FROM account WHERE account_id = {KEY}",
    "SELECT nextval('no_sequence')", "SELECT pg_stat_reset()", "SELECT pg_read_file('/etc/passwd')",
    "SET interlock.session_route_version = 1", "SET interlock.guard = off", "SET my.own = 'x'",
    "SET standard_conforming_strings = off", "SET client_encoding = 'SJIS'", "SET client_encoding = 'BIG5'",
    "UPDATE pg_settings SET setting = '1MB' WHERE name = 'work_mem'", "DO $$ BEGIN END $$", "CALL something()",
    "CREATE TABLE t (a int)", "DROP TABLE account", "ALTER TABLE account ADD COLUMN x int", "TRUNCATE account",
    "VACUUM", "CHECKPOINT", "GRANT ALL ON account TO public", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'",
    "SECURITY LABEL ON TABLE account IS 'x'", "REFRESH MATERIALIZED VIEW x", "CLUSTER", "REINDEX TABLE account",
    "SET CONSTRAINTS ALL DEFERRED",
]


@pytest.mark.parametrize("sql", ELSEWHERE)
def test_what_would_stay_on_the_backend_is_refused_with_a_hint_and_not_run(cluster, sql):
    client = cluster.pg_client()
    for ask in (client.query, client.run):
        answer = ask(sql)
        if sql == "SET CONSTRAINTS ALL DEFERRED" and not answer.errors:
            continue  # of the transaction, so it may be allowed
        assert len(answer.errors) == 1 and answer.status == "I", answer
        assert answer.errors[0].code.startswith("IL0"), answer
        assert answer.errors[0].text[:3] == "R" + answer.errors[0].code[3:], answer
    for shown in ("work_mem", "search_path", "role", "standard_conforming_strings", "session_replication_role"):
        assert cluster.pg_client().value(f"SELECT current_setting('{shown}')") == {
            "work_mem": "4MB", "search_path": '"$user", public', "role": "none", "standard_conforming_strings": "on",
            "session_replication_role": "origin"}[shown]
    assert client.value(BALANCE) == "1000"
    # In a transaction it fails it, and the backend is free again.
    client.ok("BEGIN")
    client.ok(f"UPDATE account SET balance = 1 WHERE account_id = {KEY}")
    answer = client.query(sql)
    if not answer.errors:
        client.ok("ROLLBACK")
        return
    assert answer.status == "E" and cluster.idle_in_transaction("s0") == 0
    client.ok("ROLLBACK")
    assert client.value(BALANCE) == "1000"


def test_cursors_and_portals_of_a_client_that_vanished_are_gone(cluster):
    one = cluster.pg_client()
    one.ok("BEGIN")
    one.ok(f"DECLARE c CURSOR FOR {BALANCE}")
    one.ask(w.parse(BALANCE, "s"), w.bind([], "s", "p")).ok()
    pid = one.value(PID)
    one.close()
    other = cluster.pg_client()
    other.ok("BEGIN")
    assert other.value(PID) == pid, "the backend is lent again"
    other.query("FETCH c").refused("34000", "E")
    other.ok("ROLLBACK")
    other.ask(w.execute("p")).refused("34000")
    other.ask(w.bind([], "s")).refused("26000")
    assert other.value(f"SELECT count(*) FROM pg_cursors, account WHERE account_id = {KEY}") == "0"


def test_prepared_statements_of_one_client_are_not_anothers(cluster):
    one, other = cluster.pg_client(), cluster.pg_client()
    one.ask(w.parse("SELECT 'one'", "s"), w.parse("SELECT 'unnamed'")).ok()
    other.ask(w.bind([], "s")).refused("26000")
    other.ask(w.bind()).refused("26000")
    other.ask(w.parse("SELECT 'other'", "s")).ok()
    for _ in range(3):
        assert one.ask(w.bind([], "s"), w.execute()).value == "one"
        assert other.ask(w.bind([], "s"), w.execute()).value == "other"
        assert one.ask(w.bind(), w.execute()).value == "unnamed"
    one.ok("DEALLOCATE ALL")
    assert other.ask(w.bind([], "s"), w.execute()).value == "other"
    one.ok("DISCARD ALL")
    assert other.ask(w.bind([], "s"), w.execute()).value == "other"


def test_what_a_trigger_does_to_the_session_is_not_seen_by_the_next_client(cluster):
    """The statement is innocent; the user's code behind it is not."""
    cluster.s0.sql("""
        CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('work_mem', '7777kB', false), set_config('DateStyle', 'German', false),
                    set_config('my.secret', 'of the first', false);
            PERFORM pg_advisory_lock(4711);
            CREATE TEMP TABLE IF NOT EXISTS remnant (a int);
            LISTEN remnant;
            RETURN NEW;
        END $$;
        CREATE TRIGGER meddle BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION meddle();
        GRANT TEMP ON DATABASE app TO app;
    """)
    # What a database has around its tables is learnt when a connection begins (docs/dba.md).
    cluster.s0.sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app'")
    try:
        one = cluster.pg_client()
        one.ok(f"UPDATE account SET balance = 5 WHERE account_id = {KEY}")
        other = cluster.pg_client()
        seen = {name: other.value(f"SELECT current_setting('{name}', true) FROM account WHERE account_id = {KEY}")
                for name in ("work_mem", "DateStyle", "my.secret")}
        assert seen["work_mem"] == "4MB" and seen["DateStyle"] == "ISO, MDY" and not seen["my.secret"], seen
        assert other.value(f"SELECT to_regclass('pg_temp.remnant') FROM account WHERE account_id = {KEY}") is None
        assert cluster.s0.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711") == 0
        cluster.s0.sql("NOTIFY remnant")
        assert other.ok(BALANCE).kinds == "TDCZ" and other.silent()
    finally:
        cluster.s0.sql("DROP TRIGGER meddle ON account; DROP FUNCTION meddle()")


def test_notices_reach_the_client_whose_statement_raised_them(cluster):
    cluster.s0.sql("""
        CREATE FUNCTION talk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE NOTICE 'now %', NEW.owner USING DETAIL = 'a detail', HINT = 'a hint'; RETURN NEW;
        END $$;
        CREATE TRIGGER talk BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION talk();
    """)
    try:
        def talk(client):
            update = f"UPDATE account SET owner = 'me' WHERE account_id = {KEY}"
            assert client.ok(update).kinds == "NCZ"
            assert client.run(update).ok().notices[0].text == "now me"
            client.ok("SET client_min_messages = 'warning'")
            assert client.ok(update).kinds == "CZ"
        both(cluster, talk)
        clients = [cluster.pg_client() for _ in range(6)]
        for i, client in enumerate(clients):
            client.send(w.query(f"UPDATE account SET owner = 'client {i}' WHERE account_id = {KEY}"))
        for i, client in enumerate(clients):
            answer = client.until_ready().ok()
            assert [notice.text for notice in answer.notices] == [f"now client {i}"]
    finally:
        cluster.s0.sql("DROP TRIGGER talk ON account; DROP FUNCTION talk()")


def test_a_parameter_changed_for_everyone_reaches_the_clients(cluster):
    """ALTER ROLE changes what new backends begin with; a reload changes what is reported by those there are."""
    client = cluster.pg_client()
    client.ok(BALANCE)
    cluster.s0.sql("ALTER SYSTEM SET log_min_duration_statement = '1h'")
    cluster.s0.sql("SELECT pg_reload_conf()")
    for _ in range(3):
        assert client.ok(BALANCE).value == "1000"
    cluster.s0.sql("ALTER SYSTEM RESET log_min_duration_statement")


def test_every_client_has_its_own_cancel_key_and_it_is_nobodys_pid(cluster):
    clients = [cluster.pg_client() for _ in range(50)]
    assert len({client.key for client in clients}) == 50
    assert len({client.key[1] for client in clients}) > 45


def test_a_pool_of_one_serves_many_clients_and_makes_no_more_connections_than_needed(cluster):
    clients = [cluster.pg_client() for _ in range(30)]
    created = cluster.router.status().shards["s0"]["created"]
    for client in clients:
        client.ok(f"SET application_name = 'client {id(client)}'")
        client.ok(BALANCE)
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 5, "nothing is borrowed")
    assert cluster.router.status().shards["s0"]["created"] - created <= 1
    assert cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"
                            " AND application_name NOT LIKE '%%test%%'") <= 1
