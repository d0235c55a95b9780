"""SELECT statements of random structure. Level 1 ones are on one shard by construction."""

import re

from . import traps
from .scope import TABLES, Out, Scope, Source, Writer, table_outputs

RESULT_TYPES = ("integer", "text", "numeric(12,2)", "bigint", "boolean", "date", "text", "integer", "jsonb", "account_status")
AGGREGATES = {"integer": ("count({})", "sum({})", "min({})", "max({})", "count(DISTINCT {})"),
              "numeric(12,2)": ("sum({})", "min({})", "max({})", "avg({})"),
              "text": ("min({})", "max({})", "count({})", "string_agg({}, ',' ORDER BY {})"),
              "boolean": ("bool_and({})", "bool_or({})", "count({})")}
RETURNS = {"count": "bigint", "sum": "bigint", "avg": "numeric", "bool_and": "boolean", "bool_or": "boolean", "string_agg": "text"}


class Queries(Writer):
    def name_of(self, table):
        """The table's name in FROM; qualified where a CTE hides it."""
        name = table.name
        if "." not in name and (name in self.hidden or self.chance(0.12)):
            return "public." + name
        return name

    def bare(self, source, column):
        """The column without its relation's name: it may well be another relation's."""
        return column

    # -- pins --------------------------------------------------------------------------------------

    def pin(self, scope, source, column=None):
        """A condition that keeps the source on the statement's shard (or, in a border statement, seems to)."""
        table = source.table
        key = self.ref(source, column or source.key)
        if self.border and self.chance(self.border):
            self.constructs.add("trap")
            return traps.trap_condition(self, table, key, source, scope)
        choice = self.rng.randrange(20)
        if choice < 11:
            return f"{key} = {self.key(table)}"
        if choice < 13:
            return f"{self.key(table)} = {key}"
        if choice == 13:
            return f"{key} IN ({self.key(table)})"
        if choice == 14:
            return f"{key} IN ({self.key(table)}, {self.key(table, 1)})"
        if choice == 15:
            self.used("ANY of an array", 2)
            own = {"varchar(40)": "text"}.get(table.types[table.key], table.types[table.key])
            first, second = (self.key(table, n, styles=("cast",)) for n in (0, 1))
            return f"{key} = ANY (ARRAY[{first}, {second}]{self.pick('', '::' + own + '[]')})"
        if choice == 16:
            other = [c for c in source.columns if c.name != source.key and c.type in ("integer", "text")]
            if other:
                self.used("row comparison", 2)
                two = self.rng.choice(other)
                return f"({key}, {self.ref(source, two)}) = ({self.key(table)}, {self.val(two.type)})"
        if choice == 17 and table.types[table.key] in ("bigint", "integer", "smallint"):
            return f"{key} = {self.key(table, kind=self.pick('bigint', 'integer') if table.keyspace == 'regions' else 'bigint')}"
        if choice == 18:
            return f"({key} = {self.key(table)} AND {self.condition(scope, 0)})"
        if choice == 19:
            return f"{key} = {self.key(table)} AND {self.key(table)} = {key}"
        return f"{key} = {self.key(table)}"

    def linked(self, source, others):
        """(other source, its column) whose value is known to be a key of the same keyspace."""
        return [(other, column) for other in others if other is not source for column in other.columns
                if column.pinned and column.pinned[0] == source.table.keyspace]

    # -- relations ---------------------------------------------------------------------------------

    def relation(self, scope, depth):
        """One item of a FROM list: (SQL, Source, needs a pin)."""
        self.budget -= 1
        choice = self.rng.random()
        if depth > 0 and self.budget > 0 and choice < 0.14:
            return self.derived(scope, depth)
        if self.ctes and choice < 0.4:
            name, columns = self.rng.choice(self.ctes)
            alias = self.alias(scope) if self.chance(0.6) else name
            if alias in scope.aliases():
                alias = self.fresh("t")
            return (name if alias == name else f"{name} AS {alias}"), Source(alias, columns, pinned=True), False
        if choice > 0.95:
            return self.values(scope)
        if choice > 0.92:
            alias = self.fresh("g")
            text = self.pick(f"generate_series(1, 3) AS {alias}(n)", f"unnest(ARRAY[1, 2, 5]) AS {alias}(n)")
            return text, Source(alias, [Out("n", "integer")], pinned=True), False
        table = self.rng.choice(TABLES)
        if self.border and self.chance(0.12):
            self.constructs.add("trap")
            sql, alias = traps.trap_relation(self, table), self.fresh("s")
            return f"{sql} AS {alias}", Source(alias, table_outputs(table, 0), table, table.key), True
        name = self.name_of(table)
        source = Source("", table_outputs(table, 0), table, table.key)
        if self.chance(0.25) and table.plain_name not in scope.aliases() and not table.name.startswith("archive"):
            source.alias = table.plain_name
            return name, source, True
        source.alias = self.alias(scope)
        names = None
        if self.chance(0.06):  # columns renamed; in a border statement, to each other's names
            self.used("column aliases", 2)
            names = list(table.names)
            if self.border and self.chance(0.7):
                self.level = 3
                self.rng.shuffle(names)
            else:
                names = [f"c{n}" for n in range(len(names))]
            source.columns = table_outputs(table, 0, names)
            source.key = names[table.names.index(table.key)]
            if self.border and self.chance(0.5):
                source.key = table.key
        as_ = self.pick(" AS ", " AS ", " ")
        columns = f"({', '.join(names)})" if names else ""
        return f"{self.pick('', '', '', '', 'ONLY ') if table.name != 'events' else ''}{name}{as_}{source.alias}{columns}", source, True

    def values(self, scope):
        alias = self.fresh("v")
        rows = ", ".join(f"({self.val('integer')}, {self.typed('text')})" for _ in range(self.pick(1, 2, 3)))
        return f"(VALUES {rows}) AS {alias}(n, w)", Source(alias, [Out("n", "integer"), Out("w", "text")], pinned=True), False

    def derived(self, scope, depth, outer=None):
        alias = self.alias(scope)
        sql, columns = self.query(depth - 1, outer=outer)
        columns = [Out(c.name, c.type, c.pinned, c.arithmetic) for c in columns]
        return f"({sql}) {self.pick('AS ', '')}{alias}", Source(alias, columns, pinned=True), False

    def from_list(self, scope, depth, count):
        """(SQL after FROM, conditions for WHERE)."""
        text, where = "", []
        for number in range(count):
            lateral = number and depth > 0 and self.budget > 0 and self.chance(0.07)
            if lateral:
                self.used("LATERAL", 2)
                self.budget -= 1
                item, source, needs = self.derived(scope, depth, outer=scope)
                item = "LATERAL " + item
            else:
                item, source, needs = self.relation(scope, depth)
            before = scope.sources[scope.since_comma:]  # what an ON may name
            scope.sources.append(source)
            if not number:
                text = item
                if needs:
                    where.append(self.pin(scope, source))
                continue
            joined = self.join(scope, item, source, needs, before, lateral)
            text += joined[0]
            where += joined[1]
        return text, where

    def join(self, scope, item, source, needs, before, lateral):
        """(text to append to FROM, conditions for WHERE)."""
        kind = self.rng.random() ** (0.7 if self.border else 1)  # outer joins are where the traps are
        links = self.linked(source, before) if source.table else []
        merged = self.merging_join(scope, item, source, before) if needs and self.chance(0.2) else None
        if merged:
            return merged
        visible = Scope([source], None)
        both = Scope([*before, source], None)

        def link():
            other, column = self.rng.choice(links)
            if other.nullable_side:
                self.used("chain through a nullable side", 2)
            if other.table is None:
                self.used("chain through an output", 2)
            pair = [self.ref(source, source.key), self.ref(other, column)]
            if self.border and self.chance(self.border * 0.5):  # another column of the same type
                self.constructs.add("trap")
                self.level = 3
                wrong = [c for c in source.columns if c.type == column.type]
                if wrong:
                    pair[0] = self.ref(source, self.rng.choice(wrong))
            self.rng.shuffle(pair)
            return f"{pair[0]} {self.pick('=', '=', '=', '=', '=', '=', '<=', 'IS NOT DISTINCT FROM') if self.border else '='} {pair[1]}"

        if kind < 0.22:  # comma
            scope.since_comma = len(scope.sources) - 1
            links = self.linked(source, scope.sources[:-1]) if source.table else []
            where = [] if not needs else [link() if links and self.chance(0.6) else self.pin(scope, source)]
            return f", {item}", where
        extra = f" AND {self.condition(both)}" if self.chance(0.3) else ""
        if kind < 0.27:
            return f" CROSS JOIN {item}", [self.pin(scope, source)] if needs else []
        if kind < 0.62:  # inner
            if not needs:
                return f" {self.pick('', 'INNER ')}JOIN {item} ON {self.condition(both)}{extra}", []
            if links and self.chance(0.55):
                if self.chance(0.75):
                    return f" JOIN {item} ON {link()}{extra}", []
                return f" JOIN {item} ON true{extra}", [link()]
            if self.chance(0.5):
                return f" INNER JOIN {item} ON {self.pin(scope, source)}{extra}", []
            return f" JOIN {item} ON {self.condition(both)}{extra}", [self.pin(scope, source)]
        if kind < 0.87:  # left: the ON pins only the new relation
            self.constructs.add("LEFT JOIN")
            source.nullable_side = True
            left = self.pick("LEFT JOIN", "LEFT OUTER JOIN")
            if not needs:
                return f" {left} {item} ON {self.condition(both)}", []
            choice = self.rng.random()
            if links and choice < 0.6:
                return f" {left} {item} ON {link()}{extra}", []
            if choice < 0.85:
                return f" {left} {item} ON {self.pin(visible, source)}{extra}", []
            return f" {left} {item} ON {self.condition(both)}", [self.pin(scope, source)]
        if lateral or not needs:
            return f" JOIN {item} ON true", []
        if kind < 0.94:  # right: what was there becomes nullable, the new one is kept
            self.used("RIGHT JOIN", 2)
            on = link() if links and self.chance(0.6) else self.condition(both)
            for other in before:
                other.nullable_side = True
            if self.border and self.chance(0.4):  # the pin where it does not hold the kept side
                self.constructs.add("trap")
                self.level = 3
                return f" RIGHT JOIN {item} ON {on} AND {self.pin(visible, source)}", []
            return f" RIGHT JOIN {item} ON {on}", [self.pin(scope, source)]
        self.used("FULL JOIN", 3)
        on = self.pick(link() if links else self.condition(visible), self.pin(scope, source))
        if "=" not in on or " OR " in on or "IN" in on:  # FULL JOIN takes only conditions it can merge or hash
            on = "true"
        for other in (*before, source):
            other.nullable_side = True
        return f" FULL JOIN {item} ON {on}", [self.pin(scope, source)] if self.chance(0.5) else []

    def merging_join(self, scope, item, source, before):
        """JOIN ... USING or NATURAL JOIN, if the relations have columns to be merged; as join() gives it."""
        left = [column for other in before for column in other.columns]
        names = [column.name for column in left]
        common = [column for column in source.columns if names.count(column.name) == 1]
        common = [c for c in common if next(o for o in left if o.name == c.name).type == c.type]
        if not common or len(names) != len(set(names)) or any(not other.table for other in before):
            return None
        natural = len(common) == sum(column.name in names for column in source.columns) and self.chance(0.4)
        chosen = common if natural else self.rng.sample(common, self.pick(1, len(common)))
        chained = any(c.name == source.key and next(o for o in left if o.name == c.name).pinned == c.pinned for c in chosen)
        kind = self.pick("", "INNER ", "LEFT ", "LEFT ", "RIGHT ", "FULL ") if self.border else self.pick("", "", "LEFT ")
        self.used("NATURAL JOIN" if natural else "USING", 3 if kind in ("RIGHT ", "FULL ") else 2)
        join = f" NATURAL {kind}JOIN {item}" if natural else f" {kind}JOIN {item} USING ({', '.join(c.name for c in chosen)})"
        if kind in ("LEFT ", "FULL "):
            source.nullable_side = True
        if kind in ("RIGHT ", "FULL "):
            for other in before:
                other.nullable_side = True
        if chained and kind not in ("RIGHT ", "FULL "):
            return join, []
        if self.border and self.chance(0.6):  # the merged column stands for either side, or for both
            self.constructs.add("trap")
            self.level = 3
            return join, [f"{self.rng.choice(chosen).name} = {self.key(source.table)}"] if self.chance(0.8) else []
        return join, [self.pin(scope, source)]

    # -- a SELECT ----------------------------------------------------------------------------------

    def sub_condition(self, scope, depth):
        """A condition with a sub-select in it."""
        self.budget -= 1
        choice = self.rng.randrange(5)
        self.constructs.add("sub-select in WHERE")
        if choice == 0:
            return f"{self.pick('', 'NOT ')}EXISTS ({self.query(depth - 1, outer=scope)[0]})"
        if choice == 1:
            kind = self.pick("integer", "text", "integer")
            return f"{self.expression(scope, kind, 0)} {self.pick('IN', 'NOT IN', '= ANY', '> ALL', '= SOME')} ({self.query(depth - 1, types=[kind], outer=scope)[0]})"
        if choice == 2:
            return f"{self.expression(scope, 'integer', 0)} {self.pick('<', '>=', '=')} ({self.scalar(depth - 1, scope)})"
        return f"{self.pick('', 'NOT ')}EXISTS ({self.correlated(scope)})"

    def correlated(self, scope):
        """A sub-select whose table takes its key from the statement around it."""
        links = [(s, c) for s in scope.sources for c in s.columns if c.pinned and not s.nullable_side]
        self.used("correlated sub-select", 2)
        if not links:
            return self.query(0)[0]
        outer, column = self.rng.choice(links)
        tables = [t for t in TABLES if t.keyspace == column.pinned[0]]
        table = self.rng.choice(tables)
        inner = Scope([], scope)
        alias = self.alias(inner)
        source = Source(alias, table_outputs(table, 0), table, table.key)
        inner.sources.append(source)
        # An unqualified name may mean the outer relation: the classic mistake.
        key = table.key if self.border and self.chance(0.3) else self.ref(source, table.key)
        outer_key = self.ref(outer, column)
        if self.border and self.chance(0.25):
            self.level = 3
            outer_key = column.name
        condition = f"{key} = {outer_key}"
        if self.border and self.chance(self.border):
            self.level = 3
            condition = self.pick(f"({condition} OR {self.condition(inner)})", self.condition(inner), f"NOT {condition}")
        return f"SELECT {self.pick('1', '*', self.expression(inner, 'integer'))} FROM {self.name_of(table)} AS {alias} WHERE {condition}" + \
            (f" AND {self.condition(Scope(inner.sources + scope.sources))}" if self.chance(0.4) else "")

    def scalar(self, depth, outer=None):
        """A sub-select with exactly one row and one integer column."""
        scope = Scope([], outer)
        text, where = self.from_list(scope, 0, 1)
        what = self.pick("count(*)", f"max({self.expression(scope, 'integer', 0)})", f"min(length({self.expression(scope, 'text', 0)}))")
        where = [w for w in where if w]
        return f"SELECT {what}::integer FROM {text}" + (f" WHERE {' AND '.join(where)}" if where else "")

    def core(self, depth, types=None, outer=None):
        """SELECT ... without ORDER BY: (SQL, columns)."""
        scope = Scope([], outer)
        count = self.pick(1, 1, 1, 2, 2, 3) if self.budget > 2 else 1
        text, where = self.from_list(scope, depth, count)
        if self.chance(0.35):
            where.append(self.condition(scope, 1))
        if depth > 0 and self.budget > 0 and self.chance(0.22):
            where.append(self.sub_condition(scope, depth))
        self.rng.shuffle(where)
        where_text = f" WHERE {' AND '.join(where)}" if where else ""
        if self.border and len(where) > 1 and self.chance(0.04):
            self.level = 3
            where_text = f" WHERE {' AND '.join(where[:-1])} OR {where[-1]}"
        kinds = list(types) if types else [self.rng.choice(RESULT_TYPES) for _ in range(self.pick(1, 2, 2, 3, 4))]
        style = self.rng.random()
        if style < 0.2:
            return self.grouped(scope, text, where_text, kinds, exact=bool(types))
        items, columns = [], []
        key_sources = [s for s in scope.sources if any(c.pinned for c in s.columns)]
        if not types and key_sources and self.chance(0.45):  # the key, so that a query around may use it
            source = self.rng.choice(key_sources)
            column = next(c for c in source.columns if c.pinned)
            name = self.pick(column.name, self.fresh("k"), "account_id", "user_id")
            if name in ("account_id", "user_id") and name != column.name:
                self.used("key under another name", 2)
            items.append(f"{self.ref(source, column)} AS {name}")
            pinned = column.pinned if not source.nullable_side else ()
            columns.append(Out(name, column.type, pinned, False))
        for kind in kinds:
            if style > 0.9 and not types:
                expression, kind = self.window(scope)
            elif depth > 0 and self.budget > 0 and kind == "integer" and self.chance(0.06):
                self.constructs.add("scalar sub-select")
                expression = f"({self.scalar(0)})"
                self.budget -= 1
            else:
                expression = self.expression(scope, kind)
            name = self.fresh("c") if self.chance(0.85) else self.pick("status", "account_id", "orders", "total", "name", "doc_id")
            if any(c.name == name for c in columns):
                name = self.fresh("c")
            items.append(f"{expression} AS {name}")
            columns.append(Out(name, kind))
        distinct = "DISTINCT " if self.chance(0.1) else ""
        return f"SELECT {distinct}{', '.join(items)} FROM {text}{where_text}", columns

    def window(self, scope):
        self.constructs.add("window function")
        order = self.expression(scope, self.pick("integer", "text"), 0)
        part = f"PARTITION BY {self.expression(scope, self.pick('text', 'integer', 'boolean'), 0)} " if self.chance(0.6) else ""
        over = f"OVER ({part}ORDER BY {order})"
        return self.rng.choice([(f"rank() {over}", "bigint"), (f"dense_rank() {over}", "bigint"), (f"count(*) {over}", "bigint"),
                                (f"sum({self.expression(scope, 'integer', 0)}) {over}", "bigint"),
                                (f"max({self.expression(scope, 'text', 0)}) OVER ({part})", "text")])

    def aggregate(self, scope):
        kind = self.rng.choice(list(AGGREGATES))
        pattern = self.rng.choice(AGGREGATES[kind])
        argument = self.expression(scope, kind, 0)
        text = pattern.format(argument, argument)
        if pattern.startswith("string_agg") and "\x01" in argument:
            text = f"max({argument})"  # the same hole twice would be filled twice
        if self.chance(0.15) and "DISTINCT" not in text:
            text += f" FILTER (WHERE {self.condition(scope, 0)})"
        name = pattern.partition("(")[0]
        return text, RETURNS.get(name, kind) if not (name == "sum" and kind != "integer") else "numeric"

    def grouped(self, scope, text, where, kinds, exact):
        self.constructs.add("aggregate")
        if exact:  # one row of aggregates of the wanted types
            items = [f"max({self.expression(scope, kind, 0)})" if kind not in ("boolean", "jsonb", "uuid") else f"{self.typed(kind)}" for kind in kinds]
            columns = [Out(self.fresh("c"), kind) for kind in kinds]
            return f"SELECT {', '.join(f'{i} AS {c.name}' for i, c in zip(items, columns))} FROM {text}{where}", columns
        groups = []
        for _ in range(self.pick(0, 1, 1, 2)):
            found = [(s, c) for s, c in self.columns_of(scope) if c.type in ("integer", "text", "boolean", "bigint", "account_status", "uuid")]
            if found:
                groups.append(self.rng.choice(found))
        items, columns = [], []
        for source, column in groups:
            name = self.fresh("g")
            items.append(f"{self.ref(source, column)} AS {name}")
            columns.append(Out(name, column.type, column.pinned if not source.nullable_side else (), False))
        for _ in range(self.pick(1, 2)):
            aggregate, kind = self.aggregate(scope)
            name = self.fresh("c")
            items.append(f"{aggregate} AS {name}")
            columns.append(Out(name, kind, (), False))
        sql = f"SELECT {', '.join(items)} FROM {text}{where}"
        if groups:
            names = [self.ref(s, c) for s, c in groups]
            form = self.rng.random()
            if form < 0.7:
                sql += f" GROUP BY {', '.join(names)}"
            else:
                self.constructs.add("GROUPING SETS")
                columns = [Out(c.name, c.type, (), False) for c in columns]
                sql += " GROUP BY " + self.pick(f"ROLLUP ({', '.join(names)})", f"CUBE ({', '.join(names)})",
                                                f"GROUPING SETS ((), ({', '.join(names)}))")
            if self.chance(0.3):
                sql += f" HAVING count(*) {self.pick('>', '<>', '<')} {self.val('integer')}"
        return sql, columns

    def query(self, depth, types=None, outer=None):
        """A whole query expression: WITH, set operations, ORDER BY and LIMIT included."""
        ctes, hidden = list(self.ctes), set(self.hidden)
        prefix = ""
        if depth > 0 and self.budget > 1 and self.chance(0.16):
            prefix = self.with_clause(depth)
        if depth > 0 and self.budget > 1 and self.chance(0.13):
            self.constructs.add("set operation")
            kinds = types or [self.pick("integer", "text", "integer", "boolean") for _ in range(self.pick(1, 2))]
            self.budget -= 1
            left, columns = self.core(depth - 1, kinds, outer)
            right, _ = self.core(depth - 1, kinds, outer)
            operator = self.pick("UNION ALL", "UNION", "INTERSECT", "EXCEPT", "EXCEPT ALL")
            sql = f"{left} {operator} {right}"
            if self.chance(0.2):
                sql = f"({sql}) UNION ALL ({self.core(0, kinds, outer)[0]})"
            columns = [Out(c.name, c.type, (), c.arithmetic) for c in columns]
        else:
            sql, columns = self.core(depth, types, outer)
        # PostgreSQL 15 sorts GROUPING SETS wrongly where a WHERE fixes one of the columns.
        if self.chance(0.15) and not re.search(r"ROLLUP|CUBE|GROUPING SETS", sql):
            order = ", ".join(f"{n + 1}{self.pick('', ' DESC', ' NULLS FIRST')}" for n in range(len(columns)))
            sql += f" ORDER BY {order}"
            if self.chance(0.6):
                self.constructs.add("LIMIT")
                sql += self.pick(f" LIMIT {self.val('integer')}", " FETCH FIRST 2 ROWS ONLY", f" LIMIT 5 OFFSET {self.val('integer')}")
        self.ctes, self.hidden = ctes, hidden
        return prefix + sql, columns

    def with_clause(self, depth):
        self.constructs.add("CTE")
        parts = []
        for _ in range(self.pick(1, 1, 2)):
            self.budget -= 1
            sql, columns = self.query(depth - 1)
            name = self.fresh("w")
            if self.chance(0.25):  # the name of a table, which it hides from here on
                table = self.rng.choice([t for t in TABLES if "." not in t.name and '"' not in t.name])
                if table.name not in self.hidden:
                    self.used("CTE named like a table", 2)
                    name = table.name
            how = self.pick("", "", "MATERIALIZED ", "NOT MATERIALIZED ")
            parts.append(f"{name} AS {how}({sql})")
            self.ctes.append((name, columns))
            self.hidden.add(name)
        return f"WITH {', '.join(parts)} "
