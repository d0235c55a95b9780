"""What a keyset must be to be declared, and what becomes of one whose table changes."""

import json

import psycopg
import pytest

from support.shard import refusal


@pytest.fixture(scope="module")
def connection(instance):
    with instance.connect() as connection:
        connection.execute('''
            CREATE TABLE orders (id int PRIMARY KEY, merchant int NOT NULL, no int NOT NULL, at timestamptz NOT NULL,
                note text, code text COLLATE "C" NOT NULL UNIQUE, plan json, place point, maybe int UNIQUE,
                late int NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED, tags text[], libc text NOT NULL UNIQUE,
                icu text COLLATE "en-x-icu" NOT NULL UNIQUE, part int NOT NULL, expr int NOT NULL, pair_a int, pair_b int,
                given int NOT NULL, doubled int GENERATED ALWAYS AS (given * 2) STORED,
                UNIQUE (merchant, no), UNIQUE (pair_a, pair_b));
            CREATE UNIQUE INDEX orders_part ON orders (part) WHERE part > 0;
            CREATE UNIQUE INDEX orders_expr ON orders ((expr + 1));
            CREATE UNIQUE INDEX orders_given ON orders (given) INCLUDE (note);
            CREATE INDEX ON orders (merchant, at, id);
            CREATE VIEW some_view AS SELECT * FROM orders;
            CREATE TABLE parted (id int PRIMARY KEY, at timestamptz NOT NULL) PARTITION BY RANGE (id);
            CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100);
            CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (100) TO (200);
            CREATE SCHEMA "Odd schema";
            CREATE TABLE "Odd schema"."Odd ""table""" ("Id, DESC" int PRIMARY KEY, "a'b" int NOT NULL);
        ''')
        yield connection


def create(connection, order, scope=(), table="orders", name="tried", **options):
    """keyset_create(), undone again; returns the notices."""
    more = "".join(f", {option} => {value}" for option, value in options.items())
    notices = []

    def note(notice):
        notices.append((notice.severity, " ".join(filter(None, (notice.message_primary, notice.message_detail,
                                                                notice.message_hint)))))

    connection.add_notice_handler(note)
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"SELECT interlock.keyset_create(%s, %s, %s, %s{more})", (name, table, list(scope), order))
    finally:
        connection.remove_notice_handler(note)
    return notices


@pytest.mark.parametrize("order, scope", [
    ("id", []), ("at DESC, id DESC", ["merchant"]), ("at DESC NULLS LAST, id", []), ("note, code", []),
    ("no", ["merchant"]), ("merchant, no", []), ("no, merchant DESC", []), ("at, no", ["merchant"]),
    ("note NULLS FIRST, given", []), ("pair_a, id, pair_b", []), ('"at", "id"', []), ("AT desc nulls first , ID asc", []),
    ("maybe, id", []), ("icu", []), ("libc", []), ("given", ["doubled"]),
    ('libc COLLATE "C", id', []), ('code COLLATE "C"', [])])
def test_total_orders_are_declared(connection, order, scope):
    create(connection, order, scope)


@pytest.mark.parametrize("order, scope", [
    ("at", []),                  # no key at all
    ("at DESC, note", []),
    ("maybe", []),               # unique but nullable
    ("at, maybe", []),
    ("pair_a, pair_b", []),
    ("late", []),                # unique only at commit
    ("part", []),                # unique for some rows
    ("expr", []),                # an expression's index
    ("no", []),                  # unique only together with the merchant
    ("at", ["no"])])
def test_an_order_that_is_not_total_is_refused_when_it_is_declared(connection, order, scope):
    with refusal("IL205") as caught:
        create(connection, order, scope)
    # It names the way out.
    assert caught[0].diag.message_hint


def test_a_unique_index_that_is_not_valid_does_not_count(connection):
    connection.execute("CREATE TABLE dup (v int NOT NULL); INSERT INTO dup VALUES (1), (1)")
    with pytest.raises(psycopg.Error):
        connection.execute("CREATE UNIQUE INDEX CONCURRENTLY dup_v ON dup (v)")
    with refusal("IL205"):
        create(connection, "v", table="dup")
    connection.execute("DELETE FROM dup WHERE ctid = '(0,1)'; REINDEX INDEX dup_v")
    create(connection, "v", table="dup")


