-- Attaching the guard to tables, their partitions and children.

CREATE FUNCTION interlock.guard_triggers(keyspace text, key_column text, partitioned boolean,
    OUT name name, OUT definition text, OUT function regprocedure, OUT arguments text[],
    OUT type smallint, OUT condition text) RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    -- The row triggers run after all BEFORE triggers, on the rows as they were written. Measured choices
    -- (tests/bench/guard_cost.py): a WHEN condition costs little a row and much a statement, so inserts
    -- (COPY) have one; a queued event is the cheapest for an UPDATE of one row. Where an update can move
    -- a row to another partition only a WHEN condition sees both of its keys.
    SELECT t.name,
           t.event || coalesce(' WHEN (' || t.condition || ')', '')
               || format(' EXECUTE FUNCTION %s(%s)', t.function::regproc,
                         (SELECT string_agg(quote_literal(a), ', ' ORDER BY n)
                            FROM unnest(t.arguments) WITH ORDINALITY AS x(a, n))),
           t.function, t.arguments, t.type::smallint, t.condition
      FROM (VALUES
            -- The numbers are pg_trigger.tgtype: row 1, before 2, insert 4, delete 8, update 16, truncate 32.
            (true, '~interlock_insert'::name, 'AFTER INSERT ON %s FOR EACH ROW', 1 + 4,
             format('interlock.refuse_write(%L::text, new.%I)', keyspace, key_column),
             'interlock.guard()'::regprocedure, '{}'::text[]),
            (NOT partitioned, '~interlock_guard', 'AFTER DELETE OR UPDATE ON %s FOR EACH ROW', 1 + 8 + 16,
             NULL, 'interlock.guard()', ARRAY[keyspace, key_column]),
            (partitioned, '~interlock_guard', 'AFTER DELETE ON %s FOR EACH ROW', 1 + 8,
             NULL, 'interlock.guard()', ARRAY[keyspace, key_column]),
            (partitioned, '~interlock_update', 'AFTER UPDATE ON %s FOR EACH ROW', 1 + 16,
             format('interlock.refuse_write(%L::text, old.%I, new.%I)', keyspace, key_column, key_column),
             'interlock.guard()', '{}'),
            (true, '~interlock_truncate', 'BEFORE TRUNCATE ON %s FOR EACH STATEMENT', 2 + 32,
             NULL, 'interlock.guard_truncate()', ARRAY[keyspace])
           ) AS t(wanted, name, event, type, condition, function, arguments)
     WHERE t.wanted
$$;
COMMENT ON FUNCTION interlock.guard_triggers(text, text, boolean) IS
    'the triggers that make up the guard of a table; %s in a definition stands for the table';

