// The session's parameters: SET, SET LOCAL, RESET, SET TRANSACTION, DISCARD; and what the client is
// told of them. Answers are put in the exchange's line; a refusal is for the caller to tell.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>
#include <strings.h>

namespace interlock {

namespace {

using sql::Action;

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

}  // namespace

// What SET LOCAL has put over a parameter, else what the session has set; null: the login's
// default.
const std::string *PgClient::in_force(const TrackedParameter &parameter) const {
    const std::string *local = block_ ? value_in(block_->local, &parameter) : nullptr;
    return local != nullptr ? local : value_in(parameters_, &parameter);
}

void PgClient::use_parameters(Parameters parameters) {
    use_parameters(std::move(parameters), block_ ? block_->local : nullptr);
}

// What the router itself goes by follows from what is in force, and from nothing else.
void PgClient::use_parameters(Parameters parameters, Parameters local) {
    parameters_ = std::move(parameters);
    if (block_) block_->local = std::move(local);
    static const TrackedParameter *const search_path = find_tracked("search_path");
    static const TrackedParameter *const encoding = find_tracked("client_encoding");
    const std::string *path = in_force(*search_path);
    path_ = shared_.search_path(path != nullptr ? *path : defaults_->search_path(), backend_login_);
    const std::string *name = in_force(*encoding);
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
        const std::string *value = in_force(parameter);
        tell_status(parameter, value != nullptr ? *value : defaults_->value(parameter.name));
    }
}

Task<std::optional<Refusal>> PgClient::set(const sql::Facts &facts) {
    if (facts.action == Action::set_transaction) {
        if (!in_block()) {
            answer_warning("25P01", "SET TRANSACTION can only be used in transaction blocks");
        } else {
            exchange_->feed_local(out_, *this);
            if (hold_ == Hold::pinned)
                if (auto refused = co_await ask_backend(facts.text)) co_return refused;
            block_->characteristics.push_back(facts.text);
            ++block_->revision;
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
    // The default is what the client asked for when it connected, which backends know nothing of.
    const std::string *first = value == "DEFAULT" ? value_in(startup_, &parameter) : nullptr;
    const std::string set = first != nullptr ? set_config_sql(parameter, *first, local)
                                             : format("SET %s%s = %s", local ? "LOCAL " : "",
                                                      name.c_str(), value.c_str());
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
        if (judge_only) {
            block_->prologue.push_back(set_config_sql(parameter, spelled, local));
            ++block_->revision;
        } else {
            lease_->set_applied_parameters(parameters_);
        }
        tell_status(parameter, spelled);
    }
    if (exchange_->status() == 'I')
        release();
    else
        co_await roll_back_lease();
    co_return refused;
}

// A session's SET replaces a local value of the same parameter, as in PostgreSQL.
void PgClient::keep_setting(const TrackedParameter &parameter, const std::string &value,
                            bool local) {
    ParameterSets &sets = shared_.parameters();
    if (local)
        use_parameters(parameters_, sets.with(block_->local, &parameter, value));
    else
        use_parameters(sets.with(parameters_, &parameter, value),
                       block_ ? sets.without(block_->local, &parameter) : nullptr);
}

Task<std::optional<Refusal>> PgClient::reset(const sql::Facts &facts) {
    if (facts.action == Action::reset_all) {
        // Sets are immutable: these stay as they were while resetting changes what is in force.
        const Parameters all[] = {parameters_, startup_, block_ ? block_->local : nullptr};
        for (const Parameters &set : all) {
            if (!set) continue;
            for (const ParameterSet::Value &value : set->values)
                if (auto refused = co_await reset_one(*value.parameter)) co_return refused;
        }
    } else if (facts.name != "standard_conforming_strings") {
        const TrackedParameter *parameter = find_tracked(facts.name);
        if (parameter == nullptr) co_return not_tracked(facts.name);
        if (auto refused = co_await reset_one(*parameter)) co_return refused;
    }
    answer_tag(begins_with_word(facts.text, "set") ? "SET" : "RESET");
    co_return std::nullopt;
}

// Back to what the client asked for when it connected, or to the login's default.
Task<std::optional<Refusal>> PgClient::reset_one(const TrackedParameter &parameter) {
    const std::string *first = value_in(startup_, &parameter);
    ParameterSets &sets = shared_.parameters();
    Parameters after = first != nullptr ? sets.with(parameters_, &parameter, *first)
                                        : sets.without(parameters_, &parameter);
    Parameters local = block_ ? sets.without(block_->local, &parameter) : nullptr;
    const std::string sql = first != nullptr ? set_config_sql(parameter, *first, false)
                                             : "RESET " + std::string(parameter.name);
    if (hold_ == Hold::single)
        co_return make_refusal(Code::R25, "RESET between the statements of an implicit transaction",
                               "Send a Sync before it, or begin a transaction.");
    if (hold_ == Hold::pinned) {
        exchange_->feed_local(out_, *this);
        if (auto refused = co_await ask_backend(sql)) co_return refused;
    } else if (in_block()) {
        block_->prologue.push_back(sql);
        ++block_->revision;
    }
    use_parameters(std::move(after), std::move(local));
    tell_changes();
    co_return std::nullopt;
}

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

}  // namespace interlock
