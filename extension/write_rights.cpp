#include "pg.h"

#include "guc.h"
#include "write_rights.h"

namespace interlock {

std::uint32_t write_rights::epoch = 1;

namespace {

using write_rights::epoch;

std::size_t size_for(std::int32_t buckets) {
    return offsetof(WriteRights, written) +
           sizeof(std::uint32_t) * static_cast<std::size_t>(buckets);
}

// The transaction that last locked rows behind a fence.
std::uint32_t behind_a_fence = 0;

bool fenced_without_right(const Keyspace &keyspace) {
    for (std::int32_t bucket = 0; keyspace.shut > 0 && bucket < keyspace.buckets; ++bucket)
        if (keyspace.states[bucket] == BucketState::fenced &&
            keyspace.rights->written[bucket] != epoch)
            return true;
    return false;
}

// Nobody has waited for the locks of this transaction. If the shard has given a bucket away since
// its routes were made, somebody else may have changed at the new owner what was locked here. A
// transaction that is prepared keeps its locks, and for how long nobody knows: it is refused while
// the fence is there.
void refuse_lost_row_locks(XactEvent event) {
    if (likely(behind_a_fence != epoch)) return;
    const Ownership &ownership = current_ownership();
    for (int i = 0; i < ownership.keyspace_count; ++i) {
        const Keyspace &keyspace = ownership.keyspaces[i];
        if (keyspace.rights == nullptr || keyspace.rights->behind.epoch != epoch) continue;
        const bool stale = guc::route_version != 0 && guc::route_version < ownership.floor;
        if (!stale && (event == XACT_EVENT_PRE_COMMIT || !fenced_without_right(keyspace))) continue;
        ereport(ERROR,
                (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                 errmsg("rows of keyspace \"%s\" were locked while a bucket was being handed over "
                        "(%s)",
                        keyspace.name, stale ? "IL102" : "IL103"),
                 stale
                     ? errdetail("Route version %d is older than floor %d of shard \"%s\": others "
                                 "may have changed these rows at another shard.",
                                 guc::route_version, ownership.floor, ownership.shard)
                     : errdetail("A prepared transaction would hold the locks when the bucket "
                                 "has gone."),
                 errhint("Run the transaction again.")));
    }
}

void on_transaction(XactEvent event, void *) {
    if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
        refuse_lost_row_locks(event);
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        if (++epoch == 0) epoch = 1;
}

template <typename Visit>
void for_each_lock(Visit visit) {
    const Ownership &ownership = ownership_copy::current;
    for (int i = 0; i < ownership.keyspace_count; ++i)
        if (WriteRights *rights = ownership.keyspaces[i].rights) {
            visit(&rights->table);
            visit(&rights->rows);
            visit(&rights->behind);
        }
}

// Subtransactions that began inside the one that ends have larger numbers, older ones smaller.
void on_subtransaction(SubXactEvent event, SubTransactionId ended, SubTransactionId parent,
                       void *) {
    if (event == SUBXACT_EVENT_COMMIT_SUB)
        for_each_lock([&](WriteRights::Lock *lock) {
            if (lock->epoch == epoch && lock->found_in == ended) lock->found_in = parent;
        });
    if (event != SUBXACT_EVENT_ABORT_SUB) return;
    for_each_lock([&](WriteRights::Lock *lock) {
        if (lock->epoch == epoch && lock->found_in >= ended) lock->epoch = 0;
    });
    const Ownership &ownership = ownership_copy::current;
    for (int i = 0; i < ownership.keyspace_count; ++i) {
        WriteRights *rights = ownership.keyspaces[i].rights;
        if (rights != nullptr && rights->table.epoch != epoch && rights->rows.epoch != epoch)
            std::memset(rights, 0, size_for(ownership.keyspaces[i].buckets));
    }
}

bool holds(Oid relid, LOCKMODE mode) {
    LOCKTAG tag;
    SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
    return lock_held_by_me(&tag, mode);
}

void note(WriteRights::Lock *lock) {
    *lock = {epoch, GetCurrentSubTransactionId()};
}

}  // namespace

void write_rights::watch_transactions() {
    RegisterXactCallback(on_transaction, nullptr);
    RegisterSubXactCallback(on_subtransaction, nullptr);
}

void write_rights::note_first_write(const Ownership &ownership, const Keyspace &keyspace,
                                    std::int32_t bucket) {
    WriteRights *rights = keyspace.rights;
    for (int i = 0; rights->table.epoch != epoch && i < ownership.guarded_count; ++i) {
        const GuardedTable &table = ownership.guarded[i];
        if (std::strcmp(table.keyspace, keyspace.name) == 0 && holds(table.relid, RowExclusiveLock))
            note(&rights->table);
    }
    if (rights->table.epoch == epoch) rights->written[bucket] = epoch;
}

void write_rights::note_row_locks(const PlannedStmt *statement) {
    const Ownership &ownership = current_ownership();
    if (ownership.guarded_count == 0 || !ownership.writable) return;
    ListCell *cell;
    foreach (cell, statement->rowMarks) {
        const PlanRowMark *mark = static_cast<const PlanRowMark *>(lfirst(cell));
        if (!RowMarkRequiresRowShareLock(mark->markType)) continue;
        const Oid relid = rt_fetch(mark->rti, statement->rtable)->relid;
        if (!OidIsValid(relid) || !holds(relid, RowShareLock)) continue;
        const GuardedTable *table = guarding(ownership, relid);
        const Keyspace *keyspace =
            table == nullptr ? nullptr : find_keyspace(ownership, table->keyspace);
        if (keyspace == nullptr || keyspace->rights == nullptr) continue;
        if (keyspace->rights->rows.epoch != epoch) note(&keyspace->rights->rows);
        // Only of sessions with routes: others read here what they like, and are not told. A
        // statement by itself has let go of its locks before anybody could rely on them.
        if (unlikely(keyspace->shut > 0) && guc::route_version != 0 && IsTransactionBlock() &&
            keyspace->rights->behind.epoch != epoch && fenced_without_right(*keyspace)) {
            note(&keyspace->rights->behind);
            behind_a_fence = epoch;
        }
    }
}

WriteRights *write_rights::make(std::int32_t buckets, MemoryContext context) {
    return static_cast<WriteRights *>(MemoryContextAllocZero(context, size_for(buckets)));
}

void write_rights::take_over(const Keyspace &before, const Keyspace &after) {
    if (before.rights == nullptr || after.rights == nullptr || before.buckets != after.buckets)
        return;
    std::memcpy(after.rights, before.rights, size_for(after.buckets));
    if (before.rights->rows.epoch != epoch) return;
    for (std::int32_t bucket = 0; bucket < after.buckets; ++bucket)
        if (before.states[bucket] == BucketState::owned &&
            after.states[bucket] == BucketState::fenced)
            after.rights->written[bucket] = epoch;
}

}  // namespace interlock
