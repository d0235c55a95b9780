#!/usr/bin/python3
"""Moves of buckets beside writers: their pause, what others notice, how fast rows are copied, as JSON.

  pause   a bucket of 200,000 rows moves back and forth between two shards, 16 clients writing its rows through a
          router (single UPDATEs and short transactions in turn), as many as they can: the longest transaction of any
          of them that overlaps the move, and what the mover itself says. Twenty moves as they are by default, six with
          --verify after, whose comparison costs no pause.
  others  clients that write other buckets of the same table and the same shard, while a bucket is copied, and while
          a fence is held up for two seconds by an open transaction: transactions a second beside those of the
          seconds before the move. Once as many as they can, where the copy's processes and the writers share this
          machine's processors, and once at half that rate.
  copy    rows a second from the slot to the last committed row, beside `COPY ... TO STDOUT` piped into `COPY ... FROM
          STDIN` by psql, from the same table into one with the same columns and index; in turns. All rows of a table,
          and one bucket of sixteen.
  errors  100 moves under the writers of `pause` (a smaller bucket): errors that clients see, and whether each
          acknowledged UPDATE is there exactly once.

Nothing waits for the disk. The extension has to be installed in the server that PG_CONFIG names.

    move_bench.py [--quick] [--only pause others copy errors]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

from bench_cluster import SHARD_SETTINGS, TABLES, build, instances_folder
from support.cluster import Cluster
from support.moves import Mover, move_to_its_end
from support.wait import wait_until

# Rows that come and go twenty times leave much behind.
SETTINGS = {**SHARD_SETTINGS, "autovacuum": "on", "autovacuum_naptime": "10s", "max_wal_size": "8GB", "max_connections": "100", "wal_retrieve_retry_interval": "100ms"}
WRITERS = 16
# The steps between which a bucket's writers wait.
PAUSE = ("announced", "fenced", "waited", "marked", "drained", "verified", "decided", "activated", "routed")
MOVED, OTHER = 2, 4  # buckets of the reference cluster that begin on s0


class Moves(Cluster):
    """The reference cluster with tables `account` (16 buckets) and `ledger` (one bucket, on s0)."""

    def __init__(self, base, owner):
        super().__init__(base, owner, table=TABLES, shard_settings=SETTINGS,
                         router_settings={"pg": {}, "log": {"level": "info"}, "pool": {"size": 24}})
        self.loads, self.movers = [], []
        self.load_program, = build("move_load")

    def declare(self, catalog):
        super().declare(catalog)
        catalog.execute("SELECT interlock.create_keyspace('lone', 'bigint', 1)")
        catalog.execute("SELECT interlock.declare_table('ledger', 'lone', 'account_id', 'version')")
        catalog.execute("SELECT interlock.assign('lone', ARRAY[0], 's0')")

    def conninfo(self):
        return self.catalog.conninfo("app", "postgres")

    def fill(self, table, rows, bucket=None):
        """`rows` rows on s0, all in one bucket if one is given; a file with their keys."""
        condition = f"WHERE interlock.bucket_of('accounts', k) = {bucket}" if bucket is not None else ""
        self.s0.sql(f"INSERT INTO {table} SELECT k, 'owner ' || k, 1000, 0 FROM generate_series(1, {rows * 20}) k {condition}"
                    f" LIMIT {rows}")
        keys = self.s0.sql(f"SELECT account_id FROM {table} k {condition.replace(' k)', ' account_id)')} ORDER BY 1")
        assert len(keys) == rows
        file = self.base / f"{table}{'' if bucket is None else bucket}.keys"
        file.write_text("".join(f"{key}\n" for (key,) in keys))
        return file

    def settle(self):
        for shard in self.shards:
            self.instances[shard].sql("VACUUM ANALYZE account, ledger")
            self.instances[shard].sql("CHECKPOINT")

    def start_load(self, keys, clients=WRITERS, mode="mixed", table="account", rate=None):
        load = Load([self.load_program, f"host=127.0.0.1 port={self.router.pg_port} user=app dbname=app", clients, table,
                     keys, mode, *([rate] if rate else [])])
        self.loads.append(load)
        return load

    def move(self, bucket, to, *more, keyspace="accounts"):
        """The mover's events (--json), each with the time of the machine at which it ended: (began, ended, events)."""
        began = now_us()
        done = move_to_its_end(self.conninfo(), "--keyspace", keyspace, "--bucket", bucket, "--to", to, "--json", *more)
        return began, now_us(), [json.loads(line) for line in done.stdout.splitlines()]

    def mover(self, bucket, to, *more, keyspace="accounts", stop=None):
        made = Mover(self.conninfo(), "--keyspace", keyspace, "--bucket", bucket, "--to", to, *more, stop=stop,
                     log=self.base / f"mover{len(self.movers)}.log")
        self.movers.append(made)
        return made

    def down(self):
        for load in self.loads:
            load.kill()
        for mover in self.movers:
            if mover.running():
                mover.kill()
        super().down()


