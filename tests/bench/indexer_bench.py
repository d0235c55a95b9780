#!/usr/bin/python3
"""How fast `interlock index` is, on one machine; as one JSON object.

drain: so many records on one shard, brought into the index by one consumer, then by two (new records each time):
records a second, and the rate in the last tenth of them compared with that in the first; with one consumer also
beside an old snapshot on the shard, held all the while.
lag: from the change to the moment its entry is written, with two writers that make a thousand single-row
transactions a second together; and what that costs the consumer.
backfill: rows a second.

    indexer_bench.py [--quick] [--records N] [--seconds N]
"""

import argparse
import contextlib
import json
import os
import threading
import time

from bench_cluster import SHARD_SETTINGS, instances_folder
from support.indexed import ENTRIES, INDEX, IndexedCluster
from support.wait import wait_until

SETTINGS = {**SHARD_SETTINGS, "shared_buffers": "256MB", "jit": "off"}
ROWS = ("INSERT INTO orders (order_id, user_id, merchant_id, created_at, quantity, status)"
        " SELECT i, (%s::bigint[])[1 + i %% 50], i %% 10, '2024-05-01'::timestamptz + i * '1 s'::interval, 1, 'new'"
        " FROM generate_series(%s, %s) i")


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, cluster, options):
        self.cluster, self.options = cluster, options
        self.next_id = 10_000_000

    def users(self, shard):
        return [user for user in range(1, 3000) if self.cluster.shard_name(user) == shard][:50]

    def write(self, count):
        first, self.next_id = self.next_id, self.next_id + count
        self.cluster.instances["s0"].sql(ROWS, self.users("s0"), first, first + count - 1)

    def applied(self):
        return self.cluster.idx.value("SELECT records FROM interlock.index_progress WHERE shard = 's0'") or 0

    def drain(self, consumers, old_snapshot=False):
        count = self.options.records
        self.write(count)
        self.cluster.idx.sql(f"VACUUM ANALYZE {ENTRIES}")
        start = self.applied()
        with contextlib.ExitStack() as stack:
            if old_snapshot:
                holder = stack.enter_context(self.cluster.instances["s0"].connect(autocommit=False))
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT 1 FROM orders LIMIT 1")
            running = [self.cluster.consumer() for _ in range(consumers)]
            samples = [(time.monotonic(), 0)]
            while samples[-1][1] < count:
                time.sleep(0.25)
                done = self.applied() - start
                if done > samples[-1][1]:
                    samples.append((time.monotonic(), done))
            for consumer in running:
                consumer.stop()
        tenth = count / 10
        early = next(sample for sample in samples if sample[1] >= tenth)
        late = [sample for sample in samples if sample[1] <= count - tenth][-1]
        rate = {"first_tenth": early[1] / (early[0] - samples[0][0]),
                "last_tenth": (samples[-1][1] - late[1]) / (samples[-1][0] - late[0])}
        return {"records": count, "per_second": round(count / (samples[-1][0] - samples[0][0])),
                **{name: round(value) for name, value in rate.items()}}

    def lag(self):
        consumer = self.cluster.consumer()
        wait_until(lambda: "consuming" in consumer.log_text(), 20)
        self.cluster.drained()
        first, self.next_id = self.next_id, self.next_id + 10_000_000
        end = time.monotonic() + self.options.seconds
        made = []

        def write(shard, start):
            keys, count, began = self.users(shard), 0, time.monotonic()
            with self.cluster.instances[shard].connect() as connection:
                while time.monotonic() < end:
                    connection.execute("INSERT INTO orders (order_id, user_id, merchant_id, created_at, quantity, status)"
                                       " VALUES (%s, %s, %s, clock_timestamp(), 1, 'new')",
                                       (start + count, keys[count % 50], count % 10))
                    count += 1
                    time.sleep(max(0, began + count / 500 - time.monotonic()))
            made.append(count)

        before = cpu_seconds(consumer.process.pid)
        writers = [threading.Thread(target=write, args=(shard, first + number * 5_000_000))
                   for number, shard in enumerate(("s0", "s1"))]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        cpu = cpu_seconds(consumer.process.pid) - before
        self.cluster.drained()
        consumer.stop()
        quantiles = self.cluster.idx.value(
            "SELECT percentile_cont(ARRAY[0.5, 0.9, 0.99, 1]) WITHIN GROUP (ORDER BY extract(epoch FROM interlock_applied"
            f" - created_at) * 1000) FROM {ENTRIES} WHERE order_id >= %s", first)
        return {"changes_per_second": round(sum(made) / self.options.seconds),
                **{name: round(value, 1) for name, value in zip(("p50_ms", "p90_ms", "p99_ms", "max_ms"), quantiles)},
                "consumer_cpu_percent": round(100 * cpu / self.options.seconds, 1)}

    def backfill(self):
        self.cluster.idx.sql(f"TRUNCATE {ENTRIES}; DELETE FROM interlock.index_backfill")
        last = json.loads(self.cluster.index("backfill", INDEX, "--json", timeout=1200).stdout.splitlines()[-1])
        return {"rows": last["rows"], "per_second": round(last["rows"] / last["seconds"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few records: to see that it works")
    parser.add_argument("--records", type=int)
    parser.add_argument("--seconds", type=int)
    options = parser.parse_args()
    options.records = options.records or (50_000 if options.quick else 1_000_000)
    options.seconds = options.seconds or (3 if options.quick else 20)
    with instances_folder() as (folder, owner):
        cluster = IndexedCluster(folder, owner, rows=[], shards=3, shard_settings=SETTINGS, index_settings=SETTINGS)
        try:
            cluster.make().fill_index()
            bench = Bench(cluster, options)
            print(json.dumps({"drain_one_consumer": bench.drain(1), "drain_old_snapshot": bench.drain(1, True),
                              "drain_two_consumers": bench.drain(2), "lag": bench.lag(),
                              "backfill": bench.backfill()}, indent=1))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
