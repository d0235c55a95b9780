-- Index databases: the tables of global indexes, and what consumers, backfill and repair do to them.
--
-- An entry carries the version (route version, sequence number) of the change that wrote it, and only a
-- newer change overwrites it: changes may come in any order, and any number of times. A deleted row
-- leaves a tombstone, so that an older change that comes late does not bring it back.

CREATE TABLE interlock.local_index (
    name text PRIMARY KEY CHECK (name ~ '^[a-z_][a-z0-9_]{0,39}$'),
    relid regclass NOT NULL,
    table_name text NOT NULL CHECK (table_name <> ''),
    scope text[] NOT NULL,
    "order" text NOT NULL,
    key_columns text[] NOT NULL CHECK (cardinality(key_columns) > 0),
    shard_key text,
    columns jsonb NOT NULL,
    default_page integer NOT NULL
);
COMMENT ON TABLE interlock.local_index IS 'global indexes whose entries are in this database; made by index_define()';
COMMENT ON COLUMN interlock.local_index.table_name IS 'the sharded table, as it is named on the shards';
COMMENT ON COLUMN interlock.local_index.key_columns IS 'what identifies a row on all shards: its primary key, then the shard key if that is not part of it';
SELECT pg_catalog.pg_extension_config_dump('interlock.local_index', '');

CREATE TABLE interlock.index_progress (
    index text NOT NULL,
    shard text NOT NULL,
    drained_through timestamptz,
    last_seq bigint,
    next_through timestamptz,
    next_seq bigint,
    next_fence xid8,
    records bigint NOT NULL DEFAULT 0,
    rate double precision NOT NULL DEFAULT 0,
    rate_since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    rate_records bigint NOT NULL DEFAULT 0,
    consumer text,
    updated timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (index, shard)
) WITH (fillfactor = 50);
COMMENT ON TABLE interlock.index_progress IS 'how far each shard''s changes are in each index; written by consumers';
COMMENT ON COLUMN interlock.index_progress.drained_through IS
    'by this server''s clock: each change that some session had written by then is applied, its older ones too; null: not known yet';
COMMENT ON COLUMN interlock.index_progress.next_fence IS
    'next_through counts once all transactions before this one have ended: one of them may still apply a record for the second time';
COMMENT ON COLUMN interlock.index_progress.rate IS 'records applied per second, over the last ten seconds or so before "updated"';
SELECT pg_catalog.pg_extension_config_dump('interlock.index_progress', '');

CREATE TABLE interlock.index_backfill (
    index text NOT NULL,
    shard text NOT NULL,
    position jsonb,
    rows bigint NOT NULL DEFAULT 0,
    estimate bigint,
    route_version integer NOT NULL,
    started timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    updated timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    finished timestamptz,
    complete boolean NOT NULL DEFAULT false,
    PRIMARY KEY (index, shard)
) WITH (fillfactor = 50);
COMMENT ON TABLE interlock.index_backfill IS 'how far "interlock index backfill" has read each shard';
COMMENT ON COLUMN interlock.index_backfill.position IS 'key of the last row whose entry is there; null: none yet';
COMMENT ON COLUMN interlock.index_backfill.route_version IS 'route version under which the shard began to be read';
COMMENT ON COLUMN interlock.index_backfill.complete IS
    'the run has read all shards and ended: there is nothing to go on with, and what has happened to the shard since is not known';
SELECT pg_catalog.pg_extension_config_dump('interlock.index_backfill', '');

CREATE FUNCTION interlock.require_index(name text) RETURNS interlock.local_index
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    definition interlock.local_index;
BEGIN
    SELECT * INTO definition FROM interlock.local_index i WHERE i.name = require_index.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index "%" is not defined in this database', name
            USING ERRCODE = 'undefined_object', HINT = '"interlock apply" makes the table of an index that the catalog declares.';
    END IF;
    RETURN definition;
END
$$;
COMMENT ON FUNCTION interlock.require_index(text) IS 'definition of an index of this database; an error if there is none';

