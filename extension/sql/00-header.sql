-- interlock 0.1: sharding for PostgreSQL that refuses to be silently wrong.
\echo Use "CREATE EXTENSION interlock" to load this file. \quit

-- Part of the extension, so that it goes when the extension goes, and so that a schema which somebody
-- made beforehand is never taken over with whatever they put into it. (The control file names pg_catalog,
-- as the place of nothing at all.)
CREATE SCHEMA interlock;
COMMENT ON SCHEMA interlock IS 'Interlock: catalog of the cluster, and what this database knows of its own part in it';
-- Functions that everybody may call live here; each table and function says who may use it.
GRANT USAGE ON SCHEMA interlock TO PUBLIC;
