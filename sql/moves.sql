-- Moves as the catalog keeps them: records, artefacts, reserved numbers, announcements, publication.
\set SHOW_CONTEXT never
DROP EXTENSION IF EXISTS interlock CASCADE;
CREATE EXTENSION interlock;
\set m1 '''00000000-0000-0000-0000-0000000000a1'''
\set m2 '''00000000-0000-0000-0000-0000000000a2'''
\set m3 '''00000000-0000-0000-0000-0000000000a3'''
\set m4 '''00000000-0000-0000-0000-0000000000a4'''
CREATE VIEW here AS SELECT route_version AS current, last_version AS last, reserved_version AS reserved,
       right(reserved_move::text, 2) AS by, announcement AS told FROM interlock.cluster;
CREATE VIEW record AS SELECT right(id::text, 2) AS id, keyspace, buckets, from_shard AS source, to_shard AS target, step, route_version AS v,
       announced AS a, finished IS NOT NULL AS finished, outcome, error, progress FROM interlock.moves ORDER BY began;
CREATE VIEW owners AS SELECT shard, array_agg(bucket ORDER BY bucket) AS buckets FROM interlock.routes WHERE keyspace = 'account' GROUP BY shard ORDER BY shard;

-- without a cluster there are no moves
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.reserve_version(NULL);
\echo SQLSTATE :SQLSTATE

SELECT interlock.create_cluster('bank') IS NOT NULL AS created;
SELECT interlock.add_shard('s0', 'host=a'), interlock.add_shard('s1', 'host=b'), interlock.add_index_database('idx', 'host=c'),
       interlock.create_keyspace('account', 'bigint', 8), interlock.create_keyspace('word', 'text', 4);
SELECT interlock.assign('account', '{0,1,2,3}', 's0'), interlock.assign('account', '{4,5,6,7}', 's1'), interlock.assign('word', '{0,1,2,3}', 's1');
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish('first');

