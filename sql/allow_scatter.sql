-- Which tables statements on all shards may read without a hint.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.create_cluster('all') IS NOT NULL AS created;
SELECT interlock.add_shard('s0', 'host=s0');
SELECT interlock.create_keyspace('main', 'bigint', 1);
SELECT interlock.assign('main', ARRAY[0], 's0');
SELECT interlock.declare_table('orders', 'main', 'user_id');
SELECT interlock.publish();
SELECT table_name, scatter FROM interlock.sharded_table;

SELECT interlock.allow_scatter('orders', false);
SELECT interlock.declarations_changed();
SELECT interlock.allow_scatter('public.orders');
SELECT interlock.allow_scatter('orders', true);
SELECT interlock.declarations_changed();
SELECT interlock.publish();
-- declared again it stays allowed
SELECT interlock.declare_table('orders', 'main', 'user_id');
SELECT d ->> 'table_name' AS table_name, d -> 'scatter' AS scatter
  FROM interlock.route_version v, jsonb_array_elements(v.declarations -> 'tables') d ORDER BY v.version;
SELECT interlock.allow_scatter('orders', false);
SELECT table_name, scatter FROM interlock.sharded_table;

SELECT interlock.allow_scatter('nobody');
\echo SQLSTATE :SQLSTATE
SELECT interlock.allow_scatter('orders', NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.allow_scatter(NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.allow_scatter('a.b.c');
\echo SQLSTATE :SQLSTATE
SELECT has_function_privilege('public', 'interlock.allow_scatter(text, boolean)', 'EXECUTE');
