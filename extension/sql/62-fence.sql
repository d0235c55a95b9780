-- Handing buckets over: what a mover calls on the two shards. The row of bucket_state at the source
-- is the single decision point; every function can be called again with the same move.

CREATE FUNCTION interlock.wait_for_transactions(transactions text[], timeout_ms integer) RETURNS text[]
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_wait_for_transactions';
COMMENT ON FUNCTION interlock.wait_for_transactions(text[], integer) IS
    'waits until virtual transactions have ended; returns those that have not when the time is up';

CREATE FUNCTION interlock.on_the_move() RETURNS text[]
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'interlock_on_the_move';
COMMENT ON FUNCTION interlock.on_the_move() IS
    'keyspaces of which buckets are on their way from or to this shard, as of now whatever the snapshot';

CREATE VIEW interlock.handoffs AS
    SELECT move_id, keyspace, buckets, role, peer, state, route_version, until, waited, began, changed,
           state = 'fenced' AND until <= clock_timestamp() AS expired
      FROM interlock.handoff;
COMMENT ON VIEW interlock.handoffs IS 'moves of buckets that this shard has to do with, as source or as target';

CREATE FUNCTION interlock.token_hash(move_id uuid, fence integer, route_version integer, token uuid) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT sha256(convert_to(concat_ws(' ', move_id, fence, route_version, token), 'SQL_ASCII'))
$$;
COMMENT ON FUNCTION interlock.token_hash(uuid, integer, integer, uuid) IS 'what the marker of a fence says of the token of its decision';

CREATE FUNCTION interlock.own_handoff(move_id uuid, role text) RETURNS interlock.handoff
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff;
BEGIN
    PERFORM interlock.require_shard();
    PERFORM interlock.require_newest_snapshot();
    SELECT * INTO handoff FROM interlock.handoff h WHERE h.move_id = own_handoff.move_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'move % is not known to this shard', coalesce(move_id::text, 'null')
            USING ERRCODE = 'undefined_object';
    END IF;
    IF handoff.role <> own_handoff.role THEN
        RAISE EXCEPTION 'this shard is the % of move %', handoff.role, move_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN handoff;
END
$$;
COMMENT ON FUNCTION interlock.own_handoff(uuid, text) IS 'the record of a move, locked, with the lock on the shard''s state';

CREATE FUNCTION interlock.lock_tables(keyspace text, mode text, nowait boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held oid[] := '{}';
    before integer;
    member record;
BEGIN
    -- Until there is none that has come while this waited.
    LOOP
        before := cardinality(held);
        FOR member IN SELECT t.relid FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) t
                       WHERE g.keyspace = lock_tables.keyspace AND t.relid <> ALL (held)
                       ORDER BY g.relid::oid, t.depth, t.relid::oid LOOP
            EXECUTE format('LOCK TABLE ONLY %s IN %s MODE %s', member.relid, mode, CASE WHEN nowait THEN 'NOWAIT' END);
            held := held || member.relid::oid;
        END LOOP;
        EXIT WHEN cardinality(held) = before;
    END LOOP;
END
$$;
COMMENT ON FUNCTION interlock.lock_tables(text, text, boolean) IS
    'locks the tables of a keyspace, partitions and children included. To be called before the lock on the shard''s state is taken, which nobody who waits for a table must keep from others; after it with nowait, for tables that have come in between';

