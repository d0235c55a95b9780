-- Editing the catalog. Everything here is staged: routers see it with the next publish().

CREATE FUNCTION interlock.lock_cluster() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current_version integer;
BEGIN
    SELECT c.route_version INTO current_version FROM interlock.cluster c FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no cluster in this database'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Connect to the catalog database, or create the cluster with interlock.create_cluster().';
    END IF;
    RETURN current_version;
END
$$;
COMMENT ON FUNCTION interlock.lock_cluster() IS 'takes the lock that all edits of the catalog take; returns the current route version';

CREATE FUNCTION interlock.create_cluster(name text) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_id uuid := gen_random_uuid();
    existing text;
BEGIN
    IF name IS NULL OR name = '' THEN
        RAISE EXCEPTION 'cluster name must not be empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOCK TABLE interlock.cluster IN SHARE ROW EXCLUSIVE MODE;
    SELECT c.name INTO existing FROM interlock.cluster c;
    IF FOUND THEN
        RAISE EXCEPTION 'this database already holds the catalog of cluster "%"', existing
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO interlock.cluster (id, name) VALUES (new_id, create_cluster.name);
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION interlock.create_cluster(text) IS 'makes this database the catalog of a new cluster; returns its id';

CREATE FUNCTION interlock.add_member(role text, name text, conninfo text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kind text := CASE role WHEN 'index' THEN 'index database' ELSE 'shard' END;
    existing interlock.shard;
BEGIN
    IF name IS NULL OR name !~ '^[a-z0-9_-]{1,63}$' THEN
        RAISE EXCEPTION 'invalid % name: "%"', kind, name
            USING ERRCODE = 'invalid_name', DETAIL = 'A name is 1 to 63 of a-z, 0-9, "_" and "-".';
    END IF;
    IF conninfo IS NULL THEN
        RAISE EXCEPTION 'connection string of % "%" must not be null', kind, name
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM interlock.lock_cluster();
    SELECT * INTO existing FROM interlock.shard s WHERE s.name = add_member.name;
    IF NOT FOUND THEN
        INSERT INTO interlock.shard (name, conninfo, role) VALUES (add_member.name, add_member.conninfo, add_member.role);
    ELSIF existing.role <> role THEN
        RAISE EXCEPTION '"%" exists already, and is %', name,
            CASE existing.role WHEN 'index' THEN 'an index database' ELSE 'a shard' END
            USING ERRCODE = 'duplicate_object',
                  HINT = CASE existing.role WHEN 'index' THEN 'Choose another name.'
                         ELSE 'A shard can hold indexes as it is: give its name to interlock.create_index().' END;
    ELSIF existing.conninfo = conninfo THEN
        RAISE NOTICE '% "%" exists already, skipping', kind, name;
    ELSE
        RAISE EXCEPTION '% "%" exists already with another connection string', kind, name
            USING ERRCODE = 'duplicate_object', HINT = 'Use interlock.set_shard_conninfo() to change it.';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.add_member(text, text, text) IS
    'what add_shard() and add_index_database() do';

CREATE FUNCTION interlock.add_shard(name text, conninfo text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.add_member('shard', name, conninfo);
END
$$;
COMMENT ON FUNCTION interlock.add_shard(text, text) IS 'adds a shard; the same shard again is a no-op';

CREATE FUNCTION interlock.set_shard_conninfo(name text, conninfo text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF conninfo IS NULL THEN
        RAISE EXCEPTION 'connection string of shard "%" must not be null', name
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM interlock.lock_cluster();
    UPDATE interlock.shard s SET conninfo = set_shard_conninfo.conninfo WHERE s.name = set_shard_conninfo.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'shard "%" does not exist', name USING ERRCODE = 'undefined_object';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.set_shard_conninfo(text, text) IS 'changes how to connect to a shard or an index database, from the next publish() on';

CREATE FUNCTION interlock.create_keyspace(name text, key_type text, buckets integer, hash text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    family text := interlock.key_family(to_regtype(key_type)::oid);
    expected_hash text := CASE family WHEN 'bigint' THEN 'splitmix64' ELSE 'xxh3_64' END;
    existing interlock.keyspace;
BEGIN
    IF name IS NULL OR name = '' THEN
        RAISE EXCEPTION 'keyspace name must not be empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF family IS NULL THEN
        RAISE EXCEPTION 'type "%" cannot be a shard key', key_type
            USING ERRCODE = 'datatype_mismatch',
                  HINT = 'Key types are smallint, integer, bigint, uuid, text, character varying and bytea.';
    END IF;
    IF buckets IS NULL OR buckets NOT BETWEEN 1 AND 65536 THEN
        RAISE EXCEPTION 'number of buckets must be between 1 and 65536, not %', coalesce(buckets::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF hash <> expected_hash THEN
        RAISE EXCEPTION 'hash "%" does not fit key type %', hash, family
            USING ERRCODE = 'invalid_parameter_value', HINT = format('The hash of this key type is %s.', expected_hash);
    END IF;
    PERFORM interlock.lock_cluster();
    SELECT * INTO existing FROM interlock.keyspace k WHERE k.name = create_keyspace.name;
    IF NOT FOUND THEN
        INSERT INTO interlock.keyspace (name, key_type, hash, buckets)
        VALUES (create_keyspace.name, family, expected_hash, create_keyspace.buckets);
    ELSIF (existing.key_type, existing.hash, existing.buckets) = (family, expected_hash, buckets) THEN
        RAISE NOTICE 'keyspace "%" exists already, skipping', name;
    ELSE
        RAISE EXCEPTION 'keyspace "%" exists already with another definition', name
            USING ERRCODE = 'duplicate_object',
                  DETAIL = format('It has key type %s, hash %s and %s buckets.', existing.key_type, existing.hash, existing.buckets);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.create_keyspace(text, text, integer, text) IS
    'creates a keyspace; key type, hash and number of buckets can never be changed';

CREATE FUNCTION interlock.split_name(kind text, name text, OUT schema_name text, OUT object_name text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts text[];
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION '% name must not be null', kind USING ERRCODE = 'null_value_not_allowed';
    END IF;
    parts := parse_ident(name);
    CASE cardinality(parts)
        WHEN 1 THEN
            schema_name := 'public';
            object_name := parts[1];
        WHEN 2 THEN
            schema_name := parts[1];
            object_name := parts[2];
        ELSE
            RAISE EXCEPTION 'improper % name (too many dotted names): %', kind, name USING ERRCODE = 'syntax_error';
    END CASE;
END
$$;
COMMENT ON FUNCTION interlock.split_name(text, text) IS
    'schema and name of a table or function as SQL would read it; the schema is public if not given';

CREATE FUNCTION interlock.declare_table(table_name text, keyspace text, key_column text, version_column text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted record;
    keyspace_id smallint;
    existing interlock.sharded_table;
BEGIN
    wanted := interlock.split_name('table', table_name);
    IF key_column IS NULL OR key_column = '' THEN
        RAISE EXCEPTION 'key column of table "%" must not be empty', table_name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF version_column = '' OR version_column = key_column THEN
        RAISE EXCEPTION 'version column of table "%" must be a column other than the key', table_name
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM interlock.lock_cluster();
    SELECT k.id INTO keyspace_id FROM interlock.keyspace k WHERE k.name = declare_table.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'keyspace "%" does not exist', keyspace
            USING ERRCODE = 'undefined_object', HINT = 'Create it with interlock.create_keyspace().';
    END IF;
    SELECT * INTO existing FROM interlock.sharded_table t
     WHERE t.schema_name = wanted.schema_name AND t.table_name = wanted.object_name;
    IF NOT FOUND THEN
        INSERT INTO interlock.sharded_table (schema_name, table_name, keyspace, key_column, version_column)
        VALUES (wanted.schema_name, wanted.object_name, keyspace_id, declare_table.key_column, declare_table.version_column);
    ELSIF (existing.keyspace, existing.key_column) <> (keyspace_id, key_column) THEN
        RAISE EXCEPTION 'table "%.%" is declared already with another keyspace or key column',
            wanted.schema_name, wanted.object_name
            USING ERRCODE = 'duplicate_object', HINT = 'Take it out with interlock.undeclare_table() first.';
    ELSIF existing.version_column IS DISTINCT FROM version_column THEN
        UPDATE interlock.sharded_table t SET version_column = declare_table.version_column WHERE t.id = existing.id;
    ELSE
        RAISE NOTICE 'table "%.%" is declared already, skipping', wanted.schema_name, wanted.object_name;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.declare_table(text, text, text, text) IS
    'declares a table as sharded by a column; the table itself is on the shards and need not exist here';

CREATE FUNCTION interlock.undeclare_table(table_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted record;
BEGIN
    wanted := interlock.split_name('table', table_name);
    PERFORM interlock.lock_cluster();
    DELETE FROM interlock.sharded_table t
     WHERE t.schema_name = wanted.schema_name AND t.table_name = wanted.object_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%.%" is not declared as sharded', wanted.schema_name, wanted.object_name
            USING ERRCODE = 'undefined_object';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.undeclare_table(text) IS 'takes back declare_table(); the table and its guard on the shards stay';

CREATE FUNCTION interlock.declare_function(function_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted record;
BEGIN
    wanted := interlock.split_name('function', function_name);
    IF wanted.schema_name IN ('pg_catalog', 'information_schema') THEN
        RAISE EXCEPTION 'functions of schema "%" cannot be declared', wanted.schema_name
            USING ERRCODE = 'invalid_parameter_value', DETAIL = 'The router knows which of them are safe.';
    END IF;
    PERFORM interlock.lock_cluster();
    INSERT INTO interlock.declared_function (schema_name, function_name)
    VALUES (wanted.schema_name, wanted.object_name)
        ON CONFLICT ON CONSTRAINT declared_function_pkey DO NOTHING;
    IF NOT FOUND THEN
        RAISE NOTICE 'function "%.%" is declared already, skipping', wanted.schema_name, wanted.object_name;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.declare_function(text) IS
    'lets statements call a function of the shards, with any arguments; a promise that it touches no rows but those of the statement''s own key, and no state of the session';

CREATE FUNCTION interlock.undeclare_function(function_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted record;
BEGIN
    wanted := interlock.split_name('function', function_name);
    PERFORM interlock.lock_cluster();
    DELETE FROM interlock.declared_function f
     WHERE f.schema_name = wanted.schema_name AND f.function_name = wanted.object_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'function "%.%" is not declared', wanted.schema_name, wanted.object_name
            USING ERRCODE = 'undefined_object';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.undeclare_function(text) IS 'takes back declare_function()';

CREATE FUNCTION interlock.assign(keyspace text, buckets integer[], shard text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    keyspace_row interlock.keyspace;
    member interlock.shard;
    moving record;
    changed integer;
BEGIN
    PERFORM interlock.lock_cluster();
    SELECT * INTO keyspace_row FROM interlock.keyspace k WHERE k.name = assign.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'keyspace "%" does not exist', keyspace USING ERRCODE = 'undefined_object';
    END IF;
    SELECT * INTO member FROM interlock.shard s WHERE s.name = assign.shard;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'shard "%" does not exist', shard USING ERRCODE = 'undefined_object';
    ELSIF member.role <> 'shard' THEN
        RAISE EXCEPTION '"%" is an index database, not a shard', shard
            USING ERRCODE = 'wrong_object_type', DETAIL = 'Index databases own no buckets.';
    END IF;
    PERFORM interlock.check_bucket_numbers(keyspace_row.name, keyspace_row.buckets, buckets);
    -- Where a bucket on the move belongs is the move's to say; until it has, where it is served.
    SELECT b.bucket, m.id INTO moving
      FROM interlock.move m CROSS JOIN LATERAL unnest(m.buckets) AS b(bucket)
      JOIN interlock.route r ON r.keyspace = m.keyspace AND r.bucket = b.bucket AND r.valid_to IS NULL
     WHERE m.finished IS NULL AND m.keyspace = keyspace_row.id AND b.bucket = ANY (assign.buckets)
       AND r.shard <> member.id
     ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is part of move %', moving.bucket, keyspace, moving.id
            USING ERRCODE = 'object_in_use', HINT = interlock.move_hint(moving.id);
    END IF;
    INSERT INTO interlock.assignment AS a (keyspace, bucket, shard)
    SELECT keyspace_row.id, b, member.id FROM (SELECT DISTINCT unnest(buckets) AS b) AS wanted
        ON CONFLICT ON CONSTRAINT assignment_pkey DO UPDATE SET shard = excluded.shard
        WHERE a.shard <> excluded.shard;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION interlock.assign(text, integer[], text) IS
    'stages buckets for a shard; returns how many that changed. publish() makes it the next route version';

CREATE FUNCTION interlock.check_bucket_numbers(keyspace text, bucket_count integer, buckets integer[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong integer;
BEGIN
    IF buckets IS NULL OR array_position(buckets, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'bucket numbers must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT b INTO wrong FROM unnest(buckets) AS b WHERE b NOT BETWEEN 0 AND bucket_count - 1 ORDER BY b LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" does not exist', wrong, keyspace
            USING ERRCODE = 'numeric_value_out_of_range',
                  DETAIL = format('The buckets of this keyspace run from 0 to %s.', bucket_count - 1);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.check_bucket_numbers(text, integer, integer[]) IS 'an error unless every number is that of a bucket';

CREATE FUNCTION interlock.grant_router(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'role must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA interlock TO %s', role);
    EXECUTE format('GRANT SELECT ON interlock.cluster, interlock.shard, interlock.keyspace, interlock.sharded_table, '
                   'interlock.table_column, interlock.declared_function, interlock.assignment, interlock.route, '
                   'interlock.route_version, interlock.global_index, interlock.dropped_index, interlock.shards, '
                   'interlock.routes, interlock.route_versions, interlock.indexes, interlock.moves, '
                   'interlock.announced_move, interlock.shard_floors TO %s', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION interlock.client_verifier(text) TO %s', role);
END
$$;
COMMENT ON FUNCTION interlock.grant_router(regrole) IS
    'lets a role read the catalog and what clients'' passwords are checked against: for the login of a router''s catalog connection';
