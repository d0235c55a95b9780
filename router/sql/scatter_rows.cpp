// Rows of one table: what an ordered scatter and an aggregate have in common.
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

namespace interlock::sql {

namespace {

std::string string_literal(std::string_view text) {
    std::string out = "'";
    for (const char c : text) {
        if (c == '\'') out += c;
        out += c;
    }
    return out + '\'';
}

}  // namespace

ScatterAnalysis::ScatterAnalysis(Analyser &analyser, const PgQuery__SelectStmt &statement)
    : analyser_(analyser), statement_(statement) {
    // The same parameter twice: it could take its type from the other place.
    const auto count = [&](const Node *node) {
        visit(node, [&](const Node &each) {
            if (each.node_case == PG_QUERY__NODE__NODE_PARAM_REF)
                ++parameter_uses_[each.param_ref->number];
            return true;
        });
    };
    const auto count_all = [&](Node **list, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i)
            count(list[i]);
    };
    count_all(statement.target_list, statement.n_target_list);
    count_all(statement.from_clause, statement.n_from_clause);
    count_all(statement.group_clause, statement.n_group_clause);
    count_all(statement.sort_clause, statement.n_sort_clause);
    count(statement.where_clause);
    count(statement.limit_count);
    count(statement.limit_offset);
}

bool ScatterAnalysis::rows() {
    if (!check_form() || !open_table()) return false;
    if (statement_.where_clause != nullptr && !check(statement_.where_clause, Use::row))
        return false;
    if (!read_outputs()) return false;
    if (!(aggregates() ? aggregate() : ordered())) return false;
    return add_filter() && finish();
}

bool ScatterAnalysis::check_form() {
    const PgQuery__SelectStmt &is = statement_;
    if (is.op != PG_QUERY__SET_OPERATION__SETOP_NONE)
        return refuse(-1, "UNION, INTERSECT and EXCEPT cannot run on all shards",
                      "Send each arm by itself.");
    if (is.n_values_lists > 0) return refuse(-1, "VALUES cannot run on all shards");
    if (is.with_clause != nullptr)
        return refuse(is.with_clause->location, "WITH cannot run on all shards",
                      "Send the queries one after another.");
    if (is.n_distinct_clause > 0)
        return refuse(-1, "DISTINCT cannot run on all shards", "Use GROUP BY.");
    if (is.n_window_clause > 0)
        return refuse(location_within(is.window_clause[0]),
                      "window functions cannot run on all shards");
    if (is.having_clause != nullptr)
        return refuse(location_within(is.having_clause),
                      "HAVING would judge groups of which each shard has only a part",
                      "Leave it out, and pick the groups in the application.");
    if (is.n_locking_clause > 0)
        return refuse(-1, "rows of several shards cannot be locked by one statement",
                      "Leave FOR UPDATE out, or name one shard key.");
    if (is.limit_option == PG_QUERY__LIMIT_OPTION__LIMIT_OPTION_WITH_TIES)
        return refuse(location_within(is.limit_count), "WITH TIES cannot run on all shards",
                      "Use LIMIT, and an order without ties.");
    if (is.n_from_clause != 1 || is.from_clause[0]->node_case != PG_QUERY__NODE__NODE_RANGE_VAR)
        return refuse(is.n_from_clause > 1    ? location_within(is.from_clause[1])
                      : is.n_from_clause == 1 ? location_within(is.from_clause[0])
                                              : -1,
                      "only one table, without joins and sub-selects, can be read from all shards",
                      "Name the shard key of one row, or read the tables one after another.");
    return true;
}

bool ScatterAnalysis::open_table() {
    scope_.level = &level_;
    if (!analyser_.from_clause(statement_.from_clause, statement_.n_from_clause, level_, nullptr,
                               nullptr, scope_.items))
        return false;
    const Relation &relation = level_.relations[0];
    if (relation.kind != Relation::Kind::table)
        return refuse(relation.location, "only sharded tables are read from all shards");
    scatter_.table = relation.table_index;
    text_.emplace(analyser_.text_, analyser_.offset_, analyser_.length_,
                  static_cast<std::size_t>(relation.location));
    return (text_->sound() && text_->targets().size() == statement_.n_target_list) || unreadable();
}

