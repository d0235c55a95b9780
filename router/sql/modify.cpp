// INSERT, UPDATE, DELETE, MERGE.
#include "sql/analyser.h"

namespace interlock::sql {

namespace {

std::string key_of(const Table &table) {
    return quote_identifier(table.columns[table.key_column].name);
}

/// The column that the value at this position of a row goes to, where it is a whole column.
std::optional<std::uint16_t> inserted_column(const PgQuery__InsertStmt &statement,
                                             const Table &table, std::size_t position) {
    if (statement.n_cols == 0)
        return position < table.columns.size()
                   ? std::optional<std::uint16_t>(static_cast<std::uint16_t>(position))
                   : std::nullopt;
    if (position >= statement.n_cols) return std::nullopt;
    const PgQuery__ResTarget &column = *statement.cols[position]->res_target;
    return column.n_indirection == 0 ? table.find_column(column.name) : std::nullopt;
}

}  // namespace

// SET items. The shard key stays what it is. With `keys`, SET key = constant is left to the plan,
// which sees whether that is the value the key has (ORMs write all columns).
bool Analyser::assignments(Node **list, std::size_t count, const Table &table, const Scope &scope,
                           std::vector<KeySource> *keys) {
    for (std::size_t i = 0; i < count; ++i) {
        const PgQuery__ResTarget &item = *list[i]->res_target;
        if (table.columns[table.key_column].name == item.name) {
            const auto value =
                keys != nullptr && item.n_indirection == 0 ? constant(item.val) : std::nullopt;
            const auto key =
                value ? source(*value, table.columns[table.key_column].type_oid) : std::nullopt;
            if (key) {
                keys->push_back(key->key);
                if (!walk(item.val, scope)) return false;
                continue;
            }
            return refuse(Code::R29, item.location,
                          "the shard key " + key_of(table) + " of table " + table.sql_name +
                              " cannot be updated",
                          "Leave it out of SET; to move a row, delete it and insert it anew in "
                          "two transactions.");
        }
        if (item.n_indirection == 0)
            if (const auto column = table.find_column(item.name))
                note_parameter(item.val, table.columns[*column].type_oid);
        if (!walk_fields(item.base, scope)) return false;
    }
    return true;
}

// Which value of a row is the shard key's, by the column list or the declared order.
bool Analyser::insert_columns(Node **list, std::size_t count, const Table &table, int location,
                              std::size_t &position) {
    if (count == 0) {
        position = table.key_column;
        return true;
    }
    for (std::size_t i = 0; i < count; ++i) {
        const PgQuery__ResTarget &column = *list[i]->res_target;
        if (table.columns[table.key_column].name != column.name || column.n_indirection > 0)
            continue;
        position = i;
        return true;
    }
    return refuse(Code::R10, location,
                  "INSERT into " + table.sql_name + " does not name its shard key " + key_of(table),
                  "Add " + key_of(table) + " to the column list.");
}

/// The pin of a value that is stored in the shard key, or null.
Pin Analyser::value_pin(const Node *node, const Table &table, const Scope &scope) {
    const std::uint32_t key_type = table.columns[table.key_column].type_oid;
    if (const auto value = constant(node)) {
        const auto pin = source(*value, key_type);
        return pin ? make_pin({*pin}, key_type, 1) : nullptr;
    }
    std::uint32_t type = 0;
    const Target target = column(node, scope, type);
    if (!target) return nullptr;
    const Pin pin = known_pin(target);
    return pin != nullptr && pin->family == family_of(table.key_type) ? pin : nullptr;
}

bool Analyser::insert_rows(const PgQuery__InsertStmt &statement, const Table &table,
                           std::size_t position, const Scope &scope, Place place, Pin &pin) {
    const PgQuery__SelectStmt &rows = *statement.select_stmt->select_stmt;
    const std::uint32_t key_type = table.columns[table.key_column].type_oid;
    const int location = statement.relation->location;
    const auto no_constant = [&](int where, const std::string &what) {
        return refuse(Code::R10, where,
                      what + " for the shard key " + key_of(table) + " of table " + table.sql_name,
                      "Give it as a literal or a parameter.");
    };
    const bool plain_values = rows.n_values_lists > 0 && rows.with_clause == nullptr &&
                              rows.n_sort_clause == 0 && rows.limit_count == nullptr &&
                              rows.limit_offset == nullptr && rows.n_locking_clause == 0;
    if (plain_values) {
        std::vector<PinSource> sources;
        sources.reserve(rows.n_values_lists);
        for (std::size_t i = 0; i < rows.n_values_lists; ++i) {
            const PgQuery__List &row = *rows.values_lists[i]->list;
            if (position >= row.n_items) return no_constant(location, "no value");
            const Node *item = row.items[position];
            if (item->node_case == PG_QUERY__NODE__NODE_SET_TO_DEFAULT)
                return no_constant(item->set_to_default->location, "DEFAULT");
            const auto value = constant(item);
            const auto key = value ? source(*value, key_type) : std::nullopt;
            if (key) {
                sources.push_back(*key);
            } else if (const Pin known = value_pin(item, table, scope)) {
                sources.insert(sources.end(), known->sources.begin(), known->sources.end());
            } else {
                if (!walk(item, scope)) return false;
                return no_constant(location, "no constant");
            }
            for (std::size_t k = 0; k < row.n_items; ++k)
                if (const auto column = inserted_column(statement, table, k))
                    note_parameter(row.items[k], table.columns[*column].type_oid);
            if (!walk_list(row.items, row.n_items, scope)) return false;
        }
        const auto weight = static_cast<std::uint32_t>(sources.size());
        pin = make_pin(std::move(sources), key_type, weight);
        return true;
    }
    Outputs outputs;
    if (!query(statement.select_stmt, scope.parent, scope.ctes, place, &outputs)) return false;
    if (!outputs.open && position < outputs.columns.size()) {
        const OutputColumn &key = outputs.columns[position];
        if (key.pin != nullptr && key.untyped) {
            // A constant without a type takes the column's.
            std::vector<PinSource> sources = key.pin->sources;
            for (PinSource &source : sources) {
                source.type = key_type;
                if (source.key.from == KeySource::From::parameter)
                    note_parameter_at(source.key.offset, key_type);
            }
            pin = make_pin(std::move(sources), key_type, key.pin->weight);
        } else if (key.pin != nullptr && key.pin->family == family_of(table.key_type)) {
            pin = key.pin;
        }
    }
    if (pin == nullptr)
        return refuse(Code::R10, location,
                      "the SELECT does not give a constant for the shard key " + key_of(table) +
                          " of table " + table.sql_name,
                      "Select the key column of a table whose key the SELECT's WHERE clause "
                      "names, or a literal or parameter.");
    return true;
}

bool Analyser::insert(const PgQuery__InsertStmt &statement, const Scope *parent,
                      const CteScope *ctes, Place place, Outputs *out) {
    CteScope own{ctes, {}};
    if (statement.with_clause != nullptr) {
        if (!with(*statement.with_clause, parent, own)) return false;
        ctes = &own;
    }
    Level level;
    Scope scope{parent, &level, ctes, {}};
    if (!target_table(*statement.relation, level, scope.items)) return false;
    const Table &table = *level.relations[0].table;
    if (statement.select_stmt == nullptr)
        return refuse(Code::R10, statement.relation->location,
                      "INSERT ... DEFAULT VALUES gives no value for the shard key " +
                          key_of(table) + " of table " + table.sql_name,
                      "Give it as a literal or a parameter.");
    std::size_t position = 0;
    if (!insert_columns(statement.cols, statement.n_cols, table, statement.relation->location,
                        position) ||
        !walk_list(statement.cols, statement.n_cols, scope))
        return false;
    Pin pin = nullptr;
    Level rows_level;
    const Scope rows{parent, &rows_level, ctes, {}};
    if (!insert_rows(statement, table, position, rows, place, pin)) return false;

    const std::uint32_t node =
        level.pins.node(0, table.key_column, table.columns[table.key_column].type_oid, nullptr);
    level.pins.bind(node, pin, {0, 1});
    level.pins.solve();
    return check_pinned(level, place) &&
           (statement.on_conflict_clause == nullptr ||
            on_conflict(*statement.on_conflict_clause, level, scope)) &&
           targets(statement.returning_list, statement.n_returning_list, scope, *out);
}

// What conflicts is a row of the same shard; with the same key, if the key is in the index, else it
// is one that the shard owns all the same.
bool Analyser::on_conflict(const PgQuery__OnConflictClause &clause, Level &level,
                           const Scope &scope) {
    if (clause.infer != nullptr && !walk_fields(clause.infer->base, scope)) return false;
    Scope both = scope;
    Relation excluded = level.relations[0];
    excluded.name = "excluded";
    excluded.kind = Relation::Kind::rows;
    excluded.outputs.columns.clear();
    for (std::size_t i = 0; i < level.relations[0].table->columns.size(); ++i) {
        OutputColumn column;
        column.name = level.relations[0].table->columns[i].name;
        column.type = level.relations[0].column_type(i);
        column.linkable = level.relations[0].linkable(i);
        if (level.relations[0].is_key(i))
            column.pin = level.pins.pin_of(0, static_cast<std::uint32_t>(i));
        excluded.outputs.columns.push_back(column);
    }
    Item item;
    item.name = "excluded";
    item.relation = 1;
    item.columns_visible = false;
    const Table &table = *level.relations[0].table;
    level.relations.push_back(std::move(excluded));
    both.items.push_back(std::move(item));
    return assignments(clause.target_list, clause.n_target_list, table, both, nullptr) &&
           walk(clause.where_clause, both);
}

// What UPDATE and DELETE begin with: WITH, the target, what is joined to it, WHERE; pins found.
template <typename Statement>
bool Analyser::open_modify(const Statement &statement, Node **from, std::size_t from_count,
                           CteScope &own, Scope &scope) {
    Level &level = *scope.level;
    if (statement.with_clause != nullptr) {
        if (!with(*statement.with_clause, scope.parent, own)) return false;
        scope.ctes = &own;
    }
    if (!target_table(*statement.relation, level, scope.items) ||
        !from_clause(from, from_count, level, scope.parent, scope.ctes, scope.items))
        return false;
    const Range all{0, static_cast<std::uint32_t>(level.relations.size())};
    if (statement.where_clause != nullptr)
        level.qualifiers.push_back({statement.where_clause, &scope, all, false});
    if (!pin_level(level)) return false;
    for (const Qualifier &qualifier : level.qualifiers)
        if (!walk(qualifier.expression, *qualifier.scope)) return false;
    return true;
}

bool Analyser::update(const PgQuery__UpdateStmt &statement, const Scope *parent,
                      const CteScope *ctes, Place place, Outputs *out) {
    CteScope own{ctes, {}};
    Level level;
    Scope scope{parent, &level, ctes, {}};
    if (!open_modify(statement, statement.from_clause, statement.n_from_clause, own, scope))
        return false;
    const Relation &target = level.relations[0];
    const std::uint32_t index = target.table_index;
    std::vector<KeySource> keys;
    if (!assignments(statement.target_list, statement.n_target_list, *target.table, scope, &keys) ||
        !check_pinned(level, place))
        return false;
    for (KeySource &key : keys) {
        key.table = index;
        key.assigned = true;
        facts.keys.push_back(key);
    }
    return targets(statement.returning_list, statement.n_returning_list, scope, *out);
}

bool Analyser::remove(const PgQuery__DeleteStmt &statement, const Scope *parent,
                      const CteScope *ctes, Place place, Outputs *out) {
    CteScope own{ctes, {}};
    Level level;
    Scope scope{parent, &level, ctes, {}};
    if (!open_modify(statement, statement.using_clause, statement.n_using_clause, own, scope))
        return false;
    return check_pinned(level, place) &&
           targets(statement.returning_list, statement.n_returning_list, scope, *out);
}

// The source is joined to the target by a left join: ON may pin the target, not the source.
bool Analyser::merge(const PgQuery__MergeStmt &statement, const Scope *parent, const CteScope *ctes,
                     Place place) {
    CteScope own{ctes, {}};
    if (statement.with_clause != nullptr) {
        if (!with(*statement.with_clause, parent, own)) return false;
        ctes = &own;
    }
    Level level;
    Scope both{parent, &level, ctes, {}};
    Scope source{parent, &level, ctes, {}};
    if (!target_table(*statement.relation, level, both.items) ||
        !from_item(statement.source_relation, level, parent, ctes, {}, source.items))
        return false;
    both.items.insert(both.items.end(), source.items.begin(), source.items.end());
    level.qualifiers.push_back({statement.join_condition, &both, {0, 1}, true});
    if (!pin_level(level)) return false;
    for (const Qualifier &qualifier : level.qualifiers)
        if (!walk(qualifier.expression, *qualifier.scope)) return false;
    const Table &table = *level.relations[0].table;
    const std::uint32_t index = level.relations[0].table_index;
    for (std::size_t i = 0; i < statement.n_merge_when_clauses; ++i) {
        const PgQuery__MergeWhenClause &clause =
            *statement.merge_when_clauses[i]->merge_when_clause;
        if (!merge_action(clause, table, source, both)) return false;
        if (clause.command_type != PG_QUERY__CMD_TYPE__CMD_INSERT) continue;
        std::size_t position = 0;
        if (!insert_columns(clause.target_list, clause.n_target_list, table,
                            statement.relation->location, position))
            return false;
        const Pin pin = position < clause.n_values
                            ? value_pin(clause.values[position], table, source)
                            : nullptr;
        if (pin == nullptr)
            return refuse(Code::R10, statement.relation->location,
                          "MERGE inserts no constant as the shard key " + key_of(table) +
                              " of table " + table.sql_name,
                          "Insert a literal, a parameter, or the source's column that the key is "
                          "compared with.");
        emit(pin, index);
    }
    return check_pinned(level, place);
}

bool Analyser::merge_action(const PgQuery__MergeWhenClause &clause, const Table &table,
                            const Scope &source, const Scope &both) {
    const Scope &scope = clause.matched ? both : source;
    if (!walk(clause.condition, scope) || !walk_list(clause.values, clause.n_values, scope))
        return false;
    return clause.command_type != PG_QUERY__CMD_TYPE__CMD_UPDATE ||
           assignments(clause.target_list, clause.n_target_list, table, scope, nullptr);
}

}  // namespace interlock::sql
