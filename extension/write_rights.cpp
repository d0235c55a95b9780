#include "pg.h"

#include "write_rights.h"

namespace interlock {

std::uint32_t write_rights::epoch = 1;

namespace {

using write_rights::epoch;

// The innermost subtransaction in which a lock was noted; that lock may be older, not younger.
SubTransactionId noted_in = InvalidSubTransactionId;

void next_epoch() {
    if (++epoch == 0) epoch = 1;
    noted_in = InvalidSubTransactionId;
}

void on_transaction(XactEvent event, void *) {
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        next_epoch();
}

void on_subtransaction(SubXactEvent event, SubTransactionId ended, SubTransactionId parent,
                       void *) {
    // Subtransactions that began inside it have larger numbers; those from before have smaller
    // ones.
    if (event == SUBXACT_EVENT_ABORT_SUB && noted_in >= ended) next_epoch();
    if (event == SUBXACT_EVENT_COMMIT_SUB && noted_in == ended) noted_in = parent;
}

bool holds(Oid relid, LOCKMODE mode) {
    LOCKTAG tag;
    SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
    return lock_held_by_me(&tag, mode);
}

void note_lock(std::uint32_t *mark) {
    *mark = epoch;
    noted_in = Max(noted_in, GetCurrentSubTransactionId());
}

}  // namespace

void write_rights::watch_transactions() {
    RegisterXactCallback(on_transaction, nullptr);
    RegisterSubXactCallback(on_subtransaction, nullptr);
}

void write_rights::note_first_write(const Ownership &ownership, const Keyspace &keyspace,
                                    std::int32_t bucket, Oid relid) {
    WriteRights *rights = keyspace.rights;
    for (int i = 0; rights->table_locked != epoch && i < ownership.guarded_count; ++i) {
        const GuardedTable &table = ownership.guarded[i];
        if (std::strcmp(table.keyspace, keyspace.name) == 0 && holds(table.relid, RowExclusiveLock))
            note_lock(&rights->table_locked);
    }
    // A partition or child that is written to by its own name. Anybody can put the guard's trigger
    // on a table of his own, which no fence looks at.
    if (rights->table_locked != epoch && OidIsValid(relid) && holds(relid, RowExclusiveLock)) {
        const GuardedTable *table = guarding(ownership, relid);
        if (table != nullptr && std::strcmp(table->keyspace, keyspace.name) == 0)
            note_lock(&rights->table_locked);
    }
    if (rights->table_locked == epoch) rights->written[bucket] = epoch;
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
        if (keyspace != nullptr && keyspace->rights != nullptr &&
            keyspace->rights->rows_locked != epoch)
            note_lock(&keyspace->rights->rows_locked);
    }
}

WriteRights *write_rights::make(std::int32_t buckets, MemoryContext context) {
    return static_cast<WriteRights *>(MemoryContextAllocZero(
        context, offsetof(WriteRights, written) +
                     sizeof(std::uint32_t) * static_cast<std::size_t>(buckets)));
}

void write_rights::take_over(const Keyspace &before, const Keyspace &after) {
    if (before.rights == nullptr || after.rights == nullptr || before.buckets != after.buckets)
        return;
    std::memcpy(after.rights, before.rights,
                offsetof(WriteRights, written) +
                    sizeof(std::uint32_t) * static_cast<std::size_t>(after.buckets));
    if (before.rights->rows_locked != epoch) return;
    for (std::int32_t bucket = 0; bucket < after.buckets; ++bucket)
        if (before.states[bucket] == BucketState::owned &&
            after.states[bucket] == BucketState::fenced)
            after.rights->written[bucket] = epoch;
}

}  // namespace interlock
