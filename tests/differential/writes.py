"""INSERT, UPDATE, DELETE and MERGE statements of random structure.

What they do never depends on the order in which rows are met: values set hang on the row changed alone,
rows inserted from a query are sorted.
"""

from .queries import Queries
from .scope import TABLES, Scope, Source, table_outputs

WRITTEN = [t for t in TABLES if t.name != "blobs"]
# Small pools for what is part of a primary key, so that conflicts happen.
FLAT = ("integer", "text", "numeric(12,2)", "bigint", "boolean", "date", "timestamptz", "jsonb", "text[]", "integer[]",
        "account_status", "uuid")


class Writes(Queries):
    def target(self):
        """(table, source, text) of the table written."""
        table = self.rng.choice(WRITTEN)
        alias = table.plain_name if self.chance(0.55) else self.alias(Scope())
        source = Source(alias, table_outputs(table, 0), table, table.key)
        name = self.name_of(table)
        return table, source, name if alias == table.plain_name else f"{name} AS {alias}"

    def new_value(self, column):
        kind = "text" if column.type == "varchar(40)" else column.type
        if column.nullable and self.chance(0.1):
            return "NULL"
        return self.val(kind)

    def set_value(self, scope, column, depth=0):
        """What to set a column to: something that hangs on the changed row alone, within bounds."""
        source = scope.sources[0]
        own = Scope([source])
        if column.type == "integer" and self.chance(0.5):
            one = self.ref(source, column.name)
            return self.pick(f"({one} + {self.val('integer')}) % 13", f"coalesce({one}, 0) % 5 + 1", f"abs(coalesce({one}, {self.val('integer')}) - 6)")
        if column.type == "numeric(12,2)" and self.chance(0.4):
            one = self.ref(source, column.name)
            return self.pick(f"{one} % 100 + {self.val(column.type)}", f"{one} - {self.val(column.type)}", f"-{one}")
        if column.type == "text" and self.chance(0.4):
            return f"left({self.expression(own, 'text', 1)}, 12)"
        if depth > 0 and column.type == "integer" and self.chance(0.2):
            self.constructs.add("sub-select in SET")
            return f"({self.scalar(0, Scope([source]))}) % 13"
        if self.chance(0.08):
            return "DEFAULT" if column.nullable else self.new_value(column)
        return self.new_value(column)

    def returning(self, source, alone=True):
        if not self.chance(0.4):
            return ""
        self.constructs.add("RETURNING")
        if self.border and self.chance(0.1):
            self.level = 3
            return f" RETURNING (SELECT count(*) FROM {self.rng.choice(TABLES).name})"
        if self.chance(0.2):
            return " RETURNING *" if alone and self.chance(0.5) else f" RETURNING {source.alias}.*"
        items = [self.expression(Scope([source]), self.pick("integer", "text", "numeric(12,2)")) for _ in range(self.pick(1, 2))]
        return f" RETURNING {self.ref(source, source.key)} AS k, " + ", ".join(f"{item} AS c{n}" for n, item in enumerate(items))

    def own_columns(self, table):
        return [c for c in table.columns if c.name not in table.primary]

    # -- INSERT ------------------------------------------------------------------------------------

    def insert(self):
        table = self.rng.choice(WRITTEN)
        name = self.name_of(table)
        columns = [c for c in table.columns if not c.nullable or self.chance(0.6)]
        listed = True
        if self.chance(0.12):
            columns, listed = list(table.columns), False
        else:
            self.rng.shuffle(columns)
        far = self.border and self.chance(0.35)
        if far:
            self.constructs.add("trap")
            self.level = 3
            if self.chance(0.25):
                columns = [c for c in columns if c.name != table.key] or columns
                listed = True
        alias = self.fresh("n") if self.chance(0.15) else ""
        source = Source(alias or table.plain_name, table_outputs(table, 0), table, table.key)
        head = f"INSERT INTO {name}{' AS ' + alias if alias else ''}"
        if listed:
            head += f" ({', '.join(c.name for c in columns)})"
        if self.chance(0.02):
            head += " OVERRIDING USER VALUE"
        form = self.rng.random()
        if form < 0.72:
            rows = []
            for number in range(self.pick(1, 1, 1, 1, 2, 3)):
                which = 0
                if far and self.chance(0.5):
                    which = self.pick("far", "null", "any", "far")
                elif number and self.chance(0.3):
                    which = 1
                values = [(self.key(table, which, styles=("plain", "quoted", "cast", "function_cast")) if not far or self.chance(0.9)
                           else self.pick("DEFAULT", f"({self.key(table)})", f"(SELECT {self.key(table, styles=('cast',))})", "NULL"))
                          if c.name == table.key else self.new_value(c) if self.chance(0.95) or not c.nullable else "DEFAULT"
                          for c in columns]
                rows.append(f"({', '.join(values)})")
            if len(rows) > 1:
                self.constructs.add("several VALUES rows")
            body = f"VALUES {', '.join(rows)}"
        elif form < 0.75 and self.border:
            self.level = 3
            body, head = "DEFAULT VALUES", f"INSERT INTO {name}"
        else:
            body = self.insert_select(table, columns)
        return f"{head} {body}{self.on_conflict(table, source)}{self.returning(source)}"

    def insert_select(self, table, columns):
        self.constructs.add("INSERT SELECT")
        scope = Scope()
        text, where = self.from_list(scope, 0, self.pick(1, 1, 2))
        where.append(self.condition(scope))
        links = [(s, c) for s in scope.sources for c in s.columns
                 if c.pinned and c.pinned[0] == table.keyspace and not s.nullable_side]
        items = []
        for column in columns:
            kind = "text" if column.type == "varchar(40)" else column.type
            if column.name == table.key:
                if links and self.chance(0.6):
                    self.used("key from a query's column", 2)
                    items.append(self.ref(*self.rng.choice(links)))
                elif self.border and self.chance(0.4):
                    self.level = 3
                    items.append(self.expression(scope, kind))
                else:
                    self.used("constant key in INSERT SELECT", 2)
                    items.append(self.key(table, styles=("cast",)))
            elif column.name in table.primary or kind not in FLAT:
                items.append(self.val(kind))
            else:
                items.append(self.expression(scope, kind, 0))
        order = ", ".join(str(n + 1) for n in range(len(items)))
        return f"SELECT {', '.join(items)} FROM {text} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT 3"

    def on_conflict(self, table, source):
        if not self.chance(0.4):
            return ""
        self.constructs.add("ON CONFLICT")
        where = self.pick("", f" ({', '.join(table.primary)})", "", " ON CONSTRAINT " + self.constraint(table))
        if self.chance(0.4) or not where:
            return f" ON CONFLICT{where} DO NOTHING"
        sets = []
        for column in self.some(self.own_columns(table)):
            value = self.pick(f"excluded.{column.name}", None) or self.set_value(Scope([source]), column)
            sets.append(f"{column.name} = {value}")
        if self.border and self.chance(0.3):
            self.level = 3
            sets.append(f"{table.key} = {self.pick('excluded.' + table.key, self.key(table, 'far'), self.key(table))}")
        condition = f" WHERE {self.condition(Scope([source]), 0)}" if self.chance(0.3) else ""
        return f" ON CONFLICT{where} DO UPDATE SET {', '.join(sets)}{condition}"

    @staticmethod
    def constraint(table):
        return f'"{table.plain_name.strip(chr(34))}_pkey"'

    def some(self, columns):
        return self.rng.sample(columns, min(len(columns), self.pick(1, 1, 2)))

    # -- UPDATE, DELETE ----------------------------------------------------------------------------

    def update(self):
        table, source, text = self.target()
        scope = Scope([source])
        sets = []
        for column in self.some(self.own_columns(table)):
            sets.append(f"{column.name} = {self.set_value(scope, column, 1)}")
        if self.chance(0.08):
            pair = [c for c in self.own_columns(table) if c.name not in " ".join(sets)]
            if len(pair) > 1:
                sets.append(f"({pair[0].name}, {pair[1].name}) = ({self.new_value(pair[0])}, {self.new_value(pair[1])})")
        if self.border and self.chance(0.12):
            self.level = 3
            self.constructs.add("trap")
            sets.append(self.pick(f"{table.key} = {self.key(table)}", f"{table.key} = {self.key(table, 'far')}",
                                  f"({table.key}, {table.key}) = (1, 2)", f"{table.key} = {table.key}",
                                  f"({table.key}) = ROW ({self.key(table, 'far')})"))
        extra, where = self.using(scope, source, "FROM")
        return f"UPDATE {text} SET {', '.join(sets)}{extra} WHERE {where}{self.returning(source, not extra)}"

    def delete(self):
        table, source, text = self.target()
        scope = Scope([source])
        extra, where = self.using(scope, source, "USING")
        return f"DELETE FROM {text}{extra} WHERE {where}{self.returning(source, not extra)}"

    def using(self, scope, source, word):
        """(FROM or USING clause or nothing, condition)."""
        where = [self.pin(scope, source)]
        if self.chance(0.5):
            where.append(self.condition(Scope([source])))
        if self.budget > 0 and self.chance(0.2):
            self.constructs.add(f"{word} of another relation")
            item, other, needs = self.relation(scope, 0)
            scope.sources.append(other)
            if needs:
                links = self.linked(other, [source])
                if links and self.chance(0.6):
                    where.append(f"{self.ref(other, other.key)} = {self.ref(*links[0])}")
                else:
                    where.append(self.pin(scope, other))
            where.append(self.condition(scope))
            self.rng.shuffle(where)
            return f" {word} {item}", " AND ".join(where)
        if self.chance(0.12):
            where.append(self.sub_condition(scope, 1))
        self.rng.shuffle(where)
        if self.border and self.chance(0.06):
            self.level = 3
            return "", self.pick(" OR ".join(where), "true", where[0])
        return "", " AND ".join(where)

    # -- MERGE -------------------------------------------------------------------------------------

    def merge(self):
        self.used("MERGE", 2)
        table, source, text = self.target()
        other = self.alias(Scope([source]))
        own = self.own_columns(table)
        rest = [c for c in table.primary if c != table.key]
        which = 0 if not self.border or self.chance(0.5) else self.pick("far", "any", 1)
        if which != 0:
            self.level = 3
        form = self.rng.randrange(3)
        if form == 0:  # one row of constants
            items = [f"{self.key(table, which, styles=('cast',))} AS {table.key}"]
            items += [f"{self.typed(table.types[c])} AS {c}" for c in rest]
            origin = f"(SELECT {', '.join(items)}) AS {other}"
        elif form == 1:
            rows = [f"({', '.join([self.key(table, which, styles=('cast',)), *(self.typed(table.types[c]) for c in rest)])})" for _ in range(self.pick(1, 2))]
            origin = f"(VALUES {', '.join(rows)}) AS {other}({', '.join(table.primary)})"
        else:
            inner = Source("z", table_outputs(table, 0), table, table.key)
            origin = f"(SELECT {', '.join(table.primary)} FROM {self.name_of(table)} AS z WHERE {self.pin(Scope([inner]), inner)}) AS {other}"
        on = [f"{self.ref(source, c)} = {other}.{c}" for c in table.primary]
        if self.chance(0.6):
            on.append(f"{self.ref(source, table.key)} = {self.key(table)}")
        elif self.border and self.chance(0.3):
            self.level = 3
            on = on[1:] or ["true"]
        self.rng.shuffle(on)
        whens = []
        if self.chance(0.8):
            column = self.rng.choice(own)
            whens.append(f"WHEN MATCHED{' AND ' + self.condition(Scope([source]), 0) if self.chance(0.4) else ''} THEN " +
                         self.pick(f"UPDATE SET {column.name} = {self.set_value(Scope([source]), column)}", "DELETE", "DO NOTHING"))
        if self.chance(0.7) or not whens:
            columns = [c for c in table.columns if not c.nullable or self.chance(0.3)]
            values = []
            for c in columns:
                # After a DELETE of one row it would hang on the order whether a key of our own is free again.
                if c.name == table.key and self.chance(0.4) and not any(when.endswith("DELETE") for when in whens):
                    values.append(self.key(table, 0 if not self.border else self.pick(0, "far"), styles=("cast",)))
                elif c.name in table.primary:
                    values.append(f"{other}.{c.name}")
                else:
                    values.append(self.new_value(c))
            whens.append(f"WHEN NOT MATCHED THEN INSERT ({', '.join(c.name for c in columns)}) VALUES ({', '.join(values)})")
        return f"MERGE INTO {text} USING {origin} ON {' AND '.join(on)} {' '.join(whens)}"

    # -- data-modifying CTEs -----------------------------------------------------------------------

    def writing_cte(self):
        """A CTE that writes, and a query over what it returns."""
        self.used("data-modifying CTE", 2)
        table, source, text = self.target()
        scope = Scope([source])
        own = self.own_columns(table)
        where = self.pin(scope, source)
        key = f"{self.ref(source, table.key)} AS k"
        column = self.rng.choice(own)
        if self.chance(0.5):
            body = f"DELETE FROM {text} WHERE {where} AND {self.condition(scope)} RETURNING {key}, {self.ref(source, column.name)} AS c"
        else:
            body = f"UPDATE {text} SET {column.name} = {self.set_value(scope, column)} WHERE {where} RETURNING {key}, {self.ref(source, column.name)} AS c"
        tail = self.pick("SELECT * FROM m", "SELECT count(*) FROM m", "SELECT k FROM m GROUP BY k", "SELECT 1")
        if self.chance(0.25):
            self.budget = 2
            tail = f"SELECT m.c, s.* FROM m, ({self.query(0)[0]}) AS s"
        return f"WITH m AS ({body}) {tail}"
