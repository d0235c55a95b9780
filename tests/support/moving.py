"""A cluster whose buckets are moved under load: the tables of support/history.py, the catalog on an instance of its own."""

from . import settled
from .cluster import Cluster
from .history import DECLARED, TABLES, Rows
from .load import Load
from .moves import Mover, move_to_its_end
from .placement import keys_in_bucket

# A subscription that lost its source looks for it again at once.
SETTINGS = {"wal_retrieve_retry_interval": "100ms"}
KEYS = 6


class MovingCluster(Cluster):
    """Shards s0, s1, ... of 16 buckets, dealt out in turn. `groups` are the load's: name -> keys of one bucket."""

    def __init__(self, base, owner, *, shard_settings=None, router_settings=None, **options):
        options.setdefault("separate_catalog", True)
        super().__init__(base, owner, table=TABLES, shard_settings={**SETTINGS, **(shard_settings or {})},
                         router_settings=router_settings or {"pg": {}}, **options)
        self.movers = []

    def declare(self, catalog):
        for table, version in DECLARED.items():
            catalog.execute("SELECT interlock.declare_table(%s, 'accounts', 'account_id', %s)", (table, version))

    # -- moving ----------------------------------------------------------------------------------

    def catalog_conninfo(self):
        return self.catalog.conninfo("app", "postgres")

    @staticmethod
    def arguments(bucket, to):
        return ("--keyspace", "accounts", "--bucket", bucket, "--to", to)

    def mover(self, *arguments, stop=None, env=None):
        """A process `interlock move` with these arguments, killed at the end of the test if it still is there."""
        mover = Mover(self.catalog_conninfo(), *arguments, stop=stop, env=env, log=self.base / f"mover{len(self.movers)}.log")
        self.movers.append(mover)
        return mover

    def moving(self, bucket, to, *arguments, **options):
        return self.mover(*self.arguments(bucket, to), *arguments, **options)

    def move(self, bucket, to, *arguments, expect=0, env=None):
        """`interlock move` to its end."""
        return move_to_its_end(self.catalog_conninfo(), *self.arguments(bucket, to), *arguments, expect=expect, env=env)

    def abort(self, move=None, expect=0):
        return move_to_its_end(self.catalog_conninfo(), "--abort", move or self.move_id(), expect=expect)

    def clean(self, move=None):
        """Ends a move that keeps its source's rows."""
        return move_to_its_end(self.catalog_conninfo(), "--clean", move or self.move_id())

    def move_id(self):
        """Of the one move under way."""
        ((move,),) = self.catalog.sql("SELECT id::text FROM interlock.moves WHERE finished IS NULL")
        return move

    def step(self):
        """The last recorded step of the one move under way."""
        return self.catalog.value("SELECT step FROM interlock.moves WHERE finished IS NULL")

    def where(self, bucket):
        return settled.routes(self)[bucket]

    def other(self, bucket):
        """Where a bucket of two shards can be moved."""
        return next(shard for shard in self.shards if shard != self.where(bucket))

    def states(self, bucket):
        return settled.states(self, bucket)

    # -- load ------------------------------------------------------------------------------------

    def fill(self, **groups):
        """The tables hold the groups' accounts and nothing else; a group is the number of a bucket, or keys."""
        self.groups = {name: keys_in_bucket(keys, KEYS) if isinstance(keys, int) else keys for name, keys in groups.items()}
        Load.fill(self, self.groups)
        return self.groups

    def load(self, clients=4, **options):
        return Load(self, self.groups, clients, **options)

    def rows(self):
        return Rows.read(self)

    def assert_settled(self):
        settled.assert_settled(self)

    def end_test(self):
        for mover in self.movers:
            if mover.running():
                mover.kill()
        super().end_test()

    def restore(self):
        """All shards run, no move is under way, and each bucket is where it began: for clusters that tests share."""
        for instance in self.instances.values():
            if instance.process.poll() is not None:
                instance.start()
        for (move,) in self.catalog.sql("SELECT id::text FROM interlock.moves WHERE finished IS NULL"):
            for way in ("--abort", "--resume", "--clean"):
                move_to_its_end(self.catalog_conninfo(), way, move, expect=None)
                if not self.catalog.value("SELECT count(*) FROM interlock.moves WHERE id::text = %s AND finished IS NULL", move):
                    break
        for bucket, shard in sorted(settled.routes(self).items()):
            if shard != (home := self.shards[bucket % len(self.shards)]):
                self.move(bucket, home)
