"""A statement with holes for its values, and how the holes are filled.

The generator makes a template once. It can then be filled again and again, with keys of either shard, as
literals or as parameters: that is how cached shapes and prepared statements meet other values.
"""

import re
import struct
import uuid
from dataclasses import dataclass

from . import schema

OIDS = {"bigint": 20, "integer": 23, "smallint": 21, "text": 25, "varchar(40)": 1043, "uuid": 2950, "bytea": 17,
        "boolean": 16, "numeric(12,2)": 1700, "date": 1082, "timestamptz": 1184, "jsonb": 3802, "text[]": 1009,
        "integer[]": 1007}
INTEGER = {"bigint": "!q", "integer": "!i", "smallint": "!h"}
HOLE = re.compile("\x01(\\d+)\x02")


@dataclass
class Hole:
    type: str               # SQL type of the value
    keyspace: str = ""      # of a key
    which: object = None    # 0, 1: keys of the statement's shard; 'far': of the other; 'any'; 'null'; None: no key
    style: str = "plain"    # plain, quoted, cast, function_cast, prefix, paren; dollar, escape for texts; odd
    parameter: bool = True  # may become a parameter
    group: int = -1         # holes of one group may share a parameter
    fixed: object = None    # a value that stays


@dataclass
class Filled:
    """A statement ready to be sent."""

    text: str
    types: list             # OIDs to declare, 0: left to the server
    values: list            # bytes or None
    formats: list


@dataclass
class Template:
    text: str
    holes: list
    level: int = 3          # 1: provably on one shard; 2: provable with more thought; 3: no claim
    ordered: bool = False   # the order of the rows is total
    shape_only: bool = False
    writes: bool = False
    kind: str = "select"
    binary: bool = True     # the result may be asked for in binary
    constructs: tuple = ()


class Environment:
    """The keys that a filling uses: two of each keyspace on the chosen shard, one on the other."""

    def __init__(self, rng, world, side=None):
        self.side = side or rng.choice(("s0", "s1"))
        self.world = world
        self.rng = rng
        other = "s1" if self.side == "s0" else "s0"
        self.keys = {}
        for keyspace in schema.KEYSPACES:
            near = rng.sample(world.keys(keyspace, self.side), 2)
            self.keys[keyspace] = (*near, rng.choice(world.keys(keyspace, other)))

    def value(self, hole):
        if hole.fixed is not None:
            return hole.fixed
        if hole.which == "null":
            return None
        if not hole.keyspace:
            if hole.type == "varchar(40)":
                return self.rng.choice(schema.KEYS["docs"])
            return self.rng.choice(schema.POOLS[hole.type])
        if hole.which == "any":
            key = self.rng.choice(schema.KEYS[hole.keyspace])
        else:
            key = self.keys[hole.keyspace][2 if hole.which == "far" else hole.which]
        if hole.keyspace == "regions" or hole.type in ("bigint", "integer", "smallint"):
            limit = {"smallint": 1 << 15, "integer": 1 << 31}.get(hole.type, 1 << 63)
            if not -limit <= key < limit:  # the same shard's key that fits
                side = self.world.shard[hole.keyspace, key]
                return next(k for k in self.world.keys(hole.keyspace, side) if -limit <= k < limit)
        return key


def quote(text):
    return "'" + text.replace("'", "''") + "'"


def spelling(rng, kind, value):
    """The value as text, in one of the spellings PostgreSQL reads."""
    if kind == "bytea" and isinstance(value, bytes):
        return "\\x" + (value.hex() if rng.random() < 0.8 else value.hex().upper())
    if kind == "uuid":
        form = rng.randrange(5)
        if form == 1:
            return value.upper()
        if form == 2:
            return "{" + value + "}"
        if form == 3:
            return value.replace("-", "")
    return str(value)


def literal(rng, hole, value):
    kind = {"numeric(12,2)": "numeric", "varchar(40)": "varchar"}.get(hole.type, hole.type)
    if value is None:
        return rng.choice(("NULL", f"NULL::{kind}"))
    text = spelling(rng, hole.type, value)
    number = hole.type in ("bigint", "integer", "smallint", "numeric(12,2)")
    bare = text if number or hole.type == "boolean" else quote(text)
    if hole.style == "plain":
        if hole.type in ("text[]", "integer[]", "jsonb", "timestamptz", "date", "account_status"):
            return f"{bare}::{kind}"
        return bare
    if hole.style == "quoted":
        return quote(text)
    if hole.style == "cast":  # a minus sign binds less than a cast
        return f"{bare if not text.startswith('-') or not number else quote(text)}::{kind}"
    if hole.style == "function_cast":
        return f"CAST({bare} AS {kind})"
    if hole.style == "prefix":
        return f"{kind if kind not in ('text[]', 'integer[]') else 'text'} {quote(text)}"
    if hole.style == "paren":
        return f"({bare})"
    if hole.style == "dollar":
        return f"$q${text}$q$" if "$" not in text else quote(text)
    if hole.style == "escape":
        escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
        return f"E'{escaped}'"
    if hole.style == "odd":
        if hole.type in INTEGER:
            return quote(rng.choice(("0", "+", " ", "-", "00", "\t")) + text + rng.choice(("", "", " ")))
        if hole.type in ("text", "varchar(40)"):
            return "E'" + "".join(f"\\U{ord(c):08x}" if rng.random() < 0.5 or c in "'\\" else c for c in text) + "'"
        return quote(text + rng.choice(("", " ")))
    raise AssertionError(hole.style)


