// One complete route version: shards, keyspaces with their bucket-to-shard maps, tables.
//
// Immutable once built. A transaction keeps the table it was pinned under, so tables are shared;
// one replaces the table in force if its version is higher, or the same with another announcement.
#pragma once

#include "base/result.h"
#include "route/key.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock {

using ShardIndex = std::uint16_t;

struct Shard {
    std::string name;
    std::string conninfo;     ///< libpq connection string; may hold secrets, never logged
    bool index_only = false;  ///< holds global indexes, no buckets and no sharded tables
    /// The version under which it last gave a bucket away, as the catalog's history has it. A shard
    /// whose own floor is lower has lost that decision, and its buckets may have two owners.
    std::int32_t min_floor = 0;
};

struct Keyspace {
    std::string name;
    placement::KeyFamily family = placement::KeyFamily::integer;
    std::int32_t buckets = 0;
    std::vector<ShardIndex> owner;  ///< by bucket

    [[nodiscard]] std::int32_t bucket_of(Key key) const {
        return placement::bucket_of_hash(key.hash, buckets);
    }
    [[nodiscard]] ShardIndex shard_of(Key key) const {
        return owner[static_cast<std::size_t>(bucket_of(key))];
    }
};

struct Column {
    std::string name;
    std::string sql_name;        ///< quoted where PostgreSQL needs it
    std::uint32_t type_oid = 0;  ///< the base type, for a domain
};

struct Table {
    std::string schema;
    std::string name;
    std::string sql_name;  ///< schema-qualified, quoted where needed
    std::uint16_t keyspace = 0;
    std::uint16_t key_column = 0;
    KeyType key_type = KeyType::int8;
    std::optional<std::uint16_t> version_column;
    bool scatter = false;  ///< statements on all shards need no other permission
    std::vector<Column> columns;

    /// The column's position in `columns`.
    [[nodiscard]] std::optional<std::uint16_t> find_column(std::string_view column) const;
};

/// A global index: what answers the pages of one keyset without asking every shard.
struct GlobalIndex {
    std::string name;      ///< also the keyset's on the shards
    std::string sql_name;  ///< of its table in the index database: interlock_index."name"
    std::uint32_t table;   ///< what it indexes: a position in RouteTable::tables
    ShardIndex database;   ///< where its table is; an index-only member or an ordinary shard
    bool ready = false;    ///< filled: pages may be answered from it
    std::vector<std::string> scope;
    std::string order;
    std::string shard_key_sql;        ///< the table's key column, quoted where PostgreSQL needs it
    std::uint32_t max_page = 1000;    ///< a larger page is refused
    std::uint32_t default_page = 50;  ///< size of a page that names none
};

/// A function of the shards that statements may call, whatever its arguments.
struct Function {
    std::string schema;
    std::string name;
    auto operator<=>(const Function &) const = default;
};

/// Buckets that are about to change their shard: what version `version` will be, should it come. It
/// is the map it is announced with, with these buckets at `to`.
///
/// A statement whose keys are all proven to be in other buckets means the same under both versions,
/// and may run in a session of either. One with a key in an announced bucket, or whose buckets are
/// not known, must never run in a session of `version` before that is in force: the shard that
/// gives the buckets away would take it for one that knows of it, and show rows that are not its
/// own any more.
struct Announcement {
    std::int32_t version = 0;
    std::uint16_t keyspace = 0;
    ShardIndex from = 0, to = 0;
    std::vector<bool> buckets;  ///< by bucket
};

/// The catalog's rows of one snapshot, as read; not yet known to be sound.
struct CatalogRows {
    std::string cluster_id;
    std::int32_t version = 0;
    std::string published;  ///< when (seconds since 1970, exact); empty: not recorded
    struct ShardRow {
        std::int32_t id;
        std::string name, conninfo;
        bool index_only = false;
        std::int32_t min_floor = 0;
    };
    struct KeyspaceRow {
        std::int32_t id;
        std::string name, key_type, hash;
        std::int32_t buckets;
    };
    struct TableRow {
        std::int32_t id;
        std::string schema, name, sql_name;
        std::int32_t keyspace_id;
        std::string key_column, version_column;  ///< version_column empty: none declared
        bool scatter = false;
    };
    struct ColumnRow {
        std::int32_t table_id;
        std::string name, sql_name;
        std::uint32_t type_oid;
    };
    struct IndexRow {
        std::int32_t id;
        std::string name;
        std::int32_t table_id;
        std::vector<std::string> scope;
        std::string order;
        std::int32_t shard_id;
        bool ready = false;
        std::int32_t max_page = 1000, default_page = 50;
    };
    struct RouteRow {
        std::int32_t keyspace_id, bucket, shard_id;
    };
    std::vector<ShardRow> shards;
    std::vector<KeyspaceRow> keyspaces;
    std::vector<TableRow> tables;
    std::vector<ColumnRow> columns;  ///< in column order within a table
    std::vector<RouteRow> routes;
    std::vector<Function> functions;
    std::vector<IndexRow> indexes;

