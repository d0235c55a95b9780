-- Handing buckets over, one session: every step, every refusal, each of them twice.
-- Keys by bucket (of 16): 6, 29 in 0; 1 in 1; 18, 40 in 2; 12 in 3; 33 in 8.
\set SHOW_CONTEXT never
\set m1 '\'00000000-0000-0000-0000-0000000000a1\''
\set m2 '\'00000000-0000-0000-0000-0000000000a2\''
\set m3 '\'00000000-0000-0000-0000-0000000000a3\''
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.define_keyspace('other', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1), interlock.accept_buckets('other', '{0}', 1);
CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint);
CREATE TABLE entry (account_id bigint NOT NULL, n int NOT NULL, note text) PARTITION BY RANGE (n);
CREATE TABLE entry_0 PARTITION OF entry FOR VALUES FROM (0) TO (10);
CREATE TABLE elsewhere (id bigint PRIMARY KEY);
SELECT interlock.shard_table('account', 'account', 'account_id'), interlock.shard_table('entry', 'account', 'account_id'),
       interlock.shard_table('elsewhere', 'other', 'id');
INSERT INTO account VALUES (6, 100), (29, 50), (1, 10), (18, 20);
INSERT INTO entry VALUES (6, 1, 'a'), (6, 2, NULL);
CREATE VIEW state AS SELECT bucket, state, peer, route_version AS rv, until IS NOT NULL AS dated, move_id IS NOT NULL AS by_a_move
  FROM interlock.bucket_state WHERE keyspace = 'account' AND bucket IN (0, 1, 2) ORDER BY bucket;

