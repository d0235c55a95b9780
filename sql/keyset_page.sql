-- Pages: walks in both directions, arguments, privileges, and what a page says when its keyset or its
-- table has changed.
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
    note text
);
ALTER TABLE orders DROP COLUMN gone;
-- (ties everywhere, NULLs in each nullable column, values that are equal and differ in bytes)
INSERT INTO orders
SELECT g * 7919 % 1009, g % 3, 1, '2026-01-01 00:00:00+00'::timestamptz + g / 40 * interval '1 microsecond',
       (ARRAY['infinity', '-infinity', '2026-01-01 12:00', NULL])[1 + g / 5 % 4]::timestamp,
       (ARRAY[0, 50, 100, NULL])[1 + g / 7 % 4], (ARRAY['sad', 'ok', 'happy', NULL])[1 + g / 11 % 4]::mood,
       (ARRAY['NaN', '1.0', '1.00', '-1e20', NULL])[1 + g / 3 % 5]::numeric, (ARRAY['a', 'a  ', 'B', NULL])[1 + g / 2 % 4],
       repeat('x', g)
  FROM generate_series(1, 240) g;
SELECT interlock.keyset_create('by_time', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC', max_page => 100, default_page => 5);
CREATE INDEX ON orders (merchant_id, created_at DESC, order_id DESC);

-- the first page, the next, the one before
SELECT (item).order_id, (item).created_at AT TIME ZONE 'UTC' - '2026-01-01' AS age, cursor ~ '^[A-Za-z0-9_-]+$' AS cursor,
       substr(sort_key, 1, 8) = (SELECT decode(digest, 'hex') FROM interlock.keysets) AS keyset, complete, missing_shards
  FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
CREATE FUNCTION pg_temp.page(scope jsonb, after bigint, before bigint, page_size integer) RETURNS SETOF bigint
LANGUAGE sql AS $$
    SELECT (item).order_id
      FROM interlock.keyset_page('by_time', NULL::orders, $1, (SELECT interlock.keyset_cursor('by_time', o) FROM orders o WHERE order_id = $2),
                                 (SELECT interlock.keyset_cursor('by_time', o) FROM orders o WHERE order_id = $3), $4)
$$;
SELECT array_agg(i) FROM pg_temp.page('{"merchant_id": 1}', NULL, NULL, 10) i;
SELECT array_agg(i) FROM pg_temp.page('{"merchant_id": 1}', 828, NULL, 4) i;
SELECT array_agg(i) FROM pg_temp.page('{"merchant_id": 1}', NULL, 373, 2) i;
SELECT array_agg(i) FROM pg_temp.page('{"merchant_id": 1}', NULL, 373, 100) i;
SELECT count(*) FROM pg_temp.page('{"merchant_id": 1}', NULL, NULL, 100) i;
SELECT count(*) FROM pg_temp.page('{"merchant_id": 7}', NULL, NULL, 100) i;

-- Walks through a keyset by pages of a size, forwards and backwards, and compares them with the sorted
-- table; the sort keys have to ascend as bytes. Returns what is wrong.
CREATE FUNCTION pg_temp.walk(keyset text, scope jsonb, condition text, sizes integer[]) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    truth bigint[];
    walked bigint[];
    row record;
    place text;
    last text;
    key bytea;
    size integer;
    seen integer;
BEGIN
    EXECUTE format('SELECT array_agg(order_id ORDER BY %s) FROM orders WHERE %s',
                   (SELECT "order" FROM interlock.keysets k WHERE k.name = keyset), condition) INTO truth;
    FOREACH size IN ARRAY sizes LOOP
        walked := '{}'; place := NULL; key := '';
        LOOP
            seen := 0;
            FOR row IN SELECT p.* FROM interlock.keyset_page(keyset, NULL::orders, scope, after => place, page_size => size) p LOOP
                walked := walked || (row.item).order_id; last := row.cursor; seen := seen + 1;
                IF row.sort_key <= key THEN RETURN NEXT format('sort key of row %s by %s', cardinality(walked), size); END IF;
                IF row.cursor <> interlock.keyset_cursor(keyset, row.item) THEN RETURN NEXT 'cursor of the row is another one'; END IF;
                key := row.sort_key;
            END LOOP;
            EXIT WHEN seen = 0 OR cardinality(walked) > cardinality(truth);
            place := last;
        END LOOP;
        IF walked <> truth THEN RETURN NEXT format('forwards by %s: %s instead of %s', size, walked, truth); END IF;
        walked := ARRAY[truth[cardinality(truth)]]; place := last;
        LOOP
            seen := 0;
            FOR row IN SELECT p.* FROM interlock.keyset_page(keyset, NULL::orders, scope, before => place, page_size => size) WITH ORDINALITY p
                        ORDER BY p.ordinality DESC LOOP
                walked := (row.item).order_id || walked; place := row.cursor; seen := seen + 1;
            END LOOP;
            EXIT WHEN seen = 0 OR cardinality(walked) > cardinality(truth);
        END LOOP;
        IF walked <> truth THEN RETURN NEXT format('backwards by %s: %s instead of %s', size, walked, truth); END IF;
    END LOOP;
END
$$;
SELECT pg_temp.walk('by_time', '{"merchant_id": 2}', 'merchant_id = 2', '{1,2,3,37,80,100}');

-- mixed directions, NULLs at both ends, every kind of range
SET client_min_messages = error;
SELECT interlock.keyset_create('mixed', 'orders', '{}', 'paid_at DESC NULLS LAST, rebate NULLS FIRST, feeling DESC, order_id');
SELECT interlock.keyset_create('first', 'orders', '{merchant_id,page_row}', 'amount NULLS FIRST, code COLLATE "C" DESC NULLS LAST, created_at, order_id DESC');
SELECT interlock.keyset_create('middle', 'orders', '{}', 'feeling NULLS FIRST, order_id DESC, amount');
SELECT interlock.keyset_create('nullable_scope', 'orders', '{feeling,code,amount}', 'rebate DESC, order_id');
RESET client_min_messages;
SELECT pg_temp.walk('mixed', NULL, 'true', '{1,2,7,50,240,1000}');
SELECT pg_temp.walk('mixed', '{}', 'true', '{19}');
SELECT pg_temp.walk('first', '{"merchant_id": 0, "page_row": 1}', 'merchant_id = 0 AND page_row = 1', '{1,3,80}');
SELECT pg_temp.walk('middle', NULL, 'true', '{1,60}');
SELECT pg_temp.walk('nullable_scope', '{"feeling": "ok", "code": "a", "amount": 1}', 'feeling = ''ok'' AND code = ''a'' AND amount = 1', '{1,2,3}');
-- the same plans serve an index, and are made anew where it appears
CREATE INDEX ON orders (paid_at DESC NULLS LAST, rebate NULLS FIRST, feeling DESC, order_id);
SELECT pg_temp.walk('mixed', NULL, 'true', '{1,50}');

-- scopes are read by the columns' types; equal values are one scope
SELECT array_agg((item).order_id) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": "1"}', page_size => 3);
SELECT (SELECT interlock.keyset_cursor('nullable_scope', o) FROM orders o WHERE feeling = 'ok' AND code = 'a' AND amount = 1 ORDER BY order_id LIMIT 1) AS place \gset
SELECT count(*) = (SELECT count(*) FROM interlock.keyset_page('nullable_scope', NULL::orders, '{"feeling": "ok", "code": "a  ", "amount": "1.000"}', :'place')) AS same
  FROM interlock.keyset_page('nullable_scope', NULL::orders, '{"amount": 1.0, "code": "a", "feeling": "ok"}', :'place');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1.5}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 99999999999}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": true}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": null}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": [1]}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": {"merchant_id": 1}}');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{}');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1, "order_id": 2}');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"Merchant_id": 1}');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '[{"merchant_id": 1}]');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '1');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, 'null');
