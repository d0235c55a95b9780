-- The write guard. Row triggers run for the person who writes, so PUBLIC may execute these.

CREATE FUNCTION interlock.refuse_write(keyspace text, key anyelement) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'interlock_refuse_write';
COMMENT ON FUNCTION interlock.refuse_write(text, anyelement) IS
    'false if this shard may take a write to the key''s bucket now, an error if not: for the guard''s WHEN conditions';

CREATE FUNCTION interlock.refuse_write(keyspace text, old_key anyelement, new_key anyelement) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'interlock_refuse_update';
COMMENT ON FUNCTION interlock.refuse_write(text, anyelement, anyelement) IS
    'as refuse_write(keyspace, key) for both keys; also an error if they lie in different buckets';

CREATE FUNCTION interlock.guard() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'interlock_guard';
COMMENT ON FUNCTION interlock.guard() IS 'trigger (keyspace, key column): refuses writes to rows that this shard does not own';

CREATE FUNCTION interlock.guard_truncate() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'interlock_guard_truncate';
COMMENT ON FUNCTION interlock.guard_truncate() IS
    'trigger (keyspace): refuses TRUNCATE unless interlock.allow_truncate is on and no bucket is on the move';