class Load:
    """A process move_load."""

    def __init__(self, argv):
        self.process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self):
        """What it has found; its errors are this benchmark's."""
        text, _ = self.process.communicate("")
        return json.loads(text)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


def now_us():
    return int(time.time() * 1e6)


def quantiles(values, digits=1):
    ordered = sorted(values)
    return {"p50": round(statistics.median(ordered), digits), "worst": round(ordered[-1], digits),
            "all": [round(value, digits) for value in values]}


def started(base_folder, owner, name):
    base = base_folder / name
    base.mkdir()
    owner.own(base)
    return Moves(base, owner)


# -- pause --------------------------------------------------------------------------------------------


def longest(slow, began, ended):
    """The longest transaction in ms that overlaps these microseconds; 5 if none took that long."""
    return max((end - start for _, start, end in slow if end >= began and start <= ended), default=5000) / 1000


def steps_of_the_pause(events):
    """Milliseconds from the announcement on that each step took."""
    at = {event["step"]: event["seconds"] for event in events if event["event"] == "step"}
    steps = [step for step in PAUSE if step in at]
    return {step: 1000 * (at[step] - at[before]) for before, step in zip(steps, steps[1:])}


def measure_pause(folder, owner, quick):
    moves, others, rows = (4, 2, 20_000) if quick else (20, 6, 200_000)
    cluster = started(folder, owner, "pause")
    try:
        cluster.up()
        keys = cluster.fill("account", rows, MOVED)
        cluster.settle()
        load = cluster.start_load(keys)
        windows, said, parts, where = [], [], [], "s0"
        time.sleep(2)  # what it is like without a move
        quiet_until = now_us()
        for turn in range(moves + others):
            where = "s1" if where == "s0" else "s0"
            began, ended, events = cluster.move(MOVED, where, *(() if turn < moves else ("--verify", "after")))
            windows.append((began, ended))
            said += [event["pause_ms"] for event in events if "pause_ms" in event]
            parts.append(steps_of_the_pause(events))
        result = load.end()
        assert result["failures"] == 0, result["errors"]
        waits = [longest(result["slow"], *window) for window in windows]
        return {"moves": moves, "rows": rows, "writers": WRITERS,
                "longest_transaction_ms": quantiles(waits[:moves]),
                "longest_transaction_with_verify_after_ms": quantiles(waits[moves:]),
                "longest_without_a_move_ms": longest(result["slow"], 0, quiet_until),
                "pause_by_the_mover_ms": quantiles(said[:moves]),
                "parts_of_it_ms": {name: round(statistics.median(part[name] for part in parts[:moves])) for name in parts[0]},
                "move_seconds": quantiles([(ended - began) / 1e6 for began, ended in windows], 2),
                "transactions": result["transactions"], "acknowledged": result["acknowledged"]}
    finally:
        cluster.down()


# -- others -------------------------------------------------------------------------------------------


