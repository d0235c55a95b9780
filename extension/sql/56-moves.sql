-- Moves of buckets, as the catalog keeps them: what was begun and how far it has come, which things a move
-- has made on the shards, the number of the route version that it will publish, and the publication itself.
--
-- A number belongs to a move from before its fence on, and is never given out again, whatever becomes of the
-- move: shards may have raised their floor to it, and sessions may work under it.

CREATE TABLE interlock.move (
    id uuid PRIMARY KEY,
    keyspace smallint NOT NULL,
    buckets integer[] NOT NULL CHECK (pg_catalog.cardinality(buckets) > 0 AND pg_catalog.array_position(buckets, NULL) IS NULL),
    from_shard smallint NOT NULL,
    to_shard smallint NOT NULL CHECK (to_shard <> from_shard),
    step text NOT NULL DEFAULT 'planned' CHECK (step <> ''),
    route_version integer,
    announced boolean NOT NULL DEFAULT false CHECK (NOT announced OR route_version IS NOT NULL),
    options jsonb NOT NULL DEFAULT '{}',
    began timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    changed timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    finished timestamptz,
    outcome text CHECK (outcome IN ('done', 'aborted')),
    error text,
    progress jsonb,
    CONSTRAINT move_end_check CHECK ((finished IS NULL) = (outcome IS NULL))
);
COMMENT ON TABLE interlock.move IS 'moves of buckets from shard to shard, also those that have ended';
COMMENT ON COLUMN interlock.move.step IS 'the last step that was recorded; the mover knows what follows';
COMMENT ON COLUMN interlock.move.route_version IS 'the number reserved for it, or the one under which it was published';
COMMENT ON COLUMN interlock.move.announced IS 'routers know that route version route_version is coming, and what it changes';

CREATE TABLE interlock.move_artefact (
    move uuid NOT NULL,
    shard smallint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('slot', 'publication', 'subscription', 'rows')),
    name text NOT NULL CHECK (name <> ''),
    recorded_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (move, shard, kind, name)
);
COMMENT ON TABLE interlock.move_artefact IS
    'what a move has made, or was about to make, on the shards and has not removed yet; recorded before it is made';