def encoded(rng, hole, value, binary):
    """The bytes of a parameter."""
    if value is None:
        return None
    if binary:
        if hole.type in INTEGER:
            return struct.pack(INTEGER[hole.type], value)
        if hole.type == "uuid":
            return uuid.UUID(value).bytes
        if hole.type == "bytea" and isinstance(value, bytes):
            return value
        if hole.type == "boolean":
            return b"\1" if value == "true" else b"\0"
    return spelling(rng, hole.type, value).encode()


def can_be_binary(hole):
    return (hole.type in (*INTEGER, "uuid", "boolean", "text", "varchar(40)") or
            hole.type == "bytea" and bool(hole.keyspace))


class Layout:
    """Which holes are parameters, with which types and in which format: fixed when a statement is prepared."""

    def __init__(self, rng, template, share=0.7):
        self.numbers, self.order, self.declared, self.binary = {}, [], [], []
        self.odd = set()    # parameters declared as another type than they are cast to, and spelled oddly
        groups = {}
        used = {int(number) for number in HOLE.findall(template.text)}
        for index, hole in enumerate(template.holes):
            if index not in used or not hole.parameter or rng.random() >= share or hole.which == "null" and rng.random() < 0.5:
                continue
            shared = (hole.keyspace, hole.which, hole.type)
            if hole.keyspace and hole.which in (0, 1, "far") and shared in groups and rng.random() < 0.6:
                self.numbers[index] = groups[shared]
                continue
            self.order.append(index)
            number = len(self.order)
            self.numbers[index] = number
            groups[shared] = number
            if hole.keyspace and "cast" in hole.style and rng.random() < 0.03:
                self.odd.add(index)
                self.declared.append(rng.choice((20, 21, 23, 25, 1043, 1700, 701, 2950, 17)))
                self.binary.append(False)
                continue
            self.declared.append(OIDS.get(hole.type, 0) if rng.random() < 0.4 else 0)
            self.binary.append(can_be_binary(hole) and rng.random() < 0.5)
        if rng.random() < 0.1 and len(self.order) > 1:  # $2 before $1
            turned = len(self.order)
            self.numbers = {index: turned + 1 - number for index, number in self.numbers.items()}
            self.order.reverse()
            self.declared.reverse()
            self.binary.reverse()


def parameter(hole, number, declared):
    kind = {"numeric(12,2)": "numeric", "varchar(40)": "varchar"}.get(hole.type, hole.type)
    if hole.style in ("cast", "prefix", "escape"):
        return f"${number}::{kind}"
    if hole.style == "function_cast":
        return f"CAST(${number} AS {kind})"
    if not hole.keyspace and not declared or hole.type == "account_status":
        return f"${number}::{kind}"
    return f"(${number})" if hole.style == "paren" else f"${number}"


def fill(rng, template, environment, layout=None):
    """The template with values from the environment. Without a layout: literals only."""

    def put(found):
        index = int(found.group(1))
        hole = template.holes[index]
        if layout and index in layout.numbers:
            number = layout.numbers[index]
            return parameter(hole, number, layout.declared[number - 1])
        return literal(rng, hole, environment.value(hole))

    text = HOLE.sub(put, template.text)
    if not layout:
        return Filled(text, [], [], [])
    return Filled(text, layout.declared, bound(rng, template, environment, layout), [int(b) for b in layout.binary])


def bound(rng, template, environment, layout):
    """Values for the parameters of a statement that is already prepared."""
    values = [encoded(rng, template.holes[index], environment.value(template.holes[index]), layout.binary[n])
              for n, index in enumerate(layout.order)]
    for n, index in enumerate(layout.order):
        if index in layout.odd and values[n] is not None:
            values[n] = rng.choice((b"0", b"+", b" ", b"00", b"")) + values[n] + rng.choice((b"", b"", b" ", b".0"))
    return values
