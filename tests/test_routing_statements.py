"""Routing of single statements: where they go, what they answer."""

from support.placement import keys_on, reference_shard
from support.statements import BALANCE, DELETE, INSERT, SELECT, ok, refused

S0 = keys_on("s0", 20)
S1 = keys_on("s1", 20)


def empty(cluster):
    for shard in ("s0", "s1"):
        cluster.instances[shard].sql("DELETE FROM account")


def test_forty_rows_inserted_through_the_router_land_twenty_and_twenty_and_none_misplaced(cluster):
    empty(cluster)
    client = cluster.client()
    for key in sorted(S0 + S1):
        answer = ok(client.q(INSERT, key, f"owner{key}", 100, 0))
        assert (answer.tag, answer.count, answer.tx, answer.rv) == ("INSERT", 1, "I", 1)
        assert answer.shard == reference_shard(key)
    assert cluster.counts() == (20, 20)
    # Read directly: each shard holds exactly the keys that are its own, by its own count too.
    for shard, keys in (("s0", S0), ("s1", S1)):
        rows = cluster.instances[shard].sql("SELECT account_id FROM account ORDER BY 1")
        assert [row[0] for row in rows] == sorted(keys)
        assert cluster.instances[shard].sql("SELECT * FROM interlock.misplaced('account')") == []
    assert all(ok(client.q(SELECT, key)).rows == [[key, f"owner{key}", 100, 0]] for key in S0 + S1)


def test_keywords_count_in_any_case_and_names_follow_postgresql(cluster):
    client = cluster.client()
    key = S1[0]
    for sql in ("select BALANCE from ACCOUNT where ACCOUNT_ID = ?",
                "SeLeCt balance FrOm account WhErE account_id = ?",
                "  SELECT\tbalance\nFROM account WHERE account_id=?  "):
        answer = ok(client.q(sql, key))
        assert (answer.tag, answer.shard, answer.rows) == ("SELECT", "s1", [[1000]])
    assert ok(client.q("begin")).tx == "T"
    assert ok(client.q("Update account Set balance = balance + ? Where account_id = ?", 1, key)).tx == "T"
    assert ok(client.q("RollBack")).tx == "I"


def test_every_write_answers_with_its_tag_count_shard_and_backend(cluster):
    client = cluster.client()
    key = S0[3]
    update = ok(client.q("UPDATE account SET owner = ?, balance = balance - ?, version = version + ?"
                         " WHERE account_id = ? AND version = ?", "zoe", 250, 1, key, 0))
    assert (update.tag, update.count, update.shard) == ("UPDATE", 1, "s0")
    stale = ok(client.q("UPDATE account SET balance = ? WHERE account_id = ? AND version = ?", 0, key, 0))
    assert (stale.tag, stale.count) == ("UPDATE", 0)
    assert cluster.s0.sql("SELECT owner, balance, version FROM account WHERE account_id = %s", key) == [
        ("zoe", 750, 1)]
    delete = ok(client.q(DELETE, key))
    assert (delete.tag, delete.count, delete.shard) == ("DELETE", 1, "s0")
    assert ok(client.q(SELECT, key)).rows == []
    assert cluster.counts() == (19, 20)


def test_pid_in_the_answer_is_the_backend_that_ran_the_statement(cluster):
    client = cluster.client()
    answer = ok(client.q(BALANCE, S1[0]))
    assert cluster.s1.value("SELECT usename FROM pg_stat_activity WHERE pid = %s", answer.pid) == "app"


def test_an_empty_transaction_uses_no_backend(cluster):
    before = cluster.router.status().shards
    for end in ("COMMIT", "ROLLBACK"):
        client = cluster.client()
        begin = ok(client.q("BEGIN"))
        assert (begin.tx, begin.shard, begin.pid) == ("T", "none", None)
        done = ok(client.q(end))
        assert (done.tag, done.tx, done.shard, done.pid) == (end, "I", "none", None)
    after = cluster.router.status().shards
    assert {name: shard["created"] for name, shard in after.items()} == {
        name: shard["created"] for name, shard in before.items()}


def test_commit_or_rollback_outside_a_transaction_is_no_error(cluster):
    client = cluster.client()
    for word in ("COMMIT", "ROLLBACK"):
        answer = ok(client.q(word))
        assert (answer.tx, answer.fields.get("note")) == ("I", "no_transaction")


def test_an_in_list_on_one_shard_answers_and_across_shards_is_refused(cluster):
    client = cluster.client()
    sql = "SELECT account_id FROM account WHERE account_id IN (?, ?)"
    answer = ok(client.q(sql, S0[0], S0[1]))
    assert answer.shard == "s0" and sorted(answer.rows) == [[S0[0]], [S0[1]]] and answer.count == 2
    refused(client.q(sql, S0[0], S1[0]), "R11", "I")
    refused(client.q("DELETE FROM account WHERE account_id IN (?, ?)", S0[0], S1[0]), "R11", "I")
    assert ok(client.q("DELETE FROM account WHERE account_id IN (?, ?)", S0[0], S0[1])).count == 2
    assert cluster.counts() == (18, 20)


def test_values_come_back_as_they_were_sent(cluster):
    client = cluster.client()
    key = S0[5]
    for owner in ("", "tab\there", "line\nbreak", "100% + 50", "\\N", "O'Brien; DROP TABLE account --",
                  "\u00fc\u20ac\U0001f600", '"quoted"', "null", "x" * 5000):
        assert ok(client.q("UPDATE account SET owner = ? WHERE account_id = ?", owner, key)).count == 1
        assert ok(client.q("SELECT owner FROM account WHERE account_id = ?", key)).rows == [[owner]]
        assert cluster.s0.value("SELECT owner FROM account WHERE account_id = %s", key) == owner
    assert ok(client.q("UPDATE account SET owner = ? WHERE account_id = ?", None, key)).count == 1
    assert ok(client.q("SELECT owner FROM account WHERE account_id = ?", key)).rows == [[None]]


def test_a_null_key_is_refused_and_not_broadcast(cluster):
    client = cluster.client()
    for sql in (SELECT, DELETE):
        answer = client.q(sql, None)
        assert not answer.ok and answer.code in ("R10", "R27"), answer.raw
    assert not client.q(INSERT, None, "nobody", 1, 0).ok
    assert cluster.counts() == (20, 20)


def test_the_extremes_of_bigint_are_routed_and_stored(cluster):
    client = cluster.client()
    for key in (-(2**63), 2**63 - 1, 0, -1):
        answer = ok(client.q(INSERT, key, "edge", 1, 0))
        assert answer.shard == reference_shard(key)
        assert ok(client.q(BALANCE, key)).rows == [[1]]
        assert ok(client.q(DELETE, key)).count == 1
    for beyond in (2**63, -(2**63) - 1, "1e3", "", "0x10", "1.0"):
        refused(client.q(BALANCE, beyond), "R27", "I")
