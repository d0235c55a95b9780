// Query messages: one statement, several, or none.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

namespace {

using sql::Action;

// Statements that go to a backend, in contrast to what the router carries out itself.
bool forwarded(const sql::Facts &facts) {
    switch (facts.action) {
    case Action::query:
    case Action::copy_out:
    case Action::declare_cursor:
    case Action::cursor:
    case Action::show: return true;
    default: return false;
    }
}

// In a message that is one transaction, what comes before something else must not be committed by
// itself. Refuses the mixtures in which it would be.
std::optional<Refusal> check_order(const std::vector<sql::StatementFacts> &list, bool in_block) {
    bool open = in_block;
    bool loose = false;  // data outside a transaction block came before
    bool after_loose = false;
    for (const sql::StatementFacts &statement : list) {
        const sql::Facts &facts = statement.facts;
        after_loose = after_loose || (loose && !forwarded(facts));
        if (facts.action == Action::begin) open = true;
        if (facts.action == Action::commit || facts.action == Action::rollback) open = facts.chain;
        if (forwarded(facts) && !open) loose = true;
    }
    if (!after_loose) return std::nullopt;
    return make_refusal(
        Code::R22,
        "data statements outside a transaction block, with other statements after them in one "
        "Query",
        "Send the other statements apart, or put the data statements between BEGIN and COMMIT.");
}

}  // namespace

Task<void> PgClient::query(std::string_view text) {
    may_read_ahead_ = false;
    if (round_open_) co_await end_round_early();
    if (extended_) {
        extended_->unnamed.reset();
        std::erase_if(extended_->portals, [](const Portal &portal) { return portal.name.empty(); });
    }
    const std::shared_ptr<const Routes> routes = routes_in_use();
    if (!routes) {
        co_await refuse(no_route_table());
        co_return answer_ready();
    }
    static thread_local sql::Shape shape;
    sql::make_shape(text, shape);
    if (auto refused = check_text(shape)) {
        co_await refuse(std::move(*refused));
        co_return answer_ready();
    }
    const std::shared_ptr<const SearchPath> path = path_;
    auto facts = shared_.find(text, shape, *path, routes->table);
    if (!facts) {
        auto analysed = sql::analyse(text, shape, {*routes->table, path->schemas});
        if (!analysed) {
            co_await refuse(refusal_here(std::move(analysed.error())));
            co_return answer_ready();
        }
        if (analysed->size() > 1) {
            (void)co_await run_many(std::string(text), std::move(*analysed), shape.literals);
            co_return answer_ready();
        }
        if (analysed->empty()) {
            pg_reply::plain(out_, 'I');
            co_return answer_ready();
        }
        facts = std::make_shared<const sql::Facts>(std::move((*analysed)[0].facts));
        shared_.keep(text, shape, *path, routes->table, facts);
    }
    (void)co_await run_one(facts, text, shape.literals);
    answer_ready();
}

// False when it failed. `literals` is used before the first wait only.
Task<bool> PgClient::run_one(const std::shared_ptr<const sql::Facts> &facts, std::string_view text,
                             std::span<const sql::Literal> literals) {
    if (facts->action == Action::empty) {
        pg_reply::plain(out_, 'I');
        co_return true;
    }
    if (facts->scatter) co_return co_await run_scatter(facts, text, literals);
    if (forwarded(*facts)) {
        const auto target =
            plan(*facts, Values{text, literals, {}, utf8_}, *routes_in_use()->table);
        if (!target) {
            co_await refuse(target.error());
            co_return false;
        }
        commands_.assign(1, facts);
        co_return co_await run_data(text, *target);
    }
    if (facts->action == Action::explain_route) {
        explain_route(*facts, false);
        exchange_->feed_local(out_, *this);
        co_return true;
    }
    auto refused = co_await control(*facts);
    exchange_->feed_local(out_, *this);
    if (refused) co_await refuse(std::move(*refused));
    co_return !refused && !std::exchange(last_failed_, false);
}

