// The analysis of a statement that all shards answer together, and the edits it needs.
//
// Three forms are known, each exact by construction:
//   * a page: SELECT ... FROM interlock.keyset_page(...): every shard gives its page in the order
//   of
//     the keyset; the first rows of the merge are the page (scatter_page.cpp);
//   * rows of one table in an order, up to a LIMIT: a row at global rank k cannot rank below k on
//   its
//     own shard, so LIMIT + OFFSET rows of each are enough (scatter_ordered.cpp);
//   * count, sum, min, max, avg, with or without GROUP BY: each shard gives its part of each group
//     (scatter_aggregate.cpp).
// Everything else is refused. What holds for all of them:
//   1. A shard's rows are those whose key it owns (interlock.owned, in WHERE), so no row counts
//      twice while buckets move.
//   2. Each expression means the same on every shard: built-in functions that go by their arguments
//      and by settings alone; no system columns, no whole rows, no sub-selects. What goes by the
//      clock may stand where it only picks rows or is shown, not where it says how they are
//      ordered.
//   3. What the rows are ordered or grouped by is worked out by PostgreSQL's rules for names and
//      numbers in ORDER BY and GROUP BY, and written a second time, in a hidden column.
//   4. The edited text is parsed again and compared with the tree of the client's: apart from what
//      was put in they must be the same (scatter_edits.cpp). So a mistake about where a clause ends
//      is a refusal, never another statement.
#pragma once

#include "sql/analyser.h"
#include "sql/scatter_text.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace interlock::sql {

class ScatterAnalysis {
  public:
    ScatterAnalysis(Analyser &analyser, const PgQuery__SelectStmt &statement);

    /// Whether it reads from interlock.keyset_page.
    [[nodiscard]] static const PgQuery__RangeFunction *
    page_of(const PgQuery__SelectStmt &statement);

    // Each fills the analyser's facts, or is false and leaves the refusal there.
    [[nodiscard]] bool page();
    [[nodiscard]] bool rows();

  private:
    using Clause = SelectText::Clause;
    using Piece = SelectText::Piece;

    /// Where an expression stands, for what it may be.
    enum class Use : std::uint8_t {
        row,    ///< picks a row, or is shown
        order,  ///< says how rows are ordered or grouped
        page,   ///< of a page's target list
        value,  ///< an argument of keyset_page
    };

    /// A column of the answer.
    struct Output {
        std::optional<std::string_view> name;  ///< nothing: not worked out
        const Node *node = nullptr;            ///< null: a column of "*"
        std::optional<std::uint32_t> column;   ///< where it is a column of the table
        std::size_t target = 0;
    };

    /// What rows are ordered or grouped by.
    struct Key {
        const Node *node = nullptr;           ///< null: the column
        std::optional<std::uint32_t> column;  ///< of the table
        std::string text;                     ///< as it can be written anywhere
        bool descending = false;
        bool nulls_first = false;
        bool any_order = false;  ///< equal values have to stand together, and that is all
        int location = -1;
    };

    // scatter_rows.cpp: what the forms over one table have in common
    bool check_form();
    bool open_table();
    bool read_outputs();
    std::optional<ValueSource> value_of(const Node *node);
    bool limits();
    bool add_filter();
    [[nodiscard]] const Table &table() const { return *level_.relations[0].table; }

    // scatter_expressions.cpp
    bool check(const Node *node, Use use);
    bool check_list(Node **list, std::size_t count, Use use);
    bool check_call(const PgQuery__FuncCall &call, Use use);
    bool check_column(const PgQuery__ColumnRef &reference, Use use);
    bool check_cast(const PgQuery__TypeCast &cast);
    bool check_literal(const PgQuery__AConst &value, Use use);
    [[nodiscard]] std::optional<std::uint32_t> column_of(const Node *node) const;
    [[nodiscard]] bool by_collation(const Key &key) const;
    [[nodiscard]] bool by_collation(const Node *node) const;

    // scatter_keys.cpp
    std::optional<Key> sort_key(std::size_t index);
    std::optional<Key> key_by_name(std::string_view name, int location);
    std::optional<Key> key_by_number(int number, int location);
    std::optional<Key> key_of_output(const Output &output, int location);
    std::optional<Key> key_of(const Node *node, const Piece &piece, int location);
    std::optional<Key> copied(const Node *node, const Piece &piece, int location);
    Key column_key(std::uint32_t column, int location) const;
    [[nodiscard]] bool same_key(const Key &a, const Key &b) const;
    [[nodiscard]] static std::string key_call(const Key &key);
    [[nodiscard]] static std::string merge_key(const std::vector<Key> &keys);

    // scatter_ordered.cpp
    bool ordered();
    void note_order(const std::vector<Key> &keys);

    // scatter_aggregate.cpp
    [[nodiscard]] bool aggregates() const;
    bool aggregate();
    bool read_groups();
    std::optional<Key> group_key(const Node *node, const Piece &piece);
    bool read_order_of_groups();
    bool read_columns();
    bool aggregate_column(const Output &output);

    // scatter_page.cpp
    bool page_arguments(const PgQuery__FuncCall &call);
    bool page_table(const Node *argument);
    bool default_size(const PgQuery__FuncCall &call);
    bool page_columns();
    void page_target(const Node *node, std::uint16_t &position);
    [[nodiscard]] std::optional<std::uint32_t> page_star(const Node *node) const;

    // scatter_index.cpp
    void note_call(const PgQuery__RangeFunction &function, const PgQuery__FuncCall &call);
    [[nodiscard]] bool prove_rows() const;
    [[nodiscard]] bool prove_entries() const;

    // scatter_edits.cpp
    void insert(std::uint32_t offset, std::string text) { replace({offset, 0}, std::move(text)); }
    void replace(Piece piece, std::string text);
    void add_hidden(const std::string &expression);
    bool finish();
    bool prove();
    [[nodiscard]] const PgQuery__SelectStmt *reread(const std::string &text,
                                                    std::optional<ParseTree> &tree) const;
    [[nodiscard]] bool same_but_from(const PgQuery__SelectStmt &edited) const;
    bool same_conditions(const PgQuery__SelectStmt &edited) const;
    bool same_from(const PgQuery__SelectStmt &edited) const;
    bool unreadable();
    bool refuse(int location, std::string message, std::string hint = {});

    Analyser &analyser_;
    const PgQuery__SelectStmt &statement_;
    Scatter scatter_;
    std::optional<SelectText> text_;
    Level level_;
    Scope scope_;
    std::vector<Output> outputs_;
    std::vector<std::string> hidden_;
    std::vector<Key> groups_;
    std::vector<Key> order_;
    std::size_t added_order_ = 0;  ///< items of ORDER BY that were put in
    bool filter_ = false;
    std::optional<std::size_t> page_size_at_;  ///< which argument of keyset_page it is
    std::vector<std::size_t> page_arguments_;  ///< which parameter each argument as written is
    std::unordered_map<std::int32_t, std::uint32_t> parameter_uses_;
};

/// "name", always in quotes.
[[nodiscard]] std::string quoted(std::string_view name);

/// The name PostgreSQL gives an output (FigureColname); nothing where it is not worked out here.
[[nodiscard]] std::optional<std::string_view> output_name(const PgQuery__ResTarget &target);

[[nodiscard]] bool is_star(const Node *node);

}  // namespace interlock::sql
