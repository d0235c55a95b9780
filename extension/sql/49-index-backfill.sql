-- What fills an index with the rows that were there before it, and who may use an index database.

CREATE FUNCTION interlock.index_backfill_begin(name text, shard text, estimate bigint, route_version integer,
    restart boolean DEFAULT false) RETURNS interlock.index_backfill
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    state interlock.index_backfill;
BEGIN
    PERFORM interlock.require_index(name);
    IF restart THEN
        DELETE FROM interlock.index_backfill b WHERE b.index = name AND b.shard = index_backfill_begin.shard;
    END IF;
    INSERT INTO interlock.index_backfill AS b (index, shard, estimate, route_version)
    VALUES (name, index_backfill_begin.shard, index_backfill_begin.estimate, index_backfill_begin.route_version)
        ON CONFLICT ON CONSTRAINT index_backfill_pkey DO UPDATE SET updated = excluded.updated
    RETURNING * INTO state;
    RETURN state;
END
$$;
COMMENT ON FUNCTION interlock.index_backfill_begin(text, text, bigint, integer, boolean) IS
    'where the backfill of a shard goes on, or begins';

CREATE FUNCTION interlock.index_backfill_step(name text, shard text, rows jsonb, "position" jsonb, behind jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    filled integer := 0;
    last boolean := "position" IS NULL;
BEGIN
    IF jsonb_array_length(rows) > 0 THEN
        filled := interlock.index_fill(name, shard, rows);
    END IF;
    UPDATE interlock.index_backfill b
       SET position = coalesce(index_backfill_step."position", b.position), rows = b.rows + jsonb_array_length(index_backfill_step.rows),
           updated = clock_timestamp(), finished = CASE WHEN last THEN clock_timestamp() END
     WHERE b.index = name AND b.shard = index_backfill_step.shard AND b.position IS NOT DISTINCT FROM behind;
    IF FOUND THEN
        RETURN filled;
    ELSIF EXISTS (SELECT FROM interlock.index_backfill b WHERE b.index = name AND b.shard = index_backfill_step.shard) THEN
        RAISE EXCEPTION 'somebody else has gone on with the backfill of index "%" from shard "%"', name, shard
            USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSE
        RAISE EXCEPTION 'no backfill of index "%" from shard "%" has begun', name, shard
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.index_backfill_step(text, text, jsonb, jsonb, jsonb) IS
    'index_fill() of the rows behind a key, and where the next step goes on: behind position; null: there are no more rows';

CREATE FUNCTION interlock.index_backfill_end(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_index(name);
    UPDATE interlock.index_backfill b SET complete = true WHERE b.index = name;
END
$$;
COMMENT ON FUNCTION interlock.index_backfill_end(text) IS 'all shards are read: what is called next begins anew';

CREATE FUNCTION interlock.index_try_backfill(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_index(name);
    RETURN pg_try_advisory_lock(interlock.index_lock_key(name, 'backfill'));
END
$$;
COMMENT ON FUNCTION interlock.index_try_backfill(text) IS 'true: until this session ends, no other fills the index; false: another does';

CREATE FUNCTION interlock.grant_indexer(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'role must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA interlock TO %s', role);
    EXECUTE format('GRANT SELECT ON interlock.local_index, interlock.index_progress, interlock.index_backfill, '
                   'interlock.shard_identity TO %s', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION interlock.index_join(text, text), interlock.index_apply(text, text, jsonb), '
                   'interlock.index_fill(text, text, jsonb), interlock.index_mend(text, text, jsonb), '
                   'interlock.index_hold_tombstones(text), interlock.index_release_tombstones(text), '
                   'interlock.index_report(text, text, text, bigint, timestamptz, bigint), interlock.index_purge(text, integer), '
                   'interlock.index_backfill_begin(text, text, bigint, integer, boolean), '
                   'interlock.index_backfill_step(text, text, jsonb, jsonb, jsonb), interlock.index_backfill_end(text), '
                   'interlock.index_try_backfill(text), interlock.index_try_repair(text), interlock.index_ready(text, boolean) TO %s', role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON interlock.index_repair TO %s', role);
    PERFORM interlock.ensure_index_schema();
    EXECUTE format('GRANT USAGE ON SCHEMA interlock_index TO %s', role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA interlock_index TO %s', role);
    -- Indexes that are made later, too: by index_define(), which runs as the extension's owner.
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %s IN SCHEMA interlock_index GRANT SELECT ON TABLES TO %s',
                   (SELECT e.extowner::regrole FROM pg_extension e WHERE e.extname = 'interlock'), role);
END
$$;
COMMENT ON FUNCTION interlock.grant_indexer(regrole) IS
    'for the login of "interlock index" and "interlock repair" in an index database, and in the catalog: what they call and read there, beside grant_router() in the catalog';
