"""What clients of the PostgreSQL listener notice of a move: nothing but time, wherever nothing of theirs was done.

Each statement meets a state of the move that lasts as long as the test likes (support/hand_move.py). What was sent
again shows in the balances: an increment that ran twice would be there twice.
"""

import re
import signal
import time

import pytest

from support import pgwire as w
from support.hand_move import Asked, HandMove
from support.placement import keys_in_bucket
from support.wait import Stopwatch, wait_until

BUCKET = 0
KEY, SECOND = keys_in_bucket(BUCKET, 2)
# A key that stays on the same shard, by the name of that.
NEAR = {"s0": keys_in_bucket(2, 1)[0], "s1": keys_in_bucket(1, 1)[0]}
ADD = "UPDATE account SET balance = balance + 1 WHERE account_id = $1"
READ = "SELECT balance FROM account WHERE account_id = $1"
VERSION = "SELECT current_setting('interlock.route_version') FROM account WHERE account_id = "


def add(key):
    return ADD.replace("$1", str(key))


def read(key):
    return READ.replace("$1", str(key))


@pytest.fixture
def cluster(module_moving):
    if module_moving.router.process.poll() is not None:
        module_moving.router.start()
    for name in ("s0", "s1"):
        keys = [NEAR[name]] + ([KEY, SECOND] if module_moving.catalog.value(
            "SELECT shard FROM interlock.routes WHERE keyspace = 'accounts' AND bucket = %s", BUCKET) == name else [])
        with module_moving.instances[name].connect() as shard:
            shard.execute("DELETE FROM account")
            shard.cursor().executemany("INSERT INTO account VALUES (%s, 'o', 100, 1)", [(key,) for key in keys])
    yield module_moving
    module_moving.end_test()


@pytest.fixture
def move(cluster):
    move = HandMove(cluster, BUCKET)
    yield move
    move.end()


@pytest.fixture
def client(cluster):
    return cluster.pg_client()


def counters(router):
    """The router's counts of what met moves."""
    (text,) = re.findall(r" moves=(\S+)", router.status().raw)
    return {name: int(value) for name, value in (pair.split(":") for pair in text.split(","))}


def wait_for_announcement(move, router=None):
    """The router knows of the announcement."""
    router = router or move.cluster.router
    wait_until(lambda: counters(router)["announced"] == move.version, 10, "the router knows of the announcement")


def wait_for_waiting(cluster, count=1, router=None):
    wait_until(lambda: counters(router or cluster.router)["waiting"] == count, 10, f"{count} wait for routes")


def balance(instance, key):
    return instance.value("SELECT balance FROM account WHERE account_id = %s", key)


# What clients send to add 1 to KEY, and the kinds of messages that answer it when nothing is in the way.

def simple(client):
    return client.query(add(KEY))


def unnamed(client):
    return client.run(ADD, KEY)


def prepared(client):
    """Prepared and described in a round of its own, before; see `prepare`."""
    return client.ask(w.bind([KEY], "add"), w.execute())


def described_and_flushed(client):
    """As asyncpg does: it waits for the description in the middle of the round."""
    client.send(w.parse(ADD, ""), w.describe_statement(""), w.flush())
    assert client.until("nTE").kinds == "1tn"
    return client.ask(w.bind([KEY]), w.execute())


def split(client):
    """The round comes in pieces."""
    client.send_split(w.extended(ADD, [KEY]) + w.sync(), 10, 40, 70, 90, 110)
    return client.until_ready()


def piped(client):
    """A transaction in one round, as psycopg's pipelines send it."""
    return client.ask(w.extended("BEGIN"), w.extended(ADD, [KEY]), w.extended("COMMIT"))


def block(client):
    """BEGIN, a setting and a savepoint alone; then the first statement for a shard."""
    for statement in ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SET LOCAL work_mem = '1MB'", "SAVEPOINT s"):
        client.ok(statement)
    answer = client.query(add(KEY))
    client.ok("COMMIT")
    return answer


def block_in_one_query(client):
    return client.query(f"BEGIN; {add(KEY)}; COMMIT")


def cursor(client):
    """The first statement of the block opens a cursor, then writes."""
    client.ok("BEGIN")
    answer = client.query(f"DECLARE c CURSOR FOR {read(KEY)}")
    if not answer.errors:
        assert client.value("FETCH c") in ("100", "101")
        answer = client.query(add(KEY))
    client.ok("COMMIT")
    return answer


