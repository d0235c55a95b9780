#include "session/pg_login.h"

#include "base/log.h"
#include "session/client_auth.h"
#include "wire/frame.h"
#include "wire/scram.h"
#include "wire/startup.h"

#include <algorithm>
#include <netdb.h>
#include <sys/socket.h>

namespace interlock {

namespace {

// What is read in one go. More than a start-up packet, and no less than a TLS record.
constexpr std::size_t read_step = 16 * 1024;
// After the last message: how long, and for how much more input, the client's end is waited for.
constexpr Millis goodbye_time = 1000;
constexpr std::size_t goodbye_bytes = 1 << 20;

// A message of the password exchange at most, as in PostgreSQL.
constexpr std::size_t max_sasl_message = 1024;
constexpr std::uint32_t auth_ok = 0, auth_sasl = 10, auth_sasl_continue = 11, auth_sasl_final = 12;
constexpr std::uint32_t no_data = 0xFFFFFFFF;

constexpr std::string_view console_database = "interlock";

/// "127.0.0.1:50000", for the log; "local" for a socket that has no address.
std::string peer_of(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    char host[NI_MAXHOST];
    char port[NI_MAXSERV];
    if (::getpeername(fd, reinterpret_cast<sockaddr *>(&address), &size) != 0 ||
        address.ss_family == AF_UNIX ||
        ::getnameinfo(reinterpret_cast<sockaddr *>(&address), size, host, sizeof host, port,
                      sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "local";
    return format(address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

class Exchange {
  public:
    Exchange(Worker &worker, Transport &transport, Buffer &in)
        : worker_(worker), transport_(transport), in_(in),
          deadline_(deadline_after(worker.loop().now(), worker.settings().pg_login_timeout)),
          rules_(rules_of(worker)) {}

    Task<Opening> run() {
        const Counted starting(worker_.pg_starting);
        Opening opening;
        // As many as that may wait to be told that there are too many.
        if (worker_.pg_starting > worker_.settings().pg_max_clients) co_return opening;
        wire::Startup startup;
        if (!co_await read_startup(startup)) co_return opening;
        if (startup.kind == wire::Startup::Kind::cancel) {
            opening.kind = Opening::Kind::cancel;
            opening.cancel_pid = startup.cancel_pid;
            opening.cancel_secret = startup.cancel_secret;
            co_return opening;
        }
        if (!co_await admit(startup)) co_return opening;
        if (startup.negotiate()) wire::append_negotiation(out_, startup);
        if (!co_await authenticate(startup, opening.login)) co_return opening;
        wire::FrameWriter(out_, 'R').int32(auth_ok);
        // An error before this would make libpq try again without TLS.
        if (!co_await check_database(startup) || !co_await flush()) co_return opening;
        opening.kind = Opening::Kind::login;
        opening.login.user = std::move(startup.user);
        opening.login.database = std::move(startup.database);
        opening.login.parameters = std::move(startup.parameters);
        co_return opening;
    }

  private:
    static std::shared_ptr<const LoginRules> rules_of(Worker &worker) {
        if (worker.client_auth) return worker.client_auth->rules();
        auto trusting = std::make_shared<LoginRules>();
        if (worker.settings().pg_auth == "trust") trusting->method = LoginRules::Method::trust;
        return trusting;
    }

    /// Reads packets until one is a login or a cancel request; the others are answered.
    Task<bool> read_startup(wire::Startup &startup) {
        bool may_encrypt = true;
        bool may_gss = true;
        for (;;) {
            wire::Fatal fatal;
            switch (wire::parse_startup(in_.view(), may_encrypt, may_gss, startup, fatal)) {
            case wire::StartupState::refused: co_return co_await refuse(std::move(fatal));
            case wire::StartupState::need_more:
                if (!co_await read_more()) co_return false;
                continue;
            case wire::StartupState::ready: break;
            }
            in_.consume(startup.size);
            if (startup.kind == wire::Startup::Kind::login ||
                startup.kind == wire::Startup::Kind::cancel)
                co_return true;
            const bool tls = startup.kind == wire::Startup::Kind::tls;
            // Nobody waits for our answer before he sends on but somebody in between.
            if (!in_.empty())
                co_return co_await refuse(
                    {"08P01",
                     tls ? "received unencrypted data after SSL request"
                         : "received unencrypted data after GSSAPI encryption request",
                     "This could be either a client-software bug or evidence of an attempted "
                     "man-in-the-middle attack."});
            (tls ? may_encrypt : may_gss) = false;
            const bool encrypt = tls && rules_->tls;
            out_.append(encrypt ? 'S' : 'N');
            if (!co_await flush()) co_return false;
            if (encrypt) {
                if (!co_await start_tls()) co_return false;
                may_gss = false;
            }
        }
    }

    Task<bool> start_tls() {
        wire::TlsSession &tls = transport_.tls;
        if (tls.begin(rules_->tls, transport_.socket.get())) {
            for (;;) {
                const wire::StreamState state = tls.handshake();
                if (state == wire::StreamState::ok) {
                    transport_.stream = wire::Stream(transport_.socket.get(), tls.get());
                    co_return true;
                }
                if (state == wire::StreamState::broken) break;
                if (!co_await wait_for(state == wire::StreamState::want_write)) co_return false;
            }
        }
        log_info("client %s: could not accept TLS connection: %s", peer(), tls.error().c_str());
        co_return false;
    }

    /// Keeps the number of clients, and lets nobody in who would have to leave at once.
    Task<bool> admit(const wire::Startup &startup) {
        user_ = startup.user;
        if (worker_.stopping()) co_return co_await refuse({"57P03", "the router is shutting down"});
        if (worker_.pg_clients >= worker_.settings().pg_max_clients)
            co_return co_await refuse({"53300", "sorry, too many clients already"});
        transport_.admitted = Counted(worker_.pg_clients);
        co_return true;
    }

    Task<bool> authenticate(const wire::Startup &startup, Login &login) {
        login.backend_login = startup.user;
        if (rules_->require_tls && !transport_.tls.active())
            co_return co_await refuse({"28000", "connections without TLS are not accepted", "",
                                       "Use sslmode=require, or better verify-full, in the "
                                       "connection string."});
        switch (rules_->method) {
        case LoginRules::Method::trust: take_word_of(login); co_return true;
        case LoginRules::Method::cert: co_return co_await check_certificate(login);
        case LoginRules::Method::scram: break;
        }
        co_return co_await check_password(login);
    }

    /// Everyone is who he says; the file may still tell his role on the shards.
    void take_word_of(Login &login) const {
        if (!rules_->users) return;
        const auto entry = rules_->users->find(user_);
        if (entry != rules_->users->end()) login.backend_login = entry->second.backend_login;
    }

    Task<bool> check_certificate(Login &login) {
        if (!transport_.tls.has_peer_certificate())
            co_return co_await refuse({"28000", "connection requires a valid client certificate"});
        const auto name = transport_.tls.peer_common_name();
        if (!name || *name != user_)
            co_return co_await refuse(no_certificate(),
                                      "the certificate is for \"" + name.value_or("") + "\"");
        UserFound found;
        if (!co_await look_up(found)) co_return false;
        if (!found.user) co_return co_await refuse(no_certificate(), "there is no such user");
        login.backend_login = found.user->backend_login;
        co_return true;
    }

    Task<bool> check_password(Login &login) {
        UserFound found;
        if (!co_await look_up(found)) co_return false;
        const bool has_password = found.user && found.user->verifier;
        const wire::TlsContext *tls = transport_.tls.context();
        wire::ScramExchange scram(user_, has_password ? found.user->verifier : std::nullopt,
                                  transport_.tls.active(), tls ? tls->end_point() : std::string(),
                                  wire::scram_nonce());
        {
            wire::FrameWriter offer(out_, 'R');
            offer.int32(auth_sasl);
            for (const std::string_view mechanism : scram.mechanisms())
                offer.string(mechanism);
            offer.string("");
        }
        for (bool first = true;; first = false) {
            std::string message;
            if (!co_await flush() || !co_await read_message(message)) co_return false;
            switch (first ? begin_scram(scram, message) : scram.receive(message)) {
            case wire::ScramExchange::Outcome::go_on:
                wire::FrameWriter(out_, 'R').int32(auth_sasl_continue).bytes(scram.reply());
                break;
            case wire::ScramExchange::Outcome::proven:
                wire::FrameWriter(out_, 'R').int32(auth_sasl_final).bytes(scram.reply());
                login.backend_login = found.user->backend_login;
                co_return true;
            case wire::ScramExchange::Outcome::malformed: co_return co_await refuse(scram.fatal());
            case wire::ScramExchange::Outcome::refused:
                // The client hears the same in each case.
                co_return co_await refuse(
                    {"28P01", "password authentication failed for user \"" + user_ + "\""},
                    !found.user     ? "there is no such user"
                    : !has_password ? "the user has no SCRAM verifier, or it has expired"
                                    : "the password is wrong");
            }
        }
    }

    /// SASLInitialResponse: the mechanism chosen, and possibly the first message of the exchange.
    static wire::ScramExchange::Outcome begin_scram(wire::ScramExchange &scram,
                                                    std::string_view body) {
        wire::FieldReader fields(body);
        const std::string_view mechanism = fields.string();
        const std::uint32_t length = fields.int32();
        const std::string_view data = length == no_data ? "" : fields.bytes(length);
        if (!fields.ok() || !fields.at_end()) return scram.garbled();
        const auto chosen = scram.choose(mechanism);
        if (chosen != wire::ScramExchange::Outcome::go_on || length == no_data) return chosen;
        return scram.receive(data);
    }

    /// The body of the client's next message, which must be one of the password exchange.
    Task<bool> read_message(std::string &body) {
        for (;;) {
            if (!in_.empty() && in_.data()[0] != 'p')
                co_return co_await refuse(
                    {"08P01", format("expected SASL response, got message type %d",
                                     static_cast<unsigned char>(in_.data()[0]))});
            wire::Frame frame;
            switch (wire::peek_frame(in_, wire::frame_header + max_sasl_message, frame)) {
            case wire::FrameState::ready:
                body = frame.body;
                in_.consume(frame.size);
                co_return true;
            case wire::FrameState::need_more:
                if (!co_await read_more()) co_return false;
                break;
            case wire::FrameState::malformed:
            case wire::FrameState::too_long:
                co_return co_await refuse({"08P01", "invalid message length"});
            }
        }
    }

    Task<bool> look_up(UserFound &found) {
        if (!worker_.client_auth)
            co_return co_await refuse({"28000", "no way to authenticate is set up"});
        found = co_await worker_.client_auth->find(*rules_, user_, deadline_);
        if (found.late) co_return co_await refuse(timed_out());
        if (found.unavailable)
            co_return co_await refuse({"57P03", "users cannot be looked up at present",
                                       "The catalog does not answer.", "Try again later."});
        co_return true;
    }

    static wire::Fatal timed_out() { return {"57014", "canceling authentication due to timeout"}; }
    wire::Fatal no_certificate() const {
        return {"28000", "certificate authentication failed for user \"" + user_ + "\""};
    }

    Task<bool> check_database(const wire::Startup &startup) {
        const std::string &only = worker_.settings().pg_database;
        const bool console = startup.database == console_database;
        if (!console && (only.empty() || startup.database == only)) co_return true;
        wire::Fatal fatal{"3D000", "database \"" + startup.database + "\" does not exist"};
        if (console)
            fatal.hint = "This name is kept for the router's console, which this version does not "
                         "have yet.";
        co_return co_await refuse(std::move(fatal));
    }

    /// Reads what has come onto the end of in_; false when nothing more will come.
    Task<bool> read_more() {
        for (;;) {
            switch (transport_.stream.read(in_, read_step)) {
            case wire::StreamState::ok: co_return true;
            case wire::StreamState::want_read:
                if (!co_await wait_for(false)) co_return false;
                break;
            case wire::StreamState::want_write:
                if (!co_await wait_for(true)) co_return false;
                break;
            case wire::StreamState::closed:
            case wire::StreamState::broken:
                if (!in_.empty()) log_debug("client %s left in the middle of its login", peer());
                co_return false;
            }
        }
    }

    /// Waits for the socket; false when the time is up.
    Task<bool> wait_for(bool writable) {
        Wait wait(worker_.loop(), deadline_);
        const Fired fired =
            co_await (writable ? wait.write(transport_.watch) : wait.read(transport_.watch));
        if (!fired.none()) co_return true;
        // A client that has said nothing yet is not spoken to, as PostgreSQL has it.
        if (!user_.empty() && !leaving_) co_return co_await refuse(timed_out());
        log_debug("client %s did not log in in time", peer());
        co_return false;
    }

    Task<bool> flush() {
        while (!out_.empty()) {
            switch (transport_.stream.write(out_)) {
            case wire::StreamState::ok: break;
            case wire::StreamState::want_read:
                if (!co_await wait_for(false)) co_return false;
                break;
            case wire::StreamState::want_write:
                if (!co_await wait_for(true)) co_return false;
                break;
            case wire::StreamState::closed:
            case wire::StreamState::broken: co_return false;
            }
        }
        co_return true;
    }

    /// Tells the client, and the log, why it cannot come in. Always false.
    Task<bool> refuse(wire::Fatal fatal, std::string log_detail = {}) {
        log_info("client %s%s: %s%s", peer(), user_.empty() ? "" : (" as " + user_).c_str(),
                 fatal.message.c_str(),
                 log_detail.empty() ? "" : (" (" + log_detail + ")").c_str());
        leaving_ = true;
        wire::append_fatal(out_, fatal);
        deadline_ = worker_.loop().now() + goodbye_time;
        if (!co_await flush()) co_return false;
        transport_.tls.say_goodbye();
        ::shutdown(transport_.socket.get(), SHUT_WR);
        // Closed at once, a socket with unread input would reset the connection and lose the
        // message.
        for (std::size_t taken = 0; taken < goodbye_bytes; taken += read_step) {
            in_.clear();
            if (!co_await read_more()) break;
        }
        co_return false;
    }

    const char *peer() {
        if (peer_.empty()) peer_ = peer_of(transport_.socket.get());
        return peer_.c_str();
    }

    Worker &worker_;
    Transport &transport_;
    Buffer &in_;
    Buffer out_;
    Millis deadline_;
    std::shared_ptr<const LoginRules> rules_;
    bool leaving_ = false;
    std::string user_;  ///< empty before the start-up packet
    std::string peer_;
};

}  // namespace

Transport::Transport(Loop &loop, UniqueFd socket_)
    : socket(std::move(socket_)), watch(loop, socket.get()), stream(socket.get(), nullptr) {}

Transport::~Transport() {
    tls.say_goodbye();
}

Task<Opening> open_connection(Worker &worker, Transport &transport, Buffer &in) {
    Exchange exchange(worker, transport, in);
    co_return co_await exchange.run();
}

}  // namespace interlock
