-- Rows by their cursors, and the keysets of index tables: their cursors and sort keys are their source's.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN percent AS integer CHECK (VALUE BETWEEN 0 AND 100);
CREATE TABLE orders (
    gone integer,
    order_id bigint PRIMARY KEY,
    merchant_id integer NOT NULL,
    page_row integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    paid_at timestamp,
    rebate percent,
    feeling mood,
    amount numeric,
    code char(4),
    title text COLLATE "C" NOT NULL DEFAULT 'Title',
    note text
);
ALTER TABLE orders DROP COLUMN gone;
INSERT INTO orders
SELECT g * 7919 % 1009, g % 3, 1, '2026-01-01 00:00:00+00'::timestamptz + g / 40 * interval '1 microsecond',
       (ARRAY['infinity', '-infinity', '2026-01-01 12:00', NULL])[1 + g / 5 % 4]::timestamp,
       (ARRAY[0, 50, 100, NULL])[1 + g / 7 % 4], (ARRAY['sad', 'ok', 'happy', NULL])[1 + g / 11 % 4]::mood,
       (ARRAY['NaN', '1.0', '1.00', '-1e20', NULL])[1 + g / 3 % 5]::numeric, (ARRAY['a', 'a  ', 'B', NULL])[1 + g / 2 % 4],
       (ARRAY['a', 'B', 'ab', 'É'])[1 + g % 4], repeat('x', g)
  FROM generate_series(1, 240) g;
SET client_min_messages = error;
SELECT interlock.keyset_create('by_time', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC', max_page => 100, default_page => 5);
SELECT interlock.keyset_create('mixed', 'orders', '{}', 'paid_at DESC NULLS LAST, rebate NULLS FIRST, feeling DESC, order_id');
SELECT interlock.keyset_create('first', 'orders', '{merchant_id,page_row}', 'amount NULLS FIRST, code COLLATE "C" DESC NULLS LAST, created_at, order_id DESC');
SELECT interlock.keyset_create('scoped', 'orders', '{feeling,code,amount}', 'rebate DESC, order_id');
SELECT interlock.keyset_create('titles', 'orders', '{}', 'title COLLATE "und-x-icu" DESC, order_id');
RESET client_min_messages;

-- a page's cursors give the page's rows, cursors and sort keys: in any order, and as often as asked for
CREATE FUNCTION pg_temp.differs(keyset text, scope jsonb, backwards boolean) RETURNS TABLE (cursors bigint, wrong bigint)
LANGUAGE sql AS $$
    WITH page AS MATERIALIZED (
        SELECT p.*, o.order_id FROM interlock.keyset_page($1, NULL::orders, $2, page_size => 100) p JOIN orders o ON o = p.item),
    asked AS MATERIALIZED (SELECT array_agg(p.cursor ORDER BY CASE WHEN $3 THEN -n ELSE n END) AS all
               FROM (SELECT page.cursor, row_number() OVER () AS n FROM page UNION ALL (SELECT page.cursor, 0 FROM page LIMIT 1)) p)
    SELECT cardinality(asked.all),
           (SELECT count(*) FILTER (WHERE p.cursor IS DISTINCT FROM r.cursor OR p.sort_key IS DISTINCT FROM r.sort_key
                                       OR p.item IS DISTINCT FROM r.item OR NOT r.complete OR r.missing_shards <> '{}')
              FROM unnest(asked.all) WITH ORDINALITY AS c(cursor, n) JOIN page p USING (cursor)
              FULL JOIN interlock.keyset_rows($1, NULL::orders, $2, cursors => asked.all)
                   WITH ORDINALITY AS r(item, cursor, sort_key, complete, missing_shards, n) ON r.n = c.n)
      FROM asked
$$;
SELECT * FROM pg_temp.differs('by_time', '{"merchant_id": 1}', false);
SELECT * FROM pg_temp.differs('by_time', '{"merchant_id": 1}', true);
SELECT * FROM pg_temp.differs('mixed', NULL, false);
SELECT * FROM pg_temp.differs('mixed', '{}', true);
SELECT * FROM pg_temp.differs('first', '{"merchant_id": 0, "page_row": 1}', true);
SELECT * FROM pg_temp.differs('scoped', '{"feeling": "ok", "code": "a", "amount": 1.000}', false);
SELECT * FROM pg_temp.differs('titles', NULL, true);

-- what has left its scope or its place is not there; what has changed otherwise is, as it is now
SELECT array_agg(cursor) AS cursors FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 6) \gset
SELECT array_agg((item).order_id) AS ids FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors') \gset
BEGIN;
UPDATE orders SET merchant_id = 2 WHERE order_id = (:'ids'::bigint[])[1];
UPDATE orders SET created_at = created_at + interval '1 microsecond' WHERE order_id = (:'ids'::bigint[])[2];
DELETE FROM orders WHERE order_id = (:'ids'::bigint[])[4];
UPDATE orders SET note = 'changed' WHERE order_id = (:'ids'::bigint[])[5];
SELECT array_position(:'ids'::bigint[], (item).order_id) AS cursor, (item).note = 'changed' AS changed
  FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors');
