-- Giving empty buckets away, and taking them back.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1);
CREATE TABLE account (account_id bigint PRIMARY KEY);
CREATE TABLE entry (account_id bigint NOT NULL);
SELECT interlock.shard_table('account', 'account', 'account_id'), interlock.shard_table('entry', 'account', 'account_id');
INSERT INTO account VALUES (6), (8);
INSERT INTO entry VALUES (6), (6), (9);

-- not while they have rows, in whatever table
SELECT interlock.release_buckets('account', '{1,0}', 's1', 2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.release_buckets('account', '{4}', 's1', 2);
SELECT bucket, state FROM interlock.bucket_states WHERE state <> 'owned';
SELECT floor FROM interlock.shard_identity;
-- empty ones go, all of them or none
SELECT interlock.release_buckets('account', '{1,2,3}', 's1', 2);
SELECT * FROM interlock.bucket_states WHERE state <> 'owned' ORDER BY bucket;
SELECT floor FROM interlock.shard_identity;
INSERT INTO account VALUES (18);
\echo SQLSTATE :SQLSTATE
-- again: the same; to another shard or at a newer version: the newest news
SELECT interlock.release_buckets('account', '{1,2,3}', 's1', 2);
SELECT interlock.release_buckets('account', '{3}', 's2', 4);
SELECT interlock.release_buckets('account', '{3}', 's2', 3);
-- a bucket that this shard never had
SELECT interlock.release_buckets('account', '{12}', 's1', 4);
SELECT * FROM interlock.bucket_states WHERE state <> 'owned' ORDER BY bucket;
SELECT floor FROM interlock.shard_identity;

-- back again, but not under an older version than the one it left under
SELECT interlock.accept_buckets('account', '{3}', 3);
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{2,3}', 5);
INSERT INTO account VALUES (18);
SELECT * FROM interlock.bucket_states WHERE bucket IN (1, 2, 3) ORDER BY bucket;

-- errors
SELECT interlock.release_buckets('account', '{5}', 's0', 6);
\echo SQLSTATE :SQLSTATE
SELECT interlock.release_buckets('account', '{5}', NULL, 6);
SELECT interlock.release_buckets('account', '{5}', 's1', NULL);
SELECT interlock.release_buckets('account', '{5}', 's1', 0);
SELECT interlock.release_buckets('account', '{16}', 's1', 6);
\echo SQLSTATE :SQLSTATE
SELECT interlock.release_buckets('account', '{NULL}', 's1', 6);
SELECT interlock.release_buckets('nowhere', '{5}', 's1', 6);
\echo SQLSTATE :SQLSTATE
UPDATE interlock.bucket_state SET state = 'fenced', peer = 's1' WHERE bucket = 5;
UPDATE interlock.bucket_state SET state = 'importing', peer = 's1' WHERE bucket = 7;
SELECT interlock.release_buckets('account', '{5}', 's1', 6);
\echo SQLSTATE :SQLSTATE
SELECT interlock.release_buckets('account', '{7}', 's1', 6);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT interlock.release_buckets('account', '{3}', 's1', 6);
\echo SQLSTATE :SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT interlock.release_buckets('account', '{3}', 's1', 6);
ROLLBACK;
SELECT floor FROM interlock.shard_identity;

-- the floor can be raised by itself, and is never lowered
SELECT interlock.raise_floor(20), interlock.raise_floor(3);
SELECT floor FROM interlock.shard_identity;
SET interlock.route_version = 19;
SELECT * FROM account;
\echo SQLSTATE :SQLSTATE
RESET interlock.route_version;
SELECT interlock.raise_floor(NULL);
SELECT interlock.raise_floor(-1);
\echo SQLSTATE :SQLSTATE
UPDATE interlock.shard_identity SET system_identifier = 1;
SELECT interlock.raise_floor(21);
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.shard_identity;
SELECT interlock.raise_floor(21);
\echo SQLSTATE :SQLSTATE
DROP TABLE account, entry;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
