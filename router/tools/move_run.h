// One run of the mover: finds out where a move stands, and carries it on from there.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/move_model.h"
#include "tools/move_record.h"
#include "tools/move_slot.h"
#include "tools/move_switch.h"

namespace interlock {

class MoveRun {
  public:
    MoveRun(const MoveRequest &request, MoveObserver &observer);
    ~MoveRun();

    MoveResult run();

  private:
    bool begin();
    void attach();
    MoveResult carry_on();
    void prepare();
    void require_same_tables();
    void require_same_keeping(ControlConnection &catalog) const;
    void copy();
    void start_anew(bool copied_before);
    void subscribe(bool copied);
    bool follow_again(MoveStep step, bool copied);
    bool target_was_replaced();
    MoveResult follow_and_switch();
    MoveResult finish();
    void require_compared();
    bool may_try_again(const ControlError &error);
    bool decided() noexcept;
    void take_back(const ControlError &error);
    void record_error(const ControlError &error) noexcept;

    const MoveRequest &request_;
    MoveObserver &observer_;
    std::string id_;
    std::unique_ptr<MoveSession> session_;
    std::unique_ptr<MoveRecord> record_;
    std::unique_ptr<MoveStream> stream_;
    std::unique_ptr<MoveSwitch> switch_;
    int copies_ = 0;
    std::string last_step_;
    std::int64_t trouble_since_ = 0;  ///< ms of the steady clock; 0: none
    std::int64_t last_trouble_ = 0;
};

}  // namespace interlock