ROLLBACK;
SELECT cursor AS place FROM interlock.keyset_page('first', NULL::orders, '{"merchant_id": 0, "page_row": 1}', page_size => 1) \gset
SELECT (item).order_id AS id, (item).amount IS NULL AS "null" FROM interlock.keyset_rows('first', NULL::orders, '{"merchant_id": 0, "page_row": 1}', cursors => ARRAY[:'place']);
BEGIN;
UPDATE orders SET amount = 0 WHERE order_id = (SELECT (item).order_id FROM interlock.keyset_rows('first', NULL::orders, '{"merchant_id": 0, "page_row": 1}', cursors => ARRAY[:'place']));
SELECT count(*) FROM interlock.keyset_rows('first', NULL::orders, '{"merchant_id": 0, "page_row": 1}', cursors => ARRAY[:'place']);
ROLLBACK;

-- one snapshot, that of the statement
WITH deleted AS (DELETE FROM orders WHERE merchant_id = 1 RETURNING 1)
SELECT (SELECT count(*) FROM deleted) AS deleted, (SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors')) AS seen;
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors');
INSERT INTO orders (order_id, merchant_id, created_at) SELECT unnest(:'ids'::bigint[]), 1, '2026-01-01 00:00:00+00';

-- a page's own arguments may stand before the cursors: they say nothing
SELECT array_agg(cursor) AS cursors, min(cursor) AS place FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 6) \gset
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', :'place', NULL, 1, cursors => :'cursors');
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', 'nonsense', 'nonsense', -1, :'cursors');
SELECT count(*) FROM interlock.keyset_rows(keyset => 'by_time', row_type => NULL::orders, scope => '{"merchant_id": 1}', page_size => 101, cursors => :'cursors');
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}');
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => '{}');
PREPARE rows(jsonb, text[]) AS SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, $1, cursors => $2);
EXECUTE rows('{"merchant_id": 1}', :'cursors');
EXECUTE rows('{"merchant_id": 1}', '{}');

