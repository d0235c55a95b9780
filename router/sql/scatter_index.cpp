// What a page needs to be answered from a global index, and the proof that the texts made of it
// mean what the client's means. Where it is spelled so that this cannot be shown, all shards answer
// it.
#include "sql/index_page.h"
#include "sql/parse_limits.h"
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

#include <algorithm>

namespace interlock::sql {

namespace {

using Parameter = PageCall::Parameter;

const Node *value_of_argument(const Node *argument) {
    return argument->node_case == PG_QUERY__NODE__NODE_NAMED_ARG_EXPR
               ? argument->named_arg_expr->arg
               : argument;
}

// The one call in FROM; null: there is something else.
const PgQuery__RangeFunction *only_function(const PgQuery__SelectStmt &statement) {
    if (statement.n_from_clause != 1 ||
        statement.from_clause[0]->node_case != PG_QUERY__NODE__NODE_RANGE_FUNCTION)
        return nullptr;
    const PgQuery__RangeFunction *function = statement.from_clause[0]->range_function;
    if (function->n_functions != 1 || function->ordinality || function->is_rowsfrom ||
        function->lateral || function->n_coldeflist > 0 ||
        function->functions[0]->node_case != PG_QUERY__NODE__NODE_LIST)
        return nullptr;
    const PgQuery__List &pair = *function->functions[0]->list;
    const bool call =
        pair.n_items > 0 && pair.items[0]->node_case == PG_QUERY__NODE__NODE_FUNC_CALL;
    return call ? function : nullptr;
}

const PgQuery__FuncCall &call_in(const PgQuery__RangeFunction &function) {
    return *function.functions[0]->list->items[0]->func_call;
}

bool is_named(const PgQuery__FuncCall &call, std::string_view name) {
    return call.n_funcname == 2 && string_of(call.funcname[0]) == "interlock" &&
           string_of(call.funcname[1]) == name;
}

bool named_argument(const Node *argument, std::string_view name) {
    return argument->node_case == PG_QUERY__NODE__NODE_NAMED_ARG_EXPR &&
           std::string_view(argument->named_arg_expr->name) == name;
}

std::vector<std::uint32_t> parameters_in(const Node *value) {
    std::vector<std::uint32_t> found;
    visit(value, [&](const Node &each) {
        if (each.node_case == PG_QUERY__NODE__NODE_PARAM_REF)
            found.push_back(static_cast<std::uint32_t>(each.param_ref->number - 1));
        return true;
    });
    return found;
}

}  // namespace

void ScatterAnalysis::note_call(const PgQuery__RangeFunction &function,
                                const PgQuery__FuncCall &call) {
    const std::vector<GlobalIndex> &indexes = analyser_.names_.routes.indexes;
    if (std::none_of(indexes.begin(), indexes.end(),
                     [&](const GlobalIndex &index) { return index.table == scatter_.table; }))
        return;
    const auto written = text_->call_at(static_cast<std::size_t>(call.location));
    if (!written || written->arguments.size() != call.n_args) return;
    PageCall &noted = scatter_.call;
    noted.name_offset = written->name.offset;
    noted.name_length = written->name.length;
    noted.close = written->close;
    noted.nameless = function.alias == nullptr;
    for (std::size_t i = 0; i < call.n_args; ++i) {
        const std::size_t parameter = page_arguments_[i];
        if (parameter < 2 || parameter > 4) continue;
        const bool named = call.args[i]->node_case == PG_QUERY__NODE__NODE_NAMED_ARG_EXPR;
        const auto value =
            named ? text_->named_value(written->arguments[i]) : written->arguments[i];
        if (!value) return;
        noted.arguments.push_back({static_cast<Parameter>(parameter - 2), value->offset,
                                   value->length, parameters_in(value_of_argument(call.args[i]))});
    }
    noted.sound = true;
}

// The client's statement, but for the function's name and one argument more.
bool ScatterAnalysis::prove_rows() const {
    std::optional<ParseTree> tree;
    const PgQuery__SelectStmt *is = reread(rows_text(scatter_, analyser_.text_, {}), tree);
    if (is == nullptr || !same_but_from(*is)) return false;
    const PgQuery__RangeFunction *function = only_function(*is);
    if (function == nullptr) return false;
    const PgQuery__RangeFunction &before = *page_of(statement_);
    const PgQuery__FuncCall &call = call_in(*function);
    const PgQuery__FuncCall &was = call_in(before);
    const bool alias =
        before.alias != nullptr
            ? function->alias != nullptr && same_tree(&before.alias->base, &function->alias->base)
            : function->alias != nullptr && function->alias->n_colnames == 0 &&
                  std::string_view(function->alias->aliasname) == "keyset_page";
    return alias && is_named(call, "keyset_rows") && call.n_args == was.n_args + 1 &&
           same_nodes(was.args, call.args, was.n_args) &&
           named_argument(call.args[was.n_args], "cursors");
}

// The index's statement has the client's arguments.
bool ScatterAnalysis::prove_entries() const {
    GlobalIndex index;
    index.name = "i";
    index.sql_name = "i";
    index.shard_key_sql = "k";
    const std::string text =
        entries_text(scatter_.call, analyser_.text_, index, EntryWish{.size = 1});
    if (pre_scan(text).nesting > max_nesting) return false;
    const auto tree = parse(text);
    if (!tree || tree->result->n_stmts != 1) return false;
    const Node *statement = tree->result->stmts[0]->stmt;
    if (statement == nullptr || statement->node_case != PG_QUERY__NODE__NODE_SELECT_STMT)
        return false;
    const PgQuery__RangeFunction *function = only_function(*statement->select_stmt);
    if (function == nullptr || !is_named(call_in(*function), "keyset_page")) return false;
    const PgQuery__FuncCall &call = call_in(*function);
    const PgQuery__FuncCall &was = call_in(*page_of(statement_));
    std::size_t at = 2;
    for (std::size_t i = 0; i < was.n_args; ++i) {
        const std::size_t parameter = page_arguments_[i];
        if (parameter < 2 || parameter > 4) continue;
        constexpr std::string_view names[] = {"scope", "after", "before"};
        if (at >= call.n_args || !named_argument(call.args[at], names[parameter - 2]) ||
            !same_node(value_of_argument(was.args[i]), value_of_argument(call.args[at])))
            return false;
        ++at;
    }
    return call.n_args == at + 1 && named_argument(call.args[at], "page_size");
}

}  // namespace interlock::sql