CREATE FUNCTION interlock.index_lock_key(name text, purpose text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$ SELECT hashtextextended('interlock index/' || purpose || '/' || name, 0) $$;
COMMENT ON FUNCTION interlock.index_lock_key(text, text) IS 'key of the advisory lock that an index has for a purpose';

-- Defining ------------------------------------------------------------------------------------------

CREATE FUNCTION interlock.ensure_index_schema() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema_owner record;
BEGIN
    SELECT r.rolname, r.rolsuper, r.oid = e.extowner AS is_ours INTO schema_owner
      FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner JOIN pg_extension e ON e.extname = 'interlock'
     WHERE n.nspname = 'interlock_index';
    IF NOT FOUND THEN
        CREATE SCHEMA interlock_index;
        COMMENT ON SCHEMA interlock_index IS 'entries of global indexes; see interlock.local_index';
    ELSIF NOT (schema_owner.rolsuper OR schema_owner.is_ours) THEN
        -- Whoever owns a schema can drop what others have put there.
        RAISE EXCEPTION 'schema "interlock_index" belongs to role "%"', schema_owner.rolname
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'Its owner could drop the entries of every index.',
                  HINT = 'Drop the schema, or ALTER SCHEMA interlock_index OWNER TO the owner of the extension.';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.ensure_index_schema() IS 'makes the schema of the indexes'' tables; an error if it is somebody else''s';

CREATE FUNCTION interlock.check_index_definition(wanted interlock.local_index) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    item record;
    risk record;
    names text[];
BEGIN
    IF wanted.name !~ '^[a-z_][a-z0-9_]{0,39}$' THEN
        RAISE EXCEPTION 'invalid name of an index: "%"', wanted.name
            USING ERRCODE = 'invalid_name',
                  DETAIL = 'A name is 1 to 40 of a-z, 0-9 and "_", and does not begin with a digit.';
    END IF;
    IF jsonb_typeof(wanted.columns) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'columns of index "%" must be an array', wanted.name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR item IN SELECT c.name, c.type, c."collation", c.not_null
                  FROM jsonb_to_recordset(wanted.columns) AS c(name text, type text, "collation" text, not_null boolean) LOOP
        IF item.name IS NULL OR item.name = '' OR item.type IS NULL OR item.not_null IS NULL THEN
            RAISE EXCEPTION 'a column of index "%" lacks name, type or not_null', wanted.name
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF item.name LIKE 'interlock\_%' THEN
            RAISE EXCEPTION 'column "%" cannot be part of an index', item.name
                USING ERRCODE = 'invalid_parameter_value', DETAIL = 'Names that begin with "interlock_" are the index''s own.';
        END IF;
        -- Both end up in a CREATE TABLE: nothing but a type's name, and a collation's, may pass.
        IF to_regtype(item.type) IS NULL THEN
            RAISE EXCEPTION 'type % of column "%" does not exist in the index database', item.type, item.name
                USING ERRCODE = 'undefined_object', HINT = 'Create the same type here as on the shards.';
        END IF;
        -- What a domain checks would run as the extension's owner; and its owner may change that at any time.
        WITH RECURSIVE part(oid) AS (
            SELECT to_regtype(item.type)::oid
             UNION
            SELECT u.oid FROM part JOIN pg_type t ON t.oid = part.oid CROSS JOIN LATERAL (
                       SELECT t.typbasetype UNION ALL SELECT t.typelem
                        UNION ALL SELECT a.atttypid FROM pg_attribute a
                                   WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) AS u(oid)
             WHERE u.oid <> 0)
        SELECT t.oid::regtype AS type, t.typowner::regrole AS owner INTO risk
          FROM part JOIN pg_type t ON t.oid = part.oid JOIN pg_roles o ON o.oid = t.typowner
         WHERE t.typtype = 'd' AND NOT o.rolsuper
           AND NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'interlock' AND e.extowner = t.typowner)
         LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'column "%" cannot be part of an index', item.name
                USING ERRCODE = 'insufficient_privilege',
                      DETAIL = format('In the index database, domain %s belongs to "%s", who could make it run functions as the extension''s owner.',
                                      risk.type, risk.owner),
                      HINT = format('ALTER DOMAIN %s OWNER TO a superuser there.', risk.type);
        END IF;
        IF item."collation" IS NOT NULL AND to_regcollation(item."collation") IS NULL THEN
            RAISE EXCEPTION 'collation % of column "%" does not exist in the index database', item."collation", item.name
                USING ERRCODE = 'undefined_object', HINT = 'Create the same collation here as on the shards.';
        END IF;
        IF item.name = ANY (names) THEN
            RAISE EXCEPTION 'column "%" is named twice', item.name USING ERRCODE = 'duplicate_column';
        END IF;
        names := names || item.name;
    END LOOP;
    SELECT u.name INTO item FROM unnest(wanted.scope || wanted.key_columns || wanted.shard_key) AS u(name)
     WHERE u.name IS NOT NULL AND u.name <> ALL (coalesce(names, '{}')) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'column "%" is not among the columns of index "%"', item.name, wanted.name
            USING ERRCODE = 'undefined_column';
    END IF;
    IF wanted.shard_key <> ALL (wanted.key_columns) THEN
        RAISE EXCEPTION 'the shard key "%" must be part of the key of index "%"', wanted.shard_key, wanted.name
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.check_index_definition(interlock.local_index) IS 'an error unless a table can be made from it';

