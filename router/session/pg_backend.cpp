// Lending, pinning, giving back.
#include "base/log.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

namespace {

using Kind = Owed::Kind;
using To = Owed::To;

constexpr Millis rollback_timeout = 5000;
// A cancelled wait for a connection reads as PostgreSQL's own answer to a cancelled statement.
Refusal as_postgres(Refusal refusal) {
    if (refusal.state() == "57014") refusal.code = Code::R31;
    return refusal;
}

}  // namespace

const std::shared_ptr<const Routes> &PgClient::routes_in_use() const {
    if (block_) return block_->routes;
    return request_routes_ ? request_routes_ : worker_.routes();
}

void PgClient::append_query(std::string_view sql, Owed::To to, std::uint32_t note) {
    wire::FrameWriter(lease_->out(), 'Q').string(sql);
    exchange_->expect(Kind::query, to, note);
    lease_->set_unnamed_owner(0);  // a Query drops it
}

// One of the router's own statements in the extended protocol, without a Sync: an error in it makes
// the server skip what follows. In the unnamed portal unless it is named, and then closed, because
// the client may have that one open.
void PgClient::append_step(std::string_view sql, std::string_view portal) {
    Buffer &out = lease_->out();
    wire::FrameWriter(out, 'P').string("").string(sql).int16(0);
    wire::FrameWriter(out, 'B').string(portal).string("").int16(0).int16(0).int16(0);
    wire::FrameWriter(out, 'E').string(portal).int32(0);
    exchange_->expect(Kind::parse, To::nobody);
    exchange_->expect(Kind::bind, To::nobody);
    exchange_->expect(Kind::execute, To::nobody);
    lease_->set_unnamed_owner(0);
    if (portal.empty()) return;
    wire::FrameWriter(out, 'C').bytes("P").string(portal);
    exchange_->expect(Kind::close, To::nobody);
}

void PgClient::open_block() {
    append_step(block_->begin);
    for (const std::string &statement : block_->characteristics)
        append_step(statement);
    for (const std::string &statement : block_->prologue)
        if (!statement.empty()) append_step(statement);
    block_->opened = block_->revision;
}

// Whether the backend in use, held for any shard's answers, was made ready for another state than
// the session is in now.
bool PgClient::outdated() const {
    return in_block() ? block_->opened != block_->revision
                      : lease_->applied_parameters() != parameters_;
}

void PgClient::raise_effect(const sql::Facts &facts) {
    if (facts.action == sql::Action::commit)
        effect_ = Effect::commit;
    else if (facts.writes && effect_ == Effect::read)
        effect_ = Effect::write;
    if (facts.user_code || meets_user_code(facts)) user_code_ = true;
}

// Whether the statement's tables have triggers of users and the like on the shard in use.
bool PgClient::meets_user_code(const sql::Facts &facts) const {
    if (!lease_ || lease_->surroundings().quiet()) return false;
    const std::vector<Table> &tables = routes_in_use()->table->tables;
    return std::any_of(facts.tables.begin(), facts.tables.end(), [&](std::uint32_t table) {
        return lease_->surroundings().runs_user_code(tables[table]);
    });
}

std::optional<Refusal> PgClient::check_names(const sql::Facts &facts) {
    if (lease_->surroundings().quiet()) return std::nullopt;
    auto conflict = lease_->surroundings().conflict(facts, path_->schemas);
    if (!conflict) return std::nullopt;
    Refusal refusal =
        make_refusal(Code::R26,
                     format("a name in the statement could mean something else on shard %s",
                            routes_in_use()->table->shards[shard_].name.c_str()),
                     "Qualify the name with its schema.");
    refusal.detail = *conflict;
    return refusal;
}

