#include "sql/statement.h"

namespace interlock::sql {

bool Statement::typed_as_column(std::size_t parameter) const {
    const Placeholder &placeholder = parameters[parameter];
    if (!placeholder.operand) return true;
    switch (table->columns[placeholder.column].type_oid) {
    case oid::int2:
    case oid::int4:
    case oid::int8:
    case oid::float4:
    case oid::float8:
    case oid::numeric: return true;
    default: return false;
    }
}

}  // namespace interlock::sql
