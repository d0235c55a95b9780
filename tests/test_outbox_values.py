"""Values in records: one exact format, whatever the session that wrote them had set, from which the equal value can
be made again."""

import datetime
import json

import pytest

from support import samples
from support.outbox import mirrored

# Settings that change how values are printed, each of them from what a client may choose.
SETTINGS = {
    "as they come": "SELECT 1",
    "strange": "SET DateStyle = 'SQL, DMY'; SET IntervalStyle = sql_standard; SET TimeZone = 'Asia/Kathmandu';"
               "SET extra_float_digits = -10; SET bytea_output = escape; SET xmloption = content; SET lc_monetary = 'C'",
    "stranger": "SET DateStyle = 'German'; SET IntervalStyle = postgres_verbose; SET TimeZone = 'America/St_Johns';"
                "SET extra_float_digits = 0; SET bytea_output = hex; SET search_path = pg_catalog",
}
# Types beyond those that a keyset can be sorted by.
MORE = {
    "json": ("json", ['{"a": [1, 2.50, null, {"b": "\\u00fc"}], "a": 1}', '"text"', "[]", "0.10"]),
    "jsonb": ("jsonb", ['{"a": [1, 2.50, null, true], "z": "ü\\"\\\\"}', '"text"', "1e400", "-0.0"]),
    "texts": ("text[]", ["{}", '{a,NULL,"NULL","","a b","{}","\\"","\\\\"}', "{{a,b},{c,d}}"]),
    "times": ("timestamptz[]", ['{"2024-05-01 12:00:00.000001+02",infinity,NULL}']),
    "days": ("date[]", ["{2024-02-03,-infinity}"]),
    "floats": ("float8[]", ["{0.1,0.30000000000000004,1e300,5e-324,NaN,-Infinity}"]),
    "blobs": ("bytea[]", ['{"\\\\x00ff","\\\\x5c"}']),
    "numbers": ("numeric[]", ["{1.00,-0.10,1e40,NaN}"]),
    "moods": ("mood[]", ["{sad,angry}"]),
    "spans": ("interval[]", ['{"1 mon -1 day 00:00:00.000001","-1 year 2 mons -3 days 04:05:06"}']),
    "pair": ("pair", ['(1,"2024-05-01 12:00:00.5+02","\\\\xff")', '(,,)', '(5,infinity,)']),
    "pairs": ("pair[]", ['{"(1,\\"2024-05-01 12:00:00.5+02\\",\\"\\\\\\\\x00\\")",NULL}']),
    "nested": ("nested", ['("(1,,)","{1.0,2.00}",sad)']),
    "posint": ("posint", ["7"]),
    "stamp": ("stamp", ["2024-05-01 12:00:00.25+02"]),
    "bits": ("bit(5)", ["10101"]),
    "varbits": ("varbit", ["", "1", "10101"]),
    "timetz": ("timetz", ["12:00:00.000001+05:30", "24:00:00-12"]),
    "inet": ("inet", ["10.1.2.3", "10.0.0.0/8", "::1"]),
    "cidr": ("cidr", ["10.0.0.0/8"]),
    "macaddr": ("macaddr", ["08:00:2b:01:02:03"]),
    "span4": ("int4range", ["[1,5)", "empty", "(,)"]),
    "spantz": ("tstzrange", ['["2024-05-01 12:00:00+02","2024-05-02 00:00:00+00")']),
    "spand": ("daterange", ["[2024-02-03,infinity)", "empty"]),
    "spans_tz": ("tstzrange[]", ['{"[\\"2024-05-01 12:00:00.5+02\\",)",NULL}']),
    "multi_ts": ("tsmultirange", ['{["2024-02-03 04:05:06.7","2024-02-04 00:00:00")}']),
    "xml": ("xml", ['<a b="c">&lt;x</a>', ""]),
    "money": ("money", ["$1,234.56", "-$0.01"]),
    "box": ("box", ["(2,2),(0.1,0)"]),
    "path": ("jsonpath", ['$."a"[*]?(@ > 1)']),
    "multi": ("nummultirange", ["{[1.0,2.50),(5,)}"]),
    "vector": ("tsvector", ["'a':1A,2 'b c':3"]),
    "point": ("point", ["(0.1,-1e300)"]),
    "chr": ('"char"', ["x", ""]),
    "name": ("name", ["some name"]),
    "oid": ("oid", ["4294967295", "0"]),
    "lsn": ("pg_lsn", ["16/B374D848"]),
    "odd": ("text", ['"', "\\", "\\u0000", "\\n", "\n\r\t\b\f", "\x01\x1f\x7f", "\u2028", "𝄞", "\ufeff", "</script>", "'", "$$"]),
}
TYPES = """
CREATE TYPE pair AS (n int, t timestamptz, b bytea);
CREATE TYPE nested AS (p pair, "the numbers" numeric[], m mood);
CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE DOMAIN stamp AS timestamptz;
"""


