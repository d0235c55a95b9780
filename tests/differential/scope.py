"""What the generator knows while it writes one statement: relations in scope, holes, names."""

from dataclasses import dataclass, field

from . import schema
from .template import Hole

ALIASES = ["a", "b", "c", "o", "t", "x", "i", "orders", "accounts", "docs", "users", "stock", '"A"', '"Order"', '"select"',
           "account_id", "name", "k", "status", "order_id", "events", "excluded_", "public", "archive"]


@dataclass
class Out:
    """A column of a relation, or of a query's result."""

    name: str
    type: str
    pinned: tuple = ()      # (keyspace, which) when its value is known to be that key
    arithmetic: bool = True


@dataclass
class Source:
    """A relation in a FROM list."""

    alias: str
    columns: list
    table: object = None        # the sharded table it is
    key: str = ""               # the key column's name, of a table
    pinned: bool = False        # proven to be on the statement's shard
    nullable_side: bool = False


@dataclass
class Scope:
    sources: list = field(default_factory=list)
    outer: object = None
    since_comma: int = 0        # the relations from here on are joined to each other

    def aliases(self):
        return {source.alias for source in self.sources}


class Writer:
    """The state of one statement being written, and its smallest parts."""

    def __init__(self, rng, world, border):
        self.rng, self.world = rng, world
        self.border = border        # chance that a pin is replaced by something that only looks like one
        self.holes = []
        self.level = 1
        self.constructs = set()
        self.ctes = []              # Source-like: (name, columns)
        self.hidden = set()         # table names that a CTE hides
        self.binary = True
        self.shape_only = False
        self.budget = 7             # relations that may still be mentioned
        self.counter = 0

    # -- small parts -------------------------------------------------------------------------------

    def chance(self, share):
        return self.rng.random() < share

    def pick(self, *choices):
        return self.rng.choice(choices)

    def used(self, name, level=1):
        self.constructs.add(name)
        self.level = max(self.level, level)

    def hole(self, hole):
        self.holes.append(hole)
        return f"\x01{len(self.holes) - 1}\x02"

    def val(self, kind, fixed=None, parameter=True):
        if kind == "varchar(40)":
            kind = "text"
        style = "plain"
        if kind in ("text",):
            style = self.pick("plain", "plain", "plain", "dollar", "escape", "cast")
        elif kind in ("integer", "bigint"):
            style = self.pick("plain", "plain", "plain", "cast", "paren")
        elif kind in ("uuid", "bytea", "account_status"):
            style = "cast"
        return self.hole(Hole(kind, style=style, fixed=fixed, parameter=parameter))

    def key(self, table_, which=0, styles=None, kind=None, parameter=True):
        """A value for the table's key, of its own type unless `kind` says otherwise."""
        own = table_.types[table_.key]
        style = self.rng.choice(styles or ("plain", "plain", "plain", "quoted", "cast", "function_cast", "paren"))
        if own == "varchar(40)" or own in ("text", "uuid", "bytea"):
            if style in ("plain", "paren"):
                style = self.rng.choice(("quoted", "quoted", "cast") if own != "text" else ("quoted", "dollar", "escape"))
        if kind and kind != own:
            style = "cast"
        if style == "prefix":
            self.used("typed literal", 2)
        if own in ("text", "varchar(40)") and kind is None:
            kind = "text"
        return self.hole(Hole(kind or own, table_.keyspace, which, style, parameter))

    def fresh(self, prefix):
        self.counter += 1
        return f"{prefix}{self.counter}"

    def alias(self, scope, base=None):
        """A name not used yet in the scope, nor in those around it (which inner statements refer to)."""
        taken, outer = set(), scope
        while outer:
            taken |= outer.aliases()
            outer = outer.outer
        choices = [name for name in ALIASES if name not in taken]
        if self.chance(0.5) or not choices:
            return self.fresh(self.pick("t", "r"))
        return self.rng.choice(choices)

    def ref(self, source, column):
        name = column if isinstance(column, str) else column.name
        return f"{source.alias}.{name}" if source.alias else name

    # -- columns and expressions -------------------------------------------------------------------

    def columns_of(self, scope, kind=None):
        return [(source, column) for source in scope.sources for column in source.columns
                if kind is None or column.type == kind]

    def expression(self, scope, kind, depth=1):
        """An expression of that type over the scope; never one that can fail on some row."""
        columns = self.columns_of(scope, kind)
        if columns and self.chance(0.6):
            return self.ref(*self.rng.choice(columns))
        if depth > 0:
            inner = lambda k: self.expression(scope, k, depth - 1)  # noqa: E731
            if kind == "integer":
                small = [(s, c) for s, c in columns if c.arithmetic]
                one = self.ref(*self.rng.choice(small)) if small else self.val("integer")
                return self.pick(f"{one} + {self.val('integer')}", f"coalesce({one}, {self.val('integer')})",
                                 f"length({inner('text')})", f"CASE WHEN {self.condition(scope, 0)} THEN {one} ELSE {self.val('integer')} END",
                                 f"nullif({one}, 3)", f"greatest({one}, 2)", f"({one} % 7)", f"abs({one})", f"-{one}")
            if kind == "text":
                return self.pick(f"upper({inner('text')})", f"{inner('integer')}::text", f"{inner('text')} || {self.val('text')}",
                                 f"coalesce({inner('text')}, {self.val('text')})", f"substr({inner('text')}, 1, 3)",
                                 f"({inner('jsonb')} ->> 'a')", f"concat({inner('text')}, {inner('integer')})",
                                 f"trim({inner('text')})", f"CAST({inner('boolean')} AS text)")
            if kind == "numeric(12,2)":
                return self.pick(f"coalesce({inner(kind)}, {self.val(kind)})", f"({inner(kind)} + {self.val(kind)})")
            if kind == "boolean":
                return f"({self.condition(scope, depth - 1)})"
            if kind == "date":
                return f"({inner('date')} + 1)"
            if kind == "jsonb":
                return self.pick(f"({inner('jsonb')} -> 'b')", f"jsonb_build_object('k', {inner('integer')})", f"to_jsonb({inner('text')})")
        if columns:
            return self.ref(*self.rng.choice(columns))
        return self.typed(kind)

    def typed(self, kind):
        """A constant whose type does not hang on where it stands."""
        value = self.val(kind)
        if kind in ("text", "varchar(40)"):
            return f"{value}::text" if self.holes[-1].style != "cast" else value
        return value if self.holes[-1].style == "cast" else f"({value})::{kind}"

    COMPARABLE = ("integer", "text", "numeric(12,2)", "bigint", "boolean", "date", "timestamptz", "account_status", "uuid")

    def condition(self, scope, depth=1):
        """A condition that pins nothing, and can fail on no row."""
        columns = [(s, c) for s, c in self.columns_of(scope) if not c.pinned]
        if not columns:
            return self.pick("true", "1 = 1", "2 > 1", "NULL IS NULL")
        source, column = self.rng.choice(columns)
        one = self.ref(source, column)
        choice = self.rng.randrange(12)
        if choice == 0 or column.type not in self.COMPARABLE:
            if column.type == "jsonb" and self.chance(0.6):
                return self.pick(f"{one} ? 'a'", f"{one} @> '{{\"a\": 1}}'", f"{one} ->> 'a' IS NULL", f"jsonb_typeof({one}) = 'object'")
            if column.type.endswith("[]") and self.chance(0.6):
                element = self.val(column.type[:-2])
                return self.pick(f"{element} = ANY ({one})", f"cardinality({one}) > 1", f"NOT {element} = ANY ({one})")
            return f"{one} IS {self.pick('', 'NOT ')}NULL"
        kind = "text" if column.type == "varchar(40)" else column.type
        if choice <= 3:
            return f"{one} {self.pick('=', '<>', '<', '>', '>=', '<=')} {self.val(kind)}"
        if choice == 4:
            others = [self.ref(s, c) for s, c in self.columns_of(scope, column.type) if not (s is source and c is column)]
            if others:
                return f"{one} {self.pick('<>', '<', 'IS DISTINCT FROM')} {self.rng.choice(others)}"
        if choice == 5:
            return f"{one} {self.pick('IN', 'NOT IN')} ({self.val(kind)}, {self.val(kind)})"
        if choice == 6:
            return f"{one} {self.pick('', 'NOT ')}BETWEEN {self.val(kind)} AND {self.val(kind)}"
        if choice == 7 and kind == "text":
            return self.pick(f"{one} LIKE '%e%'", f"{one} ~ '^[a-p]'", f"{one} NOT ILIKE 'O%'", f"lower({one}) = {self.val('text')}")
        if choice == 8 and depth > 0:
            return f"NOT ({self.condition(scope, depth - 1)})"
        if choice == 9 and depth > 0:
            return f"({self.condition(scope, depth - 1)} OR {self.condition(scope, depth - 1)})"
        if choice == 10:
            return f"coalesce({one} = {self.val(kind)}, {self.pick('true', 'false')})"
        return f"{one} IS NOT DISTINCT FROM {self.val(kind)}"


def table_outputs(table_, which=None, names=None):
    """The columns of a table as a Source shows them."""
    found = []
    for index, column in enumerate(table_.columns):
        is_key = column.name == table_.key
        found.append(Out(names[index] if names else column.name,
                         "text" if column.type == "varchar(40)" and not is_key else column.type,
                         (table_.keyspace, which) if is_key and which is not None else (),
                         arithmetic=not is_key and column.name != "supplier" and column.name != "parent"))
    return found


TABLES = schema.TABLES