-- what is wrong is refused
SELECT interlock.begin_move(NULL, 'account', '{1}', 's0', 's1');
SELECT interlock.begin_move(:m1, 'nowhere', '{1}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_move(:m1, 'account', '{1}', 's9', 's1');
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's9');
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 'idx');
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's0');
SELECT interlock.begin_move(:m1, 'account', '{1,8}', 's0', 's1');
SELECT interlock.begin_move(:m1, 'account', '{1,NULL}', 's0', 's1');
SELECT interlock.begin_move(:m1, 'account', NULL, 's0', 's1');
SELECT interlock.begin_move(:m1, 'account', '{}', 's0', 's1');
SELECT interlock.begin_move(:m1, 'account', '{1,4}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('account', '{3}', 's1');
SELECT interlock.begin_move(:m1, 'account', '{1,3}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('account', '{3}', 's0');
SELECT interlock.add_shard('s2', 'host=d');
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's2');
\echo SQLSTATE :SQLSTATE
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
ROLLBACK;
SELECT * FROM record;

-- a move is begun once; another that is already begun is another one
SELECT interlock.begin_move(:m1, 'account', '{2,1,2}', 's0', 's1', '{"rate": 1000}');
SELECT interlock.begin_move(:m1, 'account', '{1,2}', 's0', 's1');
SELECT interlock.begin_move(:m1, 'account', '{1}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_move(:m2, 'account', '{2,3}', 's0', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_move(:m2, 'word', '{1,2}', 's1', 's0');
SELECT * FROM record;
SELECT options FROM interlock.move ORDER BY began;
-- meanwhile its buckets are the move's
SELECT interlock.assign('account', '{0,1}', 's1');
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('account', '{0,1,2}', 's0'), interlock.assign('account', '{0}', 's1');
SELECT interlock.publish('on purpose', NULL, true);
UPDATE interlock.assignment SET shard = (SELECT id FROM interlock.shard WHERE name = 's1') WHERE bucket = 2 AND keyspace = 1;
SELECT interlock.publish('on purpose', NULL, true);
\echo SQLSTATE :SQLSTATE
SELECT interlock.assign('account', '{2}', 's0');

-- steps
SELECT interlock.record_step(:m1, 'copied', '{"rows": 5}', 'lost the connection');
SELECT * FROM record;
SELECT interlock.record_step(:m1, 'subscribed');
SELECT * FROM record;
SELECT interlock.record_step(:m3, 'copied');
\echo SQLSTATE :SQLSTATE
SELECT interlock.record_step(NULL, 'copied');
SELECT interlock.record_step(:m1, NULL), interlock.record_step(:m1, '');
\echo SQLSTATE :SQLSTATE

-- artefacts: recorded once, and forgotten
SELECT interlock.record_artefact(:m1, 's0', 'slot', 'a'), interlock.record_artefact(:m1, 's0', 'slot', 'a'), interlock.record_artefact(:m1, 's1', 'rows', 'account');
SELECT interlock.record_artefact(:m1, 's9', 'slot', 'a');
SELECT interlock.record_artefact(:m1, 's0', 'thing', 'a');
SELECT interlock.record_artefact(:m3, 's0', 'slot', 'a');
SELECT s.name, a.kind, a.name FROM interlock.move_artefact a JOIN interlock.shard s ON s.id = a.shard ORDER BY a.recorded_at;

-- numbers: one holder at a time, never one twice
SELECT interlock.announce_move(:m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish_move(:m1);
\echo SQLSTATE :SQLSTATE
SELECT * FROM here;
SELECT interlock.reserve_version(:m1), interlock.reserve_version(:m1);
SELECT * FROM here;
SELECT interlock.reserve_version(:m2);
\echo SQLSTATE :SQLSTATE
SELECT interlock.reserve_version(NULL);
\echo SQLSTATE :SQLSTATE
SELECT interlock.reserve_version(:m3);
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish(expected_version => 3);
SELECT interlock.publish(expected_version => 4, allow_owner_change => true);
-- announced, and withdrawn
SELECT * FROM interlock.announced_move;
SELECT interlock.announce_move(:m1);
SELECT interlock.announce_move(:m1);
SELECT route_version, right(id::text, 2) AS id, keyspace, buckets, from_shard, to_shard FROM interlock.announced_move;
SELECT * FROM here;
SELECT interlock.finish_move(:m1, 'aborted');
\echo SQLSTATE :SQLSTATE
SELECT interlock.withdraw_version(:m2), interlock.withdraw_version(NULL);
SELECT * FROM here;
SELECT interlock.withdraw_version(:m1);
SELECT interlock.withdraw_version(:m1);
SELECT * FROM here;
SELECT * FROM interlock.announced_move;
SELECT id, v, a FROM record;
-- the number is gone for good
SELECT interlock.publish(expected_version => 3);
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish('after a burnt number', expected_version => 4);
SELECT interlock.reserve_version(:m1);

-- what a move publishes is what was published, with its buckets elsewhere; what is staged stays staged
SELECT interlock.announce_move(:m1);
SELECT interlock.set_shard_conninfo('s1', 'host=staged'), interlock.assign('account', '{7}', 's0'), interlock.declare_table('account', 'account', 'account_id');
SELECT * FROM owners;
SELECT interlock.publish_move(:m1), interlock.publish_move(:m1);
SELECT * FROM here;
SELECT * FROM interlock.announced_move;
SELECT * FROM owners;
SELECT version, note LIKE 'move %' AS by_move, is_current FROM interlock.route_versions ORDER BY version;
SELECT a.declarations = b.declarations AS same FROM interlock.route_version a, interlock.route_version b WHERE a.version = 5 AND b.version = 4;
SELECT bucket, s.name AS staged FROM interlock.assignment a JOIN interlock.shard s ON s.id = a.shard WHERE keyspace = 1 AND bucket IN (1, 2, 3, 7) ORDER BY bucket;
SELECT v.version, count(*) AS buckets FROM interlock.route_version v
  JOIN interlock.route r ON r.valid_from <= v.version AND (r.valid_to IS NULL OR r.valid_to > v.version) GROUP BY v.version ORDER BY v.version;
SELECT name, min_floor FROM interlock.shard_floors ORDER BY name;
SELECT interlock.declarations_changed();
SELECT interlock.reserve_version(:m1);
\echo SQLSTATE :SQLSTATE
SELECT interlock.withdraw_version(:m1);
\echo SQLSTATE :SQLSTATE
-- until the move is over, its buckets go nowhere else
SELECT interlock.assign('account', '{1}', 's0');
SELECT interlock.begin_move(:m3, 'account', '{1}', 's1', 's0');

-- the end
SELECT interlock.finish_move(:m1, 'done');
\echo SQLSTATE :SQLSTATE
SELECT interlock.forget_artefact(:m1, 's0', 'slot', 'a'), interlock.forget_artefact(:m1, 's0', 'slot', 'a'), interlock.forget_artefact(:m1, 's1', 'rows', 'account');
SELECT interlock.finish_move(:m1, 'aborted');
\echo SQLSTATE :SQLSTATE
SELECT interlock.finish_move(:m1, 'over');
SELECT interlock.finish_move(:m1, NULL);
SELECT interlock.finish_move(:m2, 'done');
\echo SQLSTATE :SQLSTATE
SELECT interlock.finish_move(:m1, 'done');
SELECT interlock.finish_move(:m1, 'done');
SELECT interlock.finish_move(:m1, 'aborted');
\echo SQLSTATE :SQLSTATE
SELECT interlock.record_step(:m1, 'cleaned');
\echo SQLSTATE :SQLSTATE
SELECT interlock.record_artefact(:m1, 's0', 'slot', 'b');
SELECT interlock.begin_move(:m1, 'account', '{1,2}', 's0', 's1');
SELECT interlock.publish_move(:m1);
SELECT interlock.finish_move(:m2, 'aborted');
SELECT * FROM record;
-- and back at once
SELECT interlock.begin_move(:m3, 'account', '{1}', 's1', 's0');
SELECT interlock.reserve_version(:m3), interlock.publish_move(:m3), interlock.finish_move(:m3, 'done');
SELECT * FROM here;
SELECT bucket, s.name AS shard, valid_from, valid_to FROM interlock.route r JOIN interlock.shard s ON s.id = r.shard WHERE keyspace = 1 AND bucket IN (1, 2) ORDER BY bucket, valid_from;
SELECT name, min_floor FROM interlock.shard_floors ORDER BY name;

-- what an apply reserves is published under its name only
SELECT interlock.assign('account', '{7}', 's1');
SELECT interlock.reserve_version(NULL), interlock.reserve_version(NULL);
SELECT * FROM here;
SELECT interlock.publish();
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish(expected_version => 8);
\echo SQLSTATE :SQLSTATE
SELECT interlock.begin_move(:m4, 'account', '{1}', 's0', 's1');
SELECT interlock.reserve_version(:m4);
\echo SQLSTATE :SQLSTATE
SELECT interlock.publish('apply', 7);
SELECT interlock.publish('apply', 7);
SELECT * FROM here;
SELECT interlock.reserve_version(NULL), interlock.withdraw_version(NULL), interlock.withdraw_version(NULL);
SELECT * FROM here;
SELECT interlock.publish('after a burnt number', 9);

-- shards stay while a move has to do with them
SELECT interlock.finish_move(:m4, 'aborted');
SELECT interlock.begin_move('00000000-0000-0000-0000-0000000000a5', 'account', '{1}', 's0', 's2');
DELETE FROM interlock.shard WHERE name = 's2';
\echo SQLSTATE :SQLSTATE
SELECT interlock.finish_move('00000000-0000-0000-0000-0000000000a5', 'aborted');
DELETE FROM interlock.shard WHERE name = 's2';
SELECT id, source, target, outcome FROM record;

-- a router may see what it needs, and nobody else anything
CREATE ROLE regress_router;
SET ROLE regress_router;
SELECT * FROM interlock.announced_move;
SELECT * FROM interlock.moves;
SELECT interlock.reserve_version(NULL);
SELECT interlock.publish_move(:m1);
RESET ROLE;
SELECT interlock.grant_router('regress_router');
SET ROLE regress_router;
SELECT count(*) FROM interlock.announced_move;
SELECT count(*) FROM interlock.moves;
SELECT name, min_floor FROM interlock.shard_floors ORDER BY name;
SELECT interlock.reserve_version(NULL);
UPDATE interlock.move SET step = 'done';
RESET ROLE;
DROP OWNED BY regress_router;
DROP ROLE regress_router;
DROP VIEW here, record, owners;
DROP EXTENSION interlock;
CREATE EXTENSION interlock;
