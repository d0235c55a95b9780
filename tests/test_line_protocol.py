"""The line listener against bad, slow, huge and many clients: bounded memory, a clear R02, others served."""

import socket
import threading

import pytest

from localcluster.line import parse_answer
from support.placement import keys_on
from support.router import SLACK, memory_bound
from support.statements import BALANCE, CREDIT, DEBIT, INSERT, ok
from support.wait import Stopwatch, wait_until

S0, S1 = keys_on("s0", 20), keys_on("s1", 20)


def alive(cluster, seconds=2.0):
    """Another client is served, promptly."""
    with Stopwatch() as watch:
        for key in (S0[0], S1[0]):
            assert ok(cluster.client().q(BALANCE, key)).rows == [[1000]]
    assert watch.seconds < seconds * SLACK


def raw(client, data):
    client.send_raw(data)
    return parse_answer(client.read_line())


@pytest.mark.parametrize("frame", [
    b"Q\t%", b"Q\t%4", b"Q\t%ZZ", b"Q\tSELECT%2", b"Q\tSELECT\t%G1",  # bad percent encoding
    b"Q\tSELECT%00", b"Q\tSEL\0ECT", b"Q\t\0", b"\0", b"Q\tSELECT\ta%00b",  # NUL
    b"Q\t\xff\xfe", b"Q\t%FF%FE", b"Q\t%C0%AF", b"Q\t%ED%A0%80", b"Q\tx\t%F4%90%80%80",  # not UTF-8
    b"HELLO", b"q\tSELECT", b"QQ\tSELECT", b"STATUSS", b"\t", b"GET / HTTP/1.1", b" STATUS",  # unknown verb
], ids=repr)
def test_a_malformed_request_is_r02_and_the_session_goes_on(cluster, frame):
    client = cluster.client()
    answer = raw(client, frame + b"\n")
    assert (answer.code, answer.tx, answer.sqlstate) == ("R02", "I", "08P01"), answer.raw
    assert answer.msg and all(character.isprintable() for character in answer.raw), answer.raw
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


def test_a_malformed_request_inside_a_transaction_fails_it(cluster):
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 10, S0[0]))
    answer = raw(client, b"Q\t%ZZ\n")
    assert (answer.code, answer.tx) == ("R02", "E")
    assert cluster.idle_in_transaction("s0") == 0
    assert client.q("COMMIT").code == "R13"
    assert ok(client.q("ROLLBACK")).tx == "I"
    assert cluster.balance(S0[0]) == 1000


def test_a_carriage_return_before_the_newline_is_dropped_and_requests_may_be_pipelined(cluster):
    client = cluster.client()
    request = client.request(BALANCE, S0[0]).encode()
    client.send_raw(request + b"\r\n" + request + b"\nSTATUS\r\n" + request + b"\n")
    lines = [client.read_line() for _ in range(4)]
    assert [line.split(" ")[0:2] for line in lines] == [
        ["OK", "tag=SELECT"], ["OK", "tag=SELECT"], ["OK", "rv=1"], ["OK", "tag=SELECT"]]


def test_an_answer_does_not_depend_on_how_its_request_is_cut_into_packets(cluster):
    client = cluster.client()
    request = client.request(BALANCE, S1[3]).encode() + b"\n"
    for index in range(len(request)):
        client.send_raw(request[index:index + 1])
    assert ok(parse_answer(client.read_line())).rows == [[1000]]


def test_a_line_longer_than_the_limit_is_r02_and_its_rest_is_thrown_away(cluster):
    client = cluster.client()
    ok(client.q(BALANCE, S0[0]))
    before = cluster.router.resident_kib()
    for size in (1 << 20, 3 << 20, 64 << 20):
        client.send_raw(b"Q\tSELECT%20")
        block = b"a" * (1 << 16)
        for _ in range(size // len(block) + 1):
            client.send_raw(block)
        # The answer does not wait for the end of the line: no more of it is kept than the limit.
        answer = parse_answer(client.read_line())
        assert (answer.code, answer.tx) == ("R02", "I"), answer.raw[:200]
        assert len(answer.raw) < 1000
        client.send_raw(b"\n")
        assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]
    assert cluster.router.resident_kib() - before < memory_bound(8)
    alive(cluster)


def test_a_line_just_within_the_limit_is_taken(cluster):
    client = cluster.client()
    head = client.request("UPDATE account SET owner = ? WHERE account_id = ?", "").encode()
    tail = f"\t{S0[0]}\n".encode()
    value = b"v" * ((1 << 20) - len(head) - len(tail))
    answer = raw(client, head + value + tail)
    assert ok(answer).count == 1
    assert cluster.s0.value("SELECT length(owner) FROM account WHERE account_id = %s", S0[0]) == len(value)