def rate(result, began, ended):
    """Transactions a second within these microseconds, by whole tenths of a second."""
    first, last = (-(-(began - result["start"]) // 100_000), (ended - result["start"]) // 100_000)
    assert last > first, "too short to measure"
    return sum(result["per_tenth"][first:last]) / (last - first) * 10


EARLY = ("planned", "prepared", "recorded_slot", "published_tables", "slot")


def wait_for_copy(cluster, mover):
    """Until the copy's step is recorded; when that was."""
    query = "SELECT step FROM interlock.moves WHERE finished IS NULL"
    with cluster.catalog.connect() as catalog:
        wait_until(lambda: catalog.execute(query).fetchone()[0] not in EARLY or not mover.running(), 600, "the rows are copied", 0.005)
    assert mover.running(), mover.text()
    return now_us()


def beside(cluster, keys, rounds, rate_of_load):
    """Each round: two seconds without a move, the copy, two seconds of a fence that is held up, the end of the move."""
    found = {"copy": [], "fence": []}
    rates, where = [], "s0"
    for _ in range(rounds):
        to = "s1" if where == "s0" else "s0"
        load = cluster.start_load(keys, clients=8, rate=rate_of_load)
        time.sleep(0.5)
        began = now_us()
        time.sleep(2)
        alone = (began, now_us())
        mover = cluster.mover(MOVED, to, "--max-pause", "20s", stop="before-copied").stopped()
        with cluster.instances[where].connect(autocommit=False) as holder:
            holder.execute("UPDATE account SET version = version WHERE account_id = (SELECT account_id FROM account"
                           f" WHERE interlock.bucket_of('accounts', account_id) = {MOVED} LIMIT 1)")
            began = now_us()
            mover.go_on()
            copy = (began, wait_for_copy(cluster, mover))
            fenced = "SELECT count(*) FROM interlock.bucket_state WHERE state = 'fenced'"
            wait_until(lambda: cluster.instances[where].value(fenced), 60, "the fence is there")
            began = now_us()
            time.sleep(2)
            fence = (began, now_us())
            assert cluster.instances[where].value(fenced), "the fence has gone"
            holder.rollback()
        mover.end()
        result = load.end()
        assert result["failures"] == 0, result["errors"]
        base = rate(result, *alone)
        rates.append(base)
        found["copy"].append(rate(result, *copy) / base)
        found["fence"].append(rate(result, *fence) / base)
        # The other buckets' owner is s0 throughout; the moved one goes back, so that every round is alike.
        cluster.move(MOVED, where)
    return {"per_second_alone": round(statistics.median(rates)),
            **{name: {"median_of_rounds": round(statistics.median(values), 3), "rounds": [round(value, 3) for value in values]}
               for name, values in found.items()}}


def measure_others(folder, owner, quick):
    rounds, rows = (1, 50_000) if quick else (5, 400_000)
    cluster = started(folder, owner, "others")
    try:
        cluster.up()
        cluster.fill("account", rows, MOVED)
        keys = cluster.fill("account", rows // 4, OTHER)
        cluster.settle()
        full = beside(cluster, keys, rounds, None)
        return {"rows copied": rows, "as many as they can": full,
                "half as many": beside(cluster, keys, rounds, full["per_second_alone"] / 2)}
    finally:
        cluster.down()


# -- copy ---------------------------------------------------------------------------------------------


def pipe(cluster, query, table):
    """Seconds of a COPY from s0 to s1 by two psql."""
    def psql(shard, text, **options):
        instance = cluster.instances[shard]
        return subprocess.Popen([str(instance.bin / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-d", instance.conninfo("app", "postgres"),
                                 "-c", text], **options)

    cluster.instances["s1"].sql(f"TRUNCATE {table}")
    began = time.perf_counter()
    reader = psql("s0", f"COPY {query} TO STDOUT", stdout=subprocess.PIPE)
    writer = psql("s1", f"COPY {table} FROM STDIN", stdin=reader.stdout)
    reader.stdout.close()
    assert writer.wait(600) == 0 and reader.wait(600) == 0
    return time.perf_counter() - began


def copied_by_a_move(cluster, keyspace, bucket):
    """Seconds from the slot to the recorded copy; then the move is taken back."""
    mover = cluster.mover(bucket, "s1", keyspace=keyspace, stop="before-copied").stopped()
    began = now_us()
    mover.go_on()
    ended = wait_for_copy(cluster, mover)
    mover.kill()
    move_to_its_end(cluster.conninfo(), "--abort", cluster.catalog.value("SELECT id::text FROM interlock.moves WHERE finished IS NULL"))
    cluster.instances["s1"].sql("VACUUM account, ledger")
    return (ended - began) / 1e6


def measure_copy(folder, owner, quick):
    rounds, rows = (1, 50_000) if quick else (5, 1_000_000)
    cluster = started(folder, owner, "copy")
    try:
        cluster.up()
        cluster.fill("ledger", rows)
        cluster.s0.sql(f"INSERT INTO account SELECT k, 'owner ' || k, 1000, 0 FROM generate_series(1, {2 * rows}) k"
                       " WHERE interlock.owns('accounts', k)")
        cluster.instances["s1"].sql("CREATE TABLE plain (LIKE ledger INCLUDING ALL) WITH (fillfactor = 50)")
        cluster.settle()
        of_bucket = f"(SELECT * FROM account WHERE interlock.bucket_of('accounts', account_id) = {MOVED})"
        ways = {"all rows of a table": ("lone", 0, "ledger", rows),
                "one bucket of eight on the shard": ("accounts", MOVED, of_bucket, cluster.s0.value(f"SELECT count(*) FROM {of_bucket} t"))}
        report = {}
        for name, (keyspace, bucket, query, count) in ways.items():
            ours, theirs = [], []
            for turn in range(rounds):
                for mine in ((True, False) if turn % 2 else (False, True)):
                    if mine:
                        ours.append(copied_by_a_move(cluster, keyspace, bucket))
                    else:
                        theirs.append(pipe(cluster, query, "plain"))
            ratios = [their / our for our, their in zip(ours, theirs)]
            report[name] = {"rows": count, "move_rows_per_second": round(count / statistics.median(ours)),
                            "pipe_rows_per_second": round(count / statistics.median(theirs)),
                            "move/pipe": {"median_of_rounds": round(statistics.median(ratios), 3),
                                          "rounds": [round(value, 3) for value in ratios]}}
        return report
    finally:
        cluster.down()


# -- errors -------------------------------------------------------------------------------------------


def measure_errors(folder, owner, quick):
    moves, rows = (5, 500) if quick else (100, 2_000)
    cluster = started(folder, owner, "errors")
    try:
        cluster.up()
        keys = cluster.fill("account", rows, MOVED)
        cluster.settle()
        load = cluster.start_load(keys)
        where, began = "s0", time.monotonic()
        for _ in range(moves):
            where = "s1" if where == "s0" else "s0"
            cluster.move(MOVED, where)
        seconds = time.monotonic() - began
        result = load.end()
        there = {shard: cluster.instances[shard].sql("SELECT count(*), coalesce(sum(version), 0)::bigint FROM account"
                                                     f" WHERE interlock.bucket_of('accounts', account_id) = {MOVED}")[0]
                 for shard in cluster.shards}
        other = "s1" if where == "s0" else "s0"
        assert there[other] == (0, 0), there
        return {"moves": moves, "seconds": round(seconds), "transactions": result["transactions"],
                "client_errors": result["failures"], "errors": result["errors"],
                "acknowledged": result["acknowledged"], "found": there[where][1],
                "lost_or_doubled": abs(there[where][1] - result["acknowledged"]) + abs(there[where][0] - rows)}
    finally:
        cluster.down()


PARTS = {"pause": measure_pause, "others": measure_others, "copy": measure_copy, "errors": measure_errors}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and moves: to see that it works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    report = {}
    with instances_folder() as (folder, owner):
        for name in options.only:
            print(f"move_bench: {name}", file=sys.stderr, flush=True)
            report[name] = PARTS[name](folder, owner, options.quick)
    print(json.dumps({"settings": {"writers": WRITERS, "quick": options.quick}, **report}, indent=1))


if __name__ == "__main__":
    main()
