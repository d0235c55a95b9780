// Bind, Describe, Execute, Close, Flush, Sync: the rounds of the extended protocol.
//
// Messages go on to the backend in the client's order; Parse is answered at once and reaches a
// backend with the Bind, Describe or Sync that needs it. What the router carries out itself is
// answered in line. An error, ours or the backend's, makes the rest up to the next Sync be skipped.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

namespace {

using sql::Action;
using Kind = Owed::Kind;
using To = Owed::To;

Refusal malformed() {
    return postgres_error("08P01", "invalid message format");
}

Refusal no_such_portal(std::string_view name) {
    return postgres_error("34000", "portal \"" + std::string(name) + "\" does not exist");
}

// Statements that name no table: any shard can answer for them.
const sql::Facts nothing_particular;

}  // namespace

PgClient::Extended &PgClient::extended() {
    if (!extended_) extended_ = std::make_unique<Extended>();
    return *extended_;
}

std::uint32_t PgClient::note(Note note) {
    if (exchange_->idle()) notes_.clear();
    notes_.push_back(std::move(note));
    return static_cast<std::uint32_t>(notes_.size());
}

// Whether the router carries the statement out, in the state the session is in now.
bool PgClient::carried_out_here(const sql::Facts &facts) const {
    switch (facts.action) {
    case Action::query:
    case Action::copy_out:
    case Action::declare_cursor:
    case Action::cursor:
    case Action::show: return false;
    case Action::empty: return hold_ == Hold::none;
    // Where a transaction is under way on a backend, these belong in line with its statements.
    case Action::rollback: return hold_ != Hold::single;
    case Action::begin:
    case Action::commit:
        return facts.chain || transaction_ == Transaction::failed ||
               (hold_ != Hold::pinned && hold_ != Hold::single);
    case Action::savepoint:
    case Action::release:
    case Action::rollback_to: return hold_ != Hold::pinned;
    default: return true;
    }
}

// The rest of the round is skipped; what was done in it on the backend is rolled back at its end.
void PgClient::fail_round(const Refusal &refusal) {
    refused_.reset();
    resend_->possible = false;
    Refusal told = refusal;
    const bool retry = told.code == Code::R30 || told.code == Code::R33 || told.code == Code::R34;
    if (in_block() && transaction_ == Transaction::open) {
        transaction_ = Transaction::failed;
        if (retry) told.hint = "Send ROLLBACK, then run the transaction again.";
    }
    pg_reply::error(exchange_->local(), told);
    exchange_->local_done();
    skipping_ = true;
    round_refusal_ = refusal.code;
}

PgClient::Portal *PgClient::find_portal(std::string_view name) {
    if (!extended_) return nullptr;
    for (Portal &portal : extended_->portals)
        if (portal.name == name) return &portal;
    return nullptr;
}

void PgClient::remember_portal(std::string_view name, PreparedPointer prepared, bool local) {
    if (Portal *portal = find_portal(name)) {
        portal->prepared = std::move(prepared);
        portal->local = local;
        portal->scatter.reset();
    } else {
        extended().portals.push_back({std::string(name), std::move(prepared), local, nullptr});
    }
}

