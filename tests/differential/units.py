"""Units: what one client does in one go. A single statement, a transaction, a pipeline, a cursor...

A unit is a generator of steps; a step is the bytes of one exchange (up to ReadyForQuery) and what is
known about its answer. The generator is told, step by step, how the exchange ended, so that it can stop
a transaction that failed.
"""

from dataclasses import dataclass, field

from . import client, generate
from .template import Environment, Layout, bound, fill


@dataclass
class Step:
    data: bytes
    show: str                       # for people
    templates: list = field(default_factory=list)   # one a result that is to be compared with care
    sql: str = ""                   # a single statement that can be shrunk
    level: int = 3                  # 1: has to be accepted
    fails: bytes = b""              # sent to the unsharded database where the router refused: must fail there too
    writes: bool = False
    statements: int = 1
    portal: bool = False            # several results that make up one


class Plain:
    """Stands for a template where there is none."""

    def __init__(self, ordered=False, shape_only=False, writes=False):
        self.ordered, self.shape_only, self.writes = ordered, shape_only, writes
        self.constructs, self.kind, self.level, self.binary = (), "fixed", 3, True


FAIL = client.query("SELECT 1/0")
PATHS = ["archive, public", "public, archive", "trap, public", "trap, pg_catalog, public", '"$user", public',
         "pg_catalog, public", "public, trap", "nowhere, public", "archive", "public", "''", "archive, pg_catalog"]
SETTINGS = ["TimeZone = 'Asia/Tokyo'", "TimeZone TO 'UTC'", "DateStyle = 'German'", "DateStyle = 'ISO, MDY'", "TIME ZONE 'America/New_York'",
            "IntervalStyle = 'iso_8601'", "extra_float_digits = 0", "enable_hashjoin = off", "enable_seqscan = off", "enable_seqscan = on",
            "bytea_output = 'escape'", "bytea_output = 'hex'", "application_name = 'differ'", "statement_timeout = '60s'", "work_mem = '1MB'"]


def show_values(values, formats):
    return [value if form or value is None else value.decode("utf-8", "replace") for value, form in
            zip(values, formats or [0] * len(values))]


