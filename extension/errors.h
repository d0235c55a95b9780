// SQLSTATEs of our own: class IL, which the SQL standard leaves to implementations. Only what a
// client or a router branches on has one; everything else uses PostgreSQL's codes.
#pragma once

/// The bucket of the row is not this shard's (no record of it, moved away, or still being
/// imported).
#define ERRCODE_INTERLOCK_NOT_OWNED MAKE_SQLSTATE('I', 'L', '1', '0', '1')
/// The session's route version is older than the shard's floor.
#define ERRCODE_INTERLOCK_STALE_ROUTE MAKE_SQLSTATE('I', 'L', '1', '0', '2')
/// The bucket is fenced: being handed over, retry soon.
#define ERRCODE_INTERLOCK_FENCED MAKE_SQLSTATE('I', 'L', '1', '0', '3')
/// The database is a copy of a shard (restored, cloned) that nobody has declared to be the shard.
#define ERRCODE_INTERLOCK_RESTORED_COPY MAKE_SQLSTATE('I', 'L', '1', '0', '4')
/// TRUNCATE of a sharded table by a session that has not said it means it.
#define ERRCODE_INTERLOCK_TRUNCATE MAKE_SQLSTATE('I', 'L', '1', '0', '5')
/// Not a cursor of this keyset and scope: another's, an older declaration's, altered, cut.
#define ERRCODE_INTERLOCK_BAD_CURSOR MAKE_SQLSTATE('I', 'L', '2', '0', '1')
/// The page asked for is larger than the keyset allows.
#define ERRCODE_INTERLOCK_PAGE_TOO_LARGE MAKE_SQLSTATE('I', 'L', '2', '0', '2')
/// The sort columns do not end in a unique NOT NULL key.
#define ERRCODE_INTERLOCK_NOT_TOTAL_ORDER MAKE_SQLSTATE('I', 'L', '2', '0', '5')
