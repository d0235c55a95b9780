// The connection: greeting, reading, writing, idling, the end.
#include "session/pg_client.h"

#include "base/log.h"
#include "session/pg_reply.h"

#include <algorithm>
#include <strings.h>
#include <sys/socket.h>

namespace interlock {

namespace {

constexpr std::size_t read_step = 16 * 1024;
// Answers of one round are collected up to here before the client has to take them.
constexpr std::size_t flush_at = 64 * 1024;
// Requests are collected up to here before the backend has to take them.
constexpr std::size_t backend_flush_at = 64 * 1024;
// Of a round of any length, what is kept until its answers have come.
constexpr std::size_t most_notes = 16 * 1024;
// After the last answer: how long, and for how much more input, the client's end is waited for.
constexpr Millis goodbye_time = 1000;
constexpr std::size_t goodbye_bytes = 1 << 20;
// What a message has come to of that size is not charged to the budget for all clients.
constexpr std::size_t always_room_for = 64 * 1024;
// Sets of start-up settings remembered.
constexpr std::size_t most_startups = 1024;
// What clients work with is kept for the next one, as much as is ever in use at once, about.
constexpr std::size_t most_spare_work = 64;

// Ends when the client is served, or gone: what it takes to log in is not held any longer.
Task<void> open_client(PgShared &shared, UniqueFd socket) {
    Worker &worker = shared.worker();
    auto transport = std::make_unique<Transport>(worker.loop(), std::move(socket));
    Buffer in;
    Opening opening = co_await open_connection(worker, *transport, in);
    if (opening.kind == Opening::Kind::cancel) {
        if (PgClient *client = shared.find_client(opening.cancel_pid, opening.cancel_secret))
            client->cancel();
        co_return;
    }
    if (opening.kind != Opening::Kind::login) co_return;
    PgClient::start(std::make_unique<PgClient>(shared, std::move(transport), std::move(in),
                                               std::move(opening.login)));
}

}  // namespace

void accept_pg_client(PgShared &shared, UniqueFd socket) {
    spawn(open_client(shared, std::move(socket)));
}

PgClient::PgClient(PgShared &shared, std::unique_ptr<Transport> transport, Buffer in, Login login)
    : shared_(shared), worker_(shared.worker()), transport_(std::move(transport)),
      in_(std::move(in)), login_(std::make_unique<Login>(std::move(login))),
      backend_login_(login_->backend_login), key_(shared.add_cancel_key(this)) {
    transport_->watch.on_stray(client_stirred, this);
}

PgClient::~PgClient() {
    worker_.buffered_bytes -= charged_;
    if (resend_) worker_.buffered_bytes -= resend_->charged;
    shared_.remove_cancel_key(key_);
}

// Something came, or the client ended, while it waits in a pool's queue, or for routes.
void PgClient::client_stirred(void *self) {
    auto *client = static_cast<PgClient *>(self);
    if (client->scattering_) return client->stirred_while_scattering();
    if (!client->waiting_) return;
    if (!client->transport_->watch.hung_up()) {
        client->transport_->watch.arm_hangup();  // it has sent something ahead, that is all
        return;
    }
    client->gone_ = true;
    client->gave_up_.set();
}

// Reaches only what runs now: in the queue of a pool, or on the backend in use, which is not lent
// to anybody else afterwards.
void PgClient::cancel() {
    if (waiting_) {
        gave_up_.set();
        return;
    }
    if (!lease_ || !exchange_->waits_for_backend()) return;
    cancelled_ = true;
    spawn(lease_->cancel(worker_.loop().now() + 5000));
}

void PgClient::start(std::unique_ptr<PgClient> client) {
    client->worker_.add_client(client.get());
    client.release()->run(true);
}

// A client owns itself, so that one that has nothing to do costs no more than itself and a wait.
Detached PgClient::run(bool fresh) {
    take_work();
    if (co_await serve(fresh)) {
        give_work_back();
        rest();
    } else {
        worker_.remove_client(this);
        delete this;
    }
}

// Nothing is here but what waiting takes: there are many more clients that rest than others.
Detached PgClient::rest() {
    const Fired fired = co_await Wait(worker_.loop(), never).read(transport_->watch).event(wake_);
    if (fired.has(1)) wake_.reset();
    if (fired.has(0) && !read_client()) closing_ = true;
    run(false);
}

// Nothing is open, nothing is owed, nothing has come in part. (A TLS session may hold bytes that no
// descriptor tells of, and costs much more than a frame.)
bool PgClient::may_rest() const {
    return !in_block() && !round_open_ && !lease_ && in_.empty() && out_.empty() &&
           exchange_->idle() && !transport_->tls.active() && !worker_.stopping();
}

std::vector<PgClient::Work> &PgClient::spare_work() {
    static thread_local std::vector<Work> spare;
    return spare;
}

void PgClient::take_work() {
    auto &spare = spare_work();
    if (spare.empty()) {
        exchange_ = std::make_unique<Exchange>();
        resend_ = std::make_unique<Resend>();
        return;
    }
    exchange_ = std::move(spare.back().exchange);
    resend_ = std::move(spare.back().resend);
    notes_.swap(spare.back().notes);
    commands_.swap(spare.back().commands);
    spare.pop_back();
}

void PgClient::give_work_back() {
    exchange_->reset();
    notes_.clear();
    commands_.clear();
    command_ = 0;
    auto &spare = spare_work();
    if (spare.size() < most_spare_work) {
        Work &kept = spare.emplace_back();
        kept.exchange = std::move(exchange_);
        kept.resend = std::move(resend_);
        kept.notes.swap(notes_);
        kept.commands.swap(commands_);
        return;
    }
    exchange_.reset();
    resend_.reset();
    notes_ = {};
    commands_ = {};
}

// True: the client pauses, with nothing open. Else its connection is to end.
Task<bool> PgClient::serve(bool fresh) {
    if (!fresh || co_await greet()) {
        while (!closing_) {
            wire::Frame frame;
            const wire::FrameState state =
                wire::peek_frame(in_, worker_.settings().pg_max_packet, frame);
            if (state == wire::FrameState::ready) {
                may_read_ahead_ = false;
                co_await take_message(frame);
                may_read_ahead_ = true;
                in_.consume(frame.size);
                if (gone_) break;
                if (lease_ && lease_->out().size() > backend_flush_at) co_await relieve();
                if (notes_.size() > most_notes)
                    if (auto lost = co_await settle_round()) fail_round(*lost);
                if (out_.size() > flush_at && !co_await flush()) break;
                continue;
            }
            if (state == wire::FrameState::too_long) {
                if (!co_await take_long_message(frame.type, frame.size)) break;
                continue;
            }
            if (state != wire::FrameState::need_more) {
                fatal_protocol("invalid message length");
                break;
            }
            const std::size_t read = in_.size();
            if (!co_await push_round()) break;
            if (!answers_may_wait() && !co_await flush()) break;
            if (in_.size() > read) continue;  // more has come meanwhile
            if (!within_budget()) break;
            if (may_rest()) co_return true;
            if (!co_await idle()) break;
        }
    }
    if (block_ && lease_ && !exchange_->waits_for_backend()) co_await roll_back_now();
    lease_.discard();
    refused_.reset();
    if (!gone_ && co_await flush()) co_await say_goodbye();
    co_return false;
}

// AuthenticationOk has been sent. What follows is what PostgreSQL sends: the state of the session's
// parameters, the key for cancel requests, ReadyForQuery.
Task<bool> PgClient::greet() {
    auto refused = co_await learn_defaults();
    if (!refused) refused = co_await apply_startup();
    login_.reset();
    out_.clear();
    if (refused) {
        pg_reply::fatal(out_, refused->state(), refused->message, refused->detail, refused->hint);
        co_return false;
    }
    for (const auto &[name, value] : defaults_->reported) {
        const TrackedParameter *parameter = find_tracked(name);
        const std::string *set = parameter ? value_in(parameters_, parameter) : nullptr;
        pg_reply::parameter_status(out_, name, set != nullptr ? *set : value);
    }
    pg_reply::backend_key(out_, key_.pid, key_.secret);
    pg_reply::ready(out_, 'I');
    co_return true;
}

// How sessions of this login begin on the shards. Known from the first backend on; before, one is
// asked for.
Task<std::optional<Refusal>> PgClient::learn_defaults() {
    const std::shared_ptr<const Routes> routes = worker_.routes();
    if (!routes) {
        Refusal refusal = no_route_table();
        refusal.sqlstate = "57P03";
        co_return refusal;
    }
    LoginPools &pools = routes->pools_for(backend_login_);
    if (!pools.defaults()) {
        waiting_ = true;
        gave_up_.reset();
        auto lent = co_await pools.any(routes->table->version, &gave_up_);
        waiting_ = false;
        if (!lent) co_return std::move(lent.error());
        lent->lease.release();
    }
    defaults_ = pools.defaults();
    use_parameters(nullptr);
    co_return std::nullopt;
}

// The settings of the start-up packet, judged by a backend; what one has accepted is remembered.
Task<std::optional<Refusal>> PgClient::apply_startup() {
    std::string said;
    std::string calls;
    std::vector<const TrackedParameter *> parameters;
    for (const auto &[name, value] : login_->parameters) {
        if (::strcasecmp(name.c_str(), "standard_conforming_strings") == 0 && value == "on")
            continue;
        const TrackedParameter *parameter = find_tracked(name);
        if (parameter == nullptr) {
            Refusal refusal = make_refusal(
                Code::R25,
                "parameter \"" + name + "\" cannot be kept for a session over pooled connections",
                "The parameters that can are listed in docs/application.md.");
            co_return refusal;
        }
        if (parameter->name == "client_encoding" && !safe_client_encoding(value)) {
            co_return make_refusal(Code::R25,
                                   "client_encoding \"" + value +
                                       "\" has characters that contain bytes of ASCII",
                                   "Use UTF8.");
        }
        if (value.find('\0') != std::string::npos) continue;
        said += name + '\0' + value + '\0';
        calls += (calls.empty() ? "SELECT " : ", ") +
                 ("pg_catalog.set_config(" + quote_literal(parameter->name) + ", " +
                  quote_literal(value) + ", false)");
        parameters.push_back(parameter);
    }
    // Not what the router's own connections are called.
    static const TrackedParameter *const application_name = find_tracked("application_name");
    if (std::find(parameters.begin(), parameters.end(), application_name) == parameters.end()) {
        calls += (calls.empty() ? "SELECT " : ", ") +
                 std::string("pg_catalog.set_config('application_name', '', false)");
        parameters.push_back(application_name);
    }
    said += backend_login_;
    if (const auto it = shared_.accepted_startups.find(said);
        it != shared_.accepted_startups.end()) {
        startup_ = it->second;
        use_parameters(startup_);
        co_return std::nullopt;
    }
    if (auto refused = co_await lend(std::nullopt)) co_return refused;
    hold_ = Hold::any;
    auto refused = co_await ask_backend(calls);
    if (!lease_) co_return refused;
    if (!refused && exchange_->kept_row().size() == parameters.size()) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (parameters[i]->name != "search_path") continue;
            if (auto later = check_search_path(exchange_->kept_row()[i])) {
                discard_backend();
                co_return later;
            }
        }
        for (std::size_t i = 0; i < parameters.size(); ++i)
            startup_ = shared_.parameters().with(startup_, parameters[i], exchange_->kept_row()[i]);
        lease_->set_applied_parameters(startup_);
        use_parameters(startup_);
        if (shared_.accepted_startups.size() >= most_startups) shared_.accepted_startups.clear();
        shared_.accepted_startups.emplace(std::move(said), startup_);
    }
    release();
    co_return refused;
}

