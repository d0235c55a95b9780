// The outbox: changes of attached tables, recorded in the writer's own transaction.
//
// Each stream has a ring of segment tables, interlock.outbox_<stream>_<k>, children of
// interlock.outbox. A record lies in segment (seq / records a segment) % segments; once all records
// of a segment have been removed, it is truncated, so that nothing is ever vacuumed in steady
// state and what an old snapshot keeps alive is never read again. When consumers fall a whole ring
// behind, a segment holds records of several laps; nothing depends on its holding only one.
//
// The seq of a change is drawn in its AFTER ROW trigger, while the row is locked. So of two changes
// of one row (one key) the later has the greater seq, and whoever sees the later one committed sees
// the earlier one committed too. Across keys, neither commit nor visibility follows seq.
#pragma once

#include "pg.h"

namespace interlock::outbox {

inline constexpr std::int64_t records_a_segment = 32768;
inline constexpr int segments = 32;

inline std::int64_t lap_of(std::int64_t seq) {
    return seq / records_a_segment;
}
inline int segment_of_lap(std::int64_t lap) {
    return static_cast<int>(lap % segments);
}
inline int segment_of(std::int64_t seq) {
    return segment_of_lap(lap_of(seq));
}

/// Columns of interlock.outbox, a documented format; the order is that of sql/46-outbox.sql.
enum Column {
    seq_column,
    stream_column,
    xid_column,
    table_column,
    op_column,
    key_column,
    old_column,
    new_column,
    bucket_column,
    route_version_column,
    at_column,
    column_count,
};

/// Pages of a segment that hold nothing any more; see outbox_scan.h.
struct DeadPages {
    Oid stored;        ///< file that the segment was stored in
    XLogRecPtr *lsns;  ///< of such pages; InvalidXLogRecPtr: of others
    BlockNumber count, room;
    MemoryContext context;
};

/// A stream as this session knows it.
struct Stream {
    const char *name;
    Oid relids[segments];  ///< of its segments; InvalidOid: somebody dropped it
    DeadPages *dead;       ///< for each segment
    Stream *next;
};

/// Tables of the extension that are needed here, resolved anew after DDL.
struct Tables {
    Oid schema;
    Oid sequence;       ///< outbox_seq
    Oid streams;        ///< outbox_stream
    Oid attached;       ///< outbox_table
    Oid tries;          ///< outbox_try
    Oid parked;         ///< outbox_parked
    Oid parked_by_key;  ///< its index
};

/// Raises 55000 where the extension is not installed.
const Tables &tables();

/// Changes whenever anything that this session keeps about streams and attached tables may have
/// changed. Call AcceptInvalidationMessages() (or take a lock) first.
std::uint64_t generation();

/// Adds `relid` to the tables whose changes count. Forgotten with the next generation.
void watch(Oid relid);

/// The stream of that name; raises 42704. Good until the generation changes.
const Stream &require_stream(const char *name);

/// The segment with that number, opened and locked. Raises an error unless it has the columns of
/// the outbox and no others.
Relation open_segment(const Stream &stream, int segment, LOCKMODE mode);

/// Value of the sequence that was drawn last; 0: none yet.
std::int64_t last_seq(const Tables &tables);

/// Readies a set-returning function to put rows, of the columns it is declared with, into the
/// result's tuplestore.
ReturnSetInfo *return_rows(FunctionCallInfo fcinfo);

/// Runs an SQL command as the extension's owner: whoever consumes has no rights on the tables.
void execute_as_owner(const char *command, int arguments, Oid *types, Datum *values);

/// Context for what lives as long as the generation.
MemoryContext cache_context();

}  // namespace interlock::outbox
