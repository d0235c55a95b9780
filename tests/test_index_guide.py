"""The steps of docs/indexes.md, from the declaration of an index to its repair and removal, run as they stand there."""

import re
import shlex

import psycopg
import pytest

from support import ROOT
from support.indexed import IndexedCluster
from support.order_cluster import OrdersCluster
from support.router import run_interlock
from support.wait import wait_until
from test_keyset_example import get, numbers, running

README_PROGRAM = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
DOCUMENT = (ROOT / "docs" / "indexes.md").read_text()
LOGIN = "interlock_index"
FROM_INDEX = "plan: a page of a global index"


def code(section):
    """(code, comment) of each line of indented code in a section that is a whole statement or command."""
    text = re.search(rf"^## {re.escape(section)}$(.*?)^## ", DOCUMENT, re.S | re.M).group(1)
    lines = [re.split(r"  +(?:--|#) ", line[4:], maxsplit=1) for line in text.splitlines() if line.startswith("    ")]
    return [(line[0].strip(), line[1] if len(line) > 1 else "") for line in lines
            if line[0].startswith("interlock ") or line[0].rstrip().endswith(";")]


class Guide(IndexedCluster):
    """A cluster up to the point where the guide begins: applied, without an index."""

    def declare(self, catalog):
        OrdersCluster.declare(self, catalog)

    def up(self):
        self.start_instances().create_tables().describe()
        self.load()
        for instance in self.instances.values():
            instance.sql(f"CREATE ROLE {LOGIN} LOGIN")
        self.apply()
        self.new_router().start()
        return self

    def command(self, text, expect=0):
        """A command of the guide, with this cluster's catalog."""
        words = shlex.split(text)
        assert words[0] == "interlock" and words.count("--catalog") == 1, text
        words[words.index("--catalog") + 1] = self.catalog.conninfo("app", LOGIN)
        done = run_interlock(*words[1:], env={"PGUSER": LOGIN}, timeout=120)
        assert done.returncode == expect, f"{text} exited {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def statement(self, text, where):
        """A statement of the guide, in the databases that its comment names."""
        places = {"on each shard": [self.instances[name] for name in self.shards], "in the index database": [self.idx],
                  "in the catalog": [self.catalog]}
        for instance in sum((found for place, found in places.items() if place in where), []) or [self.catalog]:
            instance.sql(text)


@pytest.fixture(scope="module")
def cluster(owner, session_folder):
    folder = session_folder / "index-guide"
    folder.mkdir(mode=0o755)
    owner.own(folder)
    cluster = Guide(folder, owner)
    try:
        yield cluster.up()
        cluster.end_test()
    finally:
        cluster.down()


def the(section, beginning):
    found = [line for line in code(section) if line[0].startswith(beginning)]
    assert len(found) == 1, (section, beginning, found)
    return found[0]


def through_router(cluster):
    return psycopg.connect(f"host={cluster.router.host} port={cluster.router.pg_port} dbname=app user=app", autocommit=True)


def route(cluster):
    """Of the page in the guide."""
    explain = re.search(r"^    (EXPLAIN ROUTE .*;)$", DOCUMENT, re.M).group(1)
    with through_router(cluster) as session:
        return "\n".join(row[0] for row in session.execute(explain))


def walk(cluster, merchant, size=97, hint=""):
    """Order numbers, page by page, by the statement of the guide, until a page is empty."""
    text = re.search(r"^    (SELECT \(p\.item\).*?;)$", DOCUMENT, re.S | re.M).group(1)
    assert '{"merchant_id": 3}' in text and "page_size => 20" in text and "$1" in text
    text = text.replace("3}", f"{merchant}}}").replace("20", str(size)).replace("$1", "%s")
    numbers, place = [], None
    with through_router(cluster) as session:
        while page := session.execute(hint + text, (place,)).fetchall():
            numbers += [row[0] for row in page]
            place = page[-1][-1]
    return numbers


