-- The write guard on partitioned tables and inheritance children, now and later.
-- Of 16 buckets this shard owns 0 to 7. Keys: 6 and 29 lie in bucket 0, 8 in 6, 9 in 4, 18 in 2; 5 is not ours.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1);

-- partitions with the key in different places, one below another, one with a dropped column
CREATE TABLE entry (account_id bigint NOT NULL, region int NOT NULL, note text) PARTITION BY LIST (region);
CREATE TABLE entry_1 PARTITION OF entry FOR VALUES IN (1);
CREATE TABLE entry_2 (gone int, note text, region int NOT NULL, account_id bigint NOT NULL);
ALTER TABLE entry_2 DROP COLUMN gone;
ALTER TABLE entry ATTACH PARTITION entry_2 FOR VALUES IN (2);
CREATE TABLE entry_3 PARTITION OF entry FOR VALUES IN (3) PARTITION BY HASH (account_id);
CREATE TABLE entry_3_0 PARTITION OF entry_3 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
SELECT interlock.shard_table('entry', 'account', 'account_id');
SELECT interlock.shard_table('entry', 'account', 'account_id');
SELECT interlock.shard_table('entry_1', 'account', 'account_id');
SELECT interlock.shard_table('entry_1', 'account', 'region');
SELECT * FROM interlock.guarded_table;
SELECT * FROM interlock.check_guards();
SELECT tgrelid::regclass AS "table", tgname, tgenabled FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'entry%' ORDER BY 1, 2;

INSERT INTO entry VALUES (6, 1), (6, 2), (6, 3), (8, 1);
INSERT INTO entry VALUES (5, 1);
\echo SQLSTATE :SQLSTATE
INSERT INTO entry VALUES (5, 2);
INSERT INTO entry VALUES (5, 3);
-- straight into a partition
INSERT INTO entry_1 VALUES (5, 1);
INSERT INTO entry_2 (account_id, region) VALUES (5, 2);
INSERT INTO entry_3_0 VALUES (5, 3);
COPY entry FROM STDIN;
9	1	copied
9	2	copied
9	3	copied
\.
COPY entry FROM STDIN;
9	1	copied
5	2	copied
\.
COPY entry_2 (account_id, region) FROM STDIN;
5	2
\.
UPDATE entry SET note = 'x' WHERE account_id = 6;
UPDATE entry_2 SET note = 'y' WHERE account_id = 6;
UPDATE entry SET account_id = 29 WHERE account_id = 6;
UPDATE entry SET account_id = 8 WHERE account_id = 29;
\echo SQLSTATE :SQLSTATE
UPDATE entry_2 SET account_id = 8 WHERE account_id = 29;
UPDATE entry SET account_id = 5 WHERE account_id = 29;

-- from partition to partition, with the bucket kept and with the bucket changed
UPDATE entry SET region = 2 WHERE account_id = 8;
UPDATE entry SET region = 3 WHERE account_id = 8;
UPDATE entry SET region = 1 WHERE account_id = 8;
UPDATE entry SET region = 2, account_id = 9 WHERE account_id = 8;
\echo SQLSTATE :SQLSTATE
UPDATE entry SET region = 1, account_id = 8 WHERE account_id = 29 AND region = 2;
\echo SQLSTATE :SQLSTATE
UPDATE entry SET region = 3, account_id = 5 WHERE account_id = 29 AND region = 2;
\echo SQLSTATE :SQLSTATE
MERGE INTO entry e USING (VALUES (8)) AS n(k) ON e.account_id = n.k WHEN MATCHED THEN UPDATE SET region = 2, account_id = 9;
\echo SQLSTATE :SQLSTATE
CREATE FUNCTION other_key() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.account_id := 9; RETURN NEW; END';
CREATE TRIGGER mischief BEFORE UPDATE ON entry FOR EACH ROW EXECUTE FUNCTION other_key();
UPDATE entry SET region = 2 WHERE account_id = 8;
\echo SQLSTATE :SQLSTATE
UPDATE entry SET note = 'z' WHERE account_id = 8;
DROP TRIGGER mischief ON entry;
DELETE FROM entry WHERE account_id = 9;
SELECT tableoid::regclass, account_id, region FROM entry ORDER BY 1, 2;

