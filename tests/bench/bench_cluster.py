"""What the Python benchmarks share: a folder for instances, a cluster for load, processes' CPU time."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support import ROOT  # noqa: E402
from localcluster.owner import instance_owner  # noqa: E402
from support import placement, template  # noqa: E402
from support.cluster import EVEN, ODD, Cluster  # noqa: E402

TABLES = "".join(f"""
CREATE TABLE {name} (account_id bigint PRIMARY KEY, owner text,
                     balance bigint CHECK (balance >= 0), version int) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO app;
""" for name in ("account", "ledger"))

# Nothing waits for the disk: what is compared is the way to the row, and a slow disk would hide it.
SHARD_SETTINGS = {"synchronous_commit": "off", "shared_buffers": "128MB", "autovacuum": "off",
                  "checkpoint_timeout": "1h", "max_wal_size": "4GB"}


@contextlib.contextmanager
def instances_folder():
    """(folder, owner): a place for instances that their user can reach; removed at the end."""
    owner = instance_owner()
    folder = Path(tempfile.mkdtemp(prefix="interlock-bench-", dir="/tmp"))
    folder.chmod(0o755)
    owner.own(folder)
    template.use_folder(folder)
    try:
        yield folder, owner
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class BenchCluster(Cluster):
    """The reference cluster, and a table `ledger` whose only bucket is on s0: every key from 1 on is
    there, so that pgbench can ask s0 for the same rows directly."""

    def __init__(self, base, owner, router_settings=None):
        settings = {"log": {"level": "info"}, "pool": {"size": 8}, **(router_settings or {})}
        super().__init__(base, owner, table=TABLES, shard_settings=SHARD_SETTINGS, router_settings=settings)

    def describe(self):
        super().describe()
        with self.catalog.connect() as catalog:
            catalog.execute("SELECT interlock.create_keyspace('lone', 'bigint', 1)")
            catalog.execute("SELECT interlock.declare_table('ledger', 'lone', 'account_id', 'version')")
            catalog.execute("SELECT interlock.assign('lone', ARRAY[0], 's0')")
        return self

    def load(self, keys):
        """Rows 1 to `keys` in both tables, each on its shard."""
        insert = "INSERT INTO {} SELECT k, 'owner ' || k, 1000000000, 0 FROM unnest(%s::bigint[]) k"
        for shard, buckets in (("s0", EVEN), ("s1", ODD)):
            mine = [key for key in range(1, keys + 1) if placement.bucket_of(key) in buckets]
            self.instances[shard].sql(insert.format("account"), mine)
            if shard == "s0":
                self.instances[shard].sql(insert.format("ledger"), list(range(1, keys + 1)))
            self.instances[shard].sql("VACUUM ANALYZE")
        return self


def cpu_seconds(pid):
    """User and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def build(*targets):
    """Makes benchmark programs below build/."""
    subprocess.run(["make", "--no-print-directory", "-s", "-C", ROOT / "router",
                    *(f"../build/{target}" for target in targets)], check=True, stdout=sys.stderr)
    return [ROOT / "build" / target for target in targets]
