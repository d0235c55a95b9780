#include "session/outcome.h"

#include "base/log.h"

namespace interlock {

namespace {

Refusal backend_error(const BackendError &error) {
    Refusal refusal;
    refusal.code = Code::R31;
    refusal.sqlstate = error.sqlstate;
    refusal.message = error.message;
    refusal.detail = error.detail;
    refusal.hint = error.hint;
    return refusal;
}

Refusal make(Code code, std::string message, std::string hint) {
    Refusal refusal;
    refusal.code = code;
    refusal.message = std::move(message);
    refusal.hint = std::move(hint);
    return refusal;
}

// The connection broke, or had to be given up, before the backend said that the statement ended.
Refusal broken(const Answer &answer, Effect effect, bool autocommit, const std::string &shard) {
    // Without the last byte of the request the server cannot have committed anything: it rolls
    // back when the connection ends.
    if (!answer.sent)
        return make(
            Code::R30,
            format("the connection to shard %s broke before the statement was sent", shard.c_str()),
            "Nothing was done; it is safe to send the statement again.");
    if (effect == Effect::read)
        return make(Code::R30,
                    format("the connection to shard %s broke while reading", shard.c_str()),
                    "Nothing was changed; it is safe to send the statement again.");
    if (effect == Effect::write && !autocommit)
        return make(Code::R32,
                    format("the connection to shard %s broke after a write was sent: its "
                           "transaction cannot be committed any more",
                           shard.c_str()),
                    "Send ROLLBACK, then run the transaction again.");
    return make(
        Code::R32,
        format("the connection to shard %s broke after %s was sent: the outcome is unknown",
               shard.c_str(), effect == Effect::commit ? "COMMIT" : "a write"),
        "Look whether it took effect (by a key or token of your own) before you send it again.");
}

}  // namespace

std::optional<Refusal> judge(const Answer &answer, Effect effect, bool autocommit,
                             const std::string &shard) {
    switch (answer.end) {
    case AnswerEnd::complete: return std::nullopt;
    case AnswerEnd::error: return backend_error(answer.error);
    case AnswerEnd::lost:
        // A server that ends the session says so first. That is an answer, except where it may have
        // come after the commit was under way: then only silence about the outcome is honest.
        if (answer.has_error() && answer.error.fatal && effect != Effect::commit &&
            !(effect == Effect::write && autocommit && answer.completed))
            return backend_error(answer.error);
        return broken(answer, effect, autocommit, shard);
    case AnswerEnd::malformed: return broken(answer, effect, autocommit, shard);
    case AnswerEnd::timed_out:
        if (!answer.sent) return broken(answer, effect, autocommit, shard);
        // Only an error, and ReadyForQuery after it, say that a cancelled write was rolled back.
        if (effect != Effect::read && (answer.transaction == '\0' || !answer.has_error()))
            return broken(answer, effect, autocommit, shard);
        if (answer.has_error() && answer.error.sqlstate != "57014")
            return backend_error(answer.error);
        return make(Code::R36,
                    format("the statement on shard %s ran into the router's statement timeout and "
                           "was cancelled",
                           shard.c_str()),
                    "The limit is the setting pool.statement_timeout.");
    case AnswerEnd::too_large:
        if (effect != Effect::read) return broken(answer, effect, autocommit, shard);
        return make(Code::R37, "the answer is larger than the router allows",
                    "Ask for fewer rows; the limits are the settings limits.max_result_bytes and "
                    "limits.max_buffered_bytes.");
    }
    return broken(answer, effect, autocommit, shard);
}

}  // namespace interlock
