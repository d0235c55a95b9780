"""Runs the suite by hand.

    cd tests; /usr/bin/python3 -m differential [--statements N] [--seed S] [--against router|control|naive]
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import support  # noqa: F401  (puts scripts/ on the path)
from localcluster.owner import instance_owner
from support import template

from .naive import NaiveForwarder
from .runner import Runner
from .shop import CONTROL, Shop


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--statements", type=int, default=20000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--against", choices=("router", "control", "naive"), default="router")
    parser.add_argument("--refused", type=int, default=12, help="how many refused provable statements to show")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    owner = instance_owner()
    base = Path(tempfile.mkdtemp(prefix="interlock-differential-", dir="/dev/shm"))
    base.chmod(0o755)
    owner.own(base)
    template.use_folder(base)
    shop = Shop(base, owner)
    try:
        shop.make()
        if options.against == "router":
            shop.start_router()
        connect = {"router": shop.router_client, "control": lambda: shop.plain_client(CONTROL),
                   "naive": lambda: NaiveForwarder(shop)}[options.against]
        runner = Runner(shop, connect, sharded=options.against != "control")
        began = time.monotonic()
        runner.run(seed, options.statements)
        seconds = time.monotonic() - began
        runner.close()
        print(f"seed {seed}: {seconds:.1f} s, {runner.statistics.statements / seconds:.0f} statements a second")
        print(runner.told())
        print(runner.summary(options.refused))
        return 1 if runner.faults else 0
    finally:
        shop.down()
        shutil.rmtree(base)


if __name__ == "__main__":
    sys.exit(main())