WRITES = {"simple": (simple, "CZ"), "unnamed": (unnamed, "12nCZ"), "prepared": (prepared, "2CZ"),
          "flushed": (described_and_flushed, "2CZ"), "split": (split, "12nCZ"), "piped": (piped, "12nC12nC12nCZ"),
          "block": (block, "CZ"), "one query": (block_in_one_query, "CCCZ"), "cursor": (cursor, "CZ")}


def prepare(client):
    assert client.ask(w.parse(ADD, "add"), w.describe_statement("add")).kinds == "1tnZ"


def held(move):
    """Announced: the router holds the statement back."""
    move.announce()
    wait_for_announcement(move)


def fenced(move):
    """The shard refuses writes with IL103; the router knows of nothing."""
    move.fence()


def decided(move):
    """The shard has given the bucket away and refuses with IL102; the router knows of nothing."""
    move.fence().decide()


OBSTACLES = {"held": held, "fenced": fenced, "decided": decided}
# A cursor only reads: it meets no fence, and its transaction then does.
WAYS = [(way, what) for way in WRITES for what in OBSTACLES if (way, what) != ("cursor", "fenced")]


@pytest.mark.parametrize("way, obstacle", WAYS)
def test_a_write_that_meets_a_move_waits_and_lands_once_at_the_new_owner(cluster, move, client, way, obstacle):
    write, kinds = WRITES[way]
    prepare(client)
    OBSTACLES[obstacle](move)
    before = counters(cluster.router)
    asked = Asked(write, client)
    wait_for_waiting(cluster)
    assert asked.waits()
    if not move.begun:
        move.fence()
    if not move.decided:
        move.decide()
    move.publish()
    answer = asked.answer().ok()
    assert answer.kinds == kinds and answer.tags[-1] in ("UPDATE 1", "COMMIT")
    assert balance(move.target, KEY) == 101
    after = counters(cluster.router)
    assert (after["held"] > before["held"]) == (obstacle == "held")
    assert (after["resent"] > before["resent"]) == (obstacle != "held")
    assert after["failed"] == before["failed"] and after["waiting"] == 0
    # The session is as good as new.
    assert client.query(add(KEY)).ok().tag == "UPDATE 1"
    assert client.ask(w.bind([KEY], "add"), w.execute()).ok().kinds == "2CZ"
    assert balance(move.target, KEY) == 103


@pytest.mark.parametrize("way", WRITES)
def test_a_move_that_is_given_up_lets_the_write_go_on_where_it_was(cluster, move, client, way):
    write, kinds = WRITES[way]
    prepare(client)
    move.announce()
    wait_for_announcement(move)
    asked = Asked(write, client)
    wait_for_waiting(cluster)
    move.fence().unfence().withdraw()
    assert asked.answer().ok().kinds == kinds
    assert balance(move.source, KEY) == 101


@pytest.mark.parametrize("way", ["simple", "unnamed", "block"])
def test_a_fence_that_is_opened_without_a_word_lets_the_write_through(cluster, move, client, way):
    write, kinds = WRITES[way]
    move.fence()
    asked = Asked(write, client)
    wait_for_waiting(cluster)
    move.unfence()
    with Stopwatch() as watch:
        assert asked.answer().ok().kinds == kinds
    assert watch.seconds < 3 and balance(move.source, KEY) == 101


def test_a_fence_whose_mover_is_gone_is_opened_by_whoever_meets_it(cluster, move, client):
    move.fence("300 ms")
    with Stopwatch() as watch:
        client.ok(add(KEY))
    assert watch.seconds < 4 and balance(move.source, KEY) == 101
    assert move.source.value("SELECT state FROM interlock.bucket_state WHERE keyspace = 'accounts' AND bucket = %s", BUCKET) == "owned"


@pytest.mark.parametrize("ask", [lambda c: c.query(read(KEY)), lambda c: c.run(READ, KEY),
                                 lambda c: c.query(f"COPY ({read(KEY)}) TO STDOUT"),
                                 lambda c: c.query(f"{read(KEY)}; {read(SECOND)}")], ids=["simple", "extended", "copy", "two"])
def test_reads_wait_for_the_new_route_and_are_answered_once(cluster, move, client, ask):
    usual = ask(client).ok().plain()
    move.fence().decide()
    move.source.sql("UPDATE pg_class SET reltuples = reltuples WHERE false")  # the source lives on
    asked = Asked(ask, client)
    wait_for_waiting(cluster)
    move.publish()
    assert asked.answer().plain() == usual


