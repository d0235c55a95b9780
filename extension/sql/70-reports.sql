-- Looking at what the shard holds.

CREATE FUNCTION interlock.misplaced(relation regclass, max_rows bigint DEFAULT NULL)
RETURNS TABLE (tableoid regclass, ctid tid, key text, bucket integer, state text, owner text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    guarded interlock.guarded_table;
BEGIN
    SELECT * INTO guarded FROM interlock.guarded_table g WHERE g.relid = relation;
    IF NOT FOUND THEN
        guarded := interlock.guarded_ancestor(relation);
    END IF;
    IF guarded.relid IS NULL THEN
        RAISE EXCEPTION 'table "%" is not guarded', relation
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Give it to interlock.shard_table() first.';
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT r.tableoid::regclass, r.ctid, r.key::text, r.bucket, coalesce(s.state, ''none''), s.peer '
        'FROM (SELECT t.tableoid, t.ctid, t.%I AS key, interlock.bucket_of($1, t.%I) AS bucket FROM %s t OFFSET 0) AS r '
        'LEFT JOIN interlock.bucket_state s ON s.keyspace = $1 AND s.bucket = r.bucket '
        'WHERE s.state IS NULL OR s.state NOT IN (''owned'', ''fenced'') LIMIT $2',
        guarded.key_column, guarded.key_column, relation) USING guarded.keyspace, max_rows;
END
$$;
COMMENT ON FUNCTION interlock.misplaced(regclass, bigint) IS
    'rows of a guarded table in buckets that this shard does not own; stops looking after max_rows';

CREATE FUNCTION interlock.bucket_rows(keyspace text, buckets integer[] DEFAULT NULL)
RETURNS TABLE (relation regclass, bucket integer, rows bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    guarded interlock.guarded_table;
BEGIN
    PERFORM interlock.require_buckets(keyspace, coalesce(buckets, '{}'));
    FOR guarded IN SELECT * FROM interlock.guarded_table g WHERE g.keyspace = bucket_rows.keyspace ORDER BY g.relid::oid LOOP
        RETURN QUERY EXECUTE format(
            'SELECT %L::regclass, r.bucket, count(*) '
            'FROM (SELECT interlock.bucket_of($1, t.%I) AS bucket FROM %s t OFFSET 0) AS r '
            'WHERE $2 IS NULL OR r.bucket = ANY ($2) GROUP BY r.bucket ORDER BY r.bucket',
            guarded.relid, guarded.key_column, guarded.relid) USING keyspace, buckets;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.bucket_rows(text, integer[]) IS
    'number of rows in each bucket, for each guarded table of the keyspace; buckets without rows are left out';

CREATE FUNCTION interlock.check_guards() RETURNS TABLE (relation regclass, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH member AS (
        SELECT t.relid, g.keyspace, g.key_column, c.relkind, c.relkind = 'p' OR c.relispartition AS partitioned
          FROM interlock.guarded_table g
         CROSS JOIN LATERAL interlock.family_tree(g.relid) t
          JOIN pg_class c ON c.oid = t.relid
    ), problem AS (
        SELECT m.relid, 'foreign tables cannot be guarded' AS what FROM member m WHERE m.relkind NOT IN ('r', 'p')
         UNION ALL
        SELECT m.relid, format('key column "%s" does not exist', m.key_column)
          FROM member m
         WHERE NOT EXISTS (SELECT FROM pg_attribute a
                            WHERE a.attrelid = m.relid AND a.attname = m.key_column AND a.attnum > 0 AND NOT a.attisdropped)
         UNION ALL
        SELECT m.relid, format('key column "%s" is not declared NOT NULL', m.key_column)
          FROM member m JOIN pg_attribute a ON a.attrelid = m.relid AND a.attname = m.key_column AND a.attnum > 0
         WHERE NOT a.attnotnull
         UNION ALL
        SELECT m.relid, format('trigger "%s" is missing', w.name)
          FROM member m CROSS JOIN LATERAL interlock.guard_triggers(m.keyspace, m.key_column, m.partitioned) w
         WHERE m.relkind IN ('r', 'p')
           AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.relid AND t.tgname = w.name)
         UNION ALL
        SELECT m.relid, format('trigger "%s" is not ENABLE ALWAYS', t.tgname)
          FROM member m CROSS JOIN LATERAL interlock.guard_triggers(m.keyspace, m.key_column, m.partitioned) w
          JOIN pg_trigger t ON t.tgrelid = m.relid AND t.tgname = w.name
         WHERE t.tgenabled <> 'A'
         UNION ALL
        SELECT m.relid, format('trigger "%s" is not as shard_table() makes it', t.tgname)
          FROM member m CROSS JOIN LATERAL interlock.guard_triggers(m.keyspace, m.key_column, m.partitioned) w
          JOIN pg_trigger t ON t.tgrelid = m.relid AND t.tgname = w.name
         WHERE t.tgfoid <> w.function OR t.tgtype <> w.type OR t.tgattr <> ''
            OR (w.condition IS NULL) <> (t.tgqual IS NULL)
            OR position('WHEN (' || w.condition || ')' IN pg_get_triggerdef(t.oid)) = 0
            OR t.tgargs <> coalesce((SELECT string_agg(convert_to(a, getdatabaseencoding()) || decode('00', 'hex'), '' ORDER BY n)
                                       FROM unnest(w.arguments) WITH ORDINALITY AS x(a, n)), '')
    )
    SELECT p.relid, p.what FROM problem p ORDER BY p.relid::text COLLATE "C", p.what COLLATE "C"
$$;
COMMENT ON FUNCTION interlock.check_guards() IS 'what is wrong with the guards of the sharded tables; no rows if nothing is';
