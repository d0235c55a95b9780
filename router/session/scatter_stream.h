// One shard's part of a scatter: lends a backend, sends, and gives the answer out row by row.
//
//     lending -> ready -> waiting -> row -> waiting -> ... -> end        (failed from anywhere)
//
// Until its first row (or end, or failure) a stream works on its own, so that all shards are waited
// for at once; from then on whoever holds it pulls it on. A row stays in the backend's buffer until
// it is popped, and nothing more is read meanwhile: that is what holds a fast shard back. When
// nobody wants it any more it is abandoned: it then sees to it by itself that the statement ends
// and the backend goes back to its pool (session/scatter_drain.h), however long that takes.
#pragma once

#include "base/loop.h"
#include "base/task.h"
#include "server/pools.h"
#include "session/pg_parameters.h"
#include "session/relay.h"
#include "session/scatter_row.h"
#include "session/worker.h"
#include "sql/facts.h"
#include "sql/refusal.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// What all shards of a scatter are sent. Made once, shared by the streams.
struct ShardRequest {
    Parameters parameters;                    ///< put in force first, where they are not
    std::string frames;                       ///< the prologue, if any; the statement up to Sync
    std::string tail;                         ///< what ends its transaction; empty: nothing to end
    bool prologue = false;                    ///< `frames` begins with a Query of its own
    std::uint16_t hidden = 0;                 ///< columns at the end of each row
    std::uint64_t most = 0;                   ///< rows a shard may send
    std::shared_ptr<const sql::Facts> facts;  ///< of the statement
};

class ShardStream : public std::enable_shared_from_this<ShardStream> {
  public:
    enum class State : std::uint8_t {
        lending,  ///< waits for a backend
        ready,    ///< has one; nothing was sent
        waiting,  ///< the next row, or the end, has not arrived
        row,      ///< row() and key() are there
        end,      ///< all rows were read and the shard said that the statement succeeded
        failed,   ///< refusal() says why
    };
    enum class Fault : std::uint8_t {
        none,
        away,     ///< the shard could not be reached, or was lost: others may do without it
        refused,  ///< it answered with an error, or with what is no answer
    };

    ShardStream(Worker &worker, std::shared_ptr<const Routes> routes, std::string login,
                ShardIndex shard);

    [[nodiscard]] ShardIndex shard() const { return shard_; }
    [[nodiscard]] const std::string &name() const { return name_; }
    [[nodiscard]] State state() const { return state_; }
    [[nodiscard]] Fault fault() const { return fault_; }
    [[nodiscard]] const Refusal &refusal() const { return refusal_; }
    /// The lent backend; from `ready` on.
    [[nodiscard]] Backend &backend() { return *lease_; }

    // In the order of a scatter's course. `changed` is set whenever the state has changed by
    // itself.

    /// Queues for a backend at once: streams that begin together stand in the same order in every
    /// pool's queue, so that they cannot wait for each other in a circle.
    void begin(Event *changed);
    /// In `ready`: asks the shard again for its keysets and keys; busy() meanwhile.
    void learn();
    /// The shard's answer belies what the backend was told: the next page asks again.
    void forget_keysets();
    /// In `ready`: sends, and reads up to the first row.
    void ask(std::shared_ptr<const ShardRequest> request);
    /// At work by itself; `changed` will be set. A backend alone (`ready`) is no work.
    [[nodiscard]] bool busy() const {
        return state_ == State::lending || learning_ || (working_ && state_ == State::waiting);
    }

    /// Body of the RowDescription, hidden columns included; from the first row or the end on.
    [[nodiscard]] const std::string &description() const { return description_; }
    /// In `row`: body of the DataRow, valid until pop(), and where its parts are.
    [[nodiscard]] std::string_view row() const { return row_; }
    [[nodiscard]] const RowParts &parts() const { return parts_; }
    [[nodiscard]] std::string_view key() const { return parts_.key; }
    [[nodiscard]] std::uint64_t rows() const { return rows_; }
    /// Done with the row; looks for the next one among what has arrived.
    void pop();

    /// Waits until the state is not `waiting`. False when `stop` was set or the deadline passed
    /// before. Not while it is busy.
    [[nodiscard]] Task<bool> proceed(Millis deadline, Event *stop);

    /// At the end, while the transaction is still open (no tail): sends what was appended to
    /// backend().out(), a request in the extended protocol up to its Sync, and is `waiting` again.
    void ask_more();

    /// Nobody wants the rest. `soon`: the statement is likely to end by itself in a moment; else it
    /// is cancelled. The object may be forgotten after this; nothing but drain() touches it.
    void abandon(bool soon);

  private:
    friend class ShardDrain;
    enum class Round : std::uint8_t { settings, prologue, statement, tail };

    [[nodiscard]] Task<void> work(std::shared_ptr<ShardStream> self);
    [[nodiscard]] Task<void> learn_again();
    void send();
    void append_settings();
    void advance();
    void take_frame(const wire::Frame &frame);
    void take_row(const wire::Frame &frame);
    void take_error(const wire::Frame &frame);
    void round_ended(const wire::Frame &frame);
    void malformed();
    void lost();
    void fail(Fault fault, Refusal refusal);
    void fail_as(AnswerEnd end);
    void tell();
    void charge();
    [[nodiscard]] bool settled() const { return round_ == rounds_.size(); }

    Worker *worker_;  ///< null when abandoned
    Loop &loop_;
    std::shared_ptr<const Routes> routes_;
    std::string login_;
    ShardIndex shard_;
    std::string name_;
    std::size_t frame_limit_;

    State state_ = State::lending;
    Fault fault_ = Fault::none;
    Refusal refusal_;
    Lease lease_;
    std::shared_ptr<const ShardRequest> request_;
    bool working_ = false;
    bool learning_ = false;
    Event wish_;  ///< to learn, or to ask
    Event abandoned_;
    bool given_away_ = false;
    Event *changed_ = nullptr;

    // The exchange.
    std::vector<Round> rounds_;
    std::size_t round_ = 0;  ///< whose answer is awaited
    bool described_ = false;
    bool completed_ = false;   ///< CommandComplete of the statement
    bool more_ = false;        ///< this is the answer to ask_more(): other rows
    bool discarding_ = false;  ///< rows are passed over, up to the last ReadyForQuery
    bool broken_ = false;      ///< nothing can be read any more
    bool ended_ = false;       ///< because the connection has ended
    bool unsendable_ = false;  ///< the connection takes nothing more; it may still say why
    char transaction_ = 'I';
    BackendError error_;  ///< of the round
    std::string description_;
    std::uint16_t columns_ = 0;
    std::string_view row_;
    std::size_t row_size_ = 0;  ///< of its frame
    RowParts parts_;
    std::uint64_t rows_ = 0;
    std::size_t charged_ = 0;
    std::shared_ptr<ScatterCounters> counters_;
    bool soon_ = false;
};

}  // namespace interlock
