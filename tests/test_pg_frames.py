"""Frames on the PostgreSQL listener: split anywhere, malformed in every way, of kinds that do not exist."""

import os
import struct

import pytest

from support import pgwire as w
from support.control import KEY, both, in_order
from support.pgclient import LoginRefused
from support.wait import wait_until

LIMIT = 1 << 20
CLUSTER_OPTIONS = {"router_settings": {"pg": {"max_packet": "1MB", "max_statement": "64kB"}}}
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
BY_KEY = "SELECT owner FROM account WHERE account_id = $1"
START = w.startup({"user": "app", "database": "app"})


def whole_conversation():
    """Start-up to Terminate, every kind of message once."""
    return b"".join([
        START,
        w.query(BALANCE), w.query(""),
        w.parse(BY_KEY, "s"), w.describe_statement("s"), w.flush(),
        w.bind([KEY], "s", "p"), w.describe_portal("p"), w.execute("p", 1), w.close_portal("p"), w.sync(),
        w.parse("SELECT 1/0"), w.bind(), w.execute(), w.close_statement("s"), w.sync(),
        w.copy_data(b"x"), w.copy_done(), w.copy_fail("y"),
        w.query("BEGIN"), w.query(BALANCE), w.query("COMMIT"),
        w.terminate(),
    ])


def hear(client):
    """Everything to the end of the connection, but for what is different each time."""
    return [message.plain() for message in in_order(client.until_closed()) if message.kind != "K"]


def test_a_conversation_split_at_every_byte_is_answered_as_when_it_comes_whole(cluster):
    conversation = whole_conversation()
    control = cluster.direct(login=False)
    control.send(conversation)
    expected = hear(control)
    assert sum(name == "ReadyForQuery" for name, *_ in expected) == 8
    for place in range(1, len(conversation)):
        client = cluster.pg_client(login=False)
        client.send_split(conversation, place)
        assert hear(client) == expected, f"split before byte {place}"
        client.close()


def test_a_conversation_that_comes_byte_by_byte_is_answered_as_when_it_comes_whole(cluster):
    conversation = whole_conversation()
    heard = []
    for connect in (cluster.direct, cluster.pg_client):
        client = connect(login=False)
        client.send_split(conversation, *range(1, len(conversation)))
        heard.append(hear(client))
    assert heard[1] == heard[0]


@pytest.mark.parametrize("kind", [b"!", b"Y", b"\0", b"\xff", b"q", b"R", b"Z", b"T", b"1"])
def test_a_message_of_unknown_kind_ends_the_connection_with_08P01(cluster, kind):
    def talk(client):
        client.ok(BALANCE)
        client.send(w.frame(kind, b"anything"))
        (error,) = client.until_closed()
        assert error.code == "08P01" and error.fields["S"] == "FATAL"
    both(cluster, talk)


@pytest.mark.parametrize("kind, length", [
    *((kind, length) for kind in (b"Q", b"P", b"S", b"E", b"X") for length in (0, 1, 3, -1, -(2**31))),
    *((kind, length) for kind in (b"Q", b"P", b"S", b"E", b"X") for length in (2**31 - 1, 1 << 30)),
])
def test_a_length_that_cannot_be_ends_the_connection(cluster, kind, length):
    client = cluster.pg_client()
    before = cluster.router.resident_kib()
    client.ok(BALANCE)
    client.send(kind + struct.pack("!i", length) + b"some bytes that follow")
    messages = client.until_closed(2)
    # PostgreSQL writes it into its log and hangs up; a word before that does no harm.
    assert all(m.kind == "E" and m.code == "08P01" and m.fields["S"] == "FATAL" for m in messages), messages
    assert len(messages) <= 1
    assert cluster.router.resident_kib() - before < 8 << 10