-- partitions made later are guarded as they come
CREATE TABLE entry_4 PARTITION OF entry FOR VALUES IN (4);
CREATE TABLE entry_5 (note text, account_id bigint NOT NULL, region int NOT NULL);
INSERT INTO entry_5 VALUES ('early', 6, 5), ('early', 5, 5);
ALTER TABLE entry ATTACH PARTITION entry_5 FOR VALUES IN (5);
\echo SQLSTATE :SQLSTATE
DELETE FROM entry_5 WHERE account_id = 5;
ALTER TABLE entry ATTACH PARTITION entry_5 FOR VALUES IN (5);
CREATE SCHEMA later CREATE TABLE entry_6 PARTITION OF public.entry FOR VALUES IN (6);
SELECT * FROM interlock.check_guards();
INSERT INTO entry VALUES (5, 4);
INSERT INTO entry_5 VALUES ('late', 5, 5);
INSERT INTO later.entry_6 VALUES (5, 6);
TRUNCATE entry_4;
\echo SQLSTATE :SQLSTATE
TRUNCATE later.entry_6;
TRUNCATE entry;
SET interlock.allow_truncate = on;
TRUNCATE entry_4;
RESET interlock.allow_truncate;
CREATE TABLE entry_7 (account_id bigint, region int NOT NULL, note text);
ALTER TABLE entry ATTACH PARTITION entry_7 FOR VALUES IN (7);
DROP TABLE entry_7;
-- and let go when they go
ALTER TABLE entry DETACH PARTITION entry_4;
ALTER TABLE entry DETACH PARTITION entry_5 CONCURRENTLY;
SELECT tgname FROM pg_trigger WHERE tgrelid IN ('entry_4'::regclass, 'entry_5'::regclass);
INSERT INTO entry_4 VALUES (5, 4);
TRUNCATE entry_4;
DROP TABLE entry_4, entry_5;
DROP SCHEMA later CASCADE;

-- a partition by itself, and foreign partitions
CREATE TABLE lone (k bigint NOT NULL) PARTITION BY LIST (k);
CREATE TABLE lone_1 PARTITION OF lone FOR VALUES IN (6);
SELECT interlock.shard_table('lone_1', 'account', 'k');
\echo SQLSTATE :SQLSTATE
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE lone_f PARTITION OF lone FOR VALUES IN (7) SERVER nowhere;
SELECT interlock.shard_table('lone', 'account', 'k');
\echo SQLSTATE :SQLSTATE
DROP TABLE lone;
CREATE FOREIGN TABLE entry_f PARTITION OF entry FOR VALUES IN (8) SERVER nowhere;
\echo SQLSTATE :SQLSTATE
DROP SERVER nowhere;
DROP FOREIGN DATA WRAPPER nothing;

-- unshard, and the children with it
SELECT interlock.unshard_table('entry_1');
SELECT interlock.unshard_table('entry');
SELECT tgname FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'entry%';
SELECT * FROM interlock.guarded_table;
DROP TABLE entry;

-- inheritance: children now, later, and of two parents
CREATE TABLE base (account_id bigint NOT NULL);
CREATE TABLE child (extra text) INHERITS (base);
CREATE TABLE grandchild () INHERITS (child);
SELECT interlock.shard_table('base', 'account', 'account_id');
CREATE TABLE late () INHERITS (base);
CREATE TABLE later (extra text, account_id bigint NOT NULL);
INSERT INTO later VALUES ('ours', 6);
ALTER TABLE later INHERIT base;
CREATE TABLE twins () INHERITS (child, later);
SELECT * FROM interlock.check_guards();
INSERT INTO base VALUES (6);
INSERT INTO base VALUES (5);
INSERT INTO child VALUES (5);
INSERT INTO grandchild VALUES (5);
INSERT INTO late VALUES (5);
INSERT INTO later VALUES ('not ours', 5);
INSERT INTO twins (account_id) VALUES (5);
INSERT INTO grandchild VALUES (8, 'x');
UPDATE base SET account_id = 5 WHERE account_id = 8;
\echo SQLSTATE :SQLSTATE
DELETE FROM base WHERE account_id = 8;
TRUNCATE twins;
\echo SQLSTATE :SQLSTATE
ALTER TABLE later NO INHERIT base;
SELECT * FROM interlock.check_guards();
SELECT tgrelid::regclass AS "table", tgname FROM pg_trigger WHERE tgrelid IN ('later'::regclass, 'twins'::regclass) ORDER BY 1, 2;
SELECT interlock.shard_table('child', 'account', 'account_id');
SELECT interlock.shard_table('later', 'account', 'account_id');
ALTER TABLE twins NO INHERIT child;
SELECT interlock.unshard_table('later');
SELECT interlock.unshard_table('base');
SELECT tgrelid::regclass FROM pg_trigger WHERE tgfoid = 'interlock.guard()'::regprocedure;
SELECT interlock.shard_table('child', 'account', 'account_id');
SELECT interlock.shard_table('base', 'account', 'account_id');
\echo SQLSTATE :SQLSTATE
DROP TABLE base, child, grandchild, late, later, twins;
SELECT * FROM interlock.guarded_table;
DROP FUNCTION other_key;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
