-- The catalog: what the cluster consists of, and which shard serves which bucket since which version.
-- Empty in databases that are not the catalog.
--
-- No foreign keys: pg_restore -j loads the tables of an extension in any order. The functions check what
-- is put in, publish() checks the whole, and triggers keep what is referred to.

CREATE TABLE interlock.cluster (
    id uuid NOT NULL,
    name text NOT NULL CHECK (name <> ''),
    route_version integer NOT NULL DEFAULT 0 CHECK (route_version >= 0),
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    last_version integer NOT NULL DEFAULT 0 CHECK (last_version >= 0),
    reserved_version integer CHECK (reserved_version > route_version AND reserved_version <= last_version),
    reserved_move uuid CHECK (reserved_move IS NULL OR reserved_version IS NOT NULL),
    announcement bigint NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX cluster_single_row ON interlock.cluster ((true));
COMMENT ON TABLE interlock.cluster IS 'the cluster this catalog describes: no row or one';
COMMENT ON COLUMN interlock.cluster.route_version IS 'number of the current route version; 0 = nothing published yet';
COMMENT ON COLUMN interlock.cluster.last_version IS
    'highest number of a route version ever reserved or published: shards may know it, so none is given out twice';
COMMENT ON COLUMN interlock.cluster.reserved_version IS 'number that the next route version will have; nobody else may publish';
COMMENT ON COLUMN interlock.cluster.reserved_move IS 'the move that reserved_version belongs to; null: it is that of an "interlock apply"';
COMMENT ON COLUMN interlock.cluster.announcement IS
    'counts what happens to announcements of moves, so that routers see in this row that one has come or gone';

CREATE TABLE interlock.shard (
    id smallint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9_-]{1,63}$'),
    conninfo text NOT NULL,
    role text NOT NULL DEFAULT 'shard' CHECK (role IN ('shard', 'index'))
);
COMMENT ON TABLE interlock.shard IS 'shards and index databases, and how to connect to them';
COMMENT ON COLUMN interlock.shard.role IS 'shard: owns buckets, and may hold indexes; index: holds indexes only';

CREATE TABLE interlock.keyspace (
    id smallint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE CHECK (name <> ''),
    key_type text NOT NULL CHECK (key_type IN ('bigint', 'uuid', 'text', 'bytea')),
    hash text NOT NULL,
    buckets integer NOT NULL CHECK (buckets BETWEEN 1 AND 65536),
    CONSTRAINT keyspace_hash_check
        CHECK (hash = CASE key_type WHEN 'bigint' THEN 'splitmix64' ELSE 'xxh3_64' END)
);
COMMENT ON TABLE interlock.keyspace IS 'keyspaces: key type, hash and number of buckets, which never change';

CREATE TABLE interlock.sharded_table (
    id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    schema_name text NOT NULL CHECK (schema_name <> ''),
    table_name text NOT NULL CHECK (table_name <> ''),
    keyspace smallint NOT NULL,
    key_column text NOT NULL CHECK (key_column <> ''),
    version_column text CHECK (version_column <> '' AND version_column <> key_column),
    UNIQUE (schema_name, table_name)
);
COMMENT ON TABLE interlock.sharded_table IS 'tables declared as sharded, with their keyspace and key column';
COMMENT ON COLUMN interlock.sharded_table.version_column IS 'optimistic-lock column, if the table has one';

CREATE TABLE interlock.table_column (
    table_id integer NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal > 0),
    name text NOT NULL,
    type_oid oid NOT NULL,
    type_name text NOT NULL,
    not_null boolean NOT NULL,
    PRIMARY KEY (table_id, ordinal),
    UNIQUE (table_id, name)
);
COMMENT ON TABLE interlock.table_column IS 'columns that the sharded tables have on the shards, as recorded by "interlock apply"';
COMMENT ON COLUMN interlock.table_column.type_oid IS 'the built-in type; for a domain, the type below it';

CREATE TABLE interlock.declared_function (
    schema_name text NOT NULL CHECK (schema_name <> ''),
    function_name text NOT NULL CHECK (function_name <> ''),
    PRIMARY KEY (schema_name, function_name)
);
COMMENT ON TABLE interlock.declared_function IS
    'functions of the shards that statements may call through a router, whatever their arguments';

CREATE TABLE interlock.client_user (
    name text PRIMARY KEY CHECK (name <> '' AND pg_catalog.octet_length(name) <= 63),
    verifier text CHECK (verifier ~ '^SCRAM-SHA-256\$[1-9][0-9]{0,8}:[A-Za-z0-9+/]+={0,2}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$'),
    backend_login text CHECK (backend_login <> '')
);
COMMENT ON TABLE interlock.client_user IS
    'users of the routers'' PostgreSQL listener that are no roles of this database, or are another role on the shards';
COMMENT ON COLUMN interlock.client_user.verifier IS 'SCRAM-SHA-256 verifier; null: that of the role of the same name';
COMMENT ON COLUMN interlock.client_user.backend_login IS 'role on the shards; null: the one of the same name';

CREATE TABLE interlock.assignment (
    keyspace smallint NOT NULL,
    bucket integer NOT NULL CHECK (bucket BETWEEN 0 AND 65535),
    shard smallint NOT NULL,
    PRIMARY KEY (keyspace, bucket)
);
COMMENT ON TABLE interlock.assignment IS 'staged map from bucket to shard; publish() makes it the next route version';