SELECT count(*) FROM interlock.keyset_page('mixed', NULL::orders, '{"merchant_id": 1}');
SELECT count(*) FROM interlock.keyset_page('mixed', NULL::orders, '[]');

-- sizes
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 0);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => -1);
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 101);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 2147483647);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_create('large', 'orders', NULL, 'order_id', max_page => 2147483647);
SELECT count(*) FROM interlock.keyset_page('large', NULL::orders, page_size => 2147483647);

-- keysets and row types
SELECT count(*) FROM interlock.keyset_page(NULL, NULL::orders);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('nothing', NULL::orders);
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page(repeat('x', 1000), NULL::orders);
\echo SQLSTATE :SQLSTATE
CREATE TABLE others (LIKE orders INCLUDING ALL);
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::others, '{"merchant_id": 1}');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', 1, '{"merchant_id": 1}');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL, '{"merchant_id": 1}');
SELECT count(*) FROM interlock.keyset_page('by_time', (SELECT o FROM orders o LIMIT 1), '{"merchant_id": 1}');

-- cursors of others
SELECT cursor AS place FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 1) \gset
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 2}', :'place');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('mixed', NULL::orders, after => :'place');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', '');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', before => 'nonsense');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', :'place', :'place');
\echo SQLSTATE :SQLSTATE

