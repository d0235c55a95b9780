// The sessions of a move, and what it finds out through them.
#include <algorithm>

#include "base/log.h"
#include "tools/bucket_set.h"
#include "tools/index_model.h"
#include "tools/move_model.h"

namespace interlock {

namespace {

constexpr const char *application = "interlock move";

ShardIndex shard_named(const RouteTable &routes, const std::string &name) {
    for (std::size_t i = 0; i < routes.shards.size(); ++i)
        if (routes.shards[i].name == name && !routes.shards[i].index_only)
            return static_cast<ShardIndex>(i);
    throw unknown_shard(routes, name);
}

std::string conninfo_value(const std::string &value) {
    std::string out = "'";
    for (const char c : value) {
        if (c == '\'' || c == '\\') out += '\\';
        out += c;
    }
    return out + "'";
}

/// Whether a connection string leaves a keyword out.
bool lacks(const std::string &conninfo, const std::string &keyword) {
    const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> options(
        PQconninfoParse(conninfo.c_str(), nullptr), &PQconninfoFree);
    for (const PQconninfoOption *option = options.get(); option && option->keyword; ++option)
        if (keyword == option->keyword) return !option->val || !*option->val;
    return true;
}

/// Percent-encoded, for a connection URI.
std::string uri_value(const std::string &value) {
    std::string out;
    for (const char c : value) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
        out += plain ? std::string(1, c) : format("%%%02X", static_cast<unsigned char>(c));
    }
    return out;
}

bool is_uri(const std::string &conninfo) {
    return conninfo.starts_with("postgresql://") || conninfo.starts_with("postgres://");
}

}  // namespace

MoveSession::MoveSession(const MoveRequest &request) : request_(request) {
    connect_catalog();
    buckets_ = request.buckets;
    find_members(request.keyspace, request.from, request.to);
    connect_shards();
}

MoveSession::MoveSession(const MoveRequest &request, const Move &move) : request_(request) {
    connect_catalog();
    buckets_ = move.buckets;
    find_members(move.keyspace, move.from, move.to);
    connect_shards();
}

void MoveSession::connect_catalog() {
    try {
        catalog_ = std::make_unique<ControlConnection>(request_.catalog, application,
                                                       request_.query_timeout);
        routes_ = read_published_routes(*catalog_);
    } catch (const ControlError &error) {
        throw ControlError(error.sqlstate, std::string("catalog: ") + error.what(), error.detail,
                           error.hint);
    }
}

void MoveSession::find_members(const std::string &keyspace, const std::string &from,
                               const std::string &to) {
    const auto found = std::find_if(routes_->keyspaces.begin(), routes_->keyspaces.end(),
                                    [&](const Keyspace &k) { return k.name == keyspace; });
    if (found == routes_->keyspaces.end()) throw unknown_keyspace(*routes_, keyspace);
    keyspace_ = static_cast<std::uint16_t>(found - routes_->keyspaces.begin());
    to_ = shard_named(*routes_, to);
    if (buckets_.empty()) throw ControlError("22023", "no bucket is given");
    for (const std::int32_t bucket : buckets_)
        if (bucket < 0 || bucket >= found->buckets)
            throw ControlError(
                "22023", "keyspace \"" + keyspace + "\" has no bucket " + std::to_string(bucket),
                "Its buckets are 0 to " + std::to_string(found->buckets - 1) + ".");
    if (!from.empty()) {
        from_ = shard_named(*routes_, from);
        return;
    }
    from_ = found->owner[static_cast<std::size_t>(buckets_.front())];
    for (const std::int32_t bucket : buckets_)
        if (found->owner[static_cast<std::size_t>(bucket)] != from_)
            throw ControlError("22023", buckets_phrase(buckets_) + " are not all of one shard",
                               "Bucket " + std::to_string(buckets_.front()) + " is of shard \"" +
                                   routes_->shards[from_].name + "\", bucket " +
                                   std::to_string(bucket) + " is not.",
                               "Move those of each shard by themselves.");
    if (from_ == to_)
        throw ControlError("55000", buckets_phrase(buckets_) + " of keyspace \"" + keyspace +
                                        "\" " + (buckets_.size() == 1 ? "is" : "are") +
                                        " already on shard \"" + to + "\"");
}

std::unique_ptr<ControlConnection> MoveSession::open_source(std::int64_t timeout) const {
    return open_shard(from_, timeout);
}