class Units:
    def __init__(self, rng, world):
        self.rng, self.world = rng, world
        self.recent = []
        self.prepared = 0

    def template(self, border=None, kind=None):
        """A new one, or an old one that will meet other values."""
        if border is None and kind is None and self.recent and self.rng.random() < 0.25:
            return self.rng.choice(self.recent)
        made = generate.make(self.rng, self.world, border, kind)
        self.recent.append(made)
        if len(self.recent) > 60:
            self.recent.pop(self.rng.randrange(60))
        return made

    def environment(self, side=None):
        return Environment(self.rng, self.world, side)

    def simple(self, template, environment):
        filled = fill(self.rng, template, environment)
        return Step(client.query(filled.text), filled.text, [template], filled.text, template.level, FAIL, template.writes)

    def parts(self, template, environment):
        """(bytes of Parse, Bind, Describe, Execute; what to show)."""
        layout = Layout(self.rng, template)
        filled = fill(self.rng, template, environment, layout)
        results = [1] if template.binary and not template.shape_only and self.rng.random() < 0.3 else []
        data = (client.parse("", filled.text, filled.types) + client.bind("", "", filled.values, filled.formats, results) +
                (client.describe(b"P", "") if self.rng.random() < 0.8 else b"") + client.execute())
        return data, f"{filled.text}\n   parameters {show_values(filled.values, filled.formats)} types {filled.types}", filled, layout.odd

    def extended(self, template, environment):
        data, show, filled, odd = self.parts(template, environment)
        return Step(data + client.SYNC, show, [template], filled.text if not filled.values else "", 3 if odd else template.level,
                    FAIL, template.writes)

    def either(self, template, environment):
        return self.simple(template, environment) if self.rng.random() < 0.5 else self.extended(template, environment)

    def unit(self, session):
        """Draws a kind of unit; returns its generator. `session` has room for what lasts."""
        kind = self.rng.choices((self.single, self.named, self.transaction, self.pipeline, self.several, self.cursor,
                                 self.portal, self.copy_out, self.path, self.setting),
                                (70, 10, 7, 4, 3, 2, 2, 1.5, 1.5, 1))[0]
        return kind(session)

    def single(self, session):
        yield self.either(self.template(), self.environment())

    def named(self, session):
        """Prepares a statement once and runs it, now and later, with keys of either shard."""
        live = session.prepared
        if len(live) >= 25 or live and self.rng.random() < 0.15:
            name = self.rng.choice(list(live))
            del live[name]
            yield Step(client.close(b"S", name) + client.SYNC, f"Close {name}", statements=0)
        if not live or self.rng.random() < 0.35:
            self.prepared += 1
            name, template = f"p{self.prepared}", self.template()
            layout = Layout(self.rng, template, 1.0 if self.rng.random() < 0.7 else 0.6)
            filled = fill(self.rng, template, self.environment(), layout)
            done = yield Step(client.parse(name, filled.text, filled.types) + client.describe(b"S", name) + client.SYNC,
                              f"Parse {name}: {filled.text} types {filled.types}", [template], statements=0)
            if not done:
                return
            whole = len(layout.numbers) == sum(1 for h in template.holes if h.keyspace)
            live[name] = (template, layout, filled.text, whole)
        for name in self.rng.choices(list(live), k=self.rng.randint(1, 3)):
            template, layout, text, _ = live[name]
            values = bound(self.rng, template, self.environment(), layout)
            formats = [int(b) for b in layout.binary]
            # Keys that are literals stay while the parameters change: nothing is claimed then.
            keys = [i for i, h in enumerate(template.holes) if h.keyspace and f"\x01{i}\x02" in template.text]
            level = template.level if all(i in layout.numbers for i in keys) and not layout.odd else 3
            yield Step(client.bind("", name, values, formats) + client.describe(b"P", "") + client.execute() + client.SYNC,
                       f"Execute {name}: {text}\n   parameters {show_values(values, formats)}", [template],
                       level=level, fails=FAIL, writes=template.writes)

    def transaction(self, session):
        begin = self.rng.choice(["BEGIN", "BEGIN", "BEGIN", "START TRANSACTION", "BEGIN ISOLATION LEVEL REPEATABLE READ",
                                 "BEGIN READ ONLY", "begin work", "BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE"])
        yield Step(client.query(begin), begin, statements=1)
        environment = self.environment()
        border = self.rng.choice((0, 0, 0.3))
        savepoints = []
        for _ in range(self.rng.randint(1, 5)):
            choice = self.rng.random()
            if choice < 0.12:
                savepoints.append(f"s{len(savepoints)}")
                done = yield Step(client.query(f"SAVEPOINT {savepoints[-1]}"), f"SAVEPOINT {savepoints[-1]}", level=2, fails=FAIL)
            elif choice < 0.18 and savepoints:
                name = self.rng.choice(savepoints)
                text = f"{self.rng.choice(('ROLLBACK TO', 'RELEASE', 'ROLLBACK TO SAVEPOINT'))} {name}"
                if text.startswith("RELEASE"):
                    savepoints = savepoints[:savepoints.index(name)]
                done = yield Step(client.query(text), text, level=2, fails=FAIL)
            elif choice < 0.22:
                text = f"SET LOCAL {self.rng.choice(SETTINGS)}"
                done = yield Step(client.query(text), text, level=2, fails=FAIL)
            elif choice < 0.25:
                text = self.rng.choice(("SELECT 1/0", "SELECT 1 AS one", "SHOW transaction_isolation", "SHOW transaction_read_only", "nonsense"))
                done = yield Step(client.query(text), text, fails=FAIL)
            else:
                template = self.template(border or 0)
                done = yield self.either(template, environment)
            if not done:
                # A statement in the failed transaction, a way back, or the end.
                if savepoints and self.rng.random() < 0.6:
                    text = f"ROLLBACK TO {savepoints[-1]}"
                    done = yield Step(client.query(text), text, fails=FAIL)
                    if done:
                        continue
                if self.rng.random() < 0.4:
                    yield self.either(self.template(0), environment)
                break
        end = self.rng.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "END", "ABORT", "COMMIT AND NO CHAIN"])
        yield Step(client.query(end), end)

    def pipeline(self, session):
        environment = self.environment()
        border = self.rng.choice((0, 0, 0.3))
        templates = [self.template(border) for _ in range(self.rng.randint(2, 4))]
        made = [self.parts(template, environment) for template in templates]
        yield Step(b"".join(each[0] for each in made) + client.SYNC, "\n-- then\n".join(each[1] for each in made), templates,
                   level=3 if any(each[3] for each in made) else max(template.level for template in templates), fails=FAIL,
                   writes=any(template.writes for template in templates), statements=len(templates))

    def several(self, session):
        """Several statements in one Query: one implicit transaction."""
        environment = self.environment()
        border = self.rng.choice((0, 0, 0.3))
        templates = [t for t in (self.template(border) for _ in range(self.rng.randint(2, 3)))]
        texts = [fill(self.rng, template, environment).text.rstrip("; \n") for template in templates]
        texts = [text if "-- end" not in text else text.replace("; -- end", "") for text in texts]
        text = ";".join(f" {text}\n" for text in texts) + self.rng.choice(("", ";", ";;"))
        yield Step(client.query(text), text, templates, level=max(2, max(template.level for template in templates)), fails=FAIL,
                   writes=any(template.writes for template in templates), statements=len(templates))

    def ordered_select(self):
        for _ in range(60):
            template = generate.make(self.rng, self.world, self.rng.choice((0, 0, 0.3)), "select")
            if template.ordered and not template.shape_only:
                return template
        return template

    def cursor(self, session):
        environment, template = self.environment(), self.ordered_select()
        if not template.ordered:
            return
        filled = fill(self.rng, template, environment)
        yield Step(client.query("BEGIN"), "BEGIN")
        text = f"DECLARE c {self.rng.choice(('', 'NO SCROLL ', 'BINARY ') if template.binary else ('',))}CURSOR FOR {filled.text}"
        done = yield Step(client.query(text), text, level=max(2, template.level), fails=FAIL)
        for _ in range(self.rng.randint(1, 3)):
            if not done:
                break
            text = self.rng.choice(("FETCH 2 FROM c", "FETCH c", "FETCH ALL c", "MOVE 1 IN c", "FETCH FORWARD 3 FROM c"))
            done = yield Step(client.query(text), text, [Plain(ordered=True)], fails=FAIL)
        if done:
            yield Step(client.query("CLOSE c"), "CLOSE c", fails=FAIL)
        end = self.rng.choice(("COMMIT", "ROLLBACK"))
        yield Step(client.query(end), end)

    def portal(self, session):
        """A result taken in pieces."""
        environment, template = self.environment(), self.ordered_select()
        if not template.ordered:
            return
        layout = Layout(self.rng, template)
        filled = fill(self.rng, template, environment, layout)
        first, second = self.rng.randint(1, 4), self.rng.choice((0, 0, 2))
        data = (client.parse("", filled.text, filled.types) + client.bind("x", "", filled.values, filled.formats) +
                client.execute("x", first) + client.execute("x", second) + client.close(b"P", "x") + client.SYNC)
        yield Step(data, f"in pieces of {first}, {second}: {filled.text}\n   parameters {show_values(filled.values, filled.formats)}",
                   [template, template], level=3 if layout.odd else template.level, fails=FAIL)

    def copy_out(self, session):
        template = self.template(None, "select")
        text = fill(self.rng, template, self.environment()).text.rstrip("; \n")
        if "-- end" in text or "EXPLAIN" in text:
            return
        text = f"COPY ({text}\n) TO STDOUT{self.rng.choice(('', ' WITH (FORMAT csv)', ' (HEADER, FORMAT csv)', ' BINARY' if template.binary else ''))}"
        yield Step(client.query(text), text, [template], text, max(2, template.level), FAIL)

    def path(self, session):
        path = self.rng.choice(PATHS)
        text = f"SET search_path = {path}"
        done = yield Step(client.query(text), text)
        if done:
            environment = self.environment()
            for _ in range(self.rng.randint(1, 3)):
                key = environment.keys["accounts"][self.rng.choice((0, 0, 2))]
                text = self.rng.choice((
                    f"SELECT * FROM orders WHERE order_id = {key}", f"SELECT * FROM orders WHERE account_id = {key}",
                    f"SELECT * FROM archive.orders WHERE order_id = {key}", f"SELECT * FROM public.orders WHERE account_id = {key}",
                    f"SELECT * FROM accounts WHERE account_id = {key}", f"SELECT * FROM trap.accounts WHERE account_id = {key}",
                    f"SELECT lower(name) FROM accounts WHERE account_id = {key}::bigint", "SELECT lower('ABC'), 1::bigint = 1::bigint",
                    f"DELETE FROM accounts WHERE account_id = {key}::bigint", f"UPDATE orders SET note = 'path' WHERE account_id = {key}",
                    f"UPDATE orders SET note = 'path' WHERE order_id = {key}", f"SELECT count(*) FROM orders AS o JOIN accounts AS a USING (account_id) WHERE a.account_id = {key}",
                    f"SELECT * FROM local_only WHERE account_id = {key}", f"SELECT count(orders) FROM public.accounts WHERE account_id = {key}"))
                yield Step(client.query(text), f"(search_path {path}) {text}", [Plain(writes=True)], "", 3, FAIL, True)
            if self.rng.random() < 0.5:
                step = self.either(self.template(), environment)
                step.level = 3
                yield step
        text = self.rng.choice(("RESET search_path", "SET search_path TO DEFAULT", "SET search_path = \"$user\", public"))
        yield Step(client.query(text), text)

    def setting(self, session):
        text = self.rng.choice((f"SET {self.rng.choice(SETTINGS)}", f"SET SESSION {self.rng.choice(SETTINGS)}", "RESET ALL", "SHOW TimeZone",
                                "SHOW DateStyle", "SHOW search_path", "RESET TimeZone", "RESET enable_seqscan", "SHOW bytea_output", "DISCARD PLANS"))
        yield Step(client.query(text), text, fails=FAIL)
        text = f"SELECT account_id, created, balance, profile FROM accounts WHERE account_id = {self.environment().keys['accounts'][0]}"
        yield Step(client.query(text), text, fails=FAIL, level=1)
