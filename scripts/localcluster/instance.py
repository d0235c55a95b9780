"""One PostgreSQL instance on a loopback port: its data folder, configuration and life."""

import functools
import os
import signal
import subprocess
import time
from pathlib import Path


class InstanceError(RuntimeError):
    """A PostgreSQL program failed; the text says which and what it printed."""


def bindir():
    """Where the server's programs are: beside PG_CONFIG, else beside the one scripts/pg_config finds."""
    finder = Path(__file__).resolve().parent.parent / "pg_config"
    pg_config = os.environ.get("PG_CONFIG") or subprocess.check_output([finder], text=True).strip()
    return Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())


@functools.cache
def move_settings(programs):
    """What a server needs so that buckets can be moved: name -> value.

    Recent minor releases let nobody, superusers neither, use an output plugin that is not in a list.
    """
    settings = {"wal_level": "logical"}
    known = subprocess.check_output([programs / "postgres", "--describe-config"], text=True)
    if any(line.startswith("output_plugin_libraries\t") for line in known.splitlines()):
        settings["output_plugin_libraries"] = "pgoutput, test_decoding, interlock"
    return settings


class Instance:
    """PostgreSQL in `data`, as `owner`, reachable only on 127.0.0.1:`port`, where it trusts everyone."""

    def __init__(self, name, data: Path, port, log: Path, owner):
        self.name, self.data, self.port, self.log, self.owner = name, data, port, log, owner
        self.bin = bindir()

    def conninfo(self, dbname, user=None):
        words = f"host=127.0.0.1 port={self.port} dbname={dbname}"
        return f"{words} user={user}" if user else words

    def run(self, argv, **options):
        """Runs a program as the owner; its output is the error text when it fails."""
        done = subprocess.run(self.owner.argv(argv), cwd="/", env=self.owner.environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, **options)
        if done.returncode != 0:
            raise InstanceError(f"{self.name}: {Path(argv[0]).name} failed:\n{done.stdout}{self.log_tail()}")
        return done.stdout

    def log_tail(self, lines=15):
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def create(self, settings):
        """initdb, with `settings` (name -> value) in a file of their own. `data` must not exist."""
        self.run([self.bin / "initdb", "-D", self.data, "--username=postgres", "--auth=trust",
                  "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"])
        self.configure(settings)

    def configure(self, settings):
        """Replaces our settings (those of `create` and the port's); they take effect at the next start."""
        lines = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "",
                 **move_settings(self.bin), **settings}
        ours = self.data / "interlock.conf"
        ours.write_text("".join(f"{name} = '{value}'\n" for name, value in lines.items()))
        self.owner.own(ours)
        main = self.data / "postgresql.conf"
        include = "include = 'interlock.conf'\n"
        if include not in main.read_text():
            with main.open("a") as file:
                file.write(include)
        # initdb's own file also opens the unix socket to everyone; there is none.
        hba = self.data / "pg_hba.conf"
        hba.write_text("host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n")

    def postmaster_pid(self):
        """The running postmaster's pid, or None. A pid file left by a crash does not count."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid = int(lines[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            return None
        return pid if str(self.data).encode() in command else None

    def start(self):
        """Starts it in the background and waits until it takes connections."""
        self.run([self.bin / "pg_ctl", "start", "-w", "-s", "-D", self.data, "-l", self.log])

    def stop(self, mode="fast"):
        """Stops it and waits. Stopping a stopped instance does nothing."""
        if self.postmaster_pid() is not None:
            self.run([self.bin / "pg_ctl", "stop", "-w", "-s", "-t", "60", "-m", mode, "-D", self.data])

    def psql(self, sql, dbname="postgres", user="postgres", check=True):
        """Runs SQL through psql, unaligned, tuples only; returns (exit status, what it printed)."""
        done = subprocess.run(
            [self.bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
             "-d", self.conninfo(dbname, user), "-f", "-"],
            input=sql, env=self.owner.environment(), cwd="/", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise InstanceError(f"{self.name}: {done.stdout.strip()}\nwhile running: {sql.strip()}")
        return done.returncode, done.stdout.strip()


def process_is(pid, word):
    """Whether process `pid` runs and its command line has `word` as one of its words' file names."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(Path(part.decode(errors="replace")).name == word for part in words if part)


def is_running(pid):
    """Whether `pid` is a live process (a zombie that nobody has waited for is not)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def end_process(pid, signals=(signal.SIGTERM, signal.SIGINT, signal.SIGKILL), each=10.0):
    """Sends the signals in turn until `pid` is gone; returns the last one that was needed."""
    for number in signals:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return number
        deadline = time.monotonic() + each
        while time.monotonic() < deadline:
            if not is_running(pid):
                return number
            time.sleep(0.02)
    raise InstanceError(f"process {pid} does not end")
