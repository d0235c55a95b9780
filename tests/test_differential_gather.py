"""SELECTs over all shards give what one unsharded database gives, or are refused with a code.

INTERLOCK_DIFF_STATEMENTS (20000) and INTERLOCK_DIFF_SEED (of the fresh half) change a run.
"""

import os
import random

import pytest

from differential import cases, client, gather
from differential.gather_runner import GatherRunner
from differential.gather_shop import CONTROL, GROUPS, GatherShop
from differential.runner import differs
from support.router import SLACK

STATEMENTS = int(os.environ.get("INTERLOCK_DIFF_STATEMENTS", 20000)) // 4 // SLACK
FIXED_SEED = 20240229
FRESH_SEED = int(os.environ.get("INTERLOCK_DIFF_SEED", random.SystemRandom().randrange(1 << 31)))
FLOOR = 0.99    # of the statements made to be answerable


@pytest.fixture(scope="module")
def shop(owner, new_folder, router_binary):
    made = GatherShop(new_folder("gather"), owner)
    try:
        made.make()
        made.start_router()
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("seed", [FIXED_SEED, FRESH_SEED], ids=["fixed", "fresh"])
def test_generated_statements_over_all_shards_give_what_an_unsharded_database_gives(shop, seed):
    print(f"seed {seed}")
    runner = GatherRunner(shop, shop.router_client, random.Random(seed))
    try:
        runner.run(STATEMENTS // 2, seed)
    finally:
        runner.close()
    print(runner.summary())
    assert not runner.faults, runner.told() + "\n" + runner.summary()
    for kind in ("ordered", "grouped", "aggregate"):
        assert runner.asked[kind] > STATEMENTS // 40
        assert runner.share(kind) >= FLOOR, f"of {kind} only {runner.share(kind):.1%} were answered\n{runner.summary(40)}"
    assert runner.share("refused") == 0.0, f"something that has no exact answer was answered\n{runner.summary()}"


@pytest.mark.parametrize("way", ["simple", "extended", "binary"])
def test_hand_written_statements(shop, way):
    runner = GatherRunner(shop, shop.router_client, random.Random(FIXED_SEED))
    try:
        wrong = [runner.case(expectation, text, way != "simple", way == "binary") for expectation, text in cases.load("gather")]
    finally:
        runner.close()
    wrong = list(filter(None, wrong))
    assert not wrong, f"{len(wrong)} statements:\n" + "\n".join(wrong)


INT2, INT4, INT8, TEXT, NUMERIC = 21, 23, 20, 25, 1700
# text, values, whether it has to be answered
WITH_PARAMETERS = [
    ("SELECT owner, no FROM things WHERE no > $1 ORDER BY owner, no LIMIT $1", [7], True),
    ("SELECT owner, no FROM things ORDER BY owner, no LIMIT $1 OFFSET $1", [7], True),
    ("SELECT owner, no FROM things ORDER BY owner, no LIMIT $2 OFFSET $1", [7, 3], True),
    ("SELECT owner, no FROM things ORDER BY owner, no LIMIT $1 OFFSET $2", [7, None], True),
    ("SELECT owner, no FROM things ORDER BY owner, no OFFSET $1 FETCH FIRST ($2) ROWS ONLY", [7, 3], True),
    ("SELECT owner, no FROM things ORDER BY owner, no LIMIT $1", [None], False),
    ("SELECT owner, no FROM things ORDER BY owner, no LIMIT $1", [-1], False),
    ("SELECT owner, no FROM things ORDER BY owner, no LIMIT $1::integer", [5], False),
    ("SELECT owner, no FROM things WHERE i2 = $1 ORDER BY owner, no LIMIT $1 + 1", [7], False),
    ("SELECT owner, no, $1::integer FROM things ORDER BY no % ($1 + 1), owner, no LIMIT 50", [6], False),
    ("SELECT no % $1, count(*), sum(no % $1) FROM things GROUP BY no % $1 ORDER BY no % $1", [7], False),
    ("SELECT no % $1::integer, count(*), sum($1::integer * no) FROM things GROUP BY 1 ORDER BY 1 DESC LIMIT $2 OFFSET $1", [3, 2], False),
    ("SELECT sum(no + $1), count(*) FILTER (WHERE no > $2), avg($1 * no) FROM things", [3, 100], True),
    ("SELECT count(*) FROM things WHERE no BETWEEN $2 AND $1", [30, 5], True),
    ("SELECT sum($1) FROM things", [3], False),
    ("SELECT count($1), owner FROM things GROUP BY owner", [3], False),
    ("SELECT b, count(*) FROM things GROUP BY b ORDER BY b LIMIT $1", [2], True),
    ("SELECT b, count(*) FROM things GROUP BY b ORDER BY b LIMIT $1 OFFSET $2", [None, 1], False),
    ("SELECT owner, no FROM things ORDER BY $1, owner, no LIMIT 3", [1], False),
]


@pytest.mark.parametrize("kind", [0, INT2, INT4, INT8, TEXT, NUMERIC, "binary int2", "binary int4", "binary int8"])
def test_parameters_mean_the_same_wherever_they_stand(shop, kind):
    """Also where one stands in two places, whatever it is declared as, in text and in binary."""
    runner = GatherRunner(shop, shop.router_client, random.Random(FIXED_SEED))
    binary = {"binary int2": (INT2, 2), "binary int4": (INT4, 4), "binary int8": (INT8, 8)}.get(kind)
    try:
        for text, values, claimed in WITH_PARAMETERS:
            encoded = [None if value is None else value.to_bytes(binary[1], "big", signed=True) if binary else str(value).encode()
                       for value in values]
            data = (client.parse("", text, [binary[0] if binary else kind] * len(values)) +
                    client.bind("", "", encoded, [1] if binary else []) + client.describe(b"P", "") + client.execute() + client.SYNC)
            statement = gather.Statement(text, [], 1 if claimed and kind not in (TEXT, NUMERIC) else 3, ordered="ORDER BY" in text)
            runner.compare(runner.sessions[1], statement, data, f"{text} {values} as {kind}", FIXED_SEED, 0)
    finally:
        runner.close()
    assert not runner.faults, runner.told()
    assert not runner.refused, runner.summary()


def answers(shop, text):
    """(the router's result, the unsharded database's)"""
    found = []
    for connect in (shop.router_client, shop.plain_client):
        one = connect()
        found.append(one.answer(client.query(gather.HINT + text)).results[-1])
        one.close()
    return found


def test_thousands_of_groups_are_combined_in_several_rounds(shop):
    text = "SELECT g, count(*), sum(v), avg(v), sum(w), avg(w), avg(at), min(v), max(at) FROM many GROUP BY g"
    for tail in ("", " ORDER BY g DESC LIMIT 5000 OFFSET 3000"):
        got, expected = answers(shop, text + tail)
        assert len(expected.rows) == (5000 if tail else GROUPS)
        assert differs(got, expected, gather.Statement("", [], ordered=bool(tail))) is None, str(got.error)


def test_more_groups_than_the_budget_are_refused_before_the_first_row(shop):
    for text in ("SELECT id, count(*) FROM many GROUP BY id", "SELECT id, sum(w) FROM many GROUP BY id ORDER BY id LIMIT 10001"):
        got, expected = answers(shop, text)
        assert got.error.refusal == "ROW_BUDGET" and not got.rows and expected.error is None
    got, expected = answers(shop, "SELECT id, sum(w) FROM many GROUP BY id ORDER BY id LIMIT 100 OFFSET 9000")
    assert differs(got, expected, gather.Statement("", [], ordered=True)) is None and len(got.rows) == 100


def test_what_overflows_only_in_sum_is_the_error_an_unsharded_database_gives(shop):
    homes = dict(zip(shop.homes("brims", shop.rows["brims"]), (row[0] for row in shop.rows["brims"])))
    assert len(homes) == 3
    one_each = ", ".join(map(str, homes.values()))
    for column, sqlstate in (("n", "22003"), ("span", "22008"), ("cash", "22003")):
        for function in ("sum", "avg") if column != "cash" else ("sum",):
            text = f"SELECT {function}({column}), count(*) FROM brims WHERE id + 0 IN ({one_each})"
            got, expected = answers(shop, text)
            assert differs(got, expected) is None, f"{text}: {got.error or got.rows} instead of {expected.error or expected.rows}"
            assert (got.error.sqlstate, got.error.message) == (sqlstate, expected.error.message)
    client_ = shop.router_client()
    assert client_.answer(client.query(gather.HINT + f"SELECT sum(n) FROM brims WHERE id + 0 IN ({one_each})")).error
    assert client_.answer(client.query(gather.HINT + "SELECT count(*) FROM brims")).results[0].rows  # the connections serve on
    client_.close()


def test_nothing_goes_to_all_shards_unless_it_is_allowed(shop):
    router = shop.router_client()
    try:
        for text in ("SELECT count(*) FROM things", "SELECT owner, no FROM things ORDER BY owner, no LIMIT 5"):
            for wrapped in (text, f"/* scatter */ {text}"):
                error = router.answer(client.query(wrapped)).error
                assert error.refusal == "R10" and "scatter" in error.hint, str(error)
            assert router.answer(client.query(f"{text} /* interlock: scatter */")).error.refusal == "R01"
            assert router.answer(client.query(gather.HINT + text)).error is None
    finally:
        router.close()


def test_two_unsharded_databases_agree(shop):
    """What is compared hangs neither on plans nor on the order rows lie in."""
    print(f"seed {FRESH_SEED}")
    runner = GatherRunner(shop, lambda: shop.plain_client(CONTROL), random.Random(FRESH_SEED))
    try:
        runner.run(1500, FRESH_SEED, refused=False)
    finally:
        runner.close()
    assert not runner.faults, runner.told()
    assert runner.with_rows > 800 and sum(runner.errors.values()) < 100, runner.summary()


def test_one_shard_alone_is_found_wrong(shop):
    """A control: what would pass if rows, strays or groups of other shards did not matter."""
    runner = GatherRunner(shop, lambda: shop.plain_client("s0"), random.Random(FIXED_SEED))
    try:
        runner.run(120, FIXED_SEED)
    finally:
        runner.close()
    assert len(runner.faults) >= 40 and {"rows", "command tag"} & {fault.what for fault in runner.faults}, runner.told()


class Naive:
    """Adds up, by hand, what each shard says of a plain count; the strays are counted too."""

    def __init__(self, shop):
        self.shards = [shop.plain_client(name) for name in ("s0", "s1", "s2")]

    def count(self, table):
        answers = [shard.answer(client.query(f"SELECT count(*) FROM {table}")) for shard in self.shards]
        return sum(int(answer.results[0].rows[0][6:]) for answer in answers)


def test_the_strays_would_show(shop):
    plain = shop.plain_client().answer(client.query("SELECT count(*) FROM things")).results[0].rows[0][6:]
    assert Naive(shop).count("things") > int(plain) == len(shop.rows["things"])


def test_a_difference_of_one_byte_or_of_the_order_is_seen(shop):
    one, two = (shop.plain_client().answer(client.query("SELECT owner, no FROM things ORDER BY owner, no LIMIT 5")).results[0]
                for _ in range(2))
    statement = gather.Statement("", [], ordered=True)
    assert differs(one, two, statement) is None
    two.rows[0], two.rows[1] = two.rows[1], two.rows[0]
    assert differs(one, two, statement) == "order of rows"
    two.rows[0] = two.rows[0][:-1] + b"?"
    assert differs(one, two, statement) == "rows"
    two.fields[0] = ("other", *two.fields[0][1:])
    assert differs(one, two, statement) == "columns"