-- what a move must name; it begins before it fences
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '10 s');
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{0}', 's0', :m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{}', 's1', :m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{16}', 's1', :m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('nothing', '{0}', 's1', :m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{0}', NULL, :m1);
SELECT interlock.begin_export('account', '{0}', 's1', NULL);
SELECT interlock.begin_export('account', '{0,8}', 's1', :m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.unfence_buckets(:m1);
\echo SQLSTATE :SQLSTATE

-- the move begins: rows are written as before, tables stay as they are
SELECT interlock.begin_export('account', '{1,0,1}', 's1', :m1);
SELECT interlock.begin_export('account', '{0,1}', 's1', :m1);
SELECT interlock.begin_export('account', '{0}', 's1', :m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{1,2}', 's2', :m2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.release_buckets('account', '{1}', 's2', 2);
SELECT keyspace, buckets, role, peer, state, route_version, waited, expired FROM interlock.handoffs;
UPDATE account SET balance = balance + 1 WHERE account_id = 6;
SELECT interlock.on_the_move();
SET interlock.allow_truncate = on;
TRUNCATE account;
\echo SQLSTATE :SQLSTATE
TRUNCATE entry_0;
\echo SQLSTATE :SQLSTATE
RESET interlock.allow_truncate;
ALTER TABLE account ADD COLUMN x int;
\echo SQLSTATE :SQLSTATE
ALTER TABLE entry_0 ALTER COLUMN note SET DEFAULT 'x';
ALTER TABLE account RENAME TO accounts;
ALTER TABLE account REPLICA IDENTITY FULL;
CREATE INDEX ON account (balance);
CREATE INDEX ON entry_0 (note);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER t AFTER INSERT ON account FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE RULE r AS ON DELETE TO account DO ALSO NOTHING;
CREATE POLICY p ON account;
CREATE TABLE entry_1 PARTITION OF entry FOR VALUES FROM (10) TO (20);
CREATE TABLE child () INHERITS (account);
ALTER TABLE entry DETACH PARTITION entry_0;
DROP TABLE account;
\echo SQLSTATE :SQLSTATE
DROP TABLE entry_0;
DROP TABLE entry;
ALTER TABLE account DROP COLUMN balance;
SELECT interlock.unshard_table('account');
\echo SQLSTATE :SQLSTATE
-- what does not touch them goes on
COMMENT ON TABLE account IS 'accounts';
GRANT SELECT ON account TO PUBLIC;
ANALYZE account;
ALTER TABLE elsewhere ADD COLUMN x int;
CREATE TABLE plain (a int);
DROP TABLE plain;
CREATE TEMP TABLE scratch AS SELECT 1 AS a;
DROP TABLE scratch;

-- fence
SELECT interlock.write_marker(:m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.decide_handoff(:m1);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.wait_for_writers('account', :m1, '1 s');
\echo SQLSTATE :SQLSTATE
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 1, '10 s');
\echo SQLSTATE :SQLSTATE
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '0');
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '2 hours');
SELECT interlock.fence_buckets('account', '{0,1}', 's2', :m1, 2, '10 s');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '10 min');
\echo SQLSTATE :SQLSTATE
ROLLBACK;
BEGIN;
SET LOCAL synchronous_commit = off;
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '10 min') > now() AS fenced;
SHOW synchronous_commit;
SELECT * FROM interlock.wait_for_writers('account', :m1, '1 s');
\echo SQLSTATE :SQLSTATE
ROLLBACK;
SELECT * FROM state;
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '10 min') AS deadline \gset
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 2, '20 min') = :'deadline' AS same_deadline;
SELECT * FROM state;
\set VERBOSITY terse
INSERT INTO account VALUES (38, 1);
UPDATE account SET balance = 0 WHERE account_id = 1;
DELETE FROM account WHERE account_id = 6;
\set VERBOSITY default
UPDATE account SET balance = 21 WHERE account_id = 18;
SELECT count(*) FROM account;
SELECT interlock.write_marker(:m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.accept_buckets('account', '{0}', 5);

-- opened again: as if nothing had been
SELECT interlock.unfence_buckets(:m1), interlock.unfence_buckets(:m1);
SELECT * FROM state;
UPDATE account SET balance = 100 WHERE account_id = 6;

-- and fenced again, waited for, marked
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 3, '10 min') > now() AS fenced;
SELECT * FROM interlock.wait_for_writers('account', :m1, '10 s');
SELECT * FROM interlock.wait_for_writers('account', :m1, '10 s', true);
SELECT * FROM interlock.wait_for_writers('other', :m1, '1 s');
SELECT * FROM interlock.wait_for_writers('account', :m1, NULL);
SELECT interlock.decide_handoff(:m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.write_marker(:m1), interlock.write_marker(:m1);
SELECT move_id, fence, length(token_hash) FROM interlock.move_marker;
SELECT interlock.expire_fences();

-- decided: no way back
BEGIN;
SET LOCAL synchronous_commit = off;
SELECT interlock.decide_handoff(:m1) AS token \gset
SHOW synchronous_commit;
COMMIT;
SELECT interlock.decide_handoff(:m1) = :'token' AS same_token;
SELECT * FROM state;
SELECT floor FROM interlock.shard_identity;
SELECT interlock.unfence_buckets(:m1), interlock.expire_fences(), interlock.write_marker(:m1);
SELECT interlock.abort_export(:m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.fence_buckets('account', '{0,1}', 's1', :m1, 4, '10 s');
\echo SQLSTATE :SQLSTATE
SELECT interlock.activate_import(:m1, 3, :'token');
\echo SQLSTATE :SQLSTATE
INSERT INTO account VALUES (38, 1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.on_the_move();
CREATE INDEX balances ON account (balance);
DROP INDEX balances;

-- what is left here is removed by the mover only, and only removed
DELETE FROM account WHERE account_id = 1;
\echo SQLSTATE :SQLSTATE
SET interlock.moving_rows = on;
DELETE FROM account WHERE account_id = 1;
INSERT INTO account VALUES (38, 1);
\echo SQLSTATE :SQLSTATE
UPDATE account SET balance = 5 WHERE account_id = 6;
\echo SQLSTATE :SQLSTATE
RESET interlock.moving_rows;

-- back again: not before the leftovers are gone
SELECT interlock.begin_import('account', '{0}', 's1', :m2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_import('account', '{2}', 's1', :m2);
\echo SQLSTATE :SQLSTATE
SET interlock.moving_rows = on;
DELETE FROM account WHERE interlock.bucket_of('account', account_id) IN (0, 1);
DELETE FROM entry WHERE interlock.bucket_of('account', account_id) IN (0, 1);
SELECT interlock.begin_import('account', '{0}', 's1', :m2), interlock.begin_import('account', '{0}', 's1', :m2);
SELECT * FROM state;
INSERT INTO account VALUES (29, 7);
RESET interlock.moving_rows;
INSERT INTO account VALUES (6, 7);
\echo SQLSTATE :SQLSTATE
ALTER TABLE account ADD COLUMN x int;
\echo SQLSTATE :SQLSTATE
SELECT interlock.fence_buckets('account', '{0}', 's1', :m2, 4, '10 s');
SELECT interlock.activate_import(:m2, 4, gen_random_uuid());
\echo SQLSTATE :SQLSTATE
-- the marker, as it would arrive
INSERT INTO interlock.move_marker VALUES (:m2, 1, interlock.token_hash(:m2, 1, 4, :'token'));
SELECT interlock.activate_import(:m2, 4, gen_random_uuid());
\echo SQLSTATE :SQLSTATE
SELECT interlock.activate_import(:m2, 5, :'token');
SELECT interlock.forget_handoff(:m2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.activate_import(:m2, 4, :'token'), interlock.activate_import(:m2, 4, :'token');
SELECT * FROM state;
INSERT INTO account VALUES (6, 7);
SELECT interlock.abort_import(:m2);
\echo SQLSTATE :SQLSTATE

-- aborted: each side is what it was, and a mover behind the times gets nowhere
SELECT interlock.begin_import('account', '{1,9}', 's1', :m3);
SELECT interlock.abort_import(:m3), interlock.abort_import(:m3);
SELECT * FROM state;
SELECT bucket FROM interlock.bucket_state WHERE keyspace = 'account' AND bucket = 9;
SELECT interlock.begin_import('account', '{1,9}', 's1', :m3);
\echo SQLSTATE :SQLSTATE
SELECT interlock.activate_import(:m3, 4, :'token');
SELECT interlock.forget_handoff(:m3), interlock.forget_handoff(:m3);
-- forgotten: it would have to begin again
SELECT interlock.fence_buckets('account', '{2}', 's1', :m3, 9, '10 min');
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{2}', 's1', :m3);
SELECT interlock.fence_buckets('account', '{2}', 's1', :m3, 9, '10 min') > now() AS fenced;
SELECT interlock.abort_export(:m3), interlock.abort_export(:m3);
SELECT interlock.fence_buckets('account', '{2}', 's1', :m3, 9, '10 min');
\echo SQLSTATE :SQLSTATE
SELECT * FROM state;

-- the deadline
SELECT interlock.forget_handoff(:m3);
SELECT interlock.begin_export('account', '{2}', 's1', :m3);
SELECT interlock.fence_buckets('account', '{2}', 's1', :m3, 9, '1 ms') IS NOT NULL AS fenced;
SELECT pg_sleep(0.01);
SELECT * FROM interlock.wait_for_writers('account', :m3, '10 s');
SELECT state, expired FROM interlock.handoffs WHERE move_id = :m3;
\set VERBOSITY sqlstate
SELECT interlock.write_marker(:m3);
SELECT interlock.decide_handoff(:m3);
INSERT INTO account VALUES (40, 1);
\set VERBOSITY default
SELECT interlock.expire_fences();
SELECT interlock.expire_fences();
INSERT INTO account VALUES (40, 1);
SELECT * FROM state;
SELECT interlock.abort_export(:m3);

-- digests: neither the order of the rows nor that of the columns
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE a (k bigint, t text, d double precision, m mood, n numeric, at timestamptz, j jsonb, x text[]);
CREATE TABLE b (x text[], gone int, j jsonb, at timestamptz, n numeric, m mood, d double precision, t text, k bigint) PARTITION BY HASH (k);
ALTER TABLE b DROP COLUMN gone;
CREATE TABLE b0 PARTITION OF b FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE b1 (k bigint, t text, d double precision, m mood, n numeric, at timestamptz, j jsonb, x text[]);
ALTER TABLE b ATTACH PARTITION b1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE a ALTER k SET NOT NULL;
ALTER TABLE b ALTER k SET NOT NULL;
SELECT interlock.shard_table('a', 'account', 'k'), interlock.shard_table('b', 'account', 'k');
INSERT INTO a SELECT k, 'text ' || k, k / 7.0, 'glad', 1.50, '2026-01-01 12:00+00', jsonb_build_object('k', k), ARRAY['a', NULL, k::text]
  FROM generate_series(1, 2000) AS k WHERE interlock.owns('account', k);
INSERT INTO a SELECT k, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM a;
INSERT INTO b (k, t, d, m, n, at, j, x) SELECT k, t, d, m, n, at, j, x FROM a ORDER BY t DESC;
SELECT da.bucket, da.rows, da.rows = db.rows AND da.digest = db.digest AS equal, length(da.digest) AS length
  FROM interlock.bucket_digests('account', '{0,2,3}', 'a') da JOIN interlock.bucket_digests('account', '{3,2,0}', 'b') db USING (bucket) ORDER BY 1;
SET datestyle = german; SET timezone = 'Asia/Tokyo'; SET extra_float_digits = 0;
SELECT interlock.bucket_digest('account', 2, 'a') = interlock.bucket_digest('account', 2, 'b') AS equal;
RESET datestyle; RESET timezone; RESET extra_float_digits;
-- one value, a null for an empty text, a doubled row, a row too few: each is seen
SELECT digest AS was FROM interlock.bucket_digest('account', 2, 'a') \gset
BEGIN; UPDATE a SET n = 1.51 WHERE k = 18 AND t IS NOT NULL; SELECT digest = :'was' AS same FROM interlock.bucket_digest('account', 2, 'a'); ROLLBACK;
BEGIN; UPDATE a SET t = '' WHERE k = 18 AND t IS NULL; SELECT digest = :'was' AS same FROM interlock.bucket_digest('account', 2, 'a'); ROLLBACK;
BEGIN; INSERT INTO a SELECT * FROM a WHERE k = 18; INSERT INTO a SELECT * FROM a WHERE k = 18; SELECT digest = :'was' AS same FROM interlock.bucket_digest('account', 2, 'a'); ROLLBACK;
BEGIN; DELETE FROM a WHERE k = 18 AND t IS NULL; SELECT digest = :'was' AS same FROM interlock.bucket_digest('account', 2, 'a'); ROLLBACK;
SELECT digest = :'was' AS same FROM interlock.bucket_digest('account', 2, 'a');
SELECT * FROM interlock.bucket_digest('account', 5, 'entry');
SELECT * FROM interlock.bucket_digest('other', 5, 'entry');
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.bucket_digest('account', 16, 'entry');
\echo SQLSTATE :SQLSTATE

-- nobody else may
CREATE ROLE regress_stranger;
SELECT p.proname AS open FROM pg_proc p WHERE p.pronamespace = 'interlock'::regnamespace
   AND p.proname ~ 'handoff|fence|import|export|marker|digest|wait_for|writers|on_the_move|lock_holders'
   AND has_function_privilege('regress_stranger', p.oid, 'EXECUTE');
SET ROLE regress_stranger;
SET interlock.moving_rows = on;
\echo SQLSTATE :SQLSTATE
RESET ROLE;
DROP ROLE regress_stranger;

DROP TABLE account, entry, elsewhere, a, b CASCADE;
DROP TYPE mood;
DROP FUNCTION nothing();
DROP VIEW state;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
