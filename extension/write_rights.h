// Which fenced buckets this transaction may go on writing to.
//
// A fence waits for every transaction that held a lock for writing (or for locking rows) on a table
// of the keyspace when it came. Refusing the next statement of such a transaction would be an error
// for nothing. So a transaction may go on writing to a fenced bucket if, while it held such a lock,
// the bucket was owned: its lock is older than the fence, and it is waited for. That it remembers
// for the buckets that it has written to, and for all buckets once it has locked rows (SELECT FOR
// UPDATE): whoever locks a row means to write it, and which bucket the row is in is not known here.
//
// The lock must have been held all the time. A savepoint that is rolled back lets go of the locks
// taken since. As long as one that counts is left, it is older than all that was remembered since
// the savepoint, and nothing is lost; otherwise all is forgotten.
//
// Nobody waits for locks on rows that are taken behind the fence, and locking is no write that the
// guard would see. What they are for, that nobody changes the rows until the transaction ends, they
// do as long as the bucket is here. So a transaction that has taken them is refused at its end if a
// bucket has been given away meanwhile.
#pragma once

#include "ownership.h"

namespace interlock::write_rights {

#pragma GCC visibility push(hidden)
/// Marks what belongs to the transaction under way: another number in each. Never 0.
extern std::uint32_t epoch;

/// The first time in a transaction; see note_write().
void note_first_write(const Ownership &ownership, const Keyspace &keyspace, std::int32_t bucket);
#pragma GCC visibility pop

/// Follows the ends of transactions from now on. Once per process, before anything is noted.
void watch_transactions();

/// Remembers that this transaction writes to an owned bucket, if it holds a lock for writing on a
/// table of the keyspace: the guard's functions can be called by anybody, who need not write. (Only
/// tables given to shard_table() are looked at. Who writes to a partition by its own name has no
/// right to go on.)
inline void note_write(const Ownership &ownership, const Keyspace &keyspace, std::int32_t bucket) {
    if (unlikely(keyspace.rights->written[bucket] != epoch))
        note_first_write(ownership, keyspace, bucket);
}

/// Remembers that this transaction locks rows of tables of a statement that is about to run; behind
/// a fence, it is looked at again when it is about to commit.
void note_row_locks(const PlannedStmt *statement);

/// Whether the transaction, which finds the bucket fenced, may write to it all the same.
inline bool may_finish(const Keyspace &keyspace, std::int32_t bucket) {
    return keyspace.rights->written[bucket] == epoch;
}

/// Memory for the rights in a keyspace of that many buckets, none given.
WriteRights *make(std::int32_t buckets, MemoryContext context);

/// Brings what the transaction may do from an older copy of the state to a new one.
void take_over(const Keyspace &before, const Keyspace &after);

}  // namespace interlock::write_rights
