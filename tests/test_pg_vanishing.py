"""Clients and backends that go away between any two messages: the router lives, nothing stays locked, and
IL030 ("was not done") and 08007 ("unknown") are kept apart."""

import pytest

from support import pgwire as w
from support.control import KEY, reset
from support.frame_proxy import FrameProxy
from support.pgclient import Closed, PgClient
from support.placement import keys_on
from support.wait import wait_until

BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
DEBIT = f"UPDATE account SET balance = balance - 10 WHERE account_id = {KEY}"
FAR = keys_on("s1", 1)[0]
BY_KEY = "SELECT owner, repeat('x', 3000) FROM account, generate_series(1, 20) WHERE account_id = $1"

CLUSTER_OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 2, "idle_check": "1d"}}}


def settled(cluster):
    """Nothing is borrowed, no transaction is open, no lock is held, and both shards serve."""
    def quiet():
        shards = cluster.router.status().shards
        return all(shard["borrowed"] == shard["waiting"] == 0 for shard in shards.values())

    wait_until(quiet, 10, "nothing is borrowed")
    assert cluster.router.process.poll() is None, cluster.router.log_text()[-3000:]
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "no transaction is left open")
    with cluster.s0.connect() as direct:
        direct.execute("SELECT 1 FROM account WHERE account_id = %s FOR UPDATE NOWAIT", (KEY,))


# -- clients -------------------------------------------------------------------------------------

CONVERSATIONS = {
    "simple": [w.query(BALANCE), w.query(DEBIT), w.query(f"{DEBIT}; {BALANCE}")],
    "transaction": [w.query("BEGIN"), w.query(DEBIT), w.query("SAVEPOINT a"), w.query("SELECT 1/0"),
                    w.query("ROLLBACK TO a"), w.query(DEBIT), w.query("COMMIT")],
    "extended": [w.parse(BY_KEY, "s"), w.describe_statement("s"), w.flush(), w.bind([KEY], "s", "p"),
                 w.execute("p", 3), w.flush(), w.execute("p", 3), w.close_portal("p"), w.sync(),
                 w.parse(DEBIT), w.bind(), w.execute(), w.sync()],
    "extended transaction": [w.parse("BEGIN"), w.bind(), w.execute(), w.sync(), w.parse(DEBIT), w.bind(),
                             w.execute(), w.flush(), w.parse(BALANCE), w.bind(), w.describe_portal(), w.execute(),
                             w.sync(), w.parse("COMMIT"), w.bind(), w.execute(), w.sync()],
    "copy": [w.query(f"COPY (SELECT repeat('x', 5000) FROM account, generate_series(1, 2000) WHERE account_id = {KEY})"
                     " TO STDOUT"), w.query(BALANCE)],
    "cross-shard": [w.query("BEGIN"), w.query(DEBIT), w.query(f"DELETE FROM account WHERE account_id = {FAR}"),
                    w.query("ROLLBACK")],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("manner", ["closes", "resets", "in half a message", "after reading", "terminates"])
def test_a_client_may_vanish_at_every_message_boundary(cluster, name, manner):
    messages = CONVERSATIONS[name]
    for count in range(len(messages) + 1):
        client = cluster.pg_client()
        client.send(*messages[:count])
        if manner == "in half a message" and count < len(messages):
            client.send(messages[count][:len(messages[count]) // 2])
        if manner == "after reading":
            # So that it vanishes when the router waits for it, not while a statement runs.
            for message in messages[:count]:
                if message[:1] in b"QS":
                    client.until_ready()
        if manner == "resets":
            # Unread answers in the receive buffer make the kernel send a reset.
            client.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER of no time
        if manner == "terminates":
            client.terminate()
        else:
            client.close()
    settled(cluster)
    again = cluster.pg_client()
    assert again.query(BALANCE).kinds == "TDCZ"
    assert again.query(f"SELECT balance FROM account WHERE account_id = {FAR}").value == "1000"


def test_a_client_may_vanish_at_every_byte_of_the_start(cluster):
    packet = w.ssl_request() + w.startup({"user": "app", "database": "app", "application_name": "short"})
    for count in range(len(packet)):
        client = cluster.pg_client(login=False)
        client.send(packet[:count])
        client.close()
    wait_until(lambda: cluster.router.status().clients <= 1, 10, "the clients are gone")
    settled(cluster)


def test_a_client_that_vanishes_while_its_statement_runs_does_not_keep_the_backend(cluster):
    """Whether the statement is cancelled or runs to its end is the router's choice; either way it ends."""
    slow = f"SELECT pg_sleep(1) FROM account WHERE account_id = {KEY}"
    for ask in (lambda c: c.send(w.query(slow)), lambda c: c.send(w.extended(slow), w.sync())):
        clients = [cluster.pg_client() for _ in range(2)]
        for client in clients:
            ask(client)
        wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                                            " AND usename = 'app'") == 2, 10, "both run")
        for client in clients:
            client.close()
        assert cluster.pg_client(timeout=5).value(BALANCE) == "1000"
        settled(cluster)
        wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                                            " AND usename = 'app'") == 0, 10, "nothing runs for nobody")


