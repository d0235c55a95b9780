"""A PostgreSQL instance that lives as long as a test (or module) does."""

import os
import re
import signal
import subprocess
from pathlib import Path

import psycopg

from localcluster.instance import Instance, is_running
from localcluster.ports import free_port
from . import template
from .wait import wait_until

# Nothing here outlives the test, so nothing is synced to disk.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_prepared_transactions": "10",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_logical_replication_workers": "8",
    "max_worker_processes": "16",
    "max_wal_size": "256MB",
    "log_line_prefix": "%m [%p] %u@%d ",
    "log_min_messages": "log",
    "log_statement": "none",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# A backend that died of a signal, or the postmaster that gave up.
CRASH = re.compile(r"was terminated by signal (?!9\b)|PANIC:|TRAP:|could not find .* in the lock table")


class Postgres(Instance):
    """Started as a child of the tests: it dies with them, and no other process is ever signalled."""

    def __init__(self, base: Path, name, owner, settings=None):
        super().__init__(name, base / name, free_port(), base / f"{name}.log", owner)
        self.settings = {**SETTINGS, **(settings or {})}
        self.env = {}  # what the server's environment has besides
        self.process = None
        self.log_checked = 0
        template.copy_to(self.data, owner)
        self.configure(self.settings)

    def launch(self):
        """Starts it without waiting. In the main thread: the process ends with the thread that started it."""
        self.log_file = self.log.open("ab")
        self.process = subprocess.Popen(
            self.owner.argv([self.bin / "postgres", "-D", self.data], die_with_parent="QUIT"),
            cwd="/", env={**self.owner.environment(), **self.env}, stdin=subprocess.DEVNULL,
            stdout=self.log_file, stderr=self.log_file, start_new_session=True)
        return self

    def start(self):
        return self.launch().wait_for_it()

    def wait_for_it(self):
        wait_until(self.accepts, 60, f"{self.name} takes connections")
        return self

    def accepts(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended at start:\n{self.log_tail()}")
        try:
            self.connect("postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode="fast"):
        """smart, fast or immediate; waits until the postmaster is gone."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal({"smart": signal.SIGTERM, "fast": signal.SIGINT,
                                  "immediate": signal.SIGQUIT}[mode])
        self.process.wait(60)
        self.log_file.close()

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def kill(self):
        """kill -9 of the postmaster and its children: a crash of the machine, as far as peers see."""
        family = self.family()
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(30)
        wait_until(lambda: not any(is_running(pid) for pid in family), 30, "all processes gone")
        self.log_file.close()

    def family(self):
        """The postmaster and its direct children."""
        parent = self.process.pid
        children = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(after_name[1]) == parent:
                    children.append(int(entry.name))
        return [parent, *children]

    def freeze(self):
        """Stops every process of the instance (SIGSTOP): connections stay, nothing answers."""
        self.frozen = self.family()
        for pid in self.frozen:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.frozen:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    def connect(self, dbname="app", user="postgres", **options):
        """A psycopg connection in autocommit mode; options go to libpq (but `autocommit`)."""
        autocommit = options.pop("autocommit", True)
        return psycopg.connect(self.conninfo(dbname, user), autocommit=autocommit, **options)

    def sql(self, text, *params, dbname="app", user="postgres"):
        """Runs one statement (or, without parameters, several) and returns the last one's rows."""
        with self.connect(dbname, user) as connection:
            cursor = connection.execute(text, params or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def value(self, text, *params, dbname="app", user="postgres"):
        """The first column of the first row."""
        rows = self.sql(text, *params, dbname=dbname, user=user)
        return rows[0][0] if rows else None

    def log_mark(self):
        """A place in the log, for `log_since`."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, mark):
        with self.log.open("rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace")

    def check_log(self):
        """Fails when a backend crashed since the last look."""
        text = self.log_since(self.log_checked) if self.log.exists() else ""
        self.log_checked = self.log_mark()
        crash = CRASH.search(text)
        assert not crash, f"{self.name} crashed:\n{text[max(0, crash.start() - 500):crash.end() + 1500]}"
