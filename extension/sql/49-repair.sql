-- What "interlock repair" needs: on a shard, whether changes of some keys are still in the outbox; in an
-- index database, where it goes on.

CREATE FUNCTION interlock.outbox_holds(stream text, keys jsonb) RETURNS TABLE (n bigint, parked boolean)
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    segments text := (SELECT string_agg(format('SELECT o.key, false FROM %s o', i.inhrelid::regclass), ' UNION ALL ')
                        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                       WHERE i.inhparent = 'interlock.outbox'::regclass
                         AND c.relname ~ format('^outbox_%s_[0-9]+$', outbox_holds.stream));
BEGIN
    IF segments IS NULL OR NOT EXISTS (SELECT FROM interlock.outbox_stream s WHERE s.name = outbox_holds.stream) THEN
        RAISE EXCEPTION 'outbox stream "%" does not exist', stream USING ERRCODE = 'undefined_object';
    END IF;
    -- One statement: a record that is being parked, or put back, is found in one of the two places. Other
    -- streams are not read: nobody may be taking from them.
    RETURN QUERY EXECUTE
        'SELECT k.number, bool_or(c.parked) FROM jsonb_array_elements($2) WITH ORDINALITY AS k(key, number) '
        'JOIN (' || segments || ' UNION ALL SELECT p.key, true FROM interlock.outbox_parked p WHERE p.stream = $1) AS c(key, parked) '
        'ON c.key = k.key GROUP BY k.number'
        USING stream, keys;
END
$$;
COMMENT ON FUNCTION interlock.outbox_holds(text, jsonb) IS
    'of the keys in an array, which have changes that no consumer has removed yet (or has parked): their positions, from 1';

CREATE TABLE interlock.index_repair (
    index text NOT NULL,
    part text NOT NULL,
    position jsonb,
    report jsonb NOT NULL,
    servers jsonb NOT NULL,
    started timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    updated timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (index, part)
);
COMMENT ON TABLE interlock.index_repair IS 'runs of "interlock repair" that have not ended; not part of a dump';
COMMENT ON COLUMN interlock.index_repair.part IS 'what a run compares, and whether it mends: another run of the same goes on';
COMMENT ON COLUMN interlock.index_repair.position IS 'key up to which rows and entries are compared';
COMMENT ON COLUMN interlock.index_repair.report IS 'what it has counted so far';
COMMENT ON COLUMN interlock.index_repair.servers IS
    'of the index database and each shard: system, timeline, database. If one is another now, what was compared has been restored since';

CREATE FUNCTION interlock.index_try_repair(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_index(name);
    RETURN pg_try_advisory_lock(interlock.index_lock_key(name, 'repair'));
END
$$;
COMMENT ON FUNCTION interlock.index_try_repair(text) IS 'true: until this session ends, no other repairs the index; false: another does';
