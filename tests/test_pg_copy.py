"""COPY (query) TO STDOUT through the PostgreSQL listener; every other COPY is refused and leaves nothing behind."""

import pytest

from support import pgwire as w
from support.control import KEY, both
from support.wait import wait_until

CLUSTER_OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 1}}}
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
ROWS = f"SELECT g, repeat('x', g), NULL FROM account, generate_series(1, 100) g WHERE account_id = {KEY} ORDER BY g"
MANY = f"SELECT repeat('x', 1000) FROM account, generate_series(1, 200000) g WHERE account_id = {KEY}"


@pytest.mark.parametrize("options", ["", "WITH (FORMAT csv, HEADER)", "(FORMAT binary)", "WITH CSV", "(DELIMITER '|')"])
def test_copy_of_a_query_sends_the_same_data_as_postgresql(cluster, options):
    def talk(client):
        answer = client.query(f"COPY ({ROWS}) TO STDOUT {options}").ok()
        assert answer.kinds.startswith("Hd") and answer.kinds.endswith("dcCZ") and answer.tag == "COPY 100"
        assert client.value(BALANCE) == "1000"
        # The same with the extended protocol.
        answer = client.ask(w.parse(f"COPY ({ROWS}) TO STDOUT {options}", "c"), w.describe_statement("c"),
                            w.bind([], "c"), w.describe_portal(), w.execute()).ok()
        assert answer.tag == "COPY 100" and answer.kinds.startswith("1tn2nHd")
        assert client.ask(w.bind([], "c"), w.execute(), w.extended(BALANCE)).ok().value == "1000"
    both(cluster, talk)


def test_copy_of_a_write_that_returns_rows_is_a_write(cluster):
    def talk(client):
        answer = client.query(f"COPY (UPDATE account SET balance = balance - 1 WHERE account_id = {KEY}"
                              " RETURNING balance) TO STDOUT").ok()
        assert [m.parts for m in answer.of("d")] == [(b"999\n",)]
        client.ok("BEGIN")
        client.ok(f"COPY (DELETE FROM account WHERE account_id = {KEY} RETURNING 1) TO STDOUT")
        client.ok("ROLLBACK")
        assert client.value(BALANCE) == "999"
    both(cluster, talk)


def test_copy_among_other_statements_and_in_a_transaction(cluster):
    def talk(client):
        assert client.query(f"{BALANCE}; COPY ({ROWS}) TO STDOUT; {BALANCE}").ok().tags == [
            "SELECT 1", "COPY 100", "SELECT 1"]
        client.ok("BEGIN")
        client.ok(f"UPDATE account SET balance = 5 WHERE account_id = {KEY}")
        assert client.ok(f"COPY ({BALANCE}) TO STDOUT").of("d")[0].parts == (b"5\n",)
        assert client.ok("ROLLBACK").status == "I"
        assert client.ok("COPY (SELECT 1) TO STDOUT").tag == "COPY 1"
    both(cluster, talk)


def test_an_error_in_the_middle_of_a_copy_ends_it(cluster):
    failing = ("COPY (SELECT 1000 / (500 - g) FROM account, generate_series(1, 900) g"
               f" WHERE account_id = {KEY}) TO STDOUT")

    def talk(client):
        answer = client.query(failing).refused("22012", "I")
        assert answer.of("d") and not answer.of("c")
        client.ask(w.extended(failing)).refused("22012", "I")
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)


@pytest.mark.parametrize("sql", [
    "COPY account FROM STDIN", "COPY account (account_id, balance) FROM STDIN (FORMAT csv)",
    "COPY account FROM '/etc/passwd'", "COPY account FROM PROGRAM 'true'",
    "COPY account TO STDOUT", "COPY (SELECT * FROM account) TO STDOUT",
    f"COPY ({BALANCE}) TO '/tmp/interlock-raw-test'", f"COPY ({BALANCE}) TO PROGRAM 'cat'",
    f"COPY (SELECT * FROM account WHERE account_id = {KEY} OR true) TO STDOUT",
])
def test_every_other_copy_is_refused_and_the_session_goes_on(cluster, sql):
    client = cluster.pg_client()
    for _ in range(2):
        answer = client.query(sql)
        assert len(answer.errors) == 1 and answer.kinds == "EZ" and answer.status == "I", answer
        assert answer.codes[0].startswith("IL0"), answer
        # A client that goes on with data as if it had been accepted is not listened to.
        client.send(w.copy_data(b"1\tx\t5\t0\n"), w.copy_done())
        assert client.value(BALANCE) == "1000"
        answer = client.ask(w.parse(sql), w.bind(), w.execute(), w.copy_data(b"1\tx\t5\t0\n"), w.copy_done())
        assert len(answer.errors) == 1 and answer.errors[0].code.startswith("IL0"), answer
    assert cluster.counts() == (20, 20)


def test_copy_from_is_refused_with_a_hint(cluster):
    error = cluster.pg_client().query("COPY account FROM STDIN").error
    assert error.fields.get("H"), error


def test_a_client_that_leaves_in_the_middle_of_a_copy_leaves_a_clean_connection(cluster):
    for extended in (False, True):
        client = cluster.pg_client()
        if extended:
            client.send(w.extended(f"COPY ({MANY}) TO STDOUT"), w.sync())
        else:
            client.send(w.query(f"COPY ({MANY}) TO STDOUT"))
        client.until("d")
        client.close()
        wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "nothing is borrowed")
        next_one = cluster.pg_client()
        assert next_one.query(BALANCE).kinds == "TDCZ"


def test_a_large_copy_arrives_whole(cluster):
    client = cluster.pg_client(timeout=60)
    client.send(w.query(f"COPY ({MANY}) TO STDOUT"))
    seen = size = 0
    while (message := client.receive()).kind != "C":
        if message.kind == "d":
            seen += 1
            size += len(message.body)
        assert message.kind in "Hdc", message
    assert (seen, size) == (200_000, 200_000 * 1001) and message.tag == "COPY 200000"
    client.until_ready()
    assert client.value(BALANCE) == "1000"