bool ScatterAnalysis::read_outputs() {
    const Relation &relation = level_.relations[0];
    for (std::size_t i = 0; i < statement_.n_target_list; ++i) {
        const PgQuery__ResTarget &target = *statement_.target_list[i]->res_target;
        if (!is_star(target.val)) {
            outputs_.push_back({output_name(target), target.val, column_of(target.val), i});
            continue;
        }
        const PgQuery__ColumnRef &reference = *target.val->column_ref;
        if (reference.n_fields > 2 ||
            (reference.n_fields == 2 && string_of(reference.fields[0]) != relation.name))
            return refuse(reference.location, "\"*\" of what is not in FROM");
        for (std::uint32_t column = 0; column < relation.columns(); ++column)
            outputs_.push_back({relation.column_name(column), nullptr, column, i});
    }
    return true;
}

std::optional<ValueSource> ScatterAnalysis::value_of(const Node *node) {
    ValueSource source;
    const auto constant = analyser_.constant(node);
    if (!constant) return std::nullopt;
    switch (constant->key.from) {
    case KeySource::From::literal: source.from = ValueSource::From::literal; break;
    case KeySource::From::parameter: {
        source.from = ValueSource::From::parameter;
        const auto uses = parameter_uses_.find(static_cast<std::int32_t>(constant->key.index) + 1);
        source.typed = uses != parameter_uses_.end() && uses->second > 1;
        break;
    }
    case KeySource::From::null: source.from = ValueSource::From::null; break;
    default: return std::nullopt;
    }
    source.negative = constant->key.negative;
    source.index = constant->key.index;
    source.cast = constant->key.cast;
    return source;
}

// LIMIT and OFFSET, and the edits that make each shard give LIMIT + OFFSET rows. What the client
// wrote stays in the text, so that its parameters stay in use and keep their types.
bool ScatterAnalysis::limits() {
    const auto value = [&](const Node *node, ValueSource &out, const char *what) {
        if (node == nullptr) return true;
        if (location_within(node) < 0 && node->node_case == PG_QUERY__NODE__NODE_A_CONST &&
            node->a_const->val_case == PG_QUERY__A__CONST__VAL_IVAL) {
            // FETCH FIRST ROW ONLY: a number that nobody wrote.
            out.from = ValueSource::From::number;
            out.index = static_cast<std::uint32_t>(node->a_const->ival->ival);
            return true;
        }
        const auto found = value_of(node);
        const bool integer = found && (found->cast == 0 || found->cast == oid::int8 ||
                                       found->cast == oid::int4 || found->cast == oid::int2);
        if (!integer)
            return refuse(location_within(node), std::string(what) + " is no plain number",
                          "Write a number or a parameter.");
        out = *found;
        return true;
    };
    if (!value(statement_.limit_count, scatter_.limit, "LIMIT") ||
        !value(statement_.limit_offset, scatter_.offset, "OFFSET"))
        return false;
    if (statement_.limit_offset == nullptr) return true;
    const auto offset = text_->body(Clause::offset);
    if (!offset) return unreadable();
    // OFFSET NULL is 0.
    const std::string skipped =
        "COALESCE((" + std::string(text_->text(*offset)) + ")::pg_catalog.int8, 0)";
    if (scatter_.limit.from == ValueSource::From::number)
        return refuse(location_within(statement_.limit_offset),
                      "OFFSET with a FETCH that says no number", "Write FETCH FIRST 1 ROW ONLY.");
    const bool limited = scatter_.limit.from == ValueSource::From::literal ||
                         scatter_.limit.from == ValueSource::From::parameter;
    if (!limited) {
        replace(*offset, "(0 OPERATOR(pg_catalog.*) " + skipped + ")");
        return true;
    }
    const auto limit = text_->body(Clause::limit);
    if (!limit) return unreadable();
    replace(*limit, "((" + std::string(text_->text(*limit)) +
                        ")::pg_catalog.int8 OPERATOR(pg_catalog.+) " + skipped + ")");
    replace(*offset, "(0)");
    return true;
}

bool ScatterAnalysis::add_filter() {
    const Keyspace &keyspace = analyser_.names_.routes.keyspaces[table().keyspace];
    const std::string filter = "interlock.owned(" + string_literal(keyspace.name) + ", " +
                               column_key(table().key_column, -1).text + ")";
    filter_ = true;
    if (statement_.where_clause == nullptr) {
        insert(text_->from_end(), " WHERE " + filter);
        return true;
    }
    const auto where = text_->body(Clause::where);
    if (!where) return unreadable();
    insert(where->offset, "(");
    insert(where->end(), ") AND " + filter);
    return true;
}

}  // namespace interlock::sql
