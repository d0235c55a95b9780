-- After a move: rows that are no longer this shard's, and sequences of rows that came.
-- Keys by bucket (of 16): 6, 29 in 0; 1 in 1; 18, 40 in 2; 12, 17 in 3; 33 in 8.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
\set m1 '\'00000000-0000-0000-0000-0000000000a1\''
\set m2 '\'00000000-0000-0000-0000-0000000000a2\''
\set m3 '\'00000000-0000-0000-0000-0000000000a3\''
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.define_keyspace('other', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3}', 1), interlock.accept_buckets('other', '{0}', 1);
SELECT interlock.move_name('0a1b2c3d-0000-0000-0000-0000000000a1');

CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint);
CREATE TABLE entry (account_id bigint NOT NULL REFERENCES account ON DELETE RESTRICT, n int NOT NULL) PARTITION BY RANGE (n);
CREATE TABLE entry_0 PARTITION OF entry FOR VALUES FROM (0) TO (10) PARTITION BY LIST (n);
CREATE TABLE entry_01 PARTITION OF entry_0 FOR VALUES IN (1);
CREATE TABLE entry_0x PARTITION OF entry_0 DEFAULT;
CREATE TABLE entry_1 PARTITION OF entry FOR VALUES FROM (10) TO (20);
CREATE TABLE elsewhere (id bigint PRIMARY KEY);
SELECT interlock.shard_table('account', 'account', 'account_id'), interlock.shard_table('entry', 'account', 'account_id'),
       interlock.shard_table('elsewhere', 'other', 'id');
