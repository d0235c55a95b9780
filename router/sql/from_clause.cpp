// FROM: relations, joins, what of them is visible where.
#include "sql/analyser.h"
#include "sql/builtins.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// PostgreSQL itself slows down long before.
constexpr std::uint32_t max_relations = 1000;

std::string_view alias_of(const PgQuery__Alias *alias) {
    return alias == nullptr ? std::string_view() : std::string_view(alias->aliasname);
}

void rename_outputs(Outputs &outputs, const PgQuery__Alias *alias) {
    if (alias != nullptr) rename(outputs, alias->colnames, alias->n_colnames);
}

/// The name a function in FROM has without an alias.
std::string_view function_alias(const PgQuery__RangeFunction &function) {
    if (function.alias != nullptr) return function.alias->aliasname;
    if (function.n_functions == 0 || function.functions[0]->node_case != PG_QUERY__NODE__NODE_LIST)
        return {};
    const PgQuery__List &pair = *function.functions[0]->list;
    if (pair.n_items == 0 || pair.items[0]->node_case != PG_QUERY__NODE__NODE_FUNC_CALL) return {};
    const PgQuery__FuncCall &call = *pair.items[0]->func_call;
    return string_of(call.funcname[call.n_funcname - 1]);
}

std::string full_name(const PgQuery__RangeVar &range) {
    const std::string schema = range.schemaname;
    return schema.empty() ? std::string(range.relname) : schema + "." + range.relname;
}

}  // namespace

const Scope *Analyser::keep_scope(Level &level, const Scope *parent, const CteScope *ctes,
                                  const std::vector<Item> &items) {
    level.scopes.push_back({parent, &level, ctes, items});
    return &level.scopes.back();
}

void Analyser::use_table(std::uint32_t index) {
    if (std::find(facts.tables.begin(), facts.tables.end(), index) == facts.tables.end())
        facts.tables.push_back(index);
}

// The relation a name means under the search path: a sharded table, or a relation of the system
// catalogs (`catalog`). Null without `catalog`: refused.
const Table *Analyser::find_table(const PgQuery__RangeVar &range, bool &catalog) {
    catalog = false;
    const std::string_view schema = range.schemaname;
    const std::string_view name = range.relname;
    const auto unknown = [&](std::string hint) {
        refuse(Code::R26, range.location, "table " + full_name(range) + " is not known",
               std::move(hint));
        return nullptr;
    };
    if (range.catalogname[0] != '\0')
        return unknown("Leave the database's name out of the table's name.");
    bool ambiguous = false;
    if (!schema.empty()) {
        if (schema == "pg_catalog" || schema == "information_schema") {
            catalog = true;
            return nullptr;
        }
        if (schema == "interlock")
            return unknown("Each shard has its own views in the schema interlock; ask the shard, "
                           "or the catalog, directly.");
        const Table *table = names_.routes.find_table(schema, name, ambiguous);
        if (table == nullptr)
            return unknown("Only tables that are declared in the catalog and applied "
                           "(interlock apply) can be used here.");
        return table;
    }
    const bool explicit_catalog = std::find(names_.search_path.begin(), names_.search_path.end(),
                                            "pg_catalog") != names_.search_path.end();
    if (!explicit_catalog && catalog_relation(name)) {
        catalog = true;
        return nullptr;
    }
    for (std::size_t i = 0; i < names_.search_path.size(); ++i) {
        const std::string &candidate = names_.search_path[i];
        if ((candidate == "pg_catalog" && catalog_relation(name)) ||
            (candidate == "information_schema" && information_schema_relation(name))) {
            if (i > 0)
                return unknown("Write " + candidate + "." + std::string(name) +
                               ": other schemas stand before it in search_path.");
            catalog = true;
            return nullptr;
        }
        const Table *table = names_.routes.find_table(candidate, name, ambiguous);
        if (table != nullptr && !candidate.empty()) {
            facts.relation_names.emplace_back(name);
            return table;
        }
    }
    const bool unique = names_.routes.find_table({}, name, ambiguous) != nullptr;
    const bool elsewhere = unique || ambiguous;
    return unknown(elsewhere ? "It is declared in a schema that is not in search_path."
                             : "Only tables that are declared in the catalog and applied "
                               "(interlock apply) can be used here.");
}

