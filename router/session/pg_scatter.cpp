// Statements that all shards answer together: what must hold before one is sent, its rows to the
// client, and its portals in the extended protocol.
//
// A scatter holds a backend of each shard, so it lives no longer than the message it answers: what
// a portal with a row limit has left is read into memory, and one that was only described is begun
// again if the client pauses, or wants a backend for something else, before it executes it.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"
#include "session/scatter_budget.h"

#include <algorithm>
#include <limits>

namespace interlock {

namespace {

// Rows are collected up to here; then the shards are not read until the client has taken some.
constexpr std::size_t out_limit = 64 * 1024;

Refusal cancelled_by_client() {
    return postgres_error("57014", "canceling statement due to user request");
}

// Whose time was up decides what the client is told.
Refusal as_client_sees(Refusal refusal, SessionBudget::Bound timeout_of) {
    if (refusal.code != Code::shard_timeout) return refusal;
    switch (timeout_of) {
    case SessionBudget::Bound::page: return refusal;
    case SessionBudget::Bound::session: {
        Refusal mine = postgres_error("57014", "canceling statement due to statement timeout");
        mine.detail = std::move(refusal.message);
        return mine;
    }
    case SessionBudget::Bound::statement: {
        Refusal mine = make_refusal(
            Code::R36, "the statement ran into the router's statement timeout and was cancelled",
            "The limit is the setting pool.statement_timeout.");
        mine.detail = std::move(refusal.message);
        return mine;
    }
    }
    return refusal;
}

// The formats of the result's columns, behind the parameters in a Bind that is known to be whole.
std::vector<std::uint16_t> result_formats(std::string_view bind) {
    wire::FieldReader fields(bind);
    (void)fields.bytes(std::size_t{2} * fields.int16());
    const std::uint16_t count = fields.int16();
    for (unsigned i = 0; i < count && fields.ok(); ++i)
        if (const std::uint32_t length = fields.int32(); length != 0xFFFFFFFFU)
            (void)fields.bytes(length);
    std::vector<std::uint16_t> formats(fields.int16());
    for (std::uint16_t &format : formats)
        format = fields.int16();
    return formats;
}

std::string select_tag(std::uint64_t rows) {
    return "SELECT " + std::to_string(rows);
}

}  // namespace

/// A portal over such a statement.
struct PgClient::ScatterPortal {
    ScatterPortal(std::size_t &buffered) : buffered_(buffered) {}
    ~ScatterPortal() { buffered_ -= rest.size(); }
    ScatterPortal(const ScatterPortal &) = delete;
    ScatterPortal &operator=(const ScatterPortal &) = delete;

    std::string storage;     ///< what the parameters' bytes lie in
    ScatterRequest request;  ///< without what depends on the moment it runs
    std::unique_ptr<MergedRows> running;
    SessionBudget::Bound timeout_of = SessionBudget::Bound::page;
    std::uint32_t path = 0;  ///< search path its names were looked up along
    std::string columns;
    bool described = false;  ///< `columns` are known

    bool fetched = false;            ///< nothing more comes from the shards
    Buffer rest;                     ///< rows that were not asked for yet, as messages
    std::optional<Refusal> failure;  ///< behind them
    std::optional<Refusal> notice;   ///< at the end

    /// False: there is no room for it.
    [[nodiscard]] bool keep(std::string_view row, const Settings &settings) {
        if (rest.size() + row.size() > settings.max_result_bytes ||
            buffered_ + row.size() > settings.max_buffered_bytes)
            return false;
        const std::size_t before = rest.size();
        wire::FrameWriter(rest, 'D').bytes(row);
        buffered_ += rest.size() - before;
        return true;
    }
    /// Moves one row on; false when there is none.
    [[nodiscard]] bool move_row(Buffer &out) {
        if (rest.empty()) return false;
        const std::size_t size = std::size_t{wire::load32(rest.data() + 1)} + 1;
        out.append(rest.view().substr(0, size));
        rest.consume(size);
        buffered_ -= size;
        return true;
    }