def test_a_read_only_transaction_begins_anew_with_its_first_statement(cluster, move, client):
    client.ok("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE")
    move.fence().decide()
    asked = Asked(client.query, read(KEY))
    wait_for_waiting(cluster)
    move.publish()
    assert asked.answer().ok().value == "100"
    assert client.ok("SHOW transaction_isolation").value == "serializable"
    client.ok("COMMIT")


# --- other buckets -------------------------------------------------------------------------------


def test_other_buckets_run_under_the_announced_version_and_are_not_cut_by_the_decision(cluster, move, client):
    near = NEAR[move.source_name]
    old = move.cluster.catalog.value("SELECT route_version FROM interlock.cluster")
    assert client.value(VERSION + str(near)) == str(old)
    move.announce()
    wait_for_announcement(move)
    assert client.value(VERSION + str(near)) == str(move.version)
    # What does not say which buckets it uses keeps to the version in force.
    assert client.value("SELECT current_setting('interlock.route_version')") == str(old)
    client.ok("BEGIN")
    client.ok(read(near))  # a writer would be waited for
    move.fence().decide()
    with Stopwatch() as watch:
        client.ok(add(near))
        client.ok(add(near))
        client.ok("COMMIT")
        client.ok(add(near))
    assert watch.seconds < 2
    move.publish()
    assert balance(move.source, near) == 103


def test_a_transaction_under_the_announced_version_may_not_touch_the_bucket(cluster, move, client):
    """The shard would take it for one that knows of the move, and show rows that are not its own any more."""
    near = NEAR[move.source_name]
    move.announce()
    wait_for_announcement(move)
    for statement in (read(KEY), add(KEY), f"{read(near)}; {read(KEY)}"):
        client.ok("BEGIN")
        client.ok(add(near))
        error = client.query(statement).refused("40001", "E").error
        assert "IL103" in str(error.fields)
        client.ok("ROLLBACK")
        client.ok("BEGIN")
        client.ok(add(near))
        assert "IL103" in str(client.run(statement.rpartition("; ")[2]).refused("40001", "E").error.fields)
        client.ok("ROLLBACK")
    assert balance(move.source, near) == 100 and balance(move.source, KEY) == 100


def test_a_transaction_begun_before_the_announcement_goes_on_until_the_decision(cluster, move, client):
    client.ok("BEGIN")
    client.ok(add(KEY))
    move.announce()
    wait_for_announcement(move)
    client.ok(add(KEY))
    move.fence()
    client.ok(add(KEY))
    assert move.waiting_writers("100 ms") != []
    client.ok("COMMIT")
    move.decide().publish()
    assert balance(move.target, KEY) == 103


def test_a_transaction_that_reads_before_the_decision_and_after_it_is_to_begin_again(cluster, move, client):
    client.ok("BEGIN")
    client.ok(read(KEY))
    move.fence().decide()
    before = counters(cluster.router)
    with Stopwatch() as watch:
        error = client.query(read(KEY)).refused("40001", "E").error
    assert "IL102" in str(error.fields) and watch.seconds < 2
    assert counters(cluster.router)["failed"] == before["failed"] + 1
    client.ok("ROLLBACK")
    move.publish()
    assert client.value(read(KEY)) == "100"


def test_a_transaction_that_first_writes_the_bucket_behind_its_fence_is_to_begin_again(cluster, move, client):
    client.ok("BEGIN")
    client.ok(add(NEAR[move.source_name]))
    client.ok("SAVEPOINT s")
    move.fence()
    assert "IL103" in str(client.query(add(KEY)).refused("40001", "E").error.fields)
    client.ok("ROLLBACK TO s")
    client.ok("COMMIT")
    assert balance(move.source, NEAR[move.source_name]) == 101 and balance(move.source, KEY) == 100


