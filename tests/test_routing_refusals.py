"""What is outside `strict` is refused with its exact code, and never reaches a backend."""

from collections import Counter

import pytest

from localcluster.line import parse_answer
from support.placement import keys_on
from support.statements import BALANCE, SELECT, ok

S0, S1 = keys_on("s0", 2), keys_on("s1", 2)
KEY = S0[0]

# The statements below: 37, with how many of each code.
EXPECTED_COUNTS = {"R01": 5, "R10": 7, "R20": 2, "R21": 3, "R22": 2, "R23": 2, "R24": 3, "R25": 5,
                   "R26": 3, "R27": 2, "R28": 2, "R29": 1}
REFUSED = [
    ("R01", f"{SELECT} ORDER BY account_id", [KEY]),
    ("R01", f"{SELECT} FOR UPDATE", [KEY]),
    ("R01", "COPY account FROM STDIN", []),
    ("R01", "INSERT INTO account (account_id, balance) VALUES (?, ?), (?, ?)", [KEY, 1, S0[1], 1]),
    ("R01", 'SELECT "balance" FROM account WHERE account_id = ?', [KEY]),
    ("R10", "SELECT * FROM account", []),
    ("R10", "DELETE FROM account", []),
    ("R10", "UPDATE account SET balance = ?", [0]),
    ("R10", "SELECT * FROM account WHERE owner = ?", ["owner1"]),
    ("R10", "DELETE FROM account WHERE balance = ?", [1000]),
    ("R10", "SELECT * FROM account WHERE account_id = ? OR account_id = ?", [KEY, S0[1]]),
    ("R10", "INSERT INTO account (owner, balance) VALUES (?, ?)", ["nobody", 1]),
    ("R20", "SELECT * FROM account JOIN account ON account_id = account_id WHERE account_id = ?", [KEY]),
    ("R20", "SELECT * FROM account, account WHERE account_id = ?", [KEY]),
    ("R21", "SELECT * FROM account WHERE account_id IN (SELECT account_id FROM account)", []),
    ("R21", "WITH a AS (SELECT * FROM account) SELECT * FROM a", []),
    ("R21", f"{SELECT} UNION {SELECT}", [KEY, KEY]),
    ("R22", f"{SELECT};", [KEY]),
    ("R22", "DELETE FROM account WHERE account_id = ?; DROP TABLE account", [KEY]),
    ("R23", f"{SELECT} -- the rest", [KEY]),
    ("R23", "SELECT /* all */ * FROM account WHERE account_id = ?", [KEY]),
    ("R24", "DROP TABLE account", []),
    ("R24", "TRUNCATE account", []),
    ("R24", "ALTER TABLE account DROP COLUMN balance", []),
    ("R25", "SET statement_timeout = '1s'", []),
    ("R25", "SHOW search_path", []),
    ("R25", "LISTEN somewhere", []),
    ("R25", "SAVEPOINT here", []),
    ("R25", "LOCK TABLE account", []),
    ("R26", "SELECT * FROM nowhere WHERE account_id = ?", [KEY]),
    ("R26", "SELECT colour FROM account WHERE account_id = ?", [KEY]),
    ("R26", "UPDATE account SET colour = ? WHERE account_id = ?", ["red", KEY]),
    ("R27", SELECT, []),
    ("R27", SELECT, ["abc"]),
    ("R28", f"SELECT * FROM account WHERE account_id = {KEY}", []),
    ("R28", "UPDATE account SET owner = 'mallory' WHERE account_id = ?", [KEY]),
    ("R29", "UPDATE account SET account_id = ? WHERE account_id = ?", [S1[0], KEY]),
]
MALFORMED = [b"Q\tSELECT%ZZ", b"HELLO"]
SQLSTATES = {"R01": "IL001", "R02": "08P01", "R10": "IL010", "R20": "IL020", "R21": "IL021",
             "R22": "IL022", "R23": "IL023", "R24": "IL024", "R25": "IL025", "R26": "IL026",
             "R27": "IL027", "R28": "IL028", "R29": "IL029"}

CLUSTER_OPTIONS = {"shard_settings": {"log_statement": "all"}}


