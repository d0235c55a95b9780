// SELECT ... FROM interlock.keyset_page(...).
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// The columns of keyset_page, in order.
enum PageColumn : std::uint32_t { item, cursor, key, complete, missing_shards, column_count };
constexpr std::string_view column_names[column_count] = {"item", "cursor", "sort_key", "complete",
                                                         "missing_shards"};
constexpr std::string_view parameters[] = {"keyset", "row_type", "scope",
                                           "after",  "before",   "page_size"};

const PgQuery__FuncCall *call_of(const PgQuery__RangeFunction &function) {
    if (function.n_functions != 1 || function.functions[0]->node_case != PG_QUERY__NODE__NODE_LIST)
        return nullptr;
    const PgQuery__List &pair = *function.functions[0]->list;
    if (pair.n_items == 0 || pair.items[0]->node_case != PG_QUERY__NODE__NODE_FUNC_CALL)
        return nullptr;
    return pair.items[0]->func_call;
}

}  // namespace

const PgQuery__RangeFunction *ScatterAnalysis::page_of(const PgQuery__SelectStmt &statement) {
    for (std::size_t i = 0; i < statement.n_from_clause; ++i) {
        const Node *from = statement.from_clause[i];
        if (from->node_case != PG_QUERY__NODE__NODE_RANGE_FUNCTION) continue;
        const PgQuery__FuncCall *call = call_of(*from->range_function);
        if (call != nullptr && call->n_funcname == 2 &&
            string_of(call->funcname[0]) == "interlock" &&
            string_of(call->funcname[1]) == "keyset_page")
            return from->range_function;
    }
    return nullptr;
}

bool ScatterAnalysis::page() {
    const PgQuery__SelectStmt &is = statement_;
    const PgQuery__RangeFunction &function = *page_of(is);
    const PgQuery__FuncCall &call = *call_of(function);
    scatter_.kind = ScatterKind::keyset_page;
    const char *alone = "A page is read by itself: SELECT ... FROM interlock.keyset_page(...).";
    if (is.n_from_clause != 1 || is.op != PG_QUERY__SET_OPERATION__SETOP_NONE ||
        is.with_clause != nullptr || is.into_clause != nullptr)
        return refuse(call.location, "a keyset page is part of a larger statement", alone);
    if (is.where_clause != nullptr)
        return refuse(location_within(is.where_clause),
                      "WHERE would take rows out of a page behind the cursor's back",
                      "Put the condition into the keyset's scope.");
    if (is.n_group_clause > 0 || is.having_clause != nullptr || is.n_distinct_clause > 0 ||
        is.n_window_clause > 0)
        return refuse(call.location, "the rows of a page cannot be grouped", alone);
    if (is.n_sort_clause > 0)
        return refuse(location_within(is.sort_clause[0]), "a page comes in the order of its keyset",
                      "Leave ORDER BY out.");
    if (is.limit_count != nullptr || is.limit_offset != nullptr)
        return refuse(call.location, "LIMIT or OFFSET on a page", "Use page_size, and cursors.");
    if (is.n_locking_clause > 0)
        return refuse(call.location, "the rows of a page cannot be locked");
    if (function.ordinality || function.is_rowsfrom || function.n_coldeflist > 0 ||
        function.lateral)
        return refuse(call.location, "interlock.keyset_page stands alone in FROM", alone);

    Relation relation;
    relation.kind = Relation::Kind::rows;
    relation.name = function.alias == nullptr ? std::string_view("keyset_page")
                                              : std::string_view(function.alias->aliasname);
    relation.location = call.location;
    for (const std::string_view name : column_names)
        relation.outputs.columns.push_back({name});
    if (function.alias != nullptr) {
        if (function.alias->n_colnames > column_count)
            return refuse(call.location, "keyset_page has five columns");
        rename(relation.outputs, function.alias->colnames, function.alias->n_colnames);
    }
    Item page;
    page.name = relation.name;
    scope_.items.push_back(std::move(page));
    level_.relations.push_back(std::move(relation));
    scope_.level = &level_;

    text_.emplace(analyser_.text_, analyser_.offset_, analyser_.length_,
                  static_cast<std::size_t>(call.location));
    if (!text_->sound() || text_->targets().size() != is.n_target_list) return unreadable();
    if (!page_arguments(call) || !page_columns()) return false;
    note_call(function, call);
    add_hidden("pg_catalog.encode(" + column_key(key, -1).text + ", 'hex')");
    return finish();
}

