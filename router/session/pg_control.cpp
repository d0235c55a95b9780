// What the router answers itself: transaction control, session parameters, prepared statements in
// SQL. Answers are put in the exchange's line; a refusal is returned and written by the caller.
#include "base/log.h"
#include "plan/describe.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>
#include <strings.h>

namespace interlock {

namespace {

using sql::Action;

Refusal postgres_error(std::string_view sqlstate, std::string message, std::string hint = {}) {
    Refusal refusal = make_refusal(Code::R31, std::move(message), std::move(hint));
    refusal.sqlstate = sqlstate;
    return refusal;
}

Refusal not_tracked(const std::string &name) {
    return make_refusal(
        Code::R25,
        format("parameter \"%s\" cannot be kept for a session over pooled connections",
               name.c_str()),
        "The parameters that can are listed in docs/application.md. Set others for the role or the "
        "database (ALTER ROLE ... SET), or use a direct connection to the shard.");
}

// The text of a value that is one word or one string literal.
std::string bare_value(std::string_view value) {
    std::string bare;
    if (value.size() >= 2 && value.front() == '\'' && value.back() == '\'') {
        value = value.substr(1, value.size() - 2);
        for (std::size_t i = 0; i < value.size(); ++i) {
            bare += value[i];
            if (value[i] == '\'') ++i;
        }
        return bare;
    }
    return std::string(value);
}

std::string set_config_sql(const TrackedParameter &parameter, const std::string &value,
                           bool local) {
    return "SELECT pg_catalog.set_config(" + quote_literal(parameter.name) + ", " +
           quote_literal(value) + (local ? ", true)" : ", false)");
}

bool starts_with_word(std::string_view text, const char *word) {
    const std::size_t length = std::char_traits<char>::length(word);
    const std::size_t from = text.find_first_not_of(" \t\r\n\f");
    return from != std::string_view::npos && text.size() >= from + length &&
           ::strncasecmp(text.data() + from, word, length) == 0;
}

}  // namespace

void PgClient::answer_tag(std::string_view tag) {
    pg_reply::command_complete(exchange_->local(), tag);
    exchange_->local_done();
}

void PgClient::answer_warning(std::string_view sqlstate, std::string_view message) {
    pg_reply::warning(exchange_->local(), sqlstate, message);
    exchange_->local_done();
}

Task<std::optional<Refusal>> PgClient::control(const sql::Facts &facts) {
    const bool leaves = facts.action == Action::rollback || facts.action == Action::commit ||
                        facts.action == Action::rollback_to;
    if (!leaves) {
        if (auto failed = failed_refusal()) co_return failed;
    }
    switch (facts.action) {
    case Action::begin: co_return begin(facts);
    case Action::commit:
    case Action::rollback: co_return co_await end_transaction(facts);
    case Action::savepoint:
    case Action::release:
    case Action::rollback_to: co_return co_await savepoint(facts);
    case Action::set:
    case Action::set_local:
    case Action::set_transaction:
    case Action::set_session_characteristics: co_return co_await set(facts);
    case Action::reset:
    case Action::reset_all: co_return co_await reset(facts);
    case Action::discard_all:
    case Action::discard_some: co_return discard(facts);
    case Action::deallocate: co_return deallocate(facts);
    default: co_return make_refusal(Code::R01, "the router does not carry out this statement");
    }
}

std::optional<Refusal> PgClient::begin(const sql::Facts &facts) {
    const char *tag = starts_with_word(facts.text, "start") ? "START TRANSACTION" : "BEGIN";
    if (in_block()) {
        answer_warning("25001", "there is already a transaction in progress");
        answer_tag(tag);
        return std::nullopt;
    }
    if (worker_.stopping())
        return make_refusal(Code::R30, "the router is shutting down",
                            "Nothing was done; connect to another router, or try again.");
    open_new_block(facts.text);
    answer_tag(tag);
    return std::nullopt;
}

void PgClient::open_new_block(std::string begin) {
    block_ = std::make_unique<Block>();
    block_->routes = worker_.routes();
    block_->begin = std::move(begin);
    block_->parameters = parameters_;
    block_->path = path_;
    transaction_ = Transaction::open;
}

Task<std::optional<Refusal>> PgClient::end_transaction(const sql::Facts &facts) {
    const bool commit = facts.action == Action::commit;
    const char *tag = commit ? "COMMIT" : "ROLLBACK";
    if (!in_block()) {
        if (facts.chain)
            co_return postgres_error(
                "25P01", format("%s AND CHAIN can only be used in transaction blocks", tag));
        answer_warning("25P01", "there is no transaction in progress");
        answer_tag(tag);
        co_return std::nullopt;
    }
    const std::string begin = block_->begin;
    std::vector<std::string> characteristics = block_->characteristics;
    if (transaction_ == Transaction::failed) {
        if (commit && worker_.settings().pg_commit_in_failed == "error") {
            if (lost_) co_return take_lost();
            co_return make_refusal(Code::R13, "the transaction has failed and cannot be committed",
                                   "Send ROLLBACK.");
        }
        co_await roll_back_now();
        leave_block(false);
        answer_tag("ROLLBACK");
    } else if (!commit) {
        // Whatever has become of the backend: what it did is not committed.
        co_await roll_back_now();
        leave_block(false);
        answer_tag("ROLLBACK");
    } else if (hold_ == Hold::pinned) {
        commands_.assign(1, std::make_shared<const sql::Facts>(facts));
        command_ = 0;
        raise_effect(facts);
        exchange_->feed_local(out_, *this);
        append_query(tag, Owed::To::client, note(Note{.kind = Note::Kind::query}));
        if (auto lost = co_await settle()) co_return lost;
        const bool failed = co_await after_ready();
        // A deferred check that fails: the error has been told, the transaction is over.
        if (failed || !facts.chain) {
            last_failed_ = failed;
            co_return std::nullopt;
        }
        open_new_block(begin);
        block_->characteristics = std::move(characteristics);
        co_return std::nullopt;
    } else {
        leave_block(commit);
        answer_tag(tag);
    }
    if (facts.chain) {
        open_new_block(begin);
        block_->characteristics = std::move(characteristics);
    }
    co_return std::nullopt;
}

// The transaction is over; what was set in it stays or goes.
void PgClient::leave_block(bool committed) {
    const std::unique_ptr<Block> block = std::move(block_);
    transaction_ = Transaction::none;
    lost_.reset();
    // Lent with what was in force before, the backend has undone, or kept, what was set since.
    if (lease_ && committed) lease_->set_applied_parameters(parameters_);
    use_parameters(committed ? parameters_ : block->parameters);
    tell_changes();
    if (extended_) extended_->portals.clear();
}

Task<std::optional<Refusal>> PgClient::savepoint(const sql::Facts &facts) {
    const char *word = facts.action == Action::savepoint ? "SAVEPOINT"
                       : facts.action == Action::release ? "RELEASE SAVEPOINT"
                                                         : "ROLLBACK TO SAVEPOINT";
    if (!in_block())
        co_return postgres_error("25P01",
                                 format("%s can only be used in transaction blocks", word));
    if (facts.action == Action::rollback_to && transaction_ == Transaction::failed && lost_)
        co_return take_lost();
    auto &savepoints = block_->savepoints;
    const auto found =
        std::find_if(savepoints.rbegin(), savepoints.rend(),
                     [&](const Savepoint &savepoint) { return savepoint.name == facts.name; });
    if (facts.action != Action::savepoint && found == savepoints.rend())
        co_return postgres_error("3B001",
                                 format("savepoint \"%s\" does not exist", facts.name.c_str()));
    const std::string sql = std::string(word) + " " + quote_identifier(facts.name);
    if (hold_ == Hold::pinned) {
        commands_.assign(1, std::make_shared<const sql::Facts>(facts));
        command_ = 0;
        exchange_->feed_local(out_, *this);
        append_query(sql, Owed::To::client, note(Note{.kind = Note::Kind::query}));
        if (auto lost = co_await settle()) co_return lost;
        last_failed_ = co_await after_ready();
        co_return std::nullopt;
    }
    switch (facts.action) {
    case Action::savepoint:
        savepoints.push_back({facts.name, parameters_, path_, block_->prologue.size()});
        block_->prologue.push_back(sql);
        break;
    case Action::release:
        // What was set since stays; the backend gets to know neither savepoint nor release.
        for (auto at = found.base() - 1; at != savepoints.end(); ++at)
            block_->prologue[at->prologue].clear();
        savepoints.erase(found.base() - 1, savepoints.end());
        break;
    default: {
        block_->prologue.resize(found->prologue + 1);
        use_parameters(found->parameters);
        path_ = found->path;
        tell_changes();
        savepoints.erase(found.base(), savepoints.end());
        transaction_ = Transaction::open;
        break;
    }
    }
    answer_tag(facts.action == Action::savepoint ? "SAVEPOINT"
               : facts.action == Action::release ? "RELEASE"
                                                 : "ROLLBACK");
    co_return std::nullopt;
}

// A statement that the pinned backend has carried out.
void PgClient::statement_done(const sql::Facts &facts, std::string_view tag) {
    if (!in_block()) {
        if (facts.action != Action::begin) return;
        // BEGIN inside an implicit transaction makes a block of it.
        open_new_block(facts.text);
        hold_ = Hold::pinned;
        return;
    }
    auto &savepoints = block_->savepoints;
    const auto found =
        std::find_if(savepoints.rbegin(), savepoints.rend(),
                     [&](const Savepoint &savepoint) { return savepoint.name == facts.name; });
    switch (facts.action) {
    case Action::commit: block_->ended_by_commit = tag == "COMMIT"; break;
    case Action::savepoint: savepoints.push_back({facts.name, parameters_, path_, 0}); break;
    case Action::release:
        if (found != savepoints.rend()) savepoints.erase(found.base() - 1, savepoints.end());
        break;
    case Action::rollback_to:
        if (found == savepoints.rend()) break;
        use_parameters(found->parameters);
        path_ = found->path;
        savepoints.erase(found.base(), savepoints.end());
        transaction_ = Transaction::open;
        break;
    case Action::set_transaction: block_->characteristics.push_back(facts.text); break;
    default: break;
    }
}

// Session parameters ------------------------------------------------------------------------------

void PgClient::use_parameters(Parameters parameters) {
    parameters_ = std::move(parameters);
    static const TrackedParameter *const search_path = find_tracked("search_path");
    static const TrackedParameter *const encoding = find_tracked("client_encoding");
    const std::string *path = value_in(parameters_, search_path);
    path_ = shared_.search_path(path != nullptr ? *path : defaults_->search_path(), backend_login_);
    const std::string *name = value_in(parameters_, encoding);
    utf8_ = name == nullptr || *name == "UTF8";
}

const std::string &PgClient::told(const TrackedParameter &parameter) const {
    for (const auto &[known, value] : told_)
        if (known == &parameter) return value;
    return told_at_start(parameter);
}

const std::string &PgClient::told_at_start(const TrackedParameter &parameter) const {
    const std::string *set = value_in(startup_, &parameter);
    return set != nullptr ? *set : defaults_->value(parameter.name);
}

void PgClient::note_told(const TrackedParameter &parameter, std::string_view value) {
    std::erase_if(told_, [&](const auto &entry) { return entry.first == &parameter; });
    if (value != told_at_start(parameter)) told_.emplace_back(&parameter, value);
}

void PgClient::tell_status(const TrackedParameter &parameter, std::string_view value) {
    if (!parameter.reported || told(parameter) == value) return;
    pg_reply::parameter_status(exchange_->local(), parameter.name, value);
    exchange_->local_done();
    note_told(parameter, value);
}

// What the session has in force, where the client was last told something else.
void PgClient::tell_changes() {
    for (const TrackedParameter &parameter : tracked_parameters()) {
        if (!parameter.reported) break;
        const std::string *value = value_in(parameters_, &parameter);
        tell_status(parameter, value != nullptr ? *value : defaults_->value(parameter.name));
    }
}

Task<std::optional<Refusal>> PgClient::set(const sql::Facts &facts) {
    if (facts.action == Action::set_transaction) {
        if (!in_block()) {
            answer_warning("25P01", "SET TRANSACTION can only be used in transaction blocks");
        } else if (hold_ == Hold::pinned) {
            exchange_->feed_local(out_, *this);
            if (auto refused = co_await ask_backend(facts.text)) co_return refused;
            block_->characteristics.push_back(facts.text);
        } else {
            block_->characteristics.push_back(facts.text);
        }
        answer_tag("SET");
        co_return std::nullopt;
    }
    if (facts.action == Action::set_session_characteristics) {
        for (const sql::Assignment &setting : facts.settings) {
            const TrackedParameter *parameter = find_tracked(setting.name);
            if (parameter == nullptr) co_return not_tracked(setting.name);
            if (auto refused = co_await set_one(*parameter, setting.value, false))
                co_return refused;
        }
        answer_tag("SET");
        co_return std::nullopt;
    }
    const bool local = facts.action == Action::set_local;
    if (facts.name == "standard_conforming_strings") {
        const std::string value = bare_value(facts.value);
        if (!::strcasecmp(value.c_str(), "on") || !::strcasecmp(value.c_str(), "true") ||
            value == "1" || !::strcasecmp(value.c_str(), "yes")) {
            answer_tag("SET");
            co_return std::nullopt;
        }
        co_return make_refusal(Code::R25, "standard_conforming_strings is always on here",
                               "The router reads string literals as it says; write E'...' where "
                               "backslashes are to be escapes.");
    }
    const TrackedParameter *parameter = find_tracked(facts.name);
    if (parameter == nullptr) co_return not_tracked(facts.name);
    if (parameter->name == "client_encoding" && !safe_client_encoding(bare_value(facts.value)))
        co_return make_refusal(Code::R25,
                               "this client_encoding has characters that contain bytes of ASCII",
                               "Use UTF8, or another encoding in which no character does.");
    if (local && !in_block()) {
        answer_warning("25P01", "SET LOCAL can only be used in transaction blocks");
    } else if (auto refused = co_await set_one(*parameter, facts.value, local)) {
        co_return refused;
    }
    answer_tag("SET");
    co_return std::nullopt;
}

// With pg_catalog behind another schema, that schema's operators and functions stand before the
// built-in ones which the analysis takes them for.
std::optional<Refusal> PgClient::check_search_path(const std::string &value) const {
    const auto schemas = sql::split_search_path(value, backend_login_);
    if (!schemas) return std::nullopt;
    const auto catalog = std::find(schemas->begin(), schemas->end(), "pg_catalog");
    if (catalog == schemas->begin() || catalog == schemas->end()) return std::nullopt;
    return make_refusal(Code::R25, "search_path puts another schema before pg_catalog",
                        "Leave pg_catalog out, then it comes first, or name it first.");
}

// PostgreSQL itself judges the value, on a backend, and spells it; the session keeps its spelling.
Task<std::optional<Refusal>> PgClient::set_one(const TrackedParameter &parameter,
                                               const std::string &value, bool local) {
    const std::string name(parameter.name);
    const std::string set =
        format("SET %s%s = %s", local ? "LOCAL " : "", name.c_str(), value.c_str());
    const std::string show = "SHOW " + name;
    exchange_->feed_local(out_, *this);
    if (hold_ == Hold::single)
        co_return make_refusal(Code::R25, "SET between the statements of an implicit transaction",
                               "Send a Sync before it, or begin a transaction.");
    if (hold_ == Hold::pinned) {
        if (auto refused = co_await ask_backend(set + ";" + show)) co_return refused;
        if (exchange_->kept_row().empty()) co_return postgres_error("XX000", "SET gave no value");
        if (parameter.name == "search_path")
            if (auto refused = check_search_path(exchange_->kept_row()[0])) co_return refused;
        keep_setting(parameter, exchange_->kept_row()[0], local);
        co_return std::nullopt;
    }
    if (hold_ == Hold::any) co_await give_up_any();
    if (auto refused = co_await lend(std::nullopt)) co_return refused;
    hold_ = Hold::any;
    // Before a transaction is pinned its settings wait for it to open; here they are only judged.
    const bool judge_only = in_block();
    hold_status_ = judge_only;
    auto refused = co_await ask_backend(judge_only ? "BEGIN;" + set + ";" + show + ";ROLLBACK"
                                                   : set + ";" + show);
    hold_status_ = false;
    if (!lease_) co_return refused;
    if (!refused && exchange_->kept_row().empty())
        refused = postgres_error("XX000", "SET gave no value");
    if (!refused && parameter.name == "search_path") {
        refused = check_search_path(exchange_->kept_row()[0]);
        if (refused && !judge_only) {
            discard_backend();
            co_return refused;
        }
    }
    if (!refused) {
        const std::string spelled = exchange_->kept_row()[0];
        keep_setting(parameter, spelled, local);
        if (judge_only)
            block_->prologue.push_back(set_config_sql(parameter, spelled, local));
        else
            lease_->set_applied_parameters(parameters_);
        tell_status(parameter, spelled);
    }
    if (exchange_->status() == 'I')
        release();
    else
        co_await roll_back_lease();
    co_return refused;
}

void PgClient::keep_setting(const TrackedParameter &parameter, const std::string &value,
                            bool local) {
    if (!local) {
        use_parameters(shared_.parameters().with(parameters_, &parameter, value));
        return;
    }
    if (parameter.name == "search_path") path_ = shared_.search_path(value, backend_login_);
    if (parameter.name == "client_encoding") utf8_ = utf8_ && value == "UTF8";
}

Task<std::optional<Refusal>> PgClient::reset(const sql::Facts &facts) {
    if (facts.action == Action::reset_all) {
        Parameters all = parameters_;
        if (all)
            for (const ParameterSet::Value &value : all->values)
                if (auto refused = co_await reset_one(*value.parameter)) co_return refused;
        if (startup_)
            for (const ParameterSet::Value &value : startup_->values)
                if (auto refused = co_await reset_one(*value.parameter)) co_return refused;
    } else if (facts.name != "standard_conforming_strings") {
        const TrackedParameter *parameter = find_tracked(facts.name);
        if (parameter == nullptr) co_return not_tracked(facts.name);
        if (auto refused = co_await reset_one(*parameter)) co_return refused;
    }
    answer_tag(starts_with_word(facts.text, "set") ? "SET" : "RESET");
    co_return std::nullopt;
}

// Back to what the client asked for when it connected, or to the login's default.
Task<std::optional<Refusal>> PgClient::reset_one(const TrackedParameter &parameter) {
    const std::string *first = value_in(startup_, &parameter);
    Parameters after = first != nullptr ? shared_.parameters().with(parameters_, &parameter, *first)
                                        : shared_.parameters().without(parameters_, &parameter);
    if (hold_ == Hold::single)
        co_return make_refusal(Code::R25, "RESET between the statements of an implicit transaction",
                               "Send a Sync before it, or begin a transaction.");
    if (hold_ == Hold::pinned) {
        exchange_->feed_local(out_, *this);
        const std::string sql = first != nullptr ? set_config_sql(parameter, *first, false)
                                                 : "RESET " + std::string(parameter.name);
        if (auto refused = co_await ask_backend(sql)) co_return refused;
        use_parameters(std::move(after));
        co_return std::nullopt;
    }
    use_parameters(std::move(after));
    if (in_block())
        block_->prologue.push_back(first != nullptr ? set_config_sql(parameter, *first, false)
                                                    : "RESET " + std::string(parameter.name));
    tell_changes();
    co_return std::nullopt;
}

// Other session state -----------------------------------------------------------------------------

std::optional<Refusal> PgClient::discard(const sql::Facts &facts) {
    if (facts.action == Action::discard_some) {
        // There is nothing of it: plans are the backends' own, the rest is refused at the door.
        std::string tag = "DISCARD " + facts.name;
        for (char &c : tag)
            if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
        answer_tag(tag);
        return std::nullopt;
    }
    if (in_block() || hold_ == Hold::single)
        return postgres_error("25001", "DISCARD ALL cannot run inside a transaction block");
    use_parameters(startup_);
    tell_changes();
    if (extended_) {
        extended_->named.clear();
        extended_->portals.clear();
    }
    answer_tag("DISCARD ALL");
    return std::nullopt;
}

std::optional<Refusal> PgClient::deallocate(const sql::Facts &facts) {
    if (facts.name.empty()) {
        if (extended_) extended_->named.clear();
        answer_tag("DEALLOCATE ALL");
        return std::nullopt;
    }
    if (!extended_ || extended_->named.erase(facts.name) == 0)
        return postgres_error(
            "26000", format("prepared statement \"%s\" does not exist", facts.name.c_str()));
    answer_tag("DEALLOCATE");
    return std::nullopt;
}

void PgClient::explain_route(const sql::Facts &facts, bool described) {
    if (!described) {
        pg_reply::text_column(exchange_->local(), "ROUTE");
        exchange_->local_done();
    }
    const sql::NameContext names{*routes_in_use()->table, path_->schemas};
    for (const std::string &line : describe_route(facts.text, names, {}, utf8_)) {
        pg_reply::text_row(exchange_->local(), line);
    }
    exchange_->local_done();
    answer_tag("EXPLAIN");
}

}  // namespace interlock
