-- Functions that statements may call: declared by name, published with the route version.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.declare_function('total');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_cluster('bank') IS NOT NULL AS created;
SELECT interlock.add_shard('s0', 'host=a'), interlock.create_keyspace('account', 'bigint', 2), interlock.assign('account', '{0,1}', 's0');
SELECT interlock.publish();

-- names as SQL reads them; the function itself is on the shards and need not exist here
SELECT interlock.declare_function('Total'), interlock.declare_function('shop."Gross"'), interlock.declare_function('shop.net');
SELECT interlock.declare_function('public.total');
SELECT * FROM interlock.declared_function ORDER BY 1, 2;

-- what is no name, and what the router knows by itself
SELECT interlock.declare_function(NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.declare_function('');
SELECT interlock.declare_function('a.b.c');
\echo SQLSTATE :SQLSTATE
SELECT interlock.declare_function('total(integer)');
SELECT interlock.declare_function('pg_catalog.set_config');
\echo SQLSTATE :SQLSTATE
SELECT interlock.declare_function('information_schema._pg_truetypid');

-- staged until published
SELECT interlock.declarations_changed();
SELECT declarations -> 'functions' AS functions FROM interlock.route_version ORDER BY version DESC LIMIT 1;
SELECT interlock.publish();
SELECT interlock.declarations_changed();
SELECT jsonb_pretty(declarations -> 'functions') AS functions FROM interlock.route_version ORDER BY version DESC LIMIT 1;
SELECT interlock.undeclare_function('shop."Gross"');
SELECT interlock.declarations_changed();
SELECT interlock.publish();
SELECT interlock.undeclare_function('shop.gross');
\echo SQLSTATE :SQLSTATE
SELECT * FROM interlock.declared_function ORDER BY 1, 2;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
