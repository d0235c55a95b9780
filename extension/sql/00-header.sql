-- interlock 0.1: sharding for PostgreSQL that refuses to be silently wrong.
\echo Use "CREATE EXTENSION interlock" to load this file. \quit

-- A schema that somebody made beforehand would be used as it is, with whatever they put into it.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
                WHERE n.nspname = 'interlock' AND NOT r.rolsuper) THEN
        RAISE EXCEPTION 'schema "interlock" exists and does not belong to a superuser'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Rename or drop the schema first.';
    END IF;
END
$$;

COMMENT ON SCHEMA interlock IS 'Interlock: catalog of the cluster, and what this database knows of its own part in it';
-- Functions that everybody may call live here; each table and function says who may use it.
GRANT USAGE ON SCHEMA interlock TO PUBLIC;
