-- Global indexes and the databases that hold them. Staged like the rest of the catalog: "interlock apply"
-- makes what is declared here, routers see it with the next publish().

CREATE TABLE interlock.global_index (
    id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-z_][a-z0-9_]{0,39}$' AND name <> 'default'),
    table_id integer NOT NULL,
    scope text[] NOT NULL CHECK (pg_catalog.array_position(scope, NULL) IS NULL),
    "order" text NOT NULL CHECK ("order" <> ''),
    shard smallint NOT NULL,
    max_page integer NOT NULL CHECK (max_page >= 1),
    default_page integer NOT NULL CHECK (default_page >= 1 AND default_page <= max_page),
    ready boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE interlock.global_index IS
    'global indexes: keysets whose pages need not ask every shard';
COMMENT ON COLUMN interlock.global_index.name IS 'also of the keyset on the shards and of the outbox stream that feeds the index';
COMMENT ON COLUMN interlock.global_index.shard IS 'where the index is: an index database, or a shard';
COMMENT ON COLUMN interlock.global_index.ready IS 'filled: from the next route version on, pages are answered from it';
SELECT pg_catalog.pg_extension_config_dump('interlock.global_index', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.global_index_id_seq', '');

-- What is dropped here still lies about in the databases; "interlock apply" clears it away, then the row.
CREATE TABLE interlock.dropped_index (
    name text PRIMARY KEY,
    shard smallint NOT NULL
);
COMMENT ON TABLE interlock.dropped_index IS
    'global indexes taken back by drop_index() whose streams and entries "interlock apply" has still to remove';
SELECT pg_catalog.pg_extension_config_dump('interlock.dropped_index', '');

CREATE FUNCTION interlock.keep_indexed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    index_name text;
BEGIN
    IF TG_TABLE_NAME = 'sharded_table' THEN
        SELECT i.name INTO index_name FROM interlock.global_index i WHERE i.table_id = OLD.id ORDER BY i.name LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'table "%.%" is indexed by global index "%"', OLD.schema_name, OLD.table_name, index_name
                USING ERRCODE = 'object_in_use', HINT = 'Drop the index first with interlock.drop_index().';
        END IF;
        RETURN OLD;
    END IF;
    SELECT i.name INTO index_name FROM interlock.global_index i WHERE i.shard = OLD.id ORDER BY i.name LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'shard "%" holds global index "%"', OLD.name, index_name
            USING ERRCODE = 'object_in_use', HINT = 'Drop the index first with interlock.drop_index().';
    END IF;
    SELECT d.name INTO index_name FROM interlock.dropped_index d WHERE d.shard = OLD.id ORDER BY d.name LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'shard "%" still holds what is left of global index "%"', OLD.name, index_name
            USING ERRCODE = 'object_in_use',
                  HINT = '"interlock apply" removes it. If that database is gone for good, delete the row from interlock.dropped_index.';
    END IF;
    RETURN OLD;
END
$$;
COMMENT ON FUNCTION interlock.keep_indexed() IS 'trigger: tables and databases stay while an index needs them';
CREATE TRIGGER keep_indexed BEFORE DELETE ON interlock.sharded_table
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_indexed();
ALTER TABLE interlock.sharded_table ENABLE ALWAYS TRIGGER keep_indexed;
CREATE TRIGGER keep_indexed BEFORE DELETE ON interlock.shard
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_indexed();
ALTER TABLE interlock.shard ENABLE ALWAYS TRIGGER keep_indexed;

CREATE VIEW interlock.indexes AS
    SELECT i.name, pg_catalog.format('%I.%I', t.schema_name, t.table_name) AS table_name, i.scope, i."order",
           s.name AS database, i.max_page, i.default_page, i.ready,
           EXISTS (SELECT FROM interlock.cluster c
                     JOIN interlock.route_version v ON v.version = c.route_version
                    CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(v.declarations -> 'indexes') d
                    WHERE d -> 'id' = pg_catalog.to_jsonb(i.id) AND (d ->> 'ready')::boolean) AS in_use
      FROM interlock.global_index i
      LEFT JOIN interlock.sharded_table t ON t.id = i.table_id
      LEFT JOIN interlock.shard s ON s.id = i.shard;
COMMENT ON VIEW interlock.indexes IS
    'global indexes as declared; in_use: with the current route version, routers answer pages from it';

CREATE FUNCTION interlock.add_index_database(name text, conninfo text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.add_member('index', name, conninfo);
END
$$;
COMMENT ON FUNCTION interlock.add_index_database(text, text) IS
    'adds a database that holds global indexes and no buckets; the same again is a no-op';

CREATE FUNCTION interlock.create_index(name text, table_name text, scope text[], "order" text, database text DEFAULT NULL,
                                       max_page integer DEFAULT 1000, default_page integer DEFAULT 50) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted_table record;
    indexed interlock.sharded_table;
    choices text[];
    member interlock.shard;
    existing record;
    missing text;
BEGIN
    -- The name becomes part of tables' and triggers' names, and stands for a stream that must be the index's alone.
    IF name IS NULL OR name !~ '^[a-z_][a-z0-9_]{0,39}$' OR name = 'default' THEN
        RAISE EXCEPTION 'invalid index name: "%"', name
            USING ERRCODE = 'invalid_name',
                  DETAIL = 'A name is 1 to 40 of a-z, 0-9 and "_", does not begin with a digit, and is not "default".';
    END IF;
    wanted_table := interlock.split_name('table', table_name);
    IF array_ndims(scope) > 1 THEN
        RAISE EXCEPTION 'scope of index "%" must be a one-dimensional array of column names', name
            USING ERRCODE = 'array_subscript_error';
    END IF;
    IF scope IS NULL OR array_position(scope, NULL) IS NOT NULL OR "order" IS NULL THEN
        RAISE EXCEPTION 'scope columns and order of index "%" must not be null', name
            USING ERRCODE = 'null_value_not_allowed', HINT = 'An index of the whole table has the scope ''{}''.';
    END IF;
    SELECT c INTO missing FROM unnest(scope) AS c GROUP BY c HAVING count(*) > 1 ORDER BY c LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'column "%" appears more than once in the scope of index "%"', missing, name
            USING ERRCODE = 'duplicate_column';
    END IF;
    IF btrim("order", E' \t\n\r') = '' THEN
        RAISE EXCEPTION 'order of index "%" must not be empty', name
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'An order reads as in ORDER BY and ends in a unique key: ''placed_at DESC, order_id''.';
    END IF;
    IF max_page IS NULL OR default_page IS NULL OR max_page < 1 OR default_page NOT BETWEEN 1 AND max_page THEN
        RAISE EXCEPTION 'page sizes of index "%" must be at least 1, and default_page at most max_page', name
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('max_page is %s, default_page is %s.', coalesce(max_page::text, 'null'),
                                  coalesce(default_page::text, 'null'));
    END IF;
    PERFORM interlock.lock_cluster();
    SELECT * INTO indexed FROM interlock.sharded_table t
     WHERE t.schema_name = wanted_table.schema_name AND t.table_name = wanted_table.object_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%.%" is not declared as sharded', wanted_table.schema_name, wanted_table.object_name
            USING ERRCODE = 'undefined_object', HINT = 'Declare it with interlock.declare_table().';
    END IF;
    -- Of a table that was never applied, the columns are not known here; "interlock apply" looks again anyway.
    SELECT c INTO missing FROM unnest(scope) WITH ORDINALITY AS x(c, n)
     WHERE EXISTS (SELECT FROM interlock.table_column k WHERE k.table_id = indexed.id)
       AND NOT EXISTS (SELECT FROM interlock.table_column k WHERE k.table_id = indexed.id AND k.name = c)
     ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'column "%" of table "%.%" does not exist', missing, wanted_table.schema_name, wanted_table.object_name
            USING ERRCODE = 'undefined_column', DETAIL = 'The columns are those that "interlock apply" has recorded.';
    END IF;
    IF database IS NULL THEN
        choices := ARRAY(SELECT s.name FROM interlock.shard s WHERE s.role = 'index' ORDER BY s.name COLLATE "C");
        IF choices = '{}' THEN
            RAISE EXCEPTION 'there is no database for index "%"', name
                USING ERRCODE = 'undefined_object',
                      HINT = 'Add one with interlock.add_index_database(), or name a shard.';
        ELSIF cardinality(choices) > 1 THEN
            RAISE EXCEPTION 'the database of index "%" must be named', name
                USING ERRCODE = 'invalid_parameter_value',
                      DETAIL = format('There are several index databases: %s.', array_to_string(choices, ', '));
        END IF;
        database := choices[1];
    END IF;
    SELECT * INTO member FROM interlock.shard s WHERE s.name = create_index.database;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index database "%" does not exist', database
            USING ERRCODE = 'undefined_object', HINT = 'Add it with interlock.add_index_database(), or name a shard.';
    END IF;
    SELECT d.name INTO missing FROM interlock.dropped_index d WHERE d.name = create_index.name;
    IF FOUND THEN
        RAISE EXCEPTION 'index "%" was dropped, but is not removed yet', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Run "interlock apply" first: it removes the stream and the entries of the old one.';
    END IF;
    SELECT i.*, s.name AS database, format('%I.%I', t.schema_name, t.table_name) AS table_name INTO existing
      FROM interlock.global_index i
      JOIN interlock.sharded_table t ON t.id = i.table_id JOIN interlock.shard s ON s.id = i.shard
     WHERE i.name = create_index.name;
    IF NOT FOUND THEN
        INSERT INTO interlock.global_index (name, table_id, scope, "order", shard, max_page, default_page)
        VALUES (create_index.name, indexed.id, create_index.scope, create_index."order", member.id,
                create_index.max_page, create_index.default_page);
    ELSIF (existing.table_id, existing.scope, existing."order", existing.shard)
       <> (indexed.id, create_index.scope, create_index."order", member.id) THEN
        RAISE EXCEPTION 'index "%" exists already with another definition', name
            USING ERRCODE = 'duplicate_object',
                  DETAIL = format('It is of table %s, scope %s, order %L, in database "%s".', existing.table_name,
                                  existing.scope, existing."order", existing.database),
                  HINT = 'Drop it first with interlock.drop_index(), or choose another name.';
    ELSIF (existing.max_page, existing.default_page) <> (create_index.max_page, create_index.default_page) THEN
        UPDATE interlock.global_index i
           SET max_page = create_index.max_page, default_page = create_index.default_page WHERE i.id = existing.id;
    ELSE
        RAISE NOTICE 'index "%" exists already, skipping', name;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.create_index(text, text, text[], text, text, integer, integer) IS
    'declares a global index of a sharded table: a keyset whose pages come from one database; "interlock apply" makes it, "interlock index backfill" fills it';

CREATE FUNCTION interlock.drop_index(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    doomed interlock.global_index;
BEGIN
    PERFORM interlock.lock_cluster();
    DELETE FROM interlock.global_index i WHERE i.name = drop_index.name RETURNING * INTO doomed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index "%" does not exist', name USING ERRCODE = 'undefined_object';
    END IF;
    INSERT INTO interlock.dropped_index (name, shard) VALUES (doomed.name, doomed.shard);
END
$$;
COMMENT ON FUNCTION interlock.drop_index(text) IS
    'takes back create_index(); "interlock apply" ends the recording of changes and removes the entries. The keyset on the shards stays';

-- As the extension's owner: whoever fills indexes need not be able to edit the catalog.
CREATE FUNCTION interlock.index_ready(name text, ready boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    existing interlock.global_index;
BEGIN
    IF ready IS NULL THEN
        RAISE EXCEPTION 'ready must be true or false, not null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM interlock.lock_cluster();
    SELECT * INTO existing FROM interlock.global_index i WHERE i.name = index_ready.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index "%" does not exist', name
            USING ERRCODE = 'undefined_object', HINT = 'Declare it with interlock.create_index().';
    ELSIF existing.ready = ready THEN
        RAISE NOTICE 'index "%" is % already, skipping', name, CASE WHEN ready THEN 'ready' ELSE 'not ready' END;
    ELSE
        UPDATE interlock.global_index i SET ready = index_ready.ready WHERE i.id = existing.id;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.index_ready(text, boolean) IS
    'says that an index is filled, so that the next route version lets routers answer pages from it, or no longer; "interlock index backfill" calls it';
