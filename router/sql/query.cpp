// SELECT, VALUES, set operations, WITH.
#include "sql/analyser.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// One type for a column of a set operation's or VALUES list's rows; 0: not known.
std::uint32_t common_type(std::uint32_t left, std::uint32_t right) {
    if (left == right || left == 0 || right == 0) return left == right ? left : 0;
    const auto a = key_type_of_oid(left);
    const auto b = key_type_of_oid(right);
    if (!a || !b || family_of(*a) != family_of(*b)) return 0;
    return family_of(*a) == placement::KeyFamily::integer ? oid::int8 : oid::text;
}

/// Constants without a type become text where nothing gives them another one.
void settle(OutputColumn &column) {
    if (!column.untyped) return;
    column.untyped = false;
    column.type = oid::text;
    column.linkable = true;
}

/// The name PostgreSQL gives an output without AS (FigureColname), or empty where it is not worked
/// out here.
std::string_view figure_name(const Node *node) {
    if (node == nullptr) return {};
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_COLUMN_REF: {
        const PgQuery__ColumnRef &reference = *node->column_ref;
        return string_of(reference.fields[reference.n_fields - 1]);
    }
    case PG_QUERY__NODE__NODE_FUNC_CALL: {
        const PgQuery__FuncCall &call = *node->func_call;
        return string_of(call.funcname[call.n_funcname - 1]);
    }
    case PG_QUERY__NODE__NODE_A_CONST:
    case PG_QUERY__NODE__NODE_PARAM_REF:
    case PG_QUERY__NODE__NODE_A_EXPR:
    case PG_QUERY__NODE__NODE_BOOL_EXPR: return "?column?";
    case PG_QUERY__NODE__NODE_COALESCE_EXPR: return "coalesce";
    case PG_QUERY__NODE__NODE_ROW_EXPR: return "row";
    case PG_QUERY__NODE__NODE_A_ARRAY_EXPR: return "array";
    case PG_QUERY__NODE__NODE_TYPE_CAST: {
        const std::string_view inner = figure_name(node->type_cast->arg);
        if (!inner.empty() && inner != "?column?" && inner != "row" && inner != "array")
            return inner;
        const PgQuery__TypeName &type = *node->type_cast->type_name;
        return inner == "?column?" && type.n_names > 0 ? string_of(type.names[type.n_names - 1])
                                                       : std::string_view();
    }
    default: return {};
    }
}

bool is_star(const PgQuery__ColumnRef &reference) {
    return reference.n_fields > 0 &&
           reference.fields[reference.n_fields - 1]->node_case == PG_QUERY__NODE__NODE_A_STAR;
}

}  // namespace

Analyser::Mark Analyser::mark() const {
    return {facts.keys.size(),
            facts.tables.size(),
            facts.relation_names.size(),
            facts.function_names.size(),
            facts.operator_names.size(),
            emitted_.size(),
            facts.writes,
            facts.locks,
            facts.user_code,
            facts.cacheable};
}

void Analyser::undo(const Mark &mark) {
    facts.keys.resize(mark.keys);
    facts.tables.resize(mark.tables);
    facts.relation_names.resize(mark.relations);
    facts.function_names.resize(mark.functions);
    facts.operator_names.resize(mark.operators);
    emitted_.resize(mark.emitted);
    facts.writes = mark.writes;
    facts.locks = mark.locks;
    facts.user_code = mark.user_code;
    facts.cacheable = mark.cacheable;
    refusal = {};
}

bool Analyser::query(const Node *node, const Scope *parent, const CteScope *ctes, Place place,
                     Outputs *out) {
    if (!step()) return false;
    Outputs ignored;
    Outputs &outputs = out != nullptr ? *out : ignored;
    outputs = {};
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_SELECT_STMT:
        return select(*node->select_stmt, parent, ctes, place, outputs);
    case PG_QUERY__NODE__NODE_INSERT_STMT:
        return insert(*node->insert_stmt, parent, ctes, place, &outputs);
    case PG_QUERY__NODE__NODE_UPDATE_STMT:
        return update(*node->update_stmt, parent, ctes, place, &outputs);
    case PG_QUERY__NODE__NODE_DELETE_STMT:
        return remove(*node->delete_stmt, parent, ctes, place, &outputs);
    case PG_QUERY__NODE__NODE_MERGE_STMT: return merge(*node->merge_stmt, parent, ctes, place);
    default: return refuse(Code::R01, -1, "this statement cannot stand here");
    }
}

