-- The outbox: changes of attached tables, and how consumers take them.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE TABLE item (id bigint PRIMARY KEY, shelf text, price numeric, note text);
SELECT interlock.outbox_attach('item', '{shelf,price}');
-- again: nothing to do; other columns: from now on
SELECT interlock.outbox_attach('item', '{shelf,price}');
SELECT relid, stream, columns, key FROM interlock.outbox_table;
CREATE VIEW changes AS SELECT seq, table_name, op, key, old, new, bucket, route_version FROM interlock.outbox ORDER BY seq;

INSERT INTO item VALUES (1, 'a', 1.50, 'x'), (2, NULL, 'NaN', 'y');
UPDATE item SET note = 'z';
UPDATE item SET shelf = 'b' WHERE id = 1;
UPDATE item SET id = 3 WHERE id = 2;
INSERT INTO item VALUES (1, 'c') ON CONFLICT (id) DO UPDATE SET shelf = excluded.shelf;
INSERT INTO item VALUES (1, 'd') ON CONFLICT DO NOTHING;
COPY item (id, shelf) FROM STDIN;
4	copied
\.
BEGIN;
INSERT INTO item VALUES (5, 'kept');
SAVEPOINT s;
INSERT INTO item VALUES (6, 'rolled back');
ROLLBACK TO s;
COMMIT;
DELETE FROM item WHERE id = 4;
SELECT * FROM changes;
SELECT count(DISTINCT xid) AS transactions, bool_and(xid < pg_snapshot_xmax(pg_current_snapshot())) AS past FROM interlock.outbox;

-- a consumer: take, act, done
BEGIN;
SELECT seq, op, key, parked FROM interlock.outbox_take(3);
SELECT interlock.outbox_done('{1,2}');
-- what it holds it does not get again
SELECT seq, op, key FROM interlock.outbox_take(2);
SELECT interlock.outbox_done('{1,3}');
\set VERBOSITY sqlstate
SELECT interlock.outbox_done('{9}');
ROLLBACK;
SELECT count(*) FROM interlock.outbox;
-- a rolled back savepoint gives up what was taken after it, and what was done
BEGIN;
SELECT count(*) FROM interlock.outbox_take(2);
SAVEPOINT s;
SELECT interlock.outbox_done('{1}');
SELECT count(*) FROM interlock.outbox_take(2);
ROLLBACK TO s;
SELECT interlock.outbox_done('{1,2}');
SELECT interlock.outbox_done('{3}');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT interlock.outbox_take(1);
ROLLBACK;
SELECT interlock.outbox_take(1, 'nowhere');
SELECT interlock.outbox_take(-1);
SELECT interlock.outbox_take(1, part => 2, parts => 2);
\set VERBOSITY default
-- parts share the keys
SELECT count(*) AS all_of_them, count(DISTINCT seq) AS each_once
  FROM (SELECT seq FROM interlock.outbox_take(100, part => 0, parts => 2) UNION ALL
        SELECT seq FROM interlock.outbox_take(100, part => 1, parts => 2)) t;

-- failures
BEGIN;
SELECT count(*) FROM interlock.outbox_take(100);
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox WHERE key <> '{"id": 1}';
SELECT seq, interlock.outbox_failed(seq, 'no such shelf', 2) FROM changes WHERE op = 'I';
SELECT count(*) AS held_back FROM interlock.outbox_take(100);
COMMIT;
SELECT op, old, new FROM changes;
BEGIN;
SELECT op, new, parked FROM interlock.outbox_take(1);
SELECT interlock.outbox_failed(seq, 'still none', 2) FROM changes WHERE op = 'I';
COMMIT;
SELECT op, key, new, tries, error FROM interlock.outbox_parked;
BEGIN;
SELECT op, new, parked FROM interlock.outbox_take(100);
SELECT interlock.outbox_park(array_agg(seq), NULL) FROM interlock.outbox;
COMMIT;
SELECT op, new, tries, error FROM interlock.outbox_parked ORDER BY seq;
SELECT stream, records, oldest IS NULL AS empty, segments, parked FROM interlock.outbox_backlog;
SELECT interlock.outbox_drained('default', 1), interlock.outbox_drained('default', last_seq) FROM interlock.outbox_last();
SELECT interlock.outbox_retry('default');
SELECT op, new, parked FROM interlock.outbox_take(100);
BEGIN;
SELECT count(*) FROM interlock.outbox_take(100);
SELECT interlock.outbox_park(array_agg(seq), 'given up') FROM interlock.outbox;
SELECT interlock.outbox_discard('default', (SELECT array_agg(seq) FROM interlock.outbox_parked));
COMMIT;
SELECT interlock.outbox_drained('default', last_seq), interlock.outbox_oldest('default') FROM interlock.outbox_last();

