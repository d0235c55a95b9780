-- Declaring keysets: what is checked, what is refused, what is noticed when the table changes later.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE TABLE orders (
    order_id bigint PRIMARY KEY,
    merchant_id integer NOT NULL,
    number integer NOT NULL,
    created_at timestamptz NOT NULL,
    paid_at timestamptz,
    code text NOT NULL,
    "Odd name" integer,
    document jsonb NOT NULL DEFAULT '{}',
    place point
);

-- a keyset, and the index that would serve it
SELECT interlock.keyset_create('by_time', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC');
CREATE INDEX orders_by_time ON public.orders (merchant_id, created_at DESC, order_id DESC);
SELECT interlock.keyset_create('backwards', 'orders', '{merchant_id}', 'created_at, order_id');
SELECT interlock.keyset_create('whole', 'orders', '{}', 'order_id', max_page => 100, default_page => 10, signed => false, scatter => true);
SELECT interlock.keyset_create('no_scope', 'orders', NULL, 'order_id DESC');
SELECT interlock.keyset_create('by_payment', 'orders', ARRAY['merchant_id', 'Odd name'], '  Paid_At desc nulls last,"code" COLLATE "C", order_id -- newest first');
SELECT interlock.keyset_create('by_time', 'orders', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT name, "table", scope, "order", max_page, default_page, signed, scatter, digest ~ '^[0-9a-f]{16}$' AS digest
  FROM interlock.keysets ORDER BY name;
SELECT count(*) AS keys FROM interlock.cursor_key;

-- which indexes serve: where a column has no NULLs, their place does not matter
CREATE INDEX orders_by_payment ON orders ("Odd name", merchant_id, paid_at NULLS FIRST, code DESC NULLS LAST, order_id DESC NULLS LAST);
SELECT interlock.keyset_create('served', 'orders', ARRAY['merchant_id', 'Odd name'], 'paid_at DESC NULLS LAST, code, order_id');
SELECT interlock.keyset_create('served_backwards', 'orders', ARRAY['merchant_id', 'Odd name'], 'paid_at ASC NULLS FIRST, code DESC, order_id DESC');
SELECT interlock.keyset_create('nulls_misplaced', 'orders', ARRAY['merchant_id', 'Odd name'], 'paid_at DESC, code, order_id');
SELECT interlock.keyset_create('mixed', 'orders', ARRAY['merchant_id', 'Odd name'], 'paid_at DESC NULLS LAST, code DESC, order_id');
SELECT interlock.keyset_create('other_collation', 'orders', ARRAY['merchant_id', 'Odd name'], 'paid_at DESC NULLS LAST, code COLLATE "und-x-icu", order_id');
SELECT interlock.keyset_create('partly', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC, number DESC');
CREATE INDEX orders_partial ON orders (number, order_id) WHERE number > 0;
SELECT interlock.keyset_create('partial', 'orders', '{}', 'number, order_id');
DROP INDEX orders_by_payment, orders_partial;

-- orders that are not total
SELECT interlock.keyset_create('k', 'orders', '{}', 'created_at DESC');
\echo SQLSTATE :SQLSTATE
CREATE UNIQUE INDEX orders_code ON orders (code) WHERE number > 0;
CREATE UNIQUE INDEX orders_lower ON orders (lower(code));
CREATE UNIQUE INDEX orders_paid_at ON orders (paid_at);
ALTER TABLE orders ADD CONSTRAINT orders_number UNIQUE (merchant_id, number) DEFERRABLE;
SELECT interlock.keyset_create('k', 'orders', '{}', 'code');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k', 'orders', '{}', 'paid_at');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k', 'orders', '{merchant_id}', 'number');
\echo SQLSTATE :SQLSTATE
ALTER TABLE orders DROP CONSTRAINT orders_number, ADD CONSTRAINT orders_number UNIQUE (merchant_id, number);
SELECT interlock.keyset_create('in_scope', 'orders', '{merchant_id}', 'number');
SELECT interlock.keyset_create('k', 'orders', '{}', 'number');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k', 'orders', '{"Odd name"}', 'merchant_id, number DESC');
DROP INDEX orders_code, orders_lower, orders_paid_at;
CREATE TABLE heap (a integer NOT NULL);
SELECT interlock.keyset_create('k2', 'heap', '{}', 'a');

-- columns
SELECT interlock.keyset_create('k2', 'orders', '{nothing}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', 'nothing, order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'Odd name, order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'ctid, order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'place, order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{document}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{merchant_id}', 'merchant_id, order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id, order_id DESC');
SELECT interlock.keyset_create('k2', 'orders', '{{merchant_id},{number}}', 'order_id');
\echo SQLSTATE :SQLSTATE

-- what is no order
SELECT interlock.keyset_create('k2', 'orders', '{}', '');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id; DROP TABLE orders');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id LIMIT 1');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id FOR UPDATE');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id OFFSET 1');
SELECT interlock.keyset_create('k2', 'orders', '{}', '1');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id + 1');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'orders.order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'lower(code), order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', '*');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id USING <');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'created_at DSC, order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id COLLATE "C"');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', 'code COLLATE nowhere, order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', (SELECT string_agg('code', ',') FROM generate_series(1, 33)));

