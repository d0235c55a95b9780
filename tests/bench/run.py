#!/usr/bin/python3
"""`make bench`: runs every benchmark, prints one JSON object with the figures and the targets met.

    run.py [--quick] [--only guard route catalog line pg keyset scatter outbox index decoding move]

Exits 1 when a benchmark could not be run; a target that is missed is said, not punished: what else
the machine does shows in the figures.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from bench_cluster import ROOT, build

HERE = Path(__file__).resolve().parent
PYTHON = ["/usr/bin/python3", "-B"]


def route_bench():
    return build("route_bench")


PARTS = {
    "guard": lambda: [*PYTHON, HERE / "guard_cost.py"],
    "route": route_bench,
    "catalog": lambda: [*PYTHON, HERE / "catalog_load.py"],
    "line": lambda: [*PYTHON, HERE / "line_bench.py"],
    "pg": lambda: [*PYTHON, HERE / "pg_bench.py"],
    "keyset": lambda: [*PYTHON, HERE / "keyset_bench.py"],
    "scatter": lambda: [*PYTHON, HERE / "scatter_bench.py"],
    "outbox": lambda: [*PYTHON, HERE / "outbox_bench.py"],
    "index": lambda: [*PYTHON, HERE / "index_bench.py"],
    "decoding": lambda: [*PYTHON, HERE / "decoding_bench.py"],
    "move": lambda: [*PYTHON, HERE / "move_bench.py"],
}

# name -> (part, how it is read, target as a person reads it, whether it is met)
TARGETS = {
    # Every bucket on the move: all that the plugin does, and nothing saved.
    **{f"decoding, {key} key: plugin / pgoutput": (
        "decoding", lambda r, key=key: r[key]["cpu_ratio"]["every_bucket"], "<= 1.1", lambda v: v <= 1.1)
       for key in ("bigint", "text")},
    **{f"longest transaction of a bucket's writers during a move, {of}, ms": (
        "move", lambda r, of=of: r["pause"]["longest_transaction_ms"][of], "< 250", lambda v: v < 250) for of in ("p50", "worst")},
    **{f"throughput of other buckets' writers, {load}, {when} / without a move": (
        "move", lambda r, load=load, when=when: r["others"][load][when]["median_of_rounds"], f">= {least}", lambda v, least=least: v >= least)
       for load in ("as many as they can", "half as many") for when, least in (("fence", 0.95), ("copy", 0.85))},
    "rows copied a second: a move / COPY piped by psql": (
        "move", lambda r: r["copy"]["all rows of a table"]["move/pipe"]["median_of_rounds"], ">= 0.7", lambda v: v >= 0.7),
    "client errors in 100 moves": ("move", lambda r: r["errors"]["client_errors"], "0", lambda v: v == 0),
    "acknowledged changes lost or doubled in them": ("move", lambda r: r["errors"]["lost_or_doubled"], "0", lambda v: v == 0),
    # Both sides in one pgbench run, a transaction of either in turn: separate runs of ten seconds differ
    # by more than 3 % from each other on any machine that does something else as well.
    "single-row UPDATE with guard / without": (
        "guard", lambda r: r["update"]["mixed"]["ratio"]["guard"], ">= 0.97", lambda v: v >= 0.97),
    "COPY with guard / without": (
        "guard", lambda r: r["copy"]["per_second"]["ratio"]["guard"], ">= 0.95", lambda v: v >= 0.95),
    **{f"route decision, {key} key, ns": (
        "route", lambda r, key=key: r["decision_ns"][key]["median"], "< 500", lambda v: v < 500)
       for key in ("bigint", "uuid", "text")},
    **{f"single-shard: shape, cache hit and plan, {text}, ns": (
        "route", lambda r, text=text: r["single_shard_ns"][text]["median"], "< 1000", lambda v: v < 1000)
       for text in ("literal", "update", "insert", "parameter_text", "parameter_binary", "uuid")},
    # PgBouncer and the router in turns; the median of the rounds' own ratios.
    **{f"CPU a transaction, {mode}: router / PgBouncer": (
        "pg", lambda r, mode=mode: r["load"][mode]["interlock/pgbouncer"]["cpu_us"]["median_of_rounds"],
        "<= 1.0", lambda v: v <= 1.0) for mode in ("simple", "extended")},
    "CPU a transaction, prepared / PgBouncer's extended": (
        "pg", lambda r: r["load"]["prepared"]["interlock/pgbouncer extended"]["cpu_us"]["median_of_rounds"],
        "<= 1.1", lambda v: v <= 1.1),
    **{f"transactions a second, {mode}: router / PgBouncer": (
        "pg", lambda r, mode=mode: r["load"][mode]["interlock/pgbouncer"]["per_second"]["median_of_rounds"],
        ">= 1.0", lambda v: v >= 1.0) for mode in ("simple", "extended")},
    **{f"median latency of one client, {mode}: router - PgBouncer, us": (
        "pg", lambda r, mode=mode: r["one"][mode]["interlock - pgbouncer"], "<= 10", lambda v: v <= 10)
       for mode in ("simple", "extended")},
    "memory of an idle client: router / PgBouncer": (
        "pg", lambda r: r["idle"]["interlock/pgbouncer"]["after_one_statement"], "<= 1.0", lambda v: v <= 1.0),
    # Pages and hand-written queries in turns; the median of the rounds' own ratios.
    **{f"page of 50, {mode}: keyset_page / by hand": (
        "keyset", lambda r, mode=mode: r["hand"][mode]["keyset_page/by hand"]["latency_us"]["median_of_rounds"],
        "<= 1.10", lambda v: v <= 1.10) for mode in ("simple", "extended", "prepared")},
    "page 1,000 / page 1": (
        "keyset", lambda r: r["late"]["page 1000/page 1"]["latency_us"]["median_of_rounds"], "<= 1.10", lambda v: v <= 1.10),
    **{f"page of 50 over 3 shards / the slowest shard alone, {mode}, p50": (
        "scatter", lambda r, mode=mode: r["page_of_50"][mode]["router / slowest shard"]["p50"], "<= 1.5",
        lambda v: v <= 1.5) for mode in ("simple", "extended")},
    **{f"page of 50: postgres_fdw / router, {mode}, {quantile}": (
        "scatter", lambda r, mode=mode, quantile=quantile: r["page_of_50"][mode]["fdw / router"][quantile], ">= 2",
        lambda v: v >= 2) for mode in ("simple", "extended") for quantile in ("p50", "p99")},
    "page 1,000 over 3 shards / page 1, p50": (
        "scatter", lambda r: r["depth"]["page 1000 / page 1"]["p50"], "<= 1.1", lambda v: v <= 1.1),
    # What a trigger adds to a row, in CPU time of the backend; all in turn, the median of the rounds' own ratios.
    **{f"outbox trigger / PL/pgSQL trigger, {way}": (
        "outbox", lambda r, way=way: r["trigger"][way]["cpu_us"]["cost_ratio"]["median_of_rounds"], "<= 0.5", lambda v: v <= 0.5)
       for way in ("INSERT, one row", "INSERT, many rows", "COPY")},
    **{f"drain of 1,000,000 records {beside}: last tenth / first tenth, CPU a record": (
        "outbox", lambda r, beside=beside: r["drain"][beside]["last_tenth/first_tenth"]["cpu"], "<= 1.5", lambda v: v <= 1.5)
       for beside in ("alone", "beside an old snapshot", "beside an old snapshot with locks")},
    **{f"a million records into an index, {shards}: last three tenths / first three": (
        "index", lambda r, shards=shards: r["drain"][shards]["last_three_tenths/first_three"], ">= 0.8", lambda v: v >= 0.8)
       for shards in ("three shards", "one shard")},
    "lag of an index under 1,000 changes a second, 99 of 100, ms": (
        "index", lambda r: r["lag"]["lag_ms"]["p99"], "< 1000", lambda v: v < 1000),
    "statements of an index page, rows on 2 of 16 shards": (
        "index", lambda r: r["pages"]["on 2 of 16"]["statements"]["index"], "<= 3", lambda v: v <= 3),
    "65,536 buckets on 256 shards: load, ms": (
        "catalog", lambda r: r["load_ms"]["median"], "< 200", lambda v: v < 200),
    "65,536 buckets on 256 shards: table, KiB": (
        "route", lambda r: round(r["heap_bytes"] / 1024), "< 1024", lambda v: v < 1024),
    "65,536 buckets on 256 shards: router's growth, KiB": (
        "catalog", lambda r: r["router_resident_kib"]["first_growth"], "< 1024", lambda v: v < 1024),
}


# The same comparisons by measures that a busy machine moves less; printed beside the verdicts.
BESIDE = {
    **{f"page of 50, {mode}: keyset_page / by hand": lambda r, mode=mode: {
        "of the best rounds": r["hand"][mode]["keyset_page/by hand"]["latency_us"]["of_the_best"],
        "server's CPU": r["hand"][mode]["keyset_page/by hand"]["cpu_us"]["median_of_rounds"]}
       for mode in ("simple", "extended", "prepared")},
    "page 1,000 / page 1": lambda r: {
        "server's CPU": r["late"]["page 1000/page 1"]["cpu_us"]["median_of_rounds"],
        "OFFSET instead": r["late"]["OFFSET 49950/page 1"]["latency_us"]["median_of_rounds"]},
    **{f"outbox trigger / PL/pgSQL trigger, {way}": lambda r, way=way: {
        "of the best rounds": r["trigger"][way]["cpu_us"]["cost_ratio"]["of_the_best"],
        "by the clock": r["trigger"][way]["clock_us"]["cost_ratio"]["median_of_rounds"]}
       for way in ("INSERT, one row", "INSERT, many rows", "COPY")},
    "single-row UPDATE with guard / without": lambda r: {
        "alternating runs": r["update"]["per_second"]["ratio"]["guard"],
        "alternating runs, per CPU second": r["update"]["per_cpu_second"]["ratio"]["guard"],
        "median of the rounds' ratios": r["update"]["per_second"]["median_of_round_ratios"]["guard"]},
    "COPY with guard / without": lambda r: {
        "per CPU second": r["copy"]["per_cpu_second"]["ratio"]["guard"],
        "median of the rounds' ratios": r["copy"]["per_second"]["median_of_round_ratios"]["guard"],
        "sent by psql": r["copy_from_client"]["per_second"]["ratio"]["guard"],
        "sent by psql, per CPU second": r["copy_from_client"]["per_cpu_second"]["ratio"]["guard"]},
}


def machine():
    models = {line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")}
    compiler = subprocess.run(["clang++", "--version"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    return {"cpus": os.cpu_count(), "cpu": sorted(models), "kernel": platform.release(),
            "compiler": compiler[0] if compiler else None, "commit": commit or None,
            "load_average": os.getloadavg()}


def run(name, quick):
    """The benchmark's JSON; None, with its complaint on standard error, when it failed."""
    print(f"bench: {name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run([str(word) for word in [*PARTS[name](), *(["--quick"] if quick else [])]],
                          text=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    print(f"bench: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if done.returncode != 0:
        print(f"bench: {name} failed with {done.returncode}\n{done.stdout}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout)


def judged(results):
    verdicts = []
    for name, (part, read, target, met) in TARGETS.items():
        if results.get(part) is not None:
            value = read(results[part])
            verdicts.append({"name": name, "target": target, "measured": value, "met": met(value),
                             **({"beside": BESIDE[name](results[part])} if name in BESIDE else {})})
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs: to see that all of it works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    before = machine()
    results = {name: run(name, options.quick) for name in options.only}
    verdicts = judged(results)
    print(json.dumps({"machine": before, "quick": options.quick, "targets": verdicts, **results}, indent=1))
    for verdict in verdicts:
        print(f"bench: {'met   ' if verdict['met'] else 'MISSED'} {verdict['name']}: {verdict['measured']} "
              f"(target {verdict['target']})", file=sys.stderr)
    return 1 if None in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
