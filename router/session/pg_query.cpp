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
    begin_request();
    const std::size_t size = text.size();
    while (co_await judge_and_run(text) == Ran::again) {
        may_read_ahead_ = false;
        text = in_.view().substr(wire::frame_header, size);  // more may have come behind it
    }
    end_request();
    answer_ready();
}

Task<PgClient::Ran> PgClient::judge_and_run(std::string_view text) {
    const std::shared_ptr<const Routes> routes = routes_in_use();
    if (!routes) {
        co_await refuse(no_route_table());
        co_return Ran::failed;
    }
    static thread_local sql::Shape shape;
    sql::make_shape(text, shape);
    if (auto refused = check_text(shape)) {
        co_await refuse(std::move(*refused));
        co_return Ran::failed;
    }
    const std::shared_ptr<const SearchPath> path = path_;
    auto facts = shared_.find(text, shape, *path, routes->table);
    if (!facts) {
        auto analysed = sql::analyse(text, shape, {*routes->table, path->schemas});
        if (!analysed) {
            co_await refuse(refusal_here(std::move(analysed.error())));
            co_return Ran::failed;
        }
        if (analysed->size() > 1) {
            co_await run_many(std::string(text), std::move(*analysed), shape.literals);
            co_return Ran::done;
        }
        if (analysed->empty()) {
            pg_reply::plain(out_, 'I');
            co_return Ran::done;
        }
        facts = std::make_shared<const sql::Facts>(std::move((*analysed)[0].facts));
        shared_.keep(text, shape, *path, routes->table, facts);
    }
    co_return co_await run_one(facts, text, shape.literals);
}

// `literals` is used before the first wait only.
Task<PgClient::Ran> PgClient::run_one(const std::shared_ptr<const sql::Facts> &facts,
                                      std::string_view text,
                                      std::span<const sql::Literal> literals) {
    if (facts->action == Action::empty) {
        pg_reply::plain(out_, 'I');
        co_return Ran::done;
    }
    if (facts->scatter)
        co_return co_await run_scatter(facts, text, literals) ? Ran::done : Ran::failed;
    if (forwarded(*facts)) {
        const auto target =
            plan(*facts, Values{text, literals, {}, utf8_}, *routes_in_use()->table);
        if (!target) {
            co_await refuse(target.error());
            co_return Ran::failed;
        }
        commands_.assign(1, facts);
        co_return co_await run_data(text, *target);
    }
    if (facts->action == Action::explain_route) {
        explain_route(*facts, false);
        exchange_->feed_local(out_, *this);
        co_return Ran::done;
    }
    auto refused = co_await control(*facts);
    exchange_->feed_local(out_, *this);
    if (refused) co_await refuse(std::move(*refused));
    co_return !refused && !std::exchange(last_failed_, false) ? Ran::done : Ran::failed;
}

// Several statements of one message. Those for the shards go there together, as they were written:
// the text around them is blanked, so that positions in the backend's errors stay right.
Task<void> PgClient::run_many(std::string text, std::vector<sql::StatementFacts> list,
                              std::vector<sql::Literal> literals) {
    if (auto refused = check_order(list, in_block()))
        co_return co_await refuse(std::move(*refused));
    std::shared_ptr<const Routes> found_under = routes_in_use();
    const std::shared_ptr<const SearchPath> path = path_;
    const bool began_outside = !in_block();
    const Parameters parameters = parameters_;
    bool done = true;
    for (std::size_t i = 0; done && i < list.size();) {
        if (found_under != routes_in_use()) {
            // What names mean, and where keys lead, belongs to one route table.
            found_under = routes_in_use();
            sql::Shape shape;
            sql::make_shape(text, shape);
            auto analysed = sql::analyse(text, shape, {*found_under->table, path->schemas});
            if (!analysed) {
                co_await refuse(refusal_here(std::move(analysed.error())));
                done = false;
                break;
            }
            list = std::move(*analysed);
        }
        if (!forwarded(list[i].facts)) {
            if (list[i].facts.action == Action::explain_route) {
                co_await refuse(make_refusal(Code::R22, "EXPLAIN ROUTE stands alone in its Query"));
                done = false;
                break;
            }
            auto facts = std::make_shared<const sql::Facts>(list[i].facts);
            done = co_await run_one(facts, text, literals) == Ran::done;
            ++i;
            continue;
        }
        std::size_t end = i;
        std::optional<Target> target;
        std::optional<Refusal> refused;
        commands_.clear();
        for (; end < list.size() && forwarded(list[end].facts); ++end) {
            auto facts = std::make_shared<const sql::Facts>(list[end].facts);
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
                const bool held = target && target->held;
                target = *planned;
                target->held = target->held || held;
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
        const Ran ran = co_await run_data(part, target);
        if (ran == Ran::again) continue;
        done = ran == Ran::done;
        i = end;
    }
    // What was set in the same implicit transaction goes with it.
    if (!done && began_outside && !in_block() && parameters_ != parameters) {
        use_parameters(parameters);
        tell_changes();
        exchange_->feed_local(out_, *this);
    }
}

// Runs `text`, whose statements' facts are in commands_.
Task<PgClient::Ran> PgClient::run_data(std::string_view text, std::optional<Target> target) {
    if (auto failed = failed_refusal()) {
        co_await refuse(std::move(*failed));
        co_return Ran::failed;
    }
    const bool held = target && target->held;
    if (held && hold_ == Hold::none) {
        bool again = false;
        if (auto refused = co_await hold_back(again)) {
            co_await refuse(std::move(*refused));
            co_return Ran::failed;
        }
        if (again) co_return Ran::again;
    }
    exchange_->feed_local(out_, *this);
    begin_resend();
    const bool settled =
        !held && std::all_of(commands_.begin(), commands_.end(),
                             [](const auto &facts) { return buckets_known(*facts); });
    for (const auto &facts : commands_) {
        std::optional<Refusal> refused;
        if (facts->action == Action::cursor && hold_ != Hold::pinned) {
            refused = postgres_error("34000", "cursor \"" + facts->name + "\" does not exist");
        } else {
            refused = co_await ensure(*facts, target, settled);
        }
        if (refused) {
            co_await refuse(std::move(*refused));
            exchange_->feed_local(out_, *this);
            if (hold_ == Hold::any || hold_ == Hold::single) release();
            resend_->possible = false;
            co_return Ran::failed;
        }
    }
    command_ = 0;
    for (const auto &facts : commands_)
        raise_effect(*facts);
    append_query(text, Owed::To::client);
    if (hold_ == Hold::any && in_block()) append_query("ROLLBACK", Owed::To::nobody);
    co_return co_await finish_query();
}

Task<PgClient::Ran> PgClient::finish_query() {
    may_read_ahead_ = true;
    auto lost = co_await settle();
    if (lost) {
        refused_.reset();
        resend_->possible = false;
        co_await refuse(std::move(*lost));
        co_return Ran::failed;
    }
    if (refused_) {
        auto refused = co_await make_way(true);
        if (!refused) co_return Ran::again;
        resend_->possible = false;
        co_await refuse(std::move(*refused));
        co_return Ran::failed;
    }
    resend_->possible = false;
    co_return co_await after_ready() ? Ran::failed : Ran::done;
}

}  // namespace interlock
