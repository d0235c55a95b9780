"""A mover as a process: started, stopped at a step, let go on, ended."""

import signal
import subprocess
from pathlib import Path

from .router import BINARY, FAULT, SLACK, environment, run_interlock
from .wait import wait_until

# Nothing a test moves takes longer than this.
DEADLINE = 90 * SLACK


class Mover:
    """A process `interlock move` as the superuser. `stop` names a step's point (after-copied, before-fenced) at which it
    stops itself, until go_on()."""

    def __init__(self, catalog, *arguments, stop=None, log: Path, env=None):
        self.log = log
        self.output = log.open("wb")
        hook = {"INTERLOCK_TEST_STOP": stop} if stop else {}
        self.point = stop
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", BINARY, "move", "--catalog", catalog, *map(str, arguments)],
            env=environment({"PGUSER": "postgres", **hook, **(env or {})}), cwd="/", stdin=subprocess.DEVNULL,
            stdout=self.output, stderr=self.output, start_new_session=True)

    def text(self):
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def is_stopped(self):
        if not self.running():
            raise AssertionError(f"the mover ended with {self.process.returncode} before {self.point}:\n{self.text()}")
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def stopped(self):
        """Waits until it has stopped itself."""
        wait_until(self.is_stopped, DEADLINE, f"the mover stops {self.point}")
        return self

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)
        return self

    def end(self, expect=0):
        """Waits for its end; returns what it said. `expect`: its exit status, None when any will do."""
        try:
            status = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the mover did not end:\n{self.text()}") from None
        self.output.close()
        said = self.text()
        assert status >= 0 and status != 99 and not FAULT.search(said), f"the mover ended with {status}:\n{said}"
        assert expect is None or status == expect, f"the mover ended with {status}:\n{said}"
        return said

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait(10)
        self.output.close()


def move_to_its_end(catalog, *arguments, expect=0, env=None):
    """`interlock move` as the superuser; CompletedProcess."""
    done = run_interlock("move", "--catalog", catalog, *arguments, env={"PGUSER": "postgres", **(env or {})},
                         timeout=DEADLINE)
    assert expect is None or done.returncode == expect, \
        f"move {' '.join(map(str, arguments))} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done
