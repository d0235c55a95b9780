"""Conditions and relations that look as if they pinned a table, and do not (or not as they seem to).

Some do pin it, in a way that takes thought. Nothing is claimed about any of them: the router may refuse
each, and whatever it accepts must be right.
"""


def trap_condition(w, table, key, source, scope):
    """Stands where `key = value` would. `key` is the column as SQL text."""
    def value(which=0, **options):
        return w.key(table, which, **options)

    others = [w.ref(s, c) for s in scope.sources for c in s.columns
              if c.type == table.types[table.key] and w.ref(s, c) != key]
    same_type = [w.ref(source, c) for c in source.columns
                 if c.type == table.types[table.key] and w.ref(source, c) != key]
    same_names = [c.name for c in table.columns if c.type == table.types[table.key] and c.name != table.key]
    loose = w.condition(scope, 0)
    choices = [
        lambda: loose,
        lambda: f"({key} = {value()} OR {loose})",
        lambda: f"({key} = {value()} OR {key} = {value('far')})",
        lambda: f"({key} = {value()} OR {key} = {value(1)})",
        lambda: f"({key} = {value()} OR false)",
        lambda: f"NOT ({key} <> {value()})",
        lambda: f"NOT {key} = {value()}",
        lambda: f"NOT NOT {key} = {value()}",
        lambda: f"{key} <> {value()}",
        lambda: f"{key} >= {value()} AND {key} <= {value()}",
        lambda: f"{key} BETWEEN {value()} AND {value()}",
        lambda: f"{key} IS NOT DISTINCT FROM {value()}",
        lambda: f"({key} = {value()}) IS {w.pick('TRUE', 'NOT FALSE', 'NOT TRUE', 'UNKNOWN', 'NOT NULL')}",
        lambda: f"({key} = {value()}) = {w.pick('true', 'false')}",
        lambda: f"({key} = {value()}) IN (true, {w.pick('NULL', 'false')})",
        lambda: f"{key} IN ({value()}, {value('far')})",
        lambda: f"{key} IN ({value()}, {value('null')})",
        lambda: f"{key} IN ({value('null')})",
        lambda: f"{key} = {value('null')}",
        lambda: f"{key} NOT IN ({value()})",
        lambda: f"{key} = ANY (ARRAY[{value(styles=('cast',))}, {value(w.pick(1, 'far'), styles=('cast',))}])",
        lambda: f"{key} = ALL (ARRAY[{value(styles=('cast',))}])",
        lambda: f"{key} <> ALL (ARRAY[{value(styles=('cast',))}])",
        lambda: f"{key} <> ANY (ARRAY[{value(styles=('cast',))}])",
        lambda: f"{key} = SOME (ARRAY[{value(styles=('cast',))}])",
        lambda: f"{key} = (SELECT {value(styles=('cast',))})",
        lambda: f"{key} IN (SELECT {value(styles=('cast',))})",
        lambda: f"{key} IN (VALUES ({value(styles=('cast',))}), ({value('far', styles=('cast',))}))",
        lambda: f"{key} IN (SELECT u.{table.key} FROM {w.name_of(table)} AS u WHERE u.{table.key} = {value()})",
        lambda: f"{key} IN (SELECT u.{table.key} FROM {w.name_of(table)} AS u)",
        lambda: f"{key} = ANY (SELECT u.{table.key} FROM {w.name_of(table)} AS u WHERE u.{table.key} <> {value()})",
        lambda: f"{key} IN ({value()}, {w.rng.choice(same_type)})" if same_type else loose,
        lambda: f"{key} IN ({value()}, (SELECT {value('far', styles=('cast',))}))",
        lambda: f"{key} IN (SELECT {value(styles=('cast',))} {w.pick('UNION', 'UNION ALL', 'EXCEPT')} SELECT {value('far', styles=('cast',))})",
        lambda: f"{key} IN (SELECT {value(styles=('cast',))} {w.pick('UNION', 'UNION ALL')} SELECT {value(styles=('cast',))})",
        lambda: f"{key} IN (SELECT v.k FROM (VALUES ({value(styles=('cast',))}), ({value(w.pick('far', 1), styles=('cast',))})) AS v(k))",
        lambda: f"{key} IN (WITH RECURSIVE r(k, n) AS (SELECT {value(styles=('cast',))}, 1 UNION SELECT {value(w.pick(0, 'far'), styles=('cast',))}, r.n + 1 "
                f"FROM r WHERE r.n < 3) SELECT r.k FROM r)",
        lambda: f"{key} IN (SELECT u.{w.rng.choice(same_names)} FROM {w.name_of(table)} AS u WHERE u.{table.key} = {value()})" if same_names else loose,
        lambda: f"EXISTS (SELECT 1 FROM {w.name_of(table)} AS u WHERE u.{table.key} = {value()})",
        lambda: f"EXISTS (SELECT 1 WHERE {key} = {value()})",
        lambda: f"CASE WHEN {key} = {value()} THEN true ELSE {w.pick('true', 'false')} END",
        lambda: f"coalesce({key} = {value()}, true)",
        lambda: f"coalesce({loose}, {key} = {value()})",
        lambda: f"{key} = CASE WHEN {loose} THEN {value(styles=('cast',))} ELSE {value('far', styles=('cast',))} END",
        lambda: f"{key} = coalesce(NULL, {value(styles=('cast',))})",
        lambda: f"{key} IS NOT NULL",
        lambda: f"({key}, 1) = ({value()}, 1)",
        lambda: f"({key}, 1) <= ({value()}, 2)",
        lambda: f"({key}, 1) <> ({value()}, 2)",
        lambda: f"(1, {key}) = (2, {value()})",
        lambda: f"ROW({key}, 1) IS NOT DISTINCT FROM ROW({value()}, 1)",
        lambda: f"({key}, {key}) IN (({value()}, {value()}), ({value('far')}, {value('far')}))",
        lambda: f"{key} = {value()} AND {key} = {value(w.pick(1, 'far'))}",
        lambda: f"{key} = {value()} AND {w.pick('false', 'NULL', 'true')}",
        lambda: f"{key} = {value()} OR {key} = {value()} AND {loose}",
        lambda: f"{loose} OR {loose} AND {key} = {value()}",
        lambda: f"({loose}) = ({key} = {value()})",
        lambda: f"{key} OPERATOR(pg_catalog.=) {value()}",
        lambda: f"{key} OPERATOR({w.pick('trap', 'public')}.=) {value()}",
        lambda: f"{key} = {value('far')}",
        lambda: f"{key} = {value(styles=('odd',))}",
        lambda: f"{key} IN ({value(styles=('odd',))}, {value()})",
        lambda: f"{key} = {value(1)}",
        lambda: f"{w.rng.choice(others)} = {value()}" if others else loose,
        lambda: f"{w.rng.choice(same_type)} = {value()}" if same_type else loose,
        lambda: f"{key} = {w.rng.choice(same_type)}" if same_type else loose,
        lambda: f"{key} = {w.rng.choice(others)}" if others else loose,
        lambda: f"{key} = {w.rng.choice(others)} AND {w.rng.choice(others)} = {value()}" if others else loose,
        lambda: f"{w.bare(source, table.key)} = {value()}",
    ]
    kind = table.types[table.key]
    if kind in ("bigint", "integer", "smallint"):
        choices += [
            lambda: f"{key}::{w.pick('integer', 'smallint', 'bigint')} = {value()}",
            lambda: f"{key} = {value(styles=('odd',))}::{w.pick('bigint', 'integer')}", lambda: f"{key} + 0 = {value()}", lambda: f"~ {key} = ~ {value(styles=('paren',))}",
            lambda: f"{key} = {value(styles=('paren',))} + {w.pick('0', '1')}",
            lambda: f"{key} = {w.pick('-', '+', '- -', '@')} {value(styles=('paren',))}",
            lambda: f"{key} = abs({value(styles=('cast',))})",
            lambda: f"{key}::text = {value(kind='text')}", lambda: f"{key} = {value(kind='text')}::{w.pick('bigint', 'integer')}",
            lambda: f"{key}::numeric = {value(kind='bigint')}", lambda: f"{key} = {value(styles=('paren',))}::{w.pick('numeric', 'float8', 'real', 'numeric(20,0)')}",
            lambda: f"{key}::float8 = {value(styles=('paren',))}", lambda: f"{key} = {value(styles=('paren',), parameter=False)}",
            lambda: f"{key} = {w.pick('4.5', '4.0', '4.', '4e0', '0x4', '4_0', '5.4::bigint', '4::bit(8)::integer')}",
            lambda: f"{key} = ({value(kind='bigint')})::{w.pick('smallint', 'integer', 'oid')}",
            lambda: f"{key} = {value(kind='text')}",
            lambda: f"{key} = {w.pick(chr(39) + ' 5' + chr(39), chr(39) + '5 ' + chr(39), chr(39) + '5.0' + chr(39), chr(39) + 'x' + chr(39), chr(39) + chr(39))}",
            lambda: f"{key} = '{{{5}}}'", lambda: f"{key} = ANY ('{{4,5}}')", lambda: f"{key} = ANY ('{{5,NULL}}'::bigint[])",
            lambda: f"{key} = ANY ('{{4}}'::text[]::bigint[])", lambda: f"{key} % 16 = {value()}",
            lambda: f"{key} = 4294967300", lambda: f"{key} = 99999999999999999999", lambda: f"{key} = length('abcde')",
            lambda: f"{key} = true::int", lambda: f"{key} = DATE '2024-01-01' - DATE '2023-12-27'",
            lambda: f"{key} = '1 day'::interval", lambda: f"int8eq({key}, {value()})",
        ]
    if kind in ("text", "varchar(40)"):
        choices += [
            lambda: f"{key} = {value(styles=('odd',))}::{w.pick('text', 'varchar')}", lambda: f"lower({key}) = lower({value()})", lambda: f"{key} LIKE {value()}", lambda: f"{key} ILIKE {value()}",
            lambda: f"{key} ~ {value()}", lambda: f"{key} || '' = {value()}", lambda: f"{key} = {value()} || {w.pick(chr(39) * 2, chr(39) + 'b' + chr(39))}",
            lambda: f"{key} = {value()} COLLATE \"C\"", lambda: f"{key} COLLATE \"C\" = {value()}",
            lambda: f"{key} = {value(styles=('quoted',))}::{w.pick('varchar(1)', 'char(1)', 'varchar(3)')}",
            lambda: f"{key} IN ({value(styles=('quoted',))}::{w.pick('varchar(1)', 'varchar(3)')})",
            lambda: f"{key} = {value(styles=('quoted',))}::{w.pick('varchar(1)', 'char(3)', 'char(9)', 'char', 'name', 'varchar(40)', 'bpchar')}",
            lambda: f"{key} = CAST({value(styles=('quoted',))} AS {w.pick('varchar(2)', 'bpchar', 'text', 'varchar', 'character(2)')})",
            lambda: f"{key}::{w.pick('varchar(1)', 'char(3)', 'bpchar')} = {value()}",
            lambda: f"{key} = {w.pick('5', 'NULL', 'true', 'current_user', 'current_date::text', chr(39) + 'a' + chr(39) + chr(10) + chr(39) + 'b' + chr(39))}",
            lambda: f"{key} = {w.pick('U&' + chr(39) + chr(92) + '0061' + chr(39), 'N' + chr(39) + 'a' + chr(39), 'E' + chr(39) + chr(92) + 'x61' + chr(39), 'B' + chr(39) + '1' + chr(39))}",
            lambda: f"{key} = concat({value()}, '')", lambda: f"{key} = upper({value()})", lambda: f"{key} = format('%s', {value()})",
            lambda: f"{key} IN ('a', 'A')", lambda: f"{key} = ANY ('{{a,\"a \"}}')", lambda: f"{key} = ANY (string_to_array({value()}, ','))",
            lambda: f"{key} = ANY ('{{a,NULL}}'::text[])", lambda: f"{key} ^@ {value()}", lambda: f"{key} SIMILAR TO {value()}",
        ]
    if kind == "uuid":
        choices += [
            lambda: f"{key}::text = {value()}", lambda: f"{key} = {value()}::text::uuid", lambda: f"{key} = {value(kind='text')}",
            lambda: f"{key} = 'zz'", lambda: f"{key} = ''",
        ]
    if kind == "bytea":
        choices += [lambda: f"{key} = {value()} || ''", lambda: f"{key} = 'doc-1'", lambda: f"{key} = 'doc-1'::text::bytea",
                    lambda: f"{key} = '\\\\'", lambda: f"{key} = E'\\\\x61'", lambda: f"{key} = '\\x6'", lambda: f"{key} = '\\141'"]
    w.level = 3
    return w.rng.choice(choices)()