def test_the_guide_leads_to_pages_from_an_index_and_away_from_it_again(cluster, tmp_path):
    add, _ = the("Declaring an index", "SELECT interlock.add_index_database")
    cluster.catalog.sql(re.sub(r"'host=[^']*'", f"'{cluster.idx.conninfo('app')}'", add))
    cluster.statement(*the("Declaring an index", "SELECT interlock.create_index"))
    cluster.apply()
    assert walk(cluster, 7) == cluster.truth(7)
    assert FROM_INDEX not in route(cluster)
    for beginning in ("SELECT interlock.grant_consumer", "GRANT SELECT ON orders", "SELECT interlock.grant_indexer",
                      "SELECT interlock.grant_router"):
        cluster.statement(*the("Declaring an index", beginning))
    consume, _ = the("Declaring an index", "interlock index --catalog")
    assert shlex.split(consume)[:3] == ["interlock", "index", "--catalog"]
    cluster.indexer = LOGIN
    cluster.consumer()
    cluster.command(the("Declaring an index", "interlock index backfill")[0])
    cluster.apply()
    wait_until(lambda: FROM_INDEX in route(cluster), 60, "the router knows")
    for merchant in (3, 7):
        assert walk(cluster, merchant) == walk(cluster, merchant, hint="/* interlock: scatter */ ") == cluster.truth(merchant)

    # Operating: a change arrives, and status tells of nothing left.
    order = next(order for order in cluster.orders if order.merchant_id == 3)
    cluster.update(order, merchant_id=7)
    wait_until(lambda: walk(cluster, 7) == cluster.truth(7), 90, "the change is in the index")
    assert order.order_id not in walk(cluster, 3)
    cluster.drained()
    status = cluster.command(the("Operating", "interlock index status")[0])
    assert "merchant_orders" in status and all(shard in status for shard in cluster.shards)

    # Repair: in good order nothing; past the outbox something; mended nothing again.
    look, mend, of_scope, _ = (line[0] for line in code("Repair"))
    cluster.command(look)
    doomed = set(cluster.truth(3)[7:900])
    for order in cluster.orders:
        if order.order_id in doomed:
            cluster.delete(order, silently=True)
    # (Pages are short where entries have no rows; the web back end of README.md goes on.)
    database = f"host={cluster.router.host} port={cluster.router.pg_port} dbname=app user=app"
    with running(README_PROGRAM, tmp_path, database) as site:
        seen, path = [], "/merchants/3/orders?size=13"
        while path:
            page = get(site, path)
            seen.append(numbers(page))
            path = page["next"]
    assert sum(seen, []) == cluster.truth(3)
    assert any(0 < len(page) < 13 for page in seen[:-2])
    assert "3" in of_scope
    cluster.command(look, expect=3)
    cluster.command(of_scope, expect=3)
    cluster.command(mend)
    cluster.command(look)
    cluster.equal()

    # And it is taken away while a client is in the middle of a walk.
    with through_router(cluster) as session:
        first = session.execute("SELECT (p.item).order_id, p.cursor FROM interlock.keyset_page('merchant_orders', NULL::orders, "
                                "'{\"merchant_id\": 3}', page_size => 40) AS p").fetchall()
        drop = re.search(r"not wanted any more \| `(SELECT interlock\.drop_index\('merchant_orders'\))`", DOCUMENT).group(1)
        cluster.catalog.sql(drop)
        cluster.end_consumers()
        cluster.apply()
        rest = session.execute("SELECT (p.item).order_id FROM interlock.keyset_page('merchant_orders', NULL::orders, "
                               "'{\"merchant_id\": 3}', after => %s, page_size => 1000) AS p", (first[-1][1],)).fetchall()
    truth = cluster.truth(3)
    assert [row[0] for row in first] + [row[0] for row in rest] == truth[:1040]
    assert cluster.idx.value("SELECT count(*) FROM interlock.local_index") == 0
    assert not any(cluster.instances[shard].value("SELECT count(*) FROM interlock.outbox_stream") for shard in cluster.shards)