def test_thousands_of_parameters_are_taken_and_too_many_are_refused(cluster):
    client = cluster.client()
    keys = keys_on("s1", 9000)
    sql = f"SELECT account_id FROM account WHERE account_id IN ({', '.join('?' * len(keys))})"
    answer = ok(client.q(sql, *keys))
    assert answer.shard == "s1" and answer.count == 20
    # One key of the other shard among thousands is found.
    assert client.q(sql, *keys[:-1], S0[0]).code == "R11"
    # More than the protocol of PostgreSQL can number.
    for count in (65536, 200_000):
        answer = parse_answer(client.ask(b"Q\tSELECT\t" + b"1\t" * (count - 1) + b"1"))
        assert answer.code == "R02", answer.raw[:200]
    assert client.q(BALANCE, *range(5000)).code == "R27"
    ok(client.q(BALANCE, S0[0]))


def test_many_columns_and_deeply_repeated_syntax_are_refused_without_harm(cluster):
    client = cluster.client()
    for sql in ("SELECT " + ", ".join(["balance"] * 20_000) + " FROM account WHERE account_id = ?",
                "SELECT * FROM account WHERE " + "(" * 50_000, "SELECT " * 20_000,
                "SELECT * FROM account WHERE account_id = ?" + " AND version = ?" * 10_000,
                "(" * 100_000, "?" * 100_000, "a" * 500_000, "/*" * 100_000, "'" * 100_001):
        answer = client.q(sql, S0[0])
        assert answer.ok or answer.code.startswith("R"), answer.raw[:200]
        assert len(answer.raw) < (1 << 20)
    alive(cluster)


def test_half_a_line_and_gone_leaves_nothing(cluster):
    files = cluster.router.open_files()
    clients = cluster.router.status().clients
    for data in (b"", b"Q", b"Q\tSELECT * FROM account WHERE account_id = ?\t", b"Q\tBEGIN\nQ\tSEL", b"STAT"):
        for _ in range(20):
            client = cluster.router.client()
            client.send_raw(data)
            client.close()
    wait_until(lambda: cluster.router.open_files() <= files, 10, "their files are closed")
    wait_until(lambda: cluster.router.status().clients == clients, 10, "they are not counted any more")
    alive(cluster)


def test_a_client_that_shuts_its_writing_side_still_gets_its_answers(cluster):
    client = cluster.client()
    request = client.request(BALANCE, S0[0]).encode() + b"\n"
    client.send_raw(request * 3)
    client.socket.shutdown(socket.SHUT_WR)
    assert [client.read_line().split(" ")[0] for _ in range(3)] == ["OK"] * 3
    assert client.read_line() is None


def test_half_a_line_that_never_ends_is_given_up(make_cluster):
    cluster = make_cluster(router_settings={"line": {"line_timeout": "300ms"}}).up()
    cluster.load_accounts()
    client = cluster.client()
    client.send_raw(b"Q\tSELECT")
    lines = []
    while (line := client.read_line()) is not None:
        lines.append(line)
    assert all(line.startswith("ERR code=R02") for line in lines), lines
    # Idle between lines is no fault.
    idle = cluster.client()
    ok(idle.q(BALANCE, S0[0]))
    cluster.s0.sql("SELECT pg_sleep(0.6)")
    ok(idle.q(BALANCE, S0[0]))


def test_two_thousand_connections_are_held_and_served_in_bounded_memory(cluster):
    alive(cluster)
    before = cluster.router.resident_kib()
    crowd = [cluster.client(timeout=60) for _ in range(2000)]
    for index, client in enumerate(crowd):
        client.send_raw(client.request(BALANCE, (S0 + S1)[index % 40]).encode() + b"\n")
    for client in crowd:
        assert client.read_line().startswith("OK tag=SELECT"), "each of the crowd is answered"
    assert cluster.router.status().clients >= 2000
    used = cluster.router.resident_kib() - before
    assert used < memory_bound(64), f"2,000 connections cost {used} KiB"
    alive(cluster)
    for client in crowd:
        client.close()
    wait_until(lambda: cluster.router.status().clients < 50, 20, "the crowd is gone")
    alive(cluster)


def test_more_clients_than_allowed_are_told_why(make_cluster):
    cluster = make_cluster(router_settings={"line": {"max_clients": 5}}).up()
    cluster.load_accounts()
    crowd = [cluster.client() for _ in range(5)]
    for client in crowd:
        ok(client.q(BALANCE, S0[0]))
    extra = cluster.client()
    line = extra.read_line()
    assert line.startswith("ERR code=R34"), line
    assert extra.read_line() is None
    crowd[0].close()
    wait_until(lambda: place_free(cluster), 10, "a place is free again")


