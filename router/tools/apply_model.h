// What `interlock apply` compares: the state the catalog wants, and the state each shard is in.
//
// Plain data. Read by apply_catalog and apply_shard, judged by apply_plan (which is pure), carried
// out by apply_run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace interlock {

/// Something to tell the user: a reason to refuse, or a warning.
struct Finding {
    std::string message;
    std::string detail;
    std::string hint;
};

/// `interlock apply` cannot go on, for the one reason given.
class ApplyRefusal : public std::runtime_error {
  public:
    explicit ApplyRefusal(Finding reason)
        : std::runtime_error(reason.message), finding(std::move(reason)) {}
    Finding finding;
};

/// How long `interlock apply` waits for what, in milliseconds.
struct ApplyTimeouts {
    std::int64_t query = 5000;      ///< connecting, or a query that reads little
    std::int64_t lock = 5000;       ///< a lock on a table
    std::int64_t scan = 3'600'000;  ///< a step that may read whole tables
};

struct ColumnInfo {
    std::string name;
    std::string type_name;       ///< as declared, schema-qualified unless built in
    std::uint32_t type_oid = 0;  ///< the base type of a domain
    bool not_null = false;
};

inline constexpr std::int32_t no_shard = -1;

struct DesiredShard {
    std::int32_t id = 0;
    std::string name;
    std::string conninfo;     ///< may hold secrets: never printed
    bool index_only = false;  ///< an index database: no keyspaces, tables or buckets
    /// The route version under which it last gave a bucket away, by the catalog's history. A shard
    /// whose floor is lower has lost that decision.
    std::int32_t min_floor = 0;

    /// As messages name it: shard "s0", index database "idx".
    [[nodiscard]] std::string called() const {
        return (index_only ? "index database \"" : "shard \"") + name + '"';
    }
};

struct DesiredKeyspace {
    std::int32_t id = 0;
    std::string name, key_type, hash;
    std::int32_t buckets = 0;
    // By bucket, positions in DesiredState::shards or no_shard.
    std::vector<std::int32_t> staged;
    std::vector<std::int32_t> published;
    std::vector<std::int32_t> beyond;  ///< staged buckets that the keyspace does not have
};

struct DesiredTable {
    std::int32_t id = 0;
    std::string name;      ///< schema-qualified, quoted where PostgreSQL needs it
    std::size_t keyspace;  ///< position in DesiredState::keyspaces
    std::string key_column;
    std::string key_sql;         ///< key_column, quoted where PostgreSQL needs it
    std::string version_column;  ///< empty: none
    std::vector<ColumnInfo> recorded;
};

/// A column of a global index, as a shard's table has it.
struct IndexColumnInfo {
    std::string name;
    std::string type_name;  ///< with its modifier, schema-qualified unless built in
    std::string collation;  ///< schema-qualified and quoted; empty: the type has none
    bool not_null = false;
};

/// What a global index takes of its table.
struct IndexShape {
    std::vector<std::string> recorded;  ///< scope and order: what the outbox records, and the key
    std::vector<std::string> key;       ///< primary key, then the shard key if it is not in it
    std::vector<IndexColumnInfo> columns;  ///< all of them, each once
    std::string digest;                    ///< what the keyset's cursors are bound to
};

/// A global index that the catalog declares.
struct DesiredIndex {
    std::int32_t id = 0;
    std::string name;
    std::size_t table = 0;  ///< position in DesiredState::tables
    std::vector<std::string> scope;
    std::string order;          ///< as it was declared
    std::int32_t database = 0;  ///< position in DesiredState::shards
    std::int32_t max_page = 0, default_page = 0;
    bool ready = false;  ///< it was filled: routers answer pages from it, or will
    IndexShape shape;    ///< what the shards make of it, once they are known to agree
};

/// One that the catalog declares no more, but whose traces were not removed yet.
struct DroppedIndex {
    std::string name;
    std::int32_t database = 0;  ///< position in DesiredState::shards
};

/// Who may read a table, of the roles that the database knows; "PUBLIC" may be one.
struct Readers {
    std::vector<std::string> roles;     ///< by name: all but superusers and PostgreSQL's own
    std::vector<std::string> may_read;  ///< by name
};

/// A global index on one shard.
struct IndexOnShard {
    bool judged = false;  ///< it could be looked at: what follows is known
    IndexShape shape;     ///< as this shard would declare it
    bool has_keyset = false;
    std::string keyset_digest, keyset_limits;  ///< of the keyset that is there
    std::string wanted_limits;
    bool attached = false;          ///< the table, to the stream of the index's name
    bool recording_broken = false;  ///< attached, but a trigger is missing or switched off
    std::vector<std::string> attached_columns, attached_key;
    std::vector<std::string> others;  ///< other tables attached to that stream
    bool row_security = false;
    Readers readers;
};

/// A global index in the database that holds its entries.
struct IndexInDatabase {
    bool defined = false;            ///< its table is there
    bool changes = false;            ///< index_define() would do something
    std::string digest;              ///< of the keyset that it has or would have; empty: not tried
    std::vector<std::string> roles;  ///< those that exist, as in Readers
    std::vector<std::string> readers;   ///< those that were given the right to read it
    std::vector<std::string> indexers;  ///< those of them that keep it: see grant_indexer()
    std::vector<std::string> former;    ///< shards it still waits for, deleted from the catalog
};

/// What is left of a dropped index in one database.
struct DroppedState {
    bool has_stream = false;
    std::vector<std::string> tables;  ///< attached to it
    bool defined = false;             ///< its table of entries is there
};

/// A key that signs cursors. What a shard is compared by is a digest of the secret.
struct CursorKey {
    std::int32_t id = 0;
    bool retired = false;
    std::string created;  ///< UTC; of the valid keys the newest signs
    std::string digest;   ///< of the secret; empty: erased
    std::string secret;   ///< in hex; only of the catalog's keys: never printed

