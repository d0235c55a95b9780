// The statements of `interlock repair`: how rows and entries are walked over and looked up.
//
// Values travel as jsonb, in the one exact format of row_values(), and become typed on the server
// by the types that the index declares, so nothing here knows types or orders of values. A key is
// an object of the key's columns.
#pragma once

#include <string>
#include <vector>

#include "tools/index_model.h"

namespace interlock {

/// What is compared: the rows, and the entries, that have these values.
struct RepairScope {
    std::string json;                  ///< as given; empty: everything is compared
    std::vector<std::size_t> columns;  ///< positions in IndexModel::columns: those with a value
    std::vector<std::size_t> nulls;    ///< those that shall be null
};

/// Which ends a range of keys has.
struct RepairRange {
    bool lower = false;  ///< behind $1
    bool upper = false;  ///< up to and with $2
};

class RepairSql {
  public:
    RepairSql(const IndexModel &model, const RepairScope &scope);

    // Walking. $1 and $2 ends of the range (or null), $3 the most rows, $4 the scope (or null); in
    // the order of the key, by the primary key's index.

    /// Live entries: key, values, hash of the shard key, shard that the entry names.
    [[nodiscard]] std::string entries(RepairRange range) const;
    /// Rows that the shard answers for: key, values.
    [[nodiscard]] std::string rows(RepairRange range) const;

    // Looking up. One row for each key, in their order.

    /// Of keys ($1, an array) and what their entries should hold ($2, an array of values or null):
    /// hash of the shard key; of the entry xmin (null: there is none), route version, seq, whether
    /// deleted, values, whether those are the ones in $2.
    [[nodiscard]] std::string find_entries() const;
    /// Of keys ($1): whether the shard answers for it; values of the row, or null.
    [[nodiscard]] std::string find_rows() const;

    /// Reads the scope ($1, jsonb) by the types of its columns.
    [[nodiscard]] std::string check_scope() const;

  private:
    std::string typed(const std::vector<std::size_t> &columns) const;
    std::string array(const std::vector<std::size_t> &columns) const;
    std::string key_values() const;
    std::string values() const;
    std::string in_range(RepairRange range) const;
    std::string in_scope() const;
    std::string from_keys(const std::string &table) const;
    std::string owned(const char *alias) const;

    const IndexModel &model_;
    const RepairScope &scope_;
};

/// `text` as SQL writes a string, whatever standard_conforming_strings says.
[[nodiscard]] std::string sql_string(const std::string &text);

}  // namespace interlock