CREATE FUNCTION interlock.index_define(name text, table_name text, columns jsonb, scope text[], "order" text,
    key text[], shard_key text, default_page integer DEFAULT 50) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    existing interlock.local_index;
    wanted interlock.local_index;
    keyset text := 'interlock_index.' || name;
    order_list text;
    messages text;
BEGIN
    IF name IS NULL OR table_name IS NULL OR columns IS NULL OR scope IS NULL OR "order" IS NULL OR key IS NULL
       OR default_page IS NULL THEN
        RAISE EXCEPTION 'only the shard key may be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    wanted := (name, 0, table_name, scope, "order", key, shard_key, columns, default_page);
    LOCK TABLE interlock.local_index IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO existing FROM interlock.local_index i WHERE i.name = index_define.name;
    IF FOUND AND EXISTS (SELECT FROM pg_class c WHERE c.oid = existing.relid) THEN
        wanted.relid := existing.relid;
        IF wanted = existing THEN
            RETURN false;
        END IF;
        existing.default_page := default_page;
        IF wanted <> existing THEN
            RAISE EXCEPTION 'index "%" is defined in this database with another definition', name
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('Here it is of table %s with scope (%s), order (%s), key (%s) and columns %s.', existing.table_name,
                                      array_to_string(existing.scope, ', '), existing."order",
                                      array_to_string(existing.key_columns, ', '), existing.columns),
                      HINT = 'Drop the index, apply, and create it again.';
        END IF;
        PERFORM interlock.keyset_drop(keyset);
        PERFORM interlock.keyset_create_index(keyset, existing.relid, name, table_name, scope, "order", 1000000, default_page);
        UPDATE interlock.local_index i SET default_page = index_define.default_page WHERE i.name = index_define.name;
        RETURN true;
    END IF;
    PERFORM interlock.check_index_definition(wanted);
    DELETE FROM interlock.local_index i WHERE i.name = index_define.name;

    PERFORM interlock.ensure_index_schema();
    EXECUTE format('CREATE TABLE interlock_index.%I (%s, interlock_shard text NOT NULL, interlock_route_version integer NOT NULL, '
                   'interlock_seq bigint NOT NULL, interlock_deleted boolean NOT NULL, '
                   'interlock_applied timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(), PRIMARY KEY (%s))',
                   name,
                   (SELECT string_agg(format('%I %s', c.name, c.type)
                                      || coalesce(' COLLATE ' || c."collation", '')
                                      || CASE WHEN c.not_null THEN ' NOT NULL' ELSE '' END, ', ' ORDER BY c.n)
                      FROM ROWS FROM (jsonb_to_recordset(columns) AS (name text, type text, "collation" text, not_null boolean))
                           WITH ORDINALITY AS c(name, type, "collation", not_null, n)),
                   (SELECT string_agg(quote_ident(k), ', ' ORDER BY n) FROM unnest(key) WITH ORDINALITY AS u(k, n)));
    wanted.relid := format('interlock_index.%I', name)::regclass;
    EXECUTE format('COMMENT ON TABLE %s IS %L', wanted.relid, 'entries of global index "' || name || '" of table ' || table_name);
    INSERT INTO interlock.local_index SELECT (wanted).*;
    -- It would warn that no index serves the keyset, which is yet to be made.
    messages := current_setting('client_min_messages');
    PERFORM set_config('client_min_messages', 'error', true);
    PERFORM interlock.keyset_create_index(keyset, wanted.relid, name, table_name, scope, "order", 1000000, default_page);
    PERFORM set_config('client_min_messages', messages, true);
    -- The order as the keyset understands it is what an index can be made of.
    SELECT concat_ws(', ', (SELECT string_agg(quote_ident(s), ', ' ORDER BY n) FROM unnest(wanted.scope) WITH ORDINALITY AS u(s, n)),
                     k."order")
      INTO STRICT order_list FROM interlock.keysets k WHERE k.name = keyset;
    EXECUTE format('CREATE INDEX ON %s (%s) WHERE NOT interlock_deleted', wanted.relid, order_list);
    EXECUTE format('CREATE INDEX ON %s (interlock_applied) WHERE interlock_deleted', wanted.relid);
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.index_define(text, text, jsonb, text[], text, text[], text, integer) IS
    'makes the table of a global index in this database; idempotent (false: it was there), an error if there is another definition';

