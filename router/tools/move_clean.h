// What is left of a move on the shards, and its removal.
#pragma once

#include <string>

#include "tools/move_model.h"
#include "tools/move_record.h"
#include "tools/move_slot.h"

namespace interlock {

class MoveClean {
  public:
    MoveClean(const MoveRequest &request, MoveSession &session, MoveRecord &record,
              MoveObserver &observer);

    /// After the publication: subscription, slot and publication go, then the source's rows, when
    /// their time has come and nobody can see them any more. Whether all of that is done; if not,
    /// `interlock move --clean` does the rest one day. May be repeated.
    bool after_switch(bool now);

    /// After abort_export(): the same for what the target has got. May be repeated.
    void after_abort();

  private:
    void remove_stream();
    void require_active_target();
    bool rows_are_to_be_kept();
    bool older_transactions_have_ended(bool now);
    void delete_rows(ControlConnection &shard, const Shard &named);
    void forget();

    const MoveRequest &request_;
    MoveSession &session_;
    MoveRecord &record_;
    MoveObserver &observer_;
    MoveStream stream_;
};

}  // namespace interlock
