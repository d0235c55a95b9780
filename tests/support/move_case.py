"""One move that something happens to, under a light load; and the points at which it can be stopped."""

import os

from .router import BINARY, run_interlock

SOAK = bool(os.environ.get("INTERLOCK_SOAK"))
STEPS = run_interlock("move", "--steps").stdout.split() if BINARY.exists() else []
DECIDED = STEPS.index("decided") if "decided" in STEPS else len(STEPS)
MOVED, NEAR, FAR = 0, 2, 1
# Of a move that ended there is nothing to resume or to abort.
POINTS = [f"after-{step}" for step in STEPS[:-1]]
if SOAK:
    POINTS += [f"before-{step}" for step in STEPS]


def decided(point):
    side, _, step = point.partition("-")
    return STEPS.index(step) >= DECIDED + (side == "before")


class MoveCase:
    """Bucket MOVED is about to move from where it is to the other shard, under a light load."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.source = cluster.where(MOVED)
        self.target = cluster.other(MOVED)
        self.command = cluster.arguments(MOVED, self.target)
        cluster.fill(moved=MOVED, near=NEAR, far=FAR)
        self.load = cluster.load(4, pause=0.005)

    def __enter__(self):
        self.load.start()
        return self

    def __exit__(self, kind, *_):
        self.load.__exit__(kind)

    def servers(self, names):
        return [self.cluster.instances[{"source": self.source, "target": self.target, "catalog": "cat"}[name]]
                for name in names.split(" and ")]

    def crash(self, names):
        """The servers' processes are killed and started again."""
        for server in self.servers(names):
            server.kill()
        for server in self.servers(names):
            server.launch()
        for server in self.servers(names):
            server.wait_for_it()

    def stopped_mover(self, point):
        return self.cluster.mover(*self.command, stop=point).stopped()

    def resume(self):
        return self.cluster.move(MOVED, self.target)

    def settled(self, owner):
        """Clients get on, and the end is as it has to be."""
        self.load.progress(3)
        self.load.stop()
        assert self.cluster.where(MOVED) == owner
        self.cluster.assert_settled()
        self.load.history.check(self.cluster.rows())


