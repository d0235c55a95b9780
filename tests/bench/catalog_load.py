#!/usr/bin/python3
"""How long a large route table takes from publish() to being in force, and what it costs the router.

65,536 buckets on 256 shards in a real catalog. The router first holds a version with one bucket. Then,
several times: a map with every bucket on another shard than before is published, and the time is taken
from the return of the transaction to the router's STATUS naming the version. Prints one JSON object.

    catalog_load.py [--quick]
"""

import argparse
import json
import re
import statistics
import time
from pathlib import Path

from bench_cluster import SHARD_SETTINGS, instances_folder
from support.postgres import Postgres
from support.router import Router

SHARDS, BUCKETS = 256, 65_536


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def wait_for(client, version):
    while client.status().rv < version:
        pass


def settled_kib(router):
    """Resident memory once the thread that read the catalog has given its rows back."""
    last = None
    for _ in range(50):
        now = router.resident_kib()
        if now == last:
            break
        last = now
        time.sleep(0.1)
    return now


def peak_kib(router):
    status = Path(f"/proc/{router.process.pid}/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.M).group(1))


def assign(catalog, shift):
    for shard in range(SHARDS):
        catalog.execute("SELECT interlock.assign('wide', ARRAY(SELECT generate_series(%s::int, %s, %s)), %s)",
                        (shard, BUCKETS - 1, SHARDS, f"shard{(shard + shift) % SHARDS}"))


def measure(instance, folder, rounds):
    instance.sql("CREATE ROLE interlock_router LOGIN", dbname="postgres")
    instance.sql("CREATE DATABASE app", dbname="postgres")
    instance.sql("CREATE EXTENSION interlock")
    with instance.connect() as catalog:
        catalog.execute("SELECT interlock.create_cluster('bench')")
        for shard in range(SHARDS):
            catalog.execute("SELECT interlock.add_shard(%s, %s)",
                            (f"shard{shard}", f"host=shard{shard}.example.org port=5432 dbname=app user=app"))
        catalog.execute("SELECT interlock.create_keyspace('narrow', 'bigint', 1)")
        catalog.execute("SELECT interlock.assign('narrow', ARRAY[0], 'shard0')")
        catalog.execute("SELECT interlock.grant_router('interlock_router')")
        catalog.execute("SELECT interlock.publish()")
        # The poll is slow on purpose: what is measured is the way by the notification.
        router = Router(folder, "r0", instance.conninfo("app", "interlock_router"),
                        {"catalog": {"poll_interval": "5s"}, "log": {"level": "info"}}).start()
        try:
            resident = [settled_kib(router)]
            catalog.execute("SELECT interlock.create_keyspace('wide', 'bigint', %s)", (BUCKETS,))
            publishing, loading = [], []
            with router.client() as client:
                for number in range(rounds):
                    assign(catalog, number)
                    publishing.append(seconds(
                        lambda: catalog.execute("SELECT interlock.publish(allow_owner_change => true)")))
                    loading.append(seconds(lambda: wait_for(client, number + 2)))
                    resident.append(settled_kib(router))
            peak = peak_kib(router)
            reads = instance.value(
                "EXPLAIN (ANALYZE, FORMAT JSON) SELECT keyspace, bucket, shard FROM interlock.route "
                "WHERE valid_to IS NULL")[0]["Execution Time"]
        finally:
            router.stop()
    return {
        "buckets": BUCKETS, "shards": SHARDS, "rounds": rounds,
        "load_ms": {"median": round(statistics.median(loading) * 1000, 1),
                    "runs": [round(run * 1000, 1) for run in loading]},
        "publish_ms": {"median": round(statistics.median(publishing) * 1000), "note": "in the catalog, before"},
        "catalog_query_ms": round(reads, 1),
        "router_resident_kib": {"one_bucket": resident[0], "after_each_load": resident[1:],
                                "first_growth": resident[1] - resident[0],
                                "growth_after_the_first": resident[-1] - resident[1],
                                "peak_while_reading": peak},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it works")
    options = parser.parse_args()
    with instances_folder() as (folder, owner):
        instance = Postgres(folder, "catalog", owner, SHARD_SETTINGS).start()
        try:
            print(json.dumps(measure(instance, folder, 2 if options.quick else 7), indent=1))
        finally:
            instance.stop("immediate")


if __name__ == "__main__":
    main()
