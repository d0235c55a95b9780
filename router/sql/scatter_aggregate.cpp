// SELECT groups, aggregates FROM table GROUP BY ...: each shard gives its part of each group.
#include "sql/builtins.h"
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// The function's name where it could be a built-in one.
std::string_view builtin_name(const PgQuery__FuncCall &call) {
    const bool builtin = call.n_funcname == 1 ||
                         (call.n_funcname == 2 && string_of(call.funcname[0]) == "pg_catalog");
    return builtin ? string_of(call.funcname[call.n_funcname - 1]) : std::string_view();
}

bool is_aggregate(const Node &node) {
    return node.node_case == PG_QUERY__NODE__NODE_FUNC_CALL && node.func_call->over == nullptr &&
           shard_function(builtin_name(*node.func_call)) == ShardFunction::aggregate;
}

std::optional<PartialColumn::Kind> kind_of(std::string_view name) {
    if (name == "count") return PartialColumn::Kind::count;
    if (name == "sum") return PartialColumn::Kind::sum;
    if (name == "avg") return PartialColumn::Kind::average;
    if (name == "min") return PartialColumn::Kind::min;
    if (name == "max") return PartialColumn::Kind::max;
    return std::nullopt;
}

}  // namespace

bool ScatterAnalysis::aggregates() const {
    if (statement_.n_group_clause > 0) return true;
    bool found = false;
    for (std::size_t i = 0; i < statement_.n_target_list; ++i)
        visit(statement_.target_list[i]->res_target->val, [&](const Node &each) {
            found = found || is_aggregate(each);
            return !found && each.node_case != PG_QUERY__NODE__NODE_SUB_LINK;
        });
    return found;
}

bool ScatterAnalysis::aggregate() {
    scatter_.kind = ScatterKind::aggregate;
    scatter_.grouped = statement_.n_group_clause > 0;
    if (!read_groups() || !read_order_of_groups() || !limits()) return false;
    if (scatter_.grouped) add_hidden(merge_key(order_));
    return read_columns();
}

bool ScatterAnalysis::read_groups() {
    if (!scatter_.grouped) return true;
    if (statement_.group_distinct)
        return refuse(location_within(statement_.group_clause[0]),
                      "GROUP BY DISTINCT cannot run on all shards", "Leave DISTINCT out.");
    const std::vector<Piece> pieces = text_->items(Clause::group);
    if (pieces.size() != statement_.n_group_clause) return unreadable();
    for (std::size_t i = 0; i < statement_.n_group_clause; ++i) {
        auto key = group_key(statement_.group_clause[i], pieces[i]);
        if (!key) return false;
        bool column = key->column.has_value();
        visit(key->node, [&](const Node &each) {
            column = column || each.node_case == PG_QUERY__NODE__NODE_COLUMN_REF;
            return !column;
        });
        if (!column)
            return refuse(key->location, "GROUP BY a constant",
                          "Leave it out: all rows have the same.");
        groups_.push_back(std::move(*key));
    }
    return true;
}

// In GROUP BY a name means a column of the table first, and then one of the answer.
std::optional<ScatterAnalysis::Key> ScatterAnalysis::group_key(const Node *node,
                                                               const Piece &piece) {
    const int location = location_within(node);
    if (node->node_case == PG_QUERY__NODE__NODE_A_CONST) {
        if (node->a_const->val_case != PG_QUERY__A__CONST__VAL_IVAL || node->a_const->isnull) {
            refuse(location, "GROUP BY a constant that is no column's number");
            return std::nullopt;
        }
        return key_by_number(node->a_const->ival->ival, location);
    }
    if (node->node_case == PG_QUERY__NODE__NODE_COLUMN_REF && node->column_ref->n_fields == 1 &&
        !is_star(node) && !column_of(node)) {
        analyser_.refusal = {};
        auto key = key_by_name(string_of(node->column_ref->fields[0]), location);
        if (key || !analyser_.refusal.message.empty()) return key;
    }
    return key_of(node, piece, location);
}

