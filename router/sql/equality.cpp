// From conditions to pins.
#include "sql/analyser.h"
#include "sql/builtins.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// An array's length is not known: a list is more precise.
constexpr std::uint32_t array_weight = 1000;

placement::KeyFamily family_of_type(std::uint32_t type) {
    return family_of(*key_type_of_oid(type));
}

bool same_family(std::uint32_t left, std::uint32_t right) {
    return left != 0 && right != 0 && family_of_type(left) == family_of_type(right);
}

/// Whether a cast between types of one family never fails.
bool widens(std::uint32_t from, std::uint32_t to) {
    const auto size = [](std::uint32_t type) {
        return type == oid::int2 ? 2 : type == oid::int4 ? 4 : 8;
    };
    return family_of_type(from) != placement::KeyFamily::integer || size(from) <= size(to);
}

const PgQuery__RowExpr *row(const Node *node) {
    return node != nullptr && node->node_case == PG_QUERY__NODE__NODE_ROW_EXPR ? node->row_expr
                                                                               : nullptr;
}

bool is_digits(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool Analyser::catalog_first() const {
    for (std::size_t i = 0; i < names_.search_path.size(); ++i)
        if (names_.search_path[i] == "pg_catalog") return i == 0;
    return true;
}

// "=", or OPERATOR(pg_catalog.=). That the unqualified one is the built-in one is what
// Facts::operator_names is for.
bool Analyser::is_equals(Node **name, std::size_t count) const {
    if (count == 0 || string_of(name[count - 1]) != "=") return false;
    return count == 1 || (count == 2 && string_of(name[0]) == "pg_catalog");
}

std::uint32_t Analyser::cast_type(const PgQuery__TypeName &type, bool &array) const {
    array = type.n_array_bounds > 0;
    if (type.setof || type.pct_type || type.n_typmods > 0) return 0;
    const bool qualified = type.n_names == 2 && string_of(type.names[0]) == "pg_catalog";
    if (!qualified && !(type.n_names == 1 && catalog_first())) return 0;
    return key_type_oid(string_of(type.names[type.n_names - 1]));
}

// The literal that stands at a constant's location. A minus sign the parser took into the constant
// stands before it; whether there is an odd number of them must not be read from the value, which
// may be zero.
std::optional<std::uint32_t> Analyser::literal_at(int location, bool negated, bool &negative) {
    negative = false;
    if (location < 0) return std::nullopt;
    auto at = static_cast<std::size_t>(location);
    const auto found = std::lower_bound(
        shape_.literals.begin(), shape_.literals.end(), at,
        [](const Literal &literal, std::size_t offset) { return literal.offset < offset; });
    if (found == shape_.literals.end()) return std::nullopt;
    for (; at < found->offset; ++at) {
        const char c = text_[at];
        if (c == '-' && text_.compare(at, 2, "--") != 0)
            negative = !negative;
        else if (c != ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != '\v')
            return std::nullopt;  // a comment between sign and digits: not worth reading
    }
    if (negated && !negative) return std::nullopt;
    return static_cast<std::uint32_t>(found - shape_.literals.begin());
}

std::optional<Constant> Analyser::literal(const PgQuery__AConst &value) {
    Constant constant;
    constant.key.offset = value.location < 0 ? 0 : static_cast<std::uint32_t>(value.location);
    if (value.isnull) {
        constant.key.from = KeySource::From::null;
        return constant;
    }
    bool negated = false;
    LiteralKind kind = LiteralKind::integer;
    switch (value.val_case) {
    case PG_QUERY__A__CONST__VAL_IVAL: negated = value.ival->ival < 0; break;
    case PG_QUERY__A__CONST__VAL_FVAL: {
        // A number too large for int4 is spelled out.
        std::string_view digits = value.fval->fval;
        negated = digits.starts_with('-');
        if (negated) digits.remove_prefix(1);
        if (!is_digits(digits)) return std::nullopt;
        break;
    }
    case PG_QUERY__A__CONST__VAL_SVAL: kind = LiteralKind::string; break;
    default: return std::nullopt;
    }
    const auto index = literal_at(value.location, negated, constant.key.negative);
    if (!index) return std::nullopt;
    const LiteralKind written = shape_.literals[*index].kind;
    if ((kind == LiteralKind::integer) != (written == LiteralKind::integer)) return std::nullopt;
    if (written == LiteralKind::number) return std::nullopt;
    constant.key.from = KeySource::From::literal;
    constant.key.index = *index;
    constant.integer_literal = kind == LiteralKind::integer;
    return constant;
}

// A literal, a parameter, NULL, a cast of one of these to a type keys have, a minus sign before
// such an integer.
std::optional<Constant> Analyser::constant(const Node *node) {
    if (node == nullptr) return std::nullopt;
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_A_CONST: return literal(*node->a_const);
    case PG_QUERY__NODE__NODE_PARAM_REF: {
        const PgQuery__ParamRef &parameter = *node->param_ref;
        if (parameter.number < 1 || parameter.number > 65535) return std::nullopt;
        Constant constant;
        constant.key.from = KeySource::From::parameter;
        constant.key.index = static_cast<std::uint32_t>(parameter.number - 1);
        constant.key.offset = static_cast<std::uint32_t>(std::max(parameter.location, 0));
        return constant;
    }
    case PG_QUERY__NODE__NODE_TYPE_CAST: {
        bool array = false;
        const std::uint32_t type = cast_type(*node->type_cast->type_name, array);
        if (type == 0 || array) return std::nullopt;
        auto inner = constant(node->type_cast->arg);
        if (!inner) return std::nullopt;
        if (inner->type != 0) {
            // $1::int4::int8 is read as int4; a change of family changes the value's spelling.
            if (!same_family(inner->type, type)) return std::nullopt;
            return inner;
        }
        // 007::text is '7'.
        if (inner->integer_literal && family_of_type(type) != placement::KeyFamily::integer)
            return std::nullopt;
        inner->type = type;
        inner->key.cast = type;
        return inner;
    }
    case PG_QUERY__NODE__NODE_A_EXPR: {
        const PgQuery__AExpr &expression = *node->a_expr;
        if (expression.kind != PG_QUERY__A__EXPR__KIND__AEXPR_OP || expression.lexpr != nullptr ||
            expression.n_name != 1 || string_of(expression.name[0]) != "-")
            return std::nullopt;
        auto inner = constant(expression.rexpr);
        if (!inner || !inner->integer_literal) return std::nullopt;
        inner->key.negative = !inner->key.negative;
        return inner;
    }
    default: return std::nullopt;
    }
}

