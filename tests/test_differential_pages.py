"""keyset_page over all shards gives what it gives on one unsharded database: rows, cursors, sort keys, errors.

The databases share the declarations and the key that signs, so that a cursor of either serves in the other.
INTERLOCK_DIFF_SEED changes the fresh walks.
"""

import os
import random
import re

import pytest

from differential import client
from differential.gather_shop import CONTROL, PLAIN, SHARDS, GatherShop
from differential.runner import describe, differs
from support.router import SLACK

FIXED_SEED = 20240229
FRESH_SEED = int(os.environ.get("INTERLOCK_DIFF_SEED", random.SystemRandom().randrange(1 << 31)))
# name -> (table, scope columns, order, scopes to walk, columns that show a row)
KEYSETS = {
    "plain_key": ("things", [], "owner, no", ["{}"], "owner, no, mixed, td, mood"),
    "plain_key_down": ("things", [], "owner DESC, no DESC", ["{}", None], "owner, no"),
    "mixed_directions": ("things", [], "d DESC NULLS LAST, tc, i4 NULLS FIRST, owner, no", ["{}"], "d, tc, i4, owner, no"),
    "scoped": ("things", ["b"], "ts, ti DESC, owner DESC, no", ['{"b": true}', '{"b": false}'], "b, ts, ti, owner, no"),
    "two_scopes": ("things", ["mood", "i2"], "span NULLS FIRST, owner, no", ['{"mood": "ok", "i2": 7}', '{"i2": -1, "mood": "awful"}'], "mood, i2, span, owner, no"),
    "numbers": ("things", ["mood"], "mixed DESC, f8, n NULLS FIRST, i8 DESC, f4, owner, no", ['{"mood": "happy"}'], "mixed, f8, n, i8, f4, no"),
    "others": ("things", [], "mood DESC, tm, u DESC NULLS LAST, bin, vc, ch DESC, tz NULLS FIRST, span_odd, b, ref", ["{}"], "mood, tm, u, bin, vc, ch, tz, ref"),
    "by_ref": ("things", [], "ref", [None], "ref"),
    "notes": ("notes", [], "at DESC NULLS FIRST, note_id", ["{}"], "at, note_id, body"),
    "paths": ("paths", [], "path DESC", ["{}"], "path, parts"),
    "readings": ("readings", [], "day DESC, sensor", ["{}"], "day, sensor, value"),
    "none": ("nothing", ["i4"], "owner, no", ['{"i4": 1}'], "owner, no"),
}
UNSIGNED = {"readings"}
MOST = 200


@pytest.fixture(scope="module")
def shop(owner, new_folder, router_binary):
    made = GatherShop(new_folder("gather-pages"), owner)
    try:
        made.make()
        # `interlock apply` gave the shards one key.
        secret, = {key for place in SHARDS for key in made.places[place].execute("SELECT id, secret FROM interlock.cursor_key").fetchall()}
        for place in (PLAIN, CONTROL):
            assert made.places[place].execute("SELECT interlock.cursor_key_add(%s)", (secret[1],)).fetchone()[0] == secret[0]
        for connection in made.places.values():
            for name, (table, scope, order, _, _) in KEYSETS.items():
                connection.execute("SELECT interlock.keyset_create(%s, %s::regclass, %s, %s, max_page => %s, default_page => 20,"
                                   " signed => %s, scatter => true)", (name, table, scope, order, MOST, name not in UNSIGNED))
        made.start_router()
        yield made
    finally:
        made.down()


def literal(value):
    return "NULL" if value is None else str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


