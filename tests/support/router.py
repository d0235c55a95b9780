"""A router process: start, stop, kill, freeze, ask."""

import os
import re
import signal
import subprocess
from pathlib import Path

from localcluster.line import LineClient
from localcluster.ports import free_port
from localcluster.settings import render_ini
from . import ROOT
from .pgclient import PgClient
from .wait import wait_until

BINARY = Path(os.environ.get("INTERLOCK_BIN", ROOT / "build" / "interlock"))
if not BINARY.is_absolute():
    BINARY = ROOT / BINARY
SANITIZED = "asan" in BINARY.parts
# How much slower (and bigger) than a plain build things may be.
SLACK = 4 if SANITIZED else 1
# Freed memory that AddressSanitizer keeps from reuse, to catch those who still use it.
QUARANTINE_MIB = 64
# Any sign of a sanitizer, an assertion, or an exception that nobody caught.
FAULT = re.compile(r"Sanitizer|runtime error:|[Aa]ssertion|terminate called|stack smashing|"
                   r"pure virtual|double free|corrupted")
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "exitcode=99:detect_leaks=1:detect_stack_use_after_return=1:"
                    f"quarantine_size_mb={QUARANTINE_MIB}",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def memory_bound(mib):
    """KiB that a router may have grown by where a plain build is allowed `mib`."""
    return 1024 * (mib * SLACK + (QUARANTINE_MIB if SANITIZED else 0))


def environment(extra=None):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    return {**kept, **SANITIZER_OPTIONS, **(extra or {})}


def run_interlock(*argv, env=None, input=None, timeout=120, text=True):
    """Runs the binary to its end: CompletedProcess with stdout and stderr apart."""
    done = subprocess.run([BINARY, *map(str, argv)], env=environment(env), input=input, text=text,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout,
                          stdin=subprocess.DEVNULL if input is None else None)
    noise = done.stderr if text else done.stderr.decode(errors="replace")
    assert done.returncode >= 0 and done.returncode != 99 and not FAULT.search(noise), noise
    return done


class Router:
    """`interlock serve` with its own configuration file, port and log in `base`."""

    def __init__(self, base: Path, name, catalog, settings=None, env=None):
        self.base, self.name, self.env = base, name, env or {}
        self.config = base / f"{name}.ini"
        self.log = base / f"{name}.log"
        self.host, self.port = "127.0.0.1", free_port()
        self.settings = {
            "catalog": {"conninfo": catalog},
            "line": {"listen": f"{self.host}:{self.port}"},
            "log": {"level": "debug"},
        }
        for section, values in (settings or {}).items():
            self.settings.setdefault(section, {}).update(values)
        # A test that has a section [pg], be it empty, gets a PostgreSQL listener that trusts everyone.
        self.pg_port = free_port() if "pg" in self.settings else None
        if self.pg_port:
            self.settings["pg"] = {"listen": f"{self.host}:{self.pg_port}", "auth": "trust",
                                   **self.settings["pg"]}
        self.process = None
        self.log_checked = 0
        self.expected_end = False
        self.write_config()

    def write_config(self):
        self.config.write_text(render_ini(self.settings))

    def launch(self, *arguments):
        """Starts the process without waiting for it to be ready."""
        self.expected_end = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", BINARY, "serve", "-c", self.config, *arguments],
                env=environment(self.env), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        return self

    def start(self, *arguments, deadline=30, route=True):
        """Starts it and waits until it answers STATUS with (unless `route` is false) a route table."""
        self.launch(*arguments)
        wait_until(lambda: self.answers(route), deadline, f"{self.name} answers STATUS:\n{self.log_text()}")
        return self

    def answers(self, route):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log_text()}")
        try:
            with self.client(timeout=5) as client:
                return client.status().rv > 0 or not route
        except OSError:
            return False

    def client(self, timeout=15.0):
        return LineClient(self.host, self.port, timeout * SLACK)

    def pg_client(self, user="app", database="app", timeout=15.0, **options):
        """A client of the PostgreSQL listener."""
        return PgClient(self.pg_port, user, database, host=self.host, timeout=timeout * SLACK, **options)

    def status(self):
        with self.client() as client:
            return client.status()

    def send(self, number):
        self.process.send_signal(number)

    def freeze(self):
        self.send(signal.SIGSTOP)

    def thaw(self):
        self.send(signal.SIGCONT)

    def end(self, number=signal.SIGTERM, deadline=30):
        """Signals it and waits for its end; returns the exit status as Popen gives it."""
        self.expected_end = True
        self.send(number)
        return self.process.wait(deadline)

    def stop(self):
        """At the end of a test: it must go by itself, cleanly (and so that LeakSanitizer looks at it)."""
        if self.process is None or self.process.poll() is not None:
            return
        self.send(signal.SIGCONT)
        self.expected_end = True
        self.send(signal.SIGTERM)
        try:
            status = self.process.wait(20 * SLACK)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise AssertionError(f"{self.name} did not end on SIGTERM:\n{self.log_text()[-3000:]}") from None
        assert status == 0, f"{self.name} ended with {status}:\n{self.log_text()[-6000:]}"

    def resident_kib(self):
        """VmRSS of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.M).group(1))

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def log_text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_mark(self):
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, mark):
        with self.log.open("rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace")

    def check_log(self):
        """Fails on sanitizer or assertion text since the last look, and on an end nobody asked for."""
        text = self.log_since(self.log_checked) if self.log.exists() else ""
        self.log_checked = self.log_mark()
        fault = FAULT.search(text)
        assert not fault, f"{self.name}'s log:\n{text[max(0, fault.start() - 300):fault.start() + 6000]}"
        if self.process is not None and not self.expected_end:
            status = self.process.poll()
            assert status is None, f"{self.name} ended by itself with {status}:\n{text[-3000:]}"
