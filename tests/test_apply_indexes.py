"""Global indexes in `interlock apply`: their tables in the index database, keysets and recording on the shards, who
may read them; what is refused, what is taken back, and runs that are killed."""

import subprocess

import pytest

from support.cluster import Cluster
from support.placement import keys_on
from support.postgres import Postgres
from support.router import BINARY, environment, run_interlock
from support.wait import wait_until

ORDERS = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE orders (order_id bigint PRIMARY KEY, user_id bigint NOT NULL, merchant_id integer, placed_at timestamptz NOT NULL,
                     amount numeric(12,2), status text COLLATE "C" NOT NULL, mood mood NOT NULL DEFAULT 'good');
CREATE TABLE other (id bigint PRIMARY KEY);
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO app;
"""
CREATE = "SELECT interlock.create_index('merchant_orders', 'orders', '{merchant_id}', 'placed_at DESC, order_id')"
STREAM = "SELECT relid::text, columns, key FROM interlock.outbox_table WHERE stream = 'merchant_orders'"
KEYSET = """SELECT "table"::text, scope, "order", max_page, default_page, scatter FROM interlock.keysets
            WHERE name = 'merchant_orders'"""
READERS = """SELECT coalesce(r.rolname, 'PUBLIC') FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
             LEFT JOIN pg_roles r ON r.oid = a.grantee WHERE c.oid = to_regclass('interlock_index.merchant_orders')
             AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner ORDER BY 1"""
NOTHING = "nothing to do: 2 shards and 1 index database match route version"


class Market(Cluster):
    """Orders on two shards, and an index database on an instance of its own; no index is declared yet."""

    def __init__(self, base, owner, **options):
        super().__init__(base, owner, table=ORDERS, **options)
        self.instances["idx"] = self.idx = Postgres(base, "idx", owner, None)
        self.owners = (self.s0, self.s1)

    def declare(self, catalog):
        catalog.execute("SELECT interlock.declare_table('orders', 'accounts', 'user_id')")
        catalog.execute("SELECT interlock.add_index_database('idx', %s)", (self.idx.conninfo("app"),))

    def made(self):
        self.start_instances().create_tables().describe()
        self.idx.sql("DROP EXTENSION interlock; CREATE TYPE mood AS ENUM ('good', 'bad')")
        return self

    def refused(self, *words):
        """An apply that is refused with these words and changes nothing; returns what it says."""
        before = self.everything()
        done = self.apply(check=False)
        assert done.returncode == 1 and "refused, nothing was changed" in done.stderr, done.stdout + done.stderr
        for word in words:
            assert word in done.stderr, done.stderr
        assert self.everything() == before
        return done.stderr

    def everything(self):
        looks = {"SELECT name FROM interlock.keyset ORDER BY 1", "SELECT relid::text, stream FROM interlock.outbox_table ORDER BY 1, 2",
                 "SELECT name FROM interlock.outbox_stream ORDER BY 1", "SELECT name FROM interlock.local_index ORDER BY 1",
                 "SELECT shard_name FROM interlock.shard_identity", "SELECT route_version FROM interlock.cluster",
                 "SELECT name FROM interlock.dropped_index", "SELECT count(*) FROM interlock.cursor_key"}
        there = {name: bool(instance.value("SELECT count(*) FROM pg_extension WHERE extname = 'interlock'"))
                 for name, instance in self.instances.items()}
        return there, [(name, look, instance.sql(look)) for name, instance in self.instances.items() if there[name]
                       for look in sorted(looks)]

    def view(self):
        return self.catalog.sql("SELECT name, ready, in_use FROM interlock.indexes ORDER BY name")

    def ready(self, value=True):
        self.catalog.sql("SELECT interlock.index_ready('merchant_orders', %s)", value)

    def insert(self, shard, *numbers, merchant=3):
        keys = keys_on(shard, len(numbers))
        for number, key in zip(numbers, keys):
            self.instances[shard].sql("INSERT INTO orders VALUES (%s, %s, %s, '2024-05-01', 1, 'new')", number, key, merchant)


def market_of(owner, folder):
    return Market(folder, owner).made()


@pytest.fixture
def fresh(owner, new_folder, request, router_binary):
    """Declared, and nothing applied."""
    cluster = market_of(owner, new_folder(request.node.name[:60]))
    try:
        yield cluster
        cluster.end_test()
    finally:
        cluster.down()


@pytest.fixture(scope="module")
def applied_market(owner, new_folder, router_binary):
    cluster = market_of(owner, new_folder("apply-indexes"))
    try:
        cluster.apply()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def market(applied_market):
    """Applied, without an index; the test's traces are removed."""
    yield applied_market
    applied_market.end_test()
    applied_market.catalog.sql("SELECT interlock.drop_index(name) FROM interlock.global_index")
    applied_market.apply()
    for shard in applied_market.owners:
        shard.sql("SELECT interlock.keyset_drop(name) FROM interlock.keyset; DELETE FROM orders")
        shard.sql("SELECT interlock.outbox_detach(relid, stream, true, true) FROM interlock.outbox_table")
    assert "nothing to do" in applied_market.apply().stdout


