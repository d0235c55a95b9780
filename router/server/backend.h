// One connection to a shard, after libpq's handshake: we own the bytes.
//
// Frames are read in place from a bounded buffer and written from one; libpq is kept only for its
// TLS session and to end the connection. A backend is lent to one session at a time and knows what
// of its state is set (the route version).
#pragma once

#include "base/buffer.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/task.h"
#include "server/connector.h"
#include "wire/frame.h"
#include "wire/stream.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace interlock {

enum class Io { ok, timeout, closed };

/// What the server must say about itself before a connection is used.
struct ExpectedIdentity {
    std::string cluster_id;
    std::string shard;
};

class Backend {
  public:
    /// Takes over an established connection. Call greet() before anything else.
    Backend(Loop &loop, Connection connection);
    ~Backend();
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;

    /// Loads the extension in the session, sets the route version and proves whom we talk to:
    /// cluster, shard, floor, not a restored copy, not a standby, built-in operators first in the
    /// search path. This first exchange on our own frames also proves that libpq holds no bytes
    /// back. Empty when all is well, else what is wrong.
    [[nodiscard]] Task<std::string> greet(const ExpectedIdentity &expected,
                                          std::int32_t route_version, Millis deadline);

    /// Runs a statement without parameters or rows that matter. False unless it succeeded and the
    /// session is then in transaction state `state` ('I', 'T', 'E'); the backend must then be
    /// closed.
    [[nodiscard]] Task<bool> command(std::string_view sql, char state, Millis deadline);

    /// An empty round trip: true if the server answers that the session is idle.
    [[nodiscard]] Task<bool> ping(Millis deadline);

    /// Sets the session's route version unless it is already that one. False: close the backend.
    [[nodiscard]] Task<bool> set_route_version(std::int32_t version, Millis deadline);

    /// Asks the server to cancel the running statement. A cancelled backend is never lent again.
    [[nodiscard]] Task<void> cancel(Millis deadline);

    // Raw exchange: append frames to out(), flush(), then peek/pop/fill until ReadyForQuery.
    [[nodiscard]] Buffer &out() { return out_; }
    /// Hands everything in out() to the kernel; on anything but ok, something was left.
    [[nodiscard]] Task<Io> flush(Millis deadline);
    [[nodiscard]] wire::FrameState peek(std::size_t limit, wire::Frame &out) const {
        return wire::peek_frame(in_, limit, out);
    }
    void pop(std::size_t bytes) { in_.consume(bytes); }
    /// Waits for more bytes and reads them.
    [[nodiscard]] Task<Io> fill(Millis deadline);
    /// Reads what has arrived without waiting: ok if something came, timeout if nothing did.
    [[nodiscard]] Io fill_now();

    [[nodiscard]] int pid() const { return pid_; }
    [[nodiscard]] Watch &watch() { return watch_; }

    /// Calls `callback(owner, this)` when something arrives while nobody waits for it. The callback
    /// may destroy the backend.
    void watch_idle(void (*callback)(void *, Backend *), void *owner) {
        idle_callback_ = callback;
        idle_owner_ = owner;
        watch_.on_stray(
            [](void *self) {
                auto *backend = static_cast<Backend *>(self);
                backend->idle_callback_(backend->idle_owner_, backend);
            },
            this);
    }

    Millis idle_since = 0;

  private:
    [[nodiscard]] Task<bool> finish_round(char state, Millis deadline);

    Loop &loop_;
    Connection connection_;
    std::shared_ptr<pg_cancel> cancel_key_;
    bool tls_;
    int pid_;
    wire::Stream stream_;
    Watch watch_;
    Buffer in_;
    Buffer out_;
    std::int32_t route_version_ = 0;
    void (*idle_callback_)(void *, Backend *) = nullptr;
    void *idle_owner_ = nullptr;
};

}  // namespace interlock