class Pages:
    """A client of the router and one of the unsharded database, asked the same."""

    def __init__(self, shop, rng=None, other=None):
        self.rng = rng or random.Random(0)
        self.router = (other or shop.router_client)()
        self.plain = shop.plain_client()

    def close(self):
        self.router.close()
        self.plain.close()

    def text(self, columns, name, scope, after, before, size, values=None):
        """A call in one of its spellings; `values`: a list that takes what becomes a parameter."""
        table = KEYSETS[name][0]

        def put(value, kind):
            if values is not None and self.rng.random() < 0.7:
                values.append(value)
                return f"${len(values)}" + self.rng.choice(("", f"::{kind}"))
            return literal(value)

        named = [("scope", scope, "jsonb"), ("after", after, "text"), ("before", before, "text"), ("page_size", size, "integer")]
        if self.rng.random() < 0.3:
            given = [put(value, kind) for _, value, kind in named]
        else:
            given = [f"{argument} => {put(value, kind)}" for argument, value, kind in named
                     if value is not None or self.rng.random() < 0.2]
        call = f"interlock.keyset_page({', '.join([put(name, 'text'), f'NULL::{table}', *given])})"
        alias = self.rng.choice(("", " AS p", " page"))
        return f"SELECT {columns} FROM {call}{alias}"

    def ask(self, name, scope, after=None, before=None, size=None, columns=None, extended=None):
        """(the page's answer, after it was compared; its text)."""
        shown = ", ".join(f"(item).{column}" for column in KEYSETS[name][4].split(", "))
        columns = columns or f"{shown}, cursor, sort_key, complete, missing_shards"
        if extended is None:
            extended = self.rng.random() < 0.5
        values = [] if extended else None
        text = self.text(columns, name, scope, after, before, size, values)
        data = client.query(text)
        if extended:
            # A whole row in binary holds the numbers that types of users have in one database.
            results = self.rng.choice(([], [1])) if not re.search(r"\*|\bitem\b(?!\))", columns.replace("(item).*", "")) else []
            data = (client.parse("", text) + client.bind("", "", [None if v is None else str(v).encode() for v in values], [], results) +
                    client.describe(b"P", "") + client.execute() + client.SYNC)
        got, expected = self.router.answer(data), self.plain.answer(data)
        one, two = got.results[-1], expected.results[-1]
        show = f"{text} {values}\n unsharded: {describe(two)}\n router: {describe(one)}"
        difference = differs(one, two, ORDERED)
        assert difference is None, f"{difference}: {show}"
        assert (got.status, got.notices) == (expected.status, []), show
        return two, show

    def page(self, *arguments, **options):
        """The page's cursors."""
        result, show = self.ask(*arguments, **options)
        assert result.error is None, show
        # The cursor's column is the fourth from the end.
        return [fields(row)[-4].decode() for row in result.rows]


class Ordered:
    ordered, shape_only = True, False


ORDERED = Ordered()


def fields(body):
    at, found = 2, []
    for _ in range(int.from_bytes(body[:2], "big")):
        length = int.from_bytes(body[at:at + 4], "big", signed=True)
        at += 4
        found.append(None if length < 0 else body[at:at + length])
        at += max(length, 0)
    return found


@pytest.fixture
def pages(shop):
    made = Pages(shop, random.Random(FRESH_SEED))
    yield made
    made.close()


@pytest.mark.parametrize("name", KEYSETS)
def test_walks_in_both_directions_show_the_same_pages(pages, shop, name):
    print(f"seed {FRESH_SEED}")
    table, scopes = KEYSETS[name][0], KEYSETS[name][3]
    for scope in scopes:
        for size in (1, 3, 50, MOST, None):
            if size == 1 and SLACK > 1:
                continue
            seen, after = [], None
            while len(seen) <= len(shop.rows[table]):
                page = pages.page(name, scope, after=after, size=size)
                seen += page
                if len(page) < (size or 20) or size == 1 and len(seen) >= 60:
                    break
                after = page[-1]
            assert len(set(seen)) == len(seen)
            if size == MOST and scope == "{}" and not KEYSETS[name][1]:
                assert len(seen) == len(shop.rows[table])
            back, before = [], seen[-1] if seen else None
            while before is not None:
                page = pages.page(name, scope, before=before, size=size)
                back = page + back
                before = page[0] if page else None
            assert back == seen[:-1]


