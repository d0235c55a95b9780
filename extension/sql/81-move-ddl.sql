-- Tables stay as they are while buckets of their keyspace are on the move: logical replication carries
-- rows and nothing else.

CREATE FUNCTION interlock.moving_relation(relation oid) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT g.keyspace FROM interlock.guarded_table g
     WHERE g.keyspace = ANY (interlock.on_the_move())
       AND (g.relid = relation OR g.relid = (interlock.guarded_ancestor(relation)).relid)
     LIMIT 1
$$;
COMMENT ON FUNCTION interlock.moving_relation(oid) IS 'the keyspace of a table, or of the table that it descends from, if buckets of it are on the move';

CREATE FUNCTION interlock.refuse_ddl(relation text, keyspace text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'cannot change table "%" while buckets of keyspace "%" are on the move', relation, keyspace
        USING ERRCODE = 'object_in_use',
              DETAIL = format('Moves under way: %s.', (SELECT string_agg(h.move_id::text, ', ' ORDER BY h.began) FROM interlock.handoff h
                                                        WHERE h.keyspace = refuse_ddl.keyspace AND h.state IN ('begun', 'fenced', 'importing'))),
              HINT = 'Retry when the moves have ended; interlock.handoffs shows them.';
END
$$;
COMMENT ON FUNCTION interlock.refuse_ddl(text, text) IS 'the error that DDL on a table meets during a move';

CREATE FUNCTION interlock.moving_relations() RETURNS TABLE (relid oid, keyspace text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.relid::oid, g.keyspace
      FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) t
     WHERE g.keyspace = ANY (interlock.on_the_move())
$$;
COMMENT ON FUNCTION interlock.moving_relations() IS 'tables of keyspaces with buckets on the move, partitions and children included';

CREATE FUNCTION interlock.moving_relation_of_type(type oid) RETURNS oid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    -- Whatever is made of the type: arrays, domains, composite types, ranges.
    WITH RECURSIVE used(type) AS (
        SELECT moving_relation_of_type.type
         UNION
        SELECT next.type FROM used CROSS JOIN LATERAL (
            SELECT t.oid FROM pg_type t WHERE t.typelem = used.type OR t.typbasetype = used.type
             UNION ALL
            SELECT c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'c'
             WHERE a.atttypid = used.type AND NOT a.attisdropped
             UNION ALL
            SELECT r.rngtypid FROM pg_range r WHERE r.rngsubtype = used.type
        ) AS next(type)
    )
    SELECT m.relid FROM interlock.moving_relations() m
     WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = m.relid AND a.attnum > 0 AND NOT a.attisdropped
                      AND a.atttypid IN (SELECT u.type FROM used u))
     LIMIT 1
$$;
COMMENT ON FUNCTION interlock.moving_relation_of_type(oid) IS 'a table of a keyspace with buckets on the move that has a column of the type, or of one made of it';

CREATE FUNCTION interlock.on_move_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed record;
BEGIN
    IF interlock.on_the_move() = '{}' THEN
        RETURN;
    END IF;
    SELECT r.relid::regclass AS relation, interlock.moving_relation(r.relid) AS keyspace INTO changed
      FROM pg_event_trigger_ddl_commands() c
     CROSS JOIN LATERAL (
        SELECT CASE c.classid
            WHEN 'pg_class'::regclass THEN coalesce((SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = c.objid), c.objid)
            WHEN 'pg_trigger'::regclass THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = c.objid)
            WHEN 'pg_rewrite'::regclass THEN (SELECT w.ev_class FROM pg_rewrite w WHERE w.oid = c.objid)
            WHEN 'pg_policy'::regclass THEN (SELECT p.polrelid FROM pg_policy p WHERE p.oid = c.objid)
            WHEN 'pg_constraint'::regclass THEN (SELECT n.conrelid FROM pg_constraint n WHERE n.oid = c.objid)
            -- What a row looks like, and what its table is called, on the way and on the other side.
            WHEN 'pg_type'::regclass THEN interlock.moving_relation_of_type(c.objid)
            WHEN 'pg_namespace'::regclass THEN (SELECT m.relid FROM interlock.moving_relations() m JOIN pg_class t ON t.oid = m.relid
                                                 WHERE t.relnamespace = c.objid LIMIT 1)
        END AS relid) AS r
     WHERE c.command_tag NOT IN ('COMMENT', 'GRANT', 'REVOKE', 'SECURITY LABEL')
       AND interlock.moving_relation(r.relid) IS NOT NULL
     LIMIT 1;
    IF FOUND THEN
        PERFORM interlock.refuse_ddl(changed.relation::text, changed.keyspace);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.on_move_ddl() IS 'event trigger: refuses DDL on tables of a keyspace with buckets on the move';