CREATE FUNCTION interlock.index_remove(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    existing interlock.local_index;
BEGIN
    LOCK TABLE interlock.local_index IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO existing FROM interlock.local_index i WHERE i.name = index_remove.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM interlock.local_index i WHERE i.name = index_remove.name;
    DELETE FROM interlock.index_progress p WHERE p.index = index_remove.name;
    DELETE FROM interlock.index_backfill b WHERE b.index = index_remove.name;
    DELETE FROM interlock.index_repair r WHERE r.index = index_remove.name;
    IF EXISTS (SELECT FROM interlock.keyset k WHERE k.name = 'interlock_index.' || index_remove.name) THEN
        PERFORM interlock.keyset_drop('interlock_index.' || name);
    END IF;
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = existing.relid) THEN
        EXECUTE format('DROP TABLE %s', existing.relid);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.index_remove(text) IS 'drops the table of a global index and all that is known of it; false: there was none';

CREATE FUNCTION interlock.index_readers(name text, granted text[], revoked text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    definition interlock.local_index := interlock.require_index(name);
    role text;
BEGIN
    -- A role of the name PUBLIC would have to be quoted, and is never meant.
    FOREACH role IN ARRAY granted LOOP
        role := CASE role WHEN 'PUBLIC' THEN role ELSE quote_ident(role) END;
        EXECUTE format('GRANT USAGE ON SCHEMA interlock_index TO %s', role);
        EXECUTE format('GRANT SELECT ON %s TO %s', definition.relid, role);
    END LOOP;
    FOREACH role IN ARRAY revoked LOOP
        role := CASE role WHEN 'PUBLIC' THEN role ELSE quote_ident(role) END;
        EXECUTE format('REVOKE SELECT ON %s FROM %s', definition.relid, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.index_readers(text, text[], text[]) IS
    'lets roles read the entries of an index, and others no longer; PUBLIC is everybody';

-- Applying ------------------------------------------------------------------------------------------

CREATE FUNCTION interlock.index_columns(definition interlock.local_index, template text, separator text DEFAULT ', ') RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(format(template, c ->> 'name'), separator ORDER BY n)
      FROM jsonb_array_elements(definition.columns) WITH ORDINALITY AS u(c, n)
$$;
COMMENT ON FUNCTION interlock.index_columns(interlock.local_index, text, text) IS 'a template (%1$I is the name) for each column of an index';

CREATE FUNCTION interlock.index_key(definition interlock.local_index, template text DEFAULT '%1$I', separator text DEFAULT ', ') RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(format(template, k), separator ORDER BY n)
      FROM unnest(definition.key_columns) WITH ORDINALITY AS u(k, n)
$$;
COMMENT ON FUNCTION interlock.index_key(interlock.local_index, text, text) IS 'a template (%1$I is the name) for each column of an index''s key';

CREATE FUNCTION interlock.index_join(name text, shard text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF shard IS NULL THEN
        RAISE EXCEPTION 'shard must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM interlock.require_index(name);
    INSERT INTO interlock.index_progress (index, shard) VALUES (index_join.name, index_join.shard) ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION interlock.index_join(text, text) IS
    'makes it known that changes come from a shard, before the first is applied: tombstones are kept until its older ones are applied, too';

-- A shard that was deleted from the catalog has nothing that could still come: the catalog lets only those go
-- that never had a bucket in any route version, so the guard has let no write in that would have left a record.
-- Its row would never be told of progress again, and no tombstone be removed any more.
CREATE FUNCTION interlock.index_leave(name text, shards text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_index(name);
    DELETE FROM interlock.index_progress p WHERE p.index = index_leave.name AND p.shard = ANY (shards);
END
$$;
COMMENT ON FUNCTION interlock.index_leave(text, text[]) IS
    'takes index_join() back for shards that the catalog does not have any more: tombstones are not kept for them';

CREATE FUNCTION interlock.index_apply(name text, shard text, records jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "IntervalStyle" = 'postgres' SET "DateStyle" = 'ISO'
AS $$
DECLARE
    definition interlock.local_index := interlock.require_index(name);
    applied integer;
BEGIN
    IF NOT EXISTS (SELECT FROM interlock.index_progress p WHERE p.index = index_apply.name AND p.shard = index_apply.shard) THEN
        RAISE EXCEPTION 'shard "%" has not joined index "%"', shard, name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.index_join() first.';
    END IF;
    -- In the order of the keys, so that consumers that apply changes of the same rows wait for each other
    -- in one direction only.
    EXECUTE format(
        'INSERT INTO %1$s AS t (%2$s, interlock_shard, interlock_route_version, interlock_seq, interlock_deleted, interlock_applied) '
        'SELECT %2$s, $2, v, s, op = ''D'', $3 '
        '  FROM (SELECT DISTINCT ON (%4$s) %3$s, x.v, x.s, x.op '
        '          FROM jsonb_to_recordset($1) AS x(s bigint, v integer, op text, r %1$s) '
        '         ORDER BY %4$s, x.v DESC, x.s DESC) AS newest '
        'ON CONFLICT (%5$s) DO UPDATE SET %6$s, interlock_shard = excluded.interlock_shard, '
        '  interlock_route_version = excluded.interlock_route_version, interlock_seq = excluded.interlock_seq, '
        '  interlock_deleted = excluded.interlock_deleted, interlock_applied = excluded.interlock_applied '
        'WHERE (t.interlock_route_version, t.interlock_seq) < (excluded.interlock_route_version, excluded.interlock_seq)',
        definition.relid, interlock.index_columns(definition, '%1$I'), interlock.index_columns(definition, '(x.r).%1$I AS %1$I'),
        interlock.index_key(definition, '(x.r).%1$I'), interlock.index_key(definition), interlock.index_columns(definition, '%1$I = excluded.%1$I'))
    USING records, shard, clock_timestamp();
    GET DIAGNOSTICS applied = ROW_COUNT;
    RETURN applied;
END
$$;
COMMENT ON FUNCTION interlock.index_apply(text, text, jsonb) IS
    'applies changes of one shard, [{"s": seq, "v": route version, "op": "I", "U" or "D", "r": row}]: of each key the newest, unless the entry is newer; returns how many entries changed';

CREATE FUNCTION interlock.index_fill(name text, shard text, rows jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "IntervalStyle" = 'postgres' SET "DateStyle" = 'ISO'
AS $$
DECLARE
    definition interlock.local_index := interlock.require_index(name);
    filled integer;
BEGIN
    -- A change that was made after the row was read is either still to come, and overwrites what is put
    -- here, or has been applied, and then its entry (a tombstone, too) is there.
    EXECUTE format(
        'INSERT INTO %1$s (%2$s, interlock_shard, interlock_route_version, interlock_seq, interlock_deleted) '
        'SELECT %2$s, $2, 0, 0, false FROM jsonb_populate_recordset(NULL::%1$s, $1) AS r ORDER BY %3$s '
        'ON CONFLICT (%3$s) DO NOTHING',
        definition.relid, interlock.index_columns(definition, '%1$I'), interlock.index_key(definition))
    USING rows, shard;
    GET DIAGNOSTICS filled = ROW_COUNT;
    RETURN filled;
END
$$;
COMMENT ON FUNCTION interlock.index_fill(text, text, jsonb) IS
    'backfill: entries of rows read from a shard, where there is no entry yet; the caller has held tombstones since before it read the rows';

CREATE FUNCTION interlock.index_mend(name text, shard text, entries jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "IntervalStyle" = 'postgres' SET "DateStyle" = 'ISO'
AS $$
DECLARE
    definition interlock.local_index := interlock.require_index(name);
    added integer;
    changed integer;
BEGIN
    -- The version stays: a change that is not applied yet is newer and overwrites what is put here.
    EXECUTE format(
        'INSERT INTO %1$s (%2$s, interlock_shard, interlock_route_version, interlock_seq, interlock_deleted) '
        'SELECT %3$s, $2, 0, 0, coalesce(x.deleted, false) '
        '  FROM jsonb_to_recordset($1) AS x(s bigint, v integer, deleted boolean, r %1$s) '
        ' WHERE x.s IS NULL ORDER BY %4$s ON CONFLICT (%5$s) DO NOTHING',
        definition.relid, interlock.index_columns(definition, '%1$I'), interlock.index_columns(definition, '(x.r).%1$I'),
        interlock.index_key(definition, '(x.r).%1$I'), interlock.index_key(definition))
    USING entries, shard;
    GET DIAGNOSTICS added = ROW_COUNT;
    -- Rows are locked in the order of their keys, as in index_apply().
    EXECUTE format(
        'WITH mended AS MATERIALIZED ('
        '  SELECT x.s, x.v, coalesce(x.deleted, false) AS deleted, x.r '
        '    FROM jsonb_to_recordset($1) AS x(s bigint, v integer, deleted boolean, r %1$s) WHERE x.s IS NOT NULL), '
        'locked AS MATERIALIZED ('
        '  SELECT t.ctid AS place, m.r, m.deleted FROM %1$s t JOIN mended m '
        '      ON %2$s AND t.interlock_route_version = m.v AND t.interlock_seq = m.s '
        '   ORDER BY %3$s FOR UPDATE OF t) '
        'UPDATE %1$s t SET %4$s, interlock_shard = $2, interlock_deleted = l.deleted, interlock_applied = $3 '
        '  FROM locked l WHERE t.ctid = l.place',
        definition.relid, interlock.index_key(definition, 't.%1$I = (m.r).%1$I', ' AND '),
        interlock.index_key(definition, 't.%1$I'), interlock.index_columns(definition, '%1$I = (l.r).%1$I'))
    USING entries, shard, clock_timestamp();
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN added + changed;
END
$$;
COMMENT ON FUNCTION interlock.index_mend(text, text, jsonb) IS
    'repair: [{"v", "s", "r": row, "deleted"}] sets entries that are still of that version, or still absent (s null); returns how many. The caller holds tombstones';

-- Tombstones ----------------------------------------------------------------------------------------

CREATE FUNCTION interlock.index_hold_tombstones(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_index(name);
    PERFORM pg_advisory_lock_shared(interlock.index_lock_key(name, 'tombstones'));
END
$$;
COMMENT ON FUNCTION interlock.index_hold_tombstones(text) IS
    'no tombstone is removed while this session holds them, until index_release_tombstones() or its end';

CREATE FUNCTION interlock.index_release_tombstones(name text) RETURNS boolean
LANGUAGE sql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT pg_advisory_unlock_shared(interlock.index_lock_key(name, 'tombstones')) $$;
COMMENT ON FUNCTION interlock.index_release_tombstones(text) IS 'takes one index_hold_tombstones() of this session back';

CREATE FUNCTION interlock.index_report(name text, shard text, consumer text, records bigint,
    drained_through timestamptz DEFAULT NULL, last_seq bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    progress interlock.index_progress;
    snapshot pg_snapshot := pg_current_snapshot();
    clock timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO progress FROM interlock.index_progress p
     WHERE p.index = name AND p.shard = index_report.shard FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    progress.records := progress.records + records;
    progress.rate_records := progress.rate_records + records;
    IF clock - progress.rate_since NOT BETWEEN interval '0' AND interval '10 s' THEN
        progress.rate := CASE WHEN clock > progress.rate_since
                              THEN progress.rate_records / extract(epoch FROM clock - progress.rate_since) ELSE 0 END;
        progress.rate_since := clock;
        progress.rate_records := 0;
    END IF;
    -- A record may have been taken by one consumer, whose shard connection broke, and then by another. The
    -- first had its transaction here before the second took it, so the outbox is known to be drained in
    -- earnest when all the transactions of that time have ended.
    IF progress.next_fence > pg_snapshot_xmax(snapshot) OR progress.next_through > clock THEN
        progress.next_through := NULL;  -- of another server, or another time
        progress.next_seq := NULL;
        progress.next_fence := NULL;
    ELSIF progress.next_fence <= pg_snapshot_xmin(snapshot) THEN
        IF progress.drained_through IS NULL OR progress.drained_through > clock
           OR progress.drained_through < progress.next_through THEN
            progress.drained_through := progress.next_through;
            progress.last_seq := progress.next_seq;
        END IF;
        progress.next_through := NULL;
        progress.next_seq := NULL;
        progress.next_fence := NULL;
    END IF;
    IF progress.next_fence IS NULL AND index_report.drained_through <= clock THEN
        progress.next_through := index_report.drained_through;
        progress.next_seq := index_report.last_seq;
        progress.next_fence := pg_current_xact_id();  -- greater than any that has begun to write
    END IF;
    UPDATE interlock.index_progress p
       SET drained_through = progress.drained_through, last_seq = progress.last_seq,
           next_through = progress.next_through, next_seq = progress.next_seq, next_fence = progress.next_fence,
           records = progress.records, rate = progress.rate, rate_since = progress.rate_since,
           rate_records = progress.rate_records, consumer = index_report.consumer, updated = clock
     WHERE p.index = name AND p.shard = index_report.shard;
END
$$;
COMMENT ON FUNCTION interlock.index_report(text, text, text, bigint, timestamptz, bigint) IS
    'a consumer tells how many records it has applied since it last told, and up to which time of this server''s clock it knows a shard''s outbox to be drained';

CREATE FUNCTION interlock.index_purge(name text, max_entries integer DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    definition interlock.local_index := interlock.require_index(name);
    horizon timestamptz;
    purged bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(interlock.index_lock_key(name, 'tombstones')) THEN
        RETURN 0;
    END IF;
    SELECT CASE WHEN bool_and(p.drained_through <= clock_timestamp()) AND bool_and(p.drained_through IS NOT NULL)
                THEN min(p.drained_through) END
      INTO horizon FROM interlock.index_progress p WHERE p.index = index_purge.name;
    IF horizon IS NULL THEN
        RETURN 0;
    END IF;
    EXECUTE format('DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM %1$s t '
                   'WHERE t.interlock_deleted AND t.interlock_applied < $1 ORDER BY t.interlock_applied LIMIT $2 FOR UPDATE SKIP LOCKED))',
                   definition.relid)
    USING horizon, max_entries;
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END
$$;
COMMENT ON FUNCTION interlock.index_purge(text, integer) IS
    'removes tombstones that no older change can come after any more, unless somebody holds them; returns how many';
