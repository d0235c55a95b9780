#include "server/backend.h"

#include "base/log.h"

#include <cstdlib>
#include <libpq-fe.h>
#include <sys/socket.h>
#include <vector>

namespace interlock {

namespace {

// Answers to our own short commands; anything longer is not one of them.
constexpr std::size_t control_frame_limit = 64 * 1024;
constexpr std::size_t read_step = 64 * 1024;

void append_query(Buffer &out, std::string_view sql) {
    wire::FrameWriter(out, 'Q').string(sql);
}

std::string describe_error(std::string_view body) {
    wire::ErrorFields fields;
    if (!wire::parse_error(body, fields)) return "malformed error";
    std::string text =
        format("%.*s: %.*s", static_cast<int>(fields.sqlstate.size()), fields.sqlstate.data(),
               static_cast<int>(fields.message.size()), fields.message.data());
    if (fields.sqlstate == "3F000" || fields.sqlstate == "42883")
        text += "; HINT: the extension is missing in this database: run \"interlock apply\"";
    return text;
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
            log_debug("backend %d: %s", pid_, describe_error(frame.body).c_str());
        }
        pop(frame.size);
        if (type == 'Z') co_return !failed && status == state;
    }
}

Task<bool> Backend::command(std::string_view sql, char state, Millis deadline) {
    append_query(out_, sql);
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

Task<void> Backend::cancel(Millis deadline) {
    if (cancel_key_) co_await request_cancel(loop_, cancel_key_, deadline);
}

Task<std::string> Backend::greet(const ExpectedIdentity &expected, std::int32_t route_version,
                                 Millis deadline) {
    if (PQsslInUse(connection_.get()) != 0 && PQsslStruct(connection_.get(), "OpenSSL") == nullptr)
        co_return "libpq uses a TLS library other than OpenSSL";
    append_query(out_, format("SELECT cluster_id::text, shard, floor::text, restored::text, "
                              "catalog_first::text, "
                              "pg_catalog.pg_is_in_recovery()::text FROM interlock.greet(%d)",
                              route_version));
    if (co_await flush(deadline) != Io::ok) co_return "the connection was lost while greeting";
    std::vector<std::string> row;
    std::string problem;
    bool described = false;
    for (;;) {
        wire::Frame frame;
        const wire::FrameState state = peek(control_frame_limit, frame);
        if (state == wire::FrameState::need_more) {
            const Io io = co_await fill(deadline);
            if (io == Io::timeout) co_return "the server did not answer the greeting in time";
            if (io == Io::closed)
                co_return problem.empty() ? "the connection was lost while greeting" : problem;
            continue;
        }
        if (state != wire::FrameState::ready)
            co_return "the greeting was answered by malformed frames";
        bool ended = false;
        switch (frame.type) {
        case 'T': described = true; break;
        case 'D': {
            wire::FieldReader fields(frame.body);
            const std::uint16_t count = fields.int16();
            row.clear();
            for (unsigned i = 0; i < count && fields.ok(); ++i) {
                const std::uint32_t length = fields.int32();
                row.emplace_back(length == 0xFFFFFFFFU ? std::string_view() : fields.bytes(length));
            }
            if (!fields.ok()) co_return "the greeting was answered by malformed frames";
            break;
        }
        case 'E': problem = describe_error(frame.body); break;
        case 'C':
        case 'N':
        case 'S':
        case 'A': break;
        case 'Z': ended = true; break;
        default: co_return "the greeting was answered by unexpected frames";
        }
        pop(frame.size);
        if (ended) break;
    }
    if (!problem.empty()) co_return problem;
    if (!described || row.size() != 6) co_return "the greeting was not answered by one row";
    if (row[5] != "false") co_return "the server is a standby: it is in recovery";
    if (row[0].empty()) co_return "the database is not a shard yet; HINT: run \"interlock apply\"";
    if (row[0] != expected.cluster_id)
        co_return format("the connection leads to another cluster (%s), not to cluster %s",
                         row[0].c_str(), expected.cluster_id.c_str());
    if (row[1] != expected.shard)
        co_return format("the connection leads to shard %s, not to shard %s", row[1].c_str(),
                         expected.shard.c_str());
    if (row[3] != "false")
        co_return "the database is a restored copy of the shard; HINT: if it is to replace the "
                  "shard, run SELECT interlock.adopt_shard() in it";
    if (std::atoi(row[2].c_str()) > route_version)
        co_return format("the shard has given buckets away under route version %s, this router "
                         "still works under version %d",
                         row[2].c_str(), route_version);
    if (row[4] != "true")
        co_return "the login's search_path puts another schema before pg_catalog, so operators "
                  "could mean something else";
    route_version_ = route_version;
    co_return std::string();
}

}  // namespace interlock
