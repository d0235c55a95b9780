"""Pages of a keyset on the line protocol: the one statement of the `strict` profile that goes to all shards."""

import json

import pytest

from support.control import KEY
from support.router import SLACK
from support.scattered import KEYSET, Locked, waiters
from support.wait import Stopwatch, wait_until

CLUSTER_OPTIONS = {"router_settings": {"pool": {"size": 2}, "scatter": {"timeout": "700ms", "max_rows": 30}}}
PAGE = "SELECT * FROM interlock.keyset_page(?, NULL::account, ?, ?, ?, ?)"
SIGNED = KEYSET.replace("by_balance", "signed").replace("signed => false", "signed => true")
SCOPED = KEYSET.replace("by_balance", "of_version").replace("'{}'", "'{version}'")
SECRET = "SELECT interlock.cursor_key_add(decode(repeat('ab', 32), 'hex'))"


@pytest.fixture(scope="module")
def declared(module_cluster):
    for name in ("s0", "s1"):
        for sql in (SECRET, KEYSET, SIGNED, SCOPED):
            module_cluster.instances[name].sql(sql)
    return module_cluster


@pytest.fixture
def client(declared, cluster):
    for name in ("s0", "s1"):
        cluster.instances[name].sql("UPDATE account SET balance = account_id * 7919 % 6 * 100, version = account_id % 3")
    return cluster.client()


def everything(cluster):
    return [row for name in ("s0", "s1") for row in
            cluster.instances[name].sql("SELECT account_id, balance FROM account")]


@pytest.mark.parametrize("keyset", ["by_balance", "signed"])
@pytest.mark.parametrize("size", [1, 7, 30])
def test_a_walk_gives_every_row_once_in_order(cluster, client, keyset, size):
    found, cursor = [], None
    while True:
        answer = client.q(PAGE, keyset, None, cursor, None, size)
        assert answer.ok and answer.tag == "SELECT" and answer.shard == "*" and answer.tx == "I"
        assert answer.fields["pid"] == "none"
        if not answer.rows:
            break
        assert len(answer.rows) == min(size, 40 - len(found)) == int(answer.fields["count"])
        for item, row_cursor, sort_key, complete, missing in answer.rows:
            account, _, balance, _ = item.strip("()").split(",")
            found.append((int(account), int(balance)))
            assert complete is True and missing == "{}" and sort_key.startswith("\\x") and row_cursor
        cursor = answer.rows[-1][1]
    assert found == sorted(everything(cluster), key=lambda row: (-row[1], row[0]))


def test_arguments_at_the_end_may_be_left_out(cluster, client):
    assert len(client.q("select * from interlock.keyset_page(?, null::public.account)", "by_balance").rows) == 25
    scoped = client.q("SELECT * FROM interlock.keyset_page(?, NULL::account, ?, ?, ?, ?)", "of_version",
                      json.dumps({"version": 1}), None, None, 20)
    assert scoped.ok and {row[0].strip("()").split(",")[3] for row in scoped.rows} == {"1"}
    back = client.q(PAGE, "by_balance", None, None, client.q(PAGE, "by_balance", None, None, None, 9).rows[5][1], 3)
    assert [row[0] for row in back.rows] == [row[0] for row in
                                             client.q(PAGE, "by_balance", None, None, None, 9).rows[2:5]]


def test_refusals_have_their_codes(cluster, client):
    cursor = client.q(PAGE, "signed", None, None, None, 5).rows[0][1]
    flipped = cursor[:-4] + ("A" if cursor[-4] != "A" else "B") + cursor[-3:]
    for values, code in [(("signed", None, flipped, None, 5), "BAD_CURSOR"),
                         (("signed", None, "nonsense", None, 5), "BAD_CURSOR"),
                         (("by_balance", None, cursor, None, 5), "BAD_CURSOR"),
                         (("by_balance", None, None, None, 31), "ROW_BUDGET"),
                         (("by_balance", None, None, None, 1001), "PAGE_TOO_LARGE"),
                         (("by_balance", None, None, None, "many"), "R27"),
                         (("by_balance", None, None, None), "R27"),
                         ((None, None, None, None, 5), "R27"),
                         (("by_balance", "{", None, None, 5), "R31")]:
        answer = client.q(PAGE, *values)
        assert answer.code == code and answer.tx == "I", (values, answer)
    assert client.q(PAGE, "signed", None, cursor, None, 5).ok


def test_transactions_take_pages_until_they_are_on_a_shard(cluster, client):
    assert client.q("BEGIN").tx == "T"
    assert client.q(PAGE, "by_balance", None, None, None, 5).tx == "T"
    assert client.q("SELECT balance FROM account WHERE account_id = ?", KEY).tx == "T"
    answer = client.q(PAGE, "by_balance", None, None, None, 5)
    assert (answer.code, answer.tx) == ("SCATTER_UNSUPPORTED", "E")
    assert client.q(PAGE, "by_balance", None, None, None, 5).code == "R13"
    assert client.q("ROLLBACK").tx == "I"
    assert client.q(PAGE, "by_balance", None, None, None, 5).ok


def test_a_shard_that_is_late_fails_the_page(cluster, client):
    with Locked(cluster):
        with Stopwatch() as watch:
            answer = client.q(PAGE, "by_balance", None, None, None, 5)
        assert answer.code == "SHARD_TIMEOUT" and watch.seconds < 2 * SLACK
        wait_until(lambda: waiters(cluster) == 0, 10, "no lock waiter is left")
    assert client.q(PAGE, "by_balance", None, None, None, 5).ok


def test_an_answer_that_is_too_large_is_refused(cluster, client):
    for name in ("s0", "s1"):
        cluster.instances[name].sql("UPDATE account SET owner = repeat('x', 300000)")
    assert client.q(PAGE, "by_balance", None, None, None, 20).code == "R37"
    assert client.q(PAGE, "by_balance", None, None, None, 2).ok
