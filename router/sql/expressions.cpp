// Expressions: what they call must be known, and the queries in them are judged.
//
// Every kind of node that may stand in an expression is named here; one that is not is refused, so
// that nothing passes unseen.
#include "sql/analyser.h"
#include "sql/builtins.h"
#include "sql/tree.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// More steps than a text of the greatest size needs; a statement whose analysis takes trials
/// inside trials ends here.
constexpr std::uint32_t max_steps = 2'000'000;

std::string describe_effect(Builtin kind) {
    return kind == Builtin::session
               ? "it reads or changes the state of a session, and sessions share connections"
               : "it has effects outside the row, which the router cannot see";
}

/// Functions of the extension that work on their arguments and on declarations alone.
bool touches_no_rows(std::string_view name) {
    return name == "keyset_cursor" || name == "keyset_predicate" || name == "keyset_decode" ||
           name == "sort_key" || name == "group_key";
}

std::string effect_hint(std::string_view name) {
    if (name == "nextval" || name == "currval" || name == "lastval" || name == "setval")
        return "Each shard has its own sequences: let the application make the number, or use "
               "gen_random_uuid().";
    if (name == "set_config") return "Use SET or SET LOCAL.";
    if (name.find("advisory") != std::string_view::npos)
        return "Lock a row of the key with SELECT ... FOR UPDATE.";
    if (name == "txid_current" || name == "pg_current_xact_id")
        return "pg_current_xact_id_if_assigned() is allowed.";
    return "Connect to the shard directly.";
}

}  // namespace

bool Analyser::step() {
    if (++steps_ <= max_steps) return true;
    refuse(Code::R01, -1, "the statement is too complex to be analysed",
           "Nest fewer sub-selects in each other.");
    refusal.sqlstate = "54001";
    return false;
}

bool Analyser::walk_list(Node **list, std::size_t count, const Scope &scope) {
    for (std::size_t i = 0; i < count; ++i)
        if (!walk(list[i], scope)) return false;
    return true;
}

// Every Node below `message`, through its descriptor: a field added by a later version of the
// parser is walked too.
bool Analyser::walk_fields(const ProtobufCMessage &message, const Scope &scope) {
    const auto *bytes = reinterpret_cast<const char *>(&message);
    for (unsigned i = 0; i < message.descriptor->n_fields; ++i) {
        const ProtobufCFieldDescriptor &field = message.descriptor->fields[i];
        if (field.type != PROTOBUF_C_TYPE_MESSAGE) continue;
        if (field.descriptor == &pg_query__type_name__descriptor ||
            field.descriptor == &pg_query__alias__descriptor)
            continue;
        const bool node = field.descriptor == &pg_query__node__descriptor;
        if (field.label == PROTOBUF_C_LABEL_REPEATED) {
            const auto count =
                *reinterpret_cast<const std::size_t *>(bytes + field.quantifier_offset);
            auto **items = *reinterpret_cast<ProtobufCMessage **const *>(bytes + field.offset);
            for (std::size_t k = 0; k < count; ++k) {
                if (node ? !walk(reinterpret_cast<const Node *>(items[k]), scope)
                         : !walk_fields(*items[k], scope))
                    return false;
            }
            continue;
        }
        const auto *item = *reinterpret_cast<ProtobufCMessage *const *>(bytes + field.offset);
        if (item == nullptr) continue;
        if (node ? !walk(reinterpret_cast<const Node *>(item), scope) : !walk_fields(*item, scope))
            return false;
    }
    return true;
}