def test_thirty_seven_statements_and_two_malformed_frames_each_get_their_exact_code(cluster):
    client = cluster.client()
    # Connections of the pool exist beforehand, so that nothing below is a greeting.
    for key in (S0[0], S1[0]):
        ok(client.q(BALANCE, key))
    marks = {name: cluster.instances[name].log_mark() for name in ("s0", "s1")}
    schema = cluster.s0.sql("SELECT attname FROM pg_attribute WHERE attrelid = 'account'::regclass ORDER BY attnum")
    assert cluster.counts() == (20, 20)

    seen = Counter()
    wrong = []
    for code, sql, params in REFUSED:
        answer = client.q(sql, *params)
        seen[answer.code] += 1
        if (answer.code, answer.tx, answer.sqlstate) != (code, "I", SQLSTATES[code]):
            wrong.append(f"{code} expected for {sql!r} {params}: {answer.raw}")
    for frame in MALFORMED:
        answer = parse_answer(client.ask(frame))
        if (answer.code, answer.tx, answer.sqlstate) != ("R02", "I", SQLSTATES["R02"]):
            wrong.append(f"R02 expected for {frame!r}: {answer.raw}")
    assert not wrong, "\n".join(wrong)
    assert len(REFUSED) == 37 and dict(seen) == EXPECTED_COUNTS

    # Nothing happened, and nothing was even said to a backend.
    assert cluster.counts() == (20, 20)
    assert cluster.total() == 40_000
    assert cluster.s0.sql("SELECT attname FROM pg_attribute WHERE attrelid = 'account'::regclass"
                          " ORDER BY attnum") == schema
    for name, mark in marks.items():
        said = [line for line in cluster.instances[name].log_since(mark).splitlines()
                if " app@app " in line]
        assert said == [], f"{name} was told:\n" + "\n".join(said)
    # The session is as good as before.
    assert ok(client.q(BALANCE, KEY)).rows == [[1000]]


@pytest.mark.parametrize("code, sql, params", [
    # What changes meaning before tokenisation comes first, wherever it stands ...
    ("R23", "DROP TABLE account -- now", []),
    ("R23", "SET x = 'a' /* b */; DROP TABLE account", []),
    ("R22", "DROP TABLE account;", []),
    ("R22", "SET statement_timeout = '1s';", []),
    # ... but not inside a string,
    ("R28", "UPDATE account SET owner = 'a -- b; c /* d' WHERE account_id = ?", [KEY]),
    ("R28", "SELECT * FROM account WHERE owner = 'it''s; fine'", []),
    # then the first keyword, before literals,
    ("R25", "SET statement_timeout = '1s'", []),
    ("R24", "CREATE TABLE t (a int DEFAULT 1)", []),
    ("R25", "PREPARE p AS SELECT 1", []),
    ("R25", "RESET ALL", []),
    ("R24", "create index on account (owner)", []),
    # then literals, before the grammar,
    ("R28", "SELECT * FROM nowhere WHERE account_id = 1", []),
    ("R28", "SELECT 1", []),
    ("R28", "UPDATE account SET owner = NULL WHERE account_id = ?", [KEY]),
    # then the rest.
    ("R20", "SELECT * FROM account LEFT JOIN nowhere ON account_id = id WHERE account_id = ?", [KEY]),
    ("R21", "SELECT * FROM account WHERE account_id = (SELECT account_id FROM account)", []),
])
def test_the_order_of_the_checks_decides_the_code(cluster, code, sql, params):
    answer = cluster.client().q(sql, *params)
    assert answer.code == code, f"{sql!r}: {answer.raw}"


def test_a_value_is_never_spliced_into_sql(cluster):
    client = cluster.client()
    for value in ("1 OR 1=1", "1; DROP TABLE account", "1)--", "'", "1'::text", "$1"):
        answer = client.q("DELETE FROM account WHERE account_id = ?", value)
        assert answer.code == "R27", answer.raw
    assert ok(client.q("UPDATE account SET owner = ? WHERE account_id = ?",
                       "x', balance = 0 WHERE true --", KEY)).count == 1
    assert cluster.counts() == (20, 20) and cluster.total() == 40_000


def test_unterminated_strings_quoted_names_and_comments_are_refused(cluster):
    client = cluster.client()
    for sql in ("SELECT * FROM account WHERE owner = 'open", 'SELECT * FROM "account" WHERE account_id = ?'):
        assert client.q(sql).code == "R01", sql
    assert client.q("SELECT /* open").code == "R23"
    ok(client.q(BALANCE, KEY))


def test_a_refusal_inside_a_transaction_fails_it_and_frees_its_backend(cluster):
    for sql, code in (("SET statement_timeout = '1s'", "R25"), ("DROP TABLE account", "R24"),
                      ("SELECT * FROM account", "R10"), ("SELECT 1", "R28")):
        client = cluster.client()
        ok(client.q("BEGIN"))
        ok(client.q("UPDATE account SET balance = balance - ? WHERE account_id = ?", 10, KEY))
        answer = client.q(sql)
        assert (answer.code, answer.tx) == (code, "E"), answer.raw
        assert cluster.idle_in_transaction("s0") == 0
        # Data statements and COMMIT answer R13; other refusals keep their own code.
        assert client.q(BALANCE, KEY).code == "R13"
        assert client.q("DROP TABLE account").code == "R24"
        assert client.q("COMMIT").code == "R13"
        done = ok(client.q("ROLLBACK"))
        assert done.tx == "I"
    assert cluster.balance(KEY) == 1000
