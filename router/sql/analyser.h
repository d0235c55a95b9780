// The analysis of one statement; see analysis.cpp for the rules and why they hold.
//
// Its parts: analysis.cpp (texts), utility.cpp (statements that are no queries), query.cpp (SELECT,
// WITH), from_clause.cpp (FROM, joins), unnest.cpp, modify.cpp (INSERT, UPDATE, DELETE, MERGE),
// equality.cpp (conditions to pins), parameters.cpp (their types), expressions.cpp (functions,
// operators, sub-links), missing.cpp (why a table is not pinned). What all shards answer together:
// scatter_analysis.h.
//
// Each step returns false when the statement is refused; `refusal` then says why.
#pragma once

#include "sql/analysis.h"
#include "sql/scope.h"

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock::sql {

/// Where a query stands, for the code and the words of a refusal.
struct Place {
    enum class Kind : std::uint8_t { top, from, cte, arm, expression };
    Kind kind = Kind::top;
    std::string_view name{};  ///< of a CTE
};

/// A constant a column can be compared with.
struct Constant {
    KeySource key;
    std::uint32_t type = 0;        ///< its own, from a cast; 0: it takes the other side's
    bool integer_literal = false;  ///< digits without a cast
};

/// What the hint comments in front of a statement allow.
struct Hints {
    bool scatter = false;
    bool partial = false;
};

class Analyser {
  public:
    Analyser(std::string_view text, const Shape &shape, const NameContext &names, Hints hints)
        : text_(text), shape_(shape), names_(names), hints_(hints) {}

    /// Analyses one statement, which stands at text[offset, offset + length).
    [[nodiscard]] bool statement(const Node *node, std::size_t offset, std::size_t length);

    Facts facts;
    Refusal refusal;

  private:
    friend class ScatterAnalysis;
    bool finish();

    // scatter.cpp
    bool read(const Node *node);
    bool scatter(const PgQuery__SelectStmt &statement);
    bool wrapped(const Node *inner, const char *what, const char *hint);
    [[nodiscard]] bool scatter_allowed() const;

    // What is kept when a trial is undone.
    struct Mark {
        std::size_t keys, tables, relations, functions, operators, emitted;
        bool writes, locks, user_code, cacheable;
    };
    [[nodiscard]] Mark mark() const;
    void undo(const Mark &mark);

    // utility.cpp
    bool utility(const Node *node);
    bool transaction(const PgQuery__TransactionStmt &statement);
    bool set(const PgQuery__VariableSetStmt &statement);
    bool set_characteristics(const PgQuery__VariableSetStmt &statement);
    bool explain(const PgQuery__ExplainStmt &statement);
    bool copy(const PgQuery__CopyStmt &statement);
    bool declare_cursor(const PgQuery__DeclareCursorStmt &statement);
    std::optional<std::string> set_value(const PgQuery__VariableSetStmt &statement);
    bool refuse_statement(const Node *node);

    // query.cpp
    bool query(const Node *node, const Scope *parent, const CteScope *ctes, Place place,
               Outputs *out);
    bool select(const PgQuery__SelectStmt &statement, const Scope *parent, const CteScope *ctes,
                Place place, Outputs &out);
    bool set_operation(const PgQuery__SelectStmt &statement, const Scope *parent,
                       const CteScope *ctes, Outputs &out);
    bool values(const PgQuery__SelectStmt &statement, const Scope *parent, const CteScope *ctes,
                Outputs &out);
    bool with(const PgQuery__WithClause &clause, const Scope *parent, CteScope &ctes);
    bool cte(const PgQuery__CommonTableExpr &cte, bool recursive, const Scope *parent,
             CteScope &ctes, std::size_t position);
    bool recursive_cte(const PgQuery__CommonTableExpr &cte, const PgQuery__SelectStmt &query,
                       const Scope *parent, CteScope &ctes, std::size_t position);
    bool targets(Node **list, std::size_t count, const Scope &scope, Outputs &out);
    OutputColumn output(const PgQuery__ResTarget &target, const Scope &scope);
    bool locking(const PgQuery__SelectStmt &statement, const Level &level);
    bool tail(const PgQuery__SelectStmt &statement, const Scope &scope);

    // from_clause.cpp
    bool from_clause(Node **list, std::size_t count, Level &level, const Scope *parent,
                     const CteScope *ctes, std::vector<Item> &items);
    bool from_item(const Node *node, Level &level, const Scope *parent, const CteScope *ctes,
                   const std::vector<Item> &before, std::vector<Item> &items);
    bool join(const PgQuery__JoinExpr &join, Level &level, const Scope *parent,
              const CteScope *ctes, const std::vector<Item> &before, std::vector<Item> &items);
    bool range_var(const PgQuery__RangeVar &range, Level &level, const CteScope *ctes,
                   std::vector<Item> &items);
    bool target_table(const PgQuery__RangeVar &range, Level &level, std::vector<Item> &items);
    const Table *find_table(const PgQuery__RangeVar &range, bool &catalog);
    void use_table(std::uint32_t index);
    const Scope *keep_scope(Level &level, const Scope *parent, const CteScope *ctes,
                            const std::vector<Item> &items);

    // unnest.cpp
    bool unnest(const PgQuery__RangeFunction &function, Outputs &out);

    // modify.cpp
    bool insert(const PgQuery__InsertStmt &statement, const Scope *parent, const CteScope *ctes,
                Place place, Outputs *out);
    bool insert_rows(const PgQuery__InsertStmt &statement, const Table &table, std::size_t position,
                     const Scope &scope, Place place, Pin &pin);
    bool on_conflict(const PgQuery__OnConflictClause &clause, Level &level, const Scope &scope);
    template <typename Statement>
    bool open_modify(const Statement &statement, Node **from, std::size_t from_count, CteScope &own,
                     Scope &scope);
    bool update(const PgQuery__UpdateStmt &statement, const Scope *parent, const CteScope *ctes,
                Place place, Outputs *out);
    bool remove(const PgQuery__DeleteStmt &statement, const Scope *parent, const CteScope *ctes,
                Place place, Outputs *out);
    bool merge(const PgQuery__MergeStmt &statement, const Scope *parent, const CteScope *ctes,
               Place place);
    bool merge_action(const PgQuery__MergeWhenClause &clause, const Table &table,
                      const Scope &source, const Scope &both);
    bool assignments(Node **list, std::size_t count, const Table &table, const Scope &scope,
                     std::vector<KeySource> *keys);
    bool insert_columns(Node **list, std::size_t count, const Table &table, int location,
                        std::size_t &position);
    Pin value_pin(const Node *node, const Table &table, const Scope &scope);

    // equality.cpp
    void collect(Level &level);
    void condition(const Node *node, const Scope &scope, Range allowed, Level &level);
    void equality(const Node *left, const Node *right, const Scope &scope, Range allowed,
                  Level &level);
    void membership(const PgQuery__AExpr &expression, const Scope &scope, Range allowed,
                    Level &level);
    Pin array_pin(const Node *array, std::uint32_t type);
    void any_array(const PgQuery__AExpr &expression, const Scope &scope, Range allowed,
                   Level &level);
    void any_sublink(const PgQuery__SubLink &sublink, const Scope &scope, Range allowed,
                     Level &level);
    void bind(Level &level, Target target, std::vector<PinSource> sources, Range allowed);
    bool pin_level(Level &level);
    bool laterals(Level &level);
    bool check_pinned(Level &level, Place place);
    bool is_equals(Node **name, std::size_t count) const;
    Target column(const Node *node, const Scope &scope, std::uint32_t &type) const;
    std::optional<Constant> constant(const Node *node);
    std::optional<Constant> literal(const PgQuery__AConst &value);
    std::optional<PinSource> source(const Constant &constant, std::uint32_t column_type);
    std::optional<std::uint32_t> literal_at(int location, bool negated, bool &negative);
    Pin known_pin(Target target) const;
    std::uint32_t node_of(Level &level, Target target) const;
    Pin make_pin(std::vector<PinSource> sources, std::uint32_t type, std::uint32_t weight);
    std::uint32_t cast_type(const PgQuery__TypeName &type, bool &array) const;
    void emit(Pin pin, std::uint32_t table);

    // expressions.cpp
    bool walk(const Node *node, const Scope &scope);
    bool walk_list(Node **list, std::size_t count, const Scope &scope);
    bool walk_fields(const ProtobufCMessage &message, const Scope &scope);
    bool function(const PgQuery__FuncCall &call, const Scope &scope);
    bool function_name(Node **name, std::size_t count, int location);
    bool field_name(std::string_view name, int location);
    bool operator_name(Node **name, std::size_t count, int location);
    void note_operator(std::string_view name);
    bool sublink(const PgQuery__SubLink &sublink, const Scope &scope);
    bool step();

    // parameters.cpp
    void note_parameter(const Node *node, std::uint32_t type, bool array = false);
    void note_parameter_at(std::uint32_t location, std::uint32_t type, bool array = false);
    void note_untyped(const Node *node);
    void note_comparison(const PgQuery__AExpr &expression, const Scope &scope);
    void check_parameters();

    // missing.cpp
    bool refuse_unpinned(Level &level, std::uint32_t relation, Place place);
    std::string near_miss(Level &level, std::uint32_t relation);

    [[nodiscard]] int position(int location) const;
    bool refuse(Code code, int location, std::string message, std::string hint = {},
                std::string detail = {});
    [[nodiscard]] std::string statement_text() const;
    /// Whether "int8" means pg_catalog.int8: pg_catalog is looked in first.
    [[nodiscard]] bool catalog_first() const;

    std::string_view text_;
    const Shape &shape_;
    const NameContext &names_;
    Hints hints_;
    std::size_t offset_ = 0;
    std::size_t length_ = 0;
    std::uint32_t steps_ = 0;
    std::uint32_t relations_ = 0;
    std::deque<PinSet> pin_sets_;
    std::deque<Outputs> cte_outputs_;
    struct Emitted {
        Pin pin;
        std::uint16_t keyspace;
        KeyType type;
    };
    std::vector<Emitted> emitted_;
    /// Each place where a parameter stands, by its location.
    struct ParameterUse {
        std::uint32_t number = 0;  ///< from 0
        std::uint32_t type = 0;    ///< what it is there; 0: not known
        bool array = false;
        bool any_type = false;  ///< says nothing about its type: $1 IS NULL
    };
    std::unordered_map<std::uint32_t, ParameterUse> parameters_;
};

/// "account_id", quoted where SQL needs it.
[[nodiscard]] std::string quote_identifier(std::string_view name);

}  // namespace interlock::sql
