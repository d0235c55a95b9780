"""What the Python driver programs share: where to connect, fresh accounts, and the checks they run.

A driver program (in any language) is told by its environment where to connect (libpq's variables), what is
there (VIA: direct or router) and which accounts live on which shard (KEYS_S0, KEYS_S1). It prints one line
of JSON before each check, {"begin": name}, and one after it: {"check": name, "value": what a client saw}
or {"check": name, "failed": why}. Checks named in SKIP (one a line) are left out; those whose name begins
with "router: " are only for the router.
"""

import json
import os
import traceback

HOST, PORT = os.environ["PGHOST"], int(os.environ["PGPORT"])
DATABASE, USER, PASSWORD = (os.environ[name] for name in ("PGDATABASE", "PGUSER", "PGPASSWORD"))
ROUTER = os.environ["VIA"] == "router"
KEYS = {shard: [int(key) for key in os.environ[f"KEYS_{shard.upper()}"].split(",")] for shard in ("s0", "s1")}

# Of each check.
_checks = []


def check(name):
    """Decorates a function that takes nothing and returns what the client saw."""
    def add(function):
        _checks.append((name, function))
        return function
    return add


def s0():
    """An account of shard s0 that no other check uses."""
    return KEYS["s0"].pop(0)


def s1():
    """An account of shard s1 that no other check uses."""
    return KEYS["s1"].pop(0)


def say(**line):
    print(json.dumps(line, default=str), flush=True)


def run():
    skip = os.environ.get("SKIP", "").split("\n")
    for name, function in _checks:
        if name in skip or (name.startswith("router: ") and not ROUTER):
            continue
        say(begin=name)
        try:
            say(check=name, value=function())
        except Exception:
            say(check=name, failed=traceback.format_exc())
