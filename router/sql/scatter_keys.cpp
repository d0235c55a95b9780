// What rows are ordered or grouped by, by PostgreSQL's rules for names and numbers
// (findTargetlistEntrySQL92), and how it is written a second time.
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// How sure PostgreSQL is of a name (FigureColnameInternal): a cast gives its own where its
/// operand has only a weak one.
struct Figured {
    std::optional<std::string_view> name;
    bool strong = true;
};

Figured figure(const Node *node) {
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_COLUMN_REF: {
        const PgQuery__ColumnRef &reference = *node->column_ref;
        const std::string_view name = string_of(reference.fields[reference.n_fields - 1]);
        return {name.empty() ? std::nullopt : std::optional(name)};
    }
    case PG_QUERY__NODE__NODE_FUNC_CALL: {
        const PgQuery__FuncCall &call = *node->func_call;
        return {string_of(call.funcname[call.n_funcname - 1])};
    }
    case PG_QUERY__NODE__NODE_TYPE_CAST: {
        const Figured inner = figure(node->type_cast->arg);
        if (!inner.name || inner.strong) return inner;
        const PgQuery__TypeName &type = *node->type_cast->type_name;
        if (type.n_names == 0) return {};
        return {string_of(type.names[type.n_names - 1]), false};
    }
    case PG_QUERY__NODE__NODE_COLLATE_CLAUSE: return figure(node->collate_clause->arg);
    case PG_QUERY__NODE__NODE_A_EXPR:
        if (node->a_expr->kind == PG_QUERY__A__EXPR__KIND__AEXPR_NULLIF) return {"nullif"};
        return {"?column?", false};
    case PG_QUERY__NODE__NODE_A_CONST:
    case PG_QUERY__NODE__NODE_PARAM_REF:
    case PG_QUERY__NODE__NODE_BOOL_EXPR:
    case PG_QUERY__NODE__NODE_NULL_TEST:
    case PG_QUERY__NODE__NODE_BOOLEAN_TEST: return {"?column?", false};
    case PG_QUERY__NODE__NODE_COALESCE_EXPR: return {"coalesce"};
    case PG_QUERY__NODE__NODE_MIN_MAX_EXPR:
        return {node->min_max_expr->op == PG_QUERY__MIN_MAX_OP__IS_GREATEST ? "greatest" : "least"};
    case PG_QUERY__NODE__NODE_ROW_EXPR: return {"row"};
    case PG_QUERY__NODE__NODE_A_ARRAY_EXPR: return {"array"};
    case PG_QUERY__NODE__NODE_CASE_EXPR:
        if (node->case_expr->defresult != nullptr) {
            const Figured inner = figure(node->case_expr->defresult);
            if (!inner.name || inner.strong) return inner;
        }
        return {"case", false};
    default: return {};
    }
}

}  // namespace

std::optional<std::string_view> output_name(const PgQuery__ResTarget &target) {
    if (target.name[0] != '\0') return std::string_view(target.name);
    return target.val == nullptr ? std::nullopt : figure(target.val).name;
}

ScatterAnalysis::Key ScatterAnalysis::column_key(std::uint32_t column, int location) const {
    const Relation &relation = level_.relations[0];
    Key key;
    key.column = column;
    key.text = quoted(relation.name) + "." + quoted(relation.column_name(column));
    key.location = location;
    return key;
}

bool ScatterAnalysis::same_key(const Key &a, const Key &b) const {
    if (a.column || b.column) return a.column == b.column;
    return same_node(a.node, b.node);
}

/// The expression at `piece`, to be written elsewhere too: it must be read alone as it is here.
std::optional<ScatterAnalysis::Key> ScatterAnalysis::copied(const Node *node, const Piece &piece,
                                                            int location) {
    Key key;
    key.node = node;
    key.text = "(" + std::string(text_->text(piece)) + ")";
    key.location = location;
    const auto tree = parse("SELECT " + key.text);
    const bool same =
        tree && tree->result->n_stmts == 1 &&
        tree->result->stmts[0]->stmt->node_case == PG_QUERY__NODE__NODE_SELECT_STMT &&
        tree->result->stmts[0]->stmt->select_stmt->n_target_list == 1 &&
        same_node(tree->result->stmts[0]->stmt->select_stmt->target_list[0]->res_target->val, node);
    if (same) return key;
    unreadable();
    return std::nullopt;
}

std::optional<ScatterAnalysis::Key> ScatterAnalysis::key_of(const Node *node, const Piece &piece,
                                                            int location) {
    if (!check(node, Use::order)) return std::nullopt;
    if (const auto column = column_of(node)) return column_key(*column, location);
    return copied(node, piece, location);
}

std::optional<ScatterAnalysis::Key> ScatterAnalysis::key_of_output(const Output &output,
                                                                   int location) {
    if (output.column) return column_key(*output.column, location);
    const Piece &target = text_->targets()[output.target];
    const bool named = statement_.target_list[output.target]->res_target->name[0] != '\0';
    const auto piece = named ? text_->without_alias(target) : std::optional(target);
    if (!piece) {
        unreadable();
        return std::nullopt;
    }
    return key_of(output.node, *piece, location);
}