# -- made, and made once -----------------------------------------------------------------------------


def test_a_fresh_cluster_with_an_index_is_made_in_one_run(fresh):
    fresh.catalog.sql(CREATE)
    before = fresh.everything()
    plan = fresh.apply("--plan").stdout
    assert fresh.everything() == before
    for line in ("idx: create extension interlock", "idx: make this database index database idx of cluster test",
                 "idx: take the catalog's cursor key",
                 "idx: make index merchant_orders of table public.orders: scope (merchant_id), order placed_at DESC, order_id",
                 "s0: declare keyset merchant_orders of table public.orders: scope (merchant_id), order placed_at DESC, order_id",
                 "s1: record changes of table public.orders for index merchant_orders: "
                 "merchant_id, placed_at, order_id, by key order_id, user_id",
                 "idx: let app read index merchant_orders"):
        assert line in plan, plan
    assert "idx: guard" not in plan and "idx: define keyspace" not in plan and "idx: take bucket" not in plan
    # Who reads pages from it is told last.
    assert plan.index("idx: make index") < plan.index("publish route version 1")

    done = fresh.apply()
    assert done.stderr == "" and "applied: 2 shards and 1 index database match route version 1" in done.stdout
    for shard in fresh.owners:
        assert shard.sql(STREAM) == [("orders", ["merchant_id", "placed_at", "order_id"], ["order_id", "user_id"])]
        assert shard.sql(KEYSET) == [("orders", ["merchant_id"], "placed_at DESC, order_id", 1000, 50, True)]
        assert not shard.sql("SELECT 1 FROM interlock.local_index")
    assert fresh.idx.sql('SELECT name, table_name, scope, "order", key_columns, shard_key FROM interlock.local_index') == \
        [("merchant_orders", "public.orders", ["merchant_id"], "placed_at DESC, order_id", ["order_id", "user_id"], "user_id")]
    columns = fresh.idx.sql("SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a "
                            "WHERE a.attrelid = 'interlock_index.merchant_orders'::regclass AND a.attnum BETWEEN 1 AND 4 ORDER BY a.attnum")
    assert columns == [("merchant_id", "integer", False), ("placed_at", "timestamp with time zone", True),
                       ("order_id", "bigint", True), ("user_id", "bigint", True)]
    assert fresh.idx.sql("SELECT shard_name FROM interlock.shard_identity") == [("idx",)]
    assert fresh.idx.sql(READERS) == [("app",)]
    assert fresh.idx.sql("SELECT 1 FROM interlock.keysets WHERE name = 'interlock_index.merchant_orders' AND digest = %s",
                         fresh.s0.value("SELECT digest FROM interlock.keysets")) == [(1,)]
    assert not fresh.idx.sql("SELECT 1 FROM interlock.local_keyspace UNION ALL SELECT 1 FROM interlock.guarded_table "
                             "UNION ALL SELECT 1 FROM interlock.bucket_state")
    assert f"{NOTHING} 1" in fresh.apply().stdout
    # An application can read the entries, as the router does for it.
    assert fresh.idx.sql("SELECT count(*) FROM interlock.keyset_page('interlock_index.merchant_orders', "
                         "NULL::interlock_index.merchant_orders, '{\"merchant_id\": 3}')", user="app") == [(0,)]