std::unique_ptr<ControlConnection> MoveSession::open_target(std::int64_t timeout) const {
    return open_shard(to_, timeout);
}

std::unique_ptr<ControlConnection> MoveSession::open_shard(ShardIndex shard,
                                                           std::int64_t timeout) const {
    auto connection = open_member(*routes_, shard, application, timeout);
    // Greeted with a version, a session is refused what is older than the shard's floor.
    const Rows greeting =
        connection->query("SELECT g.floor, pg_catalog.set_config('lock_timeout', $1, false) "
                          "FROM interlock.greet(0) g",
                          {Param::of_text(std::to_string(request_.lock_timeout))});
    const Shard &member = routes_->shards[shard];
    if (greeting.int32(0, 0) < member.min_floor)
        throw ControlError("55000", "shard \"" + member.name + "\" has lost the decision of a move",
                           "It last gave a bucket away under route version " +
                               std::to_string(member.min_floor) +
                               ", but knows of none later than " + greeting.text(0, 0) + ".",
                           "It may be a standby that was promoted, or an older copy: restore one "
                           "that has the decision.");
    return connection;
}

void MoveSession::connect_shards() {
    source_ = open_source(request_.query_timeout);
    target_ = open_target(request_.query_timeout);
}

void MoveSession::reconnect() {
    if (!catalog_ || catalog_->broken()) connect_catalog();
    if (!source_ || source_->broken()) source_ = open_source(request_.query_timeout);
    if (!target_ || target_->broken()) target_ = open_target(request_.query_timeout);
}

std::vector<MovedTable> MoveSession::tables() {
    // A partitioned table stands for its partitions, whatever those are at the target. Children by
    // inheritance may have columns of their own.
    const Rows rows = source_->query(
        "SELECT t.relid::pg_catalog.regclass, pg_catalog.quote_ident(g.key_column), "
        "  (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY "
        "a.attnum) "
        "   FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.relid AND a.attnum > 0 "
        "     AND NOT a.attisdropped AND a.attgenerated = ''), "
        "  c.relkind = 'r', COALESCE(size.rows, 0), COALESCE(size.bytes, 0) "
        "FROM interlock.guarded_table g "
        "  CROSS JOIN LATERAL interlock.family_tree(g.relid) t "
        "  JOIN pg_catalog.pg_class c ON c.oid = t.relid "
        "  CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.bool_or("
        "        p.reltuples < 0 AND pg_catalog.pg_relation_size(p.oid) > 0) THEN -1 "
        "      ELSE pg_catalog.sum(GREATEST(p.reltuples, 0))::bigint END AS rows, "
        "      pg_catalog.sum(pg_catalog.pg_total_relation_size(p.oid))::bigint AS bytes "
        "    FROM pg_catalog.pg_class p WHERE p.relkind = 'r' AND (p.oid = t.relid "
        "      OR c.relkind = 'p' AND p.oid IN "
        "        (SELECT f.relid FROM interlock.family_tree(t.relid) f))) AS size "
        "WHERE g.keyspace = $1 AND NOT c.relispartition "
        "ORDER BY 1::text",
        {Param::of_text(keyspace().name)});
    std::vector<MovedTable> tables;
    for (int row = 0; row < rows.size(); ++row) {
        MovedTable table;
        table.name = rows.text(row, 0);
        table.key = rows.text(row, 1);
        table.columns = rows.text(row, 2);
        table.only = rows.boolean(row, 3);
        table.estimated_rows = rows.int64(row, 4);
        table.bytes = rows.int64(row, 5);
        tables.push_back(std::move(table));
    }
    return tables;
}

std::string MoveSession::subscriber_conninfo() {
    if (!request_.source_conninfo.empty()) return request_.source_conninfo;
    std::string conninfo = from().conninfo;
    const bool uri = is_uri(conninfo);
    const auto add = [&](const std::string &keyword, const std::string &value) {
        if (!lacks(conninfo, keyword)) return;
        if (uri)
            conninfo += (conninfo.find('?') == std::string::npos ? "?" : "&") + keyword + "=" +
                        uri_value(value);
        else
            conninfo += " " + keyword + "=" + conninfo_value(value);
    };
    add("user", source_->user());
    add("dbname", source_->database());
    return conninfo;
}

}  // namespace interlock
