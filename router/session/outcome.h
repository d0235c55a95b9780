// From the end of an exchange to what the client may be told about it.
//
// The line between R30 ("nothing was done, send it again") and R32 ("unknown, look first") is drawn
// here and nowhere else.
#pragma once

#include "session/relay.h"
#include "sql/refusal.h"

#include <optional>
#include <string>

namespace interlock {

enum class Effect {
    read,    ///< cannot have changed anything
    write,   ///< changes rows; committed by itself, or by a COMMIT to come
    commit,  ///< the COMMIT itself
};

/// Nothing when the statement succeeded, else what to tell the client. `autocommit`: the request
/// was a transaction of its own.
[[nodiscard]] std::optional<Refusal> judge(const Answer &answer, Effect effect, bool autocommit,
                                           const std::string &shard);

/// Looks at what a transaction's backend has said between two statements: nothing, notices, or its
/// end. What it means for the next statement, if it has ended. Notices and changed parameters are
/// appended to `forward`, unless that is null.
[[nodiscard]] std::optional<Refusal> look_at_pinned(Backend &backend, const std::string &shard,
                                                    Buffer *forward);

}  // namespace interlock
