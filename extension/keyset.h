// Keysets: declared total orders over a table, and what a page of one is made of.
//
// A declaration (a row of interlock.keyset) names its table by OID and its columns by name.
// Resolving it against the table as it is now checks everything again, so an order that has ceased
// to be total, or a column that has gone, is an error and never a wrong page.
#pragma once

#include "cursor.h"
#include "pg.h"
#include "sort_value.h"

namespace interlock {

/// An order has at most as many columns as an index, and so has a scope.
inline constexpr int max_keyset_columns = INDEX_MAX_KEYS;

/// One item of an order as it was declared.
struct OrderItem {
    const char *column;
    Oid collation;  ///< given by COLLATE; InvalidOid: the column's own
    bool descending;
    bool nulls_first;
};

enum class ScatterRule : std::uint8_t { as_table, yes, no };

/// Whose entries an index table holds: the keyset that pages are asked of, and the table that it
/// is declared over in the shards. Its own cursors and sort keys are that keyset's.
struct IndexSource {
    const char *keyset;  ///< nullptr: this is no index table's keyset
    const char *schema;
    const char *table;
};

/// A row of interlock.keyset.
struct KeysetDeclaration {
    const char *name;
    Oid relid;
    const char **scope;
    int scope_count;
    OrderItem *order;
    int order_count;
    std::int32_t max_page;
    std::int32_t default_page;
    bool is_signed;
    ScatterRule scatter;
    IndexSource source;
};

/// The column of an index table that says which entries are gone.
inline constexpr const char *deleted_column = "interlock_deleted";

/// What is wrong with a declaration; strings are palloc'd, detail and hint may be nullptr.
struct Problem {
    int sqlstate;
    const char *message;
    const char *detail;
    const char *hint;
};

[[noreturn]] void raise(const Problem &problem);

struct KeysetColumn {
    const char *name;
    const char *quoted;
    AttrNumber attribute;
    Oid explicit_collation;  ///< to be spelled out in SQL; InvalidOid: none
    /// Where the server's order puts NULLs, as SQL says it. Of a column that has none it is what
    /// the index says that serves the order.
    bool sql_nulls_first;
    Oid input;  ///< input function of the base type
    Oid input_parameter;
};

/// Adjacent columns of an order that one row comparison covers: of one direction and NOT NULL. A
/// nullable column is alone.
struct Segment {
    int first;
    int count;
};

struct PagePlans;

/// A declaration resolved against its table. Everything is in `context`.
struct Keyset {
    MemoryContext context;
    KeysetDeclaration declaration;
    const char *table;      ///< qualified and quoted
    const char *row_alias;  ///< for its rows in SQL: no column has this name
    Oid row_type;
    bool plain_rows;  ///< rows are stored as the row type has them: of one table, no column dropped
    KeysetColumn *scope;
    SortColumn *scope_sort;
    KeysetColumn *order;
    SortColumn *order_sort;
    Segment *segments;
    int segment_count;
    bool scatter;    ///< rows are merged across shards
    bool is_shard;   ///< the database was one
    bool mergeable;  ///< there is a sort key: no collation stands in the way
    unsigned char digest[digest_size];
    const char *missing_index;  ///< CREATE INDEX statement that would serve; nullptr if one does
    /// The columns of a unique index that makes the order total, as bits: rows are looked up by it.
    std::uint32_t key_scope, key_order;
    AttrNumber deleted_attribute;  ///< of deleted_column; 0: not an index table's keyset
    // The ownership filter; nullptr where the table is not sharded.
    const char *keyspace;
    const char *key_column;
    std::uint64_t ownership_generation;  ///< of what the two above were last found right by