-- arguments
SELECT interlock.keyset_create(NULL, 'orders', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', NULL, '{}', 'order_id');
SELECT interlock.keyset_create('k2', 'orders', '{NULL}', 'order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', NULL);
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id', max_page => NULL);
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id', signed => NULL);
SELECT interlock.keyset_create('', 'orders', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create(repeat('x', 64), 'orders', '{}', 'order_id');
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id', max_page => 0);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id', default_page => 0);
SELECT interlock.keyset_create('k2', 'orders', '{}', 'order_id', max_page => 20);
SELECT interlock.keyset_create('k2', 'nowhere', '{}', 'order_id');
SELECT interlock.keyset_create('k2', 0::oid::regclass, '{}', 'order_id');
\echo SQLSTATE :SQLSTATE

-- relations
CREATE VIEW some_orders AS SELECT * FROM orders;
SELECT interlock.keyset_create('k2', 'some_orders', '{}', 'order_id');
\echo SQLSTATE :SQLSTATE
CREATE MATERIALIZED VIEW all_orders AS SELECT * FROM orders;
SELECT interlock.keyset_create('k2', 'all_orders', '{}', 'order_id');
CREATE TEMPORARY TABLE t (a integer PRIMARY KEY);
SELECT interlock.keyset_create('k2', 't', '{}', 'a');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'pg_class', '{}', 'oid');
SELECT interlock.keyset_create('k2', 'interlock.keyset', '{}', 'name');
SELECT interlock.keyset_create('k2', 'orders_pkey', '{}', 'order_id');
CREATE TABLE parent (a integer PRIMARY KEY);
SELECT interlock.keyset_create('parent', 'parent', '{}', 'a');
CREATE TABLE child () INHERITS (parent);
SELECT * FROM interlock.keyset_page('parent', NULL::parent);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'parent', '{}', 'a');
DROP TABLE child;
SELECT * FROM interlock.keyset_page('parent', NULL::parent);

-- collations: where rows are merged across shards, only those that all shards have alike
CREATE COLLATION "icu nondeterministic" (provider = icu, locale = 'und', deterministic = false);
CREATE COLLATION of_libc (provider = libc, locale = 'C.UTF-8');
CREATE TABLE names (a text COLLATE "icu nondeterministic" PRIMARY KEY, b text NOT NULL UNIQUE);
SELECT interlock.keyset_create('k2', 'names', '{}', 'a');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k2', 'names', '{a}', 'b');
SELECT interlock.keyset_create('k2', 'names', '{}', 'a COLLATE "C"');
SELECT interlock.keyset_create('icu', 'names', '{}', 'b COLLATE "und-x-icu" DESC', scatter => true);
SELECT interlock.keyset_create('k3', 'names', '{}', 'b COLLATE of_libc', scatter => true);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('k3', 'names', '{}', 'b COLLATE of_libc', scatter => false);
SELECT interlock.keyset_create('k4', 'names', '{}', 'b COLLATE of_libc');
INSERT INTO names VALUES ('a', 'b');
SELECT (item).b, cursor IS NOT NULL AS cursor, sort_key FROM interlock.keyset_page('k4', NULL::names);
DROP TABLE names;
SELECT name FROM interlock.keysets WHERE name IN ('k2', 'k3', 'k4', 'icu');

-- the digest is of the declaration, not of OIDs, and of the whole of it
CREATE FUNCTION pg_temp.digest(name text, relation regclass, scope text[], "order" text, VARIADIC rest boolean[] DEFAULT '{}') RETURNS text
LANGUAGE plpgsql SET client_min_messages = error
AS $$
DECLARE
    result text;
BEGIN
    PERFORM interlock.keyset_create(name, relation, scope, "order", max_page => coalesce(100 + rest[2]::integer, 1000), signed => coalesce(rest[1], true));
    SELECT k.digest INTO result FROM interlock.keysets k WHERE k.name = digest.name;
    PERFORM interlock.keyset_drop(name);
    RETURN result;
END
$$;
CREATE TABLE items (id bigint PRIMARY KEY, a integer NOT NULL, b integer, c text COLLATE "C");
SELECT pg_temp.digest('d', 'items', '{a}', 'b, id') AS digest \gset
SELECT pg_temp.digest('d', 'items', '{a}', 'b ASC NULLS LAST, id ASC') = :'digest' AS same, pg_temp.digest('d', 'items', '{a}', 'b, id', true, true) = :'digest' AS same_whatever_max_page;
SELECT pg_temp.digest('e', 'items', '{a}', 'b, id') = :'digest' AS name, pg_temp.digest('d', 'items', '{}', 'b, id') = :'digest' AS scope,
       pg_temp.digest('d', 'items', '{a}', 'b DESC, id') = :'digest' AS direction, pg_temp.digest('d', 'items', '{a}', 'b NULLS FIRST, id') = :'digest' AS nulls,
       pg_temp.digest('d', 'items', '{a}', 'b, id', false) = :'digest' AS signed;
