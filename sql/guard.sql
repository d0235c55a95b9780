-- The write guard: every way in which a row can be written.
-- Of 16 buckets this shard owns 0 to 7; 13 has moved away, 14 is fenced, 15 is being imported, the
-- others were never here. Keys: 6, 8, 9, 18 are owned, 3 moved, 2 fenced, 0 importing, 4 never here.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1,2,3,4,5,6,7}', 1);
INSERT INTO interlock.bucket_state VALUES ('account', 13, 'moved', 's1', 2, NULL),
    ('account', 14, 'fenced', 's1', 3, '2100-01-01 00:00:00+00'), ('account', 15, 'importing', 's2', 4, NULL);
SET timezone = 'UTC';
SELECT k AS key, interlock.bucket_of('account', k) AS bucket, coalesce(s.state, 'none') AS state
  FROM unnest(ARRAY[6, 8, 9, 18, 3, 2, 0, 4]) AS k LEFT JOIN interlock.bucket_states s ON s.bucket = interlock.bucket_of('account', k);

CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint);
-- rows from before the guard, in buckets that are not this shard's
INSERT INTO account VALUES (6, 100), (8, 100), (9, 100), (3, 100), (2, 100), (0, 100), (4, 100);
SELECT interlock.shard_table('account', 'account', 'account_id');
\echo SQLSTATE :SQLSTATE
CREATE TABLE stray AS SELECT * FROM account WHERE account_id IN (3, 0, 4);
DELETE FROM account WHERE account_id IN (3, 0, 4);
SELECT interlock.shard_table('account', 'account', 'account_id');
-- put them back behind the guard's back, as an unfinished clean-up would leave them
ALTER TABLE account DISABLE TRIGGER ALL;
INSERT INTO account SELECT * FROM stray;
SELECT * FROM interlock.check_guards();
SELECT interlock.shard_table('account', 'account', 'account_id');
SELECT * FROM interlock.check_guards();

-- INSERT: each state with its code, its owner and what to do
INSERT INTO account VALUES (18, 1);
INSERT INTO account VALUES (11, 1);
\echo SQLSTATE :SQLSTATE
INSERT INTO account VALUES (30, 1);
\echo SQLSTATE :SQLSTATE
INSERT INTO account VALUES (13, 1);
\echo SQLSTATE :SQLSTATE
INSERT INTO account VALUES (5, 1);
\echo SQLSTATE :SQLSTATE
INSERT INTO account VALUES (NULL, 1);
\echo SQLSTATE :SQLSTATE
-- all or nothing
INSERT INTO account VALUES (12, 1), (15, 1), (5, 1);
INSERT INTO account SELECT g, 1 FROM generate_series(100, 200) AS g;
SELECT account_id FROM account WHERE account_id > 9 ORDER BY 1;

-- UPDATE: the row as it was
UPDATE account SET balance = 1 WHERE account_id = 6;
UPDATE account SET balance = 1 WHERE account_id = 3;
\echo SQLSTATE :SQLSTATE
UPDATE account SET balance = 1 WHERE account_id = 2;
\echo SQLSTATE :SQLSTATE
UPDATE account SET balance = 1 WHERE account_id = 0;
UPDATE account SET balance = 1 WHERE account_id = 4;
UPDATE account SET balance = 1;
-- ... and as it becomes: not into another bucket, even when both are this shard's
UPDATE account SET account_id = 5 WHERE account_id = 6;
\echo SQLSTATE :SQLSTATE
UPDATE account SET account_id = 12 WHERE account_id = 6;
\echo SQLSTATE :SQLSTATE
UPDATE account SET account_id = 29 WHERE account_id = 6;
UPDATE account SET account_id = 6 WHERE account_id = 29;
UPDATE account SET account_id = NULL WHERE account_id = 6;
SELECT * FROM account ORDER BY account_id;

-- DELETE
DELETE FROM account WHERE account_id = 3;
\echo SQLSTATE :SQLSTATE
DELETE FROM account WHERE account_id = 2;
\echo SQLSTATE :SQLSTATE
DELETE FROM account WHERE account_id = 0;
DELETE FROM account WHERE account_id = 4;
DELETE FROM account;
DELETE FROM account WHERE account_id = 18;

-- COPY, with and without the fast path
COPY account FROM STDIN;
18	1
12	1
11	1
\.
COPY account FROM STDIN;
18	1
12	1
\.
BEGIN;
TRUNCATE stray;
COPY stray FROM STDIN WITH (FREEZE);
5	1
\.
ROLLBACK;
SELECT account_id FROM account WHERE account_id > 9 ORDER BY 1;