bool Analyser::range_var(const PgQuery__RangeVar &range, Level &level, const CteScope *ctes,
                         std::vector<Item> &items) {
    if (++relations_ > max_relations) {
        refuse(Code::R01, range.location, "the statement names more than 1000 tables");
        refusal.sqlstate = "54000";
        return false;
    }
    const std::string_view alias = alias_of(range.alias);
    Relation relation;
    relation.location = range.location;
    relation.name = alias.empty() ? std::string_view(range.relname) : alias;
    Item item;
    item.name = relation.name;
    item.relation = static_cast<std::uint32_t>(level.relations.size());

    if (range.schemaname[0] == '\0' && range.catalogname[0] == '\0') {
        for (const CteScope *scope = ctes; scope != nullptr; scope = scope->parent) {
            for (auto cte = scope->ctes.rbegin(); cte != scope->ctes.rend(); ++cte) {
                if (cte->name != range.relname) continue;
                if (cte->outputs == nullptr)
                    return refuse(Code::R21, range.location,
                                  "WITH query \"" + std::string(cte->name) +
                                      "\" is used before it is defined",
                                  "Put it before the queries that use it.");
                relation.kind = Relation::Kind::rows;
                relation.outputs = *cte->outputs;
                rename_outputs(relation.outputs, range.alias);
                level.relations.push_back(std::move(relation));
                items.push_back(std::move(item));
                return true;
            }
        }
    }
    bool catalog = false;
    const Table *table = find_table(range, catalog);
    if (table == nullptr && !catalog) return false;
    if (catalog) {
        relation.kind = Relation::Kind::catalog;
        relation.outputs.open = true;
        rename_outputs(relation.outputs, range.alias);
        if (alias.empty()) item.schema = "pg_catalog";
        if (alias.empty() && range.schemaname[0] != '\0') item.schema = range.schemaname;
    } else {
        relation.kind = Relation::Kind::table;
        relation.table = table;
        relation.table_index = static_cast<std::uint32_t>(table - names_.routes.tables.data());
        if (range.alias != nullptr)
            for (std::size_t i = 0; i < range.alias->n_colnames; ++i)
                relation.renamed.push_back(string_of(range.alias->colnames[i]));
        if (alias.empty()) item.schema = table->schema;
        use_table(relation.table_index);
    }
    level.relations.push_back(std::move(relation));
    items.push_back(std::move(item));
    return true;
}

// The table a statement changes. A WITH query's name does not hide it.
bool Analyser::target_table(const PgQuery__RangeVar &range, Level &level,
                            std::vector<Item> &items) {
    bool catalog = false;
    const Table *table = find_table(range, catalog);
    if (catalog)
        return refuse(Code::R24, range.location,
                      "the system catalogs can only be read here: " + full_name(range));
    if (table == nullptr) return false;
    facts.writes = true;
    return range_var(range, level, nullptr, items);
}

bool Analyser::from_clause(Node **list, std::size_t count, Level &level, const Scope *parent,
                           const CteScope *ctes, std::vector<Item> &items) {
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<Item> own;
        if (!from_item(list[i], level, parent, ctes, items, own)) return false;
        items.insert(items.end(), own.begin(), own.end());
    }
    return true;
}