bool Analyser::select(const PgQuery__SelectStmt &statement, const Scope *parent,
                      const CteScope *ctes, Place place, Outputs &out) {
    if (!step()) return false;
    if (statement.into_clause != nullptr)
        return refuse(Code::R24, statement.into_clause->rel->location,
                      "SELECT INTO creates a table",
                      "Create tables with `interlock ddl` or on each shard.");
    CteScope own{ctes, {}};
    if (statement.with_clause != nullptr) {
        if (!with(*statement.with_clause, parent, own)) return false;
        ctes = &own;
    }
    if (statement.op != PG_QUERY__SET_OPERATION__SETOP_NONE)
        return set_operation(statement, parent, ctes, out);
    if (statement.n_values_lists > 0) return values(statement, parent, ctes, out);

    Level level;
    Scope scope{parent, &level, ctes, {}};
    if (!from_clause(statement.from_clause, statement.n_from_clause, level, parent, ctes,
                     scope.items))
        return false;
    const Range all{0, static_cast<std::uint32_t>(level.relations.size())};
    if (statement.where_clause != nullptr)
        level.qualifiers.push_back({statement.where_clause, &scope, all, false});
    if (!pin_level(level) || !check_pinned(level, place) || !locking(statement, level))
        return false;
    for (const Qualifier &qualifier : level.qualifiers)
        if (!walk(qualifier.expression, *qualifier.scope)) return false;
    if (!targets(statement.target_list, statement.n_target_list, scope, out)) return false;
    // DISTINCT is a list with an empty node in it.
    return walk_list(statement.distinct_clause, statement.n_distinct_clause, scope) &&
           walk_list(statement.group_clause, statement.n_group_clause, scope) &&
           walk(statement.having_clause, scope) &&
           walk_list(statement.window_clause, statement.n_window_clause, scope) &&
           tail(statement, scope);
}

bool Analyser::tail(const PgQuery__SelectStmt &statement, const Scope &scope) {
    return walk_list(statement.sort_clause, statement.n_sort_clause, scope) &&
           walk(statement.limit_offset, scope) && walk(statement.limit_count, scope);
}

// FOR UPDATE of tables only: the system catalogs are read, not locked.
bool Analyser::locking(const PgQuery__SelectStmt &statement, const Level &level) {
    for (std::size_t i = 0; i < statement.n_locking_clause; ++i) {
        const PgQuery__LockingClause &clause = *statement.locking_clause[i]->locking_clause;
        facts.locks = true;
        for (const Relation &relation : level.relations) {
            if (relation.kind != Relation::Kind::catalog) continue;
            bool named = clause.n_locked_rels == 0;
            for (std::size_t k = 0; k < clause.n_locked_rels; ++k)
                named = named || relation.name == clause.locked_rels[k]->range_var->relname;
            if (named)
                return refuse(Code::R24, relation.location,
                              "the system catalogs can only be read here",
                              "Name the tables to be locked: FOR UPDATE OF ...");
        }
    }
    return true;
}

bool Analyser::targets(Node **list, std::size_t count, const Scope &scope, Outputs &out) {
    for (std::size_t i = 0; i < count; ++i) {
        const PgQuery__ResTarget &target = *list[i]->res_target;
        if (!walk(target.val, scope)) return false;
        if (target.val != nullptr && target.val->node_case == PG_QUERY__NODE__NODE_COLUMN_REF &&
            is_star(*target.val->column_ref)) {
            const PgQuery__ColumnRef &reference = *target.val->column_ref;
            JoinColumns columns;
            if (reference.n_fields == 1) {
                expand_items(scope.items, *scope.level, columns);
            } else {
                // alias.*: of the innermost level that has the alias
                const std::string_view alias = string_of(reference.fields[reference.n_fields - 2]);
                columns.open = true;
                for (const Scope *at = &scope; at != nullptr && columns.open; at = at->parent)
                    for (const Item &item : at->items) {
                        if (!item.name_visible || item.name != alias) continue;
                        if (reference.n_fields == 3 &&
                            item.schema != string_of(reference.fields[0]))
                            continue;
                        Item one = item;
                        one.columns_visible = true;
                        columns = {};
                        expand_items({one}, *at->level, columns);
                        if (columns.open) break;
                    }
            }
            for (const JoinColumn &column : columns.columns) {
                OutputColumn output;
                output.name = column.name;
                if (column.target) {
                    const Relation &relation =
                        column.target.level->relations[column.target.relation];
                    output.type = relation.column_type(column.target.column);
                    output.linkable = relation.linkable(column.target.column);
                    output.pin = known_pin(column.target);
                }
                out.columns.push_back(output);
            }
            out.open = out.open || columns.open;
            continue;
        }
        out.columns.push_back(output(target, scope));
        if (out.columns.back().name.empty()) out.open = true;
    }
    return true;
}

