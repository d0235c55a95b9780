-- Predicates and orders for SQL of one's own, cursors of rows one has, and what a cursor says.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE orders (
    order_id bigint PRIMARY KEY,
    merchant_id integer NOT NULL,
    created_at timestamptz NOT NULL,
    paid_at timestamptz,
    code char(4),
    "Odd "" name" mood NOT NULL,
    weight float8
);
INSERT INTO orders
SELECT g, g % 3, '2026-01-01 00:00:00.000001+00'::timestamptz + g / 9 * interval '1 second',
       CASE WHEN g % 4 > 0 THEN '2026-02-01'::timestamptz + g / 11 * interval '1 day' END,
       (ARRAY['a', 'ab', NULL])[1 + g % 3], (ARRAY['sad', 'ok', 'happy'])[1 + g / 2 % 3]::mood, (ARRAY['0', '-0', 'NaN', '0.30000000000000004', NULL])[1 + g % 5]::float8
  FROM generate_series(1, 120) g;
CREATE INDEX ON orders (merchant_id, created_at DESC, order_id DESC);
CREATE INDEX ON orders (paid_at DESC NULLS LAST, code, order_id DESC);
CREATE INDEX ON orders (created_at, order_id DESC);
CREATE INDEX ON orders ("Odd "" name", weight DESC, order_id);
SELECT interlock.keyset_create('by_time', 'orders', '{merchant_id}', 'created_at DESC, order_id DESC');
SELECT interlock.keyset_create('by_payment', 'orders', '{}', 'paid_at DESC NULLS LAST, code, order_id DESC');
SELECT interlock.keyset_create('mixed', 'orders', '{}', 'created_at, order_id DESC');
SELECT interlock.keyset_create('odd', 'orders', '{"Odd \" name"}', 'weight DESC, order_id');
SELECT interlock.keyset_create('collated', 'orders', '{}', 'code COLLATE "C" NULLS FIRST, order_id', signed => false);
CREATE FUNCTION pg_temp.cursor_of(keyset text, id bigint) RETURNS text
LANGUAGE sql AS 'SELECT interlock.keyset_cursor($1, o) FROM orders o WHERE order_id = $2';

\x on
SELECT * FROM interlock.keyset_predicate('by_time', '{"merchant_id": 1}');
SET timezone = 'UTC';
SELECT * FROM interlock.keyset_predicate('by_time', '{"merchant_id": 1}', pg_temp.cursor_of('by_time', 13));
SELECT * FROM interlock.keyset_predicate('by_time', '{"merchant_id": 1}', before => pg_temp.cursor_of('by_time', 13), first_parameter => 5, alias => 'o');
SELECT * FROM interlock.keyset_predicate('mixed', NULL, pg_temp.cursor_of('mixed', 13));
SELECT * FROM interlock.keyset_predicate('mixed', NULL, before => pg_temp.cursor_of('mixed', 13));
SELECT * FROM interlock.keyset_predicate('by_payment', '{}', pg_temp.cursor_of('by_payment', 13), alias => 'My "alias"');
SELECT * FROM interlock.keyset_predicate('by_payment', '{}', before => pg_temp.cursor_of('by_payment', 13));
SELECT * FROM interlock.keyset_predicate('by_payment', '{}', pg_temp.cursor_of('by_payment', 8));
SELECT * FROM interlock.keyset_predicate('by_payment', '{}', before => pg_temp.cursor_of('by_payment', 8));
SELECT * FROM interlock.keyset_predicate('odd', '{"Odd \" name": "ok"}', before => (SELECT interlock.keyset_cursor('odd', o) FROM orders o WHERE "Odd "" name" = 'ok' AND weight = 0.30000000000000004 LIMIT 1));
SELECT * FROM interlock.keyset_predicate('collated', NULL, pg_temp.cursor_of('collated', 13));
SELECT * FROM interlock.keyset_predicate('collated', NULL, pg_temp.cursor_of('collated', 14));
\x off
-- values are in no predicate, whatever they are
SELECT predicate ~ 'happy|ok|sad|\d{2}' AS value FROM interlock.keyset_predicate('odd', '{"Odd \" name": "ok"}');

