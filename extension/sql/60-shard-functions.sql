-- What "interlock apply" calls on a shard.

CREATE FUNCTION interlock.this_shard() RETURNS interlock.shard_identity
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    identity interlock.shard_identity;
BEGIN
    SELECT * INTO identity FROM interlock.shard_identity;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this database is not a shard of any cluster'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = '"interlock apply" makes a database a shard.';
    END IF;
    IF identity.system_identifier <> interlock.system_identifier()
       OR identity.database_oid <> (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) THEN
        RAISE EXCEPTION 'this database is a copy of shard "%", not the shard itself', identity.shard_name
            USING ERRCODE = 'IL104',
                  DETAIL = 'The recorded system identifier or database OID is another one.',
                  HINT = 'If the original is gone for good, declare this copy to be the shard with interlock.adopt_shard().';
    END IF;
    RETURN identity;
END
$$;
COMMENT ON FUNCTION interlock.this_shard() IS 'this shard''s identity. An error in other databases and in restored copies';

CREATE FUNCTION interlock.require_shard() RETURNS interlock.shard_identity
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Held until the transaction ends: whoever waits for a table takes it after that, not before.
    PERFORM FROM interlock.shard_identity FOR UPDATE;
    RETURN interlock.this_shard();
END
$$;
COMMENT ON FUNCTION interlock.require_shard() IS
    'as this_shard(), with a lock that serialises changes of the shard''s state';

