#!/usr/bin/python3
"""What the write guard costs: pgbench single-row UPDATE and a COPY of many rows, with and without.

Makes an instance of its own in a temporary folder (as user postgres when run as root), runs the two
sides alternately and prints one JSON object: medians, their ratios, every single run and the
settings. The extension has to be installed in the server that PG_CONFIG names.

    guard_cost.py [--quick] [--fsync on|off] [--runs N] [--seconds S] [--rows N] [--only PART ...]
                  [--mechanism NAME ...]

Mechanisms other than "guard" (what shard_table() attaches) are alternatives that were considered;
they stay here so that the choice can be measured again.
"""

import argparse
import json
import os
import pwd
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUCKETS = 1024

# name -> statements that put the mechanism on table {t}
MECHANISMS = {
    "none": [],
    "guard": ["SELECT interlock.shard_table('{t}', 'bench', 'account_id')"],
    "before": [
        "CREATE TRIGGER g BEFORE INSERT OR UPDATE OR DELETE ON {t} FOR EACH ROW "
        "EXECUTE FUNCTION interlock.guard('bench', 'account_id')",
        "ALTER TABLE {t} ENABLE ALWAYS TRIGGER g"],
    "after_when": [
        "CREATE TRIGGER g1 AFTER INSERT ON {t} FOR EACH ROW WHEN (interlock.refuse_write('bench', NEW.account_id)) "
        "EXECUTE FUNCTION interlock.guard('bench', 'account_id')",
        "CREATE TRIGGER g2 AFTER UPDATE ON {t} FOR EACH ROW "
        "WHEN (interlock.refuse_write('bench', OLD.account_id, NEW.account_id)) "
        "EXECUTE FUNCTION interlock.guard('bench', 'account_id')",
        "CREATE TRIGGER g3 AFTER DELETE ON {t} FOR EACH ROW WHEN (interlock.refuse_write('bench', OLD.account_id)) "
        "EXECUTE FUNCTION interlock.guard('bench', 'account_id')"],
    "check": [
        "ALTER TABLE {t} ADD CONSTRAINT placement CHECK (NOT interlock.refuse_write('bench', account_id)) NOT VALID",
        "CREATE TRIGGER g2 AFTER UPDATE OR DELETE ON {t} FOR EACH ROW "
        "EXECUTE FUNCTION interlock.guard('bench', 'account_id')"],
}


