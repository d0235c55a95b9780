// Statements that are no queries: transactions, settings, cursors, and what is refused.
#include "sql/analyser.h"

#include <algorithm>
#include <cctype>

namespace interlock::sql {

namespace {

std::string lower(std::string_view text) {
    std::string result(text);
    for (char &c : result)
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

std::string quote_literal(std::string_view text) {
    std::string result = text.find('\\') == std::string_view::npos ? "'" : "E'";
    for (const char c : text) {
        if (c == '\'' || c == '\\') result += c;
        result += c;
    }
    return result + "'";
}

constexpr std::string_view direct = "Connect to the shard directly, or through a session pool.";

}  // namespace

std::string Analyser::statement_text() const {
    return std::string(text_.substr(offset_, length_));
}

bool Analyser::transaction(const PgQuery__TransactionStmt &statement) {
    facts.chain = statement.chain;
    facts.name = statement.savepoint_name;
    switch (statement.kind) {
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_BEGIN:
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_START:
        facts.action = Action::begin;
        facts.text = statement_text();
        return true;
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_COMMIT:
        facts.action = Action::commit;
        return true;
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_ROLLBACK:
        facts.action = Action::rollback;
        return true;
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_SAVEPOINT:
        facts.action = Action::savepoint;
        return true;
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_RELEASE:
        facts.action = Action::release;
        return true;
    case PG_QUERY__TRANSACTION_STMT_KIND__TRANS_STMT_ROLLBACK_TO:
        facts.action = Action::rollback_to;
        return true;
    default:
        return refuse(Code::R25, static_cast<int>(offset_), "two-phase commit is not routed",
                      std::string(direct));
    }
}

// The value of SET as text that can stand behind "SET name = ".
std::optional<std::string> Analyser::set_value(const PgQuery__VariableSetStmt &statement) {
    std::string value;
    facts.cacheable = false;
    for (std::size_t i = 0; i < statement.n_args; ++i) {
        if (i > 0) value += ", ";
        const Node *node = statement.args[i];
        if (node->node_case != PG_QUERY__NODE__NODE_A_CONST) return std::nullopt;
        const PgQuery__AConst &constant = *node->a_const;
        switch (constant.val_case) {
        case PG_QUERY__A__CONST__VAL_IVAL: value += std::to_string(constant.ival->ival); break;
        case PG_QUERY__A__CONST__VAL_FVAL: value += constant.fval->fval; break;
        case PG_QUERY__A__CONST__VAL_SVAL: value += quote_literal(constant.sval->sval); break;
        default: return std::nullopt;
        }
    }
    return value;
}

bool Analyser::set_characteristics(const PgQuery__VariableSetStmt &statement) {
    facts.action = Action::set_session_characteristics;
    for (std::size_t i = 0; i < statement.n_args; ++i) {
        const PgQuery__DefElem &option = *statement.args[i]->def_elem;
        const Node *value = option.arg;
        std::string text;
        if (value != nullptr && value->node_case == PG_QUERY__NODE__NODE_A_CONST) {
            const PgQuery__AConst &constant = *value->a_const;
            if (constant.val_case == PG_QUERY__A__CONST__VAL_SVAL)
                text = quote_literal(constant.sval->sval);
            else if (constant.val_case == PG_QUERY__A__CONST__VAL_IVAL)
                text = constant.ival->ival != 0 ? "on" : "off";
        }
        if (text.empty())
            return refuse(Code::R25, static_cast<int>(offset_),
                          "this SET SESSION CHARACTERISTICS is not known to the router");
        facts.settings.push_back({"default_" + std::string(option.defname), std::move(text)});
    }
    return true;
}

bool Analyser::set(const PgQuery__VariableSetStmt &statement) {
    const std::string name = lower(statement.name);
    const int location = static_cast<int>(offset_);
    facts.name = name;
    if (name == "role" || name == "session_authorization")
        return refuse(Code::R25, location,
                      name == "role" ? "the role cannot be changed"
                                     : "the session's user cannot be changed",
                      "Connect as the user whose rights are needed.");
    switch (statement.kind) {
    case PG_QUERY__VARIABLE_SET_KIND__VAR_SET_VALUE: {
        auto value = set_value(statement);
        if (!value)
            return refuse(Code::R25, location, "this value of " + name + " is not routed",
                          name == "timezone" ? "Write the time zone as a name or a number." : "");
        facts.value = std::move(*value);
        facts.action = statement.is_local ? Action::set_local : Action::set;
        break;
    }
    case PG_QUERY__VARIABLE_SET_KIND__VAR_SET_DEFAULT:
        if (statement.is_local) {
            facts.action = Action::set_local;
            facts.value = "DEFAULT";
        } else {
            facts.action = Action::reset;
            facts.text = statement_text();  // answered as the SET it is
        }
        break;
    case PG_QUERY__VARIABLE_SET_KIND__VAR_SET_CURRENT:
        return refuse(Code::R25, location, "SET ... FROM CURRENT is not routed",
                      "Write the value.");
    case PG_QUERY__VARIABLE_SET_KIND__VAR_SET_MULTI:
        if (name == "transaction snapshot")
            return refuse(Code::R25, location, "snapshots are not shared between sessions here",
                          std::string(direct));
        if (name == "session characteristics") return set_characteristics(statement);
        facts.action = Action::set_transaction;
        facts.text = statement_text();
        break;
    case PG_QUERY__VARIABLE_SET_KIND__VAR_RESET: facts.action = Action::reset; break;
    case PG_QUERY__VARIABLE_SET_KIND__VAR_RESET_ALL: facts.action = Action::reset_all; break;
    default: return refuse(Code::R25, location, "this SET is not known to the router");
    }
    if ((facts.action == Action::set || facts.action == Action::set_local) &&
        (name == "transaction_isolation" || name == "transaction_read_only" ||
         name == "transaction_deferrable")) {
        facts.action = Action::set_transaction;
        facts.text = statement_text();
    }
    return true;
}

bool Analyser::explain(const PgQuery__ExplainStmt &statement) {
    bool analyze = false;
    for (std::size_t i = 0; i < statement.n_options; ++i) {
        const PgQuery__DefElem &option = *statement.options[i]->def_elem;
        if (option.arg != nullptr) facts.cacheable = false;
        if (std::string_view(option.defname) != "analyze") continue;
        analyze = true;
        const std::string value = lower(string_of(option.arg));
        if (value == "false" || value == "off") analyze = false;
        if (option.arg != nullptr && option.arg->node_case == PG_QUERY__NODE__NODE_INTEGER)
            analyze = option.arg->integer->ival != 0;
    }
    const Node *inner = statement.query;
    if (inner->node_case == PG_QUERY__NODE__NODE_DECLARE_CURSOR_STMT)
        inner = inner->declare_cursor_stmt->query;
    switch (inner->node_case) {
    case PG_QUERY__NODE__NODE_SELECT_STMT:
    case PG_QUERY__NODE__NODE_INSERT_STMT:
    case PG_QUERY__NODE__NODE_UPDATE_STMT:
    case PG_QUERY__NODE__NODE_DELETE_STMT:
    case PG_QUERY__NODE__NODE_MERGE_STMT: break;
    default: return refuse_statement(inner);
    }
    if (!wrapped(inner, "EXPLAIN", "EXPLAIN ROUTE tells what the router does with a statement."))
        return false;
    facts.writes = facts.writes && analyze;
    facts.returns_rows = true;
    return true;
}

bool Analyser::copy(const PgQuery__CopyStmt &statement) {
    const int location =
        statement.relation != nullptr ? statement.relation->location : static_cast<int>(offset_);
    if (statement.is_program || statement.filename[0] != '\0')
        return refuse(Code::R01, location, "COPY with files and programs of a server is not routed",
                      "Use COPY (query) TO STDOUT.");
    if (statement.is_from)
        return refuse(Code::R01, location, "COPY FROM is not routed",
                      "Use INSERT with several rows of one shard, or COPY on each shard.");
    if (statement.query == nullptr) {
        const std::string name = statement.relation->relname;
        return refuse(Code::R10, location, "COPY of a whole table touches every shard",
                      "Use COPY (SELECT ... FROM " + quote_identifier(name) +
                          " WHERE <shard key> = <value>) TO STDOUT.");
    }
    facts.action = Action::copy_out;
    return wrapped(statement.query, "COPY", "Send the SELECT by itself.");
}

bool Analyser::declare_cursor(const PgQuery__DeclareCursorStmt &statement) {
    constexpr int option_hold = 0x0020;  // CURSOR_OPT_HOLD
    if ((statement.options & option_hold) != 0)
        return refuse(Code::R25, static_cast<int>(offset_),
                      "a cursor WITH HOLD outlives its transaction, and with it the connection",
                      "Declare it WITHOUT HOLD, inside a transaction.");
    facts.action = Action::declare_cursor;
    facts.name = statement.portalname;
    return wrapped(statement.query, "a cursor",
                   "Send the SELECT by itself, or read pages (interlock.keyset_page).");
}

bool Analyser::utility(const Node *node) {
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_TRANSACTION_STMT: return transaction(*node->transaction_stmt);
    case PG_QUERY__NODE__NODE_VARIABLE_SET_STMT: return set(*node->variable_set_stmt);
    case PG_QUERY__NODE__NODE_VARIABLE_SHOW_STMT:
        facts.action = Action::show;
        facts.returns_rows = true;
        facts.name = lower(node->variable_show_stmt->name);
        return true;
    case PG_QUERY__NODE__NODE_DISCARD_STMT:
        facts.action = Action::discard_some;
        switch (node->discard_stmt->target) {
        case PG_QUERY__DISCARD_MODE__DISCARD_PLANS: facts.name = "plans"; break;
        case PG_QUERY__DISCARD_MODE__DISCARD_SEQUENCES: facts.name = "sequences"; break;
        case PG_QUERY__DISCARD_MODE__DISCARD_TEMP: facts.name = "temp"; break;
        default: facts.action = Action::discard_all;
        }
        return true;
    case PG_QUERY__NODE__NODE_DEALLOCATE_STMT:
        facts.action = Action::deallocate;
        facts.name = node->deallocate_stmt->name;
        return true;
    case PG_QUERY__NODE__NODE_FETCH_STMT:
        facts.action = Action::cursor;
        facts.returns_rows = !node->fetch_stmt->ismove;
        facts.name = node->fetch_stmt->portalname;
        return true;
    case PG_QUERY__NODE__NODE_CLOSE_PORTAL_STMT:
        facts.action = Action::cursor;
        facts.name = node->close_portal_stmt->portalname;
        return true;
    case PG_QUERY__NODE__NODE_EXPLAIN_STMT: return explain(*node->explain_stmt);
    case PG_QUERY__NODE__NODE_COPY_STMT: return copy(*node->copy_stmt);
    case PG_QUERY__NODE__NODE_DECLARE_CURSOR_STMT:
        return declare_cursor(*node->declare_cursor_stmt);
    default: return refuse_statement(node);
    }
}

bool Analyser::refuse_statement(const Node *node) {
    const int location = static_cast<int>(offset_);
    const auto session = [&](const char *message, std::string_view hint) {
        return refuse(Code::R25, location, message, std::string(hint));
    };
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_PREPARE_STMT:
    case PG_QUERY__NODE__NODE_EXECUTE_STMT:
        return session("PREPARE and EXECUTE in SQL are not routed",
                       "Use the protocol's prepared statements, as drivers do: they work over all "
                       "shards.");
    case PG_QUERY__NODE__NODE_LISTEN_STMT:
    case PG_QUERY__NODE__NODE_UNLISTEN_STMT:
    case PG_QUERY__NODE__NODE_NOTIFY_STMT:
        return session("LISTEN, UNLISTEN and NOTIFY are not routed", direct);
    case PG_QUERY__NODE__NODE_LOCK_STMT:
        return session("LOCK locks a table of one shard only",
                       "Lock rows of the key with SELECT ... FOR UPDATE.");
    case PG_QUERY__NODE__NODE_LOAD_STMT: return session("LOAD is not routed", direct);
    case PG_QUERY__NODE__NODE_DO_STMT:
        return session("DO runs code that the router cannot see into", direct);
    case PG_QUERY__NODE__NODE_CALL_STMT:
        return session("CALL runs code that the router cannot see into", direct);
    case PG_QUERY__NODE__NODE_CONSTRAINTS_SET_STMT:
        return session("SET CONSTRAINTS is not routed",
                       "Declare the constraints INITIALLY DEFERRED.");
    case PG_QUERY__NODE__NODE_CREATE_TABLE_AS_STMT:
        return refuse(Code::R24, location, "CREATE TABLE AS is DDL",
                      "Change the schema on every shard, by `interlock ddl` or directly.");
    case PG_QUERY__NODE__NODE_VACUUM_STMT:
    case PG_QUERY__NODE__NODE_REINDEX_STMT:
    case PG_QUERY__NODE__NODE_CLUSTER_STMT:
    case PG_QUERY__NODE__NODE_CHECK_POINT_STMT:
        return refuse(Code::R24, location, "maintenance statements are not routed",
                      "Run them on each shard.");
    default:
        return refuse(Code::R24, location, "statements that change the schema are not routed",
                      "Change the schema on every shard, by `interlock ddl` or directly.");
    }
}

}  // namespace interlock::sql