def test_a_message_over_the_limit_is_refused_and_the_session_goes_on(cluster):
    client = cluster.pg_client()
    long = f"SELECT '{'x' * LIMIT}'"
    client.query(long).refused("IL037", "I")
    client.ask(w.parse(long), w.bind(), w.execute()).refused("IL037", "I")
    client.ask(w.parse(BALANCE, "n" * (LIMIT + 1))).refused("IL037", "I")
    client.ok("BEGIN")
    client.query(long).refused("IL037", "E")
    client.ok("ROLLBACK")
    # A long Bind is passed on piece by piece, as long as the key is among the first.
    assert client.run("SELECT length($1)", b"x" * (3 * LIMIT)).value == str(3 * LIMIT)
    by_key = "SELECT length($1) FROM account WHERE account_id = $2"
    client.run(by_key, b"x" * (3 * LIMIT), KEY).refused("IL037", "I")
    assert client.run(by_key, b"x" * (LIMIT // 2), KEY).value == str(LIMIT // 2)
    assert client.value(BALANCE) == "1000"


def test_a_statement_over_the_limit_is_refused_and_the_session_goes_on(cluster):
    client = cluster.pg_client()
    long = "SELECT 1" + " + length(current_user)" * 4000
    client.query(long).refused("IL037", "I")
    assert client.value(BALANCE) == "1000"
    client.ask(w.parse(long), w.bind(), w.execute()).refused("IL037", "I")
    # Literals are values: they do not count.
    assert client.value(f"SELECT length('{'x' * (100 << 10)}')") == str(100 << 10)
    assert client.value(BALANCE) == "1000"


MALFORMED = {
    "parse without name": w.frame(b"P"),
    "parse without text": w.frame(b"P", b"a\0"),
    "parse with fewer types than it says": w.frame(b"P", b"a\0SELECT 1\0\0\2\0\0\0\x17"),
    "parse with more behind its end": w.frame(b"P", b"a\0SELECT 1\0\0\0more"),
    "parse without a count of types": w.frame(b"P", b"a\0SELECT 1\0"),
    "parse with a negative count of types": w.frame(b"P", b"a\0SELECT 1\0\xff\xff"),
    "bind without anything": w.frame(b"B"),
    "bind of a parameter longer than the message": w.frame(b"B", b"\0\0\0\0\0\1\0\0\0\x10ab\0\0"),
    "bind of a parameter of length -2": w.frame(b"B", b"\0\0\0\0\0\1\xff\xff\xff\xfe\0\0"),
    "bind with more parameters than there are": w.frame(b"B", b"\0\0\0\0\0\5\0\0\0\1a\0\0"),
    "bind with more formats than there are": w.frame(b"B", b"\0\0\0\7\0\0\0\0\0\0"),
    "bind without result formats": w.frame(b"B", b"\0\0\0\0\0\0"),
    "bind with more behind its end": w.frame(b"B", b"\0\0\0\0\0\0\0\0more"),
    "bind with a format that does not exist": w.frame(b"B", b"\0one\0\0\1\0\7\0\1\0\0\0\1a\0\0"),
    "describe of neither": w.frame(b"D", b"X\0"),
    "describe without a name": w.frame(b"D", b"S"),
    "describe without anything": w.frame(b"D"),
    "close of neither": w.frame(b"C", b"Q\0"),
    "close without a name": w.frame(b"C", b"S"),
    "execute without a limit": w.frame(b"E", b"\0"),
    "execute with half a limit": w.frame(b"E", b"\0\0\0"),
    "execute with more behind its end": w.frame(b"E", b"\0\0\0\0\0more"),
    "execute with a negative limit": w.frame(b"E", b"\0\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_08P01_and_the_session_goes_on_as_after_any_error(cluster, message):
    def talk(client):
        client.ask(w.parse("SELECT $1::text", "one"), w.parse("SELECT 1"), w.bind()).ok()
        client.send(message, w.sync(), w.query("SELECT 'still here'"))
        answer = client.until_ready()
        while answer.rows != [(b"still here",)]:
            assert set(answer.codes) <= {"08P01", "22023", "34000"}, answer
            answer = client.until_ready()
        # And inside a transaction, where it fails it.
        client.ok("BEGIN")
        client.ok(BALANCE)
        client.send(w.parse("SELECT 1"), w.bind(), message, w.sync(), w.query("ROLLBACK"),
                    w.query("SELECT 'still here'"))
        answer = client.until_ready()
        while answer.rows != [(b"still here",)]:
            answer = client.until_ready()
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)


@pytest.mark.parametrize("message", [w.frame(b"Q", b"SELECT 1"), w.frame(b"Q", b"SELECT 1\0more"), w.frame(b"Q"),
                                     w.frame(b"S", b"x"), w.frame(b"H", b"x")])
def test_a_query_flush_or_sync_of_which_nobody_knows_where_it_ends_is_08P01(cluster, message):
    """PostgreSQL goes on after it; to hang up is as good, for no client that works sends it."""
    client = cluster.pg_client()
    client.ok("BEGIN")
    client.ok(BALANCE)
    client.send(message)
    answer = client.until("E")
    assert answer[-1].code == "08P01"
    if answer[-1].fields["S"] == "FATAL":
        assert client.until_closed() == []
    client.close()
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 10, "its transaction is gone")


def test_copy_messages_outside_copy_are_passed_over(cluster):
    def talk(client):
        client.send(w.copy_data(b"x" * 10_000), w.copy_done(), w.copy_fail("why"))
        assert client.value(BALANCE) == "1000"
    both(cluster, talk)


def test_a_function_call_message_is_refused_and_the_session_goes_on(cluster):
    client = cluster.pg_client()
    client.send(w.function_call(1598))  # random()
    answer = client.until_ready()
    assert answer.kinds == "EZ" and answer.codes == ["0A000"] and answer.status == "I", answer
    client.ok("BEGIN")
    client.ok(BALANCE)
    client.send(w.function_call(1598))
    assert client.until_ready().refused("0A000", "E")
    client.ok("ROLLBACK")
    assert client.value(BALANCE) == "1000"


def test_a_password_message_after_login_is_not_expected(cluster):
    def talk(client):
        client.ok(BALANCE)
        client.send(w.password(b"secret\0"))
        (error,) = client.until_closed()
        assert error.code == "08P01"
    both(cluster, talk)


# -- start-up ------------------------------------------------------------------------------------


def begin(client, *packets):
    client.send(*packets)
    messages = [client.receive()]
    while messages[-1].kind not in "ZE":
        messages.append(client.receive())
    return messages


def test_a_newer_minor_protocol_and_unknown_options_are_negotiated_down(cluster):
    for version, extra in ((w.PROTOCOL_3_0 + 2, {}), (w.PROTOCOL_3_0, {"_pq_.this": "1"}),
                           (w.PROTOCOL_3_0 + 9999, {"_pq_.this": "1", "_pq_.that": ""})):
        heard = []
        for connect in (cluster.direct, cluster.pg_client):
            client = connect(version=version, **extra)
            heard.append([m.plain() for m in client.greeting if m.kind == "v"])
            assert client.value(BALANCE) == "1000"
        assert len(heard[0]) == 1 and heard[1] == heard[0]


@pytest.mark.parametrize("version", [0, 4 << 16, 1234 << 16, 0x7FFFFFFF, -1])
def test_another_major_protocol_is_refused(cluster, version):
    for connect in (cluster.direct, cluster.pg_client):
        client = connect(login=False)
        client.send(w.startup({"user": "app"}, version))
        messages = client.until_closed()
        assert [m.code for m in messages] == ["0A000"], messages


def test_a_client_of_the_protocol_before_the_third_is_sent_away(cluster):
    for version in (1, 1 << 16, 2 << 16):
        client = cluster.pg_client(login=False)
        client.send(w.startup({"user": "app"}, version))
        # It reads errors in another form (type byte, text, NUL): whatever it is told is not looked into.
        client.socket.settimeout(5)
        while client.socket.recv(1000):
            pass


@pytest.mark.parametrize("packet", [
    struct.pack("!i", 0), struct.pack("!i", 3) + b"abc", struct.pack("!i", 7) + b"abc",
    struct.pack("!i", -5) + b"abcdefgh", struct.pack("!i", 10_001) + struct.pack("!i", w.PROTOCOL_3_0) + b"x" * 9993,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
])
def test_a_start_that_is_no_start_up_packet_ends_the_connection(cluster, packet):
    for connect in (cluster.direct, cluster.pg_client):
        client = connect(login=False)
        client.send(packet)
        messages = client.until_closed(5)
        assert not messages or messages[0].code in ("08P01", "0A000"), messages
    assert cluster.pg_client().value(BALANCE) == "1000"


@pytest.mark.parametrize("body", [b"", b"user\0app", b"user\0app\0database\0app", b"user\0app\0database\0\0\0junk"])
def test_a_malformed_start_up_packet_is_refused(cluster, body):
    packet = w.untyped(struct.pack("!i", w.PROTOCOL_3_0) + body)
    codes = []
    for connect in (cluster.direct, cluster.pg_client):
        client = connect(login=False)
        client.send(packet)
        (error,) = client.until_closed(5)
        assert error.fields["S"] == "FATAL"
        codes.append(error.code)
    assert codes[1] == codes[0]


def test_a_start_up_without_a_user_is_refused(cluster):
    def talk(client):
        client.send(w.startup({"database": "app"}))
        (error,) = client.until_closed()
        assert error.code == "28000"
    both(cluster, talk, login=False)


def test_encryption_that_is_not_offered_is_declined_and_the_start_goes_on(cluster):
    def talk(client):
        client.send(w.ssl_request())
        assert client.read_raw(1) == b"N"
        messages = begin(client, START)
        assert messages[-1].kind == "Z"
        client.record[:] = [m for m in client.record if m.kind != "K"]
        assert client.value(BALANCE) == "1000"
    both(cluster, talk, login=False)
    # This PostgreSQL may offer GSS, the router does not; both may be asked in turn.
    client = cluster.pg_client(login=False)
    for request in (w.gss_request(), w.ssl_request()):
        client.send(request)
        assert client.read_raw(1) == b"N"
    assert begin(client, START)[-1].kind == "Z"


def test_queries_sent_together_with_the_start_up_packet_are_answered(cluster):
    client = cluster.pg_client(login=False)
    client.send(START + w.query(BALANCE) + w.extended(BY_KEY, [KEY]) + w.sync())
    assert client.until_ready().of("K")
    assert client.until_ready().value == "1000"
    assert client.until_ready().value == f"owner{KEY}"


def test_a_setting_in_the_start_up_packet_that_does_not_exist_is_refused_and_a_good_one_holds(cluster):
    def refused(connect, **parameters):
        try:
            connect(**parameters)
        except LoginRefused as refusal:
            return refusal.code
        return None

    for parameters in ({"no_such_thing": "1"}, {"DateStyle": "nonsense"}, {"client_encoding": "KLINGON"},
                       {"statement_timeout": "-5"}):
        control, router = (refused(connect, **parameters) for connect in (cluster.direct, cluster.pg_client))
        # What does not exist is, to the router, one of many that it does not keep for a client.
        allowed = [control] + (["IL025"] if "no_such_thing" in parameters else [])
        assert control is not None and router in allowed, (parameters, control, router)
    parameters = {"application_name": "raw", "DateStyle": "German", "TimeZone": "Asia/Tokyo",
                  "options": "-c statement_timeout=12345 -c work_mem=1234kB", "extra_float_digits": "0"}

    def talk(client):
        for name in ("application_name", "DateStyle", "TimeZone", "statement_timeout", "work_mem",
                     "extra_float_digits"):
            client.ok(f"SHOW {name}")
        client.ok("RESET statement_timeout")
        # What a session began with is what RESET goes back to.
        assert client.value("SHOW statement_timeout") == "12345ms"
        client.ok("SET DateStyle = 'ISO, DMY'")
        client.ok("DISCARD ALL")
        assert client.value("SHOW DateStyle") == "German, DMY"
        assert client.value("SELECT '2026-02-01'::date") == "01.02.2026"
    both(cluster, talk, **parameters)


def test_the_greeting_reports_the_parameters_that_postgresql_reports(cluster):
    control, router = ({m.parts[0]: m.parts[1] for m in connect().greeting if m.kind == "S"}
                       for connect in (cluster.direct, cluster.pg_client))
    assert router == control


def test_random_bytes_never_bring_the_router_down(cluster):
    for turn in range(60):
        client = cluster.pg_client(login=False)
        try:
            if turn % 3:
                client.send(START)
                client.until_ready()
            client.send(os.urandom(5) if turn % 2 else b"QPBDECSHdcfFpX"[turn % 14:][:1] + os.urandom(200))
        except (OSError, ConnectionError):
            pass
        client.close()
    assert cluster.pg_client().value(BALANCE) == "1000"
