// unnest() in FROM of arrays that stand in the statement: rows from a parameter, as batches are
// sent. Each of its columns holds an element of its array, or NULL where that is shorter.
#include "sql/analyser.h"

#include <algorithm>
#include <iterator>

namespace interlock::sql {

namespace {

/// Types of pg_catalog whose arrays unnest to one column.
bool is_scalar(std::string_view name) {
    constexpr std::string_view names[] = {
        "bool", "bpchar", "bytea",     "date",        "float4", "float8",  "int2",
        "int4", "int8",   "interval",  "json",        "jsonb",  "numeric", "oid",
        "text", "time",   "timestamp", "timestamptz", "timetz", "uuid",    "varchar"};
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

/// The columns of unnest(array::type[], ...); false where the function is another one, or an
/// argument is not plainly an array of a built-in type.
bool Analyser::unnest(const PgQuery__RangeFunction &function, Outputs &out) {
    if (function.n_functions != 1 || function.n_coldeflist > 0 ||
        function.functions[0]->node_case != PG_QUERY__NODE__NODE_LIST)
        return false;
    const PgQuery__List &pair = *function.functions[0]->list;
    if (pair.n_items == 0 || pair.items[0]->node_case != PG_QUERY__NODE__NODE_FUNC_CALL)
        return false;
    const PgQuery__FuncCall &call = *pair.items[0]->func_call;
    const bool qualified = call.n_funcname == 2 && string_of(call.funcname[0]) == "pg_catalog";
    if (string_of(call.funcname[call.n_funcname - 1]) != "unnest" ||
        !(qualified || (call.n_funcname == 1 && catalog_first())) || call.func_variadic ||
        call.n_args == 0)
        return false;
    Outputs columns;
    for (std::size_t i = 0; i < call.n_args; ++i) {
        if (call.args[i]->node_case != PG_QUERY__NODE__NODE_TYPE_CAST) return false;
        const PgQuery__TypeCast &cast = *call.args[i]->type_cast;
        const PgQuery__TypeName &type = *cast.type_name;
        const std::string_view name = string_of(type.names[type.n_names - 1]);
        const bool known = type.n_names == 2 ? string_of(type.names[0]) == "pg_catalog"
                                             : type.n_names == 1 && catalog_first();
        if (!known || type.n_array_bounds == 0 || !is_scalar(name)) return false;
        OutputColumn column;
        column.name = "unnest";
        bool array = false;
        const std::uint32_t element = cast_type(type, array);
        if (element != 0) {
            column.type = element;
            column.linkable = true;
            column.pin = array_pin(call.args[i], element);
            // What an array that is no constant holds may have any collation.
            if (column.pin == nullptr && *key_type_of_oid(element) == KeyType::text)
                column.linkable = false;
        }
        columns.columns.push_back(column);
    }
    if (function.ordinality) {
        OutputColumn ordinality;
        ordinality.name = "ordinality";
        columns.columns.push_back(ordinality);
    }
    // A single column has the alias's name.
    if (call.n_args == 1 && function.alias != nullptr)
        columns.columns[0].name = function.alias->aliasname;
    out = std::move(columns);
    return true;
}

}  // namespace interlock::sql
