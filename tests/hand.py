"""By hand until apply and index are there."""
import json
from support.indexed import IndexedCluster, INDEX, ENTRIES, INDEXER, SCOPE, ORDER
from support import indexed

class HandCluster(IndexedCluster):
    def declare(self, catalog):
        from support.order_cluster import OrdersCluster
        OrdersCluster.declare(self, catalog)
    def make(self):
        self.start_instances().create_tables().describe()
        self.load(); self.apply()
        self.hand_indexes([(INDEX, 'orders', ['merchant_id'], ORDER, 'user_id')])
        self.grant_indexer()
        return self
    def hand_indexes(self, indexes):
        with self.catalog.connect() as c:
            indexes[0][0]==INDEX and c.execute("SELECT interlock.add_index_database('idx', %s)", (self.idx.conninfo("app"),))
            for name, table, scope, order, key in indexes:
                c.execute("SELECT interlock.create_index(%s, %s, %s, %s)", (name, table, scope, order))
            cid = c.execute("SELECT id::text FROM interlock.cluster").fetchone()[0]
            secret = c.execute("SELECT secret, id FROM interlock.cursor_key").fetchone()
        indexes[0][0]==INDEX and self.idx.sql("SELECT interlock.set_identity(%s, 'idx')", cid)
        self.idx.sql("SELECT interlock.cursor_key_add(%s) WHERE NOT EXISTS (SELECT FROM interlock.cursor_key)", secret[0])
        for name, table, scope, order, key in indexes:
            for s in self.shards:
                self.instances[s].sql("SELECT interlock.keyset_create(%s, %s, %s, %s)", name, table, scope, order)
                cols = [r[0] for r in self.instances[s].sql("SELECT unnest(scope||columns) FROM interlock.keyset WHERE name=%s", name)]
                self.instances[s].sql("SELECT interlock.outbox_attach(%s, %s, %s)", table, cols, name)
                k = self.instances[s].value("SELECT key FROM interlock.outbox_table WHERE stream=%s", name)
            allc = list(dict.fromkeys(cols + k))
            with self.s0.connect() as cc: cc.execute("SET search_path=pg_catalog"); columns = cc.execute("""SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid,a.atttypmod), 'collation',
               CASE WHEN a.attcollation<>0 AND a.attcollation <> (select typcollation from pg_type where oid=atttypid) THEN (SELECT format('%%I.%%I', collnamespace::regnamespace, collname) FROM pg_collation c WHERE c.oid=a.attcollation) END, 'not_null', a.attnotnull) ORDER BY n)
               FROM unnest(%s::text[]) WITH ORDINALITY u(c,n) JOIN pg_attribute a ON a.attname=c AND attrelid=%s::regclass""", (allc, 'public.'+table)).fetchone()[0]
            self.idx.sql("SELECT interlock.index_define(%s, %s, %s, %s, %s, %s, %s)", name, 'public.'+table, json.dumps(columns), scope, order, k, key)
            [self.idx.sql("SELECT interlock.index_join(%s,%s)", name, s) for s in self.shards]
        self.catalog.sql("SELECT interlock.publish()")
    def fill_index(self):
        self.index("backfill", INDEX, check=False); self.catalog.sql("SELECT interlock.index_ready(%s)", INDEX); self.catalog.sql("SELECT interlock.publish()")
        return self
