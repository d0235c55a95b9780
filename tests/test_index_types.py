"""A global index over columns of every type, held by a database that is a shard, too.

Values travel as jsonb from the outbox into the entries, and are compared with the rows' own when a page is read:
what the way changed would never be shown again.
"""

from random import Random

import pytest

from conftest import remove
from support import samples
from support.indexed import IndexedCluster
from support.order_cluster import make_orders
from support.wait import wait_until
from support.router import SLACK

INDEX = "sample_everything"
ENTRIES = f"interlock_index.{INDEX}"
# NULLs at both ends, both directions; the key at last.
ORDER = ", ".join(f"v_{name} {way}" for name, way in zip(samples.COLUMNS, 5 * [
    "DESC NULLS LAST", "NULLS FIRST", "DESC", ""])) + ", id"


class SampleCluster(IndexedCluster):
    def __init__(self, base, owner):
        super().__init__(base, owner, rows=make_orders(60, 10))
        self.samples = samples.make_samples()

    def declare_index(self, catalog):
        super().declare_index(catalog)
        catalog.execute("SELECT interlock.create_index(%s, 'sample', '{grp}', %s, 's1')", (INDEX, ORDER))

    def up(self):
        self.make()
        for shard in self.shards:
            self.instances[shard].sql(f"GRANT SELECT ON sample TO {self.indexer}")
        # It is an index database as well.
        self.s1.sql(f"SELECT interlock.grant_indexer('{self.indexer}')")
        self.index("backfill", INDEX)
        self.apply()
        self.new_router().start()
        return self


@pytest.fixture(scope="module")
def module_cluster(owner, new_folder, request, router_binary):
    cluster = SampleCluster(new_folder("index-types"), owner)
    try:
        yield cluster.up()
    finally:
        cluster.down()
        remove(cluster.base)


@pytest.fixture
def cluster(module_cluster):
    yield module_cluster
    module_cluster.end_test()


def walk(client, group, hint="", size=7, end="after"):
    """Rows as text, in the order of the keyset, whichever way they are read."""
    call = (f"{hint}SELECT p.item::text, p.cursor FROM interlock.keyset_page('{INDEX}', NULL::sample, $1, {end} => $2,"
            " page_size => $3) AS p")
    place, found = None, []
    while True:
        rows = client.run(call, f'{{"grp": {group}}}', place, size).ok().rows
        if not rows:
            return found
        found += rows
        place = rows[-1][1].decode()


def compare(cluster):
    client = cluster.pg_client()
    before = cluster.counters()
    for group in (0, 1):
        scattered = walk(client, group, "/* interlock: scatter */ ", 50)
        assert len(scattered) == 120
        assert walk(client, group) == scattered
    after = cluster.counters()
    assert after["index_pages"] > before["index_pages"] and after["index_filtered"] == before["index_filtered"]


def test_every_type_comes_through_the_backfill(cluster):
    compare(cluster)
    report = cluster.index(INDEX, "--json", command="repair")
    assert '"missing": 0, "stale": 0' in report.stdout


def test_every_type_comes_through_the_outbox(cluster):
    """Each row gets other values, some of them by other settings of the session than the consumer's."""
    random = Random(9)
    for number, owner, *_ in cluster.samples:
        values = [None if random.random() < 0.2 else random.choice(values) for _, values in samples.COLUMNS.values()]
        sets = ", ".join(f"v_{name} = %s::text::{kind.split(' COLLATE')[0]}" for name, (kind, _) in samples.COLUMNS.items())
        with cluster.writer(cluster.shard_name(owner)).transaction():
            connection = cluster.writer(cluster.shard_name(owner))
            if number % 2:
                connection.execute("SET LOCAL timezone = 'Asia/Kathmandu'; SET LOCAL datestyle = 'German';"
                                   "SET LOCAL intervalstyle = 'sql_standard'; SET LOCAL extra_float_digits = 0;"
                                   "SET LOCAL bytea_output = 'escape'")
            assert connection.execute(f"UPDATE sample SET {sets} WHERE id = %s AND owner = %s",
                                      (*values, number, owner)).rowcount == 1
    cluster.index("run", "--once", INDEX)
    compare(cluster)
    report = cluster.index(INDEX, "--json", command="repair")
    assert '"missing": 0, "stale": 0' in report.stdout


def test_an_index_on_a_shard_has_rows_and_entries_side_by_side(cluster):
    """Its database is asked twice for a page: for entries and, as a shard, for rows; the budget counts shards."""
    client = cluster.pg_client()
    client.ok("SET interlock.max_fan_out = 2")
    client.query(f"SELECT * FROM interlock.keyset_page('{INDEX}', NULL::sample, '{{\"grp\": 0}}')").refused("IL203", "I")
    client.ok("SET interlock.max_fan_out = 3")
    mark = cluster.mark()
    assert client.ok(f"SELECT * FROM interlock.keyset_page('{INDEX}', NULL::sample, '{{\"grp\": 0}}')").tag == "SELECT 50"
    sent = cluster.sent(mark)
    assert (sent["s0"], sent["s1"], sent["s2"], sent["idx"]) == (1, 2, 1, 0)