CREATE TABLE interlock.route_version (
    version integer PRIMARY KEY CHECK (version > 0),
    published_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    published_by name NOT NULL DEFAULT SESSION_USER,
    note text,
    declarations jsonb NOT NULL
);
COMMENT ON TABLE interlock.route_version IS 'route versions ever published';
COMMENT ON COLUMN interlock.route_version.declarations IS 'shards, keyspaces, tables, columns, functions and indexes as published: what a router works with, whatever is staged since';

CREATE TABLE interlock.route (
    keyspace smallint NOT NULL,
    bucket integer NOT NULL CHECK (bucket BETWEEN 0 AND 65535),
    shard smallint NOT NULL,
    valid_from integer NOT NULL,
    valid_to integer CHECK (valid_to > valid_from),
    PRIMARY KEY (keyspace, bucket, valid_from)
);
CREATE UNIQUE INDEX route_current ON interlock.route (keyspace, bucket) WHERE valid_to IS NULL;
COMMENT ON TABLE interlock.route IS
    'the published maps: a row holds in version v if valid_from <= v and (valid_to is null or valid_to > v)';

-- Placement must never change under the rows that are placed, and what is referred to stays.
CREATE FUNCTION interlock.keep_keyspace() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF to_jsonb(OLD) <> to_jsonb(NEW) THEN
            RAISE EXCEPTION 'definition of keyspace "%" cannot be changed', OLD.name
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'Create another keyspace and move the rows into it.';
        END IF;
        RETURN NEW;
    END IF;
    IF EXISTS (SELECT FROM interlock.sharded_table t WHERE t.keyspace = OLD.id) THEN
        RAISE EXCEPTION 'keyspace "%" is used by sharded tables', OLD.name USING ERRCODE = 'object_in_use';
    END IF;
    IF EXISTS (SELECT FROM interlock.route r WHERE r.keyspace = OLD.id) THEN
        RAISE EXCEPTION 'keyspace "%" is part of published route versions', OLD.name USING ERRCODE = 'object_in_use';
    END IF;
    DELETE FROM interlock.assignment a WHERE a.keyspace = OLD.id;
    RETURN OLD;
END
$$;
COMMENT ON FUNCTION interlock.keep_keyspace() IS 'trigger: keyspaces do not change, and stay while they are used';
CREATE TRIGGER keep_keyspace BEFORE UPDATE OR DELETE ON interlock.keyspace
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_keyspace();
ALTER TABLE interlock.keyspace ENABLE ALWAYS TRIGGER keep_keyspace;

CREATE FUNCTION interlock.keep_shard() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    move_id uuid;
BEGIN
    IF EXISTS (SELECT FROM interlock.route r WHERE r.shard = OLD.id)
       OR EXISTS (SELECT FROM interlock.assignment a WHERE a.shard = OLD.id) THEN
        RAISE EXCEPTION 'shard "%" has, or once had, buckets assigned to it', OLD.name USING ERRCODE = 'object_in_use';
    END IF;
    SELECT m.id INTO move_id FROM interlock.move m
     WHERE m.finished IS NULL AND OLD.id IN (m.from_shard, m.to_shard) ORDER BY m.began, m.id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'shard "%" takes part in move %', OLD.name, move_id
            USING ERRCODE = 'object_in_use', HINT = interlock.move_hint(move_id);
    END IF;
    RETURN OLD;
END
$$;
COMMENT ON FUNCTION interlock.keep_shard() IS 'trigger: shards stay while a map or a move names them';
CREATE TRIGGER keep_shard BEFORE DELETE ON interlock.shard
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_shard();
ALTER TABLE interlock.shard ENABLE ALWAYS TRIGGER keep_shard;

CREATE FUNCTION interlock.drop_columns() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM interlock.table_column c WHERE c.table_id = OLD.id;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION interlock.drop_columns() IS 'trigger: forgets the columns of a table that is no longer declared';
CREATE TRIGGER drop_columns AFTER DELETE ON interlock.sharded_table
    FOR EACH ROW EXECUTE FUNCTION interlock.drop_columns();

SELECT pg_catalog.pg_extension_config_dump('interlock.cluster', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.shard', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.shard_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.keyspace', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.keyspace_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.sharded_table', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.sharded_table_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.table_column', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.declared_function', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.client_user', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.assignment', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.route_version', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.route', '');

CREATE VIEW interlock.shards AS
    SELECT s.name, s.role, s.conninfo, pg_catalog.count(r.shard) AS buckets
      FROM interlock.shard s
      LEFT JOIN interlock.route r ON r.shard = s.id AND r.valid_to IS NULL
     GROUP BY s.id;
COMMENT ON VIEW interlock.shards IS 'shards and index databases, and how many buckets each serves in the current route version';

CREATE VIEW interlock.routes AS
    SELECT k.name AS keyspace, r.bucket, s.name AS shard, r.valid_from AS since_version
      FROM interlock.route r
      JOIN interlock.keyspace k ON k.id = r.keyspace
      JOIN interlock.shard s ON s.id = r.shard
     WHERE r.valid_to IS NULL;
COMMENT ON VIEW interlock.routes IS 'current map from bucket to shard';

CREATE VIEW interlock.route_versions AS
    SELECT v.version, v.published_at, v.published_by, v.note,
           v.version = (SELECT c.route_version FROM interlock.cluster c) AS is_current
      FROM interlock.route_version v;
COMMENT ON VIEW interlock.route_versions IS 'route versions ever published, and which is the current one';
