"""Random SELECTs over all shards: ordered ones with LIMIT, aggregates, and such as must be refused.

A statement is text with {0}, {1}... for its values, so that one text can be sent with literals, or with
parameters in text or binary.
"""

import re
import struct
import uuid
from dataclasses import dataclass, field

from . import client, gather_shop

HOLE = re.compile(r"\{(\d+)\}")
HINT = "/* interlock: scatter */ "
KEYS = {"things": ["owner", "no"], "nothing": ["owner", "no"], "notes": ["note_id"], "paths": ["path"], "readings": ["sensor", "day"]}
COLUMNS = {
    "things": {"owner": "bigint", "no": "integer", "ref": "integer", **{name: kind.split(" COLLATE")[0] for name, kind in gather_shop.COLUMNS.items()}},
    "notes": {"note_id": "uuid", "body": "text", "score": "integer", "at": "timestamptz", '"Odd Name"': "numeric(8,3)"},
    "paths": {"path": "text", "size": "bigint"},
    "readings": {"sensor": "bigint", "day": "date", "value": "numeric(10,4)", "label": "text"},
}
COLUMNS["nothing"] = COLUMNS["things"]
# Without a sort key that can be merged, or equal values that look different. Groups of td can be merged.
UNSORTABLE = {"td", "cash", "doc"}
AMBIGUOUS = {"mixed", "span_odd"}
EXPRESSIONS = {  # of things: text, type; immutable, and the same whatever a plan does
    "i4 % 7": "integer", "coalesce(i4, 0)": "integer", "abs(i2::integer)": "integer", "length(tc)": "integer", "i2 * 2::bigint": "bigint",
    "CASE WHEN b THEN 1 WHEN b IS NULL THEN 2 ELSE 3 END": "integer", "n * 2": "numeric", "round(mixed, 1)": "numeric",
    "upper(tc)": "text", "tc || '-'": "text", "lower(ti)": "text", "coalesce(ti, '?')": "text", "td COLLATE \"C\"": "text", "left(vc, 1)": "text",
    "b IS NULL": "boolean", "NOT b": "boolean", "i4 > 0": "boolean", "extract(year FROM ts)": "numeric", "ts + interval '1 hour'": "timestamp",
    "d - 1": "date", "md5(bin)": "text", "encode(bin, 'hex') COLLATE \"C\"": "text", "owner": "bigint", "tz AT TIME ZONE 'UTC'": "timestamp",
    "nullif(i2, 0)": "smallint", "greatest(i2, 1::smallint)": "smallint",
}
NO_COLLATION = {"md5(bin)"}  # text under the database's own collation, libc: shown, not sorted by
OIDS = {"smallint": 21, "integer": 23, "bigint": 20, "text": 25, "numeric": 1700, "boolean": 16, "uuid": 2950, "date": 1082}
PACK = {"smallint": "!h", "integer": "!i", "bigint": "!q"}


@dataclass
class Value:
    type: str
    value: object

    def literal(self):
        if self.value is None:
            return "NULL"
        if self.type in PACK or self.type == "numeric" and str(self.value)[0] not in "NI-" or self.type == "boolean":
            return str(self.value) if not str(self.value).startswith("-") else f"({self.value})"
        return "'" + str(self.value).replace("'", "''") + "'"

    def encoded(self, binary):
        if self.value is None:
            return None
        if binary and self.type in PACK:
            return struct.pack(PACK[self.type], self.value)
        if binary and self.type == "uuid":
            return uuid.UUID(self.value).bytes
        return str(self.value).encode()


@dataclass
class Statement:
    text: str
    values: list
    level: int = 1          # 1: has to be answered; 2: has to be refused; 3: no claim
    ordered: bool = False
    kind: str = ""
    shape_only: bool = False
    constructs: set = field(default_factory=set)

    def literal_text(self):
        return self.text.format(*(value.literal() for value in self.values))

    def exchange(self, rng):
        """(bytes, what to show): as a Query, or by the extended protocol with parameters."""
        if rng.random() < 0.45:
            text = self.literal_text()
            return client.query(text), text
        prepared = self.prepare(rng)
        describe = client.describe(b"P", "") if rng.random() < 0.8 else b""
        return prepared.parse() + prepared.bind() + describe + client.execute() + client.SYNC, str(prepared)

    def prepare(self, rng):
        choice = rng.random()
        as_parameter = [choice < 0.7 or rng.random() < 0.5 for _ in self.values]
        numbers, shown = [], []
        for value, is_parameter in zip(self.values, as_parameter):
            if is_parameter:
                numbers.append(value)
                shown.append(f"${len(numbers)}")
            else:
                shown.append(value.literal())
        binary = [value.type in (*PACK, "uuid", "text") and rng.random() < 0.5 for value in numbers]
        types = [OIDS[value.type] if form or value.type == "boolean" or rng.random() < 0.4 else 0 for value, form in zip(numbers, binary)]
        return Prepared(self.text.format(*shown), numbers, types, [int(form) for form in binary], rng.choice(([], [], [0], [1], [1])))