SELECT interlock.outbox_attach('account');
INSERT INTO account SELECT k, 0 FROM generate_series(1, 1000) k WHERE interlock.owns('account', k);
INSERT INTO entry SELECT account_id, n FROM account CROSS JOIN (VALUES (1), (2), (15)) v(n) WHERE account_id < 100;
CREATE TABLE seen (what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (TG_OP || ' ' || TG_LEVEL); RETURN OLD; END $$;
CREATE TRIGGER note AFTER DELETE ON account FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note_all BEFORE DELETE ON account FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE VIEW left_over AS SELECT interlock.bucket_of('account', account_id) AS bucket, count(*) FROM account GROUP BY 1 ORDER BY 1;
CREATE VIEW entries AS SELECT tableoid::regclass AS partition, interlock.bucket_of('account', account_id) AS bucket, count(*) FROM entry GROUP BY 1, 2 ORDER BY 1, 2;
SELECT * FROM left_over;
SELECT * FROM entries;

-- not while the buckets are this shard's, nor while it is not decided whose they are
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_export('account', '{0,2}', 's1', :m1);
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT interlock.fence_buckets('account', '{0,2}', 's1', :m1, 2, '10 min') > now() AS fenced;
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.older_transactions(:m1);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.wait_for_writers('account', :m1, '10 s');
SELECT interlock.write_marker(:m1);
BEGIN;
SELECT interlock.decide_handoff(:m1) IS NOT NULL AS decided;
SELECT * FROM interlock.older_transactions(:m1);
\echo SQLSTATE :SQLSTATE
ROLLBACK;
SELECT interlock.decide_handoff(:m1) AS token \gset
SELECT * FROM interlock.older_transactions(:m1);
SELECT * FROM interlock.older_transactions(:m2);
\echo SQLSTATE :SQLSTATE

-- what must be named, and how
SELECT interlock.delete_moved_rows(:m2, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT interlock.delete_moved_rows(:m1, 'elsewhere', 10);
\echo SQLSTATE :SQLSTATE
SELECT interlock.delete_moved_rows(:m1, 'entry_1', 10);
SELECT interlock.delete_moved_rows(:m1, 'account', 0);
\echo SQLSTATE :SQLSTATE
SELECT interlock.delete_moved_rows(:m1, 'account', NULL);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
ROLLBACK;

-- in batches: rows of the buckets, no others; nobody is told
SELECT interlock.delete_moved_rows(:m1, 'account', 50) AS first, interlock.delete_moved_rows(:m1, 'account', 50) AS second;
SELECT next IS NOT NULL AS goes_on FROM interlock.clean_up_position;
SELECT interlock.delete_moved_rows(:m1, 'account', 1000) > 0 AS third, interlock.delete_moved_rows(:m1, 'account', 1000) AS last;
SELECT * FROM left_over;
SELECT count(*) AS seen FROM seen;
SELECT op, count(*) FROM interlock.outbox GROUP BY op;
SHOW session_replication_role;
SHOW interlock.moving_rows;
-- over partitions, a batch at a time
SELECT interlock.delete_moved_rows(:m1, 'entry', 5) AS deleted, (SELECT count(*) FROM entry WHERE interlock.bucket_of('account', account_id) IN (0, 2)) AS before
  FROM generate_series(1, 10);
SELECT * FROM entries;
-- a row behind the position, however it got there, and a table that was written anew
SET interlock.moving_rows = on; SET session_replication_role = replica;
ALTER TABLE account DISABLE TRIGGER ALL;
INSERT INTO account VALUES (6, 1), (18, 1), (29, 1);
ALTER TABLE account ENABLE TRIGGER ALL;
ALTER TABLE account ENABLE ALWAYS TRIGGER "~interlock_guard";
RESET interlock.moving_rows; RESET session_replication_role;
SELECT interlock.delete_moved_rows(:m1, 'account', 1) AS deleted FROM generate_series(1, 2);
VACUUM FULL account;
SELECT interlock.delete_moved_rows(:m1, 'account', 1) AS deleted FROM generate_series(1, 2);
SELECT * FROM left_over;

-- not while something would carry the deletes away
SET client_min_messages = error;
CREATE SUBSCRIPTION interlock_move_00000000 CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE);
SET client_min_messages = warning;
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
DROP SUBSCRIPTION interlock_move_00000000;
SELECT interlock.delete_moved_rows(:m1, 'account', 10);

-- back again, and given up: its rows go, once it is given up
SELECT interlock.begin_import('account', '{0,9}', 's1', :m2);
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
SET interlock.moving_rows = on;
INSERT INTO account VALUES (29, 7), (6, 7);
RESET interlock.moving_rows;
SELECT interlock.delete_moved_rows(:m2, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT interlock.abort_import(:m2);
SELECT interlock.delete_moved_rows(:m2, 'account', 10), interlock.delete_moved_rows(:m2, 'account', 10);
SELECT interlock.forget_handoff(:m2);
-- and come to stay: the first move has nothing to say any more
SELECT interlock.begin_import('account', '{0}', 's1', :m3);
INSERT INTO interlock.move_marker VALUES (:m3, 1, interlock.token_hash(:m3, 1, 4, :'token'));
SELECT interlock.activate_import(:m3, 4, :'token');
INSERT INTO account VALUES (6, 1);
SELECT interlock.delete_moved_rows(:m1, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT interlock.delete_moved_rows(:m3, 'account', 10);
\echo SQLSTATE :SQLSTATE
SELECT count(*) AS positions FROM interlock.clean_up_position;
SELECT interlock.forget_handoff(:m1), interlock.forget_handoff(:m3);
SELECT count(*) AS positions FROM interlock.clean_up_position;

-- sequences
CREATE SEQUENCE shared INCREMENT 10 START 3;
CREATE SEQUENCE falling INCREMENT -1 MAXVALUE -1 MINVALUE -1000;
CREATE SEQUENCE round_and_round MAXVALUE 100 CYCLE;
CREATE SEQUENCE short MAXVALUE 50;
CREATE TABLE numbered (
    account_id bigint NOT NULL,
    id bigint GENERATED BY DEFAULT AS IDENTITY (START 2 INCREMENT 10) PRIMARY KEY,
    serial serial,
    small smallint DEFAULT nextval('shared'),
    big numeric DEFAULT nextval('shared') + 0.5,
    down int DEFAULT nextval('falling'),
    ring int DEFAULT nextval('round_and_round'),
    short int DEFAULT nextval('short'),
    label text DEFAULT 'n' || nextval('shared')
);
SELECT interlock.shard_table('numbered', 'account', 'account_id');
SELECT * FROM interlock.raise_sequences('numbered', 'account', '{0,1}');
INSERT INTO numbered (account_id) VALUES (6), (6);
SELECT * FROM interlock.raise_sequences('numbered', 'account', '{0,1}');
-- bucket 1 brings larger ones; the values of bucket 3 were here before
INSERT INTO numbered VALUES (1, 500, 70, 41, 1.5, -7, 60, 50), (1, 502, 71, 3, 99.5, -8, 61, 49), (12, 9000, 9000, 9000, 9000, -900, 90, 20);
SELECT * FROM interlock.raise_sequences('numbered', 'account', '{0,1}');
INSERT INTO numbered (account_id) VALUES (6);
\echo SQLSTATE :SQLSTATE
ALTER SEQUENCE short MAXVALUE 1000;
INSERT INTO numbered (account_id) VALUES (6) RETURNING id, serial, small, big, down, ring, short, label;
SELECT * FROM interlock.raise_sequences('numbered', 'account', '{0,1}');
SELECT * FROM interlock.raise_sequences('numbered', 'account', '{3}');
INSERT INTO numbered (account_id) VALUES (6) RETURNING id, serial, small, down;
-- of partitions and children as well, where the column is
CREATE TABLE family (account_id bigint NOT NULL, id int GENERATED ALWAYS AS IDENTITY) PARTITION BY LIST (account_id);
CREATE TABLE family_1 PARTITION OF family FOR VALUES IN (1);
CREATE TABLE family_rest PARTITION OF family DEFAULT;
CREATE SEQUENCE own_numbers;
ALTER TABLE family_rest ALTER id SET DEFAULT nextval('own_numbers');
CREATE TABLE parent (account_id bigint NOT NULL);
CREATE TABLE child (n smallserial) INHERITS (parent);
SELECT interlock.shard_table('family', 'account', 'account_id'), interlock.shard_table('parent', 'account', 'account_id');
INSERT INTO family OVERRIDING SYSTEM VALUE VALUES (1, 40), (6, 20);
INSERT INTO child VALUES (1, 7), (12, 9);
SELECT * FROM interlock.raise_sequences('family', 'account', '{1}');
SELECT * FROM interlock.raise_sequences('parent', 'account', '{1}');
DROP TABLE family, parent, child;
DROP SEQUENCE own_numbers;
-- a sequence that has not been used yet, exactly reached, and its bounds
CREATE SEQUENCE fresh;
SELECT interlock.raise_sequence('fresh', 0), nextval('fresh');
SELECT interlock.raise_sequence('fresh', 1), interlock.raise_sequence('fresh', 2), nextval('fresh');
SELECT interlock.raise_sequence('fresh', 9223372036854775807);
SELECT nextval('fresh');
\echo SQLSTATE :SQLSTATE
SELECT interlock.raise_sequence('falling', -9223372036854775808);
SELECT interlock.raise_sequence('account', 1);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.raise_sequences('seen', 'account', '{0}');
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.raise_sequences('numbered', 'account', '{16}');
\echo SQLSTATE :SQLSTATE

-- nobody else may; a fence that has expired everybody may open
CREATE ROLE regress_stranger;
SELECT p.proname AS open FROM pg_proc p WHERE p.pronamespace = 'interlock'::regnamespace
   AND p.proname ~ 'moved_rows|clean_up|sequence|older_transactions|move_name|moving_relation|expire_fences|dropped_index'
   AND has_function_privilege('regress_stranger', p.oid, 'EXECUTE');
SELECT interlock.begin_export('account', '{3}', 's1', :m2);
SELECT interlock.fence_buckets('account', '{3}', 's1', :m2, 9, '1 ms') IS NOT NULL AS fenced;
SELECT pg_sleep(0.01);
SELECT k AS new_key FROM generate_series(1001, 2000) k WHERE interlock.bucket_of('account', k) = 3 ORDER BY k LIMIT 1 \gset
GRANT INSERT ON account TO regress_stranger;
SET ROLE regress_stranger;
\set VERBOSITY sqlstate
INSERT INTO account VALUES (:new_key, 1);
\set VERBOSITY default
SELECT interlock.expire_fences();
INSERT INTO account VALUES (:new_key, 1);
RESET ROLE;
SELECT state FROM interlock.bucket_state WHERE keyspace = 'account' AND bucket = 3;
SELECT interlock.abort_export(:m2);

DROP VIEW left_over, entries;
DROP TABLE account, entry, elsewhere, seen, numbered CASCADE;
DROP SEQUENCE shared, falling, round_and_round, short, fresh;
DROP FUNCTION note();
DROP OWNED BY regress_stranger;
DROP ROLE regress_stranger;
DROP EXTENSION interlock CASCADE;
CREATE EXTENSION interlock;
