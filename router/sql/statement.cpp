#include "sql/statement.h"

namespace interlock::sql {

namespace {

// The type that is added to, or taken from, a value of a built-in type. 0: no such operator is
// known here, the server decides.
std::uint32_t operand_type(std::uint32_t column_type) {
    switch (column_type) {
    case oid::int2:
    case oid::int4:
    case oid::int8:
    case oid::float4:
    case oid::float8:
    case oid::numeric: return column_type;
    case oid::date: return oid::int4;
    case oid::time:
    case oid::timetz:
    case oid::timestamp:
    case oid::timestamptz:
    case oid::interval: return oid::interval;
    default: return 0;
    }
}

}  // namespace

std::uint32_t Statement::parameter_type(std::size_t parameter) const {
    const Placeholder &placeholder = parameters[parameter];
    const std::uint32_t type = table->columns[placeholder.column].type_oid;
    if (placeholder.operand) return operand_type(type);
    return type < oid::first_user ? type : 0;
}

bool Statement::typed_as_column(std::size_t parameter) const {
    return parameter_type(parameter) == table->columns[parameters[parameter].column].type_oid;
}

}  // namespace interlock::sql