-- ON CONFLICT: the row that is inserted, the row that is updated, the row that is left alone
INSERT INTO account VALUES (18, 5) ON CONFLICT (account_id) DO UPDATE SET balance = excluded.balance RETURNING *;
INSERT INTO account VALUES (11, 5) ON CONFLICT (account_id) DO UPDATE SET balance = excluded.balance;
INSERT INTO account VALUES (3, 5) ON CONFLICT (account_id) DO UPDATE SET balance = excluded.balance;
INSERT INTO account VALUES (18, 5) ON CONFLICT (account_id) DO UPDATE SET account_id = 12 + excluded.account_id;
INSERT INTO account VALUES (3, 5) ON CONFLICT DO NOTHING;

-- MERGE
MERGE INTO account a USING (VALUES (18::bigint, 7), (21, 7)) AS n(k, b) ON a.account_id = n.k
  WHEN MATCHED THEN UPDATE SET balance = n.b WHEN NOT MATCHED THEN INSERT VALUES (n.k, n.b);
MERGE INTO account a USING (VALUES (35::bigint, 7)) AS n(k, b) ON a.account_id = n.k
  WHEN MATCHED THEN UPDATE SET balance = n.b WHEN NOT MATCHED THEN INSERT VALUES (n.k, n.b);
\echo SQLSTATE :SQLSTATE
MERGE INTO account a USING (VALUES (4::bigint, 7)) AS n(k, b) ON a.account_id = n.k
  WHEN MATCHED THEN UPDATE SET balance = n.b WHEN NOT MATCHED THEN INSERT VALUES (n.k, n.b);
MERGE INTO account a USING (VALUES (2::bigint, 7)) AS n(k, b) ON a.account_id = n.k
  WHEN MATCHED THEN DELETE;
\echo SQLSTATE :SQLSTATE
MERGE INTO account a USING (VALUES (18::bigint)) AS n(k) ON a.account_id = n.k
  WHEN MATCHED THEN UPDATE SET account_id = 12 + 18;

