-- publish(): the staged map becomes the next route version, or nothing changes.

CREATE FUNCTION interlock.staged_declarations() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object(
        'shards', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', s.id, 'name', s.name, 'conninfo', s.conninfo, 'role', s.role)
                                             ORDER BY s.id), '[]')
                     FROM interlock.shard s),
        'keyspaces', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', k.id, 'name', k.name, 'key_type', k.key_type,
                                                                   'hash', k.hash, 'buckets', k.buckets)
                                                ORDER BY k.id), '[]')
                        FROM interlock.keyspace k),
        'tables', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', t.id, 'schema_name', t.schema_name,
                                                                'table_name', t.table_name, 'keyspace', t.keyspace,
                                                                'key_column', t.key_column,
                                                                'version_column', t.version_column,
                                                                'scatter', t.scatter)
                                             ORDER BY t.id), '[]')
                     FROM interlock.sharded_table t),
        'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object('table_id', c.table_id, 'ordinal', c.ordinal,
                                                                 'name', c.name, 'type_oid', c.type_oid::bigint,
                                                                 'type_name', c.type_name, 'not_null', c.not_null)
                                              ORDER BY c.table_id, c.ordinal), '[]')
                      FROM interlock.table_column c),
        'functions', (SELECT coalesce(jsonb_agg(jsonb_build_object('schema_name', f.schema_name,
                                                                   'function_name', f.function_name)
                                                ORDER BY f.schema_name COLLATE "C", f.function_name COLLATE "C"), '[]')
                        FROM interlock.declared_function f),
        'indexes', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', i.id, 'name', i.name, 'table_id', i.table_id,
                                                                 'scope', i.scope, 'order', i."order", 'shard', i.shard,
                                                                 'max_page', i.max_page,
                                                                 'default_page', i.default_page, 'ready', i.ready)
                                              ORDER BY i.id), '[]')
                      FROM interlock.global_index i))
$$;
COMMENT ON FUNCTION interlock.staged_declarations() IS
    'shards, keyspaces, tables, columns, functions and indexes as they are staged; publish() keeps them with the version, and routers read them there';

CREATE FUNCTION interlock.declarations_changed() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (SELECT FROM interlock.cluster c JOIN interlock.route_version v ON v.version = c.route_version
                        WHERE v.declarations = interlock.staged_declarations())
$$;
COMMENT ON FUNCTION interlock.declarations_changed() IS
    'whether shards, keyspaces, tables, columns, functions or indexes differ from those of the current route version';

