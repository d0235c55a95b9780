// One statement's exchange with a backend: frames out, answer in, and what is known at its end.
#pragma once

#include "base/loop.h"
#include "base/task.h"
#include "server/backend.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace interlock {

/// Takes the rows of an answer as they arrive. Views are valid during the call only.
class RowSink {
  public:
    virtual ~RowSink() = default;
    /// RowDescription's body, before the first row.
    virtual void describe(std::string_view body) = 0;
    /// DataRow's body. False when the budget is used up: the statement is then cancelled.
    [[nodiscard]] virtual bool row(std::string_view body) = 0;
    /// Bytes a row may have; a longer one is refused before it has arrived.
    [[nodiscard]] virtual std::size_t longest_row() const = 0;
};

enum class AnswerEnd {
    complete,   ///< ReadyForQuery after success
    error,      ///< the backend answered with an error; `error` says which
    lost,       ///< the connection broke before the end of the answer
    timed_out,  ///< statement_timeout passed; the backend was cancelled
    too_large,  ///< the sink refused a row; the backend was cancelled
    malformed,  ///< the backend sent what it must not
};

struct BackendError {
    std::string sqlstate;
    std::string message;
    std::string detail;
    std::string hint;
    bool fatal = false;
};

struct Answer {
    AnswerEnd end = AnswerEnd::lost;
    std::string tag;          ///< of the last command that completed
    bool sent = false;        ///< all of the request was handed to the kernel
    bool completed = false;   ///< CommandComplete of the last command was seen
    bool cancelled = false;   ///< a cancel was asked for: close the backend, whatever the end
    bool warned = false;      ///< a WARNING came after the cancel
    char transaction = '\0';  ///< of ReadyForQuery; 0 when none was seen
    BackendError error;       ///< when there was one, whatever `end` is
    [[nodiscard]] bool has_error() const { return !error.sqlstate.empty(); }
};

/// Sends what is in backend.out() and reads the answer up to ReadyForQuery. `commands` is how many
/// commands the request holds; rows go to `sink`, which may be null when none are expected.
/// `timeout` in ms for the whole exchange (0: none). Only after `complete` or `error`, and
/// if nothing was cancelled, may the backend be used again.
[[nodiscard]] Task<Answer> relay(Backend &backend, int commands, RowSink *sink, Millis timeout);

}  // namespace interlock
