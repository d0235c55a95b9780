"""Walks over keysets: page by page from a client, and in thousands inside the server.

What a walk returns is compared with a full sort. A walk ends at an empty page, as an application's does.
"""

import json
import re

# Three walkers for one table, as functions of the database: a round trip a page would take most of the time.
# Each returns what it read, and stops with an error if the walk has no end or a page is too long.
WALKERS = """
CREATE FUNCTION {schema}.check_page(got {type}[], size int, so_far int, total int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(got) > size THEN RAISE EXCEPTION 'a page of % has % rows', size, cardinality(got); END IF;
    IF so_far > total THEN RAISE EXCEPTION 'the walk returned more than all % rows', total; END IF;
END $$;

CREATE FUNCTION {schema}.walk_forward(keyset text, scope jsonb, size int, total int) RETURNS {type}[]
LANGUAGE plpgsql AS $$
DECLARE place text; got {type}[]; everything {type}[] := '{{}}';
BEGIN
    LOOP
        SELECT array_agg((p.item).{key}), (array_agg(p.cursor))[count(*)] INTO got, place
            FROM interlock.keyset_page(keyset, NULL::{table}, scope, after => place, page_size => size) p;
        EXIT WHEN got IS NULL;
        everything := everything || got;
        PERFORM {schema}.check_page(got, size, cardinality(everything), total);
    END LOOP;
    RETURN everything;
END $$;

-- From a cursor backwards to the beginning.
CREATE FUNCTION {schema}.walk_backward(keyset text, scope jsonb, size int, place text, total int) RETURNS {type}[]
LANGUAGE plpgsql AS $$
DECLARE got {type}[]; everything {type}[] := '{{}}';
BEGIN
    LOOP
        SELECT array_agg((p.item).{key}), (array_agg(p.cursor))[1] INTO got, place
            FROM interlock.keyset_page(keyset, NULL::{table}, scope, before => place, page_size => size) p;
        EXIT WHEN got IS NULL;
        everything := got || everything;
        PERFORM {schema}.check_page(got, size, cardinality(everything), total);
    END LOOP;
    RETURN everything;
END $$;

-- Two pages on, one back, and so on, each compared with the piece of `expected` that it must be. Returns the
-- number of pages.
CREATE FUNCTION {schema}.walk_zigzag(keyset text, scope jsonb, size int, expected {type}[]) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    got {type}[]; wanted {type}[]; page_first text; page_last text; first text; last text;
    low int := 1; high int := 0; step int := 0; back boolean;   -- the page is expected[low:high]
BEGIN
    LOOP
        step := step + 1;
        back := step % 3 = 0;
        IF back THEN
            wanted := expected[greatest(low - size, 1):low - 1];
            SELECT array_agg((p.item).{key}), (array_agg(p.cursor))[1], (array_agg(p.cursor))[count(*)]
                INTO got, page_first, page_last
                FROM interlock.keyset_page(keyset, NULL::{table}, scope, before => first, page_size => size) p;
        ELSE
            wanted := expected[high + 1:high + size];
            SELECT array_agg((p.item).{key}), (array_agg(p.cursor))[1], (array_agg(p.cursor))[count(*)]
                INTO got, page_first, page_last
                FROM interlock.keyset_page(keyset, NULL::{table}, scope, after => last, page_size => size) p;
        END IF;
        IF coalesce(got, '{{}}') IS DISTINCT FROM wanted THEN
            RAISE EXCEPTION 'step % of pages of %: got %, expected %', step, size, got, wanted;
        END IF;
        IF back THEN
            CONTINUE WHEN got IS NULL;
            high := low - 1;
            low := high - cardinality(got) + 1;
        ELSE
            EXIT WHEN got IS NULL;
            low := high + 1;
            high := high + cardinality(got);
        END IF;
        first := page_first;
        last := page_last;
    END LOOP;
    RETURN step;
END $$;

-- From every row's cursor, both ways; returns the number of pages.
CREATE FUNCTION {schema}.walk_everywhere(keyset text, scope jsonb, size int, expected {type}[], places text[])
RETURNS int LANGUAGE plpgsql AS $$
DECLARE got {type}[]; wanted {type}[]; read_cursors text[];
BEGIN
    FOR i IN 1 .. cardinality(places) LOOP
        SELECT array_agg((p.item).{key}), array_agg(p.cursor) INTO got, read_cursors
            FROM interlock.keyset_page(keyset, NULL::{table}, scope, after => places[i], page_size => size) p;
        wanted := expected[i + 1:i + size];
        IF coalesce(got, '{{}}') IS DISTINCT FROM wanted OR coalesce(read_cursors, '{{}}') <> places[i + 1:i + size] THEN
            RAISE EXCEPTION 'page of % after row %: got %, expected %', size, i, got, wanted;
        END IF;
        SELECT array_agg((p.item).{key}), array_agg(p.cursor) INTO got, read_cursors
            FROM interlock.keyset_page(keyset, NULL::{table}, scope, before => places[i], page_size => size) p;
        wanted := expected[greatest(i - size, 1):i - 1];
        IF coalesce(got, '{{}}') IS DISTINCT FROM wanted
                OR coalesce(read_cursors, '{{}}') <> places[greatest(i - size, 1):i - 1] THEN
            RAISE EXCEPTION 'page of % before row %: got %, expected %', size, i, got, wanted;
        END IF;
    END LOOP;
    RETURN 2 * cardinality(places);
END $$;
"""


