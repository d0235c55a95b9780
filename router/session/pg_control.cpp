// What the router answers itself: transaction control, DEALLOCATE, EXPLAIN ROUTE. Answers are put
// in the exchange's line; a refusal is for the caller to tell.
#include "base/log.h"
#include "plan/describe.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

using sql::Action;

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
    const char *tag = begins_with_word(facts.text, "start") ? "START TRANSACTION" : "BEGIN";
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
    block_->routes = request_routes_ ? request_routes_ : worker_.routes();
    block_->begin = std::move(begin);
    block_->parameters = parameters_;
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
    }
    if (transaction_ == Transaction::failed || !commit) {
        // Whatever has become of the backend: what it did is not committed.
        co_await roll_back_now();
        // A client that has not been told of the backend's end must not take ROLLBACK, which many
        // drivers do not look at, for the end of its COMMIT.
        auto lost = commit ? take_lost() : std::nullopt;
        leave_block(false);
        if (lost) {
            lost->hint = "Run the transaction again.";
            co_return lost;
        }
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
        leave_block(true);
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
    if (!request_routes_) request_routes_ = worker_.routes();
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
    ++block_->revision;
    switch (facts.action) {
    case Action::savepoint:
        savepoints.push_back({facts.name, parameters_, block_->local, block_->prologue.size()});
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
        use_parameters(found->parameters, found->local);
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
    case Action::savepoint:
        savepoints.push_back({facts.name, parameters_, block_->local, 0});
        break;
    case Action::release:
        if (found != savepoints.rend()) savepoints.erase(found.base() - 1, savepoints.end());
        break;
    case Action::rollback_to:
        if (found == savepoints.rend()) break;
        use_parameters(found->parameters, found->local);
        savepoints.erase(found.base(), savepoints.end());
        transaction_ = Transaction::open;
        break;
    default: break;
    }
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
    const std::string *setting = session_value("interlock.scatter");
    const bool scatter = setting != nullptr && *setting == "on";
    for (const std::string &line : describe_route(facts.text, names, {}, utf8_, scatter)) {
        pg_reply::text_row(exchange_->local(), line);
    }
    exchange_->local_done();
    answer_tag("EXPLAIN");
}

}  // namespace interlock
