// Messages longer than what is kept in memory: a Bind is passed on in pieces once its shard is
// known, everything else is refused and passed over.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

namespace {

// Of a long Bind, what is looked at before it is passed on. The shard keys must be in it.
constexpr std::size_t window = 1 << 20;
constexpr std::size_t piece = 64 * 1024;
constexpr std::size_t longest_message = std::size_t{1} << 30;

Refusal too_long(std::size_t size, std::size_t most) {
    Refusal refusal = make_refusal(
        Code::R37, format("a message of %zu bytes is longer than the router keeps", size),
        "Send large values as parameters, behind the shard key's; the limit is the setting "
        "pg.max_packet.");
    refusal.detail = format("The limit is %zu bytes.", most);
    return refusal;
}

}  // namespace

Refusal statement_too_long(std::size_t size, std::size_t most) {
    Refusal refusal = make_refusal(
        Code::R37,
        format(
            "a statement of %zu bytes, not counting its literals, is longer than the router takes",
            size),
        "Send large values as parameters; the limit is the setting pg.max_statement.");
    refusal.detail = format("The limit is %zu bytes.", most);
    return refusal;
}

// Waits until `bytes` of the message have arrived.
Task<bool> PgClient::read_at_least(std::size_t bytes) {
    Loop &loop = worker_.loop();
    while (in_.size() < bytes) {
        const std::size_t before = in_.size();
        if (transport_->tls.active()) {
            if (!read_client()) co_return false;
            if (in_.size() > before) continue;
        }
        const Millis deadline =
            deadline_after(loop.now(), worker_.settings().pg_idle_transaction_timeout);
        const Fired fired = co_await Wait(loop, deadline).read(transport_->watch);
        if (fired.none() || !read_client()) co_return false;
    }
    co_return true;
}

Task<bool> PgClient::pass_over(std::size_t size) {
    while (size > 0) {
        if (!co_await read_at_least(1)) co_return false;
        const std::size_t part = std::min(size, in_.size());
        in_.consume(part);
        size -= part;
    }
    co_return true;
}

Task<bool> PgClient::take_long_message(char type, std::size_t size) {
    // PostgreSQL's own bounds: a message of up to 1 GiB where values or texts are in it.
    if (size > longest_message || std::string_view("QPBdcf").find(type) == std::string_view::npos) {
        fatal_protocol("invalid message length");
        co_return false;
    }
    if (!co_await flush()) co_return false;
    if (refused_) cannot_resend();
    if (skipping_) co_return co_await pass_over(size);
    if (type == 'B') co_return co_await take_long_bind(size);
    const Refusal refusal = too_long(size, worker_.settings().pg_max_packet);
    if (type == 'Q') {
        if (round_open_) co_await end_round_early();
        co_await refuse(refusal);
        if (!co_await flush() || !co_await pass_over(size)) co_return false;
        answer_ready();
        co_return true;
    }
    if (type == 'P') {
        if (!round_open_) begin_request();
        round_open_ = true;
        fail_round(refusal);
    }
    co_return co_await pass_over(size);
}

// Of a long Bind, as far as it lies in the window. `fields` stand behind the names.
Result<std::optional<Target>, Refusal> PgClient::plan_long_bind(Prepared &prepared,
                                                                const std::string &portal_name,
                                                                wire::FieldReader fields,
                                                                std::size_t size) {
    if (auto failed = failed_refusal()) return std::move(*failed);
    if (auto refused = refresh(prepared)) return std::move(*refused);
    // The last of the parameters may be cut off and is left out.
    std::vector<BoundParameter> parameters;
    (void)read_parameters(fields, prepared.statement->types, parameters);
    std::size_t needed = 0;
    for (const sql::KeySource &key : prepared.facts->keys)
        if (key.from == sql::KeySource::From::parameter || key.from == sql::KeySource::From::array)
            needed = std::max<std::size_t>(needed, key.index + std::size_t{1});
    if (!portal_name.empty() && find_portal(portal_name) != nullptr)
        return postgres_error("42P03", "cursor \"" + portal_name + "\" already exists");
    if (carried_out_here(*prepared.facts) || prepared.facts->scatter || parameters.size() < needed)
        return too_long(size, worker_.settings().pg_max_packet);
    return plan(*prepared.facts,
                Values{prepared.statement->text, prepared.statement->literals, parameters, utf8_},
                *routes_in_use()->table);
}

Task<bool> PgClient::take_long_bind(std::size_t size) {
    if (!round_open_) begin_request();
    round_open_ = true;
    if (!co_await read_at_least(std::min(size, window))) co_return false;
    wire::FieldReader fields(in_.view().substr(wire::frame_header));
    const std::string portal_name(fields.string());
    const std::string statement_name(fields.string());
    const std::size_t head = wire::frame_header + portal_name.size() + statement_name.size() + 2;
    const PreparedPointer prepared = find_prepared(statement_name);
    std::optional<Refusal> refused;
    std::optional<Target> target;
    cannot_resend();  // it will not be kept
    if (!fields.ok()) {
        refused = postgres_error("08P01", "invalid message format");
    } else if (!prepared) {
        refused = no_such_statement(statement_name);
    } else {
        may_read_ahead_ = false;
        for (bool again = true; !refused && std::exchange(again, false);) {
            auto planned = plan_long_bind(*prepared, portal_name, fields, size);
            if (planned)
                target = *planned;
            else
                refused = std::move(planned.error());
            if (!target || !target->held || hold_ == Hold::pinned || hold_ == Hold::single) break;
            if (hold_ == Hold::any) co_await give_up_any();
            if (skipping_) break;
            refused = co_await hold_back(again);
        }
        may_read_ahead_ = true;
    }
    if (!refused && !skipping_) {
        may_read_ahead_ = false;
        refused = co_await ensure(*prepared->facts, target,
                                  buckets_known(*prepared->facts) && !(target && target->held));
        may_read_ahead_ = true;
    }
    if (refused || skipping_) {
        if (refused) fail_round(*refused);
        co_return co_await pass_over(size);
    }
    resend_->bound = true;
    prepare_on_backend(prepared);
    if (!result_agrees(*prepared)) {
        may_read_ahead_ = false;
        refused = co_await check_result(prepared);
        may_read_ahead_ = true;
        if (refused) fail_round(*refused);
        if (skipping_) co_return co_await pass_over(size);
    }
    std::string name;
    if (prepared->named) name = StatementName(prepared->id).view();
    Buffer &out = lease_->out();
    out.append('B');
    const std::size_t length = size - 1 - statement_name.size() + name.size();
    for (int shift = 24; shift >= 0; shift -= 8)
        out.append(static_cast<char>(length >> shift));
    out.append(std::string_view(portal_name.c_str(), portal_name.size() + 1));
    out.append(std::string_view(name.c_str(), name.size() + 1));
    exchange_->expect(Owed::Kind::bind);
    remember_portal(portal_name, prepared, false);
    in_.consume(head);
    for (std::size_t left = size - head; left > 0;) {
        if (!co_await read_at_least(1)) {
            // Half a message: nothing can follow it.
            discard_backend();
            co_return false;
        }
        const std::size_t part = std::min({left, in_.size(), piece});
        if (lease_) lease_->out().append(in_.view().substr(0, part));
        in_.consume(part);
        left -= part;
        if (!lease_) continue;
        may_read_ahead_ = false;
        if (auto lost = co_await settle_until(true)) fail_round(*lost);
        may_read_ahead_ = true;
    }
    co_return true;
}

}  // namespace interlock
