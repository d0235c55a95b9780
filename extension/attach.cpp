// The event trigger that keeps the guard and the outbox on the partitions and children of tables
// that have them.
#include "pg.h"

#include "ownership.h"

namespace interlock {

namespace {

// Calls an SQL function for a table and what was or has become its parent. Names are resolved as
// the statement did; the rest is done as the extension's owner, because whoever makes a partition
// may neither read the extension's tables nor own the parent.
void call_for(const char *command, const RangeVar *child, const RangeVar *parent) {
    Oid relids[2] = {RangeVarGetRelid(const_cast<RangeVar *>(child), NoLock, true), InvalidOid};
    if (parent != nullptr)
        relids[1] = RangeVarGetRelid(const_cast<RangeVar *>(parent), NoLock, true);
    if (!OidIsValid(relids[0])) return;

    Oid caller;
    int context;
    GetUserIdAndSecContext(&caller, &context);
    // Should this raise an error, the end of the (sub)transaction puts the caller back.
    SetUserIdAndSecContext(extension_owner(), context | SECURITY_LOCAL_USERID_CHANGE);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    Oid types[2] = {REGCLASSOID, REGCLASSOID};
    Datum values[2] = {ObjectIdGetDatum(relids[0]), ObjectIdGetDatum(relids[1])};
    if (SPI_execute_with_args(command, 2, types, values, nullptr, false, 0) != SPI_OK_SELECT)
        elog(ERROR, "SPI_execute failed: %s", command);
    SPI_finish();
    SetUserIdAndSecContext(caller, context);
}

void on_join(const RangeVar *child, const RangeVar *parent) {
    if (current_ownership().guarded_count > 0)
        call_for("SELECT interlock.guard_child($1), $2", child, parent);
    call_for("SELECT interlock.outbox_join($1, $2)", child, parent);
}

void on_leave(const RangeVar *child, const RangeVar *parent) {
    if (current_ownership().guarded_count > 0)
        call_for("SELECT interlock.unguard_child($1), $2", child, parent);
    call_for("SELECT interlock.outbox_leave($1, $2)", child, parent);
}

void on_create(const CreateStmt *create) {
    if (create->inhRelations != NIL) on_join(create->relation, nullptr);
}

// Only what makes a table the child of another, or ends that. Anything else must not attach
// triggers: restoring a dump runs ALTER TABLE too, in an order of its own.
void on_alter(const AlterTableStmt *alter) {
    ListCell *cell;
    foreach (cell, alter->cmds) {
        const AlterTableCmd *command = static_cast<const AlterTableCmd *>(lfirst(cell));
        const Node *definition = command->def;
        switch (command->subtype) {
        case AT_AddInherit:
            on_join(alter->relation, reinterpret_cast<const RangeVar *>(definition));
            break;
        case AT_DropInherit:
            on_leave(alter->relation, reinterpret_cast<const RangeVar *>(definition));
            break;
        case AT_AttachPartition:
            on_join(reinterpret_cast<const PartitionCmd *>(definition)->name, alter->relation);
            break;
        case AT_DetachPartition:
        case AT_DetachPartitionFinalize:
            on_leave(reinterpret_cast<const PartitionCmd *>(definition)->name, alter->relation);
            break;
        default: break;
        }
    }
}

void on_statement(const Node *statement) {
    switch (nodeTag(statement)) {
    case T_CreateStmt: on_create(reinterpret_cast<const CreateStmt *>(statement)); break;
    case T_CreateForeignTableStmt:
        on_create(&reinterpret_cast<const CreateForeignTableStmt *>(statement)->base);
        break;
    case T_AlterTableStmt: on_alter(reinterpret_cast<const AlterTableStmt *>(statement)); break;
    case T_CreateSchemaStmt: {
        ListCell *cell;
        foreach (cell, reinterpret_cast<const CreateSchemaStmt *>(statement)->schemaElts)
            on_statement(static_cast<const Node *>(lfirst(cell)));
        break;
    }
    default: break;
    }
}

}  // namespace

}  // namespace interlock

/// on_ddl() returns event_trigger: at the end of DDL that can make a table the child of another.
INTERLOCK_FUNCTION(interlock_on_ddl) {
    if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("not fired by event trigger manager")));
    const EventTriggerData *data = reinterpret_cast<const EventTriggerData *>(fcinfo->context);
    if (interlock::current_ownership().installed) interlock::on_statement(data->parsetree);
    PG_RETURN_NULL();
}
