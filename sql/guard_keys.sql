-- shard_table(): which tables and key columns it takes; the guard on each key type; check_guards().
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE TABLE t (k bigint NOT NULL);
SELECT interlock.shard_table('t', 'number', 'k');
\echo SQLSTATE :SQLSTATE
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.shard_table('t', 'number', 'k');
\echo SQLSTATE :SQLSTATE
SELECT interlock.define_keyspace('number', 'bigint', 'splitmix64', 10), interlock.define_keyspace('id', 'uuid', 'xxh3_64', 10),
       interlock.define_keyspace('word', 'text', 'xxh3_64', 10), interlock.define_keyspace('octets', 'bytea', 'xxh3_64', 10);
SELECT k, interlock.accept_buckets(k, '{0,1,2,3,4}', 1) FROM unnest(ARRAY['number', 'id', 'word', 'octets']) AS k;

-- what is refused
SELECT interlock.shard_table('no_such_table', 'number', 'k');
SELECT interlock.shard_table(NULL, 'number', 'k');
SELECT interlock.shard_table(1, 'number', 'k');
SELECT interlock.shard_table('t', 'number', 'nonsense');
\echo SQLSTATE :SQLSTATE
SELECT interlock.shard_table('t', 'number', NULL);
SELECT interlock.shard_table('t', 'number', 'ctid');
SELECT interlock.shard_table('t', 'word', 'k');
\echo SQLSTATE :SQLSTATE
SELECT interlock.shard_table('t', NULL, 'k');
ALTER TABLE t ALTER k DROP NOT NULL;
SELECT interlock.shard_table('t', 'number', 'k');
\echo SQLSTATE :SQLSTATE
ALTER TABLE t ALTER k SET NOT NULL;
CREATE VIEW v AS SELECT * FROM t;
SELECT interlock.shard_table('v', 'number', 'k');
\echo SQLSTATE :SQLSTATE
DROP VIEW v;
CREATE MATERIALIZED VIEW m AS SELECT * FROM t;
SELECT interlock.shard_table('m', 'number', 'k');
DROP MATERIALIZED VIEW m;
CREATE TEMP TABLE tt (k bigint NOT NULL);
SELECT interlock.shard_table('tt', 'number', 'k');
DROP TABLE tt;
SELECT interlock.shard_table('interlock.bucket_state', 'number', 'bucket');
SELECT interlock.shard_table('pg_catalog.pg_class', 'number', 'relpages');
CREATE TABLE generated (a bigint, k bigint NOT NULL GENERATED ALWAYS AS (a + 1) STORED);
SELECT interlock.shard_table('generated', 'number', 'k');
\echo SQLSTATE :SQLSTATE
DROP TABLE generated;
CREATE COLLATION insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE collated (k text NOT NULL COLLATE insensitive);
SELECT interlock.shard_table('collated', 'word', 'k');
\echo SQLSTATE :SQLSTATE
DROP TABLE collated;
DROP COLLATION insensitive;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT interlock.shard_table('t', 'number', 'k');
\echo SQLSTATE :SQLSTATE
ROLLBACK;

-- once is enough; another keyspace or column only after unshard_table()
SELECT interlock.shard_table('t', 'number', 'k');
SELECT interlock.shard_table('t', 'number', 'k');
ALTER TABLE t ADD other bigint NOT NULL DEFAULT 0;
SELECT interlock.shard_table('t', 'number', 'other');
\echo SQLSTATE :SQLSTATE
SELECT interlock.define_keyspace('number2', 'bigint', 'splitmix64', 10);
SELECT interlock.shard_table('t', 'number2', 'k');
SELECT interlock.unshard_table('t');
SELECT interlock.unshard_table('t');
\echo SQLSTATE :SQLSTATE
SELECT interlock.shard_table('t', 'number', 'k');
DELETE FROM interlock.local_keyspace WHERE name = 'number2';
DELETE FROM interlock.local_keyspace WHERE name = 'number';
\echo SQLSTATE :SQLSTATE

-- what the table's owner can do to the guard is seen, and mended by shard_table()
ALTER TABLE t DISABLE TRIGGER "~interlock_insert";
ALTER TABLE t ENABLE TRIGGER "~interlock_guard";
ALTER TABLE t ENABLE REPLICA TRIGGER "~interlock_truncate";
SELECT * FROM interlock.check_guards();
DROP TRIGGER "~interlock_truncate" ON t;
DROP TRIGGER "~interlock_insert" ON t;
CREATE TRIGGER "~interlock_insert" AFTER INSERT ON t FOR EACH ROW WHEN (interlock.refuse_write('number', NEW.other)) EXECUTE FUNCTION interlock.guard();
ALTER TABLE t ALTER k DROP NOT NULL;
SELECT * FROM interlock.check_guards();
DROP TRIGGER "~interlock_insert" ON t;
SELECT interlock.shard_table('t', 'number', 'k');
ALTER TABLE t ALTER k SET NOT NULL;
SELECT interlock.shard_table('t', 'number', 'k');
SELECT * FROM interlock.check_guards();
-- a null key is refused even then
ALTER TABLE t ALTER k DROP NOT NULL;
INSERT INTO t VALUES (NULL);
\echo SQLSTATE :SQLSTATE
ALTER TABLE t ALTER k SET NOT NULL;