@pytest.mark.parametrize("order, scope, code", [
    ("nothing, id", [], "42703"), ("id", ["nothing"], "42703"), ("", [], None), ("id,", [], "42601"), ("id; SELECT 1", [], None),
    ("id id", [], "42601"), ("lower(note), id", [], None), ("note || 'x', id", [], None), ("1, id", [], None),
    ("orders.id", [], None), ("id USING <", [], None), ("(SELECT 1), id", [], None), ("$1, id", [], None),
    ("id LIMIT 1", [], None), ("ctid", [], None), ("xmin, id", [], None), ("id, id", [], "42701"), ("at, id", ["id"], None),
    ("id", ["merchant", "merchant"], "42701"),
    ("plan, id", [], "42804"), ("place, id", [], "42804"), ("tags, id", [], "42804"), ("id", ["place"], "42804"),
    ('note COLLATE "nowhere", id', [], "42704"), ('at COLLATE "C", id', [], None)])
def test_an_order_or_scope_that_makes_no_sense_is_refused(connection, order, scope, code):
    with pytest.raises(psycopg.Error) as caught:
        create(connection, order, scope)
    state = caught.value.diag.sqlstate
    assert state == code or (code is None and state[:2] in ("42", "22", "0A", "IL")), caught.value


@pytest.mark.parametrize("options", [{"max_page": 0}, {"default_page": 0}, {"max_page": -1}, {"default_page": 2000},
                                     {"max_page": 10, "default_page": 11}, {"max_page": "NULL"}])
def test_page_limits_that_make_no_sense_are_refused(connection, options):
    with pytest.raises(psycopg.Error) as caught:
        create(connection, "id", **options)
    assert caught.value.diag.sqlstate in ("22023", "22004"), caught.value
    create(connection, "id", max_page=10, default_page=10)


def test_a_name_is_declared_once(connection):
    with connection.transaction(force_rollback=True):
        connection.execute("SELECT interlock.keyset_create('once', 'orders', '{}', 'id')")
        with refusal("42710"):
            connection.execute("SELECT interlock.keyset_create('once', 'orders', '{}', 'code')")


@pytest.mark.parametrize("name", ["", None])
def test_a_keyset_has_a_name(connection, name):
    with pytest.raises(psycopg.Error) as caught:
        create(connection, "id", name=name)
    assert caught.value.diag.sqlstate[:2] in ("22", "42")


def test_a_view_is_no_table(connection):
    with pytest.raises(psycopg.Error) as caught:
        create(connection, "id", table="some_view")
    assert caught.value.diag.sqlstate in ("42809", "IL205", "0A000")


def test_a_libc_collation_is_refused_for_scatter_and_a_way_out_is_named(connection, instance):
    connection.execute("CREATE TABLE named (id int PRIMARY KEY, n text COLLATE \"C.utf8\" NOT NULL, d text NOT NULL)")
    for order in ("n, id", "d, id"):
        create(connection, order, table="named", scatter="false")
        with refusal("0A000") as caught:
            create(connection, order, table="named", scatter="true")
        assert caught[0].diag.message_detail and 'COLLATE "C"' in caught[0].diag.message_hint
    create(connection, 'n COLLATE "C", id', table="named", scatter="true")
    create(connection, "icu, id", scatter="true")
    create(connection, "code", scatter="true")


def test_a_missing_index_is_a_warning_with_the_statement_that_makes_it(connection):
    for order, scope in (("at DESC, id DESC", ["merchant"]), ("at, id", ["merchant"]), ("id", []), ("code DESC", []),
                         ("no", ["merchant"])):
        assert create(connection, order, scope) == [], order
    for order, scope in (("at DESC, id", ["merchant"]), ("note DESC NULLS LAST, id", []), ("at, id", []),
                         ('note COLLATE "de-x-icu", id', ["given"])):
        (severity, words), = create(connection, order, scope)
        assert severity == "WARNING"
        statement = words[words.index("CREATE INDEX"):].split(";")[0]
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
            assert create(connection, order, scope) == [], statement


def test_the_view_tells_what_was_declared(connection):
    with connection.transaction(force_rollback=True):
        connection.execute("SELECT interlock.keyset_create('told', 'orders', '{merchant}', 'at desc, id',"
                           " max_page => 77, default_page => 7, signed => false)")
        row = connection.execute("SELECT * FROM interlock.keysets WHERE name = 'told'")
        told = dict(zip([column.name for column in row.description], row.fetchone()))
        assert told["name"] == "told" and told["scope"] == ["merchant"] and told["max_page"] == 77
        assert told["default_page"] == 7 and told["signed"] is False and str(told["table"]).endswith("orders")
        assert "at" in told["order"] and "DESC" in told["order"].upper()
        # What it shows as the order declares the same keyset again, digest and all.
        connection.execute("SELECT interlock.keyset_drop('told')")
        connection.execute("SELECT interlock.keyset_create('told', 'orders', '{merchant}', %s, signed => false)",
                           (told["order"],))
        assert connection.execute("SELECT digest FROM interlock.keysets WHERE name = 'told'").fetchone()[0] == told["digest"]


