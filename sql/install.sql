-- Creating and dropping the extension; what it consists of, and who may do what with it.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;

-- every object has a comment
SELECT pg_describe_object(d.classid, d.objid, 0) AS "without a comment"
  FROM pg_depend d
 WHERE d.refclassid = 'pg_extension'::regclass
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'interlock')
   AND d.deptype = 'e'
   AND d.classid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_event_trigger'::regclass, 'pg_namespace'::regclass)
   AND NOT EXISTS (SELECT FROM pg_class c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind NOT IN ('r', 'v'))
   AND coalesce(CASE d.classid WHEN 'pg_namespace'::regclass THEN obj_description(d.objid, 'pg_namespace')
                               WHEN 'pg_class'::regclass THEN obj_description(d.objid, 'pg_class')
                               WHEN 'pg_proc'::regclass THEN obj_description(d.objid, 'pg_proc')
                               ELSE obj_description(d.objid, 'pg_event_trigger') END, '') = ''
 ORDER BY 1;

-- what everybody may execute, and that nothing else is open to them
SELECT p.oid::regprocedure AS "executable by public"
  FROM pg_proc p
 WHERE p.pronamespace = 'interlock'::regnamespace
   AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)
 ORDER BY p.oid::regprocedure::text COLLATE "C";
SELECT c.oid::regclass AS "open to public"
  FROM pg_class c
 WHERE c.relnamespace = 'interlock'::regnamespace
   AND EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = 0);

-- functions: volatility, strictness, parallel safety, and a pinned search_path wherever SQL is run
SELECT p.oid::regprocedure AS function, l.lanname AS language, p.provolatile AS v, p.proisstrict AS s, p.proparallel AS p,
       p.prosecdef AS d, p.proconfig AS settings
  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
 WHERE p.pronamespace = 'interlock'::regnamespace
 ORDER BY p.oid::regprocedure::text COLLATE "C";

-- tables survive pg_dump with their rows
SELECT c.oid::regclass AS "dumped with its rows"
  FROM pg_extension e, unnest(e.extconfig) AS c(oid)
 WHERE e.extname = 'interlock' ORDER BY c.oid::regclass::text COLLATE "C";
SELECT c.oid::regclass AS "not dumped"
  FROM pg_class c, pg_extension e
 WHERE c.relnamespace = 'interlock'::regnamespace AND c.relkind IN ('r', 'S') AND e.extname = 'interlock'
   AND c.oid <> ALL (e.extconfig) ORDER BY c.oid::regclass::text COLLATE "C";

-- settings
SHOW interlock.route_version;
SHOW interlock.allow_truncate;
SHOW interlock.moving_rows;
SHOW interlock.scatter;
SHOW interlock.partial_pages;
SHOW interlock.max_fan_out;
SHOW interlock.page_timeout;
SET interlock.route_version = -1;
SET interlock.max_fan_out = 1001;
SET interlock.page_timeout = '-1s';
SET interlock.page_timeout = '3s';
SHOW interlock.page_timeout;
RESET interlock.page_timeout;
SET interlock.nonsense = 1;
\echo SQLSTATE :SQLSTATE

-- in a database that is neither catalog nor shard, everything says so or is silent
SELECT cluster_id, shard, floor, restored, catalog_first, extension_version FROM interlock.greet(0);
SELECT * FROM interlock.bucket_states;
SELECT * FROM interlock.shards;
SELECT * FROM interlock.check_guards();
SELECT interlock.bucket_of('nowhere', 1);
SELECT interlock.greet(NULL);
SELECT interlock.greet(-1);

-- the extension stays where it is
ALTER EXTENSION interlock SET SCHEMA public;
DROP SCHEMA interlock;

-- a schema of that name which somebody else made beforehand is not taken over
DROP EXTENSION interlock;
CREATE ROLE regress_squatter;
CREATE SCHEMA interlock AUTHORIZATION regress_squatter;
CREATE EXTENSION interlock;
\echo SQLSTATE :SQLSTATE
DROP SCHEMA interlock;
DROP ROLE regress_squatter;

-- the library is loaded and the extension is gone: statements go on
SET interlock.route_version = 1;
CREATE TABLE plain (a int);
INSERT INTO plain VALUES (1);
SELECT * FROM plain;
COPY plain TO STDOUT;
TRUNCATE plain;
RESET interlock.route_version;

-- and again
CREATE EXTENSION interlock;
SELECT interlock.hash_key(1);
DROP TABLE plain;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