-- a renamed key column: closed until shard_table() is told
INSERT INTO t SELECT g FROM generate_series(1, 20) AS g WHERE interlock.owns('number', g) LIMIT 2;
ALTER TABLE t RENAME k TO key;
SELECT * FROM interlock.check_guards();
UPDATE t SET other = 1;
\echo SQLSTATE :SQLSTATE
SELECT interlock.shard_table('t', 'number', 'key');
UPDATE t SET other = 1;
SELECT * FROM interlock.check_guards();
SELECT * FROM interlock.guarded_table;
-- its type cannot change under the guard
ALTER TABLE t ALTER key TYPE int;
ALTER TABLE t DROP key;
ALTER TABLE t RENAME TO renamed;
UPDATE renamed SET other = 2;
SELECT * FROM interlock.guarded_table;
DROP TABLE renamed;

-- every key type; odd names; a generated identity; a domain
CREATE DOMAIN small AS smallint;
CREATE TABLE n2 ("the ""key""" small NOT NULL, x int);
CREATE TABLE n4 (k int GENERATED ALWAYS AS IDENTITY, x int);
CREATE TABLE u (k uuid PRIMARY KEY, x int);
CREATE TABLE w (x int, k varchar(100) COLLATE "C" NOT NULL);
CREATE TABLE o (k bytea NOT NULL, x int);
SELECT interlock.shard_table('n2', 'number', 'the "key"'), interlock.shard_table('n4', 'number', 'k'), interlock.shard_table('u', 'id', 'k'),
       interlock.shard_table('w', 'word', 'k'), interlock.shard_table('o', 'octets', 'k');
SELECT * FROM interlock.check_guards();
DO $$
DECLARE
    key record;
    accepted boolean;
    disagreements int := 0;
    refused int := 0;
BEGIN
    FOR key IN SELECT g::smallint AS n, md5(g::text)::uuid AS u, repeat('ä' || g, 1 + g % 40)::varchar(100) AS w, decode(md5(g::text), 'hex') AS o
                 FROM generate_series(1, 200) AS g LOOP
        BEGIN INSERT INTO n2 VALUES (key.n); accepted := true; EXCEPTION WHEN SQLSTATE 'IL101' THEN accepted := false; refused := refused + 1; END;
        IF accepted <> interlock.owns('number', key.n) THEN disagreements := disagreements + 1; END IF;
        BEGIN INSERT INTO n4 OVERRIDING SYSTEM VALUE VALUES (key.n); accepted := true; EXCEPTION WHEN SQLSTATE 'IL101' THEN accepted := false; refused := refused + 1; END;
        IF accepted <> interlock.owns('number', key.n) THEN disagreements := disagreements + 1; END IF;
        BEGIN INSERT INTO u VALUES (key.u); accepted := true; EXCEPTION WHEN SQLSTATE 'IL101' THEN accepted := false; refused := refused + 1; END;
        IF accepted <> interlock.owns('id', key.u) THEN disagreements := disagreements + 1; END IF;
        BEGIN INSERT INTO w (k) VALUES (key.w); accepted := true; EXCEPTION WHEN SQLSTATE 'IL101' THEN accepted := false; refused := refused + 1; END;
        IF accepted <> interlock.owns('word', key.w) THEN disagreements := disagreements + 1; END IF;
        BEGIN INSERT INTO o VALUES (key.o); accepted := true; EXCEPTION WHEN SQLSTATE 'IL101' THEN accepted := false; refused := refused + 1; END;
        IF accepted <> interlock.owns('octets', key.o) THEN disagreements := disagreements + 1; END IF;
    END LOOP;
    RAISE NOTICE 'disagreements: %, some refused: %', disagreements, refused BETWEEN 300 AND 700;
END
$$;
UPDATE n2 SET x = 1;
UPDATE n4 SET x = 1;
UPDATE u SET x = 1;
UPDATE w SET x = 1;
UPDATE o SET x = 1;
SELECT count(*) FROM w WHERE x = 1 HAVING count(*) = (SELECT count(*) FROM w);
UPDATE w SET k = 'Straße' WHERE k = (SELECT min(k) FROM w);
DELETE FROM o;
-- a key that is stored out of line
CREATE TABLE toasted (k text NOT NULL, x int);
ALTER TABLE toasted ALTER k SET STORAGE EXTERNAL;
SELECT interlock.shard_table('toasted', 'word', 'k');
INSERT INTO toasted SELECT repeat(g::text, 4000) FROM generate_series(1, 30) AS g WHERE interlock.owns('word', repeat(g::text, 4000));
UPDATE toasted SET x = 1;
DELETE FROM toasted;
INSERT INTO toasted SELECT repeat(g::text, 4000) FROM generate_series(1, 30) AS g;
\echo SQLSTATE :SQLSTATE
DROP TABLE n2, n4, u, w, o, toasted;
DROP DOMAIN small;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