CREATE FUNCTION interlock.begin_handoff(keyspace text, buckets integer[], role text, peer text, move_id uuid) RETURNS interlock.handoff
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    identity interlock.shard_identity;
    wanted integer[] := ARRAY(SELECT DISTINCT b FROM unnest(buckets) AS b ORDER BY b);
    known interlock.handoff;
    other record;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    -- DDL under way has not seen the move; it is waited for, as it holds such a lock or a stronger one, and later DDL
    -- waits for this transaction. Writers do not.
    IF NOT EXISTS (SELECT FROM interlock.handoff h WHERE h.move_id = begin_handoff.move_id) THEN
        PERFORM interlock.lock_tables(keyspace, 'SHARE UPDATE EXCLUSIVE');
    END IF;
    identity := interlock.require_shard();
    PERFORM interlock.require_buckets(keyspace, buckets);
    IF move_id IS NULL OR peer IS NULL OR cardinality(wanted) = 0 THEN
        RAISE EXCEPTION 'move, shard and buckets must not be null or empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF peer = identity.shard_name THEN
        RAISE EXCEPTION 'a bucket can only be moved to another shard' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO known FROM interlock.handoff h WHERE h.move_id = begin_handoff.move_id FOR UPDATE;
    IF FOUND THEN
        IF (known.keyspace, known.buckets, known.role, known.peer)
           IS DISTINCT FROM (begin_handoff.keyspace, wanted, begin_handoff.role, begin_handoff.peer) THEN
            RAISE EXCEPTION 'move % is another one', move_id
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('Here it has buckets %s of keyspace "%s"; this shard is its %s, shard "%s" the other side.',
                                      known.buckets, known.keyspace, known.role, known.peer);
        END IF;
        IF known.state = 'aborted' THEN
            RAISE EXCEPTION 'move % has been aborted', move_id
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Begin another one.';
        END IF;
        RETURN known;
    END IF;
    SELECT b.bucket, h.move_id, h.peer INTO other
      FROM interlock.handoff h CROSS JOIN LATERAL unnest(h.buckets) AS b(bucket)
     WHERE h.keyspace = begin_handoff.keyspace AND b.bucket = ANY (wanted) AND h.state IN ('begun', 'fenced', 'importing')
     ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is being moved already', other.bucket, keyspace
            USING ERRCODE = 'object_in_use',
                  DETAIL = format('By move %s, shard "%s" is the other side.', other.move_id, other.peer),
                  HINT = 'Finish or abort that move first.';
    END IF;
    PERFORM interlock.lock_tables(keyspace, 'SHARE UPDATE EXCLUSIVE', nowait => true);
    INSERT INTO interlock.handoff (move_id, keyspace, state, role, peer, buckets)
    VALUES (move_id, keyspace, CASE role WHEN 'source' THEN 'begun' ELSE 'importing' END, role, peer, wanted)
    RETURNING * INTO known;
    RETURN known;
END
$$;
COMMENT ON FUNCTION interlock.begin_handoff(text, integer[], text, text, uuid) IS
    'records a move on this side, from when on DDL and TRUNCATE are refused. Waits for DDL: set lock_timeout';