// Finds the backend for a statement: the pinned one, the one of the implicit transaction, or one
// that is lent now. `settled`: the statement, with those that are sent with it, uses no bucket that
// is announced to move, and no unknown one.
Task<std::optional<Refusal>> PgClient::ensure(const sql::Facts &facts, std::optional<Target> target,
                                              bool settled) {
    const auto shard_name = [&](ShardIndex shard) {
        return routes_in_use()->table->shards[shard].name.c_str();
    };
    // One shard's answer to it would look like all there is.
    if (facts.scatter)
        co_return make_refusal(Code::scatter_unsupported,
                               "a statement for all shards cannot be part of another one");
    const bool pins = target || facts.action == sql::Action::declare_cursor;
    if (hold_ == Hold::pinned && target && target->shard != shard_) {
        Refusal other = make_refusal(
            Code::R12,
            format("the transaction is on shard %s, this statement's key is on shard %s",
                   shard_name(shard_), shard_name(target->shard)),
            "A transaction stays on one shard: use one transaction for each shard.");
        other.detail = "The transaction was rolled back.";
        co_return other;
    }
    if (hold_ == Hold::single && target && target->shard != shard_) {
        Refusal other = make_refusal(
            Code::R11, "the statements sent together have keys on several shards",
            "Statements without a Sync between them, or in one Query, are one transaction: send "
            "those of each shard apart.");
        other.detail =
            format("Statements before it ran on shard %s, this one's key is on shard %s.",
                   shard_name(shard_), shard_name(target->shard));
        co_return other;
    }
    if (must_not_run_here(facts, target, settled)) {
        ++worker_.moves.failed;
        co_return bucket_on_the_move();
    }
    if (must_go_back(facts, settled))
        append_step(
            format("SET LOCAL interlock.route_version = %d", routes_in_use()->table->version),
            "interlock.route_version");
    const bool other_shard = target && target->shard != shard_;
    if (hold_ == Hold::any &&
        (outdated() || other_shard || (target && lease_->route_version() != version(settled)))) {
        co_await give_up_any();
        if (skipping_) co_return std::nullopt;
    }
    if (hold_ == Hold::any && pins) hold_ = in_block() ? Hold::pinned : Hold::single;
    if (hold_ != Hold::none) co_return check_names(facts);

    auto refused =
        target ? co_await lend(target->shard, settled, &facts) : co_await lend(std::nullopt);
    if (!refused) refused = check_names(facts);
    if (refused) {
        release();
        co_return refused;
    }
    if (in_block()) {
        open_block();
        hold_ = pins ? Hold::pinned : Hold::any;
    } else {
        hold_ = target ? Hold::single : Hold::any;
    }
    co_return std::nullopt;
}

// The route version that a session for a statement is to have. Once a move is announced, that of
// statements that have nothing to do with it: the shard's floor, raised when it is decided, does
// not stop them.
std::int32_t PgClient::version(bool settled) const {
    const RouteTable &table = *routes_in_use()->table;
    return settled && !in_force_ ? table.settled_version() : table.version;
}