/// The constant as a value of a column of this type, if it is of the column's family.
std::optional<PinSource> Analyser::source(const Constant &constant, std::uint32_t column_type) {
    if (column_type == 0) return std::nullopt;
    if (constant.type != 0 && !same_family(constant.type, column_type)) return std::nullopt;
    if (constant.integer_literal && family_of_type(column_type) != placement::KeyFamily::integer)
        return std::nullopt;
    if (constant.key.from == KeySource::From::parameter && constant.type == 0)
        note_parameter_at(constant.key.offset, column_type);
    return PinSource{constant.key, constant.type == 0 ? column_type : 0};
}

Pin Analyser::make_pin(std::vector<PinSource> sources, std::uint32_t type, std::uint32_t weight) {
    pin_sets_.push_back({std::move(sources), family_of_type(type), weight});
    return &pin_sets_.back();
}

/// The column a node means, through casts within its family, which keep the value.
Target Analyser::column(const Node *node, const Scope &scope, std::uint32_t &type) const {
    type = 0;
    if (node == nullptr) return {};
    if (node->node_case == PG_QUERY__NODE__NODE_COLUMN_REF) {
        const Target target = resolve(*node->column_ref, scope);
        if (target) {
            const Relation &relation = target.level->relations[target.relation];
            if (!relation.linkable(target.column)) return {};
            type = relation.column_type(target.column);
        }
        return type == 0 ? Target{} : target;
    }
    if (node->node_case == PG_QUERY__NODE__NODE_TYPE_CAST) {
        bool array = false;
        const std::uint32_t to = cast_type(*node->type_cast->type_name, array);
        if (to == 0 || array) return {};
        const Target target = column(node->type_cast->arg, scope, type);
        // A narrowing cast fails on some rows, which may be those of other shards.
        if (!target || !same_family(type, to) || !widens(type, to)) return {};
        type = to;
        return target;
    }
    return {};
}

