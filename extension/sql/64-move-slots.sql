-- What the output plugin "interlock" (bucket_output.cpp) lets through: which slot follows which buckets.

-- The library reads this table by column position.
CREATE TABLE interlock.move_slot (
    slot_name name PRIMARY KEY,
    move_id uuid NOT NULL,
    keyspace text NOT NULL,
    buckets integer[] NOT NULL CHECK (cardinality(buckets) > 0 AND array_ndims(buckets) = 1 AND array_position(buckets, NULL) IS NULL),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE interlock.move_slot IS 'replication slots of moves, recorded before they are made: the output plugin finds the buckets to follow by the slot''s name';
COMMENT ON COLUMN interlock.move_slot.move_id IS 'the move; of the rows of interlock.move_marker, those with this id travel';
COMMENT ON COLUMN interlock.move_slot.buckets IS 'the rows of which buckets of the keyspace travel';

-- A slot that is read again must be filtered as it was before.
CREATE FUNCTION interlock.keep_move_slot() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        RAISE EXCEPTION 'what replication slot "%" follows cannot be changed', OLD.slot_name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Drop the slot, forget it, and record another one.';
    END IF;
    IF EXISTS (SELECT FROM pg_replication_slots s
                WHERE s.slot_name = OLD.slot_name AND s.plugin = 'interlock' AND s.database = current_database()) THEN
        RAISE EXCEPTION 'replication slot "%" still exists', OLD.slot_name
            USING ERRCODE = 'object_in_use', HINT = 'Drop the slot first.';
    END IF;
    RETURN OLD;
END
$$;
COMMENT ON FUNCTION interlock.keep_move_slot() IS 'trigger: what a slot follows does not change, and is known as long as the slot exists';
CREATE TRIGGER keep_move_slot BEFORE UPDATE OR DELETE ON interlock.move_slot
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_move_slot();
ALTER TABLE interlock.move_slot ENABLE ALWAYS TRIGGER keep_move_slot;

-- A table that is sharded or given up in the middle would be copied and followed by halves.
CREATE FUNCTION interlock.keep_followed_tables() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot name;
BEGIN
    -- A guard that is missing may be put back: shard_table() inserts the row again then.
    IF TG_OP = 'INSERT' AND EXISTS (SELECT FROM interlock.guarded_table g WHERE g = NEW) THEN
        RETURN NEW;
    END IF;
    SELECT m.slot_name INTO slot FROM interlock.move_slot m
     WHERE (TG_OP <> 'DELETE' AND m.keyspace = NEW.keyspace) OR (TG_OP <> 'INSERT' AND m.keyspace = OLD.keyspace) LIMIT 1;
    IF FOUND AND NOT (TG_OP = 'UPDATE' AND to_jsonb(OLD) = to_jsonb(NEW)) THEN
        RAISE EXCEPTION 'buckets of keyspace "%" are on the move', CASE TG_OP WHEN 'DELETE' THEN OLD.keyspace ELSE NEW.keyspace END
            USING ERRCODE = 'object_in_use',
                  DETAIL = format('Replication slot "%s" follows the tables that the keyspace had when the move began.', slot),
                  HINT = 'Retry when the move has ended.';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;
COMMENT ON FUNCTION interlock.keep_followed_tables() IS 'trigger: while buckets of a keyspace are on the move, its tables stay those that they are';
CREATE TRIGGER keep_followed_tables BEFORE INSERT OR UPDATE OR DELETE ON interlock.guarded_table
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_followed_tables();
ALTER TABLE interlock.guarded_table ENABLE ALWAYS TRIGGER keep_followed_tables;

CREATE FUNCTION interlock.record_move_slot(slot_name name, move_id uuid, keyspace text, buckets integer[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known interlock.local_keyspace;
    wrong integer;
    recorded interlock.move_slot;
    wanted integer[] := (SELECT array_agg(DISTINCT b ORDER BY b) FROM unnest(record_move_slot.buckets) b);
BEGIN
    SELECT * INTO known FROM interlock.local_keyspace k WHERE k.name = record_move_slot.keyspace;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'keyspace "%" is not defined in this database', record_move_slot.keyspace USING ERRCODE = 'undefined_object';
    END IF;
    IF wanted IS NULL OR array_position(wanted, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'a move needs buckets' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT b INTO wrong FROM unnest(wanted) b WHERE b NOT BETWEEN 0 AND known.buckets - 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'keyspace "%" has no bucket %', known.name, wrong
            USING ERRCODE = 'invalid_parameter_value', DETAIL = format('Its buckets are 0 to %s.', known.buckets - 1);
    END IF;
    -- Whoever is about to shard a table, or to give one up, ends first.
    LOCK TABLE interlock.guarded_table IN SHARE MODE;
    INSERT INTO interlock.move_slot AS m (slot_name, move_id, keyspace, buckets)
    VALUES (record_move_slot.slot_name, record_move_slot.move_id, record_move_slot.keyspace, wanted)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO recorded FROM interlock.move_slot m WHERE m.slot_name = record_move_slot.slot_name;
        IF (recorded.move_id, recorded.keyspace, recorded.buckets) IS DISTINCT FROM (record_move_slot.move_id, record_move_slot.keyspace, wanted) THEN
            RAISE EXCEPTION 'replication slot "%" is recorded for something else', record_move_slot.slot_name
                USING ERRCODE = 'duplicate_object',
                      DETAIL = format('It follows %s buckets of keyspace "%s" for move %s.', cardinality(recorded.buckets), recorded.keyspace, recorded.move_id);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.record_move_slot(name, uuid, text, integer[]) IS
    'says what a slot of output plugin "interlock" will follow; before the slot is made. May be repeated';

CREATE FUNCTION interlock.forget_move_slot(slot_name name) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM interlock.move_slot m WHERE m.slot_name = forget_move_slot.slot_name;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION interlock.forget_move_slot(name) IS
    'forgets what a slot followed, once the slot is gone; false when nothing was recorded';
