"""Walks over three shards in the order of every type, NULLs first and last, against PostgreSQL's own sort."""

import pytest

from support.order_cluster import numbers
from support.samples import COLUMNS

# name -> (scope, ORDER BY). NULLs on either end, both directions, and columns in different directions.
ORDERS = {}
for column in COLUMNS:
    ORDERS[f"{column} up"] = f"v_{column} ASC NULLS FIRST, id"
    ORDERS[f"{column} down"] = f"v_{column} DESC NULLS LAST, id DESC"
ORDERS |= {
    "defaults": "v_int4 DESC, v_text, id",
    "three ways": "v_bool DESC NULLS LAST, v_icu ASC NULLS FIRST, v_numeric DESC NULLS FIRST, id",
    "texts": "v_text DESC NULLS FIRST, v_bytea, v_varchar DESC NULLS LAST, id DESC",
    "times": "v_timestamptz NULLS FIRST, v_interval DESC NULLS LAST, v_mood, id",
}


@pytest.fixture(scope="module")
def declared(session_orders):
    for name, order in ORDERS.items():
        session_orders.declare_keyset(f"sample {name}", "sample", "grp", order)
    return session_orders


@pytest.mark.parametrize("name", ORDERS)
def test_walks_both_ways_are_postgresqls_sort(declared, orders, name):
    truth = [row[0] for row in orders.whole(f"SELECT id FROM sample WHERE grp = 1 ORDER BY {ORDERS[name]}")]
    assert len(truth) == 120
    client = orders.pg_client()
    pages = orders.pages(client, keyset=f"sample {name}", scope={"grp": 1}, row="sample", columns="(p.item).id")
    one_by_one = list(pages.walk(4))
    assert numbers(one_by_one) == truth
    cursors = [cursor for page in one_by_one for cursor in page.cursors]
    pages.extended = True
    assert numbers(pages.walk(17)) == truth
    end = len(truth) - 1
    while end > 0:
        page = pages.page(before=cursors[end], size=11)
        assert numbers([page]) == truth[max(0, end - 11):end]
        end -= 11


@pytest.mark.parametrize("name", ORDERS)
def test_plain_scatters_sort_as_postgresql_does(orders, name):
    client = orders.pg_client()
    client.ok("SET interlock.scatter = on")
    truth = [row[0] for row in orders.whole(f"SELECT id FROM sample ORDER BY {ORDERS[name]}")]
    for limit, offset in ((240, 0), (37, 0), (50, 100)):
        answer = client.ok(f"SELECT id FROM sample ORDER BY {ORDERS[name]} LIMIT {limit} OFFSET {offset}")
        assert [int(row[0]) for row in answer.rows] == truth[offset:offset + limit]


def test_values_come_as_each_shard_writes_them(orders):
    """In the client's own settings of how to write dates, bytes and floats, and in binary."""
    client, direct = orders.pg_client(), orders.whole_client()
    # An enum's type has another number on each shard.
    text = f"SELECT {', '.join(f'v_{name}' for name in COLUMNS if name != 'mood')} FROM sample ORDER BY id LIMIT 240"
    for setting in ("SET datestyle = 'German, DMY'", "SET bytea_output = 'escape'", "SET intervalstyle = 'iso_8601'",
                    "SET timezone = 'Asia/Kolkata'", "SET extra_float_digits = 0"):
        client.ok(setting)
        direct.ok(setting)
        answer = client.query("/* interlock: scatter */ " + text).ok()
        assert answer.rows == direct.ok(text).rows
    for formats in ((1,), (0,)):
        here = client.run("/* interlock: scatter */ " + text, result_formats=formats).ok()
        assert here.rows == direct.run(text, result_formats=formats).ok().rows


def test_a_libc_collation_is_refused_when_the_keyset_is_declared_and_when_rows_are_sorted_by_it(orders):
    s0 = orders.instances["s0"]
    assert orders.pg_client().query("/* interlock: scatter */ SELECT id FROM sample ORDER BY v_text COLLATE \"POSIX\","
                                    " id LIMIT 5").ok().rows
    answer = orders.pg_client().query("/* interlock: scatter */ SELECT id FROM sample ORDER BY v_text COLLATE"
                                      " \"default\", id LIMIT 5")
    assert answer.codes and answer.codes[0] in ("0A000", "IL207"), answer
    assert s0.value("SELECT count(*) FROM pg_collation WHERE collprovider = 'c'") > 0