SELECT pg_catalog.pg_extension_config_dump('interlock.move', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.move_artefact', '');

CREATE VIEW interlock.moves AS
    SELECT m.id, k.name AS keyspace, m.buckets, source.name AS from_shard, target.name AS to_shard, m.step, m.route_version,
           m.announced, m.began, m.changed, m.finished, m.outcome, m.error, m.progress
      FROM interlock.move m
      LEFT JOIN interlock.keyspace k ON k.id = m.keyspace
      LEFT JOIN interlock.shard source ON source.id = m.from_shard
      LEFT JOIN interlock.shard target ON target.id = m.to_shard;
COMMENT ON VIEW interlock.moves IS 'moves of buckets from shard to shard: how far they have come, and what became of them';

CREATE VIEW interlock.announced_move AS
    SELECT c.reserved_version AS route_version, m.id, m.keyspace, m.buckets, m.from_shard, m.to_shard
      FROM interlock.cluster c
      JOIN interlock.move m ON m.id = c.reserved_move
     WHERE m.announced;
COMMENT ON VIEW interlock.announced_move IS
    'for routers: the move that will be the next route version, by the ids of keyspace and shards; no row if none is announced';

CREATE VIEW interlock.shard_floors AS
    SELECT s.id AS shard, s.name, coalesce(max(r.valid_to), 0) AS min_floor
      FROM interlock.shard s
      LEFT JOIN interlock.route r ON r.shard = s.id
     WHERE s.role = 'shard'
     GROUP BY s.id;
COMMENT ON VIEW interlock.shard_floors IS
    'the route version under which each shard last gave a bucket away: one whose floor is lower has lost that decision';

CREATE FUNCTION interlock.next_version() RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(c.reserved_version, greatest(c.route_version, c.last_version) + 1) FROM interlock.cluster c
$$;
COMMENT ON FUNCTION interlock.next_version() IS 'the number of the next route version: the reserved one, or the first never given out';

CREATE FUNCTION interlock.move_hint(id uuid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN m.route_version IS NULL OR EXISTS (SELECT FROM interlock.cluster c WHERE c.reserved_move = m.id)
           THEN format('Finish it with "interlock move --resume %1$s", or give it up with "interlock move --abort %1$s".', m.id)
           ELSE 'It is published; have what it left behind removed with "interlock move --clean".' END
      FROM interlock.move m WHERE m.id = move_hint.id
$$;
COMMENT ON FUNCTION interlock.move_hint(uuid) IS 'what an error says to do about an unfinished move';

CREATE FUNCTION interlock.refuse_reserved() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number integer;
    holder interlock.moves;
BEGIN
    SELECT c.reserved_version INTO number FROM interlock.cluster c WHERE c.reserved_version IS NOT NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT m.* INTO holder FROM interlock.cluster c JOIN interlock.moves m ON m.id = c.reserved_move;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'route version % is reserved by an "interlock apply" that has not ended', number
            USING ERRCODE = 'object_in_use', HINT = 'Run "interlock apply": it goes on from there.';
    END IF;
    RAISE EXCEPTION 'route version % is reserved by move %', number, holder.id
        USING ERRCODE = 'object_in_use',
              DETAIL = format('It moves %s of keyspace "%s" from shard "%s" to shard "%s", and has come to step "%s".',
                              CASE cardinality(holder.buckets) WHEN 1 THEN 'bucket ' || holder.buckets[1]
                              ELSE cardinality(holder.buckets) || ' buckets' END,
                              holder.keyspace, holder.from_shard, holder.to_shard, holder.step),
              HINT = interlock.move_hint(holder.id);
END
$$;
COMMENT ON FUNCTION interlock.refuse_reserved() IS 'an error that names the holder if a number is reserved';

CREATE FUNCTION interlock.own_move(id uuid, unfinished boolean DEFAULT true) RETURNS interlock.move
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_move interlock.move;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    SELECT * INTO found_move FROM interlock.move m WHERE m.id = own_move.id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'move % does not exist', coalesce(id::text, 'null') USING ERRCODE = 'undefined_object';
    END IF;
    IF unfinished AND found_move.finished IS NOT NULL THEN
        RAISE EXCEPTION 'move % has ended: %', id, found_move.outcome
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Begin another one.';
    END IF;
    RETURN found_move;
END
$$;
COMMENT ON FUNCTION interlock.own_move(uuid, boolean) IS 'the record of a move, locked; an error if there is none, or if it has ended';

CREATE FUNCTION interlock.member_of_move(name text) RETURNS interlock.shard
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member interlock.shard;
BEGIN
    SELECT * INTO member FROM interlock.shard s WHERE s.name = member_of_move.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'shard "%" does not exist', name USING ERRCODE = 'undefined_object';
    ELSIF member.role <> 'shard' THEN
        RAISE EXCEPTION '"%" is an index database, not a shard', name
            USING ERRCODE = 'wrong_object_type', DETAIL = 'Index databases own no buckets.';
    END IF;
    RETURN member;
END
$$;
COMMENT ON FUNCTION interlock.member_of_move(text) IS 'the shard of that name; an error if it cannot own buckets';

CREATE FUNCTION interlock.begin_move(id uuid, keyspace text, buckets integer[], from_shard text, to_shard text,
                                     options jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    keyspace_row interlock.keyspace;
    source interlock.shard;
    target interlock.shard;
    wanted integer[] := ARRAY(SELECT DISTINCT b FROM unnest(buckets) AS b ORDER BY b);
    existing interlock.move;
    obstacle record;
BEGIN
    PERFORM interlock.lock_cluster();
    PERFORM interlock.require_newest_snapshot();
    IF id IS NULL OR keyspace IS NULL OR from_shard IS NULL OR to_shard IS NULL THEN
        RAISE EXCEPTION 'move, keyspace and shards must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT * INTO keyspace_row FROM interlock.keyspace k WHERE k.name = begin_move.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'keyspace "%" does not exist', keyspace USING ERRCODE = 'undefined_object';
    END IF;
    source := interlock.member_of_move(from_shard);
    target := interlock.member_of_move(to_shard);
    IF source.id = target.id THEN
        RAISE EXCEPTION 'a bucket can only be moved to another shard' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM interlock.check_bucket_numbers(keyspace_row.name, keyspace_row.buckets, buckets);
    IF wanted = '{}' THEN
        RAISE EXCEPTION 'a move must have at least one bucket' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT * INTO existing FROM interlock.move m WHERE m.id = begin_move.id;
    IF FOUND THEN
        IF (existing.keyspace, existing.buckets, existing.from_shard, existing.to_shard)
           <> (keyspace_row.id, wanted, source.id, target.id) THEN
            RAISE EXCEPTION 'move % is another one', id
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = 'It was begun for another keyspace, other buckets or other shards.';
        END IF;
        PERFORM interlock.own_move(id);
        RETURN;
    END IF;

    SELECT b.bucket, m.id INTO obstacle
      FROM interlock.move m CROSS JOIN LATERAL unnest(m.buckets) AS b(bucket)
     WHERE m.finished IS NULL AND m.keyspace = keyspace_row.id AND b.bucket = ANY (wanted)
     ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is part of move %', obstacle.bucket, keyspace, obstacle.id
            USING ERRCODE = 'object_in_use', HINT = interlock.move_hint(obstacle.id);
    END IF;
    SELECT b.bucket, s.name AS served INTO obstacle
      FROM unnest(wanted) AS b(bucket)
      LEFT JOIN interlock.route r ON r.keyspace = keyspace_row.id AND r.bucket = b.bucket AND r.valid_to IS NULL
      LEFT JOIN interlock.shard s ON s.id = r.shard
     WHERE r.shard IS DISTINCT FROM source.id ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is not served by shard "%"', obstacle.bucket, keyspace, from_shard
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = CASE WHEN obstacle.served IS NULL THEN 'Nothing is published for it.'
                           ELSE format('Shard "%s" serves it.', obstacle.served) END;
    END IF;
    SELECT b.bucket, s.name AS staged INTO obstacle
      FROM unnest(wanted) AS b(bucket)
      LEFT JOIN interlock.assignment a ON a.keyspace = keyspace_row.id AND a.bucket = b.bucket
      LEFT JOIN interlock.shard s ON s.id = a.shard
     WHERE a.shard IS DISTINCT FROM source.id ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of keyspace "%" is assigned to shard "%" but not published there',
            obstacle.bucket, keyspace, obstacle.staged
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('Assign it to shard "%s", which serves it, with interlock.assign(): a move needs no staged edit.',
                                from_shard);
    END IF;
    -- publish_move() repeats what is published; a shard that is only staged would be missing from it.
    IF NOT EXISTS (SELECT FROM interlock.cluster c JOIN interlock.route_version v ON v.version = c.route_version
                    CROSS JOIN LATERAL jsonb_array_elements(v.declarations -> 'shards') d
                    WHERE d -> 'id' = to_jsonb(target.id)) THEN
        RAISE EXCEPTION 'shard "%" is not part of the current route version', to_shard
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Run "interlock apply", which prepares it and tells the routers of it.';
    END IF;

    INSERT INTO interlock.move (id, keyspace, buckets, from_shard, to_shard, options)
    VALUES (begin_move.id, keyspace_row.id, wanted, source.id, target.id, coalesce(begin_move.options, '{}'));
END
$$;
COMMENT ON FUNCTION interlock.begin_move(uuid, text, integer[], text, text, jsonb) IS
    'records that buckets are to be moved from shard to shard; the same move again is a no-op';

CREATE FUNCTION interlock.record_step(id uuid, step text, progress jsonb DEFAULT NULL, error text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF step IS NULL OR step = '' THEN
        RAISE EXCEPTION 'step of a move must not be empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Only the move's own row is locked: a mover that is inside its fence waits for no apply.
    PERFORM interlock.own_move(id);
    UPDATE interlock.move m
       SET step = record_step.step, progress = coalesce(record_step.progress, m.progress), error = record_step.error,
           changed = clock_timestamp()
     WHERE m.id = record_step.id;
END
$$;
COMMENT ON FUNCTION interlock.record_step(uuid, text, jsonb, text) IS
    'how far a move has come; without progress what was recorded stays, without error there is none';

CREATE FUNCTION interlock.record_artefact(id uuid, shard text, kind text, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member interlock.shard := interlock.member_of_move(shard);
BEGIN
    IF kind IS NULL OR kind NOT IN ('slot', 'publication', 'subscription', 'rows') OR name IS NULL OR name = '' THEN
        RAISE EXCEPTION 'invalid artefact of a move: % "%"', kind, name
            USING ERRCODE = 'invalid_parameter_value', DETAIL = 'Kinds are slot, publication, subscription and rows.';
    END IF;
    PERFORM interlock.own_move(id);
    INSERT INTO interlock.move_artefact (move, shard, kind, name)
    VALUES (record_artefact.id, member.id, record_artefact.kind, record_artefact.name)
        ON CONFLICT ON CONSTRAINT move_artefact_pkey DO NOTHING;
END
$$;
COMMENT ON FUNCTION interlock.record_artefact(uuid, text, text, text) IS
    'records what a move is about to make on a shard, so that it can be found and removed whatever happens; idempotent';

CREATE FUNCTION interlock.forget_artefact(id uuid, shard text, kind text, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member interlock.shard := interlock.member_of_move(shard);
BEGIN
    PERFORM interlock.own_move(id, unfinished => false);
    DELETE FROM interlock.move_artefact a
     WHERE (a.move, a.shard, a.kind, a.name)
           = (forget_artefact.id, member.id, forget_artefact.kind, forget_artefact.name);
END
$$;
COMMENT ON FUNCTION interlock.forget_artefact(uuid, text, text, text) IS
    'what record_artefact() recorded has been removed from the shard; idempotent';

CREATE FUNCTION interlock.reserve_version(id uuid) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cluster interlock.cluster;
    moving interlock.move;
    changed_bucket integer;
BEGIN
    PERFORM interlock.lock_cluster();
    PERFORM interlock.require_newest_snapshot();
    IF id IS NOT NULL THEN
        moving := interlock.own_move(id);
    END IF;
    SELECT * INTO cluster FROM interlock.cluster;
    IF cluster.reserved_version IS NOT NULL THEN
        IF cluster.reserved_move IS DISTINCT FROM id THEN
            PERFORM interlock.refuse_reserved();
        END IF;
        RETURN cluster.reserved_version;
    END IF;
    IF moving.route_version IS NOT NULL THEN
        RAISE EXCEPTION 'move % has been published as route version %', id, moving.route_version
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT b.bucket INTO changed_bucket FROM unnest(moving.buckets) AS b(bucket)
     WHERE NOT EXISTS (SELECT FROM interlock.route r WHERE r.keyspace = moving.keyspace AND r.bucket = b.bucket
                                                       AND r.shard = moving.from_shard AND r.valid_to IS NULL)
     ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of move % is not served by its source any more', changed_bucket, id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = interlock.move_hint(id);
    END IF;
    UPDATE interlock.cluster c
       SET last_version = interlock.next_version(), reserved_version = interlock.next_version(),
           reserved_move = reserve_version.id
    RETURNING c.reserved_version INTO cluster.reserved_version;
    UPDATE interlock.move m SET route_version = cluster.reserved_version, changed = clock_timestamp()
     WHERE m.id = reserve_version.id;
    RETURN cluster.reserved_version;
END
$$;
COMMENT ON FUNCTION interlock.reserve_version(uuid) IS
    'gives the number of the next route version to a move, or to "interlock apply" if null, and to nobody else until it is published or withdrawn; again: the same number';

CREATE FUNCTION interlock.reserve_again(id uuid, decided integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cluster interlock.cluster;
    moving interlock.move;
    changed_bucket integer;
BEGIN
    PERFORM interlock.lock_cluster();
    PERFORM interlock.require_newest_snapshot();
    IF decided IS NULL OR decided < 1 THEN
        RAISE EXCEPTION 'route version must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    moving := interlock.own_move(id);
    SELECT * INTO cluster FROM interlock.cluster;
    IF cluster.reserved_version IS NOT NULL AND cluster.reserved_move IS DISTINCT FROM id THEN
        PERFORM interlock.refuse_reserved();
    END IF;
    IF moving.route_version >= decided THEN
        RETURN moving.route_version;
    END IF;
    SELECT b.bucket INTO changed_bucket FROM unnest(moving.buckets) AS b(bucket)
     WHERE NOT EXISTS (SELECT FROM interlock.route r WHERE r.keyspace = moving.keyspace AND r.bucket = b.bucket
                                                       AND r.shard = moving.from_shard AND r.valid_to IS NULL)
     ORDER BY b.bucket LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'bucket % of move % is not served by its source any more', changed_bucket, id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('The source has decided the move under route version %s, which the catalog has lost.', decided);
    END IF;
    -- What was reserved here is of before the decision; and numbers may have been given out since which that
    -- decision's comes before.
    UPDATE interlock.cluster c
       SET reserved_version = greatest(decided, greatest(c.route_version, c.last_version) + 1), reserved_move = moving.id,
           last_version = greatest(decided, greatest(c.route_version, c.last_version) + 1)
    RETURNING c.reserved_version INTO cluster.reserved_version;
    UPDATE interlock.move m SET route_version = cluster.reserved_version, changed = clock_timestamp() WHERE m.id = moving.id;
    RETURN cluster.reserved_version;
END
$$;
COMMENT ON FUNCTION interlock.reserve_again(uuid, integer) IS
    'for a move that its source has decided under a route version of which this catalog, older than that, knows nothing: reserves that number, or the first never given out if there is a later one';

CREATE FUNCTION interlock.announce_move(id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving interlock.move;
BEGIN
    PERFORM interlock.lock_cluster();
    moving := interlock.own_move(id);
    IF NOT EXISTS (SELECT FROM interlock.cluster c WHERE c.reserved_move = announce_move.id) THEN
        RAISE EXCEPTION 'move % has no route version reserved', id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.reserve_version() first.';
    END IF;
    IF moving.announced THEN
        RETURN;
    END IF;
    UPDATE interlock.move m SET announced = true, changed = clock_timestamp() WHERE m.id = announce_move.id;
    PERFORM interlock.tell_routers();
END
$$;
COMMENT ON FUNCTION interlock.announce_move(uuid) IS
    'tells routers which buckets the reserved route version will change, so that they hold statements on them back; idempotent';

CREATE FUNCTION interlock.tell_routers() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE interlock.cluster SET announcement = announcement + 1;
    PERFORM pg_notify('interlock_route', (SELECT c.route_version FROM interlock.cluster c)::text);
END
$$;
COMMENT ON FUNCTION interlock.tell_routers() IS 'has routers look at the catalog: an announcement has come or gone';

CREATE FUNCTION interlock.withdraw_version(id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving interlock.move;
BEGIN
    PERFORM interlock.lock_cluster();
    PERFORM interlock.require_newest_snapshot();
    IF id IS NOT NULL THEN
        moving := interlock.own_move(id, unfinished => false);
    END IF;
    UPDATE interlock.cluster c SET reserved_version = NULL, reserved_move = NULL
     WHERE c.reserved_version IS NOT NULL AND c.reserved_move IS NOT DISTINCT FROM withdraw_version.id;
    IF NOT FOUND THEN
        IF moving.route_version IS NOT NULL THEN
            RAISE EXCEPTION 'move % has been published as route version %', id, moving.route_version
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        RETURN;
    END IF;
    UPDATE interlock.move m SET route_version = NULL, announced = false, changed = clock_timestamp()
     WHERE m.id = withdraw_version.id;
    IF moving.announced THEN
        PERFORM interlock.tell_routers();
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.withdraw_version(uuid) IS
    'gives up the number reserved for a move, or for "interlock apply" if null, which is then nobody''s for ever; takes its announcement back; idempotent';

CREATE FUNCTION interlock.publish_move(id uuid) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current_version integer := interlock.lock_cluster();
    cluster interlock.cluster;
    moving interlock.move := interlock.own_move(id, unfinished => false);
BEGIN
    LOCK TABLE interlock.assignment, interlock.route, interlock.route_version IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO cluster FROM interlock.cluster;
    IF cluster.reserved_move IS DISTINCT FROM id THEN
        IF moving.route_version IS NULL THEN
            RAISE EXCEPTION 'move % has no route version reserved', id
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call interlock.reserve_version() first.';
        END IF;
        RETURN moving.route_version;
    END IF;

    -- What is published, and not what is staged: a move must not carry anybody's unfinished edits along.
    INSERT INTO interlock.route_version (version, note, declarations)
    SELECT cluster.reserved_version, format('move %s', id), v.declarations
      FROM interlock.route_version v WHERE v.version = current_version;
    UPDATE interlock.route r SET valid_to = cluster.reserved_version
     WHERE r.valid_to IS NULL AND r.keyspace = moving.keyspace AND r.bucket = ANY (moving.buckets)
       AND r.shard = moving.from_shard;
    INSERT INTO interlock.route (keyspace, bucket, shard, valid_from)
    SELECT moving.keyspace, b, moving.to_shard, cluster.reserved_version FROM unnest(moving.buckets) AS b;
    INSERT INTO interlock.assignment AS a (keyspace, bucket, shard)
    SELECT moving.keyspace, b, moving.to_shard FROM unnest(moving.buckets) AS b
        ON CONFLICT ON CONSTRAINT assignment_pkey DO UPDATE SET shard = excluded.shard;
    UPDATE interlock.cluster c
       SET route_version = c.reserved_version, reserved_version = NULL, reserved_move = NULL;
    UPDATE interlock.move m SET announced = false, changed = clock_timestamp() WHERE m.id = publish_move.id;
    PERFORM interlock.tell_routers();
    RETURN cluster.reserved_version;
END
$$;
COMMENT ON FUNCTION interlock.publish_move(uuid) IS
    'makes the current map with the move''s buckets at its target the route version that was reserved for it; again: the same version';

CREATE FUNCTION interlock.finish_move(id uuid, outcome text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving interlock.move;
    left_over text;
BEGIN
    -- As record_step(): whoever reserves a number locks the move's row as well.
    moving := interlock.own_move(id, unfinished => false);
    IF outcome IS NULL OR outcome NOT IN ('done', 'aborted') THEN
        RAISE EXCEPTION 'outcome of a move must be "done" or "aborted", not "%"', outcome
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF moving.outcome = finish_move.outcome THEN
        RETURN;
    ELSIF moving.outcome IS NOT NULL THEN
        RAISE EXCEPTION 'move % has ended: %', id, moving.outcome USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF EXISTS (SELECT FROM interlock.cluster c WHERE c.reserved_move = finish_move.id) THEN
        RAISE EXCEPTION 'route version % is reserved by move %', moving.route_version, id
            USING ERRCODE = 'object_in_use', HINT = 'Publish it, or withdraw the number.';
    END IF;
    IF (outcome = 'done') <> (moving.route_version IS NOT NULL) THEN
        RAISE EXCEPTION 'move % % been published', id, CASE outcome WHEN 'done' THEN 'has not' ELSE 'has' END
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT string_agg(format('%s "%s" on shard "%s"', a.kind, a.name, coalesce(s.name, a.shard::text)), ', '
                      ORDER BY a.recorded_at, a.kind, a.name) INTO left_over
      FROM interlock.move_artefact a LEFT JOIN interlock.shard s ON s.id = a.shard WHERE a.move = finish_move.id;
    IF left_over IS NOT NULL THEN
        RAISE EXCEPTION 'move % has not removed all it has made', id
            USING ERRCODE = 'object_in_use', DETAIL = format('Left are: %s.', left_over);
    END IF;
    UPDATE interlock.move m
       SET outcome = finish_move.outcome, finished = clock_timestamp(), changed = clock_timestamp(),
           step = CASE finish_move.outcome WHEN 'done' THEN 'done' ELSE m.step END
     WHERE m.id = finish_move.id;
END
$$;
COMMENT ON FUNCTION interlock.finish_move(uuid, text) IS
    'a move is over, "done" or "aborted", and nothing of it is left on the shards; the same again is a no-op';