Pin Analyser::known_pin(Target target) const {
    if (!target) return nullptr;
    if (const Pin pin = target.level->pins.pin_of(target.relation, target.column)) return pin;
    return target.level->relations[target.relation].column_pin(target.column);
}

std::uint32_t Analyser::node_of(Level &level, Target target) const {
    const Relation &relation = level.relations[target.relation];
    return level.pins.node(target.relation, target.column, relation.column_type(target.column),
                           relation.column_pin(target.column));
}

void Analyser::bind(Level &level, Target target, std::vector<PinSource> sources, Range allowed) {
    const std::uint32_t node = node_of(level, target);
    const auto weight = static_cast<std::uint32_t>(sources.size());
    level.pins.bind(node, make_pin(std::move(sources), level.pins.type_of(node), weight), allowed);
}

void Analyser::equality(const Node *left, const Node *right, const Scope &scope, Range allowed,
                        Level &level) {
    if (row(left) != nullptr && row(right) != nullptr) {
        const PgQuery__RowExpr &a = *row(left);
        const PgQuery__RowExpr &b = *row(right);
        if (a.n_args != b.n_args) return;
        for (std::size_t i = 0; i < a.n_args; ++i)
            equality(a.args[i], b.args[i], scope, allowed, level);
        return;
    }
    std::uint32_t left_type = 0;
    std::uint32_t right_type = 0;
    const Target a = column(left, scope, left_type);
    const Target b = column(right, scope, right_type);
    if (a && b) {
        if (!same_family(left_type, right_type)) return;
        // A column of an outer level has one value here, which its pin tells.
        if (a.level == &level && b.level == &level)
            level.pins.link(node_of(level, a), node_of(level, b), allowed);
        else if (a.level == &level) {
            if (const Pin pin = known_pin(b)) level.pins.bind(node_of(level, a), pin, allowed);
        } else if (b.level == &level) {
            if (const Pin pin = known_pin(a)) level.pins.bind(node_of(level, b), pin, allowed);
        }
        return;
    }
    const Target target = a ? a : b;
    if (!target || target.level != &level) return;
    const std::uint32_t type = a ? left_type : right_type;
    const Node *other = a ? right : left;
    if (const auto value = constant(other)) {
        if (const auto pin = source(*value, type)) bind(level, target, {*pin}, allowed);
        return;
    }
    if (other != nullptr && other->node_case == PG_QUERY__NODE__NODE_SUB_LINK &&
        other->sub_link->sub_link_type == PG_QUERY__SUB_LINK_TYPE__EXPR_SUBLINK) {
        const Mark before = mark();
        Outputs outputs;
        if (query(other->sub_link->subselect, &scope, scope.ctes, {Place::Kind::expression},
                  &outputs) &&
            !outputs.open && outputs.columns.size() == 1 && outputs.columns[0].linkable &&
            outputs.columns[0].pin != nullptr && same_family(outputs.columns[0].type, type))
            level.pins.bind(node_of(level, target), outputs.columns[0].pin, allowed);
        undo(before);
    }
}

// key IN (list), (key, x) IN ((..), (..)): every element's key must be a constant.
void Analyser::membership(const PgQuery__AExpr &expression, const Scope &scope, Range allowed,
                          Level &level) {
    if (expression.rexpr == nullptr || expression.rexpr->node_case != PG_QUERY__NODE__NODE_LIST)
        return;
    const PgQuery__List &list = *expression.rexpr->list;
    const auto bind_list = [&](const Node *left, auto element) {
        std::uint32_t type = 0;
        const Target target = column(left, scope, type);
        if (!target || target.level != &level) return;
        std::vector<PinSource> sources;
        sources.reserve(list.n_items);
        for (std::size_t i = 0; i < list.n_items; ++i) {
            const auto value = constant(element(list.items[i]));
            if (!value) return;
            const auto pin = source(*value, type);
            if (!pin) return;
            sources.push_back(*pin);
        }
        bind(level, target, std::move(sources), allowed);
    };
    const PgQuery__RowExpr *left = row(expression.lexpr);
    if (left == nullptr) {
        bind_list(expression.lexpr, [](const Node *item) { return item; });
        return;
    }
    for (std::size_t column = 0; column < left->n_args; ++column)
        bind_list(left->args[column], [&](const Node *item) -> const Node * {
            const PgQuery__RowExpr *element = row(item);
            return element != nullptr && element->n_args == left->n_args ? element->args[column]
                                                                         : nullptr;
        });
}

