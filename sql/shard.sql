-- The shard's own tables: identity, keyspaces, bucket states.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;

-- before the database is a shard
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{0}', 1);
SELECT interlock.release_buckets('account', '{0}', 's1', 1);
SELECT interlock.adopt_shard();
\echo SQLSTATE :SQLSTATE

-- identity
SELECT interlock.set_identity(NULL, 's0');
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 'Not A Name');
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000002', 's0');
SELECT cluster_id, shard_name, floor, system_identifier = interlock.system_identifier() AS this_server,
       database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()) AS this_database
  FROM interlock.shard_identity;
INSERT INTO interlock.shard_identity SELECT * FROM interlock.shard_identity;
SELECT cluster_id, shard, floor, restored, catalog_first, extension_version,
       system_identifier = interlock.system_identifier() AS this_server, timeline > 0 AS has_timeline
  FROM interlock.greet(7);
SHOW interlock.route_version;
SET search_path = public, pg_catalog;
SELECT catalog_first FROM interlock.greet(0);
SET search_path = pg_catalog, public;
SELECT catalog_first FROM interlock.greet(0);
RESET search_path;

-- keyspaces
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 32);
\echo SQLSTATE :SQLSTATE
SELECT interlock.define_keyspace('account', 'text', 'xxh3_64', 16);
SELECT interlock.define_keyspace('bad', 'bigint', 'xxh3_64', 16);
SELECT interlock.define_keyspace('bad', 'numeric', 'xxh3_64', 16);
UPDATE interlock.local_keyspace SET buckets = 32;
\echo SQLSTATE :SQLSTATE

-- bucket states
SELECT interlock.accept_buckets('account', '{0,1,2,3}', 1);
SELECT interlock.accept_buckets('account', '{2,3,4,4}', 2);
SELECT * FROM interlock.bucket_states ORDER BY bucket;
SELECT interlock.accept_buckets('account', '{16}', 2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{NULL}', 2);
SELECT interlock.accept_buckets('account', NULL, 2);
SELECT interlock.accept_buckets('nowhere', '{0}', 2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{0}', NULL);
SELECT interlock.accept_buckets('account', '{0}', -1);
SELECT interlock.owns('account', 6) AS bucket_0, interlock.owns('account', 3) AS bucket_13;
INSERT INTO interlock.bucket_state VALUES ('account', 5, 'fenced', 's1', 2, now() + interval '1 hour'), ('account', 6, 'importing', 's1', 2, NULL);
SELECT interlock.accept_buckets('account', '{4,5}', 3);
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{6}', 3);
SELECT interlock.owns('account', 15) AS fenced, interlock.owns('account', 8) AS importing;
INSERT INTO interlock.bucket_state VALUES ('account', 7, 'nonsense', NULL, 2);
INSERT INTO interlock.bucket_state VALUES ('account', 7, 'moved', NULL, 2);
INSERT INTO interlock.bucket_state VALUES ('account', -7, 'owned', NULL, 2);

-- the session's own changes count at once, and are undone with their (sub)transaction
BEGIN;
UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 0;
SELECT interlock.owns('account', 6) AS moved;
SAVEPOINT s;
UPDATE interlock.bucket_state SET state = 'owned' WHERE bucket = 0;
SELECT interlock.owns('account', 6) AS owned;
ROLLBACK TO s;
SELECT interlock.owns('account', 6) AS moved_again;
DELETE FROM interlock.bucket_state;
SELECT interlock.owns('account', 6) AS gone;
ROLLBACK;
SELECT interlock.owns('account', 6) AS owned_again;
BEGIN;
TRUNCATE interlock.bucket_state;
SELECT interlock.owns('account', 6) AS truncated;
ROLLBACK;
BEGIN;
COPY interlock.bucket_state (keyspace, bucket, state) FROM STDIN;
account	13	owned
\.
SELECT interlock.owns('account', 3) AS copied;
ROLLBACK;
SELECT interlock.owns('account', 3) AS not_copied;
SET session_replication_role = replica;
UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 0;
SELECT interlock.owns('account', 6) AS moved_as_replica;
UPDATE interlock.bucket_state SET state = 'owned' WHERE bucket = 0;
RESET session_replication_role;
SELECT interlock.owns('account', 6) AS and_back;

-- all buckets of the largest keyspace
SELECT interlock.define_keyspace('large', 'text', 'xxh3_64', 65536);
SELECT interlock.accept_buckets('large', array(SELECT generate_series(0, 65535)), 1);
SELECT count(*) FILTER (WHERE interlock.owns('large', g::text)) FROM generate_series(1, 1000) AS g;
SELECT interlock.release_buckets('large', array(SELECT generate_series(1, 65535)), 's1', 2);
SELECT count(*) FILTER (WHERE interlock.owns('large', g::text)) AS "one bucket's share" FROM generate_series(1, 100000) AS g;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