CREATE FUNCTION interlock.begin_export(keyspace text, buckets integer[], to_shard text, move_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.begin_handoff(keyspace, buckets, 'source', to_shard, move_id);
BEGIN
    IF handoff.state = 'begun' THEN
        PERFORM interlock.require_owned(keyspace, handoff.buckets);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.begin_export(text, integer[], text, uuid) IS
    'source: a move of the buckets to a shard begins; DDL and TRUNCATE on the keyspace''s tables are refused from now on';

CREATE FUNCTION interlock.require_owned(keyspace text, buckets integer[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    strange record;
BEGIN
    SELECT b.bucket, coalesce(s.state, 'none') AS state, s.peer INTO strange
      FROM unnest(buckets) AS b(bucket)
      LEFT JOIN interlock.bucket_state s ON s.keyspace = require_owned.keyspace AND s.bucket = b.bucket
     WHERE s.state IS DISTINCT FROM 'owned' ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is not owned by this shard', strange.bucket, keyspace
            USING ERRCODE = 'IL101', DETAIL = format('State %s%s.', strange.state, ', shard "' || strange.peer || '"');
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.require_owned(text, integer[]) IS 'an error unless this shard owns the buckets';

CREATE FUNCTION interlock.commit_durably() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Of this transaction only. What is stricter stays.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.commit_durably() IS 'this transaction commits with synchronous_commit on at least';

CREATE FUNCTION interlock.fence_buckets(keyspace text, buckets integer[], to_shard text, move_id uuid, route_version integer,
                                        duration interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- It has begun, and has not been forgotten since: a mover that wakes up late begins no move anew.
    handoff interlock.handoff := interlock.own_handoff(move_id, 'source');
    floor integer := (SELECT i.floor FROM interlock.shard_identity i);
    since integer;
    changed integer;
BEGIN
    -- As it was named then; and not aborted.
    handoff := interlock.begin_handoff(keyspace, buckets, 'source', to_shard, move_id);
    IF handoff.state = 'decided' THEN
        RAISE EXCEPTION 'move % has been decided already', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Drive it forward: the target is to be activated.';
    END IF;
    IF duration IS NULL OR duration <= interval '0' OR duration > interval '1 hour' THEN
        RAISE EXCEPTION 'a fence lasts more than no time and at most an hour' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    since := (SELECT max(s.route_version) FROM interlock.bucket_state s
               WHERE s.keyspace = fence_buckets.keyspace AND s.bucket = ANY (handoff.buckets));
    IF route_version IS NULL OR route_version <= greatest(floor, since) THEN
        RAISE EXCEPTION 'the move''s route version must be above %', greatest(floor, since)
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('The shard''s floor is %s, the buckets came here at version %s or before.', floor, coalesce(since, 0));
    END IF;
    IF handoff.state = 'fenced' AND handoff.until > clock_timestamp() AND handoff.route_version = fence_buckets.route_version THEN
        RETURN handoff.until;
    END IF;

    -- A fence that has expired, though nobody has opened it, counts as a new one: who waited for the
    -- old one's writers may have given up.
    handoff.until := clock_timestamp() + duration;
    UPDATE interlock.bucket_state s
       SET state = 'fenced', peer = to_shard, until = handoff.until, move_id = fence_buckets.move_id
     WHERE s.keyspace = fence_buckets.keyspace AND s.bucket = ANY (handoff.buckets)
       AND (s.state = 'owned' OR s.state = 'fenced' AND s.move_id = fence_buckets.move_id);
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> cardinality(handoff.buckets) THEN
        PERFORM interlock.require_owned(keyspace, handoff.buckets);
        RAISE EXCEPTION 'the buckets of move % are not this shard''s any more', move_id USING ERRCODE = 'IL101';
    END IF;
    UPDATE interlock.handoff h
       SET state = 'fenced', fence = h.fence + 1, until = handoff.until, waited = false, token = gen_random_uuid(),
           route_version = fence_buckets.route_version, changed = clock_timestamp()
     WHERE h.move_id = fence_buckets.move_id;
    PERFORM interlock.commit_durably();
    RETURN handoff.until;
END
$$;
COMMENT ON FUNCTION interlock.fence_buckets(text, integer[], text, uuid, integer, interval) IS
    'source: owned -> fenced, of a move that begin_export() has begun; commit it, then wait_for_writers(). Returns the deadline by this server''s clock. Called again while it holds: the same deadline';

CREATE FUNCTION interlock.lock_holders(keyspace text, modes text[]) RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}')
      FROM pg_locks l
     WHERE l.locktype = 'relation' AND l.granted
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND l.relation IN (SELECT t.relid::oid FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) t
                           WHERE g.keyspace = lock_holders.keyspace)
       AND l.mode = ANY (modes)
       AND l.pid IS DISTINCT FROM pg_backend_pid()
       -- It writes no rows, and lets itself be disturbed only by those who ask for its lock.
       AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = l.pid AND a.backend_type LIKE 'autovacuum%')
$$;
COMMENT ON FUNCTION interlock.lock_holders(text, text[]) IS
    'virtual transactions that hold a lock in one of the modes on a table of the keyspace, partitions and children included; not this session, not autovacuum';

CREATE FUNCTION interlock.wait_for_writers(keyspace text, move_id uuid, timeout interval, readers boolean DEFAULT false)
RETURNS TABLE (pid integer, username name, application_name text, state text, since timestamptz, query_start timestamptz, gid text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff;
    modes text[] := ARRAY['RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'];
    left_over text[];
BEGIN
    PERFORM interlock.require_newest_snapshot();
    IF timeout IS NULL OR timeout < interval '0' OR timeout > interval '1 hour' THEN
        RAISE EXCEPTION 'timeout must be between no time and an hour' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- No lock: the fence is committed, and other moves go on while this waits.
    SELECT * INTO handoff FROM interlock.handoff h
     WHERE h.move_id = wait_for_writers.move_id AND h.keyspace = wait_for_writers.keyspace AND h.role = 'source';
    IF NOT FOUND OR handoff.state <> 'fenced' THEN
        RAISE EXCEPTION 'move % has no fence in keyspace "%"', move_id, keyspace
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = format('Its state is %s.', coalesce(handoff.state, 'unknown'));
    END IF;
    IF EXISTS (SELECT FROM interlock.handoff h WHERE h.move_id = wait_for_writers.move_id AND h.xmin = pg_current_xact_id_if_assigned()::xid) THEN
        RAISE EXCEPTION 'the fence of move % is not committed yet', move_id
            USING ERRCODE = 'invalid_transaction_state', DETAIL = 'No other session has been told of it.';
    END IF;
    IF readers THEN
        modes := modes || ARRAY['AccessShareLock', 'ShareUpdateExclusiveLock', 'ShareLock'];
    END IF;

    PERFORM pg_stat_clear_snapshot();
    left_over := interlock.wait_for_transactions(interlock.lock_holders(keyspace, modes),
                                                 (extract(epoch FROM timeout) * 1000)::integer);
    IF left_over = '{}' THEN
        IF NOT readers THEN
            PERFORM interlock.require_shard();
            UPDATE interlock.handoff h SET waited = true, changed = clock_timestamp()
             WHERE h.move_id = wait_for_writers.move_id AND h.fence = handoff.fence AND h.state = 'fenced';
        END IF;
        RETURN;
    END IF;
    PERFORM pg_stat_clear_snapshot();
    RETURN QUERY
        WITH held AS MATERIALIZED (
            SELECT DISTINCT l.virtualtransaction, l.pid, CASE l.locktype WHEN 'transactionid' THEN l.transactionid END AS xid
              FROM pg_locks l WHERE l.virtualtransaction = ANY (left_over) AND l.granted
        )
        SELECT a.pid, a.usename, a.application_name, a.state, a.xact_start, a.query_start, NULL::text
          FROM pg_stat_activity a WHERE a.pid IN (SELECT h.pid FROM held h)
         UNION ALL
        SELECT NULL, p.owner, NULL, 'prepared', p.prepared, NULL, p.gid
          FROM pg_prepared_xacts p WHERE p.transaction IN (SELECT h.xid FROM held h WHERE h.pid IS NULL);
    -- They ended while this was looking: as good as in time, but say so only after a fresh look.
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM interlock.wait_for_writers(keyspace, move_id, interval '1 ms', readers);
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.wait_for_writers(text, uuid, interval, boolean) IS
    'source: waits for the transactions that held a lock for writing on the keyspace''s tables when it was called (readers: any lock); returns who is left when the time is up, nobody if the wait is over';

CREATE FUNCTION interlock.require_fenced(handoff interlock.handoff) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF handoff.state <> 'fenced' OR handoff.until <= clock_timestamp() THEN
        RAISE EXCEPTION 'move % has no fence', handoff.move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = CASE handoff.state WHEN 'fenced' THEN format('It expired at %s.', handoff.until)
                                              ELSE format('Its state is %s.', handoff.state) END,
                  HINT = CASE WHEN handoff.state IN ('begun', 'fenced') THEN 'Fence the buckets again.' END;
    END IF;
    IF NOT handoff.waited THEN
        RAISE EXCEPTION 'the writers from before the fence of move % have not been waited for', handoff.move_id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.wait_for_writers() until it returns no row.';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.require_fenced(interlock.handoff) IS 'an error unless a move''s fence holds and is free of writers';

CREATE FUNCTION interlock.write_marker(move_id uuid) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.own_handoff(move_id, 'source');
BEGIN
    IF handoff.state <> 'decided' THEN
        PERFORM interlock.require_fenced(handoff);
    END IF;
    INSERT INTO interlock.move_marker AS m (move_id, fence, token_hash)
    VALUES (handoff.move_id, handoff.fence,
            interlock.token_hash(handoff.move_id, handoff.fence, handoff.route_version, handoff.token))
        ON CONFLICT ON CONSTRAINT move_marker_pkey DO NOTHING;
    RETURN handoff.fence;
END
$$;
COMMENT ON FUNCTION interlock.write_marker(uuid) IS
    'source: writes the marker of the fence, once nobody writes behind it; returns the fence''s number, by which it is known at the target';

CREATE FUNCTION interlock.decide_handoff(move_id uuid) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.own_handoff(move_id, 'source');
    strange record;
    changed integer;
BEGIN
    PERFORM interlock.commit_durably();
    IF handoff.state = 'decided' THEN
        -- The token makes the target the owner: not if somebody has made this shard the owner again.
        SELECT b.bucket, coalesce(s.state, 'none') AS state INTO strange
          FROM unnest(handoff.buckets) AS b(bucket)
          LEFT JOIN interlock.bucket_state s ON s.keyspace = handoff.keyspace AND s.bucket = b.bucket
         WHERE (s.state, s.move_id) IS DISTINCT FROM ('moved', handoff.move_id) ORDER BY b.bucket LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'bucket % of keyspace "%" is not as move % left it', strange.bucket, handoff.keyspace, handoff.move_id
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('The move was decided, and since then somebody else has changed it. Its state is %s.', strange.state),
                      HINT = 'Find out which shard has the right rows before anything else.';
        END IF;
        RETURN handoff.token;
    END IF;
    PERFORM interlock.require_fenced(handoff);
    IF NOT EXISTS (SELECT FROM interlock.move_marker m WHERE (m.move_id, m.fence) = (handoff.move_id, handoff.fence)) THEN
        RAISE EXCEPTION 'the marker of move % is not written', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.write_marker(), and wait for it at the target.';
    END IF;
    IF EXISTS (SELECT FROM interlock.shard_identity i WHERE i.floor >= handoff.route_version) THEN
        RAISE EXCEPTION 'route version % of move % is not above the shard''s floor', handoff.route_version, move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Open the fence with interlock.unfence_buckets(), then fence with a newer version.';
    END IF;
    UPDATE interlock.bucket_state s SET state = 'moved', until = NULL, route_version = handoff.route_version
     WHERE s.keyspace = handoff.keyspace AND s.bucket = ANY (handoff.buckets)
       AND s.state = 'fenced' AND s.move_id = handoff.move_id AND s.until > clock_timestamp();
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> cardinality(handoff.buckets) THEN
        RAISE EXCEPTION 'the fence of move % has gone', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('Of its %s buckets %s are still fenced.', cardinality(handoff.buckets), changed);
    END IF;
    UPDATE interlock.shard_identity SET floor = handoff.route_version;
    UPDATE interlock.handoff h SET state = 'decided', until = NULL, decided_by = pg_current_xact_id(), changed = clock_timestamp()
     WHERE h.move_id = handoff.move_id;
    RETURN handoff.token;
END
$$;
COMMENT ON FUNCTION interlock.decide_handoff(uuid) IS
    'source: fenced -> moved and the floor raised, before the fence''s deadline: the point of no return once committed. Returns the token that activates the target';

CREATE FUNCTION interlock.open_fence(handoff interlock.handoff, new_state text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The bucket never left: it keeps the version under which it came here. The number that the move
    -- meant to take is free again; its token is forgotten, so the marker can decide nothing any more.
    UPDATE interlock.bucket_state s SET state = 'owned', peer = NULL, until = NULL, move_id = NULL
     WHERE s.keyspace = handoff.keyspace AND s.bucket = ANY (handoff.buckets)
       AND s.state = 'fenced' AND s.move_id = handoff.move_id;
    UPDATE interlock.handoff h
       SET state = new_state, until = NULL, waited = false, token = NULL, changed = clock_timestamp()
     WHERE h.move_id = handoff.move_id;
END
$$;
COMMENT ON FUNCTION interlock.open_fence(interlock.handoff, text) IS 'fenced -> owned for the buckets of a move';

CREATE FUNCTION interlock.unfence_buckets(move_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.own_handoff(move_id, 'source');
BEGIN
    IF handoff.state = 'fenced' THEN
        PERFORM interlock.open_fence(handoff, 'begun');
    END IF;
    RETURN handoff.state = 'fenced';
END
$$;
COMMENT ON FUNCTION interlock.unfence_buckets(uuid) IS
    'source: fenced -> owned, for another try of the move; returns whether there was a fence. Nothing after the decision';

CREATE FUNCTION interlock.open_expired_fences() RETURNS uuid[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Whoever calls it has something better to do than to queue behind a mover.
SET lock_timeout = '1s'
AS $$
DECLARE
    handoff interlock.handoff;
    expired uuid[] := '{}';
BEGIN
    PERFORM interlock.require_newest_snapshot();
    PERFORM interlock.require_shard();
    FOR handoff IN SELECT * FROM interlock.handoff h WHERE h.state = 'fenced' AND h.until <= clock_timestamp()
                    ORDER BY h.move_id FOR UPDATE LOOP
        PERFORM interlock.open_fence(handoff, 'begun');
        expired := expired || handoff.move_id;
    END LOOP;
    RETURN expired;
END
$$;
COMMENT ON FUNCTION interlock.open_expired_fences() IS
    'source: fenced -> owned for every fence whose deadline has passed by this server''s clock, in this transaction. Returns the moves';

CREATE FUNCTION interlock.expire_fences() RETURNS uuid[]
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_expire_fences';
COMMENT ON FUNCTION interlock.expire_fences() IS
    'source: as open_expired_fences(), for everybody who meets such a fence: in another transaction, which has ended when this returns';

CREATE FUNCTION interlock.abort_export(move_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff := interlock.own_handoff(move_id, 'source');
BEGIN
    IF handoff.state = 'decided' THEN
        RAISE EXCEPTION 'move % has been decided already', move_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Drive it forward; moving the buckets back is another move.';
    END IF;
    IF handoff.state <> 'aborted' THEN
        PERFORM interlock.open_fence(handoff, 'aborted');
    END IF;
    RETURN handoff.state <> 'aborted';
END
$$;
COMMENT ON FUNCTION interlock.abort_export(uuid) IS
    'source: ends a move that is not decided, for good: a mover that is behind the times can neither fence nor decide any more';

CREATE FUNCTION interlock.forget_handoff(move_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handoff interlock.handoff;
BEGIN
    PERFORM interlock.require_shard();
    SELECT * INTO handoff FROM interlock.handoff h WHERE h.move_id = forget_handoff.move_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF handoff.state IN ('begun', 'fenced', 'importing') THEN
        RAISE EXCEPTION 'move % is under way', move_id
            USING ERRCODE = 'object_in_use', DETAIL = format('Its state is %s.', handoff.state), HINT = 'Finish or abort it first.';
    END IF;
    DELETE FROM interlock.move_marker m WHERE m.move_id = handoff.move_id;
    DELETE FROM interlock.clean_up_position p WHERE p.move_id = handoff.move_id;
    DELETE FROM interlock.handoff h WHERE h.move_id = handoff.move_id;
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.forget_handoff(uuid) IS
    'removes the record of a move that has ended, when nothing of it is left; from then on its id says nothing any more';

CREATE FUNCTION interlock.bucket_digests(keyspace text, buckets integer[], relation regclass)
RETURNS TABLE (bucket integer, rows bigint, digest text)
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
-- What the text of a value depends on.
SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64'
AS 'MODULE_PATHNAME', 'interlock_bucket_digests';
COMMENT ON FUNCTION interlock.bucket_digests(text, integer[], regclass) IS
    'number of rows of buckets in a table, and a digest of them that depends on neither their order nor that of the columns; reads the table once';

CREATE FUNCTION interlock.bucket_digest(keyspace text, bucket integer, relation regclass, OUT rows bigint, OUT digest text)
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.rows, d.digest FROM interlock.bucket_digests(keyspace, ARRAY[bucket], relation) d
$$;
COMMENT ON FUNCTION interlock.bucket_digest(text, integer, regclass) IS 'as bucket_digests(), for one bucket';
