// From a scatter's request to the bytes that every shard is sent. Pure.
#pragma once

#include "session/merged_rows.h"
#include "session/scatter_checks.h"
#include "session/scatter_stream.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace interlock {

/// The statement for the shards: the edits made, the default page put in where it is needed.
[[nodiscard]] std::string shard_text(const sql::Scatter &scatter, std::string_view text,
                                     std::uint64_t default_page);

/// Formats of all columns, as Bind has them: those the client asked for, and text for the hidden
/// ones; of an aggregate only for the merge key, its partial values are binary.
[[nodiscard]] std::vector<std::uint16_t> shard_formats(const sql::Scatter &scatter,
                                                       const std::vector<std::uint16_t> &formats);

[[nodiscard]] std::shared_ptr<const ShardRequest> shard_request(const ScatterRequest &request,
                                                                const ScatterExtent &extent);

/// A statement made of the client's.
struct ShardStatement {
    std::string text;
    std::vector<std::uint32_t> types;  ///< of its parameters
    std::span<const BoundParameter> parameters;
    std::vector<std::uint16_t> formats;  ///< of its columns, as in Bind
    std::uint16_t hidden = 0;            ///< columns at the end of each row
    std::uint64_t most = 0;              ///< rows that may come
    bool leave_open = false;             ///< its transaction is still needed when they have
};

/// The same for another statement, in the session and the transaction of the request.
[[nodiscard]] std::shared_ptr<const ShardRequest> shard_request(const ScatterRequest &request,
                                                                const ShardStatement &statement);

}  // namespace interlock
