-- The keys that sign cursors: making, changing and ending them.
\set SHOW_CONTEXT never
\set VERBOSITY terse
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;

-- none to begin with; the first keyset makes one
SELECT count(*) FROM interlock.cursor_key;
SELECT interlock.ensure_cursor_key();
SELECT interlock.ensure_cursor_key();
SELECT id, octet_length(secret) AS length, retired FROM interlock.cursor_key;

-- a second one is newer; a third needs the older one to go
SELECT interlock.cursor_key_add() AS added;
SELECT id, octet_length(secret) AS length, retired FROM interlock.cursor_key ORDER BY created;
SELECT count(DISTINCT secret) AS secrets FROM interlock.cursor_key;
SELECT interlock.cursor_key_add();
\echo SQLSTATE :SQLSTATE
SELECT interlock.cursor_key_retire(1::smallint);
SELECT id, secret IS NULL AS erased, retired FROM interlock.cursor_key ORDER BY created;
SELECT interlock.cursor_key_add() AS added;

-- ends only once, and never the last one
SELECT interlock.cursor_key_retire(1::smallint);
\echo SQLSTATE :SQLSTATE
SELECT interlock.cursor_key_retire(77::smallint);
SELECT interlock.cursor_key_retire(NULL);
SELECT interlock.cursor_key_retire(2::smallint);
SELECT interlock.cursor_key_retire(3::smallint);
\echo SQLSTATE :SQLSTATE

-- a key from elsewhere
SELECT interlock.cursor_key_add('\x0001') AS short;
\echo SQLSTATE :SQLSTATE
SELECT interlock.cursor_key_add(decode(repeat('ab', 32), 'hex')) AS added;
SELECT secret FROM interlock.cursor_key WHERE id = 4;
SELECT interlock.cursor_key_retire(3::smallint);

-- whatever the clock says, what is added last is the newest
UPDATE interlock.cursor_key SET created = created + interval '10 years' WHERE id = 4;
SELECT interlock.cursor_key_add() AS added;
SELECT id FROM interlock.cursor_key WHERE NOT retired ORDER BY created DESC;

-- a key that is taken at first and signs later, as a cluster's shards change keys
SELECT interlock.cursor_key_retire(4::smallint);
SELECT interlock.cursor_key_add(signs => false) AS added;
SELECT id FROM interlock.cursor_key WHERE NOT retired ORDER BY created DESC;
SELECT interlock.cursor_key_sign(6::smallint);
SELECT id FROM interlock.cursor_key WHERE NOT retired ORDER BY created DESC;
SELECT interlock.cursor_key_retire(5::smallint);
SELECT interlock.cursor_key_sign(5::smallint);
\echo SQLSTATE :SQLSTATE
SELECT interlock.cursor_key_sign(NULL);
-- the first key signs whatever is said
BEGIN;
DELETE FROM interlock.cursor_key;
SELECT interlock.cursor_key_add(signs => false) AS added;
SELECT id, created <= clock_timestamp() AND created > clock_timestamp() - interval '1 hour' AS now FROM interlock.cursor_key;
ROLLBACK;

-- ids: those never used first, then that of the key which was retired first
UPDATE interlock.cursor_key SET id = 254 WHERE id = 6;
SELECT interlock.cursor_key_add() AS added;
SELECT interlock.cursor_key_retire(254::smallint);
INSERT INTO interlock.cursor_key (id, retired, created) SELECT g, true, '2020-01-01'::timestamptz + (g * 7 % 256) * interval '1 hour' FROM generate_series(6, 252) AS g;
SELECT interlock.cursor_key_add() AS added;
SELECT interlock.cursor_key_retire(255::smallint);
SELECT interlock.cursor_key_add() AS added, (183 * 7) % 256 AS hours;
SELECT interlock.cursor_key_retire(253::smallint);
SELECT interlock.cursor_key_add() AS added, (110 * 7) % 256 AS hours;
SELECT id, secret IS NOT NULL AS secret FROM interlock.cursor_key WHERE NOT retired ORDER BY created;

-- by hand: in any order, as long as two are valid at the end
BEGIN;
DELETE FROM interlock.cursor_key;
INSERT INTO interlock.cursor_key (id, secret, created) SELECT g, decode(repeat('0' || g, 32), 'hex'), timestamptz '2024-01-01' + g * interval '1 day' FROM generate_series(1, 3) AS g;
UPDATE interlock.cursor_key SET retired = true, secret = NULL WHERE id = 1;
COMMIT;
SELECT id, to_char(created, 'YYYY-MM-DD') AS created, retired FROM interlock.cursor_key ORDER BY cursor_key.created;
BEGIN;
INSERT INTO interlock.cursor_key (id, secret) VALUES (9, decode(repeat('09', 32), 'hex'));
COMMIT;
\echo SQLSTATE :SQLSTATE
INSERT INTO interlock.cursor_key (id, secret) VALUES (0, decode(repeat('09', 32), 'hex'));
INSERT INTO interlock.cursor_key (id, secret) VALUES (256, decode(repeat('09', 32), 'hex'));
INSERT INTO interlock.cursor_key (id, secret) VALUES (9, '\x09');
INSERT INTO interlock.cursor_key (id) VALUES (9);
INSERT INTO interlock.cursor_key (id, retired) VALUES (9, true);

-- nobody else sees or changes them
CREATE ROLE regress_app;
SET ROLE regress_app;
SELECT id FROM interlock.cursor_key;
SELECT interlock.cursor_key_add();
SELECT interlock.cursor_key_retire(1::smallint);
SELECT interlock.ensure_cursor_key();
SELECT interlock.cursor_key_sign(1::smallint);
SELECT interlock.new_cursor_secret();
RESET ROLE;
DROP ROLE regress_app;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
