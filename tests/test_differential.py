"""Whatever the router accepts does what one unsharded database does; what is refused does nothing.

INTERLOCK_DIFF_STATEMENTS (20000) and INTERLOCK_DIFF_SEED (of the fresh half) change a run. To look at a
seed again: cd tests; /usr/bin/python3 -m differential --seed S.
"""

import os
import random

import pytest

from differential import cases
from differential.runner import CaseRunner, Runner
from differential.shop import Shop
from support.router import SLACK

STATEMENTS = int(os.environ.get("INTERLOCK_DIFF_STATEMENTS", 20000)) // SLACK
FIXED_SEED = 20240229
FRESH_SEED = int(os.environ.get("INTERLOCK_DIFF_SEED", random.SystemRandom().randrange(1 << 31)))
# Of the statements that are on one shard by construction; level 2 takes a chain of thought to see it.
FLOOR = {1: 1.0, 2: 0.97}


@pytest.fixture(scope="module")
def shop(owner, new_folder, router_binary):
    made = Shop(new_folder("differential"), owner)
    try:
        made.make()
        made.start_router()
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("seed", [FIXED_SEED, FRESH_SEED], ids=["fixed", "fresh"])
def test_generated_statements_do_what_an_unsharded_database_does(shop, seed):
    print(f"seed {seed}")
    runner = Runner(shop, shop.router_client)
    try:
        runner.run(seed, STATEMENTS // 2)
    finally:
        runner.close()
    print(runner.summary())
    assert not runner.faults, runner.told()
    for level, floor in FLOOR.items():
        share = runner.statistics.share(level)
        assert share >= floor, f"of the provable statements (level {level}) only {share:.1%} were accepted\n{runner.summary(40)}"


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
@pytest.mark.parametrize("side", ["s0", "s1"])
@pytest.mark.parametrize("group", ["reads", "writes", "refused"])
def test_hand_written_statements(shop, group, side, extended):
    runner = CaseRunner(shop, shop.router_client, sessions=1)
    names = cases.keys(shop.world, side, shop.rows)
    wrong = []
    try:
        for expectation, statement in cases.load(group):
            statement = cases.filled(statement, names)
            if extended and "; " in statement.strip().rstrip(";"):
                continue
            session = runner.sessions[0]
            found = runner.case(session, expectation, statement, extended=extended)
            if found:
                wrong.append(found)
        if not runner.check():
            wrong += map(str, runner.faults)
    finally:
        runner.close()
    assert not wrong, f"{len(wrong)} statements:\n" + "\n".join(wrong)


@pytest.mark.parametrize("side", ["s0", "s1"])
def test_hand_written_sequences(shop, side):
    runner = CaseRunner(shop, shop.router_client, sessions=1)
    names = cases.keys(shop.world, side, shop.rows)
    wrong = []
    try:
        for script in cases.sequences():
            context = []
            for expectation, statement in script:
                statement = cases.filled(statement, names)
                found = runner.case(runner.sessions[0], expectation, statement, context)
                context.append(statement)
                if found:
                    wrong.append(f"{found}\n    after {context[:-1]}")
                    break
            runner.replace(runner.sessions[0])
        if not runner.check():
            wrong += map(str, runner.faults)
    finally:
        runner.close()
    assert not wrong, f"{len(wrong)} sequences:\n" + "\n".join(wrong)
