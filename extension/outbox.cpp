// What a session keeps about the outbox: its tables and the segments of its streams.
#include "pg.h"

extern "C" {
#include "commands/sequence.h"
#include "storage/bufmgr.h"
#include "utils/tuplestore.h"
}

#include "outbox.h"
#include "ownership.h"
#include "table_scan.h"

namespace interlock::outbox {

namespace {

// Columns of interlock.outbox_stream; the order is that of sql/46-outbox.sql.
constexpr int stream_name = 1;

// What is kept is good while no message that concerns it has come. It is thrown away as a whole,
// when it is next asked for.
std::uint64_t invalidations = 1;
std::uint64_t built_at = 0;
MemoryContext context = nullptr;
Tables known = {};
Stream *streams = nullptr;
bool callbacks_registered = false;

constexpr int most_watched = 512;
Oid watched[most_watched];
int watched_count = 0;
bool watching_all = false;

// The callbacks run wherever messages are taken, aborted transactions included: they must not touch
// a catalog.
void relation_changed(Datum, Oid relid) {
    if (OidIsValid(relid) && !watching_all) {
        bool ours = relid == known.streams || relid == known.attached;
        for (int i = 0; !ours && i < watched_count; ++i)
            ours = watched[i] == relid;
        if (!ours) return;
    }
    ++invalidations;
}

void schema_changed(Datum, int, std::uint32_t) {
    ++invalidations;
}

Oid own_relation(const char *name) {
    const Oid relid = get_relname_relid(name, known.schema);
    if (!OidIsValid(relid))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation \"interlock.%s\" does not exist", name)));
    return relid;
}

void forget() {
    if (!callbacks_registered) {
        CacheRegisterRelcacheCallback(relation_changed, static_cast<Datum>(0));
        CacheRegisterSyscacheCallback(NAMESPACEOID, schema_changed, static_cast<Datum>(0));
        callbacks_registered = true;
    }
    if (context != nullptr) MemoryContextDelete(context);
    context = nullptr;
    streams = nullptr;
    known = {};
    watched_count = 0;
    watching_all = false;
    const std::uint64_t seen = invalidations;
    if (OidIsValid(get_extension_oid("interlock", true)))
        known.schema = get_namespace_oid("interlock", true);
    if (!OidIsValid(known.schema))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("extension \"interlock\" is not installed in this database")));
    known.sequence = own_relation("outbox_seq");
    known.streams = own_relation("outbox_stream");
    known.attached = own_relation("outbox_table");
    known.tries = own_relation("outbox_try");
    known.parked = own_relation("outbox_parked");
    known.parked_by_key = own_relation("outbox_parked_key");
    context = AllocSetContextCreate(TopMemoryContext, "interlock outbox", ALLOCSET_SMALL_SIZES);
    built_at = seen;
}

bool stream_exists(const char *name) {
    ScanKeyData key;
    ScanKeyEntryInitialize(&key, 0, stream_name, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID,
                           F_TEXTEQ, CStringGetTextDatum(name));
    bool found = false;
    Snapshot snapshot = RegisterSnapshot(GetCatalogSnapshot(known.streams));
    scan_table(known.streams, snapshot, 1, &key,
               [&](const Datum *, const bool *) { found = true; });
    UnregisterSnapshot(snapshot);
    return found;
}

Stream *load(const char *name) {
    Stream *stream = static_cast<Stream *>(MemoryContextAllocZero(context, sizeof(Stream)));
    stream->name = MemoryContextStrdup(context, name);
    stream->dead =
        static_cast<DeadPages *>(MemoryContextAllocZero(context, sizeof(DeadPages) * segments));
    for (int k = 0; k < segments; ++k) {
        char segment[NAMEDATALEN];
        snprintf(segment, sizeof segment, "outbox_%s_%d", name, k);
        stream->relids[k] = get_relname_relid(segment, known.schema);
        stream->dead[k].context = context;
    }
    return stream;
}

}  // namespace

