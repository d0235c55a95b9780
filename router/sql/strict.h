// The `strict` profile: a grammar so small that what it accepts needs no judgement.
//
//     BEGIN | COMMIT | ROLLBACK
//     SELECT (* | col[, col]*) FROM table WHERE <key>
//     UPDATE table SET item[, item]* WHERE <key>            item := col = ? | col = col (+|-) ?
//     DELETE FROM table WHERE <key>
//     INSERT INTO table (col[, col]*) VALUES (?[, ?]*)      names the shard key; one row
//     SELECT * FROM interlock.keyset_page(?, NULL::table[, ?]*)     at most six arguments
//     <key> := shardkey = ? [AND version = ?] | shardkey IN (?[, ?]*)
//
// Keywords in any case, names folded to lower case; `table` may be schema-qualified; `version` is
// the table's declared optimistic-lock column. The SQL that a shard receives is written anew from
// the analysis, so no byte of the client's text reaches a database: the grammar is an injection
// boundary too.
#pragma once

#include "base/result.h"
#include "sql/refusal.h"
#include "sql/statement.h"

#include <string_view>

namespace interlock::sql {

/// Judges one statement against the tables of `routes`. The result points into `routes`.
[[nodiscard]] Result<Statement, Refusal> analyse_strict(std::string_view text,
                                                        const RouteTable &routes);

}  // namespace interlock::sql
