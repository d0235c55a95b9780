// The event trigger that keeps the guard on the partitions and children of guarded tables.
#include "pg.h"

#include "ownership.h"

namespace interlock {

namespace {

// Calls interlock.<function>(regclass) for a table. The name is resolved as the statement did; the
// rest is done as the extension's owner, because whoever makes a partition may neither read the
// extension's tables nor own the parent.
void call_for(const char *command, const RangeVar *name) {
    const Oid relid = RangeVarGetRelid(const_cast<RangeVar *>(name), NoLock, true);
    if (!OidIsValid(relid)) return;

    Oid caller;
    int context;
    GetUserIdAndSecContext(&caller, &context);
    // Should this raise an error, the end of the (sub)transaction puts the caller back.
    SetUserIdAndSecContext(extension_owner(), context | SECURITY_LOCAL_USERID_CHANGE);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    Oid types[1] = {REGCLASSOID};
    Datum values[1] = {ObjectIdGetDatum(relid)};
    if (SPI_execute_with_args(command, 1, types, values, nullptr, false, 0) != SPI_OK_SELECT)
        elog(ERROR, "SPI_execute failed: %s", command);
    SPI_finish();
    SetUserIdAndSecContext(caller, context);
}

void guard_child(const RangeVar *name) {
    call_for("SELECT interlock.guard_child($1)", name);
}
void unguard_child(const RangeVar *name) {
    call_for("SELECT interlock.unguard_child($1)", name);
}

void on_create(const CreateStmt *create) {
    if (create->inhRelations != NIL) guard_child(create->relation);
}

// Only what makes a table the child of another, or ends that. Anything else must not attach
// triggers: restoring a dump runs ALTER TABLE too, in an order of its own.
void on_alter(const AlterTableStmt *alter) {
    ListCell *cell;
    foreach (cell, alter->cmds) {
        const AlterTableCmd *command = static_cast<const AlterTableCmd *>(lfirst(cell));
        switch (command->subtype) {
        case AT_AddInherit: guard_child(alter->relation); break;
        case AT_DropInherit: unguard_child(alter->relation); break;
        case AT_AttachPartition:
            guard_child(reinterpret_cast<const PartitionCmd *>(command->def)->name);
            break;
        case AT_DetachPartition:
        case AT_DetachPartitionFinalize:
            unguard_child(reinterpret_cast<const PartitionCmd *>(command->def)->name);
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
    if (interlock::current_ownership().guarded_count > 0) interlock::on_statement(data->parsetree);
    PG_RETURN_NULL();
}