// Positional or named; what the router must know is a constant, the others are any value that is
// the same on every shard.
bool ScatterAnalysis::page_arguments(const PgQuery__FuncCall &call) {
    if (call.func_variadic || call.agg_star || call.agg_distinct || call.n_agg_order > 0 ||
        call.agg_filter != nullptr || call.over != nullptr)
        return refuse(call.location, "interlock.keyset_page is called like an aggregate");
    const Node *given[std::size(parameters)] = {};
    for (std::size_t i = 0; i < call.n_args; ++i) {
        const Node *value = call.args[i];
        std::size_t at = i;
        if (value->node_case == PG_QUERY__NODE__NODE_NAMED_ARG_EXPR) {
            const PgQuery__NamedArgExpr &named = *value->named_arg_expr;
            at = static_cast<std::size_t>(
                std::find(std::begin(parameters), std::end(parameters), named.name) -
                std::begin(parameters));
            value = named.arg;
        }
        if (at == 5) page_size_at_ = i;
        if (at >= std::size(parameters) || given[at] != nullptr)
            return refuse(location_within(value) >= 0 ? location_within(value) : call.location,
                          "interlock.keyset_page has no such parameter, or it is given twice",
                          "They are keyset, row_type, scope, after, before and page_size.");
        given[at] = value;
        page_arguments_.push_back(at);
    }
    if (given[0] == nullptr || given[1] == nullptr)
        return refuse(call.location, "interlock.keyset_page needs a keyset and a row type",
                      "Write keyset_page('name', NULL::table, ...).");
    if (!page_table(given[1])) return false;
    const auto known = [&](std::size_t at, ValueSource &out) {
        if (given[at] == nullptr) return true;
        const auto found = value_of(given[at]);
        if (!found)
            return refuse(location_within(given[at]),
                          std::string(parameters[at]) + " is no literal, parameter or NULL",
                          "The router must know it before it asks the shards.");
        out = *found;
        return true;
    };
    if (!known(0, scatter_.keyset) || !known(4, scatter_.before) || !known(5, scatter_.page_size))
        return false;
    for (const Node *value : given)
        if (value != given[1] && !check(value, Use::value)) return false;
    return default_size(call);
}

// The page size a shard would take by itself is written into the text: the router must cut where
// they stop.
bool ScatterAnalysis::default_size(const PgQuery__FuncCall &call) {
    DefaultPage &page = scatter_.default_page;
    if (scatter_.page_size.from == ValueSource::From::literal) return true;
    const auto written = text_->call_at(static_cast<std::size_t>(call.location));
    if (!written || written->arguments.size() != call.n_args) return unreadable();
    page.needed = true;
    if (!page_size_at_) {
        page.offset = written->close;
        page.before = ", page_size => ";
        return true;
    }
    std::optional<Piece> value = written->arguments[*page_size_at_];
    if (call.args[*page_size_at_]->node_case == PG_QUERY__NODE__NODE_NAMED_ARG_EXPR)
        value = text_->named_value(*value);
    if (!value) return unreadable();
    page.offset = value->offset;
    page.length = value->length;
    if (scatter_.page_size.from == ValueSource::From::null) return true;
    page.before = "COALESCE(" + std::string(text_->text(*value)) + ", ";
    page.after = ")";
    return true;
}

