// Why a table is not pinned, in words that help.
#include "sql/analyser.h"

#include <algorithm>
#include <functional>

namespace interlock::sql {

namespace {

/// Calls `seen` for each column reference below a node, sub-selects included.
void visit_columns(const ProtobufCMessage &message,
                   const std::function<void(const PgQuery__ColumnRef &)> &seen) {
    if (message.descriptor == &pg_query__node__descriptor) {
        const auto &node = reinterpret_cast<const Node &>(message);
        if (node.node_case == PG_QUERY__NODE__NODE__NOT_SET) return;
        if (node.node_case == PG_QUERY__NODE__NODE_COLUMN_REF) {
            seen(*node.column_ref);
            return;
        }
        // All members of the union are pointers to messages.
        visit_columns(node.column_ref->base, seen);
        return;
    }
    const auto *bytes = reinterpret_cast<const char *>(&message);
    for (unsigned i = 0; i < message.descriptor->n_fields; ++i) {
        const ProtobufCFieldDescriptor &field = message.descriptor->fields[i];
        if (field.type != PROTOBUF_C_TYPE_MESSAGE ||
            (field.flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0)
            continue;
        if (field.label == PROTOBUF_C_LABEL_REPEATED) {
            const auto count =
                *reinterpret_cast<const std::size_t *>(bytes + field.quantifier_offset);
            auto **items = *reinterpret_cast<ProtobufCMessage **const *>(bytes + field.offset);
            for (std::size_t k = 0; k < count; ++k)
                visit_columns(*items[k], seen);
        } else if (const auto *item =
                       *reinterpret_cast<ProtobufCMessage *const *>(bytes + field.offset)) {
            visit_columns(*item, seen);
        }
    }
}

bool plain_name(std::string_view name) {
    return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
           std::all_of(name.begin(), name.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
           });
}

}  // namespace

std::string quote_identifier(std::string_view name) {
    if (plain_name(name)) return std::string(name);
    std::string quoted = "\"";
    for (const char c : name) {
        if (c == '"') quoted += c;
        quoted += c;
    }
    return quoted + "\"";
}

/// What the statement says about the relation's shard key, and why that is not enough; empty when
/// it says nothing.
std::string Analyser::near_miss(Level &level, std::uint32_t relation) {
    const Table &table = *level.relations[relation].table;
    const std::string key = quote_identifier(table.columns[table.key_column].name);
    std::string why;
    const std::function<void(const Node *, const Qualifier &)> look =
        [&](const Node *node, const Qualifier &qualifier) {
            if (node == nullptr || !why.empty()) return;
            if (node->node_case == PG_QUERY__NODE__NODE_BOOL_EXPR &&
                node->bool_expr->boolop == PG_QUERY__BOOL_EXPR_TYPE__AND_EXPR) {
                for (std::size_t i = 0; i < node->bool_expr->n_args; ++i)
                    look(node->bool_expr->args[i], qualifier);
                return;
            }
            bool named = false;
            visit_columns(node->base, [&](const PgQuery__ColumnRef &reference) {
                const Target target = resolve(reference, *qualifier.scope);
                named = named || (target.level == &level && target.relation == relation &&
                                  target.column == table.key_column);
            });
            if (!named) return;
            if (!qualifier.allowed.has(relation)) {
                why = "The ON condition of an outer join does not restrict the side whose rows are "
                      "all kept.";
            } else if (node->node_case == PG_QUERY__NODE__NODE_BOOL_EXPR) {
                const bool negated = node->bool_expr->boolop == PG_QUERY__BOOL_EXPR_TYPE__NOT_EXPR;
                why = "The condition on " + key + " stands under " + (negated ? "NOT." : "OR.");
            } else if (node->node_case == PG_QUERY__NODE__NODE_A_EXPR &&
                       is_equals(node->a_expr->name, node->a_expr->n_name) &&
                       node->a_expr->kind == PG_QUERY__A__EXPR__KIND__AEXPR_OP) {
                why = key + " is compared with what is neither a constant, nor a parameter, nor a "
                            "column that is pinned.";
            } else {
                why = "The condition on " + key + " is not an equality with constants.";
            }
        };
    for (const Qualifier &qualifier : level.qualifiers)
        look(qualifier.expression, qualifier);
    return why;
}

bool Analyser::refuse_unpinned(Level &level, std::uint32_t index, Place place) {
    const Relation &relation = level.relations[index];
    const Table &table = *relation.table;
    const std::string key = quote_identifier(table.columns[table.key_column].name);
    const std::string name = quote_identifier(relation.name);
    const auto tables =
        std::count_if(level.relations.begin(), level.relations.end(),
                      [](const Relation &other) { return other.kind == Relation::Kind::table; });

    std::string where;
    switch (place.kind) {
    case Place::Kind::top: break;
    case Place::Kind::from: where = "in a sub-select in FROM, "; break;
    case Place::Kind::cte: where = "in WITH query \"" + std::string(place.name) + "\", "; break;
    case Place::Kind::arm: where = "in one arm of a set operation, "; break;
    case Place::Kind::expression: where = "in a sub-select, "; break;
    }
    const Relation *partner = nullptr;
    for (std::uint32_t i = 0; i < level.relations.size(); ++i) {
        const Relation &other = level.relations[i];
        if (i != index && other.kind == Relation::Kind::table &&
            level.pins.pin_of(i, other.table->key_column) != nullptr)
            partner = &other;
    }
    Code code = place.kind == Place::Kind::top ? Code::R10 : Code::R21;
    std::string message =
        where + "no condition names the shard key " + key + " of table " + table.sql_name;
    std::string hint = "Add " + name + "." + key + " = <value> to the WHERE clause, joined by AND.";
    if (partner != nullptr && partner->table->keyspace == table.keyspace) {
        if (code == Code::R10) code = Code::R20;
        message = where + "table " + table.sql_name + " is not joined by its shard key " + key;
        hint = "Add " + name + "." + key + " = " + quote_identifier(partner->name) + "." +
               quote_identifier(partner->table->columns[partner->table->key_column].name) +
               " to the join's condition, or " + name + "." + key +
               " = <value> to the WHERE clause, joined by AND.";
    } else if (tables > 1 && partner != nullptr && code == Code::R10) {
        code = Code::R20;
    }
    const std::string detail = near_miss(level, index);
    if (detail.ends_with("under OR."))
        hint = "Write " + name + "." + key + " IN (<value>, ...), joined to the rest by AND.";
    return refuse(code, relation.location, std::move(message), std::move(hint), detail);
}

}  // namespace interlock::sql