CREATE FUNCTION interlock.publish(note text DEFAULT NULL, expected_version integer DEFAULT NULL,
                                  allow_owner_change boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current_version integer := interlock.lock_cluster();
    new_version integer := interlock.next_version();
    gap record;
    change record;
    moving record;
BEGIN
    -- A number that was reserved is published by whom it was reserved for, and by nobody before: what that
    -- one has done on the shards already goes with the number. An apply names it, a move has publish_move().
    IF EXISTS (SELECT FROM interlock.cluster c WHERE c.reserved_move IS NOT NULL OR c.reserved_version <> expected_version
                                                  OR c.reserved_version IS NOT NULL AND expected_version IS NULL) THEN
        PERFORM interlock.refuse_reserved();
    END IF;

    -- Hand-made edits do not take the cluster's lock; hold them off while the map is checked and copied.
    LOCK TABLE interlock.shard, interlock.keyspace, interlock.sharded_table, interlock.table_column,
               interlock.declared_function, interlock.global_index, interlock.assignment, interlock.route,
               interlock.route_version IN SHARE ROW EXCLUSIVE MODE;

    IF expected_version <> new_version THEN
        RAISE EXCEPTION 'the next route version is %, not %', new_version, expected_version
            USING ERRCODE = 'serialization_failure',
                  DETAIL = 'Somebody else has published, or has had a number reserved.', HINT = 'Look at the catalog again and retry.';
    END IF;
    IF NOT EXISTS (SELECT FROM interlock.shard s WHERE s.role = 'shard') THEN
        RAISE EXCEPTION 'cannot publish a cluster without shards'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Add shards with interlock.add_shard().';
    END IF;
    IF NOT EXISTS (SELECT FROM interlock.keyspace) THEN
        RAISE EXCEPTION 'cannot publish a cluster without keyspaces'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Create one with interlock.create_keyspace().';
    END IF;

    -- Every bucket has exactly one shard: at most one by the primary key, at least one by this check.
    SELECT k.name, k.buckets, count(*) AS missing, (array_agg(b.bucket ORDER BY b.bucket))[1:5] AS some INTO gap
      FROM interlock.keyspace k
     CROSS JOIN LATERAL generate_series(0, k.buckets - 1) AS b(bucket)
     WHERE NOT EXISTS (SELECT FROM interlock.assignment a WHERE a.keyspace = k.id AND a.bucket = b.bucket)
     GROUP BY k.id ORDER BY k.name LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'not all buckets of keyspace "%" are assigned', gap.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Not assigned are %s of %s: %s%s.', gap.missing, gap.buckets, array_to_string(gap.some, ', '),
                                  CASE WHEN gap.missing > 5 THEN ' and so on' ELSE '' END),
                  HINT = 'Assign them with interlock.assign().';
    END IF;
    SELECT k.name, a.bucket INTO gap
      FROM interlock.assignment a JOIN interlock.keyspace k ON k.id = a.keyspace
     WHERE a.bucket >= k.buckets ORDER BY k.name, a.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" does not exist', gap.bucket, gap.name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Delete the row from interlock.assignment.';
    END IF;
    -- Only a hand-made edit can get that far.
    SELECT k.name, a.bucket, s.name AS shard INTO gap
      FROM interlock.assignment a
      JOIN interlock.keyspace k ON k.id = a.keyspace JOIN interlock.shard s ON s.id = a.shard
     WHERE s.role <> 'shard' ORDER BY k.name, a.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is assigned to index database "%"', gap.bucket, gap.name, gap.shard
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Assign it to a shard with interlock.assign().';
    END IF;
    IF EXISTS (SELECT FROM interlock.assignment a
                WHERE NOT EXISTS (SELECT FROM interlock.shard s WHERE s.id = a.shard)
                   OR NOT EXISTS (SELECT FROM interlock.keyspace k WHERE k.id = a.keyspace))
       OR EXISTS (SELECT FROM interlock.sharded_table t
                   WHERE NOT EXISTS (SELECT FROM interlock.keyspace k WHERE k.id = t.keyspace))
       OR EXISTS (SELECT FROM interlock.global_index i
                   WHERE NOT EXISTS (SELECT FROM interlock.shard s WHERE s.id = i.shard)
                      OR NOT EXISTS (SELECT FROM interlock.sharded_table t WHERE t.id = i.table_id)) THEN
        RAISE EXCEPTION 'the catalog refers to shards, keyspaces or tables that do not exist'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Look at interlock.assignment, interlock.sharded_table and interlock.global_index.';
    END IF;

    IF NOT coalesce(allow_owner_change, false) THEN
        SELECT k.name AS keyspace, r.bucket, served.name AS shard, wanted.name AS new_shard INTO change
          FROM interlock.route r
          JOIN interlock.assignment a ON a.keyspace = r.keyspace AND a.bucket = r.bucket AND a.shard <> r.shard
          JOIN interlock.keyspace k ON k.id = r.keyspace
          JOIN interlock.shard served ON served.id = r.shard
          JOIN interlock.shard wanted ON wanted.id = a.shard
         WHERE r.valid_to IS NULL
         ORDER BY k.name, r.bucket LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'bucket % of keyspace "%" is served by shard "%"', change.bucket, change.keyspace, change.shard
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('It is assigned to shard "%s", but nothing has handed it over.', change.new_shard),
                      HINT = 'Use "interlock apply", which hands over empty buckets and then publishes.';
        END IF;
    END IF;

    -- Not even on purpose: the copy of the bucket goes on, and would be activated beside the new owner.
    SELECT k.name AS keyspace, r.bucket, m.id INTO moving
      FROM interlock.move m CROSS JOIN LATERAL unnest(m.buckets) AS b(bucket)
      JOIN interlock.route r ON r.keyspace = m.keyspace AND r.bucket = b.bucket AND r.valid_to IS NULL
      JOIN interlock.assignment a ON a.keyspace = r.keyspace AND a.bucket = r.bucket AND a.shard <> r.shard
      JOIN interlock.keyspace k ON k.id = r.keyspace
     WHERE m.finished IS NULL
     ORDER BY k.name, r.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is part of move %', moving.bucket, moving.keyspace, moving.id
            USING ERRCODE = 'object_in_use', HINT = interlock.move_hint(moving.id);
    END IF;

    -- Who names the version has a use for the number (a floor may have been raised to it): always make it.
    IF expected_version IS NULL AND NOT interlock.declarations_changed()
       AND NOT EXISTS (SELECT FROM interlock.assignment a
                        WHERE NOT EXISTS (SELECT FROM interlock.route r
                                           WHERE r.keyspace = a.keyspace AND r.bucket = a.bucket AND r.shard = a.shard
                                             AND r.valid_to IS NULL)) THEN
        RAISE NOTICE 'nothing has changed since route version %, skipping', current_version;
        RETURN current_version;
    END IF;

    INSERT INTO interlock.route_version (version, note, declarations) VALUES (new_version, publish.note, interlock.staged_declarations());
    UPDATE interlock.route r SET valid_to = new_version
      FROM interlock.assignment a
     WHERE r.valid_to IS NULL AND a.keyspace = r.keyspace AND a.bucket = r.bucket AND a.shard <> r.shard;
    INSERT INTO interlock.route (keyspace, bucket, shard, valid_from)
    SELECT a.keyspace, a.bucket, a.shard, new_version
      FROM interlock.assignment a
     WHERE NOT EXISTS (SELECT FROM interlock.route r
                        WHERE r.keyspace = a.keyspace AND r.bucket = a.bucket AND r.valid_to IS NULL);
    UPDATE interlock.cluster SET route_version = new_version, last_version = new_version, reserved_version = NULL;
    PERFORM pg_notify('interlock_route', new_version::text);
    RETURN new_version;
END
$$;
COMMENT ON FUNCTION interlock.publish(text, integer, boolean) IS
    'validates the staged map and makes it the next route version, if anything has changed or expected_version is given; returns the current version';
