#!/usr/bin/python3
"""The PostgreSQL listener beside PgBouncer (transaction mode) and direct access, in one run, as JSON.

pgbench's select-only script over one table whose rows are all on s0, through
  direct     s0 itself
  pgbouncer  one process, pool of 8, to s0
  interlock  the router, pool of 8, with the whole analysis, to s0
in the modes simple, extended and prepared (PgBouncer 1.18 has none for the last). All ways take turns,
several rounds. Measured: transactions per second and the CPU time of the pooler's process for each, with 8
clients; the median latency at one client; the memory of 10,000 idle clients, before and after each has
asked something; what the shard's own checks cost (login `bare` is greeted without loading them).
The extension has to be installed in the server that PG_CONFIG names.

    pg_bench.py [--quick] [--rounds N] [--seconds S] [--idle N] [--only load one idle checks]
"""

import argparse
import json
import resource
import socket
import statistics
import struct
import subprocess
from pathlib import Path

from bench_cluster import BenchCluster, cpu_seconds, instances_folder
from localcluster.ports import free_port  # noqa: E402
from support.wait import wait_until  # noqa: E402

ROWS = 100_000
SCRIPT = f"\\set aid random(1, {ROWS})\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
MODES = ("simple", "extended", "prepared")
POOL = 8

# Greets login `bare` without setting the route version, so that its sessions check nothing, and without
# loading the library; everyone else as ever.
BARE_GREETING = """
ALTER EXTENSION interlock DROP FUNCTION interlock.greet(integer);
ALTER FUNCTION interlock.greet(integer) RENAME TO greet_checked;
CREATE FUNCTION interlock.greet(route_version integer, OUT cluster_id uuid, OUT shard text, OUT floor integer,
    OUT restored boolean, OUT catalog_first boolean, OUT extension_version text) RETURNS record
LANGUAGE plpgsql AS $$
BEGIN
  IF session_user = 'bare' THEN
    SELECT '{cluster_id}', '{shard}', 0, false, true, '{extension_version}'
      INTO cluster_id, shard, floor, restored, catalog_first, extension_version;
  ELSE
    SELECT g.* INTO cluster_id, shard, floor, restored, catalog_first, extension_version
      FROM interlock.greet_checked(route_version) g;
  END IF;
END $$;
"""


class PgBouncer:
    """One process in transaction mode in front of an instance."""

    def __init__(self, base, instance, owner):
        self.host, self.port = "127.0.0.1", free_port()
        self.log = base / "pgbouncer.log"
        users, config = base / "pgbouncer.users", base / "pgbouncer.ini"
        users.write_text('"app" ""\n')
        config.write_text(f"""[databases]
app = host=127.0.0.1 port={instance.port} dbname=app
[pgbouncer]
listen_addr = {self.host}
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {POOL}
max_client_conn = 12000
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
""")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(owner.argv(["pgbouncer", config], die_with_parent="QUIT"), cwd="/",
                                            env=owner.environment(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)
        wait_until(self.answers, 20, f"pgbouncer answers:\n{self.log.read_text()}")

    def answers(self):
        try:
            IdleClient(self.host, self.port, "app").close()
        except OSError:
            return False
        return True

    def stop(self):
        self.process.kill()
        self.process.wait()


class IdleClient:
    """A session that was let in and does nothing; cheap enough for ten thousand."""

    def __init__(self, host, port, user):
        self.socket = socket.create_connection((host, port), timeout=60)
        packet = struct.pack("!i", 196608) + f"user\0{user}\0database\0app\0\0".encode()
        self.socket.sendall(struct.pack("!i", len(packet) + 4) + packet)
        self.read_until_ready()

    def read_until_ready(self):
        received = b""
        while not received.endswith(b"Z\0\0\0\5I"):
            got = self.socket.recv(65536)
            if not got:
                raise OSError(f"the session ended: {received!r}")
            received += got
        return received

    def ask(self, sql):
        body = sql.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)
        answer = self.read_until_ready()
        assert b"SELECT 1" in answer, answer

    def close(self):
        self.socket.close()


