"""`make up` and `make down`, by the script behind them, in a copy of the checkout."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import psycopg
import pytest

from localcluster.instance import is_running
from support import ROOT
from support.router import BINARY
from support.wait import wait_until


class Checkout:
    """A folder with our scripts and binary, and whatever `scripts/cluster` makes of it."""

    def __init__(self, root):
        self.root = root
        (root / "build").mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", root / "scripts")
        shutil.copy2(BINARY, root / "build" / "interlock")

    def run(self, *arguments, status=0):
        done = subprocess.run([self.root / "scripts" / "cluster", *arguments], text=True, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == status, done.stdout
        return done.stdout

    @property
    def var(self):
        return self.root / "var"

    def state(self):
        place = self.var if (self.var / "cluster.json").exists() else (self.var / "s0").resolve().parent
        return json.loads((place / "cluster.json").read_text())

    def postmaster(self, name):
        return int((self.var / name / "postmaster.pid").read_text().splitlines()[0])


@pytest.fixture
def checkout():
    root = Path(subprocess.check_output(["mktemp", "-d", "/tmp/interlock-checkout-XXXXXX"], text=True).strip())
    root.chmod(0o755)
    checkout = Checkout(root / "tree")
    yield checkout
    try:
        checkout.run("down", "--purge")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_up_makes_a_cluster_and_shows_the_tour_and_up_again_is_harmless(checkout):
    first = checkout.run("up")
    for word in ("s0 started", "s1 started", "the router started", "publish route version 1", "R10", "R12", "R13",
                 "EXPLAIN ROUTE", "IL101", "R31", "scripts/cluster ask", "make down"):
        assert word in first, f"{word!r} is not in:\n{first}"
    before = checkout.state(), checkout.postmaster("s0"), checkout.postmaster("s1")
    second = checkout.run("up")
    assert "nothing to do" in second.lower() and "the router runs" in second
    assert (checkout.state(), checkout.postmaster("s0"), checkout.postmaster("s1")) == before
    # The tour's answers are the same again, but for the process that gave them.
    answers = [[line for line in text.splitlines() if line.startswith("   < ")] for text in (first, second)]
    assert len(answers[0]) == len(answers[1]) > 25


def test_what_crashed_is_started_again_with_its_data(checkout):
    checkout.run("up", "--no-tour")
    key = 1
    checkout.run("ask", "INSERT INTO account (account_id, owner, balance) VALUES (?, ?, ?)", str(key), "kept", "5")
    os.kill(checkout.state()["router_pid"], signal.SIGKILL)
    again = checkout.run("up", "--no-tour")
    assert "the router started" in again and "s0 runs" in again
    postmaster = checkout.postmaster("s0")
    os.kill(postmaster, signal.SIGQUIT)
    wait_until(lambda: not is_running(postmaster), 20, "s0 is gone")
    again = checkout.run("up", "--no-tour")
    assert "s0 started" in again and "s1 runs" in again
    assert '"kept"' in checkout.run("ask", "SELECT owner FROM account WHERE account_id = ?", str(key))


def test_down_stops_everything_and_keeps_the_data_and_purge_deletes_it(checkout):
    checkout.run("up", "--no-tour")
    pids = [checkout.state()["router_pid"], checkout.postmaster("s0"), checkout.postmaster("s1")]
    checkout.run("down")
    assert not any(is_running(pid) for pid in pids)
    checkout.run("down")
    assert (checkout.var / "s0" / "PG_VERSION").exists()
    checkout.run("up", "--no-tour")
    checkout.run("down", "--purge")
    assert not checkout.var.exists()


def test_taken_ports_are_said_and_the_next_ones_are_used(checkout):
    with socket.socket() as one, socket.socket() as two:
        for squatter, port in ((one, 6432), (two, 47210)):
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                squatter.bind(("127.0.0.1", port))
                squatter.listen()
            except OSError:
                pass  # someone else has it already: as good
        text = checkout.run("up", "--no-tour")
    assert "port 6432 is taken" in text and "port 47210 is taken" in text
    assert checkout.state()["pg_port"] > 6432 and checkout.state()["line_port"] > 47210
    checkout.run("ask", "STATUS")


def test_the_postgresql_listener_asks_for_the_password_that_up_tells(checkout):
    text = checkout.run("up", "--no-tour")
    conninfo = re.search(r"the router +psql '([^']*)'", text).group(1)
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(conninfo.replace("password=app", "password=other"))


def test_a_shard_whose_port_was_taken_meanwhile_moves_to_another_and_the_router_finds_it(checkout):
    checkout.run("up", "--no-tour")
    checkout.run("down")
    port = checkout.state()["ports"]["s1"]
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        text = checkout.run("up")
    assert checkout.state()["ports"]["s1"] != port
    assert "publish route version 2" in text and "IL101" in text


@pytest.mark.skipif(os.getuid() != 0, reason="only root has instances run as another user")
def test_a_checkout_the_instances_user_cannot_enter_keeps_its_data_elsewhere(checkout, owner):
    checkout.root.parent.chmod(0o700)
    text = checkout.run("up")
    assert "IL101" in text
    data = checkout.var / "s0"
    assert data.is_symlink() and data.resolve().is_dir() and owner.can_reach(data.resolve().parent)
    elsewhere = data.resolve().parent
    checkout.run("up", "--no-tour")
    checkout.run("down", "--purge")
    assert not elsewhere.exists() and not checkout.var.exists()