CREATE FUNCTION interlock.set_identity(cluster_id uuid, shard text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    identity interlock.shard_identity;
BEGIN
    IF cluster_id IS NULL OR shard IS NULL THEN
        RAISE EXCEPTION 'cluster and shard must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF shard !~ '^[a-z0-9_-]{1,63}$' THEN
        RAISE EXCEPTION 'invalid shard name: "%"', shard
            USING ERRCODE = 'invalid_name', DETAIL = 'A name is 1 to 63 of a-z, 0-9, "_" and "-".';
    END IF;
    LOCK TABLE interlock.shard_identity IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO identity FROM interlock.shard_identity;
    IF NOT FOUND THEN
        INSERT INTO interlock.shard_identity (cluster_id, shard_name, system_identifier, database_oid)
        SELECT set_identity.cluster_id, set_identity.shard, interlock.system_identifier(), d.oid
          FROM pg_database d WHERE d.datname = current_database();
    ELSIF (identity.cluster_id, identity.shard_name) <> (set_identity.cluster_id, set_identity.shard) THEN
        RAISE EXCEPTION 'this database is shard "%" of cluster % already', identity.shard_name, identity.cluster_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSE
        PERFORM interlock.require_shard();
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.set_identity(uuid, text) IS 'makes this database a shard of a cluster; idempotent';

CREATE FUNCTION interlock.adopt_shard() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE interlock.shard_identity
       SET system_identifier = interlock.system_identifier(),
           database_oid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this database is not a shard of any cluster'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    -- The original may have gone on after the copy was made; a seq that consumers know must not be drawn again.
    PERFORM setval('interlock.outbox_seq', (SELECT s.last_value FROM interlock.outbox_seq s) + (1::bigint << 40));
END
$$;
COMMENT ON FUNCTION interlock.adopt_shard() IS
    'declares a restored copy to be the real shard, because the original is gone for good; moves the numbers of the outbox far on';

CREATE FUNCTION interlock.raise_floor(route_version integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    identity interlock.shard_identity := interlock.require_shard();
BEGIN
    IF route_version IS NULL OR route_version < 0 THEN
        RAISE EXCEPTION 'route version must not be null or negative' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE interlock.shard_identity SET floor = route_version WHERE floor < route_version;
    RETURN greatest(identity.floor, route_version);
END
$$;
COMMENT ON FUNCTION interlock.raise_floor(integer) IS
    'this shard refuses sessions under route versions before that one from now on; returns its floor, which is never lowered';

CREATE FUNCTION interlock.define_keyspace(name text, key_type text, hash text, buckets integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    existing interlock.local_keyspace;
BEGIN
    PERFORM interlock.require_shard();
    SELECT * INTO existing FROM interlock.local_keyspace k WHERE k.name = define_keyspace.name;
    IF NOT FOUND THEN
        INSERT INTO interlock.local_keyspace (name, key_type, hash, buckets)
        VALUES (define_keyspace.name, define_keyspace.key_type, define_keyspace.hash, define_keyspace.buckets);
    ELSIF (existing.key_type, existing.hash, existing.buckets) IS DISTINCT FROM (key_type, hash, buckets) THEN
        RAISE EXCEPTION 'keyspace "%" is defined on this shard with another definition', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Here it has key type %s, hash %s and %s buckets.', existing.key_type, existing.hash, existing.buckets);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.define_keyspace(text, text, text, integer) IS
    'makes a keyspace of the catalog known to this shard; idempotent, never changes one';

CREATE FUNCTION interlock.require_buckets(keyspace text, buckets integer[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bucket_count integer;
BEGIN
    SELECT k.buckets INTO bucket_count FROM interlock.local_keyspace k WHERE k.name = require_buckets.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'keyspace "%" is not defined in this database', keyspace
            USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM interlock.check_bucket_numbers(keyspace, bucket_count, buckets);
END
$$;
COMMENT ON FUNCTION interlock.require_buckets(text, integer[]) IS 'an error unless the buckets exist in a keyspace of this shard';

CREATE FUNCTION interlock.accept_buckets(keyspace text, buckets integer[], route_version integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    obstacle interlock.bucket_state;
    changed integer;
BEGIN
    PERFORM interlock.require_shard();
    PERFORM interlock.require_buckets(keyspace, buckets);
    IF route_version IS NULL OR route_version < 0 THEN
        RAISE EXCEPTION 'route version must not be null or negative' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.* INTO obstacle FROM interlock.bucket_state s
     WHERE s.keyspace = accept_buckets.keyspace AND s.bucket = ANY (buckets)
       AND (s.state IN ('fenced', 'importing') OR s.state = 'moved' AND s.route_version > accept_buckets.route_version)
     ORDER BY s.bucket LIMIT 1;
    IF FOUND AND obstacle.state = 'moved' THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" moved to shard "%" at route version %',
            obstacle.bucket, keyspace, obstacle.peer, obstacle.route_version
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('It cannot come back at route version %s, which is older.', accept_buckets.route_version);
    ELSIF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is %', obstacle.bucket, keyspace, obstacle.state
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Finish or abort its move first.';
    END IF;
    -- A number alone does not tell that: a catalog that was restored gives numbers out again.
    SELECT s.* INTO obstacle FROM interlock.bucket_state s
      JOIN interlock.handoff h ON h.move_id = s.move_id AND h.role = 'source' AND h.state = 'decided'
     WHERE s.keyspace = accept_buckets.keyspace AND s.bucket = ANY (accept_buckets.buckets) AND s.state = 'moved'
     ORDER BY s.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" has been given to shard "%"', obstacle.bucket, keyspace, obstacle.peer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('By move %s, which is decided and not finished.', obstacle.move_id),
                  HINT = 'Drive that move forward with "interlock move --resume". If the catalog does not know it any more, find out which shard has the rows, then call interlock.forget_handoff() here.';
    END IF;
    INSERT INTO interlock.bucket_state AS s (keyspace, bucket, state, route_version)
    SELECT accept_buckets.keyspace, b, 'owned', accept_buckets.route_version
      FROM (SELECT DISTINCT unnest(buckets) AS b) AS wanted
        ON CONFLICT ON CONSTRAINT bucket_state_pkey
        DO UPDATE SET state = 'owned', peer = NULL, until = NULL, move_id = NULL, route_version = excluded.route_version
        WHERE s.state <> 'owned';
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION interlock.accept_buckets(text, integer[], integer) IS
    'this shard owns the buckets from now on; returns how many it did not own before';

CREATE FUNCTION interlock.require_newest_snapshot() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- An older snapshot would not show rows that were written while this waited for its lock.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'must be called in a READ COMMITTED transaction, not in %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.require_newest_snapshot() IS 'an error unless the transaction is READ COMMITTED';

CREATE FUNCTION interlock.release_buckets(keyspace text, buckets integer[], to_shard text, route_version integer)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    identity interlock.shard_identity;
    obstacle record;
    owned integer[];
BEGIN
    PERFORM interlock.require_newest_snapshot();
    -- Writers wait here, or are waited for: between the look and the end of this transaction no row comes.
    IF EXISTS (SELECT FROM interlock.bucket_state s
                WHERE s.keyspace = release_buckets.keyspace AND s.bucket = ANY (buckets) AND s.state = 'owned') THEN
        PERFORM interlock.lock_tables(keyspace, 'SHARE');
    END IF;
    identity := interlock.require_shard();
    PERFORM interlock.require_buckets(keyspace, buckets);
    IF route_version IS NULL OR route_version < 1 THEN
        RAISE EXCEPTION 'route version must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF to_shard IS NULL OR to_shard = identity.shard_name THEN
        RAISE EXCEPTION 'buckets can only be released to another shard' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT s.bucket, s.state INTO obstacle FROM interlock.bucket_state s
     WHERE s.keyspace = release_buckets.keyspace AND s.bucket = ANY (buckets) AND s.state IN ('fenced', 'importing')
     ORDER BY s.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is %', obstacle.bucket, keyspace, obstacle.state
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Finish or abort its move first.';
    END IF;

    SELECT b.bucket, h.move_id INTO obstacle FROM interlock.handoff h CROSS JOIN LATERAL unnest(h.buckets) AS b(bucket)
     WHERE h.keyspace = release_buckets.keyspace AND h.state = 'begun' AND b.bucket = ANY (release_buckets.buckets)
     ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is about to be moved', obstacle.bucket, keyspace
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('By move %s.', obstacle.move_id), HINT = 'Finish or abort its move first.';
    END IF;

    owned := ARRAY(SELECT s.bucket FROM interlock.bucket_state s
                    WHERE s.keyspace = release_buckets.keyspace AND s.bucket = ANY (buckets) AND s.state = 'owned');
    IF owned <> '{}' THEN
        PERFORM interlock.lock_tables(keyspace, 'SHARE', nowait => true);
        SELECT r.* INTO obstacle FROM interlock.bucket_rows(keyspace, owned) AS r
         ORDER BY r.bucket, r.relation::text COLLATE "C" LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'bucket % of keyspace "%" is not empty', obstacle.bucket, keyspace
                USING ERRCODE = 'object_in_use',
                      DETAIL = format('Table "%s" has rows of it: %s.', obstacle.relation, obstacle.rows),
                      HINT = 'Only empty buckets can be released.';
        END IF;
    END IF;

    INSERT INTO interlock.bucket_state AS s (keyspace, bucket, state, peer, route_version)
    SELECT release_buckets.keyspace, b, 'moved', to_shard, release_buckets.route_version
      FROM (SELECT DISTINCT unnest(buckets) AS b) AS wanted
        ON CONFLICT ON CONSTRAINT bucket_state_pkey
        DO UPDATE SET state = 'moved', peer = excluded.peer, until = NULL, move_id = NULL,
                      route_version = greatest(s.route_version, excluded.route_version)
        WHERE (s.state, s.peer) IS DISTINCT FROM ('moved', excluded.peer) OR s.route_version < excluded.route_version;
    UPDATE interlock.shard_identity SET floor = release_buckets.route_version
     WHERE floor < release_buckets.route_version;
    RETURN cardinality(owned);
END
$$;
COMMENT ON FUNCTION interlock.release_buckets(text, integer[], text, integer) IS
    'gives empty buckets to another shard and raises the floor; returns how many this shard owned before. Waits for writers: set lock_timeout';