-- TRUNCATE is a deletion of each row, whatever the transaction's snapshot shows
BEGIN ISOLATION LEVEL REPEATABLE READ;
TRUNCATE item;
COMMIT;
SELECT op, key, old FROM interlock.outbox_take(100) ORDER BY key;
BEGIN;
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox_take(100);
COMMIT;

-- a whole lap and more of the ring, then emptied
INSERT INTO item SELECT g FROM generate_series(1, 40000) g;
SELECT segments FROM interlock.outbox_backlog;
BEGIN;
SELECT count(*) FROM interlock.outbox_take(10);
SELECT interlock.outbox_rotate('default');
ROLLBACK;
SELECT setval('interlock.outbox_seq', 32 * 32768 + 100) > 0 AS next_lap;
UPDATE item SET shelf = 'second lap' WHERE id <= 3;
SELECT op, key FROM interlock.outbox_take(2);
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox_take(39999) HAVING bool_and(op = 'I');
SELECT op, key FROM interlock.outbox_take(10);
-- what a consumer removes comes first again when it rolls back
BEGIN;
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox_take(1);
SELECT op, key FROM interlock.outbox_take(1);
ROLLBACK;
SELECT op, key FROM interlock.outbox_take(1);
TRUNCATE item;
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox_take(1000000);
SELECT segments FROM interlock.outbox_backlog;
SELECT interlock.outbox_rotate('default');
SELECT segments FROM interlock.outbox_backlog;
INSERT INTO item VALUES (1);
TRUNCATE item;
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox_take(100000);

-- changes by triggers and functions inside a statement: the last record of a key tells what is there
CREATE FUNCTION rename_item(which bigint) RETURNS void LANGUAGE sql AS $$ UPDATE item SET shelf = 'renamed' WHERE id = which $$;
CREATE FUNCTION again(which bigint) RETURNS void LANGUAGE sql AS $$ INSERT INTO item VALUES (which, 'again') $$;
CREATE FUNCTION on_item() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM item WHERE id = NEW.id + 1; RETURN NULL; END $$;
INSERT INTO item VALUES (1, 'first') RETURNING rename_item(id);
DELETE FROM item WHERE id = 1 RETURNING again(id);
CREATE TRIGGER a AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION on_item();
INSERT INTO item VALUES (10, 'stays'), (11, 'goes');
DROP TRIGGER a ON item;
SELECT op, key, new FROM interlock.outbox_take(100);
SELECT id, shelf FROM item ORDER BY id;
TRUNCATE item;
SELECT interlock.outbox_done(array_agg(seq)) FROM interlock.outbox_take(100000);

