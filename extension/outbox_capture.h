// What is recorded of an attached table, and recording it.
#pragma once

#include "outbox.h"
#include "ownership.h"
#include "row_json.h"

namespace interlock::outbox {

/// What a trigger of one table or partition records. Good until the generation changes.
struct Capture {
    Oid trigger;  ///< key of the cache
    const Stream *stream;
    Oid sequence;
    Datum stream_name, table_name;  ///< text
    Datum ops[3];                   ///< text: I, U, D
    RowJson *key, *values;          ///< columns of this table; the values include the key
    int columns_needed;             ///< the last column that is read
    Oid unique;                     ///< index whose columns are all in the key; InvalidOid: none
    Oid relid;
    Oid lineage;  ///< whose shard key counts: the table itself, or the parent that it has left
    // Of a sharded table, while the ownership copy has this generation.
    std::uint64_t ownership_generation;
    const Keyspace *keyspace;  ///< nullptr: not sharded
    AttrNumber shard_key;
    KeyType shard_key_type;
};

enum class Op : std::uint8_t { insert, update, remove };

/// What `trigger` of `relation` records. Raises 55000 for a table that is not attached, 42703 for
/// columns that have gone.
Capture *find_capture(const Trigger *trigger, Relation relation);

/// What a table's rows are recorded as that is, or was until just now, a descendant of `lineage`.
/// Not kept in the cache; made in CurrentMemoryContext, good until the generation changes.
Capture *make_capture(const char *stream, Relation relation, Oid lineage);

/// A row of the table, as far as it is needed.
struct Row {
    const Datum *values;
    const bool *nulls;
};
Row row_of(const Capture &capture, TupleTableSlot *slot);

/// Draws a seq and stores one record. `before` or `after` is nullptr where the operation has none.
void record(Capture *capture, Op op, const Row *before, const Row *after);

}  // namespace interlock::outbox