// NULL::table, of a sharded one.
bool ScatterAnalysis::page_table(const Node *argument) {
    const auto wrong = [&] {
        return refuse(location_within(argument), "the row type of a page is not NULL::table",
                      "Write NULL and a cast to the table: NULL::public.orders.");
    };
    if (argument->node_case != PG_QUERY__NODE__NODE_TYPE_CAST) return wrong();
    const PgQuery__TypeCast &cast = *argument->type_cast;
    const PgQuery__TypeName &type = *cast.type_name;
    const bool null =
        cast.arg->node_case == PG_QUERY__NODE__NODE_A_CONST && cast.arg->a_const->isnull;
    if (!null || type.n_names < 1 || type.n_names > 2 || type.n_typmods > 0 ||
        type.n_array_bounds > 0 || type.setof || type.pct_type)
        return wrong();
    PgQuery__RangeVar range = PG_QUERY__RANGE_VAR__INIT;
    const std::string schema(type.n_names == 2 ? string_of(type.names[0]) : std::string_view());
    const std::string name(string_of(type.names[type.n_names - 1]));
    std::string none;
    range.catalogname = none.data();
    range.schemaname = const_cast<char *>(schema.c_str());
    range.relname = const_cast<char *>(name.c_str());
    range.location = type.location;
    bool catalog = false;
    const Table *found = analyser_.find_table(range, catalog);
    if (catalog) return wrong();
    if (found == nullptr) return false;
    scatter_.table = static_cast<std::uint32_t>(found - analyser_.names_.routes.tables.data());
    analyser_.use_table(scatter_.table);
    level_.relations[0].table = found;
    return true;
}

/// What "*" or "(item).*" a target is: the columns it stands for, 0 for an item's.
std::optional<std::uint32_t> ScatterAnalysis::page_star(const Node *node) const {
    if (is_star(node)) return std::uint32_t{column_count};
    if (node->node_case != PG_QUERY__NODE__NODE_A_INDIRECTION) return std::nullopt;
    const PgQuery__AIndirection &indirection = *node->a_indirection;
    if (indirection.n_indirection != 1 ||
        indirection.indirection[0]->node_case != PG_QUERY__NODE__NODE_A_STAR ||
        column_of(indirection.arg) != std::uint32_t{item})
        return std::nullopt;
    return std::uint32_t{0};
}

bool ScatterAnalysis::page_columns() {
    PageColumns &columns = scatter_.page;
    std::uint16_t position = 0;
    for (std::size_t i = 0; i < statement_.n_target_list; ++i) {
        const Node *value = statement_.target_list[i]->res_target->val;
        if (!check(value, Use::page)) return false;
        if (value->node_case == PG_QUERY__NODE__NODE_A_INDIRECTION) {
            const PgQuery__AIndirection &indirection = *value->a_indirection;
            const Node *last = indirection.indirection[indirection.n_indirection - 1];
            if (last->node_case == PG_QUERY__NODE__NODE_A_STAR && !page_star(value))
                return refuse(location_within(value), "\"*\" of what is not the page's item");
        }
        page_target(value, position);
    }
    columns.known = position;
    return true;
}

void ScatterAnalysis::page_target(const Node *value, std::uint16_t &position) {
    PageColumns &columns = scatter_.page;
    const auto note = [&](std::uint32_t column) {
        const std::uint16_t at = position;
        if (column == cursor) columns.cursor.push_back(at);
        if (column == complete) columns.complete.push_back(at);
        if (column == missing_shards) columns.missing_shards.push_back(at);
        ++position;
    };
    if (const auto star = page_star(value)) {
        if (*star == 0) {
            // Two of them: how wide each is cannot be told from the sum.
            if (columns.open != PageColumns::none) columns.in_expressions = true;
            if (columns.open == PageColumns::none) columns.open = position;
            return;
        }
        for (std::uint32_t column = 0; column < column_count; ++column)
            note(column);
        return;
    }
    if (const auto column = column_of(value)) {
        note(*column);
        return;
    }
    ++position;
    visit(value, [&](const Node &each) {
        if (each.node_case != PG_QUERY__NODE__NODE_COLUMN_REF) return true;
        const auto column = column_of(&each);
        const bool harmless = column && (*column == item || *column == key);
        columns.in_expressions = columns.in_expressions || !harmless;
        return true;
    });
}

}  // namespace interlock::sql