def trap_relation(w, table):
    """A sub-select whose output bears the key's name; it stands for `table` in FROM. Without its alias."""
    key, name = table.key, w.name_of(table)
    others = [c.name for c in table.columns if c.name != key]
    same = [c.name for c in table.columns if c.name != key and c.type == table.types[key]]
    other = w.rng.choice(same or others)
    every = ", ".join(c.name for c in table.columns)
    rest = ", ".join(others)
    kind = "text" if table.types[key] == "varchar(40)" else table.types[key]
    value = lambda which=0: w.key(table, which)  # noqa: E731
    w.level = 3
    every_ordinal = ", ".join(str(n + 1) for n in range(len(table.columns)))
    return w.rng.choice([
        lambda: f"(SELECT {every} FROM {name})",
        lambda: f"(SELECT {every} FROM {name} ORDER BY {every_ordinal} LIMIT {w.pick(1, 3, 20)})",
        lambda: f"(SELECT {every} FROM {name} ORDER BY {every_ordinal} OFFSET 2)",
        lambda: f"(SELECT DISTINCT {every} FROM {name})",
        lambda: f"(SELECT DISTINCT ON ({other}) {every} FROM {name} ORDER BY {other}, {every})",
        lambda: f"(SELECT DISTINCT ON ({key}) {every} FROM {name} ORDER BY {key}, {every})",
        lambda: f"(SELECT {other} AS {key}, {', '.join((key + ' AS ' + c) if c == other else c for c in others)} FROM {name})",
        lambda: f"(SELECT {every}, rank() OVER (ORDER BY {every}) AS place FROM {name})",
        lambda: f"(SELECT {every}, count(*) OVER () AS place FROM {name})",
        lambda: f"(SELECT {every}, count(*) OVER (PARTITION BY {key}) AS place FROM {name})",
        lambda: f"(SELECT {every}, (SELECT count(*) FROM {name} AS z) AS place FROM {name})",
        lambda: f"(SELECT {every}, (SELECT count(*) FROM {name} AS z WHERE z.{key} = y.{key}) AS place FROM {name} AS y)",
        lambda: f"(SELECT max({key}::text)::{kind} AS {key}, {rest} FROM {name} GROUP BY {rest})",
        lambda: f"(SELECT {every} FROM {name} UNION ALL SELECT {every} FROM {name} WHERE {key} = {value()})",
        lambda: f"(SELECT {every} FROM {name} WHERE {key} = {value()} UNION ALL SELECT {every} FROM {name} WHERE {key} = {value('far')})",
        lambda: f"(SELECT {every} FROM {name} EXCEPT SELECT {every} FROM {name} WHERE {key} = {value()})",
        lambda: f"(SELECT {every} FROM {name} WHERE {key} = {value()} EXCEPT SELECT {every} FROM {name})",
        lambda: f"(SELECT {every} FROM {name} INTERSECT SELECT {every} FROM {name} WHERE {key} = {value()})",
        lambda: f"(SELECT {every} FROM {name} WHERE {key} = {value()} OR true)",
        lambda: f"(SELECT {every} FROM {name} WHERE {key} = {value('far')})",
        lambda: f"(SELECT {key} AS {key}, {rest} FROM {name} GROUP BY {every})",
        lambda: f"(SELECT {key} AS {key}, {rest} FROM {name} GROUP BY {every} HAVING {key} = {value()})",
        lambda: f"(SELECT ({value()})::{kind} AS {key}, {rest} FROM {name})",
        lambda: f"(SELECT CASE WHEN {other} IS NULL THEN NULL ELSE {key} END AS {key}, {rest} FROM {name})",
        lambda: f"(SELECT coalesce({key}, {key}) AS {key}, {rest} FROM {name})",
        lambda: f"(TABLE {name})",
        lambda: f"(WITH w AS (SELECT * FROM {name}) SELECT {every} FROM w)",
        lambda: f"(WITH w AS MATERIALIZED (SELECT * FROM {name} WHERE {key} = {value()}) SELECT {every} FROM w)",
        lambda: f"(WITH w AS (SELECT * FROM {name} ORDER BY {every_ordinal} LIMIT 4) SELECT {every} FROM w)",
        lambda: f"(WITH {table.plain_name} AS (SELECT * FROM {name} WHERE {key} = {value()}) SELECT {every} FROM {table.plain_name})",
        lambda: f"(WITH {table.plain_name} AS (SELECT * FROM {name}) SELECT {every} FROM {table.plain_name} WHERE {key} = {value()})",
        lambda: f"(SELECT y.{', y.'.join(table.names)} FROM {name} AS y, {name} AS z WHERE z.{key} = {value()} AND y.{other} = z.{other})",
        lambda: f"(SELECT y.{', y.'.join(table.names)} FROM {name} AS y LEFT JOIN {name} AS z ON y.{key} = z.{key} AND z.{key} = {value()})",
        lambda: f"(SELECT y.{', y.'.join(table.names)} FROM {name} AS y LEFT JOIN {name} AS z ON z.{key} = y.{key} WHERE z.{key} = {value()})",
        lambda: f"(SELECT y.{', y.'.join(table.names)} FROM {name} AS y RIGHT JOIN {name} AS z ON z.{key} = y.{key} AND y.{key} = {value()} WHERE z.{other} IS NOT NULL)",
        lambda: f"(SELECT y.{', y.'.join(table.names)} FROM {name} AS y WHERE y.{key} IN (SELECT z.{key} FROM {name} AS z WHERE z.{key} = {value()}))",
    ])()