void PgClient::answer_ready() {
    exchange_->feed_local(out_, *this);
    pg_reply::ready(out_, static_cast<char>(transaction_));
}

void PgClient::fatal_protocol(std::string_view message) {
    pg_reply::fatal(out_, "08P01", message);
    closing_ = true;
}

Task<void> PgClient::take_message(const wire::Frame &frame) {
    const char type = frame.type;
    // After an error everything up to the next Sync is passed over, a Query included.
    if (skipping_ && type != 'S' && type != 'X') {
        if (refused_) co_await take_behind_refused(frame);
        co_return;
    }
    if (type == 'Q') {
        const std::string_view body = frame.body;
        if (body.empty() || body.find('\0') != body.size() - 1) {
            fatal_protocol("invalid message format");
            co_return;
        }
        co_await query(body.substr(0, body.size() - 1));
        co_return;
    }
    if (type == 'S') {
        if (!frame.body.empty()) co_return fatal_protocol("invalid message format");
        co_await sync();
        co_return;
    }
    if (type == 'X') {
        closing_ = true;
        co_return;
    }
    // Remains of a COPY that was refused, or has failed, are passed over, as PostgreSQL does.
    if (type == 'd' || type == 'c' || type == 'f') co_return;
    if (std::string_view("PBDECHF").find(type) == std::string_view::npos) {
        fatal_protocol(format("invalid frontend message type %d", type));
        co_return;
    }
    if (type == 'F') {
        Refusal refusal = make_refusal(Code::R01, "function call messages are not accepted",
                                       "Call the function in a SELECT.");
        refusal.sqlstate = "0A000";
        co_await refuse(std::move(refusal));
        answer_ready();
        co_return;
    }
    if (!round_open_) begin_request();
    round_open_ = true;
    if (type != 'H') keep_message(frame);
    switch (type) {
    case 'P': co_await parse(frame.body); break;
    case 'B': co_await bind(frame.body); break;
    case 'D': co_await describe(frame.body); break;
    case 'E': co_await execute(frame.body); break;
    case 'C': close(frame.body); break;
    default:
        if (!frame.body.empty()) co_return fatal_protocol("invalid message format");
        co_await flush_request();
        break;
    }
}

