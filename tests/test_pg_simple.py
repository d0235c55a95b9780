"""The simple protocol on the PostgreSQL listener: answers as PostgreSQL itself gives them."""

import pytest

from support import pgwire
from support.control import KEY, KEYS, both
from support.placement import keys_on

CLUSTER_OPTIONS = {"router_settings": {"pg": {}}}
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
DEBIT = f"UPDATE account SET balance = balance - 10 WHERE account_id = {KEY}"
TOO_MUCH = f"UPDATE account SET balance = balance - 5000 WHERE account_id = {KEY}"


@pytest.mark.parametrize("sql", ["", " ", ";", " ; ;\n", "-- nothing", "/* nothing */", "; /* a */ ; -- b\n"])
def test_an_empty_query_gets_its_own_answer(cluster, sql):
    def talk(client):
        assert client.query(sql).kinds == "IZ"
    both(cluster, talk)


def test_one_statement_of_each_kind_answers_with_rows_and_tag(cluster):
    new = keys_on("s0", 1, start=10_000)[0]

    def talk(client):
        assert client.query(BALANCE).kinds == "TDCZ"
        assert client.ok(f"SELECT * FROM account WHERE account_id = {new}").tag == "SELECT 0"
        assert client.ok(f"INSERT INTO account VALUES ({new}, NULL, 7, 1)").tag == "INSERT 0 1"
        assert client.ok(f"SELECT * FROM account WHERE account_id = {new}").rows == [
            (str(new).encode(), None, b"7", b"1")]
        assert client.ok(f"UPDATE account SET owner = '' WHERE account_id = {new} RETURNING owner").rows == [(b"",)]
        assert client.ok(f"DELETE FROM account WHERE account_id = {new}").tag == "DELETE 1"
        assert client.ok("SELECT 1 AS one, NULL AS none, 'x'::text").kinds == "TDCZ"
        assert client.ok("VALUES (1), (2)").tag == "SELECT 2"
        assert client.ok("SELECT").rows == [()]
    both(cluster, talk)


def test_a_thousand_rows_arrive_whole_and_in_order(cluster):
    def talk(client):
        answer = client.ok("SELECT g, repeat(chr(97 + g % 26), g) FROM account, generate_series(1, 1000) g"
                           f" WHERE account_id = {KEY} ORDER BY g")
        assert len(answer.rows) == 1000 and answer.rows[999] == (b"1000", b"m" * 1000)
    both(cluster, talk)


def test_several_statements_in_one_query_answer_one_after_the_other(cluster):
    def talk(client):
        answer = client.query(f"{BALANCE}; {DEBIT};; {BALANCE};")
        assert answer.kinds == "TDCCTDCZ" and [row[0] for row in answer.rows] == [b"1000", b"990"]
        assert client.query("SELECT 1; SELECT 2 -- end").ok().rows == [(b"1",), (b"2",)]
        assert client.query(f"SELECT 1; {BALANCE}").ok().rows == [(b"1",), (b"990",)]
    both(cluster, talk)


def test_an_error_in_the_middle_undoes_what_came_before_it_in_the_same_query(cluster):
    def talk(client):
        answer = client.query(f"{DEBIT}; {TOO_MUCH}; {BALANCE}").refused("23514", "I")
        assert answer.kinds == "CEZ"
        assert client.value(BALANCE) == "1000"
        assert client.query(f"{DEBIT}; SELECT 1/0").refused("22012", "I").kinds == "CEZ"
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)
    assert cluster.balance(KEY) == 1000


def test_a_syntax_error_anywhere_in_a_query_runs_nothing_of_it(cluster):
    def talk(client):
        assert client.query(f"{DEBIT}; SELEC 1").refused("42601", "I").kinds == "EZ"
        assert client.query("SELECT 'open").refused("42601").kinds == "EZ"
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)


def test_several_statements_for_two_shards_are_refused_before_any_runs(cluster):
    other = keys_on("s1", 1)[0]
    client = cluster.pg_client()
    answer = client.query(f"{DEBIT}; UPDATE account SET balance = balance + 10 WHERE account_id = {other}")
    assert answer.status == "I" and answer.codes in (["IL011"], ["IL012"]), answer
    assert client.value(BALANCE) == "1000"
    assert cluster.total() == 40_000


def test_transaction_control_inside_a_query_follows_postgresql(cluster):
    def talk(client):
        assert client.query(f"BEGIN; {DEBIT}; COMMIT; SELECT 1/0").refused("22012", "I")
        assert client.value(BALANCE) == "990"
        assert client.query(f"BEGIN; {DEBIT}").ok().status == "T"
        assert client.query(f"{DEBIT}; ROLLBACK; {BALANCE}").ok().value == "990"
        assert client.query(f"BEGIN; {TOO_MUCH}; COMMIT").refused("23514", "E")
        assert client.query("COMMIT").ok().tag == "ROLLBACK"
        assert client.query(f"BEGIN; {DEBIT}; ROLLBACK").ok().tags == ["BEGIN", "UPDATE 1", "ROLLBACK"]
        assert client.value(BALANCE) == "990"
    both(cluster, talk)


