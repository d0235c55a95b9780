-- Consuming the outbox, and what it tells about itself.

CREATE FUNCTION interlock.outbox_take(max_records integer, stream text DEFAULT 'default', part integer DEFAULT 0, parts integer DEFAULT 1)
    RETURNS TABLE (seq bigint, xid xid8, table_name text, op text, key jsonb, old jsonb, new jsonb, bucket integer,
                   route_version integer, at timestamptz, parked boolean)
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'interlock_outbox_take';
COMMENT ON FUNCTION interlock.outbox_take(integer, text, integer, integer) IS
    'the oldest records that nobody holds, locked until the transaction ends; parked: an earlier record of the key is parked. part of parts: share them by key';

CREATE FUNCTION interlock.outbox_done(seqs bigint[]) RETURNS integer
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_outbox_done';
COMMENT ON FUNCTION interlock.outbox_done(bigint[]) IS
    'removes records that this transaction has taken; an error for any other; returns how many it removed';

CREATE FUNCTION interlock.outbox_held(seqs bigint[], failed boolean) RETURNS SETOF interlock.outbox
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'interlock_outbox_held';
COMMENT ON FUNCTION interlock.outbox_held(bigint[], boolean) IS
    'records that this transaction has taken and not removed; an error for any other. failed: holds back later ones of their keys';

