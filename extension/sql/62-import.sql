-- The target's side of handing buckets over: rows come in, the target takes over with the token of the
-- source's decision, or all is given up.

CREATE FUNCTION interlock.states_of(keyspace text, buckets integer[]) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.bucket), '[]') FROM interlock.bucket_state s
     WHERE s.keyspace = states_of.keyspace AND s.bucket = ANY (states_of.buckets)
$$;
COMMENT ON FUNCTION interlock.states_of(text, integer[]) IS 'rows of bucket_state of buckets as they are now';

CREATE FUNCTION interlock.refuse_leftovers(keyspace text, buckets integer[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    guarded record;
    leftover integer;
BEGIN
    FOR guarded IN SELECT g.relid, g.key_column FROM interlock.guarded_table g WHERE g.keyspace = refuse_leftovers.keyspace ORDER BY g.relid::oid LOOP
        EXECUTE format('SELECT interlock.bucket_of($1, t.%I) FROM %s t WHERE interlock.bucket_of($1, t.%I) = ANY ($2) LIMIT 1',
                       guarded.key_column, guarded.relid, guarded.key_column)
           INTO leftover USING keyspace, buckets;
        IF leftover IS NOT NULL THEN
            RAISE EXCEPTION 'table "%" has rows of bucket % of keyspace "%"', guarded.relid, leftover, keyspace
                USING ERRCODE = 'object_in_use', DETAIL = 'They are left from an earlier stay, or from a move that was aborted.',
                      HINT = 'Finish the clean-up of that move first.';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.refuse_leftovers(text, integer[]) IS 'an error if a table of the keyspace has rows of the buckets; reads the tables';

CREATE FUNCTION interlock.begin_import(keyspace text, buckets integer[], from_shard text, move_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known boolean := EXISTS (SELECT FROM interlock.handoff h WHERE h.move_id = begin_import.move_id);
    handoff interlock.handoff;
    before jsonb;
    after jsonb;
    strange record;
BEGIN
    IF NOT known THEN
        PERFORM interlock.require_newest_snapshot();
        PERFORM interlock.require_buckets(keyspace, buckets);
        before := interlock.states_of(keyspace, buckets);
        -- That takes its time, and another move may be about to decide or to activate meanwhile: so
        -- without the lock on the shard's state.
        IF NOT jsonb_path_exists(before, '$[*].state ? (@ != "moved")') THEN
            PERFORM interlock.refuse_leftovers(keyspace, buckets);
        END IF;
    END IF;
    handoff := interlock.begin_handoff(keyspace, buckets, 'target', from_shard, move_id);
    IF known OR handoff.state <> 'importing' THEN
        RETURN;
    END IF;
    SELECT s.bucket, s.state INTO strange FROM interlock.bucket_state s
     WHERE s.keyspace = begin_import.keyspace AND s.bucket = ANY (handoff.buckets) AND s.state <> 'moved'
     ORDER BY s.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is %', strange.bucket, keyspace, strange.state
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'It cannot be imported.';
    END IF;
    -- Rows of an earlier stay, which nobody sees, would be among those that come. None were found; and
    -- none have come since, unless the bucket has been here: the guard takes them for nobody's.
    after := interlock.states_of(keyspace, handoff.buckets);
    IF after <> before THEN
        PERFORM interlock.refuse_leftovers(keyspace, handoff.buckets);
    END IF;
    UPDATE interlock.handoff h SET previous = after WHERE h.move_id = handoff.move_id;
    INSERT INTO interlock.bucket_state AS s (keyspace, bucket, state, peer, move_id)
    SELECT begin_import.keyspace, b, 'importing', from_shard, begin_import.move_id FROM unnest(handoff.buckets) AS b
        ON CONFLICT ON CONSTRAINT bucket_state_pkey
        DO UPDATE SET state = 'importing', peer = excluded.peer, until = NULL, move_id = excluded.move_id;
END
$$;
COMMENT ON FUNCTION interlock.begin_import(text, integer[], text, uuid) IS
    'target: the buckets are importing: rows are taken from the apply worker and from the mover (interlock.moving_rows) only. Refuses what has rows of them already';

CREATE FUNCTION interlock.abort_import(move_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.own_handoff(move_id, 'target');
BEGIN
    IF handoff.state = 'active' THEN
        RAISE EXCEPTION 'move % has been activated already', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Moving the buckets back is another move.';
    ELSIF handoff.state = 'aborted' THEN
        RETURN false;
    END IF;
    DELETE FROM interlock.bucket_state s
     WHERE s.keyspace = handoff.keyspace AND s.bucket = ANY (handoff.buckets) AND s.state = 'importing' AND s.move_id = handoff.move_id;
    INSERT INTO interlock.bucket_state SELECT p.* FROM jsonb_populate_recordset(NULL::interlock.bucket_state, handoff.previous) AS p
        ON CONFLICT DO NOTHING;
    UPDATE interlock.handoff h SET state = 'aborted', changed = clock_timestamp() WHERE h.move_id = handoff.move_id;
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.abort_import(uuid) IS
    'target: the buckets are what they were before the move; rows that have come are to be deleted (interlock.moving_rows). Abort the source first: after its decision this would lose the buckets';

CREATE FUNCTION interlock.activate_import(move_id uuid, route_version integer, token uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.own_handoff(move_id, 'target');
    changed integer;
BEGIN
    PERFORM interlock.commit_durably();
    IF route_version IS NULL OR token IS NULL THEN
        RAISE EXCEPTION 'route version and token must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF handoff.state = 'aborted' THEN
        RAISE EXCEPTION 'move % has been aborted', move_id USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF NOT EXISTS (SELECT FROM interlock.move_marker m
                    WHERE m.move_id = handoff.move_id
                      AND m.token_hash = interlock.token_hash(m.move_id, m.fence, activate_import.route_version, activate_import.token)) THEN
        RAISE EXCEPTION 'move % is not decided for all that this shard knows', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = CASE WHEN EXISTS (SELECT FROM interlock.move_marker m WHERE m.move_id = handoff.move_id)
                                THEN 'Token and route version do not fit the marker that came with the rows.'
                                ELSE 'Its marker has not come: rows may still be on their way.' END;
    END IF;
    IF handoff.state = 'active' THEN
        RETURN false;
    END IF;
    UPDATE interlock.bucket_state s
       SET state = 'owned', peer = NULL, until = NULL, route_version = activate_import.route_version
     WHERE s.keyspace = handoff.keyspace AND s.bucket = ANY (handoff.buckets)
       AND s.state = 'importing' AND s.move_id = handoff.move_id
       AND coalesce(s.route_version, 0) < activate_import.route_version;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> cardinality(handoff.buckets) THEN
        RAISE EXCEPTION 'the buckets of move % are not all importing', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Of its %s buckets %s could be taken over at route version %s.',
                                  cardinality(handoff.buckets), changed, route_version);
    END IF;
    UPDATE interlock.handoff h
       SET state = 'active', route_version = activate_import.route_version, token = activate_import.token, changed = clock_timestamp()
     WHERE h.move_id = handoff.move_id;
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.activate_import(uuid, integer, uuid) IS
    'target: importing -> owned, with the token that the source''s decision gave out, which must fit the marker that came with the rows; returns whether this call did it';

CREATE FUNCTION interlock.revoke_import(move_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff;
    changed integer;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    -- Whoever writes the buckets here is waited for, and nobody begins.
    PERFORM interlock.lock_tables(h.keyspace, 'SHARE') FROM interlock.handoff h WHERE h.move_id = revoke_import.move_id;
    handoff := interlock.own_handoff(move_id, 'target');
    IF handoff.state = 'importing' THEN
        RETURN false;
    ELSIF handoff.state <> 'active' THEN
        RAISE EXCEPTION 'move % is not active here', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = format('Its state is %s.', handoff.state);
    END IF;
    UPDATE interlock.bucket_state s
       SET state = 'importing', peer = handoff.peer,
           route_version = (SELECT p.route_version FROM jsonb_populate_recordset(NULL::interlock.bucket_state, handoff.previous) AS p
                             WHERE p.bucket = s.bucket)
     WHERE s.keyspace = handoff.keyspace AND s.bucket = ANY (handoff.buckets) AND s.state = 'owned' AND s.move_id = handoff.move_id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> cardinality(handoff.buckets) THEN
        RAISE EXCEPTION 'the buckets of move % are not all what it made of them', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Of its %s buckets %s are owned here by it.', cardinality(handoff.buckets), changed);
    END IF;
    -- Its marker stays: if the source has decided after all, the move can still be driven forward.
    UPDATE interlock.handoff h SET state = 'importing', route_version = NULL, token = NULL, changed = clock_timestamp()
     WHERE h.move_id = handoff.move_id;
    PERFORM interlock.commit_durably();
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.revoke_import(uuid) IS
    'target: owned -> importing again, by hand, for a source that has lost its decision for good before the move was published: what was written here since is given up. Then abort the move, or go on with it';
