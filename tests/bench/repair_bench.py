#!/usr/bin/python3
"""How fast `interlock repair` compares and mends; as one JSON object.

Three shards and an index database, each an instance of its own, and a million orders. Rows a second of a dry run over
all of it with ranges of several sizes, and of one merchant of a thousand; then of a dry run and of --apply when every
tenth entry is missing. For comparison, a plain read of the same columns of all four tables by COPY, one after the other.

The extension has to be installed in the server that PG_CONFIG names; INTERLOCK_BIN names the router.

    repair_bench.py [--rows N]
"""

import argparse
import json
import time

from bench_cluster import SHARD_SETTINGS, instances_folder
from support.indexed import ENTRIES, INDEX, IndexedCluster

LISTED = "order_id, user_id, merchant_id, created_at"


class Filled(IndexedCluster):
    """Rows made by the shards themselves, entries by a backfill."""

    def __init__(self, base, owner, rows):
        super().__init__(base, owner, rows=[], shard_settings={**SHARD_SETTINGS, "shared_buffers": "128MB"})
        self.samples, self.rows_wanted = [], rows

    def fill(self, instance, dbname, *tables):
        pass

    def load_rows(self):
        for shard in self.shards:
            with self.instances[shard].connect() as connection:
                connection.execute("SET session_replication_role = replica")
                connection.execute(
                    "INSERT INTO orders (order_id, user_id, merchant_id, created_at, quantity, status)"
                    " SELECT g, u, g %% 1000, '2024-05-01'::timestamptz + g %% 7200 * interval '1 second', 1, 'new'"
                    " FROM generate_series(1::bigint, %s) g, LATERAL (SELECT g * 7919 %% 30000 AS u) x"
                    " WHERE interlock.owned('accounts', u)", (self.rows_wanted,))
                connection.execute("VACUUM ANALYZE orders")
        self.index("backfill", INDEX, timeout=3600)
        self.idx.sql(f"VACUUM ANALYZE {ENTRIES}")

    def measure(self, *arguments, expect=0):
        done = self.index(INDEX, "--json", "--restart", *arguments, command="repair", check=False, timeout=3600)
        assert done.returncode == expect, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        return {"rows": report["scanned"], "differences": report["missing"] + report["stale"], "mended": report["mended"],
                "seconds": report["seconds"], "rows_per_second": round(report["scanned"] / report["seconds"])}

    def read(self):
        """The same rows and entries, read by a client that does nothing with them."""
        began, read = time.monotonic(), 0
        for name, table in [*((shard, "orders") for shard in self.shards), ("idx", ENTRIES)]:
            with self.instances[name].connect() as connection:
                with connection.cursor().copy(f"COPY (SELECT {LISTED} FROM {table}) TO STDOUT") as copy:
                    for chunk in copy:
                        read += len(chunk)
        seconds = time.monotonic() - began
        return {"bytes": read, "seconds": round(seconds, 3), "rows_per_second": round(self.rows_wanted / seconds)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with instances_folder() as (folder, owner):
        cluster = Filled(folder, owner, options.rows)
        try:
            cluster.make()
            cluster.load_rows()
            result = {"rows": options.rows, "plain_read": cluster.read(),
                      "dry_run": {str(chunk): cluster.measure("--chunk", chunk) for chunk in (1000, 5000, 20000)},
                      "scope": cluster.measure("--scope", '{"merchant_id": 3}')}
            cluster.idx.sql(f"DELETE FROM {ENTRIES} WHERE order_id % 10 = 0")
            result["tenth_missing"] = {"dry_run": cluster.measure(expect=3), "apply": cluster.measure("--apply")}
            print(json.dumps(result, indent=1))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