Task<std::optional<Refusal>> PgClient::lend(std::optional<ShardIndex> shard, bool settled,
                                            const sql::Facts *facts) {
    const std::shared_ptr<const Routes> routes = routes_in_use();
    if (!routes) co_return no_route_table();
    park_scatter();
    if (worker_.stopping() && !in_block())
        co_return make_refusal(Code::R30, "the router is shutting down",
                               "Nothing was done; connect to another router, or try again.");
    LoginPools &pools = routes->pools_for(backend_login_);
    if (shard) {
        Pool &pool = pools[*shard];
        const std::int32_t route_version = version(settled);
        if (auto ready = pool.try_acquire(route_version)) {
            lease_ = std::move(*ready);
        } else {
            waiting_ = true;
            gave_up_.reset();
            transport_->watch.arm_hangup();
            auto lent = co_await pool.acquire(route_version, &gave_up_);
            waiting_ = false;
            if (!lent) co_return as_postgres(std::move(lent.error()));
            lease_ = std::move(*lent);
        }
        shard_ = *shard;
        any_shard_ = shard_;
        if (facts != nullptr)
            if (auto refused = co_await go_back_before(*facts)) co_return refused;
    } else if (auto refused = co_await lend_any(pools, routes->table->version)) {
        co_return refused;
    }
    exchange_->reset();
    effect_ = Effect::read;
    user_code_ = false;
    cancelled_ = false;
    timed_out_ = false;
    stale_plans_ = false;
    if (lease_->defaults() != defaults_) {
        // The login was changed on the shards: its names may mean something else from now on.
        const std::uint32_t path = path_->id;
        defaults_ = lease_->defaults();
        use_parameters(parameters_);
        if (path_->id != path) {
            release();
            co_return make_refusal(Code::R30, "the login's search_path has just changed",
                                   "Nothing was done; it is safe to send the statement again.");
        }
    }
    // A transaction opens with what was in force when it began; its prologue does the rest.
    const Parameters &wanted = in_block() ? block_->parameters : parameters_;
    if (lease_->applied_parameters() != wanted) co_return co_await apply_parameters(wanted);
    co_return std::nullopt;
}

// For what any shard can answer, a session keeps to the one of its last data: objects' numbers in
// the system catalogs, which drivers carry from an answer to the next look-up, differ between
// shards.
Task<std::optional<Refusal>> PgClient::lend_any(LoginPools &pools, std::int32_t version) {
    gave_up_.reset();
    if (any_shard_ && pools.is_shard(*any_shard_) && !pools[*any_shard_].known_down()) {
        shard_ = *any_shard_;
        if (auto ready = pools[shard_].try_acquire(version)) {
            lease_ = std::move(*ready);
            co_return std::nullopt;
        }
        waiting_ = true;
        auto lent = co_await pools[shard_].acquire(version, &gave_up_);
        waiting_ = false;
        if (lent) {
            lease_ = std::move(*lent);
            co_return std::nullopt;
        }
        if (lent.error().code != Code::R30) co_return as_postgres(std::move(lent.error()));
    }
    waiting_ = true;
    auto lent = co_await pools.any(version, &gave_up_);
    waiting_ = false;
    if (!lent) co_return as_postgres(std::move(lent.error()));
    lease_ = std::move(lent->lease);
    shard_ = lent->shard;
    any_shard_ = shard_;
    co_return std::nullopt;
}

// The client's settings, in front of its statement. A shard that has never taken them is asked
// first; from then on they travel with the statement, without a round trip of their own.
Task<std::optional<Refusal>> PgClient::apply_parameters(Parameters wanted) {
    const auto from = std::static_pointer_cast<const ParameterSet>(lease_->applied_parameters());
    const std::string sql = change_parameters_sql(from, wanted);
    if (sql.empty()) {
        lease_->set_applied_parameters(wanted);
        co_return std::nullopt;
    }
    const void *shard = &routes_in_use()->pools_for(backend_login_)[shard_];
    if (wanted ? wanted->accepted_by(shard) : true) {
        append_query(sql, To::nobody);
        lease_->set_applied_parameters(wanted);
        co_return std::nullopt;
    }
    hold_status_ = true;
    auto refused = co_await ask_backend(sql);
    hold_status_ = false;
    if (refused) {
        refused->hint = "A setting of this session is not accepted by the shard.";
        co_return refused;
    }
    lease_->set_applied_parameters(wanted);
    if (wanted) wanted->note_accepted(shard);
    co_return std::nullopt;
}

void PgClient::release() {
    if (!lease_) return;
    hold_ = Hold::none;
    if (exchange_->waits_for_backend())
        discard_backend();
    else if (cancelled_ || stale_plans_)
        lease_.discard();
    else if (user_code_)
        lease_.release_after_reset();
    else
        lease_.release();
}

