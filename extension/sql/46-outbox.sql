-- The outbox: every change of an attached table, recorded in the writer's own transaction, for whoever
-- has to act on it: a global index, a message broker. Useful with no cluster at all.

CREATE TABLE interlock.outbox (
    seq bigint NOT NULL,
    stream text NOT NULL,
    xid xid8 NOT NULL,
    table_name text NOT NULL,
    op text NOT NULL,
    key jsonb NOT NULL,
    old jsonb,
    new jsonb,
    bucket integer,
    route_version integer NOT NULL,
    at timestamptz NOT NULL
) USING heap;
COMMENT ON TABLE interlock.outbox IS 'changes that no consumer has removed yet; the records are in children, 32 segments a stream. Take them with outbox_take()';
COMMENT ON COLUMN interlock.outbox.seq IS 'unique; of two changes of one key the later has the greater. Says nothing about the order of commits across keys';
COMMENT ON COLUMN interlock.outbox.xid IS 'transaction that made the change, the top-level one';
COMMENT ON COLUMN interlock.outbox.table_name IS 'the table that was attached, qualified and quoted, also where the row is in a partition of it';
COMMENT ON COLUMN interlock.outbox.op IS 'I, U or D; an update that changes the key is a D of the old one and an I of the new one';
COMMENT ON COLUMN interlock.outbox.key IS 'values of the key columns, in the form of row_values()';
COMMENT ON COLUMN interlock.outbox.old IS 'the recorded columns before the change; NULL for I';
COMMENT ON COLUMN interlock.outbox.new IS 'the recorded columns after the change; NULL for D';
COMMENT ON COLUMN interlock.outbox.bucket IS 'bucket of the row; NULL where the table is not sharded';
COMMENT ON COLUMN interlock.outbox.route_version IS 'under which this shard came to own the bucket; 0 where the table is not sharded';
COMMENT ON COLUMN interlock.outbox.at IS 'when the change was made, by the clock of this server; not the time of its commit';

-- One for all streams, drawn in an AFTER ROW trigger: while the row is locked.
CREATE SEQUENCE interlock.outbox_seq CACHE 1;
COMMENT ON SEQUENCE interlock.outbox_seq IS 'numbers of the changes in the outbox; must never go back, so adopt_shard() moves it far on';