def test_changes_are_recorded_from_then_on(market):
    market.insert("s0", 1)
    market.catalog.sql(CREATE)
    market.apply()
    market.insert("s0", 2)
    market.s0.sql("UPDATE orders SET amount = 7")  # of no concern to the index
    market.s0.sql("UPDATE orders SET merchant_id = 4 WHERE order_id = 1")
    assert market.s0.sql("SELECT op, key ->> 'order_id', old ->> 'merchant_id', new ->> 'merchant_id' FROM interlock.outbox "
                         "WHERE stream = 'merchant_orders' ORDER BY seq") == [("I", "2", None, "3"), ("U", "1", "3", "4")]


def test_pages_come_from_it_once_it_is_ready_and_that_is_published(market):
    market.catalog.sql(CREATE)
    market.apply()
    assert market.view() == [("merchant_orders", False, False)]
    market.ready()
    assert market.view() == [("merchant_orders", True, False)]
    assert "publish route version" in market.apply().stdout
    assert market.view() == [("merchant_orders", True, True)]
    assert "nothing to do" in market.apply().stdout
    market.ready(False)
    market.apply()
    assert market.view() == [("merchant_orders", False, False)]


def test_the_tools_that_read_routes_know_index_databases(market):
    market.catalog.sql(CREATE)
    market.apply()
    market.ready()
    market.apply()
    catalog = ["--catalog", market.catalog.conninfo("app", "postgres")]
    for _ in range(2):
        explained = run_interlock("explain", *catalog, "SELECT * FROM orders WHERE user_id = 5")
        assert explained.returncode == 0 and "shard: s" in explained.stdout, explained.stdout + explained.stderr
        # A version that a release without indexes has published.
        market.catalog.sql("UPDATE interlock.route_version v SET declarations = jsonb_set(v.declarations - 'indexes', '{shards}', "
                           "(SELECT jsonb_agg(d - 'role') FROM jsonb_array_elements(v.declarations -> 'shards') d WHERE d ->> 'name' <> 'idx')) "
                           "WHERE v.version = (SELECT c.route_version FROM interlock.cluster c)")
    assert market.view() == [("merchant_orders", True, False)]
    assert "publish route version" in market.apply().stdout
    assert market.view() == [("merchant_orders", True, True)]


def test_page_sizes_can_be_changed_and_cursors_stay_good(market):
    market.catalog.sql(CREATE)
    market.apply()
    market.insert("s0", 1, 2)
    page = ("SELECT cursor FROM interlock.keyset_page('merchant_orders', NULL::orders, '{\"merchant_id\": 3}', page_size => 1, "
            "after => %s)")
    cursor = market.s0.value(page, None)
    market.catalog.sql(CREATE[:-1] + ", max_page => 70, default_page => 7)")
    plan = market.apply().stdout
    assert "s1: change the page sizes of keyset merchant_orders: at most 70 rows, 7 unless told" in plan
    assert "idx: change the page size of index merchant_orders" in plan and "record changes" not in plan
    for shard in market.owners:
        assert [row[3:5] for row in shard.sql(KEYSET)] == [(70, 7)]
    assert market.s0.value(page, cursor) not in (None, cursor)
    assert "nothing to do" in market.apply().stdout


