// One connection to a shard, after libpq's handshake: we own the bytes.
//
// Frames are read in place from a bounded buffer and written from one; libpq is kept only for its
// TLS session and to end the connection. A backend is lent to one session at a time and knows what
// of its session is set: the route version, a client's parameters, prepared statements.
#pragma once

#include "base/buffer.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/task.h"
#include "server/connector.h"
#include "server/login.h"
#include "server/prepared.h"
#include "server/surroundings.h"
#include "wire/frame.h"
#include "wire/stream.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace interlock {

enum class Io { ok, timeout, closed };

class Backend {
  public:
    /// Takes over an established connection. It must be greeted (server/greeting.h) before anything
    /// else.
    Backend(Loop &loop, Connection connection);
    ~Backend();
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;

    /// Runs a statement without parameters or rows that matter. False unless it succeeded and the
    /// session is then in transaction state `state` ('I', 'T', 'E'); the backend must then be
    /// closed.
    [[nodiscard]] Task<bool> command(std::string_view sql, char state, Millis deadline);

    /// An empty round trip: true if the server answers that the session is idle.
    [[nodiscard]] Task<bool> ping(Millis deadline);

    /// Sets the session's route version unless it is already that one. False: close the backend.
    [[nodiscard]] Task<bool> set_route_version(std::int32_t version, Millis deadline);

    /// Makes the session as it was when it was greeted, whatever code of users left in it:
    /// settings, role, advisory locks, prepared statements, cursors, LISTEN, temporary tables,
    /// sequence values. False: close the backend.
    [[nodiscard]] Task<bool> reset_session(Millis deadline);

    /// Asks the server to cancel the running statement. It is not to be lent again, unless the
    /// statement's end was read and an empty round trip made after this returned: the request may
    /// still be on its way to the session when its statement has ended by itself.
    [[nodiscard]] Task<void> cancel(Millis deadline);

    // Raw exchange: append frames to out(), flush(), then peek/pop/fill until ReadyForQuery.
    [[nodiscard]] Buffer &out() { return out_; }
    /// Hands everything in out() to the kernel; on anything but ok, something was left.
    [[nodiscard]] Task<Io> flush(Millis deadline);
    /// The same without waiting: timeout if something was left because the kernel has no room.
    [[nodiscard]] Io try_flush();
    [[nodiscard]] wire::FrameState peek(std::size_t limit, wire::Frame &out) const {
        return wire::peek_frame(in_, limit, out);
    }
    void pop(std::size_t bytes) { in_.consume(bytes); }
    /// All bytes that have arrived and were not popped.
    [[nodiscard]] std::string_view arrived() const { return in_.view(); }
    /// Whether the stream may hold bytes that the descriptor does not announce: read first.
    [[nodiscard]] bool read_ahead() const { return tls_; }
    /// Waits for more bytes and reads them.
    [[nodiscard]] Task<Io> fill(Millis deadline);
    /// Reads what has arrived without waiting: ok if something came, timeout if nothing did.
    [[nodiscard]] Io fill_now();

    [[nodiscard]] int pid() const { return pid_; }
    [[nodiscard]] Watch &watch() { return watch_; }
    /// What the server reported of a parameter when the session began; empty if it did not.
    [[nodiscard]] std::string reported(const char *parameter) const;
    /// Why its bytes cannot be taken over from libpq; empty if they can.
    [[nodiscard]] std::string takeover_problem() const;

    // What of its session is set. Whoever changes the session's state keeps this true.

    [[nodiscard]] std::int32_t route_version() const { return route_version_; }
    void greeted(std::int32_t route_version, std::shared_ptr<const LoginDefaults> defaults,
                 std::shared_ptr<const Surroundings> surroundings) {
        route_version_ = route_version;
        defaults_ = std::move(defaults);
        surroundings_ = std::move(surroundings);
    }
    /// What its server was when it was greeted, or asked again: see ShardServer.
    [[nodiscard]] std::uint32_t server_generation() const { return server_generation_; }
    [[nodiscard]] std::int32_t floor() const { return floor_; }
    void set_server(std::uint32_t generation, std::int32_t floor) {
        server_generation_ = generation;
        floor_ = floor;
    }
    /// The session was told by other means.
    void set_route_version(std::int32_t version) { route_version_ = version; }

    /// How its session began.
    [[nodiscard]] const std::shared_ptr<const LoginDefaults> &defaults() const { return defaults_; }

    /// What else is in its database.
    [[nodiscard]] const Surroundings &surroundings() const { return *surroundings_; }
    /// It was asked again.
    void set_surroundings(std::shared_ptr<const Surroundings> surroundings) {
        surroundings_ = std::move(surroundings);
    }

    /// The client parameters in force, by identity; null: the login's defaults.
    [[nodiscard]] const std::shared_ptr<const void> &applied_parameters() const {
        return applied_parameters_;
    }
    void set_applied_parameters(std::shared_ptr<const void> parameters) {
        applied_parameters_ = std::move(parameters);
    }

    /// Statements prepared under their shared names.
    [[nodiscard]] PreparedRegistry &prepared() { return prepared_; }
    /// The statement that the unnamed prepared statement holds; 0: none, or not known.
    [[nodiscard]] std::uint64_t unnamed_owner() const { return unnamed_owner_; }
    void set_unnamed_owner(std::uint64_t id) { unnamed_owner_ = id; }

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

    // For its pool.
    Millis idle_since = 0;
    Millis born = 0;
    double jitter = 0;  ///< 0 to 1: the part of the spread of lifetimes it does not get

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
    std::int32_t floor_ = 0;
    std::uint32_t server_generation_ = 0;
    std::shared_ptr<const LoginDefaults> defaults_;
    std::shared_ptr<const Surroundings> surroundings_;
    std::shared_ptr<const void> applied_parameters_;
    PreparedRegistry prepared_;
    std::uint64_t unnamed_owner_ = 0;
    void (*idle_callback_)(void *, Backend *) = nullptr;
    void *idle_owner_ = nullptr;
};

}  // namespace interlock
