#include "wire/stream.h"

#include <algorithm>
#include <cerrno>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

namespace interlock::wire {

namespace {

// With less room than this behind what is there already, more is made before reading.
constexpr std::size_t least_room = 4 * 1024;

StreamState socket_state(StreamState again) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return again;
    if (errno == ECONNRESET || errno == EPIPE) return StreamState::closed;
    return StreamState::broken;
}

}  // namespace

StreamState Stream::tls_state(int result) {
    switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ: return StreamState::want_read;
    case SSL_ERROR_WANT_WRITE: return StreamState::want_write;
    case SSL_ERROR_ZERO_RETURN: return StreamState::closed;
    default: ERR_clear_error(); return StreamState::closed;
    }
}

bool Stream::holds_bytes() const {
    return ssl_ != nullptr && SSL_pending(ssl_) > 0;
}

StreamState Stream::read(Buffer &into, std::size_t limit) {
    char *room = into.prepare(std::min(limit, least_room));
    const std::size_t step = std::min(limit, into.room());
    const StreamState state = receive(room, step, into);
    if (state != StreamState::ok) into.settle();
    return state;
}

StreamState Stream::receive(char *room, std::size_t step, Buffer &into) {
    if (ssl_ != nullptr) {
        ERR_clear_error();
        const int got =
            SSL_read(ssl_, room, static_cast<int>(std::min<std::size_t>(step, 1 << 20)));
        if (got <= 0) return tls_state(got);
        into.commit(static_cast<std::size_t>(got));
        return StreamState::ok;
    }
    for (;;) {
        const ssize_t got = ::recv(fd_, room, step, 0);
        if (got > 0) {
            into.commit(static_cast<std::size_t>(got));
            return StreamState::ok;
        }
        if (got == 0) return StreamState::closed;
        if (errno == EINTR) continue;
        return socket_state(StreamState::want_read);
    }
}

StreamState Stream::write(Buffer &from) {
    if (ssl_ != nullptr) {
        ERR_clear_error();
        const int chunk = static_cast<int>(std::min<std::size_t>(from.size(), 1 << 20));
        const int put = SSL_write(ssl_, from.data(), chunk);
        if (put <= 0) return tls_state(put);
        from.consume(static_cast<std::size_t>(put));
        return StreamState::ok;
    }
    for (;;) {
        const ssize_t put = ::send(fd_, from.data(), from.size(), MSG_NOSIGNAL);
        if (put >= 0) {
            from.consume(static_cast<std::size_t>(put));
            return StreamState::ok;
        }
        if (errno == EINTR) continue;
        return socket_state(StreamState::want_write);
    }
}

}  // namespace interlock::wire