// Several statements of one message. Those for the shards go there together, as they were written:
// the text around them is blanked, so that positions in the backend's errors stay right.
Task<bool> PgClient::run_many(std::string text, std::vector<sql::StatementFacts> list,
                              std::vector<sql::Literal> literals) {
    if (auto refused = check_order(list, in_block())) {
        co_await refuse(std::move(*refused));
        co_return false;
    }
    const bool began_outside = !in_block();
    const Parameters parameters = parameters_;
    bool done = true;
    for (std::size_t i = 0; done && i < list.size();) {
        if (!forwarded(list[i].facts)) {
            if (list[i].facts.action == Action::explain_route) {
                co_await refuse(make_refusal(Code::R22, "EXPLAIN ROUTE stands alone in its Query"));
                done = false;
                break;
            }
            auto facts = std::make_shared<const sql::Facts>(std::move(list[i].facts));
            done = co_await run_one(facts, text, literals);
            ++i;
            continue;
        }
        std::size_t end = i;
        std::optional<Target> target;
        std::optional<Refusal> refused;
        commands_.clear();
        for (; end < list.size() && forwarded(list[end].facts); ++end) {
            auto facts = std::make_shared<const sql::Facts>(std::move(list[end].facts));
            if (facts->scatter) {
                refused =
                    make_refusal(Code::R22, "a statement for all shards, with others in one Query",
                                 "Send it alone: it is not part of the transaction that they are.");
                break;
            }
            auto planned = plan(*facts, Values{text, literals, {}, utf8_}, *routes_in_use()->table);
            if (!planned) {
                refused = std::move(planned.error());
            } else if (*planned && target && (*planned)->shard != target->shard) {
                refused = make_refusal(
                    in_block() ? Code::R12 : Code::R11,
                    "the statements of one Query have keys on several shards",
                    "Several statements in one Query are one transaction: send those of each shard "
                    "apart.");
            } else if (*planned) {
                target = *planned;
            }
            if (refused) break;
            commands_.push_back(std::move(facts));
        }
        if (refused) {
            co_await refuse(std::move(*refused));
            done = false;
            break;
        }
        const std::size_t from = list[i].offset;
        const std::size_t to = list[end - 1].offset + list[end - 1].length;
        std::string part = text.substr(0, to);
        // Blanks, not bytes, are what a position counts: continuation bytes go altogether.
        std::string blank;
        for (std::size_t at = 0; at < from; ++at)
            if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80)
                blank += text[at] == '\n' ? '\n' : ' ';
        part = blank + part.substr(from);
        done = co_await run_data(part, target);
        i = end;
    }
    // What was set in the same implicit transaction goes with it.
    if (!done && began_outside && !in_block() && parameters_ != parameters) {
        use_parameters(parameters);
        tell_changes();
        exchange_->feed_local(out_, *this);
    }
    co_return done;
}

// Runs `text`, whose statements' facts are in commands_.
Task<bool> PgClient::run_data(std::string_view text, std::optional<Target> target) {
    if (auto failed = failed_refusal()) {
        co_await refuse(std::move(*failed));
        co_return false;
    }
    for (const auto &facts : commands_) {
        std::optional<Refusal> refused;
        if (facts->action == Action::cursor && hold_ != Hold::pinned) {
            refused = postgres_error("34000", "cursor \"" + facts->name + "\" does not exist");
        } else {
            refused = co_await ensure(*facts, target);
        }
        if (refused) {
            co_await refuse(std::move(*refused));
            exchange_->feed_local(out_, *this);
            if (hold_ == Hold::any || hold_ == Hold::single) release();
            co_return false;
        }
    }
    command_ = 0;
    for (const auto &facts : commands_)
        raise_effect(*facts);
    append_query(text, Owed::To::client);
    if (hold_ == Hold::any && in_block()) append_query("ROLLBACK", Owed::To::nobody);
    co_return co_await finish_query();
}

Task<bool> PgClient::finish_query() {
    may_read_ahead_ = true;
    auto lost = co_await settle();
    if (lost) {
        co_await refuse(std::move(*lost));
        co_return false;
    }
    co_return !co_await after_ready();
}

}  // namespace interlock
