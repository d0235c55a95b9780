#include "tools/rebalance_measure.h"

#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <thread>

#include "base/control.h"
#include "tools/index_model.h"

namespace interlock {

namespace {

constexpr const char *application = "interlock rebalance";

// Of a row, beside its values: the header and the pointer to it.
constexpr const char *row_overhead = "28";

/// One shard, while its buckets are measured.
class ShardMeasure {
  public:
    ShardMeasure(const RouteTable &routes, ShardIndex shard, const BalanceRequest &request)
        : routes_(routes), shard_(shard), request_(request),
          connection_(open_member(routes, shard, application, request.query_timeout)) {
        for (std::size_t k = 0; k < routes.keyspaces.size(); ++k)
            if (wanted(k)) names_.push_back(routes.keyspaces[k].name);
    }

    /// From now on what is written counts.
    void begin_observation() {
        const auto next = static_cast<std::uint64_t>(
            connection_
                ->query("SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())"
                        "::pg_catalog.text::pg_catalog.int8")
                .int64(0, 0));
        first_transaction_ = std::to_string(next & 0xFFFFFFFF);
        written_before_ = rows_written();
    }

    BucketSizes measure() {
        const std::int64_t written =
            request_.by == BalanceBy::load ? rows_written() - written_before_ : 0;
        BucketSizes sizes(routes_.keyspaces.size());
        for (std::size_t k = 0; k < sizes.size(); ++k)
            if (wanted(k)) sizes[k] = measure(routes_.keyspaces[k]);
        double factor = 100 / request_.sample;
        double found = 0;
        for (const auto &keyspace : sizes)
            for (const std::int64_t size : keyspace)
                found += static_cast<double>(size) * factor;
        if (found > 0 && static_cast<double>(written) > found)
            factor *= static_cast<double>(written) / found;
        for (auto &keyspace : sizes)
            for (std::int64_t &size : keyspace)
                size = std::llround(static_cast<double>(size) * factor);
        return sizes;
    }

  private:
    bool wanted(std::size_t keyspace) const {
        return request_.keyspace.empty() || routes_.keyspaces[keyspace].name == request_.keyspace;
    }

    std::int64_t rows_written() {
        return connection_
            ->query("SELECT COALESCE(sum(s.n_tup_ins + s.n_tup_upd + s.n_tup_del), 0)::int8 "
                    "FROM interlock.guarded_table g "
                    "  CROSS JOIN LATERAL interlock.family_tree(g.relid) m "
                    "  JOIN pg_catalog.pg_stat_all_tables s ON s.relid = m.relid "
                    "WHERE g.keyspace = ANY ($1)",
                    {Param::of_text_array(names_)})
            .int64(0, 0);
    }

    std::vector<std::int64_t> measure(const Keyspace &keyspace) {
        std::vector<std::int64_t> sizes(static_cast<std::size_t>(keyspace.buckets));
        // Inheritance children may have columns of their own; they are left out of the bytes.
        const Rows tables = connection_->query(
            "SELECT g.relid::pg_catalog.regclass::pg_catalog.text, "
            "  pg_catalog.quote_ident(g.key_column), "
            "  (SELECT pg_catalog.string_agg(pg_catalog.format("
            "     'COALESCE(pg_catalog.pg_column_size(t.%I), 0)', a.attname), ' + ') "
            "   FROM pg_catalog.pg_attribute a "
            "   WHERE a.attrelid = g.relid AND a.attnum > 0 AND NOT a.attisdropped) "
            "FROM interlock.guarded_table g WHERE g.keyspace = $1 "
            "ORDER BY g.relid::pg_catalog.oid",
            {Param::of_text(keyspace.name)});
        for (int row = 0; row < tables.size(); ++row)
            measure(keyspace, tables.text(row, 0), tables.text(row, 1), tables.text(row, 2), sizes);
        return sizes;
    }

    void measure(const Keyspace &keyspace, const std::string &table, const std::string &key,
                 const std::string &column_sizes, std::vector<std::int64_t> &sizes) {
        std::string amount = "1";
        std::string from = table + " t";
        std::vector<Param> params{Param::of_text(keyspace.name)};
        if (request_.by == BalanceBy::bytes) amount = row_overhead + (" + " + column_sizes);
        if (request_.by == BalanceBy::load) {
            amount = "CASE WHEN pg_catalog.age(t.xmin) <= pg_catalog.age($2::pg_catalog.xid) "
                     "THEN 1 ELSE 0 END";
            params.push_back(Param::of_text(first_transaction_));
        }
        if (request_.sample < 100)
            from += " TABLESAMPLE SYSTEM (" + std::to_string(request_.sample) + ")";
        // OFFSET 0: the bucket is computed once a row.
        const Rows rows = connection_->query_within(request_.scan_timeout,
                                                    "SELECT r.bucket, sum(r.amount)::int8 "
                                                    "FROM (SELECT interlock.bucket_of($1, t." +
                                                        key + ") AS bucket, (" + amount +
                                                        ")::int8 AS amount FROM " + from +
                                                        " OFFSET 0) AS r GROUP BY r.bucket",
                                                    params);
        for (int row = 0; row < rows.size(); ++row) {
            const auto bucket = static_cast<std::size_t>(rows.int32(row, 0));
            // What a move left here, or has brought here before it is this shard's, counts where
            // its bucket is owned.
            if (bucket < sizes.size() && keyspace.owner[bucket] == shard_)
                sizes[bucket] += rows.int64(row, 1);
        }
    }

    const RouteTable &routes_;
    ShardIndex shard_;
    const BalanceRequest &request_;
    std::unique_ptr<ControlConnection> connection_;
    std::vector<std::string> names_;
    std::string first_transaction_;
    std::int64_t written_before_ = 0;
};

}  // namespace

BucketSizes measure_buckets(const RouteTable &routes, const BalanceRequest &request) {
    std::vector<std::unique_ptr<ShardMeasure>> shards;
    for (std::size_t s = 0; s < routes.shards.size(); ++s)
        if (!routes.shards[s].index_only)
            shards.push_back(
                std::make_unique<ShardMeasure>(routes, static_cast<ShardIndex>(s), request));
    if (request.by == BalanceBy::load) {
        for (const auto &shard : shards)
            shard->begin_observation();
        std::this_thread::sleep_for(std::chrono::milliseconds(request.observe));
    }
    std::vector<std::future<BucketSizes>> running;
    for (const auto &shard : shards)
        running.push_back(
            std::async(std::launch::async, [measure = shard.get()] { return measure->measure(); }));
    BucketSizes all(routes.keyspaces.size());
    for (auto &one : running) {
        const BucketSizes own = one.get();
        for (std::size_t k = 0; k < own.size(); ++k) {
            all[k].resize(own[k].size());
            for (std::size_t b = 0; b < own[k].size(); ++b)
                all[k][b] += own[k][b];
        }
    }
    return all;
}

}  // namespace interlock