-- writes in a WITH, in a function, in an exception block, through a view, in a DO INSTEAD rule
WITH w AS (INSERT INTO account VALUES (33, 1) RETURNING *) SELECT * FROM w;
CREATE FUNCTION deposit(k bigint) RETURNS bigint LANGUAGE sql AS 'UPDATE account SET balance = balance + 1 WHERE account_id = k RETURNING balance';
SELECT deposit(18);
SELECT deposit(4);
CREATE FUNCTION try_deposit(k bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE account SET balance = balance + 1 WHERE account_id = k;
    RETURN 'done';
EXCEPTION WHEN SQLSTATE 'IL101' THEN
    RETURN SQLSTATE || ' caught';
END
$$;
SELECT k, try_deposit(k) FROM unnest(ARRAY[18, 4, 3, 21]) AS k;
CREATE VIEW rich AS SELECT * FROM account WHERE balance > 0;
UPDATE rich SET balance = 2 WHERE account_id = 4;
CREATE RULE redirect AS ON INSERT TO stray DO INSTEAD INSERT INTO account VALUES (NEW.account_id, NEW.balance);
INSERT INTO stray VALUES (5, 1);
DROP VIEW rich;

-- session_replication_role is no way around it
SET session_replication_role = replica;
INSERT INTO account VALUES (5, 1);
\echo SQLSTATE :SQLSTATE
UPDATE account SET balance = 1 WHERE account_id = 4;
DELETE FROM account WHERE account_id = 2;
\echo SQLSTATE :SQLSTATE
COPY account FROM STDIN;
5	1
\.
TRUNCATE account;
\echo SQLSTATE :SQLSTATE
SET session_replication_role = local;
INSERT INTO account VALUES (5, 1);
RESET session_replication_role;

-- the user's own BEFORE triggers may change the key, whatever their name: it counts what is written
CREATE FUNCTION other_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.account_id = 38 THEN NEW.account_id := 5; END IF;
    IF NEW.account_id = 39 THEN NEW.account_id := 38; END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER "~~later than the guard" BEFORE INSERT OR UPDATE ON account FOR EACH ROW EXECUTE FUNCTION other_key();
INSERT INTO account VALUES (38, 1);
INSERT INTO account VALUES (39, 1) RETURNING account_id;
UPDATE account SET balance = 2 WHERE account_id = 38;
\echo SQLSTATE :SQLSTATE
COPY account FROM STDIN;
38	1
\.
-- a row that a BEFORE trigger drops is not written, so it is not refused
CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER skip BEFORE INSERT ON account FOR EACH ROW WHEN (NEW.account_id = 4711) EXECUTE FUNCTION drop_row();
INSERT INTO account VALUES (4711, 1);
DROP TRIGGER skip ON account;
DROP TRIGGER "~~later than the guard" ON account;

-- foreign keys: cascades from a table that is not sharded
CREATE TABLE owner (name text PRIMARY KEY);
CREATE TABLE holding (account_id bigint NOT NULL, name text REFERENCES owner ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO owner VALUES ('bob'), ('eve');
INSERT INTO holding VALUES (6, 'bob'), (4, 'eve');
CREATE TABLE away AS TABLE holding;
DELETE FROM holding WHERE account_id = 4;
SELECT interlock.shard_table('holding', 'account', 'account_id');
ALTER TABLE holding DISABLE TRIGGER "~interlock_insert";
INSERT INTO holding SELECT * FROM away WHERE account_id = 4;
ALTER TABLE holding ENABLE ALWAYS TRIGGER "~interlock_insert";
UPDATE owner SET name = 'robert' WHERE name = 'bob';
UPDATE owner SET name = 'evelyn' WHERE name = 'eve';
\echo SQLSTATE :SQLSTATE
DELETE FROM owner WHERE name = 'eve';
\echo SQLSTATE :SQLSTATE
DELETE FROM owner WHERE name = 'robert';
SELECT * FROM holding;

-- TRUNCATE: only announced, and not while a bucket is on the move
TRUNCATE account;
\echo SQLSTATE :SQLSTATE
TRUNCATE owner CASCADE;
SET interlock.allow_truncate = on;
TRUNCATE account;
\echo SQLSTATE :SQLSTATE
DELETE FROM interlock.bucket_state WHERE state IN ('fenced', 'importing');
TRUNCATE owner CASCADE;
BEGIN;
TRUNCATE account;
SELECT count(*) FROM account;
ROLLBACK;
RESET interlock.allow_truncate;

-- the guard's functions are for triggers of the right kind
SELECT interlock.guard();
CREATE TABLE other (k bigint);
CREATE TRIGGER t BEFORE INSERT ON other FOR EACH STATEMENT EXECUTE FUNCTION interlock.guard('account', 'k');
INSERT INTO other VALUES (1);
\echo SQLSTATE :SQLSTATE
DROP TRIGGER t ON other;
CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION interlock.guard('account');
INSERT INTO other VALUES (1);
DROP TRIGGER t ON other;
CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION interlock.guard('account', 'nonsense');
INSERT INTO other VALUES (1);
DROP TRIGGER t ON other;
CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION interlock.guard('nowhere', 'k');
INSERT INTO other VALUES (1);
DROP TRIGGER t ON other;
CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON other FOR EACH ROW EXECUTE FUNCTION interlock.guard('account', 'k');
INSERT INTO other VALUES (6);
INSERT INTO other VALUES (5);
INSERT INTO other VALUES (NULL);
UPDATE other SET k = 5;
UPDATE other SET k = 12;
DELETE FROM other;
DROP TRIGGER t ON other;
CREATE TRIGGER t BEFORE INSERT ON other FOR EACH STATEMENT EXECUTE FUNCTION interlock.guard_truncate('account');
INSERT INTO other VALUES (1);
DROP TRIGGER t ON other;
CREATE TRIGGER t BEFORE TRUNCATE ON other FOR EACH STATEMENT EXECUTE FUNCTION interlock.guard_truncate();
TRUNCATE other;
SELECT interlock.refuse_write('account', 6);
SELECT interlock.refuse_write('account', 5);
SELECT interlock.refuse_write('account', 6, 12);
SELECT interlock.refuse_write('account', 'text'::text);
SELECT interlock.refuse_write(NULL, 6);
SELECT interlock.refuse_write('account', NULL::bigint);
SELECT ks, interlock.refuse_write(ks, 6) FROM (VALUES ('account'), ('nowhere')) AS v(ks);

DROP TABLE account, stray, other, owner, holding, away;
DROP FUNCTION deposit, try_deposit, other_key, drop_row;
SELECT * FROM interlock.guarded_table;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
