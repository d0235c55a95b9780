-- What a shard knows of its own part in the cluster. Sessions keep a copy (see ownership.h): the
-- library reads these tables by column position, so columns are only ever added at the end.

CREATE TABLE interlock.shard_identity (
    cluster_id uuid NOT NULL,
    shard_name text NOT NULL,
    floor integer NOT NULL DEFAULT 0 CHECK (floor >= 0),
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL
);
CREATE UNIQUE INDEX shard_identity_single_row ON interlock.shard_identity ((true));
COMMENT ON TABLE interlock.shard_identity IS 'which shard of which cluster this database is: no row or one';
COMMENT ON COLUMN interlock.shard_identity.floor IS 'route version under which this shard last gave a bucket away';
COMMENT ON COLUMN interlock.shard_identity.system_identifier IS
    'of the server that is the shard; where it differs from the actual one, this database is a restored copy';
COMMENT ON COLUMN interlock.shard_identity.database_oid IS 'of the database that is the shard; see system_identifier';

CREATE TABLE interlock.local_keyspace (
    name text PRIMARY KEY CHECK (name <> ''),
    key_type text NOT NULL CHECK (key_type IN ('bigint', 'uuid', 'text', 'bytea')),
    hash text NOT NULL,
    buckets integer NOT NULL CHECK (buckets BETWEEN 1 AND 65536),
    CONSTRAINT local_keyspace_hash_check
        CHECK (hash = CASE key_type WHEN 'bigint' THEN 'splitmix64' ELSE 'xxh3_64' END)
);
COMMENT ON TABLE interlock.local_keyspace IS 'keyspaces as this shard uses them; never changed once defined';
CREATE TABLE interlock.guarded_table (
    relid regclass PRIMARY KEY,
    keyspace text NOT NULL,
    key_column text NOT NULL
);
COMMENT ON TABLE interlock.guarded_table IS 'tables given to shard_table(); their partitions and children are guarded with them';

CREATE TABLE interlock.bucket_state (
    keyspace text NOT NULL,
    bucket integer NOT NULL CHECK (bucket BETWEEN 0 AND 65535),
    state text NOT NULL CHECK (state IN ('owned', 'fenced', 'moved', 'importing')),
    peer text,
    route_version integer CHECK (route_version >= 0),
    until timestamptz,
    move_id uuid,
    PRIMARY KEY (keyspace, bucket),
    CHECK (state = 'owned' OR peer IS NOT NULL)
);
COMMENT ON TABLE interlock.bucket_state IS 'state of each bucket this shard has to do with; a bucket without a row is not this shard''s';
COMMENT ON COLUMN interlock.bucket_state.peer IS 'the other shard: to whom (fenced, moved) or from whom (importing)';
COMMENT ON COLUMN interlock.bucket_state.route_version IS 'route version under which it came here (owned, fenced) or went away (moved)';
COMMENT ON COLUMN interlock.bucket_state.move_id IS 'move that brought it into this state; see interlock.handoff';
COMMENT ON COLUMN interlock.bucket_state.until IS 'deadline of a fence, by this shard''s clock';