def test_a_shard_can_hold_an_index(market):
    market.catalog.sql(CREATE[:-1] + ", database => 's1')")
    market.apply()
    assert market.s1.sql("SELECT name FROM interlock.local_index") == [("merchant_orders",)]
    assert not market.idx.sql("SELECT name FROM interlock.local_index")
    for shard in market.owners:
        assert shard.sql(STREAM)
    assert market.apply().stderr == "" and "nothing to do" in market.apply().stdout


def test_orders_of_every_kind_of_column(market):
    """Enums and collations included; an index of the whole table."""
    for shard in market.owners:
        shard.sql("SET client_min_messages = error; ALTER TABLE orders ADD COLUMN code varchar(7) COLLATE \"C\" NOT NULL DEFAULT ''")
    try:
        market.catalog.sql("SELECT interlock.create_index('by_mood', 'orders', '{}', 'mood DESC, code COLLATE \"C\", amount NULLS FIRST, order_id')")
        market.apply()
        assert market.idx.sql("SELECT a.attname, format_type(a.atttypid, a.atttypmod), c.collname FROM pg_attribute a "
                              "LEFT JOIN pg_collation c ON c.oid = a.attcollation "
                              "WHERE a.attrelid = 'interlock_index.by_mood'::regclass AND a.attnum BETWEEN 1 AND 3 ORDER BY a.attnum") == \
            [("mood", "mood", None), ("code", "character varying(7)", "C"), ("amount", "numeric(12,2)", None)]
        assert "nothing to do" in market.apply().stdout
    finally:
        market.catalog.sql("SELECT interlock.drop_index('by_mood')")
        market.apply()
        for shard in market.owners:
            shard.sql("SELECT interlock.keyset_drop('by_mood'); ALTER TABLE orders DROP COLUMN code")
        market.apply()


# -- refused, with everything told at once -----------------------------------------------------------


def test_everything_that_is_wrong_is_told_at_once(market):
    catalog = market.catalog
    catalog.sql(CREATE)
    catalog.sql("SELECT interlock.create_index('no_total', 'orders', '{}', 'placed_at')")
    catalog.sql("SELECT interlock.create_index('no_column', 'orders', '{}', 'nothing, order_id')")
    catalog.sql("SELECT interlock.create_index('no_order', 'orders', '{}', 'order_id; DROP TABLE orders')")
    catalog.sql("SELECT interlock.create_index('moods', 'orders', '{}', 'mood, order_id')")
    market.idx.sql("ALTER TYPE mood RENAME VALUE 'bad' TO 'sad'")
    market.s1.sql("ALTER TABLE orders ALTER merchant_id TYPE bigint, ALTER amount TYPE numeric")
    try:
        text = market.refused(
            'index "no_total" cannot be made of table public.orders on shard "s0"', 'column "nothing"', 'invalid order',
            'table public.orders differs between shards "s0" and "s1"',
            'index "merchant_orders" would not be the same on shard "s0" and shard "s1"',
            'Column "merchant_id" is integer on s0 and bigint on s1.',
            'index "moods" would have another order in index database "idx" than on the shards')
        assert text.count("\nERROR:  ") + text.startswith("ERROR:  ") >= 9, text
    finally:
        market.idx.sql("ALTER TYPE mood RENAME VALUE 'sad' TO 'bad'")
        market.s1.sql("ALTER TABLE orders ALTER merchant_id TYPE integer, ALTER amount TYPE numeric(12,2)")
    for name in ("no_total", "no_column", "no_order"):
        catalog.sql("SELECT interlock.drop_index(%s)", name)
    market.apply()
    for shard in market.owners:
        assert shard.sql("SELECT name FROM interlock.keyset ORDER BY 1") == [("merchant_orders",), ("moods",)]


def test_a_table_without_primary_key_cannot_be_indexed(market):
    market.catalog.sql(CREATE)
    market.s1.sql("ALTER TABLE orders DROP CONSTRAINT orders_pkey; CREATE UNIQUE INDEX spare ON orders (order_id)")
    try:
        market.refused('on shard "s1": it has no primary key')
        market.s1.sql("ALTER TABLE orders ADD PRIMARY KEY (user_id, order_id)")
        market.refused("The key of a row is (order_id, user_id) on s0 and (user_id, order_id) on s1.")
    finally:
        market.s1.sql("ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_pkey; ALTER TABLE orders ADD PRIMARY KEY (order_id); DROP INDEX spare")