bool Analyser::from_item(const Node *node, Level &level, const Scope *parent, const CteScope *ctes,
                         const std::vector<Item> &before, std::vector<Item> &items) {
    if (!step()) return false;
    const auto relation_index = static_cast<std::uint32_t>(level.relations.size());
    Item item;
    item.relation = relation_index;
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_RANGE_VAR: return range_var(*node->range_var, level, ctes, items);
    case PG_QUERY__NODE__NODE_JOIN_EXPR:
        return join(*node->join_expr, level, parent, ctes, before, items);
    case PG_QUERY__NODE__NODE_RANGE_TABLE_SAMPLE: {
        const PgQuery__RangeTableSample &sample = *node->range_table_sample;
        const std::string_view method = string_of(sample.method[sample.n_method - 1]);
        if (method != "system" && method != "bernoulli")
            return refuse(Code::R26, sample.location,
                          "sampling method " + std::string(method) + " is not built in");
        if (sample.n_method == 1) facts.function_names.emplace_back(method);
        const Scope *scope = keep_scope(level, parent, ctes, before);
        return walk_list(sample.args, sample.n_args, *scope) && walk(sample.repeatable, *scope) &&
               from_item(sample.relation, level, parent, ctes, before, items);
    }
    case PG_QUERY__NODE__NODE_RANGE_SUBSELECT: {
        const PgQuery__RangeSubselect &subselect = *node->range_subselect;
        Relation relation;
        relation.name = item.name = alias_of(subselect.alias);
        if (subselect.lateral) {
            relation.outputs.open = true;
            level.laterals.push_back(
                {node, relation_index, keep_scope(level, parent, ctes, before)});
        } else if (!query(subselect.subquery, parent, ctes, {Place::Kind::from},
                          &relation.outputs)) {
            return false;
        }
        rename_outputs(relation.outputs, subselect.alias);
        level.relations.push_back(std::move(relation));
        items.push_back(std::move(item));
        return true;
    }
    case PG_QUERY__NODE__NODE_RANGE_FUNCTION: {
        const PgQuery__RangeFunction &function = *node->range_function;
        Relation relation;
        relation.kind = Relation::Kind::function;
        if (!unnest(function, relation.outputs)) relation.outputs.open = true;
        relation.name = item.name = function_alias(function);
        rename_outputs(relation.outputs, function.alias);
        level.laterals.push_back({node, relation_index, keep_scope(level, parent, ctes, before)});
        level.relations.push_back(std::move(relation));
        items.push_back(std::move(item));
        return true;
    }
    case PG_QUERY__NODE__NODE_RANGE_TABLE_FUNC: {
        const PgQuery__RangeTableFunc &function = *node->range_table_func;
        Relation relation;
        relation.kind = Relation::Kind::function;
        relation.outputs.open = true;
        relation.name = item.name =
            function.alias == nullptr ? std::string_view("xmltable") : alias_of(function.alias);
        level.laterals.push_back({node, relation_index, keep_scope(level, parent, ctes, before)});
        level.relations.push_back(std::move(relation));
        items.push_back(std::move(item));
        return true;
    }
    default:
        return refuse(Code::R01, static_cast<int>(offset_),
                      "FROM contains a construct that the router does not know");
    }
}

// Sub-selects and functions that may refer to what stands before them in FROM: judged when the
// pins of the others are known, which are found again each time one has given its own.
bool Analyser::laterals(Level &level) {
    for (const Lateral &lateral : level.laterals) {
        if (lateral.item->node_case == PG_QUERY__NODE__NODE_RANGE_SUBSELECT) {
            const PgQuery__RangeSubselect &subselect = *lateral.item->range_subselect;
            Outputs outputs;
            if (!query(subselect.subquery, lateral.scope, lateral.scope->ctes, {Place::Kind::from},
                       &outputs))
                return false;
            rename_outputs(outputs, subselect.alias);
            level.relations[lateral.relation].outputs = std::move(outputs);
            collect(level);
        } else if (lateral.item->node_case == PG_QUERY__NODE__NODE_RANGE_FUNCTION) {
            const PgQuery__RangeFunction &function = *lateral.item->range_function;
            if (!walk_list(function.functions, function.n_functions, *lateral.scope)) return false;
        } else {
            const PgQuery__RangeTableFunc &function = *lateral.item->range_table_func;
            if (!walk(function.docexpr, *lateral.scope) || !walk(function.rowexpr, *lateral.scope))
                return false;
            for (std::size_t i = 0; i < function.n_namespaces; ++i)
                if (!walk(function.namespaces[i], *lateral.scope)) return false;
            for (std::size_t i = 0; i < function.n_columns; ++i)
                if (!walk_fields(function.columns[i]->range_table_func_col->base, *lateral.scope))
                    return false;
        }
    }
    return true;
}