/// The pin of a column that holds an element of this array, compared as a value of `type`: a list
/// of constants, a parameter or a string, cast or not. Null for another expression.
Pin Analyser::array_pin(const Node *array, std::uint32_t type) {
    std::uint32_t element = 0;
    while (array != nullptr && array->node_case == PG_QUERY__NODE__NODE_TYPE_CAST) {
        bool is_array = false;
        const std::uint32_t cast = cast_type(*array->type_cast->type_name, is_array);
        if (cast == 0 || !is_array || !same_family(cast, type)) return nullptr;
        element = cast;  // of casts in casts the innermost one says how it is spelled
        array = array->type_cast->arg;
    }
    if (array == nullptr) return nullptr;
    std::vector<PinSource> sources;
    if (array->node_case == PG_QUERY__NODE__NODE_A_ARRAY_EXPR) {
        const PgQuery__AArrayExpr &list = *array->a_array_expr;
        for (std::size_t i = 0; i < list.n_elements; ++i) {
            const auto value = constant(list.elements[i]);
            const auto pin = value ? source(*value, type) : std::nullopt;
            if (!pin) return nullptr;
            sources.push_back(*pin);
        }
        const auto weight = static_cast<std::uint32_t>(sources.size());
        return sources.empty() ? nullptr : make_pin(std::move(sources), type, weight);
    }
    auto value = constant(array);
    if (!value || value->integer_literal || value->type != 0) return nullptr;
    if (value->key.from == KeySource::From::parameter) {
        value->key.from = KeySource::From::array;
        if (element == 0) note_parameter_at(value->key.offset, type, true);
    } else if (value->key.from == KeySource::From::literal) {
        value->key.from = KeySource::From::array_text;
    }
    value->key.cast = element;
    return make_pin({{value->key, element == 0 ? type : 0}}, type, array_weight);
}

// key = ANY (array)
void Analyser::any_array(const PgQuery__AExpr &expression, const Scope &scope, Range allowed,
                         Level &level) {
    std::uint32_t type = 0;
    const Target target = column(expression.lexpr, scope, type);
    if (!target || target.level != &level) return;
    if (const Pin pin = array_pin(expression.rexpr, type))
        level.pins.bind(node_of(level, target), pin, allowed);
}

// key IN (sub-select): the sub-select's column is pinned.
void Analyser::any_sublink(const PgQuery__SubLink &sublink, const Scope &scope, Range allowed,
                           Level &level) {
    if (sublink.n_oper_name > 0 && !is_equals(sublink.oper_name, sublink.n_oper_name)) return;
    const PgQuery__RowExpr *left = row(sublink.testexpr);
    std::vector<const Node *> columns;
    if (left == nullptr)
        columns.push_back(sublink.testexpr);
    else
        columns.assign(left->args, left->args + left->n_args);

    const bool useful = std::any_of(columns.begin(), columns.end(), [&](const Node *node) {
        std::uint32_t type = 0;
        return column(node, scope, type).level == &level;
    });
    if (!useful) return;
    const Mark before = mark();
    Outputs outputs;
    if (query(sublink.subselect, &scope, scope.ctes, {Place::Kind::expression}, &outputs) &&
        !outputs.open && outputs.columns.size() == columns.size()) {
        for (std::size_t i = 0; i < columns.size(); ++i) {
            std::uint32_t type = 0;
            const Target target = column(columns[i], scope, type);
            const OutputColumn &output = outputs.columns[i];
            if (!target || target.level != &level || output.pin == nullptr || !output.linkable ||
                !same_family(output.type, type))
                continue;
            level.pins.bind(node_of(level, target), output.pin, allowed);
        }
    }
    undo(before);
}

