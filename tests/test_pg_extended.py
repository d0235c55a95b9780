"""The extended protocol on the PostgreSQL listener: every legal order, and what PostgreSQL answers to the rest."""

import random
import struct

import pytest

from support import pgwire as w
from support.control import KEY, KEYS, both
from support.placement import keys_on
from support.router import memory_bound

CLUSTER_OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 2}}}
BALANCE = "SELECT balance FROM account WHERE account_id = $1"
DEBIT = "UPDATE account SET balance = balance - $2 WHERE account_id = $1"
SERIES = "SELECT g FROM account, generate_series(1, $2::int) g WHERE account_id = $1 ORDER BY g"
INT4, INT8, TEXT = 23, 20, 25


def test_parse_bind_describe_execute_close_and_sync_answer_in_turn(cluster):
    def talk(client):
        answer = client.ask(w.parse(BALANCE, "s"), w.describe_statement("s"),
                            w.bind([KEY], "s", "p"), w.describe_portal("p"), w.execute("p"),
                            w.close_portal("p"), w.close_statement("s"))
        assert answer.kinds == "1tT2TDC33Z" and answer.value == "1000"
        assert client.run(DEBIT, KEY, 1).kinds == "12nCZ"
        assert client.run("").kinds == "12nIZ"
        assert client.ask().kinds == "Z"
    both(cluster, talk)


def test_a_described_statement_tells_its_parameters_and_columns_before_any_bind(cluster):
    def talk(client):
        answer = client.ask(w.parse(BALANCE, "read"), w.parse(DEBIT, "write", [INT8]),
                            w.describe_statement("read"), w.describe_statement("write"))
        assert answer.kinds == "11tTtnZ"
        assert [message.parts for message in answer.of("t")] == [(INT8,), (INT8, INT8)]
        (column,) = answer.of("T")[0].columns
        assert (column.name, column.type, column.format) == ("balance", INT8, 0)
        # Later, and again, and with nothing else between.
        assert client.ask(w.describe_statement("read")).kinds == "tTZ"
        assert client.ask(w.bind([KEY], "read"), w.execute()).kinds == "2DCZ"
        assert client.ask(w.parse("", "nothing"), w.describe_statement("nothing")).kinds == "1tnZ"
        assert client.ask(w.parse("SELECT $1", "any", [TEXT]), w.describe_statement("any")).kinds == "1tTZ"
    both(cluster, talk)


def test_the_unnamed_statement_outlives_the_queries_of_others(cluster):
    """On a backend that is shared a Query of anybody drops it there."""
    client, other = cluster.pg_client(), cluster.pg_client()
    client.ask(w.parse(BALANCE), w.bind([KEY]), w.execute()).ok()
    other.ok(BALANCE.replace("$1", str(KEY)))
    assert client.ask(w.bind([KEY]), w.execute()).ok().value == "1000"
    other.ok("SET work_mem = '1MB'")
    other.run(BALANCE, KEY).ok()
    assert client.ask(w.bind([KEY]), w.execute()).ok().value == "1000"


def test_flush_brings_the_answers_so_far_and_no_ready(cluster):
    def talk(client):
        client.send(w.parse(BALANCE, "s"), w.flush())
        assert client.until("1").kinds == "1"
        client.send(w.describe_statement("s"), w.flush())
        assert client.until("T").kinds == "tT"
        client.send(w.bind([KEY], "s"), w.flush())
        assert client.until("2").kinds == "2"
        client.send(w.describe_portal(), w.flush(), w.flush())
        assert client.until("T").kinds == "T"
        client.send(w.execute(), w.flush())
        assert client.until("C").kinds == "DC"
        assert client.silent()
        assert client.ask().kinds == "Z"
    both(cluster, talk)


def test_an_error_is_answered_at_once_and_everything_up_to_sync_is_skipped(cluster):
    def talk(client):
        client.send(w.extended("SELECT 1/$1::int", [0]), w.flush())
        assert client.until("E").codes == ["22012"]
        client.send(w.extended(BALANCE, [KEY]), w.flush(), w.query("SELECT 7"))
        assert client.silent()
        assert client.ask(w.parse(BALANCE, "skipped")).kinds == "Z"
        assert client.ask(w.bind([KEY], "skipped")).refused("26000")
        assert client.run(BALANCE, KEY).value == "1000"
    both(cluster, talk)