    bool same(const CursorKey &other) const {
        return id == other.id && retired == other.retired && created == other.created &&
               digest == other.digest;
    }
};

/// A keyset that is to be walked over all shards, as one shard has it.
struct KeysetInfo {
    std::string name;
    std::string digest;  ///< equal on shards that declare the same; empty: fits its table no more
    std::string limits;  ///< of its pages, in words
    std::string declaration;  ///< the statement that declares the same
};

/// A move of buckets that has not ended. What becomes of them is its business.
struct DesiredMove {
    std::string id;
    std::size_t keyspace = 0;  ///< position in DesiredState::keyspaces
    std::vector<std::int32_t> buckets;
    std::int32_t from = 0, to = 0;  ///< positions in DesiredState::shards
};

/// The catalog, of one snapshot.
struct DesiredState {
    std::string instance;  ///< as ShardState's: the catalog may be a shard's database as well
    std::string cluster_id, cluster_name;
    std::int32_t version = 0;           ///< the current route version; 0: nothing published yet
    std::int32_t last_version = 0;      ///< the highest number ever reserved or published
    std::int32_t reserved_version = 0;  ///< the number that is reserved; 0: none
    std::string reserved_move;          ///< the move that has it; empty: it is an apply's
    std::vector<DesiredShard> shards;
    std::vector<DesiredKeyspace> keyspaces;
    std::vector<DesiredTable> tables;
    std::vector<CursorKey> cursor_keys;  ///< by id
    std::vector<DesiredIndex> indexes;   ///< by name
    std::vector<DroppedIndex> dropped_indexes;
    std::vector<DesiredMove> moves;

    /// The number that an apply would publish under. No number is given out twice: shards may have
    /// raised their floor to it, and sessions may work under it.
    [[nodiscard]] std::int32_t next_version() const {
        return reserved_version != 0 && reserved_move.empty() ? reserved_version
                                                              : std::max(version, last_version) + 1;
    }
};

enum class BucketOwnership : std::uint8_t { owned, fenced, moved, importing };

/// A row of bucket_state. A bucket without a row is not the shard's.
struct BucketRow {
    std::int32_t bucket = 0;
    BucketOwnership state = BucketOwnership::owned;
    std::int32_t version = 0;
    std::string peer;
};

struct TableState {
    bool exists = false;
    bool ordinary = false;  ///< an ordinary or partitioned table
    bool may_alter = false;
    std::vector<ColumnInfo> columns;

    bool key_found = false;
    bool key_generated = false;
    bool key_nondeterministic = false;

    bool guarded = false;
    bool guard_incomplete = false;  ///< shard_table() can mend it
    std::string guarded_keyspace, guarded_key;
    std::vector<std::string> guard_problems;  ///< those it cannot mend: "relation: problem"

    /// It is a partition or child of a table that is declared or guarded, and guarded with that
    /// one.
    bool has_ancestor = false;
    std::string ancestor, ancestor_keyspace, ancestor_key;
    bool has_foreign_child = false;
};

struct LocalKeyspace {
    bool known = false;
    std::string key_type, hash;
    std::int32_t buckets = 0;
    std::vector<BucketRow> rows;
    bool on_the_move = false;  ///< buckets are on their way from or to the shard: DDL is refused
};

struct ShardState {
    /// False if the state could not be read; `findings` says why.
    bool known = false;
    std::vector<Finding> findings;  ///< reasons to refuse, met while connecting and reading

    std::string instance;  ///< tells one running database from another
    std::string encoding;
    bool has_extension = false;  ///< if not, it can be created

    bool has_identity = false;
    std::string cluster_id, shard_name;
    std::int32_t floor = 0;
    bool restored = false;

    std::vector<LocalKeyspace> keyspaces;      ///< as DesiredState::keyspaces
    std::vector<TableState> tables;            ///< as DesiredState::tables
    std::vector<std::string> other_tables;     ///< guarded but not declared
    std::vector<std::string> other_keyspaces;  ///< known here but not to the catalog
    std::vector<CursorKey> cursor_keys;        ///< by id
    std::vector<KeysetInfo> keysets;           ///< by name

    std::vector<IndexOnShard> indexes;          ///< as DesiredState::indexes; of shards
    std::vector<IndexInDatabase> index_tables;  ///< the same; of the database that holds it
    std::vector<DroppedState> dropped_indexes;  ///< as DesiredState::dropped_indexes
};

enum class ActionKind : std::uint8_t {
    create_extension,
    set_identity,
    raise_floor,
    define_keyspace,
    accept_buckets,
    guard_table,
    make_cursor_key,
    take_cursor_keys,
    define_index,
    declare_keyset,
    attach_index,
    grant_index,
    record_columns,
    release_buckets,
    publish,
    leave_index,
    remove_index,
    detach_index,
    forget_index,
};

/// One step of the plan; each is a transaction of its own on its shard. Those of the catalog are
/// one transaction together, which is committed when it has published, or else last.
struct Action {
    ActionKind kind = ActionKind::publish;
    std::int32_t shard = no_shard;  ///< no_shard: the catalog
    std::size_t keyspace = 0;
    std::size_t table = 0;
    std::vector<std::int32_t> buckets;
    std::int32_t to_shard = no_shard;
    std::int32_t version = 0;
    std::size_t index = 0;                   ///< or of a dropped one
    std::vector<std::string> tables;         ///< that are to be detached
    std::vector<std::string> grant, revoke;  ///< roles
    std::vector<std::string> former;         ///< shards
    std::string text;                        ///< what a person reads
};

}  // namespace interlock
