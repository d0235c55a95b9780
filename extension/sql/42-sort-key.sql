-- Keys by whose bytes rows of several shards are merged.

CREATE FUNCTION interlock.sort_key(value anyelement, descending boolean, nulls_first boolean) RETURNS bytea
LANGUAGE C IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_sort_key';
COMMENT ON FUNCTION interlock.sort_key(anyelement, boolean, boolean) IS
    'bytes that sort as ORDER BY sorts the values; keys of several expressions are put together with ||';

CREATE FUNCTION interlock.group_key(value anyelement) RETURNS bytea
LANGUAGE C IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_group_key';
COMMENT ON FUNCTION interlock.group_key(anyelement) IS
    'bytes that are the same exactly for equal values, NULLs among them, under any collation; in some order';

-- By to_jsonb(), because the catalogs' columns have other names from release to release.
CREATE FUNCTION interlock.collation_fingerprint() RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('encoding %s; default %s %s version %s; icu %s; own collations %s; enums %s',
                  getdatabaseencoding(),
                  CASE d.entry ->> 'datlocprovider' WHEN 'i' THEN 'icu' WHEN 'b' THEN 'builtin' ELSE 'libc' END,
                  coalesce(d.entry ->> 'datlocale', d.entry ->> 'daticulocale', d.entry ->> 'datcollate')
                      || coalesce(' ' || (d.entry ->> 'daticurules'), ''),
                  coalesce(pg_database_collation_actual_version(d.oid), 'none'),
                  coalesce((SELECT pg_collation_actual_version(c.oid) FROM pg_collation c
                             WHERE c.collname = 'und-x-icu' AND c.collnamespace = 'pg_catalog'::regnamespace), 'none'),
                  coalesce((SELECT left(encode(sha256(convert_to(string_agg(
                                       concat_ws(' ', n.nspname,
                                                 to_jsonb(c) - '{oid,collnamespace,collowner,collversion}'::text[],
                                                 pg_collation_actual_version(c.oid)), E'\n'
                                       ORDER BY n.nspname COLLATE "C", c.collname COLLATE "C", c.collencoding), 'UTF8')), 'hex'), 16)
                              FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
                             WHERE c.oid >= 16384 AND n.nspname !~ '^pg_temp_'), 'none'),
                  coalesce((SELECT left(encode(sha256(convert_to(string_agg(
                                       format('%I.%I: %s', n.nspname, t.typname, e.labels), E'\n'
                                       ORDER BY n.nspname COLLATE "C", t.typname COLLATE "C"), 'UTF8')), 'hex'), 16)
                              FROM (SELECT enumtypid, string_agg(quote_literal(enumlabel), ',' ORDER BY enumsortorder) AS labels
                                      FROM pg_enum GROUP BY enumtypid) AS e
                              JOIN pg_type t ON t.oid = e.enumtypid JOIN pg_namespace n ON n.oid = t.typnamespace
                             WHERE n.nspname !~ '^pg_temp_'), 'none'))
      FROM (SELECT oid, to_jsonb(database) AS entry FROM pg_database AS database WHERE datname = current_database()) AS d
$$;
COMMENT ON FUNCTION interlock.collation_fingerprint() IS
    'what decides how text and enums sort in this database; databases with equal fingerprints sort alike';