CREATE TABLE interlock.outbox_stream (
    name text PRIMARY KEY CHECK (name ~ '^[a-z_][a-z0-9_]{0,39}$'),
    retries bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE interlock.outbox_stream IS 'streams of the outbox: queues of their own, each with its consumers; made by outbox_attach()';
COMMENT ON COLUMN interlock.outbox_stream.retries IS 'counts outbox_retry(): consumers then look at everything again';

CREATE TABLE interlock.outbox_table (
    relid regclass NOT NULL,
    stream text NOT NULL,
    columns text[],
    key text[] NOT NULL CHECK (cardinality(key) > 0),
    PRIMARY KEY (relid, stream)
);
-- (No foreign key to outbox_stream: a dump may be restored in any order.)
COMMENT ON TABLE interlock.outbox_table IS 'tables given to outbox_attach(); their partitions and children are recorded with them';
COMMENT ON COLUMN interlock.outbox_table.columns IS 'what is recorded, besides the key; NULL: every column';

CREATE TABLE interlock.outbox_parked (
    LIKE interlock.outbox,
    tries integer NOT NULL,
    error text,
    parked_at timestamptz NOT NULL,
    PRIMARY KEY (seq)
) USING heap;
CREATE INDEX outbox_parked_key ON interlock.outbox_parked USING hash (key);
COMMENT ON TABLE interlock.outbox_parked IS 'records set aside because they could not be applied; outbox_retry() puts them back, outbox_discard() forgets them';
COMMENT ON COLUMN interlock.outbox_parked.tries IS 'failures that outbox_failed() counted';

CREATE TABLE interlock.outbox_try (
    seq bigint PRIMARY KEY,
    tries integer NOT NULL,
    error text,
    failed_at timestamptz NOT NULL
);
COMMENT ON TABLE interlock.outbox_try IS 'records that have failed, but not yet so often that they are parked';

SELECT pg_catalog.pg_extension_config_dump('interlock.outbox_seq', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.outbox', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.outbox_stream', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.outbox_table', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.outbox_parked', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.outbox_try', '');

-- Sessions keep what they know of streams and attached tables: every change makes them read again.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outbox_stream', 'outbox_table'] LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER state_changed AFTER INSERT OR UPDATE OR DELETE ON interlock.%I '
                                  'FOR EACH ROW EXECUTE FUNCTION interlock.state_changed()', name);
        EXECUTE pg_catalog.format('CREATE TRIGGER state_truncated AFTER TRUNCATE ON interlock.%I '
                                  'FOR EACH STATEMENT EXECUTE FUNCTION interlock.state_changed()', name);
        EXECUTE pg_catalog.format('ALTER TABLE interlock.%I ENABLE ALWAYS TRIGGER state_changed, '
                                  'ENABLE ALWAYS TRIGGER state_truncated', name);
    END LOOP;
END
$$;

CREATE FUNCTION interlock.row_values("row" anyelement, columns text[]) RETURNS jsonb
LANGUAGE C STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_row_values';
COMMENT ON FUNCTION interlock.row_values(anyelement, text[]) IS
    'these columns of a row (NULL: all) as the outbox records them: exact, and the same whatever the session''s settings are';

-- Recording.

CREATE FUNCTION interlock.outbox_capture() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'interlock_outbox_capture';
COMMENT ON FUNCTION interlock.outbox_capture() IS 'trigger (stream): records a change of a row in the outbox';

CREATE FUNCTION interlock.outbox_truncate() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'interlock_outbox_truncate';
COMMENT ON FUNCTION interlock.outbox_truncate() IS 'trigger (stream): before TRUNCATE, records the deletion of each row';

CREATE FUNCTION interlock.outbox_record_rows(relation regclass, lineage regclass, stream text, come boolean) RETURNS bigint
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_outbox_record_rows';
COMMENT ON FUNCTION interlock.outbox_record_rows(regclass, regclass, text, boolean) IS
    'records each row of a table as inserted (or as deleted), because the table has come to (or left) an attached table';

CREATE FUNCTION interlock.outbox_default_key(relation regclass) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE line(relid) AS (
        SELECT relation::oid
         UNION
        SELECT i.inhparent FROM line JOIN pg_inherits i ON i.inhrelid = line.relid
    ), primary_key AS (
        SELECT array_agg(a.attname::text ORDER BY k.position) AS names
          FROM pg_index x CROSS JOIN LATERAL unnest(x.indkey::smallint[]) WITH ORDINALITY AS k(number, position)
               JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number
         WHERE x.indrelid = relation AND x.indisprimary AND k.position <= x.indnkeyatts
    )
    SELECT p.names || ARRAY(SELECT DISTINCT g.key_column FROM line JOIN interlock.guarded_table g ON g.relid = line.relid
                             WHERE g.key_column <> ALL (p.names))
      FROM primary_key p WHERE p.names IS NOT NULL
$$;
COMMENT ON FUNCTION interlock.outbox_default_key(regclass) IS 'columns of the primary key, and the shard key of a sharded table; NULL where there is no primary key';

CREATE FUNCTION interlock.outbox_check_columns(relation regclass, columns text[], key text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
BEGIN
    IF array_position(columns, NULL) IS NOT NULL OR array_position(key, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'column name must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT c INTO wrong FROM unnest(columns || key) AS c
     WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = c AND a.attnum > 0 AND NOT a.attisdropped)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'column "%" of table "%" does not exist', wrong, relation USING ERRCODE = 'undefined_column';
    END IF;
    SELECT c INTO wrong FROM unnest(key) AS c JOIN pg_attribute a ON a.attrelid = relation AND a.attname = c
     WHERE NOT a.attnotnull LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'key column "%" of table "%" is not declared NOT NULL', wrong, relation
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', relation, wrong);
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_index x
         WHERE x.indrelid = relation AND x.indisunique AND x.indisvalid AND x.indimmediate AND x.indpred IS NULL AND x.indexprs IS NULL
           AND NOT EXISTS (
               SELECT FROM unnest(x.indkey::smallint[]) WITH ORDINALITY AS k(number, position)
                        JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number
                WHERE k.position <= x.indnkeyatts AND a.attname <> ALL (key)))
    THEN
        RAISE EXCEPTION 'key of table "%" contains no unique key', relation
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('The key given is (%s).', (SELECT string_agg(quote_ident(c), ', ') FROM unnest(key) AS c)),
                  HINT = 'A record must name one row: include the columns of a unique index that is not partial and not deferrable.';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.outbox_check_columns(regclass, text[], text[]) IS
    'an error unless the columns exist, and those of the key are NOT NULL and contain a unique key';

CREATE FUNCTION interlock.outbox_make_stream(stream text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    segment text;
BEGIN
    IF EXISTS (SELECT FROM interlock.outbox_stream s WHERE s.name = stream) THEN
        RETURN;
    END IF;
    LOCK TABLE interlock.outbox_stream IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM interlock.outbox_stream s WHERE s.name = stream) THEN
        RETURN;
    END IF;
    FOR k IN 0..31 LOOP
        segment := format('interlock.%I', format('outbox_%s_%s', stream, k));
        -- One that is there already comes from a dump without data.
        CONTINUE WHEN EXISTS (SELECT FROM pg_inherits i
                               WHERE i.inhrelid = to_regclass(segment) AND i.inhparent = 'interlock.outbox'::regclass);
        EXECUTE format('CREATE TABLE %s () INHERITS (interlock.outbox) USING heap', segment);
    END LOOP;
    INSERT INTO interlock.outbox_stream (name) VALUES (stream);
END
$$;
COMMENT ON FUNCTION interlock.outbox_make_stream(text) IS 'makes a stream with its segments, as the extension''s owner; nothing if it exists';

CREATE FUNCTION interlock.outbox_drop_stream(stream text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    attached regclass;
BEGIN
    PERFORM FROM interlock.outbox_stream s WHERE s.name = stream FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'outbox stream "%" does not exist', stream USING ERRCODE = 'undefined_object';
    END IF;
    SELECT t.relid INTO attached FROM interlock.outbox_table t WHERE t.stream = outbox_drop_stream.stream LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'outbox stream "%" is used by table "%"', stream, attached
            USING ERRCODE = 'object_in_use', HINT = 'Call interlock.outbox_detach() for its tables first.';
    END IF;
    -- Consumers keep their locks until they have committed.
    FOR k IN 0..31 LOOP
        EXECUTE format('LOCK TABLE interlock.%I IN ACCESS EXCLUSIVE MODE', format('outbox_%s_%s', stream, k));
    END LOOP;
    IF NOT force THEN
        IF EXISTS (SELECT FROM interlock.outbox o WHERE o.stream = outbox_drop_stream.stream)
           OR EXISTS (SELECT FROM interlock.outbox_parked p WHERE p.stream = outbox_drop_stream.stream) THEN
            RAISE EXCEPTION 'outbox stream "%" has records', stream
                USING ERRCODE = 'object_in_use', HINT = 'Let its consumers drain it, or drop it with force => true.';
        END IF;
    END IF;
    DELETE FROM interlock.outbox_try t USING interlock.outbox o WHERE o.seq = t.seq AND o.stream = outbox_drop_stream.stream;
    DELETE FROM interlock.outbox_parked p WHERE p.stream = outbox_drop_stream.stream;
    FOR k IN 0..31 LOOP
        EXECUTE format('DROP TABLE interlock.%I', format('outbox_%s_%s', stream, k));
    END LOOP;
    DELETE FROM interlock.outbox_stream s WHERE s.name = stream;
END
$$;
COMMENT ON FUNCTION interlock.outbox_drop_stream(text, boolean) IS
    'drops a stream to which no table is attached any more; with records left in it only if forced. Waits for its consumers';

CREATE FUNCTION interlock.outbox_triggers(relation regclass, stream text)
    RETURNS TABLE (relid regclass, name text, definition text, state "char")
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- The row trigger runs before other AFTER triggers: their changes come after the one that fired them.
    -- That on TRUNCATE runs after the guard's, which may refuse it; partitions get none by themselves.
    SELECT m.relid, w.name, format(w.definition, w.name, m.relid, stream), t.tgenabled
      FROM interlock.family_tree(relation) m JOIN pg_class c ON c.oid = m.relid
           CROSS JOIN LATERAL (VALUES
               (true, '!interlock_outbox_' || stream,
                'CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION interlock.outbox_capture(%L)'),
               (c.relkind <> 'p', '~interlock_truncate_' || stream,
                'CREATE TRIGGER %I BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION interlock.outbox_truncate(%L)')
           ) AS w(wanted, name, definition)
           LEFT JOIN pg_trigger t ON t.tgrelid = m.relid AND t.tgname = w.name
     WHERE w.wanted
     ORDER BY m.depth, m.relid, w.name
$$;
COMMENT ON FUNCTION interlock.outbox_triggers(regclass, text) IS
    'triggers that record a table with its partitions and children, parents first; state is NULL where one is missing';

CREATE FUNCTION interlock.outbox_make_triggers(relation regclass, stream text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
    wanted record;
    present "char";
BEGIN
    SELECT m.relid, c.relkind INTO member FROM interlock.family_tree(relation) m JOIN pg_class c ON c.oid = m.relid
     WHERE c.relkind NOT IN ('r', 'p') OR c.relpersistence <> 'p' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table "%" cannot be recorded in the outbox', member.relid
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = CASE WHEN member.relkind IN ('r', 'p') THEN 'It is temporary or unlogged: its rows can be lost without a record.'
                                ELSE 'It is a foreign table: its rows change without this database.' END;
    END IF;
    FOR wanted IN SELECT * FROM interlock.outbox_triggers(relation, stream) LOOP
        -- Row triggers of a partitioned table have been cloned to its partitions by now.
        SELECT t.tgenabled INTO present FROM pg_trigger t WHERE t.tgrelid = wanted.relid AND t.tgname = wanted.name;
        IF NOT FOUND THEN
            EXECUTE wanted.definition;
        ELSIF present <> 'O' THEN
            EXECUTE format('ALTER TABLE ONLY %s ENABLE TRIGGER %I', wanted.relid, wanted.name);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.outbox_make_triggers(regclass, text) IS
    'makes the triggers that are missing on a table and all its partitions and children';

CREATE FUNCTION interlock.outbox_ancestor(relation regclass, stream text) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE line(relid, depth) AS (
        SELECT relation::oid, 0
         UNION
        SELECT i.inhparent, line.depth + 1 FROM line JOIN pg_inherits i ON i.inhrelid = line.relid
    )
    SELECT t.relid FROM line JOIN interlock.outbox_table t ON t.relid = line.relid AND t.stream = outbox_ancestor.stream
     WHERE line.depth > 0 ORDER BY line.depth LIMIT 1
$$;
COMMENT ON FUNCTION interlock.outbox_ancestor(regclass, text) IS 'the table attached to the stream that a partition or child belongs to, or NULL';

CREATE FUNCTION interlock.outbox_attach(relation regclass, columns text[] DEFAULT NULL, stream text DEFAULT 'default',
    key text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class record;
    wanted_key text[] := coalesce(key, interlock.outbox_default_key(relation));
    other regclass;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    IF relation IS NULL OR stream IS NULL THEN
        RAISE EXCEPTION 'table and stream must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF stream !~ '^[a-z_][a-z0-9_]{0,39}$' THEN
        RAISE EXCEPTION 'invalid stream name: "%"', stream
            USING ERRCODE = 'invalid_name',
                  DETAIL = 'A name is 1 to 40 of a-z, 0-9 and "_", the first no digit.';
    END IF;
    SELECT c.relkind, c.relpersistence, c.relispartition, c.relnamespace::regnamespace AS schema INTO class FROM pg_class c WHERE c.oid = relation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%" does not exist', relation::text USING ERRCODE = 'undefined_table';
    END IF;
    IF class.relkind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '"%" is not a table', relation
            USING ERRCODE = 'wrong_object_type', DETAIL = 'Only ordinary and partitioned tables can be attached.';
    END IF;
    IF class.relpersistence <> 'p' OR class.schema IN ('interlock'::regnamespace, 'pg_catalog'::regnamespace) THEN
        RAISE EXCEPTION 'table "%" cannot be attached to the outbox', relation
            USING ERRCODE = 'wrong_object_type',
                  DETAIL = 'It is temporary or unlogged, or belongs to the system.';
    END IF;
    IF wanted_key IS NULL THEN
        RAISE EXCEPTION 'table "%" has no primary key', relation
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Name the columns of another unique key.';
    END IF;
    PERFORM interlock.outbox_check_columns(relation, columns, wanted_key);

    -- Nothing to do is the usual case, and must not make writers wait.
    IF EXISTS (SELECT FROM interlock.outbox_table t
                WHERE t.relid = relation AND t.stream = outbox_attach.stream AND t.key = wanted_key
                  AND t.columns IS NOT DISTINCT FROM outbox_attach.columns)
       AND NOT EXISTS (SELECT FROM interlock.outbox_triggers(relation, stream) w WHERE w.state IS DISTINCT FROM 'O') THEN
        RETURN;
    END IF;

    -- Keeps writers, and changes of the family, away until this transaction ends.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', relation);
    other := interlock.outbox_ancestor(relation, stream);
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" is attached to outbox stream "%" with its parent "%"', relation, stream, other
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT t.relid INTO other FROM interlock.family_tree(relation) m JOIN interlock.outbox_table t ON t.relid = m.relid
     WHERE t.relid <> relation AND t.stream = outbox_attach.stream LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'partition or child "%" of table "%" is attached to outbox stream "%" by itself', other, relation, stream
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Detach it first.';
    END IF;
    PERFORM interlock.outbox_make_stream(stream);
    INSERT INTO interlock.outbox_table AS t (relid, stream, columns, key)
    VALUES (relation, outbox_attach.stream, outbox_attach.columns, wanted_key)
        ON CONFLICT ON CONSTRAINT outbox_table_pkey DO UPDATE SET columns = excluded.columns, key = excluded.key;
    PERFORM interlock.outbox_make_triggers(relation, stream);
END
$$;
COMMENT ON FUNCTION interlock.outbox_attach(regclass, text[], text, text[]) IS
    'records every change of a table, its partitions and children in a stream of the outbox: these columns (NULL: all) and the key (NULL: primary key and shard key). Idempotent';

CREATE FUNCTION interlock.outbox_drop_triggers(relation regclass, stream text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    doomed record;
BEGIN
    -- The row trigger of a partitioned table takes the partitions' clones with it.
    FOR doomed IN
        SELECT m.relid, t.tgname FROM interlock.family_tree(relation) m JOIN pg_trigger t ON t.tgrelid = m.relid
         WHERE t.tgfoid IN ('interlock.outbox_capture()'::regprocedure, 'interlock.outbox_truncate()'::regprocedure)
           AND t.tgname IN ('!interlock_outbox_' || stream, '~interlock_truncate_' || stream)
           AND t.tgparentid = 0
           -- a child of two parents may still be recorded with the other one
           AND interlock.outbox_ancestor(m.relid, stream) IS NULL
           AND NOT EXISTS (SELECT FROM interlock.outbox_table o WHERE o.relid = m.relid AND o.stream = outbox_drop_triggers.stream)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', doomed.tgname, doomed.relid);
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.outbox_drop_triggers(regclass, text) IS
    'drops the triggers of a stream from a table, its partitions and children';

CREATE FUNCTION interlock.outbox_detach(relation regclass, stream text DEFAULT 'default', drop_stream boolean DEFAULT false,
    force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.require_newest_snapshot();
    IF NOT EXISTS (SELECT FROM interlock.outbox_table t WHERE t.relid = relation AND t.stream = outbox_detach.stream) THEN
        RAISE EXCEPTION 'table "%" is not attached to outbox stream "%" by itself', relation, stream
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Partitions and children are attached with the table that was given to outbox_attach().';
    END IF;
    -- Writers that are on their way still record.
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', relation);
    DELETE FROM interlock.outbox_table t WHERE t.relid = relation AND t.stream = outbox_detach.stream;
    PERFORM interlock.outbox_drop_triggers(relation, stream);
    IF drop_stream THEN
        PERFORM interlock.outbox_drop_stream(stream, force);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.outbox_detach(regclass, text, boolean, boolean) IS
    'ends recording a table in a stream; drop_stream drops the stream too, with records left in it only if forced';