def test_a_type_that_the_index_database_lacks_is_told(market):
    market.catalog.sql("SELECT interlock.create_index('moods', 'orders', '{mood}', 'order_id')")
    market.idx.sql("ALTER TYPE mood RENAME TO gloom")
    try:
        market.refused('index "moods" cannot be made in index database "idx"', 'type public.mood of column "mood" does not exist')
    finally:
        market.idx.sql("ALTER TYPE gloom RENAME TO mood")


def test_a_keyset_of_that_name_is_taken_if_it_is_the_same_and_refused_if_not(market):
    declare = "SET client_min_messages = error; SELECT interlock.keyset_create('merchant_orders', 'orders', '{%s}', 'placed_at DESC, order_id')"
    market.s0.sql(declare % "merchant_id")
    market.s1.sql(declare % "merchant_id,status")
    market.catalog.sql(CREATE)
    market.refused('keyset "merchant_orders" is declared on shard "s1", but not as index "merchant_orders" says',
                   "SELECT interlock.keyset_drop('merchant_orders');")
    market.s1.sql("SELECT interlock.keyset_drop('merchant_orders')")
    plan = market.apply().stdout
    assert "s1: declare keyset" in plan and "s0: declare keyset" not in plan


@pytest.mark.parametrize("attach, words", [
    ("SELECT interlock.outbox_attach('other', NULL, 'merchant_orders')", "records other tables than that of the index"),
    ("SELECT interlock.outbox_attach('orders', NULL, 'merchant_orders')", "records other columns of table public.orders"),
    ("SELECT interlock.outbox_attach('orders', '{merchant_id,placed_at,order_id}', 'merchant_orders', '{order_id}')",
     "by key (order_id); needed are")])
def test_a_stream_that_somebody_else_uses_is_left_alone(market, attach, words):
    market.s1.sql(attach)
    market.catalog.sql(CREATE)
    market.refused('outbox stream "merchant_orders" of shard "s1"', words)
    market.s1.sql("SELECT interlock.outbox_detach(relid, stream, true) FROM interlock.outbox_table")
    market.apply()


@pytest.mark.parametrize("harm", [
    "SELECT interlock.outbox_detach('orders', 'merchant_orders')",
    'ALTER TABLE orders DISABLE TRIGGER "!interlock_outbox_merchant_orders"'])
def test_an_index_that_missed_changes_is_not_served_on(market, harm):
    market.catalog.sql(CREATE)
    market.apply()
    market.ready()
    market.apply()
    market.s1.sql(harm)
    market.refused('index "merchant_orders" is declared ready, but changes of table public.orders on shard "s1" are not recorded',
                   "SELECT interlock.index_ready('merchant_orders', false);")
    market.ready(False)
    done = market.apply()
    assert "s1: record changes of table public.orders" in done.stdout
    assert 'WARNING:  index "merchant_orders" is there already, but changes of table public.orders on shard "s1"' in done.stderr
    assert 'run "interlock repair merchant_orders --apply"' in done.stderr
    assert market.view() == [("merchant_orders", False, False)]
    assert not market.s1.sql("SELECT 1 FROM interlock.outbox_triggers('orders', 'merchant_orders') WHERE state IS DISTINCT FROM 'O'")
    market.ready()
    market.apply()
    assert market.view() == [("merchant_orders", True, True)]


def test_an_index_that_is_lost_is_not_served_on(market):
    market.catalog.sql(CREATE)
    market.apply()
    market.ready()
    market.apply()
    market.idx.sql("SELECT interlock.index_remove('merchant_orders')")
    market.refused('is declared ready, but index database "idx" does not have it', "backfill merchant_orders --restart")
    market.ready(False)
    assert "idx: make index merchant_orders" in market.apply().stdout