def test_an_implicit_transaction_that_turns_into_an_explicit_one_is_refused_before_anything_runs(cluster):
    client = cluster.pg_client()
    for sql in (f"{DEBIT}; BEGIN; {DEBIT}", f"{DEBIT}; COMMIT; {DEBIT}"):
        answer = client.query(sql)
        if answer.errors:
            answer.refused("IL022", "I")
            assert answer.kinds == "EZ" and answer.error.fields["H"]
        else:
            # Or it is done as PostgreSQL does it.
            assert answer.status == ("T" if "BEGIN" in sql else "I")
        client.query("ROLLBACK")
    assert client.value(BALANCE) in ("1000", "980")


@pytest.mark.parametrize("sql, code", [
    (f"SELECT balanse FROM account WHERE account_id = {KEY}", "42703"),
    (f"SELECT balance + 'x' FROM account WHERE account_id = {KEY}", "22P02"),
    (f"SELECT 1/(balance - 1000) FROM account WHERE account_id = {KEY}", "22012"),
    (f"INSERT INTO account VALUES ({KEY}, 'twice', 1, 0)", "23505"),
    (f"UPDATE account SET balance = -1 WHERE account_id = {KEY}", "23514"),
    (f"INSERT INTO account (account_id, balance) VALUES ({KEY})", "42601"),
    (f"SELECT owner::int FROM account WHERE account_id = {KEY}", "22P02"),
    (f"SELECT sum(owner) FROM account WHERE account_id = {KEY}", "42883"),
    ("SELECT 1/0", "22012"),
    ("SELECT 'abc'::int", "22P02"),
])
def test_an_error_of_the_backend_reaches_the_client_with_all_its_fields(cluster, sql, code):
    def talk(client):
        client.query(sql).refused(code, "I")
        client.ok("BEGIN")
        client.query(sql).refused(code, "E")
        client.query(BALANCE).refused("25P02", "E")
        assert client.ok("ROLLBACK").status == "I"
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)


def test_an_error_after_some_rows_leaves_the_rows_and_ends_with_the_error(cluster):
    def talk(client):
        answer = client.query(f"SELECT 1 / (5 - g) FROM account, generate_series(1, 9) g WHERE account_id = {KEY}")
        assert answer.kinds == "TDDDDEZ" and answer.codes == ["22012"]
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)


def test_queries_that_are_sent_ahead_are_answered_in_order(cluster):
    def talk(client):
        client.send(*(pgwire.query(f"SELECT balance + {i} FROM account WHERE account_id = {KEY}")
                      for i in range(200)), pgwire.query("SELECT 1/0"), pgwire.query(BALANCE))
        assert [client.until_ready().ok().value for _ in range(200)] == [str(1000 + i) for i in range(200)]
        client.until_ready().refused("22012")
        assert client.until_ready().value == "1000"
    both(cluster, talk)


def test_queries_sent_ahead_for_two_shards_in_turn_are_answered_in_order(cluster):
    client = cluster.pg_client()
    others = keys_on("s1", 20)
    keys = [key for pair in zip(KEYS, others) for key in pair]
    client.send(*(pgwire.query(f"SELECT account_id FROM account WHERE account_id = {key}") for key in keys))
    assert [client.until_ready().ok().value for _ in keys] == [str(key) for key in keys]


def test_terminate_ends_the_connection_without_a_word(cluster):
    def talk(client):
        client.ok(BALANCE)
        client.send(pgwire.terminate())
        assert client.until_closed() == []
    both(cluster, talk)


def test_text_in_every_encoding_of_a_query_is_passed_on_as_it_is(cluster):
    def talk(client):
        for word in ("\u00fc\u20ac\U0001f600", "O''Brien; --", "$1", "tab\tnew\nline", "\\n", "/* no */"):
            client.ok(f"UPDATE account SET owner = '{word}' WHERE account_id = {KEY}")
            assert client.value(f"SELECT owner FROM account WHERE account_id = {KEY}") == word.replace("''", "'")
        assert client.value(f"SELECT $tag$it's$tag$ || owner FROM account WHERE account_id = {KEY}") == "it's/* no */"
        assert client.value(f"SELECT E'a\\nb' FROM account WHERE account_id = {KEY}") == "a\nb"
        assert client.value(f"SELECT U&'\\00fc' FROM account WHERE account_id = {KEY}") == "\u00fc"
    both(cluster, talk)
