-- The route version: a session that works under routes older than the floor cannot use sharded tables.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', array(SELECT generate_series(0, 15)), 1);
CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint);
SELECT interlock.shard_table('account', 'account', 'account_id');
CREATE TABLE entry (account_id bigint NOT NULL, region int NOT NULL) PARTITION BY LIST (region);
CREATE TABLE entry_1 PARTITION OF entry FOR VALUES IN (1);
SELECT interlock.shard_table('entry', 'account', 'account_id');
CREATE TABLE parent (account_id bigint NOT NULL);
CREATE TABLE child () INHERITS (parent);
SELECT interlock.shard_table('parent', 'account', 'account_id');
CREATE TABLE reference (code text);
INSERT INTO account VALUES (1, 100), (2, 100);
CREATE VIEW wealth AS SELECT sum(balance) AS total FROM account;
CREATE FUNCTION balance_of(k bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT balance FROM account WHERE account_id = k); END';
PREPARE get(bigint) AS SELECT * FROM account WHERE account_id = $1;
SET plan_cache_mode = force_generic_plan;

-- at version 4: nothing has been given away yet
SELECT shard, floor FROM interlock.greet(4);
EXECUTE get(1);
BEGIN;
DECLARE earlier CURSOR FOR SELECT * FROM account ORDER BY account_id;
FETCH 1 FROM earlier;
COMMIT;

-- the shard gives a bucket away at version 5
SELECT interlock.release_buckets('account', '{8}', 's1', 5);
SELECT floor FROM interlock.greet(4);
SELECT * FROM account;
\echo SQLSTATE :SQLSTATE
SELECT 1 FROM reference, account;
\echo SQLSTATE :SQLSTATE
SELECT EXISTS (SELECT FROM account);
SELECT * FROM reference WHERE code IN (SELECT balance::text FROM account);
-- no row would have been touched: refused all the same, never "UPDATE 0"
UPDATE account SET balance = 0 WHERE account_id = 4711;
\echo SQLSTATE :SQLSTATE
DELETE FROM account WHERE account_id = 4711;
UPDATE account SET balance = 0 WHERE false;
INSERT INTO account VALUES (3, 1);
INSERT INTO account SELECT 3, 1 WHERE false;
MERGE INTO account a USING reference r ON false WHEN NOT MATCHED THEN DO NOTHING;
WITH w AS (DELETE FROM account RETURNING *) SELECT count(*) FROM w;
SELECT * FROM account FOR UPDATE;
TABLE account;
-- prepared before, in a cursor, in a view, in a function, explained, copied, truncated, as a new table
EXECUTE get(1);
\echo SQLSTATE :SQLSTATE
BEGIN;
DECLARE late CURSOR FOR SELECT * FROM account;
\echo SQLSTATE :SQLSTATE
ROLLBACK;
SELECT * FROM wealth;
SELECT balance_of(1);
EXPLAIN (COSTS OFF) SELECT * FROM account;
CREATE TABLE copied AS SELECT * FROM account;
COPY account TO STDOUT;
\echo SQLSTATE :SQLSTATE
COPY (SELECT * FROM account) TO STDOUT;
\echo SQLSTATE :SQLSTATE
COPY account FROM STDIN;
\.
\echo SQLSTATE :SQLSTATE
SET interlock.allow_truncate = on;
TRUNCATE account;
\echo SQLSTATE :SQLSTATE
TRUNCATE reference, account;
-- partitions and children, directly too
SELECT * FROM entry;
SELECT * FROM entry_1;
\echo SQLSTATE :SQLSTATE
COPY entry_1 TO STDOUT;
\echo SQLSTATE :SQLSTATE
SELECT * FROM parent;
SELECT * FROM ONLY parent;
SELECT * FROM child;
\echo SQLSTATE :SQLSTATE
TRUNCATE child;
\echo SQLSTATE :SQLSTATE
-- a table that is not sharded is nobody's business
SELECT * FROM reference;
INSERT INTO reference VALUES ('EUR');
COPY reference TO STDOUT;
TRUNCATE reference;
SELECT interlock.bucket_of('account', 1);

-- in a transaction that had begun before, and after an error in it
BEGIN;
SET LOCAL interlock.route_version = 5;
SELECT count(*) FROM account;
SAVEPOINT s;
SET LOCAL interlock.route_version = 4;
SELECT count(*) FROM account;
ROLLBACK TO s;
SELECT count(*) FROM account;
COMMIT;

-- new routes: at the floor, above it, and not routed at all
SELECT floor FROM interlock.greet(5);
SELECT * FROM account ORDER BY account_id;
EXECUTE get(1);
SELECT floor FROM interlock.greet(6);
UPDATE account SET balance = 0 WHERE account_id = 4711;
COPY account TO STDOUT;
RESET interlock.route_version;
SELECT * FROM wealth;

-- the floor only ever rises
SELECT interlock.release_buckets('account', '{9}', 's1', 3);
SELECT floor FROM interlock.shard_identity;
-- rolled back, it has not risen
BEGIN;
SELECT interlock.release_buckets('account', '{9}', 's1', 9);
SELECT floor FROM interlock.greet(6);
SELECT count(*) FROM account;
\echo SQLSTATE :SQLSTATE
ROLLBACK;
SELECT floor FROM interlock.greet(6);
SELECT count(*) FROM account;

-- a table that is no longer sharded
SELECT interlock.unshard_table('account');
SELECT floor FROM interlock.greet(1);
SELECT count(*) FROM account;
RESET interlock.route_version;
DROP TABLE account, entry, parent, reference CASCADE;
DROP FUNCTION balance_of;
DEALLOCATE get;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
