"""Statements over all shards on the PostgreSQL listener: what a client sees of them, message by message.

The control is one database with the rows of both shards: every conversation is held with it first.
"""

import struct

import pytest

from support import pgwire as w
from support.scattered import (BALANCE, FIRST_PAGE, GROUPS, INT4, INT8, LARGE, OPTIONS, ORDERED, PAGE, SCATTER, SOME,
                               TEXT, TOTALS, settled)
from support.scattered import module_whole, whole  # noqa: F401  (fixtures)
from support.wait import wait_until

CLUSTER_OPTIONS = OPTIONS


# -- what is answered ----------------------------------------------------------------------------


@pytest.mark.parametrize("sql", [ORDERED, TOTALS, GROUPS, FIRST_PAGE,
                                 ORDERED.replace("LIMIT 30", "LIMIT 0"),
                                 ORDERED.replace("LIMIT 30", "OFFSET 35 LIMIT 30"),
                                 ORDERED.replace("FROM", "FROM only").replace("only account", "account AS a"),
                                 TOTALS + " WHERE account_id < 0"],
                         ids=["ordered", "totals", "groups", "page", "no rows", "offset", "alias", "empty totals"])
def test_a_query_is_answered_as_one_database_would(cluster, whole, sql):
    answer = whole.both(lambda client: client.ok(sql))
    assert answer.kinds == "T" + "D" * len(answer.rows) + "CZ"
    assert answer.tag == f"SELECT {len(answer.rows)}"
    whole.both(lambda client: client.run(sql).ok())
    settled(cluster)


def test_parse_bind_describe_execute_close_and_sync_answer_in_turn(cluster, whole):
    def talk(client):
        for sql, values in ((SOME, [3, 5]), (PAGE, [None, 4])):
            answer = client.ask(w.parse(sql, "s"), w.describe_statement("s"),
                                w.bind(values, "s", "p"), w.describe_portal("p"), w.execute("p"),
                                w.close_portal("p"), w.close_statement("s"))
            assert answer.kinds == "1tT2T" + "D" * values[1] + "C33Z"
            # Without any Describe, and with the statement's alone.
            assert client.ask(w.parse(sql), w.bind(values), w.execute()).kinds == "12" + "D" * values[1] + "CZ"
            assert client.ask(w.parse(sql, "t"), w.describe_statement("t")).kinds == "1tTZ"
            assert client.ask(w.bind(values, "t"), w.execute(), w.bind(values, "t"), w.describe_portal(),
                              w.execute()).ok()
            client.ask(w.close_statement("t"))
        assert client.ask().kinds == "Z"
    whole.both(talk)
    settled(cluster)


def test_a_described_statement_tells_parameter_types_and_no_hidden_columns(cluster, whole):
    def talk(client):
        answer = client.ask(w.parse(SOME, "a"), w.parse(PAGE, "b"), w.parse(ORDERED, "c"), w.parse(GROUPS, "d"),
                            *(w.describe_statement(name) for name in "abcd"))
        assert [message.parts for message in answer.of("t")] == [(INT8, INT8), (TEXT, INT4), (), ()]
        assert [[column.name for column in message.columns] for message in answer.of("T")] == [
            ["account_id", "owner"], ["account_id", "owner", "cursor", "complete", "missing_shards"],
            ["account_id", "owner", "balance"], ["version", "many"]]
    whole.both(talk)


@pytest.mark.parametrize("formats", [[], [0], [1], [1, 0], [0, 1]], ids=str)
def test_results_come_in_the_formats_that_bind_asks_for(cluster, whole, formats):
    def talk(client):
        answer = client.run(SOME, 0, 20, result_formats=formats).ok()
        (columns,) = answer.of("T")
        assert [column.format for column in columns.columns] == (formats * 2 if len(formats) == 1 else formats or [0, 0])
        if formats and len(formats) in (0, 1, 2):
            client.run(GROUPS, result_formats=formats).ok()
        client.ask(w.parse(PAGE), w.bind([None, 9], result_formats=[1]), w.execute()).ok()
    whole.both(talk)


