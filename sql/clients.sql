-- Users of the routers' PostgreSQL listener, and what a router gets to know of them.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
SELECT interlock.add_client('alice');
\echo SQLSTATE :SQLSTATE
SELECT interlock.create_cluster('bank') IS NOT NULL AS created;
CREATE ROLE regress_router;
SELECT interlock.grant_router('regress_router');
SET password_encryption = 'scram-sha-256';

-- a verifier and a role on the shards, either, or neither; the same name again replaces them
\set alice 'SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU='
SELECT interlock.add_client('alice', :'alice', 'shop_app'), interlock.add_client('bob', :'alice'), interlock.add_client('carol');
SELECT interlock.add_client('carol', backend_login => 'shop_app');
SELECT name, verifier = :'alice' AS verifier, backend_login FROM interlock.client_user ORDER BY name;

-- what cannot be one
SELECT interlock.add_client(NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_client('');
SELECT interlock.add_client(repeat('x', 64));
SELECT interlock.add_client('dave', backend_login => '');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_client('dave', 'secret');
\echo SQLSTATE :SQLSTATE
SELECT interlock.add_client('dave', 'md5' || md5('secretdave'));
SELECT interlock.add_client('dave', replace(:'alice', '4096', '0'));
SELECT interlock.add_client('dave', :'alice' || ' ');
SELECT interlock.add_client('dave', replace(:'alice', 'wfPL', 'wf'));

-- what a router is told: the client user first, then the role of that name, if it may log in
CREATE ROLE regress_login LOGIN PASSWORD 'p';
CREATE ROLE regress_group PASSWORD 'p';
CREATE ROLE regress_expired LOGIN PASSWORD 'p' VALID UNTIL '2000-01-01';
CREATE ROLE regress_valid LOGIN PASSWORD 'p' VALID UNTIL 'infinity';
CREATE ROLE regress_none LOGIN;
CREATE ROLE regress_super LOGIN SUPERUSER PASSWORD 'p';
CREATE ROLE regress_replica LOGIN REPLICATION PASSWORD 'p';
SET password_encryption = 'md5';
CREATE ROLE regress_md5 LOGIN PASSWORD 'p';
RESET password_encryption;
SELECT interlock.add_client('regress_valid', :'alice'), interlock.add_client('regress_login', backend_login => 'shop_app');
SET ROLE regress_router;
SELECT name, c.verifier = :'alice' AS own, left(c.verifier, 19) AS verifier, c.backend_login
  FROM unnest(ARRAY['alice', 'bob', 'carol', 'nobody', '', 'regress_login', 'regress_group', 'regress_expired', 'regress_valid',
                    'regress_none', 'regress_super', 'regress_replica', 'regress_md5']) AS name
  LEFT JOIN interlock.client_verifier(name) AS c ON true;
SELECT count(*) FROM interlock.client_verifier(NULL);
-- ... and nothing else, not by another way
SELECT * FROM interlock.client_user;
SELECT interlock.add_client('mallory', :'alice');
SELECT interlock.remove_client('alice');
CREATE TEMP TABLE client_user (name text, verifier text, backend_login text);
INSERT INTO client_user VALUES ('mallory', 'known', 'postgres');
SET search_path = pg_temp, interlock;
SELECT count(*) FROM interlock.client_verifier('mallory');
DROP TABLE pg_temp.client_user;
RESET search_path;
RESET ROLE;
SET ROLE regress_none;
SELECT * FROM interlock.client_verifier('alice');
\echo SQLSTATE :SQLSTATE
RESET ROLE;

-- users are no part of a route version
SELECT interlock.remove_client('alice'), interlock.remove_client('carol');
SELECT interlock.remove_client('alice');
\echo SQLSTATE :SQLSTATE
SELECT count(*) FROM interlock.client_verifier('alice');
SELECT name FROM interlock.client_user ORDER BY name;
DROP EXTENSION interlock;
DROP ROLE regress_router, regress_login, regress_group, regress_expired, regress_valid, regress_none, regress_super, regress_replica, regress_md5;
CREATE EXTENSION interlock;
