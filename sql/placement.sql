-- Key -> hash -> bucket.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.create_cluster('test') IS NOT NULL AS created;
SELECT interlock.create_keyspace('number', 'bigint', 16), interlock.create_keyspace('id', 'uuid', 1000),
       interlock.create_keyspace('word', 'text', 65536), interlock.create_keyspace('octets', 'bytea', 1);

-- known values: splitmix64's published stream for state 0 begins with the hash of 0
SELECT to_hex(interlock.hash_key(0)) AS zero, to_hex(interlock.hash_key(x'9e3779b97f4a7c15'::bigint)) AS second,
       to_hex(interlock.hash_key((x'3c6ef372fe94f82a')::bigint)) AS third;
-- XXH3-64, seed 0, of nothing, of "a", and of lengths on each of its branches
SELECT to_hex(interlock.hash_key(''::text)) AS empty, to_hex(interlock.hash_key('a'::text)) AS a;
SELECT n, to_hex(interlock.hash_key(repeat('x', n))) AS hash
  FROM unnest(ARRAY[1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 512, 1024, 1025, 5000]) AS n;

-- the same number is the same key, whatever its width
SELECT k, interlock.hash_key(k::int2) = interlock.hash_key(k::int8) AND interlock.hash_key(k::int4) = interlock.hash_key(k::int8) AS same
  FROM unnest(ARRAY[-32768, -1, 0, 1, 32767]) AS k;
SELECT interlock.hash_key((-2147483648)::int4) = interlock.hash_key((-2147483648)::int8) AS least,
       interlock.hash_key(2147483647::int4) = interlock.hash_key(2147483647::int8) AS greatest;
SELECT k, interlock.hash_key(k) AS hash, interlock.bucket_of('number', k) AS bucket
  FROM unnest(ARRAY[-9223372036854775808, -4294967296, -1, 0, 1, 4294967296, 9223372036854775807]) AS k;

-- uuid in any spelling, text and varchar, short and long values
SELECT interlock.hash_key('{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}'::uuid) = interlock.hash_key('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid) AS same,
       interlock.hash_key('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid) = interlock.hash_key('\xa0eebc999c0b4ef8bb6d6bb9bd380a11'::bytea) AS its_bytes;
SELECT interlock.hash_key('Grüße'::text) = interlock.hash_key('Grüße'::varchar) AS varchar_is_text,
       interlock.hash_key('Grüße'::varchar(50)) = interlock.hash_key(convert_to('Grüße', 'UTF8')) AS its_utf8_bytes,
       interlock.hash_key('a'::text) = interlock.hash_key('a '::text) AS blanks_count;
-- stored short, stored long, compressed, out of line: the same value is the same key
CREATE TABLE stored (how text, value text);
ALTER TABLE stored ALTER value SET STORAGE EXTERNAL;
INSERT INTO stored VALUES ('short', 'abc'), ('out of line', repeat('0123456789', 1000));
ALTER TABLE stored ALTER value SET STORAGE EXTENDED;
INSERT INTO stored VALUES ('compressed', repeat('0123456789', 1000));
SELECT how, to_hex(interlock.hash_key(value)) AS hash, interlock.hash_key(value) = interlock.hash_key(value || '') AS same FROM stored ORDER BY how;
DROP TABLE stored;

-- domains count as what is below them
CREATE DOMAIN account_number AS bigint CHECK (VALUE > 0);
CREATE DOMAIN premium_number AS account_number;
CREATE DOMAIN label AS varchar(10);
SELECT interlock.hash_key(7::premium_number) = interlock.hash_key(7) AS number, interlock.hash_key('x'::label) = interlock.hash_key('x'::text) AS text,
       interlock.bucket_of('number', 7::account_number) AS bucket;
SELECT interlock.key_family('premium_number'::regtype), interlock.key_family('label'::regtype), interlock.key_family('numeric'::regtype);
DROP DOMAIN premium_number, account_number, label;

-- buckets: never negative, always below the number of buckets
SELECT min(interlock.bucket_of('number', k)), max(interlock.bucket_of('number', k)), count(DISTINCT interlock.bucket_of('number', k)) AS buckets
  FROM generate_series(-1000, 1000) AS k;
SELECT min(b), max(b), count(DISTINCT b) > 900 AS spread
  FROM (SELECT interlock.bucket_of('id', md5(g::text)::uuid) AS b FROM generate_series(1, 5000) AS g) AS s;
SELECT min(b) >= 0 AND max(b) < 65536 AS in_range FROM (SELECT interlock.bucket_of('word', g::text) AS b FROM generate_series(1, 5000) AS g) AS s;
SELECT interlock.bucket_of('octets', '\x'::bytea) AS only_bucket;
-- the definition in SQL: floormod(hash, buckets)
SELECT bool_and(interlock.bucket_of('number', k) = mod(mod(interlock.hash_key(k)::numeric, 16) + 16, 16)) AS agrees FROM generate_series(-500, 500) AS k;
SELECT bool_and(interlock.bucket_of('id', u) = mod(mod(interlock.hash_key(u)::numeric, 1000) + 1000, 1000)) AS agrees
  FROM (SELECT md5(g::text)::uuid AS u FROM generate_series(1, 500) AS g) AS s;

-- NULL in, NULL out
SELECT interlock.hash_key(NULL::bigint), interlock.bucket_of('number', NULL::bigint), interlock.bucket_of(NULL, 1), interlock.owns('number', NULL::bigint);

-- what is no key
SELECT interlock.hash_key(1.5);
\echo SQLSTATE :SQLSTATE
SELECT interlock.hash_key('a'::name);
SELECT interlock.hash_key('a'::char(3));
SELECT interlock.hash_key(now());
SELECT interlock.hash_key(ARRAY[1]);
SELECT interlock.hash_key('untyped');
SELECT interlock.bucket_of('number', 'a'::text);
\echo SQLSTATE :SQLSTATE
SELECT interlock.bucket_of('word', 1);
SELECT interlock.bucket_of('nowhere', 1);
\echo SQLSTATE :SQLSTATE

-- a keyspace name that differs from row to row
SELECT keyspace, interlock.bucket_of(keyspace, 'abc'::text) AS bucket FROM (VALUES ('word'), ('word')) AS v(keyspace);
SELECT keyspace, interlock.bucket_of(keyspace, 8) AS bucket FROM (VALUES ('number'), ('other')) AS v(keyspace);
-- a catalog database alone owns nothing
SELECT interlock.owns('number', 1);
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