-- The part that this shard takes in moves. bucket_state decides; this remembers what belongs together.
CREATE TABLE interlock.handoff (
    move_id uuid PRIMARY KEY,
    keyspace text NOT NULL,
    state text NOT NULL CHECK (state IN ('begun', 'fenced', 'decided', 'importing', 'active', 'aborted')),
    role text NOT NULL CHECK (role IN ('source', 'target')),
    peer text NOT NULL,
    buckets integer[] NOT NULL CHECK (cardinality(buckets) > 0),
    route_version integer CHECK (route_version > 0),
    fence integer NOT NULL DEFAULT 0,
    until timestamptz,
    waited boolean NOT NULL DEFAULT false,
    token uuid,
    decided_by xid8,
    decision_seen timestamptz,
    previous jsonb NOT NULL DEFAULT '[]',
    began timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE interlock.handoff IS 'moves of buckets that this shard has to do with, as source or as target';
COMMENT ON COLUMN interlock.handoff.fence IS 'how many times the buckets were fenced for this move';
COMMENT ON COLUMN interlock.handoff.waited IS 'whether no writer from before the fence is left';
COMMENT ON COLUMN interlock.handoff.token IS 'source: secret of the fence, given out by decide_handoff() only; the marker carries its hash';
COMMENT ON COLUMN interlock.handoff.decided_by IS 'source: the transaction that decided';
COMMENT ON COLUMN interlock.handoff.decision_seen IS 'source: by then the decision was committed; see older_transactions()';
COMMENT ON COLUMN interlock.handoff.previous IS 'target: rows of bucket_state as they were before, for abort_import()';

-- Travels with the rows of the buckets: where it has arrived, everything before it has.
CREATE TABLE interlock.move_marker (
    move_id uuid,
    fence integer,
    token_hash bytea NOT NULL,
    written timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (move_id, fence)
);
COMMENT ON TABLE interlock.move_marker IS 'written at the source when a fenced bucket has no writers any more; part of a move''s publication';

-- Placement must never change under the rows that are placed, and what is referred to stays.
CREATE FUNCTION interlock.keep_local_keyspace() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF to_jsonb(OLD) <> to_jsonb(NEW) THEN
            RAISE EXCEPTION 'definition of keyspace "%" cannot be changed', OLD.name
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'Create another keyspace and move the rows into it.';
        END IF;
        RETURN NEW;
    END IF;
    IF EXISTS (SELECT FROM interlock.guarded_table g WHERE g.keyspace = OLD.name) THEN
        RAISE EXCEPTION 'keyspace "%" is used by sharded tables', OLD.name USING ERRCODE = 'object_in_use';
    END IF;
    DELETE FROM interlock.bucket_state s WHERE s.keyspace = OLD.name;
    RETURN OLD;
END
$$;
COMMENT ON FUNCTION interlock.keep_local_keyspace() IS 'trigger: keyspaces do not change, and stay while they are used';
CREATE TRIGGER keep_local_keyspace BEFORE UPDATE OR DELETE ON interlock.local_keyspace
    FOR EACH ROW EXECUTE FUNCTION interlock.keep_local_keyspace();
ALTER TABLE interlock.local_keyspace ENABLE ALWAYS TRIGGER keep_local_keyspace;

SELECT pg_catalog.pg_extension_config_dump('interlock.shard_identity', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.local_keyspace', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.guarded_table', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.bucket_state', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.handoff', '');
SELECT pg_catalog.pg_extension_config_dump('interlock.move_marker', '');

CREATE VIEW interlock.bucket_states AS
    SELECT keyspace, bucket, state, peer, route_version, until FROM interlock.bucket_state;
COMMENT ON VIEW interlock.bucket_states IS 'state of each bucket this shard has to do with';

-- Every change of these tables, by whatever hand, makes the sessions read them again.
CREATE FUNCTION interlock.state_changed() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'interlock_state_changed';
COMMENT ON FUNCTION interlock.state_changed() IS 'trigger: makes every session read the shard''s state again';

-- Of the catalog, only the keyspaces: bucket_of() knows them where no shard does.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['shard_identity', 'local_keyspace', 'guarded_table', 'bucket_state', 'handoff', 'keyspace'] LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER state_changed AFTER INSERT OR UPDATE OR DELETE ON interlock.%I '
                                  'FOR EACH ROW EXECUTE FUNCTION interlock.state_changed()', name);
        EXECUTE pg_catalog.format('CREATE TRIGGER state_truncated AFTER TRUNCATE ON interlock.%I '
                                  'FOR EACH STATEMENT EXECUTE FUNCTION interlock.state_changed()', name);
        EXECUTE pg_catalog.format('ALTER TABLE interlock.%I ENABLE ALWAYS TRIGGER state_changed, '
                                  'ENABLE ALWAYS TRIGGER state_truncated', name);
    END LOOP;
END
$$;
