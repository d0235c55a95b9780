-- Index databases: tables of entries, changes in any order and any number of times, tombstones, backfill, repair.
\set SHOW_CONTEXT never
SET timezone = 'UTC';
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE TYPE mood AS ENUM ('sad', 'happy');
\set columns '[{"name": "merchant_id", "type": "integer", "collation": null, "not_null": true}, {"name": "created_at", "type": "timestamp(3) with time zone", "collation": null, "not_null": true}, {"name": "Feeling", "type": "public.mood", "collation": null, "not_null": false}, {"name": "order_id", "type": "text", "collation": "pg_catalog.\\"C\\"", "not_null": true}, {"name": "user_id", "type": "bigint", "collation": null, "not_null": true}]'

-- definitions
SELECT interlock.index_define('merchant_orders', 'public.orders', :'columns', '{merchant_id}', 'created_at DESC, "Feeling" NULLS FIRST, order_id DESC, user_id', '{order_id,user_id}', 'user_id', 20);
\d interlock_index.merchant_orders
SELECT name, relid, table_name, scope, "order", key_columns, shard_key, default_page FROM interlock.local_index;
SELECT name, "table", scope, "order", max_page, default_page FROM interlock.keysets;
SELECT obj_description('interlock_index.merchant_orders'::regclass);
SELECT interlock.index_define('merchant_orders', 'public.orders', :'columns', '{merchant_id}', 'created_at DESC, "Feeling" NULLS FIRST, order_id DESC, user_id', '{order_id,user_id}', 'user_id', 20) AS again;
SELECT interlock.index_define('merchant_orders', 'public.orders', :'columns', '{merchant_id}', 'created_at DESC, "Feeling" NULLS FIRST, order_id DESC, user_id', '{order_id,user_id}', 'user_id', 30) AS other_page;
SELECT default_page FROM interlock.keysets;
SELECT interlock.index_define('merchant_orders', 'public.orders', :'columns', '{merchant_id}', 'created_at, order_id, user_id', '{order_id,user_id}', 'user_id', 30);
\echo SQLSTATE :SQLSTATE
SELECT interlock.index_define('Wrong', 'public.orders', :'columns', '{merchant_id}', 'order_id, user_id', '{order_id,user_id}', 'user_id');
SELECT interlock.index_define('wrong', 'public.orders', :'columns', '{shop}', 'order_id, user_id', '{order_id,user_id}', 'user_id');
SELECT interlock.index_define('wrong', 'public.orders', :'columns', '{merchant_id}', 'order_id', '{order_id}', 'user_id');
SELECT interlock.index_define('wrong', 'public.orders', NULL, '{merchant_id}', 'order_id', '{order_id}', 'user_id');
SELECT interlock.index_define('wrong', 'public.orders', '[{"name": "a", "type": "integer); DROP TABLE t; --", "not_null": true}]', '{}', 'a', '{a}', NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.index_define('wrong', 'public.orders', '[{"name": "a", "type": "public.nothing", "not_null": true}]', '{}', 'a', '{a}', NULL);
SELECT interlock.index_define('wrong', 'public.orders', '[{"name": "a", "type": "text", "collation": "public.\"none\"", "not_null": true}]', '{}', 'a', '{a}', NULL);
SELECT interlock.index_define('wrong', 'public.orders', '[{"name": "interlock_seq", "type": "integer", "not_null": true}]', '{}', 'interlock_seq', '{interlock_seq}', NULL);
SELECT interlock.index_define('wrong', 'public.orders', '[{"name": "a", "type": "integer", "not_null": true}, {"name": "a", "type": "text", "not_null": true}]', '{}', 'a', '{a}', NULL);
SELECT count(*) FROM interlock.local_index;

-- changes: the newest of a key wins, by (route version, sequence number), whatever the order they come in
CREATE FUNCTION pg_temp.change(s bigint, v integer, op text, id text, merchant integer, feeling text DEFAULT NULL) RETURNS jsonb
LANGUAGE sql AS $$
    SELECT jsonb_build_object('s', s, 'v', v, 'op', op, 'r', jsonb_build_object('merchant_id', merchant,
        'created_at', '2026-01-01T00:00:00.123456+00:00', 'Feeling', feeling, 'order_id', id, 'user_id', 1, 'ignored', true))
$$;
CREATE VIEW entries AS SELECT order_id AS id, merchant_id AS merchant, "Feeling", interlock_shard AS shard, interlock_route_version AS v,
    interlock_seq AS s, interlock_deleted AS deleted FROM interlock_index.merchant_orders ORDER BY order_id;
SELECT interlock.index_apply('merchant_orders', 's0', '[]');
SELECT interlock.index_join('merchant_orders', 's0'), interlock.index_join('merchant_orders', 's0'), interlock.index_join('merchant_orders', 's1');
SELECT interlock.index_apply('merchant_orders', 's0', '[]');
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(
    pg_temp.change(10, 1, 'I', 'a', 1), pg_temp.change(12, 1, 'U', 'a', 3, 'happy'), pg_temp.change(11, 1, 'U', 'a', 2), pg_temp.change(13, 1, 'I', 'b', 1)));