    struct AnnouncementRow {
        std::int32_t version, keyspace_id, from_id, to_id;
        std::vector<std::int32_t> buckets;
    };
    std::int64_t announcements = 0;  ///< counts every change of what is announced
    std::optional<AnnouncementRow> announced;
};

class RouteTable {
  public:
    /// Checks that every bucket of every keyspace has exactly one row and names a known shard, and
    /// that every table's key column is there and of its keyspace's family. The error says what is
    /// wrong, for STATUS and the log. Index-only members own no bucket; an index of a table that
    /// was not applied yet is left out, as the table is.
    [[nodiscard]] static Result<std::shared_ptr<const RouteTable>, std::string>
    build(const CatalogRows &rows);

    std::string cluster_id;
    std::int32_t version = 0;
    std::vector<Shard> shards;
    std::vector<Keyspace> keyspaces;
    std::vector<Table> tables;
    std::vector<Function> functions;   ///< in order
    std::vector<GlobalIndex> indexes;  ///< by name
    std::optional<Announcement> announced;

    /// Whether the bucket is about to change its shard.
    [[nodiscard]] bool is_announced(std::uint16_t keyspace, std::int32_t bucket) const {
        return announced && announced->keyspace == keyspace &&
               announced->buckets[static_cast<std::size_t>(bucket)];
    }
    /// The version of sessions for statements all of whose keys are in buckets that are not
    /// announced: of any other, it is `version`.
    [[nodiscard]] std::int32_t settled_version() const {
        return announced ? announced->version : version;
    }

    /// The global index of this name, ready or not; nullptr if there is none.
    [[nodiscard]] const GlobalIndex *find_index(std::string_view name) const;

    /// Whether the catalog declares functions of this name.
    [[nodiscard]] bool declares_function(std::string_view schema, std::string_view name) const;

    /// Looks a table up by its folded name. An empty schema matches a name that is unique over all
    /// schemas; `ambiguous` tells that it is not.
    [[nodiscard]] const Table *find_table(std::string_view schema, std::string_view name,
                                          bool &ambiguous) const;

    /// Bytes held, for STATUS and the benchmark.
    [[nodiscard]] std::size_t memory() const;

  private:
    std::unordered_map<std::string, std::vector<std::uint32_t>> tables_by_name_;
};

/// Key type of a column type's OID (int2, int4, int8, uuid, text, varchar, bytea).
[[nodiscard]] std::optional<KeyType> key_type_of_oid(std::uint32_t type_oid);

/// Key type of the elements of an array type's OID.
[[nodiscard]] std::optional<KeyType> key_type_of_array_oid(std::uint32_t array_type_oid);

/// OIDs of PostgreSQL's built-in types that the router knows by number (pg_type.dat; fixed for
/// ever).
namespace oid {
inline constexpr std::uint32_t boolean = 16, bytea = 17, int8 = 20, int2 = 21, int4 = 23, text = 25,
                               oid = 26, float4 = 700, float8 = 701, varchar = 1043, date = 1082,
                               time = 1083, timestamp = 1114, timestamptz = 1184, interval = 1186,
                               timetz = 1266, numeric = 1700, uuid = 2950, unknown = 705,
                               bpchar = 1042, bytea_array = 1001, int2_array = 1005,
                               int4_array = 1007, text_array = 1009, varchar_array = 1015,
                               int8_array = 1016, uuid_array = 2951;
/// Types from here on are made by users; their numbers differ between databases.
inline constexpr std::uint32_t first_user = 16384;
}  // namespace oid

}  // namespace interlock
