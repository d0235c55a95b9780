-- While buckets are on the move their tables stay as they are: what is not in ALTER TABLE.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
SELECT interlock.define_keyspace('other', 'bigint', 'splitmix64', 16);
SELECT interlock.accept_buckets('account', '{0,1}', 1), interlock.accept_buckets('other', '{0}', 1);
CREATE SCHEMA bank;
CREATE SCHEMA elsewhere;
CREATE TYPE bank.mood AS ENUM ('sad', 'glad');
CREATE DOMAIN bank.moods AS bank.mood[];
CREATE DOMAIN bank.street AS text;
CREATE TYPE bank.place AS (street bank.street, number int);
CREATE TYPE bank.tint AS ENUM ('dark');
CREATE DOMAIN bank.tints AS bank.tint;
CREATE TYPE bank.flag AS ENUM ('up');
CREATE TYPE bank.span AS RANGE (subtype = numeric);
CREATE DOMAIN bank.amount AS numeric CHECK (VALUE >= 0);
CREATE TYPE bank.amounts AS RANGE (subtype = bank.amount);
CREATE TYPE elsewhere.colour AS ENUM ('red');
CREATE TABLE bank.account (account_id bigint NOT NULL, code text NOT NULL, m bank.moods, p bank.place) PARTITION BY LIST (account_id);
CREATE TABLE bank.account_rest PARTITION OF bank.account DEFAULT;
CREATE TABLE bank.entry (account_id bigint PRIMARY KEY, n int NOT NULL, a bank.amounts, t bank.tints, f bank.flag[]);
CREATE TABLE elsewhere.plain (account_id bigint PRIMARY KEY, c elsewhere.colour, s bank.span);
CREATE INDEX by_code ON bank.account (code);
CREATE UNIQUE INDEX identity ON bank.entry (account_id, n);
ALTER TABLE bank.entry REPLICA IDENTITY USING INDEX identity;
CREATE INDEX by_colour ON elsewhere.plain (c);
CREATE INDEX by_span ON elsewhere.plain (s);
CREATE INDEX by_both ON elsewhere.plain (s, c);
SELECT interlock.shard_table('bank.account', 'account', 'account_id'), interlock.shard_table('bank.entry', 'account', 'account_id'),
       interlock.shard_table('elsewhere.plain', 'other', 'account_id');
SELECT interlock.begin_export('account', '{0}', 's1', '00000000-0000-0000-0000-0000000000a1');

-- indexes: the replica identity, and all others
DROP INDEX bank.identity;
\echo SQLSTATE :SQLSTATE
DROP INDEX CONCURRENTLY bank.identity;
\echo SQLSTATE :SQLSTATE
SELECT indisvalid, indisreplident FROM pg_index WHERE indexrelid = 'bank.identity'::regclass;
DROP INDEX bank.by_code;
DROP INDEX bank.account_rest_code_idx;
DROP INDEX elsewhere.by_colour, bank.identity;
DROP INDEX bank.no_such_index;
DROP INDEX IF EXISTS bank.no_such_index;
DROP INDEX elsewhere.by_colour;
DROP INDEX CONCURRENTLY elsewhere.by_span;
ALTER INDEX bank.identity RENAME TO identity_of_old;
\echo SQLSTATE :SQLSTATE
-- what is dropped behind the first check's back is found at the end
ALTER EVENT TRIGGER interlock_move_drop_index DISABLE;
DROP INDEX bank.identity;
\echo SQLSTATE :SQLSTATE
DROP INDEX elsewhere.by_both;
ALTER EVENT TRIGGER interlock_move_drop_index ENABLE;
REINDEX TABLE bank.entry;

-- types, however far away the column is
ALTER TYPE bank.mood ADD VALUE 'so so';
\echo SQLSTATE :SQLSTATE
ALTER TYPE bank.mood RENAME VALUE 'sad' TO 'blue';
ALTER TYPE bank.mood RENAME TO temper;
ALTER DOMAIN bank.moods ADD CONSTRAINT few CHECK (cardinality(VALUE) < 10);
ALTER TYPE bank.tint ADD VALUE 'light';
ALTER TYPE bank.flag ADD VALUE 'down';
ALTER DOMAIN bank.street RENAME TO road;
ALTER TYPE bank.place SET SCHEMA elsewhere;
ALTER DOMAIN bank.amount DROP CONSTRAINT amount_check;
ALTER TYPE elsewhere.colour ADD VALUE 'blue';
ALTER TYPE bank.span RENAME TO width;
CREATE TYPE bank.size AS ENUM ('small');
ALTER TYPE bank.size ADD VALUE 'large';
DROP TYPE bank.size;

-- the name that rows travel under
ALTER SCHEMA bank RENAME TO bench;
\echo SQLSTATE :SQLSTATE
ALTER SCHEMA elsewhere RENAME TO somewhere;
GRANT USAGE ON SCHEMA bank TO PUBLIC;
COMMENT ON TYPE bank.mood IS 'mood';

-- the move ends
SELECT interlock.abort_export('00000000-0000-0000-0000-0000000000a1');
DROP INDEX bank.by_code;
ALTER TYPE bank.mood ADD VALUE 'so so';
ALTER SCHEMA bank RENAME TO bench;
DROP INDEX CONCURRENTLY bench.identity;

-- called by hand
SELECT interlock.on_move_drop_index();
\echo SQLSTATE :SQLSTATE
DROP SCHEMA bench, somewhere CASCADE;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