std::uint64_t generation() {
    if (unlikely(built_at != invalidations)) forget();
    return built_at;
}

const Tables &tables() {
    generation();
    return known;
}

MemoryContext cache_context() {
    generation();
    return context;
}

void watch(Oid relid) {
    for (int i = 0; i < watched_count; ++i)
        if (watched[i] == relid) return;
    if (watched_count == most_watched)
        watching_all = true;
    else
        watched[watched_count++] = relid;
}

const Stream &require_stream(const char *name) {
    for (;;) {
        const std::uint64_t seen = generation();
        for (Stream *stream = streams; stream != nullptr; stream = stream->next)
            if (std::strcmp(stream->name, name) == 0) return *stream;
        if (!stream_exists(name))
            ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                            errmsg("outbox stream \"%s\" does not exist", name),
                            errhint("interlock.outbox_attach() makes one.")));
        if (generation() != seen) continue;
        Stream *stream = load(name);
        if (generation() != seen) continue;
        stream->next = streams;
        streams = stream;
    }
}

Relation open_segment(const Stream &stream, int segment, LOCKMODE mode) {
    const Oid relid = stream.relids[segment];
    Relation relation = OidIsValid(relid) ? try_relation_open(relid, mode) : nullptr;
    if (relation == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("segment %d of outbox stream \"%s\" has gone", segment, stream.name),
                        errhint("Tables of the outbox are made and dropped by "
                                "interlock.outbox_attach() and interlock.outbox_detach() only.")));
    if (RelationGetDescr(relation)->natts != column_count)
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("table \"%s\" has other columns than a segment of the outbox",
                               RelationGetRelationName(relation))));
    return relation;
}

std::int64_t last_seq(const Tables &tables) {
    Relation sequence = relation_open(tables.sequence, AccessShareLock);
    Buffer buffer = ReadBuffer(sequence, 0);
    // nextval() has another value on the page while it writes WAL; under the lock nobody sees it.
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    Page page = BufferGetPage(buffer);
    const HeapTupleHeader tuple = reinterpret_cast<HeapTupleHeader>(
        PageGetItem(page, PageGetItemId(page, FirstOffsetNumber)));
    const FormData_pg_sequence_data data =
        *reinterpret_cast<Form_pg_sequence_data>(reinterpret_cast<char *>(tuple) + tuple->t_hoff);
    UnlockReleaseBuffer(buffer);
    relation_close(sequence, AccessShareLock);
    return data.is_called ? data.last_value : data.last_value - 1;
}

ReturnSetInfo *return_rows(FunctionCallInfo fcinfo) {
    ReturnSetInfo *result = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (result == nullptr || !IsA(result, ReturnSetInfo) ||
        (result->allowedModes & SFRM_Materialize) == 0 || result->expectedDesc == nullptr)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("the result is a set of rows, which cannot be returned here")));
    MemoryContext old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
    result->setResult = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0,
                                              false, work_mem);
    result->setDesc = CreateTupleDescCopy(result->expectedDesc);
    result->returnMode = SFRM_Materialize;
    MemoryContextSwitchTo(old);
    return result;
}

void execute_as_owner(const char *command, int arguments, Oid *types, Datum *values) {
    Oid caller;
    int security;
    GetUserIdAndSecContext(&caller, &security);
    // Should this raise an error, the end of the (sub)transaction puts the caller back.
    SetUserIdAndSecContext(extension_owner(), security | SECURITY_LOCAL_USERID_CHANGE);
    // Nor may the caller choose what the operators in it are.
    const int nest = NewGUCNestLevel();
    set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
                      GUC_ACTION_SAVE, true, 0, false);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    if (SPI_execute_with_args(command, arguments, types, values, nullptr, false, 0) < 0)
        elog(ERROR, "SPI_execute failed: %s", command);
    SPI_finish();
    AtEOXact_GUC(true, nest);
    SetUserIdAndSecContext(caller, security);
}

}  // namespace interlock::outbox
