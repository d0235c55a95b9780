-- An application role needs the usual privileges on its tables, and has no others.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE ROLE regress_owner;
CREATE ROLE regress_app;
GRANT CREATE ON SCHEMA public TO regress_owner;
SELECT interlock.create_cluster('bank') IS NOT NULL AS created;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1);
SET ROLE regress_owner;
CREATE TABLE account (account_id bigint NOT NULL, balance bigint) PARTITION BY RANGE (account_id);
CREATE TABLE account_1 PARTITION OF account FOR VALUES FROM (0) TO (1000);
GRANT SELECT, INSERT, UPDATE, DELETE ON account TO regress_app;
RESET ROLE;
SELECT interlock.shard_table('account', 'account', 'account_id');

SET ROLE regress_app;
INSERT INTO account VALUES (6, 1);
INSERT INTO account VALUES (5, 1);
\echo SQLSTATE :SQLSTATE
UPDATE account SET balance = 2;
COPY account FROM STDIN;
8	1
\.
DELETE FROM account WHERE account_id = 8;
SELECT interlock.bucket_of('account', 6), interlock.owns('account', 6), interlock.owns('account', 5), interlock.hash_key(6) IS NOT NULL AS hash;
SELECT shard, floor, restored FROM interlock.greet(1);
SELECT * FROM account;
SET interlock.allow_truncate = on;
TRUNCATE account;
RESET interlock.allow_truncate;
-- the tables and the operators' functions are closed
SELECT * FROM interlock.bucket_state;
SELECT * FROM interlock.bucket_states;
SELECT * FROM interlock.shard_identity;
SELECT * FROM interlock.shards;
SELECT conninfo FROM interlock.shard;
UPDATE interlock.bucket_state SET state = 'owned';
SELECT interlock.accept_buckets('account', '{8}', 1);
SELECT interlock.release_buckets('account', '{7}', 's1', 2);
SELECT interlock.shard_table('account', 'account', 'account_id');
SELECT interlock.unshard_table('account');
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.adopt_shard();
SELECT interlock.define_keyspace('k', 'bigint', 'splitmix64', 16);
SELECT * FROM interlock.misplaced('account');
SELECT * FROM interlock.bucket_rows('account');
SELECT * FROM interlock.check_guards();
SELECT interlock.publish();
SELECT interlock.assign('account', '{0}', 's0');
SELECT interlock.guard_child('account');
SELECT interlock.system_identifier();
CREATE TRIGGER t AFTER INSERT ON account FOR EACH ROW EXECUTE FUNCTION interlock.state_changed();
RESET ROLE;

-- whoever owns the table makes partitions, and they are guarded
SET ROLE regress_owner;
CREATE TABLE account_2 PARTITION OF account FOR VALUES FROM (1000) TO (2000);
CREATE TABLE account_3 (balance bigint, account_id bigint NOT NULL);
ALTER TABLE account ATTACH PARTITION account_3 FOR VALUES FROM (2000) TO (3000);
INSERT INTO account SELECT g, 0 FROM generate_series(1000, 1020) AS g;
\echo SQLSTATE :SQLSTATE
INSERT INTO account_3 SELECT 0, g FROM generate_series(2000, 2020) AS g;
\echo SQLSTATE :SQLSTATE
TRUNCATE account_2;
\echo SQLSTATE :SQLSTATE
SELECT current_user;
RESET ROLE;
SELECT * FROM interlock.check_guards();

-- a table in the way of a search path does not change what is guarded
CREATE SCHEMA regress_first AUTHORIZATION regress_owner;
SET ROLE regress_owner;
SET search_path = regress_first, public;
CREATE TABLE account_4 (account_id bigint NOT NULL, balance bigint);
CREATE TABLE public.account_4 (account_id bigint NOT NULL, balance bigint);
ALTER TABLE account ATTACH PARTITION account_4 FOR VALUES FROM (3000) TO (4000);
-- functions of the same names in front of the built-in ones do not change it either
CREATE FUNCTION regress_first.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS 'SELECT 1/0; SELECT $1';
SET search_path = regress_first, pg_catalog, public;
CREATE TABLE account_5 PARTITION OF account FOR VALUES FROM (4000) TO (5000);
RESET search_path;
RESET ROLE;
SELECT * FROM interlock.check_guards();
SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgrelid IN ('public.account_4'::regclass, 'regress_first.account_4'::regclass) ORDER BY 1, 2;
DROP TABLE account, public.account_4;
DROP SCHEMA regress_first CASCADE;
REVOKE CREATE ON SCHEMA public FROM regress_owner;
DROP ROLE regress_owner;
DROP ROLE regress_app;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
