-- Keys whose bytes sort as ORDER BY sorts the values: every type, both directions, NULLs at both ends.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;

-- A few keys, byte by byte: a marker for NULL or not, then what sorts.
SELECT interlock.sort_key(1::smallint, false, false) AS asc, interlock.sort_key(1::smallint, true, false) AS desc,
       interlock.sort_key(-1::smallint, false, false) AS negative;
SELECT interlock.sort_key(NULL::int, false, true) AS first, interlock.sort_key(NULL::int, true, true) AS first_desc,
       interlock.sort_key(NULL::int, false, false) AS last, interlock.sort_key(NULL::int, true, false) AS last_desc;
SELECT interlock.sort_key('ab'::text COLLATE "C", false, false), interlock.sort_key('\x610062'::bytea, false, false);
SELECT interlock.sort_key(-12345.67, false, false) AS number, interlock.sort_key('-infinity'::date, false, false) AS date,
       interlock.sort_key('1 day'::interval, false, false) AS interval;

-- For each place of each value: its rank by ORDER BY and by the key's bytes; equal keys are equal ranks.
CREATE FUNCTION disagreements(type text, query text, collation_name text DEFAULT NULL)
RETURNS TABLE (direction text, compared bigint, distinct_values bigint, wrong bigint)
LANGUAGE plpgsql AS $$
DECLARE
    value text := format('v::%s', type) || coalesce(' COLLATE ' || collation_name, '');
    ordering text;
BEGIN
    FOREACH ordering IN ARRAY ARRAY['ASC NULLS FIRST', 'ASC NULLS LAST', 'DESC NULLS FIRST', 'DESC NULLS LAST'] LOOP
        direction := ordering;
        EXECUTE format($q$
            SELECT count(*), count(DISTINCT by_value), count(*) FILTER (WHERE by_value <> by_key)
              FROM (SELECT rank() OVER (ORDER BY %1$s %2$s) AS by_value,
                           rank() OVER (ORDER BY interlock.sort_key(%1$s, %3$L, %4$L)) AS by_key
                      FROM (%5$s UNION ALL SELECT NULL UNION ALL SELECT NULL) AS s(v)) AS r $q$,
            value, ordering, ordering LIKE 'DESC%', ordering LIKE '%FIRST', query)
            INTO compared, distinct_values, wrong;
        RETURN NEXT;
    END LOOP;
END
$$;
-- One line a type: what was compared, and that nothing was wrong in any direction.
CREATE FUNCTION verdict(type text, query text, collation_name text DEFAULT NULL)
RETURNS TABLE (of_type text, compared bigint, distinct_values bigint, wrong numeric)
LANGUAGE sql AS $$
    SELECT concat_ws(' ', type, collation_name), min(d.compared), min(d.distinct_values), sum(d.wrong)
      FROM disagreements(type, query, collation_name) AS d
$$;
-- the check can fail: text is not sorted by the key of its bytes under this collation
SELECT count(*) > 0 AS wrong
  FROM (SELECT rank() OVER (ORDER BY v COLLATE "und-x-icu") AS by_value,
               rank() OVER (ORDER BY interlock.sort_key(v COLLATE "C", false, false)) AS by_key
          FROM (VALUES ('a'), ('B'), ('c')) AS s(v)) AS r WHERE by_value <> by_key;