def test_each_sync_of_a_pipeline_ends_a_transaction_of_its_own(cluster):
    def talk(client):
        def debit(amount):
            return w.extended(DEBIT, [KEY, amount])

        client.send(debit(1), w.sync(), debit(2), debit(5000), debit(4), w.sync(), debit(8), w.sync(),
                    w.extended(BALANCE, [KEY]), w.sync())
        assert client.until_ready().ok().tag == "UPDATE 1"
        assert client.until_ready().refused("23514").tags == ["UPDATE 1"]
        assert client.until_ready().ok().tag == "UPDATE 1"
        # 2 went with 5000, 4 was skipped.
        assert client.until_ready().value == str(1000 - 1 - 8)
    both(cluster, talk)
    assert cluster.balance(KEY) == 991


def test_a_pipeline_of_five_hundred_rounds_is_answered_in_order(cluster):
    def talk(client):
        client.ask(w.parse(SERIES, "s"))
        client.send(*(w.bind([KEY, i % 4], "s") + w.execute() + w.sync() for i in range(500)))
        for i in range(500):
            assert len(client.until_ready().ok().rows) == i % 4
    both(cluster, talk)


def test_a_round_of_twenty_thousand_statements_is_answered_in_order_and_undone_as_one(cluster):
    client = cluster.pg_client(timeout=60)
    count = 20_000
    debit = f"UPDATE account SET balance = balance - 0 WHERE account_id = {KEY}"
    round_ = [w.parse(debit) + w.bind() + w.execute()] * count
    before = cluster.router.resident_kib()
    answer = client.ask(*round_, w.parse("SELECT 1/0"), w.bind(), w.execute())
    answer.refused("22012", "I")
    assert answer.kinds.count("C") == count, answer.kinds[-20:]
    assert cluster.router.resident_kib() - before < memory_bound(24)
    assert client.value(BALANCE.replace("$1", str(KEY))) == "1000"


def test_a_pipeline_over_two_shards_is_answered_in_order_and_refused_inside_one_sync(cluster):
    client = cluster.pg_client()
    pairs = list(zip(KEYS, keys_on("s1", 20)))
    client.ask(w.parse("SELECT account_id FROM account WHERE account_id = $1", "s"))
    for pair in pairs:
        client.send(*(w.bind([key], "s") + w.execute() + w.sync() for key in pair))
    for pair in pairs:
        for key in pair:
            assert client.until_ready().ok().value == str(key)
    # Between two Syncs is one (implicit) transaction, so it has one shard.
    one, other = pairs[0]
    answer = client.ask(w.extended(DEBIT, [one, 5]), w.extended(DEBIT, [other, 5]))
    assert answer.codes in (["IL011"], ["IL012"]) and answer.status == "I", answer
    assert cluster.total() == 40_000
    assert client.run(BALANCE, other).value == "1000"


def test_named_statements_live_until_closed_and_the_unnamed_until_the_next(cluster):
    def talk(client):
        client.ask(w.parse(BALANCE, "a"), w.parse("SELECT 1", "b"), w.parse("SELECT 2")).ok()
        client.ok("BEGIN")
        assert client.ask(w.bind([KEY], "a"), w.execute()).value == "1000"
        client.query("SELECT 1/0").refused("22012", "E")
        client.ok("ROLLBACK")
        assert client.ask(w.bind([], "b"), w.execute()).value == "1"
        # A simple Query puts an end to the unnamed one.
        client.ask(w.bind([], ""), w.execute()).refused("26000")
        client.ask(w.parse("SELECT 3")).ok()
        client.ask(w.parse("SELEC")).refused("42601")
        client.ask(w.bind([], ""), w.execute()).refused("26000")
        client.ask(w.parse("SELECT 4")).ok()
        assert client.ask(w.bind([], ""), w.execute()).value == "4"
        assert client.ask(w.bind([], ""), w.execute()).value == "4"
        client.ask(w.close_statement("")).ok()
        client.ask(w.bind([], "")).refused("26000")
        client.ask(w.close_statement("a"), w.close_statement("a"), w.close_statement("never")).ok()
        client.ask(w.bind([KEY], "a")).refused("26000")
        client.ask(w.describe_statement("a")).refused("26000")
    both(cluster, talk)


