"""Runs the driver programs of tests/drivers and judges what they report (see drivers/checks.py)."""

import json
import os
import re
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from . import ROOT
from .router import SLACK
from .shop import KEYS

FOLDER = ROOT / "tests" / "drivers"
ROUTER_ONLY = "router: "
WAYS = ("direct", "router")


class Program:
    """A driver's program. `argv` runs it; its checks are found in the text of `files` as check("name"."""

    def __init__(self, argv, *files, deadline=30, environment=None):
        self.argv, self.deadline, self.environment = argv, deadline * SLACK, environment or {}
        text = "".join((FOLDER / file).read_text() for file in files)
        self.names = re.findall(r"""check\("([^"]+)\"""", text)
        assert len(self.names) == len(set(self.names)) > 0

    def cases(self):
        """Parameters for a test: every check both ways; what only the router does, only there."""
        return [pytest.param(way, name, id=f"{way}-{name}")
                for way in WAYS for name in self.names if way == "router" or not name.startswith(ROUTER_ONLY)]


def python_program(file):
    return Program([sys.executable, file], file)


class Drivers:
    """Results of the programs on the plain server and through the router; each is run when first asked for."""

    def __init__(self, shop_of):
        self.shop_of = shop_of  # way -> shop
        self.results = {}

    def judge(self, program, way, name):
        """The check went through, and (through the router) saw what a client of the plain server sees."""
        seen = self.result(program, way, name)
        if way == "router" and not name.startswith(ROUTER_ONLY):
            control = self.result(program, "direct", name)
            if seen != control:
                pytest.fail(f"the plain server and the router differ:\n{json.dumps(control)}\n{json.dumps(seen)}",
                            pytrace=False)

    def result(self, program, way, name):
        if (program, way) not in self.results:
            self.results[program, way] = self.run(program, way)
        outcome = self.results[program, way].get(name, {"failed": "it was not run"})
        if "failed" in outcome:
            pytest.fail(f"{way}: {outcome['failed']}", pytrace=False)
        return outcome["value"]

    def run(self, program, way):
        """All checks of the program. One that hangs or ends the program fails; the rest are run again."""
        wanted = [name for name in program.names if way == "router" or not name.startswith(ROUTER_ONLY)]
        done = {}
        while any(name not in done for name in wanted):
            shop = self.shop_of(way)
            shop.fill()
            before = len(done)
            trouble = self.run_once(program, way, shop, done)
            if trouble and len(done) == before:
                done.update((name, {"failed": trouble}) for name in wanted if name not in done)
            elif not trouble:
                break
        return done

    def run_once(self, program, way, shop, done):
        """Adds to `done`; returns None, or why the program did not come to its end."""
        keys = {f"KEYS_{shard.upper()}": ",".join(map(str, KEYS[shard])) for shard in KEYS}
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith("PG")},
                       **shop.address.environment(), **keys, "VIA": way, "SKIP": "\n".join(done),
                       "PYTHONDONTWRITEBYTECODE": "1", **program.environment}
        process = subprocess.Popen(program.argv, env=environment, cwd=FOLDER, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        current, trouble, noise = None, None, []
        with process, selectors.DefaultSelector() as selector:
            buffers = {process.stdout: b"", process.stderr: b""}
            for stream in buffers:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map() and not trouble:
                ready = selector.select(program.deadline)
                if not ready:
                    trouble = f"nothing happened for {program.deadline} s"
                    process.kill()
                for key, _ in ready:
                    data = key.fileobj.read()
                    if data is None:
                        continue
                    if data == b"":
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        noise.append(data.decode(errors="replace"))
                    else:
                        *lines, buffers[process.stdout] = (buffers[process.stdout] + data).split(b"\n")
                        for line in map(json.loads, lines):
                            current = line.get("begin")
                            if "check" in line:
                                done[line["check"]] = line
        if not trouble and process.returncode != 0:
            trouble = f"the program ended with {process.returncode}"
        if trouble:
            trouble += ":\n" + "".join(noise)[-4000:]
            if current:
                done[current] = {"failed": trouble}
        return trouble