def place_free(cluster):
    try:
        with cluster.router.client() as client:
            return client.q(BALANCE, S0[0]).ok
    except OSError:
        return False


def test_a_client_that_never_reads_is_held_back_and_then_closed_while_others_are_served(make_cluster):
    cluster = make_cluster(router_settings={"line": {"write_timeout": "3s"}}).up()
    cluster.load_accounts()
    wide = "w" * 900_000
    cluster.s0.sql("UPDATE account SET owner = %s WHERE account_id = %s", wide, S0[0])
    alive_without_s0_first(cluster)
    before = cluster.router.resident_kib()
    deaf = cluster.client(timeout=60)
    request = deaf.request("SELECT owner FROM account WHERE account_id = ?", S0[0]).encode() + b"\n"
    stopped = threading.Event()

    def talk():
        # 2 GB of answers are asked for; the router must stop reading long before.
        try:
            for _ in range(2000):
                deaf.socket.sendall(request * 10)
        except OSError:
            pass
        stopped.set()

    threading.Thread(target=talk, daemon=True).start()
    peak = 0

    def grown_and_served():
        nonlocal peak
        peak = max(peak, cluster.router.resident_kib() - before)
        alive_without_s0_first(cluster)
        return stopped.is_set()

    wait_until(grown_and_served, 60, "the deaf client is closed")
    assert peak < memory_bound(48), f"a client that never reads made the router grow by {peak} KiB"
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "its backend is free")


def alive_without_s0_first(cluster):
    with cluster.router.client() as client:
        assert ok(client.q(BALANCE, S1[0])).rows == [[1000]]
        assert ok(client.q(BALANCE, S0[1])).rows == [[1000]]


def test_an_answer_larger_than_the_limit_is_refused_and_costs_no_memory(make_cluster):
    cluster = make_cluster(router_settings={"limits": {"max_result_bytes": "1MB"}}).up()
    cluster.load_accounts()
    for key in S0[:10]:
        cluster.s0.sql("UPDATE account SET owner = repeat('x', 10000000) WHERE account_id = %s", key)
    client = cluster.client()
    before = cluster.router.resident_kib()
    answer = client.q(f"SELECT * FROM account WHERE account_id IN ({', '.join('?' * 10)})", *S0[:10])
    assert (answer.code, answer.tx) == ("R37", "I"), answer.raw[:200]
    assert cluster.router.resident_kib() - before < memory_bound(8)
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]
    # Inside a transaction it fails it.
    ok(client.q("BEGIN"))
    ok(client.q(CREDIT, 1, S0[1]))
    assert client.q("SELECT owner FROM account WHERE account_id = ?", S0[0]).tx == "E"
    assert cluster.idle_in_transaction("s0") == 0
    ok(client.q("ROLLBACK"))


def test_a_statement_that_runs_too_long_is_cancelled_and_its_transaction_failed(make_cluster):
    cluster = make_cluster(router_settings={"pool": {"statement_timeout": "500ms"}}).up()
    cluster.load_accounts()
    holder = cluster.connect("s0", autocommit=False)
    holder.execute("SELECT * FROM account WHERE account_id = %s FOR UPDATE", (S0[0],))
    client = cluster.client()
    with Stopwatch() as watch:
        answer = client.q(DEBIT, 1, S0[0])
    assert answer.code in ("R36", "R31", "R32"), answer.raw
    assert 0.4 < watch.seconds < 5 * SLACK
    holder.rollback()
    wait_until(lambda: cluster.router.status().shards["s0"]["borrowed"] == 0, 10, "nothing is borrowed")
    assert cluster.balance(S0[0]) == 1000
    ok(client.q(DEBIT, 1, S0[0]))


def test_waiting_for_a_connection_has_a_limit_and_nothing_was_sent(make_cluster):
    cluster = make_cluster(router_settings={"pool": {"size": 1, "acquire_timeout": "300ms"}}).up()
    cluster.load_accounts()
    holder, waiter = cluster.client(), cluster.client()
    ok(holder.q("BEGIN"))
    ok(holder.q(DEBIT, 1, S0[0]))
    answer = waiter.q(INSERT, keys_on("s0", 1, start=50_000)[0], "late", 1, 0)
    assert (answer.code, answer.tx) == ("R33", "I"), answer.raw
    ok(holder.q("COMMIT"))
    assert cluster.counts() == (20, 20)
    ok(waiter.q(BALANCE, S0[0]))


def test_an_idle_transaction_is_rolled_back_after_its_time(make_cluster):
    cluster = make_cluster(router_settings={"line": {"idle_transaction_timeout": "300ms"}}).up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 1, S0[0]))
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10 * SLACK, "it was rolled back")
    line = client.read_line()
    assert line is None or line.startswith("ERR"), line
    assert cluster.balance(S0[0]) == 1000