// The backend is to take what has piled up for it, while its answers are read.
Task<void> PgClient::relieve() {
    if (auto lost = co_await settle_until(true)) fail_round(*lost);
}

// The client pauses in the middle of a round. The backend gets what there is of it; and an error is
// told now, with all that comes before it, since nothing more of this round will be answered.
Task<bool> PgClient::push_round() {
    park_scatter();
    if (!round_open_ || !lease_ || !exchange_->waits_for_backend()) co_return true;
    if (round_refusal_ && !exchange_->server_skips()) {
        if (auto lost = co_await settle_round()) fail_round(*lost);
        exchange_->feed_local(out_, *this);
        co_return !gone_;
    }
    co_await relieve();
    co_return !gone_;
}

// Answers, or the end, of the backend while the client pauses in the middle of a round.
void PgClient::round_stirred() {
    const Io io = lease_->fill_now();
    const auto fed = exchange_->feed(*lease_, out_, flush_at, *this);
    std::optional<Refusal> lost;
    if (fed == Exchange::Feed::malformed)
        lost = backend_lost(AnswerEnd::malformed);
    else if (io == Io::closed && fed != Exchange::Feed::blocked)
        lost = backend_lost(AnswerEnd::lost);
    if (lost) fail_round(*lost);
    if (!lease_) exchange_->feed_local(out_, *this);
}

