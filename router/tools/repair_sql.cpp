#include "tools/repair_sql.h"

namespace interlock {

namespace {

/// A list with a comma between its parts.
class List {
  public:
    List &operator<<(const std::string &part) {
        text_ += (text_.empty() ? "" : ", ") + part;
        return *this;
    }
    std::string text() const { return text_; }

  private:
    std::string text_;
};

// The row, and the key looked for, in all statements. No column has such a name: those that begin
// with "interlock_" are kept for the index's own.
const std::string row = "interlock_row";
const std::string key = "interlock_key";

}  // namespace

std::string sql_string(const std::string &text) {
    std::string quoted = text.find('\\') == std::string::npos ? "'" : "E'";
    for (const char c : text) {
        if (c == '\'' || c == '\\') quoted += c;
        quoted += c;
    }
    return quoted + "'";
}

RepairSql::RepairSql(const IndexModel &model, const RepairScope &scope)
    : model_(model), scope_(scope) {}

/// What a jsonb object is read as: a bigint, b text.
std::string RepairSql::typed(const std::vector<std::size_t> &columns) const {
    List list;
    for (const std::size_t column : columns)
        list << model_.columns[column].sql_name + " " + model_.columns[column].type;
    return list.text();
}

std::string RepairSql::array(const std::vector<std::size_t> &columns) const {
    List list;
    for (const std::size_t column : columns)
        list << sql_string(model_.columns[column].name);
    return "ARRAY[" + list.text() + "]::pg_catalog.text[]";
}

std::string RepairSql::key_values() const {
    return "interlock.row_values(" + row + ", " + array(model_.key) + ")";
}

std::string RepairSql::values() const {
    List list;
    for (const std::string &name : model_.column_names())
        list << sql_string(name);
    return "interlock.row_values(" + row + ", ARRAY[" + list.text() + "]::pg_catalog.text[])";
}

std::string RepairSql::owned(const char *alias) const {
    return "interlock.owned(" + sql_string(model_.keyspace().name) + ", " + alias + "." +
           model_.shard_key_sql() + ")";
}

/// Whole keys are compared, which an index on the key's columns serves, or on the first of them.
std::string RepairSql::in_range(RepairRange range) const {
    const auto comparison = [&](const char *op, const char *parameter) {
        return std::string(" AND (") + model_.key_list(row + ".") + ") " + op + " (SELECT " +
               model_.key_list("p.") + " FROM pg_catalog.jsonb_to_record(" + parameter +
               "::pg_catalog.jsonb) AS p(" + typed(model_.key) + "))";
    };
    return (range.lower ? comparison(">", "$1") : "") + (range.upper ? comparison("<=", "$2") : "");
}

std::string RepairSql::in_scope() const {
    std::string text;
    for (const std::size_t column : scope_.columns) {
        const std::string &name = model_.columns[column].sql_name;
        text += " AND " + row + "." + name + " = (SELECT s." + name +
                " FROM pg_catalog.jsonb_to_record($4::pg_catalog.jsonb) AS s(" + typed({column}) +
                "))";
    }
    for (const std::size_t column : scope_.nulls)
        text += " AND " + row + "." + model_.columns[column].sql_name + " IS NULL";
    return text;
}

std::string RepairSql::entries(RepairRange range) const {
    return "SELECT " + key_values() + ", " + values() + ", interlock.hash_key(" + row + "." +
           model_.shard_key_sql() + "), " + row + ".interlock_shard FROM " + model_.sql_name +
           " AS " + row + " WHERE NOT " + row + ".interlock_deleted" + in_range(range) +
           in_scope() + " ORDER BY " + model_.key_list(row + ".") + " LIMIT $3::pg_catalog.int4";
}

std::string RepairSql::rows(RepairRange range) const {
    return "SELECT " + key_values() + ", " + values() + " FROM " + model_.table->sql_name + " AS " +
           row + " WHERE " + owned(row.c_str()) + in_range(range) + in_scope() + " ORDER BY " +
           model_.key_list(row + ".") + " LIMIT $3::pg_catalog.int4";
}

/// The keys of $1 by number, each with its row in the table if there is one.
std::string RepairSql::from_keys(const std::string &table) const {
    std::string same;
    for (const std::size_t column : model_.key) {
        const std::string &name = model_.columns[column].sql_name;
        same += (same.empty() ? "" : " AND ") + row + "." + name + " = " + key + "." + name;
    }
    return " FROM ROWS FROM (pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb) AS (" +
           typed(model_.key) + ")) WITH ORDINALITY AS " + key + "(" + model_.key_list() +
           ", interlock_number) LEFT JOIN " + table + " AS " + row + " ON " + same;
}

std::string RepairSql::find_entries() const {
    return "SELECT interlock.hash_key(" + key + "." + model_.shard_key_sql() + "), " + row +
           ".xmin, " + row + ".interlock_route_version, " + row + ".interlock_seq, " + row +
           ".interlock_deleted, found.v, found.v = ($2::pg_catalog.jsonb -> (" + key +
           ".interlock_number - 1)::pg_catalog.int4)" + from_keys(model_.sql_name) +
           " CROSS JOIN LATERAL (SELECT CASE WHEN " + row + ".interlock_seq IS NOT NULL THEN " +
           values() + " END) AS found(v) ORDER BY " + key + ".interlock_number";
}

std::string RepairSql::find_rows() const {
    return "SELECT " + owned(key.c_str()) + ", CASE WHEN " + row + "." +
           model_.columns[model_.key.front()].sql_name + " IS NOT NULL THEN " + values() + " END" +
           from_keys(model_.table->sql_name) + " ORDER BY " + key + ".interlock_number";
}

std::string RepairSql::check_scope() const {
    return "SELECT FROM pg_catalog.jsonb_to_record($1::pg_catalog.jsonb) AS s(" +
           typed(scope_.columns) + ")";
}

}  // namespace interlock