bool Analyser::walk(const Node *node, const Scope &scope) {
    if (node == nullptr) return true;
    if (!step()) return false;
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE__NOT_SET:
    case PG_QUERY__NODE__NODE_A_CONST:
    case PG_QUERY__NODE__NODE_A_STAR:
    case PG_QUERY__NODE__NODE_INTEGER:
    case PG_QUERY__NODE__NODE_STRING:
    case PG_QUERY__NODE__NODE_SQLVALUE_FUNCTION:
    case PG_QUERY__NODE__NODE_SET_TO_DEFAULT: return true;
    case PG_QUERY__NODE__NODE_PARAM_REF: note_parameter(node, 0); return true;

    case PG_QUERY__NODE__NODE_COLUMN_REF: {
        const PgQuery__ColumnRef &reference = *node->column_ref;
        if (!may_call_function(reference, scope)) return true;
        return field_name(string_of(reference.fields[reference.n_fields - 1]), reference.location);
    }
    case PG_QUERY__NODE__NODE_A_INDIRECTION: {
        const PgQuery__AIndirection &indirection = *node->a_indirection;
        for (std::size_t i = 0; i < indirection.n_indirection; ++i) {
            const std::string_view field = string_of(indirection.indirection[i]);
            if (!field.empty() && !field_name(field, location_of(indirection.arg))) return false;
        }
        return walk_fields(indirection.base, scope);
    }
    case PG_QUERY__NODE__NODE_A_EXPR: {
        const PgQuery__AExpr &expression = *node->a_expr;
        switch (expression.kind) {
        case PG_QUERY__A__EXPR__KIND__AEXPR_BETWEEN:
        case PG_QUERY__A__EXPR__KIND__AEXPR_NOT_BETWEEN:
        case PG_QUERY__A__EXPR__KIND__AEXPR_BETWEEN_SYM:
        case PG_QUERY__A__EXPR__KIND__AEXPR_NOT_BETWEEN_SYM:
            for (const char *name : {"<", "<=", ">", ">="})
                note_operator(name);
            break;
        default:
            if (!operator_name(expression.name, expression.n_name, expression.location))
                return false;
        }
        note_comparison(expression, scope);
        return walk(expression.lexpr, scope) && walk(expression.rexpr, scope);
    }
    case PG_QUERY__NODE__NODE_FUNC_CALL: return function(*node->func_call, scope);
    case PG_QUERY__NODE__NODE_SUB_LINK: return sublink(*node->sub_link, scope);
    case PG_QUERY__NODE__NODE_TYPE_CAST: {
        bool array = false;
        if (const std::uint32_t type = cast_type(*node->type_cast->type_name, array))
            note_parameter(node->type_cast->arg, type, array);
        return walk(node->type_cast->arg, scope);
    }
    case PG_QUERY__NODE__NODE_COLLATE_CLAUSE: return walk(node->collate_clause->arg, scope);
    case PG_QUERY__NODE__NODE_CASE_EXPR:
        if (node->case_expr->arg != nullptr) note_operator("=");
        return walk_fields(node->case_expr->base, scope);
    case PG_QUERY__NODE__NODE_SORT_BY:
        if (node->sort_by->n_use_op > 0 &&
            !operator_name(node->sort_by->use_op, node->sort_by->n_use_op, node->sort_by->location))
            return false;
        return walk(node->sort_by->node, scope);
    case PG_QUERY__NODE__NODE_LIST: return walk_list(node->list->items, node->list->n_items, scope);
    case PG_QUERY__NODE__NODE_BOOL_EXPR:
        return walk_list(node->bool_expr->args, node->bool_expr->n_args, scope);
    case PG_QUERY__NODE__NODE_RES_TARGET: return walk_fields(node->res_target->base, scope);

    case PG_QUERY__NODE__NODE_A_ARRAY_EXPR: return walk_fields(node->a_array_expr->base, scope);
    case PG_QUERY__NODE__NODE_A_INDICES: return walk_fields(node->a_indices->base, scope);
    case PG_QUERY__NODE__NODE_NULL_TEST:
        if (!walk(node->null_test->arg, scope)) return false;
        note_untyped(node->null_test->arg);
        return true;
    case PG_QUERY__NODE__NODE_BOOLEAN_TEST: return walk_fields(node->boolean_test->base, scope);
    case PG_QUERY__NODE__NODE_CASE_WHEN: return walk_fields(node->case_when->base, scope);
    case PG_QUERY__NODE__NODE_COALESCE_EXPR: return walk_fields(node->coalesce_expr->base, scope);
    case PG_QUERY__NODE__NODE_MIN_MAX_EXPR: return walk_fields(node->min_max_expr->base, scope);
    case PG_QUERY__NODE__NODE_ROW_EXPR: return walk_fields(node->row_expr->base, scope);
    case PG_QUERY__NODE__NODE_NAMED_ARG_EXPR: return walk_fields(node->named_arg_expr->base, scope);
    case PG_QUERY__NODE__NODE_GROUPING_FUNC: return walk_fields(node->grouping_func->base, scope);
    case PG_QUERY__NODE__NODE_GROUPING_SET: return walk_fields(node->grouping_set->base, scope);
    case PG_QUERY__NODE__NODE_WINDOW_DEF: return walk_fields(node->window_def->base, scope);
    case PG_QUERY__NODE__NODE_XML_EXPR: return walk_fields(node->xml_expr->base, scope);
    case PG_QUERY__NODE__NODE_XML_SERIALIZE: return walk_fields(node->xml_serialize->base, scope);
    case PG_QUERY__NODE__NODE_MULTI_ASSIGN_REF:
        return walk_fields(node->multi_assign_ref->base, scope);
    case PG_QUERY__NODE__NODE_INDEX_ELEM: return walk(node->index_elem->expr, scope);

    case PG_QUERY__NODE__NODE_CURRENT_OF_EXPR:
        return refuse(Code::R01, static_cast<int>(offset_), "WHERE CURRENT OF is not routed",
                      "Name the row by its shard key and primary key.");
    default:
        return refuse(Code::R01, std::max(location_of(node), static_cast<int>(offset_)),
                      "the statement contains a construct that the router does not know");
    }
}