def test_a_client_that_vanishes_in_the_queue_leaves_it(cluster):
    holders = [cluster.pg_client() for _ in range(2)]
    for holder in holders:
        holder.ok("BEGIN")
        holder.ok(BALANCE)
    waiting = [cluster.pg_client() for _ in range(5)]
    for client in waiting:
        client.send(w.query(DEBIT))
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 5, 10, "five wait")
    for client in waiting[:4]:
        client.close()
    wait_until(lambda: cluster.router.status().shards["s0"]["waiting"] == 1, 10, "four have left")
    holders[0].ok("COMMIT")
    assert waiting[4].until_ready().ok().tag == "UPDATE 1"
    holders[1].ok("COMMIT")
    settled(cluster)
    assert cluster.balance(KEY) == 990, "only the one that stayed was served"


# -- backends ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied(request, owner, new_folder, router_binary):
    """A cluster whose router reaches s0 through a proxy that cuts between messages: (cluster, proxy)."""
    from support.cluster import Cluster

    made = []

    def conninfo_of(name, instance):
        if name != "s0":
            return instance.conninfo("app")
        made.append(FrameProxy(("127.0.0.1", instance.port)))
        return f"host=127.0.0.1 port={made[0].port} dbname=app sslmode=disable gssencmode=disable"

    cluster = Cluster(new_folder("pg-vanishing-proxied"), owner, conninfo_of=conninfo_of, **CLUSTER_OPTIONS)
    try:
        cluster.up()
        cluster.load_accounts()
        yield cluster, made[0]
    finally:
        cluster.end_test()
        cluster.down()
        made[0].close()


def simple(sql):
    return [w.query(sql)]


def extended(sql, *parameters):
    return [w.extended(sql, parameters) + w.sync()]


# name -> (messages before the cut is armed, messages under it, what the last of them is)
UNDER_FIRE = {
    "simple read": ([], simple(BALANCE), "read"),
    "extended read": ([], extended(BY_KEY, KEY), "read"),
    "simple write": ([], simple(DEBIT), "write"),
    "extended write": ([], extended(DEBIT), "write"),
    "several statements": ([], simple(f"{DEBIT}; {BALANCE}; UPDATE account SET version = 1 WHERE account_id = {KEY}"),
                           "write"),
    "copy": ([], simple(f"COPY ({BALANCE}) TO STDOUT"), "read"),
    "write and commit": ([], [w.query("BEGIN"), w.query(DEBIT), w.query("COMMIT")], "commit"),
    "commit": ([w.query("BEGIN"), w.query(DEBIT)], simple("COMMIT"), "commit"),
    "extended commit": ([w.query("BEGIN"), w.query(DEBIT)], extended("COMMIT"), "commit"),
    "commit and chain": ([w.query("BEGIN"), w.query(DEBIT)], simple("COMMIT AND CHAIN"), "commit"),
    "read in a transaction": ([w.query("BEGIN"), w.query(DEBIT)], simple(BALANCE), "inside"),
    "write in a transaction": ([w.query("BEGIN"), w.query(BALANCE)], simple(DEBIT), "inside"),
    "extended write in a transaction": ([w.query("BEGIN"), w.query(BALANCE)], extended(DEBIT), "inside"),
    "savepoint": ([w.query("BEGIN"), w.query(DEBIT)], simple("SAVEPOINT a"), "inside"),
    "rollback": ([w.query("BEGIN"), w.query(DEBIT)], simple("ROLLBACK"), "rollback"),
    "rollback to": ([w.query("BEGIN"), w.query("SAVEPOINT a"), w.query(DEBIT)], simple("ROLLBACK TO a"), "inside"),
}