@dataclass
class Prepared:
    """A statement with parameters, as it is parsed once and bound often."""

    text: str
    values: list
    types: list
    formats: list
    results: list

    def parse(self, name=""):
        return client.parse(name, self.text, self.types)

    def bind(self, portal="", name=""):
        values = [value.encoded(form) for value, form in zip(self.values, self.formats)]
        return client.bind(portal, name, values, self.formats, self.results)

    def other_values(self, rng):
        """Other numbers where numbers are, NULL now and then: LIMIT and OFFSET among them."""
        for index, value in enumerate(self.values):
            if value.type == "bigint" and rng.random() < 0.7:
                self.values[index] = Value("bigint", rng.choice((0, 1, 2, 4, 9, 30)))
        return self

    def __str__(self):
        return f"{self.text}\n   parameters {[v.value for v in self.values]} types {self.types} results {self.results}"


class Maker:
    def __init__(self, rng, hinted=True):
        self.rng, self.hinted = rng, hinted

    # -- parts -------------------------------------------------------------------------------------

    def chance(self, share):
        return self.rng.random() < share

    def pick(self, *choices):
        return self.rng.choice(choices)

    def start(self):
        self.values, self.level, self.constructs = [], 1, set()
        self.table = self.pick("things", "things", "things", "things", "notes", "paths", "readings", "nothing")
        self.alias = self.pick("", "", "t", '"T x"', "owner") if self.table != "paths" else self.pick("", "p")
        self.source = f"{self.pick('', '', 'public.')}{self.table}{self.pick(' AS ', ' ') + self.alias if self.alias else ''}"

    def value(self, kind, value):
        self.values.append(Value(kind, value))
        return f"{{{len(self.values) - 1}}}"

    def column(self, name=None):
        name = name or self.rng.choice(list(COLUMNS[self.table]))
        if self.chance(0.3):
            return f"{self.alias or self.table}.{name}"
        return name

    def expression(self):
        """(text, type, whether it can be sorted by, whether equal values look the same)"""
        if self.table in ("things", "nothing") and self.chance(0.3):
            text = self.rng.choice(list(EXPRESSIONS))
            return text, EXPRESSIONS[text], text not in NO_COLLATION, text not in ("round(mixed, 1)",)
        name = self.rng.choice(list(COLUMNS[self.table]))
        return self.column(name), COLUMNS[self.table][name], name not in UNSORTABLE, name not in AMBIGUOUS

    def condition(self):
        table = self.table
        if table in ("things", "nothing"):
            form = self.rng.randrange(13)
            if form == 0:
                return f"i4 {self.pick('>', '<=', '<>')} {self.value('integer', self.pick(-5, 0, 3, 100))}"
            if form == 1:
                return f"{self.column('owner')} > {self.value('bigint', self.pick(-1, 5, 1003, 1 << 62))}"
            if form == 2:
                return f"tc {self.pick('=', '>', '<')} {self.value('text', self.pick('a', 'é', '', 'zzz'))}"
            if form == 3:
                return f"d BETWEEN {self.value('date', '2023-12-31')} AND {self.value('date', '2024-02-29')}"
            if form == 4:
                return self.pick("b", "NOT b", "b IS NULL", "b IS NOT TRUE", "mood = 'ok'", "mood > 'awful'")
            if form == 5:
                return f"(i2 = {self.value('smallint', 7)} OR n > {self.value('numeric', '0.5')})"
            if form == 6:
                return f"{self.column('no')} % {self.value('integer', self.pick(2, 3, 50))} = 0"
            if form == 7:
                return self.pick("false", "no < 0", "ref IS NULL", "true")
            if form == 8:
                return "tz > '2024-03-31 00:45+00' AND span < interval '1 month'"
            if form == 9:
                return f"ref IN ({self.value('integer', 1)}, {self.value('integer', 2)}, 3, 4, 5)"
            if form == 10:
                return self.pick("tc LIKE 'a%'", "ti IN ('a', 'b')", "doc @> '{{\"a\": 1}}'", "vc IS DISTINCT FROM tc")
            if form == 11:
                return f"u {self.pick('=', '<>')} {self.value('uuid', gather_shop.POOLS['u'][2])}"
            return f"NOT (i8 < {self.value('bigint', 5)} AND f8 > 0)"
        if table == "notes":
            return self.pick("score > 1", "body IS NOT NULL", f"score = {self.value('integer', 2)}", f"body >= {self.value('text', 'a')}", "at IS NULL")
        if table == "paths":
            return self.pick("size > 0", f"path > {self.value('text', '/a')}", "parts IS NULL", f"size = {self.value('bigint', 1 << 62)}")
        return self.pick("day < '2024-01-01'", f"day > {self.value('date', '2023-06-01')}", "value > 0", f"sensor <= {self.value('bigint', 6)}", "label = 'a'")

    def where(self):
        if self.chance(0.45):
            return ""
        parts = [self.condition() for _ in range(self.pick(1, 1, 2))]
        return " WHERE " + self.pick(" AND ", " AND ", " OR ").join(parts)

    def direction(self):
        return self.pick("", "", " ASC", " DESC", " DESC") + self.pick("", "", " NULLS FIRST", " NULLS LAST")

    def cut(self, most=60):
        """LIMIT and OFFSET, in one of their spellings."""
        limit = self.value("bigint", self.pick(0, 1, 2, 3, 5, 10, 25, most))
        offset = self.value("bigint", self.pick(0, 1, 4, 17, 400)) if self.chance(0.35) else None
        form = self.rng.random()
        if form < 0.7 or offset is None and form < 0.85:
            parts = [f" LIMIT {limit}"] + ([f" OFFSET {offset}"] if offset else [])
            if self.chance(0.2):
                parts.reverse()
            return "".join(parts)
        self.constructs.add("FETCH FIRST")
        rows = f"FETCH {self.pick('FIRST', 'NEXT')} ({limit}) {self.pick('ROW', 'ROWS')} ONLY"
        return f" OFFSET {offset} {self.pick('ROWS', 'ROW')} {rows}" if offset else " " + rows

    def finish(self, text, **more):
        text = self.decorated(text)
        if self.hinted:
            text = self.pick(HINT, HINT, "/*interlock: scatter*/") + text
        text += self.pick("", "", "", ";", " ; ")
        # Of the values drawn, those that stand in the text, in its order.
        used = []
        text = HOLE.sub(lambda found: used.append(self.values[int(found.group(1))]) or f"{{{len(used) - 1}}}", text)
        self.values = used
        return Statement(text, self.values, self.level, constructs=self.constructs, **more)

    def decorated(self, text):
        """White space, comments and capitals where PostgreSQL does not care."""
        if self.chance(0.8):
            return text
        for word in (" FROM ", " WHERE ", " GROUP BY ", " ORDER BY ", " LIMIT ", " OFFSET ", " AND ", " FILTER ", " AS "):
            if word in text and self.chance(0.4):
                spelled = self.pick(word, word.lower(), word.title()).strip().replace(" ", self.pick(" ", "\n", "  ", " /* by */ "))
                before, after = (self.pick(" ", "\n", "\t", " /*) , ;ORDER BY 1*/ ", " --LIMIT 1 FROM\n", " /* /* ' */ $1 */ ") for _ in range(2))
                text = text.replace(word, before + spelled + after, 1)
        return text + self.pick("", "", " -- the end", " /* LIMIT 1 */", "\n")

    # -- statements --------------------------------------------------------------------------------

    def targets(self):
        """[(text, alias or None)]; ('*', None) alone counts for all columns."""
        if self.chance(0.2):
            return [(self.pick("*", f"{self.alias or self.table}.*"), None)]
        made = []
        for _ in range(self.rng.randint(1, 5)):
            form = self.rng.random()
            if form < 0.04 and self.table != "nothing":
                text = self.pick(f"{self.value('integer', self.pick(1, -5))}::integer + 1", f"coalesce(NULL, {self.value('text', self.pick('é', 'FROM', ''))}::text)")
            elif form < 0.08:
                text = self.pick("1", "'x'", "NULL", "true", "1.50", "'2024-01-01'::date")
            elif form < 0.12 and self.table == "things":
                text = self.pick("i4 + 1.5", "to_char(tz, 'YYYY-MM-DD HH24:MI')", "tz::text || ''", "row(b, i2)", "ARRAY[i2, 3]", "td || tc", "f8 * 2", "tz::date")
            else:
                text = self.expression()[0]
            alias = self.pick("x{}", "y{}", '"Q {}"', "owner{}", "tc{}", "value{}").format(len(made)) if self.chance(0.35) else None
            made.append((text, alias))
        return made

    def ordered(self):
        self.start()
        targets = self.targets()
        shown = ", ".join(text + (self.pick(" AS ", " AS ", " ") + alias if alias else "") for text, alias in targets)
        items = []
        for _ in range(self.pick(0, 1, 1, 2, 3)):
            if targets[0][0][-1] != "*" and self.chance(0.3):
                position = self.rng.randrange(len(targets))
                text, alias = targets[position]
                if not self.sortable_text(text):
                    continue
                items.append((alias if alias and self.chance(0.6) else str(position + 1)) + self.direction())
                self.constructs.add("ORDER BY of a target")
                continue
            text, _, sortable, _ = self.expression()
            if sortable:
                items.append(text + self.direction())
        keys = list(KEYS[self.table])
        self.rng.shuffle(keys)
        aliases = {alias for _, alias in targets}
        keys = [self.column(key) + self.direction() for key in keys]
        if self.chance(0.15) and self.table == "things":
            keys = ["ref" + self.direction()]
        if self.chance(0.3):
            self.rng.shuffle(items)
            items = keys + items
        else:
            items += keys
        assert not aliases & set(KEYS[self.table])
        return self.finish(f"SELECT {shown} FROM {self.source}{self.where()} ORDER BY {', '.join(items)}{self.cut()}",
                           ordered=True, kind="ordered")

    def sortable_text(self, text):
        """Of a target: whether it may be sorted by."""
        name = text.rpartition(".")[2]
        return name in COLUMNS[self.table] and name not in UNSORTABLE or text in EXPRESSIONS and text not in NO_COLLATION

    def aggregate_call(self):
        things = self.table in ("things", "nothing")
        numbers = {"things": ["i2", "i4", "i8", "n", "mixed", "span", "span_odd", "cash", "no", "owner", "i4 % 7", "n * 2", "i2 + 1", "length(tc)"],
                   "notes": ["score", '"Odd Name"'], "paths": ["size"], "readings": ["value", "sensor"]}["things" if things else self.table]
        form = self.rng.randrange(6)
        if form == 0:
            text = "count(*)"
        elif form == 1:
            text = f"count({self.expression()[0]})"
        elif form in (2, 3):
            column = self.rng.choice(numbers)
            text = f"{'sum' if form == 2 or column == 'cash' else 'avg'}({column})"
        else:
            for _ in range(20):
                expression, kind, sortable, same = self.expression()
                if sortable and same and kind not in ("boolean", "uuid", "bytea"):
                    break
            else:
                expression = KEYS[self.table][-1]
            if kind in ("boolean", "uuid", "bytea") or not same or not sortable:
                return "count(*)"
            text = f"{self.pick('min', 'max')}({expression})"
        if self.chance(0.2):
            if "*" not in text and self.chance(0.2):
                text = text.replace("(", "(ALL ", 1)
            text += f" FILTER (WHERE {self.condition()})"
        return text

    def aggregate(self):
        self.start()
        calls = [self.aggregate_call() for _ in range(self.rng.randint(1, 4))]
        targets = [(call, None) for call in calls]
        groups = []
        if self.chance(0.65):
            for _ in range(self.pick(1, 1, 2, 3)):
                text, kind, sortable, same = self.expression()
                sortable = sortable or kind == "text"
                if sortable and same and text not in {group for group, _ in groups}:
                    groups.append((text, kind))
        for text, _ in groups:
            if self.chance(0.85):
                targets.insert(self.rng.randrange(len(targets) + 1), (text, None))
        targets = [(text, f"{self.pick('x', 'total', 'y')}{index}" if self.chance(0.3) else None) for index, (text, _) in enumerate(targets)]
        shown = ", ".join(text + (" AS " + alias if alias else "") for text, alias in targets)
        text = f"SELECT {shown} FROM {self.source}{self.where()}"
        ordered = False
        if groups:
            spelled = []
            for group, _ in groups:
                place = next((index for index, (target, _) in enumerate(targets) if target == group), None)
                alias = targets[place][1] if place is not None else None
                spelled.append(group if place is None or self.chance(0.6) else alias if alias and self.chance(0.5) else str(place + 1))
            text += " GROUP BY " + ", ".join(spelled)
            sortable = all(group in EXPRESSIONS and group not in NO_COLLATION or self.sortable_text(group) for group, _ in groups)
            if sortable and self.chance(0.6):
                ordered = True
                items = []
                for group, _ in groups:
                    place = next((index for index, (target, _) in enumerate(targets) if target == group), None)
                    items.append((group if place is None or self.chance(0.6) else targets[place][1] or str(place + 1)) + self.direction())
                self.rng.shuffle(items)
                text += " ORDER BY " + ", ".join(items)
                if self.chance(0.5):
                    text += self.cut()
        return self.finish(text, ordered=ordered, kind="grouped" if groups else "aggregate")

    def refused(self):
        """What cannot be answered from the shards' answers, or is not supported: answered never, or rightly."""
        self.start()
        self.table, self.alias, self.source = "things", "", "things"
        self.level = 2
        text = self.rng.choice((
            "SELECT sum(f8) FROM things", "SELECT avg(f4) FROM things", "SELECT b, sum(f4) FROM things GROUP BY b",
            "SELECT sum(f8) FILTER (WHERE false) FROM things", "SELECT avg(i4::float8) FROM nothing",
            "SELECT count(DISTINCT i4) FROM things", "SELECT i4, count(*) FROM things GROUP BY i4 HAVING count(*) > 1",
            "SELECT array_agg(i4) FROM things", "SELECT string_agg(tc, ',') FROM things", "SELECT stddev(i4) FROM things",
            "SELECT bool_and(b) FROM things", "SELECT count(*) + 1 FROM things", "SELECT sum(i4) / count(*) FROM things",
            "SELECT i4, count(*) FROM things GROUP BY ROLLUP (i4)", "SELECT i4, count(*) FROM things GROUP BY GROUPING SETS ((i4), ())",
            "SELECT i4, count(*) FROM things GROUP BY i4 ORDER BY count(*) DESC, i4", "SELECT i4, count(*) AS n FROM things GROUP BY i4 ORDER BY n",
            "SELECT owner, no FROM things ORDER BY owner", "SELECT owner, no FROM things ORDER BY d LIMIT 5",
            "SELECT owner, no FROM things ORDER BY owner LIMIT 5", "SELECT owner, no FROM things ORDER BY i4, no LIMIT 5",
            "SELECT owner, no FROM things LIMIT 5", "SELECT owner, no FROM things", "SELECT * FROM things ORDER BY owner, no",
            "SELECT owner, no FROM things ORDER BY owner, no LIMIT 5 FOR UPDATE", "SELECT DISTINCT owner, no FROM things ORDER BY owner, no LIMIT 5",
            "SELECT owner, no FROM things ORDER BY owner, no FETCH FIRST 3 ROWS WITH TIES",
            "SELECT owner, row_number() OVER (ORDER BY owner, no) FROM things ORDER BY owner, no LIMIT 5",
            "SELECT owner, no, random() FROM things ORDER BY owner, no LIMIT 5", "SELECT owner, no FROM things ORDER BY random(), owner, no LIMIT 5",
            "SELECT t.owner, s.no FROM things t JOIN things s USING (owner) ORDER BY t.owner, s.no LIMIT 5",
            "SELECT owner, no FROM things UNION SELECT sensor, 1 FROM readings ORDER BY 1, 2 LIMIT 5",
            "WITH x AS (SELECT owner, no FROM things) SELECT * FROM x ORDER BY owner, no LIMIT 5",
            "SELECT * FROM (SELECT owner, no FROM things) AS x ORDER BY owner, no LIMIT 5",
            "SELECT owner, no, (SELECT max(no) FROM things) FROM things ORDER BY owner, no LIMIT 5",
            "SELECT owner, no FROM things WHERE no IN (SELECT score FROM notes) ORDER BY owner, no LIMIT 5",
            "SELECT owner, no FROM things ORDER BY owner, no LIMIT ALL", "SELECT owner, no FROM things ORDER BY owner, no LIMIT NULL",
            "SELECT owner, no FROM things ORDER BY owner, no LIMIT 2000000", "SELECT owner, no FROM things ORDER BY owner, no LIMIT 5 OFFSET 2000000",
            "SELECT owner, no FROM things ORDER BY cash, owner, no LIMIT 5", "SELECT owner, no FROM things ORDER BY doc, owner, no LIMIT 5",
            "SELECT owner, no FROM things ORDER BY td, owner, no LIMIT 5", "SELECT min(td) FROM things", "SELECT max(cash) FROM things",
            "SELECT generate_series(1, 2), owner, no FROM things ORDER BY owner, no LIMIT 5", "SELECT twice(no), owner FROM things ORDER BY owner, no LIMIT 5",
            "UPDATE things SET i4 = 1", "DELETE FROM things", "UPDATE things SET i4 = 1 WHERE i4 = 2 RETURNING owner"))
        return self.finish(text, kind="refused")

    def statement(self, refused=True):
        return self.rng.choices((self.ordered, self.aggregate, self.refused), (50, 42, 8 if refused else 0))[0]()