@pytest.mark.parametrize("lock", ["FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "FOR KEY SHARE"])
def test_a_transaction_that_locks_rows_behind_the_fence_and_commits_after_the_switch_is_to_begin_again(cluster, move, client, lock):
    """Nobody waited for it, and it asks the shard for nothing more: another client has changed the row that it holds locked."""
    near = NEAR[move.source_name]
    client.ok("BEGIN")
    client.ok(read(near))
    move.fence()
    assert move.waiting_writers() == []
    assert client.value(f"{read(KEY)} {lock}") == "100"
    client.ok(add(near))
    move.waiting_writers = lambda: []  # as before: asked again, the shard would name this one
    move.decide().publish()
    cluster.pg_client().ok(add(KEY))
    refused = client.query("COMMIT").refused("40001", "I")
    assert refused.error.fields["M"].endswith("(IL102)") and refused.error.fields["H"] == "Run the transaction again."
    assert balance(move.source, near) == 100, "nothing of the transaction is kept"
    assert balance(move.target, KEY) == 101
    # And again, as it was told.
    client.ok("BEGIN")
    assert client.value(f"{read(KEY)} {lock}") == "101"
    client.ok("COMMIT")


def test_rows_locked_behind_the_fence_of_a_move_that_is_given_up_stay_locked(cluster, move, client):
    near = NEAR[move.source_name]
    client.ok("BEGIN")
    client.ok(read(near))
    move.fence()
    assert client.value(f"{read(KEY)} FOR UPDATE") == "100"
    client.ok(add(near))
    move.unfence()
    client.ok("COMMIT")
    assert balance(move.source, near) == 101


def test_a_block_takes_the_newest_routes_with_its_first_statement_for_a_shard(cluster, move, client):
    client.ok("BEGIN")
    client.ok("SELECT 1")
    move.switch()
    wait_until(lambda: cluster.router.status().rv == move.version, 10, "the new routes")
    before = counters(cluster.router)
    client.ok(add(KEY))
    client.ok("COMMIT")
    assert counters(cluster.router) == before and balance(move.target, KEY) == 101


# --- several statements together -----------------------------------------------------------------


@pytest.mark.parametrize("obstacle", ["fenced", "decided"])
def test_statements_of_one_query_are_sent_again_together(cluster, move, client, obstacle):
    """The first of them had run already, and was rolled back with the second."""
    OBSTACLES[obstacle](move)
    asked = Asked(client.query, f"{read(KEY)}; {add(SECOND)}; {add(KEY)}; {add(SECOND)}")
    wait_for_waiting(cluster)
    if not move.decided:
        move.decide()
    move.publish()
    answer = asked.answer().ok()
    assert answer.kinds == "TDCCCCZ" and answer.value == "100"
    assert (balance(move.target, KEY), balance(move.target, SECOND)) == (101, 102)


def test_a_pipeline_is_sent_again_as_a_whole(cluster, move, client):
    """Its first statement, for another bucket, had run when the second one was refused."""
    near = NEAR[move.source_name]
    move.fence()
    asked = Asked(client.ask, w.parse(ADD, "a"), w.parse(READ, "r"), w.bind([near], "a"), w.execute(), w.bind([near], "r"),
                  w.describe_portal(), w.execute(), w.close_statement("r"), w.bind([KEY], "a"), w.execute(), w.parse("SELECT 1", "r"))
    wait_for_waiting(cluster)
    assert balance(move.source, near) == 100  # rolled back while it waits
    move.unfence()
    answer = asked.answer().ok()
    assert answer.kinds == "112C2TDC32C1Z" and answer.value == "101"
    assert (balance(move.source, near), balance(move.source, KEY)) == (101, 101)
    # What was prepared and closed in it is there and gone, once.
    assert client.ask(w.bind([KEY], "a"), w.execute()).ok().kinds == "2CZ"
    assert client.ask(w.bind((), "r"), w.execute()).ok().value == "1"
    assert client.ask(w.parse(ADD, "a")).refused("42P05")


def test_keys_that_a_move_tears_apart_are_refused_as_ever(cluster, move, client):
    near = NEAR[move.source_name]
    move.fence()
    asked = Asked(client.ask, w.extended(ADD, [near]), w.extended(ADD, [KEY]))
    wait_for_waiting(cluster)
    move.decide().publish()
    assert asked.answer().codes == ["IL011"]
    assert (balance(move.source, near), balance(move.target, KEY)) == (100, 100)


def test_what_the_client_has_been_answered_is_never_sent_again(cluster, move, client):
    near = NEAR[move.source_name]
    move.fence()
    client.send(w.extended(ADD, [near]), w.flush())
    assert client.until("C").kinds == "12nC"
    with Stopwatch() as watch:
        answer = client.ask(w.extended(ADD, [KEY]))
    assert "IL103" in str(answer.refused("40001").error.fields) and watch.seconds < 2
    assert balance(move.source, near) == 100  # the round was one transaction


def test_what_the_client_has_seen_rows_of_is_never_sent_again(cluster, move, client):
    """The rows are more than the router, or PostgreSQL, keeps back."""
    near = NEAR[move.source_name]
    move.fence()
    answer = client.query(f"SELECT repeat('x', 1000) FROM account, generate_series(1, 500) WHERE account_id = {near}; "
                          f"{add(near)}; {add(KEY)}")
    assert answer.refused("40001").kinds == "T" + "D" * 500 + "CCEZ"
    assert balance(move.source, near) == 100


MANY = "SELECT repeat('x', {}) FROM account, generate_series(1, {}) WHERE account_id = $1"


def test_long_answers_before_a_statement_that_must_not_run_are_given_and_it_is_told(cluster, move, client):
    """They are more than the router keeps back, so the round cannot be sent again; its client is not to wait for nothing."""
    near = NEAR[move.source_name]
    move.announce()
    wait_for_announcement(move)
    for end in (w.sync(), w.flush() + w.sync()):
        with Stopwatch() as watch:
            client.send(w.extended(ADD, [near]), w.extended(MANY.format(1000, 500), [near]), w.extended(ADD, [KEY]), end)
            answer = client.until_ready()
        assert str(answer.refused("40001").error.fields).count("IL103") == 1 and watch.seconds < 2
        assert answer.kinds == "12nC12T" + "D" * 500 + "C1EZ"
        assert (balance(move.source, near), balance(move.source, KEY)) == (100, 100)
    client.ok(add(near))


def test_answers_that_come_in_pieces_before_a_refused_statement_are_given_once(cluster, move, client):
    near = NEAR[move.source_name]
    for end in (w.flush() + w.sync(), w.sync()):
        move.announce()
        wait_for_announcement(move)
        client.send(w.extended(ADD, [near]), w.extended(MANY.format(100, 300), [near]), w.extended(ADD, [KEY]), end)
        wait_for_waiting(cluster)
        move.withdraw()
        assert client.until_ready().ok().kinds == "12nC12T" + "D" * 300 + "C12nCZ"
    assert (balance(move.source, near), balance(move.source, KEY)) == (102, 102)


@pytest.mark.parametrize("way", ["round", "second round", "query"])
def test_answers_longer_than_a_servers_buffer_are_kept_back_until_the_last_statement(cluster, move, client, way):
    """A server sends what it has each 8 kB, long before it refuses the statement behind."""
    near = NEAR[move.source_name]
    move.fence()
    many = MANY.format(1000, 50)
    if way == "query":
        client.send(w.query(f"{add(near)}; {many.replace('$1', str(near))}; {add(KEY)}"))
    else:
        first = w.extended(READ, [near]) + w.sync() if way == "second round" else b""
        client.send(first, w.extended(ADD, [near]), w.extended(many, [near]), w.extended(ADD, [KEY]), w.sync())
    if way == "second round":
        assert client.until_ready().ok().kinds == "12TDCZ"
    wait_for_waiting(cluster)
    move.unfence()
    rows = "T" + "D" * 50 + "C"
    assert client.until_ready().ok().kinds == ("C" + rows + "CZ" if way == "query" else "12nC12" + rows + "12nCZ")
    assert (balance(move.source, near), balance(move.source, KEY)) == (101, 101)


def test_a_statement_behind_which_there_is_no_other_is_answered_as_its_rows_come(cluster, client):
    slow = f"SELECT repeat('x', 5000), pg_sleep(0.1) FROM account, generate_series(1, 10) WHERE account_id = {NEAR['s0']}"
    for message in (w.query(slow), w.extended(slow) + w.sync(), w.extended(add(NEAR["s0"])) + w.extended(slow) + w.sync()):
        with Stopwatch() as whole:
            with Stopwatch() as first:
                client.send(message)
                client.until("D")
            client.until_ready().ok()
        assert first.seconds < whole.seconds / 2, (first.seconds, whole.seconds)


def test_what_was_committed_in_a_round_is_never_sent_again(cluster, move, client):
    near = NEAR[move.source_name]
    move.fence()
    before = counters(cluster.router)["resent"]
    answer = client.ask(w.extended("BEGIN"), w.extended(ADD, [near]), w.extended("COMMIT"), w.extended(ADD, [KEY]))
    assert "IL103" in str(answer.refused("40001").error.fields)
    assert counters(cluster.router)["resent"] == before
    assert (balance(move.source, near), balance(move.source, KEY)) == (101, 100)


def test_a_commit_without_a_block_ends_what_can_be_sent_again(cluster, move, client):
    """In a pipeline it commits what came before it, as PostgreSQL does."""
    near = NEAR[move.source_name]
    move.fence()
    answer = client.ask(w.extended(ADD, [near]), w.extended("COMMIT"), w.extended(ADD, [KEY]))
    assert answer.codes == ["40001"]
    assert (balance(move.source, near), balance(move.source, KEY)) == (101, 100)


def test_rounds_of_a_pipeline_are_judged_one_by_one(cluster, move, client):
    near = NEAR[move.source_name]
    move.fence()
    client.send(w.extended(ADD, [near]), w.sync(), w.extended(ADD, [KEY]), w.sync(), w.extended(ADD, [near]), w.sync())
    assert client.until_ready().ok().kinds == "12nCZ"
    wait_for_waiting(cluster)
    move.unfence()
    assert client.until_ready().ok().kinds == "12nCZ" and client.until_ready().ok().kinds == "12nCZ"
    assert (balance(move.source, near), balance(move.source, KEY)) == (102, 101)


def test_a_flush_behind_the_refused_statement_brings_its_answer(cluster, move, client):
    move.fence()
    client.send(w.extended(ADD, [KEY]), w.flush())
    wait_for_waiting(cluster)
    move.unfence()
    assert client.until("C").kinds == "12nC"
    assert client.ask(w.extended(READ, [KEY])).ok().value == "101"
    assert balance(move.source, KEY) == 101


def test_a_block_that_a_round_begins_is_sent_again_and_goes_on(cluster, move, client):
    move.fence()
    asked = Asked(client.ask, w.extended("BEGIN"), w.extended(ADD, [KEY]))
    wait_for_waiting(cluster)
    move.decide().publish()
    assert asked.answer().ok().status == "T"
    client.ok(add(KEY))
    client.ok("COMMIT")
    assert balance(move.target, KEY) == 102


# --- the end of waiting --------------------------------------------------------------------------


def test_a_message_too_long_to_be_kept_is_not_sent_again(cluster, move, make_router):
    router = make_router({"pg": {"max_packet": "64kB"}})
    client = cluster.pg_client(router)
    move.fence()
    set_owner = "UPDATE account SET owner = $2, balance = balance + 1 WHERE account_id = $1"
    with Stopwatch() as watch:
        answer = client.run(set_owner, KEY, "x" * 200_000)
    assert "IL103" in str(answer.refused("40001").error.fields) and watch.seconds < 2
    move.unfence()
    assert client.run(set_owner, KEY, "x" * 200_000).ok().tag == "UPDATE 1"
    assert balance(move.source, KEY) == 101


def test_a_long_message_can_be_held_back(cluster, move, make_router):
    router = make_router({"pg": {"max_packet": "64kB"}})
    client = cluster.pg_client(router)
    move.announce()
    wait_for_announcement(move, router)
    asked = Asked(client.run, "UPDATE account SET owner = $2 WHERE account_id = $1", KEY, "x" * 200_000)
    wait_for_waiting(cluster, router=router)
    move.switch()
    assert asked.answer().ok().tag == "UPDATE 1"
    assert move.target.value("SELECT length(owner) FROM account WHERE account_id = %s", KEY) == 200_000


@pytest.mark.parametrize("obstacle", ["held", "fenced", "decided"])
@pytest.mark.parametrize("ahead", [False, True], ids=["alone", "with another one behind it"])
def test_a_client_that_leaves_while_it_waits_is_not_served(cluster, move, client, obstacle, ahead):
    OBSTACLES[obstacle](move)
    clients = cluster.router.status().clients
    client.send(w.query(add(KEY)))
    wait_for_waiting(cluster)
    if ahead:
        client.send(w.query(add(SECOND)))
        wait_for_waiting(cluster)
    client.close()
    wait_until(lambda: cluster.router.status().clients == clients - 1, 3, "its session ends, long before it would have waited enough")
    if not move.decided:
        move.fence().decide()
    move.publish()
    wait_until(lambda: cluster.router.status().rv == move.version, 10)
    other = cluster.pg_client()
    assert other.value(read(KEY)) == "100" and other.value(read(SECOND)) == "100"


@pytest.mark.parametrize("obstacle", ["held", "fenced", "decided"])
def test_a_cancel_request_ends_the_waiting(cluster, move, client, obstacle):
    OBSTACLES[obstacle](move)
    for ask in (lambda: client.query(add(KEY)), lambda: client.run(ADD, KEY)):
        asked = Asked(ask)
        wait_for_waiting(cluster)
        client.cancel()
        assert asked.answer().codes == ["57014"]
    client.ok("BEGIN")
    asked = Asked(client.query, add(KEY))
    wait_for_waiting(cluster)
    client.cancel()
    asked.answer().refused("57014", "E")
    client.ok("ROLLBACK")
    assert client.value("SELECT 7") == "7"
    assert counters(cluster.router)["waiting"] == 0


def test_the_sessions_statement_timeout_ends_the_waiting(cluster, move, client):
    client.ok("SET statement_timeout = '300ms'")
    move.fence()
    with Stopwatch() as watch:
        client.query(add(KEY)).refused("57014")
    assert 0.25 < watch.seconds < 3
    move.unfence()
    client.ok(add(KEY))


def test_waiting_is_bounded_and_the_fence_is_told(cluster, move, make_router):
    router = make_router({"routes": {"wait": "300ms"}})
    client = cluster.pg_client(router)
    move.fence()
    for ask in (lambda: client.query(add(KEY)), lambda: client.run(ADD, KEY)):
        with Stopwatch() as watch:
            error = ask().refused("40001", "I").error
        assert "IL103" in str(error.fields) and 0.25 < watch.seconds < 3
    client.ok("BEGIN")
    client.query(add(KEY)).refused("40001", "E")
    client.ok("ROLLBACK")
    assert client.ask(w.extended(READ, [KEY])).ok().value == "100"


def test_what_is_held_back_too_long_is_sent_as_ever(cluster, move, make_router):
    """In a session of the version in force: it is the shard that decides."""
    router = make_router({"routes": {"wait": "300ms"}})
    client = cluster.pg_client(router)
    move.announce()
    wait_for_announcement(move, router)
    with Stopwatch() as watch:
        client.ok(add(KEY))
    assert 0.25 < watch.seconds < 3
    assert client.run(ADD, KEY).ok().tag == "UPDATE 1"
    assert client.value(VERSION + str(KEY)) == str(move.cluster.catalog.value("SELECT route_version FROM interlock.cluster"))
    client.ok("BEGIN")
    client.ok(add(KEY))
    client.ok(add(KEY))
    client.ok("COMMIT")
    assert balance(move.source, KEY) == 104


@pytest.mark.parametrize("way", ["simple", "unnamed", "block", "piped"])
def test_an_announcement_that_nobody_takes_back_is_waited_out_once(cluster, move, make_router, way):
    """Its mover is gone, and its fence is opened by the first to meet it: nobody gets an error, and the bucket is not slow
    until somebody looks after the move."""
    write, kinds = WRITES[way]
    router = make_router({"routes": {"wait": "1s"}})
    client = cluster.pg_client(router)
    move.announce()
    wait_for_announcement(move, router)
    move.fence("300 ms")
    assert write(client).ok().kinds == kinds
    before = counters(router)
    with Stopwatch() as watch:
        for _ in range(3):
            assert write(client).ok().kinds == kinds
    assert watch.seconds < 1 and balance(move.source, KEY) == 104
    assert counters(router) == before | {"failed": 0} and before["announced"] == move.version


def test_what_is_sent_together_is_not_held_for_an_announcement_that_is_too_old(cluster, move, make_router):
    """Its first statements, of other buckets, would run under the announced version, which the last must not: so all of it
    runs under the one in force."""
    near = NEAR[move.source_name]
    router = make_router({"routes": {"wait": "1s"}})
    client = cluster.pg_client(router)
    move.announce()
    wait_for_announcement(move, router)

    def ask(*frames):
        return client.ask(w.extended(ADD, [near]), w.extended(VERSION + str(near)), w.extended(ADD, [KEY]), *frames)

    in_force = str(cluster.catalog.value("SELECT route_version FROM interlock.cluster"))
    assert ask().ok().value == in_force
    with Stopwatch() as watch:
        assert ask().ok().value == in_force
        client.ask(w.extended("BEGIN"), w.extended(ADD, [near]), w.extended(ADD, [KEY]), w.extended("COMMIT")).ok()
        assert client.value(VERSION + str(near)) == str(move.version)
    assert watch.seconds < 1 and (balance(move.source, near), balance(move.source, KEY)) == (103, 103)
    # The shard decides, as ever.
    move.fence()
    assert "IL103" in str(ask().refused("40001").error.fields)
    assert (balance(move.source, near), balance(move.source, KEY)) == (103, 103)
    move.decide()
    asked = Asked(ask)
    wait_for_waiting(cluster, router=router)
    move.publish()
    assert asked.answer().codes == ["IL011"]  # the move tears them apart


def test_each_announcement_is_waited_for_anew(cluster, move, make_router):
    router = make_router({"routes": {"wait": "2s"}})
    client = cluster.pg_client(router)
    for count in (1, 2):
        move.announce()
        wait_for_announcement(move, router)
        with Stopwatch() as watch:
            client.ok(add(KEY))
        assert watch.seconds > 0.5 and counters(router)["held"] == count
        client.ok(add(KEY))
        assert counters(router)["held"] == count
        move.withdraw()
    assert balance(move.source, KEY) == 104


def test_who_opens_a_fence_is_sent_again_however_long_he_has_waited(cluster, move, make_router):
    client = cluster.pg_client(make_router({"routes": {"wait": "0"}}))
    expired = "SELECT until <= clock_timestamp() FROM interlock.handoff WHERE move_id = %s"
    for write in (simple, unnamed, piped):
        move.fence("1 ms")
        wait_until(lambda: move.source.value(expired, move.id), 5, "the fence's time has passed")
        write(client).ok()
    assert balance(move.source, KEY) == 103


def test_a_router_that_does_not_wait_tells_at_once(cluster, move, make_router):
    router = make_router({"routes": {"wait": "0"}})
    client = cluster.pg_client(router)
    move.fence()
    with Stopwatch() as watch:
        client.query(add(KEY)).refused("40001")
        client.run(ADD, KEY).refused("40001")
    assert watch.seconds < 1
    move.unfence()
    client.ok(add(KEY))


def test_a_router_that_stops_does_not_keep_who_waits(cluster, move, make_router):
    router = make_router({})
    client, in_block = cluster.pg_client(router), cluster.pg_client(router)
    in_block.ok("BEGIN")
    move.fence()
    asked, other = Asked(client.query, add(KEY)), Asked(in_block.query, add(KEY))
    wait_for_waiting(cluster, 2, router)
    router.expected_end = True
    router.send(signal.SIGTERM)
    assert asked.answer().codes == ["IL030"]
    assert other.waits()  # its transaction gets the time that transactions get
    move.unfence()
    other.answer().ok()
    in_block.ok("COMMIT")
    assert router.process.wait(20) == 0
    assert balance(move.source, KEY) == 101


def test_a_bucket_that_is_simply_not_there_is_told_at_once(cluster, move, client):
    """IL101 that no move explains: the catalog is looked at once, and has no other routes."""
    state = "UPDATE interlock.bucket_state SET state = %s, peer = %s WHERE keyspace = 'accounts' AND bucket = %s"
    bucket = 2 if move.source_name == "s0" else 1
    near = NEAR[move.source_name]
    move.source.sql("DELETE FROM interlock.bucket_state WHERE keyspace = 'accounts' AND bucket = %s", bucket)
    try:
        with Stopwatch() as watch:
            client.query(add(near)).refused("IL101", "I")
            client.run(ADD, near).refused("IL101", "I")
            answer = client.query(f"SELECT 5; {add(near)}")
        assert answer.codes == ["IL101"] and answer.value == "5" and watch.seconds < 2
    finally:
        move.source.sql("INSERT INTO interlock.bucket_state (keyspace, bucket, state) VALUES ('accounts', %s, 'owned')", bucket)
    client.ok(add(near))


def test_many_wait_together_and_each_write_lands_once(cluster, move):
    clients = [cluster.pg_client() for _ in range(12)]
    move.announce()
    wait_for_announcement(move)
    asked = [Asked(client.run if number % 2 else client.query, *((ADD, KEY) if number % 2 else (add(KEY),)))
             for number, client in enumerate(clients)]
    wait_for_waiting(cluster, 12)
    time.sleep(0.05)
    move.switch()
    for one in asked:
        one.answer().ok()
    assert balance(move.target, KEY) == 112


@pytest.fixture
def make_router(cluster):
    """A further router with settings of its own, for one test."""
    made = []

    def make(settings):
        router = cluster.new_router(f"own{len(made)}", settings).start()
        made.append(router)
        return router

    yield make
    cluster.end_test()
    for router in made:
        router.stop()
        cluster.routers.remove(router)
