// expire_fences(): anybody who meets a fence whose deadline has passed may have it opened.
//
// Opening it means to lock the shard's state, and rows of a move, until the transaction that does
// it ends. Were that the caller's transaction, whoever may connect could keep every mover waiting
// for as long as he likes. So it is done by a background worker, in a transaction of its own that
// ends at once; the caller only waits, and holds nothing afterwards. One worker at a time: calling
// this in a loop, or in many sessions, takes no more than that.
#include "pg.h"

extern "C" {
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
}

#include "ownership.h"
#include "table_scan.h"

using namespace interlock;

extern "C" {
PGDLLEXPORT void interlock_fence_opener(Datum database);
}

namespace {

// Columns of interlock.handoff; the order is that of sql/20-shard-tables.sql.
constexpr int handoff_move_id = 1, handoff_state = 3, handoff_until = 9;

constexpr int patience_ms = 3000, nap_ms = 5;

struct Moves {
    pg_uuid_t *ids;
    int count;
};

bool contains(const Moves &moves, const pg_uuid_t &id) {
    for (int i = 0; i < moves.count; ++i)
        if (std::memcmp(moves.ids[i].data, id.data, UUID_LEN) == 0) return true;
    return false;
}

// The fences whose time has passed, as of now, whatever the transaction's snapshot.
Moves expired_fences() {
    Moves found = {static_cast<pg_uuid_t *>(palloc(sizeof(pg_uuid_t))), 0};
    const TimestampTz now = GetCurrentTimestamp();
    const Oid schema = get_namespace_oid("interlock", false);
    scan_table(get_relname_relid("handoff", schema), nullptr, 0, nullptr,
               [&](const Datum *values, const bool *nulls) {
                   if (*VARDATA_ANY(DatumGetTextPP(values[handoff_state - 1])) != 'f' ||
                       nulls[handoff_until - 1] ||
                       DatumGetTimestampTz(values[handoff_until - 1]) > now)
                       return;
                   found.ids = static_cast<pg_uuid_t *>(repalloc(
                       found.ids, sizeof(pg_uuid_t) * (static_cast<std::size_t>(found.count) + 1)));
                   found.ids[found.count++] = *DatumGetUUIDP(values[handoff_move_id - 1]);
               });
    return found;
}

// Locks that SQL cannot ask for, else they would be held for ever by whoever likes to.
enum Turn : std::uint16_t { turn_of_caller = 1, turn_of_worker = 2 };

LOCKTAG turn_tag(Turn turn) {
    LOCKTAG tag;
    SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId,
                       get_extension_oid("interlock", false), turn);
    return tag;
}

bool take_turn(const LOCKTAG &tag) {
    return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

void nap() {
    WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, nap_ms, PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
}

BackgroundWorker opener() {
    BackgroundWorker worker = {};
    strlcpy(worker.bgw_name, "interlock fence opener", sizeof worker.bgw_name);
    strlcpy(worker.bgw_type, "interlock fence opener", sizeof worker.bgw_type);
    strlcpy(worker.bgw_library_name, "$libdir/interlock", sizeof worker.bgw_library_name);
    strlcpy(worker.bgw_function_name, "interlock_fence_opener", sizeof worker.bgw_function_name);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
    worker.bgw_notify_pid = MyProcPid;
    return worker;
}

// Returns when the worker has ended, or the time is up.
void run_opener(TimestampTz end) {
    BackgroundWorker worker = opener();
    BackgroundWorkerHandle *handle;
    while (!RegisterDynamicBackgroundWorker(&worker, &handle)) {
        if (GetCurrentTimestamp() >= end)
            ereport(ERROR,
                    (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                     errmsg("no background worker is free to open a fence"),
                     errhint("Increase max_worker_processes. The owner of extension interlock can "
                             "call interlock.open_expired_fences(), which needs none.")));
        nap();
    }
    pid_t pid;
    while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED && GetCurrentTimestamp() < end)
        nap();
}

ArrayType *array_of(const Moves &moves) {
    Datum *values =
        static_cast<Datum *>(palloc(sizeof(Datum) * (static_cast<std::size_t>(moves.count) + 1)));
    for (int i = 0; i < moves.count; ++i)
        values[i] = UUIDPGetDatum(&moves.ids[i]);
    return construct_array(values, moves.count, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR);
}

int by_bytes(const void *a, const void *b) {
    return std::memcmp(a, b, UUID_LEN);
}

}  // namespace

/// expire_fences() returns uuid[]: the moves whose fences were open when this returned and had
/// expired before. An error if one could not be opened.
INTERLOCK_FUNCTION(interlock_expire_fences) {
    const Moves before = expired_fences();
    // The usual case costs nothing.
    if (before.count == 0) PG_RETURN_ARRAYTYPE_P(array_of(before));
    PreventCommandDuringRecovery("interlock.expire_fences()");
    const Ownership &ownership = current_ownership();
    if (ownership.restored) refuse_restored_copy(ownership);

    const TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), patience_ms);
    const LOCKTAG turn = turn_tag(turn_of_caller);
    bool mine;
    while (!(mine = take_turn(turn)) && GetCurrentTimestamp() < end && expired_fences().count > 0)
        nap();
    if (mine) {
        if (expired_fences().count > 0) run_opener(end);
        LockRelease(&turn, ExclusiveLock, false);
    }
    const Moves left = expired_fences();
    Moves opened = {before.ids, 0};
    for (int i = 0; i < before.count; ++i)
        if (!contains(left, before.ids[i])) opened.ids[opened.count++] = before.ids[i];
    if (opened.count < before.count)
        ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
                        errmsg("%d fences that have expired could not be opened in time",
                               before.count - opened.count),
                        errdetail("Somebody else holds the lock on the shard's state.")));
    qsort(opened.ids, static_cast<std::size_t>(opened.count), sizeof(pg_uuid_t), by_bytes);
    PG_RETURN_ARRAYTYPE_P(array_of(opened));
}

/// The background worker.
void interlock_fence_opener(Datum database) {
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database), InvalidOid, 0);
    // Whatever the database's settings are. No standby is waited for: whoever writes behind the
    // fence, when it is open, waits for the standby that has his write, and so this before it.
    SetConfigOption("role", "none", PGC_SUSET, PGC_S_OVERRIDE);
    SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
    SetConfigOption("default_transaction_read_only", "off", PGC_SUSET, PGC_S_OVERRIDE);
    SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);
    const char *statement = "SELECT interlock.open_expired_fences()";
    StartTransactionCommand();
    // One that an impatient caller has left behind is at it.
    if (take_turn(turn_tag(turn_of_worker))) {
        PushActiveSnapshot(GetTransactionSnapshot());
        pgstat_report_activity(STATE_RUNNING, statement);
        SPI_connect();
        SPI_execute(statement, false, 0);
        SPI_finish();
        PopActiveSnapshot();
    }
    CommitTransactionCommand();
}