bool Analyser::join(const PgQuery__JoinExpr &join, Level &level, const Scope *parent,
                    const CteScope *ctes, const std::vector<Item> &before,
                    std::vector<Item> &items) {
    const auto first = static_cast<std::uint32_t>(level.relations.size());
    std::vector<Item> left;
    if (!from_item(join.larg, level, parent, ctes, before, left)) return false;
    const auto middle = static_cast<std::uint32_t>(level.relations.size());
    std::vector<Item> seen = before;
    seen.insert(seen.end(), left.begin(), left.end());
    std::vector<Item> right;
    if (!from_item(join.rarg, level, parent, ctes, seen, right)) return false;
    const auto end = static_cast<std::uint32_t>(level.relations.size());

    Range allowed{first, end};
    bool outer = true;
    switch (join.jointype) {
    case PG_QUERY__JOIN_TYPE__JOIN_INNER: outer = false; break;
    case PG_QUERY__JOIN_TYPE__JOIN_LEFT: allowed = {middle, end}; break;
    case PG_QUERY__JOIN_TYPE__JOIN_RIGHT: allowed = {first, middle}; break;
    default: allowed = {first, first};  // FULL
    }
    std::vector<Item> both = left;
    both.insert(both.end(), right.begin(), right.end());
    if (join.quals != nullptr)
        level.qualifiers.push_back(
            {join.quals, keep_scope(level, parent, ctes, both), allowed, outer});

    if (!join.is_natural && join.n_using_clause == 0 && join.alias == nullptr) {
        items.insert(items.end(), both.begin(), both.end());
        return true;
    }
    JoinColumns of_left;
    JoinColumns of_right;
    expand_items(left, level, of_left);
    expand_items(right, level, of_right);
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < join.n_using_clause; ++i)
        names.push_back(string_of(join.using_clause[i]));
    if (join.is_natural) {
        if (of_left.open || of_right.open)
            return refuse(Code::R20, static_cast<int>(offset_),
                          "NATURAL JOIN with columns that are not known",
                          "Use JOIN ... ON or JOIN ... USING.");
        for (const JoinColumn &column : of_left.columns)
            for (const JoinColumn &other : of_right.columns)
                if (column.name == other.name) names.push_back(column.name);
    }
    if (!names.empty()) note_operator("=");

    const auto take = [](JoinColumns &columns, std::string_view name) {
        Target target;
        for (auto column = columns.columns.begin(); column != columns.columns.end(); ++column) {
            if (column->name != name) continue;
            target = column->target;
            columns.columns.erase(column);
            break;
        }
        return target;
    };
    auto joined = std::make_shared<JoinColumns>();
    for (const std::string_view name : names) {
        const Target a = take(of_left, name);
        const Target b = take(of_right, name);
        if (a && b) level.links.push_back({a, b, allowed});
        Target merged;
        if (join.jointype == PG_QUERY__JOIN_TYPE__JOIN_RIGHT)
            merged = b;
        else if (join.jointype != PG_QUERY__JOIN_TYPE__JOIN_FULL)
            merged = a;
        joined->columns.push_back({name, merged});
    }
    if (join.join_using_alias != nullptr) {
        auto merged = std::make_shared<JoinColumns>(*joined);
        Item item;
        item.name = alias_of(join.join_using_alias);
        item.join = std::move(merged);
        item.columns_visible = false;
        items.push_back(std::move(item));
    }
    joined->columns.insert(joined->columns.end(), of_left.columns.begin(), of_left.columns.end());
    joined->columns.insert(joined->columns.end(), of_right.columns.begin(), of_right.columns.end());
    joined->open = of_left.open || of_right.open;

    Item item;
    if (join.alias != nullptr) {
        item.name = alias_of(join.alias);
        for (std::size_t i = 0; i < join.alias->n_colnames && i < joined->columns.size(); ++i)
            joined->columns[i].name = string_of(join.alias->colnames[i]);
        // With columns of unknown number before them the new names may belong to others.
        if (joined->open && join.alias->n_colnames > 0)
            for (JoinColumn &column : joined->columns)
                column.target = {};
    } else {
        item.name_visible = false;
        for (Item &hidden : both) {
            hidden.columns_visible = false;
            items.push_back(std::move(hidden));
        }
    }
    item.join = std::move(joined);
    items.push_back(std::move(item));
    return true;
}

}  // namespace interlock::sql