-- partitions and children, whenever they come and go
CREATE TABLE part (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (1) TO (2);
SELECT interlock.outbox_attach('part', '{v}', 'days');
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (2) TO (3);
CREATE TABLE part_3 (v text, day int NOT NULL, id int NOT NULL);
INSERT INTO part_3 VALUES ('came along', 3, 1);
ALTER TABLE part ATTACH PARTITION part_3 FOR VALUES FROM (3) TO (4);
INSERT INTO part VALUES (1, 1, 'one'), (1, 2, 'two');
UPDATE part SET day = 3, id = 9 WHERE v = 'two';
UPDATE part SET v = 'three' WHERE day = 3;
ALTER TABLE part DETACH PARTITION part_3;
INSERT INTO part_3 VALUES ('alone', 3, 2);
TRUNCATE part_3;
TRUNCATE part;
SELECT table_name, op, key, old, new FROM interlock.outbox_take(100, 'days');
SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgname ~ 'interlock' AND tgrelid::regclass::text LIKE 'part%' ORDER BY 1, 2;
CREATE UNLOGGED TABLE part_4 PARTITION OF part FOR VALUES FROM (4) TO (5);
CREATE TABLE part_5 PARTITION OF part FOR VALUES FROM (5) TO (6);
INSERT INTO part VALUES (5, 5, 'five');
ALTER TABLE part DETACH PARTITION part_5 CONCURRENTLY;
INSERT INTO part_5 VALUES (6, 5, 'alone');
SELECT op, key, old, new FROM interlock.outbox_take(100, 'days') WHERE key->'day' = '5';
CREATE TABLE child (extra int) INHERITS (item);
INSERT INTO child VALUES (7, 'child');
ALTER TABLE child NO INHERIT item;
INSERT INTO child VALUES (8, 'alone');
ALTER TABLE child INHERIT item;
SELECT table_name, op, key, new FROM interlock.outbox_take(100);
SELECT interlock.outbox_detach('part', 'days', true);
SELECT interlock.outbox_detach('part', 'days', true, true);
SELECT interlock.outbox_attach('part', '{v}', 'days');
DROP TABLE part;
SELECT relid, stream FROM interlock.outbox_table;

-- columns that go away make writes fail, not records
ALTER TABLE item RENAME shelf TO place;
INSERT INTO item VALUES (20, 'x');
SELECT interlock.outbox_attach('item', NULL);
ALTER TABLE item ADD more int;
INSERT INTO item VALUES (20, 'x', 2, NULL, 3);
SELECT new FROM changes ORDER BY seq DESC LIMIT 1;

-- what cannot be attached
CREATE TABLE no_key (id int);
CREATE TABLE nullable (id int UNIQUE);
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TEMPORARY TABLE temporary (id int PRIMARY KEY);
SELECT interlock.outbox_attach('no_key');
SELECT interlock.outbox_attach('nullable', key => '{id}');
SELECT interlock.outbox_attach('deferred');
SELECT interlock.outbox_attach('unlogged');
SELECT interlock.outbox_attach('temporary');
SELECT interlock.outbox_attach('child');
SELECT interlock.outbox_attach('item', '{nowhere}');
SELECT interlock.outbox_attach('item', key => '{place}');
SELECT interlock.outbox_attach('item', stream => 'Bad');
SELECT interlock.outbox_attach('pg_catalog.pg_class');
SELECT interlock.outbox_attach('interlock.outbox_try');
SELECT interlock.outbox_detach('child');
CREATE TABLE stranger (id bigint PRIMARY KEY);
CREATE TRIGGER t AFTER INSERT ON stranger FOR EACH ROW EXECUTE FUNCTION interlock.outbox_capture('default');
INSERT INTO stranger VALUES (1);

-- who writes needs no rights on the outbox, and has none; a consumer has its functions
CREATE ROLE regress_writer;
CREATE ROLE regress_consumer;
GRANT INSERT ON item TO regress_writer;
SELECT interlock.grant_consumer('regress_consumer');
SET ROLE regress_writer;
INSERT INTO item VALUES (30, 'written');
\set VERBOSITY sqlstate
SELECT * FROM interlock.outbox;
SELECT * FROM interlock.outbox_default_0;
INSERT INTO interlock.outbox_default_0 SELECT * FROM interlock.outbox;
SELECT * FROM interlock.outbox_backlog;
SELECT * FROM interlock.outbox_take(1);
SELECT interlock.outbox_done('{1}');
SELECT interlock.outbox_attach('item');
SELECT interlock.outbox_rotate('default');
SELECT nextval('interlock.outbox_seq');
SELECT interlock.outbox_held('{1}', false);
SELECT interlock.row_values(ROW(1, true), '{f2}');
SET ROLE regress_consumer;
SELECT * FROM interlock.outbox;
DELETE FROM interlock.outbox_parked;
SELECT interlock.outbox_attach('item');
SELECT interlock.outbox_held('{1}', false);
\set VERBOSITY default
BEGIN;
SELECT op, key, new->'place' AS place FROM interlock.outbox_take(100) WHERE key = '{"id": 30}';
SELECT interlock.outbox_failed(last_seq, 'no', 1) FROM interlock.outbox_last();
COMMIT;
SELECT interlock.outbox_retry('default');
BEGIN;
SELECT interlock.outbox_done(array_agg(seq)) > 0 AS some FROM interlock.outbox_take(100);
COMMIT;
SELECT stream, records, parked FROM interlock.outbox_backlog;
SELECT interlock.outbox_rotate('default'), interlock.outbox_drained('default', 0), interlock.outbox_oldest('default');
-- nor may it choose what the extension's own commands mean
RESET ROLE;
CREATE SCHEMA regress_trap;
GRANT ALL ON SCHEMA regress_trap TO regress_consumer;
SET ROLE regress_consumer;
CREATE FUNCTION regress_trap.trap(bigint, bigint) RETURNS boolean LANGUAGE plpgsql
    AS $$ BEGIN RAISE WARNING 'trap called by %', current_user; RETURN false; END $$;
CREATE OPERATOR regress_trap.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = regress_trap.trap);
RESET ROLE;
INSERT INTO item VALUES (31, 'a'), (32, 'b');
SET ROLE regress_consumer;
SET search_path = regress_trap, pg_catalog, public;
BEGIN;
SELECT count(*) FROM interlock.outbox_take(2);
SELECT interlock.outbox_failed(last_seq, 'no') FROM interlock.outbox_last();
SELECT interlock.outbox_done(ARRAY[last_seq - 1, last_seq]) FROM interlock.outbox_last();
COMMIT;
RESET search_path;
RESET ROLE;
DROP SCHEMA regress_trap CASCADE;
SELECT count(*) FROM interlock.outbox_try;

SELECT interlock.outbox_detach('item');
SELECT interlock.outbox_drop_stream('default', true);
SELECT interlock.outbox_drop_stream('days');
SELECT count(*) FROM pg_class WHERE relnamespace = 'interlock'::regnamespace AND relname ~ '^outbox_(default|days)_';
DROP VIEW changes;
DROP TABLE item, child, stranger, no_key, nullable, deferred, unlogged, part_3, part_5;
DROP FUNCTION rename_item, again, on_item;
DROP OWNED BY regress_writer, regress_consumer;
DROP ROLE regress_writer, regress_consumer;
