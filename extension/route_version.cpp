#include "pg.h"

#include "errors.h"
#include "guc.h"
#include "ownership.h"
#include "route_version.h"
#include "write_rights.h"

namespace interlock {

namespace {

ExecutorStart_hook_type previous_executor_start = nullptr;
ProcessUtility_hook_type previous_process_utility = nullptr;

[[noreturn]] void refuse(const Ownership &ownership, Oid relid) {
    ereport(ERROR, (errcode(ERRCODE_INTERLOCK_STALE_ROUTE),
                    errmsg("route version %d is older than floor %d of shard \"%s\"",
                           guc::route_version, ownership.floor, ownership.shard),
                    OidIsValid(relid)
                        ? errdetail("The statement uses sharded table \"%s\".", get_rel_name(relid))
                        : 0,
                    errhint("Load the current routes, then send the statement again.")));
    pg_unreachable();
}

// True when the session's routes are older than the shard's floor: an integer comparison, unless
// the state has just changed. Parallel workers do what their leader was allowed to.
bool stale(const Ownership **ownership) {
    if (likely(guc::route_version == 0) || IsParallelWorker()) return false;
    *ownership = &current_ownership();
    return unlikely(guc::route_version < (*ownership)->floor);
}

void check_relation(const Ownership &ownership, Oid relid) {
    if (OidIsValid(relid) && is_guarded(ownership, relid)) refuse(ownership, relid);
}

void on_executor_start(QueryDesc *query, int flags) {
    const Ownership *ownership;
    if (stale(&ownership)) {
        ListCell *cell;
        foreach (cell, query->plannedstmt->rtable) {
            const RangeTblEntry *entry = static_cast<const RangeTblEntry *>(lfirst(cell));
            if (entry->rtekind == RTE_RELATION) check_relation(*ownership, entry->relid);
        }
    }
    if (unlikely(query->plannedstmt->rowMarks != NIL) && !IsParallelWorker())
        write_rights::note_row_locks(query->plannedstmt);
    if (previous_executor_start != nullptr)
        previous_executor_start(query, flags);
    else
        standard_ExecutorStart(query, flags);
}

// COPY of a table and TRUNCATE do not start the executor.
void check_utility(const Node *statement) {
    const Ownership *ownership;
    if (IsA(statement, CopyStmt)) {
        const CopyStmt *copy = reinterpret_cast<const CopyStmt *>(statement);
        if (copy->relation != nullptr && stale(&ownership))
            check_relation(*ownership, RangeVarGetRelid(copy->relation, NoLock, true));
    } else if (IsA(statement, TruncateStmt)) {
        if (!stale(&ownership)) return;
        ListCell *cell;
        foreach (cell, reinterpret_cast<const TruncateStmt *>(statement)->relations)
            check_relation(*ownership,
                           RangeVarGetRelid(static_cast<RangeVar *>(lfirst(cell)), NoLock, true));
    }
}

void on_process_utility(PlannedStmt *statement, const char *query, bool read_only_tree,
                        ProcessUtilityContext context, ParamListInfo parameters,
                        QueryEnvironment *environment, DestReceiver *receiver,
                        QueryCompletion *completion) {
    check_utility(statement->utilityStmt);
    if (previous_process_utility != nullptr)
        previous_process_utility(statement, query, read_only_tree, context, parameters, environment,
                                 receiver, completion);
    else
        standard_ProcessUtility(statement, query, read_only_tree, context, parameters, environment,
                                receiver, completion);
}

}  // namespace

void require_current_routes(const Ownership &ownership, Oid relid) {
    if (unlikely(guc::route_version != 0 && guc::route_version < ownership.floor))
        refuse(ownership, relid);
}

void install_route_version_check() {
    previous_executor_start = ExecutorStart_hook;
    ExecutorStart_hook = on_executor_start;
    previous_process_utility = ProcessUtility_hook;
    ProcessUtility_hook = on_process_utility;
}

}  // namespace interlock