Task<void> PgClient::bind(std::string_view body) {
    wire::FieldReader fields(body);
    const std::string_view portal_name = fields.string();
    const std::string_view statement_name = fields.string();
    const std::string_view rest = fields.rest();
    const PreparedPointer prepared = find_prepared(statement_name);
    if (!fields.ok()) co_return fail_round(malformed());
    if (!prepared) co_return fail_round(no_such_statement(statement_name));
    const wire::FieldReader values = fields;
    std::optional<Target> target;
    bool local = false;
    for (bool again = true; std::exchange(again, false);) {
        if (auto refused = refresh(*prepared)) co_return fail_round(*refused);
        const sql::Facts &facts = *prepared->facts;
        local = carried_out_here(facts);
        if (extended_->portals.size() >= worker_.settings().pg_max_prepared)
            co_return fail_round(
                postgres_error("54000", "too many open portals; the limit is pg.max_prepared"));
        if (!portal_name.empty() && find_portal(portal_name) != nullptr)
            co_return fail_round(postgres_error("42P03", "cursor \"" + std::string(portal_name) +
                                                             "\" already exists"));
        if (facts.scatter) {
            if (auto refused = bind_scatter(portal_name, prepared, rest))
                co_return fail_round(*refused);
            co_return;
        }
        static thread_local std::vector<BoundParameter> parameters;
        fields = values;
        if (!read_parameters(fields, prepared->statement->types, parameters))
            co_return fail_round(malformed());
        if (local) break;
        if (transaction_ == Transaction::failed && facts.action != Action::rollback_to)
            co_return fail_round(*failed_refusal());
        const auto planned = plan(
            facts,
            Values{prepared->statement->text, prepared->statement->literals, parameters, utf8_},
            *routes_in_use()->table);
        if (!planned) co_return fail_round(planned.error());
        target = *planned;
        if (facts.action == Action::cursor && hold_ != Hold::pinned)
            co_return fail_round(
                postgres_error("34000", "cursor \"" + facts.name + "\" does not exist"));
        if (!target || !target->held || hold_ == Hold::pinned || hold_ == Hold::single) break;
        if (hold_ == Hold::any) co_await give_up_any();
        if (skipping_) co_return;
        if (auto refused = co_await hold_back(again)) co_return fail_round(*refused);
    }
    if (!local) {
        const sql::Facts &facts = *prepared->facts;
        const bool settled = buckets_known(facts) && !(target && target->held);
        if (must_not_run_here(facts, target, settled)) co_return fail_round_for_move();
        if (auto refused = co_await ensure(facts, target, settled)) co_return fail_round(*refused);
        if (skipping_) co_return;
        resend_->bound = true;
        prepare_on_backend(prepared);
        if (!result_agrees(*prepared)) {
            if (auto refused = co_await check_result(prepared)) co_return fail_round(*refused);
            if (skipping_) co_return;
        }
        wire::FrameWriter message(lease_->out(), 'B');
        message.string(portal_name);
        if (prepared->named)
            message.string(StatementName(prepared->id).view());
        else
            message.string("");
        message.bytes(rest);
    }
    remember_portal(portal_name, prepared, local);
    if (local) {
        pg_reply::plain(exchange_->local(), '2');
        exchange_->local_done();
    } else {
        exchange_->expect(Kind::bind);
    }
}

bool PgClient::read_parameters(wire::FieldReader &fields, const std::vector<std::uint32_t> &types,
                               std::vector<BoundParameter> &out) {
    out.clear();
    const std::uint16_t format_count = fields.int16();
    const std::string_view formats = fields.bytes(std::size_t{2} * format_count);
    const std::uint16_t count = fields.int16();
    if (!fields.ok()) return false;
    for (unsigned i = 0; i < count; ++i) {
        BoundParameter parameter;
        const std::uint32_t length = fields.int32();
        if (length != 0xFFFFFFFFU) parameter.bytes = fields.bytes(length);
        if (!fields.ok()) return false;
        const unsigned format = format_count == 1 ? 0 : i;
        parameter.binary =
            format < format_count && wire::load16(formats.data() + std::size_t{2} * format) == 1;
        if (i < types.size()) parameter.type = types[i];
        out.push_back(parameter);
    }
    const std::uint16_t results = fields.int16();
    (void)fields.bytes(std::size_t{2} * results);
    return fields.ok() && fields.at_end();
}

