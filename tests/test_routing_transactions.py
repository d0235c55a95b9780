"""Transactions: pinned to one backend, refused as soon as they need a second shard."""

from support.placement import keys_on
from support.router import SLACK
from support.statements import BALANCE, CREDIT, DEBIT, SELECT, ok, refused
from support.wait import Stopwatch, wait_until

S0, S1 = keys_on("s0", 4), keys_on("s1", 4)


def test_a_same_shard_transfer_runs_on_one_backend_and_is_seen_only_after_commit(cluster):
    client = cluster.client()
    answers = [ok(client.q("BEGIN")),
               ok(client.q(DEBIT, 100, S0[0])),
               ok(client.q(CREDIT, 100, S0[1])),
               ok(client.q(BALANCE, S0[0]))]
    assert answers[3].rows == [[900]]
    assert cluster.balance(S0[0]) == 1000 and cluster.balance(S0[1]) == 1000
    answers.append(ok(client.q("COMMIT")))
    assert [answer.tx for answer in answers] == ["T", "T", "T", "T", "I"]
    assert len({answer.pid for answer in answers[1:]}) == 1 and answers[1].pid is not None
    assert {answer.shard for answer in answers[1:]} == {"s0"}
    assert cluster.balance(S0[0]) == 900 and cluster.balance(S0[1]) == 1100
    assert cluster.total() == 40_000


def test_rollback_undoes_the_whole_transaction(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 100, S1[0]))
    ok(client.q("DELETE FROM account WHERE account_id = ?", S1[1]))
    assert ok(client.q("ROLLBACK")).tx == "I"
    assert cluster.balance(S1[0]) == 1000 and cluster.counts() == (20, 20)


def test_a_backend_error_passes_its_sqlstate_and_fails_the_transaction(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(CREDIT, 5, S0[1]))
    broken = refused(client.q(DEBIT, 5000, S0[0]), "R31", "E")
    assert (broken.sqlstate, broken.shard) == ("23514", "s0")
    assert cluster.idle_in_transaction("s0") == 0
    refused(client.q(BALANCE, S0[0]), "R13", "E")
    refused(client.q("COMMIT"), "R13", "E")
    assert ok(client.q("ROLLBACK")).tx == "I"
    assert cluster.balance(S0[0]) == 1000 and cluster.balance(S0[1]) == 1000


def test_a_backend_error_outside_a_transaction_leaves_the_session_idle(cluster):
    client = cluster.client()
    broken = refused(client.q(DEBIT, 5000, S0[0]), "R31", "I")
    assert broken.sqlstate == "23514"
    duplicate = refused(client.q("INSERT INTO account (account_id, owner) VALUES (?, ?)", S0[0], "twice"), "R31", "I")
    assert duplicate.sqlstate == "23505"
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


def test_begin_inside_a_transaction_is_refused_and_the_transaction_goes_on(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    refused(client.q("BEGIN"), "R40", "T")
    pid = ok(client.q(DEBIT, 10, S0[0])).pid
    answer = refused(client.q("BEGIN"), "R40", "T")
    assert answer.sqlstate == "25001"
    assert ok(client.q(CREDIT, 10, S0[1])).pid == pid
    assert ok(client.q("COMMIT")).tx == "I"
    assert cluster.balance(S0[0]) == 990 and cluster.balance(S0[1]) == 1010


def test_a_cross_shard_transfer_is_refused_and_the_first_shard_is_released_at_once(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    debit = ok(client.q(DEBIT, 100, S0[0]))
    assert (debit.shard, debit.tx) == ("s0", "T")
    assert cluster.idle_in_transaction("s0") == 1
    refused(client.q(CREDIT, 100, S1[0]), "R12", "E")
    assert cluster.idle_in_transaction("s0") == 0
    # The row is free for others, before the client has said anything more.
    other = cluster.client()
    ok(other.q(CREDIT, 1, S0[0]))
    ok(other.q(DEBIT, 1, S0[0]))
    refused(client.q(BALANCE, S0[0]), "R13", "E")
    refused(client.q("COMMIT"), "R13", "E")
    assert ok(client.q("ROLLBACK")).tx == "I"
    assert cluster.balance(S0[0]) == 1000 and cluster.balance(S1[0]) == 1000
    assert cluster.total() == 40_000


def test_begin_in_a_failed_transaction_does_not_start_a_new_one(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 100, S0[0]))
    refused(client.q(CREDIT, 100, S1[0]), "R12", "E")
    answer = client.q("BEGIN")
    assert not answer.ok and answer.tx == "E", answer.raw
    assert ok(client.q("ROLLBACK")).tx == "I"
    assert cluster.total() == 40_000


def test_a_client_that_vanishes_in_a_transaction_leaves_a_clean_backend_in_the_pool(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    pid = ok(client.q(DEBIT, 100, S0[0])).pid
    assert cluster.activity("s0", pid) == "idle in transaction"
    watcher = cluster.s0.connect("postgres")
    with watcher, Stopwatch() as watch:
        client.close()
        wait_until(lambda: watcher.execute(
            "SELECT state FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() == ("idle",),
            2, "the backend is idle again")
    assert watch.seconds < 0.25 * SLACK, "tens of milliseconds, with room for a busy machine"
    # It stays in the pool: the next statement may use it; nothing of it was destroyed.
    assert ok(cluster.client().q(BALANCE, S0[0])).rows == [[1000]]
    assert cluster.activity("s0", pid) == "idle"
    with cluster.s0.connect() as direct:
        direct.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE NOWAIT", (S0[0],))
    assert cluster.balance(S0[0]) == 1000


def test_a_client_that_vanishes_while_its_statement_waits_holds_nothing_up(cluster):
    holder = cluster.connect("s0", autocommit=False)
    holder.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE", (S0[0],))
    client = cluster.client()
    ok(client.q("BEGIN"))
    pid = ok(client.q(CREDIT, 7, S0[1])).pid
    client.send_raw(client.request(DEBIT, 100, S0[0]).encode() + b"\n")
    wait_until(lambda: cluster.s0.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid)
               == "Lock", 10, "the statement waits for the row")
    client.close()
    holder.rollback()
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the transaction is gone")
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "nothing is borrowed")
    assert cluster.balance(S0[0]) == 1000 and cluster.balance(S0[1]) == 1000


def test_the_pool_never_exceeds_its_size_and_waiters_are_served_in_turn(cluster):
    holders = [cluster.client() for _ in range(4)]
    for client, key in zip(holders, S0):
        ok(client.q("BEGIN"))
        ok(client.q(DEBIT, 1, key))
    waiter = cluster.client()
    waiter.send_raw(waiter.request(SELECT, S0[0]).encode() + b"\n")
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 1, 10, "one waits")
    assert cluster.router.status().shards["s0"]["borrowed"] == 4
    assert cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'") == 4
    # The other shard is not held up.
    ok(cluster.client().q(BALANCE, S1[0]))
    ok(holders[2].q("ROLLBACK"))
    assert waiter.read_line().startswith("OK tag=SELECT shard=s0 ")
    for client in holders:
        client.close()
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "nothing is borrowed")