bool PgClient::read_client() {
    switch (transport_->stream.read(in_, read_step)) {
    case wire::StreamState::ok:
    case wire::StreamState::want_read:
    case wire::StreamState::want_write: return true;
    case wire::StreamState::closed:
    case wire::StreamState::broken: return false;
    }
    return false;
}

// Writes what goes now; false when the client's end is closed.
bool PgClient::try_write() {
    while (!out_.empty()) {
        const std::size_t before = out_.size();
        const wire::StreamState state = transport_->stream.write(out_);
        answers_given(before - out_.size());
        switch (state) {
        case wire::StreamState::ok: break;
        case wire::StreamState::want_read:
        case wire::StreamState::want_write: return true;
        case wire::StreamState::closed:
        case wire::StreamState::broken: return false;
        }
    }
    return true;
}

Task<bool> PgClient::flush() {
    if (gone_) co_return false;
    if (refused_) co_return true;  // what is in out_ may have to be taken back
    flush_wanted_ = false;
    if (!try_write()) co_return false;
    if (out_.empty()) co_return true;
    Loop &loop = worker_.loop();
    Millis deadline = deadline_after(loop.now(), worker_.settings().pg_write_timeout);
    std::size_t left = out_.size();
    while (!out_.empty()) {
        const Fired fired = co_await Wait(loop, deadline).write(transport_->watch);
        if (fired.none()) {
            log_warning("a client did not take its answer in time; its connection is closed");
            gone_ = true;
            co_return false;
        }
        if (!try_write()) co_return false;
        if (out_.size() < left)
            deadline = deadline_after(loop.now(), worker_.settings().pg_write_timeout);
        left = out_.size();
    }
    co_return true;
}