def test_names_that_do_not_exist_and_names_that_do_are_refused_with_postgresqls_codes(cluster):
    def talk(client):
        client.ask(w.bind([], "never")).refused("26000", "I")
        client.ask(w.describe_statement("never")).refused("26000", "I")
        client.ask(w.execute("never")).refused("34000", "I")
        client.ask(w.describe_portal("never")).refused("34000", "I")
        client.ask(w.execute()).refused("34000", "I")
        client.ask(w.close_portal("never")).ok()
        client.ask(w.parse("SELECT 1", "s")).ok()
        assert client.ask(w.parse("SELECT 1", "s")).refused("42P05", "I").kinds == "EZ"
        assert client.ask(w.bind([], "s"), w.execute()).value == "1"
        assert client.ask(w.parse("SELECT 2", "t"), w.parse("SELECT 2", "t")).refused("42P05").kinds == "1EZ"
        # Statements survive the transaction that made them, even one that failed.
        assert client.ask(w.bind([], "t"), w.execute()).value == "2"
        client.ok("BEGIN")
        client.ask(w.bind([], "s", "p")).ok()
        client.ask(w.bind([], "s", "p")).refused("42P03", "E")
        client.ok("ROLLBACK")
        client.ask(w.execute("p")).refused("34000", "I")
        # The unnamed portal gives way.
        assert client.ask(w.bind([], "s"), w.bind([], "t"), w.execute()).value == "2"
    both(cluster, talk)


def test_long_names_and_odd_ones_are_names(cluster):
    def talk(client):
        for name in ("n" * 200, "it's", "\u00fc", "select", " ", "il_1", "interlock_1", "S_1"):
            client.ask(w.parse(f"SELECT '{len(name)}'", name)).ok()
            assert client.ask(w.bind([], name, name), w.execute(name)).value == str(len(name))
    both(cluster, talk)


def test_a_row_limit_suspends_the_portal_and_the_next_execute_goes_on(cluster):
    def talk(client):
        client.ok("BEGIN")
        answer = client.ask(w.parse(SERIES), w.bind([KEY, 5], portal="p"), w.execute("p", 2))
        assert answer.kinds == "12DDsZ" and answer.status == "T"
        # Another statement in between.
        assert client.run(BALANCE, KEY).value == "1000"
        assert client.ask(w.execute("p", 2)).kinds == "DDsZ"
        assert client.ask(w.execute("p", 2)).kinds == "DCZ"
        assert client.ask(w.execute("p", 2)).tags == ["SELECT 0"]
        client.ok("COMMIT")
        client.ask(w.execute("p", 2)).refused("34000", "I")
    both(cluster, talk)


def test_outside_a_transaction_a_suspended_portal_lives_until_sync(cluster):
    def talk(client):
        answer = client.ask(w.parse(SERIES), w.bind([KEY, 5], portal="p"), w.execute("p", 2), w.execute("p", 2),
                            w.execute("p", 0))
        assert answer.kinds == "12DDsDDsDCZ" and answer.tags == ["SELECT 1"]
        assert client.ask(w.bind([KEY, 5], portal="p"), w.execute("p", 5)).kinds == "2DDDDDsZ"
        client.ask(w.execute("p")).refused("34000", "I")
        assert client.ask(w.bind([KEY, 3]), w.execute("", 3), w.execute("", 1)).kinds == "2DDDsCZ"
        # A Flush is no Sync.
        client.send(w.bind([KEY, 3], portal="q"), w.execute("q", 1), w.flush())
        assert client.until("s").kinds == "2Ds"
        client.send(w.execute("q", 1), w.flush())
        assert client.until("s").kinds == "Ds"
        assert client.ask(w.execute("q")).kinds == "DCZ"
    both(cluster, talk)