-- wherever a function may stand
SELECT (p).item.order_id, (p).complete FROM (SELECT interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 2) AS p OFFSET 0) s;
SELECT m, (item).order_id FROM generate_series(0, 2) m, interlock.keyset_page('by_time', NULL::orders, jsonb_build_object('merchant_id', m), page_size => 1);
SELECT (o).order_id, n FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 2) WITH ORDINALITY AS p(o, c, s, complete, missing, n);
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT (item).order_id FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 3);
MOVE 2 FROM c;
FETCH BACKWARD 1 FROM c;
COMMIT;
PREPARE page(jsonb, text, integer) AS SELECT array_agg((item).order_id) FROM interlock.keyset_page('by_time', NULL::orders, $1, $2, page_size => $3);
EXECUTE page('{"merchant_id": 1}', :'place', 3);
EXECUTE page('{"merchant_id": 1}', NULL, NULL);

-- one snapshot, that of the statement: what it does itself is not in it
BEGIN;
WITH deleted AS (DELETE FROM orders WHERE merchant_id = 1 RETURNING 1)
SELECT (SELECT count(*) FROM deleted) AS deleted, (SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 100)) AS seen;
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
ROLLBACK;

-- a page reads no more rows than it gives, and sorts none
CREATE FUNCTION pg_temp.fetched(statement text) RETURNS TABLE (fetched bigint, scans bigint, sequential bigint)
LANGUAGE plpgsql AS $$
DECLARE
    before pg_stat_xact_user_tables;
BEGIN
    SELECT s.* INTO before FROM pg_stat_xact_user_tables s WHERE s.relid = 'orders'::regclass;
    EXECUTE statement;
    RETURN QUERY SELECT s.idx_tup_fetch - before.idx_tup_fetch, s.idx_scan - before.idx_scan, s.seq_scan - before.seq_scan
                   FROM pg_stat_xact_user_tables s WHERE s.relid = 'orders'::regclass;
