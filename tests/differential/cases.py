"""Hand-written statements (cases_*.txt), each with what the router has to do with it.

A line is `expectation | statement`. Expectations:
  ok       accepted, with the unsharded database's rows, tag or error
  ordered  the same, the order of the rows too
  shape    accepted; only the columns, the tag and the number of rows are the same
  Rnn      refused with this code (Rnn/Rmm: one of them; R: any)
  any      refused or right: nothing else is asked for
Names in braces are keys: {k} {k2} accounts on one shard, {far} on the other; {u} {u2} {ufar} users, {d} {d2}
{dfar} docs, {r} {r2} {rfar} regions; those without `far` are all on one shard. In cases_sequences.txt the statements between two lines `----` are one
session's.
"""

from collections import Counter
from pathlib import Path

from . import schema

FOLDER = Path(__file__).parent


def parse(text):
    """(expectation, statement) of each line."""
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        expectation, _, statement = line.partition(" |")
        found.append((expectation.strip(), statement[1:]))
    return found


def load(group):
    return parse((FOLDER / f"cases_{group}.txt").read_text())


def sequences():
    return [parse(part) for part in (FOLDER / "cases_sequences.txt").read_text().split("----\n")]


def keys(world, side, rows):
    """Values for the names in braces: keys that have rows in several tables. `rows` as World.rows() gives them."""
    other = "s1" if side == "s0" else "s0"
    found = {}
    for name, keyspace, tables in (("k", "accounts", ("accounts", "orders", "order_items", "events")),
                                   ("u", "users", ("users", "sessions")), ("d", "docs", ("docs", "doc_tags")),
                                   ("r", "regions", ("regions", "stock"))):
        counts = {}
        for table in tables:
            for row in rows[table]:
                counts.setdefault(world.key_of(schema.BY_NAME[table], row), Counter())[table] += 1

        def best(where):
            fit = [key for key in world.keys(keyspace, where) if isinstance(key, str) and not set(key) & set("'\\\n{}")
                   or isinstance(key, int) and 0 < key < 30]
            return sorted(fit, key=lambda key: (len(counts.get(key, ())), sum(counts.get(key, Counter()).values())), reverse=True)

        near, far = best(side), best(other)
        found[name], found[name + "2"] = near[:2]
        found["far" if name == "k" else name + "far"] = far[0]
    return found


def filled(statement, names):
    for name in sorted(names, key=len, reverse=True):
        statement = statement.replace("{" + name + "}", str(names[name]))
    return statement
