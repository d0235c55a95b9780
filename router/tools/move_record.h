// What the catalog is told of a move while it goes on: its steps, and what it makes on the shards.
#pragma once

#include <memory>
#include <string>

#include "tools/move_model.h"
#include "tools/move_steps.h"

namespace interlock {

class MoveRecord {
  public:
    /// Does not connect yet.
    MoveRecord(const MoveRequest &request, MoveSession &session, std::string id,
               MoveObserver &observer);

    [[nodiscard]] const std::string &id() const { return id_; }
    [[nodiscard]] Param id_param() const { return Param::of_uuid(id_); }
    /// Of slot, publication and subscription.
    [[nodiscard]] std::string name() const { return "interlock_move_" + id_.substr(0, 8); }

    /// Keeps other movers away from this move for as long as the session on the catalog lives.
    /// Waits for one that is at work for at most `patience` ms, then throws ControlError naming it.
    void lock(std::int64_t patience = 0);

    /// Throws ControlError if that session is not there any more.
    void require_lock();

    [[nodiscard]] Move read();

    /// Where a step begins, and where it has been made: that is recorded. `progress`: a JSON
    /// object, added to what is recorded; `error`: what stopped it. Until quickly(false), a record
    /// need not survive a crash of the catalog: whoever resumes looks at the shards themselves.
    void begin(MoveStep step);
    void reached(MoveStep step, const std::string &progress = {}, const std::string &error = {});
    /// The same where the move must go on though the catalog cannot be told.
    void reached_or_not(MoveStep step) noexcept;
    void quickly(bool quickly) { quickly_ = quickly; }
    /// Adds to what is recorded at the step where it is, durably; and a member of that, empty if
    /// there is none.
    void note(const std::string &progress, const std::string &error = {});
    [[nodiscard]] std::string noted(const char *member);

    /// Before something is made on a shard, and after it was removed.
    void making(const Shard &shard, const char *kind, const std::string &name);
    void removed(const Shard &shard, const char *kind, const std::string &name);
    /// Whether something of that kind is recorded.
    [[nodiscard]] bool has(const char *kind);

    [[nodiscard]] std::int32_t reserve();
    /// For a move that is decided under `decided`, of which the catalog has lost the reservation:
    /// that number, or a later one.
    [[nodiscard]] std::int32_t reserve_again(std::int32_t decided);
    void announce();
    /// Whether every router that watches the catalog has taken the latest announcement.
    [[nodiscard]] bool routers_know();
    void withdraw();
    std::int32_t publish();
    void finish(const char *outcome);

    /// Opens what the switch will need, and makes the server know the statements.
    void prepare_switch();

  private:
    MoveSession &session_;
    const MoveRequest &request_;
    std::string id_;
    MoveObserver &observer_;
    /// Commits there are not waited for.
    std::unique_ptr<ControlConnection> quick_;
    bool quickly_ = false;
    bool locked_ = false;
};

}  // namespace interlock
