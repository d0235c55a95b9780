// The types of parameters.
//
// A parameter that the client declares no type for takes the one that its first place in the text
// asks for (parse_param.c). In "x = $1 AND key = $1" with x of type numeric, float8, bpchar or name
// the key is compared with a numeric, a double ..., and the same bytes may mean another key than
// they do as a value of the key's type. So a parameter that pins a key must be of the key's family
// wherever it stands, or declared (KeySource::typed).
#include "sql/analyser.h"

#include <algorithm>
#include <unordered_set>

namespace interlock::sql {

namespace {

bool is_comparison(Node **name, std::size_t count) {
    const std::string_view operation = string_of(name[count - 1]);
    return operation == "=" || operation == "<>" || operation == "<" || operation == "<=" ||
           operation == ">" || operation == ">=";
}

const PgQuery__ParamRef *parameter(const Node *node) {
    return node != nullptr && node->node_case == PG_QUERY__NODE__NODE_PARAM_REF ? node->param_ref
                                                                                : nullptr;
}

std::uint32_t location_of(const PgQuery__ParamRef &parameter) {
    return static_cast<std::uint32_t>(std::max(parameter.location, 0));
}

}  // namespace

void Analyser::note_parameter_at(std::uint32_t location, std::uint32_t type, bool array) {
    ParameterUse &use = parameters_[location];
    if (!key_type_of_oid(type)) return;
    use.type = type;
    use.array = array;
}

void Analyser::note_parameter(const Node *node, std::uint32_t type, bool array) {
    if (const PgQuery__ParamRef *found = parameter(node)) {
        note_parameter_at(location_of(*found), type, array);
        parameters_[location_of(*found)].number = static_cast<std::uint32_t>(found->number - 1);
    }
}

// $1 IS NULL
void Analyser::note_untyped(const Node *node) {
    if (const PgQuery__ParamRef *found = parameter(node))
        parameters_[location_of(*found)].any_type = true;
}

// column < $1: the parameter takes the column's type.
void Analyser::note_comparison(const PgQuery__AExpr &expression, const Scope &scope) {
    if (expression.kind != PG_QUERY__A__EXPR__KIND__AEXPR_OP || expression.lexpr == nullptr ||
        expression.rexpr == nullptr || !is_comparison(expression.name, expression.n_name))
        return;
    const auto compare = [&](const Node *value, const Node *column) {
        if (parameter(value) == nullptr || column->node_case != PG_QUERY__NODE__NODE_COLUMN_REF)
            return;
        if (const Target target = resolve(*column->column_ref, scope))
            note_parameter(value,
                           target.level->relations[target.relation].column_type(target.column));
    };
    compare(expression.lexpr, expression.rexpr);
    compare(expression.rexpr, expression.lexpr);
}

void Analyser::check_parameters() {
    struct Pinning {
        placement::KeyFamily family;
        bool array;
    };
    std::unordered_map<std::uint32_t, Pinning> pinning;
    for (const KeySource &key : facts.keys) {
        if (key.from != KeySource::From::parameter && key.from != KeySource::From::array) continue;
        const Table &table = names_.routes.tables[key.table];
        pinning.insert(
            {key.index, {family_of(table.key_type), key.from == KeySource::From::array}});
    }
    if (pinning.empty()) return;
    std::unordered_set<std::uint32_t> uncertain;
    for (const auto &[location, use] : parameters_) {
        const auto pin = pinning.find(use.number);
        if (pin == pinning.end() || use.any_type) continue;
        const auto type = key_type_of_oid(use.type);
        if (type && family_of(*type) == pin->second.family && use.array == pin->second.array)
            continue;
        uncertain.insert(use.number);
    }
    for (KeySource &key : facts.keys)
        if (key.from == KeySource::From::parameter || key.from == KeySource::From::array)
            key.typed = uncertain.count(key.index) != 0;
}

}  // namespace interlock::sql
