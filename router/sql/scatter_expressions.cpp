// Which expressions mean the same on every shard.
#include "sql/builtins.h"
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

#include <algorithm>
#include <cctype>

namespace interlock::sql {

namespace {

bool is_system_column(std::string_view name) {
    constexpr std::string_view names[] = {"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"};
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Types whose values name something in one server's catalog, or a row's place in it.
bool is_server_type(std::string_view name) {
    constexpr std::string_view names[] = {"cid",  "tid",         "xid",
                                          "xid8", "pg_snapshot", "txid_snapshot"};
    return name.starts_with("reg") ||
           std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Built-in types whose order knows no collation.
bool is_plain_type(std::uint32_t type) {
    switch (type) {
    case oid::boolean:
    case oid::bytea:
    case oid::int8:
    case oid::int2:
    case oid::int4:
    case oid::oid:
    case oid::float4:
    case oid::float8:
    case oid::date:
    case oid::time:
    case oid::timestamp:
    case oid::timestamptz:
    case oid::interval:
    case oid::timetz:
    case oid::numeric:
    case oid::uuid: return true;
    default: return false;
    }
}

bool by_clock(PgQuery__SQLValueFunctionOp operation) {
    return operation >= PG_QUERY__SQLVALUE_FUNCTION_OP__SVFOP_CURRENT_DATE &&
           operation <= PG_QUERY__SQLVALUE_FUNCTION_OP__SVFOP_LOCALTIMESTAMP_N;
}

/// Whether a string may be read as a time that goes by the clock: 'now', 'today' ...
bool names_clock(std::string_view text) {
    std::string lower(text);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const std::string_view word : {"now", "today", "tomorrow", "yesterday"})
        if (lower.find(word) != std::string::npos) return true;
    return false;
}

constexpr const char *clock_message =
    "the order would go by the clock, and each shard has its own: ";
constexpr const char *page_clock_message =
    "the page would go by the clock, and each shard has its own: ";
constexpr const char *clock_hint = "Send the time as a parameter or write it as a literal.";

}  // namespace

bool is_star(const Node *node) {
    return node != nullptr && node->node_case == PG_QUERY__NODE__NODE_COLUMN_REF &&
           node->column_ref->n_fields > 0 &&
           node->column_ref->fields[node->column_ref->n_fields - 1]->node_case ==
               PG_QUERY__NODE__NODE_A_STAR;
}

std::optional<std::uint32_t> ScatterAnalysis::column_of(const Node *node) const {
    if (node == nullptr || node->node_case != PG_QUERY__NODE__NODE_COLUMN_REF || is_star(node))
        return std::nullopt;
    const Target target = resolve(*node->column_ref, scope_);
    return target ? std::optional(target.column) : std::nullopt;
}

bool ScatterAnalysis::check_list(Node **list, std::size_t count, Use use) {
    for (std::size_t i = 0; i < count; ++i)
        if (!check(list[i], use)) return false;
    return true;
}

// First what holds for every statement (functions and operators are known, constructs too), then
// what only these must meet.
bool ScatterAnalysis::check(const Node *node, Use use) {
    bool good = true;
    visit(node, [&](const Node &each) {
        if (!good) return false;
        switch (each.node_case) {
        case PG_QUERY__NODE__NODE_SUB_LINK:
            good = refuse(each.sub_link->location, "a sub-select would see one shard's rows alone",
                          "Ask for its rows first, and send what is needed of them as parameters.");
            break;
        case PG_QUERY__NODE__NODE_FUNC_CALL: good = check_call(*each.func_call, use); break;
        case PG_QUERY__NODE__NODE_COLUMN_REF: good = check_column(*each.column_ref, use); break;
        case PG_QUERY__NODE__NODE_TYPE_CAST: good = check_cast(*each.type_cast); break;
        case PG_QUERY__NODE__NODE_A_CONST: good = check_literal(*each.a_const, use); break;
        case PG_QUERY__NODE__NODE_PARAM_REF:
            if (use == Use::order)
                good = refuse(each.param_ref->location,
                              "a parameter in what the rows are ordered or grouped by",
                              "Order by columns, or by expressions without parameters.");
            break;
        case PG_QUERY__NODE__NODE_SQLVALUE_FUNCTION: {
            const PgQuery__SQLValueFunction &value = *each.sqlvalue_function;
            if ((use == Use::order || use == Use::value) && by_clock(value.op))
                good = refuse(value.location,
                              std::string(use == Use::order ? clock_message : page_clock_message) +
                                  "CURRENT_DATE or the like",
                              clock_hint);
            else if (value.op == PG_QUERY__SQLVALUE_FUNCTION_OP__SVFOP_CURRENT_CATALOG ||
                     value.op == PG_QUERY__SQLVALUE_FUNCTION_OP__SVFOP_CURRENT_SCHEMA)
                good = refuse(value.location, "the name of a database or schema is a shard's own");
            break;
        }
        case PG_QUERY__NODE__NODE_ROW_EXPR:
            if (use == Use::order)
                good = refuse(each.row_expr->location, "rows are ordered or grouped by a row",
                              "Name its columns one by one, without parentheses.");
            break;
        case PG_QUERY__NODE__NODE_GROUPING_SET:
            good = refuse(each.grouping_set->location,
                          "GROUPING SETS, ROLLUP and CUBE cannot run on all shards",
                          "Send one statement for each grouping.");
            break;
        case PG_QUERY__NODE__NODE_GROUPING_FUNC:
            good = refuse(each.grouping_func->location, "GROUPING() cannot run on all shards");
            break;
        case PG_QUERY__NODE__NODE_A_INDIRECTION:
            for (std::size_t i = 0; good && i < each.a_indirection->n_indirection; ++i) {
                const Node *step = each.a_indirection->indirection[i];
                if (step->node_case == PG_QUERY__NODE__NODE_A_INDICES) continue;
                const bool column = table().find_column(string_of(step)).has_value();
                if (use == Use::page && (column || step->node_case == PG_QUERY__NODE__NODE_A_STAR))
                    continue;
                good = refuse(location_within(each.a_indirection->arg),
                              "a field of a composite value, which could be a function's call");
            }
            break;
        default: break;
        }
        return good;
    });
    return good && analyser_.walk(node, scope_);
}

bool ScatterAnalysis::check_call(const PgQuery__FuncCall &call, Use use) {
    const std::string name(string_of(call.funcname[call.n_funcname - 1]));
    if (call.over != nullptr)
        return refuse(call.location, "a window function would see one shard's rows alone",
                      "Ask for the rows, and number them in the application.");
    const bool builtin = call.n_funcname == 1 ||
                         (call.n_funcname == 2 && string_of(call.funcname[0]) == "pg_catalog");
    switch (builtin ? shard_function(name) : ShardFunction::other) {
    case ShardFunction::row: break;
    case ShardFunction::clock:
        if (use == Use::order || use == Use::value)
            return refuse(call.location,
                          (use == Use::order ? clock_message : page_clock_message) + name,
                          clock_hint);
        break;
    case ShardFunction::aggregate:
        if (use == Use::page)
            return refuse(call.location,
                          "an aggregate over a page, of which each shard has its own",
                          "Read the page, and count in the application.");
        return refuse(call.location, "aggregate " + name + " cannot stand here",
                      "Over all shards count, sum, min, max and avg can be columns by themselves.");
    case ShardFunction::other:
        return refuse(call.location,
                      "function " + name +
                          " cannot run on all shards: it gives "
                          "sets of rows, differs from call to call or from server to "
                          "server, or is not built in");
    }
    if (call.agg_star || call.agg_distinct || call.agg_within_group || call.n_agg_order > 0 ||
        call.agg_filter != nullptr)
        return refuse(call.location, "function " + name + " is called like an aggregate");
    return true;
}

bool ScatterAnalysis::check_column(const PgQuery__ColumnRef &reference, Use use) {
    const Node *last = reference.fields[reference.n_fields - 1];
    const std::string name(string_of(last));
    if (is_system_column(name))
        return refuse(reference.location, "column " + name + " means nothing beyond one shard",
                      "Name a row by its primary key.");
    if (resolve(reference, scope_)) return true;
    const Relation &relation = level_.relations[0];
    const bool whole = last->node_case == PG_QUERY__NODE__NODE_A_STAR ||
                       (reference.n_fields == 1 && name == relation.name);
    if (whole && use == Use::page) return true;
    if (whole)
        return refuse(reference.location,
                      "the whole row as one value, which has the type of one "
                      "shard's table",
                      "Name its columns.");
    return refuse(reference.location,
                  "column " + quoted(name) + " is not one of " +
                      (use == Use::page ? std::string("keyset_page") : table().sql_name),
                  "After a change of the table, run interlock apply.");
}

bool ScatterAnalysis::check_cast(const PgQuery__TypeCast &cast) {
    const PgQuery__TypeName &type = *cast.type_name;
    const std::string name(type.n_names == 0 ? std::string_view()
                                             : string_of(type.names[type.n_names - 1]));
    if (!is_server_type(name)) return true;
    return refuse(type.location, "type " + name + " names what one server has, by its own numbers");
}

bool ScatterAnalysis::check_literal(const PgQuery__AConst &value, Use use) {
    if (use != Use::order || value.val_case != PG_QUERY__A__CONST__VAL_SVAL ||
        !names_clock(value.sval->sval))
        return true;
    return refuse(value.location, std::string(clock_message) + "'" + value.sval->sval + "'",
                  clock_hint);
}

// Whether what rows are ordered by may go by a collation, which all shards must then have alike.
bool ScatterAnalysis::by_collation(const Node *node) const {
    if (node == nullptr) return true;
    if (const auto column = column_of(node))
        return !is_plain_type(table().columns[*column].type_oid);
    if (node->node_case == PG_QUERY__NODE__NODE_COLLATE_CLAUSE) {
        const PgQuery__CollateClause &collate = *node->collate_clause;
        const std::string_view name = string_of(collate.collname[collate.n_collname - 1]);
        const bool builtin =
            collate.n_collname == 1 || string_of(collate.collname[0]) == "pg_catalog";
        return !(builtin && (name == "C" || name == "POSIX"));
    }
    if (node->node_case == PG_QUERY__NODE__NODE_TYPE_CAST) {
        bool array = false;
        const std::uint32_t type = analyser_.cast_type(*node->type_cast->type_name, array);
        return array || !is_plain_type(type);
    }
    return true;
}

bool ScatterAnalysis::by_collation(const Key &key) const {
    if (key.column) return !is_plain_type(table().columns[*key.column].type_oid);
    return by_collation(key.node);
}

}  // namespace interlock::sql