// The shards give their groups in one order: that of ORDER BY, and then by what it leaves open. For
// the latter any order will do in which equal values stand together, so text may have a collation
// whose order no bytes show.
bool ScatterAnalysis::read_order_of_groups() {
    const auto is_group = [&](const Key &key) {
        return std::any_of(groups_.begin(), groups_.end(),
                           [&](const Key &group) { return same_key(group, key); });
    };
    for (std::size_t i = 0; i < statement_.n_sort_clause; ++i) {
        const int location = location_within(statement_.sort_clause[i]->sort_by->node);
        const char *hint = "Order by columns that stand in GROUP BY; sort by counts and sums in "
                           "the application.";
        if (!scatter_.grouped)
            return refuse(location, "ORDER BY of the one row of an aggregate", "Leave it out.");
        auto key = sort_key(i);
        if (!key) return false;
        if (!is_group(*key))
            return refuse(location, "groups are ordered by what they are not grouped by", hint);
        order_.push_back(std::move(*key));
    }
    std::string added;
    for (const Key &group : groups_) {
        const bool there = std::any_of(order_.begin(), order_.end(),
                                       [&](const Key &key) { return same_key(group, key); });
        if (there) continue;
        order_.push_back(group);
        order_.back().any_order = true;
        added += (order_.size() == 1 ? "" : ", ") + key_call(order_.back());
        ++added_order_;
    }
    for (const Key &key : order_)
        scatter_.text_order = scatter_.text_order || by_collation(key);
    if (added.empty()) return true;
    if (statement_.n_sort_clause == 0) added = " ORDER BY " + added;
    insert(text_->before_limit(), std::move(added));
    return true;
}

bool ScatterAnalysis::read_columns() {
    for (const Output &output : outputs_) {
        const bool group = std::any_of(groups_.begin(), groups_.end(), [&](const Key &key) {
            return output.column || key.column ? output.column == key.column
                                               : same_node(output.node, key.node);
        });
        if (group) {
            scatter_.columns.push_back({PartialColumn::Kind::group, 0});
            continue;
        }
        if (output.node != nullptr && is_aggregate(*output.node)) {
            if (!aggregate_column(output)) return false;
            continue;
        }
        const Node *target = statement_.target_list[output.target]->res_target->val;
        return refuse(location_within(target),
                      "a column is neither one of GROUP BY nor an aggregate by itself",
                      "Over all shards count, sum, min, max and avg can be columns by themselves; "
                      "work with them in the application.");
    }
    // Positions of hidden columns are among all columns.
    for (PartialColumn &column : scatter_.columns)
        if (column.kind != PartialColumn::Kind::group)
            column.hidden = static_cast<std::uint16_t>(column.hidden + scatter_.columns.size());
    return true;
}

bool ScatterAnalysis::aggregate_column(const Output &output) {
    const Node *node = output.node;
    const PgQuery__FuncCall &call = *node->func_call;
    const Piece &target = text_->targets()[output.target];
    const bool named = statement_.target_list[output.target]->res_target->name[0] != '\0';
    const std::string name(builtin_name(call));
    const auto kind = kind_of(name);
    if (!kind)
        return refuse(call.location,
                      "aggregate " + name + " cannot be put together from the shards'",
                      "Over all shards there are count, sum, min, max and avg.");
    if (call.agg_distinct)
        return refuse(call.location, name + "(DISTINCT) counts values that several shards may have",
                      "Group by the values, and count the groups.");
    if (call.n_agg_order > 0 || call.agg_within_group || call.func_variadic)
        return refuse(call.location, "an aggregate with ORDER BY or VARIADIC");
    if (call.agg_star ? *kind != PartialColumn::Kind::count : call.n_args != 1)
        return refuse(call.location, name + " takes one argument");
    if (!check_list(call.args, call.n_args, Use::row) || !check(call.agg_filter, Use::row))
        return false;
    if (!analyser_.function_name(call.funcname, call.n_funcname, call.location)) return false;
    // count (x) FILTER (...) from its parenthesis on, behind another name.
    const auto bare = named ? text_->without_alias(target) : std::optional(target);
    const auto arguments = bare ? text_->from_parenthesis(*bare) : std::nullopt;
    if (!arguments || bare->offset != static_cast<std::uint32_t>(call.location) ||
        !copied(node, *bare, call.location))
        return unreadable();
    std::string rest(text_->text(*arguments));
    const auto with = [&](const char *function) { return "pg_catalog." + (function + rest); };
    const auto first = static_cast<std::uint16_t>(hidden_.size());
    switch (*kind) {
    case PartialColumn::Kind::count: add_hidden(with("count")); break;
    case PartialColumn::Kind::sum: add_hidden(with("sum")); break;
    case PartialColumn::Kind::average:
        add_hidden(with("sum"));
        add_hidden(with("count"));
        break;
    default: {
        Key key;
        key.text = with(*kind == PartialColumn::Kind::min ? "min" : "max");
        add_hidden(merge_key({key}));
        scatter_.text_order = scatter_.text_order || by_collation(call.args[0]);
    }
    }
    scatter_.columns.push_back({*kind, first});
    return true;
}

}  // namespace interlock::sql