def fire(cluster, proxy, name, side, count, inside):
    """One conversation with a cut after `count` messages; returns whether the cut came to pass."""
    before, under, kind = UNDER_FIRE[name]
    reset(cluster)
    client = cluster.pg_client()
    for message in before:
        client.send(message)
        client.until_ready().ok()
    proxy.arm(side, count, inside)
    answers = []
    for message in under:
        client.send(message)
        answers.append(client.until_ready())
        if answers[-1].errors:
            break
    proxy.disarm()
    was_cut = proxy.cut.is_set()
    answer = answers[-1]
    story = f"{name}, cut after {count} {side} messages{' and a half' if inside else ''}: {answer}"
    codes = [error.code for error in answer.errors]
    assert len(codes) <= 1, story
    severity = [error.fields["S"] for error in answer.errors]
    assert severity in ([], ["ERROR"]), story
    if not was_cut:
        assert not codes, story
    # The truth, once no transaction of the router can change it any more.
    in_block = answer.status != "I"
    if in_block:
        ended = client.query("ROLLBACK")
        assert ended.status == "I" and not ended.errors, story
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "the server has dropped it")
    wait_until(lambda: not cluster.s0.value(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'"), 10, "nothing runs")
    done = cluster.balance(KEY) != 1000
    if kind == "read":
        # Nothing to know about the outcome; it may also have been sent again by the router, unseen.
        assert codes in ([], ["IL030"]), story
        assert not in_block and not done, story
    elif kind in ("write", "commit"):
        last = len(answers) == len(under)
        if not codes:
            assert done, story
        elif codes == ["IL030"]:
            assert not done, f"told that nothing was done: {story}"
        elif kind == "commit" and not last:
            # BEGIN was answered by the router itself; the write in the transaction was hit, before any COMMIT.
            assert answer.status == "E" and not done, story
        else:
            assert codes == ["08007"], story
        if kind == "write":
            assert answer.status == "I", story
    elif kind == "inside":
        assert not done, story
        if codes:
            assert answer.status == "E", story
            assert codes[0] in ("IL030", "08007", "08006", "57P01"), story
    else:
        # ROLLBACK is carried out by the connection's end, if by nothing else.
        assert not codes and answer.status == "I" and answer.tag == "ROLLBACK" and not done, story
    # The session and the shard go on.
    assert client.value(f"SELECT owner FROM account WHERE account_id = {KEY}") == f"owner{KEY}", story
    client.terminate()
    return was_cut


@pytest.mark.parametrize("name", UNDER_FIRE)
@pytest.mark.parametrize("side", ["frontend", "backend"])
def test_a_backend_may_die_at_every_message_boundary(proxied, name, side):
    cluster, proxy = proxied
    cuts = 0
    for inside in (False, True):
        count = 0
        # Until the conversation ends before the cut comes.
        while fire(cluster, proxy, name, side, count, inside):
            count += 1
            cuts += 1
            assert count < 100
    assert cuts >= 2
    settled(cluster)
    cluster.end_test()


def test_08007_is_given_where_the_outcome_is_unknown_and_only_there(proxied):
    cluster, proxy = proxied
    for message in (w.query(DEBIT), w.extended(DEBIT) + w.sync()):
        reset(cluster)
        with cluster.pg_client() as client:
            client.ok(BALANCE)
            # All of the request is delivered, nothing of the answer is.
            proxy.arm("backend", 0)
            client.send(message)
            answer = client.until_ready().refused("08007", "I")
            assert answer.errors[0].fields.get("H"), answer
            assert cluster.balance(KEY) == 990
            # Nothing of the request is delivered, but the router cannot know that.
            proxy.arm("frontend", 0)
            client.send(message)
            assert client.until_ready().codes in (["08007"], ["IL030"])
            assert cluster.balance(KEY) == 990
            # A connection that is found closed before it is used is no matter at all.
            cluster.s0.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
            client.send(message)
            assert client.until_ready().ok().tag == "UPDATE 1"
            assert cluster.balance(KEY) == 980


def test_a_pipeline_that_is_cut_says_for_each_of_its_parts_what_became_of_it(proxied):
    cluster, proxy = proxied
    for count in range(0, 40, 3):
        reset(cluster)
        client = cluster.pg_client()
        client.ok(BALANCE)
        proxy.arm("backend", count)
        client.send(*(w.extended(DEBIT) + w.sync() for _ in range(6)))
        answers = [client.until_ready() for _ in range(6)]
        proxy.disarm()
        wait_until(lambda: not cluster.s0.value(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'"), 10, "nothing runs")
        acknowledged = sum(not answer.errors for answer in answers)
        unknown = sum(answer.codes == ["08007"] for answer in answers)
        not_done = sum(answer.codes == ["IL030"] for answer in answers)
        assert acknowledged + unknown + not_done == 6, answers
        debited = (1000 - cluster.balance(KEY)) // 10
        assert acknowledged <= debited <= acknowledged + unknown, (count, answers)
        client.close()
    settled(cluster)


def test_a_backend_that_dies_while_it_is_greeted_is_an_unavailable_shard_and_nothing_worse(proxied):
    cluster, proxy = proxied
    for side in ("frontend", "backend"):
        for count in range(0, 12):
            cluster.s0.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
            reset(cluster)
            proxy.arm(side, count)
            client = cluster.pg_client()
            answer = client.query(DEBIT)
            proxy.disarm()
            assert answer.codes in ([], ["IL030"], ["08007"]), answer
            done = cluster.balance(KEY) != 1000
            assert done == (not answer.errors) or answer.codes == ["08007"], answer
            client.close()
            wait_until(lambda: not PgClient(cluster.router.pg_port).query(BALANCE).errors, 5, "s0 serves again")
    settled(cluster)


def test_a_client_is_not_left_without_an_answer_when_router_and_shard_part_and_it_has_vanished_too(proxied):
    cluster, proxy = proxied
    for count in range(0, 8):
        client = cluster.pg_client()
        client.ok("BEGIN")
        client.ok(DEBIT)
        proxy.arm("backend", count)
        client.send(w.query(DEBIT), w.query("COMMIT"))
        client.close()
        settled(cluster)
        proxy.disarm()
    with cluster.pg_client() as client:
        try:
            assert client.query(BALANCE).kinds == "TDCZ"
        except Closed as closed:
            raise AssertionError(f"closed: {closed}") from None
