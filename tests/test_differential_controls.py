"""The differential suite tested itself: what it compares, what it claims, what it finds. No router needed."""

import os
import random

import pytest

from differential import client, generate
from differential.schema import BY_NAME
from differential.naive import NaiveForwarder
from differential.runner import Runner, differs
from differential.shop import CONTROL, Shop
from differential.shrink import shrink
from differential.template import Environment, fill

FIXED_SEED = 20240229
FRESH_SEED = int(os.environ.get("INTERLOCK_DIFF_SEED", random.SystemRandom().randrange(1 << 31)))


@pytest.fixture(scope="module")
def shop(owner, new_folder, router_binary):
    made = Shop(new_folder("differential-controls"), owner)
    try:
        yield made.make()
    finally:
        made.down()


def test_two_unsharded_databases_agree(shop):
    """What is compared hangs neither on plans nor on the order rows lie in."""
    print(f"seed {FRESH_SEED}")
    runner = Runner(shop, lambda: shop.plain_client(CONTROL), sharded=False)
    try:
        runner.run(FRESH_SEED, 4000)
    finally:
        runner.close()
    assert not runner.faults, runner.told()
    assert runner.statistics.failed < 0.2 * runner.statistics.accepted, "too many of the statements are errors"


def on_one_shard(shop, rng, border, count):
    """(template, text, answer of the unsharded database, answer of the shard the keys point at)."""
    plain, shards = shop.plain_client(), {side: shop.plain_client(side) for side in ("s0", "s1")}
    shop.reload("plain", "s0", "s1")
    try:
        for _ in range(count):
            template = generate.make(rng, shop.world, border, "select")
            if template.shape_only:
                continue
            environment = Environment(rng, shop.world)
            text = fill(rng, template, environment).text
            yield template, text, *(one.answer(client.query(text)).results[0] for one in (plain, shards[environment.side]))
    finally:
        for one in (plain, *shards.values()):
            one.close()


def test_what_is_called_provable_is_on_one_shard(shop):
    """The floors of acceptance rest on this; and the statements have to find rows to say anything."""
    print(f"seed {FRESH_SEED}")
    wrong, judged, with_rows = [], 0, 0
    for template, text, expected, got in on_one_shard(shop, random.Random(FRESH_SEED), 0, 2000):
        if template.level > 2 or expected.error:
            continue
        judged += 1
        with_rows += bool(expected.rows)
        difference = differs(got, expected, template)
        if difference:
            wrong.append(f"{difference}, level {template.level}: {text}")
    assert not wrong, "\n".join(wrong)
    assert judged > 1000 and with_rows > 0.5 * judged


def test_most_traps_would_show(shop):
    """A statement that only looks pinned has to give another answer on the shard, often enough to be found."""
    traps = shown = 0
    for template, _, expected, got in on_one_shard(shop, random.Random(FIXED_SEED), 1, 2000):
        if "trap" in template.constructs and not expected.error:
            traps += 1
            shown += differs(got, expected, template) is not None
    assert traps > 800 and shown > 0.2 * traps, (traps, shown)


def test_a_naive_forwarder_is_found_wrong(shop):
    runner = Runner(shop, lambda: NaiveForwarder(shop), sessions=1)
    try:
        runner.run(FIXED_SEED, 400)
    finally:
        runner.close()
    kinds = {fault.what for fault in runner.faults}
    assert {"rows", "command tag"} & kinds and len(runner.faults) >= 8, kinds


def test_rows_on_the_wrong_shard_are_found(shop):
    """Behind the guard's back: a row moved, a row lost, a row on both shards."""
    runner = Runner(shop, shop.plain_client, sessions=1)
    runner.seed = runner.number = 0
    steps = ["UPDATE orders SET note = 'stray' WHERE (account_id, order_id) IN (SELECT account_id, order_id FROM orders LIMIT 1)",
             "DELETE FROM docs WHERE doc_id = 'doc-1'"]
    try:
        assert runner.check()
        for text in steps:
            for side in ("s0", "s1"):
                shop.loaders[side].execute(text)
            assert not runner.check(), text
        key = shop.world.keys("users", "s1")[0]
        shop.unguarded("s0", BY_NAME["users"], f"INSERT INTO users (user_id) VALUES ('{key}')")
        assert not runner.check()
        assert runner.check()
    finally:
        runner.close()


def test_a_failing_statement_is_made_small():
    text = "SELECT a.x + 1.5 AS \"odd name\", 'it''s' FROM t AS a JOIN (SELECT * FROM u WHERE bad = 1) AS b ON true -- why"
    assert shrink(text, lambda some: "bad" in some and some.startswith("SELECT") and some.count("(") == some.count(")")) == "SELECT bad"
