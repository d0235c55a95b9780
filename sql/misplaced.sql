-- Looking for rows that this shard does not own, and counting rows by bucket.
-- Of 16 buckets this shard owns 0 to 7; 13 has moved, 14 is fenced (still this shard's), 15 is being imported.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1);
INSERT INTO interlock.bucket_state VALUES ('account', 13, 'moved', 's1', 2), ('account', 14, 'fenced', 's1', 3), ('account', 15, 'importing', 's2', 4);
CREATE TABLE account (account_id bigint NOT NULL, note text) PARTITION BY RANGE (account_id);
CREATE TABLE account_low PARTITION OF account FOR VALUES FROM (0) TO (10);
CREATE TABLE account_high PARTITION OF account FOR VALUES FROM (10) TO (1000);
SELECT * FROM interlock.misplaced('account');
\echo SQLSTATE :SQLSTATE
SELECT interlock.shard_table('account', 'account', 'account_id');
SELECT * FROM interlock.misplaced('account');
INSERT INTO account SELECT g FROM generate_series(0, 40) AS g WHERE interlock.owns('account', g);
SELECT * FROM interlock.misplaced('account');

-- rows that got in while the guard was off
ALTER TABLE account_low DISABLE TRIGGER "~interlock_insert";
ALTER TABLE account_high DISABLE TRIGGER "~interlock_insert";
INSERT INTO account SELECT g FROM generate_series(0, 14) AS g WHERE NOT interlock.owns('account', g);
SELECT tableoid, key, bucket, state, owner FROM interlock.misplaced('account') ORDER BY key::bigint;
SELECT count(*) FROM interlock.misplaced('account', 2);
SELECT count(*) FROM interlock.misplaced('account', 0);
SELECT key FROM interlock.misplaced('account_high') ORDER BY key::bigint;
-- the row can be found by what is reported
SELECT a.* FROM interlock.misplaced('account') AS m JOIN account AS a ON a.tableoid = m.tableoid AND a.ctid = m.ctid WHERE m.key = '3';
SELECT * FROM interlock.misplaced('interlock.shard');
SELECT * FROM interlock.misplaced(NULL);

SELECT * FROM interlock.bucket_rows('account');
SELECT * FROM interlock.bucket_rows('account', '{0,13,12}');
SELECT * FROM interlock.bucket_rows('account', '{}');
SELECT * FROM interlock.bucket_rows('account', '{16}');
SELECT * FROM interlock.bucket_rows('nowhere');

-- a second table of the keyspace, with a text column in front
CREATE TABLE entry (note text, account_id int NOT NULL);
SELECT interlock.shard_table('entry', 'account', 'account_id');
INSERT INTO entry VALUES ('x', 6), ('y', 6);
SELECT * FROM interlock.bucket_rows('account', '{0}') ORDER BY relation::text;
DROP TABLE account, entry;
SELECT * FROM interlock.bucket_rows('account', '{0}');
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