def test_several_portals_are_open_at_once_in_a_transaction(cluster):
    def talk(client):
        client.ok("BEGIN")
        client.ask(w.parse(SERIES, "s")).ok()
        client.ask(*(w.bind([KEY, 10], "s", f"p{i}") for i in range(5))).ok()
        for turn in range(10):
            answer = client.ask(*(w.execute(f"p{i}", 1) for i in range(5)))
            assert [row[0] for row in answer.rows] == [str(turn + 1).encode()] * 5
        client.ask(w.close_portal("p3")).ok()
        client.ask(w.execute("p3")).refused("34000", "E")
        client.ok("ROLLBACK")
    both(cluster, talk)


def test_a_write_with_a_row_limit_is_carried_out_whole(cluster):
    returning = "UPDATE account SET version = version + 1 WHERE account_id = $1 RETURNING version"

    def talk(client):
        answer = client.ask(w.parse(returning), w.bind([KEY]), w.execute("", 1), w.execute("", 1))
        assert answer.ok().rows == [(b"1",)]
        assert client.ask(w.bind([KEY]), w.execute("", 1)).ok().rows == [(b"2",)]
        assert client.ask(w.parse(DEBIT), w.bind([KEY, 1]), w.execute("", 1)).kinds == "12CZ"
        assert client.run(BALANCE, KEY).value == "999"
    both(cluster, talk)


@pytest.mark.parametrize("kind, pack", [(INT8, "!q"), (INT4, "!i"), (21, "!h")])
def test_a_key_in_binary_is_the_same_key(cluster, kind, pack):
    key = KEYS[3]

    def talk(client):
        raw = struct.pack(pack, key)
        answer = client.run("SELECT account_id, owner FROM account WHERE account_id = $1", raw, types=[kind],
                            parameter_formats=[1], result_formats=[1, 0])
        assert answer.ok().rows == [(struct.pack("!q", key), f"owner{key}".encode())]
        assert [column.format for column in answer.of("T")[0].columns] == [1, 0]
        assert client.run(DEBIT, raw, "5", types=[kind], parameter_formats=[1, 0]).tag == "UPDATE 1"
        assert client.run(BALANCE, str(key), types=[kind]).value == "995"
        assert client.run(BALANCE, raw, types=[kind], parameter_formats=[1], result_formats=[1]).rows == [
            (struct.pack("!q", 995),)]
    both(cluster, talk)


def test_values_of_any_bytes_go_through_in_both_formats(cluster):
    def talk(client):
        for owner in ("", "x" * 10_000, "\u00fc\u20ac", "a\nb\tc\\N", None):
            assert client.run("UPDATE account SET owner = $1 WHERE account_id = $2", owner, KEY).tag == "UPDATE 1"
            expected = None if owner is None else owner.encode()
            for code in (0, 1):
                assert client.run("SELECT owner FROM account WHERE account_id = $1", KEY,
                                  result_formats=[code]).rows == [(expected,)]
        blob = bytes(range(256))
        assert client.run("SELECT $2::bytea FROM account WHERE account_id = $1", str(KEY).encode(), blob,
                          parameter_formats=[0, 1], result_formats=[1]).rows == [(blob,)]
    both(cluster, talk)


@pytest.mark.parametrize("sql, parameters, options", [
    (BALANCE, [KEY, 1], {}),
    ("SELECT $1::int + $2::int", [1], {}),
    ("SELECT 1", [1], {}),
    (BALANCE, [KEY], {"parameter_formats": [0, 0]}),
    ("SELECT balance, owner FROM account WHERE account_id = $1", [KEY], {"result_formats": [0, 0, 0]}),
])
def test_wrong_numbers_of_parameters_and_formats_are_protocol_violations(cluster, sql, parameters, options):
    def talk(client):
        client.ask(w.parse(sql), w.bind(parameters, **options), w.execute()).refused("08P01", "I")
        client.ok("BEGIN")
        client.ask(w.parse(sql), w.bind(parameters, **options), w.execute()).refused("08P01", "E")
        client.ok("ROLLBACK")
    both(cluster, talk)


