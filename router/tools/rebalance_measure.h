// How much each bucket is: what `interlock rebalance` evens out, measured on the shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "route/route_table.h"

namespace interlock {

enum class BalanceBy : std::uint8_t {
    rows,
    /// What the rows take as they are stored, compressed and out of line too; no indexes, and no
    /// room that is free.
    bytes,
    /// Rows written. By bucket: those that were inserted or updated while the shards were observed,
    /// each once, as the rows themselves tell. What a shard's own statistics count beyond that (a
    /// row written again and again, and deletions) is spread over its buckets in proportion. Reads
    /// leave no trace by bucket, and are not part of it.
    load,
};

struct BalanceRequest {
    std::string keyspace;  ///< empty: all of them together
    BalanceBy by = BalanceBy::rows;
    double sample = 100;            ///< per cent of the tables' pages that are read
    std::int64_t observe = 60'000;  ///< ms, for the load
    std::int64_t query_timeout = 5000;
    std::int64_t scan_timeout = 3'600'000;
};

/// By keyspace of the routes and bucket, as its owner has it; empty for keyspaces not asked for.
using BucketSizes = std::vector<std::vector<std::int64_t>>;

/// Reads all shards at the same time. Throws ControlError; its message names the member.
[[nodiscard]] BucketSizes measure_buckets(const RouteTable &routes, const BalanceRequest &request);

}  // namespace interlock