END
$$;
ANALYZE orders;
BEGIN;
SELECT * FROM pg_temp.fetched($$SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 7)$$);
SELECT * FROM pg_temp.fetched(format($$SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', %L, page_size => 7)$$, :'place'));
SELECT cursor AS place FROM interlock.keyset_page('mixed', NULL::orders, page_size => 1) \gset
SELECT * FROM pg_temp.fetched(format($$SELECT count(*) FROM interlock.keyset_page('mixed', NULL::orders, after => %L, page_size => 100)$$, :'place'));
SELECT cursor AS place FROM interlock.keyset_page('mixed', NULL::orders, page_size => 240) OFFSET 230 LIMIT 1 \gset
SELECT * FROM pg_temp.fetched(format($$SELECT count(*) FROM interlock.keyset_page('mixed', NULL::orders, before => %L, page_size => 100)$$, :'place'));
COMMIT;

-- unsigned cursors, and keys
SELECT interlock.keyset_create('unsigned', 'orders', '{}', 'order_id DESC', signed => false);
SELECT pg_temp.walk('unsigned', NULL, 'true', '{13}');
DELETE FROM interlock.cursor_key;
SELECT count(*) FROM interlock.keyset_page('unsigned', NULL::orders);
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
\echo SQLSTATE :SQLSTATE
SELECT interlock.cursor_key_add();
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');

-- another declaration of the same name takes other cursors
SELECT cursor AS place FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 1) \gset
BEGIN;
SELECT interlock.keyset_drop('by_time');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
\echo SQLSTATE :SQLSTATE
ROLLBACK;
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', :'place');
SELECT interlock.keyset_drop('by_time'), interlock.keyset_create('by_time', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC', max_page => 3, default_page => 2);
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', :'place');
SELECT interlock.keyset_drop('by_time'), interlock.keyset_create('by_time', 'orders', '{merchant_id}', 'created_at, order_id');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', :'place');
\echo SQLSTATE :SQLSTATE

-- the table changes
ALTER TABLE orders RENAME TO "Orders";
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::"Orders", '{"merchant_id": 1}');
CREATE SCHEMA regress_shop;
ALTER TABLE "Orders" SET SCHEMA regress_shop;
SELECT (item).order_id FROM interlock.keyset_page('by_time', NULL::regress_shop."Orders", '{"merchant_id": 1}', page_size => 1);
ALTER SCHEMA regress_shop RENAME TO regress_store;
SELECT (item).order_id FROM interlock.keyset_page('by_time', NULL::regress_store."Orders", '{"merchant_id": 1}', page_size => 1);
ALTER TABLE regress_store."Orders" SET SCHEMA public;
ALTER TABLE "Orders" RENAME TO orders;
DROP SCHEMA regress_store;
ALTER TABLE orders ADD COLUMN added integer DEFAULT 5;
SELECT (item).order_id, (item).added FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 1);
SELECT cursor AS place FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 1) \gset
ALTER TABLE orders ALTER COLUMN created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC';
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', :'place');
\echo SQLSTATE :SQLSTATE
ALTER TABLE orders ALTER COLUMN merchant_id TYPE text;
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
ALTER TABLE orders ALTER COLUMN merchant_id TYPE jsonb USING to_jsonb(1);
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
\echo SQLSTATE :SQLSTATE
ALTER TABLE orders DROP COLUMN merchant_id;
SELECT count(*) FROM interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}');
\echo SQLSTATE :SQLSTATE
SELECT cursor AS place FROM interlock.keyset_page('large', NULL::orders, page_size => 1) \gset
ALTER TABLE orders DROP CONSTRAINT orders_pkey;
SELECT count(*) FROM interlock.keyset_page('large', NULL::orders, after => :'place');
\echo SQLSTATE :SQLSTATE
ALTER TABLE orders ADD UNIQUE (order_id);
SELECT count(*) FROM interlock.keyset_page('large', NULL::orders, after => :'place', page_size => 10);
ALTER TABLE orders ALTER COLUMN order_id DROP NOT NULL;
SELECT count(*) FROM interlock.keyset_page('large', NULL::orders, after => :'place');
\echo SQLSTATE :SQLSTATE
ALTER TABLE orders ALTER COLUMN order_id SET NOT NULL;
-- NULLs that are not there any more change the ranges, not the order
SELECT cursor AS place FROM interlock.keyset_page('middle', NULL::orders, page_size => 1) \gset
SELECT (item).feeling IS NULL AS "null" FROM interlock.keyset_page('middle', NULL::orders, page_size => 1);
DELETE FROM orders WHERE feeling IS NULL;
ALTER TABLE orders ALTER COLUMN feeling SET NOT NULL;
SELECT pg_temp.walk('middle', NULL, 'true', '{17}');
SELECT count(*) FROM interlock.keyset_page('middle', NULL::orders, after => :'place');
\echo SQLSTATE :SQLSTATE
-- the order of an enum's labels
SELECT cursor AS place FROM interlock.keyset_page('middle', NULL::orders, page_size => 1) \gset
ALTER TYPE mood ADD VALUE 'angry' BEFORE 'ok';
SELECT count(*) FROM interlock.keyset_page('middle', NULL::orders, after => :'place', page_size => 10);
\echo SQLSTATE :SQLSTATE
SELECT pg_temp.walk('middle', NULL, 'true', '{17}');
DROP TABLE orders, others;
SELECT count(*) FROM interlock.keysets;
DROP DOMAIN percent;
DROP TYPE mood;

