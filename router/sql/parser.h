// PostgreSQL's own parser: a text to its raw parse tree (libpg_query).
#pragma once

#include "base/result.h"
#include "sql/refusal.h"

#include <cstddef>
#include <memory>
#include <pg_query/pg_query.pb-c.h>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::sql {

/// Memory of one tree, given back all at once.
class TreeArena {
  public:
    TreeArena();
    ~TreeArena();
    TreeArena(const TreeArena &) = delete;
    TreeArena &operator=(const TreeArena &) = delete;
    [[nodiscard]] void *allocate(std::size_t bytes);

  private:
    std::vector<char *> blocks_;
    char *at_ = nullptr;
    std::size_t left_ = 0;
};

struct ParseTree {
    std::unique_ptr<TreeArena> arena;
    PgQuery__ParseResult *result = nullptr;  ///< lives in the arena
};

/// Parses `text`. Recurses as deep as the text is nested: to be called on_deep_stack() after
/// pre_scan() has found it shallow enough. A syntax error is R01 with SQLSTATE 42601, the parser's
/// message and the position.
[[nodiscard]] Result<ParseTree, Refusal> parse(const std::string &text);

}  // namespace interlock::sql