CREATE FUNCTION interlock.table_of_dropped_index(index oid) RETURNS oid
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_table_of_dropped_index';
COMMENT ON FUNCTION interlock.table_of_dropped_index(oid) IS 'the table of an index that this command has dropped';

CREATE FUNCTION interlock.on_move_drop_index() RETURNS event_trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'interlock_on_move_drop_index';
COMMENT ON FUNCTION interlock.on_move_drop_index() IS 'event trigger: refuses DROP INDEX on tables of a keyspace with buckets on the move before it begins: CONCURRENTLY could not be taken back';

CREATE FUNCTION interlock.on_move_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving text[] := interlock.on_the_move();
    dropped record;
    keyspace text;
BEGIN
    IF moving = '{}' THEN
        RETURN;
    END IF;
    FOR dropped IN SELECT * FROM pg_event_trigger_dropped_objects() d
                    WHERE d.object_type IN ('table', 'table column', 'table constraint', 'default value', 'trigger', 'rule', 'policy', 'index')
                      AND NOT d.is_temporary LOOP
        IF dropped.object_type = 'index' THEN
            keyspace := interlock.moving_relation(interlock.table_of_dropped_index(dropped.objid));
            IF keyspace IS NOT NULL THEN
                PERFORM interlock.refuse_ddl(interlock.table_of_dropped_index(dropped.objid)::regclass::text, keyspace);
            END IF;
            CONTINUE;
        END IF;
        -- What is left of the table, or what it was.
        keyspace := interlock.moving_relation(to_regclass(format('%I.%I', dropped.address_names[1], dropped.address_names[2])));
        IF keyspace IS NULL AND dropped.object_type = 'table' THEN
            keyspace := (SELECT g.keyspace FROM interlock.guarded_table g WHERE g.relid = dropped.objid AND g.keyspace = ANY (moving));
        END IF;
        -- A partition has gone with its guard; nothing says of which keyspace it was.
        IF keyspace IS NULL AND dropped.object_type = 'trigger' AND dropped.address_names[3] LIKE '~interlock_%' THEN
            keyspace := moving[1];
        END IF;
        IF keyspace IS NOT NULL THEN
            PERFORM interlock.refuse_ddl(concat_ws('.', dropped.address_names[1], dropped.address_names[2]), keyspace);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.on_move_drop() IS 'event trigger: refuses to drop tables, and parts of tables, of a keyspace with buckets on the move';

CREATE EVENT TRIGGER interlock_move_ddl ON ddl_command_end EXECUTE FUNCTION interlock.on_move_ddl();
COMMENT ON EVENT TRIGGER interlock_move_ddl IS 'refuses DDL on tables of a keyspace with buckets on the move';
-- Before interlock_on_drop, which forgets dropped tables.
CREATE EVENT TRIGGER interlock_move_drop ON sql_drop EXECUTE FUNCTION interlock.on_move_drop();
COMMENT ON EVENT TRIGGER interlock_move_drop IS 'refuses to drop tables of a keyspace with buckets on the move';
CREATE EVENT TRIGGER interlock_move_drop_index ON ddl_command_start WHEN TAG IN ('DROP INDEX') EXECUTE FUNCTION interlock.on_move_drop_index();
COMMENT ON EVENT TRIGGER interlock_move_drop_index IS 'refuses to drop indexes of tables of a keyspace with buckets on the move';

-- In sessions that apply what was done elsewhere (session_replication_role) as well.
ALTER EVENT TRIGGER interlock_move_ddl ENABLE ALWAYS;
ALTER EVENT TRIGGER interlock_move_drop ENABLE ALWAYS;
ALTER EVENT TRIGGER interlock_move_drop_index ENABLE ALWAYS;
