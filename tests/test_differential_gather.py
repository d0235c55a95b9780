"""SELECTs over all shards give what one unsharded database gives, or are refused with a code.

INTERLOCK_DIFF_SEED changes a run.
"""

import os
import random

import pytest

from differential import client, gather
from differential.gather_runner import GatherRunner
from differential.gather_shop import CONTROL, GatherShop
from differential.runner import differs

FIXED_SEED = 20240229
FRESH_SEED = int(os.environ.get("INTERLOCK_DIFF_SEED", random.SystemRandom().randrange(1 << 31)))


@pytest.fixture(scope="module")
def shop(owner, new_folder, router_binary):
    made = GatherShop(new_folder("gather"), owner)
    try:
        made.make()
        made.start_router()
        yield made
    finally:
        made.down()


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