def test_names_that_need_quotes(connection):
    connection.execute('INSERT INTO "Odd schema"."Odd ""table""" SELECT i, i % 3 FROM generate_series(1, 20) i')
    with connection.transaction(force_rollback=True):
        connection.execute("SELECT interlock.keyset_create(%s, %s, %s, %s)",
                           ("Odd 'name", '"Odd schema"."Odd ""table"""', ["a'b"], '"Id, DESC" DESC'))
        rows = connection.execute('''SELECT (item)."Id, DESC" FROM interlock.keyset_page(%s,
            NULL::"Odd schema"."Odd ""table""", %s, page_size => 5)''', ("Odd 'name", json.dumps({"a'b": 1}),)).fetchall()
        assert [row[0] for row in rows] == [19, 16, 13, 10, 7]


def test_the_owner_of_a_table_declares_its_keysets_if_the_extensions_owner_allows_it(connection):
    connection.execute("CREATE ROLE shopkeeper; CREATE TABLE stall (id int PRIMARY KEY); ALTER TABLE stall OWNER TO shopkeeper")
    create_it = "SELECT interlock.keyset_create('stall', %s, '{}', 'id')"
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL ROLE shopkeeper")
            with refusal("42501"), connection.transaction():
                connection.execute(create_it, ("stall",))
            connection.execute("RESET ROLE")
            connection.execute("GRANT EXECUTE ON FUNCTION interlock.keyset_create, interlock.keyset_drop TO shopkeeper")
            connection.execute("SET LOCAL ROLE shopkeeper")
            connection.execute(create_it, ("stall",))
            assert connection.execute("SELECT * FROM interlock.keyset_page('stall', NULL::stall)").fetchall() == []
            with refusal("42501"), connection.transaction():
                connection.execute(create_it.replace("'stall'", "'other'"), ("orders",))
            # What that made is as much out of reach as before.
            for statement in ("SELECT * FROM interlock.cursor_key", "DELETE FROM interlock.keyset"):
                with refusal("42501"), connection.transaction():
                    connection.execute(statement)
            connection.execute("SELECT interlock.keyset_drop('stall')")
    finally:
        connection.execute("DROP TABLE stall; DROP ROLE shopkeeper")


# --- pages are refused when they are asked for wrongly ---------------------------------------------------


@pytest.fixture(scope="module")
def declared(connection):
    connection.execute("""
        INSERT INTO orders (id, merchant, no, at, code, late, libc, icu, part, expr, given)
            SELECT i, i % 3, i, '2024-05-01', i, i, i, i, i, i, i FROM generate_series(1, 60) i;
        SELECT interlock.keyset_create('newest', 'orders', '{merchant}', 'at DESC, id DESC', max_page => 20,
                                       default_page => 10);
    """)
    return connection


def page(connection, scope='{"merchant": 1}', row="NULL::orders", keyset="newest", size=None, **more):
    return connection.execute(f"SELECT to_jsonb(p.item) FROM interlock.keyset_page(%s, {row}, %s, page_size => %s) p",
                              (keyset, scope, size)).fetchall()


@pytest.mark.parametrize("size, code", [(21, "IL202"), (2_147_483_647, "IL202"), (0, "22023"), (-1, "22023")])
def test_a_page_size_out_of_bounds_is_refused(declared, size, code):
    with refusal(code):
        page(declared, size=size)
    assert len(page(declared, size=20)) == 20 and len(page(declared)) == 10 and len(page(declared, size=1)) == 1


@pytest.mark.parametrize("scope, code", [
    (None, "22023"), ("{}", "22023"), ('{"merchant": null}', "22004"), ('{"merchant": 1, "no": 2}', "22023"),
    ('{"Merchant": 1}', "22023"), ('{"no": 1}', "22023"), ("[]", "22023"), ("1", "22023"), ('{"merchant": "x"}', "22P02"),
    ('{"merchant": 99999999999}', "22003"), ('{"merchant": 1.5}', "22P02"), ('{"merchant": [1]}', "22023"),
    ('{"merchant": {"a": 1}}', "22023")])
