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

// The connection broke, or had to be given up, before the backend said that the statement ended.
Refusal broken(const Answer &answer, Effect effect, bool autocommit, const std::string &shard) {
    const char *again = autocommit ? "Nothing was done; it is safe to send the statement again."
                                   : "Send ROLLBACK, then run the transaction again.";
    // Without the last byte of the request the server cannot have committed anything: it rolls
    // back when the connection ends.
    if (!answer.sent)
        return make_refusal(
            Code::R30, format("the statement could not be sent to shard %s", shard.c_str()), again);
    if (effect == Effect::read)
        return make_refusal(Code::R30,
                            format("the connection to shard %s broke while reading", shard.c_str()),
                            again);
    if (effect == Effect::write && !autocommit)
        return make_refusal(Code::R32,
                            format("the connection to shard %s broke after a write was sent: its "
                                   "transaction cannot be committed any more",
                                   shard.c_str()),
                            again);
    return make_refusal(
        Code::R32,
        format("the connection to shard %s broke after %s was sent: the outcome is unknown",
               shard.c_str(), effect == Effect::commit ? "COMMIT" : "a write"),
        "Look whether it took effect (by a key or token of your own) before you send it again.");
}

}  // namespace

std::optional<Refusal> judge(const Answer &answer, Effect effect, bool autocommit,
                             const std::string &shard) {
    switch (answer.end) {
    case AnswerEnd::complete:
        // A cancel that comes during the commit only ends the wait for the standbys: the server
        // warns and reports success, but a failover could lose it.
        if (answer.warned && (effect == Effect::commit || (effect == Effect::write && autocommit)))
            return make_refusal(
                Code::R32,
                format("the statement timeout cut short the wait for the standbys of shard %s: "
                       "committed there, perhaps not on them",
                       shard.c_str()),
                "Look whether it took effect before you send it again.");
        return std::nullopt;
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
        return make_refusal(
            Code::R36,
            format("the statement on shard %s ran into the router's statement timeout and "
                   "was cancelled",
                   shard.c_str()),
            "The limit is the setting pool.statement_timeout.");
    case AnswerEnd::too_large:
        if (effect != Effect::read) return broken(answer, effect, autocommit, shard);
        return make_refusal(
            Code::R37, "the answer is larger than the router allows",
            "Ask for fewer rows; the limits are the settings limits.max_result_bytes and "
            "limits.max_buffered_bytes.");
    }
    return broken(answer, effect, autocommit, shard);
}

std::optional<Refusal> look_at_pinned(Backend &backend, const std::string &shard, Buffer *forward) {
    constexpr std::size_t message_limit = 64 * 1024;
    bool alive = backend.fill_now() != Io::closed;
    Refusal why =
        make_refusal(Code::R30, format("the connection to shard %s broke", shard.c_str()));
    wire::Frame frame;
    while (backend.peek(message_limit, frame) == wire::FrameState::ready) {
        wire::ErrorFields fields;
        if (frame.type == 'E' && wire::parse_error(frame.body, fields)) {
            why = postgres_error(fields.sqlstate, std::string(fields.message));
            alive = false;
        } else if (frame.type == 'N' || frame.type == 'S') {
            if (forward != nullptr) forward->append(backend.arrived().substr(0, frame.size));
        } else if (frame.type != 'A') {
            alive = false;
        }
        backend.pop(frame.size);
    }
    if (alive) return std::nullopt;
    why.detail = "The transaction was rolled back by the shard; this statement was not sent.";
    return why;
}

}  // namespace interlock
