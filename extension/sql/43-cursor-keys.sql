-- The keys that sign cursors. Sessions keep a copy (see cursor_keys.h): the library reads this table
-- by column position, so columns are only ever added at the end. It is dumped with its rows: cursors
-- outlive a restore, and keysets without a key could not be used. A cluster's shards have the same keys.

CREATE TABLE interlock.cursor_key (
    id smallint PRIMARY KEY CHECK (id BETWEEN 1 AND 255),
    secret bytea CHECK (octet_length(secret) = 32),
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired boolean NOT NULL DEFAULT false,
    CONSTRAINT cursor_key_secret_present CHECK (retired OR secret IS NOT NULL)
);
COMMENT ON TABLE interlock.cursor_key IS 'keys that sign cursors: the newest signs, two may be valid';
COMMENT ON COLUMN interlock.cursor_key.created IS 'of the valid keys the newest signs';
COMMENT ON COLUMN interlock.cursor_key.id IS 'stands in each cursor that the key has signed';
COMMENT ON COLUMN interlock.cursor_key.secret IS 'erased when the key is retired';
SELECT pg_catalog.pg_extension_config_dump('interlock.cursor_key', '');

CREATE TRIGGER state_changed AFTER INSERT OR UPDATE OR DELETE ON interlock.cursor_key
    FOR EACH ROW EXECUTE FUNCTION interlock.state_changed();
CREATE TRIGGER state_truncated AFTER TRUNCATE ON interlock.cursor_key
    FOR EACH STATEMENT EXECUTE FUNCTION interlock.state_changed();
ALTER TABLE interlock.cursor_key ENABLE ALWAYS TRIGGER state_changed, ENABLE ALWAYS TRIGGER state_truncated;

-- At the end of the transaction, so that the keys of a whole cluster can be put in place in any order.
CREATE FUNCTION interlock.limit_cursor_keys() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (SELECT count(*) FROM interlock.cursor_key k WHERE NOT k.retired) > 2 THEN
        RAISE EXCEPTION 'more than two cursor keys are valid'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Retire the older one first with interlock.cursor_key_retire().';
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION interlock.limit_cursor_keys() IS 'trigger: two cursor keys are valid at most';
CREATE CONSTRAINT TRIGGER limit_cursor_keys AFTER INSERT OR UPDATE ON interlock.cursor_key
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION interlock.limit_cursor_keys();
ALTER TABLE interlock.cursor_key ENABLE ALWAYS TRIGGER limit_cursor_keys;

CREATE FUNCTION interlock.new_cursor_secret() RETURNS bytea
LANGUAGE C VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_new_cursor_secret';
COMMENT ON FUNCTION interlock.new_cursor_secret() IS '32 random bytes, fit for a cursor key';

CREATE FUNCTION interlock.newest_cursor_key_time() RETURNS timestamptz
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(clock_timestamp(), max(k.created) + interval '1 microsecond') FROM interlock.cursor_key k
$$;
COMMENT ON FUNCTION interlock.newest_cursor_key_time() IS 'now, or later than any cursor key if the clock was set back';

CREATE FUNCTION interlock.cursor_key_add(secret bytea DEFAULT NULL, signs boolean DEFAULT true) RETURNS smallint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    valid integer;
    oldest timestamptz;
    chosen integer;
BEGIN
    IF octet_length(secret) <> 32 THEN
        RAISE EXCEPTION 'a cursor key has 32 bytes, not %', octet_length(secret)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOCK TABLE interlock.cursor_key IN SHARE ROW EXCLUSIVE MODE;
    SELECT count(*), min(k.created) INTO valid, oldest FROM interlock.cursor_key k WHERE NOT k.retired;
    IF valid >= 2 THEN
        RAISE EXCEPTION 'two cursor keys are valid already'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Retire the older one first with interlock.cursor_key_retire().';
    END IF;
    -- An id that was never used, else that of the key retired the longest: cursors with it are long gone.
    SELECT i INTO chosen FROM generate_series(1, 255) AS i LEFT JOIN interlock.cursor_key k ON k.id = i
     WHERE k.id IS NULL OR k.retired
     ORDER BY k.id IS NOT NULL, k.created, i < (SELECT max(m.id) FROM interlock.cursor_key m), i LIMIT 1;
    DELETE FROM interlock.cursor_key k WHERE k.id = chosen;
    INSERT INTO interlock.cursor_key (id, secret, created)
    VALUES (chosen, coalesce(cursor_key_add.secret, interlock.new_cursor_secret()),
            CASE WHEN NOT signs AND valid > 0 THEN oldest - interval '1 microsecond'
                 ELSE interlock.newest_cursor_key_time() END);
    RETURN chosen;
END
$$;
COMMENT ON FUNCTION interlock.cursor_key_add(bytea, boolean) IS
    'adds a key (a random one unless given), which signs cursors from now on, or is only taken until cursor_key_sign(); those of the older key stay valid';

CREATE FUNCTION interlock.cursor_key_sign(id smallint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE interlock.cursor_key IN SHARE ROW EXCLUSIVE MODE;
    UPDATE interlock.cursor_key k SET created = interlock.newest_cursor_key_time()
     WHERE k.id = cursor_key_sign.id AND NOT k.retired;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no valid cursor key %', id USING ERRCODE = 'undefined_object';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.cursor_key_sign(smallint) IS
    'makes a valid key the one that signs; on a cluster, once every shard takes its cursors';

CREATE FUNCTION interlock.cursor_key_retire(id smallint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE interlock.cursor_key IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM interlock.cursor_key k WHERE k.id = cursor_key_retire.id AND NOT k.retired) THEN
        RAISE EXCEPTION 'there is no valid cursor key %', id USING ERRCODE = 'undefined_object';
    END IF;
    IF NOT EXISTS (SELECT FROM interlock.cursor_key k WHERE k.id <> cursor_key_retire.id AND NOT k.retired) THEN
        RAISE EXCEPTION 'cursor key % is the only valid one', id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Add another first with interlock.cursor_key_add().';
    END IF;
    UPDATE interlock.cursor_key k SET retired = true, secret = NULL WHERE k.id = cursor_key_retire.id;
END
$$;
COMMENT ON FUNCTION interlock.cursor_key_retire(smallint) IS 'ends a key: cursors that it signed are refused from now on';

CREATE FUNCTION interlock.ensure_cursor_key() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM interlock.cursor_key k WHERE NOT k.retired) THEN
        LOCK TABLE interlock.cursor_key IN SHARE ROW EXCLUSIVE MODE;
        IF NOT EXISTS (SELECT FROM interlock.cursor_key k WHERE NOT k.retired) THEN
            PERFORM interlock.cursor_key_add();
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.ensure_cursor_key() IS 'makes a cursor key if there is no valid one; for keyset_create()';