OutputColumn Analyser::output(const PgQuery__ResTarget &target, const Scope &scope) {
    OutputColumn output;
    output.name = target.name[0] != '\0' ? std::string_view(target.name) : figure_name(target.val);
    std::uint32_t type = 0;
    if (const Target found = column(target.val, scope, type)) {
        output.type = type;
        output.linkable = true;
        output.pin = known_pin(found);
        return output;
    }
    if (const auto value = constant(target.val)) {
        output.untyped = value->type == 0 && !value->integer_literal;
        output.type = value->type != 0 ? value->type : oid::int8;
        if (output.untyped) output.type = 0;
        output.linkable = !output.untyped;
        output.pin = make_pin({{value->key, 0}}, output.type != 0 ? output.type : oid::int8, 1);
        return output;
    }
    if (target.val != nullptr && target.val->node_case == PG_QUERY__NODE__NODE_TYPE_CAST) {
        bool array = false;
        const std::uint32_t cast = cast_type(*target.val->type_cast->type_name, array);
        if (!array && cast != 0) {
            output.type = cast;
            output.linkable = *key_type_of_oid(cast) != KeyType::text;
        }
    }
    return output;
}

bool Analyser::set_operation(const PgQuery__SelectStmt &statement, const Scope *parent,
                             const CteScope *ctes, Outputs &out) {
    Outputs left;
    Outputs right;
    const Place arm{Place::Kind::arm};
    if (!select(*statement.larg, parent, ctes, arm, left) ||
        !select(*statement.rarg, parent, ctes, arm, right))
        return false;
    out.open = left.open || right.open;
    const bool known = !out.open && left.columns.size() == right.columns.size();
    for (std::size_t i = 0; i < left.columns.size(); ++i) {
        OutputColumn column;
        column.name = left.columns[i].name;
        if (known) {
            settle(left.columns[i]);
            settle(right.columns[i]);
            const OutputColumn &a = left.columns[i];
            const OutputColumn &b = right.columns[i];
            column.type = common_type(a.type, b.type);
            column.linkable = column.type != 0 && a.linkable && b.linkable;
            if (column.linkable && a.pin != nullptr && b.pin != nullptr) {
                if (a.pin == b.pin) {
                    column.pin = a.pin;
                } else {
                    std::vector<PinSource> sources = a.pin->sources;
                    sources.insert(sources.end(), b.pin->sources.begin(), b.pin->sources.end());
                    column.pin =
                        make_pin(std::move(sources), column.type, a.pin->weight + b.pin->weight);
                }
            }
        }
        out.columns.push_back(column);
    }
    if (!known) out.open = true;
    Level level;
    Relation rows;
    rows.outputs = out;
    level.relations.push_back(std::move(rows));
    Scope scope{parent, &level, ctes, {}};
    scope.items.emplace_back();
    return tail(statement, scope);
}

bool Analyser::values(const PgQuery__SelectStmt &statement, const Scope *parent,
                      const CteScope *ctes, Outputs &out) {
    static constexpr std::string_view names[] = {"column1", "column2", "column3", "column4",
                                                 "column5", "column6", "column7", "column8"};
    Level level;
    Scope scope{parent, &level, ctes, {}};
    struct Column {
        std::vector<PinSource> sources;
        std::uint32_t type = 0;
        bool constant = true;
        bool untyped = true;
    };
    std::vector<Column> columns;
    for (std::size_t i = 0; i < statement.n_values_lists; ++i) {
        const PgQuery__List &row = *statement.values_lists[i]->list;
        columns.resize(std::max(columns.size(), row.n_items));
        for (std::size_t k = 0; k < columns.size(); ++k) {
            Column &column = columns[k];
            const auto value =
                k < row.n_items && column.constant ? constant(row.items[k]) : std::nullopt;
            if (!value) {
                column.constant = false;
                continue;
            }
            const bool untyped = value->type == 0 && !value->integer_literal;
            std::uint32_t type = value->type != 0 ? value->type : oid::int8;
            if (!untyped) {
                // A constant without a type takes that of the others.
                column.type = column.untyped ? type : common_type(column.type, type);
                column.untyped = false;
                if (column.type == 0) column.constant = false;
            }
            column.sources.push_back({value->key, 0});
        }
        if (!walk_list(row.items, row.n_items, scope)) return false;
    }
    for (std::size_t k = 0; k < columns.size(); ++k) {
        Column &column = columns[k];
        OutputColumn output;
        if (k < std::size(names))
            output.name = names[k];
        else
            out.open = true;
        if (column.constant) {
            const std::uint32_t type = column.untyped ? oid::text : column.type;
            output.type = type;
            output.linkable = true;
            for (PinSource &source : column.sources) {
                if (source.key.cast != 0) continue;
                source.type = type;
                if (source.key.from == KeySource::From::parameter)
                    note_parameter_at(source.key.offset, type);
            }
            const auto weight = static_cast<std::uint32_t>(column.sources.size());
            output.pin = make_pin(std::move(column.sources), type, weight);
        }
        out.columns.push_back(output);
    }
    return tail(statement, scope);
}