def test_a_key_that_is_not_bound_is_refused(cluster):
    client = cluster.pg_client()
    answer = client.ask(w.parse(BALANCE), w.bind([]), w.execute())
    assert answer.codes in (["08P01"], ["IL027"]) and answer.status == "I", answer
    answer = client.run(BALANCE, "abc")
    assert answer.codes in (["22P02"], ["IL027"]), answer
    assert client.run(BALANCE, b"\0\0\0", types=[INT8], parameter_formats=[1]).codes in (["IL027"], ["08P01"])
    assert client.run(BALANCE, KEY).value == "1000"


def test_a_parameter_that_is_no_value_of_its_type_is_the_backends_error(cluster):
    def talk(client):
        client.run(DEBIT, KEY, "abc").refused("22P02", "I")
        client.run("SELECT $1::date", "2026-13-45").refused("22008", "I")
        client.run("SELECT $1::int4", b"\0\0\0", parameter_formats=[1]).refused("08P01", "I")
        assert client.run(BALANCE, KEY).value == "1000"
    both(cluster, talk)


def test_deallocate_and_discard_reach_prepared_statements_of_the_protocol(cluster):
    def talk(client):
        client.ask(*(w.parse(BALANCE, name) for name in ("a", "b", "c", "Mixed"))).ok()
        assert client.ok("DEALLOCATE a").tag == "DEALLOCATE"
        client.ask(w.bind([KEY], "a")).refused("26000")
        client.query("DEALLOCATE a").refused("26000")
        client.query("DEALLOCATE mixed").refused("26000")
        assert client.ok('DEALLOCATE PREPARE "Mixed"').tag == "DEALLOCATE"
        assert client.ask(w.bind([KEY], "b"), w.execute()).value == "1000"
        assert client.ok("DEALLOCATE ALL").tag == "DEALLOCATE ALL"
        client.ask(w.bind([KEY], "b")).refused("26000")
        client.ask(w.parse(BALANCE, "d"), w.parse("DEALLOCATE d"), w.bind(), w.execute()).ok()
        client.ask(w.bind([KEY], "d")).refused("26000")
        client.ask(w.parse(BALANCE, "e")).ok()
        assert client.ok("DISCARD ALL").tag == "DISCARD ALL"
        client.ask(w.bind([KEY], "e")).refused("26000")
        client.ask(w.parse(BALANCE, "f")).ok()
        assert client.ok("DISCARD PLANS").tag == "DISCARD PLANS"
        assert client.ask(w.bind([KEY], "f"), w.execute()).value == "1000"
        # A name given up may be used again, for something else.
        client.ask(w.parse("SELECT 5", "a")).ok()
        assert client.ask(w.bind([], "a"), w.execute()).value == "5"
    both(cluster, talk)


def test_a_plan_whose_result_type_changed_fails_as_on_a_direct_connection(cluster):
    star = "SELECT * FROM account WHERE account_id = $1"

    def alter(what):
        for shard in (cluster.s0, cluster.s1):
            shard.sql(f"ALTER TABLE account {what}")

    def talk(client):
        use = (w.bind([KEY], "s"), w.describe_portal(), w.execute())
        client.ask(w.parse(star, "s"), w.describe_statement("s"), *use).ok()
        alter("ALTER COLUMN version TYPE bigint")
        try:
            client.ask(*use).refused("0A000", "I")
            client.ask(*use).refused("0A000", "I")
            client.ok("BEGIN")
            client.ask(*use).refused("0A000", "E")
            client.ok("ROLLBACK")
            # What drivers do then.
            answer = client.ask(w.close_statement("s"), w.parse(star, "s"), *use).ok()
            assert answer.of("T")[0].columns[3].type == INT8
            # One that did not change its result goes on.
            assert client.run(BALANCE, KEY).value == "1000"
        finally:
            alter("ALTER COLUMN version TYPE int")
        client.ask(w.close_statement("s")).ok()
        assert client.ask(w.parse(star, "s"), *use).ok().of("T")[0].columns[3].type == INT4
    both(cluster, talk)


