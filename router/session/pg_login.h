// The beginning of a connection to the PostgreSQL listener: SSLRequest, GSSENCRequest, start-up
// packet or cancel request, authentication.
#pragma once

#include "base/buffer.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/task.h"
#include "session/worker.h"
#include "wire/stream.h"
#include "wire/tls.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace interlock {

/// A client that has proven who it is. AuthenticationOk has been sent, nothing after it.
struct Login {
    std::string user;
    std::string database;
    std::string backend_login;  ///< role the client's statements run as on the shards
    std::vector<std::pair<std::string, std::string>>
        parameters;  ///< of the start-up packet, without
                     ///< user and database; "options"
                     ///< already taken apart into its
                     ///< -c name=value settings
};

/// What a connection asked for.
struct Opening {
    enum class Kind : std::uint8_t { login, cancel, closed } kind = Kind::closed;
    Login login;
    std::uint32_t cancel_pid = 0;  ///< of a cancel request
    std::uint32_t cancel_secret = 0;
};

/// One more in a count for as long as it lives.
class Counted {
  public:
    Counted() = default;
    explicit Counted(std::size_t &count) : count_(&count) { ++count; }
    Counted(Counted &&other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Counted &operator=(Counted &&other) noexcept {
        std::swap(count_, other.count_);
        return *this;
    }
    ~Counted() {
        if (count_ != nullptr) --*count_;
    }

  private:
    std::size_t *count_ = nullptr;
};

/// The transport of one client: socket, TLS session if any, byte stream.
struct Transport {
    Transport(Loop &loop, UniqueFd socket);
    ~Transport();
    Transport(const Transport &) = delete;
    Transport &operator=(const Transport &) = delete;

    Counted admitted;  ///< its place among the worker's pg_clients, once it has one
    UniqueFd socket;
    Watch watch;
    wire::TlsSession tls;  ///< empty on a plain connection
    wire::Stream stream;
};

/// Carries out the start of a connection, within pg.login_timeout, and counts it among the worker's
/// clients: pg.max_clients is kept here. On `closed` the client has been told why, if it could be,
/// and the connection is to be dropped. `in` is left empty or with the bytes that came after the
/// start-up exchange; never with bytes that came before a TLS handshake ended.
[[nodiscard]] Task<Opening> open_connection(Worker &worker, Transport &transport, Buffer &in);

}  // namespace interlock
