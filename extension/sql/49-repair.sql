-- What "interlock repair" needs: on a shard, whether changes of some keys are still in the outbox; in an
-- index database, where it goes on.

CREATE FUNCTION interlock.outbox_holds(stream text, keys jsonb) RETURNS TABLE (n bigint, parked boolean)
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- One statement: a record that is being parked, or put back, is found in one of the two places.
    RETURN QUERY
        SELECT k.number, bool_or(c.parked)
          FROM jsonb_array_elements(keys) WITH ORDINALITY AS k(key, number)
          JOIN (SELECT o.key, false FROM interlock.outbox o WHERE o.stream = outbox_holds.stream
                UNION ALL
                SELECT p.key, true FROM interlock.outbox_parked p WHERE p.stream = outbox_holds.stream) AS c(key, parked)
            ON c.key = k.key
         GROUP BY k.number;
END
$$;
COMMENT ON FUNCTION interlock.outbox_holds(text, jsonb) IS
    'of the keys in an array, which have changes that no consumer has removed yet (or has parked): their positions, from 1';

CREATE TABLE interlock.index_repair (
    index text NOT NULL,
    part text NOT NULL,
    position jsonb,
    report jsonb NOT NULL,
    started timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    updated timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (index, part)
);
COMMENT ON TABLE interlock.index_repair IS 'runs of "interlock repair" that have not ended; not part of a dump';
COMMENT ON COLUMN interlock.index_repair.part IS 'what a run compares, and whether it mends: another run of the same goes on';
COMMENT ON COLUMN interlock.index_repair.position IS 'key up to which rows and entries are compared';
COMMENT ON COLUMN interlock.index_repair.report IS 'what it has counted so far';

CREATE FUNCTION interlock.index_try_repair(name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_index(name);
    RETURN pg_try_advisory_lock(interlock.index_lock_key(name, 'repair'));
END
$$;
COMMENT ON FUNCTION interlock.index_try_repair(text) IS 'true: until this session ends, no other repairs the index; false: another does';
