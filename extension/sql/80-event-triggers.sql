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

CREATE FUNCTION interlock.on_ddl() RETURNS event_trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'interlock_on_ddl';
COMMENT ON FUNCTION interlock.on_ddl() IS 'event trigger: puts the guard on what becomes a partition or child of a guarded table, takes it off what ceases to be one';

CREATE FUNCTION interlock.on_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM interlock.guarded_table) THEN
        DELETE FROM interlock.guarded_table g
         USING pg_event_trigger_dropped_objects() d
         WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 AND d.objid = g.relid;
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
COMMENT ON EVENT TRIGGER interlock_on_ddl IS 'keeps the guard on partitions and children of guarded tables, and on no others';
CREATE EVENT TRIGGER interlock_on_drop ON sql_drop EXECUTE FUNCTION interlock.on_drop();
COMMENT ON EVENT TRIGGER interlock_on_drop IS 'forgets guarded tables that are dropped, and keysets of dropped tables';
