"""How far a move is, while it lasts: at a terminal, in a log, for a program."""

import json
import os
import pty
import re
import subprocess

import pytest

from support.router import BINARY, environment
from support.wait import wait_until

ROWS, RATE = 1200, 400


@pytest.fixture
def filled(moving):
    """A bucket with enough rows for three seconds at the rate."""
    moving.fill(moved=0, near=2)
    key = moving.groups["moved"][0]
    moving.instances["s0"].sql("INSERT INTO register SELECT %s, n, n FROM generate_series(10, %s) n", key, ROWS + 9)
    moving.instances["s0"].sql("ANALYZE")
    yield moving


def arguments(cluster, *more):
    return [BINARY, "move", "--catalog", cluster.catalog_conninfo(), "--keyspace", "accounts", "--bucket", "0", "--to", "s1", "--rate", str(RATE), *more]


def test_a_program_sees_rows_rate_and_time_left_change(filled):
    done = subprocess.run(arguments(filled, "--json"), env=environment({"PGUSER": "postgres"}), text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    copying = [event for event in events if event["event"] == "copying"]
    assert len(copying) >= 2
    rows = [event["rows"] for event in copying]
    assert rows == sorted(rows) and rows[-1] > rows[0]
    for before, after in zip(copying, copying[1:]):
        assert after["seconds"] - before["seconds"] > 0.9 or after["table"] != before["table"]
    known = [event for event in copying if event["rows_per_second"]]
    # The throttle holds: what is read ahead is paid for before the next is read.
    assert known and all(event["seconds_left"] is not None for event in known)
    copied = next(event for event in events if event["event"] == "step" and event["step"] == "copied")
    began = next(event for event in events if event["event"] == "step" and event["step"] == "slot")
    assert copied["seconds"] - began["seconds"] > (ROWS / RATE) * 0.6, (began, copied)
    assert done.stderr == ""


def test_a_terminal_has_one_line_that_is_gone_in_the_end(filled):
    """What is said for good goes to standard output; the line is written over on the terminal, and taken away before that."""
    master, slave = pty.openpty()
    process = subprocess.Popen(arguments(filled), env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    screen = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        screen += piece
    os.close(master)
    assert process.wait(60) == 0, screen
    text = screen.decode()
    assert len(re.findall(r"\rcopying public\.register: \d+ of about \d+ rows \(\d+ %\), [^\r\n]*\x1b\[K", text)) >= 2, text
    # As a terminal shows it in the end: no line of progress is left, none is mixed with what was said.
    shown = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown.append(re.sub(r"\x1b\[K", "", line.rpartition("\r")[2]))
    assert all(line == "" or re.match(r"(move|copied|verified:|switched|removed) ", line) for line in shown), shown
    assert sum(line.startswith("copied 12") for line in shown) == 1, shown


def test_a_log_is_not_filled(filled):
    """Three seconds are too short for a line of progress in a log."""
    done = subprocess.run(arguments(filled), env=environment({"PGUSER": "postgres"}), text=True, capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "\r" not in done.stdout and "copying" not in done.stdout


def test_holders_are_told_while_they_hold(filled):
    mover = filled.moving(0, "s1", "--max-pause", "200ms", "--json", stop="after-copied")
    mover.stopped()
    holder = filled.connect("s0", autocommit=False)
    holder.execute("UPDATE account SET balance = balance WHERE account_id = %s", (filled.groups["moved"][0],))
    mover.go_on()

    def held_up():
        return [event for line in mover.text().splitlines() if (event := json.loads(line))["event"] == "held_up"]
    (told, *_) = wait_until(held_up, 60)
    assert [one["pid"] for one in told["holders"]] == [holder.info.backend_pid] and told["holders"][0]["state"] == "idle in transaction"
    # Its transaction was not ended, and goes on.
    holder.commit()
    mover.end()
    ended = json.loads(mover.text().splitlines()[-1])
    assert ended["event"] == "end" and ended["result"] == "done"