@pytest.mark.parametrize("seed", [FIXED_SEED, FRESH_SEED], ids=["fixed", "fresh"])
def test_walks_that_turn_at_random_show_the_same_pages(shop, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    pages = Pages(shop, rng)
    known = {}
    try:
        for _ in range(700 // SLACK):
            name = rng.choice(list(KEYSETS))
            scope = rng.choice(KEYSETS[name][3])
            if rng.random() < 0.05:
                setting = rng.choice(("TimeZone = 'Asia/Tokyo'", "TimeZone = 'UTC'", "DateStyle = 'German'", "DateStyle = 'ISO'",
                                      "IntervalStyle = 'iso_8601'", "extra_float_digits = 0", "bytea_output = 'escape'", "bytea_output = 'hex'"))
                for one in (pages.router, pages.plain):
                    one.answer(client.query(f"SET {setting}"))
            cursors = known.setdefault((name, scope), [None])
            where = {rng.choice(("after", "before")): rng.choice(cursors)}
            cursors += pages.page(name, scope, size=rng.choice((1, 2, 5, 13, 50, MOST, None)), **where)
            del cursors[1:-40]
    finally:
        pages.close()


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_what_is_wrong_with_a_page_is_told_as_an_unsharded_database_tells_it(shop, pages, extended):
    cursor = pages.page("scoped", '{"b": true}', size=3)[1]
    other = pages.page("by_ref", None, size=3)[1]
    broken = cursor[:8] + ("A" if cursor[8] != "A" else "B") + cursor[9:]
    cases = [("scoped", '{"b": false}', {"after": cursor}), ("scoped", '{"b": true}', {"after": other}),
             ("scoped", '{"b": true}', {"after": cursor[:-1]}), ("scoped", '{"b": true}', {"before": broken}),
             ("scoped", '{"b": true}', {"after": ""}), ("scoped", '{"b": true}', {"after": "nonsense"}),
             ("scoped", '{"b": true}', {"size": MOST + 1}), ("scoped", '{"b": true}', {"size": 0}), ("scoped", '{"b": true}', {"size": -1}),
             ("scoped", '{"b": true}', {"after": cursor, "before": cursor}), ("scoped", '{}', {}), ("scoped", None, {}),
             ("scoped", '{"b": true, "i4": 1}', {}), ("scoped", '{"b": null}', {}), ("scoped", '{"b": "maybe"}', {}), ("scoped", '[1]', {})]
    wrong = []
    for name, scope, options in cases:
        text = pages.text("(item).no, cursor", name, scope, options.get("after"), options.get("before"), options.get("size"))
        data = client.query(text)
        if extended:
            data = client.parse("", text) + client.bind("", "", []) + client.execute() + client.SYNC
        one, two = (each.answer(data).results[-1].error for each in (pages.router, pages.plain))
        if one is None or two is None or one.sqlstate != two.sqlstate:
            wrong.append(f"{text}\n  unsharded: {two}\n  router: {one}")
    assert not wrong, "\n".join(wrong)


def test_whole_rows_and_every_column_come_through(pages):
    for name in ("notes", "paths", "readings", "by_ref"):
        for columns in ("*", "item, cursor", "(item).*, cursor", "cursor, (item).*, complete", "complete AS done, cursor AS \"next\"", "sort_key"):
            result, show = pages.ask(name, "{}", size=7, columns=columns)
            assert result.error is None and len(result.rows) == 7, show


def test_a_page_of_one_shard_is_found_wrong(shop):
    """A control: one shard's page, ownership filtered, is no page of all."""
    for connection in (shop.places[SHARDS[0]], shop.places[PLAIN], shop.places[CONTROL]):
        assert connection.execute("SELECT count(*) FROM interlock.keysets WHERE digest IS NOT NULL").fetchone()[0] == len(KEYSETS)
    pages = Pages(shop, other=lambda: shop.plain_client("s0"))
    try:
        with pytest.raises(AssertionError, match="rows"):
            pages.page("plain_key", "{}", size=50)
    finally:
        pages.close()


def test_two_unsharded_databases_page_alike(shop):
    pages = Pages(shop, random.Random(FIXED_SEED), other=lambda: shop.plain_client(CONTROL))
    try:
        for name, (_, _, _, scopes, _) in KEYSETS.items():
            after = None
            while True:
                page = pages.page(name, scopes[0], after=after, size=60)
                if len(page) < 60:
                    break
                after = page[-1]
    finally:
        pages.close()