-- rows come whole, however they are stored: out of line, compressed, from before a column was added
CREATE TABLE documents (id bigint PRIMARY KEY, title text COLLATE "C" NOT NULL, body text, bytes bytea);
ALTER TABLE documents ALTER bytes SET STORAGE EXTERNAL;
INSERT INTO documents SELECT g, repeat(g::text, 500 * g), repeat('body ' || g, 3000 * g), decode(repeat(md5(g::text), 400 * g), 'hex') FROM generate_series(1, 4) g;
ALTER TABLE documents ADD COLUMN added integer DEFAULT 5, ADD COLUMN later text;
INSERT INTO documents VALUES (5, 'five', 'body', '\x05', NULL, 'later');
SELECT interlock.keyset_create('documents', 'documents', '{}', 'id');
SELECT (item).id, item = d AS equal, length((item).title) AS title, length((item).body) AS body, length((item).bytes) AS bytes, (item).added, (item).later
  FROM interlock.keyset_page('documents', NULL::documents) JOIN documents d ON d.id = (item).id ORDER BY 1;
SELECT (item).id, item = d AS equal FROM interlock.keyset_page('documents', NULL::documents, before => (SELECT interlock.keyset_cursor('documents', d) FROM documents d WHERE id = 3)) JOIN documents d ON d.id = (item).id ORDER BY 1;
SET client_min_messages = error;
SELECT interlock.keyset_create('titles', 'documents', '{}', 'title DESC, id');
RESET client_min_messages;
SELECT (item).id, length(cursor) > 1000 AS long FROM interlock.keyset_page('titles', NULL::documents, page_size => 3);
SELECT (item).id FROM interlock.keyset_page('titles', NULL::documents, after => (SELECT interlock.keyset_cursor('titles', d) FROM documents d WHERE id = 3));
CREATE TABLE copies AS SELECT (item).* FROM interlock.keyset_page('documents', NULL::documents);
SELECT count(*) FROM copies JOIN documents USING (id, title, body, bytes) WHERE (copies.added, copies.later) IS NOT DISTINCT FROM (documents.added, documents.later);
DROP TABLE copies, documents;