// A qualifier's conjuncts, each for itself. What is none of the forms below is no fact.
void Analyser::condition(const Node *node, const Scope &scope, Range allowed, Level &level) {
    if (node == nullptr) return;
    if (node->node_case == PG_QUERY__NODE__NODE_BOOL_EXPR &&
        node->bool_expr->boolop == PG_QUERY__BOOL_EXPR_TYPE__AND_EXPR) {
        for (std::size_t i = 0; i < node->bool_expr->n_args; ++i)
            condition(node->bool_expr->args[i], scope, allowed, level);
        return;
    }
    if (node->node_case == PG_QUERY__NODE__NODE_SUB_LINK) {
        if (node->sub_link->sub_link_type == PG_QUERY__SUB_LINK_TYPE__ANY_SUBLINK)
            any_sublink(*node->sub_link, scope, allowed, level);
        return;
    }
    if (node->node_case != PG_QUERY__NODE__NODE_A_EXPR) return;
    const PgQuery__AExpr &expression = *node->a_expr;
    if (!is_equals(expression.name, expression.n_name)) return;
    switch (expression.kind) {
    case PG_QUERY__A__EXPR__KIND__AEXPR_OP:
        equality(expression.lexpr, expression.rexpr, scope, allowed, level);
        break;
    case PG_QUERY__A__EXPR__KIND__AEXPR_IN: membership(expression, scope, allowed, level); break;
    case PG_QUERY__A__EXPR__KIND__AEXPR_OP_ANY: any_array(expression, scope, allowed, level); break;
    default: break;
    }
}

void Analyser::collect(Level &level) {
    level.pins.clear();
    for (const Qualifier &qualifier : level.qualifiers)
        condition(qualifier.expression, *qualifier.scope, qualifier.allowed, level);
    for (const ColumnLink &link : level.links) {
        const Relation &a = level.relations[link.left.relation];
        const Relation &b = level.relations[link.right.relation];
        if (a.linkable(link.left.column) && b.linkable(link.right.column) &&
            same_family(a.column_type(link.left.column), b.column_type(link.right.column)))
            level.pins.link(node_of(level, link.left), node_of(level, link.right), link.allowed);
    }
    level.pins.solve();
}

bool Analyser::pin_level(Level &level) {
    collect(level);
    return laterals(level);
}

bool Analyser::check_pinned(Level &level, Place place) {
    for (std::uint32_t i = 0; i < level.relations.size(); ++i) {
        const Relation &relation = level.relations[i];
        if (relation.kind != Relation::Kind::table) continue;
        const Pin pin = level.pins.pin_of(i, relation.table->key_column);
        if (pin == nullptr) return refuse_unpinned(level, i, place);
        emit(pin, relation.table_index);
    }
    return true;
}

// The sources of a pin, as keys of this table. Co-located tables share them.
void Analyser::emit(Pin pin, std::uint32_t index) {
    const Table &table = names_.routes.tables[index];
    for (const Emitted &done : emitted_)
        if (done.pin == pin && done.keyspace == table.keyspace && done.type == table.key_type)
            return;
    emitted_.push_back({pin, table.keyspace, table.key_type});
    for (const PinSource &value : pin->sources) {
        KeySource key = value.key;
        key.table = index;
        if (key.cast == 0 && value.type != 0 && key_type_of_oid(value.type) != table.key_type)
            key.cast = value.type;
        const auto same = [&](const KeySource &other) {
            const Table &owner = names_.routes.tables[other.table];
            return other.from == key.from && other.index == key.index &&
                   other.negative == key.negative && other.cast == key.cast &&
                   owner.keyspace == table.keyspace && owner.key_type == table.key_type;
        };
        if (facts.keys.size() < 64 && std::any_of(facts.keys.begin(), facts.keys.end(), same))
            continue;
        facts.keys.push_back(key);
    }
}

}  // namespace interlock::sql
