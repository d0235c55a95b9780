// The part of a move that its writers feel: from the announcement to the new route version.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/move_handoff.h"
#include "tools/move_model.h"
#include "tools/move_record.h"
#include "tools/move_verify.h"

namespace interlock {

/// A try that came to nothing and left nothing behind.
struct MoveHeldUp {
    std::string reason;
    std::vector<MoveHolder> holders;
    bool others_turn = false;  ///< another move, or apply, was publishing: nothing was tried
};

/// The two sides are not the same: the move is to be taken back.
class MoveDiffers : public ControlError {
  public:
    using ControlError::ControlError;
};

class MoveSwitch {
  public:
    MoveSwitch(const MoveRequest &request, MoveSession &session, MoveRecord &record,
               MoveObserver &observer);

    /// One try, from the announcement on. nullopt: the target has the buckets and it is published.
    /// Throws ControlError; what has been decided by then, the source tells.
    std::optional<MoveHeldUp> attempt();

    /// What is decided is carried on: activation, publication. May be repeated.
    /// `compare`: what was compared before the decision was copied again since.
    void drive_forward(bool compare = false);

    /// Opens the fence, if there is one, and withdraws the number. May be repeated. Throws
    /// ControlError 55000 if the move is decided.
    void give_up();

    /// What was found if both sides' snapshots were compared after the switch; nullopt: they were
    /// compared before it, or could not be.
    std::optional<MoveComparison> compare_afterwards();

  private:
    using Clock = std::chrono::steady_clock;

    void prepare();
    std::optional<MoveHeldUp> try_it();
    void wait_for_routers(std::chrono::milliseconds patience);
    std::vector<MoveHolder> wait_for(bool readers, std::int64_t timeout);
    std::optional<MoveHeldUp> wait_for_writers();
    bool end_sessions(const std::vector<MoveHolder> &holders);
    bool drain(std::int32_t fence, Clock::time_point deadline);
    std::optional<MoveHeldUp> verify();
    [[nodiscard]] std::string they_differ() const;
    void decide_and_publish();
    /// What a move that is decided under `decided` is to be published as.
    [[nodiscard]] std::int32_t number_of_publication(std::int32_t decided);
    void raise_sequences(std::int64_t limit);  ///< ms for each table
    [[nodiscard]] std::int64_t left() const;   ///< ms until the pause is as long as it may be

    const MoveRequest &request_;
    MoveSession &session_;
    MoveRecord &record_;
    MoveObserver &observer_;
    MoveVerifier verifier_;
    std::unique_ptr<ControlConnection> waiter_;  ///< of the source; commits are not waited for
    bool verify_before_ = false;
    bool snapshots_ = false;
    std::int32_t version_ = 0;
    Clock::time_point began_{};
};

}  // namespace interlock