def test_a_statement_prepared_in_one_transaction_works_in_the_next_on_any_backend(cluster):
    """Two backends, two clients that keep each other from having the same one twice."""
    one, other = cluster.pg_client(), cluster.pg_client()
    for client in (one, other):
        client.ask(w.parse(BALANCE, "same name"), w.parse(f"{BALANCE} AND $2 = 'x'", f"own {id(client)}")).ok()
    other.ask(w.parse("SELECT 'another text'", "b")).ok()
    one.ask(w.parse("SELECT 'one text'", "b")).ok()
    pids = set()
    for turn in range(20):
        first, second = (one, other) if turn % 2 else (other, one)
        for client in (first, second):
            client.ok("BEGIN")
            assert client.ask(w.bind([KEY], "same name"), w.execute()).ok().value == "1000"
            pids.add(client.value(f"SELECT pg_backend_pid() FROM account WHERE account_id = {KEY}"))
        assert one.ask(w.bind([], "b"), w.execute()).value == "one text"
        assert other.ask(w.bind([], "b"), w.execute()).value == "another text"
        for client in (first, second):
            client.ok("COMMIT")
    assert len(pids) == 2


# -- conversations nobody thought of ---------------------------------------------------------------

TEXTS = [
    (BALANCE, [KEY]), (SERIES, [KEY, 3]), (f"{DEBIT} RETURNING balance", [KEY, 1]), (DEBIT, [KEY, 1]),
    (DEBIT, [KEY, 100_000]), ("", []), ("SELECT 1/$1::int", [0]), ("SELECT $1::text, $2::int", ["a", 5]),
    ("BEGIN", []), ("COMMIT", []), ("ROLLBACK", []), ("SAVEPOINT s", []), ("ROLLBACK TO s", []),
    ("RELEASE s", []), ("SELEC", []), ("SELECT 7", []), ("SHOW datestyle", []),
]
STATEMENTS, PORTALS = ("", "a", "b"), ("", "p", "q")


def random_conversation(dice, orderly):
    """Messages up to a last Sync; most of it makes sense, some of it does not.

    `orderly`: a Query only comes behind a Sync, as drivers send it.
    """
    prepared = {}
    messages = []
    for _ in range(dice.randrange(3, 18)):
        name, portal = dice.choice(STATEMENTS), dice.choice(PORTALS)
        act = dice.choices("PBSDECcHZQ", [5, 8, 2, 2, 8, 1, 1, 1, 5, 2])[0]
        if act == "P":
            sql, parameters = dice.choice(TEXTS)
            prepared[name] = parameters
            messages.append(w.close_statement(name) * dice.randrange(2) + w.parse(sql, name))
        elif act == "B":
            codes = [[], [0], [1]][dice.randrange(3)]
            messages.append(w.bind(prepared.get(name, []), name, portal, result_formats=codes))
        elif act == "E":
            messages.append(w.execute(portal, dice.randrange(4)))
        elif act == "Q":
            sql = dice.choice([sql for sql, parameters in TEXTS if not parameters])
            messages.append(w.sync() * orderly + w.query(sql))
        else:
            messages.append({"S": w.describe_statement(name), "D": w.describe_portal(portal),
                             "C": w.close_statement(name), "c": w.close_portal(portal),
                             "H": w.flush(), "Z": w.sync()}[act])
    return messages + [w.sync(), w.query("ROLLBACK"), w.query("SELECT 'end'")]


@pytest.mark.parametrize("seed", range(8))
def test_conversations_made_at_random_are_answered_as_postgresql_answers_them(cluster, seed):
    for turn in range(25):
        messages = random_conversation(random.Random(seed * 1000 + turn), seed % 2 == 0)

        def talk(client):
            client.send(*messages)
            answer = client.until_ready()
            while not (answer.rows and answer.rows[-1] == (b"end",)):
                answer = client.until_ready()

        try:
            both(cluster, talk)
        except AssertionError as different:
            raise AssertionError(f"conversation {seed * 1000 + turn}: {messages}\n{different}") from None