CREATE FUNCTION interlock.family_tree(relation regclass) RETURNS TABLE (relid regclass, depth integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE tree(relid, depth) AS (
        SELECT relation::oid, 0
         UNION
        SELECT i.inhrelid, tree.depth + 1 FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid
    )
    SELECT tree.relid::regclass, max(tree.depth) FROM tree GROUP BY tree.relid ORDER BY max(tree.depth), tree.relid
$$;
COMMENT ON FUNCTION interlock.family_tree(regclass) IS 'a table with all its partitions and children, parents first';

CREATE FUNCTION interlock.guarded_ancestor(relation regclass) RETURNS interlock.guarded_table
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE line(relid, depth) AS (
        SELECT relation::oid, 0
         UNION
        SELECT i.inhparent, line.depth + 1 FROM line JOIN pg_inherits i ON i.inhrelid = line.relid
    )
    SELECT g FROM line JOIN interlock.guarded_table g ON g.relid = line.relid WHERE line.depth > 0 ORDER BY line.depth LIMIT 1
$$;
COMMENT ON FUNCTION interlock.guarded_ancestor(regclass) IS 'the guarded table that a partition or child belongs to, or NULL';

CREATE FUNCTION interlock.attach_guard(relation regclass, keyspace text, key_column text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    partitioned boolean := (SELECT c.relkind = 'p' OR c.relispartition FROM pg_class c WHERE c.oid = relation);
    member record;
    wanted record;
    present "char";
BEGIN
    FOR member IN SELECT t.relid, c.relkind FROM interlock.family_tree(relation) t JOIN pg_class c ON c.oid = t.relid LOOP
        IF member.relkind NOT IN ('r', 'p') THEN
            RAISE EXCEPTION 'foreign table "%" cannot be guarded', member.relid
                USING ERRCODE = 'feature_not_supported',
                      DETAIL = 'A partition or child of a sharded table must keep its rows on this shard.';
        END IF;
        PERFORM interlock.check_key_column(member.relid, keyspace, key_column);
        FOR wanted IN SELECT * FROM interlock.guard_triggers(keyspace, key_column, partitioned) LOOP
            -- Row triggers of a partitioned table have been cloned to its partitions by now.
            SELECT t.tgenabled INTO present FROM pg_trigger t WHERE t.tgrelid = member.relid AND t.tgname = wanted.name;
            IF NOT FOUND THEN
                EXECUTE format('CREATE TRIGGER %I %s', wanted.name, replace(wanted.definition, ' ON %s ', format(' ON %s ', member.relid)));
                present := 'O';
            END IF;
            IF present <> 'A' THEN
                EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', member.relid, wanted.name);
            END IF;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.attach_guard(regclass, text, text) IS
    'makes the guard''s triggers where they are missing, on a table and all its partitions and children';

CREATE FUNCTION interlock.detach_guard(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    doomed record;
BEGIN
    -- The row triggers of a partitioned table take the partitions' clones with them.
    FOR doomed IN
        SELECT f.relid, t.tgname FROM interlock.family_tree(relation) f JOIN pg_trigger t ON t.tgrelid = f.relid
         WHERE t.tgfoid IN ('interlock.guard()'::regprocedure, 'interlock.guard_truncate()'::regprocedure)
           AND t.tgparentid = 0
           -- a child of two parents may still be guarded by the other one
           AND (interlock.guarded_ancestor(f.relid)).relid IS NULL
           AND NOT EXISTS (SELECT FROM interlock.guarded_table g WHERE g.relid = f.relid)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', doomed.tgname, doomed.relid);
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.detach_guard(regclass) IS 'drops the guard''s triggers from a table and all its partitions and children';

CREATE FUNCTION interlock.check_key_column(relation regclass, keyspace text, key_column text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key record;
    family text;
BEGIN
    SELECT k.key_type INTO family FROM interlock.local_keyspace k WHERE k.name = check_key_column.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'keyspace "%" is not defined in this database', keyspace
            USING ERRCODE = 'undefined_object';
    END IF;
    SELECT a.atttypid, a.attnotnull, a.attgenerated, c.collname, c.collisdeterministic INTO key
      FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation
     WHERE a.attrelid = relation AND a.attname = key_column AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'column "%" of table "%" does not exist', key_column, relation
            USING ERRCODE = 'undefined_column';
    END IF;
    IF interlock.key_family(key.atttypid) IS DISTINCT FROM family THEN
        RAISE EXCEPTION 'key column "%" of table "%" does not fit keyspace "%"', key_column, relation, keyspace
            USING ERRCODE = 'datatype_mismatch',
                  DETAIL = format('The column is of type %s, the key type of the keyspace is %s.', format_type(key.atttypid, NULL), family);
    END IF;
    IF NOT key.attnotnull THEN
        RAISE EXCEPTION 'key column "%" of table "%" is not declared NOT NULL', key_column, relation
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', relation, key_column);
    END IF;
    IF NOT key.collisdeterministic THEN
        RAISE EXCEPTION 'key column "%" of table "%" has nondeterministic collation "%"', key_column, relation, key.collname
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'Keys that such a collation calls equal could lie in different buckets.';
    END IF;
    IF key.attgenerated <> '' THEN
        RAISE EXCEPTION 'key column "%" of table "%" is a generated column', key_column, relation
            USING ERRCODE = 'feature_not_supported';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.check_key_column(regclass, text, text) IS 'an error unless the column can be the shard key of a table in the keyspace';

CREATE FUNCTION interlock.refuse_misplaced_rows(relation regclass, keyspace text, key_column text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_rows bigint;
BEGIN
    EXECUTE format(
        'SELECT count(*) FROM %s t WHERE NOT EXISTS (SELECT FROM interlock.bucket_state s '
        'WHERE s.keyspace = $1 AND s.bucket = interlock.bucket_of($1, t.%I) AND s.state IN (''owned'', ''fenced''))',
        relation, key_column) INTO found_rows USING keyspace;
    IF found_rows > 0 THEN
        RAISE EXCEPTION 'table "%" has rows in buckets that this shard does not own', relation
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Number of such rows: %s.', found_rows),
                  HINT = format('Move them to their shards first: SELECT * FROM %s WHERE NOT interlock.owns(%L, %I)',
                                relation, keyspace, key_column);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.refuse_misplaced_rows(regclass, text, text) IS 'an error if the table has rows that this shard does not own';

CREATE FUNCTION interlock.shard_table(relation regclass, keyspace text, key_column name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class record;
    existing interlock.guarded_table;
    ancestor interlock.guarded_table;
BEGIN
    PERFORM interlock.this_shard();
    PERFORM interlock.require_newest_snapshot();
    SELECT c.relkind, c.relpersistence, c.relispartition, c.relnamespace::regnamespace AS schema INTO class FROM pg_class c WHERE c.oid = relation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%" does not exist', relation::text USING ERRCODE = 'undefined_table';
    END IF;
    IF class.relkind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '"%" is not a table', relation
            USING ERRCODE = 'wrong_object_type', DETAIL = 'Only ordinary and partitioned tables can be sharded.';
    END IF;
    IF class.relpersistence = 't' OR class.schema IN ('interlock'::regnamespace, 'pg_catalog'::regnamespace) THEN
        RAISE EXCEPTION 'table "%" cannot be sharded', relation
            USING ERRCODE = 'wrong_object_type', DETAIL = 'It is temporary, or belongs to the system.';
    END IF;

    -- Nothing to do is the usual case, and must not make writers wait.
    IF EXISTS (SELECT FROM interlock.guarded_table g
                WHERE (g.relid, g.keyspace, g.key_column) = (shard_table.relation, shard_table.keyspace, shard_table.key_column))
       AND NOT EXISTS (SELECT FROM interlock.check_guards() c JOIN interlock.family_tree(shard_table.relation) t ON t.relid = c.relation) THEN
        RETURN;
    END IF;

    -- Keeps writers, and changes of the family, away until this transaction ends.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', relation);
    PERFORM interlock.require_shard();

    PERFORM interlock.check_key_column(relation, keyspace, key_column);
    ancestor := interlock.guarded_ancestor(relation);
    IF ancestor.relid IS NOT NULL THEN
        IF (ancestor.keyspace, ancestor.key_column) <> (keyspace, key_column::text) THEN
            RAISE EXCEPTION 'table "%" is guarded with its parent "%"', relation, ancestor.relid
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('The parent is in keyspace "%s" by column "%s".', ancestor.keyspace, ancestor.key_column);
        END IF;
        RAISE NOTICE 'table "%" is guarded with its parent "%", skipping', relation, ancestor.relid;
        RETURN;
    END IF;
    IF class.relispartition THEN
        RAISE EXCEPTION 'table "%" is a partition', relation
            USING ERRCODE = 'wrong_object_type', HINT = 'Give the partitioned table to interlock.shard_table().';
    END IF;
    SELECT g.* INTO ancestor FROM interlock.family_tree(relation) t JOIN interlock.guarded_table g ON g.relid = t.relid
     WHERE t.relid <> relation LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'partition or child "%" of table "%" is guarded by itself', ancestor.relid, relation
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('Call interlock.unshard_table(%L) first.', ancestor.relid);
    END IF;

    SELECT * INTO existing FROM interlock.guarded_table g WHERE g.relid = relation;
    IF FOUND AND existing.keyspace <> keyspace THEN
        RAISE EXCEPTION 'table "%" is in keyspace "%" already', relation, existing.keyspace
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.unshard_table() first.';
    END IF;
    IF FOUND AND existing.key_column <> key_column THEN
        IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = existing.key_column AND a.attnum > 0) THEN
            RAISE EXCEPTION 'table "%" is sharded by column "%" already', relation, existing.key_column
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.unshard_table() first.';
        END IF;
        -- The column was renamed: the triggers name it, so make them anew.
        PERFORM interlock.detach_guard(relation);
    END IF;

    PERFORM interlock.attach_guard(relation, keyspace, key_column);
    IF existing.relid IS NULL THEN
        PERFORM interlock.refuse_misplaced_rows(relation, keyspace, key_column);
    END IF;
    INSERT INTO interlock.guarded_table AS g (relid, keyspace, key_column) VALUES (relation, shard_table.keyspace, shard_table.key_column)
        ON CONFLICT ON CONSTRAINT guarded_table_pkey DO UPDATE SET key_column = excluded.key_column
        WHERE g.key_column <> excluded.key_column;
END
$$;
COMMENT ON FUNCTION interlock.shard_table(regclass, text, name) IS
    'puts a table, with its partitions and children, under the write guard of a keyspace; idempotent, and mends a guard that is incomplete';

CREATE FUNCTION interlock.unshard_table(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM interlock.guarded_table g WHERE g.relid = relation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%" is not guarded by itself', relation
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Partitions and children are guarded with the table that was given to shard_table().';
    END IF;
    PERFORM interlock.detach_guard(relation);
END
$$;
COMMENT ON FUNCTION interlock.unshard_table(regclass) IS 'takes the write guard off a table, its partitions and children';