    // For the session's cache.
    TupleDesc page_description;  ///< of keyset_page()
    PagePlans *plans;
    int pins;  ///< calls that use it; while there are any it is not freed
    bool stale;
    std::uint32_t namespace_hash;
    std::uint32_t *type_hashes;  ///< of types that DDL can change
    int type_hash_count;
    bool has_enum;
    Keyset *next;
};

/// Resolves `declaration` in a new context below the current one; nullptr and *problem when it does
/// not fit the table. Takes no lock on the table.
Keyset *resolve_keyset(const KeysetDeclaration &declaration, Problem *problem);

// --- The table interlock.keyset ---

/// OID of the table; InvalidOid while the extension is not there.
Oid keyset_table();

/// Reads declarations into the current context, newest state: that of one name, or with nullptr all
/// of them. Returns their number.
int read_declarations(const char *name, KeysetDeclaration **declarations);

// --- The session's cache ---

/// The keyset of that name, with AccessShareLock on its table, valid for this statement. Raises
/// 42704 for an unknown one and the problem of one that does not fit its table. It stays until
/// CurrentMemoryContext is reset or deleted.
Keyset *use_keyset(const text *name);

// --- Indexes ---

/// Whether the order is total: a valid, immediate unique index within order and scope whose
/// columns hold no NULL (of an index table that is not asked). And key_scope, key_order,
/// sql_nulls_first and missing_index from what indexes there are.
bool look_at_indexes(Oid relid, Keyset *keyset, Problem *problem);

/// "CREATE INDEX ..." that would serve the keyset.
const char *create_index_text(const Keyset &keyset);

// --- SQL text ---

/// A collation's qualified, quoted name.
const char *collation_text(Oid collation);

/// One range of a page: rows equal to the cursor in the columns before `segment`, and after it
/// there.
struct Range {
    enum class Kind : std::uint8_t {
        all,       ///< the whole scope: there is no cursor
        after,     ///< the values after the cursor's, NULLs left out
        nulls,     ///< the NULLs, which come after all values
        not_null,  ///< all values, which come after the NULLs
    };
    Kind kind;
    int segment;
};

/// The ranges that follow a cursor with NULLs where `null_mask` says, nearest first; returns their
/// number, at most max_ranges.
inline constexpr int max_ranges = 2 * max_keyset_columns;
int list_ranges(const Keyset &keyset, bool backward, bool has_cursor, std::uint32_t null_mask,
                Range *ranges);

/// How parameters are written: $number, or $number::type with `casts`. Scope column i is number
/// scope[i], order column i is order[i].
struct ParameterStyle {
    const char *alias;  ///< quoted; nullptr: columns stand alone
    const int *scope;
    const int *order;
    bool casts;
};

/// "$3", or "$3::bigint".
void append_parameter(StringInfo out, const ParameterStyle &style, int number, Oid type);
void append_column(StringInfo out, const ParameterStyle &style, const KeysetColumn &column);
/// The scope's condition, with what leaves out rows that other shards answer for and entries that
/// are gone; nothing where there is none of these. Returns whether it has written anything.
bool append_scope_condition(StringInfo out, const Keyset &keyset, const ParameterStyle &style);
void append_range_condition(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                            const Range &range, bool backward, std::uint32_t null_mask);
void append_order_by(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                     bool backward);
/// That a row is the one at a place of the order, in the scope: the place's values are columns
/// `values`.c1, c2, ... of the statement.
void append_lookup_condition(StringInfo out, const Keyset &keyset, const ParameterStyle &style,
                             const char *values);

// --- Scopes and cursors ---

/// Values of a scope, in the order of its columns.
struct Scope {
    Datum values[max_keyset_columns];
    unsigned char digest[digest_size];
};

/// Reads a scope of exactly the keyset's columns; `scope` may be nullptr where there are none.
/// Raises 22023, 22004, or what a type's input function raises.
void read_scope(const Keyset &keyset, struct varlena *scope, Scope *result);
/// Fills the digest from the values: the same exactly for equal ones.
void digest_scope(const Keyset &keyset, Scope *scope);

CursorBinding binding_of(const Keyset &keyset, const Scope &scope);

/// A place in the order.
struct Place {
    bool given;
    std::uint32_t null_mask;
    Datum values[max_keyset_columns];
    bool nulls[max_keyset_columns];
};

/// Reads at most one of the two cursors; 22023 when both are given.
void read_place(const Keyset &keyset, const Scope &scope, const text *after, const text *before,
                Place *place, bool *backward);

/// Raises 42804 unless `type` is the row type of the keyset's table.
void require_row_type(const Keyset &keyset, Oid type);

}  // namespace interlock
