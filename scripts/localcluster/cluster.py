"""The local two-shard cluster behind `make up` and `make down`."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from .home import Home
from .instance import Instance, InstanceError, end_process, process_is
from .line import LineClient
from .owner import instance_owner
from .ports import free_port, is_free
from .settings import render_ini

PG_PORT = 6432
LINE_PORT = 47210
DATABASE = "app"
SHARDS = ("s0", "s1")
BUCKETS = 16

SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "100",
    # Enough for a few moves of buckets at once.
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_logical_replication_workers": "8",
    "max_worker_processes": "16",
    "wal_retrieve_retry_interval": "500ms",
    "log_line_prefix": "%m [%p] %u@%d ",
}

ROLES = """
DO $$ BEGIN
    IF to_regrole('app') IS NULL THEN CREATE ROLE app LOGIN; END IF;
    IF to_regrole('interlock_router') IS NULL THEN CREATE ROLE interlock_router LOGIN; END IF;
    -- The router asks for it; the instances, which only this machine can reach, trust everyone.
    IF EXISTS (SELECT FROM pg_authid WHERE rolname = 'app' AND rolpassword IS NULL) THEN
        SET LOCAL password_encryption = 'scram-sha-256';
        ALTER ROLE app PASSWORD 'app';
    END IF;
END $$;
SELECT 'CREATE DATABASE app' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'app') \\gexec
"""

TABLE = """
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS interlock;
CREATE TABLE IF NOT EXISTS account (
    account_id bigint PRIMARY KEY, owner text, balance bigint CHECK (balance >= 0), version int);