def test_an_index_database_that_is_a_shard_or_away_is_refused(fresh):
    fresh.catalog.sql(CREATE)
    fresh.catalog.sql("SELECT interlock.set_shard_conninfo('idx', %s)", fresh.s1.conninfo("app"))
    fresh.refused('index database "idx" and shard "s1" are the same database', "A shard can hold indexes as it is")
    fresh.catalog.sql("SELECT interlock.set_shard_conninfo('idx', %s)", fresh.idx.conninfo("app"))
    fresh.idx.stop("immediate")
    done = fresh.apply(check=False)
    assert done.returncode == 1 and 'could not connect to index database "idx"' in done.stderr
    fresh.idx.start()
    fresh.apply()


# -- who may read -------------------------------------------------------------------------------------


def test_who_may_read_the_table_on_every_shard_may_read_the_index(market):
    every = (*market.owners, market.idx)
    for instance in every:
        instance.sql('CREATE ROLE "Odd one"; CREATE ROLE half; CREATE ROLE feeder LOGIN')
    market.idx.sql("CREATE ROLE auditor")
    try:
        market.catalog.sql(CREATE)
        market.idx.sql("SELECT interlock.grant_indexer('feeder')")
        for shard in market.owners:
            shard.sql('GRANT SELECT ON orders TO "Odd one"')
        market.s0.sql("GRANT SELECT ON orders TO half")
        assert 'idx: let Odd one, app read index merchant_orders' in market.apply().stdout
        assert market.idx.sql(READERS) == [("Odd one",), ("app",), ("feeder",)]
        # A role that only the index database has was let in by its own DBA; it stays.
        market.idx.sql("GRANT SELECT ON interlock_index.merchant_orders TO auditor")
        market.s1.sql("GRANT SELECT ON orders TO half")
        market.s0.sql('REVOKE SELECT ON orders FROM "Odd one"')
        plan = market.apply().stdout
        assert "idx: let half read" in plan and "idx: no longer let Odd one read" in plan
        assert market.idx.sql(READERS) == [("app",), ("auditor",), ("feeder",), ("half",)]
        assert "nothing to do" in market.apply().stdout
        for shard in market.owners:
            shard.sql("GRANT SELECT ON orders TO PUBLIC")
        assert "idx: let PUBLIC read index merchant_orders" in market.apply().stdout
        for shard in market.owners:
            shard.sql("REVOKE SELECT ON orders FROM PUBLIC")
        assert "idx: no longer let PUBLIC read" in market.apply().stdout
        assert market.idx.sql(READERS) == [("app",), ("auditor",), ("feeder",), ("half",)]
    finally:
        market.catalog.sql("SELECT interlock.drop_index(name) FROM interlock.global_index")
        market.apply()
        for instance in every:
            instance.sql('DROP OWNED BY "Odd one", half, feeder; DROP ROLE "Odd one", half, feeder')
        market.idx.sql("DROP OWNED BY auditor; DROP ROLE auditor")


def test_a_role_that_owns_the_table_can_apply_it(market):
    """What docs/dba.md gives to one that is no superuser."""
    every = (*market.owners, market.idx)
    for instance in every:
        instance.sql("CREATE ROLE dba LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA interlock TO dba;"
                     "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA interlock TO dba")
    for shard in market.owners:
        shard.sql("ALTER TABLE orders OWNER TO dba")
    apply = ["apply", "--catalog", market.catalog.conninfo("app", "dba")]
    try:
        market.catalog.sql(CREATE)
        done = run_interlock(*apply, env={"PGUSER": "dba"})
        assert done.returncode == 0, done.stdout + done.stderr
        assert market.idx.sql(READERS) == [("app",), ("dba",)]
        market.catalog.sql("SELECT interlock.drop_index('merchant_orders')")
        done = run_interlock(*apply, env={"PGUSER": "dba"})
        assert done.returncode == 0, done.stdout + done.stderr
        for shard in market.owners:
            assert not shard.sql("SELECT 1 FROM interlock.outbox_stream")
        assert "nothing to do" in market.apply().stdout
    finally:
        for shard in market.owners:
            shard.sql("ALTER TABLE orders OWNER TO postgres; GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO app")
        for instance in every:
            instance.sql("DROP OWNED BY dba; DROP ROLE dba")