SELECT setseed(0.25);
SELECT * FROM verdict('smallint', 'SELECT v FROM generate_series(-32768, 32767, 13) AS v UNION ALL VALUES (32767), (-1), (0), (1)');
SELECT * FROM verdict('integer', 'SELECT ((random() - 0.5) * 4294967294)::bigint FROM generate_series(1, 2000)
    UNION ALL VALUES (-2147483648), (2147483647), (-1), (0), (1), (255), (256), (-256), (-255)');
SELECT * FROM verdict('bigint', 'SELECT ((random() - 0.5) * 1.8e19)::numeric::bigint FROM generate_series(1, 2000)
    UNION ALL VALUES (-9223372036854775808), (9223372036854775807), (-1), (0), (1), (4294967296), (-4294967296)');
SELECT * FROM verdict('boolean', 'VALUES (true), (false), (true)');
SELECT * FROM verdict('uuid', 'SELECT md5(g::text) FROM generate_series(1, 1000) AS g UNION ALL SELECT repeat(d, 32) FROM unnest(ARRAY[''0'', ''f'']) AS d');

-- numbers of the same value and another scale, long ones, the ends of the range, and what is no number
SELECT * FROM verdict('numeric', $$
    SELECT (CASE WHEN random() < 0.5 THEN '-' ELSE '' END) || trunc(random() * 10 ^ (random() * 12))::numeric::text || '.' ||
           trunc(random() * 10 ^ (random() * 8))::numeric::text FROM generate_series(1, 3000)
    UNION ALL SELECT s || d || z FROM unnest(ARRAY['', '-']) AS s, unnest(ARRAY['0', '1', '9', '10', '100', '9999', '10000', '10001',
           '99999999', '100000000', '0.1', '0.0001', '0.00001', '0.00011', '0.9999', '1.0001', '12345678.87654321', '5e100', '5e-100',
           '1e1000', '1e-1000', '9e131071', '1e-16383', '1e131071']) AS d, unnest(ARRAY['']) AS z
    UNION ALL SELECT s || d || z FROM unnest(ARRAY['', '-']) AS s, unnest(ARRAY['0', '1', '10', '10000', '0.1', '0.0001', '1.5']) AS d,
           unnest(ARRAY['', '00', '0000', '00000000']) AS z WHERE d LIKE '%.%'
    UNION ALL VALUES ('0.0'), ('0.0000'), ('1.0'), ('1.0000'), ('10000.00'), ('Infinity'), ('-Infinity'), ('NaN'), ('NaN'), ('Infinity')
$$);
SELECT * FROM verdict('real', $$
    SELECT ((random() - 0.5) * 10 ^ ((random() - 0.5) * 70))::text FROM generate_series(1, 3000)
    UNION ALL VALUES ('0'), ('-0'), ('NaN'), ('-NaN'), ('Infinity'), ('-Infinity'), ('1e-45'), ('-1e-45'), ('3.4028235e38'), ('-3.4028235e38')
$$);
SELECT * FROM verdict('double precision', $$
    SELECT ((random() - 0.5) * 10 ^ ((random() - 0.5) * 600))::text FROM generate_series(1, 3000)
    UNION ALL VALUES ('0'), ('-0'), ('NaN'), ('-NaN'), ('Infinity'), ('-Infinity'), ('5e-324'), ('-5e-324'),
           ('1.7976931348623157e308'), ('-1.7976931348623157e308'), ('1'), ('1.0000000000000002')
$$);

-- text by its bytes; short and long, one the beginning of another, every character of one byte
SELECT * FROM verdict('text', $$
    SELECT left(md5(g::text), g % 9) || repeat(chr(1 + g % 127), g % 3) FROM generate_series(1, 2000) AS g
    UNION ALL SELECT chr(c) FROM generate_series(1, 700) AS c
    UNION ALL VALUES (''), (' '), ('a'), ('a '), ('aa'), (repeat('x', 5000)), (repeat('x', 5000) || 'y'), ('é'), (E'e\u0301'), (E'\U0010FFFF')
$$, '"C"');
SELECT * FROM verdict('varchar', $$ SELECT chr(32 + (g * 7) % 90) || left(md5(g::text), g % 4) FROM generate_series(1, 1000) AS g $$, '"POSIX"');
SELECT * FROM verdict('char(6)', $$
    SELECT left(md5((g % 50)::text), g % 4) || CASE WHEN g % 5 = 0 THEN chr(1 + g % 40) ELSE '' END FROM generate_series(1, 1000) AS g
    UNION ALL VALUES (''), (' '), ('a'), ('a  '), (E'a\t'), (E'a \t')
$$, '"C"');
-- the default collation of this database is C, which is not said here
SELECT * FROM verdict('text', $$ SELECT chr(32 + (g * 7) % 90) || left(md5(g::text), g % 4) FROM generate_series(1, 1000) AS g $$);

-- text by ICU: accents, cases, what ICU takes for equal but PostgreSQL does not; language rules; numbers within
CREATE COLLATION case_blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE COLLATION accent_blind (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
CREATE COLLATION numeric_order (provider = icu, locale = 'en-u-kn-true');
CREATE COLLATION blind_but_deterministic (provider = icu, locale = 'und-u-ks-level1');
CREATE TABLE words (v text);
INSERT INTO words
    SELECT a || b || c FROM unnest(ARRAY['', 'a', 'A', 'á', E'a\u0301', 'b', 'B', 'æ', 'ß', 'ss', 'ö', 'z', 'å', 'ch', ' ', '-', '2', '10', '９']) AS a,
                       unnest(ARRAY['', 'e', 'E', 'é', E'\u00ad', '-', '漢', E'\U0001F600', E'\u0007', E'\uFFFE', E'\uFFFF']) AS b,
                       unnest(ARRAY['', 'o', 'Ö', E'o\u0308', '1', '02']) AS c
    UNION ALL SELECT repeat(x, 700) FROM unnest(ARRAY['a', 'é', '漢', 'ab ']) AS x
    UNION ALL SELECT chr(c) || chr(c + 1) FROM generate_series(161, 40000, 37) AS c;
SELECT v.* FROM unnest(ARRAY['"und-x-icu"', '"en-x-icu"', '"sv-x-icu"', '"de-x-icu"', '"cs-x-icu"', 'case_blind', 'accent_blind',
                             'numeric_order', 'blind_but_deterministic']) AS collation_name,
       LATERAL verdict('text', 'SELECT v FROM words', collation_name) AS v;
SELECT * FROM verdict('char(12)', $$ SELECT v || repeat(' ', length(v) % 3) FROM words WHERE length(v) < 8 $$, '"und-x-icu"');
SELECT * FROM verdict('char(12)', $$ SELECT v || repeat(' ', length(v) % 3) FROM words WHERE length(v) < 8 $$, 'case_blind');

-- bytes: zeros in all places
SELECT * FROM verdict('bytea', $$
    SELECT decode(a || b || c || d, 'hex') FROM unnest(ARRAY['', '00', '01', 'ff', '00ff']) AS a, unnest(ARRAY['', '00', '01', 'ff', 'fe']) AS b,
           unnest(ARRAY['', '00', '01', 'ff', '0000']) AS c, unnest(ARRAY['', '00', 'ff', '80']) AS d
    UNION ALL SELECT decode(md5(g::text), 'hex') FROM generate_series(1, 500) AS g
$$);

-- times
SELECT * FROM verdict('date', $$ SELECT ('2000-01-01'::date + ((random() - 0.5) * 1400000)::int)::text FROM generate_series(1, 2000)
    UNION ALL VALUES ('infinity'), ('-infinity'), ('4713-01-01 BC'), ('5874897-12-31'), ('1999-12-31'), ('2000-01-01') $$);
SELECT * FROM verdict('time', $$ SELECT (interval '1 microsecond' * trunc(random() * 86400000000))::time::text FROM generate_series(1, 2000)
    UNION ALL VALUES ('00:00'), ('24:00'), ('23:59:59.999999'), ('12:00') $$);
SELECT * FROM verdict('timestamp', $$ SELECT ('2000-01-01'::timestamp + (random() - 0.5) * interval '12000 years')::text FROM generate_series(1, 2000)
    UNION ALL VALUES ('infinity'), ('-infinity'), ('4713-01-01 BC'), ('294276-12-31 23:59:59.999999'), ('1999-12-31 23:59:59.999999'), ('2000-01-01') $$);
SELECT * FROM verdict('timestamptz', $$ SELECT ('2000-01-01'::timestamptz + (random() - 0.5) * interval '12000 years')::text FROM generate_series(1, 2000)
    UNION ALL VALUES ('infinity'), ('-infinity'), ('2024-03-31 01:30+00'), ('2024-03-31 02:30+01'), ('2024-03-31 01:30:00.000001+00') $$);
-- months of 30 days, days of 24 hours: the same length in several spellings, and lengths beyond 64 bits of microseconds
SELECT * FROM verdict('interval', $$
    SELECT format('%s months %s days %s microseconds', m, d, t) FROM unnest(ARRAY[0, 1, -1, 12, -13, 2147483647, -2147483648]) AS m,
           unnest(ARRAY[0, 30, -30, 1, -1, 2147483647, -2147483648]) AS d,
           unnest(ARRAY[0, 86400000000, -86400000000, 2592000000000, 1, -1, 9223372036854775807, -9223372036854775808]) AS t
    UNION ALL SELECT ((random() - 0.5) * interval '100 years')::text FROM generate_series(1, 1000)
    UNION ALL VALUES ('24:00'), ('1 day'), ('1 month'), ('30 days'), ('720:00')
$$);

-- enums by their place among the labels, also when labels came later; domains as what is below them
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
SELECT interlock.sort_key('ok'::mood, false, false) AS ok;
ALTER TYPE mood ADD VALUE 'awful' BEFORE 'sad';
ALTER TYPE mood ADD VALUE 'fine' AFTER 'ok';
SELECT interlock.sort_key('ok'::mood, false, false) AS ok;
SELECT * FROM verdict('mood', $$ SELECT m::text FROM unnest(enum_range(NULL::mood)) AS m, generate_series(1, 2) $$);
BEGIN;
CREATE TYPE many AS ENUM ('m0');
DO $$ BEGIN FOR i IN 1 .. 150 LOOP EXECUTE format('ALTER TYPE many ADD VALUE %L %s %L', 'm' || i, (ARRAY['BEFORE', 'AFTER'])[1 + i % 2], 'm' || i / 2); END LOOP; END $$;
COMMIT;
SELECT * FROM verdict('many', $$ SELECT m::text FROM unnest(enum_range(NULL::many)) AS m $$);
-- a label that is taken back
BEGIN;
ALTER TYPE mood RENAME VALUE 'fine' TO 'well';
SELECT interlock.sort_key('well'::mood, false, false) AS well;
ROLLBACK;
CREATE DOMAIN happy_mood AS mood CHECK (VALUE > 'ok');
CREATE DOMAIN price AS numeric(10, 2);
CREATE DOMAIN label AS text COLLATE "C";
SELECT interlock.sort_key('happy'::happy_mood, false, false) = interlock.sort_key('happy'::mood, false, false) AS mood,
       interlock.sort_key(1.50::price, false, false) = interlock.sort_key(1.5, false, false) AS price,
       interlock.sort_key('x'::label, false, false) = interlock.sort_key('x'::text COLLATE "C", false, false) AS label;

-- values stored out of line and compressed
CREATE TABLE stored (how text, value text COLLATE "C", number numeric);
ALTER TABLE stored ALTER value SET STORAGE EXTERNAL, ALTER number SET STORAGE EXTERNAL;
INSERT INTO stored VALUES ('short', 'abc', 1.5), ('out of line', repeat('0123456789', 1000), repeat('1234567', 2000)::numeric);
ALTER TABLE stored ALTER value SET STORAGE EXTENDED, ALTER number SET STORAGE EXTENDED;
INSERT INTO stored VALUES ('compressed', repeat('0123456789', 1000), repeat('1234567', 2000)::numeric);
SELECT how, interlock.sort_key(value, false, false) = interlock.sort_key(value || '', false, false) AS text,
       interlock.sort_key(number, false, false) = interlock.sort_key(number + 0, false, false) AS numeric FROM stored ORDER BY how;

-- several expressions: the keys are put together
SELECT count(*) AS compared, count(*) FILTER (WHERE by_value <> by_key) AS wrong
  FROM (SELECT rank() OVER (ORDER BY a DESC NULLS LAST, b COLLATE "und-x-icu", c NULLS FIRST, d DESC) AS by_value,
               rank() OVER (ORDER BY interlock.sort_key(a, true, false) || interlock.sort_key(b COLLATE "und-x-icu", false, false)
                                     || interlock.sort_key(c, false, true) || interlock.sort_key(d, true, true)) AS by_key
          FROM (SELECT nullif(g % 7, 3)::numeric / 3 AS a, nullif(left(md5((g % 40)::text), g % 3), 'a') AS b,
                       nullif(decode(repeat('00', g % 3) || to_hex(16 + g % 5), 'hex'), '\x10') AS c, nullif(g % 11, 5) AS d
                  FROM generate_series(1, 3000) AS g) AS s) AS r;

-- in parallel workers
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET force_parallel_mode = on;
SELECT count(interlock.sort_key(v COLLATE "und-x-icu", false, false)) = count(*) AS all, count(DISTINCT interlock.sort_key(v::char(3) COLLATE "C", true, true)) = count(DISTINCT v::char(3)) AS bpchar FROM words;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET force_parallel_mode;

-- groups: equality alone, whatever the collation
SELECT count(DISTINCT interlock.group_key(v)) = count(DISTINCT v) AS plain FROM words;
SELECT count(DISTINCT interlock.group_key(v COLLATE "und-x-icu")) = count(DISTINCT v COLLATE "und-x-icu") AS icu,
       count(DISTINCT interlock.group_key(v COLLATE accent_blind)) = count(DISTINCT v COLLATE accent_blind) AS blind,
       count(DISTINCT v COLLATE accent_blind) < count(DISTINCT v) AS and_that_is_less FROM words;
SELECT interlock.group_key(1.50) = interlock.group_key(1.5) AS numeric, interlock.group_key('a  '::char(3)) = interlock.group_key('a'::char(1)) AS bpchar,
       interlock.group_key('24:00'::interval) = interlock.group_key('1 day'::interval) AS interval, interlock.group_key(NULL::text) AS "null";

-- what has no key
SELECT interlock.sort_key('{}'::jsonb, false, false);
\echo SQLSTATE :SQLSTATE
SELECT interlock.sort_key(ARRAY[1], false, false);
SELECT interlock.sort_key('a'::name, false, false);
SELECT interlock.sort_key(ROW(1, 2), false, false);
SELECT interlock.sort_key(1, NULL, false);
\echo SQLSTATE :SQLSTATE
SELECT interlock.sort_key(1, true, NULL);
SELECT interlock.sort_key('untyped', false, false);
CREATE TABLE two (a text COLLATE "C", b text COLLATE "POSIX");
INSERT INTO two VALUES ('a', 'b');
SELECT interlock.sort_key(a || b, false, false) FROM two;
\echo SQLSTATE :SQLSTATE
-- a collation of the C library that is not C
CREATE COLLATION of_libc (provider = libc, locale = 'C.UTF-8');
SELECT interlock.sort_key('a'::text COLLATE of_libc, false, false);
\echo SQLSTATE :SQLSTATE
SELECT interlock.sort_key(NULL::text COLLATE of_libc, false, false);
SELECT interlock.group_key('a'::text COLLATE of_libc) = interlock.group_key('a'::text) AS but_a_group;

-- the fingerprint: changes with the collations made here, not with who owns them or in what order they came
CREATE TABLE seen AS SELECT interlock.collation_fingerprint() AS fingerprint;
SELECT fingerprint ~ '^encoding UTF8; default libc C version none; icu [0-9.]+; own collations [0-9a-f]{16}; enums [0-9a-f]{16}$' AS form FROM seen;
DROP COLLATION of_libc;
SELECT fingerprint <> interlock.collation_fingerprint() AS changed FROM seen;
CREATE COLLATION of_libc (provider = libc, locale = 'C.UTF-8');
SELECT fingerprint = interlock.collation_fingerprint() AS as_before FROM seen;
DROP COLLATION of_libc, case_blind;
CREATE COLLATION case_blind (provider = icu, locale = 'und-u-ks-level2');
CREATE COLLATION of_libc (provider = libc, locale = 'C.UTF-8');
SELECT fingerprint <> interlock.collation_fingerprint() AS another_case_blind FROM seen;
TRUNCATE seen;
INSERT INTO seen SELECT interlock.collation_fingerprint();
ALTER TYPE mood ADD VALUE 'never felt' BEFORE 'sad';
SELECT fingerprint <> interlock.collation_fingerprint() AS another_mood FROM seen;

DROP TABLE words, stored, two, seen;
DROP DOMAIN happy_mood, price, label;
DROP TYPE mood, many;
DROP COLLATION case_blind, accent_blind, numeric_order, blind_but_deterministic, of_libc;
DROP FUNCTION verdict, disagreements;