CREATE INDEX IF NOT EXISTS account_by_balance ON account (balance DESC, account_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON account TO app;
"""

# After apply, which gives all shards the keys that sign cursors.
KEYSET = """
SET client_min_messages = warning;
SELECT interlock.keyset_create('richest', 'account', '{}', 'balance DESC, account_id')
 WHERE NOT EXISTS (SELECT FROM interlock.keysets WHERE name = 'richest');
"""


def describe_sql(conninfo):
    """The cluster's definition in the catalog. Every statement may run again."""
    lines = [
        "SET client_min_messages = warning;",
        "SELECT interlock.create_cluster('local') WHERE NOT EXISTS (SELECT FROM interlock.cluster);",
    ]
    for name in SHARDS:
        lines += [
            f"SELECT interlock.add_shard('{name}', '{conninfo[name]}')"
            f" WHERE NOT EXISTS (SELECT FROM interlock.shards WHERE name = '{name}');",
            f"SELECT interlock.set_shard_conninfo('{name}', '{conninfo[name]}')"
            f" WHERE EXISTS (SELECT FROM interlock.shards WHERE name = '{name}'"
            f" AND conninfo <> '{conninfo[name]}');",
        ]
    lines += [
        f"SELECT interlock.create_keyspace('accounts', 'bigint', {BUCKETS})"
        " WHERE NOT EXISTS (SELECT FROM interlock.keyspace WHERE name = 'accounts');",
        "SELECT interlock.declare_table('account', 'accounts', 'account_id', 'version')"
        " WHERE NOT EXISTS (SELECT FROM interlock.sharded_table WHERE table_name = 'account');",
        # Even buckets on s0, odd ones on s1: only the first time, so that later moves stay.
        *(f"SELECT interlock.assign('accounts', ARRAY(SELECT generate_series({first}, {BUCKETS - 1}, 2)), '{name}')"
          " WHERE NOT EXISTS (SELECT FROM interlock.route_versions);"
          for first, name in enumerate(SHARDS)),
        "SELECT interlock.grant_router('interlock_router');",
    ]
    return "\n".join(lines)


def choose_port(remembered, first):
    """The port of last time, or the first free one from `first` on."""
    if remembered and is_free(remembered):
        return remembered
    port = first
    while not is_free(port):
        print(f"port {port} is taken, trying {port + 1}")
        port += 1
    return port


class LocalCluster:
    """Instances s0 and s1, the catalog on s0, one router."""

    def __init__(self, root: Path):
        self.root = root
        self.owner = instance_owner()
        self.home = Home(root, self.owner)
        self.home.lock()

    @property
    def line_port(self):
        return self.home.state["line_port"]

    @property
    def pg_port(self):
        return self.home.state["pg_port"]

    @property
    def pg_conninfo(self):
        return f"host=127.0.0.1 port={self.pg_port} dbname={DATABASE} user=app password=app"

    def instance(self, name):
        port = self.home.state["ports"].get(name)
        return Instance(name, self.home.path(name), port, self.home.path(f"{name}.log"), self.owner)

    def conninfo(self, name, user=None):
        return self.instance(name).conninfo(DATABASE, user)

    # -- up --------------------------------------------------------------------------------------

    def up(self):
        for name in SHARDS:
            self.up_instance(name)
        for name in SHARDS:
            self.instance(name).psql(ROLES)
            self.instance(name).psql(TABLE, DATABASE)
        self.instance("s0").psql(describe_sql({name: self.conninfo(name) for name in SHARDS}), DATABASE)
        self.apply()
        for name in SHARDS:
            self.instance(name).psql(KEYSET, DATABASE)
        self.up_router()

    def up_instance(self, name):
        if self.instance(name).postmaster_pid() is not None:
            print(f"{name} runs on port {self.instance(name).port}")
            return
        ports = self.home.state["ports"]
        if name not in ports or not is_free(ports[name]):
            self.home.remember(ports={**ports, name: free_port()})
        instance = self.instance(name)
        instance.log.touch()
        self.owner.own(instance.log)
        if not (instance.data / "PG_VERSION").exists():
            self.create_instance(instance)
        instance.configure(SETTINGS)
        instance.start()
        print(f"{name} started on port {instance.port}")

    def create_instance(self, instance):
        """initdb beside, then rename: an interrupted one leaves no half-made data folder behind."""
        draft = self.home.place / f"{instance.name}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        self.owner.own(draft)
        Instance(instance.name, draft, instance.port, instance.log, self.owner).create(SETTINGS)
        draft.rename(instance.data)

    def apply(self):
        done = subprocess.run(
            [self.root / "build" / "interlock", "apply", "--catalog", self.conninfo("s0", "postgres")],
            env={**self.owner.environment(), "PGUSER": "postgres"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print("interlock apply:")
        print("".join(f"    {line}\n" for line in done.stdout.splitlines()), end="")
        if done.returncode != 0:
            raise InstanceError("interlock apply failed")

    # -- the router ------------------------------------------------------------------------------

    def router_pid(self):
        pid = self.home.state["router_pid"]
        return pid if pid and process_is(pid, "interlock") else None

    def up_router(self):
        if self.router_pid() and self.router_answers():
            print(f"the router runs on ports {self.pg_port} (PostgreSQL) and {self.line_port} (line protocol)")
            return
        if self.router_pid():
            print("the router does not answer: ending it")
            end_process(self.router_pid())
        self.home.remember(pg_port=choose_port(self.pg_port, PG_PORT),
                           line_port=choose_port(self.line_port, LINE_PORT), router_pid=None)
        config, log = self.write_config(), self.home.path("router.log")
        with log.open("ab") as file:
            process = subprocess.Popen(
                self.owner.argv([self.router_binary(), "serve", "-c", config]), cwd="/",
                env=self.owner.environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True)
        deadline = time.monotonic() + 30
        while not self.router_answers():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise InstanceError(f"the router did not start:\n{tail}")
            time.sleep(0.05)
        self.home.remember(router_pid=process.pid)
        print(f"the router started on ports {self.pg_port} (PostgreSQL) and {self.line_port} (line protocol)")

    def write_config(self):
        config = self.home.path("interlock.ini")
        config.write_text(
            "# Written by `make up`; SIGHUP makes the router read it again.\n" + render_ini({
                "catalog": {"conninfo": self.conninfo("s0", "interlock_router")},
                "pg": {"listen": f"127.0.0.1:{self.pg_port}"},
                "line": {"listen": f"127.0.0.1:{self.line_port}"},
                "backend": {"options": "user=app"},
            }))
        return config

    def router_binary(self):
        """The built binary, or a copy where the instances' user cannot reach the checkout."""
        built = self.root / "build" / "interlock"
        if not self.owner.switch or self.owner.can_reach(built.parent):
            return built
        copy = self.home.path("interlock")
        shutil.copy2(built, copy.with_suffix(".new"))
        copy.with_suffix(".new").rename(copy)
        return copy

    def psql(self, script):
        """Runs a script through psql on the router's PostgreSQL listener; what it printed, errors included."""
        done = subprocess.run([self.instance("s0").bin / "psql", "-X", "-d", self.pg_conninfo],
                              input=script, env=self.owner.environment(), cwd="/", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise InstanceError(f"psql failed:\n{done.stdout}")
        return done.stdout

    def router_answers(self):
        try:
            with LineClient("127.0.0.1", self.line_port, timeout=3) as client:
                return client.status().rv > 0
        except (OSError, ValueError):
            return False

    # -- down ------------------------------------------------------------------------------------

    def down(self, purge):
        if self.router_pid():
            end_process(self.router_pid())
            print("the router stopped")
        self.home.remember(router_pid=None)
        for name in SHARDS:
            instance = self.instance(name)
            if instance.postmaster_pid() is not None:
                instance.stop()
                print(f"{name} stopped")
        if purge:
            self.home.purge()
            print("the local cluster's data is deleted")
