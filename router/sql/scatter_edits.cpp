// What is put into the text, and the proof that nothing else has changed.
#include "sql/parse_limits.h"
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

#include <algorithm>

namespace interlock::sql {

std::string quoted(std::string_view name) {
    std::string out = "\"";
    for (const char c : name) {
        if (c == '"') out += c;
        out += c;
    }
    return out + '"';
}

bool ScatterAnalysis::refuse(int location, std::string message, std::string hint) {
    if (location < 0) location = static_cast<int>(analyser_.offset_);
    return analyser_.refuse(Code::scatter_unsupported, location, std::move(message),
                            std::move(hint));
}

bool ScatterAnalysis::unreadable() {
    return refuse(-1, "the statement is spelled in a way that the router cannot edit",
                  "Write it without parentheses around it, and names and numbers in their plain "
                  "forms.");
}

void ScatterAnalysis::replace(Piece piece, std::string text) {
    scatter_.edits.push_back({piece.offset, piece.length, std::move(text)});
}

void ScatterAnalysis::add_hidden(const std::string &expression) {
    hidden_.push_back(expression);
}

// The hidden columns stand at the end of the target list; with names of their own, so that ORDER BY
// cannot mean one of them.
bool ScatterAnalysis::finish() {
    std::string columns;
    for (std::size_t i = 0; i < hidden_.size(); ++i)
        columns += ", " + hidden_[i] + " AS \"interlock:" + std::to_string(i) + "\"";
    if (!columns.empty()) insert(text_->targets().back().end(), std::move(columns));
    scatter_.allowed_by_hint = analyser_.hints_.scatter;
    scatter_.partial_by_hint = analyser_.hints_.partial;
    scatter_.allowed_by_table = table().scatter;
    scatter_.hidden = static_cast<std::uint16_t>(hidden_.size());
    std::sort(scatter_.edits.begin(), scatter_.edits.end(),
              [](const TextEdit &a, const TextEdit &b) { return a.offset < b.offset; });
    if (!prove()) return false;
    scatter_.call.sound = scatter_.call.sound && prove_rows() && prove_entries();
    analyser_.facts.cacheable = false;
    analyser_.facts.scatter = std::make_shared<const Scatter>(std::move(scatter_));
    return true;
}

bool ScatterAnalysis::same_conditions(const PgQuery__SelectStmt &edited) const {
    if (!filter_) return same_node(statement_.where_clause, edited.where_clause);
    const auto is_filter = [](const Node *node) {
        return node != nullptr && node->node_case == PG_QUERY__NODE__NODE_FUNC_CALL &&
               node->func_call->n_funcname == 2 &&
               string_of(node->func_call->funcname[0]) == "interlock" &&
               string_of(node->func_call->funcname[1]) == "owned";
    };
    const Node *before = statement_.where_clause;
    if (before == nullptr) return is_filter(edited.where_clause);
    if (edited.where_clause == nullptr ||
        edited.where_clause->node_case != PG_QUERY__NODE__NODE_BOOL_EXPR)
        return false;
    const PgQuery__BoolExpr &both = *edited.where_clause->bool_expr;
    if (both.boolop != PG_QUERY__BOOL_EXPR_TYPE__AND_EXPR || both.n_args < 2 ||
        !is_filter(both.args[both.n_args - 1]))
        return false;
    // The parser makes one list of (a AND b) AND c.
    const bool list = before->node_case == PG_QUERY__NODE__NODE_BOOL_EXPR &&
                      before->bool_expr->boolop == PG_QUERY__BOOL_EXPR_TYPE__AND_EXPR;
    if (!list) return both.n_args == 2 && same_node(before, both.args[0]);
    return before->bool_expr->n_args + 1 == both.n_args &&
           same_nodes(before->bool_expr->args, both.args, before->bool_expr->n_args);
}

// The same FROM, but for the page size that was put in.
bool ScatterAnalysis::same_from(const PgQuery__SelectStmt &edited) const {
    if (edited.n_from_clause != statement_.n_from_clause) return false;
    if (!scatter_.default_page.needed)
        return same_nodes(statement_.from_clause, edited.from_clause, edited.n_from_clause);
    const PgQuery__RangeFunction *was = page_of(statement_);
    const PgQuery__RangeFunction *is = page_of(edited);
    if (was == nullptr || is == nullptr ||
        !same_tree(was->alias == nullptr ? nullptr : &was->alias->base,
                   is->alias == nullptr ? nullptr : &is->alias->base))
        return false;
    const PgQuery__FuncCall &before = *was->functions[0]->list->items[0]->func_call;
    const PgQuery__FuncCall &now = *is->functions[0]->list->items[0]->func_call;
    if (now.n_args != before.n_args + (page_size_at_ ? 0U : 1U)) return false;
    for (std::size_t i = 0; i < before.n_args; ++i)
        if (i != page_size_at_ && !same_node(before.args[i], now.args[i])) return false;
    const Node *size = now.args[page_size_at_.value_or(before.n_args)];
    const bool named = !page_size_at_ || before.args[*page_size_at_]->node_case ==
                                             PG_QUERY__NODE__NODE_NAMED_ARG_EXPR;
    return named == (size->node_case == PG_QUERY__NODE__NODE_NAMED_ARG_EXPR) &&
           (!named || std::string_view(size->named_arg_expr->name) == "page_size");
}

// The statement in the edited text; null: it cannot be read.
const PgQuery__SelectStmt *ScatterAnalysis::reread(const std::string &text,
                                                   std::optional<ParseTree> &tree) const {
    if (pre_scan(text).nesting > max_nesting) return nullptr;
    auto parsed = parse(text);
    if (!parsed) return nullptr;
    tree.emplace(std::move(*parsed));
    const PgQuery__SelectStmt *found = nullptr;
    for (std::size_t i = 0; i < tree->result->n_stmts; ++i) {
        const PgQuery__RawStmt &raw = *tree->result->stmts[i];
        if (skip_blanks(text, static_cast<std::size_t>(raw.stmt_location)) != analyser_.offset_)
            continue;
        if (raw.stmt != nullptr && raw.stmt->node_case == PG_QUERY__NODE__NODE_SELECT_STMT)
            found = raw.stmt->select_stmt;
    }
    return found;
}

bool ScatterAnalysis::same_but_from(const PgQuery__SelectStmt &is) const {
    const PgQuery__SelectStmt &was = statement_;
    return is.op == was.op && is.with_clause == nullptr && is.into_clause == nullptr &&
           is.having_clause == nullptr && is.n_distinct_clause == 0 && is.n_window_clause == 0 &&
           is.n_values_lists == 0 && is.n_locking_clause == 0 &&
           is.group_distinct == was.group_distinct && is.limit_option == was.limit_option &&
           is.n_target_list == was.n_target_list + hidden_.size() &&
           same_nodes(was.target_list, is.target_list, was.n_target_list) && same_conditions(is) &&
           is.n_group_clause == was.n_group_clause &&
           same_nodes(was.group_clause, is.group_clause, was.n_group_clause) &&
           is.n_sort_clause == was.n_sort_clause + added_order_ &&
           same_nodes(was.sort_clause, is.sort_clause, was.n_sort_clause) &&
           (is.limit_count == nullptr) == (was.limit_count == nullptr) &&
           (is.limit_offset == nullptr) == (was.limit_offset == nullptr) &&
           (was.limit_offset != nullptr || same_node(was.limit_count, is.limit_count));
}

bool ScatterAnalysis::prove() {
    std::vector<TextEdit> edits = scatter_.edits;
    if (const DefaultPage &page = scatter_.default_page; page.needed)
        edits.push_back({page.offset, page.length, page.before + "1" + page.after});
    std::sort(edits.begin(), edits.end(),
              [](const TextEdit &a, const TextEdit &b) { return a.offset < b.offset; });
    std::optional<ParseTree> tree;
    const PgQuery__SelectStmt *is = reread(edited(analyser_.text_, edits), tree);
    return (is != nullptr && same_but_from(*is) && same_from(*is)) || unreadable();
}

}  // namespace interlock::sql