void PgClient::discard_backend() {
    hold_ = Hold::none;
    if (exchange_->waits_for_backend()) exchange_->drop_all(*this);
    lease_.discard();
}

// Ends the use of a backend that has only answered what any shard could, so that another one can be
// lent in the same round.
Task<void> PgClient::give_up_any() {
    if (in_block()) append_step("ROLLBACK");
    wire::FrameWriter(lease_->out(), 'S');
    exchange_->expect(Kind::sync, To::nobody);
    const bool ahead = std::exchange(may_read_ahead_, false);
    auto lost = co_await settle();
    may_read_ahead_ = ahead;
    if (lost) {
        fail_round(*lost);
        co_return;
    }
    if (exchange_->take_failed()) {
        skipping_ = true;
        if (in_block()) transaction_ = Transaction::failed;
    }
    if (exchange_->status() == 'I')
        release();
    else
        discard_backend();
    // In a block it was rolled back; what was no block's is committed.
    resend_from_here();
}

// Rolls the transaction's backend back and returns it, now: no lock may outlive the transaction.
Task<void> PgClient::roll_back_now() {
    if (block_) block_->savepoints.clear();
    if (!lease_) co_return;
    co_await roll_back_lease();
}

// One that does not obey is closed, which rolls back too.
Task<void> PgClient::roll_back_lease() {
    if (exchange_->waits_for_backend() || !lease_->out().empty() ||
        !co_await lease_->command("ROLLBACK", 'I', worker_.loop().now() + rollback_timeout))
        discard_backend();
    else
        release();
}

// The transaction has failed: by an error of the backend (no refusal), or by one of ours. With a
// savepoint to go back to the backend is kept, except where the refusal is about the transaction
// as a whole.
Task<void> PgClient::fail_block(const Refusal *refusal) {
    if (!in_block()) co_return;
    transaction_ = Transaction::failed;
    const bool whole = refusal != nullptr && refusal->code == Code::R12;
    if (hold_ == Hold::pinned && !whole && !block_->savepoints.empty()) co_return;
    if (hold_ != Hold::none) co_await roll_back_now();
}

Task<void> PgClient::refuse(Refusal refusal) {
    const bool retry =
        refusal.code == Code::R30 || refusal.code == Code::R33 || refusal.code == Code::R34;
    if (in_block() && transaction_ == Transaction::open) {
        if (retry) refusal.hint = "Send ROLLBACK, then run the transaction again.";
        co_await fail_block(&refusal);
    }
    pg_reply::error(out_, refusal);
}

std::optional<Refusal> PgClient::take_lost() {
    if (!lost_) return std::nullopt;
    std::optional<Refusal> told = std::move(*lost_);
    lost_.reset();
    return told;
}

std::optional<Refusal> PgClient::failed_refusal() {
    if (transaction_ != Transaction::failed) return std::nullopt;
    if (lost_) return take_lost();
    return make_refusal(
        Code::R13,
        "current transaction is aborted, commands ignored until end of transaction block",
        "Send ROLLBACK.");
}

// The round is over and the backend idle, in a transaction, or in a failed one.
Task<bool> PgClient::after_ready() {
    const bool failed = exchange_->take_failed();
    if (!lease_) co_return failed;
    const char status = exchange_->status();
    effect_ = Effect::read;
    switch (hold_) {
    case Hold::none: break;
    case Hold::any:
        if (in_block() && failed) transaction_ = Transaction::failed;
        if (status == 'I')
            release();
        else
            discard_backend();
        break;
    case Hold::single:
        if (status == 'I')
            release();
        else
            discard_backend();
        break;
    case Hold::pinned:
        if (status == 'I') {
            leave_block(block_->ended_by_commit);
            release();
        } else if (status == 'E') {
            co_await fail_block(nullptr);
        } else if (transaction_ == Transaction::failed && failed) {
            co_await fail_block(nullptr);
        }
        break;
    }
    co_return failed;
}

}  // namespace interlock
