#include "session/relay.h"

#include "base/log.h"

namespace interlock {

namespace {

// Room for every message that is not a row: descriptions, errors, notices.
constexpr std::size_t message_limit = 1 << 20;
// After a cancel request, how long the backend gets to stop before its connection is closed.
constexpr Millis cancel_grace = 5000;

void keep_error(std::string_view body, BackendError &out) {
    wire::ErrorFields fields;
    if (!wire::parse_error(body, fields)) {
        out.sqlstate = "XX000";
        out.message = "the backend sent a malformed error";
        return;
    }
    out.sqlstate = fields.sqlstate;
    out.message = fields.message;
    out.detail = fields.detail;
    out.hint = fields.hint;
    out.fatal = fields.fatal();
}

}  // namespace

Task<Answer> relay(Backend &backend, int commands, RowSink *sink, Millis timeout) {
    Loop &loop = backend.watch().loop();
    Millis deadline = deadline_after(loop.now(), timeout);
    Answer answer;
    AnswerEnd wanted = AnswerEnd::complete;  // what to report once the answer has ended
    int completed = 0;
    const std::size_t frame_limit =
        std::max(message_limit, sink == nullptr ? 0 : sink->longest_row());

    const Io sent = co_await backend.flush(deadline);
    answer.sent = sent == Io::ok;
    if (sent == Io::timeout) {
        answer.end = AnswerEnd::timed_out;
        co_return answer;
    }
    // A backend that closed its end may have said why before: read on even if the write failed.
    if (sent == Io::closed) deadline = std::min(deadline, loop.now() + 100);

    for (;;) {
        wire::Frame frame;
        const wire::FrameState state = backend.peek(frame_limit, frame);
        if (state == wire::FrameState::malformed || state == wire::FrameState::too_long) {
            answer.end =
                state == wire::FrameState::too_long ? AnswerEnd::too_large : AnswerEnd::malformed;
            if (state == wire::FrameState::too_long)
                co_await backend.cancel(loop.now() + cancel_grace);
            co_return answer;
        }
        if (state == wire::FrameState::need_more) {
            const Io io = co_await backend.fill(deadline);
            if (io == Io::ok) continue;
            if (io == Io::timeout && answer.sent && wanted == AnswerEnd::complete) {
                // Cancelled, not abandoned: the end of the statement is waited for, so that what it
                // did is known and it holds no lock afterwards.
                wanted = AnswerEnd::timed_out;
                deadline = loop.now() + cancel_grace;
                answer.cancelled = true;
                co_await backend.cancel(deadline);
                continue;
            }
            answer.end = wanted == AnswerEnd::complete ? AnswerEnd::lost : wanted;
            co_return answer;
        }
        switch (frame.type) {
        case 'D':
            if (wanted == AnswerEnd::complete && sink != nullptr && !sink->row(frame.body)) {
                wanted = AnswerEnd::too_large;
                backend.pop(frame.size);
                deadline = loop.now() + cancel_grace;
                answer.cancelled = true;
                co_await backend.cancel(deadline);
                continue;
            }
            break;
        case 'T':
            if (sink != nullptr) sink->describe(frame.body);
            break;
        case 'C': {
            wire::FieldReader fields(frame.body);
            answer.tag = fields.string();
            answer.completed = ++completed == commands;
            break;
        }
        case 'N': {  // NoticeResponse
            wire::ErrorFields notice;
            if (answer.cancelled && wire::parse_error(frame.body, notice))
                answer.warned = answer.warned || notice.severity == "WARNING";
            break;
        }
        case 'E': keep_error(frame.body, answer.error); break;
        case 'Z': {
            answer.transaction = frame.body.size() == 1 ? frame.body[0] : '\0';
            backend.pop(frame.size);
            const bool failed = answer.has_error();
            if (wanted != AnswerEnd::complete) {
                // The cancel may have come too late: then the statement did succeed.
                const bool succeeded = !failed && answer.completed;
                answer.end =
                    wanted == AnswerEnd::timed_out && succeeded ? AnswerEnd::complete : wanted;
            } else if (failed) {
                answer.end = AnswerEnd::error;
            } else {
                answer.end = answer.completed ? AnswerEnd::complete : AnswerEnd::malformed;
            }
            co_return answer;
        }
        case '1':  // ParseComplete
        case '2':  // BindComplete
        case '3':  // CloseComplete
        case 'n':  // NoData
        case 's':  // PortalSuspended
        case 'I':  // EmptyQueryResponse
        case 'S':  // ParameterStatus
        case 'A':  // NotificationResponse
            break;
        default: answer.end = AnswerEnd::malformed; co_return answer;
        }
        backend.pop(frame.size);
    }
}

}  // namespace interlock