// Messages that have come in part are kept for all clients together; small ones always have room.
bool PgClient::within_budget() {
    const std::size_t held = in_.size() > always_room_for ? in_.size() : 0;
    worker_.buffered_bytes += held;
    worker_.buffered_bytes -= charged_;
    charged_ = held;
    if (held == 0 || worker_.buffered_bytes <= worker_.settings().max_buffered_bytes) return true;
    pg_reply::fatal(out_, "53200", "messages that have come in part take all the room there is", {},
                    "The limit is the setting limits.max_buffered_bytes.");
    return false;
}

// Waits for the client's next message; looks after the pinned backend meanwhile.
Task<bool> PgClient::idle() {
    Loop &loop = worker_.loop();
    if (transport_->tls.active()) {
        const std::size_t before = in_.size();
        if (!read_client()) co_return false;
        if (in_.size() > before) co_return true;
    }
    const Millis deadline =
        in_block() || round_open_
            ? deadline_after(loop.now(), worker_.settings().pg_idle_transaction_timeout)
            : never;
    for (;;) {
        if (worker_.stopping() && !in_block() && !round_open_) {
            pg_reply::fatal(out_, "57P01", "terminating connection due to administrator command");
            co_return false;
        }
        const Fired fired = co_await Wait(loop, deadline)
                                .read(transport_->watch)
                                .event(wake_)
                                .read(lease_ ? &lease_->watch() : nullptr);
        if (fired.none()) {
            pg_reply::fatal(out_, "25P03",
                            "terminating connection due to idle-in-transaction timeout");
            co_return false;
        }
        if (fired.has(1)) wake_.reset();
        if (fired.has(2)) {
            if (round_open_)
                round_stirred();
            else
                co_await pinned_stirred();
            if (!out_.empty() && !answers_may_wait() && !co_await flush()) co_return false;
        }
        if (fired.has(0)) co_return read_client();
    }
}

// Closed at once, a socket with unread input would reset the connection and lose the answer.
Task<void> PgClient::say_goodbye() {
    ::shutdown(transport_->socket.get(), SHUT_WR);
    const Millis deadline = worker_.loop().now() + goodbye_time;
    for (std::size_t taken = 0; taken < goodbye_bytes; taken += read_step) {
        const Fired fired = co_await Wait(worker_.loop(), deadline).read(transport_->watch);
        if (fired.none()) co_return;
        in_.clear();
        if (!read_client()) co_return;
    }
}

}  // namespace interlock
