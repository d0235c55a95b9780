// A non-blocking byte stream over a descriptor: plain, or through a TLS session somebody else made.
//
// Only moves bytes; when to wait, and for how long, is decided above.
#pragma once

#include "base/buffer.h"

#include <cstddef>
#include <string>

struct ssl_st;  // OpenSSL's SSL

namespace interlock::wire {

enum class StreamState {
    ok,          ///< some bytes moved
    want_read,   ///< nothing moved; try again when the descriptor is readable
    want_write,  ///< nothing moved; try again when it is writable
    closed,      ///< the other side ended the stream
    broken,      ///< an error; see errno
};

class Stream {
  public:
    /// `fd` must be non-blocking. Neither fd nor ssl is owned; ssl may be null (plain).
    Stream(int fd, ssl_st *ssl) : fd_(fd), ssl_(ssl) {}

    /// Reads what is there, at most `limit` bytes, onto the end of `into`.
    [[nodiscard]] StreamState read(Buffer &into, std::size_t limit);
    /// Writes as much of `from` as goes now and consumes it. Once it could not go on, the same
    /// bytes must come first the next time (more may have been put behind them).
    [[nodiscard]] StreamState write(Buffer &from);
    /// Whether bytes have been taken off the descriptor that read() has not yet given out: it will
    /// not become readable for their sake. Never after a read() with a limit of 16 kB or more.
    [[nodiscard]] bool holds_bytes() const;

  private:
    [[nodiscard]] StreamState receive(char *room, std::size_t step, Buffer &into);
    [[nodiscard]] StreamState tls_state(int result);
    int fd_;
    ssl_st *ssl_;
};

}  // namespace interlock::wire