-- Runs what a predicate says, from each row of a keyset in both directions, and compares it with the
-- sorted table; settings that change how values are written must not matter.
CREATE FUNCTION pg_temp.check(keyset text, scope jsonb, condition text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    truth bigint[];
    got bigint[];
    wanted bigint[];
    p record;
    i integer;
    forwards boolean;
BEGIN
    EXECUTE format('SELECT array_agg(order_id ORDER BY %s) FROM orders WHERE %s',
                   (SELECT "order" FROM interlock.keysets k WHERE k.name = keyset), condition) INTO truth;
    FOR i IN 1 .. cardinality(truth) LOOP
        FOREACH forwards IN ARRAY '{true,false}'::boolean[] LOOP
            SELECT * INTO p FROM interlock.keyset_predicate(keyset, scope, CASE WHEN forwards THEN pg_temp.cursor_of(keyset, truth[i]) END,
                                                            CASE WHEN NOT forwards THEN pg_temp.cursor_of(keyset, truth[i]) END, 3, 'x');
            EXECUTE format('PREPARE q AS SELECT order_id FROM orders x WHERE ($1 OR NOT $2) AND %s ORDER BY %s', p.predicate, p.order_by);
            got := '{}';
            FOR p IN EXECUTE format('EXECUTE q(true, true%s)', (SELECT string_agg(format(', %L', v), '' ORDER BY n) FROM unnest(p.parameters) WITH ORDINALITY u(v, n))) LOOP
                got := got || p.order_id;
            END LOOP;
            DEALLOCATE q;
            SELECT coalesce(array_agg(truth[n] ORDER BY CASE WHEN forwards THEN n ELSE -n END), '{}') INTO wanted
              FROM generate_series(1, cardinality(truth)) n WHERE CASE WHEN forwards THEN n > i ELSE n < i END;
            IF got <> wanted THEN RETURN NEXT format('%s from %s: %s instead of %s', CASE WHEN forwards THEN 'after' ELSE 'before' END, truth[i], got, wanted); END IF;
        END LOOP;
    END LOOP;
END
$$;
SET extra_float_digits = -10;
SET datestyle = 'SQL, DMY';
SET intervalstyle = 'sql_standard';
SET bytea_output = 'escape';
SELECT pg_temp.check('by_time', '{"merchant_id": 1}', 'merchant_id = 1');
SELECT pg_temp.check('by_payment', NULL, 'true');
SELECT pg_temp.check('mixed', NULL, 'true');
SELECT pg_temp.check('odd', '{"Odd \" name": "happy"}', '"Odd "" name" = ''happy''');
SELECT pg_temp.check('collated', NULL, 'true');
SHOW extra_float_digits;
SHOW datestyle;
RESET extra_float_digits;
RESET datestyle;
RESET intervalstyle;
RESET bytea_output;

-- the planner sees an index in each of them
INSERT INTO orders SELECT g, g % 3, '2026-01-01'::timestamptz + g / 9 * interval '1 second', CASE WHEN g % 4 > 0 THEN '2026-02-01'::timestamptz + g / 11 * interval '1 second' END, 'a', 'ok', 1
  FROM generate_series(1000, 5000) g;
ANALYZE orders;
CREATE FUNCTION pg_temp.plan(keyset text, scope jsonb, after text, before text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    p record;
BEGIN
    SELECT * INTO p FROM interlock.keyset_predicate(keyset, scope, after, before);
    EXECUTE format('PREPARE q AS SELECT * FROM orders WHERE %s ORDER BY %s LIMIT 50', p.predicate, p.order_by);
    RETURN QUERY EXECUTE format('EXPLAIN (COSTS OFF) EXECUTE q%s', '(' || (SELECT string_agg(format('%L', v), ', ' ORDER BY n) FROM unnest(p.parameters) WITH ORDINALITY u(v, n)) || ')');
    DEALLOCATE q;
END
$$;
SELECT pg_temp.plan('by_time', '{"merchant_id": 1}', pg_temp.cursor_of('by_time', 4003), NULL);
SELECT pg_temp.plan('by_time', '{"merchant_id": 1}', NULL, pg_temp.cursor_of('by_time', 1003));
SELECT regexp_replace(pg_temp.plan('mixed', NULL, pg_temp.cursor_of('mixed', 1003), NULL), 'Filter: .*', 'Filter: ...');
SELECT regexp_replace(pg_temp.plan('mixed', NULL, NULL, pg_temp.cursor_of('mixed', 4003)), 'Filter: .*', 'Filter: ...');

-- what is refused
SELECT * FROM interlock.keyset_predicate(NULL, NULL);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.keyset_predicate('nothing', NULL);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.keyset_predicate('by_time', NULL);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.keyset_predicate('mixed', NULL, 'x');
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.keyset_predicate('mixed', NULL, pg_temp.cursor_of('mixed', 13), pg_temp.cursor_of('mixed', 13));
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.keyset_predicate('mixed', NULL, first_parameter => 0);
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.keyset_predicate('mixed', NULL, first_parameter => NULL);
SELECT * FROM interlock.keyset_predicate('mixed', NULL, first_parameter => 65536);

-- cursors of rows
SELECT interlock.keyset_cursor('by_time', o) = cursor AS equal FROM orders o, interlock.keyset_page('by_time', NULL::orders, '{"merchant_id": 1}', page_size => 1) p
 WHERE o.order_id = (item).order_id;
SELECT interlock.keyset_cursor('by_time', ROW(13, 1, '2026-01-01 00:00:01.000001+00', NULL, NULL, 'sad', NULL)::orders) = pg_temp.cursor_of('by_time', 13) AS equal;
SELECT interlock.keyset_cursor('by_payment', ROW(13, NULL, NULL, NULL, NULL, NULL, NULL)::orders) IS NOT NULL AS nulls_in_other_columns;
SELECT interlock.keyset_cursor('by_time', ROW(13, NULL, '2026-01-01', NULL, NULL, NULL, NULL)::orders);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_cursor('by_time', ROW(NULL, 1, '2026-01-01', NULL, NULL, NULL, NULL)::orders);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_cursor('by_time', NULL::orders);
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_cursor('by_time', ROW(1, 2));
\echo SQLSTATE :SQLSTATE
SELECT interlock.keyset_cursor('by_time', 1);
SELECT interlock.keyset_cursor(NULL, o) FROM orders o LIMIT 1;
SELECT interlock.keyset_cursor('nothing', o) FROM orders o LIMIT 1;

-- what a cursor says, to those who may ask
SET timezone = 'UTC';
SELECT * FROM interlock.keyset_decode(pg_temp.cursor_of('by_time', 13));
SELECT * FROM interlock.keyset_decode(pg_temp.cursor_of('by_payment', 12));
SELECT * FROM interlock.keyset_decode(pg_temp.cursor_of('collated', 13));
SELECT * FROM interlock.keyset_decode(NULL);
SELECT * FROM interlock.keyset_decode('nonsense');
\echo SQLSTATE :SQLSTATE
SELECT pg_temp.cursor_of('by_time', 13) AS place \gset
SELECT keyset, authentic, count(*) AS columns FROM interlock.keyset_decode(left(:'place', 60) || translate(substr(:'place', 61, 1), 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_', 'BADCFEHGJILKNMPORQTSVUXWZYbadcfehgjilknmporqtsvuxwzy1032547698_-') || substr(:'place', 62)) GROUP BY 1, 2;
SELECT interlock.cursor_key_add(), interlock.cursor_key_retire(1::smallint);
SELECT keyset, key_id, authentic, column_name, value FROM interlock.keyset_decode(:'place');
SELECT interlock.keyset_drop('by_time');
SELECT * FROM interlock.keyset_decode(:'place');

-- the same declaration and key elsewhere: cursors are taken
SELECT pg_temp.cursor_of('by_payment', 13) AS place, (SELECT encode(secret, 'hex') FROM interlock.cursor_key WHERE NOT retired) AS secret \gset
SELECT array_agg((item).order_id) AS next FROM interlock.keyset_page('by_payment', NULL::orders, after => :'place', page_size => 3) \gset
DROP EXTENSION interlock CASCADE;
ALTER TABLE orders RENAME TO old_orders;
CREATE TABLE orders (weight float8, "Odd "" name" mood, code char(4), paid_at timestamptz, order_id bigint, created_at timestamptz, merchant_id integer);
INSERT INTO orders SELECT weight, "Odd "" name", code, paid_at, order_id, created_at, merchant_id FROM old_orders;
ALTER TABLE orders ADD PRIMARY KEY (order_id);
CREATE EXTENSION interlock;
INSERT INTO interlock.cursor_key (id, secret) VALUES (2, decode(:'secret', 'hex'));
SET client_min_messages = error;
SELECT interlock.keyset_create('by_payment', 'orders', '{}', 'paid_at DESC NULLS LAST, code ASC, order_id DESC NULLS FIRST');
RESET client_min_messages;
SELECT array_agg((item).order_id) = :'next' AS equal FROM interlock.keyset_page('by_payment', NULL::orders, after => :'place', page_size => 3);
DROP TABLE orders, old_orders;
DROP TYPE mood;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