class Bench:
    def __init__(self, cluster, base, options):
        self.cluster, self.options, self.base = cluster, options, base
        self.script = base / "select_only.sql"
        self.script.write_text(SCRIPT)
        router = cluster.router
        self.bouncer = PgBouncer(base, cluster.s0, cluster.owner)
        self.ways = {"direct": (cluster.s0.port, None), "pgbouncer": (self.bouncer.port, self.bouncer.process.pid),
                     "interlock": (router.pg_port, router.process.pid)}

    def pgbench(self, port, mode, clients, *more, user="app", seconds=None):
        argv = [self.cluster.s0.bin / "pgbench", "-n", "-M", mode, "-c", clients, "-j", 1,
                "-T", seconds or self.options.seconds, "-f", self.script, "-h", "127.0.0.1", "-p", port, "-U", user,
                *more, "app"]
        done = subprocess.run([str(word) for word in argv], cwd=self.base, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        values = dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
        transactions = next(int(line.split(":")[1].split("/")[0]) for line in done.stdout.splitlines()
                            if line.startswith("number of transactions actually processed"))
        return {"per_second": float(values["tps"].split()[0]), "transactions": transactions}

    def rounds(self, ways, measure):
        """name -> results of all rounds; the ways in turn, each second round backwards."""
        results = {way: [] for way in ways}
        for number in range(self.options.rounds):
            for way in (list(ways) if number % 2 == 0 else list(ways)[::-1]):
                results[way].append(measure(way))
        return results

    def load(self):
        def measure(way):
            name, mode = way
            port, pid = self.ways[name]
            before = cpu_seconds(pid) if pid else 0
            result = self.pgbench(port, mode, POOL)
            if pid:
                result["cpu_us"] = (cpu_seconds(pid) - before) / result["transactions"] * 1e6
            return result

        ways = [(name, mode) for mode in MODES for name in self.ways if (name, mode) != ("pgbouncer", "prepared")]
        results = self.rounds(ways, measure)
        report = {}
        for mode in MODES:
            report[mode] = {name: summary(results[name, mode]) for name in self.ways if (name, mode) in results}
            base = "extended" if mode == "prepared" else mode
            bouncer, ours = results["pgbouncer", base], results["interlock", mode]
            report[mode]["interlock/pgbouncer" + (" extended" if base != mode else "")] = {
                name: ratio(ours, bouncer, name) for name in ("per_second", "cpu_us")}
        return report

    def one(self):
        """Median latency of one client, from pgbench's own log of each transaction."""
        def measure(way):
            name, mode = way
            for old in self.base.glob("one.*"):
                old.unlink()
            self.pgbench(self.ways[name][0], mode, 1, "-l", "--log-prefix", "one")
            times = [int(line.split()[2]) for log in self.base.glob("one.*") for line in log.read_text().splitlines()]
            return {"p50_us": statistics.median(times)}

        ways = [(name, mode) for mode in MODES for name in self.ways if (name, mode) != ("pgbouncer", "prepared")]
        results = self.rounds(ways, measure)
        report = {mode: {name: statistics.median(r["p50_us"] for r in results[name, mode])
                         for name in self.ways if (name, mode) in results} for mode in MODES}
        for mode in ("simple", "extended"):
            report[mode]["interlock - pgbouncer"] = report[mode]["interlock"] - report[mode]["pgbouncer"]
        return report

    def idle(self):
        """Bytes of resident memory a client more costs, idle from the start and after one statement."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        report = {"clients": self.options.idle}
        for name in ("pgbouncer", "interlock"):
            port, pid = self.ways[name]
            clients = []
            try:
                IdleClient("127.0.0.1", port, "app").ask("SELECT abalance FROM pgbench_accounts WHERE aid = 1")
                before = resident(pid)
                clients += [IdleClient("127.0.0.1", port, "app") for _ in range(self.options.idle)]
                connected = resident(pid)
                for number, client in enumerate(clients):
                    client.ask(f"SELECT abalance FROM pgbench_accounts WHERE aid = {number % ROWS + 1}")
                asked = resident(pid)
            finally:
                for client in clients:
                    client.close()
            report[name] = {"connected": round((connected - before) / self.options.idle),
                            "after_one_statement": round((asked - before) / self.options.idle),
                            "process_kib_before": before // 1024}
        report["interlock/pgbouncer"] = {name: round(report["interlock"][name] / report["pgbouncer"][name], 3)
                                         for name in ("connected", "after_one_statement")}
        return report

    def checks(self):
        """The same load by a login whose sessions on the shard check nothing."""
        s0 = self.cluster.s0
        greeting = s0.sql("SELECT cluster_id::text, shard, extension_version FROM interlock.greet(1)")[0]
        s0.sql("CREATE ROLE bare LOGIN IN ROLE app")
        s0.sql(BARE_GREETING.format(cluster_id=greeting[0], shard=greeting[1], extension_version=greeting[2]))
        port = self.cluster.router.pg_port

        def measure(way):
            login, mode = way
            self.pgbench(port, mode, POOL, user=login, seconds=1)  # its backends are there now
            before = self.shard_cpu(login)
            result = self.pgbench(port, mode, POOL, user=login)
            after = self.shard_cpu(login)
            result["shard_cpu_us"] = sum(after[pid] - before[pid] for pid in after if pid in before) \
                / result["transactions"] * 1e6
            return result

        modes = ("simple", "prepared")
        results = self.rounds([(login, mode) for mode in modes for login in ("app", "bare")], measure)
        return {mode: {"on": summary(results["app", mode]), "off": summary(results["bare", mode]),
                       "on/off": {name: ratio(results["app", mode], results["bare", mode], name)
                                  for name in ("per_second", "shard_cpu_us")}} for mode in modes}

    def shard_cpu(self, login):
        rows = self.cluster.s0.sql("SELECT pid FROM pg_stat_activity WHERE usename = %s", login)
        return {pid: cpu_seconds(pid) for (pid,) in rows}


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def summary(results):
    report = {name: round(statistics.median(result[name] for result in results), 2)
              for name in ("per_second", "cpu_us", "shard_cpu_us") if name in results[0]}
    report["runs_per_second"] = [round(result["per_second"]) for result in results]
    if "cpu_us" in results[0]:
        report["runs_cpu_us"] = [round(result["cpu_us"], 2) for result in results]
    return report


def ratio(ours, theirs, name):
    """Of the medians, and the median of the rounds' own ratios, which a drifting machine moves less."""
    pairs = [one[name] / other[name] for one, other in zip(ours, theirs)]
    return {"of_medians": round(statistics.median(r[name] for r in ours) / statistics.median(r[name] for r in theirs), 3),
            "median_of_rounds": round(statistics.median(pairs), 3)}


def prepare(cluster):
    cluster.start_instances().create_tables()
    for shard in ("s0", "s1"):
        instance = cluster.instances[shard]
        steps = "dtgp" if shard == "s0" else "dtp"
        subprocess.run([str(instance.bin / "pgbench"), "-i", "-q", "-I", steps, "-h", "127.0.0.1", "-p",
                        str(instance.port), "-U", "postgres", "app"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        instance.sql("GRANT SELECT ON pgbench_accounts TO app")
    cluster.describe()
    with cluster.catalog.connect() as catalog:
        catalog.execute("SELECT interlock.declare_table('pgbench_accounts', 'lone', 'aid')")
    cluster.apply()
    cluster.s0.sql("VACUUM ANALYZE")
    cluster.new_router().start()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer, shorter runs: to see that it works")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--idle", type=int)
    parser.add_argument("--only", nargs="+", choices=("load", "one", "idle", "checks"),
                        default=["load", "one", "idle", "checks"])
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.seconds = options.seconds or (2 if options.quick else 5)
    options.idle = options.idle or (1000 if options.quick else 10_000)
    with instances_folder() as (folder, owner):
        cluster = BenchCluster(folder, owner, {"pg": {"max_clients": "12000"}})
        bench = None
        try:
            prepare(cluster)
            bench = Bench(cluster, folder, options)
            report = {part: getattr(bench, part)() for part in options.only}
            server = cluster.s0.value("SHOW server_version")
        finally:
            if bench:
                bench.bouncer.stop()
            cluster.down()
    version = subprocess.run(["pgbouncer", "--version"], text=True, stdout=subprocess.PIPE).stdout.splitlines()[0]
    print(json.dumps({"settings": {"rounds": options.rounds, "seconds": options.seconds, "pool_size": POOL,
                                   "clients": POOL, "rows": ROWS, "server": server, "pgbouncer": version},
                      **report}, indent=1))


if __name__ == "__main__":
    main()
