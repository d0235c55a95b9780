-- Editing the catalog: each function and its errors. Publishing has a file of its own.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;

-- nothing works before there is a cluster
SELECT interlock.add_shard('s0', 'host=a');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_keyspace('account', 'bigint', 16);
SELECT interlock.declare_table('account', 'account', 'account_id');
SELECT interlock.assign('account', '{0}', 's0');
SELECT interlock.publish();

SELECT interlock.create_cluster('');
SELECT interlock.create_cluster(NULL);
SELECT interlock.create_cluster('bank') IS NOT NULL AS created;
SELECT interlock.create_cluster('bank');
\echo SQLSTATE :SQLSTATE
SELECT name, route_version FROM interlock.cluster;
INSERT INTO interlock.cluster (id, name) VALUES (gen_random_uuid(), 'second');

-- shards
SELECT interlock.add_shard('s0', 'host=a');
SELECT interlock.add_shard('s0', 'host=a');
SELECT interlock.add_shard('s0', 'host=b');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_shard('S0', 'host=b');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_shard('', 'host=b');
SELECT interlock.add_shard(repeat('x', 64), 'host=b');
SELECT interlock.add_shard(NULL, 'host=b');
SELECT interlock.add_shard('s1', NULL);
SELECT interlock.add_shard('s1', 'host=b');
SELECT interlock.set_shard_conninfo('s1', 'host=c');
SELECT interlock.set_shard_conninfo('s9', 'host=c');
\echo SQLSTATE :SQLSTATE
SELECT interlock.set_shard_conninfo('s1', NULL);
SELECT * FROM interlock.shards ORDER BY name;

-- keyspaces: any spelling of a key type, the hash follows from it
SELECT interlock.create_keyspace('account', 'int', 16);
SELECT interlock.create_keyspace('account', 'bigint', 16, 'splitmix64');
SELECT interlock.create_keyspace('account', 'bigint', 32);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_keyspace('account', 'uuid', 16);
SELECT interlock.create_keyspace('k1', t, 4) FROM unnest(ARRAY['smallint', 'int2', 'int4', 'int8', 'integer', 'BigInt']) AS t;
SELECT interlock.create_keyspace('k2', t, 4) FROM unnest(ARRAY['varchar', 'character varying(20)', 'text']) AS t;
SELECT interlock.create_keyspace('k3', 'uuid', 65536), interlock.create_keyspace('k4', 'bytea', 1, 'xxh3_64');
SELECT name, key_type, hash, buckets FROM interlock.keyspace ORDER BY name;
SELECT interlock.create_keyspace('bad', 'numeric', 4);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_keyspace('bad', 'no such type', 4);
SELECT interlock.create_keyspace('bad', 'nosuchtype', 4);
SELECT interlock.create_keyspace('bad', NULL, 4);
SELECT interlock.create_keyspace('bad', 'bigint', 4, 'xxh3_64');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_keyspace('bad', 'bigint', 0);
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_keyspace('bad', 'bigint', 65537);
SELECT interlock.create_keyspace('bad', 'bigint', NULL);
SELECT interlock.create_keyspace('', 'bigint', 4);

-- they cannot be changed behind the functions' back either
UPDATE interlock.keyspace SET buckets = 32 WHERE name = 'account';
\echo SQLSTATE :SQLSTATE
UPDATE interlock.keyspace SET hash = 'xxh3_64' WHERE name = 'account';
UPDATE interlock.keyspace SET name = 'renamed' WHERE name = 'account';
SET session_replication_role = replica;
UPDATE interlock.keyspace SET buckets = 32 WHERE name = 'account';
RESET session_replication_role;
INSERT INTO interlock.keyspace (name, key_type, hash, buckets) VALUES ('bad', 'bigint', 'md5', 4);

-- tables
SELECT interlock.declare_table('account', 'account', 'account_id', 'version');
SELECT interlock.declare_table('public.account', 'account', 'account_id', 'version');
SELECT interlock.declare_table('Account', 'account', 'account_id', 'revision');
SELECT interlock.declare_table('account', 'account', 'account_id');
SELECT interlock.declare_table('"Odd Schema"."Odd ""Table"""', 'account', 'Key');
SELECT schema_name, table_name, key_column, version_column FROM interlock.sharded_table ORDER BY schema_name COLLATE "C", table_name COLLATE "C";
SELECT interlock.declare_table('account', 'account', 'other');
\echo SQLSTATE :SQLSTATE
SELECT interlock.declare_table('account', 'k2', 'account_id');
SELECT interlock.declare_table('t', 'nowhere', 'k');
\echo SQLSTATE :SQLSTATE
SELECT interlock.declare_table('a.b.c', 'account', 'k');
\echo SQLSTATE :SQLSTATE
SELECT interlock.declare_table('a b', 'account', 'k');
SELECT interlock.declare_table(NULL, 'account', 'k');
SELECT interlock.declare_table('t', 'account', NULL);
SELECT interlock.declare_table('t', 'account', 'k', 'k');
SELECT interlock.undeclare_table('"Odd Schema"."Odd ""Table"""');
SELECT interlock.undeclare_table('"Odd Schema"."Odd ""Table"""');
\echo SQLSTATE :SQLSTATE

-- a keyspace that tables use stays
DELETE FROM interlock.keyspace WHERE name = 'account';
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.keyspace WHERE name = 'k4';

-- assignment
SELECT interlock.assign('account', '{0,1,2}', 's0');
SELECT interlock.assign('account', '{2,2,3}', 's0');
SELECT interlock.assign('account', '{3}', 's1');
SELECT interlock.assign('account', '{3}', 's1');
SELECT interlock.assign('account', '{}', 's1');
SELECT bucket, name FROM interlock.assignment JOIN interlock.shard ON shard.id = assignment.shard ORDER BY bucket;
SELECT interlock.assign('account', '{16}', 's0');
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('account', '{-1}', 's0');
SELECT interlock.assign('account', '{0,NULL}', 's0');
SELECT interlock.assign('account', NULL, 's0');
SELECT interlock.assign('account', '{0}', 's9');
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('nowhere', '{0}', 's0');
SELECT interlock.assign(NULL, '{0}', 's0');

-- the router's login
CREATE ROLE regress_router;
SELECT has_table_privilege('regress_router', 'interlock.shard', 'SELECT') AS before;
SELECT interlock.grant_router('regress_router');
SET ROLE regress_router;
SELECT count(*) FROM interlock.shards;
SELECT count(*) FROM interlock.routes;
SELECT count(*) FROM interlock.route_versions;
SELECT count(*) FROM interlock.cluster, interlock.shard, interlock.keyspace, interlock.sharded_table, interlock.route WHERE false;
SELECT count(*) FROM interlock.table_column;
DELETE FROM interlock.shard;
SELECT interlock.assign('account', '{3}', 's0');
RESET ROLE;
SELECT interlock.grant_router(NULL);
SELECT interlock.grant_router('regress_nobody');
DROP EXTENSION interlock;
DROP ROLE regress_router;
CREATE EXTENSION interlock;