SELECT * FROM entries;
SELECT created_at FROM interlock_index.merchant_orders WHERE order_id = 'a';
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(12, 1, 'U', 'a', 9), pg_temp.change(11, 1, 'D', 'a', 9))) AS replayed;
SELECT interlock.index_apply('merchant_orders', 's1', jsonb_build_array(pg_temp.change(5, 2, 'U', 'a', 4))) AS moved_bucket;
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(99, 1, 'U', 'a', 9))) AS late;
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(20, 1, 'D', 'b', 1), pg_temp.change(21, 1, 'D', 'never', 1)));
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(19, 1, 'U', 'b', 9), pg_temp.change(18, 1, 'I', 'never', 9))) AS behind_tombstone;
SELECT * FROM entries;
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(22, 1, 'I', 'b', 5))) AS born_again;
SELECT * FROM entries;
-- a record that cannot be applied, and indexes that are not there
\set VERBOSITY terse
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(30, 1, 'I', 'c', 1), pg_temp.change(31, 1, 'I', 'd', NULL)));
\echo SQLSTATE :SQLSTATE
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(31, 1, 'I', 'd', 1, 'angry')));
\set VERBOSITY default
\echo SQLSTATE :SQLSTATE
SELECT interlock.index_apply('nothing', 's0', '[]');
\echo SQLSTATE :SQLSTATE

-- backfill: only where there is no entry, a tombstone included
SELECT interlock.index_fill('merchant_orders', 's2', jsonb_build_array(
    pg_temp.change(0, 0, '', 'z', 7) -> 'r', pg_temp.change(0, 0, '', 'a', 7) -> 'r', pg_temp.change(0, 0, '', 'never', 7) -> 'r'));
SELECT * FROM entries;
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(1, 0, 'D', 'z', 7))) AS any_change_is_newer;
SELECT position, rows, estimate, route_version, finished FROM interlock.index_backfill_begin('merchant_orders', 's0', 100, 3);
SELECT interlock.index_backfill_step('merchant_orders', 's0', jsonb_build_array(pg_temp.change(0, 0, '', 'y', 7) -> 'r'), '{"order_id": "y"}', NULL);
SELECT interlock.index_backfill_step('merchant_orders', 's0', '[]', NULL, '{"order_id": "x"}');
SELECT interlock.index_backfill_step('merchant_orders', 's0', '[]', NULL, NULL);
SELECT position, rows, estimate, route_version, finished FROM interlock.index_backfill_begin('merchant_orders', 's0', 200, 4);
SELECT interlock.index_backfill_step('merchant_orders', 's0', '[]', NULL, '{"order_id": "y"}');
SELECT interlock.index_backfill_end('merchant_orders');
SELECT position, rows, finished IS NOT NULL AS finished, complete FROM interlock.index_backfill;
SELECT position, rows, estimate, route_version, finished, complete FROM interlock.index_backfill_begin('merchant_orders', 's0', 200, 4, restart => true);
SELECT interlock.index_backfill_step('merchant_orders', 's1', '[]', NULL, NULL);
SELECT interlock.index_try_backfill('merchant_orders'), interlock.index_try_backfill('nothing');
SELECT interlock.index_try_backfill('merchant_orders');

-- repair: only what is still as it was seen; the version stays
SELECT interlock.index_mend('merchant_orders', 's3', jsonb_build_array(
    jsonb_build_object('v', 2, 's', 5, 'r', pg_temp.change(0, 0, '', 'a', 40) -> 'r'),
    jsonb_build_object('v', 1, 's', 20, 'r', pg_temp.change(0, 0, '', 'b', 41) -> 'r'),
    jsonb_build_object('v', 0, 's', 0, 'r', pg_temp.change(0, 0, '', 'y', 42) -> 'r', 'deleted', true),
    jsonb_build_object('r', pg_temp.change(0, 0, '', 'z', 43) -> 'r'),
    jsonb_build_object('r', pg_temp.change(0, 0, '', 'x', 44) -> 'r')));
