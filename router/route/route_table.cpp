#include "route/route_table.h"

#include "base/log.h"

#include <algorithm>

namespace interlock {

namespace {

constexpr ShardIndex unassigned = 0xFFFF;
constexpr std::size_t max_shards = 0xFFFF;

std::optional<placement::KeyFamily> family_of_keyspace(std::string_view key_type,
                                                       std::string_view hash) {
    if (key_type == "bigint" && hash == "splitmix64") return placement::KeyFamily::integer;
    if (hash != "xxh3_64") return std::nullopt;
    if (key_type == "uuid") return placement::KeyFamily::uuid;
    if (key_type == "text") return placement::KeyFamily::text;
    if (key_type == "bytea") return placement::KeyFamily::bytea;
    return std::nullopt;
}

template <typename Map>
auto lookup(const Map &map, std::int32_t id) -> std::optional<typename Map::mapped_type> {
    const auto it = map.find(id);
    if (it == map.end()) return std::nullopt;
    return it->second;
}

}  // namespace

std::optional<KeyType> key_type_of_oid(std::uint32_t type_oid) {
    switch (type_oid) {
    case oid::int2: return KeyType::int2;
    case oid::int4: return KeyType::int4;
    case oid::int8: return KeyType::int8;
    case oid::uuid: return KeyType::uuid;
    case oid::text:
    case oid::varchar: return KeyType::text;
    case oid::bytea: return KeyType::bytea;
    default: return std::nullopt;
    }
}

std::optional<KeyType> key_type_of_array_oid(std::uint32_t array_type_oid) {
    switch (array_type_oid) {
    case oid::int2_array: return KeyType::int2;
    case oid::int4_array: return KeyType::int4;
    case oid::int8_array: return KeyType::int8;
    case oid::uuid_array: return KeyType::uuid;
    case oid::text_array:
    case oid::varchar_array: return KeyType::text;
    case oid::bytea_array: return KeyType::bytea;
    default: return std::nullopt;
    }
}

std::optional<std::uint16_t> Table::find_column(std::string_view column) const {
    for (std::size_t i = 0; i < columns.size(); ++i)
        if (columns[i].name == column) return static_cast<std::uint16_t>(i);
    return std::nullopt;
}

const Table *RouteTable::find_table(std::string_view schema, std::string_view name,
                                    bool &ambiguous) const {
    ambiguous = false;
    const auto it = tables_by_name_.find(std::string(name));
    if (it == tables_by_name_.end()) return nullptr;
    if (schema.empty()) {
        ambiguous = it->second.size() > 1;
        return ambiguous ? nullptr : &tables[it->second.front()];
    }
    for (const std::uint32_t index : it->second)
        if (tables[index].schema == schema) return &tables[index];
    return nullptr;
}

bool RouteTable::declares_function(std::string_view schema, std::string_view name) const {
    const auto found = std::lower_bound(functions.begin(), functions.end(), std::pair(schema, name),
                                        [](const Function &f, const auto &wanted) {
                                            return std::pair(std::string_view(f.schema),
                                                             std::string_view(f.name)) < wanted;
                                        });
    return found != functions.end() && found->schema == schema && found->name == name;
}

const GlobalIndex *RouteTable::find_index(std::string_view name) const {
    const auto found = std::lower_bound(
        indexes.begin(), indexes.end(), name,
        [](const GlobalIndex &index, std::string_view wanted) { return index.name < wanted; });
    return found != indexes.end() && found->name == name ? &*found : nullptr;
}

std::size_t RouteTable::memory() const {
    std::size_t bytes = sizeof *this;
    for (const Shard &shard : shards)
        bytes += sizeof shard + shard.name.capacity() + shard.conninfo.capacity();
    for (const Keyspace &keyspace : keyspaces)
        bytes += sizeof keyspace + keyspace.owner.capacity() * sizeof(ShardIndex);
    for (const Table &table : tables)
        bytes += sizeof table + table.columns.capacity() * sizeof(Column);
    bytes += functions.capacity() * sizeof(Function) + indexes.capacity() * sizeof(GlobalIndex);
    return bytes;
}

Result<std::shared_ptr<const RouteTable>, std::string> RouteTable::build(const CatalogRows &rows) {
    auto table = std::make_shared<RouteTable>();
    table->cluster_id = rows.cluster_id;
    table->version = rows.version;
    table->functions = rows.functions;
    std::sort(table->functions.begin(), table->functions.end());

    const auto owns_rows = [](const auto &row) { return !row.index_only; };
    if (std::none_of(rows.shards.begin(), rows.shards.end(), owns_rows))
        return std::string("no shards are defined");
    if (rows.shards.size() > max_shards) return format("more than %zu shards", max_shards);
    std::unordered_map<std::int32_t, ShardIndex> shard_index;
    for (const auto &row : rows.shards) {
        shard_index.emplace(row.id, static_cast<ShardIndex>(table->shards.size()));
        table->shards.push_back({row.name, row.conninfo, row.index_only, row.min_floor});
    }

    std::unordered_map<std::int32_t, std::uint16_t> keyspace_index;
    for (const auto &row : rows.keyspaces) {
        const auto family = family_of_keyspace(row.key_type, row.hash);
        if (!family)
            return format("keyspace %s has an unknown key type or hash: %s, %s", row.name.c_str(),
                          row.key_type.c_str(), row.hash.c_str());
        if (row.buckets < placement::min_buckets || row.buckets > placement::max_buckets)
            return format("keyspace %s has %d buckets", row.name.c_str(), row.buckets);
        keyspace_index.emplace(row.id, static_cast<std::uint16_t>(table->keyspaces.size()));
        table->keyspaces.push_back(
            {row.name, *family, row.buckets,
             std::vector<ShardIndex>(static_cast<std::size_t>(row.buckets), unassigned)});
    }

    for (const auto &row : rows.routes) {
        const auto keyspace_at = lookup(keyspace_index, row.keyspace_id);
        if (!keyspace_at) return format("a route names unknown keyspace %d", row.keyspace_id);
        Keyspace &keyspace = table->keyspaces[*keyspace_at];
        if (row.bucket < 0 || row.bucket >= keyspace.buckets)
            return format("keyspace %s has a route for bucket %d, which does not exist",
                          keyspace.name.c_str(), row.bucket);
        const auto shard = lookup(shard_index, row.shard_id);
        if (!shard)
            return format("bucket %d of keyspace %s is on unknown shard %d", row.bucket,
                          keyspace.name.c_str(), row.shard_id);
        if (table->shards[*shard].index_only)
            return format("bucket %d of keyspace %s is on index database %s", row.bucket,
                          keyspace.name.c_str(), table->shards[*shard].name.c_str());
        ShardIndex &owner = keyspace.owner[static_cast<std::size_t>(row.bucket)];
        if (owner != unassigned)
            return format("bucket %d of keyspace %s has more than one route", row.bucket,
                          keyspace.name.c_str());
        owner = *shard;
    }
    for (const Keyspace &keyspace : table->keyspaces)
        for (std::size_t bucket = 0; bucket < keyspace.owner.size(); ++bucket)
            if (keyspace.owner[bucket] == unassigned)
                return format("bucket %zu of keyspace %s has no route", bucket,
                              keyspace.name.c_str());

    if (rows.announced) {
        const auto &row = *rows.announced;
        const auto keyspace_at = lookup(keyspace_index, row.keyspace_id);
        const auto from = lookup(shard_index, row.from_id), to = lookup(shard_index, row.to_id);
        // A move of what this version does not have would be a later version's.
        if (!keyspace_at || !from || !to || row.version <= rows.version)
            return format("the announcement of version %d does not fit it", row.version);
        const Keyspace &keyspace = table->keyspaces[*keyspace_at];
        Announcement announced{row.version, *keyspace_at, *from, *to,
                               std::vector<bool>(keyspace.owner.size())};
        for (const std::int32_t bucket : row.buckets) {
            if (bucket < 0 || bucket >= keyspace.buckets)
                return format("version %d is announced with bucket %d of keyspace %s, which does "
                              "not exist",
                              row.version, bucket, keyspace.name.c_str());
            if (keyspace.owner[static_cast<std::size_t>(bucket)] != *from)
                return format("version %d is announced to take bucket %d of keyspace %s from a "
                              "shard that does not have it",
                              row.version, bucket, keyspace.name.c_str());
            announced.buckets[static_cast<std::size_t>(bucket)] = true;
        }
        table->announced = std::move(announced);
    }

    std::unordered_map<std::int32_t, std::optional<std::uint32_t>> table_index;
    std::unordered_map<std::int32_t, std::vector<Column>> columns;
    for (const auto &row : rows.columns)
        columns[row.table_id].push_back({row.name, row.sql_name, row.type_oid});
    for (const auto &row : rows.tables) {
        const auto keyspace_at = lookup(keyspace_index, row.keyspace_id);
        if (!keyspace_at) return format("table %s is in an unknown keyspace", row.sql_name.c_str());
        Table entry;
        entry.schema = row.schema;
        entry.name = row.name;
        entry.sql_name = row.sql_name;
        entry.keyspace = *keyspace_at;
        entry.columns = std::move(columns[row.id]);
        if (entry.columns.empty()) {
            // Declared, but `interlock apply` has not yet seen it on the shards: unknown, R26.
            log_warning("table %s is declared but not applied; statements on it are refused",
                        row.sql_name.c_str());
            table_index.emplace(row.id, std::nullopt);
            continue;
        }
        if (entry.columns.size() > 1600)
            return format("table %s has more than 1600 columns", row.sql_name.c_str());
        const auto key = entry.find_column(row.key_column);
        if (!key)
            return format("table %s has no recorded column %s, its shard key", row.sql_name.c_str(),
                          row.key_column.c_str());
        entry.key_column = *key;
        entry.scatter = row.scatter;
        const auto key_type = key_type_of_oid(entry.columns[*key].type_oid);
        if (!key_type || family_of(*key_type) != table->keyspaces[*keyspace_at].family)
            return format("the shard key of table %s is not of the type of keyspace %s",
                          row.sql_name.c_str(), table->keyspaces[*keyspace_at].name.c_str());
        entry.key_type = *key_type;
        if (!row.version_column.empty()) {
            entry.version_column = entry.find_column(row.version_column);
            if (!entry.version_column)
                return format("table %s has no recorded column %s, its version column",
                              row.sql_name.c_str(), row.version_column.c_str());
        }
        const auto position = static_cast<std::uint32_t>(table->tables.size());
        table_index.emplace(row.id, position);
        table->tables_by_name_[entry.name].push_back(position);
        table->tables.push_back(std::move(entry));
    }

    for (const auto &row : rows.indexes) {
        const auto position = lookup(table_index, row.table_id);
        if (!position)
            return format("index %s is of unknown table %d", row.name.c_str(), row.table_id);
        const auto database = lookup(shard_index, row.shard_id);
        if (!database)
            return format("index %s is in unknown database %d", row.name.c_str(), row.shard_id);
        if (row.default_page < 1 || row.max_page < row.default_page)
            return format("index %s has pages of %d rows, at most %d", row.name.c_str(),
                          row.default_page, row.max_page);
        if (!*position) continue;
        const Table &indexed = table->tables[**position];
        table->indexes.push_back({row.name, "interlock_index.\"" + row.name + '"', **position,
                                  *database, row.ready, row.scope, row.order,
                                  indexed.columns[indexed.key_column].sql_name,
                                  static_cast<std::uint32_t>(row.max_page),
                                  static_cast<std::uint32_t>(row.default_page)});
    }
    std::sort(table->indexes.begin(), table->indexes.end(),
              [](const GlobalIndex &a, const GlobalIndex &b) { return a.name < b.name; });
    const auto twin = std::adjacent_find(
        table->indexes.begin(), table->indexes.end(),
        [](const GlobalIndex &a, const GlobalIndex &b) { return a.name == b.name; });
    if (twin != table->indexes.end())
        return format("index %s is there more than once", twin->name.c_str());
    return std::shared_ptr<const RouteTable>(std::move(table));
}

}  // namespace interlock