def test_parameters_may_be_binary_typed_and_null(cluster, whole):
    def talk(client):
        values = [struct.pack("!q", 5), struct.pack("!q", 6)]
        assert len(client.run(SOME, *values, types=[INT8, INT8], parameter_formats=[1]).ok().rows) == 6
        assert len(client.run(SOME, "5", values[1], types=[INT8, INT8], parameter_formats=[0, 1]).ok().rows) == 6
        assert len(client.run(SOME, None, 4).ok().rows) == 0
        page = client.run(PAGE, None, struct.pack("!i", 7), types=[TEXT, INT4], parameter_formats=[0, 1]).ok()
        assert len(page.rows) == 7
        assert len(client.run(PAGE, page.rows[-1][2], 40).ok().rows) == 33
    whole.both(talk)


def test_a_prepared_statement_is_used_again_and_again(cluster, whole):
    def talk(client):
        client.ask(w.parse(PAGE, "page"), w.describe_statement("page")).ok()
        seen, cursor = [], None
        while True:
            rows = client.ask(w.bind([cursor, 7], "page"), w.execute()).ok().rows
            if not rows:
                break
            seen += [row[0] for row in rows]
            cursor = rows[-1][2]
        assert len(seen) == len(set(seen)) == 40
        client.ok("DEALLOCATE page")
        client.ask(w.bind([None, 7], "page"), w.execute()).refused("26000")
    whole.both(talk)


def test_backwards_is_the_same_page(cluster, whole):
    back = ("SELECT (item).account_id, cursor FROM"
            " interlock.keyset_page('by_balance', NULL::account, before => $1, page_size => $2)")

    def talk(client):
        first = client.run(PAGE, None, 10).ok().rows
        second = client.run(PAGE, first[-1][2], 10).ok().rows
        assert [row[0] for row in client.run(back, second[0][2], 10).ok().rows] == [row[0] for row in first]
        assert len(client.run(back, second[0][2], 4).ok().rows) == 4
    whole.both(talk)


# -- rounds and pipelines ------------------------------------------------------------------------


def test_a_pipeline_mixes_scatters_with_other_statements(cluster, whole):
    def talk(client):
        answer = client.ask(w.extended("SELECT 1"), w.extended(SOME, [0, 3]), w.extended("SELECT 2"),
                            w.extended(TOTALS), w.extended(BALANCE), w.extended("SELECT 3")).ok()
        assert len(answer.tags) == 6
        assert client.ask(w.extended(SOME, [0, 2]), w.sync(), w.extended(PAGE, [None, 2])).kinds == "12TDDCZ"
        assert client.until_ready().kinds == "12TDDCZ"
    whole.both(talk)
    settled(cluster)


def test_flush_brings_the_answers_so_far(cluster, whole):
    def talk(client):
        client.send(w.parse(SOME, "s"), w.describe_statement("s"), w.flush())
        assert client.until("T").kinds == "1tT"
        client.send(w.bind([0, 4], "s"), w.flush())
        assert client.until("2").kinds == "2"
        client.send(w.describe_portal(), w.flush())
        assert client.until("T").kinds == "T"
        client.send(w.execute(), w.flush())
        assert client.until("C").kinds == "DDDDC"
        assert client.silent()
        assert client.ask().kinds == "Z"
    whole.both(talk)


def test_a_portal_that_is_described_and_never_executed_holds_nothing(cluster, whole):
    client = cluster.pg_client()
    client.send(w.parse(SOME), w.bind([0, 4]), w.describe_portal(), w.flush())
    client.until("T")
    settled(cluster)
    client.send(w.execute(), w.sync())
    assert client.until_ready().kinds == "DDDDCZ"
    assert client.ask(w.parse(SOME), w.bind([0, 4]), w.describe_portal()).kinds == "12TZ"
    settled(cluster)


