"""A standby of an instance, which can be cut off from it and promoted."""

import subprocess

from localcluster.instance import Instance
from localcluster.ports import free_port
from .postgres import Postgres
from .wait import wait_until


def either(*instances):
    """A connection string that leads to whichever of them takes writes, as operators write it."""
    ports = ",".join(str(instance.port) for instance in instances)
    hosts = ",".join(["127.0.0.1"] * len(instances))
    return f"host={hosts} port={ports} dbname=app target_session_attrs=read-write"


class Standby(Postgres):
    """Streams from `primary`; runs as soon as it is made."""

    def __init__(self, primary, name):
        base = primary.data.parent
        Instance.__init__(self, name, base / name, free_port(), base / f"{name}.log", primary.owner)
        self.settings = {**primary.settings, "hot_standby": "on"}
        self.env = {}
        self.process = None
        self.log_checked = 0
        self.primary = primary
        subprocess.run(self.owner.argv([self.bin / "pg_basebackup", "-D", self.data, "-d", primary.conninfo("", "postgres"),
                                        "--checkpoint=fast", "--no-sync", "-X", "stream"]),
                       cwd="/", env=self.owner.environment(), check=True)
        self.follow()
        self.start()

    def follow(self, primary_conninfo=None):
        """Takes the write-ahead log from there; from the primary if nothing is given, from nowhere if it is empty."""
        if primary_conninfo is None:
            primary_conninfo = self.primary.conninfo("", "postgres").replace(" dbname=", "")
        signal_file = self.data / "standby.signal"
        signal_file.touch()
        self.owner.own(signal_file)
        self.configure({**self.settings, "primary_conninfo": primary_conninfo})

    def catch_up(self):
        """Waits until it has replayed what the primary has written so far."""
        written = self.primary.value("SELECT pg_current_wal_flush_lsn()::text", dbname="postgres")
        wait_until(lambda: self.value("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written, dbname="postgres"),
                   30, f"{self.name} has replayed {written}")
        return self

    def cut_off(self):
        """From now on it learns nothing of what the primary does."""
        self.follow("")
        self.sql("SELECT pg_reload_conf()", dbname="postgres")
        wait_until(lambda: self.value("SELECT count(*) = 0 FROM pg_stat_wal_receiver", dbname="postgres"),
                   30, f"{self.name} receives nothing any more")
        return self

    def promote(self):
        self.sql("SELECT pg_promote(true, 60)", dbname="postgres")
        wait_until(lambda: not self.value("SELECT pg_is_in_recovery()", dbname="postgres"), 60, f"{self.name} is promoted")
        return self