class Walked:
    """A table with its walkers, on one connection. `key` names the column (of SQL type `type`) that tells the
    rows from each other."""

    def __init__(self, connection, table, key="id", type="int"):
        self.connection, self.table, self.key = connection, table, key
        self.schema = "walks_" + re.sub(r"\W", "_", table)
        connection.execute(f"CREATE SCHEMA {self.schema}")
        connection.execute(WALKERS.format(schema=self.schema, table=table, key=key, type=type))

    def declare(self, name, order, scope=(), **options):
        """keyset_create(); its warnings (no index) are of no interest here."""
        more = "".join(f", {option} => {value!r}" for option, value in options.items())
        self.connection.execute("SET client_min_messages = error")
        self.connection.execute(f'SELECT interlock.keyset_create(%s, %s, %s, %s{more})',
                                (name, self.table, list(scope), order))
        self.connection.execute("RESET client_min_messages")

    def drop(self, name):
        self.connection.execute("SELECT interlock.keyset_drop(%s)", (name,))

    def sorted(self, order, where="true"):
        """The full sort: no index takes part."""
        self.connection.execute("SET enable_indexscan = off; SET enable_indexonlyscan = off;"
                                "SET enable_bitmapscan = off")
        rows = self.connection.execute(
            f"SELECT {self.key} FROM {self.table} WHERE {where} ORDER BY {order}").fetchall()
        self.connection.execute("RESET enable_indexscan; RESET enable_indexonlyscan; RESET enable_bitmapscan")
        return [row[0] for row in rows]

    def page(self, keyset, scope=None, after=None, before=None, size=None):
        """[(key, cursor, sort key)] of one page."""
        return self.connection.execute(
            f"SELECT (p.item).{self.key}, p.cursor, p.sort_key"
            f" FROM interlock.keyset_page(%s, NULL::{self.table}, %s, %s, %s, %s) p",
            (keyset, scope and json.dumps(scope), after, before, size)).fetchall()

    def cursors(self, keyset, scope=None):
        """Every row's cursor, in the keyset's order; a keyset's largest page must hold them all."""
        rows = self.page(keyset, scope, size=1000)
        assert len(rows) < 1000
        keys = [row[2] for row in rows]
        assert keys == sorted(set(keys)), "the sort keys do not rise"
        return [row[1] for row in rows]

    def call(self, function, *arguments):
        marks = ", ".join(["%s"] * len(arguments))
        return self.connection.execute(f"SELECT {self.schema}.{function}({marks})", arguments).fetchone()[0]

    def forward(self, keyset, size, total, scope=None):
        return self.call("walk_forward", keyset, scope and json.dumps(scope), size, total)

    def backward(self, keyset, size, place, total, scope=None):
        return self.call("walk_backward", keyset, scope and json.dumps(scope), size, place, total)

    def zigzag(self, keyset, size, expected, scope=None):
        return self.call("walk_zigzag", keyset, scope and json.dumps(scope), size, expected)

    def everywhere(self, keyset, size, expected, places, scope=None):
        return self.call("walk_everywhere", keyset, scope and json.dumps(scope), size, expected, places)

    def check(self, keyset, expected, sizes=range(1, 61), zigzags=(1, 2, 7), scope=None):
        """Walks of every size, both ways, and there and back: all must be `expected`, which is not empty."""
        places = self.cursors(keyset, scope)
        total = len(expected)
        assert total > 0 and len(places) == total
        for size in sizes:
            assert self.forward(keyset, size, total, scope) == expected, f"{keyset}: forward by {size}"
            assert self.backward(keyset, size, places[-1], total, scope) == expected[:-1], f"{keyset}: back by {size}"
        for size in zigzags:
            self.zigzag(keyset, size, expected, scope)
        return places


def seen_in_order(connection, table, keyset, scope, size, key, between=None):
    """A walk from a client, which may do something between the pages. [[keys of a page], ...]"""
    pages, place = [], None
    while True:
        rows = connection.execute(
            f"SELECT (p.item).{key}, p.cursor FROM interlock.keyset_page(%s, NULL::{table}, %s, %s, NULL, %s) p",
            (keyset, scope and json.dumps(scope), place, size)).fetchall()
        if not rows:
            return pages
        pages.append([row[0] for row in rows])
        place = rows[-1][1]
        if between:
            between(pages)