bool Analyser::function(const PgQuery__FuncCall &call, const Scope &scope) {
    return function_name(call.funcname, call.n_funcname, call.location) &&
           walk_fields(call.base, scope);
}

bool Analyser::function_name(Node **name, std::size_t count, int location) {
    const std::string_view schema = count == 2 ? string_of(name[0]) : std::string_view();
    const std::string_view function = string_of(name[count - 1]);
    if (count > 2)
        return refuse(Code::R26, location,
                      "function " + std::string(function) + " is named with its database",
                      "Leave the database's name out.");
    if (count == 1 || schema == "pg_catalog") {
        const Builtin kind = builtin_function(function);
        if (kind == Builtin::session || kind == Builtin::effect) {
            Code code = kind == Builtin::session ? Code::R25 : Code::R01;
            return refuse(code, location,
                          "function " + std::string(function) +
                              " is not routed: " + describe_effect(kind),
                          effect_hint(function));
        }
        if (kind == Builtin::safe || schema == "pg_catalog") {
            if (kind == Builtin::unknown)
                return refuse(Code::R26, location,
                              "function pg_catalog." + std::string(function) +
                                  " is not known to the router");
            if (count == 1) facts.function_names.emplace_back(function);
            return true;
        }
    }
    // What the views of information_schema are made of; drivers use them too.
    if (schema == "information_schema" && function.starts_with("_pg_")) return true;
    if (count == 2 && schema == "interlock" && function == "keyset_page")
        return refuse(Code::scatter_unsupported, location,
                      "interlock.keyset_page can only be read from by a statement of its own",
                      "Write SELECT ... FROM interlock.keyset_page(...).");
    if (count == 2 && schema == "interlock" && touches_no_rows(function)) return true;
    if (count == 1) {
        for (const std::string &candidate : names_.search_path) {
            if (!names_.routes.declares_function(candidate, function)) continue;
            facts.user_code = true;
            facts.function_names.emplace_back(function);
            return true;
        }
    } else if (names_.routes.declares_function(schema, function)) {
        facts.user_code = true;
        return true;
    }
    const std::string full =
        count == 2 ? std::string(schema) + "." + std::string(function) : std::string(function);
    return refuse(Code::R26, location, "function " + full + " is not known to the router",
                  "Functions of users must be declared in the catalog; declare only such as touch "
                  "no rows of other keys.");
}

// "(expression).name" and "row.name" call a function of that name where there is no such column.
bool Analyser::field_name(std::string_view name, int location) {
    const Builtin kind = builtin_function(name);
    if (kind == Builtin::session || kind == Builtin::effect)
        return refuse(Code::R01, location,
                      "\"" + std::string(name) +
                          "\" could be a call of the function of that name, which is not routed");
    facts.function_names.emplace_back(name);
    return true;
}

void Analyser::note_operator(std::string_view name) {
    for (const std::string &noted : facts.operator_names)
        if (noted == name) return;
    facts.operator_names.emplace_back(name);
}

bool Analyser::operator_name(Node **name, std::size_t count, int location) {
    const std::string_view operation = string_of(name[count - 1]);
    if (count == 2 && string_of(name[0]) == "pg_catalog") return true;
    if (count != 1 || !builtin_operator(operation))
        return refuse(Code::R26, location,
                      "operator " + std::string(operation) + " is not built in",
                      "Operators of users and extensions are not routed.");
    note_operator(operation);
    return true;
}

bool Analyser::sublink(const PgQuery__SubLink &sublink, const Scope &scope) {
    if (!walk(sublink.testexpr, scope)) return false;
    if (sublink.n_oper_name > 0) {
        if (!operator_name(sublink.oper_name, sublink.n_oper_name, sublink.location)) return false;
    } else if (sublink.sub_link_type == PG_QUERY__SUB_LINK_TYPE__ANY_SUBLINK) {
        note_operator("=");
    }
    Outputs outputs;
    return query(sublink.subselect, &scope, scope.ctes, {Place::Kind::expression}, &outputs);
}

}  // namespace interlock::sql
