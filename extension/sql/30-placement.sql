-- Placement as everybody may ask for it, and the router's greeting.

CREATE FUNCTION interlock.hash_key(key anyelement) RETURNS bigint
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_hash_key';
COMMENT ON FUNCTION interlock.hash_key(anyelement) IS
    'hash of a shard key: splitmix64 for integers, XXH3-64 for uuid, text (its UTF-8 bytes) and bytea';

CREATE FUNCTION interlock.bucket_of(keyspace text, key anyelement) RETURNS integer
LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_bucket_of';
COMMENT ON FUNCTION interlock.bucket_of(text, anyelement) IS 'bucket of a key in a keyspace known to this database';

CREATE FUNCTION interlock.owns(keyspace text, key anyelement) RETURNS boolean
LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_owns';
COMMENT ON FUNCTION interlock.owns(text, anyelement) IS
    'whether this shard owns the key''s bucket now (newest state, whatever the isolation level)';

CREATE FUNCTION interlock.greet(route_version integer, OUT cluster_id uuid, OUT shard text, OUT floor integer,
    OUT restored boolean, OUT catalog_first boolean, OUT extension_version text,
    OUT system_identifier bigint, OUT timeline integer) RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_greet';
COMMENT ON FUNCTION interlock.greet(integer) IS
    'sets interlock.route_version for the session and says which shard this is, on which server; timeline is NULL on a standby. For routers';

CREATE FUNCTION interlock.key_family(type oid) RETURNS text
LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_key_family';
COMMENT ON FUNCTION interlock.key_family(oid) IS
    'bigint, uuid, text or bytea: what a key of this type (or domain) counts as; NULL if it cannot be a key';

CREATE FUNCTION interlock.system_identifier() RETURNS bigint
LANGUAGE C STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_system_identifier';
COMMENT ON FUNCTION interlock.system_identifier() IS 'system identifier of this server';