class Instance:
    """A throw-away server on a free loopback port."""

    def __init__(self, settings):
        pg_config = os.environ.get("PG_CONFIG", "pg_config")
        self.bin = Path(subprocess.run([pg_config, "--bindir"], check=True, text=True,
                                       stdout=subprocess.PIPE).stdout.strip())
        self.folder = Path(tempfile.mkdtemp(prefix="interlock-bench-", dir="/tmp"))
        self.as_user = []
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self.as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.data = self.folder / "data"
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale")
        lines = [f"{name} = {value}" for name, value in settings.items()]
        lines += ["listen_addresses = '127.0.0.1'", f"port = {self.port}",
                  f"unix_socket_directories = '{self.folder}'"]
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as configuration:
            configuration.write("\n".join(lines) + "\n")
        self.run("pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "start")

    def run(self, program, *arguments):
        done = subprocess.run([*self.as_user, self.bin / program, *arguments], text=True, cwd="/",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{program} failed:\n{done.stdout}")
        return done.stdout

    def backend_cpu(self):
        """CPU seconds of all backends that have ended. Other programs on the machine disturb wall-clock
        time; they disturb this much less."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        deadline = time.monotonic() + 10
        while self.sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").strip() != "1":
            if time.monotonic() > deadline:
                sys.exit("backends did not end")
            time.sleep(0.02)
        fields = Path(f"/proc/{postmaster}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def connection(self):
        return ["-h", self.folder, "-p", str(self.port), "-U", "postgres"]

    def sql(self, *statements):
        arguments = [argument for statement in statements for argument in ("-c", statement)]
        return self.run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", *self.connection(), *arguments, "bench")

    def stop(self):
        self.run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


def prepare(instance, mechanisms, keys):
    instance.run("createdb", *instance.connection(), "bench")
    instance.sql("CREATE EXTENSION interlock",
                 "SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0')",
                 f"SELECT interlock.define_keyspace('bench', 'bigint', 'splitmix64', {BUCKETS})",
                 f"SELECT interlock.accept_buckets('bench', array(SELECT generate_series(0, {BUCKETS - 1})), 1)")
    for mechanism in mechanisms:
        for table in (f"account_{mechanism}", f"copied_{mechanism}"):
            instance.sql(f"CREATE TABLE {table} (account_id bigint PRIMARY KEY, owner text, "
                         "balance bigint CHECK (balance >= 0), version int)",
                         *[statement.format(t=table) for statement in MECHANISMS[mechanism]])
        instance.sql(f"INSERT INTO account_{mechanism} SELECT g, 'somebody', 1000, 1 FROM generate_series(1, {keys}) g")
    instance.sql("VACUUM ANALYZE", "CHECKPOINT")


def script(instance, name, text):
    path = instance.folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return path


def pgbench(instance, path, seconds, clients):
    before = instance.backend_cpu()
    output = instance.run("pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(seconds),
                          "-f", path, *instance.connection(), "bench")
    tps = next(float(line.split()[2]) for line in output.splitlines() if line.startswith("tps"))
    count = next(int(line.split()[-1].split("/")[0]) for line in output.splitlines() if "actually processed" in line)
    return tps, count / max(instance.backend_cpu() - before, 0.01)


def mixed(instance, paths, seconds, clients):
    """All sides in one run: each client takes one of the scripts at random, so that whatever else the
    machine does strikes them alike. Returns the average latency of each, in milliseconds."""
    files = [argument for path in paths for argument in ("-f", path)]
    output = instance.run("pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(seconds),
                          *files, *instance.connection(), "bench")
    latencies = [float(line.split("=")[1].split()[0]) for line in output.splitlines()
                 if line.strip().startswith("- latency average")]
    return latencies[-len(paths):]


def compare_mixed(mechanisms, runs, measure):
    results = [measure() for _ in range(runs)]
    medians = {m: statistics.median(run[i] for run in results) for i, m in enumerate(mechanisms)}
    return {"ratio": {m: round(medians["none"] / medians[m], 4) for m in mechanisms if m != "none"},
            "median_of_run_ratios": {m: round(statistics.median(run[0] / run[i] for run in results), 4)
                                     for i, m in enumerate(mechanisms) if m != "none"},
            "latency_ms": medians}


def copy(instance, mechanism, path, from_client):
    instance.sql(f"BEGIN; SET LOCAL interlock.allow_truncate = on; TRUNCATE copied_{mechanism}; COMMIT", "CHECKPOINT")
    before = instance.backend_cpu()
    start = time.monotonic()
    instance.sql(f"\\copy copied_{mechanism} FROM '{path}'" if from_client else f"COPY copied_{mechanism} FROM '{path}'")
    seconds = time.monotonic() - start
    return 1 / seconds, 1 / max(instance.backend_cpu() - before, 0.01)


def compare(mechanisms, runs, measure):
    """Runs all sides in turn, `runs` rounds; the order is turned round each time. Two figures a run:
    work per second, and work per CPU second of the server."""
    results = {mechanism: [] for mechanism in mechanisms}
    for mechanism in mechanisms:
        measure(mechanism)  # warm-up, not counted
    for round_number in range(runs):
        order = mechanisms if round_number % 2 == 0 else mechanisms[::-1]
        for mechanism in order:
            results[mechanism].append(measure(mechanism))
    report = {}
    for position, label in enumerate(("per_second", "per_cpu_second")):
        values = {m: [round(run[position], 4) for run in results[m]] for m in mechanisms}
        medians = {m: statistics.median(values[m]) for m in mechanisms}
        report[label] = {
            "ratio": {m: round(medians[m] / medians["none"], 4) for m in mechanisms if m != "none"},
            # Each round compared within itself: less moved by what else the machine does.
            "median_of_round_ratios": {
                m: round(statistics.median(a / b for a, b in zip(values[m], values["none"])), 4)
                for m in mechanisms if m != "none"},
            "medians": medians, "runs": values}
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer, shorter runs: to see that it works")
    parser.add_argument("--fsync", choices=("on", "off"), default="on")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--mechanism", nargs="+", default=["guard"], choices=sorted(MECHANISMS))
    parser.add_argument("--only", nargs="+", default=["update", "insert", "copy"], choices=("update", "insert", "copy"))
    arguments = parser.parse_args()
    runs = arguments.runs or (3 if arguments.quick else 9)
    seconds = arguments.seconds or (2 if arguments.quick else 5)
    rows = arguments.rows or (100_000 if arguments.quick else 1_000_000)
    keys = 100_000
    mechanisms = ["none", *[name for name in arguments.mechanism if name != "none"]]
    settings = {"fsync": arguments.fsync, "shared_buffers": "1GB", "max_wal_size": "8GB", "autovacuum": "off",
                "checkpoint_timeout": "1h"}
    instance = Instance(settings)
    try:
        prepare(instance, mechanisms, keys)
        result = {"settings": {**settings, "clients": arguments.clients, "protocol": "prepared", "runs": runs,
                               "seconds": seconds, "rows": rows, "keys": keys, "buckets": BUCKETS,
                               "server": instance.sql("SHOW server_version").strip(), "cpus": os.cpu_count()}}
        if "update" in arguments.only:
            scripts = {m: script(instance, f"update_{m}.sql", f"\\set k random(1, {keys})\n"
                                 f"UPDATE account_{m} SET balance = balance + 1 WHERE account_id = :k;\n") for m in mechanisms}

            def update(mechanism):
                instance.sql(f"VACUUM account_{mechanism}", "CHECKPOINT")
                return pgbench(instance, scripts[mechanism], seconds, arguments.clients)

            result["update"] = compare(mechanisms, runs, update)

            def update_mixed():
                instance.sql(*[f"VACUUM account_{m}" for m in mechanisms], "CHECKPOINT")
                return mixed(instance, list(scripts.values()), seconds, arguments.clients)

            result["update"]["mixed"] = compare_mixed(mechanisms, runs, update_mixed)
        if "insert" in arguments.only:
            instance.sql("CREATE SEQUENCE next_key START 10000000 CACHE 100")
            inserts = {m: script(instance, f"insert_{m}.sql", f"INSERT INTO account_{m} VALUES (nextval('next_key'), 'x', 1, 1);\n")
                       for m in mechanisms}

            def insert(mechanism):
                instance.sql("CHECKPOINT")
                return pgbench(instance, inserts[mechanism], seconds, arguments.clients)

            result["insert"] = compare(mechanisms, runs, insert)
            result["insert"]["mixed"] = compare_mixed(
                mechanisms, runs, lambda: mixed(instance, list(inserts.values()), seconds, arguments.clients))
        if "copy" in arguments.only:
            path = instance.folder / "rows.tsv"
            with open(path, "w", encoding="utf-8") as data:
                data.writelines(f"{key}\tsomebody\t1000\t1\n" for key in range(rows))
            path.chmod(0o644)
            # Read by the server, which is the dearest case for the guard, and sent by psql.
            result["copy"] = compare(mechanisms, runs, lambda mechanism: copy(instance, mechanism, path, False))
            result["copy_from_client"] = compare(mechanisms, runs, lambda mechanism: copy(instance, mechanism, path, True))
        print(json.dumps(result, indent=1))
    finally:
        instance.stop()


if __name__ == "__main__":
    main()