// ORDER BY name: the column of the answer that has the name, whatever the table has. Nothing, and
// no refusal, where there is none.
std::optional<ScatterAnalysis::Key> ScatterAnalysis::key_by_name(std::string_view name,
                                                                 int location) {
    const Output *found = nullptr;
    for (const Output &output : outputs_) {
        if (!output.name) {
            refuse(location, "which column " + quoted(name) + " means is not known",
                   "Give the expressions in the target list names with AS.");
            return std::nullopt;
        }
        if (*output.name != name) continue;
        const bool same = found == nullptr ||
                          (found->column || output.column ? found->column == output.column
                                                          : same_node(found->node, output.node));
        if (!same) {
            refuse(location, "ORDER BY " + quoted(name) + " is ambiguous",
                   "Give the columns of the answer different names.");
            return std::nullopt;
        }
        found = &output;
    }
    if (found == nullptr) return std::nullopt;
    return key_of_output(*found, location);
}

std::optional<ScatterAnalysis::Key> ScatterAnalysis::key_by_number(int number, int location) {
    // What "*" stands for is known by name, not by number.
    for (std::size_t i = 0; i < statement_.n_target_list; ++i)
        if (is_star(statement_.target_list[i]->res_target->val)) {
            refuse(location, "a column is named by its number, with \"*\" among the columns",
                   "Name the column.");
            return std::nullopt;
        }
    if (number < 1 || static_cast<std::size_t>(number) > outputs_.size()) {
        refuse(location, "position " + std::to_string(number) + " is not in the target list");
        return std::nullopt;
    }
    return key_of_output(outputs_[static_cast<std::size_t>(number) - 1], location);
}

std::optional<ScatterAnalysis::Key> ScatterAnalysis::sort_key(std::size_t index) {
    const PgQuery__SortBy &sort = *statement_.sort_clause[index]->sort_by;
    const Node *node = sort.node;
    const int location = location_within(node);
    if (sort.sortby_dir == PG_QUERY__SORT_BY_DIR__SORTBY_USING) {
        refuse(location, "ORDER BY ... USING cannot run on all shards", "Use ASC or DESC.");
        return std::nullopt;
    }
    const bool directed = sort.sortby_dir != PG_QUERY__SORT_BY_DIR__SORTBY_DEFAULT;
    const bool descending = sort.sortby_dir == PG_QUERY__SORT_BY_DIR__SORTBY_DESC;
    const bool nulls = sort.sortby_nulls != PG_QUERY__SORT_BY_NULLS__SORTBY_NULLS_DEFAULT;
    std::optional<Key> key;
    if (node->node_case == PG_QUERY__NODE__NODE_COLUMN_REF && node->column_ref->n_fields == 1 &&
        !is_star(node)) {
        const Refusal before = analyser_.refusal;
        analyser_.refusal = {};
        key = key_by_name(string_of(node->column_ref->fields[0]), location);
        if (!key && !analyser_.refusal.message.empty()) return std::nullopt;
        analyser_.refusal = before;
    } else if (node->node_case == PG_QUERY__NODE__NODE_A_CONST) {
        if (node->a_const->val_case != PG_QUERY__A__CONST__VAL_IVAL || node->a_const->isnull) {
            refuse(location, "ORDER BY a constant that is no column's number");
            return std::nullopt;
        }
        key = key_by_number(node->a_const->ival->ival, location);
        if (!key) return std::nullopt;
    }
    if (!key) {
        const std::vector<Piece> pieces = text_->items(Clause::order);
        if (pieces.size() != statement_.n_sort_clause) {
            unreadable();
            return std::nullopt;
        }
        const auto piece =
            text_->without_last(pieces[index], (directed ? 1U : 0U) + (nulls ? 2U : 0U));
        if (!piece) {
            unreadable();
            return std::nullopt;
        }
        key = key_of(node, *piece, location);
        if (!key) return std::nullopt;
    }
    key->descending = descending;
    key->nulls_first =
        nulls ? sort.sortby_nulls == PG_QUERY__SORT_BY_NULLS__SORTBY_NULLS_FIRST : descending;
    return key;
}

std::string ScatterAnalysis::key_call(const Key &key) {
    if (key.any_order) return "interlock.group_key(" + key.text + ")";
    const auto boolean = [](bool value) { return value ? "true" : "false"; };
    return "interlock.sort_key(" + key.text + ", " + boolean(key.descending) + ", " +
           boolean(key.nulls_first) + ")";
}

std::string ScatterAnalysis::merge_key(const std::vector<Key> &keys) {
    std::string parts;
    for (const Key &key : keys)
        parts += (parts.empty() ? "" : " OPERATOR(pg_catalog.||) ") + key_call(key);
    return "pg_catalog.encode(" + parts + ", 'hex')";
}

}  // namespace interlock::sql