@pytest.fixture
def sampled(outbox):
    """Table `sample` with a column v_X of each type, attached, and `row_of(row_number)`: its texts."""
    table = samples.TABLE.split("CREATE TABLE")[0] + TYPES
    columns = {**samples.COLUMNS, **MORE}
    outbox.sql(table + "CREATE TABLE sample (id int PRIMARY KEY, " + ", ".join(
        f"v_{name} {kind}" for name, (kind, _) in columns.items()) + ")")
    outbox.attach("sample")
    outbox.columns = columns
    return outbox


def fill(outbox, settings="SELECT 1"):
    columns = outbox.columns
    rows = max(len(values) for _, values in columns.values()) + 1
    with outbox.connect() as session:
        session.execute(settings)
        session.execute("SET search_path = public")
        for number in range(rows):
            texts = [values[number % len(values)] if number < rows - 1 else None for _, values in columns.values()]
            session.execute("INSERT INTO public.sample SELECT %s, " + ", ".join(f"%s::text::{kind}" for kind, _ in columns.values()),
                            [number, *texts])
    return rows


def differing(outbox, source):
    """(column, id, value, value made of the record) where the two differ. `source` has columns id and new."""
    exact = "SET TimeZone = UTC; SET DateStyle = ISO; SET IntervalStyle = postgres; SET extra_float_digits = 3;"
    with outbox.connect() as session:
        session.execute(exact)
        found = []
        for name, (kind, _) in outbox.columns.items():
            left, right = f"s.v_{name}", f"r.v_{name}"
            if kind in ("json", "jsonb"):
                same = f"{left}::jsonb IS NOT DISTINCT FROM {right}::jsonb"
            elif kind in ("real", "double precision"):
                same = f"{left} IS NOT DISTINCT FROM {right}"  # -0 is 0
            else:
                same = f"{left}::text IS NOT DISTINCT FROM {right}::text"
            found += [(name, *row) for row in session.execute(
                f"SELECT s.id, {left}::text, {right}::text, o.new->'v_{name}' FROM {source} o"
                f" JOIN sample s USING (id), jsonb_populate_record(NULL::sample, o.new) r WHERE NOT ({same})").fetchall()]
        return found


RECORDED = "(SELECT (key->>'id')::int AS id, new FROM interlock.outbox WHERE op = 'I')"


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_value_of_any_type_can_be_made_again_of_its_record(sampled, settings):
    rows = fill(sampled, settings)
    assert sampled.count() == rows
    assert differing(sampled, RECORDED) == []


def test_the_format_does_not_depend_on_what_the_writer_has_set(sampled):
    made = []
    for settings in SETTINGS.values():
        fill(sampled, settings)
        made.append(sampled.sql("SELECT key::text, new::text FROM interlock.outbox WHERE op = 'I' ORDER BY seq"))
        with sampled.connect() as session:
            session.execute(settings)
            session.execute("DELETE FROM public.sample")
        # What a delete says of a row is what its insert said.
        assert sampled.sql("SELECT key::text, old::text FROM interlock.outbox WHERE op = 'D' ORDER BY (key->>'id')::int") == made[-1]
        sampled.clear()
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_row_values_gives_what_a_record_holds(sampled, settings):
    fill(sampled)
    with sampled.connect() as session:
        session.execute(settings)
        names = ["id", *(f"v_{name}" for name in sampled.columns)]
        values = dict(session.execute("SELECT id, interlock.row_values(s, %s)::text FROM public.sample s", (names,)).fetchall())
        # Each by itself, too: a column may be right only because of what another one's type has set.
        singles = {name: session.execute("SELECT id, interlock.row_values(s, %s)::text FROM public.sample s ORDER BY id",
                                         ([name],)).fetchall() for name in names}
        few = session.execute("SELECT interlock.row_values(s, '{v_int4,id}')::text FROM public.sample s WHERE id = 3").fetchone()[0]
    assert values == dict(sampled.sql("SELECT (key->>'id')::int, new::text FROM interlock.outbox"))
    for name, rows in singles.items():
        assert rows == sampled.sql("SELECT (key->>'id')::int, jsonb_build_object(%s::text, new->%s)::text FROM interlock.outbox"
                                   " ORDER BY (key->>'id')::int", name, name), name
    assert few == sampled.value("SELECT jsonb_build_object('id', id, 'v_int4', v_int4)::text FROM sample WHERE id = 3")


