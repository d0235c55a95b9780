-- What comes after a move, or after one that was given up: who may still look at the time before it,
-- rows that are no longer this shard's, sequences of the rows that came.

CREATE FUNCTION interlock.move_name(move_id uuid) RETURNS name
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ('interlock_move_' || left(replace(move_id::text, '-', ''), 8))::name
$$;
COMMENT ON FUNCTION interlock.move_name(uuid) IS 'name of a move''s replication slot, publication and subscription';

CREATE FUNCTION interlock.older_transactions(move_id uuid)
RETURNS TABLE (pid integer, username name, application_name text, state text, since timestamptz, query_start timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    SELECT * INTO handoff FROM interlock.handoff h WHERE h.move_id = older_transactions.move_id AND h.role = 'source';
    IF NOT FOUND OR handoff.state <> 'decided' THEN
        RAISE EXCEPTION 'move % is not decided here', coalesce(move_id::text, 'null')
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = format('Its state is %s.', coalesce(handoff.state, 'unknown'));
    END IF;
    -- The first time, whoever begins from now on does so after the decision. (The decision's own
    -- time says less: its commit may have waited for a standby.)
    IF handoff.decision_seen IS NULL THEN
        IF handoff.decided_by = pg_current_xact_id_if_assigned() THEN
            RAISE EXCEPTION 'the decision of move % is not committed yet', move_id USING ERRCODE = 'invalid_transaction_state';
        END IF;
        UPDATE interlock.handoff h SET decision_seen = clock_timestamp()
         WHERE h.move_id = handoff.move_id AND h.decision_seen IS NULL RETURNING h.decision_seen INTO handoff.decision_seen;
        IF NOT FOUND THEN
            SELECT h.decision_seen INTO handoff.decision_seen FROM interlock.handoff h WHERE h.move_id = handoff.move_id;
        END IF;
    END IF;
    -- A snapshot that does not show the decision has it among the transactions that were running. The
    -- other way round it need not be so: a long transaction, of whatever database, makes every new
    -- snapshot look old; therefore the time as well. Prepared transactions look at nothing any more,
    -- vacuum shows its rows to nobody, and other databases do not have these tables.
    PERFORM pg_stat_clear_snapshot();
    RETURN QUERY
        SELECT a.pid, a.usename, a.application_name, a.state, a.xact_start, a.query_start
          FROM pg_stat_activity a
         WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
           AND a.pid <> pg_backend_pid()
           AND a.backend_type NOT LIKE 'autovacuum%'
           AND age(a.backend_xmin) >= age(handoff.decided_by::xid)
           AND a.xact_start <= handoff.decision_seen
         ORDER BY a.xact_start, a.pid;
END
$$;
COMMENT ON FUNCTION interlock.older_transactions(uuid) IS
    'source, after the decision: sessions whose snapshot may be older than it. When there are none, nobody looks at the rows that are left here';

-- How far the clean-up has come, so that a batch need not read again what earlier ones have read.
CREATE TABLE interlock.clean_up_position (
    move_id uuid,
    relation oid,
    file oid NOT NULL,
    next tid,
    PRIMARY KEY (move_id, relation)
);
COMMENT ON TABLE interlock.clean_up_position IS 'how far interlock.delete_moved_rows() has come in each table, partition by partition';
COMMENT ON COLUMN interlock.clean_up_position.file IS 'the file that was read: in another one the rows are elsewhere';
COMMENT ON COLUMN interlock.clean_up_position.next IS 'where to go on; NULL at the end';

CREATE FUNCTION interlock.refuse_clean_up(handoff interlock.handoff) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept record;
    artefact text;
BEGIN
    IF NOT (handoff.role = 'source' AND handoff.state = 'decided' OR handoff.role = 'target' AND handoff.state = 'aborted') THEN
        RAISE EXCEPTION 'move % has left no rows to be deleted here', handoff.move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('This shard is its %s, its state is %s.', handoff.role, handoff.state);
    END IF;
    SELECT s.bucket, s.state INTO kept FROM interlock.bucket_state s
     WHERE s.keyspace = handoff.keyspace AND s.bucket = ANY (handoff.buckets) AND s.state <> 'moved' ORDER BY s.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is %', kept.bucket, handoff.keyspace, kept.state
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'Its rows are not left over.';
    END IF;
    -- It would carry the deletes to where the rows are now, or bring new rows.
    SELECT format('replication slot "%s"', s.slot_name) INTO artefact FROM pg_replication_slots s
     WHERE s.database = current_database()
       AND (s.slot_name = interlock.move_name(handoff.move_id)
            OR s.slot_name IN (SELECT m.slot_name FROM interlock.move_slot m WHERE m.move_id = handoff.move_id)) LIMIT 1;
    IF NOT FOUND THEN
        SELECT format('subscription "%s"', s.subname) INTO artefact FROM pg_subscription s
         WHERE s.subdbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
           AND s.subname = interlock.move_name(handoff.move_id);
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION '% of move % still exists', artefact, handoff.move_id
            USING ERRCODE = 'object_in_use', HINT = 'Drop it first.';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.refuse_clean_up(interlock.handoff) IS 'an error unless rows of a move''s buckets are left over on this shard, and nothing carries their deletes anywhere';

CREATE FUNCTION interlock.delete_moved_rows(move_id uuid, relation regclass, max_rows integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- The guard lets the deletes pass; outbox, foreign keys and the application's triggers know nothing of them.
SET interlock.moving_rows = on SET session_replication_role = replica
-- Tables are read in the order of their rows, from where the last batch ended; rows are deleted where they are.
SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    handoff interlock.handoff;
    guarded interlock.guarded_table;
    member record;
    position tid;
    wanted bigint;
    found_rows tid[];
    batch bigint;
    deleted bigint := 0;
    any_left boolean;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    IF max_rows IS NULL OR max_rows < 1 THEN
        RAISE EXCEPTION 'number of rows must be positive' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Batches of one move come one after the other.
    SELECT * INTO handoff FROM interlock.handoff h WHERE h.move_id = delete_moved_rows.move_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'move % is not known to this shard', coalesce(move_id::text, 'null') USING ERRCODE = 'undefined_object';
    END IF;
    SELECT * INTO guarded FROM interlock.guarded_table g WHERE g.relid = relation AND g.keyspace = handoff.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%" is not one of keyspace "%"', relation, handoff.keyspace USING ERRCODE = 'wrong_object_type';
    END IF;
    PERFORM interlock.refuse_clean_up(handoff);

    FOR turn IN 1..2 LOOP
        FOR member IN SELECT t.relid, pg_relation_filenode(t.relid) AS file FROM interlock.family_tree(relation) t
                        JOIN pg_class c ON c.oid = t.relid AND c.relkind = 'r' ORDER BY t.depth, t.relid::oid LOOP
            wanted := max_rows - deleted;
            EXIT WHEN wanted = 0;
            SELECT p.next INTO position FROM interlock.clean_up_position p
             WHERE (p.move_id, p.relation, p.file) = (delete_moved_rows.move_id, member.relid, member.file);
            CONTINUE WHEN FOUND AND position IS NULL;
            EXECUTE format('SELECT array(SELECT t.ctid FROM ONLY %s t WHERE t.ctid >= $1 AND interlock.bucket_of($2, t.%I) = ANY ($3) LIMIT $4)',
                           member.relid, guarded.key_column)
               INTO found_rows USING coalesce(position, '(0,0)'), handoff.keyspace, handoff.buckets, wanted;
            IF found_rows <> '{}' THEN
                EXECUTE format('DELETE FROM ONLY %s t WHERE t.ctid = ANY ($1) AND interlock.bucket_of($2, t.%I) = ANY ($3)',
                               member.relid, guarded.key_column)
                  USING found_rows, handoff.keyspace, handoff.buckets;
                GET DIAGNOSTICS batch = ROW_COUNT;
                deleted := deleted + batch;
            END IF;
            INSERT INTO interlock.clean_up_position AS p (move_id, relation, file, next)
            VALUES (delete_moved_rows.move_id, member.relid, member.file,
                    CASE WHEN cardinality(found_rows) = wanted THEN found_rows[wanted] END)
                ON CONFLICT ON CONSTRAINT clean_up_position_pkey DO UPDATE SET file = excluded.file, next = excluded.next;
        END LOOP;
        EXIT WHEN deleted > 0;
        -- The end. Whatever has come in behind the positions, or was left when another session's batch was rolled back:
        EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE interlock.bucket_of($1, t.%I) = ANY ($2))', relation, guarded.key_column)
           INTO any_left USING handoff.keyspace, handoff.buckets;
        EXIT WHEN NOT any_left;
        DELETE FROM interlock.clean_up_position p
         WHERE p.move_id = delete_moved_rows.move_id AND p.relation IN (SELECT t.relid FROM interlock.family_tree(delete_moved_rows.relation) t);
    END LOOP;
    -- Nothing above holds a lock against a move that brings a bucket back. If one has begun since,
    -- its rows may have been among these: then nothing is deleted.
    PERFORM interlock.refuse_clean_up(handoff);
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION interlock.delete_moved_rows(uuid, regclass, integer) IS
    'deletes rows of a move''s buckets from a table and its partitions where they are not this shard''s any more, at most so many in one call; 0: nothing is left';

CREATE FUNCTION interlock.raise_sequence(sequence regclass, beyond bigint) RETURNS bigint
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_raise_sequence';
COMMENT ON FUNCTION interlock.raise_sequence(regclass, bigint) IS
    'lets a sequence go on beyond a value, by whole increments, and never back; returns the value that comes next, NULL when it was beyond already';

CREATE FUNCTION interlock.raise_sequences(relation regclass, keyspace text, buckets integer[])
RETURNS TABLE (sequence regclass, next_value bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    guarded interlock.guarded_table;
    used record;
    upcoming bigint;
    furthest numeric;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    PERFORM interlock.require_buckets(keyspace, buckets);
    SELECT * INTO guarded FROM interlock.guarded_table g WHERE g.relid = relation AND g.keyspace = raise_sequences.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%" is not one of keyspace "%"', relation, keyspace USING ERRCODE = 'wrong_object_type';
    END IF;
    -- Sequences that belong to a column (identity, serial), and those that its default names.
    FOR used IN
        SELECT DISTINCT q.seqrelid::regclass AS sequence, q.seqincrement > 0 AS ascending, q.seqmin, q.seqmax, a.attname AS column_name,
               -- A column that all rows have is looked at in all of them.
               CASE WHEN EXISTS (SELECT FROM pg_attribute r WHERE r.attrelid = relation AND r.attname = a.attname AND NOT r.attisdropped)
                    THEN relation ELSE t.relid END AS source
          FROM interlock.family_tree(relation) t
          JOIN pg_attribute a ON a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped
           AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype, 'numeric'::regtype)
         CROSS JOIN LATERAL (
            SELECT d.objid AS oid FROM pg_depend d
             WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
               AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype IN ('a', 'i')
             UNION ALL
            SELECT d.refobjid FROM pg_attrdef f JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
             WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum AND d.refclassid = 'pg_class'::regclass
         ) AS s
          JOIN pg_sequence q ON q.seqrelid = s.oid
         ORDER BY 1, 5, 6
    LOOP
        EXECUTE format('SELECT CASE WHEN is_called THEN last_value + CASE WHEN $1 THEN 1 ELSE -1 END ELSE last_value END FROM %s', used.sequence)
           INTO upcoming USING used.ascending;
        -- Values outside its bounds the sequence never gives. With an index on the column this reads few rows.
        EXECUTE format('SELECT %s(t.%I) FROM %s t WHERE t.%I %s $1 AND t.%I BETWEEN $2 AND $3 AND interlock.bucket_of($4, t.%I) = ANY ($5)',
                       CASE WHEN used.ascending THEN 'max' ELSE 'min' END, used.column_name, used.source,
                       used.column_name, CASE WHEN used.ascending THEN '>=' ELSE '<=' END, used.column_name, guarded.key_column)
           INTO furthest USING upcoming, used.seqmin, used.seqmax, keyspace, buckets;
        CONTINUE WHEN furthest IS NULL;
        next_value := interlock.raise_sequence(used.sequence, CASE WHEN used.ascending THEN ceil(furthest) ELSE floor(furthest) END::bigint);
        sequence := used.sequence;
        IF next_value IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.raise_sequences(regclass, text, integer[]) IS
    'target: sequences of a table''s columns go on beyond the values that rows of the buckets have; returns those that were raised, with the value that comes next';