  private:
    std::size_t &buffered_;  ///< of all clients
};

const std::string *PgClient::session_value(std::string_view name) const {
    return in_force(*find_tracked(name));
}

Refusal PgClient::refusal_here(Refusal refusal) const {
    return told_session(std::move(refusal),
                        [this](std::string_view name) { return session_value(name); });
}

bool PgClient::may_scatter(const sql::Facts &facts) const {
    const auto value = [this](std::string_view name) { return session_value(name); };
    return scatter_allowed(*facts.scatter, value);
}

// Why the statement may not run now, if so; else nothing of a backend is held any more.
Task<std::optional<Refusal>> PgClient::before_scatter(const sql::Facts &facts) {
    if (auto failed = failed_refusal()) co_return failed;
    if (!may_scatter(facts)) co_return *facts.scatter->unless_allowed;
    if (hold_ == Hold::pinned)
        co_return make_refusal(
            Code::scatter_unsupported,
            format("the transaction is on shard %s, this statement would go to all shards",
                   routes_in_use()->table->shards[shard_].name.c_str()),
            "Send it before the transaction's first statement with a shard key, or outside of it.");
    if (hold_ == Hold::single)
        co_return make_refusal(
            Code::scatter_unsupported,
            "the statements sent together are on one shard, this one would go to all shards",
            "Statements without a Sync between them are one transaction: send a Sync before it.");
    if (in_block() && !block_reads_committed())
        co_return make_refusal(
            Code::scatter_unsupported,
            "the transaction has one snapshot for all its statements, which the shards cannot "
            "share",
            "Use READ COMMITTED, or send the statement outside the transaction.");
    if (worker_.stopping() && !in_block())
        co_return make_refusal(Code::R30, "the router is shutting down",
                               "Nothing was done; connect to another router, or try again.");
    park_scatter();
    if (hold_ == Hold::any) co_await give_up_any();
    exchange_->feed_local(out_, *this);
    co_return std::nullopt;
}

bool PgClient::block_reads_committed() const {
    static const TrackedParameter *const isolation = find_tracked("default_transaction_isolation");
    std::optional<bool> named = names_read_committed(block_->begin);
    for (const std::string &options : block_->characteristics)
        if (const auto later = names_read_committed(options)) named = later;
    if (named) return *named;
    const std::string *value = value_in(block_->parameters, isolation);
    return names_read_committed(value != nullptr ? *value : defaults_->value(isolation->name))
        .value_or(true);
}

// What opens the transaction around it on each shard: as for statements that any shard can answer,
// and thrown away like theirs.
std::string PgClient::scatter_prologue() const {
    if (!in_block()) return {};
    std::string sql = block_->begin + ";";
    for (const auto *list : {&block_->characteristics, &block_->prologue})
        for (const std::string &statement : *list)
            if (!statement.empty()) sql += statement + ";";
    return sql + "SET TRANSACTION READ ONLY";
}

// Nothing is held of a scatter that was described and not executed; it can begin again.
void PgClient::park_scatter() {
    if (!scatter_open_) return;
    scatter_open_ = false;
    for (Portal &portal : extended_->portals)
        if (portal.scatter) portal.scatter->running.reset();
}

// Sends the statement to the shards, up to their descriptions of its columns.
Task<std::optional<Refusal>> PgClient::open_scatter(ScatterRequest request,
                                                    std::unique_ptr<MergedRows> &scatter,
                                                    SessionBudget::Bound &timeout_of) {
    const auto value = [this](std::string_view name) { return session_value(name); };
    const SessionBudget budget = session_budget(*request.facts->scatter, worker_.settings(), value);
    timeout_of = budget.timeout_of;
    request.budget = budget.budget;
    request.login = backend_login_;
    request.search_path = path_->schemas;
    request.defaults = defaults_;
    request.prologue = scatter_prologue();
    request.parameters_in_force = in_block() ? block_->parameters : parameters_;
    begin_listening();
    scatter = merged_rows(worker_, std::move(request), &gave_up_);
    auto refused = co_await scatter->open();
    waiting_ = false;
    if (!refused) co_return std::nullopt;
    scatter.reset();
    if (gave_up_.is_set()) co_return cancelled_by_client();
    co_return as_client_sees(std::move(*refused), timeout_of);
}

// While the shards are waited for, so are the client's end and its cancel request.
void PgClient::begin_listening() {
    gave_up_.reset();
    waiting_ = true;
    scattering_ = true;
    may_read_ahead_ = true;
    transport_->watch.arm_stray();
}

// The client sends ahead, or ends, while the shards are waited for.
void PgClient::stirred_while_scattering() {
    if (in_.size() >= out_limit) return;
    if (read_client()) {
        transport_->watch.arm_stray();
        return;
    }
    gone_ = true;
    gave_up_.set();
}

// Rows go to the client, `most` of them (0: all). Returns whether the end was reached.
Task<bool> PgClient::pass_rows(MergedRows &scatter, std::uint64_t most, std::uint64_t &passed,
                               std::optional<Refusal> &refused) {
    std::string_view row;
    waiting_ = true;
    while (most == 0 || passed < most) {
        const MergedRows::Row next = co_await scatter.next(row);
        if (next == MergedRows::Row::row) {
            wire::FrameWriter(out_, 'D').bytes(row);
            ++passed;
            if (out_.size() < out_limit || co_await make_room()) continue;
            refused = cancelled_by_client();
        } else if (next == MergedRows::Row::failed) {
            refused = gave_up_.is_set() ? cancelled_by_client() : scatter.take_refusal();
        }
        waiting_ = false;
        co_return next == MergedRows::Row::end;
    }
    waiting_ = false;
    co_return false;
}

// Waits until the client has taken some of its answer. False: it has left, or has cancelled.
Task<bool> PgClient::make_room() {
    Loop &loop = worker_.loop();
    for (;;) {
        if (!try_write()) gone_ = true;
        if (gone_ || gave_up_.is_set()) co_return false;
        if (out_.size() < out_limit) co_return true;
        const Millis deadline = deadline_after(loop.now(), worker_.settings().pg_write_timeout);
        const Fired fired = co_await Wait(loop, deadline).write(transport_->watch).event(gave_up_);
        if (fired.none()) {
            log_warning("a client did not take its answer in time; its connection is closed");
            gone_ = true;
        }
    }
}

void PgClient::answer_scatter_end(const std::optional<Refusal> &notice, std::uint64_t rows) {
    const std::string *least = session_value("client_min_messages");
    const bool wanted = least == nullptr || (*least != "warning" && *least != "error");
    if (notice && wanted) pg_reply::notice(out_, *notice);
    pg_reply::command_complete(out_, select_tag(rows));
}

// Of a Query. `text` and `literals` are used before the first wait only.
Task<bool> PgClient::run_scatter(const std::shared_ptr<const sql::Facts> &facts,
                                 std::string_view text, std::span<const sql::Literal> literals) {
    ScatterRequest request;
    request.facts = facts;
    request.routes = routes_in_use();  // the facts were found under: others may come while it waits
    request.text = text;
    request.literals.assign(literals.begin(), literals.end());
    auto refused = co_await before_scatter(*facts);
    std::unique_ptr<MergedRows> scatter;
    auto timeout_of = SessionBudget::Bound::page;
    if (!refused) refused = co_await open_scatter(std::move(request), scatter, timeout_of);
    if (!refused) {
        wire::FrameWriter(out_, 'T').bytes(scatter->columns());
        std::uint64_t rows = 0;
        if (co_await pass_rows(*scatter, 0, rows, refused))
            answer_scatter_end(scatter->notice(), rows);
    }
    scatter.reset();
    scattering_ = false;
    if (refused) co_await refuse(as_client_sees(std::move(*refused), timeout_of));
    co_return !refused;
}

std::optional<Refusal> PgClient::bind_scatter(std::string_view portal_name,
                                              const PreparedPointer &prepared,
                                              std::string_view values) {
    if (auto failed = failed_refusal()) return failed;
    if (!may_scatter(*prepared->facts)) return *prepared->facts->scatter->unless_allowed;
    auto portal = std::make_shared<ScatterPortal>(worker_.buffered_bytes);
    portal->storage = values;
    ScatterRequest &request = portal->request;
    request.facts = prepared->facts;
    request.routes = routes_in_use();
    portal->path = path_->id;
    request.text = prepared->statement->text;
    request.types = prepared->statement->types;
    request.literals = prepared->statement->literals;
    wire::FieldReader fields(portal->storage);
    if (!read_parameters(fields, request.types, request.parameters))
        return postgres_error("08P01", "invalid message format");
    request.formats = result_formats(portal->storage);
    remember_portal(portal_name, prepared, true);
    find_portal(portal_name)->scatter = std::move(portal);
    pg_reply::plain(exchange_->local(), '2');
    exchange_->local_done();
    return std::nullopt;
}

// Has the portal's statement running, or what is left of it in memory. False: the round has failed.
Task<bool> PgClient::start_portal(const PreparedPointer &prepared, ScatterPortal &portal) {
    if (portal.running || portal.fetched) co_return true;
    auto refused = co_await before_scatter(*portal.request.facts);
    // A server's portal keeps the tables it was bound to; the text sent now would be read anew.
    if (!refused && portal.path != path_->id)
        refused = postgres_error("0A000", "the search_path has changed since the portal was bound");
    if (!refused && skipping_) co_return false;
    if (!refused)
        refused = co_await open_scatter(portal.request, portal.running, portal.timeout_of);
    // As on a server of its own: the rows are those the client was told of, or there are none.
    const auto differs = [&](std::uint64_t told) {
        return told != 0 && told != result_fingerprint(portal.running->columns());
    };
    if (!refused && ((prepared->named && differs(prepared->result)) ||
                     (portal.described && differs(result_fingerprint(portal.columns)))))
        refused = postgres_error("0A000", "cached plan must not change result type");
    scattering_ = false;
    if (refused) {
        portal.running.reset();
        fail_round(*refused);
        exchange_->feed_local(out_, *this);
        co_return false;
    }
    prepared->checked = true;  // by all shards
    portal.columns = portal.running->columns();
    portal.described = true;
    scatter_open_ = true;
    co_return true;
}

Task<void> PgClient::describe_scatter(PreparedPointer prepared,
                                      std::shared_ptr<ScatterPortal> portal) {
    if (auto failed = failed_refusal()) co_return fail_round(*failed);
    if (!portal->described && !co_await start_portal(prepared, *portal)) co_return;
    wire::FrameWriter(exchange_->local(), 'T').bytes(portal->columns);
    exchange_->local_done();
}

Task<void> PgClient::execute_scatter(PreparedPointer prepared,
                                     std::shared_ptr<ScatterPortal> portal, std::uint32_t most) {
    if (auto failed = failed_refusal()) co_return fail_round(*failed);
    if (!co_await start_portal(prepared, *portal)) co_return;
    exchange_->feed_local(out_, *this);
    // As PostgreSQL reads the number: none, and less than none, are all of them.
    const std::uint64_t limit =
        most <= std::uint32_t{std::numeric_limits<std::int32_t>::max()} ? most : 0;
    std::uint64_t passed = 0;
    std::optional<Refusal> refused;
    bool ended = false;
    if (portal->running) {
        begin_listening();
        ended = co_await pass_rows(*portal->running, limit, passed, refused);
        if (ended)
            portal->notice = portal->running->notice();
        else if (!refused)
            co_await fetch_rest(*portal);
        portal->running.reset();
        portal->fetched = true;
        scatter_open_ = false;
        scattering_ = false;
    } else {
        begin_listening();
        while ((limit == 0 || passed < limit) && portal->move_row(out_)) {
            ++passed;
            if (out_.size() >= out_limit && !co_await make_room()) {
                refused = cancelled_by_client();
                break;
            }
        }
        waiting_ = false;
        scattering_ = false;
        ended = !refused && (limit == 0 || passed < limit);
        if (ended && portal->failure) {
            refused = std::move(*portal->failure);
            portal->failure.reset();
        }
    }
    if (refused) {
        fail_round(as_client_sees(std::move(*refused), portal->timeout_of));
        exchange_->feed_local(out_, *this);
    } else if (ended) {
        answer_scatter_end(std::exchange(portal->notice, {}), passed);
    } else {
        pg_reply::plain(out_, 's');
    }
}

// What the client has not asked for yet: the shards are not kept waiting for it.
Task<void> PgClient::fetch_rest(ScatterPortal &portal) {
    std::string_view row;
    waiting_ = true;
    for (;;) {
        const MergedRows::Row next = co_await portal.running->next(row);
        if (next == MergedRows::Row::row && portal.keep(row, worker_.settings())) continue;
        if (next == MergedRows::Row::row)
            portal.failure = make_refusal(
                Code::R37, "the rest of the rows is larger than the router keeps for a portal",
                "Ask for fewer rows, or execute the statement without a row limit; the limits are "
                "the settings limits.max_result_bytes and limits.max_buffered_bytes.");
        else if (next == MergedRows::Row::failed)
            portal.failure =
                gave_up_.is_set() ? cancelled_by_client() : portal.running->take_refusal();
        else
            portal.notice = portal.running->notice();
        break;
    }
    waiting_ = false;
}

}  // namespace interlock