def test_the_format_is_what_is_written_down(outbox):
    """Consumers that are not PostgreSQL rely on it."""
    cases = {
        "smallint": ("-5", "-5"), "bigint": ("9223372036854775807", "9223372036854775807"), "numeric": ("1.500", "1.500"),
        "numeric(20,10)": ("0.1", "0.1000000000"), "real": ("1.1", "1.1"), "double precision": ("0.30000000000000004", "0.30000000000000004"),
        "boolean": ("t", "true"), "text": ('a"b', '"a\\"b"'), "char(4)": ("ab", '"ab  "'), "bytea": ("\\xdeadbeef", '"\\\\xdeadbeef"'),
        "uuid": ("7FFFFFFF-0000-0000-0000-00000000000a", '"7fffffff-0000-0000-0000-00000000000a"'),
        "date": ("2024-02-03", '"2024-02-03"'), "timestamp": ("2024-02-03 04:05:06.7", '"2024-02-03T04:05:06.7"'),
        "jsonb": ('{"a": [1.50]}', '{"a": [1.50]}'), "json": ('{"a" : 1}', '{"a": 1}'), "int[]": ("{1,NULL}", "[1, null]"),
        "date[]": ("{2024-02-03}", '["2024-02-03"]'),
    }
    nothing = {"double precision": ["NaN", "Infinity", "-Infinity"], "numeric": ["NaN", "Infinity", "-Infinity"],
               "real": ["NaN"], "date": ["infinity", "-infinity"], "timestamp": ["infinity"], "timestamptz": ["infinity", "-infinity"]}
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, " + ", ".join(f'"{kind}" {kind}' for kind in (*cases, "timestamptz")) + ")")
    outbox.attach("t")
    outbox.sql("INSERT INTO t VALUES (0" + ", %s" * (len(cases) + 1) + ")", *(text for text, _ in cases.values()),
               "2024-05-01 12:00:00.000001+02")
    made = dict(outbox.sql("SELECT e.key, e.value::text FROM interlock.outbox o, jsonb_each(o.new) e"))
    assert {kind: made[kind] for kind in cases} == {kind: text for kind, (_, text) in cases.items()}
    when = datetime.datetime.fromisoformat(json.loads(made["timestamptz"]).replace("Z", "+00:00"))
    assert when == datetime.datetime(2024, 5, 1, 10, 0, 0, 1, datetime.timezone.utc) and when.utcoffset() == datetime.timedelta(0)
    assert json.loads(made["timestamptz"]).startswith("2024-05-01T10:00:00.000001")
    for kind, texts in nothing.items():
        for number, text in enumerate(texts, 1):
            outbox.sql(f'INSERT INTO t (id, "{kind}") VALUES (%s, %s)', number, text)
            assert outbox.value(f"SELECT new->'{kind}' FROM interlock.outbox ORDER BY seq DESC LIMIT 1") == text
        outbox.sql("DELETE FROM t WHERE id > 0")


def test_names_of_tables_and_enums_with_odd_characters_arrive_as_they_are(outbox):
    outbox.sql("""
        CREATE SCHEMA "Odd ""schema.x";
        CREATE TYPE "Odd ""schema.x"."e" AS ENUM ('it''s', 'a "label"', 'ü');
        CREATE TABLE "Odd ""schema.x"."the Table" (id int PRIMARY KEY, "Value" "Odd ""schema.x"."e");
    """)
    outbox.attach('"Odd ""schema.x"."the Table"')
    with outbox.connect() as session:
        session.execute("""SET search_path = 'Odd "schema.x'""")
        session.execute("""INSERT INTO "the Table" VALUES (1, 'it''s'), (2, 'a "label"'), (3, 'ü')""")
    assert {record.table_name for record in outbox.records()} == {'"Odd ""schema.x"."the Table"'}
    assert [record.new["Value"] for record in outbox.records()] == ["it's", 'a "label"', "ü"]
    outbox.sql("""ALTER TYPE "Odd ""schema.x"."e" RENAME VALUE 'ü' TO 'renamed';
               UPDATE "Odd ""schema.x"."the Table" SET "Value" = 'renamed' WHERE id = 1""")
    assert outbox.records()[-1].new["Value"] == "renamed"


def test_names_of_objects_as_values_do_not_depend_on_the_search_path(outbox):
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, c regclass, y regtype)")
    outbox.attach("t")
    texts = []
    for path in ("public", "pg_catalog", "interlock, public"):
        with outbox.connect() as session:
            session.execute(f"SET search_path = {path}")
            session.execute("INSERT INTO public.t VALUES (1, 'public.t', 'public.t')")
            session.execute("DELETE FROM public.t")
        texts.append([(record.old, record.new) for record in outbox.clear()])
    assert texts[0] == texts[1] == texts[2]


def test_another_encoding_of_the_database_does_not_change_the_text(outbox):
    outbox.drop()
    outbox.instance.sql(f"CREATE DATABASE {outbox.dbname} TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'",
                        dbname="postgres")
    outbox.sql("CREATE EXTENSION interlock; CREATE TABLE t (id text PRIMARY KEY, v text)")
    outbox.attach("t")
    with outbox.connect(client_encoding="UTF8") as session:
        session.execute("INSERT INTO t VALUES ('ü', 'é\"ÿ')")
        record = session.execute("SELECT key, new FROM interlock.outbox").fetchone()
    assert record == ({"id": "ü"}, {"id": "ü", "v": 'é"ÿ'})


def test_a_value_that_the_json_of_postgresql_cannot_hold_does_not_stop_the_writer_unnamed(outbox):
    """A json document may hold \\u0000, which jsonb may not: the error says so, or the record is written."""
    outbox.sql("CREATE TABLE t (id int PRIMARY KEY, v json)")
    outbox.attach("t")
    try:
        outbox.sql("INSERT INTO t VALUES (1, %s)", '{"a": "\\u0000"}')
    except Exception as error:  # noqa: BLE001
        assert error.diag.sqlstate in ("22P05", "22P02"), error
        assert outbox.count() == 0
    else:
        assert mirrored(outbox.records())