def test_row_level_security_is_warned_of(market):
    market.catalog.sql(CREATE)
    market.s1.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    try:
        assert "table public.orders has row-level security" in market.apply().stderr
    finally:
        market.s1.sql("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
    assert market.apply().stderr == ""


# -- taken back ----------------------------------------------------------------------------------------


def test_tombstones_are_not_kept_for_a_shard_that_was_deleted_from_the_catalog(market):
    market.catalog.sql(CREATE)
    market.apply()
    for shard in ("gone", "s0", "s1"):
        market.idx.sql("SELECT interlock.index_join('merchant_orders', %s)", shard)
    market.idx.sql("UPDATE interlock.index_progress SET drained_through = clock_timestamp() WHERE shard <> 'gone'")
    purge = "SELECT interlock.index_purge('merchant_orders')"
    market.idx.sql("INSERT INTO interlock_index.merchant_orders (merchant_id, placed_at, order_id, user_id, interlock_shard,"
                   " interlock_route_version, interlock_seq, interlock_deleted, interlock_applied)"
                   " VALUES (3, '2024-05-01', 1, 1, 's0', 1, 1, true, '2024-05-02')")
    assert market.idx.value(purge) == 0
    assert "idx: keep no tombstones of index merchant_orders for deleted shards: gone" in market.apply().stdout
    assert market.idx.sql("SELECT shard FROM interlock.index_progress ORDER BY 1") == [("s0",), ("s1",)]
    assert market.idx.value(purge) == 1
    assert NOTHING in market.apply().stdout


def test_a_dropped_index_leaves_nothing_but_its_keyset(market):
    market.catalog.sql(CREATE)
    market.apply()
    market.ready()
    market.apply()
    market.insert("s0", 1)
    market.catalog.sql("SELECT interlock.drop_index('merchant_orders')")
    plan = market.apply().stdout
    # Routers are told first, and nobody is answered from entries that are fed no more.
    assert plan.index("catalog: publish route version") \
        < plan.index("idx: remove the entries of dropped index merchant_orders") \
        < plan.index("s0: record no changes of table public.orders for dropped index merchant_orders") \
        < plan.index("catalog: forget dropped index merchant_orders")
    for shard in market.owners:
        assert not shard.sql("SELECT 1 FROM interlock.outbox_stream") and not shard.sql(STREAM)
        assert not shard.sql("SELECT 1 FROM interlock.outbox") and shard.sql(KEYSET)
    assert not market.idx.sql("SELECT 1 FROM pg_class WHERE relnamespace = 'interlock_index'::regnamespace")
    assert market.view() == [] and "nothing to do" in market.apply().stdout
    # Another one of that name, of another order: the keyset that stayed is in the way, and says so.
    market.catalog.sql(CREATE.replace(" DESC", ""))
    market.refused("but not as index")
    for shard in market.owners:
        shard.sql("SELECT interlock.keyset_drop('merchant_orders')")
    market.apply()
    assert market.s0.sql(KEYSET)[0][2] == "placed_at, order_id"


def test_an_index_of_a_table_that_is_gone_is_removed_as_well(market):
    for shard in market.owners:
        shard.sql("CREATE TABLE more (id bigint PRIMARY KEY, user_id bigint NOT NULL)")
    market.catalog.sql("SELECT interlock.declare_table('more', 'accounts', 'user_id');"
                       "SELECT interlock.create_index('more', 'more', '{}', 'id')")
    market.apply()
    market.catalog.sql("SELECT interlock.drop_index('more'); SELECT interlock.undeclare_table('more')")
    for shard in market.owners:
        shard.sql("SELECT interlock.keyset_drop('more'); DROP TABLE more CASCADE")
    plan = market.apply().stdout
    assert "s1: drop the outbox stream of dropped index more" in plan
    for shard in market.owners:
        assert not shard.sql("SELECT 1 FROM interlock.outbox_stream")


# -- interrupted ----------------------------------------------------------------------------------------

LOCKS = [("s1", "LOCK TABLE interlock.keyset IN SHARE MODE", "s1: declare keyset"),
         ("s1", "LOCK TABLE orders IN ROW EXCLUSIVE MODE", "s1: record changes"),
         ("idx", "LOCK TABLE interlock.local_index IN SHARE MODE", "idx: make index")]


@pytest.mark.parametrize("place, lock, step", LOCKS, ids=[lock[2] for lock in LOCKS])
def test_an_apply_killed_with_9_is_finished_by_the_next_one(market, place, lock, step):
    """What it tries before it begins waits for locks as well; only the attaching of triggers waits in earnest."""
    market.catalog.sql(CREATE)
    instance = market.instances[place]
    holder = market.connect(place, autocommit=False)
    holder.execute(lock)
    process = subprocess.Popen([BINARY, "apply", "--lock-timeout", "60s",
                                "--catalog", market.catalog.conninfo("app", "postgres")],
                               env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
    wait_until(lambda: instance.value(waits) or process.poll() is not None, 30, "apply waits")
    assert process.poll() is None
    process.kill()
    process.wait(10)
    holder.rollback()
    wait_until(lambda: not instance.value(waits), 30, "its backend has gone")
    market.apply()
    for shard in market.owners:
        assert shard.sql(STREAM) and shard.sql(KEYSET)
    assert market.idx.sql(READERS) == [("app",)]
    assert "nothing to do" in market.apply().stdout


def test_an_apply_killed_after_any_step_is_finished_by_the_next_one(market):
    steps = 1
    killed = 0
    while killed < steps:
        market.catalog.sql(CREATE)
        plan = [line for line in market.apply("--plan").stdout.splitlines() if ". " in line]
        steps = len(plan)
        assert steps >= 7
        with subprocess.Popen([BINARY, "apply", "--catalog", market.catalog.conninfo("app", "postgres")],
                              env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            for line in process.stdout:
                if line.startswith(f"done {killed + 1}/"):
                    break
            process.kill()
        market.apply()
        for shard in market.owners:
            assert shard.sql(STREAM) and shard.sql(KEYSET)
        assert market.idx.sql(READERS) == [("app",)] and market.view() == [("merchant_orders", False, False)]
        assert "nothing to do" in market.apply().stdout
        # And the way back, killed after the same number of steps.
        market.catalog.sql("SELECT interlock.drop_index('merchant_orders')")
        with subprocess.Popen([BINARY, "apply", "--catalog", market.catalog.conninfo("app", "postgres")],
                              env=environment({"PGUSER": "postgres"}), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            for line in process.stdout:
                if line.startswith(f"done {killed + 1}/"):
                    break
            process.kill()
        market.apply()
        assert "nothing to do" in market.apply().stdout
        for shard in market.owners:
            assert not shard.sql("SELECT 1 FROM interlock.outbox_stream")
            shard.sql("SELECT interlock.keyset_drop('merchant_orders')")
        killed += 1


def test_a_writer_in_the_way_is_named(market):
    market.catalog.sql(CREATE)
    writer = market.connect("s1", autocommit=False)
    writer.execute("LOCK TABLE orders IN ROW EXCLUSIVE MODE")
    done = market.apply("--lock-timeout", "200ms", check=False)
    assert done.returncode == 1 and "s1: record changes of table public.orders" in done.stderr, done.stderr
    assert f"process {writer.info.backend_pid}" in done.stderr, done.stderr
    writer.rollback()
    assert "s1: record changes" in market.apply().stdout