SELECT * FROM entries;

-- tombstones go when nothing older can come any more: from no shard
SELECT count(*) FROM interlock_index.merchant_orders WHERE interlock_deleted;
SELECT interlock.index_purge('merchant_orders') AS not_known_yet;
SELECT interlock.index_report('merchant_orders', 's0', 'test', 7, clock_timestamp(), 40);
SELECT interlock.index_report('merchant_orders', 's0', 'test', 0, clock_timestamp(), 41);
SELECT shard, drained_through IS NOT NULL AS drained, last_seq, next_seq, records, consumer FROM interlock.index_progress ORDER BY shard;
SELECT interlock.index_purge('merchant_orders') AS other_shard_not_known;
SELECT interlock.index_report('merchant_orders', 's1', 'test', 0, clock_timestamp(), 1);
SELECT interlock.index_purge('merchant_orders') AS fence_not_passed;
SELECT interlock.index_report('merchant_orders', 's1', 'test', 0);
SELECT interlock.index_hold_tombstones('merchant_orders');
SELECT interlock.index_release_tombstones('merchant_orders'), interlock.index_release_tombstones('merchant_orders');
SELECT interlock.index_apply('merchant_orders', 's0', jsonb_build_array(pg_temp.change(50, 1, 'D', 'late', 1)));
SELECT interlock.index_join('merchant_orders', 'gone');
SELECT interlock.index_purge('merchant_orders') AS kept_for_a_shard_that_is_gone;
SELECT interlock.index_leave('merchant_orders', '{gone,never_there}');
SELECT interlock.index_leave('nothing', '{gone}');
SELECT interlock.index_purge('merchant_orders', 2) AS at_most_two;
SELECT interlock.index_purge('merchant_orders') AS rest;
SELECT * FROM entries;
-- a clock that is put back, and a time of another server, do not count
UPDATE interlock.index_progress SET drained_through = clock_timestamp() + interval '1 h' WHERE shard = 's0';
SELECT interlock.index_purge('merchant_orders') AS clock_put_back;
UPDATE interlock.index_progress SET drained_through = NULL, next_through = clock_timestamp(), next_fence = '99999999999'::xid8 WHERE shard = 's0';
SELECT interlock.index_report('merchant_orders', 's0', 'test', 0);
SELECT drained_through, next_through FROM interlock.index_progress WHERE shard = 's0';

-- an older change is not taken for finished while a transaction of before may still apply it: see tests/test_indexer.py

-- privileges
CREATE ROLE regress_indexer;
SET ROLE regress_indexer;
SELECT interlock.index_apply('merchant_orders', 's0', '[]');
RESET ROLE;
SELECT interlock.grant_indexer('regress_indexer');
SET ROLE regress_indexer;
SELECT interlock.index_apply('merchant_orders', 's0', '[]');
SELECT count(*) > 0 AS readable FROM interlock_index.merchant_orders;
DELETE FROM interlock_index.merchant_orders;
SELECT interlock.index_remove('merchant_orders');
RESET ROLE;
SELECT interlock.index_define('later', 'public.orders', :'columns', '{merchant_id}', 'order_id, user_id', '{order_id,user_id}', 'user_id');
SET ROLE regress_indexer;
SELECT count(*) FROM interlock_index.later;
RESET ROLE;

-- going
DROP TABLE interlock_index.later;
SELECT name FROM interlock.local_index;
SELECT name FROM interlock.keyset;
SELECT interlock.index_define('later', 'public.orders', :'columns', '{merchant_id}', 'order_id, user_id', '{order_id,user_id}', 'user_id') AS made_anew;
DROP VIEW entries;
SELECT interlock.index_remove('later'), interlock.index_remove('merchant_orders'), interlock.index_remove('merchant_orders');
SELECT count(*) FROM interlock.index_progress;
SELECT to_regclass('interlock_index.merchant_orders');
DROP OWNED BY regress_indexer;
DROP ROLE regress_indexer;
DROP TYPE mood;
DROP EXTENSION interlock;
DROP SCHEMA interlock_index;
CREATE EXTENSION interlock;
