// What a page from a global index sends to the index's database and to the shards, and how the
// former's refusals are told. Pure.
#pragma once

#include "session/merged_rows.h"
#include "session/scatter_stream.h"
#include "sql/index_page.h"

#include <memory>
#include <span>
#include <string>

namespace interlock {

/// The entries wanted. Hidden column: the sort key.
[[nodiscard]] std::shared_ptr<const ShardRequest> entries_request(const ScatterRequest &request,
                                                                  const GlobalIndex &index,
                                                                  const sql::EntryWish &wish);

/// The rows that these cursors stand for, from one shard.
[[nodiscard]] std::shared_ptr<const ShardRequest>
rows_request(const ScatterRequest &request, std::span<const std::string> cursors);

/// A refusal of the index's database, as the client is told it: whose it is, and what else to do.
[[nodiscard]] Refusal told_of_index(Refusal refusal, const GlobalIndex &index,
                                    const std::string &database);

/// The database does not know the index: no such table, type, keyset, or schema.
[[nodiscard]] bool unknown_there(const Refusal &refusal);

}  // namespace interlock
