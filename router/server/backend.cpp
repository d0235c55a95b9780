#include "server/backend.h"

#include "base/log.h"

#include <libpq-fe.h>
#include <sys/socket.h>

namespace interlock {

namespace {

// Answers to our own short commands; anything longer is not one of them.
constexpr std::size_t control_frame_limit = 64 * 1024;
constexpr std::size_t read_step = 64 * 1024;

void append_query(Buffer &out, std::string_view sql) {
    wire::FrameWriter(out, 'Q').string(sql);
}

}  // namespace

Backend::Backend(Loop &loop, Connection connection)
    : loop_(loop), connection_(std::move(connection)),
      cancel_key_(PQgetCancel(connection_.get()), FreeCancel{}),
      tls_(PQsslInUse(connection_.get()) != 0), pid_(PQbackendPID(connection_.get())),
      stream_(PQsocket(connection_.get()),
              static_cast<ssl_st *>(PQsslStruct(connection_.get(), "OpenSSL"))),
      watch_(loop, PQsocket(connection_.get())) {
    PQsetnonblocking(connection_.get(), 1);
}

std::string Backend::reported(const char *parameter) const {
    const char *value = PQparameterStatus(connection_.get(), parameter);
    return value == nullptr ? std::string() : std::string(value);
}

std::string Backend::takeover_problem() const {
    if (tls_ && PQsslStruct(connection_.get(), "OpenSSL") == nullptr)
        return "libpq uses a TLS library other than OpenSSL";
    return {};
}

Backend::~Backend() {
    // PQfinish says goodbye to the server. It must neither wait for room to do so, nor put its
    // message into the middle of a frame that was sent in part.
    if (!out_.empty()) ::shutdown(PQsocket(connection_.get()), SHUT_RDWR);
}

Task<Io> Backend::flush(Millis deadline) {
    while (!out_.empty()) {
        switch (stream_.write(out_)) {
        case wire::StreamState::ok: break;
        case wire::StreamState::want_write: {
            const Fired fired = co_await Wait(loop_, deadline).write(watch_);
            if (fired.none()) co_return Io::timeout;
            break;
        }
        case wire::StreamState::want_read: {
            const Fired fired = co_await Wait(loop_, deadline).read(watch_);
            if (fired.none()) co_return Io::timeout;
            break;
        }
        case wire::StreamState::closed:
        case wire::StreamState::broken: co_return Io::closed;
        }
    }
    co_return Io::ok;
}

Io Backend::try_flush() {
    while (!out_.empty()) {
        switch (stream_.write(out_)) {
        case wire::StreamState::ok: break;
        case wire::StreamState::want_read:
        case wire::StreamState::want_write: return Io::timeout;
        case wire::StreamState::closed:
        case wire::StreamState::broken: return Io::closed;
        }
    }
    return Io::ok;
}

Io Backend::fill_now() {
    switch (stream_.read(in_, read_step)) {
    case wire::StreamState::ok: return Io::ok;
    case wire::StreamState::want_read:
    case wire::StreamState::want_write: return Io::timeout;
    case wire::StreamState::closed:
    case wire::StreamState::broken: return Io::closed;
    }
    return Io::closed;
}

Task<Io> Backend::fill(Millis deadline) {
    // A TLS session may hold decrypted bytes that epoll knows nothing of: read first. On a plain
    // socket the answer is not there yet, and reading first would be a wasted system call.
    bool wait_first = !tls_;
    bool for_write = false;
    for (;;) {
        if (wait_first) {
            Wait wait(loop_, deadline);
            if (for_write)
                wait.write(watch_);
            else
                wait.read(watch_);
            const Fired fired = co_await wait;
            if (fired.none()) co_return Io::timeout;
        }
        switch (stream_.read(in_, read_step)) {
        case wire::StreamState::ok: co_return Io::ok;
        case wire::StreamState::want_read: for_write = false; break;
        case wire::StreamState::want_write: for_write = true; break;
        case wire::StreamState::closed:
        case wire::StreamState::broken: co_return Io::closed;
        }
        wait_first = true;
    }
}

Task<bool> Backend::finish_round(char state, Millis deadline) {
    bool failed = false;
    for (;;) {
        wire::Frame frame;
        switch (peek(control_frame_limit, frame)) {
        case wire::FrameState::need_more:
            if (co_await fill(deadline) != Io::ok) co_return false;
            continue;
        case wire::FrameState::ready: break;
        default: co_return false;
        }
        const char type = frame.type;
        const char status = frame.body.empty() ? '\0' : frame.body[0];
        if (type == 'E') {
            failed = true;
            wire::ErrorFields fields;
            if (wire::parse_error(frame.body, fields))
                log_debug("backend %d: %s: %s", pid_, std::string(fields.sqlstate).c_str(),
                          std::string(fields.message).c_str());
        }
        pop(frame.size);
        if (type == 'Z') co_return !failed && status == state;
    }
}

Task<bool> Backend::command(std::string_view sql, char state, Millis deadline) {
    append_query(out_, sql);
    unnamed_owner_ = 0;  // a Query drops it
    if (co_await flush(deadline) != Io::ok) co_return false;
    co_return co_await finish_round(state, deadline);
}

Task<bool> Backend::ping(Millis deadline) {
    wire::FrameWriter(out_, 'S');
    if (co_await flush(deadline) != Io::ok) co_return false;
    co_return co_await finish_round('I', deadline);
}

Task<bool> Backend::set_route_version(std::int32_t version, Millis deadline) {
    if (route_version_ == version) co_return true;
    const std::string sql = format("SET interlock.route_version = %d", version);
    if (!co_await command(sql, 'I', deadline)) co_return false;
    route_version_ = version;
    co_return true;
}

Task<bool> Backend::reset_session(Millis deadline) {
    prepared_.clear();
    unnamed_owner_ = 0;
    applied_parameters_.reset();
    append_query(out_, "DISCARD ALL");
    append_query(out_, format("SET interlock.route_version = %d", route_version_));
    if (co_await flush(deadline) != Io::ok) co_return false;
    if (!co_await finish_round('I', deadline)) co_return false;
    co_return co_await finish_round('I', deadline);
}

Task<void> Backend::cancel(Millis deadline) {
    if (cancel_key_) co_await request_cancel(loop_, cancel_key_, deadline);
}

}  // namespace interlock