def test_a_scope_that_is_not_exactly_the_declared_one_is_refused(declared, scope, code):
    with refusal(code):
        page(declared, scope=scope)


def test_an_unknown_keyset_is_refused(declared):
    for keyset in ("nothing", "NEWEST", "", "x" * 1000):
        with refusal("42704"):
            page(declared, keyset=keyset)


def test_the_row_type_is_the_keysets_table(declared):
    for row in ("NULL::parted", "NULL::int", "NULL::text"):
        with refusal("42804"):
            page(declared, row=row)
    assert page(declared, row="(SELECT o FROM orders o LIMIT 1)") == page(declared)


def test_functions_state_what_they_are(connection):
    rows = dict(connection.execute("""
        SELECT proname, provolatile::text || proparallel::text FROM pg_proc WHERE pronamespace = 'interlock'::regnamespace
          AND proname IN ('keyset_page', 'keyset_cursor', 'keyset_predicate', 'sort_key', 'owned')""").fetchall())
    assert rows["keyset_page"][0] == "s" and rows["sort_key"] == "is" and rows["keyset_cursor"][0] in "si"
    undescribed = connection.execute("""
        SELECT proname FROM pg_proc WHERE pronamespace = 'interlock'::regnamespace
          AND (proname ~ '^keyset' OR proname ~ '^cursor_key' OR proname IN ('sort_key', 'owned'))
          AND obj_description(oid, 'pg_proc') IS NULL""").fetchall()
    assert undescribed == []


# --- the table changes ------------------------------------------------------------------------------------


@pytest.fixture
def changing(instance, request):
    """A table `t` with a keyset that a session has used already: what it keeps must notice the change."""
    with instance.connect() as connection:
        connection.execute("""
            CREATE TABLE t (id int PRIMARY KEY, v int, w text);
            CREATE INDEX t_v ON t (v, id);
            INSERT INTO t SELECT i, i % 5, 'x' FROM generate_series(1, 30) i;
            SELECT interlock.keyset_create('t', 't', '{}', 'v, id');
        """)
        yield connection
        connection.execute("DROP TABLE IF EXISTS t, u, elsewhere.t; DROP SCHEMA IF EXISTS elsewhere")
        assert connection.execute("SELECT * FROM interlock.keysets WHERE name = 't'").fetchall() == []


def ids(connection, after=None, size=10, table="t"):
    rows = connection.execute(f"SELECT to_jsonb(item)->>'id', cursor FROM interlock.keyset_page('t', NULL::{table},"
                              " after => %s, page_size => %s)", (after, size)).fetchall()
    return [int(row[0]) for row in rows], rows[-1][1] if rows else None


FIRST, SECOND = [5, 10, 15, 20, 25, 30, 1, 6, 11, 16], [21, 26, 2, 7, 12, 17, 22, 27, 3, 8]


@pytest.mark.parametrize("change", [
    "ALTER TABLE t ADD COLUMN x int DEFAULT 7", "ALTER TABLE t DROP COLUMN w", "CREATE INDEX ON t (w)",
    "ALTER TABLE t ALTER w TYPE varchar(10)", "VACUUM FULL t", "ANALYZE t", "DROP INDEX t_v", "TRUNCATE t; INSERT INTO t SELECT i, i % 5, 'x' FROM generate_series(1, 30) i"])
def test_changes_beside_the_order_leave_cursors_good(changing, change):
    page, place = ids(changing)
    assert page == FIRST
    for statement in change.split("; "):
        changing.execute(statement)
    assert ids(changing, place)[0] == SECOND and ids(changing)[0] == FIRST
    if "ADD COLUMN" in change:
        assert changing.execute("SELECT (item).x FROM interlock.keyset_page('t', NULL::t)").fetchone() == (7,)


@pytest.mark.parametrize("change", [
    "ALTER TABLE t ALTER v TYPE bigint", "ALTER TABLE t ALTER v TYPE text", "ALTER TABLE t ALTER id TYPE bigint"])
def test_a_column_of_another_type_makes_old_cursors_bad_and_new_walks_right(changing, change):
    _, place = ids(changing)
    changing.execute(change)
    with refusal("IL201"):
        ids(changing, place)
    expected = [row[0] for row in changing.execute("SELECT id FROM t ORDER BY v, id").fetchall()]
    page, place = ids(changing)
    assert page + ids(changing, place)[0] == expected[:20]