Task<void> PgClient::describe(std::string_view body) {
    wire::FieldReader fields(body);
    const auto what = static_cast<char>(fields.int8());
    const std::string_view name = fields.string();
    if (!fields.ok() || !fields.at_end() || (what != 'S' && what != 'P'))
        co_return fail_round(malformed());
    if (what == 'P') {
        const Portal *portal = find_portal(name);
        if (portal != nullptr && portal->scatter)
            co_return co_await describe_scatter(portal->prepared, portal->scatter);
        if (portal != nullptr && portal->local) {
            describe_local(*portal->prepared->facts);
            co_return;
        }
        // One that DECLARE has made is known to the transaction's backend alone.
        if (!lease_ || (portal == nullptr && hold_ != Hold::pinned))
            co_return fail_round(no_such_portal(name));
        wire::FrameWriter(lease_->out(), 'D').bytes("P").string(name);
        exchange_->expect(Kind::describe_portal, To::client,
                          portal != nullptr ? note_columns(portal->prepared) : 0);
        co_return;
    }
    const PreparedPointer prepared = find_prepared(name);
    if (!prepared) co_return fail_round(no_such_statement(name));
    if (auto refused = refresh(*prepared)) co_return fail_round(*refused);
    if (carried_out_here(*prepared->facts)) {
        wire::FrameWriter(exchange_->local(), 't').int16(0);
        describe_local(*prepared->facts);
        co_return;
    }
    if (transaction_ == Transaction::failed && !prepared->facts->transaction_control())
        co_return fail_round(*failed_refusal());
    if (auto refused = co_await ensure(nothing_particular, std::nullopt, true))
        co_return fail_round(*refused);
    if (skipping_) co_return;
    if (auto refused = check_names(*prepared->facts)) co_return fail_round(*refused);
    prepare_on_backend(prepared);
    if (!result_agrees(*prepared)) {
        if (auto refused = co_await check_result(prepared)) co_return fail_round(*refused);
        if (skipping_) co_return;
    }
    append_statement_message('D', 'S', *prepared);
    exchange_->expect(Kind::describe_statement, To::client, note_columns(prepared));
    co_return;
}

void PgClient::describe_local(const sql::Facts &facts) {
    if (facts.action == Action::explain_route)
        pg_reply::text_column(exchange_->local(), "ROUTE");
    else
        pg_reply::plain(exchange_->local(), 'n');
    exchange_->local_done();
}

Task<void> PgClient::execute(std::string_view body) {
    wire::FieldReader fields(body);
    const std::string_view name = fields.string();
    const std::uint32_t most = fields.int32();
    if (!fields.ok() || !fields.at_end()) co_return fail_round(malformed());
    Portal *portal = find_portal(name);
    if (portal == nullptr) {
        if (hold_ != Hold::pinned) co_return fail_round(no_such_portal(name));
        resend_->bound = true;
        wire::FrameWriter(lease_->out(), 'E').string(name).int32(most);
        exchange_->expect(Kind::execute);
        co_return;
    }
    // What the router carries out itself is not undone.
    if ((portal->scatter || portal->local) && resend_->bound) cannot_resend();
    if (portal->scatter)
        co_return co_await execute_scatter(portal->prepared, portal->scatter, most);
    const std::shared_ptr<const sql::Facts> facts = portal->prepared->facts;
    if (portal->local) {
        if (facts->action == Action::empty) {
            pg_reply::plain(exchange_->local(), 'I');
            exchange_->local_done();
        } else if (facts->action == Action::explain_route) {
            explain_route(*facts, true);
        } else {
            auto refused = co_await control_in_round(*facts);
            if (refused) fail_round(*refused);
        }
        co_return;
    }
    if (!lease_) {
        if (auto failed = failed_refusal()) co_return fail_round(*failed);
        co_return fail_round(no_such_portal(name));
    }
    raise_effect(*facts);
    resend_->bound = true;
    wire::FrameWriter(lease_->out(), 'E').string(name).int32(most);
    // What changes the transaction is noted when the backend has done it.
    const bool noted = facts->transaction_control();
    exchange_->expect(Kind::execute, To::client,
                      noted ? note(Note{.kind = Note::Kind::execute, .facts = facts}) : 0);
    // A BEGIN among the statements of an implicit transaction makes a block of it: what follows has
    // to be judged as part of that.
    if (facts->action == Action::begin)
        if (auto lost = co_await settle_round()) fail_round(*lost);
}

Task<std::optional<Refusal>> PgClient::settle_round() {
    if (!lease_ || !exchange_->waits_for_backend()) {
        exchange_->feed_local(out_, *this);
        co_return std::nullopt;
    }
    wire::FrameWriter(lease_->out(), 'H').bytes({});
    co_return co_await settle();
}

// The router's own statements in the middle of a round: what the backend still owes is waited for
// first, since they look at, and change, the state it leaves.
Task<std::optional<Refusal>> PgClient::control_in_round(const sql::Facts &facts) {
    if (auto lost = co_await settle_round()) co_return lost;
    if (skipping_) co_return std::nullopt;
    co_return co_await control(facts);
}

