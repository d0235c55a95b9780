"""Random statements: templates of all kinds."""

from .template import Template
from .writes import Writes


def recursive(w):
    """A recursive CTE over one table."""
    table = w.rng.choice([t for t in w.tables() if t.name in ("orders", "order_items", "sessions", "stock", "events")])
    step = table.primary[-1] if table.types[table.primary[-1]] == "integer" else "qty"
    key, name = table.key, w.name_of(table)
    w.constructs.add("recursive CTE")
    form = w.rng.randrange(4)
    link = f"o.{key} = {w.key(table)}"
    if form == 1:
        w.used("recursion along the key", 3)
        link = f"o.{key} = r.k"
    first = f"{key} = {w.key(table)}"
    if w.border and w.chance(0.3):
        w.level = 3
        first, link = w.pick((first, "true"), ("true", link), (f"({first} OR {step} = 1)", link))
    union = w.pick("UNION", "UNION", "UNION ALL")
    tail = w.pick("SELECT * FROM r", "SELECT count(*), max(n) FROM r", "SELECT k, count(*) FROM r GROUP BY k",
                  f"SELECT r.x FROM r JOIN {name} AS z ON z.{step} = r.x WHERE z.{key} = {w.key(table)}")
    return (f"WITH RECURSIVE r(k, x, n) AS (SELECT {key}, {step}, 1 FROM {name} WHERE {first} {union} "
            f"SELECT o.{key}, o.{step}, r.n + 1 FROM r JOIN {name} AS o ON o.{step} = r.x + 1 AND {link} WHERE r.n < 3) {tail}")


class Statements(Writes):
    @staticmethod
    def tables():
        from .scope import TABLES
        return TABLES


def comment(rng):
    return rng.choice([" ", " ", " ", "\n", "\t", " /* a comment */ ", " -- to the end\n", " /* nested /* one */ ; */ ", " /* '$1 */ "])


def decorate(rng, text):
    """Comments and white space where a keyword stands; a semicolon at the end."""
    if rng.random() < 0.12:
        for word in (" FROM ", " WHERE ", " SET ", " VALUES "):
            text = text.replace(word, comment(rng) + word.strip() + comment(rng), 1)
    if rng.random() < 0.05:
        text = rng.choice(["/* first */ ", "-- first\n", "  \n"]) + text
    if rng.random() < 0.05:
        text += rng.choice([";", " ;", "; ", "; -- end"])
    return text


def select(w):
    choice = w.rng.random()
    ordered = False
    if choice < 0.05:
        return recursive(w), False
    if choice < 0.12:  # the whole of one table's rows
        from .scope import Scope, Source, table_outputs
        table = w.rng.choice(w.tables())
        alias = w.alias(Scope())
        source = Source(alias, table_outputs(table, 0), table, table.key)
        sql = f"SELECT {w.pick('*', alias + '.*', alias)} FROM {w.name_of(table)} AS {alias} WHERE {w.pin(Scope([source]), source)}"
        w.binary = False
        if w.chance(0.3):
            w.constructs.add("FOR UPDATE")
            sql += w.pick(" FOR UPDATE", " FOR SHARE", " FOR NO KEY UPDATE", f" FOR UPDATE OF {alias}", " FOR KEY SHARE")
        return sql, False
    sql, columns = w.query(w.pick(0, 1, 1, 2, 2, 3))
    if " ORDER BY " not in sql.rpartition(")")[2] and " LIMIT" not in sql and "FETCH" not in sql and w.chance(0.45):
        sql += " ORDER BY " + ", ".join(str(n + 1) for n in range(len(columns)))
        # A jsonb or a numeric may be equal and yet be spelled in two ways.
        ordered = "GROUPING SETS" not in w.constructs and all(c.type in ("integer", "bigint", "text", "boolean", "date", "account_status", "uuid") for c in columns)
    if w.chance(0.04):
        w.shape_only = True
        w.constructs.add("volatile")
        item = w.pick("now()", "clock_timestamp()", "random()", "gen_random_uuid()", "current_timestamp", "statement_timestamp()", "current_date")
        return f"SELECT s.*, {item} AS v FROM ({sql}) AS s", False
    return sql, ordered


KINDS = (("select", select), ("insert", lambda w: (w.insert(), False)), ("update", lambda w: (w.update(), False)),
         ("delete", lambda w: (w.delete(), False)), ("merge", lambda w: (w.merge(), False)),
         ("writing cte", lambda w: (w.writing_cte(), False)))


def make(rng, world, border=None, kind=None):
    """A new template."""
    if border is None:
        border = rng.choice((0, 0, 0.25, 0.5))
    w = Statements(rng, world, border)
    if not kind:
        kind = rng.choices([k for k, _ in KINDS], (60, 14, 11, 6, 5, 4))[0]
    text, ordered = dict(KINDS)[kind](w)
    if border:
        w.level = 3
    if kind == "select" and rng.random() < 0.03:
        w.constructs.add("EXPLAIN")
        text, ordered, w.shape_only = rng.choice(("EXPLAIN ", "EXPLAIN (COSTS OFF) ", "EXPLAIN (FORMAT json) ")) + text, False, True
    return Template(decorate(rng, text), w.holes, w.level, ordered, w.shape_only, kind != "select", kind, w.binary,
                    tuple(sorted(w.constructs)))
