-- Global indexes and the databases that hold them, as the catalog declares them.
\set SHOW_CONTEXT never
\set VERBOSITY default
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.create_index('merchant_orders', 'orders', '{merchant_id}', 'placed_at DESC, order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_cluster('market') IS NOT NULL AS created;
SELECT interlock.add_index_database('idx', 'host=idx');
SELECT interlock.create_keyspace('user', 'bigint', 2);
-- an index database is no shard
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('user', '{0}', 'idx');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_shard('s0', 'host=s0');
SELECT interlock.add_shard('idx', 'host=idx');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_index_database('s0', 'host=s0');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_index_database('idx', 'host=idx');
SELECT interlock.add_index_database('idx', 'host=elsewhere');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_index_database('Idx', 'host=idx');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_index_database('idx2', NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.set_shard_conninfo('idx', 'host=idx port=5433');
SELECT interlock.assign('user', '{0,1}', 's0');
SELECT interlock.declare_table('orders', 'user', 'user_id');
SELECT interlock.declare_table('"Odd"."Orders"', 'user', 'user_id');
SELECT interlock.publish();
SELECT * FROM interlock.shards ORDER BY name;

-- declared once, and the same again changes nothing
SELECT interlock.create_index('merchant_orders', 'orders', '{merchant_id}', 'placed_at DESC, order_id');
SELECT interlock.create_index('merchant_orders', 'public.orders', '{merchant_id}', 'placed_at DESC, order_id', 'idx');
SELECT interlock.create_index('merchant_orders', 'orders', '{merchant_id,status}', 'placed_at DESC, order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('merchant_orders', 'orders', '{merchant_id}', 'placed_at DESC, order_id', 's0');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('merchant_orders', 'orders', '{merchant_id}', 'placed_at DESC, order_id', max_page => 200);
SELECT interlock.create_index('newest', '"Odd"."Orders"', '{}', '"At" DESC, order_id', 's0', 10, 10);
SELECT * FROM interlock.indexes ORDER BY name;
SELECT interlock.declarations_changed();
SELECT interlock.publish();
SELECT d FROM interlock.route_version v, jsonb_array_elements(v.declarations -> 'indexes') d ORDER BY v.version, d -> 'id';
SELECT d FROM interlock.route_version v, jsonb_array_elements(v.declarations -> 'shards') d WHERE v.version = 2 ORDER BY d -> 'id';

-- pages come from it once it is filled and that is published
SELECT name, ready, in_use FROM interlock.indexes ORDER BY name;
SELECT interlock.index_ready('merchant_orders');
SELECT interlock.index_ready('merchant_orders', true);
SELECT name, ready, in_use FROM interlock.indexes ORDER BY name;
SELECT interlock.publish();
SELECT name, ready, in_use FROM interlock.indexes ORDER BY name;
SELECT interlock.index_ready('merchant_orders', false);
SELECT interlock.index_ready('merchant_orders', false);
SELECT name, ready, in_use FROM interlock.indexes ORDER BY name;
SELECT interlock.index_ready('nothing');
\echo SQLSTATE :SQLSTATE
SELECT interlock.index_ready('merchant_orders', NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.index_ready(NULL);
\echo SQLSTATE :SQLSTATE

-- what cannot be an index
SELECT interlock.create_index(n, 'orders', '{}', 'order_id') FROM unnest('{Merchant}'::text[]) AS n;
\echo SQLSTATE :SQLSTATE
DO $$
DECLARE
    wrong text;
BEGIN
    FOREACH wrong IN ARRAY ARRAY['', '1a', 'a-b', 'a b', 'default', repeat('a', 41), 'ä', E'a\n', NULL] LOOP
        BEGIN
            PERFORM interlock.create_index(wrong, 'orders', '{}', 'order_id');
            RAISE WARNING 'taken: %', wrong;
        EXCEPTION WHEN invalid_name THEN
            RAISE NOTICE '%', SQLERRM;
        END;
    END LOOP;
END
$$;
SELECT interlock.create_index(repeat('a', 40), 'orders', '{}', 'order_id');
SELECT interlock.drop_index(repeat('a', 40));
SELECT interlock.create_index('i', 'nothing', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', NULL, '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', NULL, 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{a,NULL}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{{a},{b}}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{a,b,a}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{}', NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{}', E' \n');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{}', 'order_id', max_page => 0);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{}', 'order_id', max_page => 10, default_page => 11);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{}', 'order_id', default_page => NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_index('i', 'orders', '{}', 'order_id', 'nowhere');
\echo SQLSTATE :SQLSTATE
-- the columns are known once they were recorded
INSERT INTO interlock.table_column SELECT t.id, 1, 'user_id', 'bigint'::regtype, 'bigint', true
  FROM interlock.sharded_table t WHERE t.table_name = 'orders';
SELECT interlock.create_index('i', 'orders', '{merchant_id}', 'order_id');
\echo SQLSTATE :SQLSTATE
-- which of several databases must be said, and that there is one
SELECT interlock.add_index_database('idx2', 'host=idx2');
SELECT interlock.create_index('i', 'orders', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.shard WHERE name = 'idx2';

-- what an index needs stays
SELECT interlock.undeclare_table('orders');
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.shard WHERE name = 'idx';
\echo SQLSTATE :SQLSTATE
SELECT interlock.drop_index('merchant_orders');
SELECT interlock.drop_index('merchant_orders');
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.dropped_index ORDER BY name;
SELECT interlock.create_index('merchant_orders', 'orders', '{}', 'order_id', 'idx');
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.shard WHERE name = 'idx';
\echo SQLSTATE :SQLSTATE
SELECT interlock.undeclare_table('orders');
SELECT interlock.publish();
SELECT name FROM interlock.indexes;
DELETE FROM interlock.dropped_index;
DELETE FROM interlock.shard WHERE name = 'idx';
SELECT interlock.create_index('i', '"Odd"."Orders"', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE

-- hand-made edits that no function lets through are not published
INSERT INTO interlock.shard (name, conninfo, role) VALUES ('byhand', 'host=byhand', 'elsewhere');
SELECT interlock.add_index_database('idx', 'host=idx');
UPDATE interlock.assignment SET shard = (SELECT id FROM interlock.shard WHERE name = 'idx') WHERE bucket = 1;
SELECT interlock.publish(allow_owner_change => true);
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('user', '{1}', 's0');
INSERT INTO interlock.global_index (name, table_id, scope, "order", shard, max_page, default_page)
VALUES ('lost', 4711, '{}', 'id', 1, 1, 1);
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.global_index WHERE name = 'lost';

-- a catalog as an earlier release published it: no roles, no indexes
UPDATE interlock.route_version SET declarations = jsonb_set(declarations - 'indexes', '{shards}',
    (SELECT jsonb_agg(d - 'role') FROM jsonb_array_elements(declarations -> 'shards') d))
 WHERE version = (SELECT route_version FROM interlock.cluster);
SELECT name, in_use FROM interlock.indexes;
SELECT interlock.declarations_changed();

-- who may do what
SELECT p.oid::regprocedure AS "open to everybody" FROM pg_proc p
 WHERE p.pronamespace = 'interlock'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')
   AND p.proname IN ('create_index', 'drop_index', 'index_ready', 'add_index_database', 'add_member', 'keep_indexed');
CREATE ROLE regress_filler;
GRANT EXECUTE ON FUNCTION interlock.index_ready(text, boolean) TO regress_filler;
SET ROLE regress_filler;
SELECT interlock.index_ready('newest');
SELECT interlock.create_index('i', '"Odd"."Orders"', '{}', 'order_id', 's0');
RESET ROLE;
CREATE ROLE regress_router;
SELECT interlock.grant_router('regress_router');
SET ROLE regress_router;
SELECT name, ready FROM interlock.indexes;
SELECT count(*) FROM interlock.global_index, interlock.dropped_index;
RESET ROLE;
DROP OWNED BY regress_filler, regress_router;
DROP ROLE regress_filler, regress_router;
