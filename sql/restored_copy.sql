-- A database that was restored, cloned or copied from a shard is not that shard until somebody says so.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1);
CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint);
SELECT interlock.shard_table('account', 'account', 'account_id');
INSERT INTO account VALUES (6, 1);
SELECT restored FROM interlock.greet(0);

-- as if the dump had been loaded into another server
UPDATE interlock.shard_identity SET system_identifier = 1;
SELECT shard, restored FROM interlock.greet(0);
SELECT * FROM account;
INSERT INTO account VALUES (8, 1);
\echo SQLSTATE :SQLSTATE
INSERT INTO account VALUES (5, 1);
\echo SQLSTATE :SQLSTATE
UPDATE account SET balance = 2;
\echo SQLSTATE :SQLSTATE
DELETE FROM account;
\echo SQLSTATE :SQLSTATE
COPY account FROM STDIN;
8	1
\.
SET interlock.allow_truncate = on;
TRUNCATE account;
\echo SQLSTATE :SQLSTATE
SELECT interlock.owns('account', 6), interlock.bucket_of('account', 6);
-- the operators' functions refuse as well
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{8}', 2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.release_buckets('account', '{7}', 's1', 2);
SELECT interlock.define_keyspace('other', 'bigint', 'splitmix64', 16);
SELECT interlock.shard_table('account', 'account', 'account_id');

-- declared to be the shard, it is one again
SELECT interlock.adopt_shard();
SELECT shard, restored FROM interlock.greet(0);
SELECT interlock.owns('account', 6);
UPDATE account SET balance = 2;
INSERT INTO account VALUES (5, 1);
\echo SQLSTATE :SQLSTATE

-- as if the database had been copied within the server (CREATE DATABASE ... TEMPLATE)
UPDATE interlock.shard_identity SET database_oid = 1;
SELECT shard, restored FROM interlock.greet(0);
UPDATE account SET balance = 3;
\echo SQLSTATE :SQLSTATE
SELECT interlock.adopt_shard();
UPDATE account SET balance = 3;

-- the guard without the state: a schema that was restored without the extension's rows
DELETE FROM interlock.shard_identity;
UPDATE account SET balance = 4;
\echo SQLSTATE :SQLSTATE
TRUNCATE interlock.bucket_state, interlock.guarded_table, interlock.local_keyspace;
UPDATE account SET balance = 4;
\echo SQLSTATE :SQLSTATE
DROP TABLE account;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
