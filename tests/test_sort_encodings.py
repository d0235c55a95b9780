"""Sort keys and cursors in databases of other encodings and of other default collations."""

import psycopg
import pytest

# What "CREATE DATABASE" says, what the characters of the test may be, whether the default collation has keys.
DATABASES = {
    "latin": ("ENCODING latin1 LOCALE 'C'", 255, True),
    "japanese": ("ENCODING euc_jp LOCALE 'C'", 127, True),
    "ascii": ("ENCODING sql_ascii LOCALE 'C'", 255, True),
    "swedish": ("ENCODING utf8 LOCALE_PROVIDER icu ICU_LOCALE 'sv'", 1000, True),
    "swedish_latin": ("ENCODING latin1 LOCALE_PROVIDER icu ICU_LOCALE 'sv'", 255, True),
    "libc": ("ENCODING utf8 LOCALE 'C.UTF-8'", 1000, False),
}


@pytest.fixture(scope="module")
def server(instance):
    for name, (options, top, _) in DATABASES.items():
        instance.sql(f"CREATE DATABASE {name} TEMPLATE template0 {options}"
                     + (" LC_CTYPE 'C' LC_COLLATE 'C'" if "icu" in options else ""), dbname="postgres")
        instance.sql(f"""
            CREATE EXTENSION interlock;
            CREATE TABLE word (id serial PRIMARY KEY, v text NOT NULL, padded char(4) NOT NULL);
            INSERT INTO word (v, padded) SELECT chr(a) || repeat(chr(b), a % 3), chr(b) || repeat(' ', b % 3)
              FROM generate_series(33, {top}, {max(1, top // 60)}) AS a, generate_series(34, {top}, {max(1, top // 20)}) AS b
             WHERE a NOT BETWEEN 127 AND 160 AND b NOT BETWEEN 127 AND 160;
            GRANT SELECT ON word TO app;""", dbname=name)
        if name == "japanese":
            instance.sql("INSERT INTO word (v, padded) SELECT v, left(v, 4) FROM"
                         " (SELECT convert_from(convert_to(s, 'EUC_JP'), 'EUC_JP') FROM"
                         "  unnest(ARRAY['漢字', 'カタカナ', 'ひらがな', '漢', 'ｶﾅ', '字']) AS s) AS t(v)", dbname=name)
    return instance


def wrong_places(server, database, expression):
    return server.sql(f"""
        SELECT count(*), count(*) FILTER (WHERE by_value <> by_key)
          FROM (SELECT rank() OVER (ORDER BY {expression} DESC) AS by_value,
                       rank() OVER (ORDER BY interlock.sort_key({expression}, true, true)) AS by_key FROM word) AS r""",
                      dbname=database)[0]


@pytest.mark.parametrize("database", [name for name, (_, _, has_keys) in DATABASES.items() if has_keys])
def test_keys_sort_as_the_values_do(server, database):
    expressions = ["v", "padded", 'v COLLATE "C"']
    if database not in ("ascii", "japanese"):  # ICU has no collations for these in PostgreSQL
        expressions += ['v COLLATE "und-x-icu"', 'padded COLLATE "de-x-icu"']
    for expression in expressions:
        compared, wrong = wrong_places(server, database, expression)
        assert compared > 300 and wrong == 0, expression


def walk(connection, keyset):
    found, cursor = [], None
    while True:
        rows = connection.execute("SELECT (item).id, cursor, sort_key FROM interlock.keyset_page(%s, NULL::word, after => %s,"
                                  " page_size => 7)", (keyset, cursor)).fetchall()
        if not rows:
            return found
        found += rows
        cursor = rows[-1][1]
        if isinstance(cursor, bytes):  # psycopg takes no text of an SQL_ASCII database for text
            cursor = cursor.decode("ascii")


@pytest.mark.parametrize("database", DATABASES)
def test_a_walk_gives_each_row_once_in_order(server, database):
    server.sql("SET client_min_messages = error;"
               "SELECT interlock.keyset_create('words', 'word', '{}', 'v DESC, padded, id')", dbname=database)
    with server.connect(database, "app") as connection:
        rows = walk(connection, "words")
        truth = connection.execute("SELECT id FROM word ORDER BY v DESC, padded, id").fetchall()
    assert len(rows) > 300
    assert [row[0] for row in rows] == [row for row, in truth]
    keys = [row[2] for row in rows]
    if DATABASES[database][2]:
        assert keys == sorted(keys) and len(set(keys)) == len(keys)
    else:
        assert set(keys) == {None}, "nothing can be merged by"


def test_a_default_collation_of_the_c_library_is_told_and_not_merged(server):
    def refused(text):
        with pytest.raises(psycopg.Error) as refusal:
            server.sql(text, dbname="libc")
        return refusal.value
    error = refused("SELECT interlock.sort_key(v, false, false) FROM word")
    assert error.sqlstate == "0A000" and "C library" in error.diag.message_detail, error
    error = refused("SELECT interlock.keyset_create('scattered', 'word', '{}', 'v, id', scatter => true)")
    assert error.sqlstate == "0A000" and "C library" in error.diag.message_detail, error
    compared, wrong = wrong_places(server, "libc", 'v COLLATE "C"')
    assert compared > 300 and wrong == 0
    assert server.value("SELECT count(DISTINCT interlock.group_key(v)) = count(DISTINCT v) FROM word", dbname="libc")


def test_fingerprints_and_digests_tell_databases_apart_that_sort_differently(server):
    prints = {name: server.value("SELECT interlock.collation_fingerprint()", dbname=name) for name in DATABASES}
    assert len(set(prints.values())) == len(DATABASES), prints
    digests = {}
    for name in DATABASES:
        server.sql("SET client_min_messages = error; SELECT interlock.keyset_create('by_v', 'word', '{}', 'v, id')", dbname=name)
        digests[name] = server.value("SELECT digest FROM interlock.keysets WHERE name = 'by_v'", dbname=name)
    assert None not in digests.values() and len(set(digests.values())) == len(DATABASES), digests
    # Made alike, they are alike.
    server.sql("CREATE DATABASE swedish_too TEMPLATE template0 ENCODING utf8 LOCALE_PROVIDER icu ICU_LOCALE 'sv'"
               " LC_CTYPE 'C' LC_COLLATE 'C'", dbname="postgres")
    server.sql("""SET client_min_messages = error;
        CREATE EXTENSION interlock; CREATE TABLE word (v text NOT NULL, id integer PRIMARY KEY);
        SELECT interlock.keyset_create('by_v', 'word', '{}', 'v, id')""", dbname="swedish_too")
    assert server.value("SELECT interlock.collation_fingerprint()", dbname="swedish_too") == prints["swedish"]
    assert server.value("SELECT digest FROM interlock.keysets", dbname="swedish_too") == digests["swedish"]