-- partitions, one of which has its columns elsewhere
CREATE TABLE events (event_id bigint, day date NOT NULL, PRIMARY KEY (event_id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 (note text, day date NOT NULL, event_id bigint NOT NULL);
ALTER TABLE events_1 DROP COLUMN note;
ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
SELECT interlock.keyset_create('partitioned', 'events', '{}', 'day DESC, event_id DESC');
CREATE INDEX ON events (day DESC, event_id DESC);
INSERT INTO events SELECT g, '2026-01-01'::date + g % 50 FROM generate_series(1, 200) g;
SELECT (item).event_id, to_char((item).day, 'YYYY-MM-DD') AS day FROM interlock.keyset_page('partitioned', NULL::events, page_size => 6);
SELECT cursor AS place FROM interlock.keyset_page('partitioned', NULL::events, page_size => 70) OFFSET 69 \gset
SELECT array_agg(i) = (SELECT array_agg(event_id ORDER BY day DESC, event_id DESC) FROM events) AS equal
  FROM (SELECT (item).event_id FROM interlock.keyset_page('partitioned', NULL::events, page_size => 70)
        UNION ALL
        SELECT (item).event_id FROM interlock.keyset_page('partitioned', NULL::events, after => :'place', page_size => 200)) AS pages(i);
SELECT interlock.keyset_create('partition', 'events_1', '{}', 'day DESC, event_id DESC');
SELECT count(*), to_char(max((item).day), 'YYYY-MM-DD') AS last FROM interlock.keyset_page('partition', NULL::events_1, page_size => 500);
DROP TABLE events;
SELECT count(*) FROM interlock.keysets;

-- the caller's own privileges and policies
CREATE TABLE accounts (id bigint PRIMARY KEY, owner name NOT NULL);
INSERT INTO accounts SELECT g, CASE WHEN g % 3 = 0 THEN 'regress_a' ELSE 'regress_b' END FROM generate_series(1, 9) g;
SELECT interlock.keyset_create('accounts', 'accounts', '{}', 'id');
CREATE ROLE regress_a;
CREATE ROLE regress_b;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::accounts);
SET ROLE regress_a;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::accounts);
\echo SQLSTATE :SQLSTATE
RESET ROLE;
GRANT SELECT (id) ON accounts TO regress_a;
GRANT SELECT ON accounts TO regress_b;
SET ROLE regress_a;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::accounts);
\echo SQLSTATE :SQLSTATE
RESET ROLE;
GRANT SELECT ON accounts TO regress_a;
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON accounts USING (owner = current_user);
SET ROLE regress_a;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::accounts);
SET ROLE regress_b;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::accounts);
SET search_path = pg_temp;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::public.accounts, page_size => 2);
RESET search_path;
RESET ROLE;
SELECT array_agg((item).id) FROM interlock.keyset_page('accounts', NULL::accounts);
DROP TABLE accounts;
DROP ROLE regress_a;
DROP ROLE regress_b;

-- on a shard, only rows of buckets whose reads it answers
SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0');
SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 4);
SELECT interlock.accept_buckets('account', '{0,1,2,3}', 1);
CREATE TABLE entries (id bigint PRIMARY KEY, account_id bigint NOT NULL, note text NOT NULL);
INSERT INTO entries SELECT g, g, 'n' FROM generate_series(1, 40) g;
SELECT interlock.keyset_create('entries', 'entries', '{}', 'id');
SELECT count(*) FROM interlock.keyset_page('entries', NULL::entries);
SELECT interlock.shard_table('entries', 'account', 'account_id');
SELECT scatter FROM interlock.keysets;
SELECT count(*) FROM interlock.keyset_page('entries', NULL::entries);
UPDATE interlock.bucket_state SET state = 'fenced', peer = 's1' WHERE bucket = 0;
UPDATE interlock.bucket_state SET state = 'importing', peer = 's1' WHERE bucket = 1;
UPDATE interlock.bucket_state SET state = 'moved', peer = 's1' WHERE bucket = 2;
SELECT array_agg(DISTINCT interlock.bucket_of('account', (item).account_id)) FROM interlock.keyset_page('entries', NULL::entries);
SELECT bucket, bool_or(interlock.owned('account', account_id)) AS owned, bool_or(interlock.owns('account', account_id)) AS owns
  FROM (SELECT interlock.bucket_of('account', account_id) AS bucket, account_id FROM entries) e GROUP BY bucket ORDER BY bucket;
SELECT interlock.owned('account', 'text'::text);
SELECT interlock.owned('nowhere', 1);
SELECT interlock.owned('account', NULL::bigint), interlock.owned(NULL, 1);
SELECT predicate FROM interlock.keyset_predicate('entries', NULL);
SELECT interlock.unshard_table('entries');
SELECT count(*) FROM interlock.keyset_page('entries', NULL::entries);
-- a restored copy of a shard does not answer
UPDATE interlock.bucket_state SET state = 'owned';
SELECT interlock.shard_table('entries', 'account', 'account_id');
UPDATE interlock.shard_identity SET database_oid = 1;
SELECT count(*) FROM interlock.keyset_page('entries', NULL::entries);
\echo SQLSTATE :SQLSTATE
DROP TABLE entries;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