void PgClient::close(std::string_view body) {
    wire::FieldReader fields(body);
    const auto what = static_cast<char>(fields.int8());
    const std::string_view name = fields.string();
    if (!fields.ok() || !fields.at_end() || (what != 'S' && what != 'P')) {
        fail_round(malformed());
        return;
    }
    if (what == 'S') {
        keep_statement(name);
        std::uint32_t mark = 0;
        if (extended_ && name.empty()) {
            extended_->unnamed.reset();
        } else if (const PreparedPointer prepared = find_prepared(name)) {
            mark = note(
                Note{.kind = Note::Kind::parse, .name = std::string(name), .prepared = prepared});
            extended_->named.erase(std::string(name));
        }
        pg_reply::plain(exchange_->local(), '3');
        exchange_->local_done(mark);
        return;
    }
    Portal *portal = find_portal(name);
    const bool local = portal != nullptr ? portal->local || !lease_ : hold_ != Hold::pinned;
    if (portal != nullptr)
        extended_->portals.erase(extended_->portals.begin() + (portal - extended_->portals.data()));
    if (local) {
        pg_reply::plain(exchange_->local(), '3');
        exchange_->local_done();
    } else {
        wire::FrameWriter(lease_->out(), 'C').bytes("P").string(name);
        exchange_->expect(Kind::close);
    }
}

Task<void> PgClient::flush_request() {
    for (;;) {
        if (!skipping_) {
            co_await check_parsed();
            if (auto lost = co_await settle_round()) fail_round(*lost);
        }
        // Of what was refused before it was sent, the answers that come before it are still owed.
        if (refused_)
            if (auto lost = co_await settle_round()) fail_round(*lost);
        if (refused_ && too_much_to_keep()) cannot_resend();
        if (!refused_) break;
        if (auto told = co_await make_way(false)) {
            fail_round(*told);
            break;
        }
        co_await replay_round();
    }
    exchange_->feed_local(out_, *this);
    flush_wanted_ = true;
    if (resend_->bound) cannot_resend();
}

Task<void> PgClient::sync() {
    park_scatter();
    for (;;) {
        co_await finish_round();
        if (!refused_) break;
        if (auto told = co_await make_way(true)) {
            fail_round(*told);
            break;
        }
        co_await replay_round();
    }
    exchange_->feed_local(out_, *this);
    end_round();
    answer_ready();
}

// Has the backend end the round. Refused for its routes, the backend is left as it is.
Task<void> PgClient::finish_round() {
    if (!skipping_) co_await check_parsed();
    if (lease_) {
        // What the refused round has done is undone, unless the backend has failed by itself.
        const bool undo = round_refusal_ && hold_ == Hold::single && !exchange_->server_skips();
        if (undo) append_step("ROLLBACK");
        wire::FrameWriter(lease_->out(), 'S');
        exchange_->expect(Kind::sync, To::client);
        if (hold_ == Hold::any && in_block()) append_query("ROLLBACK", To::nobody);
        may_read_ahead_ = true;
        if (auto lost = co_await settle()) fail_round(*lost);
        if (refused_) co_return;
        if (lease_) (void)co_await after_ready();
        if (round_refusal_ && hold_ == Hold::pinned && in_block()) {
            const Refusal refusal = make_refusal(*round_refusal_, {});
            co_await fail_block(&refusal);
        }
    }
}

// A Query while messages wait for their Sync: the round ends here, without an answer of its own.
Task<void> PgClient::end_round_early() {
    cannot_resend();
    if (!skipping_) co_await check_parsed();
    if (lease_ && hold_ != Hold::pinned) {
        wire::FrameWriter(lease_->out(), 'S');
        exchange_->expect(Kind::sync, To::nobody);
        if (auto lost = co_await settle()) fail_round(*lost);
        if (lease_) (void)co_await after_ready();
    } else if (auto lost = co_await settle_round()) {
        fail_round(*lost);
    }
    exchange_->feed_local(out_, *this);
    end_round();
}

void PgClient::end_round() {
    skipping_ = false;
    round_open_ = false;
    round_refusal_.reset();
    notes_.clear();
    resend_->bound = false;
    end_request();
    if (!extended_) return;
    extended_->unchecked.clear();
    if (!in_block()) extended_->portals.clear();
}

}  // namespace interlock
