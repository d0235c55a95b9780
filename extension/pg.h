// PostgreSQL's headers, in the order that C++ needs, and the one macro for SQL-callable functions.
//
// Every source file of the extension includes this first. C++ headers (and the pure placement.h)
// come before postgres.h, which redefines printf and its relatives. Version switches live here
// only.
//
// Rule of the whole extension: no C++ runtime. No exceptions, no type with a destructor, no `new`,
// no containers, no local statics that need a guard: ereport() jumps over destructors, and an
// exception that escapes ends every session of the server. Memory contexts and resource owners take
// that place. tests/check_boundary.sh checks the objects.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "placement.h"

extern "C" {
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "parser/parsetree.h"
#include "replication/logical.h"
#include "replication/logicalworker.h"
#include "replication/output_plugin.h"
#include "replication/reorderbuffer.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
}

// Declares a function that SQL can call, under its C name. Hidden visibility is the default of the
// library; before PostgreSQL 16 PG_FUNCTION_INFO_V1 does not export the function itself.
#define INTERLOCK_FUNCTION(name)                                                                   \
    extern "C" {                                                                                   \
    extern PGDLLEXPORT Datum name(PG_FUNCTION_ARGS);                                               \
    PG_FUNCTION_INFO_V1(name);                                                                     \
    }                                                                                              \
    Datum name(PG_FUNCTION_ARGS)

#if PG_VERSION_NUM < 180000
#define populate_compact_attribute(description, index) static_cast<void>(0)
#endif
#if PG_VERSION_NUM >= 170000
#define OverrideSearchPathMatchesCurrent(path) SearchPathMatchesCurrentEnvironment(path)
#endif
#if PG_VERSION_NUM >= 160000
#define pg_class_ownercheck(relid, role) object_ownercheck(RelationRelationId, relid, role)
#define pg_namespace_ownercheck(schema, role) object_ownercheck(NamespaceRelationId, schema, role)
#endif

#if PG_VERSION_NUM >= 180000
#define begin_index_scan(table, index, snapshot, keys)                                             \
    index_beginscan(table, index, snapshot, nullptr, keys, 0)
#else
#define begin_index_scan(table, index, snapshot, keys)                                             \
    index_beginscan(table, index, snapshot, keys, 0)
#endif

#if PG_VERSION_NUM < 150000
#define heap_fetch(table, snapshot, tuple, buffer, keep) heap_fetch(table, snapshot, tuple, buffer)
#endif

// A row as logical decoding hands it over, or nullptr.
#if PG_VERSION_NUM >= 170000
#define changed_tuple(logged) (logged)
#else
#define changed_tuple(logged) ((logged) == nullptr ? nullptr : &(logged)->tuple)
#endif

// Since PostgreSQL 16 decoding itself says to the other side that it goes on.
#if PG_VERSION_NUM >= 160000
#define say_that_decoding_goes_on(decoding) static_cast<void>(decoding)
#elif PG_VERSION_NUM >= 150000
#define say_that_decoding_goes_on(decoding) OutputPluginUpdateProgress(decoding, false)
#else
#define say_that_decoding_goes_on(decoding) OutputPluginUpdateProgress(decoding)
#endif

// The number of the file that a relation is stored in.
#if PG_VERSION_NUM >= 160000
#define relation_file(relation) ((relation)->rd_locator.relNumber)
#else
#define relation_file(relation) ((relation)->rd_node.relNode)
#endif

// The same as a locator, and where a sequence's log record has it.
#if PG_VERSION_NUM >= 160000
#define relation_locator(relation) ((relation)->rd_locator)
#define sequence_file(record) ((record).locator)
#else
#define relation_locator(relation) ((relation)->rd_node)
#define sequence_file(record) ((record).node)
#endif

// START_CRIT_SECTION() and END_CRIT_SECTION() are not C++20.
#define begin_critical_section() (CritSectionCount = CritSectionCount + 1)
#define end_critical_section() (CritSectionCount = CritSectionCount - 1)

#if PG_VERSION_NUM >= 170000
#define lock_held_by_me(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define lock_held_by_me(tag, mode) LockHeldByMe(tag, mode)
#endif

// The backend's part of a virtual transaction id.
#if PG_VERSION_NUM >= 170000
#define backend_of(vxid) ((vxid).procNumber)
#else
#define backend_of(vxid) ((vxid).backendId)
#endif

#if PG_VERSION_NUM < 150000
#define GetWALInsertionTimeLine() ThisTimeLineID
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif
