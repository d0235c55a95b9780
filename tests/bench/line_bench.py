#!/usr/bin/python3
"""Requests per second of the line protocol beside direct access to the shard, in one run, as JSON.

A point SELECT and a single-row UPDATE, with 1 and with 8 clients:
  line       line_load -> router -> s0, table ledger (all of its rows are on s0)
  line_two   line_load -> router -> s0 and s1, table account (half of the rows on each)
  simple, extended, prepared
             pgbench -> s0 directly, table ledger, the same statement, the three ways to send it

All ways take turns, several rounds; the median and the best round are reported (the best is the one
that other programs on the machine disturbed least). Instances are made in a temporary folder;
the extension has to be installed in the server that PG_CONFIG names.

    line_bench.py [--quick] [--rounds N] [--seconds S] [--keys N]
"""

import argparse
import json
import re
import statistics
import subprocess

from bench_cluster import SHARD_SETTINGS, BenchCluster, build, cpu_seconds, instances_folder

STATEMENTS = {
    "select": ("SELECT owner, balance FROM {} WHERE account_id = {}", ["{}"]),
    "update": ("UPDATE {} SET balance = balance - {} WHERE account_id = {}", ["1", "{}"]),
}
CLIENTS = (1, 8)
DIRECT = ("simple", "extended", "prepared")


def output_of(*argv, **options):
    return subprocess.run([str(word) for word in argv], check=True, text=True, stdout=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, **options).stdout


def through_router(cluster, load, statement, table, clients, options):
    text, fields = STATEMENTS[statement]
    router = cluster.router
    before = cpu_seconds(router.process.pid)
    result = json.loads(output_of(load, router.host, router.port, clients, options.seconds, options.keys,
                                  text.format(table, *["?"] * len(fields)), *fields))
    assert result["misses"] == 0, result
    result["router_cpu_us"] = (cpu_seconds(router.process.pid) - before) / result["requests"] * 1e6
    return result


def direct(cluster, script, mode, clients, options):
    s0 = cluster.s0
    text = output_of(s0.bin / "pgbench", "-n", "-M", mode, "-c", clients, "-j", 1, "-T", options.seconds,
                     "-f", script, "-h", "127.0.0.1", "-p", s0.port, "-U", "app", "app", stderr=subprocess.DEVNULL)
    return {"per_second": float(re.search(r"^tps = ([\d.]+)", text, re.M).group(1)),
            "mean_us": float(re.search(r"^latency average = ([\d.]+) ms", text, re.M).group(1)) * 1000}


def median(results, name):
    return round(statistics.median(result[name] for result in results), 1)


def summary(ways):
    """Medians of each way, and the ratios that say what the router costs."""
    report = {}
    for way, results in ways.items():
        report[way] = {name: median(results, name) for name in
                       ("per_second", "p50_us", "p95_us", "p99_us", "mean_us", "router_cpu_us") if name in results[0]}
        report[way]["runs_per_second"] = [round(result["per_second"]) for result in results]
        report[way]["best_per_second"] = round(max(result["per_second"] for result in results), 1)
    for name, figure in (("ratio", "per_second"), ("ratio_of_best", "best_per_second")):
        report[name] = {f"line/{mode}": round(report["line"][figure] / report[mode][figure], 3) for mode in DIRECT}
    return report


def measure(cluster, load, options):
    scripts = {}
    for statement, (text, fields) in STATEMENTS.items():
        scripts[statement] = cluster.base / f"{statement}.sql"
        values = [field if field != "{}" else ":key" for field in fields]
        scripts[statement].write_text(f"\\set key random(1, {options.keys})\n{text.format('ledger', *values)};\n")
    report = {}
    for statement in STATEMENTS:
        for clients in CLIENTS:
            ways = {
                "line": lambda: through_router(cluster, load, statement, "ledger", clients, options),
                "line_two": lambda: through_router(cluster, load, statement, "account", clients, options),
                **{mode: lambda mode=mode: direct(cluster, scripts[statement], mode, clients, options)
                   for mode in DIRECT},
            }
            results = {way: [] for way in ways}
            for round_number in range(options.rounds):
                order = list(ways) if round_number % 2 == 0 else list(ways)[::-1]
                for way in order:
                    results[way].append(ways[way]())
            report[f"{statement}_{clients}"] = summary(results)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer, shorter runs: to see that it works")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--keys", type=int, default=20_000)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.seconds = options.seconds or (1 if options.quick else 3)
    load, = build("line_load")
    with instances_folder() as (folder, owner):
        cluster = BenchCluster(folder, owner)
        try:
            cluster.up().load(options.keys)
            report = measure(cluster, load, options)
            server = cluster.s0.value("SHOW server_version")
        finally:
            cluster.down()
    print(json.dumps({"settings": {"rounds": options.rounds, "seconds": options.seconds, "keys": options.keys,
                                   "pool_size": 8, "server": server, "shards": {"fsync": "off", **SHARD_SETTINGS}},
                      **report}, indent=1))


if __name__ == "__main__":
    main()
