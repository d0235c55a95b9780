// The answers a client is owed: what was asked of the backend, in order, and what the router
// answers itself in between.
//
// Every request forwarded to the backend adds an expected answer; every answer of our own is put in
// line behind those. feed() takes what the backend has sent and moves it to the client's buffer:
// rows and descriptions byte for byte, our own answers where they belong, answers to the router's
// own requests (its BEGIN, its settings, statements prepared on demand) nowhere.
//
// After an error in the extended protocol the server skips everything up to the next Sync; so does
// this queue.
#pragma once

#include "base/buffer.h"
#include "server/backend.h"
#include "session/outcome.h"
#include "session/relay.h"
#include "sql/refusal.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// One answer that is owed.
struct Owed {
    enum class Kind : std::uint8_t {
        parse,               ///< ParseComplete
        bind,                ///< BindComplete
        close,               ///< CloseComplete
        describe_statement,  ///< ParameterDescription, then RowDescription or NoData
        describe_portal,     ///< RowDescription or NoData
        execute,             ///< rows, then CommandComplete, EmptyQueryResponse or PortalSuspended
        query,               ///< everything up to ReadyForQuery, of a Query message
        sync,                ///< ReadyForQuery
        local,               ///< `bytes` of our own answers
    };
    enum class To : std::uint8_t {
        client,  ///< forwarded
        nobody,  ///< the router's own request; its notices and status changes are dropped
        router,  ///< the router's own request: rows are kept for it, status changes are forwarded
    };
    Kind kind = Kind::local;
    To to = To::client;
    std::uint32_t note = 0;   ///< for the owner; 0: nothing to tell it
    std::uint32_t bytes = 0;  ///< of a local answer
};

/// What the owner of an exchange is told. Called from feed().
class ExchangeOwner {
  public:
    virtual ~ExchangeOwner() = default;
    /// An answer whose note is not 0 is complete. `tag` is of CommandComplete, else empty.
    virtual void completed(const Owed &owed, std::string_view tag) = 0;
    /// A description whose note is not 0: RowDescription's body, or empty for NoData.
    virtual void described(const Owed &owed, std::string_view columns) = 0;
    /// It will never come: an error was its answer (`at_fault`), or an earlier one made the server
    /// skip it, or the backend is lost.
    virtual void dropped(const Owed &owed, bool at_fault) = 0;
    /// The server says that a parameter has changed; return whether to tell the client.
    virtual bool status_changed(std::string_view name, std::string_view value, Owed::To to) = 0;
    /// An error answer. Returns true if it has written another one into `out` itself.
    virtual bool error_arrived(const wire::ErrorFields &error, Owed::To to, Buffer &out) = 0;
};

class Exchange {
  public:
    enum class Feed {
        done,       ///< nothing is owed any more
        need_more,  ///< the backend has to send more
        blocked,    ///< the client's buffer is full
        malformed,  ///< the backend sent what it must not: close it
    };

    void expect(Owed::Kind kind, Owed::To to = Owed::To::client, std::uint32_t note = 0);
    /// Puts an answer of our own in line: append to the buffer returned, then call local_done().
    [[nodiscard]] Buffer &local() { return local_; }
    void local_done(std::uint32_t note = 0);

    [[nodiscard]] bool idle() const { return nothing_owed(); }
    /// Whether the backend still owes something.
    [[nodiscard]] bool waits_for_backend() const { return from_backend_ > 0; }
    /// Whether it owes something that the client, or the router for the client, waits for.
    [[nodiscard]] bool owes_client() const;

    /// Moves what has arrived. `out` is filled up to about `limit` bytes.
    [[nodiscard]] Feed feed(Backend &backend, Buffer &out, std::size_t limit, ExchangeOwner &owner);
    /// Without a backend: moves our own answers at the front of the line.
    void feed_local(Buffer &out, ExchangeOwner &owner);

    /// The backend is lost: forgets all that is owed, telling the owner what was dropped. Our own
    /// answers in front of the first one owed by the backend should be moved before.
    void drop_all(ExchangeOwner &owner);

    /// State of the last ReadyForQuery.
    [[nodiscard]] char status() const { return status_; }
    /// An error answered a client's request (or a prologue of it) since the flag was taken.
    [[nodiscard]] bool take_failed() { return std::exchange(failed_, false); }
    /// The server skips to the next Sync, which has not been sent yet.
    [[nodiscard]] bool server_skips() const { return server_skips_; }
    /// An error in the router's own requests: the client's settings are not in force, or the server
    /// skips the client's Query. The backend must be closed.
    [[nodiscard]] bool stuck() const { return stuck_; }
    /// The error with which the server said goodbye, if it did.
    [[nodiscard]] const BackendError &farewell() const { return farewell_; }
    /// Behind the answer that comes now there is another statement's.
    [[nodiscard]] bool more_statements() const;
    /// All commands of the request have been answered; only ReadyForQuery is missing.
    [[nodiscard]] bool only_ready_missing() const;
    /// Columns of the last row kept for the router, and whether one came.
    [[nodiscard]] const std::vector<std::string> &kept_row() const { return kept_row_; }
    void clear_kept_row() { kept_row_.clear(); }
    /// The error that answered the last of the router's own requests; empty sqlstate: none.
    [[nodiscard]] BackendError &own_error() { return own_error_; }

    /// Between two leases.
    void reset();

  private:
    enum class Took { next, wait, stop };
    void pop(ExchangeOwner &owner, std::string_view tag);
    void skip_to_sync(ExchangeOwner &owner);
    [[nodiscard]] bool take_error(const wire::Frame &frame, Buffer &out, ExchangeOwner &owner);
    [[nodiscard]] bool take_message(const wire::Frame &frame, std::string_view whole, Buffer &out,
                                    ExchangeOwner &owner);
    void keep_row(std::string_view body);

    // A queue in a vector: `first_` is the front, and storage is kept for the next round.
    [[nodiscard]] bool nothing_owed() const { return first_ == owed_.size(); }
    [[nodiscard]] const Owed &front() const { return owed_[first_]; }
    [[nodiscard]] Owed pop_front();
    std::vector<Owed> owed_;
    std::size_t first_ = 0;
    std::size_t from_backend_ = 0;
    Buffer local_;
    std::size_t local_in_line_ = 0;  ///< bytes of local_ that have their place in owed_
    std::size_t passing_ = 0;        ///< bytes left of a long frame that is moved in pieces
    bool passing_kept_ = false;
    char status_ = 'I';
    bool failed_ = false;
    bool server_skips_ = false;
    bool stuck_ = false;
    BackendError farewell_;
    BackendError own_error_;
    std::vector<std::string> kept_row_;
};

}  // namespace interlock