CREATE FUNCTION interlock.outbox_park(seqs bigint[], error text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parked bigint[];
BEGIN
    -- Having waited for an outbox_retry() that is under way, this sees what it has done.
    LOCK TABLE interlock.outbox_parked IN ROW EXCLUSIVE MODE;
    WITH aside AS (
        INSERT INTO interlock.outbox_parked
        SELECT h.*, coalesce(t.tries, 0), outbox_park.error, clock_timestamp()
          FROM interlock.outbox_held(coalesce(outbox_park.seqs, '{}'), false) h LEFT JOIN interlock.outbox_try t ON t.seq = h.seq
         WHERE outbox_park.error IS NOT NULL
            OR EXISTS (SELECT FROM interlock.outbox_parked p
                        WHERE p.key = h.key AND p.stream = h.stream AND p.table_name = h.table_name AND p.seq < h.seq)
        RETURNING seq)
    SELECT coalesce(array_agg(a.seq), '{}') INTO parked FROM aside a;
    RETURN interlock.outbox_done(parked);
END
$$;
COMMENT ON FUNCTION interlock.outbox_park(bigint[], text) IS
    'sets records that this transaction has taken aside; later ones of their keys then come with parked = true. Without an error: only where an earlier one of the key is still parked; the others stay in the stream. Returns how many';

CREATE FUNCTION interlock.outbox_failed(seq bigint, error text, max_tries integer DEFAULT 5) RETURNS boolean
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    failures integer;
BEGIN
    PERFORM interlock.outbox_held(ARRAY[outbox_failed.seq], true);
    INSERT INTO interlock.outbox_try AS t (seq, tries, error, failed_at)
    VALUES (outbox_failed.seq, 1, outbox_failed.error, clock_timestamp())
        ON CONFLICT ON CONSTRAINT outbox_try_pkey
        DO UPDATE SET tries = t.tries + 1, error = excluded.error, failed_at = excluded.failed_at
    RETURNING tries INTO failures;
    IF failures < max_tries THEN
        RETURN false;
    END IF;
    PERFORM interlock.outbox_park(ARRAY[outbox_failed.seq], outbox_failed.error);
    RETURN true;
END
$$;
COMMENT ON FUNCTION interlock.outbox_failed(bigint, text, integer) IS
    'counts a failure of a record that this transaction has taken, and parks it (true) when there are max_tries; commit, so that it counts';

CREATE FUNCTION interlock.outbox_retry(stream text, seqs bigint[] DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moved integer;
    total integer := 0;
BEGIN
    PERFORM interlock.require_newest_snapshot();
    -- No consumer looks for records meanwhile; afterwards each looks at everything, old seqs too.
    LOCK TABLE interlock.outbox_parked IN EXCLUSIVE MODE;
    UPDATE interlock.outbox_stream s SET retries = s.retries + 1 WHERE s.name = outbox_retry.stream;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'outbox stream "%" does not exist', stream USING ERRCODE = 'undefined_object';
    END IF;
    FOR k IN 0..31 LOOP
        EXECUTE format(
            'WITH back AS (DELETE FROM interlock.outbox_parked p WHERE p.stream = $1 AND ($2 IS NULL OR p.seq = ANY ($2))'
            '   AND p.seq / 32768 %% 32 = $3 RETURNING p.*), '
            'forgotten AS (DELETE FROM interlock.outbox_try t USING back b WHERE t.seq = b.seq) '
            'INSERT INTO interlock.%I SELECT b.seq, b.stream, b.xid, b.table_name, b.op, b.key, b.old, b.new, b.bucket, b.route_version, b.at FROM back b',
            format('outbox_%s_%s', stream, k)) USING stream, seqs, k;
        GET DIAGNOSTICS moved = ROW_COUNT;
        total := total + moved;
    END LOOP;
    RETURN total;
END
$$;
COMMENT ON FUNCTION interlock.outbox_retry(text, bigint[]) IS
    'puts parked records of a stream (NULL: all) back, under the seqs they had; returns how many';

CREATE FUNCTION interlock.outbox_discard(stream text, seqs bigint[]) RETURNS integer
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    discarded integer;
BEGIN
    DELETE FROM interlock.outbox_parked p WHERE p.stream = outbox_discard.stream AND p.seq = ANY (seqs);
    GET DIAGNOSTICS discarded = ROW_COUNT;
    RETURN discarded;
END
$$;
COMMENT ON FUNCTION interlock.outbox_discard(text, bigint[]) IS 'forgets parked records; returns how many';

CREATE FUNCTION interlock.outbox_rotate(stream text) RETURNS integer
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_outbox_rotate';
COMMENT ON FUNCTION interlock.outbox_rotate(text) IS
    'empties the segments of a stream whose records have all been removed; never waits; returns how many. Call it now and then, in a transaction of its own';

CREATE FUNCTION interlock.outbox_last(OUT last_seq bigint, OUT next_xid xid8, OUT oldest_xid xid8)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_outbox_last';
COMMENT ON FUNCTION interlock.outbox_last() IS
    'once oldest_xid has reached the next_xid of an earlier call, no record up to the last_seq of that call can appear any more';

CREATE FUNCTION interlock.outbox_drained(stream text, upto bigint) RETURNS boolean
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_outbox_drained';
COMMENT ON FUNCTION interlock.outbox_drained(text, bigint) IS
    'whether no record of the stream up to that seq is left, parked ones included; see outbox_last() for those still to come';

CREATE FUNCTION interlock.outbox_oldest(stream text) RETURNS timestamptz
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_outbox_oldest';
COMMENT ON FUNCTION interlock.outbox_oldest(text) IS
    'time of the oldest record of a stream, or very nearly; NULL when there is none. Parked ones do not count. Cheap, for monitoring';

CREATE VIEW interlock.outbox_backlog AS
    SELECT s.name AS stream, coalesce(r.records, 0) AS records, r.oldest, clock_timestamp() - r.oldest AS age,
           z.bytes, z.segments, coalesce(p.parked, 0) AS parked
      FROM interlock.outbox_stream s
           LEFT JOIN (SELECT o.stream, count(*) AS records, min(o.at) AS oldest FROM interlock.outbox o GROUP BY o.stream) r
                  ON r.stream = s.name
           LEFT JOIN (SELECT o.stream, count(*) AS parked FROM interlock.outbox_parked o GROUP BY o.stream) p ON p.stream = s.name
           CROSS JOIN LATERAL (
               SELECT coalesce(sum(pg_catalog.pg_total_relation_size(g.relid)), 0)::bigint AS bytes,
                      count(*) FILTER (WHERE pg_catalog.pg_relation_size(g.relid) > 0) AS segments
                 FROM (SELECT pg_catalog.to_regclass(pg_catalog.format('interlock.%I', pg_catalog.format('outbox_%s_%s', s.name, k)))::oid AS relid
                         FROM pg_catalog.generate_series(0, 31) AS k) g) z;
COMMENT ON VIEW interlock.outbox_backlog IS
    'for each stream: records that wait, since when, the space they take, segments in use, parked records. Counts them, so it takes a while when there are many';

CREATE FUNCTION interlock.grant_consumer(role regrole) RETURNS void
LANGUAGE plpgsql STRICT SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION interlock.outbox_take(integer, text, integer, integer), interlock.outbox_done(bigint[]), '
        'interlock.outbox_failed(bigint, text, integer), interlock.outbox_park(bigint[], text), '
        'interlock.outbox_retry(text, bigint[]), interlock.outbox_discard(text, bigint[]), interlock.outbox_rotate(text), '
        'interlock.outbox_last(), interlock.outbox_drained(text, bigint), interlock.outbox_oldest(text), interlock.outbox_holds(text, jsonb) TO %s', role);
    EXECUTE format('GRANT SELECT ON interlock.outbox_backlog, interlock.outbox_parked, interlock.outbox_stream, interlock.outbox_table TO %s', role);
END
$$;
COMMENT ON FUNCTION interlock.grant_consumer(regrole) IS 'gives a role what a consumer of the outbox needs';