def test_a_row_limit_suspends_the_portal_and_goes_on(cluster, whole):
    def talk(client):
        bind = w.parse(SOME) + w.bind([0, 10], portal="p") + w.describe_portal("p")
        for steps, kinds in (([4, 4, 4], "DDDDsDDDDsDDC"), ([10, 1], "D" * 10 + "sC"), ([11], "D" * 10 + "C"),
                             ([3, 0], "DDDs" + "D" * 7 + "C"), ([1, 1, 8, 1, 1], "DsDs" + "D" * 8 + "sCC"),
                             ([0, 0], "D" * 10 + "CC"), ([5, -1], "D" * 5 + "s" + "D" * 5 + "C")):
            assert client.ask(bind, *(w.execute("p", step) for step in steps)).kinds == "12T" + kinds + "Z"
        assert client.ask(bind, w.execute("p", 3), w.close_portal("p"), w.extended("SELECT 1")).ok()
        client.ask(bind, w.execute("p", 3), w.close_portal("p"), w.execute("p")).refused("34000")
        # What was not asked for goes with the round.
        client.ask(bind, w.execute("p", 3))
        client.ask(w.execute("p", 3)).refused("34000")
    whole.both(talk)
    settled(cluster)


def test_a_portal_with_rows_left_lives_to_the_end_of_its_transaction(cluster, whole):
    def talk(client):
        client.ok("BEGIN")
        client.ask(w.parse(SOME, "s"), w.bind([0, 10], "s", "p"), w.execute("p", 4)).ok()
        client.ok("SELECT 1")
        assert client.ask(w.execute("p", 4)).kinds == "DDDDsZ"
        assert client.ask(w.describe_portal("p"), w.execute("p", 4)).kinds == "TDDCZ"
        client.ask(w.bind([0, 10], "s", "p")).refused("42P03")
        client.ok("ROLLBACK")
        client.ask(w.execute("p")).refused("34000")
        # In a transaction that has failed it is as dead as anything else.
        client.ok("BEGIN")
        client.ask(w.bind([0, 10], "s", "p"), w.execute("p", 4)).ok()
        client.query("SELECT 1/0").refused("22012", "E")
        client.ask(w.execute("p", 4)).refused("25P02", "E")
        client.ask(w.describe_portal("p")).refused("25P02", "E")
        client.ask(w.bind([0, 10], "s", "q")).refused("25P02", "E")
        client.ok("ROLLBACK")
    whole.both(talk)
    settled(cluster)


def test_what_a_row_limit_leaves_is_kept_within_bounds(cluster, whole):
    client = cluster.pg_client()
    many = w.parse(LARGE) + w.bind(portal="p")  # 8 MB; the router keeps 4
    answer = client.ask(many, w.execute("p", 1), w.execute("p", 1), w.execute("p"))
    assert answer.codes == ["IL037"] and not answer.of("C") and answer.rows
    assert len(client.ask(many, w.execute("p")).ok().rows) == 40
    settled(cluster)
    assert cluster.router.status().buffered < 1000  # what was kept is forgotten


def test_an_error_fails_the_round_and_what_follows_is_skipped(cluster, whole):
    wrong = SCATTER + "SELECT account_id / (account_id - account_id) FROM account ORDER BY account_id LIMIT 3"

    def talk(client):
        answer = client.ask(w.parse(wrong), w.bind(), w.execute(), w.extended(SOME, [0, 2]))
        assert answer.kinds == "12EZ" and answer.codes == ["22012"]
        client.ok("BEGIN")
        client.ask(w.parse(wrong), w.bind(), w.execute()).refused("22012", "E")
        client.query(ORDERED).refused("25P02", "E")
        client.ask(w.parse(SOME)).refused("25P02", "E")
        client.ok("ROLLBACK")
        assert client.ok(ORDERED).status == "I"
    whole.both(talk)
    # A value is read by the shards, when they run the statement: an answer later than PostgreSQL.
    client = cluster.pg_client()
    assert client.ask(w.parse(SOME), w.bind(["no number", 3]), w.execute()).refused("22P02", "I").kinds == "12EZ"
    # In a Query, PostgreSQL describes the columns before it fails; here no shard has to have done so.
    for client in (whole.client(), cluster.pg_client()):
        assert client.query(wrong).refused("22012", "I").kinds.lstrip("T") == "EZ"
    settled(cluster)
