-- Tables that become part of a guarded table later get the guard then, and dropped ones are forgotten.

CREATE FUNCTION interlock.guard_child(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ancestor interlock.guarded_table := interlock.guarded_ancestor(relation);
BEGIN
    IF ancestor.relid IS NULL THEN
        RETURN;
    END IF;
    -- A dump is restored in steps: the parent's own guard comes later, and then the children's.
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = ancestor.relid AND t.tgname = '~interlock_guard') THEN
        RETURN;
    END IF;
    PERFORM interlock.attach_guard(relation, ancestor.keyspace, ancestor.key_column);
    PERFORM interlock.refuse_misplaced_rows(relation, ancestor.keyspace, ancestor.key_column);
END
$$;
COMMENT ON FUNCTION interlock.guard_child(regclass) IS
    'guards a table that has just become a partition or child of a guarded one';

CREATE FUNCTION interlock.unguard_child(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ancestor interlock.guarded_table := interlock.guarded_ancestor(relation);
BEGIN
    IF ancestor.relid IS NULL AND NOT EXISTS (SELECT FROM interlock.guarded_table g WHERE g.relid = relation) THEN
        PERFORM interlock.detach_guard(relation);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.unguard_child(regclass) IS
    'takes the guard off a table that has just ceased to be a partition or child of a guarded one';

CREATE FUNCTION interlock.outbox_line(relation regclass) RETURNS TABLE (stream text, attached regclass)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE line(relid) AS (
        SELECT relation::oid
         UNION
        SELECT i.inhparent FROM line JOIN pg_inherits i ON i.inhrelid = line.relid
    )
    -- A dump is restored in steps: a table's own trigger comes later, and then the children's.
    SELECT t.stream, t.relid FROM line JOIN interlock.outbox_table t ON t.relid = line.relid
     WHERE EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = t.relid AND g.tgname = '!interlock_outbox_' || t.stream)
$$;
COMMENT ON FUNCTION interlock.outbox_line(regclass) IS 'streams to which a table, or a table that it descends from, is attached';

CREATE FUNCTION interlock.outbox_join(child regclass, parent regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own record;
    joined record;
    member regclass;
BEGIN
    IF NOT EXISTS (SELECT FROM interlock.outbox_table) THEN
        RETURN;
    END IF;
    FOR joined IN
        SELECT l.stream, min(l.attached::oid)::regclass AS attached FROM interlock.outbox_line(child) l
         WHERE l.attached <> child GROUP BY l.stream ORDER BY l.stream
    LOOP
        SELECT t.relid INTO own FROM interlock.family_tree(child) m JOIN interlock.outbox_table t ON t.relid = m.relid
         WHERE t.stream = joined.stream LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'table "%" is attached to outbox stream "%" by itself', own.relid, joined.stream
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('So is table "%s", which it would belong to.', joined.attached),
                      HINT = 'Detach it first.';
        END IF;
        PERFORM interlock.outbox_make_triggers(child, joined.stream);
        -- Its rows are new there, unless another parent has brought them already.
        CONTINUE WHEN parent IS NULL
            OR NOT EXISTS (SELECT FROM interlock.outbox_line(parent) l WHERE l.stream = joined.stream)
            OR EXISTS (SELECT FROM pg_inherits i CROSS JOIN LATERAL interlock.outbox_line(i.inhparent) l
                        WHERE i.inhrelid = child AND i.inhparent <> parent AND l.stream = joined.stream);
        FOR member IN SELECT m.relid FROM interlock.family_tree(child) m JOIN pg_class c ON c.oid = m.relid WHERE c.relkind = 'r' LOOP
            PERFORM interlock.outbox_record_rows(member, member, joined.stream, true);
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.outbox_join(regclass, regclass) IS
    'records a table that has just become a partition or child of an attached one, its rows included';

CREATE FUNCTION interlock.outbox_leave(child regclass, parent regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    left_stream text;
    member regclass;
BEGIN
    IF parent IS NULL OR NOT EXISTS (SELECT FROM interlock.outbox_table) THEN
        RETURN;
    END IF;
    FOR left_stream IN
        SELECT DISTINCT l.stream FROM interlock.outbox_line(parent) l
        EXCEPT SELECT l.stream FROM interlock.outbox_line(child) l
    LOOP
        FOR member IN SELECT m.relid FROM interlock.family_tree(child) m JOIN pg_class c ON c.oid = m.relid WHERE c.relkind = 'r' LOOP
            PERFORM interlock.outbox_record_rows(member, parent, left_stream, false);
        END LOOP;
        PERFORM interlock.outbox_drop_triggers(child, left_stream);
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.outbox_leave(regclass, regclass) IS
    'records that the rows of a table have gone that has just ceased to be a partition or child of an attached one';

CREATE FUNCTION interlock.on_ddl() RETURNS event_trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'interlock_on_ddl';
COMMENT ON FUNCTION interlock.on_ddl() IS 'event trigger: puts the guard and the outbox on what becomes a partition or child of a table that has them, takes them off what ceases to be one';

CREATE FUNCTION interlock.on_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM interlock.guarded_table) THEN
        DELETE FROM interlock.guarded_table g
         USING pg_event_trigger_dropped_objects() d
         WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND d.objid = g.relid;
    END IF;
    IF EXISTS (SELECT FROM interlock.outbox_table) THEN
        DELETE FROM interlock.outbox_table t
         USING pg_event_trigger_dropped_objects() d
         WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND d.objid = t.relid;
    END IF;
    IF EXISTS (SELECT FROM interlock.keyset) THEN
        DELETE FROM interlock.keyset k
         USING pg_event_trigger_dropped_objects() d
         WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND d.objid = k.relid;
    END IF;
    IF EXISTS (SELECT FROM interlock.local_index) THEN
        DELETE FROM interlock.local_index i
         USING pg_event_trigger_dropped_objects() d
         WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND d.objid = i.relid;
        DELETE FROM interlock.index_progress p WHERE NOT EXISTS (SELECT FROM interlock.local_index i WHERE i.name = p.index);
        DELETE FROM interlock.index_backfill b WHERE NOT EXISTS (SELECT FROM interlock.local_index i WHERE i.name = b.index);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.on_drop() IS 'event trigger: forgets guarded tables, keysets and indexes whose tables are dropped';

CREATE EVENT TRIGGER interlock_on_ddl ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE FOREIGN TABLE', 'ALTER TABLE', 'ALTER FOREIGN TABLE', 'CREATE SCHEMA')
    EXECUTE FUNCTION interlock.on_ddl();
COMMENT ON EVENT TRIGGER interlock_on_ddl IS 'keeps guard and outbox on partitions and children of tables that have them, and on no others';
CREATE EVENT TRIGGER interlock_on_drop ON sql_drop EXECUTE FUNCTION interlock.on_drop();
COMMENT ON EVENT TRIGGER interlock_on_drop IS 'forgets guarded and attached tables that are dropped, and keysets of dropped tables';