bool Analyser::with(const PgQuery__WithClause &clause, const Scope *parent, CteScope &ctes) {
    // Under RECURSIVE each of them is visible in all.
    if (clause.recursive)
        for (std::size_t i = 0; i < clause.n_ctes; ++i)
            ctes.ctes.push_back({clause.ctes[i]->common_table_expr->ctename, nullptr});
    for (std::size_t i = 0; i < clause.n_ctes; ++i)
        if (!cte(*clause.ctes[i]->common_table_expr, clause.recursive, parent, ctes, i))
            return false;
    return true;
}

bool Analyser::cte(const PgQuery__CommonTableExpr &cte, bool recursive, const Scope *parent,
                   CteScope &ctes, std::size_t position) {
    const Node *node = cte.ctequery;
    if (recursive && node->node_case == PG_QUERY__NODE__NODE_SELECT_STMT &&
        node->select_stmt->op == PG_QUERY__SET_OPERATION__SETOP_UNION)
        return recursive_cte(cte, *node->select_stmt, parent, ctes, position);
    cte_outputs_.emplace_back();
    Outputs &outputs = cte_outputs_.back();
    if (!query(node, parent, &ctes, {Place::Kind::cte, cte.ctename}, &outputs)) return false;
    for (OutputColumn &column : outputs.columns)
        settle(column);
    rename(outputs, cte.aliascolnames, cte.n_aliascolnames);
    if (recursive)
        ctes.ctes[position].outputs = &outputs;
    else
        ctes.ctes.push_back({cte.ctename, &outputs});
    return true;
}

// WITH RECURSIVE name AS (start UNION step): the column of a row that comes out holds a value of
// the start's pin if the start's rows do, and if the step gives such rows from such rows. The pins
// the step does not bear out are given up, until all that is assumed is borne out.
bool Analyser::recursive_cte(const PgQuery__CommonTableExpr &cte, const PgQuery__SelectStmt &query,
                             const Scope *parent, CteScope &ctes, std::size_t position) {
    CteScope own{&ctes, {}};
    const CteScope *inner = &ctes;
    if (query.with_clause != nullptr) {
        if (!with(*query.with_clause, parent, own)) return false;
        inner = &own;
    }
    const Place place{Place::Kind::cte, cte.ctename};
    cte_outputs_.emplace_back();
    Outputs &outputs = cte_outputs_.back();
    if (!select(*query.larg, parent, inner, place, outputs)) return false;
    for (OutputColumn &column : outputs.columns)
        settle(column);
    rename(outputs, cte.aliascolnames, cte.n_aliascolnames);
    // Only where it is defined does the name mean the rows so far.
    ctes.ctes[position].outputs = &outputs;
    while (true) {
        const Mark before = mark();
        Outputs step_outputs;
        if (!select(*query.rarg, parent, inner, place, step_outputs)) return false;
        bool borne_out = true;
        for (std::size_t i = 0; i < outputs.columns.size(); ++i) {
            OutputColumn &column = outputs.columns[i];
            const OutputColumn *again = !step_outputs.open && i < step_outputs.columns.size()
                                            ? &step_outputs.columns[i]
                                            : nullptr;
            const bool same_type = again != nullptr && again->type == column.type;
            if (column.pin != nullptr && (!same_type || again->pin != column.pin)) {
                column.pin = nullptr;
                borne_out = false;
            }
            if (column.type != 0 && !(same_type && again->linkable)) {
                column.type = 0;
                column.linkable = false;
                borne_out = false;
            }
        }
        if (borne_out) break;
        undo(before);
    }
    Level level;
    Scope scope{parent, &level, inner, {}};
    if (cte.search_clause != nullptr || cte.cycle_clause != nullptr) outputs.open = true;
    return tail(query, scope);
}

}  // namespace interlock::sql