@pytest.mark.parametrize("change, code", [
    ("ALTER TABLE t DROP CONSTRAINT t_pkey", "IL205"), ("ALTER TABLE t DROP COLUMN v", "42703"),
    ("ALTER TABLE t DROP COLUMN id", None),
    ("ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER id DROP NOT NULL, ADD UNIQUE (id)", "IL205"),
    ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD UNIQUE (id) DEFERRABLE", "IL205"),
    ("ALTER TABLE t ALTER v TYPE point USING point(v, v)", "42804")])
def test_a_keyset_that_is_none_any_more_is_refused_and_never_a_wrong_page(changing, change, code):
    _, place = ids(changing)
    changing.execute("DROP INDEX t_v")
    changing.execute(change)
    for after in (None, place):
        with pytest.raises(psycopg.Error) as caught:
            ids(changing, after)
        assert code is None or caught.value.diag.sqlstate in (code, "IL201"), caught.value
    assert changing.execute("SELECT name FROM interlock.keysets WHERE name = 't'").fetchall() == [("t",)]


def test_a_keyset_goes_by_the_names_of_its_columns(changing):
    ids(changing)
    changing.execute("ALTER TABLE t RENAME v TO old_v")
    with refusal("42703"):
        ids(changing)
    changing.execute("ALTER TABLE t RENAME w TO v")
    with refusal("IL201"):   # of another type: another place
        changing.execute("ALTER TABLE t RENAME v TO w; ALTER TABLE t RENAME old_v TO v")
        _, place = ids(changing)
        changing.execute("ALTER TABLE t RENAME v TO old_v; ALTER TABLE t RENAME w TO v")
        ids(changing, place)
    changing.execute("ALTER TABLE t RENAME v TO w; ALTER TABLE t ADD COLUMN v int DEFAULT 0")
    assert ids(changing)[0] == list(range(1, 11))


def test_a_table_of_another_name_or_schema_has_other_cursors(changing):
    _, place = ids(changing)
    changing.execute("ALTER TABLE t RENAME TO u")
    assert ids(changing, table="u")[0] == FIRST
    with refusal("IL201"):
        ids(changing, place, table="u")
    changing.execute("ALTER TABLE u RENAME TO t")
    assert ids(changing, place)[0] == SECOND
    changing.execute("CREATE SCHEMA elsewhere; ALTER TABLE t SET SCHEMA elsewhere")
    with refusal("IL201"):
        ids(changing, place, table="elsewhere.t")


def test_a_dropped_table_takes_its_keysets_along(changing):
    ids(changing)
    changing.execute("DROP TABLE t")
    assert changing.execute("SELECT name FROM interlock.keysets WHERE name = 't'").fetchall() == []
    changing.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    with refusal("42704"):
        ids(changing)


def test_a_dropped_keyset_is_gone_for_every_session(changing, instance):
    with instance.connect() as other:
        assert ids(other)[0] == FIRST
        changing.execute("SELECT interlock.keyset_drop('t')")
        for session in (changing, other):
            with refusal("42704"):
                ids(session)
        with refusal("42704"):
            changing.execute("SELECT interlock.keyset_drop('t')")
        changing.execute("SELECT interlock.keyset_create('t', 't', '{}', 'v DESC, id DESC')")
        assert ids(other)[0] == [29, 24, 19, 14, 9, 4, 28, 23, 18, 13]


def test_a_declaration_that_is_rolled_back_was_none(changing):
    with changing.transaction(force_rollback=True):
        changing.execute("SELECT interlock.keyset_drop('t')")
        changing.execute("SELECT interlock.keyset_create('t', 't', '{}', 'id DESC')")
        assert ids(changing)[0] == list(range(30, 20, -1))
    assert ids(changing)[0] == FIRST


def test_pages_of_a_partitioned_table(connection):
    connection.execute("INSERT INTO parted SELECT i, '2024-05-01'::timestamptz + i % 7 * '1 s'::interval"
                       " FROM generate_series(1, 199) i; CREATE INDEX ON parted (at, id);"
                       "SELECT interlock.keyset_create('parted', 'parted', '{}', 'at DESC, id')")
    seen, place = [], None
    while True:
        rows = connection.execute("SELECT (item).id, cursor FROM interlock.keyset_page('parted', NULL::parted,"
                                  " after => %s, page_size => 13)", (place,)).fetchall()
        if not rows:
            break
        seen += [row[0] for row in rows]
        place = rows[-1][1]
    assert seen == [row[0] for row in connection.execute("SELECT id FROM parted ORDER BY at DESC, id").fetchall()]
