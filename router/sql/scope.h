// What names mean at one place of a statement: relations of a level, what of them is visible where,
// and the columns a sub-select gives out. After PostgreSQL's parse_relation.c and parse_clause.c.
#pragma once

#include "sql/parser.h"
#include "sql/pins.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::sql {

using Node = PgQuery__Node;

/// A column of a sub-select, CTE, VALUES list or function.
struct OutputColumn {
    std::string_view name;   ///< empty: not known
    std::uint32_t type = 0;  ///< OID, of a type a key can have; 0: another or not known
    bool linkable = false;   ///< an equality with it means the same value: the type is known and,
                             ///< for text, the collation deterministic
    bool untyped = false;    ///< a constant that takes the type it meets
    Pin pin = nullptr;
};

struct Outputs {
    std::vector<OutputColumn> columns;
    bool open = false;  ///< there may be more columns, of unknown names
};

/// Gives the columns new names, in order.
void rename(Outputs &outputs, Node **names, std::size_t count);

/// A range table entry.
struct Relation {
    enum class Kind : std::uint8_t { table, catalog, rows, function };
    Kind kind = Kind::rows;
    const Table *table = nullptr;  ///< of a sharded table
    std::uint32_t table_index = 0;
    Outputs outputs;                        ///< of the other kinds
    std::vector<std::string_view> renamed;  ///< column aliases of a table, of its first columns
    std::string_view name;                  ///< alias, or the relation's own name
    int location = -1;                      ///< bytes into the text

    [[nodiscard]] bool open() const { return kind != Kind::table && outputs.open; }
    [[nodiscard]] std::size_t columns() const {
        return kind == Kind::table ? table->columns.size() : outputs.columns.size();
    }
    [[nodiscard]] std::string_view column_name(std::size_t column) const;
    [[nodiscard]] std::uint32_t column_type(std::size_t column) const;
    /// See OutputColumn::linkable.
    [[nodiscard]] bool linkable(std::size_t column) const;
    [[nodiscard]] Pin column_pin(std::size_t column) const {
        return kind == Kind::table ? nullptr : outputs.columns[column].pin;
    }
    /// Where exactly one column has this name.
    [[nodiscard]] std::optional<std::uint32_t> find(std::string_view column) const;
    [[nodiscard]] bool is_key(std::size_t column) const {
        return kind == Kind::table && table->key_column == column;
    }
};

struct Level;

/// A column that a name was resolved to.
struct Target {
    Level *level = nullptr;  ///< null: not resolved, or no column of one relation
    std::uint32_t relation = 0;
    std::uint32_t column = 0;
    explicit operator bool() const { return level != nullptr; }
};

/// A column of a join as its users see it.
struct JoinColumn {
    std::string_view name;
    Target target;  ///< empty where it is no single column (merged by FULL JOIN)
};
struct JoinColumns {
    std::vector<JoinColumn> columns;
    bool open = false;
};

/// Something names are looked up in.
struct Item {
    std::string_view name;  ///< what stands before the dot; empty: nothing can
    std::string_view schema;
    std::uint32_t relation = 0;
    std::shared_ptr<const JoinColumns> join;  ///< in place of a relation
    bool columns_visible = true;
    bool name_visible = true;
};

/// A common table expression that is visible.
struct Cte {
    std::string_view name;
    const Outputs *outputs = nullptr;  ///< null: not analysed yet (WITH RECURSIVE, further down)
};
struct CteScope {
    const CteScope *parent = nullptr;
    std::vector<Cte> ctes;
};

struct Scope {
    const Scope *parent = nullptr;
    Level *level = nullptr;
    const CteScope *ctes = nullptr;
    std::vector<Item> items;
};

/// A condition that every row of the ranges `allowed` must meet to matter.
struct Qualifier {
    const Node *expression = nullptr;
    const Scope *scope = nullptr;
    Range allowed;
    bool outer = false;  ///< ON of an outer join
};

/// Columns made equal by USING or NATURAL.
struct ColumnLink {
    Target left;
    Target right;
    Range allowed;
};

/// A FROM item whose expressions may refer to what stands before it.
struct Lateral {
    const Node *item = nullptr;
    std::uint32_t relation = 0;
    const Scope *scope = nullptr;
};

/// One query without the queries in it.
struct Level {
    std::vector<Relation> relations;
    std::vector<Qualifier> qualifiers;
    std::vector<ColumnLink> links;
    std::vector<Lateral> laterals;
    std::deque<Scope> scopes;  ///< of qualifiers and laterals; the addresses stay
    PinSolver pins;
};

/// The column `name` of the relation, or join, an item stands for; `open` is set where it could be
/// a column that is not known.
[[nodiscard]] Target find_in_item(const Item &item, Level &level, std::string_view name,
                                  bool &open);

/// Every column of the visible items, in the order of "*".
void expand_items(const std::vector<Item> &items, Level &level, JoinColumns &out);

/// What a column reference means: the column, or nothing where that is not known for certain. If
/// the server takes the text at all, it takes it for this column.
[[nodiscard]] Target resolve(const PgQuery__ColumnRef &reference, const Scope &scope);

/// Whether a qualified reference names a relation in scope that is known not to have the column.
/// The server then looks for a function of that name that takes the row.
[[nodiscard]] bool may_call_function(const PgQuery__ColumnRef &reference, const Scope &scope);

/// The string in a String node; empty for another node.
[[nodiscard]] std::string_view string_of(const Node *node);

}  // namespace interlock::sql
