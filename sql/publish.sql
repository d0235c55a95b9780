-- publish(): the staged map becomes the next route version, or nothing changes.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.create_cluster('bank') IS NOT NULL AS created;

-- what is incomplete is refused, and says what is missing
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_shard('s0', 'host=a'), interlock.add_shard('s1', 'host=b');
SELECT interlock.publish();
SELECT interlock.create_keyspace('account', 'bigint', 16);
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('account', ARRAY[0,2,4,6,8,10,12,14], 's0'), interlock.assign('account', ARRAY[1,3,5,7,9,11,13], 's1');
SELECT interlock.publish();
SELECT interlock.assign('account', '{15}', 's1');
INSERT INTO interlock.assignment SELECT k.id, 16, s.id FROM interlock.keyspace k, interlock.shard s WHERE s.name = 's0';
SELECT interlock.publish();
DELETE FROM interlock.assignment WHERE bucket = 16;
UPDATE interlock.assignment SET shard = 99 WHERE bucket = 15;
SELECT interlock.publish();
SELECT interlock.assign('account', '{15}', 's1');

-- the first version
SELECT interlock.declarations_changed();
SELECT interlock.publish('first');
SELECT interlock.declarations_changed();
SELECT name, route_version FROM interlock.cluster;
SELECT version, published_by = session_user AS by_me, note, is_current FROM interlock.route_versions ORDER BY version;
SELECT shard, array_agg(bucket ORDER BY bucket) AS buckets, min(since_version) AS since FROM interlock.routes WHERE keyspace = 'account' GROUP BY shard ORDER BY shard;
SELECT * FROM interlock.shards ORDER BY name;

-- nothing changed: the same version
SELECT interlock.publish();
-- ... unless the caller names the version it means
SELECT interlock.publish(expected_version => 3);
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish(expected_version => 1);
SELECT interlock.publish(expected_version => 2);

-- declarations are part of a version: tables, columns, shards and how to reach them
SELECT interlock.declare_table('account', 'account', 'account_id');
SELECT interlock.declarations_changed(), interlock.publish();
INSERT INTO interlock.table_column SELECT id, 1, 'account_id', 'bigint'::regtype, 'bigint', true FROM interlock.sharded_table;
SELECT interlock.declarations_changed(), interlock.publish();
SELECT interlock.set_shard_conninfo('s1', 'host=c');
SELECT interlock.declarations_changed(), interlock.publish();
SELECT interlock.declarations_changed(), interlock.publish();
SELECT interlock.create_keyspace('word', 'text', 2), interlock.assign('word', '{0,1}', 's1');
SELECT interlock.publish('another keyspace');

-- a bucket that is served changes its shard only on purpose
SELECT interlock.assign('account', '{3}', 's0');
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish(allow_owner_change => NULL);
SELECT interlock.publish('handed over', 7, true);
SELECT bucket, shard, since_version FROM interlock.routes WHERE keyspace = 'account' AND bucket IN (2, 3, 5) ORDER BY bucket;
SELECT interlock.assign('account', '{3}', 's1');
SELECT interlock.publish('and back', allow_owner_change => true);

-- history: every version's map is complete and never changes
SELECT v.version, count(*) AS buckets, count(*) FILTER (WHERE s.name = 's0') AS on_s0
  FROM interlock.route_version v
  JOIN interlock.route r ON r.valid_from <= v.version AND (r.valid_to IS NULL OR r.valid_to > v.version)
  JOIN interlock.shard s ON s.id = r.shard
 GROUP BY v.version ORDER BY v.version;
SELECT bucket, shard.name AS shard, valid_from, valid_to FROM interlock.route JOIN interlock.shard ON shard.id = route.shard
  JOIN interlock.keyspace k ON k.id = route.keyspace WHERE k.name = 'account' AND bucket = 3 ORDER BY valid_from;

-- rolled back, nothing has happened
BEGIN;
SELECT interlock.publish(expected_version => 9);
ROLLBACK;
SELECT route_version FROM interlock.cluster;
-- what is published keeps its shard and keyspace
DELETE FROM interlock.shard WHERE name = 's1';
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.keyspace WHERE name = 'word';
\echo SQLSTATE :SQLSTATE
SELECT interlock.undeclare_table('account');
SELECT count(*) FROM interlock.table_column;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
