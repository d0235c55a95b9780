// TLS of the PostgreSQL listener: the context (certificate, key, authorities) and one session for
// each client.
//
// TLS 1.2 or newer, no compression, no renegotiation, no session tickets: as PostgreSQL. Bytes are
// moved by wire::Stream over the session's SSL; when to wait is decided above.
#pragma once

#include "base/result.h"
#include "wire/stream.h"

#include <memory>
#include <optional>
#include <string>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace interlock::wire {

struct TlsFiles {
    std::string certificate;  ///< and the chain behind it, PEM
    std::string key;          ///< PEM, without a passphrase, closed to others
    std::string authorities;  ///< PEM; empty: client certificates are not asked for
    bool operator==(const TlsFiles &) const = default;
};

/// Immutable once loaded; sessions keep the context they began with.
class TlsContext {
  public:
    /// Reads the files. The error is one line that names the file. The key file must belong to us
    /// and be closed to everybody else, or belong to root and be at most readable by a group.
    [[nodiscard]] static Result<std::shared_ptr<const TlsContext>, std::string>
    load(const TlsFiles &files);

    [[nodiscard]] ssl_ctx_st *get() const { return context_.get(); }
    /// The server certificate's hash for tls-server-end-point (RFC 5929); empty when its kind of
    /// signature has none defined.
    [[nodiscard]] const std::string &end_point() const { return end_point_; }

  private:
    struct Free {
        void operator()(ssl_ctx_st *context) const;
    };
    TlsContext() = default;
    std::unique_ptr<ssl_ctx_st, Free> context_;
    std::string end_point_;
};

/// The TLS state of one client's connection; empty on a plain one.
class TlsSession {
  public:
    TlsSession() = default;

    /// Begins a session over a non-blocking socket, which stays the caller's. False when memory is
    /// short.
    [[nodiscard]] bool begin(std::shared_ptr<const TlsContext> context, int fd);
    /// Carries the handshake on as far as it goes now. Call again when want_read or want_write is
    /// over; ok: it is done; broken: it failed, error() says why.
    [[nodiscard]] StreamState handshake();

    [[nodiscard]] bool active() const { return get() != nullptr; }
    [[nodiscard]] ssl_st *get() const { return state_ ? state_->ssl.get() : nullptr; }
    [[nodiscard]] const TlsContext *context() const {
        return state_ ? state_->context.get() : nullptr;
    }
    [[nodiscard]] std::string error() const { return state_ ? state_->error : std::string(); }

    /// Whether the client has shown a certificate; an accepted handshake means that it was signed
    /// by one of the authorities.
    [[nodiscard]] bool has_peer_certificate() const;
    /// The common name in it; nothing when there is none, or one with a zero byte in it.
    [[nodiscard]] std::optional<std::string> peer_common_name() const;

    /// Tells the client that nothing more comes, if that can be written now.
    void say_goodbye();

  private:
    struct Free {
        void operator()(ssl_st *ssl) const;
    };
    struct State {
        std::shared_ptr<const TlsContext> context;
        std::unique_ptr<ssl_st, Free> ssl;
        std::string error;
    };
    std::unique_ptr<State> state_;  ///< null on a plain connection, which thus pays for a pointer
};

}  // namespace interlock::wire