SELECT pg_temp.digest('d', 'items', '{}', 'c, id') <> pg_temp.digest('d', 'items', '{}', 'c COLLATE "und-x-icu", id') AS collation_matters;
DROP TABLE items;
CREATE TABLE items (extra integer, b integer, id bigint PRIMARY KEY, dropped integer, a integer NOT NULL);
ALTER TABLE items DROP COLUMN dropped;
SELECT pg_temp.digest('d', 'items', '{a}', 'b, id') = :'digest' AS same_in_another_table_of_the_name;
ALTER TABLE items ALTER COLUMN b TYPE bigint;
SELECT pg_temp.digest('d', 'items', '{a}', 'b, id') = :'digest' AS type;
DROP TABLE items;

-- keysets go with their table, and otherwise say when they do not fit it any more
CREATE TABLE items (id bigint PRIMARY KEY, a integer NOT NULL);
SELECT interlock.keyset_create('items', 'items', '{a}', 'id', scatter => false);
ALTER TABLE items RENAME COLUMN a TO b;
SELECT name, "table", scope, scatter, digest FROM interlock.keysets WHERE name = 'items';
ALTER TABLE items RENAME COLUMN b TO a;
ALTER TABLE items RENAME TO things;
SELECT name, "table", scatter, digest IS NOT NULL AS digest FROM interlock.keysets WHERE name = 'items';
DROP TABLE things;
SELECT count(*) FROM interlock.keysets WHERE name = 'items';
DROP TABLE heap, parent;
SELECT interlock.keyset_drop('k');
SELECT interlock.keyset_drop('k');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_drop(NULL);
SELECT interlock.keyset_drop('');
DROP TABLE orders CASCADE;
SELECT count(*) FROM interlock.keyset;

-- who may declare: not everybody; who may, only for tables of theirs
CREATE ROLE regress_owner;
CREATE ROLE regress_other;
GRANT CREATE ON SCHEMA public TO regress_owner;
SET ROLE regress_owner;
CREATE TABLE mine (id bigint PRIMARY KEY);
SELECT interlock.keyset_create('mine', 'mine', '{}', 'id');
RESET ROLE;
GRANT EXECUTE ON FUNCTION interlock.keyset_create, interlock.keyset_drop TO regress_owner, regress_other;
SET ROLE regress_other;
SELECT interlock.keyset_create('mine', 'mine', '{}', 'id');
\echo SQLSTATE :SQLSTATE
SET ROLE regress_owner;
SELECT interlock.keyset_create('mine', 'mine', '{}', 'id');
SELECT current_user, name, digest IS NOT NULL AS digest FROM interlock.keysets;
SELECT * FROM interlock.keyset;
SELECT * FROM interlock.keyset_decode('x');
SET ROLE regress_other;
SELECT interlock.keyset_drop('mine');
RESET ROLE;
-- nothing of the caller's is run with the owner's rights
CREATE SCHEMA regress_trap;
CREATE FUNCTION regress_trap.caught(text, text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run by %', current_user;
END $$;
CREATE OPERATOR regress_trap.= (leftarg = text, rightarg = text, function = regress_trap.caught);
GRANT USAGE ON SCHEMA regress_trap TO regress_owner;
SET ROLE regress_owner;
SET search_path = regress_trap, pg_catalog, public;
SELECT interlock.keyset_drop('mine');
SELECT interlock.keyset_create('mine', 'mine', '{}', 'id');
SELECT interlock.keyset_drop('mine');
SHOW search_path;
RESET search_path;
DROP TABLE mine;
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA regress_trap CASCADE;
-- operators of enums do not take domains over them
CREATE TYPE regress_mood AS ENUM ('sad', 'ok');
CREATE DOMAIN regress_happy AS regress_mood;
CREATE TABLE moods (id int PRIMARY KEY, mood regress_happy NOT NULL, tag uuid NOT NULL);
SELECT interlock.keyset_create('moods', 'moods', '{mood}', 'id');
\echo SQLSTATE :SQLSTATE
-- the digest is not the session's
SELECT interlock.keyset_create('moods', 'moods', '{tag}', 'id');
CREATE TABLE seen AS SELECT digest FROM interlock.keysets;
SET quote_all_identifiers = on;
SELECT digest = (SELECT digest FROM seen) AS same FROM interlock.keysets;
RESET quote_all_identifiers;
DROP TABLE moods, seen;
DROP DOMAIN regress_happy;
DROP TYPE regress_mood;
RESET client_min_messages;
REVOKE CREATE ON SCHEMA public FROM regress_owner;
DROP EXTENSION interlock;
DROP ROLE regress_owner;
DROP ROLE regress_other;
DROP COLLATION "icu nondeterministic";
DROP COLLATION of_libc;
CREATE EXTENSION interlock;
