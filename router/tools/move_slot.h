// What carries the changes of a move: what the slot lets through, the publication and the slot at
// the source, the subscription at the target. Each is recorded before it is made.
#pragma once

#include <memory>
#include <string>

#include <libpq-fe.h>

#include "tools/move_model.h"
#include "tools/move_record.h"

namespace interlock {

/// The slot as the source has it.
struct SlotState {
    bool exists = false;
    bool lost = false;      ///< the source has thrown WAL away that it needs
    bool active = false;    ///< somebody reads it
    std::int64_t lag = -1;  ///< bytes of WAL that the target has not applied; -1: not known
    // Places in the WAL, in bytes.
    std::int64_t written = 0;   ///< what is durable at the source
    std::int64_t applied = -1;  ///< up to where the target has come; -1: not known
};

class MoveStream {
  public:
    MoveStream(const MoveRequest &request, MoveSession &session, MoveRecord &record,
               MoveObserver &observer);

    /// The source's output plugin learns what the slot will let through.
    void record_slot();
    void publish_tables();

    /// Makes the slot and returns the name of its snapshot, which can be taken until release().
    /// Waits for the transactions under way at the source; tells the observer of them.
    std::string make_slot();
    void release() { creator_.reset(); }

    /// Both may be repeated.
    void subscribe();
    void drop_subscription();
    [[nodiscard]] bool subscribed();

    [[nodiscard]] SlotState slot_state();

    /// Under which timeline the target writes: a promoted standby of it has another.
    [[nodiscard]] std::string target_timeline();

    /// Markers that came by an earlier slot. A source that was promoted counts its fences from
    /// where it was, so they would be taken for those of its own.
    void forget_markers();
    /// Whether the target has the marker of the source's fence, and so all that was written before.
    [[nodiscard]] bool marker_has_come();
    /// For a decided move: its marker once more, by the slot that there is now.
    void write_marker_again();

    /// Removes the subscription, then the slot, then the publication, then what was recorded of
    /// the slot: whatever of them there is. Throws ControlError.
    void remove();

  private:
    struct Finish {
        void operator()(PGconn *connection) const { PQfinish(connection); }
    };

    void connect_creator();
    std::string create_slot();
    void tell_who_is_waited_for();
    void drop_slot();
    void remove_by(ControlConnection &shard, std::string statement);

    const MoveRequest &request_;
    MoveSession &session_;
    MoveRecord &record_;
    MoveObserver &observer_;
    std::unique_ptr<PGconn, Finish> creator_;
};

/// Text as an SQL literal, whatever standard_conforming_strings says.
[[nodiscard]] std::string sql_literal(const std::string &text);

}  // namespace interlock