-- refused: what a page refuses, and cursors that are none of this keyset and scope
SELECT count(*) FROM interlock.keyset_rows(NULL, NULL::orders, '{"merchant_id": 1}', cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('nothing', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', 1, '{"merchant_id": 1}', cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": null}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 2}', cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('mixed', NULL::orders, cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors'::text[] || 'nonsense'::text);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => ''::text || :'cursors'::text[]);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => :'cursors'::text[] || NULL::text);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => NULL);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => ARRAY[:'cursors'::text[]]);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => array_fill(''::text, '{1000001}'));
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 1}', cursors => array_fill(:'place'::text, '{2000}'));

-- each row by the unique index, whatever other index there is, and however few rows there were at first
CREATE TABLE small (id bigint PRIMARY KEY, merchant_id integer NOT NULL, at integer NOT NULL, note text);
CREATE INDEX ON small (merchant_id);
CREATE INDEX ON small (at);
CREATE INDEX ON small (merchant_id, at, id);
SELECT interlock.keyset_create('small', 'small', '{merchant_id}', 'at, id');
CREATE FUNCTION pg_temp.reads(statement text) RETURNS TABLE (fetched bigint, scans bigint, sequential bigint)
LANGUAGE plpgsql AS $$
DECLARE
    before pg_stat_xact_user_tables;
BEGIN
    SELECT s.* INTO before FROM pg_stat_xact_user_tables s WHERE s.relid = 'small'::regclass;
    EXECUTE statement;
    RETURN QUERY SELECT s.idx_tup_fetch - before.idx_tup_fetch, s.idx_scan - before.idx_scan, s.seq_scan - before.seq_scan
                   FROM pg_stat_xact_user_tables s WHERE s.relid = 'small'::regclass;
END
$$;
INSERT INTO small VALUES (-1, 1, 1), (-2, 2, 2);
VACUUM ANALYZE small;
SELECT count(*) FROM interlock.keyset_rows('small', NULL::small, '{"merchant_id": 1}');
INSERT INTO small SELECT g, 1, 1, 'n' FROM generate_series(1, 3000) g;
SELECT array_agg(cursor) AS cursors FROM interlock.keyset_page('small', NULL::small, '{"merchant_id": 1}', page_size => 40) \gset
BEGIN;
SELECT * FROM pg_temp.reads(format($$SELECT count(*) FROM interlock.keyset_rows('small', NULL::small, '{"merchant_id": 1}', cursors => %L)$$, :'cursors'));
COMMIT;
INSERT INTO small SELECT g, g, g, 'n' FROM generate_series(3001, 9000) g;
ANALYZE small;
BEGIN;
SELECT * FROM pg_temp.reads(format($$SELECT count(*) FROM interlock.keyset_rows('small', NULL::small, '{"merchant_id": 1}', cursors => %L)$$, :'cursors'));
COMMIT;
DROP TABLE small;

-- partitions, one of which has its columns elsewhere
CREATE TABLE events (event_id bigint, day date NOT NULL, PRIMARY KEY (event_id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 (note text, day date NOT NULL, event_id bigint NOT NULL);
ALTER TABLE events_1 DROP COLUMN note;
ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
CREATE INDEX ON events (day DESC, event_id DESC);
SELECT interlock.keyset_create('events', 'events', '{}', 'day DESC, event_id DESC');
INSERT INTO events SELECT g, '2026-01-01'::date + g % 50 FROM generate_series(1, 200) g;
SELECT array_agg(cursor) AS cursors FROM interlock.keyset_page('events', NULL::events, page_size => 200) \gset
SELECT array_agg((item).event_id) = (SELECT array_agg(event_id ORDER BY day DESC, event_id DESC) FROM events) AS equal, count(DISTINCT cursor)
  FROM interlock.keyset_rows('events', NULL::events, cursors => :'cursors');
DROP TABLE events;

-- the caller's own privileges and policies
CREATE TABLE accounts (id bigint PRIMARY KEY, owner name NOT NULL);
INSERT INTO accounts SELECT g, CASE WHEN g % 3 = 0 THEN 'regress_a' ELSE 'regress_b' END FROM generate_series(1, 9) g;
SELECT interlock.keyset_create('accounts', 'accounts', '{}', 'id');
SELECT array_agg(cursor) AS cursors FROM interlock.keyset_page('accounts', NULL::accounts) \gset
CREATE ROLE regress_a;
CREATE ROLE regress_b;
SET ROLE regress_a;
SELECT count(*) FROM interlock.keyset_rows('accounts', NULL::accounts, cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
RESET ROLE;
GRANT SELECT ON accounts TO regress_a, regress_b;
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON accounts USING (owner = current_user);
SELECT array_agg((item).id) FROM interlock.keyset_rows('accounts', NULL::accounts, cursors => :'cursors');
SET ROLE regress_a;
SELECT array_agg((item).id) FROM interlock.keyset_rows('accounts', NULL::accounts, cursors => :'cursors');
SET ROLE regress_b;
SELECT array_agg((item).id) FROM interlock.keyset_rows('accounts', NULL::accounts, cursors => :'cursors');
SELECT interlock.keyset_create_index('i', 'accounts', 'accounts', 'public.accounts', '{}', 'id');
\echo SQLSTATE :SQLSTATE
RESET ROLE;
DROP TABLE accounts;
DROP ROLE regress_a;
DROP ROLE regress_b;

-- an index table: the same cursors and sort keys, without its entries that are gone
CREATE SCHEMA regress_index;
CREATE TABLE regress_index.by_time (order_id bigint NOT NULL, created_at timestamptz NOT NULL, merchant_id integer NOT NULL,
    interlock_shard text NOT NULL, interlock_deleted boolean NOT NULL DEFAULT false, PRIMARY KEY (order_id));
INSERT INTO regress_index.by_time SELECT order_id, created_at, merchant_id, 's0' FROM orders;
CREATE INDEX ON regress_index.by_time (merchant_id, created_at DESC, order_id DESC) WHERE NOT interlock_deleted;
SELECT interlock.keyset_create_index('regress_index.by_time', 'regress_index.by_time', 'by_time', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC', 10000, 5);
SELECT name, "table", scope, "order", max_page, default_page, scatter, digest = (SELECT digest FROM interlock.keysets WHERE name = 'by_time') AS same FROM interlock.keysets WHERE name = 'regress_index.by_time';
SELECT count(*), count(*) FILTER (WHERE i.cursor IS DISTINCT FROM o.cursor OR i.sort_key IS DISTINCT FROM o.sort_key) AS wrong
  FROM interlock.keyset_page('regress_index.by_time', NULL::regress_index.by_time, '{"merchant_id": 2}', page_size => 100) WITH ORDINALITY AS i(item, cursor, sort_key, c, m, n)
  FULL JOIN interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 2}', page_size => 100) WITH ORDINALITY AS o(item, cursor, sort_key, c, m, n) USING (n);
SELECT cursor AS place, (item).order_id AS id FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 2}', page_size => 1) \gset
UPDATE regress_index.by_time SET interlock_deleted = true WHERE order_id <> :id AND order_id % 2 = 0 OR order_id = :id;
SELECT count(*), bool_or((item).interlock_deleted) AS deleted
  FROM interlock.keyset_page('regress_index.by_time', NULL::regress_index.by_time, '{"merchant_id": 2}', page_size => 1000);
SELECT count(*) = (SELECT count(*) FROM regress_index.by_time WHERE merchant_id = 2 AND NOT interlock_deleted) AS rest
  FROM interlock.keyset_page('regress_index.by_time', NULL::regress_index.by_time, '{"merchant_id": 2}', after => :'place', page_size => 1000);
SELECT count(*) FROM interlock.keyset_rows('regress_index.by_time', NULL::regress_index.by_time, '{"merchant_id": 2}', cursors => ARRAY[:'place']);
SELECT count(*) FROM interlock.keyset_rows('by_time', NULL::orders, '{"merchant_id": 2}', cursors => ARRAY[:'place']);
SELECT predicate FROM interlock.keyset_predicate('regress_index.by_time', '{"merchant_id": 2}');
SELECT DISTINCT keyset, authentic FROM interlock.keyset_decode(:'place');
SELECT count(*) FROM interlock.keyset_page('regress_index.by_time', NULL::regress_index.by_time, '{"merchant_id": 1}', after => :'place');
\echo SQLSTATE :SQLSTATE
-- (a sequential page would read all of it)
SET enable_sort = off;
EXPLAIN (COSTS off) SELECT * FROM regress_index.by_time WHERE merchant_id = 2 AND NOT interlock_deleted ORDER BY created_at DESC, order_id DESC LIMIT 10;
RESET enable_sort;
SELECT interlock.keyset_drop('regress_index.by_time');
-- of another name, table or column another one's
SELECT interlock.keyset_create_index('i1', 'regress_index.by_time', 'by_time', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC'),
       interlock.keyset_create_index('i2', 'regress_index.by_time', 'by_hour', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC'),
       interlock.keyset_create_index('i3', 'regress_index.by_time', 'by_time', 'public."Orders"', '{merchant_id}', 'created_at DESC, order_id DESC'),
       interlock.keyset_create_index('i4', 'regress_index.by_time', 'by_time', 'shop.orders', '{merchant_id}', 'created_at DESC, order_id DESC'),
       interlock.keyset_create_index('i5', 'regress_index.by_time', 'by_time', 'Public.ORDERS', '{merchant_id}', 'created_at, order_id'),
       interlock.keyset_create_index('i6', 'regress_index.by_time', 'by_time', 'Public.ORDERS', '{merchant_id}', 'created_at DESC, order_id DESC');
SELECT name FROM interlock.keysets WHERE digest = (SELECT digest FROM interlock.keysets WHERE name = 'by_time') ORDER BY name;
SELECT source_keyset, source_schema, source_table FROM interlock.keyset WHERE name IN ('i3', 'i4', 'by_time') ORDER BY name;

-- what an index table is not
SELECT interlock.keyset_create_index('j', 'orders', 'by_time', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create_index('j', 'regress_index.by_time', 'by_time', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create_index('j', 'regress_index.by_time', '', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create_index('j', 'regress_index.by_time', NULL, 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create_index('i1', 'regress_index.by_time', 'by_time', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC');
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create_index('j', 'regress_index.by_time', 'by_time', 'public.orders', '{merchant_id}', 'created_at DESC, order_id DESC', max_page => NULL);
\echo SQLSTATE :SQLSTATE
DROP TABLE regress_index.by_time;
SELECT name FROM interlock.keysets WHERE name ~ '^i';
-- its order need not be total here, but one that shards cannot merge is refused; an index that does not serve is told
CREATE COLLATION regress_libc (provider = libc, locale = 'C.utf8');
CREATE TABLE regress_index.titles (id bigint NOT NULL, title text COLLATE "C" NOT NULL, word text COLLATE regress_libc NOT NULL, interlock_deleted boolean NOT NULL);
SELECT interlock.keyset_create_index('titles.1', 'regress_index.titles', 'titles', 'public.titles', '{}', 'title, id');
CREATE INDEX ON regress_index.titles (title, id) WHERE interlock_deleted;
SELECT interlock.keyset_create_index('titles.2', 'regress_index.titles', 'titles', 'public.titles', '{}', 'title, id');
CREATE INDEX ON regress_index.titles (title, id) WHERE NOT interlock_deleted;
SELECT interlock.keyset_create_index('titles.3', 'regress_index.titles', 'titles', 'public.titles', '{}', 'title, id');
SELECT interlock.keyset_create_index('words', 'regress_index.titles', 'words', 'public.titles', '{}', 'word, id');
\echo SQLSTATE :SQLSTATE
INSERT INTO regress_index.titles VALUES (1, 'a', 'a', false), (2, 'a', 'a', true), (3, 'b', 'b', false);
SELECT (r.item).id FROM interlock.keyset_rows('titles.3', NULL::regress_index.titles,
    cursors => (SELECT array_agg(cursor) FROM interlock.keyset_page('titles.1', NULL::regress_index.titles))) r;
ALTER TABLE regress_index.titles ALTER interlock_deleted DROP NOT NULL;
SELECT count(*) FROM interlock.keyset_page('titles.1', NULL::regress_index.titles);
\echo SQLSTATE :SQLSTATE
DROP TABLE regress_index.titles;
DROP SCHEMA regress_index;
DROP COLLATION regress_libc;

-- on a shard, only rows of buckets whose reads it answers
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 4);
SELECT interlock.accept_buckets('account', '{0,1,2,3}', 1);
CREATE TABLE entries (id bigint PRIMARY KEY, account_id bigint NOT NULL, note text NOT NULL);
INSERT INTO entries SELECT g, g, 'n' FROM generate_series(1, 40) g;
SELECT interlock.shard_table('entries', 'account', 'account_id');
SELECT interlock.keyset_create('entries', 'entries', '{}', 'id');
SELECT array_agg(cursor) AS cursors FROM interlock.keyset_page('entries', NULL::entries) \gset
SELECT count(*) FROM interlock.keyset_rows('entries', NULL::entries, cursors => :'cursors');
UPDATE interlock.bucket_state SET state = 'fenced', peer = 's1' WHERE bucket = 0;
UPDATE interlock.bucket_state SET state = 'importing', peer = 's1' WHERE bucket = 1;
UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 2;
SELECT array_agg(DISTINCT interlock.bucket_of('account', (item).account_id)) FROM interlock.keyset_rows('entries', NULL::entries, cursors => :'cursors');
UPDATE interlock.bucket_state SET state = 'owned';
UPDATE interlock.shard_identity SET database_oid = 1;
SELECT count(*) FROM interlock.keyset_rows('entries', NULL::entries, cursors => :'cursors');
\echo SQLSTATE :SQLSTATE
DROP TABLE entries, orders;
DROP DOMAIN percent;
DROP TYPE mood;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
